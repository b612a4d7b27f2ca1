use proptest::prelude::*;

use super::*;

fn ask(pod: &str) -> Ask {
    Ask { pod: format!("n/{pod}"), uid: format!("uid-{pod}"), dry_run: false }
}

fn guests(live: &[&str], gone: &[&str]) -> Guests {
    Guests {
        live: live.iter().map(|pod| format!("n/{pod}")).collect(),
        gone: gone.iter().map(|pod| format!("uid-{pod}")).collect(),
        unnamed: 0,
    }
}

use SlotDecision::{Crowded, Granted, NoneLeft};

/// A replica that has seen each grant from its beginning.
fn answer(ledger: &mut Ledger, asks: &[Ask], guests: &Guests, slots: u32, now: u64) -> Vec<SlotDecision> {
    ledger.answer(asks, guests, slots, now, |grant| now >= grant.at + GRANT_SECONDS)
}

#[test]
fn slots_are_counted_over_guests_and_grants() {
    let mut ledger = Ledger::default();
    let none = guests(&[], &[]);
    assert_eq!(
        answer(&mut ledger, &[ask("a"), ask("b"), ask("c")], &none, 2, 100),
        [Granted, Granted, NoneLeft]
    );
    // Shown and granted is one; who asks again has one.
    assert_eq!(
        answer(&mut ledger, &[ask("a"), ask("c")], &guests(&["a", "b"], &[]), 2, 101),
        [Granted, NoneLeft]
    );
    assert_eq!(answer(&mut ledger, &[ask("c")], &guests(&["a", "x"], &[]), 3, 101), [NoneLeft]);
    assert_eq!(answer(&mut ledger, &[ask("c")], &guests(&["a", "x"], &[]), 4, 101), [Granted]);
    assert_eq!(Ledger::read(&ledger.write().unwrap()).unwrap(), ledger);
    assert_eq!(Ledger::read(" \n").unwrap(), Ledger::default());
    assert!(Ledger::read("{}").is_err());
}

#[test]
fn a_slot_is_free_again_after_the_end_or_after_the_time() {
    let mut ledger = Ledger::default();
    assert_eq!(answer(&mut ledger, &[ask("failed"), ask("ended")], &guests(&[], &[]), 2, 100), [Granted; 2]);
    assert_eq!(answer(&mut ledger, &[ask("c")], &guests(&["ended"], &[]), 2, 110), [NoneLeft]);
    // The end of one is seen; that the other never began is known by the time only.
    let now = guests(&[], &["ended"]);
    assert_eq!(answer(&mut ledger, &[ask("c"), ask("d")], &now, 2, 120), [Granted, NoneLeft]);
    assert_eq!(answer(&mut ledger, &[ask("d")], &now, 2, 99 + GRANT_SECONDS), [NoneLeft]);
    assert_eq!(answer(&mut ledger, &[ask("d")], &now, 2, 100 + GRANT_SECONDS), [Granted]);
    let pods: Vec<&str> = ledger.grants().iter().map(|grant| grant.pod.as_str()).collect();
    assert_eq!(pods, ["n/c", "n/d"]);
}

#[test]
fn a_pod_that_is_gone_for_good_frees_its_own_slot_and_no_other() {
    let mut ledger = Ledger::default();
    let none = guests(&[], &[]);
    assert_eq!(answer(&mut ledger, &[ask("a"), ask("b")], &none, 2, 100), [Granted; 2]);
    ledger.release("n/a");
    assert_eq!(answer(&mut ledger, &[ask("c"), ask("d")], &none, 2, 101), [Granted, NoneLeft]);
    let pods: Vec<&str> = ledger.grants().iter().map(|grant| grant.pod.as_str()).collect();
    assert_eq!(pods, ["n/b", "n/c"]);
}

#[test]
fn a_grant_counts_until_it_has_been_seen_for_long_enough() {
    let mut seen = Sightings::default();
    seen.saw(["a".to_owned(), "b".to_owned()], 10);
    seen.saw(["b".to_owned(), "c".to_owned()], 20);
    let over = |seen: &Sightings, now| ["a", "b", "c"].map(|entry| seen.is_over(entry, now));
    assert_eq!(over(&seen, 9 + GRANT_SECONDS), [false; 3]);
    assert_eq!(over(&seen, 10 + GRANT_SECONDS), [false, true, false]);
    assert_eq!(over(&seen, 20 + GRANT_SECONDS), [false, true, true]);
    seen.saw(["a".to_owned()], 100);
    assert_eq!(over(&seen, 101), [false; 3], "one that comes back counts as new");
}

