//! What the pages on security say is tested is tested by tests that there are, and files are where pages say.

use std::collections::BTreeSet;
use std::path::Path;

use outrigger_tests::root;
use pulldown_cmark::{Event, Options, Parser};

use crate::{files, others, pages};

/// Names of all functions in our Rust files.
fn functions() -> BTreeSet<String> {
    let sources = ["tests", "src"].iter().flat_map(|dir| files(&root().join(dir), "rs"));
    sources
        .flat_map(|path| {
            let text = std::fs::read_to_string(path).unwrap();
            let names = text
                .lines()
                .filter_map(|line| line.split_once("fn ")?.1.split(['(', '<']).next().map(str::to_owned));
            names.collect::<Vec<_>>()
        })
        .collect()
}

/// Whether this is how a test's name is written: `four_words_or_more`, maybe cut off.
fn is_name(code: &str) -> bool {
    let name = code.trim_end_matches('…');
    name.matches('_').count() >= 2
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

/// Directories of the work tree that pages name files in.
const DIRS: [&str; 7] = ["certs/", "deploy/", "docs/", "proto/", "src/", "tests/", "webhooks/"];

/// What stands as code in a page, between words; not in blocks.
fn codes(page: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(page).unwrap();
    let code = |event| if let Event::Code(code) = event { Some(code.into_string()) } else { None };
    Parser::new_ext(&text, Options::ENABLE_TABLES).filter_map(code).collect()
}

#[test]
fn files_that_are_named_exist() {
    let mut seen = 0;
    for page in pages().into_iter().chain(others()) {
        for code in codes(&page) {
            let is_path = DIRS.iter().any(|dir| code.starts_with(dir)) && !code.contains([' ', '*', '<']);
            if is_path {
                assert!(root().join(&code).exists(), "{}: there is no {code}", page.display());
                seen += 1;
            }
        }
    }
    assert!(seen > 100, "{seen}");
}

#[test]
fn tests_that_are_named_exist() {
    let functions = functions();
    let mut seen = 0;
    for page in ["security.md", "threats.md", "reliability.md"] {
        for code in codes(&root().join("docs").join(page)).into_iter().filter(|code| is_name(code)) {
            let there = match code.strip_suffix('…') {
                Some(start) => functions.iter().any(|name| name.starts_with(start)),
                None => functions.contains(&code),
            };
            assert!(there, "{page}: there is no {code}");
            seen += 1;
        }
    }
    assert!(seen > 40, "{seen}");
}
