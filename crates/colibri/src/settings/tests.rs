//! The layers on a command line of the test's own, which has what the program may one day have: a secret, flags that
//! exclude each other, lists of texts.
use super::catalog::{Kind, Type};
use super::*;
use crate::seeds_of_tests::{Random, seeds};
use clap::Arg;
use std::fs;
use tempfile::TempDir;

const TEST_MARKS: Marks<'static> =
    Marks { not_settings: &[&["out"], &["config", "no-config"]], secrets: &["api-key"] };

fn definition() -> Definition {
    let flag = |name: &'static str| Arg::new(name).long(name);
    let switch = |name| flag(name).action(ArgAction::SetTrue);
    let go = Command::new("go")
        .arg(flag("size").value_parser(clap::value_parser!(u32).range(1..10)).default_value("4"))
        .arg(flag("api-key").value_parser(|text: &str| {
            if text.len() < 8 {
                Err(format!("{text} is shorter than 8 letters"))
            } else {
                Ok(text.to_owned())
            }
        }))
        .arg(flag("place").action(ArgAction::Append).value_parser(clap::value_parser!(PathBuf)))
        .arg(flag("stop").action(ArgAction::Append))
        .arg(flag("effort").conflicts_with("no-think"))
        .arg(switch("no-think"))
        .arg(switch("loud"))
        .arg(flag("temperature").value_parser(clap::value_parser!(f32)))
        .arg(flag("seed").value_parser(clap::value_parser!(u64)))
        .arg(flag("out").required(true))
        .arg(Arg::new("text").conflicts_with("stop"));
    let stay =
        Command::new("stay").arg(flag("size").value_parser(clap::value_parser!(u32))).arg(flag("api-key"));
    let root = Command::new("test")
        .arg(flag("config").global(true).value_parser(clap::value_parser!(PathBuf)))
        .arg(Arg::new("no_config").long("no-config").action(ArgAction::SetTrue).global(true))
        .arg(flag("level").global(true))
        .subcommand_required(true)
        .subcommands([go, stay]);
    Definition::new(root, TEST_MARKS)
}

/// What is said in the file, in the environment and on the command line.
fn effective(file: &str, variables: &[(&str, &str)], line: &[&str]) -> Result<Effective, String> {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("config.toml");
    fs::write(&path, file).unwrap();
    let variables = variables.iter().map(|(name, value)| (name.into(), value.into())).collect();
    let surroundings = Surroundings { variables, usual: Place::Usual(path) };
    let line: Vec<OsString> = ["test"].iter().chain(line).map(OsString::from).collect();
    let definition = definition();
    let effective = definition.effective(&line, &surroundings).and_then(|effective| {
        definition.judged(&effective, false)?;
        Ok(effective)
    });
    effective.map_err(|refusal| refusal.into_failure().message())
}

fn value(effective: &Effective, name: &str) -> (String, &'static str) {
    let row = effective.rows.get(name).unwrap();
    let words: Vec<_> = row.values.iter().map(|value| value.to_string_lossy()).collect();
    (words.join("|"), row.origin.kind())
}

#[test]
fn the_definition_is_the_list_of_settings() {
    let definition = definition();
    let go = definition.catalog().command("go").unwrap();
    let names: Vec<&str> = go.settings.iter().map(|setting| setting.name.as_str()).collect();
    let all =
        ["size", "api-key", "place", "stop", "effort", "no-think", "loud", "temperature", "seed", "level"];
    assert_eq!(names, all);
    let form = |name: &str| go.get(name).map(|setting| (setting.kind, setting.value)).unwrap();
    assert_eq!(form("size"), (Kind::One, Type::Number));
    assert_eq!(form("temperature"), (Kind::One, Type::Number));
    assert_eq!(form("place"), (Kind::Many, Type::Path));
    assert_eq!(form("stop"), (Kind::Many, Type::Text));
    assert_eq!(form("loud"), (Kind::Switch, Type::Bool));
    assert_eq!(go.get("no-think").unwrap().variable(), "COLIBRI_NO_THINK");
}

#[test]
fn the_higher_layer_holds() {
    let file = "size = 2\n[go]\nsize = 3";
    for (file, variables, line, expected) in [
        ("", &[][..], &["go"][..], ("4", "default")),
        ("size = 2", &[], &["go"], ("2", "file")),
        (file, &[], &["go"], ("3", "file")),
        (file, &[], &["stay"], ("2", "file")),
        (file, &[("COLIBRI_SIZE", "5")], &["go"], ("5", "environment")),
        (file, &[("COLIBRI_SIZE", "5")], &["go", "--size", "6"], ("6", "command line")),
        (file, &[("COLIBRI_SIZE", "wrong")], &["go", "--size", "6"], ("6", "command line")),
        (file, &[("COLIBRI_NO_CONFIG", "1")], &["go"], ("4", "default")),
        (file, &[], &["--no-config", "go"], ("4", "default")),
        // The name of the command as the value of a flag before it and after it.
        (file, &[], &["--level", "go", "go", "--effort", "go"], ("3", "file")),
    ] {
        let effective = effective(file, variables, line).unwrap();
        let (text, origin) = value(&effective, "size");
        assert_eq!((text.as_str(), origin), expected, "{file:?} {variables:?} {line:?}");
    }
}

