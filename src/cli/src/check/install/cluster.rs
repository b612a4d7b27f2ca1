//! What a cluster has, one object or list at a time. What may not be read is noted, and never taken for absent.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Context;
use futures::StreamExt;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams, PostParams};
use kube::{Client, ResourceExt};
use parking_lot::Mutex;
use serde_json::Value;

use crate::check::install::judge::{Found, short, text};

/// How long an API server may take for an answer, the webhooks that it calls included.
pub(super) const PATIENCE: Duration = Duration::from_secs(15);

/// Requests under way at once.
pub(super) const AT_ONCE: usize = 16;

/// Most objects of one answer: lists come in pages.
const PAGE: u32 = 500;

/// Notes, at most.
const MAX_NOTES: usize = 30;

/// What became of the question for an object.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Answer {
    There(Value),
    Absent,
    Unread,
}

impl Answer {
    /// What judges take.
    pub(super) fn found(&self) -> Found<'_> {
        match self {
            Self::There(value) => Found::There(value),
            Self::Absent => Found::Absent,
            Self::Unread => Found::Unread,
        }
    }

    /// The object, where it is there.
    pub(super) fn there(&self) -> Option<&Value> {
        match self {
            Self::There(value) => Some(value),
            Self::Absent | Self::Unread => None,
        }
    }
}

/// A kind of objects.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kind(pub(super) &'static str, pub(super) &'static str);

pub(super) const DEPLOYMENT: Kind = Kind("apps/v1", "Deployment");
pub(super) const POD: Kind = Kind("v1", "Pod");
pub(super) const LEASE: Kind = Kind("coordination.k8s.io/v1", "Lease");
pub(super) const ENDPOINT_SLICE: Kind = Kind("discovery.k8s.io/v1", "EndpointSlice");
pub(super) const NAMESPACE: Kind = Kind("v1", "Namespace");
pub(super) const TENANT: Kind = Kind("outrigger.dev/v1alpha1", "Tenant");

/// A cluster that is looked at.
pub(super) struct Cluster {
    pub(super) client: Client,
    notes: Mutex<BTreeSet<String>>,
}

impl Cluster {
    pub(super) fn new(client: Client) -> Self {
        Self { client, notes: Mutex::default() }
    }

    /// What couldn't be looked at.
    pub(super) fn notes(&self) -> Vec<String> {
        let notes = self.notes.lock();
        let mut all: Vec<String> = notes.iter().take(MAX_NOTES).cloned().collect();
        if notes.len() > MAX_NOTES {
            all.push(format!("and {} more that couldn't be looked at", notes.len() - MAX_NOTES));
        }
        all
    }

    /// Says what wasn't looked at.
    pub(super) fn note(&self, text: impl Into<String>) {
        self.notes.lock().insert(text.into());
    }

    fn api(&self, api_version: &str, kind: &str, namespace: &str) -> (Api<DynamicObject>, ApiResource) {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let api = if namespace.is_empty() {
            Api::all_with(self.client.clone(), &resource)
        } else {
            Api::namespaced_with(self.client.clone(), namespace, &resource)
        };
        (api, resource)
    }

    /// One object.
    pub(super) async fn get(&self, api_version: &str, kind: &str, namespace: &str, name: &str) -> Answer {
        let (api, resource) = self.api(api_version, kind, namespace);
        let what = || format!("{kind} {namespace}/{name}").replace(" /", " ");
        match in_time(api.get_opt(name)).await {
            Ok(Some(object)) => value(&resource, object).map_or(Answer::Unread, Answer::There),
            Ok(None) => Answer::Absent,
            Err(why) => {
                self.note(format!("{} may not or can't be read, so it wasn't looked at: {why}", what()));
                Answer::Unread
            }
        }
    }

    /// The object that is in the cluster in the place of this one.
    pub(super) async fn like(&self, wanted: &Value) -> Answer {
        let of = |pointer| text(wanted, pointer);
        self.get(of("/apiVersion"), of("/kind"), of("/metadata/namespace"), of("/metadata/name")).await
    }

