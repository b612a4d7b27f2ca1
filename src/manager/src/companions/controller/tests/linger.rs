//! Companions that outlive their workloads.

use jiff::Timestamp;
use outrigger_core::tenant::Limits;

use super::*;

const LINGER: Duration = Duration::from_secs(60);
const COMPANION: &str = "/api/v1/namespaces/tenant-blue/pods/r-";

/// A world in which the rule lets companions linger, the workload `w` has ended, and a companion of it is left.
struct Lingering {
    world: World,
    /// The path of the companion.
    path: String,
}

/// A wall clock that begins here, and goes with the paused time of the runtime.
fn begin() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

impl Lingering {
    fn new() -> Self {
        let world = World::in_environment(Environment::simulated(1, begin()));
        let name = companion::own_name(&id().key);
        let this = Self { world, path: COMPANION.replace("r-", &name) };
        this.set_linger(1, Some(LINGER));
        this.ends();
        this.shows_mark(None);
        this
    }

    fn set_linger(&self, generation: i64, linger: Option<Duration>) -> Vec<CompanionKey> {
        let mut rule = fixtures::rule();
        rule["metadata"]["generation"] = json!(generation);
        rule["spec"]["lingerSeconds"] = json!(linger.map(|linger| linger.as_secs()));
        self.world.state().lock().apply_rule(&fixtures::object(rule))
    }

    fn ends(&self) {
        self.world.state().lock().index.sync(Vec::new());
    }

    /// The watch shows the companion, with the recorded end of its workload.
    fn shows_mark(&self, ended: Option<Timestamp>) {
        self.shows("pod", true, ended);
    }

    fn shows(&self, uid: &str, ready: bool, ended: Option<Timestamp>) {
        let rule = self.world.state().lock().index.rule(&id().key.rule).cloned().unwrap();
        let observed = Observed {
            uid: uid.into(),
            rule_uid: "u".into(),
            rule_generation: 1,
            resource_version: 7,
            template_hash: rule.template_hash().into(),
            injected: Some(Vec::new()),
            ready,
            ended: ended.map(Timestamp::as_millisecond),
            ..Observed::default()
        };
        self.world.state().lock().companions.applied("r-w", id().key, observed);
    }

