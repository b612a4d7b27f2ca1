//! Writes to the tenant's API server, as all parts of the agent make them.

use futures::future::join_all;
use kube::api::{PatchParams, PostParams};
use kube::core::Status;
use outrigger_core::keys;
use outrigger_runtime::ready::Warning;

/// Parameters of a creation.
pub(crate) fn post() -> PostParams {
    PostParams { field_manager: Some(keys::AGENT.to_owned()), ..PostParams::default() }
}

/// Parameters of a patch.
pub(crate) fn patch() -> PatchParams {
    PatchParams { field_manager: Some(keys::AGENT.to_owned()), ..PatchParams::default() }
}

/// Has so many writers perform one write after the other, forever.
pub(crate) async fn writers<F: Future<Output = ()>>(count: usize, write: impl Fn() -> F) {
    join_all((0..count).map(|_| async {
        loop {
            write().await;
        }
    }))
    .await;
}

/// Has `/readyz?verbose` say that the agent may not do something, with the API server's words. Returns whether that is news.
pub(crate) fn forbid(warning: &Warning, what: &str, status: &Status) -> bool {
    warning.set(Some(format!("the agent may not {what}: {}", status.message)))
}
