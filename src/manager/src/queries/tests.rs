use axum::body::Body;
use axum::http::header::AUTHORIZATION;
use outrigger_runtime::cache::Change;
use outrigger_runtime::fake_api::FakeApi;
use serde_json::Value;

use super::*;
use crate::fixtures;

const TOKENS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const RIGHTS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

/// A manager that knows three tenants and serves none: `blue` and `red` in their usual namespaces, and `green` in that which a tenant `none-1`
/// would have. Its API server accepts every token as that of jane, who may ask about each tenant or about none.
struct World {
    api: FakeApi,
    queries: Queries,
}

impl World {
    fn of(allowed: bool) -> Self {
        let api = FakeApi::default();
        let user = json!({"username": "jane", "uid": "1"});
        api.answers(
            "POST",
            TOKENS,
            201,
            json!({"spec": {}, "status": {"authenticated": true, "user": user}}),
        );
        api.answers("POST", RIGHTS, 201, json!({"spec": {}, "status": {"allowed": allowed}}));
        let context = fixtures::context(api.client());
        for (namespace, tenant) in
            [("tenant-blue", "blue"), ("tenant-red", "red"), ("tenant-none-1", "green")]
        {
            let object = json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": "Tenant",
                "metadata": {"name": tenant}, "spec": {"namespace": namespace}});
            context.caches.registry.tenant(Change::Applied(fixtures::object(object)));
            context.states.set_tenant(namespace, TenantId::new(tenant).ok());
        }
        Self { api, queries: Queries::new(&Readiness::default(), &context) }
    }

    /// Asks about a tenant: the answer, and the requests to the API server for it, all without the tenant's name and namespace.
    async fn ask(&self, tenant: &str, namespace: &str) -> (StatusCode, String, Vec<String>) {
        let before = self.api.calls("POST").len();
        let request =
            axum::http::Request::get("/").header(AUTHORIZATION, "Bearer t").body(Body::empty()).unwrap();
        let refusal = self.queries.answer(tenant, request).await.unwrap_err();
        let calls = self.api.calls("POST").split_off(before).into_iter();
        let nameless =
            |(path, body): (String, Value)| format!("{path} {body}").replace(namespace, "NAMESPACE");
        (refusal.status, refusal.message.replace(tenant, "TENANT"), calls.map(nameless).collect())
    }
}

#[tokio::test(start_paused = true)]
async fn a_tenant_that_does_not_exist_causes_the_same_calls_as_one_that_may_not_be_asked_about() {
    let world = World::of(false);
    // Its token is reviewed before anything else, and remembered.
    world.ask("blue", "tenant-blue").await;
    let known = world.ask("red", "tenant-red").await;
    assert_eq!((known.0, known.2.len()), (StatusCode::FORBIDDEN, 1), "{known:?}");
    assert!(known.2[0].starts_with(RIGHTS) && known.2[0].contains(r#""namespace":"NAMESPACE""#), "{known:?}");
    for (tenant, namespace) in
        [("none-1", "tenant-none-1"), ("none-2", "tenant-none-2"), ("green", "tenant-none-1")]
    {
        assert_eq!(world.ask(tenant, namespace).await, known, "{tenant}");
    }
    // Each answer is remembered in the same way.
    let remembered = (known.0, known.1.clone(), Vec::new());
    for (tenant, namespace) in
        [("red", "tenant-red"), ("none-1", "tenant-none-1"), ("green", "tenant-none-1")]
    {
        assert_eq!(world.ask(tenant, namespace).await, remembered, "{tenant}");
    }
    tokio::time::advance(outrigger_runtime::callers::REMEMBERED).await;
    world.ask("blue", "tenant-blue").await;
    for (tenant, namespace) in [("none-1", "tenant-none-1"), ("red", "tenant-red")] {
        assert_eq!(world.ask(tenant, namespace).await, known, "{tenant}");
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_may_ask_about_all_learns_which_tenants_there_are() {
    let world = World::of(true);
    let status = async |tenant: &str| world.ask(tenant, &usual_namespace(tenant)).await.0;
    assert_eq!(status("blue").await, StatusCode::SERVICE_UNAVAILABLE, "its agent isn't connected");
    assert_eq!([status("none").await, status("Not_A_Name").await], [StatusCode::NOT_FOUND; 2]);
}

#[tokio::test(start_paused = true)]
async fn a_tenant_is_asked_about_in_the_namespace_that_its_tenant_names_whatever_others_are_labeled() {
    let world = World::of(false);
    let states = &world.queries.context.states;
    for second in ["a", "tenant-green"] {
        states.set_tenant(second, TenantId::new("green").ok());
    }
    let (status, _, calls) = world.ask("green", "tenant-none-1").await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    assert!(calls.iter().any(|call| call.contains(r#""namespace":"NAMESPACE""#)), "{calls:?}");
    let namespace = |id: &str, own: &str| {
        let state = states.of_tenant(&TenantId::new(id).unwrap(), own);
        state.map(|state| state.namespace.to_string())
    };
    assert_eq!(namespace("green", "tenant-none-1").as_deref(), Some("tenant-none-1"));
    assert_eq!(namespace("green", "tenant-red"), None, "it is another tenant's");
    assert_eq!(namespace("green", "none"), None);
}
