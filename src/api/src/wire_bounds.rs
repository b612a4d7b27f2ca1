//! Measures the parts of a protobuf message before it is decoded.
//!
//! An empty entry of a repeated field takes two bytes on the wire and some hundred in memory, so a limit on bytes
//! doesn't bound the cost of decoding. [`measure`] walks the wire format once, without allocating, and counts what the
//! decoder would create: entries of repeated fields and items of maps. It also limits how deep messages are nested.
//! [`check`] compares the counts with the limits of the message.
//!
//! The counts are never less than what the decoder creates. They are greater if the wire has a singular field several
//! times, which the decoder merges.

use outrigger_proto::shape::{Field, Repeats, Shape};
use prost::encoding::{WireType, decode_key, decode_varint};

/// Maximum nesting depth of messages, including unknown groups. The deepest defined message has six levels.
pub const MAX_DEPTH: usize = 16;

/// Memory in bytes that an entry of a repeated field takes in addition to its bytes on the wire. The largest entry, a
/// `raw::WorkloadUpdate`, takes 24 in a list that grows by doubling, and its three parts 136, 128 and 48 with an allocation of 16 each.
pub const ENTRY_BYTES: usize = 408;

/// Memory in bytes that an item of a map takes in addition to its bytes on the wire: two strings of 24 bytes, each with
/// an allocation of at least 16, in a hash table that is half empty in the worst case. In a message that is received raw it takes
/// less: two slices of 32 bytes, in a list that grows by doubling.
pub const ITEM_BYTES: usize = 192;

/// Limits of one message: the size that it may have at most.
pub type Bounds = Measure;

/// Size of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Measure {
    /// Bytes on the wire.
    pub bytes: usize,
    /// Entries of all repeated fields.
    pub entries: usize,
    /// Items of all maps.
    pub items: usize,
}

impl Measure {
    /// Returns an upper bound of the memory of the decoded message, in bytes.
    pub fn decoded_bytes(&self) -> usize {
        let overhead = self.entries.saturating_mul(ENTRY_BYTES);
        self.bytes.saturating_add(overhead).saturating_add(self.items.saturating_mul(ITEM_BYTES))
    }
}

/// The reason why a message is rejected before it is decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OutOfBounds {
    /// The message exceeds a limit.
    #[error("{message}: has {found} {what}, at most {allowed} are allowed")]
    TooMany {
        /// Full name of the message.
        message: &'static str,
        /// The counted parts, in the plural.
        what: &'static str,
        /// Actual count.
        found: usize,
        /// Maximum count.
        allowed: usize,
    },
    /// Messages are nested deeper than [`MAX_DEPTH`].
    #[error("{message}: is nested deeper than {MAX_DEPTH} levels")]
    TooDeep {
        /// Full name of the outermost message.
        message: &'static str,
    },
    /// The bytes are not a protobuf message.
    #[error("{message}: is malformed: {reason}")]
    Malformed {
        /// Full name of the message.
        message: &'static str,
        /// Error of the decoder.
        reason: String,
    },
}

impl OutOfBounds {
    /// Reports whether the message is too large, so that a smaller one would be accepted.
    pub fn is_too_much(&self) -> bool {
        !matches!(self, Self::Malformed { .. })
    }
}

/// Compares the announced size of a message with its limit, before any of it is read.
pub fn check_bytes(shape: &'static Shape, bytes: usize, bounds: &Bounds) -> Result<(), OutOfBounds> {
    within(shape, "bytes", bytes, bounds.bytes)
}

/// Measures a message and compares it with its limits.
pub fn check(shape: &'static Shape, wire: &[u8], bounds: &Bounds) -> Result<Measure, OutOfBounds> {
    check_bytes(shape, wire.len(), bounds)?;
    let found = measure(shape, wire)?;
    within(shape, "entries of repeated fields", found.entries, bounds.entries)?;
    within(shape, "items of maps", found.items, bounds.items)?;
    Ok(found)
}

fn within(shape: &Shape, what: &'static str, found: usize, allowed: usize) -> Result<(), OutOfBounds> {
    if found <= allowed {
        return Ok(());
    }
    Err(OutOfBounds::TooMany { message: shape.name, what, found, allowed })
}

/// Counts the parts of a message, in linear time and without allocating.
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
            // The decoder rejects a known field of a wrong wire type, but it reads the items of maps whatever their wire type is.
            let is_read =
                |field: &&Field| kind == WireType::LengthDelimited || field.repeats == Repeats::Items;
            let Some(field) = field.filter(is_read) else {
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

    /// Reads a length and as many bytes.
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

    /// Skips a field without counting its parts.
    fn skip(&self, wire: &mut &[u8], number: u32, kind: WireType, depth: usize) -> Result<(), OutOfBounds> {
        match kind {
            WireType::Varint => decode_varint(wire).map(drop).map_err(|e| self.malformed(e)),
            WireType::ThirtyTwoBit => self.take(wire, 4).map(drop),
            WireType::SixtyFourBit => self.take(wire, 8).map(drop),
            WireType::LengthDelimited => self.delimited(wire).map(drop),
            WireType::StartGroup => self.skip_group(wire, number, depth),
            WireType::EndGroup => Err(self.malformed("a group ends without a start")),
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
