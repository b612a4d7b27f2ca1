//! Asks a cluster for what a bundle has, part by part. What can't be read is noted, and ends nothing.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use http::{Request, StatusCode};
use http_body_util::BodyExt;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, ApiResource, ListParams, LogParams};
use kube::client::Body;
use outrigger_core::host::HostLabels;
use outrigger_core::json::{list, text};
use outrigger_core::keys;
use outrigger_runtime::calls;
use outrigger_runtime::environment::Clock;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use super::BundleArgs;
use super::archive::{Content, Drafts, FILE, segment};
use super::redact::{Redactor, TEXT};
use crate::check::installation::{self, LiveArgs, parts, reach};
use crate::cluster::{
    Cluster, DEPLOYMENT, Kind, MUTATING, NAMESPACE, POD, Unread, VALIDATING, each, in_time, of_kind,
};
use crate::document::Readable;
use crate::explain::live::client;
use crate::files::InputError;
use crate::program::VERSION;
use crate::status;

/// How long collecting may take. An installation of ten thousand companions and thirty Pods takes less than a minute.
const TIME: Duration = Duration::from_secs(180);

/// Most bytes of one answer: a page of the largest objects that etcd stores (1.5 MiB), or a log.
const ANSWER: usize = 32 << 20;

/// Objects of a page, because of [`ANSWER`].
const PAGE: u32 = 20;

/// Most objects of a kind in a bundle.
const OBJECTS: usize = 1_000;

/// Most objects of a kind that are looked at, for those of which few are kept.
const LOOKED_AT: usize = 20_000;

/// Bytes of the largest object that is kept. A template may have twice as much; few have a tenth.
const OBJECT: usize = 256 << 10;

/// Most Pods of which logs and metrics are read: all of webhook and manager, and some of a plugin that runs on each host.
const PODS: usize = 30;

/// Lines of a log's end: half an hour of a busy manager.
const LINES: i64 = 2_000;

/// Bytes of a log that are read, and bytes of its end that are kept.
const LOG: (i64, usize) = (8 << 20, 1 << 20);

/// The path of a kind's objects.
fn objects_path(resource: &ApiResource) -> String {
    let dot = if resource.group.is_empty() { "" } else { "." };
    format!("objects/{}{dot}{}.yaml", resource.plural, resource.group)
}

/// Reduces an object to what the bundle has of it, and says whether that is anything.
type Keep = fn(&mut Value, &HostLabels) -> bool;

/// Kinds in the namespaces of the installation.
const INSTALLED: [Kind; 11] = [
    DEPLOYMENT,
    Kind("apps/v1", "DaemonSet"),
    POD,
    Kind("v1", "Service"),
    Kind("v1", "ConfigMap"),
    Kind("v1", "ServiceAccount"),
    Kind("discovery.k8s.io/v1", "EndpointSlice"),
    Kind("policy/v1", "PodDisruptionBudget"),
    Kind("networking.k8s.io/v1", "NetworkPolicy"),
    Kind("autoscaling/v2", "HorizontalPodAutoscaler"),
    Kind("coordination.k8s.io/v1", "Lease"),
];

/// Kinds of the whole cluster.
const CLUSTER_WIDE: [(Kind, Keep); 7] = [
    (MUTATING, is_named),
    (VALIDATING, is_named),
    (Kind("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy"), is_named),
    (Kind("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding"), is_named),
    (Kind("apiextensions.k8s.io/v1", "CustomResourceDefinition"), definition),
    (NAMESPACE, namespace),
    (Kind("v1", "Node"), node),
];

/// Label of what is Outrigger's own, and its value.
const OWN_LABEL: (&str, &str) = ("app.kubernetes.io/name", "outrigger");

/// The components that report Events.
const REPORTERS: [&str; 4] = [keys::MANAGER, keys::WEBHOOK, keys::AGENT, keys::HOST_PLUGIN];

const EVENT: Kind = Kind("v1", "Event");

/// Collects everything.
///
/// # Errors
/// The cluster can't be reached.
pub(super) async fn all(args: &BundleArgs) -> Result<(Drafts, Redactor), InputError> {
    let client = calls::read_only(client(&args.cluster, "--kubeconfig").await?, ANSWER);
    let cluster = Cluster::new(client.clone(), args.cluster.is_own().await);
    let version = in_time(client.apiserver_version()).await;
    let version = version.map_err(|unread| InputError::new("the cluster", unread.brief()))?;
    let system = match &args.system_namespace {
        Some(namespace) => namespace.clone(),
        None => parts::system_namespace(&cluster).await,
    };
    let mut collector = Collector {
        client,
        until: Clock::system().now() + TIME,
        drafts: Drafts::default(),
        redactor: Redactor::new(args.include_values),
        host_labels: &args.admission.host_labels,
    };
    collector.installation(&system).await;
    let images = images(collector.drafts.objects("objects/pods.yaml"));
    let versions = json!({"command": VERSION, "apiServer": version, "images": images});
    collector.drafts.add("versions.json", Content::Report(versions), Vec::new());
    Box::pin(collector.reports(args, cluster)).await;
    for (kind, keep) in CLUSTER_WIDE {
        collector.list(kind.resource(), "", ListParams::default(), true, keep).await;
    }
    collector.custom_resources().await;
    collector.events(&system).await;
    Box::pin(collector.pods()).await;
    let Collector { mut drafts, redactor, .. } = collector;
    if redactor.unlearned > 0 {
        let many =
            format!("{} values more than can be searched for may be left in texts", redactor.unlearned);
        drafts.lacks("redaction of logs, Events and findings", many);
    }
    Ok((drafts, redactor))
}

