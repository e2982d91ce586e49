//! That memory given back is really the system's again. Alone in its process, whose resident memory is measured.
#![cfg(target_os = "linux")]

use memory::{Slab, machine};

#[test]
fn discarded_slots_are_no_longer_resident() {
    const SLOT: u64 = 8 << 20;
    let slab = Slab::new(16, SLOT).unwrap();
    let resident = || machine::resident_memory().unwrap();
    let empty = resident();
    for slot in 0..16 {
        slab.write(slot).unwrap().fill(1);
    }
    let full = resident();
    assert!(full - empty >= 15 * SLOT, "{empty} bytes, then {full}");
    assert!((4..16).all(|slot| slab.discard(slot)));
    let left = resident() - empty;
    assert!((3 * SLOT..=5 * SLOT).contains(&left), "{left} bytes left of 4 slots of {SLOT}");
    slab.write(9).unwrap().fill(2);
    assert!(slab.read(3).iter().all(|&byte| byte == 1) && slab.read(9).iter().all(|&byte| byte == 2));
    let left = resident() - empty;
    assert!((4 * SLOT..=6 * SLOT).contains(&left), "{left} bytes of 5 slots of {SLOT}");
}
