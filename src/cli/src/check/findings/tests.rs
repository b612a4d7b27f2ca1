use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use outrigger_api::Machine;
use outrigger_core::ids::TenantId;
use outrigger_core::tenant::hosts::HostNames;
use outrigger_core::tenant::{Limits, Policy, Tenant};
use serde_json::{Value, json};

use super::super::{devices, machines, nodes, rules};
use super::*;
use outrigger_core::node::Node;

/// Id, path and message of findings.
fn with_messages(findings: Vec<Finding>) -> Vec<(&'static str, String, String)> {
    findings.into_iter().map(|f| (f.check.id, f.path, f.message)).collect()
}

fn ids(findings: Vec<Finding>) -> Vec<(&'static str, String)> {
    findings.into_iter().map(|f| (f.check.id, f.path)).collect()
}

#[test]
fn ids_are_one_of_a_kind() {
    let ids: BTreeSet<&str> = CHECKS.iter().map(|check| check.id).collect();
    assert_eq!(ids.len(), CHECKS.len());
}

#[test]
fn dpus_and_hosts() {
    let node = |name: &str, host: Option<&str>| Node {
        name: name.to_owned(),
        labels: host.map(|host| ("host".to_owned(), host.to_owned())).into_iter().collect(),
        ..Node::default()
    };
    let tenant = |id: &str, hosts: &[&str], entries: &[(&str, &str)]| {
        let mut names = HostNames::default();
        entries.iter().for_each(|(node, host)| names.insert(node, host).unwrap());
        let id = TenantId::new(id).unwrap();
        let tenant = Tenant {
            namespace: format!("tenant-{id}"),
            identities: Vec::new(),
            hosts: hosts.iter().map(ToString::to_string).collect(),
            host_names: Arc::new(names),
            limits: Limits::default(),
            policy: Policy::new(id.clone()),
            enforcement: None,
            exceptions: Vec::new(),
        };
        (id, tenant)
    };
    let tenants = BTreeMap::from([
        tenant("blue", &["a", "b", "c"], &[]),
        tenant("green", &["b", "worker", "e"], &[("worker", "e")]),
    ]);
    let mut nodes =
        [node("a-dpu", Some("a")), node("b-dpu", Some("b")), node("d-dpu", Some("d")), node("plain", None)];
    nodes[0].labels.insert("former".to_owned(), "b".to_owned());
    let found = nodes::dpus(&nodes, &tenants, &"host,former".parse().unwrap());
    let said: Vec<String> =
        found.iter().map(|f| format!("{} {} {}", f.check.id, f.subject, f.message)).collect();
    assert_eq!(
        said,
        [
            "dpu-in-two-hosts Node a-dpu is \"a\", which counts, and label former is \"b\"",
            "dpu-of-several Node b-dpu is \"b\", which Tenants blue, green have in spec.hosts",
            "dpu-without-owner Node d-dpu is \"d\", which no Tenant has in spec.hosts",
            "host-without-dpu Tenant blue has \"c\", and no Node has the label host=c or former=c",
            "host-without-dpu Tenant green has \"e\" (node worker), and no Node has the label host=e or former=e",
            "host-without-dpu Tenant green has \"worker\", and no Node has the label host=worker or former=worker",
        ]
    );
}

#[test]
fn a_host_that_no_workload_can_be_on() {
    let of = |names: Value| {
        let tenant = json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": "blue"},
            "spec": {"hosts": ["a", "b"], "hostNames": names}});
        let found = nodes::unusable_hosts(
            &Subject::cluster("Tenant", "blue"),
            &serde_json::from_value(tenant).unwrap(),
        );
        found.iter().map(|f| format!("{} {} {}", f.check.id, f.path, f.message)).collect::<Vec<_>>()
    };
    assert_eq!(
        of(json!([{"node": "b", "host": "a"}])),
        [
            "host-without-node spec.hosts[1] is \"b\", and spec.hostNames says that the node of this name is in host \"a\""
        ]
    );
    assert_eq!(of(json!([{"node": "b", "host": "a"}, {"node": "n", "host": "b"}])), [""; 0]);
}

#[test]
fn claims_in_rules() {
    let subject = Subject::cluster("WorkloadRule", "r");
    let request = |more: Value| {
        let mut exactly = json!({"deviceClassName": "crypto"});
        json_patch::merge(&mut exactly, &more);
        json!({"devices": {"requests": [{"name": "a", "exactly": exactly}]}})
    };
    let rule = json!({"template": {"kind": "ResourceClaim", "spec": request(json!({"count": -1}))},
        "deviceClaims": [{"name": "x", "spec": request(json!({"count": 33, "capacity": {"requests": {"a": 1}}}))},
            {"name": "y", "fromRule": "other"}]});
    assert_eq!(
        ids(rules::claims(&subject, &rule)),
        [
            ("api-server-refuses", "spec.template.spec.devices.requests[0].exactly.count".to_owned()),
            ("never-allocated", "spec.deviceClaims[0].spec.devices.requests".to_owned()),
            ("dropped-field", "spec.deviceClaims[0].spec.devices.requests[0].exactly.capacity".to_owned()),
        ]
    );
    let pod = json!({"template": {"kind": "Pod", "spec": {"resourceClaims": [{"name": "d"}]}}});
    let found = ids(rules::claims(&subject, &pod));
    assert_eq!(found, [("api-server-refuses", "spec.template.spec.resourceClaims[0]".to_owned())]);
    let uses = |name: &str| json!({"resources": {"claims": [{"name": name}]}});
    let added = json!({"template": {"kind": "Pod", "spec": {"containers": [uses("x"), uses("z")]}},
        "deviceClaims": [{"name": "x", "spec": request(json!({}))}]});
    let found = ids(rules::claims(&subject, &added));
    let at = "spec.template.spec.containers[1].resources.claims[0]".to_owned();
    assert_eq!(found, [("api-server-refuses", at)]);
    let classes = devices::classes(&subject, &request(json!({})), "spec", &BTreeSet::from(["other"]));
    assert_eq!(
        ids(classes),
        [("no-device-class", "spec.devices.requests[0].exactly.deviceClassName".to_owned())]
    );
    assert_eq!(devices::classes(&subject, &request(json!({})), "spec", &BTreeSet::from(["crypto"])), []);
}

