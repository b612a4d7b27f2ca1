//! Lists that are older than what is stored.

use super::*;

#[tokio::test]
async fn what_is_listed_late_is_replaced_and_deleted_by_its_current_version() {
    let mut fixture = Fixture::new().await;
    fixture.apply_rule(true, false);
    // The list has a version of the rule that isn't the stored one.
    let made = made_of("u");
    let other = |policy: &str| {
        let mut other = made.clone();
        other.data.as_mut().unwrap().dpu_selection_policy = policy.to_owned();
        other
    };
    fixture.manager().store(other("Any"));
    fixture.manager().listed = Some(vec![listed(&other("Host"))]);
    assert_eq!(fixture.round().await, Ok(true));
    assert_eq!(fixture.manager().stored["r"].data, made.data, "it is updated in the same round");
    assert_eq!(fixture.manager().aborted, 1);
    fixture.apply_rule(true, true);
    assert_eq!(fixture.round().await, Ok(true));
    assert!(!fixture.is_stored());
    assert_eq!(fixture.manager().aborted, 2);
    // Another client has made a rule of this name since.
    fixture.apply_rule(true, true);
    fixture.manager().store(v1::Rule { origin: String::new(), ..other("Any") });
    assert_eq!(fixture.round().await, Ok(false));
    assert!(fixture.is_stored());
}

#[tokio::test]
async fn a_manager_whose_lists_are_old_drops_no_fields_and_gets_the_rule_again_after_a_restore() {
    let mut fixture = Fixture::new().await;
    fixture.apply_rule(true, false);
    let made = made_of("u");
    let mut earlier = made.clone();
    earlier.data.as_mut().unwrap().rule_template = b"{}".to_vec().into();
    let restore = |fixture: &Fixture| fixture.manager().store(earlier.clone());
    restore(&fixture);
    fixture.manager().listed = Some(vec![listed(&earlier)]);
    for _ in 0..5 {
        fixture.round().await.unwrap();
        // The pause after a write is over.
        fixture.memory.rules.values_mut().for_each(|rule| rule.written = None);
    }
    restore(&fixture);
    fixture.round().await.unwrap();
    assert_eq!(fixture.manager().stored["r"].data, made.data);
    // One that drops fields stores what it lists.
    restore(&fixture);
    fixture.manager().drops_updates = true;
    for _ in 0..5 {
        fixture.memory.rules.values_mut().for_each(|rule| rule.written = None);
        fixture.round().await.unwrap();
    }
    assert_eq!(fixture.reasons("r").last().map(String::as_str), Some("ManagerTooOld"));
}
