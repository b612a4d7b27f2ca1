//! The state of a tenant's stream, on this replica and as far as this replica knows on others.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use outrigger_core::companion::StreamClaim;
use serde_json::Value;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

#[derive(Debug, Clone, Default)]
pub(crate) struct Stream {
    /// Counts this replica's streams; the latest is the one that counts.
    current: u64,
    /// Whether it is open, and claimed.
    pub connected: bool,
    /// When the last one ended.
    pub lost_at: Option<Timestamp>,
    /// The claim under which the Tenant says that an agent is connected; 0 for none. A stream that has replaced the one of that claim and
    /// ends before it has a claim of its own has to take it back.
    told: u64,
    /// Streams that are open, those that have been superseded and haven't ended yet included.
    open: usize,
    /// The Tenant that all claims are about.
    tenant: Option<TenantVersion>,
    /// Claim of the current stream; 0 for none yet.
    claim: u64,
    /// resourceVersion of the Tenant with that claim.
    claimed_at: u64,
    /// The highest claim of another replica that was seen; 0 for none.
    foreign: u64,
    released: bool,
    /// Claims of this replica that are on their way to the API server.
    raising: usize,
    /// The highest claim in this replica's name that was seen.
    own: u64,
    end: CancellationToken,
    /// When the next one may claim.
    next: Option<Instant>,
    /// What the Tenant's status is to have of this replica's stream.
    unwritten: StreamFields,
}

/// Fields of `Tenant.status.stream` that a stream of this replica has to write.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StreamFields {
    /// The claim under which they are written: they are only valid as long as it is the latest.
    pub claim: u64,
    /// Each field's new value.
    pub fields: BTreeMap<&'static str, Value>,
}

/// A Tenant as the watch has shown it last.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TenantVersion {
    uid: String,
    resource_version: u64,
}

/// The claim that a Tenant's status shows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ObservedClaim<'a> {
    /// uid of the Tenant. A Tenant that is created again counts from the beginning.
    pub uid: &'a str,
    pub resource_version: u64,
    /// The claim's number; 0 for none yet.
    pub claim: u64,
    /// Who has it; empty when it was given up.
    pub holder: &'a str,
}

/// A claim that this replica has raised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RaisedClaim {
    pub uid: String,
    /// resourceVersion of the Tenant with the claim.
    pub resource_version: u64,
    pub claim: u64,
}

#[derive(Debug, Clone)]
pub(crate) struct OpenedStream {
    /// What it has to show with each message.
    pub number: u64,
    pub end: CancellationToken,
    /// When it may claim, which is a write to the API server: an agent that connects again and again waits its turn.
    pub not_before: Instant,
}

/// Least time between two claims on one tenant's stream.
const PACE: Duration = Duration::from_millis(500);

/// A stream that is not the latest of its tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a newer stream of the same tenant has taken over")]
pub(crate) struct Superseded;

impl Stream {
    /// A stream begins; it replaces the one before. `None` when `most` are open already.
    pub(crate) fn begin(&mut self, most: usize, now: Instant) -> Option<OpenedStream> {
        if self.open >= most {
            return None;
        }
        self.open += 1;
        self.replace();
        let not_before = self.next.unwrap_or(now).max(now);
        self.next = Some(not_before + PACE);
        Some(OpenedStream { number: self.current, end: self.end.clone(), not_before })
    }

    pub(crate) fn raise_begins(&mut self) {
        self.raising += 1;
    }

    /// The result of a claim is known, or its caller has been cancelled.
    pub(crate) fn raise_ends(&mut self) {
        self.raising = self.raising.saturating_sub(1);
    }

    /// The number that the next claim has to be higher than, whatever the Tenant with this uid says itself: its counter may
    /// have gone back, where an older state of the cluster was restored.
    pub(crate) fn highest(&self, uid: &str) -> u64 {
        let same = self.tenant.as_ref().is_some_and(|tenant| tenant.uid == uid);
        if same { self.claim.max(self.foreign).max(self.own) } else { 0 }
    }

