//! Others that change guests before Outrigger's webhook and after it: the API server calls it again.

use outrigger_core::keys;
use outrigger_tests::{dry_run, eventually, holds};
use serde_json::{Value, json};

use super::stage::Stage;

/// A guest that says nothing but what it is.
fn plain(s: &Stage, name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {keys::MACHINE_GROUP: s.group, keys::MACHINE_TYPE: "t", keys::POD_ROLE: keys::GUEST}},
        "spec": {"containers": [{"name": "trainer", "image": "i"}]}})
}

/// A mutating policy for Pods of the stage's namespace, called again where others change something. Of several policies the order isn't
/// defined, of the mutations of one it is.
fn policy(s: &Stage, name: &str, expressions: &[&str]) -> [Value; 2] {
    let api = "admissionregistration.k8s.io/v1";
    let mutation = |expression| json!({"patchType": "JSONPatch", "jsonPatch": {"expression": expression}});
    let mutations: Vec<_> = expressions.iter().map(mutation).collect();
    [
        json!({"apiVersion": api, "kind": "MutatingAdmissionPolicy", "metadata": {"name": name}, "spec": {
            "failurePolicy": "Fail", "reinvocationPolicy": "IfNeeded",
            "matchConstraints": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": s.group}},
                "resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]},
            "mutations": mutations}}),
        json!({"apiVersion": api, "kind": "MutatingAdmissionPolicyBinding", "metadata": {"name": name},
            "spec": {"policyName": name}}),
    ]
}

/// Inserts a sidecar before all others as soon as Outrigger's tolerations are there, and so after its first call.
const SIDECAR: &str = "object.spec.?tolerations.orValue([]).exists(t, t.?key.orValue('').startsWith('imperator.'))
    && !object.spec.containers.exists(c, c.name == 'mesh-proxy')
    ? [JSONPatch{op: 'add', path: '/spec/containers/0', value: Object.spec.containers{name: 'mesh-proxy', image: 'p'}}] : []";

/// Takes the slot away again, once: without the record nothing would tell who had it.
const SMALLER: &str = "object.spec.containers.exists(c, c.name == 'mesh-proxy')
    && !('smaller' in object.metadata.?annotations.orValue({}))
    ? [JSONPatch{op: 'remove', path: '/spec/containers/1/resources/requests'},
       JSONPatch{op: 'remove', path: '/spec/containers/1/resources/limits'},
       JSONPatch{op: 'add', path: '/metadata/annotations/smaller', value: 'x'}] : []";

#[tokio::test]
async fn a_container_keeps_its_slot_when_another_is_inserted_before_it() {
    let s = Stage::new("mg-inject").await;
    if s.outrigger.plane.infra.skips("MutatingAdmissionPolicy") {
        return;
    }
    s.node("n1", 2).await;
    s.machine(&[("n1", "ready", false, "t")], &[("t", 2)]);
    s.usage("t", [2, 2, 0, 0, 2]).await;
    let size = json!({"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"});
    let slot = json!({"requests": size, "limits": size});
    // Without the policies there is one container.
    let alone = s.admit(plain(&s, "alone")).await;
    let alone = serde_json::to_value(alone).unwrap();
    assert_eq!(alone["spec"]["containers"].as_array().unwrap().len(), 1);
    assert_eq!(alone["spec"]["containers"][0]["resources"], slot);
    let name = format!("{}-sidecar", s.group);
    s.outrigger.plane.infra.apply(&policy(&s, &name, &[SIDECAR, SMALLER])).unwrap();
    eventually("the policy is in effect", || async {
        let pod =
            serde_json::to_value(dry_run(&s.guests(), &plain(&s, "g")).await.map_err(|e| e.to_string())?)
                .unwrap();
        let changed = pod["metadata"]["annotations"]["smaller"] == "x";
        holds(changed && pod["spec"]["containers"][0]["name"] == "mesh-proxy", pod.to_string())
    })
    .await;
    let guest = serde_json::to_value(s.admit(plain(&s, "g")).await).unwrap();
    let [sidecar, trainer] = guest["spec"]["containers"].as_array().unwrap().as_slice() else {
        panic!("{guest}")
    };
    assert_eq!((&sidecar["name"], &trainer["name"]), (&json!("mesh-proxy"), &json!("trainer")));
    assert_eq!(sidecar["resources"], json!({}), "{guest}");
    assert_eq!(trainer["resources"], slot, "{guest}");
    assert_eq!(guest["metadata"]["annotations"][keys::INJECTED_CONTAINER], "trainer");
    // Others may still write to it.
    s.outrigger.plane.infra.kubectl(&["annotate", "pod", "-n", s.group, "g", "x=y"]).unwrap();
    let kinds = "mutatingadmissionpolicy,mutatingadmissionpolicybinding";
    s.outrigger.plane.infra.kubectl(&["delete", kinds, &name]).unwrap();
}
