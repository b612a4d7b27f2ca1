//! Kubelets whose Pods are resized: what the cpu of a container says decides how a resize ends.

use std::sync::Arc;
use std::time::Duration;

use outrigger_core::keys;
use serde_json::{Value, json};

use super::hosts::{is_true, set_conditions};
use super::{World, at, nodes, text};

/// An amount of cpu for which a resize has to wait for room.
pub(crate) const DEFERRED: &str = "5";
/// One that no DPU has.
pub(crate) const INFEASIBLE: &str = "9";

/// The condition of a resize that waits or is impossible, and of one that is under way (KEP-1287).
const PENDING: &str = "PodResizePending";
/// See [`PENDING`].
const IN_PROGRESS: &str = "PodResizeInProgress";

/// How long it takes at most until a kubelet looks at other amounts, until there is room for deferred ones, and until it has made them.
const LOOKS: Duration = Duration::from_secs(2);
/// See [`LOOKS`].
const WAITS: Duration = Duration::from_secs(60);
/// See [`LOOKS`].
const TAKES: Duration = Duration::from_secs(5);

/// Of so many resizes one restarts the container.
const RESTARTS: u64 = 4;

/// How much cpu a Pod asks for; empty where it doesn't say that.
pub(crate) fn cpu(pod: &Value) -> &str {
    text(pod, "/spec/containers/0/resources/requests/cpu")
}

/// Whether a Pod has a condition of a resize that is about its present amounts.
fn says(pod: &Value, kind: &str, reason: Option<&str>) -> bool {
    let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|condition| {
        condition["type"] == kind
            && condition["observedGeneration"] == pod["metadata"]["generation"]
            && reason.is_none_or(|reason| condition["reason"] == reason)
    })
}

/// Whether the kubelet has said that a Pod can't have its amounts.
pub(crate) fn is_infeasible(pod: &Value) -> bool {
    says(pod, PENDING, Some("Infeasible"))
}

/// Whether a Pod is being resized, which a Pod isn't that has to wait for that.
pub(crate) fn is_resizing(pod: &Value) -> bool {
    !says(pod, PENDING, None) && (says(pod, IN_PROGRESS, None) || is_unseen(pod))
}

/// Whether its kubelet hasn't looked at a Pod's amounts.
fn is_unseen(pod: &Value) -> bool {
    let seen = at(pod, "/status/observedGeneration").and_then(Value::as_i64);
    seen.is_some_and(|seen| seen < pod["metadata"]["generation"].as_i64().unwrap_or_default())
}

impl World {
    /// The kubelets of DPUs look at companions that have got other amounts.
    pub(super) fn run_resizes(self: &Arc<Self>) {
        for pod in self.infra.list("pods") {
            if !is_unsettled(&pod) || !self.asking.lock().insert(waits(&pod)) {
                continue;
            }
            let world = self.clone();
            tokio::spawn(async move {
                let mut known = pod;
                while let Some(next) = world.resize_step(&known).await {
                    known = next;
                }
                world.asking.lock().remove(&waits(&known));
            });
        }
    }

    /// The next step of a resize. Returns the Pod as it is then; `None` where there is nothing more to do.
    async fn resize_step(&self, pod: &Value) -> Option<Arc<Value>> {
        let random = &self.environment.random;
        let longest = if says(pod, PENDING, None) {
            WAITS
        } else if says(pod, IN_PROGRESS, None) {
            TAKES
        } else {
            LOOKS
        };
        tokio::time::sleep(random.below(longest)).await;
        nodes::heard(&self.infra, pod).await;
        let (namespace, name) = (pod["metadata"]["namespace"].as_str(), text(pod, "/metadata/name"));
        let now = self.infra.get("pods", namespace, name);
        let now = now.filter(|now| now["metadata"]["uid"] == pod["metadata"]["uid"] && is_unsettled(now))?;
        // What has changed meanwhile is looked at from the beginning.
        if now["metadata"]["generation"] != pod["metadata"]["generation"] {
            return Some(now);
        }
        let mut conditions = set_conditions(&now, &[]);
        if let Some(conditions) = conditions.as_array_mut() {
            conditions.retain(|one| one["type"] != PENDING && one["type"] != IN_PROGRESS);
            conditions.extend(self.comes_next(&now));
        }
        let generation = &now["metadata"]["generation"];
        let status = json!({"observedGeneration": generation, "conditions": conditions});
        let mut written = json!({"status": status});
        if says(&now, IN_PROGRESS, None) && !is_true(&now, "Ready") {
            let ready = set_conditions(&written, &[("Ready", true), ("ContainersReady", true)]);
            written["status"]["conditions"] = ready;
        } else if restarts(&written, random.seed()) {
            let unready = set_conditions(&written, &[("Ready", false), ("ContainersReady", false)]);
            written["status"]["conditions"] = unready;
        }
        let _ = self.infra.merge("kubelet", "pods", (namespace, name, Some("status")), written);
        self.infra.get("pods", namespace, name).filter(|now| is_unsettled(now))
    }

    /// The condition that a Pod gets next.
    fn comes_next(&self, pod: &Value) -> Option<Value> {
        let condition = |kind: &str, reason: &str| {
            json!({"type": kind, "status": "True", "reason": reason, "message": "by the simulation",
                "observedGeneration": pod["metadata"]["generation"]})
        };
        if says(pod, IN_PROGRESS, None) {
            return None;
        }
        Some(match cpu(pod) {
            INFEASIBLE => condition(PENDING, "Infeasible"),
            DEFERRED if !says(pod, PENDING, None) => condition(PENDING, "Deferred"),
            _ => condition(IN_PROGRESS, ""),
        })
    }
}

/// Whether the container of a Pod that gets these conditions is restarted for the resize.
fn restarts(written: &Value, number: u64) -> bool {
    is_true(written, IN_PROGRESS) && number.is_multiple_of(RESTARTS)
}

/// Whether a kubelet has something to do for the amounts of a companion.
fn is_unsettled(pod: &Value) -> bool {
    pod["metadata"]["labels"][keys::WORKLOAD].is_string()
        && pod["metadata"]["deletionTimestamp"].is_null()
        && text(pod, "/status/phase") == "Running"
        && (is_unseen(pod) || says(pod, IN_PROGRESS, None) || says(pod, PENDING, Some("Deferred")))
}

/// What of a Pod's kubelet is under way, as [`World::asking`] names it.
fn waits(pod: &Value) -> String {
    format!("resizes {}", text(pod, "/metadata/uid"))
}
