//! Rules about attributes: no ignored tests, no lint allowed without a reason.

use super::source::{Source, is_word};
use super::{File, Finding};

/// A test that is never run says nothing: none is ignored.
pub(crate) fn ignored_tests(files: &[File]) -> Vec<Finding> {
    let is_ignore = |attribute: &str| {
        let words = words(attribute);
        words.first() == Some(&"ignore") || (words.first() == Some(&"cfg_attr") && words.contains(&"ignore"))
    };
    find(files, is_ignore, "an ignored test: make it run, or take it out")
}

/// `allow` and `expect` say why, in the attribute.
pub(crate) fn allow_without_reason(files: &[File]) -> Vec<Finding> {
    let is_bare = |attribute: &str| {
        let words = words(attribute);
        let allows = match words.first() {
            Some(&"allow" | &"expect") => true,
            Some(&"cfg_attr") => words.contains(&"allow") || words.contains(&"expect"),
            _ => false,
        };
        allows && !words.contains(&"reason")
    };
    find(files, is_bare, "a lint is allowed without a reason: add `reason = \"...\"`")
}

/// A finding for every attribute that `is_bad`.
fn find(files: &[File], is_bad: impl Fn(&str) -> bool, message: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files {
        let Some(source) = &file.source else { continue };
        let bad = attributes(source).into_iter().filter(|(_, attribute)| is_bad(attribute));
        findings.extend(bad.map(|(start, _)| Finding::new(file, source.line(start), message)));
    }
    findings
}

/// Every `#[...]` and `#![...]`: where it starts and what stands inside the brackets.
fn attributes(source: &Source) -> Vec<(usize, &str)> {
    let mut attributes = Vec::new();
    for opening in ["#[", "#!["] {
        for (start, _) in source.code.match_indices(opening) {
            let inside = &source.code[start + opening.len()..];
            let mut depth = 1_usize;
            let end = inside.bytes().position(|byte| {
                match byte {
                    b'[' => depth += 1,
                    b']' => depth -= 1,
                    _ => {}
                }
                depth == 0
            });
            attributes.push((start, &inside[..end.unwrap_or(inside.len())]));
        }
    }
    attributes
}

/// The identifiers in an attribute.
fn words(attribute: &str) -> Vec<&str> {
    attribute
        .split(|letter: char| !letter.is_ascii() || !is_word(letter as u8))
        .filter(|word| !word.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    fn lines(findings: Vec<Finding>) -> Vec<usize> {
        findings.into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn ignored_tests_are_found() {
        let text = "#[test]\n#[ignore = \"slow\"]\nfn a() {}\n#[ignore]\nfn b() {}\n#[cfg_attr(unix, ignore)]\nfn c() {}\n\
                    // #[ignore]\n#[doc = \"ignore\"]\nfn d() {}\n";
        assert_eq!(lines(ignored_tests(&sample(&[("crates/ops/tests/a.rs", text)]))), [2, 4, 6]);
    }

    #[test]
    fn allow_needs_a_reason() {
        let text = "#![allow(dead_code)]\n#[allow(unused, reason = \"x\")]\nfn a() {}\n#[expect(\n    unused\n)]\nfn b() {}\n";
        let mut found = lines(allow_without_reason(&sample(&[("crates/ops/src/a.rs", text)])));
        found.sort_unstable();
        assert_eq!(found, [1, 4]);
    }
}
