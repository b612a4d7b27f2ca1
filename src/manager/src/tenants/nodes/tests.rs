use outrigger_runtime::cache::Change;
use outrigger_runtime::fake_api::{FakeApi, failure, not_found};

use super::*;
use crate::fixtures;

#[test]
fn a_patch_keeps_what_others_have_put_there() {
    let foreign = json!({"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"});
    let old = json!({"key": keys::TENANT, "value": "red", "effect": "NoSchedule"});
    let dpu = Dpu {
        host: None,
        marks: Marks::default(),
        ready: true,
        taints: vec![old, foreign.clone()],
        node: outrigger_core::node::Node::default(),
        resource_version: "7".into(),
    };
    let marks =
        Marks { handover: Some("blue".into()), ..Marks::of(Some(&TenantId::new("blue").unwrap()), true) };
    assert_eq!(
        patch(&dpu, &marks),
        json!({"metadata": {"resourceVersion": "7", "labels": {keys::NODE_TENANT: "blue"}},
            "spec": {"taints": [foreign,
                {"key": keys::TENANT, "value": "blue", "effect": "NoSchedule"},
                {"key": keys::HANDOVER, "value": "blue", "effect": "NoSchedule"}]}})
    );
    assert_eq!(patch(&dpu, &Marks::default())["metadata"]["labels"][keys::NODE_TENANT], Value::Null);
    assert_eq!(patch(&dpu, &Marks::default())["spec"]["taints"], json!([foreign]));
}

#[test]
fn pods_that_nobody_ends_are_looked_for_less_often() {
    let pod = |end: serde_json::Value| -> Owned {
        let pod = json!({"metadata": {"name": "p", "deletionTimestamp": end}});
        (TenantId::new("red").unwrap(), serde_json::from_value(pod).unwrap())
    };
    let (stuck, soon, stays) =
        (pod(json!("2026-01-01T00:00:00Z")), pod(json!("2026-01-01T00:01:30Z")), pod(Value::Null));
    let now = "2026-01-01T00:02:00Z".parse().unwrap();
    assert_eq!(pause(&[stuck.clone(), stuck.clone()], now), STUCK.0);
    for others in [vec![], vec![stuck.clone(), soon], vec![stuck, stays]] {
        assert_eq!(pause(&others, now), PAUSE, "{others:?}");
    }
}

/// A Pod in a namespace in which the manager has no rights, and one after it.
#[tokio::test]
async fn a_pod_that_cannot_be_deleted_keeps_no_other() {
    let api = FakeApi::default();
    let pod = |name: &str| -> Owned {
        let pod = json!({"metadata": {"name": name, "namespace": "n", "uid": "u"}});
        (TenantId::new("red").unwrap(), serde_json::from_value(pod).unwrap())
    };
    api.answers("DELETE", "/api/v1/namespaces/n/pods/a", 403, json!({}));
    api.answers("DELETE", "/api/v1/namespaces/n/pods/b", 200, json!({}));
    assert!(clear(&api.client(), "dpu", &[pod("a"), pod("b")]).await.is_err());
    assert_eq!(api.calls("DELETE").len(), 2);
}

#[tokio::test]
async fn pods_are_deleted_only_when_the_tenants_are_as_they_are_known() {
    let tenant = |generation: i64| {
        json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": "Tenant",
            "metadata": {"name": "blue", "uid": "u", "generation": generation}, "spec": {}})
    };
    let (api, registry) = (FakeApi::default(), Registry::new(Default::default(), Vec::new()));
    let current = async || {
        let losers = BTreeSet::from([TenantId::new("blue").unwrap()]);
        are_current(&api.client(), &registry, losers, &Ownership::Nobody).await.ok()
    };
    const TENANT: &str = "/apis/outrigger.dev/v1alpha1/tenants/blue";
    api.answers("GET", TENANT, 200, tenant(2));
    assert_eq!(current().await, Some(false), "it isn't known here at all");
    registry.tenant(Change::Applied(fixtures::object(tenant(1))));
    assert_eq!(current().await, Some(false), "it may have got the host back");
    registry.tenant(Change::Applied(fixtures::object(tenant(2))));
    assert_eq!(current().await, Some(true));
    api.answers("GET", TENANT, 503, json!({}));
    assert_eq!(current().await, None);
    api.answers("GET", TENANT, 404, not_found());
    assert_eq!(current().await, Some(false), "the watch has yet to show its end");
}

