//! The observed state of a companion. It is small, because there is one companion for each match.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::api::ObjectMeta;
use outrigger_core::companion::{
    Held, Observed, StreamClaim, UNREADABLE_END, annotations_size, is_owner, restarted,
};
use outrigger_core::device::{DeviceTrouble, first_trouble};
use outrigger_core::ids::{RuleName, TenantId};
use outrigger_core::index::CompanionKey;
use outrigger_core::keys;
use outrigger_core::reason::Cause;
use outrigger_core::template::Kind;
use outrigger_runtime::cache::version;
use outrigger_runtime::pod::{Condition, Container, Pod};

/// The companion of a tenant's rule that a Pod is, and its observed state; `None` for any other Pod.
pub fn observe(pod: &Pod) -> Option<(CompanionKey, Observed)> {
    let (key, rule_uid) = of_tenant(&pod.metadata)?;
    Some((key, look(pod, rule_uid)))
}

/// The companion of an admin rule that a Pod is, its tenant, and its observed state; `None` for any other Pod. To be asked of Pods in
/// the namespace of such companions only.
pub fn observe_admin(pod: &Pod) -> Option<(TenantId, CompanionKey, Observed)> {
    let (tenant, key, rule_uid) = of_admin(&pod.metadata)?;
    Some((tenant, key, look(pod, rule_uid)))
}

/// The companion of a tenant's rule that a ResourceClaim is, and its observed state; `None` for any other ResourceClaim.
pub fn observe_claim(claim: &ResourceClaim) -> Option<(CompanionKey, Observed)> {
    let (key, rule_uid) = of_tenant(&claim.metadata)?;
    Some((key, look_at_claim(claim, rule_uid)))
}

/// The companion of an admin rule that a ResourceClaim is, its tenant, and its observed state; `None` for any other ResourceClaim. To
/// be asked of ResourceClaims in the namespace of such companions only.
pub fn observe_admin_claim(claim: &ResourceClaim) -> Option<(TenantId, CompanionKey, Observed)> {
    let (tenant, key, rule_uid) = of_admin(&claim.metadata)?;
    Some((tenant, key, look_at_claim(claim, rule_uid)))
}

/// The companion that an object with this metadata is if a tenant's rule owns it, and the rule's uid.
pub(super) fn of_tenant(metadata: &ObjectMeta) -> Option<(CompanionKey, &str)> {
    let owner = metadata
        .owner_references
        .as_deref()?
        .iter()
        .find(|r| is_owner(&r.api_version, &r.kind, r.controller))?;
    Some((key(RuleName::new(&owner.name).ok()?, metadata)?, &owner.uid))
}

/// The companion that an object with this metadata is if it is in the namespace of admin companions: its tenant, its key, and the
/// rule's uid. Only the manager can write these labels and annotations there.
pub(super) fn of_admin(metadata: &ObjectMeta) -> Option<(TenantId, CompanionKey, &str)> {
    let tenant = TenantId::of_namespace(metadata.labels.as_ref()?)?;
    let annotations = metadata.annotations.as_ref()?;
    let rule = RuleName::admin(annotations.get(keys::ADMIN_RULE)?).ok()?;
    Some((tenant, key(rule, metadata)?, annotations.get(keys::RULE_UID)?))
}

/// The key of the companion that a rule has with this metadata.
fn key(rule: RuleName, metadata: &ObjectMeta) -> Option<CompanionKey> {
    let workload = metadata.labels.as_ref()?.get(keys::WORKLOAD)?.as_str().into();
    let (key, annotations) = (CompanionKey { rule, workload }, metadata.annotations.as_ref());
    let dpu = annotations.and_then(|annotations| annotations.get(keys::DPU));
    Some(dpu.map_or_else(|| key.clone(), |dpu| key.on(dpu)))
}

