//! Every arrangement of files that must open, and that it opens to the same tensors.

mod support;

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use store::files::DiskFiles;
use store::{Checkpoint, Dtype, Files, testing};
use support::{Model, original, shard};

/// Both hold the same names with the same types, shapes and bytes.
fn assert_same(one: &Checkpoint, other: &Checkpoint) {
    assert!(one.names().eq(other.names()), "the names differ");
    for (name, entry) in one.under("") {
        let same = other.find(name).unwrap();
        assert_eq!((entry.dtype, &entry.shape, entry.bytes), (same.dtype, &same.shape, same.bytes), "{name}");
        assert_eq!(one.read_vec(entry).unwrap(), other.read_vec(same).unwrap(), "{name}");
    }
}

fn opened(directories: &[PathBuf]) -> Checkpoint {
    let checkpoint = Checkpoint::open(directories).unwrap();
    testing::check_consistent(&checkpoint).unwrap();
    assert_same(&Checkpoint::open(&[original()]).unwrap(), &checkpoint);
    checkpoint
}

#[test]
fn the_tiny_model_opens_with_all_its_tensors() {
    let checkpoint = opened(&[original()]);
    assert_eq!(checkpoint.notes(), &[] as &[String]);
    assert_eq!(checkpoint.shards().len(), 12);
    let embedding = "language_model.model.embed_tokens.weight";
    let entry = checkpoint.require(embedding, &[Dtype::Bf16], &[4096, 192]).unwrap();
    let plain = testing::read_shard(&original().join(shard(10))).unwrap();
    let plain = plain.iter().find(|tensor| tensor.name == embedding).unwrap();
    assert_eq!(checkpoint.read_vec(entry).unwrap(), plain.bytes);
    assert_eq!(checkpoint.config()["model_type"], "kimi_k3");
    assert_eq!(checkpoint.config_bytes(), fs::read(original().join("config.json")).unwrap());
    assert_eq!(checkpoint.generation_config().unwrap()["eos_token_id"], checkpoint.config()["eos_token_id"]);
    let tokenizer = checkpoint.metadata_file("tiktoken.model", 1 << 20).unwrap().unwrap();
    assert_eq!(tokenizer, fs::read(original().join("tiktoken.model")).unwrap());
    assert!(checkpoint.metadata_file("no such file", 1 << 20).unwrap().is_none());
    assert!(checkpoint.metadata_file("tiktoken.model", 100).is_err());
}

#[test]
fn ranges_of_a_tensor_are_parts_of_the_whole() {
    let checkpoint = Checkpoint::open(&[original()]).unwrap();
    let entry = checkpoint.find("language_model.lm_head.weight").unwrap();
    let whole = checkpoint.read_vec(entry).unwrap();
    let mut part = vec![0; 1001];
    checkpoint.read_range(entry, 777, &mut part).unwrap();
    assert_eq!(part, whole[777..1778]);
    checkpoint.read_range(entry, entry.bytes - 1001, &mut part).unwrap();
    assert_eq!(part, whole[whole.len() - 1001..]);
}

#[test]
fn names_under_a_prefix_are_all_that_begin_with_it() {
    let checkpoint = Checkpoint::open(&[original()]).unwrap();
    let prefix = "language_model.model.layers.3.";
    let expected: Vec<&str> = checkpoint.names().filter(|name| name.starts_with(prefix)).collect();
    let found: Vec<&str> = checkpoint.under(prefix).map(|(name, _)| name).collect();
    assert_eq!(found, expected);
    assert_eq!(found.len(), 214);
    assert_eq!(checkpoint.under("no such prefix").len(), 0);
}

#[test]
fn one_file_without_an_index_opens() {
    let model = Model::new();
    testing::merge_shards(&model.path()).unwrap();
    assert_eq!(opened(&[model.path()]).shards().len(), 1);
}

#[test]
fn shards_of_any_names_open() {
    let model = Model::new();
    for number in 1..=12 {
        let name = format!("part-{}.of.many.safetensors", 100 - number);
        testing::rename_shard(&model.path(), &shard(number), &name).unwrap();
    }
    opened(&[model.path()]);
}

#[test]
fn a_model_over_two_and_three_directories_opens_and_is_not_written_to() {
    let model = Model::new();
    let (second, third) = (model.beside("second"), model.beside("third"));
    testing::split_over(&model.path(), &second, |name| name > shard(8).as_str()).unwrap();
    let mut permissions = fs::metadata(&second).unwrap().permissions();
    permissions.set_readonly(true);
    fs::set_permissions(&second, permissions.clone()).unwrap();
    let names = testing::shard_names(&second).unwrap();
    let changed = fs::metadata(&second).unwrap().modified().unwrap();
    opened(&[model.path(), second.clone()]);
    assert_eq!(testing::shard_names(&second).unwrap(), names);
    assert_eq!(fs::metadata(&second).unwrap().modified().unwrap(), changed);

    testing::split_over(&model.path(), &third, |name| name < shard(4).as_str()).unwrap();
    let checkpoint = opened(&[model.path(), third.clone(), second.clone()]);
    let embedding = checkpoint.find("language_model.model.embed_tokens.weight").unwrap();
    assert!(checkpoint.file_name(embedding.file).starts_with(second.to_str().unwrap()));
    #[expect(clippy::permissions_set_readonly_false, reason = "a temporary folder, about to be removed")]
    permissions.set_readonly(false);
    fs::set_permissions(&second, permissions).unwrap();
}

