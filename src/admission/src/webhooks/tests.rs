use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::*;
use crate::caches::Caches;
use crate::handler::{Context, Settings};
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
fn a_pod_with_many_finalizers_left_is_validated_when_it_loses_one() {
    let pod = |count: usize| {
        let finalizers: Vec<String> = (0..count).map(|i| format!("x.example/{i}")).collect();
        json!({"metadata": {"name": "p", "finalizers": finalizers}, "spec": {"containers": []}})
    };
    let (caches, settings) = (Caches::default(), Settings::default());
    let cx = Context::new(&caches, &settings);
    let labels = BTreeMap::from([(keys::TENANT, "blue")]);
    for (left, asked) in [(1, false), (8, false), (9, true), (20, true)] {
        let request = request_for("Pod", "tenant-blue", &pod(left), &pod(left + 1));
        let found = WEBHOOKS.iter().any(|webhook| webhook.matches(cx, &request, Some(&labels)));
        assert_eq!(found, asked, "{left}");
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
    let endpoints = [endpoints(), gate_endpoints()].concat();
    assert!(endpoints.iter().all(|endpoint| !endpoint.label.is_empty() && !endpoint.path.is_empty()));
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
fn endpoints_that_reserve_something_are_known() {
    let endpoints = endpoints();
    let writing: Vec<&str> = endpoints.iter().filter(|e| e.writes).map(|e| e.path).collect();
    assert_eq!(writing, ["/validate/machines", "/validate/guests"]);
}

#[test]
fn the_agent_serves_its_table_and_only_advises_where_failures_are_ignored() {
    let served: Vec<_> = gate_endpoints().iter().map(|e| (e.path, e.advises)).collect();
    let configured: Vec<_> = gates::GATES.iter().map(|w| (w.endpoint.path, w.ignores_failure)).collect();
    assert_eq!(served, configured);
    assert_eq!(served.iter().filter(|(_, advises)| *advises).count(), 2);
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

#[test]
fn why_a_webhook_is_not_called_is_reported_in_words() {
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": []}});
    let (caches, settings) = (Caches::default(), Settings::default());
    let cx = Context::new(&caches, &settings);
    let tenants = format!("the namespace has the label {}", keys::TENANT);
    let no_tenants = format!("the namespace doesn't have the label {}", keys::TENANT);
    let not_injected =
        format!("the namespace doesn't have the label {}: {}", keys::INJECT_RESOURCE, keys::INJECT_ENABLED);
    let offloaded = format!("the namespace has the label {}: true", keys::OFFLOADED);
    let of_tenant = BTreeMap::from([(keys::TENANT, "blue")]);
    let of_both = BTreeMap::from([(keys::INJECT_RESOURCE, keys::INJECT_ENABLED), (keys::OFFLOADED, "true")]);
    for (namespace, labels, webhook, why) in [
        ("tenant-blue", &BTreeMap::new(), "pods", &*no_tenants),
        ("tenant-blue", &BTreeMap::new(), "guests", &not_injected),
        ("kube-system", &of_tenant, "pods", "the namespace is the cluster's or Outrigger's own"),
        ("n", &of_tenant, "admin-pods", "the namespace isn't that of the companions of admin rules"),
        (keys::ADMIN_NAMESPACE, &of_tenant, "admin-pods", &tenants),
        (
            keys::ADMIN_NAMESPACE,
            &BTreeMap::new(),
            "admin-pods",
            "its match condition has-keys-of-ours isn't met",
        ),
        ("n", &of_both, "guests", &offloaded),
    ] {
        let request = request_for("Pod", namespace, &pod, &Value::Null);
        let name = format!("{webhook}.{}", keys::DOMAIN);
        let found = calls(cx, &request, Some(labels)).into_iter().find(|call| call.webhook == name);
        assert_eq!(found.unwrap().why_not.as_deref(), Some(why), "{webhook} in {namespace}");
    }
}

#[test]
fn objects_that_lose_finalizers_only_can_do_so_without_outrigger() {
    let old = json!({"metadata": {"name": "a", "finalizers": ["x.example/y"]}, "spec": {"a": 1}});
    let (caches, settings) = (Caches::default(), Settings::default());
    let is_asked = |kind: &str, old: &Value, change: &Value| {
        let mut object = json!({"metadata": {"name": "a", "finalizers": ["x.example/y"]}, "spec": {"a": 1}});
        json_patch::merge(&mut object, change);
        let request = request_for(kind, "tenant-blue", &object, old);
        let labels = BTreeMap::from([(keys::TENANT, "blue")]);
        let cx = Context::new(&caches, &settings);
        WEBHOOKS.iter().any(|webhook| webhook.matches(cx, &request, Some(&labels)))
    };
    for (kind, labels, annotations) in [
        ("ResourceClaim", true, true),
        ("ResourceClaimTemplate", true, true),
        ("Tenant", false, false),
        ("NamespaceOffloading", false, false),
        ("Machine", true, false),
    ] {
        assert!(is_asked(kind, &Value::Null, &json!({})), "{kind} is created");
        for (change, asked) in [
            (json!({"spec": {"a": 2}}), true),
            (json!({"metadata": {"labels": {"a": "b"}}}), labels),
            (json!({"metadata": {"annotations": {"a": "b"}}}), annotations),
            (json!({"metadata": {"finalizers": null}, "status": {"a": 1}}), false),
        ] {
            assert_eq!(is_asked(kind, &old, &change), asked, "{kind} {change}");
        }
    }
}

#[test]
fn what_is_given_away_once_waits_for_the_watches_that_show_who_has_it() {
    let labels = json!({keys::POD_ROLE: keys::GUEST, keys::MACHINE_GROUP: "g", keys::MACHINE_TYPE: "t"});
    let guest = request_for("Pod", "n", &json!({"metadata": {"name": "p", "labels": labels}}), &Value::Null);
    let plain = request_for("Pod", "n", &json!({"metadata": {"name": "p"}}), &Value::Null);
    let update = Request { operation: "UPDATE".into(), ..guest.clone() };
    let resize = Request { sub_resource: "resize".into(), ..update.clone() };
    let node = json!({"name": "a", "mode": "ready", "machineType": []});
    let machine = json!({"metadata": {"name": "m"}, "spec": {"nodePool": [node], "machineTypes": []}});
    let machine = request_for("Machine", "", &machine, &Value::Null);
    let unlisted = |path: &str, request: &Request, missing: &[&'static str]| {
        let found = endpoint(path).unwrap().unlisted(request, || missing.to_vec());
        found.map(|admission| match admission.decision {
            Decision::Deny { code, message, .. } => (code, message, admission.guest),
            allowed @ Decision::Allow { .. } => panic!("{allowed:?}"),
        })
    };
    let all = [watches::MACHINES, watches::GUESTS, watches::NAMESPACES];
    let unavailable = Some(GuestOutcome::Unavailable);
    for (path, request, needed, outcome) in [
        ("/mutate/pods", &guest, &all[..], None),
        ("/validate/guests", &guest, &all, unavailable),
        ("/validate/machines", &machine, &all[..1], None),
        ("/mutate/pods", &plain, &[], None),
        ("/validate/guests", &plain, &[], None),
        ("/validate/guests", &update, &[], None),
        ("/validate/guests", &resize, &[], None),
        ("/validate/pods", &guest, &[], None),
    ] {
        assert_eq!(unlisted(path, request, &["nodes"]), None, "{path} doesn't need them");
        for watch in all {
            let refusal = |missing: &str| {
                let message = format!(
                    "this replica of the webhook has only just begun and doesn't know all {missing} yet; try again"
                );
                Some((503, message, outcome))
            };
            let found = unlisted(path, request, &["nodes", watch]);
            let expected = if needed.contains(&watch) { refusal(watch) } else { None };
            assert_eq!(found, expected, "{path} {watch}");
        }
        assert_eq!(unlisted(path, request, &all).is_some(), !needed.is_empty(), "{path}");
    }
}

#[test]
fn a_request_of_another_kind_is_refused_with_the_kinds_that_the_path_is_for() {
    let (caches, settings) = (Caches::default(), Settings::default());
    let mut request = request_for("Pod", "n", &json!({}), &Value::Null);
    for (path, group, kind, words) in [
        ("/validate/pods", "", "Service", "this path admits v1/Pod and v1/Binding, not v1/Service: correct"),
        (
            "/validate/resourceclaims",
            "apps",
            "Pod",
            "this path admits resource.k8s.io/v1/ResourceClaim and resource.k8s.io/v1/ResourceClaimTemplate, not apps/v1/Pod: \
             correct",
        ),
    ] {
        (request.kind.group, request.kind.kind) = (group.into(), kind.into());
        let admission = endpoint(path).unwrap().decide(Context::new(&caches, &settings), &mut request);
        let Decision::Deny { code, message, .. } = admission.unwrap().decision else { panic!("{path}") };
        assert_eq!((code, message.starts_with(words)), (400, true), "{message}");
    }
}
