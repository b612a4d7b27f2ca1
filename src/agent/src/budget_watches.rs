//! Watches of PodDisruptionBudgets: one for each namespace, or one for all, as Pods are watched.
//!
//! Budgets are hints. Where the agent may not read them, everything else goes on, and `/readyz?verbose` says so.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Client;
use outrigger_runtime::environment::Environment;
use outrigger_runtime::ready::Warning;
use outrigger_runtime::watch::{Event, Watch};
use parking_lot::Mutex;
use tokio::time::timeout;

use crate::context::Context;
use crate::running::{Running, api};
use crate::store::WorkloadStore;

/// Time for which the first stream waits for the lists of budgets, so that it begins with all groups where that is possible.
const PATIENCE: Duration = Duration::from_secs(2);
/// The watches, as metrics and `/readyz?verbose` name them.
pub(crate) const BUDGETS: &str = "pod disruption budgets";

/// Where the agent may not read budgets: the namespaces, `None` for all.
#[derive(Debug)]
struct Refusals {
    warning: Warning,
    namespaces: Mutex<BTreeSet<Option<String>>>,
}

impl Refusals {
    fn set(&self, namespace: &Option<String>, refused: bool) {
        let mut namespaces = self.namespaces.lock();
        let changed =
            if refused { namespaces.insert(namespace.clone()) } else { namespaces.remove(namespace) };
        if !changed {
            return;
        }
        let text = namespaces.first().map(|first| {
            let first = first.as_deref().unwrap_or("all namespaces");
            let others = if namespaces.len() > 1 { " and others" } else { "" };
            format!(
                "may not list PodDisruptionBudgets of {first}{others}, so companions are replaced without regard to them; \
                 the role outrigger-agent permits it"
            )
        });
        self.warning.set(text);
    }

    /// Follows what the events of a watch say of the agent's rights.
    fn event(&self, namespace: &Option<String>, event: &Event<PodDisruptionBudget>) {
        if let Some(refused) = event.refused() {
            self.set(namespace, refused);
        }
    }
}

/// See the [module](self).
pub(crate) struct BudgetWatches {
    client: Client,
    environment: Environment,
    store: Arc<WorkloadStore>,
    refusals: Arc<Refusals>,
    watches: BTreeMap<Option<String>, Running>,
}

impl BudgetWatches {
    /// No watches yet. `warning` is set while the agent may not read budgets.
    pub(crate) fn new(context: &Context, store: Arc<WorkloadStore>, warning: Warning) -> Self {
        let (client, environment) = (context.client.clone(), context.environment.clone());
        let refusals = Arc::new(Refusals { warning, namespaces: Mutex::default() });
        Self { client, environment, store, refusals, watches: BTreeMap::new() }
    }

    /// Starts and stops watches so that there is one for each of these namespaces.
    pub(crate) async fn update(&mut self, names: &BTreeSet<Option<String>>) {
        for (name, watch) in self.watches.extract_if(.., |name, _| !names.contains(name)) {
            watch.stop().await;
            self.refusals.set(&name, false);
        }
        for name in names {
            if !self.watches.contains_key(name) {
                let watch = self.start(name.clone());
                self.watches.insert(name.clone(), watch);
            }
        }
    }

    fn start(&self, name: Option<String>) -> Running {
        let refusals = self.refusals.clone();
        let watch: Watch<PodDisruptionBudget> = Watch::of(api(&self.client, name.as_deref()), BUDGETS);
        let mut sink = self.store.budgets(name.clone());
        Running::start(watch.optional().environment(&self.environment), BUDGETS, move |event| {
            refusals.event(&name, &event);
            sink(event);
        })
    }

    /// Waits a moment for the first lists.
    pub(crate) async fn listed(&self) {
        let lists = self.watches.values().map(|watch| watch.listed.done());
        // Without them the workloads are sent again when their budgets are known.
        let _ = timeout(PATIENCE, join_all(lists)).await;
    }
}

#[cfg(test)]
mod tests {
    use outrigger_runtime::fake_api::{FakeApi, failure};
    use outrigger_runtime::pod::Pod;
    use outrigger_runtime::ready::Readiness;
    use outrigger_runtime::watch::Failed;
    use serde_json::json;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_agent_that_may_not_list_budgets_goes_on_and_has_them_once_it_may() {
        const PATH: &str = "/apis/policy/v1/namespaces/x/poddisruptionbudgets";
        let (api, readiness, store) =
            (FakeApi::default(), Readiness::default(), Arc::new(WorkloadStore::default()));
        let warning = readiness.warning(BUDGETS);
        let mut watches = BudgetWatches {
            client: api.client(),
            environment: Environment::system(),
            store: store.clone(),
            refusals: Arc::new(Refusals { warning, namespaces: Mutex::default() }),
            watches: BTreeMap::new(),
        };
        let pod = json!({"metadata": {"name": "a", "namespace": "x", "uid": "a"}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        store.pods(None)(Event::Applied(pod));
        let groups = || store.start_stream().workloads[0].groups.len();
        api.answers("GET", PATH, 403, failure(403, "Forbidden"));
        watches.update(&BTreeSet::from([Some("x".to_owned())])).await;
        watches.listed().await;
        assert_eq!((readiness.warnings().len(), readiness.is_ready(), groups()), (1, true, 0));

        let budget = json!({"metadata": {"name": "b", "namespace": "x", "uid": "b", "resourceVersion": "1"},
            "spec": {"selector": {}},
            "status": {"currentHealthy": 0, "desiredHealthy": 1, "disruptionsAllowed": 0, "expectedPods": 1}});
        api.answers("GET", PATH, 200, json!({"metadata": {"resourceVersion": "1"}, "items": [budget]}));
        for watch in watches.watches.values() {
            watch.listed.done().await;
        }
        assert_eq!((readiness.warnings().len(), groups()), (0, 1));

        watches.update(&BTreeSet::new()).await;
        assert!(watches.watches.is_empty());
    }

    #[test]
    fn a_refusal_is_shown_until_the_watch_succeeds() {
        let readiness = Readiness::default();
        let refusals = Refusals { warning: readiness.warning(BUDGETS), namespaces: Mutex::default() };
        let failed = |status| Event::Failed(Failed { status: Some(status), message: String::new() });
        let shown = || readiness.warnings().first().map(|(_, text)| text.clone()).unwrap_or_default();
        let [a, b] = ["a", "b"].map(|name| Some(name.to_owned()));
        refusals.event(&a, &failed(500));
        assert_eq!(shown(), "");
        refusals.event(&a, &failed(403));
        assert!(shown().starts_with("may not list PodDisruptionBudgets of a, so companions"), "{}", shown());
        refusals.event(&b, &failed(403));
        assert!(shown().starts_with("may not list PodDisruptionBudgets of a and others,"), "{}", shown());
        refusals.event(&a, &Event::ListCompleted { version: 1 });
        refusals.event(&b, &Event::ListStarted);
        assert!(shown().contains(" of b,"), "{}", shown());
        refusals.event(&b, &Event::Bookmark { version: 1 });
        assert_eq!(shown(), "", "it goes on without a list");
        refusals.event(&None, &failed(403));
        assert!(shown().starts_with("may not list PodDisruptionBudgets of all namespaces,"), "{}", shown());
        assert!(readiness.is_ready());
    }
}
