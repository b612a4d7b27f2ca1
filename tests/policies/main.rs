//! Tenant isolation while Outrigger's webhook is down: `webhooks/policies.yaml` on a real control plane, without any of
//! Outrigger's processes. The webhook's configuration is there, but nobody listens, and its failures are ignored.
//!
//! Most of it is a table of twins: a request that is refused, and one that differs in nothing but the reason and is
//! allowed. All of these are dry runs, so they don't meet.
// Helpers of tests fail by panicking, as tests do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::sync::Mutex;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Client;
use kube::api::{Api, ListParams};
use outrigger_core::keys;
use outrigger_tests::control_plane::ControlPlane;
use outrigger_tests::outrigger::{SYSTEM, ports};
use outrigger_tests::tenant::{is_ready, node_of};
use outrigger_tests::{eventually, root};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use Who::{Admin, Agent, Collector, Kubelet, Manager, NewKubelet, Operator, Scheduler, User, Webhook};
use admin::admin_companions;
use devices::devices;
use tables::*;
use tenant_claims::tenant_claims;

/// Pods of the tenant blue.
const BLUE: &str = "/api/v1/namespaces/tenant-blue/pods";
/// Pods of the tenant green, whose namespace is privileged.
const GREEN: &str = "/api/v1/namespaces/tenant-green/pods";
/// Pods of nobody.
const PLAIN: &str = "/api/v1/namespaces/plain/pods";
/// Pods of the platform, companions of admin rules among them.
const UNIVERSE: &str = "/api/v1/namespaces/universe/pods";
/// Pods of the cluster itself.
const KUBE_SYSTEM: &str = "/api/v1/namespaces/kube-system/pods";
const NAMESPACES: &str = "/api/v1/namespaces";
const NODES: &str = "/api/v1/nodes";
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
const MIRROR: &str = "kubernetes.io/config.mirror";
const LEVEL: &str = "pod-security.kubernetes.io/enforce";
const RULES: &str = "workload.universe.nvidia.com/v1alpha1";
/// A key of ours that nobody uses.
const SUBDOMAIN: &str = "x.outrigger.dev/y";
/// A key that only looks like one of ours.
const LOOKALIKE: &str = "outrigger.dev.example.com/y";

/// A DPU of a tenant in a host, as Outrigger marks it.
fn dpu(name: &str, tenant: &str, host: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {keys::NODE_TENANT: tenant, keys::DPU_HOST: host}},
        "spec": {"taints": [{"key": keys::TENANT, "value": tenant, "effect": "NoSchedule"}]}})
}

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    /// May do everything.
    Admin,
    /// The manager, with more rights by RBAC than it will ever have: what refuses it is the policies.
    Manager,
    /// The webhook, likewise.
    Webhook,
    /// The agent, likewise: in a cluster that is its tenant's too.
    Agent,
    /// Has the role `edit` in the namespace tenant-blue.
    User,
    /// May do everything to the things of a cluster, but not assign.
    Operator,
    Scheduler,
    /// A controller of the cluster itself.
    Collector,
    /// The kubelet of the Node blue-dpu.
    Kubelet,
    /// A kubelet whose Node isn't there yet: blue-new.
    NewKubelet,
}

impl Who {
    /// User and group that an administrator has to impersonate.
    fn user(self) -> Option<(&'static str, &'static str)> {
        Some(match self {
            Admin => return None,
            Manager => ("system:serviceaccount:outrigger-system:outrigger-manager", "system:serviceaccounts"),
            Webhook => ("system:serviceaccount:outrigger-system:outrigger-webhook", "system:serviceaccounts"),
            Agent => ("system:serviceaccount:outrigger-system:outrigger-agent", "system:serviceaccounts"),
            User => ("blue-user", "users"),
            Operator => ("operator", "operators"),
            Scheduler => ("system:kube-scheduler", "system:authenticated"),
            Collector => (
                "system:serviceaccount:kube-system:pod-garbage-collector",
                "system:serviceaccounts:kube-system",
            ),
            Kubelet => ("system:node:blue-dpu", "system:nodes"),
            NewKubelet => ("system:node:blue-new", "system:nodes"),
        })
    }

