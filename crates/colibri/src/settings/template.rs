//! A configuration file to begin with: every setting as a comment. Knows the catalog only.
use super::catalog::{Catalog, Kind, Setting, Type};
use std::fmt::Write as _;

/// Columns of the file.
const COLUMNS: usize = 80;

/// The text. A setting stands once; where its help or default differs between commands, the first one's is shown.
pub(crate) fn template(catalog: &Catalog) -> String {
    let mut text = String::new();
    comment(&mut text, HEAD);
    for name in catalog.names() {
        let Some(setting) = catalog.any(name) else { continue };
        let having = catalog.0.iter().filter(|command| command.get(name).is_some());
        let commands: Vec<&str> = having.map(|command| command.name.as_str()).collect();
        text.push('\n');
        comment(&mut text, setting.help.trim());
        comment(&mut text, &format!("For: {}. Variable: {}.", commands.join(", "), setting.variable()));
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}", format!("#{name} = {}", example(setting)).trim_end());
    }
    text.push_str("\n# For one command only, with any of the keys above that the command has:\n");
    for command in &catalog.0 {
        let _ = writeln!(text, "#[{}]", command.name);
    }
    text
}

const HEAD: &str = "\
Settings of colibri. Remove the # before a key to set it. A flag on the command line goes first, then the environment \
variable, then this file. In it, the table of a command goes before the keys at the top.
Relative paths are relative to this file. `colibri config` shows what holds.";

/// The default as a value of the file; nothing where only words say it.
fn example(setting: &Setting) -> String {
    match (&setting.default, setting.value) {
        (Some(default), Type::Bool | Type::Number) if setting.kind != Kind::Many => default.clone(),
        (Some(default), _) => toml_text(default),
        (None, _) if setting.kind == Kind::Many => "[]".to_owned(),
        // Words that begin with a number, as `1, all`, name it.
        (None, Type::Number) => {
            let first =
                setting.otherwise.iter().flat_map(|words| words.split(',')).next().unwrap_or_default();
            first.parse::<f64>().map_or(String::new(), |_| first.to_owned())
        }
        (None, _) => String::new(),
    }
}

/// Quoted as TOML wants it; the escapes of JSON are among TOML's.
fn toml_text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Lines that begin with `# ` and fit.
fn comment(text: &mut String, words: &str) {
    for paragraph in words.lines() {
        let mut line = String::from("#");
        for word in paragraph.split_whitespace() {
            if line.chars().count() + 1 + word.chars().count() > COLUMNS {
                let _ = writeln!(text, "{line}");
                "#".clone_into(&mut line);
            }
            line.push(' ');
            line.push_str(word);
        }
        let _ = writeln!(text, "{line}");
    }
}
