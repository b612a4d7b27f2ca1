//! The PodDisruptionBudgets of the tenant's cluster, and the groups of workloads that follow from them.
//!
//! Of a budget only its uid, its selector and `status.desiredHealthy` are kept, so other changes of it have no effect. The groups of a
//! workload are a function of its Pod and of the kept budgets, in one order, so that nothing is sent twice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use outrigger_api::label_selector::Labels;
use outrigger_api::workload_wire::GROUP_ID;
use outrigger_core::map::HashMap;
use outrigger_core::workload::{DisruptionGroup, MAX_GROUPS, Workload};
use tracing::warn;

/// Maximum number of budgets of a namespace that are kept: each change of a Pod compares its labels with all of them.
const MAX_BUDGETS: usize = 1_000;

/// The group with this id. `None` for an id that can't be sent.
pub(crate) fn group(id: &str, desired_healthy: Option<u32>) -> Option<DisruptionGroup> {
    (1..=GROUP_ID).contains(&id.len()).then(|| DisruptionGroup { id: id.into(), desired_healthy })
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Budgets {
    namespaces: HashMap<Box<str>, Namespace>,
}

#[derive(Debug, Default)]
struct Namespace {
    /// By uid, which is the order of the groups.
    budgets: BTreeMap<Arc<str>, Budget>,
    /// The log says that a budget is ignored.
    warned: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Budget {
    selector: Labels,
    desired_healthy: u32,
}

impl Budget {
    /// Reduces a budget. `None` for one that selects no Pods, or whose status isn't known.
    fn of(budget: &PodDisruptionBudget) -> Option<Self> {
        let selector = budget.spec.as_ref()?.selector.as_ref()?;
        let selector = Labels::new("spec.selector", selector).ok()?;
        let desired_healthy = budget.status.as_ref()?.desired_healthy.try_into().ok()?;
        Some(Self { selector, desired_healthy })
    }

    fn selects(&self, workload: &Workload) -> bool {
        self.selector.selects(|key| workload.labels.get(key))
    }
}

/// The workloads whose groups may have changed with a budget: those that it selected before, and those that it selects now.
#[derive(Debug)]
pub(crate) struct Affected {
    pub namespace: Box<str>,
    before: Option<Budget>,
    now: Option<Budget>,
}

impl Affected {
    /// Reports whether a workload of the namespace is among them.
    pub(crate) fn includes(&self, workload: &Workload) -> bool {
        self.before.iter().chain(&self.now).any(|budget| budget.selects(workload))
    }
}

impl Budgets {
    /// Records a state of a budget.
    pub(crate) fn apply(&mut self, budget: &PodDisruptionBudget) -> Option<Affected> {
        let name = budget.metadata.namespace.as_deref()?;
        let id = group(budget.metadata.uid.as_deref()?, None)?.id;
        let Some(now) = Budget::of(budget) else { return self.remove(name, &id) };
        let namespace = self.namespaces.entry(name.into()).or_default();
        let known = namespace.budgets.get(&id);
        if known == Some(&now) {
            return None;
        }
        if known.is_none() && namespace.budgets.len() >= MAX_BUDGETS {
            if !std::mem::replace(&mut namespace.warned, true) {
                warn!(
                    namespace = name,
                    kept = MAX_BUDGETS,
                    "too many PodDisruptionBudgets; companions are replaced without regard to the others"
                );
            }
            return None;
        }
        let before = namespace.budgets.insert(id, now.clone());
        Some(Affected { namespace: name.into(), before, now: Some(now) })
    }

    /// Removes a budget.
    pub(crate) fn remove(&mut self, namespace: &str, uid: &str) -> Option<Affected> {
        let budgets = &mut self.namespaces.get_mut(namespace)?.budgets;
        let before = budgets.remove(uid)?;
        if budgets.is_empty() {
            self.namespaces.remove(namespace);
        }
        Some(Affected { namespace: namespace.into(), before: Some(before), now: None })
    }

    /// Removes the budgets of a namespace, or of all, that a complete list lacks.
    pub(crate) fn retain(
        &mut self,
        namespace: Option<&str>,
        is_listed: impl Fn(&str) -> bool,
    ) -> Vec<Affected> {
        let ours = self.namespaces.iter().filter(|(name, _)| namespace.is_none_or(|ours| ours == &***name));
        let gone: Vec<(Box<str>, Arc<str>)> = ours
            .flat_map(|(name, known)| known.budgets.keys().map(move |uid| (name.clone(), uid.clone())))
            .filter(|(_, uid)| !is_listed(uid))
            .collect();
        gone.iter().filter_map(|(name, uid)| self.remove(name, uid)).collect()
    }

    /// Forgets the budgets of other namespaces, which have no workloads.
    pub(crate) fn keep_namespaces(&mut self, namespaces: &BTreeSet<String>) {
        self.namespaces.retain(|name, _| namespaces.contains(&**name));
    }

    /// The groups of a workload: that of its owner, which it has already, and those of the budgets that select it, by uid.
    pub(crate) fn groups(&self, workload: &Workload) -> Vec<DisruptionGroup> {
        // Only the group of an owner has no number.
        let owner = workload.groups.iter().filter(|group| group.desired_healthy.is_none()).cloned();
        let namespace = self.namespaces.get(workload.resource_namespace.as_str());
        let selecting = namespace
            .into_iter()
            .flat_map(|namespace| &namespace.budgets)
            .filter(|(_, budget)| budget.selects(workload))
            .map(|(id, budget)| DisruptionGroup {
                id: id.clone(),
                desired_healthy: Some(budget.desired_healthy),
            });
        let mut groups: Vec<_> = owner.chain(selecting).take(MAX_GROUPS).collect();
        groups.shrink_to_fit();
        groups
    }
}

#[cfg(test)]
mod tests;
