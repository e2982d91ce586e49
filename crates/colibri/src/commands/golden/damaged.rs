//! Golden results, damaged by the thousand from a fixed seed: nothing panics, and what cannot be used is refused with the
//! name of its file. With `COLIBRI_TEST_FUZZ_SECONDS` it goes on for that long.
use super::{compare_all, load};
use crate::args::{Arguments, Command, VerifyArgs};
use crate::comparison::Comparison;
use crate::errors::Failure;
use crate::seeds_of_tests::{Random, seeds};
use clap::Parser as _;
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

/// A tensor to spoil.
#[derive(Clone)]
struct Loose {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

/// The golden results of one prompt of the tiny model, in memory, with two greedy ids.
#[derive(Clone)]
struct Sound {
    listing: Value,
    tensors: Vec<Loose>,
}

impl Sound {
    fn new() -> Self {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/k3-tiny/golden");
        let mut listing: Value =
            serde_json::from_slice(&fs::read(golden.join("golden.json")).unwrap()).unwrap();
        let prompts = listing["prompts"].as_array_mut().unwrap();
        prompts.retain(|prompt| prompt["name"] == "story");
        for key in ["greedy_ids", "greedy_top5"] {
            prompts[0][key].as_array_mut().unwrap().truncate(2);
        }
        let file = fs::read(golden.join("story.safetensors")).unwrap();
        let loose = |(name, view): (String, TensorView<'_>)| Loose {
            name,
            dtype: view.dtype(),
            shape: view.shape().to_vec(),
            bytes: view.data().to_vec(),
        };
        let mut tensors: Vec<Loose> =
            SafeTensors::deserialize(&file).unwrap().tensors().into_iter().map(loose).collect();
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        Sound { listing, tensors }
    }

