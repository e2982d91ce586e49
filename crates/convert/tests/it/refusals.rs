//! What a conversion refuses, by name, and that it leaves everything as it was.
use crate::support::{convert, converted, family, files, open, original, small};
use convert::{Conversion, ConvertError, Plan, Settings, begun, check_places};
use models::Dense;
use std::fs;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use store::Checkpoint;

fn copy(to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(original()).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_file())
    {
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[test]
fn the_source_and_places_in_it_are_no_destinations() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    copy(&source);
    let checkpoint = open(&source);
    let check = |place: &Path| check_places(&checkpoint, std::slice::from_ref(&source), place);
    for place in ["source", "source/inside", "source/../source/a/b", "other/../source"] {
        let error = check(&folder.path().join(place)).err().map(|error| error.to_string());
        // `..` behind what is not there names nothing.
        assert!(error.is_some_and(|error| error.contains("source") || error.contains("plain")), "{place}");
    }
    check(&folder.path().join("beside")).unwrap();
    check(&folder.path().join("source-2")).unwrap();
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(&source, folder.path().join("link")).unwrap();
        assert!(check(&folder.path().join("link/inside")).is_err());
    }
}

#[test]
fn destinations_with_something_else_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings::new(Dense::Int4, false);
    fs::write(folder.path().join("letter.txt"), "dear").unwrap();
    let error = convert(&original(), folder.path(), settings, &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("holds other files"), "{error}");
    assert_eq!(files(folder.path()).len(), 1);
    let file = folder.path().join("letter.txt");
    let error = convert(&original(), &file, settings, &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("no directory"), "{error}");

    let (_folder, place) = converted(Dense::Int4, false);
    let before = files(&place);
    let other = Settings::new(Dense::Int8, false);
    let error = convert(&original(), &place, other, &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("container of another model or with other settings"), "{error}");
    // The same again has nothing to do.
    convert(&original(), &place, settings, &mut |_| panic!("nothing to do")).unwrap();
    assert!(files(&place) == before);
    let error = convert(&place, &folder.path().join("new"), settings, &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("a container already"), "{error}");
    let thin = Settings::new(Dense::Bf16, true);
    let error = convert(&original(), &folder.path().join("new"), thin, &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("take int8 or int4"), "{error}");
}

#[test]
fn a_conversion_that_is_stopped_says_so_and_is_gone_on_with() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("container");
    let source = open(&original());
    let plan = Plan::new(&source, &family(&source), small(Dense::Int4, false)).unwrap();
    let conversion = Conversion::new(&plan, &source, &place).unwrap();
    let all = conversion.left().unwrap();
    assert_eq!(all, conversion.bytes());
    let cancel = AtomicBool::new(false);
    let stop = &mut |done| cancel.store(done > all / 2, std::sync::atomic::Ordering::Relaxed);
    let error = conversion.run(&cancel, stop).unwrap_err();
    assert!(matches!(error, ConvertError::Cancelled), "{error}");
    let found = begun(&place).unwrap().unwrap();
    assert_eq!((found.dense, found.thin), (Dense::Int4, false));

    let other = convert(&original(), &place, small(Dense::Int8, false), &mut |_| {}).unwrap_err().to_string();
    assert!(other.contains("unfinished conversion") && other.contains("--dense int4"), "{other}");
    let error = convert::verify(&place, &AtomicBool::new(false), &|_| {}).unwrap_err().to_string();
    assert!(error.contains("is not finished"), "{error}");

    let conversion = Conversion::new(&plan, &source, &place).unwrap();
    assert!(conversion.is_begun() && conversion.left().unwrap() < all * 3 / 5);
    let mut first = None;
    conversion.run(&AtomicBool::new(false), &mut |done| first = first.or(Some(done))).unwrap();
    let whole = folder.path().join("whole");
    convert(&original(), &whole, small(Dense::Int4, false), &mut |_| {}).unwrap();
    assert!(files(&place) == files(&whole));
}

#[test]
fn a_newer_version_is_refused_by_name() {
    let (_folder, place) = converted(Dense::Int4, true);
    let shard = place.join("colibri-00001-of-00010.safetensors");
    let text = fs::read(&shard).unwrap();
    let newer = |path: &Path, from: &[u8], to: &[u8]| {
        let good = fs::read(path).unwrap();
        let mut bytes = good.clone();
        let at = bytes.windows(from.len()).position(|window| window == from).unwrap();
        bytes[at..at + from.len()].copy_from_slice(to);
        fs::write(path, bytes).unwrap();
        let error = Checkpoint::open(std::slice::from_ref(&place)).err().unwrap().to_string();
        fs::write(path, good).unwrap();
        assert!(error.contains("version 2") && error.contains("colibri convert"), "{error}");
    };
    newer(&shard, b"\"colibri.container\":\"1\"", b"\"colibri.container\":\"2\"");
    newer(&place.join("colibri.sources"), b"\"colibri.container\":1", b"\"colibri.container\":2");
    assert_eq!(fs::read(&shard).unwrap(), text);
    assert!(Checkpoint::open(std::slice::from_ref(&place)).is_ok());
}

#[test]
fn the_source_is_only_read() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    copy(&source);
    let before = files(&source);
    convert(&source, &folder.path().join("a"), Settings::new(Dense::Int8, false), &mut |_| {}).unwrap();
    convert(&source, &folder.path().join("b"), Settings::new(Dense::Int8, true), &mut |_| {}).unwrap();
    assert!(files(&source) == before);
}

#[test]
fn a_thin_container_misses_its_source_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let (source, moved, thin) =
        (folder.path().join("source"), folder.path().join("moved"), folder.path().join("thin"));
    copy(&source);
    convert(&source, &thin, Settings::new(Dense::Int4, true), &mut |_| {}).unwrap();
    let size = |directory: &Path| files(directory).values().map(Vec::len).sum::<usize>();
    assert!(size(&thin) * 2 < size(&source));
    fs::rename(&source, &moved).unwrap();
    let refused = |directories: &[&Path]| {
        let directories: Vec<_> = directories.iter().map(|path| path.to_path_buf()).collect();
        Checkpoint::open(&directories).err().map(|error| error.to_string())
    };
    let error = refused(&[&thin]).unwrap();
    assert!(error.contains("source, which is not there") && error.contains("second --model"), "{error}");
    assert_eq!(refused(&[&thin, &moved]), None);

    fs::rename(&moved, &source).unwrap();
    assert_eq!(refused(&[&thin]), None);
    let shard = source.join("model-00005-of-000012.safetensors");
    let bytes = fs::read(&shard).unwrap();
    let mut changed = bytes.clone();
    let place = changed.windows(4).position(|window| window == b"\"U8\"").unwrap();
    changed[place..place + 4].copy_from_slice(b"\"I8\"");
    fs::write(&shard, &changed).unwrap();
    let error = refused(&[&thin]).unwrap();
    assert!(error.contains("00005") && error.contains("its header is another one"), "{error}");
    fs::remove_file(&shard).unwrap();
    assert!(refused(&[&thin]).unwrap().contains("00005"));
    fs::write(&shard, &bytes).unwrap();
    assert_eq!(refused(&[&thin]), None);
}
