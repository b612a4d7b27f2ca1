//! The platform's own rules: where they live, and where their companions do.

use std::sync::Arc;

use crate::keys;
use crate::syntax::is_short_dns_label;

/// The namespaces of the platform. Neither may be a tenant's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminNamespaces {
    /// Of AdminWorkloadRules. What is elsewhere is not served.
    pub rules: Arc<str>,
    /// Of their companions, for all tenants.
    pub resources: Arc<str>,
}

impl Default for AdminNamespaces {
    fn default() -> Self {
        Self::new(keys::ADMIN_NAMESPACE, keys::ADMIN_NAMESPACE)
    }
}

impl AdminNamespaces {
    /// These two.
    pub fn new(rules: &str, resources: &str) -> Self {
        Self { rules: rules.into(), resources: resources.into() }
    }

    /// Whether rules can own their companions: owner references don't reach into other namespaces.
    pub fn owned(&self) -> bool {
        self.rules == self.resources
    }

    /// Whether a namespace is one of them.
    pub fn contains(&self, namespace: &str) -> bool {
        *self.rules == *namespace || *self.resources == *namespace
    }
}

/// Reads a setting that names a namespace.
pub fn namespace(text: &str) -> Result<String, &'static str> {
    if is_short_dns_label(text) {
        Ok(text.to_owned())
    } else {
        Err("is no name of a namespace: use up to 63 lower-case letters, digits and '-'")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn together_and_apart() {
        assert!(AdminNamespaces::default().owned());
        let apart = AdminNamespaces::new("rules", "universe");
        assert!(!apart.owned());
        assert!(apart.contains("rules") && apart.contains("universe") && !apart.contains("tenant-blue"));
    }

    #[test]
    fn names() {
        assert_eq!(namespace("universe"), Ok("universe".to_owned()));
        for bad in ["", "A", "a.b", "-", &"x".repeat(64)] {
            assert!(namespace(bad).is_err(), "{bad}");
        }
    }
}
