//! Where the time of a step goes. A section has the time in which the device worked on what was submitted in it, and the
//! time in which it had nothing to do before; waiting for experts is apart. So the sums are right also where a device
//! works long after the call, and where it works at the call they are what the host sees. It knows no op.
use ops::{Ops, Sent};
use std::ops::Range;
use std::time::{Duration, Instant};

/// A part of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// Attention of any kind, with its norms and mixes.
    Attention,
    /// Router, experts, shared experts, dense MLP.
    Moe,
    /// The device had nothing to do and the host waited for experts.
    ExpertWait,
    /// The last norm, logits.
    Head,
}

/// What the host waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitFor {
    /// What a router picked.
    Picks,
    /// Experts that are read.
    Experts,
    /// A submission whose slots are needed for others.
    Slots,
    /// The cache: it looks for slots and hands reads to the threads that read.
    Cache,
}

/// A piece of work of the device.
#[derive(Clone, Debug)]
pub struct Work {
    /// In which it was submitted.
    pub section: Section,
    /// The layer, if it belongs to one.
    pub layer: Option<u32>,
    /// When the device worked on it, once the step is over.
    pub sent: Sent,
}

/// A time in which the host waited.
#[derive(Clone, Debug)]
pub struct Wait {
    /// What for.
    pub what: WaitFor,
    /// In which layer.
    pub layer: Option<u32>,
    /// From when to when.
    pub span: Range<Instant>,
}

/// Where the time of one step went.
#[derive(Clone, Debug)]
pub struct StepTimes<'a> {
    /// All of it.
    pub span: Range<Instant>,
    /// The device's work, in order.
    pub work: &'a [Work],
    /// The host's waits for experts, in order.
    pub expert_waits: &'a [Wait],
    /// Its other waits, in order, if [`Clock::note_waits`] asked for them.
    pub other_waits: &'a [Wait],
}

/// Sums of time by section.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    sums: [Duration; 4],
    start: Option<Instant>,
    /// From beginning to end of the last step that is over.
    last: Option<Range<Instant>>,
    /// The section that runs, in which layer, and since when.
    running: Option<(Section, Option<u32>, Instant)>,
    /// The layer of sections that begin.
    layer: Option<u32>,
    /// What was submitted in this step, in order.
    sent: Vec<Work>,
    /// When the host waited for experts, in order.
    waits: Vec<Wait>,
    /// When it waited for something else, if that is wanted.
    other_waits: Vec<Wait>,
    notes_waits: bool,
}

impl Clock {
    /// From now on waits for all else than experts are noted too.
    pub fn note_waits(&mut self) {
        self.notes_waits = true;
    }

    /// A step begins.
    pub fn begin(&mut self, ops: &mut Ops) {
        ops.note_sent(true);
        self.sent.clear();
        self.waits.clear();
        self.other_waits.clear();
        self.running = None;
        self.last = None;
        self.layer = None;
        self.start = Some(Instant::now());
    }

    /// The sections that follow belong to this layer, or to none.
    pub(crate) fn begin_layer(&mut self, layer: Option<u32>) {
        self.layer = layer;
    }

    /// When a wait begins, if it is to be noted.
    pub(crate) fn wait_begins(&self) -> Option<Instant> {
        self.notes_waits.then(Instant::now)
    }

    /// It is over.
    pub(crate) fn waited(&mut self, what: WaitFor, since: Option<Instant>) {
        if let Some(since) = since {
            self.other_waits.push(Wait { what, layer: self.layer, span: since..Instant::now() });
        }
    }

    /// Ends the section that runs and begins another. What is recorded and not submitted counts for the new one.
    pub fn enter(&mut self, ops: &mut Ops, section: Section) {
        self.close(ops);
        self.running = Some((section, self.layer, Instant::now()));
    }

    fn close(&mut self, ops: &mut Ops) {
        let Some((section, layer, since)) = self.running else { return };
        self.sent.extend(ops.sent().map(|sent| Work { section, layer, sent }));
        if section == Section::ExpertWait {
            self.waits.push(Wait { what: WaitFor::Experts, layer, span: since..Instant::now() });
        }
    }

    /// The step is over, and so is all work that counts.
    pub fn finish(&mut self, ops: &mut Ops) {
        self.close(ops);
        ops.note_sent(false);
        let (Some(start), Some((last, ..))) = (self.start.take(), self.running.take()) else { return };
        for Work { sent, .. } in &mut self.sent {
            if let Some(span) = ops.device().ran(sent.submission) {
                sent.span = span;
            }
        }
        let span = start..Instant::now();
        let shares = shares(span.clone(), &self.sent, &self.waits, last);
        self.last = Some(span);
        for (sum, share) in self.sums.iter_mut().zip(shares) {
            *sum += share;
        }
    }

