use serde_json::json;

use super::super::allocation::{ClaimQuestion, Devices, User};
use super::*;

const NONE_FITS: &str = "0/1 nodes are available: 1 cannot allocate all claims";

fn slice(devices: &Value) -> Value {
    json!({"spec": {"driver": "d.test", "nodeName": "a", "pool": {"name": "a", "generation": 1}, "devices": devices}})
}

/// A claim of these requests that has these devices.
fn claim(name: &str, requests: Value, results: &[Value]) -> Value {
    json!({"metadata": {"name": name, "namespace": "n"}, "spec": {"devices": {"requests": requests}},
        "status": {"allocation": {"devices": {"results": results}}}})
}

fn one(more: Value) -> Value {
    let mut exactly = json!({"deviceClassName": "crypto"});
    json_patch::merge(&mut exactly, &more);
    json!([{"name": "r", "exactly": exactly}])
}

fn taken(device: &str) -> Value {
    json!({"driver": "d.test", "pool": "a", "device": device})
}

/// The reasons for which a claim with this spec isn't allocated, without the scheduler's words.
fn why(slices: &[Value], rules: &[Value], claims: &[Value], spec: Value) -> Vec<String> {
    let classes = [json!({"metadata": {"name": "crypto"}})];
    let devices = Devices::read(Some(slices.iter()), Some(classes.iter()), Some(claims.iter()), rules.iter());
    let pod = json!({"status": {"conditions": [{"type": "PodScheduled", "status": "False", "message": NONE_FITS}]}});
    let asked = ClaimQuestion { spec: Some(spec), user: User::Pod(&pod), ..ClaimQuestion::default() };
    let mut reasons = devices.explain(&asked, Some(&["a"])).reasons;
    assert!(reasons.pop().unwrap().ends_with(NONE_FITS));
    reasons
}

fn spec(requests: Value) -> Value {
    json!({"devices": {"requests": requests}})
}

#[test]
fn taints_are_named_and_tolerations_count() {
    let worn = json!({"key": "worn", "value": "yes", "effect": "NoSchedule"});
    let tainted = |taint: &Value| [slice(&json!([{"name": "d0", "taints": [taint]}]))];
    let untolerated = ["of 1 devices of a 1 has the taint worn=yes:NoSchedule, which isn't tolerated"];
    let selectors =
        ["1 of 1 devices of a are free, and too few of them fit the selectors of r (DeviceClass crypto)"];
    let tolerating = |toleration: Value| spec(one(json!({"tolerations": [toleration]})));
    for (toleration, expected) in [
        (json!({"key": "worn", "value": "yes"}), selectors),
        (json!({"key": "worn", "operator": "Exists"}), selectors),
        (json!({"operator": "Exists"}), selectors),
        (json!({"key": "worn", "operator": "Exists", "effect": "NoSchedule"}), selectors),
        (json!({"key": "worn", "operator": "Exists", "effect": "NoExecute"}), untolerated),
        (json!({"key": "worn", "value": "no"}), untolerated),
        (json!({"key": "other", "operator": "Exists"}), untolerated),
    ] {
        assert_eq!(why(&tainted(&worn), &[], &[], tolerating(toleration.clone())), expected, "{toleration}");
    }
    assert_eq!(why(&tainted(&worn), &[], &[], spec(one(json!({})))), untolerated);
    let harmless = json!({"key": "worn", "effect": "None"});
    assert_eq!(why(&tainted(&harmless), &[], &[], spec(one(json!({})))), selectors);
}

