//! Counts the parts of a protobuf message on its bytes, before it is decoded.
//!
//! An empty entry of a repeated field has two bytes on the wire and some hundred in memory, so a limit on bytes says little
//! about what decoding costs. [`measure`] walks the wire format once, without allocating, and counts what the decoder would
//! make: entries of repeated fields, items of maps, and how deep messages are nested. [`check`] compares that with the
//! limits of the message.
//!
//! The counts are never less than what the decoder makes. They are more where the wire has a field several times that can be
//! there once: the decoder merges these.

use outrigger_proto::shape::{Repeats, Shape};
use prost::encoding::{WireType, decode_key, decode_varint};

/// How deep messages may be nested, unknown groups included. The deepest message that is defined has six levels.
pub const MAX_DEPTH: usize = 16;

/// Bytes that an entry of a repeated field takes in memory beyond those it has on the wire. The largest entry there is, a
/// `WorkloadUpdate`, has 184; the list grows by doubling.
pub const ENTRY_BYTES: usize = 384;

/// Bytes that an item of a map takes in memory beyond those it has on the wire: two texts of 24 bytes, each with an allocation
/// of 16 at least, in a hash table that is half empty at worst.
pub const ITEM_BYTES: usize = 192;

/// How much one message may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes on the wire.
    pub bytes: usize,
    /// Entries of all repeated fields together.
    pub entries: usize,
    /// Items of all maps together.
    pub items: usize,
}

/// What a message has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Measure {
    /// Bytes on the wire.
    pub bytes: usize,
    /// Entries of all repeated fields together.
    pub entries: usize,
    /// Items of all maps together.
    pub items: usize,
}

impl Measure {
    /// Most bytes of memory that the decoded message takes.
    pub fn decoded_bytes(&self) -> usize {
        let overhead = self.entries.saturating_mul(ENTRY_BYTES);
        self.bytes.saturating_add(overhead).saturating_add(self.items.saturating_mul(ITEM_BYTES))
    }
}

/// Why a message isn't decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OutOfBounds {
    /// It has more of something than it may have.
    #[error("{message}: has {found} {what}, at most {allowed} are allowed")]
    TooMany {
        /// Full name of the message.
        message: &'static str,
        /// What is counted, in the plural.
        what: &'static str,
        /// How many there are.
        found: usize,
        /// How many there may be.
        allowed: usize,
    },
    /// Messages in messages, beyond [`MAX_DEPTH`].
    #[error("{message}: is nested deeper than {MAX_DEPTH} levels")]
    TooDeep {
        /// Full name of the outermost message.
        message: &'static str,
    },
    /// It is no protobuf message.
    #[error("{message}: is malformed: {reason}")]
    Malformed {
        /// Full name of the message.
        message: &'static str,
        /// What the decoder would say.
        reason: String,
    },
}

impl OutOfBounds {
    /// Whether it is a matter of size: less of the same would be taken.
    pub fn is_too_much(&self) -> bool {
        !matches!(self, Self::Malformed { .. })
    }
}

/// Compares a size in bytes that is announced, before any of them is read.
///
/// # Errors
/// When it is more than the bounds allow.
pub fn check_bytes(shape: &'static Shape, bytes: usize, bounds: &Bounds) -> Result<(), OutOfBounds> {
    within(shape, "bytes", bytes, bounds.bytes)
}

/// Measures a message and compares it with its bounds.
///
/// # Errors
/// When there is too much of anything, or the bytes are no message.
pub fn check(shape: &'static Shape, wire: &[u8], bounds: &Bounds) -> Result<Measure, OutOfBounds> {
    check_bytes(shape, wire.len(), bounds)?;
    let found = measure(shape, wire)?;
    within(shape, "entries of repeated fields", found.entries, bounds.entries)?;
    within(shape, "items of maps", found.items, bounds.items)?;
    Ok(found)
}

