//! Profiles: settings that were measured to be best for one model on one machine, and for which. A profile is a layer of
//! settings between the configuration file and defaults, and a text with a version. Knows this text, not how the
//! settings were found and not which machine this is.
use super::catalog::Catalog;
use super::file::{Entry, Reader, line_at, parsed};
use super::origin::Origin;
use crate::errors::Failure;
use serde_json::Value;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

#[cfg(test)]
mod tests;

/// The setting that names a profile ...
pub(super) const PROFILE: &str = "profile";
/// ... and its value where there is to be none.
pub(crate) const NO_PROFILE: &str = "off";
/// Of the text below. It rises when a key changes its meaning or goes away.
const VERSION: u64 = 1;
/// A profile is not longer than this.
const BYTES_MAX: u64 = 1 << 20;
/// What may stand in a profile, in the order in which it is measured. None of these changes a bit of a result.
pub(crate) const SETTINGS: [&str; 5] = ["threads", "io", "readers", "look-ahead", "expert-cache"];
/// The keys of what was tried.
const TRIED: [&str; 7] =
    ["setting", "value", "seconds", "lower-quartile", "upper-quartile", "repeats", "disturbed"];
/// What to do about a profile that cannot be used.
const AGAIN: &str = "write it anew with `colibri tune`, or leave --profile away";

/// What a profile is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Subject {
    /// As [`models::Family::identity`] names it: a container has the identity of what it was made from.
    pub(crate) model: String,
    pub(crate) machine: MachineName,
}

/// What tells machines apart, as far as these settings go; nothing of who owns one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MachineName {
    pub(crate) processor: String,
    /// That a process may use.
    pub(crate) cores: u64,
    pub(crate) memory_bytes: u64,
}

/// A value that was tried, with its times in seconds for a token.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tried {
    pub(crate) setting: String,
    pub(crate) value: String,
    /// The median.
    pub(crate) seconds: f64,
    pub(crate) lower_quartile: f64,
    pub(crate) upper_quartile: f64,
    /// Repeats that were made.
    pub(crate) repeats: usize,
    /// Whether most of them were disturbed by other programs.
    pub(crate) disturbed: bool,
}

/// What is written.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Profile {
    pub(crate) subject: Subject,
    /// Numbers or texts, by name.
    pub(crate) settings: Vec<(String, Value)>,
    /// Everything that was measured on the way. It is for people: nothing of it acts.
    pub(crate) tried: Vec<Tried>,
    /// In what circumstances, in one line.
    pub(crate) measured_with: String,
}

impl Profile {
    /// As a file.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        let quoted = |text: &str| Value::from(text).to_string();
        // Writing to a string cannot fail. A line of a comment ends where its text would end it.
        let with: String = self.measured_with.chars().filter(|letter| !letter.is_control()).collect();
        let _ =
            writeln!(text, "# Written by `colibri tune` {}, read by `--profile`.", env!("CARGO_PKG_VERSION"));
        let _ = writeln!(text, "# Measured with: {with}");
        let _ = writeln!(text, "profile = {VERSION}\n\n[model]");
        let _ = writeln!(text, "identity = {}\n\n[machine]", quoted(&self.subject.model));
        let MachineName { processor, cores, memory_bytes } = &self.subject.machine;
        let _ = writeln!(text, "processor = {}\ncores = {cores}", quoted(processor));
        let _ = writeln!(text, "memory-bytes = {memory_bytes}\n\n[settings]");
        for (name, value) in &self.settings {
            // Numbers and texts of JSON are values of TOML.
            let _ = writeln!(text, "{name} = {value}");
        }
        let _ = writeln!(text, "\n# Seconds a token of all that was tried, for people: it sets nothing.");
        for tried in &self.tried {
            let _ = writeln!(text, "\n[[tried]]\nsetting = {}", quoted(&tried.setting));
            let _ = writeln!(text, "value = {}\nseconds = {:?}", quoted(&tried.value), tried.seconds);
            let _ = writeln!(text, "lower-quartile = {:?}", tried.lower_quartile);
            let _ = writeln!(text, "upper-quartile = {:?}", tried.upper_quartile);
            let _ = writeln!(text, "repeats = {}\ndisturbed = {}", tried.repeats, tried.disturbed);
        }
        text
    }
}

