//! What memory this machine has, what of it is free, and what this process took at most.
//! Linux is asked through /proc and the control groups (containers have less than the machine), others through `sysinfo`.

use crate::MemoryError;

/// Bytes of memory this process can ever have: the machine's, or the tightest limit of its control groups.
///
/// # Errors
/// [`MemoryError::MachineFile`] or [`MemoryError::MachineField`] if the system does not say.
pub fn total_memory() -> Result<u64, MemoryError> {
    system::total()
}

/// Bytes of memory this process can still take without others being swapped out, caches of files counted as free.
///
/// # Errors
/// [`MemoryError::MachineFile`] or [`MemoryError::MachineField`] if the system does not say.
pub fn available_memory() -> Result<u64, MemoryError> {
    system::available()
}

/// Bytes of memory this process has resident now (`VmRSS`).
///
/// # Errors
/// As [`peak_memory`].
pub fn resident_memory() -> Result<u64, MemoryError> {
    system::resident()
}

/// Most bytes of memory this process has had resident so far (`VmHWM`).
///
/// # Errors
/// [`MemoryError::NotKnown`] on other systems than Linux; there as [`total_memory`].
pub fn peak_memory() -> Result<u64, MemoryError> {
    system::peak()
}

#[cfg(target_os = "linux")]
mod system {
    use super::{MemoryError, linux};
    use std::path::Path;

    pub(super) fn total() -> Result<u64, MemoryError> {
        linux::total(Path::new("/"))
    }

    pub(super) fn available() -> Result<u64, MemoryError> {
        linux::available(Path::new("/"))
    }

    pub(super) fn resident() -> Result<u64, MemoryError> {
        linux::field(Path::new("/"), "proc/self/status", "VmRSS")
    }

    pub(super) fn peak() -> Result<u64, MemoryError> {
        linux::field(Path::new("/"), "proc/self/status", "VmHWM")
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use super::MemoryError;

    /// What the system tells now; `what` names the question in the error.
    fn refreshed(what: &'static str) -> Result<sysinfo::System, MemoryError> {
        let mut system = sysinfo::System::new().map_err(|_| MemoryError::NotKnown { what })?;
        system.refresh_memory();
        Ok(system)
    }

    pub(super) fn total() -> Result<u64, MemoryError> {
        let what = "the machine's memory";
        known(refreshed(what)?.total_memory(), what)
    }

    pub(super) fn available() -> Result<u64, MemoryError> {
        let what = "the available memory";
        known(refreshed(what)?.available_memory(), what)
    }

    pub(super) fn resident() -> Result<u64, MemoryError> {
        Err(MemoryError::NotKnown { what: "this process's resident memory" })
    }

    pub(super) fn peak() -> Result<u64, MemoryError> {
        Err(MemoryError::NotKnown { what: "this process's peak memory" })
    }

    /// `sysinfo` says 0 where it has no answer.
    fn known(bytes: u64, what: &'static str) -> Result<u64, MemoryError> {
        if bytes == 0 { Err(MemoryError::NotKnown { what }) } else { Ok(bytes) }
    }
}

/// The same questions to files under `root`, which tests replace. Compiled everywhere so that it is tested everywhere.
#[cfg(any(target_os = "linux", test))]
pub(crate) mod linux {
    use super::MemoryError;
    use std::fs;
    use std::path::{Path, PathBuf};

    pub(super) fn total(root: &Path) -> Result<u64, MemoryError> {
        let machine = field(root, "proc/meminfo", "MemTotal")?;
        Ok(groups(root).filter_map(|group| group.limit()).fold(machine, u64::min))
    }

    pub(crate) fn available(root: &Path) -> Result<u64, MemoryError> {
        let machine = field(root, "proc/meminfo", "MemAvailable")?;
        Ok(groups(root).filter_map(|group| group.available()).fold(machine, u64::min))
    }

    /// The field `name` of the file `path`, in bytes.
    pub(crate) fn field(root: &Path, path: &str, name: &'static str) -> Result<u64, MemoryError> {
        let path = root.join(path);
        let shown = path.display().to_string();
        let text = fs::read_to_string(&path)
            .map_err(|source| MemoryError::MachineFile { path: shown.clone(), source })?;
        kibibytes(&text, name).ok_or(MemoryError::MachineField { path: shown, field: name })
    }

    /// Finds a line `NAME:   123 kB` (the kernel means KiB) and returns bytes.
    fn kibibytes(text: &str, name: &str) -> Option<u64> {
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        value.trim().strip_suffix("kB")?.trim_end().parse::<u64>().ok()?.checked_mul(1024)
    }

