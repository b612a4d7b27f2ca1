use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::companion::Action;
use crate::companion::tests::planned_for;
use crate::index::{CompanionKey, Desired};
use crate::rule::tests::{compiled, named};
use crate::rule::{DpuSelectionPolicy, InjectionSpec, RuleSpec};
use crate::selector::terms;
use crate::workload::{Workload, tests::nginx};
use std::sync::{Arc, LazyLock};

const HOST_LABEL: &str = keys::DPU_HOST;

static HOST_LABELS: LazyLock<HostLabels> = LazyLock::new(|| HOST_LABEL.parse().unwrap());

fn rule(policy: DpuSelectionPolicy, injections: &[(&str, &str)], spec: Value) -> Arc<Rule> {
    compiled(RuleSpec {
        injections: injections.iter().map(|(key, name)| InjectionSpec::new(key, name)).collect(),
        policy,
        template: json!({"apiVersion": "v1", "kind": "Pod", "spec": spec}).into(),
        ..named("r")
    })
}

/// The Pod that the manager creates.
fn created(rule: &Arc<Rule>) -> Value {
    let workload = Arc::new(nginx());
    let key = CompanionKey::of(rule.name(), &workload.id);
    let key = if rule.policy().is_on_all() { key.on("dpu-2") } else { key };
    match planned_for(&key, &Desired::Wanted { rule, workload: &workload }, None) {
        Action::Create(pod) => pod,
        other => panic!("{other:?}"),
    }
}

fn run(pod: &Value, rule: Option<&Rule>) -> Result<(Value, Report), FieldError> {
    let tenant = TenantId::new("blue").unwrap();
    let facts =
        PodContext { tenant: Some(&tenant), rule, host_labels: &HOST_LABELS, ..PodContext::default() };
    let mut pod = pod.clone();
    let report = mutate(&mut pod, &facts)?;
    Ok((pod, report))
}

/// The patch that the steps make of a Pod.
pub(crate) fn patch(pod: &Value, facts: &PodContext<'_>) -> Result<(json_patch::Patch, Report), FieldError> {
    let (mut after, before) = (pod.clone(), Before::of(pod, facts));
    let report = mutate(&mut after, facts)?;
    let patch = before.patch(&mut after);
    assert_eq!(
        report.changed.is_empty(),
        patch.0.is_empty(),
        "the steps tell of every change: {report:?} {patch:?}"
    );
    Ok((patch, report))
}

