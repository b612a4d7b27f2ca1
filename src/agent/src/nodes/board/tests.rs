use std::time::Duration;

use std::collections::BTreeMap;

use outrigger_core::keys;
use serde_json::{Value, json};

use super::*;
use crate::paced::FORBIDDEN;

fn host(name: &str, reason: &str) -> HostStatus {
    HostStatus {
        node_name: name.into(),
        dpu_ready: reason.is_empty(),
        reason: reason.into(),
        ..HostStatus::default()
    }
}

/// A board and the Nodes of its API server.
struct Stage {
    hosts: Hosts,
    nodes: BTreeMap<String, Marks>,
}

impl Stage {
    fn new(names: &[&str]) -> Self {
        let mut this = Self { hosts: Hosts::new(Clock::system(), true), nodes: BTreeMap::new() };
        for name in names {
            this.apply(name, Marks::default());
        }
        this
    }

    fn apply(&mut self, name: &str, marks: Marks) {
        let condition = marks.condition.iter().map(
            |c| json!({"type": keys::DPU_READY, "status": c.status.as_str(), "reason": c.reason, "message": c.message}),
        );
        let node = json!({"metadata": {"name": name, "uid": name}, "spec": {"taints": marks.taints},
            "status": {"conditions": condition.collect::<Vec<Value>>()}});
        self.nodes.insert(name.to_owned(), marks);
        self.hosts.node(&Change::Applied(serde_json::from_value(node).unwrap()));
    }

    /// Performs the writes that are due, and returns each as Node, reason, and whether it is tainted then.
    fn writes(&mut self) -> Vec<(String, String, bool)> {
        let mut all = Vec::new();
        while let Ok(Write { name, has, change, .. }) = self.hosts.take() {
            let mut now = has.clone();
            if let Some(condition) = change.condition {
                now.condition = condition;
            }
            if let Some(tainted) = change.taint {
                now.taints = serde_json::from_value(has.patch(&name, tainted)[2]["value"].clone()).unwrap();
            }
            let reason = now.condition.as_ref().map_or("gone", |condition| &condition.reason);
            all.push((name.clone(), reason.to_owned(), !now.taints.is_empty()));
            self.apply(&name, now);
            self.hosts.done(&name, &[(Part::Condition, WriteOutcome::Ok)], 0.0);
        }
        all
    }

    async fn later(&mut self, seconds: u64) -> Vec<(String, String, bool)> {
        tokio::time::advance(Duration::from_secs(seconds)).await;
        self.writes()
    }
}

