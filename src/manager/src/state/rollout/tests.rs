use super::*;
use crate::state::companions::CompanionCache;

mod groups;
mod resize;
mod room;

const MAX: UpdateStrategy =
    UpdateStrategy::RollingUpdate(outrigger_core::rollout::MaxUnavailable::Percent(25));

fn key(i: usize) -> CompanionKey {
    crate::fixtures::key(&format!("w{i:03}"))
}

fn pod(hash: &str, ready: bool) -> Observed {
    Observed { uid: hash.into(), template_hash: hash.into(), ready, ..Observed::default() }
}

/// Companions, and what is done to them by a rollout that is asked about one after the other.
struct Stage {
    store: CompanionCache,
    rollouts: Rollouts,
    /// To be looked at.
    queue: Vec<CompanionKey>,
    most_down: usize,
}

impl Stage {
    fn new(count: usize) -> Self {
        let mut store = CompanionCache::default();
        for i in 0..count {
            store.applied(&key(i).workload, key(i), pod("old", true));
        }
        let queue = (0..count).map(key).collect();
        Self { store, rollouts: Rollouts::default(), queue, most_down: 0 }
    }

    fn availability(&mut self) -> Availability {
        self.store.availability(&key(0).rule, 0, |_| true)
    }

    fn set(&mut self, key: &CompanionKey, new: Option<Observed>) {
        _ = match new {
            Some(new) => self.store.applied(&key.workload, key.clone(), new),
            None => self.store.deleted(outrigger_core::template::Kind::Pod, &key.workload),
        };
        self.rollouts.observed(key, self.store.get(key));
    }

    /// Every key in the queue gets its step; returns those that are to be deleted.
    fn steps(&mut self) -> Vec<CompanionKey> {
        let mut deletes = Vec::new();
        for key in std::mem::take(&mut self.queue) {
            let ready = self.store.get(&key).unwrap().ready;
            let availability = self.availability();
            if self.rollouts.ask(&key, (ready, false), MAX, availability, |_, _| true) {
                deletes.push(key);
            }
        }
        deletes
    }

    fn wake(&mut self) {
        let availability = self.availability();
        self.queue.extend(self.rollouts.next(
            &key(0).rule,
            MAX,
            (availability, Instant::now()),
            |_, _, _| Permission::Goes,
        ));
    }

    fn count_down(&mut self, all: usize) {
        let ready = self.store.counts(&key(0).rule).ready;
        self.most_down = self.most_down.max(all - usize::try_from(ready).unwrap());
    }
}

#[test]
fn no_more_than_a_quarter_is_ever_down() {
    for all in [1, 3, 4, 20, 101] {
        let mut stage = Stage::new(all);
        let mut rounds = 0;
        while stage.store.updated(&key(0).rule, |hash, _| hash == "new") < i64::try_from(all).unwrap() {
            rounds += 1;
            assert!(rounds < 1000, "it stands still");
            let deletes = stage.steps();
            for key in &deletes {
                stage.set(key, None);
                stage.count_down(all);
                stage.wake();
            }
            for key in &deletes {
                stage.set(key, Some(pod("new", false)));
                stage.wake();
                stage.count_down(all);
            }
            // They become ready one by one, the last first.
            for key in deletes.iter().rev() {
                stage.set(key, Some(pod("new", true)));
                stage.wake();
                stage.count_down(all);
            }
        }
        assert_eq!(stage.most_down, (all / 4).max(1), "of {all}");
        assert!(!stage.rollouts.waits(&key(0).rule));
        assert!(stage.rollouts.by_rule.is_empty(), "nothing is remembered");
    }
}

#[test]
fn one_that_never_comes_up_holds_the_rest() {
    let mut stage = Stage::new(8);
    let deletes = stage.steps();
    assert_eq!(deletes.len(), 2);
    for key in &deletes {
        stage.set(key, None);
        stage.set(key, Some(pod("new", false)));
    }
    stage.wake();
    assert_eq!(stage.steps().len(), 0);
    assert!(stage.rollouts.waits(&key(0).rule));
    // A newer template: those that are down go at once, and no other.
    stage.rollouts.restart(&key(0).rule);
    stage.queue = (0..8).map(key).collect();
    let mut again = stage.steps();
    again.sort();
    assert_eq!(again, deletes);
}

#[test]
fn one_that_no_dpu_could_run_holds_nobody() {
    let mut stage = Stage::new(4);
    let lost = Observed { unplaced: true, host: Some("nowhere".into()), ..pod("old", false) };
    stage.set(&key(9), Some(lost));
    let rule = key(0).rule;
    assert_eq!(
        stage.store.availability(&rule, 0, |_| true),
        Availability { existing: 5, unready: 1, ..Availability::default() }
    );
    assert_eq!(
        stage.store.availability(&rule, 1, |host| host != "nowhere"),
        Availability { existing: 5, unready: 0, ..Availability::default() }
    );
}

#[test]
fn what_another_process_took_away_is_down() {
    let mut stage = Stage::new(6);
    for i in [6, 7] {
        stage.rollouts.missing(&key(i));
    }
    assert_eq!(stage.steps().len(), 0, "two of eight are down already");
    stage.set(&key(6), Some(pod("new", true)));
    stage.wake();
    assert_eq!(stage.steps().len(), 1);
}

#[test]
fn what_did_not_happen_frees_its_place() {
    let mut stage = Stage::new(4);
    assert_eq!(stage.steps(), [key(0)]);
    stage.rollouts.undo(&key(0));
    stage.wake();
    assert_eq!(stage.steps(), [key(1)]);
    stage.rollouts.unwanted(&key(1));
    stage.rollouts.wait(&key(0));
    stage.wake();
    assert_eq!(stage.queue, [key(0)]);
    let mut ask = |ready| {
        let availability = stage.store.availability(&key(0).rule, 0, |_| true);
        stage.rollouts.ask(&key(0), (ready, false), UpdateStrategy::OnDelete, availability, |_, _| true)
    };
    assert!(!ask(true) && !ask(false));
}

#[test]
fn the_place_of_one_that_is_gone_stays_and_of_one_that_stays_is_free() {
    let mut stage = Stage::new(4);
    assert_eq!(stage.steps(), [key(0)]);
    stage.set(&key(0), None);
    // The answer to the deletion is a refusal: another one has deleted it.
    stage.rollouts.undo(&key(0));
    stage.wake();
    assert_eq!(stage.steps(), [] as [CompanionKey; 0]);
    stage.set(&key(0), Some(pod("new", true)));
    stage.wake();
    assert_eq!(stage.steps(), [key(1)]);
    // No answer has come, and its template is the present one again.
    stage.rollouts.stays(&key(1));
    stage.wake();
    assert_eq!(stage.steps(), [key(2)]);
}
