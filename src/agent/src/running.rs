//! Watches of one namespace or of all, which start and stop while the agent runs.

use std::fmt::Debug;
use std::hash::Hash;

use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource};
use outrigger_core::map::HashSet;
use outrigger_runtime::cache::Feed;
use outrigger_runtime::ready::Readiness;
use outrigger_runtime::watch::{Event, Watch};
use serde::de::DeserializeOwned;
use tokio::task::JoinHandle;

/// A watch that can be stopped.
pub(crate) struct Running {
    task: JoinHandle<()>,
    /// Done after the first complete list.
    pub(crate) listed: Readiness,
}

impl Running {
    /// Starts a watch of this name.
    pub(crate) fn start<K>(
        watch: Watch<K>,
        name: &'static str,
        sink: impl FnMut(Event<K>) + Send + 'static,
    ) -> Self
    where
        K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let listed = Readiness::default();
        let task = tokio::spawn(watch.follow(listed.wait_for(name), sink));
        Self { task, listed }
    }

    /// Stops the watch and waits until it sends no more events.
    pub(crate) async fn stop(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

/// The objects of one namespace, or of all.
pub(crate) fn api<K>(client: &Client, namespace: Option<&str>) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}

/// Returns the sink for a watch that a feed follows. `retain` receives the ids of the objects that its first list has.
pub(crate) fn sink<K: Resource, I: Eq + Hash>(
    feed: Feed<K>,
    id: impl Fn(&K) -> Option<I>,
    retain: impl Fn(HashSet<I>),
) -> impl FnMut(Event<K>) {
    let mut first = Some(HashSet::default());
    move |event| {
        match (&event, &mut first) {
            (Event::ListStarted, Some(listed)) => listed.clear(),
            (Event::Listed(object), Some(listed)) => listed.extend(id(object)),
            // What is known of it from before has to stay.
            (Event::Unreadable(_), first) => *first = None,
            _ => {}
        }
        let completed = matches!(event, Event::ListCompleted { .. });
        feed.event(event);
        if completed && let Some(listed) = first.take() {
            retain(listed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use k8s_openapi::api::core::v1::Namespace;
    use outrigger_runtime::watch::Unreadable;

    use super::*;

    #[test]
    fn a_first_list_with_an_object_that_cannot_be_decoded_removes_nothing() {
        let unreadable = Unreadable {
            namespace: String::new(),
            name: "a".to_owned(),
            uid: "u".to_owned(),
            resource_version: "1".to_owned(),
            deleted: false,
            error: String::new(),
        };
        for (objects, expected) in [(vec![], 1), (vec![Event::Unreadable(unreadable)], 0)] {
            let calls = Cell::new(0);
            let uid = |namespace: &Namespace| namespace.metadata.uid.clone();
            let mut sink = sink(Feed::new(|_| {}), uid, |_| calls.set(calls.get() + 1));
            sink(Event::ListStarted);
            objects.into_iter().for_each(&mut sink);
            sink(Event::ListCompleted { version: 2 });
            assert_eq!(calls.get(), expected);
        }
    }
}
