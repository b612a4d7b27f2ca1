use serde_json::{Value, json};

use super::report::{Phase, Report};
use crate::document::Readable;
use crate::state::State;

fn state(objects: &[Value]) -> State {
    State::of_text("f", &objects.iter().map(ToString::to_string).collect::<String>()).unwrap()
}

fn tenant(id: &str) -> Value {
    json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": id}, "spec": {}})
}

fn object(kind: &str, name: &str, more: Value) -> Value {
    let version = if kind == "Pod" { "v1" } else { "resource.k8s.io/v1" };
    let namespaced = kind != "DeviceClass";
    let mut object = json!({"apiVersion": version, "kind": kind, "metadata": {"name": name}});
    if namespaced {
        object["metadata"]["namespace"] = json!("tenant-blue");
    }
    json_patch::merge(&mut object, &more);
    object
}

fn claim(name: &str, more: Value) -> Value {
    let request = json!({"name": "d", "exactly": {"deviceClassName": "crypto"}});
    let mut claim = object("ResourceClaim", name, json!({"spec": {"devices": {"requests": [request]}}}));
    json_patch::merge(&mut claim, &more);
    claim
}

fn allocation() -> Value {
    json!({"devices": {"results": [{"request": "d", "driver": "crypto.example.com", "pool": "dpu", "device": "c1"}]},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [
            {"key": "metadata.name", "operator": "In", "values": ["dpu"]}]}]}})
}

fn reserved(pod: &str) -> Value {
    json!({"status": {"allocation": allocation(), "reservedFor": [{"resource": "pods", "name": pod, "uid": "u"}]}})
}

fn one(objects: &[Value]) -> super::report::Claim {
    let mut all = vec![tenant("blue")];
    all.extend_from_slice(objects);
    let mut report = Report::new(&state(&all), None, None, Vec::new()).unwrap();
    assert_eq!(report.claims.len(), 1);
    report.claims.remove(0)
}

#[test]
fn how_a_claim_is() {
    let pod = |phase: &str| object("Pod", "p", json!({"status": {"phase": phase}}));
    for (objects, state) in [
        (vec![claim("c", json!({}))], Phase::Pending),
        (vec![claim("c", json!({"status": {"allocation": allocation()}}))], Phase::Allocated),
        (vec![claim("c", reserved("p"))], Phase::Reserved),
        (vec![claim("c", reserved("p")), pod("Pending")], Phase::Reserved),
        (vec![claim("c", reserved("p")), pod("Running")], Phase::InUse),
        (
            vec![claim("c", json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}))],
            Phase::Deleting,
        ),
    ] {
        let claim = one(&objects);
        assert_eq!(claim.state, state, "{objects:?}");
        assert_eq!(claim.reason.is_some(), state == Phase::Pending, "{objects:?}");
    }
    let claim = one(&[claim("c", reserved("p"))]);
    assert_eq!((claim.node.as_deref(), claim.pods.as_slice()), (Some("dpu"), &["p".to_owned()][..]));
    assert_eq!(claim.devices[0].path(), "crypto.example.com/dpu/c1");
}

