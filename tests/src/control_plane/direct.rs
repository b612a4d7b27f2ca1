//! Requests of a cluster's administrator from code that isn't async. A process of kubectl for each of them takes a fifth of a
//! second of processor time, and a shared control plane gets hundreds of them.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, mpsc};
use std::time::Duration;

use anyhow::{Context, anyhow};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{
    Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams, TypeMeta,
};
use kube::discovery::{ApiGroup, Discovery, Scope, pinned_kind};
use kube::{Client, Error, Resource};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Mutex, OnceCell};

use self::line::Line;
use super::config;

mod line;

/// Where requests run. A caller may be a thread of another runtime, which waits meanwhile.
static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime"));

/// Who owns fields that were applied: the same as kubectl, which tests use beside this.
const FIELD_MANAGER: &str = "kubectl";

/// How long requests may take that belong together.
const DEADLINE: Duration = Duration::from_secs(300);

/// How long a token is valid, in seconds.
const TOKEN_LIFETIME: i64 = 24 * 60 * 60;

/// An administrator's client, and the kinds that it has asked for.
#[derive(Debug, Clone)]
pub(super) struct Direct(Arc<Inner>);

struct Inner {
    kubeconfig: PathBuf,
    client: OnceCell<Client>,
    /// By apiVersion and kind. A kind that the API server doesn't have isn't kept: its definition may come.
    kinds: Mutex<HashMap<TypeMeta, (ApiResource, Scope)>>,
    /// All resources, as they were when an unknown one was asked for.
    resources: Mutex<Option<Arc<Discovery>>>,
    /// Names of the feature gates that are on.
    features: OnceCell<HashSet<String>>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner").field("kubeconfig", &self.kubeconfig).finish_non_exhaustive()
    }
}

impl Direct {
    pub(super) fn new(kubeconfig: &Path) -> Self {
        Self(Arc::new(Inner {
            kubeconfig: kubeconfig.to_owned(),
            client: OnceCell::new(),
            kinds: Mutex::default(),
            resources: Mutex::default(),
            features: OnceCell::new(),
        }))
    }

    /// Applies each of these objects, also after one was refused, and returns all refusals.
    pub(super) fn apply(&self, objects: &[Value]) -> anyhow::Result<()> {
        let (inner, objects) = (self.0.clone(), objects.to_vec());
        wait(async move {
            let mut refusals = Vec::new();
            for object in objects {
                if let Err(error) = inner.apply(object).await {
                    refusals.push(format!("{error:#}"));
                }
            }
            if refusals.is_empty() { Ok(()) } else { Err(anyhow!(refusals.join("\n"))) }
        })
    }

    /// What is at a path of the API server's.
    pub(super) fn read(&self, path: &str) -> anyhow::Result<Value> {
        let (inner, path) = (self.0.clone(), path.to_owned());
        wait(async move { inner.ask(http::Request::get(path).body(Vec::new())?).await })
    }

    /// Whether a feature gate of the API server's is on. Its metrics say so, which are tens of thousands of lines: they are read once.
    pub(super) fn has_feature(&self, gate: &str) -> anyhow::Result<bool> {
        let (inner, gate) = (self.0.clone(), gate.to_owned());
        wait(async move {
            let features = inner.features.get_or_try_init(|| async {
                let request = http::Request::get("/metrics").body(Vec::new())?;
                let metrics = inner.client().await.request_text(request).await?;
                let on = metrics.lines().filter(|line| line.ends_with(" 1"));
                let name = |line: &str| {
                    let rest = line.strip_prefix("kubernetes_feature_enabled{name=\"")?;
                    rest.split_once('"').map(|(name, _)| name.to_owned())
                };
                anyhow::Ok(on.filter_map(name).collect())
            });
            Ok(features.await?.contains(&gate))
        })
    }

