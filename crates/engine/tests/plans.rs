//! The plan of memory: every item, what is cut and what is refused, and that a plan can be kept.
mod common;

use common::{Setup, alone, data, some_ids, tiny};
use engine::plan::{CHUNKS, NoFit, Request};
use engine::{Limits, Plan, PlanError, Streaming, plan, show_bytes};
use memory::CacheSize;
use models::{Dense, Family, LoadOptions};
use ops::Oracle;
use store::Checkpoint;

const MIB: u64 = 1 << 20;
/// One expert of the tiny model: three matrices of 64 x 96 in 4 bits with one scale byte for 32, in a slot of 64 KiB.
const PAYLOAD: u64 = 3 * (64 * 96 / 2 + 64 * 96 / 32);
const SLOT: u64 = 64 << 10;
const EXPERTS: u32 = 8 * 32;

fn request() -> Request {
    Request {
        options: LoadOptions::default(),
        dense: None,
        context: None,
        sequences: 2,
        chunk: Some(16),
        expert_cache: None,
        copies: 1,
    }
}

/// Limits of which just `usable` bytes may be used.
fn usable(usable: u64) -> Limits {
    let total = 4 << 30;
    let limits = Limits { total, available: 0 };
    Limits { total, available: usable + limits.reserve() }
}

fn planned(checkpoint: &Checkpoint, request: &Request, limits: Limits) -> Result<Plan, PlanError> {
    let family = Family::recognise(checkpoint).unwrap();
    plan(checkpoint, &family, request, limits)
}

fn made(request: &Request, limits: Limits) -> Plan {
    planned(&tiny(), request, limits).unwrap()
}

fn refused(request: &Request, limits: Limits) -> PlanError {
    planned(&tiny(), request, limits).err().unwrap()
}

fn does_not_fit(request: &Request, limits: Limits) -> NoFit {
    match refused(request, limits) {
        PlanError::DoesNotFit(sum) => sum,
        other => panic!("{other:?}"),
    }
}

/// The bytes of the item that begins so.
fn item(plan: &Plan, what: &str) -> u64 {
    let found: Vec<u64> = plan.items.iter().filter(|i| i.0.starts_with(what)).map(|i| i.1).collect();
    assert_eq!(found.len(), 1, "{what} in {:#?}", plan.items);
    found[0]
}

/// Bytes of the tiny model's tensors that are neither experts nor the embedding table, from the file headers.
fn dense_bytes() -> u64 {
    let checkpoint = tiny();
    let dense = |name: &str| {
        name.starts_with("language_model.") && !name.contains(".experts.") && !name.contains("embed")
    };
    checkpoint.under("").filter(|(name, _)| dense(name)).map(|(_, entry)| entry.bytes).sum()
}

/// Of the rows that may be chosen, the most whose results take no more than 2 % of what is usable, and no more than
/// the context has.
#[test]
fn rows_of_a_step_that_nobody_asked_for_follow_the_memory() {
    let results = |chunk: u32| {
        let plan = made(&Request { chunk: Some(chunk), ..request() }, usable(1 << 30));
        item(&plan, "intermediate results") + item(&plan, "copies while an op runs")
    };
    let chosen = |bytes: u64| made(&Request { chunk: None, ..request() }, usable(bytes)).chunk;
    for pair in CHUNKS.windows(2) {
        let [more, fewer] = [pair[0], pair[1]];
        assert_eq!(chosen(results(more) * 50), more);
        assert_eq!(chosen(results(more) * 50 - 1), fewer);
    }
    // Rows are the last that memory is spent on: the packing is that of the fewest rows.
    let least = Request { chunk: Some(32), dense: Some(Dense::Bf16), ..request() };
    let bytes = made(&least, usable(1 << 30)).bytes() - u64::from(EXPERTS - 8) * SLOT;
    let tight = made(&Request { chunk: None, ..request() }, usable(bytes));
    assert_eq!((tight.options.dense, tight.chunk), (Dense::Bf16, 32));
    let short = Request { chunk: None, context: Some(40), ..request() };
    assert_eq!(made(&short, usable(1 << 30)).chunk, 40);
}

