//! Errors as gRPC says them.

use outrigger_core::field::FieldError;
use outrigger_core::validate;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

/// INVALID_ARGUMENT with each field and what is wrong with it (`google.rpc.BadRequest`).
pub(super) fn invalid(errors: &[FieldError]) -> Status {
    let mut details = ErrorDetails::new();
    for error in errors.iter().take(validate::MAX_FAULTS) {
        details.add_bad_request_violation(&error.path, &error.message);
    }
    Status::with_error_details(Code::InvalidArgument, validate::message(errors), details)
}

/// What the API server has refused, or could not do.
pub(super) fn refused(error: &kube::Error) -> Status {
    let kube::Error::Api(status) = error else {
        return Status::unavailable(format!("the API server can't be asked: {error}; try again"));
    };
    let message = status.message.clone();
    match (status.code, status.reason.as_str()) {
        (404, _) => Status::not_found(message),
        (409, "AlreadyExists") => Status::already_exists(message),
        (409, _) => Status::aborted(message),
        (403, _) if message.contains("exceeded quota") => Status::resource_exhausted(message),
        (403, _) => Status::permission_denied(message),
        (400 | 413 | 422, _) => {
            let causes = status.details.iter().flat_map(|details| &details.causes);
            let mut details = ErrorDetails::new();
            for cause in causes.take(validate::MAX_FAULTS) {
                details.add_bad_request_violation(&cause.field, &cause.message);
            }
            Status::with_error_details(Code::InvalidArgument, message, details)
        }
        // A page token that is too old.
        (410, _) => Status::invalid_argument(format!("page_token: {message}")),
        _ => Status::unavailable(message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    #[test]
    fn every_field_is_reported() {
        let errors = [FieldError::new("spec.a", "is wrong"), FieldError::new("spec.b[1]", "too")];
        let status = invalid(&errors);
        assert_eq!(status.message(), "spec.a: is wrong; spec.b[1]: too");
        let details = status.get_error_details();
        let violations = &details.bad_request().unwrap().field_violations;
        assert_eq!((violations[1].field.as_str(), violations[1].description.as_str()), ("spec.b[1]", "too"));
    }

    #[test]
    fn the_api_servers_words_arrive() {
        let answer = |code: u16, reason: &str, message: &str| {
            let status = serde_json::json!({"status": "Failure", "code": code, "reason": reason, "message": message,
                "details": {"causes": [{"field": "spec.x", "message": "m", "reason": "FieldValueInvalid"}]}});
            refused(&kube::Error::Api(Box::new(fixtures::object(status))))
        };
        for (code, reason, message, expected) in [
            (404, "NotFound", "no", Code::NotFound),
            (409, "AlreadyExists", "no", Code::AlreadyExists),
            (409, "Conflict", "no", Code::Aborted),
            (403, "Forbidden", "exceeded quota: q", Code::ResourceExhausted),
            (403, "Forbidden", "no", Code::PermissionDenied),
            (422, "Invalid", "no", Code::InvalidArgument),
            (410, "Expired", "old", Code::InvalidArgument),
            (503, "", "no", Code::Unavailable),
        ] {
            let status = answer(code, reason, message);
            assert_eq!(status.code(), expected, "{code} {reason}");
            assert!(status.message().contains(message));
        }
        let status = answer(422, "Invalid", "no");
        assert_eq!(status.get_error_details().bad_request().unwrap().field_violations[0].field, "spec.x");
    }
}
