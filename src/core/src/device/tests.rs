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
fn what_is_as_large_as_allowed_is_taken_and_one_more_is_not() {
    let of = |key: &str, value: Value| json!({"devices": {key: value}});
    let requests = |count: usize| {
        let request = |i: usize| json!({"name": format!("r{i}"), "exactly": {"deviceClassName": "a"}});
        of("requests", (0..count).map(request).collect())
    };
    let alternatives = |count: usize| {
        let alternative = |i: usize| json!({"name": format!("x{i}"), "deviceClassName": "a"});
        with(&json!({"exactly": null, "firstAvailable": (0..count).map(alternative).collect::<Vec<_>>()}))
    };
    let selectors = |count: usize, length: usize| {
        exactly(json!({"selectors": vec![json!({"cel": {"expression": "x".repeat(length)}}); count]}))
    };
    // Of two labels, because one has 63 bytes at most anyway.
    let domain = |length: usize| format!("d.{}", "d".repeat(length - 2));
    let configuration = |driver: usize, parameters: usize| {
        // Beside the text, `{"a":""}` has 8 bytes.
        let parameters = json!({"a": "x".repeat(parameters - 8)});
        json!({"opaque": {"driver": domain(driver), "parameters": parameters}})
    };
    let constraint =
        |of: usize, id: usize| json!({"matchAttribute": format!("{}/{}", domain(of), "i".repeat(id))});
    let constraints =
        |count: usize, domain, id| of("constraints", vec![constraint(domain, id); count].into());
    let configurations = |count: usize, driver, parameters| {
        of("config", vec![configuration(driver, parameters); count].into())
    };
    for (largest, larger) in [
        (requests(MAX_REQUESTS), requests(MAX_REQUESTS + 1)),
        (alternatives(MAX_ALTERNATIVES), alternatives(MAX_ALTERNATIVES + 1)),
        (selectors(MAX_SELECTORS, 1), selectors(MAX_SELECTORS + 1, 1)),
        (selectors(1, MAX_EXPRESSION), selectors(1, MAX_EXPRESSION + 1)),
        (constraints(MAX_CONSTRAINTS, 3, 1), constraints(MAX_CONSTRAINTS + 1, 3, 1)),
        (constraints(1, MAX_DRIVER, MAX_ID), constraints(1, MAX_DRIVER + 1, MAX_ID)),
        (constraints(1, MAX_DRIVER, MAX_ID), constraints(1, MAX_DRIVER, MAX_ID + 1)),
        (configurations(MAX_CONFIGURATIONS, 3, 8), configurations(MAX_CONFIGURATIONS + 1, 3, 8)),
        (configurations(1, MAX_DRIVER, MAX_PARAMETERS), configurations(1, MAX_DRIVER + 1, MAX_PARAMETERS)),
        (configurations(1, MAX_DRIVER, MAX_PARAMETERS), configurations(1, MAX_DRIVER, MAX_PARAMETERS + 1)),
    ] {
        assert_eq!(paths(&largest), Vec::<String>::new());
        assert_eq!(paths(&larger).len(), 1, "{:?}", paths(&larger));
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
    // A name that no request may have names none, also where one has it.
    let odd = json!({"devices": {"requests": [{"name": "A", "exactly": {"deviceClassName": "c"}}],
        "constraints": [{"requests": ["A"], "matchAttribute": "d/e"}]}});
    assert_eq!(paths(&odd), ["spec.devices.requests[0].name", "spec.devices.constraints[0].requests[0]"]);
    let twice =
        json!({"devices": {"requests": vec![json!({"name": "a", "exactly": {"deviceClassName": "c"}}); 2]}});
    assert_eq!(paths(&twice), ["spec.devices.requests[1]"]);
}

#[test]
fn a_toleration_of_a_value_has_one_that_labels_may_have() {
    let of = |value: &str| exactly(json!({"tolerations": [{"key": "a", "value": value}]}));
    assert_eq!(paths(&of("b")), Vec::<String>::new());
    assert_eq!(paths(&of("b c")), ["spec.devices.requests[0].exactly.tolerations[0].value"]);
}

/// The warnings about a claim that the API server takes.
fn said(spec: &Value) -> Vec<String> {
    assert_eq!(faults(spec, "spec"), [], "{spec}");
    warnings(spec)
}

#[test]
fn all_devices_of_a_pool_are_one_at_least() {
    let all = || json!({"name": "x", "deviceClassName": "c", "allocationMode": "All"});
    let exactly = || json!({"name": "a", "exactly": {"deviceClassName": "c", "allocationMode": "All"}});
    let alternative = || json!({"name": "b", "firstAvailable": [all()]});
    let counted = |count: u64| json!({"name": "c", "exactly": {"deviceClassName": "c", "count": count}});
    let warnings_about = |requests: &[Value]| said(&json!({"devices": {"requests": requests}}));
    assert_eq!(warnings_about(&[exactly(), alternative(), counted(30)]), Vec::<String>::new());
    for (requests, many) in [
        (vec![exactly(), alternative(), counted(32)], "at least 34"),
        (vec![alternative(), counted(32)], "at least 33"),
    ] {
        let warnings = warnings_about(&requests);
        assert!(warnings.len() == 1 && warnings[0].contains(many), "{warnings:?}");
    }
}

#[test]
fn what_can_never_be_allocated_is_a_warning() {
    assert_eq!(said(&exactly(json!({"count": 32}))), Vec::<String>::new());
    let two =
        json!([{"name": "x", "deviceClassName": "a", "count": 32}, {"name": "y", "deviceClassName": "a"}]);
    assert_eq!(said(&with(&json!({"exactly": null, "firstAvailable": two}))), Vec::<String>::new());
    for fine in [
        json!({"tolerations": vec![json!({"operator": "Exists"}); 16]}),
        json!({"tolerations": [{"key": "a", "value": "b"}]}),
        json!({"capacity": {"requests": {"a": 1, "example.com/a": 1}}}),
    ] {
        assert_eq!(said(&exactly(fine.clone())), Vec::<String>::new(), "{fine}");
    }
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
        // With nothing to choose from it is said once, of the whole claim.
        (
            with(
                &json!({"exactly": null, "firstAvailable": [{"name": "x", "deviceClassName": "a", "count": 33}]}),
            ),
            "devices.requests: ask for 33 devices",
        ),
        (exactly(json!({"tolerations": vec![json!({"operator": "Exists"}); 17]})), "are 17"),
        (exactly(json!({"tolerations": [{}]})), "use operator Exists"),
        (exactly(json!({"capacity": {"requests": {"a b": 1}}})), "no device has a capacity \"a b\""),
        (exactly(json!({"capacity": {"requests": {"d/1": 1}}})), "no device has a capacity \"d/1\""),
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
    let fields: Vec<(String, &str)> = gated(&spec).into_iter().map(|g| (g.path, g.gate)).collect();
    let wanted = [
        ("devices.requests[0].exactly.tolerations", "DRADeviceTaints"),
        ("devices.requests[0].exactly.capacity", "DRAConsumableCapacity"),
        ("devices.requests[1].firstAvailable[1].tolerations", "DRADeviceTaints"),
        ("devices.constraints[0].distinctAttribute", "DRAConsumableCapacity"),
    ];
    assert_eq!(fields, wanted.map(|(path, gate)| (path.to_owned(), gate)));
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
        // The use of a claim whose name is wrong is no second fault.
        (
            json!({"resourceClaims": [{"name": "D", "resourceClaimName": "x"}],
                "containers": [{"name": "c", "resources": {"claims": [{"name": "D"}]}}]}),
            "resourceClaims[0].name",
        ),
        (used(json!([{"name": "d"}, {"name": "d", "request": "r"}])), "containers[0].resources.claims[1]"),
        (used(json!([{"name": "d", "request": "r"}, {"name": "d"}])), "containers[0].resources.claims[1]"),
        (used(json!([{"name": "d", "request": "R"}])), "containers[0].resources.claims[0].request"),
    ] {
        assert_eq!(paths(bad.clone()), [format!("spec.{wanted}")], "{bad}");
    }
}
