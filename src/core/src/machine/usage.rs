//! How the slots of a type are used, how many reservations there should be, and how many slots nodes back.
//!
//! A guest takes the place of a reservation: the scheduler removes that one, its StatefulSet creates it again, and it waits until
//! there is one fewer of them. So for a moment less is reserved than before, and less than there are places. What is said
//! of slots must not follow that: each reservation has [`PATIENCE`] to find its place again before its slot counts as lost.
//! And a slot counts as gained only when a Pod occupies it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Usage, replicas};

/// How long a reservation may be without a place before its slot counts as lost. More than the longest pause of a scheduler
/// between two tries (10 s, its podMaxBackoffSeconds): one that has been given room is placed within this.
pub const PATIENCE: Duration = Duration::from_secs(15);

/// How long reservations that found no place are left out before they are tried again, the first time. Each time that they
/// find none the pause doubles.
pub const FIRST_PAUSE: Duration = Duration::from_secs(60);

/// The longest of these pauses.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(30 * 60);

/// What decides how a Pod counts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodState {
    /// `status.phase`.
    pub phase: String,
    /// The Node that it is bound to.
    pub node: Option<String>,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// The condition PodScheduled is False for the reason Unschedulable.
    pub unschedulable: bool,
    /// It has scheduling gates.
    pub gated: bool,
    /// The condition ContainersReady is True.
    pub containers_ready: bool,
}

/// How a guest counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guest {
    /// It is on a node: used. Whatever its containers do, it holds the slot.
    Used,
    /// The scheduler finds no node for it.
    Waiting,
    /// It has scheduling gates: it waits, and holds nothing.
    Gated,
    /// It is on a node and being deleted. It no longer counts, and its place isn't free yet.
    Leaving,
    /// It has ended, or the scheduler hasn't seen it yet.
    Nothing,
}

/// How a reservation counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reservation {
    /// It is on a node; and whether it counts as reserved, which one whose containers don't run does not.
    Placed {
        /// Whether it counts as reserved.
        reserved: bool,
    },
    /// The scheduler finds no node for it.
    Unschedulable,
    /// It has ended, is being deleted, or the scheduler hasn't seen it yet.
    Nothing,
}

impl PodState {
    fn over(&self) -> bool {
        matches!(self.phase.as_str(), "Succeeded" | "Failed")
    }

    fn waits(&self) -> bool {
        self.node.is_none() && self.unschedulable && matches!(self.phase.as_str(), "Pending" | "")
    }

    /// How it counts as a guest.
    pub fn as_guest(&self) -> Guest {
        match (self.over(), self.node.is_some(), self.deleting) {
            (true, ..) | (false, false, true) => Guest::Nothing,
            (false, true, true) => Guest::Leaving,
            (false, true, false) => Guest::Used,
            (false, false, false) if self.gated => Guest::Gated,
            (false, false, false) if self.waits() => Guest::Waiting,
            (false, false, false) => Guest::Nothing,
        }
    }

    /// How it counts as a reservation.
    pub fn as_reservation(&self) -> Reservation {
        if self.over() || self.deleting {
            return Reservation::Nothing;
        }
        if self.node.is_some() {
            let starting = matches!(self.phase.as_str(), "Pending" | "");
            let runs = self.phase == "Running" && self.containers_ready;
            return Reservation::Placed { reserved: starting || runs };
        }
        if self.waits() { Reservation::Unschedulable } else { Reservation::Nothing }
    }
}

/// A reservation Pod of a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeenReservation {
    /// Its number in its StatefulSet.
    pub ordinal: u32,
    /// How it counts.
    pub state: Reservation,
    /// Whether the node that it is on takes guests.
    pub on_ready_node: bool,
}

/// The Pods and nodes of a type, as watches show them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TypeView {
    /// Slots that there may be.
    pub maximum: u32,
    /// Whether any node of the pool serves the type. Without one there are no reservations.
    pub in_pool: bool,
    /// Guests that are on a node.
    pub used: u32,
    /// Guests that wait for one, without gates.
    pub waiting: u32,
    /// Guests that have scheduling gates.
    pub gated: u32,
    /// Guests that leave a node which takes guests.
    pub leaving: u32,
    /// The reservations.
    pub reservations: Vec<SeenReservation>,
    /// Changes whenever something does that may have made room: the Machine, or one of its nodes.
    pub room: u64,
}

/// What is to be done about a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// What the status says.
    pub usage: Usage,
    /// How many reservations there should be.
    pub replicas: u32,
    /// How many more there would be if they found a place.
    pub short: u32,
    /// Whether some were left out just now because they found none.
    pub left_out: bool,
    /// After which time to look again, also if nothing changes.
    pub again: Option<Duration>,
}

