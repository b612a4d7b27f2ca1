//! Whether a companion may be replaced, by what it waits for.

use std::time::Duration;

use outrigger_core::companion::{Held, Observed};
use outrigger_core::index::CompanionKey;

use super::Moment;

/// What a companion waits for that the rule's own maximum permits to replace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    /// The groups of its workload.
    ForGroups,
    /// The administrator's deadline, because companions without room have used up the rule's own maximum.
    ForDeadline,
}

/// Whether a companion may be replaced, as far as its groups are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Permission {
    /// They permit it, or the rule need not wait for them any longer.
    Goes,
    /// It waits, and it isn't recorded yet since when.
    Unrecorded,
    Waits,
}

impl Permission {
    /// What holds for a companion whose groups don't permit it, where its rule has this generation.
    pub(super) fn without_groups(
        key: &CompanionKey,
        companion: Option<&Observed>,
        generation: i64,
        at: Moment,
    ) -> Self {
        if !key.rule.is_admin() {
            return Self::Waits;
        }
        let Some(companion) = companion else { return Self::Waits };
        let waited = companion.held.and_then(|held| held.waited(generation, at.wall.as_millisecond()));
        match waited.map(Duration::from_millis) {
            _ if at.admin_deadline.is_zero() => Self::Goes,
            Some(waited) if waited >= at.admin_deadline => Self::Goes,
            Some(_) => Self::Waits,
            // The tenant's annotations have used up the room for the record.
            None if !Held::fits(companion) => Self::Goes,
            None => Self::Unrecorded,
        }
    }
}