impl Subject {
    /// Of the profile in a file.
    ///
    /// # Errors
    /// A file that cannot be read or is no whole profile of this version.
    pub(crate) fn read(path: &Path) -> Result<Self, Failure> {
        let text = read(path)?;
        let sheet = Sheet { path, text: &text };
        Ok(sheet.parts(parsed(path, &text)?.get_ref())?.subject)
    }
}

/// What the profile in a file sets.
///
/// # Errors
/// A file that cannot be read or is no whole profile of this version; keys and types that no such setting has.
pub(super) fn entries(path: &Path, catalog: &Catalog) -> Result<Vec<Entry>, Failure> {
    entries_of(path, &read(path)?, catalog)
}

fn entries_of(path: &Path, text: &str, catalog: &Catalog) -> Result<Vec<Entry>, Failure> {
    let sheet = Sheet { path, text };
    let reader = Reader { path, text, catalog };
    let table = parsed(path, text)?;
    let mut entries = Vec::new();
    for (key, value) in sheet.parts(table.get_ref())?.settings {
        let (name, line) = (key.get_ref().as_ref(), reader.line(key.span().start));
        if !SETTINGS.contains(&name) {
            let why = format!("`{name}` is no setting of a profile, these are: {}", SETTINGS.join(", "));
            return Err(sheet.refused(key.span().start, &why));
        }
        let entry = reader.entry(None, name, value.get_ref(), line)?;
        let key = format!("settings.{name}");
        entries.push(Entry { origin: Origin::Profile { path: path.to_owned(), key, line }, ..entry });
    }
    Ok(entries)
}

fn read(path: &Path) -> Result<String, Failure> {
    let refused = |why: String| Failure::Usage(format!("--profile {}: {why}", path.display()));
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(BYTES_MAX + 1).read_to_end(&mut bytes));
    read.map_err(|error| refused(format!("the profile cannot be read: {error}; give its path, or off")))?;
    match String::from_utf8(bytes) {
        Ok(text) if text.len() as u64 <= BYTES_MAX => Ok(text),
        _ => Err(refused(format!("it is no text of at most {BYTES_MAX} bytes and so no profile; {AGAIN}"))),
    }
}

/// The text of a profile with its place.
struct Sheet<'a> {
    path: &'a Path,
    text: &'a str,
}

/// A profile as it was read.
struct Parts<'t, 'a> {
    subject: Subject,
    settings: &'t DeTable<'a>,
}

