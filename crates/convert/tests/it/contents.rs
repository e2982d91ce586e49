//! What a container's files hold.
use crate::support::{convert, converted, family, files, open, original, small};
use convert::PAGE_BYTES;
use models::Dense;
use ops::packing;
use safetensors::SafeTensors;
use std::collections::BTreeSet;
use std::fs;
use store::checkpoint::INDEX;
use store::checksums::List;
use store::files::DiskFiles;
use store::{Dtype, ExpertId};

#[test]
fn files_are_valid_by_the_formats_own_library_and_the_index_names_every_tensor() {
    for (dense, thin) in [(Dense::Bf16, false), (Dense::Int4, false), (Dense::Int8, true)] {
        let (_folder, place) = converted(dense, thin);
        let index: serde_json::Value = serde_json::from_slice(&fs::read(place.join(INDEX)).unwrap()).unwrap();
        let mut names = BTreeSet::new();
        for (name, bytes) in files(&place).iter().filter(|(name, _)| name.ends_with(".safetensors")) {
            let theirs = SafeTensors::deserialize(bytes).unwrap();
            for tensor in theirs.names() {
                assert_eq!(index["weight_map"][tensor], name.as_str(), "{tensor}");
                assert!(names.insert(tensor.to_owned()), "{tensor} twice");
            }
        }
        let checkpoint = open(&place);
        assert_eq!(checkpoint.notes(), &[] as &[String]);
        // Everything that the source has is there.
        for name in open(&original()).names() {
            assert!(checkpoint.tensor(name).is_some(), "{name}");
            assert!(thin || names.contains(name), "{name}");
        }
    }
}

#[test]
fn experts_lie_in_order_each_in_one_piece_from_a_page_on() {
    let (_folder, place) = converted(Dense::Int4, false);
    let checkpoint = open(&place);
    let catalog = family(&checkpoint).catalog(&checkpoint, None).unwrap().unwrap();
    let mut last = None;
    for index in 0..catalog.experts() {
        let runs: Vec<_> = catalog.runs(index).collect();
        assert_eq!(runs.len(), 1, "{}", catalog.id(index));
        assert!(runs[0].file_offset.is_multiple_of(PAGE_BYTES), "{}", catalog.id(index));
        let here = Some((runs[0].file, runs[0].file_offset));
        assert!(here > last);
        last = here;
    }
    // Every other tensor of the model as well.
    for (name, entry) in
        checkpoint.under("").filter(|(name, _)| family(&checkpoint).expert_of(name).is_none())
    {
        assert!(name.starts_with("colibri.padding.") || entry.offset.is_multiple_of(PAGE_BYTES), "{name}");
    }
}

#[test]
fn tensors_are_the_sources_or_packed_as_the_loader_packs() {
    let source = open(&original());
    for (dense, encoding) in [(Dense::Bf16, None), (Dense::Int8, Some("int8")), (Dense::Int4, Some("int4"))] {
        let (_folder, place) = converted(dense, false);
        let checkpoint = open(&place);
        let mut packed = 0;
        for (name, entry) in source.under("") {
            let bytes = source.read_vec(entry).unwrap();
            let found = checkpoint.read_vec(checkpoint.find(name).unwrap()).unwrap();
            let Some(how) = checkpoint.packed(name) else {
                assert_eq!(found, bytes, "{name}");
                continue;
            };
            packed += 1;
            assert_eq!((Some(how.packing.as_str()), entry.dtype), (encoding, Dtype::Bf16), "{name}");
            let widen = |b: &[u8]| f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16);
            let weights: Vec<f32> = bytes.chunks_exact(2).map(widen).collect();
            let (codes, scales) = packing::encode(dense.packing().unwrap(), &weights, how.cols).unwrap();
            assert_eq!(found, [codes, scales].concat(), "{name}");
        }
        assert_eq!(packed > 50, encoding.is_some(), "{packed}");
    }
}

#[test]
fn other_files_come_along_and_everything_has_a_checksum() {
    let (_folder, place) = converted(Dense::Int8, false);
    let (here, source) = (files(&place), files_of_original());
    for name in
        ["config.json", "generation_config.json", "tiktoken.model", "tokenizer_config.json", "README.md"]
    {
        assert_eq!(here[name], source[name], "{name}");
    }
    let list = List::read(&DiskFiles::open(std::slice::from_ref(&place)).unwrap()).unwrap().unwrap();
    let listed: BTreeSet<&str> = list.lines.iter().map(|line| line.file.as_str()).collect();
    let there: BTreeSet<&str> =
        here.keys().map(String::as_str).filter(|name| *name != "colibri.checksums").collect();
    assert_eq!(listed, there);
    let experts: Vec<ExpertId> = list.experts().map(|(id, _)| id).collect();
    assert_eq!(experts.len(), 8 * 32);
    assert!(experts.is_sorted());
}

fn files_of_original() -> std::collections::BTreeMap<String, Vec<u8>> {
    let entries =
        fs::read_dir(original()).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_file());
    entries.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())).collect()
}

/// The bytes of version 1: of one layer of the tiny model, header, experts and tensors. Another list is another version.
#[test]
fn version_1_is_what_it_was() {
    let (_folder, place) = converted(Dense::Int4, false);
    let list = fs::read_to_string(place.join("colibri.checksums")).unwrap();
    let layer = list.lines().filter(|line| line.contains("\tcolibri-00004-of-00010.safetensors\t"));
    let found: Vec<&str> = layer.collect();
    let expected: Vec<&str> = include_str!("version-1.checksums").lines().collect();
    assert_eq!(found, expected);
}

#[test]
fn large_layers_are_split_and_open_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    convert(&original(), folder.path(), small(Dense::Int4, false), &mut |_| {}).unwrap();
    let shards = files(folder.path()).into_iter().filter(|(name, _)| name.ends_with(".safetensors"));
    let sizes: Vec<usize> = shards.map(|(_, bytes)| bytes.len()).collect();
    assert!(sizes.len() > 15, "{sizes:?}");
    let checkpoint = open(folder.path());
    assert!(family(&checkpoint).catalog(&checkpoint, None).is_ok());
}

#[test]
fn progress_ends_with_all_bytes_and_the_plan_is_an_upper_bound() {
    let folder = tempfile::tempdir().unwrap();
    let source = open(&original());
    let plan =
        convert::Plan::new(&source, &family(&source), convert::Settings::new(Dense::Int4, false)).unwrap();
    let mut last = 0;
    convert(&original(), folder.path(), convert::Settings::new(Dense::Int4, false), &mut |done| {
        assert!(done >= last);
        last = done;
    })
    .unwrap();
    let here = files(folder.path());
    let shards: usize =
        here.iter().filter(|(name, _)| name.ends_with(".safetensors")).map(|(_, b)| b.len()).sum();
    assert_eq!(last, shards as u64);
    let all: usize = here.values().map(Vec::len).sum();
    let planned = plan.bytes(&source);
    assert!((all as u64..all as u64 + 60_000).contains(&planned), "{planned} for {all}");
}
