use outrigger_core::ids::RuleName;
use outrigger_core::rule::{DpuSelectionPolicy, ExpressionSpec, InjectionSpec, Operator, RuleSpec};
use outrigger_core::tenant::nodes::Taint;
use outrigger_core::texts::Texts;

use super::*;

/// The workload of the documentation.
fn nginx() -> Workload {
    let workload = json!({
        "metadata": {"id": "aac076f4-a565-4ed0-aac2-3da5698f5a78", "orchestrator": "kubernetes",
            "resourceType": "v1/Pod", "resourceName": "nginx", "resourceNamespace": "default"},
        "state": {"nodeName": "cloud-dev-12", "ready": true, "extra": {"labels": {"k8s-app": "nginx"},
            "annotations": {"k8s.v1.cni.cncf.io/networks-status": "[{}]"}}}});
    serde_json::from_value(workload).unwrap()
}

fn rule(
    terms: &[&[(&str, Operator, &[&str])]],
    policy: DpuSelectionPolicy,
    spec: &serde_json::Value,
) -> Arc<Rule> {
    let expression =
        |(key, operator, values): &(&str, Operator, &[&str])| ExpressionSpec::new(key, *operator, values);
    let mut template = json!({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "c"}]}});
    json_patch::merge(&mut template, &json!({"spec": spec}));
    let spec = RuleSpec {
        terms: terms.iter().map(|term| term.iter().map(expression).collect()).collect(),
        injections: vec![InjectionSpec::new("", "all")],
        policy,
        template: template.into(),
        ..RuleSpec::new(RuleName::new("firewall").unwrap())
    };
    Arc::new(Rule::compile(spec).unwrap())
}

/// A DPU in a host, of a tenant where one is given.
fn dpu(name: &str, host: &str, tenant: Option<&str>) -> Node {
    let mut node = Node { name: name.into(), ..Node::default() };
    node.labels.insert(keys::DPU_HOST.into(), host.into());
    if let Some(tenant) = tenant {
        node.labels.insert(keys::NODE_TENANT.into(), tenant.into());
        let taint = Taint { key: keys::TENANT.into(), value: tenant.into(), effect: "NoSchedule".into() };
        node.taints.push(taint);
    }
    node
}

fn key(rule: &Rule, workload: &Workload) -> CompanionKey {
    CompanionKey::of(rule.name(), &workload.id)
}

fn explained(rule: &Arc<Rule>, workload: Workload, nodes: Option<&[Node]>) -> Explanation {
    explained_on(None, rule, workload, nodes, Default::default())
}

/// The same of the companion on a DPU, where hosts have these names.
fn explained_on(
    dpu: Option<&str>,
    rule: &Arc<Rule>,
    workload: Workload,
    nodes: Option<&[Node]>,
    host_names: &HostNames,
) -> Explanation {
    let blue = TenantId::new("blue").unwrap();
    let around = ExplanationContext {
        tenant: Some(&blue),
        namespace: "tenant-blue",
        host_labels: Default::default(),
        host_names,
        nodes,
        sent: &Selection::default(),
        unknown_attributes: &UnknownAttributes::default(),
    };
    let key = key(rule, &workload);
    let key = dpu.map_or(key.clone(), |dpu| key.on(dpu));
    explain(rule, &Arc::new(workload), &key, &around)
}

const ANY: &[&[(&str, Operator, &[&str])]] = &[&[("@", Operator::Exists, &[])]];

