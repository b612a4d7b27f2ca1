use std::collections::BTreeMap;

use outrigger_api::conditions::Status;
use outrigger_core::keys;
use outrigger_core::reason::Cause;
use outrigger_core::rule::{ExpressionSpec, Operator, Ordering};
use outrigger_proto::companion::CompanionState;
use serde_json::json;

use super::*;
use crate::paced::FORBIDDEN;
use crate::tests::{id, object, rule};

/// A Pod with these conditions: type, status, reason and message.
fn pod(name: &str, gated: bool, conditions: &[(&str, &Condition)]) -> Pod {
    let conditions: Vec<_> = conditions
        .iter()
        .map(|(kind, c)| json!({"type": kind, "status": c.status.as_str(), "reason": c.reason, "message": c.message}))
        .collect();
    let gates = if gated { json!([{"conditionType": keys::COMPANIONS_GATE}]) } else { json!([]) };
    object(json!({"metadata": {"name": name, "namespace": "n", "uid": name},
        "spec": {"readinessGates": gates}, "status": {"conditions": conditions}}))
}

fn companions(state: CompanionState, before_ready: bool) -> Companions {
    let ordering = if before_ready { Ordering::BeforeReady } else { Ordering::Parallel };
    crate::tests::companions("r", state, ordering)
}

