use super::*;
use crate::memory::{Cut, ViewMut};
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

const MUCH: u64 = u64::MAX;

/// Adds 1 to every number, a part of seven at a time.
fn count_up(pool: &mut Pool, numbers: &mut [u32], cost: u64) {
    let len = numbers.len();
    let parts = ViewMut::from_slice(numbers, 1, len).cut(Cut::Blocks(1, 7));
    pool.each(cost, parts, |_, mut part| part.row(0).iter_mut().for_each(|number| *number += 1));
}

#[test]
fn every_part_is_done_once_by_any_number_of_threads() {
    for threads in [1, 2, 3, 8] {
        let mut pool = Pool::new(threads).unwrap();
        assert_eq!(pool.threads(), threads);
        let mut numbers = vec![0; 1000];
        for _ in 0..300 {
            count_up(&mut pool, &mut numbers, MUCH);
            count_up(&mut pool, &mut numbers, 0);
        }
        assert!(numbers.iter().all(|number| *number == 600), "{threads} threads");
        pool.check().unwrap();
    }
}

#[test]
fn sleeping_threads_wake() {
    let mut pool = Pool::new(2).unwrap();
    for _ in 0..20 {
        // Until the other thread has gone to sleep.
        while pool.shared.asleep.load(Ordering::SeqCst) == 0 {
            thread::yield_now();
        }
        // Each part waits for the other one, so that two threads have to take part.
        let met = AtomicUsize::new(0);
        pool.each(MUCH, 2_usize, |_, ()| {
            met.fetch_add(1, Ordering::SeqCst);
            while met.load(Ordering::SeqCst) < 2 {
                thread::sleep(Duration::from_micros(50));
            }
        });
    }
    pool.check().unwrap();
}

#[test]
fn threads_have_names() {
    let mut pool = Pool::new(2).unwrap();
    let (seen, met) = (Mutex::new(Vec::new()), AtomicUsize::new(0));
    pool.each(MUCH, 2_usize, |_, ()| {
        lock(&seen).push(thread::current().name().unwrap_or_default().to_owned());
        met.fetch_add(1, Ordering::SeqCst);
        while met.load(Ordering::SeqCst) < 2 {
            thread::yield_now();
        }
    });
    assert!(lock(&seen).iter().any(|name| name == "cpu 1"), "{seen:?}");
}

#[test]
fn a_panic_is_an_error_and_the_pool_goes_on() {
    for threads in [1, 2] {
        let mut pool = Pool::new(threads).unwrap();
        pool.each(MUCH, 50_usize, |i, ()| assert!(i != 20, "part {i} is wrong"));
        let error = pool.check().unwrap_err().to_string();
        assert!(error.contains("part 20 is wrong") && error.contains("cpu"), "{error}");
        pool.check().unwrap();
        let mut numbers = vec![0; 100];
        count_up(&mut pool, &mut numbers, MUCH);
        assert!(numbers.iter().all(|number| *number == 1));
    }
}

#[test]
fn a_pool_ends_while_its_threads_sleep_or_look() {
    for wait in [Duration::ZERO, Duration::from_millis(2)] {
        let pool = Pool::new(4).unwrap();
        thread::sleep(wait);
        let ended = Arc::downgrade(&pool.shared);
        drop(pool);
        assert!(ended.upgrade().is_none(), "a thread lives on");
    }
}

#[test]
fn little_work_stays_on_the_callers_thread() {
    let mut pool = Pool::new(3).unwrap();
    let (caller, elsewhere) = (thread::current().id(), AtomicBool::new(false));
    pool.each(SHARE_FROM - 1, 100_usize, |_, ()| {
        elsewhere.fetch_or(thread::current().id() != caller, Ordering::SeqCst);
    });
    assert!(!elsewhere.into_inner());
}
