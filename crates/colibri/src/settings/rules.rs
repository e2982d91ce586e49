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
}

/// All of them.
pub(crate) const IDLE: &[Idle] = &[
    Idle { cause: "temperature", holds: is_zero, settings: &["top-p", "top-k", "min-p", "seed"] },
    Idle { cause: "json", holds: is_false, settings: &["logprobs"] },
];

fn is_false(value: &str) -> bool {
    value == "false"
}

fn is_zero(value: &str) -> bool {
    value.parse() == Ok(0.0_f32)
}