    /// What `kubectl get -o json` with these arguments says. There is nothing if only kubectl understands them.
    pub(super) fn get(&self, args: &[&str]) -> anyhow::Result<Option<Value>> {
        let (inner, Some(line)) = (self.0.clone(), Line::read(args)) else { return Ok(None) };
        wait(async move {
            let Some((resource, path)) = inner.place(&line).await? else { return Ok(None) };
            let mut found = inner.ask(http::Request::get(path).body(Vec::new())?).await?;
            for item in found["items"].as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
                item.entry("apiVersion").or_insert_with(|| resource.api_version.clone().into());
                item.entry("kind").or_insert_with(|| resource.kind.clone().into());
            }
            Ok(Some(found))
        })
    }

    /// Changes an object as `kubectl patch` with these arguments does. It is false if only kubectl understands them.
    pub(super) fn patch(&self, args: &[&str], patch: &Value) -> anyhow::Result<bool> {
        let (inner, patch, Some(line)) = (self.0.clone(), patch.clone(), Line::read(args)) else {
            return Ok(false);
        };
        wait(async move {
            let Some((_, path)) = inner.place(&line).await? else { return Ok(false) };
            let media_type =
                if patch.is_array() { "application/json-patch+json".to_owned() } else { line.media_type() };
            let request = http::Request::patch(path).header(http::header::CONTENT_TYPE, media_type);
            inner.ask(request.body(serde_json::to_vec(&patch)?)?).await?;
            Ok(true)
        })
    }

    /// Begins to delete all objects of each of these collections, without waiting for an answer.
    pub(super) fn begin_to_delete_all(&self, paths: Vec<String>) {
        let inner = self.0.clone();
        RUNTIME.spawn(async move {
            for path in paths {
                let request = http::Request::delete(format!("{path}?gracePeriodSeconds=0")).body(Vec::new());
                // The control plane may have ended.
                let _ = inner.ask(request?).await;
            }
            anyhow::Ok(())
        });
    }

    /// A token of a service account.
    pub(super) fn token(&self, namespace: &str, name: &str) -> anyhow::Result<String> {
        let (inner, namespace, name) = (self.0.clone(), namespace.to_owned(), name.to_owned());
        wait(async move {
            let accounts: Api<ServiceAccount> = Api::namespaced(inner.client().await, &namespace);
            let spec = TokenRequestSpec {
                audiences: Vec::new(),
                expiration_seconds: Some(TOKEN_LIFETIME),
                ..TokenRequestSpec::default()
            };
            let request = TokenRequest { spec, ..TokenRequest::default() };
            let answer = accounts.create_token_request(&name, &PostParams::default(), &request).await?;
            Ok(answer.status.context("no status")?.token)
        })
    }

    /// Whether a service account may do something, in the words of `kubectl auth can-i`: a verb, a resource and perhaps its name, `-n` with a
    /// namespace or `-A`, and `--subresource=`.
    pub(super) fn can(&self, (namespace, account): (&str, &str), args: &[&str]) -> anyhow::Result<bool> {
        let (verb, args) = args.split_first().context("no verb")?;
        let line = Line::read(args).context("an unknown argument")?;
        let (resource, name) = line.object().context("no resource")?;
        let mut attributes = json!({"verb": verb, "namespace": line.namespace.as_deref().unwrap_or_default(),
            "name": name.unwrap_or_default(), "subresource": line.subresource.as_deref().unwrap_or_default()});
        let (inner, resource) = (self.0.clone(), resource.to_owned());
        let (user, group) = (
            format!("system:serviceaccount:{namespace}:{account}"),
            format!("system:serviceaccounts:{namespace}"),
        );
        wait(async move {
            (attributes["resource"], attributes["group"]) = match resource.as_str() {
                // RBAC knows it, for impersonation, and the API doesn't have it.
                "users" => ("users".into(), "".into()),
                name => {
                    let found = inner.resource(name).await?;
                    let (found, _) = found.with_context(|| format!("the API server has no {name}"))?;
                    (found.plural.into(), found.group.into())
                }
            };
            let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {
                "user": user, "groups": ["system:authenticated", "system:serviceaccounts", group],
                "resourceAttributes": attributes}});
            let request = http::Request::post("/apis/authorization.k8s.io/v1/subjectaccessreviews");
            let request = request.body(serde_json::to_vec(&review)?)?;
            let answer: Value = inner.client().await.request(request).await?;
            answer.pointer("/status/allowed").and_then(Value::as_bool).context("no answer")
        })
    }
}

