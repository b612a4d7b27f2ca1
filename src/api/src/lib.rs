//! Outrigger's custom resources, one file each, and the conversions between custom resources, protobuf messages and
//! domain types.
//!
//! **In**: objects of the Kubernetes API and messages of `universe.workload.v1` and `universe.admin.workload.v1`.
//! **Out**: the domain's types; validation errors carry field paths. **Callers**: manager, webhook and agent.
//! `outrigger crd` prints the CustomResourceDefinitions from here.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests measure with the system's clocks"))]

pub mod admin_rule_wire;
pub mod admin_workload_rule;
mod change;
pub mod conditions;
pub mod device_claim;
pub mod label_selector;
pub mod machine;
pub mod namespace_offloading;
pub mod node;
mod null;
pub mod pod;
pub mod pod_claims;
pub mod prepare;
pub mod rule_wire;
pub mod tenant;
pub mod wire_bounds;
pub mod workload_rule;
pub mod workload_wire;

pub use admin_workload_rule::{AdminWorkloadRule, AdminWorkloadRuleSpec, AdminWorkloadRuleStatus};
pub use change::Change;
pub use machine::{Machine, MachineNodePool};
pub use namespace_offloading::{NamespaceOffloading, NamespaceOffloadingSpec, NamespaceOffloadingStatus};
pub use null::or_default;
pub use tenant::{StreamStatus, Tenant, TenantSpec, TenantStatus};
pub use workload_rule::{WorkloadRule, WorkloadRuleSpec, WorkloadRuleStatus};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

/// Returns the CustomResourceDefinitions that Outrigger defines, in the order in which to apply them.
pub fn crds() -> Vec<CustomResourceDefinition> {
    vec![
        Tenant::crd(),
        WorkloadRule::crd(),
        AdminWorkloadRule::crd(),
        NamespaceOffloading::crd(),
        Machine::crd(),
        MachineNodePool::crd(),
    ]
}
