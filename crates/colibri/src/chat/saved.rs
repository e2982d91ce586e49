//! A conversation in a file: one JSON object, and beside it the model's state, so that going on needs no prefill. What is
//! in the JSON decides; a state that does not belong to it is worth nothing and does no harm. Knows no terminal.
use super::record::Record;
use crate::errors::Failure;
use crate::target::Target;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use text::chat::{ChatOptions, Effort};

const FORMAT: &str = "colibri-chat";
const VERSION: u32 = 1;
/// A million ids and as much text take a tenth of this.
const BYTES_MAX: u64 = 256 << 20;

/// Which model a conversation was held with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ModelName {
    /// The family, whose format the ids are in.
    pub(crate) family: String,
    /// BLAKE3 of the bytes of all ids in order, each with its length: the same ids mean the same text.
    pub(crate) tokenizer: String,
}

/// How the model was asked to think.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Options {
    /// Whether it thinks.
    pub(crate) thinking: bool,
    /// How much; None: it was not told.
    pub(crate) effort: Option<String>,
}

impl From<&ChatOptions> for Options {
    fn from(options: &ChatOptions) -> Self {
        let effort = options.effort.map(|effort| effort.name().to_owned());
        Options { thinking: options.thinking, effort }
    }
}

impl Options {
    /// For rendering; what cannot be, if they came from a file.
    pub(crate) fn chat_options(&self) -> Result<ChatOptions, String> {
        let known = |name: &String| {
            Effort::named(name).ok_or_else(|| format!("`effort` is {name:?}, expected low, high or max"))
        };
        let effort = self.effort.as_ref().map(known).transpose()?;
        Ok(ChatOptions { thinking: self.thinking, effort, ..ChatOptions::default() })
    }
}

/// A conversation to go on with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Chat {
    /// Whose ids these are.
    pub(crate) model: ModelName,
    /// What stands at the beginning of the ids.
    pub(crate) options: Options,
    /// What was said.
    pub(crate) record: Record,
}

/// The whole file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    format: String,
    version: u32,
    /// BLAKE3 of the chat in JSON without spaces.
    checksum: String,
    chat: Chat,
}

/// Where the state of a saved conversation lies.
pub(crate) fn state_path(file: &Path) -> PathBuf {
    let mut name = OsString::from(file);
    name.push(".state");
    name.into()
}

/// Writes a conversation, and the state if there is one; each file is either as it was or whole.
///
/// # Errors
/// A place where something else lies or nothing may be written, or the system's.
pub(crate) fn save(file: &Path, models: &[PathBuf], chat: Chat, state: Option<&[u8]>) -> Result<(), Failure> {
    let target = Target::named("/save", file, models)?;
    if let Some(why) = not_ours(target.path()) {
        return Err(Failure::Usage(format!(
            "/save {}: it exists and is no saved chat ({why}); choose another name, or remove it first",
            file.display()
        )));
    }
    if let Some(state) = state {
        let path = state_path(target.path());
        let place = Target::named("/save", &path, models)?;
        if !begins_alike(&path, state) {
            return Err(Failure::Usage(format!(
                "/save {}: {} exists and is no saved state; choose another name, or remove it first",
                file.display(),
                path.display()
            )));
        }
        place.replace(state)?;
    }
    let content = Content { format: FORMAT.into(), version: VERSION, checksum: checksum(&chat)?, chat };
    let mut text =
        serde_json::to_vec(&content).map_err(|error| Failure::io("writing", file)(error.into()))?;
    text.push(b'\n');
    target.replace(&text)
}

/// Reads a conversation of this model.
///
/// # Errors
/// A file that cannot be read, is no saved chat, is damaged, or is another model's.
pub(crate) fn load(file: &Path, model: &ModelName, vocabulary: u32) -> Result<Chat, Failure> {
    let refused = |what: String| Failure::Usage(format!("{}: {what}", file.display()));
    let bytes = bounded(file).map_err(Failure::io("reading", file))?;
    let content: serde_json::Value = serde_json::from_slice(&bytes)
        .map_err(|error| refused(format!("it is no saved chat, or damaged: {error}")))?;
    if content["format"] != FORMAT {
        return Err(refused(format!(
            "it is no saved chat: `format` is {}, expected \"{FORMAT}\"",
            content["format"]
        )));
    }
    if content["version"] != VERSION {
        return Err(refused(format!(
            "`version` is {}, this program reads {VERSION}; use the program that saved it",
            content["version"]
        )));
    }
    let content: Content =
        serde_json::from_value(content).map_err(|error| refused(format!("it is damaged: {error}")))?;
    if checksum(&content.chat)? != content.checksum {
        return Err(refused("it is damaged: the checksum does not fit its content".into()));
    }
    let chat = content.chat;
    if chat.model != *model {
        let family = &chat.model.family;
        let why =
            if *family == model.family { "its tokenizer differs".into() } else { format!("a {family}") };
        return Err(refused(format!("it was held with another model ({why}), whose ids mean other text")));
    }
    match chat.record.fault(vocabulary).or(chat.options.chat_options().err()) {
        Some(fault) => Err(refused(format!("it is damaged: {fault}"))),
        None => Ok(chat),
    }
}

/// The bytes of the state that was saved with a conversation; None if there are none.
///
/// # Errors
/// Why they cannot be had, for people.
pub(crate) fn load_state(file: &Path, most: u64) -> Result<Option<Vec<u8>>, String> {
    let path = state_path(file);
    let length = match fs::metadata(&path) {
        Ok(found) => found.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("{}: {error}", path.display())),
    };
    if length > most {
        return Err(format!("{}: {length} bytes are too many for the memory that is left", path.display()));
    }
    fs::read(&path).map(Some).map_err(|error| format!("{}: {error}", path.display()))
}

fn checksum(chat: &Chat) -> Result<String, Failure> {
    let text = serde_json::to_vec(chat);
    let text =
        text.map_err(|error| Failure::Io { what: "writing a chat as JSON".into(), source: error.into() })?;
    Ok(blake3::hash(&text).to_hex().to_string())
}

fn bounded(file: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(file)?.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(io::Error::other(format!("it has more than {BYTES_MAX} bytes, which no saved chat has")));
    }
    Ok(bytes)
}

/// Why what lies there must not be written over; None if nothing lies there or a saved chat does.
fn not_ours(path: &Path) -> Option<String> {
    let bytes = match bounded(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => return Some(error.to_string()),
    };
    match serde_json::from_slice::<serde_json::Value>(&bytes) {
        Ok(content) if content["format"] == FORMAT => None,
        Ok(_) => Some(format!("its `format` is not \"{FORMAT}\"")),
        Err(error) => Some(error.to_string()),
    }
}

/// Whether there is nothing, or something that begins like these bytes.
fn begins_alike(path: &Path, bytes: &[u8]) -> bool {
    const MAGIC_BYTES: usize = 8;
    let mut begin = [0; MAGIC_BYTES];
    match File::open(path).and_then(|mut file| file.read_exact(&mut begin)) {
        Ok(()) => bytes.starts_with(&begin),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}
