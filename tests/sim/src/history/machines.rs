//! Guests of a Machine: users create several at once, end them and delete them; the number of slots changes. The Machine is deleted, and
//! another one of its name is created.

use std::time::Duration;

use outrigger_core::keys;
use serde_json::{Value, json};

use super::History;
use crate::world::{ADMIN, GUESTS, MACHINE, machine, machine_types};

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

    /// The Machine is deleted. Another one of its name is created at once, within a minute, or only by a later event.
    pub(super) fn replace_machine(&self) {
        let machine = machine(1 + self.below(3));
        let infra = self.world.infra.clone();
        if infra.delete(ADMIN, "machines", None, MACHINE).is_err() {
            let _ = infra.create(ADMIN, "machines", machine);
            return;
        }
        let pause = match self.below(3) {
            0 => Duration::ZERO,
            1 => self.random().random.below(Duration::from_secs(60)),
            _ => return,
        };
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            let _ = infra.create(ADMIN, "machines", machine);
        });
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
