//! From five places one value for each setting of a command: the command line first, then the environment, then the
//! command's table in the file, then the top of the file, then a profile. Knows definitions and texts, not what values mean.
use super::catalog::{CommandSettings, Kind, Setting};
use super::file::Entry;
use super::origin::{Origin, Origins};
use super::profile::{NO_PROFILE, PROFILE};
use super::rules::{IDLE, Idle, NEEDING, Needing, Quiet};
use crate::errors::Failure;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};
use std::ffi::OsString;
use std::path::PathBuf;

/// A setting of a command with what holds for it.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) setting: Setting,
    /// As arguments of flags, `true` or `false` for a switch; empty where only words say what holds.
    pub(crate) values: Vec<OsString>,
    pub(crate) origin: Origin,
    /// What was said and has no effect, because something that goes before it rules it out.
    pub(crate) idle: Option<Ruled>,
    /// What a run would choose here and now, where it has a choice.
    pub(crate) planned: Option<String>,
}

/// A value without effect.
#[derive(Clone, Debug)]
pub(crate) struct Ruled {
    pub(crate) values: Vec<OsString>,
    pub(crate) origin: Origin,
    /// What rules it out.
    pub(crate) by: String,
}

impl Row {
    /// Whether there is a value that was given, and it is not `false`.
    fn is_on(&self) -> bool {
        self.origin != Origin::Default
            && !self.values.is_empty()
            && (self.setting.kind != Kind::Switch || self.values[0] == "true")
    }

    /// The value in one word, for rules.
    fn word(&self) -> String {
        self.values.iter().map(|value| value.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    /// As arguments.
    fn arguments(&self) -> Vec<OsString> {
        let flag = format!("--{}", self.setting.name);
        match self.setting.kind {
            Kind::Switch if self.values.first().is_some_and(|value| value == "true") => vec![flag.into()],
            Kind::Switch => Vec::new(),
            Kind::One | Kind::Many => {
                let argument = |value: &OsString| {
                    let mut argument = OsString::from(format!("{flag}="));
                    argument.push(value);
                    argument
                };
                self.values.iter().map(argument).collect()
            }
        }
    }
}

/// All settings of a command as they hold.
#[derive(Clone, Debug)]
pub(crate) struct Rows(pub(crate) Vec<Row>);

impl Rows {
    /// What holds, from a command line that was parsed and the entries of file and environment.
    ///
    /// # Errors
    /// Two entries of one origin that exclude each other.
    pub(crate) fn new(
        command: &Command,
        settings: &CommandSettings,
        typed: &ArgMatches,
        entries: &[Entry],
    ) -> Result<Self, Failure> {
        let row = |setting: &Setting| row(setting, &settings.name, Some(typed), entries);
        let mut rows = Rows(settings.settings.iter().map(row).collect());
        rows.rule_out_by_command_line(command, typed);
        for rule in NEEDING.iter().filter(|rule| rule.command == settings.name) {
            rows.rule_out_needing(rule, typed);
        }
        rows.rule_out_each_other(command)?;
        for rule in IDLE {
            rows.rule_out_idle(rule);
        }
        Ok(rows)
    }

    /// By name.
    pub(crate) fn get(&self, name: &str) -> Option<&Row> {
        self.0.iter().find(|row| row.setting.name == name)
    }

    /// The profile that is asked for; None if there is to be none.
    pub(crate) fn profile(&self) -> Option<PathBuf> {
        let value = self.get(PROFILE)?.values.first()?;
        (value != NO_PROFILE).then(|| value.into())
    }

    /// A default that is found elsewhere than in the definition, where nobody said anything.
    pub(crate) fn put_default(&mut self, name: &str, value: String, origin: Origin) {
        let row = self.0.iter_mut().find(|row| row.setting.name == name && row.origin == Origin::Default);
        if let Some(row) = row {
            (row.values, row.origin) = (vec![value.into()], origin);
        }
    }

    /// What a run would choose for a setting that has no value, or the value `auto`.
    pub(crate) fn put_planned(&mut self, name: &str, choice: String) {
        let open = |row: &Row| row.values.is_empty() || row.word() == "auto";
        if let Some(row) = self.0.iter_mut().find(|row| row.setting.name == name && open(row)) {
            row.planned = Some(choice);
        }
    }

    /// The arguments that a user would have typed instead of files and variables.
    pub(crate) fn arguments(&self) -> Vec<OsString> {
        self.0.iter().filter(|row| row.origin.is_told()).flat_map(Row::arguments).collect()
    }

    /// Where those settings come from that somebody gave.
    pub(crate) fn origins(&self) -> Origins {
        let given = self.0.iter().filter(|row| row.origin.rank() > Origin::Model.rank());
        Origins(given.map(|row| (row.setting.name.clone(), row.origin.clone())).collect())
    }

    /// Arguments that are no settings, such as the prompt, rule out what they conflict with.
    fn rule_out_by_command_line(&mut self, command: &Command, typed: &ArgMatches) {
        let given: Vec<&Arg> = command
            .get_arguments()
            .filter(|arg| typed.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine))
            .collect();
        for row in &mut self.0 {
            let Some(own) = argument(command, &row.setting) else { continue };
            if let Some(other) = given.iter().find(|arg| row.origin.is_told() && conflict(command, own, arg))
            {
                let name =
                    other.get_long().map_or_else(|| other.get_id().to_string(), |name| format!("--{name}"));
                row.rule_out(name);
            }
        }
    }

    /// What has no effect on this call.
    fn rule_out_needing(&mut self, rule: &Needing, typed: &ArgMatches) {
        // A definition without the flag, as tests have, knows no such rule.
        let known = typed.try_contains_id(rule.flag).is_ok();
        if !known || typed.value_source(rule.flag) == Some(ValueSource::CommandLine) {
            return;
        }
        for row in &mut self.0 {
            if rule.settings.contains(&row.setting.name.as_str()) && row.origin.is_told() {
                row.rule_out(format!("the absence of --{}", rule.flag));
            }
        }
    }

    /// Settings that exclude each other: the higher origin holds.
    fn rule_out_each_other(&mut self, command: &Command) -> Result<(), Failure> {
        for first in 0..self.0.len() {
            for second in first + 1..self.0.len() {
                let (a, b) = (&self.0[first], &self.0[second]);
                let (Some(x), Some(y)) = (argument(command, &a.setting), argument(command, &b.setting))
                else {
                    continue;
                };
                if !(a.is_on() && b.is_on() && conflict(command, x, y)) {
                    continue;
                }
                let (low, high) =
                    if a.origin.rank() <= b.origin.rank() { (first, second) } else { (second, first) };
                let (spelled, by) = (self.0[low].spelled(), self.0[high].spelled());
                if self.0[low].origin.rank() == self.0[high].origin.rank() {
                    if self.0[low].origin.is_told() {
                        return Err(Failure::Usage(format!(
                            "{spelled} and {by} exclude each other; leave one of them away"
                        )));
                    }
                    continue;
                }
                self.0[low].rule_out(by);
            }
        }
        Ok(())
    }

    /// Settings that could change nothing beside another one, where the rule passes over them. The rest is left to the
    /// command, which refuses it.
    fn rule_out_idle(&mut self, rule: &Idle) {
        let Some(cause) = self.get(rule.cause).filter(|cause| (rule.holds)(&cause.word())) else { return };
        let (rank, by) = (cause.origin.rank(), format!("{} {}", cause.spelled(), cause.word()));
        for row in &mut self.0 {
            let quiet = match rule.quiet {
                Quiet::Lower => row.origin.is_told() && row.origin.rank() < rank,
                Quiet::File => matches!(row.origin, Origin::File { .. }),
            };
            if quiet && rule.settings.contains(&row.setting.name.as_str()) {
                row.rule_out(by.clone());
            }
        }
    }
}

impl Row {
    fn spelled(&self) -> String {
        self.origin.spelled(&self.setting.name)
    }

