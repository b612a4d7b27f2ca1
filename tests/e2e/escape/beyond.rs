//! What is beside the namespace: devices, Nodes by a kubelet's credentials, the rest of the cluster, and hosts by an agent that lies.

use std::time::Duration;

use kube::ResourceExt;
use outrigger_api::conditions::Status;
use outrigger_cases::{changed, merged};
use outrigger_core::keys;
use outrigger_tests::outrigger::SYSTEM;
use outrigger_tests::tenant::{node_of, rule_for};
use outrigger_tests::{always, create, eventually, holds};
use serde_json::{Value, json};

use super::stage::*;

#[tokio::test]
async fn a_kubelet_keeps_to_its_own_dpu() {
    let s = Stage::with_agent("kubelet").await;
    s.t.rule("r", rule_for("app", "web")).await;
    s.t.web("w").await;
    let pod = s.pod(&s.t.companion().await.name_any());
    let kubelet = User::kubelet(s.t.outrigger, &s.own).await;
    let second = User::kubelet(s.t.outrigger, "kubelet-new").await;
    a_kubelet_keeps_to(&s, &s.admin, &pod, [&kubelet, &second]).await;
}

/// Makes all attempts of the kubelet of a DPU, on which the companion at this path is, and those of one that registers the Node `$TENANT-new`.
pub(crate) async fn a_kubelet_keeps_to(sides: &Sides, admin: &User, pod: &str, kubelets: [&User; 2]) {
    let theirs = format!("/api/v1/namespaces/tenant-{}", sides.other);
    admin.post(&format!("{theirs}/secrets"), &json!({"metadata": {"name": "s"}})).await.unwrap();
    let (pods, their_pod) = (format!("{theirs}/pods"), good("p"));
    eventually("their namespace takes Pods", || admin.post(&pods, &their_pod)).await;
    eventually("their Pod is on their DPU", || async {
        let pod = admin.get(&format!("{pods}/p")).await?;
        holds(pod["spec"]["nodeName"] == json!(sides.their), pod["status"].to_string())
    })
    .await;
    let node = format!("{NODES}/{}", sides.own);
    let before = admin.get(&node).await.unwrap();
    let uid = before["metadata"]["uid"].as_str().unwrap();
    let mut failures = Failures::default();
    let attempts = sides.requests("kubelet", &[("$POD", pod), ("$UID", uid)]);
    failures.attempts(kubelets[0], "a kubelet", &attempts).await;
    failures.attempts(kubelets[1], "a new Node", &sides.requests("registration", &[])).await;
    failures.none();
    let after = admin.get(&node).await.unwrap();
    assert_eq!(after["spec"]["taints"], before["spec"]["taints"]);
    for key in [keys::NODE_TENANT, keys::DPU_HOST, keys::DPU_NODE_NAME] {
        assert_eq!(after["metadata"]["labels"][key], before["metadata"]["labels"][key]);
    }
    let new = admin.get(&format!("{NODES}/{}-new", sides.id)).await.unwrap();
    assert_eq!(new["metadata"]["labels"][keys::NODE_TENANT], Value::Null, "{new}");
}

/// Publishes three devices of the tenant's DPU.
pub(super) async fn publish_devices(s: &Stage) {
    let slice = json!({"metadata": {"name": format!("devices-{}", s.own)}, "spec": {"driver": "escape.example.com",
        "nodeName": s.own, "devices": [{"name": "d1"}, {"name": "d2"}, {"name": "d3"}],
        "pool": {"name": s.own, "generation": 1, "resourceSliceCount": 1}}});
    s.admin.post(SLICES, &slice).await.unwrap();
}

