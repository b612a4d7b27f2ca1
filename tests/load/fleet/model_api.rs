//! The model of the API server behind a port, and what else the managers need of a cluster: Pods are admitted and run, and quotas are
//! counted.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use outrigger_core::keys;
use outrigger_runtime::environment::Environment;
use outrigger_sim::model::{BUILT_IN, Commit, Model, ModelKind, ResponseBody, Verb};
use outrigger_sim::process::user;
use outrigger_sim::world::{ADMIN, CUSTOM};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};

/// The model, and how managers reach it. It is served for as long as the process lives.
pub(crate) struct ModelApi {
    pub(crate) model: Model,
    pub(crate) kubeconfig: PathBuf,
}

impl ModelApi {
    /// An empty cluster with Outrigger's own namespaces. Its kubeconfig is written into this directory.
    pub(crate) async fn start(dir: &Path) -> Self {
        let kinds: Vec<ModelKind> = BUILT_IN.iter().chain(&CUSTOM).copied().collect();
        let model = Model::new(&kinds, Environment::system());
        for namespace in ["default", keys::SYSTEM_NAMESPACE, keys::ADMIN_NAMESPACE, keys::CORE_NAMESPACE] {
            model.create(ADMIN, "namespaces", json!({"metadata": {"name": namespace}})).unwrap();
        }
        model.admit(|attempt| Ok(admitted(&attempt.object, attempt.kind.plural)));
        let others = model.clone();
        model.on_commit(move |commit| others_react(&others, commit));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(serve(model.clone(), listener));
        let kubeconfig = dir.join("model.kubeconfig");
        let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": server}}], "users": [{"name": "c", "user": {}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}]});
        std::fs::write(&kubeconfig, config.to_string()).unwrap();
        Self { model, kubeconfig }
    }
}

async fn serve(model: Model, listener: TcpListener) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(connection(model.clone(), stream));
    }
}

async fn connection(model: Model, stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let user: Arc<str> = user(keys::MANAGER).into();
    let service = service_fn(move |request| answer(model.clone(), user.clone(), request));
    // It ends with the manager that it is of.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

type Answer = std::io::Result<http::Response<ResponseBody>>;

fn answer(model: Model, user: Arc<str>, request: http::Request<Incoming>) -> BoxFuture<'static, Answer> {
    async move {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
        model.serve(&user, http::Request::from_parts(parts, body)).await.map_err(std::io::Error::other)
    }
    .boxed()
}

/// What the webhook does, as far as the manager looks for it: without its gate a companion counts as admitted.
fn admitted(object: &Value, plural: &str) -> Value {
    let mut object = object.clone();
    if plural == "pods"
        && let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut)
    {
        spec.remove("schedulingGates");
    }
    object
}

/// What the quota controller and the kubelets do.
fn others_react(model: &Model, commit: &Commit) {
    let Some(object) = commit.new.as_deref() else { return };
    let at = |subresource| (commit.namespace.as_deref(), commit.name.as_str(), subresource);
    match commit.kind.plural {
        "resourcequotas" if object["status"]["hard"] != object["spec"]["hard"] => {
            let hard = object["spec"]["hard"].as_object().cloned().unwrap_or_default();
            let used: serde_json::Map<String, Value> =
                hard.keys().map(|key| (key.clone(), json!("0"))).collect();
            let status = json!({"status": {"hard": hard, "used": used}});
            let _ = model.merge("quota-controller", "resourcequotas", at(Some("status")), status);
        }
        "pods" if commit.verb == Verb::Create => {
            let status = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]});
            let _ = model.merge("kubelet", "pods", at(Some("status")), json!({"status": status}));
        }
        _ => {}
    }
}
