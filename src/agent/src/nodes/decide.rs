//! What a Node should have: a pure function of the manager's word, of what the Node has, and of the switches.

use outrigger_api::conditions::Status;
use outrigger_core::keys;
use outrigger_core::reason::{Cause, READY};
use outrigger_runtime::node::Node;
use serde_json::{Value, json};

use crate::conditions::Condition;

/// What the agent knows of the DPU of a Node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Knowledge {
    /// The manager reports it: why the DPU takes no companions; `None` if it does.
    Reported(Option<Cause>),
    /// The manager has sent all hosts, and this Node is none of them.
    Absent,
    /// The manager can't be reached, or hasn't sent all hosts.
    Unknown,
}

/// What a Node has of what the agent reads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Marks {
    /// [`keys::DPU_READY`].
    pub condition: Option<Condition>,
    /// All of its taints, as they are stored.
    pub taints: Vec<Value>,
}

/// What has to be written; `None` for what stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Change {
    /// The condition; the inner `None` removes it.
    pub condition: Option<Option<Condition>>,
    /// Whether the taint should be there.
    pub taint: Option<bool>,
}

impl Change {
    pub(super) fn is_empty(&self) -> bool {
        self.condition.is_none() && self.taint.is_none()
    }
}

/// The condition of a Node whose DPU takes no companions for this cause; `None` if it does.
fn condition(cause: Option<Cause>) -> Condition {
    match cause {
        None => Condition::new(Status::True, READY, "the host's DPU takes companions"),
        Some(cause) if cause.is_reported() => Condition::of(Status::False, cause),
        // A cause that isn't for tenants would come from a manager that is wrong.
        Some(_) => Condition::of(Status::False, Cause::Unknown),
    }
}

impl Marks {
    pub(super) fn of(node: &Node) -> Self {
        let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref());
        let condition = Condition::find(conditions, keys::DPU_READY);
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
        Self { condition, taints }
    }

    fn is_tainted(&self) -> bool {
        self.taints.iter().any(is_ours)
    }

    /// Returns the JSON patch that adds or removes the taint. It fails when the Node or its taints aren't those of `self`, so that
    /// taints that others add meanwhile are never lost.
    pub(super) fn patch(&self, uid: &str, tainted: bool) -> Value {
        let stored = if self.taints.is_empty() { Value::Null } else { json!(self.taints) };
        let mut wanted: Vec<&Value> = self.taints.iter().filter(|taint| !is_ours(taint)).collect();
        let ours = json!({"key": keys::DPU_NOT_READY, "effect": "NoSchedule"});
        if tainted {
            wanted.push(&ours);
        }
        json!([
            {"op": "test", "path": "/metadata/uid", "value": uid},
            {"op": "test", "path": "/spec/taints", "value": stored},
            {"op": "add", "path": "/spec/taints", "value": wanted},
        ])
    }
}

/// A taint with this key that the agent didn't write has another effect or a value, and stays.
fn is_ours(taint: &Value) -> bool {
    let is = |field: &str, value: &str| taint.get(field).and_then(Value::as_str) == Some(value);
    is("key", keys::DPU_NOT_READY)
        && is("effect", "NoSchedule")
        && taint.get("value").and_then(Value::as_str).is_none_or(str::is_empty)
}

