//! Everything that can go wrong between strings and ids, said in words a user can act on.
//! It deliberately knows no parser: each variant carries what its message needs.

/// An error of this crate. Each message names the file or setting, what was expected, what was found and what
/// to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// A file is larger than any tokenizer.
    #[error(
        "{file}: expected at most {limit} bytes, found more; this is another file: copy it from the model's release"
    )]
    TooLarge {
        /// The file's name.
        file: &'static str,
        /// The most bytes accepted.
        limit: usize,
    },
    /// `tiktoken.model` holds no line.
    #[error("tiktoken.model: expected a token a line, found an empty file; copy it from the model's release")]
    NoTokens,
    /// A line is not two fields.
    #[error(
        "tiktoken.model line {line}: expected `BASE64 RANK`, found `{found}`; copy the file from the model's release"
    )]
    BadLine {
        /// Counted from 1.
        line: usize,
        /// Its beginning.
        found: String,
    },
    /// The first field of a line does not decode.
    #[error(
        "tiktoken.model line {line}: expected a token in base64, found `{found}` ({source}); copy the file from the model's release"
    )]
    BadBase64 {
        /// Counted from 1.
        line: usize,
        /// The field's beginning.
        found: String,
        /// What the decoder said.
        source: base64::DecodeError,
    },
    /// The second field of a line is not the line's rank: a line is missing, twice or out of order.
    #[error(
        "tiktoken.model line {line}: expected rank {expected}, found `{found}`; ranks count up from 0, so lines are missing or moved: copy the file from the model's release"
    )]
    BadRank {
        /// Counted from 1.
        line: usize,
        /// The rank of this line.
        expected: usize,
        /// The field's beginning.
        found: String,
    },
    /// Two ranks have the same bytes.
    #[error(
        "tiktoken.model line {line}: expected a new token, found that of line {first} again (`{token}`); copy the file from the model's release"
    )]
    DuplicateToken {
        /// Counted from 1.
        line: usize,
        /// The line that has the token already.
        first: usize,
        /// The token's beginning.
        token: String,
    },
    /// A byte is no token by itself, so that some text could not be encoded.
    #[error(
        "tiktoken.model: expected all 256 single bytes among the tokens, found none for 0x{byte:02x}; copy the file from the model's release"
    )]
    MissingByte {
        /// The first byte without a token.
        byte: u8,
    },
    /// `tokenizer_config.json` is not JSON of the expected shape.
    #[error(
        "tokenizer_config.json: {source}; expected `added_tokens_decoder`, an object of id to {{\"content\": name}}: copy the file from the model's release"
    )]
    BadConfig {
        /// Where and what, in the JSON reader's words.
        source: serde_json::Error,
    },
    /// A key of `added_tokens_decoder` is not a number.
    #[error(
        "tokenizer_config.json added_tokens_decoder: expected a token id as key, found `{found}`; correct it or copy the file from the model's release"
    )]
    BadSpecialId {
        /// The key's beginning.
        found: String,
    },
    /// A control token lies among the ordinary tokens or past the vocabulary.
    #[error(
        "tokenizer_config.json added_tokens_decoder `{id}` (`{name}`): expected an id from {first} to {last}, the control tokens after the ranks of tiktoken.model; the two files are not of one release: copy both from it"
    )]
    SpecialOutside {
        /// The id found.
        id: u32,
        /// Its name's beginning.
        name: String,
        /// The first control token's id: the number of ranks.
        first: u32,
        /// The last one's.
        last: u32,
    },
    /// One id has two entries.
    #[error(
        "tokenizer_config.json added_tokens_decoder `{id}`: expected one entry, found two; remove one or copy the file from the model's release"
    )]
    SpecialTwice {
        /// The id.
        id: u32,
    },
    /// A control token's name is empty.
    #[error(
        "tokenizer_config.json added_tokens_decoder `{id}`: expected a name in `content`, found an empty one; correct it or copy the file from the model's release"
    )]
    EmptySpecial {
        /// The id.
        id: u32,
    },
    /// Two control tokens have one name. Ids without an entry are named `<|reserved_token_{id}|>`.
    #[error(
        "tokenizer_config.json added_tokens_decoder `{second}`: expected a name of its own, found that of `{first}` (`{name}`); correct it or copy the file from the model's release"
    )]
    SameName {
        /// The lower id.
        first: u32,
        /// The higher id.
        second: u32,
        /// The name's beginning.
        name: String,
    },
    /// The names of the control tokens are too much for a search.
    #[error(
        "tokenizer_config.json added_tokens_decoder: the names cannot be searched for ({source}); expected 256 short names: copy the file from the model's release"
    )]
    UnsearchableSpecials {
        /// What the search library said.
        source: aho_corasick::BuildError,
    },
    /// The library that splits and merges refused the pattern, which is ours and not the user's.
    #[error(
        "the tokenizer's pattern was refused ({message}); this is a defect of the program: please report it"
    )]
    Pattern {
        /// What the library said.
        message: String,
    },
    /// A segment names no control token.
    #[error(
        "expected the name of a control token, found `{name}`; see added_tokens_decoder of tokenizer_config.json for the names"
    )]
    UnknownSpecial {
        /// The name's beginning.
        name: String,
    },
    /// An id past the vocabulary.
    #[error(
        "token id {id}: expected an id below {vocabulary}, the tokenizer's vocabulary; the model and the tokenizer are not of one release"
    )]
    UnknownId {
        /// The id.
        id: u32,
        /// The number of ids.
        vocabulary: u32,
    },
    /// Model and tokenizer disagree on the number of ids.
    #[error(
        "config.json vocab_size: expected {vocabulary}, the ranks of tiktoken.model and 256 control tokens, found {rows}; the two files are not of one release: copy both from it"
    )]
    VocabularyMismatch {
        /// The tokenizer's number of ids.
        vocabulary: u32,
        /// The model's.
        rows: u32,
    },
}

/// The beginning of what was found, printable and short enough for a message.
pub(crate) fn excerpt(found: &[u8]) -> String {
    const SHOWN: usize = 48;
    let text = String::from_utf8_lossy(&found[..found.len().min(SHOWN)]).escape_debug().to_string();
    if found.len() > SHOWN { text + "..." } else { text }
}
