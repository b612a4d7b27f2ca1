use clap::FromArgMatches;
use serde_json::{Value, json};

use super::*;
use crate::document::Readable;

const CLUSTER: &str = include_str!("../../../../../docs/examples/cluster.yaml");
const STORED: &str = include_str!("../../../../../docs/examples/pods/stored.yaml");

/// A namespace that is offloaded, with Pods.
const OFFLOADED: &str = include_str!("tests/offloaded.yaml");

const SHIPPED: &str = include_str!("../../../../../webhooks/policies.yaml");

const POLICIES: &str = r"
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: pods-of-tenants}
spec:
  matchConstraints:
    namespaceSelector: {matchExpressions: [{key: outrigger.dev/tenant, operator: Exists}]}
    resourceRules: [{apiGroups: [''], apiVersions: [v1], operations: [CREATE], resources: [pods]}]
  matchConditions: [{name: not-the-manager, expression: 'true'}]
  validations: []
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: bound}
spec: {policyName: pods-of-tenants, validationActions: [Deny, Audit]}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: bound-elsewhere}
spec:
  policyName: pods-of-tenants
  matchResources: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: other}}}
  validationActions: [Warn]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: unbound}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: ['*'], apiVersions: ['*'], operations: ['*'], resources: ['*']}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: nodes}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: [''], apiVersions: [v1], operations: ['*'], resources: [nodes]}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: nodes}
spec: {policyName: nodes, validationActions: [Deny]}
";

/// The report about a Pod, as JSON, and whether it is refused; `None` if there is no such Pod.
fn explained(texts: &[&str], namespace: &str, name: &str) -> Option<(Value, bool)> {
    let (report, refused, _) = explained_with_text(texts, namespace, name, Vec::new())?;
    Some((report, refused))
}

/// The same with the text. `notes`: what could not be read.
fn explained_with_text(
    texts: &[&str],
    namespace: &str,
    name: &str,
    notes: Vec<String>,
) -> Option<(Value, bool, String)> {
    let state = State::of_text("f", &texts.join("\n---\n")).unwrap();
    let command = PodArgs::augment_args(clap::Command::new("pod"));
    let matches = command.get_matches_from(["pod", name, "-n", namespace]);
    let args = PodArgs::from_arg_matches(&matches).unwrap();
    let name = PodName { namespace: namespace.to_owned(), name: name.to_owned() };
    let report = args.report(state, &name, notes).unwrap()?;
    let text = report.document().uncoloured();
    assert!(text.contains(&format!("{namespace}/{}", name.name)));
    Some((serde_json::to_value(&report).unwrap(), report.is_refused(), text))
}

/// The same of the Pod p among objects.
fn of(objects: &[Value], namespace: &str) -> (Value, bool, String) {
    let texts: Vec<String> = objects.iter().map(ToString::to_string).collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    explained_with_text(&texts, namespace, "p", Vec::new()).unwrap()
}

fn namespace(name: &str, labels: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
}

/// The Pod p as a cluster has it.
fn pod(namespace: &str, change: Value) -> Value {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "p", "namespace": namespace, "uid": "u"},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    json_patch::merge(&mut pod, &change);
    pod
}

/// A Pod with the changes of a verdict.
fn changed(mut pod: Value, verdict: &Value) -> Value {
    let patch: json_patch::Patch = serde_json::from_value(verdict["patch"].clone()).unwrap();
    json_patch::patch(&mut pod, &patch).unwrap();
    pod
}

/// Paths and values of what a Pod has of a step.
fn marks(report: &Value, step: &str) -> Vec<String> {
    let found = report["recorded"].as_array().unwrap().iter().find(|recorded| recorded["step"] == step);
    let marks = found.map(|found| found["marks"].as_array().unwrap().clone()).unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    marks.iter().map(|mark| format!("{}: {}", text(&mark["path"]), text(&mark["value"]))).collect()
}

const TERM: &str =
    "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]";

/// The names of the steps.
fn steps(of: &Value) -> Vec<&str> {
    of["steps"].as_array().unwrap().iter().map(|step| step["step"].as_str().unwrap()).collect()
}

