//! Devices for companions: the real scheduler allocates what a test driver publishes for the DPUs.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams};
use outrigger_api::conditions::Status;
use outrigger_core::keys;
use outrigger_tests::devices::{Devices, allocated, claims, gone, made, pools, reserved, templates};
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::tenant::{Tenant, admin_rule, annotation, is_ready, node_of, rule_for, template};
use outrigger_tests::{InWords, eventually, holds, merge_status};
use serde_json::{Value, json};

use crate::e2e::offline::explain;

/// A rule whose companions get a claim in the container `d` and the init container `i`.
fn with_claim(claim: Value) -> Value {
    let mut spec = rule_for("app", "web");
    spec["template"]["spec"] = json!({
        "initContainers": [{"name": "i", "image": "init", "restartPolicy": "Always"}],
        "containers": [{"name": "c", "image": "companion"}, {"name": "d", "image": "driver"}]});
    spec["deviceClaims"] = json!([claim]);
    spec
}

/// A rule whose companions are claims.
fn of_claims(devices: &Devices) -> Value {
    let mut spec = rule_for("app", "web");
    spec["template"] = devices.template();
    spec["deviceHostAttribute"] = json!(format!("{}/host", devices.driver));
    spec
}

/// Applies a rule as soon as admission knows that the tenant may have the devices.
async fn rule(t: &Tenant, name: &str, spec: Value) {
    eventually("the rule is taken", || async { t.try_rule(name, spec.clone()).await }).await;
}

/// The names of the claims that Kubernetes has made for a Pod.
fn generated(pod: &Pod) -> Vec<String> {
    let statuses = pod.status.as_ref().and_then(|status| status.resource_claim_statuses.as_ref());
    statuses.into_iter().flatten().filter_map(|status| status.resource_claim_name.clone()).collect()
}

/// What a container of a Pod uses.
fn used(pod: &Pod, container: &str) -> Value {
    let spec = serde_json::to_value(pod.spec.as_ref().unwrap()).unwrap();
    let lists =
        ["containers", "initContainers"].map(|list| spec[list].as_array().cloned().unwrap_or_default());
    let found = lists.iter().flatten().find(|c| c["name"] == container).unwrap();
    found["resources"]["claims"].clone()
}

fn workload(pod: &Pod) -> &str {
    annotation(pod, "workload-name").unwrap_or_default()
}

async fn one_made(t: &Tenant) -> ResourceClaim {
    eventually("there is one claim of a rule", || async {
        let mut all = made(&t.infra, &t.namespace).await?;
        all.retain(|claim| claim.metadata.deletion_timestamp.is_none());
        if all.len() == 1 { Ok(all.remove(0)) } else { Err(format!("{}", all.len())) }
    })
    .await
}

