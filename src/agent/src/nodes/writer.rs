//! Writes what [`Hosts`] asks for, and watches the Nodes.

use std::sync::Arc;

use kube::api::{Api, Patch};
use outrigger_core::keys;
use outrigger_runtime::Process;
use outrigger_runtime::cache::Feed;
use outrigger_runtime::node::Node;
use outrigger_runtime::ready::{Readiness, Warning};
use outrigger_runtime::watch::Watch;
use serde_json::{Value, json};
use tokio::time::timeout;
use tracing::{debug, info, warn};

use super::Hosts;
use super::board::{Part, Write};
use super::received::HostListener;
use crate::conditions::Condition;
use crate::context::Context;
use crate::metrics::WriteOutcome;
use crate::waits::PATIENCE;
use crate::writes;

/// Number of writes at the same time.
const WRITERS: usize = 2;

struct Writer {
    context: Arc<Context>,
    hosts: Arc<Hosts>,
    /// Receives the Nodes of the API server's responses.
    feed: Feed<Node>,
    /// Set while the agent may not write conditions.
    conditions_forbidden: Warning,
    /// Set while the agent may not write taints.
    taints_forbidden: Warning,
}

/// Starts to watch Nodes for these listeners. The agent is ready without them: it may lack the permission, and everything else goes
/// on. Returns what the answers of the API server are passed to, and what is ready when the Nodes are listed.
pub(crate) fn watch(
    process: &Process,
    context: &Context,
    listeners: Vec<Arc<dyn HostListener>>,
) -> (Feed<Node>, Readiness) {
    let listed = Readiness::default();
    let feed = Feed::new(move |change| listeners.iter().for_each(|listener| listener.node(&change)));
    let watch = Watch::<Node>::all(&context.client, "nodes").environment(&context.environment);
    process.spawn("nodes", watch.follow(listed.wait_for("nodes"), feed.sink()));
    process.spawn("list of nodes", warn_until_listed(listed.clone(), process.readiness.warning("nodes")));
    (feed, listed)
}

/// Starts to write on Nodes what the manager reports of their DPUs.
pub(crate) fn start(process: &Process, context: &Arc<Context>, hosts: &Arc<Hosts>, feed: Feed<Node>) {
    let writer = Writer {
        context: context.clone(),
        hosts: hosts.clone(),
        feed,
        conditions_forbidden: process.readiness.warning("conditions of Nodes"),
        taints_forbidden: process.readiness.warning("taints of Nodes"),
    };
    process.spawn("conditions of Nodes", writer.run());
}

/// Says that Nodes could not be listed, until they are.
async fn warn_until_listed(listed: Readiness, warning: Warning) {
    if timeout(PATIENCE, listed.done()).await.is_err() {
        let text = "the Nodes could not be listed, so nothing is written on them, and no devices are published for them; the roles \
                    outrigger-agent-nodes and outrigger-agent-companions-first permit it";
        warning.set(Some(text.to_owned()));
        warn!(
            "could not list Nodes; the roles outrigger-agent-nodes and outrigger-agent-companions-first permit it"
        );
        listed.done().await;
        warning.set(None);
    }
    std::future::pending::<()>().await;
}

impl Writer {
    async fn run(self) {
        writes::writers(WRITERS, || async {
            let write = self.hosts.next().await;
            self.write(write).await;
        })
        .await;
    }

    async fn write(&self, write: Write) {
        let mut outcomes = Vec::new();
        if let Some(condition) = &write.change.condition {
            let patch = Patch::Strategic(self.condition(&write, condition.as_ref()));
            outcomes.push((Part::Condition, self.patch(&write.name, &patch, Part::Condition).await));
        }
        if let Some(tainted) = write.change.taint {
            let patch = write.has.patch(&write.uid, tainted);
            let outcome = match serde_json::from_value(patch) {
                Ok(patch) => self.patch(&write.name, &Patch::Json::<Value>(patch), Part::Taint).await,
                Err(_) => WriteOutcome::Failed,
            };
            outcomes.push((Part::Taint, outcome));
        }
        if outcomes.iter().any(|(_, outcome)| *outcome == WriteOutcome::Ok) {
            let ready = write.change.condition.as_ref().map(|condition| match condition {
                Some(condition) => condition.status.as_str(),
                None => "Removed",
            });
            info!(
                node = write.name,
                ready,
                tainted = write.change.taint,
                "reported the state of a DPU on its Node"
            );
        }
        self.hosts.done(&write.name, &outcomes, self.context.environment.random.fraction());
    }

    async fn patch(&self, name: &str, patch: &Patch<Value>, part: Part) -> WriteOutcome {
        let api: Api<Node> = Api::all(self.context.client.clone());
        let (result, warning, what) = match part {
            Part::Condition => (
                api.patch_status(name, &writes::patch(), patch).await,
                &self.conditions_forbidden,
                "conditions",
            ),
            Part::Taint => (api.patch(name, &writes::patch(), patch).await, &self.taints_forbidden, "taints"),
        };
        let outcome = WriteOutcome::of(&result);
        // Counted before anything else shows it, so that who has seen a warning finds it counted.
        self.context.metrics.node_write(part, outcome);
        match result {
            Ok(written) => {
                // Before the write is done, so that the Node isn't compared with what it had.
                self.feed.answer(written);
                warning.set(None);
            }
            Err(kube::Error::Api(status)) if outcome == WriteOutcome::Forbidden => {
                if writes::forbid(warning, &format!("write {what} of Nodes"), &status) {
                    warn!(node = name, what, reason = %status.message, "may not write what a Node should have");
                }
            }
            Err(kube::Error::Api(status)) if outcome == WriteOutcome::Refused => {
                warn!(node = name, what, reason = %status.message, "a policy refuses a write of a Node");
            }
            Err(error) => {
                // Somebody else has changed the taints, or the Node is gone.
                debug!(node = name, what, %error, "failed to write a Node; retrying");
            }
        }
        outcome
    }

    /// The patch of the status. The list of conditions is merged by their types, so all others stay.
    fn condition(&self, write: &Write, wanted: Option<&Condition>) -> Value {
        let now = self.context.timestamp();
        let condition = match wanted {
            None => json!({"type": keys::DPU_READY, "$patch": "delete"}),
            Some(wanted) => {
                let stays = write.has.condition.as_ref().is_some_and(|has| has.status == wanted.status);
                let mut condition = wanted.patch(keys::DPU_READY, (!stays).then_some(&*now));
                condition["lastHeartbeatTime"] = json!(now);
                condition
            }
        };
        json!({"metadata": {"uid": write.uid}, "status": {"conditions": [condition]}})
    }
}
