//! The HTTP service of a model.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use kube::client::Body;
use outrigger_core::keys;
use outrigger_runtime::calls::client_over;
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Value, json};
use tower::{BoxError, service_fn};

use super::Model;
use super::kinds::{ModelKind, is_built_in};
use super::link::{Link, Passage, RequestInfo, Verb};
use super::patch::PatchBody;
use super::refusal::{Refusal, details};
use super::request::ParsedRequest;
use super::selector::Selector;
use super::watch::Watcher;
use super::write::{Change, DeleteOptions, Write};

/// The body of a response: an object, a list, or the events of a watch.
pub type ResponseBody = UnsyncBoxBody<Bytes, BoxError>;

/// The path of the discovery of the kinds of devices.
const DEVICES: &str = "/apis/resource.k8s.io/v1";

/// The path of the discovery of the kinds of the core group.
const CORE: &str = "/api/v1";

/// How long a list waits for a resourceVersion in the future.
const AHEAD: Duration = Duration::from_secs(3);

pub(super) fn client(model: Model, link: impl Link, user: &str) -> kube::Client {
    let (link, user) = (Arc::new(link), user.to_owned());
    client_over(service_fn(move |request| {
        // A client that gives up doesn't call back what it has sent.
        let served = tokio::spawn(serve(model.clone(), link.clone(), user.clone(), request));
        async move { served.await? }
    }))
}

/// The error of a connection that fails.
pub(super) fn failed() -> BoxError {
    std::io::Error::new(std::io::ErrorKind::ConnectionReset, "connection reset by the simulation").into()
}

pub(super) async fn serve<L: Link>(
    model: Model,
    link: Arc<L>,
    user: String,
    request: Request<Body>,
) -> Result<Response<ResponseBody>, BoxError> {
    let sent = model.environment.clock.wall();
    let (parts, body) = request.into_parts();
    let body = body.collect_bytes().await?;
    if parts.uri.path() == DEVICES {
        return respond(
            200,
            &json!({"kind": "APIResourceList", "groupVersion": "resource.k8s.io/v1", "resources": [
            {"name": "resourceslices", "singularName": "resourceslice", "namespaced": false, "kind": "ResourceSlice", "verbs": ["list"]}]}),
        );
    }
    if parts.uri.path() == CORE && model.state.lock().more.resizes {
        let pods = ["pods", "pods/resize"].map(|name| {
            json!({"name": name, "singularName": "pod", "namespaced": true, "kind": "Pod", "verbs": ["get", "patch"]})
        });
        return respond(200, &json!({"kind": "APIResourceList", "groupVersion": "v1", "resources": pods}));
    }
    let Some(request) = ParsedRequest::new(&parts, &user, link.client(), sent) else { return no_path() };
    let (info, restarts) = (request.info.clone(), model.restarts());
    match link.request(&info).await {
        Passage::Deliver => {}
        Passage::Fail => return Err(failed()),
        Passage::Status(code) => return respond(code, &interrupted(code)),
    }
    if model.restarts() != restarts {
        return Err(failed());
    }
    let response = answer(&model, &link, request, &body).await?;
    match link.response(&info, response.status().as_u16()).await {
        Passage::Deliver if model.restarts() != restarts => Err(failed()),
        Passage::Deliver => Ok(response),
        Passage::Fail => Err(failed()),
        Passage::Status(code) => respond(code, &interrupted(code)),
    }
}

fn interrupted(code: u16) -> Value {
    Refusal::new(code, "the request was interrupted by the simulation").status()
}

async fn answer<L: Link>(
    model: &Model,
    link: &Arc<L>,
    request: ParsedRequest,
    body: &[u8],
) -> Result<Response<ResponseBody>, BoxError> {
    if request.info.plural == "selfsubjectreviews" && request.info.verb == Verb::Create {
        return respond(201, &review(&request.info.user));
    }
    if request.info.plural == "tokenreviews" && request.info.verb == Verb::Create {
        return respond(201, &token_review(body));
    }
    let info = &request.info;
    let (kind, resizes) = {
        let state = model.state.lock();
        (state.find(Some(&info.group), &info.plural).map(|found| found.kind), state.more.resizes)
    };
    let Some(kind) = kind.filter(|kind| request.fits(kind, resizes)) else { return absent(info) };
    let metadata_only = request.metadata_only;
    let result = match request.info.verb {
        Verb::Watch => {
            return match Watcher::open(model, link.clone(), request, kind) {
                Ok(watcher) => stream(StreamBody::new(watcher.body()).boxed_unsync()),
                Err(refusal) => respond(refusal.code, &refusal.status()),
            };
        }
        Verb::List => {
            return match list(model, &request, &kind).await {
                Ok(list) => respond(200, &list),
                Err(refusal) => respond(refusal.code, &refusal.status()),
            };
        }
        Verb::Get => get(model, &request, &kind).map(|object| (200, object)),
        _ => write(model, &request, kind, body).await,
    };
    match result {
        Ok((code, object)) => respond(code, &Shown { object: &object, metadata_only, without_kind: false }),
        Err(refusal) => respond(refusal.code, &refusal.status()),
    }
}

