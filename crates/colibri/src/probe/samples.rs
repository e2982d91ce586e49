//! Repeats of one measurement: what they are summed up to, whether the machine was ours meanwhile, and how several
//! measurements take turns. Knows no kernel and no model.
use crate::errors::Failure;
use crate::progress;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Share of the cores' time in which threads may have waited for a core, at most, in a repeat that counts as undisturbed.
const WAITED_MOST: f64 = 0.05;
/// Share of the cores' time that work must have had to count as undisturbed whatever waited.
const HAD_LEAST: f64 = 0.90;
/// Pages that may come from or go to the disk in an undisturbed repeat: a page of the program that was dropped is no
/// sign of too little memory.
const PAGES_MOST: u64 = 64;

/// One repeat.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sample {
    /// Its time, for one piece of work.
    pub(crate) seconds: f64,
    /// Processor time by `seconds` on all threads; None where the system does not tell.
    pub(crate) cpu_share: Option<f64>,
    /// Whether the system paged.
    pub(crate) paged: bool,
    /// Whether it did, or another process had the cores.
    pub(crate) disturbed: bool,
}

impl Sample {
    /// The same for one of so many pieces.
    pub(crate) fn per(self, pieces: f64) -> Self {
        Sample { seconds: self.seconds / pieces, ..self }
    }
}

/// What repeats say together. Quartiles and extremes are of the repeats that count: the undisturbed ones, or all if fewer
/// than half are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spread {
    /// Seconds of each repeat that counts, in order of time.
    pub(crate) samples: Vec<f64>,
    /// In the middle.
    pub(crate) median: f64,
    /// A quarter is below.
    pub(crate) lower_quartile: f64,
    /// A quarter is above.
    pub(crate) upper_quartile: f64,
    /// The shortest.
    pub(crate) least: f64,
    /// The longest.
    pub(crate) most: f64,
    /// Repeats made, the warm-up not counted.
    pub(crate) repeats: usize,
    /// Of these undisturbed.
    pub(crate) undisturbed: usize,
    /// Whether disturbed ones count.
    pub(crate) disturbed: bool,
    /// Median share of the cores' time.
    pub(crate) cpu_share: Option<f64>,
}

impl Spread {
    /// Of at least one repeat.
    pub(crate) fn of(all: &[Sample]) -> Self {
        let quiet: Vec<Sample> = all.iter().filter(|sample| !sample.disturbed).copied().collect();
        let undisturbed = quiet.len();
        let disturbed = 2 * undisturbed < all.len();
        let counted = if disturbed { all } else { &quiet };
        let seconds: Vec<f64> = counted.iter().map(|sample| sample.seconds).collect();
        let shares: Vec<f64> = counted.iter().filter_map(|sample| sample.cpu_share).collect();
        let at = |share| quantile(&seconds, share);
        Spread {
            median: at(0.5),
            lower_quartile: at(0.25),
            upper_quartile: at(0.75),
            least: at(0.0),
            most: at(1.0),
            repeats: all.len(),
            undisturbed,
            disturbed,
            cpu_share: (!shares.is_empty()).then(|| quantile(&shares, 0.5)),
            samples: seconds,
        }
    }

    /// Half the distance of the quartiles, by the median.
    pub(crate) fn relative(&self) -> f64 {
        (self.upper_quartile - self.lower_quartile) / 2.0 / self.median
    }
}

/// The value below which that share of all lies, between neighbours in proportion.
pub(crate) fn quantile(values: &[f64], share: f64) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let place = share * (values.len() - 1) as f64;
    let (below, above) = (values[place.floor() as usize], values[place.ceil() as usize]);
    below + (above - below) * place.fract()
}

/// Seconds in words: with three digits and the unit that fits.
pub(crate) fn duration(seconds: f64) -> String {
    if seconds == 0.0 {
        return "0 s".to_owned();
    }
    let units = [(1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")];
    let (size, unit) = *units.iter().find(|(size, _)| seconds >= 0.9995 * size).unwrap_or(&units[3]);
    let value = seconds / size;
    let digits = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.digits$} {unit}")
}

/// What the system has counted for this process, as far as it tells.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// Processor time of all threads.
    cpu: Option<Duration>,
    /// Time in which threads could have run and had no core.
    waited: Option<Duration>,
    /// Time that others' programs had the cores: what the kernel did for whomever is not in it.
    others: Option<Duration>,
    /// Pages that this process waited for until they came from a disk.
    faults: Option<u64>,
    /// Pages of the whole machine that were swapped in or out.
    swaps: Option<u64>,
}

/// Which pages are a sign of too little memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Paging {
    /// All that had to come from a disk or went there.
    Any,
    /// Those that were swapped: where weights are mapped, waiting for their pages is part of the work, and no counter tells these
    /// from others.
    Swapped,
}

