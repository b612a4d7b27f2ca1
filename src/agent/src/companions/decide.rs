//! Which conditions a Pod should have: a pure function of the manager's word, of the conditions that it has, and of whether the state
//! has lasted.

use outrigger_api::conditions::Status;
use outrigger_core::ids::RuleName;
use outrigger_core::reason::{Cause, MAX_MESSAGE, NO_COMPANION, READY};
use outrigger_core::workload::MAX_SIZE;
use outrigger_core::{fault, keys};
use outrigger_runtime::pod::Pod;

use super::received::{Companions, Group};
use crate::conditions::Condition;

/// What the agent knows of the companions of a Pod.
#[derive(Debug, Clone, Copy)]
pub(super) enum Knowledge<'a> {
    /// The manager reports it.
    Reported(&'a Companions),
    /// The manager has sent everything, and nothing of this Pod: no rule matches it.
    Absent,
    /// The manager hasn't sent anything of this Pod, and may do so at any moment.
    Unheard,
    /// The manager's last word is about companions for another Node than the Pod's.
    Elsewhere,
    /// The manager receives only that this Pod exists, because its labels and annotations count so much. It doesn't know which rules match.
    TooLarge(usize),
    /// The manager can't be reached, or hasn't sent everything.
    Unreachable,
    /// The manager doesn't have the call, or it doesn't say which Node its word is about, of a Pod that has been on another one.
    Unsupported,
}

/// The conditions of a Pod that the agent owns.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Conditions {
    /// [`keys::COMPANIONS_CONDITION`].
    pub information: Option<Condition>,
    /// [`keys::COMPANIONS_GATE`].
    pub gate: Option<Condition>,
}

impl Conditions {
    /// Those that a Pod has.
    pub(super) fn of(pod: &Pod) -> Self {
        let all = pod.status.as_ref().and_then(|status| status.conditions.as_deref());
        let [information, gate] =
            [keys::COMPANIONS_CONDITION, keys::COMPANIONS_GATE].map(|kind| Condition::find(all, kind));
        Self { information, gate }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.information.is_none() && self.gate.is_none()
    }
}

/// Returns the conditions that have to be written; those that stay as they are, are absent. `gated`: the Pod has the readiness
/// gate. `lasted`: what is wrong has been so for the time of the settings. `awaited`: a rule of this cluster by which the Pod waits
/// for a companion of which the manager says nothing.
pub(super) fn decide(
    knowledge: Knowledge<'_>,
    has: &Conditions,
    gated: bool,
    lasted: bool,
    awaited: Option<&RuleName>,
) -> Conditions {
    let new = |wanted: Option<Condition>, has: &Option<Condition>| {
        // A condition that stays True isn't written again, whatever its reason.
        let stays = |wanted: &Condition| {
            has.as_ref().is_some_and(|has| has == wanted || has.is_true() && wanted.is_true())
        };
        wanted.filter(|wanted| !stays(wanted))
    };
    let gate = if gated { gate(knowledge, has.gate.as_ref(), lasted) } else { None };
    let gate = gate.map(|gate| match awaited {
        // It stays open for a rule that comes later.
        Some(rule)
            if gate.is_true()
                && !has.gate.as_ref().is_some_and(Condition::is_true)
                && !fault("gate-opens-before-the-rule-is-served") =>
        {
            unserved(rule)
        }
        _ => gate,
    });
    Conditions {
        information: new(information(knowledge, has.information.as_ref(), lasted), &has.information),
        gate: new(gate, &has.gate),
    }
}

/// A Pod gets this condition where a rule has an ordering, or once something has been wrong for a while. Then it keeps it: to
/// remove it would be one more write, and would take away since when all is well.
fn information(knowledge: Knowledge<'_>, has: Option<&Condition>, lasted: bool) -> Option<Condition> {
    let wrong = has.is_some_and(|has| !has.is_true());
    match knowledge {
        Knowledge::Reported(Companions { all, ordered, .. }) => {
            let shown = wrong || ordered.total > 0 || all.wrong > 0 && lasted;
            shown.then(|| condition(all))
        }
        Knowledge::Absent => wrong.then(|| condition(&Group::default())),
        Knowledge::Unsupported => wrong.then(|| Condition::of(Status::Unknown, Cause::ManagerTooOld)),
        Knowledge::TooLarge(size) => Some(too_large(size)),
        // The last truth stays.
        Knowledge::Unheard | Knowledge::Elsewhere | Knowledge::Unreachable => None,
    }
}

