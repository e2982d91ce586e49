//! Plans of models that are not there yet: with the index alone, with some of the shards, and what is refused then.
mod common;

use common::{data, tiny};
use engine::plan::Request;
use engine::{Limits, Plan, PlanError, ops_of_step, plan};
use models::{Dense, Family, LoadError, LoadOptions};
use ops::Oracle;
use std::fs;
use std::path::Path;
use store::{Checkpoint, StoreError, testing};
use tempfile::TempDir;

const ROOMY: Limits = Limits { total: 8 << 30, available: 8 << 30 };

fn shard(number: u32) -> String {
    format!("model-{number:05}-of-000012.safetensors")
}

/// A copy of the tiny model without these shards.
fn without(shards: impl IntoIterator<Item = u32>) -> TempDir {
    let model = tempfile::tempdir().unwrap();
    testing::copy_model(&data("k3-tiny"), model.path()).unwrap();
    for number in shards {
        fs::remove_file(model.path().join(shard(number))).unwrap();
    }
    model
}

fn open(model: &Path) -> Checkpoint {
    Checkpoint::open_for_plan(&[model.to_owned()]).unwrap()
}

fn planned(checkpoint: &Checkpoint, dense: Dense) -> Result<Plan, PlanError> {
    let family = Family::recognise(checkpoint)?;
    plan(checkpoint, &family, &Request { dense: Some(dense), ..Request::default() }, ROOMY)
}

/// Names and numbers tell what headers would.
#[test]
fn the_index_alone_gives_the_plan_of_the_whole_model() {
    let whole = tiny();
    for absent in [1..13, 2..9] {
        let folder = without(absent.clone());
        let checkpoint = open(folder.path());
        let missing = checkpoint.absent().unwrap();
        assert_eq!((missing.shards.len(), missing.named), (absent.len(), 12));
        assert_eq!(checkpoint.tensor_count(), whole.tensor_count());
        assert_eq!(checkpoint.total_size(), whole.total_size());
        for dense in Dense::ALL {
            let (found, expected) = (planned(&checkpoint, dense).unwrap(), planned(&whole, dense).unwrap());
            for ((what, found), (name, expected)) in found.items.iter().zip(&expected.items) {
                // Headers also tell of padding, which so small a model has read ahead with all the rest.
                let allowed = if what == "buffers while loading" { 2048 } else { 0 };
                assert!(
                    what == name && found.abs_diff(*expected) <= allowed,
                    "{dense:?}, {what}: {found}, {expected}"
                );
            }
            assert_eq!(found.items.len(), expected.items.len());
            assert_eq!(
                (found.slab, found.experts, found.arena),
                (expected.slab, expected.experts, expected.arena)
            );
            assert_eq!(found.dense.rows, expected.dense.rows);
        }
        let ops = |checkpoint: &Checkpoint| {
            let family = Family::recognise(checkpoint).unwrap();
            ops_of_step(checkpoint, &family, &LoadOptions::default(), 5).unwrap()
        };
        assert!(ops(&checkpoint) == ops(&whole));
    }
    assert!(whole.absent().is_none());
}

/// What is loaded is all there is of the language model: vision would be the rest.
#[test]
fn bytes_that_are_asked_for_add_up_to_what_the_index_says() {
    let folder = without(1..13);
    let checkpoint = open(folder.path());
    let family = Family::recognise(&checkpoint).unwrap();
    let (_, tally) = family.load(&checkpoint, None, &LoadOptions::default(), &mut |_| {}).unwrap();
    let catalog = family.catalog(&checkpoint, None).unwrap().unwrap();
    let experts =
        u64::from(catalog.experts()) * catalog.layout().pieces().iter().map(|p| p.bytes).sum::<u64>();
    let language = tally.stored.values().sum::<u64>() + experts;
    let rest: u64 =
        tiny().under("").filter(|(name, _)| !name.starts_with("language_model.")).map(|(_, e)| e.bytes).sum();
    let total = checkpoint.total_size().unwrap();
    // Of A_log only the heads are asked for, not its padding.
    assert!(language + rest <= total && total - language - rest < 4096, "{language} and {rest} of {total}");
}

#[test]
fn names_that_the_index_lacks_are_refused_as_they_are_with_shards() {
    let folder = without(1..13);
    let index = folder.path().join("model.safetensors.index.json");
    for name in [
        "language_model.model.layers.3.self_attn.o_proj.weight",
        "language_model.model.layers.5.block_sparse_moe.experts.7.w2.weight_scale",
    ] {
        let before = fs::read(&index).unwrap();
        testing::edit_json(&index, |index| {
            index["weight_map"].as_object_mut().unwrap().remove(name).unwrap();
        })
        .unwrap();
        let error = planned(&open(folder.path()), Dense::Bf16).err().unwrap();
        assert!(
            matches!(error, PlanError::Load(LoadError::Store(StoreError::MissingTensor(_)))),
            "{error:?}"
        );
        assert!(error.to_string().contains(name), "{error}");
        fs::write(&index, before).unwrap();
    }
}

#[test]
fn what_is_there_must_be_good_and_what_is_not_can_only_be_planned() {
    let folder = without(2..13);
    let path = folder.path().join(shard(1));
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let error = Checkpoint::open_for_plan(&[folder.path().to_owned()]).err().unwrap().to_string();
    assert!(error.contains(&shard(1)), "{error}");
    // A download tool says by a file beside it that it has not filled this one.
    fs::write(folder.path().join(format!("{}.aria2", shard(1))), "").unwrap();
    let checkpoint = open(folder.path());
    assert_eq!(checkpoint.absent().unwrap().shards.len(), 12);

    let family = Family::recognise(&checkpoint).unwrap();
    let mut device = Oracle::new(1).unwrap();
    let loaded = family.load(&checkpoint, Some(&mut device), &LoadOptions::default(), &mut |_| {});
    let error = loaded.err().unwrap().to_string();
    assert!(error.contains("12 of the 12 shards") && error.contains("are missing"), "{error}");
    let error = Checkpoint::open(&[folder.path().to_owned()]).err().unwrap();
    assert!(matches!(error, StoreError::UnfinishedDownload { .. } | StoreError::MissingShards(_)), "{error}");

    // Without an index nobody says what belongs to the model.
    fs::remove_file(folder.path().join("model.safetensors.index.json")).unwrap();
    assert!(matches!(
        Checkpoint::open_for_plan(&[folder.path().to_owned()]).err().unwrap(),
        StoreError::NoWeights { .. }
    ));
}
