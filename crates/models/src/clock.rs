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

/// Sums of time by section.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    sums: [Duration; 4],
    start: Option<Instant>,
    /// The section that runs, and since when.
    running: Option<(Section, Instant)>,
    /// What was submitted in this step, in order.
    sent: Vec<(Section, Sent)>,
    /// When the host waited for experts, in order.
    waits: Vec<Range<Instant>>,
}

impl Clock {
    /// A step begins.
    pub fn begin(&mut self, ops: &mut Ops) {
        ops.note_sent(true);
        self.sent.clear();
        self.waits.clear();
        self.running = None;
        self.start = Some(Instant::now());
    }

    /// Ends the section that runs and begins another. What is recorded and not submitted counts for the new one.
    pub fn enter(&mut self, ops: &mut Ops, section: Section) {
        self.close(ops);
        self.running = Some((section, Instant::now()));
    }

    fn close(&mut self, ops: &mut Ops) {
        let Some((section, since)) = self.running else { return };
        self.sent.extend(ops.sent().map(|sent| (section, sent)));
        if section == Section::ExpertWait {
            self.waits.push(since..Instant::now());
        }
    }

    /// The step is over, and so is all work that counts.
    pub fn finish(&mut self, ops: &mut Ops) {
        self.close(ops);
        ops.note_sent(false);
        let (Some(start), Some((last, _))) = (self.start.take(), self.running.take()) else { return };
        for (_, sent) in &mut self.sent {
            if let Some(span) = ops.device().ran(sent.submission) {
                sent.span = span;
            }
        }
        let shares = shares(start..Instant::now(), &self.sent, &self.waits, last);
        for (sum, share) in self.sums.iter_mut().zip(shares) {
            *sum += share;
        }
    }

    /// Time spent in a section so far.
    #[must_use]
    pub fn spent(&self, section: Section) -> Duration {
        self.sums[section as usize]
    }
}

/// Shares out the time of a step: each piece of work and the time before it, since the one before it was done, belong to its
/// section, but the part of that time in which experts were waited for. What follows the last belongs to `last`.
fn shares(
    step: Range<Instant>,
    sent: &[(Section, Sent)],
    waits: &[Range<Instant>],
    last: Section,
) -> [Duration; 4] {
    let mut sums = [Duration::ZERO; 4];
    let mut now = step.start;
    for (section, Sent { span, .. }) in sent {
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
fn common(span: &Range<Instant>, waits: &[Range<Instant>]) -> Duration {
    let first = waits.partition_point(|wait| wait.end <= span.start);
    let inside = waits[first..].iter().take_while(|wait| wait.start < span.end);
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
        let sent = |s| Sent { submission: Submission(0), span: span(s) };
        let ran: Vec<_> = ran.iter().map(|(section, s)| (*section, sent(s))).collect();
        let waits: Vec<_> = waits.iter().map(|(start, end)| at(*start)..at(*end)).collect();
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
