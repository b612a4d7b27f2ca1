use serde::Deserialize;
use serde_json::{Value, json};

use super::cluster::{Answer, date};
use super::shipped::{self, Names, Part};
use super::site::{argument, images, is_blind, object, running_versions, selects, version};
use super::tls::{self, Address};
use super::webhooks;
use crate::check::install::judge::{rights, text};

fn names() -> Names {
    Names {
        system: "outrigger-system".to_owned(),
        host_label: outrigger_core::keys::DPU_HOST.to_owned(),
        rules: "universe".to_owned(),
        resources: "universe".to_owned(),
        core: "imperator-system".to_owned(),
        tenant_rules: "universe".to_owned(),
        priority: "outrigger".to_owned(),
        machines: true,
        offloading: true,
        webhook_self_signed: false,
        manager_self_signed: false,
    }
}

fn shipped(parts: &[Part], names: &Names) -> Vec<Value> {
    shipped::objects(parts, names).unwrap()
}

fn name(object: &Value) -> String {
    let namespace = text(object, "/metadata/namespace");
    let slash = if namespace.is_empty() { "" } else { "/" };
    format!("{} {namespace}{slash}{}", text(object, "/kind"), text(object, "/metadata/name"))
}

#[derive(Deserialize)]
struct Case {
    object: String,
    patch: json_patch::Patch,
    found: Vec<String>,
}

#[test]
fn what_is_shipped_and_what_was_changed() {
    let all = shipped(&[Part::Webhook, Part::Manager], &names());
    let cases: Vec<Case> = serde_yaml::from_str(include_str!("tests.yaml")).unwrap();
    for case in cases {
        let wanted = all.iter().find(|object| name(object) == case.object).expect(&case.object);
        let mut found = wanted.clone();
        json_patch::patch(&mut found, &case.patch).unwrap();
        let mut told: Vec<String> = object(wanted, &Answer::There(found))
            .into_iter()
            .map(|f| format!("{} {}", f.check.id, f.path))
            .collect();
        if case.object.starts_with("ValidatingAdmissionPolicy ") {
            // What comes after something that was taken out has moved.
            told = told.iter().map(|told| whole(told)).collect();
        }
        told.sort();
        told.dedup();
        assert_eq!(told, case.found, "{}", case.object);
    }
    for wanted in &all {
        let findings = object(wanted, &Answer::Absent);
        let is_role = text(wanted, "/apiVersion").starts_with("rbac.");
        assert_eq!(findings.len(), usize::from(!is_role), "{}", name(wanted));
        assert_eq!(object(wanted, &Answer::Unread), []);
    }
}

/// A path without what is inside a list.
fn whole(told: &str) -> String {
    told.split('[').next().unwrap_or_default().to_owned()
}

#[test]
fn what_belongs_where() {
    let count = |parts: &[Part], names: &Names, kind: &str| {
        shipped(parts, names).iter().filter(|object| text(object, "/kind") == kind).count()
    };
    let crd = "CustomResourceDefinition";
    assert_eq!(count(&[Part::Webhook, Part::Manager], &names(), crd), 6);
    assert_eq!(count(&[Part::Agent], &names(), crd), 1);
    assert_eq!(count(&[Part::Webhook], &names(), crd), 0);
    let beside = Names { machines: false, offloading: false, ..names() };
    assert_eq!(count(&[Part::Manager], &beside, crd), 3);
    assert_eq!(count(&[Part::Webhook], &names(), "ValidatingAdmissionPolicy"), 0);
    assert_eq!(count(&[Part::Agent], &names(), "ValidatingWebhookConfiguration"), 0);
    assert_eq!(count(&Part::ALL, &names(), "Deployment"), 3);
    // Nothing twice, though several files have it.
    let mut all: Vec<String> = shipped(&Part::ALL, &names()).iter().map(name).collect();
    let before = all.len();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), before);
}

