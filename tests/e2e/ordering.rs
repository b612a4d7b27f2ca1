//! Workloads that wait for their companions: the readiness gate in the tenant's cluster, and the rule's ordering.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, ListParams};
use outrigger_api::conditions::Status;
use outrigger_core::keys;
use outrigger_tests::outrigger::{Outrigger, ports};
use outrigger_tests::tenant::{Tenant, is_ready, namespace, rule_for, rule_with, takes_pods};
use outrigger_tests::{InWords, condition_of, create, dry_run, eventually, gate, holds, until};
use serde_json::{Value, json};

const OTHER: &str = "example.com/own";

fn pod(t: &Tenant, name: &str, app: &str, gates: &[&str]) -> Value {
    let gates: Vec<Value> = gates.iter().map(|gate| json!({"conditionType": gate})).collect();
    json!({"metadata": {"name": name, "labels": {"app": app}},
        "spec": {"nodeName": t.node("a"), "readinessGates": gates, "containers": [{"name": "c", "image": "i"}]}})
}

/// The readiness gates of a Pod as it would be created.
async fn gates(pods: &Api<Pod>, pod: &Value) -> Result<Vec<String>, String> {
    let created = dry_run(pods, pod).await.in_words()?;
    let gates = created.spec.and_then(|spec| spec.readiness_gates).unwrap_or_default();
    Ok(gates.into_iter().map(|gate| gate.condition_type).collect())
}

/// Waits until a Pod would get these gates.
async fn gets(what: &str, pods: &Api<Pod>, pod: &Value, expected: &[&str]) {
    eventually(what, || async {
        let found = gates(pods, pod).await?;
        holds(found == expected, format!("{found:?}"))
    })
    .await;
}

fn before_ready(app: &str) -> Value {
    let mut spec = rule_for("app", app);
    spec["ordering"] = json!("BeforeReady");
    spec
}

#[tokio::test]
async fn pods_that_wait_for_companions_get_the_gate_and_others_do_not() {
    let t = Tenant::without_agent(Outrigger::shared().await, "or-gate", &[("a", 1)]).await;
    let elsewhere = format!("{}-elsewhere", t.source);
    t.outrigger.plane.tenant.apply(&[namespace(&elsewhere)]).unwrap();
    takes_pods(&t.cluster, &elsewhere).await;
    gate::start_agent(&t, &[&t.source, &elsewhere], &[]);
    let (work, away): (_, Api<Pod>) = (t.work(), Api::namespaced(t.cluster.clone(), &elsewhere));

    t.own_rule("fw", before_ready("web")).await.unwrap();
    t.own_rule("log", rule_for("app", "db")).await.unwrap();
    let ours = keys::COMPANIONS_GATE;
    gets("a matching Pod waits", &work, &pod(&t, "w", "web", &[]), &[ours]).await;
    // Others' gates stay where they are, and ours isn't added twice.
    for (has, expected) in [
        (&[OTHER][..], &[OTHER, ours][..]),
        (&[ours, OTHER], &[ours, OTHER]),
        (&[OTHER, ours], &[OTHER, ours]),
    ] {
        assert_eq!(gates(&work, &pod(&t, "w", "web", has)).await.unwrap(), expected);
    }
    // A rule without an ordering, no rule, and a namespace whose Pods are no workloads.
    for (pods, app) in [(&work, "db"), (&work, "other"), (&away, "web")] {
        assert_eq!(gates(pods, &pod(&t, "w", app, &[OTHER])).await.unwrap(), [OTHER], "{app}");
    }
    create(&work, &pod(&t, "kept", "web", &[])).await.unwrap();
    let stored = work.get("kept").await.unwrap().spec.unwrap().readiness_gates.unwrap_or_default();
    assert_eq!(stored.len(), 1, "{stored:?}");

    // The label of a namespace asks for the gate on all Pods, for rules that the agent can't know.
    let label = json!({"metadata": {"labels": {keys::COMPANIONS_GATE_NAMESPACE: "true"}}});
    for name in [&t.source, &elsewhere] {
        t.outrigger.plane.tenant.patch(&format!("namespace/{name}"), &[], &label).unwrap();
    }
    gets("all Pods of the namespace wait", &work, &pod(&t, "w", "other", &[OTHER]), &[OTHER, ours]).await;
    assert_eq!(gates(&away, &pod(&t, "w", "web", &[])).await.unwrap(), [""; 0], "nobody would open it");
    let no_label = json!({"metadata": {"labels": {keys::COMPANIONS_GATE_NAMESPACE: null}}});
    t.outrigger.plane.tenant.patch(&format!("namespace/{}", t.source), &[], &no_label).unwrap();
    gets("only matching Pods wait", &work, &pod(&t, "w", "other", &[]), &[]).await;

    // The last rule with an ordering loses it.
    t.own_rule("fw", rule_for("app", "web")).await.unwrap();
    gets("no Pod waits", &work, &pod(&t, "w", "web", &[]), &[]).await;
}

#[tokio::test]
async fn a_gate_that_nobody_serves_holds_no_pod_up() {
    let t = Tenant::without_agent(Outrigger::shared().await, "or-down", &[("a", 1)]).await;
    gate::start_agent(&t, &[&t.source], &[]);
    t.own_rule("fw", before_ready("web")).await.unwrap();
    gets("the gate is served", &t.work(), &pod(&t, "w", "web", &[]), &[keys::COMPANIONS_GATE]).await;
    let [nobody] = ports().unwrap();
    gate::register(&t, nobody, &[&t.source]);
    gets("the Pod is created without it", &t.work(), &pod(&t, "w", "web", &[]), &[]).await;
    create(&t.work(), &pod(&t, "w", "web", &[])).await.unwrap();
    t.companion().await;
}

