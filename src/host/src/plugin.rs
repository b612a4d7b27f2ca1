//! The calls of the kubelet.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;

use futures::{Stream, StreamExt, stream};
use outrigger_api::prepare::{self, MAX_CLAIMS, Prepared};
use outrigger_core::reason::Cause;
use outrigger_core::{fault, keys};
use outrigger_runtime::environment::Clock;
use outrigger_runtime::ready::{ReadyHandle, Warning};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::{Request, Response, Status};
use tracing::{debug, info, warn};

use crate::agent::Agent;
use crate::metrics::{Metrics, Outcome};
use crate::proto::dra::dra_plugin_server::{DraPlugin, DraPluginServer};
use crate::proto::dra::{
    NodePrepareResourceResponse, NodePrepareResourcesRequest, NodePrepareResourcesResponse,
    NodeUnprepareResourceResponse, NodeUnprepareResourcesRequest, NodeUnprepareResourcesResponse,
};
use crate::proto::health::dra_resource_health_server::{DraResourceHealth, DraResourceHealthServer};
use crate::proto::health::{NodeWatchResourcesRequest, NodeWatchResourcesResponse};
use crate::proto::registration::registration_server::{Registration, RegistrationServer};
use crate::proto::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};

/// Maximum number of concurrent calls for claims. A kubelet has one for each Pod that starts, and some hundred Pods at most.
pub(crate) const CALLS: usize = 256;

/// Maximum number of open streams of a connection: calls for claims, and for what needs no permit.
pub(crate) const STREAMS: u32 = 300;

/// Largest message of the kubelet, in bytes: as many claims as one question to the agent has.
const MAX_MESSAGE: usize = prepare::MAX_QUESTION;

/// The types that the kubelet registers plugins by, and the services that it looks for.
const KIND: &str = "DRAPlugin";
const SERVICES: [&str; 2] = ["v1.DRAPlugin", "v1alpha1.DRAResourceHealth"];

/// Answers the kubelet.
pub(crate) struct Plugin {
    pub(crate) agent: Agent,
    pub(crate) metrics: Metrics,
    /// Done when the kubelet has registered the plugin.
    pub(crate) registered: Mutex<Option<ReadyHandle>>,
    /// Set while the kubelet refuses to register it.
    pub(crate) refused: Warning,
    pub(crate) calls: Semaphore,
    pub(crate) clock: Clock,
    pub(crate) drain: CancellationToken,
}

impl Plugin {
    /// All services on one socket.
    pub(crate) fn router(self: Arc<Self>) -> tonic::service::AxumRouter {
        Routes::new(RegistrationServer::from_arc(self.clone()).max_decoding_message_size(MAX_MESSAGE))
            .add_service(DraPluginServer::from_arc(self.clone()).max_decoding_message_size(MAX_MESSAGE))
            .add_service(DraResourceHealthServer::from_arc(self).max_decoding_message_size(MAX_MESSAGE))
            .into_axum_router()
    }

    /// Asks the agent about the claims of a call. Returns the error of each; an empty one means that its Pod may start.
    async fn prepare(&self, claims: Vec<prepare::Claim>) -> Result<Vec<String>, Status> {
        let (began, count) = (self.clock.now(), claims.len());
        let asked = tokio::select! {
            biased;
            () = self.drain.cancelled() => {
                return Err(Status::unavailable("the plugin is shutting down; the kubelet tries again"));
            }
            asked = self.agent.ask(claims) => asked,
        };
        let (errors, outcomes): (Vec<String>, Vec<Outcome>) = match asked {
            Ok(answers) => answers.into_iter().map(error_of).unzip(),
            Err(error) => {
                let cause = Cause::AgentUnreachable;
                let text = format!("{cause}: {}: {error:#}", cause.meaning());
                (vec![text; count], vec![Outcome::Failed; count])
            }
        };
        self.metrics.answered(&outcomes, self.clock.now().saturating_duration_since(began));
        Ok(errors)
    }
}

/// The error of a claim, and what is counted.
fn error_of(claim: Prepared) -> (String, Outcome) {
    if claim.ready {
        return (String::new(), Outcome::Ready);
    }
    // An error has to have a text: an empty one would start the Pod.
    if claim.cause.is_empty() && fault("error-of-a-claim-is-empty") {
        return (String::new(), Outcome::NotReady);
    }
    let cause = if claim.cause.is_empty() { Cause::Unknown.as_str() } else { &claim.cause };
    (format!("{cause}: {}", claim.message), Outcome::NotReady)
}

