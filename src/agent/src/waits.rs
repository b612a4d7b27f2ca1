//! What tasks of the agent wait for.

use std::future::pending;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

/// How long what isn't listed or known yet is waited for. Afterwards the rest goes on without it where it can, and elsewhere that is worth a
/// warning.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

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

/// Waits until something has been the case for [`PATIENCE`] without a break.
pub(crate) async fn lasts(state: &mut watch::Receiver<bool>) {
    // Whoever says so never ends.
    while state.wait_for(|is| *is).await.is_ok() {
        if timeout(PATIENCE, state.wait_for(|is| !*is)).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn workloads_wait_for_claims_unless_these_may_not_be_listed_for_a_while() {
        let (said, mut refused) = watch::channel(false);
        let waits = tokio::spawn(async move { lasts(&mut refused).await });
        // Calls that are lost, and a single answer that the right is missing, release nothing.
        for is_refused in [false, true, false, true] {
            sleep(Duration::from_mins(1)).await;
            assert!(!waits.is_finished());
            let _ = said.send(is_refused);
            sleep(PATIENCE / 2).await;
            assert!(!waits.is_finished());
            let _ = said.send(false);
        }
        let _ = said.send(true);
        sleep(PATIENCE + Duration::from_secs(1)).await;
        assert!(waits.is_finished());
    }
}
