//! Who holds each promise of the documentation: an invariant, another test, or nobody.
//!
//! A promise is quoted from its page, so it can't be another one unnoticed. An invariant is a function of the judge; `tests/book` looks for
//! the other tests.

mod machines;
mod ordering;
mod others;
mod plugin;
mod reliability;
mod rules;
mod templates;

/// Who holds a promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// These functions of the judge.
    By(&'static [&'static str]),
    /// Tests of these names, and not the judge.
    Tests(&'static [&'static str]),
    /// Nobody, for this reason.
    Not(&'static str),
}

/// Words of a page, and who holds what they promise. Where somebody holds a part of a sentence, the rest is another promise.
pub type Promise = (&'static str, Held);

/// That nothing is missing at rest.
const REST: &str = "missing";

/// All promises, by the pages that make them.
pub const PAGES: &[(&str, &[Promise])] = &[
    ("reliability", reliability::PROMISES),
    ("ordering", ordering::PROMISES),
    ("ordering", plugin::PROMISES),
    ("rules", rules::PROMISES),
    ("rules", templates::PROMISES),
    ("machines", machines::PROMISES),
    ("tenants", others::TENANTS),
    ("devices", others::DEVICES),
    ("liqo", others::LIQO),
    ("grpc", others::GRPC),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::Held::{By, Not, Tests};
    use super::*;

    /// The heads of tables of which each row promises something.
    const HEADS: [&str; 2] = ["| failure | guarantee |", "| event | result |"];

    /// The code of the judge without the promises, which name its functions.
    fn judge() -> String {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut judge = std::fs::read_to_string(root.join("judge.rs")).unwrap();
        let mut folders = vec![root.join("judge")];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.file_stem().is_some_and(|name| name == "promises") {
                    continue;
                }
                if path.is_dir() {
                    folders.push(path);
                } else {
                    judge += &std::fs::read_to_string(path).unwrap();
                }
            }
        }
        judge
    }

    /// The invariants in code: methods that say what is violated, or return what is missing at rest.
    fn invariants(code: &str) -> BTreeSet<&str> {
        let methods = code.split("\n    }\n").filter_map(|part| {
            let at = ["\n    fn ", "\n    pub fn ", "\n    pub(super) fn "]
                .iter()
                .filter_map(|begin| part.rfind(begin))
                .max()?;
            let method = part.get(at..)?.split_once(" fn ")?.1;
            Some((method.split(['(', '<']).next()?, method.split_whitespace().collect::<String>()))
        });
        let says = |text: &str| {
            let is_called =
                ["self.violation(world", "self.violation(&world"].iter().any(|call| text.contains(call));
            is_called || text.contains("->Vec<String>")
        };
        let invariants = methods.filter(|(name, text)| *name != "violations" && says(text));
        invariants.map(|(name, _)| name).collect()
    }

    /// The text of a page.
    fn text(page: &str) -> String {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        std::fs::read_to_string(docs.join(format!("{page}.md"))).unwrap()
    }

    /// A text without its line breaks.
    fn unbroken(text: &str) -> String {
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// The rows of a page's tables that promise something.
    fn rows(text: &str) -> Vec<&str> {
        let (mut rows, mut is_within) = (Vec::new(), false);
        for line in text.lines() {
            let is_head = HEADS.iter().any(|head| line.starts_with(head));
            is_within = is_head || is_within && line.starts_with('|');
            if is_within && !is_head && !line.starts_with("|---") {
                rows.push(line);
            }
        }
        rows
    }

    #[test]
    fn promises_are_those_of_the_pages_and_each_invariant_of_the_judge_holds_one() {
        let (judge, mut named) = (judge(), BTreeSet::new());
        for (page, promises) in PAGES {
            let text = unbroken(&text(page));
            for (promise, held) in *promises {
                assert!(text.contains(promise), "{page}: {promise}");
                match held {
                    By(invariants) => named.extend(*invariants),
                    Tests(tests) => assert!(!tests.is_empty(), "{promise}"),
                    Not(why) => assert!(!why.is_empty(), "{promise}"),
                }
            }
        }
        assert_eq!(named, invariants(&judge));
    }

    #[test]
    fn each_row_of_a_table_of_failures_or_events_has_a_promise() {
        let mut seen = 0;
        for page in ["reliability", "ordering"] {
            let own = || PAGES.iter().filter(|(of, _)| *of == page).flat_map(|(_, promises)| *promises);
            for row in rows(&text(page)).into_iter().map(unbroken) {
                assert!(own().any(|(promise, _)| row.contains(promise)), "{page}: {row}");
                seen += 1;
            }
        }
        assert!(seen > 70, "{seen}");
    }
}