impl Paging {
    /// While a model works of which so many bytes of weights are mapped.
    pub(crate) fn beside(mapped: u64) -> Self {
        if mapped > 0 { Paging::Swapped } else { Paging::Any }
    }

    /// Pages of that kind; None where the system does not tell.
    fn count(self, counts: Counts) -> Option<u64> {
        match self {
            Paging::Any => Some(counts.faults? + counts.swaps.unwrap_or(0)),
            Paging::Swapped => counts.swaps,
        }
    }
}

/// Looks at the clocks and counters before and after a repeat.
pub(crate) struct Watch {
    before: Counts,
    paging: Paging,
    start: Instant,
}

impl Watch {
    /// A repeat begins, in which such pages are a disturbance.
    pub(crate) fn start(paging: Paging) -> Self {
        let before = system::counts();
        Watch { before, paging, start: Instant::now() }
    }

    /// It ends; `idle` of its time it waited for a disk. It works on so many threads.
    pub(crate) fn stop(self, threads: usize, idle: Duration) -> Sample {
        let wall = self.start.elapsed();
        Repeat { before: self.before, after: system::counts(), wall, threads, idle }.judged(self.paging)
    }
}

/// A repeat that is over.
#[derive(Clone, Copy)]
struct Repeat {
    before: Counts,
    after: Counts,
    wall: Duration,
    threads: usize,
    /// How long of that a disk was waited for.
    idle: Duration,
}

impl Repeat {
    /// What it was worth, where such pages are a disturbance.
    fn judged(self, paging: Paging) -> Sample {
        let Repeat { before, after, wall, threads, idle } = self;
        let cores = wall.as_secs_f64() * threads as f64;
        let share = |before: Option<Duration>, after: Option<Duration>| {
            Some(after?.saturating_sub(before?).as_secs_f64() / cores)
        };
        let (cpu, waited) = (share(before.cpu, after.cpu), share(before.waited, after.waited));
        // Who computes with mapped weights waits for a disk, too, and nobody counts how long.
        let mapped = paging == Paging::Swapped;
        let lacked = match (cpu, waited) {
            // Threads of our own may wait for each other's cores: then all cores are ours. Where a disk is waited for they are
            // not, but readers and workers still meet on them: then others must have been there.
            (Some(cpu), Some(waited)) => {
                let others = share(before.others, after.others).filter(|_| mapped || !idle.is_zero());
                waited > WAITED_MOST && cpu < HAD_LEAST && others.is_none_or(|others| others > WAITED_MOST)
            }
            (None, Some(waited)) => waited > WAITED_MOST,
            (Some(cpu), None) => !mapped && cpu < HAD_LEAST * (1.0 - idle.as_secs_f64() / wall.as_secs_f64()),
            (None, None) => false,
        };
        let paged = match (paging.count(before), paging.count(after)) {
            (Some(before), Some(after)) => after.saturating_sub(before) > PAGES_MOST,
            _ => false,
        };
        Sample { seconds: wall.as_secs_f64(), cpu_share: cpu, paged, disturbed: lacked || paged }
    }
}

/// Processor time of the thread that asks; None where the system does not tell.
pub(crate) fn thread_time() -> Option<Duration> {
    system::thread_time()
}

