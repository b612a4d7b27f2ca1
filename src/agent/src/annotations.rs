//! Which annotations of Pods leave the cluster: those that a rule names, and those that a setting admits.
//!
//! Annotations hold anything. `kubectl apply` writes whole manifests into one, with every literal value of the environment; that one
//! ([`LAST_APPLIED`]) is never sent. Labels are sent as they are: they are short, and rules are about them.

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

/// Longest key of an annotation: a prefix of 253 characters, '/', a name of 63.
const MAX_KEY: usize = 317;
/// How long rules have to be quiet before what they name counts: whoever applies many applies them one after the other, and each new
/// key has all Pods read again.
const SETTLE: Duration = Duration::from_millis(200);
/// How long a key is sent on that no rule names any more. The infrastructure cluster's copy of the rule goes first: else a rule that
/// asks for Pods *without* the annotation would match on its last day.
const LINGER: Duration = Duration::from_secs(60);

/// Annotations that a setting admits: one key, all of a prefix, or all.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pattern {
    /// `*`: all but [`LAST_APPLIED`].
    All,
    /// `example.com/*`: all keys that begin so, the slash included.
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
            Some(_) => return Err(format!("{text:?}: a '*' stands alone or after a '/': *, example.com/*")),
            None => Self::Key(text.to_owned()),
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
        if text.len() > MAX_KEY || !text.trim_end_matches('*').chars().all(plain) || text.is_empty() {
            return Err(format!("{text:?} is no annotation's key: use example.com/key, example.com/* or *"));
        }
        if text == LAST_APPLIED {
            return Err(format!("{text} is never sent: it holds whole objects, with secrets in them"));
        }
        Ok(pattern)
    }
}

/// The annotations that are sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    admitted: Arc<[Pattern]>,
    named: BTreeSet<String>,
}

impl Selection {
    /// What settings admit, and what rules name.
    pub fn new(admitted: Arc<[Pattern]>, named: BTreeSet<String>) -> Self {
        Self { admitted, named }
    }

    /// Whether an annotation of this key is sent.
    pub fn admits(&self, key: &str) -> bool {
        let admits = |pattern: &Pattern| match pattern {
            Pattern::All => true,
            Pattern::Prefix(prefix) => key.starts_with(prefix.as_str()),
            Pattern::Key(one) => one == key,
        };
        key != LAST_APPLIED && (self.named.contains(key) || self.admitted.iter().any(admits))
    }

    /// The same, and these keys.
    #[must_use]
    pub fn with(&self, keys: impl Iterator<Item = String>) -> Self {
        Self::new(self.admitted.clone(), self.named.iter().cloned().chain(keys).collect())
    }

    /// Whether it admits all that another one does, which has the same settings.
    pub fn covers(&self, other: &Self) -> bool {
        self.admitted == other.admitted
            && other.named.iter().all(|key| key == LAST_APPLIED || self.admits(key))
    }
}

/// The annotations that a rule is about: in what it asks of workloads, and in what it gives to companions. A path that can't be read
/// names nothing; that is said elsewhere.
pub fn named(rule: &WorkloadRule) -> impl Iterator<Item = String> {
    let terms = rule.spec.workload_terms.iter().flat_map(|term| &term.match_expressions);
    let facts = rule.spec.workload_info_inject.iter().map(|inject| &inject.workload_key);
    let paths = terms.map(|expression| &expression.key).chain(facts);
    paths.filter_map(|path| match Path::parse(path) {
        Ok(Path::ExtraEntry(map, key)) if &*map == "annotations" => Some(key.into()),
        _ => None,
    })
}

/// The keys that rules have named, and since when they don't.
#[derive(Debug, Default)]
struct Named(BTreeMap<String, Option<Instant>>);

impl Named {
    /// Rules name these now. Returns when the next key will be out of use.
    fn now(&mut self, keys: BTreeSet<String>, now: Instant) -> Option<Instant> {
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

/// Follows the rules, which have been listed, and tells what is to be sent.
pub async fn follow(
    clock: Clock,
    rules: Arc<RuleStore>,
    admitted: Arc<[Pattern]>,
    tell: watch::Sender<Option<Selection>>,
) {
    let mut changed = rules.news();
    let mut known = Named::default();
    loop {
        changed.mark_unchanged();
        let keys = rules.all().iter().flat_map(|rule| named(rule).collect::<Vec<_>>()).collect();
        let next = known.now(keys, clock.now());
        let selection = Selection::new(admitted.clone(), known.keys());
        tell.send_if_modified(|told| {
            let other = told.as_ref() != Some(&selection);
            if other {
                let named = selection.named.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
                info!(
                    named,
                    "the rules name the annotations that are sent, beside those that the setting admits"
                );
                *told = Some(selection);
            }
            other
        });
        tokio::select! {
            () = until(next) => {}
            alive = changed.changed() => {
                if alive.is_err() {
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
    fn what_a_setting_admits() {
        let patterns =
            |texts: &[&str]| -> Arc<[Pattern]> { texts.iter().map(|text| text.parse().unwrap()).collect() };
        let sends = |texts: &[&str], named: &[&str], key: &str| {
            Selection::new(patterns(texts), set(named)).admits(key)
        };
        assert!(!sends(&[], &[], "example.com/a"));
        assert!(sends(&[], &["example.com/a"], "example.com/a"));
        assert!(!sends(&[], &["example.com/a"], "example.com/ab"));
        assert!(sends(&["example.com/*"], &[], "example.com/a"));
        assert!(!sends(&["example.com/*"], &[], "example.community/a"));
        assert!(sends(&["a", "*"], &[], "x"));
        for never in [&["*"][..], &["kubectl.kubernetes.io/*"]] {
            assert!(!sends(never, &[LAST_APPLIED], LAST_APPLIED), "whoever asks for it");
        }
        for wrong in ["", "a*", "a b", "{}", LAST_APPLIED, &"x".repeat(400)] {
            assert!(wrong.parse::<Pattern>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_a_rule_names() {
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
        assert_eq!(named(&rule).collect::<Vec<_>>(), ["example.com/a", "b", "example.com/c"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_is_sent_on_for_a_while() {
        let mut named = Named::default();
        let begin = Instant::now();
        assert_eq!(named.now(set(&["a", "b"]), begin), None);
        assert_eq!(named.now(set(&["b"]), begin), Some(begin + LINGER));
        assert_eq!(named.keys(), set(&["a", "b"]));
        // One that is named again stays.
        assert_eq!(named.now(set(&["a", "b"]), begin + LINGER / 2), None);
        assert!(named.now(set(&["b"]), begin + LINGER).is_some());
        assert_eq!(named.now(set(&["b"]), begin + 2 * LINGER), None);
        assert_eq!(named.keys(), set(&["b"]));
    }

    #[test]
    fn a_selection_covers_another() {
        let of = |named: &[&str]| Selection::new(Arc::new([]), set(named));
        assert!(of(&["a", "b"]).covers(&of(&["a"])));
        assert!(!of(&["a"]).covers(&of(&["a", "b"])));
        assert!(of(&[]).covers(&of(&[LAST_APPLIED])), "there is nothing to wait for");
    }
}
