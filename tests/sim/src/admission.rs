//! The infrastructure cluster's admission of Pods: its API server calls a webhook that runs.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::FutureExt;
use http_body_util::BodyExt;
use jiff::Timestamp;
use outrigger_admission::webhooks::{TIMEOUT, WRITER_TIMEOUT};
use outrigger_core::keys;
use outrigger_runtime::serve::Peer;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::model::{Attempt, Verb};
use crate::process::ready;
use crate::world::{INFRA, World, text};

/// A refusal: HTTP status and message.
type Refused = (u16, String);

/// Has the Pods of tenants' namespaces admitted by the webhooks.
pub(crate) fn call_webhooks(world: &Arc<World>) {
    let (infra, world) = (&world.infra, Arc::downgrade(world));
    infra.admit_async(move |attempt| {
        let world = world.upgrade();
        async move {
            match world {
                Some(world) => admit(&world, attempt).await,
                None => Ok(attempt.object),
            }
        }
        .boxed()
    });
}

/// Namespace and name of a Pod.
fn pod(object: &Value) -> (String, String) {
    (text(object, "/metadata/namespace").to_owned(), text(object, "/metadata/name").to_owned())
}

impl World {
    /// The webhooks that have admitted a Pod whose creation was sent at this time, and when they were asked.
    pub(crate) fn admitted_by(&self, object: &Value, sent: Timestamp) -> Vec<(String, Timestamp)> {
        let mut admitted = self.admissions.lock().remove(&pod(object)).unwrap_or_default();
        admitted.retain(|(_, time)| *time >= sent);
        admitted
    }
}

/// The paths that the configurations have called for an attempt: the creation of a Pod in a tenant's namespace, in one that is
/// offloaded, in that of the companions of the platform's rules, or of a guest of a Machine.
fn paths(world: &World, attempt: &Attempt) -> &'static [(&'static str, Duration)] {
    const MUTATE: (&str, Duration) = ("/mutate/pods", TIMEOUT);
    let is_new = attempt.kind.plural == "pods"
        && attempt.info.verb == Verb::Create
        && attempt.info.subresource.is_none();
    let Some(name) = attempt.info.namespace.as_deref().filter(|_| is_new) else { return &[] };
    let namespace = world.infra.get("namespaces", None, name).unwrap_or_default();
    let label = |key: &str| namespace["metadata"]["labels"][key].as_str();
    let is_guest = attempt.object["metadata"]["labels"][keys::POD_ROLE] == keys::GUEST;
    if name == keys::ADMIN_NAMESPACE {
        &[MUTATE]
    } else if label(keys::TENANT).is_some() {
        &[MUTATE, ("/validate/pods", TIMEOUT)]
    } else if label(keys::INJECT_RESOURCE).is_some() && is_guest {
        &[MUTATE, ("/validate/guests", WRITER_TIMEOUT)]
    } else if label(keys::OFFLOADED) == Some("true") {
        &[MUTATE]
    } else {
        &[]
    }
}

async fn admit(world: &World, mut attempt: Attempt) -> Result<Value, Refused> {
    for (path, timeout) in paths(world, &attempt) {
        let called = tokio::time::timeout(*timeout, call(world, path, &attempt)).await;
        let admitted = called.unwrap_or_else(|_| Err((500, "failed calling webhook: timeout".to_owned())));
        if let Err((code, why)) = &admitted {
            let name = attempt.object["metadata"]["name"].as_str().unwrap_or_default();
            world.trace.line(&world.environment, format_args!("infra refuses pod {name}: {code} {why}"));
        }
        attempt.object = admitted?;
    }
    // Other webhooks and etcd take their time too. What managers send is late before it is admitted: what the webhook has refused for
    // good must not start.
    if attempt.info.client.is_empty() {
        world.network.delay().await;
    }
    match &attempt.info.namespace {
        Some(name) if world.infra.get("namespaces", None, name).is_none() => {
            Err((404, format!("namespaces {name} not found")))
        }
        _ => Ok(attempt.object),
    }
}

/// Calls a webhook that is ready. Returns the object as it admits it.
async fn call(world: &World, path: &str, attempt: &Attempt) -> Result<Value, Refused> {
    let failed = |why: &str| (500, format!("failed calling webhook: {why}"));
    let webhook =
        ready(&world.webhooks, &world.environment.random).ok_or_else(|| failed("no endpoints available"))?;
    let way = world.network.way(INFRA, &webhook.name);
    let router = webhook.router.clone().ok_or_else(|| failed("no router"))?;
    let request = http::Request::post(path)
        .extension(Peer::default())
        .body(Body::from(review(attempt).to_string()))
        .map_err(|error| failed(&error.to_string()))?;
    if !way.pass().await {
        return Err(failed("connection refused"));
    }
    let time = world.environment.clock.wall();
    let response = router.oneshot(request).await.map_err(|error| failed(&error.to_string()))?;
    let body = response.into_body().collect().await.map_err(|error| failed(&error.to_string()))?.to_bytes();
    if !way.pass().await {
        return Err(failed("connection reset"));
    }
    let answer: Value = serde_json::from_slice(&body).map_err(|error| failed(&error.to_string()))?;
    let object = admitted(&answer["response"], attempt.object.clone())?;
    world.admissions.lock().entry(pod(&object)).or_default().push((webhook.name.clone(), time));
    Ok(object)
}

pub(crate) fn review(attempt: &Attempt) -> Value {
    let kind =
        json!({"group": attempt.kind.group, "version": attempt.kind.version, "kind": attempt.kind.kind});
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "review", "kind": kind, "namespace": attempt.info.namespace, "operation": "CREATE", "dryRun": false,
        "userInfo": {"username": attempt.info.user, "groups": ["system:authenticated"]},
        "object": attempt.object}})
}

/// The object as a response admits it.
pub(crate) fn admitted(response: &Value, mut object: Value) -> Result<Value, Refused> {
    if response["allowed"] != true {
        let code =
            response["status"]["code"].as_u64().and_then(|code| u16::try_from(code).ok()).unwrap_or(403);
        return Err((
            code,
            format!("admission webhook denied the request: {}", response["status"]["message"]),
        ));
    }
    let Some(patch) = response["patch"].as_str() else { return Ok(object) };
    let broken = |why: &dyn std::fmt::Display| (500, format!("the webhook's patch is wrong: {why}"));
    let patch = STANDARD.decode(patch).map_err(|error| broken(&error))?;
    let patch: json_patch::Patch = serde_json::from_slice(&patch).map_err(|error| broken(&error))?;
    json_patch::patch(&mut object, &patch).map_err(|error| broken(&error))?;
    Ok(object)
}
