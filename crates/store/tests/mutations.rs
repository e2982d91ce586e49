//! Damaged headers, indexes and configs by the thousand, from a fixed seed: opening never panics, never reads into
//! more memory than the file or the limits allow, gives the same answer twice, and whatever opens is sound. With
//! `COLIBRI_TEST_FUZZ_SECONDS` each test goes on for that long.

#[path = "../../../tests/seeds.rs"]
mod seeds;
mod support;

use std::borrow::Cow;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use seeds::{Random, seeds};
use store::files::{ListedFile, MemoryFiles};
use store::{Checkpoint, Dtype, FileId, Files, testing};
use support::{original, shard};

/// Pieces that the formats give a meaning to.
const TOKENS: [&str; 28] = [
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "null",
    "true",
    "-1",
    "0",
    "1e400",
    "1.5",
    "18446744073709551615",
    "18446744073709551616",
    "9223372036854775808",
    "100000001",
    "\"dtype\":\"F4\"",
    "\"shape\":[]",
    "\"shape\":[0]",
    "\"data_offsets\":[0,0]",
    "\"__metadata__\":{}",
    "\"weight_map\":{}",
    "\\u0000",
    "\\ud800",
    "model.safetensors",
    "../",
    " ",
];

/// One change: a bit, a byte, a piece removed, repeated, or written over or between, or the end cut off.
fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    let place = random.below(bytes.len());
    let end = (place + 1 + random.below(24)).min(bytes.len());
    match random.below(9) {
        _ if bytes.is_empty() => bytes.extend_from_slice(TOKENS[random.below(TOKENS.len())].as_bytes()),
        0 => bytes[place] ^= 1 << random.below(8),
        1 => bytes[place] = random.next() as u8,
        2 => drop(bytes.drain(place..end)),
        3 => {
            let piece = bytes[place..end].to_vec();
            let target = random.below(bytes.len());
            bytes.splice(target..target, piece);
        }
        4 => drop(bytes.splice(place..place, TOKENS[random.below(TOKENS.len())].bytes())),
        5 => drop(bytes.splice(place..end, TOKENS[random.below(TOKENS.len())].bytes())),
        6 => replace_number(bytes, place, random),
        7 => move_tensor(bytes, place, random),
        _ => bytes.truncate(place),
    }
}

