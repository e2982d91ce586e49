//! Checksums of a container: XXH3 with 128 bits, at the speed of memory, against damage and not against malice; and the file
//! `colibri.checksums` that lists them. Knows bytes and files, not what they are for.
//!
//! The file is text, fields between tabs: a first line `colibri.checksums 1 xxh3-128` and the conversion's number; then a line
//! `checksum offset bytes file what` for each run of bytes; at last `end`, the number of these lines and the checksum
//! of all bytes before.

use std::fmt::{self, Write as _};
use std::str::FromStr;

use twox_hash::XxHash3_128;

use crate::catalog::ExpertId;
use crate::error::StoreError;
use crate::files::{Files, in_first_directory};
use crate::read;

/// The name of the file in a container's directory.
pub const CHECKSUMS: &str = "colibri.checksums";
/// What a shard's header is called in the list.
pub const HEADER: &str = "header";
/// What a file that is copied as it is is called in the list.
pub const WHOLE: &str = "file";
/// Bytes of the largest list that is read: the 82,432 experts of a frontier model take 8 MB.
const LIST_BYTES_MAX: u64 = 256 << 20;
const FIRST: &str = "colibri.checksums\t1\txxh3-128\t";

/// XXH3-128 of some bytes; shown as 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Checksum(pub u128);

impl Checksum {
    /// Of bytes that are there.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Checksum(XxHash3_128::oneshot(bytes))
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:032x}", self.0)
    }
}

impl FromStr for Checksum {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let digits =
            text.len() == 32 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        u128::from_str_radix(text, 16).ok().filter(|_| digits).map(Checksum).ok_or(())
    }
}

/// The checksum of bytes that come piece by piece.
#[derive(Clone)]
pub struct Summing(XxHash3_128);

impl Default for Summing {
    fn default() -> Self {
        Summing(XxHash3_128::new())
    }
}

impl Summing {
    /// Takes the next bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    /// Of all bytes so far.
    #[must_use]
    pub fn sum(&self) -> Checksum {
        Checksum(self.0.finish_128())
    }
}

/// A run of bytes in a file of the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Of its bytes.
    pub checksum: Checksum,
    /// Where it begins in the file.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
    /// The file's plain name.
    pub file: String,
    /// What it is, such as `layer 3 expert 5` or a tensor's name.
    pub what: String,
}

/// The whole list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List {
    /// The conversion that wrote it, by source and settings.
    pub conversion: Checksum,
    /// In the order of the files.
    pub lines: Vec<Line>,
}

impl List {
    /// As it stands in the file.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("{FIRST}{}\n", self.conversion);
        for Line { checksum, offset, bytes, file, what } in &self.lines {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{checksum}\t{offset}\t{bytes}\t{file}\t{what}");
        }
        let sum = Checksum::of(text.as_bytes());
        let _ = writeln!(text, "end\t{}\t{sum}", self.lines.len());
        text
    }

    /// From the bytes of the file; `path` is for messages.
    ///
    /// # Errors
    /// [`StoreError::ContainerVersion`] or [`StoreError::Container`].
    pub fn parse(bytes: &[u8], path: &str) -> Result<Self, StoreError> {
        let wrong = |what: String| StoreError::Container { path: path.to_owned(), what };
        let text = str::from_utf8(bytes).map_err(|error| wrong(format!("it is no text: {error}")))?;
        let first = text.lines().next().unwrap_or_default();
        let Some(conversion) = first.strip_prefix(FIRST) else {
            let mut fields = first.split('\t');
            return Err(match (fields.next(), fields.next()) {
                (Some("colibri.checksums"), Some(found)) => {
                    let (path, found) = (path.to_owned(), found.to_owned());
                    StoreError::ContainerVersion { path, found, known: crate::container::VERSION }
                }
                _ => wrong("its first line is not that of a list of checksums".to_owned()),
            });
        };
        let conversion = conversion.parse().map_err(|()| wrong("line 1 names no conversion".to_owned()))?;
        let (body, end) = match text.strip_suffix('\n').and_then(|text| text.rsplit_once('\n')) {
            Some((_, end)) => (&text[..text.len() - end.len() - 1], end),
            None => (text, ""),
        };
        let lines: Vec<&str> = body.lines().skip(1).collect();
        if end != format!("end\t{}\t{}", lines.len(), Checksum::of(body.as_bytes())) {
            return Err(wrong("its last line does not agree with the lines before".to_owned()));
        }
        let line = |(text, number): (&&str, usize)| {
            line(text).ok_or_else(|| wrong(format!("line {number} is `{text}`, expected five fields")))
        };
        let lines = lines.iter().zip(2..).map(line).collect::<Result<_, _>>()?;
        Ok(List { conversion, lines })
    }

    /// The list of a container; `None` where there is none.
    ///
    /// # Errors
    /// What cannot be read, or as [`List::parse`].
    pub fn read(files: &dyn Files) -> Result<Option<Self>, StoreError> {
        let Some(file) = in_first_directory(files, CHECKSUMS) else { return Ok(None) };
        let bytes = read::whole(files, file, LIST_BYTES_MAX)?;
        Self::parse(&bytes, &files.location(file)).map(Some)
    }

    /// Those of routed experts.
    pub fn experts(&self) -> impl Iterator<Item = (ExpertId, Checksum)> + '_ {
        self.lines.iter().filter_map(|line| Some((expert(&line.what)?, line.checksum)))
    }
}