    fn rule_out(&mut self, by: String) {
        let default: Vec<OsString> = self.setting.default.iter().map(OsString::from).collect();
        let values = std::mem::replace(&mut self.values, default);
        let origin = std::mem::replace(&mut self.origin, Origin::Default);
        self.idle = Some(Ruled { values, origin, by });
    }
}

/// What holds for one setting of a command, whatever the others are.
pub(crate) fn row(setting: &Setting, command: &str, typed: Option<&ArgMatches>, entries: &[Entry]) -> Row {
    let typed = typed.filter(|typed| typed.value_source(&setting.id) == Some(ValueSource::CommandLine));
    let (values, origin) = if let Some(typed) = typed {
        let raw = typed.get_raw(&setting.id);
        (raw.into_iter().flatten().map(OsString::from).collect(), Origin::CommandLine)
    } else {
        let told = entries.iter().filter(|entry| {
            entry.name == setting.name && entry.table.as_deref().is_none_or(|table| table == command)
        });
        match told.max_by_key(|entry| entry.origin.rank()) {
            Some(entry) => (entry.values.clone(), entry.origin.clone()),
            None => (setting.default.iter().map(OsString::from).collect(), Origin::Default),
        }
    };
    Row { setting: setting.clone(), values, origin, idle: None, planned: None }
}

fn argument<'a>(command: &'a Command, setting: &Setting) -> Option<&'a Arg> {
    command.get_arguments().find(|arg| arg.get_id().as_str() == setting.id)
}

/// Whether two arguments exclude each other; it is enough that one says so.
fn conflict(command: &Command, a: &Arg, b: &Arg) -> bool {
    let says = |one: &Arg, other: &Arg| {
        command.get_arg_conflicts_with(one).iter().any(|arg| arg.get_id() == other.get_id())
    };
    a.get_id() != b.get_id() && (says(a, b) || says(b, a))
}