#[test]
fn each_failed_expression_says_what_would_have_to_change() {
    use Operator::{DoesNotExist, Exists, Gt, In, Lt, NotIn};
    const APP: &str = "state.extra.labels.k8s-app";
    const NONE: &str = ".state.extra.labels.x";
    for (key, operator, values, wants) in [
        (APP, In, &["db"][..], "\"db\""),
        (APP, In, &["db", "api"], "one of \"api\", \"db\""),
        (NONE, In, &["db"], "\"db\""),
        (APP, NotIn, &["nginx"], "none of \"nginx\""),
        (NONE, Exists, &[], "it to be there"),
        (APP, DoesNotExist, &[], "it to be absent"),
        (APP, Gt, &["5"], "an integer greater than 5"),
        (APP, Lt, &["5"], "an integer less than 5"),
    ] {
        let is = if key == NONE { "x is absent" } else { "k8s-app is \"nginx\"" };
        let change = format!(".state.extra.labels.{is}, the rule wants {wants}");
        let rule = rule(
            &[&[(".state.ready", In, &["true"]), (key, operator, values)]],
            DpuSelectionPolicy::Any,
            &json!({}),
        );
        let explanation = explained(&rule, nginx(), None);
        assert_eq!(
            (explanation.outcome, explanation.terms.len(), explanation.terms[0].passes),
            (CompanionOutcome::NoMatch, 1, false)
        );
        let [ready, other] = &explanation.terms[0].expressions[..] else { panic!("{explanation:?}") };
        assert_eq!((ready.passes, ready.found.as_deref(), &ready.change), (true, Some("true"), &None));
        assert_eq!((other.passes, other.change.as_ref()), (false, Some(&change)));
    }
    let many: Vec<String> = (0..20).map(|i| format!("v{i:02}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let explanation =
        explained(&rule(&[&[(APP, In, &many)]], DpuSelectionPolicy::Any, &json!({})), nginx(), None);
    assert!(explanation.terms[0].expressions[0].change.as_deref().unwrap().ends_with("\"v07\" and 12 more"));
    assert_eq!(explanation.terms[0].expressions[0].values.len(), 20);
}

#[test]
fn one_term_is_enough_and_same_node_waits_for_the_node() {
    use Operator::{Exists, In};
    let terms: &[&[(&str, Operator, &[&str])]] =
        &[&[(".state.extra.labels.k8s-app", In, &["db"])], &[(".metadata.id", Exists, &[])]];
    let same = rule(terms, DpuSelectionPolicy::SameNode, &json!({}));
    let explanation = explained(&same, nginx(), None);
    assert_eq!(explanation.outcome, CompanionOutcome::Companion);
    assert_eq!(explanation.terms.iter().map(|t| t.passes).collect::<Vec<_>>(), [false, true]);
    assert_eq!(explanation.placement, None, "the Nodes aren't known");
    assert!(explanation.companion.starts_with("firewall-"));
    let unbound = Workload { node_name: None, ..nginx() };
    let waiting = explained(&same, unbound.clone(), Some(&[]));
    assert_eq!((waiting.outcome, waiting.placement), (CompanionOutcome::Waiting, None));
    let any = explained(&rule(terms, DpuSelectionPolicy::Any, &json!({})), unbound, Some(&[]));
    assert_eq!(any.outcome, CompanionOutcome::Companion);
    assert_eq!(any.placement.unwrap().problem.as_deref(), Some("tenant blue has no DPU"));
}

#[test]
fn each_companion_on_all_dpus_is_explained_with_its_own() {
    let rule = rule(ANY, DpuSelectionPolicy::SameNodeAll, &json!({}));
    let nodes = [dpu("d1", "cloud-dev-12", Some("blue")), dpu("d2", "cloud-dev-12", Some("blue"))];
    let of = |dpu: Option<&str>, nodes: Option<&[Node]>| {
        explained_on(dpu, &rule, nginx(), nodes, Default::default())
    };
    let [first, second] = ["d1", "d2"].map(|name| {
        let explanation = of(Some(name), Some(&nodes));
        assert_eq!(explanation.outcome, CompanionOutcome::Companion);
        let placement = explanation.placement.unwrap();
        let fits: Vec<(&str, bool)> =
            placement.nodes.iter().map(|node| (node.node.as_str(), node.obstacles.is_empty())).collect();
        assert_eq!(fits, [(name, true)]);
        explanation.companion
    });
    assert_ne!(first, second);
    for (nodes, words) in [(None, "Nodes can't be seen"), (Some(&[][..]), "none of host cloud-dev-12")] {
        let waiting = of(None, nodes);
        assert_eq!((waiting.outcome, waiting.companion.as_str()), (CompanionOutcome::Waiting, ""));
        assert!(waiting.reason.as_deref().is_some_and(|reason| reason.contains(words)), "{waiting:?}");
    }
}

#[test]
fn what_is_about_something_else_or_too_large() {
    let rule = rule(ANY, DpuSelectionPolicy::Any, &json!({}));
    let machine = Workload { resource_type: "v1/VM".into(), ..nginx() };
    let explanation = explained(&rule, machine, None);
    assert_eq!(explanation.outcome, CompanionOutcome::NoMatch);
    assert_eq!(explanation.reason.as_deref(), Some("the rule is about v1/Pod, the workload is v1/VM"));
    let large = Workload { annotations: Texts::from([("k", "x".repeat(300 << 10))]), ..nginx() };
    let explanation = explained(&rule, large, None);
    assert_eq!(explanation.outcome, CompanionOutcome::Refused);
    assert!(explanation.reason.unwrap().contains("at most 262144 are allowed"));
    assert!(explanation.terms[0].expressions[0].found.as_deref().unwrap().len() < 130);
}

#[test]
fn where_it_may_run_and_why_not() {
    // The documented workload runs on cloud-dev-12.
    const HOST: &str = "cloud-dev-12";
    let nodes = [
        dpu("d1", HOST, Some("blue")),
        dpu("d2", HOST, None),
        dpu("d3", HOST, Some("red")),
        dpu("e1", "cloud-dev-13", Some("blue")),
    ];
    let same = |spec: &serde_json::Value, nodes: &[Node]| {
        explained(&rule(ANY, DpuSelectionPolicy::SameNode, spec), nginx(), Some(nodes)).placement.unwrap()
    };
    let fits = |placement: &Placement| -> Vec<String> {
        let free = placement.nodes.iter().filter(|place| place.obstacles.is_empty());
        free.map(|place| place.node.clone()).collect()
    };
    let placement = same(&json!({}), &nodes);
    assert_eq!((fits(&placement), placement.problem.as_deref()), (vec!["d1".to_owned()], None));
    assert_eq!(placement.nodes.len(), 3, "those of the host");
    assert_eq!(
        placement.nodes[1].obstacles,
        [format!("{} is absent, the Pod requires In [blue]", keys::NODE_TENANT)]
    );
    assert_eq!(placement.nodes[2].obstacles.len(), 2, "label and taint");

    let placement = same(&json!({}), &nodes[3..]);
    assert_eq!(
        (placement.nodes.len(), placement.problem.as_deref()),
        (
            0,
            Some(
                "no DPU for host cloud-dev-12: no Node has the label provisioning.dpu.nvidia.com/dpunode-name=cloud-dev-12 or \
                 provisioning.dpu.nvidia.com/host=cloud-dev-12"
            )
        )
    );
    assert_eq!(
        same(&json!({}), &nodes[1..]).problem.as_deref(),
        Some("no DPU of host cloud-dev-12 is tenant blue's: d2 belongs to nobody, d3 belongs to tenant red")
    );
    let elsewhere = json!({"nodeSelector": {"zone": "a"}});
    let placement = same(&elsewhere, &nodes[..1]);
    assert_eq!(placement.problem.as_deref(), Some("no DPU of host cloud-dev-12 will do"));
    assert_eq!(placement.nodes[0].obstacles, ["zone is absent, nodeSelector wants \"a\""]);
    let pinned = json!({"nodeSelector": {keys::DPU_NODE_NAME: "cloud-dev-13"}});
    let problem = same(&pinned, &nodes).problem.unwrap();
    assert!(problem.starts_with("no Node at all can match") && problem.contains("cloud-dev-13"), "{problem}");

    let any =
        explained(&rule(ANY, DpuSelectionPolicy::Any, &json!({})), nginx(), Some(&nodes)).placement.unwrap();
    assert_eq!(fits(&any), ["d1", "e1"]);
}

#[test]
fn a_workload_is_on_the_host_that_its_node_is() {
    let mut host_names = HostNames::default();
    host_names.insert("cloud-dev-12", "serial-1").unwrap();
    let nodes = [dpu("d1", "serial-1", Some("blue")), dpu("d2", "cloud-dev-12", Some("blue"))];
    let of = |node: &str, nodes: &[Node]| {
        let workload = Workload { node_name: Some(node.into()), ..nginx() };
        let rule = rule(ANY, DpuSelectionPolicy::SameNode, &json!({}));
        explained_on(None, &rule, workload, Some(nodes), &host_names)
    };
    let places = of("cloud-dev-12", &nodes).placement.unwrap().nodes;
    assert!(places.len() == 1 && places[0].node == "d1" && places[0].obstacles.is_empty(), "{places:?}");
    let problem = of("cloud-dev-12", &nodes[1..]).placement.unwrap().problem.unwrap();
    assert!(problem.starts_with("no DPU for host serial-1 (node cloud-dev-12): "), "{problem}");
    let refused = of("serial-1", &nodes);
    assert_eq!(refused.outcome, CompanionOutcome::Refused);
    assert!(refused.reason.as_deref().is_some_and(|why| why.contains("spec.hostNames")), "{refused:?}");
}

#[test]
fn without_a_tenant_the_isolation_is_left_out() {
    let around = ExplanationContext {
        tenant: None,
        namespace: "",
        host_labels: Default::default(),
        host_names: Default::default(),
        nodes: Some(&[Node { taints: Vec::new(), ..dpu("d1", "cloud-dev-12", None) }]),
        sent: &Selection::default(),
        unknown_attributes: &UnknownAttributes::default(),
    };
    for policy in [DpuSelectionPolicy::SameNode, DpuSelectionPolicy::Any] {
        let rule = rule(ANY, policy, &json!({}));
        let explanation = explain(&rule, &Arc::new(nginx()), &key(&rule, &nginx()), &around);
        assert_eq!(explanation.outcome, CompanionOutcome::Companion);
        assert_eq!(explanation.placement.unwrap().problem, None, "{policy:?}");
    }
}

#[test]
fn the_documented_json() {
    let rule = rule(
        &[&[(".state.extra.labels.k8s-app", Operator::In, &["db"])]],
        DpuSelectionPolicy::SameNode,
        &json!({}),
    );
    let explanation = explained(&rule, nginx(), Some(&[]));
    assert_eq!(
        serde_json::to_value(&explanation).unwrap(),
        json!({"outcome": "NoMatch", "companion": explanation.companion, "terms": [{"passes": false, "expressions": [
            {"key": ".state.extra.labels.k8s-app", "operator": "In", "values": ["db"], "found": "nginx", "passes": false,
             "change": ".state.extra.labels.k8s-app is \"nginx\", the rule wants \"db\""}]}]})
    );
}