#[test]
fn an_installation_under_other_names() {
    let other = Names {
        system: "companions".to_owned(),
        host_label: "example.com/host".to_owned(),
        rules: "rules".to_owned(),
        resources: "resources".to_owned(),
        core: "core".to_owned(),
        tenant_rules: "own".to_owned(),
        priority: "first".to_owned(),
        ..names()
    };
    let all = shipped(&Part::ALL, &other);
    for gone in [
        "outrigger-system",
        "\"universe\"",
        "'universe'",
        "imperator-system",
        "provisioning.dpu",
        "== 'outrigger'",
    ] {
        let has = |o: &&Value| {
            // What a definition says to people is nobody's name.
            text(o, "/kind") != "CustomResourceDefinition" && o.to_string().contains(gone)
        };
        assert_eq!(all.iter().find(has).map(name), None, "{gone}");
    }
    let there: Vec<String> = all.iter().map(name).collect();
    for wanted in [
        "RoleBinding rules/outrigger-manager-admin-rules",
        "RoleBinding rules/outrigger-webhook-admin-rules",
        "RoleBinding resources/outrigger-manager-admin-resources",
        "RoleBinding own/outrigger-agent",
        "RoleBinding core/outrigger-webhook",
        "Namespace rules",
        "Namespace resources",
        "Namespace own",
        "Namespace companions",
        "Deployment companions/outrigger-agent",
    ] {
        assert!(there.contains(&wanted.to_owned()), "{wanted}: {there:#?}");
    }
}

#[test]
fn namespaces_that_there_are_none_of() {
    let there = |parts: &[Part], names: &Names| -> Vec<String> {
        let is_one = |told: &String| told.starts_with("Namespace ") || told.starts_with("RoleBinding ");
        shipped(parts, names).iter().map(name).filter(is_one).collect()
    };
    let none = Names { tenant_rules: String::new(), ..names() };
    assert_eq!(there(&[Part::Agent], &none), ["Namespace outrigger-system"]);
    let kind = |o: &&Value| text(o, "/kind") == "CustomResourceDefinition";
    assert_eq!(shipped(&[Part::Agent], &none).iter().filter(kind).map(name).next(), None);
    let none = Names { rules: String::new(), resources: String::new(), ..names() };
    for told in there(&[Part::Webhook, Part::Manager], &none) {
        assert!(!told.contains("universe") && !told.contains(" /"), "{told}");
    }
    // What is the agent's is no matter of the webhook's.
    let own = Names { tenant_rules: "own".to_owned(), ..names() };
    let expected = ["Namespace outrigger-system", "Namespace own", "RoleBinding own/outrigger-agent"];
    assert_eq!(there(&[Part::Agent], &own), expected);
}

#[test]
fn who_may_read_nothing_sees_nothing() {
    let all = shipped(&[Part::Webhook, Part::Manager], &names());
    let unread: Vec<(Value, Answer)> = all.iter().map(|wanted| (wanted.clone(), Answer::Unread)).collect();
    assert!(is_blind(&unread));
    for (kind, blind) in [("Deployment", false), ("MutatingWebhookConfiguration", false), ("Namespace", true)]
    {
        let mut some = unread.clone();
        let at = some.iter().position(|(wanted, _)| text(wanted, "/kind") == kind).unwrap();
        some[at].1 = Answer::Absent;
        assert_eq!(is_blind(&some), blind, "{kind}");
    }
}

