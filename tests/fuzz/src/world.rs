//! The cluster that reviews are decided by.

use std::sync::LazyLock;
use std::time::Duration;

use outrigger_admission::Settings;
use outrigger_admission::caches::Caches;
use outrigger_api::{AdminWorkloadRule, Change, WorkloadRule};
use outrigger_core::keys;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Namespaces with an owner, offloaded, both, with guests, of the platform, and one that isn't known.
pub(crate) const NAMESPACES: [&str; 7] =
    ["tenant-blue", "tenant-green", "offloaded", "guests", keys::ADMIN_NAMESPACE, "both", "unknown"];

pub(crate) struct World {
    pub(crate) caches: Caches,
    pub(crate) settings: Settings,
    /// The rules that companions are made of.
    pub(crate) rules: Vec<WorkloadRule>,
    pub(crate) admin: AdminWorkloadRule,
}

pub(crate) static WORLD: LazyLock<World> = LazyLock::new(world);

fn read<T: DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).unwrap()
}

fn applied<T: DeserializeOwned>(object: Value) -> Change<T> {
    Change::Applied(read(object))
}

/// A rule with this name, policy and device claims.
pub(crate) fn rule(kind: &str, name: &str, policy: &str, claims: Value) -> Value {
    let namespace = if kind == "WorkloadRule" { "tenant-blue" } else { keys::ADMIN_NAMESPACE };
    json!({"apiVersion": "workload.universe.nvidia.com/v1alpha1", "kind": kind,
        "metadata": {"name": name, "namespace": namespace, "uid": format!("{name}-uid"), "generation": 3},
        "spec": {"resourceKind": "v1/Pod", "dpuSelectionPolicy": policy,
            "workloadTerms": [{"matchExpressions": [{"key": ".state.extra.labels.app", "operator": "Exists"}]}],
            "workloadInfoInject": [{"workloadKey": ".state.nodeName", "asAnnotation": {"name": "node"}},
                {"workloadKey": "@", "asAnnotation": {"name": "all"}}],
            "deviceClaims": claims,
            "template": {"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"app": "dpu"}},
                "spec": {"containers": [{"name": "c", "image": "i"}]}}}})
}

fn machine(name: &str, node: &str) -> Value {
    json!({"apiVersion": "imperator.tenzen-y.io/v1alpha1", "kind": "Machine",
        "metadata": {"name": name, "uid": name, "labels": {keys::MACHINE_GROUP: name}},
        "spec": {"nodePool": [{"name": node, "mode": "ready", "taint": true, "machineType": [{"name": "large"}]}],
            "machineTypes": [{"name": "large", "available": 2, "spec": {"cpu": "12", "memory": "32Gi",
                "gpu": {"type": "nvidia.com/gpu", "num": 1, "family": "ampere"}}}]}})
}

fn world() -> World {
    let settings = Settings::default();
    let caches = Caches::new(&settings.host_labels);
    let labels = [
        json!({keys::TENANT: "blue"}),
        json!({keys::TENANT: "green", keys::INJECT_RESOURCE: keys::INJECT_ENABLED}),
        json!({keys::OFFLOADED: "true"}),
        json!({keys::INJECT_RESOURCE: keys::INJECT_ENABLED}),
        json!({}),
        json!({keys::TENANT: "blue", keys::OFFLOADED: "true", keys::INJECT_RESOURCE: keys::INJECT_ENABLED}),
    ];
    for (name, labels) in NAMESPACES.iter().zip(labels) {
        caches.namespace(applied(json!({"metadata": {"name": name, "labels": labels}})));
    }
    for (name, host) in [("blue", "host-a"), ("green", "host-b")] {
        caches.apply_tenant(applied(json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": "Tenant",
            "metadata": {"name": name, "uid": name, "generation": 1},
            "spec": {"hosts": [host], "deviceClasses": ["regex"]}})));
        caches.node(applied(json!({"metadata": {"name": format!("{host}-dpu"),
            "labels": {keys::NODE_TENANT: name, keys::DPU_HOST: host}}})));
    }
    for namespace in ["offloaded", "both"] {
        caches.apply_offloading(applied(
            json!({"apiVersion": "offloading.liqo.io/v1beta1", "kind": "NamespaceOffloading",
            "metadata": {"name": "offloading", "namespace": namespace}, "spec": {
                "podOffloadingStrategy": if namespace == "both" { "LocalAndRemote" } else { "Remote" },
                "clusterSelector": {"nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "region", "operator": "In", "values": ["a", "b"]}]},
                    {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]}}}),
        ));
    }
    caches.device_class(applied(json!({"metadata": {"name": "regex"}, "spec": {}})));
    caches.priority_class(applied(json!({"metadata": {"name": "low"}, "value": 1, "globalDefault": true})));
    for (name, node) in [("general", "gpu-1"), ("other", "gpu-2")] {
        caches.apply_machine(applied(machine(name, node)), Duration::ZERO);
    }
    let claims = json!([{"name": "d", "fromRule": "devices"}]);
    let rules: Vec<WorkloadRule> =
        [("same", "SameNode", json!([])), ("any", "Any", json!([])), ("claims", "SameNode", claims)]
            .into_iter()
            .map(|(name, policy, claims)| read(rule("WorkloadRule", name, policy, claims)))
            .collect();
    for rule in &rules {
        rule.compile().unwrap();
        caches.apply_rule(Change::Applied(rule.clone()));
    }
    let admin: AdminWorkloadRule = read(rule("AdminWorkloadRule", "admin", "SameNode", json!([])));
    caches.apply_admin_rule(Change::Applied(admin.clone()));
    World { caches, settings, rules, admin }
}
