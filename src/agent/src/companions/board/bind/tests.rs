use std::sync::Arc;

use outrigger_core::gate::Hold;
use outrigger_core::keys;
use outrigger_core::rule::{ExpressionSpec, Operator, Ordering, Rule};
use outrigger_proto::companion::CompanionState;
use outrigger_runtime::pod::Pod;
use serde_json::json;

use super::super::Start;
use super::*;
use crate::companions::Companions;
use crate::tests::{id, object};

fn claim() -> ClaimName {
    crate::tests::claim("web-claim")
}

fn pod(node: Option<&str>) -> Pod {
    let ours = keys::COMPANIONS_CLAIM;
    object(json!({
        "metadata": {"name": "web", "namespace": "n", "uid": "web", "labels": {"app": "web"}},
        "spec": {"nodeName": node,
            "resourceClaims": [{"name": ours, "resourceClaimTemplateName": Hold::Binding.template()}]},
        "status": {"resourceClaimStatuses": [{"name": ours, "resourceClaimName": claim().name}]}}))
}

fn rule(nodes: &[&str]) -> Arc<Rule> {
    let app = ExpressionSpec::new(".state.extra.labels.app", Operator::In, &["web"]);
    let node = ExpressionSpec::new(".state.nodeName", Operator::In, nodes);
    crate::tests::rule("fw", vec![app, node], Ordering::BeforeBinding)
}

fn allocation(node: &str, version: &str) -> Allocation {
    let text = str::to_owned;
    let (uid, version, device) = (text("c"), text(version), text("binding-0"));
    Allocation { uid, version, pod: id("web"), node: text(node), device, decided: false }
}

fn companions(state: CompanionState) -> Companions {
    crate::tests::companions("fw", state, Ordering::BeforeBinding)
}

/// A board with a Pod whose claim is allocated on the Node `a`, which a rule matches there only; and its stream.
fn stage() -> (Board, u64) {
    let board = Board::default();
    board.expect(vec![rule(&["a"])]);
    board.apply(&id("web"), &pod(None));
    board.allocated(&id("web"), Some(allocation("a", "1")));
    let stream = board.opened();
    (board, stream)
}

/// What has to be written now.
fn verdict(board: &Board) -> Option<Verdict> {
    board.take_bind().ok().map(|bind| bind.verdict)
}

#[tokio::test(start_paused = true)]
async fn a_claim_says_ready_when_the_companions_are_and_says_it_once() {
    let (board, stream) = stage();
    assert_eq!(verdict(&board), None, "the manager said nothing");
    board.complete(stream);
    for state in [CompanionState::Pending, CompanionState::Starting, CompanionState::Refused] {
        board.received(stream, &id("web"), companions(state));
        assert_eq!(verdict(&board), None, "{state:?}");
    }
    board.received(stream, &id("web"), companions(CompanionState::Ready));
    let bind = board.take_bind().unwrap();
    assert_eq!((bind.verdict, bind.claim, bind.allocation.version.as_str()), (Verdict::Ready, claim(), "1"));
    assert_eq!(verdict(&board), None, "it is being written");
    board.allocated(&id("web"), Some(Allocation { decided: true, ..allocation("a", "2") }));
    board.bind_done(&id("web"), WriteOutcome::Ok, 0.0);
    assert_eq!(verdict(&board), None);
    // The scheduler acts on it at any moment.
    board.received(stream, &id("web"), companions(CompanionState::Lost));
    assert_eq!(verdict(&board), None);
}

#[tokio::test(start_paused = true)]
async fn the_rule_counts_on_the_node_of_the_allocation_and_without_the_manager_nothing_is_bound() {
    let (board, stream) = stage();
    board.complete(stream);
    tokio::time::advance(Duration::from_secs(60)).await;
    assert_eq!(verdict(&board), None, "the manager doesn't serve the rule");
    board.allocated(&id("web"), Some(allocation("b", "3")));
    assert_eq!(verdict(&board), None, "a rule of the platform may match there");
    tokio::time::advance(Duration::from_secs(10)).await;
    assert_eq!(verdict(&board), Some(Verdict::Ready), "no rule matches there");
    board.bind_done(&id("web"), WriteOutcome::Failed, 1.0);
    board.down(false);
    tokio::time::advance(Duration::from_secs(60)).await;
    assert_eq!(verdict(&board), None, "it may have another word");
}

