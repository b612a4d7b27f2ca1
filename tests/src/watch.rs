//! Calls that report how companions are, in an agent's place.

use std::collections::BTreeMap;
use std::sync::Arc;

use outrigger_proto::companion::companion_service_client::CompanionServiceClient;
use outrigger_proto::companion::watch_response::Message;
use outrigger_proto::companion::{
    Companion, CompanionState, HostStatus, WatchRequest, WatchResponse, WorkloadCompanions,
};
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use crate::outrigger::tenant_identity;
use crate::stream::{about, channel};
use crate::tenant::Tenant;
use crate::{eventually, holds};

/// What was received so far.
#[derive(Debug, Clone, Default)]
pub struct Heard {
    /// The companions of each workload.
    pub workloads: BTreeMap<String, Vec<Companion>>,
    /// The node of each workload that this is about.
    pub nodes: BTreeMap<String, Option<String>>,
    /// The hosts.
    pub hosts: BTreeMap<String, HostStatus>,
    /// Whether everything was received that was known at the beginning.
    pub synced: bool,
    /// Everything, for tests of what is never sent.
    pub log: String,
}

/// A call that is read all the time.
#[derive(Debug)]
pub struct Watch {
    heard: Arc<Mutex<Heard>>,
    /// What the manager said at its end.
    pub call: JoinHandle<Status>,
}

/// Opens a call that nobody reads.
///
/// # Errors
/// What the manager says instead.
pub async fn open(channel: Channel, tenant: &str) -> Result<Streaming<WatchResponse>, Status> {
    let mut client = CompanionServiceClient::new(channel);
    client.watch(about(tenant, WatchRequest {})).await.map(tonic::Response::into_inner)
}

impl Tenant {
    /// Follows what is sent about the tenant's companions. The workload stream has to be open.
    pub async fn watches(&self) -> Watch {
        let tls = self.outrigger.client_tls(&self.id, &[&tenant_identity(&self.id)]);
        let channel = channel(&tls, self.outrigger.grpc_port).await.expect("a channel");
        let messages = open(channel, &self.id).await.expect("a call");
        let watch = Watch::of(messages);
        watch.says("everything was received", |heard| holds(heard.synced, "not yet")).await;
        watch
    }
}

impl Watch {
    /// Reads a call from now on.
    pub fn of(mut messages: Streaming<WatchResponse>) -> Self {
        let heard = Arc::new(Mutex::new(Heard::default()));
        let all = heard.clone();
        let call = tokio::spawn(async move {
            loop {
                match messages.message().await {
                    Ok(Some(response)) => all.lock().take(response),
                    Ok(None) => return Status::ok(""),
                    Err(status) => return status,
                }
            }
        });
        Self { heard, call }
    }

    /// What was received so far.
    pub fn heard(&self) -> Heard {
        self.heard.lock().clone()
    }

    /// Waits until what was received is so.
    pub async fn says(&self, what: &str, is: impl Fn(&Heard) -> Result<(), String>) {
        eventually(what, || async {
            let heard = self.heard();
            is(&heard).map_err(|error| format!("{error}: {:?}", heard.workloads))
        })
        .await;
    }

    /// Waits until just this was received about a workload: the state and the reason of each of its companions. Returns these.
    pub async fn receives(&self, workload: &str, expected: &[(CompanionState, &str)]) -> Vec<Companion> {
        self.says(&format!("{workload} is {expected:?}"), |heard| {
            let companions = heard.workloads.get(workload).map(Vec::as_slice).unwrap_or_default();
            let is = companions.iter().map(|companion| (companion.state(), companion.reason.as_str()));
            holds(heard.workloads.contains_key(workload) && is.eq(expected.iter().copied()), "not yet")
        })
        .await;
        self.heard().workloads.remove(workload).unwrap_or_default()
    }
}

impl Heard {
    fn take(&mut self, response: WatchResponse) {
        self.log.push_str(&format!("{response:?}\n"));
        match response.message {
            Some(Message::Workload(WorkloadCompanions { workload_id, companions, node_name, .. })) => {
                self.nodes.insert(workload_id.clone(), node_name);
                self.workloads.insert(workload_id, companions);
            }
            Some(Message::Host(host)) => _ = self.hosts.insert(host.node_name.clone(), host),
            Some(Message::Synced(_)) => self.synced = true,
            Some(Message::AnnotationRequest(_)) | None => {}
        }
    }
}
