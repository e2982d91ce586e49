//! Settings: the command line before the environment before `config.toml` before a profile before defaults. The definition of the command
//! line is the only list of settings, and its parser the only judge of values: what a file or a variable says is put
//! into the command line as if it had been typed, and an error about it names where it stands. Knows no command.

mod catalog;
mod environment;
mod file;
mod layers;
mod manner;
mod origin;
mod profile;
mod refusal;
mod rules;
mod template;
#[cfg(test)]
mod tests;

pub(crate) use catalog::{Catalog, Kind};
pub(crate) use file::Place;
pub(crate) use layers::{Row, Rows};
pub(crate) use manner::Manner;
pub(crate) use origin::{Origin, Origins};
pub(crate) use profile::{MachineName, NO_PROFILE, Profile, SETTINGS as PROFILE_SETTINGS, Subject, Tried};
pub(crate) use refusal::Refusal;
pub(crate) use template::template;

use crate::args::Arguments;
use crate::errors::Failure;
use catalog::{MARKS, Marks, is_switch};
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory as _, FromArgMatches as _};
use file::Entry;
use std::any::TypeId;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Everything outside the command line that settings come from.
#[derive(Clone, Debug)]
pub(crate) struct Surroundings {
    variables: Vec<(OsString, OsString)>,
    usual: Place,
}

impl Surroundings {
    /// Of this process.
    pub(crate) fn of_process() -> Self {
        Surroundings { variables: std::env::vars_os().collect(), usual: Place::usual() }
    }

    /// Where the file is looked for: `--config`, `COLIBRI_CONFIG`, the platform's place, or nowhere with `--no-config`.
    ///
    /// # Errors
    /// Variables that cannot be honoured.
    pub(crate) fn place_of(&self, config: Option<&Path>, no_config: bool) -> Result<Place, Failure> {
        if no_config {
            return Ok(Place::None);
        }
        if let Some(path) = config {
            return Ok(Place::Named { path: path.to_owned(), by: "--config" });
        }
        Ok(environment::place(&self.variables)?.unwrap_or_else(|| self.usual.clone()))
    }
}

/// A command line with all that was said elsewhere.
#[derive(Debug)]
pub(crate) struct Effective {
    /// The name of the command.
    pub(crate) command: String,
    /// Its settings.
    pub(crate) rows: Rows,
    /// Where the file was looked for.
    pub(crate) place: Place,
    /// As if everything had been typed.
    arguments: Vec<OsString>,
}

/// The definition of a command line, and what it makes of words.
pub(crate) struct Definition {
    root: Command,
    /// The same without required arguments, for looking before everything is known.
    loose: Command,
    catalog: Catalog,
}

impl Definition {
    /// Of the program.
    pub(crate) fn of_program() -> Self {
        Self::new(Arguments::command(), MARKS)
    }

    /// Of any command line.
    pub(crate) fn new(root: Command, marks: Marks<'_>) -> Self {
        let mut root = with_values(root, marks);
        let mut loose = loose(root.clone());
        root.build();
        loose.build();
        let catalog = Catalog::new(&root, marks);
        Definition { root, loose, catalog }
    }

    /// All settings.
    pub(crate) fn catalog(&self) -> &Catalog {
        &self.catalog
    }

    /// What is typed, with what is said elsewhere.
    ///
    /// # Errors
    /// What cannot be honoured, by the name that the user gave it.
    pub(crate) fn effective(
        &self,
        arguments: &[OsString],
        surroundings: &Surroundings,
    ) -> Result<Effective, Refusal> {
        let typed = self.loose.clone().try_get_matches_from(arguments).map_err(|error| {
            refusal::without_secret(&error, &self.catalog).map_or_else(|| Refusal::from(error), Refusal::from)
        })?;
        let absent = |what: String| Failure::Usage(format!("{what}; `colibri --help` lists the commands"));
        let (name, typed) = typed.subcommand().ok_or_else(|| absent("no command is given".into()))?;
        let command = self.root.find_subcommand(name).zip(self.catalog.command(name));
        let (command, own) = command.ok_or_else(|| absent(format!("there is no command `{name}`")))?;
        let place = self.place(typed, surroundings)?;
        let tells = tells_about_the_file(name, typed);
        let mut entries = if tells { Vec::new() } else { self.entries(&place, surroundings)? };
        let mut rows = Rows::new(command, own, typed, &entries)?;
        if let Some(path) = rows.profile() {
            entries.extend(profile::entries(&path, &self.catalog)?);
            rows = Rows::new(command, own, typed, &entries)?;
        }
        let mut all = arguments.to_vec();
        let at = self.place_of_command(arguments, name);
        all.splice(at..at, rows.arguments());
        Ok(Effective { command: name.to_owned(), rows, place, arguments: all })
    }

