//! The configuration file: where it lies, what is in it, and what may not be. Knows the catalog of settings, not what
//! their values mean; what a value says is judged by the command line's parser.
use super::catalog::{Catalog, CommandSettings, Kind, Setting, Type, nearest};
use super::origin::Origin;
use crate::errors::Failure;
use etcetera::BaseStrategy as _;
use std::ffi::OsString;
use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeInteger, DeTable, DeValue};

/// A file of settings is not longer than this.
const BYTES_MAX: u64 = 1 << 20;

/// Where the file is looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Nowhere: it is to be ignored, or the platform has no place for it.
    None,
    /// At the platform's place; it need not be there.
    Usual(PathBuf),
    /// Where a flag or a variable says; it must be there.
    Named {
        path: PathBuf,
        /// The flag or the variable.
        by: &'static str,
    },
}

impl Place {
    /// The place of the platform: `~/.config/colibri`, `Application Support` or `AppData`.
    pub(crate) fn usual() -> Self {
        let folder = etcetera::base_strategy::choose_native_strategy().map(|strategy| {
            // What the crate calls the configuration of macOS is for its own property lists only.
            if cfg!(target_os = "macos") { strategy.data_dir() } else { strategy.config_dir() }
        });
        folder.map_or(Place::None, |folder| Place::Usual(folder.join("colibri").join("config.toml")))
    }

    /// The path.
    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            Place::None => None,
            Place::Usual(path) | Place::Named { path, .. } => Some(path),
        }
    }

    /// The text of the file; None if there is none and need not be.
    ///
    /// # Errors
    /// A named file that is absent, and any that cannot be read or is no text.
    pub(crate) fn text(&self) -> Result<Option<String>, Failure> {
        let Some(path) = self.path() else { return Ok(None) };
        let shown = path.display();
        let mut bytes = Vec::new();
        let read = File::open(path).and_then(|file| file.take(BYTES_MAX + 1).read_to_end(&mut bytes));
        match (read, self) {
            (Ok(_), _) => {}
            (Err(error), Place::Usual(_)) if error.kind() == ErrorKind::NotFound => return Ok(None),
            (Err(error), Place::Named { by, .. }) => {
                return Err(Failure::Usage(format!(
                    "{by} {shown}: the configuration file cannot be read: {error}; give the path of a file, or leave {by} away"
                )));
            }
            (Err(error), _) => {
                return Err(Failure::Usage(format!(
                    "the configuration file {shown} cannot be read: {error}; correct that, or ignore it with --no-config"
                )));
            }
        }
        if bytes.len() as u64 > BYTES_MAX {
            return Err(Failure::Usage(format!(
                "{shown} is longer than {BYTES_MAX} bytes and no configuration file"
            )));
        }
        let text = String::from_utf8(bytes).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            let line = line_at(error.as_bytes(), at);
            Failure::Usage(format!(
                "{shown}, line {line}: byte {at} of the file (counted from 0) is not UTF-8; save the file as UTF-8"
            ))
        });
        text.map(Some)
    }
}

/// The line of a byte, from 1.
pub(super) fn line_at(text: &[u8], at: usize) -> usize {
    text[..at.min(text.len())].split(|byte| *byte == b'\n').count()
}

/// A value in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The command whose table it stands in; None: at the top.
    pub(crate) table: Option<String>,
    /// The setting.
    pub(crate) name: String,
    /// As arguments of flags; `true` or `false` for a switch.
    pub(crate) values: Vec<OsString>,
    pub(crate) origin: Origin,
}

/// What is in the text of a file.
///
/// # Errors
/// What is no TOML, and keys and types that no setting has. No error shows a value: it may be a secret.
pub(crate) fn entries(path: &Path, text: &str, catalog: &Catalog) -> Result<Vec<Entry>, Failure> {
    let reader = Reader { path, text, catalog };
    let table = parsed(path, text)?;
    let mut entries = Vec::new();
    for (key, value) in table.get_ref() {
        let line = reader.line(key.span().start);
        match (value.get_ref(), catalog.command(key.get_ref())) {
            (DeValue::Table(inner), Some(command)) => {
                for (key, value) in inner {
                    let line = reader.line(key.span().start);
                    entries.push(reader.entry(Some(command), key.get_ref(), value.get_ref(), line)?);
                }
            }
            (DeValue::Table(_), None) if catalog.any(key.get_ref()).is_none() => {
                return Err(reader.unknown_table(key.get_ref(), line));
            }
            (value, _) => entries.push(reader.entry(None, key.get_ref(), value, line)?),
        }
    }
    Ok(entries)
}

/// The text as TOML.
pub(super) fn parsed<'a>(path: &Path, text: &'a str) -> Result<Spanned<DeTable<'a>>, Failure> {
    DeTable::parse(text).map_err(|error| {
        let line = error.span().map_or(1, |span| line_at(text.as_bytes(), span.start));
        Failure::Usage(format!("{}, line {line}: {}; correct the line", path.display(), error.message()))
    })
}

/// Makes values of keys.
pub(super) struct Reader<'a> {
    pub(super) path: &'a Path,
    pub(super) text: &'a str,
    pub(super) catalog: &'a Catalog,
}

