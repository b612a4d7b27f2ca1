//! Workloads that don't start before their companions: the claim that they get, and the devices that the real scheduler gives them.
//!
//! kwok starts Pods without asking any plugin, so what the kubelet does with the claim is tested elsewhere. One agent of a cluster
//! publishes all of its devices, so these tests share one tenant and run one after the other.

use std::collections::BTreeSet;

use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimTemplate, ResourceSlice};
use kube::api::{Api, DeleteParams, ListParams};
use outrigger_api::conditions::Status;
use outrigger_core::keys;
use outrigger_tests::outrigger::{Outrigger, ports};
use outrigger_tests::plugin::can_run;
use outrigger_tests::shipped::{kustomize, of_kind};
use outrigger_tests::tenant::{Tenant, namespace, node_of, rule_for, takes_pods};
use outrigger_tests::{InWords, create, dry_run, eventually, gate, holds, is_gone};
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

/// The feature by which devices have binding conditions.
pub(crate) const BINDING: &str = "DRADeviceBindingConditions";

/// The port on which plugins ask the agent of [`stage`].
pub(crate) static HOSTS: OnceCell<u16> = OnceCell::const_new();

/// The tenant whose agent publishes devices, for one test at a time. It has the hosts a and b.
pub(crate) async fn stage() -> (Tenant, MutexGuard<'static, ()>) {
    static ALONE: Mutex<()> = Mutex::const_new(());
    static TENANT: OnceCell<Tenant> = OnceCell::const_new();
    let alone = ALONE.lock().await;
    let tenant = TENANT.get_or_init(start).await;
    // Clients belong to the runtime of one test.
    (Tenant::named(tenant.outrigger, &tenant.id).await, alone)
}

async fn start() -> Tenant {
    let t = Tenant::without_agent(Outrigger::shared().await, "cf", &[("a", 1), ("b", 1)]).await;
    HOSTS.set(enforces(&t, &[("a", "300"), ("b", "260")]).await).unwrap();
    t.own_rule("fw", before_start("web")).await.unwrap();
    t.own_rule("log", rule_for("app", "db")).await.unwrap();
    published(&t, &[("a", 300), ("b", 260)]).await;
    gets_claims(&t, &pod("w", "web", json!({})), &[keys::COMPANIONS_CLAIM]).await;
    t
}

/// Starts the tenant's agent so that it has Pods wait for their companions on hosts, each of which can run so many Pods. Returns the port for
/// plugins.
pub(crate) async fn enforces(t: &Tenant, hosts: &[(&str, &str)]) -> u16 {
    t.outrigger.plane.tenant.apply(&kustomize("deploy/base/companions-first").unwrap()).unwrap();
    for (host, pods) in hosts {
        can_run(t, host, pods).await;
    }
    let [port] = ports().unwrap();
    let more = ["--companions-first".to_owned(), format!("--host-address=127.0.0.1:{port}")];
    gate::start_agent(t, &[&t.source], &more);
    port
}

fn before_start(app: &str) -> Value {
    let mut spec = rule_for("app", app);
    spec["ordering"] = json!("BeforeStart");
    spec
}

