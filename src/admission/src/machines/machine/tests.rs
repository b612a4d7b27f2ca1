use serde_json::{Value, json};

use super::*;
use crate::handler::Settings;
use crate::machines::guests::tests::{apply_machine, apply_node, cases};
use crate::tests::{decide, request_for, response};
use crate::webhooks;

fn request(object: &Value, old: &Value) -> Request {
    request_for("Machine", "", object, old)
}

fn nodes() -> Caches {
    let caches = Caches::default();
    for name in ["test-node1", "test-node2", "test-node3", "free"] {
        apply_node(&caches, name);
    }
    caches
}

fn ask(caches: &Caches, object: &Value, old: &Value) -> (u16, String, Vec<String>) {
    response(decide("/validate/machines", caches, &mut request(object, old)).unwrap(), 201)
}

/// What the Machine needs before it is admitted.
fn reserved(caches: &Caches, object: &Value, old: &Value) -> Option<MachineClaim> {
    let settings = Settings::default();
    let admission = webhooks::endpoint("/validate/machines")
        .unwrap()
        .decide(Context::new(caches, &settings), &mut request(object, old));
    match admission.unwrap().reserve? {
        Reservation::Machine(claim) => Some(*claim),
        Reservation::Slot(slot) => panic!("{slot:?}"),
    }
}

fn valid() -> Value {
    cases("validation")[0]["object"].clone()
}

#[test]
fn answers_as_imperator_does() {
    let mut ran = 0;
    for case in cases("validation") {
        let name = case["name"].as_str().unwrap();
        if case["kind"] != "Machine" || !case["object"].is_object() {
            continue;
        }
        ran += 1;
        let (code, message, _) = ask(&nodes(), &case["object"], &Value::Null);
        assert_eq!(json!(code), case["code"], "{name}: {message}");
        let wanted = case["message"].as_str().unwrap_or_default();
        // What the schema refuses it refuses in its own words.
        if code == 403 {
            assert_eq!(
                Some(&*message),
                wanted.split_once("denied the request: ").map(|(_, words)| words),
                "{name}"
            );
        }
    }
    assert_eq!(ran, 21);
}

/// Puts one thing right.
type Repair = Box<dyn Fn(&mut Value)>;

#[test]
fn in_the_documented_order() {
    let caches = nodes();
    let mut other = valid();
    other["metadata"] = json!({"name": "other", "labels": {keys::MACHINE_GROUP: "v1g"}});
    apply_machine(&caches, &other);
    let mut object = valid();
    // Everything is wrong; one thing after the other is put right.
    object["metadata"]["labels"] = json!({});
    object["spec"]["nodePool"][0]["name"] = json!("nobody");
    object["spec"]["nodePool"][1]["machineType"] = json!([]);
    object["spec"]["nodePool"][2]["machineType"][0]["name"] = json!("unknown");
    object["spec"]["machineTypes"][1]["name"] = json!("test-machine1");
    let gpu = json!({"num": "-1", "family": "", "product": ""});
    object["spec"]["machineTypes"][0]["spec"]["gpu"] = gpu;
    let steps: Vec<(&str, Repair)> = vec![
        (
            "imperator.tenzen-y.io/machine-group is must be set in .metadata.labels",
            Box::new(|o| o["metadata"]["labels"] = json!({keys::MACHINE_GROUP: "v1g"})),
        ),
        (
            "machineGroup label is duplicate, machineGroup must be set as unique",
            Box::new(|o| o["metadata"]["labels"] = json!({keys::MACHINE_GROUP: "another"})),
        ),
        (
            "failed to find node nobody in Kubernetes Cluster",
            Box::new(|o| o["spec"]["nodePool"][0]["name"] = json!("test-node1")),
        ),
        (
            "machineType name <test-machine1> is duplicated",
            Box::new(|o| o["spec"]["machineTypes"][1]["name"] = json!("test-machine2")),
        ),
        (
            "<test-node2>; can not set multiple machineType in nodePool.machineType",
            Box::new(|o| o["spec"]["nodePool"][1]["machineType"] = json!([{"name": "test-machine2"}])),
        ),
        (
            "unknown was not found in spec.machineTypes",
            Box::new(|o| o["spec"]["nodePool"][2]["machineType"][0]["name"] = json!("test-machine1")),
        ),
        (
            "gpu.type must be set value",
            Box::new(|o| o["spec"]["machineTypes"][0]["spec"]["gpu"]["type"] = json!("nvidia.com/gpu")),
        ),
        (
            "gpu.num must be set 0 or more value",
            Box::new(|o| o["spec"]["machineTypes"][0]["spec"]["gpu"]["num"] = json!(1)),
        ),
        (
            "you must set a value for either gpu.family, gpu.product or gpu.machine",
            Box::new(|o| {
                let gpu = &mut o["spec"]["machineTypes"][0]["spec"]["gpu"];
                gpu["family"] = json!("f");
                gpu["product"] = json!("p");
            }),
        ),
        (
            "only one GPU family, product or machine cane be set",
            Box::new(|o| o["spec"]["machineTypes"][0]["spec"]["gpu"]["family"] = json!("")),
        ),
        (
            "spec.nodePool[0].name: is \"test-node1\", which is in machine-group <v1g> (Machine other)",
            Box::new(|o| {
                for node in o["spec"]["nodePool"].as_array_mut().unwrap() {
                    node["name"] = json!("free");
                }
            }),
        ),
        (
            "spec.nodePool[1].name: is \"free\", which is in the pool already",
            Box::new(|o| drop(o["spec"]["nodePool"].as_array_mut().unwrap().drain(1..))),
        ),
    ];
    for (message, repair) in steps {
        let (code, found, _) = ask(&caches, &object, &Value::Null);
        assert_eq!(code, 403, "{found}");
        assert!(found.starts_with(message), "{found}");
        repair(&mut object);
    }
    assert_eq!(ask(&caches, &object, &Value::Null), (201, String::new(), Vec::new()));
}

