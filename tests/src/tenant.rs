//! A tenant with its hosts, its DPUs and its namespaces, and what tests do with it.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use kube::{Client, Resource, ResourceExt};
use outrigger_api::conditions::Status;
use outrigger_api::{Tenant as Object, WorkloadRule};
use outrigger_core::keys;
use outrigger_proto::v1::WorkloadUpdate;
use serde_json::{Value, json};

use crate::control_plane::Ends;
use crate::outrigger::{Outrigger, SYSTEM, ports, tenant_identity};
use crate::stream::{Opened, stream, sync, update};
use crate::{InWords, always, condition_of, create, eventually, holds, is_gone, merge, until};

pub use objects::{
    account, admin_rule, binding, dpu, host, machine, namespace, rule, rule_for, rule_with, template, tenant,
};
pub use pods::{annotation, is_ready, node_of};
pub use waits::{event, takes_pods, tenant_is, usage};

use pods::describe;
use waits::condition;

mod objects;
mod pods;
mod waits;

/// A tenant. Names of Nodes begin with its id, so tenants of one control plane don't meet.
pub struct Tenant {
    /// The installation.
    pub outrigger: &'static Outrigger,
    /// Its id.
    pub id: String,
    /// Its namespace in the infrastructure cluster.
    pub namespace: String,
    /// The namespace in the tenant cluster that its agent sees.
    pub source: String,
    /// Administrator of the infrastructure cluster.
    pub infra: Client,
    /// Administrator of the tenant cluster.
    pub cluster: Client,
    /// What ends with it.
    end: Option<End>,
}

/// What ends with a tenant. Nobody asks any longer, and what would go on costs the tests that still run: the agent compares rules every few
/// seconds, and the scheduler tries again to place each Pod that waits whenever one of their Nodes changes.
struct End {
    agent: Option<Ends>,
    outrigger: &'static Outrigger,
    namespace: String,
    source: String,
}

impl Drop for End {
    fn drop(&mut self) {
        drop(self.agent.take());
        // Who looks for the cause of a failure wants to see what there is.
        if std::thread::panicking() {
            return;
        }
        let plane = &self.outrigger.plane;
        // Companions end with their rules.
        let [rules, pods] =
            [WorkloadRule::url_path(&(), Some(&self.namespace)), Pod::url_path(&(), Some(&self.namespace))];
        plane.infra.begin_to_delete_all(vec![rules, pods]);
        plane.tenant.begin_to_delete_all(vec![Pod::url_path(&(), Some(&self.source))]);
    }
}

impl Tenant {
    /// A tenant with these hosts, each with so many DPUs, and its agent running.
    pub async fn new(outrigger: &'static Outrigger, id: &str, hosts: &[(&str, usize)]) -> Self {
        let this = Self::without_agent(outrigger, id, hosts).await;
        this.start_agent(&[]);
        this
    }

    /// A tenant with the host `a`, which has one DPU, its agent, and the rule `r` for the label `app: web`.
    pub async fn with_rule(outrigger: &'static Outrigger, id: &str) -> Self {
        let this = Self::new(outrigger, id, &[("a", 1)]).await;
        this.rule("r", rule_for("app", "web")).await;
        this
    }

    /// The same without an agent.
    pub async fn with_rule_only(outrigger: &'static Outrigger, id: &str) -> Self {
        let this = Self::without_agent(outrigger, id, &[("a", 1)]).await;
        this.rule("r", rule_for("app", "web")).await;
        this
    }

    /// As [`Self::with_rule`], with the workload `w` on that host, and its companion.
    pub async fn with_companion(outrigger: &'static Outrigger, id: &str) -> (Self, Pod) {
        let this = Self::with_rule(outrigger, id).await;
        this.web("w").await;
        let companion = this.companion().await;
        (this, companion)
    }

    /// The same tenant, whose agent and objects stay when it is dropped: until its control plane ends.
    pub fn lasting(mut self) -> Self {
        std::mem::forget(self.end.take());
        self
    }

    /// Starts the tenant's agent, which sees one namespace of the tenant cluster, with more arguments.
    pub fn start_agent(&self, more: &[String]) {
        self.start_agent_in(more, &[]);
    }

    /// As [`Self::start_agent`], with more variables of the environment, `NAME=value`.
    pub fn start_agent_in(&self, more: &[String], environment: &[String]) {
        let own = [format!("--namespace={}", self.source), format!("--rules-namespace={}", self.source)];
        self.outrigger.start_agent_in(&self.id, &[&own, more].concat(), environment).unwrap();
    }

    /// Starts the tenant's agent on an admin port, which is returned.
    pub fn start_agent_with_admin(&self, more: &[String]) -> u16 {
        let [admin] = ports().unwrap();
        self.start_agent(&[&[format!("--admin-address=127.0.0.1:{admin}")], more].concat());
        admin
    }

