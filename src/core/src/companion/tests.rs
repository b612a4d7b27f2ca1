use serde_json::json;

use super::*;
use crate::ids::{RuleName, WorkloadId};
use crate::index::TenantIndex;
use crate::rule::{InjectionSpec, RuleSpec};
use std::sync::Arc;

mod facts;
mod resize;

fn rule(change: impl FnOnce(&mut RuleSpec)) -> Arc<Rule> {
    let mut spec = RuleSpec {
        uid: "rule-uid".into(),
        generation: 3,
        injections: vec![InjectionSpec::new(".state.nodeName", "node")],
        template: json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "no", "namespace": "no", "generateName": "no", "labels": {"app": "x"},
                "annotations": {"own": "1"}, "finalizers": ["no"]},
            "spec": {"containers": [{"name": "c"}], "schedulingGates": [{"name": "mine"}], "unknown": {"a": 1}}}).into(),
        ..RuleSpec::new(RuleName::new("my.rule").unwrap())
    };
    change(&mut spec);
    Arc::new(Rule::compile(spec).unwrap())
}

fn workload(node: Option<&str>) -> Arc<Workload> {
    let id = WorkloadId::new("uid-1").unwrap();
    Arc::new(Workload { node_name: node.map(str::to_owned), ..Workload::new(id, "ns", "web") })
}

fn key() -> CompanionKey {
    CompanionKey { rule: RuleName::new("my.rule").unwrap(), workload: "uid-1".into() }
}

fn tenant() -> TenantId {
    TenantId::new("blue").unwrap()
}

fn home(tenant: &TenantId) -> Home<'_> {
    Home { tenant, namespace: "tenant-blue", owned: true, host_names: Default::default() }
}

/// What is to be done about a companion of a rule in the tenant's namespace.
pub(crate) fn planned_for(key: &CompanionKey, desired: &Desired<'_>, observed: Option<&Observed>) -> Action {
    plan(key, desired, observed, &home(&tenant()))
}

/// The same where the rule wants it for a workload.
pub(crate) fn planned(rule: &Arc<Rule>, workload: &Arc<Workload>, observed: Option<&Observed>) -> Action {
    let key = CompanionKey::of(rule.name(), &workload.id);
    planned_for(&key, &Desired::Wanted { rule, workload }, observed)
}

/// A companion without facts, as the webhook leaves it.
pub(crate) fn of_rule(rule: &Rule) -> Observed {
    Observed {
        uid: "pod-uid".into(),
        rule_uid: rule.uid().into(),
        template_hash: rule.template_hash().into(),
        injected: Some(Vec::new()),
        ..Observed::default()
    }
}

/// A companion with its facts.
fn observed(rule: &Rule, workload: &Workload) -> Observed {
    let annotations = rule.injected(workload);
    Observed {
        content_hash: Some(rule.content_hash().into()),
        host: workload.node_name.clone(),
        injected: Some(annotations.keys().cloned().collect()),
        annotations_size: annotations_size(&annotations),
        annotations,
        ..of_rule(rule)
    }
}

