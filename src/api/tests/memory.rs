//! What a rule takes of the manager's and the webhook's memory, counted by an allocator that counts: at most twice what it takes of
//! its tenant's limit.

// Helpers of tests fail by panicking, as tests do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

use std::alloc::System;
use std::sync::Arc;

use outrigger_api::WorkloadRule;
use outrigger_core::index::TenantIndex;
use outrigger_core::rule::{MAX_EXPRESSIONS, MAX_INJECTIONS, MAX_TERMS, MAX_VALUES};
use serde_json::{Value, json};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// The text of a rule that is valid but for what `change` does to its spec.
fn text(change: impl FnOnce(&mut Value)) -> String {
    let mut rule = json!({"apiVersion": "workload.universe.nvidia.com/v1alpha1", "kind": "WorkloadRule",
        "metadata": {"name": "r", "namespace": "tenant-blue", "uid": "u", "generation": 1},
        "spec": {"dpuSelectionPolicy": "Any",
            "workloadTerms": [{"matchExpressions": [{"key": ".metadata.id", "operator": "Exists"}]}],
            "template": {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    change(&mut rule["spec"]);
    rule.to_string()
}

/// Terms of so many expressions with so many values each, all of them short and different.
fn terms(terms: usize, expressions: usize, values: usize) -> Value {
    let value = |i: usize| format!("{i:x}");
    let term = |t: usize| {
        let expression = |e: usize| {
            let base = (t * expressions + e) * values;
            let values: Vec<String> = (base..base + values).map(value).collect();
            json!({"key": format!(".state.extra.labels.l{e}"), "operator": "In", "values": values})
        };
        json!({"matchExpressions": (0..expressions).map(expression).collect::<Vec<_>>()})
    };
    (0..terms).map(term).collect()
}

/// Bytes that stay allocated by what `make` returns.
fn held<T>(make: impl FnOnce() -> T) -> (T, usize) {
    let region = Region::new(ALLOCATOR);
    let made = make();
    let change = region.change();
    (made, change.bytes_allocated.saturating_sub(change.bytes_deallocated))
}

// One test, because others in the same process would allocate meanwhile.
#[test]
fn a_rule_takes_at_most_twice_its_size_in_memory() {
    let many = |count: usize| -> Vec<Value> { vec![json!({"a": 0}); count] };
    let names = |count: usize| (0..count).map(|i| json!({"name": format!("c{i}"), "image": "i"})).collect();
    for (what, text) in [
        (
            "a long text",
            text(|spec| spec["template"]["metadata"] = json!({"annotations": {"a": "x".repeat(200_000)}})),
        ),
        ("many small values", text(|spec| spec["template"]["spec"]["volumes"] = many(9_000).into())),
        ("many containers", text(|spec| spec["template"]["spec"]["containers"] = Value::Array(names(6_000)))),
        ("many values", text(|spec| spec["workloadTerms"] = terms(8, 1, MAX_VALUES))),
        (
            "many values of many expressions",
            text(|spec| spec["workloadTerms"] = terms(MAX_TERMS, MAX_EXPRESSIONS, 4)),
        ),
        ("many expressions", text(|spec| spec["workloadTerms"] = terms(MAX_TERMS, MAX_EXPRESSIONS, 1))),
        ("many terms", text(|spec| spec["workloadTerms"] = terms(MAX_TERMS, 1, 1))),
        (
            "many injections",
            text(|spec| {
                let inject =
                    |i| json!({"workloadKey": ".metadata.id", "asAnnotation": {"name": format!("a{i}")}});
                spec["workloadInfoInject"] = (0..MAX_INJECTIONS).map(inject).collect();
            }),
        ),
        (
            "device claims",
            text(|spec| {
                let requests: Vec<Value> = (0..32)
                    .map(|r| json!({"name": format!("r{r}"), "exactly": {"deviceClassName": "c"}}))
                    .collect();
                let claim = |i| json!({"name": format!("d{i}"), "spec": {"devices": {"requests": requests}}});
                spec["deviceClaims"] = (0..16).map(claim).collect();
            }),
        ),
    ] {
        let read = || serde_json::from_str::<WorkloadRule>(&text).unwrap();
        let size = usize::try_from(read().size()).unwrap();
        let compiled = || Arc::new(read().compile().unwrap_or_else(|errors| panic!("{what}: {errors:?}")));
        let (manager, in_manager) = held(|| {
            let mut index = TenantIndex::default();
            index.apply_rule(compiled());
            index
        });
        let (webhook, in_webhook) = held(|| Arc::new(read().compile().unwrap().for_admission()));
        println!(
            "{what}: {} bytes of text, size {size}, {in_manager} in the manager, {in_webhook} in the webhook",
            text.len()
        );
        assert!(in_manager <= 2 * size, "{what}: {in_manager} bytes for a size of {size}");
        assert!(in_webhook <= in_manager, "{what}: {in_webhook} bytes");
        assert!(manager.rules().count() == 1 && webhook.uid() == "u");
    }
}