#[tokio::test]
async fn each_companion_has_a_device_of_its_own_on_its_dpu() {
    let t = Tenant::new(Outrigger::shared().await, "dev-own", &[("a", 1), ("b", 1)]).await;
    let devices = Devices::publish(&t, &[("a", 2), ("b", 2)]).await;
    let claim =
        |spec: Value| json!({"name": "crypto", "spec": spec, "containers": ["d", "i"], "request": "r"});
    rule(&t, "r", with_claim(claim(devices.one()))).await;
    t.web("wa").await;
    t.start("wb", "b", json!({"app": "web"})).await;
    let mut all = t.ready(2).await;
    all.sort_by_key(|pod| workload(pod).to_owned());
    for (pod, host) in all.iter().zip(["a", "b"]) {
        let dpu = t.node(&format!("{host}-dpu1"));
        assert_eq!(node_of(pod), dpu);
        assert_eq!(
            (used(pod, "c"), used(pod, "d")),
            (Value::Null, json!([{"name": "crypto", "request": "r"}]))
        );
        assert_eq!(used(pod, "i"), used(pod, "d"));
        let names = generated(pod);
        assert_eq!(names.len(), 1, "{:?}", pod.status);
        let claim = claims(&t.infra, &t.namespace).get(&names[0]).await.unwrap();
        assert_eq!(pools(&claim), [dpu]);
        assert_eq!(reserved(&claim), [pod.uid().unwrap()]);
    }
    // The claim goes with the companion, and that with the workload.
    t.end("wb").await;
    gone(&t.infra, &t.namespace, &generated(&all[1])).await;
    let companion = t.companion().await;

    // One template for all, the rule's own; made again when somebody deletes it.
    let before = templates(&t.infra, &t.namespace).await.unwrap();
    assert_eq!(before.len(), 1);
    let owners = before[0].owner_references();
    assert_eq!((owners.len(), owners[0].kind.as_str()), (1, "WorkloadRule"));
    let api: Api<k8s_openapi::api::resource::v1::ResourceClaimTemplate> =
        Api::namespaced(t.infra.clone(), &t.namespace);
    api.delete(&before[0].name_any(), &DeleteParams::default()).await.unwrap();
    eventually("it is made again", || async {
        let all = templates(&t.infra, &t.namespace).await?;
        let again =
            all.len() == 1 && all[0].uid() != before[0].uid() && all[0].name_any() == before[0].name_any();
        holds(again, format!("{}", all.len()))
    })
    .await;
    assert_eq!(t.companion().await.uid(), companion.uid(), "nobody noticed");

    // Another spec is another template; the companion is replaced, and then the first one goes.
    let mut other = devices.one();
    other["devices"]["requests"][0]["exactly"]["selectors"] = json!([{"cel": {"expression": "true"}}]);
    rule(&t, "r", with_claim(claim(other))).await;
    let other = |pod: &Pod| is_ready(pod) && pod.uid() != companion.uid();
    t.has("the companion is another", 1, 1, other).await;
    eventually("one template is left", || async {
        let all = templates(&t.infra, &t.namespace).await?;
        holds(all.len() == 1 && all[0].name_any() != before[0].name_any(), format!("{}", all.len()))
    })
    .await;
    t.rules().delete("r", &DeleteParams::default()).await.unwrap();
    eventually("nothing is left", || async {
        let left = (t.companions().await?.len(), templates(&t.infra, &t.namespace).await?.len());
        holds(left == (0, 0), format!("{left:?}"))
    })
    .await;
}

