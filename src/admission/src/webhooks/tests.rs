use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use super::*;
use crate::caches::Caches;
use crate::decision::{Context, Settings};
use crate::tests::request_for;

/// Whether a webhook is called for a change of a Pod.
fn is_asked(change: &Value, sub_resource: &str) -> bool {
    let guest = json!({keys::POD_ROLE: keys::GUEST, keys::INJECT_RESOURCE: keys::INJECT_ENABLED});
    let old = json!({"metadata": {"name": "p", "labels": guest, "finalizers": ["a.example/x", "b.example/y"]},
        "spec": {"containers": [{"name": "c"}]}, "status": {}});
    let mut object = old.clone();
    json_patch::merge(&mut object, change);
    let mut request = request_for("Pod", "tenant-blue", &object, &old);
    request.sub_resource = sub_resource.into();
    let labels = BTreeMap::from([(keys::TENANT, "blue"), (keys::INJECT_RESOURCE, keys::INJECT_ENABLED)]);
    let (caches, settings) = (Caches::default(), Settings::default());
    let cx = Context::new(&caches, &settings);
    let validating = WEBHOOKS.iter().filter(|webhook| !webhook.endpoint.mutates);
    let asked: Vec<&str> = validating
        .filter(|webhook| webhook.matches(cx, &request, Some(&labels)))
        .map(|webhook| webhook.endpoint.path)
        .collect();
    // What changes a guest's slot is validated as a tenant's Pod too.
    assert!(asked.is_empty() || asked.contains(&"/validate/pods"), "{asked:?}");
    !asked.is_empty()
}

#[test]
fn without_outrigger_a_pod_can_lose_finalizers_only() {
    for change in [
        json!({}),
        json!({"metadata": {"finalizers": null}}),
        json!({"metadata": {"finalizers": ["b.example/y"]}}),
        json!({"metadata": {"finalizers": ["b.example/y", "a.example/x"]}}),
        json!({"status": {"phase": "Failed"}}),
    ] {
        assert!(!is_asked(&change, ""), "{change}");
        for sub_resource in ["resize", "ephemeralcontainers"] {
            assert!(is_asked(&change, sub_resource), "{sub_resource}: {change}");
        }
    }
    for change in [
        json!({"metadata": {"finalizers": ["b.example/y", "c.example/z"]}}),
        json!({"metadata": {"finalizers": null, "labels": {"app": "x"}}}),
        json!({"metadata": {"finalizers": null, "labels": {keys::POD_ROLE: null}}}),
        json!({"metadata": {"annotations": {"a": "b"}}}),
        json!({"metadata": {"ownerReferences": [{"name": "x"}]}}),
        json!({"spec": {"tolerations": [{"operator": "Exists"}]}}),
        json!({"spec": {"activeDeadlineSeconds": 1}}),
    ] {
        assert!(is_asked(&change, ""), "{change}");
    }
}

#[test]
fn a_tenants_pod_is_validated_once_whatever_happens_to_it() {
    let pod =
        json!({"metadata": {"name": "p", "labels": {"a": "b"}}, "spec": {"containers": [{"name": "c"}]}});
    let labels = BTreeMap::from([(keys::TENANT, "blue")]);
    let (caches, settings) = (Caches::default(), Settings::default());
    let cx = Context::new(&caches, &settings);
    let mut changed = pod.clone();
    changed["spec"]["activeDeadlineSeconds"] = json!(1);
    for (object, old, sub_resource, by) in [
        (&pod, &Value::Null, "", "pods"),
        (&changed, &pod, "", "pod-updates"),
        (&changed, &pod, "resize", "pods"),
        (&changed, &pod, "ephemeralcontainers", "pods"),
    ] {
        let mut request = request_for("Pod", "tenant-blue", object, old);
        request.sub_resource = sub_resource.into();
        let validating = WEBHOOKS.iter().filter(|webhook| !webhook.endpoint.mutates);
        let asked = validating.filter(|webhook| webhook.matches(cx, &request, Some(&labels)));
        assert_eq!(asked.map(|webhook| webhook.name).collect::<Vec<_>>(), [by], "{sub_resource}");
    }
}

