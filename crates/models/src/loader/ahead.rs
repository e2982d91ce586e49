//! Reads the parts of a checkpoint that a loader will ask for, in that order and ahead of it, on several threads, so that
//! disk and processor work at the same time. Memory for what is ahead is bounded. Knows bytes, not what they are for.
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use store::{Checkpoint, Entry, StoreError};

/// Threads that read: more than one, because a disk is slow with one read at a time.
pub(super) const READERS: usize = 4;
/// Bytes of buffers that are filled, being filled or in use: a part of the loader's for each thread that reads, and the one
/// in use. More would be planned and mostly not taken. One that is larger is alone.
pub(super) const AHEAD_BYTES: u64 = (READERS as u64 + 1) * super::LOAD_CHUNK_BYTES;

/// A part of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Span {
    pub(super) entry: Entry,
    /// First byte, counted from the start of the tensor.
    pub(super) start: u64,
    pub(super) bytes: u64,
}

/// Memory that reading these spans takes at most.
pub(super) fn buffers(spans: &[Span]) -> u64 {
    let all = spans.iter().fold(0_u64, |all, span| all.saturating_add(span.bytes));
    let largest = spans.iter().map(|span| span.bytes).max().unwrap_or(0);
    all.min(AHEAD_BYTES.max(largest))
}

/// Spans on their way, shared by the readers and the loader.
pub(super) struct Ahead<'c> {
    checkpoint: &'c Checkpoint,
    spans: Vec<Span>,
    most: u64,
    state: Mutex<State>,
    /// A span has come.
    came: Condvar,
    /// There is room for another one, or nobody wants one any more.
    room: Condvar,
}

#[derive(Default)]
struct State {
    /// Spans that a reader has begun.
    begun: usize,
    /// Spans that the loader has taken.
    taken: usize,
    /// Spans that have come and are not taken.
    waiting: BTreeMap<usize, Result<Vec<u8>, StoreError>>,
    /// Bytes of all buffers but the spare ones.
    held: u64,
    /// Buffers to use again.
    spare: Vec<Vec<u8>>,
    closed: bool,
}

