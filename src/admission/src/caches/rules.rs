//! Rules, and their total size in each namespace.

use outrigger_core::map::HashMap;
use std::sync::Arc;

use outrigger_api::{AdminWorkloadRule, Change, WorkloadRule};
use outrigger_core::ids::RuleName;
use outrigger_core::rule::Rule;
use parking_lot::RwLock;

use super::Caches;
use super::specs::{Cached, Specs};

/// What admission needs of a rule.
#[derive(Debug, Clone)]
pub struct RuleSpec {
    /// Its share of `Tenant.spec.limits.ruleBytes`; 0 for an admin rule.
    pub size: u64,
    /// The rule ([`Rule::for_admission`]); `None` when it is not valid.
    pub rule: Option<Arc<Rule>>,
}

#[derive(Debug, Default)]
pub(super) struct Rules {
    pub(super) tenants: Specs<(String, String), RuleSpec>,
    /// By name: all of them are in one namespace.
    pub(super) admin: Specs<String, RuleSpec>,
    /// The sum of the sizes of tenants' rules, by namespace.
    sizes: RwLock<HashMap<String, u64>>,
}

impl Caches {
    /// An admin rule, or the rule of a tenant with this namespace, as the name's scope says.
    pub fn rule(&self, namespace: &str, rule: &RuleName) -> Option<Cached<RuleSpec>> {
        let (Rules { tenants, admin, .. }, name) = (&self.rules, rule.as_str());
        if rule.is_admin() { admin.get(name) } else { tenants.get(&(namespace.to_owned(), name.to_owned())) }
    }

    /// Size of a tenant's rule, as [`WorkloadRule::size`] counts it; 0 for one that isn't known.
    pub fn rule_size(&self, namespace: &str, name: &str) -> u64 {
        let rule = self.rules.tenants.get(&(namespace.to_owned(), name.to_owned()));
        rule.map_or(0, |rule| rule.spec.size)
    }

    /// Size of all rules of a namespace but one.
    pub fn other_rules_size(&self, namespace: &str, name: &str) -> u64 {
        let sum = self.rules.sizes.read().get(namespace).copied().unwrap_or_default();
        sum.saturating_sub(self.rule_size(namespace, name))
    }

    /// Takes in a tenant's rule.
    pub fn apply_rule(&self, change: Change<WorkloadRule>) {
        let (namespace, name, rule) = change.into_parts();
        let mut size = 0;
        let (changed, before) = self.rules.tenants.apply((namespace.clone(), name), rule, |rule| {
            size = rule.size();
            RuleSpec { size, rule: rule.compile().ok().map(|rule| Arc::new(rule.for_admission())) }
        });
        if !changed {
            return;
        }
        let mut sizes = self.rules.sizes.write();
        let sum = sizes.entry(namespace.clone()).or_default();
        *sum = sum.saturating_add(size).saturating_sub(before.map_or(0, |before| before.size));
        if *sum == 0 {
            sizes.remove(&namespace);
        }
        drop(sizes);
        self.changed();
    }

    /// Takes in an admin rule.
    pub fn apply_admin_rule(&self, change: Change<AdminWorkloadRule>) {
        let (_, name, rule) = change.into_parts();
        let read = |rule: &AdminWorkloadRule| {
            let rule = rule.compile().ok().map(|admin| Arc::new(admin.rule.for_admission()));
            RuleSpec { size: 0, rule }
        };
        if self.rules.admin.apply(name, rule, read).0 {
            self.changed();
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn sizes_follow_rules() {
        let caches = Caches::default();
        let rule = |namespace: &str, name: &str, generation: i64, text: usize| {
            let rule = json!({"apiVersion": "workload.universe.nvidia.com/v1alpha1", "kind": "WorkloadRule",
                "metadata": {"name": name, "namespace": namespace, "generation": generation},
                "spec": {"workloadTerms": [], "template": {"metadata": {"name": "x".repeat(text)}}}});
            let rule: WorkloadRule = serde_json::from_value(rule).unwrap();
            let size = rule.size();
            caches.apply_rule(Change::Applied(rule));
            size
        };
        let gone = |name: &str| {
            caches.apply_rule(Change::Gone { namespace: "a".into(), name: name.into(), uid: String::new() });
        };
        let (x, y) = (rule("a", "x", 1, 5), rule("a", "y", 1, 7));
        rule("b", "x", 1, 100);
        assert_eq!((caches.other_rules_size("a", "x"), caches.other_rules_size("a", "new")), (y, x + y));
        let x = rule("a", "x", 2, 1);
        assert_eq!((caches.other_rules_size("a", "y"), caches.other_rules_size("a", "new")), (x, x + y));
        for name in ["x", "x", "y"] {
            gone(name);
        }
        assert_eq!((caches.other_rules_size("a", "z"), caches.rules.tenants.len()), (0, 1));
        assert!(!caches.rules.sizes.read().contains_key("a"), "a namespace without rules takes no memory");
    }
}