/// Returns what has to be written. `taints`: the tenant wants the taint.
pub(super) fn decide(knowledge: Knowledge, has: &Marks, taints: bool) -> Change {
    let condition = match knowledge {
        Knowledge::Reported(cause) => Some(Some(condition(cause))),
        Knowledge::Absent => Some(None),
        // The last truth stays.
        Knowledge::Unknown => None,
    };
    let taint = match knowledge {
        Knowledge::Reported(cause) => Some(taints && cause.is_some()),
        Knowledge::Absent => Some(false),
        // A taint from before the switch was turned off.
        Knowledge::Unknown if !taints => Some(false),
        Knowledge::Unknown => None,
    };
    Change {
        condition: condition.filter(|wanted| *wanted != has.condition),
        taint: taint.filter(|wanted| *wanted != has.is_tainted()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Knowledge; 4] = [
        Knowledge::Reported(None),
        Knowledge::Reported(Some(Cause::DpuNotReady)),
        Knowledge::Absent,
        Knowledge::Unknown,
    ];

    fn ours() -> Value {
        json!({"key": keys::DPU_NOT_READY, "effect": "NoSchedule"})
    }

    fn apply(has: &Marks, change: &Change) -> Marks {
        let mut now = has.clone();
        if let Some(condition) = &change.condition {
            now.condition.clone_from(condition);
        }
        if let Some(tainted) = change.taint {
            let patch = has.patch("u", tainted);
            now.taints = serde_json::from_value(patch[2]["value"].clone()).unwrap();
        }
        now
    }

    #[test]
    fn what_is_written_is_written_once() {
        let foreign = json!({"key": "example.com/other", "effect": "NoExecute"});
        let condition = condition(Some(Cause::NoDpu));
        for taints in [vec![], vec![foreign.clone()], vec![ours()], vec![foreign.clone(), ours()]] {
            for condition in [None, Some(condition.clone())] {
                let has = Marks { condition, taints: taints.clone() };
                for (knowledge, switch) in ALL.iter().flat_map(|k| [(*k, true), (*k, false)]) {
                    let then = apply(&has, &decide(knowledge, &has, switch));
                    assert!(decide(knowledge, &then, switch).is_empty(), "{knowledge:?} {switch} {then:?}");
                    let others = |marks: &Marks| marks.taints.contains(&foreign);
                    assert_eq!(others(&has), others(&then), "taints of others stay");
                }
            }
        }
    }

    #[test]
    fn a_failed_dpu_is_reported_and_a_silent_manager_changes_nothing() {
        let bare = Marks::default();
        let failed = decide(Knowledge::Reported(Some(Cause::DpuNotReady)), &bare, true);
        let condition = failed.condition.clone().flatten().unwrap();
        assert_eq!((condition.status, &*condition.reason), (Status::False, "DPUNotReady"));
        assert_eq!(failed.taint, Some(true));
        assert_eq!(decide(Knowledge::Reported(Some(Cause::DpuNotReady)), &bare, false).taint, None);
        let marked = apply(&bare, &failed);
        assert!(decide(Knowledge::Unknown, &marked, true).is_empty());
        // Without the switch the taint goes, whatever the manager says.
        for knowledge in ALL {
            assert_eq!(decide(knowledge, &marked, false).taint, Some(false));
        }
        assert_eq!(
            decide(Knowledge::Absent, &marked, true),
            Change { condition: Some(None), taint: Some(false) }
        );
        assert!(decide(Knowledge::Absent, &bare, true).is_empty(), "a Node without a DPU has nothing");
    }

    #[test]
    fn causes_that_tenants_do_not_hear_are_not_written() {
        assert_eq!(condition(Some(Cause::HostConflict)).reason, "Unknown");
    }

    #[test]
    fn a_taint_of_the_same_key_that_somebody_else_set_stays() {
        let evicts = json!({"key": keys::DPU_NOT_READY, "effect": "NoExecute"});
        let valued = json!({"key": keys::DPU_NOT_READY, "effect": "NoSchedule", "value": "x"});
        let has = Marks { condition: None, taints: vec![evicts, valued] };
        assert!(decide(Knowledge::Absent, &has, true).is_empty());
    }

    #[test]
    fn a_patch_holds_what_it_was_computed_from() {
        let foreign = json!({"key": "a", "effect": "NoSchedule"});
        let bare = Marks::default().patch("u", true);
        assert_eq!(bare[1], json!({"op": "test", "path": "/spec/taints", "value": null}));
        let more = Marks { taints: vec![ours(), foreign.clone()], condition: None }.patch("u", false);
        assert_eq!(more[0]["value"], "u");
        assert_eq!(more[1]["value"], json!([ours(), foreign]));
        assert_eq!(more[2]["value"], json!([foreign]));
    }
}
