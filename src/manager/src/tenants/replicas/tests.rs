use outrigger_runtime::cache::Change;
use outrigger_runtime::fake_api::{FakeApi, failure, not_found};

use super::*;
use crate::fixtures;

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/outrigger-system/leases";
const LEASE: &str =
    "/apis/coordination.k8s.io/v1/namespaces/outrigger-system/leases/outrigger-manager-replicas";
const STATUS: &str = "/apis/outrigger.dev/v1alpha1/tenants/blue/status";

fn entries_of(all: &[(&str, &str)]) -> Entries {
    all.iter().map(|(replica, entry)| ((*replica).to_owned(), (*entry).to_owned())).collect()
}

fn claims(all: &[(&str, &str, u64)]) -> BTreeMap<String, BTreeSet<(TenantId, u64)>> {
    let mut claims: BTreeMap<String, BTreeSet<_>> = BTreeMap::new();
    for (replica, tenant, number) in all {
        let claim = (TenantId::new(tenant).unwrap(), *number);
        claims.entry((*replica).to_owned()).or_default().insert(claim);
    }
    claims
}

/// Looks at these entries and claims every 15 s. Returns after how many seconds `a` is dead; `None` after two minutes.
fn dies(
    mut at: impl FnMut(u64) -> Option<(Entries, BTreeMap<String, BTreeSet<(TenantId, u64)>>)>,
) -> Option<u64> {
    let (mut sightings, began) = (Sightings::default(), Instant::now());
    (0..=120).step_by(15).find(|seconds| {
        at(*seconds).is_some_and(|(entries, claims)| {
            sightings.look(&entries, claims, began + Duration::from_secs(*seconds)).contains("a")
        })
    })
}

#[test]
fn a_replica_is_dead_when_its_entry_was_seen_unchanged_for_a_minute() {
    let held = || claims(&[("a", "blue", 1)]);
    assert_eq!(dies(|_| Some((entries_of(&[("a", "1"), ("b", "1")]), held()))), Some(60));
    assert_eq!(dies(|now| Some((entries_of(&[("a", &now.to_string())]), held()))), None, "it renews it");
    let once = |now: u64| if now < 30 { "1" } else { "2" };
    assert_eq!(dies(|now| Some((entries_of(&[("a", once(now))]), held()))), Some(90));
}

#[test]
fn a_replica_whose_entry_is_missing_or_was_not_seen_for_a_while_is_not_dead() {
    let held = || claims(&[("a", "blue", 1)]);
    assert_eq!(dies(|_| Some((entries_of(&[("b", "1")]), held()))), None, "it may be of an earlier version");
    let away = |now: u64| (now < 30 || now == 90).then(|| (entries_of(&[("a", "1")]), held()));
    assert_eq!(dies(away), None, "neither could others renew their entries meanwhile");
    let gone = |now: u64| if now == 45 { entries_of(&[]) } else { entries_of(&[("a", "1")]) };
    assert_eq!(dies(|now| Some((gone(now), held()))), Some(120), "it is counted from its return");
}

#[test]
fn a_replica_that_claims_lives_although_it_does_not_renew_its_entry() {
    let number = |now: u64| if now < 45 { 1 } else { 2 };
    let held = |now: u64| claims(&[("a", "blue", number(now))]);
    assert_eq!(dies(|now| Some((entries_of(&[("a", "1")]), held(now)))), Some(105));
    let fewer = |now: u64| if now < 45 { claims(&[("a", "blue", 1), ("a", "red", 1)]) } else { claims(&[]) };
    assert_eq!(dies(|now| Some((entries_of(&[("a", "1")]), fewer(now)))), Some(60), "another has claimed");
}

#[test]
fn an_entry_has_a_name_that_an_annotation_may_have() {
    assert_eq!(entry("manager-7c9d-x2x4z-00c0ffee"), "manager-7c9d-x2x4z-00c0ffee");
    assert_eq!(entry("Host_A/ü-00c0ffee"), "Host-A---00c0ffee");
    let long = entry(&format!("{}.{}-00c0ffee", "x".repeat(80), "y".repeat(53)));
    assert_eq!(long, format!("{}-00c0ffee", "y".repeat(53)));
}

