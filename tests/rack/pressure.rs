//! Containers that the kernel or a kubelet ends, because there is no memory for them.

use outrigger_tests::rack::{Rack, ready as parts_are_ready};
use outrigger_tests::tenant::rule;
use outrigger_tests::{InWords, eventually, holds, is_true};
use serde_json::{Value, json};

use super::shared::{CONTROL, DPU, turn};
use super::traffic::Traffic;
use super::workloads::{deployment, name, parts, pods, ready, runs, spec};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn webhook_and_manager_come_back_after_their_memory_was_used_up_and_nothing_is_lost() {
    let turn = turn().await;
    let (rack, infra) = (turn.rack, &turn.rack.plane.infra);
    let traffic = Traffic::start(rack, "memory").await;
    for part in ["webhook", "manager"] {
        rack.exhaust_memory(CONTROL, part).unwrap();
        eventually(&format!("a {part} was killed for its memory, and is started again"), || async {
            let pods = parts(rack, part)?;
            let statuses: Vec<_> = pods.iter().map(|pod| &pod["status"]).collect();
            let killed = statuses.iter().any(|status| {
                let container = &status["containerStatuses"][0];
                let last = &container["lastState"]["terminated"];
                last["reason"] == "OOMKilled" && container["ready"] == true
            });
            holds(killed, json!(statuses).to_string())
        })
        .await;
        parts_are_ready(infra, &[&format!("deployment/outrigger-{part}")]).await;
    }
    let (admitted, refusals, workloads) = traffic.end(rack).await;
    // Requests that are open at a process that is killed are lost, and no others are.
    assert!(admitted > 20 && refusals.len() < admitted, "{admitted} admissions, {refusals:?}");
    assert!(workloads.len() > 2, "{workloads:?}");
}

/// A workload whose companion has a volume, and what its Node can run out of.
struct Evicted {
    app: &'static str,
    /// The volume's kind.
    volume: Value,
    /// The signal of kubelets.
    signal: &'static str,
    /// Where the kubelet's summary says what is left.
    left: &'static str,
    /// MiB that are left, and MiB that the companion takes.
    leaves: u64,
    takes: u64,
}

impl Evicted {
    /// What the Node has left, in bytes, by its kubelet.
    fn left(&self, rack: &Rack) -> Result<u64, String> {
        let path = format!("/api/v1/nodes/{}/proxy/stats/summary", DPU.name);
        let summary = rack.plane.infra.kubectl(&["get", "--raw", &path]).in_words()?;
        let summary: Value = serde_json::from_str(&summary).in_words()?;
        let left = summary.pointer(self.left).and_then(Value::as_u64);
        left.ok_or_else(|| summary["node"].to_string())
    }

    /// Its companion runs on the DPU.
    async fn start(&self, rack: &Rack) -> [Value; 2] {
        let mut spec = spec(self.app, &runs("echo here"));
        let template = &mut spec["template"]["spec"];
        let volume = json!({"name": "volume", "emptyDir": self.volume});
        template["volumes"].as_array_mut().unwrap().push(volume);
        let mount = json!({"name": "volume", "mountPath": "/volume"});
        template["containers"][0]["volumeMounts"].as_array_mut().unwrap().push(mount);
        rack.plane.infra.apply(&[rule("tenant-blue", self.app, spec)]).unwrap();
        rack.plane.tenant.apply(&[deployment(self.app, 1)]).unwrap();
        let workload = ready(rack, "tenant", self.app, 1).await.remove(0);
        [workload, ready(rack, "infra", self.app, 1).await.remove(0)]
    }

    /// The DPU has little left from now on, and its companion takes more: the kubelet evicts it, and another one runs in its place.
    async fn is_replaced(&self, rack: &Rack) {
        let (infra, hosts) = (&rack.plane.infra, &rack.plane.tenant);
        let [workload, former] = self.start(rack).await;
        let left = eventually("the kubelet says what it has left", || async { self.left(rack) }).await;
        let threshold = format!("{}Mi", (left >> 20) - self.leaves);
        let settings =
            json!({"evictionHard": {self.signal: threshold}, "evictionPressureTransitionPeriod": "5s"});
        rack.configure_kubelet(DPU, Some(&settings)).unwrap();
        let fill = format!("head -c {}m /dev/zero >/volume/x", self.takes);
        let fills = ["exec", name(&former), "-n", "tenant-blue", "--", "sh", "-c", &fill];
        eventually("it takes what there is", || async { infra.kubectl(&fills).in_words() }).await;
        eventually("its kubelet says why", || async {
            let of = format!("--field-selector=reason=Evicted,involvedObject.name={}", name(&former));
            let events = infra.get(&["events", "-n", "tenant-blue", &of]).in_words()?;
            holds(events["items"].as_array().is_some_and(|all| !all.is_empty()), events.to_string())
        })
        .await;
        eventually("another companion runs in its place", || async {
            let now = pods(rack, "infra", self.app)?;
            let other =
                |pod: &Value| pod["metadata"]["uid"] != former["metadata"]["uid"] && is_true(pod, "Ready");
            holds(now.len() == 1 && other(&now[0]), json!(now).to_string())
        })
        .await;
        let now = ready(rack, "tenant", self.app, 1).await;
        assert_eq!(now[0]["metadata"]["uid"], workload["metadata"]["uid"]);
        rack.configure_kubelet(DPU, None).unwrap();
        hosts.kubectl(&["delete", "deployment", self.app]).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn a_companion_that_its_kubelet_evicts_is_replaced_when_the_dpu_has_room() {
    let turn = turn().await;
    let evicted = Evicted {
        app: "memory-evicted",
        volume: json!({"medium": "Memory"}),
        signal: "memory.available",
        left: "/node/memory/availableBytes",
        leaves: 300,
        takes: 400,
    };
    evicted.is_replaced(turn.rack).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn a_companion_that_fills_the_disk_of_its_dpu_is_replaced_when_the_dpu_has_room() {
    let turn = turn().await;
    let rack = turn.rack;
    let again = async |mebibytes| {
        rack.off(DPU).unwrap();
        rack.limit_disk(DPU, mebibytes).unwrap();
        rack.on(DPU).unwrap();
    };
    again(Some(200)).await;
    let evicted = Evicted {
        app: "disk-evicted",
        volume: json!({}),
        signal: "nodefs.available",
        left: "/node/fs/availableBytes",
        leaves: 50,
        takes: 80,
    };
    evicted.is_replaced(rack).await;
    again(None).await;
}