#[test]
fn what_is_told_is_parsed_as_if_typed() {
    let file = "stop = ['-x', '[y']\nloud = true\nplace = ['a', '/b']\nlevel = 'go'";
    let effective =
        effective(file, &[("COLIBRI_EFFORT", "--low")], &["--level", "go", "go", "--out", "o"]).unwrap();
    let matches = definition().judged(&effective, true).unwrap();
    let (_, go) = matches.subcommand().unwrap();
    let many = |name: &str| go.get_many::<String>(name).unwrap().cloned().collect::<Vec<_>>();
    assert_eq!((many("stop"), go.get_flag("loud")), (vec!["-x".to_owned(), "[y".to_owned()], true));
    assert_eq!(go.get_one::<String>("effort").unwrap(), "--low");
    let places: Vec<&PathBuf> = go.get_many("place").unwrap().collect();
    let beside = effective.place.path().unwrap().parent().unwrap().join("a");
    assert_eq!(places, [&beside, &PathBuf::from("/b")]);
}

#[test]
fn switches_are_switched_off_and_lists_replaced() {
    let on = "loud = true\nstop = ['a', 'b']";
    for (variables, line, loud, stop) in [
        (&[][..], &["go"][..], "true", "a|b"),
        (&[("COLIBRI_LOUD", "0"), ("COLIBRI_STOP", "c:d")], &["go"], "false", "c:d"),
        (&[("COLIBRI_STOP", r#"["c", "[d"]"#)], &["go", "--loud=false"], "false", "c|[d"),
        (&[("COLIBRI_LOUD", "false"), ("COLIBRI_STOP", "c")], &["go", "--loud", "--stop", "e"], "true", "e"),
    ] {
        let effective = effective(on, variables, line).unwrap();
        let seen = (value(&effective, "loud").0, value(&effective, "stop").0);
        assert_eq!(seen, (loud.to_owned(), stop.to_owned()), "{variables:?} {line:?}");
    }
    let paths = std::env::join_paths(["x", "y"]).unwrap();
    let variables = [("COLIBRI_PLACE", paths.to_str().unwrap())];
    assert_eq!(value(&effective("place = 'z'", &variables, &["go"]).unwrap(), "place").0, "x|y");
}

#[test]
fn what_excludes_a_setting_of_a_lower_origin_wins() {
    for (file, variables, line, name, by) in [
        ("effort = 'low'", &[][..], &["go", "--no-think"][..], "effort", "--no-think"),
        ("no-think = true", &[], &["go", "--effort", "low"], "no-think", "--effort"),
        ("effort = 'low'", &[("COLIBRI_NO_THINK", "1")], &["go"], "effort", "COLIBRI_NO_THINK"),
        ("no-think = true\n[go]\neffort = 'low'", &[], &["go"], "no-think", "`go.effort` in line 3"),
        ("stop = 'x'", &[], &["go", "words"], "stop", "text"),
        ("seed = 3", &[], &["go", "--temperature", "0"], "seed", "--temperature 0"),
        ("seed = 3", &[("COLIBRI_TEMPERATURE", "0.0")], &["go"], "seed", "COLIBRI_TEMPERATURE"),
    ] {
        let effective = effective(file, variables, line).unwrap();
        let row = effective.rows.get(name).unwrap();
        let ruled = row.idle.as_ref().unwrap_or_else(|| panic!("{file:?} {line:?}"));
        assert!(ruled.by.starts_with(by), "{}", ruled.by);
        assert_eq!((row.origin.kind(), ruled.origin.kind()), ("default", "file"));
        assert!(
            !effective.arguments.iter().any(|word| word.to_string_lossy().starts_with(&format!("--{name}=")))
        );
    }
    // A switch that is off excludes nothing; an idle setting of the same or a higher origin is left to the command.
    for (file, variables, line) in [
        ("effort = 'low'\nno-think = false", &[][..], &["go"][..]),
        ("seed = 3\ntemperature = 0", &[], &["go"]),
        ("temperature = 0", &[("COLIBRI_SEED", "3")], &["go"]),
        ("seed = 3", &[], &["go", "--temperature", "0.1"]),
    ] {
        let effective = effective(file, variables, line).unwrap();
        assert!(effective.rows.0.iter().all(|row| row.idle.is_none()), "{file:?}");
    }
    let both = effective("effort = 'low'\nno-think = true", &[], &["go"]).unwrap_err();
    assert!(both.contains("`effort` in line 1") && both.contains("`no-think` in line 2 of"), "{both}");
    let both = effective("", &[("COLIBRI_EFFORT", "low"), ("COLIBRI_NO_THINK", "1")], &["go"]).unwrap_err();
    assert!(both.contains("COLIBRI_EFFORT and COLIBRI_NO_THINK exclude each other"), "{both}");
}

/// A file, and what is said about it.
const WRONG_FILES: &[(&str, &[&str])] = &[
    ("size = 0", &["`size` in line 1 of", "`0`", "1..10", "give --size"]),
    ("\n\n[go]\nsize = 10", &["`go.size` in line 4 of", "`10`"]),
    ("siz = 3", &["line 1", "no setting `siz`", "did you mean `size`?"]),
    ("size_ = 3\n", &["did you mean `size`?"]),
    ("[stay]\neffort = 'low'", &["line 2", "`effort` of [stay]", "it is one of [go]"]),
    ("[gone]\nsize = 3", &["no command `gone`", "did you mean [go]?"]),
    ("zzz = 3", &["no setting `zzz`", "config --template"]),
    ("out = 'f'", &["`out` is no setting", "given with each call"]),
    ("[go]\nout = 'f'", &["`out` of [go] is no setting"]),
    ("size = '3'", &["`size`: expected a number without quotes, found a string"]),
    ("size = [3]", &["`size`: expected a number without quotes, found an array"]),
    ("size = true", &["found a boolean"]),
    ("size = 1979-05-27", &["found a datetime"]),
    ("[size]\nx = 1", &["`size`: expected a number without quotes, found a table"]),
    ("loud = 1", &["`loud`: expected true or false, found an integer"]),
    ("loud = 'true'", &["`loud`: expected true or false, found a string"]),
    ("effort = 3", &["`effort`: expected a text between quotes, found an integer"]),
    ("place = ['a', 3]", &["`place`: expected a path between quotes, or a list of these, found an integer"]),
    ("place = ''", &["`place`", "found an empty text"]),
    ("place = '~/a'", &["`~`", "write the whole path"]),
    ("size = 3\nsize = 4", &["line 2", "duplicate key"]),
    ("size = ", &["line 1"]),
    ("a = 'b", &["line 1"]),
];

#[test]
fn files_that_cannot_be_honoured_are_refused_with_their_line() {
    for (file, words) in WRONG_FILES {
        let message = effective(file, &[], &["go"]).map(|_| panic!("{file:?}")).unwrap_err();
        assert!(message.contains("config.toml"), "{message}");
        for word in *words {
            assert!(message.contains(word), "{file:?}: {word}: {message}");
        }
    }
}

#[test]
fn numbers_of_every_notation_arrive() {
    for (text, expected) in [
        ("1_8446744073709551615", "18446744073709551615"),
        ("+3", "3"),
        ("0x10", "16"),
        ("0b11", "3"),
        ("0o17", "15"),
    ] {
        assert_eq!(value(&effective(&format!("seed = {text}"), &[], &["go"]).unwrap(), "seed").0, expected);
    }
    for text in ["0.5", "5e-1", "1"] {
        assert_eq!(
            value(&effective(&format!("temperature = {text}"), &[], &["go"]).unwrap(), "temperature").0,
            text
        );
    }
}

#[test]
fn variables_that_cannot_be_honoured_are_refused() {
    for (name, text, words) in [
        ("COLIBRI_SIZE", "0", &["COLIBRI_SIZE is `0`", "1..10", "give --size"][..]),
        ("COLIBRI_SIZE", "", &["COLIBRI_SIZE"]),
        ("COLIBRI_SIZ", "3", &["COLIBRI_SIZ sets nothing", "did you mean COLIBRI_SIZE?"]),
        ("COLIBRI_QQQ", "3", &["COLIBRI_QQQ sets nothing", "unset"]),
        ("COLIBRI_OUT", "f", &["COLIBRI_OUT sets nothing: --out is given with each call"]),
        ("COLIBRI_LOUD", "yes", &["COLIBRI_LOUD: expected 1, 0, true or false"]),
        ("COLIBRI_PLACE", "", &["COLIBRI_PLACE", "empty"]),
        ("COLIBRI_STOP", "[a", &["COLIBRI_STOP", "JSON array"]),
        ("COLIBRI_CONFIG", "", &["COLIBRI_CONFIG is empty"]),
        ("COLIBRI_NO_CONFIG", "2", &["COLIBRI_NO_CONFIG: expected 1, 0"]),
        ("COLIBRI_CONFIG", "absent.toml", &["COLIBRI_CONFIG absent.toml", "cannot be read"]),
    ] {
        let message = effective("", &[(name, text)], &["go"]).map(|_| panic!("{name}")).unwrap_err();
        for word in words {
            assert!(message.contains(word), "{name}: {message}");
        }
    }
    let both = effective("", &[("COLIBRI_CONFIG", "a"), ("COLIBRI_NO_CONFIG", "1")], &["go"]).unwrap_err();
    assert!(both.contains("COLIBRI_CONFIG") && both.contains("unset one"), "{both}");
    assert!(effective("", &[("COLIBRI_TEST_ANYTHING", "x"), ("COLIBRIX", "y")], &["go"]).is_ok());
}

#[test]
fn secrets_are_in_no_error() {
    const SECRET: &str = "s3cr3t";
    let file = format!("api-key = '{SECRET}'");
    for (file, variables, line) in [
        (file.as_str(), &[][..], &["go"][..]),
        ("", &[("COLIBRI_API_KEY", SECRET)], &["go"]),
        ("", &[], &["go", "--api-key", SECRET]),
        (&file[..file.len() - 1], &[], &["go"]),
        ("api-key = [\"s3cr3t\"]", &[], &["go"]),
    ] {
        let message = effective(file, variables, line).map(|_| panic!("{file}")).unwrap_err();
        assert!(!message.contains(SECRET), "{message}");
        assert!(
            message.contains("API_KEY") || message.contains("api-key") || message.contains("line 1"),
            "{message}"
        );
    }
    assert!(effective(&file, &[], &["stay"]).unwrap().rows.get("api-key").unwrap().setting.secret);
}

#[test]
fn the_programs_marks_name_flags_that_it_has() {
    let definition = Definition::of_program();
    for name in MARKS.not_settings.iter().copied().flatten() {
        assert!(definition.catalog().is_per_call(name), "--{name} is marked and no flag");
    }
    for name in MARKS.secrets {
        assert!(definition.catalog().any(name).is_some(), "--{name} is marked and no setting");
    }
}

#[test]
fn every_setting_says_its_default() {
    for command in &Definition::of_program().catalog().0 {
        for setting in &command.settings {
            let said = setting.default.is_some() || setting.otherwise.is_some();
            assert!(
                said,
                "{} --{}: expected a default value or [default: ...] in its help",
                command.name, setting.name
            );
        }
    }
}

#[test]
fn the_template_is_a_file_that_can_be_read() {
    let definition = Definition::of_program();
    let text = template(definition.catalog());
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let path = Path::new("config.toml");
    assert_eq!(file::entries(path, &text, definition.catalog()).unwrap(), []);
    // With every key that has an example.
    let uncommented: Vec<&str> = text
        .lines()
        .filter_map(|line| {
            line.strip_prefix('#').filter(|rest| !rest.starts_with(' ') && !rest.ends_with('='))
        })
        .collect();
    let entries = file::entries(path, &uncommented.join("\n"), definition.catalog()).unwrap();
    assert!(entries.len() > definition.catalog().names().len() / 2);
    let keys = text
        .lines()
        .filter(|line| line.starts_with('#') && !line.starts_with("# ") && line.contains(" ="))
        .count();
    assert_eq!(keys, definition.catalog().names().len());
}

#[test]
fn damaged_files_are_read_or_refused_by_their_line() {
    let definition = Definition::of_program();
    let sound =
        "chunk = 5\nmodel = ['a', \"b\\u0041\"]\ntemperature = 0.5\n[run]\nseed = 0x10\nignore-eos = true\n";
    let path = Path::new("config.toml");
    let mut read = 0;
    for seed in seeds(500) {
        let mut random = Random(seed);
        let mut bytes = sound.as_bytes().to_vec();
        for _ in 0..=random.below(3) {
            let at = random.below(bytes.len());
            match random.below(3) {
                0 => bytes[at] = random.next() as u8,
                1 => drop(bytes.remove(at)),
                _ => bytes.insert(at, sound.as_bytes()[random.below(sound.len())]),
            }
        }
        match file::entries(path, &String::from_utf8_lossy(&bytes), definition.catalog()) {
            Ok(entries) => read += usize::from(!entries.is_empty()),
            Err(failure) => {
                let message = failure.message();
                assert!(message.starts_with("config.toml, line "), "{message}");
            }
        }
    }
    assert!(read > 0, "some damage does no harm");
}