#[test]
fn every_item_is_what_it_says() {
    let request = Request { context: Some(100), dense: Some(Dense::Bf16), ..request() };
    let plan =
        made(&Request { expert_cache: Some(CacheSize::Slots(10)), ..request.clone() }, usable(1 << 30));
    // Norms are widened to f32, pairs of residual norms and projections become one vector, A_log loses its padding.
    let stored = dense_bytes();
    assert!(
        item(&plan, "dense weights").abs_diff(stored) < stored / 100,
        "{} of {stored}",
        item(&plan, "dense")
    );
    assert_eq!(item(&plan, "dense weights"), plan.dense.bytes());
    // Six KDA layers: a state of 8 heads of 32 x 32, and three windows of 256 channels and 3 inputs.
    assert_eq!(item(&plan, "recurrent state, 2 x "), 2 * 6 * (8 * 32 * 32 + 3 * 256 * 3) * 4);
    // Three MLA layers of 64 + 16 numbers a position; each sequence has two blocks of 64.
    assert_eq!(item(&plan, "latent cache of 256 positions"), 3 * 256 * 80 * 4);
    assert_eq!(item(&plan, "tables"), 2 * 2 * 4 + 32 * 8);
    assert_eq!(item(&plan, "intermediate results of 16 rows"), plan.arena * 4);
    // All of so small a model may be read ahead, kv_b of the three MLA layers, [8 * (32 + 32), 64] in bf16, twice; its
    // halves are rearranged, one at a time.
    let (kv_b, buffers) = (2 * 8 * 64 * 64, plan.dense.buffers);
    assert_eq!((item(&plan, "buffers while loading"), buffers), (buffers, stored + 3 * kv_b + kv_b / 2));
    assert_eq!(item(&plan, "names and places of 1782 tensors"), 1782 * 250);
    assert_eq!(item(&plan, "routed experts, 10 slots"), 10 * SLOT);
    assert_eq!((plan.items.len(), plan.notes.len()), (9, 0), "{:?}", plan.notes);
    assert_eq!(plan.bytes(), plan.items.iter().map(|i| i.1).sum::<u64>());
    assert!(!plan.all_resident());

    let all = made(&Request { expert_cache: Some(CacheSize::All), ..request.clone() }, usable(1 << 30));
    assert_eq!((all.experts, item(&all, "routed experts, 256 slots")), (EXPERTS, u64::from(EXPERTS) * SLOT));
    assert_eq!(item(&all, "tables"), 2 * 2 * 4 + 8 * 32 * 8);
    assert!(all.all_resident());

    // A device with two copies has everything twice but the slots, which it shares.
    let twice = made(&Request { copies: 2, expert_cache: Some(CacheSize::All), ..request }, usable(1 << 30));
    for what in ["dense weights", "recurrent state", "latent cache", "tables", "intermediate results"] {
        assert_eq!(item(&twice, what), 2 * item(&all, what), "{what}");
    }
    assert_eq!(item(&twice, "routed experts"), item(&all, "routed experts"));
}

