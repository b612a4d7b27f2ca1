//! Attributes of the devices that workloads have: the real scheduler allocates what a test driver publishes in the tenant's cluster, rules select by
//! the attributes that the agent sends, and companions get them.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use outrigger_api::conditions::Status;
use outrigger_core::keys;
use outrigger_tests::control_plane::ControlPlane;
use outrigger_tests::devices::Devices;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::tenant::{Tenant, annotation, rule, rule_for};
use outrigger_tests::{InWords, create, eventually, holds};
use serde_json::{Value, json};

use crate::e2e::console_page::{Console, kubeconfig};
use crate::e2e::gangs::{VERSION, switch_on};
use crate::e2e::offline::explain;

/// The driver of the tenant's cluster.
fn driver(t: &Tenant) -> Devices {
    Devices { driver: format!("{}.devices.test", t.id), class: format!("{}-gpu", t.id) }
}

/// The attributes of a device.
fn gpu(model: &str) -> Value {
    json!({"model": {"string": model}, "uuid": {"string": format!("uuid-of-{model}")}})
}

/// The name of the only slice.
fn slice(t: &Tenant) -> String {
    format!("{}-{}", t.node("a"), driver(t).driver)
}

/// Publishes devices with these attributes on the host `a`, in place of those of an earlier generation.
fn publish(t: &Tenant, generation: usize, attributes: &[Value]) {
    let Devices { driver, class } = driver(t);
    let device =
        |(n, attributes): (usize, &Value)| json!({"name": format!("d{n}"), "attributes": attributes});
    let devices: Vec<Value> = attributes.iter().enumerate().map(device).collect();
    let selector = format!("device.driver == \"{driver}\"");
    let class = json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": class},
        "spec": {"selectors": [{"cel": {"expression": selector}}]}});
    let slice = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": slice(t)},
        "spec": {"driver": driver, "nodeName": t.node("a"), "devices": devices,
            "pool": {"name": t.node("a"), "generation": generation, "resourceSliceCount": 1}}});
    t.outrigger.plane.tenant.apply(&[class, slice]).unwrap();
}

/// The spec of a claim for a device of this model.
fn claim(t: &Tenant, model: &str) -> Value {
    let devices = driver(t);
    let mut spec = devices.one();
    let selector = format!("device.attributes[\"{}\"].model == \"{model}\"", devices.driver);
    spec["devices"]["requests"][0]["exactly"]["selectors"] = json!([{"cel": {"expression": selector}}]);
    spec
}

/// A Pod whose container uses its claim, which it calls `gpu`: `resourceClaimName` or `resourceClaimTemplateName`, and the name.
fn pod(name: &str, (field, claim): (&str, &str)) -> Value {
    let container = json!({"name": "c", "image": "app", "resources": {"claims": [{"name": "gpu"}]}});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "web"}},
        "spec": {"containers": [container], "resourceClaims": [{"name": "gpu", field: claim}]}})
}

/// Creates a Pod with a device of this model, for which the scheduler has to find a Node.
async fn start(t: &Tenant, name: &str, model: &str) {
    let template = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": {"name": model, "namespace": t.source}, "spec": {"spec": claim(t, model)}});
    t.outrigger.plane.tenant.apply(&[template]).unwrap();
    create(&t.work(), &pod(name, ("resourceClaimTemplateName", model))).await.unwrap();
}

/// Starts the tenant's agent, which sends these attributes of the driver's devices. Returns the flag.
fn start_agent(t: &Tenant, attributes: &str) -> String {
    t.outrigger.plane.tenant.apply_file("deploy/base/agent-devices/rbac.yaml").unwrap();
    let sent = format!("--send-device-attribute={}/{attributes}", driver(t).driver);
    t.start_agent(std::slice::from_ref(&sent));
    sent
}

