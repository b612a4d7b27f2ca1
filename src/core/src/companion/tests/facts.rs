//! Facts about workloads in annotations of their companions.

use super::*;

#[test]
fn facts_change_in_place() {
    let r = rule(|s| {
        for (key, name) in [(".state.extra.labels.v", "own"), (".state.extra.labels.v", "v")] {
            s.injections.push(InjectionSpec::new(key, name));
        }
    });
    let with = |value: &str| {
        let mut w = (*workload(Some("host-a"))).clone();
        w.labels.set("v", value);
        Arc::new(w)
    };
    let o = observed(&r, &with("1"));
    let Action::Annotate(patch) = planned(&r, &with("2"), Some(&o)) else { panic!("no patch") };
    assert_eq!(
        patch,
        json!({"metadata": {"uid": "pod-uid", "annotations": {"own": "2", "v": "2",
            keys::INJECTED: r#"["node","own","v"]"#}}})
    );
    let Action::Annotate(patch) = planned(&r, &workload(Some("host-a")), Some(&o)) else {
        panic!("no patch")
    };
    assert_eq!(
        patch["metadata"]["annotations"],
        json!({"own": "1", "v": null, keys::INJECTED: r#"["node"]"#}),
        "what the template says itself shows again"
    );
}

#[test]
fn facts_follow_the_workload_while_a_companion_waits_for_the_next_template() {
    let labels = |pairs: &[(&str, &str)]| {
        let mut w = (*workload(Some("host-a"))).clone();
        pairs.iter().for_each(|(key, value)| w.labels.set(key, value));
        w
    };
    let injects = |names: &[&str]| {
        let names: Vec<_> = names
            .iter()
            .map(|name| InjectionSpec::new(&format!(".state.extra.labels.{name}"), name))
            .collect();
        move |s: &mut RuleSpec| s.injections = names
    };
    let before = rule(injects(&["changes", "goes", "stays"]));
    let o = observed(&before, &labels(&[("changes", "1"), ("goes", "1"), ("stays", "1")]));
    let next = rule(|s| {
        injects(&["changes", "comes", "goes"])(s);
        s.template =
            json!({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "next"}]}}).into();
    });
    let now = labels(&[("changes", "2"), ("comes", "2"), ("stays", "2")]);
    let patch = while_it_waits(&next, &now, &o).unwrap();
    assert_eq!(
        patch,
        json!({"metadata": {"uid": "pod-uid", "annotations": {"changes": "2", "comes": "2", "goes": null,
            keys::INJECTED: r#"["changes","comes","stays"]"#}}}),
        "the earlier template may read what the rule no longer injects, and has another content hash"
    );
    let facts = [("changes", "2"), ("comes", "2"), ("stays", "1")];
    let facts: BTreeMap<_, _> = facts.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let after = Observed { injected: Some(facts.keys().cloned().collect()), annotations: facts, ..o.clone() };
    assert_eq!(while_it_waits(&next, &now, &after), None);
    let of_former = Observed { rule_uid: "former".into(), ..o };
    assert_eq!(while_it_waits(&next, &now, &of_former), None);
}

#[test]
fn too_much_is_refused_with_both_sizes() {
    let r = rule(|s| s.injections.push(InjectionSpec::new("", "all")));
    let mut w = (*workload(Some("host-a"))).clone();
    let small = Arc::new(w.clone());
    w.annotations.set("big", &"x".repeat(MAX_ANNOTATIONS));
    let big = Arc::new(w);
    for observed in [None, Some(observed(&r, &small))] {
        let Action::Refuse(Cause::AnnotationsTooLarge, message) = planned(&r, &big, observed.as_ref()) else {
            panic!("not refused")
        };
        assert!(message.contains("ns/web") && message.contains("262144"), "{message}");
    }
    assert_eq!(annotations_size(&[("ab".to_owned(), "cde".to_owned())].into()), 5);
}

#[test]
fn annotations_of_exactly_the_most_bytes_are_allowed() {
    let r = rule(|s| s.injections.push(InjectionSpec::new(".state.extra.annotations.big", "big")));
    let with = |bytes: usize| {
        let mut w = (*workload(Some("host-a"))).clone();
        w.annotations.set("big", &"x".repeat(bytes));
        Arc::new(w)
    };
    // One that is created, and one that gets another fact.
    for observed in [None, Some(observed(&r, &with(1)))] {
        let refusal = |bytes| match planned(&r, &with(bytes), observed.as_ref()) {
            Action::Refuse(_, message) => Some(message),
            _ => None,
        };
        let message = refusal(MAX_ANNOTATIONS).unwrap();
        let size: usize = message.split(' ').find_map(|word| word.parse().ok()).unwrap();
        let most = 2 * MAX_ANNOTATIONS - size;
        assert_eq!([most, most + 1].map(|bytes| refusal(bytes).is_some()), [false, true], "{message}");
    }
}
