use std::time::Duration;

use serde_json::json;

use super::*;
use crate::handler::Settings;
use crate::tests::{applied, decide, namespace, request_for};
use crate::webhooks;

const NOW: Duration = Duration::ZERO;

pub(crate) fn cases(part: &str) -> Vec<Value> {
    let all: Value = serde_json::from_str(include_str!("../../../../../tests/cases/imperator.json")).unwrap();
    all[part].as_array().unwrap().clone()
}

pub(crate) fn apply_machine(caches: &Caches, machine: &Value) {
    let mut machine = machine.clone();
    machine["apiVersion"] = json!("imperator.tenzen-y.io/v1alpha1");
    caches.apply_machine(applied(machine), NOW);
}

pub(crate) fn apply_node(caches: &Caches, name: &str) {
    caches.node(applied(json!({"metadata": {"name": name}})));
}

fn apply_pod(caches: &Caches, pod: &Value, uid: &str, phase: &str) {
    let mut pod = pod.clone();
    pod["metadata"]["uid"] = json!(uid);
    pod["metadata"]["namespace"] = json!("n");
    pod["status"] = json!({"phase": phase});
    caches.guest(applied(pod), NOW);
}

fn injected() -> Value {
    json!({keys::INJECT_RESOURCE: keys::INJECT_ENABLED})
}

/// A webhook of a cluster with this Machine, and a namespace `n` with these labels.
fn caches(machine: &Value, labels: &Value) -> Caches {
    let caches = Caches::default();
    caches.namespace(namespace("n", labels));
    apply_machine(&caches, machine);
    caches
}

/// The Machine of the first case, with its status.
fn machine() -> Value {
    cases("pod_injector")[0]["machine"].clone()
}

fn request(object: &Value, old: &Value) -> Request {
    request_for("Pod", "n", object, old)
}

/// What the API server makes of a request: the object, or code and message. And the warnings.
fn ask(caches: &Caches, labels: &Value, mut request: Request) -> (Result<Value, (u16, String)>, Vec<String>) {
    let labels: std::collections::BTreeMap<&str, &str> =
        labels.as_object().unwrap().iter().map(|(key, value)| (&**key, value.as_str().unwrap())).collect();
    let settings = Settings::default();
    let decided = webhooks::decide(Context::new(caches, &settings), &mut request, Some(&labels));
    match decided.map(|admission| admission.decision) {
        Ok(Decision::Allow { warnings, .. }) => (Ok(request.object), warnings),
        Ok(Decision::Deny { code, message, .. }) => (Err((code, message)), Vec::new()),
        Err(stale) => (Err((503, stale.to_string())), Vec::new()),
    }
}

fn created(caches: &Caches, pod: &Value) -> Result<Value, (u16, String)> {
    ask(caches, &injected(), request(pod, &Value::Null)).0
}

fn guest_pod() -> Value {
    cases("pod_injector")[0]["pod"].clone()
}

const REQUIRED: &str =
    "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";

/// Where Imperator adds a term, we AND it into the user's own: what is expected in place of its terms.
fn anded(before: &Value, after: &Value) -> Value {
    let own = before.pointer(REQUIRED).and_then(Value::as_array).cloned().unwrap_or_default();
    let imposed = after.pointer(REQUIRED).unwrap().as_array().unwrap().last().unwrap().clone();
    if own.is_empty() {
        return json!([imposed]);
    }
    let both = |mut term: Value| {
        let mut expressions = term["matchExpressions"].as_array().cloned().unwrap_or_default();
        for expression in imposed["matchExpressions"].as_array().unwrap() {
            if !expressions.contains(expression) {
                expressions.push(expression.clone());
            }
        }
        term["matchExpressions"] = json!(expressions);
        term
    };
    own.into_iter().map(both).collect()
}

fn sorted(list: &Value) -> Vec<String> {
    let mut all: Vec<String> = list.as_array().into_iter().flatten().map(Value::to_string).collect();
    all.sort();
    all
}