/// The observed state of a companion as far as its metadata shows it.
fn look_at(metadata: &ObjectMeta, rule_uid: &str) -> Observed {
    let none = BTreeMap::new();
    let annotations = metadata.annotations.as_ref().unwrap_or(&none);
    let injected: Option<Vec<String>> =
        annotations.get(keys::INJECTED).and_then(|list| serde_json::from_str(list).ok());
    let facts = injected
        .iter()
        .flatten()
        .filter_map(|name| annotations.get(name).map(|value| (name.clone(), value.clone())))
        .collect();
    Observed {
        uid: metadata.uid.clone().unwrap_or_default(),
        resource_version: version(metadata.resource_version.as_deref()),
        rule_uid: rule_uid.to_owned(),
        rule_generation: annotations
            .get(keys::RULE_GENERATION)
            .and_then(|generation| generation.parse().ok())
            .unwrap_or_default(),
        claim: annotations.get(keys::STREAM_CLAIM).and_then(|claim| StreamClaim::read(claim)),
        ended: annotations
            .get(keys::WORKLOAD_ENDED)
            .map(|end| end.parse::<Timestamp>().map_or(UNREADABLE_END, Timestamp::as_millisecond)),
        held: annotations.get(keys::ROLLOUT_HELD).and_then(|held| {
            Held::read(held, |since| Some(since.parse::<Timestamp>().ok()?.as_millisecond()))
        }),
        first: annotations.get(keys::FIRST_COMPANION).is_some_and(|first| first == "true"),
        template_hash: annotations.get(keys::TEMPLATE_HASH).cloned().unwrap_or_default(),
        content_hash: annotations.get(keys::CONTENT_HASH).cloned(),
        parts: annotations.get(keys::TEMPLATE_PARTS).cloned(),
        host: annotations.get(keys::HOST).cloned(),
        annotations: facts,
        annotations_size: annotations_size(annotations),
        injected,
        terminating: metadata.deletion_timestamp.is_some(),
        ..Observed::default()
    }
}

pub(super) fn look(pod: &Pod, rule_uid: &str) -> Observed {
    let status = pod.status.as_ref();
    let condition = |kind: &str| {
        status.and_then(|s| s.conditions.as_deref()).into_iter().flatten().find(|c| c.type_ == kind)
    };
    let ready = condition("Ready").is_some_and(|c| c.status == "True");
    let gates = pod.spec.as_ref().and_then(|s| s.scheduling_gates.as_deref()).unwrap_or_default();
    // A Pod with gates has such a condition too, before the scheduler looks for a Node.
    let unplaced = condition("PodScheduled")
        .is_some_and(|c| c.status == "False" && c.reason.as_deref() != Some("SchedulingGated"));
    let (change, trouble) = (change(pod).filter(|_| ready), trouble(pod));
    let wrong = change.or_else(|| unhealthy(pod).filter(|_| trouble != Some(Cause::Completed)));
    let message = match &wrong {
        Some((cause, words)) => format!("{cause}{words}"),
        None if ready => String::new(),
        None => why_not_ready(pod),
    };
    Observed {
        kind: Kind::Pod,
        gated: gates.iter().any(|g| g.name == keys::ADMISSION_GATE),
        unplaced,
        failed: status.and_then(|s| s.phase.as_deref()) == Some("Failed"),
        message,
        trouble: wrong.map(|(cause, _)| cause).or(trouble),
        ready,
        ..look_at(&pod.metadata, rule_uid)
    }
}

/// The observed state of a ResourceClaim, which is ready when devices are allocated to it and each of them is, by the conditions that
/// its driver writes ([`first_trouble`]).
pub(super) fn look_at_claim(claim: &ResourceClaim, rule_uid: &str) -> Observed {
    const WAITS: &str =
        "no device is allocated yet: that is done when a Pod that uses the claim is scheduled";
    let status = claim.status.as_ref();
    let allocated = status.is_some_and(|status| status.allocation.is_some());
    let trouble = status.and_then(|status| first_trouble(&serde_json::to_value(status).ok()?));
    let cause = |trouble: &DeviceTrouble| {
        if trouble.failed { Cause::DeviceBindingFailed } else { Cause::DeviceNotReady }
    };
    Observed {
        kind: Kind::Claim,
        trouble: trouble.as_ref().map(cause),
        ready: allocated && trouble.is_none(),
        message: match trouble {
            Some(DeviceTrouble { device, words, .. }) => format!("device {device}: {words}"),
            None if allocated => String::new(),
            None => WAITS.to_owned(),
        },
        ..look_at(&claim.metadata, rule_uid)
    }
}

/// What keeps a container of a Pod from running, by the kubelet's word for it, or that the Pod ended without an error. Most Pods that
/// aren't ready are starting.
pub(crate) fn trouble(pod: &Pod) -> Option<Cause> {
    let status = pod.status.as_ref()?;
    if status.phase.as_deref() == Some("Succeeded") {
        return Some(Cause::Completed);
    }
    status.container_statuses.iter().flatten().find_map(|container| {
        match container.state.as_ref()?.waiting.as_ref()?.reason.as_deref()? {
            "CrashLoopBackOff" => Some(Cause::CrashLoop),
            "ErrImagePull"
            | "ImagePullBackOff"
            | "InvalidImageName"
            | "ErrImageNeverPull"
            | "ImageInspectError"
            | "RegistryUnavailable"
            | "SignatureValidationFailed" => Some(Cause::ImageUnavailable),
            "CreateContainerConfigError"
            | "CreateContainerError"
            | "RunContainerError"
            | "PreCreateHookError"
            | "PreStartHookError"
            | "PostStartHookError" => Some(Cause::ContainerRefused),
            _ => None,
        }
    })
}