    fn ask(self, method: &'static str, path: impl Into<String>, body: Value) -> Ask {
        Ask { who: self, method, path: path.into(), body }
    }

    fn create(self, path: impl Into<String>, body: Value) -> Ask {
        self.ask("POST", path, body)
    }

    /// A merge patch, or a JSON patch if it is a list.
    fn patch(self, path: impl Into<String>, body: Value) -> Ask {
        self.ask("PATCH", path, body)
    }

    fn put(self, path: impl Into<String>, body: Value) -> Ask {
        self.ask("PUT", path, body)
    }

    fn get(self, path: impl Into<String>) -> Ask {
        self.ask("GET", path, Value::Null)
    }

    fn delete(self, path: impl Into<String>) -> Ask {
        self.ask("DELETE", path, Value::Null)
    }
}

/// A request.
#[derive(Debug, Clone)]
struct Ask {
    who: Who,
    method: &'static str,
    path: String,
    body: Value,
}

impl Ask {
    async fn send(&self, client: &Client) -> Result<Value, String> {
        self.request(client, &self.path).await
    }

    /// Asks without consequences.
    async fn dry_run(&self, client: &Client) -> Result<Value, String> {
        self.request(client, &format!("{}?dryRun=All", self.path)).await
    }

    async fn request(&self, client: &Client, uri: &str) -> Result<Value, String> {
        let (method, uri) = match self.method {
            "APPLY" => ("PATCH", format!("{uri}&fieldManager=somebody&force=true")),
            method => (method, uri.to_owned()),
        };
        let kind = match (self.method, self.body.is_array()) {
            ("APPLY", _) => "application/apply-patch+yaml",
            ("PATCH", true) => "application/json-patch+json",
            ("PATCH", false) => "application/merge-patch+json",
            _ => "application/json",
        };
        let mut request = http::Request::builder().method(method).uri(uri).header("content-type", kind);
        if let Some((user, group)) = self.who.user() {
            request = request.header("impersonate-user", user).header("impersonate-group", group);
        }
        let body = if self.body.is_null() { Vec::new() } else { self.body.to_string().into_bytes() };
        match client.request_text(request.body(body).unwrap()).await {
            Ok(text) => Ok(serde_json::from_str(&text).unwrap()),
            Err(kube::Error::Api(status)) => Err(status.message),
            Err(other) => Err(other.to_string()),
        }
    }
}

/// Two requests that differ in nothing but the reason for which one is refused.
struct Twins {
    what: &'static str,
    allowed: Ask,
    refused: Ask,
    /// The policy that refuses it.
    policy: &'static str,
    /// Parts of the refusal.
    says: Vec<String>,
}

/// Twins: `"what": allowed, refused => "what it says"`. Braces, so that a row stays a row.
macro_rules! twins {
    {$policy:literal; $($what:literal: $allowed:expr, $refused:expr => $($says:expr),+;)*} => {
        vec![$(Twins {
            what: $what, policy: $policy, allowed: $allowed, refused: $refused, says: vec![$(String::from($says)),+],
        }),*]
    };
}

/// Twins that a user makes in the tenant's namespace: changes to a good Pod, as JSON or as a value in parentheses.
macro_rules! pods {
    {$($what:literal: $good:tt | $bad:tt => $($says:expr),+;)*} => {
        twins! {"outrigger-pods"; $(
            $what: User.create(BLUE, pod("blue", json!($good))), User.create(BLUE, pod("blue", json!($bad)))
                => $($says),+;
        )*}
    };
}

mod accounts;
mod admin;
mod devices;
mod emergency;
mod limits;
mod tables;
mod tenant_claims;

/// A Pod that keeps all rules, with a change.
fn pod(tenant: &str, change: Value) -> Value {
    let pod =
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "p-"}, "spec": spec(tenant)});
    merged(pod, change)
}

