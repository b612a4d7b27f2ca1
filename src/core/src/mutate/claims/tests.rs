use std::sync::Arc;

use proptest::prelude::*;
use serde_json::json;

use super::super::tests::patch;
use super::super::{PodContext, mutate};
use super::*;
use crate::claim::{DeviceClaimSpec, DevicesSpec};
use crate::ids::{RuleName, TenantId};
use crate::rule::tests::{compiled, named};
use crate::rule::{DpuSelectionPolicy, RuleSpec};

fn rule(claims: Vec<DeviceClaimSpec>) -> Arc<Rule> {
    of_template(
        claims,
        json!({"initContainers": [{"name": "i"}], "containers": [{"name": "c"}, {"name": "d"}]}),
    )
}

/// A rule with these claims for the containers of a Pod.
pub(in crate::mutate) fn of_template(claims: Vec<DeviceClaimSpec>, pod_spec: Value) -> Arc<Rule> {
    compiled(RuleSpec {
        policy: DpuSelectionPolicy::Any,
        template: json!({"apiVersion": "v1", "kind": "Pod", "spec": pod_spec}).into(),
        devices: DevicesSpec { claims, host_attribute: String::new() },
        ..named("r")
    })
}

fn own(name: &str, containers: &[&str], request: &str) -> DeviceClaimSpec {
    let requests = json!([{"name": "one", "exactly": {"deviceClassName": "crypto"}}]);
    DeviceClaimSpec {
        name: name.into(),
        spec: Some(json!({"devices": {"requests": requests}}).into()),
        from_rule: String::new(),
        containers: containers.iter().map(ToString::to_string).collect(),
        request: request.into(),
    }
}

fn shared(name: &str) -> DeviceClaimSpec {
    DeviceClaimSpec { name: name.into(), from_rule: "other".into(), ..DeviceClaimSpec::default() }
}

fn run(pod: &Value, rule: &Rule) -> Result<Value, FieldError> {
    let tenant = TenantId::new("blue").unwrap();
    let facts = PodContext { tenant: Some(&tenant), rule: Some(rule), ..PodContext::default() };
    let mut changed = pod.clone();
    mutate(&mut changed, &facts)?;
    // The patch makes the same of it.
    let mut patched = pod.clone();
    json_patch::patch(&mut patched, &patch(pod, &facts)?.0).unwrap();
    assert_eq!(patched, changed);
    Ok(changed)
}

/// The step alone.
fn applied(pod: &mut Value, rule: &Rule) -> Result<(), FieldError> {
    let before = pod.clone();
    let changed =
        apply(pod, &PodContext { rule: Some(rule), ..PodContext::default() }, &mut Report::default())?;
    assert_eq!(changed, *pod != before, "it says whether it changed the Pod: {before}");
    Ok(())
}

fn pod() -> Value {
    json!({"metadata": {"labels": {keys::WORKLOAD: "w"}}, "spec": {
        "initContainers": [{"name": "i"}],
        "containers": [{"name": "c", "resources": {"limits": {"cpu": "1"}, "claims": [{"name": "theirs"}]}},
            {"name": "d"}, {"name": "sidecar"}],
        "resourceClaims": [{"name": "theirs", "resourceClaimName": "x"}]}})
}

