//! Values out of the parser's events, as the decoder of go.yaml.in/yaml/v2 (`decode.go`) makes them.

use std::collections::BTreeSet;
use std::io::BufReader;

use libyaml_safer::{Encoding, Event, EventData, MappingStyle, Mark, Parser, ScalarStyle, SequenceStyle};
use serde_json::{Map, Value};

use super::ReadError;
use super::scalar::{self, Key, Scalar};
use super::size::{Decoded, Size};
use super::stream::{BYTE_ORDER_MARK, Chunk};
use super::tags::Spaced;
use crate::bounds::Bounds;
use crate::map::HashMap;

/// What the parser says of directives, and of a document that follows another one in the same part.
const NO_DOCUMENT: &str = "did not find expected <document start>";

/// A value, and what it takes.
#[derive(Clone)]
struct Node {
    value: Value,
    size: Size,
    /// The keys of an object that were no texts.
    converted: BTreeSet<String>,
}

/// A value that aliases stand for.
struct Anchored {
    node: Node,
    /// What kubectl decodes for it.
    decoded: usize,
    /// What it is as a key; `None`: it is none.
    key: Option<Key>,
}

/// The entries of an object so far.
#[derive(Default)]
struct Object {
    entries: Map<String, Value>,
    converted: BTreeSet<String>,
}

impl Object {
    /// The last of several entries with the same key counts. Of a text and a number that becomes the same text, kubectl takes any.
    fn insert(&mut self, Key { text, is_converted }: Key, value: Value) -> Result<(), String> {
        if self.entries.contains_key(&text) {
            if self.converted.contains(&text) != is_converted {
                return Err(format!(
                    "kubectl takes any of the entries {text:?} with and without quotes: remove one"
                ));
            }
        } else if is_converted {
            self.converted.insert(text.clone());
        }
        self.entries.insert(text, value);
        Ok(())
    }

    /// Adds the entries of a merge key's object. Like others they replace earlier ones.
    fn extend(&mut self, node: Node) -> Result<(), String> {
        let Node { value: Value::Object(entries), converted, .. } = node else { return Ok(()) };
        entries.into_iter().try_for_each(|(text, value)| {
            let is_converted = converted.contains(&text);
            self.insert(Key { text, is_converted }, value)
        })
    }
}

/// The only document in a part of a text; `None` if there are only comments. `taken` is what all of the text has taken so far.
pub(super) fn document(
    chunk: &Chunk<'_>,
    bounds: Bounds,
    taken: &mut Size,
) -> Result<Option<Value>, ReadError> {
    let text = chunk.text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&chunk.text);
    check_characters(text).map_err(|error| chunk.moved(error))?;
    if let Some(Spaced { text, spaces }) = Spaced::new(text) {
        Composer::new(chunk, &text, &spaces, bounds, &mut { *taken }).document()?;
    }
    Composer::new(chunk, text, &[], bounds, taken).document()
}

fn check_characters(text: &str) -> Result<(), ReadError> {
    let is_allowed = |character: char| {
        matches!(character, '\t' | '\n' | '\r' | '\u{85}' | '\u{20}'..='\u{7e}' | '\u{a0}'..='\u{fffd}' | '\u{10000}'..)
            && character != BYTE_ORDER_MARK
    };
    let why = "is a control character or a byte order mark: write it as an escape in double quotes";
    match text.find(|character| !is_allowed(character)) {
        None => Ok(()),
        Some(at) => Err(super::after(&text[..at], why.to_owned())),
    }
}

/// Makes a value of the parser's events.
struct Composer<'a> {
    events: Parser<BufReader<&'a [u8]>>,
    chunk: &'a Chunk<'a>,
    /// That of the part, or [`Spaced`].
    text: &'a str,
    /// Where spaces are added in the text.
    spaces: &'a [usize],
    bounds: Bounds,
    /// What all values of the text have taken so far, those that are kept for aliases included.
    taken: &'a mut Size,
    /// The last value that has begun with a name; `None` until it is complete, because it would contain itself.
    anchors: HashMap<String, Option<Anchored>>,
    /// Lists and objects in brackets around the next value.
    brackets: usize,
    decoded: Decoded,
}