fn named(name: &str, change: Value) -> Value {
    merged(pod("blue", json!({"metadata": {"name": name, "generateName": null}})), change)
}

fn spec(tenant: &str) -> Value {
    json!({"containers": [{"name": "c", "image": "i"}],
        "tolerations": [{"key": keys::TENANT, "value": tenant, "effect": "NoSchedule"}],
        "affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [term(tenant)]}}}})
}

fn term(tenant: &str) -> Value {
    json!({"matchExpressions": [{"key": keys::NODE_TENANT, "operator": "In", "values": [tenant]}]})
}

/// The terms of a Pod's required node affinity.
fn terms(terms: Value) -> Value {
    json!({"spec": {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}}})
}

/// A single term about the tenant's label of Nodes.
fn places(operator: &str, values: Value) -> Value {
    terms(json!([{"matchExpressions": [{"key": keys::NODE_TENANT, "operator": operator, "values": values}]}]))
}

fn tolerate(toleration: Value) -> Value {
    json!({"spec": {"tolerations": [toleration]}})
}

/// A Pod's only container.
fn container(change: Value) -> Value {
    json!({"spec": {"containers": [merged(json!({"name": "c", "image": "i"}), change)]}})
}

/// Its security context.
fn context(context: Value) -> Value {
    container(json!({"securityContext": context}))
}

/// The second init container's security context.
fn init(context: Value) -> Value {
    json!({"spec": {"initContainers": [
        {"name": "i", "image": "i"}, {"name": "j", "image": "i", "securityContext": context}]}})
}

/// A debugging container's security context.
fn debug(context: Value) -> Value {
    json!({"spec": {"ephemeralContainers": [{"name": "debug", "image": "i", "securityContext": context,
        "terminationMessagePolicy": "File", "imagePullPolicy": "Always"}]}})
}

fn volume(volume: Value) -> Value {
    json!({"spec": {"volumes": [{"name": "a", "emptyDir": {}}, merged(json!({"name": "b"}), volume)]}})
}

/// A second port.
fn port(port: Value) -> Value {
    container(json!({"ports": [{"containerPort": 81}, port]}))
}

fn label(key: &str, value: impl Into<Value>) -> Value {
    json!({"metadata": {"labels": {key: value.into()}}})
}

fn annotation(key: &str, value: impl Into<Value>) -> Value {
    json!({"metadata": {"annotations": {key: value.into()}}})
}

fn gates(names: &[&str]) -> Value {
    let gates: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
    json!({"spec": {"schedulingGates": gates}})
}

fn owner(version: &str, name: &str) -> Value {
    json!({"metadata": {"ownerReferences": [
        {"apiVersion": version, "kind": "WorkloadRule", "name": name, "uid": "1", "controller": true}]}})
}

/// What tells a companion of an admin rule.
fn admin_companion() -> Value {
    merged(label(keys::TENANT, "blue"), annotation(keys::ADMIN_RULE, "r"))
}

fn taints(taints: Value) -> Value {
    json!({"spec": {"taints": taints}})
}

/// A Pod that keeps no rule at all.
fn hostile(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {
            "name": name, "labels": {SUBDOMAIN: "x"}, "finalizers": ["example.com/wait"]},
        "spec": {
            "hostNetwork": true, "hostPID": true, "tolerations": [{"operator": "Exists"}],
            "schedulingGates": [{"name": "example.com/wait"}],
            "volumes": [{"name": "v", "hostPath": {"path": "/"}}],
            "containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80, "hostPort": 80}],
                "resources": {"requests": {"cpu": "1"}},
                "securityContext": {"privileged": true, "capabilities": {"add": ["SYS_ADMIN"]}}}]}})
}