#[tokio::test]
async fn a_workloads_claim_is_shared_by_its_companions() {
    let t = Tenant::new(Outrigger::shared().await, "dev-share", &[("a", 1), ("b", 1)]).await;
    let devices = Devices::publish(&t, &[("a", 1), ("b", 1)]).await;
    rule(&t, "dpu.device", of_claims(&devices)).await;
    t.start("w", "b", json!({"app": "web", "version": "1"})).await;
    let claim = one_made(&t).await;
    assert_eq!(claim.labels()["app"], "device");
    assert_eq!(claim.labels()[keys::TENANT], "dev-share");
    assert_eq!(claim.annotations()["workload-name"], "w");
    assert_eq!(claim.annotations()["tenant-node-name"], t.node("b"));
    let none_ready = "0 of 1 companions are ready";
    t.condition_says("dpu.device", "Ready", Status::False, "Pending", &[none_ready, "Pod that uses"]).await;

    // Facts follow in place.
    t.change("w", json!({"metadata": {"labels": {"version": "2"}}})).await;
    eventually("the fact is new", || async {
        let now = claims(&t.infra, &t.namespace).get(&claim.name_any()).await.in_words()?;
        let version = now.annotations().get("version").cloned();
        holds(version.as_deref() == Some("2") && now.uid() == claim.uid(), format!("{version:?}"))
    })
    .await;
    // Somebody deletes it: it is made again, under its name.
    claims(&t.infra, &t.namespace).delete(&claim.name_any(), &DeleteParams::default()).await.unwrap();
    let claim = eventually("it is made again", || async {
        let again = one_made(&t).await;
        if again.uid() == claim.uid() { Err("the same".to_owned()) } else { Ok(again) }
    })
    .await;

    // Two companions use it: on its DPU, though they may run on any.
    for name in ["one", "two"] {
        let mut spec = rule_for("app", "web");
        spec["dpuSelectionPolicy"] = json!("Any");
        spec["deviceClaims"] = json!([{"name": "shared", "fromRule": "dpu.device"}]);
        t.rule(name, spec).await;
    }
    let pods = t.ready(2).await;
    let now = allocated(&t.infra, &t.namespace, &claim.name_any()).await;
    assert_eq!(pools(&now), [t.node("b-dpu1")]);
    let mut users: Vec<String> = pods.iter().map(|pod| pod.uid().unwrap()).collect();
    users.sort_unstable();
    eventually("it is reserved for both", || async {
        let now = claims(&t.infra, &t.namespace).get(&claim.name_any()).await.in_words()?;
        let mut reserved: Vec<String> = reserved(&now).into_iter().map(str::to_owned).collect();
        reserved.sort_unstable();
        holds(reserved == users, format!("{reserved:?}"))
    })
    .await;
    for pod in &pods {
        assert_eq!((node_of(pod), used(pod, "c")), (t.node("b-dpu1").as_str(), json!([{"name": "shared"}])));
    }
    t.condition("dpu.device", "Ready", Status::True, "AllReady").await;
    // Its driver says that it isn't ready, and then that it is.
    let said = async |status: &str| {
        let ready = json!({"type": "Ready", "status": status, "reason": "LinkDown", "message": "port 0",
            "lastTransitionTime": "2026-01-02T03:04:05Z"});
        let device = json!({"driver": devices.driver, "pool": t.node("b-dpu1"), "device": "d0", "conditions": [ready]});
        let (claims, status) = (claims(&t.infra, &t.namespace), json!({"devices": [device]}));
        merge_status(&claims, &claim.name_any(), status).await.unwrap();
    };
    said("False").await;
    t.condition_says("dpu.device", "Ready", Status::False, "Pending", &[none_ready, "LinkDown port 0"]).await;
    said("True").await;
    t.condition("dpu.device", "Ready", Status::True, "AllReady").await;

    // Another spec: the claim in use waits for its users, as a Pod for its containers; then there is a new one.
    let mut spec = of_claims(&devices);
    spec["template"]["spec"]["devices"]["requests"][0]["name"] = json!("s");
    t.rule("dpu.device", spec).await;
    eventually("the claim is on its way out", || async {
        let now = claims(&t.infra, &t.namespace).get(&claim.name_any()).await.in_words()?;
        now.metadata.deletion_timestamp.map(drop).ok_or_else(|| "it stays".to_owned())
    })
    .await;
    for pod in &pods {
        t.pods().delete(&pod.name_any(), &DeleteParams::default()).await.unwrap();
    }
    let again = eventually("there is a new claim", || async {
        let again = one_made(&t).await;
        if again.uid() == claim.uid() { Err("the same".to_owned()) } else { Ok(again) }
    })
    .await;
    let pods = t.ready(2).await;
    assert_eq!(pools(&allocated(&t.infra, &t.namespace, &again.name_any()).await), [t.node("b-dpu1")]);
    assert!(pods.iter().all(|pod| node_of(pod) == t.node("b-dpu1")));

    // All of it goes with the workload.
    t.end("w").await;
    gone(&t.infra, &t.namespace, &[again.name_any()]).await;
    t.ready(0).await;
    let status = t.condition("dpu.device", "Ready", Status::True, "NoMatch").await;
    assert_eq!(status, "no companion is wanted");
}

