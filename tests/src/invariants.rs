//! What must hold at every moment of a history ([`crate::history`]), whatever crashes or lags.

use std::collections::{BTreeMap, BTreeSet};

use outrigger_core::keys;
use serde_json::Value;

use crate::history::{Change, Side};

/// An object that may not be deleted between two revisions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// The object.
    pub uid: String,
    /// What it is, for people.
    pub what: String,
    /// From the state of this revision on.
    pub from: u64,
    /// To the state of this revision, or for ever.
    pub to: Option<u64>,
}

/// The least number of ready companions of a namespace between two revisions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Available {
    /// The namespace.
    pub namespace: String,
    /// How many there are at least.
    pub least: usize,
    /// From the state of this revision on.
    pub from: u64,
    /// To the state of this revision, or for ever.
    pub to: Option<u64>,
}

/// What must hold beside what always must.
#[derive(Debug, Clone, Default)]
pub struct Expectations {
    /// Objects that stay.
    pub holds: Vec<Hold>,
    /// Companions that are ready.
    pub available: Vec<Available>,
    /// Slots of machine types: group, type, how many.
    pub slots: Vec<(String, String, usize)>,
}

fn within(from: u64, to: Option<u64>, revision: u64) -> bool {
    revision > from && to.is_none_or(|to| revision <= to)
}

/// The clusters at one revision.
#[derive(Default)]
struct State<'a> {
    pods: BTreeMap<&'a str, &'a Value>,
    claims: BTreeMap<&'a str, &'a Value>,
    /// By name.
    nodes: BTreeMap<&'a str, &'a Value>,
    /// By name: whose they are.
    namespaces: BTreeMap<&'a str, &'a str>,
    /// Rules of tenants' clusters by uid.
    sources: BTreeMap<&'a str, &'a Value>,
}

fn text<'a>(object: &'a Value, path: &str) -> &'a str {
    object.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

fn uid(object: &Value) -> &str {
    text(object, "/metadata/uid")
}

fn name(object: &Value) -> &str {
    text(object, "/metadata/name")
}

fn label<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object["metadata"]["labels"][key].as_str()
}

fn ended(pod: &Value) -> bool {
    matches!(text(pod, "/status/phase"), "Succeeded" | "Failed")
}

fn ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "True")
        && pod["metadata"]["deletionTimestamp"].is_null()
}

/// Rule, workload and, where each has its own, DPU that an object is the companion of.
fn key(object: &Value) -> Option<(&str, &str, &str, Option<&str>)> {
    let dpu = object["metadata"]["annotations"][keys::DPU].as_str();
    Some((
        text(object, "/metadata/namespace"),
        label(object, keys::RULE)?,
        label(object, keys::WORKLOAD)?,
        dpu,
    ))
}

/// Everything that was wrong at some revision, each once, in words.
pub fn violations(changes: &[Change], expected: &Expectations) -> Vec<String> {
    let mut found = BTreeSet::new();
    let mut reports = Vec::new();
    let mut state = State::default();
    for change in changes {
        state.apply(change);
        let mut now = state.wrong(expected, change.revision);
        now.extend(deleted(change, expected));
        now.extend(state.without_finalizer(change));
        for words in now {
            if found.insert(words.clone()) {
                reports.push(format!("revision {}: {words}", change.revision));
            }
        }
    }
    reports
}

/// Objects that were to stay.
fn deleted(change: &Change, expected: &Expectations) -> Vec<String> {
    let object = &change.object;
    if !change.gone && object["metadata"]["deletionTimestamp"].is_null() {
        return Vec::new();
    }
    let holds = expected.holds.iter();
    holds
        .filter(|hold| hold.uid == uid(object) && within(hold.from, hold.to, change.revision))
        .map(|hold| format!("{} is deleted and should have stayed", hold.what))
        .collect()
}

impl<'a> State<'a> {
    fn apply(&mut self, change: &'a Change) {
        let object = &change.object;
        let (map, key) = match (change.side, change.kind.as_str()) {
            (Side::Infra, "Pod") => (&mut self.pods, uid(object)),
            (Side::Infra, "ResourceClaim") => (&mut self.claims, uid(object)),
            (Side::Infra, "Node") => (&mut self.nodes, name(object)),
            (Side::Tenant, "WorkloadRule") => (&mut self.sources, uid(object)),
            (Side::Infra, "Namespace") => {
                if let Some(tenant) = label(object, keys::TENANT) {
                    self.namespaces.insert(name(object), tenant);
                }
                return;
            }
            _ => return,
        };
        if change.gone {
            map.remove(key);
        } else {
            map.insert(key, object);
        }
    }