fn line(text: &str) -> Option<Line> {
    let mut fields = text.splitn(5, '\t');
    let mut next = || fields.next();
    let (checksum, offset, bytes) = (next()?.parse().ok()?, next()?.parse().ok()?, next()?.parse().ok()?);
    Some(Line { checksum, offset, bytes, file: next()?.to_owned(), what: next()?.to_owned() })
}

/// `layer 3 expert 5`, as an [`ExpertId`] is shown.
fn expert(what: &str) -> Option<ExpertId> {
    let (layer, expert) = what.strip_prefix("layer ")?.split_once(" expert ")?;
    Some(ExpertId { layer: layer.parse().ok()?, expert: expert.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list() -> List {
        let line = |what: &str, offset| Line {
            checksum: Checksum::of(what.as_bytes()),
            offset,
            bytes: 7,
            file: "a.safetensors".to_owned(),
            what: what.to_owned(),
        };
        let lines = vec![line(HEADER, 0), line("layer 3 expert 5", 4096), line("norm.weight", 8192)];
        List { conversion: Checksum(5), lines }
    }

    #[test]
    fn a_list_reads_back_and_names_experts() {
        let text = list().text();
        let read = List::parse(text.as_bytes(), "list").unwrap();
        assert_eq!(read, list());
        let experts: Vec<_> = read.experts().collect();
        assert_eq!(experts, [(ExpertId { layer: 3, expert: 5 }, Checksum::of(b"layer 3 expert 5"))]);
        let none = List { conversion: Checksum(1), lines: Vec::new() };
        assert_eq!(List::parse(none.text().as_bytes(), "list").unwrap(), none);
    }

    #[test]
    fn every_changed_byte_of_a_list_is_noticed() {
        let text = list().text().into_bytes();
        for place in 0..text.len() {
            let mut changed = text.clone();
            changed[place] ^= 1;
            let other = List::parse(&changed, "list");
            assert!(other.is_err(), "byte {place}");
        }
        for end in 0..text.len() {
            assert!(List::parse(&text[..end], "list").is_err(), "{end} bytes");
        }
        let newer = String::from_utf8(text).unwrap().replacen("\t1\t", "\t2\t", 1);
        let error = List::parse(newer.as_bytes(), "list").unwrap_err().to_string();
        assert!(error.contains("version 2") && error.contains("up to 1"), "{error}");
    }

    #[test]
    fn pieces_sum_up_to_the_whole() {
        let bytes: Vec<u8> = (0..10_000_u32).map(|number| number.wrapping_mul(31) as u8).collect();
        let mut summing = Summing::default();
        for piece in bytes.chunks(777) {
            summing.add(piece);
        }
        assert_eq!(summing.sum(), Checksum::of(&bytes));
        // The value that the definition of XXH3 gives for no bytes.
        assert_eq!(Checksum::of(b"").to_string(), "99aa06d3014798d86001c324468d497f");
        assert_eq!("99AA06d3014798d86001c324468d497f".parse::<Checksum>(), Err(()));
    }
}
