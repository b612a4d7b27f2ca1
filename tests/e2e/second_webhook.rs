//! Another mutating webhook, which changes the affinity after Outrigger's: the API server calls Outrigger's again, and whatever is
//! there in the end is validated.

use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::extract::State;
use axum::routing::post;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use outrigger_core::keys;
use outrigger_runtime::bind::Bind;
use outrigger_runtime::serve::{Limits, Server};
use outrigger_runtime::tls::ServerTls;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::tenant::{Tenant, node_of};
use outrigger_tests::{InWords, create, dry_run, eventually, holds, until};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// The label by which a Pod is sent to the second webhook: `once`, or `again` if others change the Pod afterwards.
pub(crate) const SENT: &str = "second.example.com/sent";

/// The annotation that says what it does to the Pod.
pub(crate) const DOES: &str = "second.example.com/does";

const REQUIRED: &str = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution";

/// What it is asked about, and whether the Pod had Outrigger's affinity at that time.
pub(crate) type Calls = Arc<Mutex<Vec<(String, bool)>>>;

/// The JSON patch of the second webhook, which may find its work done already.
fn patch(pod: &Value) -> Value {
    let terms = format!("{REQUIRED}/nodeSelectorTerms");
    let has = |key: &str| pod.pointer(&terms).is_some_and(|terms| terms.to_string().contains(key));
    match pod["metadata"]["annotations"][DOES].as_str() {
        // Terms are ORed: this one selects all Nodes with the label, of any tenant.
        Some("adds a term") if !has("any") => json!([{"op": "add", "path": format!("{terms}/-"),
            "value": {"matchExpressions": [{"key": "any", "operator": "Exists"}]}}]),
        Some("adds an expression") if !has("zone") => {
            json!([{"op": "add", "path": format!("{terms}/0/matchExpressions/-"),
                "value": {"key": "zone", "operator": "DoesNotExist"}}])
        }
        Some("removes all") if pod["spec"]["affinity"].is_object() => {
            json!([{"op": "remove", "path": "/spec/affinity"}])
        }
        _ => json!([]),
    }
}

async fn answer(State(calls): State<Calls>, Json(review): Json<Value>) -> Json<Value> {
    let (request, pod) = (&review["request"], &review["request"]["object"]);
    let placed =
        pod.pointer(REQUIRED).is_some_and(|required| required.to_string().contains(keys::NODE_TENANT));
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    let count = {
        let mut calls = calls.lock();
        calls.push((name.to_owned(), placed));
        calls.iter().filter(|(of, _)| of == name).count()
    };
    Json(json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": {
        "uid": request["uid"], "allowed": true, "patchType": "JSONPatch",
        // Another value in each call, which the API server drops.
        "auditAnnotations": {"call": count.to_string()}, "patch": STANDARD.encode(patch(pod).to_string())}}))
}

/// Name of the second webhook's configuration for a namespace.
pub(crate) fn configuration(namespace: &str) -> String {
    format!("second-of-{namespace}")
}

/// The entry of the second webhook that gets the Pods with this label.
fn entry(o: &Outrigger, port: u16, namespace: &str, sent: &str, reinvocation: &str) -> Value {
    json!({"name": format!("{sent}.second.example.com"), "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "failurePolicy": "Fail", "reinvocationPolicy": reinvocation,
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "objectSelector": {"matchLabels": {SENT: sent}},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}],
        "clientConfig": {"url": format!("https://127.0.0.1:{port}/"), "caBundle": STANDARD.encode(o.authority.pem())}})
}

