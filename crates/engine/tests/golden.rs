//! The tiny model against the outputs of an independent implementation.
mod common;

use common::{Golden, Kind, data, distance, engine, request};
use engine::{Engine, Finish, Sampling, Session, Task, generate, sampler::argmax};
use models::kimi_k3::KimiK3Config;
use models::{Logits, Output, StateField, Tap};
use ops::Activations;
use serde_json::Value;
use std::ops::ControlFlow;

const PROMPTS: [&str; 4] = ["story", "chat_plain", "chat_think", "mixed"];
const LAYERS: u32 = 9;

fn golden_json() -> Value {
    serde_json::from_slice(&std::fs::read(data("k3-tiny/golden/golden.json")).unwrap()).unwrap()
}

fn numbers(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

/// All logits and taps of a prompt, in chunks of `chunk`.
fn run(engine: &mut Engine, session: &mut Session, ids: &[u32], chunk: usize) -> Output {
    let layers: Vec<u32> = (0..LAYERS).collect();
    let mut all = Output {
        logits: Vec::new(),
        taps: layers.iter().map(|&l| Tap { layer: l, ..Tap::default() }).collect(),
    };
    for ids in ids.chunks(chunk) {
        let mut part = session.part(ids, Logits::All, None);
        part.taps = &layers;
        let output = engine.step(&mut [part]).unwrap().pop().unwrap().unwrap();
        session.fed(ids);
        all.logits.extend(output.logits);
        for (all, tap) in all.taps.iter_mut().zip(output.taps) {
            all.attention_input.extend(tap.attention_input);
            all.attention_output.extend(tap.attention_output);
            all.mlp_input.extend(tap.mlp_input);
            all.mlp_output.extend(tap.mlp_output);
            all.hidden.extend(tap.hidden);
            all.picks.extend(tap.picks);
            all.weights.extend(tap.weights);
        }
    }
    all
}

fn rows(values: &[f32], positions: &[u32], width: usize) -> Vec<f32> {
    positions.iter().flat_map(|&p| &values[p as usize * width..][..width]).copied().collect()
}

fn check_layers(golden: &Golden, output: &Output) {
    let positions = golden.ids("positions");
    for tap in &output.taps {
        for (what, values) in [
            ("attention_input", &tap.attention_input),
            ("attention_output", &tap.attention_output),
            ("mlp_input", &tap.mlp_input),
            ("mlp_output", &tap.mlp_output),
            ("hidden", &tap.hidden),
        ] {
            let name = format!("layer{}.{what}", tap.layer);
            let error = distance(&rows(values, &positions, 192), &golden.floats(&name));
            assert!(error <= 1e-5, "{name}: {error:e}");
        }
    }
}

fn check_routers(golden: &Golden, output: &Output) {
    let (ids, weights) = (golden.ids("router_ids"), golden.floats("router_weights"));
    let moe: Vec<&Tap> = output.taps[1..].iter().collect();
    let per_position = moe.len() * 4;
    for position in 0..ids.len() / per_position {
        for (i, tap) in moe.iter().enumerate() {
            let at = position * per_position + i * 4;
            assert_eq!(
                tap.picks[position * 4..][..4],
                ids[at..at + 4],
                "layer {} position {position}",
                tap.layer
            );
            let error = distance(&tap.weights[position * 4..][..4], &weights[at..at + 4]);
            assert!(error <= 1e-5, "router weights of layer {} at {position}: {error:e}", tap.layer);
        }
    }
}

fn check_state(golden: &Golden, engine: &mut Engine, session: &Session) {
    let fields = engine.model().state_fields();
    let (pool, device) = engine.states();
    let mut read = |t: ops::Tensor| {
        let mut values = vec![0f32; t.elements() as usize];
        let ticket = device.read_later(t.buffer, t.offset * 4, t.elements() * 4).unwrap();
        device.take(ticket, bytemuck::cast_slice_mut(&mut values)).unwrap();
        values
    };
    let mut latents = Vec::new();
    for (layer, field) in fields.iter().enumerate() {
        match *field {
            StateField::Delta { state, windows } => {
                let got = read(pool.fixed_field(session.state(), state));
                let error = distance(&got, &golden.floats(&format!("kda_state.layer{layer}")));
                assert!(error <= 1e-5, "kda_state of layer {layer}: {error:e}");
                let got = windows.map(|w| read(pool.fixed_field(session.state(), w))).concat();
                let error = distance(&got, &golden.floats(&format!("kda_conv.layer{layer}")));
                assert!(error <= 1e-5, "kda_conv of layer {layer}: {error:e}");
            }
            StateField::Latent(index) => latents.push((layer, index)),
        }
    }
    for (layer, index) in latents {
        let cached = pool.latent_rows(device, session.state(), index).unwrap();
        for (what, columns) in [("mla_latent", 0..64), ("mla_krope", 64..80)] {
            let got: Vec<f32> =
                cached.chunks_exact(80).flat_map(|row| &row[columns.clone()]).copied().collect();
            let error = distance(&got, &golden.floats(&format!("{what}.layer{layer}")));
            assert!(error <= 1e-5, "{what} of layer {layer}: {error:e}");
        }
    }
}

#[test]
fn exact_equals_the_goldens() {
    for kind in Kind::ALL {
        exact_equals_the_goldens_on(kind);
    }
}

fn exact_equals_the_goldens_on(kind: Kind) {
    let mut engine = engine(&request(Activations::Exact), kind.device(2));
    for name in PROMPTS {
        let golden = Golden::open(name);
        let mut session = Session::new(&mut engine).unwrap();
        let output = run(&mut engine, &mut session, &golden.ids("ids"), 32);
        check_layers(&golden, &output);
        check_routers(&golden, &output);
        let last = &output.logits[output.logits.len() - 4096..];
        let error = distance(last, &golden.floats("logits_last"));
        assert!(error <= 1e-5, "{name}: last logits {error:e}");
        if golden.has("logits") {
            for (p, (got, want)) in
                output.logits.chunks(4096).zip(golden.floats("logits").chunks(4096)).enumerate()
            {
                let error = distance(got, want);
                assert!(error <= 1e-5, "{name}: logits at {p}: {error:e}");
            }
            check_state(&golden, &mut engine, &session);
        }
        session.close(&mut engine).unwrap();
    }
}

#[test]
fn greedy_ids_equal_the_goldens() {
    for kind in Kind::ALL {
        greedy_ids_equal_the_goldens_on(kind);
    }
}

fn greedy_ids_equal_the_goldens_on(kind: Kind) {
    let mut engine = engine(&request(Activations::Exact), kind.device(2));
    for prompt in golden_json()["prompts"].as_array().unwrap() {
        let ids = numbers(&prompt["ids"]);
        let mut session = Session::new(&mut engine).unwrap();
        let mut sampler = engine.sampler(Sampling::greedy()).unwrap();
        let task = Task { prompt: &ids, max_tokens: 32, stop: &[], cancel: None };
        let go_on = &mut |_| ControlFlow::Continue(());
        let answer = generate(&mut engine, &mut session, &task, &mut sampler, go_on).unwrap();
        assert_eq!((answer.ids, answer.finish), (numbers(&prompt["greedy_ids"]), Finish::Length));
        session.close(&mut engine).unwrap();
    }
}

#[test]
fn int15_stays_within_its_limits() {
    for kind in Kind::ALL {
        int15_stays_within_its_limits_on(kind);
    }
}

fn int15_stays_within_its_limits_on(kind: Kind) {
    let mut engine = engine(&request(Activations::Int15), kind.device(2));
    for name in ["story", "chat_think"] {
        let golden = Golden::open(name);
        let mut session = Session::new(&mut engine).unwrap();
        let output = run(&mut engine, &mut session, &golden.ids("ids"), 32);
        for (p, (got, want)) in
            output.logits.chunks(4096).zip(golden.floats("logits").chunks(4096)).enumerate()
        {
            let error = distance(got, want);
            assert!(error <= 5e-4, "{name}: logits at {p}: {error:e}");
            let mut sorted = want.to_vec();
            sorted.sort_by(f32::total_cmp);
            if sorted[4095] - sorted[4094] > 0.01 {
                assert_eq!(argmax(got), argmax(want), "{name}: argmax at {p}");
            }
        }
        session.close(&mut engine).unwrap();
    }
}

#[test]
fn the_config_is_read_whole() {
    let config = KimiK3Config::read(common::tiny().config()).unwrap();
    assert_eq!((config.width, config.vocabulary, config.experts, config.ranks), (192, 4096, 32, 4));
    assert_eq!(config.delta_layers, [true, true, true, false, true, true, true, false, false]);
}
