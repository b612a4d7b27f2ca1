//! What is probably not meant in a rule: it is valid, and will not do what its author wants. Each becomes an admission
//! warning of at most 120 characters, which is what an API server shows whole.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::host::HostLabels;
use crate::json::metadata_map;
use crate::keys;
use crate::rule::{Expression, Rule, Test};
use crate::selector::{self, requirement};
use crate::steps::step;
use crate::template::{self, Kind};
use crate::text::{MAX_WARNING, truncate};

/// Most comparisons of values in the search for terms that contradict themselves. A rule that takes more gets no warning.
const MAX_COMPARISONS: usize = 1 << 16;

/// The cluster in which a rule is checked.
#[derive(Debug, Clone, Copy)]
pub struct LintContext<'a> {
    /// Node labels that name the host of a DPU.
    pub host_labels: &'a HostLabels,
    /// The tenant that owns the rule; `None` where it isn't known.
    pub tenant: Option<&'a str>,
    /// How many DPUs the rule's tenant has; `None` where that isn't known, as in a tenant's own cluster.
    pub dpus: Option<usize>,
}

/// What a doubt about a rule is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doubt {
    /// A container reads what nothing writes.
    Reference,
    /// Something is written otherwise in companions.
    Quotes,
    /// Where companions may run is narrower than the rule looks, or there is no place yet.
    Placement,
    /// A claim may get devices of another host.
    AnyHost,
    /// No node can ever take a companion.
    NoNode,
    /// No workload can ever match.
    NoWorkload,
}

/// Everything that is probably not meant.
pub fn rule(rule: &Rule, around: &LintContext<'_>) -> Vec<String> {
    doubts(rule, around).into_iter().map(|(_, warning)| warning).collect()
}

