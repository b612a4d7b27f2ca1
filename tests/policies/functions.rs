//! Which functions of CEL the shipped expressions use.

use outrigger_tests::{root, shipped};
use regex::Regex;
use serde_json::Value;
use walkdir::WalkDir;

/// What the oldest supported release, Kubernetes 1.34, refuses in new expressions. An API server compiles these with the functions
/// of the release before its own, so that it can be downgraded; these of the list library came with 1.34.
const TOO_NEW: &str = r"lists\.range\(|\.(slice|flatten|distinct|reverse|sort|sortBy|first|last)\(";

/// All expressions in an object, by the names of their fields.
fn expressions<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let is_one = ["expression", "messageExpression", "rule"].contains(&key.as_str());
                found.extend(value.as_str().filter(|_| is_one));
                expressions(value, found);
            }
        }
        Value::Array(list) => list.iter().for_each(|value| expressions(value, found)),
        _ => {}
    }
}

#[test]
fn expressions_use_no_function_that_a_supported_release_lacks() {
    let too_new = Regex::new(TOO_NEW).unwrap();
    assert!(too_new.is_match("[[1]].flatten()"));
    let mut seen = 0;
    for dir in ["webhooks", "deploy/base", "deploy/components", "deploy/crds"] {
        let files = WalkDir::new(root().join(dir)).into_iter().map(Result::unwrap);
        for file in files.filter(|file| file.path().extension().is_some_and(|ext| ext == "yaml")) {
            let objects = shipped::objects(&std::fs::read_to_string(file.path()).unwrap()).unwrap();
            let mut found = Vec::new();
            objects.iter().for_each(|object| expressions(object, &mut found));
            for expression in &found {
                assert!(!too_new.is_match(expression), "{}: {expression}", file.path().display());
            }
            seen += found.len();
        }
    }
    assert!(seen > 100, "{seen}");
}
