//! From arguments to a loaded model: checkpoint, tokenizer, prompt, plan, engine. Knows no command.
use crate::args::{EngineArgs, ModelArgs, PromptArgs};
use crate::cores::Cores;
use crate::embedded;
use crate::errors::Failure;
use crate::partial;
use crate::progress::LoadBars;
use crate::settings;
use crate::values::DeviceChoice;
use cpu::Cpu;
use engine::plan::Request;
use engine::{Engine, Limits, Plan, Streaming, show_bytes};
use memory::pressure::{Gauge, MachineGauge};
use models::{Family, LoadError, LoadOptions};
use ops::{Device, Oracle};
use std::borrow::Borrow;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use store::container::PARTIAL;
use store::files::in_first_directory;
use store::mirror::MIRROR_BYTES_A_READ;
use store::{Access, Checkpoint, DiskReader, MirroredReader, Reader, StoreError};
use text::{Segment, Tiktoken, Tokenizer};

/// A checkpoint of a known family.
pub(crate) struct Model {
    /// Its files.
    pub(crate) checkpoint: Checkpoint,
    /// Its family and config.
    pub(crate) family: Family,
    /// Its directories as they were given.
    pub(crate) places: Vec<String>,
    /// What is odd about them.
    pub(crate) notes: Vec<String>,
}

/// How the model is called in settings: its directories, or that it is the embedded one.
pub(crate) fn places(args: &ModelArgs) -> Vec<String> {
    match args.model.as_slice() {
        [] => vec![embedded::NAME.to_owned()],
        directories => directories.iter().map(|d| d.display().to_string()).collect(),
    }
}

/// Opens the model and recognises its family.
pub(crate) fn open(args: &ModelArgs) -> Result<Model, Failure> {
    let checkpoint = match args.model.as_slice() {
        [] => embedded::open()?,
        directories => Checkpoint::open(directories).map_err(|error| explained(error, directories))?,
    };
    recognised(checkpoint, args)
}

/// Opens the model for its plan: shards may be absent.
pub(crate) fn open_for_plan(args: &ModelArgs) -> Result<Model, Failure> {
    let [_, ..] = args.model.as_slice() else { return open(args) };
    let checkpoint = Checkpoint::open_for_plan(&args.model).map_err(|error| explained(error, &args.model))?;
    recognised(checkpoint, args)
}

fn recognised(checkpoint: Checkpoint, args: &ModelArgs) -> Result<Model, Failure> {
    let places = places(args);
    let family = Family::recognise(&checkpoint).map_err(|error| located(error, &places))?;
    let notes = idle_directories(&checkpoint);
    Ok(Model { checkpoint, family, places, notes })
}

/// An error of the config, whose words do not say where it lies, with the directory.
fn located(error: LoadError, places: &[String]) -> Failure {
    let config = matches!(error, LoadError::Config(_));
    let failure = Failure::from(error);
    if config { failure.within(&places[0]) } else { failure }
}

/// An error of opening with what the user may have meant.
fn explained(error: StoreError, directories: &[PathBuf]) -> Failure {
    let unfinished = || directories.first().is_some_and(|first| first.join(PARTIAL).is_dir());
    let advice = match &error {
        StoreError::FileAbsent { .. } | StoreError::NoWeights { .. } if unfinished() => Some(
            "an unfinished conversion is there: run the same `colibri convert` again, and it goes on"
                .to_owned(),
        ),
        StoreError::DirectoryAbsent { directory } if directory.contains(',') => {
            Some("give --model once for each directory, without commas".to_owned())
        }
        StoreError::FileAbsent { .. } => directories.first().and_then(|first| snapshots(first)),
        // Perhaps a shard is there by another name.
        StoreError::MissingShards(_) => partial::open(directories).ok().and_then(|rest| {
            let notes = rest.checkpoint.notes().iter().filter(|note| note.contains("ignored")).cloned();
            Some(notes.collect::<Vec<_>>().join("; ")).filter(|notes| !notes.is_empty())
        }),
        _ => None,
    };
    let failure = Failure::from(error);
    match advice {
        Some(advice) => failure.advising(&advice),
        None => failure,
    }
}