    /// All objects of a kind, in a namespace or, where that is empty, everywhere. `None`: they can't be read.
    pub(super) async fn list(
        &self,
        Kind(api_version, kind): Kind,
        namespace: &str,
        params: ListParams,
    ) -> Option<Vec<Value>> {
        let (api, resource) = self.api(api_version, kind, namespace);
        let (mut all, mut params) = (Vec::new(), params.limit(PAGE));
        loop {
            match in_time(api.list(&params)).await {
                Ok(page) => {
                    all.extend(page.items.into_iter().filter_map(|object| value(&resource, object)));
                    match page.metadata.continue_.filter(|token| !token.is_empty()) {
                        Some(token) => params = params.continue_token(&token),
                        None => return Some(all),
                    }
                }
                Err(why) => {
                    let plural = &resource.plural;
                    self.note(format!(
                        "{plural} may not or can't be listed, so they weren't looked at: {why}"
                    ));
                    return None;
                }
            }
        }
    }

    /// Asks the API server to make an object, and not to: it judges and asks webhooks, says what it
    /// would have made, and keeps nothing.
    pub(super) async fn attempt(&self, object: &Value) -> Result<Value, String> {
        let namespace = text(object, "/metadata/namespace");
        let (api, resource) = self.api(text(object, "/apiVersion"), text(object, "/kind"), namespace);
        let object = serde_json::from_value(object.clone()).map_err(|error| error.to_string())?;
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        match tokio::time::timeout(PATIENCE, api.create(&dry, &object)).await {
            Ok(Ok(made)) => value(&resource, made).ok_or_else(|| "the answer can't be read".to_owned()),
            Ok(Err(kube::Error::Api(status))) => Err(status.message.clone()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no answer within {} s", PATIENCE.as_secs())),
        }
    }

    /// What time it is by the API server, in seconds of Unix time.
    pub(super) async fn now(&self) -> Option<i64> {
        let request = http::Request::get("/version").body(kube::client::Body::empty()).ok()?;
        let answer = tokio::time::timeout(PATIENCE, self.client.send(request)).await.ok()?.ok()?;
        date(answer.headers().get(http::header::DATE)?.to_str().ok()?)
    }

    /// What version the API server is of.
    pub(super) async fn version(&self) -> anyhow::Result<String> {
        let version = tokio::time::timeout(PATIENCE, self.client.apiserver_version()).await;
        Ok(version.context("no answer in time")??.git_version)
    }
}

/// A date as HTTP has it (RFC 9110, 5.6.7), in seconds of Unix time.
pub(super) fn date(text: &str) -> Option<i64> {
    let parsed = k8s_openapi::jiff::fmt::rfc2822::parse(text).ok()?;
    Some(parsed.timestamp().as_second())
}

async fn in_time<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, String> {
    match tokio::time::timeout(PATIENCE, request).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(kube::Error::Api(status))) => Err(short(&status.message)),
        Ok(Err(error)) => Err(short(&error.to_string())),
        Err(_) => Err(format!("no answer within {} s", PATIENCE.as_secs())),
    }
}

/// An object as JSON. Those of lists don't say what they are.
fn value(resource: &ApiResource, mut object: DynamicObject) -> Option<Value> {
    object.managed_fields_mut().clear();
    let mut value = serde_json::to_value(object).ok()?;
    let map = value.as_object_mut()?;
    map.insert("apiVersion".to_owned(), resource.api_version.clone().into());
    map.insert("kind".to_owned(), resource.kind.clone().into());
    Some(value)
}

/// Asks for several things at a time; the answers come in the order of the questions.
pub(super) async fn together<T>(questions: impl IntoIterator<Item = impl Future<Output = T>>) -> Vec<T> {
    futures::stream::iter(questions).buffered(AT_ONCE).collect().await
}
