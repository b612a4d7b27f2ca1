use outrigger_core::ids::WorkloadId;
use outrigger_core::index::Desired;
use outrigger_proto::v1::{self, WorkloadMetadata, WorkloadState, workload_state};
use outrigger_runtime::fake_api::FakeApi;
use prost::Message;
use tonic::Code;

use super::*;
use crate::fixtures;
use crate::state::TenantStates;

/// The message as it is received.
fn update(id: &str, node: &str) -> WorkloadUpdate {
    let labels = workload_state::ExtraData { data: [("app".to_owned(), "web".to_owned())].into() };
    let update = v1::WorkloadUpdate {
        workload_metadata: Some(WorkloadMetadata {
            id: id.to_owned(),
            orchestrator: 1,
            resource_type: "v1/Pod".to_owned(),
            resource_namespace: "default".to_owned(),
            resource_name: id.to_owned(),
        }),
        workload_state: Some(WorkloadState {
            node_name: node.to_owned(),
            ready: true,
            extra: [("labels".to_owned(), labels)].into(),
            ..Default::default()
        }),
        annotation_keys: None,
    };
    WorkloadUpdate::decode(update.encode_to_vec().as_slice()).unwrap()
}

/// A tenant with a rule that matches every workload, and a stream.
fn tenant() -> (Arc<TenantState>, u64) {
    let state = TenantStates::default().state("tenant-blue");
    let stream = {
        let mut data = state.lock();
        let keys = data.apply_rule(&fixtures::object(fixtures::rule()));
        assert!(keys.is_empty() && data.index.rules().count() == 1);
        data.stream.begin(4, tokio::time::Instant::now()).unwrap().number
    };
    (state, stream)
}

fn try_begin(state: &Arc<TenantState>, stream: u64, most: u32, announced: u64) -> Result<Sync, Status> {
    let context = fixtures::context(FakeApi::default().client());
    let limits = Limits { workloads: most, ..Limits::default() };
    Sync::begin(context, state.clone(), stream, limits, announced, Reading::Silent)
}

fn begin(state: &Arc<TenantState>, stream: u64, most: u32) -> Sync {
    try_begin(state, stream, most, 0).unwrap()
}

fn names(keys: Vec<CompanionKey>) -> Vec<String> {
    let mut names: Vec<_> = keys.into_iter().map(|key| key.workload.to_string()).collect();
    names.sort();
    names
}

fn desired(state: &TenantState, id: &str) -> &'static str {
    let data = state.lock();
    let key = fixtures::key(&WorkloadId::new(id).unwrap().label_value());
    match data.index.desired(&key) {
        Desired::Wanted { .. } => "wanted",
        Desired::Unwanted => "unwanted",
        Desired::Unknown => "unknown",
        _ => "other",
    }
}

fn all(ids: &[&str]) -> Vec<WorkloadUpdate> {
    ids.iter().map(|id| update(id, "n")).collect()
}

#[tokio::test]
async fn nothing_is_gone_before_the_end() {
    let (state, stream) = tenant();
    let mut first = begin(&state, stream, 9);
    assert!(first.take(&all(&["a", "b"]), "x").unwrap().is_empty(), "what is missing is known at the end");
    assert_eq!(desired(&state, "z"), "unknown");
    assert_eq!(names(first.take(&all(&["c"]), "x").and_then(|_| first.end()).unwrap()), ["a", "b", "c"]);
    assert_eq!(desired(&state, "z"), "unwanted");
    // Another one: `b` is gone, `c` has moved, `d` is new.
    let mut next = begin(&state, stream, 9);
    assert_eq!(names(next.take(&all(&["a", "d"]), "x").unwrap()), ["d"]);
    assert_eq!(names(next.take(&[update("c", "elsewhere")], "x").unwrap()), ["c"]);
    assert_eq!(desired(&state, "b"), "wanted");
    assert_eq!(names(next.end().unwrap()), ["b"]);
    assert_eq!(desired(&state, "b"), "unwanted");
    assert_eq!(state.lock().usage.count(), 3);
}

