//! Lists that are older than what is stored.

use super::*;

#[tokio::test]
async fn what_is_listed_late_is_replaced_and_deleted_by_its_current_version() {
    let mut fixture = Fixture::new().await;
    fixture.apply_rule(true, false);
    // The list has a version of the rule that isn't the stored one.
    let wire = rule_wire::message(&serde_json::from_value(rule(true, false)).unwrap());
    let other = |policy: &str| {
        let mut other = v1::Rule { origin: "u".to_owned(), ..wire.clone() };
        other.data.as_mut().unwrap().dpu_selection_policy = policy.to_owned();
        other
    };
    {
        let mut rules = fixture.manager.0.lock();
        rules.stored.insert("r".to_owned(), other("Any"));
        rules.listed = Some(vec![listed(&other("Host"))]);
    }
    assert_eq!(fixture.round().await, Ok(true));
    {
        let rules = fixture.manager.0.lock();
        assert_eq!(rules.stored["r"].data, wire.data, "it is updated in the same round");
        assert_eq!(rules.aborted, 1);
    }
    fixture.apply_rule(true, true);
    assert_eq!(fixture.round().await, Ok(true));
    assert!(!fixture.is_stored());
    assert_eq!(fixture.manager.0.lock().aborted, 2);
    // Another client has made a rule of this name since.
    fixture.apply_rule(true, true);
    fixture
        .manager
        .0
        .lock()
        .stored
        .insert("r".to_owned(), v1::Rule { origin: String::new(), ..other("Any") });
    assert_eq!(fixture.round().await, Ok(false));
    assert!(fixture.is_stored());
}

#[tokio::test]
async fn a_manager_whose_lists_are_old_drops_no_fields_and_gets_the_rule_again_after_a_restore() {
    let mut fixture = Fixture::new().await;
    fixture.apply_rule(true, false);
    let wire = rule_wire::message(&serde_json::from_value(rule(true, false)).unwrap());
    let mut earlier = v1::Rule { origin: "u".to_owned(), ..wire.clone() };
    earlier.data.as_mut().unwrap().rule_template = b"{}".to_vec().into();
    let restore = |fixture: &Fixture| {
        fixture.manager.0.lock().stored.insert("r".to_owned(), earlier.clone());
    };
    restore(&fixture);
    fixture.manager.0.lock().listed = Some(vec![listed(&earlier)]);
    for _ in 0..5 {
        fixture.round().await.unwrap();
        // The pause after a write is over.
        fixture.memory.rules.values_mut().for_each(|rule| rule.written = None);
    }
    restore(&fixture);
    fixture.round().await.unwrap();
    assert_eq!(fixture.manager.0.lock().stored["r"].data, wire.data);
    // One that drops fields stores what it lists.
    restore(&fixture);
    fixture.manager.0.lock().drops_updates = true;
    for _ in 0..5 {
        fixture.memory.rules.values_mut().for_each(|rule| rule.written = None);
        fixture.round().await.unwrap();
    }
    assert_eq!(fixture.reasons("r").last().map(String::as_str), Some("ManagerTooOld"));
}
