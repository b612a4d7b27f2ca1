//! `outrigger explain` of a host, a namespace and a claim by users who may not read all of it: what isn't known isn't taken for wrong.

use outrigger_tests::devices::{Devices, claims};
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::tenant::{Tenant, dpu, namespace};
use outrigger_tests::{InWords, create, eventually, holds, merge_status};
use serde_json::{Value, json};

/// A user of the infrastructure cluster.
struct User {
    outrigger: &'static Outrigger,
    kubeconfig: String,
}

impl User {
    fn admin(outrigger: &'static Outrigger) -> Self {
        Self { outrigger, kubeconfig: outrigger.plane.infra.kubeconfig.display().to_string() }
    }

    /// One who may list these resources (API group and name) in the whole cluster, and nothing else.
    fn reader(outrigger: &'static Outrigger, name: &str, resources: &[(&str, &str)]) -> Self {
        let file = outrigger.plane.dir.join(format!("{name}.kubeconfig"));
        outrigger.plane.infra.viewer(name, &["get", "list"], resources, &file).unwrap();
        Self { outrigger, kubeconfig: file.display().to_string() }
    }

    /// Waits until exactly these causes are named, and returns the report. An API server takes a while to know of a right.
    async fn hears(&self, of: &[&str], expected: &[&str]) -> Value {
        let kubeconfig = format!("--kubeconfig={}", self.kubeconfig);
        eventually(&format!("{of:?} names {expected:?}"), || async {
            let (code, report) =
                self.outrigger.report(&[&["explain"], of, &[kubeconfig.as_str()]].concat())?;
            holds(code == Some(0), report.to_string())?;
            let wrong = report["wrong"].as_array().unwrap();
            let causes: Vec<&str> = wrong.iter().map(|wrong| wrong["cause"].as_str().unwrap()).collect();
            if causes == expected { Ok(report) } else { Err(report.to_string()) }
        })
        .await
    }
}

fn fact<'a>(report: &'a Value, name: &str) -> &'a str {
    let mut facts = report["facts"].as_array().unwrap().iter();
    facts.find(|fact| fact["name"] == name).map_or("", |fact| fact["value"].as_str().unwrap())
}

/// Whether exactly these resources may not be listed.
fn hidden(report: &Value, resources: &[&str]) -> bool {
    let notes = report["notes"].as_array().unwrap();
    let named = |resource: &&str| {
        let words = format!("cannot list resource \"{resource}\"");
        notes.iter().any(|note| note.as_str().unwrap().contains(&words))
    };
    notes.len() == resources.len() && resources.iter().all(named)
}

#[tokio::test]
async fn a_host_is_listed_by_no_tenant_only_if_tenants_may_be_read() {
    let o = Outrigger::shared().await;
    let host = "unread-host";
    o.plane.infra.apply(&[dpu("unread-host-dpu", host)]).unwrap();
    User::admin(o).hears(&["host", host], &["HostNotListed"]).await;
    let report = User::reader(o, "unread-tenants", &[("", "nodes")]).hears(&["host", host], &[]).await;
    assert!(hidden(&report, &["tenants"]), "{report}");
}

#[tokio::test]
async fn nothing_is_said_of_virtual_nodes_and_offloadings_that_may_not_be_read() {
    let o = Outrigger::shared().await;
    let name = "unread-offloaded";
    let none = json!({"nodeSelectorTerms": [{"matchExpressions": [
        {"key": "unread", "operator": "In", "values": ["nowhere"]}]}]});
    let offloading = json!({"apiVersion": "offloading.liqo.io/v1beta1", "kind": "NamespaceOffloading",
        "metadata": {"name": "offloading", "namespace": name},
        "spec": {"podOffloadingStrategy": "Remote", "clusterSelector": none}});
    o.plane.infra.apply(&[namespace(name), offloading]).unwrap();
    let of = ["namespace", name];
    User::admin(o).hears(&of, &["NoClusterSelected"]).await;
    let offloadings = ("offloading.liqo.io", "namespaceoffloadings");
    let report = User::reader(o, "unread-nodes", &[("", "namespaces"), offloadings]).hears(&of, &[]).await;
    assert!(hidden(&report, &["nodes"]), "{report}");
    assert_eq!(fact(&report, "virtual nodes selected"), "not known: Nodes may not be read");
    let reader = User::reader(o, "unread-offloadings", &[("", "namespaces"), ("", "nodes")]);
    let report = reader.hears(&of, &[]).await;
    assert!(hidden(&report, &["namespaceoffloadings"]), "{report}");
    assert_eq!(fact(&report, "offloading"), "not known: it may not be read");
}

#[tokio::test]
async fn a_claim_reports_what_the_driver_says_and_not_that_no_pod_uses_it_if_pods_may_not_be_read() {
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "unread-claim", &[("a", 1)]).await;
    let devices = Devices::publish(&t, &[("a", 1)]).await;
    let on = t.node("a-dpu1");
    let metadata = |name: &str| json!({"name": name, "namespace": t.namespace});
    let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata("c"),
        "spec": devices.one()});
    let admitted = || async { o.plane.infra.apply(std::slice::from_ref(&claim)).in_words() };
    eventually("the class is allowed", admitted).await;
    let of = ["claim", "c", "-n", &t.namespace];
    let (admin, reader) =
        (User::admin(o), User::reader(o, "unread-pods", &[("resource.k8s.io", "resourceclaims")]));
    let why = |report: &Value| report["wrong"][0]["message"].as_str().unwrap().to_owned();
    let report = admin.hears(&of, &["ClaimNotAllocated"]).await;
    assert!(why(&report).starts_with("no Pod uses it"), "{report}");
    let report = reader.hears(&of, &["ClaimNotAllocated"]).await;
    assert!(hidden(&report, &["namespaces", "pods", "deviceclasses"]), "{report}");
    assert!(why(&report).ends_with("whether there is one isn't known"), "{report}");

    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata("p"), "spec": {
        "resourceClaims": [{"name": "d", "resourceClaimName": "c"}],
        "containers": [{"name": "c", "image": "i", "resources": {"claims": [{"name": "d"}]}}]}});
    create(&t.pods(), &pod).await.unwrap();
    let report = admin.hears(&of, &[]).await;
    assert_eq!((fact(&report, "Pods"), fact(&report, "node")), ("p", &*on), "{report}");
    let device = format!("device {}/{on}/d0", devices.driver);
    assert!(!fact(&report, &device).is_empty(), "{report}");
    let since = "2026-01-02T03:04:05Z";
    let ready = json!({"type": "Ready", "status": "False", "reason": "LinkDown", "message": "port 0",
        "lastTransitionTime": since});
    let said =
        json!({"devices": [{"driver": devices.driver, "pool": on, "device": "d0", "conditions": [ready]}]});
    let claims = claims(&t.infra, &t.namespace);
    merge_status(&claims, "c", said).await.unwrap();
    for user in [&admin, &reader] {
        let report = user.hears(&of, &["DeviceNotReady"]).await;
        let wrong = &report["wrong"][0];
        let reported = [&wrong["about"], &wrong["message"], &wrong["since"]];
        assert_eq!(
            reported,
            [&json!(device), &json!("Ready isn't True: LinkDown port 0"), &json!(since)],
            "{report}"
        );
    }
}
