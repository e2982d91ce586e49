//! Disks that fail: one expert's failure is named and touches no other, and nothing that failed stays cached.

use super::*;

/// Requests all experts and returns the one error and the number of those that arrived whole.
fn all_but_one(reader: FaultyReader, readers: u32) -> (ExpertError, usize, CacheStatistics) {
    let (mut cache, _) = cache(reader, 12, readers);
    let (mut request, mut arrivals) = (cache.request(&all().collect::<Vec<_>>()), Vec::new());
    assert!(cache.pump(&mut request, &mut arrivals));
    let (mut errors, mut whole) = (Vec::new(), 0);
    for arrival in arrivals {
        match arrival.result {
            Ok(lease) => {
                assert_eq!(cache.bytes(&lease), expected(lease.id()));
                whole += 1;
                cache.release(lease, 0);
            }
            Err(error) => errors.push(error),
        }
    }
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert_eq!(cache.cached().len(), whole, "what failed is not cached");
    (errors.remove(0), whole, cache.statistics())
}

/// The messages of an error and all its sources.
fn chain(error: &ExpertError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

#[test]
fn an_error_that_passes_is_not_seen() {
    let (mut cache, _) = cache(faulty().failing_once(0, span(id(1, 3))), 12, 2);
    cache.touch(&all().collect::<Vec<_>>());
    assert_eq!((cache.statistics().retries, cache.statistics().failed), (1, 0));
}

#[test]
fn an_error_that_stays_fails_one_expert_by_name() {
    for readers in [1, 8] {
        let reader = faulty()
            .failing(0, span(id(1, 3)).start + 50..span(id(1, 3)).end)
            .with_delays(Duration::from_millis(1));
        let (error, whole, statistics) = all_but_one(reader, readers);
        let text = chain(&error);
        assert!(
            text.starts_with(
                "layer 1 expert 3 could not be read: reading 78 bytes at byte 447 of memory file 0"
            ),
            "{text}"
        );
        assert!(text.ends_with("injected input/output error"), "{text}");
        assert_eq!((whole, statistics.failed, statistics.retries), (11, 1, 3));
        assert_eq!(statistics.bytes_read, 11 * PAYLOAD_BYTES + 50);
    }
}

#[test]
fn a_failed_expert_is_tried_again_by_the_next_request() {
    let (mut cache, _) = cache(faulty().failing_times(0, span(id(1, 3)), 4), 1, 1);
    assert_eq!(cache.fail(id(1, 3)).id(), id(1, 3));
    assert_eq!(cache.cached(), []);
    cache.touch(&[id(1, 3)]);
    assert_eq!((cache.statistics().failed, cache.statistics().reads), (1, 2));
}

#[test]
fn all_who_wait_for_a_failing_read_are_told() {
    let gate = Gate::closed();
    let (mut cache, _) = cache(faulty().failing(0, span(id(1, 3))).with_gate(Arc::clone(&gate)), 1, 1);
    let (mut first, mut second) = (cache.request(&[id(1, 3)]), cache.request(&[id(1, 3)]));
    gate.open();
    let mut arrivals = Vec::new();
    assert!(cache.pump(&mut first, &mut arrivals));
    let mut other = cache.request(&[id(1, 0)]);
    assert!(matches!(cache.next(&mut other, None), Next::NeedsSlots), "the error has not been told to all");
    assert!(cache.pump(&mut second, &mut arrivals));
    assert!(arrivals.len() == 2 && arrivals.iter().all(|arrival| arrival.result.is_err()));
    assert!(matches!(cache.next(&mut other, None), Next::Arrived(_)));
    assert_eq!(cache.statistics().failed, 1);
}

#[test]
fn a_guess_that_fails_leaves_nothing_behind() {
    let (mut cache, _) = cache(faulty().failing_times(0, span(id(1, 3)), 4), 1, 1);
    cache.prefetch(&[id(1, 3)]);
    cache.settle();
    assert_eq!((cache.cached().len(), cache.statistics().failed), (0, 1));
    cache.touch(&[id(1, 3)]);
}

#[test]
fn a_file_that_was_cut_off_is_named() {
    // Expert 1 lies last in its file.
    let (error, whole, statistics) = all_but_one(faulty().truncated(1, span(id(2, 1)).end - 1), 4);
    let text = chain(&error);
    assert!(text.contains("layer 2 expert 1 could not be read: memory file 1 ends at byte 780"), "{text}");
    assert_eq!((whole, statistics.failed, statistics.retries), (11, 1, 0));
}

#[test]
fn a_scale_of_255_is_named_with_its_row() {
    let mut files = files();
    let place = start(id(2, 4)) + PACKED_BYTES + 17;
    files[1][place as usize] = 255;
    // The same byte in packed codes is an ordinary one.
    files[1][start(id(2, 3)) as usize] = 255;
    let reader = Arc::new(MemoryReader::new(files));
    let slab = Slab::new(12, PAYLOAD_BYTES).unwrap();
    let mut cache = ExpertCache::new(catalog(), reader, slab, 1).unwrap();
    let text = cache.fail(id(2, 4)).to_string();
    let wanted = "layer 2 expert 4: row 2 of scale holds the byte 255, which no valid scale has (byte 382 of memory file 1)";
    assert!(place == 382 && text.starts_with(wanted), "{text}");
    let mut request = cache.request(&[id(2, 3)]);
    let Next::Arrived(arrivals) = cache.next(&mut request, None) else { panic!("it arrives") };
    cache.release_all(arrivals).unwrap();
    assert_eq!(cache.cached(), [id(2, 3)]);
}

#[test]
fn an_expert_that_is_not_is_named_and_the_others_arrive() {
    let (mut cache, _) = cache(faulty(), 2, 1);
    let (mut request, mut arrivals) = (cache.request(&[id(1, 6), id(1, 0), id(0, 0), id(1, 6)]), Vec::new());
    assert_eq!(request.remaining(), 3);
    assert!(cache.pump(&mut request, &mut arrivals));
    assert_eq!(request.remaining(), 0);
    let (whole, errors): (Vec<_>, Vec<_>) = arrivals.into_iter().partition(|arrival| arrival.result.is_ok());
    assert_eq!((whole.len(), errors.len()), (1, 2));
    cache.release_all(whole).unwrap();
    let text = errors[0].result.as_ref().unwrap_err().to_string();
    assert!(
        text.contains(
            "layer 1 expert 6 was asked for, but the model has experts 0 to 6 (excluded) in layers 1..3"
        ),
        "{text}"
    );
}

#[test]
fn a_reader_that_panics_fails_its_expert_only() {
    struct Panicking(MemoryReader);
    impl Reader for Panicking {
        fn read_at(&self, file: u32, offset: u64, into: &mut [u8]) -> std::io::Result<usize> {
            if span(id(1, 2)).contains(&offset) && file == 0 {
                std::panic::resume_unwind(Box::new("broken")); // as `panic!`, without the noise
            }
            self.0.read_at(file, offset, into)
        }
        fn file_name(&self, file: u32) -> String {
            self.0.file_name(file)
        }
    }
    let reader = Arc::new(Panicking(MemoryReader::new(files())));
    let mut cache = ExpertCache::new(catalog(), reader, Slab::new(1, PAYLOAD_BYTES).unwrap(), 1).unwrap();
    let error = cache.fail(id(1, 2));
    assert!(matches!(error, ExpertError::Panicked { .. }), "{error}");
    cache.touch(&[id(1, 3)]);
}
