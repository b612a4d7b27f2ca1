use super::*;

fn key(rule: &str, workload: &str) -> CompanionKey {
    CompanionKey { rule: RuleName::new(rule).unwrap(), workload: workload.into() }
}

fn pod(uid: &str, ready: bool) -> Observed {
    Observed { uid: uid.into(), ready, ..Observed::default() }
}

#[test]
fn an_object_without_owner_is_no_companion() {
    let mut cache = CompanionCache::default();
    let (k, other) = (key("r", "w"), key("r", "v"));
    assert_eq!(cache.applied("p", k.clone(), pod("u", true)), None);
    assert_eq!(cache.deleted(Kind::Pod, "q"), None);
    assert_eq!(cache.deleted(Kind::Claim, "p"), None);
    assert_eq!(cache.deleted(Kind::Pod, "p"), Some(k.clone()));
    assert_eq!(cache.get(&k), None);
    // Somebody gives it to another rule.
    cache.applied("p", k.clone(), pod("u", true));
    assert_eq!(cache.applied("p", other.clone(), pod("u", true)), Some(k.clone()));
    assert_eq!((cache.get(&k), cache.keys().collect::<Vec<_>>()), (None, vec![other.clone()]));
    cache.deleted(Kind::Pod, "p");
    // That there was one is remembered as long as it may be created again.
    assert!([&k, &other].iter().all(|key| cache.has_run(key)));
    [&k, &other].iter().for_each(|key| cache.unwanted(key));
    assert!(cache.names.is_empty() && cache.by_rule.is_empty());
}

#[test]
fn companions_on_single_dpus_are_found_by_their_workload() {
    let mut cache = CompanionCache::default();
    let w = key("r", "w");
    // Labels that come before and after it, and another rule's.
    let others =
        [key("r", "w").whole(), key("r", "w-1").on("d"), key("r", "w1").on("d"), key("s", "w").on("d")];
    let own = [w.on("d1"), w.on("d2")];
    for (i, key) in others.iter().chain(&own).enumerate() {
        cache.applied(&i.to_string(), key.clone(), pod(&i.to_string(), true));
    }
    assert_eq!(cache.on_dpus(&w).collect::<Vec<_>>(), own);
    assert_eq!(cache.on_dpus(&own[0]).collect::<Vec<_>>(), own);
    assert_eq!(cache.counts(&w.rule), Counts { created: 5, ready: 5, ..Counts::default() });
    assert_eq!(cache.on_dpus(&key("r", "v")).count(), 0);
}

#[test]
fn counts_follow() {
    let mut cache = CompanionCache::default();
    let (a, b) = (key("r", "a"), key("r", "b"));
    cache.applied("a", a.clone(), pod("1", true));
    cache.applied("b", b.clone(), pod("2", false));
    assert_eq!(cache.counts(&a.rule), Counts { created: 2, ready: 1, ..Counts::default() });
    assert_eq!(cache.updated(&a.rule, |hash, _| hash.is_empty()), 2);
    cache.applied("b", b, pod("2", true));
    cache.deleting(&a, "1");
    assert_eq!(cache.counts(&a.rule), Counts { created: 1, ready: 1, ..Counts::default() });
    assert_eq!(cache.updated(&a.rule, |hash, _| hash.is_empty()), 1);
    assert_eq!(cache.of_rule(&a.rule).count(), 2);
    cache.deleted(Kind::Pod, "a");
    cache.deleted(Kind::Pod, "b");
    assert_eq!(cache.counts(&a.rule), Counts::default());
    assert_eq!(cache.of_rule(&a.rule).count(), 0);
}

#[test]
fn companions_that_outlive_their_workloads_count_by_themselves_and_are_no_concern_of_rollouts() {
    let mut cache = CompanionCache::default();
    let (a, b) = (key("r", "a"), key("r", "b"));
    let unplaced = Observed { unplaced: true, ..pod("1", false) };
    cache.applied("a", a.clone(), unplaced.clone());
    cache.applied("b", b.clone(), pod("2", true));
    assert_eq!((cache.ended(&a.rule), cache.unplaced(&a.rule).count()), (vec![], 1));
    assert_eq!(
        cache.availability(&a.rule, 0, |_| true),
        Availability { existing: 2, unready: 1, ..Availability::default() }
    );
    assert_eq!(cache.unready(&a.rule, |_| true).collect::<Vec<_>>(), [&a.workload]);
    cache.applied("a", a.clone(), Observed { ended: Some(0), ..unplaced.clone() });
    assert_eq!(cache.counts(&a.rule), Counts { created: 1, ready: 1, lingering: 1, ..Counts::default() });
    assert!(cache.counts(&a.rule).lingering_note().starts_with("; 1 more companion outlives"));
    assert_eq!((cache.ended(&a.rule), cache.unplaced(&a.rule).count()), (vec![a.clone()], 0));
    assert_eq!((cache.updated(&a.rule, |hash, _| hash.is_empty()), cache.of_rule(&a.rule).count()), (1, 2));
    assert_eq!(
        cache.availability(&a.rule, 0, |_| true),
        Availability { existing: 1, unready: 0, ..Availability::default() }
    );
    assert_eq!(cache.unready(&a.rule, |_| true).count(), 0);
    cache.applied("b", b, Observed { ended: Some(0), ..pod("2", true) });
    assert!(cache.counts(&a.rule).lingering_note().starts_with("; 2 more companions outlive"));
    // Its workload is there again.
    cache.applied("a", a.clone(), unplaced);
    assert_eq!((cache.ended(&a.rule).len(), cache.counts(&a.rule).created), (1, 1));
    cache.deleted(Kind::Pod, "b");
    assert_eq!(cache.ended(&a.rule), []);
}