#[test]
fn answers_as_imperator_does_but_for_its_bugs() {
    let mut ran = 0;
    for case in cases("pod_injector") {
        let name = case["name"].as_str().unwrap();
        // Described in words; they are tests of their own.
        if !case["pod"]["spec"].is_object() || case["namespaceLabels"].is_null() {
            continue;
        }
        ran += 1;
        let caches = caches(&case["machine"], &case["namespaceLabels"]);
        let (pod, expect) = (&case["pod"], &case["expect"]);
        // An update is not injected here: Imperator does it where its cache doesn't have the Pod.
        if case["operation"] == "UPDATE" {
            let update = request(pod, pod);
            assert_eq!(ask(&caches, &case["namespaceLabels"], update).0, Ok(pod.clone()), "{name}");
            continue;
        }
        let (answer, _) = ask(&caches, &case["namespaceLabels"], request(pod, &Value::Null));
        // What makes Imperator panic is taken.
        if expect["allowed"] == true || case.get("betterOutcome").is_some() {
            let after = answer.unwrap();
            let Some(wanted) = expect.get("podAfter") else {
                let injected = expect["injected"] != false;
                assert_eq!(after != *pod, injected, "{name}");
                continue;
            };
            if expect["injected"] == false {
                // Nothing gets lost, though Imperator's types don't know it.
                assert_eq!(after, *pod, "{name}");
                continue;
            }
            let mut containers = wanted["spec"]["containers"].clone();
            // The design document's name of the label, which Imperator's code ignores: it means the container that it names.
            if name == "inject-resource label ignored" {
                let resources = containers[0].as_object_mut().unwrap().remove("resources").unwrap();
                containers[1]["resources"] = resources;
            }
            assert_eq!(after["spec"]["containers"], containers, "{name}");
            assert_eq!(
                sorted(&after["spec"]["tolerations"]),
                sorted(&wanted["spec"]["tolerations"]),
                "{name}: the order means nothing"
            );
            assert_eq!(after.pointer(REQUIRED), Some(&anded(pod, wanted)), "{name}");
        } else {
            let (code, message) = answer.unwrap_err();
            assert_eq!(json!(code), expect["code"], "{name}");
            let expected = expect["userMessage"].as_str().unwrap();
            let expected = expected.split_once("denied the request: ").unwrap().1;
            // Since then the API server fills in the namespace.
            assert_eq!(message, expected.replace("namespace: <>", "namespace: <n>"), "{name}");
        }
    }
    assert_eq!(ran, 22, "of {}", cases("pod_injector").len());
}

#[test]
fn the_units_too() {
    let units = cases("units");
    for case in units[0]["cases"].as_array().unwrap() {
        let gpu: outrigger_api::machine::Gpu = serde_json::from_value({
            let mut gpu = case[0].clone();
            gpu["num"] = json!(1);
            gpu
        })
        .unwrap();
        let label = gpu.label().map_or_else(|| json!([]), |(key, value)| json!([key, value]));
        assert_eq!(label, case[1]);
    }
    assert_eq!(machine::reservation_name("g", "t"), units[1]["out"].as_str().unwrap());
    assert_eq!(json!(machine::reservation_labels("g", "t")), units[2]["out"]);
}

#[test]
fn what_is_missing_is_reported() {
    let pod = guest_pod();
    let empty = Caches::default();
    let (_, behind) = created(&empty, &pod).unwrap_err();
    assert!(behind.contains("nor to be one whose guests get slots; try again"), "{behind}");

    let caches = caches(&machine(), &injected());
    let with = |key: &str, value: Value| {
        let mut pod = pod.clone();
        pod["metadata"]["labels"][key] = value;
        created(&caches, &pod)
    };
    assert_eq!(
        with(keys::MACHINE_GROUP, json!("other")),
        Err((403, "failed to find machine-group <other>".to_owned()))
    );
    let mut uncounted = machine();
    uncounted["status"] = Value::Null;
    apply_machine(&caches, &uncounted);
    let (code, message) = created(&caches, &pod).unwrap_err();
    assert_eq!(
        (code, message.starts_with("imperator controller is preparing: Machine test-machine-group")),
        (403, true)
    );
    let mut wrong = machine();
    wrong["spec"]["machineTypes"][0]["spec"]["cpu"] = json!("many");
    apply_machine(&caches, &wrong);
    let (code, message) = created(&caches, &pod).unwrap_err();
    assert_eq!(code, 422);
    assert!(
        message.starts_with("Machine test-machine-group: spec.machineTypes[0].spec.cpu: \"many\""),
        "{message}"
    );
    let mut empty = pod.clone();
    empty["spec"]["containers"] = json!([]);
    apply_machine(&caches, &machine());
    assert!(created(&caches, &empty).unwrap_err().1.starts_with("spec.containers: is empty"));
}

