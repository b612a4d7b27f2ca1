//! A running container that gets other amounts of cpu and memory from its kubelet, by its cgroup, and one that gets another image.

use outrigger_tests::rack::Rack;
use outrigger_tests::tenant::rule;
use outrigger_tests::{InWords, condition_of, eventually, holds};
use serde_json::{Value, json};

use super::shared::{DPU, turn};
use super::workloads::{deployment, pods, ready, runs, spec};

const SLEEP: &str = "333333";

/// A rule whose companions may use so much of a processor.
fn may_use(cpu: &str) -> Value {
    let mut spec = spec("resized", &runs(&format!("exec sleep {SLEEP}")));
    let amounts = json!({"cpu": cpu, "memory": "32Mi"});
    spec["template"]["spec"]["containers"][0]["resources"] = json!({"requests": amounts, "limits": amounts});
    rule("tenant-blue", "resized", spec)
}

/// The microseconds of a processor in each tenth of a second that the companion's container may use, by its cgroup.
fn limit(rack: &Rack) -> Result<String, String> {
    let pid = *rack.processes(DPU, SLEEP).in_words()?.first().ok_or("no process")?;
    let read = |path: String| std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"));
    let cgroups = read(format!("/proc/{pid}/cgroup"))?;
    let of = |controller: &str| {
        let mut lines = cgroups
            .lines()
            .filter_map(|line| line.splitn(3, ':').skip(1).collect::<Vec<_>>().try_into().ok());
        lines.find_map(|[controllers, path]: [&str; 2]| {
            controllers.split(',').any(|c| c == controller).then_some(path)
        })
    };
    let file = match (of("cpu"), of("")) {
        (Some(path), _) => format!("/sys/fs/cgroup/cpu{path}/cpu.cfs_quota_us"),
        (None, Some(path)) => format!("/sys/fs/cgroup{path}/cpu.max"),
        (None, None) => return Err(cgroups),
    };
    Ok(read(file)?.split_whitespace().next().unwrap_or_default().to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_container_gets_another_limit_and_is_not_started_again() {
    let turn = turn().await;
    let (rack, infra, hosts) = (turn.rack, &turn.rack.plane.infra, &turn.rack.plane.tenant);
    infra.apply(&[may_use("100m")]).unwrap();
    hosts.apply(&[deployment("resized", 1)]).unwrap();
    let former = ready(rack, "infra", "resized", 1).await.remove(0);
    assert_eq!(limit(rack).unwrap(), "10000");

    infra.apply(&[may_use("150m")]).unwrap();
    eventually("the container may use more", || async {
        let limit = limit(rack)?;
        holds(limit == "15000", limit)
    })
    .await;
    eventually("the kubelet says so", || async {
        let now = pods(rack, "infra", "resized")?.remove(0);
        let status = &now["status"]["containerStatuses"][0];
        holds(status["resources"]["limits"]["cpu"] == "150m", status.to_string())
    })
    .await;
    let now = pods(rack, "infra", "resized").unwrap().remove(0);
    assert_eq!(now["metadata"]["uid"], former["metadata"]["uid"]);
    let run = |pod: &Value| {
        let status = &pod["status"]["containerStatuses"][0];
        [&status["restartCount"], &status["state"]["running"]["startedAt"]].map(Clone::clone)
    };
    assert_eq!(run(&now), run(&former));
    hosts.kubectl(&["delete", "deployment", "resized"]).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_image_runs_in_the_same_pod_and_until_then_the_rule_says_so() {
    let turn = turn().await;
    let (rack, infra, hosts) = (turn.rack, &turn.rack.plane.infra, &turn.rack.plane.tenant);
    // Both images have the program, and only one of them its name.
    let of = |image: &str| {
        let mut spec = spec("updated", &runs("echo here"));
        spec["template"]["spec"]["containers"][0]["image"] = json!(image);
        spec["updateStrategy"] = json!({"rollingUpdate": {"mutableFields": "InPlace"}});
        rule("tenant-blue", "updated", spec)
    };
    infra.apply(&[of("busybox:1")]).unwrap();
    hosts.apply(&[deployment("updated", 1)]).unwrap();
    let former = ready(rack, "infra", "updated", 1).await.remove(0);
    let id = |pod: &Value| pod["status"]["containerStatuses"][0]["containerID"].clone();

    infra.apply(&[of("pause:1")]).unwrap();
    eventually("the rule says that all companions are as it asks", || async {
        let rule = infra.get(&["workloadrule", "-n", "tenant-blue", "updated"]).in_words()?;
        let ready = condition_of(&rule, "Ready");
        let is_current = ready["observedGeneration"] == rule["metadata"]["generation"];
        holds(is_current && ready["reason"] == "AllReady", ready.to_string())
    })
    .await;
    let now = pods(rack, "infra", "updated").unwrap().remove(0);
    assert_eq!(now["metadata"]["uid"], former["metadata"]["uid"]);
    let restarted = format!("{}=busybox:1", id(&former).as_str().unwrap());
    assert_eq!(now["metadata"]["annotations"]["outrigger.dev/restarts"], restarted);
    assert_ne!(id(&now), id(&former), "another container runs");
    hosts.kubectl(&["delete", "deployment", "updated"]).unwrap();
}