fn deleted(action: Action) -> DeleteReason {
    match action {
        Action::Delete { uid, reason } => {
            assert_eq!(uid, "pod-uid");
            reason
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_created() {
    let (r, w) = (rule(|_| {}), workload(Some("host-a")));
    let Action::Create(pod) = planned(&r, &w, None) else { panic!("no create") };
    assert_eq!(
        pod,
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": name(&key(), &tenant()), "namespace": "tenant-blue",
                "labels": {"app": "x", keys::TENANT: "blue", keys::RULE: "my.rule", keys::WORKLOAD: "uid-1"},
                "annotations": {"own": "1", keys::RULE_UID: "rule-uid", keys::RULE_GENERATION: "3",
                    keys::TEMPLATE_HASH: r.template_hash(), keys::CONTENT_HASH: r.content_hash(), keys::HOST: "host-a",
                    keys::TEMPLATE_PARTS: r.parts().unwrap(),
                    keys::WORKLOAD: w.to_json().to_string()},
                "ownerReferences": [{"apiVersion": "workload.universe.nvidia.com/v1alpha1", "kind": "WorkloadRule",
                    "name": "my.rule", "uid": "rule-uid", "controller": true, "blockOwnerDeletion": false}]},
            "spec": {"containers": [{"name": "c"}], "unknown": {"a": 1},
                "schedulingGates": [{"name": "mine"}, {"name": keys::ADMISSION_GATE}]}})
    );
    assert_eq!(
        owner(&pod).map(|(n, uid)| (n.to_string(), uid.to_owned())),
        Some(("my.rule".into(), "rule-uid".into()))
    );
    let Action::Create(any) = planned(&rule(|s| s.policy = DpuSelectionPolicy::Any), &workload(None), None)
    else {
        panic!("no create")
    };
    assert!(any["metadata"]["annotations"].get(keys::HOST).is_none());
}

#[test]
fn names_are_dns_labels_and_differ() {
    let named = |rule: &str, workload: &str| {
        name(&CompanionKey { rule: RuleName::new(rule).unwrap(), workload: workload.into() }, &tenant())
    };
    let long = "x".repeat(200);
    for n in [
        named("r", "1"),
        named("a.b-c", "1"),
        named(&long, "1"),
        named(&format!("{}.x", "y".repeat(45)), "1"),
    ] {
        assert!(n.len() <= 63 && crate::syntax::is_dns_label(&n), "{n}");
    }
    assert_ne!(named("r", "1"), named("r", "2"));
    assert_ne!(named("a.b", "1"), named("a-b", "1"));
    assert_eq!(named("r", "1"), named("r", "1"));
}

#[test]
fn every_row_of_the_life_cycle() {
    let (r, w) = (rule(|_| {}), workload(Some("host-a")));
    let o = observed(&r, &w);
    assert_eq!(planned(&r, &w, Some(&o)), Action::Nothing);
    assert_eq!(planned(&r, &w, Some(&Observed { terminating: true, ..o.clone() })), Action::Wait);
    let reason = |change: &dyn Fn(&mut Observed)| {
        let mut other = o.clone();
        change(&mut other);
        deleted(planned(&r, &w, Some(&other)))
    };
    assert_eq!(reason(&|o| o.rule_uid = "earlier".into()), DeleteReason::OtherRule);
    let earlier =
        |o: &mut Observed| (o.template_hash, o.content_hash) = ("earlier".into(), Some("other".into()));
    assert_eq!(reason(&earlier), DeleteReason::TemplateChanged);
    assert_eq!(reason(&|o| o.host = Some("host-b".into())), DeleteReason::Moved);
    let moved_earlier = |o: &mut Observed| {
        earlier(o);
        o.host = Some("host-b".into());
    };
    assert_eq!(reason(&moved_earlier), DeleteReason::Moved, "it doesn't wait for its turn");
    let of_another_policy = |o: &mut Observed| {
        earlier(o);
        o.host = None;
    };
    assert_eq!(reason(&of_another_policy), DeleteReason::TemplateChanged, "it serves until its turn");
    assert_eq!(reason(&|o| o.failed = true), DeleteReason::Failed);
    assert_eq!(reason(&|o| o.gated = true), DeleteReason::NotAdmitted);
    let infeasible = |o: &mut Observed| (o.ready, o.trouble) = (true, Some(Cause::ResizeInfeasible));
    assert_eq!(reason(&infeasible), DeleteReason::ResizeInfeasible);
    let deferred = Observed { ready: true, trouble: Some(Cause::ResizeDeferred), ..o.clone() };
    assert_eq!(planned(&r, &w, Some(&deferred)), Action::Nothing, "it gets its amounts when there is room");

    let planned = |desired: &Desired<'_>, observed: Option<&Observed>| planned_for(&key(), desired, observed);
    assert_eq!(deleted(planned(&Desired::Unwanted, Some(&o))), DeleteReason::Unmatched);
    assert_eq!(deleted(planned(&Desired::Waiting, Some(&o))), DeleteReason::Moved);
    for desired in [Desired::Unwanted, Desired::Waiting, Desired::Unknown, Desired::RuleUnknown] {
        assert_eq!(planned(&desired, None), Action::Nothing);
    }
    for desired in [Desired::Unknown, Desired::RuleUnknown] {
        assert_eq!(planned(&desired, Some(&o)), Action::Nothing, "never deleted for not being known");
    }
}

