//! What tasks of the agent wait for.

use std::future::pending;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// Waits for a change; forever if the channel is closed.
pub(crate) async fn changed<T>(channel: &mut watch::Receiver<T>) {
    if channel.changed().await.is_err() {
        pending::<()>().await;
    }
}

/// Waits until then; forever if there is no such time.
pub(crate) async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => pending().await,
    }
}
