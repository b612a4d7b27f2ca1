//! Every link leads somewhere, on GitHub and in the book.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use outrigger_tests::root;
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::book::{others, pages};

/// What a page links to, and what can be linked to in it.
#[derive(Debug, Default)]
pub(crate) struct Page {
    /// Targets of links and images, as they stand there.
    pub(crate) links: Vec<String>,
    /// Ids of its headings.
    anchors: BTreeSet<String>,
    /// Images without words for who doesn't see them.
    silent: Vec<String>,
}

/// The id of a heading, as GitHub and mdBook make it of its text.
fn slug(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

pub(crate) fn read(text: &str) -> Page {
    let mut page = Page::default();
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut heading: Option<String> = None;
    let mut image: Option<(String, String)> = None;
    for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::Link { dest_url, .. }) => page.links.push(dest_url.into_string()),
            Event::Start(Tag::Image { dest_url, .. }) => {
                page.links.push(dest_url.to_string());
                image = Some((dest_url.into_string(), String::new()));
            }
            Event::End(TagEnd::Image) => {
                page.silent.extend(image.take().filter(|(_, words)| words.len() < 20).map(|(url, _)| url));
            }
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::End(TagEnd::Heading(_)) => {
                let id = slug(&heading.take().unwrap_or_default());
                let count = seen.entry(id.clone()).or_default();
                page.anchors.insert(if *count == 0 { id } else { format!("{id}-{count}") });
                *count += 1;
            }
            Event::Text(words) | Event::Code(words) => {
                if let Some((_, alt)) = &mut image {
                    alt.push_str(&words);
                } else if let Some(heading) = &mut heading {
                    heading.push_str(&words);
                }
            }
            _ => {}
        }
    }
    page
}

/// A link's file and the place in it, unless it leads to another site.
pub(crate) fn target(from: &Path, link: &str) -> Option<(PathBuf, Option<String>)> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = link.split_once('#').map_or((link, None), |(file, anchor)| (file, Some(anchor)));
    let file = if file.is_empty() { from.to_owned() } else { from.parent().unwrap().join(file) };
    Some((file, anchor.map(ToOwned::to_owned)))
}

#[test]
fn headings_get_the_ids_that_github_gives_them() {
    let page =
        read("# What's `up`, Doc?\n## A_b - c\n## A_b - c\n\n[x](y.md#z) ![a picture of some size](i.svg)");
    assert_eq!(page.anchors, ["a_b---c", "a_b---c-1", "whats-up-doc"].map(String::from).into());
    assert_eq!(page.links, ["y.md#z", "i.svg"]);
    assert!(page.silent.is_empty());
    assert_eq!(read("![short](i.svg)").silent, ["i.svg"]);
}

#[test]
fn every_link_leads_somewhere() {
    let read = |path: &Path| (path.canonicalize().unwrap(), read(&std::fs::read_to_string(path).unwrap()));
    let book: BTreeMap<PathBuf, Page> = pages().iter().map(|path| read(path)).collect();
    let all: BTreeMap<PathBuf, Page> =
        book.keys().map(|path| read(path)).chain(others().iter().map(|path| read(path))).collect();
    let docs = root().join("docs");
    let mut seen = 0;
    for (path, page) in &all {
        let of = path.display();
        assert!(page.silent.is_empty(), "{of}: no description: {:?}", page.silent);
        for link in &page.links {
            let Some((file, anchor)) = target(path, link) else { continue };
            seen += 1;
            let file = file.canonicalize().unwrap_or_else(|error| panic!("{of}: {link}: {error}"));
            if let Some(anchor) = anchor {
                let there = all
                    .get(&file)
                    .unwrap_or_else(|| panic!("{of}: {link}: not a page of this documentation"));
                assert!(there.anchors.contains(&anchor), "{of}: {link}: there are {:?}", there.anchors);
            }
            if book.contains_key(path) {
                assert!(file.starts_with(&docs), "{of}: {link} is not in the book: name it without a link");
                assert!(file.is_file(), "{of}: {link} is a directory, which is no page of a book");
            }
        }
    }
    assert!(seen > 150, "{seen}");
}

#[test]
fn every_page_is_in_the_contents_once() {
    let summary = root().join("docs/SUMMARY.md");
    let mut listed: Vec<PathBuf> = read(&std::fs::read_to_string(&summary).unwrap())
        .links
        .iter()
        .map(|link| target(&summary, link).unwrap().0)
        .collect();
    listed.sort();
    assert_eq!(listed, pages());
}
