//! Paths of fields in a workload, in every spelling that the documents use.
//!
//! `.state.nodeName`, `state.nodeName`, `$.state.nodeName`, `{.state.nodeName}` are the same; a part with other than
//! letters, digits, `_` and `-` goes into brackets, `.state.extra.annotations['example.com/key']`, with either quote, or
//! has its dots escaped, `.state.extra.labels.example\.com/key`, as in `kubectl -o jsonpath`. Nothing, `@`, `$`, `.` and
//! `{}` are the whole workload.

use std::fmt;

use crate::text;
use crate::workload::{ExtraRef, MetadataRef, StateRef, Workload};

/// A field of a workload, or an object that holds several.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Path {
    /// The workload itself.
    Whole,
    /// `.metadata`
    Metadata,
    /// `.metadata.id`
    Id,
    /// `.metadata.orchestrator`
    Orchestrator,
    /// `.metadata.resourceType`
    ResourceType,
    /// `.metadata.resourceName`
    ResourceName,
    /// `.metadata.resourceNamespace`
    ResourceNamespace,
    /// `.state`
    State,
    /// `.state.nodeName`
    NodeName,
    /// `.state.ready`
    Ready,
    /// `.state.extra`
    Extra,
    /// A map of `.state.extra`: `labels`, `annotations`, or another one's name.
    ExtraMap(Box<str>),
    /// An entry of such a map: the map's name, the entry's key.
    ExtraEntry(Box<str>, Box<str>),
}

/// Why a text is no path of a workload.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("at character {position}: {message}")]
pub struct PathError {
    /// Where in the text, in characters from 1.
    pub position: usize,
    /// What is wrong there and what to write instead.
    pub message: String,
}

/// A scalar field, borrowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scalar<'a> {
    /// A text.
    Text(&'a str),
    /// A truth value; compares as `true` or `false`.
    Bool(bool),
}

impl<'a> Scalar<'a> {
    /// The text that operators compare.
    pub fn as_str(self) -> &'a str {
        match self {
            Self::Text(text) => text,
            Self::Bool(true) => "true",
            Self::Bool(false) => "false",
        }
    }
}

/// Longest part of a path, in characters: no label's or annotation's key is longer (a prefix of 253, '/', a name of 63).
const MAX_PART: usize = 317;

/// A part of a path and where it begins, in characters from 1.
struct Part {
    text: String,
    position: usize,
}

impl Path {
    /// Reads a path.
    pub fn parse(text: &str) -> Result<Self, PathError> {
        let parts = split(text)?;
        resolve(&parts)
    }

    /// Whether it selects a single value, which operators can compare.
    pub fn is_scalar(&self) -> bool {
        !matches!(self, Self::Whole | Self::Metadata | Self::State | Self::Extra | Self::ExtraMap(_))
    }

    /// The single value that it selects; `None` when the workload lacks it, or it selects an object.
    pub fn scalar<'a>(&self, w: &'a Workload) -> Option<Scalar<'a>> {
        let text = match self {
            Self::Id => w.id.as_str(),
            Self::Orchestrator => w.orchestrator.as_str(),
            Self::ResourceType => &w.resource_type,
            Self::ResourceName => &w.resource_name,
            Self::ResourceNamespace => &w.resource_namespace,
            Self::NodeName => w.node_name.as_deref()?,
            Self::Ready => return Some(Scalar::Bool(w.ready)),
            Self::ExtraEntry(map, key) => w.extra_map(map)?.get(key)?,
            Self::Whole | Self::Metadata | Self::State | Self::Extra | Self::ExtraMap(_) => return None,
        };
        Some(Scalar::Text(text))
    }

    /// Whether the workload has it.
    pub fn exists(&self, w: &Workload) -> bool {
        match self {
            Self::Whole | Self::Metadata | Self::State | Self::Extra => true,
            Self::ExtraMap(name) => w.extra_map(name).is_some(),
            _ => self.scalar(w).is_some(),
        }
    }

    /// What it selects as text: a value as it is, an object as JSON. `None` when the workload lacks it.
    pub fn render(&self, w: &Workload) -> Option<String> {
        let json = match self {
            Self::Whole => serde_json::to_string(w),
            Self::Metadata => serde_json::to_string(&MetadataRef(w)),
            Self::State => serde_json::to_string(&StateRef(w)),
            Self::Extra => serde_json::to_string(&ExtraRef(w)),
            Self::ExtraMap(name) => serde_json::to_string(w.extra_map(name)?),
            _ => return self.scalar(w).map(|value| value.as_str().to_owned()),
        };
        json.ok()
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = match self {
            Self::Whole => "@",
            Self::Metadata => ".metadata",
            Self::Id => ".metadata.id",
            Self::Orchestrator => ".metadata.orchestrator",
            Self::ResourceType => ".metadata.resourceType",
            Self::ResourceName => ".metadata.resourceName",
            Self::ResourceNamespace => ".metadata.resourceNamespace",
            Self::State => ".state",
            Self::NodeName => ".state.nodeName",
            Self::Ready => ".state.ready",
            Self::Extra => ".state.extra",
            Self::ExtraMap(map) => {
                f.write_str(".state.extra")?;
                return write_part(f, map);
            }
            Self::ExtraEntry(map, key) => {
                f.write_str(".state.extra")?;
                write_part(f, map)?;
                return write_part(f, key);
            }
        };
        f.write_str(plain)
    }
}