    /// Where the file is. A command line that asks about another one looks at the file that the other one names, unless it
    /// names one itself.
    fn place(&self, typed: &ArgMatches, surroundings: &Surroundings) -> Result<Place, Failure> {
        let (config, no_config) = file_flags(typed);
        let words = typed.try_get_many::<OsString>("command").ok().flatten().into_iter().flatten();
        let words = std::iter::once(OsString::from("colibri")).chain(words.cloned());
        let other = match (config, no_config) {
            (None, false) => self.loose.clone().try_get_matches_from(words).ok(),
            _ => None,
        };
        let inner = other.as_ref().and_then(ArgMatches::subcommand).map(|(_, typed)| file_flags(typed));
        let (config, no_config) = inner.unwrap_or((config, no_config));
        surroundings.place_of(config, no_config)
    }

    /// What file and environment say.
    fn entries(&self, place: &Place, surroundings: &Surroundings) -> Result<Vec<Entry>, Failure> {
        let mut entries = environment::entries(&surroundings.variables, &self.catalog)?;
        if let (Some(path), Some(text)) = (place.path(), place.text()?) {
            entries.extend(file::entries(path, &text, &self.catalog)?);
        }
        Ok(entries)
    }

    /// The place after the command's name: the first such word before which everything is complete, so that it is no
    /// flag's value.
    fn place_of_command(&self, arguments: &[OsString], name: &str) -> usize {
        let loose = self.loose.clone().subcommand_required(false).arg_required_else_help(false);
        let complete = |at: &usize| {
            arguments[*at] == name && loose.clone().try_get_matches_from(&arguments[..*at]).is_ok()
        };
        (1..arguments.len()).find(complete).map_or(arguments.len(), |at| at + 1)
    }

    /// The names of all flags that name files or directories.
    #[cfg(test)]
    pub(crate) fn paths(&self) -> impl Iterator<Item = String> {
        let arguments = self.root.get_subcommands().flat_map(Command::get_arguments);
        arguments.filter(|arg| is_path(arg)).map(spelled)
    }

    /// The files and directories that are named, by their flags.
    fn paths_in(&self, matches: &ArgMatches) -> Vec<(String, PathBuf)> {
        let Some((name, given)) = matches.subcommand() else { return Vec::new() };
        let command = self.root.find_subcommand(name).into_iter();
        let arguments = command.flat_map(Command::get_arguments).filter(|arg| is_path(arg));
        let values = |arg: &Arg| {
            let values = given.try_get_many::<PathBuf>(arg.get_id().as_str()).ok().flatten();
            values.into_iter().flatten().map(|path| (spelled(arg), path.clone())).collect::<Vec<_>>()
        };
        arguments.flat_map(values).collect()
    }

    /// The parser's judgement of everything together; `strict` asks for required arguments too.
    ///
    /// # Errors
    /// The parser's, about values that nobody typed by their origin.
    pub(crate) fn judged(&self, effective: &Effective, strict: bool) -> Result<ArgMatches, Refusal> {
        let parser = if strict { &self.root } else { &self.loose };
        parser.clone().try_get_matches_from(&effective.arguments).map_err(|error| {
            refusal::of_origin(&error, &effective.rows).map_or_else(|| Refusal::from(error), Refusal::from)
        })
    }
}

/// `--config` and `--no-config`, which a command line of a test may lack.
fn file_flags(typed: &ArgMatches) -> (Option<&Path>, bool) {
    let config = typed.try_get_one::<PathBuf>("config").ok().flatten();
    let no_config = typed.try_get_one::<bool>("no_config").ok().flatten();
    (config.map(PathBuf::as_path), no_config.is_some_and(|no_config| *no_config))
}

/// Whether a command only says where the file is or how it is written: that must work while something in it is wrong.
fn tells_about_the_file(command: &str, typed: &ArgMatches) -> bool {
    let on = |name| typed.try_get_one::<bool>(name).ok().flatten() == Some(&true);
    command == "config" && (on("path") || on("template"))
}

