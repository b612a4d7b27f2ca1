use outrigger_core::keys;
use outrigger_core::rule::{ExpressionSpec, Operator, Ordering, Rule};
use outrigger_proto::companion::CompanionState;
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::companions::board::SILENCE;
use crate::companions::{Companions, revision};
use crate::pod::workload;
use crate::tests::{companion, companions, id, object};

const HOLD: Duration = Duration::from_secs(20);

fn claim(name: &str) -> ClaimName {
    crate::tests::claim(&format!("{name}-claim"))
}

/// A Pod that waits by a claim, on a Node if it is bound.
fn held(name: &str, node: Option<&str>) -> Pod {
    let ours = keys::COMPANIONS_CLAIM;
    object(json!({
        "metadata": {"name": name, "namespace": "n", "uid": name, "labels": {"app": name}},
        "spec": {"nodeName": node, "resourceClaims": [{"name": ours, "resourceClaimTemplateName": ours}]},
        "status": {"resourceClaimStatuses": [{"name": ours, "resourceClaimName": claim(name).name}]}}))
}

fn rule(name: &str, app: &str, ordering: Ordering) -> Arc<Rule> {
    let expression = ExpressionSpec::new(".state.extra.labels.app", Operator::In, &[app]);
    crate::tests::rule(name, vec![expression], ordering)
}

/// A board with the Pod `web` on the Node `a`, and rules of this cluster.
fn board(rules: Vec<Arc<Rule>>) -> Board {
    let board = Board::default();
    board.expect(rules);
    board.apply(&id("web"), &held("web", Some("a")));
    board
}

/// The answer at this moment, as one word.
async fn now(board: &Board, node: &str, name: &str) -> String {
    word(board.start(node, &claim(name), Instant::now()).await)
}

fn word(start: Start) -> String {
    match start {
        Start::Ready => "Ready".to_owned(),
        Start::Waits { cause, .. } => cause,
        Start::Elsewhere => "Elsewhere".to_owned(),
    }
}

fn firewall() -> Vec<Arc<Rule>> {
    vec![rule("fw", "web", Ordering::BeforeStart)]
}

#[tokio::test(start_paused = true)]
async fn a_pod_starts_when_the_companions_of_its_rule_are_ready_and_not_before() {
    let board = board(firewall());
    let stream = board.opened();
    assert_eq!(now(&board, "a", "web").await, "ManagerUnreachable");
    board.complete(stream);
    assert_eq!(now(&board, "a", "web").await, "RuleNotServed");
    for state in [
        CompanionState::Pending,
        CompanionState::Starting,
        CompanionState::NoDpu,
        CompanionState::Unspecified,
    ] {
        board.received(stream, &id("web"), companions("fw", state, Ordering::BeforeStart));
        assert_ne!(now(&board, "a", "web").await, "Ready", "{state:?}");
    }
    board.received(stream, &id("web"), companions("fw", CompanionState::Ready, Ordering::BeforeStart));
    assert_eq!(now(&board, "a", "web").await, "Ready");
}

#[tokio::test(start_paused = true)]
async fn companions_of_other_orderings_do_not_hold_a_pod() {
    for ordering in [Ordering::Parallel, Ordering::BeforeReady] {
        let board = board(vec![rule("log", "web", ordering)]);
        let stream = board.opened();
        board.received(stream, &id("web"), companions("log", CompanionState::Refused, ordering));
        assert_eq!(now(&board, "a", "web").await, "Ready", "{ordering:?}");
        // One that does hold it counts beside them.
        let mixed = [
            companion("log", CompanionState::Ready, ordering),
            companion("", CompanionState::Starting, Ordering::BeforeStart),
        ];
        board.received(stream, &id("web"), Companions::of(&mixed));
        assert_eq!(now(&board, "a", "web").await, "Starting", "of the platform");
    }
}