#[test]
fn labels_and_paths_name_one_endpoint_each() {
    let endpoints = endpoints();
    let all = |of: fn(&Endpoint) -> &str| endpoints.iter().map(|e| of(e)).collect::<BTreeSet<_>>().len();
    assert_eq!((all(|e| e.path), all(|e| e.label)), (endpoints.len(), endpoints.len()));
}

#[test]
fn only_webhooks_that_make_reservations_may_take_long() {
    let paths = |writes: bool| {
        let all = WEBHOOKS.iter().filter(move |webhook| (webhook.timeout() == WRITER_TIMEOUT) == writes);
        all.map(|webhook| webhook.endpoint.path).collect::<BTreeSet<_>>()
    };
    assert_eq!(paths(true), BTreeSet::from(["/validate/guests", "/validate/machines"]));
    assert!(paths(false).contains("/mutate/pods") && paths(false).contains("/validate/pods"));
    let (_, text) = &configurations()[1];
    let count = |seconds: u64| text.matches(&format!("timeoutSeconds: {seconds}\n")).count();
    assert_eq!((count(WRITER_TIMEOUT.as_secs()), count(TIMEOUT.as_secs())), (2, 7));
}

#[test]
fn the_shipped_configurations_are_those_of_the_table() {
    let shipped = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../webhooks");
    for (name, text) in configurations() {
        assert_eq!(std::fs::read_to_string(shipped.join(name)).unwrap(), text, "{name}: run 'make crds'");
    }
}

#[test]
fn every_endpoint_has_a_label_and_those_that_reserve_something_are_known() {
    let endpoints = endpoints();
    assert!(endpoints.iter().all(|endpoint| !endpoint.label.is_empty()));
    let writing: Vec<&str> = endpoints.iter().filter(|e| e.writes).map(|e| e.path).collect();
    assert_eq!(writing, ["/validate/machines", "/validate/guests"]);
}

#[test]
fn the_path_of_earlier_configurations_is_served() {
    let aliases: Vec<_> =
        endpoints().iter().flat_map(|e| e.aliases.iter().map(|alias| (*alias, e.label))).collect();
    assert_eq!(aliases, [("/validate/resourceclaimtemplates", "ValidateClaims")]);
}

#[test]
fn the_webhooks_of_a_request_are_listed_as_they_are_called_with_the_reason_why_not() {
    let pod =
        json!({"metadata": {"name": "p", "labels": {keys::POD_ROLE: "another"}}, "spec": {"containers": []}});
    let request = request_for("Pod", "tenant-blue", &pod, &Value::Null);
    let labels = BTreeMap::from([(keys::INJECT_RESOURCE, keys::INJECT_ENABLED)]);
    let (caches, settings) = (Caches::default(), Settings::default());
    let cx = Context::new(&caches, &settings);
    let listed = calls(cx, &request, Some(&labels));
    let mutates: Vec<bool> = listed.iter().map(|call| call.mutates).collect();
    assert!(mutates.is_sorted_by(|a, b| a >= b), "{listed:?}");
    assert!(mutates.contains(&true) && mutates.contains(&false), "{listed:?}");
    // What isn't called for this Pod because of its label, and nothing else, is called for a guest.
    let mut guest = request_for("Pod", "tenant-blue", &pod, &Value::Null);
    guest.object["metadata"]["labels"][keys::POD_ROLE] = json!(keys::GUEST);
    let label = format!("the object doesn't have the label {}: {}", keys::POD_ROLE, keys::GUEST);
    let mut labelled = Vec::new();
    for (request, for_guest) in [(&request, false), (&guest, true)] {
        for call in calls(cx, request, Some(&labels)) {
            let webhook =
                WEBHOOKS.iter().find(|w| w.full_name() == call.webhook && w.endpoint.mutates == call.mutates);
            let matches = webhook.unwrap().matches(cx, request, Some(&labels));
            assert_eq!(matches, call.why_not.is_none(), "{call:?}");
            if call.why_not.as_ref() == Some(&label) {
                assert!(!for_guest, "{call:?}");
                labelled.push(call.webhook);
            } else if for_guest && labelled.contains(&call.webhook) {
                assert!(matches, "{call:?}");
            }
        }
    }
    assert!(!labelled.is_empty());
}