/// A part in its shortest spelling.
fn write_part(f: &mut fmt::Formatter<'_>, part: &str) -> fmt::Result {
    if !part.is_empty() && part.chars().all(is_plain) {
        return write!(f, ".{part}");
    }
    f.write_str("['")?;
    for c in part.chars() {
        if matches!(c, '\'' | '\\') {
            f.write_str("\\")?;
        }
        write!(f, "{c}")?;
    }
    f.write_str("']")
}

fn is_plain(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '-' | '_')
}

/// A part after a dot may have these besides, so that `.labels.example/key` needs no brackets.
fn is_bare(c: char) -> bool {
    !matches!(c, '.' | '[' | ']' | '{' | '}' | '\'' | '"' | '\\' | '*' | '?' | '(' | ')' | '$' | '@' | ',')
        && !c.is_whitespace()
}

/// Takes a text apart. Positions count characters, as people do.
fn split(text: &str) -> Result<Vec<Part>, PathError> {
    let chars: Vec<char> = text.chars().collect();
    let mut scan = Scan { chars: &chars, at: 0 };
    scan.trim();
    let braces = scan.eat('{');
    if braces {
        match scan.chars.split_last() {
            Some(('}', rest)) => scan.chars = rest,
            _ => return Err(scan.error("the opening '{' has no closing '}' at the end")),
        }
        scan.trim();
    }
    let root = scan.eat('$') || scan.eat('@');
    let mut parts = Vec::new();
    // A lone dot is the root, as in jq.
    if scan.chars.get(scan.at..) == Some(&['.']) {
        return Ok(parts);
    }
    let mut first = true;
    while let Some(c) = scan.peek() {
        match c {
            '[' => parts.push(scan.bracket()?),
            '.' => {
                scan.at += 1;
                if scan.peek() == Some('[') {
                    continue;
                }
                parts.push(scan.bare()?);
            }
            _ if first && !root => parts.push(scan.bare()?),
            _ => return Err(scan.error("expected '.', '[' or the end")),
        }
        first = false;
    }
    Ok(parts)
}

struct Scan<'a> {
    chars: &'a [char],
    at: usize,
}

