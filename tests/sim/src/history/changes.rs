//! What changes one thing only, or takes many companions down at once: templates of rules, PodDisruptionBudgets, DPUs that are drained or
//! restarted, and allocations that the scheduler gives up.

use std::sync::Arc;
use std::time::Duration;

use outrigger_core::gate::Hold;
use outrigger_core::keys;
use serde_json::{Value, json};

use super::{APPS, History};
use crate::model::Model;
use crate::world::hosts::{allocated_to, free_devices, set_conditions};
use crate::world::kubelet::{NEVER, SLOW};
use crate::world::nodes;
use crate::world::resizes::{DEFERRED, INFEASIBLE};
use crate::world::{
    ADMIN, DEVICE_CLASS, RULES_NAMESPACE, SCHEDULER, SHOP, Scope, TENANTS, claim_of, namespace_of, text,
};

/// How long a DPU takes to restart at most.
const RESTARTS: Duration = Duration::from_secs(30);

/// How long nothing else happens after a change in calm, at most.
const CALM_FOR: Duration = Duration::from_secs(20);

/// Devices that no claim has and that aren't in this pool.
fn free_elsewhere(model: &Model, pool: &str) -> Vec<(String, String)> {
    let mut free = free_devices(model, Hold::Binding);
    free.retain(|(other, _)| other != pool);
    free
}

impl History {
    /// A rule gets another image or other devices, and stays as it is otherwise. So its companions are replaced one after the other.
    pub(super) fn change_one_thing(&mut self, tenant: &str) {
        let (infra, of_tenant) = (self.world.infra.clone(), self.world.tenants[tenant].clone());
        let (model, user, plural, namespace) = match self.below(4) {
            0 => (infra, ADMIN, "adminworkloadrules", keys::ADMIN_NAMESPACE),
            _ => (of_tenant, "user", "workloadrules", RULES_NAMESPACE),
        };
        let Some(rule) = self.pick(&model.list(plural)) else { return };
        let change = if self.below(4) == 0 {
            let count = self.below(3);
            let devices = (count > 0).then(|| {
                json!([{"name": "engine", "spec": {"devices": {"requests": [
                    {"name": "engine", "exactly": {"deviceClassName": DEVICE_CLASS, "count": count}}]}}}])
            });
            json!({"deviceClaims": devices})
        } else {
            self.images += 1;
            let kind = if self.world.scope.starts && self.below(2) == 0 { SLOW } else { "image-" };
            let image = format!("{kind}{}", self.images);
            json!({"template": {"spec": {"containers": [{"name": "c", "image": image}]}}})
        };
        let at = (Some(namespace), text(&rule, "/metadata/name"), None);
        let _ = model.merge(user, plural, at, json!({"spec": change}));
    }

    /// Amounts of cpu and memory that no rule has had before. Another class of quality of service, or an amount less, can't be had in place.
    pub(super) fn amounts(&mut self) -> Value {
        self.memory += 1;
        let cpu = match self.below(16) {
            0 => INFEASIBLE,
            1..4 => DEFERRED,
            number => ["1", "2"][usize::from(number % 2 == 0)],
        };
        let amounts = json!({"cpu": cpu, "memory": format!("{}Mi", self.memory)});
        match self.below(12) {
            0 => json!(null),
            1 => json!({"limits": amounts}),
            2 => json!({"requests": amounts, "limits": {"memory": format!("{}Mi", self.memory)}}),
            _ => json!({"requests": amounts}),
        }
    }

    /// The rule of one of the companions gets other amounts of cpu and memory, and stays as it is otherwise.
    pub(super) fn change_amounts(&mut self) {
        self.change_container("resources", Self::amounts);
    }

    /// The same with another image.
    pub(super) fn change_image(&mut self) {
        self.change_container("image", |this| {
            this.images += 1;
            let kind = this.pick(&["image-", "image-", "image-", SLOW, SLOW, NEVER]).unwrap_or_default();
            json!(format!("{kind}{}", this.images))
        });
    }

    /// After a rest, while nothing else happens, perhaps a rule gets other amounts or another image. What is done in place for that is
    /// judged fully then: in trouble much is excused.
    pub(super) async fn change_in_calm(&mut self) {
        let Scope { resizes, updates, .. } = self.world.scope;
        if !(resizes || updates) || self.below(2) == 0 {
            return;
        }
        if updates && (!resizes || self.below(2) == 0) {
            self.change_image();
        } else {
            self.change_amounts();
        }
        tokio::time::sleep(self.random().random.below(CALM_FOR)).await;
    }

    /// The rule of one of the companions gets another value in a field of its container, and stays as it is otherwise.
    fn change_container(&mut self, field: &str, value: impl FnOnce(&mut Self) -> Value) {
        let Some(companion) = self.companion() else { return };
        let of_platform = companion["metadata"]["annotations"][keys::ADMIN_RULE].as_str();
        let own = TENANTS
            .into_iter()
            .find(|(id, _)| text(&companion, "/metadata/namespace") == namespace_of(id))
            .zip(companion["metadata"]["labels"][keys::RULE].as_str());
        let (model, user, plural, namespace, name) = match (of_platform, own) {
            (Some(name), _) => (&self.world.infra, ADMIN, "adminworkloadrules", keys::ADMIN_NAMESPACE, name),
            (None, Some(((id, _), name))) => {
                (&self.world.tenants[id], "user", "workloadrules", RULES_NAMESPACE, name)
            }
            (None, None) => return,
        };
        let Some(rule) = model.get(plural, Some(namespace), name) else { return };
        let model = model.clone();
        let mut container = rule["spec"]["template"]["spec"]["containers"][0].clone();
        container[field] = value(self);
        let change = json!({"template": {"spec": {"containers": [container]}}});
        let at = (Some(namespace), text(&rule, "/metadata/name"), None);
        let _ = model.merge(user, plural, at, json!({"spec": change}));
    }

