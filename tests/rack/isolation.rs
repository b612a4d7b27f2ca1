//! Ways out of a tenant's DPUs that end at a kubelet, where everything else has let a Pod through.

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use outrigger_tests::tenant::namespace;
use outrigger_tests::{InWords, dry_run, eventually, holds};
use serde_json::{Value, json};

use super::shared::{CONTROL, DPU, turn};
use super::workloads::{is, runs};

/// A namespace in which nothing of Outrigger's holds Pods back.
const BEYOND: &str = "beyond";

/// A way of a Pod to a kubelet.
enum Way {
    /// Its author names the Node.
    NodeName,
    /// The scheduler with this name binds it, whatever its affinity says: its cache is outdated, or it isn't Kubernetes'.
    Binding(&'static str),
}

/// Who comes how, with what in its spec, and what the kubelet of a Node that isn't the tenant's says. Without a reason it runs.
type Row = (&'static str, Way, Value, Option<&'static str>);

fn rows(of_tenant: &Value) -> Vec<Row> {
    let sysctl = json!({"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "65536"}]}});
    vec![
        ("node-name", Way::NodeName, of_tenant.clone(), Some("NodeAffinity")),
        ("node-name-control", Way::NodeName, json!({}), None),
        (
            "outdated",
            Way::Binding("default-scheduler-with-an-old-cache"),
            of_tenant.clone(),
            Some("NodeAffinity"),
        ),
        ("outdated-control", Way::Binding("default-scheduler-with-an-old-cache"), json!({}), None),
        ("other-scheduler", Way::Binding("other"), of_tenant.clone(), Some("NodeAffinity")),
        ("unsafe-sysctl", Way::NodeName, sysctl, Some("SysctlForbidden")),
    ]
}

fn pod(row: &Row) -> Value {
    let (name, way, more, _) = row;
    let mut spec = more.clone();
    spec["containers"] = json!([runs("echo here")]);
    spec["terminationGracePeriodSeconds"] = json!(1);
    match way {
        Way::NodeName => spec["nodeName"] = json!(CONTROL.name),
        Way::Binding(scheduler) => spec["schedulerName"] = json!(scheduler),
    }
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": BEYOND}, "spec": spec})
}

#[tokio::test]
async fn a_kubelet_refuses_pods_of_a_tenant_that_come_to_it_past_everything_else() {
    let turn = turn().await;
    let infra = &turn.rack.plane.infra;
    infra.apply(&[namespace(BEYOND)]).unwrap();
    let account = ["serviceaccount", "default", "-n", BEYOND];
    eventually("Pods can be created there", || async { infra.get(&account).in_words() }).await;
    // What admission gives each Pod of the tenant.
    let api: Api<Pod> = Api::namespaced(infra.client().await, "tenant-blue");
    let asks = json!({"metadata": {"name": "asks"}, "spec": {"containers": [runs("echo here")]}});
    let admitted = serde_json::to_value(dry_run(&api, &asks).await.unwrap()).unwrap();
    let of_tenant =
        json!({"affinity": admitted["spec"]["affinity"], "tolerations": admitted["spec"]["tolerations"]});

    let rows = rows(&of_tenant);
    for row in &rows {
        infra.kubectl_with(&["create", "-f", "-"], &pod(row).to_string()).unwrap();
        if let Way::Binding(_) = row.1 {
            let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": row.0, "namespace": BEYOND},
                "target": {"apiVersion": "v1", "kind": "Node", "name": CONTROL.name}});
            let path = format!("/api/v1/namespaces/{BEYOND}/pods/{}/binding", row.0);
            infra.kubectl_with(&["create", "--raw", &path, "-f", "-"], &binding.to_string()).unwrap();
        }
    }
    for (name, _, _, reason) in &rows {
        eventually(&format!("{name}: {reason:?}"), || async {
            let pod = infra.get(&["pod", name, "-n", BEYOND]).in_words()?;
            let status = &pod["status"];
            let is_so = match reason {
                Some(reason) => status["phase"] == "Failed" && status["reason"] == *reason,
                None => is(&pod, "Ready"),
            };
            holds(is_so, status.to_string())
        })
        .await;
    }
    infra.kubectl(&["delete", "namespace", BEYOND, "--wait=false"]).unwrap();
}

#[tokio::test]
async fn a_static_pod_in_a_tenants_namespace_is_no_object_there() {
    let turn = turn().await;
    let (rack, infra) = (turn.rack, &turn.rack.plane.infra);
    let manifests = rack.disk(DPU).join("manifests");
    for (name, namespace) in [("inside", "tenant-blue"), ("outside", "default")] {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace},
            "spec": {"terminationGracePeriodSeconds": 1, "containers": [runs("echo here")]}});
        std::fs::write(manifests.join(format!("{name}.json")), pod.to_string()).unwrap();
    }
    let mirror = |name: &str| format!("{name}-{}", DPU.name);
    // Kubernetes lets kubelets make mirror Pods elsewhere.
    eventually("the kubelet runs static Pods", || async {
        let pod = infra.get(&["pod", &mirror("outside")]).in_words()?;
        holds(is(&pod, "Ready"), pod["status"].to_string())
    })
    .await;
    eventually("the kubelet may not say that there is another one", || async {
        let log = std::fs::read_to_string(rack.disk(DPU).join("log/kubelet.log")).in_words()?;
        let attempt = format!("tenant-blue/{}", mirror("inside"));
        let refused = log.lines().any(|line| {
            line.contains("Failed creating a mirror pod")
                && line.contains(&attempt)
                && line.contains("denied")
        });
        holds(refused, "no such line")
    })
    .await;
    let found = infra.kubectl(&["get", "pods", "-n", "tenant-blue", "-o", "name"]).unwrap();
    assert!(!found.contains(&mirror("inside")), "{found}");

    for name in ["inside", "outside"] {
        std::fs::remove_file(manifests.join(format!("{name}.json"))).unwrap();
    }
    eventually("the static Pods are gone", || async {
        let pods = infra.kubectl(&["get", "pods", "-A", "-o", "name"]).in_words()?;
        holds(!pods.contains(&mirror("outside")), pods)
    })
    .await;
}
