//! The Nodes of DPUs: there is one in each host, or there are two, of which administrators label some as primary.

use outrigger_core::keys;
use serde_json::{Value, json};

use super::{ADMIN, World, text};
use crate::process::pick;

/// The label by which an administrator numbers DPUs.
pub const SLOT: &str = "example.com/slot";

/// The Node of the DPU in a host, as it registers: with either of the labels that name hosts.
pub fn dpu(host: &str) -> Value {
    let is_even = host.bytes().fold(0, u8::wrapping_add) % 2 == 0;
    let label = if is_even { keys::DPU_NODE_NAME } else { keys::DPU_HOST };
    json!({"metadata": {"name": format!("dpu-{host}"), "labels": {label: host}}})
}

impl World {
    /// Whether hosts have two DPUs.
    pub fn has_second_dpus(&self) -> bool {
        self.scope.primaries || self.scope.all_dpus
    }

    /// The Nodes of the DPUs in a host, as they register. The second one has the label that the first one doesn't have.
    pub fn dpus(&self, host: &str) -> Vec<Value> {
        let first = dpu(host);
        let second = self.has_second_dpus().then(|| {
            let has_former = first["metadata"]["labels"][keys::DPU_HOST].is_string();
            let label = if has_former { keys::DPU_NODE_NAME } else { keys::DPU_HOST };
            json!({"metadata": {"name": format!("dpu-{host}-second"), "labels": {label: host}}})
        });
        std::iter::once(first).chain(second).collect()
    }

    /// Those of the DPUs in a host that are primary are these from now on, by their numbers.
    pub fn set_primary(&self, host: &str, is_primary: impl Fn(usize) -> bool) {
        for (number, node) in self.dpus(host).iter().enumerate() {
            let label = json!({keys::PRIMARY: is_primary(number).then_some("true")});
            let at = (None, text(node, "/metadata/name"), None);
            let _ = self.infra.merge(ADMIN, "nodes", at, json!({"metadata": {"labels": label}}));
        }
    }

    /// A DPU that registers gets its number, where rules compare these.
    pub(super) fn number(&self, node: &Value) {
        if self.scope.numbers {
            let name = text(node, "/metadata/name");
            let slot = name.bytes().fold(0, u8::wrapping_add) % 10;
            let labels = json!({"metadata": {"labels": {SLOT: slot.to_string()}}});
            let _ = self.infra.merge(ADMIN, "nodes", (None, name, None), labels);
        }
    }

    /// The Node on which the scheduler puts a Pod: the first one that it may be on. Where a host has two DPUs, any of these.
    pub(super) fn pick_of<T: Clone>(&self, mut all: impl Iterator<Item = T>) -> Option<T> {
        if self.has_second_dpus() {
            pick(&self.environment.random, &all.collect::<Vec<_>>()).cloned()
        } else {
            all.next()
        }
    }
}
