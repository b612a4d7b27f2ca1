//! The companions of one namespace as the watch shows them, corrected by the answers to our own writes.

use std::collections::{BTreeSet, HashMap, HashSet};
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
pub struct Store {
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
    /// What the watch of each kind has shown.
    watches: HashMap<Kind, Shown>,
}

/// What a watch has shown.
#[derive(Debug, Default)]
struct Shown {
    /// Keys since it began a new list; `None` outside of a list.
    listing: Option<HashSet<CompanionKey>>,
    /// The newest resourceVersion.
    seen: u64,
}

impl Store {
    /// The companion with this key.
    pub fn get(&self, key: &CompanionKey) -> Option<&Observed> {
        self.by_key.get(key)
    }

    /// What has the key of a companion besides it, and is of another kind. There should be none.
    pub fn twin(&self, key: &CompanionKey) -> Option<&Observed> {
        self.twins.get(key)
    }

    /// The watch shows a companion.
    pub fn applied(&mut self, key: CompanionKey, observed: Observed, resource_version: Option<&str>) {
        let watch = self.saw(observed.kind, resource_version);
        if let Some(listing) = &mut watch.listing {
            listing.insert(key.clone());
        }
        self.put(key, observed);
    }

    /// The watch of a kind shows that a companion is gone.
    pub fn deleted(&mut self, key: &CompanionKey, kind: Kind, uid: &str, resource_version: Option<&str>) {
        self.saw(kind, resource_version);
        // The event may be about an earlier one of that name.
        self.drop_if(key, |o| o.uid == uid);
    }

    /// The watch of a kind shows that an object is nobody's companion any more: somebody has taken its owner away. Returns the
    /// key it had. Rare enough to search for it.
    pub fn disowned(
        &mut self,
        kind: Kind,
        uid: &str,
        resource_version: Option<&str>,
    ) -> Option<CompanionKey> {
        self.saw(kind, resource_version);
        let mut all = self.by_key.iter().chain(&self.twins);
        let key = all.find(|(_, o)| o.uid == uid).map(|(key, _)| key.clone())?;
        self.drop_if(&key, |o| o.uid == uid);
        Some(key)
    }

