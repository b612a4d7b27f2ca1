//! Selects the annotations of Pods that leave the cluster: those that a rule names, and those that the command line
//! allows.
//!
//! Annotations may hold anything. `kubectl apply` stores whole manifests in one, with all literal values of environment
//! variables; that annotation ([`LAST_APPLIED`]) is never sent. Labels are always sent: they are short, and rules
//! select by them.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use outrigger_api::WorkloadRule;
use outrigger_core::path::Path;
use outrigger_runtime::environment::Clock;
use outrigger_runtime::pod::LAST_APPLIED;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::info;

use crate::rules::RuleStore;

/// Maximum length of an annotation key: a prefix of 253 characters, a slash, and a name of 63.
const MAX_KEY: usize = 317;
/// Delay after a change of the rules. Several rules are usually applied one after the other, and each new key causes
/// all Pods to be read again.
const SETTLE: Duration = Duration::from_millis(200);
/// Time for which a key is still sent after the last rule that names it is deleted. The infrastructure cluster's copy
/// of the rule is deleted first: otherwise a rule that selects Pods *without* the annotation would match them before it
/// is deleted.
const LINGER: Duration = Duration::from_secs(60);

/// Annotations that the command line allows: one key, all keys with a prefix, or all.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pattern {
    /// `*`: all except [`LAST_APPLIED`].
    All,
    /// `example.com/*`: all keys with this prefix, which includes the slash.
    Prefix(String),
    /// `example.com/key`.
    Key(String),
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let pattern = match text.strip_suffix('*') {
            Some("") => return Ok(Self::All),
            Some(prefix) if prefix.ends_with('/') => Self::Prefix(prefix.to_owned()),
            Some(_) => {
                return Err(format!("{text:?}: '*' is only allowed alone or after a '/': *, example.com/*"));
            }
            None => Self::Key(text.to_owned()),
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
        if text.len() > MAX_KEY || !text.trim_end_matches('*').chars().all(plain) || text.is_empty() {
            return Err(format!(
                "{text:?} is not an annotation key: use example.com/key, example.com/* or *"
            ));
        }
        if text == LAST_APPLIED {
            return Err(format!(
                "{text} is never sent, because it contains whole objects with their secrets"
            ));
        }
        Ok(pattern)
    }
}

/// The annotations that are sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    allowed: Arc<[Pattern]>,
    named: BTreeSet<String>,
}

impl Selection {
    /// Creates a selection of the annotations that the command line allows and of those that rules name.
    pub fn new(allowed: Arc<[Pattern]>, named: BTreeSet<String>) -> Self {
        Self { allowed, named }
    }

    /// Whether an annotation with this key is sent.
    pub fn includes(&self, key: &str) -> bool {
        let includes = |pattern: &Pattern| match pattern {
            Pattern::All => true,
            Pattern::Prefix(prefix) => key.starts_with(prefix.as_str()),
            Pattern::Key(one) => one == key,
        };
        key != LAST_APPLIED && (self.named.contains(key) || self.allowed.iter().any(includes))
    }

    #[must_use]
    pub(crate) fn with(&self, keys: impl Iterator<Item = String>) -> Self {
        Self::new(self.allowed.clone(), self.named.iter().cloned().chain(keys).collect())
    }

    /// Reports whether it includes every annotation of another selection with the same allowed patterns.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        self.allowed == other.allowed
            && other.named.iter().all(|key| key == LAST_APPLIED || self.includes(key))
    }
}

/// Returns the keys of the annotations that a rule names, in its expressions and in the values that it injects. An invalid path
/// names none; validation reports it.
pub fn keys_of(rule: &WorkloadRule) -> impl Iterator<Item = String> {
    let terms = rule.spec.workload_terms.iter().flat_map(|term| &term.match_expressions);
    let injected = rule.spec.workload_info_inject.iter().map(|inject| &inject.workload_key);
    let paths = terms.map(|expression| &expression.key).chain(injected);
    paths.filter_map(|path| match Path::parse(path) {
        Ok(Path::ExtraEntry(map, key)) if &*map == "annotations" => Some(key.into()),
        _ => None,
    })
}

/// The keys that rules name or have named, and the time since when no rule does.
#[derive(Debug, Default)]
struct NamedKeys(BTreeMap<String, Option<Instant>>);

impl NamedKeys {
    /// Updates the keys that rules name. Returns the time at which the next key expires.
    fn update(&mut self, keys: BTreeSet<String>, now: Instant) -> Option<Instant> {
        for (key, unused) in &mut self.0 {
            if !keys.contains(key) {
                unused.get_or_insert(now);
            }
        }
        self.0.retain(|_, unused| unused.is_none_or(|since| now < since + LINGER));
        self.0.extend(keys.into_iter().map(|key| (key, None)));
        self.0.values().flatten().min().map(|since| *since + LINGER)
    }

