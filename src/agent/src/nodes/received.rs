//! What the manager reports of the DPUs of hosts, for those who write it.

use std::time::Duration;

use outrigger_core::map::HashMap;
use outrigger_core::reason::Cause;
use outrigger_proto::companion::HostStatus;
use outrigger_runtime::cache::Change;
use outrigger_runtime::node::Node;
use tokio::time::Instant;

use super::decide::Knowledge;
use crate::companions::Link;

/// Hosts that are remembered; what a manager reports beyond is dropped. Kubernetes is made for 5,000 Nodes.
const MAX_HOSTS: usize = 20_000;
/// Longest name of a Node.
const MAX_NAME: usize = 253;
/// Time for which a stream has to be complete before silence about a Node means that it is no host of the tenant's: a manager that
/// has just started may not have read the Tenant.
const SILENCE: Duration = Duration::from_secs(10);

/// Learns of the tenant's Nodes, and what the manager reports of their DPUs.
pub(crate) trait HostListener: Send + Sync {
    /// A Node has changed. Most changes, kubelets' heartbeats among them, don't concern a listener.
    fn node(&self, change: &Change<Node>);

    /// A stream is open, on which all hosts are sent.
    fn opened(&self);

    /// The state of a host was received.
    fn received(&self, host: &HostStatus);

    /// The manager has sent everything.
    fn complete(&self);

    /// There is no stream.
    fn down(&self);
}

/// The hosts that were received on the current stream.
#[derive(Debug)]
pub(crate) struct ReceivedHosts {
    /// Also of hosts whose Nodes don't exist yet.
    hosts: HashMap<String, Option<Cause>>,
    link: Link,
}

impl ReceivedHosts {
    pub(crate) fn new(now: Instant) -> Self {
        Self { hosts: HashMap::default(), link: Link::Down(now) }
    }

    pub(crate) fn opened(&mut self, now: Instant) {
        self.hosts.clear();
        self.link = Link::Open { since: now, complete: None };
    }

    /// Records what was received of a host. Returns false for what is dropped.
    pub(crate) fn host(&mut self, host: &HostStatus) -> bool {
        let cause = match host.reason.parse() {
            _ if host.dpu_ready => None,
            Ok(cause) => Some(cause),
            Err(_) => Some(Cause::Unknown),
        };
        let name = &host.node_name;
        if cause == Some(Cause::HostNotListed) {
            self.hosts.remove(name);
            return true;
        }
        let room = self.hosts.len() < MAX_HOSTS || self.hosts.contains_key(name);
        if !room || name.len() > MAX_NAME {
            return false;
        }
        self.hosts.insert(name.clone(), cause);
        true
    }

    pub(crate) fn complete(&mut self, now: Instant) {
        if let Link::Open { complete, .. } = &mut self.link {
            *complete = Some(now);
        }
    }

    pub(crate) fn down(&mut self, now: Instant) {
        self.link = Link::Down(now);
    }

    /// What is known of the DPU of a Node, and when silence about it will mean something.
    pub(crate) fn knowledge(&self, name: &str, now: Instant) -> (Knowledge, Option<Instant>) {
        let Link::Open { complete, .. } = self.link else { return (Knowledge::Unknown, None) };
        if let Some(cause) = self.hosts.get(name) {
            return (Knowledge::Reported(*cause), None);
        }
        match complete.map(|at| at + SILENCE) {
            Some(silent) if silent <= now => (Knowledge::Absent, None),
            silent => (Knowledge::Unknown, silent),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(name: &str) -> HostStatus {
        HostStatus { node_name: name.to_owned(), dpu_ready: true, ..HostStatus::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_manager_cannot_fill_the_memory() {
        let mut received = ReceivedHosts::new(Instant::now());
        received.opened(Instant::now());
        let kept = (0..MAX_HOSTS + 10).filter(|n| received.host(&ready(&format!("n{n}")))).count();
        assert_eq!((kept, received.hosts.len()), (MAX_HOSTS, MAX_HOSTS));
        assert!(received.host(&ready("n0")), "what is known may change");
        assert!(!received.host(&ready(&"x".repeat(254))));
    }

    #[tokio::test(start_paused = true)]
    async fn silence_means_something_ten_seconds_after_everything_was_reported() {
        let begin = Instant::now();
        let mut received = ReceivedHosts::new(begin);
        assert_eq!(received.knowledge("a", begin), (Knowledge::Unknown, None));
        received.opened(begin);
        assert_eq!(received.knowledge("a", begin + SILENCE), (Knowledge::Unknown, None));
        received.complete(begin);
        assert_eq!(received.knowledge("a", begin), (Knowledge::Unknown, Some(begin + SILENCE)));
        assert_eq!(received.knowledge("a", begin + SILENCE), (Knowledge::Absent, None));
        received.host(&ready("a"));
        assert_eq!(received.knowledge("a", begin + SILENCE), (Knowledge::Reported(None), None));
        received.down(begin);
        assert_eq!(received.knowledge("a", begin + SILENCE), (Knowledge::Unknown, None));
    }
}
