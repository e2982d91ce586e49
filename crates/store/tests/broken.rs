//! About fifty ways in which a model directory is broken, each made from the tiny model by one change, and the
//! error that each must give: the right variant, naming file and tensor.

mod support;

use std::fs;
use std::path::PathBuf;

use serde_json::json;
use store::content::Content;
use store::{Checkpoint, Dtype, StoreError, testing};
use support::{Model, original, shard};

const INDEX: &str = "model.safetensors.index.json";
const HEAD: &str = "language_model.lm_head.weight";
const SCALE: &str = "language_model.model.layers.4.block_sparse_moe.experts.7.w2.weight_scale";

/// Asserts the variant, binds its fields, and looks at the message: it must be one line that names `$names`.
macro_rules! expect {
    ($error:expr, $pattern:pat => $check:expr, $($names:expr),*) => {{
        let error: StoreError = $error;
        let text = error.to_string();
        assert!(!text.contains('\n'), "{text}");
        $(assert!(text.contains(&$names as &str), "{text}\n  does not name {}", $names);)*
        match error {
            $pattern => $check,
            other => panic!("another error: {other:?}"),
        }
    }};
}

// Directories.

#[test]
fn no_directory() {
    expect!(Checkpoint::open(&[]).err().unwrap(), StoreError::NoDirectory => (), "no model directory");
}

#[test]
fn directory_absent() {
    let model = Model::new();
    let error = Checkpoint::open(&[model.path(), model.beside("nowhere")]).err().unwrap();
    expect!(error, StoreError::DirectoryAbsent { directory } => assert!(directory.ends_with("nowhere")), "nowhere");
}

#[test]
fn file_given_for_a_directory() {
    let error = Checkpoint::open(&[original().join(shard(1))]).err().unwrap();
    expect!(error, StoreError::NotADirectory { path } => assert!(path.ends_with(&shard(1))), shard(1));
}

#[cfg(unix)]
#[test]
fn directory_that_cannot_be_resolved() {
    let model = Model::new();
    let circle = model.beside("circle");
    std::os::unix::fs::symlink(&circle, &circle).unwrap();
    let error = Checkpoint::open(&[circle]).err().unwrap();
    expect!(error, StoreError::DirectoryUnreadable { .. } => (), "circle");
}

#[test]
fn same_directory_by_two_paths() {
    let model = Model::new();
    let error = Checkpoint::open(&[model.path(), model.path().join("../model")]).err().unwrap();
    expect!(error, StoreError::SameDirectory { .. } => (), "../model");
}

#[test]
fn empty_directory() {
    let model = Model::new();
    fs::create_dir(model.beside("empty")).unwrap();
    let error = Checkpoint::open(&[model.beside("empty")]).err().unwrap();
    expect!(error, StoreError::FileAbsent { name, .. } => assert_eq!(name, "config.json"), "empty");
}

#[test]
fn directories_in_the_wrong_order() {
    let model = Model::new();
    let second = model.beside("second");
    testing::split_over(&model.path(), &second, |name| name == shard(5)).unwrap();
    let error = Checkpoint::open(&[second, model.path()]).err().unwrap();
    let config = model.file("config.json");
    expect!(error, StoreError::FileAbsent { .. } => (), config.to_str().unwrap(), "name that directory first");
}

// Config.

fn config_is(content: &[u8]) -> StoreError {
    let model = Model::new();
    fs::write(model.file("config.json"), content).unwrap();
    model.refused()
}

#[test]
fn config_empty() {
    expect!(config_is(b""), StoreError::EmptyFile { .. } => (), "config.json");
}

#[test]
fn config_cut() {
    let whole = fs::read(original().join("config.json")).unwrap();
    expect!(config_is(&whole[..whole.len() / 2]), StoreError::Json { .. } => (), "config.json", "EOF", "line");
}

#[test]
fn config_is_a_list() {
    expect!(config_is(b"[1, 2]"), StoreError::Json { .. } => (), "config.json", "object");
}