    /// A user creates, changes or deletes a PodDisruptionBudget.
    pub(super) fn change_budget(&self, tenant: &str) {
        let model = &self.world.tenants[tenant];
        let app = self.below(APPS);
        let (name, count) = (format!("budget-{app}"), self.below(3));
        let (least, most) =
            if self.below(2) == 0 { (json!(count), json!(null)) } else { (json!(null), json!(count)) };
        let spec = json!({"minAvailable": least, "maxUnavailable": most});
        if self.below(3) == 0 {
            let _ = model.delete("user", "poddisruptionbudgets", Some(SHOP), &name);
        } else if model
            .merge("user", "poddisruptionbudgets", (Some(SHOP), &name, None), json!({"spec": spec}))
            .is_err()
        {
            let mut spec = spec;
            if let Some(spec) = spec.as_object_mut() {
                spec.retain(|_, value| !value.is_null());
            }
            spec["selector"] = json!({"matchLabels": {"app": format!("app-{app}")}});
            let budget = json!({"metadata": {"name": name, "namespace": SHOP}, "spec": spec});
            let _ = model.create("user", "poddisruptionbudgets", budget);
        }
    }

    /// The companions on one of the DPUs.
    pub(super) fn on_a_dpu(&self) -> Vec<Arc<Value>> {
        let mut pods = self.world.infra.list("pods");
        pods.retain(|pod| {
            pod["metadata"]["labels"][keys::WORKLOAD].is_string() && pod["spec"]["nodeName"].is_string()
        });
        let Some(chosen) = self.pick(&pods) else { return Vec::new() };
        pods.retain(|pod| pod["spec"]["nodeName"] == chosen["spec"]["nodeName"]);
        pods
    }

    /// An administrator deletes all companions on a DPU, or drains it.
    pub(super) fn drain_dpu(&self) {
        if self.world.scope.evictions {
            return self.evict_dpu();
        }
        for pod in self.on_a_dpu() {
            let namespace = pod["metadata"]["namespace"].as_str();
            let _ = self.world.infra.delete(ADMIN, "pods", namespace, text(&pod, "/metadata/name"));
        }
    }

    /// A DPU restarts: the companions on it aren't ready for a while.
    pub(super) fn restart_dpu(&self) {
        let takes = self.random().random.below(RESTARTS);
        let mut pods = self.on_a_dpu();
        let runs = |pod: &Value| {
            text(pod, "/status/phase") == "Running"
                && !text(pod, "/spec/containers/0/image").starts_with(NEVER)
        };
        pods.retain(|pod| runs(pod) && !nodes::is_on_lost(&self.world.infra, pod));
        let infra = self.world.infra.clone();
        let set = move |pod: &Value, ready: bool| {
            let at = (pod["metadata"]["namespace"].as_str(), text(pod, "/metadata/name"), Some("status"));
            let conditions = set_conditions(pod, &[("Ready", ready), ("ContainersReady", ready)]);
            let _ = infra.merge("kubelet", "pods", at, json!({"status": {"conditions": conditions}}));
        };
        pods.iter().for_each(|pod| set(pod, false));
        let infra = self.world.infra.clone();
        tokio::spawn(async move {
            tokio::time::sleep(takes).await;
            for pod in pods {
                nodes::heard(&infra, &pod).await;
                let now =
                    infra.get("pods", pod["metadata"]["namespace"].as_str(), text(&pod, "/metadata/name"));
                let same = now.filter(|now| now["metadata"]["uid"] == pod["metadata"]["uid"] && runs(now));
                if let Some(now) = same {
                    set(&now, true);
                }
            }
        });
    }

    /// The scheduler of a tenant's cluster waits no longer until a Pod can be bound, and allocates another device to it.
    pub(super) fn give_up_allocation(&self, tenant: &str) {
        let model = &self.world.tenants[tenant];
        let claim = |pod: &Value| {
            let claim = model.get("resourceclaims", Some(SHOP), claim_of(pod, keys::COMPANIONS_CLAIM)?)?;
            allocated_to(&claim).is_some().then_some(claim)
        };
        let waiting = model.list("pods").into_iter().filter(|pod| !pod["spec"]["nodeName"].is_string());
        let claims: Vec<_> = waiting.filter_map(|pod| claim(&pod)).collect();
        if let Some(claim) = self.pick(&claims) {
            let at = (Some(SHOP), text(&claim, "/metadata/name"), Some("status"));
            let none = json!({"status": {"allocation": null, "reservedFor": null, "devices": null}});
            let _ = model.merge(SCHEDULER, "resourceclaims", at, none);
            let other = allocated_to(&claim).filter(|_| self.below(2) == 0);
            let other = other.and_then(|pool| self.pick(&free_elsewhere(model, pool)));
            if let Some((pool, device)) = other {
                let mut allocation = claim["status"]["allocation"].clone();
                let result = &mut allocation["devices"]["results"][0];
                (result["pool"], result["device"]) = (json!(pool), json!(device));
                let reserved = &claim["status"]["reservedFor"];
                let status = json!({"status": {"allocation": allocation, "reservedFor": reserved}});
                let _ = model.merge(SCHEDULER, "resourceclaims", at, status);
            }
        }
    }
}