fn machine(available: i64, gpu: Value) -> Machine {
    let machine = json!({"metadata": {"name": "general"}, "spec": {
        "nodePool": [{"name": "n1", "mode": "ready", "machineType": [{"name": "big"}, {"name": "small"}]},
            {"name": "n2", "mode": "ready", "machineType": [{"name": "big"}, {"name": "small"}]}],
        "machineTypes": [{"name": "big", "spec": {"cpu": "6", "memory": "8Gi", "gpu": gpu}, "available": available},
            {"name": "small", "spec": {"cpu": "1", "memory": "1Gi"}, "available": 1}]}});
    serde_json::from_value(machine).unwrap()
}

fn node(cpu: &str, labels: Value, gpus: i64) -> Value {
    json!({"metadata": {"name": "n", "labels": labels},
        "status": {"allocatable": {"cpu": cpu, "memory": "64Gi", "nvidia.com/gpu": gpus}}})
}

#[test]
fn machines_against_their_nodes() {
    let (wide, narrow) = (node("16", json!({}), 0), node("11500m", json!({}), 0));
    let around = machines::ClusterResources {
        nodes: BTreeMap::from([("n1", &wide), ("n2", &narrow)]),
        ..Default::default()
    };
    // Two guests of 6 on 16, one on 11.5: whole ones only.
    assert_eq!(machines::machine(&machine(2, Value::Null), &around), []);
    assert_eq!(
        with_messages(machines::machine(&machine(4, Value::Null), &around)),
        [(
            "machine-capacity",
            "spec.machineTypes[0].available".to_owned(),
            "is 4; the 2 Nodes of its group that \"big\" may use hold 3".to_owned()
        )]
    );
    let both = with_messages(machines::machine(&machine(3, Value::Null), &around));
    assert_eq!(
        both,
        [(
            "machine-capacity",
            "spec.machineTypes".to_owned(),
            "types big, small each fit the 2 Nodes that they share, and together they need 103 % of them"
                .to_owned()
        )]
    );
    let around = machines::ClusterResources { nodes: BTreeMap::from([("n1", &wide)]), ..Default::default() };
    let missing = with_messages(machines::machine(&machine(1, Value::Null), &around));
    assert_eq!(missing[0].0, "machine-node-missing");
    assert_eq!((missing[0].1.as_str(), missing.len()), ("spec.nodePool[1].name", 1));
    let mut odd = machine(1, Value::Null);
    odd.spec.machine_types[0].spec.cpu = "many".to_owned();
    assert!(
        with_messages(machines::machine(&odd, &around))
            .iter()
            .any(|(id, path, _)| { *id == "machine-invalid" && path == "spec.machineTypes[0].spec.cpu" })
    );
}

#[test]
fn gpus_of_machines() {
    let gpu = |kind: &str| json!({"type": kind, "num": 1, "family": "ampere"});
    let labels = json!({"nvidia.com/gpu.family": "ampere"});
    let (good, other) = (node("32", labels, 4), node("32", json!({"nvidia.com/gpu.family": "turing"}), 4));
    let mut around = machines::ClusterResources {
        nodes: BTreeMap::from([("n1", &good), ("n2", &other)]),
        ..Default::default()
    };
    assert_eq!(
        with_messages(machines::machine(&machine(2, gpu("nvidia.com/gpu")), &around)),
        [(
            "machine-gpu-label",
            "spec.nodePool[1]".to_owned(),
            "Node n has \"turing\" in nvidia.com/gpu.family, type \"big\" promises \"ampere\"".to_owned()
        )]
    );
    // The label that guests require, whatever the GPUs' resource is called.
    let mig = machines::machine(&machine(2, gpu("nvidia.com/mig-1g.5gb")), &around);
    assert_eq!(
        with_messages(mig)[1].2,
        "Node n has \"turing\" in nvidia.com/gpu.family, type \"big\" promises \"ampere\""
    );
    let class = json!({"deviceClass": "gpu", "num": 1, "family": "ampere"});
    assert_eq!(
        ids(machines::machine(&machine(2, class), &around)).len(),
        1,
        "a class may have a label beside it"
    );
    let other = |around: &machines::ClusterResources<'_>, kind: &str| {
        let mut machine = machine(2, gpu(kind));
        machine.spec.machine_types[0].spec.gpu.as_mut().unwrap().family.clear();
        ids(machines::machine(&machine, around))
    };
    let at = "spec.machineTypes[0].spec.gpu.type".to_owned();
    assert_eq!(other(&around, "example.com/gpu")[0], ("machine-gpu-missing", at.clone()));
    assert_eq!(other(&around, "deviceclass.resource.kubernetes.io/gpu"), [("no-device-class", at)]);
    around.classes = BTreeMap::from([("gpu", None), ("own", Some("example.com/gpu"))]);
    for kind in ["example.com/gpu", "deviceclass.resource.kubernetes.io/gpu"] {
        assert_eq!(other(&around, kind), [], "{kind}");
    }
}
