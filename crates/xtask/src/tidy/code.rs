//! Rules about Rust code: length of functions, `unsafe`, what libraries may not do, unfinished code.

use super::source::Source;
use super::{FUNCTION_LINES_MAX, File, Finding, PROGRAMS, UNSAFE_ALLOWED};
use std::collections::HashSet;

/// Functions outside tests have at most [`FUNCTION_LINES_MAX`] lines of code.
pub(crate) fn long_functions(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, source) in product_code(files) {
        for start in source.find("fn") {
            // `fn(` is a type; a declaration has a name.
            let name: String = source.code[start + 2..]
                .trim_start()
                .chars()
                .take_while(|c| *c != '(' && *c != '<')
                .collect();
            if name.is_empty() || source.is_test(start) {
                continue;
            }
            let (end, body) = source.item_end(start);
            let lines = source.code[start..end].lines().filter(|line| !line.trim().is_empty()).count();
            if body.is_some() && lines > FUNCTION_LINES_MAX {
                let message = format!(
                    "function `{name}` has {lines} lines of code, the limit is {FUNCTION_LINES_MAX}: divide it"
                );
                findings.push(Finding::new(file, source.line(start), message));
            }
        }
    }
    findings
}

/// `unsafe` stands only in the files of [`UNSAFE_ALLOWED`]; tests are no exception.
pub(crate) fn unsafe_elsewhere(files: &[File]) -> Vec<Finding> {
    let is_allowed = |path: &str| {
        UNSAFE_ALLOWED.iter().any(|entry| path == *entry || (entry.ends_with('/') && path.starts_with(entry)))
    };
    let message =
        "`unsafe` is allowed only in the files of UNSAFE_ALLOWED: do without, or move it behind one of them";
    let elsewhere = files.iter().filter(|file| !is_allowed(&file.path));
    words(elsewhere.filter_map(|file| Some((file, file.source.as_ref()?))), &["unsafe"], |_| {
        message.to_owned()
    })
}

/// Libraries print nothing, never end the process and read no environment: the program does that.
pub(crate) fn library_side_effects(files: &[File]) -> Vec<Finding> {
    const WORDS: [&str; 12] = [
        "println!",
        "eprintln!",
        "print!",
        "eprint!",
        "process::exit",
        "process::abort",
        "env::var",
        "env::var_os",
        "env::vars",
        "env::vars_os",
        "env::args",
        "env::set_var",
    ];
    let is_library = |file: &&File| {
        file.path.contains("/src/") && file.package().is_some_and(|package| !PROGRAMS.contains(&package))
    };
    let code = product_code(files).filter(|(file, _)| is_library(file));
    let message =
        |word: &str| format!("`{word}` in a library: return a value or an error, the program decides");
    words(code, &WORDS, message).into_iter().filter(|finding| !in_test(files, finding)).collect()
}

/// No code that says of itself that it is not done.
pub(crate) fn unfinished(files: &[File]) -> Vec<Finding> {
    let code = files.iter().filter_map(|file| Some((file, file.source.as_ref()?)));
    words(code, &["todo!", "unimplemented!", "dbg!"], |word| {
        format!("`{word}` is left: finish it or take it out")
    })
}

/// A finding for every place where one of the words stands.
fn words<'a>(
    code: impl Iterator<Item = (&'a File, &'a Source)>,
    words: &[&str],
    message: impl Fn(&str) -> String,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, source) in code {
        for word in words {
            findings.extend(
                source
                    .find(word)
                    .into_iter()
                    .map(|start| Finding::new(file, source.line(start), message(word))),
            );
        }
    }
    findings
}

/// Whether a finding lies in an item under `#[cfg(test)]`.
fn in_test(files: &[File], finding: &Finding) -> bool {
    let file = files.iter().find(|file| file.path == finding.path);
    file.and_then(|file| file.source.as_ref()).is_some_and(|source| source.is_test_line(finding.line))
}

