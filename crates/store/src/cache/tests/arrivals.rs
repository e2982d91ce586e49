//! What arrives, when, and what stays when requests are given up.

use super::*;

#[test]
fn all_bytes_arrive_whatever_the_readers_do() {
    for readers in [1, 8] {
        for slots in [12, 40] {
            let reader =
                faulty().with_delays(Duration::from_millis(1)).with_short_reads().with_interruptions();
            let (mut cache, reader) = cache(reader, slots, readers);
            let ids: Vec<_> = all().chain(all()).collect();
            let leases = cache.get(&ids);
            assert!(leases.iter().map(Lease::id).eq(all()), "each once");
            let statistics = cache.statistics();
            assert_eq!((statistics.hits, statistics.misses, statistics.reads), (0, 12, 12));
            assert_eq!((statistics.bytes_read, reader.bytes()), (12 * PAYLOAD_BYTES, 12 * PAYLOAD_BYTES));
            assert!(statistics.wait > Duration::ZERO);
            cache.release_leases(leases);
            cache.touch(&ids);
            assert_eq!((cache.statistics().hits, cache.statistics().reads), (12, 12));
        }
    }
}

#[test]
fn reads_are_in_disk_order() {
    let (mut cache, reader) = cache(faulty(), 12, 1);
    cache.touch(&[id(2, 1), id(1, 1), id(1, 3), id(1, 0), id(2, 5)]);
    assert_eq!(reader.calls(), places(&[id(1, 0), id(1, 3), id(1, 1), id(2, 5), id(2, 1)]));
}

#[test]
fn guesses_that_are_wanted_are_read_among_the_demanded() {
    let gate = Gate::closed();
    let (mut cache, reader) = cache(faulty().with_gate(Arc::clone(&gate)), 12, 1);
    cache.prefetch(&[id(1, 0), id(1, 5), id(1, 3), id(2, 0)]);
    gate.wait_for(1); // expert 0 has begun
    let mut request = cache.request(&[id(1, 3), id(2, 5), id(1, 4)]);
    gate.open();
    let mut arrivals = Vec::new();
    assert!(cache.pump(&mut request, &mut arrivals));
    cache.release_all(arrivals).unwrap();
    cache.settle();
    let order = [id(1, 0), id(1, 4), id(1, 3), id(2, 5), id(1, 5), id(2, 0)];
    assert_eq!(reader.calls(), places(&order), "what began, what is wanted, what else was guessed");
}

#[test]
fn one_slot_serves_a_request_of_many_one_after_the_other() {
    for readers in [1, 8] {
        let (mut cache, _) = cache(faulty().with_delays(Duration::from_millis(1)), 1, readers);
        let ids: Vec<_> = all().collect();
        let (mut request, mut seen) = (cache.request(&ids), Vec::new());
        for fence in 1..=12 {
            let mut arrivals = Vec::new();
            let finished = cache.pump(&mut request, &mut arrivals);
            assert_eq!((arrivals.len(), finished), (1, fence == 12));
            let lease = arrivals.remove(0).result.unwrap();
            assert_eq!(cache.bytes(&lease), expected(lease.id()));
            seen.push(lease.id());
            assert!(finished || matches!(cache.next(&mut request, None), Next::NeedsSlots));
            cache.release(lease, fence);
            assert!(
                finished || matches!(cache.next(&mut request, None), Next::NeedsSlots),
                "the fence holds it"
            );
            cache.retire(fence);
        }
        seen.sort_unstable();
        assert_eq!(seen, ids);
        assert_eq!((cache.statistics().misses, cache.statistics().evictions), (12, 11));
    }
}

#[test]
fn a_deadline_ends_the_wait() {
    let gate = Gate::closed();
    let (mut cache, _) = cache(faulty().with_gate(Arc::clone(&gate)), 2, 1);
    let mut request = cache.request(&[id(1, 0)]);
    for milliseconds in [0, 1] {
        let deadline = Some(Duration::from_millis(milliseconds));
        assert!(matches!(cache.next(&mut request, deadline), Next::TimedOut));
    }
    gate.open();
    let mut arrivals = Vec::new();
    assert!(cache.pump(&mut request, &mut arrivals));
    assert!(matches!(cache.next(&mut request, Some(Duration::ZERO)), Next::Finished));
    cache.release(arrivals.remove(0).result.unwrap(), 0);
}

#[test]
fn requests_share_a_read() {
    let gate = Gate::closed();
    let (mut cache, _) = cache(faulty().with_gate(Arc::clone(&gate)), 1, 1);
    let (mut first, mut second) = (cache.request(&[id(1, 0)]), cache.request(&[id(1, 0)]));
    gate.open();
    let mut arrivals = Vec::new();
    assert!(cache.pump(&mut first, &mut arrivals) && cache.pump(&mut second, &mut arrivals));
    let leases: Vec<_> = arrivals.into_iter().map(|arrival| arrival.result.unwrap()).collect();
    assert_eq!(leases[0].slot(), leases[1].slot());
    assert_eq!((cache.statistics().misses, cache.statistics().reads), (2, 1));
    let mut other = cache.request(&[id(1, 1)]);
    for lease in leases {
        assert!(matches!(cache.next(&mut other, None), Next::NeedsSlots), "somebody holds it");
        cache.release(lease, 0);
    }
    assert!(matches!(cache.next(&mut other, None), Next::Arrived(_)));
}

