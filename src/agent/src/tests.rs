//! What unit tests of several modules share.

use std::sync::Arc;

use outrigger_core::ids::{RuleName, WorkloadId};
use outrigger_core::rule::{ExpressionSpec, Ordering, Rule, RuleSpec};
use outrigger_core::workload::POD;
use outrigger_proto::companion::{Companion, CompanionState};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::companions::{ClaimName, Companions};

pub(crate) fn id(name: &str) -> WorkloadId {
    WorkloadId::new(name).unwrap()
}

/// An object of the API server.
pub(crate) fn object<K: DeserializeOwned>(object: Value) -> K {
    serde_json::from_value(object).unwrap()
}

/// A claim in the namespace `n`.
pub(crate) fn claim(name: &str) -> ClaimName {
    ClaimName { namespace: "n".to_owned(), name: name.to_owned() }
}

/// A rule whose expressions all have to be true.
pub(crate) fn rule(name: &str, expressions: Vec<ExpressionSpec>, ordering: Ordering) -> Arc<Rule> {
    let spec = RuleSpec {
        resource_kind: POD.into(),
        terms: vec![expressions],
        ordering,
        template: json!({}).into(),
        ..RuleSpec::new(RuleName::new(name).unwrap())
    };
    Arc::new(Rule::compile(spec).unwrap())
}

/// A companion of a rule with this ordering, as the manager reports it.
pub(crate) fn companion(rule: &str, state: CompanionState, ordering: Ordering) -> Companion {
    Companion {
        rule: rule.into(),
        state: state.into(),
        before_ready: ordering.gates(),
        before_start: ordering.holds(),
        ..Companion::default()
    }
}

/// That companion alone.
pub(crate) fn companions(rule: &str, state: CompanionState, ordering: Ordering) -> Companions {
    Companions::of(&[companion(rule, state, ordering)])
}
