use clap::FromArgMatches;
use serde_json::{Value, json};

use super::*;

const CLUSTER: &str = include_str!("../../../../../docs/examples/cluster.yaml");
const STORED: &str = include_str!("../../../../../docs/examples/pods/stored.yaml");

/// A namespace that is offloaded, and two Pods in it: one of a ReplicaSet, and one that kubectl applied.
const OFFLOADED: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: batch}
---
apiVersion: offloading.liqo.io/v1beta1
kind: NamespaceOffloading
metadata: {name: offloading, namespace: batch}
spec: {podOffloadingStrategy: Remote, clusterSelector: {nodeSelectorTerms: []}}
---
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: web-1, namespace: batch}
spec:
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: i}]}
---
apiVersion: v1
kind: Pod
metadata:
  name: web-1-x
  namespace: batch
  uid: u1
  labels: {app: web, pod-template-hash: h}
  ownerReferences: [{apiVersion: apps/v1, kind: ReplicaSet, name: web-1, uid: u, controller: true}]
spec: {containers: [{name: c, image: i}]}
---
apiVersion: v1
kind: Pod
metadata:
  name: applied
  namespace: batch
  uid: u2
  annotations:
    kubectl.kubernetes.io/last-applied-configuration: |
      {"apiVersion":"v1","kind":"Pod","metadata":{"name":"applied","namespace":"batch"},"spec":{"containers":[{"name":"c","image":"i"}]}}
spec: {containers: [{name: c, image: i}]}
---
apiVersion: v1
kind: Namespace
metadata: {name: plain}
---
apiVersion: v1
kind: Pod
metadata: {name: alone, namespace: plain, uid: u3}
spec: {containers: [{name: c, image: i}]}
"#;

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

/// The report about a Pod, as JSON; `None` if there is no such Pod.
fn explained(texts: &[&str], namespace: &str, name: &str) -> Option<(Value, bool)> {
    let state = State::of_text("f", &texts.join("\n---\n")).unwrap();
    let command = PodArgs::augment_args(clap::Command::new("pod"));
    let matches = command.get_matches_from(["pod", name, "-n", namespace]);
    let args = PodArgs::from_arg_matches(&matches).unwrap();
    let name = PodName { namespace: namespace.to_owned(), name: name.to_owned() };
    let report = args.report(state, &name, Vec::new()).unwrap()?;
    let mut text = Vec::new();
    print::report(&report, &mut text).unwrap();
    assert!(String::from_utf8(text).unwrap().contains(&format!("{namespace}/{}", name.name)));
    Some((serde_json::to_value(&report).unwrap(), report.is_refused()))
}

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
    assert!(refusal["message"].as_str().unwrap().starts_with("spec.tolerations[0]: "), "{refusal}");
    assert_eq!(report["creation"], Value::Null);
    assert!(report["notes"][0].as_str().unwrap().contains("isn't known"), "{report}");
}

#[test]
fn pods_of_owners_and_of_kubectl_are_decided_as_those_wrote_them() {
    for (name, from) in
        [("web-1-x", "the template of ReplicaSet batch/web-1"), ("applied", "what kubectl apply was given")]
    {
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
    let wrong =
        OFFLOADED.replace("metadata: {labels: {app: web}}\n    spec", "metadata: {labels: [web]}\n    spec");
    assert_ne!(wrong, OFFLOADED);
    let (report, _) = explained(&[&wrong], "batch", "web-1-x").unwrap();
    assert_eq!(steps(&report["creation"]), ["offloading"], "{report}");
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

    // A selector of a later version may select the Pod.
    let future = POLICIES.replace("operator: Exists", "operator: Near");
    assert_ne!(future, POLICIES);
    let (report, _) = explained(&[OFFLOADED, &future], "plain", "alone").unwrap();
    assert_eq!(report["policies"][0]["policy"], "pods-of-tenants", "{report}");
}
