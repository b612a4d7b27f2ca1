//! `Tenant` (`outrigger.dev/v1alpha1`): who it is that has a namespace, hosts and DPUs in the infrastructure cluster.

// The derive puts the resource into a private module of its own.
#![allow(unreachable_pub)]
// Printer columns share types.
#![allow(clippy::duplicated_attributes)]

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema, ResourceExt};
use outrigger_core::field::FieldError;
use outrigger_core::ids::{TenantId, is_dns_label, is_dns_subdomain};
use outrigger_core::keys;
use outrigger_core::tenant::{self as domain, Identity, PodSecurity, Policy};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A tenant of the infrastructure cluster.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "outrigger.dev",
    version = "v1alpha1",
    kind = "Tenant",
    plural = "tenants",
    shortname = "otn",
    category = "outrigger",
    status = "TenantStatus",
    doc = "A tenant: its namespace for companions, the client certificates that speak for it, its hosts and so its DPUs, and what its Pods may do.",
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
    .message("spec.namespace: can't be changed: what runs in the old one would be nobody's. Make another Tenant"))]
pub struct TenantSpec {
    /// Namespace of its rules and companions. Absent: `tenant-<name>`. It is made, or adopted when it carries the label
    /// `outrigger.dev/tenant=<name>` already. It can't be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub namespace: Option<String>,

    /// Names in client certificates that speak for the tenant: a SPIFFE id (the certificate's only URI SAN), or a DNS
    /// name. One belongs to one tenant. Without any, only an administrator's certificate can speak for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 2048)), extend("x-kubernetes-list-type" = "set"))]
    pub identities: Vec<String>,

    /// Names of its hosts, as Nodes of the tenant cluster. A DPU whose host label names one of them is its own. One host
    /// belongs to one tenant.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8192), inner(length(min = 1, max = 253)), extend("x-kubernetes-list-type" = "set"))]
    pub hosts: Vec<String>,

    /// How much it may have. What is over a limit is refused; what is there stays.
    #[serde(default)]
    pub limits: TenantLimits,

    /// Level of the Pod Security Standards for its Pods: `baseline` (the default), `restricted`, or `privileged`. A
    /// privileged tenant has its DPUs for itself, the kubelets' credentials included.
    #[serde(default = "baseline")]
    #[schemars(extend("enum" = ["privileged", "baseline", "restricted"]))]
    pub pod_security: String,

    /// Service accounts that its Pods may have, beside `default`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 253)), extend("x-kubernetes-list-type" = "set"))]
    pub service_accounts: Vec<String>,

    /// PriorityClasses that its Pods may have, beside the cluster's default.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 253)), extend("x-kubernetes-list-type" = "set"))]
    pub priority_classes: Vec<String>,

    /// RuntimeClasses that its Pods may have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 253)), extend("x-kubernetes-list-type" = "set"))]
    pub runtime_classes: Vec<String>,

    /// DeviceClasses that its ResourceClaims may ask for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 253)), extend("x-kubernetes-list-type" = "set"))]
    pub device_classes: Vec<String>,
}

/// How much a tenant may have.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase", default)]
pub struct TenantLimits {
    /// Pods in its namespace that haven't ended, by a ResourceQuota. Of matches of its rules, pairs of a rule and a workload, twice as
    /// many are kept, and 1,000 more; a rule of which some aren't kept says so in its Ready condition.
    #[schemars(with = "i64", range(min = 0))]
    pub companions: u32,

    /// WorkloadRules in its namespace, by a ResourceQuota.
    #[schemars(with = "i64", range(min = 0))]
    pub rules: u32,

    /// Bytes of all its WorkloadRules together: of each the JSON of its spec, and 256 more for each expression, value and
    /// injection. Over the limit a rule is refused.
    #[schemars(with = "i64", range(min = 0))]
    pub rule_bytes: u64,

    /// Workloads that its agent tells of. Over the limit its stream ends with RESOURCE_EXHAUSTED.
    #[schemars(with = "i64", range(min = 0))]
    pub workloads: u32,

    /// Bytes of all those workloads together, as they come over the stream, and 64 more for each label and annotation.
    #[schemars(with = "i64", range(min = 0))]
    pub workload_bytes: u64,

