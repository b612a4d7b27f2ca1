//! Admission, asked by the real API server with `kubectl`, and by the test itself with what no API server would send.

use outrigger_api::conditions::Status;
use outrigger_core::keys;
use outrigger_tests::control_plane::Cluster;
use outrigger_tests::outrigger::{Outrigger, TENANT};
use outrigger_tests::shipped::kustomize;
use outrigger_tests::tenant::{Tenant, node_of, rule_for, rule_with};
use outrigger_tests::{InWords, create, dry_run, eventually, holds, until};
use serde_json::{Value, json};

/// Posts a body to the webhook: status and body.
pub(crate) async fn post(outrigger: &Outrigger, path: &str, body: Vec<u8>) -> Result<(u16, String), String> {
    outrigger.post(outrigger.webhook_port, None, http::Request::builder().uri(path), body).await
}

pub(crate) fn review(request: &Value) -> Vec<u8> {
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
        .to_string()
        .into_bytes()
}

#[tokio::test]
async fn bodies_that_are_no_review_are_answered_with_the_reason() {
    for (path, body, status, part) in [
        ("/mutate/pods", b"".to_vec(), 400, "EOF"),
        ("/mutate/pods", b"{\"apiVersion\": \"admission.k8s.io/v1\", \"kind\": \"Admi".to_vec(), 400, "EOF"),
        ("/mutate/pods", b"\xff\xfe".to_vec(), 400, "no AdmissionReview"),
        ("/mutate/pods", b"{\"apiVersion\":\"v1\",\"kind\":\"Pod\"}".to_vec(), 400, "is \"Pod\" of \"v1\""),
        ("/mutate/pods", review(&json!({"object": {}})), 400, "request.uid: is missing"),
        ("/mutate/nothing", review(&json!({"uid": "u"})), 404, ""),
    ] {
        let (got, text) = post(Outrigger::shared().await, path, body).await.unwrap();
        assert_eq!(got, status, "{text}");
        assert!(text.contains(part), "{text}");
    }
}

#[tokio::test]
async fn a_body_of_ten_mebibytes_is_refused_and_the_next_request_is_served() {
    let o = Outrigger::shared().await;
    // The refusal may come before the body is sent, so the sender may see a broken connection in its place.
    if let Ok((status, text)) = post(o, "/mutate/pods", vec![b' '; 10 << 20]).await {
        assert_eq!(status, 413, "{text}");
        assert!(text.contains("10485760 bytes") && text.contains("at most 8388608"), "{text}");
    }
    let pod = json!({"uid": "u", "kind": {"group": "apps", "version": "v1", "kind": "Deployment"}, "operation": "CREATE"});
    let (status, text) = post(o, "/mutate/pods", review(&pod)).await.unwrap();
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, &answer["response"]["uid"]), (200, &json!("u")));
    assert_eq!(answer["response"]["allowed"], json!(false));
    let message = answer["response"]["status"]["message"].as_str().unwrap();
    assert!(message.contains("apps/v1/Deployment"), "{message}");
}

#[tokio::test]
async fn a_namespace_that_is_not_known_yet_is_refused_for_now() {
    let pod = json!({"uid": "u", "kind": {"version": "v1", "kind": "Pod"}, "operation": "CREATE",
        "namespace": "unheard-of", "object": {"spec": {}}});
    let (_, text) = post(Outrigger::shared().await, "/mutate/pods", review(&pod)).await.unwrap();
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(answer["response"]["status"]["code"], json!(503), "{text}");
    assert!(text.contains("unheard-of is not known yet") && text.contains("try again"), "{text}");
}

#[tokio::test]
async fn a_pod_made_by_hand_stays_on_the_tenants_dpus() {
    let t = Tenant::without_agent(Outrigger::shared().await, "byhand", &[("a", 1)]).await;
    // A Node of nobody, and free for all: the Pod would go there if it could.
    let free = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "byhand-free", "labels": {"any": "x"}}});
    t.outrigger.plane.infra.apply(&[free]).unwrap();
    let pod = json!({"metadata": {"name": "p"}, "spec": {
        "containers": [{"name": "c", "image": "i"}],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "any", "operator": "Exists"}]},
            {"matchExpressions": [{"key": "any", "operator": "DoesNotExist"}]}]}}}}});
    create(&t.pods(), &pod).await.unwrap();
    let placed = until("it is placed", &t.pods(), "p", |pod| {
        if node_of(&pod).is_empty() { Err(format!("{:?}", pod.status)) } else { Ok(pod) }
    })
    .await;
    assert_eq!(node_of(&placed), t.node("a-dpu1"));
}

