use serde_json::{Value, json};

use super::*;

fn paths(spec: &Value) -> Vec<String> {
    faults(spec, "spec").into_iter().map(|fault| fault.path).collect()
}

/// A claim with one request, changed by a merge patch.
fn with(change: &Value) -> Value {
    let mut request = json!({"name": "a", "exactly": {"deviceClassName": "crypto.example.com"}});
    json_patch::merge(&mut request, change);
    json!({"devices": {"requests": [request]}})
}

fn exactly(change: Value) -> Value {
    with(&json!({"exactly": change}))
}

#[test]
fn what_the_api_server_takes() {
    for good in [
        json!(null),
        json!({}),
        json!({"devices": null}),
        json!({"devices": {"requests": []}}),
        exactly(json!({"allocationMode": "All", "count": 0})),
        exactly(json!({"count": 1_000_000, "adminAccess": true})),
        exactly(json!({"selectors": [{"cel": {"expression": "true"}}]})),
        exactly(json!({"tolerations": vec![json!({"operator": "Exists"}); 40]})),
        exactly(
            json!({"tolerations": [{"key": "a/b", "value": "", "effect": "NoExecute", "tolerationSeconds": -1}]}),
        ),
        exactly(json!({"capacity": {"requests": {"?": "1Gi", "b": 2}}})),
        with(&json!({"exactly": null, "firstAvailable": [{"name": "x", "deviceClassName": "a"},
            {"name": "y", "deviceClassName": "a", "count": 3}]})),
        json!({"devices": {"constraints": [{"matchAttribute": "Example.com/x", "distinctAttribute": ""},
            {"distinctAttribute": "a/b/c"}]}}),
        json!({"devices": {"config": [{"opaque": {"driver": "D.example", "parameters": {}}}]}}),
    ] {
        assert_eq!(paths(&good), Vec::<String>::new(), "{good}");
    }
}

#[test]
fn what_the_api_server_refuses_with_its_paths() {
    let long = "x".repeat(MAX_EXPRESSION + 1);
    let constraints = |all: Value| json!({"devices": {"constraints": all}});
    let configurations = |all: Value| json!({"devices": {"config": all}});
    assert_eq!(paths(&json!([])), ["spec"]);
    assert_eq!(paths(&json!({"devices": []})), ["spec.devices"]);
    for (bad, wanted) in [
        (json!({"devices": {"requests": {}}}), "requests"),
        (json!({"devices": {"requests": vec![json!({}); 33]}}), "requests"),
        (with(&json!({"name": "A"})), "requests[0].name"),
        (with(&json!({"name": "a".repeat(64)})), "requests[0].name"),
        (with(&json!({"exactly": null})), "requests[0]"),
        (with(&json!({"firstAvailable": [{}]})), "requests[0]"),
        (with(&json!({"exactly": 1})), "requests[0].exactly"),
        (with(&json!({"firstAvailable": {}})), "requests[0].firstAvailable"),
        (with(&json!({"firstAvailable": [1]})), "requests[0].firstAvailable[0]"),
        (with(&json!({"exactly": null, "firstAvailable": {}})), "requests[0].firstAvailable"),
        (exactly(json!({"deviceClassName": null})), "requests[0].exactly.deviceClassName"),
        (exactly(json!({"deviceClassName": "A"})), "requests[0].exactly.deviceClassName"),
        (exactly(json!({"count": -1})), "requests[0].exactly.count"),
        (exactly(json!({"count": 1.5})), "requests[0].exactly.count"),
        (exactly(json!({"allocationMode": "All", "count": 1})), "requests[0].exactly.count"),
        (exactly(json!({"allocationMode": "Some"})), "requests[0].exactly.allocationMode"),
        (exactly(json!({"adminAccess": "yes"})), "requests[0].exactly.adminAccess"),
        (exactly(json!({"selectors": [{}]})), "requests[0].exactly.selectors[0].cel"),
        (exactly(json!({"selectors": [{"cel": {}}]})), "requests[0].exactly.selectors[0].cel.expression"),
        (
            exactly(json!({"selectors": [{"cel": {"expression": long}}]})),
            "requests[0].exactly.selectors[0].cel.expression",
        ),
        (exactly(json!({"selectors": vec![json!({}); 33]})), "requests[0].exactly.selectors"),
        (
            exactly(json!({"tolerations": [{"operator": "Exists", "value": "x"}]})),
            "requests[0].exactly.tolerations[0].value",
        ),
        (exactly(json!({"tolerations": [{"key": "/"}]})), "requests[0].exactly.tolerations[0].key"),
        (
            exactly(json!({"tolerations": [{"operator": "In"}]})),
            "requests[0].exactly.tolerations[0].operator",
        ),
        (exactly(json!({"tolerations": [{"effect": "No"}]})), "requests[0].exactly.tolerations[0].effect"),
        (exactly(json!({"capacity": {"requests": {"a": "1x"}}})), "requests[0].exactly.capacity.requests[a]"),
        (
            with(&json!({"exactly": null, "firstAvailable": vec![json!({"name": "x"}); 9]})),
            "requests[0].firstAvailable",
        ),
        (
            with(&json!({"exactly": null, "firstAvailable": [{"name": "x", "deviceClassName": "a"},
                {"name": "x", "deviceClassName": "a"}]})),
            "requests[0].firstAvailable[1]",
        ),
        (constraints(json!([{}])), "constraints[0]"),
        (constraints(json!([{"matchAttribute": "x"}])), "constraints[0].matchAttribute"),
        (constraints(json!([{"distinctAttribute": "a/1"}])), "constraints[0].distinctAttribute"),
        (constraints(json!([{"requests": ["a"], "matchAttribute": "a/b"}])), "constraints[0].requests[0]"),
        (configurations(json!([{}])), "config[0].opaque"),
        (configurations(json!([{"opaque": {"driver": "d"}}])), "config[0].opaque.parameters"),
        (
            configurations(json!([{"opaque": {"driver": "d", "parameters": [1]}}])),
            "config[0].opaque.parameters",
        ),
        (
            configurations(json!([{"opaque": {"driver": "d", "parameters": {"a": long}}}])),
            "config[0].opaque.parameters",
        ),
        (configurations(json!([{"opaque": {"driver": "d.", "parameters": {}}}])), "config[0].opaque.driver"),
    ] {
        assert_eq!(paths(&bad), [format!("spec.devices.{wanted}")], "{bad}");
    }
}