/// The spec of a rule that selects by an attribute. Its companions get the model, and the attribute `uuid`.
fn selecting(t: &Tenant, attribute: &str, operator: &str, values: Value) -> Value {
    let driver = driver(t).driver;
    let path = |attribute: &str| format!(".state.extra.deviceAttributes['gpu/r/{driver}/{attribute}']");
    let mut spec = rule_for("app", "web");
    let expression = json!({"key": path(attribute), "operator": operator, "values": values});
    spec["workloadTerms"][0]["matchExpressions"].as_array_mut().unwrap().push(expression);
    let facts = spec["workloadInfoInject"].as_array_mut().unwrap();
    facts.extend(
        ["model", "uuid"].map(|name| json!({"workloadKey": path(name), "asAnnotation": {"name": name}})),
    );
    spec
}

/// The rule and the workload of a companion, and the model that it was given.
fn shown(companion: &Pod) -> [String; 3] {
    let text = |key: &str| annotation(companion, key).unwrap_or_default().to_owned();
    [companion.labels()[keys::RULE].clone(), text("workload-name"), text("model")]
}

/// Waits until there are just these companions.
async fn has(t: &Tenant, expected: &[[&str; 3]]) -> Vec<Pod> {
    let expected: BTreeSet<_> = expected.iter().map(|one| one.map(str::to_owned)).collect();
    eventually(&format!("companions {expected:?}"), || async {
        let all = t.companions().await?;
        let found: BTreeSet<_> = all.iter().map(shown).collect();
        holds(found == expected && all.len() == expected.len(), format!("{found:?}")).map(|()| all)
    })
    .await
}

/// What `outrigger explain` says with these flags of a rule and a workload.
fn explained(t: &Tenant, rule: &str, workload: &str, more: &[&str]) -> Value {
    let cluster = kubeconfig("tenant-kubeconfig", &t.outrigger.plane.tenant.kubeconfig);
    let workload = format!("{}/{workload}", t.source);
    let args = [&[cluster.as_str(), "--rule", rule, "--workload", &workload][..], more].concat();
    let (_, report) = explain(t, &args);
    report["rules"][0]["workloads"][0].clone()
}

