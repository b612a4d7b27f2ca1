//! A namespace with nodes, and where its Pods are scheduled.

use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use outrigger_api::NamespaceOffloading;
use outrigger_core::keys;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::tenant::{namespace, node_of, takes_pods};
use outrigger_tests::{InWords, dry_run, eventually, holds, until};
use serde_json::{Value, json};

pub(crate) const REQUIRED: &str =
    "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";

/// A namespace with a local node and two virtual ones: `us`, in the cluster `us-1`, and `eu`, in none.
pub(crate) struct Stage {
    pub(crate) outrigger: &'static Outrigger,
    pub(super) client: Client,
    pub(crate) name: &'static str,
}

impl Stage {
    pub(crate) async fn new(name: &'static str) -> Self {
        let outrigger = Outrigger::shared().await;
        let client = outrigger.plane.infra.client_without_retries().await;
        let this = Self { outrigger, client, name };
        let virtual_node = |region: &str, more: Value| {
            let mut labels = json!({keys::NODE_TYPE: keys::VIRTUAL_NODE, "region": region, "stage": name});
            labels.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": this.node(region), "labels": labels},
                "spec": {"taints": [{"key": keys::NOT_ALLOWED, "value": "true", "effect": "NoExecute"}]}})
        };
        let objects = [
            namespace(name),
            json!({"apiVersion": "v1", "kind": "Node",
                "metadata": {"name": this.node("local"), "labels": {"region": "local", "stage": name}}}),
            virtual_node("us", json!({keys::REMOTE_CLUSTER: "us-1"})),
            virtual_node("eu", json!({})),
        ];
        outrigger.plane.infra.apply(&objects).unwrap();
        takes_pods(&this.client, name).await;
        this
    }

    pub(super) fn node(&self, name: &str) -> String {
        format!("{}-{name}", self.name)
    }

    pub(super) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), self.name)
    }

    pub(super) fn objects(&self) -> Api<NamespaceOffloading> {
        Api::namespaced(self.client.clone(), self.name)
    }

    /// Applies the NamespaceOffloading with the selector region=us, or with none.
    pub(super) fn ask(&self, strategy: &str, selects: bool) -> Result<(), String> {
        let mut spec =
            json!({"podOffloadingStrategy": strategy, "clusterSelector": {"nodeSelectorTerms": []}});
        if selects {
            spec["clusterSelector"]["nodeSelectorTerms"] =
                json!([{"matchExpressions": [{"key": "region", "operator": "In", "values": ["us"]}]}]);
        }
        self.outrigger.plane.infra.apply(&[offloading(self.name, spec)]).in_words()
    }

    /// A Pod that wants to be on this stage, as it would be admitted.
    pub(super) async fn admitted(&self) -> Result<Value, String> {
        let pod = pod("dry", json!({"nodeSelector": {"stage": self.name}}));
        let pod = dry_run(&self.pods(), &pod).await.in_words()?;
        Ok(serde_json::to_value(pod).unwrap())
    }

    /// A Pod that asks for nothing, as it would be admitted.
    pub(crate) async fn admitted_plain(&self) -> Result<Value, String> {
        let pod = dry_run(&self.pods(), &pod("dry", json!({}))).await.in_words()?;
        Ok(serde_json::to_value(pod).unwrap())
    }

    /// Waits until Pods get so many terms, none where they are left alone.
    pub(super) async fn terms(&self, count: usize) {
        eventually(&format!("Pods get {count} terms"), || async {
            let pod = self.admitted().await?;
            let terms = pod.pointer(REQUIRED).and_then(Value::as_array).map_or(0, Vec::len);
            holds(terms == count, format!("{terms}"))
        })
        .await;
    }

    /// Waits until admission has let Pods onto virtual nodes, or has not.
    pub(super) async fn tolerated(&self, tolerated: bool) {
        eventually(&format!("Pods tolerate virtual nodes: {tolerated}"), || async {
            let pod = self.admitted().await?;
            let is = tolerates(&pod);
            holds(is == tolerated, pod["spec"]["tolerations"].to_string())
        })
        .await;
    }

    /// Makes a Deployment whose Pods want a region, or any of the stage.
    pub(super) fn deploy(&self, name: &str, replicas: usize, region: Option<&str>) {
        let mut selector = json!({"stage": self.name});
        if let Some(region) = region {
            selector["region"] = json!(region);
        }
        let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": name, "namespace": self.name},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"nodeSelector": selector, "containers": [{"name": "c", "image": "i"}]}}}});
        self.outrigger.plane.infra.apply(&[deployment]).unwrap();
    }

    /// Waits until each of so many Pods of an app is on a Node, and returns the regions.
    pub(super) async fn landed(&self, app: &str, count: usize) -> Vec<String> {
        eventually(&format!("{count} Pods of {app} have landed"), || async {
            let params = ListParams::default().labels(&format!("app={app}"));
            let all = self.pods().list(&params).await.in_words()?.items;
            let nodes: Vec<&str> = all.iter().map(node_of).filter(|node| !node.is_empty()).collect();
            if nodes.len() != count {
                return Err(format!("{nodes:?} of {}", all.len()));
            }
            let prefix = self.node("");
            Ok(nodes.iter().map(|node| node.trim_start_matches(&prefix).to_owned()).collect())
        })
        .await
    }

    /// Waits until the scheduler has said that it finds no node for a Pod of an app.
    pub(super) async fn pending(&self, app: &str) {
        eventually(&format!("{app} finds no node"), || async {
            let params = ListParams::default().labels(&format!("app={app}"));
            let all = self.pods().list(&params).await.in_words()?.items;
            let unschedulable =
                all.iter().filter_map(|pod| pod.status.as_ref()?.conditions.as_ref()).flatten();
            let reported = unschedulable.filter(|c| c.reason.as_deref() == Some("Unschedulable")).count();
            holds(reported == 1 && node_of(&all[0]).is_empty(), format!("{reported}"))
        })
        .await;
    }

    /// Waits until the NamespaceOffloading has this phase, and returns it.
    pub(super) async fn phase(&self, phase: &str) -> NamespaceOffloading {
        until(&format!("the phase is {phase}"), &self.objects(), "offloading", |object| {
            let status = object.status.clone().unwrap_or_default();
            let current = status.observed_generation == object.metadata.generation;
            if current && status.offloading_phase.as_deref() == Some(phase) {
                Ok(object)
            } else {
                Err(format!("{status:?}"))
            }
        })
        .await
    }

    /// Waits until the namespace's label is this.
    pub(super) async fn label(&self, value: Option<&str>) -> Namespace {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        until(&format!("the label is {value:?}"), &namespaces, self.name, |namespace| {
            let is = namespace.labels().get(keys::OFFLOADED).cloned();
            if is.as_deref() == value { Ok(namespace) } else { Err(format!("{is:?}")) }
        })
        .await
    }
}

pub(crate) fn offloading(namespace: &str, spec: Value) -> Value {
    json!({"apiVersion": "offloading.liqo.io/v1beta1", "kind": "NamespaceOffloading",
        "metadata": {"name": "offloading", "namespace": namespace}, "spec": spec})
}

pub(super) fn pod(name: &str, more: Value) -> Value {
    let mut spec = json!({"containers": [{"name": "c", "image": "i"}]});
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
}

pub(crate) fn tolerates(pod: &Value) -> bool {
    let tolerations = pod["spec"]["tolerations"].as_array().cloned().unwrap_or_default();
    tolerations.iter().any(|t| t["key"] == keys::NOT_ALLOWED)
}