#[test]
fn a_taint_rule_taints_the_devices_that_it_selects() {
    let slices = [slice(&json!([{"name": "d0"}]))];
    let rule = |selector: Value| {
        [json!({"metadata": {"name": "drain"}, "spec": {"deviceSelector": selector,
            "taint": {"key": "drain", "effect": "NoExecute"}}})]
    };
    let of = |selector: Value| why(&slices, &rule(selector), &[], spec(one(json!({})))).remove(0);
    for selector in [json!({}), json!({"driver": "d.test"}), json!({"pool": "a", "device": "d0"})] {
        let expected = "of 1 devices of a 1 has the taint drain:NoExecute (DeviceTaintRule drain), which isn't tolerated";
        assert_eq!(of(selector.clone()), expected, "{selector}");
    }
    for selector in [Value::Null, json!({"driver": "x"}), json!({"device": "d1"})] {
        assert!(of(selector.clone()).ends_with("fit the selectors of r (DeviceClass crypto)"), "{selector}");
    }
    let by_cel = of(json!({"selectors": [{"cel": {"expression": "true"}}]}));
    assert!(by_cel.ends_with("(DeviceClass crypto), or the selectors of DeviceTaintRule drain"), "{by_cel}");
}

#[test]
fn a_shared_device_is_free_as_far_as_its_capacity_is() {
    let shared = |policy: Value| {
        [slice(&json!([{"name": "d0", "allowMultipleAllocations": true,
            "capacity": {"memory": {"value": "16Gi", "requestPolicy": policy}}}]))]
    };
    let share = |amount: &str| {
        let mut share = taken("d0");
        share["shareID"] = json!(amount);
        share["consumedCapacity"] = json!({"memory": amount});
        share
    };
    let holders = [claim("x", json!([]), &[share("8Gi")]), claim("y", json!([]), &[share("4Gi")])];
    let of = |policy: Value, wants: Value| {
        let mut reasons = why(&shared(policy), &[], &holders, spec(one(wants)));
        reasons.remove(0)
    };
    let asks = |amount: &str| json!({"capacity": {"requests": {"memory": amount}}});
    let is_free = |reason: String| reason.starts_with("1 of 1 devices of a are free");
    let short = |needed: &str| {
        format!("of 1 devices of a 1 has too little capacity: 4Gi of 16Gi memory left, {needed} needed")
    };
    let none = json!(null);
    assert!(is_free(of(none.clone(), asks("4Gi"))));
    assert_eq!(of(none.clone(), asks("5Gi")), short("5Gi"));
    // Without asking it takes the default, else all.
    assert_eq!(of(none.clone(), json!({})), short("16Gi"));
    assert!(is_free(of(json!({"default": "1Gi"}), json!({}))));
    // What it asks for is rounded up.
    assert_eq!(of(json!({"default": "1Gi", "validValues": ["1Gi", "8Gi"]}), asks("2Gi")), short("8Gi"));
    let steps = json!({"default": "1Gi", "validRange": {"min": "1Gi", "step": "3Gi"}});
    assert!(is_free(of(steps.clone(), asks("2Gi"))));
    assert_eq!(of(steps, asks("5Gi")), short("7516192768"));
    assert_eq!(
        of(none, json!({"capacity": {"requests": {"cores": 1}}})),
        "of 1 devices of a 1 has no capacity cores"
    );
}

#[test]
fn each_cause_is_counted_and_each_request_named() {
    let worn = json!([{"key": "worn", "effect": "NoSchedule"}]);
    let slices =
        [slice(&json!([{"name": "d0"}, {"name": "d1", "taints": worn}, {"name": "d2"}, {"name": "d3"}]))];
    let holders = [claim("x", json!([]), &[taken("d0"), taken("d2")])];
    let two = one(json!({"count": 2}));
    assert_eq!(
        why(&slices, &[], &holders, spec(two.clone())),
        [
            "of 4 devices of a 2 are taken, by n/x; 1 has the taint worn:NoSchedule, which isn't tolerated; 1 is free, and 2 are needed"
        ]
    );
    let both = json!([two[0], {"name": "s", "exactly": {"deviceClassName": "crypto"}}]);
    let reasons = why(&slices, &[], &holders, spec(both));
    assert!(reasons.len() == 1 && reasons[0].starts_with("request r: of 4 devices"), "{reasons:?}");
    // One alternative that can be had is enough.
    let either = |more: Value| {
        spec(json!([{"name": "r", "firstAvailable": [
            {"name": "x", "deviceClassName": "crypto", "count": 2}, more]}]))
    };
    let reasons = why(&slices, &[], &holders, either(json!({"name": "y", "deviceClassName": "crypto"})));
    assert!(reasons[0].starts_with("1 of 4 devices of a are free"), "{reasons:?}");
    let reasons =
        why(&slices, &[], &holders, either(json!({"name": "y", "deviceClassName": "crypto", "count": 3})));
    assert!(reasons.len() == 2 && reasons[1].starts_with("request r/y: of 4 devices"), "{reasons:?}");
    // Administrative access has devices beside whoever has them.
    let admin = spec(one(json!({"adminAccess": true, "count": 3})));
    assert!(why(&slices, &[], &holders, admin)[0].starts_with("3 of 4 devices of a are free"));
}

