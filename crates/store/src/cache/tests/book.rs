//! Who holds which slot: recency, fences, guesses, and leases that go astray.

use super::*;

fn idle(cache: &ExpertCache) -> Vec<ExpertId> {
    cache.slots.idle_experts().into_iter().map(|expert| cache.catalog.id(expert)).collect()
}

#[test]
fn the_expert_let_go_longest_ago_is_evicted() {
    let (mut cache, _) = cache(faulty(), 3, 1);
    for expert in 0..3 {
        cache.touch(&[id(1, expert)]);
    }
    cache.touch(&[id(1, 0)]);
    assert_eq!(idle(&cache), [id(1, 1), id(1, 2), id(1, 0)]);
    cache.touch(&[id(2, 0)]);
    assert_eq!(cache.cached(), [id(1, 0), id(1, 2), id(2, 0)]);
}

#[test]
fn hits_of_a_request_are_not_evicted_for_its_misses() {
    let (mut cache, _) = cache(faulty(), 2, 1);
    cache.touch(&[id(2, 0)]);
    cache.touch(&[id(1, 1)]);
    // The miss comes first on disk, and the hit is the oldest.
    let leases = cache.get(&[id(1, 0), id(2, 0)]);
    assert_eq!(cache.statistics().hits, 1);
    assert_eq!(cache.cached(), [id(1, 0), id(2, 0)]);
    cache.release_leases(leases);
}

#[test]
fn a_slot_whose_submission_runs_is_passed_over() {
    let (mut cache, _) = cache(faulty(), 2, 1);
    let mut leases = cache.get(&[id(1, 0), id(1, 1)]);
    let (second, first) = (leases.pop().unwrap(), leases.pop().unwrap());
    cache.release(first, 7);
    cache.release(second, 6);
    cache.retire(6);
    cache.touch(&[id(2, 0)]);
    assert_eq!(cache.cached(), [id(1, 0), id(2, 0)], "the older one was still in use");
    cache.retire(5); // an older number takes nothing back
    cache.retire(7);
    cache.touch(&[id(2, 1)]);
    assert_eq!(cache.cached(), [id(2, 0), id(2, 1)]);
}

#[test]
fn a_device_that_reads_on_after_retiring_is_named() {
    let (mut cache, _) = cache(faulty(), 1, 1);
    let lease = cache.get(&[id(1, 0)]).remove(0);
    let slab = Arc::clone(cache.slab());
    let still_reading = slab.read(lease.slot());
    cache.release(lease, 1);
    cache.retire(1);
    let error = cache.fail(id(1, 1));
    assert!(matches!(error, ExpertError::SlotHeld { slot: 0, .. }), "{error}");
    drop(still_reading);
    cache.touch(&[id(1, 1)]);
}

#[test]
fn a_guess_is_a_hit_later() {
    let (mut cache, _) = cache(faulty(), 4, 1);
    cache.prefetch(&[id(1, 1), id(1, 0), id(1, 1), id(9, 9)]);
    cache.settle();
    assert_eq!(idle(&cache), [id(1, 0), id(1, 1)]);
    cache.touch(&[id(1, 0), id(1, 1)]);
    let statistics = cache.statistics();
    assert_eq!((statistics.hits, statistics.misses, statistics.reads), (2, 0, 2));
}

#[test]
fn a_request_joins_a_guess_on_its_way() {
    let gate = Gate::closed();
    let (mut cache, _) = cache(faulty().with_gate(Arc::clone(&gate)), 4, 1);
    cache.prefetch(&[id(1, 0), id(1, 5), id(1, 4)]);
    gate.wait_for(1); // 0 has begun, 5 and 4 wait
    let mut request = cache.request(&[id(1, 0), id(1, 4)]);
    gate.open();
    cache.settle();
    let mut arrivals = Vec::new();
    assert!(cache.pump(&mut request, &mut arrivals));
    assert_eq!((cache.statistics().misses, cache.statistics().reads), (2, 3));
    assert_eq!(arrivals.len(), 2);
    for arrival in arrivals {
        let lease = arrival.result.unwrap();
        assert_eq!(cache.bytes(&lease), expected(lease.id()));
        cache.release(lease, 0);
    }
    assert_eq!(idle(&cache)[0], id(1, 5), "the guess that nobody wanted landed as well");
}

#[test]
fn guesses_evict_neither_what_is_held_nor_each_other() {
    let (mut cache, _) = cache(faulty(), 2, 1);
    let lease = cache.get(&[id(1, 0)]).remove(0);
    cache.touch(&[id(1, 1)]);
    cache.prefetch(&[id(1, 1), id(2, 0), id(2, 1)]);
    cache.settle();
    assert_eq!(cache.cached(), [id(1, 0), id(1, 1)], "the only idle expert is one of the guesses");
    cache.prefetch(&[id(2, 0), id(2, 1)]);
    cache.settle();
    assert_eq!(cache.cached(), [id(1, 0), id(2, 0)], "one slot for the first guess");
    cache.release(lease, 0);
}