    /// The stream's claim has been raised: it is served from now on. Fails when a newer stream has begun here, another replica
    /// has claimed since, or the claim was on an earlier Tenant of that name.
    pub(crate) fn claimed(&mut self, stream: u64, raised: RaisedClaim) -> Result<(), Superseded> {
        let RaisedClaim { uid, resource_version, claim } = raised;
        if self.tenant.as_ref().is_some_and(|tenant| tenant.uid != uid) {
            if self.tenant.as_ref().is_some_and(|tenant| tenant.resource_version >= resource_version) {
                return Err(Superseded);
            }
            // The watch has not shown the new Tenant yet.
            self.restart_counters();
        }
        if self.tenant.as_ref().is_none_or(|tenant| tenant.uid != uid) {
            self.tenant = Some(TenantVersion { uid, resource_version: 0 });
        }
        self.own = self.own.max(claim);
        self.check(stream)?;
        if claim <= self.foreign {
            return Err(Superseded);
        }
        self.claim = claim;
        self.told = claim;
        self.claimed_at = resource_version;
        self.connected = true;
        Ok(())
    }

    /// Fails when a newer stream has begun.
    pub(crate) fn check(&self, stream: u64) -> Result<(), Superseded> {
        if self.current == stream && !self.end.is_cancelled() { Ok(()) } else { Err(Superseded) }
    }

    /// A stream ends. Says nothing about workloads: they stay as they were last seen. Returns the claim under which no agent is connected
    /// now, if the Tenant says that one is: none if a newer stream has begun or another replica has claimed. The stream itself may
    /// not have claimed yet. Then the claim is that of the stream before it, which it has replaced.
    pub(crate) fn end(&mut self, stream: u64, now: Timestamp) -> Option<u64> {
        self.open = self.open.saturating_sub(1);
        if self.current != stream || self.told == 0 {
            return None;
        }
        self.connected = false;
        self.lost_at = Some(now);
        Some(std::mem::take(&mut self.told))
    }

    /// A Tenant's status shows this claim. Whether what this replica knows of the tenant is out of date from now on: another
    /// replica has the stream, or it is another Tenant.
    pub(crate) fn observed(&mut self, shown: ObservedClaim<'_>, me: &str) -> bool {
        let ObservedClaim { uid, resource_version, claim, holder } = shown;
        let before = self.tenant.replace(TenantVersion { uid: uid.to_owned(), resource_version });
        if let Some(before) = before {
            if before.uid != uid {
                if before.resource_version == 0 && resource_version < self.claimed_at {
                    // The watch has not come to the Tenant on which this replica has claimed.
                    self.tenant = Some(before);
                    return false;
                }
                let lost = self.lose();
                self.restart_counters();
                self.count(claim, holder, me);
                return lost;
            }
            if resource_version < before.resource_version {
                // An older state of the cluster was restored, and with it an older claim. Everybody counts from that one on.
                let held = holder == me && claim == self.claim;
                let lost = !held && self.lose();
                self.foreign = 0;
                self.own = 0;
                self.released = false;
                self.count(claim, holder, me);
                return lost;
            }
        }
        self.count(claim, holder, me)
    }

    /// Takes a claim in. Whether it took the stream from this replica.
    fn count(&mut self, claim: u64, holder: &str, me: &str) -> bool {
        if holder == me {
            self.own = self.own.max(claim);
            return false;
        }
        if claim <= self.foreign && !(claim == self.foreign && holder.is_empty()) {
            return false;
        }
        if holder.is_empty() && claim <= self.claim {
            return false;
        }
        self.released = holder.is_empty();
        self.foreign = claim;
        self.claim < claim && self.lose()
    }

