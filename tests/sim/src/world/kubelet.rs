//! Kubelets: Pods that are bound run, at once, after a while or never, as the images of their templates say.

use std::sync::Arc;
use std::time::Duration;

use outrigger_core::keys;
use serde_json::{Value, json};

use super::hosts::{is_true, set_conditions};
use super::{Scope, World, namespace_of, nodes, text};
use crate::model::{Model, Verb};
use crate::world::TENANTS;

/// What the images of templates begin with whose Pods take a while to be Ready, never are, or are refused.
pub(crate) const SLOW: &str = "slow-";
/// See [`SLOW`].
pub(crate) const NEVER: &str = "never-";
/// See [`SLOW`].
pub(crate) const REFUSED: &str = "refused-";

/// How long a slow one takes at most.
const TAKES: Duration = Duration::from_secs(20);

/// The grace period of templates whose Pods use it.
pub(crate) const LONG_GRACE: u64 = 12;

impl World {
    /// Kubelets: Pods that are bound run.
    pub(super) fn run_pods(self: &Arc<Self>, model: &Model) {
        for pod in model.list("pods") {
            let starts = text(&pod, "/status/phase") == "Pending"
                && pod["spec"]["nodeName"].is_string()
                && pod["metadata"]["deletionTimestamp"].is_null()
                && !nodes::is_on_lost(model, &pod);
            if !starts {
                continue;
            }
            let image = text(&pod, "/spec/containers/0/image");
            if image.starts_with(SLOW) {
                self.start_later(model, &pod);
            } else {
                self.run(model, &pod, !image.starts_with(NEVER));
            }
        }
    }

    /// Whether a companion that is being deleted takes a while to end: its containers use the time that they have.
    pub(super) fn ends_later(self: &Arc<Self>, pod: &Value) -> bool {
        let grace = pod["metadata"]["deletionGracePeriodSeconds"].as_u64().unwrap_or_default();
        if grace < LONG_GRACE || !pod["metadata"]["labels"][keys::WORKLOAD].is_string() {
            return false;
        }
        let uid = text(pod, "/metadata/uid").to_owned();
        let waits = format!("ends {uid}");
        if self.asking.lock().insert(waits.clone()) {
            let world = self.clone();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_secs(grace)).await;
                let ends =
                    |pod: &Value, node: &str| world.has_kubelet(node) && text(pod, "/metadata/uid") == uid;
                world.infra.finish_deletions(ends);
                world.asking.lock().remove(&waits);
            });
        }
        true
    }

    /// A cluster is restored: companions that were restarting in the state that comes back have been Ready since, and nobody would say it
    /// again.
    pub(crate) fn recover(&self) {
        let Scope { drains, updates, reboots, .. } = self.scope;
        let may_restart = drains || updates || reboots;
        for pod in self.infra.list("pods").iter().filter(|_| may_restart) {
            let is_companion = pod["metadata"]["labels"][keys::WORKLOAD].is_string();
            let runs = text(pod, "/status/phase") == "Running" && !is_true(pod, "Ready");
            if is_companion && runs && !text(pod, "/spec/containers/0/image").starts_with(NEVER) {
                self.run(&self.infra, pod, true);
            }
        }
    }

    fn start_later(self: &Arc<Self>, model: &Model, pod: &Arc<Value>) {
        let uid = text(pod, "/metadata/uid").to_owned();
        if !self.asking.lock().insert(uid.clone()) {
            return;
        }
        let takes = self.environment.random.below(TAKES);
        let (world, model, pod) = (self.clone(), model.clone(), pod.clone());
        tokio::spawn(async move {
            tokio::time::sleep(takes).await;
            nodes::heard(&model, &pod).await;
            let namespace = pod["metadata"]["namespace"].as_str();
            if let Some(now) = model.get("pods", namespace, text(&pod, "/metadata/name"))
                && text(&now, "/metadata/uid") == uid
                && text(&now, "/status/phase") == "Pending"
                && now["metadata"]["deletionTimestamp"].is_null()
            {
                world.run(&model, &now, true);
            }
            world.asking.lock().remove(&uid);
        });
    }

    /// A policy of the infrastructure cluster refuses some images of companions, also in dry runs.
    pub(super) fn refuse_templates(&self) {
        self.infra.admit(|attempt| {
            let namespace = attempt.info.namespace.as_deref().unwrap_or_default();
            let is_companion = attempt.kind.plural == "pods"
                && attempt.info.verb == Verb::Create
                && (namespace == keys::ADMIN_NAMESPACE
                    || TENANTS.iter().any(|(id, _)| namespace == namespace_of(id)));
            if is_companion && text(&attempt.object, "/spec/containers/0/image").starts_with(REFUSED) {
                return Err((
                    422,
                    "admission policy images denied the request: the image isn't allowed".to_owned(),
                ));
            }
            Ok(attempt.object.clone())
        });
    }
}

impl World {
    /// The containers of a Pod run.
    fn run(&self, model: &Model, pod: &Value, ready: bool) {
        let at = (pod["metadata"]["namespace"].as_str(), text(pod, "/metadata/name"), Some("status"));
        let conditions = if ready {
            json!(["Ready", "ContainersReady"].map(|kind| json!({"type": kind, "status": "True"})))
        } else {
            set_conditions(pod, &[("Ready", false), ("ContainersReady", false)])
        };
        let mut status = json!({"phase": "Running", "conditions": conditions});
        if !super::resizes::cpu(pod).is_empty() || self.scope.updates {
            status["observedGeneration"] = pod["metadata"]["generation"].clone();
        }
        if self.scope.updates && pod["metadata"]["labels"][keys::WORKLOAD].is_string() {
            status["containerStatuses"] = super::updates::containers(pod, 0);
        }
        let _ = model.merge("kubelet", "pods", at, json!({"status": status}));
    }
}
