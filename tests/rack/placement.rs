//! Where companions run, and for how long, when there are several hosts.

use std::time::SystemTime;

use k8s_openapi::jiff::Timestamp;
use outrigger_core::keys;
use outrigger_tests::outrigger::tenant_identity;
use outrigger_tests::rack::{Machine, Rack};
use outrigger_tests::tenant::{rule, tenant};
use outrigger_tests::{InWords, eventually, holds};
use serde_json::{Value, json};

use super::order::makes_wait;
use super::shared::{BLUE, DPU, HOST, turn};
use super::workloads::{deployment, pods, ready, ready_late, ready_since, runs, spec, started};

/// Another host of the tenant's, and the DPU in it.
const OTHER: [Machine; 2] = [Machine::infra("dpu-2", 13, Some("host-2")), Machine::tenant("host-2", 22)];

/// A workload on [`HOST`], which runs these commands.
fn workload(app: &str, commands: &str) -> Value {
    let mut container = runs("echo here");
    container["command"] = json!(["sh", "-c", commands]);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": app, "namespace": "default", "labels": {"app": app}},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container],
            "nodeSelector": {"kubernetes.io/hostname": HOST.name}}})
}

fn node(rack: &Rack, app: &str) -> Result<Option<String>, String> {
    let found = pods(rack, "infra", app)?;
    holds(found.len() == 1, format!("{} companions", found.len()))?;
    Ok(found[0]["spec"]["nodeName"].as_str().map(str::to_owned))
}

#[tokio::test]
#[ignore = "long"]
async fn any_runs_on_another_dpu_of_the_tenant_where_same_node_waits_for_its_own() {
    let turn = turn().await;
    let (rack, infra, hosts) = (turn.rack, &turn.rack.plane.infra, &turn.rack.plane.tenant);
    rack.add(&OTHER).await;
    let spec_of = json!({"identities": [tenant_identity(BLUE)], "hosts": [HOST.name, OTHER[1].name]});
    infra.apply(&[tenant(BLUE, spec_of)]).unwrap();
    eventually("the other DPU is the tenant's", || async {
        let node = infra.get(&["node", OTHER[0].name]).in_words()?;
        let owner = &node["metadata"]["labels"][keys::NODE_TENANT];
        holds(*owner == BLUE, node["metadata"]["labels"].to_string())
    })
    .await;
    infra.cordon(DPU.name, true);
    for policy in ["Any", "SameNode"] {
        let app = if policy == "Any" { "any" } else { "same" };
        let mut spec = spec(app, &runs("echo here"));
        spec["dpuSelectionPolicy"] = json!(policy);
        infra.apply(&[rule("tenant-blue", app, spec)]).unwrap();
        hosts.apply(&[workload(app, "exec sleep 100000")]).unwrap();
    }
    let any = ready(rack, "infra", "any", 1).await;
    assert_eq!(any[0]["spec"]["nodeName"], OTHER[0].name);
    eventually("the companion of SameNode is there", || async { node(rack, "same") }).await;
    assert_eq!(node(rack, "same").unwrap(), None);
    infra.cordon(DPU.name, false);
    let same = ready(rack, "infra", "same", 1).await;
    assert_eq!(same[0]["spec"]["nodeName"], DPU.name);
    assert_eq!(node(rack, "any").unwrap().as_deref(), Some(OTHER[0].name));
    hosts.kubectl(&["delete", "pod", "any", "same"]).unwrap();
    // Other tests expect their workloads on the first host.
    hosts.cordon(OTHER[1].name, true);
}

