//! The fields of guests and reservations that slots depend on.

use kube::ResourceExt;
use outrigger_core::keys;
use outrigger_core::machine::reservation_name;
use outrigger_core::machine::usage::PodState;
use outrigger_core::reason::Cause;
use outrigger_runtime::pod::Pod;

use crate::companions::observe::trouble;

pub(super) type Slot = (String, String);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Role {
    /// It takes a slot.
    Guest,
    /// It holds one open. Its number in its StatefulSet.
    Reservation(u32),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PodSummary {
    pub(super) slot: Slot,
    pub(super) role: Role,
    pub(super) state: PodState,
    /// What keeps the container of a reservation from running.
    pub(super) trouble: Option<Cause>,
}

impl PodSummary {
    /// `None` for a Pod that is neither. Labels alone make no reservation: it has to be in the core namespace, and made by its
    /// StatefulSet.
    pub(super) fn of(pod: &Pod, core_namespace: &str) -> Option<Self> {
        let label = |key: &str| pod.labels().get(key).cloned();
        let slot = (label(keys::MACHINE_GROUP)?, label(keys::MACHINE_TYPE)?);
        let role = match label(keys::POD_ROLE)?.as_str() {
            keys::GUEST => Role::Guest,
            keys::RESERVATION if pod.metadata.namespace.as_deref() == Some(core_namespace) => {
                let set = reservation_name(&slot.0, &slot.1);
                let made = |owner: &k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference| {
                    owner.controller == Some(true) && owner.kind == "StatefulSet" && owner.name == set
                };
                if !pod.owner_references().iter().any(made) {
                    return None;
                }
                let name = pod.name_any();
                Role::Reservation(name.strip_prefix(&set)?.strip_prefix('-')?.parse().ok()?)
            }
            _ => return None,
        };
        let status = pod.status.as_ref();
        let conditions = || status.and_then(|status| status.conditions.as_ref()).into_iter().flatten();
        let state = PodState {
            phase: status.and_then(|status| status.phase.clone()).unwrap_or_default(),
            node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).filter(|node| !node.is_empty()),
            deleting: pod.metadata.deletion_timestamp.is_some(),
            gated: pod.is_gated(),
            unschedulable: conditions().any(|c| {
                c.type_ == "PodScheduled"
                    && c.status == "False"
                    && c.reason.as_deref() == Some("Unschedulable")
            }),
            containers_ready: conditions().any(|c| c.type_ == "ContainersReady" && c.status == "True"),
        };
        let trouble = if role == Role::Guest { None } else { trouble(pod) };
        Some(Self { slot, role, state, trouble })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use serde_json::{Value, json};

    fn seen(namespace: &str, name: &str, role: &str, owner: Value) -> Option<Role> {
        let pod = json!({"metadata": {"name": name, "namespace": namespace, "ownerReferences": owner,
            "labels": {keys::MACHINE_GROUP: "g", keys::MACHINE_TYPE: "t", keys::POD_ROLE: role}}});
        PodSummary::of(&fixtures::object(pod), "core").map(|seen| seen.role)
    }

    #[test]
    fn a_reservation_whose_program_ends_is_in_trouble_and_a_guest_is_its_users_own() {
        let of = |role: &str, waiting: Value| {
            let owner = json!([{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "g-t", "uid": "u", "controller": true}]);
            let pod = json!({"metadata": {"name": "g-t-0", "namespace": "core", "ownerReferences": owner,
                "labels": {keys::MACHINE_GROUP: "g", keys::MACHINE_TYPE: "t", keys::POD_ROLE: role}},
                "status": {"containerStatuses": [{"name": "c", "state": {"waiting": waiting}}]}});
            PodSummary::of(&fixtures::object(pod), "core").unwrap().trouble
        };
        let again = json!({"reason": "CrashLoopBackOff"});
        assert_eq!(of("reservation", again.clone()), Some(Cause::CrashLoop));
        assert_eq!(of("reservation", json!({"reason": "ContainerCreating"})), None);
        assert_eq!(of("guest", again), None);
    }

    #[test]
    fn a_reservation_is_made_by_its_statefulset_in_the_core_namespace() {
        let by = |kind: &str, name: &str, controller: bool| json!([{"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": "u", "controller": controller}]);
        let ours = by("StatefulSet", "g-t", true);
        assert_eq!(seen("core", "g-t-7", "reservation", ours.clone()), Some(Role::Reservation(7)));
        for (namespace, name, owner) in [
            // Imperator counts these too.
            ("other", "g-t-7", ours.clone()),
            ("core", "g-t-7", json!([])),
            ("core", "g-t-7", by("StatefulSet", "g-t", false)),
            ("core", "g-t-7", by("StatefulSet", "x", true)),
            ("core", "g-t-7", by("ReplicaSet", "g-t", true)),
            ("core", "g-t-x", ours.clone()),
            ("core", "g-u-7", ours),
        ] {
            assert_eq!(seen(namespace, name, "reservation", owner), None, "{namespace} {name}");
        }
        assert_eq!(seen("other", "p", "guest", json!([])), Some(Role::Guest));
        assert_eq!(seen("core", "p", "host", json!([])), None);
    }
}
