//! Which replicas of the manager live. A replica that is killed gives up no claim; if the tenant's agent doesn't come back either, nobody
//! would write that the tenant isn't connected, or act for it.
//!
//! Each replica renews an entry of its own in one Lease that all of them share, whether or not it leads. The leader takes over the claims
//! of a replica whose entry it has seen unchanged for [`EXPIRES`], by its own monotonic clock: the times in the entries are
//! informational. An entry that is missing says nothing: its replica may be of an earlier version. Nor does an entry of which a while was
//! not seen, because the others may have been unable to renew it for the same reason.
//!
//! The claim is taken over by a higher number without a holder, under the Tenant's resourceVersion. So a holder that lives, and could
//! only not write its entry, hears of it as of any newer claim: its stream ends, the agent connects again, and the next claim is the
//! latest.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt;
use kube::api::{Api, Patch};
use outrigger_api::Tenant;
use outrigger_core::ids::TenantId;
use outrigger_core::keys;
use outrigger_runtime::Process;
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::{debug, info};

use super::claim;
use crate::context::Context;
use crate::state::registry::TenantEntry;
use crate::writes;

/// How often a replica renews its entry, and the leader looks at all.
const RENEW: Duration = Duration::from_secs(15);
/// Pause after an entry could not be renewed. A call takes 30 s at most: a second one is over before the entry expires.
const PAUSE: Duration = Duration::from_secs(5);
/// How long the leader sees the entry of a dead replica unchanged before it takes over the replica's claims.
pub(crate) const EXPIRES: Duration = Duration::from_secs(60);
/// After this time between two looks the leader begins to count again.
const GAP: Duration = Duration::from_secs(40);
/// How old the entry of a replica without claims is when the leader removes it. Where clocks differ, this is still harmless: a replica
/// that lives writes its entry again.
const KEEP: Duration = Duration::from_secs(3600);
/// Most bytes of an annotation's name.
const LONGEST: usize = 63;

/// The entries of all replicas: what each has written last.
type Entries = BTreeMap<String, String>;

/// What the leader has seen of the other replicas.
#[derive(Debug, Default)]
struct Sightings {
    seen: BTreeMap<String, Sighting>,
    looked: Option<Instant>,
}

/// A replica, as the leader has seen it last.
#[derive(Debug)]
struct Sighting {
    entry: String,
    /// The claims that it holds, by tenant: to raise one shows that it lives.
    claims: BTreeSet<(TenantId, u64)>,
    /// When the leader saw this for the first time.
    since: Instant,
}

impl Sightings {
    /// Takes in the entries as they are stored now, and the claims of each replica. Returns the replicas that are dead.
    fn look(
        &mut self,
        entries: &Entries,
        mut claims: BTreeMap<String, BTreeSet<(TenantId, u64)>>,
        now: Instant,
    ) -> BTreeSet<String> {
        if self.looked.replace(now).is_none_or(|before| now.duration_since(before) > GAP) {
            self.seen.clear();
        }
        self.seen.retain(|replica, _| entries.contains_key(replica));
        for (replica, entry) in entries {
            let claims = claims.remove(replica).unwrap_or_default();
            let known = self.seen.get_mut(replica);
            match known.filter(|known| known.entry == *entry && claims.is_subset(&known.claims)) {
                Some(known) => known.claims = claims,
                None => {
                    let sighting = Sighting { entry: entry.clone(), claims, since: now };
                    self.seen.insert(replica.clone(), sighting);
                }
            }
        }
        let dead = self.seen.iter().filter(|(_, seen)| now.duration_since(seen.since) >= EXPIRES);
        dead.map(|(replica, _)| replica.clone()).collect()
    }

    fn forget(&mut self) {
        *self = Self::default();
    }
}

/// Renews this replica's entry for as long as the process serves, and takes over the claims of dead replicas while it leads.
pub(crate) fn start(process: &Process, context: &Arc<Context>) {
    let context = context.clone();
    process.spawn("replicas", async move {
        let mut sightings = Sightings::default();
        loop {
            let pause = round(&context, &mut sightings).await;
            tokio::time::sleep(pause).await;
        }
    });
}

/// One round. Returns the time until the next one.
async fn round(context: &Context, sightings: &mut Sightings) -> Duration {
    match renew(context).await {
        Ok(lease) => {
            if context.replica.leadership.leads() {
                look(context, sightings, &lease).await;
            } else {
                sightings.forget();
            }
            RENEW - context.environment.random.below(RENEW / 5)
        }
        Err(error) => {
            info!(lease = keys::MANAGER_REPLICAS, %error, "renewing this replica's entry failed; retrying");
            PAUSE
        }
    }
}

/// The name of a replica's entry. Names of hosts may have other characters than names of annotations, and more; the end of an identity is
/// random.
fn entry(identity: &str) -> String {
    let allowed = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '.') { c } else { '-' };
    let name: String = identity.chars().map(allowed).collect();
    let name = name.get(name.len().saturating_sub(LONGEST)..).unwrap_or_default();
    name.trim_start_matches(['-', '.']).to_owned()
}

