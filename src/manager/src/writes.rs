//! What is said with every write to the API server.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, PatchParams, PostParams, Preconditions, Request};
use kube::{Client, Resource};
use outrigger_core::keys;
use serde_json::Value;

/// With a creation or a replacement.
pub(crate) fn post() -> PostParams {
    PostParams { field_manager: Some(keys::MANAGER.to_owned()), ..PostParams::default() }
}

/// With a creation that is only tried.
pub(crate) fn dry_run() -> PostParams {
    PostParams { dry_run: true, ..post() }
}

/// Creates a Pod from raw JSON, so that fields of newer APIs than ours arrive.
///
/// # Errors
/// As the API server says.
pub(crate) async fn create_pod(
    client: &Client,
    namespace: &str,
    pod: &Value,
    params: &PostParams,
) -> Result<Pod, kube::Error> {
    let body = serde_json::to_vec(pod).map_err(kube::Error::SerdeError)?;
    let request = Request::new(Pod::url_path(&(), Some(namespace)))
        .create(params, body)
        .map_err(kube::Error::BuildRequest)?;
    client.request::<Pod>(request).await
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
