//! `WorkloadRule` (`workload.universe.nvidia.com/v1alpha1`): a tenant's request for companions of its workloads.

// The derive generates the resource in a private module.
#![allow(unreachable_pub)]
// Printer columns share types.
#![allow(clippy::duplicated_attributes)]

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{CustomResource, KubeSchema, ResourceExt};
use outrigger_core::field::{FieldError, FieldErrors};
use outrigger_core::ids::RuleName;
use outrigger_core::json::Json;
use outrigger_core::rollout;
use outrigger_core::rule::{
    self, DpuSelectionPolicy, ExpressionSpec, InjectionSpec, Operator, Rule, RuleSpec,
};
use outrigger_core::template;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::device_claim::{self, DeviceClaim};

mod status;

pub use status::WorkloadRuleStatus;

// Fields that the schema requires have a default nevertheless (`serde(default)` with `schemars(!default)`): an object that is
// older than the schema must not prevent the list from being read. Its conditions report the missing fields.
//
/// WorkloadRuleSpec selects workloads and defines their companions.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "workload.universe.nvidia.com",
    version = "v1alpha1",
    kind = "WorkloadRule",
    plural = "workloadrules",
    shortname = "wr",
    shortname = "wrule",
    category = "outrigger",
    namespaced,
    status = "WorkloadRuleStatus",
    doc = "WorkloadRule creates a companion on a DPU for each matching workload of the tenant's cluster, and deletes it with the workload.",
    printcolumn(json_path = ".spec.dpuSelectionPolicy", name = "Policy", type_ = "string"),
    printcolumn(json_path = ".status.matched", name = "Matched", type_ = "integer"),
    printcolumn(json_path = ".status.created", name = "Created", type_ = "integer"),
    printcolumn(json_path = ".status.ready", name = "Ready", type_ = "integer"),
    printcolumn(json_path = ".status.updated", name = "Updated", type_ = "integer", priority = 1),
    printcolumn(
        json_path = r#".status.conditions[?(@.type=="Accepted")].status"#,
        name = "Accepted",
        type_ = "string"
    ),
    printcolumn(
        json_path = r#".status.conditions[?(@.type=="Synced")].status"#,
        name = "Synced",
        type_ = "string"
    ),
    printcolumn(json_path = ".status.syncResult", name = "SyncResult", type_ = "string"),
    printcolumn(
        json_path = r#".status.conditions[?(@.type=="Ready")].message"#,
        name = "Message",
        type_ = "string",
        priority = 1
    ),
    printcolumn(json_path = ".metadata.creationTimestamp", name = "Age", type_ = "date")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.deviceClaims) || size(self.deviceClaims) == 0 || has(self.template.kind) && self.template.kind == 'Pod'")
    .message("is for Pods; the template is a ResourceClaim, which asks for devices itself: remove it").field_path(".deviceClaims"))]
#[x_kube(validation = Rule::new("(self.dpuSelectionPolicy == 'SameNodeAll') == (oldSelf.dpuSelectionPolicy == 'SameNodeAll')")
    .message("can't be changed to or from SameNodeAll, because its companions have other names: create another rule").field_path(".dpuSelectionPolicy"))]
pub struct WorkloadRuleSpec {
    /// resourceKind is the kind of the workloads. Only `v1/Pod` is supported.
    #[serde(default = "pod")]
    #[schemars(extend("enum" = ["v1/Pod"]))]
    pub resource_kind: String,

    /// workloadTerms select workloads. The terms are ORed: a workload that matches one of them is selected.
    #[schemars(!default, length(min = 1, max = 64))]
    #[serde(default)]
    pub workload_terms: Vec<WorkloadTerm>,

    /// workloadInfoInject lists values of the workload that are copied to the companion.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub workload_info_inject: Vec<WorkloadInfoInject>,

    /// dpuSelectionPolicy selects the DPU for the companion. SameNode: a DPU in the host on which the workload runs.
    /// SameNodePrimary, for companions that are Pods: one of them whose Node has the label
    /// `outrigger.dev.node-restriction.kubernetes.io/primary=true`, and no other one. SameNodeAll, for companions that are
    /// Pods: one companion on each of them; a rule can't be changed to or from it. Any: any DPU of the tenant. Node
    /// selectors and affinity of the template are ANDed with it. Defaults to SameNode.
    #[serde(default = "same_node")]
    #[schemars(extend("enum" = ["SameNode", "SameNodePrimary", "SameNodeAll", "Any"]))]
    pub dpu_selection_policy: String,