/// Starts the second webhook for a namespace. Its configuration's name is behind Outrigger's, and so is its turn.
pub(crate) async fn second(o: &Outrigger, namespace: &str) -> Calls {
    let calls = Calls::default();
    let pair = o.authority.issue("second", &["127.0.0.1"]).unwrap();
    let tls = Arc::new(ServerTls::load(pair.cert, pair.key, None).unwrap());
    let listener = "127.0.0.1:0".parse::<Bind>().unwrap().listen().unwrap();
    let port = listener.address().unwrap().port();
    let router = Router::new().route("/", post(answer)).with_state(calls.clone());
    let server = Server::new("second", listener).tls(tls).limits(Limits::default());
    tokio::spawn(server.run(router, CancellationToken::new(), CancellationToken::new()));
    let object = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": configuration(namespace)}, "webhooks": [
            entry(o, port, namespace, "once", "Never"), entry(o, port, namespace, "again", "IfNeeded")]});
    o.plane.infra.apply(&[object]).unwrap();
    eventually("the API server asks it", || async {
        let pods: Api<Pod> = Api::namespaced(o.plane.infra.client().await, namespace);
        dry_run(&pods, &pod("first", "once", "nothing")).await.in_words()?;
        holds(!calls.lock().is_empty(), "not yet")
    })
    .await;
    calls
}

pub(crate) fn pod(name: &str, sent: &str, does: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {SENT: sent}, "annotations": {DOES: does}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}})
}

/// The terms of a Pod's required node affinity.
fn terms(pod: &Pod) -> Vec<Value> {
    let pod = serde_json::to_value(pod).unwrap();
    let terms = pod.pointer(&format!("{REQUIRED}/nodeSelectorTerms")).and_then(Value::as_array);
    terms.cloned().unwrap_or_default()
}

/// Whether each term, and there is one at least, requires the tenant's label.
fn all_require(tenant: &str, terms: &[Value]) -> bool {
    let own = json!({"key": keys::NODE_TENANT, "operator": "In", "values": [tenant]});
    let requires = |term: &Value| term["matchExpressions"].as_array().is_some_and(|all| all.contains(&own));
    !terms.is_empty() && terms.iter().all(requires)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_webhook_changes_of_the_affinity_is_anded_again_or_refused() {
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "second", &[("a", 1)]).await;
    // A Node of nobody, to which the added term leads.
    let free = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "second-free", "labels": {"any": "x"}}});
    o.plane.infra.apply(&[free]).unwrap();
    let calls = second(o, &t.namespace).await;
    let calls_of = |name: &str| -> Vec<bool> {
        calls.lock().iter().filter(|(of, _)| of == name).map(|(_, placed)| *placed).collect()
    };
    assert_eq!(calls_of("first").first(), Some(&true), "it comes after Outrigger");

    for sent in ["once", "again"] {
        let name = format!("term-{sent}");
        create(&t.pods(), &pod(&name, sent, "adds a term")).await.unwrap();
        let placed = until("it is placed", &t.pods(), &name, |pod| {
            if node_of(&pod).is_empty() { Err(format!("{:?}", pod.status)) } else { Ok(pod) }
        })
        .await;
        let found = terms(&placed);
        assert!(all_require(&t.id, &found), "{found:?}");
        assert!(found.len() == 2 && found[1].to_string().contains("\"any\""), "its term is kept: {found:?}");
        assert_eq!(node_of(&placed), t.node("a-dpu1"));

        let expression = dry_run(&t.pods(), &pod("expression", sent, "adds an expression")).await.unwrap();
        let found = terms(&expression);
        assert!(all_require(&t.id, &found), "{found:?}");
        assert!(found.len() == 1 && found[0].to_string().contains("\"zone\""), "it is kept: {found:?}");
    }

    // Removed once, the affinity is there again; whoever removes it in the last turn too has the Pod refused.
    let removed = dry_run(&t.pods(), &pod("removed-once", "once", "removes all")).await.unwrap();
    assert!(all_require(&t.id, &terms(&removed)), "{removed:?}");
    assert_eq!(calls_of("removed-once"), [true]);
    let error =
        create(&t.pods(), &pod("removed-again", "again", "removes all")).await.unwrap_err().to_string();
    assert!(error.contains("nodeSelectorTerms") && error.contains("outrigger"), "{error}");
    assert_eq!(calls_of("removed-again"), [true, true]);
    assert!(t.pods().get_opt("removed-again").await.unwrap().is_none());
    o.plane.infra.kubectl(&["delete", "mutatingwebhookconfiguration", &configuration(&t.namespace)]).unwrap();
}
