//! `cargo xtask bench-model`: a checkpoint of random weights in the Kimi K3 format, for measurements of speed
//! only. It is written shard by shard with bounded memory; it says nothing worth reading.

mod geometry;
mod random;
mod router;
mod shard;
mod tensors;
mod tokenizer;

use crate::project;
use anyhow::{Context, Result, bail, ensure};
use geometry::{Geometry, Preset};
use random::{Pools, Random};
use serde_json::{Map, Value, json};
use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// What to write and where.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The sizes to start from
    preset: Preset,
    /// The folder to write: a new or an empty one
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Layers instead of the preset's; the first is dense, every fourth has full attention
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    layers: Option<u16>,
    /// Routed experts a layer instead of the preset's; Kimi K3 has 896
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=16384))]
    experts: Option<u16>,
    /// Experts a token instead of the preset's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    topk: Option<u16>,
    /// Ids in the vocabulary, 256 specials among them; Kimi K3 has 163840 [default: 4096; k3: 163840]
    #[arg(long, value_name = "N")]
    vocab: Option<u32>,
    /// Exponent of the experts' popularity: the one of rank r is chosen in proportion to r^-S; 0: all alike
    #[arg(long, value_name = "S", default_value_t = 0.0)]
    skew: f64,
    /// Another seed gives other numbers, the same seed the same bytes
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Write names, shapes and lengths only, with holes for the numbers: for plans of memory and inspections, on Linux
    /// and macOS
    #[arg(long)]
    sparse: bool,
}

impl Arguments {
    /// The preset with the changes asked for.
    ///
    /// # Errors
    /// When a number is out of range or two do not fit together.
    fn geometry(&self) -> Result<Geometry> {
        let vocabulary = self.vocab.map_or(self.preset.vocabulary(), |count| count as usize);
        ensure!(
            (tokenizer::VOCABULARY_MIN..=4_000_000).contains(&vocabulary),
            "--vocab {vocabulary}: expected {} (256 bytes and 256 specials) to 4000000",
            tokenizer::VOCABULARY_MIN
        );
        ensure!((0.0..=4.0).contains(&self.skew), "--skew {}: expected 0 to 4", self.skew);
        let mut geometry = Geometry::of(self.preset, vocabulary);
        let replace = |size: &mut usize, by: Option<u16>| *size = by.map_or(*size, usize::from);
        replace(&mut geometry.layers, self.layers);
        replace(&mut geometry.experts, self.experts);
        replace(&mut geometry.top, self.topk);
        ensure!(
            geometry.top <= geometry.experts,
            "{} experts a token (--topk) of {} a layer (--experts): expected no more than there are",
            geometry.top,
            geometry.experts
        );
        Ok(geometry)
    }
}

/// Writes the checkpoint; progress goes to standard error.
///
/// # Errors
/// When the arguments do not fit, the folder is not empty, the disk lacks space, or a file cannot be written; in
/// the last case nothing is left behind.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let geometry = arguments.geometry()?;
    let start = Instant::now();
    // Before anything is written: it asks for the project's own tokenizer.
    let tokenizer = tokenizer::files(&geometry, &project::root()?.join("data/k3-tiny"))?;
    let mut output = Output::create(&arguments.out)?;
    let planned = data_bytes(&geometry, arguments);
    require_space(&arguments.out, if arguments.sparse { SPARSE_BYTES } else { planned })?;
    // They take a moment to fill.
    let mut pools = (!arguments.sparse).then(|| Pools::new(arguments.seed));
    let mut random = layout_random(arguments);
    let mut weight_map = Map::new();
    let mut written = 0;
    let count = tensors::shards(&geometry);
    for index in 0..count {
        let tensors = tensors::shard(&geometry, index, arguments.skew, &mut random);
        let name = format!("model-{:05}-of-{count:06}.safetensors", index + 1);
        let path = output.file(&name);
        let file = File::create_new(&path).with_context(|| path.display().to_string())?;
        let bytes = match &mut pools {
            None => shard::write_sparse(&tensors, &file),
            Some(pools) => shard::write(&tensors, pools, &mut BufWriter::with_capacity(1 << 22, file)),
        };
        written += bytes.with_context(|| path.display().to_string())?;
        weight_map.extend(tensors.into_iter().map(|tensor| (tensor.name, Value::from(name.as_str()))));
        eprintln!(
            "{name}  {:.2} of {:.2} GB  {:.0} s",
            giga(written),
            giga(planned),
            start.elapsed().as_secs_f64()
        );
    }
    let index = json!({ "metadata": { "total_size": written }, "weight_map": weight_map });
    output.write("model.safetensors.index.json", &index.to_string())?;
    for (name, content) in tokenizer {
        output.write(name, &content)?;
    }
    output.write("generation_config.json", &geometry.generation_config().to_string())?;
    // Last, because without it no engine takes the folder for a model.
    output.write("config.json", &format!("{:#}\n", geometry.config()))?;
    output.finished = true;
    let Geometry { layers, experts, top, .. } = geometry;
    eprintln!(
        "{}: {:.2} GB, {layers} layers, {experts} experts (top {top})",
        arguments.out.display(),
        giga(written)
    );
    Ok(())
}

