//! The tenant's Pods and their companions.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use kube::runtime::watcher::{Config, Event, watcher};
use outrigger_core::keys;
use outrigger_core::workload::Workload;
use outrigger_tests::tenant::{annotation, is_ready, node_of};
use serde_json::json;

/// How long anything may take.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
/// Pods that [`measure`] starts.
pub(crate) const SAMPLES: usize = 200;

/// The tenant's Pods on both sides.
pub(crate) struct Demo {
    pub(crate) companions: Api<Pod>,
    pub(crate) work: Api<Pod>,
}

impl Demo {
    pub(crate) async fn list(&self) -> anyhow::Result<Vec<Pod>> {
        Ok(self.companions.list(&ListParams::default().labels(keys::RULE)).await?.items)
    }

    pub(crate) async fn companions_ready(&self, count: usize) -> anyhow::Result<()> {
        let began = Instant::now();
        loop {
            let all = self.list().await?;
            let ready = all.iter().filter(|c| is_ready(c) && c.metadata.deletion_timestamp.is_none()).count();
            if ready == count && all.len() == count {
                return Ok(());
            }
            ensure!(
                began.elapsed() < LIMIT,
                "{ready} of {} companions are ready, {count} are wanted",
                all.len()
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until admission makes of a Pod what it should.
    pub(crate) async fn would_get(
        &self,
        pod: &serde_json::Value,
        wanted: impl Fn(PodSpec) -> bool,
    ) -> anyhow::Result<()> {
        let began = Instant::now();
        while !outrigger_tests::dry_run(&self.work, pod).await?.spec.is_some_and(&wanted) {
            ensure!(began.elapsed() < LIMIT, "admission doesn't know of the ordering");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// The companion of a running Pod, whose container has to have started after the companion was ready.
    pub(crate) async fn started_after_companion(&self, name: &str) -> anyhow::Result<String> {
        let pod = self.work.get(name).await?;
        let uid = pod.uid().context("no uid")?;
        let all = self.list().await?;
        let companion = all
            .iter()
            .find(|c| annotation(c, "entire-workload").is_some_and(|workload| workload.contains(&uid)))
            .context("it has no companion")?;
        let (started, ready) = (started(&pod), ready_since(companion));
        ensure!(
            started.zip(ready).is_some_and(|(started, ready)| started >= ready),
            "the container started at {started:?}, its companion was ready at {ready:?}"
        );
        Ok(companion.name_any())
    }

    /// The name of a companion's workload, as the companion knows it.
    pub(crate) async fn workload_of(&self, companion: &str) -> anyhow::Result<String> {
        let companion = self.companions.get(companion).await?;
        let workload = annotation(&companion, "entire-workload").context("it knows no workload")?;
        Ok(serde_json::from_str::<Workload>(workload)?.resource_name)
    }

    /// Returns how long the companion of the Pod `guarded` took, and then the Pod, to be ready. Fails if the Pod was ready first.
    pub(crate) async fn follow_guarded(&self) -> anyhow::Result<[Duration; 2]> {
        let began = Instant::now();
        let uid = self.work.get("guarded").await?.uid().context("no uid")?;
        let serves =
            |c: &Pod| annotation(c, "entire-workload").is_some_and(|workload| workload.contains(&uid));
        let mut companion = None;
        loop {
            // In this order: what is ready now, was not ready when it was asked about before.
            let pod = is_ready(&self.work.get("guarded").await?);
            let is_protected = self.list().await?.iter().any(|c| serves(c) && is_ready(c));
            ensure!(is_protected || !pod, "the Pod is ready before its companion");
            if is_protected && companion.is_none() {
                companion = Some(began.elapsed());
            }
            if let (Some(companion), true) = (companion, pod) {
                return Ok([companion, began.elapsed().saturating_sub(companion)]);
            }
            ensure!(began.elapsed() < LIMIT, "companion {companion:?}, Pod {pod}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) async fn one_companion(&self) -> anyhow::Result<String> {
        Ok(self.list().await?.first().context("no companion")?.name_any())
    }

    pub(crate) async fn check_companions(&self) -> anyhow::Result<()> {
        let work = self.work.list(&ListParams::default()).await?.items;
        let companions = self.list().await?;
        ensure!(companions.len() == work.len(), "{} companions of {} Pods", companions.len(), work.len());
        for c in companions {
            let name = c.name_any();
            let text =
                annotation(&c, "entire-workload").with_context(|| format!("{name} knows no workload"))?;
            let workload: Workload = serde_json::from_str(text)?;
            let Some(pod) = work.iter().find(|p| p.uid().as_deref() == Some(workload.id.as_str())) else {
                bail!("{name} serves {}, which is no Pod of the tenant", workload.id);
            };
            let host = node_of(pod);
            ensure!(annotation(&c, "tenant-node-name") == Some(host), "{name} got another node");
            ensure!(node_of(&c).ends_with(host), "{name} runs on {}, its workload on {host}", node_of(&c));
        }
        Ok(())
    }
}

/// When the container of a Pod was started, by its kubelet.
fn started(pod: &Pod) -> Option<Timestamp> {
    let status = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
    Some(status.state.as_ref()?.running.as_ref()?.started_at.as_ref()?.0)
}

/// Since when a Pod has been ready.
fn ready_since(pod: &Pod) -> Option<Timestamp> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions.iter().find(|c| c.type_ == "Ready" && c.status == "True")?;
    Some(ready.last_transition_time.as_ref()?.0)
}

/// Times from the binding of a tenant's Pod to the creation of its companion, both as seen by a watch of their cluster.
pub(crate) async fn measure(demo: &Demo) -> anyhow::Result<Vec<(String, Vec<Duration>)>> {
    use futures::StreamExt;
    let config = Config::default().labels(keys::RULE);
    let mut seen = std::pin::pin!(watcher(demo.companions.clone(), config));
    while !matches!(seen.next().await, Some(Ok(Event::InitDone))) {}
    let mut results = Vec::new();
    for at_once in [1, SAMPLES / 2] {
        let names: Vec<String> = (0..SAMPLES / 2).map(|i| format!("sample-{at_once}-{i}")).collect();
        let mut times = Vec::new();
        for group in names.chunks(at_once) {
            let creates = group.iter().map(|name| create(demo, name));
            let bound: std::collections::HashMap<String, Instant> =
                futures::future::try_join_all(creates).await?.into_iter().collect();
            let mut missing = bound.len();
            while missing > 0 {
                let next = tokio::time::timeout(LIMIT, seen.next()).await.context("no companion in time")?;
                let Some(Ok(Event::Apply(companion))) = next else { continue };
                let Some(text) = annotation(&companion, "entire-workload") else { continue };
                let workload: Workload = serde_json::from_str(text)?;
                // The first sight of it; later events are its progress.
                if companion.status.as_ref().and_then(|s| s.conditions.as_ref()).is_none()
                    && let Some(bound) = bound.get(&workload.resource_name)
                {
                    times.push(bound.elapsed());
                    missing -= 1;
                }
            }
        }
        let what = if at_once == 1 { "one at a time".to_owned() } else { format!("{at_once} at once") };
        results.push((what, times));
    }
    let samples = ListParams::default().labels("sample=yes");
    demo.work.delete_collection(&kube::api::DeleteParams::default(), &samples).await?;
    demo.companions_ready(1).await?;
    Ok(results)
}

/// Creates a Pod that is bound to a host from the start; returns when the API server has it.
async fn create(demo: &Demo, name: &str) -> anyhow::Result<(String, Instant)> {
    let pod = json!({"metadata": {"name": name, "labels": {"app": "web", "sample": "yes"}},
        "spec": {"nodeName": "host-a", "containers": [{"name": "c", "image": "i"}]}});
    let began = Instant::now();
    outrigger_tests::create(&demo.work, &pod).await?;
    Ok((name.to_owned(), began))
}
