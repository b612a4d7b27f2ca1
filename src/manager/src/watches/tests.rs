use futures::FutureExt;
use outrigger_runtime::fake_api::FakeApi;
use outrigger_runtime::watch::Event;

use super::*;
use crate::fixtures;

#[tokio::test]
async fn a_companion_of_an_admin_rule_is_its_latest_tenants_until_it_is_deleted() {
    let context = fixtures::context(FakeApi::default().client());
    let companion = |tenant: &str, version: &str| -> Pod {
        fixtures::object(json!({"metadata": {"name": "c", "namespace": keys::ADMIN_NAMESPACE,
            "uid": "u", "resourceVersion": version, "labels": {keys::TENANT: tenant, keys::WORKLOAD: "w"},
            "annotations": {keys::ADMIN_RULE: "r", keys::RULE_UID: "u"}}}))
    };
    let counts = || {
        ["blue", "red"].map(|tenant| {
            context.states.admin_companions_of(&TenantId::new(tenant).unwrap()).lock().keys().count()
        })
    };
    context.feeds.pods.event(Event::Applied(companion("blue", "1")));
    assert_eq!(counts(), [1, 0]);
    context.feeds.pods.event(Event::Applied(companion("red", "2")));
    assert_eq!(counts(), [0, 1], "an administrator has changed its label");
    context.feeds.pods.event(Event::Deleted(companion("red", "3")));
    assert_eq!(counts(), [0, 0]);
}

#[tokio::test]
async fn a_late_companion_of_a_deleted_tenant_is_the_leaders_to_delete() {
    let context = fixtures::context(FakeApi::default().client());
    let companion = |tenant: &str| -> Pod {
        fixtures::object(json!({"metadata": {"name": tenant, "namespace": keys::ADMIN_NAMESPACE,
            "uid": tenant, "resourceVersion": "9", "labels": {keys::TENANT: tenant, keys::WORKLOAD: "w"},
            "annotations": {keys::ADMIN_RULE: "r", keys::RULE_UID: "u"}}}))
    };
    let blue = json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": "Tenant",
        "metadata": {"name": "blue", "uid": "t"}, "spec": {}});
    context.caches.registry.tenant(Change::Applied(fixtures::object(blue)));
    context.feeds.pods.event(Event::Applied(companion("blue")));
    assert_eq!(context.queues.tenants.counts().ready, 0);
    context.feeds.pods.event(Event::Applied(companion("gone")));
    assert_eq!(context.queues.tenants.counts().ready, 1);
}

#[tokio::test]
async fn companions_are_looked_at_when_this_replica_begins_to_act_for_their_tenant() {
    let context = fixtures::context(FakeApi::default().client());
    context.replica.leadership.lead_without_lease();
    context.states.set_tenant("tenant-blue", TenantId::new("blue").ok());
    let key = fixtures::key("w");
    let state = context.states.state("tenant-blue");
    state.lock().companions.applied("r-w", key, Default::default());
    let is_queued = |claim: u64, holder: &str| {
        let tenant = fixtures::object(fixtures::tenant_claimed(claim, holder));
        context.feeds.tenants.event(Event::Applied(tenant));
        let next = context.queues.companions.next().now_or_never();
        next.iter().for_each(|key| context.queues.companions.done(key));
        next.is_some()
    };
    assert!(is_queued(1, "another"), "its namespace has become known");
    assert!(!is_queued(2, "a third"));
    assert!(is_queued(3, ""), "what has changed meanwhile concerned nobody");
}

#[tokio::test]
async fn one_namespace_concerns_tenants_offloading_and_machines_by_its_labels_alone() {
    let context = fixtures::context(FakeApi::default().client());
    let namespace = |labels: serde_json::Value| -> PartialObjectMeta<Namespace> {
        fixtures::object(json!({"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": "n", "uid": "u", "labels": labels}}))
    };
    let queued = || {
        let queues = &context.queues;
        (queues.tenants.counts().ready, queues.offloadings.counts().ready, queues.machines.counts().ready)
    };
    context.feeds.namespaces.event(Event::Applied(namespace(json!({}))));
    assert_eq!((queued(), context.states.all().len()), ((0, 0, 0), 0), "a namespace of nobody costs nothing");
    let machine = json!({"apiVersion": "imperator.tenzen-y.io/v1alpha1", "kind": "Machine",
        "metadata": {"name": "m"}, "spec": {"nodePool": [], "machineTypes": []}});
    context.caches.machines.machine(Change::Applied(fixtures::object(machine)));
    let offloading = json!({"apiVersion": "offloading.liqo.io/v1beta1", "kind": "NamespaceOffloading",
        "metadata": {"name": "offloading", "namespace": "n"}, "spec": {}});
    context.caches.offloadings.object(Change::Applied(fixtures::object(offloading)));
    let guests = json!({keys::INJECT_RESOURCE: keys::INJECT_ENABLED});
    context.feeds.namespaces.event(Event::Applied(namespace(guests)));
    assert_eq!(queued(), (0, 1, 1));
    context.feeds.namespaces.event(Event::Applied(namespace(json!({keys::TENANT: "blue"}))));
    assert_eq!((queued(), context.states.tenant_of("n")), ((1, 1, 1), TenantId::new("blue").ok()));
    context.feeds.namespaces.event(Event::Applied(namespace(json!({}))));
    assert_eq!((queued(), context.states.tenant_of("n")), ((1, 1, 1), None));
}
