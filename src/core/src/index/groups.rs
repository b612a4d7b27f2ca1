//! The groups of a tenant's workloads: which workloads are in each, and how many of them are ready.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::map::HashMap;
use crate::workload::Workload;

/// The workloads of one group.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Members {
    labels: BTreeSet<Arc<str>>,
    ready: usize,
}

impl Members {
    /// The label values of the workloads.
    pub fn labels(&self) -> &BTreeSet<Arc<str>> {
        &self.labels
    }

    /// How many of them are ready.
    pub fn ready(&self) -> usize {
        self.ready
    }
}

/// All groups, by their ids.
#[derive(Debug, Default)]
pub(super) struct Groups {
    by_id: HashMap<Arc<str>, Members>,
}

impl Groups {
    pub(super) fn get(&self, id: &str) -> Option<&Members> {
        self.by_id.get(id)
    }

    /// A workload was like this and is like that now.
    pub(super) fn hold(&mut self, label: &Arc<str>, before: Option<&Workload>, now: Option<&Workload>) {
        for (id, ready) in before.into_iter().flat_map(memberships) {
            let Some(members) = self.by_id.get_mut(id) else { continue };
            members.labels.remove(label);
            members.ready -= usize::from(ready);
            if members.labels.is_empty() {
                self.by_id.remove(id);
            }
        }
        for (id, ready) in now.into_iter().flat_map(memberships) {
            match self.by_id.get_mut(id) {
                Some(members) => members.add(label, ready),
                None => self.by_id.entry(id.clone()).or_default().add(label, ready),
            }
        }
    }
}

impl Members {
    fn add(&mut self, label: &Arc<str>, ready: bool) {
        self.labels.insert(label.clone());
        self.ready += usize::from(ready);
    }
}

/// The ids of a workload's groups, each once, and whether the workload is ready.
fn memberships(workload: &Workload) -> impl Iterator<Item = (&Arc<str>, bool)> {
    let groups = &workload.groups;
    let first = |i: usize| !groups[..i].iter().any(|earlier| earlier.id == groups[i].id);
    groups.iter().enumerate().filter(move |(i, _)| first(*i)).map(|(_, group)| (&group.id, workload.ready))
}
