//! Exceptions: Pods that checks of the tenant's own Pods let through until a time. Only checks that a level of enforcement governs have them
//! ([`crate::validate::exceptable`]), so none lets through what concerns anybody else.

use std::collections::BTreeSet;

/// What an administrator has excepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exception {
    /// Its name, which is unique in the Tenant.
    pub name: String,
    /// Names of checks, as [`crate::validate::exceptable`] spells them.
    pub checks: BTreeSet<String>,
    /// Names of Pods; `*` at the end stands for any further characters.
    pub pods: Vec<String>,
    /// When it ends, in seconds since the beginning of 1970 in UTC.
    pub until: i64,
    /// The same as the Tenant has it.
    pub until_text: String,
}

impl Exception {
    /// Whether it hasn't ended. `now`: as [`Self::until`].
    pub fn is_active(&self, now: i64) -> bool {
        now < self.until
    }

    /// Whether it lets a Pod of this name through a check now. A Pod without a name is in no exception.
    pub fn covers(&self, check: &str, pod: &str, now: i64) -> bool {
        let is_named = |name: &String| match name.strip_suffix('*') {
            Some(beginning) => pod.starts_with(beginning),
            None => pod == name,
        };
        self.is_active(now)
            && self.checks.contains(check)
            && !pod.is_empty()
            && self.pods.iter().any(is_named)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exception_covers_the_pods_and_checks_that_it_names_until_its_end() {
        let exception = Exception {
            name: "a".into(),
            checks: ["A".to_owned()].into(),
            pods: vec!["web-0".into(), "job-*".into()],
            until: 100,
            until_text: String::new(),
        };
        for (check, pod, now, expected) in [
            ("A", "web-0", 99, true),
            ("A", "web-0", 100, false),
            ("A", "web-01", 99, false),
            ("A", "job-x", 99, true),
            ("A", "job-", 99, true),
            ("A", "job", 99, false),
            ("B", "web-0", 99, false),
            ("A", "", 99, false),
        ] {
            assert_eq!(exception.covers(check, pod, now), expected, "{check} {pod:?} {now}");
        }
        let any = Exception { pods: vec!["*".into()], ..exception };
        assert!(any.covers("A", "x", 99) && !any.covers("A", "", 99));
    }
}