#[tonic::async_trait]
impl Registration for Plugin {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: KIND.to_owned(),
            name: keys::COMPANIONS_DRIVER.to_owned(),
            // The other services have the same socket.
            endpoint: String::new(),
            supported_versions: SERVICES.map(str::to_owned).to_vec(),
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        self.metrics.registered.set(i64::from(status.plugin_registered));
        if status.plugin_registered {
            self.refused.set(None);
            if let Some(ready) = self.registered.lock().take() {
                ready.done();
            }
            info!(driver = keys::COMPANIONS_DRIVER, "registered at the kubelet");
        } else {
            let reason: String = status.error.chars().filter(|c| !c.is_control()).take(512).collect();
            warn!(driver = keys::COMPANIONS_DRIVER, reason, "the kubelet refuses to register the plugin");
            self.refused.set(Some(format!("the kubelet refuses the plugin: {reason}")));
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

#[tonic::async_trait]
impl DraPlugin for Plugin {
    async fn node_prepare_resources(
        &self,
        request: Request<NodePrepareResourcesRequest>,
    ) -> Result<Response<NodePrepareResourcesResponse>, Status> {
        let claims = request.into_inner().claims;
        if claims.len() > MAX_CLAIMS {
            let text = format!("the call has {} claims; a call may have {MAX_CLAIMS}", claims.len());
            return Err(Status::resource_exhausted(text));
        }
        let Ok(_permit) = self.calls.try_acquire() else {
            return Err(Status::resource_exhausted(format!(
                "{CALLS} calls are in progress; the kubelet tries again"
            )));
        };
        let of = |claim: &crate::proto::dra::Claim| prepare::Claim {
            namespace: claim.namespace.clone(),
            name: claim.name.clone(),
            uid: claim.uid.clone(),
        };
        let errors = if claims.is_empty() {
            Vec::new()
        } else {
            self.prepare(claims.iter().map(of).collect()).await?
        };
        let answers = claims.into_iter().zip(errors).map(|(claim, error)| {
            debug!(namespace = claim.namespace, claim = claim.name, error, "answered for a claim");
            // No container gets a device: the claim is there to be waited for.
            (claim.uid, NodePrepareResourceResponse { devices: Vec::new(), error })
        });
        Ok(Response::new(NodePrepareResourcesResponse { claims: answers.collect() }))
    }

    /// There is nothing to undo.
    async fn node_unprepare_resources(
        &self,
        request: Request<NodeUnprepareResourcesRequest>,
    ) -> Result<Response<NodeUnprepareResourcesResponse>, Status> {
        let done = |claim: crate::proto::dra::Claim| (claim.uid, NodeUnprepareResourceResponse::default());
        let claims: HashMap<_, _> = request.into_inner().claims.into_iter().map(done).collect();
        Ok(Response::new(NodeUnprepareResourcesResponse { claims }))
    }
}

#[tonic::async_trait]
impl DraResourceHealth for Plugin {
    type NodeWatchResourcesStream =
        Pin<Box<dyn Stream<Item = Result<NodeWatchResourcesResponse, Status>> + Send>>;

    /// An open call that says nothing: the kubelet repeats one that ends, every few seconds, and logs it.
    async fn node_watch_resources(
        &self,
        _: Request<NodeWatchResourcesRequest>,
    ) -> Result<Response<Self::NodeWatchResourcesStream>, Status> {
        let silent = stream::pending().take_until(self.drain.clone().cancelled_owned());
        Ok(Response::new(silent.boxed()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_claim_that_is_ready_has_no_error() {
        let of = |ready: bool, cause: &str, message: &str| {
            let (cause, message) = (cause.to_owned(), message.to_owned());
            error_of(Prepared { uid: "u".to_owned(), ready, cause, message })
        };
        assert_eq!(of(true, "NoDPU", "left over"), (String::new(), Outcome::Ready));
        assert_eq!(
            of(false, "NoDPU", "rule fw: none"),
            ("NoDPU: rule fw: none".to_owned(), Outcome::NotReady)
        );
        assert_eq!(of(false, "", "").0, "Unknown: ", "it is no empty text");
    }
}