/// Whether a Pod isn't yet what it asks to be since it was changed in place, and words about that, which begin with a colon. Of images: a
/// container runs that [`keys::RESTARTS`] names. Of amounts of cpu and memory: the conditions of KEP-1287 and the kubelet's words. A condition
/// about an earlier state of the Pod says nothing, and the kubelet has not looked at the present one then.
fn change(pod: &Pod) -> Option<(Cause, String)> {
    let (status, generation) = (pod.status.as_ref()?, pod.metadata.generation.unwrap_or_default());
    let restarts = pod.metadata.annotations.as_ref().and_then(|annotations| annotations.get(keys::RESTARTS));
    let is_former = |container: &&Container| {
        let is_running = container.state.as_ref().is_some_and(|state| state.running.is_some());
        let mut former = restarts.into_iter().flat_map(|value| restarted(value)).map(|(id, _)| id);
        is_running && container.container_id.as_deref().is_some_and(|id| former.any(|former| former == id))
    };
    if let Some(Container { name, .. }) = status.containers().find(is_former) {
        return Some((Cause::Updating, format!(": container {name} still runs the earlier image")));
    }
    let is_present = |observed: Option<i64>| observed.is_none_or(|observed| observed >= generation);
    let condition = |kind: &str| {
        let conditions = status.conditions.iter().flatten();
        let mut of_kind = conditions.filter(|c| c.type_ == kind && c.status == "True");
        of_kind.find(|c| is_present(c.observed_generation))
    };
    let words = |condition: &Condition| {
        let message = condition.message.as_deref().filter(|message| !message.is_empty());
        message.map(|message| format!(": {message}")).unwrap_or_default()
    };
    if let Some(pending) = condition("PodResizePending") {
        let is_infeasible = pending.reason.as_deref() == Some("Infeasible");
        let cause = if is_infeasible { Cause::ResizeInfeasible } else { Cause::ResizeDeferred };
        return Some((cause, words(pending)));
    }
    let progress = condition("PodResizeInProgress").map(words);
    let progress = progress.map(|words| (Cause::Resizing, words));
    let cause = if restarts.is_some() { Cause::Updating } else { Cause::Resizing };
    progress.or_else(|| (!is_present(status.observed_generation)).then(|| (cause, String::new())))
}

/// That a device of a Pod is unhealthy, and words about it, which begin with a colon.
fn unhealthy(pod: &Pod) -> Option<(Cause, String)> {
    let containers = pod.status.as_ref()?.containers();
    let mut unhealthy = containers.filter_map(|container| container.devices.unhealthy.as_ref());
    unhealthy.next().map(|words| (Cause::DeviceUnhealthy, format!(": {words}")))
}

