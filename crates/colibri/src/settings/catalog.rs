//! Which settings there are: read from the definition of the command line, so that a new flag is a setting at once. Knows
//! no value, no file and no variable.
use clap::builder::ValueParser;
use clap::{Arg, ArgAction, Command, ValueHint};
use std::any::TypeId;

/// Flags that belong to one call: what goes in, where the results go, and what is to be done. They are given anew each
/// time, because a forgotten line in a file must not choose them. All other flags are settings.
const PER_CALL: [&str; 38] = [
    "guess-precision",
    "ids",
    "inputs",
    "layers",
    "positions",
    "out",
    "golden",
    "checked",
    "deep",
    "missing",
    "no-measure",
    "decode",
    "specials",
    "path",
    "template",
    "all",
    "chat",
    "load",
    "compare",
    "anyway",
    "repeats",
    "bytes",
    "rows",
    "tokens",
    "lengths",
    "contexts",
    "text",
    "thin",
    "verify",
    "trace-routing",
    "timeline",
    "slots",
    "policy",
    "before",
    "ram",
    "disk",
    "trace",
    "sweep",
];
/// Flags that say where settings come from.
const SOURCES: [&str; 2] = ["config", "no-config"];
/// Settings whose values are never shown.
const SECRETS: [&str; 0] = [];

/// What the definition of the command line does not say about a flag.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Marks<'a> {
    /// Names of flags that are no settings.
    pub(crate) not_settings: &'a [&'a [&'a str]],
    /// Names of settings whose values are never shown.
    pub(crate) secrets: &'a [&'a str],
}

/// The marks of the program's own flags.
pub(crate) const MARKS: Marks<'static> = Marks { not_settings: &[&PER_CALL, &SOURCES], secrets: &SECRETS };

/// How often a setting has a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// On or off.
    Switch,
    /// One.
    One,
    /// Any number.
    Many,
}

/// What a value is in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    /// true or false
    Bool,
    /// A number without quotes.
    Number,
    /// Text that is a path.
    Path,
    /// Other text.
    Text,
}

impl Type {
    /// In a sentence.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Type::Bool => "true or false",
            Type::Number => "a number without quotes",
            Type::Path => "a path between quotes",
            Type::Text => "a text between quotes",
        }
    }
}

/// A setting of a command.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    /// Of the argument.
    pub(crate) id: String,
    /// As on the command line without dashes, and as the key in a file.
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) value: Type,
    pub(crate) secret: bool,
    /// What holds if nobody says anything, if that can be said in one value ...
    pub(crate) default: Option<String>,
    /// ... or in words.
    pub(crate) otherwise: Option<String>,
    /// One paragraph.
    pub(crate) help: String,
}

impl Setting {
    /// The variable that sets it.
    pub(crate) fn variable(&self) -> String {
        variable(&self.name)
    }
}

/// `expert-cache` is `COLIBRI_EXPERT_CACHE`.
pub(crate) fn variable(name: &str) -> String {
    format!("{PREFIX}{}", name.replace('-', "_").to_uppercase())
}

/// How the program's variables begin.
pub(crate) const PREFIX: &str = "COLIBRI_";

/// The settings of a command and what may be said about them.
#[derive(Clone, Debug)]
pub(crate) struct CommandSettings {
    /// Of the command.
    pub(crate) name: String,
    /// As in its help.
    pub(crate) settings: Vec<Setting>,
    /// Long flags that are given anew with every call.
    pub(crate) per_call: Vec<String>,
}

impl CommandSettings {
    /// By name.
    pub(crate) fn get(&self, name: &str) -> Option<&Setting> {
        self.settings.iter().find(|setting| setting.name == name)
    }
}

/// All settings of all commands.
#[derive(Clone, Debug)]
pub(crate) struct Catalog(pub(crate) Vec<CommandSettings>);

