//! Requests of a cluster's administrator from code that isn't async. A process of kubectl for each of them takes a fifth of a
//! second of processor time, and a shared control plane gets hundreds of them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, mpsc};

use anyhow::{Context, anyhow};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::{
    Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams, TypeMeta,
};
use kube::discovery::{ApiGroup, Discovery, Scope, pinned_kind};
use kube::{Client, Error};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Mutex, OnceCell};

use super::config;

/// Where requests run. A caller may be a thread of another runtime, which waits meanwhile.
static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime"));

/// Who owns fields that were applied: the same as kubectl, which tests use beside this.
const FIELD_MANAGER: &str = "kubectl";

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
    /// All resources, as they were when one was asked for first.
    resources: OnceCell<Discovery>,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner").field("kubeconfig", &self.kubeconfig).finish_non_exhaustive()
    }
}

impl Direct {
    pub(super) fn new(kubeconfig: &Path) -> Self {
        let (client, kinds, resources) = (OnceCell::new(), Mutex::default(), OnceCell::new());
        Self(Arc::new(Inner { kubeconfig: kubeconfig.to_owned(), client, kinds, resources }))
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
        let (inner, request) = (self.0.clone(), http::Request::get(path).body(Vec::new())?);
        wait(async move { Ok(inner.client().await.request(request).await?) })
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
        let (verb, what) = (args.first().context("no verb")?, args.get(1).context("no resource")?);
        let (resource, name) = what.split_once('/').unwrap_or((what, ""));
        let value = |name: &str| args.iter().find_map(|arg| arg.strip_prefix(name)).map(str::to_owned);
        let place = args.iter().position(|arg| *arg == "-n").and_then(|at| args.get(at + 1));
        let mut attributes = json!({"verb": verb, "namespace": place.unwrap_or(&""),
            "name": name, "subresource": value("--subresource=").unwrap_or_default()});
        let (inner, resource) = (self.0.clone(), resource.to_owned());
        let (user, group) = (
            format!("system:serviceaccount:{namespace}:{account}"),
            format!("system:serviceaccounts:{namespace}"),
        );
        wait(async move {
            (attributes["resource"], attributes["group"]) = inner.resource(&resource).await?;
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
    /// The name and the group of a resource that is named with its group or without.
    async fn resource(&self, name: &str) -> anyhow::Result<(Value, Value)> {
        // RBAC knows it, for impersonation, and the API doesn't have it.
        if name == "users" {
            return Ok((name.into(), "".into()));
        }
        let all = self.resources.get_or_try_init(|| async {
            anyhow::Ok(Discovery::new(self.client().await).run_aggregated().await?)
        });
        let all = all.await?.groups().flat_map(ApiGroup::recommended_resources);
        let found = all.map(|(found, _)| found).find(|found| {
            found.plural == name || name.strip_prefix(&found.plural) == Some(&format!(".{}", found.group))
        });
        let found = found.with_context(|| format!("the API server has no {name}"))?;
        Ok((found.plural.into(), found.group.into()))
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
        let apply = async || api.patch(name, &params, &Patch::Apply(&object)).await;
        let answer = match apply().await {
            // A connection from before a restart of the API server. It is open no longer.
            Err(error) if !matches!(error, Error::Api(_)) => apply().await,
            answer => answer,
        };
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

/// Waits on this thread until a future has ended.
fn wait<T: Send + 'static>(
    future: impl Future<Output = anyhow::Result<T>> + Send + 'static,
) -> anyhow::Result<T> {
    let (sender, receiver) = mpsc::channel();
    RUNTIME.spawn(async move { sender.send(future.await) });
    receiver.recv().context("the request has panicked")?
}
