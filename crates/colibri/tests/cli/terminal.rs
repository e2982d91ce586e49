//! Text on a terminal cannot steer it, and is left alone on a pipe; colours and widths are those that were asked for.
use crate::common::{colibri, golden, listed, model_copy, program, text_of};
use crate::pty::{Screen, on_terminal};
use std::fs;
use std::path::Path;

fn plain(arguments: &[&str]) -> Screen {
    on_terminal(100, arguments, &[("NO_COLOR", "1")])
}

/// Characters that a terminal obeys, those of lines and of progress bars on standard error left out.
fn steering(text: &str) -> Vec<char> {
    let steers =
        |c: &char| (c.is_control() && !['\n', '\t'].contains(c)) || ('\u{202a}'..='\u{202e}').contains(c);
    text.chars().filter(steers).collect()
}

/// Lets the first answered tokens of a golden prompt be these bytes, by giving each the place of another.
fn let_answer_be(model: &Path, answer: &[u32], tokens: &[&[u8]]) {
    let path = model.join("tiktoken.model");
    let mut words: Vec<String> = fs::read_to_string(&path)
        .unwrap()
        .lines()
        .map(|line| line.split(' ').next().unwrap().to_owned())
        .collect();
    for (id, bytes) in answer.iter().zip(tokens) {
        let wanted = base64(bytes);
        match words.iter().position(|word| *word == wanted) {
            Some(other) => words.swap(other, *id as usize),
            None => words[*id as usize] = wanted,
        }
    }
    let lines = words.iter().enumerate().map(|(rank, word)| format!("{word} {rank}\n"));
    fs::write(&path, lines.collect::<String>()).unwrap();
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let group = |group: &[u8]| {
        let number = group.iter().chain([0, 0].iter()).take(3).fold(0, |n, byte| n << 8 | usize::from(*byte));
        let digit = |place: usize| char::from(DIGITS[number >> (18 - 6 * place) & 63]);
        (0..4).map(|place| if place <= group.len() { digit(place) } else { '=' }).collect::<String>()
    };
    bytes.chunks(3).map(group).collect()
}

#[test]
fn what_a_model_says_cannot_steer_a_terminal() {
    let model = model_copy();
    let (ids, answer) = golden("story");
    // An escape sequence over two tokens, a C1 control over two, a title, a lone return, a turned direction.
    let tokens: [&[u8]; 8] = [
        b"\x1b",
        b"[31mred",
        b"\xc2",
        b"\x9b2J",
        b"\x1b]0;title\x07",
        b"\rover",
        "\u{202e}txt".as_bytes(),
        b"\r\nnext",
    ];
    let_answer_be(model.path(), &answer, &tokens);
    let ids = listed(&ids);
    let base = ["run", "--ids", &ids, "--temperature", "0", "--max-tokens", "8"];
    let run = [&base[..], &["--activations", "exact", "--model", text_of(model.path())]].concat();
    let said = String::from_utf8(tokens.concat()).unwrap();

    assert_eq!(colibri(&run).stdout, format!("{said}\n"), "every byte, on a pipe");
    let Screen { code, text } = plain(&run);
    let shown = "\u{241b}[31mred<U+009B>2J\u{241b}]0;title\u{2407}\u{240d}over<U+202E>txt\r\nnext\n";
    assert!(code == 0 && text.contains(shown), "{text:?}");
    let text = text.replace(shown, "");
    assert!(!text.contains("[31m") && !text.contains("title") && !text.contains('\u{202e}'), "{text:?}");

    // The same in JSON, which stays JSON.
    let Screen { code, text } = plain(&[&run[..], &["--json"]].concat());
    // A progress bar may have been cleared on the same line.
    let object = text[text.find("{\"finish").unwrap()..].trim_end();
    assert!(code == 0 && steering(object).is_empty(), "{object:?}");
    assert_eq!(serde_json::from_str::<serde_json::Value>(object).unwrap()["text"], said);
}

