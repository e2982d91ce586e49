//! Whether memory is short at this moment, as the system sees it: for who can give memory back. Asked now and then, so it is
//! cheap: a few small files. It decides nothing, and knows nothing of who has how much.

use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What the system says of memory now; None where it does not say.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Pressure {
    /// Bytes that can still be taken, as [`available_memory`](crate::machine::available_memory) counts them.
    pub available: Option<u64>,
    /// Share of the last seconds, 0 to 1, in which something waited for memory: in this process's control group, or on the
    /// machine where groups do not tell (Linux' pressure stall information, `some`).
    pub stalled: Option<f32>,
    /// Bytes of this process that lie in swap (Linux, `VmSwap`).
    pub swapped: Option<u64>,
    /// Whether the system says by itself that memory is short (macOS: its level of pressure is above normal).
    pub alarm: bool,
}

/// Somebody to ask, and the clock by which to ask.
pub trait Gauge: Send {
    /// Time since some moment; it never goes back.
    fn now(&mut self) -> Duration;

    /// What is to be said now. What cannot be learned is missing.
    fn read(&mut self) -> Pressure;
}

/// This machine.
#[derive(Debug)]
pub struct MachineGauge {
    start: Instant,
    system: System,
    /// Since when stalls are counted, the count then, and the share of the time before that.
    stalls: Option<(Duration, u64, Option<f32>)>,
}

/// Stalls are looked at over no shorter time: a single one says little.
const STALL_WINDOW: Duration = Duration::from_secs(2);

impl MachineGauge {
    /// The machine this runs on.
    #[must_use]
    pub fn new() -> Self {
        Self::under("/".into())
    }

    /// The machine that Linux' files under `root` tell of, for tests; other systems have no such files and ignore it.
    #[must_use]
    pub fn under(root: PathBuf) -> Self {
        Self { start: Instant::now(), system: System::new(root), stalls: None }
    }

    /// The share of stalls in the last window, from a count of microseconds.
    fn share(&mut self, now: Duration, stalled: u64) -> Option<f32> {
        let (since, before, share) = *self.stalls.get_or_insert((now, stalled, None));
        let time = now.saturating_sub(since);
        if time < STALL_WINDOW {
            return share;
        }
        let share = (stalled.saturating_sub(before) as f64 / time.as_micros() as f64).min(1.0) as f32;
        self.stalls = Some((now, stalled, Some(share)));
        Some(share)
    }
}

impl Default for MachineGauge {
    fn default() -> Self {
        Self::new()
    }
}

impl Gauge for MachineGauge {
    fn now(&mut self) -> Duration {
        self.start.elapsed()
    }

    fn read(&mut self) -> Pressure {
        let now = self.now();
        let stalled = self.system.stalled().and_then(|stalled| self.share(now, stalled));
        Pressure {
            available: self.system.available(),
            stalled,
            swapped: self.system.swapped(),
            alarm: System::alarm(),
        }
    }
}

#[cfg(target_os = "linux")]
#[derive(Debug)]
struct System {
    root: PathBuf,
}

#[cfg(target_os = "linux")]
impl System {
    fn new(root: PathBuf) -> Self {
        Self { root }
    }

    fn available(&mut self) -> Option<u64> {
        crate::machine::linux::available(&self.root).ok()
    }

    fn stalled(&mut self) -> Option<u64> {
        crate::machine::linux::stalled(&self.root)
    }

    fn swapped(&mut self) -> Option<u64> {
        crate::machine::linux::field(&self.root, "proc/self/status", "VmSwap").ok()
    }

    fn alarm() -> bool {
        false
    }
}

#[cfg(not(target_os = "linux"))]
#[derive(Debug)]
struct System {
    /// None where `sysinfo` knows nothing.
    asked: Option<sysinfo::System>,
}

#[cfg(not(target_os = "linux"))]
impl System {
    fn new(_root: PathBuf) -> Self {
        Self { asked: sysinfo::System::new().ok() }
    }

    fn available(&mut self) -> Option<u64> {
        let asked = self.asked.as_mut()?;
        asked.refresh_memory();
        // It says 0 where it has no answer.
        Some(asked.available_memory()).filter(|bytes| *bytes > 0)
    }

    fn stalled(&mut self) -> Option<u64> {
        None
    }

    fn swapped(&mut self) -> Option<u64> {
        None
    }

    #[cfg(not(target_os = "macos"))]
    fn alarm() -> bool {
        false
    }

    /// The level is 1 while memory is plenty, 2 or 4 when it is compressed and swapped.
    #[cfg(target_os = "macos")]
    fn alarm() -> bool {
        let mut level: libc::c_int = 0;
        let mut bytes = size_of::<libc::c_int>();
        // SAFETY: the name ends with a zero, and the kernel writes no more than `bytes` bytes to `level`.
        let done = unsafe {
            libc::sysctlbyname(
                c"kern.memorystatus_vm_pressure_level".as_ptr(),
                (&raw mut level).cast(),
                &raw mut bytes,
                std::ptr::null_mut(),
                0,
            )
        };
        done == 0 && level > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn stalls_are_a_share_of_windows() {
        let mut gauge = MachineGauge::new();
        assert_eq!(gauge.share(SECOND, 1_000_000), None, "there is nothing to compare with");
        assert_eq!(gauge.share(2 * SECOND, 1_900_000), None, "too short");
        assert_eq!(gauge.share(5 * SECOND, 2_000_000), Some(0.25));
        assert_eq!(gauge.share(6 * SECOND, 3_000_000), Some(0.25), "the window before");
        assert_eq!(gauge.share(7 * SECOND, 2_000_000), Some(0.0));
        assert_eq!(gauge.share(9 * SECOND, 9_000_000), Some(1.0));
        assert_eq!(gauge.share(11 * SECOND, 8_000_000), Some(0.0), "it counts from the start again");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn files_tell_of_a_machine() {
        let root = tempfile::tempdir().unwrap();
        let file = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let mut gauge = MachineGauge::under(root.path().into());
        assert_eq!(gauge.read(), Pressure::default(), "nothing is known");
        file("proc/meminfo", "MemAvailable:   4 kB\n");
        file("proc/self/status", "VmSwap:\t       8 kB\n");
        file("proc/pressure/memory", "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n");
        let known = Pressure { available: Some(4096), swapped: Some(8192), ..Pressure::default() };
        assert_eq!(gauge.read(), known);
        assert!(gauge.now() <= gauge.now());
    }

    #[test]
    fn this_machine_says_what_is_available() {
        assert!(MachineGauge::default().read().available.is_some_and(|bytes| bytes > 0));
    }
}