/// A Pod with much of everything, but all of it in order, with a change.
fn large(change: Value) -> Value {
    let many = |make: fn(usize) -> Value| (0..100).map(make).collect::<Vec<_>>();
    let all = json!({
        "spec": {
            "containers": many(|i| json!({"name": format!("c{i}"), "image": "i", "ports": [{"containerPort": i + 1}],
                "securityContext": {"privileged": false, "capabilities": {"add": ["CHOWN", "KILL"]}},
                "env": [{"name": "E", "value": "x".repeat(1000)}]})),
            "tolerations": many(|i| json!({"key": format!("example.com/{i}"), "operator": "Exists"})),
            "volumes": many(|i| json!({"name": format!("v{i}"), "emptyDir": {}})),
            "affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": many(|_| term("blue"))}}}},
        "metadata": {"annotations": (0..1000).map(|i| (format!("example.com/{i}"), "x".repeat(200)))
            .collect::<std::collections::BTreeMap<_, _>>()}});
    merged(all, change)
}

fn merged(mut into: Value, change: Value) -> Value {
    merge(&mut into, change);
    into
}

/// A merge patch: null removes.
fn merge(into: &mut Value, change: Value) {
    let Value::Object(change) = change else {
        *into = change;
        return;
    };
    if !into.is_object() {
        *into = json!({});
    }
    for (key, value) in change {
        if value.is_null() {
            into.as_object_mut().unwrap().remove(&key);
        } else {
            merge(&mut into[key.as_str()], value);
        }
    }
}

fn at(namespace: &str) -> String {
    format!("{NAMESPACES}/{namespace}")
}

fn role_bindings(namespace: &str) -> String {
    format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings")
}

fn namespace(name: &str, labels: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
}

fn role_binding(name: &str, role: &str) -> Value {
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": "outrigger-manager", "namespace": SYSTEM}]})
}

/// Who may what by RBAC: enough that it is the policies which refuse.
fn roles() -> Vec<Value> {
    let account = |name: &str| json!({"kind": "ServiceAccount", "name": name, "namespace": SYSTEM});
    let user = |name: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name});
    let groups =
        json!(["", "apps", "batch", "rbac.authorization.k8s.io", "resource.k8s.io", keys::OFFLOADING_GROUP]);
    let everything = json!({"apiGroups": groups, "resources": ["*"], "verbs": ["*"]});
    // All but `assign`.
    let verbs = json!(["get", "list", "watch", "create", "update", "patch", "delete"]);
    let groups = json!([
        "outrigger.dev",
        keys::MACHINE_GROUP_DOMAIN,
        keys::WORKLOAD_GROUP,
        "admissionregistration.k8s.io"
    ]);
    let ours = json!({"apiGroups": groups, "resources": ["*"], "verbs": verbs});
    let assign = json!({"apiGroups": ["outrigger.dev"], "resources": ["tenants"], "verbs": ["assign"]});
    let mut all = vec![merged(
        role_binding("edit", "edit"),
        json!({"metadata": {"namespace": "tenant-blue"}, "subjects": [user("blue-user")]}),
    )];
    for namespace in ["tenant-blue", "plain"] {
        let ours = role_binding("outrigger-manager", "outrigger-manager-tenant");
        all.push(merged(ours, json!({"metadata": {"namespace": namespace}})));
    }
    for (name, subject, rules) in [
        ("wide-manager", account("outrigger-manager"), json!([assign, everything, ours])),
        ("wide-webhook", account("outrigger-webhook"), json!([everything, ours])),
        ("wide-agent", account("outrigger-agent"), json!([everything, ours])),
        ("wide-operator", user("operator"), json!([everything, ours])),
    ] {
        let binding =
            json!({"kind": "ClusterRoleBinding", "metadata": {"name": name}, "subjects": [subject]});
        all.push(merged(role_binding(name, name), binding));
        all.push(json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": name}, "rules": rules}));
    }
    all
}

/// The shipped configuration, with a URL where nobody listens. Its failures are ignored, as if somebody had decided so
/// to get Pods made again.
fn dead_webhook() -> Value {
    let text = std::fs::read_to_string(root().join("webhooks/mutating.yaml")).unwrap();
    let mut configuration: Value = serde_yaml::from_str(&text).unwrap();
    let [port] = ports().unwrap();
    for webhook in configuration["webhooks"].as_array_mut().unwrap() {
        webhook["clientConfig"] = json!({"url": format!("https://127.0.0.1:{port}/mutate/pods")});
        webhook["failurePolicy"] = json!("Ignore");
    }
    configuration
}

