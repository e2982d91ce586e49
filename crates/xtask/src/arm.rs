//! Runs tests on `AArch64` from another Linux machine: built with Debian's cross compiler as the linker and `std` from
//! source, run in QEMU's emulator of programs, on processors of several generations. It says nothing about speed.
//!
//! What the machine lacks comes from Debian's packages into `target/cross`, as in `cross`; nothing is installed.

use crate::cross;
use crate::debian;
use crate::project;
use crate::steps::{Tally, execute_lines, is_installed, show};
use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

const TARGET: &str = "aarch64-unknown-linux-gnu";
/// It links; there is no C to compile.
const LINKER: &str = "aarch64-linux-gnu-gcc";
const EMULATOR: &str = "qemu-aarch64";
/// Debian's packages of both, and what they link and run with.
const PACKAGES: [&str; 3] = ["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross", "qemu-user"];
/// The folder of `AArch64`'s own libraries, in the machine's tree of files or in an unpacked one.
const SYSTEM: &str = "usr/aarch64-linux-gnu";

/// Processors by QEMU's name, each with the level that the device must find there, and what is run. On the first, which
/// has all instructions, everything is, on all levels; on the others the device shows that it uses nothing they lack.
const PROCESSORS: [(&str, &str, &[Tests]); 3] = [
    ("max", "NEON with dot products", &[PARTS, DEVICE, GOLDENS]),
    ("neoverse-n1", "NEON with dot products", &[DEVICE]),
    ("cortex-a53", "NEON", &[DEVICE]),
];
/// The arguments of `cargo test`.
type Tests = &'static [&'static str];
const PARTS: Tests = &["--package", "memory", "--package", "ops", "--lib", "--tests"];
const DEVICE: Tests = &["--package", "cpu", "--lib", "--tests"];
const GOLDENS: Tests = &["--package", "engine", "--test", "golden"];
/// The variable that tells a test of `cpu` which level it must find.
const LEVEL_VARIABLE: &str = "COLIBRI_TEST_BEST_LEVEL";

/// Runs the tests of every processor, and counts them.
///
/// # Errors
/// When a tool or the source of `std` cannot be had, a test fails, or none was run.
pub(crate) fn run(tally: &mut Tally) -> Result<()> {
    let folder = project::target()?.join("cross");
    let library = cross::standard_library(&folder)?;
    let tools = Tools::find(&folder)?;
    for (processor, level, runs) in PROCESSORS {
        println!("testing {TARGET} on {processor}: {level}");
        for tests in runs {
            let mut command = test(tests, &library)?;
            // A target folder of its own, because RUSTC_BOOTSTRAP makes build scripts decide differently.
            command.env("CARGO_TARGET_DIR", folder.join("build-arm")).env("QEMU_CPU", processor);
            command.env(LEVEL_VARIABLE, level);
            tools.apply(&mut command);
            let before = tally.passed;
            execute_lines(&mut command, |line| tally.add_line(line))?;
            if tally.passed == before {
                bail!("`{}` succeeded but no test ran: correct PROCESSORS", show(&command));
            }
        }
    }
    Ok(())
}

/// Cargo, running tests for [`TARGET`], with `std` from the source in `library`.
fn test(tests: &[&str], library: &Path) -> Result<Command> {
    let mut command = project::cargo()?;
    command.args(["test", "--locked", "-Zbuild-std", "--target", TARGET]).args(tests);
    // See `cross`: -Z options on a stable compiler, for this command only, and the place of the source of std.
    command.env("RUSTC_BOOTSTRAP", "1").env("__CARGO_TESTS_ONLY_SRC_ROOT", library);
    Ok(command)
}

/// Where the linker and the emulator are.
struct Tools {
    /// The root of the tree that they and `AArch64`'s libraries lie in, if they are not installed.
    tree: Option<PathBuf>,
}

impl Tools {
    /// The installed ones, or Debian's in `folder`.
    fn find(folder: &Path) -> Result<Self> {
        if is_installed(LINKER) && is_installed(EMULATOR) {
            return Ok(Tools { tree: None });
        }
        let tree = folder.join("arm-tools");
        if !tree.is_dir() {
            debian::bring_with_needs(&PACKAGES, &tree).with_context(|| {
                format!("{LINKER} and {EMULATOR}: install them, to link and run programs of AArch64")
            })?;
        }
        Ok(Tools { tree: Some(tree) })
    }

    /// Lets cargo link and run with them.
    fn apply(&self, command: &mut Command) {
        let key = |what: &str| format!("CARGO_TARGET_{}_{what}", TARGET.replace('-', "_").to_uppercase());
        let root = self.tree.as_deref().unwrap_or(Path::new("/"));
        let program = |name: &str| match &self.tree {
            Some(tree) => tree.join("usr/bin").join(name).into_os_string(),
            None => name.into(),
        };
        command.env(key("LINKER"), program(LINKER)).env(key("RUNNER"), program(EMULATOR));
        command.env("QEMU_LD_PREFIX", root.join(SYSTEM));
        if let Some(tree) = &self.tree {
            let mut flags = OsString::from("-Clink-arg=--sysroot=");
            flags.push(tree);
            command.env(key("RUSTFLAGS"), flags);
            // Libraries of the tools themselves.
            let libraries = format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH);
            command.env("LD_LIBRARY_PATH", tree.join(libraries));
        }
    }
}
