//! The slots of guests. A replica answers all concurrent requests for a type by one write.

use outrigger_core::map::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use outrigger_admission::machines::{Slot, SlotReservation};
use outrigger_admission::{Admission, GuestOutcome};
use outrigger_core::keys;
use outrigger_core::slots::{Ask, GRANT_SECONDS, Grant, Guests, Ledger, SlotDecision, ledger_name};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::store::LedgerSnapshot;
use super::{DEADLINE, Ledgers, TRIES};
/// Group and type.
type Key = (String, String);

/// Requests that wait, by type; at most one for each of the server's connections. A type has an entry while a task serves it.
pub(super) type Queues = HashMap<Key, Vec<Waiting>>;

#[derive(Debug)]
pub(super) struct Waiting {
    slot: Slot,
    ask: Ask,
    answer: oneshot::Sender<Answer>,
}

/// The answer to a slot request, or the reason why there is none.
type Answer = Result<SlotDecision, String>;

impl Ledgers {
    /// Takes a slot for a guest. A dry run takes none: it fails where none is left.
    pub(super) async fn take_slot(self: &Arc<Self>, wanted: &SlotReservation) -> Result<(), Admission> {
        let (answer, answered) = oneshot::channel();
        let waiting = Waiting { slot: wanted.slot.clone(), ask: wanted.ask.clone(), answer };
        let key = (wanted.slot.group().to_owned(), wanted.slot.type_name().to_owned());
        // A task of its own serves the type: the first client may hang up while others wait for the same write.
        let served = match self.queues.lock().entry(key.clone()) {
            Entry::Occupied(mut entry) => {
                entry.get_mut().push(waiting);
                true
            }
            Entry::Vacant(entry) => {
                entry.insert(vec![waiting]);
                false
            }
        };
        if !served {
            tokio::spawn(self.clone().serve(key));
        }
        let unavailable = |why: &str| GuestOutcome::Unavailable.denied(wanted.unavailable(why));
        match timeout(DEADLINE, answered).await {
            Ok(Ok(Ok(SlotDecision::Granted))) => Ok(()),
            Ok(Ok(Ok(SlotDecision::NoneLeft))) => Err(GuestOutcome::NoneLeft.denied(wanted.none_left())),
            Ok(Ok(Ok(SlotDecision::Crowded))) => Err(unavailable("too many guests at once")),
            Ok(Ok(Err(why))) => Err(unavailable(&why)),
            Ok(Err(_)) => Err(unavailable("the webhook shuts down")),
            Err(_) => Err(unavailable("the API server takes too long")),
        }
    }

    /// Serves a type until no request waits for it.
    async fn serve(self: Arc<Self>, key: Key) {
        let mut snapshot = None;
        loop {
            let mut batch = {
                let mut queues = self.queues.lock();
                match queues.get_mut(&key) {
                    Some(queue) if !queue.is_empty() => std::mem::take(queue),
                    _ => {
                        queues.remove(&key);
                        return;
                    }
                }
            };
            // Clients that have hung up need no answer.
            batch.retain(|waiting| !waiting.answer.is_closed());
            let Some(slot) = batch.first().map(|waiting| waiting.slot.clone()) else { continue };
            let asks: Vec<Ask> = batch.iter().map(|waiting| waiting.ask.clone()).collect();
            let (answers, left) = self.answer(&slot, &asks, snapshot.take()).await;
            snapshot = left;
            self.tidy_later(&slot);
            for (waiting, answer) in batch.into_iter().zip(answers) {
                // A client that has hung up meanwhile keeps its grant until that expires.
                let _ = waiting.answer.send(answer);
            }
        }
    }

