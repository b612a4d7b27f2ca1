//! What is written, and when it may be.

use k8s_openapi::Resource;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaimTemplate};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use outrigger_core::gate::Hold;
use outrigger_core::keys;

use super::plan::Op;

/// Whether devices are published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Publishing {
    /// The tenant doesn't want it.
    Off,
    /// The cluster doesn't have the kinds.
    Unsupported,
    /// The agent may not read or write what it has to.
    Forbidden,
    /// The cluster doesn't have the DeviceClass that claims name, so nothing is allocated to them.
    NoClass,
    /// Pods can claim devices by which they wait before they start, and the cluster has no binding conditions.
    NoBinding,
    /// As [`Self::NoBinding`]: the agent may not read the claims whose conditions it has to write.
    BindingForbidden,
    Working,
}

/// What is written at a time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Key {
    /// The slices of the Node of this name.
    Node(String),
    /// The templates of this namespace.
    Namespace(String),
}

impl Key {
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Node(name) | Self::Namespace(name) => name,
        }
    }
}

/// A write.
#[derive(Debug, PartialEq)]
pub(super) enum Write {
    /// Writes of slices, in this order.
    Slices(Vec<Op>),
    /// Slices, by name and uid, that are deleted if the API server doesn't have the Node.
    Orphans(Vec<(String, String)>),
    CreateTemplate(Box<ResourceClaimTemplate>),
    /// Deletes the template with this uid, whose spec can't be changed.
    DeleteTemplate(Hold, String),
}

impl Write {
    /// Makes the DeviceClass of this uid the owner of what is created, so that the garbage collector deletes it after the class. If
    /// the class is deleted between the decision and the request, that is at once; without an owner it would be never.
    pub(super) fn owned_by(mut self, class: &str) -> Self {
        let owner = || {
            Some(vec![OwnerReference {
                api_version: DeviceClass::API_VERSION.to_owned(),
                kind: DeviceClass::KIND.to_owned(),
                name: keys::COMPANIONS_DRIVER.to_owned(),
                uid: class.to_owned(),
                ..OwnerReference::default()
            }])
        };
        match &mut self {
            Self::Slices(ops) => {
                for op in ops {
                    if let Op::Create(slice) = op {
                        slice.metadata.owner_references = owner();
                    }
                }
            }
            Self::CreateTemplate(template) => template.metadata.owner_references = owner(),
            Self::Orphans(_) | Self::DeleteTemplate(..) => {}
        }
        self
    }

    /// Number of requests.
    pub(super) fn cost(&self) -> f64 {
        let requests = match self {
            Self::Slices(ops) => ops.len(),
            Self::Orphans(slices) => 1 + slices.len(),
            Self::CreateTemplate(_) | Self::DeleteTemplate(..) => 1,
        };
        u32::try_from(requests).map_or(f64::MAX, f64::from)
    }
}
