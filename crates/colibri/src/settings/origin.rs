//! Where a value comes from, and how that is said. Knows no flag.
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Nobody said anything.
    Default,
    /// The model's `generation_config.json`.
    Model,
    /// A line of the profile that `--profile` names.
    Profile {
        path: PathBuf,
        key: String,
        /// From 1.
        line: usize,
    },
    /// A line of the configuration file.
    File {
        path: PathBuf,
        /// With its table, as `run.chunk`.
        key: String,
        /// From 1.
        line: usize,
    },
    /// A variable of this name.
    Environment(String),
    /// A flag.
    CommandLine,
}

impl Origin {
    /// Which one goes first: the higher one. A table of a file is for one command and goes before the keys of all.
    pub(crate) fn rank(&self) -> u8 {
        match self {
            Origin::Default => 0,
            Origin::Model => 1,
            Origin::Profile { .. } => 2,
            Origin::File { key, .. } if !key.contains('.') => 3,
            Origin::File { .. } => 4,
            Origin::Environment(_) => 5,
            Origin::CommandLine => 6,
        }
    }

    /// Whether a file or a variable gave the value, so that nobody typed it.
    pub(crate) fn is_told(&self) -> bool {
        matches!(self, Origin::Profile { .. } | Origin::File { .. } | Origin::Environment(_))
    }

    /// In JSON.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Origin::Default => "default",
            Origin::Model => "model",
            Origin::Profile { .. } => "profile",
            Origin::File { .. } => "file",
            Origin::Environment(_) => "environment",
            Origin::CommandLine => "command line",
        }
    }

    /// What a user must change to change a setting.
    pub(crate) fn spelled(&self, name: &str) -> String {
        match self {
            Origin::Profile { path, key, line } | Origin::File { path, key, line } => {
                format!("`{key}` in line {line} of {}", path.display())
            }
            Origin::Environment(variable) => variable.clone(),
            Origin::Default | Origin::Model | Origin::CommandLine => format!("--{name}"),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => formatter.write_str("default"),
            Origin::Model => formatter.write_str("the model's generation_config.json"),
            Origin::Profile { path, line, .. } | Origin::File { path, line, .. } => {
                write!(formatter, "{}:{line}", path.display())
            }
            Origin::Environment(variable) => formatter.write_str(variable),
            Origin::CommandLine => formatter.write_str("command line"),
        }
    }
}

/// The settings that somebody gave: on the command line, in a variable, in a file or by a profile.
#[derive(Clone, Debug, Default)]
pub(crate) struct Origins(pub(crate) BTreeMap<String, Origin>);

impl Origins {
    /// Of a setting; None where a default holds.
    pub(crate) fn get(&self, name: &str) -> Option<&Origin> {
        self.0.get(name)
    }

    /// A text in which flags that nobody typed are called by their origin.
    pub(crate) fn spell(&self, text: &str) -> String {
        let mut spelled = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(start) = rest.find("--") {
            let (before, flag) = rest.split_at(start);
            let name = &flag[2..];
            let end = name.find(|c: char| !(c.is_ascii_alphanumeric() || c == '-')).unwrap_or(name.len());
            let (name, after) = name.split_at(end);
            spelled.push_str(before);
            // A dash before it makes it another word.
            let own = !before.ends_with(|c: char| c == '-' || c.is_alphanumeric());
            match self.get(name).filter(|origin| own && origin.is_told()) {
                Some(origin) => spelled.push_str(&origin.spelled(name)),
                None => spelled.push_str(&flag[..2 + end]),
            }
            rest = after;
        }
        spelled.push_str(rest);
        spelled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_flags_that_nobody_typed_are_spelled_by_their_origin() {
        let seed = Origin::File { path: "c.toml".into(), key: "run.seed".into(), line: 3 };
        let chunk = Origin::Environment("COLIBRI_CHUNK".into());
        let typed = ("top-k".into(), Origin::CommandLine);
        let origins = Origins([("seed".into(), seed), ("chunk".into(), chunk), typed].into());
        for (text, expected) in [
            ("--seed has no effect", "`run.seed` in line 3 of c.toml has no effect"),
            ("leave --chunk, --top-k", "leave COLIBRI_CHUNK, --top-k"),
            ("--chunks and --seed-x and ---seed", "--chunks and --seed-x and ---seed"),
            ("--chunk=2", "COLIBRI_CHUNK=2"),
            ("a -- b --", "a -- b --"),
        ] {
            assert_eq!(origins.spell(text), expected);
        }
    }
}
