//! The devices that Pods claim which don't start before their companions (`ordering: BeforeStart`) or aren't bound before
//! (`BeforeBinding`, [`crate::binding`]), published in the tenant's cluster. It is off unless the tenant switches it on.
//!
//! **In**: what the manager reports of hosts, on the stream that [`crate::companions`] follows, and watches of the tenant's Nodes and
//! Namespaces. **Out**: ResourceSlices of the driver [`outrigger_core::keys::COMPANIONS_DRIVER`], with a device for each Pod that a
//! Node can run ([`plan`]), and ResourceClaimTemplates in each namespace whose Pods are sent. All exist before any rule does, so
//! the first Pod of a rule doesn't wait for them.
//!
//! Slices have the tenant's id as a label, and the agent changes only those of its own tenant. It warns where one of another tenant has the
//! name of one that it would create. All that is published belongs to the DeviceClass, so whoever deletes that switches it off without
//! leaving anything behind.
//!
//! A Node has devices only while the manager says that its DPU takes companions: the scheduler places Pods elsewhere otherwise. While
//! the manager says nothing, everything stays as it is. The number of writes is bounded in all and for each Node ([`board`]).

mod board;
mod plan;
mod write;
mod writer;

pub(crate) use board::Devices;
pub(crate) use write::Publishing;
pub(crate) use writer::start;