/// A Pod without a Node.
pub(crate) fn pod(name: &str, app: &str, spec: Value) -> Value {
    let mut pod = json!({"metadata": {"name": name, "labels": {"app": app}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    json_patch::merge(&mut pod["spec"], &spec);
    pod
}

/// The claims of a Pod as it would be created.
async fn claims(t: &Tenant, pod: &Value) -> Result<Vec<String>, String> {
    let created = dry_run(&t.work(), pod).await.in_words()?;
    let claims = created.spec.and_then(|spec| spec.resource_claims).unwrap_or_default();
    Ok(claims.into_iter().map(|claim| claim.name).collect())
}

pub(crate) async fn gets_claims(t: &Tenant, pod: &Value, expected: &[&str]) {
    eventually(&format!("the Pod gets {expected:?}"), || async {
        let found = claims(t, pod).await?;
        holds(found == expected, format!("{found:?}"))
    })
    .await;
}

/// Waits until the hosts have so many devices each for Pods that wait to start, and as many for those that wait to be bound, and no
/// other Node has any.
pub(crate) async fn published(t: &Tenant, expected: &[(&str, usize)]) {
    let slices: Api<ResourceSlice> = Api::all(t.cluster.clone());
    let mut expected: Vec<(String, usize)> =
        expected.iter().map(|(host, devices)| (t.node(host), *devices)).collect();
    expected.sort();
    eventually(&format!("devices: {expected:?}"), || async {
        let driver = format!("spec.driver={}", keys::COMPANIONS_DRIVER);
        let all = slices.list(&ListParams::default().fields(&driver)).await.in_words()?.items;
        let pools: BTreeSet<String> = all.iter().map(|slice| slice.spec.pool.name.clone()).collect();
        let of = |pool: &String| {
            let own = all.iter().filter(|slice| slice.spec.pool.name == *pool);
            let devices = own.flat_map(|slice| slice.spec.devices.iter().flatten());
            let (binding, start): (Vec<_>, Vec<_>) =
                devices.partition(|device| device.binding_conditions.is_some());
            // Slices of others have what others write.
            let own = [t.node("a"), t.node("b")].contains(pool);
            let binds = own && !t.outrigger.plane.tenant.lacks(BINDING);
            let right = binding.len() == if binds { start.len() } else { 0 };
            (pool.clone(), if right { start.len() } else { usize::MAX })
        };
        let found: Vec<(String, usize)> = pools.iter().map(of).collect();
        holds(found == expected, format!("{found:?}"))
    })
    .await;
}

/// Waits until a Pod is scheduled and its claims are allocated on its Node. Returns the Node, and the devices as text.
pub(crate) async fn scheduled(t: &Tenant, name: &str) -> (String, Vec<String>) {
    let all: Api<ResourceClaim> = Api::namespaced(t.cluster.clone(), &t.source);
    eventually(&format!("{name} is scheduled"), || async {
        let pod: Pod = t.work().get(name).await.in_words()?;
        let node = node_of(&pod).to_owned();
        let status = pod.status.clone().unwrap_or_default();
        holds(!node.is_empty(), format!("{:?}", status.conditions))?;
        let mut devices = Vec::new();
        for claim in status.resource_claim_statuses.unwrap_or_default() {
            let claim = claim.resource_claim_name.ok_or("no claim")?;
            let status = all.get(&claim).await.in_words()?.status.ok_or("no status")?;
            let reserved = status.reserved_for.unwrap_or_default();
            holds(reserved.iter().any(|by| by.name == name), format!("{reserved:?}"))?;
            let allocation = status.allocation.ok_or("not allocated")?;
            let results = allocation.devices.and_then(|devices| devices.results).unwrap_or_default();
            for result in results {
                holds(result.pool == node, format!("{} for a Pod on {node}", result.pool))?;
                devices.push(format!("{}/{}", result.pool, result.device));
            }
        }
        Ok::<_, String>((node, devices))
    })
    .await
}

/// Creates so many Pods at once and waits until each has a device of its own on its Node; then they are deleted.
async fn many(t: &Tenant, count: usize) {
    let names: Vec<String> = (0..count).map(|n| format!("many{n}")).collect();
    for names in names.chunks(50) {
        let pods = names.iter().map(|name| pod(name, "web", json!({})));
        for created in join_all(pods.map(async |pod| create(&t.work(), &pod).await)).await {
            created.unwrap();
        }
    }
    let mut devices = BTreeSet::new();
    for name in &names {
        let (_, own) = scheduled(t, name).await;
        assert_eq!(own.len(), 1, "{name}: {own:?}");
        devices.extend(own);
    }
    assert_eq!(devices.len(), count, "each Pod has a device of its own");
    t.ready(count).await;
    t.outrigger.plane.tenant.kubectl(&["delete", "pods", "--all", "-n", &t.source, "--wait=false"]).unwrap();
    for name in &names {
        is_gone(&t.work(), name).await;
    }
}

#[tokio::test]
async fn each_pod_gets_a_device_of_its_own_on_the_node_that_the_scheduler_chooses() {
    let (t, _alone) = stage().await;
    many(&t, 20).await;
}

#[tokio::test]
#[ignore = "long"]
async fn five_hundred_pods_get_devices_of_their_own() {
    let (t, _alone) = stage().await;
    many(&t, 500).await;
}

#[tokio::test]
async fn a_pod_keeps_its_own_claims_and_gets_one_for_all_rules() {
    let (t, _alone) = stage().await;
    t.own_rule("second", before_start("web")).await.unwrap();
    let driver = "own.example.com";
    let mut own = vec![
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": driver},
            "spec": {"selectors": [{"cel": {"expression": format!("device.driver == '{driver}'")}}]}}),
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
            "metadata": {"name": "mine", "namespace": t.source},
            "spec": {"spec": {"devices": {"requests": [{"name": "d", "exactly": {"deviceClassName": driver}}]}}}}),
    ];
    own.extend(["a", "b"].map(|host| {
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
            "metadata": {"name": format!("{}-{driver}", t.node(host))},
            "spec": {"driver": driver, "nodeName": t.node(host), "devices": [{"name": "d"}],
                "pool": {"name": t.node(host), "generation": 1, "resourceSliceCount": 1}}})
    }));
    t.outrigger.plane.tenant.apply(&own).unwrap();
    let with_own =
        pod("own", "web", json!({"resourceClaims": [{"name": "x", "resourceClaimTemplateName": "mine"}]}));
    gets_claims(&t, &with_own, &["x", keys::COMPANIONS_CLAIM]).await;
    create(&t.work(), &with_own).await.unwrap();
    let (_, devices) = scheduled(&t, "own").await;
    assert_eq!(devices.iter().collect::<BTreeSet<_>>().len(), 2, "{devices:?}");
    // A rule that asks for less, and none.
    for app in ["db", "other"] {
        assert_eq!(claims(&t, &pod("w", app, json!({}))).await.unwrap(), [""; 0], "{app}");
    }
    t.end("own").await;
    t.own_rules().delete("second", &DeleteParams::default()).await.unwrap();
    t.rule_is_gone("second").await;
}