/// A gate opens only when the manager says that all companions are ready that the workload waits for, and stays as it is while
/// the manager says nothing. One that was opened for another Node closes.
fn gate(knowledge: Knowledge<'_>, has: Option<&Condition>, lasted: bool) -> Option<Condition> {
    let closed = |cause| Some(Condition::of(Status::False, cause));
    match knowledge {
        Knowledge::Reported(companions) => {
            let reported = condition(&companions.ordered);
            Some(if reported.is_true() { reported } else { Condition { status: Status::False, ..reported } })
        }
        Knowledge::Absent => Some(condition(&Group::default())),
        Knowledge::TooLarge(size) => Some(too_large(size)),
        Knowledge::Unsupported if !has.is_some_and(Condition::is_true) => closed(Cause::ManagerTooOld),
        Knowledge::Unreachable if has.is_none() && lasted => closed(Cause::ManagerUnreachable),
        Knowledge::Elsewhere if has.is_some_and(Condition::is_true) => closed(Cause::WorkloadMoved),
        Knowledge::Unheard | Knowledge::Elsewhere | Knowledge::Unreachable | Knowledge::Unsupported => None,
    }
}

/// Returns why the Pod doesn't start yet, as a word and for people; `None` if it may start. `awaited`: a rule of this cluster by which
/// the Pod doesn't start before a companion of which the manager says nothing. Only what the manager says on an open stream lets a
/// Pod start.
pub(super) fn start(knowledge: Knowledge<'_>, awaited: Option<&RuleName>) -> Option<(String, String)> {
    let found = match knowledge {
        Knowledge::Reported(companions) => condition(&companions.start),
        Knowledge::Absent => condition(&Group::default()),
        Knowledge::Elsewhere => Condition::of(Status::False, Cause::WorkloadMoved),
        Knowledge::Unsupported => Condition::of(Status::False, Cause::ManagerTooOld),
        Knowledge::TooLarge(size) => too_large(size),
        Knowledge::Unheard if awaited.is_some() => condition(&Group::default()),
        Knowledge::Unheard | Knowledge::Unreachable => {
            Condition::of(Status::False, Cause::ManagerUnreachable)
        }
    };
    let found = match awaited {
        Some(rule) if found.is_true() && !fault("pod-starts-before-the-rule-is-served") => unserved(rule),
        _ => found,
    };
    (!found.is_true()).then_some((found.reason, found.message))
}

/// The rule exists here, and the manager may not have it yet: an open gate would let the Pod be ready without its companion.
fn unserved(rule: &RuleName) -> Condition {
    let cause = Cause::RuleNotServed;
    Condition::new(Status::False, cause.as_str(), format!("rule {rule}: {}", cause.message()))
}

/// The Pod may have to wait for a companion, and gets none.
fn too_large(size: usize) -> Condition {
    let message = format!(
        "the Pod's labels and annotations count {size} bytes, at most {MAX_SIZE} are sent to the manager: use fewer or shorter ones"
    );
    Condition::new(Status::False, Cause::LimitReached.as_str(), message)
}

fn condition(group: &Group) -> Condition {
    let Some(worst) = &group.worst else {
        return match group.total {
            0 => Condition::new(Status::True, NO_COMPANION, "no rule asks for a companion"),
            1 => Condition::new(Status::True, READY, "the companion is ready"),
            total => Condition::new(Status::True, READY, format!("all {total} companions are ready")),
        };
    };
    let status = if worst.unknown { Status::Unknown } else { Status::False };
    let message = match group.wrong {
        1 => worst.text.to_string(),
        wrong => format!("{} ({wrong} of {} companions aren't ready)", worst.text, group.total),
    };
    Condition::new(
        status,
        worst.reason.as_str(),
        outrigger_core::text::truncate_bytes(&message, MAX_MESSAGE, "..."),
    )
}

#[cfg(test)]
mod tests;
