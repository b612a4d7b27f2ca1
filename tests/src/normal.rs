//! The state of clusters without what differs between two runs of the same: uids, times, addresses, generated names.
//!
//! Two runs whose objects are named after the run (tenants, Nodes, groups) end in equal states, unless something went wrong.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use kube::Client;
use outrigger_core::keys;
use regex::Regex;
use serde_json::{Value, json};

use crate::history::{Kind, Side, kind};
use crate::is_true;

/// What Outrigger reads and writes in an infrastructure cluster, and what follows from it.
pub const INFRA: &[Kind] = &[
    kind("", "v1", "Pod", "pods"),
    kind("", "v1", "Node", "nodes"),
    kind("", "v1", "Namespace", "namespaces"),
    kind("", "v1", "Service", "services"),
    kind("", "v1", "ConfigMap", "configmaps"),
    kind("", "v1", "ResourceQuota", "resourcequotas"),
    kind("apps", "v1", "StatefulSet", "statefulsets"),
    kind("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings"),
    kind("resource.k8s.io", "v1", "ResourceClaim", "resourceclaims"),
    kind("resource.k8s.io", "v1", "ResourceClaimTemplate", "resourceclaimtemplates"),
    kind("workload.universe.nvidia.com", "v1alpha1", "WorkloadRule", "workloadrules"),
    kind("outrigger.dev", "v1alpha1", "Tenant", "tenants"),
    kind("imperator.tenzen-y.io", "v1alpha1", "Machine", "machines"),
    kind("imperator.tenzen-y.io", "v1alpha1", "MachineNodePool", "machinenodepools"),
];

/// What Outrigger reads and writes in a tenant's cluster.
pub const TENANT: &[Kind] = &[
    kind("", "v1", "Pod", "pods"),
    kind("workload.universe.nvidia.com", "v1alpha1", "WorkloadRule", "workloadrules"),
];

/// A state, by side, kind and name.
pub type Normal = BTreeMap<String, Value>;

/// The state of both clusters as far as it is a run's.
pub async fn state(infra: &Client, tenant: &Client, run: &str) -> Result<Normal, String> {
    let mut objects = Vec::new();
    for (side, client, kinds) in [(Side::Infra, infra, INFRA), (Side::Tenant, tenant, TENANT)] {
        for kind in kinds {
            for object in kind.list(client).await? {
                if belongs(&object, run) {
                    objects.push((side, object));
                }
            }
        }
    }
    Ok(normal(objects, run))
}

/// Whether an object is a run's: its metadata mentions the run.
fn belongs(object: &Value, run: &str) -> bool {
    let metadata = &object["metadata"];
    // Every namespace has one, at some time after it was made.
    metadata["name"] != "kube-root-ca.crt"
        && ["name", "namespace", "labels", "ownerReferences"]
            .iter()
            .any(|field| metadata[field].to_string().contains(run))
}

/// Objects of a run without what differs between runs.
pub fn normal(mut objects: Vec<(Side, Value)>, run: &str) -> Normal {
    objects.sort_by_key(|(side, object)| (*side, object["kind"].to_string(), created(object)));
    let names = aliases(&objects);
    let mut all = Normal::new();
    for (side, mut object) in objects {
        strip(&mut object);
        let text = object.to_string();
        let text = names.iter().fold(text, |text, (name, alias)| text.replace(name, alias));
        let text = mask(&text.replace(run, "RUN"));
        let object: Value = serde_json::from_str(&text).expect("only texts were replaced");
        let metadata = &object["metadata"];
        let part = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut key = format!(
            "{side:?} {} {}/{}",
            part(&object["kind"]),
            part(&metadata["namespace"]),
            part(&metadata["name"])
        );
        // A list isn't sorted by what is left of the objects.
        while all.contains_key(&key) {
            key.push('+');
        }
        all.insert(key, object);
    }
    all
}

fn created(object: &Value) -> String {
    format!("{} {}", object["metadata"]["creationTimestamp"], object["metadata"]["name"])
}

