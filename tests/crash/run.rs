//! One run of a scenario: names of its own, steps that wait for their effect, and what must hold meanwhile.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::{Client, ResourceExt};
use outrigger_tests::faults::{Fault, FaultId, Matching};
use outrigger_tests::history::{History, Side, revision};
use outrigger_tests::invariants::{Available, Expectations, Hold, violations};
use outrigger_tests::normal::{self, Normal};
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::tenant::Tenant;
use outrigger_tests::{answered, holds};
use parking_lot::Mutex;

use crate::crash::selection::Disturbance;
use crate::crash::site::{Outcome, Part, Site};

/// How long a step may take; it only ends what would never end.
const PATIENCE: Duration = Duration::from_secs(90);

/// How long a step is given while a watch is frozen until the end: it may need what the watch would show.
const FROZEN_STEP: Duration = Duration::from_millis(1500);

/// How long a short freeze lasts.
const SHORT: Duration = Duration::from_secs(2);

pub(crate) struct Run {
    /// Its name, which the names of all its objects contain.
    pub(crate) id: String,
    pub(crate) site: &'static Site,
    pub(crate) part: Part,
    /// Administrator of the infrastructure cluster.
    pub(crate) infra: Client,
    /// Administrator of the tenant cluster.
    pub(crate) tenant: Client,
    disturbance: Option<Disturbance>,
    history: History,
    frozen: Mutex<Option<FaultId>>,
    expected: Mutex<Expectations>,
}

impl Run {
    /// A run of a name that no other has.
    pub(crate) async fn new(
        site: &'static Site,
        part: Part,
        (infra, tenant): (Client, Client),
        id: String,
        disturbance: Option<Disturbance>,
    ) -> Result<Self, String> {
        let of = |side, client: &Client, kinds: &[outrigger_tests::history::Kind]| {
            kinds.iter().map(|kind| (side, client.clone(), *kind)).collect::<Vec<_>>()
        };
        let infra_kinds = of(Side::Infra, &infra, normal::INFRA);
        let followed = [infra_kinds, of(Side::Tenant, &tenant, normal::TENANT)].concat();
        let history = History::follow(followed).await?;
        let (frozen, expected) = Default::default();
        Ok(Self { id, site, part, infra, tenant, disturbance, history, frozen, expected })
    }