#[tokio::test]
async fn a_pod_that_could_not_wait_is_refused_and_its_control_case_is_created() {
    let (t, _alone) = stage().await;
    let bound = json!({"nodeName": t.node("a")});
    let foreign = |template: &str| json!({"resourceClaims": [{"name": keys::COMPANIONS_CLAIM, "resourceClaimTemplateName": template}]});
    let field = "spec.resourceClaims[0].resourceClaimTemplateName: ";
    for (spec, field, control) in
        [(bound.clone(), "spec.nodeName: ", bound), (foreign("mine"), field, foreign(keys::COMPANIONS_CLAIM))]
    {
        let refusal = claims(&t, &pod("w", "web", spec)).await.unwrap_err();
        assert!(refusal.contains(field), "{refusal}");
        assert!(claims(&t, &pod("w", "db", control)).await.is_ok());
    }
    // The claim that Kubernetes would make could be given to a Pod that waits.
    let refusal = claims(&t, &pod("w", "db", foreign("mine"))).await.unwrap_err();
    assert!(refusal.contains("has a template of somebody else"), "{refusal}");
}

#[tokio::test]
async fn a_host_has_devices_only_while_its_dpu_takes_companions() {
    let (t, _alone) = stage().await;
    let (infra, cluster) = (&t.outrigger.plane.infra, &t.outrigger.plane.tenant);
    infra.cordon(&t.node("a-dpu1"), true);
    published(&t, &[("b", 260)]).await;
    create(&t.work(), &pod("elsewhere", "web", json!({}))).await.unwrap();
    assert_eq!(scheduled(&t, "elsewhere").await.0, t.node("b"));
    t.end("elsewhere").await;
    infra.cordon(&t.node("a-dpu1"), false);
    published(&t, &[("a", 300), ("b", 260)]).await;
    // A slice that somebody deletes is written again, and a template too.
    let slice = format!("resourceslice/{}-companions-0", t.node("a"));
    cluster.kubectl(&["delete", &slice]).unwrap();
    published(&t, &[("a", 300), ("b", 260)]).await;
    let template = ["delete", "resourceclaimtemplate", keys::COMPANIONS_CLAIM, "-n", &t.source];
    cluster.kubectl(&template).unwrap();
    eventually("the template is there again", || async {
        cluster.get(&["resourceclaimtemplate", keys::COMPANIONS_CLAIM, "-n", &t.source]).in_words()
    })
    .await;
    // A Node that is taken away, and comes back.
    cluster.kubectl(&["delete", "node", &t.node("b"), "--wait=true"]).unwrap();
    published(&t, &[("a", 300)]).await;
    cluster.apply(&[json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": t.node("b")}})]).unwrap();
    can_run(&t, "b", "260").await;
    published(&t, &[("a", 300), ("b", 260)]).await;
}

#[tokio::test]
async fn the_end_of_the_device_class_is_the_end_of_what_is_published_and_the_rule_says_so_until_it_is_back() {
    let (t, _alone) = stage().await;
    let cluster = &t.outrigger.plane.tenant;
    t.own_condition("fw", "Accepted", Status::True, "Valid").await;
    let foreign = foreign_slice(&t);
    cluster.apply(std::slice::from_ref(&foreign)).unwrap();
    cluster.kubectl(&["delete", "deviceclass", keys::COMPANIONS_DRIVER]).unwrap();
    let (_, said) = t.own_condition("fw", "Accepted", Status::True, "OrderingNotEnforced").await;
    assert!(said.contains("doesn't have the DeviceClass companions.outrigger.dev"), "{said}");
    // The garbage collector deletes slices and templates; another tenant's slice has another owner.
    published(&t, &[("other", 1)]).await;
    let templates: Api<ResourceClaimTemplate> = Api::namespaced(t.cluster.clone(), &t.source);
    is_gone(&templates, keys::COMPANIONS_CLAIM).await;
    // Its Pods get the claim nevertheless: they don't start too early.
    assert_eq!(claims(&t, &pod("w", "web", json!({}))).await.unwrap(), [keys::COMPANIONS_CLAIM]);
    let devices = kustomize("deploy/base/companions-first").unwrap();
    cluster.apply(&of_kind(&devices, "DeviceClass").cloned().collect::<Vec<_>>()).unwrap();
    t.own_condition("fw", "Accepted", Status::True, "Valid").await;
    published(&t, &[("a", 300), ("b", 260), ("other", 1)]).await;
    eventually("the template is there again", || async { templates.get(keys::COMPANIONS_CLAIM).await }).await;
    cluster.kubectl(&["delete", "resourceslice", foreign["metadata"]["name"].as_str().unwrap()]).unwrap();
}

/// A slice as the agent of another tenant in this cluster publishes it. This tenant has no such host, so its agent would delete a slice of
/// its own.
fn foreign_slice(t: &Tenant) -> Value {
    let node = t.node("other");
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
        "metadata": {"name": format!("{node}-companions-0"), "labels": {keys::TENANT: "another"}},
        "spec": {"driver": keys::COMPANIONS_DRIVER, "devices": [{"name": "pod-0"}],
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [
                {"key": "metadata.name", "operator": "In", "values": [node]}]}]}}})
}

