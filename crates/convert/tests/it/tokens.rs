//! A container computes what its source computes, to the bit: whole and thin, streamed and resident, in every packing.
use crate::support::{converted, family, open, original};
use cpu::Cpu;
use engine::plan::Request;
use engine::{Engine, Limits, Streaming, plan};
use memory::CacheSize;
use models::{Dense, Input, LoadOptions, Logits, Part};
use std::path::Path;
use std::sync::Arc;

const PROMPT: [u32; 24] =
    [5, 900, 17, 3000, 44, 45, 46, 2, 1999, 812, 13, 77, 1, 4000, 23, 9, 8, 7, 600, 50, 31, 2048, 99, 3];

/// Logits of every position, and bytes of the identity of its states.
fn logits(directory: &Path, dense: Option<Dense>, cache: CacheSize) -> Vec<u32> {
    let checkpoint = open(directory);
    let family = family(&checkpoint);
    let request = Request {
        options: LoadOptions::default(),
        dense,
        context: Some(64),
        sequences: 1,
        chunk: Some(32),
        expert_cache: Some(cache),
        copies: 1,
    };
    let limits = Limits { total: 8 << 30, available: 8 << 30 };
    let plan = plan(&checkpoint, &family, &request, limits).unwrap();
    let reader = Arc::new(checkpoint.files());
    let device = Box::new(Cpu::new(2).unwrap());
    let mut engine =
        Engine::load(&checkpoint, &family, plan, device, Streaming::new(reader, 2), &mut |_| {}).unwrap();
    let mut state = engine.create_state().unwrap();
    let part = Part {
        input: Input::Ids(&PROMPT),
        position: 0,
        state: &mut state,
        logits: Logits::All,
        taps: &[],
        cancel: None,
    };
    let output = engine.step(&mut [part]).unwrap().remove(0).unwrap();
    output.logits.iter().map(|logit| logit.to_bits()).collect()
}

#[test]
fn containers_give_the_bits_of_their_source() {
    for dense in Dense::ALL {
        for thin in [false, true] {
            if thin && dense == Dense::Bf16 {
                continue;
            }
            let (_folder, place) = converted(dense, thin);
            for cache in [CacheSize::All, CacheSize::Slots(9)] {
                let expected = logits(&original(), Some(dense), cache);
                assert_eq!(expected.len(), PROMPT.len() * 4096);
                assert_eq!(logits(&place, Some(dense), cache), expected, "{dense:?} thin {thin}");
                if dense != Dense::Bf16 {
                    // Without being told, what is there is taken.
                    assert_eq!(logits(&place, None, cache), expected, "{dense:?} thin {thin}");
                }
            }
        }
    }
    // From a container whose weights are as stored every packing can be had.
    let (_folder, place) = converted(Dense::Bf16, false);
    let (found, expected) = (
        logits(&place, Some(Dense::Int4), CacheSize::All),
        logits(&original(), Some(Dense::Int4), CacheSize::All),
    );
    assert_eq!(found, expected);
}

#[test]
fn a_container_has_the_identity_of_its_source() {
    let source = open(&original());
    let expected = family(&source).identity(&source).unwrap();
    for thin in [false, true] {
        let (_folder, place) = converted(Dense::Int8, thin);
        let checkpoint = open(&place);
        assert_eq!(family(&checkpoint).identity(&checkpoint).unwrap(), expected);
    }
}

#[test]
fn another_packing_than_the_containers_is_refused_with_the_command() {
    let (_folder, place) = converted(Dense::Int4, false);
    let checkpoint = open(&place);
    for dense in [Dense::Bf16, Dense::Int8] {
        let request = Request { dense: Some(dense), ..Request::default() };
        let limits = Limits { total: 8 << 30, available: 8 << 30 };
        let error = plan(&checkpoint, &family(&checkpoint), &request, limits).unwrap_err().to_string();
        assert!(error.contains("packed to int4"), "{error}");
        assert!(error.contains(&format!("colibri convert SRC DST --dense {}", dense.name())), "{error}");
    }
}
