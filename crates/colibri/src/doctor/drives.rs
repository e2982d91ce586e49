//! The drives on which a model's shards lie: which file system, how much is free, how fast they are read. Knows files, no
//! tensor.
use super::Finding;
use super::sample::{self, Sample, Way};
use crate::progress;
use crate::report::counted;
use engine::show_bytes;
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use store::Checkpoint;

/// A drive, or a part of one, that holds shards.
#[derive(Debug, Serialize)]
pub(crate) struct Drive {
    /// Directories of the model on it, links followed.
    directories: Vec<String>,
    shards: usize,
    /// Of these shards.
    bytes: u64,
    mount_point: Option<String>,
    file_system: Option<String>,
    free_bytes: Option<u64>,
    /// Read through the system's cache, from which the spans were dropped before; bytes a second.
    #[serde(serialize_with = "rate")]
    buffered_bytes_per_second: Option<Sample>,
    /// Read past the system's cache; None if it was not measured or is not possible here.
    #[serde(serialize_with = "rate")]
    direct_bytes_per_second: Option<Sample>,
    #[serde(skip)]
    files: Vec<(PathBuf, u64)>,
}

#[expect(clippy::ref_option, reason = "serde passes fields by reference")]
fn rate<S: Serializer>(sample: &Option<Sample>, serializer: S) -> Result<S::Ok, S::Error> {
    sample.map(|sample| sample.rate().round()).serialize(serializer)
}

/// A sample of fewer bytes says little.
const FIRM_BYTES: u64 = 64 << 20;

/// File systems that are reached over a network or through another system, where reading is slow and may stall.
const REMOTE: [&str; 12] = [
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "9p",
    "drvfs",
    "fuse.sshfs",
    "afpfs",
    "webdav",
    "ceph",
    "virtiofs",
];

/// The drives of all shards that can be read.
pub(crate) fn look(checkpoint: &Checkpoint) -> Vec<Drive> {
    let files = checkpoint.files();
    let mut drives: BTreeMap<String, Drive> = BTreeMap::new();
    for shard in checkpoint.shards() {
        let Some(path) = files.path(*shard) else { continue };
        // A download cache holds links.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        let bytes = files.len(*shard).unwrap_or_default();
        let folder = path.parent().unwrap_or(&path);
        let drive = drives.entry(identity(folder)).or_insert_with(|| Drive::new(folder));
        let shown = folder.display().to_string();
        if !drive.directories.contains(&shown) {
            drive.directories.push(shown);
        }
        drive.shards += 1;
        drive.bytes += bytes;
        drive.files.push((path, bytes));
    }
    drives.into_values().collect()
}

/// What two directories on one drive have in common.
#[cfg(unix)]
fn identity(folder: &Path) -> String {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata(folder)
        .map_or_else(|_| folder.display().to_string(), |found| format!("{:020}", found.dev()))
}

/// What two directories on one drive have in common.
#[cfg(not(unix))]
fn identity(folder: &Path) -> String {
    folder
        .components()
        .next()
        .map_or_else(String::new, |first| first.as_os_str().to_string_lossy().into_owned())
}

impl Drive {
    fn new(folder: &Path) -> Self {
        let (mount_point, file_system) = mount(folder).unzip();
        Drive {
            directories: Vec::new(),
            shards: 0,
            bytes: 0,
            mount_point: mount_point.map(|path| path.display().to_string()),
            file_system,
            free_bytes: fs4::available_space(folder).ok(),
            buffered_bytes_per_second: None,
            direct_bytes_per_second: None,
            files: Vec::new(),
        }
    }

    /// Measures how fast it is read, both ways.
    pub(crate) fn measure(&mut self) -> Vec<Finding> {
        let mut findings = Vec::new();
        for way in [Way::Buffered, Way::Direct] {
            let bar = progress::count("measuring reads", sample::count(&self.files, way) as u64);
            let outcome = sample::read(&self.files, way, &|| bar.inc(1));
            bar.finish_and_clear();
            match (outcome, way) {
                (Ok(sample), Way::Buffered) => self.buffered_bytes_per_second = Some(sample),
                (Ok(sample), Way::Direct) => self.direct_bytes_per_second = Some(sample),
                (Err((file, error)), Way::Buffered) => findings.push(Finding::problem(
                    "drive",
                    format!("reading {} failed: {error}", file.display()),
                    "check the drive and its connection; copy or download the file again",
                )),
                // Some file systems cannot; the line of the drive says so.
                (Err(_), Way::Direct) => {}
            }
        }
        findings
    }

    /// Experts are read past the system's cache where that is possible, so that this is what to count on.
    fn rate(&self) -> Option<f64> {
        self.direct_bytes_per_second.or(self.buffered_bytes_per_second).map(|sample| sample.rate())
    }

