//! The control plane with everything that the tests need on it: `setup.yaml`, and the policies.

use std::collections::BTreeSet;

use kube::Client;
use outrigger_cases::{Escapes, Group, Layer, Request, Requests};
use outrigger_core::keys;
use outrigger_tests::control_plane::ControlPlane;
use outrigger_tests::outrigger::ports;
use outrigger_tests::{eventually, root};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::policies::accounts::Account;

/// The path of the namespace of the tenant blue.
pub(crate) const BLUE: &str = "/api/v1/namespaces/tenant-blue";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    cluster: Vec<Value>,
    resources: Vec<Value>,
    objects: Vec<Value>,
    roles: Vec<Value>,
    requests: Vec<Request>,
}

/// The control plane with everything on it.
pub(crate) struct Setup {
    pub(crate) plane: ControlPlane,
    /// Requests, and the objects that they are made of.
    pub(crate) cases: Requests,
    /// Changes of a Pod.
    pub(crate) escapes: Escapes,
}

impl Setup {
    pub(crate) async fn shared() -> &'static Self {
        static SHARED: OnceCell<Setup> = OnceCell::const_new();
        SHARED.get_or_init(Self::start).await
    }

    async fn start() -> Self {
        let plane = ControlPlane::start_infra().unwrap();
        let infra = &plane.infra;
        let client = &infra.client().await;
        let file = || read(&[]).unwrap();
        infra.apply(&file().cluster).unwrap();
        for kind in [
            "namespaceoffloadings.offloading.liqo.io",
            "tenants.outrigger.dev",
            "workloadrules.workload.universe.nvidia.com",
            "machines.imperator.tenzen-y.io",
            "machinenodepools.imperator.tenzen-y.io",
        ] {
            infra.apply_file(&format!("deploy/crds/{kind}.yaml")).unwrap();
        }
        for part in [
            "namespace/priority-class",
            "slots/rbac",
            "machines/rbac",
            "agent/rbac",
            "agent-conditions/rbac",
            "agent-nodes/rbac",
            "manager/rbac",
        ] {
            infra.apply_file(&format!("deploy/base/{part}.yaml")).unwrap();
        }
        infra.established().unwrap();
        eventually("the new kinds are served", || async { infra.apply(&file().resources) }).await;
        let machine = uid(client, "/apis/imperator.tenzen-y.io/v1alpha1/machines/m").await;
        let made = uid(client, "/apis/outrigger.dev/v1alpha1/tenants/made").await;
        let rules = "/apis/workload.universe.nvidia.com/v1alpha1/namespaces/tenant-blue/workloadrules";
        let rule = uid(client, &format!("{rules}/r")).await;
        let file = read(&[("$MACHINE", &machine), ("$MADE", &made), ("$RULE", &rule)]).unwrap();
        infra.apply(&file.objects).unwrap();
        infra.apply(&file.roles).unwrap();
        for Request { ask, body, .. } in &file.requests {
            eventually(ask, || Account::Admin.send(client, ask, body)).await;
        }
        // By these nobody else may create a template of that name, which is one of the objects, nor claim such devices.
        for part in ["rbac", "policies"] {
            infra.apply_file(&format!("deploy/base/companions-first/{part}.yaml")).unwrap();
        }
        infra.apply_file("webhooks/policies.yaml").unwrap();
        infra.apply(&[dead_webhook()]).unwrap();
        let (cases, escapes) = cases(client, &rule).await;
        active(&plane, client, &cases.groups).await;
        Self { plane, cases, escapes }
    }
}

/// The file, once the uids are known.
fn read(uids: &[(&str, &str)]) -> Result<File, serde_json::Error> {
    let names = [&names()[..], uids].concat();
    let objects = Requests::read(Layer::Policies, &names, &json!({})).objects;
    serde_json::from_value(outrigger_cases::read(include_str!("setup.yaml"), &names, &objects))
}

fn names() -> [(&'static str, &'static str); 8] {
    [
        ("$TENANT", "blue"),
        ("$OTHER", "green"),
        ("$OWN", "blue-dpu"),
        ("$THEIR", "green-dpu"),
        ("$NAMESPACE", "tenant-blue"),
        ("$NS", BLUE),
        ("$NODE", "/api/v1/nodes/blue-dpu"),
        ("$LABEL", keys::NODE_TENANT),
    ]
}

async fn uid(client: &Client, path: &str) -> String {
    let object = Account::Admin.send(client, &format!("GET {path}"), &Value::Null).await.unwrap();
    object["metadata"]["uid"].as_str().unwrap().to_owned()
}

/// The rows, with what only the API server knows.
async fn cases(client: &Client, rule: &str) -> (Requests, Escapes) {
    let node = uid(client, "/api/v1/nodes/blue-dpu").await;
    let mut live = json!({});
    for (name, path) in [("live-blue", BLUE), ("live-plain", "/api/v1/namespaces/plain")] {
        live[name] = Account::Admin.send(client, &format!("GET {path}"), &Value::Null).await.unwrap();
    }
    let names = [&names()[..], &[("$UID", &node), ("$RULE", rule)]].concat();
    (Requests::read(Layer::Policies, &names, &live), Escapes::read(Layer::Policies, &names))
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

/// Waits until every policy refuses something.
async fn active(plane: &ControlPlane, client: &Client, groups: &[Group]) {
    let mut seen = BTreeSet::new();
    for Group { policy, rows, .. } in groups.iter().filter(|group| seen.insert(&group.policy)) {
        let known = |row: &&Request| plane.infra.has(&row.name, row.needs.as_deref());
        let Some(row) = rows.iter().find(known) else { continue };
        eventually(&format!("{policy} is active"), || async {
            match Account::of(row).dry_run(client, &row.ask, &row.body).await {
                Err(refusal) if refusal.contains(policy) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    }
}
