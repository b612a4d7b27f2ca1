//! DPUs that have rebooted: the containers of their companions start again. Those of hosts are in [`super::hosts`].

use std::sync::Arc;
use std::time::Duration;

use outrigger_core::keys;
use serde_json::{Value, json};

use super::hosts::{is_true, set_conditions};
use super::kubelet::{NEVER, SLOW};
use super::updates::{READY, is_updating, next_containers};
use super::{World, nodes, text};

/// How long it takes at most until a container that starts again is ready, and one of a slow image.
const STARTS: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(20)];

/// Whether the container of a companion runs the image of its spec, and is ready. One that isn't is somebody else's to start.
fn runs(pod: &Value) -> bool {
    is_true(pod, "ContainersReady")
        && text(pod, "/status/phase") == "Running"
        && !is_updating(pod)
        && pod["metadata"]["labels"][keys::WORKLOAD].is_string()
}

impl World {
    /// The kubelet of a DPU is back after a reboot. It says that the containers of the companions aren't ready, and starts them.
    pub(crate) fn start_dpu(self: &Arc<Self>, name: &str) {
        for pod in nodes::pods_on(&self.infra, name).into_iter().filter(|pod| runs(pod)) {
            let mut status =
                json!({"conditions": set_conditions(&pod, &READY.map(|(kind, _)| (kind, false)))});
            if !pod["status"]["containerStatuses"].is_null() {
                status["containerStatuses"] = next_containers(&pod);
            }
            self.say(&pod, &status);
            let is_slow = text(&pod, "/spec/containers/0/image").starts_with(SLOW);
            let takes = self.environment.random.below(STARTS[usize::from(is_slow)]);
            let world = self.clone();
            tokio::spawn(async move {
                tokio::time::sleep(takes).await;
                nodes::heard(&world.infra, &pod).await;
                let starts = |now: &Value| {
                    text(now, "/status/phase") == "Running"
                        && !is_updating(now)
                        && !text(now, "/spec/containers/0/image").starts_with(NEVER)
                };
                if let Some(now) = world.same(&pod).filter(|now| starts(now)) {
                    world.say(&now, &json!({"conditions": set_conditions(&now, &READY)}));
                }
            });
        }
        nodes::find(&self.infra, name);
    }
}
