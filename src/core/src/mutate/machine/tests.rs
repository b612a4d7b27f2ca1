use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::machine::Gpu;
use crate::mutate;

pub(super) fn large() -> MachineType {
    MachineType {
        name: "large".to_owned(),
        cpu: "2000m".parse().unwrap(),
        memory: "24Gi".parse().unwrap(),
        gpu: Some(Gpu { resource: "nvidia.com/gpu".to_owned(), num: Quantity::whole(2), label: None }),
        available: 2,
    }
}

pub(super) fn guest(spec: Value) -> Value {
    let labels = json!({keys::MACHINE_GROUP: "g", keys::MACHINE_TYPE: "large", keys::POD_ROLE: "guest"});
    let mut pod = json!({"metadata": {"labels": labels},
        "spec": {"containers": [{"name": "a", "image": "i"}, {"name": "b", "image": "i"}]}});
    json_patch::merge(&mut pod["spec"], &spec);
    pod
}

/// The Pod as the steps leave it, by its patch, and the warnings.
pub(super) fn admitted(pod: &Value) -> Result<(Value, Vec<String>), FieldError> {
    let type_ = large();
    let machine = Some(GuestSlot { group: "g", type_: &type_ });
    let facts = mutate::PodContext { machine, ..mutate::PodContext::default() };
    let (patch, report) = mutate::tests::patch(pod, &facts)?;
    let mut after = pod.clone();
    json_patch::patch(&mut after, &patch).unwrap();
    let again = mutate::tests::patch(&after, &facts)?;
    assert_eq!(again.0.0, [], "once is enough");
    assert!(again.1.warnings.iter().all(|warning| warning.starts_with(NO_NODE)), "{:?}", again.1);
    assert!(is_done(&after, GuestSlot { group: "g", type_: &type_ }));
    Ok((after, report.warnings))
}

pub(super) fn slot() -> Value {
    json!({"cpu": "2", "memory": "24Gi", "nvidia.com/gpu": "2"})
}

#[test]
fn the_first_container_or_the_named_one_gets_the_slot() {
    let (pod, warnings) = admitted(&guest(json!({}))).unwrap();
    assert_eq!(pod["spec"]["containers"][0]["resources"], json!({"requests": slot(), "limits": slot()}));
    assert_eq!(pod["spec"]["containers"][1].get("resources"), None);
    assert!(warnings.is_empty(), "{warnings:?}");

    let init = json!({"initContainers": [{"name": "b", "image": "i", "restartPolicy": "Always"}]});
    let mut named = guest(init.clone());
    named["metadata"]["labels"][keys::INJECTING_CONTAINER] = json!("b");
    let (pod, warnings) = admitted(&named).unwrap();
    assert_eq!(pod["spec"]["containers"][0].get("resources"), None);
    assert_eq!(pod["spec"]["containers"][1]["resources"]["limits"], slot());
    assert_eq!(
        pod["spec"]["initContainers"], init["initContainers"],
        "a sidecar is no container of the slot"
    );
    assert!(warnings.is_empty(), "{warnings:?}");
}

#[test]
fn a_guest_is_done_only_with_all_of_its_slot() {
    let type_ = large();
    let slot = GuestSlot { group: "g", type_: &type_ };
    let (done, _) = admitted(&guest(json!({}))).unwrap();
    assert!(is_done(&done, slot));
    for missing in [
        json!({"containers": [{"name": "a", "image": "i"}]}),
        json!({"containers": [{"name": "a", "image": "i"}], "tolerations": [done["spec"]["tolerations"][1]]}),
        json!({"tolerations": null}),
        json!({"affinity": null}),
    ] {
        let mut pod = done.clone();
        json_patch::merge(&mut pod["spec"], &missing);
        assert!(!is_done(&pod, slot), "{missing}");
        assert!(admitted(&pod).is_ok(), "the rest is a change: {missing}");
    }
    assert!(!is_done(&guest(json!({"containers": []})), slot), "one that can't have a slot");
}