#[test]
fn what_could_not_work_is_refused_or_warned_of() {
    let with = |change: Value| {
        let mut object = valid();
        let types = object["spec"]["machineTypes"].as_array_mut().unwrap();
        let mut more = json!({"name": "more", "spec": {"cpu": "1", "memory": "1Gi"}, "available": 1});
        json_patch::merge(&mut more, &change);
        types.push(more);
        ask(&nodes(), &object, &Value::Null)
    };
    let long = "x".repeat(62);
    let gpu = |gpu: Value| json!({"spec": {"gpu": gpu}});
    for (change, message) in [
        (json!({"name": "a b"}), "spec.machineTypes[2].name: is \"a b\"; it becomes the name of a label"),
        (json!({"name": ""}), "spec.machineTypes[2].name: is \"\""),
        (json!({"name": "node-pool"}), "spec.machineTypes[2].name: is \"node-pool\", but the label"),
        (json!({"name": "A"}), "spec.machineTypes[2].name: makes \"v1g-A\" with the group's name"),
        (json!({"name": "a.b"}), "spec.machineTypes[2].name: makes \"v1g-a.b\""),
        (json!({"name": long}), "spec.machineTypes[2].name: makes \"v1g-xxx"),
        (
            gpu(json!({"num": 1, "type": "x.y/z", "deviceClass": "c", "family": "f"})),
            "spec.machineTypes[2].spec.gpu.deviceClass: stands beside type",
        ),
        (
            gpu(json!({"num": 1, "type": "cpu", "family": "f"})),
            "spec.machineTypes[2].spec.gpu.type: is \"cpu\"",
        ),
        (
            gpu(json!({"num": 1, "type": "amd.com/gpu", "family": "f"})),
            "spec.machineTypes[2].spec.gpu.type: is \"amd.com/gpu\", but family",
        ),
        (gpu(json!({"num": 1, "deviceClass": "C"})), "spec.machineTypes[2].spec.gpu.deviceClass: is \"C\""),
        (
            gpu(json!({"num": 1, "deviceClass": "c".repeat(64)})),
            "spec.machineTypes[2].spec.gpu.deviceClass: is \"ccccccccc",
        ),
        (
            gpu(json!({"num": 1, "type": "gpu", "family": "f"})),
            "spec.machineTypes[2].spec.gpu.type: is \"gpu\"; use the name of a resource",
        ),
        (
            gpu(json!({"num": 1, "type": "nvidia.com/gpu", "product": "NVIDIA A100 80GB"})),
            "spec.machineTypes[2].spec.gpu.product: is \"NVIDIA A100 80GB\"; use a label's value",
        ),
        (
            gpu(json!({"num": 1, "type": "nvidia.com/gpu", "family": "-f"})),
            "spec.machineTypes[2].spec.gpu.family: is \"-f\"",
        ),
        (
            gpu(json!({"num": 1, "type": "nvidia.com/gpu", "machine": "m".repeat(64)})),
            "spec.machineTypes[2].spec.gpu.machine: is \"mmm",
        ),
    ] {
        let (code, found, _) = with(change);
        assert_eq!(code, 403, "{found}");
        assert!(found.starts_with(message), "{found}");
    }
    assert_eq!(with(json!({"spec": {"cpu": "many"}})).0, 422);
    for (change, warning) in [
        (json!({"spec": {"memory": "-1"}}), "spec.machineTypes[2].spec.memory: is -1;"),
        (json!({"name": "y".repeat(50)}), "spec.machineTypes[2].name: with the group's it has 54 characters"),
        (
            gpu(json!({"num": "500m", "type": "nvidia.com/mig-1g.5gb", "family": "f"})),
            "spec.machineTypes[2].spec.gpu.num: is 500m;",
        ),
        (
            gpu(json!({"num": 1, "deviceClass": "gpu.example"})),
            "spec.machineTypes[2].spec.gpu.deviceClass: there is",
        ),
    ] {
        let (code, message, warnings) = with(change);
        assert_eq!((code, warnings.len()), (201, 1), "{message} {warnings:?}");
        assert!(warnings[0].starts_with(warning) && warnings[0].len() <= 120, "{warnings:?}");
    }
    let mut unnamed = valid();
    unnamed["metadata"]["labels"][keys::MACHINE_GROUP] = json!("");
    assert_eq!(ask(&nodes(), &unnamed, &Value::Null).2.len(), 1);
}

