//! Companions that are changed in place instead of being replaced.

use outrigger_core::reason::Cause;

use super::*;

#[test]
fn a_companion_has_its_place_while_it_is_changed() {
    for cause in [Cause::Resizing, Cause::Updating] {
        let mut stage = Stage::new(4);
        assert_eq!(stage.steps(), [key(0)]);
        let changed = |trouble| Observed { trouble, ..pod("new", true) };
        // Its kubelet restarts a container for it, or not: the place is free when it serves as its template says.
        stage.set(&key(0), Some(changed(Some(cause))));
        stage.rollouts.changed_in_place(&key(0));
        stage.wake();
        assert!(stage.queue.is_empty(), "its container may be restarted");
        stage.set(&key(0), Some(pod("new", false)));
        stage.wake();
        assert!(stage.queue.is_empty());
        stage.set(&key(0), Some(changed(Some(cause))));
        stage.wake();
        assert!(stage.queue.is_empty());
        stage.set(&key(0), Some(changed(None)));
        stage.wake();
        assert_eq!(stage.queue, [key(1)]);
    }
}

#[test]
fn a_resize_that_waits_for_room_holds_nobody_and_needs_no_kubelet_that_speaks() {
    for trouble in [Some(Cause::ResizeDeferred), Some(Cause::ResizeInfeasible), None] {
        let mut stage = Stage::new(4);
        assert_eq!(stage.steps(), [key(0)]);
        stage.set(&key(0), Some(Observed { trouble, ..pod("new", true) }));
        stage.rollouts.changed_in_place(&key(0));
        stage.rollouts.observed(&key(0), stage.store.get(&key(0)));
        stage.wake();
        assert_eq!(stage.queue, [key(1)], "{trouble:?}");
        let impaired = stage.store.impaired(&key(0).rule).map(|(key, _)| key);
        assert_eq!(impaired, trouble.map(|_| key(0)));
    }
}

#[test]
fn a_manager_that_begins_counts_those_that_are_being_resized() {
    let mut stage = Stage::new(4);
    stage.set(&key(3), Some(Observed { trouble: Some(Cause::Resizing), ..pod("new", true) }));
    assert_eq!(stage.steps().len(), 0);
    let down = Availability { existing: 4, unready: 1, ..Availability::default() };
    assert_eq!(stage.availability(), down);
}