#[test]
fn a_companion_is_decided_again_from_the_template_of_its_rule() {
    let (report, refused) =
        explained(&[CLUSTER, STORED], "tenant-blue", "firewall-573e560607f4a185").unwrap();
    assert!(!refused);
    assert_eq!(steps(&report["creation"]), ["companion", "isolation"]);
    assert_eq!(report["creation"]["steps"][0]["name"], "firewall");
    assert_eq!(report["creation"]["steps"][1]["kind"], "Tenant");
    assert_eq!(report["creation"]["from"], "the template of WorkloadRule tenant-blue/firewall");
    assert_eq!(report["stored"]["patch"], json!([]), "it has everything");
    assert_eq!(report["node"], "host-a-dpu");
    assert_eq!(report["roles"].as_array().unwrap().len(), 2);
    let companion = &report["roles"][0];
    assert_eq!(
        json!([companion["role"], companion["kind"], companion["namespace"], companion["name"]]),
        json!(["Companion", "WorkloadRule", "tenant-blue", "firewall"])
    );
    assert_eq!(companion["facts"][1], json!({"name": "workload", "value": "uid-of-shop-web-1"}));
    assert_eq!((&companion["facts"][3]["value"], &companion["problems"]), (&json!("host-a-dpu"), &json!([])));
    // Each step has its own changes.
    let operations = |at: usize| report["creation"]["steps"][at]["operations"].to_string();
    assert!(operations(0).contains("host-a") && operations(0).contains("/spec/schedulingGates"), "{report}");
    assert!(operations(1).contains("blue") && operations(1).contains("/spec/tolerations"), "{report}");
    assert!(!operations(0).contains("blue") && !operations(1).contains("schedulingGates"), "{report}");
    // And the Pod has each step's.
    assert_eq!(report["recorded"][1]["name"], "blue");
    let node = "outrigger.dev.node-restriction.kubernetes.io/tenant In [blue]";
    // One term for each label that may name the host.
    let second = TERM.replace("[0]", "[1]");
    let isolation = [
        format!("{TERM}: {node}"),
        format!("{second}: {node}"),
        "spec.tolerations[0]: outrigger.dev/tenant=blue:NoSchedule".into(),
    ];
    assert_eq!(marks(&report, "isolation"), isolation);
    let companion = marks(&report, "companion");
    let hosts = [
        format!("{TERM}: provisioning.dpu.nvidia.com/dpunode-name In [host-a]"),
        format!("{second}: provisioning.dpu.nvidia.com/host In [host-a]"),
    ];
    for mark in ["metadata.annotations[tenant-node-name]: host-a", &hosts[0], &hosts[1]] {
        assert!(companion.iter().any(|found| found == mark), "{mark}: {companion:?}");
    }
    assert!(!companion.iter().any(|mark| mark.contains("In [blue]")), "{companion:?}");
}

#[test]
fn a_companion_of_a_rule_whose_template_is_malformed_is_validated_as_it_is() {
    let template = "    spec:\n      nodeSelector: {dpu-model: bf3}\n      containers:\n        - name: firewall\n          image: registry.example/firewall:1\n";
    let malformed = CLUSTER.replacen(template, "    spec: a text\n", 1);
    assert_ne!(malformed, CLUSTER);
    let (report, _) = explained(&[&malformed, STORED], "tenant-blue", "firewall-573e560607f4a185").unwrap();
    assert_eq!(report["creation"], Value::Null, "{report}");
    assert_eq!(report["roles"][0]["name"], "firewall");
}

#[test]
fn a_companion_reports_what_has_become_wrong_with_it() {
    let problem = |from: &str, to: &str| {
        let (cluster, stored) = (CLUSTER.replace(from, to), STORED.replace(from, to));
        assert_ne!((cluster.as_str(), stored.as_str()), (CLUSTER, STORED));
        let (report, _) =
            explained(&[&cluster, &stored], "tenant-blue", "firewall-573e560607f4a185").unwrap();
        report["roles"][0]["problems"][0].as_str().unwrap().to_owned()
    };
    for (from, to, expected) in [
        ("firewall:1\n", "firewall:2\n", "has another template or placement"),
        ("template-hash: 694290c3a3dc6a3b", "template-hash: x", "has another template or placement"),
        ("uid: ''", "uid: other", "by an earlier rule of this name"),
        (
            "kind: WorkloadRule\nmetadata:\n  name: firewall",
            "kind: WorkloadRule\nmetadata:\n  name: x",
            "no WorkloadRule tenant-blue/firewall is known",
        ),
        (
            "  nodeName: host-a-dpu\n",
            "  schedulingGates: [{name: outrigger.dev/admission}]\n",
            "still has the scheduling gate",
        ),
    ] {
        let found = problem(from, to);
        assert!(found.contains(expected), "{to}: {found}");
    }
}

