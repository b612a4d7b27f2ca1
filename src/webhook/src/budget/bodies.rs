//! Room for bodies. The first bytes of each have room of their own: most reviews have no more, and those that are large, or never end,
//! take nothing from them.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Bytes of all bodies at once, beyond the first of each.
pub const BODIES: usize = 48 << 20;

/// How many bytes of a body are its first.
pub(super) const FIRST: usize = 32 << 10;

/// First bytes of all bodies at once.
pub const FIRSTS: usize = 16 << 20;

/// How long a body has to have been coming before it is given up for others.
pub(super) const SLOW: Duration = Duration::from_secs(2);

/// The same where only its first bytes have come, and others have no room for theirs.
pub(super) const SLOW_FIRST: Duration = Duration::from_millis(250);

/// What one address may have of so many bytes, of IPv6 one network of 64 bits. Several API servers may be behind one.
pub const fn of_one(all: usize) -> usize {
    all / 3 * 2
}

/// Where a body stands among those that are coming.
pub(super) type Key = (Instant, u64);

/// For which bytes of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    First,
    Rest,
}

impl Room {
    pub(super) const ALL: [Self; 2] = [Self::First, Self::Rest];

    fn bytes(self) -> usize {
        match self {
            Self::First => FIRSTS,
            Self::Rest => BODIES,
        }
    }

    /// How many of a body's bytes are in this room.
    pub(super) fn part_of(self, bytes: usize) -> usize {
        match self {
            Self::First => bytes.min(FIRST),
            Self::Rest => bytes.saturating_sub(FIRST),
        }
    }
}

/// What is taken of a room.
#[derive(Debug, Default)]
struct Taken {
    all: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// A body that has not been received completely.
#[derive(Debug)]
struct Coming {
    cut: CancellationToken,
    from: Option<IpAddr>,
    /// It has more than its first bytes.
    has_rest: bool,
}

/// Bytes of bodies.
#[derive(Debug, Default)]
pub(super) struct Bodies {
    next: u64,
    taken: [Taken; 2],
    /// The one that began first in front.
    coming: BTreeMap<Key, Coming>,
}

impl Bodies {
    /// A body begins. `cut` is cancelled where it is given up for others.
    pub(super) fn begin(&mut self, from: Option<IpAddr>, cut: CancellationToken, now: Instant) -> Key {
        let key = (now, self.next);
        self.next += 1;
        self.coming.insert(key, Coming { cut, from, has_rest: false });
        key
    }

    /// A body is there, or given up.
    pub(super) fn end(&mut self, key: &Key) {
        self.coming.remove(key);
    }

    /// Gives a body as many bytes more, if they are there. Else the body that has been coming longest is given up, if it is a slow one
    /// that has what is missing: of all, or of this address where that has its share.
    pub(super) fn take(
        &mut self,
        room: Room,
        key: &Key,
        from: Option<IpAddr>,
        more: usize,
        now: Instant,
    ) -> bool {
        let taken = &mut self.taken[room as usize];
        let own = from.map_or(0, |from| taken.by_address.get(&from).copied().unwrap_or_default());
        let share = from.filter(|_| own + more > of_one(room.bytes()));
        if share.is_none() && taken.all + more <= room.bytes() {
            taken.all += more;
            if let Some(from) = from {
                *taken.by_address.entry(from).or_default() += more;
            }
            if let Some(one) = self.coming.get_mut(key).filter(|_| room == Room::Rest) {
                one.has_rest = true;
            }
            return true;
        }
        let is_slow = |began: Instant, one: &Coming| match room {
            Room::First if !one.has_rest => (now - began) > SLOW_FIRST,
            Room::First => (now - began) > SLOW,
            Room::Rest => one.has_rest && (now - began) > SLOW,
        };
        let slowest = self
            .coming
            .iter()
            .take_while(|((began, _), _)| (now - *began) > SLOW_FIRST)
            .find(|((began, _), one)| is_slow(*began, one) && (share.is_none() || one.from == share))
            .map(|(key, _)| *key);
        if let Some(one) = slowest.and_then(|key| self.coming.remove(&key)) {
            one.cut.cancel();
        }
        false
    }

    /// A body gives bytes back.
    pub(super) fn give(&mut self, room: Room, from: Option<IpAddr>, bytes: usize) {
        let taken = &mut self.taken[room as usize];
        taken.all = taken.all.saturating_sub(bytes);
        let Some(from) = from else { return };
        if let Some(held) = taken.by_address.get_mut(&from) {
            *held = held.saturating_sub(bytes);
            if *held == 0 {
                taken.by_address.remove(&from);
            }
        }
    }

    /// Bytes that are held in this room.
    #[cfg(test)]
    pub(super) fn held(&self, room: Room) -> usize {
        self.taken[room as usize].all
    }

    /// Whether nothing is coming.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.coming.is_empty()
    }

    /// Whether nobody has anything.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.taken.iter().all(|taken| taken.all == 0 && taken.by_address.is_empty())
    }
}