#[tokio::test]
async fn a_tenant_gets_a_dpu_when_its_deletion_waits_for_the_manager() {
    let (api, node) = (FakeApi::default(), "/api/v1/nodes/dpu");
    let context = fixtures::context(api.client());
    let tenant = |finalizers: Value| -> Tenant {
        fixtures::object(json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": "Tenant",
            "metadata": {"name": "blue", "uid": "u", "finalizers": finalizers}, "spec": {"hosts": ["h"]}}))
    };
    let dpu = json!({"metadata": {"name": "dpu", "labels": {keys::DPU_HOST: "h"}}});
    let registered: Node = fixtures::object(dpu.clone());
    context.caches.registry.node("dpu", Some(&registered));
    api.answers("GET", "/api/v1/pods", 200, json!({"metadata": {}, "items": []}));
    api.answers("GET", "/apis/outrigger.dev/v1alpha1/tenants/blue", 200, json!(tenant(json!([]))));
    api.answers("PATCH", node, 200, dpu);
    let handovers = Handovers::default();
    context.caches.registry.tenant(Change::Applied(tenant(json!([]))));
    assert_eq!(handovers.step(&context, "dpu").await.unwrap(), Action::Done);
    assert!(api.calls("PATCH").is_empty(), "it may be gone already");
    let touched = context.caches.registry.tenant(Change::Applied(tenant(json!([keys::TENANT_FINALIZER]))));
    assert_eq!(touched.nodes, ["dpu"]);
    assert_eq!(handovers.step(&context, "dpu").await.unwrap(), Action::Requeue(Duration::ZERO));
    assert_eq!(api.calls("PATCH").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn marks_that_somebody_removes_each_time_are_written_with_exponential_backoff() {
    let api = FakeApi::default();
    let context = fixtures::context(api.client());
    let tenant = json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": "Tenant",
        "metadata": {"name": "blue", "uid": "u", "finalizers": [keys::TENANT_FINALIZER]}, "spec": {"hosts": ["h"]}});
    let unmarked = json!({"metadata": {"name": "dpu", "labels": {keys::DPU_HOST: "h"}}});
    let registered: Node = fixtures::object(unmarked.clone());
    context.caches.registry.node("dpu", Some(&registered));
    api.answers("GET", "/api/v1/pods", 200, json!({"metadata": {}, "items": []}));
    api.answers("GET", "/apis/outrigger.dev/v1alpha1/tenants/blue", 200, tenant.clone());
    // Whatever is written, the Node has no marks when the next step looks at it.
    api.answers("PATCH", "/api/v1/nodes/dpu", 200, unmarked);
    context.caches.registry.tenant(Change::Applied(fixtures::object(tenant)));
    let handovers = Handovers::default();
    let mut pauses = Vec::new();
    for writes in 1..8 {
        assert_eq!(handovers.step(&context, "dpu").await.unwrap(), Action::Requeue(Duration::ZERO));
        let Action::Requeue(pause) = handovers.step(&context, "dpu").await.unwrap() else {
            panic!("nothing brings the Node back")
        };
        assert_eq!(api.calls("PATCH").len(), writes);
        pauses.push(pause.as_secs());
        tokio::time::sleep(pause).await;
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
}