fn respond(code: u16, body: &impl Serialize) -> Result<Response<ResponseBody>, BoxError> {
    let body = Full::from(serde_json::to_vec(body)?).map_err(Into::into).boxed_unsync();
    Ok(Response::builder().status(code).header(header::CONTENT_TYPE, "application/json").body(body)?)
}

fn stream(body: ResponseBody) -> Result<Response<ResponseBody>, BoxError> {
    Ok(Response::builder().header(header::CONTENT_TYPE, "application/json").body(body)?)
}

/// The response to a path of a kind that isn't served. It is a `Status` only in the groups of Kubernetes.
fn absent(info: &RequestInfo) -> Result<Response<ResponseBody>, BoxError> {
    if !is_built_in(&info.group, &info.version) {
        return no_path();
    }
    respond(404, &Refusal::new(404, "the server could not find the requested resource").status())
}

/// The response to a path that isn't served. It is no `Status`.
fn no_path() -> Result<Response<ResponseBody>, BoxError> {
    let body = Full::from("404 page not found\n").map_err(Into::into).boxed_unsync();
    Ok(Response::builder()
        .status(404)
        .header(header::CONTENT_TYPE, "text/plain; charset=utf-8")
        .body(body)?)
}

fn review(user: &str) -> Value {
    json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview", "metadata": {},
        "status": {"userInfo": {"username": user, "groups": ["system:authenticated"]}}})
}

/// The review of the token of a host's plugin: it is the name of the host.
fn token_review(body: &[u8]) -> Value {
    let review: Value = serde_json::from_slice(body).unwrap_or_default();
    let user = format!("system:serviceaccount:{}:{}", keys::HOST_NAMESPACE, keys::HOST_PLUGIN);
    let extra = json!({"authentication.kubernetes.io/node-name": [review["spec"]["token"]]});
    json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "metadata": {}, "spec": review["spec"],
        "status": {"authenticated": true, "audiences": [keys::AGENT_AUDIENCE],
            "user": {"username": user, "extra": extra}}})
}

/// An object as a response shows it, without a copy of it.
pub(super) struct Shown<'a> {
    pub(super) object: &'a Value,
    /// Its metadata only. A `Status` is shown as it is.
    pub(super) metadata_only: bool,
    /// In a list the objects of the kinds of Kubernetes don't repeat the kind.
    pub(super) without_kind: bool,
}

impl Shown<'_> {
    /// It as JSON.
    pub(super) fn text(&self) -> Arc<str> {
        serde_json::to_string(self).unwrap_or_default().into()
    }
}

impl Serialize for Shown<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let object = self.object;
        if self.metadata_only && object["kind"] != "Status" {
            let mut map = serializer.serialize_map(Some(3))?;
            map.serialize_entry("apiVersion", "meta.k8s.io/v1")?;
            map.serialize_entry("kind", "PartialObjectMetadata")?;
            map.serialize_entry("metadata", &object["metadata"])?;
            return map.end();
        }
        match object.as_object().filter(|_| self.without_kind) {
            Some(fields) => serializer
                .collect_map(fields.iter().filter(|(key, _)| *key != "apiVersion" && *key != "kind")),
            None => object.serialize(serializer),
        }
    }
}

/// A list as a response shows it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct List {
    api_version: String,
    kind: String,
    metadata: Value,
    items: Vec<Item>,
}

/// An object in a list.
struct Item {
    object: Arc<Value>,
    metadata_only: bool,
    without_kind: bool,
}

impl Serialize for Item {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { object, metadata_only, without_kind } = self;
        Shown { object, metadata_only: *metadata_only, without_kind: *without_kind }.serialize(serializer)
    }
}

fn get(model: &Model, request: &ParsedRequest, kind: &ModelKind) -> Result<Arc<Value>, Refusal> {
    let name = request.info.name.as_deref().unwrap_or_default();
    let state = model.state.lock();
    let found = state.object(kind, request.info.namespace.as_deref(), name);
    found.cloned().ok_or_else(|| Refusal::not_found(kind, name))
}

