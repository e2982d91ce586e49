//! Running the program, and copies of the tiny model to spoil.
use safetensors::SafeTensors;
use serde_json::Value;
use std::fs;
use std::io::Write as _;
#[cfg(unix)]
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
#[cfg(unix)]
use std::process::Child;
use std::process::{Command, Stdio};
use std::sync::LazyLock;
#[cfg(unix)]
use std::thread::JoinHandle;
use tempfile::TempDir;

/// The prompts that have goldens.
pub(crate) const PROMPTS: [&str; 4] = ["story", "chat_plain", "chat_think", "mixed"];

/// What a run left.
pub(crate) struct Answer {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Answer {
    /// The only thing on standard output: one JSON object in one line.
    pub(crate) fn json(&self) -> Value {
        let value: Value = serde_json::from_str(&self.stdout)
            .unwrap_or_else(|e| panic!("{e}: {}{}", self.stdout, self.stderr));
        assert!(value.is_object() && self.stdout.lines().count() == 1, "{}", self.stdout);
        value
    }

    /// The object of a run that succeeded.
    pub(crate) fn good(&self) -> Value {
        assert_eq!(self.code, 0, "{}{}", self.stdout, self.stderr);
        self.json()
    }

    /// Kind and message of a run that failed with this exit code.
    pub(crate) fn error(&self, code: i32) -> (String, String) {
        assert_eq!(self.code, code, "{}{}", self.stdout, self.stderr);
        let value = self.json();
        let text = |key: &str| value["error"][key].as_str().unwrap_or_else(|| panic!("{value}")).to_owned();
        (text("kind"), text("message"))
    }
}

/// The program, which sees no settings of whoever runs the tests: none of its variables, no home directory, no wishes
/// about colours and widths.
pub(crate) fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_colibri"));
    for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "CI", "COLUMNS"] {
        command.env_remove(name);
    }
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().to_uppercase().starts_with("COLIBRI_") {
            command.env_remove(name);
        }
    }
    let absent = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no-home");
    command.env_remove("XDG_CONFIG_HOME").env_remove("XDG_STATE_HOME").env_remove("XDG_DATA_HOME");
    command.env("HOME", &absent).env("APPDATA", &absent).env("LOCALAPPDATA", &absent);
    command.env("COLIBRI_TEST_PRESSURE", &*PLENTY);
    command
}

/// A folder that stands for the one in which Linux tells of memory: there is plenty, and nothing is paged, whatever else this
/// machine does.
static PLENTY: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("plenty-of-memory");
    fs::create_dir_all(folder.join("proc")).unwrap();
    fs::write(folder.join("proc/meminfo"), "MemAvailable: 99999999999 kB\n").unwrap();
    folder
});

/// Runs with these arguments and nothing on standard input.
pub(crate) fn colibri(arguments: &[&str]) -> Answer {
    colibri_with(arguments, "")
}

/// Runs with this text on standard input.
pub(crate) fn colibri_with(arguments: &[&str], input: &str) -> Answer {
    let mut command = program();
    command.args(arguments);
    answer_of(command, input)
}

/// What a program says with this text on standard input.
pub(crate) fn answer_of(mut command: Command, input: &str) -> Answer {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A program that does not read its input may have gone already.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    Answer {
        code: output.status.code().unwrap(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Starts a run that would take long, and waits until it computes; what it says later can be waited for.
#[cfg(unix)]
pub(crate) fn started(arguments: &[&str]) -> (Child, JoinHandle<Vec<String>>) {
    let mut child = program().args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().starts_with("loaded in")));
    // What comes later must find a reader.
    let rest = std::thread::spawn(move || lines.map(Result::unwrap).collect());
    (child, rest)
}

/// The commands, as the help lists them.
pub(crate) fn commands() -> Vec<String> {
    let help = colibri(&["--help"]).stdout;
    let list =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let first = |line: &str| line.split_whitespace().next().unwrap().to_owned();
    let commands: Vec<String> =
        list.filter(|line| line.starts_with("  ") && !line.starts_with("   ")).map(first).collect();
    assert!(commands.len() >= 7, "{commands:?}");
    commands
}

/// A path in `data/`.
pub(crate) fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data").join(path)
}

pub(crate) fn text_of(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A copy of the tiny model without its goldens.
pub(crate) fn model_copy() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(data("k3-tiny")).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_file() {
            fs::copy(entry.path(), folder.path().join(entry.file_name())).unwrap();
        }
    }
    folder
}

/// Changes a JSON file.
pub(crate) fn edit_json(path: &Path, edit: impl FnOnce(&mut Value)) {
    let mut value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    edit(&mut value);
    fs::write(path, value.to_string()).unwrap();
}

/// Ids and greedy ids of a golden prompt.
pub(crate) fn golden(name: &str) -> (Vec<u32>, Vec<u32>) {
    let all: Value = serde_json::from_slice(&fs::read(data("k3-tiny/golden/golden.json")).unwrap()).unwrap();
    let prompt = all["prompts"].as_array().unwrap().iter().find(|p| p["name"] == name).unwrap();
    (numbers(&prompt["ids"]), numbers(&prompt["greedy_ids"]))
}

pub(crate) fn numbers(value: &Value) -> Vec<u32> {
    let number = |v: &Value| v.as_u64().unwrap() as u32;
    value.as_array().unwrap_or_else(|| panic!("{value}")).iter().map(number).collect()
}

/// As the command line wants them.
pub(crate) fn listed(ids: &[u32]) -> String {
    ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// A safetensors file.
pub(crate) struct TensorFile(Vec<u8>);

impl TensorFile {
    pub(crate) fn open(path: &Path) -> Self {
        TensorFile(fs::read(path).unwrap())
    }

    pub(crate) fn golden(name: &str) -> Self {
        Self::open(&data(&format!("k3-tiny/golden/{name}.safetensors")))
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> =
            SafeTensors::deserialize(&self.0).unwrap().names().into_iter().map(Into::into).collect();
        names.sort();
        names
    }

    pub(crate) fn shape(&self, name: &str) -> Vec<usize> {
        SafeTensors::deserialize(&self.0).unwrap().tensor(name).unwrap().shape().to_vec()
    }

    pub(crate) fn words(&self, name: &str) -> Vec<u32> {
        let tensors = SafeTensors::deserialize(&self.0).unwrap();
        let tensor = tensors.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        tensor.data().chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect()
    }

    pub(crate) fn floats(&self, name: &str) -> Vec<f32> {
        self.words(name).into_iter().map(f32::from_bits).collect()
    }

    pub(crate) fn metadata(&self, key: &str) -> String {
        let (_, metadata) = SafeTensors::read_metadata(&self.0).unwrap();
        metadata.metadata().as_ref().unwrap()[key].clone()
    }
}

/// `|a - b| / |b|` in L2.
pub(crate) fn distance(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let square = |x: f64| x * x;
    let d: f64 = a.iter().zip(b).map(|(a, b)| square(f64::from(*a) - f64::from(*b))).sum();
    let n: f64 = b.iter().map(|b| square(f64::from(*b))).sum();
    (d / n).sqrt()
}

/// Runs where no file may have more than so many blocks of 512 bytes (1024 in some shells), as on a drive that is full.
#[cfg(unix)]
pub(crate) fn limited(blocks: u32, command: &Command) -> Answer {
    let limit = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"");
    let mut shell = Command::new("sh");
    shell.args(["-c", &limit]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    answer_of(shell, "")
}