#[test]
fn the_rest_of_the_resources_stays_and_what_disagrees_is_reported() {
    let own = json!({"requests": {"cpu": "500m", "memory": "25769803776", "ephemeral-storage": "1Gi"},
        "limits": {"cpu": 2, "memory": "much", "nvidia.com/gpu": null}, "claims": [{"name": "c"}]});
    let pod = guest(json!({"containers": [{"name": "a", "resources": own, "resizePolicy": [{"x": 1}]}],
        "schedulingGates": [{"name": "g"}], "resourceClaims": [{"name": "c"}], "unknown": {"x": [1]}}));
    let (after, warnings) = admitted(&pod).unwrap();
    let resources = &after["spec"]["containers"][0]["resources"];
    assert_eq!(
        resources["requests"],
        json!({"cpu": "2", "memory": "25769803776", "ephemeral-storage": "1Gi", "nvidia.com/gpu": "2"}),
        "what is as much stays as it is written"
    );
    assert_eq!(resources["limits"], json!({"cpu": 2, "memory": "24Gi", "nvidia.com/gpu": "2"}));
    assert_eq!(resources["claims"], own["claims"]);
    assert_eq!(after["spec"]["containers"][0]["resizePolicy"], json!([{"x": 1}]));
    for key in ["schedulingGates", "resourceClaims", "unknown"] {
        assert_eq!(after["spec"][key], pod["spec"][key]);
    }
    assert_eq!(
        warnings,
        [
            "spec.containers[0].resources.requests: cpu is \"500m\"; the slot's \"2\" takes its place",
            "spec.containers[0].resources.limits: memory is \"much\"; the slot's \"24Gi\" takes its place",
        ]
    );
}

