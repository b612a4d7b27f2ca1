//! The documentation: it is a book without dead ends, what it names is there.

mod build;
mod links;
mod memory;
mod names;

use std::path::{Path, PathBuf};

use outrigger_tests::root;
use walkdir::WalkDir;

/// Files below a directory whose names end like this, by name.
fn files(dir: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = WalkDir::new(dir).into_iter().map(|entry| entry.unwrap().into_path());
    let ends =
        |path: &PathBuf| path.is_file() && path.extension().is_some_and(|extension| extension == ending);
    let mut found: Vec<PathBuf> = entries.filter(ends).collect();
    found.sort();
    found
}

/// The pages of the book, with `docs/` before them. The list of them is none.
fn pages() -> Vec<PathBuf> {
    let mut pages = files(&root().join("docs"), "md");
    pages.retain(|page| !page.ends_with("SUMMARY.md"));
    assert!(pages.len() > 30, "{pages:?}");
    pages
}

/// Pages that are read outside the book.
fn others() -> Vec<PathBuf> {
    let names = ["README", "CHANGELOG", "CONTRIBUTING", "GOVERNANCE", "MAINTAINERS", "ROADMAP", "SECURITY"];
    names.map(|name| root().join(name).with_extension("md")).into()
}