#[test]
fn names_of_files_cannot_steer_a_terminal() {
    let place = tempfile::tempdir().unwrap();
    let model = place.path().join("m\x1b[2J\u{9b}\u{202e}\rx\u{7f}");
    fs::rename(model_copy().keep(), &model).unwrap();
    let shown = "m\u{241b}[2J<U+009B><U+202E>\u{240d}x\u{2421}";
    let absent = model.join("absent");
    for (run, code) in [
        (vec!["inspect", "--model", text_of(&model)], 0),
        (vec!["inspect", "--model", text_of(&model), "--json"], 0),
        (vec!["inspect", "--model", text_of(&absent)], 1),
        (vec!["inspect", "--model", text_of(&absent), "--json"], 1),
        (vec!["logits", "x", "--layers", "1", "--out", text_of(&absent), "--model", text_of(&model)], 2),
    ] {
        let screen = plain(&run);
        assert_eq!((screen.code, steering(&screen.text)), (code, vec![]), "{run:?}: {:?}", screen.text);
        let json = run.contains(&"--json");
        let wanted = if json { "m\\u001b[2J\\u009b\\u202e\\rx\\u007f" } else { shown };
        assert!(screen.text.contains(wanted), "{run:?}: {:?}", screen.text);
        let piped = colibri(&run);
        let text = piped.stdout + &piped.stderr;
        let raw = if json { "m\\u001b[2J\u{9b}\u{202e}\\rx\u{7f}" } else { text_of(&model) };
        assert!(piped.code == code && text.contains(raw), "{run:?}: {text:?}");
    }
}

/// The command line's parser drops sequences of its own accord; what is left does not steer either.
#[test]
fn arguments_cannot_steer_a_terminal() {
    for run in [["inspect", "m\x1b[2J\u{9b}\u{202e}\rx"], ["run", "--device=m\x1b[2J\u{9b}\u{202e}\rx"]] {
        let screen = plain(&run);
        assert_eq!((screen.code, steering(&screen.text)), (2, vec![]), "{:?}", screen.text);
        assert!(screen.text.contains("m<U+009B><U+202E>\u{240d}x"), "{:?}", screen.text);
    }
}

/// Whether an error and the help are coloured.
fn coloured(screen: &Screen) -> bool {
    screen.text.contains('\x1b')
}

#[test]
fn colours_are_as_the_conventions_say() {
    for run in [&["run"][..], &["run", "--bogus"], &["run", "--help"], &["inspect", "--model", "absent"]] {
        let told = |flags: &[&str], variables: &[(&str, &str)]| {
            coloured(&on_terminal(80, &[run, flags].concat(), variables))
        };
        assert!(told(&[], &[]), "{run:?}");
        assert!(!told(&[], &[("NO_COLOR", "1")]), "{run:?}");
        assert!(told(&["--color", "always"], &[("NO_COLOR", "1")]), "{run:?}");
        assert!(!told(&["--color=never"], &[("CLICOLOR_FORCE", "1")]), "{run:?}");
        assert!(!told(&[], &[("TERM", "dumb")]), "{run:?}");
        assert!(!told(&[], &[("CLICOLOR", "0")]), "{run:?}");
        // On a pipe.
        let piped = |flags: &[&str], forced: bool| {
            let mut command = program();
            command.args([run, flags].concat());
            let output =
                if forced { command.env("CLICOLOR_FORCE", "1") } else { &mut command }.output().unwrap();
            [output.stdout, output.stderr].concat().contains(&0x1b)
        };
        assert!(!piped(&[], false) && piped(&[], true), "{run:?}");
        assert!(piped(&["--color", "always"], false) && !piped(&["--color", "never"], true), "{run:?}");
    }
    assert!(colibri(&["inspect", "--color", "sometimes"]).stderr.contains("auto, always, never"));
}

#[test]
fn lines_fit_the_terminal() {
    let widest = |columns: u16, wish: &str| {
        let run = ["run", "x", "--temperature", "0", "--max-tokens", "1"];
        let screen = on_terminal(columns, &run, &[("NO_COLOR", "1"), ("COLUMNS", wish)]);
        let settings = screen.text.lines().skip_while(|line| !line.contains("settings:"));
        let settings = settings.take_while(|line| !line.starts_with("planned"));
        settings.map(|line| line.chars().count()).max().unwrap()
    };
    let (narrow, wide, wished) = (widest(50, ""), widest(120, ""), widest(120, "50"));
    assert!(narrow <= 50 && wide > 80 && wide <= 120 && wished == narrow, "{narrow} {wide} {wished}");
    assert_eq!(widest(50, "none"), narrow, "what is no number is no wish");
}
