//! Conditions of the kinds whose status the manager writes.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use outrigger_api::conditions::{Status, condition, merge};

/// Status, reason and message of a condition.
pub(crate) type ConditionValue = (Status, &'static str, String);

/// The conditions that an object of this generation should have. Transition times come from those that it has.
pub(crate) fn conditions<'a>(
    before: &[Condition],
    generation: i64,
    now: Timestamp,
    values: impl IntoIterator<Item = (&'a str, ConditionValue)>,
) -> Vec<Condition> {
    let of = |(kind, (status, reason, message)): (&str, ConditionValue)| {
        condition(kind, status, reason, &message, generation, now)
    };
    merge(before, values.into_iter().map(of).collect())
}
