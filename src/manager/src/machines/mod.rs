//! Machines: groups of nodes that are given out by the slot. For each there are a MachineNodePool, which marks the nodes, and
//! for each type a StatefulSet of reservations that hold slots open until guests take their places.
//!
//! [`store`] is what is known, [`machine`] and [`pool`] take one look at an object each and write what has to be different,
//! on the replica that leads. A cluster that doesn't have the kinds has nothing to do here, and waits for nothing.

mod controller;
mod machine;
mod nodes;
mod objects;
mod pods;
mod pool;
mod store;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Service};
use kube::api::Api;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::Event;
use kube::{Client, Resource};
use outrigger_api::{Machine, MachineNodePool};
use outrigger_core::keys;
use outrigger_runtime::Process;
use outrigger_runtime::cluster::{Change, changes, follow, watch, watch_config, watch_optional};
use outrigger_runtime::lease::Leadership;
use tokio::time::Instant;

use crate::events::Events;
use crate::queue::Queue;
use controller::Controller;
pub use controller::Key;
pub use objects::Settings;
use store::Store;

/// Where changes go: into the store, and what they concern into the queue.
#[derive(Clone)]
struct Sinks {
    store: Arc<Store>,
    queue: Arc<Queue<Key>>,
}

impl Sinks {
    fn of<K: Resource>(&self, take: fn(&Store, Change<K>) -> Vec<Key>) -> impl FnMut(Event<K>) + use<K> {
        let this = self.clone();
        changes(move |change| this.queue.add(take(&this.store, change)))
    }
}

/// What there is to look at; nothing yet.
pub fn queue() -> Arc<Queue<Key>> {
    Arc::new(Queue::new(Duration::from_millis(100), Duration::from_secs(60)))
}

/// Starts the watches and the controllers.
pub fn start(
    process: &Process,
    client: &Client,
    leadership: &Leadership,
    events: &Arc<Events>,
    settings: Settings,
    queue: Arc<Queue<Key>>,
) {
    let store = Arc::new(Store::new(&settings.core_namespace));
    let sinks = Sinks { store: store.clone(), queue: queue.clone() };

    watch_optional::<Machine>(process, client, "machines", watch_config(), sinks.of(Store::machine));
    watch_optional::<MachineNodePool>(
        process,
        client,
        "machine node pools",
        watch_config(),
        sinks.of(Store::pool),
    );
    watch::<Node>(process, client, "machine nodes", watch_config(), sinks.of(Store::node));
    let labelled = watch_config().labels(&format!("{}=enabled", keys::INJECT_RESOURCE));
    watch::<PartialObjectMeta<Namespace>>(
        process,
        client,
        "guests' namespaces",
        labelled,
        sinks.of(Store::namespace),
    );
    // One watch for both: a guest is never seen in its place before the reservation that was there is seen to go.
    let roles = format!("{} in ({}, {})", keys::POD_ROLE, keys::GUEST, keys::RESERVATION);
    let (seen, touched) = (store.clone(), queue.clone());
    let pods = changes(move |change: Change<Pod>| {
        for key in seen.pod(change) {
            touched.add_after(key, machine::SETTLE);
        }
    });
    watch(process, client, "guests and reservations", watch_config().labels(&roles), pods);
    let ours = watch_config().labels(&format!("{}={}", keys::POD_ROLE, keys::RESERVATION));
    let sets: Api<StatefulSet> = Api::namespaced(client.clone(), &settings.core_namespace);
    let ready = process.readiness.wait_for("reservations");
    process.spawn("reservations", follow(sets, ours.clone(), "reservations", ready, sinks.of(Store::set)));
    let services: Api<Service> = Api::namespaced(client.clone(), &settings.core_namespace);
    let ready = process.readiness.wait_for("reservations' services");
    let sink = sinks.of(Store::service);
    process.spawn("reservations' services", follow(services, ours, "reservations' services", ready, sink));

    let controller = Controller {
        client: client.clone(),
        store,
        queue,
        leadership: leadership.clone(),
        events: events.clone(),
        settings: Arc::new(settings),
        ledgers: Arc::default(),
        began: Instant::now(),
    };
    let lists = process.readiness.clone();
    process.spawn("machines", async move {
        // Nothing is taken for missing that was only not seen yet.
        lists.done().await;
        controller.run().await;
    });
}