#[tokio::test]
async fn an_agent_signs_the_certificate_of_its_gate_and_changes_nothing_else_of_the_configuration() {
    let t = Tenant::without_agent(Outrigger::shared().await, "or-signed", &[("a", 1)]).await;
    gate::start_self_signed_agent(&t, &[&t.source]);
    t.own_rule("fw", before_ready("web")).await.unwrap();
    gets("the API server trusts it", &t.work(), &pod(&t, "w", "web", &[]), &[keys::COMPANIONS_GATE]).await;
    let agent = "--as=system:serviceaccount:outrigger-system:outrigger-agent";
    let change = |name: &str, field: &str, value: Value| {
        let path = format!("/webhooks/0/{field}");
        let patch = json!([{"op": "replace", "path": path, "value": value}]);
        let object = format!("mutatingwebhookconfiguration/{name}");
        t.outrigger.plane.tenant.patch(&object, &[agent, "--dry-run=server"], &patch).in_words()
    };
    let name = keys::GATE_CONFIGURATION;
    for (field, value) in [
        ("failurePolicy", json!("Fail")),
        ("clientConfig/service/name", json!("other")),
        ("rules/0/resources", json!(["secrets"])),
        ("namespaceSelector", json!({})),
    ] {
        // API servers take a moment to enforce a new policy.
        eventually(&format!("{field} is refused"), || async {
            let error = change(name, field, value.clone()).err().unwrap_or_default();
            holds(error.contains("clientConfig.caBundle of its own entries only"), error)
        })
        .await;
    }
    let bundle = t.outrigger.plane.tenant.get(&["mutatingwebhookconfiguration", name]).unwrap()["webhooks"]
        [0]["clientConfig"]["caBundle"]
        .clone();
    change(name, "clientConfig/caBundle", bundle).unwrap();
    let error = change("another", "failurePolicy", json!("Fail")).unwrap_err();
    assert!(error.contains("orbidden"), "{error}");
}

#[tokio::test]
async fn a_rule_that_gets_an_ordering_replaces_no_companion_and_says_that_nothing_enforces_it() {
    let t = Tenant::new(Outrigger::shared().await, "or-switch", &[("a", 1)]).await;
    t.own_rule("fw", rule_for("app", "web")).await.unwrap();
    t.web("w").await;
    t.ready(1).await;
    let (before, rule) = (t.uids().await.unwrap(), t.rules().get("fw").await.unwrap());
    assert_eq!(rule.spec.ordering, "Parallel");
    t.own_rule("fw", rule_with("/ordering", json!("BeforeReady"))).await.unwrap();
    until("the ordering arrives", &t.rules(), "fw", |rule| {
        holds(rule.spec.ordering == "BeforeReady", rule.spec.ordering)
    })
    .await;
    t.keeps(&before, Duration::from_secs(3)).await;
    // This agent has no gate.
    let events: Api<Event> = Api::namespaced(t.cluster.clone(), &t.source);
    eventually("an Event on the rule", || async {
        let all = events.list(&ListParams::default()).await.in_words()?;
        let found = all.items.iter().find(|event| event.reason.as_deref() == Some("OrderingNotEnforced"));
        let about = found.and_then(|event| event.regarding.as_ref()).and_then(|about| about.name.clone());
        holds(about.as_deref() == Some("fw"), format!("{about:?}"))
    })
    .await;
    // So does the condition, as long as that is so.
    let (_, said) = t.own_condition("fw", "Accepted", Status::True, "OrderingNotEnforced").await;
    assert!(
        said.contains("spec.ordering: is BeforeReady") && said.ends_with("enable the agent's gate"),
        "{said}"
    );
    t.outrigger.plane.command(&format!("stop agent-{}", t.id)).unwrap();
    gate::start_agent(&t, &[&t.source], &[]);
    let (_, said) = t.own_condition("fw", "Accepted", Status::True, "Valid").await;
    assert_eq!(said, "the rule is served");
    t.outrigger.plane.command(&format!("stop agent-{}", t.id)).unwrap();
    t.start_agent(&[]);
    t.own_condition("fw", "Accepted", Status::True, "OrderingNotEnforced").await;
}

#[tokio::test]
async fn the_stand_in_for_kubelets_honours_readiness_gates() {
    let t = Tenant::without_agent(Outrigger::shared().await, "or-kubelet", &[("a", 1)]).await;
    create(&t.work(), &pod(&t, "gated", "web", &[OTHER, "example.com/second"])).await.unwrap();
    create(&t.work(), &pod(&t, "free", "web", &[])).await.unwrap();
    until("the Pod without gates is ready", &t.work(), "free", |pod| holds(is_ready(&pod), "not yet")).await;
    let set = |gate: &str, status: &str| {
        let patch = json!({"status": {"conditions": [{"type": gate, "status": status}]}});
        let more = ["-n", &t.source, "--subresource=status", "--type=strategic"];
        t.outrigger.plane.tenant.patch("pod/gated", &more, &patch).unwrap();
    };
    let is = async |ready: bool| {
        until(&format!("ready: {ready}"), &t.work(), "gated", |pod| {
            let found = condition_of(&pod, "Ready");
            holds(found["status"] == if ready { "True" } else { "False" }, found.to_string())
        })
        .await;
    };
    is(false).await;
    set(OTHER, "True");
    is(false).await;
    set("example.com/second", "True");
    is(true).await;
    set(OTHER, "False");
    is(false).await;
}