#[tokio::test]
async fn a_sync_that_is_broken_off_deletes_nothing() {
    let (state, stream) = tenant();
    let mut first = begin(&state, stream, 9);
    first.take(&all(&["a", "b"]), "x").unwrap();
    first.end().unwrap();
    let mut broken = begin(&state, stream, 9);
    assert_eq!(names(broken.take(&all(&["a", "c"]), "x").unwrap()), ["c"]);
    drop(broken);
    for id in ["a", "b", "c"] {
        assert_eq!(desired(&state, id), "wanted");
    }
    // A newer stream takes over, and the older one's sync no longer counts.
    let mut old = begin(&state, stream, 9);
    old.take(&all(&["a"]), "x").unwrap();
    let newer = state.lock().stream.begin(4, tokio::time::Instant::now()).unwrap().number;
    assert_eq!(old.take(&all(&["b"]), "x").unwrap_err().code(), Code::Aborted);
    assert_eq!(old.end().unwrap_err().code(), Code::Aborted);
    assert_eq!(desired(&state, "b"), "wanted");
    let mut sync = begin(&state, newer, 9);
    sync.take(&all(&["b"]), "x").unwrap();
    assert_eq!(names(sync.end().unwrap()), ["a", "c"]);
}

#[tokio::test]
async fn a_sync_within_the_limits_is_taken_whatever_there_was_before() {
    let (state, stream) = tenant();
    let mut first = begin(&state, stream, 3);
    first.take(&all(&["a", "b", "c"]), "x").unwrap();
    first.end().unwrap();
    let (follower, _) = state.lock().outcomes.follow(1).unwrap();
    let mut next = begin(&state, stream, 3);
    next.take(&all(&["d", "e"]), "x").unwrap();
    assert!(state.lock().index.workloads() <= 3, "what there was before has made room");
    assert!(!state.lock().outcomes.is_followed_by(follower), "who followed it has to begin again");
    // That isn't to say that it is gone.
    assert_eq!(desired(&state, "a"), "unknown");
    next.take(&all(&["c"]), "x").unwrap();
    assert_eq!(names(next.end().unwrap()), ["c", "d", "e"]);
    assert_eq!(desired(&state, "a"), "unwanted");
    assert_eq!(state.lock().usage.count(), 3);
}

#[tokio::test]
async fn what_is_over_a_limit_is_refused_with_both_numbers_and_changes_nothing() {
    let (state, stream) = tenant();
    let mut sync = begin(&state, stream, 2);
    sync.take(&all(&["a"]), "x").unwrap();
    let status = sync.take(&all(&["a", "b", "c"]), "x").unwrap_err();
    let words = "Tenant spec.limits.workloads: 3 would be used, at most 2 are allowed";
    assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, words));
    assert_eq!(state.lock().index.workloads(), 1);
    let status = try_begin(&state, stream, 2, 3).unwrap_err();
    assert_eq!(status.message(), words, "it isn't waited for");
    let status = begin(&state, stream, 2).take(&[WorkloadUpdate::default()], "f").unwrap_err();
    assert_eq!(status.message(), "f[0].workload_metadata: is missing");
}

/// A workload whose label has so many bytes.
fn large(id: &str, bytes: usize) -> WorkloadUpdate {
    let mut workload = fixtures::workload(id);
    workload.labels = outrigger_core::texts::Texts::new(vec![("l", &"x".repeat(bytes))]);
    WorkloadUpdate::decode(workload_wire::update(&workload).encode_to_vec().as_slice()).unwrap()
}

