//! Manifests from outside as JSON, as kubectl sends them for the same text, and YAML that kubectl reads back; docs/offline.md names the
//! exceptions.
//!
//! kubectl reads documents of YAML 1.1 by sigs.k8s.io/yaml, whose scanner is a copy of libyaml, after `apimachinery/pkg/util/yaml` has
//! split the text at its lines `---`; a text that begins with a brace it takes for JSON values one after the other ([`stream`]). Another
//! copy of libyaml finds the tokens here. What a scalar means ([`scalar`]), merge keys, aliases and keys that are no texts
//! ([`compose`]) follow the rules of that library.
//!
//! What a text holds is bounded before it is decoded, and what its aliases expand to while it is.

mod compose;
mod print;
mod scalar;
mod size;
mod stream;
mod tags;

use serde_json::Value;

pub use self::print::to_string;

use self::size::Size;
use self::stream::{BYTE_ORDER_MARK, Chunks};
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

/// The text in a file: UTF-8, or UTF-16 if a byte order mark says so, which is how PowerShell writes files.
///
/// # Errors
/// The bytes are no text of that encoding.
pub fn decoded(bytes: Vec<u8>) -> Result<String, ReadError> {
    let (units, decode): (_, fn([u8; 2]) -> u16) = match *bytes {
        [0xff, 0xfe, ref units @ ..] => (units, u16::from_le_bytes),
        [0xfe, 0xff, ref units @ ..] => (units, u16::from_be_bytes),
        _ => {
            return String::from_utf8(bytes).map_err(|error| {
                let before = String::from_utf8_lossy(&error.as_bytes()[..error.utf8_error().valid_up_to()]);
                after(&before, "is no character of UTF-8: save the file in this encoding".to_owned())
            });
        }
    };
    let (pairs, rest) = units.as_chunks();
    let mut text = String::with_capacity(units.len());
    let odd = (!rest.is_empty()).then_some(Err(()));
    for character in
        char::decode_utf16(pairs.iter().copied().map(decode)).map(|read| read.map_err(drop)).chain(odd)
    {
        match character {
            Ok(character) => text.push(character),
            Err(()) => {
                return Err(after(&text, "is no character of UTF-16: save the file as UTF-8".to_owned()));
            }
        }
    }
    Ok(text)
}

/// The documents in a text, null for empty ones.
///
/// # Errors
/// The text is beyond the bounds, also by what its aliases expand to; or it is neither YAML nor JSON; or it has what kubectl reads otherwise.
pub fn documents(text: &str, bounds: Bounds) -> Result<Vec<Value>, ReadError> {
    if text.len() > bounds.bytes {
        return Err(Excess::Bytes(text.len(), bounds.bytes).into());
    }
    let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
    let (mut documents, rest) = stream::json(text, bounds)?;
    let mut taken = Size::default();
    for chunk in Chunks::new(text, rest) {
        let chunk = chunk?;
        documents.extend(compose::document(&chunk, bounds, &mut taken)?);
    }
    Ok(documents)
}

/// Something wrong behind a text.
fn after(text: &str, why: String) -> ReadError {
    let line = text.rsplit('\n').next().unwrap_or_default();
    ReadError::At { line: text.matches('\n').count() + 1, column: line.chars().count() + 1, why }
}

#[cfg(test)]
mod tests;