    /// A control group's folder with the names its version gives to the files.
    struct Group {
        folder: PathBuf,
        names: &'static Names,
    }

    struct Names {
        mount: &'static str,
        /// Beyond these memory is refused, or whoever asks for it is slowed down until others have lost theirs.
        limits: &'static [&'static str],
        usage: &'static str,
        /// Fields of `memory.stat`: pages of files, which the kernel drops before it refuses memory.
        file_pages: [&'static str; 2],
    }

    const VERSION_1: Names = Names {
        mount: "sys/fs/cgroup/memory",
        limits: &["memory.limit_in_bytes"],
        usage: "memory.usage_in_bytes",
        file_pages: ["total_inactive_file", "total_active_file"],
    };

    const VERSION_2: Names = Names {
        mount: "sys/fs/cgroup",
        limits: &["memory.max", "memory.high"],
        usage: "memory.current",
        file_pages: ["inactive_file", "active_file"],
    };

    /// This process's control group for memory and all groups around it: each may have a tighter limit.
    ///
    /// Inside a container the path may be the host's while the folder mounted is the container's own; folders that do
    /// not exist have no limit, and the mount itself is always the last of the row.
    fn groups(root: &Path) -> impl Iterator<Item = Group> {
        let text = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        let mut found = Vec::new();
        for (names, path) in text.lines().filter_map(memory_group) {
            let mount = root.join(names.mount);
            for inner in Path::new(path.trim_start_matches('/')).ancestors() {
                found.push(Group { folder: mount.join(inner), names });
            }
        }
        found.into_iter()
    }

    /// Time in which something in this process's control group waited for memory, in microseconds since it was made; where
    /// groups do not tell, of the machine since it was started. None if the kernel does not count it (`CONFIG_PSI`).
    pub(crate) fn stalled(root: &Path) -> Option<u64> {
        let own = groups(root).map(|group| group.folder.join("memory.pressure"));
        let mut files = own.chain([root.join("proc/pressure/memory")]);
        let text = files.find_map(|file| fs::read_to_string(file).ok())?;
        let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
        some.split(' ').find_map(|field| field.strip_prefix("total="))?.parse().ok()
    }