#[test]
fn every_term_is_kept_within_the_group() {
    let term = |expressions: Value| json!({"matchExpressions": expressions});
    let with = |required: Value| {
        guest(json!({"affinity": {"podAffinity": {"x": 1},
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}))
    };
    let slot = json!([
        {"key": "imperator.tenzen-y.io/large", "operator": "In", "values": ["g"]},
        {"key": keys::NODE_POOL, "operator": "In", "values": ["ready"]}]);
    for own in [Value::Null, json!({}), json!({"nodeSelectorTerms": []})] {
        let (pod, _) = admitted(&with(own)).unwrap();
        assert_eq!(pod.pointer(selector::POINTER), Some(&json!([term(slot.clone())])));
        assert_eq!(pod["spec"]["affinity"]["podAffinity"], json!({"x": 1}));
    }
    let fields = json!([{"key": "metadata.name", "operator": "In", "values": ["n"]}]);
    let zone = json!({"key": "zone", "operator": "Exists"});
    let own = json!({"nodeSelectorTerms": [term(json!([zone])), {"matchFields": fields}]});
    let (pod, warnings) = admitted(&with(own)).unwrap();
    assert_eq!(
        pod.pointer(selector::POINTER),
        Some(
            &json!([term(json!([zone, slot[0], slot[1]])), {"matchFields": fields, "matchExpressions": slot}])
        )
    );
    assert!(warnings.is_empty(), "{warnings:?}");
    let other = json!({"key": "imperator.tenzen-y.io/large", "operator": "In", "values": ["h"]});
    let (_, warnings) = admitted(&with(json!({"nodeSelectorTerms": [term(json!([other]))]}))).unwrap();
    assert_eq!(
        warnings,
        ["no node can match this Pod: it asks for imperator.tenzen-y.io/large In [h], its machine type for \
          imperator.tenzen-y.io/large In [g]"]
    );
    // What is no affinity at all.
    let (pod, _) = admitted(&guest(json!({"affinity": {}}))).unwrap();
    assert_eq!(pod.pointer(selector::POINTER), Some(&json!([term(slot)])));
}

#[test]
fn tolerations_are_added_once() {
    let ours = |key: &str, value: &str| json!({"key": key, "operator": "Equal", "value": value, "effect": "NoSchedule"});
    let (type_, pool) = (ours("imperator.tenzen-y.io/large", "g"), ours(keys::NODE_POOL, "ready"));
    let other = ours("imperator.tenzen-y.io/large", "h");
    for (own, after) in [
        (json!([]), json!([type_, pool])),
        (json!([other]), json!([other, type_, pool])),
        (json!([pool, other]), json!([pool, other, type_])),
    ] {
        let (pod, _) = admitted(&guest(json!({"tolerations": own}))).unwrap();
        assert_eq!(pod["spec"]["tolerations"], after);
    }
}

#[test]
fn what_cannot_be_is_refused_with_its_path() {
    for (spec, error) in [
        (json!({"containers": []}), "spec.containers: is empty"),
        (json!({"containers": null}), "spec.containers: is empty"),
        (json!({"containers": "x"}), "spec.containers: must be a list"),
        (json!({"containers": [1]}), "spec.containers[0]: must be an object"),
        (json!({"containers": [{"resources": []}]}), "spec.containers[0].resources: must be an object"),
        (
            json!({"containers": [{"resources": {"limits": 1}}]}),
            "spec.containers[0].resources.limits: must be an object",
        ),
        (json!({"affinity": {"nodeAffinity": 1}}), "spec.affinity.nodeAffinity: must be an object"),
        (json!({"tolerations": {}}), "spec.tolerations: must be a list"),
        (
            json!({"resources": {"limits": {"memory": "1Gi"}}}),
            "spec.resources.limits[memory]: is 1Gi, less than the 24Gi that",
        ),
    ] {
        let found = admitted(&guest(spec)).unwrap_err().to_string();
        assert!(found.starts_with(error), "{found}");
    }
    assert!(admitted(&json!(7)).is_err());
    assert!(admitted(&json!({"metadata": 1})).is_err());
    // More, for its other containers, or what isn't a quantity: another check's.
    let whole = json!({"resources": {"requests": {"cpu": 3, "memory": "x"}, "limits": null}});
    assert!(admitted(&guest(whole)).is_ok());
    let as_much = json!({"resources": {"limits": {"cpu": "2", "memory": "24Gi"}}});
    assert!(admitted(&guest(as_much)).is_ok());
}

#[test]
fn a_guest_does_not_outgrow_its_slot() {
    let sized = |cpu: &str, memory: &str| {
        let of = json!({"cpu": cpu, "memory": memory});
        guest(
            json!({"containers": [{"name": "a", "resources": {"requests": of, "limits": of}}, {"name": "b"}]}),
        )
    };
    let large = large();
    let old = sized("2", "24Gi");
    for (new, grows) in [
        (sized("2", "24Gi"), None),
        (sized("1", "1Gi"), None),
        (sized("2001m", "24Gi"), Some("spec.containers[0].resources.requests[cpu]: grows to 2001m")),
        (sized("1", "25Gi"), Some("spec.containers[0].resources.requests[memory]: grows to 25Gi")),
    ] {
        let found = outgrown(&new, &old, Some(&large)).map(|error| error.to_string());
        assert_eq!(found.is_some(), grows.is_some(), "{found:?}");
        assert!(found.unwrap_or_default().starts_with(grows.unwrap_or_default()));
    }
    // Back to what it was; and what had more before us keeps it.
    assert_eq!(outgrown(&old, &sized("1", "1Gi"), Some(&large)), None);
    assert_eq!(outgrown(&sized("4", "1Gi"), &sized("4", "1Gi"), Some(&large)), None);
    assert!(outgrown(&old, &sized("1", "1Gi"), None).is_some());
    assert_eq!(outgrown(&json!(1), &json!({"spec": []}), Some(&large)), None);
    let whole = guest(json!({"resources": {"limits": {"cpu": "9"}}}));
    assert!(outgrown(&whole, &old, Some(&large)).unwrap().path.starts_with("spec.resources"));
}

/// JSON with the keys of a Pod.
fn anything() -> impl Strategy<Value = Value> {
    const KEYS: &str = "spec metadata labels containers resources requests limits cpu memory name affinity \
        nodeAffinity requiredDuringSchedulingIgnoredDuringExecution nodeSelectorTerms matchExpressions matchFields \
        key operator values tolerations nvidia.com/gpu annotations";
    let keys: Vec<&str> = KEYS
        .split_whitespace()
        .chain([keys::INJECTING_CONTAINER, keys::DEFAULT_CONTAINER, keys::INJECTED_CONTAINER])
        .collect();
    let texts = vec!["1Gi", "2", "b", "In", "Exists", "1e400", ""];
    let of = |all| prop::sample::select(all).prop_map(str::to_owned);
    outrigger_cases::any::json(of(texts), of(keys), 9)
}

proptest! {
    #[test]
    fn any_json_is_answered(spec in anything(), pod in anything(), old in anything()) {
        let mut whole = guest(json!({}));
        json_patch::merge(&mut whole["spec"], &spec);
        for pod in [&whole, &pod] {
            // It checks that the patch applies and that once is enough.
            let _ = admitted(pod);
            let _ = outgrown(pod, &old, Some(&large()));
        }
    }
}

#[test]
fn the_steps_of_a_resize_grow_with_the_containers_and_no_faster() {
    let pod = |size: usize| {
        let containers: Vec<Value> = (0..size).map(|i| json!({"name": format!("c{i}")})).collect();
        json!({"spec": {"containers": containers}})
    };
    crate::steps::assert_nearly_linear(pod, |pod| assert_eq!(outgrown(pod, pod, Some(&large())), None));
}
