//! Recognises what often lies in a model directory under the name of a shard or a JSON file without being one.
//! Looks at the first bytes only, and only after the file has been found unreadable as what it should be.

use std::fmt;

/// What a file turned out to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// The stand-in that `git clone` leaves when git-lfs is not installed.
    GitLfsPointer,
    /// A web page: a login page, an error page, or the page about the file.
    WebPage,
    /// A line of text or JSON from a server, such as "Entry not found"; the beginning of it.
    Text(String),
    /// Nothing but zeros at the beginning: space that a downloader reserved and never filled.
    Zeros,
    /// A GGUF file.
    Gguf,
    /// A zip archive, which is also what `torch.save` writes.
    Zip,
    /// A gzip archive.
    Gzip,
    /// Text in UTF-16 or with a byte order mark, from an editor or a shell redirection.
    ByteOrderMark,
}

/// How many of a file's first bytes [`recognise`] wants to see.
pub(crate) const HEAD_BYTES: usize = 96;

/// Says what a file is by its first bytes, when that is one of the known mistakes.
pub(crate) fn recognise(head: &[u8]) -> Option<Content> {
    const SIGNATURES: [(&[u8], Content); 8] = [
        (b"version https://git-lfs", Content::GitLfsPointer),
        (b"GGUF", Content::Gguf),
        (b"PK\x03\x04", Content::Zip),
        (b"\x1f\x8b", Content::Gzip),
        (b"\xef\xbb\xbf", Content::ByteOrderMark),
        (b"\xff\xfe", Content::ByteOrderMark),
        (b"\xfe\xff", Content::ByteOrderMark),
        (b"<", Content::WebPage),
    ];
    let head = &head[..head.len().min(HEAD_BYTES)];
    let start = head.iter().position(|byte| !byte.is_ascii_whitespace())?;
    if let Some((_, content)) = SIGNATURES.iter().find(|(signature, _)| head[start..].starts_with(signature))
    {
        return Some(content.clone());
    }
    if head.len() >= 8 && head.iter().all(|&byte| byte == 0) {
        return Some(Content::Zeros);
    }
    let printable = |byte: &u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace();
    if head.iter().all(printable) {
        return Some(Content::Text(String::from_utf8_lossy(head).trim().to_owned()));
    }
    None
}

impl fmt::Display for Content {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, advice) = match self {
            Content::GitLfsPointer => {
                ("a git-lfs pointer", "install git-lfs and run `git lfs pull`, or download it anew")
            }
            Content::WebPage => (
                "a web page",
                "the server sent a page in its place (sign-in, licence, error): download it anew",
            ),
            Content::Text(text) => {
                return write!(
                    out,
                    "text, beginning {text:?}; if a server sent it in place of the file, download it anew"
                );
            }
            Content::Zeros => {
                ("zeros", "a downloader reserved the space and never filled it: download it anew")
            }
            Content::Gguf => ("a GGUF file", "colibri reads the safetensors release of a model"),
            Content::Zip => {
                ("a zip archive or PyTorch checkpoint", "colibri reads the safetensors release of a model")
            }
            Content::Gzip => ("a gzip archive", "unpack it first"),
            Content::ByteOrderMark => ("text with a byte order mark", "save it as plain UTF-8"),
        };
        write!(out, "{what}; {advice}")
    }
}
