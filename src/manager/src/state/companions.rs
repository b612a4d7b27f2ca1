//! The companions of one namespace, by key and counted by rule. What is newer is decided before it comes here, by the
//! [`Feed`](outrigger_runtime::cache::Feed) of their kind.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use outrigger_core::companion::Observed;
use outrigger_core::ids::RuleName;
use outrigger_core::index::CompanionKey;
use outrigger_core::template::Kind;

use super::rollout::Standing;

/// How many companions a rule has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// They exist and are not being deleted.
    pub created: i64,
    /// Of these, those that are ready: Pods whose Ready condition is true, claims that have devices.
    pub ready: i64,
    /// Of these, claims that no Pod has used yet. They wait for nobody, and nobody for them.
    pub idle: i64,
    /// Besides these, claims that are being deleted. They stay as long as Pods use them.
    pub leaving: i64,
}

impl Counts {
    /// What a user has to know of claims that can't go, to be put after what else there is to say; empty without any. Nothing
    /// deletes the Pods that use them: those may be anybody's.
    pub fn leaving_note(&self) -> String {
        match self.leaving {
            0 => String::new(),
            1 => {
                "; 1 claim that is being deleted waits for the Pods that use it: delete those Pods".to_owned()
            }
            n => format!(
                "; {n} claims that are being deleted wait for the Pods that use them: delete those Pods"
            ),
        }
    }
}

/// Companions by key, counted by rule.
#[derive(Debug, Default)]
pub struct CompanionCache {
    by_key: HashMap<CompanionKey, Observed>,
    /// A second object with the key of one in `by_key`, of another kind: two replicas may have made one each, when a rule's
    /// template became one of another kind.
    twins: HashMap<CompanionKey, Observed>,
    by_rule: HashMap<RuleName, BTreeSet<Arc<str>>>,
    counts: HashMap<RuleName, Counts>,
    /// Those that the scheduler has found no Node for: few, and looked at often.
    unplaced: HashMap<RuleName, BTreeSet<Arc<str>>>,
    /// How many that exist and are not being deleted were made from which template, by its hash.
    templates: HashMap<RuleName, HashMap<String, i64>>,
    /// Which companion an object of a kind is, by the object's name.
    names: HashMap<(Kind, Box<str>), CompanionKey>,
}

impl CompanionCache {
    /// The companion with this key.
    pub fn get(&self, key: &CompanionKey) -> Option<&Observed> {
        self.by_key.get(key)
    }

    /// What has the key of a companion besides it, and is of another kind. There should be none.
    pub fn twin(&self, key: &CompanionKey) -> Option<&Observed> {
        self.twins.get(key)
    }

    /// An object is a companion and looks like this. Returns the key of the companion that it was before, if it was another.
    pub fn applied(&mut self, name: &str, key: CompanionKey, observed: Observed) -> Option<CompanionKey> {
        let kind = observed.kind;
        let before = self.names.insert((kind, name.into()), key.clone()).filter(|before| *before != key);
        if let Some(before) = &before {
            self.drop_if(before, |o| o.kind == kind);
        }
        self.put(key, observed);
        before
    }

    /// An object is gone, or is no companion any more. Returns the key of the companion that it was.
    pub fn gone(&mut self, kind: Kind, name: &str) -> Option<CompanionKey> {
        let key = self.names.remove(&(kind, name.into()))?;
        self.drop_if(&key, |o| o.kind == kind);
        Some(key)
    }

    /// A delete of ours was accepted.
    pub fn deleting(&mut self, key: &CompanionKey, uid: &str) {
        if let Some(observed) = self.by_key.get(key).filter(|o| o.uid == uid) {
            let observed = Observed { terminating: true, ready: false, ..observed.clone() };
            self.set(key.clone(), Some(observed));
        }
        if let Some(twin) = self.twins.get_mut(key).filter(|o| o.uid == uid) {
            twin.terminating = true;
        }
    }

    /// How many companions a rule has.
    pub fn counts(&self, rule: &RuleName) -> Counts {
        self.counts.get(rule).copied().unwrap_or_default()
    }

    /// How many companions of a rule were made from the template with this hash, and are not being deleted.
    pub fn updated(&self, rule: &RuleName, hash: &str) -> i64 {
        self.templates.get(rule).and_then(|of_rule| of_rule.get(hash)).copied().unwrap_or_default()
    }

    /// How a rule's companions stand for a rollout; `has_dpu` tells whether a DPU is in a host.
    pub fn standing(&self, rule: &RuleName, has_dpu: impl Fn(&str) -> bool) -> Standing {
        let counts = self.counts(rule);
        let exist = self.by_rule.get(rule).map_or(0, BTreeSet::len);
        let ready = usize::try_from(counts.ready).unwrap_or_default();
        let idle = usize::try_from(counts.idle).unwrap_or_default();
        let mut unready = exist.saturating_sub(ready).saturating_sub(idle);
        let lost = |o: &Observed| o.host.as_deref().is_some_and(|host| !has_dpu(host));
        unready = unready.saturating_sub(self.unplaced(rule).filter(|(_, o)| lost(o)).count());
        Standing { exist, unready }
    }