#[tokio::test]
async fn a_dpu_is_not_taken_from_a_tenant_that_has_got_it_since() {
    let (api, node) = (FakeApi::default(), "/api/v1/nodes/dpu");
    let context = crate::fixtures::context(api.client());
    let tenant = |name: &str, generation: i64, hosts: &[&str]| {
        json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": "Tenant",
            "metadata": {"name": name, "uid": name, "generation": generation, "finalizers": [keys::TENANT_FINALIZER]},
            "spec": {"hosts": hosts}})
    };
    let has = |tenant: Value| {
        let name = tenant["metadata"]["name"].as_str().unwrap();
        api.answers("GET", &format!("/apis/outrigger.dev/v1alpha1/tenants/{name}"), 200, tenant.clone());
    };
    // The cache has the Tenants of before.
    for known in [tenant("red", 1, &["h"]), tenant("blue", 1, &[])] {
        context.caches.registry.tenant(Change::Applied(serde_json::from_value(known.clone()).unwrap()));
        has(known);
    }
    let dpu = json!({"metadata": {"name": "dpu", "resourceVersion": "1",
        "labels": {keys::DPU_HOST: "h", keys::NODE_TENANT: "blue"}}});
    let registered: Node = serde_json::from_value(dpu.clone()).unwrap();
    context.caches.registry.node("dpu", Some(&registered));
    api.answers("GET", "/api/v1/pods", 200, json!({"metadata": {}, "items": []}));
    api.answers("PATCH", node, 200, dpu);
    let handovers = Handovers::default();
    for newer in [tenant("red", 2, &[]), tenant("blue", 2, &["h"])] {
        let name = newer["metadata"]["name"].clone();
        has(newer);
        assert_eq!(handovers.step(&context, "dpu").await.unwrap(), Action::Requeue(PAUSE));
        assert!(api.calls("PATCH").is_empty(), "{name} is another one by now");
        has(tenant(name.as_str().unwrap(), 1, if name == "red" { &["h"] } else { &[] }));
    }
    assert_eq!(handovers.step(&context, "dpu").await.unwrap(), Action::Requeue(Duration::ZERO));
    assert_eq!(api.calls("PATCH").len(), 1, "it is red's");
}

#[tokio::test]
async fn a_label_without_a_tenant_is_removed_if_a_manager_has_written_it() {
    const NODE: &str = "/api/v1/nodes/dpu";
    const TENANT: &str = "/apis/outrigger.dev/v1alpha1/tenants/blue";
    let node = |manager: &str| {
        let fields = json!({"f:metadata": {"f:labels": {format!("f:{}", keys::NODE_TENANT): {}}}});
        json!({"metadata": {"name": "dpu", "resourceVersion": "1",
            "labels": {keys::DPU_HOST: "h", keys::NODE_TENANT: "blue"},
            "managedFields": [{"manager": manager, "fieldsV1": fields}]}})
    };
    let pods = |namespaces: &[&str]| {
        let items = namespaces.iter().map(|n| json!({"metadata": {"name": "p", "namespace": n}}));
        json!({"metadata": {}, "items": items.collect::<Vec<_>>()})
    };
    let tenant = json!({"metadata": {"name": "blue", "uid": "u"}});
    for (manager, exists, namespaces, removed) in [
        (keys::MANAGER, false, &[][..], true),
        ("kubectl-label", false, &[], false),
        (keys::MANAGER, true, &[], false),
        (keys::MANAGER, false, &["tenant-blue"], false),
    ] {
        let api = FakeApi::default();
        let context = fixtures::context(api.client());
        context.states.set_tenant("tenant-blue", TenantId::new("blue").ok());
        let seen: Node = fixtures::object(node(manager));
        context.caches.registry.node("dpu", Some(&seen));
        api.answers("GET", NODE, 200, node(manager));
        let (code, found) = if exists { (200, tenant.clone()) } else { (404, not_found()) };
        api.answers("GET", TENANT, code, found);
        api.answers("GET", "/api/v1/pods", 200, pods(namespaces));
        api.answers("PATCH", NODE, 200, node(manager));
        Handovers::default().step(&context, "dpu").await.unwrap();
        assert_eq!(
            api.calls("PATCH").len(),
            usize::from(removed),
            "{manager} exists: {exists} {namespaces:?}"
        );
    }
}

