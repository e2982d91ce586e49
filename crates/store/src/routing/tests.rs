//! Traces written, read, cut and damaged.

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use std::sync::{Arc, Mutex};

/// A file in memory that can be looked at while it is written.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn written(head: &RoutingHead, steps: &[RoutingStep]) -> Vec<u8> {
    let file = Shared::default();
    let mut writer = RoutingWriter::new(Box::new(file.clone()), head.clone()).unwrap();
    for step in steps {
        writer.append(step).unwrap();
    }
    assert_eq!(writer.bytes(), file.0.lock().unwrap().len() as u64);
    file.0.lock().unwrap().clone()
}

fn small() -> RoutingHead {
    RoutingHead {
        identity: [7; 32],
        first_layer: 1,
        layers: 3,
        experts_per_layer: 5,
        ranks: 2,
        expert_bytes: 4096,
    }
}

fn some_steps() -> Vec<RoutingStep> {
    let layer = |layer, picks: &[u16]| LayerPicks { layer, picks: picks.to_vec() };
    vec![
        vec![layer(1, &[0, 4, 2, NO_PICK]), layer(2, &[4, 3, 1, 0]), layer(3, &[NO_PICK, NO_PICK])],
        vec![layer(1, &[3, 2])],
        vec![],
    ]
}

