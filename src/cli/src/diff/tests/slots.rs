//! Companions that are guests of Machines.

use super::*;

/// A rule whose companions are guests of type `t` of group `g`.
fn guests(name: &str, app: &str) -> Value {
    let labels = json!({keys::MACHINE_GROUP: "g", keys::MACHINE_TYPE: "t", keys::POD_ROLE: keys::GUEST});
    let any = with(rule(name, app), "/spec/dpuSelectionPolicy", json!("Any"));
    with(any, "/spec/template/metadata", json!({"labels": labels}))
}

/// The usual state, where a Machine on the DPU `a-dpu` has so many slots.
fn with_slots(slots: u32, more: &[Value]) -> Vec<Value> {
    let machine = json!({"apiVersion": "imperator.tenzen-y.io/v1alpha1", "kind": "Machine",
        "metadata": {"name": "m", "labels": {keys::MACHINE_GROUP: "g"}},
        "spec": {"nodePool": [{"name": "a-dpu", "mode": "ready", "machineType": [{"name": "t"}]}],
            "machineTypes": [{"name": "t", "spec": {"cpu": "1", "memory": "1Gi"}, "available": slots}]},
        "status": {"availableMachines": [{"name": "t", "usage": {"maximum": slots, "reserved": slots}}]}});
    let dpu = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a-dpu", "labels": {
        keys::DPU_HOST: "a", "imperator.tenzen-y.io/t": "g", keys::NODE_POOL: "ready"}}});
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "tenant-blue",
        "labels": {keys::TENANT: "blue", keys::INJECT_RESOURCE: keys::INJECT_ENABLED}}});
    state(&[&[machine, dpu, namespace], more].concat())
}

/// `CHANGE workload free/slots` of each companion, or its refusal.
fn slots(state: &[Value], new: Value) -> Vec<String> {
    let report = diff(state, &[new], &["--tenant", "blue"]).unwrap();
    let of = |entry: &Value| {
        let slot = &entry["slot"];
        let slot = slot.as_object().map_or_else(
            || entry["reason"].as_str().unwrap_or_default().to_owned(),
            |slot| format!("{}/{}", slot["free"], slot["slots"]),
        );
        format!("{} {} {slot}", entry["change"].as_str().unwrap(), entry["workload"].as_str().unwrap())
    };
    let mut all: Vec<String> = report["companions"].as_array().unwrap().iter().map(of).collect();
    all.sort();
    all
}

#[test]
fn a_guest_takes_a_slot_of_its_machine_on_its_nodes() {
    let report = diff(&with_slots(3, &[]), &[guests("r", "web")], &["--tenant", "blue"]).unwrap();
    let companion = &report["companions"][0];
    assert_eq!(companion["slot"], json!({"machineGroup": "g", "machineType": "t", "slots": 3, "free": 3}));
    assert_eq!(companion["nodes"], json!(["a-dpu"]), "only the nodes of the group");
    let other = diff(&with_slots(3, &[]), &[rule("r", "web")], &["--tenant", "blue"]).unwrap();
    assert_eq!(other["companions"][0].get("slot"), None);
}

#[test]
fn no_more_guests_are_predicted_than_there_are_slots() {
    const NONE_LEFT: &str = "there is no <t> left";
    let found = slots(&with_slots(1, &[]), for_all(guests("r", "")));
    let (created, refused): (Vec<&String>, Vec<&String>) =
        found.iter().partition(|text| text.contains("Created"));
    assert_eq!((created.len(), refused.len()), (1, 1), "{found:?}");
    assert!(created[0].ends_with("1/1") && refused[0].ends_with(NONE_LEFT), "{found:?}");
    // Another guest has the slot already.
    let guest = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "g", "namespace": "tenant-blue", "uid": "g",
        "labels": {keys::MACHINE_GROUP: "g", keys::MACHINE_TYPE: "t", keys::POD_ROLE: keys::GUEST}},
        "spec": {"containers": []}});
    let found = slots(&with_slots(1, &[guest]), guests("r", "web"));
    assert!(found[0].starts_with("Refused shop/web") && found[0].ends_with(NONE_LEFT), "{found:?}");
}

#[test]
fn companions_that_stay_keep_their_slots_and_others_give_them_back() {
    let present = guests("r", "web");
    // Replaced: the slot of the former one is free again.
    let newer = with(guests("r", "web"), "/spec/template/spec/containers/0/image", json!("i:2"));
    assert_eq!(slots(&with_slots(1, std::slice::from_ref(&present)), newer), ["Replaced shop/web 1/1"]);
    // The workload that matches now gets the slot of the one that no longer does.
    let moved = slots(&with_slots(1, std::slice::from_ref(&present)), guests("r", "db"));
    assert_eq!(moved, ["Created shop/db 1/1", "Deleted shop/web Unmatched"]);
    // What stays as it is has its slot.
    let more = slots(&with_slots(2, std::slice::from_ref(&present)), for_all(guests("r", "")));
    assert_eq!(more, ["Created shop/db 1/2"]);
    let too_many = slots(&with_slots(1, &[present]), for_all(guests("r", "")));
    assert!(too_many[0].starts_with("Refused shop/db"), "{too_many:?}");
}