#[tokio::test]
async fn a_claim_is_ready_when_its_binding_conditions_are_and_not_after_a_failure() {
    let t = Tenant::new(Outrigger::shared().await, "dev-bind", &[("a", 1)]).await;
    if t.outrigger.plane.infra.skips("DRADeviceBindingConditions") {
        return;
    }
    let devices = Devices::publish(&t, &[("a", 1)]).await;
    let pool = t.node("a-dpu1");
    let slow = json!({"spec": {"devices": [{"name": "d0", "attributes": {"host": {"string": t.node("a")}},
        "bindingConditions": ["Attached"], "bindingFailureConditions": ["Broken"]}]}});
    t.outrigger.plane.infra.patch(&format!("resourceslices/{pool}-{}", devices.driver), &[], &slow).unwrap();
    rule(&t, "dpu.device", of_claims(&devices)).await;
    let mut spec = rule_for("app", "web");
    spec["deviceClaims"] = json!([{"name": "shared", "fromRule": "dpu.device"}]);
    t.rule("user", spec).await;
    t.start("w", "a", json!({"app": "web"})).await;
    let claim = one_made(&t).await;
    // The scheduler has chosen the device, and binds the companion only when its driver has attached it.
    allocated(&t.infra, &t.namespace, &claim.name_any()).await;
    let says = async |words: &str| {
        t.condition_says("dpu.device", "Ready", Status::False, "Pending", &[words]).await;
    };
    says("Attached isn't True").await;
    let said = async |conditions: &[&str]| {
        let conditions: Vec<Value> = conditions
            .iter()
            .map(|kind| {
                json!({"type": kind, "status": "True", "reason": "Driver", "message": "port 0",
                "lastTransitionTime": "2026-01-02T03:04:05Z"})
            })
            .collect();
        let device =
            json!({"driver": devices.driver, "pool": pool, "device": "d0", "conditions": conditions});
        let (claims, status) = (claims(&t.infra, &t.namespace), json!({"devices": [device]}));
        merge_status(&claims, &claim.name_any(), status).await.unwrap();
    };
    // `Ready` says nothing about the binding.
    said(&["Ready"]).await;
    says("Attached isn't True").await;
    said(&["Attached"]).await;
    assert_eq!(node_of(&t.ready(1).await[0]), pool);
    t.condition("dpu.device", "Ready", Status::True, "AllReady").await;
    said(&["Attached", "Broken"]).await;
    says("its binding failed: Broken is True: Driver port 0").await;
}

#[tokio::test]
async fn a_template_that_becomes_one_of_another_kind_is_replaced() {
    let t = Tenant::new(Outrigger::shared().await, "dev-kind", &[("a", 1)]).await;
    let devices = Devices::publish(&t, &[("a", 1)]).await;
    rule(&t, "r", rule_for("app", "web")).await;
    t.web("w").await;
    let pod = t.companion().await;
    rule(&t, "r", of_claims(&devices)).await;
    t.ready(0).await;
    let claim = one_made(&t).await;
    assert_eq!(claim.name_any(), pod.name_any());
    // Server-side apply removes fields that are no longer given.
    rule(&t, "r", rule_for("app", "web")).await;
    t.companion().await;
    gone(&t.infra, &t.namespace, &[claim.name_any()]).await;
}

#[tokio::test]
async fn where_the_devices_are_is_reported_to_whoever_makes_the_pod() {
    let t = Tenant::without_agent(Outrigger::shared().await, "dev-warn", &[("a", 1), ("b", 1)]).await;
    let devices = Devices::publish(&t, &[("b", 1)]).await;
    let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": "mine", "namespace": t.namespace}, "spec": devices.one()});
    eventually("the claim is taken", || async {
        t.outrigger.plane.infra.apply(std::slice::from_ref(&claim))
    })
    .await;
    let pod = |host: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "p-", "namespace": t.namespace},
            "spec": {"nodeSelector": {keys::DPU_HOST: t.node(host)},
                "resourceClaims": [{"name": "d", "resourceClaimName": "mine"}],
                "containers": [{"name": "c", "image": "i", "resources": {"claims": [{"name": "d"}]}}]}})
    };
    let warned = |host: &str| {
        let args = ["create", "--dry-run=server", "--warnings-as-errors", "-f", "-"];
        t.outrigger.plane.infra.kubectl_with(&args, &pod(host).to_string()).in_words()
    };
    warned("a").unwrap();
    t.outrigger.plane.infra.kubectl_with(&["create", "-f", "-"], &pod("b").to_string()).unwrap();
    assert_eq!(pools(&allocated(&t.infra, &t.namespace, "mine").await), [t.node("b-dpu1")]);
    let said =
        eventually("it is warned about", || async { warned("a").err().ok_or_else(|| "nothing".to_owned()) })
            .await;
    let (own, theirs) = (t.node("a"), t.node("b"));
    let host = keys::DPU_HOST;
    let expected =
        format!("it asks for {host} In [{own}], the devices of claim mine are on {host} In [{theirs}]");
    assert!(said.contains(&expected), "{said}");
    warned("b").unwrap();
}

