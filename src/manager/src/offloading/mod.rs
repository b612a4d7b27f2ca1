//! Offloading of namespaces: what NamespaceOffloadings ask for becomes the label by which admission is asked about a
//! namespace's Pods, and their status says which virtual nodes were selected.
//!
//! [`cache`] is what is known, [`status`] is computed from it, [`controller`] writes, on the replica that leads. A cluster
//! that doesn't have the kind has nothing to do here, and waits for nothing.

pub mod cache;
pub mod controller;
pub mod status;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::core::PartialObjectMeta;
use kube::{Client, ResourceExt};
use outrigger_api::NamespaceOffloading;
use outrigger_core::keys;
use outrigger_runtime::Process;
use outrigger_runtime::cache::{Change, Feed};
use outrigger_runtime::lease::Leadership;
use outrigger_runtime::watch::{watch, watch_config, watch_optional};

use crate::queue::Queue;
use cache::OffloadingCache;
use controller::{Controller, Key};

/// Starts the watches and the controller.
pub fn start(process: &Process, client: &Client, leadership: &Leadership) {
    let cache = Arc::new(OffloadingCache::default());
    let queue = Arc::new(Queue::<Key>::new(Duration::from_millis(100), Duration::from_secs(60)));

    let (seen, touched) = (cache.clone(), queue.clone());
    let objects =
        Feed::new(move |change: Change<NamespaceOffloading>| touched.add(seen.object(change).map(Key)));
    watch_optional(process, client, "namespace offloadings", watch_config(), objects.sink());

    let (seen, touched) = (cache.clone(), queue.clone());
    let nodes = Feed::new(move |change: Change<PartialObjectMeta<Node>>| {
        if seen.node(change) {
            touched.add(seen.namespaces().into_iter().map(Key));
        }
    });
    let virtual_nodes = watch_config().labels(&format!("{}={}", keys::NODE_TYPE, keys::VIRTUAL_NODE));
    watch(process, client, "virtual nodes", virtual_nodes, nodes.sink());

    // Who changes the label by hand is put right.
    let (seen, touched) = (cache.clone(), queue.clone());
    let labels = Feed::new(move |change: Change<PartialObjectMeta<Namespace>>| {
        let name = match change {
            Change::Applied(namespace) => namespace.name_any(),
            Change::Gone { name, .. } => name,
        };
        if seen.get(&name).is_some() {
            touched.add([Key(name.into())]);
        }
    });
    watch(process, client, "offloaded namespaces", watch_config().labels(keys::OFFLOADED), labels.sink());

    let controller = Controller { client: client.clone(), cache, queue, leadership: leadership.clone() };
    let lists = process.readiness.clone();
    process.spawn("offloading", async move {
        // All virtual nodes have to be known before a status says that none was selected.
        lists.done().await;
        controller.run().await;
    });
}