    fn wrong(&self, expected: &Expectations, revision: u64) -> Vec<String> {
        let mut wrong = self.doubles();
        wrong.extend(self.strangers());
        wrong.extend(self.overbooked(expected));
        let available = expected.available.iter().filter(|a| within(a.from, a.to, revision));
        wrong.extend(available.filter_map(|a| self.too_few(a)));
        wrong
    }

    /// Two companions for a pair of rule and workload.
    fn doubles(&self) -> Vec<String> {
        let mut seen: BTreeMap<_, &str> = BTreeMap::new();
        let mut wrong = Vec::new();
        for object in self.pods.values().chain(self.claims.values()) {
            let Some(key) = key(object) else { continue };
            if let Some(other) = seen.insert(key, name(object)) {
                wrong.push(format!("{other} and {} are companions for one {key:?}", name(object)));
            }
        }
        wrong
    }

    /// Pods of a tenant on Nodes that aren't its own.
    fn strangers(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        for pod in self.pods.values().filter(|pod| !ended(pod)) {
            let namespace = text(pod, "/metadata/namespace");
            let of_namespace = self.namespaces.get(namespace).copied();
            let Some(tenant) = of_namespace.or_else(|| label(pod, keys::TENANT)) else { continue };
            let Some(node) = self.nodes.get(text(pod, "/spec/nodeName")) else { continue };
            let owner = label(node, keys::NODE_TENANT);
            if owner != Some(tenant) {
                wrong.push(format!(
                    "Pod {namespace}/{} of {tenant} is on {}, which belongs to {owner:?}",
                    name(pod),
                    name(node)
                ));
            }
        }
        wrong
    }

    /// Machine types with more guests than slots.
    fn overbooked(&self, expected: &Expectations) -> Vec<String> {
        let guests = |group: &str, type_: &str| {
            let is = |pod: &&&Value| {
                label(pod, keys::POD_ROLE) == Some(keys::GUEST)
                    && label(pod, keys::MACHINE_GROUP) == Some(group)
                    && label(pod, keys::MACHINE_TYPE) == Some(type_)
                    && !ended(pod)
            };
            self.pods.values().filter(is).count()
        };
        let slots = expected.slots.iter();
        slots
            .filter_map(|(group, type_, slots)| {
                let guests = guests(group, type_);
                (guests > *slots)
                    .then(|| format!("{guests} guests have the {slots} slots of {group}/{type_}"))
            })
            .collect()
    }

    fn too_few(&self, available: &Available) -> Option<String> {
        let of_it = |pod: &&&Value| {
            text(pod, "/metadata/namespace") == available.namespace && key(pod).is_some() && ready(pod)
        };
        let count = self.pods.values().filter(of_it).count();
        (count < available.least).then(|| {
            format!(
                "{count} companions in {} are ready, at least {} should be",
                available.namespace, available.least
            )
        })
    }

