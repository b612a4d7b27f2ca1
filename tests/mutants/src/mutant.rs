//! A change of the code, as cargo-mutants describes it.

use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};

/// A change in one place.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Mutant {
    /// File, line, column and description.
    name: String,
    file: String,
    span: Span,
    replacement: String,
    genre: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Span {
    start: Position,
    end: Position,
}

/// From 1, in characters.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct Position {
    line: usize,
    column: usize,
}

/// What a mutant is, in words that stay the same when code above it changes.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct Description {
    /// File and description.
    pub(crate) mutant: String,
    /// The line with the changed operator, because a function may have several of the same kind.
    pub(crate) becomes: Option<String>,
}

impl Description {
    /// A regular expression for the names, with any position, that cargo-mutants gives to mutants of this description.
    pub(crate) fn pattern(&self) -> String {
        let (file, text) = self.mutant.split_once(": ").unwrap_or((&self.mutant, ""));
        format!(r"^{}:\d+:\d+: {}$", regex::escape(file), regex::escape(text))
    }
}

impl Mutant {
    /// Describes it by the source in a work tree.
    pub(crate) fn describe(&self, work_tree: &Path) -> anyhow::Result<Description> {
        let operator = matches!(self.genre.as_str(), "BinaryOperator" | "UnaryOperator");
        let becomes = if operator && self.span.start.line == self.span.end.line {
            let path = work_tree.join(&self.file);
            let source = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            Some(self.changed_line(&source).with_context(|| format!("{}: has no such line", self.name))?)
        } else {
            None
        };
        Ok(Description { mutant: self.without_position(), becomes })
    }

    /// `file:line:column: text` without line and column.
    fn without_position(&self) -> String {
        let rest = self.name.strip_prefix(&self.file).unwrap_or(&self.name);
        let text = rest.split_once(": ").map_or(rest, |(_, text)| text);
        format!("{}: {text}", self.file)
    }

    fn changed_line(&self, source: &str) -> Option<String> {
        let line: Vec<char> = source.lines().nth(self.span.start.line.checked_sub(1)?)?.chars().collect();
        let before = line.get(..self.span.start.column.checked_sub(1)?)?.iter();
        let after = line.get(self.span.end.column.checked_sub(1)?..)?.iter();
        let changed: String = before.copied().chain(self.replacement.chars()).chain(after.copied()).collect();
        Some(changed.trim().to_owned())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;

    /// A mutant in the line `    a < b && é < c` of `src/x.rs`: the second operator.
    pub(crate) fn second_operator(line: usize) -> Mutant {
        serde_json::from_value(json!({
            "name": format!("src/x.rs:{line}:16: replace < with <= in f"), "package": "x", "file": "src/x.rs",
            "function": {"function_name": "f"}, "genre": "BinaryOperator", "replacement": "<=",
            "span": {"start": {"line": line, "column": 16}, "end": {"line": line, "column": 17}},
        }))
        .unwrap()
    }

    /// A work tree with that line, below some others.
    pub(crate) fn work_tree(above: usize) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("src")).unwrap();
        let source = format!("{}    a < b && é < c\n", "\n".repeat(above));
        std::fs::write(dir.path().join("src/x.rs"), source).unwrap();
        dir
    }

    #[test]
    fn a_description_has_the_changed_line_and_no_position() {
        let expected = Description {
            mutant: "src/x.rs: replace < with <= in f".into(),
            becomes: Some("a < b && é <= c".into()),
        };
        for above in [0, 4] {
            let described = second_operator(above + 1).describe(work_tree(above).path()).unwrap();
            assert_eq!(described, expected);
        }
        let error = second_operator(9).describe(work_tree(0).path()).unwrap_err();
        assert_eq!(error.to_string(), "src/x.rs:9:16: replace < with <= in f: has no such line");
    }

    #[test]
    fn a_pattern_is_for_names_at_any_position() {
        let mutant = second_operator(1);
        let pattern = mutant.describe(work_tree(0).path()).unwrap().pattern();
        let matches = |name: &str| regex::Regex::new(&pattern).unwrap().is_match(name);
        assert!(matches(&mutant.name) && matches(&second_operator(71).name), "{pattern}");
        assert!(!matches(&mutant.name.replace("src/x.rs", "src/x/rs")), "{pattern}");
        assert!(!matches(&mutant.name.replace("in f", "in fg")), "{pattern}");
    }

    #[test]
    fn a_replaced_function_is_described_by_its_name() {
        let mut mutant = second_operator(1);
        mutant.genre = "FnValue".into();
        mutant.name = "src/x.rs:1:2: replace f -> Option<T> with None".into();
        let described = mutant.describe(work_tree(0).path()).unwrap();
        assert_eq!(
            (described.mutant.as_str(), described.becomes),
            ("src/x.rs: replace f -> Option<T> with None", None)
        );
    }
}