#[test]
fn a_companion_that_may_be_anywhere_has_gone_through_its_step_too() {
    let cluster =
        CLUSTER.replace("spec:\n  workloadTerms:", "spec:\n  dpuSelectionPolicy: Any\n  workloadTerms:");
    assert_ne!(cluster, CLUSTER);
    let (report, _) = explained(&[&cluster, STORED], "tenant-blue", "firewall-573e560607f4a185").unwrap();
    assert_eq!(steps(&report["creation"]), ["companion", "isolation"]);
}

#[test]
fn a_companion_of_an_admin_rule_is_decided_again_too() {
    let rule = json!({"apiVersion": "workload.universe.nvidia.com/v1alpha1", "kind": "AdminWorkloadRule",
        "metadata": {"name": "r", "namespace": "universe", "uid": "rule-uid", "generation": 3},
        "spec": {"workloadTerms": [{"matchExpressions": [{"key": "@", "operator": "Exists"}]}],
            "template": {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    let tenant = json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": "blue"},
        "spec": {"hosts": ["host-a"]}});
    let companion = pod(
        "universe",
        json!({"metadata": {
        "labels": {"outrigger.dev/tenant": "blue", "outrigger.dev/rule": "r", "outrigger.dev/workload": "w"},
        "annotations": {"outrigger.dev/admin-rule": "r", "outrigger.dev/rule-uid": "rule-uid",
            "outrigger.dev/rule-generation": "3", "outrigger.dev/host": "host-a", "outrigger.dev/injected": "[]"}}}),
    );
    let (report, refused, text) = of(&[tenant, rule, companion], "universe");
    assert!(!refused, "{text}");
    assert_eq!(report["creation"]["from"], "the template of AdminWorkloadRule universe/r");
    assert_eq!(steps(&report["creation"]), ["companion", "isolation"], "{text}");
    assert_eq!(report["creation"]["steps"][0]["kind"], "AdminWorkloadRule");
    let role = &report["roles"][0];
    assert_eq!(
        json!([role["role"], role["kind"], role["generation"]]),
        json!(["Companion", "AdminWorkloadRule", 3])
    );
    assert_eq!(role["facts"][0], json!({"name": "tenant", "value": "blue"}));
}

#[test]
fn a_pod_of_an_offloaded_namespace_names_strategy_and_selector() {
    let labelled = || namespace("shop", json!({"liqo.io/scheduling-enabled": "true"}));
    let offloading = |strategy: &str, region: &str| {
        json!({"apiVersion": "offloading.liqo.io/v1beta1", "kind": "NamespaceOffloading",
            "metadata": {"name": "offloading", "namespace": "shop"},
            "spec": {"podOffloadingStrategy": strategy, "clusterSelector": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "region", "operator": "In", "values": [region]}]}]}}})
    };
    let (report, _, text) = of(&[labelled(), offloading("Remote", "eu"), pod("shop", json!({}))], "shop");
    assert_eq!((steps(&report["stored"]), &report["recorded"]), (vec!["offloading"], &json!([])), "{text}");
    for line in [
        "  in a namespace with NamespaceOffloading shop/offloading\n",
        "    podOffloadingStrategy: Remote: only on selected virtual nodes\n",
        "    clusterSelector: region In [eu]\n",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let old = changed(pod("shop", json!({})), &report["stored"]);
    let (report, _, _) = of(&[labelled(), offloading("Remote", "eu"), old.clone()], "shop");
    assert_eq!(report["stored"]["steps"], json!([]));
    assert_eq!(
        marks(&report, "offloading"),
        [
            format!("{TERM}: region In [eu] and liqo.io/type In [virtual-node]"),
            "spec.tolerations[0]: virtual-node.liqo.io/not-allowed:NoExecute".to_owned()
        ]
    );
    // The selector has changed since.
    let (report, _, text) = of(&[labelled(), offloading("Remote", "us"), old], "shop");
    assert_eq!(steps(&report["stored"]), ["offloading"]);
    assert!(text.contains("warning: no node can match this Pod"), "{text}");
    // Others stay as they are.
    let (report, _, text) =
        of(&[namespace("shop", json!({})), offloading("Local", "eu"), pod("shop", json!({}))], "shop");
    assert_eq!(report["stored"]["steps"], json!([]));
    assert!(text.contains("Local: Pods stay on local nodes"), "{text}");
    let exempt = pod("shop", json!({"spec": {"runtimeClassName": "liqo"}}));
    let (_, _, text) = of(&[labelled(), offloading("Remote", "eu"), exempt], "shop");
    assert!(text.contains("exempt: its runtimeClassName is liqo"), "{text}");
    // The namespace says that it is offloaded, and nothing says how: the webhook refuses the Pod after waiting.
    let (report, refused, text) = of(&[labelled(), pod("shop", json!({}))], "shop");
    assert_eq!((refused, &report["stored"]["refusal"]["code"]), (true, &json!(503)), "{text}");
}

