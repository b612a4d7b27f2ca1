//! Machines: groups of nodes that are given out by the slot. For each there are a MachineNodePool, which marks the nodes, and
//! for each type a StatefulSet of reservations that hold slots open until guests take their places.
//!
//! [`cache`] is what is known, [`machine`] and [`pool`] take one look at an object each and write what has to be different,
//! on the replica that leads. A cluster that doesn't have the kinds has nothing to do here, and waits for nothing.

mod cache;
mod controller;
mod machine;
mod nodes;
mod objects;
mod pods;
mod pool;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Namespace, Node, Service};
use kube::api::Api;
use kube::core::PartialObjectMeta;
use kube::{Client, Resource};
use outrigger_api::{Machine, MachineNodePool};
use outrigger_core::keys;
use outrigger_runtime::Process;
use outrigger_runtime::cache::{Change, Feed};
use outrigger_runtime::lease::Leadership;
use outrigger_runtime::pod::Pod;
use outrigger_runtime::watch::{follow, watch, watch_config, watch_optional};
use tokio::time::Instant;

use crate::events::Events;
use crate::queue::Queue;
use cache::MachineCache;
use controller::Controller;
pub use controller::Key;
pub use objects::Settings;

/// What is written too, and so is also learned from answers. What it concerns goes into the queue.
#[derive(Debug, Clone)]
struct Feeds {
    machines: Feed<Machine>,
    pools: Feed<MachineNodePool>,
    nodes: Feed<Node>,
    sets: Feed<StatefulSet>,
    services: Feed<Service>,
}

impl Feeds {
    fn new(cache: &Arc<MachineCache>, queue: &Arc<Queue<Key>>) -> Self {
        Self {
            machines: feed(cache, queue, MachineCache::machine),
            pools: feed(cache, queue, MachineCache::pool),
            nodes: feed(cache, queue, MachineCache::node),
            sets: feed(cache, queue, MachineCache::set),
            services: feed(cache, queue, MachineCache::service),
        }
    }
}

fn feed<K: Resource + 'static>(
    cache: &Arc<MachineCache>,
    queue: &Arc<Queue<Key>>,
    take: fn(&MachineCache, Change<K>) -> Vec<Key>,
) -> Feed<K> {
    let (cache, queue) = (cache.clone(), queue.clone());
    Feed::new(move |change| queue.add(take(&cache, change)))
}

/// What there is to look at; nothing yet.
pub fn queue() -> Arc<Queue<Key>> {
    Arc::new(Queue::new(Duration::from_millis(100), Duration::from_secs(30)))
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
    let cache = Arc::new(MachineCache::new(&settings.core_namespace));
    let feeds = Feeds::new(&cache, &queue);

    watch_optional::<Machine>(process, client, "machines", watch_config(), feeds.machines.sink());
    watch_optional::<MachineNodePool>(
        process,
        client,
        "machine node pools",
        watch_config(),
        feeds.pools.sink(),
    );
    watch::<Node>(process, client, "machine nodes", watch_config(), feeds.nodes.sink());
    let labelled = watch_config().labels(&format!("{}=enabled", keys::INJECT_RESOURCE));
    watch::<PartialObjectMeta<Namespace>>(
        process,
        client,
        "guests' namespaces",
        labelled,
        feed(&cache, &queue, MachineCache::namespace).sink(),
    );
    // One watch for both: a guest is never seen in its place before the reservation that was there is seen to go.
    let roles = format!("{} in ({}, {})", keys::POD_ROLE, keys::GUEST, keys::RESERVATION);
    let (seen, touched) = (cache.clone(), queue.clone());
    let pods = Feed::new(move |change: Change<Pod>| {
        for key in seen.pod(change) {
            touched.add_after(key, machine::SETTLE);
        }
    });
    watch(process, client, "guests and reservations", watch_config().labels(&roles), pods.sink());
    let ours = watch_config().labels(&format!("{}={}", keys::POD_ROLE, keys::RESERVATION));
    let sets: Api<StatefulSet> = Api::namespaced(client.clone(), &settings.core_namespace);
    let ready = process.readiness.wait_for("reservations");
    process.spawn("reservations", follow(sets, ours.clone(), "reservations", ready, feeds.sets.sink()));
    let services: Api<Service> = Api::namespaced(client.clone(), &settings.core_namespace);
    let ready = process.readiness.wait_for("reservations' services");
    let sink = feeds.services.sink();
    process.spawn("reservations' services", follow(services, ours, "reservations' services", ready, sink));

    let controller = Controller {
        client: client.clone(),
        cache,
        feeds,
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
