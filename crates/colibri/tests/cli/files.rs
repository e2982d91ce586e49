//! `logits` and `trace`: the files equal the goldens, and are written where and how it was promised.
use crate::common::{TensorFile, colibri, data, distance, golden, listed, model_copy, text_of};
use half::bf16;
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize_to_file};
use std::fs;
use std::path::Path;

const PARTS: [&str; 5] = ["attention_input", "attention_output", "mlp_input", "mlp_output", "hidden"];

#[test]
fn logits_equal_the_goldens() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("logits.safetensors");
    fs::write(&out, "an older file is replaced").unwrap();
    let (ids, _) = golden("story");
    let base = ["logits", "--ids", &listed(&ids), "--activations", "exact", "--json", "--out", text_of(&out)];
    let answer = colibri(&base).good();
    assert_eq!(answer["prompt_ids"], serde_json::json!(ids));
    let (got, want) = (TensorFile::open(&out), TensorFile::golden("story"));
    assert_eq!((got.names(), got.shape("logits")), (vec!["logits".into()], vec![7, 4096]));
    let (all, wanted) = (got.floats("logits"), want.floats("logits"));
    for (position, (got, want)) in all.chunks(4096).zip(wanted.chunks(4096)).enumerate() {
        assert!(distance(got, want) <= 1e-5, "position {position}");
    }
    assert_eq!(got.metadata("numerics_version"), "1");
    assert_eq!((got.metadata("activations"), got.metadata("layers")), ("exact".into(), "all".into()));
    let bytes = fs::read(&out).unwrap();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");

    // The same bits from a text, in other chunks; other numbers from fewer layers.
    let text = "Once there was a bear who loved";
    let other = ["logits", text, "--activations", "exact", "--chunk", "3", "--out", text_of(&out)];
    assert_eq!(colibri(&[&other[..], &["--threads", "1", "--expert-cache", "9x"]].concat()).code, 0);
    assert_eq!(TensorFile::open(&out).words("logits"), got.words("logits"));
    assert!(fs::read(&out).unwrap() == bytes, "equal numbers are equal files");
    let fewer = colibri(&[&base[..], &["--layers", "4"]].concat()).good();
    assert_eq!(fewer["settings"]["layers"], 4);
    assert_ne!(TensorFile::open(&out).words("logits"), got.words("logits"));
}

#[test]
fn traces_equal_the_goldens() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("trace.safetensors");
    let (ids, want) = (listed(&golden("chat_think").0), TensorFile::golden("chat_think"));
    let positions = listed(&want.words("positions"));
    let base =
        ["trace", "--ids", &ids, "--activations", "exact", "--positions", &positions, "--out", text_of(&out)];
    assert_eq!(colibri(&base).code, 0);
    let got = TensorFile::open(&out);
    assert_eq!(got.names().len(), 9 * 5);
    for layer in 0..9 {
        for part in PARTS {
            let name = format!("layer{layer}.{part}");
            assert_eq!(got.shape(&name), want.shape(&name));
            let error = distance(&got.floats(&name), &want.floats(&name));
            assert!(error <= 1e-5, "{name}: {error:e}");
        }
    }
    // Fewer layers and positions give the same bits, in other chunks, and load no layer above.
    let some = ["--layers", "3,0", "--chunk", "5", "--json"];
    let last = listed(&want.words("positions")[..2]);
    let base =
        ["trace", "--ids", &ids, "--activations", "exact", "--positions", &last, "--out", text_of(&out)];
    let answer = colibri(&[&base[..], &some].concat()).good();
    assert_eq!(answer["settings"]["layers"], 4);
    let fewer = TensorFile::open(&out);
    assert_eq!(fewer.names().len(), 2 * 5);
    for part in PARTS {
        for layer in [0, 3] {
            let name = format!("layer{layer}.{part}");
            assert_eq!(fewer.words(&name), got.words(&name)[..2 * 192], "{name}");
        }
    }
    let all = colibri(&["trace", "--ids", "1,2,3", "--json", "--out", text_of(&out)]).good();
    assert_eq!((&all["positions"], &all["layers"][8]), (&serde_json::json!([0, 1, 2]), &8.into()));
}

