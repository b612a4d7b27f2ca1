//! The requests that are measured.

use axum::body::Bytes;
use outrigger_admission::webhooks::endpoint;
use outrigger_admission::{Context, Decision, review};
use outrigger_core::keys;
use serde_json::{Value, json};

use crate::{MANAGER, TIMES, decider};

/// One kind of request as an API server sends it.
pub(crate) struct Case {
    pub(crate) what: &'static str,
    pub(crate) path: &'static str,
    pub(crate) body: Bytes,
    /// How often its stages are run. What they make is kept until the clock has stopped.
    pub(crate) times: u32,
}

/// Mutation of a Pod by hand and of a companion, and validation of what that makes of them.
pub(crate) fn cases() -> Vec<Case> {
    let (caches, settings) = decider();
    let mut cases = Vec::new();
    for (what, validated, body) in
        bodies().into_iter().zip(["validate by hand", "validate companion"]).map(|((a, b), c)| (a, c, b))
    {
        let mut request = review::read(&body).unwrap();
        let mut review: Value = serde_json::from_slice(&body).unwrap();
        let decision = endpoint("/mutate/pods")
            .unwrap()
            .decide(Context::new(&caches, &settings), &mut request)
            .unwrap()
            .decision;
        let Decision::Allow { patch, .. } = decision else { panic!("{decision:?}") };
        json_patch::patch(&mut review["request"]["object"], &patch).unwrap();
        let admitted = Bytes::from(review.to_string());
        cases.push(Case { what, path: "/mutate/pods", body, times: TIMES });
        cases.push(Case { what: validated, path: "/validate/pods", body: admitted, times: TIMES });
    }
    cases.extend(offloaded());
    cases.push(guest());
    cases
}

/// The Pod made by hand, as a guest.
fn guest() -> Case {
    let (_, body) = bodies().remove(0);
    let mut review: Value = serde_json::from_slice(&body).unwrap();
    review["request"]["namespace"] = json!("guests");
    review["request"]["object"]["metadata"]["labels"] =
        json!({keys::MACHINE_GROUP: "g", keys::MACHINE_TYPE: "t", keys::POD_ROLE: keys::GUEST});
    let body = Bytes::from(review.to_string());
    Case { what: "guest", path: "/mutate/pods", body, times: TIMES }
}

/// Sizes of offloading: what it is called, terms of the NamespaceOffloading's selector, terms of the Pod.
pub(crate) const SIZES: [(&str, usize, usize); 4] = [
    ("offload 1 x 1", 1, 1),
    ("offload 5 x 2", 5, 2),
    ("offload 10 x 10", 10, 10),
    ("offload 50 x 20", 50, 20),
];

/// So many terms, each about another value of a label, and about a label that is always the same.
pub(crate) fn terms(key: &str, count: usize) -> Vec<Value> {
    let term = |i| {
        json!({"matchExpressions": [{"key": key, "operator": "In", "values": [format!("{key}-{i}")]},
            {"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]}]})
    };
    (0..count).map(term).collect()
}

/// The Pod made by hand, in namespaces that are offloaded.
fn offloaded() -> Vec<Case> {
    let (_, body) = bodies().remove(0);
    let mut review: Value = serde_json::from_slice(&body).unwrap();
    let mut case = |(what, selector, own): (&'static str, usize, usize)| {
        review["request"]["namespace"] = json!(format!("offloaded-{selector}"));
        review["request"]["object"]["spec"]["affinity"] = json!({"nodeAffinity":
            {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms("zone", own)}}});
        let body = Bytes::from(review.to_string());
        let times = TIMES / u32::try_from(selector * own).unwrap();
        Case { what, path: "/mutate/pods", body, times }
    };
    SIZES.into_iter().map(&mut case).collect()
}

/// Bodies as an API server sends them for mutation.
pub(crate) fn bodies() -> Vec<(&'static str, Bytes)> {
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
