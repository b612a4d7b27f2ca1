//! Numbers that rules compare by `Gt` and `Lt`: labels of workloads, and those of DPUs.

use serde_json::{Value, json};

use super::History;
use crate::world::SLOT;

/// Values of a workload's label, of which some are no integers of 64 bits; `None` where it has none.
const LEVELS: [Option<&str>; 6] =
    [None, Some("x"), Some("3"), Some("07"), Some("12"), Some("9223372036854775808")];

/// What they are compared with.
const BOUNDS: [&str; 4] = ["-1", "3", "7", "11"];

impl History {
    /// A value of the label `level` for a workload; `null` for none.
    pub(super) fn level(&self) -> Value {
        json!(self.pick(&LEVELS).flatten())
    }

    /// An expression of a rule that compares this label.
    pub(super) fn comparison(&self) -> Value {
        let operator = ["Gt", "Lt"][usize::from(self.below(2) == 1)];
        json!({"key": ".state.extra.labels.level", "operator": operator, "values": [self.pick(&BOUNDS)]})
    }

    /// The spec of a template gets terms of which one fits to each DPU, whatever its number.
    pub(super) fn compare_slots(&self, pod: &mut Value) {
        let bound = 1 + self.below(9);
        let term = |operator: &str, than: u64| json!({"matchExpressions": [{"key": SLOT, "operator": operator, "values": [than.to_string()]}]});
        pod["affinity"] = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
            {"nodeSelectorTerms": [term("Gt", bound - 1), term("Lt", bound)]}}});
    }
}