#[tokio::test]
async fn a_pod_in_a_namespace_that_no_watch_has_shown_yet_holds_the_node() {
    let (api, states) = (FakeApi::default(), TenantStates::default());
    let pod = |namespace: &str| json!({"metadata": {"name": "p", "namespace": namespace}});
    let listed = json!({"metadata": {}, "items": [pod("tenant-blue"), pod("kube-system")]});
    api.answers("GET", "/api/v1/pods", 200, listed);
    let namespace = |name: &str, labels: Value| json!({"metadata": {"name": name, "labels": labels}});
    api.answers(
        "GET",
        "/api/v1/namespaces/tenant-blue",
        200,
        namespace("tenant-blue", json!({keys::TENANT: "blue"})),
    );
    api.answers("GET", "/api/v1/namespaces/kube-system", 200, namespace("kube-system", json!({"a": "b"})));
    let found = async |verdict: Ownership| {
        let found = others(&api.client(), &states, &verdict, "dpu").await.unwrap();
        found
            .into_iter()
            .map(|(owner, pod)| format!("{owner} {}", pod.namespace().unwrap()))
            .collect::<Vec<_>>()
    };
    assert_eq!(found(Ownership::Nobody).await, ["blue tenant-blue"]);
    assert!(found(Ownership::Of(TenantId::new("blue").unwrap())).await.is_empty());
    api.answers("GET", "/api/v1/namespaces/tenant-blue", 503, json!({}));
    assert!(others(&api.client(), &states, &Ownership::Nobody, "dpu").await.is_err());
}

/// The manager has no RoleBinding in a second namespace that somebody has labeled for the former tenant.
#[tokio::test]
async fn a_dpu_with_pods_of_a_second_namespace_is_given_to_nobody() {
    let api = FakeApi::default();
    let context = fixtures::context(api.client());
    for (name, hosts) in [("red", &[][..]), ("blue", &["h"])] {
        let tenant = json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": "Tenant",
            "metadata": {"name": name, "uid": name, "generation": 1, "finalizers": [keys::TENANT_FINALIZER]},
            "spec": {"hosts": hosts}});
        context.caches.registry.tenant(Change::Applied(fixtures::object(tenant.clone())));
        api.answers("GET", &format!("/apis/outrigger.dev/v1alpha1/tenants/{name}"), 200, tenant);
    }
    for namespace in ["tenant-red", "stray"] {
        context.states.set_tenant(namespace, TenantId::new("red").ok());
    }
    let dpu = json!({"metadata": {"name": "dpu", "resourceVersion": "1",
            "labels": {keys::DPU_HOST: "h", keys::NODE_TENANT: "red"}},
        "spec": {"taints": [{"key": keys::HANDOVER, "value": "blue", "effect": "NoSchedule"}]}});
    let dpu: Node = fixtures::object(dpu);
    context.caches.registry.node("dpu", Some(&dpu));
    let pod = json!({"metadata": {"name": "p", "namespace": "stray", "uid": "p"}});
    api.answers("GET", "/api/v1/pods", 200, json!({"metadata": {}, "items": [pod]}));
    api.answers("DELETE", "/api/v1/namespaces/stray/pods/p", 403, failure(403, "Forbidden"));
    api.answers("PATCH", "/api/v1/nodes/dpu", 200, json!(dpu));
    let handovers = Handovers::default();
    let refused = handovers.step(&context, "dpu").await;
    assert!(matches!(refused, Err(kube::Error::Api(status)) if status.code == 403));
    assert!(api.calls("PATCH").is_empty(), "the Node's marks stay");
    // An administrator has deleted the Pod.
    api.answers("GET", "/api/v1/pods", 200, json!({"metadata": {}, "items": []}));
    assert_eq!(handovers.step(&context, "dpu").await.unwrap(), Action::Requeue(Duration::ZERO));
    let (_, patch) = api.calls("PATCH").remove(0);
    assert!(patch["metadata"]["labels"][keys::NODE_TENANT].is_null(), "{patch}");
}
