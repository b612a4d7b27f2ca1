//! Conditions that the agent writes to Pods, Nodes and claims.

use outrigger_api::conditions::Status;
use outrigger_core::reason::Cause;
use outrigger_runtime::pod;
use serde_json::{Value, json};

/// A condition, without its type and its times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Condition {
    pub status: Status,
    pub reason: String,
    pub message: String,
}

impl Condition {
    pub(crate) fn new(status: Status, reason: &str, message: impl Into<String>) -> Self {
        Self { status, reason: reason.to_owned(), message: message.into() }
    }

    /// What the agent finds by itself.
    pub(crate) fn of(status: Status, cause: Cause) -> Self {
        Self::new(status, cause.as_str(), cause.message())
    }

    /// The one of this type among those that an object has.
    pub(crate) fn find(all: Option<&[pod::Condition]>, kind: &str) -> Option<Self> {
        let found = all?.iter().find(|condition| condition.type_ == kind)?;
        let status = match found.status.as_str() {
            "True" => Status::True,
            "False" => Status::False,
            _ => Status::Unknown,
        };
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        Some(Self { status, reason: text(&found.reason), message: text(&found.message) })
    }

    pub(crate) fn is_true(&self) -> bool {
        self.status == Status::True
    }

    /// The condition as an entry of a patch. `transition`: the time, if its status changes.
    pub(crate) fn patch(&self, kind: &str, transition: Option<&str>) -> Value {
        let Self { status, reason, message } = self;
        let mut patch =
            json!({"type": kind, "status": status.as_str(), "reason": reason, "message": message});
        if let Some(time) = transition {
            patch["lastTransitionTime"] = json!(time);
        }
        patch
    }
}
