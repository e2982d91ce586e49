//! What the tests of this crate share: the tiny model, goldens, engines with small plans.
#![allow(dead_code, reason = "each test binary uses its own part")]
use engine::plan::Request;
use engine::{Engine, Limits, Plan, plan};
use memory::CacheSize;
use models::{Dense, Family, LoadOptions};
use ops::{Activations, Device, Oracle};
use safetensors::SafeTensors;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use store::{Checkpoint, Reader};

pub(crate) fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data").join(path)
}

pub(crate) fn tiny() -> Checkpoint {
    Checkpoint::open(&[data("k3-tiny")]).unwrap()
}

/// What most tests ask for: everything exact and small.
pub(crate) fn request(activations: Activations) -> Request {
    Request {
        options: LoadOptions { activations, ..LoadOptions::default() },
        dense: Some(Dense::Bf16),
        context: Some(256),
        sequences: 4,
        chunk: 32,
        expert_cache: Some(CacheSize::All),
        copies: 1,
    }
}

pub(crate) fn make_plan(checkpoint: &Checkpoint, request: &Request) -> Plan {
    let family = Family::recognise(checkpoint).unwrap();
    let limits = Limits { total: 8 << 30, available: 8 << 30 };
    plan(checkpoint, &family, request, limits).unwrap()
}

pub(crate) fn engine_with(
    checkpoint: &Checkpoint,
    request: &Request,
    device: Box<dyn Device>,
    reader: Arc<dyn Reader>,
    readers: u32,
) -> Engine {
    let family = Family::recognise(checkpoint).unwrap();
    let plan = make_plan(checkpoint, request);
    Engine::load(checkpoint, &family, plan, device, (reader, readers), &mut |_| {}).unwrap()
}

pub(crate) fn engine(request: &Request) -> Engine {
    let checkpoint = tiny();
    let reader = Arc::new(checkpoint.files());
    engine_with(&checkpoint, request, Box::new(Oracle::new(1).unwrap()), reader, 2)
}

/// The tensors of a golden file by name.
pub(crate) struct Golden(Vec<u8>);

impl Golden {
    pub(crate) fn open(name: &str) -> Self {
        Golden(std::fs::read(data(&format!("k3-tiny/golden/{name}.safetensors"))).unwrap())
    }

    pub(crate) fn floats(&self, name: &str) -> Vec<f32> {
        self.words(name).into_iter().map(f32::from_bits).collect()
    }

    pub(crate) fn ids(&self, name: &str) -> Vec<u32> {
        self.words(name)
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        SafeTensors::deserialize(&self.0).unwrap().tensor(name).is_ok()
    }

    fn words(&self, name: &str) -> Vec<u32> {
        let tensors = SafeTensors::deserialize(&self.0).unwrap();
        let tensor = tensors.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        tensor.data().chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    }
}

/// `|a - b| / |b|` in L2.
pub(crate) fn distance(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let square = |x: f64| x * x;
    let d: f64 = a.iter().zip(b).map(|(a, b)| square(f64::from(*a) - f64::from(*b))).sum();
    let n: f64 = b.iter().map(|b| square(f64::from(*b))).sum();
    (d / n).sqrt()
}
