use std::cell::Cell;

use serde_json::json;

use super::*;

const ME: &str = "me";

/// A claim that was raised on the Tenant with uid `u`, by a write that gave the Tenant this resourceVersion.
fn raised(claim: u64, resource_version: u64) -> RaisedClaim {
    of("u", claim, resource_version)
}

fn on(uid: &str, number: u64) -> StreamClaim {
    StreamClaim { tenant_uid: uid.to_owned(), number }
}

fn of(uid: &str, claim: u64, resource_version: u64) -> RaisedClaim {
    RaisedClaim { uid: uid.to_owned(), resource_version, claim }
}

fn shown(claim: u64, holder: &str, resource_version: u64) -> ObservedClaim<'_> {
    ObservedClaim { uid: "u", resource_version, claim, holder }
}

#[test]
fn what_is_said_while_it_is_written_stays() {
    let mut stream = Stream::default();
    assert_eq!(stream.unwritten(), None);
    stream.say(&on("u", 1), [("workloads", 1.into()), ("refused", Value::Null)]);
    let first = stream.unwritten().unwrap();
    stream.say(&on("u", 1), [("workloads", 2.into())]);
    stream.written(&first, true);
    assert_eq!(stream.unwritten().unwrap().fields, BTreeMap::from([("workloads", 2.into())]));
    // Another stream knows better, and its claim isn't that of the write.
    stream.say(&on("u", 2), [("workloads", 3.into())]);
    stream.written(&first, true);
    let second = stream.unwritten().unwrap();
    assert_eq!((second.claim.number, second.fields.len()), (2, 1));
    stream.written(&second, true);
    assert_eq!(stream.unwritten(), None);
}

