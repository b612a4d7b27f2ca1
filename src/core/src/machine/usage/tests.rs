use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn pod(phase: &str, node: bool, unschedulable: bool, ready: bool) -> PodState {
    PodState {
        phase: phase.to_owned(),
        node: node.then(|| "n".to_owned()),
        deleting: false,
        unschedulable,
        gated: false,
        containers_ready: ready,
    }
}

fn gone(mut pod: PodState) -> PodState {
    pod.deleting = true;
    pod
}

fn gated(mut pod: PodState) -> PodState {
    pod.gated = true;
    pod
}

/// Imperator's table. Where it says otherwise, because it gives a slot away that a guest still holds, a comment does.
#[test]
fn how_a_guest_counts() {
    for (state, counts) in [
        (pod("Pending", false, true, false), Guest::Waiting),
        (pod("Pending", true, false, false), Guest::Used),
        // Imperator: nothing.
        (pod("Running", true, false, false), Guest::Used),
        (pod("Running", true, false, true), Guest::Used),
        (pod("Succeeded", true, false, false), Guest::Nothing),
        (pod("Failed", true, false, false), Guest::Nothing),
        // Imperator: nothing. Its kubelet doesn't answer, but nobody knows that it has ended.
        (pod("Unknown", true, false, false), Guest::Used),
        (pod("Unknown", false, false, false), Guest::Nothing),
        (pod("Pending", false, false, false), Guest::Nothing),
        (gated(pod("Pending", false, false, false)), Guest::Gated),
        (gone(gated(pod("Pending", false, false, false))), Guest::Nothing),
        (gone(pod("Running", true, false, true)), Guest::Leaving),
        (gone(pod("Pending", false, true, false)), Guest::Nothing),
        (gone(pod("Succeeded", true, false, false)), Guest::Nothing),
    ] {
        assert_eq!(state.as_guest(), counts, "{state:?}");
        let is = |what| u32::from(counts == what);
        let seen = TypeView {
            used: is(Guest::Used),
            waiting: is(Guest::Waiting),
            gated: is(Guest::Gated),
            leaving: is(Guest::Leaving),
            ..seen(2, &[])
        };
        let plan = Ledger::default().step(&seen, at(0));
        let holds = !matches!(counts, Guest::Nothing | Guest::Gated);
        assert_eq!(plan.replicas, 2 - u32::from(holds), "{state:?}");
        let waits = matches!(counts, Guest::Waiting | Guest::Gated);
        assert_eq!((plan.usage.waiting, plan.usage.gated), (u32::from(waits), is(Guest::Gated)), "{state:?}");
    }
}

#[test]
fn how_many_reservations_there_are() {
    for (maximum, used, waiting, unscheduled, wanted) in
        [(2, 0, 0, 0, 2), (2, 0, 1, 0, 1), (2, 0, 0, 1, 1), (0, 0, 0, 0, 0), (2, 2, 2, 2, 0)]
    {
        let usage = Usage { maximum, used, waiting, ..Usage::default() };
        assert_eq!(replicas(&usage, unscheduled), wanted);
    }
}

#[test]
fn how_a_reservation_counts() {
    let placed = |reserved| Reservation::Placed { reserved };
    for (state, counts) in [
        (pod("Pending", false, false, false), Reservation::Nothing),
        // A scheduling gate has another reason than Unschedulable.
        (gated(pod("Pending", false, false, false)), Reservation::Nothing),
        (pod("Pending", false, true, false), Reservation::Unschedulable),
        (pod("Pending", true, false, false), placed(true)),
        (pod("Running", true, false, false), placed(false)),
        (pod("Running", true, false, true), placed(true)),
        (pod("Failed", true, false, false), Reservation::Nothing),
        (gone(pod("Running", true, false, true)), Reservation::Nothing),
        (gone(pod("Pending", false, true, false)), Reservation::Nothing),
    ] {
        assert_eq!(state.as_reservation(), counts, "{state:?}");
    }
}

fn reservation(ordinal: u32, state: Reservation) -> SeenReservation {
    SeenReservation { ordinal, state, on_ready_node: matches!(state, Reservation::Placed { .. }) }
}

