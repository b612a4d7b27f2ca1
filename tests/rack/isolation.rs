//! Ways out of a tenant's DPUs that end at a kubelet, where everything else has let a Pod through.

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use outrigger_core::keys;
use outrigger_tests::rack::Rack;
use outrigger_tests::tenant::{namespace, rule};
use outrigger_tests::user::client;
use outrigger_tests::{InWords, dry_run, eventually, holds, is_true};
use serde_json::{Value, json};

use super::shared::{BLUE, CONTROL, DPU, turn};
use super::workloads::{deployment, name, ready, runs, spec};
use crate::e2e::escape::beyond::a_kubelet_keeps_to;
use crate::e2e::escape::stage::{NODES, SLICES, Sides, TENANTS, User};

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
                None => is_true(&pod, "Ready"),
            };
            holds(is_so, status.to_string())
        })
        .await;
    }
    infra.kubectl(&["delete", "namespace", BEYOND, "--wait=false"]).unwrap();
}

/// The companion of a workload with this label `app`, which starts now.
async fn companion(rack: &Rack, app: &str) -> Value {
    rack.plane.infra.apply(&[rule("tenant-blue", app, spec(app, &runs("echo here")))]).unwrap();
    rack.plane.tenant.apply(&[deployment(app, 1)]).unwrap();
    ready(rack, "infra", app, 1).await.remove(0)
}

/// The end of that workload and of its rule.
fn ends(rack: &Rack, app: &str) {
    rack.plane.tenant.kubectl(&["delete", "deployment", app]).unwrap();
    rack.plane.infra.kubectl(&["delete", "workloadrule", app, "-n", "tenant-blue"]).unwrap();
}

/// Who has the certificate of a Node's kubelet. It asks from this process' network.
async fn kubelet(rack: &Rack, node: &str) -> User {
    let file = rack.plane.dir.join("infra/nodes").join(format!("{node}.kubeconfig"));
    let outside = file.with_extension("outside");
    let text = std::fs::read_to_string(file).unwrap();
    std::fs::write(&outside, text.replace("https://10.77.0.1:", "https://127.0.0.1:")).unwrap();
    User(client(&outside, None).await)
}

#[tokio::test]
async fn the_certificate_of_a_dpus_kubelet_is_good_for_its_own_dpu_alone() {
    let turn = turn().await;
    let (rack, infra) = (turn.rack, &turn.rack.plane.infra);
    let pod = format!("/api/v1/namespaces/tenant-blue/pods/{}", name(&companion(rack, "kept").await));
    let admin = User(infra.client_without_retries().await);
    let node = format!("{NODES}/{}", DPU.name);
    // In the table, hosts are named by this label.
    let label = |host: Value| json!({"metadata": {"labels": {keys::DPU_HOST: host}}});
    admin.patch(&node, &label(json!("blue-a"))).await.unwrap();
    let sides = Sides::new(&admin, BLUE, DPU.name.to_owned()).await;
    // Their Node has no kubelet that would say so.
    let (theirs, room) = (format!("{NODES}/{}", sides.their), json!({"pods": "9"}));
    let status = json!({"status": {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]}});
    admin.patch(&format!("{theirs}/status"), &status).await.unwrap();
    let new = format!("{BLUE}-new");
    let of_new = json!({"cluster": "infra", "name": new, "address": "10.77.0.60"});
    rack.plane.command(&format!("node {of_new}")).unwrap();

    let [own, second] = [kubelet(rack, DPU.name).await, kubelet(rack, &new).await];
    a_kubelet_keeps_to(&sides, &admin, &pod, [&own, &second]).await;

    admin.patch(&node, &label(Value::Null)).await.unwrap();
    let tenant = format!("{TENANTS}/{}", sides.other);
    for path in [theirs, tenant, format!("{NODES}/{new}"), format!("{SLICES}/{BLUE}-own")] {
        admin.delete(&path).await.unwrap();
    }
    ends(rack, "kept");
}

#[tokio::test]
async fn a_static_pod_in_a_tenants_namespace_is_no_object_there() {
    let turn = turn().await;
    let (rack, infra) = (turn.rack, &turn.rack.plane.infra);
    // They say of themselves what a companion says, and Kubernetes lets kubelets make mirror Pods elsewhere.
    let companion = companion(rack, "static").await;
    let manifests = rack.disk(DPU).join("manifests");
    let pods = [("inside", "tenant-blue"), ("platform", keys::ADMIN_NAMESPACE), ("outside", "default")];
    for (name, namespace) in pods {
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace},
            "spec": {"terminationGracePeriodSeconds": 1, "containers": [runs("echo here")]}});
        for field in ["labels", "annotations"] {
            pod["metadata"][field] = companion["metadata"][field].clone();
        }
        std::fs::write(manifests.join(format!("{name}.json")), pod.to_string()).unwrap();
    }
    let mirror = |name: &str| format!("{name}-{}", DPU.name);
    eventually("the kubelet runs static Pods", || async {
        let pod = infra.get(&["pod", &mirror("outside")]).in_words()?;
        holds(is_true(&pod, "Ready"), pod["status"].to_string())
    })
    .await;
    for (name, namespace) in &pods[..2] {
        eventually(&format!("the kubelet may not say that there is {name}"), || async {
            let log = std::fs::read_to_string(rack.disk(DPU).join("log/kubelet.log")).in_words()?;
            let attempt = format!("{namespace}/{}", mirror(name));
            let refused = log.lines().any(|line| {
                line.contains("Failed creating a mirror pod")
                    && line.contains(&attempt)
                    && line.contains("denied")
            });
            holds(refused, "no such line")
        })
        .await;
        let found = infra.kubectl(&["get", "pods", "-n", namespace, "-o", "name"]).unwrap();
        assert!(!found.contains(&mirror(name)), "{found}");
    }
    // Whatever the one elsewhere says, it counts as no rule's companion.
    let now = ready(rack, "infra", "static", 1).await;
    assert_eq!(now[0]["metadata"]["uid"], companion["metadata"]["uid"]);
    eventually("the rule has one companion", || async {
        let rule = infra.get(&["workloadrule", "static", "-n", "tenant-blue"]).in_words()?;
        holds(rule["status"]["created"] == 1 && rule["status"]["ready"] == 1, rule["status"].to_string())
    })
    .await;

    for (name, _) in pods {
        std::fs::remove_file(manifests.join(format!("{name}.json"))).unwrap();
    }
    eventually("the static Pods are gone", || async {
        let pods = infra.kubectl(&["get", "pods", "-A", "-o", "name"]).in_words()?;
        holds(!pods.contains(&mirror("outside")), pods)
    })
    .await;
    ends(rack, "static");
}
