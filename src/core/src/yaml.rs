//! Manifests from outside as JSON, as kubectl would send them for the same text; docs/offline.md names the exceptions.
//!
//! kubectl reads documents of YAML 1.1 by sigs.k8s.io/yaml (`apimachinery/pkg/util/yaml`, which splits a text at lines that begin with
//! `---`), and a text that begins with a brace as JSON values one after the other. A parser for YAML 1.2 finds the tokens here; what a
//! plain scalar means ([`scalar`]), merge keys, aliases and keys that are no texts follow YAML 1.1, as there.
//!
//! What a text holds is bounded before it is decoded, and what its aliases expand to while it is.

mod scalar;

use std::collections::HashMap;

use granit_parser::{ErrorKind, Event, Options, Parser, ScanError, Span, StrInput};
use serde_json::{Map, Value};

use self::scalar::Scalar;
use crate::bounds::{Bounds, Excess};

/// What may be in the texts that a user names on a command line: a dump of a large cluster has some hundred megabytes.
pub const OF_FILES: Bounds = Bounds { bytes: 512 << 20, values: 50_000_000, depth: 100 };

/// A text that can't be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// It is too large, whatever it says.
    #[error("{0}")]
    TooLarge(#[from] Excess),
    /// Something in it.
    #[error("line {line}, column {column}: {why}")]
    At {
        /// From 1.
        line: usize,
        /// From 1, in characters.
        column: usize,
        /// What is wrong, and what to write instead.
        why: String,
    },
}

/// The documents in a text, null for empty ones.
///
/// # Errors
/// The text is beyond the bounds, also by what its aliases expand to; or it is neither YAML nor JSON; or it has what kubectl reads otherwise.
pub fn documents(text: &str, bounds: Bounds) -> Result<Vec<Value>, ReadError> {
    if text.len() > bounds.bytes {
        return Err(Excess::Bytes(text.len(), bounds.bytes).into());
    }
    // YAML may begin with a brace too, and knows no documents one after the other without a line between them.
    if text.trim_start().starts_with('{') {
        bounds.check(text.as_bytes())?;
        if let Ok(values) = serde_json::Deserializer::from_str(text).into_iter().collect() {
            return Ok(values);
        }
    }
    check_separators(text)?;
    Composer::new(text, bounds).documents()
}

/// kubectl takes each line that begins with `---` for the beginning of a document, and refuses what it doesn't expect behind it.
fn check_separators(text: &str) -> Result<(), ReadError> {
    for (number, line) in text.lines().enumerate() {
        let Some(rest) = line.strip_prefix("---") else { continue };
        let comment = rest.trim_start();
        if !comment.is_empty() && (comment.len() == rest.len() || !comment.starts_with('#')) {
            let why =
                "only a comment may follow --- in its line: begin the document in the next one".to_owned();
            return Err(ReadError::At { line: number + 1, column: 4, why });
        }
    }
    Ok(())
}

/// What a value takes of the bounds.
#[derive(Debug, Clone, Copy, Default)]
struct Size {
    values: usize,
    bytes: usize,
    /// Lists and objects within each other; 0 for a scalar.
    depth: usize,
}

/// A value, and what it takes.
struct Node {
    value: Value,
    size: Size,
}

/// Makes values of the parser's events.
struct Composer<'a> {
    events: Parser<'a, StrInput<'a>>,
    bounds: Bounds,
    /// What all values have taken so far, those that are kept for aliases included.
    taken: Size,
    /// By the parser's numbers. A value is here when it is complete: until then it would contain itself.
    anchors: HashMap<usize, Node>,
}

impl<'a> Composer<'a> {
    fn new(text: &'a str, bounds: Bounds) -> Self {
        let mut options = Options::default();
        // As libyaml does, of which kubectl's parser is a copy.
        options.bom_inside_document_as_content = true;
        // kubectl refuses a version that isn't 1.1, and any directive before a line with ---.
        options.disallow_directives = true;
        options.set_emit_comments(false);
        options.flow_nesting_limit = bounds.depth;
        options.block_nesting_limit = bounds.depth;
        let events = Parser::new_from_str_with_options(text, options);
        Self { events, bounds, taken: Size::default(), anchors: HashMap::new() }
    }

    fn documents(mut self) -> Result<Vec<Value>, ReadError> {
        let mut documents = Vec::new();
        loop {
            match self.next()? {
                (Event::StreamEnd, _) => return Ok(documents),
                (Event::DocumentStart(explicit, _), span) => {
                    if !explicit && !documents.is_empty() {
                        return Err(at(
                            &span,
                            "kubectl doesn't read this document: put a line with --- before it",
                        ));
                    }
                    self.anchors.clear();
                    let first = self.next()?;
                    documents.push(self.node(first, 0)?.value);
                }
                _ => {}
            }
        }
    }

