//! Random operations on a few objects of each kind.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use crate::model::pair::{
    ALL, LABEL, NAMESPACE, Pair, RULES, Response, Side, delete, get, get_metadata, patch, post, put,
};

/// The kinds that are compared.
pub(crate) const KINDS: [(&str, &str, &str); 4] = [
    ("/api/v1", "configmaps", "ConfigMap"),
    ("/apis/coordination.k8s.io/v1", "leases", "Lease"),
    ("/api/v1", "pods", "Pod"),
    ("/apis/workload.universe.nvidia.com/v1alpha1", RULES.plural, RULES.kind),
];
const NAMES: [&str; 3] = ["a", "a-b", "b"];
const COLORS: [&str; 2] = ["red", "blue"];
/// How many states of an object are remembered.
const REMEMBERED: usize = 3;

/// Path of the objects of a kind.
pub(crate) fn path(kind: usize) -> String {
    let (prefix, plural, _) = KINDS[kind];
    format!("{prefix}/namespaces/{NAMESPACE}/{plural}")
}

/// States of an object as both sides have returned them, the newest last.
type States = Vec<(Value, Value)>;

/// One of the few contents of a kind. There are few, so that some writes change nothing.
fn content(kind: usize, number: u64) -> Value {
    let containers = json!([{"name": "c", "image": format!("registry.example/c:{number}")}]);
    match KINDS[kind].2 {
        "ConfigMap" => json!({"data": {"a": number.to_string(), "b": "b"}}),
        "Lease" => json!({"spec": {"holderIdentity": "h", "leaseDurationSeconds": number}}),
        "Pod" => json!({"spec": {"containers": containers}}),
        _ => {
            json!({"spec": {"resourceKind": "v1/Pod", "dpuSelectionPolicy": "SameNode", "ordering": "Parallel", "gatedWorkloads": "Wait",
            "workloadTerms": [{"matchExpressions": [{"key": ".metadata.resourceNamespace", "operator": "In", "values": ["shop"]}]}],
            "template": {
            "apiVersion": "v1", "kind": "Pod", "spec": {"containers": containers}}}})
        }
    }
}

/// A new object of a kind, which no controller writes.
pub(crate) fn object(kind: usize, name: &str, color: &str) -> Value {
    let mut object = content(kind, 1);
    object["apiVersion"] = json!(KINDS[kind].0.trim_start_matches("/apis/").trim_start_matches("/api/"));
    object["kind"] = json!(KINDS[kind].2);
    object["metadata"] = json!({"name": name, "labels": {LABEL: "yes", "color": color}});
    if KINDS[kind].2 == "Pod" {
        object["spec"]["schedulerName"] = json!("none");
        object["spec"]["automountServiceAccountToken"] = json!(false);
    }
    object
}

pub(crate) struct Operations {
    random: StdRng,
    seen: BTreeMap<(usize, &'static str), States>,
    number: u64,
}

/// A state of an object on one side.
fn side(state: &(Value, Value), side: Side) -> &Value {
    match side {
        Side::Real => &state.0,
        Side::Model => &state.1,
    }
}

impl Operations {
    pub(crate) fn new(seed: u64) -> Self {
        Self { random: StdRng::seed_from_u64(seed), seen: BTreeMap::new(), number: 0 }
    }

    fn chance(&mut self, of: f64) -> bool {
        self.random.random_bool(of)
    }

