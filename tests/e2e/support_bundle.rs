//! `outrigger support-bundle` on a real cluster with secrets in many places, and as somebody who may see almost nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use outrigger_core::keys;
use outrigger_tests::eventually;
use outrigger_tests::holds;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::tenant::{Tenant, rule, rule_with};
use serde_json::{Value, json};

/// What stands in each planted secret.
const MARKER: &str = "zq7planted";

/// Runs the command, and returns its exit code with what it said.
fn bundle(o: &Outrigger, kubeconfig: &Path, output: &Path) -> (Option<i32>, String) {
    let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
    let output = format!("--output={}", output.display());
    let ran = o.output(&["support-bundle", &kubeconfig, &output]).unwrap();
    let said = [ran.stdout, ran.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
    (ran.status.code(), said.concat())
}

/// Every file below a directory, by its path.
fn files(directory: &Path) -> BTreeMap<String, String> {
    let all = walkdir::WalkDir::new(directory).into_iter().map(Result::unwrap);
    let read = |path: PathBuf| {
        let name = path.strip_prefix(directory).unwrap().to_str().unwrap().to_owned();
        (name, String::from_utf8(std::fs::read(path).unwrap()).unwrap())
    };
    all.filter(|entry| entry.file_type().is_file()).map(|entry| read(entry.into_path())).collect()
}

fn manifest(files: &BTreeMap<String, String>) -> Value {
    let manifest: Value = serde_json::from_str(&files["manifest.json"]).unwrap();
    let listed = manifest["files"].as_array().unwrap();
    let listed: BTreeMap<&str, u64> =
        listed.iter().map(|row| (row["path"].as_str().unwrap(), row["bytes"].as_u64().unwrap())).collect();
    let others = files.iter().filter(|(path, _)| !["manifest.json", "README.md"].contains(&path.as_str()));
    let found: BTreeMap<&str, u64> = others.map(|(path, text)| (path.as_str(), text.len() as u64)).collect();
    assert_eq!(listed, found);
    manifest
}

/// Objects of the installation with secrets, and two that are too large.
fn planted() -> Vec<Value> {
    let object = |kind: &str, name: &str, more: Value| {
        let mut object = json!({"apiVersion": "v1", "kind": kind,
            "metadata": {"name": name, "namespace": keys::SYSTEM_NAMESPACE}});
        object.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        object
    };
    let key = format!("-----BEGIN PRIVATE KEY-----\n{MARKER}4\n-----END PRIVATE KEY-----\n");
    let container = json!({"name": "c", "image": "registry.example/none", "args": ["run", "--auth-token", format!("{MARKER}3")],
        "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
        "env": [{"name": "OTHER", "value": format!("{MARKER}1")},
            {"name": "OUTRIGGER_PROXY", "value": format!("http://user:{MARKER}2@proxy.example")},
            {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "outrigger-planted", "key": "password"}}}]});
    let pod = json!({"spec": {"containers": [container], "nodeSelector": {"example.org/there": "none"},
        "securityContext": {"runAsNonRoot": true, "runAsUser": 1, "seccompProfile": {"type": "RuntimeDefault"}}}});
    let many: BTreeMap<String, String> = (0..10).map(|i| (i.to_string(), "y".repeat(60 << 10))).collect();
    vec![
        object("Secret", "outrigger-planted", json!({"stringData": {"password": format!("{MARKER}0")}})),
        object("Pod", "outrigger-planted", pod),
        object(
            "ConfigMap",
            "outrigger-planted",
            json!({"data": {"ca.key": key, "x": format!("password={MARKER}5")}}),
        ),
        object("ConfigMap", "outrigger-large", json!({"data": {"x": "y".repeat(900 << 10)}})),
        object("ConfigMap", "outrigger-many", json!({"data": many})),
        object("ConfigMap", "others", json!({"data": {"x": format!("{MARKER}6")}})),
    ]
}

