//! Attributes of the devices that workloads have.

use super::*;

#[test]
fn where_unknown_attributes_decide_no_change_is_predicted() {
    let claims = json!([{"name": "gpu", "resourceClaimName": "mine"}]);
    let user = with(pod("shop", "web", "web", "a"), "/spec/resourceClaims", claims);
    let key = ".state.extra.deviceAttributes['mine/one/gpu.example.com/model']";
    let selecting = |operator: &str| {
        let expressions = json!([{"key": key, "operator": operator, "values": ["a100"]}]);
        with(rule("r", "web"), "/spec/workloadTerms/0/matchExpressions", expressions)
    };
    // The workload `db` has no claims, and so no attributes. The companions of the present rule are taken to exist.
    let state = state(&[user, for_all(rule("r", "web"))]);
    for (operator, expected) in [("In", &["Deleted shop/db"][..]), ("NotIn", &[])] {
        let report = diff(&state, &[selecting(operator)], &[]).unwrap();
        assert_eq!(changes(&report), expected, "{operator}");
        let notes = report["notes"].to_string();
        assert!(notes.contains("rule r names attributes of devices"), "{notes}");
    }
    let other = diff(&state, &[rule("r", "web")], &[]).unwrap();
    assert!(!other["notes"].to_string().contains("attributes of devices"), "{other}");
}