struct Collector<'a> {
    client: Client,
    until: Instant,
    drafts: Drafts,
    redactor: Redactor,
    host_labels: &'a HostLabels,
}

impl Collector<'_> {
    /// What a call has found, if it is in time; else it is noted what is missing.
    async fn found<T>(&mut self, what: &str, call: impl Future<Output = Result<T, Unread>>) -> Option<T> {
        let why = match timeout_at(self.until, call).await {
            Ok(Ok(found)) => return Some(found),
            Ok(Err(unread)) => unread.brief(),
            Err(_) => late(),
        };
        self.drafts.lacks(what, why);
        None
    }

    /// Reads a list. That the cluster doesn't have the kind is no lack.
    async fn list(&mut self, of: ApiResource, namespace: &str, params: ListParams, own: bool, keep: Keep) {
        let path = match (&*of.kind, own) {
            ("Pod", false) => "objects/companions.yaml".to_owned(),
            _ => objects_path(&of),
        };
        let place = if namespace.is_empty() { String::new() } else { format!(" in {namespace}") };
        let what = format!("{}{place}", of.plural);
        let (mut kept, mut cut, mut bytes, mut looked, mut long) = (Vec::new(), Vec::new(), 0, 0, 0);
        let of_kind = of_kind(&self.client, of, Some(namespace).filter(|name| !name.is_empty()));
        let read = each(&of_kind, params.limit(PAGE), |mut object| {
            looked += 1;
            if looked > LOOKED_AT || kept.len() == OBJECTS || bytes > FILE {
                cut.push(format!("{what}: only the first {} are here", kept.len()));
                return false;
            }
            if keep(&mut object, self.host_labels) {
                let count = self.redactor.object(&mut object, own);
                let size = object.to_string().len();
                if size > OBJECT {
                    let name =
                        ["/metadata/namespace", "/metadata/name"].map(|at| text(&object, at)).join("/");
                    cut.push(format!("{name}: an object of {size} bytes, because one may have {OBJECT}"));
                } else {
                    (long, bytes) = (long + count, bytes + size);
                    kept.push(object);
                }
            }
            true
        });
        let read = timeout_at(self.until, read).await;
        if long > 0 {
            cut.push(format!("{long} texts of more than {TEXT} bytes"));
        }
        if !kept.is_empty() || !cut.is_empty() {
            self.drafts.add(path, Content::Objects(kept), cut);
        }
        match read {
            Ok(Err(unread)) if !unread.is_no_kind() => self.drafts.lacks(what, unread.brief()),
            Ok(_) => {}
            Err(_) => self.drafts.lacks(what, late()),
        }
    }

    async fn installation(&mut self, system: &str) {
        for namespace in [system, keys::HOST_NAMESPACE] {
            for kind in INSTALLED {
                self.list(kind.resource(), namespace, ListParams::default(), true, is_own).await;
            }
        }
    }

    /// Outrigger's kinds, and companions. Most of it is tenants' text.
    async fn custom_resources(&mut self) {
        for of in KINDS.iter() {
            self.list(of.clone(), "", ListParams::default(), false, |_, _| true).await;
        }
        for kind in [POD, Kind("resource.k8s.io/v1", "ResourceClaim")] {
            let companions = ListParams::default().labels(keys::RULE);
            self.list(kind.resource(), "", companions, false, |_, _| true).await;
        }
    }

    /// Events of the installation's namespaces, about Outrigger's kinds, and of its components.
    async fn events(&mut self, system: &str) {
        for namespace in [system, keys::HOST_NAMESPACE] {
            self.list(EVENT.resource(), namespace, ListParams::default(), true, |_, _| true).await;
        }
        let about = KINDS.iter().map(|of| format!("involvedObject.kind={}", of.kind));
        let by = REPORTERS.map(|name| format!("reportingComponent={name}"));
        for selector in about.chain(by) {
            let params = ListParams::default().fields(&selector);
            self.list(EVENT.resource(), "", params, false, |_, _| true).await;
        }
    }

    /// What `outrigger status` and `outrigger check --live` say.
    async fn reports(&mut self, args: &BundleArgs, cluster: Cluster) {
        let failed = |error: anyhow::Error| Unread { status: 0, why: format!("{error:#}") };
        let (namespace, admission, client) =
            (args.system_namespace.clone(), &args.admission, self.client.clone());
        let status = async {
            let report = status::read::report(client, namespace.as_deref(), admission, None).await;
            report.map_err(|error| failed(error.into()))
        };
        if let Some(report) = self.found("status", status).await {
            self.report("status", &report);
        }
        let live = LiveArgs::of(namespace.clone());
        let check = async { installation::of_cluster(cluster, &live, admission).await.map_err(failed) };
        if let Some(mut report) = self.found("check --live", check).await {
            report.sort();
            self.report("check", &report);
        }
    }

    fn report(&mut self, name: &str, report: &impl Readable) {
        let mut shown = Vec::new();
        // Writing to memory doesn't fail, nor does serialising a report.
        let _ = report.document().text(&mut anstream::StripStream::new(&mut shown));
        let value = serde_json::to_value(report).unwrap_or_default();
        let shown = Content::Text(String::from_utf8_lossy(&shown).into_owned());
        self.drafts.add(format!("{name}.txt"), shown, Vec::new());
        self.drafts.add(format!("{name}.json"), Content::Report(value), Vec::new());
    }

    /// Logs, metrics and readiness of Outrigger's own Pods.
    async fn pods(&mut self) {
        let pods = self.drafts.objects("objects/pods.yaml").to_vec();
        if pods.len() > PODS {
            let why = format!("logs and metrics of {PODS} Pods are here, and not of {}", pods.len() - PODS);
            self.drafts.lacks("pods", why);
        }
        for pod in pods.iter().take(PODS) {
            let [namespace, name] = ["/metadata/namespace", "/metadata/name"].map(|at| text(pod, at));
            let directory = format!("pods/{}/{}", segment(namespace), segment(name));
            for status in list(pod, "/status/initContainerStatuses")
                .iter()
                .chain(list(pod, "/status/containerStatuses"))
            {
                let container = text(status, "/name");
                let file = format!("{directory}/{}", segment(container));
                self.log((namespace, name, container), false, format!("{file}.log")).await;
                if status.pointer("/restartCount").and_then(Value::as_i64).is_some_and(|count| count > 0) {
                    self.log((namespace, name, container), true, format!("{file}.previous.log")).await;
                }
            }
            let Some(port) = admin_port(pod).filter(|_| text(pod, "/status/phase") == "Running") else {
                continue;
            };
            for (path, file) in [("metrics", "metrics.txt"), ("readyz?verbose", "readyz.txt")] {
                let path = format!("/api/v1/namespaces/{namespace}/pods/{name}:{port}/proxy/{path}");
                let client = self.client.clone();
                let file = format!("{directory}/{file}");
                let Some(mut text) = self.found(&file, proxied(client, &path)).await else { continue };
                let mut cut = Vec::new();
                if text.len() > FILE {
                    cut.push(format!("all but the first {} MiB", FILE >> 20));
                    text.truncate(text.floor_char_boundary(FILE));
                }
                self.drafts.add(file, Content::Text(text), cut);
            }
        }
    }

    /// The end of a container's log.
    async fn log(&mut self, (namespace, pod, container): (&str, &str, &str), previous: bool, file: String) {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let (container, read) = (Some(container.to_owned()), LOG.0);
        let params = LogParams {
            container,
            previous,
            tail_lines: Some(LINES),
            limit_bytes: Some(read),
            ..LogParams::default()
        };
        let Some(text) = self.found(&file, in_time(api.logs(pod, &params))).await else { return };
        let mut cut = Vec::new();
        if text.len() as i64 >= read {
            cut.push(format!("the newest lines, because the last {LINES} have more than {read} bytes"));
        }
        let (end, is_cut) = end_of(&text, LOG.1);
        if is_cut {
            cut.push(format!("all but the last {} KiB", LOG.1 >> 10));
        }
        self.drafts.add(file, Content::Text(end.to_owned()), cut);
    }
}