#[test]
fn a_grant_is_distinguished_from_those_of_other_pods_and_of_other_times() {
    let grant = |pod: &str, uid: &str, at| Grant { pod: pod.into(), uid: uid.into(), at };
    let all = [grant("n/a", "u", 1), grant("n/b", "u", 1), grant("n/a", "v", 1), grant("n/a", "u", 2)];
    // The first is over, those that were seen later aren't.
    let mut seen = Sightings::default();
    seen.saw([all[0].id()], 0);
    seen.saw(all.iter().map(Grant::id), 10);
    let over = all.each_ref().map(|grant| seen.is_over(&grant.id(), GRANT_SECONDS));
    assert_eq!(over, [true, false, false, false]);
}

#[test]
fn a_dry_run_takes_none() {
    let mut ledger = Ledger::default();
    let dry = || Ask { dry_run: true, ..ask("dry") };
    let none = guests(&[], &[]);
    assert_eq!(
        answer(&mut ledger, &[dry(), dry(), ask("a"), dry(), ask("b")], &none, 1, 0),
        [Granted, Granted, Granted, NoneLeft, NoneLeft]
    );
    assert_eq!(ledger.grants().len(), 1);
}

#[test]
fn what_is_taken_by_unknown_guests_and_what_an_object_holds_are_bounds() {
    let mut ledger = Ledger::default();
    assert_eq!(
        answer(&mut ledger, &[ask("a")], &Guests { unnamed: 3, ..Guests::default() }, 3, 0),
        [NoneLeft]
    );
    let many: Vec<Ask> = (0..20_000).map(|i| ask(&i.to_string())).collect();
    let verdicts = answer(&mut ledger, &many, &guests(&[], &[]), u32::MAX, 0);
    let granted = verdicts.iter().filter(|verdict| **verdict == Granted).count();
    assert!(granted > 10_000 && verdicts[19_999] == Crowded, "{granted}");
    assert!(ledger.write().unwrap().len() <= MAX_BYTES);
    // One that fills it alone is granted, and leaves no room for another.
    let mut ledger = Ledger::default();
    let sized = |bytes: usize| Ask { pod: "p".repeat(bytes - 48), uid: String::new(), dry_run: false };
    let none = guests(&[], &[]);
    assert_eq!(
        answer(&mut ledger, &[sized(MAX_BYTES + 1), sized(MAX_BYTES)], &none, 2, 0),
        [Crowded, Granted]
    );
    assert_eq!(answer(&mut ledger, &[ask("a")], &none, 2, 0), [Crowded]);
    assert!(ledger.write().unwrap().len() <= MAX_BYTES);
}

/// Names that Pods have, so that some are asked for again.
const NAMES: usize = 3;
const REPLICAS: usize = 2;
/// Longest that a create takes after its admission, and that a watch is behind.
const CREATE: u64 = 34;
const BEHIND: u64 = 9;

/// What happens in a cluster, each after a time.
#[derive(Debug, Clone)]
enum Happens {
    /// A replica is asked about a Pod. It reads the ledger.
    Asked { replica: usize, name: usize, dry_run: bool },
    /// One of the replicas that have read writes, and starts again where another has written since.
    Writes { which: usize },
    /// One of the creates that were admitted succeeds, unless the name is taken, or fails.
    Ends { which: usize, fails: bool },
    /// One of the Pods is deleted, or succeeds.
    Goes { which: usize },
    /// A replica's watch catches up.
    Seen { replica: usize },
    /// A replica looks at the ledger.
    Looks { replica: usize },
    /// A replica restarts.
    Restarts { replica: usize },
}

fn happens() -> impl Strategy<Value = (u64, Happens)> {
    let what = prop_oneof![
        4 => (0..REPLICAS, 0..NAMES, prop::bool::weighted(0.1))
            .prop_map(|(replica, name, dry_run)| Happens::Asked { replica, name, dry_run }),
        4 => (0..4_usize).prop_map(|which| Happens::Writes { which }),
        2 => (0..4_usize, prop::bool::weighted(0.2)).prop_map(|(which, fails)| Happens::Ends { which, fails }),
        1 => (0..4_usize).prop_map(|which| Happens::Goes { which }),
        1 => (0..REPLICAS).prop_map(|replica| Happens::Seen { replica }),
        1 => (0..REPLICAS).prop_map(|replica| Happens::Looks { replica }),
        1 => (0..REPLICAS).prop_map(|replica| Happens::Restarts { replica }),
    ];
    (prop_oneof![5 => Just(0), 1 => Just(CREATE - 1), 1 => Just(BEHIND), 1 => 1..CREATE], what)
}

#[derive(Debug, Clone)]
struct Admission {
    replica: usize,
    ask: Ask,
    read: (usize, Ledger),
}