    /// Where the time of the last step went, until the next one begins.
    #[must_use]
    pub fn last(&self) -> Option<StepTimes<'_>> {
        let Clock { sent, waits, other_waits, .. } = self;
        Some(StepTimes { span: self.last.clone()?, work: sent, expert_waits: waits, other_waits })
    }

    /// Time spent in a section so far.
    #[must_use]
    pub fn spent(&self, section: Section) -> Duration {
        self.sums[section as usize]
    }
}

/// Shares out the time of a step: each piece of work and the time before it, since the one before it was done, belong to its
/// section, but the part of that time in which experts were waited for. What follows the last belongs to `last`.
fn shares(step: Range<Instant>, sent: &[Work], waits: &[Wait], last: Section) -> [Duration; 4] {
    let mut sums = [Duration::ZERO; 4];
    let mut now = step.start;
    for Work { section, sent: Sent { span, .. }, .. } in sent {
        let begin = span.start.max(now);
        let waited = common(&(now..begin), waits);
        let end = span.end.max(begin);
        sums[Section::ExpertWait as usize] += waited;
        sums[*section as usize] += (end - now).saturating_sub(waited);
        now = end;
    }
    let end = step.end.max(now);
    let waited = common(&(now..end), waits);
    sums[Section::ExpertWait as usize] += waited;
    sums[last as usize] += (end - now).saturating_sub(waited);
    sums
}

/// Time that lies in a span and in one of the waits, which do not overlap each other.
fn common(span: &Range<Instant>, waits: &[Wait]) -> Duration {
    let first = waits.partition_point(|wait| wait.span.end <= span.start);
    let inside = waits[first..].iter().map(|wait| &wait.span).take_while(|wait| wait.start < span.end);
    inside.map(|wait| wait.end.min(span.end).saturating_duration_since(wait.start.max(span.start))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use Section::{Attention, Head, Moe};
    use ops::Submission;

    /// The shares in seconds; all times in seconds after the start of a step that takes 100.
    fn seconds(ran: &[(Section, Range<u64>)], waits: &[(u64, u64)]) -> [u64; 4] {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let span = |span: &Range<u64>| at(span.start)..at(span.end);
        let sent = |s: &_| Sent { submission: Submission(0), span: span(s) };
        let work = |(section, s): &(Section, _)| Work { section: *section, layer: None, sent: sent(s) };
        let ran: Vec<_> = ran.iter().map(work).collect();
        let wait = |(start, end): &(u64, u64)| at(*start)..at(*end);
        let wait = |w| Wait { what: WaitFor::Experts, layer: None, span: wait(w) };
        let waits: Vec<_> = waits.iter().map(wait).collect();
        shares(at(0)..at(100), &ran, &waits, Head).map(|share| share.as_secs())
    }

    #[test]
    fn a_device_that_is_done_at_once() {
        let ran = [(Attention, 5..20), (Moe, 20..25), (Moe, 45..50), (Head, 52..99)];
        assert_eq!(seconds(&ran, &[]), [20, 30, 0, 50]);
        assert_eq!(seconds(&ran, &[(26, 45)]), [20, 11, 19, 50]);
        assert_eq!(seconds(&ran, &[(26, 30), (30, 45)]), [20, 11, 19, 50]);
        assert_eq!(seconds(&[], &[]), [0, 0, 0, 100]);
    }

    #[test]
    fn a_device_that_works_ahead() {
        // The host asked for experts from 10 on; until 40 the device had enough to do.
        let ran = [(Attention, 1..30), (Moe, 30..40), (Moe, 50..60), (Head, 60..90)];
        assert_eq!(seconds(&ran, &[(10, 50)]), [30, 20, 10, 40]);
        // Work of one section that overlaps with the one before counts once.
        assert_eq!(seconds(&[(Attention, 0..50), (Moe, 40..70)], &[]), [50, 20, 0, 30]);
    }

    #[test]
    fn waits_outside_count_for_nothing() {
        assert_eq!(seconds(&[(Moe, 10..20)], &[(200, 300)]), [0, 20, 0, 80]);
        assert_eq!(seconds(&[(Moe, 10..20)], &[(12, 18)]), [0, 20, 0, 80]);
        assert_eq!(seconds(&[(Moe, 10..20)], &[(5, 15), (18, 30)]), [0, 15, 15, 70]);
    }
}
