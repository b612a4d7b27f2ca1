//! Pods that aren't bound to a Node before their companions are Ready (`ordering: BeforeBinding`).
//!
//! **In**: a watch of the claims of such Pods, which the scheduler allocates before it binds the Pod, and the decisions of the
//! [`Board`]. **Out**: the Node of the allocation, which the workload has until the Pod is bound
//! ([`WorkloadStore::claim`]), and two conditions of the device in the claim's status: by one the scheduler binds the Pod, by the other
//! it chooses again.
//!
//! Claims are selected by a label that they get from Outrigger's template, so the agent keeps no others.

mod allocations;
mod claim;

use std::sync::Arc;

use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::Api;
use kube::api::Patch;
use outrigger_core::keys;
use outrigger_core::reason::READY;
use outrigger_runtime::Process;
use outrigger_runtime::cache::Feed;
use outrigger_runtime::ready::{Readiness, ReadyHandle, Warning};
use outrigger_runtime::watch::{Event, Watch};
use tokio::sync::watch::{self, Receiver};
use tracing::{debug, info, warn};

pub(crate) use self::allocations::Allocations;
pub(crate) use self::claim::Allocation;
use crate::companions::{Bind, Board, Verdict};
use crate::context::Context;
use crate::first::Devices;
use crate::metrics::WriteOutcome;
use crate::store::WorkloadStore;
use crate::waits::lasts;
use crate::writes;

/// Number of writes at the same time.
const WRITERS: usize = 4;
/// What the list of workloads waits for, as `/readyz` names it.
pub(crate) const CLAIMS: &str = "claims";

struct Writer {
    context: Arc<Context>,
    board: Arc<Board>,
    /// Receives the claims of the API server's responses.
    claims: Feed<ResourceClaim>,
    /// Set while the agent may not write.
    forbidden: Warning,
}

/// Starts to follow claims and to write their conditions.
pub(crate) fn start(
    process: &Process,
    context: &Arc<Context>,
    store: &Arc<WorkloadStore>,
    board: &Arc<Board>,
    devices: &Arc<Devices>,
) {
    let store = store.clone();
    let claims = Feed::new(move |change| store.claim(change));
    let label = format!("{}={}", keys::COMPANIONS_WAIT, keys::WAIT_BINDING);
    let watch = Watch::all(&context.client, "claims").labels(&label).optional().complete();
    let listed = Readiness::default();
    let (sender, may_not_list) = watch::channel(false);
    let mut sink = claims.sink();
    let sink = move |event: Event<ResourceClaim>| {
        // A failure of another kind ends what was said before.
        let fails = matches!(event, Event::Failed(_)).then_some(false);
        if let Some(refused) = event.refused().or(fails) {
            sender.send_if_modified(|before| std::mem::replace(before, refused) != refused);
        }
        sink(event);
    };
    let watching = watch.environment(&context.environment).follow(listed.wait_for(CLAIMS), sink);
    process.spawn("watch of claims", watching);
    let ready = process.readiness.wait_for(CLAIMS);
    process.spawn("list of claims", release_when_listed(devices.clone(), listed, may_not_list, ready));
    let forbidden = process.readiness.warning("conditions of claims");
    let writer = Writer { context: context.clone(), board: board.clone(), claims, forbidden };
    process.spawn("conditions of claims", writer.run());
}

/// Releases the list of workloads: without the Nodes of allocations, companions of Pods that wait would be deleted. So where the list
/// fails for another reason than a missing right, the workloads wait for it. The API server has to refuse it for a while, and nothing else
/// to happen to it.
async fn release_when_listed(
    devices: Arc<Devices>,
    listed: Readiness,
    mut may_not_list: Receiver<bool>,
    ready: ReadyHandle,
) {
    let is_listed = tokio::select! {
        () = listed.done() => true,
        () = lasts(&mut may_not_list) => false,
    };
    if !is_listed {
        devices.claims(false);
        warn!("could not list the claims of Pods; the role outrigger-agent-companions-first permits it");
        ready.done();
        listed.done().await;
    } else {
        ready.done();
    }
    devices.claims(true);
    std::future::pending::<()>().await;
}

impl Writer {
    async fn run(self) {
        writes::writers(WRITERS, || async {
            let bind = self.board.next_bind().await;
            let outcome = self.write(&bind).await;
            self.board.bind_done(&bind.id, outcome, self.context.environment.random.fraction());
        })
        .await;
    }

    async fn write(&self, bind: &Bind) -> WriteOutcome {
        let (name, namespace) = (&bind.claim.name, &bind.claim.namespace);
        let api: Api<ResourceClaim> = Api::namespaced(self.context.client.clone(), namespace);
        let now = self.context.timestamp();
        let (kind, reason, message) = match bind.verdict {
            Verdict::Ready => (keys::CLAIM_READY, READY, "the companions are Ready".to_owned()),
            Verdict::Unavailable(cause) => (keys::CLAIM_UNAVAILABLE, cause.as_str(), cause.message()),
        };
        let patch = Patch::Merge(bind.allocation.patch(kind, reason, &message, &now));
        let result = api.patch_status(name, &writes::patch(), &patch).await;
        let outcome = match &result {
            // A ValidatingAdmissionPolicy refuses with "Invalid" where it names no other reason.
            Err(kube::Error::Api(status)) if status.code == 422 => WriteOutcome::Refused,
            result => WriteOutcome::of(result),
        };
        // Counted before anything else shows it, so that who has seen a warning finds it counted.
        self.context.metrics.claim_write(outcome);
        match result {
            Ok(written) => {
                self.forbidden.set(None);
                // Before the write is done, so that it isn't compared with its former state.
                self.claims.answer(written);
                info!(
                    claim = name,
                    namespace,
                    node = bind.allocation.node,
                    condition = kind,
                    reason,
                    "set a condition of a claim"
                );
            }
            Err(kube::Error::Api(status)) if outcome != WriteOutcome::Failed => {
                if writes::forbid(&self.forbidden, "write conditions of claims", &status) {
                    warn!(claim = name, namespace, reason = %status.message, "may not write conditions of claims");
                }
            }
            Err(error) => {
                // Mostly the claim has changed, or is gone.
                debug!(claim = name, namespace, %error, "failed to write a condition of a claim; retrying");
            }
        }
        outcome
    }
}