#[tokio::test]
async fn a_class_that_the_tenant_may_not_have_is_reported_in_the_rule() {
    let t = Tenant::new(Outrigger::shared().await, "dev-class", &[("a", 1)]).await;
    let devices = Devices::publish(&t, &[("a", 1)]).await;
    rule(&t, "claims", of_claims(&devices)).await;
    rule(&t, "pods", with_claim(json!({"name": "crypto", "spec": devices.one()}))).await;
    t.condition("claims", "Accepted", Status::True, "Valid").await;
    t.condition("pods", "Accepted", Status::True, "Valid").await;
    t.set(json!({"deviceClasses": null})).await.unwrap();
    // At admission of the rule.
    let mut none = devices.one();
    none["devices"]["requests"][0]["exactly"]["count"] = json!(1);
    let denied = eventually("it is refused", || async {
        let spec = with_claim(json!({"name": "crypto", "spec": none}));
        t.try_rule("new", spec).await.err().ok_or_else(|| "taken".to_owned())
    })
    .await;
    let path = "spec.deviceClaims[0].spec.devices.requests[0].exactly.deviceClassName";
    assert!(denied.contains(path), "{denied}");
    // And of what comes of rules from before.
    t.web("w").await;
    let path = "spec.template.spec.devices.requests[0].exactly.deviceClassName";
    t.condition_says("claims", "Ready", Status::False, "Refused", &[path]).await;
    assert!(made(&t.infra, &t.namespace).await.unwrap().is_empty());
}

#[tokio::test]
async fn explain_reports_why_a_claim_has_no_devices() {
    let t = Tenant::new(Outrigger::shared().await, "dev-explain", &[("a", 1)]).await;
    let devices = Devices::publish(&t, &[("a", 1)]).await;
    rule(&t, "r", with_claim(json!({"name": "crypto", "spec": devices.one()}))).await;
    t.web("first").await;
    t.companion().await;
    t.web("second").await;
    let cluster = format!("--tenant-kubeconfig={}", t.outrigger.plane.tenant.kubeconfig.display());
    let of = |name: &str| {
        let (_, report) = explain(&t, &[&cluster, "--workload", &format!("{}/{name}", t.source)]);
        report["rules"][0]["workloads"][0]["claims"][0].clone()
    };
    let pending = eventually("the scheduler has looked for devices", || async {
        let pending = of("second");
        let refused =
            pending["reasons"][1].as_str().is_some_and(|words| words.contains("cannot allocate all claims"));
        if pending["phase"] == "Pending" && refused { Ok(pending) } else { Err(pending.to_string()) }
    })
    .await;
    let dpu = t.node("a-dpu1");
    let first = of("first");
    assert_eq!((&first["phase"], &first["reasons"]), (&json!("Allocated"), &json!([])), "{first}");
    assert_eq!(first["devices"], json!([format!("{}/{dpu}/d0", devices.driver)]));
    assert_eq!((&pending["phase"], &pending["name"]), (&json!("Pending"), &json!("crypto")));
    let owner = format!("{}/{}", t.namespace, first["claim"].as_str().unwrap());
    assert_eq!(pending["reasons"][0], format!("all 1 devices of {dpu} are taken, by {owner}"));
    // It is free again when the first one goes, and the scheduler sees that by itself.
    t.end("first").await;
    let second = t.companion().await;
    assert_eq!(workload(&second), "second");
    if t.outrigger.plane.infra.lacks("DRADeviceTaints") {
        return;
    }
    // Nobody has the device, and its driver has tainted it.
    let device = json!({"name": "d0", "taints": [{"key": "worn", "effect": "NoSchedule"}]});
    let slice = format!("resourceslices/{dpu}-{}", devices.driver);
    t.outrigger.plane.infra.patch(&slice, &[], &json!({"spec": {"devices": [device]}})).unwrap();
    t.end("second").await;
    t.web("third").await;
    eventually("the taint keeps the device from the claim", || async {
        let reasons = of("third")["reasons"].clone();
        let taint = format!("of 1 devices of {dpu} 1 has the taint worn:NoSchedule, which isn't tolerated");
        let refused = reasons[1].as_str().is_some_and(|words| words.contains("cannot allocate all claims"));
        holds(reasons[0] == json!(taint) && refused, reasons.to_string())
    })
    .await;
}

