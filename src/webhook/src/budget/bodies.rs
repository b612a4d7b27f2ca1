//! Memory of bodies. The first bytes of each body have a budget of their own: most reviews are no larger, and bodies that are large,
//! or never end, take nothing from it.

use outrigger_core::map::HashMap;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Bytes of all bodies together, without the first bytes of each.
pub const BODIES: usize = 48 << 20;

/// The number of first bytes of a body.
pub(super) const FIRST: usize = 32 << 10;

/// First bytes of all bodies together.
pub const FIRSTS: usize = 16 << 20;

/// A body that has been arriving for longer may be aborted for others. Others wait longer than that.
pub(super) const SLOW: Duration = Duration::from_secs(1);

/// The same for a body of which only the first bytes have arrived, while others have no room for theirs.
pub(super) const SLOW_FIRST: Duration = Duration::from_millis(250);

/// The share of one address (in IPv6 of one /64 network). Several API servers may be behind one address.
pub const fn of_one(all: usize) -> usize {
    all / 3 * 2
}

/// Orders arriving bodies by their beginning.
pub(super) type Key = (Instant, u64);

/// The part of a body that a budget is for.
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

    /// How many of a body's bytes belong to this part.
    pub(super) fn part_of(self, bytes: usize) -> usize {
        match self {
            Self::First => bytes.min(FIRST),
            Self::Rest => bytes.saturating_sub(FIRST),
        }
    }
}

/// The used part of a budget.
#[derive(Debug, Default)]
struct Taken {
    all: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// A body that is still arriving.
#[derive(Debug)]
struct Coming {
    cut: CancellationToken,
    from: Option<IpAddr>,
    /// More than its first bytes have arrived.
    has_rest: bool,
}

#[derive(Debug, Default)]
pub(super) struct Bodies {
    next: u64,
    taken: [Taken; 2],
    /// Arriving bodies, the oldest first.
    coming: BTreeMap<Key, Coming>,
}

impl Bodies {
    /// A body begins to arrive. `cut` is cancelled when it is aborted for others.
    pub(super) fn begin(&mut self, from: Option<IpAddr>, cut: CancellationToken, now: Instant) -> Key {
        let key = (now, self.next);
        self.next += 1;
        self.coming.insert(key, Coming { cut, from, has_rest: false });
        key
    }

    /// A body is complete, or aborted.
    pub(super) fn end(&mut self, key: &Key) {
        self.coming.remove(key);
    }

    /// Gives a body this many more bytes, if they are free. Otherwise aborts the oldest slow body that holds what is missing: of all
    /// bodies, or of this address' where the address has used up its share.
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

    /// Used bytes of this part.
    #[cfg(test)]
    pub(super) fn held(&self, room: Room) -> usize {
        self.taken[room as usize].all
    }

    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.coming.is_empty()
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.taken.iter().all(|taken| taken.all == 0 && taken.by_address.is_empty())
    }
}