#[test]
fn references_name_requests_and_their_alternatives() {
    let of = |names: Value| {
        json!({"devices": {
            "requests": [{"name": "a", "exactly": {"deviceClassName": "c"}},
                {"name": "b", "firstAvailable": [{"name": "x", "deviceClassName": "c"}]}],
            "constraints": [{"requests": names, "matchAttribute": "d/e"}]}})
    };
    assert_eq!(paths(&of(json!(["a", "b", "b/x"]))), Vec::<String>::new());
    for bad in ["a/x", "b/y", "c", "", "b/x/y", "/x"] {
        assert_eq!(paths(&of(json!([bad]))), ["spec.devices.constraints[0].requests[0]"], "{bad}");
    }
    assert_eq!(paths(&of(json!(["a", "a"]))), ["spec.devices.constraints[0].requests[1]"]);
    let twice =
        json!({"devices": {"requests": vec![json!({"name": "a", "exactly": {"deviceClassName": "c"}}); 2]}});
    assert_eq!(paths(&twice), ["spec.devices.requests[1]"]);
}

#[test]
fn what_can_never_be_allocated_is_a_warning() {
    let said = |spec: &Value| {
        assert_eq!(faults(spec, "spec"), [], "{spec}");
        warnings(spec)
    };
    assert_eq!(said(&exactly(json!({"count": 32}))), Vec::<String>::new());
    let two =
        json!([{"name": "x", "deviceClassName": "a", "count": 32}, {"name": "y", "deviceClassName": "a"}]);
    assert_eq!(said(&with(&json!({"exactly": null, "firstAvailable": two}))), Vec::<String>::new());
    for (spec, word) in [
        (json!({}), "is empty"),
        (exactly(json!({"count": 33})), "ask for 33 devices, a claim gets 32 at most: never allocated"),
        (
            json!({"devices": {"requests": [{"name": "a", "exactly": {"deviceClassName": "c", "count": 32}},
                {"name": "b", "exactly": {"deviceClassName": "c", "allocationMode": "All"}}]}}),
            "at least 33",
        ),
        (
            with(
                &json!({"exactly": null, "firstAvailable": [{"name": "x", "deviceClassName": "a", "count": 33},
                {"name": "y", "deviceClassName": "a"}]}),
            ),
            "firstAvailable[0]: never chosen",
        ),
        (exactly(json!({"tolerations": vec![json!({"operator": "Exists"}); 17]})), "are 17"),
        (exactly(json!({"tolerations": [{}]})), "use operator Exists"),
        (exactly(json!({"capacity": {"requests": {"a b": 1}}})), "no device has a capacity \"a b\""),
        (
            json!({"devices": {"requests": [{"name": "a", "exactly": {"deviceClassName": "c"}}],
                "constraints": [{"matchAttribute": "a/b", "distinctAttribute": "a/b"}]}}),
            "only the former counts",
        ),
        (
            json!({"devices": {"requests": [{"name": "a", "exactly": {"deviceClassName": "c"}}],
                "constraints": [{"matchAttribute": "a/b/c"}]}}),
            "several slashes",
        ),
    ] {
        let said = said(&spec);
        assert!(said.len() == 1 && said[0].contains(word), "{spec}: {said:?}");
    }
    assert_eq!(
        warnings(&json!({"devices": {"requests": "x"}})).len(),
        1,
        "nothing panics on what is refused"
    );
}

