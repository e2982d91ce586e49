//! Settings that can change nothing beside the value of another one. The commands refuse such pairs; this table says
//! which value wins quietly where it comes from a higher origin, as `--temperature 0` beside the seed of a file. Knows names.

/// What has no effect, and beside what.
pub(crate) struct Idle {
    /// A setting ...
    pub(crate) cause: &'static str,
    /// ... and the values of it ...
    pub(crate) holds: fn(&str) -> bool,
    /// ... that make these idle.
    pub(crate) settings: &'static [&'static str],
    /// Which of them are quiet; the others are left to the command, which refuses them.
    pub(crate) quiet: Quiet,
}

/// Where a setting without effect must stand to be passed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quiet {
    /// In a lower origin than the cause.
    Lower,
    /// In the file, wherever the cause stands: what is given for one call is meant to act.
    File,
}

/// All of them.
pub(crate) const IDLE: &[Idle] = &[
    Idle {
        cause: "temperature",
        holds: is_zero,
        settings: &["top-p", "top-k", "min-p", "seed"],
        quiet: Quiet::Lower,
    },
    Idle { cause: "json", holds: is_false, settings: &["logprobs"], quiet: Quiet::Lower },
    Idle { cause: "log-level", holds: is_off, settings: &["log-file"], quiet: Quiet::File },
];

fn is_false(value: &str) -> bool {
    value == "false"
}

/// Settings that have no effect on a command without a flag of the call.
pub(crate) struct Needing {
    /// The command ...
    pub(crate) command: &'static str,
    /// ... the flag ...
    pub(crate) flag: &'static str,
    /// ... and the settings.
    pub(crate) settings: &'static [&'static str],
}

/// All of them.
pub(crate) const NEEDING: &[Needing] =
    &[Needing { command: "run", flag: "chat", settings: &["system", "effort", "no-think", "thinking"] }];

fn is_off(value: &str) -> bool {
    value == "off"
}

fn is_zero(value: &str) -> bool {
    value.parse() == Ok(0.0_f32)
}