    /// The arguments by which an agent connects to a manager at this URL in plain text, and asks it often for its rules.
    pub fn in_plain_text(manager: &str) -> [String; 3] {
        let address = format!("--manager-address={manager}");
        ["--insecure".to_owned(), address, "--periodic-check-interval=200ms".to_owned()]
    }

    /// A tenant by its name alone: nothing of it is created, and nothing ends with it. Its clients belong to the runtime of the caller.
    pub async fn named(outrigger: &'static Outrigger, id: &str) -> Self {
        Self {
            outrigger,
            id: id.to_owned(),
            namespace: format!("tenant-{id}"),
            source: format!("work-{id}"),
            infra: outrigger.plane.infra.client().await,
            cluster: outrigger.plane.tenant.client().await,
            end: None,
        }
    }

    /// A tenant whose workloads the test itself sends.
    pub async fn without_agent(outrigger: &'static Outrigger, id: &str, hosts: &[(&str, usize)]) -> Self {
        let mut this = Self::named(outrigger, id).await;
        this.end = Some(End {
            agent: Some(outrigger.plane.ends(&format!("agent-{id}"))),
            outrigger,
            namespace: this.namespace.clone(),
            source: this.source.clone(),
        });
        let names: Vec<String> = hosts.iter().map(|(host, _)| this.node(host)).collect();
        let mut infra = Vec::new();
        let (source, agent) = (&this.source, "outrigger-agent");
        let mut cluster =
            vec![namespace(source), binding(agent, Some(source), "outrigger-agent-rules", (SYSTEM, agent))];
        for ((_, dpus), host) in hosts.iter().zip(&names) {
            cluster.push(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": host}}));
            for n in 1..=*dpus {
                infra.push(dpu(&format!("{host}-dpu{n}"), host));
            }
        }
        infra.push(tenant(id, json!({"hosts": names, "identities": [tenant_identity(id)]})));
        outrigger.plane.infra.apply(&infra).unwrap();
        outrigger.plane.tenant.apply(&cluster).unwrap();
        this.served().await;
        for (client, namespace) in [(&this.infra, &this.namespace), (&this.cluster, &this.source)] {
            takes_pods(client, namespace).await;
        }
        this
    }

    /// The Tenant itself.
    pub fn object(&self) -> Api<Object> {
        Api::all(self.infra.clone())
    }

    /// Changes the Tenant's spec by a merge patch.
    pub async fn set(&self, spec: Value) -> Result<(), String> {
        merge(&self.object(), &self.id, json!({"spec": spec})).await.map(drop).in_words()
    }

    /// Waits until its namespace is there and each of its DPUs is its own. A host without a DPU doesn't matter.
    async fn served(&self) {
        until(&format!("tenant {} is served", self.id), &self.object(), &self.id, |tenant| {
            let ready = condition_of(&tenant, "Ready");
            holds(ready["reason"] == "Served" || ready["reason"] == "NoDPU", ready.to_string())
        })
        .await;
    }

    /// Waits until a condition of the Tenant is so, and returns its message.
    pub async fn is(&self, kind: &str, status: Status, reason: &str) -> String {
        tenant_is(&self.object(), &self.id, kind, status, reason).await
    }

    /// Waits until the Tenant says that limits are reached, in these words.
    pub async fn reaches_limits(&self, words: &[&str]) {
        eventually("the Tenant says so", || async {
            let message = self.is("WithinLimits", Status::False, "LimitReached").await;
            holds(words.iter().all(|word| message.contains(word)), message)
        })
        .await;
    }

    /// Waits until a rule is gone on both sides.
    pub async fn rule_is_gone(&self, name: &str) {
        is_gone(&self.own_rules(), name).await;
        is_gone(&self.rules(), name).await;
    }

    /// Deletes the Tenant, and waits until it is gone.
    pub async fn delete(&self) {
        let infra = &self.outrigger.plane.infra;
        infra.kubectl(&["delete", "tenant", &self.id, "--wait=false"]).unwrap();
        is_gone(&self.object(), &self.id).await;
    }

    /// Opens a workload stream in an agent's place, and says that these are all workloads.
    pub async fn opens_stream(&self, workloads: impl IntoIterator<Item = WorkloadUpdate>) -> Opened {
        self.opens_stream_at(self.outrigger.grpc_port, workloads).await
    }

    /// As [`Self::opens_stream`], on the manager at this port.
    pub async fn opens_stream_at(
        &self,
        port: u16,
        workloads: impl IntoIterator<Item = WorkloadUpdate>,
    ) -> Opened {
        let tls = self.outrigger.client_tls(&self.id, &[&tenant_identity(&self.id)]);
        let opened = stream(port, &tls, &[self.id.as_bytes()]).await.unwrap();
        opened.0.send(sync(workloads)).await.unwrap();
        opened
    }

    /// As [`Self::opens_stream_at`], of a tenant without a stream, on a manager that has only started: until it knows the tenant's
    /// namespace, it ends the call so that the caller connects again, as agents do.
    pub async fn is_served_at(&self, port: u16, workloads: Vec<WorkloadUpdate>) -> Opened {
        let opened = tokio::sync::Mutex::new(self.opens_stream_at(port, workloads.clone()).await);
        eventually("a manager serves the tenant's stream", || async {
            let tenant = self.object().get(&self.id).await.in_words()?;
            if tenant.status.and_then(|status| status.stream).is_some_and(|stream| !stream.holder.is_empty())
            {
                return Ok(());
            }
            let mut opened = opened.lock().await;
            if !opened.1.is_finished() {
                return Err("no manager has claimed it".to_owned());
            }
            let again = self.opens_stream_at(port, workloads.clone()).await;
            let ended = std::mem::replace(&mut *opened, again).1.await.in_words()?;
            Err(format!("{ended:?}"))
        })
        .await;
        opened.into_inner()
    }

    /// Says on a stream that these are all workloads, each on the host `a`.
    pub async fn sync(&self, opened: &Opened, names: &[&str]) {
        opened.0.send(sync(self.on_a(names))).await.unwrap();
    }

    /// Workloads of these names, each on the host `a`.
    pub fn on_a(&self, names: &[&str]) -> Vec<WorkloadUpdate> {
        names.iter().map(|name| update(name, &self.node("a"))).collect()
    }

    /// A Node's name.
    pub fn node(&self, name: &str) -> String {
        format!("{}-{name}", self.id)
    }

    /// Companions, and whatever else is in the tenant's namespace of the infrastructure cluster.
    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.infra.clone(), &self.namespace)
    }

    /// The Pods of the tenant cluster.
    pub fn work(&self) -> Api<Pod> {
        Api::namespaced(self.cluster.clone(), &self.source)
    }

    /// The rules in the infrastructure cluster.
    pub fn rules(&self) -> Api<WorkloadRule> {
        Api::namespaced(self.infra.clone(), &self.namespace)
    }

    /// The rules of the tenant's own cluster.
    pub fn own_rules(&self) -> Api<WorkloadRule> {
        Api::namespaced(self.cluster.clone(), &self.source)
    }

    /// Applies a rule in the tenant's own cluster.
    pub async fn own_rule(&self, name: &str, spec: Value) -> Result<WorkloadRule, String> {
        applied(&self.own_rules(), &rule(&self.source, name, spec)).await
    }

    /// Applies a rule.
    pub async fn rule(&self, name: &str, spec: Value) -> WorkloadRule {
        self.try_rule(name, spec).await.unwrap()
    }

    /// Applies a rule that may be wrong.
    pub async fn try_rule(&self, name: &str, spec: Value) -> Result<WorkloadRule, String> {
        applied(&self.rules(), &rule(&self.namespace, name, spec)).await
    }

    /// Starts a Pod on a host of the tenant cluster.
    pub async fn start(&self, name: &str, host: &str, labels: Value) -> Pod {
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": self.source, "labels": labels},
            "spec": {"nodeName": self.node(host), "containers": [{"name": "c", "image": "app"}]}});
        create(&self.work(), &pod).await.unwrap()
    }

    /// Starts a Pod with the label `app: web` on the host `a`.
    pub async fn web(&self, name: &str) -> Pod {
        self.start(name, "a", json!({"app": "web"})).await
    }

    /// As [`Self::web`], with these numbers after the name.
    pub async fn webs(&self, name: &str, numbers: impl IntoIterator<Item = usize>) {
        for number in numbers {
            self.web(&format!("{name}{number}")).await;
        }
    }

    /// Ends a Pod of the tenant cluster.
    pub async fn end(&self, name: &str) {
        self.work().delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// Changes a Pod of the tenant cluster by a merge patch.
    pub async fn change(&self, name: &str, patch: Value) {
        merge(&self.work(), name, patch).await.unwrap();
    }

    /// The companions that aren't being deleted, by the name of their workload, else by their own.
    pub async fn companions(&self) -> Result<Vec<Pod>, String> {
        let list = self.pods().list(&ListParams::default().labels(keys::RULE)).await.in_words()?;
        Ok(list.items.into_iter().filter(|p| p.metadata.deletion_timestamp.is_none()).collect())
    }

    /// Waits until there are so many companions, all of them ready.
    pub async fn ready(&self, count: usize) -> Vec<Pod> {
        eventually(&format!("{count} companions are ready"), || async {
            let all = self.companions().await?;
            let ready = all.iter().filter(|p| is_ready(p)).count();
            if all.len() == count && ready == count {
                return Ok(all);
            }
            let names: Vec<String> = all.iter().map(describe).collect();
            Err(format!("{ready} of {} ready: {names:?}", all.len()))
        })
        .await
    }

    /// The companions that aren't being deleted, by the names of their workloads. Two for one workload are an error.
    pub async fn by_workload(&self) -> Result<BTreeMap<String, Pod>, String> {
        let mut all = BTreeMap::new();
        for pod in self.companions().await? {
            let name = annotation(&pod, "workload-name").unwrap_or_default().to_owned();
            if all.contains_key(&name) {
                return Err(format!("{name} has two companions"));
            }
            all.insert(name, pod);
        }
        Ok(all)
    }

    /// Uids of the companions that aren't being deleted, by the names of their workloads.
    pub async fn uids(&self) -> Result<BTreeMap<String, String>, String> {
        let all = self.by_workload().await?;
        Ok(all.into_iter().map(|(name, pod)| (name, pod.uid().unwrap_or_default())).collect())
    }

    /// Makes sure that the companions stay these for a while: uids by the names of their workloads.
    pub async fn keeps(&self, companions: &BTreeMap<String, String>, time: Duration) {
        always("the companions stay", time, || async {
            let now = self.uids().await?;
            holds(now == *companions, format!("{companions:?} became {now:?}"))
        })
        .await;
    }

    /// Waits until just these workloads, in the order of their names, have a companion each. Returns the uids.
    pub async fn serves(&self, names: &[&str]) -> BTreeMap<String, String> {
        eventually(&format!("companions of {names:?}"), || async {
            let all = self.uids().await?;
            if all.keys().eq(names) { Ok(all) } else { Err(format!("{:?}", all.keys())) }
        })
        .await
    }

    /// Waits until so many companions, of so many in all, are as wanted.
    pub async fn has(&self, what: &str, wanted: usize, of: usize, is: impl Fn(&Pod) -> bool) {
        eventually(what, || async {
            let all = self.companions().await?;
            let found = all.iter().filter(|pod| is(pod)).count();
            holds((found, all.len()) == (wanted, of), format!("{found} of {}", all.len()))
        })
        .await;
    }

    /// The Nodes of the infrastructure cluster.
    pub fn nodes(&self) -> Api<Node> {
        Api::all(self.infra.clone())
    }

    /// Waits until the one companion is another one than before, and ready.
    pub async fn replaced(&self, before: &Pod) -> Pod {
        eventually("there is another companion", || async {
            let now = self.companion().await;
            if now.uid() == before.uid() { Err("the same Pod".to_owned()) } else { Ok(now) }
        })
        .await
    }

    /// The one companion, ready.
    pub async fn companion(&self) -> Pod {
        self.ready(1).await.remove(0)
    }

    /// Waits for an Event with this reason in the tenant's namespace of the infrastructure cluster, and returns its message.
    pub async fn event(&self, reason: &str) -> String {
        event(&self.infra, &self.namespace, reason).await
    }

    /// Waits until a condition of a rule is so, and returns its message.
    pub async fn condition(&self, rule: &str, kind: &str, status: Status, reason: &str) -> String {
        condition(&self.rules(), rule, kind, status, reason, &[]).await.1
    }

    /// As [`Self::condition`], with these words in the message. Waits for them too: a status may have the reason from before,
    /// with another message.
    pub async fn condition_says(&self, rule: &str, kind: &str, status: Status, reason: &str, words: &[&str]) {
        condition(&self.rules(), rule, kind, status, reason, words).await;
    }

    /// As [`Self::condition`], of a Pod in the tenant's own cluster.
    pub async fn pod_condition(&self, pod: &str, kind: &str, status: Status, reason: &str) -> String {
        condition(&self.work(), pod, kind, status, reason, &[]).await.1
    }

    /// As [`Self::condition`], of a rule in the tenant's own cluster. Returns the rule too.
    pub async fn own_condition(
        &self,
        rule: &str,
        kind: &str,
        status: Status,
        reason: &str,
    ) -> (WorkloadRule, String) {
        condition(&self.own_rules(), rule, kind, status, reason, &[]).await
    }
}

async fn applied(rules: &Api<WorkloadRule>, rule: &Value) -> Result<WorkloadRule, String> {
    let name = rule["metadata"]["name"].as_str().unwrap();
    let params = PatchParams::apply("test").force();
    rules.patch(name, &params, &Patch::Apply(rule)).await.in_words()
}