#[tokio::test(start_paused = true)]
async fn the_scheduler_chooses_again_when_the_devices_of_the_node_are_withdrawn() {
    let (board, stream) = stage();
    board.received(stream, &id("web"), companions(CompanionState::NoDpu));
    assert_eq!(verdict(&board), None, "it would choose the same Node");
    board.withdrawn("b", Some(Cause::DpuNotReady));
    assert_eq!(verdict(&board), None, "another Node");
    board.withdrawn("a", Some(Cause::DpuNotReady));
    assert_eq!(verdict(&board), Some(Verdict::Unavailable(Cause::DpuNotReady)));
    board.bind_done(&id("web"), WriteOutcome::Failed, 1.0);
    assert_eq!(verdict(&board), None, "a failed write is repeated after a pause");
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(verdict(&board), Some(Verdict::Unavailable(Cause::DpuNotReady)));
    board.bind_done(&id("web"), WriteOutcome::Ok, 0.0);
    board.allocated(&id("web"), None);
    assert_eq!(verdict(&board), None);
    board.withdrawn("a", None);
    board.allocated(&id("web"), Some(allocation("a", "5")));
    assert_eq!(verdict(&board), None, "it has devices again");
    // One whose companion is Ready stays.
    board.withdrawn("a", Some(Cause::DpuNotReady));
    board.received(stream, &id("web"), companions(CompanionState::Ready).on(Some("a")));
    assert_eq!(verdict(&board), Some(Verdict::Ready));
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_found_by_the_node_that_its_claim_is_allocated_on_now() {
    let (board, stream) = stage();
    let nodes = || board.state.lock().allocated.keys().cloned().collect::<Vec<_>>();
    board.expect(vec![rule(&["a", "b"])]);
    board.allocated(&id("web"), Some(allocation("b", "2")));
    assert_eq!(nodes(), ["b"]);
    board.received(stream, &id("web"), companions(CompanionState::NoDpu).on(Some("b")));
    board.withdrawn("a", Some(Cause::DpuNotReady));
    assert_eq!(verdict(&board), None, "it is no longer there");
    board.withdrawn("b", Some(Cause::DpuNotReady));
    assert_eq!(verdict(&board), Some(Verdict::Unavailable(Cause::DpuNotReady)));
    board.allocated(&id("web"), None);
    assert_eq!(nodes(), [""; 0], "it has no Node");
    board.allocated(&id("web"), Some(allocation("a", "3")));
    board.remove(&id("web"));
    assert_eq!(nodes(), [""; 0], "it is gone");
}

#[tokio::test(start_paused = true)]
async fn a_word_about_another_node_binds_nothing() {
    let ready_on = |node: &str| companions(CompanionState::Ready).on(Some(node));
    let (board, stream) = stage();
    board.expect(vec![rule(&["a", "b"])]);
    board.complete(stream);
    board.received(stream, &id("web"), ready_on("a"));
    board.allocated(&id("web"), Some(allocation("b", "2")));
    assert_eq!(verdict(&board), None, "that companion is on the DPU of the former Node");
    board.received(stream, &id("web"), ready_on("a"));
    board.received(stream, &id("web"), companions(CompanionState::Ready));
    tokio::time::advance(Duration::from_secs(3600)).await;
    assert_eq!(verdict(&board), None, "late words, and one that doesn't say which Node it is about");
    // Nor does it have the scheduler choose once more.
    board.received(stream, &id("web"), companions(CompanionState::Lost).on(Some("a")));
    board.withdrawn("b", Some(Cause::DpuNotReady));
    assert_eq!(verdict(&board), None);
    board.withdrawn("b", None);
    board.received(stream, &id("web"), ready_on("b"));
    assert_eq!(verdict(&board), Some(Verdict::Ready), "the control");
    let (board, stream) = stage();
    board.received(stream, &id("web"), ready_on("a"));
    assert_eq!(verdict(&board), Some(Verdict::Ready), "the same word about the Node that it is on");
}

#[tokio::test(start_paused = true)]
async fn a_manager_that_does_not_say_the_node_binds_a_pod_on_its_first_one_only() {
    let ready = || companions(CompanionState::Ready);
    let (board, stream) = stage();
    board.received(stream, &id("web"), ready());
    assert_eq!(verdict(&board), Some(Verdict::Ready));
    for chosen in [&["b"][..], &["", "a"], &["b", "a"]] {
        let (board, stream) = stage();
        board.expect(vec![rule(&["a", "b"])]);
        board.received(stream, &id("web"), ready());
        for (n, node) in chosen.iter().enumerate() {
            let next = (!node.is_empty()).then(|| allocation(node, &n.to_string()));
            board.allocated(&id("web"), next);
        }
        board.received(stream, &id("web"), ready());
        assert_eq!(verdict(&board), None, "{chosen:?}");
        board.apply(&id("web"), &pod(Some("b")));
        let start = board.start("b", &claim(), tokio::time::Instant::now()).await;
        assert!(matches!(&start, Start::Waits { cause, .. } if cause == "ManagerTooOld"), "{start:?}");
        board.received(stream, &id("web"), ready().on(Some("b")));
        assert_eq!(board.start("b", &claim(), tokio::time::Instant::now()).await, Start::Ready);
    }
    // The same allocation again is no other Node.
    let (board, stream) = stage();
    board.received(stream, &id("web"), ready());
    board.allocated(&id("web"), Some(allocation("a", "4")));
    assert_eq!(verdict(&board), Some(Verdict::Ready));
}

#[tokio::test(start_paused = true)]
async fn that_no_rule_matches_on_one_node_says_nothing_of_another() {
    let none = |node: &str| Companions::of(&[]).on(Some(node));
    let (board, stream) = stage();
    board.expect(Vec::new());
    board.complete(stream);
    tokio::time::advance(Duration::from_secs(3600)).await;
    board.received(stream, &id("web"), none("a"));
    board.allocated(&id("web"), Some(allocation("b", "2")));
    assert_eq!(verdict(&board), None, "a rule of the platform may match there");
    tokio::time::advance(Duration::from_secs(10)).await;
    assert_eq!(verdict(&board), Some(Verdict::Ready), "the manager would have said so by now");
    let (board, stream) = stage();
    board.expect(Vec::new());
    board.received(stream, &id("web"), none("a"));
    assert_eq!(verdict(&board), Some(Verdict::Ready));
}

#[tokio::test(start_paused = true)]
async fn a_host_hears_of_a_pod_only_when_it_is_bound_there() {
    let (board, stream) = stage();
    board.received(stream, &id("web"), companions(CompanionState::Ready));
    let start = async |board: &Board| board.start("a", &claim(), tokio::time::Instant::now()).await;
    assert!(matches!(start(&board).await, Start::Waits { cause, .. } if cause == "PodUnknown"));
    board.apply(&id("web"), &pod(Some("a")));
    board.allocated(&id("web"), None);
    assert_eq!(start(&board).await, Start::Ready);
    assert_eq!(verdict(&board), None, "it is bound already");
}
