//! Guests of a Machine: users create several at once, end them and delete them; the number of slots changes.

use outrigger_core::keys;
use serde_json::{Value, json};

use super::History;
use crate::world::{ADMIN, GUESTS, MACHINE, machine_types};

impl History {
    /// Something happens to the guests, or to the number of slots.
    pub(super) fn change_guests(&self) {
        let infra = &self.world.infra;
        let guests = infra.list("pods").into_iter().filter(|pod| pod["metadata"]["namespace"] == GUESTS);
        let guest = self.pick(&guests.collect::<Vec<_>>());
        let name = guest.as_ref().and_then(|guest| guest["metadata"]["name"].as_str()).unwrap_or_default();
        match self.below(8) {
            // Simultaneous ones are what a slot could be given twice to.
            0..4 => (0..=self.below(3)).for_each(|_| self.create_guest()),
            4..6 => _ = infra.delete("user", "pods", Some(GUESTS), name),
            6 => {
                let ended = json!({"status": {"phase": "Succeeded"}});
                let _ = infra.merge("kubelet", "pods", (Some(GUESTS), name, Some("status")), ended);
            }
            _ => {
                let spec = json!({"spec": {"machineTypes": machine_types(1 + self.below(3))}});
                let _ = infra.merge(ADMIN, "machines", (None, MACHINE, None), spec);
            }
        }
    }

    /// A user creates a guest by a request that admission sees.
    fn create_guest(&self) {
        let name = format!("guest-{}", self.below(8));
        let labels =
            json!({keys::MACHINE_GROUP: MACHINE, keys::MACHINE_TYPE: MACHINE, keys::POD_ROLE: keys::GUEST});
        let pod: Value = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": GUESTS, "labels": labels},
            "spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "c", "image": "guest"}]}});
        // Where no slot is left it is refused.
        self.request_pod(GUESTS, &pod);
    }
}