/// Whether a Pod has the gate, and its conditions.
type Stored = (bool, Vec<(&'static str, Condition)>);

/// A board and the Pods of its API server.
struct Stage {
    board: Board,
    pods: BTreeMap<WorkloadId, Stored>,
}

impl Stage {
    fn new(pods: &[(&str, bool)]) -> Self {
        let mut this = Self { board: Board::default(), pods: Default::default() };
        this.board.expect(Vec::new());
        for (name, gated) in pods {
            this.pods.insert(id(name), (*gated, Vec::new()));
            this.board.apply(&id(name), &pod(name, *gated, &[]));
        }
        this
    }

    /// Performs the writes that are due, and returns each as Pod, status and reason of its first condition, and whether there was
    /// an Event.
    fn writes(&mut self) -> Vec<(String, String, bool)> {
        let mut all = Vec::new();
        while let Ok(write) = self.board.take() {
            let first = &write.conditions[0].condition;
            all.push((
                write.name.clone(),
                format!("{} {}", first.status.as_str(), first.reason),
                write.event.is_some(),
            ));
            let (gated, has) = self.pods.get_mut(&write.id).unwrap();
            for new in write.conditions {
                has.retain(|(kind, _)| *kind != new.kind);
                has.push((new.kind, new.condition));
            }
            let has: Vec<_> = has.iter().map(|(kind, condition)| (*kind, condition)).collect();
            self.board.apply(&write.id, &pod(&write.name, *gated, &has));
            self.board.done(&write.id, WriteOutcome::Ok, 0.0);
        }
        all
    }

    async fn later(&mut self, seconds: u64) -> Vec<(String, String, bool)> {
        tokio::time::advance(Duration::from_secs(seconds)).await;
        self.writes()
    }
}

fn written(pod: &str, what: &str, event: bool) -> Vec<(String, String, bool)> {
    vec![(pod.to_owned(), what.to_owned(), event)]
}

#[tokio::test(start_paused = true)]
async fn a_problem_is_written_once_after_its_time_and_its_end_at_once() {
    let mut stage = Stage::new(&[("a", false), ("b", false)]);
    let stream = stage.board.opened();
    assert!(stage.board.received(stream, &id("a"), companions(CompanionState::Refused, false)));
    stage.board.complete(stream);
    assert_eq!(stage.later(14).await, []);
    assert_eq!(stage.later(1).await, written("a", "False Refused", true));
    // Steady state.
    assert!(stage.board.received(stream, &id("a"), companions(CompanionState::Refused, false)));
    assert_eq!(stage.later(3600).await, []);
    assert!(stage.board.received(stream, &id("a"), companions(CompanionState::Ready, false)));
    assert_eq!(stage.writes(), written("a", "True Ready", true));
    assert_eq!(stage.later(3600).await, []);
}

#[tokio::test(start_paused = true)]
async fn what_is_right_in_time_is_never_written() {
    let mut stage = Stage::new(&[("a", false)]);
    let stream = stage.board.opened();
    for state in [CompanionState::Pending, CompanionState::Starting, CompanionState::Ready] {
        assert!(stage.board.received(stream, &id("a"), companions(state, false)));
        assert_eq!(stage.later(7).await, []);
    }
    assert_eq!(stage.later(3600).await, []);
}

#[tokio::test(start_paused = true)]
async fn a_gate_opens_closes_and_stays_while_nothing_is_reported() {
    let mut stage = Stage::new(&[("a", true)]);
    let stream = stage.board.opened();
    for (state, what) in [
        (CompanionState::Starting, "False Starting"),
        (CompanionState::Ready, "True Ready"),
        (CompanionState::Lost, "False Lost"),
        (CompanionState::Ready, "True Ready"),
    ] {
        stage.board.received(stream, &id("a"), companions(state, true));
        assert_eq!(stage.later(60).await, written("a", what, true));
    }
    stage.board.down(false);
    assert_eq!(stage.later(3600).await, []);
    stage.board.down(true);
    assert_eq!(stage.later(3600).await, []);
    // On a new stream it isn't received yet.
    let stream = stage.board.opened();
    assert_eq!(stage.later(3600).await, []);
    stage.board.received(stream, &id("a"), companions(CompanionState::Lost, true));
    assert_eq!(stage.writes(), written("a", "False Lost", true));
}

#[tokio::test(start_paused = true)]
async fn silence_means_that_no_rule_matches_only_after_a_while() {
    let mut stage = Stage::new(&[("a", true)]);
    let stream = stage.board.opened();
    stage.board.complete(stream);
    assert_eq!(stage.later(9).await, [], "a new Pod may not have reached the manager");
    assert_eq!(stage.later(1).await, written("a", "True NoCompanion", true));
    stage.board.apply(&id("b"), &pod("b", true, &[]));
    stage.pods.insert(id("b"), (true, Vec::new()));
    assert_eq!(stage.later(9).await, []);
    stage.board.received(stream, &id("b"), companions(CompanionState::Pending, true));
    assert_eq!(stage.writes(), written("b", "False Pending", true));
    // On the next stream it isn't received any longer: the rule is gone.
    let stream = stage.board.opened();
    stage.board.complete(stream);
    assert_eq!(stage.later(9).await, []);
    assert_eq!(stage.later(1).await, written("b", "True NoCompanion", true));
}

#[tokio::test(start_paused = true)]
async fn silence_says_nothing_of_a_pod_that_is_not_sent() {
    let mut stage = Stage::new(&[("a", true), ("b", true)]);
    let stream = stage.board.opened();
    stage.board.complete(stream);
    stage.board.unsent(&id("a"));
    assert_eq!(stage.later(3600).await, written("b", "True NoCompanion", true), "a isn't sent");
    stage.board.sent(&id("a"));
    assert_eq!(stage.later(9).await, []);
    assert_eq!(stage.later(1).await, written("a", "True NoCompanion", true));
}

#[tokio::test(start_paused = true)]
async fn a_new_pod_in_an_outage_and_one_of_an_old_manager_say_why_they_wait() {
    let mut stage = Stage::new(&[("a", true), ("b", false)]);
    assert_eq!(stage.later(14).await, []);
    assert_eq!(stage.later(1).await, written("a", "False ManagerUnreachable", true));
    stage.board.down(true);
    assert_eq!(stage.writes(), written("a", "False ManagerTooOld", true));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_too_large_says_so_and_waits_for_rules_that_are_not_known() {
    let mut stage = Stage::new(&[("a", true), ("b", false)]);
    let stream = stage.board.opened();
    stage.board.complete(stream);
    for name in ["a", "b"] {
        stage.board.too_large(&id(name), Some(500_000));
    }
    let writes = stage.writes();
    assert_eq!(writes.len(), 2, "{writes:?}");
    for (pod, (of, what, event)) in ["a", "b"].iter().zip(&writes) {
        assert!(of == pod && what.contains("LimitReached") && *event, "{writes:?}");
    }
    assert_eq!(stage.later(60).await, [], "however long the manager says nothing");
    stage.board.too_large(&id("a"), None);
    stage.board.too_large(&id("b"), None);
    let later = stage.later(60).await;
    assert!(later.iter().all(|(_, what, _)| what.contains("True")) && later.len() == 2, "{later:?}");
}

#[tokio::test(start_paused = true)]
async fn only_pods_of_the_agent_are_written_and_only_by_the_current_stream() {
    let mut stage = Stage::new(&[("a", true)]);
    let old = stage.board.opened();
    let new = stage.board.opened();
    assert!(!stage.board.received(new, &id("unknown"), companions(CompanionState::Failed, true)));
    assert!(!stage.board.received(old, &id("a"), companions(CompanionState::Failed, true)));
    stage.board.complete(old);
    assert_eq!(stage.later(14).await, []);
    stage.board.received(new, &id("a"), companions(CompanionState::Failed, true));
    stage.board.remove(&id("a"));
    assert_eq!(stage.later(3600).await, []);
}

#[tokio::test(start_paused = true)]
async fn writes_and_events_of_ten_thousand_pods_are_bounded() {
    let names: Vec<String> = (0..10_000).map(|n| format!("p{n}")).collect();
    let pods: Vec<(&str, bool)> = names.iter().map(|name| (name.as_str(), false)).collect();
    let mut stage = Stage::new(&pods);
    let stream = stage.board.opened();
    for name in &names {
        stage.board.received(stream, &id(name), companions(CompanionState::Failed, false));
    }
    stage.board.complete(stream);
    assert_eq!(stage.later(15).await.len(), 50, "the burst");
    let (mut writes, mut events) = (50, 50);
    for _ in 0..120 {
        let all = stage.later(1).await;
        assert!(all.len() <= 26, "{}", all.len());
        writes += all.len();
        events += all.iter().filter(|(_, _, event)| *event).count();
    }
    assert!((2900..=3050).contains(&writes) && (200..=345).contains(&events), "{writes} {events}");
    // A Pod whose readiness waits doesn't wait for them.
    stage.pods.insert(id("gated"), (true, Vec::new()));
    stage.board.apply(&id("gated"), &pod("gated", true, &[]));
    stage.board.received(stream, &id("gated"), companions(CompanionState::Ready, true));
    assert_eq!(stage.later(1).await[0].0, "gated");
}

#[tokio::test(start_paused = true)]
async fn writes_of_one_pod_are_bounded_and_the_last_state_is_written() {
    let mut stage = Stage::new(&[("a", true)]);
    let stream = stage.board.opened();
    let mut writes = Vec::new();
    for round in 0..3600 {
        let state = if round % 2 == 0 { CompanionState::Failed } else { CompanionState::Ready };
        stage.board.received(stream, &id("a"), companions(state, true));
        writes.extend(stage.later(1).await);
    }
    let events = writes.iter().filter(|(_, _, event)| *event).count();
    assert!((100..=365).contains(&writes.len()) && events <= 63, "{} {events}", writes.len());
    writes.extend(stage.later(60).await);
    assert_eq!(writes.last().map(|(_, what, _)| what.as_str()), Some("True Ready"));
}

#[tokio::test(start_paused = true)]
async fn failed_and_forbidden_writes_pause() {
    let stage = Stage::new(&[("a", true)]);
    let board = &stage.board;
    let stream = board.opened();
    board.received(stream, &id("a"), companions(CompanionState::Failed, true));
    let attempts = async |outcome, seconds: u64| {
        let mut count = 0;
        for _ in 0..seconds {
            while let Ok(write) = board.take() {
                count += 1;
                board.done(&write.id, outcome, 1.0);
            }
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        count
    };
    // At 0, 5, 15, 35, 75, 155, 315 and 615 s: an API server that has just started forbids what it permits soon.
    assert_eq!(attempts(WriteOutcome::Forbidden, 899).await, 8);
    let failed = attempts(WriteOutcome::Failed, 600).await;
    assert!((10..=16).contains(&failed), "{failed}");
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_refuses_a_pod_pauses_no_other_and_a_missing_right_pauses_the_namespace() {
    for (outcome, opened) in [(WriteOutcome::Refused, 9), (WriteOutcome::Forbidden, 0)] {
        let names: Vec<String> = (0..10).map(|i| format!("p{i}")).collect();
        let pods: Vec<(&str, bool)> = names.iter().map(|name| (name.as_str(), true)).collect();
        let stage = Stage::new(&pods);
        let board = &stage.board;
        let stream = board.opened();
        board.received(stream, &id("p0"), companions(CompanionState::Ready, true));
        let refused = board.take().unwrap();
        board.done(&refused.id, outcome, 1.0);
        for name in &names[1..] {
            board.received(stream, &id(name), companions(CompanionState::Ready, true));
        }
        let mut writes = 0;
        while let Ok(write) = board.take() {
            assert_ne!(write.name, "p0");
            writes += 1;
        }
        assert_eq!(writes, opened, "{outcome:?}");
        tokio::time::advance(FORBIDDEN + Duration::from_secs(1)).await;
        assert!(board.take().is_ok(), "it is tried again");
    }
}

/// A rule of this cluster by which Pods wait for their companions.
fn ordered(name: &str, key: &str) -> Arc<Rule> {
    rule(name, vec![ExpressionSpec::new(key, Operator::Exists, &[])], Ordering::BeforeReady)
}

#[tokio::test(start_paused = true)]
async fn a_gate_waits_for_a_rule_that_the_manager_does_not_have_yet() {
    let mut stage = Stage::new(&[("a", true)]);
    stage.board.expect(vec![ordered("r", "@"), ordered("other", ".state.extra.labels.none")]);
    let stream = stage.board.opened();
    stage.board.complete(stream);
    // The manager says nothing of it.
    assert_eq!(stage.later(10).await, written("a", "False RuleNotServed", true));
    assert_eq!(stage.later(3600).await, []);
    // It has the rule.
    assert!(stage.board.received(stream, &id("a"), companions(CompanionState::Ready, true)));
    assert_eq!(stage.later(10).await, written("a", "True Ready", true));
    // Another rule comes later: the gate stays open.
    stage.board.expect(vec![ordered("r", "@"), ordered("later", "@")]);
    assert_eq!(stage.later(3600).await, []);
}

#[tokio::test(start_paused = true)]
async fn a_gate_waits_for_each_of_several_rules_and_opens_when_they_are_deleted() {
    let mut stage = Stage::new(&[("a", true)]);
    stage.board.expect(vec![ordered("r", "@"), ordered("s", "@")]);
    let stream = stage.board.opened();
    assert!(stage.board.received(stream, &id("a"), companions(CompanionState::Ready, true)));
    stage.board.complete(stream);
    let first: Vec<_> = stage.writes().into_iter().map(|(_, what, _)| what).collect();
    assert_eq!(first.len(), 1, "{first:?}");
    let gate = stage.pods[&id("a")].1.iter().find(|(kind, _)| *kind == keys::COMPANIONS_GATE);
    assert_eq!(gate.map(|(_, c)| (c.status, c.reason.as_str())), Some((Status::False, "RuleNotServed")));
    stage.board.expect(vec![ordered("r", "@")]);
    stage.later(60).await;
    let gate = stage.pods[&id("a")].1.iter().find(|(kind, _)| *kind == keys::COMPANIONS_GATE);
    assert_eq!(gate.map(|(_, c)| c.status), Some(Status::True));
}

#[tokio::test(start_paused = true)]
async fn no_gate_opens_before_the_rules_are_known() {
    let mut stage = Stage::new(&[]);
    stage.board = Board::default();
    stage.pods.insert(id("a"), (true, Vec::new()));
    stage.board.apply(&id("a"), &pod("a", true, &[]));
    let stream = stage.board.opened();
    stage.board.complete(stream);
    assert_eq!(stage.later(3600).await, []);
    stage.board.expect(Vec::new());
    assert_eq!(stage.later(1).await, written("a", "True NoCompanion", true));
}

/// The counts of the metric that are more than 0.
fn counts(metrics: &Metrics) -> Vec<(Cause, i64)> {
    let count = |cause: &Cause| Some((*cause, metrics.workloads_of(*cause))).filter(|(_, count)| *count != 0);
    Cause::ALL.iter().filter_map(count).collect()
}

#[tokio::test(start_paused = true)]
async fn workloads_are_counted_by_what_is_wrong_with_them() {
    use CompanionState::{NoDpu, Pending, Ready};
    let stage = Stage::new(&[("a", false), ("b", false)]);
    let board = &stage.board;
    let stream = board.opened();
    for (name, state) in [("a", Pending), ("b", Pending), ("a", NoDpu), ("stranger", NoDpu)] {
        board.received(stream, &id(name), companions(state, false));
    }
    assert_eq!(counts(&board.metrics), [(Cause::Pending, 1), (Cause::NoDpu, 1)]);
    board.received(stream, &id("a"), companions(Ready, false));
    assert_eq!(counts(&board.metrics), [(Cause::Pending, 1)]);

    // On the next stream b isn't received; it counts until the stream is complete.
    let stream = board.opened();
    board.received(stream, &id("a"), companions(NoDpu, false));
    assert_eq!(counts(&board.metrics), [(Cause::Pending, 1), (Cause::NoDpu, 1)]);
    board.complete(stream);
    assert_eq!(counts(&board.metrics), [(Cause::NoDpu, 1)]);
    board.remove(&id("a"));
    assert_eq!(counts(&board.metrics), []);
}

#[tokio::test(start_paused = true)]
async fn gates_are_opened_quickly_while_other_writes_wait() {
    let names: Vec<String> = (0..1000).map(|n| format!("p{n}")).collect();
    let pods: Vec<(&str, bool)> =
        names.iter().enumerate().map(|(n, name)| (name.as_str(), n < 300)).collect();
    let mut stage = Stage::new(&pods);
    let stream = stage.board.opened();
    for (n, name) in names.iter().enumerate() {
        let state = if n < 300 { CompanionState::Ready } else { CompanionState::Failed };
        stage.board.received(stream, &id(name), companions(state, n < 300));
    }
    let opened =
        |writes: &[(String, String, bool)]| writes.iter().filter(|(_, what, _)| what == "True Ready").count();
    assert_eq!(opened(&stage.writes()), 200, "the burst");
    let all = stage.later(2).await;
    assert_eq!(opened(&all), 100, "the rest, beside {} others", all.len());

    // Gates of which many close at once have the rate of all others.
    for name in &names[..300] {
        stage.board.received(stream, &id(name), companions(CompanionState::Lost, true));
    }
    let (mut closed, mut seconds) = (0, 0);
    while closed < 300 && seconds < 600 {
        closed += stage.later(1).await.iter().filter(|(pod, ..)| names[..300].contains(pod)).count();
        seconds += 1;
    }
    assert_eq!(closed, 300);
    assert!(seconds > 5, "{seconds} s are too few for 25 a second");
}
