use outrigger_core::companion::Observed;
use outrigger_core::ids::RuleName;
use outrigger_core::index::CompanionKey;
use outrigger_runtime::cache::Change;
use outrigger_runtime::fake_api::{FakeApi, failure, not_found};
use outrigger_runtime::watch::Event;

use jiff::Timestamp;
use serde_json::json;

use super::*;
use crate::fixtures;

const TENANT: &str = "/apis/outrigger.dev/v1alpha1/tenants/blue";
const STATUS: &str = "/apis/outrigger.dev/v1alpha1/tenants/blue/status";
const RULES: &str = "/apis/workload.universe.nvidia.com/v1alpha1/namespaces/tenant-blue/workloadrules";
const PODS: &str = "/api/v1/namespaces/universe/pods";
const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/universe/resourceclaims";

fn blue() -> TenantId {
    TenantId::new("blue").unwrap()
}

fn tenant(uid: &str, deleted: bool) -> Value {
    json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": "Tenant",
        "metadata": {"name": "blue", "uid": uid, "resourceVersion": "5", "generation": 1,
            "finalizers": [keys::TENANT_FINALIZER],
            "deletionTimestamp": deleted.then_some("2026-01-01T00:00:00Z")},
        "spec": {}})
}

fn controller(api: &FakeApi) -> Tenants {
    Tenants::new(&fixtures::context(api.client()))
}

/// A companion of an admin rule, which serves the tenant.
fn with_companion(api: &FakeApi, controller: &Tenants) {
    let key = CompanionKey { rule: RuleName::admin("r").unwrap(), workload: "w".into() };
    let observed = Observed { uid: "pod".into(), ..Observed::default() };
    controller.context.states.admin_companions_of(&blue()).lock().applied("p", key, observed);
    let pod = json!({"metadata": {"name": "p", "namespace": "universe", "uid": "pod"}});
    api.answers("GET", PODS, 200, json!({"metadata": {}, "items": [pod]}));
    api.answers("GET", CLAIMS, 404, not_found());
    api.answers("DELETE", &format!("{PODS}/p"), 200, json!({"metadata": {"name": "p"}}));
}

#[tokio::test]
async fn companions_of_a_tenant_that_only_the_cache_lacks_stay() {
    let api = FakeApi::default();
    let controller = controller(&api);
    with_companion(&api, &controller);
    api.answers("GET", TENANT, 200, tenant("u", false));
    assert_eq!(controller.tenant(&blue()).await.unwrap(), Action::Requeue(PAUSE));
    assert!(api.calls("DELETE").is_empty());
    api.answers("GET", TENANT, 404, not_found());
    assert_eq!(controller.tenant(&blue()).await.unwrap(), Action::Requeue(PAUSE));
    assert_eq!(api.calls("DELETE").len(), 1);
}

#[tokio::test]
async fn a_rule_that_a_manager_has_written_for_a_tenant_that_does_not_exist_is_deleted() {
    let rule = |manager: &str| {
        let mut rule = fixtures::rule();
        let status = json!({"manager": keys::MANAGER, "subresource": "status", "fieldsV1": {"f:status": {}}});
        let spec = json!({"manager": manager, "fieldsV1": {"f:spec": {"f:dpuSelectionPolicy": {}}}});
        rule["metadata"]["managedFields"] = json!([status, spec]);
        rule
    };
    for (manager, exists, is_deleted) in
        [(keys::MANAGER, false, true), (keys::MANAGER, true, false), ("kubectl-create", false, false)]
    {
        let api = FakeApi::default();
        let controller = controller(&api);
        let context = &controller.context;
        context.states.set_tenant("tenant-blue", Some(blue()));
        context.rule(Change::Applied(fixtures::object(rule(manager))));
        assert_eq!(context.queues.tenants.next().await, Key::Tenant(blue()));
        api.answers("GET", &format!("{RULES}/r"), 200, rule(manager));
        let (code, found) = if exists { (200, tenant("u", false)) } else { (404, not_found()) };
        api.answers("GET", TENANT, code, found);
        api.answers("DELETE", &format!("{RULES}/r"), 200, rule(manager));
        let again = if exists { Action::Requeue(PAUSE) } else { Action::Done };
        assert_eq!(controller.tenant(&blue()).await.unwrap(), again);
        let deletions = api.calls("DELETE");
        assert_eq!(deletions.len(), usize::from(is_deleted), "{manager} exists: {exists}");
        if is_deleted {
            let last = api.calls("GET").pop().map(|(path, _)| path);
            assert_eq!(last.as_deref(), Some(TENANT), "the Tenant is read again after the rule");
        }
        for (_, options) in deletions {
            assert_eq!(options["preconditions"], json!({"uid": "u", "resourceVersion": "1"}));
        }
    }
}