    fn next(&mut self) -> Result<(Event<'a>, Span), ReadError> {
        let most = self.bounds.depth;
        let wrong = |error: ScanError| {
            let why = match error.kind() {
                ErrorKind::RecursionLimitExceeded => too_deep(most),
                kind => kind.to_string(),
            };
            ReadError::At { line: error.marker().line(), column: error.marker().col() + 1, why }
        };
        match self.events.next_event() {
            Some(event) => event.map_err(wrong),
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    /// The value that begins with an event; `depth` lists and objects are around it.
    fn node(&mut self, (event, span): (Event<'a>, Span), depth: usize) -> Result<Node, ReadError> {
        let (node, anchor) = match event {
            Event::Alias(id) => return self.alias(id, &span, depth),
            Event::Scalar(text, style, anchor, tag) => {
                let size = Size { values: 1, bytes: text.len(), depth: 0 };
                self.take(size, &span)?;
                let read = scalar::read(text, style, tag.as_deref()).and_then(Scalar::into_value);
                (Node { value: read.map_err(|why| at(&span, why))?, size }, anchor)
            }
            Event::SequenceStart(_, anchor, _) => (self.list(&span, depth)?, anchor),
            Event::MappingStart(_, anchor, _) => (self.object(&span, depth)?, anchor),
            other => return Err(at(&span, format_args!("there is no value here: {other:?}"))),
        };
        if anchor != 0 {
            self.take(node.size, &span)?;
            self.anchors.insert(anchor, Node { value: node.value.clone(), size: node.size });
        }
        Ok(node)
    }

    fn alias(&mut self, id: usize, span: &Span, depth: usize) -> Result<Node, ReadError> {
        let Some(found) = self.anchors.get(&id) else {
            return Err(at(span, "the alias is a part of the value that it stands for"));
        };
        let size = found.size;
        self.deeper(depth + size.depth, span)?;
        self.take(size, span)?;
        Ok(Node { value: self.anchors.get(&id).map(|node| node.value.clone()).unwrap_or_default(), size })
    }

    fn list(&mut self, span: &Span, depth: usize) -> Result<Node, ReadError> {
        let mut size = self.begin(span, depth)?;
        let mut list = Vec::new();
        loop {
            let next = self.next()?;
            if next.0 == Event::SequenceEnd {
                return Ok(Node { value: Value::Array(list), size });
            }
            let node = self.node(next, depth + 1)?;
            size.add(node.size);
            list.push(node.value);
        }
    }

    fn object(&mut self, span: &Span, depth: usize) -> Result<Node, ReadError> {
        let mut size = self.begin(span, depth)?;
        let mut object = Map::new();
        loop {
            let next = self.next()?;
            if next.0 == Event::MappingEnd {
                return Ok(Node { value: Value::Object(object), size });
            }
            let key = self.key(next)?;
            let value = self.next()?;
            let (place, is_alias) = (value.1, matches!(value.0, Event::Alias(_)));
            let node = self.node(value, depth + 1)?;
            size.add(node.size);
            match key {
                Some(key) => {
                    size.bytes += key.len();
                    object.insert(key, node.value);
                }
                None => merge(node.value, is_alias, &mut object).map_err(|why| at(&place, why))?,
            }
        }
    }

    /// The key of an entry; `None`: a merge key.
    fn key(&mut self, (event, span): (Event<'a>, Span)) -> Result<Option<String>, ReadError> {
        let read = match event {
            Event::Scalar(text, style, 0, tag) => {
                self.take(Size { bytes: text.len(), ..Size::default() }, &span)?;
                if scalar::is_merge(&text, style, tag.as_deref()) {
                    return Ok(None);
                }
                scalar::read(text, style, tag.as_deref()).and_then(Scalar::into_key)
            }
            Event::Scalar(..) | Event::Alias(_) => {
                Err("a key has no anchor and is no alias here: write the text itself".to_owned())
            }
            _ => Err("a key of an object is a text".to_owned()),
        };
        read.map(Some).map_err(|why| at(&span, why))
    }

    /// Begins a list or an object.
    fn begin(&mut self, span: &Span, depth: usize) -> Result<Size, ReadError> {
        self.deeper(depth + 1, span)?;
        let size = Size { values: 1, bytes: 0, depth: 1 };
        self.take(size, span)?;
        Ok(size)
    }

    fn deeper(&self, depth: usize, span: &Span) -> Result<(), ReadError> {
        let most = self.bounds.depth;
        if depth > most { Err(at(span, too_deep(most))) } else { Ok(()) }
    }

    /// Counts what a value takes.
    fn take(&mut self, size: Size, span: &Span) -> Result<(), ReadError> {
        self.taken.values = self.taken.values.saturating_add(size.values);
        self.taken.bytes = self.taken.bytes.saturating_add(size.bytes);
        let Bounds { bytes, values, .. } = self.bounds;
        if self.taken.values > values {
            return Err(at(
                span,
                format_args!(
                    "with what aliases stand for there are more than {values} values (texts, numbers, lists, objects)"
                ),
            ));
        }
        if self.taken.bytes > bytes {
            return Err(at(
                span,
                format_args!("with what aliases stand for the text has more than {bytes} bytes"),
            ));
        }
        Ok(())
    }
}

impl Size {
    /// Adds what is in a list or an object.
    fn add(&mut self, inner: Self) {
        self.values = self.values.saturating_add(inner.values);
        self.bytes = self.bytes.saturating_add(inner.bytes);
        self.depth = self.depth.max(inner.depth + 1);
    }
}

/// Puts the entries of a merge key's value into an object. Like kubectl's library, later entries replace earlier ones, and of a list its
/// earlier objects replace the later ones.
fn merge(value: Value, is_alias: bool, object: &mut Map<String, Value>) -> Result<(), String> {
    let wrong = || "the value of << is an object, an alias of one, or a list of these".to_owned();
    match value {
        Value::Object(entries) => object.extend(entries),
        Value::Array(list) if !is_alias => {
            for value in list.into_iter().rev() {
                let Value::Object(entries) = value else { return Err(wrong()) };
                object.extend(entries);
            }
        }
        _ => return Err(wrong()),
    }
    Ok(())
}

fn too_deep(most: usize) -> String {
    format!("lists and objects are nested deeper than {most} levels")
}

fn at(span: &Span, why: impl std::fmt::Display) -> ReadError {
    ReadError::At { line: span.start.line(), column: span.start.col() + 1, why: why.to_string() }
}

#[cfg(test)]
mod tests;