    /// One operation on a random object.
    pub(crate) async fn one(&mut self, pair: &mut Pair) {
        self.number += 1;
        let kind = self.random.random_range(0..KINDS.len());
        let name = *NAMES.choose(&mut self.random).unwrap();
        let what = format!("{} {} {name}", self.number, KINDS[kind].2);
        let responses = match self.random.random_range(0..100) {
            0..20 => self.create(pair, &what, kind, name).await,
            20..34 => self.replace(pair, &what, kind, name).await,
            34..52 => self.merge(pair, &what, kind, name).await,
            52..60 => self.json_patch(pair, &what, kind, name).await,
            60..66 => self.apply(pair, &what, kind, name).await,
            66..76 => self.status(pair, &what, kind, name).await,
            76..86 => self.delete(pair, &what, kind, name).await,
            86..92 => return self.list(pair, &what, kind).await,
            92..96 => {
                let at = format!("{}/{name}", path(kind));
                pair.both(&format!("{what}: get"), |_| get(&at)).await
            }
            _ => {
                let at = format!("{}/{name}", path(kind));
                return pair.check(&format!("{what}: get metadata"), |_| get_metadata(&at)).await;
            }
        };
        if let (Ok(mut real), Ok(model)) = responses
            && real["metadata"]["name"] == name
        {
            // The owners of fields in an old state would replace the present ones.
            real["metadata"]["managedFields"] = Value::Null;
            let states = self.seen.entry((kind, name)).or_default();
            states.push((real, model));
            let old = states.len().saturating_sub(REMEMBERED);
            states.drain(..old);
        }
    }

    /// A remembered state: usually the newest.
    fn state(&mut self, kind: usize, name: &'static str) -> Option<(Value, Value)> {
        let newest = self.chance(0.75);
        let states = self.seen.get(&(kind, name))?;
        if newest { states.last().cloned() } else { states.choose(&mut self.random).cloned() }
    }

    fn color(&mut self) -> &'static str {
        COLORS.choose(&mut self.random).unwrap()
    }

    fn content(&mut self, kind: usize) -> Value {
        content(kind, self.random.random_range(1..4))
    }

    fn object(&mut self, kind: usize, name: &str) -> Value {
        let mut object = object(kind, name, self.color());
        json_patch::merge(&mut object, &self.content(kind));
        if KINDS[kind].2 == "Pod" && self.chance(0.5) {
            object["spec"]["nodeName"] = json!("absent");
        }
        if self.chance(0.3) {
            object["metadata"]["finalizers"] = json!(["example.com/held"]);
        }
        // Other kinds have no status, and the model doesn't know their fields.
        match KINDS[kind].2 {
            "Pod" if self.chance(0.2) => object["status"] = json!({"phase": "Running"}),
            "WorkloadRule" if self.chance(0.2) => object["status"] = json!({"matched": 1}),
            _ => {}
        }
        object
    }

    async fn create(&mut self, pair: &mut Pair, what: &str, kind: usize, name: &str) -> (Response, Response) {
        let object = self.object(kind, name);
        let dry = self.chance(0.1);
        let at = format!("{}{}", path(kind), if dry { "?dryRun=All" } else { "" });
        let responses = pair.both(&format!("{what}: create, dry run {dry}"), |_| post(&at, &object)).await;
        // Its uid and resourceVersion were never stored.
        if dry { (Ok(Value::Null), Ok(Value::Null)) } else { responses }
    }

    async fn replace(
        &mut self,
        pair: &mut Pair,
        what: &str,
        kind: usize,
        name: &'static str,
    ) -> (Response, Response) {
        let at = format!("{}/{name}", path(kind));
        let state = self.state(kind, name);
        let (fresh, blind, same) = (self.chance(0.1), self.chance(0.15), self.chance(0.15));
        let change = self.content(kind);
        let color = self.color();
        let object = self.object(kind, name);
        // The model doesn't know which fields of a Pod are immutable.
        let is_pod = KINDS[kind].2 == "Pod";
        let Some(state) = state.filter(|_| !fresh || is_pod) else {
            if is_pod {
                return pair.both(&format!("{what}: get"), |_| get(&at)).await;
            }
            return pair.both(&format!("{what}: replace by a new object"), |_| put(&at, &object)).await;
        };
        let build = |of| {
            let mut object = side(&state, of).clone();
            if !same {
                object["metadata"]["labels"]["color"] = json!(color);
                if KINDS[kind].2 == "Pod" {
                    object["spec"]["containers"][0]["image"] =
                        change["spec"]["containers"][0]["image"].clone();
                } else {
                    json_patch::merge(&mut object, &change);
                }
            }
            if blind {
                object["metadata"]["resourceVersion"] = Value::Null;
            }
            put(&at, &object)
        };
        pair.both(&format!("{what}: replace, same {same}, without version {blind}"), build).await
    }