/// The same, and what each is about.
pub fn doubts(rule: &Rule, around: &LintContext<'_>) -> Vec<(Doubt, String)> {
    type Look = fn(&Rule, &Value, &LintContext<'_>, &mut Vec<String>);
    let template = rule.template();
    let looks: [(Doubt, Look); 6] = [
        (Doubt::Reference, |rule, template, _, warnings| downward_api(rule, template, warnings)),
        (Doubt::Quotes, |_, template, _, warnings| quotes(template, warnings)),
        (Doubt::Placement, placement),
        (Doubt::AnyHost, |rule, _, _, warnings| hostless(rule, warnings)),
        (Doubt::NoNode, |_, template, around, warnings| contradictions(template, around, warnings)),
        (Doubt::NoWorkload, |rule, _, _, warnings| {
            let both = matches_nothing(rule);
            warnings.extend(both.map(|both| format!("spec.workloadTerms: no workload can match: {both}")));
        }),
    ];
    let mut doubts = Vec::new();
    for (doubt, look) in looks {
        let mut warnings = Vec::new();
        look(rule, &template, around, &mut warnings);
        doubts.extend(
            warnings.into_iter().map(|warning| (doubt, truncate(&warning, MAX_WARNING).into_owned())),
        );
    }
    doubts
}

/// A claim isn't bound to a node until a Pod that uses it is.
fn hostless(rule: &Rule, warnings: &mut Vec<String>) {
    let same_node = rule.policy().is_by_host();
    if rule.kind() == Kind::Claim && same_node && rule.devices().host_attribute().is_none() {
        warnings.push(
            "without deviceHostAttribute the claim fits devices of any host; the first Pod that uses it decides"
                .to_owned(),
        );
    }
}

/// Downward-API references to annotations that nothing writes: the container doesn't start, or sees an empty file.
fn downward_api(rule: &Rule, template: &Value, warnings: &mut Vec<String>) {
    let mut written: BTreeSet<&str> = rule.injections().map(|(annotation, _)| annotation).collect();
    written.extend(metadata_map(template, "annotations").keys().map(String::as_str));
    for path in &field_paths(template) {
        let double = template::double_quoted(path).filter(|(map, _)| *map == "metadata.annotations");
        let single = || path.strip_prefix("metadata.annotations['")?.strip_suffix("']");
        let Some(key) = double.map(|(_, key)| key).or_else(single) else { continue };
        if !written.contains(key) && !keys::is_own(key) && !keys::is_of_network(key) {
            warnings.push(format!("no workloadInfoInject writes the annotation {key} that a fieldRef reads"));
        }
    }
}

/// Paths of the downward API with double quotes.
fn quotes(template: &Value, warnings: &mut Vec<String>) {
    let paths = field_paths(template);
    let double = paths.iter().filter(|path| template::double_quoted(path).is_some());
    warnings.extend(double.map(|path| {
        format!("fieldPath {path}: companions get it with single quotes, as Kubernetes needs it")
    }));
}

/// Every `fieldRef.fieldPath`.
fn field_paths(template: &Value) -> BTreeSet<String> {
    let mut paths = BTreeSet::new();
    template::field_paths(&mut template.clone(), &mut |path| _ = paths.insert(path.clone()));
    paths
}

fn placement(rule: &Rule, template: &Value, around: &LintContext<'_>, warnings: &mut Vec<String>) {
    let selector = template.pointer("/spec/nodeSelector").and_then(Value::as_object);
    let pinned = |selector: &Map<String, Value>| {
        around.host_labels.keys().find_map(|key| Some(selector.get(key)?.as_str()?.to_owned()))
    };
    if let Some(host) = selector.and_then(pinned)
        && rule.policy().is_by_host()
    {
        let policy = rule.policy().as_str();
        warnings.push(format!(
            "template: nodeSelector is for host {host} alone; {policy} fits only its workloads"
        ));
    }
    if selector.is_some_and(|s| s.contains_key(keys::NODE_TENANT)) {
        warnings.push(format!("template: nodeSelector {} is set by Outrigger; remove it", keys::NODE_TENANT));
    }
    let terms = selector::terms(template).iter().enumerate();
    let dropped =
        terms.flat_map(|(t, term)| requirement::unbounded(term, &format!("nodeSelectorTerms[{t}]")));
    // Without another term no node can match, and that is another warning.
    if selector::contradiction(template).is_none() {
        warnings.extend(dropped.map(|fault| format!("template: {fault}; its term is dropped")));
    }
    if around.dpus == Some(0) {
        warnings.push("the tenant has no DPU: companions will wait for one".to_owned());
    }
}

/// Selectors that exclude each other, or every DPU of the tenant.
fn contradictions(template: &Value, around: &LintContext<'_>, warnings: &mut Vec<String>) {
    if let Some(both) = selector::contradiction(template) {
        warnings.push(format!("template: no node can match: {both}"));
    } else if around.tenant.is_some_and(|tenant| excludes_own(template, tenant)) {
        warnings.push("template: its node affinity or selector excludes every DPU of the tenant".to_owned());
    }
}

/// Whether a template selects Nodes of others, for which its companions would wait for ever.
fn excludes_own(template: &Value, tenant: &str) -> bool {
    let mut isolated = template.clone();
    selector::require(&mut isolated, keys::NODE_TENANT, tenant).is_ok()
        && selector::contradiction(&isolated).is_some()
}

/// Why no workload can match: the first contradiction, if every term has one. A rule that is too large to compare has none.
fn matches_nothing(rule: &Rule) -> Option<String> {
    let mut left = MAX_COMPARISONS;
    let terms = rule.terms().iter();
    let of_every_term: Option<Vec<String>> = terms.map(|term| contradiction(term, &mut left)).collect();
    of_every_term?.into_iter().next()
}

/// Two expressions of a term that exclude each other, among those that there is time to compare.
fn contradiction(term: &[Expression], left: &mut usize) -> Option<String> {
    let values = |test: &Test| match test {
        Test::In(values) | Test::NotIn(values) => values.len(),
        _ => 1,
    };
    for (i, a) in term.iter().enumerate() {
        for b in &term[..i] {
            step();
            let compared = values(&a.test) + values(&b.test);
            if compared > *left {
                return None;
            }
            *left -= compared;
            if a.path == b.path && (excludes(&a.test, &b.test) || excludes(&b.test, &a.test)) {
                return Some(format!("{b} and {a}"));
            }
        }
    }
    None
}

fn excludes(a: &Test, b: &Test) -> bool {
    match (a, b) {
        (Test::In(a), Test::In(b)) => a.iter().all(|value| b.binary_search(value).is_err()),
        (Test::In(a), Test::NotIn(b)) => a.iter().all(|value| b.binary_search(value).is_ok()),
        (Test::DoesNotExist, Test::In(_) | Test::Exists | Test::Gt(_) | Test::Lt(_)) => true,
        (Test::Gt(low), Test::Lt(high)) => high.saturating_sub(*low) < 2,
        (Test::Gt(limit), Test::In(values)) => {
            values.iter().all(|v| v.parse::<i64>().is_ok_and(|v| v <= *limit))
        }
        (Test::Lt(limit), Test::In(values)) => {
            values.iter().all(|v| v.parse::<i64>().is_ok_and(|v| v >= *limit))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::tests::{compiled, named};
    use crate::rule::{DpuSelectionPolicy, ExpressionSpec, InjectionSpec, Operator, RuleSpec};
    use serde_json::json;

    fn warnings(
        terms: &[&[(&str, Operator, &[&str])]],
        policy: DpuSelectionPolicy,
        pod: Value,
        dpus: usize,
    ) -> Vec<String> {
        let expression =
            |(key, operator, values): &(&str, Operator, &[&str])| ExpressionSpec::new(key, *operator, values);
        let mut template =
            json!({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "c"}]}});
        json_patch::merge(&mut template, &pod);
        let spec = RuleSpec {
            terms: terms.iter().map(|term| term.iter().map(expression).collect()).collect(),
            injections: vec![InjectionSpec::new(".state.nodeName", "tenant-node-name")],
            policy,
            template: template.into(),
            ..named("r")
        };
        rule(
            &compiled(spec),
            &LintContext { host_labels: Default::default(), tenant: Some("blue"), dpus: Some(dpus) },
        )
    }

    const ANY: &[&[(&str, Operator, &[&str])]] = &[&[("@", Operator::Exists, &[])]];

    #[test]
    fn a_reference_to_an_annotation_that_nothing_writes() {
        let env = |path: &str| json!({"spec": {"containers": [{"name": "c", "env": [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": path}}}]}]}});
        let say = |path: &str| warnings(ANY, DpuSelectionPolicy::SameNode, env(path), 1);
        assert_eq!(say("metadata.annotations['tenant-node-name']"), Vec::<String>::new());
        assert_eq!(say("spec.nodeName"), Vec::<String>::new());
        assert_eq!(
            say("metadata.annotations['tenant-node-node']"),
            ["no workloadInfoInject writes the annotation tenant-node-node that a fieldRef reads"]
        );
        let volume = json!({"spec": {"volumes": [{"name": "v", "downwardAPI": {"items": [
            {"path": "w", "fieldRef": {"fieldPath": "metadata.annotations[\"tenant-node-name\"]"}}]}}]}});
        let said = warnings(ANY, DpuSelectionPolicy::SameNode, volume, 1);
        assert_eq!(
            said,
            [
                "fieldPath metadata.annotations[\"tenant-node-name\"]: companions get it with single quotes, as Kubernetes needs it"
            ]
        );
        assert_eq!(say("metadata.annotations[\"absent\"]").len(), 2);
        assert_eq!(say("metadata.labels[\"absent\"]").len(), 1, "labels aren't looked for");
        for of_network in ["k8s.v1.cni.cncf.io/network-status", "k8s.ovn.org/pod-networks"] {
            assert_eq!(say(&format!("metadata.annotations['{of_network}']")), Vec::<String>::new());
        }
    }

    #[test]
    fn a_rule_that_can_match_nothing() {
        use Operator::*;
        let say =
            |terms: &[&[(&str, Operator, &[&str])]]| warnings(terms, DpuSelectionPolicy::Any, json!({}), 1);
        const NODE: &str = ".state.nodeName";
        for term in [
            &[(NODE, In, &["a"][..]), (NODE, In, &["b"])][..],
            &[(NODE, In, &["a"]), (NODE, NotIn, &["a", "b"])],
            &[(NODE, Exists, &[]), (NODE, DoesNotExist, &[])],
            &[(NODE, Gt, &["5"]), (NODE, Lt, &["6"])],
            &[(NODE, Gt, &["5"]), (NODE, In, &["3", "5"])],
            &[(NODE, In, &["7"]), (NODE, Lt, &["7"])],
        ] {
            let said = say(&[term]);
            assert!(said.len() == 1 && said[0].contains("no workload can match"), "{term:?}: {said:?}");
            assert_eq!(say(&[term, &[("@", Exists, &[])]]), Vec::<String>::new(), "one term is left");
        }
        assert_eq!(say(&[&[(NODE, Gt, &["5"]), (NODE, Lt, &["7"])]]), Vec::<String>::new());
        assert_eq!(say(&[&[(NODE, NotIn, &["a"]), (NODE, DoesNotExist, &[])]]), Vec::<String>::new());
    }

    #[test]
    fn terms_that_take_too_many_comparisons_get_no_warning() {
        const VALUES: usize = 1024;
        let among = |key: &str, from: usize| ExpressionSpec {
            key: key.into(),
            operator: Operator::In,
            values: (from..from + VALUES).map(|value| value.to_string()).collect(),
        };
        // Each pair takes as many as both have values, and the last pair is the one that excludes each other.
        let said = |expressions: usize| {
            let others = (2..expressions).map(|i| among(&format!(".state.extra.labels.k{i}"), 0));
            let last = [among(".state.nodeName", 0), among(".state.nodeName", VALUES)];
            let terms = vec![others.chain(last).collect()];
            matches_nothing(&compiled(RuleSpec { terms, ..named("r") })).is_some()
        };
        // There is time for 32 pairs: eight expressions are 28, nine are 36.
        assert_eq!([2, 8, 9].map(said), [true, true, false]);
    }

    #[test]
    fn a_bound_that_is_no_integer() {
        let say = |terms: Value| {
            let required = json!({"nodeSelectorTerms": terms});
            let affinity =
                json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}});
            warnings(ANY, DpuSelectionPolicy::Any, json!({"spec": {"affinity": affinity}}), 1)
        };
        let version = |value: &str| json!({"matchExpressions": [{"key": "fw-version", "operator": "Gt", "values": [value]}]});
        assert_eq!(
            say(json!([version("24.10")])),
            ["template: no node can match: fw-version Gt [24.10], no integer: the scheduler drops the term"]
        );
        assert_eq!(
            say(json!([version("24"), version("24.10")])),
            [
                "template: nodeSelectorTerms[1].matchExpressions[0].values: is [24.10]; Gt needs one integer; its term is dropped"
            ]
        );
        assert_eq!(say(json!([version("24")])), Vec::<String>::new());
    }

    #[test]
    fn selectors_against_the_policy_and_no_dpu() {
        let pinned = json!({"spec": {"nodeSelector": {keys::DPU_HOST: "host-a"}}});
        let said = warnings(ANY, DpuSelectionPolicy::SameNode, pinned.clone(), 1);
        assert!(said.len() == 1 && said[0].contains("host-a"), "{said:?}");
        assert_eq!(warnings(ANY, DpuSelectionPolicy::Any, pinned, 1), Vec::<String>::new());
        let of = |tenant: &str| {
            let term = json!({"matchExpressions": [{"key": keys::NODE_TENANT, "operator": "In", "values": [tenant]}]});
            let required = json!({"nodeSelectorTerms": [term]});
            json!({"spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}})
        };
        let said = warnings(ANY, DpuSelectionPolicy::Any, of("green"), 1);
        assert_eq!(said, ["template: its node affinity or selector excludes every DPU of the tenant"]);
        assert_eq!(warnings(ANY, DpuSelectionPolicy::Any, of("blue"), 1), Vec::<String>::new());
        let said = warnings(ANY, DpuSelectionPolicy::Any, json!({}), 0);
        assert_eq!(said, ["the tenant has no DPU: companions will wait for one"]);
        let long = json!({"spec": {"nodeSelector": {keys::DPU_HOST: "x".repeat(200)}}});
        let said = warnings(ANY, DpuSelectionPolicy::SameNode, long, 1);
        assert_eq!(said[0].chars().count(), MAX_WARNING);
    }
}