#[test]
fn metadata_comes_from_the_first_directory_only() {
    let model = Model::new();
    let second = model.beside("second");
    testing::split_over(&model.path(), &second, |name| name == shard(5)).unwrap();
    fs::write(second.join("config.json"), "{\"model_type\": \"another\"}").unwrap();
    fs::write(second.join("model.safetensors.index.json"), "rubbish").unwrap();
    assert_eq!(opened(&[model.path(), second]).config()["model_type"], "kimi_k3");
}

#[test]
fn a_dropped_prefix_changes_names_and_nothing_else() {
    let model = Model::new();
    testing::rename_prefix(&model.path(), "language_model.", "").unwrap();
    let checkpoint = model.open().unwrap();
    let whole = Checkpoint::open(&[original()]).unwrap();
    assert_eq!(checkpoint.names().len(), whole.names().len());
    let (short, long) = (checkpoint.find("lm_head.weight"), whole.find("language_model.lm_head.weight"));
    assert_eq!(checkpoint.read_vec(short.unwrap()).unwrap(), whole.read_vec(long.unwrap()).unwrap());
}

#[cfg(unix)]
#[test]
fn shards_behind_links_open_as_the_download_cache_lays_them_out() {
    let model = Model::new();
    let blobs = model.beside("blobs");
    fs::create_dir(&blobs).unwrap();
    for (number, entry) in fs::read_dir(model.path()).unwrap().map(Result::unwrap).enumerate() {
        fs::rename(entry.path(), blobs.join(number.to_string())).unwrap();
        std::os::unix::fs::symlink(format!("../blobs/{number}"), entry.path()).unwrap();
    }
    opened(&[model.path()]);
}

#[test]
fn files_in_memory_open_like_files_on_disk() {
    let names =
        fs::read_dir(original()).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
    let files: Vec<(String, &'static [u8])> = names
        .map(|path| {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, &*fs::read(&path).unwrap().leak())
        })
        .collect();
    let files: Vec<(&str, &'static [u8])> =
        files.iter().map(|(name, bytes)| (name.as_str(), *bytes)).collect();
    assert_same(&Checkpoint::open(&[original()]).unwrap(), &Checkpoint::from_memory(&files).unwrap());
}

#[test]
fn unneeded_files_are_noted_and_ignored() {
    let model = Model::new();
    let stranger = testing::PlainTensor {
        name: "stranger".into(),
        dtype: "F32".into(),
        shape: vec![1],
        bytes: vec![0; 4],
    };
    fs::write(model.file("extra.safetensors"), testing::shard_bytes(&[stranger])).unwrap();
    fs::write(model.file("broken.safetensors"), "no shard").unwrap();
    fs::write(model.file("model-00001-of-000012.safetensors.part"), "left over").unwrap();
    let checkpoint = opened(&[model.path()]);
    assert_eq!(checkpoint.notes().len(), 3, "{:?}", checkpoint.notes());
    assert!(checkpoint.notes()[0].contains("broken.safetensors"));
    assert!(checkpoint.notes()[1].contains("extra.safetensors"));
    assert!(checkpoint.notes()[2].contains(".part is ignored"));
    let error = checkpoint.find("stranger").unwrap_err().to_string();
    assert!(error.contains("extra.safetensors holds it"), "{error}");
}

#[test]
fn tensors_that_the_index_does_not_list_are_there_and_noted() {
    let model = Model::new();
    testing::edit_index(&model.path(), |map| drop(map.remove("language_model.lm_head.weight"))).unwrap();
    let checkpoint = opened(&[model.path()]);
    assert_eq!(checkpoint.notes().len(), 1);
    assert!(
        checkpoint.notes()[0].contains("1 tensors that the index does not list"),
        "{:?}",
        checkpoint.notes()
    );
}

#[test]
fn another_total_in_the_index_is_noted() {
    let model = Model::new();
    testing::edit_json(&model.file("model.safetensors.index.json"), |index| {
        index["metadata"]["total_size"] = 5.into();
    })
    .unwrap();
    assert!(opened(&[model.path()]).notes()[0].contains("5 bytes"));
}

#[test]
fn bytes_between_tensors_are_allowed() {
    let model = Model::new();
    let path = model.file(&shard(10));
    let filler = testing::PlainTensor {
        name: "filler".into(),
        dtype: "U8".into(),
        shape: vec![16],
        bytes: vec![1; 16],
    };
    testing::edit_shard(&path, |tensors| tensors.insert(1, filler)).unwrap();
    testing::edit_header(&path, |header| assert!(header.remove("filler").is_some())).unwrap();
    opened(&[model.path()]);
}

#[test]
fn files_outlive_the_checkpoint() {
    let (files, entry, bytes): (Arc<dyn Files>, _, _) = {
        let checkpoint = Checkpoint::open(&[original()]).unwrap();
        let entry = checkpoint.find("language_model.lm_head.weight").unwrap().clone();
        let bytes = checkpoint.read_vec(&entry).unwrap();
        (checkpoint.files(), entry, bytes)
    };
    let mut again = vec![0; bytes.len()];
    files.read_exact_at(entry.file, entry.offset, &mut again).unwrap();
    assert_eq!(again, bytes);
}

#[test]
fn reads_past_the_end_are_short() {
    let files = DiskFiles::open(&[original()]).unwrap();
    let file = store::files::find(&files, "config.json").next().unwrap();
    let len = files.len(file).unwrap();
    let mut bytes = [0; 16];
    assert_eq!(files.read_at(file, len - 5, &mut bytes).unwrap(), 5);
    assert_eq!(files.read_at(file, len, &mut bytes).unwrap(), 0);
    assert_eq!(files.read_at(file, len + 1000, &mut bytes).unwrap(), 0);
    let error = files.read_exact_at(file, len - 5, &mut bytes).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
    assert!(files.read_at(store::FileId(9999), 0, &mut bytes).is_err());
}