    async fn merge(
        &mut self,
        pair: &mut Pair,
        what: &str,
        kind: usize,
        name: &'static str,
    ) -> (Response, Response) {
        let at = format!("{}/{name}", path(kind));
        let state = self.state(kind, name);
        let (version, uid) = (self.chance(0.3), self.chance(0.3));
        let mut change = match self.random.random_range(0..5) {
            0 => json!({"metadata": {"labels": {"color": self.color()}}}),
            1 => json!({"metadata": {"annotations": {"note": null}}}),
            2 => json!({"metadata": {"annotations": {"note": self.number.to_string()}}}),
            3 => {
                json!({"metadata": {"finalizers": if self.chance(0.7) { json!(null) } else { json!(["example.com/held"]) }}})
            }
            _ if KINDS[kind].2 == "Pod" => json!({"status": {"phase": "Failed"}}),
            _ => self.content(kind),
        };
        if !change["metadata"].is_object() {
            change["metadata"] = json!({});
        }
        let build = |of| {
            let mut change = change.clone();
            if let Some(state) = state.as_ref().map(|state| &side(state, of)["metadata"]) {
                if version {
                    change["metadata"]["resourceVersion"] = state["resourceVersion"].clone();
                }
                if uid {
                    change["metadata"]["uid"] = state["uid"].clone();
                }
            }
            patch(&at, "merge-patch+json", &change)
        };
        pair.both(&format!("{what}: merge {change}, version {version}, uid {uid}"), build).await
    }

    async fn json_patch(
        &mut self,
        pair: &mut Pair,
        what: &str,
        kind: usize,
        name: &'static str,
    ) -> (Response, Response) {
        let at = format!("{}/{name}", path(kind));
        let state = self.state(kind, name);
        let tests = self.random.random_range(0..4);
        let color = self.color();
        let build = |of| {
            let mut all = match (tests, state.as_ref().map(|state| &side(state, of)["metadata"])) {
                (0, Some(state)) => vec![
                    json!({"op": "test", "path": "/metadata/resourceVersion", "value": state["resourceVersion"]}),
                ],
                (1, Some(state)) => {
                    vec![json!({"op": "test", "path": "/metadata/uid", "value": state["uid"]})]
                }
                (2, _) => vec![json!({"op": "test", "path": "/metadata/labels/color", "value": "red"})],
                _ => Vec::new(),
            };
            all.push(json!({"op": "add", "path": "/metadata/labels/color", "value": color}));
            patch(&at, "json-patch+json", &json!(all))
        };
        pair.both(&format!("{what}: JSON patch with test {tests}, {color}"), build).await
    }

