//! When the cache gives memory back and when it takes it again: one pure function from what is seen to what is done. It
//! knows no cache, no file and no clock.

use memory::pressure::Pressure;
use std::fmt;
use std::time::Duration;

/// What does not change while a cache lives.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Slots that were planned, which are never exceeded.
    pub(super) planned: u32,
    /// Slots below which it is not gone.
    pub(super) least: u32,
    /// Bytes of a slot.
    pub(super) slot_bytes: u64,
    /// Bytes that the plan left to everything else on the machine.
    pub(super) reserve: u64,
}

/// Where the cache stands.
#[derive(Debug, Clone, Copy)]
pub(super) struct State {
    /// Slots that are to be used.
    pub(super) limit: u32,
    /// Those of them that take no memory yet, though they may be read into.
    pub(super) unfilled: u32,
    /// When a quarter was given back last.
    pub(super) given: Option<Duration>,
    /// Since when there has been no pressure and nothing was taken.
    pub(super) calm_since: Duration,
    /// Most bytes that this process had in swap without that being pressure.
    pub(super) swapped: u64,
}

impl State {
    /// Whether pressure has been answered a moment ago.
    pub(super) fn is_answered(&self, now: Duration) -> bool {
        self.given.is_some_and(|given| now.saturating_sub(given) < BETWEEN)
    }
}

/// Pages of experts in slots that were touched.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Pages {
    pub(super) touched: u32,
    /// Those that came at the speed of a disk or a compressor.
    pub(super) slow: u32,
}

/// What is seen.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Signals {
    pub(super) now: Duration,
    pub(super) pressure: Pressure,
    /// Since the last look.
    pub(super) pages: Pages,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Decision {
    Keep,
    /// So many slots fewer; none where there are no fewer to be had.
    GiveBack(u32, Cause),
    /// So many slots more.
    TakeBack(u32),
}

/// How memory is seen to be short.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Cause {
    /// So little is left: less than half of the reserve.
    Available(u64),
    /// So little is left that less than half of the reserve would be if the slots that hold nothing yet were filled.
    NoRoom(u64),
    /// Processes wait for memory, for this share of the time.
    Stalled(f32),
    /// The system has swapped so many more bytes of this process out.
    Swapped(u64),
    /// Experts that should be in memory are not.
    Slow(Pages),
    /// The system says so.
    Alarm,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Available(bytes) => write!(f, "only {} MB are left", bytes / 1_000_000),
            Self::NoRoom(bytes) => {
                write!(f, "the {} MB that are left have no room for all slots", bytes / 1_000_000)
            }
            Self::Stalled(share) => write!(f, "processes wait for memory {:.0} % of the time", share * 100.0),
            Self::Swapped(bytes) => {
                write!(f, "the system swapped {} MB of this process out", bytes / 1_000_000)
            }
            Self::Slow(Pages { touched, slow }) => {
                write!(f, "{slow} of {touched} pages of cached experts were not in memory")
            }
            Self::Alarm => f.write_str("the system says so"),
        }
    }
}

/// Pressure is answered no more often: what was given back must show first.
const BETWEEN: Duration = Duration::from_secs(5);
/// Without pressure for so long, a part is taken again.
const CALM: Duration = Duration::from_mins(1);
/// Waiting for memory in more of the time than this is pressure where little memory is left.
const STALLED: f32 = 0.1;
/// More bytes newly in swap than this are pressure; a few idle pages are not.
const SWAPPED: u64 = 64 << 20;
/// So many touched pages say something.
pub(super) const PAGES_LEAST: u32 = 64;
/// One slow page of so many is pressure.
const PAGES_SLOW: u32 = 8;

/// Whether memory is short.
pub(super) fn cause(bounds: &Bounds, state: &State, signals: &Signals) -> Option<Cause> {
    let Signals { pressure, pages, .. } = signals;
    if let Some(available) = pressure.available.filter(|available| *available < bounds.reserve / 2) {
        return Some(Cause::Available(available));
    }
    // Who waits for memory while there is much of it waits for something else than what is held here; and a page that comes
    // slowly then has waited for a core.
    let little = pressure.available.is_none_or(|available| available < bounds.reserve * 2);
    if let Some(share) = pressure.stalled.filter(|share| little && *share > STALLED) {
        return Some(Cause::Stalled(share));
    }
    let swapped = pressure.swapped.map_or(0, |swapped| swapped.saturating_sub(state.swapped));
    if swapped > SWAPPED {
        return Some(Cause::Swapped(swapped));
    }
    if little && pages.touched >= PAGES_LEAST && pages.slow >= pages.touched.div_ceil(PAGES_SLOW) {
        return Some(Cause::Slow(*pages));
    }
    pressure.alarm.then_some(Cause::Alarm)
}

