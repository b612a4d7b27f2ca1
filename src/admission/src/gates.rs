//! Readiness gates of a tenant's Pods ([`outrigger_core::gate`]), which the agent adds in the tenant's cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use outrigger_api::pod::Pod;
use outrigger_core::gate;
use outrigger_core::ids::WorkloadId;
use outrigger_core::keys;
use outrigger_core::rule::{POD, Rule};
use outrigger_core::texts::Texts;
use outrigger_core::workload::{Orchestrator, Workload};
use serde::Deserialize;
use serde_json::Value;

use crate::decision::{Admission, CacheStale, Context, Decision, Refusal};
use crate::provenance::{self, Origin};
use crate::review::Request;

/// What the agent knows of its cluster.
#[derive(Debug, Default)]
pub struct GateRules {
    /// The rules by which workloads wait: with the ordering `BeforeReady` or `BeforeStart`. Of each its terms and its ordering are read.
    pub rules: Vec<Arc<Rule>>,
    /// The namespaces whose Pods are workloads; `None` for all. The condition of a gate in another namespace would never be set.
    pub namespaces: Option<BTreeSet<String>>,
}

impl GateRules {
    fn covers(&self, namespace: &str) -> bool {
        self.namespaces.as_ref().is_none_or(|names| names.contains(namespace))
    }
}

/// Decides about a new Pod: it gets the gate if a rule with an ordering matches it, or could match it later.
pub(crate) fn gate_matching(cx: Context<'_>, request: &mut Request) -> Result<Admission, Refusal> {
    gate(cx, request, |gates, request| {
        if gates.rules.is_empty() {
            return None;
        }
        let workload = workload(request)?;
        let unknown = gate::unknown(&workload);
        let rule = gates.rules.iter().find(|rule| rule.could_match(&workload, &unknown))?;
        let origin = Origin::object("WorkloadRule", rule.name().as_str());
        Some(origin.of_generation(rule.generation()).to_string())
    })
}

/// Decides about a new Pod of a namespace all of whose Pods get the gate.
pub(crate) fn gate_all(cx: Context<'_>, request: &mut Request) -> Result<Admission, Refusal> {
    gate(cx, request, |_, request| Some(Origin::object("Namespace", &request.namespace).to_string()))
}

/// `reason`: why the Pod waits, for audit; `None` if it doesn't.
fn gate(
    cx: Context<'_>,
    request: &Request,
    reason: impl FnOnce(&GateRules, &Request) -> Option<String>,
) -> Result<Admission, Refusal> {
    if request.operation != "CREATE" || !request.sub_resource.is_empty() || is_mirror(&request.object) {
        return Ok(Decision::allow().into());
    }
    let gates = cx.caches.gates();
    let gates =
        gates.ok_or_else(|| CacheStale("the rules of this cluster have not been listed yet".to_owned()))?;
    let reason = if gates.covers(&request.namespace) { reason(&gates, request) } else { None };
    let Some(reason) = reason else { return Ok(Decision::allow().into()) };
    let patch = gate::patch(&request.object);
    let audit = if patch.0.is_empty() { Vec::new() } else { vec![(provenance::GATE, reason)] };
    Ok(Decision::Allow { patch, warnings: Vec::new(), audit }.into())
}

/// The mirror of a static Pod: its kubelet reads the gates of the static Pod only.
fn is_mirror(pod: &Value) -> bool {
    let annotations = pod.get("metadata").and_then(|metadata| metadata.get("annotations"));
    annotations.is_some_and(|annotations| annotations.get(keys::MIRROR_POD).is_some())
}

/// The workload that the Pod becomes, apart from [`gate::unknown`] fields. `None` for a Pod that the API server refuses anyway.
fn workload(request: &Request) -> Option<Workload> {
    let pod = Pod::deserialize(&request.object).ok()?;
    let metadata = pod.metadata;
    Some(Workload {
        id: WorkloadId::new(&request.uid).ok()?,
        orchestrator: Orchestrator::Kubernetes,
        resource_type: POD.into(),
        resource_namespace: request.namespace.clone(),
        resource_name: metadata.name.unwrap_or_default(),
        node_name: pod.spec.and_then(|spec| spec.node_name).filter(|name| !name.is_empty()),
        ready: false,
        labels: metadata.labels.as_ref().map(Texts::from).unwrap_or_default(),
        annotations: metadata.annotations.as_ref().map(Texts::from).unwrap_or_default(),
        extra: BTreeMap::new(),
    })
}

#[cfg(test)]
mod tests {
    use outrigger_core::ids::RuleName;
    use outrigger_core::rule::{ExpressionSpec, Operator, Ordering, RuleSpec};
    use serde_json::json;

    use super::*;
    use crate::caches::Caches;
    use crate::tests::{decide, patched, request_for};

    fn rule(expressions: &[(&str, &str)]) -> Rule {
        let expression = |(key, value): &(&str, &str)| ExpressionSpec::new(key, Operator::In, &[value]);
        let spec = RuleSpec {
            terms: vec![expressions.iter().map(expression).collect()],
            ordering: Ordering::BeforeReady,
            ..RuleSpec::new(RuleName::new("r").unwrap())
        };
        Rule::compile(spec).unwrap()
    }