/// Commands with the flag of the agent name the value that decides. The rule `other` selects by another model than that of `w`.
async fn is_explained(t: &Tenant, sent: &str) {
    let matching = explained(t, "large", "w", &[sent]);
    assert_eq!((&matching["outcome"], &matching["terms"][0]["passes"]), (&json!("Companion"), &json!(true)));
    let other = explained(t, "other", "w", &[sent]);
    assert_eq!(other["outcome"], "NoMatch", "{other}");
    let expression = &other["terms"][0]["expressions"][1];
    assert_eq!((&expression["found"], &expression["passes"]), (&json!("a100"), &json!(false)));
    let change = expression["change"].as_str().unwrap();
    assert!(change.ends_with(r#"is "a100", the rule wants "h100""#), "{change}");
    let open = explained(t, "other", "w", &[]);
    assert_eq!(open["outcome"], "Undecided", "{open}");

    let plane = &t.outrigger.plane;
    let clusters = [
        kubeconfig("kubeconfig", &plane.infra.kubeconfig),
        kubeconfig("tenant-kubeconfig", &plane.tenant.kubeconfig),
    ];
    let console = Console::start(&[&clusters[0], &clusters[1], sent]).await;
    let path = format!("/chain?tenant={}&workload={}/w", t.id, t.source);
    let words = ["is &quot;a100&quot;, the rule wants &quot;h100&quot;", "no companion"];
    let page = console.shows(&path, &words).await;
    assert!(!page.contains("undecided"), "{page}");
    let third = rule(&t.namespace, "third", selecting(t, "model", "In", json!(["t4"])));
    let page = console.what_if(&t.id, &third).await;
    assert!(page.contains("1 created") && page.contains("/v</td>"), "{page}");
}

#[tokio::test]
async fn a_rule_selects_by_an_attribute_of_the_device_that_the_scheduler_has_allocated() {
    let t = Tenant::without_agent(Outrigger::shared().await, "dev-attr", &[("a", 1)]).await;
    publish(&t, 1, &[gpu("a100"), gpu("t4")]);
    let sent = start_agent(&t, "model");
    t.rule("all", selecting(&t, "model", "Exists", json!([]))).await;
    t.rule("large", selecting(&t, "model", "In", json!(["a100"]))).await;
    t.rule("other", selecting(&t, "model", "In", json!(["h100"]))).await;
    start(&t, "w", "a100").await;
    start(&t, "v", "t4").await;
    let of_v = ["all", "v", "t4"];
    let before = has(&t, &[of_v, ["all", "w", "a100"], ["large", "w", "a100"]]).await;
    assert!(before.iter().all(|pod| annotation(pod, "uuid").is_none()), "that one isn't sent");
    t.condition("other", "Ready", Status::True, "NoMatch").await;
    is_explained(&t, &sent).await;

    // The driver says something else of the same device: the fact changes in place, and so does what matches.
    publish(&t, 2, &[gpu("h100"), gpu("t4")]);
    let after = has(&t, &[of_v, ["all", "w", "h100"], ["other", "w", "h100"]]).await;
    let uid = |pods: &[Pod]| {
        let its = pods.iter().find(|pod| shown(pod)[..2] == ["all", "w"]);
        its.unwrap().uid()
    };
    assert_eq!(uid(&after), uid(&before));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn attributes_that_are_lists_and_those_of_a_claim_of_a_gang_are_absent() {
    let plane = ControlPlane::start().unwrap();
    switch_on(&plane, &["DRAListTypeAttributes", "DRAWorkloadResourceClaims"]).await;
    let o = Outrigger::new(plane).unwrap().started().await.unwrap().of_one_test();
    let t = Tenant::without_agent(*o, "dev-gang", &[("a", 1)]).await;
    let cluster = &t.outrigger.plane.tenant;
    let mut device = gpu("a100");
    device["modes"] = json!({"strings": ["pf", "vf"]});
    publish(&t, 1, &[device.clone(), device.clone()]);
    let kept = cluster.get(&["resourceslices", &slice(&t)]).unwrap();
    assert_eq!(
        kept["spec"]["devices"][0]["attributes"]["modes"], device["modes"],
        "without the feature it is dropped"
    );
    let sent = start_agent(&t, "*");
    t.rule("model", selecting(&t, "model", "Exists", json!([]))).await;
    t.rule("no-modes", selecting(&t, "modes", "DoesNotExist", json!([]))).await;

    // A claim has its own name. Here that is what the Pod calls it too.
    let metadata = |name: &str| json!({"name": name, "namespace": t.source});
    let group = json!({"apiVersion": VERSION, "kind": "PodGroup", "metadata": metadata("gang"),
        "spec": {"schedulingPolicy": {"gang": {"minCount": 1}},
            "resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}]}});
    let shared = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata("gpu"),
        "spec": claim(&t, "a100")});
    let mut member = pod("member", ("resourceClaimName", "gpu"));
    member["metadata"]["namespace"] = json!(t.source);
    member["spec"]["schedulingGroup"] = json!({"podGroupName": "gang"});
    cluster.apply(&[group, shared, member]).unwrap();
    eventually("the claim is reserved for the gang alone", || async {
        let path = format!("/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims/gpu", t.source);
        let status = cluster.read(&path).in_words()?["status"].take();
        let by = status["reservedFor"].as_array().map(Vec::as_slice).unwrap_or_default();
        holds(by.len() == 1 && by[0]["resource"] == "podgroups", status.to_string())
    })
    .await;

    // What the agent hears of this one is later.
    start(&t, "alone", "a100").await;
    let of_alone = [["model", "alone", "a100"], ["no-modes", "alone", "a100"]];
    has(&t, &[of_alone[0], of_alone[1], ["no-modes", "member", ""]]).await;
    let other = explained(&t, "model", "member", &[&sent]);
    assert_eq!(other["outcome"], "NoMatch", "{other}");
    assert_eq!(explained(&t, "model", "alone", &[&sent])["outcome"], "Companion");
}
