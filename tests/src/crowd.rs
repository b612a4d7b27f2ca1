//! A tenant with very many companions, for benches.

use std::time::{Duration, Instant};

use kube::api::ListParams;
use outrigger_core::keys;
use outrigger_proto::v1::WorkloadUpdate;
use serde_json::json;

use crate::outrigger::{Outrigger, tenant_identity};
use crate::stream::{OpenedChunked, chunked_stream, chunked_sync, set_label, update};
use crate::tenant::{Tenant, rule_for};
use crate::writes::{settled, writes};
use crate::{InWords, eventually, holds};

/// Objects of a page of a list, as many as the manager asks for.
const PAGE: u32 = 500;

/// A tenant with two rules, one for the workloads with label `app=own` and one for those with `app=web`, and a companion for each
/// workload. The scheduler is stopped: without it companions are made in a fraction of the time.
pub struct Crowd {
    /// The tenant, with the host `a`.
    pub tenant: Tenant,
    /// The stream on which its workloads were sent.
    pub stream: OpenedChunked,
    /// Its workloads.
    pub workloads: Vec<WorkloadUpdate>,
}

impl Crowd {
    /// Makes it, with so many companions, of which `own` are those of the first rule.
    ///
    /// # Panics
    /// If they aren't at rest after half an hour.
    pub async fn of(o: &'static Outrigger, id: &str, companions: usize, own: usize) -> Self {
        let t = Tenant::without_agent(o, id, &[("a", 2)]).await;
        t.set(json!({"limits": {"companions": 2 * companions}})).await.expect("limits");
        eventually("the quota has grown", || async {
            let quota = o.plane.infra.get(&["quota", "-n", &t.namespace]).in_words()?;
            holds(quota.to_string().contains(&format!("\"{}k\"", 2 * companions / 1000)), quota.to_string())
        })
        .await;
        t.rule("r", rule_for("app", "web")).await;
        t.rule("own", rule_for("app", "own")).await;
        o.plane.command("stop infra/kube-scheduler").expect("the scheduler stops");
        let node = t.node("a");
        let workload = |i: usize| {
            let mut update = update(&format!("w{i}"), &node);
            set_label(&mut update, "app", if i < own { "own" } else { "web" });
            update
        };
        let workloads: Vec<_> = (0..companions).map(workload).collect();
        let stream = synced(&t, &workloads).await;
        let at_rest = settled(Duration::from_secs(5), async || writes(&t.infra, "pods").await);
        let limit = Duration::from_secs(1800);
        tokio::time::timeout(limit, at_rest).await.expect("the companions are at rest after half an hour");
        listed(&t, companions).await;
        Self { tenant: t, stream, workloads }
    }
}

/// A stream on which all workloads have been sent, in chunks.
///
/// # Panics
/// If the manager refuses it.
pub async fn synced(t: &Tenant, workloads: &[WorkloadUpdate]) -> OpenedChunked {
    let tls = t.outrigger.client_tls(&t.id, &[&tenant_identity(&t.id)]);
    let opened = chunked_stream(t.outrigger.grpc_port, &tls, &t.id).await.expect("a stream");
    for message in chunked_sync(workloads) {
        opened.0.send(message).await.expect("the stream is open");
    }
    opened
}

/// Seconds that a bare client takes to list so many companions, in pages as the manager does.
///
/// # Panics
/// If there are more or less.
pub async fn listed(t: &Tenant, count: usize) -> f64 {
    let began = Instant::now();
    let mut page = ListParams::default().labels(keys::RULE).limit(PAGE);
    let mut found = 0;
    loop {
        let list = t.pods().list(&page).await.expect("companions");
        found += list.items.len();
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => break,
        }
    }
    assert_eq!(found, count);
    began.elapsed().as_secs_f64()
}
