//! The watches of Pods: one for each namespace that is told, or one for all.
//!
//! Of a Pod only what is sent is kept. So when rules name further annotations, all Pods are read again.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;

use kube::Api;
use outrigger_runtime::pod::Pod;
use outrigger_runtime::ready::{Readiness, ReadyHandle};
use outrigger_runtime::watch::Watch;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::annotations::Selection;
use crate::context::Context;
use crate::namespaces::Scope;
use crate::store::Store;

/// One watch.
struct One {
    end: CancellationToken,
    task: JoinHandle<()>,
    /// Done when everything has been listed.
    listed: Readiness,
}

impl One {
    fn start(context: &Context, store: &Arc<Store>, name: Option<String>) -> Self {
        let api: Api<Pod> = match &name {
            Some(name) => Api::namespaced(context.client.clone(), name),
            None => Api::all(context.client.clone()),
        };
        let (end, listed) = (CancellationToken::new(), Readiness::default());
        let watch = Watch::of(api, "pods").environment(&context.environment);
        let watching = watch.follow(listed.wait_for("pods"), store.pods(name));
        let ended = end.clone();
        let task = tokio::spawn(async move {
            tokio::select! {
                () = watching => {}
                () = ended.cancelled() => {}
            }
        });
        Self { end, task, listed }
    }

    /// Its last event doesn't come after this.
    async fn stop(self) {
        self.end.cancel();
        let _ = self.task.await;
    }
}

/// What is watched.
struct Watching {
    context: Arc<Context>,
    store: Arc<Store>,
    watches: BTreeMap<Option<String>, One>,
}

impl Watching {
    /// Has these namespaces' Pods watched, with these annotations.
    async fn follow(&mut self, scope: &Scope, selection: &Selection) {
        let again = !self.store.selects(selection);
        let names = scope.watches();
        for (_, one) in self.watches.extract_if(.., |name, _| again || !names.contains(name)) {
            one.stop().await;
        }
        self.store.select(selection.clone());
        if let Scope::Only(names) = scope {
            self.store.keep_namespaces(names);
        }
        for name in names {
            let (context, store) = (&self.context, &self.store);
            self.watches.entry(name.clone()).or_insert_with(|| One::start(context, store, name));
        }
    }

    /// The watches that have not listed everything yet.
    fn unlisted(&self) -> Vec<Readiness> {
        self.watches.values().map(|one| one.listed.clone()).filter(|listed| !listed.is_ready()).collect()
    }
}

/// Watches the Pods of the namespaces that are wanted, for as long as it is polled. `ready` is released when all of them have been
/// listed for the first time. Nothing is watched as long as a channel has nothing to say.
pub(crate) async fn pods(
    context: Arc<Context>,
    store: Arc<Store>,
    mut scope: watch::Receiver<Option<Scope>>,
    mut selection: watch::Receiver<Option<Selection>>,
    ready: ReadyHandle,
) {
    let mut ready = Some(ready);
    let mut watching = Watching { context, store: store.clone(), watches: BTreeMap::new() };
    loop {
        let (namespaces, annotations) =
            (scope.borrow_and_update().clone(), selection.borrow_and_update().clone());
        let (Some(namespaces), Some(annotations)) = (namespaces, annotations) else {
            tokio::select! {
                () = news(&mut scope) => {}
                () = news(&mut selection) => {}
            }
            continue;
        };
        info!(?namespaces, "Pods of these namespaces are told");
        watching.follow(&namespaces, &annotations).await;
        let unlisted = watching.unlisted();
        let listed = async {
            for one in &unlisted {
                one.done().await;
            }
        };
        // Namespaces that are wrong may never be listed. Annotations wait: else rules that change all the time would keep any list from
        // being completed.
        tokio::select! {
            () = news(&mut scope) => continue,
            () = listed => {}
        }
        store.covers(&annotations);
        if let Some(ready) = ready.take() {
            ready.done();
        }
        tokio::select! {
            () = news(&mut scope) => {}
            () = news(&mut selection) => {}
        }
    }
}

/// Waits for a change. Where nobody can make one any more there is none.
async fn news<T>(channel: &mut watch::Receiver<T>) {
    if channel.changed().await.is_err() {
        pending::<()>().await;
    }
}
