//! Tenant isolation while Outrigger's webhook is down: `webhooks/policies.yaml` on a real control plane, without any of
//! Outrigger's processes. The webhook's configuration is there, but nobody listens, and its failures are ignored.
//!
//! The rows of `tests/cases` are requests that are refused, each with a control case that differs in nothing but the reason
//! and is allowed. All of these are dry runs, so they don't meet.

mod accounts;
mod bounds;
mod emergency;
mod files;
mod functions;
mod records;
mod setup;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, ListParams};
use outrigger_cases::{Request, changed, merged};
use outrigger_core::keys;
use outrigger_tests::tenant::{is_ready, node_of};
use outrigger_tests::{InWords, eventually, holds, is_true, until};
use serde_json::{Value, json};

use accounts::Account::{self, Admin, Operator, User};
use setup::{BLUE, Setup};

/// All rows, each with the policy that refuses it.
fn rows(setup: &Setup) -> Vec<(&str, Request)> {
    let pod = &setup.cases.objects["pod"];
    let of_groups = setup.cases.groups.iter().flat_map(|group| {
        assert!(!group.policy.is_empty(), "{}: names no policy", group.group);
        group.rows.iter().map(|row| (group.policy.as_str(), row.clone()))
    });
    let of_pods = setup.escapes.pods.iter().map(|escape| {
        let row = Request {
            name: escape.name.clone(),
            by: "user".to_owned(),
            ask: format!("POST {BLUE}/pods"),
            body: changed(pod, &escape.refused),
            says: escape.policy.clone(),
            ..Request::default()
        };
        ("outrigger-pods", row.controlled(changed(pod, &escape.allowed)))
    });
    let all = of_groups.chain(of_pods);
    all.filter(|(_, row)| setup.plane.infra.has(&row.name, row.needs.as_deref())).collect()
}

#[tokio::test]
async fn what_breaks_isolation_is_refused_and_its_control_case_is_allowed() {
    let setup = Setup::shared().await;
    let client = &setup.plane.infra.client().await;
    let all = rows(setup);
    let failures: Vec<String> = futures::stream::iter(&all)
        .map(async |(policy, row)| {
            let control = row.control();
            let mut failures = Vec::new();
            let mut fail = |ask: &Request, how: String| {
                failures.push(format!(
                    "{policy}, {}: {} {} {:.2000}\n    {how}",
                    ask.name, ask.by, ask.ask, ask.body
                ));
            };
            if let Err(refusal) = Account::of(&control).dry_run(client, &control.ask, &control.body).await {
                fail(&control, format!("is refused: {refusal}"));
            }
            let by = format!("ValidatingAdmissionPolicy '{policy}' with binding");
            match Account::of(row).dry_run(client, &row.ask, &row.body).await {
                Ok(_) => fail(row, "is allowed".to_owned()),
                Err(refusal) => {
                    assert!(!row.says.is_empty(), "{}: nothing is expected", row.name);
                    for part in row.says.iter().chain([&by]).filter(|part| !refusal.contains(part.as_str())) {
                        fail(row, format!("doesn't say {part:?} but: {refusal}"));
                    }
                }
            }
            failures
        })
        .buffer_unordered(8)
        .concat()
        .await;
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), all.len(), failures.join("\n"));
    // The webhook has been asked, and has not answered.
    let metrics =
        client.request_text(http::Request::get("/metrics").body(Vec::new()).unwrap()).await.unwrap();
    assert!(metrics.contains("apiserver_admission_webhook_fail_open_count{name=\"pods.outrigger.dev\""));
}