/// If a directory is the root of a download cache: that its snapshots are meant.
fn snapshots(directory: &Path) -> Option<String> {
    let inner = directory.join("snapshots");
    let found = fs::read_dir(&inner).ok()?.flatten().map(|entry| entry.path().display().to_string());
    let mut found: Vec<String> = found.collect();
    found.sort();
    let these = if found.is_empty() { inner.join("HASH").display().to_string() } else { found.join(" or ") };
    Some(format!("this is a download cache, in which the model is {these}: give that"))
}

/// Notes on directories after the first that hold no shard.
pub(crate) fn idle_directories(checkpoint: &Checkpoint) -> Vec<String> {
    let files = checkpoint.files();
    let used = |place: &usize| {
        checkpoint.shards().iter().any(|shard| files.list()[shard.0 as usize].directory == *place)
    };
    let idle = (1..files.directories().len()).filter(|place| !used(place));
    idle.map(|place| format!("--model {} holds no shard of this model", files.directories()[place])).collect()
}

/// The most bytes a file of the tokenizer may have; the tokenizer's own limit is not larger.
const TOKENIZER_BYTES_MAX: u64 = 64 << 20;

/// The model's tokenizer.
pub(crate) fn tokenizer(model: &Model) -> Result<Tiktoken, Failure> {
    tokenizer_of(&model.checkpoint, &model.places[0], model.family.config.vocabulary)
}

const RANKS: &str = "tiktoken.model";
const NAMES: &str = "tokenizer_config.json";

/// Files of the tokenizer that are not there: the ranks, and the names of control tokens, without which nothing can be
/// said in the model's chat format.
pub(crate) fn missing_tokenizer(checkpoint: &Checkpoint) -> Vec<String> {
    let absent = |name: &&str| in_first_directory(&*checkpoint.files(), name).is_none();
    [RANKS, NAMES].into_iter().filter(absent).map(str::to_owned).collect()
}

/// The tokenizer of a checkpoint in `place` with so many ids.
pub(crate) fn tokenizer_of(
    checkpoint: &Checkpoint,
    place: &str,
    vocabulary: u32,
) -> Result<Tiktoken, Failure> {
    let ranks = checkpoint.metadata_file(RANKS, TOKENIZER_BYTES_MAX)?;
    let names = checkpoint.metadata_file(NAMES, TOKENIZER_BYTES_MAX)?;
    let tokenizer = tokenizer_from(ranks, names.as_deref(), place)?;
    tokenizer.expect_vocabulary(vocabulary).map_err(|error| Failure::from(error).within(place))?;
    Ok(tokenizer)
}

/// The tokenizer without its model: its files in the first directory are enough.
pub(crate) fn tokenizer_alone(args: &ModelArgs) -> Result<Tiktoken, Failure> {
    let Some(directory) = args.model.first() else { return tokenizer(&open(args)?) };
    let read = |name: &str| {
        let path = directory.join(name);
        let file = match fs::File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(Failure::io("opening", &path))?,
        };
        // One byte more than is accepted, so that a larger file is seen to be one.
        let mut bytes = Vec::new();
        let read = file.take(TOKENIZER_BYTES_MAX + 1).read_to_end(&mut bytes);
        read.map_err(Failure::io("reading", &path))?;
        Ok::<_, Failure>(Some(bytes))
    };
    let ranks = read(RANKS)?;
    tokenizer_from(ranks, read(NAMES)?.as_deref(), &directory.display().to_string())
}

/// The tokenizer in these files of `place`.
fn tokenizer_from(ranks: Option<Vec<u8>>, names: Option<&[u8]>, place: &str) -> Result<Tiktoken, Failure> {
    let ranks = ranks.ok_or_else(|| StoreError::FileAbsent {
        name: RANKS.into(),
        directory: place.to_owned(),
        advice: "it is the tokenizer: download it from the release".into(),
    })?;
    Tiktoken::from_bytes(&ranks, names).map_err(|error| Failure::from(error).within(place))
}

/// The ids that were given, or those of the text; at least one.
pub(crate) fn prompt(args: &PromptArgs, model: &Model) -> Result<Vec<u32>, Failure> {
    prompt_by(args, model, || tokenizer(model))
}

