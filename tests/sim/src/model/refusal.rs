//! Errors of the model, as `Status` objects of the API server.

use serde_json::{Value, json};

use super::kinds::ModelKind;

/// An error response of the API server.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{code} {reason}: {message}")]
pub struct Refusal {
    /// HTTP status.
    pub code: u16,
    /// Reason as a word of the API server, for example `NotFound`.
    pub reason: String,
    /// Message for people.
    pub message: String,
    /// `details` of the `Status` object.
    details: Value,
}

impl Refusal {
    /// An error with a code and a message, and the reason that the API server gives such errors.
    pub fn new(code: u16, message: impl Into<String>) -> Self {
        Self { code, reason: reason(code).to_owned(), message: message.into(), details: Value::Null }
    }

    /// An error of the storage, which has no reason.
    pub(super) fn internal(message: &str) -> Self {
        Self { reason: String::new(), ..Self::new(500, message) }
    }

    fn about(kind: &ModelKind, name: &str, code: u16, what: &str) -> Self {
        let resource = kind.resource();
        let mut refusal = Self::new(code, format!("{resource} \"{name}\" {what}"));
        refusal.details = details(kind, name);
        refusal
    }

    pub(super) fn not_found(kind: &ModelKind, name: &str) -> Self {
        Self::about(kind, name, 404, "not found")
    }

    pub(super) fn exists(kind: &ModelKind, name: &str) -> Self {
        let mut refusal = Self::about(kind, name, 409, "already exists");
        "AlreadyExists".clone_into(&mut refusal.reason);
        refusal
    }

    pub(super) fn conflict(kind: &ModelKind, name: &str, why: &str) -> Self {
        let resource = kind.resource();
        let mut refusal = Self::about(kind, name, 409, "");
        refusal.message = format!("Operation cannot be fulfilled on {resource} \"{name}\": {why}");
        refusal
    }

    /// The object was written since its resourceVersion was read.
    pub(super) fn modified(kind: &ModelKind, name: &str) -> Self {
        let why =
            "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(kind, name, why)
    }

    pub(super) fn invalid(kind: &ModelKind, name: &str, field: &str, why: &str) -> Self {
        let mut refusal = Self::about(kind, name, 422, "");
        refusal.message = format!("{} \"{name}\" is invalid: {field}: {why}", kind.kind);
        refusal.details["causes"] = json!([{"reason": "FieldValueInvalid", "message": why, "field": field}]);
        refusal
    }

    pub(super) fn forbidden(kind: &ModelKind, name: &str, why: &str) -> Self {
        let mut refusal = Self::about(kind, name, 403, "");
        refusal.message = format!("{} \"{name}\" is forbidden: {why}", kind.resource());
        refusal
    }

    /// An object can't be created because its namespace is being deleted.
    pub(super) fn terminating(kind: &ModelKind, name: &str, namespace: &str) -> Self {
        let why =
            format!("unable to create new content in namespace {namespace} because it is being terminated");
        let mut refusal = Self::forbidden(kind, name, &why);
        refusal.details["causes"] = json!([{"reason": "NamespaceTerminating",
            "message": format!("namespace {namespace} is being terminated"), "field": "metadata.namespace"}]);
        refusal
    }

    /// The resourceVersion of a list or a watch is no longer in the storage.
    pub(super) fn expired(message: &str) -> Self {
        Self { reason: "Expired".to_owned(), ..Self::new(410, message) }
    }

    /// The storage hasn't reached the resourceVersion of a list.
    pub(super) fn ahead(wanted: u64, current: u64) -> Self {
        let message = format!("Too large resource version: {wanted}, current: {current}");
        let mut refusal = Self::new(504, format!("Timeout: {message}"));
        refusal.details = json!({"retryAfterSeconds": 1,
            "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]});
        refusal
    }

    /// It as a `Status` object.
    pub fn status(&self) -> Value {
        let mut status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code});
        if !self.details.is_null() {
            status["details"] = self.details.clone();
        }
        status
    }
}

/// What a `Status` says of the object that it is about.
pub(super) fn details(kind: &ModelKind, name: &str) -> Value {
    let mut details = json!({"kind": kind.plural, "name": name});
    if !kind.group.is_empty() {
        details["group"] = json!(kind.group);
    }
    details
}

/// The reason that the API server gives with a code.
fn reason(code: u16) -> &'static str {
    match code {
        400 => "BadRequest",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        405 => "MethodNotAllowed",
        409 => "Conflict",
        410 => "Gone",
        413 => "RequestEntityTooLarge",
        415 => "UnsupportedMediaType",
        422 => "Invalid",
        429 => "TooManyRequests",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "InternalError",
    }
}