/// A class that a Pod asks for by the name of a resource is asked for by a claim too, which the scheduler makes.
#[tokio::test]
async fn devices_behind_a_resource_are_those_of_allowed_classes() {
    let s = Stage::new("behind").await;
    if s.t.outrigger.plane.infra.skips("DRAExtendedResource") {
        return;
    }
    s.prepare().await;
    publish_devices(&s).await;
    let asks = |name: &str, resource: &str| {
        let resource = json!({resource: "1"});
        let resources = json!({"requests": resource, "limits": resource});
        changed(&good(name), &json!({"container": {"resources": resources}}))
    };
    let allowed = asks("allowed", "deviceclass.resource.kubernetes.io/escape-allowed");
    s.mallory.post(&s.pods(), &allowed).await.unwrap();
    // That a class stands behind a resource may be decided later than a Pod asks for it.
    s.mallory.post(&s.pods(), &asks("late", "escape.example.com/late")).await.unwrap();
    let class = json!({"metadata": {"name": "escape-late"}, "spec": {"extendedResourceName": "escape.example.com/late",
        "selectors": [{"cel": {"expression": "device.driver == 'escape.example.com'"}}]}});
    s.admin.post("/apis/resource.k8s.io/v1/deviceclasses", &class).await.unwrap();

    assert_eq!(s.placed("allowed").await, s.own);
    s.event("late", "requests[0].exactly.deviceClassName: is \\\"escape-late\\\"").await;
    let late = s.admin.get(&s.pod("late")).await.unwrap();
    assert_eq!(late["spec"]["nodeName"], Value::Null, "{late}");
}