fn written(node: &str, reason: &str, tainted: bool) -> Vec<(String, String, bool)> {
    vec![(node.to_owned(), reason.to_owned(), tainted)]
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_written_at_once_and_nothing_in_the_steady_state() {
    let mut stage = Stage::new(&["a", "other"]);
    stage.hosts.opened();
    stage.hosts.received(&host("a", ""));
    stage.hosts.received(&host("absent", "DPUNotReady"));
    stage.hosts.complete();
    assert_eq!(stage.writes(), written("a", "Ready", false));
    stage.hosts.received(&host("a", "DPUNotReady"));
    assert_eq!(stage.writes(), written("a", "DPUNotReady", true));
    // Repetitions, and what kubelets write.
    stage.hosts.received(&host("a", "DPUNotReady"));
    let marks = stage.nodes["a"].clone();
    stage.apply("a", marks);
    assert_eq!(stage.later(3600).await, []);
    stage.hosts.received(&host("a", ""));
    assert_eq!(stage.writes(), written("a", "Ready", false));
    assert_eq!(stage.later(3600).await, []);
}

#[tokio::test(start_paused = true)]
async fn the_last_truth_stays_while_nothing_is_reported() {
    let mut stage = Stage::new(&["a"]);
    stage.hosts.opened();
    stage.hosts.received(&host("a", "NoDPU"));
    assert_eq!(stage.writes(), written("a", "NoDPU", true));
    stage.hosts.down();
    assert_eq!(stage.later(3600).await, []);
    // The next stream isn't complete.
    stage.hosts.opened();
    assert_eq!(stage.later(3600).await, []);
    // It is complete, and reports nothing of the host: it is none any longer.
    stage.hosts.complete();
    assert_eq!(stage.later(9).await, []);
    assert_eq!(stage.later(1).await, written("a", "gone", false));
    assert_eq!(stage.later(3600).await, []);
}

#[tokio::test(start_paused = true)]
async fn a_host_that_is_taken_away_and_a_node_that_is_made_again() {
    let mut stage = Stage::new(&["a"]);
    stage.hosts.opened();
    stage.hosts.complete();
    stage.hosts.received(&host("a", "Owned by somebody"));
    assert_eq!(stage.later(60).await, written("a", "Unknown", true));
    let gone = |uid: &str| Change::Gone { namespace: String::new(), name: "a".into(), uid: uid.into() };
    stage.hosts.node(&gone("a"));
    stage.apply("a", Marks::default());
    assert_eq!(stage.writes(), written("a", "Unknown", true));
    stage.hosts.received(&host("a", "HostNotListed"));
    assert_eq!(stage.writes(), written("a", "gone", false));
}

#[tokio::test(start_paused = true)]
async fn a_dpu_that_flaps_costs_six_writes_a_minute_and_ends_right() {
    let mut stage = Stage::new(&["a"]);
    stage.hosts.opened();
    let mut count = 0;
    for n in 0..600 {
        stage.hosts.received(&host("a", if n % 2 == 0 { "DPUNotReady" } else { "" }));
        count += stage.later(1).await.len();
    }
    assert!((60..=66).contains(&count), "{count}");
    stage.hosts.received(&host("a", "NoDPU"));
    assert_eq!(stage.later(60).await, written("a", "NoDPU", true));
}

#[tokio::test(start_paused = true)]
async fn many_nodes_are_written_at_a_bounded_rate() {
    let names: Vec<String> = (0..1000).map(|n| format!("n{n}")).collect();
    let mut stage = Stage::new(&names.iter().map(String::as_str).collect::<Vec<_>>());
    stage.hosts.opened();
    for name in &names {
        stage.hosts.received(&host(name, "DPUNotReady"));
    }
    assert_eq!(stage.writes().len(), 100);
    assert_eq!(stage.later(4).await.len(), 100);
    let rest: usize = [stage.later(60).await.len(), stage.later(60).await.len()].iter().sum();
    assert_eq!(rest, 200, "no more than a burst after a pause of the test");
}

#[tokio::test(start_paused = true)]
async fn what_is_forbidden_is_not_repeated_and_the_rest_goes_on() {
    let mut stage = Stage::new(&["a", "b"]);
    stage.hosts.opened();
    stage.hosts.received(&host("a", "NoDPU"));
    let write = stage.hosts.take().unwrap();
    assert!(write.change.condition.is_some() && write.change.taint == Some(true));
    stage.hosts.done(
        "a",
        &[(Part::Condition, WriteOutcome::Forbidden), (Part::Taint, WriteOutcome::Failed)],
        0.0,
    );
    assert!(stage.hosts.take().is_err(), "it pauses");
    tokio::time::advance(Duration::from_secs(1)).await;
    let write = stage.hosts.take().unwrap();
    assert!(write.change.condition.is_none(), "conditions are forbidden");
    assert_eq!(write.change.taint, Some(true));
    stage.hosts.done("a", &[(Part::Taint, WriteOutcome::Forbidden)], 0.0);
    stage.hosts.received(&host("b", "NoDPU"));
    assert!(stage.hosts.take().is_err(), "both are forbidden");
    tokio::time::advance(Duration::from_secs(300)).await;
    assert_eq!(stage.writes().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_refuses_a_node_pauses_no_other() {
    let mut stage = Stage::new(&["a", "b"]);
    stage.hosts.opened();
    stage.hosts.received(&host("a", "NoDPU"));
    stage.hosts.take().unwrap();
    stage.hosts.done("a", &[(Part::Condition, WriteOutcome::Refused), (Part::Taint, WriteOutcome::Ok)], 0.0);
    stage.hosts.received(&host("b", "NoDPU"));
    let write = stage.hosts.take().unwrap();
    assert!(write.name == "b" && write.change.condition.is_some() && write.change.taint == Some(true));
    stage.hosts.done("b", &[(Part::Condition, WriteOutcome::Ok), (Part::Taint, WriteOutcome::Ok)], 0.0);
    tokio::time::advance(FORBIDDEN - Duration::from_secs(1)).await;
    assert!(stage.writes().iter().all(|(name, ..)| name != "a"), "it pauses");
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(stage.hosts.take().unwrap().name, "a", "it is tried again");
}