impl<'c> Ahead<'c> {
    /// Nothing is read until a thread calls [`Ahead::read`].
    pub(super) fn new(checkpoint: &'c Checkpoint, spans: Vec<Span>, most: u64) -> Self {
        let (came, room) = (Condvar::new(), Condvar::new());
        Ahead { checkpoint, spans, most, state: Mutex::default(), came, room }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that is done with the lock held can panic half way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads spans until all are begun or nobody wants them: the work of one reader.
    pub(super) fn read(&self) {
        while let Some((number, mut buffer)) = self.begin() {
            let Span { entry, start, .. } = &self.spans[number];
            let outcome = self.checkpoint.read_range(entry, *start, &mut buffer);
            self.lock().waiting.insert(number, outcome.map(|()| buffer));
            self.came.notify_all();
        }
    }

    /// The next span and a buffer of its length.
    fn begin(&self) -> Option<(usize, Vec<u8>)> {
        let mut state = self.lock();
        loop {
            let number = state.begun;
            if state.closed || number == self.spans.len() {
                return None;
            }
            let bytes = self.spans[number].bytes;
            // Of the spare buffers the one that fits best: small ones that grow would leave memory in pieces.
            let fits = |buffer: &Vec<u8>| buffer.capacity() as u64 >= bytes;
            let best = (0..state.spare.len())
                .filter(|i| fits(&state.spare[*i]))
                .min_by_key(|i| state.spare[*i].capacity());
            let size = best.map_or(bytes, |i| state.spare[i].capacity() as u64);
            let spare: u64 = state.spare.iter().map(|buffer| buffer.capacity() as u64).sum();
            if state.held > 0 && state.held + size > self.most {
                state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let mut buffer = best.map(|i| state.spare.swap_remove(i)).unwrap_or_default();
            if best.is_none() && state.held + spare + size > self.most {
                state.spare.clear();
            }
            state.begun += 1;
            state.held += size;
            drop(state);
            buffer.reserve_exact((bytes as usize).saturating_sub(buffer.len()));
            buffer.resize(bytes as usize, 0);
            return Some((number, buffer));
        }
    }

    /// The bytes of the next span, which must be this one; waits for them.
    pub(super) fn next(&self, span: &Span) -> Result<Vec<u8>, StoreError> {
        let mut state = self.lock();
        let number = state.taken;
        assert_eq!(
            self.spans.get(number),
            Some(span),
            "a loader reads what it looked at before, in that order"
        );
        state.taken += 1;
        loop {
            if let Some(outcome) = state.waiting.remove(&number) {
                return outcome;
            }
            state = self.came.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes back a buffer that [`Ahead::next`] gave.
    pub(super) fn give_back(&self, buffer: Vec<u8>) {
        let mut state = self.lock();
        state.held -= buffer.capacity() as u64;
        state.spare.push(buffer);
        self.room.notify_all();
    }

    /// Ends the readers when the loader is done or has failed.
    pub(super) fn closing(&self) -> Closing<'_, 'c> {
        Closing(self)
    }
}

/// Ends the readers when it is dropped.
pub(super) struct Closing<'a, 'c>(&'a Ahead<'c>);

impl Drop for Closing<'_, '_> {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.room.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn checkpoint() -> Checkpoint {
        Checkpoint::open(&[PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../data/k3-tiny")]).unwrap()
    }

    /// Every tensor in pieces of at most so many bytes.
    fn spans(checkpoint: &Checkpoint, piece: u64) -> Vec<Span> {
        let pieces = |entry: &Entry| {
            let entry = entry.clone();
            (0..entry.bytes).step_by(piece as usize).map(move |start| {
                let bytes = piece.min(entry.bytes - start);
                Span { entry: entry.clone(), start, bytes }
            })
        };
        checkpoint.under("").take(40).flat_map(|(_, entry)| pieces(entry)).collect()
    }

    #[test]
    fn spans_come_in_order_whatever_the_room_and_the_readers() {
        let checkpoint = checkpoint();
        for (piece, most, readers) in
            [(1000, 500, 3), (1000, 3000, 1), (50_000, 1 << 20, 4), (7000, 20_000, 2)]
        {
            let spans = spans(&checkpoint, piece);
            let ahead = Ahead::new(&checkpoint, spans.clone(), most);
            std::thread::scope(|scope| {
                for _ in 0..readers {
                    scope.spawn(|| ahead.read());
                }
                let _closing = ahead.closing();
                for span in &spans {
                    let bytes = ahead.next(span).unwrap();
                    let mut expected = vec![0; span.bytes as usize];
                    checkpoint.read_range(&span.entry, span.start, &mut expected).unwrap();
                    assert_eq!(bytes, expected);
                    let held = ahead.lock().held;
                    assert!(held <= most.max(piece), "{held} bytes of {most}");
                    ahead.give_back(bytes);
                }
                assert_eq!(ahead.lock().held, 0);
            });
        }
    }

    #[test]
    fn readers_end_when_nobody_wants_more() {
        let checkpoint = checkpoint();
        let spans = spans(&checkpoint, 1000);
        let ahead = Ahead::new(&checkpoint, spans.clone(), 4000);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| ahead.read());
            }
            let _closing = ahead.closing();
            ahead.next(&spans[0]).unwrap();
        });
        assert!(ahead.lock().begun < spans.len());
    }

    #[test]
    fn what_cannot_be_read_comes_as_an_error_in_its_turn() {
        let checkpoint = checkpoint();
        let mut spans = spans(&checkpoint, 1000);
        spans.truncate(3);
        spans[1].start = spans[1].entry.bytes;
        let ahead = Ahead::new(&checkpoint, spans.clone(), 4000);
        ahead.read();
        assert!(
            ahead.next(&spans[0]).is_ok() && ahead.next(&spans[1]).is_err() && ahead.next(&spans[2]).is_ok()
        );
    }

    #[test]
    fn buffers_are_bounded() {
        let checkpoint = checkpoint();
        let entry = checkpoint.under("").next().unwrap().1.clone();
        let span = |bytes| Span { entry: entry.clone(), start: 0, bytes };
        assert_eq!(buffers(&[span(10), span(20)]), 30);
        assert_eq!(buffers(&vec![span(8 << 20); 20]), AHEAD_BYTES);
        assert_eq!(buffers(&[span(10), span(2 * AHEAD_BYTES)]), 2 * AHEAD_BYTES);
    }
}