/// A switch is also taken with a value, as in `--json=false`: so the command line can switch off what a file or a
/// variable switched on.
fn with_values(root: Command, marks: Marks<'_>) -> Command {
    let switch = |arg: Arg| {
        let setting =
            arg.get_long().is_some_and(|name| !marks.not_settings.iter().any(|list| list.contains(&name)));
        if !(setting && is_switch(&arg) && matches!(arg.get_action(), ArgAction::SetTrue)) {
            return arg;
        }
        arg.action(ArgAction::Set)
            .num_args(0..=1)
            .require_equals(true)
            .value_parser(clap::value_parser!(bool))
            .default_missing_value("true")
            .default_value("false")
    };
    for_all(root, |command| command.mut_args(switch))
}

fn loose(root: Command) -> Command {
    for_all(root, |command| command.mut_args(|arg| arg.required(false)))
}

fn for_all(root: Command, change: impl Fn(Command) -> Command) -> Command {
    let names: Vec<String> = root.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    names.iter().fold(change(root), |root, name| root.mut_subcommand(name, &change))
}

/// What the program was asked to do.
pub(crate) struct Asked {
    pub(crate) arguments: Arguments,
    /// Where its settings come from.
    pub(crate) origins: Origins,
    /// All files and directories that are named, by their flags; the configuration file among them.
    pub(crate) paths: Vec<(String, PathBuf)>,
}

/// What the program was asked to do, with what is said elsewhere than on the command line.
///
/// # Errors
/// What cannot be honoured; also a question for help.
pub(crate) fn read(
    definition: &Definition,
    arguments: &[OsString],
    surroundings: &Surroundings,
) -> Result<Asked, Refusal> {
    // Help and errors are shown by the plain definition, where a switch is a switch.
    let plain = Arguments::command().try_get_matches_from(arguments).err();
    if let Some(answer) = plain.as_ref().and_then(Refusal::answer) {
        return Err(answer);
    }
    let effective = match (definition.effective(arguments, surroundings), plain) {
        (Err(Refusal::Parser(error)), Some(plain)) if error.kind() == plain.kind() => {
            return Err(plain.into());
        }
        (effective, _) => effective?,
    };
    let mut matches = definition.judged(&effective, true)?;
    let mut paths = definition.paths_in(&matches);
    paths.retain(|(flag, path)| flag != "--profile" || path != Path::new(NO_PROFILE));
    paths.extend(effective.place.path().map(|path| ("--config".to_owned(), path.to_owned())));
    let arguments = Arguments::from_arg_matches_mut(&mut matches)?;
    Ok(Asked { arguments, origins: effective.rows.origins(), paths })
}

/// Whether an argument names files or directories.
fn is_path(arg: &Arg) -> bool {
    arg.get_value_parser().type_id() == TypeId::of::<PathBuf>()
}

/// How an argument is called.
fn spelled(arg: &Arg) -> String {
    arg.get_long().map_or_else(|| arg.get_id().as_str().to_uppercase(), |long| format!("--{long}"))
}

static IN_FORCE: OnceLock<Origins> = OnceLock::new();

/// Makes known where the settings of this process come from. To be called once, before a command runs.
pub(crate) fn put_in_force(origins: Origins) {
    // A second call could only come from a second start of the program's work, which there is not.
    let _ = IN_FORCE.set(origins);
}

/// Where the settings of this process come from.
pub(crate) fn in_force() -> &'static Origins {
    IN_FORCE.get_or_init(Origins::default)
}

/// A word on a setting that somebody gave, by the name that is to be changed; `what` says what is odd about it.
pub(crate) fn told(name: &str, what: &str) -> Option<String> {
    in_force().get(name).map(|origin| format!("{} {what}", origin.spelled(name)))
}

/// What to do about a setting that changes nothing, if nothing else would make it act.
pub(crate) const LEAVE_AWAY: &str = "leave it away";

/// Refuses a setting that was typed and changes nothing; `what` says that it does not, `advice` what to do. A file or a variable
/// is for more runs than this one, so there it is enough to say so.
///
/// # Errors
/// It was typed.
pub(crate) fn idle(name: &str, what: &str, advice: &str) -> Result<Option<String>, Failure> {
    match in_force().get(name) {
        Some(origin) if !origin.is_told() => Err(Failure::Usage(format!("--{name} {what}; {advice}"))),
        _ => Ok(told(name, what)),
    }
}