/// The control plane with everything that the tests need on it.
struct Setup {
    plane: ControlPlane,
}

impl Setup {
    async fn shared() -> &'static Self {
        static SHARED: OnceCell<Setup> = OnceCell::const_new();
        SHARED.get_or_init(Self::start).await
    }

    async fn start() -> Self {
        let plane = ControlPlane::start().unwrap();
        let infra = &plane.infra;
        let client = &infra.client().await;
        infra
            .apply(&[
                namespace(SYSTEM, json!({})),
                namespace("plain", json!({})),
                namespace("left", json!({keys::OFFLOADED: "true"})),
                namespace("universe", json!({})),
                namespace("tenant-blue", json!({keys::TENANT: "blue"})),
                namespace("tenant-green", json!({keys::TENANT: "green", LEVEL: "privileged"})),
                dpu("blue-dpu", "blue", "host-a"),
                merged(dpu("green-dpu", "green", "host-b"), json!({"spec": {"unschedulable": true}})),
                // A Node of nobody, where Pods would go if they could.
                json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "free"}}),
            ])
            .unwrap();
        for kind in [
            "namespaceoffloadings.offloading.liqo.io",
            "tenants.outrigger.dev",
            "workloadrules.workload.universe.nvidia.com",
            "machines.imperator.tenzen-y.io",
            "machinenodepools.imperator.tenzen-y.io",
        ] {
            infra.apply_file(&format!("deploy/crds/{kind}.yaml")).unwrap();
        }
        for file in ["namespace/priority-class", "slots/rbac", "machines/rbac", "agent/rbac"] {
            infra.apply_file(&format!("deploy/base/{file}.yaml")).unwrap();
        }
        infra.kubectl(&["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"]).unwrap();
        let offloading = json!({"apiVersion": "offloading.liqo.io/v1beta1", "kind": "NamespaceOffloading",
            "metadata": {"name": "offloading", "namespace": "plain"}, "spec": {"podOffloadingStrategy": "Local"}});
        eventually("the new kind is served", || async {
            infra.apply(std::slice::from_ref(&offloading)).map_err(|e| e.to_string())
        })
        .await;
        eventually("the others are too", || async {
            infra.apply(&[accounts::tenant()]).map_err(|e| e.to_string())?;
            infra.apply(&accounts::owners()).map_err(|e| e.to_string())
        })
        .await;
        let machine = uid(client, "/apis/imperator.tenzen-y.io/v1alpha1/machines/m").await;
        infra.apply(&accounts::there(&machine)).unwrap();
        infra.apply(&[made(client).await]).unwrap();
        infra.apply_file("deploy/base/manager/rbac.yaml").unwrap();
        infra.apply(&roles()).unwrap();
        old_pods(client).await;
        Admin.patch(at("tenant-blue"), tenant_claims::prepared()).send(client).await.unwrap();
        tenant_claims::taken().send(client).await.unwrap();
        for (name, of) in [("of-rule", devices::of_rule()), ("somebodys", json!({}))] {
            let metadata =
                json!({"metadata": {"name": name, "namespace": "tenant-blue", "generateName": null}});
            infra.apply(&[devices::claim(merged(of, metadata))]).unwrap();
        }
        infra.apply_file("webhooks/policies.yaml").unwrap();
        infra.apply(&[dead_webhook()]).unwrap();
        active(client).await;
        Self { plane }
    }
}

async fn uid(client: &Client, path: &str) -> Value {
    Admin.get(path).send(client).await.unwrap()["metadata"]["uid"].clone()
}

/// A namespace that was made for a Tenant.
async fn made(client: &Client) -> Value {
    let owner = json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": "Tenant", "name": "made",
        "uid": uid(client, "/apis/outrigger.dev/v1alpha1/tenants/made").await});
    merged(
        namespace("tenant-made", json!({keys::TENANT: "made"})),
        json!({"metadata": {"ownerReferences": [owner]}}),
    )
}

