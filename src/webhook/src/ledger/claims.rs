//! Groups and nodes of Machines.

use std::collections::BTreeMap;

use outrigger_admission::Decision;
use outrigger_admission::machines::MachineClaim;
use outrigger_core::groups::{Claim, GroupClaims, LEDGER_NAME, MachineView};
use tokio::time::timeout;

use super::{DEADLINE, Ledgers, TRIES};

impl Ledgers {
    /// Claims groups and nodes for a Machine. A dry run claims nothing: it fails where they are taken.
    pub(super) async fn claim(&self, wanted: &MachineClaim) -> Result<(), Decision> {
        let late = || Err(MachineClaim::unavailable("the API server takes too long"));
        timeout(DEADLINE, self.write_claim(wanted)).await.unwrap_or_else(|_| late())
    }

    async fn write_claim(&self, wanted: &MachineClaim) -> Result<(), Decision> {
        let unavailable = |why: String| MachineClaim::unavailable(&why);
        for _ in 0..TRIES {
            let snapshot = self.store.read(LEDGER_NAME).await.map_err(unavailable)?;
            let mut claims = GroupClaims::read(snapshot.text()).map_err(|error| {
                let why = format!("data.ledger is no list of claims: {error}; delete it");
                unavailable(self.store.wrong(LEDGER_NAME, why))
            })?;
            let claim = Claim { at: self.wall_seconds(), ..wanted.claim.clone() };
            // The order matters: if a claim is over by now, the list shows its Machine, if that was ever created.
            let (sightings, elapsed) =
                (self.saw(LEDGER_NAME, claims.claims().iter().map(Claim::id)), self.elapsed());
            let is_over = |other: &Claim| sightings.is_over(&other.id(), elapsed);
            let machines = self.live.machines().await.map_err(unavailable)?;
            let shown: Vec<MachineView<'_>> = machines.iter().map(Claim::view).collect();
            claims
                .add(claim, &shown, &self.caches.ended_machines(), is_over)
                .map_err(|conflict| wanted.refused(&conflict))?;
            if wanted.dry_run {
                return Ok(());
            }
            let text = claims.write().map_err(|error| unavailable(error.to_string()))?;
            if self.store.write(snapshot, text, BTreeMap::new(), None).await.map_err(unavailable)?.is_some() {
                self.saw(LEDGER_NAME, claims.claims().iter().map(Claim::id));
                return Ok(());
            }
        }
        Err(unavailable(self.store.wrong(LEDGER_NAME, "others write it all the time")))
    }
}