/// Why a Pod isn't ready; empty when nobody says: the scheduler's message, else a waiting container, else the message of the Pod's status.
pub fn why_not_ready(pod: &Pod) -> String {
    let Some(status) = &pod.status else { return String::new() };
    let conditions = status.conditions.as_deref().unwrap_or_default();
    if let Some(unscheduled) = conditions.iter().find(|c| c.type_ == "PodScheduled" && c.status == "False") {
        return unscheduled.message.clone().unwrap_or_default();
    }
    let waiting = status.container_statuses.iter().flatten().find_map(|c| {
        let waiting = c.state.as_ref()?.waiting.as_ref()?;
        Some(format!(
            "container {}: {}{}",
            c.name,
            waiting.reason.as_deref().unwrap_or("Waiting"),
            waiting.message.as_deref().map(|m| format!(": {m}")).unwrap_or_default()
        ))
    });
    waiting.or_else(|| status.message.clone()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixtures;

    #[test]
    fn the_end_of_a_workload_is_read_and_what_cannot_be_read_is_in_the_future() {
        let of = |annotations: serde_json::Value| {
            let metadata = json!({"resourceVersion": "7", "annotations": annotations});
            let observed = look_at(&fixtures::object(metadata), "u");
            (observed.resource_version, observed.ended)
        };
        assert_eq!(of(json!({})), (7, None));
        for (text, expected) in [
            ("1970-01-01T00:00:02Z", 2_000),
            ("1970-01-01T01:00:02.500+01:00", 2_500),
            ("", UNREADABLE_END),
            ("later", UNREADABLE_END),
        ] {
            assert_eq!(of(json!({keys::WORKLOAD_ENDED: text})), (7, Some(expected)), "{text}");
        }
    }

    #[test]
    fn a_claim_is_ready_when_its_devices_are_as_far_as_drivers_report() {
        let result = |name: &str| {
            json!({"driver": "d.example", "pool": "p", "device": name, "request": "r",
                "bindingConditions": if name == "slow" { json!(["Attached"]) } else { json!(null) },
                "bindingFailureConditions": if name == "slow" { json!(["Broken"]) } else { json!(null) }})
        };
        let of = |devices: serde_json::Value| {
            let results: Vec<_> = devices
                .as_array()
                .unwrap()
                .iter()
                .map(|device| result(device["device"].as_str().unwrap()))
                .collect();
            let claim = json!({"metadata": {}, "spec": {}, "status": {"devices": devices,
                "allocation": {"devices": {"results": results}}}});
            let Observed { ready, trouble, message, .. } = look_at_claim(&fixtures::object(claim), "u");
            (ready, trouble, message)
        };
        let with = |name: &str, kind: &str, status: &str| {
            let condition = json!({"type": kind, "status": status, "reason": "NoLink", "message": "cable",
                "lastTransitionTime": "2026-01-01T00:00:00Z"});
            json!({"driver": "d.example", "pool": "p", "device": name, "conditions": [condition]})
        };
        let device = |status: &str| with(&format!("x-{status}").to_lowercase(), "Ready", status);
        let silent = json!({"driver": "d.example", "pool": "p", "device": "x"});
        let ready = (true, None, String::new());
        assert_eq!(of(json!([])), ready);
        assert_eq!(of(json!([silent, device("True")])), ready);
        for status in ["False", "Unknown"] {
            let name = format!("x-{status}").to_lowercase();
            let message = format!("device d.example/p/{name}: Ready isn't True: NoLink cable");
            let expected = (false, Some(Cause::DeviceNotReady), message);
            assert_eq!(of(json!([silent, device("True"), device(status)])), expected);
        }
        let message = |words: &str| format!("device d.example/p/slow: {words}: NoLink cable");
        for (kind, status, cause, words) in [
            ("Attached", "True", None, String::new()),
            ("Attached", "False", Some(Cause::DeviceNotReady), message("Attached isn't True")),
            (
                "Broken",
                "True",
                Some(Cause::DeviceBindingFailed),
                message("its binding failed: Broken is True"),
            ),
        ] {
            assert_eq!(of(json!([silent, with("slow", kind, status)])), (cause.is_none(), cause, words));
        }
        let waits = json!({"metadata": {}, "spec": {}, "status": {"devices": [device("False")]}});
        let waits = look_at_claim(&fixtures::object(waits), "u");
        assert!(!waits.ready && waits.trouble.is_none(), "devices are of an earlier allocation");
    }

    #[test]
    fn conditions_of_a_resize_count_for_the_state_that_they_are_about() {
        let of = |ready: &str, observed: Option<i64>, condition: Option<serde_json::Value>| {
            let ready = json!({"type": "Ready", "status": ready});
            let conditions: Vec<_> = condition.into_iter().chain([ready]).collect();
            let status = json!({"observedGeneration": observed, "conditions": conditions});
            let pod = json!({"metadata": {"generation": 3}, "status": status});
            let observed = look(&fixtures::object::<Pod>(pod), "u");
            (observed.trouble, observed.message)
        };
        let says = |kind: &str, reason: &str, about: Option<i64>| {
            Some(
                json!({"type": kind, "status": "True", "reason": reason, "message": "m", "observedGeneration": about}),
            )
        };
        let (pending, progress) = ("PodResizePending", "PodResizeInProgress");
        let reported = |cause: Cause, words: &str| (Some(cause), format!("{cause}{words}"));
        let nothing = || (None, String::new());
        for about in [Some(3), None] {
            let of = |condition| of("True", Some(3), condition);
            assert_eq!(of(says(pending, "Deferred", about)), reported(Cause::ResizeDeferred, ": m"));
            assert_eq!(of(says(pending, "Infeasible", about)), reported(Cause::ResizeInfeasible, ": m"));
            assert_eq!(of(says(progress, "", about)), reported(Cause::Resizing, ": m"));
        }
        // About the amounts before these.
        assert_eq!(of("True", Some(3), says(pending, "Infeasible", Some(2))), nothing());
        assert_eq!(of("True", Some(2), says(pending, "Infeasible", Some(2))), reported(Cause::Resizing, ""));
        assert_eq!(of("True", None, None), nothing(), "a kubelet that doesn't say what it has seen");
        assert_eq!(of("True", Some(3), None), nothing());
        assert_eq!(of("False", Some(2), says(pending, "Infeasible", None)), nothing(), "it doesn't run");
    }

    #[test]
    fn a_container_of_an_earlier_image_counts_until_another_one_runs() {
        let of = |ready: &str, restarts: Option<&str>, running: &str, observed: Option<i64>| {
            let container = json!({"name": "c", "containerID": running, "state": {"running": {}}});
            let stopped =
                json!({"name": "i", "containerID": "x://0", "state": {"terminated": {"exitCode": 0}}});
            let status = json!({"observedGeneration": observed, "conditions": [{"type": "Ready", "status": ready}],
                "containerStatuses": [container], "initContainerStatuses": [stopped]});
            let annotations = restarts.map(|ids| json!({keys::RESTARTS: ids}));
            let pod = json!({"metadata": {"generation": 3, "annotations": annotations}, "status": status});
            let observed = look(&fixtures::object::<Pod>(pod), "u");
            (observed.trouble, observed.message)
        };
        let nothing = || (None, String::new());
        let earlier =
            (Some(Cause::Updating), "Updating: container c still runs the earlier image".to_owned());
        assert_eq!(of("True", Some("x://0=i:1 x://1=c:1"), "x://1", Some(3)), earlier);
        assert_eq!(of("True", Some("x://0=i:1 x://1=c:1"), "x://2", Some(3)), nothing());
        assert_eq!(
            of("True", Some(""), "", None),
            nothing(),
            "a kubelet that doesn't say which containers it runs"
        );
        assert_eq!(of("False", Some("x://1=c:1"), "x://1", Some(3)), nothing(), "it doesn't serve");
        // The kubelet has not looked at the present state.
        assert_eq!(of("True", Some(""), "x://1", Some(2)), (Some(Cause::Updating), "Updating".to_owned()));
        assert_eq!(of("True", None, "x://1", Some(2)), (Some(Cause::Resizing), "Resizing".to_owned()));
    }

    #[test]
    fn an_unhealthy_device_is_a_cause_whether_the_companion_is_ready_or_not() {
        let of = |phase: &str, ready: &str, health: &[&str], state: serde_json::Value| {
            let device = |(i, health): (usize, &&str)| json!({"resourceID": format!("d{i}"), "health": health, "message": "hot"});
            let devices: Vec<_> = health.iter().enumerate().map(device).collect();
            let container = json!({"name": "c", "state": state,
                "allocatedResourcesStatus": [{"name": "example.com/x"}, {"name": "claim:own/r", "resources": devices}]});
            let status = json!({"phase": phase, "conditions": [{"type": "Ready", "status": ready}],
                "containerStatuses": [{"name": "fine"}, container]});
            let pod: Pod = fixtures::object(json!({"metadata": {}, "status": status}));
            let observed = look(&pod, "u");
            (observed.trouble, observed.message)
        };
        let words = "DeviceUnhealthy: device d1 of claim:own/r is unhealthy: hot".to_owned();
        let unhealthy = (Some(Cause::DeviceUnhealthy), words);
        let (running, crashes) = (json!({"running": {}}), json!({"waiting": {"reason": "CrashLoopBackOff"}}));
        let bad = ["Healthy", "Unhealthy", "Unknown"];
        assert_eq!(of("Running", "True", &bad, running.clone()), unhealthy);
        assert_eq!(of("Running", "False", &bad, crashes.clone()), unhealthy, "that may be why");
        assert_eq!(of("Running", "False", &["Unknown"], crashes).0, Some(Cause::CrashLoop));
        assert_eq!(of("Running", "True", &["Healthy", "Unknown"], running.clone()), (None, String::new()));
        assert_eq!(of("Succeeded", "False", &bad, running).0, Some(Cause::Completed));
    }

    #[test]
    fn the_kubelets_words_become_causes() {
        let of = |phase: &str, reason: &str| {
            let status = json!({"phase": phase, "containerStatuses": [
                {"name": "fine", "state": {"running": {}}}, {"name": "c", "state": {"waiting": {"reason": reason}}}]});
            let pod: Pod = fixtures::object(json!({"metadata": {}, "status": status}));
            look(&pod, "u").trouble
        };
        for (phase, reason, expected) in [
            ("Pending", "ContainerCreating", None),
            ("Pending", "ErrImagePull", Some(Cause::ImageUnavailable)),
            ("Pending", "CreateContainerConfigError", Some(Cause::ContainerRefused)),
            ("Running", "CrashLoopBackOff", Some(Cause::CrashLoop)),
            ("Succeeded", "", Some(Cause::Completed)),
        ] {
            assert_eq!(of(phase, reason), expected, "{reason}");
        }
    }
}
