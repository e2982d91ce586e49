//! Rules about Cargo.toml files: which crate may use which, names, and reasons for allowed lints. Reads tables
//! and keys line by line; the manifests here need no more TOML than that.

use super::{EDGES, File, Finding};

/// Crates depend only on those that [`EDGES`] names; dependencies of tests are free.
pub(crate) fn edges(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, package, text) in manifests(files) {
        let Some((_, allowed)) = EDGES.iter().find(|(name, _)| *name == package) else {
            findings.push(Finding::new(
                file,
                1,
                format!("crate `{package}` is not in EDGES: say there what it may use"),
            ));
            continue;
        };
        for (line, name) in dependencies(text, DEPENDENCIES) {
            let is_ours = EDGES.iter().any(|(ours, _)| *ours == name);
            if is_ours && !allowed.contains(&name) {
                let message =
                    format!("`{package}` must not depend on `{name}`; it may use: {}", list(allowed));
                findings.push(Finding::new(file, line, message));
            }
        }
    }
    findings
}

/// A crate's folder has the package's name.
pub(crate) fn folder_names(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (file, folder, text) in manifests(files) {
        let name = entries(text).find(|(_, table, key, _)| *table == "package" && *key == "name");
        let (line, name) = name.map_or((1, ""), |(line, _, _, value)| (line, value.trim_matches('"')));
        if name != folder {
            findings.push(Finding::new(
                file,
                line,
                format!("package `{name}` lies in the folder `{folder}`: name both alike"),
            ));
        }
    }
    findings
}

/// A lint that a manifest allows has its reason behind it, as a comment.
pub(crate) fn lints_without_reason(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.path == "Cargo.toml" || file.path.ends_with("/Cargo.toml")) {
        let Some(text) = &file.text else { continue };
        for (line, table, key, value) in entries(text) {
            if table.contains("lints.") && value.contains("\"allow\"") && !value.contains('#') {
                let message =
                    format!("lint `{key}` is allowed without a reason: add one as a comment behind it");
                findings.push(Finding::new(file, line, message));
            }
        }
    }
    findings
}

/// The manifests of our crates: file, folder, text.
pub(super) fn manifests(files: &[File]) -> impl Iterator<Item = (&File, &str, &str)> {
    files.iter().filter_map(|file| {
        let folder = file.package()?;
        (file.path == format!("crates/{folder}/Cargo.toml")).then_some((file, folder, file.text.as_deref()?))
    })
}

/// Tables of what a crate is built with.
pub(super) const DEPENDENCIES: &[&str] = &["dependencies", "build-dependencies"];
/// Tables of what its tests and examples are built with.
pub(super) const DEV_DEPENDENCIES: &[&str] = &["dev-dependencies"];

/// Names in tables of these kinds and their forms for targets, with their lines.
pub(super) fn dependencies<'t>(text: &'t str, kinds: &[&str]) -> impl Iterator<Item = (usize, &'t str)> {
    let is_table = |table: &str| kinds.contains(&table.rsplit('.').next().unwrap_or(table));
    let by_key =
        entries(text).filter(move |(_, table, _, _)| is_table(table)).map(|(line, _, key, _)| (line, key));
    // `[dependencies.NAME]`
    let by_table = headers(text).filter_map(move |(line, header)| {
        let (table, name) = header.rsplit_once('.')?;
        is_table(table).then_some((line, name))
    });
    by_key.chain(by_table)
}

/// `[table]` lines.
fn headers(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().filter_map(|(index, line)| {
        let header = line.trim().strip_prefix('[')?.split(']').next()?;
        Some((index + 1, header.trim()))
    })
}

/// `key = value` lines: line, table, key up to its first dot, value with the comment behind it.
pub(super) fn entries(text: &str) -> impl Iterator<Item = (usize, &str, &str, &str)> {
    let mut table = "";
    text.lines().enumerate().filter_map(move |(index, line)| {
        let line = line.trim();
        if let Some(header) = line.strip_prefix('[') {
            table = header.split(']').next().unwrap_or(header).trim();
            return None;
        }
        let (key, value) = line.split_once('=').filter(|_| !line.starts_with('#'))?;
        let key = key.trim().split('.').next().unwrap_or(key).trim_matches('"');
        Some((index + 1, table, key, value.trim()))
    })
}

/// Names with commas, or `none of ours`.
fn list(names: &[&str]) -> String {
    if names.is_empty() { "none of ours".to_owned() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::super::{sample, shown};
    use super::*;

    #[test]
    fn forbidden_edges_are_found_in_every_form() {
        let text = "[package]\nname = \"text\"\n[dependencies]\nregex.workspace = true\nops.workspace = true\n\
                    [dev-dependencies]\nstore = { path = \"x\" }\n[target.'cfg(unix)'.dependencies]\nmemory = \"1\"\n\
                    [dependencies.models]\npath = \"x\"\n";
        let findings = edges(&sample(&[("crates/text/Cargo.toml", text)]));
        let lines: Vec<usize> = findings.iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [5, 9, 10]);
        assert_eq!(
            findings[0].to_string(),
            "crates/text/Cargo.toml:5: `text` must not depend on `ops`; it may use: none of ours"
        );
    }

    #[test]
    fn the_invariants_are_in_the_list() {
        for (package, forbidden) in [
            ("ops", vec!["models", "store", "text", "engine"]),
            ("store", vec!["ops", "models", "text", "engine"]),
            ("models", vec!["text", "engine"]),
            ("text", vec!["memory", "ops", "store", "models", "engine"]),
            ("memory", vec!["text", "ops", "store", "models", "engine"]),
        ] {
            for other in forbidden {
                let text = format!("[dependencies]\n{other}.workspace = true\n");
                let path = format!("crates/{package}/Cargo.toml");
                assert_eq!(edges(&sample(&[(&path, &text)])).len(), 1, "{package} on {other}");
            }
        }
    }

    #[test]
    fn a_new_crate_must_enter_the_list() {
        let findings = shown(&edges(&sample(&[("crates/new/Cargo.toml", "[dependencies]\n")])));
        assert_eq!(
            findings,
            ["crates/new/Cargo.toml:1: crate `new` is not in EDGES: say there what it may use"]
        );
    }

    #[test]
    fn folder_and_package_have_one_name() {
        let files = sample(&[
            ("crates/a/Cargo.toml", "[package]\nname = \"b\"\n"),
            ("crates/c/Cargo.toml", "[package]\nname = \"c\"\n"),
        ]);
        let expected = "crates/a/Cargo.toml:2: package `b` lies in the folder `a`: name both alike";
        assert_eq!(shown(&folder_names(&files)), [expected]);
    }

    #[test]
    fn allowed_lints_have_reasons() {
        let text = "[workspace.lints.clippy]\na = \"allow\" # because\nb = \"allow\"\nc = \"deny\"\n[x]\nd = \"allow\"\n";
        let lines: Vec<usize> = lints_without_reason(&sample(&[("Cargo.toml", text)]))
            .iter()
            .map(|finding| finding.line)
            .collect();
        assert_eq!(lines, [3]);
    }
}
