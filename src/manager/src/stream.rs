//! The state of a tenant's stream, on this replica and as far as this replica knows on others.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The state of a tenant's stream.
#[derive(Debug, Clone, Default)]
pub struct Stream {
    /// Counts this replica's streams; the latest is the one that counts.
    current: u64,
    /// Whether it is open, and claimed.
    pub connected: bool,
    /// When the last one ended.
    pub lost_at: Option<Timestamp>,
    /// Streams that are open, those that have been superseded and haven't ended yet included.
    open: usize,
    /// Claim of the current stream; 0 for none yet.
    claim: u64,
    /// The highest claim of another replica that was seen; 0 for none.
    foreign: u64,
    /// Its holder has given it up.
    released: bool,
    /// Ends the current stream.
    end: CancellationToken,
    /// When the next one may claim.
    next: Option<Instant>,
}

/// A stream that has begun.
#[derive(Debug, Clone)]
pub struct Begun {
    /// What it has to show with each message.
    pub number: u64,
    /// What ends it.
    pub end: CancellationToken,
    /// When it may claim, which is a write to the API server: an agent that connects again and again waits its turn.
    pub not_before: Instant,
}

/// Least time between two claims on one tenant's stream.
const PACE: Duration = Duration::from_millis(500);

/// A stream that is not the latest of its tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a newer stream of the same tenant has taken over")]
pub struct Superseded;

impl Stream {
    /// A stream begins; it replaces the one before. `None` when `most` are open already.
    pub fn begin(&mut self, most: usize) -> Option<Begun> {
        if self.open >= most {
            return None;
        }
        self.open += 1;
        self.replace();
        let now = Instant::now();
        let not_before = self.next.unwrap_or(now).max(now);
        self.next = Some(not_before + PACE);
        Some(Begun { number: self.current, end: self.end.clone(), not_before })
    }

    /// The stream's claim has been raised: it is served from now on.
    ///
    /// # Errors
    /// When a newer stream has begun here, or another replica has claimed since.
    pub fn claimed(&mut self, stream: u64, claim: u64) -> Result<(), Superseded> {
        self.check(stream)?;
        if claim <= self.foreign {
            return Err(Superseded);
        }
        self.claim = claim;
        self.connected = true;
        Ok(())
    }

    /// # Errors
    /// When a newer stream has begun.
    pub fn check(&self, stream: u64) -> Result<(), Superseded> {
        if self.current == stream && !self.end.is_cancelled() { Ok(()) } else { Err(Superseded) }
    }

    /// A stream ends. Says nothing about workloads: they stay as they were last seen. Whether it was the current one.
    pub fn end(&mut self, stream: u64, now: Timestamp) -> bool {
        self.open = self.open.saturating_sub(1);
        let current = self.current == stream && self.connected;
        if current {
            self.connected = false;
            self.lost_at = Some(now);
        }
        current
    }

    /// The claim of this replica's latest stream; 0 for none.
    pub fn claim(&self) -> u64 {
        self.claim
    }

    /// A Tenant's status shows this claim. Whether it took the stream from this replica.
    pub(crate) fn saw(&mut self, claim: u64, holder: &str, me: &str) -> bool {
        if holder == me || claim <= self.foreign && !(claim == self.foreign && holder.is_empty()) {
            return false;
        }
        if holder.is_empty() && claim <= self.claim {
            return false;
        }
        self.released = holder.is_empty();
        self.foreign = claim;
        let lost = self.claim > 0 && self.claim < claim;
        if lost {
            self.claim = 0;
            self.connected = false;
            self.end.cancel();
        }
        lost
    }

    /// Whether this replica acts for the tenant: it holds the latest claim, or nobody does and it leads.
    pub(crate) fn acts(&self, leads: bool) -> bool {
        if self.claim > self.foreign {
            return true;
        }
        leads && (self.foreign == 0 || self.released)
    }

    /// Forgets everything but the count; the stream that is open ends.
    pub(crate) fn restart(&mut self) {
        self.replace();
        let open = self.open;
        *self =
            Self { current: self.current, open, end: self.end.clone(), next: self.next, ..Self::default() };
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

    #[tokio::test(start_paused = true)]
    async fn a_newer_stream_ends_the_older_one() {
        let mut stream = Stream::default();
        let Begun { number: one, end: ended, not_before } = stream.begin(2).unwrap();
        assert_eq!(not_before, Instant::now());
        stream.claimed(one, 1).unwrap();
        assert!(stream.connected && stream.check(one).is_ok());
        let Begun { number: two, not_before, .. } = stream.begin(2).unwrap();
        assert_eq!(not_before, Instant::now() + PACE, "the second waits");
        assert!(ended.is_cancelled());
        assert_eq!(stream.check(one), Err(Superseded));
        assert!(stream.begin(2).is_none(), "both are still open");
        assert_eq!(stream.claimed(one, 2), Err(Superseded));
        assert!(!stream.end(one, Timestamp::UNIX_EPOCH));
        stream.claimed(two, 3).unwrap();
        assert!(stream.acts(false));
        assert!(stream.end(two, Timestamp::UNIX_EPOCH));
        assert!(stream.acts(false), "the claim is still the latest");
    }

    #[test]
    fn another_replicas_claim_ends_this_ones() {
        let mut stream = Stream::default();
        assert!(stream.acts(true) && !stream.acts(false));
        let Begun { number: one, end: ended, .. } = stream.begin(9).unwrap();
        stream.claimed(one, 5).unwrap();
        assert!(!stream.saw(4, "other", "me"), "an old one");
        assert!(!stream.saw(5, "me", "me"));
        assert!(stream.saw(6, "other", "me"));
        assert!(ended.is_cancelled() && !stream.connected && !stream.acts(true));
        assert_eq!(stream.check(one), Err(Superseded));
        // It comes back.
        let two = stream.begin(9).unwrap().number;
        assert_eq!(stream.claimed(two, 6), Err(Superseded));
        stream.claimed(two, 7).unwrap();
        assert!(stream.acts(false));
        // Somebody else takes it and goes in order.
        assert!(stream.saw(8, "other", "me"));
        assert!(!stream.saw(8, "", "me"));
        assert!(stream.acts(true) && !stream.acts(false));
        stream.restart();
        assert_eq!(stream.claim(), 0);
    }

    #[test]
    fn a_claim_seen_before_ones_own_is_known() {
        let mut stream = Stream::default();
        let one = stream.begin(9).unwrap().number;
        // The watch is faster than the answer to our own, older claim.
        assert!(!stream.saw(3, "other", "me"));
        assert_eq!(stream.claimed(one, 2), Err(Superseded));
    }
}
