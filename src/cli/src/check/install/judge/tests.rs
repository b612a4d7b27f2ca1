mod accounts;
mod trust;

use serde_json::json;

use super::certificates::{Bundle, Life};
use super::difference::differences;
use super::parts::Mount;
use super::reach::Outcome;
use super::rights::{Account, Except};
use super::versions::Version;
use super::*;
use crate::check::findings::{CA_UNUSABLE, CERTIFICATE_ENDED, Check};

/// Check, path and message of findings.
fn told(findings: impl IntoIterator<Item = Finding>) -> Vec<(&'static str, String, String)> {
    findings.into_iter().map(|f| (f.check.id, f.path, f.message)).collect()
}

/// Check and path of findings.
fn ids(findings: impl IntoIterator<Item = Finding>) -> Vec<String> {
    findings.into_iter().map(|f| format!("{} {}", f.check.id, f.path)).collect()
}

fn with(value: &Value, change: impl FnOnce(&mut Value)) -> Value {
    let mut changed = value.clone();
    change(&mut changed);
    changed
}

#[test]
fn what_says_nothing_is_no_difference() {
    for (a, b, expected) in [
        (json!({"a": 1}), json!({"a": 1.0, "b": null, "c": [], "d": {}, "e": "", "f": false}), &[][..]),
        (json!({"a": {"b": [1, 2]}}), json!({"a": {"b": [1]}}), &["x.a.b"]),
        (json!({"a": [{"b": 1}]}), json!({"a": [{"b": 2}, {"c": 1}]}), &["x.a[0].b", "x.a[1]"]),
        (json!({"labels": {"a.b/c": "1"}}), json!({"labels": {}}), &["x.labels"]),
        (json!({"labels": {"a.b/c": "1", "d": "1"}}), json!({"labels": {"d": "1"}}), &["x.labels[a.b/c]"]),
        (json!({"a": true, "b": 1}), json!({"b": 1}), &["x.a"]),
    ] {
        let paths: Vec<String> = differences("x", Some(&a), Some(&b)).into_iter().map(|d| d.path).collect();
        assert_eq!(paths, expected, "{a} {b}");
    }
    let (a, b) = (json!(format!("{}1 tail", "x".repeat(300))), json!(format!("{}2", "x".repeat(300))));
    let (a, b) = apart(Some(&a), Some(&b));
    assert!(a.starts_with("\"... x") && a.ends_with("x1 tail\"") && b.ends_with("x2\""), "{a} {b}");
    assert_eq!(apart(Some(&json!("ab")), None), ("\"ab\"".to_owned(), "absent".to_owned()));
    let folded = [json!("a\n  b"), json!("a b")].map(|text| super::difference::sorted(&text));
    assert_eq!(folded[0], folded[1]);
    let long = "é".repeat(500);
    assert_eq!(short(&long).chars().count(), SHOWN + 4);
}

fn webhooks() -> Value {
    let entry = |name: &str, path: &str| {
        json!({"name": name, "admissionReviewVersions": ["v1"], "failurePolicy": "Fail", "sideEffects": "None",
            "matchPolicy": "Equivalent", "timeoutSeconds": 10,
            "clientConfig": {"service": {"name": "w", "namespace": "s", "path": path, "port": 443}},
            "namespaceSelector": {"matchExpressions": [
                {"key": "t", "operator": "Exists"},
                {"key": "n", "operator": "NotIn", "values": ["a", "b"]}]},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods", "pods/resize"],
                "operations": ["CREATE", "UPDATE"], "scope": "Namespaced"}]})
    };
    json!({"kind": "ValidatingWebhookConfiguration", "metadata": {"name": "outrigger"},
        "webhooks": [entry("pods", "/validate/pods"), entry("claims", "/validate/claims")]})
}

