//! What may not be read of a cluster.

use std::collections::BTreeSet;

/// Kinds whose objects may not be read, so that nothing follows from the absence of one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Unread(pub(super) BTreeSet<String>);

impl Unread {
    /// Whether objects of a kind may not be read.
    pub(super) fn has(&self, kind: &str) -> bool {
        self.0.contains(kind)
    }
}

#[cfg(test)]
impl From<&[&str]> for Unread {
    fn from(kinds: &[&str]) -> Self {
        Self(kinds.iter().map(|kind| (*kind).to_owned()).collect())
    }
}
