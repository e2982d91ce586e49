//! Writes and unpacks archives whose bytes depend on their entries alone: sorted, one time, no owner. Knows no project.

use anyhow::{Context, Result, ensure};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use std::io::{Cursor, Write};
use std::path::Path;
use zip::write::SimpleFileOptions;
use zip::{ZipArchive, ZipWriter};

/// The kinds of archives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// For systems whose files have permissions.
    TarGz,
    /// For Windows, which opens it without a tool.
    Zip,
}

impl Format {
    pub(crate) fn extension(self) -> &'static str {
        match self {
            Format::TarGz => "tar.gz",
            Format::Zip => "zip",
        }
    }
}

/// One file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Entry {
    /// Its path in the archive's folder, `/` between folders.
    pub(crate) path: String,
    pub(crate) content: Vec<u8>,
    pub(crate) executable: bool,
}

impl Entry {
    pub(crate) fn new(path: impl Into<String>, content: impl Into<Vec<u8>>) -> Entry {
        Entry { path: path.into(), content: content.into(), executable: false }
    }

    fn mode(&self) -> u32 {
        if self.executable { 0o755 } else { 0o644 }
    }
}

/// Packs entries into a folder. `time` is in seconds since 1970; a zip has room for 1980 and later only, so there all
/// files get that year's first day.
///
/// # Errors
/// When two entries have one path, or a path is too long for the format.
pub(crate) fn pack(format: Format, folder: &str, mut entries: Vec<Entry>, time: u64) -> Result<Vec<u8>> {
    entries.sort_unstable();
    for pair in entries.windows(2) {
        ensure!(pair[0].path != pair[1].path, "two files of the archive are called {}", pair[0].path);
    }
    match format {
        Format::TarGz => tar_gz(folder, &entries, time),
        Format::Zip => zip(folder, &entries),
    }
}

fn tar_gz(folder: &str, entries: &[Entry], time: u64) -> Result<Vec<u8>> {
    // The encoder writes no name and no time of its own.
    let mut tar = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::best()));
    for entry in entries {
        let mut header = tar::Header::new_gnu();
        header.set_size(entry.content.len() as u64);
        header.set_mode(entry.mode());
        header.set_mtime(time);
        header.set_uid(0);
        header.set_gid(0);
        let path = format!("{folder}/{}", entry.path);
        tar.append_data(&mut header, &path, entry.content.as_slice()).context(path)?;
    }
    Ok(tar.into_inner()?.finish()?)
}

fn zip(folder: &str, entries: &[Entry]) -> Result<Vec<u8>> {
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    for entry in entries {
        let options = SimpleFileOptions::default()
            .last_modified_time(zip::DateTime::default())
            .unix_permissions(entry.mode());
        let path = format!("{folder}/{}", entry.path);
        zip.start_file(path.as_str(), options).with_context(|| path.clone())?;
        zip.write_all(&entry.content).context(path)?;
    }
    Ok(zip.finish()?.into_inner())
}

/// Unpacks an archive into a folder.
///
/// # Errors
/// When it is damaged or a file cannot be written.
pub(crate) fn unpack(format: Format, content: &[u8], into: &Path) -> Result<()> {
    match format {
        Format::TarGz => tar::Archive::new(GzDecoder::new(content)).unpack(into)?,
        Format::Zip => ZipArchive::new(Cursor::new(content))?.extract(into)?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const FORMATS: [Format; 2] = [Format::TarGz, Format::Zip];

    fn entries() -> Vec<Entry> {
        let program = Entry { executable: true, ..Entry::new("program", "runs") };
        vec![program, Entry::new("docs/b.md", "b".repeat(5000)), Entry::new("a.md", "a")]
    }

    #[test]
    fn what_is_packed_is_unpacked() {
        for format in FORMATS {
            let content = pack(format, "it-1.0", entries(), 1_700_000_000).expect("it is packed");
            assert!(content.len() < 3000, "{format:?}: {} bytes", content.len());
            let folder = tempfile::tempdir().expect("a temporary folder");
            unpack(format, &content, folder.path()).expect("it is unpacked");
            for entry in entries() {
                let path = folder.path().join("it-1.0").join(&entry.path);
                assert_eq!(fs::read(&path).expect("it is there"), entry.content);
                #[cfg(unix)]
                {
                    use std::os::unix::fs::PermissionsExt as _;
                    let mode = fs::metadata(&path).expect("it is there").permissions().mode();
                    assert_eq!(mode & 0o777, entry.mode(), "{format:?} {}", entry.path);
                }
            }
        }
    }

    #[test]
    fn the_order_of_entries_changes_no_byte_and_their_content_does() {
        for format in FORMATS {
            let pack = |entries| pack(format, "it", entries, 1_700_000_000).expect("it is packed");
            let reversed = entries().into_iter().rev().collect();
            assert!(pack(entries()) == pack(reversed), "{format:?}");
            let mut changed = entries();
            changed[2].content = b"A".to_vec();
            assert!(pack(entries()) != pack(changed), "{format:?}");
        }
    }

    #[test]
    fn two_files_of_one_name_are_refused() {
        let twice = vec![Entry::new("a", "1"), Entry::new("a", "2")];
        let error = pack(Format::Zip, "it", twice, 0).expect_err("one name for two").to_string();
        assert_eq!(error, "two files of the archive are called a");
    }
}
