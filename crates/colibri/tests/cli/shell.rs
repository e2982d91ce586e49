//! `completions` and `man`: every command and every flag is there, and nothing but text for who asked.
use crate::common::{colibri, commands, text_of};
use std::collections::BTreeSet;
use std::fs;

/// The long flags in a text.
fn flags(text: &str) -> BTreeSet<String> {
    let is_flag = |c: char| c.is_ascii_lowercase() || c == '-';
    let flag = |rest: &str| rest.split(|c: char| !is_flag(c)).next().unwrap_or_default().to_owned();
    let places = text.match_indices("--").map(|(place, _)| flag(&text[place + 2..]));
    places.filter(|flag| !flag.is_empty()).collect()
}

/// The flags that a command has.
fn flags_of(command: &str) -> BTreeSet<String> {
    let help = colibri(&[command, "--help"]).stdout;
    let defined =
        help.lines().map(str::trim_start).filter(|line| line.starts_with("--") || line.starts_with("-h"));
    let flags: BTreeSet<String> =
        defined.filter_map(|line| flags(line.split("  ").next().unwrap()).into_iter().next()).collect();
    assert!(flags.contains("help") && flags.contains("log-level"), "{flags:?}");
    flags
}

#[test]
fn every_shell_learns_every_command_and_flag() {
    for (shell, sign) in [
        ("bash", "complete -F _colibri"),
        ("zsh", "#compdef colibri"),
        ("fish", "complete -c colibri"),
        ("powershell", "Register-ArgumentCompleter"),
        ("elvish", "edit:completion"),
    ] {
        let answer = colibri(&["completions", shell]);
        assert_eq!((answer.code, answer.stderr.as_str()), (0, ""), "{shell}");
        assert!(answer.stdout.contains(sign), "{shell}");
        for command in commands() {
            assert!(answer.stdout.contains(&command), "{shell}: {command}");
            for flag in flags_of(&command) {
                // Fish names them without dashes.
                let spelled = if shell == "fish" { format!("-l {flag}") } else { format!("--{flag}") };
                assert!(answer.stdout.contains(&spelled), "{shell}: {command} {spelled}");
            }
        }
        // And the values where there are only some, for shells that are told any.
        let values = answer.stdout.contains("powershell") && answer.stdout.contains("always");
        assert!(values || !["bash", "zsh"].contains(&shell), "{shell}");
    }
    let refused = colibri(&["completions", "csh"]);
    assert!(
        refused.code == 2 && refused.stderr.contains("bash, elvish, fish, powershell, zsh"),
        "{}",
        refused.stderr
    );
    assert_eq!(colibri(&["completions"]).code, 2);
}

/// Roff without its signs.
fn plain(page: &str) -> String {
    page.replace("\\-", "-").replace("\\fB", "").replace("\\fI", "").replace("\\fR", "")
}

#[test]
fn every_command_has_a_page_with_every_flag() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("new/man1");
    let answer = colibri(&["man", "--out", text_of(&out)]);
    let commands = commands();
    assert_eq!((answer.code, answer.stdout.as_str()), (0, ""), "{}", answer.stderr);
    assert!(answer.stderr.contains(&format!("wrote {} pages to", commands.len() + 1)), "{}", answer.stderr);
    assert_eq!(fs::read_dir(&out).unwrap().count(), commands.len() + 1);
    let own = fs::read_to_string(out.join("colibri.1")).unwrap();
    assert_eq!(colibri(&["man"]).stdout, own);
    for command in &commands {
        assert!(plain(&own).contains(&format!("colibri-{command}(1)")), "{command}");
        let page = fs::read_to_string(out.join(format!("colibri-{command}.1"))).unwrap();
        assert_eq!(colibri(&["man", command]).stdout, page, "{command}");
        let text = plain(&page);
        for flag in flags_of(command) {
            assert!(text.contains(&format!("--{flag}")), "{command} --{flag}");
        }
        for part in [".SH NAME", ".SH SYNOPSIS", ".SH \"EXIT STATUS\"", "141  nobody reads"] {
            assert!(text.contains(part), "{command}: {part}: {text}");
        }
        assert!(text.contains(&format!("colibri {command}")), "{command}: {text}");
    }
    assert!(own.contains("numerics version"), "{own}");
    // Again, over the older ones.
    assert_eq!(colibri(&["man", "--out", text_of(&out)]).code, 0);
}

#[test]
fn pages_that_cannot_be_are_refused_by_name() {
    let none = colibri(&["man", "fly"]);
    assert!(
        none.code == 2 && none.stderr.contains("`fly`") && none.stderr.contains("inspect"),
        "{}",
        none.stderr
    );
    assert_eq!(colibri(&["man", "run", "--out", "x"]).code, 2);
    let file = tempfile::NamedTempFile::new().unwrap();
    let refused = colibri(&["man", "--out", text_of(file.path())]);
    assert!(refused.code == 1 && refused.stderr.contains(text_of(file.path())), "{}", refused.stderr);
}
