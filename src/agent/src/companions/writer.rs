//! Writes the conditions of Pods, and their Events.
//!
//! A write is a strategic merge patch of `pods/status` that holds nothing but conditions of the agent, and the Pod's uid: another
//! Pod of the same name is not written.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::{Api, Patch};
use outrigger_core::reason::Cause;
use outrigger_runtime::pod::Pod;
use outrigger_runtime::ready::Warning;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::{debug, warn};

use super::Board;
use super::board::Write;
use crate::conditions::Condition;
use crate::context::Context;
use crate::metrics::WriteOutcome;
use crate::paced::FORBIDDEN;
use crate::store::WorkloadStore;
use crate::writes;

/// Number of writes at the same time.
const WRITERS: usize = 4;

/// Writes what the board asks for.
pub(crate) struct Writer {
    pub context: Arc<Context>,
    pub board: Arc<Board>,
    /// Receives the Pods of the API server's responses.
    pub store: Arc<WorkloadStore>,
    /// Set while the agent may not write conditions.
    pub conditions_forbidden: Warning,
    /// Set while the agent may not write Events, with the time of the next attempt.
    pub events_forbidden: (Warning, Mutex<Option<Instant>>),
}

impl Writer {
    pub(crate) async fn run(self) {
        writes::writers(WRITERS, || async {
            let write = self.board.next().await;
            self.write(write).await;
        })
        .await;
    }

    async fn write(&self, write: Write) {
        let api: Api<Pod> = Api::namespaced(self.context.client.clone(), &write.namespace);
        let patch = Patch::Strategic(self.patch(&write));
        let result = api.patch_status(&write.name, &writes::patch(), &patch).await;
        let (pod, namespace) = (&write.name, &write.namespace);
        let outcome = WriteOutcome::of(&result);
        // Counted before anything else shows it, so that who has seen a warning finds it counted.
        self.context.metrics.condition_write(outcome);
        match result {
            Ok(written) => {
                // Before the write is done, so that the Pod isn't compared with its former conditions.
                self.store.answer(written);
                self.conditions_forbidden.set(None);
            }
            Err(kube::Error::Api(status)) if outcome == WriteOutcome::Refused => {
                warn!(%pod, %namespace, reason = %status.message, "a policy refuses conditions of a Pod");
            }
            Err(kube::Error::Api(status)) if outcome == WriteOutcome::Forbidden => {
                if writes::forbid(&self.conditions_forbidden, "write conditions of Pods", &status) {
                    warn!(%pod, %namespace, reason = %status.message,
                        "may not write conditions of Pods; companions are not reported at workloads");
                }
            }
            Err(error) => {
                // Mostly the Pod is gone, or was replaced.
                debug!(%pod, %namespace, %error, "failed to write conditions of a Pod; retrying");
            }
        }
        self.board.done(&write.id, outcome, self.context.environment.random.fraction());
        if outcome == WriteOutcome::Ok
            && let Some(event) = &write.event
        {
            self.event(&write, event).await;
        }
    }

    /// The patch. The list of conditions is merged by their types, so all others stay.
    fn patch(&self, write: &Write) -> Value {
        let now = self.context.timestamp();
        let conditions: Vec<Value> = write
            .conditions
            .iter()
            .map(|new| new.condition.patch(new.kind, new.transition.then_some(&*now)))
            .collect();
        json!({"metadata": {"uid": write.id.as_str()}, "status": {"conditions": conditions}})
    }

    async fn event(&self, write: &Write, condition: &Condition) {
        let (warning, pause) = &self.events_forbidden;
        let now = self.context.environment.clock.now();
        if pause.lock().is_some_and(|until| until > now) {
            return;
        }
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(write.namespace.clone()),
            name: Some(write.name.clone()),
            uid: Some(write.id.to_string()),
            ..ObjectReference::default()
        };
        let is_problem = !condition.is_true() && !condition.reason.parse().is_ok_and(Cause::is_progress);
        let events = &self.context.events;
        let result = events
            .try_publish(is_problem, &condition.reason, "TellCompanions", &condition.message, &about)
            .await;
        let outcome = WriteOutcome::of(&result);
        match result {
            Ok(()) => {
                warning.set(None);
            }
            Err(kube::Error::Api(status)) if outcome == WriteOutcome::Forbidden => {
                *pause.lock() = Some(now + FORBIDDEN);
                if writes::forbid(warning, "write Events of Pods", &status) {
                    warn!(namespace = %write.namespace, reason = %status.message, "may not write Events of Pods");
                }
            }
            Err(error) => {
                debug!(pod = %write.name, namespace = %write.namespace, %error, "failed to write an Event of a Pod");
            }
        }
    }
}