    /// The Tenant's status is to have these fields, under this claim. They replace those of another claim.
    pub(crate) fn say(&mut self, claim: u64, fields: impl IntoIterator<Item = (&'static str, Value)>) {
        if self.unwritten.claim != claim {
            self.unwritten = StreamFields { claim, ..StreamFields::default() };
        }
        self.unwritten.fields.extend(fields);
    }

    /// What the Tenant's status is to have and doesn't have yet, as far as this replica knows.
    pub(crate) fn unwritten(&self) -> Option<StreamFields> {
        (!self.unwritten.fields.is_empty()).then(|| self.unwritten.clone())
    }

    /// These fields are written, or never will be, because the claim isn't the latest. What was said since stays.
    pub(crate) fn written(&mut self, written: &StreamFields) {
        if self.unwritten.claim == written.claim {
            self.unwritten.fields.retain(|field, value| written.fields.get(field) != Some(value));
        }
    }

    /// A claim in this replica's name that no stream is for: it was raised, and the answer was lost. While it stays, no replica acts
    /// for the tenant.
    pub(crate) fn unused_claim(&self) -> Option<u64> {
        let latest = self.own > self.claim && self.own > self.foreign;
        (latest && self.raising == 0).then_some(self.own)
    }

    /// Gives the current stream up. Whether there was one.
    fn lose(&mut self) -> bool {
        let held = self.claim > 0;
        if held {
            self.claim = 0;
            self.told = 0;
            self.claimed_at = 0;
            self.connected = false;
            self.end.cancel();
        }
        held
    }

    /// Another Tenant's claims say nothing about this one's.
    fn restart_counters(&mut self) {
        self.claim = 0;
        self.told = 0;
        self.claimed_at = 0;
        self.foreign = 0;
        self.own = 0;
        self.released = false;
        self.unwritten = StreamFields::default();
    }

    /// Whether this replica acts for the tenant: it holds the latest claim, or no replica does and it leads.
    pub(crate) fn acts(&self, leads: bool) -> bool {
        if self.claim > self.foreign {
            return true;
        }
        leads && (self.foreign == 0 || self.released)
    }

    /// The latest claim that this replica knows of, and acts under where it acts at all. `None` before it has seen the Tenant.
    pub(crate) fn latest(&self) -> Option<StreamClaim> {
        let tenant = self.tenant.as_ref()?;
        Some(StreamClaim { tenant_uid: tenant.uid.clone(), number: self.claim.max(self.foreign) })
    }

    /// Forgets everything but the count; the stream that is open ends.
    pub(crate) fn restart(&mut self) {
        self.replace();
        let open = self.open;
        *self = Self {
            current: self.current,
            open,
            end: self.end.clone(),
            next: self.next,
            raising: self.raising,
            ..Self::default()
        };
    }

    fn replace(&mut self) {
        self.current += 1;
        self.connected = false;
        std::mem::take(&mut self.end).cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: &str = "me";

    /// A claim that was raised on the Tenant with uid `u`, by a write that gave the Tenant this resourceVersion.
    fn raised(claim: u64, resource_version: u64) -> RaisedClaim {
        of("u", claim, resource_version)
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
        stream.say(1, [("workloads", 1.into()), ("refused", Value::Null)]);
        let first = stream.unwritten().unwrap();
        stream.say(1, [("workloads", 2.into())]);
        stream.written(&first);
        assert_eq!(stream.unwritten().unwrap().fields, BTreeMap::from([("workloads", 2.into())]));
        // Another stream knows better, and its claim isn't that of the write.
        stream.say(2, [("workloads", 3.into())]);
        stream.written(&first);
        let second = stream.unwritten().unwrap();
        assert_eq!((second.claim, second.fields.len()), (2, 1));
        stream.written(&second);
        assert_eq!(stream.unwritten(), None);
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
        assert_eq!(stream.end(two, Timestamp::UNIX_EPOCH), Some(3));
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
        assert_eq!(stream.end(three, Timestamp::UNIX_EPOCH), Some(4));
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
    fn a_tenant_that_is_made_anew_counts_anew() {
        // On another replica: it has seen many claims of the former Tenant.
        let mut stream = Stream::default();
        assert!(!stream.observed(shown(9, "other", 90), ME));
        assert!(
            !stream.observed(ObservedClaim { uid: "v", resource_version: 100, claim: 0, holder: "" }, ME)
        );
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
        assert_eq!(stream.highest("u"), 7);
        let two = stream.begin(9, Instant::now()).unwrap().number;
        stream.claimed(two, raised(8, 80)).unwrap();
        assert!(!stream.observed(shown(8, ME, 80), ME));
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
        assert_eq!(stream.unused_claim(), Some(1));
        // The agent comes back.
        let one = stream.begin(9, Instant::now()).unwrap().number;
        stream.claimed(one, raised(2, 20)).unwrap();
        assert_eq!(stream.unused_claim(), None);
        // A later one is raised unheard, and is committed after the wait for it.
        assert!(!stream.observed(shown(3, ME, 30), ME));
        assert_eq!(stream.unused_claim(), Some(3));
        // It is given up: the leader cares for the tenant.
        assert!(stream.observed(shown(3, "", 31), ME));
        assert_eq!((stream.unused_claim(), stream.acts(true), stream.acts(false)), (None, true, false));
    }
}