#[tokio::test]
async fn ordinary_work_runs_on_the_tenants_dpu() {
    let setup = Setup::shared().await;
    let client = &setup.plane.infra.client().await;
    let pod = &setup.cases.objects["pod"];
    let template =
        |more: Value| json!({"metadata": {"labels": {"app": "work"}}, "spec": merged(&pod["spec"], &more)});
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {
        "replicas": 2, "selector": {"matchLabels": {"app": "work"}}, "template": template(json!({}))}});
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {
        "template": template(json!({"restartPolicy": "Never"}))}});
    let system = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "system"}, "spec": {
        "hostNetwork": true, "tolerations": [{"operator": "Exists"}], "containers": [{"name": "c", "image": "i"}]}});
    for (who, path, object) in [
        (
            User,
            "/api/v1/namespaces/tenant-blue/pods",
            merged(pod, &json!({"metadata": {"labels": {"app": "work"}}})),
        ),
        (User, "/apis/apps/v1/namespaces/tenant-blue/deployments", deployment),
        (User, "/apis/batch/v1/namespaces/tenant-blue/jobs", job),
        (Operator, "/api/v1/namespaces/plain/pods", system.clone()),
        (Operator, "/api/v1/namespaces/kube-system/pods", system),
    ] {
        let ask = format!("POST {path}");
        eventually("the namespace takes it", || who.send(client, &ask, &object)).await;
    }
    let pods: Api<Pod> = Api::namespaced(client.clone(), "tenant-blue");
    eventually("the Job is done, and the others run", || async {
        let all = pods.list(&ListParams::default().labels("app=work")).await.in_words()?.items;
        let phase = |p: &Pod| p.status.as_ref().and_then(|s| s.phase.clone()).unwrap_or_default();
        let mut seen: Vec<_> = all.iter().map(|p| (phase(p), is_ready(p), node_of(p))).collect();
        seen.sort_unstable();
        let running = ("Running".to_owned(), true, "blue-dpu");
        let done = ("Succeeded".to_owned(), false, "blue-dpu");
        holds(seen == [running.clone(), running.clone(), running, done], format!("{seen:?}"))
    })
    .await;
    for namespace in ["plain", "kube-system"] {
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        until("the system's Pod runs", &pods, "system", |pod| {
            holds(is_ready(&pod), format!("{:?}", pod.status))
        })
        .await;
    }
    // A Node that comes now gets its taints, labels and status from the cluster's own controllers.
    let nodes: Api<Node> = Api::all(client.clone());
    let late = merged(&setup.cases.objects["dpu"], &json!({"metadata": {"name": "late-dpu"}}));
    Admin.send(client, "POST /api/v1/nodes", &late).await.unwrap();
    until("a new DPU is ready", &nodes, "late-dpu", |node| {
        let ready = is_true(&node, "Ready");
        let taints: Vec<_> =
            node.spec.iter().flat_map(|s| s.taints.iter().flatten()).map(|t| t.key.as_str()).collect();
        holds(ready && taints == [keys::TENANT], format!("{ready} {taints:?}"))
    })
    .await;
}

#[tokio::test]
async fn an_old_pod_can_go() {
    let setup = Setup::shared().await;
    let client = &setup.plane.infra.client().await;
    let left = format!("{BLUE}/pods/left");
    let mended = json!({"metadata": {"finalizers": null}});
    Operator.send(client, &format!("PATCH {left}"), &mended).await.unwrap();
    eventually("it is gone", || async {
        match Admin.send(client, &format!("GET {left}"), &Value::Null).await {
            Ok(pod) => Err(pod["metadata"].to_string()),
            Err(_) => Ok(()),
        }
    })
    .await;
}

#[tokio::test]
async fn expressions_fit_the_types() {
    let setup = Setup::shared().await;
    let infra = &setup.plane.infra;
    let files = [
        "webhooks/policies.yaml",
        "webhooks/emergency.yaml",
        "deploy/base/agent/rbac.yaml",
        "deploy/base/agent-conditions/rbac.yaml",
        "deploy/base/agent-nodes/rbac.yaml",
        "deploy/base/companions-first/policies.yaml",
    ];
    let objects: Vec<Value> = files.into_iter().flat_map(emergency::objects).collect();
    let of = |kind: &str| objects.iter().filter(|o| o["kind"] == kind).cloned().collect::<Vec<_>>();
    let (mut policies, bindings) = (of("ValidatingAdmissionPolicy"), of("ValidatingAdmissionPolicyBinding"));
    let names: Vec<Value> = policies.iter().map(|p| p["metadata"]["name"].clone()).collect();
    let bound: Vec<Value> = bindings.iter().map(|b| b["spec"]["policyName"].clone()).collect();
    assert_eq!(names, bound);
    assert!(bindings.iter().all(|b| b["spec"]["validationActions"] == json!(["Deny"])));
    assert!(policies.iter().all(|p| p["spec"]["failurePolicy"] == "Fail"));

    // The API server tells nothing about variables, so each becomes a validation, of a policy that nobody binds. One
    // more has a fault, to see that it would be found.
    for policy in &mut policies {
        policy["metadata"]["name"] = format!("check-{}", policy["metadata"]["name"].as_str().unwrap()).into();
        let variables = policy["spec"]["variables"].as_array().cloned().unwrap_or_default();
        let checks = variables
            .iter()
            .map(|v| json!({"expression": format!("[{}].size() == 1", v["expression"].as_str().unwrap())}));
        policy["spec"]["validations"].as_array_mut().unwrap().extend(checks);
    }
    let fault = json!({"metadata": {"name": "fault"}, "spec": {"variables": [], "matchConditions": [],
        "validations": [{"expression": "object.spec.noSuchField == 'x'"}]}});
    policies.push(merged(&policies[0], &fault));
    infra.apply(&policies).unwrap();
    let checked = eventually("all are checked", || async {
        let all = infra.get(&["validatingadmissionpolicies"]).in_words()?;
        let all = all["items"].as_array().unwrap().clone();
        let done = |p: &&Value| p["status"]["observedGeneration"] == p["metadata"]["generation"];
        let count = all.iter().filter(done).count();
        if count == all.len() { Ok(all) } else { Err(format!("{count} of {}", all.len())) }
    })
    .await;
    assert!(checked.len() >= policies.len(), "{}", checked.len());
    for policy in &checked {
        let warnings = &policy["status"]["typeChecking"]["expressionWarnings"];
        let name = &policy["metadata"]["name"];
        assert_eq!(warnings.is_null(), name != "fault", "{name}: {warnings}");
    }
}