/// Pods from before the policies, among them such as can't be made later: bound, deleted.
async fn old_pods(client: &Client) {
    let bound = |name: &str| named(name, json!({"spec": {"nodeName": "blue-dpu", "restartPolicy": "Never"}}));
    let unbound = named("unbound", json!({"spec": {"schedulerName": "nobody"}}));
    let mut companion = merged(
        named("companion", gates(&[keys::ADMISSION_GATE, "example.com/wait"])),
        merged(
            owner(RULES, "r"),
            json!({"metadata": {"labels": {keys::RULE: "r", "app": "c"}, "annotations": {keys::HOST: "host-a"}}}),
        ),
    );
    let rule = "/apis/workload.universe.nvidia.com/v1alpha1/namespaces/tenant-blue/workloadrules/r";
    companion["metadata"]["ownerReferences"][0]["uid"] = uid(client, rule).await;
    for (path, pod) in [
        (BLUE, hostile("old")),
        (BLUE, hostile("leaving")),
        (BLUE, hostile("left")),
        (BLUE, unbound.clone()),
        (BLUE, companion),
        (
            BLUE,
            named(
                "running",
                json!({"metadata": {"labels": {keys::RULE: "r"}}, "spec": {"nodeName": "blue-dpu"}}),
            ),
        ),
        (BLUE, bound("succeeded")),
        (BLUE, bound("failed")),
        (UNIVERSE, merged(bound("succeeded"), admin_companion())),
        (UNIVERSE, merged(bound("failed"), admin_companion())),
        (PLAIN, unbound.clone()),
        (UNIVERSE, unbound),
        (UNIVERSE, hostile("platform")),
        (UNIVERSE, merged(named("companion", admin_companion()), gates(&["example.com/wait"]))),
        (UNIVERSE, merged(named("running", admin_companion()), json!({"spec": {"nodeName": "blue-dpu"}}))),
    ]
    .into_iter()
    .chain(limits::oversized().map(|pod| (BLUE, pod)))
    {
        let create = Admin.create(path, pod);
        eventually("the namespace takes Pods", || async { create.send(client).await }).await;
    }
    for path in [BLUE, UNIVERSE] {
        for (name, phase) in [("succeeded", "Succeeded"), ("failed", "Failed")] {
            let status = json!({"status": {"phase": phase}});
            Admin.patch(format!("{path}/{name}/status"), status).send(client).await.unwrap();
        }
    }
    for name in ["leaving", "left"] {
        Admin.delete(format!("{BLUE}/{name}")).send(client).await.unwrap();
    }
}

