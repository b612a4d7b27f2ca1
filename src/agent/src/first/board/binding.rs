//! Devices with binding conditions: whether there are any, and who learns that a Node has none any longer.

use outrigger_core::reason::Cause;
use tokio::sync::watch;
use tokio::time::Instant;

use super::{Devices, Key, State};
use crate::nodes::Knowledge;

/// What binding conditions need.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Binding {
    /// The cluster has them; `None` until it was asked.
    pub(super) supported: Option<bool>,
    /// The claims that have them can be read.
    pub(super) claims: bool,
    /// Those claims could not be listed for long.
    pub(super) unread: bool,
}

impl Devices {
    /// Whether it is known whether devices have binding conditions.
    pub(crate) fn settled(&self) -> watch::Receiver<bool> {
        self.settled.subscribe()
    }

    /// Records whether the cluster has binding conditions.
    pub(in crate::first) fn binding(&self, supported: bool) {
        self.update(|state| {
            if state.binding.supported.replace(supported) != Some(supported) {
                state.push_all();
            }
        });
    }

    /// Records whether the claims with binding conditions are listed.
    pub(crate) fn claims(&self, listed: bool) {
        self.update(|state| {
            (state.binding.claims, state.binding.unread) = (listed, !listed);
            state.push_all();
        });
    }
}

impl State {
    /// Whether devices have binding conditions: nobody would set those of claims that can't be read.
    pub(super) fn binding(&self) -> bool {
        self.binding.supported == Some(true) && self.binding.claims
    }

    /// Returns whether a Node has no devices any longer, and for what cause; `None` if that isn't known.
    pub(super) fn withdrawn(&self, key: &Key, now: Instant) -> Option<Option<Cause>> {
        let Key::Node(name) = key else { return None };
        let pool = self.pools.get(name)?;
        if !pool.slices.is_empty() {
            return Some(None);
        }
        match self.received.knowledge(name, now).0 {
            _ if pool.node.is_none() => Some(Some(Cause::HostNotListed)),
            Knowledge::Reported(None) => Some(None),
            Knowledge::Reported(Some(cause)) => Some(Some(cause)),
            Knowledge::Absent => Some(Some(Cause::HostNotListed)),
            Knowledge::Unknown => None,
        }
    }
}
