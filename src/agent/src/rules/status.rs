//! What a rule's status in the tenant's own cluster should be.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use outrigger_api::conditions::{Status, condition, merge};
use outrigger_api::{WorkloadRule, WorkloadRuleStatus, rule_wire};
use outrigger_proto::v1;

use super::sanitize;

/// What a round has found out about a rule.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Found {
    /// It is in the infrastructure cluster as it is here; `None` while nothing has become of it yet.
    Synced(Option<v1::RuleStatus>),
    /// It isn't there yet: the Pods are being read again for the annotations that it names.
    Waits,
    /// It could not be dealt with several times in a row, and why.
    Failed(String),
    /// It can't be there, and why: reason and message.
    Refused(&'static str, String),
    /// The infrastructure cluster has not been reached since then.
    LinkDown(Option<Timestamp>),
    /// The manager has no service for rules.
    Unsupported,
}

/// The status that a rule should have. Transition times come from the one it has.
pub(super) fn compute(rule: &WorkloadRule, found: &Found, now: Timestamp) -> WorkloadRuleStatus {
    let before = rule.status.clone().unwrap_or_default();
    let generation = rule.metadata.generation.unwrap_or_default();
    let said =
        |kind, status, reason, message: &str| condition(kind, status, reason, message, generation, now);
    match found {
        Found::Synced(Some(status)) if status.current => {
            let told = rule_wire::status(&sanitize::status(status), generation, to_the_second(now));
            WorkloadRuleStatus {
                sync_result: Some("success".to_owned()),
                conditions: merge(&before.conditions, told.conditions),
                ..told
            }
        }
        Found::Waits => {
            let message = "the Pods are being read again for the annotations that the rule names; after that it goes to the \
                           infrastructure cluster";
            let conditions = vec![said("Synced", Status::Unknown, "Pending", message)];
            WorkloadRuleStatus {
                sync_result: Some("success".to_owned()),
                conditions: keep(&before, conditions),
                ..before
            }
        }
        Found::Failed(why) => {
            let message =
                format!("the infrastructure cluster fails at this rule, and it is tried again: {why}");
            let conditions = vec![said("Synced", Status::Unknown, "Failing", &sanitize::message(&message))];
            WorkloadRuleStatus {
                sync_result: Some("success".to_owned()),
                conditions: keep(&before, conditions),
                ..before
            }
        }
        Found::Synced(_) => {
            let message = "the infrastructure cluster has it and has not said yet what became of it";
            let conditions = vec![said("Synced", Status::Unknown, "Pending", message)];
            WorkloadRuleStatus {
                sync_result: Some("success".to_owned()),
                conditions: keep(&before, conditions),
                ..before
            }
        }
        Found::Refused(reason, message) => {
            let conditions = vec![
                said("Accepted", Status::False, reason, message),
                said(
                    "Synced",
                    Status::False,
                    reason,
                    "it is not in the infrastructure cluster as it is here",
                ),
            ];
            WorkloadRuleStatus {
                observed_generation: Some(generation),
                sync_result: Some("success".to_owned()),
                conditions: keep(&before, conditions),
                ..before
            }
        }
        Found::Unsupported => {
            let message = "the infrastructure cluster's manager has no WorkloadRuleService and takes no rules from here; \
                           upgrade it";
            let conditions = vec![said("Synced", Status::False, "ManagerTooOld", message)];
            WorkloadRuleStatus {
                sync_result: Some("unknown".to_owned()),
                conditions: keep(&before, conditions),
                ..before
            }
        }
        Found::LinkDown(since) => {
            let since = since.map_or_else(|| "yet".to_owned(), |since| format!("since {since:.0}"));
            let message =
                format!("the infrastructure cluster has not been reached {since}; the rest is as last seen");
            let conditions = vec![said("Synced", Status::Unknown, "LinkDown", &message)];
            WorkloadRuleStatus {
                sync_result: Some("unknown".to_owned()),
                conditions: keep(&before, conditions),
                ..before
            }
        }
    }
}

/// The API stores no more of a time.
fn to_the_second(now: Timestamp) -> Timestamp {
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

/// These conditions, and of those that were there what they don't replace.
fn keep(before: &WorkloadRuleStatus, new: Vec<Condition>) -> Vec<Condition> {
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

    fn told(status: &WorkloadRuleStatus) -> Vec<(String, String)> {
        status.conditions.iter().map(|c| (c.type_.clone(), c.reason.clone())).collect()
    }

    #[test]
    fn a_status_follows_what_is_found() {
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
        let synced = compute(&rule(json!({})), &Found::Synced(Some(message.clone())), now);
        assert_eq!(
            (synced.observed_generation, synced.ready, synced.sync_result.as_deref()),
            (Some(2), Some(3), Some("success"))
        );
        assert_eq!(told(&synced), [("Ready".into(), "AllReady".into())]);
        // The link goes: what was last seen stays, and says so.
        let seen = rule(serde_json::to_value(&synced).unwrap());
        let down = compute(&seen, &Found::LinkDown(Some(now)), now);
        assert_eq!((down.ready, down.sync_result.as_deref()), (Some(3), Some("unknown")));
        assert_eq!(told(&down), [("Synced".into(), "LinkDown".into()), ("Ready".into(), "AllReady".into())]);
        assert!(
            down.conditions[0].message.contains("since 1970-01-01T00:00:00Z"),
            "{:?}",
            down.conditions[0]
        );
        let again =
            compute(&rule(serde_json::to_value(&down).unwrap()), &Found::LinkDown(Some(now)), Timestamp::MAX);
        assert_eq!(again, down, "told once");
        // A status about an older rule is not shown as if it were about this one.
        let old = v1::RuleStatus { current: false, ..message };
        assert_eq!(
            told(&compute(&rule(json!({})), &Found::Synced(Some(old)), now)),
            [("Synced".into(), "Pending".into())]
        );
        let refused = compute(&seen, &Found::Refused("Invalid", "spec.x: no".into()), now);
        assert_eq!(
            told(&refused)[..2],
            [("Accepted".into(), "Invalid".into()), ("Synced".into(), "Invalid".into())]
        );
    }
}
