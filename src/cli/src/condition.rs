//! Conditions of objects' statuses.

use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use outrigger_core::json::{list, text};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A condition, as reports show it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Condition {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) status: String,
    pub(crate) reason: String,
    pub(crate) message: String,
}

impl From<&meta::Condition> for Condition {
    fn from(condition: &meta::Condition) -> Self {
        let meta::Condition { type_, status, reason, message, .. } = condition.clone();
        Self { kind: type_, status, reason, message }
    }
}

/// The condition of an object, if it has it.
pub(crate) fn named<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    list(object, "/status/conditions").iter().find(|condition| text(condition, "/type") == kind)
}

/// Those of these conditions that an object has and that aren't True, in this order.
pub(crate) fn untrue<'a>(object: &'a Value, kinds: &[&str]) -> impl Iterator<Item = &'a Value> {
    let of = kinds.iter().filter_map(|kind| named(object, kind)).collect::<Vec<_>>();
    of.into_iter().filter(|condition| text(condition, "/status") != "True")
}