/// Names and uids that differ between runs, with names that don't; those that hold others first.
fn aliases(objects: &[(Side, Value)]) -> Vec<(String, String)> {
    let mut uids = BTreeMap::new();
    for (_, object) in objects.iter().filter(|(side, _)| *side == Side::Tenant) {
        insert_uid(&mut uids, object, None);
    }
    let mut names: Vec<(String, String)> = Vec::new();
    for (_, object) in objects.iter().filter(|(side, _)| *side == Side::Infra) {
        let metadata = &object["metadata"];
        let name = metadata["name"].as_str().unwrap_or_default();
        let label = |key: &str| metadata["labels"][key].as_str();
        let annotation = |key: &str| metadata["annotations"][key].as_str();
        let owner = metadata["ownerReferences"][0]["name"].as_str().unwrap_or_default();
        let alias = if let (Some(rule), Some(workload)) = (label(keys::RULE), label(keys::WORKLOAD)) {
            let workload = uids.get(workload).map_or(workload, String::as_str);
            Some(format!("companion of {rule} and {workload}"))
        } else if object["kind"] == "ResourceClaimTemplate" {
            label(keys::RULE).map(|rule| format!("template of {rule}"))
        } else if let Some(entry) = annotation(keys::POD_CLAIM_NAME) {
            let owner =
                names.iter().find(|(name, _)| name == owner).map_or(owner, |(_, alias)| alias.as_str());
            Some(format!("claim {entry} of {owner}"))
        } else if object["kind"] == "ConfigMap" {
            label(keys::MACHINE_TYPE).map(|type_| format!("ledger of {type_}"))
        } else {
            None
        };
        insert_uid(&mut uids, object, alias.as_deref());
        names.extend(alias.map(|alias| (name.to_owned(), alias)));
    }
    names.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
    names.extend(uids);
    names
}

fn insert_uid(uids: &mut BTreeMap<String, String>, object: &Value, alias: Option<&str>) {
    if let Some(uid) = object["metadata"]["uid"].as_str() {
        let name = alias.or(object["metadata"]["name"].as_str()).unwrap_or_default();
        uids.insert(uid.to_owned(), format!("uid of {} {name}", object["kind"].as_str().unwrap_or_default()));
    }
}

fn remove(object: &mut Value, path: &str, fields: &[&str]) {
    if let Some(map) = object.pointer_mut(path).and_then(Value::as_object_mut) {
        map.retain(|key, _| !fields.contains(&key.as_str()));
    }
}

/// Takes out what counts, and what others decide.
fn strip(object: &mut Value) {
    let counters =
        ["resourceVersion", "generation", "managedFields", "generateName", "deletionGracePeriodSeconds"];
    remove(object, "/metadata", &counters);
    remove(object, "/metadata/labels", &["controller-revision-hash", "apps.kubernetes.io/pod-index"]);
    // Of which generation of its rule a companion is, of which claim, and whether it is known to be the first of its workload, depends on
    // when and by whom it was made; the hashes depend on names.
    remove(
        object,
        "/metadata/annotations",
        &[
            keys::RULE_GENERATION,
            keys::STREAM_CLAIM,
            keys::FIRST_COMPANION,
            keys::TEMPLATE_HASH,
            keys::TEMPLATE_PARTS,
        ],
    );
    for condition in
        object.pointer_mut("/status/conditions").and_then(Value::as_array_mut).into_iter().flatten()
    {
        remove(condition, "", &["lastTransitionTime", "lastProbeTime", "observedGeneration"]);
    }
    remove(object, "/status", &["observedGeneration"]);
    match object["kind"].as_str().unwrap_or_default().to_owned().as_str() {
        "Pod" => strip_pod(object),
        "Node" => remove(object, "", &["status"]),
        "Namespace" => remove(object, "", &["spec", "status"]),
        "ResourceQuota" => remove(object, "", &["status"]),
        "Service" => remove(object, "/spec", &["clusterIP", "clusterIPs"]),
        "StatefulSet" => {
            remove(object, "/status", &["currentRevision", "updateRevision", "collisionCount"]);
        }
        "ResourceClaim" => {
            // Which of several equal devices it is.
            let results =
                object.pointer_mut("/status/allocation/devices/results").and_then(Value::as_array_mut);
            results.into_iter().flatten().for_each(|result| remove(result, "", &["device"]));
        }
        "Tenant" => remove(object, "/status/stream", &["claim", "holder", "since", "lastSync", "workloads"]),
        // It also has requests that were refused, for a while.
        "ConfigMap" if object["data"]["ledger"].is_string() => object["data"]["ledger"] = json!("grants"),
        _ => {}
    }
}

/// Of a Pod's status: the phase, and whether it is ready.
fn strip_pod(pod: &mut Value) {
    pod["status"] = json!({"phase": pod["status"]["phase"], "ready": is_true(pod, "Ready")});
    // The projected token's volume has a generated name.
    for list in ["volumes", "containers", "initContainers"] {
        for entry in pod["spec"][list].as_array_mut().into_iter().flatten() {
            for value in [entry.get_mut("name")].into_iter().flatten() {
                rename_token(value);
            }
            for mount in entry["volumeMounts"].as_array_mut().into_iter().flatten() {
                rename_token(&mut mount["name"]);
            }
        }
    }
}

fn rename_token(name: &mut Value) {
    if name.as_str().is_some_and(|name| name.starts_with("kube-api-access-")) {
        *name = json!("kube-api-access");
    }
}

