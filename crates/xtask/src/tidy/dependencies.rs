//! Rules about dependencies that nobody uses. Looks for their names in the code; who may use whom is the business of
//! `manifests`, and versions are Cargo's.

use super::code::product_code;
use super::manifests::{DEPENDENCIES, DEV_DEPENDENCIES, dependencies, entries, manifests};
use super::source::Source;
use super::{File, Finding};
use std::collections::HashSet;

/// Every entry of the root's `[workspace.dependencies]` is a dependency of some crate.
pub(crate) fn unused_in_workspace(files: &[File]) -> Vec<Finding> {
    let tables = [DEPENDENCIES, DEV_DEPENDENCIES].concat();
    let used: HashSet<&str> =
        manifests(files).flat_map(|(_, _, text)| dependencies(text, &tables)).map(|(_, name)| name).collect();
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.path == "Cargo.toml") {
        for (line, table, name, _) in entries(file.text.as_deref().unwrap_or_default()) {
            if table == "workspace.dependencies" && !used.contains(name) {
                findings.push(Finding::new(file, line, format!("no crate depends on `{name}`: remove it")));
            }
        }
    }
    findings
}

/// The code of a crate names each of its dependencies: outside its tests, or anywhere for those of tests.
pub(crate) fn unused_in_crate(files: &[File]) -> Vec<Finding> {
    let product: Vec<(&File, &Source)> =
        product_code(files).filter(|(file, _)| !file.path.contains("/examples/")).collect();
    let mut findings = Vec::new();
    for (file, package, text) in manifests(files) {
        for (line, name) in dependencies(text, DEPENDENCIES) {
            let mut code = product.iter().filter(|(file, _)| file.package() == Some(package));
            if !code.any(|(_, source)| places(source, name).any(|place| !source.is_test(place))) {
                let message = format!(
                    "`{package}` does not use `{name}` outside its tests: remove it, or move it to dev-dependencies"
                );
                findings.push(Finding::new(file, line, message));
            }
        }
        for (line, name) in dependencies(text, DEV_DEPENDENCIES) {
            let mut code = files.iter().filter(|file| file.package() == Some(package));
            if !code.any(|file| file.source.as_ref().is_some_and(|code| places(code, name).next().is_some()))
            {
                findings.push(Finding::new(
                    file,
                    line,
                    format!("`{package}` does not use `{name}`: remove it"),
                ));
            }
        }
    }
    findings
}

/// Where paths of a crate begin: its name with `::` behind it, and no other path before it.
fn places(source: &Source, name: &str) -> impl Iterator<Item = usize> {
    let begins_a_path = |start: &usize| {
        let before = source.code[..*start].trim_end();
        before
            .strip_suffix("::")
            .is_none_or(|path| !path.ends_with(|c: char| c.is_alphanumeric() || c == '_'))
    };
    source.find(&format!("{}::", name.replace('-', "_"))).into_iter().filter(begins_a_path)
}

#[cfg(test)]
mod tests {
    use super::super::{sample, shown};
    use super::*;

    #[test]
    fn entries_of_the_workspace_are_used_by_some_crate() {
        let root =
            "[workspace.dependencies]\na = \"1\"\nb = { version = \"1\" } # why\nc = \"1\"\n[other]\nd = 1\n";
        let files = sample(&[
            ("Cargo.toml", root),
            ("crates/x/Cargo.toml", "[dependencies]\na.workspace = true\n"),
            ("crates/y/Cargo.toml", "[target.'cfg(unix)'.dev-dependencies]\nc.workspace = true\n"),
        ]);
        assert_eq!(shown(&unused_in_workspace(&files)), ["Cargo.toml:3: no crate depends on `b`: remove it"]);
    }

    #[test]
    fn dependencies_are_named_in_the_code() {
        let manifest = "[dependencies]\nused-name = \"1\"\nrenamed = \"1\"\nin-words = \"1\"\nmodule = \"1\"\n\
                        in-tests = \"1\"\n[dev-dependencies]\ncases = \"1\"\nnone = \"1\"\n";
        let code = "//! in_words::is a comment\nuse used_name::A;\nfn f() -> ::renamed::B { crate::module::f(\"none::x\") }\n\
                    #[cfg(test)]\nmod tests {\n    use in_tests::C;\n}\n";
        let files = sample(&[
            ("crates/x/Cargo.toml", manifest),
            ("crates/x/src/lib.rs", code),
            ("crates/x/tests/a.rs", "use cases::*;\nuse in_words::D;\n"),
            ("crates/y/src/lib.rs", "use in_words::D;\nuse none::E;\n"),
        ]);
        let findings = unused_in_crate(&files);
        assert_eq!(findings.iter().map(|finding| finding.line).collect::<Vec<_>>(), [4, 5, 6, 9]);
        let last = "crates/x/Cargo.toml:9: `x` does not use `none`: remove it";
        assert_eq!(findings[3].to_string(), last);
    }
}
