//! Clients that go on while something happens to Outrigger.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::PostParams;
use outrigger_tests::rack::Rack;
use outrigger_tests::tenant::rule;
use outrigger_tests::{dry_run, eventually, holds, is_true};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::workloads::{name, pods, runs, spec, workload};

/// Between two workloads: containers take a while to start, and their Nodes hold a hundred.
const PAUSE: Duration = Duration::from_secs(2);

/// One client has Pods admitted in the tenant's namespace, and another one creates workloads of a rule of its own.
pub(super) struct Traffic {
    app: &'static str,
    stop: Arc<AtomicBool>,
    admissions: JoinHandle<(usize, Vec<String>)>,
    workloads: JoinHandle<Vec<String>>,
}

impl Traffic {
    /// Begins, and returns when the first companion is Ready.
    pub(super) async fn start(rack: &'static Rack, app: &'static str) -> Self {
        rack.plane.infra.apply(&[rule("tenant-blue", app, spec(app, &runs("echo here")))]).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let admissions =
            tokio::spawn(admit(rack.plane.infra.client_without_retries().await, Arc::clone(&stop)));
        let workloads = tokio::spawn(work(rack, app, Arc::clone(&stop)));
        eventually("a companion is ready", || async {
            let found = pods(rack, "infra", app)?;
            holds(found.iter().any(|pod| is_true(pod, "Ready")), format!("{} companions", found.len()))
        })
        .await;
        Self { app, stop, admissions, workloads }
    }

    /// Stops, and returns how many Pods were admitted, all refusals, and the names of all workloads, each of which has one companion,
    /// which is Ready.
    pub(super) async fn end(self, rack: &Rack) -> (usize, Vec<String>, Vec<String>) {
        self.stop.store(true, Ordering::Relaxed);
        let (admitted, refusals) = self.admissions.await.unwrap();
        let workloads = self.workloads.await.unwrap();
        let wanted: BTreeSet<&str> = workloads.iter().map(String::as_str).collect();
        eventually("each workload has one companion, which is ready", || async {
            let companions = pods(rack, "infra", self.app)?;
            let of: BTreeSet<&str> = companions.iter().map(workload).collect();
            let all = companions.len() == workloads.len() && of == wanted;
            holds(
                all && companions.iter().all(|pod| is_true(pod, "Ready")),
                format!("{workloads:?} have {}", json!(companions)),
            )
        })
        .await;
        rack.plane.tenant.kubectl(&["delete", "pods", "-l", &format!("app={}", self.app)]).unwrap();
        eventually("companions end with their workloads", || async {
            let left = pods(rack, "infra", self.app)?;
            holds(left.is_empty(), format!("{} are left", left.len()))
        })
        .await;
        (admitted, refusals, workloads)
    }
}

async fn admit(client: kube::Client, stop: Arc<AtomicBool>) -> (usize, Vec<String>) {
    let api: Api<Pod> = Api::namespaced(client, "tenant-blue");
    let pod = json!({"metadata": {"generateName": "asks-"}, "spec": {"containers": [runs("echo here")]}});
    let (mut admitted, mut refusals) = (0, Vec::new());
    while !stop.load(Ordering::Relaxed) {
        match dry_run(&api, &pod).await {
            Ok(_) => admitted += 1,
            Err(error) => refusals.push(error.to_string()),
        }
    }
    (admitted, refusals)
}

/// Creates workloads, and looks meanwhile that none ever has two companions that aren't being deleted.
async fn work(rack: &Rack, app: &str, stop: Arc<AtomicBool>) -> Vec<String> {
    let api: Api<Pod> = Api::namespaced(rack.plane.tenant.client().await, "default");
    let mut names = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let pod = json!({"metadata": {"name": format!("{app}-{}", names.len()), "labels": {"app": app}},
            "spec": {"terminationGracePeriodSeconds": 1, "containers": [runs("echo here")]}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        api.create(&PostParams::default(), &pod).await.unwrap();
        names.push(pod.metadata.name.unwrap());
        let companions = pods(rack, "infra", app).unwrap();
        let mut of: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
        for companion in &companions {
            of.entry(workload(companion)).or_default().push(companion);
        }
        for (workload, companions) in of {
            let names: Vec<_> = companions.iter().map(|pod| name(pod)).collect();
            assert!(companions.len() == 1, "{workload} has {names:?}");
        }
        tokio::time::sleep(PAUSE).await;
    }
    names
}
