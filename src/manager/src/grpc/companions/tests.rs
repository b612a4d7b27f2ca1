use std::time::Duration;

use futures::{FutureExt, StreamExt};
use outrigger_core::companion::Observed;
use outrigger_core::ids::RuleName;
use outrigger_runtime::cache::Change;
use outrigger_runtime::fake_api::FakeApi;
use outrigger_runtime::ready::Readiness;
use serde_json::json;
use tonic::Code;

use super::*;
use crate::fixtures::{self, key};
use crate::state::{Refusal, Why};

/// A replica that serves the tenant `blue`, whose rule `r` matches the workloads `v` and `w`.
struct World {
    service: CompanionOutcomes,
    state: Arc<TenantState>,
}

type Messages = <CompanionOutcomes as CompanionService>::WatchStream;

impl World {
    fn new() -> Self {
        let context = fixtures::context(FakeApi::default().client());
        let mut tenant = fixtures::tenant_claimed(1, "me");
        tenant["spec"]["hosts"] = json!(["h"]);
        context.caches.registry.tenant(Change::Applied(fixtures::object(tenant)));
        let state = fixtures::served_tenant(&context);
        let touched = {
            let mut data = state.lock();
            data.apply_rule(&fixtures::object(fixtures::rule()));
            data.assess_hosts(&context.caches.registry, context.environment.clock.wall());
            data.outcomes.complete = data.stream.number();
            data.index.sync(["v", "w"].map(fixtures::workload).into())
        };
        context.companions_touched(&state, touched);
        let access = Arc::new(Access::new(&context, &Readiness::default()));
        Self { service: CompanionOutcomes::new(&context, &access, &CancellationToken::new()), state }
    }

    async fn watch(&self) -> Result<Messages, Status> {
        let context = &self.service.context;
        let id = TenantId::new("blue").unwrap();
        let tenant = context.caches.registry.authorize(&Caller::Local, &id)?;
        let mut request = Request::new(WatchRequest {});
        request.extensions_mut().insert(Some(Admitted { caller: Caller::Local, id, tenant }));
        self.service.watch(request).await.map(Response::into_inner)
    }

    /// The companion of a workload looks like this.
    fn shows(&self, workload: &str, ready: bool) {
        let hash = self.state.lock().index.rule(&key("").rule).unwrap().template_hash().to_owned();
        let observed = Observed {
            uid: "p".into(),
            rule_uid: "u".into(),
            template_hash: hash,
            ready,
            ..Observed::default()
        };
        self.state.lock().companions.applied(workload, key(workload), observed);
        self.service.context.companions_touched(&self.state, vec![key(workload)]);
    }
}

async fn next(messages: &mut Messages) -> Message {
    messages.next().await.unwrap().unwrap().message.unwrap()
}

/// A workload's id, and the states and reasons of its companions.
fn states(message: &Message) -> (String, Vec<(CompanionState, String)>) {
    let Message::Workload(workload) = message else { panic!("{message:?}") };
    let of = |companion: &Companion| (companion.state(), companion.reason.clone());
    (workload.workload_id.clone(), workload.companions.iter().map(of).collect())
}

