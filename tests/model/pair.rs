//! One request to both API servers, and the comparison of their responses.

use std::collections::BTreeMap;

use http::Request;
use kube::Client;
use outrigger_runtime::environment::Environment;
use outrigger_sim::model::{BUILT_IN, Direct, Model, ModelKind};
use outrigger_tests::control_plane::Cluster;
use outrigger_tests::eventually;
use serde_json::{Value, json};

/// Namespace of all objects.
pub(crate) const NAMESPACE: &str = "compared";
/// Label of all objects: others may be in the namespace.
pub(crate) const LABEL: &str = "compared";
/// Selector of that label.
pub(crate) const ALL: &str = "compared=yes";
/// The custom resource that is compared.
pub(crate) const RULES: ModelKind =
    ModelKind::custom("workload.universe.nvidia.com", "v1alpha1", "workloadrules", "WorkloadRule", true);

/// The real API server, or the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Real,
    Model,
}

/// A response: an object, or code, reason and message of an error.
pub(crate) type Response = Result<Value, (u16, String, String)>;

/// Values of the real API server and the model's values for them: each has one counterpart.
#[derive(Debug, Default)]
struct Bijection {
    to_model: BTreeMap<String, String>,
    to_real: BTreeMap<String, String>,
}

impl Bijection {
    /// Remembers that two values stand for each other. Returns whether that fits to what was seen before.
    fn fits(&mut self, real: &str, model: &str) -> bool {
        let one = self.to_model.entry(real.to_owned()).or_insert_with(|| model.to_owned()) == model;
        let other = self.to_real.entry(model.to_owned()).or_insert_with(|| real.to_owned()) == real;
        one && other
    }
}

/// Both API servers.
pub(crate) struct Pair {
    pub(crate) real: Client,
    pub(crate) model: Client,
    versions: Bijection,
    uids: Bijection,
    /// What was compared and differs.
    pub(crate) differences: Vec<String>,
    pub(crate) requests: usize,
    /// How often there was each outcome.
    pub(crate) outcomes: BTreeMap<String, usize>,
}

impl Pair {
    pub(crate) async fn new(cluster: &Cluster) -> Self {
        let real = cluster.client_without_retries().await;
        let kinds: Vec<_> = BUILT_IN.iter().copied().chain([RULES]).collect();
        let model = Model::new(&kinds, Environment::simulated(1, "2026-01-02T03:04:05Z".parse().unwrap()));
        let model = model.client(Direct, "compared");
        let mut pair = Self {
            real,
            model,
            versions: Bijection::default(),
            uids: Bijection::default(),
            differences: Vec::new(),
            requests: 0,
            outcomes: BTreeMap::new(),
        };
        let namespace = json!({"metadata": {"name": NAMESPACE}});
        pair.check("namespace", |_| post("/api/v1/namespaces", &namespace)).await;
        let rules = format!("/apis/{}/{}/{}", RULES.group, RULES.version, RULES.plural);
        eventually("the custom resource", || async {
            send(&pair.real, get(&rules)).await.map_err(|error| format!("{error:?}"))
        })
        .await;
        // Pods need it.
        eventually("the default service account", || async {
            let path = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default");
            send(&pair.real, get(&path)).await.map_err(|error| format!("{error:?}"))
        })
        .await;
        pair
    }

    /// Sends a request to both, and compares the responses.
    pub(crate) async fn both(
        &mut self,
        what: &str,
        request: impl Fn(Side) -> Request<Vec<u8>>,
    ) -> (Response, Response) {
        let real = send(&self.real, request(Side::Real)).await;
        let model = send(&self.model, request(Side::Model)).await;
        self.requests += 1;
        let outcome = match &real {
            Ok(_) => "ok".to_owned(),
            Err((code, reason, _)) => format!("{code} {reason}"),
        };
        *self.outcomes.entry(outcome).or_default() += 1;
        match (&real, &model) {
            (Ok(real), Ok(model)) => self.compare(what, real, model),
            (Err(real), Err(model)) if (real.0, &real.1) == (model.0, &model.1) => {}
            _ => {
                let short = |response: &Response| match response {
                    Ok(object) => format!("{:.300}", object.to_string()),
                    Err((code, reason, message)) => format!("{code} {reason} ({message:.300})"),
                };
                self.differs(format!(
                    "{what}: the real one says {}, the model {}",
                    short(&real),
                    short(&model)
                ));
            }
        }
        (real, model)
    }

    /// As [`Self::both`], where nobody needs the responses.
    pub(crate) async fn check(&mut self, what: &str, request: impl Fn(Side) -> Request<Vec<u8>>) {
        let _ = self.both(what, request).await;
    }

    pub(crate) fn differs(&mut self, what: String) {
        self.differences.push(what);
    }

