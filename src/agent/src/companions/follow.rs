//! Keeps the call open by which the manager reports how companions are.
//!
//! It uses the connection of the workload stream, so that the replica of the manager that has the workloads answers, and so that
//! both end together.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use outrigger_api::wire_bounds::Bounds;
use outrigger_core::annotations::{MAX_ASKED, is_key};
use outrigger_core::ids::WorkloadId;
use outrigger_proto::TENANT_ID;
use outrigger_proto::companion::watch_response::Message;
use outrigger_proto::companion::{WatchRequest, WatchResponse};
use outrigger_runtime::bucket::{Bucket, Rate};
use outrigger_runtime::ready::Warning;
use outrigger_runtime::telemetry::inject_metadata;
use tokio::time::{sleep, sleep_until};
use tonic::transport::Channel;
use tonic::{Code, Request, Status, Streaming};
use tracing::{debug, info, warn};

use super::Board;
use super::received::Companions;
use crate::context::Context;
use crate::metrics::WatchEnd;
use crate::nodes::HostListener;
use crate::pauses::Pauses;
use crate::rules::printable;
use crate::rules::wire::measured;

/// The call.
const WATCH: &str = "/outrigger.companion.v1.CompanionService/Watch";
/// Limits of one message: the companions of one workload, each of another rule, with texts of about a kilobyte.
const MESSAGE: Bounds = Bounds { bytes: 4 << 20, entries: 4096, items: 0 };
/// Messages that are read. Exceeding it, a manager would only keep the agent busy.
const MESSAGES: Rate = Rate { burst: 100_000.0, minute: 60_000.0 };
/// Shortest pause between two calls.
const PAUSE: Duration = Duration::from_millis(50);
/// Pause after which a manager without the call is asked again on the same connection.
const UNSUPPORTED: Duration = Duration::from_secs(180);
/// Maximum length of an error in the log, in bytes.
const MAX_ERROR: usize = 512;

/// Follows what the manager reports.
pub(crate) struct Follower {
    pub context: Arc<Context>,
    pub board: Arc<Board>,
    /// Learn of hosts.
    pub hosts: Vec<Arc<dyn HostListener>>,
    /// Set while the manager doesn't have the call.
    pub unsupported: Warning,
}

impl Follower {
    pub(crate) async fn run(self) {
        let mut pauses = Pauses::new(PAUSE, &self.context.environment.random);
        let mut channels = self.context.channel.subscribe();
        loop {
            let channel = channels.borrow_and_update().clone();
            let Some(channel) = channel else {
                if channels.changed().await.is_err() {
                    return;
                }
                continue;
            };
            let began = self.context.environment.clock.now();
            let ended = tokio::select! {
                biased;
                _ = channels.changed() => Ok(()),
                ended = self.follow(channel) => ended,
            };
            self.context.metrics.companion_watch.set(0);
            let until = if self.ended(ended) {
                began + UNSUPPORTED
            } else {
                self.context.environment.clock.now() + pauses.after(began.elapsed())
            };
            tokio::select! {
                biased;
                () = sleep_until(until) => {}
                _ = channels.changed() => {}
            }
        }
    }

    /// Records how a call has ended. Returns whether the manager doesn't have it.
    fn ended(&self, ended: Result<(), Status>) -> bool {
        let unsupported = matches!(&ended, Err(status) if status.code() == Code::Unimplemented);
        self.board.down(unsupported);
        self.hosts.iter().for_each(|hosts| hosts.down());
        let end = match &ended {
            Ok(()) => WatchEnd::Closed,
            Err(_) if unsupported => WatchEnd::Unsupported,
            Err(_) => WatchEnd::Failed,
        };
        self.context.metrics.companion_watch_ended(end);
        match ended {
            Err(_) if unsupported => {
                if self
                    .unsupported
                    .set(Some("the manager does not tell how companions are; upgrade it".to_owned()))
                {
                    warn!("manager does not tell how companions are; upgrade it");
                }
            }
            Err(status) => {
                let (code, reason) = (status.code(), printable(status.message(), MAX_ERROR));
                info!(%code, reason, "watch of companions failed; reconnecting");
            }
            Ok(()) => debug!("watch of companions ended; reconnecting"),
        }
        unsupported
    }

    /// Opens the call and records what the manager reports, until the call ends.
    async fn follow(&self, channel: Channel) -> Result<(), Status> {
        let mut messages = self.open(channel).await?;
        let stream = self.board.opened();
        self.hosts.iter().for_each(|hosts| hosts.opened());
        self.unsupported.set(None);
        let clock = self.context.environment.clock;
        let mut pace = Bucket::new(clock.now());
        let mut asks = false;
        while let Some(received) = messages.message().await? {
            while !pace.take(MESSAGES, clock.now()) {
                sleep(Duration::from_millis(100)).await;
            }
            match received.message {
                Some(Message::Workload(workload)) => {
                    let companions = Companions::of(&workload.companions)
                        .on(workload.node_name.as_deref())
                        .at(workload.revision);
                    if let Ok(id) = WorkloadId::new(&workload.workload_id)
                        && !self.board.received(stream, &id, companions)
                    {
                        debug!(workload = %id, "the manager reported a workload that the agent doesn't have");
                    }
                }
                Some(Message::AnnotationRequest(request)) => {
                    asks = true;
                    self.ask(request.keys);
                }
                Some(Message::Synced(_)) => {
                    if !asks {
                        self.ask(Vec::new());
                    }
                    self.board.complete(stream);
                    self.hosts.iter().for_each(|hosts| hosts.complete());
                    self.context.metrics.companion_watch.set(1);
                }
                Some(Message::Host(host)) => self.hosts.iter().for_each(|hosts| hosts.received(&host)),
                // A message of a later manager.
                None => {}
            }
        }
        Ok(())
    }

    /// Records the keys of annotations that the manager asks for: of what no Pod can have, or too many, nothing.
    fn ask(&self, keys: Vec<String>) {
        let keys = keys.into_iter().filter(|key| is_key(key)).take(MAX_ASKED).collect();
        self.context.asked.send_if_modified(|asked| {
            let changed = *asked != keys;
            *asked = keys;
            changed
        });
    }

    async fn open(&self, channel: Channel) -> Result<Pin<Box<Streaming<WatchResponse>>>, Status> {
        let (mut client, path, codec) = measured(channel, WATCH, MESSAGE).await?;
        let mut request = Request::new(WatchRequest {});
        request.metadata_mut().insert(TENANT_ID, self.context.tenant.clone());
        inject_metadata(request.metadata_mut());
        Ok(Box::pin(client.server_streaming(request, path, codec).await?.into_inner()))
    }
}
