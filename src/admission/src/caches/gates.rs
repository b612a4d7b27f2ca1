//! What decides about readiness gates and claims of Pods in a tenant's cluster.

use std::collections::BTreeSet;
use std::sync::Arc;

use outrigger_core::rule::Rule;

/// What the agent knows of its cluster.
#[derive(Debug, Default)]
pub struct GateRules {
    /// The rules by which workloads wait: with any ordering but `Parallel`. Of each its terms and its ordering are read.
    pub rules: Vec<Arc<Rule>>,
    /// The namespaces whose Pods are workloads; `None` for all. The condition of a gate in another namespace would never be set.
    pub namespaces: Option<BTreeSet<String>>,
    /// The namespaces aren't known yet, so none is covered.
    pub namespaces_unknown: bool,
    /// Whether claims are added by which Pods wait before they start; otherwise why not.
    pub claims: Claims,
    /// Whether these claims can also keep Pods from being bound. Otherwise Pods of rules with `BeforeBinding` wait before they start.
    pub binding: bool,
}

/// Whether claims are added by which Pods wait before they start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claims {
    /// They are.
    Added,
    /// They aren't, for this reason.
    Missing(&'static str),
}

impl Default for Claims {
    fn default() -> Self {
        Self::Missing("this cluster's agent adds no claims")
    }
}

impl GateRules {
    pub(crate) fn covers(&self, namespace: &str) -> bool {
        self.namespaces.as_ref().is_none_or(|names| names.contains(namespace))
    }
}