impl Reader<'_> {
    pub(super) fn line(&self, at: usize) -> usize {
        line_at(self.text.as_bytes(), at)
    }

    fn refused(&self, line: usize, why: &str) -> Failure {
        Failure::Usage(format!("{}, line {line}: {why}", self.path.display()))
    }

    fn unknown_table(&self, name: &str, line: usize) -> Failure {
        let names = self.catalog.0.iter().map(|command| command.name.as_str());
        let advice = nearest(name, names)
            .map_or("tables are called like commands".to_owned(), |near| format!("did you mean [{near}]?"));
        self.refused(line, &format!("there is no command `{name}` that a table could be for; {advice}"))
    }

    /// What a key and its value set.
    ///
    /// # Errors
    /// A key that no setting has, and a value of another type.
    pub(super) fn entry(
        &self,
        command: Option<&CommandSettings>,
        name: &str,
        value: &DeValue<'_>,
        line: usize,
    ) -> Result<Entry, Failure> {
        let found = match command {
            Some(command) => command.get(name),
            None => self.catalog.any(name),
        };
        let Some(setting) = found else { return Err(self.unknown_key(command, name, line)) };
        let table = command.map(|command| command.name.clone());
        let key = table.as_ref().map_or_else(|| name.to_owned(), |table| format!("{table}.{name}"));
        let values = self.values(setting, value).map_err(|found| {
            let expected = match setting.kind {
                Kind::Many => format!("{}, or a list of these", setting.value.words()),
                _ => setting.value.words().to_owned(),
            };
            self.refused(line, &format!("`{key}`: expected {expected}, found {found}"))
        })?;
        let origin = Origin::File { path: self.path.to_owned(), key, line };
        Ok(Entry { table, name: name.to_owned(), values, origin })
    }

    fn unknown_key(&self, command: Option<&CommandSettings>, name: &str, line: usize) -> Failure {
        let within = command.map(|command| command.name.as_str());
        let place = within.map_or(String::new(), |command| format!(" of [{command}]"));
        let per_call = match command {
            Some(command) => command.per_call.iter().any(|flag| flag == name),
            None => self.catalog.is_per_call(name),
        };
        if per_call {
            return self.refused(
                line,
                &format!("`{name}`{place} is no setting: --{name} is given with each call; remove the line"),
            );
        }
        let own: Vec<&str> = match command {
            Some(command) => command.settings.iter().map(|setting| setting.name.as_str()).collect(),
            None => self.catalog.names(),
        };
        let owner = self.catalog.0.iter().find(|command| command.get(name).is_some());
        let advice = match (nearest(name, own), owner) {
            (_, Some(owner)) => format!("it is one of [{}]", owner.name),
            (Some(near), _) => format!("did you mean `{near}`?"),
            _ => "`colibri config --template` lists all keys".to_owned(),
        };
        self.refused(line, &format!("there is no setting `{name}`{place}; {advice}"))
    }

    /// As arguments of flags, or what was found instead.
    fn values(&self, setting: &Setting, value: &DeValue<'_>) -> Result<Vec<OsString>, String> {
        match (setting.kind, value) {
            (Kind::Many, DeValue::Array(list)) => {
                list.iter().map(|value| self.value(setting, value.get_ref())).collect()
            }
            _ => Ok(vec![self.value(setting, value)?]),
        }
    }

    fn value(&self, setting: &Setting, value: &DeValue<'_>) -> Result<OsString, String> {
        match (setting.value, value) {
            (Type::Bool, DeValue::Boolean(on)) => Ok(on.to_string().into()),
            (Type::Number, DeValue::Integer(number)) => decimal(number),
            (Type::Number, DeValue::Float(number)) => Ok(number.as_str().into()),
            (Type::Text, DeValue::String(text)) => Ok(text.as_ref().into()),
            // A default such as `off` is a word and no path.
            (Type::Path, DeValue::String(text)) if setting.default.as_deref() == Some(text.as_ref()) => {
                Ok(text.as_ref().into())
            }
            (Type::Path, DeValue::String(text)) => self.rooted(text),
            _ => Err(format!("{} {}", article(value.type_str()), value.type_str())),
        }
    }

    /// A path as seen from the file.
    fn rooted(&self, text: &str) -> Result<OsString, String> {
        if text.is_empty() {
            return Err("an empty text".into());
        }
        if text == "~" || text.starts_with("~/") {
            return Err("`~`, which only a shell replaces: write the whole path".into());
        }
        Ok(self.path.parent().unwrap_or(Path::new("")).join(text).into())
    }
}

fn article(word: &str) -> &'static str {
    if word.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" }
}

/// The digits without sign, prefix or underscores of other notations than ours.
fn decimal(number: &DeInteger<'_>) -> Result<OsString, String> {
    if number.radix() == 10 {
        return Ok(number.as_str().trim_start_matches('+').into());
    }
    let parsed = u64::from_str_radix(number.as_str(), number.radix());
    parsed.map(|number| number.to_string().into()).map_err(|_| "a number that is too large".into())
}
