//! How long the texts may be that Outrigger's accounts write into objects of others, in its policies and in its own code.

use std::collections::{BTreeMap, BTreeSet};

use outrigger_core::reason::{MAX_MESSAGE, MAX_REASON};
use outrigger_tests::{root, shipped};
use regex::Regex;
use serde_json::Value;
use walkdir::WalkDir;

/// The policies for accounts that write conditions of others' objects, or Events about them.
const BOUNDED: [&str; 6] = [
    "outrigger-agent",
    "outrigger-agent-claims",
    "outrigger-agent-conditions",
    "outrigger-agent-events",
    "outrigger-agent-nodes",
    "outrigger-manager-events",
];

/// A field that a policy bounds, and its bound.
type Bound = (String, usize);

/// The bounds of texts in a policy's expressions.
fn bounds(policy: &Value) -> BTreeSet<Bound> {
    let size = r"\b(message|note|reason|action)(?:\.orValue\(''\))?\.size\(\) <= (\d+)";
    let word = r"\b(reason|action)\.orValue\(''\)\.matches\('\^\[A-Za-z\]\{1,(\d+)\}\$'\)";
    let validations = policy["spec"]["validations"].as_array().unwrap();
    let expressions: Vec<&str> = validations.iter().filter_map(|v| v["expression"].as_str()).collect();
    let of = |pattern: &str| {
        let found = Regex::new(pattern).unwrap();
        let all =
            expressions.iter().flat_map(|expression| found.captures_iter(expression).collect::<Vec<_>>());
        all.map(|found| (found[1].to_owned(), found[2].parse().unwrap())).collect::<BTreeSet<Bound>>()
    };
    of(size).into_iter().chain(of(word)).collect()
}

#[test]
fn policies_bound_texts_by_the_figures_that_outrigger_keeps_to() {
    let mut found = BTreeMap::new();
    for dir in ["webhooks", "deploy/base"] {
        let files = WalkDir::new(root().join(dir)).into_iter().map(Result::unwrap);
        for file in files.filter(|file| file.path().extension().is_some_and(|ext| ext == "yaml")) {
            let objects = shipped::objects(&std::fs::read_to_string(file.path()).unwrap()).unwrap();
            for policy in shipped::of_kind(&objects, "ValidatingAdmissionPolicy") {
                let bounds = bounds(policy);
                if !bounds.is_empty() {
                    found.insert(policy["metadata"]["name"].as_str().unwrap().to_owned(), bounds);
                }
            }
        }
    }
    assert_eq!(found.keys().collect::<Vec<_>>(), BOUNDED);
    for (policy, bounds) in found {
        for (field, bound) in &bounds {
            let own = if ["message", "note"].contains(&field.as_str()) { MAX_MESSAGE } else { MAX_REASON };
            assert_eq!(*bound, own, "{policy}: {field}");
        }
        let has = |fields: &[&str]| bounds.iter().any(|(field, _)| fields.contains(&field.as_str()));
        assert!(has(&["message", "note"]) && has(&["reason"]), "{policy} bounds only {bounds:?}");
    }
}