#[test]
fn config_with_a_key_twice() {
    let error = config_is(br#"{"text_config": {"hidden_size": 1, "hidden_size": 2}}"#);
    expect!(error, StoreError::Json { .. } => (), "config.json", "hidden_size", "twice");
}

#[test]
fn config_nested_too_deep() {
    let text = format!("{{\"a\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    expect!(config_is(text.as_bytes()), StoreError::Json { .. } => (), "config.json", "recursion limit");
}

#[test]
fn config_too_large() {
    let text = format!("{{\"a\": \"{}\"}}", "x".repeat(5_000_000));
    expect!(config_is(text.as_bytes()), StoreError::FileTooLarge { .. } => (), "config.json");
}

#[test]
fn config_is_a_web_page() {
    let error = config_is(b"\n<!DOCTYPE html><html><body>Sign in</body></html>");
    expect!(error, StoreError::WrongContent { found, .. } => assert_eq!(found, Content::WebPage), "config.json");
}

#[test]
fn config_with_a_byte_order_mark() {
    let error = config_is(b"\xff\xfe{\0}\0");
    expect!(error, StoreError::WrongContent { found, .. } => assert_eq!(found, Content::ByteOrderMark), "UTF-8");
}

#[test]
fn generation_config_damaged() {
    let model = Model::new();
    fs::write(model.file("generation_config.json"), "{\"eos_token_id\": }").unwrap();
    expect!(model.refused(), StoreError::Json { .. } => (), "generation_config.json", "line 1 column");
}

// Index.

fn index_is(content: &str) -> StoreError {
    let model = Model::new();
    fs::write(model.file(INDEX), content).unwrap();
    model.refused()
}

#[test]
fn index_absent() {
    let model = Model::new();
    fs::remove_file(model.file(INDEX)).unwrap();
    expect!(model.refused(), StoreError::NoWeights { shards, .. } => assert_eq!(shards, 12), INDEX);
}

#[test]
fn index_of_wrong_types() {
    expect!(index_is("[]"), StoreError::Json { .. } => (), INDEX, "weight_map");
    expect!(index_is("{}"), StoreError::Json { .. } => (), INDEX, "weight_map");
    expect!(index_is(r#"{"weight_map": []}"#), StoreError::Json { .. } => (), INDEX, "tensor names");
    expect!(index_is(r#"{"weight_map": {"the.tensor": 5}}"#), StoreError::Json { .. } => (), INDEX, "the.tensor");
    expect!(index_is(r#"{"metadata": 7, "weight_map": {}}"#), StoreError::Json { .. } => (), INDEX);
    expect!(index_is(r#"{"weight_map": {}, "weight_map": {}}"#), StoreError::Json { .. } => (), INDEX, "twice");
    expect!(index_is(r#"{"weight_map": {}} trailing"#), StoreError::Json { .. } => (), INDEX, "trailing");
}

#[test]
fn index_is_a_git_lfs_pointer() {
    let error = index_is("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n");
    expect!(error, StoreError::WrongContent { found, .. } => assert_eq!(found, Content::GitLfsPointer), INDEX, "git lfs pull");
}

#[test]
fn index_lists_a_tensor_twice() {
    let error =
        index_is(r#"{"weight_map": {"a": "m.safetensors", "b": "m.safetensors", "a": "m.safetensors"}}"#);
    expect!(error, StoreError::IndexDuplicate { tensor, .. } => assert_eq!(tensor, "a"), INDEX);
}

#[test]
fn index_names_a_shard_outside_the_directory() {
    for bad in
        ["../x.safetensors", "/x.safetensors", "C:\\x.safetensors", "", "nul.safetensors", "a\0.safetensors"]
    {
        let model = Model::new();
        testing::edit_index(&model.path(), |map| drop(map.insert(HEAD.into(), bad.into()))).unwrap();
        expect!(model.refused(), StoreError::ShardName { name, .. } => assert_eq!(name, bad), HEAD, INDEX);
    }
}

#[test]
fn shards_absent() {
    let model = Model::new();
    for number in [3, 11] {
        fs::remove_file(model.file(&shard(number))).unwrap();
    }
    fs::write(model.file(&format!("{}.incomplete", shard(3))), "half").unwrap();
    fs::create_dir_all(model.file(".cache/huggingface/download")).unwrap();
    fs::write(model.file(".cache/huggingface/download/abc.def.incomplete"), "half").unwrap();
    fs::create_dir(model.beside("second")).unwrap();
    let error = Checkpoint::open(&[model.path(), model.beside("second")]).err().unwrap();
    expect!(error, StoreError::MissingShards(missing) => {
        assert_eq!(missing.shards, [shard(3), shard(11)]);
        assert_eq!((missing.named, missing.tensors), (12, 223));
        assert_eq!(missing.directories.len(), 2);
        assert_eq!(missing.leftovers.len(), 2, "{:?}", missing.leftovers);
    }, shard(3), shard(11), "second", "2 of the 12", "abc.def.incomplete");
}

#[test]
fn shard_absent_from_the_download_cache() {
    let model = Model::new();
    let snapshot = model.beside("models--x--y/snapshots/0123");
    testing::copy_model(&model.path(), &snapshot).unwrap();
    fs::remove_file(snapshot.join(shard(1))).unwrap();
    fs::create_dir(model.beside("models--x--y/blobs")).unwrap();
    fs::write(model.beside("models--x--y/blobs/89ab.incomplete"), "half").unwrap();
    let error = Checkpoint::open(&[snapshot]).err().unwrap();
    expect!(error, StoreError::MissingShards(missing) => assert_eq!(missing.leftovers.len(), 1), "89ab.incomplete");
}

#[test]
fn third_directory_absent_of_a_split_model() {
    let model = Model::new();
    let (second, third) = (model.beside("second"), model.beside("third"));
    testing::split_over(&model.path(), &second, |name| name == shard(5)).unwrap();
    testing::split_over(&model.path(), &third, |name| name == shard(6)).unwrap();
    let error = Checkpoint::open(&[model.path(), second.clone(), third.join("gone")]).err().unwrap();
    expect!(error, StoreError::DirectoryAbsent { .. } => (), "gone");
    let error = Checkpoint::open(&[model.path(), second]).err().unwrap();
    expect!(error, StoreError::MissingShards(missing) => assert_eq!(missing.shards, [shard(6)]), shard(6));
}

#[test]
fn shard_in_two_directories() {
    let model = Model::new();
    fs::create_dir(model.beside("second")).unwrap();
    fs::copy(model.file(&shard(2)), model.beside("second").join(shard(2))).unwrap();
    let error = Checkpoint::open(&[model.path(), model.beside("second")]).err().unwrap();
    expect!(error, StoreError::DuplicateShard { .. } => (), model.file(&shard(2)).to_str().unwrap(), "second");
}

#[test]
fn tensor_in_the_index_but_in_no_shard() {
    let model = Model::new();
    let path = model.file(&testing::shard_of(&model.path(), SCALE).unwrap());
    testing::edit_shard(&path, |tensors| tensors.retain(|tensor| tensor.name != SCALE)).unwrap();
    expect!(model.refused(), StoreError::NotInShard(fault) => {
        assert_eq!((fault.tensor.as_str(), fault.count, fault.elsewhere), (SCALE, 1, None));
    }, SCALE, shard(5));
}

#[test]
fn tensor_in_another_shard_than_the_index_says() {
    let model = Model::new();
    testing::edit_index(&model.path(), |map| drop(map.insert(HEAD.into(), shard(1).into()))).unwrap();
    expect!(model.refused(), StoreError::NotInShard(fault) => {
        assert!(fault.elsewhere.unwrap().ends_with(&shard(10)));
    }, HEAD, shard(1), shard(10));
}

#[test]
fn tensor_in_two_shards() {
    let model = Model::new();
    let copied = testing::read_shard(&model.file(&shard(10))).unwrap().remove(0);
    testing::edit_shard(&model.file(&shard(12)), |tensors| tensors.push(copied.clone())).unwrap();
    expect!(model.refused(), StoreError::DuplicateTensor { tensor, .. } => assert_eq!(tensor, copied.name),
        shard(10), shard(12));
}

#[test]
fn tensor_in_two_directories() {
    let model = Model::new();
    let second = model.beside("second");
    testing::split_over(&model.path(), &second, |name| name == shard(12)).unwrap();
    let copied = testing::read_shard(&model.file(&shard(10))).unwrap().remove(0);
    testing::edit_shard(&second.join(shard(12)), |tensors| tensors.push(copied.clone())).unwrap();
    let error = Checkpoint::open(&[model.path(), second]).err().unwrap();
    expect!(error, StoreError::DuplicateTensor { tensor, .. } => assert_eq!(tensor, copied.name), "second", shard(10));
}

#[test]
fn unindexed_file_with_the_same_tensors() {
    let model = Model::new();
    fs::copy(model.file(&shard(10)), model.file("model.safetensors")).unwrap();
    expect!(model.refused(), StoreError::UnindexedShard { count, .. } => assert_eq!(count, 5), model.file("model.safetensors").to_str().unwrap(), INDEX);
}

#[test]
fn unindexed_file_beside_a_single_one() {
    let model = Model::new();
    testing::merge_shards(&model.path()).unwrap();
    fs::copy(original().join(shard(10)), model.file(&shard(10))).unwrap();
    expect!(model.refused(), StoreError::UnindexedShard { .. } => (), model.file("model.safetensors").to_str().unwrap(), shard(10));
}

#[test]
fn shard_still_being_downloaded() {
    let model = Model::new();
    fs::write(model.file(&format!("{}.aria2", shard(4))), "control").unwrap();
    expect!(model.refused(), StoreError::UnfinishedDownload { .. } => (), shard(4), ".aria2");
}

// Shards as files.

fn shard_is(content: &[u8]) -> StoreError {
    let model = Model::new();
    fs::write(model.file(&shard(7)), content).unwrap();
    model.refused()
}

#[test]
fn shard_empty() {
    expect!(shard_is(b""), StoreError::EmptyFile { .. } => (), shard(7));
}

#[test]
fn shard_is_something_else() {
    let lfs = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 4999999\n";
    let cases: [(&[u8], Content); 7] = [
        (lfs.as_bytes(), Content::GitLfsPointer),
        (b"<html><head><title>404</title></head></html>", Content::WebPage),
        (b"Entry not found", Content::Text("Entry not found".into())),
        (
            b"{\"error\":\"Access is restricted\"}",
            Content::Text("{\"error\":\"Access is restricted\"}".into()),
        ),
        (b"GGUF\x03\0\0\0\0\0\0\0", Content::Gguf),
        (b"PK\x03\x04\0\0\0\0\0\0\0", Content::Zip),
        (&[0; 4096], Content::Zeros),
    ];
    for (bytes, expected) in cases {
        expect!(shard_is(bytes), StoreError::WrongContent { found, .. } => assert_eq!(found, expected), shard(7));
    }
}

#[test]
fn shard_of_five_bytes() {
    expect!(shard_is(b"\x40\0\0\0\0"), StoreError::TruncatedHeader { needed: 8, found: 5, .. } => (), shard(7));
}

#[test]
fn shard_cut_inside_its_header() {
    let whole = fs::read(original().join(shard(7))).unwrap();
    expect!(shard_is(&whole[..5000]), StoreError::TruncatedHeader { needed: 30072, found: 5000, .. } => (), shard(7), "25072");
    expect!(shard_is(&whole[..30071]), StoreError::TruncatedHeader { found: 30071, .. } => (), "1 are missing");
    expect!(shard_is(&whole[..8]), StoreError::TruncatedHeader { needed: 30072, found: 8, .. } => (), shard(7));
}

#[test]
fn header_length_impossible() {
    let cases = [u64::MAX, 100_000_001, u64::from(u32::MAX), 1];
    for length in cases {
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend_from_slice(b"{}\x80\x81 and more");
        expect!(shard_is(&bytes), StoreError::HeaderLength { found, .. } => assert_eq!(found, length), shard(7));
    }
}

/// Cuts a model's file so that its last `keep` bytes of tensor `name` remain.
fn cut_inside(name: &str, keep: u64) -> (StoreError, u64) {
    let model = Model::new();
    let checkpoint = model.open().unwrap();
    let entry = checkpoint.find(name).unwrap();
    let path = PathBuf::from(checkpoint.file_name(entry.file));
    let missing = fs::metadata(&path).unwrap().len() - (entry.offset + keep);
    testing::truncate(&path, missing).unwrap();
    (model.refused(), missing)
}

#[test]
fn shard_cut_inside_an_expert_a_scale_and_the_last_tensor() {
    let expert = SCALE.replace("scale", "packed");
    let last = testing::read_shard(&original().join(shard(10))).unwrap().pop().unwrap();
    for (name, keep) in
        [(expert.as_str(), 100), (SCALE, 5), (last.name.as_str(), last.bytes.len() as u64 - 1)]
    {
        let (error, missing) = cut_inside(name, keep);
        expect!(error, StoreError::Truncated(cut) => {
            assert_eq!(cut.expected - cut.found, missing);
            assert_eq!(cut.tensors[0], name);
            assert!(cut.count >= 1 && cut.tensors.len() == cut.count.min(8));
        }, name, missing.to_string(), "-of-000012.safetensors");
    }
}

#[test]
fn all_damaged_shards_are_named_at_once() {
    let model = Model::new();
    testing::truncate(&model.file(&shard(2)), 1).unwrap();
    fs::write(model.file(&shard(4)), "").unwrap();
    testing::append(&model.file(&shard(12)), b"x").unwrap();
    expect!(model.refused(), StoreError::Several(several) => {
        assert!(matches!(several.faults[0], StoreError::Truncated(_)));
        assert!(matches!(several.faults[1], StoreError::EmptyFile { .. }));
        assert!(matches!(several.faults[2], StoreError::TrailingBytes { .. }));
        assert_eq!(several.faults.len(), 3);
    }, shard(2), shard(4), shard(12));
}

#[test]
fn shard_with_bytes_after_its_end() {
    let model = Model::new();
    testing::append(&model.file(&shard(9)), &[7; 13]).unwrap();
    expect!(model.refused(), StoreError::TrailingBytes { expected, found, .. } => assert_eq!(found - expected, 13), shard(9), "13");
}

#[cfg(unix)]
#[test]
fn shard_behind_a_broken_link() {
    let model = Model::new();
    fs::remove_file(model.file(&shard(9))).unwrap();
    std::os::unix::fs::symlink("../../blobs/0123", model.file(&shard(9))).unwrap();
    expect!(model.refused(), StoreError::BrokenLink { .. } => (), shard(9), "../../blobs/0123");
}

#[cfg(unix)]
#[test]
fn shard_behind_a_link_to_a_directory() {
    let model = Model::new();
    fs::remove_file(model.file(&shard(9))).unwrap();
    std::os::unix::fs::symlink(".", model.file(&shard(9))).unwrap();
    expect!(model.refused(), StoreError::Unreadable { .. } => (), shard(9), "not a regular file");
}

// Headers.

/// The error after a change to the object that describes the output head in its shard's header.
fn head_is(change: impl FnOnce(&mut serde_json::Value)) -> StoreError {
    let model = Model::new();
    testing::edit_header(&model.file(&shard(10)), |header| change(header.get_mut(HEAD).unwrap())).unwrap();
    model.refused()
}

#[test]
fn dtype_unknown() {
    let error = head_is(|head| head["dtype"] = "BF17".into());
    expect!(error, StoreError::UnknownDtype { dtype, .. } => assert_eq!(dtype, "BF17"), shard(10), HEAD);
}

#[test]
fn header_fields_of_wrong_types() {
    expect!(head_is(|head| head["dtype"] = 5.into()), StoreError::Header { .. } => (), shard(10), HEAD);
    expect!(head_is(|head| head["shape"] = "x".into()), StoreError::Header { .. } => (), shard(10), HEAD);
    expect!(head_is(|head| head["shape"][0] = (-1).into()), StoreError::Header { .. } => (), shard(10), HEAD, "-1");
    expect!(head_is(|head| head["shape"][0] = 1.5.into()), StoreError::Header { .. } => (), shard(10), HEAD);
    expect!(head_is(|head| head["data_offsets"] = json!([0])), StoreError::Header { .. } => (), shard(10), HEAD);
    expect!(head_is(|head| head["data_offsets"] = json!([0, 1, 2])), StoreError::Header { .. } => (), shard(10), HEAD);
    expect!(head_is(|head| head["strides"] = 1.into()), StoreError::Header { .. } => (), shard(10), HEAD, "strides");
    expect!(head_is(|head| *head = json!({"dtype": "U8"})), StoreError::Header { .. } => (), HEAD, "data_offsets");
    expect!(head_is(|head| *head = json!(null)), StoreError::Header { .. } => (), shard(10), HEAD);
    expect!(head_is(|head| head["shape"] = json!(vec![1; 65])), StoreError::Header { .. } => (), HEAD, "64 dimensions");
}

#[test]
fn shape_that_does_not_fit_the_bytes() {
    expect!(head_is(|head| head["shape"] = json!([4096, 191])), StoreError::TensorSize(size) => {
        assert_eq!((size.expected, size.found), (Some(1_564_672), 1_572_864));
    }, shard(10), HEAD, "1564672", "1572864");
}

#[test]
fn shape_that_overflows() {
    for shape in [json!([u64::MAX, 2]), json!([1_u64 << 32, 1_u64 << 32]), json!([1_u64 << 63])] {
        expect!(head_is(|head| head["shape"] = shape), StoreError::TensorSize(size) => assert_eq!(size.expected, None), HEAD);
    }
}

#[test]
fn offsets_that_are_no_range() {
    for offsets in [json!([2, 1]), json!([u64::MAX - 10, u64::MAX]), json!([0, u64::MAX])] {
        let error = head_is(|head| head["data_offsets"] = offsets);
        expect!(error, StoreError::Offsets { tensor, .. } => assert_eq!(tensor, HEAD), shard(10));
    }
}

#[test]
fn offsets_far_outside_the_file() {
    let error = head_is(|head| {
        head["shape"] = json!([1_u64 << 50, 1]);
        head["data_offsets"] = json!([0, 1_u64 << 51]);
    });
    expect!(error, StoreError::Overlap { .. } => (), shard(10), HEAD);
    let error = head_is(|head| head["data_offsets"] = json!([1_u64 << 40, (1_u64 << 40) + 1_572_864]));
    expect!(error, StoreError::Truncated(cut) => assert_eq!(cut.tensors, [HEAD]), shard(10), HEAD);
}

#[test]
fn tensors_that_share_bytes() {
    let error = head_is(|head| head["data_offsets"] = json!([2, 1_572_866]));
    expect!(error, StoreError::Overlap { first, .. } => assert_eq!(first, HEAD), shard(10), HEAD);
}

/// The error after a change to the text of a header.
fn header_text_is(change: impl FnOnce(&str) -> String) -> StoreError {
    let model = Model::new();
    testing::edit_header_text(&model.file(&shard(10)), change).unwrap();
    model.refused()
}

#[test]
fn header_is_no_json() {
    expect!(header_text_is(|text| text[..text.len() / 2].to_owned()), StoreError::Header { .. } => (), shard(10), "line");
    expect!(header_text_is(|text| text.trim_end().to_owned() + "x"), StoreError::Header { .. } => (), shard(10));
    expect!(header_text_is(|_| "[]".to_owned()), StoreError::Header { .. } => (), shard(10), "tensors");
    expect!(header_text_is(|_| format!("{{\"a\":{}", "[".repeat(10_000))), StoreError::Header { .. } => (), shard(10));
}

#[test]
fn header_names_a_tensor_or_a_field_twice() {
    let error = header_text_is(|text| text.replace("language_model.model.norm.weight", HEAD));
    expect!(error, StoreError::DuplicateTensor { first, second, .. } => assert_eq!(first, second), shard(10), HEAD);
    let error = header_text_is(|text| text.replacen("\"dtype\"", "\"dtype\":\"U8\",\"dtype\"", 1));
    expect!(error, StoreError::Header { .. } => (), shard(10), "dtype occurs twice");
    let error = header_text_is(|text| text.replacen('{', "{\"__metadata__\":{},\"__metadata__\":{},", 1));
    expect!(error, StoreError::Header { .. } => (), shard(10), "__metadata__", "twice");
}

#[test]
fn header_metadata_of_wrong_type() {
    let error = header_text_is(|text| text.replacen("\"pt\"", "[1]", 1));
    expect!(error, StoreError::Header { .. } => (), shard(10), "__metadata__");
}

// Questions to an opened checkpoint.

#[test]
fn one_scale_missing_from_file_and_index() {
    let model = Model::new();
    testing::remove_tensor(&model.path(), SCALE).unwrap();
    let checkpoint = model.open().unwrap();
    let error = checkpoint.require(SCALE, &[Dtype::U8], &[96, 2]).err().unwrap();
    expect!(error, StoreError::MissingTensor(missing) => {
        assert_eq!(missing.nearest, "language_model.model.layers.4.block_sparse_moe.experts.7.w2.");
        assert_eq!(missing.shards.len(), 1);
        assert!(missing.absent_numbers.is_empty());
    }, SCALE, shard(5));
}

#[test]
fn whole_layer_missing_from_files_and_index() {
    let model = Model::new();
    fs::remove_file(model.file(&shard(6))).unwrap();
    testing::edit_index(&model.path(), |map| map.retain(|_, name| *name != shard(6))).unwrap();
    let error = model.open().unwrap().find("language_model.model.layers.5.self_attn.A_log").err().unwrap();
    expect!(error, StoreError::MissingTensor(missing) => {
        assert_eq!(missing.nearest, "language_model.model.layers.");
        assert_eq!(missing.absent_numbers, ["model, number 6 of 12"]);
    }, "layers.5.self_attn.A_log", "number 6 of 12");
}

#[test]
fn tensor_of_another_family() {
    let error = Checkpoint::open(&[original()]).unwrap().find("transformer.wte").err().unwrap();
    expect!(error, StoreError::MissingTensor(missing) => assert_eq!(missing.nearest, ""), "transformer.wte", "config");
}

#[test]
fn wrong_shape_and_wrong_type() {
    let checkpoint = Checkpoint::open(&[original()]).unwrap();
    assert!(checkpoint.require_any(HEAD, &[Dtype::F32, Dtype::Bf16], &[&[1], &[4096, 192]]).is_ok());
    let error = checkpoint.require(HEAD, &[Dtype::Bf16], &[4096, 193]).err().unwrap();
    expect!(error, StoreError::WrongShape { found, .. } => assert_eq!(found, [4096, 192]), HEAD, shard(10), "[4096, 193]");
    let error = checkpoint.require(HEAD, &[Dtype::F32, Dtype::F16], &[4096, 192]).err().unwrap();
    expect!(error, StoreError::WrongDtype { found, .. } => assert_eq!(found, Dtype::Bf16), HEAD, shard(10), "F32 or F16");
}

#[test]
fn reads_that_do_not_fit_the_tensor() {
    let checkpoint = Checkpoint::open(&[original()]).unwrap();
    let entry = checkpoint.find(HEAD).unwrap();
    let error = checkpoint.read(entry, &mut [0; 10]).err().unwrap();
    expect!(error, StoreError::Range { end: 10, .. } => (), shard(10));
    let error = checkpoint.read_range(entry, entry.bytes - 1, &mut [0; 2]).err().unwrap();
    expect!(error, StoreError::Range { .. } => (), shard(10));
    let error = checkpoint.read_range(entry, u64::MAX, &mut [0; 2]).err().unwrap();
    expect!(error, StoreError::Range { .. } => (), shard(10));
}

#[test]
fn shard_that_shrinks_while_it_is_in_use() {
    let model = Model::new();
    let checkpoint = model.open().unwrap();
    testing::truncate(&model.file(&shard(10)), 3_000_000).unwrap();
    let error = checkpoint
        .read_vec(checkpoint.find("language_model.model.embed_tokens.weight").unwrap())
        .err()
        .unwrap();
    expect!(error, StoreError::ShortRead { .. } => (), shard(10));
}
