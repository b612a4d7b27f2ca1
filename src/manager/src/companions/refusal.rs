//! What an answer of the API server to a write means for the next step.

use kube::core::Status;

/// What to do after a write failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The object is not what the write expected; look again at once.
    LookAgain,
    /// Something of that name exists already.
    Exists,
    /// Nobody's fault and perhaps over soon: try again with growing pauses.
    Transient(String),
    /// The request will be refused again until a user changes something.
    Refused(String),
}

/// Reads the error of a create, patch or delete of a companion.
pub(crate) fn verdict(error: &kube::Error) -> Verdict {
    verdict_with(error, |field| format!("spec.template.{field}"))
}

/// Reads the error of a create, patch or delete of something that a rule makes; `field` tells what the rule calls one of its
/// fields.
pub(crate) fn verdict_with(error: &kube::Error, field: impl Fn(&str) -> String) -> Verdict {
    let kube::Error::Api(status) = error else { return Verdict::Transient(error.to_string()) };
    match status.code {
        409 if status.reason == "AlreadyExists" => Verdict::Exists,
        404 if is_namespace_missing(status) => Verdict::Refused(status.message.clone()),
        404 | 409 => Verdict::LookAgain,
        // A quota races with the deletions that free it; the API server says so by a conflict on the quota object.
        403 if status.message.contains("please apply your changes to the latest version") => {
            Verdict::Transient(status.message.clone())
        }
        400 | 403 | 405 | 413 | 422 => Verdict::Refused(explain(status, field)),
        _ => Verdict::Transient(status.message.clone()),
    }
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
        assert_eq!(verdict(&status(409, "AlreadyExists", "")), Verdict::Exists);
        assert_eq!(verdict(&status(409, "Conflict", "")), Verdict::LookAgain);
        assert_eq!(verdict(&status(404, "NotFound", "")), Verdict::LookAgain);
        assert!(matches!(verdict(&status(403, "Forbidden", "exceeded quota: q")), Verdict::Refused(_)));
        assert!(matches!(
            verdict(&status(500, "InternalError", "failed calling webhook")),
            Verdict::Transient(_)
        ));
        assert!(matches!(verdict(&status(503, "", "not yet")), Verdict::Transient(_)));
        assert!(matches!(verdict(&status(429, "TooManyRequests", "")), Verdict::Transient(_)));
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
            verdict(&error),
            Verdict::Refused("spec.template.spec.containers[0].image: Required value".into())
        );
    }
}