/// A cluster with some replicas of the webhook.
#[derive(Default)]
struct World {
    now: u64,
    version: usize,
    ledger: Ledger,
    uids: usize,
    /// Asked, not written.
    asked: Vec<Admission>,
    /// Admitted at a time, neither created nor failed.
    creating: Vec<(u64, Ask)>,
    /// What the API server has done: time, Pod and uid, whether it began or ended.
    log: Vec<(u64, Ask, bool)>,
    /// How much of the log each replica has seen.
    seen: [usize; REPLICAS],
    /// How far each replica's clock is ahead.
    ahead: [u64; REPLICAS],
    sightings: [Sightings; REPLICAS],
}

impl World {
    fn live(&self, log: &[(u64, Ask, bool)]) -> Vec<Ask> {
        let mut live: Vec<Ask> = Vec::new();
        for (_, pod, began) in log {
            if *began {
                live.push(pod.clone());
            } else {
                live.retain(|other| other.uid != pod.uid);
            }
        }
        live
    }

    fn guests(&self, replica: usize) -> Guests {
        let log = &self.log[..self.seen[replica]];
        Guests {
            live: self.live(log).into_iter().map(|pod| pod.pod).collect(),
            gone: log.iter().filter(|(_, _, began)| !began).map(|(_, pod, _)| pod.uid.clone()).collect(),
            unnamed: 0,
        }
    }

    /// What has to happen by now has happened.
    fn pass(&mut self, time: u64) {
        self.now += time;
        self.creating.retain(|(at, _)| self.now < at + CREATE);
        for seen in &mut self.seen {
            while self.log.get(*seen).is_some_and(|(at, _, _)| at + BEHIND < self.now) {
                *seen += 1;
            }
        }
    }

    fn look(&mut self, replica: usize, ledger: &Ledger) {
        self.sightings[replica].saw(ledger.grants().iter().map(Grant::id), self.now);
    }

    fn happen(&mut self, what: &Happens, slots: u32) {
        match *what {
            Happens::Asked { replica, name, dry_run } => {
                self.uids += 1;
                let ask = Ask { pod: name.to_string(), uid: self.uids.to_string(), dry_run };
                self.asked.push(Admission { replica, ask, read: (self.version, self.ledger.clone()) });
            }
            Happens::Writes { which } if !self.asked.is_empty() => {
                let at = which % self.asked.len();
                let Admission { replica, ask, read: (version, mut ledger) } = self.asked.swap_remove(at);
                if version != self.version {
                    let read = (self.version, self.ledger.clone());
                    return self.asked.push(Admission { replica, ask, read });
                }
                self.look(replica, &ledger);
                let (seen, now) = (&self.sightings[replica], self.now);
                let is_over = |grant: &Grant| seen.is_over(&grant.id(), now);
                let (guests, clock) = (self.guests(replica), now + self.ahead[replica]);
                let verdict = ledger.answer(std::slice::from_ref(&ask), &guests, slots, clock, is_over);
                if verdict == [Granted] && !ask.dry_run {
                    self.version += 1;
                    self.ledger = ledger;
                    self.creating.push((self.now, ask));
                }
            }
            Happens::Ends { which, fails } if !self.creating.is_empty() => {
                let (_, ask) = self.creating.swap_remove(which % self.creating.len());
                let exists = self.live(&self.log).iter().any(|pod| pod.pod == ask.pod);
                if !fails && !exists {
                    self.log.push((self.now, ask, true));
                }
            }
            Happens::Goes { which } => {
                let live = self.live(&self.log);
                if !live.is_empty() {
                    self.log.push((self.now, live[which % live.len()].clone(), false));
                }
            }
            Happens::Seen { replica } => self.seen[replica] = self.log.len(),
            Happens::Looks { replica } => self.look(replica, &self.ledger.clone()),
            Happens::Restarts { replica } => self.sightings[replica] = Sightings::default(),
            Happens::Writes { .. } | Happens::Ends { .. } => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 800, ..ProptestConfig::default() })]

    /// Replicas that read and write in any order and restart, whose clocks differ, watches that are behind, creates that fail
    /// or take long: there are never more guests than slots.
    #[test]
    fn no_slot_is_given_twice(
        slots in 1..3_u32,
        ahead in prop::array::uniform2(prop_oneof![Just(0), 0..3600_u64]),
        all in prop::collection::vec(happens(), 0..50),
    ) {
        let mut world = World { ahead, ..World::default() };
        let mut most = 0;
        for (time, what) in &all {
            world.pass(*time);
            world.happen(what, slots);
            most = most.max(world.live(&world.log).len());
        }
        prop_assert!(most <= slots as usize, "{most} guests on {slots} slots");
    }
}