#[test]
fn dates_of_api_servers() {
    assert_eq!(date("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777));
    assert_eq!((date(""), date("now")), (None, None));
}

#[test]
fn what_runs_is_what_pods_have() {
    let deployment = json!({"spec": {"selector": {"matchLabels": {"a": "1"}}, "template": {"spec": {"containers": [
        {"name": "manager", "image": "o:0.3.0"}]}}}});
    let pod = |phase: &str, image: &str| {
        json!({"metadata": {"labels": {"a": "1"}}, "status": {"phase": phase}, "spec": {"containers": [
            {"name": "mesh", "image": "mesh:9.9.9"}, {"name": "manager", "image": image}]}})
    };
    let pods = [pod("Running", "o:0.1.0"), pod("Failed", "o:0.0.1"), pod("Running", "o:0.1.0")];
    let images = images(&deployment, &pods);
    assert_eq!(images, [("o:0.1.0".to_owned(), 2)]);
    let versions = |images| -> Vec<String> {
        running_versions(&deployment, images).iter().map(ToString::to_string).collect()
    };
    assert_eq!((versions(&images), versions(&[])), (vec!["0.1.0".to_owned()], vec!["0.3.0".to_owned()]));
}

#[test]
fn each_part_needs_what_its_files_give_it() {
    let of = |names: &Names, part: Part| {
        let account = rights::Account { namespace: names.system.clone(), name: part.name().to_owned() };
        rights::needed(&shipped(&Part::ALL, names), &account)
    };
    let own = of(&names(), Part::Webhook);
    let told = |rights: &std::collections::BTreeSet<rights::Right>| -> Vec<String> {
        rights.iter().map(ToString::to_string).collect()
    };
    assert!(told(&own).contains(&"watch tenants.outrigger.dev".to_owned()));
    assert!(told(&own).contains(&"update configmaps in imperator-system".to_owned()));
    assert!(
        told(&own).contains(&"list adminworkloadrules.workload.universe.nvidia.com in universe".to_owned())
    );
    assert!(!told(&own).iter().any(|right| right.contains("secrets")));
    let more = of(&Names { webhook_self_signed: true, ..names() }, Part::Webhook);
    let secret = "patch secrets/outrigger-webhook-self-signed in outrigger-system".to_owned();
    assert!(told(&more).contains(&secret), "{:?}", told(&more));
    let lease = "patch leases.coordination.k8s.io/outrigger-manager in outrigger-system".to_owned();
    assert!(told(&of(&names(), Part::Manager)).contains(&lease));
    // Whatever may be granted is allowed, and everything that is needed is among that.
    let allowed = shipped::roles(&names()).unwrap();
    for part in Part::ALL {
        let account =
            rights::Account { namespace: "outrigger-system".to_owned(), name: part.name().to_owned() };
        assert_eq!(rights::lacking(&allowed, &account, &of(&names(), part)), Vec::<&rights::Right>::new());
        assert!(!of(&names(), part).is_empty());
    }
}

#[test]
fn what_deployments_are_told() {
    let deployment = json!({"metadata": {"labels": {"app.kubernetes.io/version": "1.2.3"}}, "spec": {"template": {"spec":
        {"containers": [{"image": "x:latest", "args": ["webhook", "--tls=self-signed", "--a-b", "c", "--tlsx=1"],
            "env": [{"name": "OUTRIGGER_TENANT_ID", "value": "blue"}, {"name": "OUTRIGGER_NONE"},
                {"name": "OUTRIGGER_FROM", "valueFrom": {}}]}]}}}});
    let of = |flag| argument(&deployment, flag);
    assert_eq!(of("tls").as_deref(), Some("self-signed"));
    assert_eq!(of("a-b").as_deref(), Some("c"));
    assert_eq!(of("tenant-id").as_deref(), Some("blue"));
    assert_eq!((of("none").as_deref(), of("tl"), of("from")), (Some(""), None, None));
    assert_eq!(version(&deployment).map(|v| v.to_string()).as_deref(), Some("1.2.3"));
    let pod = json!({"metadata": {"labels": {"a": "1", "b": "2"}}});
    assert!(selects(Some(&json!({"a": "1"})), &pod) && !selects(Some(&json!({"a": "2"})), &pod));
    assert!(!selects(None, &pod) && !selects(Some(&json!({"a": "1"})), &json!({})));
}

#[test]
fn addresses_and_bundles() {
    let of = |url: &str| Address::of_url(url).map(|address| address.to_string());
    assert_eq!(of("https://a.b/c").as_deref(), Some("a.b:443"));
    assert_eq!(of("https://[::1]:1/c").as_deref(), Some("::1:1"));
    assert_eq!((of("http://a.b"), of("unix:///x"), of("nothing")), (None, None, None));
    use crate::check::install::judge::certificates::Bundle;
    assert_eq!(tls::bundle(b" \n"), Bundle::Empty);
    assert!(matches!(tls::decoded("%"), Err(Bundle::Unreadable(_))));
    assert_eq!(tls::bundle(b"nothing of that kind"), Bundle::Of(vec![]));
    let secret = json!({"kind": "Secret", "data": {"a": "eA=="}});
    let map = json!({"kind": "ConfigMap", "data": {"a": "x"}});
    assert_eq!((tls::data(&secret, "a"), tls::data(&map, "a")), (Some(b"x".to_vec()), Some(b"x".to_vec())));
    assert_eq!(tls::data(&secret, "b"), None);
}

#[test]
fn entries_that_call_one_place_are_told_of_together() {
    let all = shipped(&[Part::Webhook], &names());
    let wanted = all.iter().find(|o| name(o) == "MutatingWebhookConfiguration outrigger").unwrap();
    let mut found = wanted.clone();
    found["webhooks"][1]["clientConfig"]["caBundle"] = json!("eA==");
    found["webhooks"][2]["clientConfig"] = json!({"url": "https://h:1/mutate/pods"});
    let foreign = json!({"name": "other", "clientConfig": {"url": "https://other"}});
    found["webhooks"].as_array_mut().unwrap().push(foreign);
    assert_eq!(
        webhooks::told(wanted, &found),
        [
            "webhooks[0].clientConfig.caBundle: 2 of outrigger-webhook.outrigger-system.svc:443",
            "webhooks[1].clientConfig.caBundle: 1 of outrigger-webhook.outrigger-system.svc:443",
            "webhooks[2].clientConfig.caBundle: 1 of h:1",
        ]
    );
}