    fn caches(rules: Vec<Rule>, namespaces: Option<&[&str]>) -> Caches {
        let namespaces = namespaces.map(|names| names.iter().map(ToString::to_string).collect());
        let rules = rules.into_iter().map(Arc::new).collect();
        let caches = Caches::default();
        caches.set_gates(Arc::new(GateRules { rules, namespaces }));
        caches
    }

    fn pod(change: Value) -> Value {
        let mut pod = json!({"metadata": {"generateName": "web-", "labels": {"app": "web"}},
            "spec": {"containers": [{"name": "c"}]}});
        json_patch::merge(&mut pod, &change);
        pod
    }

    /// The gates of the Pod as it is admitted.
    fn gates_of(path: &str, caches: &Caches, pod: &Value) -> Value {
        let mut request = request_for("Pod", "shop", pod, &Value::Null);
        patched(decide(path, caches, &mut request).unwrap(), pod).unwrap()["spec"]["readinessGates"].clone()
    }

    const APP: &str = ".state.extra.labels.app";

    #[test]
    fn pods_that_could_match_get_the_gate() {
        let gate = json!([{"conditionType": keys::COMPANIONS_GATE}]);
        let on_host = json!({"spec": {"nodeName": "host-a"}});
        for (rule, change, expected) in [
            (rule(&[(APP, "web")]), json!({}), true),
            (rule(&[(APP, "db")]), json!({}), false),
            (rule(&[(".metadata.resourceNamespace", "shop")]), json!({}), true),
            (rule(&[(".metadata.resourceNamespace", "other")]), json!({}), false),
            // What nobody knows yet.
            (rule(&[(APP, "web"), (".state.nodeName", "host-b")]), json!({}), true),
            (rule(&[(APP, "web"), (".state.nodeName", "host-b")]), on_host, false),
            (rule(&[(".metadata.id", "1234")]), json!({}), true),
            (rule(&[(".metadata.resourceName", "web-0")]), json!({}), true),
            (rule(&[(".metadata.resourceName", "web-0")]), json!({"metadata": {"name": "web-1"}}), false),
        ] {
            let found = gates_of("/gate/pods", &caches(vec![rule], None), &pod(change.clone()));
            assert_eq!(found, if expected { gate.clone() } else { Value::Null }, "{change}");
        }
    }

    #[test]
    fn audit_names_the_rule_or_the_namespace_once() {
        let caches = caches(vec![rule(&[(APP, "db")]), rule(&[(APP, "web")])], None);
        let audit = |path: &str, pod: &Value| {
            let mut request = request_for("Pod", "shop", pod, &Value::Null);
            match decide(path, &caches, &mut request) {
                Ok(Decision::Allow { audit, .. }) => audit,
                other => panic!("{other:?}"),
            }
        };
        let told = |value: &str| vec![("gate", value.to_owned())];
        assert_eq!(audit("/gate/pods", &pod(json!({}))), told("kind=WorkloadRule name=r generation=1"));
        assert_eq!(audit("/gate/all-pods", &pod(json!({}))), told("kind=Namespace name=shop"));
        // Nothing is changed: it has the gate already, or no rule matches.
        let gated = pod(json!({"spec": {"readinessGates": [{"conditionType": keys::COMPANIONS_GATE}]}}));
        assert_eq!(audit("/gate/pods", &gated), []);
        assert_eq!(audit("/gate/pods", &pod(json!({"metadata": {"labels": {"app": "x"}}}))), []);
    }

    #[test]
    fn without_rules_only_labelled_namespaces_have_gates() {
        let caches = caches(Vec::new(), None);
        assert_eq!(gates_of("/gate/pods", &caches, &pod(json!({}))), Value::Null);
        let all = gates_of("/gate/all-pods", &caches, &pod(json!({})));
        assert_eq!(all, json!([{"conditionType": keys::COMPANIONS_GATE}]));
    }

    #[test]
    fn a_pod_that_is_no_workload_gets_no_gate() {
        let elsewhere = caches(vec![rule(&[(APP, "web")])], Some(&["other"]));
        let here = caches(vec![rule(&[(APP, "web")])], Some(&["other", "shop"]));
        let mirror = pod(json!({"metadata": {"annotations": {keys::MIRROR_POD: "x"}}}));
        for path in ["/gate/pods", "/gate/all-pods"] {
            assert_eq!(gates_of(path, &elsewhere, &pod(json!({}))), Value::Null, "{path}");
            assert_eq!(gates_of(path, &here, &mirror), Value::Null, "{path}");
            assert!(gates_of(path, &here, &pod(json!({}))).is_array(), "{path}");
        }
    }

    #[test]
    fn before_the_rules_are_listed_the_request_waits() {
        let mut request = request_for("Pod", "shop", &pod(json!({})), &Value::Null);
        let stale = decide("/gate/pods", &Caches::default(), &mut request).unwrap_err();
        assert!(stale.to_string().contains("have not been listed yet"), "{stale}");
    }

    #[test]
    fn an_update_changes_nothing() {
        let caches = caches(vec![rule(&[(APP, "web")])], None);
        let pod = pod(json!({}));
        let mut request = request_for("Pod", "shop", &pod, &pod);
        assert_eq!(patched(decide("/gate/pods", &caches, &mut request).unwrap(), &pod).unwrap(), pod);
    }
}