#[tokio::test]
async fn without_the_setting_nothing_is_held_and_the_rule_and_a_strict_namespace_say_so() {
    let t = Tenant::without_agent(Outrigger::shared().await, "cf-off", &[("a", 1)]).await;
    gate::start_agent(&t, &[&t.source], &[]);
    t.own_rule("fw", before_start("web")).await.unwrap();
    eventually("the rule says so", || async {
        let events = t.outrigger.plane.tenant.get(&["events", "-n", &t.source]).in_words()?;
        let all = events["items"].as_array().cloned().unwrap_or_default();
        let said = all.iter().find(|event| event["reason"] == "OrderingNotEnforced");
        let text = said.map(|event| event["message"].to_string()).unwrap_or_default();
        holds(text.contains("enable the agent's setting companionsFirst"), text)
    })
    .await;
    let (_, said) = t.own_condition("fw", "Accepted", Status::True, "OrderingNotEnforced").await;
    assert!(
        said.contains("spec.ordering: is BeforeStart, but this cluster's agent adds no claims"),
        "{said}"
    );
    // Less is enforced, so a rule that asks for less has nothing to say.
    let mut less = before_start("log");
    less["ordering"] = json!("BeforeReady");
    t.own_rule("less", less).await.unwrap();
    t.own_condition("less", "Accepted", Status::True, "Valid").await;
    let web = pod("w", "web", json!({}));
    let created = dry_run(&t.work(), &web).await.unwrap().spec.unwrap();
    assert!(created.readiness_gates.is_some() && created.resource_claims.is_none());
    let label = |value: Value| {
        let patch = json!({"metadata": {"labels": {keys::COMPANIONS_FIRST_NAMESPACE: value}}});
        t.outrigger.plane.tenant.patch(&format!("namespace/{}", t.source), &[], &patch).unwrap();
    };
    label(json!(keys::REQUIRED));
    let refused = async |words: &'static str| {
        eventually(&format!("a Pod is refused: {words}"), || async {
            let refusal = claims(&t, &web).await.err().unwrap_or_default();
            holds(refusal.contains(words), refusal)
        })
        .await;
    };
    refused("adds no claims").await;
    assert!(claims(&t, &pod("w", "other", json!({}))).await.is_ok(), "it needn't wait");
    // Nobody answers: only a namespace without the label goes on.
    let [nobody] = ports().unwrap();
    gate::register(&t, nobody, &[&t.source]);
    refused("failed calling webhook").await;
    label(Value::Null);
    gets_claims(&t, &web, &[]).await;
}

