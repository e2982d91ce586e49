//! Running the program on a terminal of its own.
use crate::common::program;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{OptionalActions, OutputModes, Winsize, tcgetattr, tcsetattr, tcsetwinsize};
use std::fs::{File, OpenOptions};
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::Stdio;

/// What a run left on its terminal, where both streams come together.
pub(crate) struct Screen {
    pub(crate) code: i32,
    /// Every byte, as the program wrote it.
    pub(crate) text: String,
}

/// Both ends of a terminal with so many columns that passes all bytes on as they are.
pub(crate) fn terminal(columns: u16) -> (File, File) {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let name = ptsname(&master, Vec::new()).unwrap();
    let path = Path::new(std::ffi::OsStr::from_bytes(name.as_bytes()));
    let slave = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut modes = tcgetattr(&slave).unwrap();
    modes.output_modes.remove(OutputModes::OPOST);
    tcsetattr(&slave, OptionalActions::Now, &modes).unwrap();
    tcsetwinsize(&slave, Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    (File::from(master), slave)
}

/// Runs with both outputs on a terminal.
pub(crate) fn on_terminal(columns: u16, arguments: &[&str], variables: &[(&str, &str)]) -> Screen {
    let (mut master, slave) = terminal(columns);
    let mut command = program();
    command.args(arguments).stdin(Stdio::null()).env("TERM", "xterm");
    for (name, value) in variables {
        command.env(name, value);
    }
    let mut child = command.stdout(slave.try_clone().unwrap()).stderr(slave).spawn().unwrap();
    // It holds the other end, which must close for this one to end.
    drop(command);
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    // An error is the end: nobody holds the other end any more.
    while let Ok(count @ 1..) = master.read(&mut buffer) {
        bytes.extend(&buffer[..count]);
    }
    Screen { code: child.wait().unwrap().code().unwrap(), text: String::from_utf8(bytes).unwrap() }
}
