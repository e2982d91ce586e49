//! How a refusal is said: in JSON or in words, in colour or not. A command line that cannot be honoured is not parsed, so
//! its words are looked through, and whatever else is wrong there, in the file or in the environment is passed over.
use super::layers::row;
use super::{Definition, Surroundings, environment, file};
use crate::terminal::Color;
use clap::ValueEnum as _;
use std::ffi::OsString;
use std::path::Path;

/// How it is said.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    /// As one JSON object.
    pub(crate) json: bool,
    pub(crate) color: Color,
}

impl Manner {
    /// As far as it can be known.
    pub(crate) fn new(definition: &Definition, arguments: &[OsString], surroundings: &Surroundings) -> Self {
        let catalog = definition.catalog();
        let command = arguments.iter().find_map(|word| catalog.command(word.to_str()?));
        let command = command.map_or("", |command| command.name.as_str());
        let mut entries = Vec::new();
        for variable in &surroundings.variables {
            entries.extend(environment::entries(std::slice::from_ref(variable), catalog).unwrap_or_default());
        }
        let config = typed(arguments, "--config", false);
        let no_config = typed(arguments, "--no-config", true).is_some();
        let place = surroundings.place_of(config.as_deref().map(Path::new), no_config);
        if let Ok(place) = place
            && let (Some(path), Ok(Some(text))) = (place.path(), place.text())
        {
            entries.extend(file::entries(path, &text, catalog).unwrap_or_default());
        }
        let told = |name: &str| {
            let value = row(catalog.any(name)?, command, None, &entries).values.into_iter().next()?;
            value.into_string().ok()
        };
        let json = typed(arguments, "--json", true).or_else(|| told("json"));
        let color = typed(arguments, "--color", false).or_else(|| told("color"));
        let color = color.and_then(|color| Color::from_str(&color, false).ok());
        Manner { json: json.is_some_and(|json| json == "true"), color: color.unwrap_or_default() }
    }
}

/// The value of a flag among words.
fn typed(arguments: &[OsString], flag: &str, is_switch: bool) -> Option<String> {
    let mut words = arguments.iter().filter_map(|word| word.to_str());
    while let Some(word) = words.next() {
        match word.strip_prefix(flag) {
            Some("") if is_switch => return Some("true".to_owned()),
            Some("") => return words.next().map(str::to_owned),
            Some(rest) if rest.starts_with('=') => return Some(rest[1..].to_owned()),
            _ => {}
        }
    }
    None
}
