//! Every command in the README and in the pages for users is run, as it stands, by the shell. The embedded model's files take
//! the place of the large model that the pages speak of: in one folder, or split over two.
#[path = "../../../../tests/documents.rs"]
mod pages;

use crate::common::{colibri, colibri_with, model_copy};
use pages::{Block, blocks, root};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Where the pages assume a model, and one that is split over two drives.
const WHOLE: &str = "/models/kimi-k3";
const SPLIT: [&str; 2] = ["/mnt/first/kimi-k3", "/mnt/second/kimi-k3"];

/// `cargo run` is the program itself, unless it runs an example, which has a test of its own as other recipes have.
const CARGO: &str = r#"cargo() {
  case "$*" in
    *--example*) ;;
    run*) while [ "$1" != -- ]; do shift; done; shift; colibri "$@" ;;
  esac
}"#;

/// A folder with both forms of the model, and room for what commands write.
fn place() -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    let model = model_copy();
    for folder in ["whole", "first", "second", "work"] {
        fs::create_dir(place.path().join(folder)).unwrap();
    }
    for entry in fs::read_dir(model.path()).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        let later = name.starts_with("model-") && name.as_str() > "model-00006";
        for folder in ["whole", if later { "second" } else { "first" }] {
            fs::copy(entry.path(), place.path().join(folder).join(&name)).unwrap();
        }
    }
    place
}

/// Runs a block in the folder `work`; what the shell said if it failed.
fn run(block: &Block, place: &Path) -> Result<(), String> {
    let mut script = block.text.clone();
    for (from, to) in [(WHOLE, "whole"), (SPLIT[0], "first"), (SPLIT[1], "second")] {
        script = script.replace(from, place.join(to).to_str().unwrap());
    }
    let program = Path::new(env!("CARGO_BIN_EXE_colibri")).parent().unwrap();
    let search = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let output = Command::new("sh")
        .args(["-euc", &format!("{CARGO}\n{script}")])
        .current_dir(place.join("work"))
        .env_clear()
        .envs([("PATH", search.as_str()), ("HOME", place.to_str().unwrap())])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    if output.status.success() {
        return Ok(());
    }
    let said =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    Err(format!("{}:{}: {}\n{script}{said}", block.page, block.line, output.status))
}

#[test]
fn every_command_of_the_documents_runs() {
    let place = place();
    let commands: Vec<Block> = blocks().into_iter().filter(|block| block.language == "sh").collect();
    let pages = |page: &str| commands.iter().filter(|block| block.page == page).count();
    assert!(pages("README.md") >= 2, "the README gives commands");
    let failed: Vec<String> = commands.iter().filter_map(|block| run(block, place.path()).err()).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn a_command_that_fails_is_reported_with_its_place() {
    let place = place();
    let block = |text: &str| Block {
        page: "a.md".to_owned(),
        line: 7,
        language: "sh".to_owned(),
        text: text.to_owned(),
    };
    assert_eq!(run(&block("colibri --version\ncargo xtask ci\n"), place.path()), Ok(()));
    let text = format!("cargo run --release -- inspect --model {} --model {}\n", SPLIT[0], SPLIT[1]);
    assert_eq!(run(&block(&text), place.path()), Ok(()));
    for text in ["colibri run --no-such-flag x\ntrue\n", "cargo run -- inspect --model /mnt/first/kimi-k3\n"]
    {
        let error = run(&block(text), place.path()).unwrap_err();
        assert!(error.starts_with("a.md:7: exit status:"), "{error}");
    }
}

#[test]
fn every_block_says_what_it_is() {
    for block in blocks() {
        let known = ["sh", "text", "toml", "json", "rust"].contains(&block.language.as_str());
        assert!(known, "{}:{}: the language `{}`", block.page, block.line, block.language);
        let typed = block.text.lines().any(|line| line.starts_with("colibri ") || line.starts_with("cargo "));
        assert!(
            !typed || block.language == "sh",
            "{}:{}: commands that no test runs",
            block.page,
            block.line
        );
    }
}

/// The cells of the tables in a section of a page, row by row, without their headings.
fn rows(page: &str, section: &str) -> Vec<Vec<String>> {
    let text = fs::read_to_string(root().join(page)).unwrap();
    let section = text.split("\n## ").find(|part| part.starts_with(section)).unwrap();
    let tables = section.lines().filter(|line| line.starts_with('|'));
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
    tables.skip_while(|line| !line.starts_with("|---")).skip(1).map(cells).collect()
}

#[test]
fn the_settings_of_the_documents_are_those_of_the_program() {
    let all = colibri(&["config", "--all", "--json"]).good();
    let settings = all["commands"].as_array().unwrap().iter().flat_map(|command| {
        command["settings"].as_object().unwrap().keys().cloned().collect::<Vec<String>>()
    });
    let expected: BTreeSet<String> = settings.collect();
    let documented = rows("docs/settings.md", "All settings").into_iter().flat_map(|row| {
        row[0].split(", ").map(|name| name.trim_matches('`').to_owned()).collect::<Vec<String>>()
    });
    let documented: Vec<String> = documented.collect();
    let found: BTreeSet<String> = documented.iter().cloned().collect();
    assert_eq!(found.len(), documented.len(), "a setting stands twice in docs/settings.md");
    assert_eq!(
        found, expected,
        "docs/settings.md lists every setting of `colibri config --all`, and no other"
    );
}

#[test]
fn the_exit_codes_of_the_documents_are_those_of_the_help() {
    let help = colibri(&["--help"]).stdout;
    let lines =
        help.split_once("Exit codes:\n").unwrap().1.lines().filter_map(|line| line.trim().split_once("  "));
    let expected: Vec<Vec<String>> =
        lines.map(|(code, meaning)| vec![code.to_owned(), meaning.trim().to_owned()]).collect();
    assert!(expected.len() >= 5);
    assert_eq!(rows("docs/files.md", "Exit codes"), expected);
}

#[test]
fn the_orders_of_the_documents_are_those_of_the_chat() {
    let help = colibri_with(&["chat"], "/help\n").stderr;
    let name = |text: &str| text.split_whitespace().next().map(|name| name.trim_matches('`').to_owned());
    // The last line says what two slashes mean.
    let orders = help.lines().filter(|line| line.starts_with('/') && !line.starts_with("//"));
    let expected: Vec<String> = orders.filter_map(name).collect();
    assert!(expected.len() >= 9, "{help}");
    let found: Vec<String> = rows("docs/chat.md", "Orders").iter().filter_map(|row| name(&row[0])).collect();
    assert_eq!(found, expected);
}
