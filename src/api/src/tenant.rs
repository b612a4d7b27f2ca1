//! `Tenant` (`outrigger.dev/v1alpha1`): owner of a namespace, hosts and DPUs in the infrastructure cluster.

// The derive generates the resource in a private module.
#![allow(unreachable_pub)]
// Printer columns share types.
#![allow(clippy::duplicated_attributes)]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema, ResourceExt};
use outrigger_core::field::FieldError;
use outrigger_core::ids::TenantId;
use outrigger_core::tenant::{self as domain, PodSecurity};
use outrigger_core::validate;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

mod compile;

/// TenantSpec defines a tenant of the infrastructure cluster.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "outrigger.dev",
    version = "v1alpha1",
    kind = "Tenant",
    plural = "tenants",
    shortname = "otn",
    category = "outrigger",
    status = "TenantStatus",
    doc = "Tenant defines a tenant: the namespace of its companions, the client certificates that authenticate it, its hosts and thereby its DPUs, its limits, and the permissions of its Pods.",
    validation = Rule::new("self.metadata.name.size() <= 56 && self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')")
        .message("metadata.name: must be a DNS label of at most 56 characters: lower-case letters, digits and '-'"),
    printcolumn(json_path = ".status.namespace", name = "Namespace", type_ = "string"),
    printcolumn(json_path = ".status.dpus", name = "DPUs", type_ = "integer"),
    printcolumn(json_path = ".status.stream.connected", name = "Connected", type_ = "boolean"),
    printcolumn(json_path = ".status.stream.workloads", name = "Workloads", type_ = "integer"),
    printcolumn(
        json_path = r#".status.conditions[?(@.type=="Ready")].status"#,
        name = "Ready",
        type_ = "string"
    ),
    printcolumn(json_path = ".status.enforcement", name = "Enforcement", type_ = "string"),
    printcolumn(
        json_path = r#".status.conditions[?(@.type=="Ready")].message"#,
        name = "Message",
        type_ = "string",
        priority = 1
    ),
    printcolumn(json_path = ".metadata.creationTimestamp", name = "Age", type_ = "date")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.__namespace__) == has(oldSelf.__namespace__) && (!has(self.__namespace__) || self.__namespace__ == oldSelf.__namespace__)")
    .message("spec.namespace: is immutable: Pods in the old namespace would be left without an owner. Create another Tenant"))]
pub struct TenantSpec {
    /// namespace is the namespace of the tenant's rules and companions. Defaults to `tenant-<name>`. Outrigger creates
    /// it, or adopts an existing one that has the label `outrigger.dev/tenant=<name>`. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub namespace: Option<String>,

    /// identities are the names in client certificates that authenticate the tenant: a SPIFFE id (the only URI SAN of
    /// the certificate), or a DNS name. An identity belongs to one tenant. Without identities, only a client with an
    /// administrator's certificate can act for the tenant.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 2048)), extend("x-kubernetes-list-type" = "set"))]
    pub identities: Vec<String>,

    /// hosts are the names of the tenant's hosts, which are Nodes of the tenant's cluster. A DPU is assigned to the
    /// tenant if its host label has one of these names. A host belongs to one tenant. See hostNames for hosts whose Nodes
    /// have other names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8192), inner(length(min = 1, max = 253)), extend("x-kubernetes-list-type" = "set"))]
    pub hosts: Vec<String>,

    /// hostNames are the hosts whose Nodes in the tenant's cluster have other names than the host labels of their DPUs.
    /// A host without an entry is the Node of its own name. Companions are created again where their workload's Node is
    /// in another host than before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8192), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["node"]))]
    pub host_names: Vec<HostName>,

    /// limits restrict the resources of the tenant. Requests beyond a limit are rejected; existing objects are kept.
    #[serde(default)]
    pub limits: TenantLimits,

    /// podSecurity is the level of the Pod Security Standards for the tenant's Pods: `baseline`, `restricted` or
    /// `privileged`. Defaults to `baseline`. A privileged tenant controls its DPUs completely, including the
    /// credentials of their kubelets.
    #[serde(default = "baseline")]
    #[schemars(extend("enum" = ["privileged", "baseline", "restricted"]))]
    pub pod_security: String,