    /// Calls for its rules over gRPC in a second. Ten times as many may come at once after a pause. Who is faster is slowed down,
    /// and refused with RESOURCE_EXHAUSTED where it would have to wait for more than 10 s.
    #[schemars(with = "i64", range(min = 1))]
    pub rule_calls_per_second: u32,

    /// Bytes of the messages of such calls in a second, in the same way.
    #[schemars(with = "i64", range(min = 1))]
    pub rule_bytes_per_second: u64,
}

impl Default for TenantLimits {
    fn default() -> Self {
        let domain::Limits {
            companions,
            rules,
            rule_bytes,
            workloads,
            workload_bytes,
            rule_calls_per_second,
            rule_bytes_per_second,
        } = domain::Limits::default();
        Self {
            companions,
            rules,
            rule_bytes,
            workloads,
            workload_bytes,
            rule_calls_per_second,
            rule_bytes_per_second,
        }
    }
}

/// What became of a tenant.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct TenantStatus {
    /// `metadata.generation` of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// Its namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,

    /// DPUs that are its own now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dpus: Option<i64>,

    /// Its workload stream. Absent: its agent has never connected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<StreamStatus>,

    /// Accepted: the spec can be served. NamespaceReady, HostsReady: what it needs is there. WithinLimits: nothing of it
    /// was refused for a limit. Ready: all of these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// Who serves a tenant's workload stream: a claim, raised before the first message of a stream is used. The latest claim
/// counts; whoever holds an older one stops.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct StreamStatus {
    /// Counts claims.
    #[schemars(with = "i64", range(min = 0))]
    pub claim: u64,

    /// The manager that has it.
    pub holder: String,

    /// Whether the stream is open.
    pub connected: bool,

    /// When it was opened, or when it ended.
    pub since: Option<Time>,

    /// When the tenant's workloads were last told completely.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_sync: Option<Time>,

    /// How many workloads there were then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workloads: Option<i64>,

    /// What was refused for a limit since then, if anything was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

fn baseline() -> String {
    PodSecurity::Baseline.as_str().to_owned()
}

/// Namespaces that are the cluster's or our own and never a tenant's.
const SYSTEM: [&str; 5] =
    ["default", "kube-system", "kube-public", "kube-node-lease", keys::SYSTEM_NAMESPACE];

impl Tenant {
    /// The tenant's id: its name.
    ///
    /// # Errors
    /// When the name is no id.
    pub fn id(&self) -> Result<TenantId, FieldError> {
        TenantId::new(&self.name_any()).map_err(|e| FieldError::new("metadata.name", e))
    }

    /// The namespace that it has, or will have.
    pub fn target_namespace(&self) -> String {
        match &self.spec.namespace {
            Some(namespace) if !namespace.is_empty() => namespace.clone(),
            _ => format!("tenant-{}", self.name_any()),
        }
    }

    /// The tenant as the domain knows it.
    ///
    /// # Errors
    /// Everything that is wrong with it, with paths that begin at the custom resource.
    pub fn compile(&self) -> Result<domain::Tenant, Vec<FieldError>> {
        let mut errors = Vec::new();
        let spec = &self.spec;
        let id = self.id().map_err(|e| errors.push(e)).ok();
        let namespace = self.target_namespace();
        if !is_dns_label(&namespace) || namespace.len() > 63 {
            errors.push(FieldError::new(
                "spec.namespace",
                format_args!("is {namespace:?}, no name of a namespace"),
            ));
        } else if SYSTEM.contains(&namespace.as_str()) || namespace.starts_with("kube-") {
            errors.push(FieldError::new(
                "spec.namespace",
                format_args!(
                    "is {namespace:?}, which belongs to the cluster itself or to Outrigger; choose another"
                ),
            ));
        }
        let mut identities = Vec::with_capacity(spec.identities.len());
        for (i, name) in spec.identities.iter().enumerate() {
            match Identity::new(name) {
                Ok(identity) if identities.contains(&identity) => {
                    errors.push(FieldError::new(
                        format_args!("spec.identities[{i}]"),
                        format_args!("is {name:?} a second time"),
                    ));
                }
                Ok(identity) => identities.push(identity),
                Err(e) => errors.push(FieldError::new(format_args!("spec.identities[{i}]"), e)),
            }
        }
        let hosts = names("hosts", &spec.hosts, &mut errors);
        let level = match spec.pod_security.as_str() {
            "" => Some(PodSecurity::Baseline),
            other => PodSecurity::of(other),
        };
        if level.is_none() {
            let message = format!("is {:?}; use privileged, baseline or restricted", spec.pod_security);
            errors.push(FieldError::new("spec.podSecurity", message));
        }
        let service_accounts = names("serviceAccounts", &spec.service_accounts, &mut errors);
        let priority_classes = names("priorityClasses", &spec.priority_classes, &mut errors);
        let runtime_classes = names("runtimeClasses", &spec.runtime_classes, &mut errors);
        let device_classes = names("deviceClasses", &spec.device_classes, &mut errors);
        match (id, level) {
            (Some(tenant), Some(pod_security)) if errors.is_empty() => Ok(domain::Tenant {
                namespace,
                identities,
                hosts,
                limits: domain::Limits {
                    companions: spec.limits.companions,
                    rules: spec.limits.rules,
                    rule_bytes: spec.limits.rule_bytes,
                    workloads: spec.limits.workloads,
                    workload_bytes: spec.limits.workload_bytes,
                    rule_calls_per_second: spec.limits.rule_calls_per_second,
                    rule_bytes_per_second: spec.limits.rule_bytes_per_second,
                },
                policy: Policy {
                    tenant,
                    pod_security,
                    service_accounts,
                    priority_classes,
                    runtime_classes,
                    device_classes,
                },
            }),
            _ => Err(errors),
        }
    }
}