#[test]
fn a_companion_is_placed_annotated_and_let_go() {
    let rule = rule(
        DpuSelectionPolicy::SameNode,
        &[(".state.nodeName", "node"), ("", "all"), (".state.extra.labels.none", "none")],
        json!({"containers": []}),
    );
    let (pod, report) = run(&created(&rule), Some(&rule)).unwrap();
    assert_eq!(report, Report { changed: vec!["companion", "isolation"], ..Report::default() });
    let annotations = &pod["metadata"]["annotations"];
    assert_eq!(annotations["node"], "cloud-dev-12");
    let all: Workload = serde_json::from_str(annotations["all"].as_str().unwrap()).unwrap();
    assert_eq!(all, nginx());
    assert_eq!(annotations[keys::INJECTED], r#"["all","node"]"#);
    assert!(annotations.get(keys::WORKLOAD).is_none() && annotations.get("none").is_none());
    let mut ungated = created(&rule);
    ungated["spec"].as_object_mut().unwrap().remove("schedulingGates");
    assert_eq!(run(&ungated, Some(&rule)).unwrap(), (pod.clone(), report));
    assert!(pod["spec"].get("schedulingGates").is_none());
    assert_eq!(
        terms(&pod),
        &[json!({"matchExpressions": [
            {"key": HOST_LABEL, "operator": "In", "values": ["cloud-dev-12"]},
            {"key": keys::NODE_TENANT, "operator": "In", "values": ["blue"]}]})]
    );
    assert_eq!(
        pod["spec"]["tolerations"],
        json!([{"key": keys::TENANT, "operator": "Equal", "value": "blue", "effect": "NoSchedule"}])
    );
}

#[test]
fn a_rule_may_ask_for_the_workload_under_the_key_it_travels_in() {
    let rule = rule(DpuSelectionPolicy::Any, &[("@", keys::WORKLOAD)], json!({"containers": []}));
    let (once, report) = run(&created(&rule), Some(&rule)).unwrap();
    assert_eq!(report.changed, ["companion", "isolation"]);
    let (twice, report) = run(&once, Some(&rule)).unwrap();
    assert_eq!((once.clone(), Vec::new()), (twice, report.changed));
    assert!(once["metadata"]["annotations"][keys::WORKLOAD].is_string());
}

#[test]
fn another_webhooks_gate_stays_and_its_new_term_is_placed_too() {
    let spec = json!({"containers": [], "schedulingGates": [{"name": "example.com/wait"}]});
    let rule = rule(DpuSelectionPolicy::SameNode, &[], spec);
    let (mut pod, _) = run(&created(&rule), Some(&rule)).unwrap();
    assert_eq!(pod["spec"]["schedulingGates"], json!([{"name": "example.com/wait"}]));
    let list = pod.pointer_mut(selector::POINTER).unwrap().as_array_mut().unwrap();
    list.push(json!({"matchExpressions": [{"key": "x", "operator": "Exists"}]}));
    let (pod, report) = run(&pod, Some(&rule)).unwrap();
    assert_eq!(report.changed, ["companion", "isolation"], "of which both placed the new term");
    let keys_of_new: Vec<&Value> =
        terms(&pod)[1]["matchExpressions"].as_array().unwrap().iter().map(|e| &e["key"]).collect();
    assert_eq!(keys_of_new, ["x", HOST_LABEL, keys::NODE_TENANT]);
}

#[test]
fn one_for_the_primary_dpu_requires_its_label_in_each_term() {
    let expression = |key: &str, value: &str| json!({"key": key, "operator": "In", "values": [value]});
    let own = ["x", "y"].map(|disk| json!({"matchExpressions": [expression("disk", disk)]}));
    let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": own}}});
    let spec = json!({"containers": [], "affinity": affinity});
    let rule = rule(DpuSelectionPolicy::SameNodePrimary, &[], spec);
    let (pod, _) = run(&created(&rule), Some(&rule)).unwrap();
    let expected = ["x", "y"].map(|disk| {
        json!({"matchExpressions": [expression("disk", disk), expression(HOST_LABEL, "cloud-dev-12"),
            expression(keys::PRIMARY, "true"), expression(keys::NODE_TENANT, "blue")]})
    });
    assert_eq!(terms(&pod), expected);
    assert_eq!(run(&pod, Some(&rule)).unwrap().0, pod, "once is enough");
}

#[test]
fn one_of_those_on_all_dpus_requires_its_own_in_each_term() {
    let expression = |key: &str, value: &str| json!({"key": key, "operator": "In", "values": [value]});
    let own = ["x", "y"].map(|disk| json!({"matchExpressions": [expression("disk", disk)]}));
    let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": own}}});
    for (spec, own) in [
        (
            json!({"containers": [], "affinity": affinity}),
            vec![vec![expression("disk", "x")], vec![expression("disk", "y")]],
        ),
        (json!({"containers": []}), vec![vec![]]),
    ] {
        let rule = rule(DpuSelectionPolicy::SameNodeAll, &[], spec);
        let (pod, _) = run(&created(&rule), Some(&rule)).unwrap();
        let term = |own: &Vec<Value>| {
            let others = [expression(HOST_LABEL, "cloud-dev-12"), expression(keys::NODE_TENANT, "blue")];
            json!({"matchExpressions": own.iter().chain(&others).collect::<Vec<_>>(),
                "matchFields": [expression("metadata.name", "dpu-2")]})
        };
        assert_eq!(terms(&pod), own.iter().map(term).collect::<Vec<_>>());
        assert_eq!(run(&pod, Some(&rule)).unwrap().0, pod, "once is enough");
        let mut anywhere = created(&rule);
        anywhere["metadata"]["annotations"].as_object_mut().unwrap().remove(keys::DPU);
        let error = run(&anywhere, Some(&rule)).unwrap_err().to_string();
        assert!(error.starts_with("metadata.annotations[outrigger.dev/dpu]: is missing"), "{error}");
    }
}

#[test]
fn a_companion_without_its_facts_is_refused() {
    let rule = rule(DpuSelectionPolicy::SameNode, &[], json!({"containers": []}));
    for (change, path) in [
        (json!({keys::HOST: null}), "metadata.annotations[outrigger.dev/host]: is missing"),
        (json!({keys::WORKLOAD: "no json"}), "metadata.annotations[outrigger.dev/workload]: is no workload"),
        (json!({keys::WORKLOAD: 1}), "metadata.annotations[outrigger.dev/workload]: must be a string"),
    ] {
        let mut pod = created(&rule);
        for (key, value) in change.as_object().unwrap() {
            pod["metadata"]["annotations"][key] = value.clone();
        }
        let error = run(&pod, Some(&rule)).unwrap_err().to_string();
        assert!(error.starts_with(path), "{error}");
    }
}

#[test]
fn a_contradiction_is_said() {
    let spec = json!({"containers": [], "nodeSelector": {HOST_LABEL: "elsewhere"}});
    let rule = rule(DpuSelectionPolicy::SameNode, &[], spec);
    let (_, report) = run(&created(&rule), Some(&rule)).unwrap();
    assert_eq!(report.warnings.len(), 1);
    assert!(
        report.warnings[0].contains("elsewhere") && report.warnings[0].contains("cloud-dev-12"),
        "{report:?}"
    );
}

#[test]
fn without_a_tenant_or_a_rule_nothing_changes() {
    let pod = json!({"spec": {"x": 1}});
    let mut same = pod.clone();
    mutate(&mut same, &PodContext::default()).unwrap();
    assert_eq!(same, pod);
}

/// Any JSON at all.
fn any_json() -> impl Strategy<Value = Value> {
    outrigger_cases::any::json("[a-z]{0,4}", "[a-z]{1,3}", 3)
}

/// A Pod with node affinity of every shape, right and wrong, and with fields that no type knows.
pub(crate) fn any_pod() -> impl Strategy<Value = Value> {
    let expression = (0..3usize, any::<bool>()).prop_map(|(key, within)| {
        let key = ["a", keys::NODE_TENANT, HOST_LABEL][key];
        if within {
            json!({"key": key, "operator": "In", "values": ["blue"]})
        } else {
            json!({"key": key, "operator": "Exists"})
        }
    });
    let term = prop_oneof![
        8 => proptest::collection::vec(expression, 0..3).prop_map(|e| json!({"matchExpressions": e, "zz": 1})),
        1 => Just(json!({})),
        1 => Just(json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]})),
        1 => any_json(),
    ];
    let terms =
        prop_oneof![8 => proptest::collection::vec(term, 0..4).prop_map(Value::from), 1 => any_json()];
    let affinity = prop_oneof![
        8 => terms.prop_map(|terms| json!({"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}, "zz": [1]}, "podAffinity": {"q": 1}})),
        1 => any_json(),
    ];
    let tolerations = prop_oneof![4 => Just(json!([{"operator": "Exists"}])), 1 => any_json()];
    let spec = (affinity, tolerations, any_json())
        .prop_map(|(affinity, tolerations, unknown)| json!({"affinity": affinity, "tolerations": tolerations, "zz": unknown}));
    prop_oneof![9 => (spec, any_json()).prop_map(|(spec, metadata)| json!({"spec": spec, "metadata": {"zz": metadata}})),
        1 => any_json()]
}

/// The object without what the steps own.
fn others(pod: &Value) -> Value {
    let mut pod = pod.clone();
    if let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) {
        spec.remove("tolerations");
        if let Some(node) = spec.get_mut("affinity").and_then(|a| a.get_mut("nodeAffinity")) {
            node["requiredDuringSchedulingIgnoredDuringExecution"] = Value::Null;
        } else {
            spec.remove("affinity");
        }
    }
    pod
}

proptest! {
    #[test]
    fn any_pod_is_changed_once_by_a_patch_that_applies_and_keeps_what_it_does_not_own(pod in any_pod()) {
        // What has another shape is an error with a path, never a panic.
        let Ok((once, report)) = run(&pod, None) else { return Ok(()) };
        prop_assert_eq!(report.changed.is_empty(), once == pod, "it says whether it changed the Pod: {:?}", report);
        let mut patched = pod.clone();
        json_patch::patch(&mut patched, &json_patch::diff(&pod, &once)).unwrap();
        prop_assert_eq!(&patched, &once, "the patch applies");
        let tenant = TenantId::new("blue").unwrap();
        let facts = PodContext { tenant: Some(&tenant), ..PodContext::default() };
        let (small, _) = patch(&pod, &facts).unwrap();
        let mut patched = pod.clone();
        json_patch::patch(&mut patched, &small).unwrap();
        prop_assert_eq!(&patched, &once, "so does the one that was made of what is owned");
        prop_assert_eq!(&run(&once, None).unwrap(), &(once.clone(), Report { changed: Vec::new(), ..report }), "once is enough");
        if pod.pointer("/spec/affinity/nodeAffinity").is_some_and(Value::is_object) {
            prop_assert_eq!(others(&pod), others(&once), "nothing else changes");
        }
        prop_assert_eq!(pod["spec"].get("zz"), once["spec"].get("zz"));
        let tenant = json!({"key": keys::NODE_TENANT, "operator": "In", "values": ["blue"]});
        for term in terms(&once) {
            let empty = term.get("matchExpressions").and_then(Value::as_array).is_none_or(Vec::is_empty)
                && term.get("matchFields").and_then(Value::as_array).is_none_or(Vec::is_empty);
            let says = term["matchExpressions"].as_array().is_some_and(|e| e.contains(&tenant));
            prop_assert!(says || (empty && terms(&once).len() == 1), "{}", term);
        }
    }
}

#[test]
fn keys_of_outrigger_are_refused_with_their_paths() {
    let refused = |pod: Value| refuse_own_keys(&pod).map_err(|error| error.path);
    let own = format!("{}/x", keys::DOMAIN);
    for map in ["labels", "annotations"] {
        assert_eq!(refused(json!({"metadata": {map: {&own: "1"}}})), Err(format!("metadata.{map}[{own}]")));
    }
    let gates = json!({"spec": {"schedulingGates": [{"name": "example.com/x"}, {"name": own}]}});
    assert_eq!(refused(gates), Err("spec.schedulingGates[1].name".to_owned()));
    let others = json!({"metadata": {"labels": {"example.com/x": "1"}, "annotations": {"a": "1"}},
        "spec": {"schedulingGates": [{"name": "example.com/x"}]}});
    assert_eq!(refused(others), Ok(()));
}