#[test]
fn who_has_a_slot_is_counted() {
    let caches = caches(&machine(), &injected());
    let pod = guest_pod();
    let mut other = pod.clone();
    for (name, phase) in [("a", "Running"), ("b", "Pending"), ("c", "Succeeded")] {
        other["metadata"]["name"] = json!(name);
        apply_pod(&caches, &other, name, phase);
    }
    let none = "name: <injected-pod>, namespace: <n>; there is no <test-machine1> left";
    assert_eq!(created(&caches, &pod), Err((403, none.to_owned())));
    // It is there already; what the API server says to that is its own.
    other["metadata"]["name"] = json!("a");
    assert!(created(&caches, &other).is_ok());
    apply_pod(&caches, &other, "a", "Failed");
    let admitted = created(&caches, &pod).unwrap();
    let validated = || {
        let asked = &mut request(&admitted, &Value::Null);
        webhooks::endpoint("/validate/guests")
            .unwrap()
            .decide(Context::new(&caches, &Settings::default()), asked)
            .unwrap()
    };
    let Some(Reservation::Slot(reserved)) = validated().reserve else { panic!("it needs a slot") };
    assert_eq!((reserved.slot.slots, &*reserved.ask.pod, reserved.ask.dry_run), (2, "n/injected-pod", false));
    assert_eq!(reserved.slot.owner().0, "test-machine-group");
    assert_eq!((reserved.slot.group(), reserved.slot.type_name()), ("test-machine-group", "test-machine1"));
    // Between mutation and validation another guest has taken it.
    apply_pod(&caches, &other, "a", "Running");
    let refused = validated();
    assert!(refused.reserve.is_none() && refused.guest == Some(GuestOutcome::NoneLeft));
    apply_pod(&caches, &other, "a", "Failed");
    // The status says another number.
    let mut fewer = machine();
    fewer["status"]["availableMachines"][0]["usage"]["slots"] = json!(1);
    apply_machine(&caches, &fewer);
    assert_eq!(created(&caches, &pod).unwrap_err().1, none);
}

#[test]
fn a_guest_that_all_webhooks_admit_still_needs_its_slot() {
    let caches = caches(&machine(), &injected());
    let labels = std::collections::BTreeMap::from([(keys::INJECT_RESOURCE, keys::INJECT_ENABLED)]);
    let settings = Settings::default();
    let reserved = |pod: &Value| {
        let mut request = request(pod, &Value::Null);
        let admission =
            webhooks::decide(Context::new(&caches, &settings), &mut request, Some(&labels)).unwrap();
        assert!(matches!(admission.decision, Decision::Allow { .. }), "{admission:?}");
        admission.reserve
    };
    assert!(matches!(reserved(&guest_pod()), Some(Reservation::Slot(slot)) if slot.name == "injected-pod"));
    let mut plain = guest_pod();
    plain["metadata"]["labels"] = json!({});
    assert!(reserved(&plain).is_none(), "no guest");
}

#[test]
fn the_final_pod_is_as_the_step_makes_it() {
    let caches = caches(&machine(), &injected());
    let admitted = created(&caches, &guest_pod()).unwrap();
    let validated = |pod: &Value| decide("/validate/guests", &caches, &mut request(pod, &Value::Null));
    assert_eq!(validated(&admitted), Ok(Decision::allow()));
    let mut changed = admitted.clone();
    changed["spec"]["containers"][0]["resources"]["limits"]["cpu"] = json!("8");
    assert!(validated(&changed).unwrap_err().to_string().contains("is not as machine type test-machine1"));
    // As the API server writes it.
    changed["spec"]["containers"][0]["resources"]["limits"]["cpu"] = json!("4000m");
    assert_eq!(validated(&changed), Ok(Decision::allow()));
    assert!(validated(&guest_pod()).is_err(), "never injected");
    // A namespace that isn't known yet.
    let elsewhere = decide("/validate/guests", &Caches::default(), &mut request(&admitted, &Value::Null));
    assert!(elsewhere.unwrap_err().to_string().contains("inject-resource=enabled"));
}