#[test]
fn a_guest_names_machine_group_and_type() {
    let machine = |used: u32| {
        json!({"apiVersion": "imperator.tenzen-y.io/v1alpha1", "kind": "Machine",
            "metadata": {"name": "m", "uid": "m", "generation": 1, "labels": {"imperator.tenzen-y.io/machine-group": "g"}},
            "spec": {"nodePool": [{"name": "n1", "mode": "ready", "taint": true, "machineType": [{"name": "small"}]}],
                "machineTypes": [{"name": "small", "available": 2, "spec": {"cpu": "2", "memory": "4Gi"}}]},
            "status": {"availableMachines": [{"name": "small",
                "usage": {"maximum": 2, "reserved": 2 - used, "used": used, "waiting": 0}}]}})
    };
    let guest = |role: &str, type_: &str| {
        pod(
            "vms",
            json!({"metadata": {"uid": null, "labels": {"imperator.tenzen-y.io/pod-role": role,
            "imperator.tenzen-y.io/machine-group": "g", "imperator.tenzen-y.io/machine-type": type_}}}),
        )
    };
    let injected = || namespace("vms", json!({"imperator.tenzen.io/inject-resource": "enabled"}));
    // One that is yet to be created.
    let new = guest("guest", "small");
    let (report, refused, text) = of(&[injected(), machine(1), new.clone()], "vms");
    assert!(
        !refused && text.contains("\nas it is created\n  step machine: Machine m, type small\n"),
        "{text}"
    );
    assert!(text.contains("  guest of Machine m, type small\n    machine group: g\n"), "{text}");
    assert!(text.contains("    slots of the type: 2\n"), "{text}");
    assert_eq!(report["notes"], json!([]));
    let (report_full, refused, text) = of(&[injected(), machine(2), new.clone()], "vms");
    let webhook = &report_full["stored"]["refusal"]["webhook"];
    assert!(
        refused && text.contains("there is no <small> left") && webhook == "guests.outrigger.dev",
        "{text}"
    );
    // It has one of two slots, and doesn't compete for it with itself.
    let mut old = changed(new, &report["stored"]);
    old["metadata"]["uid"] = json!("u");
    let (report, refused, text) = of(&[injected(), machine(2), old], "vms");
    assert!(!refused, "{text}");
    assert_eq!(report["stored"]["steps"], json!([]), "{text}");
    let marked = marks(&report, "machine");
    for mark in [
        "spec.containers[0].resources: cpu 2, memory 4Gi",
        "spec.tolerations[0]: imperator.tenzen-y.io/small=g:NoSchedule",
    ] {
        assert!(marked.iter().any(|found| found == mark), "{mark}: {marked:?}");
    }
    let (report, refused, text) = of(&[injected(), machine(1), guest("guest", "big")], "vms");
    assert_eq!(report["roles"][0]["problems"][0], "Machine m has no machine type \"big\"", "{text}");
    assert!(refused, "{text}");
    let (report, refused, text) =
        of(&[namespace("vms", json!({})), machine(1), guest("guest", "small")], "vms");
    assert!(!refused && text.contains("so guests in it get no slots"), "{text}");
    assert_eq!(report["stored"]["steps"], json!([]));
    let (_, _, text) = of(&[injected(), machine(1), guest("reservation", "small")], "vms");
    assert!(
        text.contains("reservation of Machine m, type small\n") && text.contains("StatefulSet: g-small"),
        "{text}"
    );
}

