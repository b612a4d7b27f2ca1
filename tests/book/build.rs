//! mdBook makes a book of the pages, which needs nothing of anybody.

use std::path::{Path, PathBuf};
use std::process::Command;

use outrigger_tests::control_plane::tool;
use outrigger_tests::root;
use outrigger_tests::shipped::output;

use crate::book::links::{read, target};
use crate::book::{files, pages};

fn book() -> PathBuf {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("book");
    let mut command = Command::new(tool("mdbook").unwrap());
    command.arg("build").arg("--dest-dir").arg(&out).arg(root().join("docs"));
    output(command).unwrap();
    out
}

/// The file that a page has become.
fn made_of(book: &Path, page: &Path) -> PathBuf {
    let page = page.strip_prefix(root().join("docs")).unwrap().with_extension("html");
    let name = if page.ends_with("README.html") { page.with_file_name("index.html") } else { page };
    book.join(name)
}

#[test]
fn the_book_has_every_page_and_every_place_that_is_linked_to() {
    let book = book();
    for page in pages() {
        assert!(made_of(&book, &page).is_file(), "{} is not in the book", page.display());
        for link in read(&std::fs::read_to_string(&page).unwrap()).links {
            let Some((file, anchor)) = target(&page, &link) else { continue };
            let file = file.canonicalize().unwrap();
            let made = if file.extension().is_some_and(|extension| extension == "md") {
                made_of(&book, &file)
            } else {
                book.join(file.strip_prefix(root().join("docs")).unwrap())
            };
            assert!(made.is_file(), "{}: {link}: no {}", page.display(), made.display());
            if let Some(anchor) = anchor {
                let html = std::fs::read_to_string(&made).unwrap();
                assert!(html.contains(&format!("id=\"{anchor}\"")), "{}: {link}", page.display());
            }
        }
    }

    // A reader without a network sees the same, and a reader with one isn't seen by others.
    let mut seen = 0;
    for html in files(&book, "html") {
        let text = std::fs::read_to_string(&html).unwrap();
        for tag in text
            .split('<')
            .filter(|tag| ["script", "link", "img", "iframe"].iter().any(|t| tag.starts_with(t)))
        {
            let tag = tag.split('>').next().unwrap();
            assert!(!tag.contains("//"), "{}: <{tag}>", html.display());
            seen += 1;
        }
    }
    for css in files(&book, "css") {
        let text = std::fs::read_to_string(&css).unwrap();
        assert!(!text.contains("url(http") && !text.contains("@import"), "{}", css.display());
    }
    assert!(seen > 100, "{seen}");
}