fn trace() -> impl Strategy<Value = (RoutingHead, Vec<RoutingStep>)> {
    let heads = (any::<[u8; 32]>(), 0..9_u16, 1..5_u16, 1..1000_u16, any::<u64>());
    let heads = heads.prop_flat_map(|(identity, first_layer, layers, experts_per_layer, expert_bytes)| {
        (1..=experts_per_layer.min(16)).prop_map(move |ranks| RoutingHead {
            identity,
            first_layer,
            layers,
            experts_per_layer,
            ranks,
            expert_bytes,
        })
    });
    heads.prop_flat_map(|head| {
        let (first, experts, ranks) = (head.first_layer, head.experts_per_layer, usize::from(head.ranks));
        let pick = prop_oneof![9 => 0..experts, 1 => Just(NO_PICK)];
        let picks = (0..4_usize).prop_flat_map(move |rows| vec(pick.clone(), rows * ranks));
        let layer =
            (first..first + head.layers, picks).prop_map(|(layer, picks)| LayerPicks { layer, picks });
        let steps = vec(vec(layer, 0..=usize::from(head.layers)), 0..5);
        (Just(head), steps)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn what_is_written_is_read((head, steps) in trace()) {
        let bytes = written(&head, &steps);
        let read = RoutingTrace::parse(&bytes).unwrap();
        prop_assert_eq!((&read.head, &read.steps, read.cut), (&head, &steps, 0));
    }

    #[test]
    fn damaged_bytes_are_refused_or_read_and_never_panic(bytes in vec(any::<u8>(), 0..200), (head, steps) in trace()) {
        let _ = RoutingTrace::parse(&bytes);
        // Behind a good head, and as the body of a record whose hash fits.
        let mut file = written(&head, &steps);
        file.extend(&bytes);
        let _ = RoutingTrace::parse(&file);
        let _ = body::decode(&head, &bytes);
    }

    #[test]
    fn a_damaged_byte_is_never_taken_for_another_pick((head, steps) in trace(), at in any::<prop::sample::Index>(), bit in 0..8_u32) {
        let mut bytes = written(&head, &steps);
        let at = at.index(bytes.len());
        bytes[at] ^= 1_u8 << bit;
        if let Ok(read) = RoutingTrace::parse(&bytes) {
            prop_assert!(read.cut > 0 && steps.starts_with(&read.steps), "byte {}", at);
        }
    }
}

#[test]
fn a_file_cut_anywhere_gives_its_whole_steps() {
    let (head, steps) = (small(), some_steps());
    let bytes = written(&head, &steps);
    let whole: Vec<usize> = (0..=steps.len()).map(|count| written(&head, &steps[..count]).len()).collect();
    for length in 0..=bytes.len() {
        let read = RoutingTrace::parse(&bytes[..length]);
        let Some(count) = whole.iter().rposition(|end| *end <= length) else {
            assert_eq!(read, Err(RoutingError::NoHead { bytes: length as u64 }));
            continue;
        };
        let read = read.unwrap();
        assert_eq!((read.steps.as_slice(), read.cut), (&steps[..count], (length - whole[count]) as u64));
    }
}

#[test]
fn a_last_step_of_bytes_that_never_came_is_left_out() {
    let (head, steps) = (small(), some_steps());
    let mut bytes = written(&head, &steps[..2]);
    let end = bytes.len();
    bytes[end - 2..].fill(0);
    let read = RoutingTrace::parse(&bytes).unwrap();
    assert_eq!((read.steps.as_slice(), read.cut > 0), (&steps[..1], true));
    bytes.extend([0; 8]);
    let error = RoutingTrace::parse(&bytes).unwrap_err().to_string();
    assert!(error.contains("the checksum of a step does not fit at byte"), "{error}");
}

#[test]
fn foreign_and_newer_files_are_named() {
    assert_eq!(RoutingTrace::parse(b"{\"a\": 1}"), Err(RoutingError::Foreign));
    let mut newer = written(&small(), &some_steps());
    newer[8] = 2;
    let error = RoutingTrace::parse(&newer).unwrap_err();
    assert_eq!(error, RoutingError::Version { found: 2 });
    assert!(error.to_string().contains("version 2, but this program reads version 1"), "{error}");
    let mut damaged = written(&small(), &some_steps());
    damaged[46] = 0;
    let error = RoutingTrace::parse(&damaged).unwrap_err().to_string();
    assert!(error.contains("the checksum of its head"), "{error}");
    let none = RoutingHead { ranks: 0, ..small() };
    let error = RoutingTrace::parse(&none.encode()).unwrap_err().to_string();
    assert!(error.contains("3 layers of 5 experts with 0 picks a token cannot be"), "{error}");
}

#[test]
fn picks_of_the_real_model_take_little_room() {
    let head = RoutingHead { layers: 92, experts_per_layer: 896, ranks: 16, ..small() };
    let layer = |layer| LayerPicks { layer, picks: (0..16).map(|rank| rank * 55).collect() };
    let step: RoutingStep = (1..93).map(layer).collect();
    let bytes = written(&head, &[step]).len() - HEAD_BYTES;
    assert!(bytes < 92 * 16 * 2, "{bytes}");
}

/// A file of version 1 as it was written when there was only that version.
#[test]
fn the_first_version_is_read() {
    let read = RoutingTrace::parse(include_bytes!("../../tests/fixtures/routing-1.bin")).unwrap();
    assert_eq!((read.head, read.steps, read.cut), (small(), some_steps(), 0));
    assert_eq!(VERSION, 1, "a new version gets a fixture of its own");
    assert_eq!(written(&small(), &some_steps()), include_bytes!("../../tests/fixtures/routing-1.bin"));
}

/// Two prompts of 3 and 2 rows with a token between them, cut anew. A step that did not come to all layers stays.
#[test]
fn prompts_are_cut_anew_and_tokens_stay() {
    let head = RoutingHead { layers: 2, ranks: 1, ..small() };
    let step = |picks: &[u16]| -> RoutingStep {
        (1..3).map(|layer| LayerPicks { layer, picks: picks.to_vec() }).collect()
    };
    let broken = vec![LayerPicks { layer: 1, picks: vec![0, 1] }];
    let steps = vec![step(&[0, 1]), step(&[2, 3]), step(&[4]), step(&[1, 2]), broken.clone()];
    let trace = RoutingTrace { head, steps, cut: 3 };
    let cut = |rows| trace.in_chunks(rows).steps;
    assert_eq!(cut(8), [step(&[0, 1, 2, 3]), step(&[4]), step(&[1, 2]), broken.clone()]);
    assert_eq!(cut(3), [step(&[0, 1, 2]), step(&[3]), step(&[4]), step(&[1, 2]), broken]);
    assert_eq!(cut(2), trace.steps);
    assert_eq!((trace.in_chunks(1).rows(), trace.in_chunks(1).cut), (trace.rows(), 3));
}