impl Scan<'_> {
    /// Leaves out the spaces around what is still to be read.
    fn trim(&mut self) {
        while self.peek().is_some_and(char::is_whitespace) {
            self.at += 1;
        }
        while let Some((last, rest)) = self.chars.split_last()
            && last.is_whitespace()
            && rest.len() >= self.at
        {
            self.chars = rest;
        }
    }

    /// The part that began at `position`.
    fn part(&self, text: String, position: usize) -> Result<Part, PathError> {
        let length = text.chars().count();
        if length > MAX_PART {
            let message = format!("a name of {length} characters; no key has more than {MAX_PART}");
            return Err(PathError { position, message });
        }
        Ok(Part { text, position })
    }

    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn eat(&mut self, c: char) -> bool {
        let found = self.peek() == Some(c);
        self.at += usize::from(found);
        found
    }

    fn error(&self, message: impl Into<String>) -> PathError {
        PathError { position: self.at + 1, message: message.into() }
    }

    /// A part as it stands, up to the next dot or bracket. A backslash takes the next character as it is.
    fn bare(&mut self) -> Result<Part, PathError> {
        let position = self.at + 1;
        let mut text = String::new();
        while let Some(c) = self.peek() {
            if c == '\\' {
                self.at += 1;
                let Some(escaped) = self.peek() else { return Err(self.error("nothing follows the '\\'")) };
                text.push(escaped);
            } else if is_bare(c) {
                text.push(c);
            } else if matches!(c, '.' | '[') {
                break;
            } else {
                return Err(self.error(format!("unexpected {c:?}; put the key into brackets: ['key']")));
            }
            self.at += 1;
        }
        if text.is_empty() {
            return Err(self.error("a field's name is missing here"));
        }
        self.part(text, position)
    }

    /// A quoted part in brackets. A backslash takes the next character as it is.
    fn bracket(&mut self) -> Result<Part, PathError> {
        self.at += 1;
        let position = self.at + 1;
        let Some(quote @ ('\'' | '"')) = self.peek() else {
            return Err(self.error("expected a key in quotes: ['key']"));
        };
        self.at += 1;
        let mut text = String::new();
        loop {
            match self.peek() {
                None => return Err(self.error(format!("the closing {quote} is missing"))),
                Some(c) if c == quote => break,
                Some('\\') => {
                    self.at += 1;
                    let Some(c) = self.peek() else { return Err(self.error("nothing follows the '\\'")) };
                    text.push(c);
                }
                Some(c) => text.push(c),
            }
            self.at += 1;
        }
        self.at += 1;
        if !self.eat(']') {
            return Err(self.error("expected ']'"));
        }
        self.part(text, position)
    }
}

fn resolve(parts: &[Part]) -> Result<Path, PathError> {
    let unknown = |part: &Part, known: &str| {
        Err(PathError {
            position: part.position,
            message: format!("there is no {:?} here; there are {known}", text::quoted(&part.text)),
        })
    };
    let [first, rest @ ..] = parts else { return Ok(Path::Whole) };
    match (first.text.as_str(), rest) {
        ("metadata", []) => Ok(Path::Metadata),
        ("metadata", [field, deeper @ ..]) => {
            let path = match field.text.as_str() {
                "id" => Path::Id,
                "orchestrator" => Path::Orchestrator,
                "resourceType" => Path::ResourceType,
                "resourceName" => Path::ResourceName,
                "resourceNamespace" => Path::ResourceNamespace,
                _ => {
                    return unknown(field, "id, orchestrator, resourceType, resourceName, resourceNamespace");
                }
            };
            leaf(path, deeper)
        }
        ("state", []) => Ok(Path::State),
        ("state", [field, deeper @ ..]) => match (field.text.as_str(), deeper) {
            ("nodeName", _) => leaf(Path::NodeName, deeper),
            ("ready", _) => leaf(Path::Ready, deeper),
            ("extra", []) => Ok(Path::Extra),
            ("extra", [map]) => Ok(Path::ExtraMap(map.text.as_str().into())),
            ("extra", [map, key, deeper @ ..]) => {
                leaf(Path::ExtraEntry(map.text.as_str().into(), key.text.as_str().into()), deeper)
            }
            _ => unknown(field, "nodeName, ready, extra"),
        },
        _ => unknown(first, "metadata, state"),
    }
}

/// A value has nothing below it. The usual cause is a key with dots.
fn leaf(path: Path, deeper: &[Part]) -> Result<Path, PathError> {
    let Some(part) = deeper.first() else { return Ok(path) };
    let mut message = format!("{path} is a single value and has nothing below it");
    if let Path::ExtraEntry(map, key) = &path {
        let mut whole = key.to_string();
        for part in deeper {
            whole.push('.');
            whole.push_str(&part.text);
            if whole.len() > MAX_PART {
                break;
            }
        }
        if whole.len() <= MAX_PART {
            let meant = Path::ExtraEntry(map.clone(), whole.into());
            message = format!("{message}; a key with dots goes into brackets: {meant}");
        }
    }
    Err(PathError { position: part.position, message })
}

#[cfg(test)]
mod tests;
