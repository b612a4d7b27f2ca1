//! A rule's status, computed from what is known.

use std::fmt::Write;

use jiff::Timestamp;
use outrigger_api::WorkloadRuleStatus;
use outrigger_api::conditions::{Status, condition, merge};
use outrigger_core::ids::RuleName;

use crate::state::{Inner, RuleEntry};

/// The status that a rule should have now. Transition times come from the one it has.
pub(super) fn compute(
    name: &RuleName,
    entry: &RuleEntry,
    inner: &Inner,
    now: Timestamp,
) -> WorkloadRuleStatus {
    let matched = i64::try_from(inner.index.matched(name)).unwrap_or(i64::MAX);
    let counts = inner.companions.counts(name);
    let accepted = entry.errors.is_empty();
    let condition = |kind, (status, reason, message): Told| {
        condition(kind, status, reason, &message, entry.generation, now)
    };
    let conditions = vec![
        condition("Accepted", accepted_condition(entry)),
        condition("Synced", synced_condition(inner)),
        condition("Matched", matched_condition(accepted, matched, inner)),
        condition("Ready", ready_condition(name, accepted, matched, counts.ready, inner)),
    ];
    WorkloadRuleStatus {
        observed_generation: Some(entry.generation),
        matched: Some(matched),
        created: Some(counts.created),
        ready: Some(counts.ready),
        sync_result: entry.status.sync_result.clone(),
        conditions: merge(&entry.status.conditions, conditions),
    }
}

/// Status, reason and message of a condition.
type Told = (Status, &'static str, String);

fn accepted_condition(entry: &RuleEntry) -> Told {
    if entry.errors.is_empty() {
        return (Status::True, "Valid", "the rule is served".to_owned());
    }
    let mut message = String::from("companions stay as they are until this is mended: ");
    for (i, error) in entry.errors.iter().enumerate() {
        let _ = write!(message, "{}{error}", if i == 0 { "" } else { "; " });
    }
    (Status::False, "Invalid", message)
}

fn synced_condition(inner: &Inner) -> Told {
    let stream = &inner.stream;
    match (inner.index.synced(), stream.connected, stream.lost_at) {
        (true, true, _) => (Status::True, "StreamConnected", "the tenant's workloads are known".to_owned()),
        (_, false, Some(since)) => (
            Status::Unknown,
            "StreamLost",
            format!(
                "the tenant's agent has not been connected since {since:.0}; companions stay as they are"
            ),
        ),
        (false, true, _) => (
            Status::Unknown,
            "Syncing",
            "the tenant's agent is connected and has not yet listed all workloads".to_owned(),
        ),
        (_, false, None) => {
            (Status::Unknown, "NoStream", "the tenant's agent has not connected yet".to_owned())
        }
    }
}

fn matched_condition(accepted: bool, matched: i64, inner: &Inner) -> Told {
    let known = inner.index.workloads();
    match (accepted, matched) {
        (false, _) => (Status::Unknown, "Invalid", "see the Accepted condition".to_owned()),
        (true, 0) => (Status::False, "NoMatch", format!("none of {known} known workloads matches")),
        (true, n) => (Status::True, "Matches", format!("{n} of {known} known workloads match")),
    }
}

fn ready_condition(name: &RuleName, accepted: bool, matched: i64, ready: i64, inner: &Inner) -> Told {
    if !accepted {
        return (Status::False, "Invalid", "see the Accepted condition".to_owned());
    }
    let refused: Vec<_> = inner.refusals.iter().filter(|(key, _)| key.rule == *name).collect();
    if let [(_, first), rest @ ..] = refused.as_slice() {
        let others = if rest.is_empty() { String::new() } else { format!(" (and {} more)", rest.len()) };
        return (Status::False, "Refused", format!("{}{others}", first.message));
    }
    if matched == 0 {
        return (Status::True, "NoMatch", "no companion is wanted".to_owned());
    }
    if ready >= matched {
        return (Status::True, "AllReady", format!("{ready} of {matched} companions are ready"));
    }
    let mut message = format!("{ready} of {matched} companions are ready");
    let waiting = inner.companions.of_rule(name).find(|(_, o)| !o.ready && !o.message.is_empty());
    if let Some((key, observed)) = waiting {
        let _ = write!(message, "; {}: {}", outrigger_core::companion::name(&key), observed.message);
    }
    (Status::False, "Pending", message)
}
