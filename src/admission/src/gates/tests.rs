use std::collections::BTreeSet;
use std::sync::Arc;

use outrigger_core::ids::RuleName;
use outrigger_core::rule::{ExpressionSpec, Operator, Rule, RuleSpec};
use serde_json::{Value, json};

use super::*;
use crate::caches::Caches;
use crate::tests::{decide, patched, request_for};

fn rule(expressions: &[(&str, &str)]) -> Rule {
    ordered("r", Ordering::BeforeReady, expressions)
}

fn ordered(name: &str, ordering: Ordering, expressions: &[(&str, &str)]) -> Rule {
    let expression = |(key, value): &(&str, &str)| ExpressionSpec::new(key, Operator::In, &[value]);
    let spec = RuleSpec {
        terms: vec![expressions.iter().map(expression).collect()],
        ordering,
        ..RuleSpec::new(RuleName::new(name).unwrap())
    };
    Rule::compile(spec).unwrap()
}

fn caches(rules: Vec<Rule>, namespaces: Option<&[&str]>) -> Caches {
    let namespaces = namespaces.map(|names| names.iter().map(ToString::to_string).collect());
    let rules = rules.into_iter().map(Arc::new).collect();
    of(GateRules { rules, namespaces, claims: Claims::Added, ..GateRules::default() })
}

