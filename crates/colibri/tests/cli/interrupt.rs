//! Ctrl-C in the middle of a run.
use crate::common::{colibri_with, program, started};
use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};

fn interrupt(child: &Child) {
    signal(child, "-INT");
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

#[test]
fn a_run_tells_what_there_is() {
    let run = ["run", "Once", "--json", "--ignore-eos", "--temperature", "0", "--max-tokens", "4000"];
    let (mut child, _) = started(&run);
    interrupt(&child);
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer["finish"], "cancelled");
    assert!(answer["ids"].as_array().unwrap().len() < 4000);
    assert!(answer["settings"]["max_tokens"] == 4000 && answer["stats"].is_object());
}

#[test]
fn a_file_is_not_half_written() {
    let folder = tempfile::tempdir().unwrap();
    let (ids, out) = (vec!["5"; 4000].join(","), folder.path().join("logits"));
    let (mut child, _) =
        started(&["logits", "--json", "--chunk", "1", "--ids", &ids, "--out", out.to_str().unwrap()]);
    interrupt(&child);
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer["error"]["kind"], "cancelled");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// Sends two at once, often enough that some second one comes while the work is not stopped yet.
#[test]
fn a_second_one_leaves_no_file_either() {
    let folder = tempfile::tempdir().unwrap();
    let (ids, out) = (vec!["5"; 4000].join(","), folder.path().join("logits"));
    for _ in 0..5 {
        let run = ["logits", "--json", "--chunk", "64", "--ids", &ids, "--out", out.to_str().unwrap()];
        let (mut child, _) = started(&run);
        let kill = format!("kill -INT {0}; sleep 0.001; kill -INT {0}", child.id());
        // The second may find nobody any more.
        Command::new("sh").args(["-c", &kill]).output().unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(130));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}

#[test]
fn sigterm_is_as_good() {
    let (mut child, _) = started(&["run", "Once", "--json", "--ignore-eos", "--max-tokens", "4000"]);
    signal(&child, "-TERM");
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer["finish"], "cancelled");
}

#[test]
fn what_was_interrupted_says_so() {
    let ids = vec!["5"; 4000].join(",");
    let (mut child, rest) = started(&["run", "--ids", &ids]);
    interrupt(&child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let rest = rest.join().unwrap();
    assert!(rest.iter().any(|line| line == "stopping; once more ends the program at once"), "{rest:?}");
    assert_eq!(rest.last().unwrap(), "interrupted");
    let (mut child, rest) = started(&["verify", "--checked", "--ids", &ids]);
    interrupt(&child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(rest.join().unwrap().last().unwrap(), "error: interrupted");
}

/// The model is kept from ending its answer, so that there is time for the signal however slow this test is.
#[test]
fn a_chat_that_nobody_types_ends_with_the_answer_that_is_stopped() {
    let endless = ["chat", "--no-think", "--temperature", "0", "--logit-bias", "3842=-100,3844=-100"];
    let mut command = program();
    command.args(endless).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"Tell me a story.\nAnd another one.\n").unwrap();
    let mut output = child.stdout.take().unwrap();
    output.read_exact(&mut [0; 20]).unwrap();
    interrupt(&child);
    output.read_to_end(&mut Vec::new()).unwrap();
    let ended = child.wait_with_output().unwrap();
    let told = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(130), "{told}");
    assert!(told.ends_with("stopped; what was said stays in the conversation\n"), "{told}");
    // Without a signal the context ends it.
    let input = "Tell me a story.\n";
    let whole = colibri_with(&[&endless[..], &["--context", "100"]].concat(), input);
    assert!(
        whole.stderr.contains("the context of 100 positions is full and ended the answer"),
        "{}",
        whole.stderr
    );
}
