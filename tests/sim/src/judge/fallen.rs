//! Companions that others than managers have just taken down: kubelets, controllers whose Nodes are lost, and users who delete or evict. A manager counts
//! them as up until its watch shows that.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;

use super::found::Found;
use super::rollouts::runs;
use super::{Judge, Key};
use crate::model::Commit;

/// From when a companion is taken down until each decision about others knows it, while nothing is late.
const KNOWN: Duration = Duration::from_millis(200);

impl Judge {
    /// A companion is written.
    pub(super) fn companion_falls(&self, commit: &Commit, key: &Key) {
        let serves = |pod: &Option<Arc<Value>>| pod.as_ref().is_some_and(|pod| runs(pod));
        // What belongs to no process is the harness' own.
        if commit.client.is_empty() && serves(&commit.old) && !serves(&commit.new) {
            self.found.lock().fallen.insert(key.clone(), commit.time);
        }
    }
}

impl Found {
    /// Whether a companion was taken down so shortly before a request was sent that its manager may not have known it.
    pub(super) fn has_just_fallen(&self, key: &Key, sent: Timestamp) -> bool {
        self.fallen.get(key).is_some_and(|fallen| sent < *fallen + KNOWN)
    }
}