#[test]
fn each_reason_to_delete_is_a_word_of_its_own() {
    use DeleteReason::*;
    let words = [
        Unmatched,
        RuleDeleted,
        OtherRule,
        TemplateChanged,
        ResizeInfeasible,
        Moved,
        Failed,
        NotAdmitted,
        Superseded,
    ]
    .map(DeleteReason::as_str);
    assert_eq!(words.iter().collect::<std::collections::BTreeSet<_>>().len(), words.len(), "{words:?}");
    for word in words {
        assert!(word.starts_with(char::is_uppercase) && word.chars().all(char::is_alphabetic), "{word:?}");
    }
}

#[test]
fn a_companion_of_a_node_whose_name_no_label_can_have_is_refused_where_it_is_a_pod_of_that_node() {
    let refusal = |rule: &Arc<Rule>, node: &str| match planned(rule, &workload(Some(node)), None) {
        Action::Refuse(cause, message) => Some((cause, message)),
        _ => None,
    };
    let (fits, long) = ("h".repeat(63), "h".repeat(64));
    let (cause, message) = refusal(&rule(|_| {}), &long).unwrap();
    assert_eq!(cause, Cause::HostNameUnusable);
    assert!(
        message.contains("it has 64 characters") && message.contains("dpuSelectionPolicy Any"),
        "{message}"
    );
    assert_eq!(refusal(&rule(|_| {}), &fits), None);
    assert_eq!(refusal(&rule(|s| s.policy = DpuSelectionPolicy::Any), &long), None);
    // Attributes of devices are longer, and no labels.
    let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}}});
    assert_eq!(refusal(&rule(|s| s.template = claim.into()), &long), None);
}

