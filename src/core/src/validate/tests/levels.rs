//! What a tenant's level of enforcement governs.

use std::collections::BTreeSet;

use serde_json::json;

use super::{check, escapes, good, k, policy, with};
use crate::validate::{CHECKS, Protects, exceptable};

#[test]
fn each_check_has_one_class_and_the_page_says_which() {
    let page = include_str!("../../../../../docs/threats.md");
    let names: BTreeSet<&str> = CHECKS.iter().map(|(name, ..)| *name).collect();
    assert_eq!(names.len(), CHECKS.len(), "each has a name of its own");
    for (name, protects, _) in CHECKS {
        assert!(
            page.contains(&format!("| {name} | {protects:?} |")),
            "docs/threats.md: {name}, {protects:?}"
        );
    }
    // A check that another tenant or the infrastructure could be harmed by must not come here.
    let governed = CHECKS.iter().filter(|(_, protects, _)| protects.is_governed());
    assert_eq!(governed.map(|(name, ..)| *name).collect::<Vec<_>>(), ["claims of other Pods"]);
    assert_eq!(exceptable().collect::<Vec<_>>(), ["ClaimsOfOtherPods"]);
}

#[test]
fn no_way_out_of_a_dpu_is_governed() {
    let good = good();
    for case in escapes() {
        let bad = outrigger_cases::changed(&good, &case.refused);
        for old in [None, Some(&good)] {
            let faults = check(&policy(), false, &bad, old);
            assert!(
                !faults.is_empty() && faults.iter().all(|fault| fault.governed.is_none()),
                "{}: {faults:?}",
                case.name
            );
        }
    }
}

#[test]
fn a_claim_of_another_pod_is_governed_and_that_of_a_companion_or_a_workload_is_not() {
    let good = good();
    let faults = |claim: &str| {
        check(&policy(), false, &with(&good, "/spec/resourceClaims/0/resourceClaimName", json!(claim)), None)
    };
    for (claim, governed) in [
        ("made", true),
        ("theirs", false),
        ("cut", false),
        ("firewall-573e560607f4a185-device-x7k2m", false),
        ("dns-573e560607f4a185-device-x7k2m", false),
    ] {
        let found = faults(claim);
        assert!(found.len() == 1 && found[0].governed.is_some() == governed, "{claim}: {found:?}");
    }
    // It is governed at an update too, and beside what isn't.
    let both = with(
        &with(&good, "/spec/resourceClaims/0/resourceClaimName", json!("made")),
        "/spec/hostPID",
        json!(true),
    );
    for old in [None, Some(&good)] {
        let found: Vec<_> = check(&policy(), false, &both, old)
            .into_iter()
            .map(|fault| (fault.path, fault.governed.is_some()))
            .collect();
        assert_eq!(
            found,
            [("spec.hostPID".into(), false), ("spec.resourceClaims[0].resourceClaimName".into(), true)]
        );
    }
    let marked = with(&good, "/metadata/labels", json!({k::RULE: "r"}));
    assert!(check(&policy(), false, &marked, None).iter().all(|fault| fault.governed.is_none()));
    assert!(!Protects::Ownership.is_governed());
}