#[tokio::test]
async fn workloads_that_have_no_room_are_refused_alone_and_those_that_were_served_stay() {
    let (state, stream) = tenant();
    let context = fixtures::context(FakeApi::default().client());
    let mut limits = Limits { workload_bytes: 14_000, ..Limits::default() };
    let begin = |limits: Limits| {
        Sync::begin(context.clone(), state.clone(), stream, limits, 0, Reading::All).unwrap()
    };
    let mut first = begin(limits);
    let all = [large("a", 5_000), large("b", 100), large("old", 4_000), large("huge", MAX_SIZE)];
    first.take(&all, "x").unwrap();
    first.end().unwrap();
    assert_eq!(["a", "b", "huge"].map(|id| desired(&state, id)), ["wanted", "wanted", "unknown"]);
    assert!(!state.lock().can_keep_refused(&limits), "no room helps");
    // More than all may have: what is there makes room for what is new, and what has none is refused alone.
    let mut next = begin(limits);
    next.take(&[large("c", 4_000), large("b", 4_000), large("a", 5_000), large("d", 100)], "x").unwrap();
    next.end().unwrap();
    let all = ["a", "b", "c", "d"].map(|id| desired(&state, id));
    assert_eq!(all.iter().filter(|desired| **desired == "wanted").count(), 3, "{all:?}");
    assert_eq!((desired(&state, "old"), desired(&state, "huge")), ("unwanted", "unwanted"));
    let counts = || {
        let data = state.lock();
        (data.index.refused_count(), data.usage.count())
    };
    assert_eq!(counts(), (1, 4));
    assert!(!state.lock().can_keep_refused(&limits), "nothing changes if it is sent again");
    // There is room by a higher limit, or because one is gone.
    limits.workload_bytes = 20_000;
    assert!(state.lock().can_keep_refused(&limits));
    let mut last = begin(limits);
    last.take(&[large("a", 5_000), large("b", 4_000), large("c", 4_000), large("d", 100)], "x").unwrap();
    last.end().unwrap();
    assert_eq!(["a", "b", "c", "d"].map(|id| desired(&state, id)), ["wanted"; 4]);
    assert_eq!(state.lock().index.refused_count(), 0);
    // One that grows beyond the room keeps its former state.
    let mut grown = begin(limits);
    grown.take(&[large("a", 5_000), large("b", 4_000), large("c", 4_000), large("d", 9_000)], "x").unwrap();
    grown.end().unwrap();
    assert_eq!((desired(&state, "d"), state.lock().index.refused_count()), ("wanted", 1));
}

#[tokio::test]
async fn a_workload_that_says_it_is_too_large_keeps_what_it_has() {
    let (state, stream) = tenant();
    let context = fixtures::context(FakeApi::default().client());
    let limits = Limits::default();
    let too_large = |id: &str, size| {
        let update = workload_wire::too_large(&fixtures::workload(id), size);
        WorkloadUpdate::decode(update.encode_to_vec().as_slice()).unwrap()
    };
    let take = |all: &[WorkloadUpdate]| {
        let mut sync = Sync::begin(context.clone(), state.clone(), stream, limits, 0, Reading::All).unwrap();
        sync.take(all, "x").unwrap();
        sync.end().unwrap();
    };
    take(&[large("a", 10)]);
    // However much it says, its labels aren't there.
    take(&[too_large("a", 1), too_large("b", MAX_SIZE + 1)]);
    assert_eq!((desired(&state, "a"), desired(&state, "b")), ("wanted", "unknown"));
    let data = state.lock();
    assert_eq!(data.index.refused_count(), 2);
    assert!(!data.can_keep_refused(&limits), "the stream goes on");
}

#[tokio::test]
async fn a_workload_that_is_refused_waits_as_for_a_rule_of_the_platform() {
    let (state, stream) = tenant();
    let context = fixtures::context(FakeApi::default().client());
    let mut sync = Sync::begin(context, state.clone(), stream, Limits::default(), 0, Reading::All).unwrap();
    sync.take(&[large("a", 10), large("huge", MAX_SIZE)], "x").unwrap();
    sync.end().unwrap();
    let data = state.lock();
    let label = data.next_outcome(None).unwrap();
    assert_eq!(&*label, "huge");
    let report = data.report_of(&label, jiff::Timestamp::UNIX_EPOCH).unwrap();
    let companion = &report.companions[0];
    assert!(companion.rule.is_admin() && companion.outcome.ordering.holds());
    assert_eq!(companion.outcome.progress.cause, Some(outrigger_core::reason::Cause::LimitReached));
    assert_eq!(report.companions.len(), 1);
}

#[tokio::test]
async fn what_an_interrupted_sync_has_touched_is_looked_at() {
    let (state, stream) = tenant();
    begin(&state, stream, 9).end().unwrap();
    let context = fixtures::context(FakeApi::default().client());
    let limits = Limits { workloads: 9, ..Limits::default() };
    let mut sync = Sync::begin(context.clone(), state.clone(), stream, limits, 0, Reading::Silent).unwrap();
    sync.receive(&all(&["a", "b"]), "").unwrap();
    state.lock().stream.begin(4, tokio::time::Instant::now()).unwrap();
    assert_eq!(sync.end().unwrap_err().code(), Code::Aborted);
    assert_eq!(context.queues.companions.counts().ready, 2, "the next sync has nothing new to say of them");
}