#[test]
fn a_claim_may_be_reserved_for_others_than_pods() {
    let group = json!({"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "ring", "uid": "g"});
    let of = |more: &[Value], reserved_for: Value| {
        let status = json!({"status": {"allocation": allocation(), "reservedFor": reserved_for}});
        one(&[&[claim("c", status)], more].concat())
    };
    let reserved = of(&[], json!([group]));
    assert_eq!((reserved.state, reserved.pods.len(), reserved.consumers.len()), (Phase::Reserved, 0, 1));
    assert_eq!(serde_json::to_value(&reserved.consumers).unwrap(), json!([group]));
    // Its Pods name the claim in their spec, or in their status where it was made for the group.
    let named = json!({"spec": {"resourceClaims": [{"name": "d", "resourceClaimName": "c"}]}});
    let made = json!({"status": {"resourceClaimStatuses": [{"name": "d", "resourceClaimName": "c"}]}});
    for more in [named, made] {
        let pod = |phase: &str| {
            let mut pod = object("Pod", "p", more.clone());
            pod["status"]["phase"] = json!(phase);
            pod
        };
        assert_eq!(of(&[pod("Running")], json!([group])).state, Phase::InUse);
        let waits = of(&[pod("Pending")], json!([group]));
        assert_eq!((waits.state, waits.pods), (Phase::Reserved, vec!["p".to_owned()]));
    }
    // Pods of another API aren't Pods.
    let other = json!({"apiGroup": "example.com", "resource": "pods", "name": "p", "uid": "u"});
    let running = object("Pod", "p", json!({"status": {"phase": "Running"}}));
    let claim = of(&[running], json!([other]));
    assert_eq!(
        (claim.state, claim.pods.len(), super::device::others(&claim.consumers).join("")),
        (Phase::Reserved, 0, "pods.example.com/p".into())
    );
}

#[test]
fn all_that_an_allocation_says_is_shown() {
    let mut allocation = allocation();
    let config = |source: &str, requests: Value| {
        json!({"source": source, "requests": requests,
        "opaque": {"driver": "crypto.example.com", "parameters": {"mode": "fast"}}})
    };
    let more = json!({"allocationTimestamp": "2026-01-01T00:00:00Z", "devices": {
        "config": [config("FromClass", json!([])), config("FromClaim", json!(["d"]))],
        "results": [{"request": "d", "driver": "crypto.example.com", "pool": "dpu", "device": "c1",
            "bindingConditions": ["Attached", "Keyed"], "bindingFailureConditions": ["Broken"],
            "tolerations": [{"key": "worn", "operator": "Exists", "effect": "NoSchedule"}, {"key": "a", "value": "b"}]}]}});
    json_patch::merge(&mut allocation, &more);
    let condition = json!({"type": "Attached", "status": "True", "reason": "Done", "message": ""});
    let statuses = json!([{"driver": "crypto.example.com", "pool": "dpu", "device": "c1", "data": {"slot": 3},
        "conditions": [condition]}]);
    let claim =
        claim("c", json!({"status": {"allocation": allocation, "devices": statuses, "reservedFor": []}}));
    let report = Report::new(&state(&[tenant("blue"), claim]), None, None, Vec::new()).unwrap();
    let text = report.document().uncoloured();
    for line in [
        "    crypto.example.com/dpu/c1: Attached True Done, tolerates worn:NoSchedule and a=b, Keyed isn't written yet, data {\"slot\":3}\n",
        "    configuration of the DeviceClass for crypto.example.com: {\"mode\":\"fast\"}\n",
        "    configuration of the claim for crypto.example.com for d: {\"mode\":\"fast\"}\n",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    let claim = serde_json::to_value(&report.claims[0]).unwrap();
    assert_eq!(claim["allocatedAt"], "2026-01-01T00:00:00Z");
    assert_eq!(
        claim["config"][1],
        json!({"source": "FromClaim", "requests": ["d"], "driver": "crypto.example.com",
        "parameters": {"mode": "fast"}})
    );
    let device = &claim["devices"][0];
    assert_eq!(
        (&device["bindingConditions"], &device["bindingFailureConditions"], &device["data"]),
        (&json!(["Attached", "Keyed"]), &json!(["Broken"]), &json!({"slot": 3}))
    );
    assert_eq!(device["tolerations"].as_array().unwrap().len(), 2);
}

#[test]
fn a_claim_made_for_a_companion_has_its_rule_and_workload() {
    let owner = json!({"metadata": {"ownerReferences": [
        {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": true}]}});
    let labels = json!({"metadata": {"labels": {"outrigger.dev/rule": "r", "outrigger.dev/workload": "w"}}});
    let made = one(&[claim("p-d-x7k2m", owner), object("Pod", "p", labels.clone())]);
    assert_eq!((made.rule.as_deref(), made.workload.as_deref()), (Some("r"), Some("w")));
    let own = one(&[claim("c", labels)]);
    assert_eq!((own.rule.as_deref(), own.workload.as_deref()), (Some("r"), Some("w")));
    assert!(own.pods.is_empty());
    let user = json!({"metadata": {"labels": {"outrigger.dev/rule": "r", "outrigger.dev/workload": "w"}},
        "spec": {"resourceClaims": [{"name": "d", "resourceClaimName": "c"}]}});
    let shared = one(&[claim("c", json!({})), object("Pod", "p", user)]);
    assert_eq!((shared.rule, shared.workload, shared.pods), (None, None, vec!["p".to_owned()]));
}

#[test]
fn why_a_claim_is_pending() {
    let uses = |more: Value| {
        let mut pod = object(
            "Pod",
            "p",
            json!({"spec": {"resourceClaims": [{"name": "d", "resourceClaimName": "c"}]}}),
        );
        json_patch::merge(&mut pod, &more);
        pod
    };
    let plain = claim("c", json!({}));
    let unscheduled = json!({"status": {"conditions": [
        {"type": "PodScheduled", "status": "False", "message": "0/3 nodes: cannot allocate all claims"}]}});
    let many = json!({"spec": {"devices": {"requests": [{"name": "d", "exactly": {"deviceClassName": "crypto", "count": 40}}]}}});
    for (objects, words) in [
        (vec![plain.clone()], "no Pod uses it"),
        (vec![plain.clone(), uses(json!({}))], "Pod p isn't scheduled yet"),
        (
            vec![plain.clone(), uses(unscheduled)],
            "Pod p isn't scheduled: 0/3 nodes: cannot allocate all claims",
        ),
        (vec![plain.clone(), uses(json!({"spec": {"nodeName": "n"}}))], "bound without the scheduler"),
        (
            vec![plain.clone(), uses(json!({"spec": {"schedulingGates": [{"name": "g"}]}}))],
            "waits for its scheduling gates: g",
        ),
        (vec![claim("c", many)], "a claim gets 32 at most"),
        (vec![plain, object("DeviceClass", "other", json!({}))], "request d: there is no DeviceClass crypto"),
    ] {
        let reason = one(&objects).reason.unwrap();
        assert!(reason.contains(words), "{words}: {reason}");
    }
}

#[test]
fn only_the_claims_that_are_meant() {
    let green = claim("g", json!({"metadata": {"namespace": "tenant-green"}}));
    let elsewhere = claim("e", json!({"metadata": {"namespace": "default"}}));
    let state = state(&[tenant("blue"), tenant("green"), claim("b", json!({})), green, elsewhere]);
    let names = |tenant: Option<&str>, namespace: Option<&str>| -> Result<Vec<String>, String> {
        let report = Report::new(&state, tenant, namespace, Vec::new()).map_err(|error| error.to_string())?;
        Ok(report.claims.into_iter().map(|claim| claim.name).collect())
    };
    assert_eq!(names(None, None).unwrap(), ["b", "g"]);
    assert_eq!(names(Some("green"), None).unwrap(), ["g"]);
    assert_eq!(names(None, Some("tenant-blue")).unwrap(), ["b"]);
    assert_eq!(
        names(Some("red"), None).unwrap_err(),
        "--tenant: there is no tenant red; there are blue, green"
    );
    assert_eq!(
        names(None, Some("default")).unwrap_err(),
        "--namespace: default is no tenant's namespace; there are tenant-blue, tenant-green"
    );
    let none = Report { notes: vec!["a note".into()], claims: Vec::new() };
    assert_eq!(none.document().uncoloured(), "note: a note\nno claims\n");
}

#[test]
fn a_pod_of_the_same_name_is_not_the_one_that_the_claim_is_reserved_for() {
    let pod =
        |uid: &str| object("Pod", "p", json!({"metadata": {"uid": uid}, "status": {"phase": "Running"}}));
    let same = one(&[claim("c", reserved("p")), pod("u")]);
    assert_eq!((same.state, same.former_pods.len()), (Phase::InUse, 0));
    let other = one(&[claim("c", reserved("p")), pod("v")]);
    assert_eq!((other.state, other.former_pods.as_slice()), (Phase::Reserved, &["p".to_owned()][..]));
    assert!(other.pods.is_empty(), "{:?}", other.pods);
}

#[test]
fn what_a_driver_says_of_a_device_is_shown_at_that_device() {
    let mut made = reserved("p");
    let results = &mut made["status"]["allocation"]["devices"]["results"];
    results[0]["shareID"] = json!("s1");
    results[0]["adminAccess"] = json!(true);
    results[0]["consumedCapacity"] = json!({"memory": "1Gi"});
    let device = json!({"driver": "crypto.example.com", "pool": "dpu", "device": "c1", "shareID": "s1",
        "conditions": [{"type": "Ready", "status": "False", "reason": "Reset", "message": "resets",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        "networkData": {"interfaceName": "net1", "ips": ["10.0.0.1/24"], "hardwareAddress": "aa:bb"}});
    let mut another = device.clone();
    another["shareID"] = json!("s2");
    another["conditions"][0]["message"] = json!("of another share");
    made["status"]["devices"] = json!([another, device]);
    let found = one(&[claim("c", made)]);
    assert_eq!(
        found.devices[0].more(),
        "share s1, admin access, memory 1Gi, net1, aa:bb, 10.0.0.1/24, Ready False Reset resets"
    );
    let json = serde_json::to_value(&found).unwrap();
    assert_eq!(
        (&json["devices"][0]["shareID"], &json["devices"][0]["network"]["ips"][0]),
        (&json!("s1"), &json!("10.0.0.1/24"))
    );

    let plain = serde_json::to_value(one(&[claim("c", reserved("p"))])).unwrap();
    assert_eq!(
        plain["devices"],
        json!([{"request": "d", "driver": "crypto.example.com", "pool": "dpu", "device": "c1"}])
    );
}
