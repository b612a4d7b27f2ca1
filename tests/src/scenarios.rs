//! The scenarios of the crash matrix (`tests/crash`). `make long` runs each as a job of its own.

/// Their names, in the order in which samples take turns.
pub const SCENARIOS: [&str; 12] = [
    "rule",
    "rule-webhook",
    "rollout",
    "handover",
    "tenant",
    "machines",
    "ledger",
    "claims",
    "ca-webhook",
    "ca-manager",
    "sync",
    "sync-manager",
];