/// What the keys of all entries begin with.
fn prefix() -> &'static str {
    keys::REPLICA.split_once('<').map_or(keys::REPLICA, |(prefix, _)| prefix)
}

fn leases(context: &Context) -> Api<Lease> {
    Api::namespaced(context.client.clone(), &context.replica.args.lease_namespace)
}

/// Writes this replica's entry. Others write theirs, so the write has no precondition. Returns the Lease with all entries as they are
/// stored.
async fn renew(context: &Context) -> Result<Lease, kube::Error> {
    let now = context.environment.clock.wall().to_string();
    let annotations = json!({format!("{}{}", prefix(), entry(&context.replica.identity)): now});
    let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
    let renew = async || leases(context).patch(keys::MANAGER_REPLICAS, &writes::patch(), &patch).await;
    let is = |error: &kube::Error, code: u16| matches!(error, kube::Error::Api(s) if s.code == code);
    match renew().await {
        Err(error) if is(&error, 404) => {
            let metadata = json!({"name": keys::MANAGER_REPLICAS, "annotations": annotations});
            let lease = serde_json::from_value(json!({"metadata": metadata}));
            let lease = lease.map_err(kube::Error::SerdeError)?;
            match leases(context).create(&writes::post(), &lease).await {
                Err(error) if is(&error, 409) => renew().await,
                created => created,
            }
        }
        renewed => renewed,
    }
}

/// The entries in the Lease, by their names.
fn entries(lease: &Lease) -> Entries {
    let all = lease.annotations().iter();
    all.filter_map(|(key, value)| Some((key.strip_prefix(prefix())?.to_owned(), value.clone()))).collect()
}

/// Takes over the claims of replicas that are dead, and removes the entries of those that have been dead for long.
async fn look(context: &Context, sightings: &mut Sightings, lease: &Lease) {
    let (entries, held) = (entries(lease), held(context));
    let claims = held.iter().map(|(replica, tenants)| {
        let claims = tenants.iter().map(|(id, tenant)| (id.clone(), claim_of(&tenant.object).0));
        (replica.clone(), claims.collect())
    });
    let mut dead = sightings.look(&entries, claims.collect(), context.environment.clock.now());
    dead.remove(&entry(&context.replica.identity));
    let orphaned: Vec<_> = dead.iter().filter_map(|replica| held.get(replica)).flatten().collect();
    for (id, tenant) in orphaned {
        let (claim, holder) = claim_of(&tenant.object);
        match claim::take_over(context, &tenant.object).await {
            Ok(()) => {
                info!(tenant = %id, claim, holder, "took over the claim of a manager that no longer runs");
            }
            // The next round looks at what is stored then.
            Err(error) => debug!(tenant = %id, claim, holder, %error, "taking over a claim failed"),
        }
    }
    let wall = context.environment.clock.wall();
    let old = entries.iter().filter(|(replica, entry)| !held.contains_key(*replica) && is_old(entry, wall));
    let old: BTreeMap<String, Value> =
        old.map(|(replica, _)| (format!("{}{replica}", prefix()), Value::Null)).collect();
    if !old.is_empty() {
        // Only as it was read: a replica may have renewed its entry since.
        let metadata =
            json!({"uid": lease.uid(), "resourceVersion": lease.resource_version(), "annotations": old});
        let patch = Patch::Merge(json!({"metadata": metadata}));
        if let Err(error) = leases(context).patch(keys::MANAGER_REPLICAS, &writes::patch(), &patch).await {
            debug!(lease = keys::MANAGER_REPLICAS, %error, "removing the entries of former replicas failed");
        }
    }
}

/// Whether an entry was written long ago. One that isn't a time is no replica's.
fn is_old(entry: &str, now: Timestamp) -> bool {
    entry
        .parse::<Timestamp>()
        .map_or(true, |renewed| now.duration_since(renewed).as_secs() > KEEP.as_secs().cast_signed())
}

/// The Tenants on whose streams replicas hold claims, by the names of the replicas' entries.
fn held(context: &Context) -> BTreeMap<String, Vec<(TenantId, Arc<TenantEntry>)>> {
    let mut held: BTreeMap<String, Vec<_>> = BTreeMap::new();
    for id in context.caches.registry.ids() {
        let Some(tenant) = context.caches.registry.get(&id) else { continue };
        let (_, holder) = claim_of(&tenant.object);
        if !holder.is_empty() && *holder != *context.replica.identity {
            held.entry(entry(holder)).or_default().push((id, tenant));
        }
    }
    held
}

/// The claim on a Tenant's stream, and its holder.
fn claim_of(tenant: &Tenant) -> (u64, &str) {
    let stream = tenant.status.as_ref().and_then(|status| status.stream.as_ref());
    stream.map_or((0, ""), |stream| (stream.claim, stream.holder.as_str()))
}

#[cfg(test)]
mod tests;