#[test]
fn only_a_name_that_is_too_long_for_a_reservation_is_warned_of() {
    // Of the group, and a dash.
    let prefix = "v1g-".len();
    for (length, warned) in [(MAX_RESERVATION_NAME, 0), (MAX_RESERVATION_NAME + 1, 1)] {
        let mut object = valid();
        let name = "y".repeat(length - prefix);
        let types = object["spec"]["machineTypes"].as_array_mut().unwrap();
        types.push(json!({"name": name, "spec": {"cpu": "1", "memory": "1Gi"}, "available": 1}));
        let (code, message, warnings) = ask(&nodes(), &object, &Value::Null);
        assert_eq!((code, warnings.len()), (201, warned), "{message} {warnings:?}");
    }
}

#[test]
fn an_update_is_validated_by_what_changes() {
    let caches = nodes();
    let mut old = valid();
    old["spec"]["nodePool"][0]["name"] = json!("gone");
    old["spec"]["machineTypes"][0]["spec"]["gpu"]["type"] = json!("");
    let mut new = old.clone();
    new["metadata"]["finalizers"] = json!([]);
    new["metadata"]["labels"]["app"] = json!("x");
    assert_eq!(ask(&caches, &new, &old).0, 201, "it was no better before");
    new["spec"]["machineTypes"][1]["available"] = json!(3);
    assert_eq!(ask(&caches, &new, &old).1, "gpu.type must be set value");
    new["spec"]["machineTypes"][0]["spec"]["gpu"]["type"] = json!("nvidia.com/gpu");
    assert_eq!(ask(&caches, &new, &old).0, 201, "a node that was there may be gone");
    assert!(reserved(&caches, &new, &old).is_none() && !is_claiming(&request(&new, &old)));
    new["spec"]["nodePool"][2]["name"] = json!("gone-too");
    assert_eq!(ask(&caches, &new, &old).1, "failed to find node gone-too in Kubernetes Cluster");
    new["spec"]["nodePool"][2]["name"] = json!("free");
    let claimed = reserved(&caches, &new, &old).unwrap();
    assert!(is_claiming(&request(&new, &old)));
    assert_eq!((&claimed.claim.group, &claimed.claim.nodes), (&None, &vec!["free".to_owned()]));
    // What another has is as good as taken by an update.
    let mut other = valid();
    other["metadata"] = json!({"name": "other", "labels": {keys::MACHINE_GROUP: "other"}});
    other["spec"]["nodePool"] =
        json!([{"name": "free", "mode": "ready", "machineType": [{"name": "test-machine1"}]}]);
    apply_machine(&caches, &other);
    assert!(
        ask(&caches, &new, &old)
            .1
            .starts_with("spec.nodePool[2].name: is \"free\", which is in machine-group <other>")
    );
    new["metadata"]["labels"][keys::MACHINE_GROUP] = json!("other");
    assert_eq!(ask(&caches, &new, &old).1, DUPLICATE_GROUP);
    assert_eq!(response(claimed.refused(&Conflict::Crowded), 201).0, 503);
}

#[test]
fn a_machine_has_its_group_and_its_nodes_also_where_its_types_are_not_valid() {
    let mut object = valid();
    object["spec"]["machineTypes"][0]["spec"]["cpu"] = json!("many");
    let machine: Machine = serde_json::from_value(object).unwrap();
    assert!(machine.compile().is_err());
    let all: Vec<String> = names(&machine.spec).map(str::to_owned).collect();
    assert!(!all.is_empty() && group(&machine).is_some());
    let has = claimed(&machine, None);
    assert_eq!((has.group.as_ref(), has.nodes), (group(&machine), all));
    let more = claimed(&machine, Some(&machine));
    assert_eq!((more.group, more.nodes), (None, Vec::new()), "it had them before");
}