fn late() -> String {
    format!("the {} s that collecting may take had passed", TIME.as_secs())
}

/// The last lines of a text that fit, and whether these aren't all of it.
fn end_of(text: &str, most: usize) -> (&str, bool) {
    if text.len() <= most {
        return (text, false);
    }
    let end = &text[text.ceil_char_boundary(text.len() - most)..];
    (end.split_once('\n').map_or(end, |(_, whole)| whole), true)
}

/// Outrigger's kinds. Their definitions have large schemas, so they are made once.
static KINDS: LazyLock<Vec<ApiResource>> = LazyLock::new(|| {
    let kind = |crd: CustomResourceDefinition| {
        let (group, names) = (crd.spec.group, crd.spec.names);
        let version = crd.spec.versions.into_iter().map(|version| version.name).next().unwrap_or_default();
        let api_version = format!("{group}/{version}");
        ApiResource { group, version, api_version, kind: names.kind, plural: names.plural }
    };
    outrigger_api::crds().into_iter().map(kind).collect()
});

/// What a Pod answers through the API server, also if it isn't ready.
async fn proxied(client: Client, path: &str) -> Result<String, Unread> {
    let unread = |status: u16, why: String| Unread { status, why };
    let request = Request::get(path).body(Body::empty());
    let request = request.map_err(|error| unread(0, error.to_string()))?;
    in_time(async {
        let answer = client.send(request).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        let answered = String::from_utf8_lossy(&body).into_owned();
        // The API server's own refusals are objects.
        let refusal = serde_json::from_str(&answered).ok().filter(Value::is_object);
        let message = refusal.map(|status: Value| text(&status, "/message").to_owned());
        Ok(match message {
            Some(message) => Err(unread(status.as_u16(), message)),
            None if status.is_success() || status == StatusCode::SERVICE_UNAVAILABLE => Ok(answered),
            None => Err(unread(status.as_u16(), status.to_string())),
        })
    })
    .await?
}

