//! No op allocates after the first steps. A test program of its own, because its allocator counts for all of it.

use cpu::Cpu;
use ops::Device;
use ops::cases::{self, Case, Size};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

/// The system's allocator, counted.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: the system's allocator does everything.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// How often `work` allocates, on whatever thread.
fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.load(Ordering::SeqCst);
    work();
    ALLOCATIONS.load(Ordering::SeqCst) - before
}

#[test]
fn ops_allocate_nothing_after_the_first_steps() {
    assert!(allocations(|| drop(vec![1, 2, 3])) == 1);
    for threads in [1, 3] {
        let mut device = Cpu::new(threads).unwrap();
        let mut next = 0;
        let mut placed: Vec<Case> = Vec::new();
        for recipe in cases::list(Size::Small) {
            let case = recipe.build(next);
            next += case.buffers();
            case.place(&mut device).unwrap();
            placed.push(case);
        }
        for case in &placed {
            device.submit(&case.ops).unwrap();
        }
        let held = device.memory();
        let mut bytes = [0; 500];
        let mut read_twice = |device: &mut Cpu| {
            let tickets = [0, 8].map(|start| device.read_later(ops::Buffer(0), start, 500).unwrap());
            for ticket in tickets {
                device.take(ticket, &mut bytes).unwrap();
            }
        };
        read_twice(&mut device);
        assert_eq!(allocations(|| read_twice(&mut device)), 0, "reads");
        for case in &placed {
            let count = allocations(|| {
                device.submit(&case.ops).unwrap();
            });
            assert_eq!(count, 0, "{} on {threads} threads", case.name());
        }
        assert_eq!(device.memory(), held);
    }
}