#[tokio::test]
async fn rules_of_a_tenant_that_is_recreated_meanwhile_stay_in_its_adopted_namespace() {
    let api = FakeApi::default();
    let controller = controller(&api);
    let former: Tenant = fixtures::object(tenant("former", true));
    controller.context.caches.registry.tenant(Change::Applied(former));
    let namespace =
        json!({"metadata": {"name": "tenant-blue", "uid": "n", "labels": {keys::TENANT: "blue"}}});
    api.answers("GET", "/api/v1/namespaces/tenant-blue", 200, namespace);
    for kind in [PODS, CLAIMS, "/api/v1/namespaces/tenant-blue/pods"] {
        api.answers("GET", kind, 200, json!({"metadata": {}, "items": []}));
    }
    let rules = ["one", "two", "three"].map(|name| {
        let mut rule = fixtures::rule();
        (rule["metadata"]["name"], rule["metadata"]["uid"]) = (json!(name), json!(name));
        api.answers("DELETE", &format!("{RULES}/{name}"), 200, rule.clone());
        rule
    });
    api.answers("GET", RULES, 200, json!({"metadata": {}, "items": rules}));
    api.answers("PATCH", STATUS, 200, tenant("former", true));
    api.answers("GET", TENANT, 200, tenant("former", true));
    let others = api.clone();
    // Another leader releases the Tenant, and its user creates another one.
    api.meanwhile("DELETE", &format!("{RULES}/one"), move || {
        others.answers("GET", TENANT, 200, tenant("new", false));
    });
    assert_eq!(controller.tenant(&blue()).await.unwrap(), Action::Requeue(PAUSE));
    let [(path, options)] = &*api.calls("DELETE") else { panic!("{:?}", api.calls("DELETE")) };
    assert!(path.starts_with(&format!("{RULES}/one")), "{path}");
    assert_eq!(options["preconditions"], json!({"uid": "one", "resourceVersion": "1"}));
    assert!(!api.calls("PATCH").iter().any(|(_, body)| body["metadata"]["finalizers"].is_array()));
}

#[tokio::test]
async fn a_new_leader_looks_for_rules_that_deleted_tenants_have_left() {
    let controller = controller(&FakeApi::default());
    let context = &controller.context;
    context.states.set_tenant("tenant-blue", Some(blue()));
    assert_eq!(context.queues.tenants.counts().ready, 0);
    controller.gained();
    assert_eq!(context.queues.tenants.next().await, Key::Tenant(blue()));
}

#[tokio::test]
async fn what_belongs_to_a_tenant_that_was_recreated_is_not_released_with_the_former_one() {
    let api = FakeApi::default();
    let controller = controller(&api);
    with_companion(&api, &controller);
    controller.context.caches.registry.tenant(Change::Applied(fixtures::object(tenant("former", true))));
    for live in [tenant("new", false), tenant("former", false)] {
        api.answers("GET", TENANT, 200, live);
        assert_eq!(controller.tenant(&blue()).await.unwrap(), Action::Requeue(PAUSE));
    }
    assert!(api.calls("DELETE").is_empty());
    api.answers("GET", TENANT, 200, tenant("former", true));
    api.answers("GET", "/api/v1/namespaces/tenant-blue", 404, not_found());
    api.answers("PATCH", STATUS, 200, tenant("former", true));
    controller.tenant(&blue()).await.unwrap();
    assert_eq!(api.calls("DELETE").len(), 1);
}

#[tokio::test]
async fn a_status_is_not_written_over_that_of_another_leader() {
    let api = FakeApi::default();
    let controller = controller(&api);
    controller.context.caches.registry.tenant(Change::Applied(fixtures::object(tenant("u", false))));
    let entry = controller.context.caches.registry.get(&blue()).unwrap();
    let wanted = status::terminating(&entry, "Pods", None, 0, Timestamp::UNIX_EPOCH);
    api.answers("PATCH", STATUS, 409, failure(409, "Conflict"));
    let conflict = controller.write(&blue(), &entry, &Version::of(&*entry.object), &wanted).await;
    assert!(matches!(conflict, Err(kube::Error::Api(status)) if status.code == 409));
    let (_, body) = api.calls("PATCH").remove(0);
    assert_eq!((&body["metadata"]["uid"], &body["metadata"]["resourceVersion"]), (&json!("u"), &json!("5")));
}

