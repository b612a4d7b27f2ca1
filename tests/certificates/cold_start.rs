//! A cluster that starts with everything in place but the webhook.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use outrigger_core::keys;
use outrigger_tests::outrigger::{SYSTEM, get, ports};
use outrigger_tests::tenant::{namespace, rule, rule_for, tenant};
use outrigger_tests::{InWords, always, eventually, holds};
use serde_json::{Value, json};

use crate::certificates::cert_manager::{commands, run};
use crate::certificates::{NAMESPACE, WEBHOOK, alone, configurations, start_webhook};

fn deployment(namespace: &str, name: &str) -> Value {
    let mut spec = spec();
    spec["tolerations"] = json!([{"operator": "Exists"}]);
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": namespace},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": name}}, "template": {
            "metadata": {"labels": {"app": name}},
            "spec": spec}}})
}

/// What a Pod is that may be anywhere: as our own are, whose namespace takes no others.
fn spec() -> Value {
    json!({"securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{"name": "c", "image": "i", "securityContext": {
            "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}]})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_starts_without_the_webhook_and_tenants_wait_for_it() {
    let (_one, o) = alone().await;
    let infra = &o.plane.infra;
    // Placed as the policies want it, and kept by a finalizer.
    let mut kept = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "kept", "namespace": NAMESPACE,
        "finalizers": ["example.com/kept"]}, "spec": spec()});
    kept["spec"]["affinity"] = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
        {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": keys::NODE_TENANT, "operator": "In", "values": [crate::certificates::TENANT]}]}]}}});
    infra.apply(&[kept]).unwrap();
    // Just as they are shipped. Nobody listens at port 443, and no CA is there.
    for kind in ["mutating", "validating"] {
        infra.apply_file(&format!("webhooks/{kind}.yaml")).unwrap();
    }
    for program in ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok"] {
        o.plane.command(&format!("restart infra/{program}")).unwrap();
    }

    // The cluster itself, and we.
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "cold"}});
    let daemons = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "proxy", "namespace": "kube-system"},
        "spec": {"selector": {"matchLabels": {"app": "proxy"}}, "template": {"metadata": {"labels": {"app": "proxy"}},
            "spec": {"tolerations": [{"operator": "Exists"}], "containers": [{"name": "c", "image": "i"}]}}}});
    let namespace = namespace("cold");
    let new = [
        node,
        namespace,
        daemons,
        deployment("kube-system", "dns"),
        deployment(SYSTEM, "outrigger-webhook"),
        deployment("universe", "platform"),
        deployment("default", "other"),
    ];
    eventually("the objects are taken", || async { infra.apply(&new) }).await;
    infra.kubectl(&["wait", "--for=condition=Ready", "node/cold", "--timeout=120s"]).unwrap();
    infra.kubectl(&["rollout", "status", "-n", "kube-system", "daemonset/proxy", "--timeout=120s"]).unwrap();
    for at in ["kube-system/dns", "outrigger-system/outrigger-webhook", "universe/platform", "default/other"]
    {
        let (namespace, name) = at.split_once('/').unwrap();
        let name = format!("deployment/{name}");
        infra.kubectl(&["rollout", "status", "-n", namespace, &name, "--timeout=120s"]).unwrap();
    }
    let renewed = || {
        infra.kubectl(&["get", "lease", "cold", "-n", "kube-node-lease", "-o", "jsonpath={.spec.renewTime}"])
    };
    let before = renewed().unwrap();
    eventually("the Node's Lease is renewed", || async {
        let now = renewed().unwrap();
        if now == before { Err(now) } else { Ok(()) }
    })
    .await;

    // What waits for the webhook, and in which words.
    let dry = "--dry-run=server";
    let refused = |object: &Value| {
        infra.kubectl_with(&["create", dry, "-f", "-"], &object.to_string()).unwrap_err().to_string()
    };
    let pod = |namespace: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": namespace},
            "spec": spec()})
    };
    let error = refused(&pod(NAMESPACE));
    assert!(error.contains("failed calling webhook \"pods.outrigger.dev\""), "{error}");
    let error = refused(&tenant("cold", json!({})));
    assert!(error.contains("failed calling webhook \"tenants.outrigger.dev\""), "{error}");
    // Finalizers of a Tenant can go: nothing that is deleted waits.
    infra.kubectl(&["annotate", dry, "tenant", crate::certificates::TENANT, "example.com/x=y"]).unwrap();
    let error = infra
        .patch(&format!("tenant/{}", crate::certificates::TENANT), &[dry], &json!({"spec": {"hosts": ["x"]}}))
        .unwrap_err();
    assert!(error.to_string().contains("failed calling webhook \"tenants.outrigger.dev\""), "{error}");
    // Nor does a Pod, whose finalizer goes; whatever else is wanted of it waits.
    let change = |patch: Value| infra.patch("pod/kept", &[dry, "-n", NAMESPACE], &patch);
    change(json!({"metadata": {"finalizers": null}})).unwrap();
    for more in [
        json!({"metadata": {"finalizers": ["example.com/kept", "orphan"]}}),
        json!({"metadata": {"finalizers": null, "labels": {"a": "b"}}}),
        json!({"metadata": {"finalizers": null, "annotations": {"a": "b"}}}),
        json!({"spec": {"activeDeadlineSeconds": 9}}),
    ] {
        let error = change(more).unwrap_err().to_string();
        assert!(error.contains("failed calling webhook \"pod-updates.outrigger.dev\""), "{error}");
    }
    infra.kubectl(&["delete", "pod", "kept", "-n", NAMESPACE, "--wait=false"]).unwrap();
    infra.patch("pod/kept", &["-n", NAMESPACE], &json!({"metadata": {"finalizers": null}})).unwrap();
    infra.kubectl(&["wait", "--for=delete", "pod/kept", "-n", NAMESPACE, "--timeout=60s"]).unwrap();
    // What is only advice doesn't wait: the manager validates the rule again.
    let rule = rule(NAMESPACE, "r", rule_for("app", "web"));
    infra.kubectl_with(&["create", dry, "-f", "-"], &rule.to_string()).unwrap();
    // A tenant's label where it can't be meant is refused by a policy; where it got past that, system Pods don't wait.
    let label = format!("{}=load", keys::TENANT);
    let error = infra.kubectl(&["label", dry, "namespace", "kube-system", &label]).unwrap_err().to_string();
    assert!(error.contains("on the namespace kube-system of the cluster itself"), "{error}");
    infra.kubectl(&["delete", "validatingadmissionpolicybinding", "outrigger-namespaces"]).unwrap();
    for namespace in ["kube-system", SYSTEM] {
        eventually("the label is set", || async {
            infra.kubectl(&["label", "namespace", namespace, &label])
        })
        .await;
        always("Pods are taken", Duration::from_secs(1), || async {
            let created = infra.kubectl_with(&["create", dry, "-f", "-"], &pod(namespace).to_string());
            created.map(drop).in_words()
        })
        .await;
        infra.kubectl(&["label", "namespace", namespace, &format!("{}-", keys::TENANT)]).unwrap();
    }
    infra.apply_file("webhooks/policies.yaml").unwrap();

    // The way out, by the commands of the runbook.
    let steps = commands("runbooks/webhook-down.md", "Recovery without the webhook");
    let [out, policies, back] = steps.as_slice() else { panic!("three steps: {steps:?}") };
    run(o, out);
    eventually("Tenants are taken", || async {
        let made = infra.kubectl_with(&["create", dry, "-f", "-"], &tenant("cold", json!({})).to_string());
        made.map(drop).in_words()
    })
    .await;
    // Two policies refuse it, and the API server names the one that it asks first.
    eventually("the policies refuse it", || async {
        let error = refused(&pod(NAMESPACE));
        holds(error.contains("ValidatingAdmissionPolicy 'outrigger-"), error)
    })
    .await;
    let (emergency, policies) = policies.split_once('\n').unwrap();
    run(o, emergency);
    eventually("only the policies are left", || async {
        let error = refused(&pod(NAMESPACE));
        holds(error.contains("ValidatingAdmissionPolicy 'outrigger-pods'"), error)
    })
    .await;
    run(o, policies);
    eventually("nothing is left", || async {
        let made = infra.kubectl_with(&["create", dry, "-f", "-"], &pod(NAMESPACE).to_string());
        made.map(drop).in_words()
    })
    .await;
    run(o, back);
    // It starts in the cluster that waits for it.
    let [port, admin] = ports().unwrap();
    let mut configured = configurations(port);
    for configuration in &mut configured {
        for webhook in configuration["webhooks"].as_array_mut().unwrap() {
            webhook["clientConfig"]["caBundle"] = json!(STANDARD.encode(o.authority.pem()));
        }
    }
    infra.apply(&configured).unwrap();
    let pair = o.authority.issue("cold-webhook", &[WEBHOOK]).unwrap();
    let more = [
        format!("--tls-cert-file={}", pair.cert.display()),
        format!("--tls-key-file={}", pair.key.display()),
    ];
    start_webhook(o, "cold-webhook", port, admin, &more);
    o.ready_at("webhook", admin).await;
    eventually("the webhook places Pods again", || async {
        let made = infra.kubectl_with(&["create", dry, "-f", "-", "-o", "json"], &pod(NAMESPACE).to_string());
        let made: Value = serde_json::from_str(&made.in_words()?).unwrap();
        holds(made["spec"]["affinity"].is_object(), made.to_string())
    })
    .await;
    assert_eq!(get(admin, "/readyz").await.unwrap().0, 200);
    o.plane.command("term cold-webhook").unwrap();
    crate::certificates::remove_configurations(o);
}
