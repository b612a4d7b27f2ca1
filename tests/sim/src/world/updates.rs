//! Kubelets whose Pods get another image: after a while they run another container, which is ready at once, later or never, as the image says.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::hosts::set_conditions;
use super::kubelet::{NEVER, SLOW};
use super::{World, nodes, text};

/// How long it takes at most until a kubelet has stopped the container of the earlier image, and until one of a slow image is ready.
const STOPS: Duration = Duration::from_secs(5);
/// See [`STOPS`].
const STARTS: Duration = Duration::from_secs(20);

/// The image that a companion's spec has.
fn image(pod: &Value) -> &str {
    text(pod, "/spec/containers/0/image")
}

/// The statuses of the containers of a companion that runs its image, of which this one is the number.
pub(super) fn containers(pod: &Value, number: u64) -> Value {
    json!([{"name": "c", "image": image(pod), "restartCount": number, "state": {"running": {}},
        "containerID": format!("sim://{}/{number}", text(pod, "/metadata/uid"))}])
}

/// The same after a restart.
pub(super) fn next_containers(pod: &Value) -> Value {
    let last = text(pod, "/status/containerStatuses/0/containerID").rsplit('/').next();
    let last = last.and_then(|number| number.parse::<u64>().ok()).unwrap_or_default();
    containers(pod, last + 1)
}

/// Whether a companion runs another image than its spec has, so its kubelet has another container to start.
pub(crate) fn is_updating(pod: &Value) -> bool {
    let runs = text(pod, "/status/containerStatuses/0/image");
    !runs.is_empty()
        && runs != image(pod)
        && text(pod, "/status/phase") == "Running"
        && pod["metadata"]["deletionTimestamp"].is_null()
}

impl World {
    /// The kubelets of DPUs start the containers of companions that have got another image.
    pub(super) fn run_updates(self: &Arc<Self>) {
        for pod in self.infra.list("pods").into_iter().filter(|pod| is_updating(pod)) {
            let waits = format!("updates {}", text(&pod, "/metadata/uid"));
            if !self.asking.lock().insert(waits.clone()) {
                continue;
            }
            let (world, random) = (self.clone(), self.environment.random.clone());
            tokio::spawn(async move {
                tokio::time::sleep(random.below(STOPS)).await;
                nodes::heard(&world.infra, &pod).await;
                while let Some(now) = world.same(&pod).filter(|now| is_updating(now)) {
                    world.restart(&now);
                    let takes = if image(&now).starts_with(SLOW) { STARTS } else { STOPS };
                    tokio::time::sleep(random.below(takes)).await;
                    nodes::heard(&world.infra, &now).await;
                    let started = world.same(&now).filter(|now| !is_updating(now));
                    if let Some(now) = started.filter(|now| !image(now).starts_with(NEVER)) {
                        world.say(&now, &json!({"conditions": set_conditions(&now, &READY)}));
                    }
                }
                world.asking.lock().remove(&waits);
            });
        }
    }
}

/// The conditions of a Pod whose containers are ready.
pub(super) const READY: [(&str, bool); 2] = [("Ready", true), ("ContainersReady", true)];

impl World {
    /// A Pod as it is now, if it is the same one.
    pub(super) fn same(&self, pod: &Value) -> Option<Arc<Value>> {
        let found =
            self.infra.get("pods", pod["metadata"]["namespace"].as_str(), text(pod, "/metadata/name"));
        found.filter(|found| found["metadata"]["uid"] == pod["metadata"]["uid"])
    }

    /// The kubelet says something of a Pod.
    pub(super) fn say(&self, pod: &Value, status: &Value) {
        let at = (pod["metadata"]["namespace"].as_str(), text(pod, "/metadata/name"), Some("status"));
        let _ = self.infra.merge("kubelet", "pods", at, json!({"status": status}));
    }

    /// The container of a Pod's image runs, and isn't ready.
    fn restart(&self, pod: &Value) {
        let conditions = set_conditions(pod, &READY.map(|(kind, _)| (kind, false)));
        self.say(
            pod,
            &json!({"containerStatuses": next_containers(pod), "conditions": conditions,
            "observedGeneration": pod["metadata"]["generation"]}),
        );
    }
}