#[tokio::test(start_paused = true)]
async fn a_question_is_woken_by_what_the_manager_sends() {
    let board = Arc::new(board(firewall()));
    let stream = board.opened();
    let asked = tokio::spawn({
        let board = board.clone();
        async move {
            let began = Instant::now();
            let start = board.start("a", &claim("web"), began + HOLD).await;
            (word(start), began.elapsed())
        }
    });
    tokio::time::sleep(Duration::from_secs(3)).await;
    board.received(stream, &id("web"), companions("fw", CompanionState::Starting, Ordering::BeforeStart));
    tokio::time::sleep(Duration::from_secs(3)).await;
    board.received(stream, &id("web"), companions("fw", CompanionState::Ready, Ordering::BeforeStart));
    let (start, waited) = asked.await.unwrap();
    assert_eq!((start.as_str(), waited), ("Ready", Duration::from_secs(6)), "the clock is the test's own");
    assert!(board.state.lock().starts.waiting.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_question_ends_with_the_cause_after_its_time() {
    let board = board(firewall());
    let stream = board.opened();
    board.received(stream, &id("web"), companions("fw", CompanionState::NoDpu, Ordering::BeforeStart));
    let start = board.start("a", &claim("web"), Instant::now() + HOLD).await;
    let Start::Waits { cause, message } = start else { panic!("{start:?}") };
    assert_eq!(cause, "NoDPU");
    assert!(message.starts_with("rule fw: "), "{message}");
}

#[tokio::test(start_paused = true)]
async fn a_manager_that_is_lost_lets_nothing_start() {
    let board = board(firewall());
    assert_eq!(now(&board, "a", "web").await, "ManagerUnreachable");
    let stream = board.opened();
    board.received(stream, &id("web"), companions("fw", CompanionState::Ready, Ordering::BeforeStart));
    board.down(false);
    assert_eq!(now(&board, "a", "web").await, "ManagerUnreachable", "what it reported may no longer be so");
    // Of an earlier stream.
    board.opened();
    assert_ne!(now(&board, "a", "web").await, "Ready");
    board.down(true);
    assert_eq!(now(&board, "a", "web").await, "ManagerTooOld");
}

#[tokio::test(start_paused = true)]
async fn silence_lets_a_pod_start_that_no_rule_concerns_after_a_while() {
    let board = board(vec![rule("fw", "other", Ordering::BeforeStart)]);
    let stream = board.opened();
    board.complete(stream);
    assert_eq!(now(&board, "a", "web").await, "ManagerUnreachable", "a rule of the platform may concern it");
    let began = Instant::now();
    let start = board.start("a", &claim("web"), began + HOLD).await;
    assert_eq!((word(start), began.elapsed()), ("Ready".to_owned(), Duration::from_secs(10)));
    // A rule of this cluster that concerns it holds it for as long as it takes.
    board.expect(vec![rule("fw", "web", Ordering::BeforeStart)]);
    assert_eq!(now(&board, "a", "web").await, "RuleNotServed");
}

#[tokio::test(start_paused = true)]
async fn only_the_node_of_a_pod_is_answered() {
    let board = board(Vec::new());
    let stream = board.opened();
    board.received(stream, &id("web"), companions("log", CompanionState::Ready, Ordering::Parallel));
    assert_eq!(now(&board, "b", "web").await, "Elsewhere");
    assert_eq!(now(&board, "a", "web").await, "Ready");
    assert_eq!(now(&board, "a", "unknown").await, "PodUnknown");
    board.apply(&id("unbound"), &held("unbound", None));
    assert_eq!(now(&board, "a", "unbound").await, "PodUnknown");
    board.remove(&id("unbound"));
    // Somebody has written the claim of one Pod into the status of another.
    let mut copy = held("web", Some("b"));
    copy.metadata.uid = Some("copy".to_owned());
    board.apply(&id("copy"), &copy);
    assert_eq!(now(&board, "a", "web").await, "Elsewhere", "both have to agree");
    board.remove(&id("copy"));
    assert_eq!(now(&board, "a", "web").await, "Ready");
    board.remove(&id("web"));
    assert_eq!(now(&board, "a", "web").await, "PodUnknown");
    assert!(board.state.lock().starts.pods.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_word_about_another_node_starts_nothing() {
    let board = board(firewall());
    let stream = board.opened();
    board.complete(stream);
    let ready = |node: &str| companions("fw", CompanionState::Ready, Ordering::BeforeStart).on(Some(node));
    for node in ["b", ""] {
        board.received(stream, &id("web"), ready(node));
        assert_eq!(now(&board, "a", "web").await, "WorkloadMoved", "{node:?}");
    }
    board.received(stream, &id("web"), ready("a"));
    assert_eq!(now(&board, "a", "web").await, "Ready");
}

#[tokio::test(start_paused = true)]
async fn a_report_about_earlier_labels_starts_nothing() {
    let board = board(Vec::new());
    let stream = board.opened();
    board.complete(stream);
    let labelled = |zone: &str| {
        let mut pod = held("web", Some("a"));
        pod.metadata.labels = Some([("topology.kubernetes.io/zone".to_owned(), zone.to_owned())].into());
        pod
    };
    let revision = |zone: &str| revision(&workload(labelled(zone)).unwrap());
    let ready = || companions("fw", CompanionState::Ready, Ordering::BeforeStart).on(Some("a"));
    board.apply(&id("web"), &labelled("1"));
    board.received(stream, &id("web"), ready().at(revision("1")));
    assert_eq!(now(&board, "a", "web").await, "Ready");
    // A rule that matches the other labels may ask for one more companion.
    board.apply(&id("web"), &labelled("2"));
    assert_eq!(now(&board, "a", "web").await, "ManagerUnreachable");
    board.received(stream, &id("web"), ready().at(revision("2")));
    assert_eq!(now(&board, "a", "web").await, "Ready");
    // That no rule matched the earlier labels is no permission, until the manager has been silent about the present ones.
    board.received(stream, &id("web"), Companions::of(&[]).on(Some("a")).at(revision("2")));
    board.apply(&id("web"), &labelled("3"));
    board.unsent(&id("web"));
    assert_eq!(now(&board, "a", "web").await, "ManagerUnreachable");
    board.sent(&id("web"));
    tokio::time::sleep(SILENCE).await;
    assert_eq!(now(&board, "a", "web").await, "Ready");
    // A manager of an earlier version names no revision.
    board.received(stream, &id("web"), ready());
    assert_eq!(now(&board, "a", "web").await, "Ready");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_arrives_later_or_leaves_wakes_the_question() {
    let board = Arc::new(board(Vec::new()));
    let stream = board.opened();
    let ask = |name: &'static str| {
        let board = board.clone();
        tokio::spawn(async move {
            let began = Instant::now();
            (word(board.start("a", &claim(name), began + HOLD).await), began.elapsed().as_secs())
        })
    };
    let late = ask("late");
    tokio::time::sleep(Duration::from_secs(2)).await;
    board.apply(&id("late"), &held("late", Some("a")));
    board.received(stream, &id("late"), companions("log", CompanionState::Ready, Ordering::Parallel));
    assert_eq!(late.await.unwrap(), ("Ready".to_owned(), 2));
    let moved = ask("moved");
    tokio::time::sleep(Duration::from_secs(2)).await;
    board.apply(&id("moved"), &held("moved", Some("b")));
    // It is answered when a question about a Pod that isn't known would be.
    let unknown = ask("unknown");
    assert_eq!(moved.await.unwrap(), ("Elsewhere".to_owned(), HOLD.as_secs()));
    assert_eq!(unknown.await.unwrap(), ("PodUnknown".to_owned(), HOLD.as_secs()));
    let elsewhere = ask("moved");
    assert_eq!(elsewhere.await.unwrap(), ("Elsewhere".to_owned(), HOLD.as_secs()));
}

#[tokio::test(start_paused = true)]
async fn nothing_starts_before_the_rules_are_known() {
    let board = Board::default();
    board.apply(&id("web"), &held("web", Some("a")));
    let stream = board.opened();
    board.received(stream, &id("web"), companions("log", CompanionState::Ready, Ordering::Parallel));
    assert_eq!(now(&board, "a", "web").await, "ManagerUnreachable");
    assert_eq!(now(&board, "b", "web").await, "Elsewhere", "another Node learns nothing of the Pod");
    board.expect(Vec::new());
    assert_eq!(now(&board, "a", "web").await, "Ready");
}

/// What happens to the board.
#[derive(Debug, Clone)]
enum Event {
    /// On which stream, how a companion is, and the Node that this is about.
    Received(usize, CompanionState, Ordering, &'static str),
    Opened,
    Complete,
    Down(bool),
    Rules(Option<Ordering>),
    Node(Option<usize>),
    Removed,
}

fn event() -> impl Strategy<Value = Event> {
    let state =
        prop_oneof![Just(CompanionState::Ready), Just(CompanionState::Starting), Just(CompanionState::Lost)];
    let ordering =
        || prop_oneof![Just(Ordering::Parallel), Just(Ordering::BeforeReady), Just(Ordering::BeforeStart)];
    prop_oneof![
        4 => (0..2_usize, state, ordering(), prop::sample::select(&["a", "a", "b", ""][..]))
            .prop_map(|(stream, state, ordering, node)| Event::Received(stream, state, ordering, node)),
        1 => Just(Event::Opened),
        1 => Just(Event::Complete),
        1 => any::<bool>().prop_map(Event::Down),
        1 => prop::option::of(ordering()).prop_map(Event::Rules),
        1 => prop::option::of(0..2_usize).prop_map(Event::Node),
        1 => Just(Event::Removed),
    ]
}

proptest! {
    /// Whatever happens in whatever order: a Pod with a rule of its own cluster starts only after the manager said on its current
    /// stream that this rule's companion is ready, and that of the Pod on its Node.
    #[test]
    fn no_order_of_events_starts_a_pod_early(events in prop::collection::vec(event(), 0..30)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let board = board(Vec::new());
            let (mut streams, mut open, mut ready) = (vec![0], false, false);
            let (mut holds, mut bound) = (false, true);
            for event in events {
                match event {
                    Event::Received(back, state, ordering, node) => {
                        let stream = streams[streams.len().saturating_sub(1 + back)];
                        let companions = companions("fw", state, ordering).on(Some(node));
                        if board.received(stream, &id("web"), companions) {
                            ready = ordering.holds() && state == CompanionState::Ready && node == "a";
                        }
                    }
                    Event::Opened => {
                        streams.push(board.opened());
                        (open, ready) = (true, false);
                    }
                    Event::Complete => board.complete(*streams.last().unwrap()),
                    Event::Down(unsupported) => {
                        board.down(unsupported);
                        (open, ready) = (false, false);
                    }
                    Event::Rules(ordering) => {
                        holds = ordering.is_some_and(Ordering::holds);
                        board.expect(ordering.map(|of| rule("fw", "web", of)).into_iter().collect());
                    }
                    Event::Node(node) => {
                        bound = node == Some(0);
                        board.apply(&id("web"), &held("web", node.map(|n| ["a", "b"][n])));
                    }
                    Event::Removed => {
                        board.remove(&id("web"));
                        (bound, ready) = (false, false);
                    }
                }
                let starts = now(&board, "a", "web").await == "Ready";
                assert!(!starts || bound && open, "it is another Node's, or the manager is lost");
                assert!(!starts || !holds || ready, "its companion isn't ready");
            }
        });
    }
}
