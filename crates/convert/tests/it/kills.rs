//! A conversion that is killed anywhere goes on, and nothing shows of it in the end. The killed one is this very program, started
//! again, which sends itself SIGKILL at a step of its progress.
use crate::support::{convert, files, original, small};
use models::Dense;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, id};
use store::container::PARTIAL;

const PLACE: &str = "COLIBRI_TEST_CONVERT_PLACE";
const STEP: &str = "COLIBRI_TEST_CONVERT_KILL_AT";
const SIGKILL: i32 = 9;

/// Not a test by itself: the program that is killed.
#[test]
fn the_one_that_is_killed() {
    let (Ok(place), Ok(at)) = (std::env::var(PLACE), std::env::var(STEP)) else { return };
    let (at, mut step) = (at.parse::<u64>().unwrap(), 0);
    let mut event = |_| {
        step += 1;
        if step == at {
            Command::new("kill").args(["-KILL", &id().to_string()]).status().unwrap();
            loop {
                std::thread::park();
            }
        }
    };
    convert(&original(), Path::new(&place), small(Dense::Int4, false), &mut event).unwrap();
}

/// Starts it; whether it was killed at that step rather than done before.
fn killed(place: &Path, at: u64) -> bool {
    let program = std::env::current_exe().unwrap();
    let status = Command::new(program)
        .args(["--exact", "kills::the_one_that_is_killed", "--test-threads", "1"])
        .env(PLACE, place)
        .env(STEP, at.to_string())
        .output()
        .unwrap()
        .status;
    assert!(status.success() || status.signal() == Some(SIGKILL), "{status}");
    !status.success()
}

#[test]
fn twenty_kills_leave_no_trace() {
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole");
    let mut steps = 0;
    convert(&original(), &whole, small(Dense::Int4, false), &mut |_| steps += 1).unwrap();
    let expected = files(&whole);
    // Alone: each at a place of its own, then gone on with.
    let mut random = 12_345_u64;
    for round in 0..20 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let place = folder.path().join(format!("killed-{round}"));
        assert!(killed(&place, 1 + (random >> 33) % steps));
        assert!(place.join(PARTIAL).is_dir() && !place.join("model.safetensors.index.json").exists());
        let mut resumed = 0;
        convert(&original(), &place, small(Dense::Int4, false), &mut |_| resumed += 1).unwrap();
        assert!(resumed <= steps + 20);
        assert!(files(&place) == expected, "round {round}");
    }
    // One after the other: whatever each leaves, the next goes on from there, past a step for each file that is in place.
    let place = folder.path().join("again and again");
    let in_place = || fs::read_dir(&place).map_or(0, |list| list.count() as u64);
    let mut kills = 0;
    while killed(&place, in_place() + 150) {
        kills += 1;
        assert!(kills < 200, "it does not come forward");
    }
    assert!(kills >= 5, "{kills}");
    assert!(files(&place) == expected);
}