    fn write(&self, folder: &Path) {
        fs::write(folder.join("golden.json"), self.listing.to_string()).unwrap();
        let views = self.tensors.iter().map(|tensor| {
            let view = TensorView::new(tensor.dtype, tensor.shape.clone(), &tensor.bytes).unwrap();
            (tensor.name.as_str(), view)
        });
        let file = serialize(views, None).unwrap();
        fs::write(folder.join("story.safetensors"), file).unwrap();
    }
}

/// Another tensor in place of one, still a sound file.
fn spoil_tensor(tensors: &mut Vec<Loose>, random: &mut Random) {
    // Half of the time one of those that are read first.
    let early = ["ids", "positions", "router_ids", "logits", "logits_last", "router_gap", "router_weights"];
    let early: Vec<usize> =
        (0..tensors.len()).filter(|&i| early.contains(&tensors[i].name.as_str())).collect();
    let index = if random.below(2) == 0 && !early.is_empty() {
        early[random.below(early.len())]
    } else {
        random.below(tensors.len())
    };
    let tensor = &mut tensors[index];
    let numbers = tensor.bytes.len() / 4;
    match random.below(9) {
        0 => drop(tensors.remove(index)),
        1 => (tensor.shape, tensor.bytes) = (vec![0], Vec::new()),
        2 => {
            // Such as [rows, 0].
            let place = random.below(tensor.shape.len());
            tensor.shape[place] = 0;
            tensor.bytes.clear();
        }
        3 => tensor.shape.reverse(),
        4 => tensor.shape = vec![numbers],
        5 => {
            tensor.dtype = [Dtype::F32, Dtype::I32, Dtype::U32][random.below(3)];
        }
        6 => {
            let (dtype, shape) = [(Dtype::U8, numbers * 4), (Dtype::F64, numbers / 2)][random.below(2)];
            tensor.dtype = dtype;
            tensor.shape = vec![shape];
            tensor.bytes.truncate(shape * if dtype == Dtype::U8 { 1 } else { 8 });
        }
        7 => {
            let odd = [u32::MAX, 0x7fc0_0000, 0x7f80_0000, 0x8000_0000, 4096, 32][random.below(6)];
            let place = random.below(numbers) * 4;
            if let Some(word) = tensor.bytes.get_mut(place..place + 4) {
                word.copy_from_slice(&odd.to_le_bytes());
            }
        }
        // One row more or fewer.
        _ => tensor.shape[0] = if random.below(2) == 0 { tensor.shape[0] + 1 } else { tensor.shape[0] / 2 },
    }
    if let Some(tensor) = tensors.get_mut(index) {
        // Whatever became of it, it is as long as it says.
        let count: usize = tensor.shape.iter().product();
        tensor.bytes.resize(count * tensor.dtype.bitsize() / 8, 0);
    }
}

/// Another value in place of some value.
fn spoil_listing(value: &mut Value, random: &mut Random) {
    let deeper = random.below(8) > 0;
    match value {
        Value::Array(list) if deeper && !list.is_empty() => {
            let place = random.below(list.len());
            if random.below(6) == 0 {
                list.remove(place);
            } else {
                spoil_listing(&mut list[place], random);
            }
        }
        Value::Object(object) if deeper && !object.is_empty() => {
            let read = ["prompts", "name", "ids", "greedy_ids", "greedy_top5", "file"];
            let keys: Vec<String> =
                object.keys().filter(|key| read.contains(&key.as_str())).cloned().collect();
            let Some(key) = keys.get(random.below(keys.len())) else { return };
            if random.below(10) == 0 {
                object.remove(key);
            } else {
                spoil_listing(&mut object[key], random);
            }
        }
        _ => {
            let odd = [
                json!(null),
                json!(-1),
                json!(1.5),
                json!(4096),
                json!(4_294_967_296_u64),
                json!(1e300),
                json!(""),
                json!("../story.safetensors"),
                json!([]),
                json!([[]]),
                json!([1, 2]),
                json!(vec![1; 500]),
                json!({}),
            ];
            *value = odd[random.below(odd.len())].clone();
        }
    }
}

/// Some bytes of a file changed, or its end cut off.
fn spoil_bytes(path: &Path, random: &mut Random) {
    let mut bytes = fs::read(path).unwrap();
    // The beginning says most.
    let within = [16, 2000, bytes.len()][random.below(3)].min(bytes.len());
    if random.below(4) == 0 {
        bytes.truncate(random.below(within));
    } else {
        for _ in 0..=random.below(3) {
            bytes[random.below(within)] =
                [0, 1, 255, b'0', b'"', b'}', b'[', random.next() as u8][random.below(8)];
        }
    }
    fs::write(path, bytes).unwrap();
}

fn arguments(folder: &Path) -> VerifyArgs {
    let line = ["colibri", "verify", "--context", "64", "--golden", folder.to_str().unwrap()];
    match Arguments::try_parse_from(line).unwrap().command {
        Command::Verify(args) => args,
        other => panic!("{other:?}"),
    }
}

#[test]
fn damaged_golden_results_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let (listing, file): (PathBuf, PathBuf) =
        (folder.path().join("golden.json"), folder.path().join("story.safetensors"));
    let sound = Sound::new();
    sound.write(folder.path());
    let args = arguments(folder.path());
    let model = crate::load::open(&args.model).unwrap();
    let mut work = load(&args, folder.path(), &model).unwrap();
    let (mut passed, mut failed, mut refused) = (0, 0, 0);
    for seed in seeds(400) {
        let mut random = Random(seed);
        let mut damaged = sound.clone();
        let kind = if seed == 0 { 4 } else { random.below(4) };
        match kind {
            0 | 1 => (0..=random.below(2)).for_each(|_| spoil_tensor(&mut damaged.tensors, &mut random)),
            2 => spoil_listing(&mut damaged.listing, &mut random),
            _ => {}
        }
        damaged.write(folder.path());
        if kind == 3 {
            spoil_bytes([&listing, &file][random.below(2)], &mut random);
        }
        let mut comparison = Comparison::int15();
        match compare_all(&mut work, folder.path(), &model, &mut comparison) {
            Ok(()) if comparison.passed() => passed += 1,
            Ok(()) => failed += 1,
            // More ids than were planned for.
            Err(Failure::Engine(error)) => assert!(error.to_string().contains("context"), "{seed}: {error}"),
            // A file of another name.
            Err(Failure::Io { what, .. }) => assert!(what.starts_with("reading "), "{seed}: {what}"),
            Err(Failure::Golden(error)) => {
                assert!(
                    error.contains("golden.json: ") || error.contains(".safetensors: "),
                    "{seed}: {error}"
                );
                refused += 1;
            }
            Err(error) => panic!("{seed}: {error:?}"),
        }
    }
    assert!(passed > 10 && failed > 2 && refused > 100, "{passed} {failed} {refused}");
}