#[tokio::test]
async fn all_pods_of_a_namespace_with_both_labels_wait_for_rules_of_the_platform() {
    let (t, _alone) = stage().await;
    let label = |value: Value, gate: Value| {
        let labels = json!({keys::COMPANIONS_FIRST_NAMESPACE: value, keys::COMPANIONS_GATE_NAMESPACE: gate});
        let patch = json!({"metadata": {"labels": labels}});
        t.outrigger.plane.tenant.patch(&format!("namespace/{}", t.source), &[], &patch).unwrap();
    };
    let other = pod("w", "other", json!({}));
    label(json!(keys::REQUIRED), Value::Null);
    gets_claims(&t, &pod("w", "web", json!({})), &[keys::COMPANIONS_CLAIM]).await;
    assert_eq!(claims(&t, &other).await.unwrap(), [""; 0]);
    label(json!(keys::REQUIRED), json!("true"));
    gets_claims(&t, &other, &[keys::COMPANIONS_CLAIM]).await;
    label(Value::Null, Value::Null);
    gets_claims(&t, &other, &[]).await;
}

#[tokio::test]
async fn the_plugin_on_hosts_is_accepted_where_the_namespace_permits_it() {
    let t = Tenant::without_agent(Outrigger::shared().await, "cf-host", &[("a", 1)]).await;
    let objects = kustomize("deploy/base/host").unwrap();
    let mut pod = of_kind(&objects, "DaemonSet").next().unwrap()["spec"]["template"].clone();
    pod["metadata"]["name"] = json!("host");
    pod["spec"]["serviceAccountName"] = json!("default");
    for (level, permitted) in [("privileged", true), ("baseline", false)] {
        let name = format!("cf-host-{level}");
        let mut home = namespace(&name);
        home["metadata"]["labels"] = json!({"pod-security.kubernetes.io/enforce": level});
        t.outrigger.plane.tenant.apply(&[home]).unwrap();
        takes_pods(&t.cluster, &name).await;
        let pods: Api<Pod> = Api::namespaced(t.cluster.clone(), &name);
        let refusal = dry_run(&pods, &pod).await.in_words().err();
        assert_eq!(refusal.is_none(), permitted, "{level}: {refusal:?}");
        assert!(permitted || refusal.is_some_and(|why| why.contains("hostPath")), "{level}");
    }
}