    pub(crate) fn outrigger(&self) -> &'static Outrigger {
        self.site.outrigger
    }

    /// From here on writes count, and the disturbance may come. What a scenario needs first is made before.
    pub(crate) fn begin(&self) {
        let proxied = self.site.proxied(self.part);
        let at = match &self.disturbance {
            Some(Disturbance::Kill { write, moment }) => Some((*write, *moment)),
            _ => None,
        };
        // A process of the scenario's own has all its writes for the scenario.
        let mentions = if self.part == Part::Own { "" } else { &self.id };
        proxied.arm(&self.site.process(self.part, &self.id), mentions, at);
        let Some(Disturbance::Freeze { resource, long }) = &self.disturbance else { return };
        let fault = proxied.proxy.fault(Matching::watches(resource), Fault::FreezeWatch);
        *self.frozen.lock() = Some(fault);
        if !long {
            let (site, part) = (self.site, self.part);
            tokio::spawn(async move {
                tokio::time::sleep(SHORT).await;
                site.proxied(part).proxy.remove(fault);
            });
        }
    }

    /// What is frozen goes on.
    pub(crate) fn thaw(&self) {
        if let Some(fault) = self.frozen.lock().take() {
            self.site.proxied(self.part).proxy.remove(fault);
        }
    }

    /// Whether a watch is frozen until the end of the steps.
    fn is_long(&self) -> bool {
        matches!(self.disturbance, Some(Disturbance::Freeze { long: true, .. }))
            && self.frozen.lock().is_some()
    }

    /// Does something that may be refused for a while. A frozen watch on which it depends is frozen no longer.
    pub(crate) async fn act<T, F>(&self, what: &str, mut act: impl FnMut() -> F) -> Result<T, String>
    where
        F: Future<Output = Result<T, String>>,
    {
        if self.is_long() {
            if let Ok(done) = answered(FROZEN_STEP * 2, &mut act).await {
                return Ok(done);
            }
            self.thaw();
        }
        answered(PATIENCE, act).await.map_err(|last| format!("{what}: {last}"))
    }

    /// Waits for the effect of a step. Whether it is there: while a watch is frozen it may never be.
    pub(crate) async fn reach<F>(&self, what: &str, mut reached: impl FnMut() -> F) -> Result<bool, String>
    where
        F: Future<Output = Result<(), String>>,
    {
        if self.is_long() {
            return Ok(answered(FROZEN_STEP, &mut reached).await.is_ok());
        }
        answered(PATIENCE, reached).await.map(|()| true).map_err(|last| format!("{what}: {last}"))
    }

    /// Waits until a tenant has so many companions, all of them ready and as they should be.
    pub(crate) async fn companions(
        &self,
        tenant: &Tenant,
        count: usize,
        right: impl Fn(&Pod) -> bool,
    ) -> Result<bool, String> {
        let right = &right;
        self.reach(&format!("{count} companions are ready"), || async move {
            let all = tenant.companions().await?;
            let done = all.iter().filter(|pod| outrigger_tests::tenant::is_ready(pod) && right(pod)).count();
            holds(all.len() == count && done == count, format!("{done} of {}", all.len()))
        })
        .await
    }

    /// From now on these objects may not be deleted.
    pub(crate) async fn hold<K: ResourceExt>(&self, objects: &[K]) -> Result<(), String> {
        let from = revision(&self.infra).await?;
        let holds = objects.iter().map(|object| Hold {
            uid: object.uid().unwrap_or_default(),
            what: object.name_any(),
            from,
            to: None,
        });
        self.expected.lock().holds.extend(holds);
        Ok(())
    }

    /// From now on these objects may be deleted.
    pub(crate) async fn release<K: ResourceExt>(&self, objects: &[K]) -> Result<(), String> {
        let to = Some(revision(&self.infra).await?);
        let uids: Vec<String> = objects.iter().filter_map(ResourceExt::uid).collect();
        let mut expected = self.expected.lock();
        for hold in expected.holds.iter_mut().filter(|hold| uids.contains(&hold.uid) && hold.to.is_none()) {
            hold.to = to;
        }
        Ok(())
    }

    /// From now on a tenant has at least so many companions that are ready.
    pub(crate) async fn keep_ready(&self, tenant: &Tenant, least: usize) -> Result<(), String> {
        let from = revision(&self.infra).await?;
        let namespace = tenant.namespace.clone();
        self.expected.lock().available.push(Available { namespace, least, from, to: None });
        Ok(())
    }

    /// A machine type has never more guests than this.
    pub(crate) fn slots(&self, type_: &str, count: usize) {
        self.expected.lock().slots.push((self.id.clone(), type_.to_owned(), count));
    }

    /// Ends what was disturbed.
    pub(crate) fn disarm(&self) -> Outcome {
        self.thaw();
        let proxied = self.site.proxied(self.part);
        proxied.proxy.clear();
        proxied.disarm()
    }

    pub(crate) async fn state(&self) -> Result<Normal, String> {
        normal::state(&self.infra, &self.tenant, &self.id).await
    }

    /// The state once nothing changes.
    pub(crate) async fn settled(&self) -> Result<Normal, String> {
        answered(PATIENCE, || async {
            let first = self.state().await?;
            tokio::time::sleep(Duration::from_millis(1500)).await;
            let second = self.state().await?;
            let changed = normal::differences(&first, &second);
            if changed.is_empty() { Ok(second) } else { Err(format!("it still changes: {changed:?}")) }
        })
        .await
    }

    pub(crate) async fn becomes(&self, wanted: &Normal) -> Result<(), String> {
        answered(PATIENCE, || async {
            let differences = normal::differences(wanted, &self.state().await?);
            holds(differences.is_empty(), differences.join("\n    "))
        })
        .await
        .map_err(|last| format!("it ends in another state:\n    {last}"))
    }

    /// What was wrong at some moment.
    pub(crate) async fn violations(&self) -> Result<Vec<String>, String> {
        let changes = self.history.changes().await?;
        Ok(violations(&changes, &self.expected.lock()))
    }
}
