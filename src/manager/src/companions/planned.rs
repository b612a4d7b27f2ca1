//! What there is to do for a companion by what is known of it.

use std::time::Duration;

use outrigger_core::companion::{self, Action as Plan, DeleteReason, Observed};
use outrigger_core::index::{CompanionKey, Desired};
use outrigger_core::template::Kind;
use serde_json::Value;
use tokio::time::Instant;

use super::location::CompanionLocation;
use crate::state::TenantData;
use crate::state::companions::CompanionCache;
use crate::state::rollout::Moment;

/// Whether a companion was made from a later state of its rule than is known here: nothing can be decided about it until the
/// cache has caught up.
pub(super) fn is_of_later_rule(data: &TenantData, key: &CompanionKey) -> bool {
    let Some(rule) = data.rules.get(&key.rule) else { return false };
    let made_later = |o: &Observed| o.rule_uid == rule.uid && o.rule_generation > rule.generation;
    data.read_companion(key, made_later).unwrap_or_default()
}

/// Whether a companion was made by a replica that has claimed the stream later than is known here: that one may know workloads that
/// this one doesn't.
pub(super) fn is_of_later_claim(data: &TenantData, key: &CompanionKey) -> bool {
    let Some(known) = data.stream.latest() else { return false };
    let made_later = |o: &Observed| o.claim.as_ref().is_some_and(|made| made.is_after(&known));
    data.read_companion(key, made_later).unwrap_or_default()
}

/// The next step for a companion, whatever else is going on, and the kind of what it is about.
pub(super) fn planned(data: &TenantData, key: &CompanionKey, location: &CompanionLocation) -> (Plan, Kind) {
    data.read_companions(&key.rule, |companions| plan(data, companions, key, location))
        .unwrap_or((Plan::Nothing, Kind::Pod))
}

/// The same, where these are the companions of the rule.
fn plan(
    data: &TenantData,
    companions: &CompanionCache,
    key: &CompanionKey,
    location: &CompanionLocation,
) -> (Plan, Kind) {
    let observed = companions.get(key);
    let known_rule = data.rules.get(&key.rule).map(|rule| &rule.uid);
    if let Some(orphan) = observed.filter(|o| known_rule != Some(&o.rule_uid)) {
        // The garbage collector takes these too, also while we are down; but it learns of a kind of owner that is new to
        // the cluster only after half a minute. That the rule is deleted is confirmed before anything is deleted: the cache may
        // lack a rule that was created just now, or still have a deleted one of the same name, which says nothing about the
        // companion, whatever it matches.
        let reason = if known_rule.is_some() { DeleteReason::OtherRule } else { DeleteReason::RuleDeleted };
        let action =
            if orphan.terminating { Plan::Wait } else { Plan::Delete { uid: orphan.uid.clone(), reason } };
        return (action, orphan.kind);
    }
    let desired = data.index.desired(key);
    if let (Some(kept), Some(duplicate)) = (observed, companions.duplicate(key))
        && !duplicate.terminating
    {
        let superseded = match desired {
            Desired::Wanted { rule, .. } => kept.kind == rule.kind(),
            // One of them lingers.
            Desired::Ended { .. } => true,
            _ => false,
        };
        if superseded {
            let reason = DeleteReason::Superseded;
            return (Plan::Delete { uid: duplicate.uid.clone(), reason }, duplicate.kind);
        }
    }
    let kind = match (desired, observed) {
        (_, Some(observed)) => observed.kind,
        (Desired::Wanted { rule, .. }, None) => rule.kind(),
        _ => Kind::Pod,
    };
    (companion::plan(key, &desired, observed, &location.home(&data.host_names)), kind)
}

/// What a companion needs that waits for its turn in a rollout: a record of that, or facts. A JSON merge patch; `None` where it needs nothing.
pub(super) fn meanwhile(data: &TenantData, key: &CompanionKey, at: Moment) -> Option<Value> {
    if let Some(record) = data.hold_record(key, at) {
        return Some(record);
    }
    let Desired::Wanted { rule, workload } = data.index.desired(key) else { return None };
    data.read_companion(key, |o| companion::while_it_waits(rule, workload, o)).flatten()
}

/// How much longer a companion that was refused has to wait, unless its rule has changed since.
pub(super) fn still_refused(data: &TenantData, key: &CompanionKey, now: Instant) -> Option<Duration> {
    let refusal = data.refusals.get(key)?;
    let Desired::Wanted { rule, .. } = data.index.desired(key) else { return None };
    let left = refusal.until.checked_duration_since(now)?;
    (refusal.generation == rule.generation() && !left.is_zero()).then_some(left)
}