impl Catalog {
    /// Of a command line; `root` must be built, so that its commands have the flags that hold for all of them.
    pub(crate) fn new(root: &Command, marks: Marks<'_>) -> Self {
        let commands = root.get_subcommands().filter(|command| command.get_name() != "help");
        Catalog(commands.map(|command| of_command(command, marks)).collect())
    }

    /// By name.
    pub(crate) fn command(&self, name: &str) -> Option<&CommandSettings> {
        self.0.iter().find(|command| command.name == name)
    }

    /// The first setting of that name, whatever its command.
    pub(crate) fn any(&self, name: &str) -> Option<&Setting> {
        self.0.iter().find_map(|command| command.get(name))
    }

    /// The names of all settings, each once, in the order of their commands.
    pub(crate) fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for setting in self.0.iter().flat_map(|command| &command.settings) {
            if !names.contains(&setting.name.as_str()) {
                names.push(&setting.name);
            }
        }
        names
    }

    /// Whether it is a flag of some command that is given anew with every call.
    pub(crate) fn is_per_call(&self, name: &str) -> bool {
        self.0.iter().any(|command| command.per_call.iter().any(|flag| flag == name))
    }
}

fn of_command(command: &Command, marks: Marks<'_>) -> CommandSettings {
    let (mut settings, mut per_call) = (Vec::new(), Vec::new());
    for arg in command.get_arguments() {
        let asks = matches!(
            arg.get_action(),
            ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong | ArgAction::Version
        );
        let Some(name) = arg.get_long().filter(|_| !asks) else { continue };
        if marks.not_settings.iter().any(|names| names.contains(&name)) {
            per_call.push(name.to_owned());
        } else {
            settings.push(setting(arg, name, marks));
        }
    }
    CommandSettings { name: command.get_name().to_owned(), settings, per_call }
}

/// Whether a flag is on or off and no more.
pub(crate) fn is_switch(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::SetTrue) || arg.get_value_parser().type_id() == TypeId::of::<bool>()
}

fn setting(arg: &Arg, name: &str, marks: Marks<'_>) -> Setting {
    let kind = match arg.get_action() {
        _ if is_switch(arg) => Kind::Switch,
        ArgAction::Append => Kind::Many,
        _ => Kind::One,
    };
    let help = arg.get_long_help().or_else(|| arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let defaults: Vec<String> =
        arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
    let default = match kind {
        Kind::Switch => Some("false".to_owned()),
        _ => (!defaults.is_empty()).then(|| defaults.join(" ")),
    };
    Setting {
        id: arg.get_id().to_string(),
        name: name.to_owned(),
        kind,
        value: if kind == Kind::Switch { Type::Bool } else { type_of(arg) },
        secret: marks.secrets.contains(&name),
        default,
        otherwise: default_in_words(&help),
        help,
    }
}

fn type_of(arg: &Arg) -> Type {
    let numbers = [
        TypeId::of::<u16>(),
        TypeId::of::<u32>(),
        TypeId::of::<u64>(),
        TypeId::of::<usize>(),
        TypeId::of::<f32>(),
        TypeId::of::<f64>(),
    ];
    let parser: &ValueParser = arg.get_value_parser();
    let hints = [ValueHint::AnyPath, ValueHint::FilePath, ValueHint::DirPath, ValueHint::ExecutablePath];
    if numbers.iter().any(|number| parser.type_id() == *number) {
        Type::Number
    } else if hints.contains(&arg.get_value_hint()) {
        Type::Path
    } else {
        Type::Text
    }
}

/// The words after `[default: ` in a help text.
fn default_in_words(help: &str) -> Option<String> {
    let (_, rest) = help.split_once("[default: ")?;
    let (words, _) = rest.split_once(']')?;
    Some(words.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// The most similar of some names, if one is similar.
pub(crate) fn nearest<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    /// Below this, names have little more than letters in common.
    const SIMILAR: f64 = 0.8;
    let scored = names.into_iter().map(|name| (strsim::jaro_winkler(word, name), name));
    let best = scored.max_by(|a, b| a.0.total_cmp(&b.0))?;
    (best.0 >= SIMILAR).then_some(best.1)
}