    /// template is the companion: a `v1/Pod` or a `resource.k8s.io/v1` ResourceClaim, with `metadata.labels`,
    /// `metadata.annotations` and `spec`. Outrigger sets its name and namespace.
    #[schemars(!default, schema_with = "template_schema")]
    #[serde(default)]
    pub template: Json,

    /// deviceClaims are claims for devices that the companion is given. Allowed for Pods only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"])
    )]
    pub device_claims: Vec<DeviceClaim>,

    /// deviceHostAttribute is the full name, `<domain>/<identifier>`, of the device attribute that holds the name of
    /// the host. If the companion is a ResourceClaim and dpuSelectionPolicy is SameNode, each request of the claim is
    /// restricted to devices whose attribute equals the node of the workload.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 96))]
    pub device_host_attribute: String,

    /// ordering defines whether a workload waits for its companion. Parallel: it doesn't. BeforeReady: it is Ready only
    /// once its companion is, by a readiness gate. BeforeStart: moreover, none of its containers starts before its
    /// companion is Ready, by a claim for a device of its node. BeforeBinding: moreover, it isn't bound to its node
    /// before; only for rules of tenants. Pods get gate and claim when they are created; it has no effect on existing
    /// Pods. The tenant's cluster needs the agent's gate for all of them, for BeforeStart and BeforeBinding also its
    /// setting companionsFirst, and for BeforeBinding Kubernetes 1.36. Defaults to Parallel.
    #[serde(default = "parallel")]
    #[schemars(extend("enum" = ["Parallel", "BeforeReady", "BeforeStart", "BeforeBinding"]))]
    pub ordering: String,

    /// lingerSeconds is the time in seconds for which a companion outlives its workload, from 0 to 3600. It counts from
    /// the end of the workload as the manager has recorded it on the companion. The companion keeps its resources and
    /// counts against quotas for that time. If the rule is deleted, or the workload exists and no longer matches, the
    /// companion is deleted immediately. Defaults to 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = outrigger_core::rule::MAX_LINGER))]
    pub linger_seconds: Option<i64>,

    /// gatedWorkloads defines when a workload with scheduling gates (`spec.schedulingGates`, as queues set them) gets its
    /// companion. Wait: when it has none any longer. Serve: at once, which has an effect with the dpuSelectionPolicy Any
    /// only, because the node of such a workload isn't known. Defaults to Wait.
    #[serde(default = "wait")]
    #[schemars(extend("enum" = ["Wait", "Serve"]))]
    pub gated_workloads: String,

    /// updateStrategy defines how existing companions are replaced after a change of the template. Defaults to
    /// RollingUpdate of a quarter of the companions at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_strategy: Option<UpdateStrategy>,
}

/// UpdateStrategy defines when companions of an earlier template are replaced, with the semantics of a DaemonSet.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.type == 'RollingUpdate' || !has(self.rollingUpdate)")
    .message("OnDelete takes no rollingUpdate; remove it").field_path(".rollingUpdate"))]
pub struct UpdateStrategy {
    /// type is RollingUpdate to replace companions immediately, a few at a time, or OnDelete to replace each companion
    /// only after it has been deleted. Defaults to RollingUpdate.
    #[serde(default = "rolling_update", rename = "type")]
    #[schemars(extend("enum" = ["RollingUpdate", "OnDelete"]))]
    pub kind: String,

    /// rollingUpdate configures the RollingUpdate strategy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rolling_update: Option<RollingUpdate>,
}

/// RollingUpdate configures the speed of a rollout.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RollingUpdate {
    /// maxUnavailable is the maximum number of companions of the rule that may be unavailable during a rollout: a
    /// number, or a percentage ("25%") that is rounded down to at least one. Companions that can't run because their
    /// host has no DPU don't count. The same maximum applies to the workloads of each owner. Defaults to 25%, and to 10% with an
    /// ordering other than Parallel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "max_unavailable_schema")]
    pub max_unavailable: Option<IntOrString>,

    /// resize defines what happens to a companion if the template changes in requests or limits of cpu and memory alone.
    /// InPlace: the running companion is resized if the cluster and its node permit that, and replaced otherwise. Containers
    /// are restarted as their resizePolicy says. Replace: the companion is replaced. Defaults to InPlace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["InPlace", "Replace"]))]
    pub resize: Option<String>,

    /// mutableFields defines what happens to a companion if the template changes in fields that Kubernetes allows to change in a
    /// running Pod: images of containers and init containers, tolerations that are added, and activeDeadlineSeconds that is set or
    /// becomes less. InPlace: the running companion is changed, which restarts containers whose image changes; init containers that have
    /// ended aren't run again. Replace: the companion is replaced. Defaults to Replace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["InPlace", "Replace"]))]
    pub mutable_fields: Option<String>,
}