#[test]
fn a_workload_of_a_tenants_cluster_is_one() {
    let waiting = pod(
        "shop",
        json!({"spec": {"readinessGates": [{"conditionType": "outrigger.dev/companions"}]},
        "status": {"conditions": [{"type": "outrigger.dev/Companions", "status": "False", "reason": "NotReady", "message": "one"}]}}),
    );
    let (report, _, text) = of(&[namespace("shop", json!({})), waiting], "shop");
    assert_eq!(marks(&report, "gate"), ["spec.readinessGates[0]: outrigger.dev/companions"]);
    assert!(text.contains("    companions: False NotReady: one\n"), "{text}");
}

#[test]
fn what_may_not_be_read_is_no_refusal() {
    let labelled = r#"{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"tenant-blue","labels":{"outrigger.dev/tenant":"blue"}}}"#;
    let unread = vec!["tenants may not be read".to_owned()];
    let (report, refused, text) =
        explained_with_text(&[labelled, STORED], "tenant-blue", "debug", unread).unwrap();
    assert!(!refused, "{text}");
    assert_eq!((report["stored"].get("refusal"), steps(&report["stored"])), (None, vec!["isolation"]));
    assert!(text.contains("  not known: Tenant blue is not known yet"), "{text}");
    // Where all could be read there is no such Tenant.
    let (_, refused, text) =
        explained_with_text(&[labelled, STORED], "tenant-blue", "debug", Vec::new()).unwrap();
    assert!(refused && text.contains("refused now (503): Tenant blue is not known yet"), "{text}");
    // Nor is anything known without the namespace.
    let (report, refused, text) = of(&[pod("shop", json!({}))], "shop");
    assert!(!refused && report["stored"]["unknown"].is_string(), "{text}");
}

#[test]
fn what_a_pod_says_changes_no_terminal() {
    let forged = pod(
        "shop",
        json!({"spec": {"nodeName": "\u{1b}[2J", "tolerations": [
            {"key": "outrigger.dev/tenant", "value": "\u{1b}[31m"}]},
        "status": {"conditions": [{"type": "PodScheduled", "status": "False", "message": "a\nPod b \u{1b}[0m"}]}}),
    );
    let (_, _, text) = of(&[namespace("shop", json!({})), forged], "shop");
    assert!(text.contains("\\u{1b}[2J") && text.contains("\\u{1b}[31m"), "{text}");
    assert!(text.contains("a Pod b \\u{1b}[0m") && !text.contains('\u{1b}'), "{text}");
}

#[test]
fn a_stored_companion_that_lacks_something_says_what() {
    let without = STORED.replace(
        "{effect: NoSchedule, key: outrigger.dev/tenant, operator: Equal, value: blue}",
        "{key: x, operator: Exists}",
    );
    assert_ne!(without, STORED);
    let (report, refused) =
        explained(&[CLUSTER, &without], "tenant-blue", "firewall-573e560607f4a185").unwrap();
    assert!(!refused);
    assert_eq!(steps(&report["stored"]), ["isolation"]);
    let path = report["stored"]["patch"][0]["path"].as_str().unwrap();
    assert!(path.starts_with("/spec/tolerations"), "{path}");
}

