//! Workloads, rules and companions that a kubelet can run.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::Rack;
use super::blue::BLUE;
use crate::outrigger::SYSTEM;
use crate::{InWords, condition_of, eventually, holds, is_true};

/// A container that runs commands, and stays.
pub fn runs(commands: &str) -> Value {
    json!({"name": "c", "image": "busybox:1", "imagePullPolicy": "Never",
        "command": ["sh", "-c", format!("{commands}; exec sleep 100000")]})
}

/// The same, which becomes Ready some seconds after it has started.
pub fn ready_late(commands: &str) -> Value {
    let mut container = runs(commands);
    container["readinessProbe"] =
        json!({"exec": {"command": ["ls"]}, "initialDelaySeconds": 3, "periodSeconds": 1});
    container
}

/// The Pods of a part.
pub fn parts(rack: &Rack, part: &str) -> Result<Vec<Value>, String> {
    let label = format!("app.kubernetes.io/component={part}");
    let list = rack.plane.infra.get(&["pods", "-n", SYSTEM, "-l", &label]).in_words()?;
    Ok(list["items"].as_array().cloned().unwrap_or_default())
}

/// A Deployment whose Pods have the label `app` with its name.
pub fn deployment(name: &str, replicas: usize) -> Value {
    let labels = json!({"app": name});
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": "default"},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels},
            "spec": {"terminationGracePeriodSeconds": 1, "containers": [runs("echo here")]}}}})
}

/// The spec of a rule for workloads with the label `app`, whose companions have it too. They know the workload's name by the variable
/// NAME, and its label `version` by the file /facts/version.
pub fn spec(app: &str, companion: &Value) -> Value {
    let fact = |name: &str| json!({"fieldPath": format!("metadata.annotations['{name}']")});
    let mut companion = companion.clone();
    companion["env"] = json!([{"name": "NAME", "valueFrom": {"fieldRef": fact("workload-name")}}]);
    companion["volumeMounts"] = json!([{"name": "facts", "mountPath": "/facts"}]);
    let facts = json!({"name": "facts", "downwardAPI": {"items": [{"path": "version", "fieldRef": fact("version")}]}});
    json!({
        "workloadTerms": [{"matchExpressions": [{"key": ".state.extra.labels.app", "operator": "In", "values": [app]}]}],
        "workloadInfoInject": [
            {"workloadKey": ".metadata.resourceName", "asAnnotation": {"name": "workload-name"}},
            {"workloadKey": ".state.extra.labels.version", "asAnnotation": {"name": "version"}}],
        "template": {"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"app": app}},
            "spec": {"terminationGracePeriodSeconds": 1, "containers": [companion], "volumes": [facts]}},
    })
}

/// The Pods with the label `app` in one of the clusters, those that are being deleted too.
pub fn pods(rack: &Rack, cluster: &str, app: &str) -> Result<Vec<Value>, String> {
    let namespace = if cluster == "infra" { format!("tenant-{BLUE}") } else { "default".to_owned() };
    let path = format!("/api/v1/namespaces/{namespace}/pods?labelSelector=app%3D{app}");
    let list = rack.cluster(cluster).read(&path).in_words()?;
    Ok(list["items"].as_array().cloned().unwrap_or_default())
}

/// Waits until there are exactly so many Pods with the label `app`, all of them Ready, and returns them.
pub async fn ready(rack: &Rack, cluster: &str, app: &str, count: usize) -> Vec<Value> {
    eventually(&format!("{count} Pods of {app} are ready in {cluster}"), || async {
        let found = pods(rack, cluster, app)?;
        let are_ready = found.len() == count && found.iter().all(|pod| is_true(pod, "Ready"));
        holds(are_ready, brief(&found)).map(|()| found)
    })
    .await
}

/// What one reads of Pods that aren't as they should be.
fn brief(pods: &[Value]) -> String {
    let of = |pod: &Value| json!({"name": pod["metadata"]["name"], "status": pod["status"]}).to_string();
    pods.iter().map(of).collect::<Vec<_>>().join("\n")
}

/// The name of an object.
pub fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap()
}

/// The workload that a companion is of, by the fact that it was given.
pub fn workload(companion: &Value) -> &str {
    companion["metadata"]["annotations"]["workload-name"].as_str().unwrap()
}

/// When the condition Ready of a Pod became what it is.
pub fn ready_since(pod: &Value) -> Timestamp {
    condition_of(pod, "Ready")["lastTransitionTime"].as_str().unwrap().parse().unwrap()
}

/// When the container of a Pod was started, by its kubelet.
pub fn started(pod: &Value) -> Timestamp {
    let status = &pod["status"]["containerStatuses"][0]["state"]["running"];
    status["startedAt"].as_str().unwrap().parse().unwrap()
}
