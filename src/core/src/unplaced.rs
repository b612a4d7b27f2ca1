//! Why the scheduler finds no Node for a companion.
//!
//! The scheduler says for how many Nodes of the whole cluster which of its checks failed first. Those about labels and taints
//! are mostly about other tenants' DPUs, so they are made again here, for the tenant's own. All others are about Nodes that have
//! passed these two, and so the tenant's. Of the scheduler's own words the tenant reads the names of what the companion asks for.

use serde_json::{Value, json};

use crate::json::Json;
use crate::keys;
use crate::node::{Node, Unmet, unmet, untolerated};
use crate::reason::Cause;
use crate::rule::DpuSelectionPolicy;
use crate::selector::product;
use crate::steps::step;
use crate::tenant::nodes::Taint;

/// The parts of a rule that decide on which DPUs of a host or a tenant companions may run, as a Pod.
pub(crate) fn wants(policy: DpuSelectionPolicy, template: &Value) -> Json {
    let part = |field: &str| template.pointer(&format!("/spec/{field}"));
    let [selector, tolerations, affinity] = [
        "nodeSelector",
        "tolerations",
        "affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution",
    ]
    .map(part);
    let mut pod = json!({"spec": {"nodeSelector": selector, "tolerations": tolerations,
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": affinity}}}});
    // What isn't of the API's shape stays as it is: admission says so.
    let _ = product::and(&mut pod, &policy.terms());
    pod.into()
}

/// Words of the scheduler that aren't about labels and taints (`ErrReason` in its plugins, and what they say before they look at
/// Nodes), in lower case. Those of volumes come before those of claims: a PersistentVolumeClaim is named in both. The first two are about
/// binding conditions of devices (`ErrDeviceBindingFailed`, `ErrDeviceBindingTimeout`), and contain a driver's own words.
const WORDS: [(&str, Cause); 15] = [
    ("device binding failed", Cause::DeviceBindingFailed),
    ("device binding timeout", Cause::DeviceNotReady),
    ("insufficient ", Cause::Unschedulable),
    ("too many pods", Cause::Unschedulable),
    ("free ports", Cause::PortTaken),
    ("pod affinity", Cause::PodsApart),
    ("anti-affinity", Cause::PodsApart),
    ("topology spread", Cause::PodsApart),
    ("volume", Cause::VolumeUnavailable),
    ("pvc", Cause::VolumeUnavailable),
    ("free storage", Cause::VolumeUnavailable),
    ("available disk", Cause::VolumeUnavailable),
    ("claim", Cause::DeviceUnavailable),
    ("device", Cause::DeviceUnavailable),
    ("cannot fit resource", Cause::DeviceUnavailable),
];

/// The cause that the scheduler's message names, unless that is labels or taints, and what there isn't enough of.
pub fn scheduler_cause(message: &str) -> Option<(Cause, String)> {
    // The next sentence is about what would have to be preempted or deallocated (`no new claims to deallocate, preemption: ...`).
    let message = message.split(". ").next().unwrap_or_default();
    let lower = message.to_ascii_lowercase();
    let (_, cause) = WORDS.iter().find(|(words, _)| lower.contains(words))?;
    let mut short: Vec<&str> = message.split("Insufficient ").skip(1).map(resource).collect();
    short.sort_unstable();
    short.dedup();
    let words = if short.is_empty() { String::new() } else { format!("Insufficient {}", short.join(", ")) };
    Some((*cause, words))
}

/// The name of a resource that a text begins with.
fn resource(text: &str) -> &str {
    text.split([',', ' ']).next().unwrap_or_default().trim_end_matches('.')
}

/// The cause that the scheduler's message alone suggests, where nothing is known of the template and the DPUs.
pub fn guess(message: &str) -> Option<Cause> {
    let of_labels = || message.contains("node affinity/selector").then_some(Cause::NoMatchingDpu);
    scheduler_cause(message).map(|(cause, _)| cause).or_else(of_labels)
}

/// Why a companion has no Node, and what of its template is the reason. `wants`: [`crate::rule::Rule::wants`]. `dpus`: those of the
/// tenant that it may run on by its rule. Taints by which Outrigger keeps others away are tolerated.
pub fn why<'a>(message: &str, wants: &Json, dpus: impl IntoIterator<Item = &'a Node>) -> (Cause, String) {
    if let Some(cause) = scheduler_cause(message) {
        return cause;
    }
    let pod = wants.tree();
    // Requirements that each DPU so far doesn't meet, and whether none meets all of them.
    let (mut common, mut none_matches) = (None::<Vec<String>>, true);
    let mut taint = None;
    for dpu in dpus {
        step();
        let lacking: Vec<String> = unmet(&pod, dpu).iter().map(Unmet::requirement).collect();
        if lacking.is_empty() {
            none_matches = false;
            match untolerated(&pod, dpu).find(|taint| !keys::is_own(&taint.key)) {
                Some(found) => taint = taint.or(Some(found)),
                // Labels and taints are as they should be.
                None => return (Cause::Unschedulable, String::new()),
            }
        }
        common = Some(match common {
            Some(common) => common.into_iter().filter(|one| lacking.contains(one)).collect(),
            None => lacking,
        });
    }
    match (common, taint) {
        (None, _) => (Cause::NoMatchingDpu, "there is no DPU that it may run on".to_owned()),
        (_, Some(taint)) => (of_taint(taint), words_of(taint)),
        (Some(common), None) if none_matches && common.is_empty() => {
            (Cause::NoMatchingDpu, "each DPU lacks another part of nodeSelector and node affinity".to_owned())
        }
        (Some(common), None) => (Cause::NoMatchingDpu, format!("no DPU has {}", common.join(", "))),
    }
}

/// Kubernetes' own taints say that the Node isn't as it should be.
fn of_taint(taint: &Taint) -> Cause {
    if taint.key.starts_with("node.kubernetes.io/") { Cause::DpuNotReady } else { Cause::DpuTainted }
}

fn words_of(Taint { key, value, effect }: &Taint) -> String {
    let equals = if value.is_empty() { "" } else { "=" };
    format!("the taint is {key}{equals}{value}:{effect}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn dpu(labels: &[(&str, &str)], taint: Option<&str>) -> Node {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let taint =
            taint.map(|key| Taint { key: key.into(), value: String::new(), effect: "NoSchedule".into() });
        Node {
            name: "n".into(),
            labels: labels.collect::<BTreeMap<_, _>>(),
            taints: taint.into_iter().collect(),
            unschedulable: false,
        }
    }

    #[test]
    fn the_scheduler_is_believed_about_everything_but_labels_and_taints() {
        for (message, cause, words) in [
            (
                "0/3 nodes are available: 1 Insufficient cpu, 1 Insufficient memory, 2 node(s) didn't match Pod's node affinity/selector. \
              preemption: 0/3 nodes are available: 1 No preemption victims found for incoming pod, 2 Preemption is not helpful for scheduling.",
                Some(Cause::Unschedulable),
                "Insufficient cpu, memory",
            ),
            ("0/1 nodes are available: 1 Too many pods.", Some(Cause::Unschedulable), ""),
            (
                "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector. no new claims to deallocate, preemption: \
                 0/3 nodes are available: 3 Preemption is not helpful for scheduling.",
                None,
                "",
            ),
            (
                "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports.",
                Some(Cause::PortTaken),
                "",
            ),
            (
                "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.",
                Some(Cause::VolumeUnavailable),
                "",
            ),
            (
                "0/1 nodes are available: persistentvolumeclaim \"x\" not found.",
                Some(Cause::VolumeUnavailable),
                "",
            ),
            (
                "0/1 nodes are available: 1 node(s) didn't match PersistentVolume's node affinity.",
                Some(Cause::VolumeUnavailable),
                "",
            ),
            ("0/1 nodes are available: 1 cannot allocate all claims.", Some(Cause::DeviceUnavailable), ""),
            (
                "running PreBind plugin \"DynamicResources\": device binding failed: claim=c, reason=NoLink, message=\"volume gone\"",
                Some(Cause::DeviceBindingFailed),
                "",
            ),
            (
                "running PreBind plugin \"DynamicResources\": device binding timeout: claim=c",
                Some(Cause::DeviceNotReady),
                "",
            ),
            (
                "0/1 nodes are available: 1 node(s) didn't match pod anti-affinity rules.",
                Some(Cause::PodsApart),
                "",
            ),
            (
                "0/1 nodes are available: 1 node(s) didn't match pod topology spread constraints.",
                Some(Cause::PodsApart),
                "",
            ),
            (
                "0/6 nodes are available: 3 node(s) didn't match Pod's node affinity/selector, 3 node(s) had untolerated taint(s). \
              preemption: 0/6 nodes are available: 6 Preemption is not helpful for scheduling.",
                None,
                "",
            ),
            ("", None, ""),
        ] {
            assert_eq!(scheduler_cause(message), cause.map(|cause| (cause, words.to_owned())), "{message}");
            let labels = message.contains("selector").then_some(Cause::NoMatchingDpu);
            assert_eq!(guess(message), cause.or(labels));
        }
    }

    #[test]
    fn what_no_dpu_has_is_named() {
        let expression = |key: &str| json!({"key": key, "operator": "In", "values": ["x", "y"]});
        let terms =
            json!({"nodeSelectorTerms": [{"matchExpressions": [expression("zone"), expression("disk")]}]});
        let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}});
        let wants = wants(
            DpuSelectionPolicy::Any,
            &json!({"spec": {"nodeSelector": {"model": "bf9", "a": "b"}, "affinity": affinity}}),
        );
        let of = |dpus: &[Node]| why("0/2 nodes are available", &wants, dpus);
        let complete = [("model", "bf9"), ("a", "b"), ("zone", "x"), ("disk", "y")];
        let without = |keys: &[&str]| {
            let left: Vec<_> = complete.iter().copied().filter(|(key, _)| !keys.contains(key)).collect();
            dpu(&left, None)
        };
        let none = |words: &str| (Cause::NoMatchingDpu, words.to_owned());
        assert_eq!(of(&[]), none("there is no DPU that it may run on"));
        assert_eq!(
            of(&[without(&["model", "a"]), without(&["model"])]),
            none("no DPU has nodeSelector model=bf9")
        );
        assert_eq!(
            of(&[without(&["a", "disk", "zone"]), without(&["a", "disk"])]),
            none("no DPU has nodeSelector a=b, node affinity disk In [x, y]")
        );
        assert_eq!(
            of(&[without(&["a"]), without(&["disk"])]),
            none("each DPU lacks another part of nodeSelector and node affinity")
        );
        let primary = super::wants(DpuSelectionPolicy::SameNodePrimary, &json!({"spec": {}}));
        let label = format!("no DPU has node affinity {} In [true]", keys::PRIMARY);
        assert_eq!(
            why("", &primary, &[dpu(&complete, None), dpu(&[(keys::PRIMARY, "false")], None)]),
            none(&label)
        );
        // One that has everything, and doesn't take the companion.
        assert_eq!(of(&[without(&["a"]), without(&[])]), (Cause::Unschedulable, String::new()));
        let tainted = |key: &str| [without(&["a"]), dpu(&complete, Some(key))];
        let words = |key: &str| format!("the taint is {key}:NoSchedule");
        assert_eq!(of(&tainted("k")), (Cause::DpuTainted, words("k")));
        let not_ready = "node.kubernetes.io/not-ready";
        assert_eq!(of(&tainted(not_ready)), (Cause::DpuNotReady, words(not_ready)));
        assert_eq!(why("1 Insufficient cpu.", &wants, &[]).1, "Insufficient cpu");
    }
}