    /// The companions of a rule that the scheduler has found no Node for.
    pub fn unplaced<'a>(
        &'a self,
        rule: &'a RuleName,
    ) -> impl Iterator<Item = (CompanionKey, &'a Observed)> + 'a {
        self.unplaced.get(rule).into_iter().flatten().filter_map(|workload| {
            let key = CompanionKey { rule: rule.clone(), workload: workload.clone() };
            let observed = self.by_key.get(&key)?;
            Some((key, observed))
        })
    }

    /// The companions of a rule.
    pub fn of_rule<'a>(
        &'a self,
        rule: &'a RuleName,
    ) -> impl Iterator<Item = (CompanionKey, &'a Observed)> + 'a {
        self.by_rule.get(rule).into_iter().flatten().filter_map(|workload| {
            let key = CompanionKey { rule: rule.clone(), workload: workload.clone() };
            let observed = self.by_key.get(&key)?;
            Some((key, observed))
        })
    }

    /// All keys.
    pub fn keys(&self) -> impl Iterator<Item = &CompanionKey> {
        self.by_key.keys()
    }

    /// Files an object beside one of another kind that has its key.
    fn put(&mut self, key: CompanionKey, observed: Observed) {
        if self.by_key.get(&key).is_some_and(|o| o.kind != observed.kind) {
            self.twins.insert(key, observed);
        } else {
            self.set(key, Some(observed));
        }
    }

    /// Forgets the objects with a key that are meant; a twin takes the place of the other.
    fn drop_if(&mut self, key: &CompanionKey, meant: impl Fn(&Observed) -> bool) {
        if self.twins.get(key).is_some_and(&meant) {
            self.twins.remove(key);
        }
        if self.by_key.get(key).is_some_and(&meant) {
            let twin = self.twins.remove(key);
            self.set(key.clone(), None);
            if twin.is_some() {
                self.set(key.clone(), twin);
            }
        }
    }

    fn set(&mut self, key: CompanionKey, new: Option<Observed>) {
        let worth = |o: &Observed| Counts {
            created: i64::from(!o.terminating),
            ready: i64::from(!o.terminating && o.ready),
            idle: i64::from(!o.terminating && !o.ready && o.kind == Kind::Claim),
            leaving: i64::from(o.terminating && o.kind == Kind::Claim),
        };
        let gained = new.as_ref().map(worth).unwrap_or_default();
        let lost = self.by_key.get(&key).map(worth).unwrap_or_default();
        let counts = self.counts.entry(key.rule.clone()).or_default();
        counts.created += gained.created - lost.created;
        counts.ready += gained.ready - lost.ready;
        counts.idle += gained.idle - lost.idle;
        counts.leaving += gained.leaving - lost.leaving;
        self.count_templates(&key, new.as_ref());
        self.note_unplaced(&key, new.as_ref().is_some_and(|o| o.unplaced));
        let of_rule = self.by_rule.entry(key.rule.clone()).or_default();
        match new {
            Some(new) => {
                of_rule.insert(key.workload.clone());
                self.by_key.insert(key, new);
            }
            None => {
                of_rule.remove(&key.workload);
                if of_rule.is_empty() {
                    self.by_rule.remove(&key.rule);
                    self.counts.remove(&key.rule);
                }
                self.by_key.remove(&key);
            }
        }
    }
}

impl CompanionCache {
    fn note_unplaced(&mut self, key: &CompanionKey, unplaced: bool) {
        if unplaced {
            self.unplaced.entry(key.rule.clone()).or_default().insert(key.workload.clone());
        } else if let Some(of_rule) = self.unplaced.get_mut(&key.rule) {
            of_rule.remove(&key.workload);
            if of_rule.is_empty() {
                self.unplaced.remove(&key.rule);
            }
        }
    }

