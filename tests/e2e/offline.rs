//! The commands that need no server, beside the servers.

use std::process::{Command, Output};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use outrigger_core::keys;
use outrigger_tests::outrigger::{Outrigger, binary};
use outrigger_tests::shipped::fed;
use outrigger_tests::tenant::{Tenant, is_ready, rule_for};
use serde_json::{Value, json};

use crate::e2e::admission::{post, review};

pub(crate) fn explain(t: &Tenant, args: &[&str]) -> (Option<i32>, Value) {
    let infra = format!("--kubeconfig={}", t.outrigger.plane.infra.kubeconfig.display());
    explain_with(t, &[&[infra.as_str(), "--tenant", &t.id], args].concat())
}

pub(crate) fn explain_with(t: &Tenant, args: &[&str]) -> (Option<i32>, Value) {
    t.outrigger.report(&[&["explain"], args].concat()).unwrap()
}

#[tokio::test]
async fn explain_reports_on_live_clusters() {
    let t = Tenant::new(Outrigger::shared().await, "explain", &[("a", 1), ("b", 0)]).await;
    t.rule("web", rule_for("app", "web")).await;
    t.web("web").await;
    t.start("lonely", "b", json!({"app": "web"})).await;
    t.start("db", "a", json!({"app": "db"})).await;
    t.has("one of two companions is ready", 1, 2, is_ready).await;

    let cluster = format!("--tenant-kubeconfig={}", t.outrigger.plane.tenant.kubeconfig.display());
    let (code, report) = explain(&t, &[&cluster, "-n", &t.source]);
    assert_eq!(
        (code, &report["tenant"], &report["notes"]),
        (Some(0), &json!("explain"), &json!([])),
        "{report}"
    );
    let rule = &report["rules"][0];
    let of = |name: &str| {
        let all = rule["workloads"].as_array().unwrap();
        all.iter().find(|workload| workload["name"] == name).unwrap_or_else(|| panic!("{name}: {report}"))
    };
    assert_eq!((&of("web")["outcome"], &of("web")["state"]["phase"]), (&json!("Companion"), &json!("Ready")));
    assert_eq!(of("web")["placement"]["nodes"], json!([{"node": t.node("a-dpu1"), "obstacles": []}]));
    let companions = t.companions().await.unwrap();
    let names: Vec<&str> = companions.iter().filter_map(|pod| pod.metadata.name.as_deref()).collect();
    assert!(names.contains(&of("web")["companion"].as_str().unwrap()), "{names:?}");
    let problem = of("lonely")["placement"]["problem"].as_str().unwrap();
    assert!(problem.starts_with(&format!("no DPU for host {}", t.node("b"))), "{problem}");
    assert_eq!(of("lonely")["state"]["phase"], "Pending");
    assert_eq!(of("db")["outcome"], "NoMatch");
    let change = of("db")["terms"][0]["expressions"][0]["change"].as_str().unwrap();
    assert_eq!(change, ".state.extra.labels.app is \"db\", the rule wants \"web\"");

    // One rule and one workload: the exit code tells.
    for (name, expected) in [("web", 0), ("db", 1)] {
        let workload = format!("{}/{name}", t.source);
        let (code, _) = explain(&t, &[&cluster, "--rule", "web", "--workload", &workload]);
        assert_eq!(code, Some(expected), "{name}");
    }
    // The infrastructure cluster alone: the companions have all facts of their workloads.
    let (_, report) = explain(&t, &["--rule", "web"]);
    let workloads = report["rules"][0]["workloads"].as_array().unwrap();
    let mut names: Vec<&str> = workloads.iter().filter_map(|workload| workload["name"].as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["lonely", "web"], "{report}");
    assert!(report["notes"][0].as_str().unwrap().contains("--tenant-kubeconfig"), "{report}");
    // The tenant's cluster alone.
    t.own_rule("mine", rule_for("app", "db")).await.unwrap();
    let own = format!("--kubeconfig={}", t.outrigger.plane.tenant.kubeconfig.display());
    let (code, report) =
        explain_with(&t, &[&own, "--rule", "mine", "--workload", &format!("{}/db", t.source)]);
    assert_eq!((code, &report["rules"][0]["namespace"]), (Some(0), &json!(t.source)), "{report}");
    assert_eq!(report["rules"][0]["workloads"][0].get("placement"), None);
    assert!(report["notes"][0].as_str().unwrap().contains("a tenant's cluster"), "{report}");
}