impl Sheet<'_> {
    fn refused(&self, at: usize, why: &str) -> Failure {
        let line = line_at(self.text.as_bytes(), at);
        Failure::Usage(format!("{}, line {line}: {why}; {AGAIN}", self.path.display()))
    }

    fn parts<'t, 'a>(&self, table: &'t DeTable<'a>) -> Result<Parts<'t, 'a>, Failure> {
        self.check_version(table)?;
        let (mut model, mut machine, mut settings) = (None, None, None);
        for (key, value) in table {
            match key.get_ref().as_ref() {
                PROFILE => {}
                "model" => model = Some(self.model(value)?),
                "machine" => machine = Some(self.machine(value)?),
                "settings" => settings = Some(self.table(value, "settings")?),
                "tried" => self.check_tried(value)?,
                other => {
                    let why = format!("`{other}` is no part of a profile");
                    return Err(self.refused(key.span().start, &why));
                }
            }
        }
        let (Some(model), Some(machine), Some(settings)) = (model, machine, settings) else {
            let why = "a profile has the tables [model], [machine] and [settings], one of them is missing";
            return Err(self.refused(self.text.len(), why));
        };
        Ok(Parts { subject: Subject { model, machine }, settings })
    }

    /// The version is looked at before everything else: what a newer one means is not known.
    fn check_version(&self, table: &DeTable<'_>) -> Result<(), Failure> {
        let Some((key, value)) = table.iter().find(|(key, _)| key.get_ref().as_ref() == PROFILE) else {
            return Err(
                self.refused(0, "this is no profile: the key `profile` with its version is not in it")
            );
        };
        match self.whole(value, PROFILE)? {
            VERSION => Ok(()),
            version => {
                let why = format!("a profile of version {version}, this program reads version {VERSION}");
                Err(self.refused(key.span().start, &why))
            }
        }
    }

    fn model(&self, value: &Spanned<DeValue<'_>>) -> Result<String, Failure> {
        let [identity] = self.fields(value, "model", ["identity"])?;
        self.word(identity, "identity")
    }

    fn machine(&self, value: &Spanned<DeValue<'_>>) -> Result<MachineName, Failure> {
        let names = ["processor", "cores", "memory-bytes"];
        let [processor, cores, memory] = self.fields(value, "machine", names)?;
        Ok(MachineName {
            processor: self.word(processor, names[0])?,
            cores: self.whole(cores, names[1])?,
            memory_bytes: self.whole(memory, names[2])?,
        })
    }

    /// What was tried sets nothing, but a file in which it is damaged is not whole.
    fn check_tried(&self, value: &Spanned<DeValue<'_>>) -> Result<(), Failure> {
        let DeValue::Array(list) = value.get_ref() else {
            return Err(self.refused(value.span().start, "`tried` is no list of tables [[tried]]"));
        };
        for tried in list {
            let [setting, value, times @ .., repeats, disturbed] = self.fields(tried, "tried", TRIED)?;
            self.word(setting, TRIED[0])?;
            self.word(value, TRIED[1])?;
            self.whole(repeats, TRIED[5])?;
            for (time, name) in times.into_iter().zip(&TRIED[2..]) {
                if !matches!(time.get_ref(), DeValue::Float(_)) {
                    let why = format!("`{name}`: expected a number with a point, in seconds");
                    return Err(self.refused(time.span().start, &why));
                }
            }
            if !matches!(disturbed.get_ref(), DeValue::Boolean(_)) {
                return Err(self.refused(disturbed.span().start, "`disturbed`: expected true or false"));
            }
        }
        Ok(())
    }

    fn table<'t, 'a>(&self, value: &'t Spanned<DeValue<'a>>, name: &str) -> Result<&'t DeTable<'a>, Failure> {
        match value.get_ref() {
            DeValue::Table(table) => Ok(table),
            _ => Err(self.refused(value.span().start, &format!("`{name}` is no table [{name}]"))),
        }
    }

    /// The values of a table that has these keys and no others.
    fn fields<'t, 'a, const N: usize>(
        &self,
        value: &'t Spanned<DeValue<'a>>,
        section: &str,
        names: [&str; N],
    ) -> Result<[&'t Spanned<DeValue<'a>>; N], Failure> {
        let table = self.table(value, section)?;
        if let Some((key, _)) = table.iter().find(|(key, _)| !names.contains(&key.get_ref().as_ref())) {
            let why = format!("`{}` is no key of [{section}]", key.get_ref());
            return Err(self.refused(key.span().start, &why));
        }
        let mut found = [value; N];
        for (name, found) in names.iter().zip(&mut found) {
            let field = table.iter().find(|(key, _)| key.get_ref().as_ref() == *name);
            let missing = || self.refused(value.span().start, &format!("[{section}] has no key `{name}`"));
            *found = field.ok_or_else(missing)?.1;
        }
        Ok(found)
    }

    fn word(&self, value: &Spanned<DeValue<'_>>, name: &str) -> Result<String, Failure> {
        match value.get_ref() {
            DeValue::String(text) => Ok(text.as_ref().to_owned()),
            _ => Err(self.refused(value.span().start, &format!("`{name}`: expected a text between quotes"))),
        }
    }

    fn whole(&self, value: &Spanned<DeValue<'_>>, name: &str) -> Result<u64, Failure> {
        let number = match value.get_ref() {
            DeValue::Integer(number) => u64::from_str_radix(number.as_str(), number.radix()).ok(),
            _ => None,
        };
        let why = || format!("`{name}`: expected a whole number of at least 0");
        number.ok_or_else(|| self.refused(value.span().start, &why()))
    }
}
