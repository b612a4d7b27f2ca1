//! Watches of Pods: one for each namespace, or one for all.
//!
//! Only the selected annotations of a Pod are kept, so all Pods are read again when rules name further ones.

use std::collections::BTreeMap;
use std::sync::Arc;

use outrigger_runtime::pod::Pod;
use outrigger_runtime::ready::{Readiness, ReadyHandle, Warning};
use outrigger_runtime::watch::Watch;
use tokio::sync::watch;
use tracing::info;

use crate::annotations::Selection;
use crate::budget_watches::BudgetWatches;
use crate::context::Context;
use crate::namespaces::Scope;
use crate::running::{Running, api};
use crate::store::WorkloadStore;
use crate::waits::changed;

struct PodWatches {
    context: Arc<Context>,
    store: Arc<WorkloadStore>,
    watches: BTreeMap<Option<String>, Running>,
    budgets: BudgetWatches,
}

impl PodWatches {
    /// Starts and stops watches so that they match the scope and the selection.
    async fn update(&mut self, scope: &Scope, selection: &Selection) {
        let restart = !self.store.selects(selection);
        let names = scope.watches();
        self.budgets.update(&names).await;
        for (name, watch) in self.watches.extract_if(.., |name, _| restart || !names.contains(name)) {
            watch.stop().await;
            self.store.stopped(&name);
        }
        self.store.select(selection.clone());
        if let Scope::Only(names) = scope {
            self.store.keep_namespaces(names);
        }
        for name in names {
            let (context, store) = (&self.context, &self.store);
            self.watches.entry(name.clone()).or_insert_with(|| {
                let pods: Watch<Pod> = Watch::of(api(&context.client, name.as_deref()), "pods");
                let pods = pods.complete().environment(&context.environment);
                Running::start(pods, "pods", store.pods(name))
            });
        }
    }

    /// Returns the watches whose first list is incomplete.
    fn unlisted(&self) -> Vec<Readiness> {
        self.watches.values().map(|watch| watch.listed.clone()).filter(|listed| !listed.is_ready()).collect()
    }
}

/// Watches the Pods of the configured namespaces, and their PodDisruptionBudgets. Releases `ready` when all Pods have been listed for
/// the first time. Watches nothing until both channels have a value.
pub(crate) async fn pods(
    context: Arc<Context>,
    store: Arc<WorkloadStore>,
    mut scope: watch::Receiver<Option<Scope>>,
    mut selection: watch::Receiver<Option<Selection>>,
    ready: ReadyHandle,
    forbidden: Warning,
) {
    let mut ready = Some(ready);
    let budgets = BudgetWatches::new(&context, store.clone(), forbidden);
    let mut watches = PodWatches { context, store: store.clone(), watches: BTreeMap::new(), budgets };
    loop {
        let (namespaces, annotations) =
            (scope.borrow_and_update().clone(), selection.borrow_and_update().clone());
        let (Some(namespaces), Some(annotations)) = (namespaces, annotations) else {
            tokio::select! {
                biased;
                () = changed(&mut scope) => {}
                () = changed(&mut selection) => {}
            }
            continue;
        };
        info!(namespaces = %namespaces, "watching Pods");
        watches.update(&namespaces, &annotations).await;
        let unlisted = watches.unlisted();
        let listed = async {
            for watch in &unlisted {
                watch.done().await;
            }
        };
        // A change of the namespaces interrupts the lists, which may never complete for wrong namespaces. A change of the
        // annotations doesn't: otherwise rules that change constantly would prevent every list from completing.
        tokio::select! {
            biased;
            () = changed(&mut scope) => continue,
            () = listed => {}
        }
        store.set_complete(&annotations);
        if let Some(ready) = ready.take() {
            watches.budgets.listed().await;
            ready.done();
        }
        tokio::select! {
            biased;
            () = changed(&mut scope) => {}
            () = changed(&mut selection) => {}
        }
    }
}
