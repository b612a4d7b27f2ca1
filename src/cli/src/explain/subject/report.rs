//! What is known of an object. As JSON it is the output of `-o json`.

use outrigger_core::json::text;
use outrigger_core::reason::Cause;
use serde::Serialize;
use serde_json::Value;

use crate::condition::untrue;
use crate::explain::Fact;

/// The report.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    /// What isn't known.
    pub(super) notes: Vec<String>,
    pub(super) kind: &'static str,
    pub(super) name: String,
    pub(super) facts: Vec<Fact>,
    /// What is wrong; what comes first is the cause of what follows.
    pub(super) wrong: Vec<Wrong>,
}

/// Something that is wrong, in the words of the model of reasons.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Wrong {
    /// The object, or the condition, that says so.
    pub(super) about: String,
    /// The word; one of a later version, or of somebody else's, is kept.
    pub(super) cause: String,
    /// What is wrong here.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) message: String,
    pub(super) meaning: &'static str,
    /// What the tenant can do.
    pub(super) tenant: &'static str,
    /// What the platform can do.
    pub(super) platform: &'static str,
    /// Since when, where that is recorded.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) since: String,
}

impl Wrong {
    pub(super) fn new(about: impl Into<String>, cause: Cause, message: impl Into<String>) -> Self {
        Self {
            about: about.into(),
            cause: cause.to_string(),
            message: message.into(),
            meaning: cause.meaning(),
            tenant: cause.tenant_remedy(),
            platform: cause.platform_remedy(),
            since: String::new(),
        }
    }

    pub(super) fn since(self, since: &str) -> Self {
        Self { since: since.to_owned(), ..self }
    }

    /// What a condition says that isn't True.
    pub(super) fn condition(condition: &Value) -> Self {
        let reason = text(condition, "/reason");
        let cause = reason.parse().unwrap_or(Cause::Unknown);
        let about = format!("condition {}", text(condition, "/type"));
        let wrong = Self::new(about, cause, text(condition, "/message"));
        Self { cause: reason.to_owned(), ..wrong }.since(text(condition, "/lastTransitionTime"))
    }
}

/// What those of an object's conditions say that aren't True, in this order.
pub(super) fn wrong(object: &Value, kinds: &[&str]) -> Vec<Wrong> {
    untrue(object, kinds).map(Wrong::condition).collect()
}

impl Report {
    pub(super) fn new(kind: &'static str, name: &str) -> Self {
        Self { kind, name: name.to_owned(), ..Self::default() }
    }

    pub(super) fn fact(&mut self, name: impl Into<String>, value: impl Into<String>) {
        let value = value.into();
        if !value.is_empty() {
            self.facts.push(Fact { name: name.into(), value });
        }
    }
}