fn of(gates: GateRules) -> Caches {
    let caches = Caches::default();
    caches.set_gates(Arc::new(gates));
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
    let annotation = |value: &str| vec![("gate", value.to_owned())];
    assert_eq!(audit("/gate/pods", &pod(json!({}))), annotation("kind=WorkloadRule name=r generation=1"));
    assert_eq!(audit("/gate/all-pods", &pod(json!({}))), annotation("kind=Namespace name=shop"));
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

const HOLDS: [&str; 4] =
    ["/gate/pods", "/gate/all-pods", "/companions-first/pods", "/companions-first/all-pods"];

/// The claims of the Pod as it is admitted, or code and message of the refusal.
fn claims_of(path: &str, caches: &Caches, pod: &Value) -> Result<Value, (u16, String)> {
    let mut request = request_for("Pod", "shop", pod, &Value::Null);
    let admitted = patched(decide(path, caches, &mut request).unwrap(), pod)?;
    Ok(admitted["spec"]["resourceClaims"].clone())
}

fn ours() -> Value {
    json!({"name": keys::COMPANIONS_CLAIM, "resourceClaimTemplateName": keys::COMPANIONS_CLAIM})
}

fn before_start() -> Rule {
    ordered("fw", Ordering::BeforeStart, &[(APP, "web")])
}

#[test]
fn pods_of_rules_before_start_get_gate_and_claim_once() {
    let ready = ordered("log", Ordering::BeforeReady, &[(APP, "db")]);
    let caches = caches(vec![ready, before_start()], None);
    let other = json!({"name": "gpu", "resourceClaimName": "mine"});
    for path in HOLDS {
        let with_own = pod(json!({"spec": {"resourceClaims": [other]}}));
        assert_eq!(claims_of(path, &caches, &with_own), Ok(json!([other, ours()])), "{path}");
        let again = pod(json!({"spec": {"resourceClaims": [ours(), other]}}));
        assert_eq!(claims_of(path, &caches, &again), Ok(json!([ours(), other])), "{path}");
        assert!(gates_of(path, &caches, &with_own).is_array(), "{path}");
    }
    // A rule that asks for less, and none at all: only the labels of the namespace ask for a claim.
    for app in ["db", "other"] {
        let pod = pod(json!({"metadata": {"labels": {"app": app}}}));
        let found = HOLDS.map(|path| claims_of(path, &caches, &pod).unwrap().is_array());
        assert_eq!(found, [false, false, false, true], "{app}");
    }
}

#[test]
fn pods_of_rules_before_binding_get_the_stronger_claim_where_the_cluster_has_it() {
    let binding =
        json!({"name": keys::COMPANIONS_CLAIM, "resourceClaimTemplateName": keys::COMPANIONS_BINDING_CLAIM});
    let rules = || vec![before_start(), ordered("bind", Ordering::BeforeBinding, &[(APP, "web")])];
    for (has, expected) in [(true, &binding), (false, &ours())] {
        let rules = rules().into_iter().map(Arc::new).collect();
        let caches = of(GateRules { rules, claims: Claims::Added, binding: has, ..GateRules::default() });
        for path in HOLDS {
            let found = claims_of(path, &caches, &pod(json!({})));
            assert_eq!(found, Ok(json!([expected])), "{path} {has}");
            let db = pod(json!({"metadata": {"labels": {"app": "db"}}}));
            assert_ne!(claims_of(path, &caches, &db), Ok(json!([binding])), "{path} {has}");
            // The author of a Pod can't choose the weaker claim.
            let weaker = pod(json!({"spec": {"resourceClaims": [ours()]}}));
            assert_eq!(claims_of(path, &caches, &weaker).is_err(), has, "{path}");
        }
    }
}

#[test]
fn the_audit_of_a_claim_names_its_own_rule() {
    let first = ordered("a", Ordering::BeforeReady, &[(APP, "web")]);
    let caches = caches(vec![first, before_start()], None);
    let audit = |pod: &Value| {
        let mut request = request_for("Pod", "shop", pod, &Value::Null);
        match decide("/gate/pods", &caches, &mut request) {
            Ok(Decision::Allow { audit, .. }) => audit,
            other => panic!("{other:?}"),
        }
    };
    let rule_named = |name: &str| format!("kind=WorkloadRule name={name} generation=1");
    assert_eq!(audit(&pod(json!({}))), [("gate", rule_named("a")), ("companions-first", rule_named("fw"))]);
    let claimed = pod(json!({"spec": {"resourceClaims": [ours()],
        "readinessGates": [{"conditionType": keys::COMPANIONS_GATE}]}}));
    assert_eq!(audit(&claimed), []);
}

#[test]
fn what_could_never_start_is_refused_where_a_rule_holds_it() {
    let caches = caches(vec![before_start(), ordered("log", Ordering::BeforeReady, &[(APP, "db")])], None);
    let bound = json!({"spec": {"nodeName": "host-a"}});
    let foreign =
        json!({"spec": {"resourceClaims": [{"name": keys::COMPANIONS_CLAIM, "resourceClaimName": "mine"}]}});
    for (change, field) in [(&bound, "spec.nodeName"), (&foreign, "spec.resourceClaims[0].resourceClaimName")]
    {
        for path in HOLDS {
            let (code, message) = claims_of(path, &caches, &pod(change.clone())).unwrap_err();
            assert_eq!(code, CONTRADICTION, "{path}");
            assert!(message.starts_with(field), "{message}");
        }
        // The same Pod of a rule that doesn't hold it.
        let mut free = pod(change.clone());
        free["metadata"]["labels"]["app"] = json!("db");
        assert!(claims_of("/gate/pods", &caches, &free).is_ok());
        // A mirror of a static Pod is there already.
        let mut mirror = pod(change.clone());
        mirror["metadata"]["annotations"] = json!({keys::MIRROR_POD: "x"});
        assert!(claims_of("/gate/pods", &caches, &mirror).is_ok());
    }
}

#[test]
fn an_agent_without_claims_holds_no_pod_and_refuses_it_where_the_namespace_requires_that() {
    let caches = of(GateRules { rules: vec![Arc::new(before_start())], ..GateRules::default() });
    for path in ["/gate/pods", "/gate/all-pods"] {
        assert_eq!(claims_of(path, &caches, &pod(json!({}))), Ok(Value::Null), "{path}");
        assert!(gates_of(path, &caches, &pod(json!({}))).is_array(), "{path}");
    }
    let other = pod(json!({"metadata": {"labels": {"app": "other"}}}));
    assert!(claims_of("/companions-first/pods", &caches, &other).is_ok());
    for (path, pod) in [("/companions-first/pods", pod(json!({}))), ("/companions-first/all-pods", other)] {
        let (code, message) = claims_of(path, &caches, &pod).unwrap_err();
        assert_eq!(code, 403, "{path}");
        assert!(message.contains("adds no claims; enable the agent's setting companionsFirst"), "{message}");
    }
}

#[test]
fn a_namespace_that_requires_claims_waits_until_namespaces_are_known() {
    let caches = of(GateRules {
        rules: vec![Arc::new(before_start())],
        namespaces: Some(BTreeSet::new()),
        namespaces_unknown: true,
        claims: Claims::Added,
        binding: false,
    });
    let mut request = request_for("Pod", "shop", &pod(json!({})), &Value::Null);
    assert!(decide("/companions-first/pods", &caches, &mut request).is_err());
    assert_eq!(claims_of("/gate/pods", &caches, &pod(json!({}))), Ok(Value::Null), "elsewhere none waits");
}