    /// Reads a line `ID:CONTROLLERS:PATH`; version 2 has the id 0 and names no controllers.
    fn memory_group(line: &str) -> Option<(&'static Names, &str)> {
        let mut parts = line.splitn(3, ':');
        let (id, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        if id == "0" && controllers.is_empty() {
            return Some((&VERSION_2, path));
        }
        controllers.split(',').any(|name| name == "memory").then_some((&VERSION_1, path))
    }

    impl Group {
        /// The limit, if there is one: version 2 writes `max` for none, version 1 a number beyond all memory, which the
        /// minimum with the machine's memory drops.
        fn limit(&self) -> Option<u64> {
            self.names.limits.iter().filter_map(|file| self.number(file)).min()
        }

        fn available(&self) -> Option<u64> {
            let statistics = fs::read_to_string(self.folder.join("memory.stat")).unwrap_or_default();
            let pages = |line: &str| {
                let (name, bytes) = line.split_once(' ')?;
                self.names.file_pages.contains(&name).then(|| bytes.trim().parse::<u64>().ok())?
            };
            let droppable: u64 = statistics.lines().filter_map(pages).sum();
            let used = self.number(self.names.usage)?.saturating_sub(droppable);
            Some(self.limit()?.saturating_sub(used))
        }

        fn number(&self, file: &str) -> Option<u64> {
            fs::read_to_string(self.folder.join(file)).ok()?.trim().parse().ok()
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        const MEMINFO: &str =
            "MemTotal:       24645220 kB\nMemFree:        22012345 kB\nMemAvailable:   23000000 kB\n";
        const KIB: u64 = 1024;

        fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
            let root = tempfile::tempdir().unwrap();
            for (path, text) in [("proc/meminfo", MEMINFO)].iter().chain(files) {
                let path = root.path().join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            root
        }

        #[test]
        fn without_groups_the_machine_answers() {
            let root = machine(&[]);
            assert_eq!(total(root.path()).unwrap(), 24_645_220 * KIB);
            assert_eq!(available(root.path()).unwrap(), 23_000_000 * KIB);
        }

        #[test]
        fn version_2_limits_count_from_every_level() {
            let root = machine(&[
                ("proc/self/cgroup", "0::/user.slice/run.scope\n"),
                ("sys/fs/cgroup/user.slice/run.scope/memory.max", "max\n"),
                ("sys/fs/cgroup/user.slice/run.scope/memory.current", "1000\n"),
                ("sys/fs/cgroup/user.slice/memory.max", "8000000\n"),
                ("sys/fs/cgroup/user.slice/memory.current", "3000000\n"),
                (
                    "sys/fs/cgroup/user.slice/memory.stat",
                    "anon 1\nactive_file 500000\ninactive_file 1000000\n",
                ),
            ]);
            assert_eq!(total(root.path()).unwrap(), 8_000_000);
            assert_eq!(available(root.path()).unwrap(), 8_000_000 - (3_000_000 - 1_500_000));
        }

        #[test]
        fn a_group_that_slows_down_early_has_a_limit_there() {
            let root = machine(&[
                ("proc/self/cgroup", "0::/run.scope\n"),
                ("sys/fs/cgroup/run.scope/memory.max", "8000000\n"),
                ("sys/fs/cgroup/run.scope/memory.high", "7000000\n"),
                ("sys/fs/cgroup/run.scope/memory.current", "6900000\n"),
            ]);
            assert_eq!((total(root.path()).unwrap(), available(root.path()).unwrap()), (7_000_000, 100_000));
        }

        #[test]
        fn stalls_are_those_of_the_own_group_if_it_tells() {
            let line = |total| {
                format!("some avg10=1.50 avg60=0.10 avg300=0.23 total={total}\nfull avg10=0 total=7\n")
            };
            assert_eq!(stalled(machine(&[]).path()), None);
            let of_machine = line(500);
            let files = [("proc/self/cgroup", "0::/a/b\n"), ("proc/pressure/memory", of_machine.as_str())];
            assert_eq!(stalled(machine(&files).path()), Some(500));
            let of_group = line(31);
            let own = [&files[..], &[("sys/fs/cgroup/a/memory.pressure", of_group.as_str())]].concat();
            assert_eq!(stalled(machine(&own).path()), Some(31));
            assert_eq!(stalled(machine(&[("proc/pressure/memory", "some total=x\n")]).path()), None);
        }

        #[test]
        fn version_1_in_a_container_whose_path_is_the_hosts() {
            let root = machine(&[
                ("proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/docker/abc\n0::/\n"),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "5000000\n"),
                ("sys/fs/cgroup/memory/memory.usage_in_bytes", "6000000\n"),
                ("sys/fs/cgroup/memory/memory.stat", "inactive_file 7\ntotal_inactive_file 2000000\n"),
            ]);
            assert_eq!(total(root.path()).unwrap(), 5_000_000);
            assert_eq!(available(root.path()).unwrap(), 1_000_000);
        }

        #[test]
        fn version_1_without_a_limit_leaves_the_machine() {
            let root = machine(&[
                ("proc/self/cgroup", "4:memory:/\n"),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
                ("sys/fs/cgroup/memory/memory.usage_in_bytes", "6000000\n"),
            ]);
            assert_eq!(total(root.path()).unwrap(), 24_645_220 * KIB);
            assert_eq!(available(root.path()).unwrap(), 23_000_000 * KIB);
        }

        #[test]
        fn a_full_group_has_nothing_left() {
            let root = machine(&[
                ("proc/self/cgroup", "0::/\n"),
                ("sys/fs/cgroup/memory.max", "100\n"),
                ("sys/fs/cgroup/memory.current", "150\n"),
            ]);
            assert_eq!(available(root.path()).unwrap(), 0);
        }

        #[test]
        fn fields_in_unknown_form_are_named() {
            for text in [
                "",
                "MemTotals: 5 kB\n",
                "MemTotal: 5 MB\n",
                "MemTotal: x kB\n",
                "MemTotal: 99999999999999999999 kB\n",
            ] {
                assert_eq!(kibibytes(text, "MemTotal"), None, "{text}");
            }
            let root = tempfile::tempdir().unwrap();
            let error = total(root.path()).unwrap_err().to_string();
            assert!(error.contains("proc/meminfo could not be read"), "{error}");
            fs::create_dir(root.path().join("proc")).unwrap();
            fs::write(root.path().join("proc/meminfo"), "MemTotal: 5 kB\n").unwrap();
            let error = available(root.path()).unwrap_err().to_string();
            assert!(error.contains("proc/meminfo has no field \"MemAvailable\""), "{error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_answers() {
        let total = total_memory().unwrap();
        assert!(total > 1 << 20);
        assert!(available_memory().unwrap() <= total);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_peak_grows_with_what_is_touched() {
        let before = peak_memory().unwrap();
        let mut buffer = crate::HostBuffer::new(2 * before).unwrap();
        buffer.as_mut_slice().fill(1);
        assert!(peak_memory().unwrap() >= before + buffer.bytes() / 2);
    }
}
