//! Settings from environment variables. Knows the catalog of settings, not what their values mean; what a value says is
//! judged by the command line's parser.
use super::catalog::{Catalog, Kind, PREFIX, Setting, Type, nearest, variable};
use super::file::{Entry, Place};
use super::origin::Origin;
use crate::errors::Failure;
use std::ffi::{OsStr, OsString};

/// The variable that names the configuration file.
pub(crate) const CONFIG: &str = "COLIBRI_CONFIG";
/// The switch for having none.
pub(crate) const NO_CONFIG: &str = "COLIBRI_NO_CONFIG";
/// Variables of the project's own tests begin like this. The program neither reads nor refuses them: whoever sets one for
/// a whole test run must not make every program in it fail.
const OF_TESTS: &str = "COLIBRI_TEST_";

/// The settings among some variables.
///
/// # Errors
/// A variable of the program's that names no setting, and values whose form is wrong.
pub(crate) fn entries(variables: &[(OsString, OsString)], catalog: &Catalog) -> Result<Vec<Entry>, Failure> {
    let mut entries = Vec::new();
    for (name, value) in variables {
        let name = named(name);
        if !name.starts_with(PREFIX)
            || name.starts_with(OF_TESTS)
            || [CONFIG, NO_CONFIG].contains(&name.as_str())
        {
            continue;
        }
        let found = catalog.names().into_iter().find(|setting| variable(setting) == name);
        let Some(setting) = found.and_then(|setting| catalog.any(setting)) else {
            return Err(unknown(&name, catalog));
        };
        let values = values(setting, value).map_err(|why| Failure::Usage(format!("{name}: {why}")))?;
        entries.push(Entry {
            table: None,
            name: setting.name.clone(),
            values,
            origin: Origin::Environment(name),
        });
    }
    Ok(entries)
}

/// The name as it is compared; on Windows letters' case makes no difference.
fn named(name: &OsStr) -> String {
    let name = name.to_string_lossy();
    if cfg!(windows) { name.to_uppercase() } else { name.into_owned() }
}

fn unknown(name: &str, catalog: &Catalog) -> Failure {
    let flag = name[PREFIX.len()..].replace('_', "-").to_lowercase();
    if catalog.is_per_call(&flag) {
        return Failure::Usage(format!(
            "{name} sets nothing: --{flag} is given with each call; unset the variable"
        ));
    }
    let names = catalog.names().into_iter().chain(["config", "no-config"]);
    let advice = nearest(&flag, names)
        .map_or("`colibri config --template` lists all settings; unset the variable".to_owned(), |near| {
            format!("did you mean {}?", variable(near))
        });
    Failure::Usage(format!("the environment variable {name} sets nothing; {advice}"))
}

/// As arguments of flags, or what is wrong.
fn values(setting: &Setting, value: &OsStr) -> Result<Vec<OsString>, String> {
    match (setting.kind, setting.value) {
        (Kind::Switch, _) => Ok(vec![switch(value)?.to_string().into()]),
        (Kind::Many, Type::Path) => {
            let paths: Vec<OsString> = std::env::split_paths(value).map(OsString::from).collect();
            if paths.iter().any(|path| path.is_empty()) {
                return Err("one of its paths is empty: correct or unset it".into());
            }
            Ok(paths)
        }
        (Kind::Many, _) if value.as_encoded_bytes().starts_with(b"[") => listed(value),
        _ => Ok(vec![value.to_owned()]),
    }
}

/// On or off, or what is wrong.
fn switch(value: &OsStr) -> Result<bool, String> {
    match value.to_str() {
        Some("1" | "true") => Ok(true),
        Some("0" | "false") => Ok(false),
        _ => Err(format!("expected 1, 0, true or false, found `{}`; correct or unset it", value.display())),
    }
}

/// Where the variables say that the file is; None if they say nothing.
///
/// # Errors
/// An empty or a wrong value, or both variables at once.
pub(crate) fn place(variables: &[(OsString, OsString)]) -> Result<Option<Place>, Failure> {
    let get = |wanted: &str| variables.iter().find(|(name, _)| named(name) == wanted).map(|(_, value)| value);
    let none = get(NO_CONFIG).map(|value| switch(value)).transpose();
    let none = none.map_err(|why| Failure::Usage(format!("{NO_CONFIG}: {why}")))? == Some(true);
    match get(CONFIG) {
        Some(_) if none => Err(Failure::Usage(format!(
            "{CONFIG} names a configuration file and {NO_CONFIG} forbids one; unset one of them"
        ))),
        Some(path) if path.is_empty() => Err(Failure::Usage(format!(
            "{CONFIG} is empty: expected the path of a file; unset it, or give --no-config"
        ))),
        Some(path) => Ok(Some(Place::Named { path: path.into(), by: CONFIG })),
        None => Ok(none.then_some(Place::None)),
    }
}

/// Several texts in one variable: a JSON array, because any other separator may be part of a text.
fn listed(value: &OsStr) -> Result<Vec<OsString>, String> {
    let list: Option<Vec<String>> = value.to_str().and_then(|text| serde_json::from_str(text).ok());
    let list = list.ok_or(
        "what begins with [ is a JSON array of texts, such as [\"one\", \"two\"]; write a single text that begins so \
         as an array too",
    )?;
    Ok(list.into_iter().map(OsString::from).collect())
}