#[test]
fn webhook_configurations() {
    let wanted = webhooks();
    // What is the installation's own.
    let own = with(&wanted, |w| {
        w["metadata"]["labels"] = json!({"a": "b"});
        let w = &mut w["webhooks"];
        w[0]["clientConfig"] = json!({"url": "https://h:1/validate/pods?timeout=1s", "caBundle": "eA=="});
        w[0]["objectSelector"] = json!({});
        w[0]["rules"][0]["resources"] = json!(["pods/resize", "pods"]);
        w[0]["namespaceSelector"]["matchExpressions"][1]["values"] = json!(["b", "a"]);
        w[1]["clientConfig"]["caBundle"] = json!("eA==");
        let list = w.as_array_mut().unwrap();
        list.insert(0, json!({"name": "somebody's"}));
    });
    assert_eq!(ids(admission::configuration(&wanted, &own)), Vec::<String>::new());

    type Change = fn(&mut Value);
    let cases: [(Change, &str); 14] = [
        (|w| drop(w.as_array_mut().unwrap().remove(1)), "admission-differs webhooks"),
        (|w| w[1]["failurePolicy"] = json!("Ignore"), "admission-differs webhooks[1].failurePolicy"),
        (|w| w[0]["matchPolicy"] = json!("Exact"), "admission-differs webhooks[0].matchPolicy"),
        (|w| w[0]["sideEffects"] = json!("Some"), "admission-differs webhooks[0].sideEffects"),
        (
            |w| w[0]["reinvocationPolicy"] = json!("IfNeeded"),
            "admission-differs webhooks[0].reinvocationPolicy",
        ),
        (|w| w[0]["timeoutSeconds"] = json!(1), "admission-timeout webhooks[0].timeoutSeconds"),
        (
            |w| w[0]["objectSelector"] = json!({"matchLabels": {"a": "b"}}),
            "admission-differs webhooks[0].objectSelector",
        ),
        (
            |w| w[0]["matchConditions"] = json!([{"name": "n", "expression": "false"}]),
            "admission-differs webhooks[0].matchConditions",
        ),
        (
            |w| w[0]["rules"][0]["operations"] = json!(["CREATE"]),
            "admission-differs webhooks[0].rules[0].operations",
        ),
        (|w| w[0]["rules"][0]["scope"] = json!("Cluster"), "admission-differs webhooks[0].rules[0].scope"),
        (
            |w| w[0]["rules"].as_array_mut().unwrap().push(json!({"apiGroups": ["apps"]})),
            "admission-differs webhooks[0].rules[1]",
        ),
        // One namespace more is left out, one less.
        (
            |w| w[0]["namespaceSelector"]["matchExpressions"][1]["values"] = json!(["a", "b", "c"]),
            "admission-differs webhooks[0].namespaceSelector.matchExpressions[1].values",
        ),
        (
            |w| drop(w[0].as_object_mut().unwrap().remove("namespaceSelector")),
            "admission-differs webhooks[0].namespaceSelector",
        ),
        (
            |w| w[1]["clientConfig"]["service"]["path"] = json!("/validate/pods"),
            "admission-differs webhooks[1].clientConfig",
        ),
    ];
    for (change, expected) in cases {
        let found = with(&wanted, |w| change(&mut w["webhooks"]));
        assert_eq!(ids(admission::configuration(&wanted, &found)), [expected]);
    }
}

#[test]
fn policies_and_bindings() {
    let wanted = json!({"kind": "ValidatingAdmissionPolicy", "metadata": {"name": "p"}, "spec": {
        "failurePolicy": "Fail", "matchConstraints": {"resourceRules": [{"resources": ["pods"]}]},
        "validations": [{"expression": "a"}, {"expression": "b"}]}});
    let found = with(&wanted, |p| {
        p["spec"]["validations"][1]["expression"] = json!("true");
        p["spec"]["matchConstraints"]["excludeResourceRules"] = json!([{"resources": ["pods"]}]);
        p["status"] = json!({"typeChecking": {"expressionWarnings": [
            {"fieldRef": "spec.validations[0].expression", "warning": "v1, Kind=Pod:\n undefined field"}]}});
    });
    assert_eq!(admission::policy(&wanted, &wanted), []);
    assert_eq!(
        ids(admission::policy(&wanted, &found)),
        [
            "admission-differs spec.matchConstraints.excludeResourceRules",
            "admission-differs spec.validations[1].expression",
            "policy-types spec.validations[0].expression",
        ]
    );
    let binding = |actions: Value| {
        json!({"kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": "p"},
            "spec": {"policyName": "p", "validationActions": actions}})
    };
    let wanted = binding(json!(["Deny"]));
    for (actions, fine) in [
        (json!(["Deny"]), true),
        (json!(["Audit", "Deny"]), true),
        (json!(["Audit"]), false),
        (json!([]), false),
    ] {
        let findings = ids(admission::binding(&wanted, &binding(actions.clone())));
        assert_eq!(findings.is_empty(), fine, "{actions}");
    }
    let narrowed = with(&wanted, |b| {
        b["spec"]["matchResources"] = json!({"namespaceSelector": {"matchLabels": {"a": "b"}}});
    });
    assert_eq!(ids(admission::binding(&wanted, &narrowed)), ["admission-differs spec.matchResources"]);
}