#[test]
fn fields_that_older_api_servers_drop() {
    let spec = json!({"devices": {"requests": [{"name": "a", "exactly": {"tolerations": [{}], "capacity": {}}},
            {"name": "b", "firstAvailable": [{"tolerations": []}, {"tolerations": [{}]}]}],
        "constraints": [{"distinctAttribute": "a/b"}]}});
    let told: Vec<(String, &str)> = gated(&spec).into_iter().map(|g| (g.path, g.gate)).collect();
    let wanted = [
        ("devices.requests[0].exactly.tolerations", "DRADeviceTaints"),
        ("devices.requests[0].exactly.capacity", "DRAConsumableCapacity"),
        ("devices.requests[1].firstAvailable[1].tolerations", "DRADeviceTaints"),
        ("devices.constraints[0].distinctAttribute", "DRAConsumableCapacity"),
    ];
    assert_eq!(told, wanted.map(|(path, gate)| (path.to_owned(), gate)));
}

#[test]
fn a_pods_claims() {
    let paths = |spec: Value| -> Vec<String> {
        pod_faults(&spec, "spec").into_iter().map(|fault| fault.path).collect()
    };
    let used = |claims: Value| {
        json!({"resourceClaims": [{"name": "d", "resourceClaimName": "x"}, {"name": "e", "resourceClaimTemplateName": "t"}],
            "containers": [{"name": "c", "resources": {"claims": claims}}]})
    };
    for good in [
        json!({}),
        used(json!([{"name": "d"}, {"name": "e", "request": "r"}, {"name": "e", "request": "s"}])),
    ] {
        assert_eq!(paths(good.clone()), Vec::<String>::new(), "{good}");
    }
    let claims = |all: Value| json!({"resourceClaims": all});
    for (bad, wanted) in [
        (claims(json!([{"name": "d"}])), "resourceClaims[0]"),
        (
            claims(json!([{"name": "d", "resourceClaimName": "x", "resourceClaimTemplateName": "t"}])),
            "resourceClaims[0]",
        ),
        (claims(json!([{"name": "D", "resourceClaimName": "x"}])), "resourceClaims[0].name"),
        (claims(json!([{"name": "d", "resourceClaimName": ""}])), "resourceClaims[0].resourceClaimName"),
        (claims(json!([{"name": "d", "resourceClaimName": 1}])), "resourceClaims[0].resourceClaimName"),
        (
            claims(json!([{"name": "d", "resourceClaimName": "x"}, {"name": "d", "resourceClaimName": "y"}])),
            "resourceClaims[1].name",
        ),
        (used(json!([{"name": "f"}])), "containers[0].resources.claims[0]"),
        (used(json!([{}])), "containers[0].resources.claims[0]"),
        (used(json!([{"name": "d"}, {"name": "d", "request": "r"}])), "containers[0].resources.claims[1]"),
        (used(json!([{"name": "d", "request": "r"}, {"name": "d"}])), "containers[0].resources.claims[1]"),
        (used(json!([{"name": "d", "request": "R"}])), "containers[0].resources.claims[0].request"),
    ] {
        assert_eq!(paths(bad.clone()), [format!("spec.{wanted}")], "{bad}");
    }
}