#[test]
fn claims_are_appended_and_wired_into_the_named_containers() {
    let rule = rule(vec![own("a", &["i", "d"], "one"), own("b", &[], ""), shared("s")]);
    let pod = run(&pod(), &rule).unwrap();
    let spec = &pod["spec"];
    let names: Vec<&str> =
        spec["resourceClaims"].as_array().unwrap().iter().map(|c| c["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["theirs", "a", "b", "s"]);
    let Source::Template { name, .. } = &rule.devices().claims()[0].source else { panic!() };
    assert_eq!(spec["resourceClaims"][1]["resourceClaimTemplateName"], **name);
    let tenant = TenantId::new("blue").unwrap();
    let other = claim::shared_name(rule.name(), &RuleName::new("other").unwrap(), "w", Some(&tenant));
    assert_eq!(spec["resourceClaims"][3], json!({"name": "s", "resourceClaimName": other}));
    let used = |list: &str, c: usize| spec[list][c]["resources"]["claims"].clone();
    assert_eq!(used("initContainers", 0), json!([{"name": "a", "request": "one"}]));
    assert_eq!(used("containers", 0), json!([{"name": "theirs"}, {"name": "b"}, {"name": "s"}]));
    assert_eq!(used("containers", 1), json!([{"name": "a", "request": "one"}, {"name": "b"}, {"name": "s"}]));
    assert_eq!(used("containers", 2), Value::Null, "what is not of the template gets nothing");
    assert_eq!(spec["containers"][0]["resources"]["limits"], json!({"cpu": "1"}));
}

#[test]
fn what_is_there_stays_and_a_name_that_is_taken_is_reported() {
    let rule = rule(vec![own("a", &[], "")]);
    let mut with = pod();
    with["spec"]["containers"][1]["resources"] = json!({"claims": [{"name": "a", "request": "one"}]});
    let changed = run(&with, &rule).unwrap();
    assert_eq!(changed["spec"]["containers"][1], with["spec"]["containers"][1]);
    for source in ["resourceClaimName", "resourceClaimTemplateName"] {
        with["spec"]["resourceClaims"][0] = json!({"name": "a", source: "x"});
        let error = run(&with, &rule).unwrap_err();
        assert_eq!(error.path, "spec.resourceClaims[0]");
    }
    let mut nobodys = pod();
    nobodys["metadata"] = json!({});
    assert_eq!(
        run(&nobodys, &self::rule(vec![shared("s")])).unwrap_err().path,
        "metadata.labels[outrigger.dev/workload]"
    );
    for (pointer, path) in [
        ("/spec/containers/0", "spec.containers[0]"),
        ("/spec/containers/0/resources", "spec.containers[0].resources"),
        ("/spec/containers/0/resources/claims", "spec.containers[0].resources.claims"),
        ("/spec/initContainers", "spec.initContainers"),
        ("/spec/resourceClaims", "spec.resourceClaims"),
    ] {
        let mut wrong = pod();
        *wrong.pointer_mut(pointer).unwrap_or(&mut Value::Null) = json!(1);
        assert_eq!(applied(&mut wrong, &rule).unwrap_err().path, path);
    }
}

#[test]
fn each_part_that_is_missing_is_added_and_reported_as_a_change() {
    let rule = rule(vec![own("a", &[], ""), own("b", &[], "")]);
    let mut done = pod();
    applied(&mut done, &rule).unwrap();
    for missing in ["/spec/resourceClaims", "/spec/containers/0/resources/claims", "/spec/zz"] {
        let mut pod = done.clone();
        if let Some(part) = pod.pointer_mut(missing) {
            *part = Value::Null;
        }
        applied(&mut pod, &rule).unwrap();
        for all in ["/spec/resourceClaims", "/spec/containers/0/resources/claims"] {
            let names = |pod: &Value| -> BTreeSet<String> {
                crate::json::list(pod, all).iter().map(|claim| claim["name"].to_string()).collect()
            };
            assert!(names(&pod).is_superset(&BTreeSet::from(["\"a\"".into(), "\"b\"".into()])), "{pod}");
        }
    }
}

#[test]
fn devices_that_are_elsewhere_are_reported() {
    let on = |host: &str| {
        vec![json!({"matchExpressions": [{"key": keys::DPU_HOST, "operator": "In", "values": [host]}]})]
    };
    let mut pod = json!({"spec": {"nodeSelector": {keys::DPU_HOST: "a"},
        "resourceClaims": [{"name": "x", "resourceClaimName": "mine"}, {"name": "y", "resourceClaimTemplateName": "t"}]}});
    let warnings_on = |pod: &Value, host: &str| warnings(pod, |claim| (claim == "mine").then(|| on(host)));
    assert_eq!(warnings_on(&pod, "a"), Vec::<String>::new());
    assert_eq!(
        warnings_on(&pod, "b"),
        [format!(
            "no node can match this Pod: it asks for {0} In [a], the devices of claim mine are on {0} In [b]",
            keys::DPU_HOST
        )]
    );
    assert_eq!(warnings(&pod, |_| None::<Vec<Value>>), Vec::<String>::new(), "not allocated yet");
    pod["spec"]["nodeName"] = json!("n");
    let said = warnings_on(&pod, "a");
    assert!(said.len() == 1 && said[0].contains("spec.nodeName") && said[0].len() <= 120, "{said:?}");
    pod["spec"]["resourceClaims"] = json!([]);
    assert_eq!(warnings_on(&pod, "b"), Vec::<String>::new());
}

/// Containers of many shapes, with fields that no type knows.
fn any_containers() -> impl Strategy<Value = Value> {
    let used = prop_oneof![
        Just(Value::Null),
        Just(json!({})),
        Just(json!({"claims": [{"name": "a"}], "zz": 1})),
        Just(json!({"claims": null, "limits": {"cpu": "1"}})),
        Just(json!({"claims": [{"name": "theirs", "zz": [1]}]})),
    ];
    let container = (0..4usize, used).prop_map(|(name, resources)| {
        json!({"name": (["i", "c", "d", "x"][name]), "resources": resources, "zz": {"unknown": name}})
    });
    prop_oneof![9 => proptest::collection::vec(container, 0..4).prop_map(Value::from), 1 => Just(Value::Null)]
}

/// The Pod without what the step may add.
fn others(pod: &Value) -> Value {
    let mut pod = pod.clone();
    for list in CONTAINERS {
        for container in pod["spec"][list].as_array_mut().into_iter().flatten() {
            if let Some(resources) = container["resources"].as_object_mut() {
                resources.remove("claims");
            }
            if container["resources"].as_object().is_none_or(Map::is_empty) {
                container["resources"] = Value::Null;
            }
        }
    }
    for key in ["resourceClaims", "affinity", "tolerations"] {
        pod["spec"].as_object_mut().unwrap().remove(key);
    }
    pod["metadata"] = Value::Null;
    pod
}

proptest! {
    #[test]
    fn once_is_enough_and_nothing_else_changes(
        containers in any_containers(),
        inits in any_containers(),
        named in proptest::sample::subsequence(vec!["i", "c", "d"], 0..=3),
        request in any::<bool>(),
    ) {
        let rule = rule(vec![own("a", &named, if request { "one" } else { "" }), shared("s")]);
        let pod = json!({"metadata": {"labels": {keys::WORKLOAD: "w"}},
            "spec": {"containers": containers, "initContainers": inits, "zz": [1],
                "resourceClaims": [{"name": "theirs", "resourceClaimName": "x", "zz": 1}]}});
        let once = run(&pod, &rule).unwrap();
        prop_assert_eq!(&run(&once, &rule).unwrap(), &once);
        prop_assert_eq!(others(&pod), others(&once));
        prop_assert_eq!(&once["spec"]["resourceClaims"][0], &pod["spec"]["resourceClaims"][0], "appended");
        for list in CONTAINERS {
            for container in once["spec"][list].as_array().into_iter().flatten() {
                let name = container["name"].as_str().unwrap();
                let wanted = if named.is_empty() { ["c", "d"].contains(&name) } else { named.contains(&name) };
                let uses = container["resources"]["claims"].as_array().into_iter().flatten();
                let count = uses.filter(|used| used["name"] == "a").count();
                prop_assert!(count <= 1 && (!wanted || count == 1), "{}", container);
            }
        }
    }
}

#[test]
fn its_steps_grow_with_the_containers_and_no_faster() {
    let containers =
        |size: usize| -> Vec<Value> { (0..size).map(|i| json!({"name": format!("c{i}")})).collect() };
    crate::steps::assert_nearly_linear(
        |size| {
            let rule = of_template(vec![own("a", &[], "")], json!({"containers": containers(size)}));
            (rule, json!({"metadata": {}, "spec": {"containers": containers(size)}}))
        },
        |(rule, pod)| applied(pod, rule).unwrap(),
    );
}

/// A rule may have sixteen claims: each is looked for among those that the Pod, and each container, has already.
#[test]
fn its_steps_grow_with_the_claims_that_are_there_and_no_faster() {
    let claims =
        |size: usize| -> Vec<Value> { (0..size).map(|i| json!({"name": format!("x{i}")})).collect() };
    let devices = || (0..claim::MAX_CLAIMS).map(|i| own(&format!("a{i}"), &[], "")).collect::<Vec<_>>();
    crate::steps::assert_nearly_linear(
        |size| {
            let container = json!({"name": "c", "resources": {"claims": claims(size)}});
            let spec = json!({"containers": [container], "resourceClaims": claims(size)});
            (
                of_template(devices(), json!({"containers": [{"name": "c"}]})),
                json!({"metadata": {}, "spec": spec}),
            )
        },
        |(rule, pod)| applied(pod, rule).unwrap(),
    );
}