/// WorkloadTerm is a list of expressions that are ANDed.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadTerm {
    /// matchExpressions are ANDed: a workload matches if all of them match.
    #[schemars(!default, length(min = 1, max = 64))]
    #[serde(default)]
    pub match_expressions: Vec<MatchExpression>,
}

/// MatchExpression is a requirement for one field of the workload, with the operators of node affinity.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!(self.operator in ['In', 'NotIn']) || has(self.values) && size(self.values) > 0")
    .message("In and NotIn need at least one value").field_path(".values"))]
#[x_kube(validation = Rule::new("!(self.operator in ['Exists', 'DoesNotExist']) || !has(self.values) || size(self.values) <= 1")
    .message("Exists and DoesNotExist take one value at most, which is ignored; remove them").field_path(".values"))]
#[x_kube(validation = Rule::new("!(self.operator in ['Gt', 'Lt']) || has(self.values) && size(self.values) == 1")
    .message("Gt and Lt take exactly one value, an integer").field_path(".values"))]
pub struct MatchExpression {
    /// key is the JSONPath of the field in the workload: `.state.nodeName`, `.metadata.resourceNamespace`,
    /// `.state.extra.labels.app`, `.state.extra.annotations['example.com/key']`.
    #[serde(default)]
    #[schemars(length(max = 1024))]
    pub key: String,

    /// operator defines how the field is compared. In: its value is one of values. NotIn: its value is none of values,
    /// or the field is absent. Exists: the field is present. DoesNotExist: the field is absent. Gt, Lt: the field is an
    /// integer that is greater or less than the value.
    #[schemars(!default, extend("enum" = ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]))]
    #[serde(default)]
    pub operator: String,

    /// values has at least one value for In and NotIn, one integer for Gt and Lt, and at most one, which is
    /// ignored, for Exists and DoesNotExist.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024))]
    pub values: Vec<String>,
}

/// WorkloadInfoInject copies a value of the workload to the companion.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadInfoInject {
    /// workloadKey is the JSONPath of the value in the workload. Absent, empty or `@`: the whole workload as JSON.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub workload_key: String,

    /// asAnnotation sets the value as an annotation of the companion.
    #[serde(default)]
    #[schemars(!default)]
    pub as_annotation: AsAnnotation,
}

/// AsAnnotation identifies an annotation of the companion.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!self.name.startsWith('outrigger.dev/') || self.name == 'outrigger.dev/workload'")
    .message("keys under outrigger.dev are set by Outrigger alone; use another").field_path(".name"))]
pub struct AsAnnotation {
    /// name is the key of the annotation.
    #[serde(default)]
    #[schemars(!default, length(min = 1, max = 317))]
    pub name: String,
}

fn pod() -> String {
    "v1/Pod".to_owned()
}

fn same_node() -> String {
    "SameNode".to_owned()
}

/// What rules do with gated workloads by default.
pub(crate) const WAIT: &str = "Wait";

pub(crate) fn wait() -> String {
    WAIT.to_owned()
}

pub(crate) fn parallel() -> String {
    rule::Ordering::default().as_str().to_owned()
}

fn rolling_update() -> String {
    rollout::UpdateStrategy::default().as_str().to_owned()
}

fn max_unavailable_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "description": "maxUnavailable is the maximum number of companions of the rule that may be unavailable during a rollout: a number, or a percentage (\"25%\") that is rounded down to at least one. Companions that can't run because their host has no DPU don't count. The same maximum applies to the workloads of each owner (a ReplicaSet, StatefulSet, DaemonSet or Job). Defaults to 25%, and to 10% with an ordering other than Parallel.",
        "pattern": "^(100|[1-9][0-9]?)%$",
        "minimum": 1,
        "maximum": 2_147_483_647,
        "x-kubernetes-int-or-string": true
    })
}

