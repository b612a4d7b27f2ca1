//! The state of a tenant's stream, on this replica and as far as this replica knows on others.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use outrigger_core::companion::StreamClaim;
use outrigger_core::fault;
use serde_json::Value;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Status;

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
    connected_claim: u64,
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
    /// The highest claim in this replica's name that was seen, in the state of the cluster that there is.
    own: u64,
    /// The highest claim in this replica's name that was ever seen, also in a state of the cluster before an older one was restored. No
    /// number is raised twice: what a stream has left to write would pass for what a later one of its number says.
    used: u64,
    end: CancellationToken,
    /// When the next one may claim.
    next: Option<Instant>,
    /// What the Tenant's status is to have of this replica's stream.
    unwritten: StreamFields,
    /// What was written of it under the last claim.
    said: StreamFields,
}

/// Fields of `Tenant.status.stream` that a stream of this replica has to write.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StreamFields {
    /// The claim under which they are written: they are only valid as long as it is the latest.
    pub claim: StreamClaim,
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

impl From<Superseded> for Status {
    fn from(superseded: Superseded) -> Self {
        Self::aborted(superseded.to_string())
    }
}

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
        if !same {
            return 0;
        }
        let shown = self.claim.max(self.foreign).max(self.own);
        if self.used > shown && !fault("numbers-of-claims-are-used-twice") { self.used } else { shown }
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
        self.own_seen(claim);
        self.check(stream)?;
        if claim <= self.foreign {
            return Err(Superseded);
        }
        self.claim = claim;
        self.connected_claim = claim;
        self.claimed_at = resource_version;
        self.connected = true;
        Ok(())
    }

    /// The number of the latest stream.
    #[cfg(test)]
    pub(crate) fn number(&self) -> u64 {
        self.current
    }

    /// Fails when a newer stream has begun.
    pub(crate) fn check(&self, stream: u64) -> Result<(), Superseded> {
        if self.current == stream && !self.end.is_cancelled() { Ok(()) } else { Err(Superseded) }
    }

    /// A stream ends. Says nothing about workloads: they stay as they were last seen. Returns the claim under which no agent is connected
    /// now, if the Tenant says that one is: none if a newer stream has begun or another replica has claimed. The stream itself may
    /// not have claimed yet. Then the claim is that of the stream before it, which it has replaced.
    pub(crate) fn end(&mut self, stream: u64, now: Timestamp) -> Option<StreamClaim> {
        self.open = self.open.saturating_sub(1);
        if self.current != stream || self.connected_claim == 0 {
            return None;
        }
        self.connected = false;
        self.lost_at = Some(now);
        let claim = std::mem::take(&mut self.connected_claim);
        self.on_tenant(claim)
    }

    /// A Tenant's status says that no agent is connected since then. Another replica may have written that, or have been killed.
    pub(crate) fn lost_since(&mut self, since: Option<Timestamp>) {
        if !self.connected {
            self.lost_at = self.lost_at.max(since);
        }
    }

    /// A Tenant's status shows this claim. Whether what this replica knows of the tenant is out of date from now on: another
    /// replica has the stream, or it is another Tenant.
    pub(crate) fn observed(&mut self, shown: ObservedClaim<'_>, me: &str) -> bool {
        let ObservedClaim { uid, resource_version, claim, holder } = shown;
        let before = self.tenant.replace(TenantVersion { uid: uid.to_owned(), resource_version });
        if let Some(before) = before {
            if before.uid != uid && !fault("claims-outlive-their-tenant") {
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
            // The counter never goes down. A lower one in a later version is that of a cluster that was restored with later versions.
            let lower = claim < self.foreign || (claim < self.claim && resource_version > self.claimed_at);
            if resource_version < before.resource_version || lower {
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

    fn own_seen(&mut self, claim: u64) {
        self.own = self.own.max(claim);
        self.used = self.used.max(claim);
    }

    /// Takes a claim in. Whether it took the stream from this replica.
    fn count(&mut self, claim: u64, holder: &str, me: &str) -> bool {
        if holder == me {
            self.own_seen(claim);
            return false;
        }
        let is_held = !holder.is_empty();
        if claim < self.foreign || !is_held && claim <= self.claim {
            return false;
        }
        // A restored cluster counts from an earlier claim on, so the number of one that is known may be another holder's by now.
        self.released = !is_held;
        self.foreign = claim;
        (self.claim < claim || is_held && self.claim == claim) && self.lose()
    }

    /// The Tenant's status shows this of the stream, under this claim of this replica; it is asked for only where something was written. What
    /// was written under the claim and isn't shown is of a state before which the cluster was restored: it is to be written again. Returns
    /// whether anything is.
    pub(crate) fn shown(&mut self, claim: u64, shown: impl FnOnce() -> Value) -> bool {
        let is_latest = self.on_tenant(claim).is_some_and(|of| of == self.said.claim);
        if !is_latest || self.raising > 0 || !self.unwritten.fields.is_empty() || self.said.fields.is_empty()
        {
            return false;
        }
        let shown = shown();
        let StreamFields { claim, mut fields } = self.said.clone();
        fields.retain(|field, value| shown.get(*field).unwrap_or(&Value::Null) != value);
        self.say(&claim, fields);
        !self.unwritten.fields.is_empty()
    }

    /// The Tenant's status is to have these fields, under this claim. They replace those of another claim.
    pub(crate) fn say(
        &mut self,
        claim: &StreamClaim,
        fields: impl IntoIterator<Item = (&'static str, Value)>,
    ) {
        if self.unwritten.claim != *claim {
            self.unwritten = StreamFields { claim: claim.clone(), ..StreamFields::default() };
        }
        self.unwritten.fields.extend(fields);
    }

    /// What the Tenant's status is to have and doesn't have yet, as far as this replica knows.
    pub(crate) fn unwritten(&self) -> Option<StreamFields> {
        (!self.unwritten.fields.is_empty()).then(|| self.unwritten.clone())
    }

    /// These fields are `stored`, or never will be, because the claim isn't the latest. What was said since stays.
    pub(crate) fn written(&mut self, written: &StreamFields, stored: bool) {
        if stored {
            if self.said.claim != written.claim {
                self.said = StreamFields { claim: written.claim.clone(), ..StreamFields::default() };
            }
            self.said.fields.extend(written.fields.clone());
        }
        if self.unwritten.claim == written.claim {
            self.unwritten.fields.retain(|field, value| written.fields.get(field) != Some(value));
        }
    }

    /// A claim in this replica's name that no stream is for: it was raised, and the answer was lost. While it stays, no replica acts
    /// for the tenant.
    pub(crate) fn unused_claim(&self) -> Option<StreamClaim> {
        let latest = self.own > self.claim && self.own > self.foreign;
        self.on_tenant(self.own).filter(|_| latest && self.raising == 0)
    }

    /// Gives the current stream up. Whether there was one.
    fn lose(&mut self) -> bool {
        let held = self.claim > 0;
        if held {
            self.claim = 0;
            self.connected_claim = 0;
            self.claimed_at = 0;
            self.connected = false;
            self.end.cancel();
        }
        held
    }

    /// Another Tenant's claims say nothing about this one's.
    fn restart_counters(&mut self) {
        self.claim = 0;
        self.connected_claim = 0;
        self.claimed_at = 0;
        self.foreign = 0;
        self.own = 0;
        self.used = 0;
        self.released = false;
        (self.unwritten, self.said) = Default::default();
    }

    /// Whether this replica acts for the tenant: it holds the latest claim, or no replica does and it leads.
    pub(crate) fn acts(&self, leads: bool) -> bool {
        if self.claim > self.foreign {
            return true;
        }
        leads && (self.foreign == 0 || self.released || fault("leader-acts-beside-the-holder"))
    }

    /// The latest claim that this replica knows of, and acts under where it acts at all. `None` before it has seen the Tenant.
    pub(crate) fn latest(&self) -> Option<StreamClaim> {
        self.on_tenant(self.claim.max(self.foreign))
    }

    /// The claim with this number on the Tenant that is known.
    fn on_tenant(&self, number: u64) -> Option<StreamClaim> {
        self.tenant.as_ref().map(|tenant| StreamClaim { tenant_uid: tenant.uid.clone(), number })
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
mod tests;
