//! Tenants' rules, and how much each namespace has of them.

use std::collections::HashMap;
use std::sync::Arc;

use outrigger_core::rule::Rule;

/// A rule as the API has it.
#[derive(Debug, Clone)]
pub struct CachedRule {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.generation`.
    pub generation: i64,
    /// What of `Tenant.spec.limits.ruleBytes` it takes; 0 for an admin rule.
    pub size: u64,
    /// What admission needs of it ([`Rule::for_admission`]); `None` when it is not valid.
    pub rule: Option<Arc<Rule>>,
}

/// Namespace and name.
type RuleKey = (String, String);

/// Rules, with the sum of their sizes for each namespace.
#[derive(Debug, Default)]
pub(super) struct Rules {
    rules: HashMap<RuleKey, CachedRule>,
    sizes: HashMap<String, u64>,
}

impl Rules {
    pub(super) fn get(&self, key: &RuleKey) -> Option<&CachedRule> {
        self.rules.get(key)
    }

    pub(super) fn len(&self) -> usize {
        self.rules.len()
    }

    pub(super) fn insert(&mut self, key: RuleKey, rule: CachedRule) {
        let sum = self.sizes.entry(key.0.clone()).or_default();
        *sum = sum.saturating_add(rule.size);
        if let Some(before) = self.rules.insert(key, rule) {
            *sum = sum.saturating_sub(before.size);
        }
    }

    pub(super) fn remove(&mut self, key: RuleKey) {
        let Some(before) = self.rules.remove(&key) else { return };
        if let Some(sum) = self.sizes.get_mut(&key.0) {
            *sum = sum.saturating_sub(before.size);
            if *sum == 0 {
                self.sizes.remove(&key.0);
            }
        }
    }

    /// Sum of the sizes of a namespace's rules but one.
    pub(super) fn size_without(&self, namespace: &str, name: &str) -> u64 {
        let sum = self.sizes.get(namespace).copied().unwrap_or_default();
        let own = self.rules.get(&(namespace.to_owned(), name.to_owned())).map_or(0, |rule| rule.size);
        sum.saturating_sub(own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(size: u64) -> CachedRule {
        CachedRule { uid: String::new(), generation: 1, size, rule: None }
    }

    #[test]
    fn sizes_follow_rules() {
        let mut rules = Rules::default();
        let key = |namespace: &str, name: &str| (namespace.to_owned(), name.to_owned());
        rules.insert(key("a", "x"), rule(5));
        rules.insert(key("a", "y"), rule(7));
        rules.insert(key("b", "x"), rule(100));
        assert_eq!((rules.size_without("a", "x"), rules.size_without("a", "new")), (7, 12));
        rules.insert(key("a", "x"), rule(1));
        assert_eq!((rules.size_without("a", "y"), rules.size_without("a", "new")), (1, 8));
        rules.remove(key("a", "x"));
        rules.remove(key("a", "x"));
        rules.remove(key("a", "y"));
        assert_eq!((rules.size_without("a", "z"), rules.len()), (0, 1));
        assert!(!rules.sizes.contains_key("a"), "a namespace without rules takes no memory");
    }
}