/// The token of the next page of a list: its resourceVersion, and the key of the last object.
#[derive(Debug, Serialize, Deserialize)]
struct Continue {
    rv: u64,
    start: String,
}

impl Continue {
    fn parse(text: &str) -> Result<Option<Self>, Refusal> {
        if text.is_empty() {
            return Ok(None);
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).ok();
        let token = bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        token.map(Some).ok_or_else(|| Refusal::new(400, "continue key is not valid"))
    }

    fn text(&self) -> String {
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).unwrap_or_default())
    }
}

async fn list(model: &Model, request: &ParsedRequest, kind: &ModelKind) -> Result<List, Refusal> {
    let selector =
        Selector::parse(kind, request.parameter("labelSelector"), request.parameter("fieldSelector"))?;
    let limit = request.number("limit")?.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(0);
    let token = Continue::parse(request.parameter("continue"))?;
    let version = request.number("resourceVersion")?.unwrap_or(0);
    if version > model.revision() {
        tokio::time::sleep(AHEAD).await;
    }
    let mut limit = limit;
    if limit > 0 && model.state.lock().more.short_pages {
        limit = limit.min(1 + usize::try_from(model.environment.random.seed() % 4).unwrap_or(0));
    }
    let state = model.state.lock();
    if version > state.revision {
        return Err(Refusal::ahead(version, state.revision));
    }
    let exact = Some(version).filter(|_| request.parameter("resourceVersionMatch") == "Exact");
    let at = token.as_ref().map(|token| token.rv).or(exact).unwrap_or(state.revision);
    if at < state.compacted {
        return Err(Refusal::expired(
            "The provided continue parameter is too old to display a consistent list result.",
        ));
    }
    let resource = state.resource(kind).ok_or_else(|| Refusal::not_found(kind, ""))?;
    let after = token.as_ref().map_or("", |token| &token.start);
    let page = state.list(resource, request.info.namespace.as_deref(), &selector, at, (after, limit));
    let mut metadata = json!({"resourceVersion": at.to_string()});
    if let Some(start) = page.more {
        metadata["continue"] = json!(Continue { rv: at, start }.text());
        if selector.is_empty() {
            metadata["remainingItemCount"] = json!(page.remaining);
        }
    }
    let metadata_only = request.metadata_only;
    let without_kind = !metadata_only && !kind.is_custom();
    let items = page.items.into_iter().map(|object| Item { object, metadata_only, without_kind }).collect();
    let (api_version, kind) = if metadata_only {
        ("meta.k8s.io/v1".to_owned(), "PartialObjectMetadataList".to_owned())
    } else {
        (kind.api_version(), format!("{}List", kind.kind))
    };
    Ok(List { api_version, kind, metadata, items })
}

async fn write(
    model: &Model,
    request: &ParsedRequest,
    kind: ModelKind,
    body: &[u8],
) -> Result<(u16, Arc<Value>), Refusal> {
    let wrong = |error: serde_json::Error| Refusal::new(400, format!("the body can't be decoded: {error}"));
    let mut info = request.info.clone();
    let change = match info.verb {
        Verb::Create => Change::Create(serde_json::from_slice(body).map_err(wrong)?),
        Verb::Update => Change::Replace(serde_json::from_slice(body).map_err(wrong)?),
        Verb::Patch => {
            let force = request.parameter("force") == "true";
            let merges = model.state.lock().more.merges_conditions;
            Change::Patch(PatchBody::parse(&request.content_type, body, (force, merges))?)
        }
        _ if body.is_empty() => Change::Delete(DeleteOptions::default()),
        _ => Change::Delete(serde_json::from_slice(body).map_err(wrong)?),
    };
    if let Change::Delete(options) = &change {
        info.dry_run |= options.dry_run.iter().any(|run| run == "All");
    }
    let manager = Some(request.parameter("fieldManager")).filter(|manager| !manager.is_empty());
    let removes = matches!(change, Change::Delete(_));
    let write = Write { info, kind, field_manager: manager.map(str::to_owned), change };
    let answer = model.write(&write).await?;
    let gone = removes && answer.commits.last().is_some_and(|commit| commit.new.is_none());
    if gone && kind.plural != "pods" {
        let mut details = details(&kind, write.info.name.as_deref().unwrap_or_default());
        details["uid"] = answer.object["metadata"]["uid"].clone();
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details});
        return Ok((200, Arc::new(status)));
    }
    Ok((answer.code, answer.object))
}