#[test]
fn guesses_wait_for_fences() {
    let (mut cache, _) = cache(faulty(), 1, 1);
    let lease = cache.get(&[id(1, 0)]).remove(0);
    cache.release(lease, 3);
    cache.prefetch(&[id(1, 1)]);
    assert_eq!((cache.in_flight, cache.cached()), (0, vec![id(1, 0)]));
    cache.retire(3);
    cache.prefetch(&[id(1, 1)]);
    cache.settle();
    assert_eq!(cache.cached(), [id(1, 1)]);
}

#[test]
fn a_guess_takes_no_slot_from_those_who_wait() {
    let (mut cache, _) = cache(faulty(), 1, 1);
    let lease = cache.get(&[id(1, 0)]).remove(0);
    let mut request = cache.request(&[id(1, 1)]);
    cache.release(lease, 0);
    cache.prefetch(&[id(2, 0)]);
    assert_eq!(cache.cached(), [id(1, 0)], "the free slot is left to the request");
    let mut arrivals = Vec::new();
    assert!(cache.pump(&mut request, &mut arrivals));
    assert_eq!(arrivals[0].id, id(1, 1));
    cache.release(arrivals.remove(0).result.unwrap(), 0);
    cache.prefetch(&[id(2, 0)]);
    cache.settle();
    assert_eq!(cache.cached(), [id(2, 0)], "nobody waits any more");
}

#[test]
fn a_request_takes_the_slot_of_a_guess_that_has_not_begun() {
    let gate = Gate::closed();
    let (mut cache, _) = cache(faulty().with_gate(Arc::clone(&gate)), 2, 1);
    cache.prefetch(&[id(1, 0), id(1, 5)]);
    gate.wait_for(1);
    let mut request = cache.request(&[id(2, 0)]);
    gate.open();
    let mut arrivals = Vec::new();
    assert!(cache.pump(&mut request, &mut arrivals));
    cache.release(arrivals.remove(0).result.unwrap(), 0);
    assert_eq!(cache.cached(), [id(1, 0), id(2, 0)]);
    assert_eq!((cache.statistics().reads, cache.statistics().evictions), (2, 0));
}

#[test]
fn a_lost_lease_is_counted_and_its_slot_kept_until_reclaimed() {
    let (mut cache, _) = cache(faulty(), 1, 1);
    drop(cache.get(&[id(1, 0)]));
    let mut request = cache.request(&[id(1, 1)]);
    cache.retire(u64::MAX);
    assert!(matches!(cache.next(&mut request, None), Next::NeedsSlots));
    assert_eq!(cache.statistics().lost_leases, 1);
    assert_eq!((cache.reclaim_lost(), cache.reclaim_lost()), (1, 0));
    assert!(matches!(cache.next(&mut request, None), Next::Arrived(_)));
    assert_eq!(cache.reclaim_lost(), 1, "that arrival was dropped as well");
}

#[test]
fn leases_may_outlive_the_cache() {
    let (mut cache, _) = cache(faulty(), 1, 1);
    let lease = cache.get(&[id(1, 0)]).remove(0);
    let slab = Arc::clone(cache.slab());
    drop(cache);
    assert_eq!(slab.read(lease.slot())[..PAYLOAD_BYTES as usize], expected(id(1, 0)));
    drop(lease);
}

#[test]
fn caches_that_cannot_be_are_refused() {
    let reader: Arc<dyn Reader> = Arc::new(faulty());
    let new = |slab, readers| ExpertCache::new(catalog(), Arc::clone(&reader), slab, readers).err().unwrap();
    let error = new(Slab::new(1, 1).unwrap(), 0);
    assert!(matches!(error, CacheError::NoReaders), "{error}");
    let piece = PieceSpec { name: "large".to_owned(), bytes: 70_000, row_bytes: 1, forbidden: None };
    let mut builder = CatalogBuilder::new(ExpertLayout::new(vec![piece]).unwrap(), 0..1, 1);
    builder.place(id(0, 0), "large", 0, 0).unwrap();
    let large = Arc::new(builder.finish().unwrap());
    let error = ExpertCache::new(large, Arc::clone(&reader), Slab::new(1, 1).unwrap(), 1).err().unwrap();
    let wanted = CacheError::SlotTooSmall { payload_bytes: 70_000, slot_bytes: 65_536 };
    assert_eq!(error.to_string(), wanted.to_string());
}
