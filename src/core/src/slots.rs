//! Who has the slots of a machine type, so that no more guests are admitted than there are slots.
//!
//! A guest that has been admitted is a Pod only some time later, and two replicas may be asked in the same moment. So each
//! admission is written down first, as a [`Grant`] in the type's [`Ledger`]: one object in the cluster, written only in the
//! version that it was read in. Taken are the slots of the guests that the API server lists after that *and* those of grants.
//!
//! A grant counts for [`GRANT_SECONDS`]: by then its Pod has been created, and a list shows it, or it never will be. It counts
//! no longer where a watch has shown the Pod's end.
//!
//! Clocks of machines differ, so no replica compares the time in a grant with its own clock. A grant is over for a replica that
//! has seen it for that long ([`Sightings`]): it was written before it was seen.

use crate::map::{HashMap, HashSet};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::ids::hex;

/// How long a grant counts, in seconds. The API server gives a create 34 s in all (`requestTimeoutUpperBound` of
/// `k8s.io/apiserver`), whatever other webhooks do after this one.
pub const GRANT_SECONDS: u64 = 45;

/// Most bytes of a ledger as JSON. An object of the API server's has 1.5 MiB at most, a ConfigMap 1 MiB.
pub const MAX_BYTES: usize = 900 << 10;

/// Name of the object that holds the ledger of a machine type. Names of groups and types may be too long for it, and have
/// characters that it can't have.
pub fn ledger_name(group: &str, type_: &str) -> String {
    let digest = Sha256::digest(format!("{group}\n{type_}"));
    format!("slots-{}", hex(&digest, 20))
}

/// That a guest has been admitted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Namespace and name of the Pod, with a slash between.
    pub pod: String,
    /// Its uid, which tells it from others of its name.
    #[serde(default)]
    pub uid: String,
    /// When it was admitted, by the clock of who did so: seconds since 1970. For people, and to distinguish grants.
    pub at: u64,
}

/// Since when one replica has seen entries of a ledger, by a clock that only goes forward.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sightings {
    since: HashMap<String, u64>,
}

impl Sightings {
    /// The ledger has these entries now. The others are forgotten.
    pub fn saw(&mut self, entries: impl IntoIterator<Item = String>, now: u64) {
        let before = std::mem::take(&mut self.since);
        let since = |entry: String| {
            let since = before.get(&entry).copied().unwrap_or(now);
            (entry, since)
        };
        self.since = entries.into_iter().map(since).collect();
    }

    /// Whether an entry has been seen for as long as one counts.
    pub fn is_over(&self, entry: &str, now: u64) -> bool {
        self.since.get(entry).is_some_and(|since| now >= since.saturating_add(GRANT_SECONDS))
    }
}

/// The grants of a machine type.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ledger {
    grants: Vec<Grant>,
}

/// The guests of a machine type, as the API server shows them after the ledger was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Guests {
    /// Namespace and name of those that have a slot: they exist, and have neither succeeded nor failed.
    pub live: HashSet<String>,
    /// Uids of those whose end has been shown lately.
    pub gone: HashSet<String>,
    /// Slots that are taken by unnamed guests. A cluster names all of them.
    pub unnamed: u32,
}

/// A guest that is to be admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// As of [`Grant`].
    pub pod: String,
    /// As of [`Grant`].
    pub uid: String,
    /// It will not be created: nothing is written down.
    pub dry_run: bool,
}

/// The answer to an [`Ask`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotDecision {
    /// It has a slot, as soon as the ledger is written.
    Granted,
    /// None is left.
    NoneLeft,
    /// There are more grants than one object can hold.
    Crowded,
}

impl Ledger {
    /// From JSON; an empty text is an empty ledger.
    pub fn read(text: &str) -> Result<Self, serde_json::Error> {
        read(text).map(|grants| Self { grants })
    }

    /// As JSON.
    pub fn write(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(&self.grants)
    }

    /// Its grants.
    pub fn grants(&self) -> &[Grant] {
        &self.grants
    }

    /// Forgets a Pod that is known to be gone for good.
    pub fn release(&mut self, pod: &str) {
        self.grants.retain(|grant| grant.pod != pod);
    }

    /// Drops the grants that no longer count. `is_over`: whether a grant's time is, see [`Sightings`].
    pub fn tidy(&mut self, guests: &Guests, is_over: impl Fn(&Grant) -> bool) {
        self.grants.retain(|grant| !is_over(grant) && !guests.gone.contains(&grant.uid));
    }

    /// Answers asks in their order, and writes down who has got a slot. `now`: seconds since 1970. `is_over`: as of
    /// [`Self::tidy`], which this does first.
    pub fn answer(
        &mut self,
        asks: &[Ask],
        guests: &Guests,
        slots: u32,
        now: u64,
        is_over: impl Fn(&Grant) -> bool,
    ) -> Vec<SlotDecision> {
        self.tidy(guests, is_over);
        let mut taken: HashSet<String> = guests.live.clone();
        taken.extend(self.grants.iter().map(|grant| grant.pod.clone()));
        let slots = u64::from(slots).saturating_sub(u64::from(guests.unnamed));
        let mut bytes: usize = self.grants.iter().map(Grant::bytes).sum();
        let mut answer = |ask: &Ask| {
            // Of one name there is one Pod at a time. That the watch shows one says nothing about its slot: it may have ended,
            // and the slot may be another's.
            let others = taken.len() - usize::from(taken.contains(&ask.pod));
            if others as u64 >= slots {
                return SlotDecision::NoneLeft;
            }
            if ask.dry_run {
                return SlotDecision::Granted;
            }
            let grant = Grant { pod: ask.pod.clone(), uid: ask.uid.clone(), at: now };
            if bytes + grant.bytes() > MAX_BYTES {
                return SlotDecision::Crowded;
            }
            bytes += grant.bytes();
            taken.insert(ask.pod.clone());
            self.grants.push(grant);
            SlotDecision::Granted
        };
        asks.iter().map(&mut answer).collect()
    }
}

/// The entries of a ledger.
pub(crate) fn read<T: DeserializeOwned>(text: &str) -> Result<Vec<T>, serde_json::Error> {
    if text.trim().is_empty() { Ok(Vec::new()) } else { serde_json::from_str(text) }
}

impl Grant {
    /// What tells it from all others.
    pub fn id(&self) -> String {
        format!("{}/{}/{}", self.pod, self.uid, self.at)
    }

    /// About how many bytes it has as JSON, and not less.
    fn bytes(&self) -> usize {
        self.pod.len() + self.uid.len() + 48
    }
}

#[cfg(test)]
mod tests;
