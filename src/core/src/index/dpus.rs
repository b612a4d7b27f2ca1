//! The companions of rules that have one on each DPU of a workload's host.
//!
//! The infrastructure says which DPUs are the tenant's. The tenant says only on which of its nodes a workload runs.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{CompanionKey, TenantIndex};
use crate::companion;
use crate::fault;
use crate::map::HashMap;
use crate::rule::Rule;
use crate::steps::step;
use crate::tenant::hosts::HostNames;
use crate::workload::Workload;

/// The DPUs in a host, as far as they are a tenant's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnDpus {
    /// Names of the Nodes of those that are the tenant's and stay so.
    pub nodes: BTreeSet<Arc<str>>,
    /// Others are on their way to or from the tenant.
    pub hands_over: bool,
}

/// The DPUs of a tenant by their hosts.
#[derive(Debug, Clone, Default)]
pub struct HostDpus {
    /// Names that the hosts have as Nodes of the tenant's cluster.
    pub names: Arc<HostNames>,
    by_host: HashMap<String, OwnDpus>,
}

impl HostDpus {
    /// These DPUs: the host of each, and the name of its Node.
    pub fn new(names: Arc<HostNames>, dpus: impl IntoIterator<Item = (String, Arc<str>)>) -> Self {
        let mut by_host = HashMap::<String, OwnDpus>::default();
        for (host, dpu) in dpus {
            by_host.entry(host).or_default().nodes.insert(dpu);
        }
        Self { names, by_host }
    }

    /// Sets the DPUs of a host. Returns whether they are others than before.
    fn set(&mut self, host: &str, dpus: OwnDpus) -> bool {
        let before = if dpus == OwnDpus::default() {
            self.by_host.remove(host)
        } else {
            self.by_host.insert(host.to_owned(), dpus.clone())
        };
        before.unwrap_or_default() != dpus
    }

    fn in_host(&self, rule: &Rule, workload: &Workload) -> Option<&OwnDpus> {
        self.by_host.get(companion::host(rule, workload, &self.names)?)
    }

    /// The DPUs of the host that the companions of a rule for a workload have to be on, in alphabetical order.
    pub fn of<'a>(&'a self, rule: &Rule, workload: &Workload) -> impl Iterator<Item = &'a str> + use<'a> {
        self.in_host(rule, workload).into_iter().flat_map(|dpus| &dpus.nodes).map(|dpu| &**dpu)
    }

    /// Whether a DPU of that host is on its way to or from the tenant.
    pub fn hands_over(&self, rule: &Rule, workload: &Workload) -> bool {
        self.in_host(rule, workload).is_some_and(|dpus| dpus.hands_over)
    }

    /// Whether a companion of a rule for a workload it matches belongs on this DPU, or in case of `None` on any one that its policy permits.
    pub(super) fn fit(&self, rule: &Rule, workload: &Workload, dpu: Option<&str>) -> bool {
        match dpu {
            Some(dpu) => rule.policy().is_on_all() && self.of(rule, workload).any(|known| known == dpu),
            None => !rule.policy().is_on_all(),
        }
    }
}

impl TenantIndex {
    /// Sets the DPUs of a host. Returns what this concerns: the keys without a DPU. A look at each workload of such rules is needed only
    /// where the DPUs are others than before.
    pub fn set_dpus(&mut self, host: &str, dpus: OwnDpus) -> Vec<CompanionKey> {
        if !self.dpus.set(host, dpus) {
            return Vec::new();
        }
        let mut touched = Vec::new();
        for (name, labels) in &self.matched {
            let Some(rule) = self.rules.get(name).filter(|rule| rule.policy().is_on_all()) else { continue };
            let is_there = |label: &&Arc<str>| {
                step();
                let workload = self.workload(label);
                workload.is_some_and(|w| companion::host(rule, w, &self.dpus.names) == Some(host))
            };
            let key = |label: &Arc<str>| CompanionKey { rule: name.clone(), workload: label.clone() };
            touched.extend(labels.iter().filter(is_there).map(key));
        }
        touched
    }

    /// The keys of the companions that a rule has for a workload that it matches: one, or one for each DPU of the workload's host. These may
    /// be none. While the workload has no node, it is the key without a DPU.
    pub fn companions_of(&self, key: &CompanionKey) -> Vec<CompanionKey> {
        match (self.rules.get(&key.rule), self.workload(&key.workload)) {
            (Some(rule), Some(workload)) if rule.policy().is_on_all() && workload.node_name.is_some() => {
                self.dpus.of(rule, workload).map(|dpu| key.on(dpu)).collect()
            }
            _ => vec![key.whole()],
        }
    }

    /// How many companions there should be of a rule for the workloads that it matches. A workload in whose host no DPU is known lacks one.
    pub fn wanted(&self, rule: &Rule) -> usize {
        if !rule.policy().is_on_all() {
            return self.matched(rule.name());
        }
        let of = |workload: &Arc<Workload>| match self.dpus.of(rule, workload).count().max(1) {
            several if several > 1 && fault("wanted-companions-are-counted-as-workloads") => 1,
            count => count,
        };
        self.workloads_of(rule.name()).map(of).sum()
    }
}

#[cfg(test)]
mod tests;
