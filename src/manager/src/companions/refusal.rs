//! Failed writes of companions, and which step follows.

use kube::core::Status;
use outrigger_core::claim;
use serde_json::Value;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WriteFailure {
    /// The object is not what the write expected: the cache is stale.
    #[error("the cache is stale")]
    CacheStale,
    /// Something of that name exists already.
    #[error("an object of that name exists")]
    Exists,
    /// The failure may pass by itself: the write is retried with exponential backoff.
    #[error("{0}")]
    Transient(String),
    /// The request will be refused again until a user changes something.
    #[error("{0}")]
    Refused(String),
}

impl WriteFailure {
    /// Reads the error of a create, patch or delete of a companion.
    pub(crate) fn of(error: &kube::Error) -> Self {
        Self::with_fields(error, of_template)
    }

    /// Reads the error of a create of `object`. `field` tells what the rule calls one of the object's fields.
    pub(crate) fn of_create(error: &kube::Error, object: &Value, field: impl Fn(&str) -> String) -> Self {
        const SERVED: &str = claim::API_VERSION;
        match error {
            // A kind that the cluster doesn't serve is no stale cache.
            kube::Error::Api(status)
                if status.code == 404 && object["apiVersion"] == SERVED && !is_namespace_missing(status) =>
            {
                Self::Refused(format!(
                    "this cluster doesn't serve {SERVED}, which devices need: Kubernetes does from version 1.34 on"
                ))
            }
            _ => Self::with_fields(error, field),
        }
    }

    fn with_fields(error: &kube::Error, field: impl Fn(&str) -> String) -> Self {
        let kube::Error::Api(status) = error else { return Self::Transient(error.to_string()) };
        match status.code {
            409 if status.reason == "AlreadyExists" => Self::Exists,
            404 if is_namespace_missing(status) => Self::Refused(status.message.clone()),
            404 | 409 => Self::CacheStale,
            // A quota races with the deletions that free it; the API server says so by a conflict on the quota object.
            403 if status.message.contains("please apply your changes to the latest version") => {
                Self::Transient(status.message.clone())
            }
            400 | 403 | 405 | 413 | 422 => Self::Refused(explain(status, field)),
            _ => Self::Transient(status.message.clone()),
        }
    }
}

/// What a rule calls a field of its companion.
pub(crate) fn of_template(field: &str) -> String {
    format!("spec.template.{field}")
}

fn is_namespace_missing(status: &Status) -> bool {
    status.details.as_ref().is_some_and(|d| d.kind == "namespaces")
}

/// The refusal with the fields as the rule has them.
fn explain(status: &Status, field: impl Fn(&str) -> String) -> String {
    let causes = status.details.as_ref().map(|d| d.causes.as_slice()).unwrap_or_default();
    let fields: Vec<String> = causes
        .iter()
        .filter(|c| c.field.starts_with("spec.") || c.field.starts_with("metadata."))
        .map(|c| format!("{}: {}", field(&c.field), c.message))
        .collect();
    if fields.is_empty() { status.message.clone() } else { fields.join("; ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn error(code: u16, reason: &str, message: &str, details: &Value) -> kube::Error {
        let status = json!({"code": code, "reason": reason, "message": message, "details": details});
        kube::Error::Api(Box::new(serde_json::from_value(status).unwrap()))
    }

    #[test]
    fn verdicts() {
        use WriteFailure::{CacheStale, Exists, Refused, Transient};
        let image = json!({"causes": [{"field": "spec.containers[0].image", "message": "Required value"}]});
        let none = Value::Null;
        for (code, reason, message, details, expected) in [
            (409, "AlreadyExists", "", &none, Exists),
            (409, "Conflict", "", &none, CacheStale),
            (404, "NotFound", "", &none, CacheStale),
            (403, "Forbidden", "exceeded quota: q", &none, Refused("exceeded quota: q".into())),
            (422, "", "", &image, Refused("spec.template.spec.containers[0].image: Required value".into())),
            (
                500,
                "InternalError",
                "failed calling webhook",
                &none,
                Transient("failed calling webhook".into()),
            ),
            (503, "", "not yet", &none, Transient("not yet".into())),
            (429, "TooManyRequests", "", &none, Transient(String::new())),
        ] {
            assert_eq!(WriteFailure::of(&error(code, reason, message, details)), expected, "{code} {reason}");
        }
    }

    #[test]
    fn a_kind_that_is_not_served_is_not_looked_for() {
        let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"});
        let of_create =
            |error: &kube::Error, object: &Value| WriteFailure::of_create(error, object, of_template);
        for reason in ["NotFound", "Failed to parse error data"] {
            let error = error(404, reason, "404 page not found", &Value::Null);
            let verdict = of_create(&error, &claim);
            let refused = matches!(&verdict, WriteFailure::Refused(m) if m.contains("doesn't serve resource.k8s.io/v1"));
            assert!(refused, "{verdict:?}");
            let pod = json!({"apiVersion": "v1", "kind": "Pod"});
            assert_eq!(of_create(&error, &pod), WriteFailure::CacheStale);
        }
        let missing = json!({"name": "n", "kind": "namespaces"});
        let missing = error(404, "NotFound", "namespaces \"n\" not found", &missing);
        assert_eq!(of_create(&missing, &claim), WriteFailure::Refused("namespaces \"n\" not found".into()));
        let conflict = error(409, "Conflict", "", &Value::Null);
        assert_eq!(of_create(&conflict, &claim), WriteFailure::CacheStale);
    }
}