#[tokio::test]
#[ignore = "long"]
async fn a_companion_runs_on_after_its_workloads_container_has_ended_for_as_long_as_its_rule_says() {
    let turn = turn().await;
    let (rack, infra, hosts) = (turn.rack, &turn.rack.plane.infra, &turn.rack.plane.tenant);
    let mut spec = spec("lingers", &runs("echo here"));
    spec["lingerSeconds"] = json!(20);
    infra.apply(&[rule("tenant-blue", "lingers", spec)]).unwrap();
    hosts.apply(&[workload("lingers", "trap 'exit 0' TERM; while :; do sleep 1; done")]).unwrap();
    ready(rack, "tenant", "lingers", 1).await;
    let before = ready(rack, "infra", "lingers", 1).await.remove(0);
    hosts.kubectl(&["exec", "lingers", "--", "sh", "-c", "kill 1"]).unwrap();
    let ended: Timestamp =
        eventually("the workload's container has ended, its companion's has not", || async {
            let now = pods(rack, "infra", "lingers")?;
            let now = now.first().ok_or("it has gone")?;
            let ended = now["metadata"]["annotations"][keys::WORKLOAD_ENDED].as_str();
            holds(
                before["status"]["containerStatuses"] == now["status"]["containerStatuses"],
                now["status"].to_string(),
            )?;
            ended.ok_or("not yet")?.parse().in_words()
        })
        .await;
    let workload = hosts.get(&["pod", "lingers"]).unwrap();
    assert_eq!(workload["status"]["phase"], "Succeeded");
    eventually("its companion is deleted in the end", || async {
        let now = pods(rack, "infra", "lingers")?;
        holds(now.is_empty(), json!(now).to_string())
    })
    .await;
    let lived = SystemTime::now().duration_since(ended.into()).unwrap();
    assert!(lived.as_secs() >= 20, "it was deleted after {lived:?}");
    hosts.kubectl(&["delete", "pod", "lingers"]).unwrap();
}

/// A second DPU in [`HOST`].
const SECOND: Machine = Machine::infra("dpu-1b", 14, Some("host-1"));

#[tokio::test]
#[ignore = "long"]
async fn a_container_starts_after_the_companions_on_both_dpus_of_its_host_and_the_primary_dpu_has_those_for_it()
 {
    let turn = turn().await;
    let (rack, infra, hosts) = (turn.rack, &turn.rack.plane.infra, &turn.rack.plane.tenant);
    rack.add(&[SECOND]).await;
    infra.kubectl(&["label", "node", SECOND.name, &format!("{}=true", keys::PRIMARY)]).unwrap();
    let mut each = spec("each", &ready_late("echo here"));
    each["dpuSelectionPolicy"] = json!("SameNodeAll");
    each["ordering"] = json!("BeforeStart");
    let mut primary = spec("primary", &runs("echo here"));
    primary["dpuSelectionPolicy"] = json!("SameNodePrimary");
    hosts.apply(&[rule("universe", "each", each), rule("universe", "primary", primary)]).unwrap();
    makes_wait(rack, "each").await;
    hosts.apply(&[deployment("each", 1), deployment("primary", 1)]).unwrap();

    let workload = ready(rack, "tenant", "each", 1).await.remove(0);
    let companions = ready(rack, "infra", "each", 2).await;
    let nodes = |pods: &[Value]| pods.iter().map(|pod| pod["spec"]["nodeName"].clone()).collect::<Vec<_>>();
    let mut on = nodes(&companions);
    on.sort_by_key(ToString::to_string);
    assert_eq!(on, [DPU.name, SECOND.name]);
    for companion in &companions {
        assert!(started(&workload) >= ready_since(companion), "{workload} {companion}");
    }
    assert_eq!(nodes(&ready(rack, "infra", "primary", 1).await), [SECOND.name]);

    // A DPU leaves: its companion is deleted, and the other one runs on.
    rack.off(SECOND).unwrap();
    infra.kubectl(&["delete", "node", SECOND.name]).unwrap();
    let left = ready(rack, "infra", "each", 1).await;
    assert_eq!(nodes(&left), [DPU.name]);
    let before = companions.iter().find(|companion| companion["spec"]["nodeName"] == DPU.name).unwrap();
    assert_eq!(left[0]["metadata"]["uid"], before["metadata"]["uid"]);
    assert_eq!(ready(rack, "tenant", "each", 1).await[0]["metadata"]["uid"], workload["metadata"]["uid"]);
    hosts.kubectl(&["delete", "deployment", "each", "primary"]).unwrap();
    hosts.kubectl(&["delete", "workloadrule", "each", "primary", "-n", "universe"]).unwrap();
}