#[tokio::test]
async fn devices_of_others_are_out_of_reach() {
    let s = Stage::new("devices").await;
    s.prepare().await;
    // Where the platform lets administrators look at devices, its tenant still may not.
    let look = json!({"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}});
    s.admin.patch(&s.ns, &look).await.unwrap();
    let (claims, templates) = (s.claims(), s.group("resource.k8s.io/v1", "resourceclaimtemplates"));
    let mut failures = Failures::default();
    for (i, attempt) in s.requests("claims", &[]).iter().enumerate() {
        let claim = merged(&json!({"metadata": {"name": format!("c{i}")}}), &attempt.body);
        let template = json!({"metadata": claim["metadata"], "spec": {"spec": claim["spec"]}});
        failures.check(&attempt.name, &s.mallory.post(&claims, &claim).await, &attempt.says);
        let deeper: Vec<String> =
            attempt.says.iter().map(|word| word.replace("spec.devices", "spec.spec.devices")).collect();
        let answer = s.mallory.post(&templates, &template).await;
        failures.check(&format!("{} in a template", attempt.name), &answer, &deeper);
    }
    failures.attempts(&s.mallory, "a claim", &s.requests("taken claim", &[("$CLAIMS", &claims)])).await;
    failures.none();

    publish_devices(&s).await;
    // A claim that is made from a template is made by a controller, and gets no label of Outrigger's that way.
    for (name, label) in [("marked", keys::WORKLOAD), ("plain", "workload")] {
        let spec = &claim("c", &json!({}))["spec"];
        let template =
            json!({"metadata": {"name": name}, "spec": {"metadata": {"labels": {label: "w"}}, "spec": spec}});
        s.mallory.post(&templates, &template).await.unwrap();
        let uses = json!({"spec": {"resourceClaims": [{"name": "d", "resourceClaimTemplateName": name}]}});
        s.mallory.post(&s.pods(), &merged(&good(name), &uses)).await.unwrap();
    }
    // A Pod's status says which claim was made for it, and whoever may write it may name another's.
    let forged = json!({"spec": {"schedulingGates": [{"name": "example.com/wait"}],
        "resourceClaims": [{"name": "d", "resourceClaimTemplateName": "plain"}]}});
    s.mallory.post(&s.pods(), &merged(&good("forged"), &forged)).await.unwrap();
    eventually("its own claim is made", || async {
        let pod = s.admin.get(&s.pod("forged")).await?;
        let claim = &pod["status"]["resourceClaimStatuses"][0]["resourceClaimName"];
        holds(claim.is_string(), pod["status"].to_string())
    })
    .await;
    let names = json!({"status": {"resourceClaimStatuses": [{"name": "d", "resourceClaimName": "taken"}]}});
    s.admin.patch(&format!("{}/status", s.pod("forged")), &names).await.unwrap();
    s.mallory.patch(&s.pod("forged"), &json!({"spec": {"schedulingGates": null}})).await.unwrap();

    assert_eq!(s.placed("plain").await, s.own);
    s.event("marked", "metadata.labels[outrigger.dev/workload]: is added as").await;
    for pod in ["marked", "forged"] {
        let pod = s.admin.get(&s.pod(pod)).await.unwrap();
        assert_eq!(pod["spec"]["nodeName"], Value::Null, "{pod}");
    }
    let taken = s.admin.get(&format!("{claims}/taken")).await.unwrap();
    assert_eq!(taken["status"]["reservedFor"], Value::Null, "{taken}");

    // A claim that was made for one Pod is no other's.
    let pod = s.admin.get(&s.pod("plain")).await.unwrap();
    let made = &pod["status"]["resourceClaimStatuses"][0]["resourceClaimName"];
    let thief = json!({"spec": {"resourceClaims": [{"name": "d", "resourceClaimName": made}]}});
    let answer = eventually("the webhook knows the claim", || async {
        let answer = s.mallory.post(&dry(&s.pods()), &merged(&good("thief"), &thief)).await;
        answer.err().ok_or_else(|| "it doesn't".to_owned())
    })
    .await;
    assert!(answer.contains("which was made for Pod \"plain\" alone"), "{answer}");
}

#[tokio::test]
async fn the_rest_of_the_cluster_is_out_of_reach() {
    let s = Stage::new("rights").await;
    let mut failures = Failures::default();
    for row in s.requests("rights", &[]) {
        let (method, path) = row.ask.split_once(' ').unwrap();
        let body = match method {
            "POST" => json!({"metadata": {"name": "x"}}),
            "PATCH" => json!({"metadata": {"labels": {"x": "y"}}}),
            _ => Value::Null,
        };
        let answer = s.mallory.ask(method.parse().unwrap(), path, &body).await;
        failures.check(&row.ask, &answer, &["403", "mallory-rights\" cannot"]);
    }
    failures.check("own Pods", &s.mallory.post(&s.pods(), &good("p")).await, &[""; 0]);
    failures.check("an own rule", &s.mallory.post(&s.rules(), &rule("r", &good("p"))).await, &[""; 0]);
    failures.none();
    for (attributes, allowed) in [
        (json!({"verb": "impersonate", "resource": "users"}), false),
        (json!({"verb": "impersonate", "resource": "groups", "name": "system:masters"}), false),
        (json!({"verb": "impersonate", "resource": "serviceaccounts", "namespace": SYSTEM}), false),
        (json!({"verb": "assign", "group": "outrigger.dev", "resource": "tenants"}), false),
        // With edit the user is every service account of the namespace, and so is whoever makes Pods there.
        (json!({"verb": "impersonate", "resource": "serviceaccounts", "namespace": s.t.namespace}), true),
    ] {
        let review = json!({"spec": {"user": "mallory-rights", "groups": ["tenant-rights-users"],
            "resourceAttributes": attributes}});
        assert_eq!(may(&s.admin, &review).await, allowed, "{attributes}");
    }
}

#[tokio::test]
async fn an_agent_that_lies_about_the_host_gets_none_of_its_dpus() {
    let s = Stage::with_agent("liar").await;
    let any = json!({"spec": {"dpuSelectionPolicy": "Any"}});
    s.mallory.post(&s.rules(), &rule("same", &good("p"))).await.unwrap();
    s.mallory.post(&s.rules(), &merged(&rule("any", &good("p")), &any)).await.unwrap();
    // In its own cluster the tenant may say what it likes.
    let work = json!({"metadata": {"name": "w", "labels": {"app": "web"}},
        "spec": {"nodeName": format!("{}-a", s.other), "containers": [{"name": "c", "image": "i"}]}});
    create(&s.t.work(), &work).await.unwrap();
    s.t.condition("any", "Ready", Status::True, "AllReady").await;
    // The scheduler has found nothing.
    s.t.condition("same", "Ready", Status::False, "NoDPU").await;
    always("none of their DPUs is used", Duration::from_millis(500), || async {
        let companions = s.t.companions().await?;
        let nodes: Vec<_> =
            companions.iter().map(|c| (c.labels()[keys::RULE].as_str(), node_of(c))).collect();
        let right = |(rule, node): &(&str, &str)| *node == if *rule == "any" { s.own.as_str() } else { "" };
        holds(nodes.len() == 2 && nodes.iter().all(right), format!("{nodes:?}"))
    })
    .await;
}
