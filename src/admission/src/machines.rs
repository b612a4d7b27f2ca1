//! Machines and their guests: their validation, and what of them can be given away once only.

pub mod guests;
pub mod machine;

use outrigger_core::slots::Ask;

use crate::decision::Decision;
pub use guests::Slot;
pub use machine::{MachineClaim, claimed};

/// The outcome of admission for a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GuestOutcome {
    /// The guest has a slot.
    Admitted,
    /// The guest has scheduling gates, and takes its slot when the last one is removed.
    Gated,
    /// There is no such machine group.
    UnknownGroup,
    /// The group has no such machine type.
    UnknownType,
    /// The Machine can't be read.
    WrongMachine,
    /// The slots have not been counted yet.
    NotCounted,
    /// No slot is left.
    NoneLeft,
    /// Slots can't be counted now.
    Unavailable,
    /// The update would have changed which slot the guest has, or the slot's size.
    Changed,
}

impl GuestOutcome {
    /// All outcomes, which metrics show by their names.
    pub const ALL: [Self; 9] = [
        Self::Admitted,
        Self::Gated,
        Self::UnknownGroup,
        Self::UnknownType,
        Self::WrongMachine,
        Self::NotCounted,
        Self::NoneLeft,
        Self::Unavailable,
        Self::Changed,
    ];
}

/// What an admitted object needs and no other object may have. Who executes the request reserves it first.
#[derive(Debug, Clone)]
pub enum Reservation {
    /// A guest needs a slot.
    Slot(Box<SlotReservation>),
    /// A Machine needs its group, and the nodes of its pool.
    Machine(Box<MachineClaim>),
}

/// A slot for a guest.
#[derive(Debug, Clone)]
pub struct SlotReservation {
    /// The slot's type.
    pub slot: Slot,
    /// The guest, as ledgers name it.
    pub ask: Ask,
    /// The Pod's name in messages.
    pub name: String,
    /// The Pod's namespace.
    pub namespace: String,
}

impl SlotReservation {
    /// The refusal where no slot is left.
    pub fn none_left(&self) -> Decision {
        guests::none_left(&self.name, &self.namespace, self.slot.type_name())
    }

    /// The refusal where slots can't be counted.
    pub fn unavailable(&self, why: &str) -> Decision {
        let Self { name, namespace, slot, .. } = self;
        let message = format!(
            "name: <{name}>, namespace: <{namespace}>; the slots of <{}> can't be counted now: {why}; try again",
            slot.type_name()
        );
        Decision::deny(503, message)
    }
}
