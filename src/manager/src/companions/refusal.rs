//! Failed writes of companions, and which step follows.

use kube::core::Status;
use outrigger_core::claim;
use serde_json::Value;

/// Why a write of a companion failed.
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
    use kube::core::response::{StatusCause, StatusDetails};
    use serde_json::json;

    fn status(code: u16, reason: &str, message: &str) -> kube::Error {
        kube::Error::Api(Box::new(Status {
            code,
            reason: reason.into(),
            message: message.into(),
            ..Status::default()
        }))
    }

    #[test]
    fn verdicts() {
        assert_eq!(WriteFailure::of(&status(409, "AlreadyExists", "")), WriteFailure::Exists);
        assert_eq!(WriteFailure::of(&status(409, "Conflict", "")), WriteFailure::CacheStale);
        assert_eq!(WriteFailure::of(&status(404, "NotFound", "")), WriteFailure::CacheStale);
        assert!(matches!(
            WriteFailure::of(&status(403, "Forbidden", "exceeded quota: q")),
            WriteFailure::Refused(_)
        ));
        assert!(matches!(
            WriteFailure::of(&status(500, "InternalError", "failed calling webhook")),
            WriteFailure::Transient(_)
        ));
        assert!(matches!(WriteFailure::of(&status(503, "", "not yet")), WriteFailure::Transient(_)));
        assert!(matches!(WriteFailure::of(&status(429, "TooManyRequests", "")), WriteFailure::Transient(_)));
    }

    #[test]
    fn a_kind_that_is_not_served_is_not_looked_for() {
        let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim"});
        let of_create =
            |error: &kube::Error, object: &Value| WriteFailure::of_create(error, object, of_template);
        for reason in ["NotFound", "Failed to parse error data"] {
            let error = status(404, reason, "404 page not found");
            let verdict = of_create(&error, &claim);
            assert!(
                matches!(&verdict, WriteFailure::Refused(m) if m.contains("doesn't serve resource.k8s.io/v1")),
                "{verdict:?}"
            );
            assert_eq!(
                of_create(&error, &json!({"apiVersion": "v1", "kind": "Pod"})),
                WriteFailure::CacheStale
            );
        }
        let missing = json!({"code": 404, "reason": "NotFound", "message": "namespaces \"n\" not found",
            "details": {"name": "n", "kind": "namespaces"}});
        let missing = kube::Error::Api(Box::new(serde_json::from_value(missing).unwrap()));
        assert_eq!(of_create(&missing, &claim), WriteFailure::Refused("namespaces \"n\" not found".into()));
        assert_eq!(of_create(&status(409, "Conflict", ""), &claim), WriteFailure::CacheStale);
    }

    #[test]
    fn a_refused_field_is_named_as_the_template_has_it() {
        let error = kube::Error::Api(Box::new(Status {
            code: 422,
            details: Some(StatusDetails {
                causes: vec![StatusCause {
                    field: "spec.containers[0].image".into(),
                    message: "Required value".into(),
                    reason: String::new(),
                }],
                name: String::new(),
                group: String::new(),
                kind: String::new(),
                uid: String::new(),
                retry_after_seconds: 0,
            }),
            ..Status::default()
        }));
        assert_eq!(
            WriteFailure::of(&error),
            WriteFailure::Refused("spec.template.spec.containers[0].image: Required value".into())
        );
    }
}
