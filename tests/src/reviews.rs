//! AdmissionReviews of Pods, as an API server sends them, for load.

use bytes::Bytes;
use outrigger_core::keys;
use serde_json::{Value, json};

/// The user that creates companions.
pub const MANAGER: &str = "system:serviceaccount:outrigger-system:outrigger-manager";

/// The namespace of guests.
pub const GUESTS: &str = "guests";

/// The machine group and the machine type of guests.
pub const MACHINE: [&str; 2] = ["g", "t"];

/// Sizes of offloading: what it is called, terms of the NamespaceOffloading's selector, terms of the Pod.
pub const SIZES: [(&str, usize, usize); 4] = [
    ("offload 1 x 1", 1, 1),
    ("offload 5 x 2", 5, 2),
    ("offload 10 x 10", 10, 10),
    ("offload 50 x 20", 50, 20),
];

/// The namespace that is offloaded with so many terms of its selector.
pub fn offloaded_namespace(terms: usize) -> String {
    format!("offloaded-{terms}")
}

/// So many terms, each about another value of a label, and about a label that is always the same.
pub fn terms(key: &str, count: usize) -> Vec<Value> {
    let term = |i| {
        json!({"matchExpressions": [{"key": key, "operator": "In", "values": [format!("{key}-{i}")]},
            {"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]}]})
    };
    (0..count).map(term).collect()
}

/// The NamespaceOffloading of the namespace that [`offloaded_namespace`] names, with so many terms.
pub fn offloading(count: usize) -> Value {
    json!({"apiVersion": "offloading.liqo.io/v1beta1", "kind": "NamespaceOffloading",
        "metadata": {"name": "offloading", "namespace": offloaded_namespace(count)}, "spec": {
            "podOffloadingStrategy": "LocalAndRemote",
            "clusterSelector": {"nodeSelectorTerms": terms("region", count)}}})
}

/// The Pod made by hand with so many terms of its own, in the namespace that is offloaded with so many.
pub fn offloaded(selector: usize, own: usize) -> Bytes {
    let mut review = by_hand();
    review["request"]["namespace"] = json!(offloaded_namespace(selector));
    review["request"]["object"]["spec"]["affinity"] = json!({"nodeAffinity":
        {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms("zone", own)}}});
    Bytes::from(review.to_string())
}

/// The Pod made by hand, as a guest.
pub fn guest() -> Bytes {
    let mut review = by_hand();
    review["request"]["namespace"] = json!(GUESTS);
    let [group, machine_type] = MACHINE;
    review["request"]["object"]["metadata"]["labels"] =
        json!({keys::MACHINE_GROUP: group, keys::MACHINE_TYPE: machine_type, keys::POD_ROLE: keys::GUEST});
    Bytes::from(review.to_string())
}

fn by_hand() -> Value {
    let (_, body) = bodies().remove(0);
    serde_json::from_slice(&body).unwrap()
}

/// Bodies as an API server sends them for mutation.
pub fn bodies() -> Vec<(&'static str, Bytes)> {
    let review = |user: &str, object: Value| {
        let body = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "0df28fbd-5f5f-11e8-bc74-36e6bb280816",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "requestKind": {"group": "", "version": "v1", "kind": "Pod"},
            "requestResource": {"group": "", "version": "v1", "resource": "pods"},
            "name": "p", "namespace": "tenant-blue", "operation": "CREATE", "dryRun": false,
            "userInfo": {"username": user, "groups": ["system:authenticated"]},
            "object": object, "oldObject": null, "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"}}});
        Bytes::from(body.to_string())
    };
    let spec = json!({
        "containers": [{"name": "c", "image": "registry.example/app:1", "resources": {"requests": {"cpu": "100m"}},
            "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
            "imagePullPolicy": "IfNotPresent", "volumeMounts": [{"name": "token", "readOnly": true,
            "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}]}],
        "restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst",
        "serviceAccountName": "default", "serviceAccount": "default", "securityContext": {},
        "schedulerName": "default-scheduler", "priority": 0, "enableServiceLinks": true,
        "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute",
            "tolerationSeconds": 300}],
        "volumes": [{"name": "token", "projected": {"defaultMode": 420, "sources": [
            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}}]}}]});
    let by_hand = json!({"kind": "Pod", "apiVersion": "v1",
        "metadata": {"name": "p", "namespace": "tenant-blue", "labels": {"app": "x"}}, "spec": spec});
    let workload = json!({
        "metadata": {"id": "aac076f4-a565-4ed0-aac2-3da5698f5a78", "orchestrator": "kubernetes",
            "resourceType": "v1/Pod", "resourceName": "web", "resourceNamespace": "shop"},
        "state": {"nodeName": "host-a", "ready": true, "extra": {
            "labels": {"app": "web", "version": "1", "team": "shop"},
            "annotations": {"k8s.v1.cni.cncf.io/networks-status": "x".repeat(600)}}}});
    let mut companion = by_hand.clone();
    companion["metadata"] = json!({"name": "p", "namespace": "tenant-blue",
        "labels": {keys::TENANT: "blue", keys::RULE: "r", keys::WORKLOAD: "w"},
        "annotations": {keys::HOST: "host-a", keys::RULE_GENERATION: "1", keys::RULE_UID: "rule-uid",
            keys::WORKLOAD: workload.to_string()},
        "ownerReferences": [{"apiVersion": "workload.universe.nvidia.com/v1alpha1", "kind": "WorkloadRule",
            "name": "r", "uid": "rule-uid", "controller": true}]});
    companion["spec"]["schedulingGates"] = json!([{"name": keys::ADMISSION_GATE}]);
    vec![("Pod made by hand", review("someone", by_hand)), ("companion", review(MANAGER, companion))]
}
