//! A machine group with nodes, and guests for it. Names of Nodes begin with the group's.

use std::time::{Duration, Instant};

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use kube::api::{Api, DeleteParams, ListParams};
use kube::{Client, ResourceExt};
use outrigger_api::{Machine, MachineNodePool};
use outrigger_core::keys;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::tenant::{takes_pods, usage};
use outrigger_tests::{InWords, PATIENCE, create, eventually, holds, merge_status, until};
use serde_json::{Value, json};

/// A group, and a namespace of the same name whose guests count.
pub(super) struct Stage {
    pub(super) outrigger: &'static Outrigger,
    pub(super) client: Client,
    pub(super) group: &'static str,
}

/// Taint and label of a node, as text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Marks {
    pub(super) annotation: Option<String>,
    /// `key=value` under the domain.
    pub(super) labels: Vec<String>,
    /// `key=value:effect` under the domain.
    pub(super) taints: Vec<String>,
}

impl Stage {
    pub(super) async fn new(group: &'static str) -> Self {
        let outrigger = Outrigger::shared().await;
        let client = outrigger.plane.infra.client().await;
        let this = Self { outrigger, client, group };
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": group, "labels": {keys::INJECT_RESOURCE: "enabled"}}});
        outrigger.plane.infra.apply(&[namespace]).unwrap();
        takes_pods(&this.client, group).await;
        this
    }

