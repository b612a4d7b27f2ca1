//! The kinds that a model serves.

use serde_json::{Value, json};

use super::resize;

/// A kind of objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelKind {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// API version.
    pub version: &'static str,
    /// Plural name, as in URLs.
    pub plural: &'static str,
    /// Name, as in objects.
    pub kind: &'static str,
    /// Whether its objects are in namespaces.
    pub namespaced: bool,
    /// Whether it has the subresource `status`.
    pub has_status_subresource: bool,
    /// Whether its objects have a generation, which changes with everything but metadata and status.
    pub spec_generation: bool,
}

const fn kind(
    group: &'static str,
    version: &'static str,
    plural: &'static str,
    kind: &'static str,
) -> ModelKind {
    ModelKind {
        group,
        version,
        plural,
        kind,
        namespaced: true,
        has_status_subresource: false,
        spec_generation: false,
    }
}

const fn cluster(kind: ModelKind) -> ModelKind {
    ModelKind { namespaced: false, ..kind }
}

const fn with_status(kind: ModelKind) -> ModelKind {
    ModelKind { has_status_subresource: true, ..kind }
}

const fn with_generation(kind: ModelKind) -> ModelKind {
    ModelKind { spec_generation: true, ..kind }
}

/// Namespaces, without which a model accepts objects in any namespace.
pub const NAMESPACES: ModelKind = cluster(with_status(kind("", "v1", "namespaces", "Namespace")));
/// Pods.
pub const PODS: ModelKind = with_generation(with_status(kind("", "v1", "pods", "Pod")));

/// The kinds of Kubernetes that Outrigger reads or writes.
pub const BUILT_IN: &[ModelKind] = &[
    NAMESPACES,
    PODS,
    cluster(with_status(kind("", "v1", "nodes", "Node"))),
    kind("", "v1", "configmaps", "ConfigMap"),
    kind("", "v1", "secrets", "Secret"),
    with_status(kind("", "v1", "services", "Service")),
    with_status(kind("", "v1", "resourcequotas", "ResourceQuota")),
    with_generation(with_status(kind("apps", "v1", "statefulsets", "StatefulSet"))),
    kind("coordination.k8s.io", "v1", "leases", "Lease"),
    kind("events.k8s.io", "v1", "events", "Event"),
    with_generation(with_status(kind("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget"))),
    kind("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding"),
    with_status(kind("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim")),
    kind("resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate"),
    cluster(with_generation(kind("resource.k8s.io", "v1", "deviceclasses", "DeviceClass"))),
    cluster(with_generation(kind("resource.k8s.io", "v1", "resourceslices", "ResourceSlice"))),
    cluster(kind("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass")),
];

/// Whether Kubernetes itself has kinds in this group and version.
pub(super) fn is_built_in(group: &str, version: &str) -> bool {
    BUILT_IN.iter().any(|kind| (kind.group, kind.version) == (group, version))
}

impl ModelKind {
    /// A kind that a CustomResourceDefinition with the subresource `status` defines.
    pub const fn custom(
        group: &'static str,
        version: &'static str,
        plural: &'static str,
        name: &'static str,
        namespaced: bool,
    ) -> Self {
        Self { namespaced, ..with_generation(with_status(kind(group, version, plural, name))) }
    }

    /// `apiVersion` of its objects.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// The resource with its group, as messages name it.
    pub fn resource(&self) -> String {
        if self.group.is_empty() { self.plural.to_owned() } else { format!("{}.{}", self.plural, self.group) }
    }

    /// Whether a CustomResourceDefinition defines it.
    pub(super) fn is_custom(&self) -> bool {
        !BUILT_IN.iter().any(|other| (other.group, other.plural) == (self.group, self.plural))
    }

    /// Whether a replacement may come without a resourceVersion.
    pub(super) fn allows_unconditional_update(&self) -> bool {
        matches!(self.group, "" | "apps" | "rbac.authorization.k8s.io" | "scheduling.k8s.io")
            && !self.is_custom()
    }

    /// Whether a replacement of an absent object creates it.
    pub(super) fn allows_create_on_update(&self) -> bool {
        matches!(
            (self.group, self.plural),
            ("coordination.k8s.io", "leases") | ("rbac.authorization.k8s.io", _)
        )
    }

    /// Sets what the API server sets in a new object of its own accord, as far as Outrigger reads it.
    pub(super) fn set_defaults(&self, object: &mut Value) {
        match (self.group, self.plural) {
            ("", "pods") => {
                resize::set_requests(object);
                object["status"] = json!({"phase": "Pending", "qosClass": resize::class(object)});
            }
            ("", "namespaces") => {
                object["spec"] = json!({"finalizers": ["kubernetes"]});
                object["status"] = json!({"phase": "Active"});
                let name = object["metadata"]["name"].clone();
                object["metadata"]["labels"]["kubernetes.io/metadata.name"] = name;
            }
            _ => {}
        }
    }

    /// Removes the status of a new object, which only the subresource sets.
    pub(super) fn drop_status(&self, object: &mut Value) {
        if self.has_status_subresource
            && let Some(object) = object.as_object_mut()
        {
            object.remove("status");
        }
    }

    /// Whether an object's field can be selected by.
    pub(super) fn selectable(&self, field: &str) -> bool {
        match field {
            "metadata.name" => true,
            "metadata.namespace" => self.namespaced,
            "spec.nodeName" | "status.phase" | "spec.restartPolicy" | "spec.schedulerName" => {
                self.plural == "pods" || (self.plural == "namespaces" && field == "status.phase")
            }
            "reason" | "regarding.kind" | "regarding.name" => self.group == "events.k8s.io",
            "spec.unschedulable" => self.plural == "nodes",
            "spec.driver" => self.plural == "resourceslices",
            _ => false,
        }
    }
}