#[test]
fn requests_that_are_too_many_together_are_counted() {
    let request = |name: &str| json!({"name": name, "exactly": {"deviceClassName": "crypto"}});
    let both = || spec(json!([request("r"), request("s")]));
    let of = |devices: Value| why(&[slice(&devices)], &[], &[], both()).remove(0);
    assert_eq!(of(json!([{"name": "d0"}])), "its requests ask for 2 devices, and 1 is free");
    assert!(of(json!([{"name": "d0"}, {"name": "d1"}])).starts_with("2 of 2 devices of a are free"));
    let shared = of(json!([{"name": "d0", "allowMultipleAllocations": true}]));
    assert!(shared.starts_with("1 of 1 devices of a are free"), "{shared}");
}

#[test]
fn constraints_are_named() {
    let device = |name: &str, numa: i64| json!({"name": name, "attributes": {"numa": {"int": numa}}});
    let slices = [slice(&json!([device("d0", 0), device("d1", 1), {"name": "d2"}]))];
    let with = |key: &str, name: &str, count: u64| {
        let mut spec = spec(one(json!({"count": count})));
        spec["devices"]["constraints"] = json!([{key: name}]);
        why(&slices, &[], &[], spec).remove(0)
    };
    for name in ["d.test/numa", "numa"] {
        let reason = with("matchAttribute", name, 2);
        let expected = format!(
            "the constraint matchAttribute {name} needs 2 devices, and at most 1 of those that are free have the same value"
        );
        assert_eq!(reason, expected);
    }
    let reason = with("distinctAttribute", "d.test/numa", 3);
    assert!(
        reason.starts_with("the constraint distinctAttribute d.test/numa needs 3 devices")
            && reason.contains("at most 2 of those"),
        "{reason}"
    );
    // It can be met, as far as selectors let it.
    let reason = with("distinctAttribute", "d.test/numa", 2);
    assert!(
        reason.ends_with("(DeviceClass crypto), or the constraint distinctAttribute d.test/numa"),
        "{reason}"
    );
}

#[test]
fn earlier_generations_of_a_pool_do_not_count_and_parts_share_counters() {
    let mut old = slice(&json!([{"name": "d0"}, {"name": "d1"}]));
    old["spec"]["pool"]["generation"] = json!(0);
    let parts = slice(&json!([{"name": "d0", "consumesCounters": [{"counterSet": "c"}]}]));
    let reasons = why(&[old, parts], &[], &[], spec(one(json!({}))));
    assert!(reasons[0].starts_with("1 of 1 devices of a are free"), "{reasons:?}");
    assert!(reasons[0].ends_with("or the counters that parts of one device share"), "{reasons:?}");
    let elsewhere = json!({"spec": {"driver": "d.test", "perDeviceNodeSelection": true, "pool": {"name": "p"},
        "devices": [{"name": "d0", "nodeName": "b"}]}});
    assert_eq!(why(&[elsewhere], &[], &[], spec(one(json!({})))), ["no driver publishes a device for a"]);
}
