//! The boots, and what has to be back after each.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::tenant::{node_of, rule_for};
use outrigger_tests::{InWords, dry_run, holds, within};
use serde_json::{Value, json};

use crate::boot::issuers::{Installed, MANAGERS};

/// Everything is back within this time of the kill, or the test fails.
const LIMIT: Duration = Duration::from_secs(60);

/// What starts with the machine, without an order: none of ours finds an API server, and no API server finds etcd.
const FIRST: [&str; 7] = [
    "webhook",
    MANAGERS[0],
    MANAGERS[1],
    "agent-booted",
    "infra/kube-apiserver",
    "tenant/kube-apiserver",
    "etcd",
];

/// The cluster's own controllers end when they find no API server, and whoever runs them starts them again. Nobody does so here, so they
/// start when there is one.
const THEN: [&str; 7] = [
    "infra/kube-controller-manager",
    "infra/kube-scheduler",
    "infra/kwok",
    "infra/cert-manager",
    "tenant/kube-controller-manager",
    "tenant/kube-scheduler",
    "tenant/kwok",
];

/// Workloads that are created in the moment before each kill.
const UNDER_WAY: usize = 5;

/// Boots so often, and says how long it took until everything was back.
pub(crate) async fn boots(installed: Installed, rounds: usize) {
    let t = &installed.tenant;
    let mut workloads = 10;
    t.webs("w", 0..workloads).await;
    t.ready(workloads).await;
    let mut companions = t.uids().await.unwrap();
    let mut took = Vec::new();
    for round in 1..=rounds {
        t.webs(&format!("under-way-{round}-"), 0..UNDER_WAY).await;
        let began = Instant::now();
        let all = [FIRST, THEN].concat();
        on_plane(t.outrigger, move |plane| plane.command_at_once("stop", &all)).await;
        on_plane(t.outrigger, |plane| plane.command_at_once("start", &FIRST)).await;
        let served = began.elapsed();
        on_plane(t.outrigger, |plane| plane.command_at_once("start", &THEN)).await;
        let started = began.elapsed();
        workloads += UNDER_WAY + 1;
        let (companion, admitted, synchronized, led) = tokio::join!(
            installed.has_companions(began, round, workloads, &companions),
            installed.admits(began),
            installed.synchronizes(began, round),
            installed.is_led(began),
        );
        let (companions_at, now) = companion;
        companions = now;
        let back = [companions_at, admitted, synchronized, led].into_iter().max().unwrap_or_default();
        println!(
            "boot {round}: API servers after {served:.1?}, their controllers after {started:.1?}; Pods are admitted after \
             {admitted:.1?}, rules are synchronized after {synchronized:.1?}, a manager leads after {led:.1?}, companions are \
             on their DPU after {companions_at:.1?}"
        );
        took.push(back);
    }
    // The nodes of the test's clusters work too.
    t.ready(workloads).await;
    took.sort_unstable();
    println!(
        "{rounds} boots: back after {:.1?} (min), {:.1?} (median), {:.1?} (max); {} companions, none made again",
        took[0],
        took[took.len() / 2],
        took[took.len() - 1],
        companions.len()
    );
}

/// Sends commands to the supervisor on a thread of its own, because it answers only when they are done.
async fn on_plane(
    o: &'static Outrigger,
    command: impl FnOnce(&outrigger_tests::control_plane::ControlPlane) -> anyhow::Result<()> + Send + 'static,
) {
    tokio::task::spawn_blocking(move || command(&o.plane)).await.unwrap().unwrap();
}

impl Installed {
    /// Starts one more workload, and waits until all have their companions on the DPU: one each, those from before still the same.
    /// Whether they are ready says something about kwok only.
    async fn has_companions(
        &self,
        began: Instant,
        round: usize,
        count: usize,
        before: &BTreeMap<String, String>,
    ) -> (Duration, BTreeMap<String, String>) {
        let t = &self.tenant;
        t.web(&format!("after-{round}")).await;
        let all = within(began, LIMIT, &format!("{count} companions are on their DPU"), || async {
            let all = t.by_workload().await?;
            let bound = all.values().filter(|pod| node_of(pod) == t.node("a-dpu1")).count();
            if (bound, all.len()) == (count, count) {
                Ok(all)
            } else {
                Err(format!("{bound} of {}", all.len()))
            }
        })
        .await;
        let back = began.elapsed();
        let now: BTreeMap<String, String> =
            all.into_iter().map(|(name, pod)| (name, pod.metadata.uid.unwrap_or_default())).collect();
        for (name, uid) in before {
            assert_eq!(now.get(name), Some(uid), "{name} was made again");
        }
        (back, now)
    }

    /// Waits until a Pod of the tenant is admitted, and placed.
    async fn admits(&self, began: Instant) -> Duration {
        let pods = self.tenant.pods();
        let pod: Value =
            json!({"metadata": {"name": "by-hand"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        within(began, LIMIT, "a Pod is admitted", || async {
            let pod = dry_run(&pods, &pod).await.in_words()?;
            holds(pod.spec.is_some_and(|spec| spec.affinity.is_some()), "it isn't placed")
        })
        .await;
        began.elapsed()
    }

    /// Changes a rule in the tenant's cluster, and waits until it is in the infrastructure cluster and its status has come back.
    async fn synchronizes(&self, began: Instant, round: usize) -> Duration {
        let t = &self.tenant;
        let mut spec = rule_for("app", "nobody");
        spec["template"]["spec"]["containers"][0]["image"] = json!(format!("round-{round}"));
        let ours = t.own_rule("synchronized", spec).await.unwrap();
        within(began, LIMIT, "the rule is synchronized", || async {
            let there = t.rules().get("synchronized").await.in_words()?;
            let own = t.own_rules().get("synchronized").await.in_words()?;
            let observed = own.status.as_ref().and_then(|status| status.observed_generation);
            holds(
                there.spec == ours.spec && observed == ours.metadata.generation,
                format!("{:?} of {:?}", observed, ours.metadata.generation),
            )
        })
        .await;
        began.elapsed()
    }

    /// Waits until one of the managers leads.
    async fn is_led(&self, began: Instant) -> Duration {
        within(began, LIMIT, "a manager leads", || async {
            let mut leaders = 0;
            for admin in self.managers {
                leaders += usize::from(Outrigger::leads(admin).await?);
            }
            holds(leaders == 1, format!("{leaders} lead"))
        })
        .await;
        began.elapsed()
    }
}