    /// A rule that an agent has made although its source could go without it.
    fn without_finalizer(&self, change: &Change) -> Option<String> {
        let object = &change.object;
        if change.side != Side::Infra || change.kind != "WorkloadRule" || change.gone {
            return None;
        }
        let origin = object["metadata"]["annotations"][keys::ORIGIN].as_str()?;
        if !object["metadata"]["deletionTimestamp"].is_null() {
            return None;
        }
        let source = self.sources.get(origin)?;
        let finalizers = source["metadata"]["finalizers"].as_array().map(Vec::as_slice).unwrap_or_default();
        let held = finalizers.iter().any(|finalizer| finalizer == keys::RULE_FINALIZER);
        (!held).then(|| format!("rule {} is there and its source has no finalizer", name(object)))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn change(revision: u64, kind: &str, object: Value, gone: bool) -> Change {
        Change { revision, side: Side::Infra, kind: kind.to_owned(), object, gone }
    }

    fn pod(uid: &str, node: &str, labels: Value) -> Value {
        json!({"metadata": {"uid": uid, "name": uid, "namespace": "tenant-blue", "labels": labels}, "spec": {"nodeName": node}})
    }

    fn companion(uid: &str) -> Value {
        pod(uid, "", json!({keys::RULE: "r", keys::WORKLOAD: "w"}))
    }

    fn node(owner: Value) -> Change {
        change(1, "Node", json!({"metadata": {"name": "dpu", "labels": {keys::NODE_TENANT: owner}}}), false)
    }

    fn namespace() -> Change {
        change(
            1,
            "Namespace",
            json!({"metadata": {"name": "tenant-blue", "labels": {keys::TENANT: "blue"}}}),
            false,
        )
    }

    #[test]
    fn two_companions_of_one_workload_are_found_and_a_successor_is_not() {
        let none = Expectations::default();
        let [first, second] = ["a", "b"].map(companion);
        let both = [change(1, "Pod", first.clone(), false), change(2, "Pod", second.clone(), false)];
        assert_eq!(violations(&both, &none).len(), 1);
        let after = [
            change(1, "Pod", first.clone(), false),
            change(2, "Pod", first.clone(), true),
            change(3, "Pod", second.clone(), false),
        ];
        assert_eq!(violations(&after, &none), Vec::<String>::new());
        let mixed = [change(1, "Pod", first, false), change(2, "ResourceClaim", second, false)];
        assert_eq!(violations(&mixed, &none).len(), 1);
    }

    #[test]
    fn a_pod_on_anothers_node_is_found_whichever_of_both_comes_last() {
        let none = Expectations::default();
        let there = |revision| change(revision, "Pod", pod("a", "dpu", json!({})), false);
        for owner in [json!("red"), Value::Null] {
            assert_eq!(violations(&[namespace(), node(owner.clone()), there(2)], &none).len(), 1);
            let mut later = node(owner);
            later.revision = 3;
            assert_eq!(violations(&[namespace(), node(json!("blue")), there(2), later], &none).len(), 1);
        }
        assert_eq!(violations(&[namespace(), node(json!("blue")), there(2)], &none), Vec::<String>::new());
        let mut ended = there(2);
        ended.object["status"] = json!({"phase": "Failed"});
        assert_eq!(violations(&[namespace(), node(json!("red")), ended], &none), Vec::<String>::new());
    }

    #[test]
    fn a_deletion_counts_only_while_the_object_is_held() {
        let hold = |from, to| Expectations {
            holds: vec![Hold { uid: "a".to_owned(), what: "it".to_owned(), from, to }],
            ..Expectations::default()
        };
        let history = [change(1, "Pod", companion("a"), false), change(5, "Pod", companion("a"), true)];
        assert_eq!(violations(&history, &hold(1, None)).len(), 1);
        assert_eq!(violations(&history, &hold(1, Some(5))).len(), 1);
        assert_eq!(violations(&history, &hold(1, Some(4))).len(), 0);
        assert_eq!(violations(&history, &hold(5, None)).len(), 0);
        let mut terminating = companion("a");
        terminating["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(violations(&[change(2, "Pod", terminating, false)], &hold(1, None)).len(), 1);
    }

    #[test]
    fn more_guests_than_slots_are_found() {
        let guest = |uid: &str| {
            let labels =
                json!({keys::POD_ROLE: keys::GUEST, keys::MACHINE_GROUP: "g", keys::MACHINE_TYPE: "t"});
            change(1, "Pod", pod(uid, "", labels), false)
        };
        let slots = |count| Expectations {
            slots: vec![("g".to_owned(), "t".to_owned(), count)],
            ..Expectations::default()
        };
        let history = [guest("a"), guest("b")];
        assert_eq!(violations(&history, &slots(2)).len(), 0);
        assert_eq!(violations(&history, &slots(1)).len(), 1);
    }

    #[test]
    fn too_few_that_are_ready_are_found() {
        let mut up = companion("a");
        up["status"] = json!({"conditions": [{"type": "Ready", "status": "True"}]});
        let available = Available { namespace: "tenant-blue".to_owned(), least: 1, from: 1, to: None };
        let expected = Expectations { available: vec![available], ..Expectations::default() };
        let history = [change(1, "Pod", up.clone(), false), change(2, "Pod", up.clone(), false)];
        assert_eq!(violations(&history, &expected).len(), 0);
        up["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        let history = [history, [change(3, "Pod", up.clone(), false), change(4, "Pod", up, true)]].concat();
        assert_eq!(violations(&history, &expected).len(), 1, "each is reported once");
    }

    #[test]
    fn a_rule_whose_source_could_go_without_it_is_found() {
        let source = |finalizers: Value| Change {
            side: Side::Tenant,
            ..change(1, "WorkloadRule", json!({"metadata": {"uid": "s", "finalizers": finalizers}}), false)
        };
        let made = change(
            2,
            "WorkloadRule",
            json!({"metadata": {"uid": "m", "name": "r", "annotations": {keys::ORIGIN: "s"}}}),
            false,
        );
        let none = Expectations::default();
        assert_eq!(violations(&[source(json!([])), made.clone()], &none).len(), 1);
        assert_eq!(violations(&[source(json!([keys::RULE_FINALIZER])), made], &none).len(), 0);
    }
}