fn template_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "object",
        "description": "template is the companion: a v1/Pod or a resource.k8s.io/v1 ResourceClaim, with metadata.labels, metadata.annotations and spec. Outrigger sets its name and namespace.",
        "x-kubernetes-preserve-unknown-fields": true,
        "properties": {
            "apiVersion": {"type": "string", "description": "v1, or resource.k8s.io/v1", "maxLength": 253},
            "kind": {"type": "string", "description": "Pod, or ResourceClaim", "maxLength": 63}
        },
        "x-kubernetes-validations": [{
            "rule": "has(self.apiVersion) && self.apiVersion == (has(self.kind) && self.kind == 'ResourceClaim' ? 'resource.k8s.io/v1' : 'v1')",
            "message": "use \"v1\" for a Pod, \"resource.k8s.io/v1\" for a ResourceClaim",
            "fieldPath": ".apiVersion"
        }, {
            "rule": "has(self.kind) && self.kind in ['Pod', 'ResourceClaim']",
            "message": "use \"Pod\" or \"ResourceClaim\"",
            "fieldPath": ".kind"
        }]
    })
}

impl WorkloadRule {
    /// Returns the size of the rule as `Tenant.spec.limits.ruleBytes` counts it ([`outrigger_core::rule::size`]). A
    /// rule that is too large to be kept has no size.
    pub fn size(&self) -> u64 {
        let spec = &self.spec;
        let Ok(json) = serde_json::to_vec(spec) else { return 0 };
        let expressions = spec.workload_terms.iter().flat_map(|term| &term.match_expressions);
        let entries: usize = expressions.map(|expression| 1 + expression.values.len()).sum();
        rule::size(json.len(), entries + spec.workload_info_inject.len())
    }

    /// Returns an error for each field that was dropped because it is too large. A rule with such errors must not be
    /// forwarded.
    pub fn excess(&self) -> Vec<FieldError> {
        let claims = self.spec.device_claims.iter().enumerate();
        let claims = claims.filter_map(|(i, claim)| {
            Some((format!("spec.deviceClaims[{i}].spec"), claim.spec.as_ref()?.excess()?))
        });
        let template = self.spec.template.excess().map(|excess| ("spec.template".to_owned(), excess));
        let all = template.into_iter().chain(claims);
        all.map(|(path, excess)| FieldError::new(path, format_args!("{excess}; shorten it"))).collect()
    }

    /// Validates the rule and converts it to the type that is evaluated.
    pub fn compile(&self) -> Result<Rule, Vec<FieldError>> {
        let spec = RuleSpec::try_from(self)?;
        let mut wrong: Vec<FieldError> =
            template::check(&spec.template).into_iter().map(|error| error.below("spec")).collect();
        match Rule::compile(spec) {
            Ok(rule) if wrong.is_empty() => Ok(rule),
            Ok(_) => Err(wrong),
            Err(mut errors) => {
                errors.append(&mut wrong);
                Err(errors)
            }
        }
    }
}

/// Validates everything that the schema validates once more, because the object may be older than the schema or come from a
/// file.
impl TryFrom<&WorkloadRule> for RuleSpec {
    type Error = Vec<FieldError>;

