//! What is said with every write to the API server.

use kube::api::{DeleteParams, PatchParams, PostParams, Preconditions};
use outrigger_core::keys;

/// With a creation or a replacement.
pub(crate) fn post() -> PostParams {
    PostParams { field_manager: Some(keys::MANAGER.to_owned()), ..PostParams::default() }
}

/// With a creation that is only tried.
pub(crate) fn dry_run() -> PostParams {
    PostParams { dry_run: true, ..post() }
}

/// With a patch that is no server-side apply.
pub(crate) fn patch() -> PatchParams {
    PatchParams { field_manager: Some(keys::MANAGER.to_owned()), ..PatchParams::default() }
}

/// Deletes nothing but the object with this uid.
pub(crate) fn only(uid: &str) -> DeleteParams {
    DeleteParams {
        preconditions: Some(Preconditions { uid: Some(uid.to_owned()), resource_version: None }),
        ..DeleteParams::default()
    }
}

/// That something is gone already, or another one by now, is as good as deleted.
///
/// # Errors
/// Everything else.
pub(crate) fn gone<T>(result: Result<T, kube::Error>) -> Result<(), kube::Error> {
    match result {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        Err(error) => Err(error),
    }
}

/// What a read has found; `None` where the API server says that there is no such object. That it doesn't serve the kind, or
/// not yet, says nothing about the object, so such an answer is an error here.
///
/// # Errors
/// Everything else.
pub(crate) fn found<T>(result: Result<T, kube::Error>) -> Result<Option<T>, kube::Error> {
    match result {
        Ok(object) => Ok(Some(object)),
        Err(kube::Error::Api(status)) if status.code == 404 && status.reason == "NotFound" => Ok(None),
        Err(error) => Err(error),
    }
}