/// Why memory is short, for who has no slots to give; None if it is not. `reserve` are the bytes that are left to everything
/// else on the machine, `swapped` those of this process that were in swap before.
pub(super) fn short_memory(pressure: &Pressure, reserve: u64, swapped: u64) -> Option<String> {
    let bounds = Bounds { planned: 0, least: 0, slot_bytes: 0, reserve };
    let state = State { limit: 0, unfilled: 0, given: None, calm_since: Duration::ZERO, swapped };
    let signals = Signals { now: Duration::ZERO, pressure: *pressure, pages: Pages::default() };
    cause(&bounds, &state, &signals).map(|cause| cause.to_string())
}

/// What is done about that:
///
/// - memory is short, and that was not answered a moment ago: all slots that hold nothing go, and a quarter of the others;
/// - it would be short if all slots were filled: of those that hold nothing as many go as there is no room for;
/// - neither for a minute: a sixteenth of the planned slots comes back if there is room for them and for those that hold nothing.
pub(super) fn decide(bounds: &Bounds, state: &State, signals: &Signals) -> Decision {
    let Signals { now, pressure, .. } = signals;
    let available = pressure.available.unwrap_or(u64::MAX);
    let unfilled = u64::from(state.unfilled) * bounds.slot_bytes;
    let most = state.limit.saturating_sub(bounds.least);
    let lacking = (unfilled + bounds.reserve / 2).saturating_sub(available).div_ceil(bounds.slot_bytes);
    let unfit = state.unfilled.min(u32::try_from(lacking).unwrap_or(u32::MAX)).min(most);
    if let Some(cause) = cause(bounds, state, signals) {
        let filled = state.limit.saturating_sub(state.unfilled);
        let slots = (state.unfilled + (filled / 4).max(1)).min(most);
        return match (state.is_answered(*now), unfit) {
            (false, _) => Decision::GiveBack(slots, cause),
            (true, 0) => Decision::Keep,
            (true, unfit) => Decision::GiveBack(unfit, cause),
        };
    }
    if unfit > 0 {
        return Decision::GiveBack(unfit, Cause::NoRoom(available));
    }
    let more = (bounds.planned / 16).max(1).min(bounds.planned.saturating_sub(state.limit));
    let room = available >= bounds.reserve + unfilled + u64::from(more) * bounds.slot_bytes;
    if more > 0 && room && now.saturating_sub(state.calm_since) >= CALM {
        return Decision::TakeBack(more);
    }
    Decision::Keep
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;
    const BOUNDS: Bounds = Bounds { planned: 160, least: 8, slot_bytes: MB, reserve: 100 * MB };
    const FULL: State =
        State { limit: 160, unfilled: 0, given: None, calm_since: Duration::ZERO, swapped: 0 };

    fn at(seconds: u64, pressure: Pressure) -> Signals {
        Signals { now: Duration::from_secs(seconds), pressure, pages: Pages::default() }
    }

    fn left(available: u64) -> Pressure {
        Pressure { available: Some(available * MB), ..Pressure::default() }
    }

    #[test]
    fn each_signal_alone_is_pressure_from_its_threshold_on() {
        let stalled = |available, share| Pressure { stalled: Some(share), ..left(available) };
        let swapped = |bytes| Pressure { swapped: Some(bytes), ..left(1000) };
        let pages = |touched, slow| Signals { pages: Pages { touched, slow }, ..at(1, left(199)) };
        let with_much_left = Signals { pages: Pages { touched: 64, slow: 64 }, ..at(1, left(200)) };
        let table = [
            (at(1, Pressure::default()), None),
            (at(1, left(50)), None),
            (at(1, left(49)), Some(Cause::Available(49 * MB))),
            (at(1, stalled(199, 0.11)), Some(Cause::Stalled(0.11))),
            (at(1, stalled(199, 0.1)), None),
            (at(1, stalled(200, 1.0)), None),
            (at(1, Pressure { stalled: Some(0.5), ..Pressure::default() }), Some(Cause::Stalled(0.5))),
            (at(1, swapped(SWAPPED)), None),
            (at(1, swapped(SWAPPED + 1)), Some(Cause::Swapped(SWAPPED + 1))),
            (pages(63, 63), None),
            (pages(64, 7), None),
            (pages(64, 8), Some(Cause::Slow(Pages { touched: 64, slow: 8 }))),
            (pages(65, 8), None),
            (with_much_left, None),
            (at(1, Pressure { alarm: true, ..left(1000) }), Some(Cause::Alarm)),
        ];
        for (signals, expected) in table {
            assert_eq!(cause(&BOUNDS, &FULL, &signals), expected, "{signals:?}");
        }
        let used_to = State { swapped: 10 * SWAPPED, ..FULL };
        assert_eq!(cause(&BOUNDS, &used_to, &at(1, swapped(11 * SWAPPED))), None);
    }

    #[test]
    fn who_has_no_slots_is_told_too() {
        assert_eq!(short_memory(&left(50), 100 * MB, 0), None);
        assert_eq!(short_memory(&left(49), 100 * MB, 0).unwrap(), "only 49 MB are left");
        let swapped = Pressure { swapped: Some(3 * SWAPPED), ..left(1000) };
        assert_eq!(short_memory(&swapped, 100 * MB, 2 * SWAPPED), None);
        assert!(short_memory(&swapped, 100 * MB, SWAPPED).unwrap().contains("swapped"));
    }

    #[test]
    fn a_quarter_goes_and_never_more_than_there_is_to_give() {
        let given = |limit| match decide(&BOUNDS, &State { limit, ..FULL }, &at(1, left(0))) {
            Decision::GiveBack(slots, Cause::Available(0)) => slots,
            other => panic!("{other:?}"),
        };
        let table = [(160, 40), (120, 30), (11, 2), (10, 2), (9, 1), (8, 0), (3, 0)];
        assert_eq!(table.map(|(limit, _)| given(limit)), table.map(|(_, slots)| slots));
    }

    #[test]
    fn empty_slots_for_which_there_is_no_room_go_at_once() {
        let state = State { unfilled: 60, given: Some(Duration::from_secs(10)), ..FULL };
        let few = State { limit: 12, unfilled: 12, ..state };
        let gone = |slots, left| Decision::GiveBack(slots, Cause::Available(left * MB));
        let unfit = |slots, left| Decision::GiveBack(slots, Cause::NoRoom(left * MB));
        let table = [
            (state, at(11, left(110)), Decision::Keep),
            (state, at(11, left(109)), unfit(1, 109)),
            (state, at(11, left(60)), unfit(50, 60)),
            (state, at(11, left(50)), unfit(60, 50)),
            // Short of memory: all of them, and a quarter of the others unless that has been answered.
            (state, at(11, left(10)), gone(60, 10)),
            (state, at(20, left(10)), gone(85, 10)),
            (few, at(20, left(10)), gone(4, 10)),
            (state, at(20, Pressure::default()), Decision::Keep),
        ];
        for (state, signals, expected) in table {
            assert_eq!(decide(&BOUNDS, &state, &signals), expected, "{state:?} {signals:?}");
        }
    }

    #[test]
    fn pressure_is_answered_once_in_five_seconds() {
        let state = State { given: Some(Duration::from_secs(10)), ..FULL };
        assert_eq!(decide(&BOUNDS, &state, &at(14, left(0))), Decision::Keep);
        assert!(matches!(decide(&BOUNDS, &state, &at(15, left(0))), Decision::GiveBack(40, _)));
    }

    #[test]
    fn a_sixteenth_comes_back_after_a_calm_minute_if_there_is_room() {
        let state = State { limit: 100, unfilled: 5, calm_since: Duration::from_secs(10), ..FULL };
        let table = [
            (state, at(69, left(1000)), Decision::Keep),
            (state, at(70, left(1000)), Decision::TakeBack(10)),
            (state, at(70, left(115)), Decision::TakeBack(10)),
            (state, at(70, left(114)), Decision::Keep),
            (state, at(70, Pressure::default()), Decision::TakeBack(10)),
            (State { limit: 155, ..state }, at(70, left(1000)), Decision::TakeBack(5)),
            (State { limit: 160, ..state }, at(70, left(1000)), Decision::Keep),
        ];
        for (state, signals, expected) in table {
            assert_eq!(decide(&BOUNDS, &state, &signals), expected, "{state:?} {signals:?}");
        }
        let few = Bounds { planned: 3, ..BOUNDS };
        assert_eq!(decide(&few, &State { limit: 1, ..state }, &at(70, left(1000))), Decision::TakeBack(1));
    }

    #[test]
    fn causes_are_words() {
        let pages = Pages { touched: 64, slow: 9 };
        let causes = [
            Cause::Available(49 * MB),
            Cause::NoRoom(149 * MB),
            Cause::Stalled(0.25),
            Cause::Swapped(70 * MB),
            Cause::Slow(pages),
        ];
        assert_eq!(
            causes.map(|cause| cause.to_string()),
            [
                "only 49 MB are left",
                "the 149 MB that are left have no room for all slots",
                "processes wait for memory 25 % of the time",
                "the system swapped 70 MB of this process out",
                "9 of 64 pages of cached experts were not in memory"
            ]
        );
    }
}
