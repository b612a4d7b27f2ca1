use outrigger_runtime::cache::Change;
use outrigger_runtime::environment::Environment;
use outrigger_runtime::fake_api::{FakeApi, failure};
use outrigger_runtime::process::ProcessArgs;
use outrigger_runtime::watch::Event;
use parking_lot::Mutex;
use serde_json::json;

use clap::{Args, FromArgMatches};

use super::*;
use crate::fixtures;
use crate::tenants::Tenants;
use crate::worker;

/// A replica whose lists are complete, with the tenants `blue` and `red`, neither of which has a namespace.
struct Replica {
    api: FakeApi,
    process: Process,
    context: Arc<Context>,
}

impl Replica {
    fn new() -> Self {
        let command = ProcessArgs::augment_args(clap::Command::new("manager"));
        let args = ProcessArgs::from_arg_matches(&command.get_matches_from(["manager"])).unwrap();
        let api = FakeApi::default();
        let process = Process::simulated(args, Environment::system());
        let context = fixtures::context(api.client());
        start(&process, &context);
        worker::start(&process, &context, Tenants::new(&context));
        for id in ["blue", "red"] {
            let tenant = json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": "Tenant",
                "metadata": {"name": id, "uid": id, "resourceVersion": "1"}, "spec": {}});
            context.caches.registry.tenant(Change::Applied(fixtures::object(tenant)));
        }
        Self { api, process, context }
    }

    /// Whether it is ready when nothing is left to do but to wait for so long.
    async fn is_ready_after(&self, time: Duration) -> bool {
        tokio::time::sleep(time).await;
        self.process.readiness.is_ready()
    }
}

const SOON: Duration = Duration::from_millis(50);

#[tokio::test(start_paused = true)]
async fn a_leader_is_ready_when_each_tenant_has_been_reconciled_once_also_where_that_fails() {
    let replica = Replica::new();
    assert!(!replica.is_ready_after(SOON).await, "it doesn't know whether it leads");
    let first = |id: &str| replica.context.caches.first_pass.attempted(&TenantId::new(id).unwrap());
    replica.api.answers("PATCH", "/apis/outrigger.dev/v1alpha1/tenants/blue", 500, failure(500, ""));
    replica.api.answers("PATCH", "/apis/outrigger.dev/v1alpha1/tenants/red", 403, failure(403, ""));
    let missing = Arc::new(Mutex::new(Vec::new()));
    let (at_first, readiness) = (missing.clone(), replica.process.readiness.clone());
    replica.api.meanwhile("PATCH", "/apis/outrigger.dev/v1alpha1/tenants/red", move || {
        at_first.lock().extend(readiness.missing());
    });
    first("blue");
    replica.context.replica.leadership.lead_without_lease();
    assert!(replica.is_ready_after(SOON).await);
    assert_eq!(replica.api.calls("PATCH").len(), 2, "it doesn't wait for the second attempt");
    assert_eq!(*missing.lock(), [TASK], "it wasn't ready before the last Tenant");
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_does_not_lead_waits_for_no_tenant() {
    let replica = Replica::new();
    assert!(!replica.is_ready_after(SOON).await, "it may be the one that leads");
    replica.context.replica.leadership.follow_without_lease();
    assert!(replica.is_ready_after(SOON).await);
    assert!(replica.api.calls("PATCH").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_first_pass_is_no_longer_than_a_minute() {
    let replica = Replica::new();
    replica.context.caches.first_pass.begin([TenantId::new("green").unwrap()]);
    replica.context.replica.leadership.lead_without_lease();
    assert!(!replica.is_ready_after(PATIENCE - SOON).await, "nothing attempts that one");
    assert!(replica.is_ready_after(SOON * 2).await);
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_stops_leading_is_ready() {
    let replica = Replica::new();
    replica.context.caches.first_pass.begin([TenantId::new("green").unwrap()]);
    replica.context.replica.leadership.lead_without_lease();
    assert!(!replica.is_ready_after(SOON).await);
    replica.context.replica.leadership.follow_without_lease();
    assert!(replica.is_ready_after(SOON).await);
}

#[tokio::test(start_paused = true)]
async fn a_tenant_whose_namespace_was_just_made_is_served_before_the_watch_shows_it() {
    const NAMESPACES: &str = "/api/v1/namespaces";
    let replica = Replica::new();
    let Replica { api, context, .. } = &replica;
    let tenant =
        context.caches.registry.get(&TenantId::new("blue").unwrap()).unwrap().tenant.clone().unwrap();
    let namespace = json!({"metadata": {"name": "tenant-blue", "uid": "n", "resourceVersion": "7",
        "labels": {outrigger_core::keys::TENANT: "blue"}}});
    api.answers("GET", &format!("{NAMESPACES}/tenant-blue"), 404, outrigger_runtime::fake_api::not_found());
    api.answers("POST", NAMESPACES, 201, namespace.clone());
    // What comes after it fails.
    let ensured = crate::tenants::namespace::ensure(context, &tenant, &json!({}), &json!({})).await;
    assert!(ensured.is_err());
    assert_eq!(context.states.tenant_of("tenant-blue"), TenantId::new("blue").ok());
    // The watch is behind, and then shows the deletion.
    context.feeds.namespaces.event(Event::Bookmark { version: 5 });
    assert!(context.states.tenant_of("tenant-blue").is_some());
    let mut gone = namespace;
    gone["metadata"]["resourceVersion"] = json!("8");
    context.feeds.namespaces.event(Event::Deleted(fixtures::object(gone)));
    assert_eq!(context.states.tenant_of("tenant-blue"), None);
}