#[test]
fn definitions_of_other_versions() {
    let wanted = json!({"kind": "CustomResourceDefinition", "metadata": {"name": "x"}, "spec": {
        "scope": "Namespaced", "versions": [{"name": "v1", "served": true, "storage": true,
            "subresources": {"status": {}}, "schema": {"openAPIV3Schema": {"properties": {
                "description": {"type": "string", "description": "One."},
                "mode": {"type": "string", "enum": ["a", "b"]},
                "count": {"type": "integer", "minimum": 0.0}}}}}]}});
    let good =
        json!([{"type": "Established", "status": "True"}, {"type": "NamesAccepted", "status": "True"}]);
    let sound = with(&wanted, |c| c["status"]["conditions"] = good.clone());
    assert_eq!(definitions::definition(&wanted, &sound), []);
    let schema = "/spec/versions/0/schema/openAPIV3Schema/properties";
    let newer = with(&sound, |c| {
        let properties = c.pointer_mut(schema).unwrap();
        properties["more"] = json!({"type": "string"});
        properties["mode"]["enum"] = json!(["a", "b", "c"]);
        properties["description"]["description"] = json!("Another.");
        properties["count"]["minimum"] = json!(0);
    });
    assert_eq!(definitions::definition(&wanted, &newer), []);
    let older = with(&sound, |c| {
        let properties = c.pointer_mut(schema).unwrap().as_object_mut().unwrap();
        properties.remove("count");
        properties["mode"]["enum"] = json!(["a"]);
    });
    let at = "spec.versions[0].schema.openAPIV3Schema.properties";
    assert_eq!(
        ids(definitions::definition(&wanted, &older)),
        [format!("definition-differs {at}.count"), format!("definition-differs {at}.mode.enum")]
    );
    // Keyword by keyword: what this version has, what the cluster has, and what that is.
    let (rule, more) = (json!({"rule": "a", "message": "m"}), json!({"rule": "b"}));
    for (keyword, wanted_value, found_value, expected) in [
        ("maxLength", json!(9), json!(8), Some("definition-narrower")),
        ("maxLength", json!(null), json!(8), Some("definition-narrower")),
        ("maxLength", json!(9), json!(10), None),
        ("maxLength", json!(9), json!(null), None),
        ("minItems", json!(1), json!(2), Some("definition-narrower")),
        ("minItems", json!(2), json!(1), None),
        ("pattern", json!(null), json!("^a$"), Some("definition-narrower")),
        ("pattern", json!("^b$"), json!("^a$"), Some("definition-narrower")),
        ("pattern", json!("^a$"), json!(null), None),
        ("enum", json!(null), json!(["a"]), Some("definition-narrower")),
        ("enum", json!(["a"]), json!(null), None),
        ("enum", json!(["a", "b"]), json!(["a"]), Some("definition-differs")),
        ("required", json!(["a"]), json!(["b", "a"]), Some("definition-narrower")),
        ("required", json!(["a", "b"]), json!(["a"]), None),
        ("x-kubernetes-validations", json!([rule]), json!([more, rule]), Some("definition-narrower")),
        ("x-kubernetes-validations", json!([rule, more]), json!([more]), None),
        ("type", json!("string"), json!("integer"), Some("definition-differs")),
        ("x-kubernetes-list-type", json!("map"), json!(null), Some("definition-differs")),
    ] {
        let of = |value: &Value| {
            with(&sound, |c| {
                let schema = c.pointer_mut(schema).unwrap();
                schema["more"] = json!({"type": "x"});
                schema["more"][keyword] = value.clone();
            })
        };
        let found = definitions::definition(&of(&wanted_value), &of(&found_value));
        let found: Vec<&str> = found.iter().map(|f| f.check.id).collect();
        let expected: Vec<&str> = expected.into_iter().collect();
        assert_eq!(found, expected, "{keyword} {wanted_value} {found_value}");
    }
    // A property of that name is no keyword.
    let named = |c: &mut Value| c.pointer_mut(schema).unwrap()["required"] = json!({"type": "string"});
    assert_eq!(
        ids(definitions::definition(&with(&sound, named), &sound)),
        [format!("definition-differs {at}.required")]
    );
    let other = with(&sound, |c| {
        c["status"]["conditions"] = json!([{"type": "Established", "status": "False", "message": "not yet"},
            {"type": "NamesAccepted", "status": "True"}]);
        c["spec"]["scope"] = json!("Cluster");
        c["spec"]["versions"][0]["name"] = json!("v0");
    });
    assert_eq!(
        told(definitions::definition(&wanted, &other)),
        [
            ("definition-differs", "status.conditions", "the API server doesn't say Established: not yet"),
            ("definition-differs", "spec.scope", "is Cluster; has to be Namespaced"),
            ("definition-differs", "spec.versions", "has no version \"v1\""),
        ]
        .map(|(id, path, message)| (id, path.to_owned(), message.to_owned()))
    );
}

#[test]
fn who_may_have_the_webhook_write() {
    let webhook = json!({"kind": "Deployment", "metadata": {"name": "w", "namespace": "s"}});
    for (client_ca, asked) in [(None, false), (Some(""), false), (Some("/clients/ca.crt"), true)] {
        let found = parts::writers(&webhook, client_ca);
        assert_eq!(found.map(|finding| finding.check.id), (!asked).then_some("anybody-writes"));
    }
}

