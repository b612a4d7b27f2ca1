use outrigger_api::Change;
use serde_json::json;

use super::*;
use crate::tests::{applied, decide, namespace, patched, request_for, response};

fn object(generation: i64, spec: Value) -> Change<NamespaceOffloading> {
    let object = json!({"apiVersion": "offloading.liqo.io/v1beta1", "kind": "NamespaceOffloading",
        "metadata": {"name": "offloading", "namespace": "n", "uid": "u", "generation": generation}, "spec": spec});
    applied(object)
}

/// Asks to create a Pod in the namespace `n`, and returns it as it is admitted.
fn created(caches: &Caches, pod: &Value) -> Result<Result<Value, (u16, String)>, CacheStale> {
    let mut request = request_for("Pod", "n", pod, &Value::Null);
    Ok(patched(decide("/mutate/pods", caches, &mut request)?, pod))
}

fn keys_of(pod: &Value) -> Vec<String> {
    let terms = pod
        .pointer(
            "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms",
        )
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    let key = |e: &Value| e["key"].as_str().unwrap().to_owned();
    terms
        .iter()
        .flat_map(|t| t["matchExpressions"].as_array().unwrap().iter().map(key).collect::<Vec<_>>())
        .collect()
}

#[test]
fn each_namespace_gets_the_steps_that_concern_it() {
    let pod = json!({"spec": {"containers": []}});
    let caches = Caches::default();
    let behind = |caches: &Caches| created(caches, &pod).unwrap_err().to_string();
    assert!(
        behind(&caches).contains("namespace n is not known yet to belong to a tenant or to be offloaded")
    );
    caches.namespace(namespace("n", &json!({keys::OFFLOADED: "true"})));
    let missing = behind(&caches);
    assert!(
        missing.starts_with("NamespaceOffloading offloading is missing in namespace n")
            && missing.ends_with("; try again"),
        "{missing}"
    );
    caches.apply_offloading(object(1, json!({"podOffloadingStrategy": "Remote"})));
    let remote = created(&caches, &pod).unwrap().unwrap();
    assert_eq!(keys_of(&remote), [keys::NODE_TYPE]);
    assert_eq!(remote["spec"]["tolerations"][0]["key"], keys::NOT_ALLOWED);
    // A tenant's that is offloaded too has both.
    caches.namespace(namespace("n", &json!({keys::TENANT: "blue", keys::OFFLOADED: "true"})));
    let both = created(&caches, &pod).unwrap().unwrap();
    assert_eq!(keys_of(&both), [keys::NODE_TYPE, keys::NODE_TENANT]);
    assert_eq!(both["spec"]["tolerations"].as_array().unwrap().len(), 2);
    assert_eq!(created(&caches, &both).unwrap().unwrap(), both, "once is enough");
    // A Pod of a namespace that is no longer offloaded has its tenant's only.
    caches.namespace(namespace("n", &json!({keys::TENANT: "blue"})));
    assert_eq!(keys_of(&created(&caches, &pod).unwrap().unwrap()), [keys::NODE_TENANT]);
}

#[test]
fn what_the_object_says_now_counts() {
    let pod = json!({"spec": {"runtimeClassName": "liqo"}});
    let caches = Caches::default();
    caches.namespace(namespace("n", &json!({keys::OFFLOADED: "true"})));
    caches.apply_offloading(object(1, json!({"podOffloadingStrategy": "Perhaps"})));
    assert_eq!(created(&caches, &pod).unwrap().unwrap(), pod, "exempt");
    let (code, message) = created(&caches, &json!({"spec": {}})).unwrap().unwrap_err();
    assert_eq!(code, 422);
    assert!(message.contains("podOffloadingStrategy: is \"Perhaps\""), "{message}");
    caches
        .apply_offloading(object(2, json!({"clusterSelector": {"nodeSelectorTerms": [{"matchFields": 1}]}})));
    let (_, message) = created(&caches, &json!({"spec": {}})).unwrap().unwrap_err();
    assert!(
        message.contains("offloading: spec.clusterSelector.nodeSelectorTerms[0].matchFields"),
        "{message}"
    );
    // Nor does it matter to who is exempt, or where nothing is offloaded.
    assert_eq!(created(&caches, &pod).unwrap().unwrap(), pod);
    let wrong = json!({"clusterSelector": {"nodeSelectorTerms": [{"matchFields": 1}]}, "podOffloadingStrategy": "Local"});
    caches.apply_offloading(object(4, wrong));
    assert_eq!(created(&caches, &json!({"spec": {}})).unwrap().unwrap(), json!({"spec": {}}));
    caches.apply_offloading(object(3, json!({"podOffloadingStrategy": "Local"})));
    assert_eq!(created(&caches, &json!({"spec": {}})).unwrap().unwrap(), json!({"spec": {}}));
    let other = json!({"apiVersion": "offloading.liqo.io/v1beta1", "kind": "NamespaceOffloading",
        "metadata": {"name": "other", "namespace": "n"}, "spec": {}});
    caches.apply_offloading(applied(other));
    let gone = |name: &str| {
        caches.apply_offloading(Change::Gone {
            namespace: "n".into(),
            name: name.into(),
            uid: String::new(),
        });
    };
    gone("other");
    assert!(created(&caches, &json!({"spec": {}})).is_ok(), "another name has no owner");
    gone("offloading");
    assert!(created(&caches, &json!({"spec": {}})).is_err());
}