/// The port of probes and metrics.
fn admin_port(pod: &Value) -> Option<i64> {
    let containers = list(pod, "/spec/containers").iter();
    let mut ports = containers.flat_map(|container| list(container, "/ports"));
    ports.find(|port| text(port, "/name") == "admin")?.pointer("/containerPort")?.as_i64()
}

/// The images of the containers of Pods, as they are named and as they run.
fn images(pods: &[Value]) -> BTreeMap<String, Vec<Value>> {
    let of = |pod: &Value| {
        let name = ["/metadata/namespace", "/metadata/name"].map(|at| text(pod, at)).join("/");
        let statuses = list(pod, "/status/containerStatuses").iter();
        let image = |status: &Value| json!({"container": status["name"], "image": status["image"], "id": status["imageID"]});
        (name, statuses.map(image).collect())
    };
    pods.iter().map(of).collect()
}

/// Whether the name or the label of an object says that it is Outrigger's.
fn is_own(object: &mut Value, host_labels: &HostLabels) -> bool {
    object["metadata"]["labels"][OWN_LABEL.0] == OWN_LABEL.1 || is_named(object, host_labels)
}

fn is_named(object: &mut Value, _: &HostLabels) -> bool {
    text(object, "/metadata/name").split('-').next() == Some(OWN_LABEL.1)
        || list(object, "/webhooks").iter().any(|entry| reach::is_own(text(entry, "/name")))
}

/// Of Outrigger's CRDs everything but schemas.
fn definition(object: &mut Value, _: &HostLabels) -> bool {
    let name = text(object, "/metadata/name");
    if !KINDS.iter().any(|of| name == format!("{}.{}", of.plural, of.group)) {
        return false;
    }
    for version in object.pointer_mut("/spec/versions").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(version) = version.as_object_mut() {
            version.remove("schema");
            version.remove("additionalPrinterColumns");
        }
    }
    true
}

/// Whether Outrigger has put a label on it.
fn namespace(object: &mut Value, _: &HostLabels) -> bool {
    let labels = object.pointer("/metadata/labels").and_then(Value::as_object);
    let mut keys = labels.into_iter().flat_map(|labels| labels.keys());
    keys.any(|key| keys::is_own(key) || key == keys::OFFLOADED)
}

/// Of a Node what Outrigger reads and writes: its own labels and taints, those that name the host, and whether it is ready.
fn node(object: &mut Value, host_labels: &HostLabels) -> bool {
    let is_known = |key: &str| {
        keys::is_own(key)
            || host_labels.keys().any(|known| known == key)
            || key.starts_with(keys::MACHINE_GROUP_DOMAIN)
    };
    let labels = object.pointer("/metadata/labels").and_then(Value::as_object).cloned().unwrap_or_default();
    let labels: serde_json::Map<String, Value> =
        labels.into_iter().filter(|(key, _)| is_known(key)).collect();
    let taints = list(object, "/spec/taints").iter().filter(|taint| {
        let key = text(taint, "/key");
        is_known(key) || keys::NOT_READY.contains(&key)
    });
    let taints: Vec<Value> = taints.cloned().collect();
    let ready = crate::condition::named(object, "Ready").cloned();
    let is_kept = !labels.is_empty();
    *object = json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": object["metadata"]["name"], "uid": object["metadata"]["uid"], "labels": labels},
        "spec": {"taints": taints, "unschedulable": object["spec"]["unschedulable"] == true},
        "status": {"conditions": ready.as_slice()}});
    is_kept
}

#[cfg(test)]
mod tests;