    /// serviceAccounts are the service accounts that the tenant's Pods may use, in addition to `default`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 253)), extend("x-kubernetes-list-type" = "set"))]
    pub service_accounts: Vec<String>,

    /// priorityClasses are the PriorityClasses that the tenant's Pods may use, in addition to the default of the
    /// cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 253)), extend("x-kubernetes-list-type" = "set"))]
    pub priority_classes: Vec<String>,

    /// runtimeClasses are the RuntimeClasses that the tenant's Pods may use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 253)), extend("x-kubernetes-list-type" = "set"))]
    pub runtime_classes: Vec<String>,

    /// deviceClasses are the DeviceClasses that the tenant's ResourceClaims may request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 253)), extend("x-kubernetes-list-type" = "set"))]
    pub device_classes: Vec<String>,

    /// enforcement is how strictly checks that concern the tenant's own Pods alone are enforced: `Observe` or `Warn` (what they
    /// refuse is admitted with a warning) or `Enforce`. Placement, ownership, isolation and impersonation are enforced at
    /// every level. Defaults to what `--enforcement` of webhook and manager says, which is `Enforce` unless it is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["Observe", "Warn", "Enforce"]))]
    pub enforcement: Option<String>,

    /// exceptions are Pods of the tenant that single checks let through until a time, at every level of enforcement. Only
    /// checks that concern the tenant's own Pods alone can be excepted: never placement, ownership, isolation or
    /// impersonation. A Pod that an exception lets through gets a warning, and the audit log names the exception.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub exceptions: Vec<CheckException>,
}

/// CheckException lets Pods through checks until a time.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct CheckException {
    /// name identifies the exception in warnings and in the audit log: a DNS label.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,

    /// requestedBy says who asked for the exception: a person, a team or a ticket. It has no effect.
    #[schemars(length(min = 1, max = 253))]
    pub requested_by: String,

    /// checks are the checks that don't refuse these Pods.
    #[schemars(
        length(min = 1, max = 16),
        extend("items" = exceptable()),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub checks: Vec<String>,

    /// pods are the names of the Pods. `*` at the end of a name stands for any further characters, for Pods of a
    /// controller.
    #[schemars(length(min = 1, max = 64), inner(length(min = 1, max = 253)), extend("x-kubernetes-list-type" = "set"))]
    pub pods: Vec<String>,

    /// until is the time at which the exception ends. Pods that were created before keep running.
    #[schemars(extend("format" = "date-time"))]
    pub until: String,
}

/// HostName is a host of a tenant that has another name as a Node.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
pub struct HostName {
    /// node is the name of the Node in the tenant's cluster. Each Node is in one entry.
    #[schemars(length(min = 1, max = 253))]
    pub node: String,

    /// host is the value of the host label of the host's DPUs, and one of `spec.hosts`. Each host is in one entry.
    #[schemars(length(min = 1, max = 253))]
    pub host: String,
}

/// Reads a number that the API server stores with 64 bits. One that doesn't fit into 32 bits becomes the largest that does: a Tenant that
/// can't be read would end the watch of all Tenants.
fn saturating<'de, D: Deserializer<'de>>(number: D) -> Result<u32, D::Error> {
    Ok(u64::deserialize(number)?.try_into().unwrap_or(u32::MAX))
}