/// Runs `outrigger review` on a state and requests.
fn offline(state: &str, requests: &[u8]) -> Output {
    let file = std::env::temp_dir().join(format!("outrigger-review-{}.yaml", std::process::id()));
    std::fs::write(&file, state).unwrap();
    let output = fed(Command::new(binary().unwrap()).args(["review", "-f"]).arg(&file), requests).unwrap();
    let _ = std::fs::remove_file(&file);
    output
}

#[tokio::test]
async fn review_answers_as_the_webhook_does() {
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "offline", &[("a", 1)]).await;
    let rule = t.rule("r", rule_for("app", "web")).await;
    let kinds = "namespaces,tenants,workloadrules,nodes,priorityclasses,deviceclasses,resourceclaims";
    let state = o.plane.infra.kubectl(&["get", kinds, "-A", "-o", "yaml"]).unwrap();

    let containers = json!([{"name": "c", "image": "i"}]);
    let pod = |spec: Value| {
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": t.namespace},
            "spec": {"containers": containers}});
        json_patch::merge(&mut pod["spec"], &spec);
        pod
    };
    let mut companion = pod(json!({"schedulingGates": [{"name": keys::ADMISSION_GATE}]}));
    companion["metadata"]["annotations"] = json!({keys::HOST: t.node("a"), keys::RULE_GENERATION: "1"});
    companion["metadata"]["ownerReferences"] = json!([{"apiVersion": "workload.universe.nvidia.com/v1alpha1",
        "kind": "WorkloadRule", "name": "r", "uid": rule.metadata.uid, "controller": true}]);
    let manager = "system:serviceaccount:outrigger-system:outrigger-manager";
    let ask = |kind: &str, user: &str, object: Value| {
        let group = if kind == "WorkloadRule" { "workload.universe.nvidia.com" } else { "" };
        let version = if group.is_empty() { "v1" } else { "v1alpha1" };
        json!({"uid": "u", "kind": {"group": group, "version": version, "kind": kind}, "operation": "CREATE",
            "namespace": t.namespace, "userInfo": {"username": user}, "object": object})
    };
    let bad_rule = json!({"metadata": {"name": "x"}, "spec": {"workloadTerms": [], "template": {}}});
    let escaping = json!({"metadata": {"name": "x"}, "spec": {"dpuSelectionPolicy": "Any",
        "workloadTerms": [{"matchExpressions": [{"key": "@", "operator": "Exists"}]}],
        "template": {"apiVersion": "v1", "kind": "Pod", "spec": {"hostPID": true, "containers": containers}}}});
    // The path whose answer is the last word.
    let requests = [
        ("/mutate/pods", ask("Pod", "someone", pod(json!({})))),
        ("/mutate/pods", ask("Pod", "someone", pod(json!({"nodeSelector": {keys::NODE_TENANT: "red"}})))),
        ("/mutate/pods", ask("Pod", "someone", pod(json!({"affinity": {"nodeAffinity": 1}})))),
        ("/mutate/pods", ask("Pod", "someone", companion.clone())),
        ("/mutate/pods", ask("Pod", manager, companion)),
        ("/validate/workloadrules", ask("WorkloadRule", "someone", bad_rule)),
        ("/validate/workloadrules", ask("WorkloadRule", "someone", escaping)),
    ];
    let mut input = Vec::new();
    let mut expected = Vec::new();
    for (path, request) in &requests {
        let body = review(request);
        input.extend_from_slice(&body);
        let (status, text) = post(o, path, body).await.unwrap();
        assert_eq!(status, 200, "{text}");
        expected.push(text);
    }
    let output = offline(&state, &input);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let answers = String::from_utf8(output.stdout).unwrap();
    assert_eq!(answers.lines().collect::<Vec<_>>(), expected);
    for (allowed, answer) in [true, true, false, false, true, false, false].into_iter().zip(&expected) {
        let answer: Value = serde_json::from_str(answer).unwrap();
        assert_eq!(answer["response"]["allowed"], json!(allowed), "{answer}");
    }

    // What mutation lets pass and validation doesn't: the API server asks both, one after the other.
    let mut request = ask("Pod", "someone", pod(json!({"hostNetwork": true})));
    let output = offline(&state, &review(&request));
    let (_, mutated) = post(o, "/mutate/pods", review(&request)).await.unwrap();
    let mutated: Value = serde_json::from_str(&mutated).unwrap();
    let patch = STANDARD.decode(mutated["response"]["patch"].as_str().unwrap()).unwrap();
    let patch: json_patch::Patch = serde_json::from_slice(&patch).unwrap();
    json_patch::patch(&mut request["object"], &patch).unwrap();
    let (_, validated) = post(o, "/validate/pods", review(&request)).await.unwrap();
    assert!(validated.contains("spec.hostNetwork: is true"), "{validated}");
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim_end(), validated);
}