#[tokio::test]
async fn the_platforms_rules_have_devices_too() {
    let t = Tenant::new(Outrigger::shared().await, "dev-admin", &[("a", 1)]).await;
    let devices = Devices::publish(&t, &[("a", 2)]).await;
    let apply = |name: &str, mut spec: Value| {
        spec["tenantSelector"] = json!({"matchLabels": {keys::TENANT: "dev-admin"}});
        let rule = admin_rule(keys::ADMIN_NAMESPACE, name, spec);
        t.outrigger.plane.infra.apply(&[rule]).unwrap();
    };
    apply("dev-admin-claims", of_claims(&devices));
    let mut pods = rule_for("app", "web");
    pods["template"] = template();
    pods["deviceClaims"] = json!([{"name": "own", "spec": devices.one()},
        {"name": "shared", "fromRule": "dev-admin-claims"}]);
    apply("dev-admin-pods", pods);
    t.web("w").await;
    let api: Api<Pod> = Api::namespaced(t.infra.clone(), keys::ADMIN_NAMESPACE);
    let of_tenant = ListParams::default().labels(&format!("{}=dev-admin", keys::TENANT));
    let pod = eventually("the companion is ready", || async {
        let list = api.list(&of_tenant).await.in_words()?;
        list.items.into_iter().find(is_ready).ok_or_else(|| "none".to_owned())
    })
    .await;
    assert_eq!(used(&pod, "c"), json!([{"name": "own"}, {"name": "shared"}]));
    let of_tenant = claims(&t.infra, keys::ADMIN_NAMESPACE).list(&of_tenant).await.unwrap().items;
    assert_eq!(of_tenant.len(), 1);
    assert_eq!(pools(&of_tenant[0]), [t.node("a-dpu1")]);
    let own = async || -> Result<usize, String> {
        let all = templates(&t.infra, keys::ADMIN_NAMESPACE).await?;
        Ok(all.iter().filter(|t| t.labels().get(keys::RULE).is_some_and(|r| r == "dev-admin-pods")).count())
    };
    assert_eq!(own().await, Ok(1));
    let infra = &t.outrigger.plane.infra;
    infra
        .kubectl(&["delete", "awr", "dev-admin-pods", "dev-admin-claims", "-n", keys::ADMIN_NAMESPACE])
        .unwrap();
    gone(&t.infra, keys::ADMIN_NAMESPACE, &[of_tenant[0].name_any()]).await;
    eventually("its template is gone", || async {
        let left = own().await?;
        holds(left == 0, left.to_string())
    })
    .await;
}

#[tokio::test]
async fn nobody_else_may_say_whose_a_claim_is() {
    let t = Tenant::without_agent(Outrigger::shared().await, "dev-forge", &[("a", 1)]).await;
    let devices = Devices::publish(&t, &[("a", 1)]).await;
    let infra = &t.outrigger.plane.infra;
    infra.kubectl(&["create", "serviceaccount", "operator", "-n", &t.namespace]).unwrap();
    infra
        .kubectl(&[
            "create",
            "role",
            "claims",
            "-n",
            &t.namespace,
            "--verb=create",
            "--resource=resourceclaims.resource.k8s.io",
        ])
        .unwrap();
    let account = format!("--serviceaccount={}:operator", t.namespace);
    infra
        .kubectl(&["create", "rolebinding", "claims", "-n", &t.namespace, "--role=claims", &account])
        .unwrap();
    let user = format!("--as=system:serviceaccount:{}:operator", t.namespace);
    let create = |metadata: Value| {
        let mut claim = devices.template();
        claim["metadata"] = metadata;
        let args = ["create", "--dry-run=server", "-n", &t.namespace, user.as_str(), "-f", "-"];
        infra.kubectl_with(&args, &claim.to_string()).in_words()
    };
    eventually("one without our keys is taken", || async { create(json!({"name": "x"})) }).await;
    for metadata in [
        json!({"name": "x", "labels": {keys::WORKLOAD: "w"}}),
        json!({"name": "x", "annotations": {keys::RULE_UID: "u"}}),
        json!({"name": "x", "ownerReferences": [{"apiVersion": "workload.universe.nvidia.com/v1alpha1",
            "kind": "WorkloadRule", "name": "r", "uid": "u", "controller": true}]}),
    ] {
        let denied = create(metadata.clone()).unwrap_err();
        assert!(denied.contains("only Outrigger itself"), "{metadata}: {denied}");
    }
}
