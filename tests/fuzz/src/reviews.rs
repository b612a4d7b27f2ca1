//! AdmissionReviews as an API server sends them, and nearly as one does.

use outrigger_admission::webhooks::{Endpoint, endpoints};
use outrigger_core::keys;
use serde_json::{Value, json};

use crate::choice::Choice;
use crate::objects;
use crate::world::NAMESPACES;

const MANAGER: &str = "system:serviceaccount:outrigger-system:outrigger-manager";

/// A path of the webhook, and the review that it gets.
pub(crate) fn review(c: &mut Choice<'_>) -> (&'static Endpoint, Value) {
    let all = endpoints();
    // Half of all reviews are for the path that answers with patches.
    let endpoint = if c.one_in(2) { all[c.below(all.len())] } else { all[0] };
    let (kind, mut object, namespace, user) = about(c, endpoint.path);
    let operation = match c.below(10) {
        8 => c.of(&["DELETE", "CONNECT", ""]),
        0..5 => "CREATE",
        _ if endpoint.mutates => "CREATE",
        _ => "UPDATE",
    };
    for _ in 0..c.below(4) / 2 {
        c.scramble(&mut object);
    }
    let mut old = Value::Null;
    if operation != "CREATE" {
        old = object.clone();
        for _ in 0..c.below(3) {
            c.scramble(&mut old);
        }
    }
    if operation == "DELETE" {
        object = Value::Null;
    }
    let [group, version, kind] = kind;
    let sub =
        if c.one_in(12) { c.of(&["status", "ephemeralcontainers", "resize", "binding", "zz"]) } else { "" };
    let mut review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "0df28fbd-5f5f-11e8-bc74-36e6bb280816", "kind": {"group": group, "version": version, "kind": kind},
        "name": "p", "namespace": namespace, "operation": operation, "subResource": sub, "dryRun": c.any::<bool>(),
        "userInfo": {"username": user, "groups": ["system:authenticated"]}, "object": object, "oldObject": old}});
    if c.one_in(20) {
        c.scramble(&mut review);
    }
    (endpoint, review)
}

/// Kind, object, namespace and user of a review for a path.
fn about(c: &mut Choice<'_>, path: &str) -> ([&'static str; 3], Value, &'static str, &'static str) {
    let namespace = c.of(&NAMESPACES);
    let user = c.of(&["someone", "someone", MANAGER, "system:kube-scheduler", ""]);
    match path {
        "/mutate/pods" | "/validate/pods" | "/validate/guests" => match c.below(8) {
            7 if path == "/validate/pods" => {
                let target = json!({"apiVersion": "v1", "kind": c.of(&["Node", "Pod"]), "name": c.of(&["host-a-dpu", "host-b-dpu", "x"])});
                (["", "v1", "Binding"], json!({"metadata": {"name": "p"}, "target": target}), namespace, user)
            }
            0..3 => {
                let (object, own) = objects::companion(c);
                (["", "v1", "Pod"], object, own, MANAGER)
            }
            _ => (["", "v1", "Pod"], objects::pod(c), namespace, user),
        },
        "/validate/resourceclaims" => {
            let requests = c.list(4, |c| json!({"name": c.text(), "exactly": {"deviceClassName": c.of(&["regex", "gpu"]),
                "count": c.any::<u16>(), "adminAccess": c.any::<bool>(), "selectors": [{"cel": {"expression": c.text()}}]}}));
            let spec =
                json!({"devices": {"requests": requests, "constraints": c.json(2), "config": c.json(2)}});
            let metadata =
                json!({"name": "d", "labels": objects::map(c, 3), "annotations": objects::map(c, 3)});
            if c.one_in(2) {
                (
                    ["resource.k8s.io", "v1", "ResourceClaim"],
                    json!({"metadata": metadata, "spec": spec}),
                    namespace,
                    user,
                )
            } else {
                let object = json!({"metadata": metadata, "spec": {"metadata": {"labels": objects::map(c, 3)}, "spec": spec}});
                (["resource.k8s.io", "v1", "ResourceClaimTemplate"], object, namespace, user)
            }
        }
        "/validate/workloadrules" => rule(c, "WorkloadRule", "tenant-blue", user),
        "/validate/adminworkloadrules" => rule(c, "AdminWorkloadRule", keys::ADMIN_NAMESPACE, user),
        "/validate/tenants" => {
            let spec = json!({"hosts": c.list(4, |c| c.of(&["host-a", "host-c", "host-d", "x/y"])), "deviceClasses": ["regex"],
                "namespace": c.of(&["tenant-blue", "tenant-green", "new", "kube-system"]), "limits": c.json(2)});
            let spec = if c.one_in(2) { spec } else { json!({"hosts": ["host-e"]}) };
            let object = json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": "Tenant",
                "metadata": {"name": c.of(&["blue", "green", "red", "A"])}, "spec": spec});
            (["outrigger.dev", "v1alpha1", "Tenant"], object, "", user)
        }
        "/validate/namespaceoffloadings" => {
            let spec = json!({"namespaceMappingStrategy": c.of(&["DefaultName", "EnforceSameName", "SelectedName"]),
                "podOffloadingStrategy": c.of(&["Local", "Remote", "LocalAndRemote", "?"]),
                "clusterSelector": {"nodeSelectorTerms": objects::terms(c)}});
            let object = json!({"apiVersion": "offloading.liqo.io/v1beta1", "kind": "NamespaceOffloading",
                "metadata": {"name": c.of(&["offloading", "offloading", "x"]), "namespace": namespace}, "spec": spec});
            (["offloading.liqo.io", "v1beta1", "NamespaceOffloading"], object, namespace, user)
        }
        _ => (["imperator.tenzen-y.io", "v1alpha1", "Machine"], machine(c), "", user),
    }
}

fn rule(
    c: &mut Choice<'_>,
    kind: &'static str,
    namespace: &'static str,
    user: &'static str,
) -> ([&'static str; 3], Value, &'static str, &'static str) {
    (["workload.universe.nvidia.com", "v1alpha1", kind], objects::rule_object(c, kind), namespace, user)
}

fn machine(c: &mut Choice<'_>) -> Value {
    let pool = c.list(4, |c| {
        json!({"name": c.of(&["gpu-1", "gpu-3", "gpu-4"]), "mode": c.of(&["ready", "maintenance", "?"]),
        "taint": c.any::<bool>(), "machineType": [{"name": c.of(&["large", "small"])}]})
    });
    let types = c.list(3, |c| json!({"name": c.of(&["large", "small"]), "available": c.any::<u16>(),
        "spec": {"cpu": c.of(&["1", "12000m", "x"]), "memory": c.of(&["1Gi", "0"]), "gpu": {"type": "nvidia.com/gpu",
            "num": c.any::<u8>(), "family": c.text()}}}));
    let name = c.of(&["general", "new", "a.b"]);
    json!({"apiVersion": "imperator.tenzen-y.io/v1alpha1", "kind": "Machine",
        "metadata": {"name": name, "labels": {keys::MACHINE_GROUP: name}}, "spec": {"nodePool": pool, "machineTypes": types}})
}
