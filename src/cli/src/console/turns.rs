//! Reads and queries that all sessions share the places for. The sessions of one group of users never take all of them, however many they
//! are: others find a place.

use std::sync::{Arc, OnceLock, Weak};

use outrigger_core::map::HashMap;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// First lists and answers of one group at the same time. All together have [`super::server::TURNS`].
const READS_OF_GROUP: usize = 3;

/// Queries of managers of one group at the same time. All together have [`super::managers::QUERIES`].
const QUERIES_OF_GROUP: usize = 8;

/// The places that one group may have.
#[derive(Debug)]
pub(super) struct GroupTurns {
    reads: Arc<Semaphore>,
    queries: Arc<Semaphore>,
}

/// The places of each group that has a session.
#[derive(Debug, Default)]
pub(super) struct Groups(Mutex<HashMap<String, Weak<GroupTurns>>>);

/// The places that a store may have.
#[derive(Debug)]
pub(super) struct Turns {
    all: Arc<Semaphore>,
    /// Those of its user's group; none on a user's own machine.
    group: OnceLock<Arc<GroupTurns>>,
}

/// A place for a read, of the group and of all. It is given back when this is dropped.
pub(super) type Turn = (Option<OwnedSemaphorePermit>, OwnedSemaphorePermit);

impl Groups {
    /// The places of a group, which all of its sessions share.
    pub(super) fn of(&self, group: &str) -> Arc<GroupTurns> {
        let mut all = self.0.lock();
        if let Some(known) = all.get(group).and_then(Weak::upgrade) {
            return known;
        }
        all.retain(|_, turns| turns.strong_count() > 0);
        let semaphore = |places| Arc::new(Semaphore::new(places));
        let new = GroupTurns { reads: semaphore(READS_OF_GROUP), queries: semaphore(QUERIES_OF_GROUP) };
        let new = Arc::new(new);
        all.insert(group.to_owned(), Arc::downgrade(&new));
        new
    }
}

impl Turns {
    /// Of these places, which others share.
    pub(super) fn of(all: Arc<Semaphore>) -> Self {
        Self { all, group: OnceLock::new() }
    }

    /// The store's user is one of this group, from now on.
    pub(super) fn join(&self, group: Arc<GroupTurns>) {
        // A session has one user, and so one group.
        let _ = self.group.set(group);
    }

    /// Waits for a place for a read. Whoever waits for its own group takes nothing of what all share. `None`: there will be none.
    pub(super) async fn read(&self) -> Option<Turn> {
        let of_group = match self.group.get() {
            Some(group) => Some(group.reads.clone().acquire_owned().await.ok()?),
            None => None,
        };
        Some((of_group, self.all.clone().acquire_owned().await.ok()?))
    }

    /// Waits until the group may send a query. `None`: there is no group.
    pub(super) async fn query(&self) -> Option<OwnedSemaphorePermit> {
        self.group.get()?.queries.clone().acquire_owned().await.ok()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn one_group_leaves_places_for_others_however_many_sessions_it_has() {
        let (groups, all) = (Groups::default(), Arc::new(Semaphore::new(READS_OF_GROUP + 1)));
        let store = |group: &str| {
            let turns = Turns::of(all.clone());
            turns.join(groups.of(group));
            turns
        };
        let many: Vec<Turns> = (0..100).map(|_| store("many")).collect();
        let reads: Vec<Turn> =
            many.iter().filter_map(|turns| turns.read().now_or_never().flatten()).collect();
        let queries: Vec<_> =
            many.iter().filter_map(|turns| turns.query().now_or_never().flatten()).collect();
        assert_eq!((reads.len(), queries.len()), (READS_OF_GROUP, QUERIES_OF_GROUP));
        let few = store("few");
        assert!(few.query().now_or_never().is_some());
        let read = few.read().now_or_never().flatten();
        assert!(read.is_some() && few.read().now_or_never().is_none(), "all places are taken");
        drop(reads);
        assert!(few.read().now_or_never().is_some() && many[0].read().now_or_never().is_some());
        drop((many, few, queries, read));
        let _ = groups.of("another");
        assert_eq!(groups.0.lock().len(), 1, "groups without sessions are forgotten");
    }

    #[test]
    fn a_store_without_a_user_has_all_places() {
        let turns = Turns::of(Arc::new(Semaphore::new(READS_OF_GROUP + 1)));
        let reads: Vec<_> = (0..=READS_OF_GROUP).map(|_| turns.read().now_or_never().flatten()).collect();
        assert!(reads.iter().all(Option::is_some) && turns.read().now_or_never().is_none());
        assert!(turns.query().now_or_never().is_some_and(|turn| turn.is_none()));
    }
}
