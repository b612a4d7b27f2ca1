//! What the pages on security say is tested is tested by tests that there are, as is what is promised, and files are where pages say.

use std::collections::BTreeSet;
use std::path::Path;

use outrigger_sim::judge::promises::{Held, PAGES};
use outrigger_tests::root;
use pulldown_cmark::{Event, Options, Parser};

use crate::book::{files, others, pages};

/// Names of all tests in our Rust files: functions below an attribute that ends in `test]` or `test(...)]`, or within `proptest!`, and
/// scenarios of the crash matrix, which a macro makes tests of.
fn tests() -> BTreeSet<String> {
    let sources = ["tests", "src"].iter().flat_map(|dir| files(&root().join(dir), "rs"));
    let is_test = |line: &str| line.starts_with("#[test]") || line.starts_with("#[tokio::test");
    let mut found = BTreeSet::new();
    for path in sources {
        let text = std::fs::read_to_string(path).unwrap();
        let mut marked = false;
        for line in text.lines().map(str::trim_start) {
            marked |= is_test(line);
            let scenario = line.strip_prefix("scenario!(").and_then(|rest| rest.split(',').next());
            found.extend(scenario.map(str::to_owned));
            let Some((before, after)) = line.split_once("fn ") else { continue };
            if matches!(before, "" | "async " | "pub(crate) ") && std::mem::take(&mut marked) {
                found.extend(after.split(['(', '<']).next().map(str::to_owned));
            }
        }
    }
    found
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
    let tests = tests();
    let mut seen = 0;
    for page in ["security.md", "threats.md", "reliability.md", "compatibility.md"] {
        for code in codes(&root().join("docs").join(page)).into_iter().filter(|code| is_name(code)) {
            let there = match code.strip_suffix('…') {
                Some(start) => tests.iter().any(|name| name.starts_with(start)),
                None => tests.contains(&code),
            };
            assert!(there, "{page}: there is no test {code}");
            seen += 1;
        }
    }
    assert!(seen > 40, "{seen}");
}

#[test]
fn tests_that_hold_promises_exist() {
    let tests = tests();
    let mut seen = 0;
    for (page, promises) in PAGES {
        for (promise, held) in *promises {
            let Held::Tests(names) = held else { continue };
            for name in *names {
                assert!(tests.contains(*name), "{page}: {promise}: there is no test {name}");
                seen += 1;
            }
        }
    }
    assert!(seen > 300, "{seen}");
}

/// A guarantee without a test is a wish, a fault without one comes back, and what is predicted of Kubernetes has to be compared with it.
#[test]
fn each_guarantee_fault_and_prediction_names_its_test() {
    let page = std::fs::read_to_string(root().join("docs/reliability.md")).unwrap();
    let rows = ["## Guarantees", "## Predictions", "## Faults found"].into_iter().flat_map(|heading| {
        let (_, section) = page.split_once(heading).expect(heading);
        let end = section.find("\n#").unwrap_or(section.len());
        // The first two lines of a table are its head.
        section[..end].lines().filter(|line| line.starts_with('|')).skip(2)
    });
    let mut seen = 0;
    for row in rows {
        let shown_by = row.trim_end_matches(['|', ' ']).rsplit('|').next().unwrap();
        let named = shown_by.split('`').skip(1).step_by(2).any(is_name);
        assert!(named || shown_by.contains("`tests/crash`") || shown_by.contains("the simulation"), "{row}");
        seen += 1;
    }
    assert!(seen > 90, "{seen}");
}