    /// The API server accepts a patch of the companion's mark.
    fn takes_mark(&self) {
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "r-w", "namespace": "tenant-blue", "uid": "pod", "resourceVersion": "8"}});
        self.world.api.answers("PATCH", &self.path, 200, pod);
    }

    /// The marks that were written: `null` removes one.
    fn marks(&self) -> Vec<Value> {
        let calls = self.world.api.calls("PATCH");
        calls
            .into_iter()
            .map(|(_, body)| body["metadata"]["annotations"][keys::WORKLOAD_ENDED].clone())
            .collect()
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_is_recorded_once_and_the_companion_is_deleted_when_its_time_is_over() {
    let t = Lingering::new();
    t.takes_mark();
    assert_eq!(t.world.step().await, Action::Done);
    assert_eq!(t.marks(), ["2026-01-01T00:00:00.000Z"]);
    assert_eq!(t.world.api.calls("PATCH")[0].1["metadata"]["resourceVersion"], "7");
    t.shows_mark(Some(begin()));
    tokio::time::advance(Duration::from_secs(20)).await;
    for _ in 0..3 {
        assert_eq!(t.world.step().await, Action::Requeue(Duration::from_secs(40)), "nothing is written");
    }
    tokio::time::advance(Duration::from_secs(40)).await;
    t.world.step().await;
    assert_eq!((t.marks().len(), t.world.deletions()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_manager_that_has_just_started_goes_by_the_recorded_end_after_the_first_sync() {
    let t = Lingering::new();
    let due = begin() - LINGER;
    t.shows_mark(Some(due));
    t.world.state().lock().index.doubt(|_| false);
    assert_eq!(t.world.step().await, Action::Done);
    assert_eq!(t.world.deletions(), 0, "the workload may be there again");
    t.ends();
    t.world.step().await;
    assert_eq!((t.marks().len(), t.world.deletions()), (0, 1), "it doesn't linger from now on");
}

#[tokio::test(start_paused = true)]
async fn a_record_that_another_manager_has_made_meanwhile_is_not_overwritten() {
    let t = Lingering::new();
    t.world.api.answers("PATCH", &t.path, 409, failure(409, "Conflict"));
    assert_eq!(t.world.step().await, Action::Wait, "the watch will show it");
    assert_eq!(t.world.deletions(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_end_in_the_future_is_recorded_again_as_now() {
    let t = Lingering::new();
    t.shows_mark(Some(begin() + Duration::from_secs(3600)));
    t.takes_mark();
    t.world.step().await;
    assert_eq!((t.marks(), t.world.deletions()), (vec![json!("2026-01-01T00:00:00.000Z")], 0));
}

#[tokio::test(start_paused = true)]
async fn the_record_is_removed_when_the_workload_is_there_again() {
    let t = Lingering::new();
    t.shows_mark(Some(begin() - LINGER * 2));
    t.world.state().lock().index.sync(vec![fixtures::workload("w")]);
    t.takes_mark();
    t.world.step().await;
    assert_eq!((t.marks(), t.world.deletions()), (vec![Value::Null], 0));
}

#[tokio::test(start_paused = true)]
async fn a_change_of_the_rule_concerns_lingering_companions() {
    let t = Lingering::new();
    t.shows_mark(Some(begin()));
    tokio::time::advance(Duration::from_secs(20)).await;
    assert_eq!(t.set_linger(2, Some(LINGER * 2)), [id().key]);
    assert_eq!(t.world.step().await, Action::Requeue(Duration::from_secs(100)), "from the recorded end");
    assert_eq!(t.set_linger(3, Some(Duration::from_secs(20))), [id().key]);
    t.world.step().await;
    assert_eq!(t.world.deletions(), 1, "its time is over");
    t.shows_mark(Some(begin()));
    assert_eq!(t.set_linger(4, None), [id().key]);
    t.world.step().await;
    assert_eq!(t.world.deletions(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_rule_ends_the_time_of_its_companions() {
    let t = Lingering::new();
    t.shows_mark(Some(begin()));
    let touched = t.world.state().lock().remove_rule(&id().key.rule);
    assert_eq!(touched, [id().key]);
    t.world.api.answers("GET", RULE, 404, not_found());
    t.world.step().await;
    assert_eq!(t.world.deletions(), 1);
}

#[tokio::test(start_paused = true)]
async fn of_two_companions_of_an_ended_workload_one_lingers() {
    let t = Lingering::new();
    t.shows_mark(Some(begin()));
    let claim =
        Observed { kind: Kind::Claim, uid: "claim".into(), rule_uid: "u".into(), ..Observed::default() };
    t.world.state().lock().companions.applied("r-w", id().key, claim);
    t.world.step().await;
    let deleted = t.world.api.calls("DELETE");
    assert!(deleted.len() == 1 && deleted[0].0.contains("resourceclaims"), "{deleted:?}");
}

#[tokio::test(start_paused = true)]
async fn a_companion_that_was_never_ready_is_deleted_at_once_unless_it_is_ready_by_now() {
    let t = Lingering::new();
    t.shows("never", false, None);
    t.world.api.answers("DELETE", &t.path, 409, failure(409, "Conflict"));
    assert_eq!(t.world.step().await, Action::Wait, "the watch will show its other state");
    let deleted = t.world.api.calls("DELETE");
    assert_eq!(deleted[0].1["preconditions"], json!({"uid": "never", "resourceVersion": "7"}));
    // It is another one that has been ready, and isn't any longer.
    t.shows("once", true, None);
    t.shows("once", false, None);
    t.takes_mark();
    t.world.step().await;
    assert_eq!((t.marks().len(), t.world.deletions()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn the_oldest_gives_way_where_more_linger_than_there_is_room_for() {
    let t = Lingering::new();
    t.shows_mark(Some(begin()));
    let later = Observed {
        uid: "v".into(),
        ended: Some(begin().as_millisecond() + 1),
        ready: true,
        ..Observed::default()
    };
    let v = CompanionKey { workload: "v".into(), ..id().key };
    t.world.state().lock().companions.applied("r-v", v, later);
    let limit = |companions| t.world.state().lock().set_limits(Limits { companions, ..Limits::default() });
    assert_eq!(limit(2), []);
    t.world.step().await;
    assert_eq!(t.world.deletions(), 0);
    // What is wanted has the room first.
    t.world.state().lock().index.sync(vec![fixtures::workload("another")]);
    assert_eq!(limit(2), [id().key]);
    t.world.step().await;
    assert_eq!(t.world.deletions(), 1);
    // Without any room nothing is recorded before.
    t.shows_mark(None);
    limit(1);
    t.world.step().await;
    assert_eq!((t.marks().len(), t.world.deletions()), (0, 2));
}

#[tokio::test(start_paused = true)]
async fn those_that_give_way_and_cannot_be_deleted_keep_their_pause() {
    let lingering = Lingering::new();
    let world = &lingering.world;
    lingering.shows_mark(Some(begin()));
    world.state().lock().set_limits(Limits { companions: 0, ..Limits::default() });
    let asked = || world.state().lock().lingering_beyond(&id().key.rule);
    assert_eq!(asked(), [id().key]);
    world.api.answers("DELETE", &lingering.path, 500, failure(500, "InternalError"));
    assert_eq!(world.step().await, Action::Wait);
    assert_eq!(asked(), [], "the queue retries it after its pause");
    // Nor is it asked for before all workloads are known.
    world.state().lock().index.doubt(|_| true);
    world.state().lock().lingering_asked = Default::default();
    assert_eq!(asked(), []);
    lingering.ends();
    assert_eq!(asked(), [id().key]);
}