/// TenantLimits restricts the resources of a tenant.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct TenantLimits {
    /// companions is the maximum number of Pods in the tenant's namespace that have not terminated, enforced by a
    /// ResourceQuota. Outrigger keeps up to twice as many matches (pairs of a rule and a workload), and 1,000 more; the
    /// Ready condition of a rule reports if some of its matches are not kept.
    #[serde(deserialize_with = "saturating")]
    #[schemars(with = "i64", range(min = 0))]
    pub companions: u32,

    /// rules is the maximum number of WorkloadRules in the tenant's namespace, enforced by a ResourceQuota.
    #[serde(deserialize_with = "saturating")]
    #[schemars(with = "i64", range(min = 0))]
    pub rules: u32,

    /// ruleBytes is the maximum size of all WorkloadRules of the tenant in bytes. The size of a rule is the length of
    /// its spec as JSON, and 256 bytes for each expression, value and injection. Rules beyond the limit are rejected.
    #[schemars(with = "i64", range(min = 0))]
    pub rule_bytes: u64,

    /// workloads is the maximum number of workloads that the tenant's agent may report. Beyond it, the stream ends with
    /// RESOURCE_EXHAUSTED.
    #[serde(deserialize_with = "saturating")]
    #[schemars(with = "i64", range(min = 0))]
    pub workloads: u32,

    /// workloadBytes is the maximum size of all workloads in bytes. The size of a workload is its length in the stream,
    /// and 64 bytes for each label, annotation and group. Workloads that have no room are not served, nor is one of more
    /// than 384 KiB; the others are.
    #[schemars(with = "i64", range(min = 0))]
    pub workload_bytes: u64,

    /// ruleCallsPerSecond is the sustained rate of gRPC calls for rules. The burst is ten times as large. Calls beyond
    /// the rate are delayed, and rejected with RESOURCE_EXHAUSTED if the delay would exceed 10 s.
    #[serde(deserialize_with = "saturating")]
    #[schemars(with = "i64", range(min = 1))]
    pub rule_calls_per_second: u32,

    /// ruleBytesPerSecond is the sustained rate of message bytes in gRPC calls for rules, limited in the same way.
    #[schemars(with = "i64", range(min = 1))]
    pub rule_bytes_per_second: u64,
}

impl Default for TenantLimits {
    fn default() -> Self {
        let limits = domain::Limits::default();
        Self {
            companions: limits.companions,
            rules: limits.rules,
            rule_bytes: limits.rule_bytes,
            workloads: limits.workloads,
            workload_bytes: limits.workload_bytes,
            rule_calls_per_second: limits.rule_calls_per_second,
            rule_bytes_per_second: limits.rule_bytes_per_second,
        }
    }
}

/// TenantStatus is the observed state of a Tenant.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct TenantStatus {
    /// observedGeneration is the `metadata.generation` of the spec that this status reports on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// namespace is the namespace of the tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,

    /// enforcement is the level of enforcement: that of the spec, or that of the installation. Absent while the spec is
    /// invalid: then no Pod of the tenant is admitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforcement: Option<String>,

    /// dpus is the number of DPUs that are assigned to the tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dpus: Option<i64>,

    /// stream is the state of the tenant's workload stream. Absent if the agent has never connected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<StreamStatus>,

    /// conditions are the conditions of the tenant. Accepted: the spec is valid. NamespaceReady: the namespace exists
    /// and belongs to the tenant. HostsReady: no other tenant claims the hosts, and the DPUs in them are assigned to
    /// the tenant. WithinLimits: nothing was rejected because of a limit. Ready: all of these hold. Enforced: the level of
    /// enforcement is Enforce; it doesn't concern Ready.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// StreamStatus identifies the manager that serves a tenant's workload stream. A manager claims the stream by
/// increasing `claim` before it processes the first message. The highest claim wins; the holder of a lower one stops.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct StreamStatus {
    /// claim is the number of the current claim.
    #[schemars(with = "i64", range(min = 0))]
    pub claim: u64,

    /// holder is the name of the manager that holds the claim.
    pub holder: String,

    /// connected is true if the stream is open.
    pub connected: bool,

    /// since is the time at which the stream was opened or ended.
    pub since: Option<Time>,

    /// lastSync is the time at which the agent last sent all workloads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_sync: Option<Time>,

    /// workloads is the number of workloads at that time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workloads: Option<i64>,

    /// refused describes what was rejected because of a limit since then. Absent if nothing was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// The schema of the name of a check.
fn exceptable() -> serde_json::Value {
    serde_json::json!({"type": "string", "enum": validate::exceptable().collect::<Vec<_>>()})
}

fn baseline() -> String {
    PodSecurity::Baseline.as_str().to_owned()
}

impl Tenant {
    /// Returns the tenant's id, which is its name.
    pub fn id(&self) -> Result<TenantId, FieldError> {
        TenantId::new(&self.name_any()).map_err(|e| FieldError::new("metadata.name", e))
    }

    /// Returns the namespace that the tenant has or will have.
    pub fn target_namespace(&self) -> String {
        match &self.spec.namespace {
            Some(namespace) if !namespace.is_empty() => namespace.clone(),
            _ => domain::usual_namespace(&self.name_any()),
        }
    }
}

#[cfg(test)]
mod tests;
