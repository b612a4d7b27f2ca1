use outrigger_api::WorkloadRule;
use serde_json::json;

use super::*;

const MANAGER: &str = "system:serviceaccount:outrigger-system:outrigger-manager";

fn settings() -> Settings {
    Settings { managers: vec![MANAGER.to_owned()], host_label: keys::DPU_HOST.to_owned() }
}

fn rule(generation: i64, valid: bool) -> WorkloadRule {
    let operator = if valid { "Exists" } else { "Perhaps" };
    serde_json::from_value(json!({
        "apiVersion": "workload.universe.nvidia.com/v1alpha1", "kind": "WorkloadRule",
        "metadata": {"name": "r", "namespace": "tenant-blue", "uid": "rule-uid", "generation": generation},
        "spec": {"workloadTerms": [{"matchExpressions": [{"key": "@", "operator": operator}]}],
            "template": {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "c"}]}}}}))
    .unwrap()
}

fn caches() -> Caches {
    let caches = Caches::default();
    caches.set_tenant("tenant-blue".into(), TenantId::new("blue").ok());
    caches.set_rule(&rule(2, true));
    caches
}

/// The creation of a companion of generation `generation`, by `user`.
fn request(user: &str, generation: &str) -> Request {
    let request = json!({"uid": "1", "kind": {"version": "v1", "kind": "Pod"}, "operation": "CREATE",
        "namespace": "tenant-blue", "userInfo": {"username": user},
        "object": {
            "metadata": {
                "annotations": {keys::HOST: "host-a", keys::RULE_GENERATION: generation},
                "ownerReferences": [{"apiVersion": "workload.universe.nvidia.com/v1alpha1", "kind": "WorkloadRule",
                    "name": "r", "uid": "rule-uid", "controller": true}]},
            "spec": {"containers": [{"name": "c"}], "schedulingGates": [{"name": keys::ADMISSION_GATE}]}}});
    serde_json::from_value(request).unwrap()
}

fn denied(decision: Result<Decision, Behind>) -> (u16, String) {
    match decision {
        Ok(Decision::Deny { code, message }) => (code, message),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_managers_word_is_taken_and_nobody_elses() {
    let Ok(Decision::Allow { patch, .. }) = mutate_pod(&caches(), &settings(), &mut request(MANAGER, "2"))
    else {
        panic!("not allowed")
    };
    let patch = serde_json::to_string(&patch).unwrap();
    assert!(patch.contains("host-a") && patch.contains("/spec/schedulingGates"), "{patch}");
    for other in ["kubernetes-admin", "system:serviceaccount:tenant-blue:outrigger-manager", ""] {
        let (code, message) = denied(mutate_pod(&caches(), &settings(), &mut request(other, "2")));
        assert_eq!(code, 403);
        assert!(message.starts_with("metadata.annotations[outrigger.dev/host]"), "{message}");
    }
}

#[test]
fn a_cache_that_is_behind_is_not_missing_data() {
    let behind = |caches: &Caches, request: &Request| {
        let request = &mut request.clone();
        mutate_pod(caches, &settings(), request).unwrap_err().to_string()
    };
    let newer = request(MANAGER, "3");
    let caches = caches();
    assert!(behind(&caches, &newer).contains("of generation 3 is not known yet"));
    caches.set_rule(&rule(3, true));
    assert!(mutate_pod(&caches, &settings(), &mut newer.clone()).is_ok());
    let mut elsewhere = newer.clone();
    elsewhere.namespace = "tenant-new".into();
    assert!(behind(&caches, &elsewhere).contains("tenant-new is not known yet"));
    let mut another = newer;
    another.object["metadata"]["ownerReferences"][0]["uid"] = json!("another");
    assert!(behind(&caches, &another).contains("WorkloadRule r"));
}

#[test]
fn what_does_not_fit_is_denied_with_its_path() {
    let invalid = caches();
    invalid.set_rule(&rule(3, false));
    let (code, message) = denied(mutate_pod(&invalid, &settings(), &mut request(MANAGER, "2")));
    assert_eq!(code, 422);
    assert!(message.contains("not valid any more"), "{message}");

    let (_, message) = denied(mutate_pod(&caches(), &settings(), &mut request(MANAGER, "x")));
    assert!(message.contains("outrigger.dev/rule-generation]: must be an integer"), "{message}");

    let mut plain = request("someone", "");
    plain.object = json!({"spec": {"affinity": {"nodeAffinity": "x"}}});
    let (code, message) = denied(mutate_pod(&caches(), &settings(), &mut plain));
    assert_eq!((code, message.as_str()), (422, "spec.affinity.nodeAffinity: must be an object, is a string"));
    plain.object = json!(null);
    assert_eq!(denied(mutate_pod(&caches(), &settings(), &mut plain)).0, 422);
    plain.kind.kind = "Service".into();
    assert_eq!(denied(mutate_pod(&caches(), &settings(), &mut plain)).0, 400);
}

#[test]
fn only_the_creation_of_a_pod_itself_is_changed() {
    for (operation, sub_resource) in [("UPDATE", ""), ("DELETE", ""), ("CREATE", "binding")] {
        let mut request = request("someone", "2");
        request.operation = operation.into();
        request.sub_resource = sub_resource.into();
        assert_eq!(mutate_pod(&caches(), &settings(), &mut request), Ok(Decision::allow()));
    }
}

#[test]
fn a_second_round_changes_nothing() {
    let caches = caches();
    let mut request = request("someone", "");
    request.object = json!({"spec": {"containers": []}});
    let Ok(Decision::Allow { patch, .. }) = mutate_pod(&caches, &settings(), &mut request) else {
        panic!("not allowed")
    };
    json_patch::patch(&mut request.object, &patch).unwrap();
    assert_eq!(mutate_pod(&caches, &settings(), &mut request), Ok(Decision::allow()));
}