const PLACED: Reservation = Reservation::Placed { reserved: true };
const STUCK: Reservation = Reservation::Unschedulable;

fn seen(maximum: u32, states: &[Reservation]) -> TypeView {
    let reservations = (0..).zip(states).map(|(i, state)| reservation(i, *state)).collect();
    TypeView { maximum, in_pool: true, reservations, ..TypeView::default() }
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Slots and replicas of a plan.
fn of(plan: Plan) -> (u32, u32) {
    (plan.usage.slots.unwrap(), plan.replicas)
}

#[test]
fn a_new_machine_has_the_slots_that_reservations_hold() {
    let mut ledger = Ledger::default();
    assert_eq!(of(ledger.step(&seen(3, &[]), at(0))), (0, 3));
    assert_eq!(of(ledger.step(&seen(3, &[STUCK, PLACED, Reservation::Nothing]), at(1))), (1, 3));
    let plan = ledger.step(&seen(3, &[PLACED, PLACED, PLACED]), at(2));
    assert_eq!((of(plan), plan.again, plan.usage.reserved), ((3, 3), None, 3));
    // Running without its containers is a place, and no reservation.
    let plan = ledger.step(&seen(3, &[PLACED, PLACED, Reservation::Placed { reserved: false }]), at(3));
    assert_eq!((of(plan), plan.usage.reserved), ((3, 3), 2));
}

#[test]
fn a_type_that_no_node_serves_has_none() {
    let mut ledger = Ledger::default();
    let unused = TypeView { in_pool: false, ..seen(1, &[]) };
    let plan = ledger.step(&unused, at(0));
    assert_eq!(of(plan), (0, 0));
    assert_eq!(plan.usage, Usage { maximum: 1, slots: Some(0), ..Usage::default() });
}

#[test]
fn the_maximum_is_followed_at_once() {
    let mut ledger = Ledger::new(2);
    assert_eq!(of(ledger.step(&seen(2, &[PLACED, PLACED]), at(0))), (2, 2));
    assert_eq!(of(ledger.step(&TypeView { room: 1, ..seen(5, &[PLACED, PLACED]) }, at(1))), (2, 5));
    assert_eq!(of(ledger.step(&TypeView { room: 2, ..seen(0, &[PLACED, PLACED]) }, at(2))), (0, 0));
    assert_eq!(of(ledger.step(&TypeView { room: 3, ..seen(2, &[]) }, at(3))), (0, 2));
}

#[test]
fn a_guest_in_the_place_of_a_reservation_changes_nothing() {
    let mut ledger = Ledger::new(2);
    ledger.step(&seen(2, &[PLACED, PLACED]), at(0));
    // It waits, and one has been removed for it.
    let waits = TypeView { waiting: 1, ..seen(2, &[Reservation::Nothing, PLACED]) };
    assert_eq!(of(ledger.step(&waits, at(1))), (2, 1));
    // It has come, and the one that was made again finds no place until the other one is gone.
    let came = TypeView { used: 1, ..seen(2, &[STUCK, PLACED]) };
    assert_eq!(of(ledger.step(&came, at(2))), (2, 1));
    assert_eq!(of(ledger.step(&TypeView { used: 1, ..seen(2, &[STUCK]) }, at(12))), (2, 1));
    assert_eq!(of(ledger.step(&TypeView { used: 1, ..seen(2, &[PLACED]) }, at(13))), (2, 1));
    // It leaves: there is no room for another reservation until it has gone.
    assert_eq!(of(ledger.step(&TypeView { leaving: 1, ..seen(2, &[PLACED]) }, at(14))), (2, 1));
    assert_eq!(of(ledger.step(&seen(2, &[PLACED]), at(15))), (2, 2));
    assert_eq!(of(ledger.step(&seen(2, &[PLACED, PLACED]), at(16))), (2, 2));
}

#[test]
fn what_finds_no_place_is_left_out_and_tried_again_less_and_less_often() {
    let mut ledger = Ledger::default();
    let mut seconds = 0;
    let mut pauses = Vec::new();
    for _ in 0..8 {
        // All are asked for; the scheduler places the two that there is room for.
        assert_eq!(ledger.step(&seen(3, &[]), at(seconds)).replicas, 3);
        let none = seen(3, &[STUCK, PLACED, PLACED]);
        let plan = ledger.step(&none, at(seconds + 1));
        assert_eq!(of(plan), (2, 3));
        seconds += PATIENCE.as_secs() + 1;
        let plan = ledger.step(&none, at(seconds));
        assert_eq!((of(plan), plan.short), ((2, 2), 1));
        // The last one is taken away, and the one that waited has its place.
        let plan = ledger.step(&seen(3, &[PLACED, PLACED]), at(seconds));
        assert_eq!(of(plan), (2, 2));
        let pause = plan.again.unwrap();
        pauses.push(pause.as_secs());
        assert_eq!(of(ledger.step(&seen(3, &[PLACED, PLACED]), at(seconds + pause.as_secs() - 1))), (2, 2));
        seconds += pause.as_secs();
    }
    assert_eq!(pauses, [60, 120, 240, 480, 960, 1800, 1800, 1800]);
    // A node has changed: there may be room now, and there is.
    ledger.step(&seen(3, &[PLACED, PLACED]), at(seconds));
    let changed = TypeView { room: 7, ..seen(3, &[PLACED, PLACED]) };
    assert_eq!(of(ledger.step(&changed, at(seconds))), (2, 3));
    let changed = TypeView { room: 7, ..seen(3, &[PLACED, PLACED, PLACED]) };
    assert_eq!(of(ledger.step(&changed, at(seconds))), (3, 3));
}

#[test]
fn what_was_left_out_is_tried_again_as_soon_as_a_node_changes() {
    let mut ledger = Ledger::default();
    let stuck = seen(3, &[STUCK, PLACED, PLACED]);
    ledger.step(&stuck, at(0));
    assert_eq!(of(ledger.step(&stuck, PATIENCE)), (2, 2));
    let placed = seen(3, &[PLACED, PLACED]);
    assert_eq!(of(ledger.step(&placed, PATIENCE + at(1))), (2, 2), "nothing has changed");
    let changed = TypeView { room: 1, ..placed };
    assert_eq!(of(ledger.step(&changed, PATIENCE + at(2))), (2, 3));
}

#[test]
fn a_lost_node_takes_its_slots_along_after_a_while() {
    let mut ledger = Ledger::new(2);
    ledger.step(&seen(2, &[PLACED, PLACED]), at(0));
    let mut lost = seen(2, &[PLACED, PLACED]);
    lost.reservations[1].on_ready_node = false;
    assert_eq!(of(ledger.step(&lost, at(1))), (2, 2));
    assert_eq!(of(ledger.step(&lost, at(PATIENCE.as_secs()))), (2, 2));
    // It was back for a moment: the time starts again.
    assert_eq!(of(ledger.step(&seen(2, &[PLACED, PLACED]), at(PATIENCE.as_secs()))), (2, 2));
    let plan = ledger.step(&lost, at(20));
    assert_eq!((of(plan), plan.again), ((2, 2), Some(PATIENCE)));
    let plan = ledger.step(&lost, at(20 + PATIENCE.as_secs()));
    assert_eq!((of(plan), plan.again), ((1, 2), None), "nothing more comes with time");
    assert_eq!(of(ledger.step(&seen(2, &[PLACED, PLACED]), at(50))), (2, 2));
}

#[test]
fn guests_beyond_what_there_is_neither_raise_the_slots_nor_go_below_nothing() {
    let mut ledger = Ledger::new(0);
    let crowd = TypeView { used: 2, waiting: 8, ..seen(10, &[]) };
    assert_eq!(of(ledger.step(&crowd, at(0))), (2, 0));
    let over = TypeView { used: 3, leaving: 2, ..seen(2, &[]) };
    assert_eq!(of(Ledger::new(2).step(&over, at(0))), (2, 0));
}

/// Nodes with so many places, a scheduler and a StatefulSet controller, each as slow as may be.
#[derive(Debug, Default)]
struct Model {
    places: usize,
    reservations: BTreeMap<u32, Reservation>,
    used: usize,
    waiting: usize,
    gated: usize,
    leaving: usize,
}

impl Model {
    fn free(&self) -> bool {
        let placed = self.reservations.values().filter(|r| matches!(r, Reservation::Placed { .. })).count();
        placed + self.used + self.leaving < self.places
    }

    /// One decision of the scheduler: a guest first, which removes a reservation where there is no room.
    fn schedule(&mut self, victim: usize) {
        if self.waiting > 0 {
            if !self.free() {
                let placed: Vec<u32> =
                    self.reservations.iter().filter(|(_, r)| **r == PLACED).map(|(i, _)| *i).collect();
                if let Some(ordinal) = placed.get(victim % placed.len().max(1)) {
                    self.reservations.remove(ordinal);
                }
            }
            if self.free() {
                self.waiting -= 1;
                self.used += 1;
            }
            return;
        }
        let free = self.free();
        let mut unplaced = self.reservations.values_mut().filter(|r| **r != PLACED);
        if free {
            unplaced.next().into_iter().for_each(|one| *one = PLACED);
        } else {
            unplaced.for_each(|one| *one = STUCK);
        }
    }

    fn stateful_set(&mut self, replicas: u32) {
        self.reservations.retain(|ordinal, _| *ordinal < replicas);
        for ordinal in 0..replicas {
            self.reservations.entry(ordinal).or_insert(Reservation::Nothing);
        }
    }

    fn seen(&self, maximum: u32) -> TypeView {
        TypeView {
            maximum,
            in_pool: true,
            used: count(self.used),
            waiting: count(self.waiting),
            gated: count(self.gated),
            leaving: count(self.leaving),
            reservations: self.reservations.iter().map(|(i, state)| reservation(*i, *state)).collect(),
            room: 0,
        }
    }

    /// Until nothing changes, and not so long that what is left out is tried again.
    fn settle(&mut self, ledger: &mut Ledger, maximum: u32, now: &mut u64) -> Plan {
        let mut plan = ledger.step(&self.seen(maximum), at(*now));
        for _ in 0..25 {
            *now += 1;
            self.stateful_set(plan.replicas);
            for _ in 0..8 {
                self.schedule(0);
            }
            plan = ledger.step(&self.seen(maximum), at(*now));
        }
        plan
    }
}

proptest! {
    /// However guests come and go, and in whatever order scheduler and StatefulSet controller act, as long as each acts
    /// in time: the slots stay what the nodes back.
    #[test]
    fn slots_neither_dip_nor_jump(
        places in 0_usize..7,
        maximum in 0_u32..7,
        moves in prop::collection::vec((0_u8..8, 0_usize..7), 0..200),
    ) {
        let mut model = Model { places, ..Model::default() };
        let (mut ledger, mut now) = (Ledger::default(), 0);
        let plan = model.settle(&mut ledger, maximum, &mut now);
        let backed = places.min(maximum as usize);
        prop_assert_eq!(of(plan), (count(backed), count(backed)));
        let mut replicas = plan.replicas;
        let mut seen_replicas = BTreeSet::new();
        for (what, which) in moves {
            match what {
                0 if model.used + model.waiting < backed => model.waiting += 1,
                1 if model.used > 0 => {
                    model.used -= 1;
                    model.leaving += 1;
                }
                2 if model.leaving > 0 => model.leaving -= 1,
                3 => model.stateful_set(replicas),
                // Any number of them may come; admission lets go no more than there are slots.
                4 => model.gated += 1,
                5 if model.gated > 0 && model.used + model.waiting < backed => {
                    model.gated -= 1;
                    model.waiting += 1;
                }
                _ => model.schedule(which),
            }
            let plan = ledger.step(&model.seen(maximum), at(now));
            prop_assert_eq!(plan.usage.slots, Some(count(backed)), "{:?}", model);
            prop_assert!(plan.replicas as usize <= backed);
            replicas = plan.replicas;
            seen_replicas.insert(replicas);
        }
        model.leaving = 0;
        let plan = model.settle(&mut ledger, maximum, &mut now);
        prop_assert_eq!(plan.usage.slots, Some(count(backed)));
        prop_assert_eq!(plan.replicas as usize, backed - model.used, "{:?}", seen_replicas);
    }
}
