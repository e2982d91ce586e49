//! What a person or a report of a fault needs to know, found out part by part. Each part gives findings for people and
//! figures for programs; it knows nothing of the other parts, nor how they are shown.
pub(crate) mod drives;
pub(crate) mod machine;
pub(crate) mod model;
pub(crate) mod sample;

use serde::Serialize;

/// How it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Standing {
    /// As it should be, or only worth knowing.
    Ok,
    /// It works, but not well.
    Warning,
    /// Something does not work.
    Problem,
}

/// One thing that was found.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Finding {
    /// What it is about, in a word.
    pub(crate) topic: &'static str,
    pub(crate) standing: Standing,
    pub(crate) text: String,
    /// What to do; None if nothing needs to be done.
    pub(crate) advice: Option<String>,
}

impl Finding {
    /// Nothing needs to be done.
    pub(crate) fn ok(topic: &'static str, text: impl Into<String>) -> Self {
        Finding { topic, standing: Standing::Ok, text: text.into(), advice: None }
    }

    /// It works, but not well.
    pub(crate) fn warning(topic: &'static str, text: impl Into<String>, advice: impl Into<String>) -> Self {
        Finding { topic, standing: Standing::Warning, text: text.into(), advice: Some(advice.into()) }
    }

    /// It does not work.
    pub(crate) fn problem(topic: &'static str, text: impl Into<String>, advice: impl Into<String>) -> Self {
        Finding { topic, standing: Standing::Problem, text: text.into(), advice: Some(advice.into()) }
    }
}