impl<'a> Composer<'a> {
    fn new(
        chunk: &'a Chunk<'a>,
        text: &'a str,
        spaces: &'a [usize],
        bounds: Bounds,
        taken: &'a mut Size,
    ) -> Self {
        let mut events = Parser::new();
        events.set_encoding(Encoding::Utf8);
        events.set_input(BufReader::new(text.as_bytes()));
        let (anchors, decoded) = (HashMap::default(), Decoded::new());
        Self { events, chunk, text, spaces, bounds, taken, anchors, brackets: 0, decoded }
    }

    fn document(mut self) -> Result<Option<Value>, ReadError> {
        let mut document = None;
        loop {
            let event = self.next()?;
            match event.data {
                EventData::StreamEnd => return Ok(document),
                EventData::DocumentStart { version_directive: None, ref tag_directives, .. }
                    if tag_directives.is_empty() && document.is_none() =>
                {
                    let first = self.next()?;
                    document = Some(self.node(first, 0)?.value);
                }
                EventData::DocumentStart { .. } if document.is_some() => {
                    let why = "kubectl doesn't read this document: put a line with --- before it";
                    return Err(self.at(event.start_mark, why));
                }
                EventData::DocumentStart { .. } => {
                    return Err(self.at(event.start_mark, "directives aren't read: remove the line with %"));
                }
                _ => {}
            }
        }
    }

    fn next(&mut self) -> Result<Event, ReadError> {
        self.events.parse().map_err(|error| {
            let why = match error.context() {
                _ if error.problem() == NO_DOCUMENT => {
                    "kubectl reads no directives (%), and nothing behind a document: put a line with --- before the next one"
                        .to_owned()
                }
                Some(context) => format!("{context}, {}", error.problem()),
                None => error.problem().to_owned(),
            };
            // What isn't complete where the text ends is found where it begins.
            let written = self.text.trim_end();
            let marks = [error.problem_mark(), error.context_mark()];
            match marks.into_iter().flatten().find(|mark| place(*mark) < written.len()) {
                Some(mark) => self.at(mark, why),
                None => self.chunk.moved(super::after(self.chunk.text.trim_end(), why)),
            }
        })
    }

    /// The value that begins with an event; `depth` lists and objects are around it.
    fn node(&mut self, event: Event, depth: usize) -> Result<Node, ReadError> {
        let (at, before) = (event.start_mark, self.decoded.all);
        if let EventData::Alias { anchor } = event.data {
            return self.alias(&anchor, at, depth);
        }
        self.decode(1, 0, at)?;
        let (name, key, node) = match event.data {
            EventData::SequenceStart { anchor, style, .. } => {
                self.name(anchor.as_ref());
                (anchor, None, self.list(style == SequenceStyle::Flow, at, depth)?)
            }
            EventData::MappingStart { anchor, style, .. } => {
                self.name(anchor.as_ref());
                (anchor, None, self.object(style == MappingStyle::Flow, at, depth)?)
            }
            data => {
                let (name, scalar) = self.scalar(data, at, event.end_mark)?;
                let key = name.as_ref().and_then(|_| scalar.key());
                (name, key, self.scalar_node(scalar, at)?)
            }
        };
        self.keep(name, key, &node, self.decoded.all - before, at)?;
        Ok(node)
    }

    fn scalar(
        &mut self,
        data: EventData,
        at: Mark,
        end: Mark,
    ) -> Result<(Option<String>, Scalar), ReadError> {
        let EventData::Scalar { anchor, tag, value, plain_implicit, style, .. } = data else {
            return Err(self.at(at, "there is no value here"));
        };
        if self.brackets > 0 && style == ScalarStyle::Plain && value.contains('?') {
            return Err(self.at(at, "kubectl ends a text at ? in brackets: quote it"));
        }
        if tag.is_some() && value.is_empty() && self.spaces.binary_search(&place(end)).is_ok() {
            return Err(
                self.at(end, "kubectl takes the comma for a part of the tag: put a space before the comma")
            );
        }
        if style == ScalarStyle::DoubleQuoted && value.contains('/') && has_escaped_slash(self.text, at, end)
        {
            return Err(self.at(at, "kubectl doesn't read the escape \\/: write / alone"));
        }
        self.name(anchor.as_ref());
        self.take(Size { bytes: value.len(), ..Size::default() }, at)?;
        let scalar = scalar::read(value, plain_implicit, tag.as_deref()).map_err(|why| self.at(at, why))?;
        Ok((anchor, scalar))
    }