fn ask(operation: &str, object: &Value, old: &Value) -> Decision {
    let mut request = request_for("NamespaceOffloading", "n", object, old);
    request.operation = operation.into();
    decide("/validate/namespaceoffloadings", &Caches::default(), &mut request).unwrap()
}

fn with(name: &str, spec: &Value) -> Value {
    if spec.is_null() {
        return Value::Null;
    }
    json!({"apiVersion": "offloading.liqo.io/v1beta1", "kind": "NamespaceOffloading",
        "metadata": {"name": name, "namespace": "n"}, "spec": spec})
}

#[test]
fn answers_as_liqo_does() {
    let cases: Value =
        serde_json::from_str(include_str!("../../../../tests/cases/liqo-namespaceoffloading.json")).unwrap();
    for case in cases.as_array().unwrap() {
        let (name, expect) = (case["objectName"].as_str().unwrap(), &case["expect"]);
        let answer = ask(
            case["operation"].as_str().unwrap(),
            &with(name, &case["spec"]),
            &with(name, &case["oldSpec"]),
        );
        let (code, message, warnings) = response(answer, 200);
        assert_eq!(code == 200, expect["allowed"], "{}", case["name"]);
        assert_eq!(
            (json!(code), &*message, json!(warnings)),
            (
                expect["code"].clone(),
                expect["message"].as_str().unwrap_or_default(),
                expect["warnings"].clone()
            ),
            "{}",
            case["name"]
        );
    }
}

#[test]
fn what_the_cases_leave_out() {
    let ask = |operation: &str, object: &Value, old: &Value| response(ask(operation, object, old), 200);
    let selected = with("offloading", &json!({"namespaceMappingStrategy": "SelectedName"}));
    let (code, message, _) = ask("CREATE", &selected, &Value::Null);
    assert_eq!((code, message.contains("RemoteNamespaceName value cannot be empty")), (403, true));
    assert_eq!(ask("UPDATE", &selected, &selected).0, 200, "it was so before");
    let named = |name: &str| {
        with("offloading", &json!({"namespaceMappingStrategy": "SelectedName", "remoteNamespaceName": name}))
    };
    let (_, message, _) = ask("UPDATE", &named("y"), &named("x"));
    assert_eq!(message, "The RemoteNamespaceName value cannot be modified after creation");
    // What the schema fills in is no change.
    let (plain, filled) = (
        with("offloading", &json!({})),
        with("offloading", &json!({"namespaceMappingStrategy": "DefaultName"})),
    );
    assert_eq!(ask("UPDATE", &plain, &filled), (200, String::new(), Vec::new()));
    let strategy = |s: &str| with("offloading", &json!({"podOffloadingStrategy": s}));
    assert_eq!(ask("UPDATE", &strategy("Remote"), &strategy("Local")).2.len(), 1);
    assert_eq!(ask("UPDATE", &strategy("LocalAndRemote"), &strategy("Remote")).2.len(), 0);

    let mut skipped = with("other", &json!({"namespaceMappingStrategy": "SelectedName"}));
    assert_eq!(ask("CREATE", &skipped, &Value::Null).0, 403);
    for (value, code) in [("false", 403), ("true", 200)] {
        skipped["metadata"]["labels"] = json!({keys::WEBHOOK_SKIP: value});
        assert_eq!(ask("CREATE", &skipped, &Value::Null).0, code);
    }

    let bad = with(
        "offloading",
        &json!({"clusterSelector": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["x"]}]}]}}),
    );
    let path = "spec.clusterSelector.nodeSelectorTerms[0].matchExpressions[0].values: is [x]";
    for old in [Value::Null, plain] {
        let (code, message, _) = ask(if old.is_null() { "CREATE" } else { "UPDATE" }, &bad, &old);
        assert_eq!((code, message.starts_with(path)), (422, true), "{message}");
    }
    assert_eq!(ask("UPDATE", &bad, &bad).0, 200, "it was so before");
    let (code, message, _) = ask("CREATE", &with("offloading", &json!("x")), &Value::Null);
    assert_eq!((code, message.starts_with("spec")), (422, true));
}

#[test]
fn the_clusters_own_namespaces_stay_local() {
    let object = with("offloading", &json!({}));
    let mut request = request_for("NamespaceOffloading", "kube-system", &object, &Value::Null);
    let decision = decide("/validate/namespaceoffloadings", &Caches::default(), &mut request);
    let (code, message, _) = response(decision.unwrap(), 200);
    assert_eq!((code, message.contains("\"kube-system\"")), (403, true));
}
