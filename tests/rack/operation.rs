//! What goes on while parts of Outrigger, or of its Nodes, are restarted.

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use outrigger_tests::outrigger::SYSTEM;
use outrigger_tests::rack::{HOSTS, ready};
use outrigger_tests::tenant::rule;
use outrigger_tests::{InWords, dry_run, eventually, holds};
use serde_json::{Value, json};

use super::order::makes_wait;
use super::shared::{CONTROL, HOST, turn};
use super::workloads::{
    deployment, name, pods, ready as running, ready_since, runs, spec, started, workload,
};

const SERVERS: [&str; 2] = ["deployment/outrigger-webhook", "deployment/outrigger-manager"];

/// How often containers of these Pods have been restarted.
fn restarts(pods: &Value) -> u64 {
    let statuses =
        pods["items"].as_array().into_iter().flatten().map(|pod| &pod["status"]["containerStatuses"][0]);
    statuses.filter_map(|status| status["restartCount"].as_u64()).sum()
}

#[tokio::test]
#[ignore = "long"]
async fn killed_webhooks_are_started_again_and_pods_are_admitted_then() {
    let turn = turn().await;
    let infra = &turn.rack.plane.infra;
    let of = ["pods", "-n", SYSTEM, "-l", "app.kubernetes.io/component=webhook"];
    let before = restarts(&infra.get(&of).unwrap());
    assert_eq!(turn.rack.kill(CONTROL, "webhook").unwrap(), 2);
    eventually("their kubelet starts them again", || async {
        let now = restarts(&infra.get(&of).in_words()?);
        holds(now == before + 2, format!("{now} restarts"))
    })
    .await;
    ready(infra, &SERVERS).await;
    let api: Api<Pod> = Api::namespaced(infra.client().await, "tenant-blue");
    let pod = json!({"metadata": {"generateName": "asks-"}, "spec": {"containers": [runs("echo here")]}});
    eventually("Pods are admitted", || async { dry_run(&api, &pod).await.map(drop).in_words() }).await;
}

#[tokio::test]
#[ignore = "long"]
async fn containers_run_on_without_kubelet_and_plugin_and_wait_again_after_a_reboot() {
    let turn = turn().await;
    let (rack, hosts) = (turn.rack, &turn.rack.plane.tenant);
    let mut spec = spec("boot", &runs("echo here"));
    spec["ordering"] = json!("BeforeStart");
    hosts.apply(&[rule("universe", "boot", spec)]).unwrap();
    makes_wait(rack, "boot").await;
    hosts.apply(&[deployment("boot", 1)]).unwrap();
    let workloads = running(rack, "tenant", "boot", 1).await;

    // Neither of them has anything to do with a container that runs.
    for part in ["kubelet", "host"] {
        assert_eq!(rack.kill(HOST, part).unwrap(), 1, "{part}");
    }
    let plugin = ["pods", "-n", HOSTS];
    eventually("both are back", || async {
        let now = hosts.get(&plugin).in_words()?;
        holds(restarts(&now) == 1, now["items"][0]["status"].to_string())
    })
    .await;
    ready(hosts, &["daemonset/outrigger-host"]).await;
    let now = running(rack, "tenant", "boot", 1).await;
    assert_eq!(now[0]["status"]["containerStatuses"], workloads[0]["status"]["containerStatuses"]);

    // And the next one waits as before.
    hosts.kubectl(&["scale", "deployment", "boot", "--replicas=2"]).unwrap();
    let both = running(rack, "tenant", "boot", 2).await;
    let companions = running(rack, "infra", "boot", 2).await;
    let of = |pod: &Value| companions.iter().find(|one| workload(one) == name(pod)).unwrap();
    for pod in &both {
        assert!(started(pod) >= ready_since(of(pod)), "{pod}");
    }

    rack.off(HOST).unwrap();
    rack.on(HOST).unwrap();
    eventually("the same Pods run again on the host that has been rebooted", || async {
        let found = pods(rack, "tenant", "boot")?;
        let again = found
            .iter()
            .filter(|pod| pod["status"]["containerStatuses"][0]["restartCount"].as_u64() > Some(0));
        holds(
            again.count() == 2,
            json!(found.iter().map(|pod| &pod["status"]).collect::<Vec<_>>()).to_string(),
        )
    })
    .await;
    let again = running(rack, "tenant", "boot", 2).await;
    let names = |pods: &[Value]| pods.iter().map(|pod| name(pod).to_owned()).collect::<Vec<_>>();
    assert_eq!(names(&again), names(&both));
    for pod in &again {
        assert!(started(pod) >= ready_since(of(pod)), "{pod}");
    }
}