#[test]
fn a_pod_that_would_be_refused_now_says_by_what() {
    let (report, refused) = explained(&[CLUSTER, STORED], "tenant-blue", "debug").unwrap();
    assert!(refused);
    let refusal = &report["stored"]["refusal"];
    assert_eq!((&refusal["code"], &refusal["step"]), (&json!(403), &json!("validation")));
    let by = json!([refusal["webhook"], refusal["kind"], refusal["name"], refusal["fields"]]);
    assert_eq!(by, json!(["pods.outrigger.dev", "Tenant", "blue", ["spec.tolerations[0]"]]));
    assert_eq!(steps(&report["stored"]), ["isolation"], "it is changed before it is refused");
    assert!(refusal["message"].as_str().unwrap().starts_with("spec.tolerations[0]: "), "{refusal}");
    assert_eq!(report["creation"], Value::Null);
    assert!(report["notes"][0].as_str().unwrap().contains("isn't known"), "{report}");
    // Keys of Outrigger on a Pod that is yet to be created are its creator's.
    let new =
        pod("tenant-blue", json!({"metadata": {"uid": null, "labels": {"outrigger.dev/tenant": "red"}}}));
    let (report, refused, _) =
        explained_with_text(&[CLUSTER, &new.to_string()], "tenant-blue", "p", Vec::new()).unwrap();
    assert_eq!((refused, &report["stored"]["refusal"]["step"]), (true, &json!("keys")));
}

#[test]
fn pods_of_owners_and_of_kubectl_are_decided_as_those_wrote_them() {
    for (name, from) in [
        ("web-1-x", "the template of ReplicaSet batch/web-1"),
        ("applied", "what kubectl apply was given"),
        ("served", "what flux applied by server-side apply, without fields that admission has changed"),
    ] {
        let (report, refused) = explained(&[OFFLOADED], "batch", name).unwrap();
        assert!(!refused, "{report}");
        assert_eq!(report["creation"]["from"], from);
        assert_eq!(steps(&report["creation"]), ["offloading"], "{report}");
        // These were created before the namespace was offloaded.
        assert_eq!(steps(&report["stored"]), ["offloading"]);
        let called =
            report["webhooks"].as_array().unwrap().iter().filter(|webhook| webhook["whyNot"].is_null());
        let called: Vec<_> = called.map(|webhook| webhook["webhook"].as_str().unwrap()).collect();
        assert_eq!(called, ["offloaded-pods.outrigger.dev"]);
    }
}

#[test]
fn an_owner_with_labels_of_the_wrong_shape_is_read_without_them() {
    for labels in ["odd", "[web]"] {
        let wrong = OFFLOADED.replace("{app: web}", labels);
        assert_ne!(wrong, OFFLOADED);
        let (report, _) = explained(&[&wrong], "batch", "web-1-x").unwrap();
        assert_eq!(steps(&report["creation"]), ["offloading"], "its labels are those of the Pod: {report}");
    }
}

#[test]
fn a_pod_that_is_nothing_to_outrigger_says_why_nothing_is_called() {
    let (report, refused) = explained(&[OFFLOADED], "plain", "alone").unwrap();
    assert!(!refused);
    assert_eq!((&report["roles"], &report["stored"]["patch"]), (&json!([]), &json!([])));
    for webhook in report["webhooks"].as_array().unwrap() {
        assert!(webhook["whyNot"].as_str().unwrap().starts_with("the namespace "), "{webhook}");
    }
    assert_eq!(explained(&[OFFLOADED], "plain", "nobody"), None);
}

#[test]
fn policies_are_named_whose_selectors_and_bindings_select_the_pod() {
    let policies = |texts: &[&str], namespace: &str, name: &str| {
        explained(&[texts, &[POLICIES]].concat(), namespace, name).unwrap().0["policies"].clone()
    };
    assert_eq!(
        policies(&[CLUSTER, STORED], "tenant-blue", "debug"),
        json!([{"policy": "pods-of-tenants", "binding": "bound", "actions": ["Deny", "Audit"], "matchConditions": ["not-the-manager"]}])
    );
    assert_eq!(policies(&[OFFLOADED], "plain", "alone"), json!([]));
    // The API server converts a Pod for each policy that selects it, so there is one for a tenant's new Pods.
    let (report, _) = explained(&[CLUSTER, STORED, SHIPPED], "tenant-blue", "debug").unwrap();
    assert_eq!(
        report["policies"],
        json!([{"policy": "outrigger-pods", "binding": "outrigger-pods", "actions": ["Deny"], "matchConditions": []}])
    );

    // A selector of a later version may select the Pod.
    let future = POLICIES.replace("operator: Exists", "operator: Near");
    assert_ne!(future, POLICIES);
    let (report, _) = explained(&[OFFLOADED, &future], "plain", "alone").unwrap();
    assert_eq!(report["policies"][0]["policy"], "pods-of-tenants", "{report}");
}