/// Names of Kubernetes objects, each once.
fn names(field: &str, list: &[String], errors: &mut Vec<FieldError>) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (i, name) in list.iter().enumerate() {
        let path = || format!("spec.{field}[{i}]");
        if !is_dns_subdomain(name) {
            errors.push(FieldError::new(
                path(),
                format_args!(
                    "is {name:?}, no name: use lower-case letters, digits, '-' and '.', at most 253"
                ),
            ));
        } else if !names.insert(name.clone()) {
            errors.push(FieldError::new(path(), format_args!("is {name:?} a second time; remove it")));
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn errors(name: &str, spec: serde_json::Value) -> Vec<String> {
        let tenant: Tenant = serde_json::from_value(json!({
            "apiVersion": "outrigger.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": name}, "spec": spec}))
        .unwrap();
        tenant.compile().err().unwrap_or_default().into_iter().map(|e| e.path).collect()
    }

    #[test]
    fn the_least_that_is_a_tenant() {
        let tenant: Tenant = serde_json::from_value(json!({
            "apiVersion": "outrigger.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": "blue"}, "spec": {}}))
        .unwrap();
        let tenant = tenant.compile().unwrap();
        assert_eq!(tenant.namespace, "tenant-blue");
        assert_eq!(tenant.limits, domain::Limits::default());
        assert_eq!(tenant.policy, Policy::new(TenantId::new("blue").unwrap()));
    }

    #[test]
    fn each_field_wrong_in_turn() {
        let long = "x".repeat(57);
        assert_eq!(errors(&long, json!({"namespace": "x"})), ["metadata.name"]);
        assert_eq!(errors(&long, json!({})), ["metadata.name", "spec.namespace"]);
        for (spec, path) in [
            (json!({"namespace": "kube-system"}), "spec.namespace"),
            (json!({"namespace": "outrigger-system"}), "spec.namespace"),
            (json!({"namespace": "default"}), "spec.namespace"),
            (json!({"namespace": "A"}), "spec.namespace"),
            (json!({"identities": ["a.b", "spiffe://x"]}), "spec.identities[1]"),
            (json!({"identities": ["a.b", "a.b"]}), "spec.identities[1]"),
            (json!({"hosts": ["h", "h"]}), "spec.hosts[1]"),
            (json!({"hosts": ["h", "H"]}), "spec.hosts[1]"),
            (json!({"podSecurity": "none"}), "spec.podSecurity"),
            (json!({"serviceAccounts": [""]}), "spec.serviceAccounts[0]"),
            (json!({"priorityClasses": ["a b"]}), "spec.priorityClasses[0]"),
            (json!({"runtimeClasses": ["/"]}), "spec.runtimeClasses[0]"),
            (json!({"deviceClasses": ["x", "x"]}), "spec.deviceClasses[1]"),
        ] {
            assert_eq!(errors("blue", spec), [path]);
        }
    }
}