    /// One line about it.
    pub(crate) fn finding(&self) -> Finding {
        let per_second = |sample: Sample| format!("{}/s", show_bytes(sample.rate() as u64));
        let rates = match (self.buffered_bytes_per_second, self.direct_bytes_per_second) {
            (None, _) => "not measured".to_owned(),
            (Some(buffered), None) => {
                format!("read at {} (direct reads are not possible here)", per_second(buffered))
            }
            (Some(buffered), Some(direct)) => {
                format!("read at {} ({} through the file cache)", per_second(direct), per_second(buffered))
            }
        };
        let small = self.buffered_bytes_per_second.is_some_and(|sample| sample.bytes < FIRM_BYTES);
        let text = format!(
            "{}: {}, {}; {}, {} free; {rates}{}",
            self.directories.join(", "),
            counted(self.shards, "shard"),
            show_bytes(self.bytes),
            self.file_system.as_deref().unwrap_or("unknown file system"),
            self.free_bytes.map_or("unknown space".to_owned(), show_bytes),
            if small { ", too small a sample for a firm figure" } else { "" },
        );
        if self.file_system.as_deref().is_some_and(|name| REMOTE.contains(&name)) {
            return Finding::warning(
                "drive",
                text,
                "this file system is not local: copy the shards to a drive of this machine",
            );
        }
        Finding::ok("drive", text)
    }

    /// Free bytes, where the system tells.
    pub(crate) fn free_bytes(&self) -> Option<u64> {
        self.free_bytes
    }
}

/// Seconds that reading so many bytes takes, if they are spread over the drives as all bytes are; None unless all were
/// measured. The drives work one after the other: a layer's experts lie in one shard, so a layer waits for one drive.
pub(crate) fn seconds(drives: &[Drive], bytes: u64) -> Option<f64> {
    let all: u64 = drives.iter().map(|drive| drive.bytes).sum();
    let share = |drive: &Drive| Some(bytes as f64 * drive.bytes as f64 / all.max(1) as f64 / drive.rate()?);
    drives.iter().map(share).sum()
}

/// Where the file system of a path is mounted, and what it is.
#[cfg(target_os = "linux")]
fn mount(path: &Path) -> Option<(PathBuf, String)> {
    let text = std::fs::read_to_string("/proc/self/mounts").ok()?;
    innermost(path, text.lines().filter_map(mount_of_line))
}

/// Reads a line `DEVICE MOUNT-POINT TYPE ...` of Linux.
#[cfg(any(target_os = "linux", test))]
fn mount_of_line(line: &str) -> Option<(PathBuf, String)> {
    let mut fields = line.split(' ').skip(1);
    let (point, kind) = (fields.next()?, fields.next()?);
    // These four stand as octal numbers in it.
    let escapes = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    let point = escapes.iter().fold(point.to_owned(), |text, (escape, plain)| text.replace(escape, plain));
    Some((point.into(), kind.to_owned()))
}

/// Where the file system of a path is mounted, and what it is.
#[cfg(not(target_os = "linux"))]
fn mount(path: &Path) -> Option<(PathBuf, String)> {
    let disks = sysinfo::Disks::new_with_refreshed_list().ok()?;
    let known = |disk: &sysinfo::Disk| {
        (disk.mount_point().to_path_buf(), disk.file_system().to_string_lossy().into_owned())
    };
    innermost(path, disks.iter().map(known))
}

/// The mount whose point is the longest beginning of the path; of two at one point the later hides the earlier.
fn innermost(path: &Path, mounts: impl Iterator<Item = (PathBuf, String)>) -> Option<(PathBuf, String)> {
    mounts.filter(|(point, _)| path.starts_with(point)).max_by_key(|(point, _)| point.components().count())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_innermost_mount_holds_a_path() {
        let mounts = "/dev/a / ext4 rw 0 0\nserver:/x /mnt/my\\040models nfs4 rw 0 0\nnone /mnt tmpfs rw 0 0\n\
                      /dev/b /mnt xfs rw 0 0\nbroken\n";
        let of = |path: &str| innermost(Path::new(path), mounts.lines().filter_map(mount_of_line)).unwrap();
        assert_eq!(of("/mnt/my models/k3"), (PathBuf::from("/mnt/my models"), "nfs4".to_owned()));
        assert_eq!(of("/mnt/my").1, "xfs");
        assert_eq!(of("/mntmy").1, "ext4");
    }

    fn drive(bytes: u64, rate: u64) -> Drive {
        let sample = Sample { bytes: rate, time: Duration::from_secs(1) };
        Drive { bytes, buffered_bytes_per_second: Some(sample), ..Drive::new(Path::new("/")) }
    }

    #[test]
    fn a_layer_waits_for_one_drive() {
        let drives = [drive(300, 100), drive(100, 50)];
        assert_eq!(seconds(&drives, 40), Some(0.3 + 0.2));
        let unmeasured = Drive { buffered_bytes_per_second: None, ..drive(100, 100) };
        assert_eq!(seconds(&[drive(300, 100), unmeasured], 40), None);
        let direct = Some(Sample { bytes: 200, time: Duration::from_secs(1) });
        let quick = Drive { direct_bytes_per_second: direct, ..drive(100, 100) };
        assert_eq!(seconds(&[quick], 40), Some(0.2), "as experts are read");
    }

    #[test]
    fn a_drive_elsewhere_is_a_warning() {
        let local = Drive { file_system: Some("ext4".to_owned()), ..drive(1, 1) };
        assert!(local.finding().advice.is_none());
        let remote = Drive { file_system: Some("9p".to_owned()), ..local };
        assert!(remote.finding().advice.unwrap().contains("not local"));
    }
}
