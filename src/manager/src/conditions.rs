//! Conditions of the kinds whose status the manager writes.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use outrigger_api::conditions::{Status, condition, merge};
use outrigger_core::field::FieldError;
use outrigger_core::reason::Cause;
use outrigger_core::validate;

/// Status, reason and message of a condition.
pub(crate) type ConditionValue = (Status, &'static str, String);

/// A condition that is true.
pub(crate) fn fine(reason: &'static str, message: impl Into<String>) -> ConditionValue {
    (Status::True, reason, message.into())
}

/// A condition that is false for this cause.
pub(crate) fn wrong(cause: Cause, message: impl Into<String>) -> ConditionValue {
    (Status::False, cause.as_str(), message.into())
}

/// A condition of which it isn't known whether it is true, for this cause.
pub(crate) fn unknown(cause: Cause, message: impl Into<String>) -> ConditionValue {
    (Status::Unknown, cause.as_str(), message.into())
}

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

/// The Accepted condition of a rule, as far as its spec and its template tell: `refusal` is why the API server refuses a companion.
pub(crate) fn rejected(errors: &[FieldError], refusal: Option<&str>) -> Option<ConditionValue> {
    let (reason, message) = match (errors, refusal) {
        ([], None) => return None,
        ([], Some(refusal)) => (Cause::Refused, refusal.to_owned()),
        (errors, _) => (Cause::Invalid, validate::message(errors)),
    };
    Some(wrong(reason, format!("companions stay as they are until this is mended: {message}")))
}

/// A note about others beside the one that a message names; empty where there are none. `of`: what they are, after a space.
pub(crate) fn and_more(others: usize, of: &str) -> String {
    if others == 0 { String::new() } else { format!(" (and {others} more{of})") }
}