    async fn apply(&mut self, pair: &mut Pair, what: &str, kind: usize, name: &str) -> (Response, Response) {
        let at = format!("{}/{name}?force=true&fieldManager=test", path(kind));
        let mut object = self.object(kind, name);
        // Fields that a manager applied once and not again would be removed, and an apply that changes nothing but owners of fields
        // is written. The model has no owners.
        object["metadata"]["annotations"] = json!({"note": format!("applied {}", self.number)});
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("finalizers");
        }
        if let Some(object) = object.as_object_mut() {
            object.remove("status");
        }
        if KINDS[kind].2 == "Pod" {
            object["spec"] = Value::Null;
            return pair.both(&format!("{what}: get"), |_| get(&at)).await;
        }
        pair.both(&format!("{what}: apply {object}"), |_| patch(&at, "apply-patch+yaml", &object)).await
    }

    async fn status(
        &mut self,
        pair: &mut Pair,
        what: &str,
        kind: usize,
        name: &'static str,
    ) -> (Response, Response) {
        let at = format!("{}/{name}/status", path(kind));
        let state = self.state(kind, name);
        let version = self.chance(0.5);
        let status = match KINDS[kind].2 {
            "Pod" => json!({"phase": if self.chance(0.7) { "Running" } else { "Succeeded" }}),
            _ => json!({"matched": self.random.random_range(0..3)}),
        };
        let color = self.color();
        let replace = self.chance(0.3);
        let build = |of| match &state {
            Some(state) if replace => {
                let mut object = side(state, of).clone();
                object["status"] = status.clone();
                object["metadata"]["labels"]["color"] = json!(color);
                put(&at, &object)
            }
            _ => {
                let mut change = json!({"status": status, "spec": {"resourceKind": "v1/Node"},
                    "metadata": {"labels": {"color": color}}});
                if let Some(state) = state.as_ref().filter(|_| version) {
                    change["metadata"]["resourceVersion"] =
                        side(state, of)["metadata"]["resourceVersion"].clone();
                }
                patch(&at, "merge-patch+json", &change)
            }
        };
        pair.both(&format!("{what}: status {status} {color}, replace {replace}, version {version}"), build)
            .await
    }

    async fn delete(
        &mut self,
        pair: &mut Pair,
        what: &str,
        kind: usize,
        name: &'static str,
    ) -> (Response, Response) {
        let at = format!("{}/{name}", path(kind));
        let state = self.state(kind, name);
        let choice = self.random.random_range(0..5);
        let build = |of| {
            let state = state.as_ref().map(|state| &side(state, of)["metadata"]);
            let options = match (choice, state) {
                (0, Some(state)) => json!({"preconditions": {"uid": state["uid"]}}),
                (1, Some(state)) => json!({"preconditions": {"resourceVersion": state["resourceVersion"]}}),
                (2, _) => json!({"gracePeriodSeconds": 0}),
                (3, _) => json!({"gracePeriodSeconds": 5}),
                _ => json!({}),
            };
            delete(&at, &options)
        };
        pair.both(&format!("{what}: delete with {choice}"), build).await
    }

    /// A list in pages, between which an object is written.
    async fn list(&mut self, pair: &mut Pair, what: &str, kind: usize) {
        let selector = ["", ",color=red", ",color in (red)", ",color notin (red)", ",!color"]
            .choose(&mut self.random)
            .unwrap();
        let fields = match (KINDS[kind].2, self.random.random_range(0..4)) {
            ("Pod", 0) => "spec.nodeName=absent",
            ("Pod", 1) => "status.phase!=Pending",
            (_, 2) => "metadata.name=a",
            _ => "",
        };
        let limit = self.random.random_range(0..3);
        let at = format!("{}?labelSelector={ALL}{selector}&fieldSelector={fields}&limit={limit}", path(kind));
        let at = at.replace(' ', "%20");
        let mut tokens = (String::new(), String::new());
        for page in 0..4 {
            let what = format!("{what}: page {page} of {at}");
            let token = |of| if of == Side::Real { &tokens.0 } else { &tokens.1 };
            let (real, model) = pair.both(&what, |of| get(&format!("{at}&continue={}", token(of)))).await;
            let more =
                |response: Response| response.ok()?["metadata"]["continue"].as_str().map(str::to_owned);
            let (Some(real), Some(model)) = (more(real), more(model)) else { return };
            tokens = (real, model);
            let change = json!({"metadata": {"annotations": {"paged": self.number.to_string()}}});
            let other = format!("{}/{}", path(kind), NAMES[2]);
            pair.check(&format!("{what}: write"), |_| patch(&other, "merge-patch+json", &change)).await;
        }
    }
}
