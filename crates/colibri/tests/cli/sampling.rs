//! How tokens are chosen and what ends an answer, as flags of `run` say it.
use crate::common::{colibri, numbers};
use serde_json::Value;

const STORY: &str = "Once there was a bear who loved";

/// The likeliest answer of 32 tokens: " very much. He had a cozy home ...".
fn run(more: &[&str]) -> Value {
    let base = ["run", STORY, "--json", "--max-tokens", "32", "--temperature", "0", "--ignore-eos"];
    colibri(&[&base, more].concat()).good()
}

#[test]
fn a_bias_chooses_and_penalties_end_repetition() {
    let plain = numbers(&run(&[])["ids"]);
    let forced = run(&["--logit-bias", "77=100"]);
    assert_eq!(numbers(&forced["ids"]), [77; 32]);
    let never = format!("{}=-100", plain[0]);
    let other = numbers(&run(&["--logit-bias", &never])["ids"]);
    assert!(!other.contains(&plain[0]), "{other:?}");

    // With the largest bias each id comes again as long as its penalty is smaller than that.
    let both = ["--logit-bias", "77=30,78=29.9", "--presence-penalty", "2"];
    let mut ids = numbers(&run(&both)["ids"]);
    assert_eq!(ids[..2], [77, 78], "77 goes down by 2 once it has come");
    let often = ["--logit-bias", "77=30,78=29.9", "--frequency-penalty", "2"];
    ids = numbers(&run(&often)["ids"]);
    ids.truncate(8);
    ids.sort_unstable();
    assert_eq!(ids, [77, 77, 77, 77, 78, 78, 78, 78], "they take turns");
    let repeats = |more: &[&str]| {
        let ids = numbers(&run(more)["ids"]);
        (1..ids.len()).filter(|at| ids[..*at].contains(&ids[*at])).count()
    };
    assert!(repeats(&["--repeat-penalty", "3"]) < repeats(&[]));
}

#[test]
fn stop_strings_end_the_answer_before_them() {
    let whole = run(&[]);
    let text = whole["text"].as_str().unwrap();
    let cut = text.find("cozy home").unwrap();
    for stop in
        [&["--stop", "cozy home"][..], &["--stop", "never comes", "--stop", "zy ho", "--stop", "cozy h"]]
    {
        let stopped = run(stop);
        assert_eq!((&stopped["text"], &stopped["finish"]), (&text[..cut].into(), &"stop".into()), "{stop:?}");
        let (ids, all) = (numbers(&stopped["ids"]), numbers(&whole["ids"]));
        assert!(ids.len() < 32 && ids == all[..ids.len()], "{ids:?}");
        let plain = ["run", STORY, "--max-tokens", "32", "--temperature", "0", "--ignore-eos"];
        assert_eq!(colibri(&[&plain, stop].concat()).stdout, format!("{}\n", &text[..cut]));
    }
    // What only begins like a stop string is given at the end.
    let half = format!("{} and more", &text[text.len() - 3..]);
    let all = run(&["--stop", &half]);
    assert_eq!((&all["text"], &all["finish"]), (&whole["text"], &"length".into()));
}

#[test]
fn logprobs_come_beside_every_token() {
    let answer = run(&["--logprobs", "3"]);
    let list = answer["logprobs"].as_array().unwrap();
    let ids: Vec<u32> = list.iter().map(|token| token["id"].as_u64().unwrap() as u32).collect();
    assert_eq!((ids.len(), ids), (32, numbers(&answer["ids"])));
    let mut text = Vec::new();
    for token in list {
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        // The likeliest was taken.
        for key in ["id", "token", "bytes", "logprob"] {
            assert_eq!(top[0][key], token[key]);
        }
        let logprobs: Vec<f64> = top.iter().map(|t| t["logprob"].as_f64().unwrap()).collect();
        assert!(logprobs.is_sorted_by(|a, b| a >= b) && logprobs[0] <= 0.0, "{logprobs:?}");
        assert!(logprobs.iter().map(|l| l.exp()).sum::<f64>() <= 1.000_001, "{logprobs:?}");
        text.extend(numbers(&token["bytes"]).into_iter().map(|byte| byte as u8));
    }
    assert!(String::from_utf8_lossy(&text).starts_with(answer["text"].as_str().unwrap()));
    // They are the model's own, whatever is made of them.
    let forced = run(&["--logprobs", "3", "--logit-bias", "77=100", "--presence-penalty", "2"]);
    assert_eq!(forced["logprobs"][0]["top_logprobs"], answer["logprobs"][0]["top_logprobs"]);
    assert!(forced["logprobs"][0]["logprob"].as_f64().unwrap() < -1.0);
    assert_eq!(run(&["--logprobs", "0"])["logprobs"][0]["top_logprobs"], serde_json::json!([]));
    assert!(run(&[]).get("logprobs").is_none());
    let refused = colibri(&["run", STORY, "--logprobs", "3"]);
    assert!(refused.code == 2 && refused.stderr.contains("--logprobs has no effect without --json"));
}

#[test]
fn settings_are_told_to_people_too() {
    let told = colibri(&[
        "run",
        "x",
        "--max-tokens",
        "1",
        "--logit-bias",
        "5=2.5,17=-1",
        "--stop",
        "a b",
        "--stop",
        "\n",
    ])
    .stderr;
    for words in [
        "logit-bias 17=-1.0 5=2.5,",
        "repeat-penalty 1.0,",
        "stop \"a b\" \"\\n\",",
        "frequency-penalty 0.0,",
    ] {
        assert!(told.contains(words), "{words}: {told}");
    }
    assert!(colibri(&["run", "x", "--max-tokens", "1"]).stderr.contains("logit-bias none"));
}
