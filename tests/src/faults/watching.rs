//! The answer to a watch, event by event.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::call::Call;
use super::rules::{Fault, FaultId, Rules};

/// What the faults that apply to a watch say together.
#[derive(Debug, Default)]
struct Conditions {
    lag: Duration,
    frozen: bool,
    silent: bool,
    truncated: bool,
    expired: bool,
    cut: bool,
}

impl Conditions {
    fn of(faults: &BTreeMap<FaultId, Fault>) -> Self {
        let mut all = Self::default();
        for fault in faults.values() {
            match fault {
                Fault::LagWatch(lag) => all.lag = all.lag.max(*lag),
                Fault::FreezeWatch => all.frozen = true,
                Fault::BlackHole => all.silent = true,
                Fault::TruncateWatch => all.truncated = true,
                Fault::Expire => all.expired = true,
                Fault::Cut => all.cut = true,
                _ => {}
            }
        }
        all
    }
}

/// A watch that is open.
pub(super) struct Watching {
    pub(super) rules: Arc<Rules>,
    pub(super) call: Call,
    /// The faults that apply to it.
    pub(super) faults: BTreeMap<FaultId, Fault>,
    /// Resets its connection.
    pub(super) cut: CancellationToken,
    pub(super) out: mpsc::Sender<Bytes>,
}

impl Watching {
    /// Passes events on until the watch ends on either side.
    pub(super) async fn run(mut self, body: Incoming) {
        let mut lines = Lines { body, rest: BytesMut::new() };
        let mut waiting: VecDeque<(Instant, Bytes)> = VecDeque::new();
        let mut ended = false;
        let mut changed = self.rules.changed();
        loop {
            changed.mark_unchanged();
            let now = self.conditions();
            if now.cut {
                return self.cut.cancel();
            }
            if now.silent {
                return self.out.closed().await;
            }
            if now.expired {
                let _ = self.out.send(expired()).await;
                return;
            }
            while waiting.front().is_some_and(|(at, _)| !now.frozen && at.elapsed() >= now.lag) {
                let Some((_, line)) = waiting.pop_front() else { break };
                if now.truncated {
                    let _ = self.out.send(line.slice(..line.len() / 2)).await;
                    return;
                }
                if self.out.send(line).await.is_err() {
                    return;
                }
            }
            if ended && waiting.is_empty() {
                return;
            }
            let due = waiting.front().filter(|_| !now.frozen).map(|(at, _)| *at + now.lag);
            tokio::select! {
                line = lines.next(), if !ended => match line {
                    Some(line) => waiting.push_back((Instant::now(), line)),
                    None => ended = true,
                },
                _ = changed.changed() => {}
                () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
                () = self.out.closed() => return,
            }
        }
    }

    /// What applies now. A watch that has fallen silent stays so.
    fn conditions(&mut self) -> Conditions {
        let rules = &self.rules;
        self.faults.retain(|id, fault| matches!(fault, Fault::BlackHole) || rules.is_set(*id));
        let new = rules.take(&self.call, &self.faults);
        self.faults.extend(new);
        Conditions::of(&self.faults)
    }
}

/// The event that ends a watch whose resourceVersion is too old.
fn expired() -> Bytes {
    let event =
        json!({"type": "ERROR", "object": super::status(410, "Expired", "too old resource version: 1 (2)")});
    Bytes::from(format!("{event}\n"))
}

/// A body by its lines.
struct Lines {
    body: Incoming,
    rest: BytesMut,
}

impl Lines {
    /// The next line with its end; `None` when the body has ended. Dropping the future loses nothing.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                return Some(self.rest.split_to(end + 1).freeze());
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.rest.extend_from_slice(&data);
                    }
                }
                _ => return None,
            }
        }
    }
}