/// The same with a tokenizer that is made only if it is needed, or is there already.
pub(crate) fn prompt_by<T: Borrow<Tiktoken>>(
    args: &PromptArgs,
    model: &Model,
    tokenizer: impl FnOnce() -> Result<T, Failure>,
) -> Result<Vec<u32>, Failure> {
    let ids = match (&args.ids, &args.prompt) {
        (Some(ids), _) => ids.0.clone(),
        (None, Some(_)) => tokenizer()?.borrow().encode(&[Segment::Text(&text(args)?)])?,
        (None, None) => {
            return Err(Failure::Usage(
                "nothing to start from: give a text, `-` to read it from standard input, or --ids".into(),
            ));
        }
    };
    let vocabulary = model.family.config.vocabulary;
    match ids.iter().find(|id| **id >= vocabulary) {
        Some(id) => {
            Err(Failure::Usage(format!("--ids: {id} is no token of this model; ids are below {vocabulary}")))
        }
        None if ids.is_empty() => {
            Err(Failure::Usage("the prompt is empty: at least one token is needed".into()))
        }
        None => Ok(ids),
    }
}

/// The text that was given.
pub(crate) fn text(args: &PromptArgs) -> Result<String, Failure> {
    match &args.prompt {
        Some(text) if text == "-" => standard_input("the prompt", "convert it, or give --ids"),
        Some(text) => Ok(text.clone()),
        None => Err(Failure::Usage(
            "nothing to answer: give a text, or `-` to read it from standard input".into(),
        )),
    }
}

/// All of standard input, which is `what`; `advice` is for what is no text.
pub(crate) fn standard_input(what: &str, advice: &str) -> Result<String, Failure> {
    let mut bytes = Vec::new();
    let read = io::stdin().read_to_end(&mut bytes);
    read.map_err(|source| Failure::Io { what: format!("reading {what} from standard input"), source })?;
    String::from_utf8(bytes).map_err(|error| {
        Failure::Usage(format!(
            "{what} on standard input is no text: byte {} (counted from 0) is not UTF-8; {advice}",
            error.utf8_error().valid_up_to()
        ))
    })
}

/// Compute threads: as asked, or one for each fast core that this process may use.
pub(crate) fn threads(args: &EngineArgs) -> usize {
    args.threads.map_or_else(|| Cores::look().threads, |threads| threads as usize)
}

/// Starts the threads that libraries share (they pack weights), as many as may compute. To be called once.
pub(crate) fn start_threads(args: &EngineArgs) -> Result<(), Failure> {
    let threads = threads(args);
    let name = |index| format!("shared-{index}");
    let started = rayon::ThreadPoolBuilder::new().num_threads(threads).thread_name(name).build_global();
    started.map_err(|error| Failure::Io {
        what: format!("starting {threads} threads (--threads sets how many)"),
        source: io::Error::other(error),
    })
}

/// What is asked of the plan: one sequence, `copies` devices.
pub(crate) fn request(args: &EngineArgs, layers: Option<u32>, copies: u64) -> Request {
    let options = LoadOptions {
        activations: args.activations,
        layers,
        expert_top_p: args.expert_top_p,
        residency: args.dense_residency,
        ..LoadOptions::default()
    };
    Request {
        options,
        dense: args.dense(),
        context: args.context,
        sequences: 1,
        chunk: args.chunk,
        expert_cache: args.expert_cache,
        copies,
    }
}

/// What is kept in memory beside the engine, by name, in bytes.
pub(crate) type Held = Vec<(String, u64)>;

/// The plan for `tokens` tokens of prompt, beside what is held.
pub(crate) fn plan(model: &Model, request: &Request, tokens: usize, held: Held) -> Result<Plan, Failure> {
    plan_within(model, request, tokens, held, Limits::of_machine()?)
}

/// The same within memory of any size.
pub(crate) fn plan_within(
    model: &Model,
    request: &Request,
    tokens: usize,
    held: Held,
    mut limits: Limits,
) -> Result<Plan, Failure> {
    let beside = held.iter().map(|(_, bytes)| *bytes).fold(0, u64::saturating_add);
    limits.available = limits.available.saturating_sub(beside);
    let mut plan = engine::plan(&model.checkpoint, &model.family, request, limits)?;
    plan.items.extend(held);
    for (_, needed) in &mut plan.choices {
        *needed = needed.saturating_add(beside);
    }
    let (tokens, context, most) = (tokens as u64, plan.context, plan.context_most);
    if tokens > u64::from(context) {
        return Err(Failure::Engine(engine::EngineError::TooLong { tokens, context, most }));
    }
    let asked = request.expert_cache.and_then(|size| size.bytes(limits.total));
    if let (Some(asked), Some(slab)) = (asked, plan.slab)
        && asked < slab.slot_bytes()
    {
        plan.notes.push(format!(
            "--expert-cache: {} cannot hold one expert, which takes {}; one slot is used",
            show_bytes(asked),
            show_bytes(slab.slot_bytes())
        ));
    }
    Ok(plan)
}

