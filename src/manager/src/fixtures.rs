//! What tests of several modules need: a manager that serves the tenant `blue`, its rule `r`, and workloads.

use std::collections::BTreeMap;
use std::sync::Arc;

use clap::{Args, FromArgMatches};
use kube::Client;
use outrigger_core::ids::{RuleName, TenantId, WorkloadId};
use outrigger_core::index::CompanionKey;
use outrigger_core::texts::Texts;
use outrigger_core::workload::{Orchestrator, Workload};
use outrigger_runtime::environment::Environment;
use prometheus_client::registry::Registry;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::args::ManagerArgs;
use crate::context::Context;
use crate::state::TenantState;
use crate::state::stream::RaisedClaim;

/// The object that this JSON is.
#[track_caller]
pub(crate) fn object<K: DeserializeOwned>(json: Value) -> K {
    serde_json::from_value(json).unwrap()
}

/// The companion of the rule `r` for a workload.
pub(crate) fn key(workload: &str) -> CompanionKey {
    CompanionKey { rule: RuleName::new("r").unwrap(), workload: workload.into() }
}

/// The settings of a manager that is given none.
pub(crate) fn args() -> ManagerArgs {
    args_of(&[]).unwrap()
}

/// The settings of a manager with these flags.
pub(crate) fn args_of(flags: &[&str]) -> Result<ManagerArgs, clap::Error> {
    let command = ManagerArgs::augment_args(clap::Command::new("manager"));
    ManagerArgs::from_arg_matches(&command.try_get_matches_from([&["manager"], flags].concat())?)
}

/// The context of a manager with default settings and this client.
pub(crate) fn context(client: Client) -> Arc<Context> {
    context_in(client, Environment::system())
}

/// The same with other clocks.
pub(crate) fn context_in(client: Client, environment: Environment) -> Arc<Context> {
    context_of(args(), client, environment)
}

/// The same with other settings.
pub(crate) fn context_of(args: ManagerArgs, client: Client, environment: Environment) -> Arc<Context> {
    Context::new(args, client, environment, &mut Registry::default())
}

/// The state of the tenant `blue`.
pub(crate) fn state_of_blue(context: &Context) -> Arc<TenantState> {
    context.states.set_tenant("tenant-blue", TenantId::new("blue").ok());
    context.states.state("tenant-blue")
}

/// The same where its stream is this replica's.
pub(crate) fn served_tenant(context: &Context) -> Arc<TenantState> {
    let state = state_of_blue(context);
    connect(&state);
    state
}

/// A stream of the state's tenant begins, and its claim is raised. Returns the stream's number.
pub(crate) fn connect(state: &TenantState) -> u64 {
    let mut data = state.lock();
    let stream = data.stream.begin(1, Environment::system().clock.now()).unwrap().number;
    let raised = RaisedClaim { uid: "u".to_owned(), resource_version: 1, claim: 1 };
    data.stream.claimed(stream, raised).unwrap();
    stream
}

/// The Tenant `blue`, with the claim of this holder on its stream.
pub(crate) fn tenant_claimed(claim: u64, holder: &str) -> Value {
    json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": "Tenant",
        "metadata": {"name": "blue", "uid": "u", "resourceVersion": (8 + claim).to_string()},
        "spec": {"identities": ["spiffe://outrigger/tenant/blue"], "hosts": []},
        "status": {"stream": {"claim": claim, "holder": holder, "connected": true}}})
}

/// The rule `r` of the tenant `blue`, which matches every workload.
pub(crate) fn rule() -> Value {
    json!({"apiVersion": "workload.universe.nvidia.com/v1alpha1", "kind": "WorkloadRule",
        "metadata": {"name": "r", "namespace": "tenant-blue", "uid": "u", "generation": 1, "resourceVersion": "1"},
        "spec": {"dpuSelectionPolicy": "Any",
            "workloadTerms": [{"matchExpressions": [{"key": "@", "operator": "Exists"}]}],
            "template": {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "c"}]}}}})
}

/// The same as an admin rule.
pub(crate) fn admin_rule() -> Value {
    let mut rule = rule();
    rule["kind"] = json!("AdminWorkloadRule");
    rule["metadata"]["namespace"] = json!("universe");
    rule
}

pub(crate) fn workload(id: &str) -> Workload {
    Workload {
        id: WorkloadId::new(id).unwrap(),
        orchestrator: Orchestrator::Kubernetes,
        resource_type: "v1/Pod".into(),
        resource_namespace: "ns".into(),
        resource_name: "web".into(),
        node_name: None,
        ready: true,
        labels: Texts::default(),
        annotations: Texts::default(),
        extra: BTreeMap::new(),
        groups: Vec::new(),
        withheld: Vec::new(),
        revision: 0,
        gated: false,
    }
}