/// What is remembered of a type from one look to the next. Forgotten by a restart but for the slots, which are in the status;
/// that only makes it slower to notice what was lost.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ledger {
    slots: u32,
    /// Reservations that found no place and are left out.
    short: u32,
    /// Reservations that should be there and have no place on a node that takes guests, by their numbers; since when.
    unplaced: BTreeMap<u32, Duration>,
    /// When to try those again that are left out.
    retry_at: Option<Duration>,
    pause: Duration,
    room: Option<u64>,
}

impl Ledger {
    /// With the slots that a status says there are.
    pub fn new(slots: u32) -> Self {
        Self { slots, ..Self::default() }
    }

    /// Takes a look. `now` is the time since any one moment in the past, the same one each time.
    pub fn step(&mut self, seen: &TypeView, now: Duration) -> Plan {
        self.try_again(seen, now);
        let mut wanted = self.wanted(seen);
        let states: BTreeMap<u32, &SeenReservation> =
            seen.reservations.iter().map(|reservation| (reservation.ordinal, reservation)).collect();
        self.look(&states, wanted, now);
        let left_out = self.leave_out(&states, now);
        if left_out {
            wanted = self.wanted(seen);
            self.unplaced.split_off(&wanted);
        }
        let reserved =
            seen.reservations.iter().filter(|r| r.state == Reservation::Placed { reserved: true }).count();
        let guests = seen.used.saturating_add(seen.leaving);
        let proven = (wanted - count(self.unplaced.len())).saturating_add(guests);
        let lost = self.unplaced.values().filter(|since| is_over(**since, now)).count();
        let expected = (wanted - count(lost)).saturating_add(guests).saturating_add(seen.waiting);
        self.slots = self.slots.clamp(proven, expected).min(seen.maximum);
        if self.short == 0 && self.unplaced.is_empty() {
            self.pause = Duration::ZERO;
        }
        Plan {
            usage: Usage {
                maximum: seen.maximum,
                reserved: count(reserved),
                used: seen.used,
                waiting: seen.waiting.saturating_add(seen.gated),
                gated: seen.gated,
                slots: Some(self.slots),
            },
            replicas: wanted,
            short: self.short,
            left_out,
            again: self.again(now),
        }
    }

    /// Those that are left out get another try when there may be room for them, or after a pause.
    fn try_again(&mut self, seen: &TypeView, now: Duration) {
        if self.room != Some(seen.room) {
            self.room = Some(seen.room);
            self.pause = Duration::ZERO;
        } else if self.retry_at.is_none_or(|at| at > now) {
            return;
        }
        self.short = 0;
        self.retry_at = None;
    }

    fn wanted(&self, seen: &TypeView) -> u32 {
        let usage =
            Usage { maximum: seen.maximum, used: seen.used, waiting: seen.waiting, ..Usage::default() };
        // Where a guest still is there's no room yet.
        let taken = self.short.saturating_add(seen.leaving);
        if seen.in_pool { replicas(&usage, taken) } else { 0 }
    }

    fn look(&mut self, states: &BTreeMap<u32, &SeenReservation>, wanted: u32, now: Duration) {
        self.unplaced.split_off(&wanted);
        for ordinal in 0..wanted {
            let placed = states
                .get(&ordinal)
                .is_some_and(|r| r.on_ready_node && matches!(r.state, Reservation::Placed { .. }));
            if placed {
                self.unplaced.remove(&ordinal);
            } else {
                self.unplaced.entry(ordinal).or_insert(now);
            }
        }
    }

    /// Leaves out as many as have found no place for too long. A StatefulSet takes away its last ones then, whoever they are;
    /// so those that stay get their time again. Whether there are any.
    fn leave_out(&mut self, states: &BTreeMap<u32, &SeenReservation>, now: Duration) -> bool {
        let unschedulable = |ordinal: &u32| {
            states.get(ordinal).is_some_and(|reservation| reservation.state == Reservation::Unschedulable)
        };
        let stuck =
            self.unplaced.iter().filter(|(i, since)| unschedulable(i) && is_over(**since, now)).count();
        if stuck == 0 {
            return false;
        }
        self.short = self.short.saturating_add(count(stuck));
        for (_, since) in self.unplaced.iter_mut().filter(|(i, _)| unschedulable(i)) {
            *since = now;
        }
        self.pause = (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        self.retry_at = Some(now + self.pause);
        true
    }

    fn again(&self, now: Duration) -> Option<Duration> {
        let ages = self.unplaced.values().map(|since| *since + PATIENCE).filter(|at| *at > now);
        ages.chain(self.retry_at).min().map(|at| at.saturating_sub(now))
    }
}

fn is_over(since: Duration, now: Duration) -> bool {
    now.saturating_sub(since) >= PATIENCE
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
