//! What the manager tells of the DPUs of hosts, for those who write it.

use std::time::Duration;

use outrigger_core::map::HashMap;
use outrigger_core::reason::Cause;
use outrigger_proto::companion::HostStatus;
use outrigger_runtime::cache::Change;
use outrigger_runtime::node::Node;
use tokio::time::Instant;

use super::decide::Knowledge;
use crate::companions::Link;

/// Hosts that are remembered; what a manager tells beyond is dropped. Kubernetes is made for 5,000 Nodes.
const MAX_HOSTS: usize = 20_000;
/// Longest name of a Node.
const MAX_NAME: usize = 253;
/// Time for which a stream has to be complete before silence about a Node means that it is no host of the tenant's: a manager that
/// has just started may not have read the Tenant.
const SILENCE: Duration = Duration::from_secs(10);

/// Learns of the tenant's Nodes, and what the manager tells of their DPUs.
pub(crate) trait HostListener: Send + Sync {
    /// A Node has changed. Most changes, kubelets' heartbeats among them, don't concern a listener.
    fn node(&self, change: &Change<Node>);

    /// A stream is open, which tells all hosts.
    fn opened(&self);

    /// The manager told of a host.
    fn told(&self, host: &HostStatus);

    /// The manager has told everything.
    fn complete(&self);

    /// There is no stream.
    fn down(&self);
}

/// What the current stream told.
#[derive(Debug)]
pub(crate) struct Told {
    /// Also of hosts whose Nodes don't exist yet.
    hosts: HashMap<String, Option<Cause>>,
    link: Link,
}

impl Told {
    pub(crate) fn new(now: Instant) -> Self {
        Self { hosts: HashMap::default(), link: Link::Down(now) }
    }

    pub(crate) fn opened(&mut self, now: Instant) {
        self.hosts.clear();
        self.link = Link::Open { since: now, complete: None };
    }

    /// Records what the manager told of a host. Returns false for what is dropped.
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
            return (Knowledge::Told(*cause), None);
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
        let mut told = Told::new(Instant::now());
        told.opened(Instant::now());
        let kept = (0..MAX_HOSTS + 10).filter(|n| told.host(&ready(&format!("n{n}")))).count();
        assert_eq!((kept, told.hosts.len()), (MAX_HOSTS, MAX_HOSTS));
        assert!(told.host(&ready("n0")), "what is known may change");
        assert!(!told.host(&ready(&"x".repeat(254))));
    }

    #[tokio::test(start_paused = true)]
    async fn silence_means_something_ten_seconds_after_everything_was_reported() {
        let begin = Instant::now();
        let mut told = Told::new(begin);
        assert_eq!(told.knowledge("a", begin), (Knowledge::Unknown, None));
        told.opened(begin);
        assert_eq!(told.knowledge("a", begin + SILENCE), (Knowledge::Unknown, None));
        told.complete(begin);
        assert_eq!(told.knowledge("a", begin), (Knowledge::Unknown, Some(begin + SILENCE)));
        assert_eq!(told.knowledge("a", begin + SILENCE), (Knowledge::Absent, None));
        told.host(&ready("a"));
        assert_eq!(told.knowledge("a", begin + SILENCE), (Knowledge::Told(None), None));
        told.down(begin);
        assert_eq!(told.knowledge("a", begin + SILENCE), (Knowledge::Unknown, None));
    }
}