fn within(
    shape: &'static Shape,
    what: &'static str,
    found: usize,
    allowed: usize,
) -> Result<(), OutOfBounds> {
    if found <= allowed {
        Ok(())
    } else {
        Err(OutOfBounds::TooMany { message: shape.name, what, found, allowed })
    }
}

/// Counts the parts of a message. Takes time in proportion to its bytes, and no memory.
///
/// # Errors
/// When the bytes are no message, or nested beyond [`MAX_DEPTH`].
pub fn measure(shape: &'static Shape, wire: &[u8]) -> Result<Measure, OutOfBounds> {
    let mut walk = Walk { outermost: shape.name, found: Measure { bytes: wire.len(), ..Measure::default() } };
    walk.message(shape, wire, 1)?;
    Ok(walk.found)
}

struct Walk {
    outermost: &'static str,
    found: Measure,
}

impl Walk {
    fn malformed(&self, reason: impl ToString) -> OutOfBounds {
        OutOfBounds::Malformed { message: self.outermost, reason: reason.to_string() }
    }

    fn deeper(&self, depth: usize) -> Result<usize, OutOfBounds> {
        if depth < MAX_DEPTH { Ok(depth + 1) } else { Err(OutOfBounds::TooDeep { message: self.outermost }) }
    }

    fn message(&mut self, shape: &'static Shape, mut wire: &[u8], depth: usize) -> Result<(), OutOfBounds> {
        while !wire.is_empty() {
            let (number, kind) = decode_key(&mut wire).map_err(|e| self.malformed(e))?;
            let field = shape.fields.iter().find(|field| field.number == number);
            let Some(field) = field.filter(|_| kind == WireType::LengthDelimited) else {
                // A known field of another wire type is the decoder's to refuse.
                self.skip(&mut wire, number, kind, depth)?;
                continue;
            };
            let part = self.delimited(&mut wire)?;
            match field.repeats {
                Repeats::Once => {}
                Repeats::Entries => self.found.entries += 1,
                Repeats::Items => self.found.items += 1,
            }
            if let Some(inner) = field.message {
                let depth = self.deeper(depth)?;
                self.message(inner, part, depth)?;
            }
        }
        Ok(())
    }

    /// A length and as many bytes.
    fn delimited<'a>(&self, wire: &mut &'a [u8]) -> Result<&'a [u8], OutOfBounds> {
        let length = decode_varint(wire).map_err(|e| self.malformed(e))?;
        self.take(wire, length)
    }

    fn take<'a>(&self, wire: &mut &'a [u8], length: u64) -> Result<&'a [u8], OutOfBounds> {
        let parts = usize::try_from(length).ok().and_then(|length| wire.split_at_checked(length));
        let (part, rest) = parts.ok_or_else(|| self.malformed("a field is longer than the message"))?;
        *wire = rest;
        Ok(part)
    }

    /// A field that isn't looked into.
    fn skip(&self, wire: &mut &[u8], number: u32, kind: WireType, depth: usize) -> Result<(), OutOfBounds> {
        match kind {
            WireType::Varint => decode_varint(wire).map(drop).map_err(|e| self.malformed(e)),
            WireType::ThirtyTwoBit => self.take(wire, 4).map(drop),
            WireType::SixtyFourBit => self.take(wire, 8).map(drop),
            WireType::LengthDelimited => self.delimited(wire).map(drop),
            WireType::StartGroup => self.skip_group(wire, number, depth),
            WireType::EndGroup => Err(self.malformed("a group ends that hasn't begun")),
        }
    }

    fn skip_group(&self, wire: &mut &[u8], group: u32, depth: usize) -> Result<(), OutOfBounds> {
        let depth = self.deeper(depth)?;
        loop {
            let (number, kind) = decode_key(wire).map_err(|e| self.malformed(e))?;
            match kind {
                WireType::EndGroup if number == group => return Ok(()),
                kind => self.skip(wire, number, kind, depth)?,
            }
        }
    }
}

#[cfg(test)]
mod tests;
