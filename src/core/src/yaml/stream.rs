//! Where kubectl begins documents: `YAMLOrJSONDecoder` of `apimachinery/pkg/util/yaml`.

use std::borrow::Cow;

use serde::de::IgnoredAny;
use serde_json::{Deserializer, Value};

use super::scalar;
use super::{ReadError, after};
use crate::bounds::Bounds;

/// Editors put it at the beginning of a text.
pub(super) const BYTE_ORDER_MARK: char = '\u{feff}';

/// The values of JSON at the beginning of a text, and the place from where kubectl reads the rest as YAML.
///
/// It decides by the first brace, and goes on with YAML where the first or second value is none of JSON. After the first value only
/// a line with `---` or a comment may follow here.
pub(super) fn json(text: &str, bounds: Bounds) -> Result<(Vec<Value>, usize), ReadError> {
    let mut values = Vec::new();
    if !text.trim_start().starts_with('{') {
        return Ok((values, 0));
    }
    bounds.check(text.as_bytes())?;
    let mut found = Deserializer::from_str(text).into_iter::<IgnoredAny>();
    let mut begin = 0;
    while let Some(next) = found.next() {
        match next {
            Ok(_) => {
                let end = found.byte_offset();
                let mut value =
                    serde_json::from_str(&text[begin..end]).map_err(|error| wrong(text, begin, &error))?;
                scalar::send(&mut value);
                values.push(value);
                begin = end;
            }
            Err(error) => {
                let rest = if values.len() > 1 { None } else { beginning_of_yaml(text, begin) };
                return rest.map(|rest| (values, rest)).ok_or_else(|| wrong(text, 0, &error));
            }
        }
    }
    Ok((values, text.len()))
}

/// kubectl skips white space up to a line break. It doesn't where three bytes or fewer are left.
fn beginning_of_yaml(text: &str, mut begin: usize) -> Option<usize> {
    const LEAST: usize = 4;
    let rest = text[begin..].trim_start();
    if begin > 0 && !rest.starts_with("---") && !rest.starts_with('#') {
        // kubectl might read one more value of JSON, a number for example, and then give up.
        return None;
    }
    loop {
        let rest = text.get(begin..).filter(|rest| rest.len() >= LEAST)?;
        let next = rest.chars().next().filter(|next| next.is_whitespace());
        begin += next.map_or(0, char::len_utf8);
        if matches!(next, None | Some('\n')) {
            return Some(begin);
        }
    }
}

/// Something wrong in the JSON that begins at a place of the text.
fn wrong(text: &str, begin: usize, error: &serde_json::Error) -> ReadError {
    let lines = text[begin..].split_inclusive('\n');
    let before: usize = lines.take(error.line().saturating_sub(1)).map(str::len).sum();
    let line = text[begin + before..].lines().next().unwrap_or_default();
    let length =
        line.char_indices().map(|(at, _)| at).find(|at| at + 1 >= error.column()).unwrap_or(line.len());
    let why = error.to_string();
    let why = why.rsplit_once(" at line ").map_or(why.as_str(), |(why, _)| why);
    after(
        &text[..begin + before + length],
        format!("{why} (read as JSON, because the text begins with a brace)"),
    )
}

/// The part of a text that becomes one document.
pub(super) struct Chunk<'a> {
    /// Lines end with a line feed, as kubectl's do, and the last one ends.
    pub(super) text: Cow<'a, str>,
    /// Lines before it.
    pub(super) line: usize,
    /// Characters before it in its first line.
    pub(super) column: usize,
}

impl Chunk<'_> {
    /// From a place in the part to the one in the text.
    pub(super) fn moved(&self, error: ReadError) -> ReadError {
        match error {
            ReadError::At { line, column, why } => {
                let before = if line == 1 { self.column } else { 0 };
                ReadError::At { line: line + self.line, column: column + before, why }
            }
            other @ ReadError::TooLarge(_) => other,
        }
    }
}

/// A text's parts.
pub(super) struct Chunks<'a> {
    rest: &'a str,
    line: usize,
    column: usize,
}

impl<'a> Chunks<'a> {
    /// The parts of a text from a place on.
    pub(super) fn new(text: &'a str, begin: usize) -> Self {
        let before = &text[..begin];
        let line = before.rsplit('\n').next().unwrap_or_default();
        Self { rest: &text[begin..], line: before.matches('\n').count(), column: line.chars().count() }
    }

    /// Takes lines off the text; then follows a line that belongs to no document.
    fn take(&mut self, length: usize, lines: usize, separator: usize) -> Chunk<'a> {
        let (text, rest) = self.rest.split_at(length);
        let is_whole = text.ends_with('\n') && !text.contains("\r\n");
        let text = if is_whole {
            text.into()
        } else {
            let text = text.replace("\r\n", "\n");
            if text.ends_with('\n') { text.into() } else { (text + "\n").into() }
        };
        let chunk = Chunk { text, line: self.line, column: self.column };
        self.rest = &rest[separator..];
        self.line += lines + usize::from(separator > 0);
        self.column = 0;
        chunk
    }
}

impl<'a> Iterator for Chunks<'a> {
    type Item = Result<Chunk<'a>, ReadError>;

    /// A line that begins with `---` ends a document; at its beginning it is a part of it.
    fn next(&mut self) -> Option<Self::Item> {
        let (mut length, mut lines) = (0, 0);
        for line in self.rest.split_inclusive('\n') {
            if let Some(behind) = line.strip_prefix("---") {
                let comment = behind.trim();
                if !comment.is_empty() && !comment.starts_with('#') {
                    let why = "only a comment may follow --- in its line: begin the document in the next one";
                    let column = if lines == 0 { self.column } else { 0 } + "---".len() + 1;
                    return Some(Err(ReadError::At {
                        line: self.line + lines + 1,
                        column,
                        why: why.to_owned(),
                    }));
                }
                if length > 0 {
                    return Some(Ok(self.take(length, lines, line.len())));
                }
            }
            length += line.len();
            lines += 1;
        }
        (length > 0).then(|| Ok(self.take(length, lines, 0)))
    }
}
