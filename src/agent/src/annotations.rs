//! Selects the annotations of Pods that leave the cluster: those that a rule of the cluster names, those that the command line
//! allows, and those that the manager asks for and the command line allows for that.
//!
//! Annotations may hold anything. `kubectl apply` stores whole manifests in one, with all literal values of environment
//! variables; that annotation ([`LAST_APPLIED`]) is never sent. Labels are always sent: they are short, and rules
//! select by them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use outrigger_api::{WorkloadRule, workload_wire};
pub use outrigger_core::annotations::Pattern;
use outrigger_core::annotations::{LAST_APPLIED, MAX_STATED, Statement, is_key, key_of};
use outrigger_core::path::Path;
use outrigger_core::workload::Workload;
use outrigger_proto::v1::AnnotationKeys;
use outrigger_runtime::environment::Clock;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::info;

use crate::rules::RuleStore;
use crate::waits;

/// Delay after a change of the rules. Several rules are usually applied one after the other, and each new key causes
/// all Pods to be read again.
const SETTLE: Duration = Duration::from_millis(200);
/// Time for which a key is still sent after the last rule that names it is deleted. The infrastructure cluster's copy
/// of the rule is deleted first: otherwise a rule that selects Pods *without* the annotation would match them before it
/// is deleted.
const LINGER: Duration = Duration::from_secs(60);
/// Minimum time between two changes of the keys that the manager asks for: each may cause all Pods to be read again.
const PACE: Duration = Duration::from_secs(5);
/// Maximum size in bytes of an annotation that is sent because the manager asks for it. What selects workloads is short.
const MAX_ASKED_VALUE: usize = 16 << 10;

/// The annotations that the command line allows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allowed {
    /// Those that are always sent.
    pub always: Arc<[Pattern]>,
    /// Those that are sent if the manager asks for them.
    pub asked: Arc<[Pattern]>,
}

/// The annotations that are sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    allowed: Arc<[Pattern]>,
    named: BTreeSet<String>,
    /// Keys among `named` that only the manager asks for.
    asked: BTreeSet<String>,
    /// Keys that the manager asks for and that aren't sent.
    withheld: BTreeSet<String>,
}

impl Selection {
    /// Creates a selection of the annotations that the command line allows, of those that rules of this cluster name, and of those among
    /// `asked` that the command line allows for the manager.
    pub fn new(allowed: &Allowed, named: BTreeSet<String>, asked: &BTreeSet<String>) -> Self {
        let mut selection = Self { allowed: allowed.always.clone(), named, ..Self::default() };
        let others: Vec<&String> = asked.iter().filter(|key| !selection.includes(key)).collect();
        let (sent, withheld): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|key| allowed.asked.iter().any(|pattern| pattern.includes(key)));
        selection.asked = sent.into_iter().cloned().collect();
        selection.withheld = withheld.into_iter().cloned().collect();
        selection.named.extend(selection.asked.iter().cloned());
        selection
    }

    /// Whether an annotation with this key is sent.
    pub fn includes(&self, key: &str) -> bool {
        key != LAST_APPLIED
            && (self.named.contains(key) || self.allowed.iter().any(|pattern| pattern.includes(key)))
    }

    /// Removes what isn't sent from a workload, and says of what is too large that it isn't sent.
    pub fn apply(&self, workload: &mut Workload) {
        let is_large = |key: &str, value: &str| value.len() > MAX_ASKED_VALUE && self.asked.contains(key);
        let large = workload.annotations.iter().filter(|(key, value)| is_large(key, value));
        let large: Vec<Box<str>> = large.map(|(key, _)| key.into()).collect();
        workload.annotations.retain(|key| self.includes(key) && !large.iter().any(|large| **large == *key));
        workload.withheld.retain(|key| self.asked.contains(&**key));
        workload.withheld.extend(large);
    }

    /// What follows of it for annotations that a workload lacks.
    pub fn statement(&self) -> Statement {
        let named = self.named.iter().filter(|key| is_key(key) && *key != LAST_APPLIED);
        let sent = self.allowed.iter().cloned().chain(named.cloned().map(Pattern::Key));
        Statement::new(sent.take(MAX_STATED), self.withheld.clone())
    }

    /// The message about it.
    pub(crate) fn keys(&self) -> AnnotationKeys {
        workload_wire::annotation_keys(&self.statement())
    }

    #[must_use]
    pub(crate) fn with(&self, keys: impl Iterator<Item = String>) -> Self {
        Self { named: self.named.iter().cloned().chain(keys).collect(), ..self.clone() }
    }

    /// The annotations that it shares with another selection. What the manager asks for is that of the other one.
    #[must_use]
    pub(crate) fn within(&self, other: &Self) -> Self {
        let named = self.named.intersection(&other.named).cloned().collect();
        Self { named, ..other.clone() }
    }

    /// Reports whether it includes every annotation of another selection with the same allowed patterns.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        // What only the manager asks for may have been too large.
        let whole = |key: &String| !self.asked.contains(key) || other.asked.contains(key);
        self.allowed == other.allowed
            && other.named.iter().all(|key| key == LAST_APPLIED || self.includes(key) && whole(key))
    }
}

