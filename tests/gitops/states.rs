//! Each documented state as the tools judge it: `states.yaml`.

use std::collections::{BTreeMap, BTreeSet};

use outrigger_core::reason::Cause;
use outrigger_tests::root;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::gitops::judge::judge;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct States {
    kinds: Vec<String>,
    cluster: Option<String>,
    states: Vec<State>,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    state: String,
    observed: Option<i64>,
    of: Option<i64>,
    #[serde(default)]
    conditions: BTreeMap<String, String>,
    #[serde(default)]
    status: serde_json::Map<String, Value>,
    #[serde(default)]
    spec: Value,
    #[serde(default)]
    deleted: bool,
    kstatus: String,
    flux: String,
    argocd: String,
}

impl State {
    /// Type, status and reason of each condition.
    fn conditions(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        self.conditions.iter().map(|(type_, text)| {
            let (status, reason) = text.split_once(' ').unwrap();
            (type_.as_str(), status, reason)
        })
    }

    fn object(&self, kind: &str) -> Value {
        let mut object = json!({"apiVersion": api_version(kind), "kind": kind,
            "metadata": {"name": "o", "generation": 2}, "spec": self.spec});
        if self.deleted {
            object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        let conditions: Vec<Value> = self
            .conditions()
            .map(|(type_, status, reason)| {
                json!({"type": type_, "status": status, "reason": reason, "message": format!("why {type_}"),
                    "observedGeneration": self.of.unwrap_or(2), "lastTransitionTime": "2026-01-01T00:00:00Z"})
            })
            .collect();
        let mut status = self.status.clone();
        if !conditions.is_empty() {
            status.insert("conditions".into(), conditions.into());
        }
        if let Some(observed) = self.observed {
            status.insert("observedGeneration".into(), observed.into());
        }
        if !status.is_empty() {
            object["status"] = status.into();
        }
        object
    }
}

fn api_version(kind: &str) -> String {
    let crd = outrigger_api::crds().into_iter().find(|crd| crd.spec.names.kind == kind).unwrap();
    format!("{}/{}", crd.spec.group, crd.spec.versions[0].name)
}

fn all() -> Vec<States> {
    serde_yaml::from_str(include_str!("states.yaml")).unwrap()
}

/// Kinds of a group of states, and the state, in the file's order.
fn rows() -> Vec<(String, State)> {
    let of = |group: States| {
        let kinds = match group.cluster {
            Some(cluster) => format!("{} in the {cluster} cluster", group.kinds.join(", ")),
            None => group.kinds.join(", "),
        };
        group.states.into_iter().map(move |state| (kinds.clone(), state))
    };
    all().into_iter().flat_map(of).collect()
}

#[test]
fn every_state_is_validated_as_documented() {
    let states: Vec<(String, State)> = all()
        .into_iter()
        .flat_map(|group| {
            let States { kinds, states, .. } = group;
            kinds.into_iter().flat_map(move |kind| {
                states.clone().into_iter().map(move |state| (kind.clone(), state)).collect::<Vec<_>>()
            })
        })
        .collect();
    let objects: Vec<Value> = states.iter().map(|(kind, state)| state.object(kind)).collect();
    let mut wrong = Vec::new();
    for ((kind, state), verdict) in states.iter().zip(judge(&objects)) {
        let expected = [state.kstatus.as_str(), &state.flux, &state.argocd];
        if verdict.words() != expected {
            wrong.push(format!("{kind}, {}: {:?}, not {expected:?}", state.state, verdict.words()));
        }
        if verdict.argocd.message.is_empty() {
            wrong.push(format!("{kind}, {}: Argo CD shows no message", state.state));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_kind_has_every_sort_of_state_and_every_reason_exists() {
    let kinds: BTreeSet<String> = outrigger_api::crds().into_iter().map(|crd| crd.spec.names.kind).collect();
    let groups = all();
    let causes: BTreeSet<&str> = Cause::ALL.iter().map(|cause| cause.as_str()).collect();
    // With these nothing is wrong, or the agent alone uses them.
    let others =
        ["Valid", "AllReady", "StreamConnected", "Matches", "Served", "Success", "LinkDown", "NameTaken"];
    for kind in &kinds {
        let of = groups.iter().filter(|group| group.kinds.contains(kind)).flat_map(|group| &group.states);
        let states: Vec<&State> = of.collect();
        let words: BTreeSet<&str> = states.iter().map(|state| state.argocd.as_str()).collect();
        assert_eq!(words, BTreeSet::from(["Degraded", "Healthy", "Progressing"]), "{kind}");
        assert!(states.iter().any(|state| state.deleted), "{kind}");
        assert!(states.iter().any(|state| state.observed == Some(1)), "{kind}");
        assert!(states.iter().any(|state| state.observed.is_none() && state.conditions.is_empty()), "{kind}");
        for (_, _, reason) in states.iter().flat_map(|state| state.conditions()) {
            assert!(causes.contains(reason) || others.contains(&reason), "{kind}: {reason}");
        }
    }
}

#[test]
fn the_page_has_the_same_rows() {
    let page = std::fs::read_to_string(root().join("docs/gitops.md")).unwrap();
    let rows: Vec<String> = rows()
        .iter()
        .map(|(kinds, s)| format!("| {kinds} | {} | {} | {} | {} |", s.state, s.kstatus, s.flux, s.argocd))
        .collect();
    let found: Vec<&str> = page.lines().filter(|line| rows.iter().any(|row| row == line)).collect();
    assert_eq!(found, rows, "docs/gitops.md should have:\n{}\n", rows.join("\n"));
}
