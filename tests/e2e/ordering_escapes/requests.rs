//! Ways that take one request.

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::api::Api;
use outrigger_cases::{Layer, Request, Requests};
use outrigger_tests::holds;
use outrigger_tests::tenant::{Tenant, node_of};
use outrigger_tests::until;
use serde_json::{Value, json};

use super::stage::{APP, Stage, User, gated};
use crate::e2e::companions_first::{pod, scheduled};

/// The Pods that the rows name.
const POD: &str = "waits";
const GATED: &str = "gated";

/// The rows, with the names of this run.
async fn rows(s: &Stage) -> Vec<Request> {
    let (t, [ns, resources]) = (&s.t, s.paths());
    let (host, claim) = (t.node(on(t, POD).await), s.claim_of(POD, "").await);
    let nodes: Api<Node> = Api::all(t.cluster.clone());
    let uid = nodes.get(&host).await.unwrap().uid().unwrap();
    let gated = t.work().get(GATED).await.unwrap().uid().unwrap();
    let webhook = format!("gate-{}", t.id);
    let names = [
        ("$NS", ns.as_str()),
        ("$RESOURCES", &resources),
        ("$NAMESPACE", &t.source),
        ("$POD", POD),
        ("$GATED_UID", &gated),
        ("$GATED", GATED),
        ("$CLAIM", &claim),
        ("$HOST", &host),
        ("$UID", &uid),
        ("$WEBHOOK", &webhook),
    ];
    let groups = Requests::read(Layer::E2e, &names, &json!({})).groups;
    groups.into_iter().find(|group| group.group == "orderings").unwrap().rows
}

/// The host that a Pod is on.
async fn on(t: &Tenant, name: &str) -> &'static str {
    let node = until("it is bound", &t.work(), name, |pod| {
        let node = node_of(&pod).to_owned();
        holds(!node.is_empty(), "not yet").map(|()| node)
    })
    .await;
    ["a", "b"].into_iter().find(|host| t.node(host) == node).unwrap()
}

async fn dry_run(user: &User, row: &Request) -> Result<Value, String> {
    let query = if row.ask.starts_with("GET ") { "" } else { "?dryRun=All" };
    user.ask(&format!("{}{query}", row.ask), &row.body).await
}

#[tokio::test]
async fn no_single_request_lets_a_pod_go_without_its_companion_and_each_control_case_is_allowed() {
    let s = Stage::new().await;
    s.create(&pod(POD, APP, json!({}))).await;
    s.create(&gated(GATED)).await;
    scheduled(&s.t, POD).await;
    s.claim_of(GATED, "").await;
    let host = on(&s.t, POD).await;
    let (kubelet, neighbour) = (s.kubelet(host).await, s.kubelet(if host == "a" { "b" } else { "a" }).await);
    let user = |by: &str| match by {
        "edit" => &s.edit,
        "robot" => &s.robot,
        "kubelet" => &kubelet,
        "neighbour" => &neighbour,
        "admin" => &s.admin,
        other => panic!("nobody is {other}"),
    };
    let mut rows = rows(&s).await;
    rows.retain(|row| s.t.outrigger.plane.tenant.has(&row.name, row.needs.as_deref()));
    assert!(rows.len() >= 20);
    let mut failures = Vec::new();
    for row in &rows {
        let control = row.control();
        if let Err(refusal) = dry_run(user(&control.by), &control).await {
            failures.push(format!("{}: is refused: {refusal}", control.name));
        }
        match dry_run(user(&row.by), row).await {
            Ok(_) => failures.push(format!("{}: GOT THROUGH", row.name)),
            Err(said) => {
                let missing = row.says.iter().filter(|part| !said.contains(part.as_str()));
                failures.extend(missing.map(|part| format!("{}: not {part:?} but: {said}", row.name)));
            }
        }
    }
    assert!(failures.is_empty(), "{}:\n{}", failures.len(), failures.join("\n"));
    s.waits_then_starts(POD).await;
    s.end(&[POD, GATED]).await;
}