#[test]
fn the_oldest_of_the_rule_of_which_most_outlive_their_workloads_give_way() {
    let mut cache = CompanionCache::default();
    let ended = |cache: &mut CompanionCache, rule: &str, end: i64| {
        let name = format!("{rule}{end}");
        let observed = Observed { ended: Some(end), ..pod(&name, true) };
        cache.applied(&name, key(rule, &end.to_string()), observed);
    };
    for end in 0..6 {
        ended(&mut cache, "loud", 10 + end);
    }
    ended(&mut cache, "quiet", 1);
    let beyond = |cache: &CompanionCache, room| {
        let keys = cache.lingering_beyond(room, 9);
        assert!(keys.iter().all(|key| cache.gives_way(key, room)));
        keys.iter().map(|key| key.workload.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(beyond(&cache, 7), [""; 0]);
    assert_eq!(beyond(&cache, 5), ["10", "11"], "not the oldest of all, which is another rule's");
    assert!(!cache.gives_way(&key("quiet", "1"), 5));
    assert_eq!(cache.lingering_beyond(5, 1).len(), 1);
    assert_eq!(beyond(&cache, 0).len(), 7);
    // One that is being deleted gives way already, and one whose workload is there again outlives nothing.
    cache.deleting(&key("loud", "10"), "loud10");
    cache.applied("loud11", key("loud", "11"), pod("loud11", true));
    assert_eq!((beyond(&cache, 5), cache.lingering), (vec![], 5));
    for name in ["loud10", "loud11", "loud12", "loud13", "loud14", "loud15", "quiet1"] {
        cache.deleted(Kind::Pod, name);
    }
    assert_eq!(cache.lingering, 0);
}

#[test]
fn a_companion_has_been_ready_until_it_is_another_one() {
    let mut cache = CompanionCache::default();
    let k = key("r", "w");
    let mut was_ready = |uid: &str, ready| {
        cache.applied("n", k.clone(), pod(uid, ready));
        cache.get(&k).unwrap().was_ready
    };
    let seen = [("a", false), ("a", true), ("a", false), ("b", false), ("b", true)];
    assert_eq!(seen.map(|(uid, ready)| was_ready(uid, ready)), [false, true, true, false, true]);
}

#[test]
fn claims_whose_deletion_waits_are_counted_and_named_in_the_condition() {
    let mut cache = CompanionCache::default();
    let (a, b) = (key("r", "a"), key("r", "b"));
    let claim = |uid: &str| Observed { kind: Kind::Claim, ..pod(uid, true) };
    let leaving = |cache: &CompanionCache| cache.counts(&a.rule).leaving;
    for (key, uid) in [(&a, "1"), (&b, "2")] {
        cache.applied(uid, key.clone(), claim(uid));
    }
    assert_eq!((leaving(&cache), cache.counts(&a.rule).leaving_note()), (0, String::new()));
    cache.deleting(&a, "1");
    assert!(cache.counts(&a.rule).leaving_note().starts_with("; 1 claim that is being deleted waits"));
    // The watch shows the same, and the other.
    cache.applied("1", a.clone(), Observed { terminating: true, ..claim("1") });
    cache.applied("2", b, Observed { terminating: true, ..claim("2") });
    let note = cache.counts(&a.rule).leaving_note();
    assert!(note.contains("2 claims") && note.contains("delete those Pods"), "{note}");
    cache.deleted(Kind::Claim, "1");
    // A Pod that is being deleted goes by itself.
    cache.applied("3", a.clone(), Observed { terminating: true, ..pod("3", false) });
    assert_eq!(leaving(&cache), 1);
}

#[test]
fn two_of_one_key_are_both_known_until_one_is_gone() {
    let mut cache = CompanionCache::default();
    let k = key("r", "w");
    let claim = |uid: &str| Observed { kind: Kind::Claim, ..pod(uid, false) };
    cache.applied("n", k.clone(), pod("p", true));
    cache.applied("n", k.clone(), claim("c"));
    let uids = |cache: &CompanionCache| {
        let uid = |o: Option<&Observed>| o.map(|o| o.uid.clone());
        (uid(cache.get(&k)), uid(cache.duplicate(&k)))
    };
    assert_eq!(uids(&cache), (Some("p".into()), Some("c".into())));
    cache.deleting(&k, "c");
    assert!(
        cache.duplicate(&k).is_some_and(|o| o.terminating) && cache.get(&k).is_some_and(|o| !o.terminating)
    );
    cache.deleted(Kind::Pod, "n");
    assert_eq!(uids(&cache), (Some("c".into()), None));
    cache.applied("n", k.clone(), claim("c"));
    assert_eq!(cache.counts(&k.rule), Counts { created: 1, idle: 1, ..Counts::default() });
    assert_eq!(
        cache.availability(&k.rule, 0, |_| true),
        Availability { existing: 1, unready: 0, ..Availability::default() },
        "it waits for nobody"
    );
    assert_eq!(cache.deleted(Kind::Claim, "n"), Some(k.clone()));
    assert_eq!((uids(&cache), cache.keys().count()), ((None, None), 0));
}
