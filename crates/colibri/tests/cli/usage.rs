//! Command lines that cannot be honoured, and help.
use crate::common::{colibri, program};
use std::io::Write as _;
use std::process::Stdio;

/// Arguments, and a word that the message must contain.
const WRONG: &[(&[&str], &str)] = &[
    (&[], "subcommand"),
    (&["fly"], "fly"),
    (&["run"], "--ids"),
    (&["run", ""], "empty"),
    (&["run", "x", "y"], "between quotes"),
    (&["bench", "fly"], "fly"),
    (&["bench", "--repeats", "0"], "from 1 to 100"),
    (&["bench", "--bytes", "1MB"], "from 16MB to 1TB"),
    (&["bench", "--bytes", "25%"], "from 16MB to 1TB"),
    (&["bench", "--rows", "1,5000"], "5000 is not from 1 to 4096"),
    (&["bench", "--compare", "a.json"], "--compare"),
    (&["bench", "--anyway"], "--compare"),
    (&["bench", "decode", "--compare", "a", "b"], "--compare"),
    (&["inspect", "--model", "m", "m2"], "--model once for each directory"),
    (&["run", "x", "--bogus"], "--bogus"),
    (&["run", "x", "--ids", "1"], "--ids"),
    (&["run", "--ids", "1,x"], "--ids"),
    (&["run", "--ids", ""], "--ids"),
    (&["run", "--ids", "4096"], "4096"),
    (&["run", "x", "--layers", "3"], "--layers"),
    (&["run", "--ids", "1,2,3,"], "item 4 is empty"),
    (&["run", "--ids", "-1,2"], "item 1 is `-1`"),
    (&["run", "x", "--max-tokens", "0"], "--max-tokens"),
    (&["run", "x", "--max-tokens", "-1"], "from 1 to 4294967295"),
    (&["run", "x", "--readers", "-1"], "from 1 to 256"),
    (&["run", "x", "--threads", "-1"], "from 1 to 256"),
    (&["run", "x", "--chunk", "-1"], "from 1 to 4096"),
    (&["run", "x", "--context", "-1"], "from 1 to this model's limit"),
    (&["run", "x", "--expert-cache", "-8GB"], "does not start with a number"),
    (&["run", "x", "--expert-cache", "8G"], "did you mean GB or GiB?"),
    (&["run", "x", "--max-tokens", "1", "--max-tokens", "2"], "--max-tokens"),
    (&["run", "x", "--temperature", "-1"], "--temperature"),
    (&["run", "x", "--temperature", "101"], "--temperature"),
    (&["run", "x", "--temperature", "nan"], "--temperature"),
    (&["run", "x", "--top-p", "0"], "--top-p"),
    (&["run", "x", "--top-p", "1.1"], "--top-p"),
    (&["run", "x", "--top-k", "-3"], "--top-k"),
    (&["run", "x", "--min-p", "2"], "--min-p"),
    (&["run", "x", "--seed", "-1"], "from 0 to 18446744073709551615"),
    (&["run", "x", "--seed", "18446744073709551616"], "from 0 to 18446744073709551615"),
    (&["run", "x", "--temperature", "0", "--top-p", "0.5"], "--top-p"),
    (&["run", "x", "--temperature", "0", "--top-k", "5"], "--top-k"),
    (&["run", "x", "--temperature", "0", "--min-p", "0.1"], "--min-p"),
    (&["run", "x", "--temperature", "0", "--seed", "1"], "--seed"),
    (&["run", "x", "--repeat-penalty", "0"], "from 0.01 to 100"),
    (&["run", "x", "--presence-penalty", "-2.1"], "from -2 to 2"),
    (&["run", "x", "--frequency-penalty", "3"], "from -2 to 2"),
    (&["run", "x", "--logit-bias", "5"], "item 1 is `5`"),
    (&["run", "x", "--logit-bias", "5=1,6=101"], "item 2 is `6=101`"),
    (&["run", "x", "--logit-bias", "4096=1"], "ids are below 4096"),
    (&["run", "x", "--logit-bias", "5=1", "--logit-bias", "5=2"], "token 5 is given twice"),
    (&["run", "x", "--logprobs", "21"], "from 0 to 20"),
    (&["run", "x", "--stop", ""], "--stop: stop string 1"),
    (&["logits", "x", "--out", "f", "--stop", "y"], "--stop"),
    (&["run", "x", "--chunk", "0"], "from 1 to 4096"),
    (&["run", "x", "--chunk", "4097"], "from 1 to 4096"),
    (&["run", "x", "--context", "0"], "from 1 to this model's limit"),
    (&["run", "x", "--context", "4097"], "expected 1 to 4096, this model's own limit"),
    (&["run", "one two three", "--context", "1"], "raise --context, up to 4096"),
    (&["run", "x", "--expert-cache", "8"], "--expert-cache"),
    (&["run", "x", "--expert-cache", "0x"], "--expert-cache"),
    (&["run", "x", "--expert-cache", "101%"], "--expert-cache"),
    (&["run", "x", "--expert-cache", "0GB"], "--expert-cache"),
    (&["run", "x", "--expert-cache", "0%"], "--expert-cache"),
    (&["run", "x", "--readers", "0"], "--readers"),
    (&["run", "x", "--io", "mmap"], "the system sends a signal instead of an error with a name"),
    (
        &["run", "x", "--mirror", "d", "--io", "uring"],
        "--mirror cannot be read with --io uring; take --io direct",
    ),
    (&["run", "x", "--io", "aio"], "these exist: direct, buffered, uring"),
    (&["run", "x", "--threads", "0"], "--threads"),
    (&["run", "x", "--activations", "int16"], "int15, exact or int8"),
    (&["run", "x", "--dense", "fp8"], "auto, bf16, int8 or int4"),
    (&["run", "x", "--expert-top-p", "0"], "--expert-top-p"),
    (&["run", "x", "--device", "gpu"], "these exist: cpu, oracle"),
    (&["run", "x", "--model", ".", "--model", "."], "same directory"),
    (&["logits", "x"], "--out"),
    (&["logits", "x", "--out", "f", "--layers", "10"], "expected 1 to 9, this model's own limit"),
    (&["logits", "x", "--out", "f", "--layers", "0"], "from 1 to this model's limit"),
    (&["logits", "x", "--out", "f", "--layers", "1", "--expert-cache", "4x"], "--expert-cache"),
    (&["logits", "x", "--out", "f", "--layers", "1", "--readers", "2"], "--readers has no effect"),
    (
        &["logits", "x", "--out", "f", "--layers", "1", "--expert-top-p", "0.5"],
        "--expert-top-p has no effect",
    ),
    (
        &["logits", "x", "--out", "f", "--layers", "1", "--dense", "bf16", "--activations", "int8"],
        "--activations has no effect",
    ),
    (&["inspect", "--log-level", "off", "--log-file", "f"], "--log-file has no effect"),
    (&["config", "fly"], "fly"),
    (&["config", "run", "--chunk", "0"], "from 1 to 4096"),
    (&["config", "run", "--bogus"], "--bogus"),
    (&["config", "--all", "run"], "--all"),
    (&["config", "--path", "--template"], "--template"),
    (&["config", "--template", "--no-config"], "--no-config"),
    (&["inspect", "--config", "f", "--no-config"], "--no-config"),
    (&["logits", "x", "--out", "/"], "--out"),
    (&["logits", "--out", "f"], "--ids"),
    (&["trace", "--ids", "1", "--out", "f", "--layers", "9"], "--layers"),
    (&["trace", "--ids", "1", "--out", "f", "--positions", "1"], "--positions"),
    (&["trace", "--ids", "1", "--inputs", "f", "--out", "f"], "--inputs"),
    (&["verify"], "--golden DIR for golden results, or --checked and a prompt"),
    (&["verify", "x"], "--golden DIR for golden results, or --checked and a prompt"),
    (&["verify", "--checked"], "--ids"),
    (&["verify", "--checked", "x", "--golden", "d"], "--golden"),
    (&["verify", "x", "--golden", "d"], "--golden"),
    (&["inspect", "x"], "x"),
    (&["render"], "CHAT.json"),
    (&["render", "x", "--seed", "1"], "--seed"),
    (&["tokenize"], "TEXT"),
    (&["tokenize", "1", "--decode", "--specials"], "--specials"),
    (&["tokenize", "1,x", "--decode"], "item 2 is `x`"),
    (&["tokenize", "1,4096", "--decode"], "token id 4096: expected an id below 4096"),
    (&["inspect", "--chunk", "1"], "--chunk"),
];

