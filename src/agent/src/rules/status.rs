//! Computes the status of a rule in the tenant's cluster.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use outrigger_api::conditions::{Status, condition, merge};
use outrigger_api::{WorkloadRule, WorkloadRuleStatus, rule_wire};
use outrigger_proto::v1;

use super::sanitize;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum SyncState {
    /// The infrastructure cluster has the current rule; `None` until the manager reports a status.
    Synced(Option<v1::RuleStatus>),
    /// The rule isn't sent until the Pods have been read with the annotations that it names.
    AwaitingAnnotations,
    /// Several attempts in a row have failed with this error.
    Failing(String),
    /// The infrastructure cluster can't have the rule: reason and message.
    Rejected(&'static str, String),
    /// The infrastructure cluster is unreachable since the last successful round.
    Unreachable(Option<Timestamp>),
    /// The manager has no service for rules.
    Unsupported,
}

/// Computes the status that a rule should have. Transition times are taken from its current status.
pub(super) fn compute(rule: &WorkloadRule, state: &SyncState, now: Timestamp) -> WorkloadRuleStatus {
    let before = rule.status.clone().unwrap_or_default();
    let generation = rule.metadata.generation.unwrap_or_default();
    if let SyncState::Synced(Some(status)) = state
        && status.current
    {
        let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
        let reported = rule_wire::status(&sanitize::status(status), generation, now);
        return WorkloadRuleStatus {
            sync_result: Some("success".to_owned()),
            conditions: merge(&before.conditions, reported.conditions),
            ..reported
        };
    }
    let mut observed_generation = before.observed_generation;
    let mut conditions = Vec::new();
    let (status, reason, message) = match state {
        SyncState::Synced(_) => {
            let message = "the infrastructure cluster has the rule; its status is not reported yet";
            (Status::Unknown, "Pending", message.to_owned())
        }
        SyncState::AwaitingAnnotations => {
            let message = "the agent is reading the Pods with the annotations that the rule names; it sends the rule afterwards";
            (Status::Unknown, "Pending", message.to_owned())
        }
        SyncState::Failing(error) => {
            let message =
                format!("failed to synchronize the rule with the infrastructure cluster; retrying: {error}");
            (Status::Unknown, "Failing", sanitize::message(&message))
        }
        SyncState::Rejected(reason, message) => {
            observed_generation = Some(generation);
            conditions.push(condition("Accepted", Status::False, reason, message, generation, now));
            let message = "the infrastructure cluster doesn't have the current rule";
            (Status::False, *reason, message.to_owned())
        }
        SyncState::Unsupported => {
            let message = "the infrastructure cluster's manager has no WorkloadRuleService and accepts no rules; upgrade it";
            (Status::False, "ManagerTooOld", message.to_owned())
        }
        SyncState::Unreachable(since) => {
            let since = since.map_or_else(String::new, |since| format!(" since {since:.0}"));
            let message = format!(
                "the infrastructure cluster has not been reached{since}; the rest of the status may be outdated"
            );
            (Status::Unknown, "LinkDown", message)
        }
    };
    conditions.push(condition("Synced", status, reason, &message, generation, now));
    let reached = !matches!(state, SyncState::Unsupported | SyncState::Unreachable(_));
    WorkloadRuleStatus {
        observed_generation,
        sync_result: Some(if reached { "success" } else { "unknown" }.to_owned()),
        conditions: replace(&before, conditions),
        ..before
    }
}

/// Reason of the condition Accepted of a rule that is served without the order that it asks for, and of the Event about it.
pub(crate) const ORDERING_NOT_ENFORCED: &str = "OrderingNotEnforced";

/// Has the condition Accepted of a rule that is served say what of its ordering isn't enforced, or no longer say so. The condition stays
/// True, because the rule's companions are created and kept. The manager doesn't know what this cluster enforces. A condition about
/// another generation of the rule says nothing of its present ordering, and stays.
pub(super) fn report_ordering(
    rule: &WorkloadRule,
    mut status: WorkloadRuleStatus,
    complaint: Option<String>,
) -> WorkloadRuleStatus {
    let is_served = |c: &&mut Condition| {
        c.type_ == "Accepted" && c.status == "True" && c.observed_generation == rule.metadata.generation
    };
    let Some(accepted) = status.conditions.iter_mut().find(is_served) else { return status };
    let (reason, message) = match complaint {
        Some(complaint) => {
            let message = format!("the rule is served without its ordering. {complaint}");
            (ORDERING_NOT_ENFORCED, sanitize::message(&message))
        }
        // It was kept from before.
        None if accepted.reason == ORDERING_NOT_ENFORCED => ("Valid", "the rule is served".to_owned()),
        None => return status,
    };
    (accepted.reason, accepted.message) = (reason.to_owned(), message);
    status
}

/// Replaces the conditions of these types and keeps the others.
fn replace(before: &WorkloadRuleStatus, new: Vec<Condition>) -> Vec<Condition> {
    let mut all = before.conditions.clone();
    all.retain(|old| new.iter().all(|new| new.type_ != old.type_));
    all.extend(merge(&before.conditions, new));
    all.sort_by_key(|condition| sanitize::CONDITIONS.iter().position(|t| *t == condition.type_));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rule(status: serde_json::Value) -> WorkloadRule {
        let object = json!({"apiVersion": "workload.universe.nvidia.com/v1alpha1", "kind": "WorkloadRule",
            "metadata": {"name": "r", "generation": 2}, "spec": {}, "status": status});
        serde_json::from_value(object).unwrap()
    }

    fn reasons(status: &WorkloadRuleStatus) -> Vec<(String, String)> {
        status.conditions.iter().map(|c| (c.type_.clone(), c.reason.clone())).collect()
    }

    #[test]
    fn the_status_reports_the_sync_state() {
        let now = Timestamp::UNIX_EPOCH;
        let ready = v1::RuleCondition {
            r#type: "Ready".into(),
            status: "True".into(),
            reason: "AllReady".into(),
            last_transition_time: "2026-01-01T00:00:00Z".into(),
            ..v1::RuleCondition::default()
        };
        let message = v1::RuleStatus {
            current: true,
            matched: 3,
            created: 3,
            ready: 3,
            updated: 3,
            conditions: vec![ready],
        };
        let synced = compute(&rule(json!({})), &SyncState::Synced(Some(message.clone())), now);
        assert_eq!(
            (synced.observed_generation, synced.ready, synced.sync_result.as_deref()),
            (Some(2), Some(3), Some("success"))
        );
        assert_eq!(reasons(&synced), [("Ready".into(), "AllReady".into())]);
        // The connection fails: the last status stays, and a condition reports the failure.
        let seen = rule(serde_json::to_value(&synced).unwrap());
        let down = compute(&seen, &SyncState::Unreachable(Some(now)), now);
        assert_eq!((down.ready, down.sync_result.as_deref()), (Some(3), Some("unknown")));
        assert_eq!(
            reasons(&down),
            [("Synced".into(), "LinkDown".into()), ("Ready".into(), "AllReady".into())]
        );
        assert!(
            down.conditions[0].message.contains("since 1970-01-01T00:00:00Z"),
            "{:?}",
            down.conditions[0]
        );
        let again = compute(
            &rule(serde_json::to_value(&down).unwrap()),
            &SyncState::Unreachable(Some(now)),
            Timestamp::MAX,
        );
        assert_eq!(again, down, "reported once");
        // The status of an earlier generation is not shown for this one.
        let old = v1::RuleStatus { current: false, ..message };
        assert_eq!(
            reasons(&compute(&rule(json!({})), &SyncState::Synced(Some(old)), now)),
            [("Synced".into(), "Pending".into())]
        );
        let refused = compute(&seen, &SyncState::Rejected("Invalid", "spec.x: no".into()), now);
        assert_eq!(
            reasons(&refused)[..2],
            [("Accepted".into(), "Invalid".into()), ("Synced".into(), "Invalid".into())]
        );
    }

    #[test]
    fn a_served_rule_says_what_of_its_ordering_is_not_enforced_and_no_longer_says_so_when_it_is() {
        let now = Timestamp::UNIX_EPOCH;
        let of = |kind: &str, status: &str| {
            json!({"type": kind, "status": status, "reason": "Valid", "message": "the rule is served",
            "observedGeneration": 2, "lastTransitionTime": "2026-01-01T00:00:00Z"})
        };
        let complaint = || Some("spec.ordering: is BeforeStart, but".to_owned());
        let reported = |status: serde_json::Value, complaint| {
            let rule = rule(status);
            report_ordering(&rule, compute(&rule, &SyncState::Unreachable(None), now), complaint)
        };
        let served = json!({"conditions": [of("Accepted", "True"), of("Ready", "True")]});
        let lacking = reported(served.clone(), complaint());
        let accepted = &lacking.conditions[0];
        assert_eq!((accepted.status.as_str(), accepted.reason.as_str()), ("True", ORDERING_NOT_ENFORCED));
        assert_eq!(
            accepted.message,
            "the rule is served without its ordering. spec.ordering: is BeforeStart, but"
        );
        assert_eq!(accepted.last_transition_time.0.to_string(), "2026-01-01T00:00:00Z");
        assert_eq!(
            lacking.conditions[2],
            reported(served.clone(), None).conditions[2],
            "no other condition changes"
        );
        let lacking = serde_json::to_value(&lacking).unwrap();
        assert_eq!(
            serde_json::to_value(reported(lacking.clone(), complaint())).unwrap(),
            lacking,
            "reported once"
        );
        assert_eq!(reported(lacking, None), reported(served, None));
        // What isn't served, or is about another generation, has its own words.
        let mut old = of("Accepted", "True");
        old["observedGeneration"] = json!(1);
        for other in [of("Accepted", "False"), of("Accepted", "Unknown"), old] {
            let status = json!({"conditions": [other]});
            assert_eq!(reported(status.clone(), complaint()), reported(status, None));
        }
    }
}