#[test]
fn an_abandoned_request_keeps_what_has_begun_and_drops_the_rest() {
    let gate = Gate::closed();
    let (mut cache, _) = cache(faulty().with_gate(Arc::clone(&gate)), 4, 1);
    let request = cache.request(&[id(1, 0), id(1, 5), id(1, 4)]);
    gate.wait_for(1);
    cache.abandon(request);
    gate.open();
    cache.settle();
    assert_eq!(cache.cached(), [id(1, 0)]);
    assert_eq!(cache.statistics().reads, 1);
    // All slots are free again.
    let leases = cache.get(&[id(2, 0), id(2, 1), id(2, 2), id(2, 3)]);
    assert_eq!(cache.statistics().evictions, 1);
    cache.release_leases(leases);
}

#[test]
fn abandoning_takes_no_read_from_others() {
    let gate = Gate::closed();
    let (mut cache, _) = cache(faulty().with_gate(Arc::clone(&gate)), 4, 1);
    let given_up = cache.request(&[id(1, 0), id(1, 5), id(1, 4)]);
    let mut kept = cache.request(&[id(1, 4)]);
    gate.wait_for(1);
    drop(given_up); // the same as abandoning, once the cache hears of it
    cache.drain();
    gate.open();
    let mut arrivals = Vec::new();
    assert!(cache.pump(&mut kept, &mut arrivals));
    let lease = arrivals.remove(0).result.unwrap();
    assert_eq!(cache.bytes(&lease), expected(id(1, 4)));
    cache.release(lease, 0);
    assert_eq!(cache.cached(), [id(1, 0), id(1, 4)]);
    assert_eq!(cache.statistics().reads, 2);
}

#[test]
fn dropping_the_cache_ends_its_threads_and_drops_the_queue() {
    for readers in [1, 8] {
        let gate = Gate::closed();
        let (mut cache, reader) = cache(faulty().with_gate(Arc::clone(&gate)), 12, readers);
        let request = cache.request(&all().collect::<Vec<_>>());
        gate.wait_for(readers);
        let queue = Arc::clone(&cache.queue);
        let opener = std::thread::spawn(move || {
            while !queue.closed().load(std::sync::atomic::Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
            gate.open();
        });
        drop(cache);
        opener.join().unwrap();
        assert_eq!(reader.calls().len(), readers as usize, "only what had begun was read");
        assert_eq!(Arc::strong_count(&reader), 1, "the threads are gone");
        drop(request);
    }
}

#[test]
fn preloading_makes_everything_resident() {
    let (mut cache, _) = cache(faulty().with_delays(Duration::from_millis(1)), 12, 4);
    let mut told = Vec::new();
    cache.preload(&mut |done, total| told.push((done, total))).unwrap();
    assert_eq!(told.last(), Some(&(12, 12)));
    assert!(told.is_sorted());
    for id in all() {
        let (slot, _) = cache.place_of(id).unwrap();
        assert_eq!(cache.slab().read(slot)[..PAYLOAD_BYTES as usize], expected(id));
    }
    cache.touch(&all().collect::<Vec<_>>());
    assert_eq!(
        (cache.statistics().reads, cache.statistics().hits, cache.statistics().evictions),
        (12, 12, 0)
    );
}

#[test]
fn preloading_needs_slots_and_whole_files() {
    let (mut small, _) = cache(faulty(), 11, 1);
    let error = small.preload(&mut |_, _| {}).unwrap_err();
    assert!(error.to_string().starts_with("all 12 experts are to be loaded, but the cache has 11 slots;"));
    assert!(matches!(error, CacheError::TooFewSlots { experts: 12, slots: 11 }), "{error}");
    assert_eq!(small.statistics().reads, 0);

    let (mut broken, _) = cache(faulty().failing(1, span(id(2, 3))), 12, 2);
    let error = broken.preload(&mut |_, _| {}).unwrap_err();
    assert!(
        matches!(error, CacheError::Expert(ExpertError::Read { id: ExpertId { layer: 2, expert: 3 }, .. })),
        "{error}"
    );
    assert_eq!(broken.statistics().lost_leases, 0);
}

#[test]
fn preloading_names_slots_held_for_failed_experts() {
    let (mut cache, _) = cache(faulty().failing_times(0, span(id(1, 3)), 4), 12, 1);
    let mut untold = cache.request(&[id(1, 3)]);
    cache.settle();
    let error = cache.preload(&mut |_, _| {}).unwrap_err();
    assert!(matches!(error, CacheError::SlotsHeld { experts: 12, slots: 12, ready: 11 }), "{error}");
    assert!(error.to_string().contains("into 12 slots, but only 11 are there"), "{error}");
    assert!(cache.pump(&mut untold, &mut Vec::new()));
    cache.preload(&mut |_, _| {}).unwrap();
}