/// Measures all arms in turn: one round that does not count, then so many that do, then as many at most for the arms of
/// which too few repeats were undisturbed. Gives the samples of each arm.
pub(crate) fn in_turn<A>(
    arms: &mut [A],
    repeats: u32,
    cancel: &AtomicBool,
    mut measure: impl FnMut(&mut A) -> Result<Sample, Failure>,
) -> Result<Vec<Vec<Sample>>, Failure> {
    let mut samples: Vec<Vec<Sample>> = arms.iter().map(|_| Vec::new()).collect();
    let bar = progress::count("measurements", u64::from(repeats + 1) * arms.len() as u64);
    for round in 0..=2 * repeats {
        let last = round > repeats;
        for (arm, samples) in arms.iter_mut().zip(&mut samples) {
            let quiet = samples.iter().filter(|sample| !sample.disturbed).count();
            if last && quiet >= repeats as usize {
                continue;
            }
            if cancel.load(Ordering::Relaxed) {
                return Err(Failure::Told { kind: "cancelled", message: "interrupted".into() });
            }
            let sample = measure(arm)?;
            if round > 0 {
                samples.push(sample);
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(samples)
}

#[cfg(target_os = "linux")]
mod system {
    use super::Counts;
    use crate::load;
    use rustix::time::{ClockId, clock_gettime};
    use std::fs;
    use std::path::Path;
    use std::time::Duration;

    pub(super) fn counts() -> Counts {
        let root = load::memory_root();
        Counts {
            cpu: super::clock(clock_gettime(ClockId::ProcessCPUTime)),
            waited: waited(),
            others: others(),
            faults: faults(&root),
            swaps: swaps(&root),
        }
    }

    pub(super) fn thread_time() -> Option<Duration> {
        super::clock(clock_gettime(ClockId::ThreadCPUTime))
    }

    /// The second number of each thread's `schedstat`: nanoseconds.
    fn waited() -> Option<Duration> {
        let mut sum = None;
        for task in fs::read_dir("/proc/self/task").ok()?.flatten() {
            let Ok(text) = fs::read_to_string(task.path().join("schedstat")) else { continue };
            let nanoseconds: u64 = text.split_whitespace().nth(1)?.parse().ok()?;
            sum = Some(sum.unwrap_or(Duration::ZERO) + Duration::from_nanos(nanoseconds));
        }
        sum
    }

    /// All programs' time in user mode and what the host took, less our own.
    fn others() -> Option<Duration> {
        /// Of a tick of these files, on every system that Linux runs on.
        const MILLISECONDS: u64 = 10;
        let all = fs::read_to_string("/proc/stat").ok()?;
        let all: Vec<u64> =
            all.lines().next()?.split_whitespace().skip(1).map_while(|ticks| ticks.parse().ok()).collect();
        let own = fs::read_to_string("/proc/self/stat").ok()?;
        // Field 14; after the program's name comes field 3.
        let own: u64 = own.rsplit_once(')')?.1.split_whitespace().nth(11)?.parse().ok()?;
        let [user, nice, .., stolen] = *all.get(..8)? else { return None };
        Some(Duration::from_millis((user + nice + stolen).saturating_sub(own) * MILLISECONDS))
    }

    fn faults(root: &Path) -> Option<u64> {
        let own = fs::read_to_string(root.join("proc/self/stat")).ok()?;
        // After the program's name, which may hold anything, comes field 3; major faults are field 12.
        own.rsplit_once(')')?.1.split_whitespace().nth(9)?.parse().ok()
    }

    fn swaps(root: &Path) -> Option<u64> {
        let all = fs::read_to_string(root.join("proc/vmstat")).ok()?;
        let swapped = all.lines().filter_map(|line| {
            let (name, count) = line.split_once(' ')?;
            if matches!(name, "pswpin" | "pswpout") { count.parse::<u64>().ok() } else { None }
        });
        Some(swapped.sum())
    }
}

#[cfg(all(unix, not(target_os = "linux")))]
mod system {
    use super::Counts;
    use rustix::time::{ClockId, clock_gettime};
    use std::time::Duration;

    pub(super) fn counts() -> Counts {
        Counts { cpu: super::clock(clock_gettime(ClockId::ProcessCPUTime)), ..Counts::default() }
    }

    pub(super) fn thread_time() -> Option<Duration> {
        super::clock(clock_gettime(ClockId::ThreadCPUTime))
    }
}

#[cfg(not(unix))]
mod system {
    use super::Counts;
    use std::time::Duration;

    pub(super) fn counts() -> Counts {
        Counts::default()
    }

    pub(super) fn thread_time() -> Option<Duration> {
        None
    }
}

#[cfg(unix)]
fn clock(time: rustix::time::Timespec) -> Option<Duration> {
    Some(Duration::new(time.tv_sec.try_into().ok()?, time.tv_nsec.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(seconds: f64, disturbed: bool) -> Sample {
        Sample { seconds, cpu_share: Some(0.5), paged: false, disturbed }
    }

    #[test]
    fn quartiles_lie_between_neighbours() {
        let spread = Spread::of(&[5.0, 1.0, 2.0, 4.0, 3.0].map(|s| sample(s, false)));
        assert_eq!((spread.least, spread.lower_quartile, spread.median), (1.0, 2.0, 3.0));
        assert_eq!((spread.upper_quartile, spread.most, spread.repeats), (4.0, 5.0, 5));
        assert_eq!(spread.samples, [5.0, 1.0, 2.0, 4.0, 3.0]);
        assert!((spread.relative() - 1.0 / 3.0).abs() < 1e-12);
        assert_eq!(quantile(&[1.0, 2.0], 0.25), 1.25);
        assert_eq!(Spread::of(&[sample(7.0, false)]).upper_quartile, 7.0);
    }

    #[test]
    fn disturbed_repeats_count_only_where_most_are() {
        let spread = Spread::of(&[sample(1.0, false), sample(9.0, true), sample(3.0, false)]);
        assert_eq!((spread.median, spread.undisturbed, spread.repeats), (2.0, 2, 3));
        assert!(!spread.disturbed);
        let spread = Spread::of(&[sample(1.0, false), sample(9.0, true), sample(8.0, true)]);
        assert_eq!((spread.median, spread.disturbed), (8.0, true));
    }

    #[test]
    fn who_had_the_cores_is_seen() {
        let seconds = |s| Some(Duration::from_secs(s));
        let judged_with = |cpu, waited, others, pages, idle| {
            let after = Counts { cpu, waited, others, faults: pages, swaps: Some(0) };
            let zero = seconds(0);
            let before = Counts { cpu: zero, waited: zero, others: zero, faults: Some(0), swaps: Some(0) };
            let (wall, idle) = (Duration::from_secs(10), Duration::from_secs(idle));
            Repeat { before, after, wall, threads: 2, idle }.judged(Paging::Any).disturbed
        };
        let judge = |cpu, waited, pages| judged_with(cpu, waited, None, pages, 5);
        assert!(!judge(seconds(12), seconds(1), Some(64)), "threads that wait for a disk take no core");
        assert!(judge(seconds(12), seconds(2), Some(0)));
        assert!(!judge(seconds(19), seconds(9), Some(0)), "more threads than cores, all cores ours");
        assert!(judge(seconds(20), seconds(0), Some(65)));
        // Readers and workers on the same cores, and nobody else; but who waits for no disk has no such readers.
        assert!(!judged_with(seconds(6), seconds(9), seconds(1), Some(0), 5));
        assert!(judged_with(seconds(6), seconds(9), seconds(2), Some(0), 5));
        assert!(judged_with(seconds(6), seconds(9), seconds(1), Some(0), 0));
        // Without the time that threads waited, half of the time was the disk's.
        assert!(!judge(seconds(10), None, None) && judge(seconds(8), None, None));
        assert!(!judge(None, None, None));
    }

    #[test]
    fn pages_of_mapped_weights_are_no_sign_of_short_memory() {
        let counts = |faults, swaps| Counts { faults: Some(faults), swaps: Some(swaps), ..Counts::default() };
        let second = |before, after| {
            let (wall, idle) = (Duration::from_secs(1), Duration::ZERO);
            Repeat { before, after, wall, threads: 2, idle }
        };
        let judge = |paging, faults, swaps| {
            let sample = second(counts(1000, 1000), counts(1000 + faults, 1000 + swaps)).judged(paging);
            assert_eq!(sample.disturbed, sample.paged);
            sample.paged
        };
        let (mapped, read) = (Paging::beside(1), Paging::beside(0));
        assert!(judge(read, PAGES_MOST + 1, 0) && !judge(mapped, 1_000_000, PAGES_MOST));
        assert!(judge(read, 0, PAGES_MOST + 1) && judge(mapped, 0, PAGES_MOST + 1));
        assert!(judge(read, PAGES_MOST, 1) && !judge(read, PAGES_MOST, 0));
        let unknown = second(counts(0, 0), Counts { faults: Some(1_000_000), ..Counts::default() });
        assert!(!unknown.judged(mapped).paged);
        // Where nothing tells how long threads waited for a core, it may have been for a page.
        let half = |cpu| Counts { cpu: Some(Duration::from_millis(cpu)), ..counts(0, 0) };
        let disturbed = |paging| second(half(0), half(1000)).judged(paging).disturbed;
        assert!(disturbed(read) && !disturbed(mapped));
    }

    #[test]
    fn the_first_round_does_not_count_and_disturbed_ones_are_made_again() {
        let never = AtomicBool::new(false);
        let mut arms = [(0, false), (0, true)];
        let samples = in_turn(&mut arms, 3, &never, |(calls, disturbed)| {
            *calls += 1;
            Ok(sample(f64::from(*calls), *disturbed))
        })
        .unwrap();
        assert_eq!(samples[0].iter().map(|s| s.seconds).collect::<Vec<_>>(), [2.0, 3.0, 4.0]);
        assert_eq!(samples[1].len(), 6);
        let stopped = in_turn(&mut arms, 3, &AtomicBool::new(true), |_| Ok(sample(1.0, false)));
        assert!(stopped.is_err_and(|failure| failure.exit_code() == 130));
    }

    #[test]
    fn durations_have_three_digits() {
        let shown = [1.0, 0.5, 0.012_345, 1.5e-5, 2e-7, 0.0, 123.4].map(duration);
        assert_eq!(shown, ["1.00 s", "500 ms", "12.3 ms", "15.0 us", "200 ns", "0 s", "123 s"]);
        let shown = [0.001_234, 0.0999, 0.15, 0.9994, 0.9996, 9.99, 12.34, 1234.0].map(duration);
        assert_eq!(shown, ["1.23 ms", "99.9 ms", "150 ms", "999 ms", "1.00 s", "9.99 s", "12.3 s", "1234 s"]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_system_counts() {
        let counts = system::counts();
        assert!(counts.cpu.is_some() && thread_time().is_some() && Paging::Any.count(counts).is_some());
    }
}
