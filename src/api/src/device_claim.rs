//! What a rule says of devices: in the custom resource, on the wire, and to the domain.

// The derive puts the rules into a private module of its own.
#![allow(unreachable_pub)]

use kube::KubeSchema;
use outrigger_core::claim::{DeviceClaimSpec, DevicesSpec};
use outrigger_core::field::FieldError;
use outrigger_core::json::Json;
use outrigger_proto::v1;
use serde::{Deserialize, Serialize};

use crate::WorkloadRuleSpec;

/// A claim for devices that each companion Pod is given (Dynamic Resource Allocation).
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.spec) != (has(self.fromRule) && self.fromRule != '')")
    .message("needs exactly one of spec and fromRule"))]
pub struct DeviceClaim {
    /// Its name within the Pod, in `spec.resourceClaims` and in `resources.claims` of containers. The template must not have a
    /// claim of that name.
    #[serde(default)]
    #[schemars(!default, length(min = 1, max = 63))]
    pub name: String,

    /// Spec of a ResourceClaim (`resource.k8s.io/v1`). Each companion has a claim of its own, which Kubernetes makes with the
    /// Pod and deletes with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "spec_schema")]
    pub spec: Option<Json>,

    /// Name of another rule beside this one, whose template is a ResourceClaim: the companion uses the claim that it makes for
    /// the same workload, and so shares its devices with all that do.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 253))]
    pub from_rule: String,

    /// Names of the containers and init containers of the template that get the devices. Absent: all containers, and no init
    /// containers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 63)))]
    pub containers: Vec<String>,

    /// Name of the request in the claim whose devices they get. Absent: those of all requests.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 63))]
    pub request: String,
}

fn spec_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "object",
        "description": "Spec of a ResourceClaim (resource.k8s.io/v1). Each companion has a claim of its own, which Kubernetes makes with the Pod and deletes with it.",
        "x-kubernetes-preserve-unknown-fields": true
    })
}

/// What the domain checks.
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

/// Out of messages. Adds what can't be put into a custom resource.
pub(crate) fn from_wire(messages: &[v1::RuleDeviceClaim], errors: &mut Vec<FieldError>) -> Vec<DeviceClaim> {
    let mut claims = Vec::with_capacity(messages.len());
    for (i, message) in messages.iter().enumerate() {
        let spec = (!message.spec.is_empty()).then(|| serde_json::from_slice(&message.spec));
        let spec = spec.transpose().unwrap_or_else(|e| {
            let path = format!("spec.deviceClaims[{i}].spec");
            errors.push(FieldError::new(path, format_args!("is not JSON: {e}")));
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

/// Into messages.
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