    /// Makes a Node with room for so many slots of [`slot`].
    pub(super) async fn node(&self, name: &str, slots: u32) {
        let size = json!({"cpu": slots.to_string(), "memory": "64Gi", "pods": "110", "nvidia.com/gpu": "8"});
        let node = json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": self.name(name), "labels": {keys::GPU_FAMILY: "turing"}},
            "status": {"capacity": size, "allocatable": size}});
        create(&self.nodes(), &node).await.unwrap();
    }

    pub(super) fn name(&self, node: &str) -> String {
        format!("{}-{node}", self.group)
    }

    pub(super) fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    pub(super) fn machines(&self) -> Api<Machine> {
        Api::all(self.client.clone())
    }

    pub(super) fn pools(&self) -> Api<MachineNodePool> {
        Api::all(self.client.clone())
    }

    pub(super) fn sets(&self) -> Api<StatefulSet> {
        Api::namespaced(self.client.clone(), keys::CORE_NAMESPACE)
    }

    pub(super) fn services(&self) -> Api<Service> {
        Api::namespaced(self.client.clone(), keys::CORE_NAMESPACE)
    }

    pub(super) fn guests(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), self.group)
    }

    /// Applies the Machine: nodes as (name, mode, taint, type), types as (name, available).
    pub(super) fn machine(&self, pool: &[(&str, &str, bool, &str)], types: &[(&str, u32)]) {
        let types: Vec<Value> = types
            .iter()
            .map(|(name, available)| json!({"name": name, "spec": slot(), "available": available}))
            .collect();
        self.machine_of(pool, &types);
    }

    /// The same with types as the API has them.
    pub(super) fn machine_of(&self, pool: &[(&str, &str, bool, &str)], types: &[Value]) {
        let pool: Vec<Value> = pool
            .iter()
            .map(|(name, mode, taint, type_)| {
                json!({"name": self.name(name), "mode": mode, "taint": taint, "machineType": [{"name": type_}]})
            })
            .collect();
        let machine = json!({"apiVersion": "imperator.tenzen-y.io/v1alpha1", "kind": "Machine",
            "metadata": {"name": self.group, "labels": {keys::MACHINE_GROUP: self.group}},
            "spec": {"nodePool": pool, "machineTypes": types}});
        // Admission may not have seen a new node yet.
        let began = Instant::now();
        while let Err(error) = self.outrigger.plane.infra.apply(std::slice::from_ref(&machine)) {
            assert!(began.elapsed() < PATIENCE, "{error:#}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Makes a guest as it is admitted.
    pub(super) async fn guest(&self, name: &str, type_: &str) -> Pod {
        self.admit(guest(self.group, name, type_)).await
    }

    /// Makes a guest. Admission may not have seen the last status yet.
    pub(super) async fn admit(&self, guest: Value) -> Pod {
        eventually("the guest is admitted", || async { create(&self.guests(), &guest).await }).await
    }

    pub(super) async fn end(&self, name: &str) {
        self.guests().delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// Changes a guest's status, as its kubelet would.
    pub(super) async fn say(&self, name: &str, status: Value) {
        merge_status(&self.guests(), name, status).await.unwrap();
    }

    /// Waits until the usage of a type is this: maximum, reserved, used, waiting, slots.
    pub(super) async fn usage(&self, type_: &str, wanted: [u32; 5]) {
        usage(&self.machines(), self.group, type_, wanted).await;
    }

    /// Waits until a type's StatefulSet has so many replicas.
    pub(super) async fn replicas(&self, type_: &str, wanted: i32) -> StatefulSet {
        let name = format!("{}-{type_}", self.group);
        until(&format!("{name} has {wanted} replicas"), &self.sets(), &name, |set| {
            let replicas = set.spec.as_ref().and_then(|spec| spec.replicas);
            if replicas == Some(wanted) { Ok(set) } else { Err(format!("{replicas:?}")) }
        })
        .await
    }

    /// Waits until Ready of the Machine is this, with a message that holds these words.
    pub(super) async fn ready(&self, status: &str, words: &str) {
        until(&format!("Ready is {status}: {words}"), &self.machines(), self.group, |machine| {
            let generation = machine.metadata.generation;
            let conditions = machine.status.unwrap_or_default().conditions;
            let ready = conditions.iter().find(|c| c.type_ == "Ready");
            match ready {
                Some(c)
                    if c.status == status
                        && c.message.contains(words)
                        && c.observed_generation == generation =>
                {
                    Ok(())
                }
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    }

    /// Waits until the pool says this of a node.
    pub(super) async fn condition(&self, node: &str, wanted: &str) {
        let name = self.name(node);
        eventually(&format!("{name} is {wanted}"), || async {
            let pool = self.pools().get(&format!("{}-node-pool", self.group)).await;
            let all = pool.in_words()?.status.unwrap_or_default().node_pool;
            let found = all.iter().find(|entry| entry.name == name).map(|entry| entry.condition.clone());
            holds(found.as_deref() == Some(wanted), format!("{found:?}"))
        })
        .await;
    }

    pub(super) async fn marks_of(&self, node: &str) -> Result<Marks, String> {
        let node = self.nodes().get(&self.name(node)).await.in_words()?;
        let ours = |key: &str| key.starts_with("imperator.tenzen-y.io/");
        let short = |key: &str| key.trim_start_matches("imperator.tenzen-y.io/").to_owned();
        let labels = node.labels().iter().filter(|(key, _)| ours(key));
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
        let mut taints: Vec<String> = taints
            .iter()
            .filter(|taint| ours(&taint.key))
            .map(|taint| {
                format!("{}={}:{}", short(&taint.key), taint.value.clone().unwrap_or_default(), taint.effect)
            })
            .collect();
        taints.sort();
        Ok(Marks {
            annotation: node.annotations().get(keys::MACHINE_GROUP).cloned(),
            labels: labels.map(|(key, value)| format!("{}={value}", short(key))).collect(),
            taints,
        })
    }

    /// Waits until a node is marked for a type, its label `node-pool` being this.
    pub(super) async fn marked(&self, node: &str, pool: &str, taint: bool, type_: &str) {
        let mut labels = vec![format!("node-pool={pool}"), format!("{type_}={}", self.group)];
        labels.sort();
        let taints =
            if taint { labels.iter().map(|l| format!("{l}:NoSchedule")).collect() } else { Vec::new() };
        self.marks(node, Marks { annotation: Some(self.group.to_owned()), labels, taints }).await;
    }

    /// Waits until a node has these marks.
    pub(super) async fn marks(&self, node: &str, wanted: Marks) {
        eventually(&format!("{node} has {wanted:?}"), || async {
            let found = self.marks_of(node).await?;
            holds(found == wanted, format!("{found:?}"))
        })
        .await;
    }

    /// Waits for an Event on the Machine with these words.
    pub(super) async fn event(&self, reason: &str, words: &str) {
        eventually(&format!("an Event {reason}: {words}"), || async {
            let events = self.outrigger.plane.infra.get(&["events", "-n", "default"]).in_words()?;
            let about =
                |event: &&Value| event["involvedObject"]["name"] == self.group && event["reason"] == reason;
            let notes: Vec<&str> = events["items"]
                .as_array()
                .unwrap()
                .iter()
                .filter(about)
                .filter_map(|event| event["message"].as_str())
                .collect();
            holds(notes.iter().any(|note| note.contains(words)), format!("{notes:?}"))
        })
        .await;
    }

    /// The reservations of a type that are there.
    pub(super) async fn reservations(&self, type_: &str) -> Vec<Pod> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), keys::CORE_NAMESPACE);
        let labels = format!("{}={},{}={type_}", keys::MACHINE_GROUP, self.group, keys::MACHINE_TYPE);
        pods.list(&ListParams::default().labels(&labels)).await.unwrap().items
    }
}

/// A slot: a processor and a GPU.
pub(super) fn slot() -> Value {
    json!({"cpu": "1000m", "memory": "1Gi", "gpu": {"type": "nvidia.com/gpu", "num": "1", "family": "turing"}})
}

/// A guest with everything that admission gives it.
pub(super) fn guest(group: &str, name: &str, type_: &str) -> Value {
    let size = json!({"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"});
    let key = format!("imperator.tenzen-y.io/{type_}");
    let is = |key: &str, value: &str| json!({"key": key, "operator": "In", "values": [value]});
    let tolerate = |key: &str, value: &str| json!({"key": key, "operator": "Equal", "value": value, "effect": "NoSchedule"});
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": group, "labels": {keys::MACHINE_GROUP: group,
            keys::MACHINE_TYPE: type_, keys::POD_ROLE: keys::GUEST}},
        "spec": {
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [is(&key, group), is(keys::NODE_POOL, "ready"), is(keys::GPU_FAMILY, "turing")]}]}}},
            "tolerations": [tolerate(&key, group), tolerate(keys::NODE_POOL, "ready")],
            "containers": [{"name": "c", "image": "i", "resources": {"requests": size, "limits": size}}]}})
}