/// Headers, the index and the tokenizer of the largest preset, in bytes.
const SPARSE_BYTES: u64 = 250_000_000;

/// The source of everything but the pools: it is asked twice, for the sizes and for the tensors.
fn layout_random(arguments: &Arguments) -> Random {
    Random::new(arguments.seed.wrapping_add(1))
}

/// Bytes of all tensors.
fn data_bytes(geometry: &Geometry, arguments: &Arguments) -> u64 {
    let mut random = layout_random(arguments);
    (0..tensors::shards(geometry))
        .flat_map(|index| tensors::shard(geometry, index, arguments.skew, &mut random))
        .map(|tensor| tensor.bytes() as u64)
        .sum()
}

/// Fails when the disk has not room for the data and 1 % more: headers, the index, the file system's own.
fn require_space(folder: &Path, data_bytes: u64) -> Result<()> {
    let free = fs4::available_space(folder).with_context(|| format!("free space of {}", folder.display()))?;
    let needed = data_bytes + data_bytes / 100 + 16_000_000;
    ensure!(
        free >= needed,
        "{}: {:.2} GB are needed, {:.2} GB are free: choose another --out, or fewer --layers or --experts",
        folder.display(),
        giga(needed),
        giga(free)
    );
    Ok(())
}

fn giga(bytes: u64) -> f64 {
    bytes as f64 / 1e9
}

/// The folder being written. Dropped before it is finished it takes away what it made.
struct Output {
    folder: PathBuf,
    made_folder: bool,
    files: Vec<PathBuf>,
    finished: bool,
}

impl Output {
    fn create(folder: &Path) -> Result<Output> {
        let made_folder = !folder.exists();
        if made_folder {
            fs::create_dir_all(folder).with_context(|| format!("--out {}", folder.display()))?;
        } else {
            let mut entries = fs::read_dir(folder).with_context(|| format!("--out {}", folder.display()))?;
            if let Some(entry) = entries.next() {
                let name = entry.map(|entry| entry.file_name()).unwrap_or_default();
                bail!(
                    "--out {}: expected a new or empty folder, found {} in it",
                    folder.display(),
                    name.display()
                );
            }
        }
        Ok(Output { folder: folder.to_path_buf(), made_folder, files: Vec::new(), finished: false })
    }

    /// The path of a file that is about to be written.
    fn file(&mut self, name: &str) -> PathBuf {
        let path = self.folder.join(name);
        self.files.push(path.clone());
        path
    }