#[test]
fn the_mirror_of_a_static_pod_is_no_guest() {
    let caches = caches(&machine(), &injected());
    let mut mirror = guest_pod();
    mirror["metadata"]["annotations"] = json!({keys::MIRROR_POD: "x"});
    assert_eq!(created(&caches, &mirror), Ok(mirror.clone()));
    let validated = |pod: &Value| decide("/validate/guests", &caches, &mut request(pod, &Value::Null));
    assert_eq!(validated(&mirror), Ok(Decision::allow()));
    assert!(validated(&guest_pod()).is_err(), "one without the slot's resources");
}

#[test]
fn an_update_leaves_a_guest_what_it_is() {
    let caches = caches(&machine(), &injected());
    let admitted = created(&caches, &guest_pod()).unwrap();
    let updated = |new: &Value, old: &Value| ask(&caches, &injected(), request(new, old)).0;
    let mut noted = admitted.clone();
    noted["metadata"]["annotations"] = json!({"a": "b"});
    noted["metadata"]["finalizers"] = json!(["x/y"]);
    noted["metadata"]["labels"]["app"] = json!("z");
    assert_eq!(updated(&noted, &admitted), Ok(noted.clone()));
    for key in [keys::MACHINE_GROUP, keys::MACHINE_TYPE, keys::POD_ROLE] {
        let mut without = admitted.clone();
        without["metadata"]["labels"].as_object_mut().unwrap().remove(key);
        let mut other = admitted.clone();
        other["metadata"]["labels"][key] = json!("other");
        for (new, old) in [(&without, &admitted), (&other, &admitted), (&admitted, &without)] {
            let (code, message) = updated(new, old).unwrap_err();
            assert_eq!(code, 403);
            assert!(message.starts_with("it is forbidden to update the Pod: metadata.labels["), "{message}");
            assert!(message.contains(key), "{message}");
        }
        // Neither was one, nor is.
        if key != keys::POD_ROLE {
            let mut neither = without.clone();
            neither["metadata"]["labels"][keys::POD_ROLE] = json!("none");
            let mut nor = neither.clone();
            nor["metadata"]["labels"][key] = json!("z");
            assert_eq!(updated(&nor, &neither), Ok(nor));
        }
    }
    let mut swapped = admitted.clone();
    swapped["spec"]["containers"].as_array_mut().unwrap().swap(0, 1);
    assert!(updated(&swapped, &admitted).unwrap_err().1.starts_with(NO_UPDATE));
    // No webhook is called for the status.
    let mut status = request(&swapped, &admitted);
    status.sub_resource = "status".to_owned();
    assert!(ask(&caches, &injected(), status).0.is_ok());
    let mut resized = admitted.clone();
    let mut resize = |cpu: &str| {
        resized["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!(cpu);
        let mut request = request(&resized, &admitted);
        request.sub_resource = "resize".to_owned();
        ask(&caches, &injected(), request).0
    };
    assert!(resize("2").is_ok());
    assert!(resize("5").unwrap_err().1.starts_with("spec.containers[0].resources.requests[cpu]: grows to 5"));
}

#[test]
fn a_guest_with_scheduling_gates_takes_its_slot_when_the_last_is_removed() {
    // Of two slots.
    let caches = caches(&machine(), &injected());
    let gates = |count: usize| json!(vec![json!({"name": "example.com/queue"}); count]);
    let gated = |name: &str| {
        let mut pod = guest_pod();
        pod["metadata"]["name"] = json!(name);
        pod["spec"]["schedulingGates"] = gates(2);
        created(&caches, &pod).unwrap()
    };
    let decided = |new: &Value, old: &Value| {
        let endpoint = webhooks::endpoint("/validate/guests").unwrap();
        let admission =
            endpoint.decide(Context::new(&caches, &Settings::default()), &mut request(new, old)).unwrap();
        (admission.guest, admission.reserve.is_some(), admission.decision)
    };
    let waiting: Vec<Value> = ["a", "b", "c"].map(gated).into();
    for pod in &waiting {
        assert_eq!(decided(pod, &Value::Null), (Some(GuestOutcome::Gated), false, Decision::allow()));
        apply_pod(&caches, pod, "u", "Pending");
    }
    let plain = created(&caches, &guest_pod()).unwrap();
    assert!(decided(&plain, &Value::Null).1, "those that are gated hold no slot");
    let mut one_left = waiting[0].clone();
    one_left["spec"]["schedulingGates"] = gates(1);
    assert_eq!(decided(&one_left, &waiting[0]), (None, false, Decision::allow()));
    let free = |pod: &Value| {
        let mut pod = pod.clone();
        pod["spec"]["schedulingGates"] = gates(0);
        pod
    };
    assert_eq!(decided(&free(&one_left), &one_left), (None, true, Decision::allow()));
    assert!(is_about_slot(&request(&free(&one_left), &one_left)), "it waits for the caches");
    assert!(!is_about_slot(&request(&one_left, &waiting[0])));
    // Two are let go, and the third one finds no slot.
    for pod in &waiting[..2] {
        apply_pod(&caches, &free(pod), "u", "Pending");
    }
    let (outcome, reserved, decision) = decided(&free(&waiting[2]), &waiting[2]);
    assert_eq!((outcome, reserved), (Some(GuestOutcome::NoneLeft), false));
    assert!(matches!(decision, Decision::Deny { code: 403, .. }), "{decision:?}");
    // It may be changed as before, and deleted.
    let mut noted = waiting[2].clone();
    noted["metadata"]["annotations"] = json!({"a": "b"});
    assert_eq!(decided(&noted, &waiting[2]), (None, false, Decision::allow()));
}

#[test]
fn a_guest_that_is_no_longer_as_its_slot_is_not_let_go() {
    let caches = caches(&machine(), &injected());
    let mut pod = guest_pod();
    pod["spec"]["schedulingGates"] = json!([{"name": "example.com/queue"}]);
    let gated = created(&caches, &pod).unwrap();
    let mut free = gated.clone();
    free["spec"].as_object_mut().unwrap().remove("schedulingGates");
    let let_go = || ask(&caches, &injected(), request(&free, &gated)).0;
    assert!(let_go().is_ok());
    let mut larger = machine();
    larger["spec"]["machineTypes"][0]["spec"]["cpu"] = json!("99");
    apply_machine(&caches, &larger);
    let (code, message) = let_go().unwrap_err();
    assert_eq!(code, 403);
    assert!(message.starts_with(NO_UPDATE) && message.contains("create another Pod"), "{message}");
}

#[test]
fn a_namespace_with_several_roles_has_all_steps() {
    let both = json!({keys::INJECT_RESOURCE: keys::INJECT_ENABLED, keys::TENANT: "blue"});
    let caches = caches(&machine(), &both);
    let (answer, _) = ask(&caches, &both, request(&guest_pod(), &Value::Null));
    // Its Tenant isn't known: mutation is done, validation waits for that.
    assert!(answer.unwrap_err().1.contains("Tenant blue is not known yet"));
    let mut request = request(&guest_pod(), &Value::Null);
    let Ok(Decision::Allow { patch, .. }) = decide("/mutate/pods", &caches, &mut request) else {
        panic!("not allowed")
    };
    let patch = serde_json::to_string(&patch).unwrap();
    assert!(patch.contains(keys::NODE_TENANT) && patch.contains(keys::NODE_POOL), "{patch}");
}

#[test]
fn the_audit_of_a_guest_that_is_offloaded_names_what_decided_both() {
    let both = json!({keys::INJECT_RESOURCE: keys::INJECT_ENABLED, keys::OFFLOADED: "true"});
    let caches = caches(&machine(), &both);
    let offloading = json!({"metadata": {"name": "offloading", "namespace": "n"},
        "spec": {"podOffloadingStrategy": "Remote"}});
    caches.apply_offloading(applied(offloading));
    let Ok(Decision::Allow { audit, .. }) =
        decide("/mutate/pods", &caches, &mut request(&guest_pod(), &Value::Null))
    else {
        panic!("not allowed")
    };
    let machine = "kind=Machine name=test-machine-group machineType=test-machine1";
    let offloading = "kind=NamespaceOffloading namespace=n name=offloading";
    assert_eq!(audit, [("machine", machine.to_owned()), ("offloading", offloading.to_owned())]);
}

#[test]
fn of_two_machines_of_a_group_the_older_counts() {
    let caches = Caches::default();
    let named = |name: &str, created: &str| {
        let mut machine = machine();
        machine["metadata"]["name"] = json!(name);
        machine["metadata"]["creationTimestamp"] = json!(created);
        machine
    };
    apply_machine(&caches, &named("a", "2026-01-02T00:00:00Z"));
    apply_machine(&caches, &named("z", "2026-01-01T00:00:00Z"));
    assert_eq!(caches.machine("test-machine-group").unwrap().name, "z");
}
