//! Measures the memory of rules, workloads and matches by a counting allocator, and compares it with their share of the
//! tenant's limits. The table of memory in docs/operation.md is computed with these factors.

// Test helpers panic on failure.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

use std::alloc::System;
use std::collections::HashMap;
use std::sync::Arc;

use outrigger_api::{WorkloadRule, workload_wire};
use outrigger_core::index::TenantIndex;
use outrigger_core::rule::{MAX_EXPRESSIONS, MAX_INJECTIONS, MAX_TERMS, MAX_VALUES};
use outrigger_core::tenant::memory;
use outrigger_core::workload::Workload;
use outrigger_proto::raw;
use outrigger_proto::v1::{WorkloadMetadata, WorkloadState, WorkloadUpdate, workload_state};
use prost::Message;
use serde_json::{Value, json};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Returns the text of a valid rule whose spec is modified by `change`.
fn text(change: impl FnOnce(&mut Value)) -> String {
    let mut rule = json!({"apiVersion": "workload.universe.nvidia.com/v1alpha1", "kind": "WorkloadRule",
        "metadata": {"name": "r", "namespace": "tenant-blue", "uid": "u", "generation": 1},
        "spec": {"dpuSelectionPolicy": "Any",
            "workloadTerms": [{"matchExpressions": [{"key": ".metadata.id", "operator": "Exists"}]}],
            "template": {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    change(&mut rule["spec"]);
    rule.to_string()
}

/// Returns terms with so many expressions of so many values each, all of them short and distinct.
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

/// Returns what `make` returns, and how many bytes stay allocated.
fn held<T>(make: impl FnOnce() -> T) -> (T, usize) {
    let region = Region::new(ALLOCATOR);
    let made = make();
    let change = region.change();
    (made, change.bytes_allocated.saturating_sub(change.bytes_deallocated))
}

// A single test, because tests run concurrently in one process and their allocations would be counted.
#[test]
fn memory_is_bounded_by_the_limits() {
    a_rule_takes_at_most_twice_its_size();
    a_workload_takes_at_most_twice_its_size_and_a_little();
    a_match_takes_little();
}

/// Returns a workload as the manager reads it from a stream, and its size as `workloadBytes` counts it.
fn workload(i: usize, labels: usize, length: usize) -> (Workload, usize) {
    let map = workload_state::ExtraData {
        data: (0..labels).map(|l| (format!("l{l}"), "v".repeat(length))).collect(),
    };
    let update = WorkloadUpdate {
        workload_metadata: Some(WorkloadMetadata {
            orchestrator: 1,
            resource_type: "v1/Pod".to_owned(),
            resource_namespace: "n".to_owned(),
            resource_name: format!("p{i}"),
            id: format!("w{i}"),
        }),
        workload_state: Some(WorkloadState {
            node_name: String::new(),
            ready: true,
            extra: HashMap::from([("labels".to_owned(), map)]),
            ..Default::default()
        }),
        annotation_keys: None,
    };
    let size = update.encoded_len() + (labels + 1) * 64;
    let received = raw::WorkloadUpdate::decode(update.encode_to_vec().as_slice()).unwrap();
    (workload_wire::workload(&received).unwrap(), size)
}

fn a_workload_takes_at_most_twice_its_size_and_a_little() {
    const COUNT: usize = 2_000;
    for (labels, length) in [(0, 0), (1, 0), (15, 40), (200, 0), (200, 4), (1, 10_000)] {
        let mut size = 0;
        let (index, bytes) = held(|| {
            let mut index = TenantIndex::default();
            for i in 0..COUNT {
                let (workload, counted) = workload(i, labels, length);
                size += counted;
                index.update(workload);
            }
            index
        });
        println!(
            "{labels} labels of {length} bytes: {} bytes a workload, which counts as {}",
            bytes / COUNT,
            size / COUNT
        );
        assert!(
            bytes as u64 <= memory::workloads(COUNT as u64, size as u64),
            "{labels} labels of {length} bytes"
        );
        assert_eq!(index.workloads(), COUNT);
    }
}

fn a_match_takes_little() {
    const RULES: usize = 20;
    const WORKLOADS: usize = 2_000;
    let mut index = TenantIndex::default();
    index.sync((0..WORKLOADS).map(|i| workload(i, 0, 0).0).collect());
    let rules: Vec<_> = (0..RULES)
        .map(|i| {
            let mut rule: WorkloadRule = serde_json::from_str(&text(|_| ())).unwrap();
            rule.metadata.name = Some(format!("r{i}"));
            Arc::new(rule.compile().unwrap())
        })
        .collect();
    let (touched, bytes) = held(|| rules.into_iter().map(|rule| index.apply_rule(rule).len()).sum::<usize>());
    println!("{} bytes a match", bytes / touched);
    assert_eq!(touched, RULES * WORKLOADS);
    assert!(bytes as u64 <= memory::matches(touched as u64), "{bytes} bytes for {touched} matches");
}

fn a_rule_takes_at_most_twice_its_size() {
    let many = |count: usize| -> Vec<Value> { vec![json!({"a": 0}); count] };
    let names = |count: usize| (0..count).map(|i| json!({"name": format!("c{i}"), "image": "i"})).collect();
    for (what, text) in [
        (
            "a long text",
            text(|spec| spec["template"]["metadata"] = json!({"annotations": {"a": "x".repeat(200_000)}})),
        ),
        ("many small values", text(|spec| spec["template"]["spec"]["hostAliases"] = many(9_000).into())),
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
        assert!(
            in_manager as u64 <= memory::rules(size as u64),
            "{what}: {in_manager} bytes for a size of {size}"
        );
        assert!(in_webhook as u64 <= memory::admitted_rules(1, size as u64), "{what}: {in_webhook} bytes");
        assert!(manager.rules().count() == 1 && webhook.uid() == "u");
    }
}
