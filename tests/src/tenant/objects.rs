//! Objects that many tests apply.

use outrigger_core::keys;
use serde_json::{Value, json};

/// A Tenant.
pub fn tenant(id: &str, spec: Value) -> Value {
    json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": id}, "spec": spec})
}

/// A DPU in a host.
pub fn dpu(name: &str, host: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {keys::DPU_HOST: host}}})
}

/// A rule.
pub fn rule(namespace: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "workload.universe.nvidia.com/v1alpha1", "kind": "WorkloadRule",
        "metadata": {"name": name, "namespace": namespace}, "spec": spec})
}

/// A rule of the platform.
pub fn admin_rule(namespace: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": "workload.universe.nvidia.com/v1alpha1", "kind": "AdminWorkloadRule",
        "metadata": {"name": name, "namespace": namespace}, "spec": spec})
}

/// A namespace.
pub fn namespace(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
}

/// A service account.
pub fn account(namespace: &str, name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}})
}

/// A binding by which a service account, named with its namespace, has a ClusterRole: in one namespace, or everywhere.
pub fn binding(name: &str, namespace: Option<&str>, role: &str, (of, account): (&str, &str)) -> Value {
    let group = "rbac.authorization.k8s.io";
    let (kind, metadata) = match namespace {
        Some(namespace) => ("RoleBinding", json!({"name": name, "namespace": namespace})),
        None => ("ClusterRoleBinding", json!({"name": name})),
    };
    json!({"apiVersion": format!("{group}/v1"), "kind": kind, "metadata": metadata,
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": of}]})
}

/// A Node that is no DPU, with its own label as a kubelet sets it.
pub fn host(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}})
}

/// A Machine: nodes as (name, type), types with as many slots as are available of one processor each.
pub fn machine(group: &str, pool: &[(&str, &str)], types: &[(&str, u32)]) -> Value {
    let entry = |(name, type_): &(&str, &str)| json!({"name": name, "mode": "ready", "taint": true, "machineType": [{"name": type_}]});
    let slots = |(name, available): &(&str, u32)| json!({"name": name, "available": available, "spec": {"cpu": "1", "memory": "1Gi"}});
    json!({"apiVersion": "imperator.tenzen-y.io/v1alpha1", "kind": "Machine",
        "metadata": {"name": group, "labels": {keys::MACHINE_GROUP: group}},
        "spec": {"nodePool": pool.iter().map(entry).collect::<Vec<_>>(),
            "machineTypes": types.iter().map(slots).collect::<Vec<_>>()}})
}

/// A template with one container.
pub fn template() -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"app": "companion"}},
        "spec": {"containers": [{"name": "c", "image": "companion"}]}})
}

/// A rule for workloads with a label.
pub fn rule_for(label: &str, value: &str) -> Value {
    json!({"workloadTerms": [{"matchExpressions": [
            {"key": format!(".state.extra.labels.{label}"), "operator": "In", "values": [value]}]}],
        "workloadInfoInject": [
            {"workloadKey": ".metadata.resourceName", "asAnnotation": {"name": "workload-name"}},
            {"workloadKey": ".state.nodeName", "asAnnotation": {"name": "tenant-node-name"}},
            {"workloadKey": ".state.extra.labels.version", "asAnnotation": {"name": "version"}},
            {"asAnnotation": {"name": "entire-workload"}}],
        "template": template()})
}

/// The rule for the label `app: web` with one field changed, named by a JSON pointer.
pub fn rule_with(pointer: &str, value: Value) -> Value {
    let mut spec = rule_for("app", "web");
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    match spec.pointer_mut(parent).unwrap() {
        Value::Array(list) => list[key.parse::<usize>().unwrap()] = value,
        object => object[key] = value,
    }
    spec
}
