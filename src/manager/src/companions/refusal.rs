//! Failed writes of companions, and which step follows.

use kube::core::Status;
use outrigger_core::claim;
use outrigger_core::reason::Cause;
use serde_json::Value;

use crate::state::Why;

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
    Refused(Why),
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
                let message = format!(
                    "this cluster doesn't serve {SERVED}, which devices need: Kubernetes does from version 1.34 on"
                );
                Self::Refused(Why::new(Cause::DevicesNotServed, message))
            }
            _ => Self::with_fields(error, field),
        }
    }

    fn with_fields(error: &kube::Error, field: impl Fn(&str) -> String) -> Self {
        let kube::Error::Api(status) = error else { return Self::Transient(error.to_string()) };
        match status.code {
            409 if status.reason == "AlreadyExists" => Self::Exists,
            404 if is_namespace_missing(status) => {
                Self::Refused(Why::new(Cause::NamespaceMissing, status.message.clone()))
            }
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
fn explain(status: &Status, field: impl Fn(&str) -> String) -> Why {
    let causes = status.details.as_ref().map(|d| d.causes.as_slice()).unwrap_or_default();
    let fields: Vec<String> = causes
        .iter()
        .filter(|c| c.field.starts_with("spec.") || c.field.starts_with("metadata."))
        .map(|c| format!("{}: {}", field(&c.field), c.message))
        .collect();
    let faults = fields.join("; ");
    let message = if faults.is_empty() { status.message.clone() } else { faults.clone() };
    Why { message, cause: cause(status), faults }
}

/// The cause of a refusal. Messages are all that the API server's plugins have for it.
fn cause(status: &Status) -> Cause {
    let message = &status.message;
    if message.contains("exceeded quota") {
        Cause::QuotaExceeded
    } else if message.contains("violates PodSecurity") {
        Cause::PodSecurity
    } else if message.contains("because it is being terminated") {
        Cause::NamespaceMissing
    } else {
        Cause::Refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use serde_json::json;

    fn error(code: u16, reason: &str, message: &str, details: &Value) -> kube::Error {
        let status = json!({"code": code, "reason": reason, "message": message, "details": details});
        kube::Error::Api(Box::new(fixtures::object(status)))
    }

    #[test]
    fn verdicts() {
        use WriteFailure::{CacheStale, Exists, Refused, Transient};
        let image = json!({"causes": [{"field": "spec.containers[0].image", "message": "Required value"}]});
        let none = Value::Null;
        let fault = "spec.template.spec.containers[0].image: Required value";
        for (code, reason, message, details, expected) in [
            (409, "AlreadyExists", "", &none, Exists),
            (409, "Conflict", "", &none, CacheStale),
            (404, "NotFound", "", &none, CacheStale),
            (
                403,
                "Forbidden",
                "exceeded quota: q",
                &none,
                Refused(Why::new(Cause::QuotaExceeded, "exceeded quota: q")),
            ),
            (422, "", "", &image, Refused(Why { faults: fault.into(), ..Why::new(Cause::Refused, fault) })),
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
    fn a_refusal_has_a_cause_and_only_faults_of_fields_are_the_tenants_to_hear() {
        let of = |message: &str, field: &str| {
            let details = json!({"causes": [{"field": field, "message": "m"}]});
            match WriteFailure::of(&error(403, "Forbidden", message, &details)) {
                WriteFailure::Refused(Why { cause, faults, .. }) => (cause, faults),
                other => panic!("{other:?}"),
            }
        };
        for (message, field, cause, faults) in [
            ("exceeded quota: q, requested: pods=1", "", Cause::QuotaExceeded, ""),
            ("violates PodSecurity \"baseline:latest\"", "", Cause::PodSecurity, ""),
            ("namespace n because it is being terminated", "", Cause::NamespaceMissing, ""),
            ("policy 'p' with binding 'b' denied request", "", Cause::Refused, ""),
            ("invalid", "spec.x", Cause::Refused, "spec.template.spec.x: m"),
            ("invalid", "status.x", Cause::Refused, ""),
        ] {
            assert_eq!(of(message, field), (cause, faults.to_owned()), "{message}");
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
            let refused = matches!(&verdict, WriteFailure::Refused(why) if why.cause == Cause::DevicesNotServed && why.message.contains("doesn't serve resource.k8s.io/v1"));
            assert!(refused, "{verdict:?}");
            let pod = json!({"apiVersion": "v1", "kind": "Pod"});
            assert_eq!(of_create(&error, &pod), WriteFailure::CacheStale);
        }
        let missing = json!({"name": "n", "kind": "namespaces"});
        let missing = error(404, "NotFound", "namespaces \"n\" not found", &missing);
        let why = Why::new(Cause::NamespaceMissing, "namespaces \"n\" not found");
        assert_eq!(of_create(&missing, &claim), WriteFailure::Refused(why));
        let conflict = error(409, "Conflict", "", &Value::Null);
        assert_eq!(of_create(&conflict, &claim), WriteFailure::CacheStale);
    }
}