#[test]
fn every_wrong_line_is_refused_in_both_forms() {
    for (arguments, word) in WRONG {
        let plain = colibri(arguments);
        assert_eq!(plain.code, 2, "{arguments:?}: {}{}", plain.stdout, plain.stderr);
        assert!(plain.stdout.is_empty(), "{arguments:?}: {}", plain.stdout);
        if !arguments.is_empty() {
            assert!(
                plain.stderr.contains("error: ") && plain.stderr.contains(word),
                "{arguments:?}: {}",
                plain.stderr
            );
            let (kind, message) = colibri(&[arguments, &["--json"][..]].concat()).error(2);
            assert_eq!(kind, "usage", "{arguments:?}");
            assert!(message.contains(word), "{arguments:?}: {message}");
        }
    }
}

#[test]
fn the_version_names_the_numerics() {
    let version = colibri(&["--version"]);
    assert_eq!(version.code, 0);
    assert_eq!(version.stdout.trim(), format!("colibri {} (numerics version 1)", env!("CARGO_PKG_VERSION")));
}

#[test]
fn a_prompt_that_is_no_text_is_refused_with_its_place() {
    let mut command = program();
    command.args(["run", "-", "--json"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"Once\xff").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["error"]["kind"], "usage");
    assert!(answer["error"]["message"].as_str().unwrap().contains("byte 4 "), "{answer}");
}
