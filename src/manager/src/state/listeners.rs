//! Who hears of a change of a Tenant: the streams whose authorization it may have changed, and no others. Thousands of streams may be
//! open, and each that hears of a change looks at its tenant again.

use std::collections::BTreeSet;
use std::sync::Arc;

use outrigger_core::ids::TenantId;
use outrigger_core::map::{HashMap, remove_from};
use outrigger_core::steps::step;
use outrigger_core::tenant::Identity;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// What an authorization depends on.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Topic {
    /// The spec of a Tenant, and whether there is such a Tenant.
    Tenant(TenantId),
    /// Which tenants list an identity.
    Identity(Identity),
}

#[derive(Debug, Default)]
pub(super) struct Listeners(Mutex<ByTopic>);

#[derive(Debug, Default)]
struct ByTopic {
    topics: HashMap<Topic, HashMap<u64, Arc<Notify>>>,
    next: u64,
}

/// Hears of changes from its creation until it is dropped.
#[derive(Debug)]
pub(crate) struct Listener {
    listeners: Arc<Listeners>,
    number: u64,
    topics: Vec<Topic>,
    heard: Arc<Notify>,
}

impl Listener {
    /// Waits for a change that wasn't waited for yet. Dropping the future loses none.
    pub(crate) async fn changed(&self) {
        self.heard.notified().await;
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut inner = self.listeners.0.lock();
        for topic in &self.topics {
            remove_from(&mut inner.topics, topic, |all| all.remove(&self.number));
        }
    }
}

impl Listeners {
    /// A listener for changes of any of these topics.
    pub(super) fn listen(self: &Arc<Self>, topics: Vec<Topic>) -> Listener {
        let heard = Arc::new(Notify::new());
        let mut inner = self.0.lock();
        let number = inner.next;
        inner.next += 1;
        for topic in &topics {
            inner.topics.entry(topic.clone()).or_default().insert(number, heard.clone());
        }
        Listener { listeners: self.clone(), number, topics, heard }
    }

    /// Something of these topics has changed. A listener of several of them hears it once.
    pub(super) fn notify(&self, topics: &BTreeSet<Topic>) {
        let inner = self.0.lock();
        for topic in topics {
            for heard in inner.topics.get(topic).into_iter().flat_map(HashMap::values) {
                step();
                heard.notify_one();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn tenant(name: &str) -> Topic {
        Topic::Tenant(TenantId::new(name).unwrap())
    }

    fn identity(name: &str) -> Topic {
        Topic::Identity(Identity::new(name).unwrap())
    }

    #[test]
    fn a_listener_hears_each_change_of_its_topics_and_of_no_others() {
        let listeners = Arc::<Listeners>::default();
        let blue = listeners.listen(vec![tenant("blue"), identity("agent.blue")]);
        let heard = || blue.changed().now_or_never().is_some();
        assert!(!heard());
        listeners.notify(&[tenant("red"), identity("agent.red")].into());
        assert!(!heard(), "another tenant isn't its concern");
        for topics in
            [vec![tenant("blue")], vec![identity("agent.blue")], vec![tenant("blue"), identity("agent.blue")]]
        {
            listeners.notify(&topics.into_iter().collect());
            assert!(heard() && !heard(), "once");
        }
        drop(blue);
        assert!(listeners.0.lock().topics.is_empty(), "nothing is kept of one that is gone");
    }

    #[cfg(debug_assertions)]
    #[test]
    fn a_change_takes_steps_for_its_own_listeners_alone() {
        outrigger_core::steps::assert_nearly_linear(
            |size| {
                let listeners = Arc::<Listeners>::default();
                let all: Vec<_> =
                    (0..size).map(|i| listeners.listen(vec![tenant(&format!("t{i}"))])).collect();
                (listeners, all)
            },
            |(listeners, all)| {
                for (i, listener) in all.iter().enumerate() {
                    listeners.notify(&[tenant(&format!("t{i}"))].into());
                    assert!(listener.changed().now_or_never().is_some());
                }
            },
        );
    }
}
