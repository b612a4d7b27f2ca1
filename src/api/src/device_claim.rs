//! Device claims of a rule: as a custom resource, as a protobuf message, and as a domain type.

// The derive generates the validation rules in a private module.
#![allow(unreachable_pub)]

use kube::KubeSchema;
use outrigger_core::claim::{DeviceClaimSpec, DevicesSpec};
use outrigger_core::field::{FieldError, FieldErrors};
use outrigger_core::json::Json;
use outrigger_proto::v1;
use serde::{Deserialize, Serialize};

use crate::WorkloadRuleSpec;

/// DeviceClaim describes a claim for devices that each companion Pod is given (Dynamic Resource Allocation).
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.spec) != (has(self.fromRule) && self.fromRule != '')")
    .message("needs exactly one of spec and fromRule"))]
pub struct DeviceClaim {
    /// name is the name of the claim within the Pod, as in `spec.resourceClaims` and in `resources.claims` of
    /// containers. The template must not define a claim of the same name.
    #[serde(default)]
    #[schemars(!default, length(min = 1, max = 63))]
    pub name: String,

    /// spec is the spec of a ResourceClaim (`resource.k8s.io/v1`). Kubernetes creates one claim for each companion and
    /// deletes it with the Pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "spec_schema")]
    pub spec: Option<Json>,

    /// fromRule is the name of another rule of the same namespace whose template is a ResourceClaim. The companion uses
    /// the claim that this rule creates for the same workload, and shares its devices with the other companions that
    /// use it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 253))]
    pub from_rule: String,

    /// containers are the names of the containers and init containers of the template that get the devices. Defaults to
    /// all containers, without init containers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 63)))]
    pub containers: Vec<String>,

    /// request is the name of the request in the claim whose devices the containers get. Defaults to the devices of all
    /// requests.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 63))]
    pub request: String,
}

fn spec_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "object",
        "description": "spec is the spec of a ResourceClaim (resource.k8s.io/v1). Kubernetes creates one claim for each companion and deletes it with the Pod.",
        "x-kubernetes-preserve-unknown-fields": true
    })
}

/// Converts the device claims of a rule to the type that the domain validates.
pub(crate) fn devices(spec: &WorkloadRuleSpec) -> DevicesSpec {
    let claim = |claim: &DeviceClaim| DeviceClaimSpec {
        name: claim.name.clone(),
        spec: claim.spec.clone(),
        from_rule: claim.from_rule.clone(),
        containers: claim.containers.clone(),
        request: claim.request.clone(),
    };
    DevicesSpec {
        claims: spec.device_claims.iter().map(claim).collect(),
        host_attribute: spec.device_host_attribute.clone(),
    }
}

/// Converts messages to device claims. Adds an error for each spec that is not JSON.
pub(crate) fn from_wire(messages: &[v1::RuleDeviceClaim], errors: &mut Vec<FieldError>) -> Vec<DeviceClaim> {
    let mut claims = Vec::with_capacity(messages.len());
    for (i, message) in messages.iter().enumerate() {
        let spec = (!message.spec.is_empty()).then(|| serde_json::from_slice(&message.spec));
        let spec = spec.transpose().unwrap_or_else(|e| {
            let path = format!("spec.deviceClaims[{i}].spec");
            errors.add(path, format_args!("is not JSON: {e}"));
            None
        });
        claims.push(DeviceClaim {
            name: message.name.clone(),
            spec,
            from_rule: message.from_rule.clone(),
            containers: message.containers.clone(),
            request: message.request.clone(),
        });
    }
    claims
}

/// Converts device claims to messages.
pub(crate) fn to_wire(claims: &[DeviceClaim]) -> Vec<v1::RuleDeviceClaim> {
    let message = |claim: &DeviceClaim| v1::RuleDeviceClaim {
        name: claim.name.clone(),
        spec: claim.spec.as_ref().map(|spec| spec.text().as_bytes().to_vec().into()).unwrap_or_default(),
        from_rule: claim.from_rule.clone(),
        containers: claim.containers.clone(),
        request: claim.request.clone(),
    };
    claims.iter().map(message).collect()
}
