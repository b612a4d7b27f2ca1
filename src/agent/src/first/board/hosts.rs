//! What [`Devices`] learns of hosts.

use outrigger_proto::companion::HostStatus;
use outrigger_runtime::cache::Change;
use outrigger_runtime::node::Node;

use super::{Capacity, Devices, Key};
use crate::nodes::HostListener;

impl HostListener for Devices {
    fn node(&self, change: &Change<Node>) {
        let mut state = self.state.lock();
        let (name, node) = match change {
            Change::Gone { name, .. } => (name.clone(), None),
            Change::Applied(node) => {
                let pods = node.status.as_ref().and_then(|status| status.pods);
                let pods = pods.map(|pods| usize::try_from(pods).unwrap_or(usize::MAX));
                (node.metadata.name.clone().unwrap_or_default(), Some(Capacity(pods)))
            }
        };
        if node.is_none() && !state.pools.contains_key(&name) {
            return;
        }
        let pool = state.pools.entry(name.clone()).or_default();
        if std::mem::replace(&mut pool.node, node) == node {
            return;
        }
        state.queue.push(Key::Node(name), false);
        drop(state);
        self.changed.notify_one();
    }

    fn opened(&self) {
        self.state.lock().received.opened(self.clock.now());
    }

    fn received(&self, host: &HostStatus) {
        self.update(|state| {
            if state.received.host(host) && state.pools.contains_key(&host.node_name) {
                state.queue.push(Key::Node(host.node_name.clone()), false);
            }
        });
    }

    fn complete(&self) {
        self.update(|state| {
            state.received.complete(self.clock.now());
            state.push_all();
        });
    }

    fn down(&self) {
        self.state.lock().received.down(self.clock.now());
    }
}
