//! How many threads compute unless a number is asked for: one for each core that works at full speed, of those that this
//! process may use. Knows what systems say of their processors; no device and no setting.
//!
//! - The second thread of a core (SMT) is left out: both share the units that multiply and the queues to memory.
//! - Efficiency cores are left out beside performance cores. Threads take parts of the work one by one, so a slow core
//!   does fewer; but an op ends with its last part, and whoever began it on a slow core lets the others wait.
//! - A quota of processor time (cgroups) and affinity bound the number. Where they leave efficiency cores only, these compute.
//!
//! A system that does not say which cores are which is taken at its word about how many there are.

#[cfg(any(test, target_os = "linux"))]
use std::collections::BTreeSet;
use std::thread;

/// Below this share of the largest capacity that Linux states (`cpu_capacity`), a core is an efficiency core.
#[cfg(any(test, target_os = "linux"))]
const FULL_SPEED: f64 = 0.5;

/// The processors that this process may use, and how many of them compute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cores {
    /// What affinity and quota leave; `None` if the system does not tell.
    pub(crate) usable: Option<usize>,
    /// Threads that compute, 1 at least.
    pub(crate) threads: usize,
    /// Efficiency cores among the usable processors that do not.
    pub(crate) efficiency: usize,
    /// Second threads of cores that do not.
    pub(crate) second_threads: usize,
}

impl Cores {
    /// Asks the system.
    pub(crate) fn look() -> Self {
        let usable = thread::available_parallelism().ok().map(usize::from);
        let cores = of_system(usable.unwrap_or(1));
        Cores { usable, ..cores }
    }

    /// What does not compute, in words for people; nothing if all that may be used computes.
    pub(crate) fn left_out(&self) -> Option<String> {
        let count = |number: usize, one: &str| match number {
            0 => None,
            1 => Some(format!("1 {one}")),
            _ => Some(format!("{number} {one}s")),
        };
        let kinds = [count(self.efficiency, "efficiency core"), count(self.second_threads, "second thread")];
        let kinds: Vec<_> = kinds.into_iter().flatten().collect();
        (!kinds.is_empty()).then(|| kinds.join(" and "))
    }
}

#[cfg(target_os = "linux")]
fn of_system(usable: usize) -> Cores {
    of_linux(usable, |path| std::fs::read_to_string(path).ok())
}

#[cfg(target_os = "macos")]
fn of_system(usable: usize) -> Cores {
    of_macos(usable, |name| {
        let said = std::process::Command::new("/usr/sbin/sysctl").args(["-n", name]).output().ok()?;
        said.status.success().then(|| String::from_utf8_lossy(&said.stdout).trim().parse().ok())?
    })
}

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
fn of_system(usable: usize) -> Cores {
    of_counts(usable, sysinfo::System::physical_core_count().ok(), 0)
}

/// From files of Linux: the affinity, the siblings of each processor, and which of them are slow.
#[cfg(any(test, target_os = "linux"))]
fn of_linux(usable: usize, file: impl Fn(&str) -> Option<String>) -> Cores {
    let status = file("/proc/self/status").unwrap_or_default();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let allowed = allowed.map(numbers).unwrap_or_default();
    let of = |processor: usize, name: &str| file(&format!("/sys/devices/system/cpu/cpu{processor}/{name}"));
    let capacity = |processor: usize| of(processor, "cpu_capacity")?.trim().parse::<f64>().ok();
    let largest = allowed.iter().filter_map(|processor| capacity(*processor)).fold(0.0, f64::max);
    // Intel's hybrids have a folder for each kind.
    let atoms = file("/sys/devices/cpu_atom/cpus").map(|list| numbers(&list)).unwrap_or_default();
    let is_slow = |processor: usize| {
        atoms.contains(&processor) || capacity(processor).is_some_and(|own| own < FULL_SPEED * largest)
    };
    let mut fast: BTreeSet<usize> =
        allowed.iter().copied().filter(|processor| !is_slow(*processor)).collect();
    if fast.is_empty() {
        fast.clone_from(&allowed);
    }
    // A core is known by the first of its threads, whether that may be used or not.
    let core_of = |processor: usize| {
        let siblings = of(processor, "topology/thread_siblings_list").map(|list| numbers(&list));
        siblings.and_then(|siblings| siblings.first().copied()).unwrap_or(processor)
    };
    let cores = fast.iter().map(|processor| core_of(*processor)).collect::<BTreeSet<_>>().len();
    Cores {
        usable: Some(usable),
        // Without a list of processors their number is all there is to go by.
        threads: if cores == 0 { usable } else { usable.min(cores) }.max(1),
        efficiency: allowed.len() - fast.len(),
        second_threads: fast.len() - cores,
    }
}

/// From what `sysctl` says on macOS. Level 0 are the fastest cores; Intel's processors have no levels.
#[cfg(any(test, target_os = "macos"))]
fn of_macos(usable: usize, value: impl Fn(&str) -> Option<usize>) -> Cores {
    match value("hw.perflevel0.physicalcpu") {
        Some(fast) => of_counts(usable, Some(fast), value("hw.perflevel1.physicalcpu").unwrap_or(0)),
        None => of_counts(usable, value("hw.physicalcpu"), 0),
    }
}

/// From the number of cores that work at full speed, if it is known, and of others.
#[cfg(any(test, not(target_os = "linux")))]
fn of_counts(usable: usize, fast: Option<usize>, efficiency: usize) -> Cores {
    let threads = usable.min(fast.filter(|fast| *fast > 0).unwrap_or(usable)).max(1);
    let others = usable.saturating_sub(threads);
    let efficiency = efficiency.min(others);
    Cores { usable: Some(usable), threads, efficiency, second_threads: others - efficiency }
}

/// A list as Linux writes it, such as `0-3,8,10-11`; what is no number is passed over.
#[cfg(any(test, target_os = "linux"))]
fn numbers(list: &str) -> BTreeSet<usize> {
    let spans = list.trim().split(',').filter_map(|span| {
        let (first, last) = span.split_once('-').unwrap_or((span, span));
        Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
    });
    // No kernel numbers more processors; a damaged list must not fill the memory.
    spans.flat_map(|span: std::ops::RangeInclusive<usize>| span.take(1 << 16)).collect()
}

#[cfg(test)]
mod tests;