    fn count_templates(&mut self, key: &CompanionKey, new: Option<&Observed>) {
        fn template(o: Option<&Observed>) -> Option<&String> {
            o.filter(|o| !o.terminating).map(|o| &o.template_hash)
        }
        let (before, now) = (template(self.by_key.get(key)), template(new));
        if before == now {
            return;
        }
        let of_rule = self.templates.entry(key.rule.clone()).or_default();
        if let Some(now) = now {
            *of_rule.entry(now.clone()).or_default() += 1;
        }
        if let Some(before) = before
            && let Some(count) = of_rule.get_mut(before)
        {
            *count -= 1;
            if *count == 0 {
                of_rule.remove(before);
            }
        }
        if of_rule.is_empty() {
            self.templates.remove(&key.rule);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(rule: &str, workload: &str) -> CompanionKey {
        CompanionKey { rule: RuleName::new(rule).unwrap(), workload: workload.into() }
    }

    fn pod(uid: &str, ready: bool) -> Observed {
        Observed { uid: uid.into(), ready, ..Observed::default() }
    }

    #[test]
    fn an_object_without_owner_is_no_companion() {
        let mut store = CompanionCache::default();
        let (k, other) = (key("r", "w"), key("r", "v"));
        assert_eq!(store.applied("p", k.clone(), pod("u", true)), None);
        assert_eq!(store.gone(Kind::Pod, "q"), None);
        assert_eq!(store.gone(Kind::Claim, "p"), None);
        assert_eq!(store.gone(Kind::Pod, "p"), Some(k.clone()));
        assert_eq!(store.get(&k), None);
        // Somebody gives it to another rule.
        store.applied("p", k.clone(), pod("u", true));
        assert_eq!(store.applied("p", other.clone(), pod("u", true)), Some(k.clone()));
        assert_eq!((store.get(&k), store.keys().collect::<Vec<_>>()), (None, vec![&other]));
        store.gone(Kind::Pod, "p");
        assert!(store.names.is_empty() && store.by_key.is_empty() && store.counts.is_empty());
    }

    #[test]
    fn counts_follow() {
        let mut store = CompanionCache::default();
        let (a, b) = (key("r", "a"), key("r", "b"));
        store.applied("a", a.clone(), pod("1", true));
        store.applied("b", b.clone(), pod("2", false));
        assert_eq!(store.counts(&a.rule), Counts { created: 2, ready: 1, idle: 0, leaving: 0 });
        assert_eq!(store.updated(&a.rule, ""), 2);
        store.applied("b", b, pod("2", true));
        store.deleting(&a, "1");
        assert_eq!(store.counts(&a.rule), Counts { created: 1, ready: 1, idle: 0, leaving: 0 });
        assert_eq!(store.updated(&a.rule, ""), 1);
        assert_eq!(store.of_rule(&a.rule).count(), 2);
        store.gone(Kind::Pod, "a");
        store.gone(Kind::Pod, "b");
        assert_eq!(store.counts(&a.rule), Counts::default());
        assert_eq!(store.of_rule(&a.rule).count(), 0);
    }

    #[test]
    fn claims_that_cannot_go_are_counted_and_told() {
        let mut store = CompanionCache::default();
        let (a, b) = (key("r", "a"), key("r", "b"));
        let claim = |uid: &str| Observed { kind: Kind::Claim, ..pod(uid, true) };
        let leaving = |store: &CompanionCache| store.counts(&a.rule).leaving;
        for (key, uid) in [(&a, "1"), (&b, "2")] {
            store.applied(uid, key.clone(), claim(uid));
        }
        assert_eq!((leaving(&store), store.counts(&a.rule).leaving_note()), (0, String::new()));
        store.deleting(&a, "1");
        assert!(store.counts(&a.rule).leaving_note().starts_with("; 1 claim that is being deleted waits"));
        // The watch shows the same, and the other.
        store.applied("1", a.clone(), Observed { terminating: true, ..claim("1") });
        store.applied("2", b, Observed { terminating: true, ..claim("2") });
        let note = store.counts(&a.rule).leaving_note();
        assert!(note.contains("2 claims") && note.contains("delete those Pods"), "{note}");
        store.gone(Kind::Claim, "1");
        // A Pod that is being deleted goes by itself.
        store.applied("3", a.clone(), Observed { terminating: true, ..pod("3", false) });
        assert_eq!(leaving(&store), 1);
    }

    #[test]
    fn two_of_one_key_are_both_known_until_one_is_gone() {
        let mut store = CompanionCache::default();
        let k = key("r", "w");
        let claim = |uid: &str| Observed { kind: Kind::Claim, ..pod(uid, false) };
        store.applied("n", k.clone(), pod("p", true));
        store.applied("n", k.clone(), claim("c"));
        let uids = |store: &CompanionCache| {
            let uid = |o: Option<&Observed>| o.map(|o| o.uid.clone());
            (uid(store.get(&k)), uid(store.twin(&k)))
        };
        assert_eq!(uids(&store), (Some("p".into()), Some("c".into())));
        store.deleting(&k, "c");
        assert!(
            store.twin(&k).is_some_and(|o| o.terminating) && store.get(&k).is_some_and(|o| !o.terminating)
        );
        store.gone(Kind::Pod, "n");
        assert_eq!(uids(&store), (Some("c".into()), None));
        store.applied("n", k.clone(), claim("c"));
        assert_eq!(store.counts(&k.rule), Counts { created: 1, ready: 0, idle: 1, leaving: 0 });
        assert_eq!(
            store.standing(&k.rule, |_| true),
            Standing { exist: 1, unready: 0 },
            "it waits for nobody"
        );
        assert_eq!(store.gone(Kind::Claim, "n"), Some(k.clone()));
        assert_eq!((uids(&store), store.keys().count()), ((None, None), 0));
    }
}
