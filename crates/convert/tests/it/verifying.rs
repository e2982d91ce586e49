//! Reading a container back.
use crate::support::{converted, files};
use convert::{Report, verify};
use models::Dense;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use store::checksums::List;
use store::files::DiskFiles;

fn report(place: &Path) -> Report {
    verify(place, &AtomicBool::new(false), &|_| {}).unwrap()
}

/// Changes one bit of a file and says what is found.
fn spoiled(place: &Path, file: &str, offset: u64) -> Report {
    let path = place.join(file);
    let good = fs::read(&path).unwrap();
    let mut bad = good.clone();
    bad[offset as usize] ^= 4;
    fs::write(&path, bad).unwrap();
    let report = report(place);
    fs::write(&path, good).unwrap();
    report
}

#[test]
fn what_was_written_is_found_as_it_was() {
    for thin in [false, true] {
        let (_folder, place) = converted(Dense::Int4, thin);
        let read = AtomicU64::new(0);
        let count = |bytes| {
            read.fetch_add(bytes, Ordering::Relaxed);
        };
        let report = verify(&place, &AtomicBool::new(false), &count).unwrap();
        assert_eq!(report.faults, []);
        assert_eq!(read.into_inner(), report.bytes);
        assert!(report.bytes == convert::bytes_to_verify(&place).unwrap() && report.compared > 50);
    }
}

#[test]
fn a_changed_byte_is_named_wherever_it_is() {
    let (_folder, place) = converted(Dense::Int8, false);
    let list = List::read(&DiskFiles::open(std::slice::from_ref(&place)).unwrap()).unwrap().unwrap();
    // The first, the last and a middle byte of parts of every kind.
    for line in
        list.lines.iter().step_by(37).chain(list.lines.iter().rev().take(8)).filter(|line| line.bytes > 0)
    {
        for offset in [line.offset, line.offset + line.bytes / 2, line.offset + line.bytes - 1] {
            let report = spoiled(&place, &line.file, offset);
            assert_eq!(report.faults.len(), 1, "{line:?}: {:?}", report.faults);
            let fault = &report.faults[0];
            assert!(fault.file.ends_with(&line.file) && fault.what == line.what, "{line:?}: {fault:?}");
        }
    }
    assert_eq!(report(&place).faults, []);
    // Between two parts.
    let lines: Vec<_> = list.lines.windows(2).filter(|pair| pair[0].file == pair[1].file).collect();
    let gap = lines.iter().find(|pair| pair[0].offset + pair[0].bytes < pair[1].offset).unwrap();
    let report = spoiled(&place, &gap[0].file, gap[1].offset - 1);
    assert!(report.faults[0].found.contains("padding"), "{:?}", report.faults);
}

#[test]
fn lost_and_shortened_files_are_named() {
    let (_folder, place) = converted(Dense::Int8, false);
    let name = files(&place).keys().find(|name| name.starts_with("colibri-00003")).unwrap().clone();
    let (path, bytes) = (place.join(&name), fs::read(place.join(&name)).unwrap());
    fs::write(&path, &bytes[..bytes.len() - 5000]).unwrap();
    let found = report(&place).faults;
    assert!(!found.is_empty() && found.iter().all(|fault| fault.file.ends_with(&name)), "{found:?}");
    fs::write(&path, [&bytes[..], &[0; 5000]].concat()).unwrap();
    assert!(report(&place).faults[0].found.contains("not listed"));
    fs::remove_file(&path).unwrap();
    assert!(report(&place).faults[0].found.contains("cannot be read"));
    let error =
        verify(&crate::support::original(), &AtomicBool::new(false), &|_| {}).unwrap_err().to_string();
    assert!(error.contains("no colibri.checksums"), "{error}");
}