#[test]
fn the_hash_is_of_the_meaning() {
    let hash = |text: &str| {
        template_hash(DpuSelectionPolicy::Any, &serde_json::from_str(text).unwrap(), &Devices::default())
    };
    assert_eq!(hash(r#"{"a": 1, "b": [2]}"#), hash(r#"{"b": [2], "a": 1}"#));
    for other in
        [r#"{"a": 1, "b": [2, 2]}"#, r#"{"a": "1", "b": [2]}"#, r#"{"a": 1, "b": {"2": null}}"#, "{}"]
    {
        assert_ne!(hash(r#"{"a": 1, "b": [2]}"#), hash(other));
    }
    let same = template_hash(DpuSelectionPolicy::SameNode, &json!({}), &Devices::default());
    assert_ne!(same, template_hash(DpuSelectionPolicy::Any, &json!({}), &Devices::default()));
    // An index is of no use here but shows that a rule's own hash is this one.
    let mut index = TenantIndex::default();
    index.apply_rule(rule(|_| {}));
    let r = index.rules().next().unwrap();
    assert_eq!(r.template_hash(), template_hash(r.policy(), &r.template(), r.devices()));
}

#[test]
fn neither_noise_nor_an_upgrade_replaces_a_companion() {
    let plain = |spec: &mut RuleSpec| {
        let mut template = spec.template.tree();
        template["metadata"] = json!({"labels": {"app": "x"}, "annotations": {"own": "1"}});
        spec.template = template.into();
    };
    let (noisy, plain) = (rule(|_| {}), rule(plain));
    assert_ne!(noisy.template_hash(), plain.template_hash());
    assert_eq!(plain.template_hash(), plain.content_hash());
    let other = rule(|spec| spec.template = json!({"apiVersion": "v1", "kind": "Pod", "spec": {}}).into());
    let w = workload(Some("host-a"));
    for made in [&noisy, &plain] {
        // As this release makes it, and as the one before did.
        let now = observed(made, &w);
        let before = Observed { content_hash: None, ..now.clone() };
        for rule in [&noisy, &plain] {
            assert_eq!(planned(rule, &w, Some(&now)), Action::Nothing);
        }
        // As a release that knows more of what means nothing will.
        let later = Observed { content_hash: Some("later".into()), ..now.clone() };
        assert!(matches!(planned(made, &w, Some(&later)), Action::Annotate(_)));
        for o in [&now, &before] {
            assert_eq!(deleted(planned(&other, &w, Some(o))), DeleteReason::TemplateChanged);
        }
        let after = match planned(made, &w, Some(&before)) {
            Action::Nothing => before,
            Action::Annotate(patch) => {
                let written = &patch["metadata"]["annotations"][keys::CONTENT_HASH];
                Observed { content_hash: written.as_str().map(str::to_owned), ..before }
            }
            other => panic!("{other:?}"),
        };
        for rule in [&noisy, &plain] {
            assert_eq!(planned(rule, &w, Some(&after)), Action::Nothing);
        }
    }
    // Where there is no room for the annotation, it is left out.
    let full = Observed { content_hash: None, annotations_size: MAX_ANNOTATIONS, ..observed(&noisy, &w) };
    assert_eq!(planned(&noisy, &w, Some(&full)), Action::Nothing);
}

#[test]
fn double_quotes_in_paths_of_the_downward_api_become_single_ones() {
    let with = |path: &str| {
        let field = json!({"fieldRef": {"fieldPath": path}});
        rule(|spec| {
            spec.template = json!({"apiVersion": "v1", "kind": "Pod", "spec": {
                "containers": [{"name": "c", "env": [{"name": "E", "valueFrom": field}]}],
                "volumes": [{"name": "v", "downwardAPI": {"items": [field]}},
                    {"name": "w", "projected": {"sources": [{"downwardAPI": {"items": [field]}}]}}]}})
            .into();
        })
    };
    let created = |rule: &Arc<Rule>| match planned(rule, &workload(Some("host-a")), None) {
        Action::Create(pod) => pod["spec"].clone(),
        other => panic!("{other:?}"),
    };
    for map in ["annotations", "labels"] {
        let single = with(&format!("metadata.{map}['a.b/c']"));
        let double = with(&format!("metadata.{map}[\"a.b/c\"]"));
        assert_eq!(created(&double), created(&single));
        assert_eq!(created(&double).to_string().matches(&format!("metadata.{map}['a.b/c']")).count(), 3);
        assert_eq!(double.content_hash(), single.content_hash());
        assert_eq!(single.template_hash(), single.content_hash(), "nothing changes for it");
        assert!(created(&double) != created(&with("metadata.name")));
    }
    // Whatever else is in quotes is the API server's to refuse.
    for other in ["metadata.annotations[\"a'b\"]", "metadata.annotations[\"a\"].x", "spec[\"a\"]"] {
        assert!(
            created(&with(other)).to_string().contains(&serde_json::to_string(other).unwrap()),
            "{other}"
        );
    }
}

#[test]
fn noise_in_a_device_claim_is_none_to_the_companion() {
    let with = |exactly: Value| {
        rule(|spec| {
            spec.devices.claims = vec![claim::DeviceClaimSpec {
                name: "d".into(),
                spec: Some(json!({"devices": {"requests": [{"name": "r", "exactly": exactly}]}}).into()),
                ..claim::DeviceClaimSpec::default()
            }];
        })
    };
    let plain = with(json!({"deviceClassName": "c"}));
    let noisy =
        with(json!({"deviceClassName": "c", "count": 1, "allocationMode": "ExactCount", "selectors": []}));
    let other = with(json!({"deviceClassName": "c", "count": 2}));
    assert_eq!(plain.content_hash(), noisy.content_hash());
    // They name other ResourceClaimTemplates.
    assert_ne!(plain.template_hash(), noisy.template_hash());
    assert_ne!(plain.content_hash(), other.content_hash());
}

#[test]
fn a_companion_of_an_admin_rule_names_its_owner() {
    let rule = rule(|spec| spec.name = RuleName::admin("my.rule").unwrap());
    let (workload, blue) = (workload(Some("host-a")), tenant());
    let key = CompanionKey { rule: rule.name().clone(), workload: "uid-1".into() };
    let made = |owned| {
        let home = Home { tenant: &blue, namespace: "universe", owned, host_names: Default::default() };
        match plan(&key, &Desired::Wanted { rule: &rule, workload: &workload }, None, &home) {
            Action::Create(pod) => pod,
            other => panic!("{other:?}"),
        }
    };
    let pod = made(true);
    assert_eq!(pod["metadata"]["namespace"], "universe");
    assert_eq!(pod["metadata"]["labels"][keys::TENANT], "blue");
    assert_eq!(pod["metadata"]["ownerReferences"][0]["kind"], "AdminWorkloadRule");
    assert_eq!(owner(&pod), None, "no tenant's rule");
    assert_eq!(of_admin_rule(&pod), Some((tenant(), rule.name().clone(), "rule-uid")));
    let apart = made(false);
    assert_eq!(apart["metadata"]["ownerReferences"], json!([]), "an owner elsewhere would be taken for gone");
    assert_eq!(of_admin_rule(&apart), of_admin_rule(&pod));
    // Workloads of one id in two tenants, and a tenant's rule of the same name.
    let names = [
        name(&key, &blue),
        name(&key, &TenantId::new("red").unwrap()),
        name(&self::key(), &blue),
        name(&CompanionKey { workload: "uid-2".into(), ..key.clone() }, &blue),
    ];
    assert_eq!(names.iter().collect::<std::collections::BTreeSet<_>>().len(), names.len(), "{names:?}");
}

#[test]
fn a_trial_is_the_companion_of_nobody() {
    let tenant = TenantId::new("blue").unwrap();
    for policy in [DpuSelectionPolicy::SameNode, DpuSelectionPolicy::Any] {
        let rule = rule(|spec| spec.policy = policy);
        let pod = trial(&rule, &home(&tenant)).unwrap();
        let annotations = &pod["metadata"]["annotations"];
        assert_eq!(annotations[keys::TEMPLATE_HASH], json!(rule.template_hash()));
        assert_eq!(annotations.get(keys::HOST).is_some(), policy == DpuSelectionPolicy::SameNode);
        assert!(annotations.get(keys::WORKLOAD).is_none(), "no facts");
        assert_eq!(pod["spec"]["unknown"], json!({"a": 1}));
    }
}

#[test]
fn a_claim_is_after_an_earlier_one_on_the_same_tenant_only() {
    let claim = |uid: &str, number| StreamClaim { tenant_uid: uid.into(), number };
    assert!(claim("a", 2).is_after(&claim("a", 1)));
    assert!(!claim("a", 1).is_after(&claim("a", 1)));
    assert!(!claim("a", 1).is_after(&claim("a", 2)));
    assert!(!claim("b", 2).is_after(&claim("a", 1)));
}

#[test]
fn a_claim_is_read_as_it_is_written() {
    let claim = StreamClaim { tenant_uid: "uid".into(), number: 7 };
    assert_eq!(claim.to_string(), "uid/7");
    assert_eq!(StreamClaim::read("uid/7"), Some(claim));
    for wrong in ["", "uid", "uid/", "uid/-1", "uid/7/8"] {
        assert_eq!(StreamClaim::read(wrong), None, "{wrong}");
    }
}
