//! Machines of several makes, by what their systems say.
use super::*;

/// A Linux machine: for each span of processors the siblings (a function of the number) and the capacity, and files.
struct Linux {
    allowed: &'static str,
    siblings: fn(usize) -> String,
    capacity: fn(usize) -> Option<u32>,
    atoms: Option<&'static str>,
}

impl Linux {
    fn file(&self, path: &str) -> Option<String> {
        let line = |text: String| format!("{text}\n");
        match path {
            "/proc/self/status" => {
                let allowed = self.allowed;
                Some(format!(
                    "Name:\tcolibri\nCpus_allowed:\tf\nCpus_allowed_list:\t{allowed}\nMems_allowed_list:\t0\n"
                ))
            }
            "/sys/devices/cpu_atom/cpus" => self.atoms.map(|list| line(list.to_owned())),
            _ => {
                let (number, name) = path.strip_prefix("/sys/devices/system/cpu/cpu")?.split_once('/')?;
                let number = number.parse().ok()?;
                match name {
                    "topology/thread_siblings_list" => Some(line((self.siblings)(number))),
                    "cpu_capacity" => (self.capacity)(number).map(|capacity| line(capacity.to_string())),
                    _ => None,
                }
            }
        }
    }

    /// Threads, efficiency cores and second threads left out.
    fn counted(&self, usable: usize) -> (usize, usize, usize) {
        let cores = of_linux(usable, |path| self.file(path));
        assert_eq!(cores.usable, Some(usable));
        (cores.threads, cores.efficiency, cores.second_threads)
    }
}

fn alone(number: usize) -> String {
    number.to_string()
}

/// Core i9-13900K: 8 performance cores of two threads side by side, then 16 efficiency cores.
const HYBRID_INTEL: Linux = Linux {
    allowed: "0-31",
    siblings: |number| if number < 16 { format!("{}-{}", number & !1, number | 1) } else { alone(number) },
    capacity: |_| None,
    atoms: Some("16-31"),
};

/// Ryzen 9 7950X: the second thread of core n is processor n + 16.
const AMD: Linux = Linux {
    allowed: "0-31",
    siblings: |number| format!("{},{}", number % 16, number % 16 + 16),
    capacity: |_| None,
    atoms: None,
};

#[test]
fn an_intel_hybrid_computes_on_performance_cores() {
    assert_eq!(HYBRID_INTEL.counted(32), (8, 16, 8));
    assert_eq!(Linux { allowed: "16-31", ..HYBRID_INTEL }.counted(16), (16, 0, 0), "there is nothing faster");
    assert_eq!(Linux { allowed: "1,3,20-23", ..HYBRID_INTEL }.counted(6), (2, 4, 0));
    assert_eq!(HYBRID_INTEL.counted(4), (4, 16, 8), "a quota of 4 processors");
}

#[test]
fn second_threads_are_left_out() {
    assert_eq!(AMD.counted(32), (16, 0, 16));
    assert_eq!(Linux { allowed: "0-3,16-19", ..AMD }.counted(8), (4, 0, 4));
    assert_eq!(Linux { allowed: "16-19", ..AMD }.counted(4), (4, 0, 0), "each the only one of its core");
    let virtual_machine = Linux { allowed: "0-1", siblings: |_| "0-1".to_owned(), ..AMD };
    assert_eq!(virtual_machine.counted(2), (1, 0, 1));
}

#[test]
fn a_server_of_equal_cores_uses_all() {
    // Graviton3, and one with capacities.
    let graviton = Linux { allowed: "0-63", siblings: alone, capacity: |_| None, atoms: None };
    assert_eq!(graviton.counted(64), (64, 0, 0));
    assert_eq!(Linux { capacity: |_| Some(1024), ..graviton }.counted(64), (64, 0, 0));
}

#[test]
fn small_cores_are_told_by_their_capacity() {
    // RK3588: four Cortex-A55, then four Cortex-A76.
    let small_board = Linux {
        allowed: "0-7",
        siblings: alone,
        capacity: |number| Some(if number < 4 { 414 } else { 1024 }),
        atoms: None,
    };
    assert_eq!(small_board.counted(8), (4, 4, 0));
    assert_eq!(Linux { allowed: "0-3", ..small_board }.counted(4), (4, 0, 0));
    // Cores that differ by a little are all of full speed.
    let near = Linux { capacity: |number| Some(if number < 4 { 871 } else { 1024 }), ..small_board };
    assert_eq!(near.counted(8), (8, 0, 0));
}

#[test]
fn a_system_that_says_nothing_is_taken_at_its_number() {
    let cores = of_linux(6, |_| None);
    assert_eq!(cores, Cores { usable: Some(6), threads: 6, efficiency: 0, second_threads: 0 });
    // A container may hide the topology but not the affinity.
    let status = |path: &str| (path == "/proc/self/status").then(|| "Cpus_allowed_list:\t0-3\n".to_owned());
    assert_eq!(of_linux(4, status).threads, 4);
}

#[test]
fn apple_levels_count_the_first() {
    // M1 Max: 8 and 2.
    let value = |name: &str| match name {
        "hw.perflevel0.physicalcpu" => Some(8),
        "hw.perflevel1.physicalcpu" => Some(2),
        "hw.physicalcpu" => Some(10),
        _ => None,
    };
    let cores = of_macos(10, value);
    assert_eq!((cores.threads, cores.efficiency, cores.second_threads), (8, 2, 0));
    assert_eq!(cores.left_out().unwrap(), "2 efficiency cores");
    // Intel's have no levels and two threads a core.
    let cores = of_macos(16, |name| (name == "hw.physicalcpu").then_some(8));
    assert_eq!((cores.threads, cores.efficiency, cores.second_threads), (8, 0, 8));
    assert_eq!(of_macos(4, |_| None).threads, 4);
    assert_eq!(of_macos(1, |_| Some(0)).threads, 1);
}

#[test]
fn what_is_left_out_is_said() {
    let some = Cores { usable: Some(10), threads: 1, efficiency: 1, second_threads: 8 };
    assert_eq!(some.left_out().unwrap(), "1 efficiency core and 8 second threads");
    assert_eq!(Cores { efficiency: 0, second_threads: 0, ..some }.left_out(), None);
}

#[test]
fn lists_are_read_as_linux_writes_them() {
    assert_eq!(Vec::from_iter(numbers("0-3,8,10-11\n")), [0, 1, 2, 3, 8, 10, 11]);
    assert_eq!(Vec::from_iter(numbers("5")), [5]);
    assert!(numbers("").is_empty() && numbers("x-3,\n").is_empty());
    assert_eq!(numbers("0-18446744073709551615").len(), 1 << 16);
}

#[test]
fn this_machine_has_a_thread_at_least() {
    let cores = Cores::look();
    assert!(cores.threads >= 1 && cores.usable.is_none_or(|usable| cores.threads <= usable));
}
