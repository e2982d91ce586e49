//! Converting the tiny model into a temporary folder.
use convert::{Conversion, ConvertError, Plan, Settings};
use models::{Dense, Family};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use store::Checkpoint;

/// The tiny model in the repository.
pub(crate) fn original() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/k3-tiny")
}

pub(crate) fn open(directory: &Path) -> Checkpoint {
    Checkpoint::open(&[directory.to_owned()]).unwrap()
}

pub(crate) fn family(checkpoint: &Checkpoint) -> Family {
    Family::recognise(checkpoint).unwrap()
}

/// Small enough that the tiny model has several files a layer and many places in each to go on from.
pub(crate) fn small(dense: Dense, thin: bool) -> Settings {
    Settings { file_bytes: 700_000, sync_bytes: 60_000, ..Settings::new(dense, thin) }
}

/// Converts a model; `event` is called at every step of progress.
pub(crate) fn convert(
    source: &Path,
    destination: &Path,
    settings: Settings,
    event: &mut dyn FnMut(u64),
) -> Result<(), ConvertError> {
    let checkpoint = open(source);
    let plan = Plan::new(&checkpoint, &family(&checkpoint), settings)?;
    Conversion::new(&plan, &checkpoint, destination)?.run(&AtomicBool::new(false), event)
}

/// A container of the tiny model.
pub(crate) fn converted(dense: Dense, thin: bool) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("container");
    convert(&original(), &place, Settings::new(dense, thin), &mut |_| {}).unwrap();
    (folder, place)
}

/// Every file of a directory with its bytes.
pub(crate) fn files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(directory).unwrap().map(Result::unwrap);
    let file =
        |entry: fs::DirEntry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap());
    entries.map(file).collect()
}