/// The device that was asked for.
pub(crate) fn device(args: &EngineArgs) -> Result<Box<dyn Device>, Failure> {
    match args.device {
        DeviceChoice::Cpu => Ok(Box::new(Cpu::new(threads(args))?)),
        DeviceChoice::Oracle => Ok(Box::new(Oracle::new(threads(args))?)),
    }
}

/// What reads experts, and what is not as it was asked for.
pub(crate) fn reader(model: &Model, args: &EngineArgs) -> Result<(Arc<dyn Reader>, Vec<String>), Failure> {
    if args.mirror.is_empty() {
        let reader = DiskReader::new(model.checkpoint.files(), args.io);
        let notes = reader.notes().to_vec();
        return Ok((Arc::new(reader), notes));
    }
    if args.io == Access::Uring {
        return Err(Failure::Usage("--mirror cannot be read with --io uring; take --io direct".into()));
    }
    let (reader, notes) = MirroredReader::open(&model.checkpoint, &args.mirror, args.io)
        .map_err(|error| Failure::from(error).within("--mirror"))?;
    Ok((Arc::new(reader), notes))
}

/// What a mirror holds in memory with this reader: nothing where no layer in use has routed experts, which alone come from it.
pub(crate) fn held_by_mirror(
    model: &Model,
    args: &EngineArgs,
    layers: Option<u32>,
    reader: &dyn Reader,
) -> Held {
    let config = &model.family.config;
    if args.mirror.is_empty() || layers.unwrap_or(config.layers()) <= config.first_moe_layer {
        return Held::new();
    }
    let reads = u64::from(args.readers) * reader.drives() as u64;
    vec![("buffers of the mirror".to_owned(), reads * MIRROR_BYTES_A_READ)]
}

/// How experts will be read, and what is not as it was asked for.
pub(crate) fn streaming(model: &Model, args: &EngineArgs) -> Result<(Streaming, Vec<String>), Failure> {
    let (reader, mut notes) = reader(model, args)?;
    let gauge = gauge(args, &mut notes)?;
    let streaming = Streaming {
        gauge,
        policy: args.cache_policy,
        overlap: args.overlap.0,
        look_ahead: args.look_ahead,
        check: args.check_experts.0,
        ..Streaming::new(reader, args.readers)
    };
    Ok((streaming, notes))
}

/// A folder that stands for `/` where the governor, `tune` and `bench` look for short memory and paging, so that tests can make
/// both. No setting: it stands in no file and `colibri config` does not show it.
const PRESSURE_VARIABLE: &str = "COLIBRI_TEST_PRESSURE";

/// The folder below which Linux tells of memory.
pub(crate) fn memory_root() -> PathBuf {
    std::env::var_os(PRESSURE_VARIABLE).map_or_else(|| "/".into(), PathBuf::from)
}

/// Who tells when memory is short, if somebody is to; that nobody can is a note.
fn gauge(args: &EngineArgs, notes: &mut Vec<String>) -> Result<Option<Box<dyn Gauge>>, Failure> {
    if !args.governor.0 {
        return Ok(None);
    }
    if args.io == Access::Uring {
        let why = "the kernel holds the memory of slots that are read with --io uring, so none is given back while memory is short";
        return match settings::in_force().get("governor") {
            Some(origin) if !origin.is_told() => {
                Err(Failure::Usage(format!("--governor on: {why}; leave it away or take --io direct")))
            }
            _ => {
                notes.push(why.to_owned());
                Ok(None)
            }
        };
    }
    Ok(Some(Box::new(machine_gauge())))
}

/// Who tells when memory is short.
pub(crate) fn machine_gauge() -> MachineGauge {
    MachineGauge::under(memory_root())
}

/// Loads by the plan, with progress on standard error; the engine and the time it took.
pub(crate) fn load(
    model: &Model,
    plan: Plan,
    device: Box<dyn Device>,
    streaming: Streaming,
) -> Result<(Engine, Duration), Failure> {
    let start = Instant::now();
    let mut bars = LoadBars::default();
    let engine = Engine::load(&model.checkpoint, &model.family, plan, device, streaming, &mut |progress| {
        bars.show(progress);
    });
    drop(bars);
    Ok((engine?, start.elapsed()))
}