#[test]
fn deployments() {
    let of = |wanted: i64, available: i64, condition: &str| {
        json!({"kind": "Deployment", "metadata": {"name": "d"}, "spec": {"replicas": wanted}, "status": {
            "availableReplicas": available, "updatedReplicas": available,
            "conditions": [{"type": "Available", "status": condition, "message": "no room"}]}})
    };
    for (deployment, expected) in [
        (of(2, 2, "True"), None),
        (of(2, 1, "True"), Some(("too-few-replicas", "is 1, 2 are wanted"))),
        (of(2, 0, "False"), Some(("not-available", "is 0, 2 are wanted no room"))),
        (of(2, 1, "False"), Some(("not-available", "is 1, 2 are wanted no room"))),
        (of(0, 0, "True"), Some(("not-available", "is 0: none shall run"))),
        (json!({"kind": "Deployment"}), Some(("not-available", "is 0, 1 are wanted"))),
        // Earlier Pods serve, and what was changed doesn't come.
        (
            with(&of(2, 2, "True"), |d| d["metadata"]["generation"] = json!(3)),
            Some(("too-few-replicas", "is 0, the Deployment is at 3: nobody has acted on its last change")),
        ),
        (
            with(&of(2, 2, "True"), |d| d["status"]["updatedReplicas"] = json!(1)),
            Some((
                "too-few-replicas",
                "is 1, 2 are wanted: the others are as they were before the last change",
            )),
        ),
        (
            with(&of(2, 2, "True"), |d| {
                d["status"]["updatedReplicas"] = json!(1);
                let stuck = json!({"type": "Progressing", "status": "False", "message": "no progress"});
                d["status"]["conditions"].as_array_mut().unwrap().push(stuck);
            }),
            Some(("not-available", "is 1 of 2, and it gets no further: no progress")),
        ),
    ] {
        let found = parts::deployment(&deployment).map(|f| (f.check.id, f.message));
        assert_eq!(found, expected.map(|(id, message)| (id, message.to_owned())), "{deployment}");
    }
}

#[test]
fn what_pods_wait_for() {
    let deployment = json!({"spec": {"template": {"spec": {"volumes": [
        {"name": "tls", "secret": {"secretName": "a", "items": [{"key": "tls.crt", "path": "c"}]}},
        {"name": "all", "configMap": {"name": "b"}},
        {"name": "may", "configMap": {"name": "may", "optional": true}},
        {"name": "none", "emptyDir": {}},
        {"name": "p", "projected": {"sources": [{"serviceAccountToken": {}}, {"secret": {"name": "d"}}]}}]}}}});
    let mounts = parts::mounts(&deployment);
    let short: Vec<String> =
        mounts.iter().map(|m| format!("{} {} {} {:?}", m.kind, m.name, m.path, m.keys)).collect();
    assert_eq!(
        short,
        [
            "Secret a spec.template.spec.volumes[0].secret [(\"tls.crt\", \"c\")]",
            "ConfigMap b spec.template.spec.volumes[1].configMap []",
            "Secret d spec.template.spec.volumes[4].projected.sources[1].secret []",
        ]
    );
    let subject = Subject::cluster("Deployment", "d");
    let judged = |mount: &Mount, found| told(parts::mounted(&subject, mount, found)).pop().map(|told| told.2);
    let (whole, half) = (json!({"data": {"tls.crt": ""}}), json!({"data": {"tls.key": ""}}));
    assert_eq!(judged(&mounts[0], Found::There(&whole)), None);
    assert_eq!(judged(&mounts[0], Found::Unread), None);
    let lacks = "takes \"tls.crt\" out of the Secret a, which doesn't have it";
    assert_eq!(judged(&mounts[0], Found::There(&half)).as_deref(), Some(lacks));
    assert_eq!(
        judged(&mounts[1], Found::Absent).as_deref(),
        Some("names the ConfigMap b, which isn't there")
    );
}

#[test]
fn leases() {
    let subject = Subject::cluster("Lease", "l");
    let held = json!({"spec": {"holderIdentity": "m-1", "leaseDurationSeconds": 15}});
    let free = json!({"spec": {"holderIdentity": ""}});
    let judged = |found, ago| parts::lease(&subject, found, ago).map(|f| f.path);
    assert_eq!(judged(Found::There(&held), Some(15)), None);
    assert_eq!(judged(Found::There(&held), Some(16)).as_deref(), Some("spec.renewTime"));
    assert_eq!(judged(Found::There(&held), None).as_deref(), Some("spec.renewTime"));
    assert_eq!(judged(Found::There(&free), Some(0)).as_deref(), Some("spec.holderIdentity"));
    assert_eq!(judged(Found::Absent, None).as_deref(), Some(""));
    assert_eq!(judged(Found::Unread, None), None);
}