    fn scalar_node(&mut self, scalar: Scalar, at: Mark) -> Result<Node, ReadError> {
        let value = scalar.into_value().map_err(|why| self.at(at, why))?;
        let size = Size { values: 1, bytes: value.as_str().map_or(0, str::len), depth: 0 };
        self.take(Size { bytes: 0, ..size }, at)?;
        Ok(Node { value, size, converted: BTreeSet::new() })
    }

    /// From here on a name stands for the value that begins.
    fn name(&mut self, name: Option<&String>) {
        if let Some(name) = name {
            self.anchors.insert(name.clone(), None);
        }
    }

    /// Keeps a value that has a name for the aliases, unless a value in it has taken the name.
    fn keep(
        &mut self,
        name: Option<String>,
        key: Option<Key>,
        node: &Node,
        decoded: usize,
        at: Mark,
    ) -> Result<(), ReadError> {
        let Some(name) = name else { return Ok(()) };
        self.take(node.size, at)?;
        let kept = || Anchored { node: node.clone(), decoded, key };
        self.anchors.entry(name).or_default().get_or_insert_with(kept);
        Ok(())
    }

    /// What an alias stands for.
    fn anchored(&self, name: &str, at: Mark) -> Result<&Anchored, ReadError> {
        self.anchors.get(name).and_then(Option::as_ref).ok_or_else(|| {
            self.at(
                at,
                format_args!("*{name} stands for no value that is complete here: write &{name} before one"),
            )
        })
    }

    /// The key of an entry.
    fn key(&mut self, event: Event) -> Result<Key, ReadError> {
        let at = event.start_mark;
        self.decode(1, 0, at)?;
        let key = match event.data {
            EventData::Alias { anchor } => {
                self.decode(1, 1, at)?;
                self.anchored(&anchor, at)?.key.clone()
            }
            data @ EventData::Scalar { .. } => {
                let (name, scalar) = self.scalar(data, at, event.end_mark)?;
                let key = scalar.key();
                if name.is_some() {
                    let node = self.scalar_node(scalar, at)?;
                    self.keep(name, key.clone(), &node, 1, at)?;
                }
                key
            }
            _ => None,
        };
        key.ok_or_else(|| self.at(at, "a key is a text, a whole number or a boolean: quote it"))
    }

    fn alias(&mut self, name: &str, at: Mark, depth: usize) -> Result<Node, ReadError> {
        let &Anchored { node: Node { size, .. }, decoded, .. } = self.anchored(name, at)?;
        self.decode(decoded.saturating_add(1), decoded, at)?;
        self.deeper(depth + size.depth, at)?;
        self.take(size, at)?;
        Ok(self.anchored(name, at)?.node.clone())
    }

    fn list(&mut self, in_brackets: bool, at: Mark, depth: usize) -> Result<Node, ReadError> {
        let mut size = self.begin(in_brackets, at, depth)?;
        let mut list = Vec::new();
        loop {
            let next = self.next()?;
            if next.data == EventData::SequenceEnd {
                self.brackets -= usize::from(in_brackets);
                return Ok(Node { value: Value::Array(list), size, converted: BTreeSet::new() });
            }
            let node = self.node(next, depth + 1)?;
            size.add(node.size);
            list.push(node.value);
        }
    }

    fn object(&mut self, in_brackets: bool, at: Mark, depth: usize) -> Result<Node, ReadError> {
        let mut size = self.begin(in_brackets, at, depth)?;
        let mut object = Object::default();
        loop {
            let next = self.next()?;
            if next.data == EventData::MappingEnd {
                self.brackets -= usize::from(in_brackets);
                let Object { entries, converted } = object;
                return Ok(Node { value: Value::Object(entries), size, converted });
            }
            let at = next.start_mark;
            if is_merge(&next.data) {
                for node in self.merged(depth)? {
                    size.add(node.size);
                    object.extend(node).map_err(|why| self.at(at, why))?;
                }
                continue;
            }
            let key = self.key(next)?;
            let value = self.next()?;
            let node = self.node(value, depth + 1)?;
            size.bytes = size.bytes.saturating_add(key.text.len());
            size.add(node.size);
            object.insert(key, node.value).map_err(|why| self.at(at, why))?;
        }
    }