    fn keys(&self) -> BTreeSet<String> {
        self.0.keys().cloned().collect()
    }
}

/// Watches the rules, which have been listed, and publishes the selection.
pub(crate) async fn follow(
    clock: Clock,
    rules: Arc<RuleStore>,
    allowed: Arc<[Pattern]>,
    selections: watch::Sender<Option<Selection>>,
) {
    let mut changed = rules.changes();
    let mut named = NamedKeys::default();
    loop {
        changed.mark_unchanged();
        let keys = rules.all().iter().flat_map(|rule| keys_of(rule).collect::<Vec<_>>()).collect();
        let next = named.update(keys, clock.now());
        let selection = Selection::new(allowed.clone(), named.keys());
        selections.send_if_modified(|current| {
            let changed = current.as_ref() != Some(&selection);
            if changed {
                let keys = selection.named.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
                info!(keys, "annotations named by rules changed");
                *current = Some(selection);
            }
            changed
        });
        tokio::select! {
            biased;
            () = until(next) => {}
            open = changed.changed() => {
                if open.is_err() {
                    return;
                }
                tokio::time::sleep(SETTLE).await;
            }
        }
    }
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn set(keys: &[&str]) -> BTreeSet<String> {
        keys.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn patterns_select_keys() {
        let patterns =
            |texts: &[&str]| -> Arc<[Pattern]> { texts.iter().map(|text| text.parse().unwrap()).collect() };
        let sends = |texts: &[&str], named: &[&str], key: &str| {
            Selection::new(patterns(texts), set(named)).includes(key)
        };
        assert!(!sends(&[], &[], "example.com/a"));
        assert!(sends(&[], &["example.com/a"], "example.com/a"));
        assert!(!sends(&[], &["example.com/a"], "example.com/ab"));
        assert!(sends(&["example.com/*"], &[], "example.com/a"));
        assert!(!sends(&["example.com/*"], &[], "example.community/a"));
        assert!(sends(&["a", "*"], &[], "x"));
        for never in [&["*"][..], &["kubectl.kubernetes.io/*"]] {
            assert!(!sends(never, &[LAST_APPLIED], LAST_APPLIED), "it is never sent");
        }
        for wrong in ["", "a*", "a b", "{}", LAST_APPLIED, &"x".repeat(400)] {
            assert!(wrong.parse::<Pattern>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn keys_that_a_rule_names() {
        let rule: WorkloadRule = serde_json::from_value(json!({
            "apiVersion": "workload.universe.nvidia.com/v1alpha1", "kind": "WorkloadRule", "metadata": {"name": "r"},
            "spec": {
                "workloadTerms": [
                    {"matchExpressions": [{"key": ".state.extra.annotations['example.com/a']", "operator": "Exists"},
                        {"key": ".state.extra.labels.app", "operator": "Exists"}]},
                    {"matchExpressions": [{"key": "{.state.extra.annotations.b}", "operator": "DoesNotExist"}, {"key": "][", "operator": "In"}]}],
                "workloadInfoInject": [{"workloadKey": "state.extra.annotations.example\\.com/c", "asAnnotation": {"name": "c"}},
                    {"asAnnotation": {"name": "all"}}, {"workloadKey": ".state.extra.annotations", "asAnnotation": {"name": "d"}}]}}))
        .unwrap();
        assert_eq!(keys_of(&rule).collect::<Vec<_>>(), ["example.com/a", "b", "example.com/c"]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_unused_key_is_sent_until_it_expires() {
        let mut named = NamedKeys::default();
        let begin = Instant::now();
        assert_eq!(named.update(set(&["a", "b"]), begin), None);
        assert_eq!(named.update(set(&["b"]), begin), Some(begin + LINGER));
        assert_eq!(named.keys(), set(&["a", "b"]));
        // A key that is named again does not expire.
        assert_eq!(named.update(set(&["a", "b"]), begin + LINGER / 2), None);
        assert!(named.update(set(&["b"]), begin + LINGER).is_some());
        assert_eq!(named.update(set(&["b"]), begin + 2 * LINGER), None);
        assert_eq!(named.keys(), set(&["b"]));
    }

    #[test]
    fn a_selection_covers_another() {
        let of = |named: &[&str]| Selection::new(Arc::new([]), set(named));
        assert!(of(&["a", "b"]).covers(&of(&["a"])));
        assert!(!of(&["a"]).covers(&of(&["a", "b"])));
        assert!(of(&[]).covers(&of(&[LAST_APPLIED])), "it is never sent");
    }
}