/// Replaces uids, times and addresses in a text, wherever they are in it.
fn mask(text: &str) -> String {
    static SHAPES: LazyLock<[(Regex, &str); 3]> = LazyLock::new(|| {
        [
            (r"\b[[:xdigit:]]{8}(-[[:xdigit:]]{4}){3}-[[:xdigit:]]{12}", "UID"),
            (r"\b\d{4}(-\d\d){2}T\d\d(:\d\d){2}[\d.Z]*", "TIME"),
            (r"\b10(\.\d+){3}", "IP"),
        ]
        .map(|(shape, word)| (Regex::new(shape).expect("an expression"), word))
    });
    SHAPES.iter().fold(text.to_owned(), |text, (shape, word)| shape.replace_all(&text, *word).into_owned())
}

/// How a state differs from the one that was wanted, in words.
pub fn differences(wanted: &Normal, found: &Normal) -> Vec<String> {
    let mut words = Vec::new();
    for key in wanted.keys().chain(found.keys().filter(|key| !wanted.contains_key(*key))) {
        match (wanted.get(key), found.get(key)) {
            (Some(_), None) => words.push(format!("{key} is missing")),
            (None, Some(object)) => {
                let going =
                    if object["metadata"]["deletionTimestamp"].is_null() { "" } else { " (being deleted)" };
                words.push(format!("{key} should not be there{going}"));
            }
            (Some(wanted), Some(found)) => {
                for change in json_patch::diff(wanted, found).0 {
                    let path = change.path().to_string();
                    let before = wanted.pointer(&path).map_or_else(|| "nothing".to_owned(), Value::to_string);
                    let after = found.pointer(&path).map_or_else(|| "nothing".to_owned(), Value::to_string);
                    words.push(format!("{key} {path}: {after}, wanted {before}"));
                }
            }
            (None, None) => {}
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(run: &str, uid: &str) -> (Side, Value) {
        (
            Side::Tenant,
            json!({"kind": "Pod", "metadata": {"name": "w", "namespace": format!("work-{run}"), "uid": uid},
            "spec": {}, "status": {"phase": "Running", "podIP": "10.0.0.7"}}),
        )
    }

    fn companion(run: &str, uid: &str, workload: &str, image: &str) -> (Side, Value) {
        let facts =
            format!("{{\"uid\":\"{workload}\",\"at\":\"2026-01-0{}T00:00:00.123Z\"}}", uid.len() % 10);
        (
            Side::Infra,
            json!({"kind": "Pod", "metadata": {"name": format!("r-{}", &workload[..4]), "namespace": format!("tenant-{run}"),
            "uid": uid, "resourceVersion": uid, "labels": {keys::RULE: "r", keys::WORKLOAD: workload},
            "annotations": {"facts": facts, keys::RULE_GENERATION: "3", keys::STREAM_CLAIM: "u/4"}},
            "spec": {"containers": [{"image": image}], "nodeName": format!("{run}-dpu")}, "status": {}}),
        )
    }

    const A: &str = "aaaaaaaa-0000-1111-2222-333333333333";
    const B: &str = "bbbbbbbb-0000-1111-2222-333333333333";

    #[test]
    fn runs_that_differ_in_names_and_times_are_equal() {
        let one = normal(vec![workload("x001", A), companion("x001", "u1", A, "i")], "x001");
        let other = normal(vec![workload("x002", B), companion("x002", "u2", B, "i")], "x002");
        assert_eq!(differences(&one, &other), Vec::<String>::new());
        assert_eq!(one, other);
        assert!(one.contains_key("Infra Pod tenant-RUN/companion of r and uid of Pod w"), "{one:?}");
    }

    #[test]
    fn what_really_differs_is_reported() {
        let one = normal(vec![workload("x001", A), companion("x001", "u1", A, "i")], "x001");
        let image = normal(vec![workload("x002", B), companion("x002", "u2", B, "j")], "x002");
        let words = differences(&one, &image);
        assert_eq!(words.len(), 1);
        assert!(words[0].contains("/spec/containers/0/image: \"j\", wanted \"i\""), "{words:?}");
        let missing = normal(vec![workload("x002", B)], "x002");
        assert!(differences(&one, &missing)[0].ends_with("is missing"));
        assert!(differences(&missing, &one)[0].ends_with("should not be there"));
        // Whoever it serves is gone.
        let orphan = normal(vec![workload("x002", B), companion("x002", "u2", A, "i")], "x002");
        assert_eq!(differences(&one, &orphan).len(), 2);
    }

    #[test]
    fn uids_times_and_addresses_are_masked_anywhere_and_nothing_else_is() {
        let text = format!(
            "a {A} \"{B}\" 2026-11-22T03:04:05Z 2026-11-22T03:04:05.123456Z 10.96.0.17, v10.9.9 é 2026-11-22"
        );
        assert_eq!(mask(&text), "a UID \"UID\" TIME TIME IP, v10.9.9 é 2026-11-22");
    }
}
