//! Metrics of the agent.

use std::ops::Deref;
use std::sync::atomic::AtomicI64;

use outrigger_core::reason::Cause;
use outrigger_proto::v1::workload_chunked_stream_request::Message;
use outrigger_runtime::metrics;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::companions::Start;
use crate::nodes::Part;

/// Metrics of an agent. Cheap to clone; all clones share the same values.
#[derive(Debug, Clone, Default)]
pub(crate) struct Metrics {
    pub workloads: Gauge<i64, AtomicI64>,
    pub connected: Gauge<i64, AtomicI64>,
    pub connections: Counter,
    messages: Family<[(&'static str, &'static str); 1], Counter>,
    rounds: Family<[(&'static str, RoundOutcome); 1], Counter>,
    pub companion_watch: Gauge<i64, AtomicI64>,
    companion_watch_ends: Family<[(&'static str, WatchEnd); 1], Counter>,
    ordered: Family<[(&'static str, &'static str); 1], Gauge<i64, AtomicI64>>,
    reasons: Family<[(&'static str, &'static str); 1], Gauge<i64, AtomicI64>>,
    condition_writes: Family<[(&'static str, WriteOutcome); 1], Counter>,
    node_writes: Family<NodeWrite, Counter>,
    device_writes: Family<DeviceWrite, Counter>,
    held: Family<[(&'static str, &'static str); 1], Gauge<i64, AtomicI64>>,
    prepares: Family<[(&'static str, PrepareOutcome); 1], Counter>,
    prepares_held: Gauge<i64, AtomicI64>,
}

/// How a call for the state of companions has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum WatchEnd {
    /// The manager or the connection ended it.
    Closed,
    /// With an error.
    Failed,
    /// The manager doesn't have the call.
    Unsupported,
}

/// Which part of a Node was written, and the outcome.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NodeWrite {
    part: Part,
    outcome: WriteOutcome,
}

/// Which objects for the devices of Pods were written, and the outcome.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DeviceWrite {
    object: DeviceObject,
    outcome: WriteOutcome,
}

/// An object for the devices of Pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
enum DeviceObject {
    Slice,
    Template,
    Claim,
}

/// What came of a write of the conditions of a Pod or a claim, of a Node, or of devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum WriteOutcome {
    Ok,
    Failed,
    /// A policy or a webhook doesn't permit the write of this object, and may permit that of others: 403, and for claims also 422.
    Refused,
    /// The agent lacks the right to all such writes: 403. Only an administrator can change that.
    Forbidden,
}

impl WriteOutcome {
    const ALL: [Self; 4] = [Self::Ok, Self::Failed, Self::Refused, Self::Forbidden];

    /// What came of a request.
    pub(crate) fn of<T>(result: &Result<T, kube::Error>) -> Self {
        match result {
            Ok(_) => Self::Ok,
            Err(kube::Error::Api(status)) if status.code == 403 => Self::of_message(&status.message),
            Err(_) => Self::Failed,
        }
    }

    /// What a message of the status 403 says. Where the right is missing, the API server's own words begin with the user
    /// (`forbiddenMessage` in apiserver/pkg/endpoints/handlers/responsewriters); admission has other words at that place, whatever a
    /// policy says.
    fn of_message(message: &str) -> Self {
        let words = message.split_once(" is forbidden: ");
        let lacks_right = words.is_some_and(|(object, reason)| {
            reason.starts_with("User \"") && !object.starts_with("admission webhook")
        });
        if lacks_right { Self::Forbidden } else { Self::Refused }
    }
}

/// What came of a claim that a host asked about, or of a question without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum PrepareOutcome {
    Ready,
    NotReady,
    /// The Pod isn't on that host.
    Elsewhere,
    /// The question, or its token, is invalid.
    Refused,
    /// A limit is reached.
    Busy,
    /// The API server could not review the token.
    Failed,
}

impl PrepareOutcome {
    const ALL: [Self; 6] =
        [Self::Ready, Self::NotReady, Self::Elsewhere, Self::Refused, Self::Busy, Self::Failed];
}

impl From<&Start> for PrepareOutcome {
    fn from(start: &Start) -> Self {
        match start {
            Start::Ready => Self::Ready,
            Start::Waits { .. } => Self::NotReady,
            Start::Elsewhere => Self::Elsewhere,
        }
    }
}

/// Counts a held question until it is dropped.
#[derive(Debug)]
pub(crate) struct HeldQuestion(Gauge<i64, AtomicI64>);

impl Drop for HeldQuestion {
    fn drop(&mut self) {
        self.0.dec();
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum RoundOutcome {
    /// The clusters were compared.
    Ok,
    /// The manager was unreachable or failed.
    Failed,
    /// The manager has no service for rules.
    Unsupported,
}

impl Metrics {
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let this = Self::default();
        metrics::AGENT_WORKLOADS.register(registry, this.workloads.clone());
        metrics::AGENT_CONNECTED.register(registry, this.connected.clone());
        metrics::AGENT_CONNECTIONS.register(registry, this.connections.clone());
        metrics::AGENT_MESSAGES.register(registry, this.messages.clone());
        metrics::AGENT_ROUNDS.register(registry, this.rounds.clone());
        metrics::AGENT_COMPANION_WATCH.register(registry, this.companion_watch.clone());
        metrics::AGENT_COMPANION_WATCH_ENDS.register(registry, this.companion_watch_ends.clone());
        metrics::AGENT_WORKLOADS_BY_REASON.register(registry, this.reasons.clone());
        metrics::AGENT_CONDITION_WRITES.register(registry, this.condition_writes.clone());
        metrics::AGENT_NODE_WRITES.register(registry, this.node_writes.clone());
        metrics::AGENT_PREPARES.register(registry, this.prepares.clone());
        metrics::AGENT_PREPARES_HELD.register(registry, this.prepares_held.clone());
        // They are shown before anything has happened.
        for outcome in PrepareOutcome::ALL {
            let _ = this.prepares.get_or_create(&[("outcome", outcome)]);
        }
        for cause in Cause::ALL.iter().filter(|cause| cause.is_reported()) {
            let _ = this.reason(*cause);
        }
        for how in [WatchEnd::Closed, WatchEnd::Failed, WatchEnd::Unsupported] {
            let _ = this.companion_watch_ends.get_or_create(&[("outcome", how)]);
        }
        for outcome in WriteOutcome::ALL {
            let _ = this.condition_writes.get_or_create(&[("outcome", outcome)]);
            for part in [Part::Condition, Part::Taint] {
                let _ = this.node_writes.get_or_create(&NodeWrite { part, outcome });
            }
            for object in [DeviceObject::Slice, DeviceObject::Template, DeviceObject::Claim] {
                let _ = this.device_writes.get_or_create(&DeviceWrite { object, outcome });
            }
        }
        metrics::AGENT_ORDERED_RULES.register(registry, this.ordered.clone());
        this.ordered_rules(false, 0);
        metrics::AGENT_DEVICE_WRITES.register(registry, this.device_writes.clone());
        metrics::AGENT_HELD_RULES.register(registry, this.held.clone());
        this.held_rules(0, 0);
        this
    }

    /// Sets the number of rules with an ordering, by whether the gate is served.
    pub(crate) fn ordered_rules(&self, served: bool, count: usize) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        for (state, of) in [("Served", served), ("Missing", !served)] {
            self.ordered.get_or_create(&[("gate", state)]).set(if of { count } else { 0 });
        }
    }

    /// Sets the number of rules whose Pods don't start before their companions, by whether there are devices as they need them.
    pub(crate) fn held_rules(&self, published: usize, missing: usize) {
        for (state, count) in [("Published", published), ("Missing", missing)] {
            self.held.get_or_create(&[("devices", state)]).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    pub(crate) fn device_write(&self, template: bool, outcome: WriteOutcome) {
        let object = if template { DeviceObject::Template } else { DeviceObject::Slice };
        self.device_writes.get_or_create(&DeviceWrite { object, outcome }).inc();
    }

    /// Counts a write of the condition of a claim.
    pub(crate) fn claim_write(&self, outcome: WriteOutcome) {
        self.device_writes.get_or_create(&DeviceWrite { object: DeviceObject::Claim, outcome }).inc();
    }

    pub(crate) fn sent(&self, message: &Message) {
        let kind = match message {
            Message::WorkloadUpdate(_) => "Update",
            Message::WorkloadDelete(_) => "Delete",
            // A sync in chunks counts as one sync.
            Message::WorkloadSync(_) | Message::WorkloadSyncEnd(_) => "Sync",
            Message::WorkloadSyncBegin(_) | Message::WorkloadSyncChunk(_) => "Chunk",
        };
        self.messages.get_or_create(&[("kind", kind)]).inc();
    }

    pub(crate) fn companion_watch_ended(&self, how: WatchEnd) {
        self.companion_watch_ends.get_or_create(&[("outcome", how)]).inc();
    }

    fn reason(&self, cause: Cause) -> impl Deref<Target = Gauge<i64, AtomicI64>> {
        self.reasons.get_or_create(&[("reason", cause.as_str())])
    }

    /// What is wrong with the worst companion of a workload has changed.
    pub(crate) fn reason_changed(&self, before: Option<Cause>, now: Option<Cause>) {
        if before == now {
            return;
        }
        if let Some(before) = before {
            self.reason(before).dec();
        }
        if let Some(now) = now {
            self.reason(now).inc();
        }
    }

    /// How many workloads are counted for a reason.
    #[cfg(test)]
    pub(crate) fn workloads_of(&self, cause: Cause) -> i64 {
        self.reason(cause).get()
    }

    pub(crate) fn condition_write(&self, outcome: WriteOutcome) {
        self.condition_writes.get_or_create(&[("outcome", outcome)]).inc();
    }

    pub(crate) fn node_write(&self, part: Part, outcome: WriteOutcome) {
        self.node_writes.get_or_create(&NodeWrite { part, outcome }).inc();
    }

    pub(crate) fn prepared(&self, outcome: PrepareOutcome) {
        self.prepares.get_or_create(&[("outcome", outcome)]).inc();
    }

    /// A host's question is being held, until the result is dropped.
    pub(crate) fn prepare_held(&self) -> HeldQuestion {
        self.prepares_held.inc();
        HeldQuestion(self.prepares_held.clone())
    }

    pub(crate) fn round(&self, outcome: RoundOutcome) {
        self.rounds.get_or_create(&[("outcome", outcome)]).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::WriteOutcome;

    #[test]
    fn only_the_api_servers_own_words_mean_a_missing_right() {
        let user = r#"User "system:serviceaccount:a:b" cannot patch resource "pods/status" in API group "" in the namespace "n""#;
        assert_eq!(
            WriteOutcome::of_message(&format!(r#"pods "p" is forbidden: {user}"#)),
            WriteOutcome::Forbidden
        );
        for policy in [
            format!(
                r#"pods "p" is forbidden: ValidatingAdmissionPolicy 'x' with binding 'y' denied request: {user}"#
            ),
            format!(r#"admission webhook "w" denied the request: {user}"#),
            format!(r#"admission webhook "w" denied the request: pods "p" is forbidden: {user}"#),
            r#"events is forbidden: unable to create new content in namespace n because it is being terminated"#
                .to_owned(),
        ] {
            assert_eq!(WriteOutcome::of_message(&policy), WriteOutcome::Refused, "{policy}");
        }
    }
}