    /// Answers slot requests for a type by one write, and returns the ledger's new state.
    async fn answer(
        &self,
        slot: &Slot,
        asks: &[Ask],
        snapshot: Option<LedgerSnapshot>,
    ) -> (Vec<Answer>, Option<LedgerSnapshot>) {
        let name = ledger_name(slot.group(), slot.type_name());
        let all = |why: String| (vec![Err(why); asks.len()], None);
        let mut known = snapshot;
        for _ in 0..TRIES {
            let old = known.is_some();
            let snapshot = match known.take() {
                Some(snapshot) => snapshot,
                None => match self.store.read(&name).await {
                    Ok(snapshot) => snapshot,
                    Err(why) => return all(why),
                },
            };
            let mut ledger = match Ledger::read(snapshot.text()) {
                Ok(ledger) => ledger,
                Err(error) => {
                    let why = format!("data.ledger is no list of grants: {error}; delete it");
                    return all(self.store.wrong(&name, why));
                }
            };
            let before = ledger.grants().len();
            // The order matters: if a grant has expired by now, the list shows its Pod, if that was ever created.
            let (sightings, elapsed) =
                (self.saw(&name, ledger.grants().iter().map(Grant::id)), self.elapsed());
            let is_over = |grant: &Grant| sightings.is_over(&grant.id(), elapsed);
            let live = match self.live.guests(slot.group(), slot.type_name(), &self.caches).await {
                Ok(live) => live,
                Err(why) => return all(why),
            };
            let guests = Guests { live, ..self.caches.guests(slot.group(), slot.type_name()) };
            let slots = self.caches.slots(slot.group(), slot.type_name());
            let verdicts = ledger.answer(asks, &guests, slots, self.wall_seconds(), is_over);
            if old && verdicts.contains(&SlotDecision::NoneLeft) {
                // Other replicas may have dropped grants since: an old snapshot is no reason to refuse.
                continue;
            }
            let granted =
                |(ask, verdict): (&Ask, &SlotDecision)| *verdict == SlotDecision::Granted && !ask.dry_run;
            if !asks.iter().zip(&verdicts).any(granted) {
                return (verdicts.into_iter().map(Ok).collect(), Some(snapshot));
            }
            let saved = match ledger.write() {
                Ok(text) => self.store.write(snapshot, text, labels(slot), Some(owner(slot))).await,
                Err(error) => Err(error.to_string()),
            };
            match saved {
                Ok(Some(snapshot)) => {
                    self.saw(&name, ledger.grants().iter().map(Grant::id));
                    tracing::debug!(ledger = name, before, after = ledger.grants().len(), "slots granted");
                    return (verdicts.into_iter().map(Ok).collect(), Some(snapshot));
                }
                Ok(None) => {}
                Err(why) => {
                    let answers = asks.iter().zip(&verdicts);
                    let answer = |pair| if granted(pair) { Err(why.clone()) } else { Ok(*pair.1) };
                    return (answers.map(answer).collect(), None);
                }
            }
        }
        all(self.store.wrong(&name, "others write it all the time"))
    }

    /// Tidies a type's ledger when the grants in it have expired. A replica that has not seen them before would count them as
    /// taken for a while, whatever has become of their guests.
    fn tidy_later(self: &Arc<Self>, slot: &Slot) {
        let name = ledger_name(slot.group(), slot.type_name());
        if !self.sightings.lock().contains_key(&name) || !self.tidying.lock().insert(name.clone()) {
            return;
        }
        let (this, slot) = (self.clone(), slot.clone());
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_secs(GRANT_SECONDS + 1)).await;
                match this.tidy(&name, &slot).await {
                    Ok(true) => continue,
                    Ok(false) => {}
                    Err(why) => tracing::info!(ledger = name, why, "tidying a ledger failed; retrying"),
                }
                // A request may have granted something meanwhile, and relies on this task.
                let sightings = this.sightings.lock();
                if !sightings.contains_key(&name) {
                    this.tidying.lock().remove(&name);
                    break;
                }
            }
        });
    }

    /// Drops the grants that have expired, and returns whether others are left.
    pub(super) async fn tidy(&self, name: &str, slot: &Slot) -> Result<bool, String> {
        let snapshot = self.store.read(name).await?;
        let mut ledger = Ledger::read(snapshot.text()).map_err(|error| error.to_string())?;
        let before = ledger.grants().len();
        let (sightings, elapsed) = (self.saw(name, ledger.grants().iter().map(Grant::id)), self.elapsed());
        let guests = self.caches.guests(slot.group(), slot.type_name());
        ledger.tidy(&guests, |grant| sightings.is_over(&grant.id(), elapsed));
        if ledger.grants().len() < before {
            let text = ledger.write().map_err(|error| error.to_string())?;
            // Where another replica has written since, it has tidied too.
            self.store.write(snapshot, text, labels(slot), None).await?;
            self.saw(name, ledger.grants().iter().map(Grant::id));
        }
        let some = !ledger.grants().is_empty();
        if !some {
            self.store.forget(name);
        }
        Ok(some)
    }
}

fn labels(slot: &Slot) -> std::collections::BTreeMap<String, String> {
    [(keys::MACHINE_GROUP, slot.group()), (keys::MACHINE_TYPE, slot.type_name())]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}

/// The ledger is deleted with the Machine.
fn owner(slot: &Slot) -> OwnerReference {
    let (name, uid) = slot.owner();
    OwnerReference {
        api_version: format!("{}/v1alpha1", keys::MACHINE_GROUP_DOMAIN),
        kind: "Machine".to_owned(),
        name: name.to_owned(),
        uid: uid.to_owned(),
        ..OwnerReference::default()
    }
}