#[test]
fn the_most_exact_packing_that_fits_is_chosen() {
    let cache = Some(CacheSize::Slots(4));
    let request = Request { context: Some(64), expert_cache: cache, ..request() };
    let least = |dense| made(&Request { dense: Some(dense), ..request.clone() }, usable(1 << 30));
    // The cache that was asked for comes first: it is cut only where no packing leaves room for it.
    let needs = Dense::ALL.map(|dense| least(dense).bytes());
    assert!(needs[0] > needs[1] && needs[1] > needs[2], "{needs:?}");
    for (dense, need) in Dense::ALL.into_iter().zip(needs) {
        let plan = made(&request, usable(need));
        assert_eq!((plan.options.dense, plan.bytes()), (dense, need));
        let note = match dense {
            Dense::Bf16 => "dense weights: bf16, as stored".to_owned(),
            _ => format!("dense weights: packed to {}, since memory is short", dense.name()),
        };
        assert!(plan.notes[0].starts_with(&note), "{:?}", plan.notes);
    }
    let cut = made(&request, usable(needs[2] - 1));
    assert_eq!((cut.options.dense, cut.slab.unwrap().slots()), (Dense::Int4, 3));
    let needs = needs.map(|need| need - 3 * SLOT);
    let sum = does_not_fit(&request, usable(needs[2] - 1));
    assert_eq!(sum.limits.usable(), needs[2] - 1);
    assert_eq!(sum.choices, [0, 1, 2].map(|i| (Dense::ALL[i], needs[i])));
    // One that is asked for is never replaced.
    let fixed = Request { dense: Some(Dense::Bf16), ..request.clone() };
    let sum = does_not_fit(&fixed, usable(needs[1]));
    assert_eq!(sum.items.iter().map(|i| i.1).sum::<u64>(), needs[0]);
    let text = sum.to_string();
    for line in [
        "the model needs",
        "dense weights",
        "--dense bf16",
        "(does not fit)",
        "--dense int8",
        "(would fit)",
        "--dense int4",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    assert!(text.contains(&show_bytes(needs[0])), "{text}");
    // What is advised keeps what was asked for, and would do.
    let advice = does_not_fit(&request, usable(needs[2] - 1)).fits.unwrap();
    assert!(advice.starts_with("--dense int4 --chunk 1 --expert-cache 1x ("), "{advice}");
    let small = Request {
        dense: Some(Dense::Int4),
        chunk: Some(1),
        expert_cache: Some(CacheSize::Slots(1)),
        context: Some(64),
        sequences: 2,
        ..fixed.clone()
    };
    assert!(made(&small, usable(needs[2] - 1)).bytes() < needs[2]);
    assert_eq!(does_not_fit(&fixed, usable(MIB)).fits, None);
}

#[test]
fn a_cache_is_given_as_asked_or_cut_with_a_note() {
    let request = Request { context: Some(64), dense: Some(Dense::Int8), ..request() };
    let with = |cache| Request { expert_cache: Some(cache), ..request.clone() };
    let slots = |plan: &Plan| plan.slab.unwrap().slots();
    let roomy = usable(1 << 30);
    for (cache, expected) in [
        (CacheSize::Slots(1), 1),
        (CacheSize::Slots(40), 40),
        (CacheSize::Slots(4000), EXPERTS),
        (CacheSize::All, EXPERTS),
        (CacheSize::Bytes(5 * SLOT + 1), 5),
        // Of the whole memory of 4 GiB.
        (CacheSize::PercentOfMemory(0.1), ((4u64 << 30) / 1000 / SLOT) as u32),
        (CacheSize::PercentOfMemory(100.0), EXPERTS),
    ] {
        let plan = made(&with(cache), roomy);
        assert_eq!((slots(&plan), plan.notes.len()), (expected, 0), "{cache}: {:?}", plan.notes);
    }
    let rest = made(&with(CacheSize::Slots(1)), roomy).bytes() - SLOT;
    for (room, expected) in [(SLOT, 1), (9 * SLOT + 5, 9), (255 * SLOT, 255)] {
        let limits = usable(rest + room);
        for cache in [CacheSize::All, CacheSize::Bytes(1 << 32), CacheSize::PercentOfMemory(90.0)] {
            let plan = made(&with(cache), limits);
            assert_eq!(slots(&plan), expected, "{cache}");
            assert!(plan.bytes() <= rest + room);
            let note = plan.notes.iter().find(|note| note.starts_with("--expert-cache cut")).unwrap();
            for part in [
                format!("from {EXPERTS} slots ({})", show_bytes(u64::from(EXPERTS) * SLOT)),
                format!("to {expected} ({})", show_bytes(u64::from(expected) * SLOT)),
                format!("{} are available", show_bytes(limits.available)),
                format!("{} stay in reserve", show_bytes(limits.reserve())),
                format!("takes {} (", show_bytes(rest)),
                format!("dense weights {}", show_bytes(plan.dense.bytes())),
                format!("; --expert-cache {expected}x would do"),
            ] {
                assert!(note.contains(&part), "{part} in {note}");
            }
        }
    }
    // One slot is the least that works.
    does_not_fit(&with(CacheSize::All), usable(rest + SLOT - 1));
    assert_eq!(slots(&made(&with(CacheSize::Bytes(SLOT - 1)), roomy)), 1);
    assert_eq!(PAYLOAD.next_multiple_of(SLOT), SLOT);
}

/// Without a word about it the cache takes all that is left, but a plan needs twice the experts of a token.
#[test]
fn the_cache_takes_what_is_left() {
    let request = Request { context: Some(64), dense: Some(Dense::Int8), ..request() };
    let all = made(&request, usable(1 << 30));
    assert_eq!(all.slab.unwrap().slots(), EXPERTS);
    // The tables know all experts then, and otherwise those of a layer.
    let tables = u64::from(EXPERTS - 32) * 8;
    let rest = all.bytes() - u64::from(EXPERTS) * SLOT - tables;
    let least = made(&request, usable(rest + 8 * SLOT));
    assert_eq!((least.slab.unwrap().slots(), least.bytes()), (8, rest + 8 * SLOT));
    assert_eq!(least.choices[1], (Dense::Int8, least.bytes()));
    does_not_fit(&request, usable(rest + 8 * SLOT - 1));
    for (usable_bytes, slots) in [(all.bytes(), EXPERTS), (all.bytes() - 1, EXPERTS - 1)] {
        let plan = made(&request, usable(usable_bytes));
        assert_eq!(plan.slab.unwrap().slots(), slots);
        assert!(plan.bytes() <= usable_bytes && plan.is_streamed() == (slots < EXPERTS));
    }
}

#[test]
fn the_context_is_chosen_or_refused() {
    let with = |context| Request {
        context,
        expert_cache: Some(CacheSize::Slots(1)),
        dense: Some(Dense::Int8),
        ..request()
    };
    let plan = made(&with(None), usable(1 << 30));
    assert_eq!(plan.context, 4096);
    assert!(plan.notes.contains(&"context: 4096 positions".to_owned()), "{:?}", plan.notes);
    // It is halved until it fits, and the least is 256.
    let need = |context| made(&with(Some(context)), usable(1 << 30)).bytes();
    for context in [2048, 1024, 256] {
        assert_eq!(made(&with(None), usable(need(context))).context, context);
        assert_eq!(made(&with(None), usable(need(context * 2) - 1)).context, context);
    }
    does_not_fit(&with(None), usable(need(256) - 1));
    // One that is asked for is not halved.
    does_not_fit(&with(Some(4096)), usable(need(2048)));
    assert_eq!(made(&with(Some(4096)), usable(1 << 30)).context, 4096);
}

#[test]
fn settings_outside_their_range_are_named() {
    let base = Request { expert_cache: Some(CacheSize::Slots(1)), ..request() };
    let layers = |n| LoadOptions { layers: Some(n), ..LoadOptions::default() };
    let cases: [(Request, &str); 8] = [
        (Request { context: Some(4097), ..base.clone() }, "--context = 4097; expected 1 to 4096"),
        (Request { context: Some(0), ..base.clone() }, "--context = 0; expected 1 to 4096"),
        (Request { chunk: Some(0), ..base.clone() }, "--chunk = 0; expected 1 to 4096"),
        (Request { chunk: Some(4097), ..base.clone() }, "--chunk = 4097; expected 1 to 4096"),
        (Request { options: layers(0), ..base.clone() }, "--layers = 0; expected 1 to 9"),
        (Request { options: layers(10), ..base.clone() }, "--layers = 10; expected 1 to 9"),
        (Request { sequences: 0, ..base.clone() }, "sequences = 0; expected 1 to 1024"),
        (Request { sequences: 1025, ..base }, "sequences = 1025; expected 1 to 1024"),
    ];
    for (request, named) in cases {
        let error = refused(&request, usable(1 << 30)).to_string();
        assert!(error.contains(named), "{error}");
    }
}

/// A config may allow contexts of which all sequences together have more positions than can be counted.
#[test]
fn positions_of_all_sequences_can_be_counted() {
    let model = tempfile::tempdir().unwrap();
    store::testing::copy_model(&data("k3-tiny"), model.path()).unwrap();
    store::testing::edit_json(&model.path().join("config.json"), |c| {
        c["text_config"]["max_position_embeddings"] = (1 << 30).into();
    })
    .unwrap();
    let checkpoint = Checkpoint::open(&[model.path().to_owned()]).unwrap();
    // Without a latent cache they would cost nothing.
    let options = LoadOptions { layers: Some(1), ..LoadOptions::default() };
    let request = Request { options, context: Some(1 << 30), sequences: 4, ..request() };
    let error = planned(&checkpoint, &request, usable(1 << 30)).err().unwrap().to_string();
    assert!(error.contains("--context = 1073741824 for 4 sequences; expected fewer than 2^32"), "{error}");
    let fewer = Request { sequences: 3, ..request };
    assert_eq!(planned(&checkpoint, &fewer, usable(1 << 30)).unwrap().context, 1 << 30);
}

/// The first layers only: without experts, without a latent cache, with both.
#[test]
fn a_part_of_the_layers_is_planned_and_runs() {
    let ids = some_ids(1, 3);
    let mut seen = Vec::new();
    for layers in [1, 2, 3, 4, 9] {
        let mut setup = Setup::new();
        setup.request.options.layers = Some(layers);
        let request = Request { context: Some(64), ..setup.request.clone() };
        let plan = made(&request, usable(1 << 30));
        assert_eq!(plan.slab.is_some(), layers > 1, "{layers} layers");
        assert_eq!(plan.experts, (layers - 1) * 32);
        let latent_layers = u64::from(layers / 4 + layers / 9);
        assert_eq!(item(&plan, "latent cache"), latent_layers * u64::from(request.sequences) * 64 * 80 * 4);
        assert_eq!(plan.items.iter().any(|i| i.0.starts_with("routed experts")), layers > 1);
        seen.push(alone(&mut setup.load(), &ids));
    }
    seen.dedup();
    assert_eq!(seen.len(), 5, "every layer changes the logits");
    let all = alone(&mut Setup::new().load(), &ids);
    assert!(all == seen[4], "all layers by number are all layers");
}

/// A plan that was cut is kept: the engine loads by it and gives the same numbers.
#[test]
fn a_cut_plan_works() {
    let ids = some_ids(1, 3);
    let expected = alone(&mut Setup::new().load(), &ids);
    let checkpoint = tiny();
    let request = Request {
        context: Some(64),
        dense: Some(Dense::Bf16),
        expert_cache: Some(CacheSize::All),
        ..request()
    };
    let rest = made(&request, usable(1 << 30)).bytes() - u64::from(EXPERTS) * SLOT;
    let cut = made(&request, usable(rest + 3 * SLOT));
    let family = Family::recognise(&checkpoint).unwrap();
    let streaming = Streaming::new(common::readers::plain(&checkpoint), 2);
    let device = Box::new(Oracle::new(1).unwrap());
    let mut heard = Vec::new();
    let mut progress = |p| heard.push(p);
    let mut engine =
        engine::Engine::load(&checkpoint, &family, cut, device, streaming, &mut progress).unwrap();
    assert!(alone(&mut engine, &ids) == expected);
    let dense = engine.plan().dense.bytes();
    assert!(
        matches!(heard.last(), Some(engine::Progress::Dense(done, all)) if *done == dense && *all == dense)
    );
}

#[test]
fn the_reserve_is_kept() {
    let limits = Limits { total: 100 * MIB * 50, available: 300 * MIB };
    assert_eq!(limits.reserve(), (256 + 100) * MIB);
    let error = does_not_fit(&request(), limits);
    assert_eq!(error.limits.usable(), 0);
}

/// A control group may allow less than the machine has, and more of it may be in use than of the machine: what is planned
/// follows the group, and so does a share of the memory.
#[test]
fn a_control_group_is_the_machine() {
    let request = Request { context: Some(64), dense: Some(Dense::Int8), ..request() };
    let group = Limits { total: 512 * MIB, available: 300 * MIB };
    assert_eq!(group.usable(), 300 * MIB - (256 * MIB + 512 * MIB / 50));
    let share = Request { expert_cache: Some(CacheSize::PercentOfMemory(1.0)), ..request.clone() };
    assert_eq!(made(&share, group).slab.unwrap().slots(), (512 * MIB / 100 / SLOT) as u32);
    let large = Request { expert_cache: Some(CacheSize::Bytes(8 << 30)), ..request };
    let (in_group, in_machine) = (made(&large, group), made(&large, usable(8 << 30)));
    assert_eq!(in_machine.slab.unwrap().slots(), EXPERTS);
    assert_eq!(in_group.slab.unwrap().slots(), EXPERTS, "so small a model fits");
    let tight = Limits { available: group.available - group.usable() + in_group.bytes() - SLOT, ..group };
    let cut = made(&large, tight);
    assert!(cut.slab.unwrap().slots() < EXPERTS && cut.bytes() <= tight.usable());
    assert!(
        cut.notes.iter().any(|note| note.contains(&format!("{} are available", show_bytes(tight.available))))
    );
}

/// A number that is too large is refused with the largest that would do, and that does.
#[test]
fn a_refusal_names_the_number_that_would_do() {
    let base = Request {
        context: Some(64),
        dense: Some(Dense::Int4),
        chunk: Some(1),
        sequences: 1,
        expert_cache: Some(CacheSize::Slots(1)),
        ..request()
    };
    let need = |context, chunk| {
        let request = Request { context: Some(context), chunk: Some(chunk), ..base.clone() };
        made(&request, usable(1 << 30)).bytes()
    };
    for (context, chunk, limit, expected) in [
        (4096, 1, need(1024, 1), "--context 1024"),
        (4096, 1, need(1024, 1) - 1, "--context 960"),
        (64, 4096, need(64, 256), "--chunk 256"),
        (64, 4096, need(64, 256) - 1, "--chunk 128"),
    ] {
        let request = Request { context: Some(context), chunk: Some(chunk), ..base.clone() };
        let refusal = does_not_fit(&request, usable(limit));
        assert!(refusal.numbers.contains(&expected.to_owned()), "{:?}, expected {expected}", refusal.numbers);
        assert!(refusal.to_string().contains(&format!("all else as asked this would fit: {expected}")));
        let (flag, number) = expected.split_once(' ').unwrap();
        let number = Some(number.parse().unwrap());
        let less = match flag {
            "--context" => Request { context: number, ..request },
            _ => Request { chunk: number, ..request },
        };
        assert!(made(&less, usable(limit)).bytes() <= limit);
    }
    // Where no number does, none is named.
    let refusal = does_not_fit(&base, usable(MIB));
    assert!(refusal.numbers.is_empty() && refusal.fits.is_none(), "{refusal:?}");
}
