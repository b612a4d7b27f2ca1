//! Attributes of the devices that workloads have.

use super::*;
use crate::attributes::ReadAttributes;

const MODELS: &str = "--send-device-attribute=gpu.example.com/model";

fn selecting(operator: &str) -> Value {
    let mut rule = rule("tenant-blue", "r", json!({}));
    let key = ".state.extra.deviceAttributes['gpu/one/gpu.example.com/model']";
    rule["spec"]["workloadTerms"][0]["matchExpressions"] =
        json!([{"key": key, "operator": operator, "values": ["a100"]}]);
    rule
}

/// A Pod that names the claim `mine` as `gpu`.
fn user() -> Value {
    let mut pod = pod("work", "web", "blue-a");
    pod["metadata"]["uid"] = json!("u");
    pod["spec"]["resourceClaims"] = json!([{"name": "gpu", "resourceClaimTemplateName": "t"}]);
    pod["status"] = json!({"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "mine"}]});
    pod
}

/// That claim, and the slice with its device.
fn devices() -> [Value; 2] {
    let result = json!({"request": "one", "driver": "gpu.example.com", "pool": "h", "device": "d"});
    let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": "mine", "namespace": "work", "annotations": {keys::POD_CLAIM_NAME: "gpu"}}, "spec": {},
        "status": {"allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": "web", "uid": "u"}]}});
    let device = json!({"name": "d", "attributes": {"model": {"string": "a100"}}});
    let slice = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "s"},
        "spec": {"driver": "gpu.example.com", "pool": {"name": "h", "generation": 1, "resourceSliceCount": 1},
            "devices": [device]}});
    [claim, slice]
}

/// What is said of the Pod with these objects beside it.
fn said(operator: &str, pod: Value, more: &[Value], flags: &[&str]) -> Value {
    let objects = [&[tenant("blue"), dpu("blue-a"), selecting(operator), pod], more].concat();
    explained(&objects, flags).unwrap()["rules"][0]["workloads"][0].clone()
}

#[test]
fn an_attribute_that_the_agent_sends_is_compared() {
    let [claim, slice] = devices();
    let of = |operator: &str, flag: &str| said(operator, user(), &[claim.clone(), slice.clone()], &[flag]);
    let matching = of("In", MODELS);
    assert_eq!(matching["outcome"], "Companion", "{matching}");
    assert_eq!(matching["terms"][0]["expressions"][0]["found"], "a100");
    assert_eq!(of("NotIn", MODELS)["outcome"], "NoMatch");
    // What the agent doesn't send is absent for the manager.
    let other = "--send-device-attribute=gpu.example.com/uuid";
    assert_eq!(
        (&of("In", other)["outcome"], &of("NotIn", other)["outcome"]),
        (&json!("NoMatch"), &json!("Companion"))
    );
}

#[test]
fn an_attribute_that_cannot_be_read_is_unknown_and_not_absent() {
    let [claim, slice] = devices();
    for (more, flags, why) in [
        (vec![claim.clone(), slice.clone()], &[][..], "--send-device-attribute"),
        (vec![], &[MODELS], "lack a ResourceClaim"),
        (vec![claim], &[MODELS], "lack a ResourceClaim"),
        (vec![slice], &[MODELS], "lack a ResourceClaim"),
    ] {
        for operator in ["In", "NotIn"] {
            let open = said(operator, user(), &more, flags);
            assert_eq!(open["outcome"], "Undecided", "{open}");
            assert!(open["reason"].as_str().unwrap().contains(why), "{open}");
            let expression = &open["terms"][0]["expressions"][0];
            assert_eq!((&expression["passes"], &expression["unknown"]), (&json!(false), &json!(true)));
            assert!(expression["change"].as_str().unwrap().contains(why), "{expression}");
        }
    }
    let source = live::Source {
        live: true,
        attributes: ReadAttributes::Unread("slices are forbidden".to_owned()),
        ..live::Source::files("cluster")
    };
    let text = text_of(source, &[tenant("blue"), dpu("blue-a"), selecting("NotIn"), user()], &[MODELS]);
    assert!(text.contains("work/web on blue-a: undecided"), "{text}");
    assert!(text.contains("open") && text.contains("slices are forbidden"), "{text}");
}

#[test]
fn a_pod_without_claims_has_no_attributes() {
    for flags in [&[][..], &[MODELS]] {
        let outcome =
            |operator: &str| said(operator, pod("work", "web", "blue-a"), &[], flags)["outcome"].clone();
        assert_eq!((outcome("In"), outcome("NotIn")), (json!("NoMatch"), json!("Companion")));
    }
}