    /// The objects whose entries a merge key adds, in the order in which they replace entries: of a list, the first is the last.
    fn merged(&mut self, depth: usize) -> Result<Vec<Node>, ReadError> {
        let next = self.next()?;
        let at = next.start_mark;
        let mut nodes = Vec::new();
        if let EventData::SequenceStart { anchor: None, style, .. } = next.data {
            let in_brackets = style == SequenceStyle::Flow;
            self.begin(in_brackets, at, depth)?;
            loop {
                let next = self.next()?;
                if next.data == EventData::SequenceEnd {
                    self.brackets -= usize::from(in_brackets);
                    break;
                }
                nodes.push(self.node(next, depth + 1)?);
            }
        } else {
            nodes.push(self.node(next, depth + 1)?);
        }
        nodes.reverse();
        if nodes.iter().all(|node| node.value.is_object()) {
            return Ok(nodes);
        }
        let why = "the value of << is an object, an alias of one, or a list of these without an anchor";
        Err(self.at(at, why))
    }

    /// Begins a list or an object.
    fn begin(&mut self, in_brackets: bool, at: Mark, depth: usize) -> Result<Size, ReadError> {
        self.brackets += usize::from(in_brackets);
        self.deeper(depth + 1, at)?;
        let size = Size { values: 1, bytes: 0, depth: 1 };
        self.take(size, at)?;
        Ok(size)
    }

    fn deeper(&self, depth: usize, at: Mark) -> Result<(), ReadError> {
        let most = self.bounds.depth;
        if depth <= most {
            return Ok(());
        }
        Err(self.at(at, format_args!("lists and objects are nested deeper than {most} levels")))
    }

    /// Counts what kubectl decodes.
    fn decode(&mut self, all: usize, aliased: usize, at: Mark) -> Result<(), ReadError> {
        if self.decoded.is_allowed(all, aliased) {
            return Ok(());
        }
        Err(self.at(
            at,
            "kubectl refuses a document that consists of aliases so much: write out what they stand for",
        ))
    }

    /// Counts what a value takes.
    fn take(&mut self, size: Size, at: Mark) -> Result<(), ReadError> {
        self.taken.values = self.taken.values.saturating_add(size.values);
        self.taken.bytes = self.taken.bytes.saturating_add(size.bytes);
        let Bounds { bytes, values, .. } = self.bounds;
        let (most, what) = match *self.taken {
            taken if taken.values > values => (values, "values (texts, numbers, lists, objects)"),
            taken if taken.bytes > bytes => (bytes, "bytes"),
            _ => return Ok(()),
        };
        Err(self.at(at, format_args!("with what aliases stand for there are more than {most} {what}")))
    }

    fn at(&self, mark: Mark, why: impl std::fmt::Display) -> ReadError {
        // Whoever numbers so many lines has no memory left.
        let number = |number: u64| usize::try_from(number).unwrap_or(usize::MAX - 1) + 1;
        let (line, end) = (number(mark.line), place(mark));
        let begin = self.text.get(..end).and_then(|text| text.rfind(is_break)).unwrap_or_default();
        let added = self.spaces.iter().filter(|space| (begin..end).contains(space)).count();
        self.chunk.moved(ReadError::At { line, column: number(mark.column) - added, why: why.to_string() })
    }
}

/// Whether a parser of YAML 1.1 begins a line after a character.
fn is_break(character: char) -> bool {
    matches!(character, '\n' | '\r' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// The bytes before a place.
fn place(mark: Mark) -> usize {
    usize::try_from(mark.index).unwrap_or(usize::MAX)
}

/// Whether there is `\/` between two places of a text.
fn has_escaped_slash(text: &str, begin: Mark, end: Mark) -> bool {
    text.get(place(begin)..place(end)).is_none_or(|text| {
        let mut characters = text.chars();
        while let Some(character) = characters.next() {
            if character == '\\' && characters.next() == Some('/') {
                return true;
            }
        }
        false
    })
}

/// Whether a key asks for the entries of another object.
fn is_merge(data: &EventData) -> bool {
    matches!(data, EventData::Scalar { tag, value, plain_implicit, .. }
        if value == "<<" && (*plain_implicit || tag.as_deref() == Some(scalar::MERGE)))
}