/// Rust files that are not wholly tests: not in a folder or file named `tests`, `benches` or `fuzz`, and not a
/// module that is declared under `#[cfg(test)]`.
pub(super) fn product_code(files: &[File]) -> impl Iterator<Item = (&File, &Source)> {
    let declared: HashSet<String> = files.iter().flat_map(test_module_paths).collect();
    let is_test =
        |path: &str| path.split('/').any(|part| matches!(part, "tests" | "tests.rs" | "benches" | "fuzz"));
    files
        .iter()
        .filter(move |file| !is_test(&file.path) && !declared.contains(&file.path))
        .filter_map(|file| Some((file, file.source.as_ref()?)))
}

/// Where the modules that a file declares under `#[cfg(test)]` may lie.
fn test_module_paths(file: &File) -> Vec<String> {
    let Some(source) = &file.source else { return Vec::new() };
    let (folder, name) = file.path.rsplit_once('/').unwrap_or(("", &file.path));
    let folder = match name {
        "lib.rs" | "main.rs" | "mod.rs" => folder.to_owned(),
        _ => format!("{folder}/{}", name.trim_end_matches(".rs")),
    };
    source.test_modules.iter().map(|module| format!("{folder}/{module}.rs")).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{sample, shown};
    use super::*;

    fn function_of(lines: usize) -> String {
        format!(
            "/// Long.\nfn long(a: [u8; 2]) -> u8 {{\n{}    // free\n\n    0\n}}\n",
            "    a();\n".repeat(lines - 3)
        )
    }

    #[test]
    fn long_functions_are_found_and_comments_are_free() {
        assert_eq!(shown(&long_functions(&sample(&[("crates/ops/src/a.rs", &function_of(70))]))), [""; 0]);
        let bad = sample(&[("crates/ops/src/a.rs", &function_of(71))]);
        let expected =
            "crates/ops/src/a.rs:2: function `long` has 71 lines of code, the limit is 70: divide it";
        assert_eq!(shown(&long_functions(&bad)), [expected]);
    }

    #[test]
    fn tests_may_be_long() {
        let inside = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", function_of(90));
        let files = sample(&[
            ("crates/ops/tests/a.rs", &function_of(90)),
            ("crates/ops/src/b.rs", &inside),
            ("crates/ops/src/c.rs", "#[cfg(test)]\nmod d;\n"),
            ("crates/ops/src/c/d.rs", &function_of(90)),
        ]);
        assert_eq!(long_functions(&files), []);
    }

    #[test]
    fn unsafe_is_found_outside_the_list() {
        let text = "#![deny(unsafe_op_in_unsafe_fn)]\n// unsafe\nfn f() { unsafe { g() } }\n";
        let files = sample(&[("crates/memory/src/a.rs", text), ("crates/ops/src/a.rs", text)]);
        let findings = shown(&unsafe_elsewhere(&files));
        assert_eq!(findings.len(), 1);
        assert!(findings[0].starts_with("crates/ops/src/a.rs:3: `unsafe`"), "{findings:?}");
    }

    #[test]
    fn libraries_do_not_print_exit_or_read_the_environment() {
        let text = "fn f() {\n    println!(\"a\");\n    eprintln!();\n    std::process::exit(1);\n    std::env::var(\"A\");\n}\n\
                    #[cfg(test)]\nmod tests { fn g() { println!(); } }\n";
        let files = sample(&[
            ("crates/store/src/a.rs", text),
            ("crates/store/tests/a.rs", text),
            ("crates/colibri/src/a.rs", text),
        ]);
        let places: Vec<(String, usize)> =
            library_side_effects(&files).into_iter().map(|finding| (finding.path, finding.line)).collect();
        assert_eq!(places, [2, 3, 4, 5].map(|line| ("crates/store/src/a.rs".to_owned(), line)));
    }

    #[test]
    fn unfinished_code_is_found_even_in_tests() {
        let files = sample(&[(
            "crates/ops/tests/a.rs",
            "fn f() {\n    todo!()\n}\nfn g() { unimplemented!(); dbg!(1) }\n",
        )]);
        let lines: Vec<usize> = unfinished(&files).into_iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [2, 4, 4]);
    }
}