/// Returns the keys of the annotations that a rule names, in its expressions and in the values that it injects. An invalid path
/// names none; validation reports it.
pub fn keys_of(rule: &WorkloadRule) -> impl Iterator<Item = String> {
    let terms = rule.spec.workload_terms.iter().flat_map(|term| &term.match_expressions);
    let injected = rule.spec.workload_info_inject.iter().map(|inject| &inject.workload_key);
    let paths = terms.map(|expression| &expression.key).chain(injected);
    paths.filter_map(|path| Path::parse(path).ok().as_ref().and_then(key_of).map(str::to_owned))
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

/// The keys that the manager asks for, of which changes are taken in at a pace.
struct AskedKeys {
    received: watch::Receiver<BTreeSet<String>>,
    keys: BTreeSet<String>,
    /// No change before that.
    next: Option<Instant>,
}

impl AskedKeys {
    /// Takes in a change, if it is time for it. Returns when it will be.
    fn update(&mut self, now: Instant) -> Option<Instant> {
        if *self.received.borrow() == self.keys {
            return None;
        }
        if let Some(next) = self.next.filter(|next| *next > now) {
            return Some(next);
        }
        self.keys = self.received.borrow().clone();
        self.next = Some(now + PACE);
        None
    }
}

/// Watches the rules, which have been listed, and what the manager asks for, and publishes the selection.
pub(crate) async fn follow(
    clock: Clock,
    rules: Arc<RuleStore>,
    allowed: Allowed,
    asked: watch::Receiver<BTreeSet<String>>,
    selections: watch::Sender<Option<Selection>>,
) {
    let mut changed = rules.changes();
    let mut received = asked.clone();
    let mut asked = AskedKeys { received: asked, keys: BTreeSet::new(), next: None };
    // Of keys that nobody names any longer, those that only the manager asked for stay its own.
    let (mut named, mut lent) = (NamedKeys::default(), NamedKeys::default());
    loop {
        changed.mark_unchanged();
        received.mark_unchanged();
        let now = clock.now();
        let keys = rules.all().iter().flat_map(|rule| keys_of(rule)).collect();
        let due = asked.update(now);
        let next = [named.update(keys, now), lent.update(asked.keys.clone(), now), due];
        let selection = Selection::new(&allowed, named.keys(), &lent.keys());
        selections.send_if_modified(|current| {
            let changed = current.as_ref() != Some(&selection);
            if changed {
                let keys = selection.named.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
                let withheld = selection.withheld.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
                info!(keys, withheld, "annotations named by rules changed");
                *current = Some(selection);
            }
            changed
        });
        tokio::select! {
            biased;
            () = waits::until(next.into_iter().flatten().min()) => {}
            () = waits::changed(&mut changed) => tokio::time::sleep(SETTLE).await,
            () = waits::changed(&mut received) => tokio::time::sleep(SETTLE).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn set(keys: &[&str]) -> BTreeSet<String> {
        keys.iter().map(ToString::to_string).collect()
    }

    fn patterns(texts: &[&str]) -> Arc<[Pattern]> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn selection(always: &[&str], offered: &[&str], named: &[&str], asked: &[&str]) -> Selection {
        let allowed = Allowed { always: patterns(always), asked: patterns(offered) };
        Selection::new(&allowed, set(named), &set(asked))
    }

    #[test]
    fn patterns_select_keys() {
        let sends =
            |texts: &[&str], named: &[&str], key: &str| selection(texts, &[], named, &[]).includes(key);
        assert!(!sends(&[], &[], "example.com/a"));
        assert!(sends(&[], &["example.com/a"], "example.com/a"));
        assert!(!sends(&[], &["example.com/a"], "example.com/ab"));
        assert!(sends(&["example.com/*"], &[], "example.com/a"));
        assert!(!sends(&["example.com/*"], &[], "example.community/a"));
        assert!(sends(&["a", "*"], &[], "x"));
        for never in [&["*"][..], &["kubectl.kubernetes.io/*"]] {
            assert!(!sends(never, &[LAST_APPLIED], LAST_APPLIED), "it is never sent");
        }
    }

    #[test]
    fn the_manager_gets_what_it_asks_for_and_the_command_line_allows() {
        let of = |offered: &[&str], asked: &[&str]| selection(&["always"], offered, &["named"], asked);
        let said = |selection: &Selection| {
            let statement = selection.statement();
            let withheld: Vec<String> = statement.withheld().map(str::to_owned).collect();
            (statement.sent().collect::<Vec<_>>(), withheld)
        };
        let texts = |texts: &[&str]| texts.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(said(&of(&["*"], &[])), (texts(&["always", "named"]), texts(&[])), "nothing unasked");
        assert_eq!(
            said(&of(&[], &["x"])),
            (texts(&["always", "named"]), texts(&["x"])),
            "nothing by default"
        );
        assert_eq!(said(&of(&["x"], &["x", "y"])), (texts(&["always", "named", "x"]), texts(&["y"])));
        assert_eq!(said(&of(&[], &["always", "named"])).1, texts(&[]), "those are sent anyway");
        assert_eq!(said(&of(&["*"], &[LAST_APPLIED])).1, texts(&[LAST_APPLIED]));
    }

    #[test]
    fn what_is_too_large_is_withheld_if_only_the_manager_asks_for_it() {
        let large = "x".repeat(MAX_ASKED_VALUE + 1);
        let mut workload = crate::pod::workload(
            serde_json::from_value(json!({"metadata": {"uid": "u", "annotations": {
                "large": large, "named": large, "small": &large[1..], "other": ""}}}))
            .unwrap(),
        )
        .unwrap();
        let selection = selection(&[], &["*"], &["named"], &["large", "small", "named"]);
        selection.apply(&mut workload);
        assert_eq!(workload.annotations.keys().collect::<Vec<_>>(), ["named", "small"]);
        assert_eq!(workload.withheld, ["large".into()]);
        let once = workload.clone();
        selection.apply(&mut workload);
        assert_eq!(workload, once, "it stays as it is");
        Selection::default().apply(&mut workload);
        assert_eq!((workload.annotations.is_empty(), workload.withheld.is_empty()), (true, true));
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_manager_asks_for_changes_at_a_pace() {
        let (sender, received) = watch::channel(BTreeSet::new());
        let mut asked = AskedKeys { received, keys: BTreeSet::new(), next: None };
        let begin = Instant::now();
        assert_eq!((asked.update(begin), asked.keys.len()), (None, 0));
        sender.send_replace(set(&["a"]));
        assert_eq!((asked.update(begin), &asked.keys), (None, &set(&["a"])), "the first one at once");
        sender.send_replace(set(&["b"]));
        assert_eq!((asked.update(begin), &asked.keys), (Some(begin + PACE), &set(&["a"])));
        assert_eq!((asked.update(begin + PACE), &asked.keys), (None, &set(&["b"])));
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
        let of = |named: &[&str]| selection(&[], &[], named, &[]);
        assert!(of(&["a", "b"]).covers(&of(&["a"])));
        assert!(!of(&["a"]).covers(&of(&["a", "b"])));
        assert!(of(&[]).covers(&of(&[LAST_APPLIED])), "it is never sent");
        assert_eq!(of(&["a", "b"]).within(&of(&["b", "c"])), of(&["b"]));
    }
}