impl Inner {
    /// A resource by its plural, with its group or without, or by its kind.
    async fn resource(&self, name: &str) -> anyhow::Result<Option<(ApiResource, Scope)>> {
        let is_named = |found: &ApiResource| {
            found.plural == name
                || name.strip_prefix(&found.plural) == Some(&format!(".{}", found.group))
                || found.kind.eq_ignore_ascii_case(name)
        };
        let find = |all: &Discovery| {
            let all = all.groups_alphabetical().into_iter().flat_map(ApiGroup::recommended_resources);
            all.map(|(found, capabilities)| (found, capabilities.scope)).find(|(found, _)| is_named(found))
        };
        let mut resources = self.resources.lock().await;
        if let Some(found) = resources.as_deref().and_then(find) {
            return Ok(Some(found));
        }
        let all = Discovery::new(self.client().await).run_aggregated().await?;
        Ok(find(resources.insert(Arc::new(all))))
    }

    /// The resource that a command line means, and the path with its query.
    async fn place(&self, line: &Line) -> anyhow::Result<Option<(ApiResource, String)>> {
        let Some((word, name)) = line.object() else { return Ok(None) };
        let Some((resource, scope)) = self.resource(word).await? else { return Ok(None) };
        let namespace = line.namespace().filter(|_| scope == Scope::Namespaced);
        let path = DynamicObject::url_path(&resource, namespace);
        let name = name.map(|name| format!("/{name}")).unwrap_or_default();
        Ok(Some((resource, format!("{path}{name}{}", line.rest()))))
    }

    /// Asks the API server, and tells refusals in kubectl's words.
    async fn ask(&self, request: http::Request<Vec<u8>>) -> anyhow::Result<Value> {
        let client = self.client().await;
        let answer = twice(|| client.request(request.clone())).await;
        answer.map_err(|error| match error {
            Error::Api(status) => anyhow!("Error from server ({}): {}", status.reason, status.message),
            error => error.into(),
        })
    }

    async fn client(&self) -> Client {
        let new = async || Client::try_from(config(&self.kubeconfig).await).expect("client");
        self.client.get_or_init(new).await.clone()
    }

    async fn apply(&self, object: Value) -> anyhow::Result<()> {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
        let (version, kind) = text("/apiVersion").zip(text("/kind")).context("an object without a kind")?;
        let name = text("/metadata/name").context("an object without a name")?;
        let (resource, scope) = self.kind(version, kind).await?;
        let client = self.client().await;
        let api: Api<DynamicObject> = match scope {
            Scope::Cluster => Api::all_with(client, &resource),
            Scope::Namespaced => {
                let namespace = text("/metadata/namespace").unwrap_or("default");
                Api::namespaced_with(client, namespace, &resource)
            }
        };
        let params = PatchParams::apply(FIELD_MANAGER).force().validation_strict();
        let patch = Patch::Apply(&object);
        let answer = twice(|| api.patch(name, &params, &patch)).await;
        answer.map(drop).map_err(|error| match error {
            Error::Api(status) => anyhow!("{kind} {name}: {}: {}", status.reason, status.message),
            error => anyhow!(error).context(format!("{kind} {name}")),
        })
    }

    async fn kind(&self, version: &str, kind: &str) -> anyhow::Result<(ApiResource, Scope)> {
        let types = TypeMeta { api_version: version.to_owned(), kind: kind.to_owned() };
        let mut kinds = self.kinds.lock().await;
        if let Some(known) = kinds.get(&types) {
            return Ok(known.clone());
        }
        let (resource, capabilities) =
            pinned_kind(&self.client().await, &GroupVersionKind::try_from(&types)?)
                .await
                .with_context(|| format!("no matches for kind {kind} in version {version}"))?;
        let found = (resource, capabilities.scope);
        kinds.insert(types, found.clone());
        Ok(found)
    }
}

/// Asks the API server, and once more if there was no answer: the connection may be one from before its restart, which is open no longer.
async fn twice<T, F: Future<Output = Result<T, Error>>>(ask: impl Fn() -> F) -> Result<T, Error> {
    match ask().await {
        Err(error) if !matches!(error, Error::Api(_)) => ask().await,
        answer => answer,
    }
}

/// Waits on this thread until a future has ended, which takes no longer than [`DEADLINE`].
fn wait<T: Send + 'static>(
    future: impl Future<Output = anyhow::Result<T>> + Send + 'static,
) -> anyhow::Result<T> {
    let (sender, receiver) = mpsc::channel();
    RUNTIME.spawn(async move {
        let ended = tokio::time::timeout(DEADLINE, future).await;
        sender.send(ended.unwrap_or_else(|_| Err(anyhow!("no answer in {DEADLINE:?}"))))
    });
    receiver.recv().context("the request has panicked")?
}
