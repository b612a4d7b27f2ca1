//! The components that are shipped for GitOps tools, in kustomizations as users have them.

use outrigger_tests::root;
use outrigger_tests::shipped::kustomize;
use serde_json::{Value, json};

/// What a component makes of an object of the user's own.
fn with_component(component: &str, own: &Value) -> Value {
    std::fs::create_dir_all(root().join("target")).unwrap();
    let dir = tempfile::tempdir_in(root().join("target")).unwrap();
    std::fs::write(dir.path().join("own.yaml"), own.to_string()).unwrap();
    let kustomization = format!("resources: [own.yaml]\ncomponents: [../../deploy/gitops/{component}]\n");
    std::fs::write(dir.path().join("kustomization.yaml"), kustomization).unwrap();
    let objects = kustomize(dir.path().to_str().unwrap()).unwrap();
    assert_eq!(objects.len(), 1);
    objects[0].clone()
}

#[test]
fn settings_are_added_to_argo_cds_own() {
    let own = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "argocd-cm", "namespace": "argocd"}, "data": {"url": "https://argocd.example"}});
    let made = with_component("argocd", &own);
    assert_eq!(made["data"]["url"], "https://argocd.example");
    for crd in outrigger_api::crds() {
        let key = format!("resource.customizations.health.{}_{}", crd.spec.group, crd.spec.names.kind);
        assert!(made["data"][&key].as_str().is_some_and(|script| script.contains("return")), "{key}");
    }
}

#[test]
fn health_checks_are_added_to_each_kustomization_of_flux() {
    let own = json!({"apiVersion": "kustomize.toolkit.fluxcd.io/v1", "kind": "Kustomization",
        "metadata": {"name": "tenants", "namespace": "flux-system"},
        "spec": {"interval": "10m", "path": "./tenants", "prune": true,
            "sourceRef": {"kind": "GitRepository", "name": "platform"}}});
    let made = with_component("flux", &own);
    assert_eq!((&made["metadata"]["name"], &made["spec"]["path"]), (&json!("tenants"), &json!("./tenants")));
    let kinds: Vec<&Value> =
        made["spec"]["healthCheckExprs"].as_array().unwrap().iter().map(|check| &check["kind"]).collect();
    for crd in outrigger_api::crds() {
        assert!(kinds.contains(&&json!(crd.spec.names.kind)), "{kinds:?}");
    }
}