/// Puts another number in the place of the first one after `place`: headers stay valid JSON and become wrong.
fn replace_number(bytes: &mut Vec<u8>, place: usize, random: &mut Random) {
    let Some(start) = bytes[place..].iter().position(u8::is_ascii_digit).map(|found| place + found) else {
        return;
    };
    let length = bytes[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let old: u64 = std::str::from_utf8(&bytes[start..start + length]).unwrap().parse().unwrap_or(0);
    let choices = [
        old.wrapping_add(1),
        old.saturating_sub(1),
        old.wrapping_mul(2),
        0,
        u64::MAX,
        u64::MAX - old,
        random.next(),
    ];
    let new = choices[random.below(choices.len())];
    bytes.splice(start..start + length, new.to_string().bytes());
}

/// Moves the first tensor after `place` by a few bytes without changing its length: only its neighbours and the end
/// of the file can tell that it is wrong.
fn move_tensor(bytes: &mut Vec<u8>, place: usize, random: &mut Random) {
    const FIELD: &[u8] = b"\"data_offsets\":[";
    let Some(found) = bytes[place..].windows(FIELD.len()).position(|window| window == FIELD) else { return };
    let start = place + found + FIELD.len();
    let length = bytes[start..].iter().take_while(|&&byte| byte != b']').count();
    let text = String::from_utf8_lossy(&bytes[start..start + length]).into_owned();
    let Some((begin, end)) = text.split_once(',') else { return };
    let (Ok(begin), Ok(end)) = (begin.parse::<u64>(), end.parse::<u64>()) else { return };
    let distance = random.below(13) as u64;
    let moved = |offset: u64| offset.wrapping_add(distance).wrapping_sub(6);
    bytes.splice(start..start + length, format!("{},{}", moved(begin), moved(end)).into_bytes());
}

/// Remembers the largest buffer that was filled: the only memory whose size a file's own numbers decide.
struct Watched {
    files: MemoryFiles,
    largest: AtomicU64,
}

impl Files for Watched {
    fn directories(&self) -> &[String] {
        self.files.directories()
    }

    fn list(&self) -> &[ListedFile] {
        self.files.list()
    }

    fn len(&self, file: FileId) -> io::Result<u64> {
        self.files.len(file)
    }

    fn read_at(&self, file: FileId, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.largest.fetch_max(into.len() as u64, Ordering::Relaxed);
        self.files.read_at(file, offset, into)
    }

    fn path(&self, _file: FileId) -> Option<&Path> {
        None
    }
}

type NamedBytes = Vec<(String, Vec<u8>)>;

/// Opens, twice, and checks what must hold; says whether it opened.
fn check(contents: &NamedBytes) -> bool {
    let largest_file = contents.iter().map(|(_, bytes)| bytes.len()).max().unwrap_or(0) as u64;
    let open = || {
        let files = contents.iter().map(|(name, bytes)| (name.clone(), Cow::Owned(bytes.clone())));
        let files = Arc::new(Watched { files: MemoryFiles::new(files), largest: AtomicU64::new(0) });
        let opened = Checkpoint::from_files(Arc::clone(&files) as Arc<dyn Files>);
        assert!(files.largest.load(Ordering::Relaxed) <= largest_file, "a buffer larger than any file");
        opened
    };
    match (open(), open()) {
        (Ok(one), Ok(other)) => {
            testing::check_consistent(&one).unwrap();
            assert!(one.under("").eq(other.under("")), "two openings differ");
            true
        }
        (Err(one), Err(other)) => {
            assert_eq!(one.to_string(), other.to_string(), "two openings differ");
            assert!(!one.to_string().is_empty());
            false
        }
        _ => panic!("two openings differ"),
    }
}

/// Mutates the file called `target` again and again from the sound state, `count` times or longer. Some changes leave
/// a file sound (a bit of data, a name not in the index): both answers must occur.
fn attack(sound: &NamedBytes, target: &str, count: u64) {
    assert!(check(sound), "the model is not sound to begin with");
    let place = sound.iter().position(|(name, _)| name == target).expect("the target is a file of the model");
    let (mut rounds, mut opened) = (0, 0);
    for seed in seeds(count) {
        let mut random = Random(seed);
        let mut contents = sound.clone();
        for _ in 0..=random.below(3) {
            mutate(&mut contents[place].1, &mut random);
        }
        rounds += 1;
        opened += u64::from(check(&contents));
    }
    assert!(opened > 0 && opened < rounds, "{opened} of {rounds} opened");
}

fn file(name: &str) -> (String, Vec<u8>) {
    (name.to_owned(), fs::read(original().join(name)).unwrap())
}

/// Two small shards of the tiny model, cut down to a few bytes of data, with config and index.
fn small_model() -> NamedBytes {
    let mut map = serde_json::Map::new();
    let mut files = vec![file("config.json"), file("generation_config.json")];
    for name in [shard(11), shard(12)] {
        let mut tensors = testing::read_shard(&original().join(&name)).unwrap();
        for tensor in &mut tensors {
            map.insert(tensor.name.clone(), name.clone().into());
            tensor.shape = vec![3, 1];
            tensor.bytes.truncate(6);
        }
        files.push((name, testing::shard_bytes(&tensors)));
    }
    let index = serde_json::json!({"metadata": {"total_size": 72}, "weight_map": map});
    files.push(("model.safetensors.index.json".to_owned(), index.to_string().into_bytes()));
    files
}

#[test]
fn damaged_shards() {
    attack(&small_model(), &shard(12), 20_000);
}

#[test]
fn damaged_shards_without_an_index() {
    let mut files = small_model();
    files.retain(|(name, _)| *name != "model.safetensors.index.json" && *name != shard(11));
    files.last_mut().unwrap().0 = "model.safetensors".to_owned();
    attack(&files, "model.safetensors", 20_000);
}

#[test]
fn damaged_indexes() {
    attack(&small_model(), "model.safetensors.index.json", 15_000);
}

#[test]
fn damaged_configs() {
    attack(&small_model(), "config.json", 10_000);
}

#[test]
fn damaged_to_noise() {
    let sound = small_model();
    for seed in seeds(3_000) {
        let mut random = Random(seed);
        let mut contents = sound.clone();
        let place = random.below(contents.len());
        let length = random.below(300);
        contents[place].1 = (0..length).map(|_| random.next() as u8).collect();
        assert!(!check(&contents), "noise opened");
    }
}

#[test]
fn half_a_million_tensors_in_96_shards() {
    let mut files = vec![("config.json".to_owned(), b"{}".to_vec())];
    let mut map = serde_json::Map::new();
    for layer in 0..96 {
        let shard = format!("model-{:05}-of-000096.safetensors", layer + 1);
        let tensors: Vec<testing::PlainTensor> = (0..5210)
            .map(|number| testing::PlainTensor {
                name: format!(
                    "language_model.model.layers.{layer}.block_sparse_moe.experts.{number}.weight_packed"
                ),
                dtype: "U8".to_owned(),
                shape: vec![1, 2],
                bytes: vec![layer as u8, number as u8],
            })
            .collect();
        map.extend(tensors.iter().map(|tensor| (tensor.name.clone(), shard.clone().into())));
        files.push((shard, testing::shard_bytes(&tensors)));
    }
    let index = serde_json::json!({"weight_map": map}).to_string().into_bytes();
    files.push(("model.safetensors.index.json".to_owned(), index));
    let files = files.into_iter().map(|(name, bytes)| (name, Cow::Owned(bytes)));
    let checkpoint = Checkpoint::from_files(Arc::new(MemoryFiles::new(files))).unwrap();
    assert_eq!(checkpoint.names().len(), 96 * 5210);
    let name = "language_model.model.layers.57.block_sparse_moe.experts.4097.weight_packed";
    let bytes = checkpoint.read_vec(checkpoint.require(name, &[Dtype::U8], &[1, 2]).unwrap()).unwrap();
    assert_eq!(bytes, [57, 1]);
    assert_eq!(checkpoint.under("language_model.model.layers.5.").len(), 5210);
}