#[tokio::test]
async fn our_keys_are_refused_from_everybody_else() {
    let t = Tenant::without_agent(Outrigger::shared().await, "ourkeys", &[("a", 1)]).await;
    for (metadata, spec, path) in [
        (json!({"labels": {keys::TENANT: "other"}}), json!({}), "metadata.labels[outrigger.dev/tenant]"),
        (json!({"annotations": {keys::HOST: "b"}}), json!({}), "metadata.annotations[outrigger.dev/host]"),
        (
            json!({}),
            json!({"schedulingGates": [{"name": keys::ADMISSION_GATE}]}),
            "spec.schedulingGates[0].name",
        ),
    ] {
        let mut pod = json!({"metadata": metadata, "spec": spec});
        pod["metadata"]["name"] = json!("p");
        pod["spec"]["containers"] = json!([{"name": "c", "image": "i"}]);
        let error = create(&t.pods(), &pod).await.unwrap_err().to_string();
        assert!(error.contains(path) && error.contains("only Outrigger itself"), "{error}");
    }
}

#[tokio::test]
async fn a_dry_run_is_served_and_unknown_fields_survive() {
    let t = Tenant::without_agent(Outrigger::shared().await, "dryrun", &[("a", 1)]).await;
    let pod = json!({"metadata": {"name": "p"}, "spec": {
        "containers": [{"name": "c", "image": "i", "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}]}],
        "schedulingGates": [{"name": "example.com/wait"}],
        "resourceClaims": [{"name": "d", "resourceClaimName": "x"}]}});
    let pod = dry_run(&t.pods(), &pod).await.unwrap();
    let spec = serde_json::to_value(pod.spec.unwrap()).unwrap();
    assert_eq!(spec["schedulingGates"], json!([{"name": "example.com/wait"}]));
    assert_eq!(spec["resourceClaims"], json!([{"name": "d", "resourceClaimName": "x"}]));
    assert!(spec["containers"][0]["resizePolicy"].is_array());
    assert!(spec["affinity"]["nodeAffinity"].is_object());
    assert!(t.pods().get_opt("p").await.unwrap().is_none());
}

#[tokio::test]
async fn only_the_manager_may_bring_a_workload() {
    let t = Tenant::without_agent(Outrigger::shared().await, "facts-forged", &[("a", 1)]).await;
    // The very Pod that the manager would make, made by an administrator.
    let pod = json!({"metadata": {"name": "p", "labels": {keys::RULE: "r", keys::WORKLOAD: "w"},
            "annotations": {keys::WORKLOAD: "{}", keys::HOST: "x", keys::RULE_GENERATION: "1"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let error = create(&t.pods(), &pod).await.unwrap_err().to_string();
    assert!(error.contains("metadata.labels[outrigger.dev/rule]"), "{error}");
}

#[tokio::test]
async fn roles_allow_what_is_needed_and_no_more() {
    let o = Outrigger::shared().await;
    let _t = Tenant::without_agent(o, "roles", &[]).await;
    let can = |cluster: &Cluster, account: &str, args: &[&str]| {
        cluster.can(("outrigger-system", &format!("outrigger-{account}")), args).unwrap()
    };
    let (infra, tenant) = (&o.plane.infra, &o.plane.tenant);
    for (account, args, allowed) in [
        ("manager", &["create", "pods", "-n", "tenant-roles"][..], true),
        ("manager", &["create", "pods", "-n", "default"], false),
        ("manager", &["create", "pods", "-n", "kube-system"], false),
        ("manager", &["delete", "pods", "-n", "outrigger-system"], false),
        ("manager", &["create", "pods", "--subresource=exec", "-n", "tenant-roles"], false),
        ("manager", &["create", "pods", "--subresource=binding", "-n", "tenant-roles"], false),
        ("manager", &["get", "secrets", "-n", "tenant-roles"], false),
        ("manager", &["list", "secrets", "-A"], false),
        ("manager", &["get", "configmaps", "-n", "kube-system"], false),
        ("manager", &["update", "workloadrules", "-n", "tenant-roles"], true),
        ("manager", &["update", "workloadrules", "-n", "default"], false),
        ("manager", &["create", "serviceaccounts", "--subresource=token", "-n", "tenant-roles"], false),
        ("manager", &["patch", "nodes"], true),
        ("manager", &["delete", "nodes"], false),
        ("manager", &["patch", "nodes", "--subresource=status"], false),
        ("manager", &["patch", "tenants.outrigger.dev"], true),
        ("manager", &["delete", "tenants.outrigger.dev"], false),
        ("manager", &["assign", "tenants.outrigger.dev"], true),
        ("manager", &["bind", "clusterroles/cluster-admin"], false),
        ("manager", &["escalate", "clusterroles"], false),
        ("manager", &["impersonate", "users"], false),
        ("manager", &["patch", "leases/outrigger-manager-replicas", "-n", "outrigger-system"], true),
        ("manager", &["patch", "leases/other", "-n", "outrigger-system"], false),
        ("manager", &["patch", "mutatingwebhookconfigurations"], false),
        ("manager", &["patch", "namespaceoffloadings", "--subresource=status", "-n", "default"], true),
        ("manager", &["patch", "namespaceoffloadings", "-n", "default"], true),
        ("manager", &["create", "namespaceoffloadings", "-n", "default"], false),
        ("manager", &["delete", "namespaceoffloadings", "-n", "default"], false),
        ("manager", &["patch", "machines.imperator.tenzen-y.io"], false),
        ("manager", &["patch", "machines.imperator.tenzen-y.io", "--subresource=status"], true),
        ("manager", &["delete", "machines.imperator.tenzen-y.io"], false),
        ("manager", &["create", "machinenodepools"], true),
        ("manager", &["create", "statefulsets", "-n", "imperator-system"], true),
        ("manager", &["create", "statefulsets", "-n", "default"], false),
        ("manager", &["delete", "services", "-n", "imperator-system"], true),
        ("manager", &["delete", "services", "-n", "tenant-roles"], false),
        ("manager", &["create", "pods", "-n", "imperator-system"], false),
        ("manager", &["get", "secrets", "-n", "imperator-system"], false),
        ("manager", &["create", "priorityclasses"], false),
        ("webhook", &["watch", "namespaceoffloadings", "-A"], true),
        ("webhook", &["patch", "namespaceoffloadings", "-n", "default"], false),
        ("manager", &["create", "pods", "-n", "universe"], true),
        ("manager", &["patch", "pods", "-n", "universe"], true),
        ("manager", &["patch", "pods", "--subresource=resize", "-n", "universe"], true),
        ("manager", &["patch", "pods", "--subresource=resize", "-n", "default"], false),
        ("manager", &["create", "pods", "--subresource=exec", "-n", "universe"], false),
        ("manager", &["get", "secrets", "-n", "universe"], false),
        ("manager", &["get", "configmaps", "-n", "universe"], false),
        ("manager", &["create", "adminworkloadrules", "-n", "universe"], true),
        ("manager", &["patch", "adminworkloadrules", "--subresource=status", "-n", "universe"], true),
        ("manager", &["update", "workloadrules", "-n", "universe"], false),
        ("manager", &["create", "rolebindings", "-n", "universe"], true),
        ("manager", &["create", "adminworkloadrules", "-n", "tenant-roles"], false),
        ("manager", &["list", "adminworkloadrules", "-A"], false),
        ("webhook", &["watch", "adminworkloadrules", "-n", "universe"], true),
        ("webhook", &["list", "adminworkloadrules", "-A"], false),
        ("webhook", &["patch", "adminworkloadrules", "-n", "universe"], false),
        ("webhook", &["create", "pods", "-n", "universe"], false),
        ("webhook", &["create", "pods", "-n", "tenant-roles"], false),
        ("webhook", &["list", "workloadrules", "-A"], true),
        ("webhook", &["get", "secrets", "-n", "tenant-roles"], false),
        // Guests of Machines may be in any namespace.
        ("webhook", &["list", "pods", "-A"], true),
        ("webhook", &["get", "pods", "--subresource=log", "-n", "tenant-roles"], false),
        ("webhook", &["delete", "pods", "-n", "tenant-roles"], false),
        ("webhook", &["update", "configmaps", "-n", "imperator-system"], true),
        ("webhook", &["list", "configmaps", "-n", "imperator-system"], false),
        ("webhook", &["get", "configmaps", "-n", "kube-system"], false),
        ("webhook", &["patch", "machines.imperator.tenzen-y.io"], false),
        ("webhook", &["patch", "nodes"], false),
        ("webhook", &["assign", "tenants.outrigger.dev"], false),
    ] {
        assert_eq!(can(infra, account, args), allowed, "{account} {args:?}");
    }
    // Kubernetes' own roles for a tenant's users have no right to the platform's rules, anywhere.
    for role in ["view", "edit", "admin"] {
        let text = infra.kubectl(&["get", "clusterrole", role, "-o", "json"]).unwrap();
        assert!(!text.contains("adminworkloadrules") && !text.contains(keys::WORKLOAD_GROUP), "{role}");
    }
    // Other tests give the agent of this cluster the rights of further components, so an account of its own has what is always shipped.
    let mut bindings = kustomize(TENANT).unwrap();
    bindings.retain(|object| object["subjects"][0]["name"] == "outrigger-agent");
    for binding in &mut bindings {
        binding["metadata"]["name"] =
            json!(format!("roles-{}", binding["metadata"]["name"].as_str().unwrap()));
        binding["subjects"][0]["name"] = json!("outrigger-roles");
    }
    assert!(!bindings.is_empty());
    tenant.apply(&bindings).unwrap();
    for (args, allowed) in [
        (&["watch", "pods", "-A"][..], true),
        (&["delete", "pods", "-n", "default"], false),
        (&["get", "secrets", "-n", "default"], false),
        (&["get", "nodes"], false),
        (&["create", "events.events.k8s.io", "-n", "universe"], true),
        // The state of companions, at their workloads.
        (&["create", "events.events.k8s.io", "-n", "default"], true),
        (&["delete", "events.events.k8s.io", "-n", "default"], false),
        (&["patch", "pods", "--subresource=status", "-n", "default"], true),
        (&["patch", "pods", "-n", "default"], false),
        (&["patch", "nodes", "--subresource=status"], false),
    ] {
        assert_eq!(can(tenant, "roles", args), allowed, "agent {args:?}");
    }
}

#[tokio::test]
async fn a_cluster_whose_webhook_is_missing_runs_no_companion_unplaced() {
    // A tenant whose namespace the configurations leave out: to it the webhook is not registered.
    let o = Outrigger::shared().await;
    let t = Tenant::new(o, "nohook", &[("a", 1)]).await;
    let patch = |object: &str, out: bool, path: &str, value: &dyn Fn(Value) -> Value| {
        let mut expressions = vec![json!({"key": keys::TENANT, "operator": "Exists"})];
        if out {
            expressions.push(json!({"key": keys::TENANT, "operator": "NotIn", "values": ["nohook"]}));
        }
        let patch = json!([{"op": "add", "path": path, "value": value(json!(expressions))}]);
        o.plane.infra.patch(object, &[], &patch).unwrap();
    };
    let leave_out = |out: bool| {
        let resources = |all| json!({"namespaceSelector": {"matchExpressions": all}});
        patch("validatingadmissionpolicybinding/outrigger-pods", out, "/spec/matchResources", &resources);
    };
    let selector = |kind: &str, out: bool| {
        let path = "/webhooks/0/namespaceSelector/matchExpressions";
        patch(&format!("{kind}webhookconfiguration/outrigger"), out, path, &|all| all);
    };
    let pod: k8s_openapi::api::core::v1::Pod = serde_json::from_value(
        json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}),
    )
    .unwrap();
    // The API server takes a moment to see it.
    let answers = async |what: &str, expected: &dyn Fn(Result<bool, String>) -> bool| {
        eventually(what, || async {
            let answer = dry_run(&t.pods(), &pod).await;
            let answer = answer.map(|pod| pod.spec.unwrap().affinity.is_some()).in_words();
            holds(expected(answer.clone()), format!("{answer:?}"))
        })
        .await;
    };
    // Nobody puts the placement in, so the last check misses it.
    selector("mutating", true);
    answers("what was not placed is refused", &|answer| {
        answer.is_err_and(|e| e.contains("nodeSelectorTerms"))
    })
    .await;
    t.rule("r", rule_for("app", "web")).await;
    t.web("w").await;
    t.condition_says("r", "Ready", Status::False, "Refused", &["nodeSelectorTerms"]).await;
    assert!(t.companions().await.unwrap().is_empty());
    // Nor does anybody check. Then the gate holds.
    selector("validating", true);
    leave_out(true);
    answers("nobody looks", &|answer| answer == Ok(false)).await;
    t.rule("r", rule_with("/template/metadata/labels/app", json!("newer"))).await;
    let message = eventually("the rule says so", || async {
        let message = t.condition("r", "Ready", Status::False, "Refused").await;
        if message.contains("register the MutatingWebhookConfiguration") { Ok(message) } else { Err(message) }
    })
    .await;
    assert!(message.contains("neither placed nor"), "{message}");
    let companion = t.companions().await.unwrap().remove(0);
    assert_eq!(node_of(&companion), "", "gated");
    // Registered again, it is created again; not only after the pause, because the rule changes.
    selector("mutating", false);
    selector("validating", false);
    leave_out(false);
    answers("it is placed again", &|answer| answer == Ok(true)).await;
    t.rule("r", rule_with("/template/metadata/labels/app", json!("newest"))).await;
    assert_eq!(node_of(&t.companion().await), t.node("a-dpu1"));
}