    /// An answer to a write or a read of ours shows a companion. It counts only where it is newer than everything that
    /// the watch has shown: otherwise the watch has shown it already, and may even have shown its end since.
    pub fn answered(&mut self, key: CompanionKey, observed: Observed, resource_version: Option<&str>) {
        let seen = self.watches.get(&observed.kind).map_or(0, |watch| watch.seen);
        if version(resource_version) > seen {
            self.put(key, observed);
        }
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

    /// The watch of a kind begins a new list.
    pub fn list_begins(&mut self, kind: Kind) {
        self.watches.entry(kind).or_default().listing = Some(HashSet::new());
    }

    /// The list is complete: what it didn't show is gone. Returns the keys that are.
    pub fn list_ends(&mut self, kind: Kind) -> Vec<CompanionKey> {
        let listed = self.watches.get_mut(&kind).and_then(|watch| watch.listing.take());
        let Some(listed) = listed else { return Vec::new() };
        let all = self.by_key.iter().chain(&self.twins).filter(|(_, o)| o.kind == kind);
        let gone: Vec<_> =
            all.filter(|(key, _)| !listed.contains(*key)).map(|(key, _)| key.clone()).collect();
        for key in &gone {
            self.drop_if(key, |o| o.kind == kind);
        }
        gone
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

    fn saw(&mut self, kind: Kind, resource_version: Option<&str>) -> &mut Shown {
        let watch = self.watches.entry(kind).or_default();
        watch.seen = watch.seen.max(version(resource_version));
        watch
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

impl Store {
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

/// resourceVersions of one kind are ordered integers (KEP-5504); one that isn't is taken for old, which is safe.
pub(crate) fn version(resource_version: Option<&str>) -> u64 {
    resource_version.and_then(|v| v.parse().ok()).unwrap_or(0)
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
    fn an_answer_that_the_watch_has_overtaken_does_not_count() {
        let mut store = Store::default();
        let k = key("r", "w");
        store.applied(k.clone(), pod("u", false), Some("5"));
        store.deleted(&k, Kind::Pod, "u", Some("6"));
        store.answered(k.clone(), pod("u", false), Some("5"));
        assert_eq!(store.get(&k), None, "no ghost");
        store.answered(k.clone(), pod("v", false), Some("7"));
        assert!(store.get(&k).is_some());
        store.deleted(&k, Kind::Pod, "u", Some("8"));
        assert_eq!(store.get(&k).unwrap().uid, "v", "the end of an earlier Pod is not this one's");
    }

    #[test]
    fn a_pod_without_owner_is_nobodys() {
        let mut store = Store::default();
        let k = key("r", "w");
        store.applied(k.clone(), pod("u", true), Some("1"));
        assert_eq!(store.disowned(Kind::Pod, "other", Some("2")), None);
        assert_eq!(store.disowned(Kind::Pod, "u", Some("3")), Some(k.clone()));
        assert_eq!(store.get(&k), None);
    }

    #[test]
    fn counts_follow() {
        let mut store = Store::default();
        let (a, b) = (key("r", "a"), key("r", "b"));
        store.applied(a.clone(), pod("1", true), None);
        store.applied(b.clone(), pod("2", false), None);
        assert_eq!(store.counts(&a.rule), Counts { created: 2, ready: 1, idle: 0, leaving: 0 });
        assert_eq!(store.updated(&a.rule, ""), 2);
        store.applied(b.clone(), pod("2", true), None);
        store.deleting(&a, "1");
        assert_eq!(store.counts(&a.rule), Counts { created: 1, ready: 1, idle: 0, leaving: 0 });
        assert_eq!(store.updated(&a.rule, ""), 1);
        assert_eq!(store.of_rule(&a.rule).count(), 2);
        store.deleted(&a, Kind::Pod, "1", None);
        store.deleted(&b, Kind::Pod, "2", None);
        assert_eq!(store.counts(&a.rule), Counts::default());
        assert_eq!(store.of_rule(&a.rule).count(), 0);
    }

    #[test]
    fn claims_that_cannot_go_are_counted_and_told() {
        let mut store = Store::default();
        let (a, b) = (key("r", "a"), key("r", "b"));
        let claim = |uid: &str| Observed { kind: Kind::Claim, ..pod(uid, true) };
        let leaving = |store: &Store| store.counts(&a.rule).leaving;
        for (key, uid) in [(&a, "1"), (&b, "2")] {
            store.applied(key.clone(), claim(uid), None);
        }
        assert_eq!((leaving(&store), store.counts(&a.rule).leaving_note()), (0, String::new()));
        store.deleting(&a, "1");
        assert!(store.counts(&a.rule).leaving_note().starts_with("; 1 claim that is being deleted waits"));
        // The watch shows the same, and the other.
        store.applied(a.clone(), Observed { terminating: true, ..claim("1") }, None);
        store.applied(b, Observed { terminating: true, ..claim("2") }, None);
        let note = store.counts(&a.rule).leaving_note();
        assert!(note.contains("2 claims") && note.contains("delete those Pods"), "{note}");
        store.deleted(&a, Kind::Claim, "1", None);
        // A Pod that is being deleted goes by itself.
        store.applied(a.clone(), Observed { terminating: true, ..pod("3", false) }, None);
        assert_eq!(leaving(&store), 1);
    }

    #[test]
    fn a_new_list_removes_what_it_does_not_show() {
        let mut store = Store::default();
        let (a, b) = (key("r", "a"), key("r", "b"));
        store.applied(a.clone(), pod("1", true), None);
        store.applied(b.clone(), pod("2", true), None);
        store.list_begins(Kind::Pod);
        store.applied(b.clone(), pod("2", true), None);
        assert_eq!(store.list_ends(Kind::Pod), [a]);
        assert_eq!(store.keys().collect::<Vec<_>>(), [&b]);
    }

    #[test]
    fn two_of_one_key_are_both_known_until_one_is_gone() {
        let mut store = Store::default();
        let k = key("r", "w");
        let claim = |uid: &str| Observed { kind: Kind::Claim, ..pod(uid, false) };
        store.applied(k.clone(), pod("p", true), Some("5"));
        store.applied(k.clone(), claim("c"), Some("4"));
        let uids = |store: &Store| {
            let uid = |o: Option<&Observed>| o.map(|o| o.uid.clone());
            (uid(store.get(&k)), uid(store.twin(&k)))
        };
        assert_eq!(uids(&store), (Some("p".into()), Some("c".into())));
        // Each kind's list says nothing of the other's.
        store.list_begins(Kind::Claim);
        store.applied(k.clone(), claim("c"), Some("6"));
        assert_eq!(store.list_ends(Kind::Claim), []);
        store.deleting(&k, "c");
        assert!(
            store.twin(&k).is_some_and(|o| o.terminating) && store.get(&k).is_some_and(|o| !o.terminating)
        );
        store.deleted(&k, Kind::Pod, "p", Some("7"));
        assert_eq!(uids(&store), (Some("c".into()), None));
        store.applied(k.clone(), claim("c"), Some("8"));
        assert_eq!(store.counts(&k.rule), Counts { created: 1, ready: 0, idle: 1, leaving: 0 });
        assert_eq!(
            store.standing(&k.rule, |_| true),
            Standing { exist: 1, unready: 0 },
            "it waits for nobody"
        );
        store.list_begins(Kind::Claim);
        assert_eq!(store.list_ends(Kind::Claim), std::slice::from_ref(&k));
        assert_eq!((uids(&store), store.keys().count()), ((None, None), 0));
    }
}