/// Waits until every policy refuses something.
async fn active(client: &Client) {
    let mut seen = BTreeSet::new();
    for twins in table(client).await.iter().filter(|t| seen.insert(t.policy)) {
        eventually(&format!("{} is active", twins.policy), || async {
            match twins.refused.dry_run(client).await {
                Err(refusal) if refusal.contains(twins.policy) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    }
}

async fn table(client: &Client) -> Vec<Twins> {
    let node = Admin.get(format!("{NODES}/blue-dpu")).send(client).await.unwrap();
    let mut live = json!({});
    for name in ["tenant-blue", "plain"] {
        live[name] = Admin.get(at(name)).send(client).await.unwrap();
    }
    let mut all = placement();
    all.extend(tolerations());
    all.extend(rights());
    all.extend(neighbors());
    all.extend(endings());
    all.extend(own_keys());
    all.extend(companions());
    all.extend(updates());
    all.extend(kubelets(&node));
    all.extend(deletions());
    all.extend(bindings());
    all.extend(nodes());
    all.extend(namespaces(&live["tenant-blue"]));
    all.extend(manager(&live));
    all.extend(admin_companions());
    all.extend(devices());
    all.extend(tenant_claims());
    all.extend(limits::limits());
    all.extend(accounts::managers());
    all.extend(accounts::others());
    all
}

#[tokio::test]
async fn what_breaks_isolation_is_refused_and_its_twin_is_allowed() {
    let setup = Setup::shared().await;
    let client = &setup.plane.infra.client().await;
    let all = table(client).await;
    let failures = Mutex::new(Vec::new());
    let fail = |t: &Twins, ask: &Ask, how: String| {
        let Ask { who, method, path, body } = ask;
        failures
            .lock()
            .unwrap()
            .push(format!("{}, {}: {who:?} {method} {path} {body}\n    {how}", t.policy, t.what));
    };
    futures::stream::iter(&all)
        .for_each_concurrent(8, async |t| {
            if let Err(refusal) = t.allowed.dry_run(client).await {
                fail(t, &t.allowed, format!("is refused: {refusal}"));
            }
            let Err(refusal) = t.refused.dry_run(client).await else {
                return fail(t, &t.refused, "is allowed".to_owned());
            };
            let policy = format!("ValidatingAdmissionPolicy '{}' with binding", t.policy);
            for part in t.says.iter().chain([&policy]).filter(|part| !refusal.contains(part.as_str())) {
                fail(t, &t.refused, format!("doesn't say {part:?} but: {refusal}"));
            }
        })
        .await;
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), all.len(), failures.join("\n"));
    // The webhook has been asked, and has not answered.
    let metrics =
        client.request_text(http::Request::get("/metrics").body(Vec::new()).unwrap()).await.unwrap();
    assert!(metrics.contains("apiserver_admission_webhook_fail_open_count{name=\"pods.outrigger.dev\""));
}

#[tokio::test]
async fn ordinary_work_runs_on_the_tenants_dpu() {
    let setup = Setup::shared().await;
    let client = &setup.plane.infra.client().await;
    let template =
        |more: Value| json!({"metadata": {"labels": {"app": "work"}}, "spec": merged(spec("blue"), more)});
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {
        "replicas": 2, "selector": {"matchLabels": {"app": "work"}}, "template": template(json!({}))}});
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {
        "template": template(json!({"restartPolicy": "Never"}))}});
    let system = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "system"}, "spec": {
        "hostNetwork": true, "tolerations": [{"operator": "Exists"}], "containers": [{"name": "c", "image": "i"}]}});
    for ask in [
        User.create(BLUE, pod("blue", label("app", "work"))),
        User.create("/apis/apps/v1/namespaces/tenant-blue/deployments", deployment),
        User.create("/apis/batch/v1/namespaces/tenant-blue/jobs", job),
        Operator.create(PLAIN, system.clone()),
        Operator.create(KUBE_SYSTEM, system),
    ] {
        eventually("the namespace takes it", || async { ask.send(client).await }).await;
    }
    let pods: Api<Pod> = Api::namespaced(client.clone(), "tenant-blue");
    eventually("the Job is done, and the others run", || async {
        let all =
            pods.list(&ListParams::default().labels("app=work")).await.map_err(|e| e.to_string())?.items;
        let phase = |p: &Pod| p.status.as_ref().and_then(|s| s.phase.clone()).unwrap_or_default();
        let mut seen: Vec<_> = all.iter().map(|p| (phase(p), is_ready(p), node_of(p))).collect();
        seen.sort_unstable();
        let running = ("Running".to_owned(), true, "blue-dpu");
        let done = ("Succeeded".to_owned(), false, "blue-dpu");
        if seen == [running.clone(), running.clone(), running, done] {
            Ok(())
        } else {
            Err(format!("{seen:?}"))
        }
    })
    .await;
    for namespace in ["plain", "kube-system"] {
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        eventually("the system's Pod runs", || async {
            let pod = pods.get("system").await.map_err(|e| e.to_string())?;
            if is_ready(&pod) { Ok(()) } else { Err(format!("{:?}", pod.status)) }
        })
        .await;
    }
    // A Node that comes now gets its taints, labels and status from the cluster's own controllers.
    let nodes: Api<Node> = Api::all(client.clone());
    Admin.create(NODES, dpu("late-dpu", "blue", "host-c")).send(client).await.unwrap();
    eventually("a new DPU is ready", || async {
        let node = nodes.get("late-dpu").await.map_err(|e| e.to_string())?;
        let ready = node
            .status
            .iter()
            .flat_map(|s| s.conditions.iter().flatten())
            .any(|c| c.type_ == "Ready" && c.status == "True");
        let taints: Vec<_> =
            node.spec.iter().flat_map(|s| s.taints.iter().flatten()).map(|t| t.key.as_str()).collect();
        if ready && taints == [keys::TENANT] { Ok(()) } else { Err(format!("{ready} {taints:?}")) }
    })
    .await;
}

