//! The statuses that this replica has computed last.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::time::Duration;

/// After so long an object is looked at whose status has become another than the computed one. Two replicas that believe to lead, as after
/// a restore, would write over each other as fast as they can otherwise.
pub(crate) const CONTESTED: Duration = Duration::from_secs(1);

/// The status that was computed last for each object, by its name. A watch that shows another one shows a late request, whose response was
/// lost, or a write of another replica: the object's key is queued then. Nothing else looks at the object again soon.
#[derive(Debug)]
pub(crate) struct ComputedStatuses<K, S>(BTreeMap<K, S>);

impl<K, S> Default for ComputedStatuses<K, S> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord, S: PartialEq> ComputedStatuses<K, S> {
    /// Keeps the computed status of an object that `exists`. That of a deleted one would stay for ever.
    pub(crate) fn set(&mut self, key: K, status: S, exists: bool) {
        if exists {
            self.0.insert(key, status);
        }
    }

    /// Whether an object has another status than the computed one; false if none was computed.
    pub(crate) fn differs<Q: Ord + ?Sized>(&self, key: &Q, status: Option<S>) -> bool
    where
        K: Borrow<Q>,
    {
        self.0.get(key).is_some_and(|computed| status.as_ref() != Some(computed))
    }

    /// The object is deleted.
    pub(crate) fn forget<Q: Ord + ?Sized>(&mut self, key: &Q)
    where
        K: Borrow<Q>,
    {
        self.0.remove(key);
    }
}
