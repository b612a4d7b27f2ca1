//! The status of a rule, and the Events that report its changes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// WorkloadRuleStatus is the observed state of a WorkloadRule.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadRuleStatus {
    /// observedGeneration is the `metadata.generation` of the spec that this status reports on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// matched is the number of workloads that match the rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matched: Option<i64>,

    /// wanted is the number of companions that these workloads should have. Present with SameNodeAll, in the infrastructure cluster only:
    /// else it is matched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted: Option<i64>,

    /// created is the number of companions that exist and are not being deleted. Companions that outlive their workloads
    /// count neither here nor in ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<i64>,

    /// ready is the number of companions whose Ready condition is True.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<i64>,

    /// updated is the number of companions that were created from the current template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated: Option<i64>,

    /// syncResult is `success` in a tenant's cluster if the agent has recently read the infrastructure cluster, so that
    /// the rest of the status is probably current, and `unknown` otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["success", "unknown"]))]
    pub sync_result: Option<String>,

    /// conditions are the conditions of the rule. Accepted: the rule is valid. Synced: the manager has the tenant's
    /// current workloads. Matched: at least one workload matches. Ready: each matching workload has a ready companion.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

impl WorkloadRuleStatus {
    /// Returns reason and message of each Event that reports a change from the status `before`.
    pub fn news(&self, before: &Self) -> Vec<(&'static str, String)> {
        let event = |c: &Condition| match (c.type_.as_str(), c.reason.as_str()) {
            ("Accepted", "Invalid") => Some("RuleInvalid"),
            ("Accepted", "Refused") => Some("TemplateRefused"),
            ("Accepted", "NameTaken") => Some("NameTaken"),
            ("Accepted", "LimitReached") => Some("LimitReached"),
            ("Ready", "NoDPU") => Some("NoDPU"),
            ("Synced", "AnnotationsNotSent") => Some("AnnotationsNotSent"),
            // If the template is rejected, so is every companion, and the Accepted condition reports it.
            ("Ready", "Refused") if !self.is_refused() => Some("CompanionRefused"),
            _ => None,
        };
        // The message of the Ready condition has counts, whose changes are not worth an Event.
        let same = |b: &Condition, c: &Condition| {
            (&b.type_, &b.reason) == (&c.type_, &c.reason) && (c.type_ == "Ready" || b.message == c.message)
        };
        let old = |c: &Condition| before.conditions.iter().any(|b| same(b, c));
        let new = self.conditions.iter().filter(|c| !old(c));
        new.filter_map(|c| Some((event(c)?, c.message.clone()))).collect()
    }

    fn is_refused(&self) -> bool {
        self.conditions.iter().any(|c| c.type_ == "Accepted" && c.status == "False")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conditions::{Status, condition};
    use jiff::Timestamp;

    fn status(list: &[(&str, &str, &str)]) -> WorkloadRuleStatus {
        let of = |(kind, reason, message): &(&str, &str, &str)| {
            condition(kind, Status::False, reason, message, 1, Timestamp::UNIX_EPOCH)
        };
        WorkloadRuleStatus { conditions: list.iter().map(of).collect(), ..WorkloadRuleStatus::default() }
    }

    #[test]
    fn events_report_changes_of_the_status_only() {
        let events = |now: &[_], before: &[_]| -> Vec<String> {
            status(now).news(&status(before)).into_iter().map(|(reason, m)| format!("{reason} {m}")).collect()
        };
        let no_dpu = [("Accepted", "Valid", ""), ("Ready", "NoDPU", "1 of 2")];
        assert_eq!(events(&no_dpu[1..], &[]), ["NoDPU 1 of 2"]);
        assert!(
            events(&no_dpu[1..], &[("Ready", "NoDPU", "0 of 2")]).is_empty(),
            "a changed count is not reported"
        );
        let refused = [("Accepted", "Refused", "a"), ("Ready", "Refused", "a")];
        assert_eq!(events(&refused, &[]), ["TemplateRefused a"], "reported once");
        assert_eq!(
            events(&refused, &[("Accepted", "Refused", "b"), ("Ready", "Refused", "b")]),
            ["TemplateRefused a"]
        );
        assert!(events(&refused, &refused).is_empty());
        assert_eq!(events(&refused[1..], &[]), ["CompanionRefused a"]);
        assert!(events(&[("Ready", "Pending", "x"), ("Synced", "StreamLost", "y")], &[]).is_empty());
    }
}