#[test]
fn what_a_status_shows_is_read_only_where_something_was_written_under_its_claim() {
    let (mut stream, reads) = (Stream::default(), Cell::new(0));
    let is_due = |stream: &mut Stream, claim: u64| {
        stream.shown(claim, || {
            reads.set(reads.get() + 1);
            json!({"workloads": 1})
        })
    };
    stream.observed(shown(1, ME, 5), ME);
    assert!(!is_due(&mut stream, 1), "nothing was written");
    stream.say(&on("u", 1), [("workloads", 2.into())]);
    assert!(!is_due(&mut stream, 1), "it is still to be written");
    let unwritten = stream.unwritten().unwrap();
    stream.written(&unwritten, true);
    assert!(!is_due(&mut stream, 2), "another claim");
    assert_eq!(reads.get(), 0);
    assert!(is_due(&mut stream, 1), "a restored cluster shows what was there before");
    assert_eq!(reads.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_newer_stream_ends_the_older_one() {
    let mut stream = Stream::default();
    let OpenedStream { number: one, end: ended, not_before } = stream.begin(2, Instant::now()).unwrap();
    assert_eq!(not_before, Instant::now());
    stream.claimed(one, raised(1, 1)).unwrap();
    assert!(stream.connected && stream.check(one).is_ok());
    let OpenedStream { number: two, not_before, .. } = stream.begin(2, Instant::now()).unwrap();
    assert_eq!(not_before, Instant::now() + PACE, "the second waits");
    assert!(ended.is_cancelled());
    assert_eq!(stream.check(one), Err(Superseded));
    assert!(stream.begin(2, Instant::now()).is_none(), "both are still open");
    assert_eq!(stream.claimed(one, raised(2, 2)), Err(Superseded));
    assert_eq!(stream.end(one, Timestamp::UNIX_EPOCH), None);
    stream.claimed(two, raised(3, 3)).unwrap();
    assert!(stream.acts(false));
    assert_eq!(stream.end(two, Timestamp::UNIX_EPOCH), Some(on("u", 3)));
    assert!(stream.acts(false), "the claim is still the latest");
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_ends_before_it_claims_tells_that_nobody_is_connected() {
    let mut stream = Stream::default();
    let begin = |stream: &mut Stream| stream.begin(9, Instant::now()).unwrap().number;
    let one = begin(&mut stream);
    assert_eq!(stream.end(one, Timestamp::UNIX_EPOCH), None, "nothing says that it was connected");
    assert_eq!(stream.lost_at, None);
    let two = begin(&mut stream);
    stream.claimed(two, raised(4, 4)).unwrap();
    let three = begin(&mut stream);
    assert_eq!(stream.end(two, Timestamp::UNIX_EPOCH), None, "a newer one has begun");
    assert_eq!(stream.end(three, Timestamp::UNIX_EPOCH), Some(on("u", 4)));
    assert_eq!(stream.lost_at, Some(Timestamp::UNIX_EPOCH));
    let again = begin(&mut stream);
    assert_eq!(stream.end(again, Timestamp::MAX), None, "it is reported once");
    assert_eq!(stream.lost_at, Some(Timestamp::UNIX_EPOCH), "and stays the time of the loss");
    let four = begin(&mut stream);
    stream.claimed(four, raised(5, 5)).unwrap();
    let five = begin(&mut stream);
    stream.observed(shown(6, "other", 6), ME);
    assert_eq!(stream.end(five, Timestamp::UNIX_EPOCH), None, "another replica says it");
}

#[test]
fn a_stream_that_another_replica_has_lost_is_lost_here_too() {
    let [first, second] = [1, 2].map(|second| Timestamp::from_second(second).ok());
    let mut stream = Stream::default();
    stream.lost_since(first);
    assert_eq!(stream.lost_at, first);
    stream.lost_since(second);
    stream.lost_since(None);
    assert_eq!(stream.lost_at, second, "the last time counts");
    let one = stream.begin(9, Instant::now()).unwrap().number;
    stream.claimed(one, raised(1, 1)).unwrap();
    stream.lost_since(Timestamp::from_second(3).ok());
    assert_eq!(stream.lost_at, second, "what is shown is of before this stream");
}

#[test]
fn a_claim_that_the_leader_takes_over_ends_the_stream_of_a_holder_that_lives() {
    let mut stream = Stream::default();
    let OpenedStream { number: one, end: ended, .. } = stream.begin(9, Instant::now()).unwrap();
    stream.claimed(one, raised(5, 50)).unwrap();
    assert!(stream.observed(shown(6, "", 60), ME));
    assert!(ended.is_cancelled() && !stream.acts(false), "its agent connects again");
    let two = stream.begin(9, Instant::now()).unwrap().number;
    stream.claimed(two, raised(7, 70)).unwrap();
    assert!(stream.connected && stream.acts(false));
    let mut other = Stream::default();
    assert!(!other.observed(shown(5, ME, 50), "other") && !other.acts(true));
    assert!(!other.observed(shown(6, "", 60), "other") && other.acts(true), "the leader acts");
    assert!(!other.observed(shown(7, ME, 70), "other") && !other.acts(true), "until there is a newer claim");
}

#[test]
fn another_replicas_claim_ends_this_ones() {
    let mut stream = Stream::default();
    assert!(stream.acts(true) && !stream.acts(false));
    let OpenedStream { number: one, end: ended, .. } = stream.begin(9, Instant::now()).unwrap();
    stream.claimed(one, raised(5, 50)).unwrap();
    assert!(!stream.observed(shown(4, "other", 40), ME), "an old one");
    assert!(!stream.observed(shown(5, ME, 50), ME));
    assert!(stream.observed(shown(6, "other", 60), ME));
    assert!(ended.is_cancelled() && !stream.connected && !stream.acts(true));
    assert_eq!(stream.check(one), Err(Superseded));
    // It comes back.
    let two = stream.begin(9, Instant::now()).unwrap().number;
    assert_eq!(stream.claimed(two, raised(6, 60)), Err(Superseded));
    stream.claimed(two, raised(7, 70)).unwrap();
    assert!(stream.acts(false));
    // Somebody else takes it and goes in order.
    assert!(stream.observed(shown(8, "other", 80), ME));
    assert!(!stream.observed(shown(8, "", 81), ME));
    assert!(stream.acts(true) && !stream.acts(false));
    stream.restart();
    assert_eq!(stream.claim, 0);
}

#[test]
fn a_claim_seen_before_ones_own_is_known() {
    let mut stream = Stream::default();
    let one = stream.begin(9, Instant::now()).unwrap().number;
    // The watch is faster than the answer to our own, older claim.
    assert!(!stream.observed(shown(3, "other", 30), ME));
    assert_eq!(stream.claimed(one, raised(2, 20)), Err(Superseded));
    assert_eq!((stream.highest("u"), stream.highest("another")), (3, 0));
}

#[test]
fn a_tenant_that_is_recreated_counts_from_zero() {
    // On another replica: it has seen many claims of the former Tenant.
    let mut stream = Stream::default();
    assert!(!stream.observed(shown(9, "other", 90), ME));
    assert!(!stream.observed(ObservedClaim { uid: "v", resource_version: 100, claim: 0, holder: "" }, ME));
    assert!(stream.acts(true) && !stream.acts(false), "nobody serves the new one yet");
    let one = stream.begin(9, Instant::now()).unwrap().number;
    stream.claimed(one, of("v", 1, 101)).unwrap();
    assert!(stream.acts(false));
    // On the replica that served the former one.
    let mut stream = Stream::default();
    let OpenedStream { number: one, end, .. } = stream.begin(9, Instant::now()).unwrap();
    stream.claimed(one, raised(9, 90)).unwrap();
    assert!(!stream.observed(shown(9, ME, 90), ME));
    assert!(
        stream.observed(ObservedClaim { uid: "v", resource_version: 100, claim: 1, holder: "other" }, ME)
    );
    assert!(end.is_cancelled() && !stream.acts(true), "what it knows is about the former one");
}

#[test]
fn a_claim_on_a_tenant_that_the_watch_has_not_shown_yet_counts() {
    let mut stream = Stream::default();
    stream.observed(shown(9, "other", 90), ME);
    let OpenedStream { number: one, end, .. } = stream.begin(9, Instant::now()).unwrap();
    stream.claimed(one, of("v", 1, 101)).unwrap();
    // The end of the former Tenant, then the new one as it was made and as it was claimed.
    assert!(!stream.observed(shown(9, "other", 95), ME));
    for (resource_version, claim, holder) in [(100, 0, ""), (101, 1, ME)] {
        assert!(!stream.observed(ObservedClaim { uid: "v", resource_version, claim, holder }, ME));
    }
    assert!(stream.acts(false) && !end.is_cancelled());
    // A claim on a Tenant that has been replaced since.
    stream.observed(ObservedClaim { uid: "w", resource_version: 200, claim: 0, holder: "" }, ME);
    let two = stream.begin(9, Instant::now()).unwrap().number;
    assert_eq!(stream.claimed(two, of("v", 2, 150)), Err(Superseded));
}

#[test]
fn after_a_restore_everybody_counts_from_what_was_restored() {
    // This replica had the latest claim, and another one is restored.
    let mut stream = Stream::default();
    let OpenedStream { number: one, end, .. } = stream.begin(9, Instant::now()).unwrap();
    stream.claimed(one, raised(12, 120)).unwrap();
    assert!(!stream.observed(shown(12, ME, 120), ME));
    assert!(stream.observed(shown(7, "other", 70), ME), "the other one has it again");
    assert!(end.is_cancelled() && !stream.acts(true));
    assert_eq!(
        stream.highest("u"),
        12,
        "what the stream of that number has left to write isn't for the next one's"
    );
    let two = stream.begin(9, Instant::now()).unwrap().number;
    stream.claimed(two, raised(13, 80)).unwrap();
    assert!(!stream.observed(shown(13, ME, 80), ME));
    assert!(stream.acts(false));
    // One of its own is restored: its stream ends all the same, since others count from the restored one.
    assert!(stream.observed(shown(5, ME, 50), ME));
    assert!(!stream.acts(false));
    assert!(!stream.observed(shown(6, "other", 60), ME));
    assert!(!stream.acts(true), "the other one serves the tenant");
}

#[test]
fn a_claim_that_was_raised_unheard_is_found() {
    let mut stream = Stream::default();
    stream.raise_begins();
    assert!(!stream.observed(shown(1, ME, 10), ME));
    assert_eq!(stream.unused_claim(), None, "its answer may be on the way");
    stream.raise_ends();
    assert_eq!(stream.unused_claim(), Some(on("u", 1)));
    // The agent comes back.
    let one = stream.begin(9, Instant::now()).unwrap().number;
    stream.claimed(one, raised(2, 20)).unwrap();
    assert_eq!(stream.unused_claim(), None);
    // A later one is raised unheard, and is committed after the wait for it.
    assert!(!stream.observed(shown(3, ME, 30), ME));
    assert_eq!(stream.unused_claim(), Some(on("u", 3)));
    // It is given up: the leader cares for the tenant.
    assert!(stream.observed(shown(3, "", 31), ME));
    assert_eq!((stream.unused_claim(), stream.acts(true), stream.acts(false)), (None, true, false));
}

#[tokio::test(start_paused = true)]
async fn a_lower_claim_in_a_later_version_is_that_of_a_restored_cluster() {
    let mut stream = Stream::default();
    let one = stream.begin(9, Instant::now()).unwrap().number;
    stream.claimed(one, raised(6, 60)).unwrap();
    assert!(!stream.observed(shown(6, ME, 60), ME));
    // Nobody has shown the restored state, of claim 3, before another replica claimed the stream.
    assert!(stream.observed(shown(4, "other", 2000), ME));
    assert!(!stream.acts(false) && !stream.acts(true), "the other one serves the tenant");
    let mut stream = Stream::default();
    let one = stream.begin(9, Instant::now()).unwrap().number;
    stream.claimed(one, raised(6, 60)).unwrap();
    assert!(!stream.observed(shown(5, "other", 50), ME), "a watch that is behind");
    assert!(stream.acts(false));
}

#[test]
fn a_known_number_with_another_holder_is_that_of_a_restored_cluster() {
    // The leader, which has acted for the tenant under claim 7.
    let mut leader = Stream::default();
    assert!(!leader.observed(shown(7, "", 70), ME) && leader.acts(true));
    assert!(!leader.observed(shown(7, "other", 2000), ME) && !leader.acts(true), "the other one serves it");
    let mut stream = Stream::default();
    let OpenedStream { number: one, end: ended, .. } = stream.begin(9, Instant::now()).unwrap();
    stream.claimed(one, raised(7, 70)).unwrap();
    assert!(!stream.observed(shown(7, ME, 71), ME));
    assert!(stream.observed(shown(7, "other", 2000), ME), "both have counted from 6 on");
    assert!(ended.is_cancelled() && !stream.acts(true));
}