/// Reads up to Synced.
async fn synced(messages: &mut Messages) -> Vec<Message> {
    let mut received = Vec::new();
    loop {
        match next(messages).await {
            Message::Synced(_) => return received,
            message => received.push(message),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn everything_comes_first_then_what_changes() {
    let world = World::new();
    let mut messages = world.watch().await.unwrap();
    let received = synced(&mut messages).await;
    let pending = || vec![(CompanionState::Pending, "Pending".to_owned())];
    assert_eq!(
        received[..2].iter().map(states).collect::<Vec<_>>(),
        [("v".into(), pending()), ("w".into(), pending())]
    );
    let Message::Host(host) = &received[2] else { panic!("{received:?}") };
    assert_eq!((host.node_name.as_str(), host.dpu_ready, host.reason.as_str()), ("h", false, "NoDPU"));
    assert_eq!(received.len(), 3);
    assert!(messages.next().now_or_never().is_none());
    world.shows("w", true);
    let ready = next(&mut messages).await;
    assert_eq!(states(&ready), ("w".into(), vec![(CompanionState::Ready, String::new())]));
    let Message::Workload(WorkloadCompanions { companions, node_name, .. }) = ready else { panic!() };
    assert_eq!(node_name.as_deref(), Some(""), "it has none, and that is said too");
    assert_eq!((companions[0].rule.as_str(), companions[0].message.as_str()), ("r", ""));
    assert!(companions[0].since.ends_with('Z'), "{companions:?}");
    let touched = world.state.lock().remove_rule(&key("").rule);
    world.service.context.companions_touched(&world.state, touched);
    let both = [next(&mut messages).await, next(&mut messages).await];
    assert_eq!(both.each_ref().map(states), [("v".into(), vec![]), ("w".into(), vec![])]);
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_sleeps_hears_the_last_state_once() {
    let world = World::new();
    let mut messages = world.watch().await.unwrap();
    synced(&mut messages).await;
    for round in 0..=1000 {
        world.shows("w", round % 2 == 0);
        tokio::time::advance(Duration::from_millis(10)).await;
    }
    let mut received = Vec::new();
    while let Some(message) =
        tokio::time::timeout(Duration::from_secs(5), messages.next()).await.ok().flatten()
    {
        received.push(states(&message.unwrap().message.unwrap()));
    }
    assert!(received.len() <= 4, "{received:?}");
    assert_eq!(received.last().unwrap().1, [(CompanionState::Ready, String::new())]);
}

#[tokio::test(start_paused = true)]
async fn a_tenant_has_so_many_calls_and_one_that_is_not_read_ends() {
    let world = World::new();
    let most = world.service.context.replica.args.max_streams_per_tenant;
    let mut open = Vec::new();
    for _ in 0..most {
        open.push(world.watch().await.unwrap());
    }
    let refused = world.watch().await.err().unwrap();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().contains("has 4 calls of Watch open already"), "{refused}");
    assert_eq!(world.service.context.telemetry.metrics.watches.get(), 4);
    // Nobody reads: one message waits, and then the call ends.
    tokio::time::sleep(2 * WATCH_STALL).await;
    assert_eq!(world.service.context.telemetry.metrics.watches.get(), 0);
    let last = open.remove(0).collect::<Vec<_>>().await.pop().unwrap().unwrap_err();
    assert_eq!(last.code(), Code::ResourceExhausted, "{last}");
    let one = world.watch().await.unwrap();
    drop(one);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(
        world.service.context.telemetry.metrics.watches.get(),
        0,
        "a caller that goes away is noticed"
    );
}

#[tokio::test(start_paused = true)]
async fn of_a_rule_of_the_platform_only_state_and_reason_are_reported() {
    let world = World::new();
    let (context, state) = (&world.service.context, &world.state);
    let rule = RuleName::admin("secret").unwrap();
    let mut admin = fixtures::admin_rule();
    admin["metadata"]["name"] = json!("secret");
    admin["metadata"]["uid"] = json!("a");
    admin["spec"]["ordering"] = json!("BeforeReady");
    let admin: outrigger_api::AdminWorkloadRule = fixtures::object(admin);
    let compiled = Arc::new(admin.compile().unwrap().rule);
    let touched = {
        let mut data = state.lock();
        data.admin_companions = Some(context.states.admin_companions_of(&TenantId::new("blue").unwrap()));
        let entry = crate::state::RuleEntry { uid: "a".into(), generation: 1, ..Default::default() };
        let touched = data.set_admin_rule(&rule, entry, Some(compiled));
        let why = Why {
            faults: "spec.template.secret: x".into(),
            ..Why::new(Cause::QuotaExceeded, "quota q of namespace n")
        };
        let refusal = Refusal { why, generation: 1, until: context.environment.clock.now() };
        for key in &touched {
            data.refusals.insert(key.clone(), refusal.clone());
        }
        touched
    };
    context.companions_touched(state, touched);
    let mut messages = world.watch().await.unwrap();
    let received = synced(&mut messages).await;
    let Message::Workload(WorkloadCompanions { companions, .. }) = &received[0] else {
        panic!("{received:?}")
    };
    let of_platform: Vec<&Companion> =
        companions.iter().filter(|companion| companion.rule.is_empty()).collect();
    let [one] = of_platform[..] else { panic!("{companions:?}") };
    assert_eq!(
        (one.state(), one.reason.as_str(), one.message.as_str()),
        (CompanionState::Refused, "QuotaExceeded", "")
    );
    assert!(one.before_ready, "the Pod may wait for it");
    assert!(!format!("{received:?}").contains("secret"), "{received:?}");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_has_our_words_and_never_those_of_the_api_server() {
    let world = World::new();
    let why = Why {
        faults: "spec.template.spec.x: bad\u{1b}[2J".into(),
        ..Why::new(Cause::Refused, "namespace secret")
    };
    let refusal = Refusal { why, generation: 1, until: world.service.context.environment.clock.now() };
    world.state.lock().refusals.insert(key("w"), refusal);
    world.service.context.companions_touched(&world.state, vec![key("w")]);
    let mut messages = world.watch().await.unwrap();
    let received = synced(&mut messages).await;
    let Message::Workload(WorkloadCompanions { companions, .. }) = &received[1] else {
        panic!("{received:?}")
    };
    let expected = format!("{}; spec.template.spec.x: bad [2J", Cause::Refused.message());
    assert_eq!(
        (companions[0].state(), companions[0].message.as_str()),
        (CompanionState::Refused, expected.as_str())
    );
    assert!(message(Cause::Refused, &"é".repeat(1000)).len() <= WATCH_TEXT_BYTES);
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_knows_nothing_waits_and_then_says_so() {
    let world = World::new();
    world.state.lock().stream.connected = false;
    let mut messages = world.watch().await.unwrap();
    let waits = async { messages.next().await.unwrap().unwrap_err() };
    let began = Instant::now();
    let ended = waits.await;
    assert_eq!((ended.code(), began.elapsed()), (Code::Unavailable, WATCH_PATIENCE), "{ended}");
    // The stream comes meanwhile.
    let mut messages = world.watch().await.unwrap();
    assert!(messages.next().now_or_never().is_none());
    {
        let mut data = world.state.lock();
        data.stream.connected = true;
        data.outcomes.wake();
    }
    assert_eq!(synced(&mut messages).await.len(), 3);
    // Another replica takes it.
    {
        let mut data = world.state.lock();
        data.stream.connected = false;
        data.outcomes.wake();
    }
    let ended = messages.next().await.unwrap().unwrap_err();
    assert_eq!(ended.code(), Code::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn a_call_ends_with_the_process_and_with_the_callers_rights() {
    let world = World::new();
    let mut messages = world.watch().await.unwrap();
    synced(&mut messages).await;
    let gone = Change::Gone { namespace: String::new(), name: "blue".into(), uid: String::new() };
    world.service.context.caches.registry.tenant(gone);
    let ended = messages.next().await.unwrap().unwrap_err();
    assert_eq!(ended.code(), Code::NotFound, "to an administrator: {ended}");
    let world = World::new();
    let mut messages = world.watch().await.unwrap();
    synced(&mut messages).await;
    world.service.drain.cancel();
    let ended = messages.next().await.unwrap().unwrap_err();
    assert_eq!(
        (ended.code(), ended.message()),
        (Code::Unavailable, "this replica is going down; connect again")
    );
}

/// The workload with this id on a node.
fn on(id: &str, node: &str) -> outrigger_core::workload::Workload {
    outrigger_core::workload::Workload { node_name: Some(node.into()), ..fixtures::workload(id) }
}

#[tokio::test(start_paused = true)]
async fn what_is_reported_names_the_node_that_it_is_about_and_is_reported_again_about_another() {
    let world = World::new();
    let (context, state) = (&world.service.context, &world.state);
    world.shows("w", true);
    let mut messages = world.watch().await.unwrap();
    synced(&mut messages).await;
    let update = |workload| {
        let now = context.environment.clock.wall();
        let touched = state.lock().update_workload(workload, &context.caches.registry, now);
        context.companions_touched(state, touched);
    };
    let ready = ("w".to_owned(), vec![(CompanionState::Ready, String::new())]);
    // Any DPU will do: the same companion serves it everywhere, so how it is doesn't change.
    for node in ["h", "i"] {
        update(on("w", node));
        let message = next(&mut messages).await;
        assert_eq!(states(&message), ready);
        let Message::Workload(WorkloadCompanions { node_name, .. }) = message else { panic!() };
        assert_eq!(node_name.as_deref(), Some(node));
    }
    update(outrigger_core::workload::Workload { ready: false, ..on("w", "i") });
    let nothing = tokio::time::timeout(Duration::from_secs(60), messages.next()).await;
    assert!(nothing.is_err(), "the node is the same: {nothing:?}");
    // Other labels match the same rules, and the agent has to know that these were seen.
    for revision in [8, 9] {
        update(outrigger_core::workload::Workload { revision, ..on("w", "i") });
        let message = next(&mut messages).await;
        assert_eq!(states(&message), ready);
        let Message::Workload(received) = message else { panic!() };
        assert_eq!(received.revision, revision);
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_hears_nothing_of_the_tenant_that_gets_its_namespace() {
    let tenant = |id: &str| TenantId::new(id).ok();
    for back in [false, true] {
        let world = World::new();
        let context = &world.service.context;
        let mut follows = world.watch().await.unwrap();
        synced(&mut follows).await;
        // One that waits for the workloads.
        world.state.lock().stream.connected = false;
        let mut waits = world.watch().await.unwrap();
        assert!(waits.next().now_or_never().is_none());
        context.states.set_tenant("tenant-blue", tenant("red"));
        if back {
            context.states.set_tenant("tenant-blue", tenant("blue"));
        }
        let touched = {
            let mut data = world.state.lock();
            (data.stream.connected, data.outcomes.complete) = (true, data.stream.number());
            data.index.sync(["x"].map(fixtures::workload).into())
        };
        context.companions_touched(&world.state, touched);
        for messages in [&mut follows, &mut waits] {
            let ended = messages.next().await.unwrap().unwrap_err();
            assert_eq!(ended.code(), Code::Unavailable, "{ended}");
            assert!(messages.next().await.is_none());
        }
        assert_eq!(context.telemetry.metrics.watches.get(), 0);
        // The control: who may hear it hears it.
        assert_eq!(world.watch().await.is_ok(), back);
        if back {
            let received = synced(&mut world.watch().await.unwrap()).await;
            assert_eq!(states(&received[0]).0, "x");
        }
    }
}