#[tokio::test]
async fn a_bundle_has_what_is_needed_and_no_planted_secret() {
    let o = Outrigger::shared().await;
    let t = Tenant::new(o, "bundle", &[("a", 1)]).await;
    let env = json!([{"name": "OTHER", "value": format!("{MARKER}7")}]);
    let mut planted_rule = rule(&t.namespace, "web", rule_with("/template/spec/containers/0/env", env));
    planted_rule["metadata"]["annotations"] = json!({"example.org/note": format!("{MARKER}8"),
        "kubectl.kubernetes.io/last-applied-configuration": format!("{{\"x\": \"{MARKER}9\"}}")});
    let event = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "planted", "namespace": t.namespace},
        "involvedObject": {"apiVersion": "workload.universe.nvidia.com/v1alpha1", "kind": "WorkloadRule", "namespace": t.namespace, "name": "web"},
        "type": "Warning", "reason": "Planted",
        "message": format!("refused {MARKER}7 to Authorization: Bearer {MARKER}10")});
    let infra = &o.plane.infra;
    infra.apply(&planted()).unwrap();
    infra.apply(&[planted_rule, event]).unwrap();
    t.webs("web", 0..1).await;
    t.ready(1).await;

    let dir = tempfile::tempdir().unwrap();
    let archive = dir.path().join("infra.tar.gz");
    let (code, said) = bundle(o, &infra.kubeconfig, &archive);
    // Two objects are too large.
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("cut: objects/configmaps.yaml: "), "{said}");
    assert!(Command::new("tar").arg("-xzf").arg(&archive).current_dir(&dir).status().unwrap().success());
    let unpacked = dir.path().join("outrigger-bundle");
    let files = files(&unpacked);
    let manifest = manifest(&files);
    for (path, text) in &files {
        assert!(!text.contains(MARKER), "{path}: {text}");
        assert!(!text.chars().any(|c| c.is_control() && c != '\n' && c != '\t'), "{path}");
        assert!(text.len() <= 8 << 20, "{path}");
    }
    // What else runs there has no kubelet.
    let missing = manifest["missing"].as_array().unwrap();
    assert!(missing.iter().all(|row| row["what"].as_str().unwrap().starts_with("pods/")), "{missing:?}");
    let cut: Vec<&str> = manifest["files"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|row| row["path"] == "objects/configmaps.yaml")
        .flat_map(|row| row["cut"].as_array().unwrap())
        .filter_map(Value::as_str)
        .collect();
    assert_eq!(cut.len(), 2, "{cut:?}");
    assert!(cut[0].starts_with("outrigger-system/outrigger-many: an object of "), "{cut:?}");
    assert_eq!(cut[1], "1 texts of more than 65536 bytes");

    let has = |path: &str, texts: &[&str]| {
        let text = files.get(path).unwrap_or_else(|| panic!("no {path}: {:?}", files.keys()));
        for expected in texts {
            assert!(text.contains(expected), "{path} lacks {expected}: {text}");
        }
    };
    has("versions.json", &["\"gitVersion\"", env!("CARGO_PKG_VERSION")]);
    has("status.txt", &["tenants ("]);
    has("check.json", &["\"findings\""]);
    has("objects/pods.yaml", &["secretKeyRef", "http://REDACTED@proxy.example"]);
    has("objects/configmaps.yaml", &["outrigger-planted", "outrigger-large"]);
    has("objects/validatingadmissionpolicies.admissionregistration.k8s.io.yaml", &["outrigger-pods"]);
    has("objects/mutatingwebhookconfigurations.admissionregistration.k8s.io.yaml", &["caBundle"]);
    has(
        "objects/customresourcedefinitions.apiextensions.k8s.io.yaml",
        &["storedVersions", "tenants.outrigger.dev"],
    );
    has("objects/tenants.outrigger.dev.yaml", &["name: bundle", "stream:"]);
    has("objects/workloadrules.workload.universe.nvidia.com.yaml", &["example.org/note: REDACTED"]);
    has("objects/companions.yaml", &[t.namespace.as_str(), "phase: Running"]);
    has("objects/nodes.yaml", &[keys::NODE_TENANT]);
    has("objects/events.yaml", &["refused REDACTED to Authorization: REDACTED"]);
    assert!(!files["objects/configmaps.yaml"].contains("name: others"));

    // Whoever gets it examines it as a cluster.
    let objects = format!("--filename={}", unpacked.join("objects").display());
    let (_, report) = o.report(&["check", &objects]).unwrap();
    assert!(report["findings"].is_array(), "{report}");

    let (code, said) = bundle(o, &infra.kubeconfig, &archive);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("exists already, and isn't overwritten"), "{said}");
}

#[tokio::test]
async fn a_user_with_few_rights_gets_a_partial_bundle_with_an_exact_manifest() {
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "bundle-view", &[("a", 1)]).await;
    let infra = &o.plane.infra;
    let kubeconfig = o.plane.dir.join("bundle-viewer.kubeconfig");
    infra.viewer("bundle-viewer", &["list"], &[("outrigger.dev", "tenants")], &kubeconfig).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut count = 0;
    let mut attempt = || {
        count += 1;
        let output = dir.path().join(count.to_string());
        let (code, said) = bundle(o, &kubeconfig, &output);
        assert_eq!(code, Some(1), "{said}");
        files(&output)
    };
    let files = eventually("the right works", || {
        let files = attempt();
        async move {
            holds(files.contains_key("objects/tenants.outrigger.dev.yaml"), files["manifest.json"].clone())
                .map(|()| files)
        }
    })
    .await;
    let paths: Vec<&str> = files.keys().map(String::as_str).collect();
    let expected = [
        "README.md",
        "manifest.json",
        "objects/tenants.outrigger.dev.yaml",
        "status.json",
        "status.txt",
        "versions.json",
    ];
    assert_eq!(paths, expected);
    assert!(files["objects/tenants.outrigger.dev.yaml"].contains(&format!("name: {}", t.id)));

    let manifest = manifest(&files);
    assert_eq!(manifest["complete"], false);
    let installed = [
        "deployments",
        "daemonsets",
        "pods",
        "services",
        "configmaps",
        "serviceaccounts",
        "endpointslices",
        "poddisruptionbudgets",
        "networkpolicies",
        "horizontalpodautoscalers",
        "leases",
    ];
    let in_namespaces = [keys::SYSTEM_NAMESPACE, keys::HOST_NAMESPACE]
        .into_iter()
        .flat_map(|namespace| installed.map(|kind| format!("{kind} in {namespace}")));
    let rest = [
        "check --live",
        "mutatingwebhookconfigurations",
        "validatingwebhookconfigurations",
        "validatingadmissionpolicies",
        "validatingadmissionpolicybindings",
        "customresourcedefinitions",
        "namespaces",
        "nodes",
        "workloadrules",
        "adminworkloadrules",
        "namespaceoffloadings",
        "machines",
        "machinenodepools",
        "pods",
        "resourceclaims",
        "events in outrigger-system",
        "events in outrigger-hosts",
        "events",
    ];
    let expected: Vec<String> = in_namespaces.chain(rest.map(str::to_owned)).collect();
    let missing = manifest["missing"].as_array().unwrap();
    let what: Vec<&str> = missing.iter().map(|row| row["what"].as_str().unwrap()).collect();
    assert_eq!(what, expected);
    for row in missing.iter().filter(|row| row["what"] != "check --live") {
        assert!(row["why"].as_str().unwrap().contains("is forbidden: User"), "{row}");
    }
}
