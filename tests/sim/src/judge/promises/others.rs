//! Promises of the pages on tenants, devices, offloading and versions.

use super::Held::{By, Not, Tests};
use super::{Promise, REST};

pub(super) const TENANTS: &[Promise] = &[
    ("stays unassigned for three seconds", By(&["settled"])),
    ("then runs on the DPU whose label says", By(&["hosted", "placed", "facts_missing"])),
    ("A host with an entry doesn't count for the Node of its own name", By(&["hosted", REST])),
    ("Two tenants may have Nodes of one name", By(&["hosted", "slices_missing"])),
    (
        "A change of an entry deletes the companions of workloads whose Node is in another host now, and creates them there",
        By(&[REST, "facts_missing"]),
    ),
    ("Rules, facts, conditions of Pods and Nodes", By(&["facts_missing", "orders_missing"])),
    (
        "Rules, facts, conditions of Pods and Nodes",
        Not("the judge reads no condition of a Node, and of a Pod the gate alone"),
    ),
    ("At no point do both tenants have Pods there", By(&["isolated"])),
];

pub(super) const DEVICES: &[Promise] = &[
    ("The devices are those of the companion's Node", By(&["devices_missing"])),
    (
        "If somebody deletes one, the manager creates it again",
        Tests(&["each_companion_has_a_device_of_its_own_on_its_dpu"]),
    ),
    ("deleted with the last companion that names it", By(&["devices_written", "devices_missing"])),
];

pub(super) const LIQO: &[Promise] = &[
    ("so that the label is removed before the object", By(&["offloading_written"])),
    ("The manager sets the labels and writes the status", By(&["offloadings_missing"])),
];

pub(super) const GRPC: &[Promise] = &[
    (
        "Agent and manager may be one minor version apart, in either direction",
        By(&["created", "deleted", "newer", REST]),
    ),
    (
        "A peer that doesn't send them is served as before; a peer that doesn't know them ignores them",
        By(&[REST, "devices_missing"]),
    ),
    ("if it doesn't exist, the agent uses `WorkloadStream`", By(&[REST])),
];