    fn write(&mut self, name: &str, content: &str) -> Result<()> {
        let path = self.file(name);
        fs::write(&path, content).with_context(|| path.display().to_string())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        // A failure is being reported already; what cannot be removed is seen at the next try.
        for file in &self.files {
            let _ = fs::remove_file(file);
        }
        if self.made_folder {
            let _ = fs::remove_dir(&self.folder);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A very small model: about 70 MB.
    fn arguments(out: PathBuf) -> Arguments {
        Arguments {
            preset: Preset::Small,
            out,
            layers: Some(4),
            experts: Some(8),
            topk: Some(2),
            vocab: Some(600),
            skew: 0.0,
            seed: 1,
            sparse: false,
        }
    }

    fn json_of(path: &Path) -> Value {
        serde_json::from_slice(&fs::read(path).expect("the file is there")).expect("it is JSON")
    }

    /// The header of a safetensors file and how many bytes follow it.
    fn header_of(path: &Path) -> (Map<String, Value>, u64) {
        let bytes = fs::read(path).expect("the shard is there");
        let length = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
        let header = serde_json::from_slice(&bytes[8..8 + length as usize]).expect("the header is JSON");
        assert_eq!(length % 8, 0);
        (header, bytes.len() as u64 - 8 - length)
    }

    /// Checks that a shard's tensors cover its data without gaps; returns the names and the bytes.
    fn check_shard(path: &Path) -> (Vec<String>, u64) {
        let (mut header, data) = header_of(path);
        assert_eq!(header.remove("__metadata__").expect("as in the release")["format"], "pt");
        let mut spans = Vec::new();
        for (name, entry) in &header {
            let number = |value: &Value| value.as_u64().expect("a number");
            let span = entry["data_offsets"].as_array().expect("two offsets");
            let (start, end) = (number(&span[0]), number(&span[1]));
            let width = match entry["dtype"].as_str() {
                Some("F32") => 4,
                Some("BF16") => 2,
                other => {
                    assert_eq!(other, Some("U8"), "{name}");
                    1
                }
            };
            let shape: u64 = entry["shape"].as_array().expect("a list").iter().map(number).product();
            assert_eq!(shape * width, end - start, "{name}");
            spans.push((start, end));
        }
        spans.sort_unstable();
        let covered =
            spans.iter().fold(0, |end, span| if span.0 == end { span.1 } else { panic!("gap at {end}") });
        assert_eq!(covered, data, "{}", path.display());
        (header.into_iter().map(|(name, _)| name).collect(), data)
    }

    #[test]
    fn a_small_model_is_whole_and_repeats_for_its_seed() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let out = folder.path().join("model");
        run(&arguments(out.clone())).expect("it is written");
        let index = json_of(&out.join("model.safetensors.index.json"));
        let map = index["weight_map"].as_object().expect("an object");
        let (mut names, mut total) = (0, 0);
        for shard in 1..=6 {
            let file = format!("model-{shard:05}-of-000006.safetensors");
            let (tensors, data) = check_shard(&out.join(&file));
            assert!(tensors.iter().all(|name| map[name] == file.as_str()));
            names += tensors.len();
            total += data;
        }
        assert_eq!((names, Value::from(total)), (map.len(), index["metadata"]["total_size"].clone()));
        let text = json_of(&out.join("config.json"))["text_config"].clone();
        let keys = ["num_hidden_layers", "num_experts", "num_experts_per_token", "vocab_size"];
        assert_eq!(keys.map(|key| text[key].as_u64().unwrap_or(0)), [4, 8, 2, 600]);
        assert!(
            ["tiktoken.model", "tokenizer_config.json", "generation_config.json"]
                .iter()
                .all(|name| out.join(name).is_file())
        );

        let again = folder.path().join("again");
        run(&arguments(again.clone())).expect("it is written");
        let shard = "model-00002-of-000006.safetensors";
        assert!(fs::read(out.join(shard)).expect("there") == fs::read(again.join(shard)).expect("there"));
    }

    #[cfg(unix)]
    #[test]
    fn a_sparse_model_has_headers_and_lengths_and_takes_no_room() {
        use std::os::unix::fs::MetadataExt as _;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (full, sparse) = (folder.path().join("full"), folder.path().join("sparse"));
        run(&arguments(full.clone())).expect("it is written");
        run(&Arguments { sparse: true, ..arguments(sparse.clone()) }).expect("it is written");
        for shard in 1..=6 {
            let name = format!("model-{shard:05}-of-000006.safetensors");
            assert!(check_shard(&full.join(&name)) == check_shard(&sparse.join(&name)), "{name}");
        }
        let shard = "model-00002-of-000006.safetensors";
        assert!(header_of(&full.join(shard)) == header_of(&sparse.join(shard)));
        let blocks = |folder: &Path| fs::metadata(folder.join(shard)).expect("it is there").blocks();
        assert!(blocks(&sparse) * 50 < blocks(&full), "{} of {} blocks", blocks(&sparse), blocks(&full));
    }

    #[test]
    fn a_folder_with_files_is_left_alone() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        fs::write(folder.path().join("mine"), "x").expect("a file");
        let error = run(&arguments(folder.path().to_path_buf())).expect_err("it is not empty").to_string();
        assert!(error.contains("expected a new or empty folder, found mine"), "{error}");
        assert!(folder.path().join("mine").is_file());
    }

    #[test]
    fn a_failed_run_leaves_nothing() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let out = folder.path().join("model");
        let mut output = Output::create(&out).expect("a new folder");
        output.write("config.json", "{}").expect("a file");
        assert!(out.join("config.json").is_file());
        drop(output);
        assert!(!out.exists());
    }

    #[test]
    fn numbers_that_do_not_fit_are_refused_by_name() {
        let refused = |change: fn(&mut Arguments)| {
            let mut arguments = arguments(PathBuf::new());
            change(&mut arguments);
            arguments.geometry().expect_err("it does not fit").to_string()
        };
        assert!(refused(|arguments| arguments.topk = Some(9)).contains("--topk"));
        assert!(refused(|arguments| arguments.vocab = Some(511)).contains("--vocab 511"));
        assert!(refused(|arguments| arguments.skew = f64::NAN).contains("--skew"));
    }

    #[test]
    fn a_full_disk_is_seen_before_anything_is_written() {
        let error =
            require_space(Path::new("."), u64::MAX / 2).expect_err("no disk is that large").to_string();
        assert!(error.contains("GB are needed"), "{error}");
    }
}