    fn try_from(rule: &WorkloadRule) -> Result<Self, Self::Error> {
        let mut errors = Vec::new();
        let spec = &rule.spec;
        let name = RuleName::new(&rule.name_any())
            .map_err(|e| errors.refuse("metadata.name", &rule.name_any(), e.to_string()))
            .ok();
        let policy = match spec.dpu_selection_policy.as_str() {
            "" => DpuSelectionPolicy::default(),
            policy => policy.parse().unwrap_or_else(|wanted: &str| {
                errors.refuse("spec.dpuSelectionPolicy", policy, wanted);
                DpuSelectionPolicy::default()
            }),
        };
        let ordering = spec.ordering.parse().unwrap_or_else(|wanted: &str| {
            errors.refuse("spec.ordering", &spec.ordering, wanted);
            rule::Ordering::default()
        });
        let gated = Some(&spec.gated_workloads);
        let serves_gated = is_set(&mut errors, "spec.gatedWorkloads", gated, ["Serve", WAIT], false);
        let terms = terms(spec, &mut errors);
        let injection = |inject: &WorkloadInfoInject| InjectionSpec {
            workload_key: inject.workload_key.clone(),
            annotation: inject.as_annotation.name.clone(),
        };
        let default = rollout::UpdateStrategy::default_for(ordering);
        let strategy = spec.update_strategy.as_ref();
        let update = strategy.map_or(Ok(default), |strategy| update_strategy(strategy, default));
        let update = update.unwrap_or_else(|error| {
            errors.push(error);
            default
        });
        let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
        let mut is_in_place = |field: &str, value: Option<&String>, default: bool| {
            let path = format!("spec.updateStrategy.rollingUpdate.{field}");
            is_set(&mut errors, &path, value, ["InPlace", "Replace"], default)
        };
        let resizes = is_in_place("resize", rolling.and_then(|rolling| rolling.resize.as_ref()), true);
        let fields = rolling.and_then(|rolling| rolling.mutable_fields.as_ref());
        let updates = is_in_place("mutableFields", fields, false);
        match name {
            Some(name) if errors.is_empty() => Ok(RuleSpec {
                name,
                uid: rule.metadata.uid.clone().unwrap_or_default(),
                generation: rule.metadata.generation.unwrap_or_default(),
                resource_kind: spec.resource_kind.clone(),
                terms,
                injections: spec.workload_info_inject.iter().map(injection).collect(),
                policy,
                template: spec.template.clone(),
                devices: device_claim::devices(spec),
                update,
                resizes,
                updates,
                ordering,
                linger_seconds: spec.linger_seconds.unwrap_or_default(),
                serves_gated,
            }),
            _ => Err(errors),
        }
    }
}

/// Whether a field that has one of two texts has the first one. `default`: where it has none of them.
fn is_set(
    errors: &mut Vec<FieldError>,
    path: &str,
    value: Option<&String>,
    [on, off]: [&str; 2],
    default: bool,
) -> bool {
    match value.map(String::as_str) {
        None | Some("") => default,
        Some(value) if value == on || value == off => value == on,
        Some(other) => {
            errors.refuse(path, other, format!("use {on} or {off}"));
            default
        }
    }
}

fn terms(spec: &WorkloadRuleSpec, errors: &mut Vec<FieldError>) -> Vec<Vec<ExpressionSpec>> {
    let mut terms = Vec::with_capacity(spec.workload_terms.len());
    for (t, term) in spec.workload_terms.iter().enumerate() {
        let mut expressions = Vec::with_capacity(term.match_expressions.len());
        for (e, expression) in term.match_expressions.iter().enumerate() {
            let Ok(operator) = expression.operator.parse::<Operator>() else {
                errors.refuse(
                    format!("spec.workloadTerms[{t}].matchExpressions[{e}].operator"),
                    &expression.operator,
                    "use one of In, NotIn, Exists, DoesNotExist, Gt, Lt",
                );
                continue;
            };
            expressions.push(ExpressionSpec {
                key: expression.key.clone(),
                operator,
                values: expression.values.clone(),
            });
        }
        terms.push(expressions);
    }
    terms
}

/// Reads a strategy. `default`: what it is where it says nothing about `maxUnavailable`.
fn update_strategy(
    strategy: &UpdateStrategy,
    default: rollout::UpdateStrategy,
) -> Result<rollout::UpdateStrategy, FieldError> {
    match strategy.kind.as_str() {
        "" | "RollingUpdate" => {}
        "OnDelete" => return Ok(rollout::UpdateStrategy::OnDelete),
        other => {
            const USE: &str = "use RollingUpdate or OnDelete";
            return Err(FieldError::of_value("spec.updateStrategy.type", other, USE));
        }
    }
    let most = strategy.rolling_update.as_ref().and_then(|rolling| rolling.max_unavailable.as_ref());
    let Some(most) = most else { return Ok(default) };
    let text = match most {
        IntOrString::Int(count) => count.to_string(),
        // The API doesn't accept a number as a string.
        IntOrString::String(text) if text.ends_with('%') => text.clone(),
        IntOrString::String(text) => format!("{text:?}"),
    };
    text.parse().map(rollout::UpdateStrategy::RollingUpdate).map_err(|why: &str| {
        FieldError::of_value("spec.updateStrategy.rollingUpdate.maxUnavailable", text.trim_matches('"'), why)
    })
}
