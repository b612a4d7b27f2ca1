//! Nodes whose devices can't be published, because slices of others have the names of theirs.
//!
//! Slices of a Node have the same names, driver and owner whichever tenant's agent publishes them, and only their label says whose they
//! are. Those of another tenant may be this agent's of before `--tenant-id` was changed, or those of an agent that runs in the same
//! cluster. So an administrator has to delete them.

use std::collections::BTreeMap;

use outrigger_core::keys;

use super::Key;

/// The first slice that is in the way, and the tenant that its label names, by Node.
#[derive(Debug, Default)]
pub(super) struct Taken(BTreeMap<String, (String, String)>);

impl Taken {
    /// A slice of a Node can't be created. `tenant` is empty for a slice without the label.
    pub(super) fn insert(&mut self, node: &str, slice: &str, tenant: &str) {
        self.0.insert(node.to_owned(), (slice.to_owned(), tenant.to_owned()));
    }

    /// What is to be written of a key is written, or nothing is.
    pub(super) fn remove(&mut self, key: &Key) {
        if let Key::Node(node) = key {
            self.0.remove(node);
        }
    }

    /// What an administrator has to do, if anything.
    pub(super) fn warning(&self) -> Option<String> {
        let (node, (slice, tenant)) = self.0.first_key_value()?;
        let others = if self.0.len() > 1 { " and others" } else { "" };
        let label = keys::TENANT;
        let (whose, selection) = match tenant.as_str() {
            "" => (format!("has no label {label}"), slice.clone()),
            tenant => {
                (format!("is of the tenant {tenant} by its label {label}"), format!("-l {label}={tenant}"))
            }
        };
        Some(format!(
            "Node {node}{others} can't have devices: the ResourceSlice {slice} {whose}; unless another agent in this cluster publishes it, \
             delete what an agent with another --tenant-id has left: kubectl delete resourceslices {selection}"
        ))
    }
}