#[tokio::test]
async fn a_status_that_comes_to_be_another_than_the_computed_one_queues_its_tenant() {
    let api = FakeApi::default();
    let controller = controller(&api);
    let Context { feeds, queues, caches: Caches { registry, .. }, .. } = &*controller.context;
    let shown = |version: &str, status: Value| -> Tenant {
        let mut shown = tenant("u", false);
        shown["metadata"]["resourceVersion"] = json!(version);
        shown["status"] = status;
        fixtures::object(shown)
    };
    feeds.tenants.answer(shown("5", json!(null)));
    let entry = registry.get(&blue()).unwrap();
    let wanted = status::terminating(&entry, "Pods", None, 0, Timestamp::UNIX_EPOCH);
    let written = shown("6", json!(wanted));
    api.answers("PATCH", STATUS, 200, json!(written));
    let ready = || queues.tenants.counts().ready;
    while ready() > 0 {
        queues.tenants.done(&queues.tenants.next().await);
    }
    controller.write(&blue(), &entry, &Version::of(&*entry.object), &wanted).await.unwrap();
    assert_eq!(registry.get(&blue()).unwrap().object.status, written.status, "the response is known");
    feeds.tenants.event(Event::Applied(written));
    assert_eq!((ready(), queues.tenants.counts().delayed), (0, 0));
    // An earlier request, whose response was lost. It isn't answered at once: another replica may believe to lead.
    feeds.tenants.event(Event::Applied(shown("7", json!({"dpus": 3}))));
    assert_eq!((ready(), queues.tenants.counts().delayed), (0, 1));
}

#[test]
fn a_namespace_of_somebody_else_is_looked_at_more_often() {
    use namespace::State::{NotOurs, Preparing, Ready, Terminating};
    let soon = Duration::from_secs(3);
    for (state, expected) in [
        (Some(NotOurs("is red's".to_owned())), OF_OTHERS),
        (Some(Terminating), OF_OTHERS),
        (Some(Preparing(soon)), soon),
        (Some(Ready), RESYNC),
        (None, RESYNC),
    ] {
        assert_eq!(pause(state.as_ref()), expected);
    }
}

/// Somebody has given another namespace the tenant's label. Pods there keep the DPU.
#[tokio::test]
async fn a_deletion_that_waits_for_a_second_namespace_names_it_in_a_condition_and_an_event() {
    let api = FakeApi::default();
    let controller = controller(&api);
    let Context { caches: Caches { registry, .. }, states, .. } = &*controller.context;
    registry.tenant(Change::Applied(fixtures::object(tenant("u", true))));
    let labels = json!({keys::DPU_HOST: "h", keys::NODE_TENANT: "blue"});
    registry.node("dpu", Some(&fixtures::object(json!({"metadata": {"name": "dpu", "labels": labels}}))));
    api.answers("GET", TENANT, 200, tenant("u", true));
    api.answers("GET", "/api/v1/namespaces/tenant-blue", 404, not_found());
    for kind in [PODS, CLAIMS] {
        api.answers("GET", kind, 200, json!({"metadata": {}, "items": []}));
    }
    api.answers("PATCH", STATUS, 200, tenant("u", true));
    let said = async || {
        assert_eq!(controller.tenant(&blue()).await.unwrap(), Action::Requeue(PAUSE));
        let (_, body) = api.calls("PATCH").pop().unwrap();
        let ready = &body["status"]["conditions"][0];
        let (path, event) = api.calls("POST").pop().unwrap();
        assert!(path.contains("/events"), "{path}");
        assert_eq!((&event["reason"], &event["note"]), (&ready["reason"], &ready["message"]));
        [&ready["reason"], &event["type"], &ready["message"]].map(|text| text.as_str().unwrap().to_owned())
    };
    states.set_tenant("tenant-blue", Some(blue()));
    assert_eq!(said().await, ["Terminating", "Normal", "waiting for 1 DPUs to be gone"]);
    states.set_tenant("stray", Some(blue()));
    let [reason, kind, message] = said().await;
    assert_eq!([reason, kind], ["SecondNamespace", "Warning"]);
    let names = message.starts_with("waiting for 1 DPUs to be gone; ") && message.contains("=blue: stray;");
    assert!(names, "{message}");
    states.set_tenant("stray", None);
    assert_eq!(said().await, ["Terminating", "Normal", "waiting for 1 DPUs to be gone"]);
    assert!(!api.calls("PATCH").iter().any(|(_, body)| body["metadata"]["finalizers"].is_array()));
}