    /// Compares two objects, lists or statuses.
    pub(crate) fn compare(&mut self, what: &str, real: &Value, model: &Value) {
        if let (Some(reals), Some(models)) = (real["items"].as_array(), model["items"].as_array()) {
            let names =
                |all: &[Value]| all.iter().map(|one| one["metadata"]["name"].to_string()).collect::<Vec<_>>();
            if names(reals) != names(models) {
                return self.differs(format!("{what}: lists {:?} and {:?}", names(reals), names(models)));
            }
            for (real, model) in reals.iter().zip(models) {
                self.compare(what, real, model);
            }
            let more =
                |list: &Value| list["metadata"]["continue"].as_str().is_some_and(|token| !token.is_empty());
            if more(real) != more(model) {
                self.differs(format!("{what}: more pages {} and {}", more(real), more(model)));
            }
            return;
        }
        self.identities(what, real, model);
        let (real, model) = (plain(real), plain(model));
        if !holds(&real, &model) {
            self.differs(format!("{what}: the objects are\n  {real}\n  {model}"));
        }
    }

    /// Uids and resourceVersions are different on both sides, and have to be equal and unequal in the same places.
    fn identities(&mut self, what: &str, real: &Value, model: &Value) {
        let text =
            |object: &Value, field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        let (reals, models) = (text(real, "uid"), text(model, "uid"));
        let mut fits = reals.is_empty() == models.is_empty() && self.uids.fits(&reals, &models);
        let (reals, models) = (text(real, "resourceVersion"), text(model, "resourceVersion"));
        fits &= self.versions.fits(&reals, &models);
        if !fits {
            self.differs(format!(
                "{what}: uid or resourceVersion repeats on one side only: {} and {model}",
                plain(real)["metadata"]
            ));
        }
    }
}

/// An object without what both sides generate.
fn plain(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(details) = object.get_mut("details").and_then(Value::as_object_mut) {
        details.remove("uid");
    }
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("managedFields");
        for field in ["uid", "resourceVersion", "creationTimestamp", "deletionTimestamp"] {
            if metadata.contains_key(field) {
                metadata.insert(field.to_owned(), json!("generated"));
            }
        }
        if metadata.contains_key("generateName") {
            metadata.insert("name".to_owned(), json!("generated"));
        }
    }
    object
}

/// Whether an object of the real API server is that of the model, apart from defaults in the specs and the status of some kinds.
fn holds(real: &Value, model: &Value) -> bool {
    // Objects in lists have no kind.
    let is_pod = model["spec"]["containers"].is_array();
    let partial = is_pod || model["kind"] == "Namespace";
    let (Some(reals), Some(models)) = (real.as_object(), model.as_object()) else { return real == model };
    if !partial {
        return real == model;
    }
    let keys = reals.keys().chain(models.keys());
    keys.into_iter().all(|key| match (key.as_str(), reals.get(key), models.get(key)) {
        ("spec" | "status", Some(real), Some(model)) => includes(real, model),
        ("spec" | "status", _, None) => true,
        (_, real, model) => real == model,
    })
}

/// Whether everything of one value is in another one.
fn includes(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            part.iter().all(|(key, part)| whole.get(key).is_some_and(|whole| includes(whole, part)))
        }
        (Value::Array(whole), Value::Array(part)) => {
            whole.len() == part.len() && whole.iter().zip(part).all(|(whole, part)| includes(whole, part))
        }
        _ => whole == part,
    }
}

async fn send(client: &Client, request: Request<Vec<u8>>) -> Response {
    match client.request::<Value>(request).await {
        Ok(object) => Ok(object),
        Err(kube::Error::Api(status)) => Err((status.code, status.reason.clone(), status.message.clone())),
        Err(error) => panic!("no response: {error:?}"),
    }
}

fn request(method: &str, path: &str, content: &str, body: &Value) -> Request<Vec<u8>> {
    let builder = Request::builder().method(method).uri(path).header("content-type", content);
    builder.body(body.to_string().into_bytes()).unwrap()
}

pub(crate) fn get(path: &str) -> Request<Vec<u8>> {
    Request::builder().uri(path).body(Vec::new()).unwrap()
}

pub(crate) fn get_metadata(path: &str) -> Request<Vec<u8>> {
    let accept = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
    Request::builder().uri(path).header("accept", accept).body(Vec::new()).unwrap()
}

pub(crate) fn post(path: &str, body: &Value) -> Request<Vec<u8>> {
    request("POST", path, "application/json", body)
}

pub(crate) fn put(path: &str, body: &Value) -> Request<Vec<u8>> {
    request("PUT", path, "application/json", body)
}

pub(crate) fn delete(path: &str, options: &Value) -> Request<Vec<u8>> {
    request("DELETE", path, "application/json", options)
}

/// A patch of a kind: `merge-patch+json`, `json-patch+json`, `apply-patch+yaml`.
pub(crate) fn patch(path: &str, kind: &str, body: &Value) -> Request<Vec<u8>> {
    request("PATCH", path, &format!("application/{kind}"), body)
}
