//! Groups and nodes of Machines.

use std::collections::BTreeMap;

use outrigger_core::groups::{Claim, Claims, Conflict, LEDGER_NAME, Seen};
use tokio::time::timeout;

use super::{DEADLINE, Ledgers, TRIES, now};

/// Why a Machine can't be admitted.
#[derive(Debug)]
pub enum NoClaim {
    /// Another one has it.
    Conflict(Conflict),
    /// Nobody can tell.
    Unavailable(String),
}

impl Ledgers {
    /// Claims groups and nodes for a Machine, unless it is a dry run: then nobody else may have them.
    ///
    /// # Errors
    /// [`NoClaim`]
    pub async fn claim(&self, claim: &Claim, dry_run: bool) -> Result<(), NoClaim> {
        let late = || NoClaim::Unavailable("the API server takes too long".to_owned());
        timeout(DEADLINE, self.write_claim(claim, dry_run)).await.unwrap_or_else(|_| Err(late()))
    }

    async fn write_claim(&self, claim: &Claim, dry_run: bool) -> Result<(), NoClaim> {
        for _ in 0..TRIES {
            let page = self.store.open(LEDGER_NAME).await.map_err(NoClaim::Unavailable)?;
            let mut claims = Claims::read(page.text()).map_err(|error| {
                let why = format!("data.ledger is no list of claims: {error}; delete it");
                NoClaim::Unavailable(self.store.wrong(LEDGER_NAME, why))
            })?;
            // One view of the cluster for both: what is a claim no more because it is shown has to be among what is shown.
            let machines = self.caches.other_machines("");
            let seen: Vec<Seen<'_>> = machines.iter().map(|machine| machine.seen()).collect();
            let claim = Claim { at: now(), ..claim.clone() };
            let (sightings, elapsed) =
                (self.saw(LEDGER_NAME, claims.claims().iter().map(Claim::id)), self.elapsed());
            let is_over = |other: &Claim| sightings.is_over(&other.id(), elapsed);
            claims.add(claim, &seen, &self.caches.ended_machines(), is_over).map_err(NoClaim::Conflict)?;
            if dry_run {
                return Ok(());
            }
            let text = claims.write().map_err(|error| NoClaim::Unavailable(error.to_string()))?;
            match self.store.save(page, text, BTreeMap::new(), None).await {
                Ok(Some(_)) => {
                    self.saw(LEDGER_NAME, claims.claims().iter().map(Claim::id));
                    return Ok(());
                }
                Ok(None) => {}
                Err(why) => return Err(NoClaim::Unavailable(why)),
            }
        }
        Err(NoClaim::Unavailable(self.store.wrong(LEDGER_NAME, "others write it all the time")))
    }
}