/// A replica that leads, and the Tenant `blue` with a claim of another replica, which has an entry.
fn world(renewed: &str) -> (FakeApi, Arc<Context>) {
    let api = FakeApi::default();
    let context = fixtures::context(api.client());
    context.replica.leadership.lead_without_lease();
    let tenant = fixtures::object(fixtures::tenant_claimed(4, "other-1"));
    context.caches.registry.tenant(Change::Applied(tenant));
    let key = format!("{}other-1", prefix());
    let lease = json!({"metadata": {"name": keys::MANAGER_REPLICAS, "uid": "l", "resourceVersion": "9",
        "annotations": {key: renewed}}});
    api.answers("PATCH", LEASE, 200, lease);
    (api, context)
}

/// Makes rounds for so long.
async fn rounds(context: &Context, sightings: &mut Sightings, time: Duration) {
    let ends = Instant::now() + time;
    while Instant::now() < ends {
        let pause = round(context, sightings).await;
        tokio::time::advance(pause).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_leader_takes_over_the_claim_of_a_replica_that_has_died() {
    let (api, context) = world("2026-01-01T00:00:00Z");
    api.answers("PATCH", STATUS, 200, fixtures::tenant_claimed(5, ""));
    let mut sightings = Sightings::default();
    let statuses =
        || api.calls("PATCH").into_iter().filter(|(path, _)| path.starts_with(STATUS)).collect::<Vec<_>>();
    rounds(&context, &mut sightings, EXPIRES - RENEW).await;
    assert!(statuses().is_empty(), "it may live");
    rounds(&context, &mut sightings, EXPIRES).await;
    let written = statuses();
    assert_eq!(written.len(), 1, "the answer shows that it has no holder");
    let (_, body) = &written[0];
    assert_eq!(body["metadata"], json!({"uid": "u", "resourceVersion": "12"}), "over what it was read from");
    let stream = &body["status"]["stream"];
    assert_eq!(
        (&stream["claim"], &stream["holder"], &stream["connected"]),
        (&json!(5), &json!(""), &json!(false))
    );
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_does_not_lead_takes_over_no_claim_and_renews_its_entry() {
    let (api, context) = world("2026-01-01T00:00:00Z");
    context.replica.leadership.follow_without_lease();
    rounds(&context, &mut Sightings::default(), 3 * EXPIRES).await;
    let calls = api.calls("PATCH");
    assert!(calls.iter().all(|(path, _)| path.starts_with(LEASE)), "{calls:?}");
    assert!((12..=15).contains(&calls.len()), "one in 12 to 15 s: {}", calls.len());
    let key = format!("{}{}", prefix(), entry(&context.replica.identity));
    assert!(calls.iter().all(|(_, body)| body["metadata"]["annotations"][&key].is_string()));
}

#[tokio::test(start_paused = true)]
async fn the_first_replica_creates_the_lease() {
    let (api, context) = world("");
    api.answers("PATCH", LEASE, 404, not_found());
    api.answers("POST", LEASES, 201, json!({"metadata": {"name": keys::MANAGER_REPLICAS}}));
    assert!(renew(&context).await.is_ok());
    api.answers("POST", LEASES, 409, failure(409, "AlreadyExists"));
    assert!(renew(&context).await.is_err());
    assert_eq!(api.calls("PATCH").len(), 3, "another one was faster");
}

#[tokio::test]
async fn the_entry_of_a_former_replica_is_removed_when_it_holds_no_claim() {
    for (age, holds, is_removed) in
        [(KEEP * 2, false, true), (KEEP * 2, true, false), (KEEP / 2, false, false)]
    {
        let (api, context) = world(&(Timestamp::now() - age).to_string());
        if !holds {
            let tenant = fixtures::object(fixtures::tenant_claimed(5, ""));
            context.caches.registry.tenant(Change::Applied(tenant));
        }
        round(&context, &mut Sightings::default()).await;
        let calls = api.calls("PATCH");
        let removals = calls.iter().filter(|(_, body)| body["metadata"]["resourceVersion"] == "9");
        let removals: Vec<_> = removals.map(|(_, body)| body["metadata"]["annotations"].clone()).collect();
        let expected = is_removed.then(|| json!({format!("{}other-1", prefix()): null}));
        assert_eq!(removals, expected.into_iter().collect::<Vec<_>>());
    }
}