/// Rows of the embedding table, as they enter layer 0.
fn embedding(ids: &[u32]) -> Vec<f32> {
    let file = fs::read(data("k3-tiny/model-00010-of-000012.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let table = tensors.tensor("language_model.model.embed_tokens.weight").unwrap();
    let row = |id: &u32| table.data()[*id as usize * 384..][..384].chunks_exact(2);
    let number = |b: &[u8]| bf16::from_le_bytes([b[0], b[1]]).to_f32();
    ids.iter().flat_map(row).map(number).collect()
}

fn write_tensor(path: &Path, name: &str, shape: &[usize], values: &[f32]) {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let view = TensorView::new(Dtype::F32, shape.to_vec(), &bytes).unwrap();
    serialize_to_file([(name, view)], None, path).unwrap();
}

#[test]
fn hidden_rows_go_in_at_the_bottom() {
    let folder = tempfile::tempdir().unwrap();
    let (rows, first, second) =
        (folder.path().join("rows"), folder.path().join("first"), folder.path().join("second"));
    let (ids, _) = golden("story");
    write_tensor(&rows, "hidden", &[ids.len(), 192], &embedding(&ids));
    assert_eq!(colibri(&["trace", "--ids", &listed(&ids), "--out", text_of(&first)]).code, 0);
    let from_rows = ["trace", "--inputs", text_of(&rows), "--chunk", "2", "--out", text_of(&second)];
    assert_eq!(colibri(&from_rows).code, 0);
    let (first, second) = (TensorFile::open(&first), TensorFile::open(&second));
    for name in first.names() {
        assert_eq!(first.words(&name), second.words(&name), "{name}");
    }
}

#[test]
fn unusable_hidden_rows_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let (rows, out) = (folder.path().join("rows"), folder.path().join("out"));
    let run =
        |code| colibri(&["trace", "--json", "--inputs", text_of(&rows), "--out", text_of(&out)]).error(code);
    assert_eq!(run(1).0, "io");
    fs::write(&rows, "no tensors").unwrap();
    assert!(run(2).1.contains("expected an f32 tensor [rows, 192]"));
    write_tensor(&rows, "x", &[2, 191], &[0.0; 382]);
    assert!(run(2).1.contains("`x` is F32 [2, 191]"));
    write_tensor(&rows, "x", &[1, 192], &[f32::NAN; 192]);
    let (kind, message) = run(1);
    assert_eq!(kind, "numerics", "{message}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "a failed run leaves no file");
}

#[test]
fn nothing_is_written_into_a_model() {
    let model = model_copy();
    fs::create_dir(model.path().join("inner")).unwrap();
    let before = fs::read_dir(model.path()).unwrap().count();
    for place in ["x.safetensors", "inner/x.safetensors", "config.json"] {
        let out = model.path().join(place);
        for command in ["logits", "trace"] {
            let run =
                [command, "--ids", "1", "--json", "--model", text_of(model.path()), "--out", text_of(&out)];
            let (kind, message) = colibri(&run).error(2);
            assert_eq!(kind, "usage");
            assert!(message.contains("--out") && message.contains("model directory"), "{message}");
        }
    }
    assert_eq!(fs::read_dir(model.path()).unwrap().count(), before);
    // The last name is too long for a temporary file: this is known before the model is loaded.
    let folder = tempfile::tempdir().unwrap();
    for command in ["logits", "trace"] {
        let out = folder.path().join("x".repeat(250));
        let answer = colibri(&[command, "--ids", "1", "--json", "--out", text_of(&out)]);
        assert_eq!(answer.error(1).0, "io");
        assert!(!answer.stderr.contains("loaded in"), "{}", answer.stderr);
    }
    let elsewhere = model.path().join("absent/x");
    let (kind, message) = colibri(&["logits", "--ids", "1", "--json", "--out", text_of(&elsewhere)]).error(1);
    assert!(kind == "io" && message.contains("absent"), "{message}");
}

/// Peak memory beyond the plan, in bytes.
#[cfg(target_os = "linux")]
fn beyond_plan(arguments: &[&str]) -> i64 {
    let answer = colibri(arguments).good();
    let bytes = |key: &str| answer["stats"]["memory"][key].as_i64().unwrap();
    bytes("peak_bytes") - bytes("planned_bytes")
}

/// 2000 rows of logits are 33 MB, and 2000 rows of one layer 8 MB: they are not in memory together.
#[cfg(target_os = "linux")]
#[test]
fn memory_stays_as_planned_whatever_the_chunk() {
    let folder = tempfile::tempdir().unwrap();
    let (ids, out) = (vec!["5"; 2000].join(","), folder.path().join("out"));
    for command in ["logits", "trace"] {
        // The first layer alone is enough: what counts is the rows that leave the model.
        let layers = if command == "logits" { "1" } else { "0" };
        let with = |ids: &str, chunk: &str| {
            beyond_plan(&[
                command,
                "--json",
                "--layers",
                layers,
                "--ids",
                ids,
                "--chunk",
                chunk,
                "--context",
                "2048",
                "--out",
                text_of(&out),
            ])
        };
        // What the program itself takes.
        let idle = with("5", "1");
        let full = with(&ids, "2000");
        assert!(full - idle <= 16_000_000, "{command}: {full} bytes beyond the plan, {idle} without work");
    }
}

#[test]
fn rows_that_are_written_are_fed_a_few_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let (ids, out) = (listed(&[5; 70]), folder.path().join("out"));
    let run = ["logits", "--json", "--layers", "1", "--ids", &ids, "--chunk", "4096", "--out", text_of(&out)];
    let answer = colibri(&run);
    assert_eq!(answer.good()["settings"]["chunk"], 64);
    assert!(
        answer.stderr.contains("note: 64 tokens are computed together instead of 4096"),
        "{}",
        answer.stderr
    );
    assert!(answer.stderr.contains("results of 64 rows on their way"), "{}", answer.stderr);
    let large = TensorFile::open(&out).words("logits");
    assert_eq!(large.len(), 70 * 4096);
    let run = ["logits", "--json", "--layers", "1", "--ids", &ids, "--chunk", "7", "--out", text_of(&out)];
    assert_eq!(colibri(&run).good()["settings"]["chunk"], 7);
    assert!(TensorFile::open(&out).words("logits") == large, "the chunk changes no bit");
}

/// As a downloader lays it out: the directory holds links, the files lie elsewhere.
#[cfg(unix)]
#[test]
fn what_a_models_links_lead_to_is_not_written_either() {
    let (model, cache) = (model_copy(), tempfile::tempdir().unwrap());
    let (snapshot, blobs) = (cache.path().join("snapshots/0123"), cache.path().join("blobs"));
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir(&blobs).unwrap();
    for entry in fs::read_dir(model.path()).unwrap().map(Result::unwrap) {
        let name = entry.file_name();
        fs::rename(entry.path(), blobs.join(&name)).unwrap();
        std::os::unix::fs::symlink(Path::new("../../blobs").join(&name), snapshot.join(&name)).unwrap();
    }
    let config = fs::read(blobs.join("config.json")).unwrap();
    let run = |out: &Path| {
        colibri(&["logits", "--ids", "1", "--json", "--model", text_of(&snapshot), "--out", text_of(out)])
    };
    for place in [&blobs.join("config.json"), &blobs.join("new"), &snapshot.join("config.json")] {
        let (kind, message) = run(place).error(2);
        assert!(kind == "usage" && message.contains("nothing is ever written"), "{message}");
    }
    assert_eq!(fs::read(blobs.join("config.json")).unwrap(), config);
    run(&cache.path().join("logits")).good();
    // The root of the cache is no model, but it is clear which is meant.
    let (kind, message) = colibri(&["run", "x", "--json", "--model", text_of(cache.path())]).error(1);
    assert!(kind == "checkpoint" && message.contains("config.json is not in"), "{message}");
    assert!(message.contains(text_of(&snapshot)), "{message}");
}

#[cfg(unix)]
#[test]
fn only_regular_files_are_replaced() {
    use std::os::unix::fs::{FileTypeExt as _, symlink};
    let folder = tempfile::tempdir().unwrap();
    let [fifo, to_fifo, nowhere, link, file] =
        ["fifo", "to_fifo", "nowhere", "link", "file"].map(|name| folder.path().join(name));
    let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    symlink(&fifo, &to_fifo).unwrap();
    symlink("absent", &nowhere).unwrap();
    symlink("file", &link).unwrap();
    fs::write(&file, "old").unwrap();
    let run =
        |out: &Path| colibri(&["logits", "--ids", "1", "--layers", "1", "--json", "--out", text_of(out)]);
    for (out, why) in [
        (&fifo, "no regular file"),
        (&to_fifo, "no regular file"),
        (&nowhere, "link to something that is not there"),
        (&folder.path().to_path_buf(), "a file name is expected"),
    ] {
        let (kind, message) = run(out).error(2);
        assert!(kind == "usage" && message.contains("--out") && message.contains(why), "{message}");
    }
    assert!(fs::symlink_metadata(&fifo).unwrap().file_type().is_fifo());
    // A link stays one, and what it leads to is replaced.
    run(&link).good();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(TensorFile::open(&file).shape("logits"), [1, 4096]);
}