#[tokio::test]
async fn an_old_pod_can_go() {
    let setup = Setup::shared().await;
    let client = &setup.plane.infra.client().await;
    let left = format!("{BLUE}/left");
    Operator.patch(&left, json!({"metadata": {"finalizers": null}})).send(client).await.unwrap();
    eventually("it is gone", || async {
        match Admin.get(&left).send(client).await {
            Ok(pod) => Err(pod["metadata"].to_string()),
            Err(_) => Ok(()),
        }
    })
    .await;
}

#[tokio::test]
async fn expressions_fit_the_types() {
    let setup = Setup::shared().await;
    let infra = &setup.plane.infra;
    let files = ["webhooks/policies.yaml", "webhooks/emergency.yaml", "deploy/base/agent/rbac.yaml"];
    let objects: Vec<Value> = files.into_iter().flat_map(emergency::objects).collect();
    let of = |kind: &str| objects.iter().filter(|o| o["kind"] == kind).cloned().collect::<Vec<_>>();
    let (mut policies, bindings) = (of("ValidatingAdmissionPolicy"), of("ValidatingAdmissionPolicyBinding"));
    let names: Vec<Value> = policies.iter().map(|p| p["metadata"]["name"].clone()).collect();
    let bound: Vec<Value> = bindings.iter().map(|b| b["spec"]["policyName"].clone()).collect();
    assert_eq!(names, bound);
    assert!(bindings.iter().all(|b| b["spec"]["validationActions"] == json!(["Deny"])));
    assert!(policies.iter().all(|p| p["spec"]["failurePolicy"] == "Fail"));

    // The API server tells nothing about variables, so each becomes a validation, of a policy that nobody binds. One
    // more has a fault, to see that it would be found.
    for policy in &mut policies {
        policy["metadata"]["name"] = format!("check-{}", policy["metadata"]["name"].as_str().unwrap()).into();
        let variables = policy["spec"]["variables"].as_array().cloned().unwrap_or_default();
        let checks = variables
            .iter()
            .map(|v| json!({"expression": format!("[{}].size() == 1", v["expression"].as_str().unwrap())}));
        policy["spec"]["validations"].as_array_mut().unwrap().extend(checks);
    }
    let fault = json!({"metadata": {"name": "fault"}, "spec": {"variables": [], "matchConditions": [],
        "validations": [{"expression": "object.spec.noSuchField == 'x'"}]}});
    policies.push(merged(policies[0].clone(), fault));
    infra.apply(&policies).unwrap();
    let checked = eventually("all are checked", || async {
        let all = infra
            .kubectl(&["get", "validatingadmissionpolicies", "-o", "json"])
            .map_err(|e| e.to_string())?;
        let all: Value = serde_json::from_str(&all).unwrap();
        let all = all["items"].as_array().unwrap().clone();
        let done = |p: &&Value| p["status"]["observedGeneration"] == p["metadata"]["generation"];
        let count = all.iter().filter(done).count();
        if count == all.len() { Ok(all) } else { Err(format!("{count} of {}", all.len())) }
    })
    .await;
    assert!(checked.len() >= policies.len(), "{}", checked.len());
    for policy in &checked {
        let warnings = &policy["status"]["typeChecking"]["expressionWarnings"];
        let name = &policy["metadata"]["name"];
        assert_eq!(warnings.is_null(), name != "fault", "{name}: {warnings}");
    }
}
