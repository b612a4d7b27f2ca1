//! The hosts of tenants' clusters where rules have orderings: the API server that calls the agent's gate, the controller of claims, the
//! scheduler, and kubelets, whose plugin asks the agent before they start a Pod.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use futures::FutureExt;
use http_body_util::BodyExt;
use outrigger_api::prepare::{self, Answer, Claim, Question};
use outrigger_core::gate::Hold;
use outrigger_core::keys;
use outrigger_runtime::serve::Peer;
use serde_json::{Value, json};
use tower::ServiceExt;

use super::{ADMIN, SCHEDULER, SHOP, TENANTS, World, at, claim_of, nodes, text};
use crate::admission::{admitted, review};
use crate::model::{Admitted, Attempt, Model, Verb};
use crate::process::pick;

/// The user that the controller of claims is.
const CLAIMS: &str = "system:serviceaccount:kube-system:resource-claim-controller";

/// How long the API server waits for the gate, whose failures it ignores.
const GATE: Duration = Duration::from_secs(3);

/// How long a plugin waits for the agent.
const PLUGIN: Duration = Duration::from_secs(25);

/// How long it takes at most until a Pod whose gate is open is Ready.
const PROBES: Duration = Duration::from_secs(6);

/// How long a slow kubelet takes at most until it asks for the first time.
const PREPARES: Duration = Duration::from_secs(20);

/// The shortest pause of a kubelet after a call that has failed, and by how much it is longer at most.
const AGAIN: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(5));

impl World {
    /// Gives the tenants' clusters Nodes and classes of devices, and has their API servers call the gates of agents.
    pub(super) fn furnish_hosts(self: &Arc<Self>) {
        for (id, _) in TENANTS {
            let model = &self.tenants[id];
            for class in [keys::COMPANIONS_DRIVER, keys::COMPANIONS_BINDING_CLASS] {
                let _ = model.create(ADMIN, "deviceclasses", super::named(class));
            }
            for host in self.nodes(id) {
                let _ = model.create(ADMIN, "nodes", super::named(host));
                let status = json!({"status": {"allocatable": {"pods": "8"}}});
                let _ = model.merge("kubelet", "nodes", (None, host, Some("status")), status);
            }
            let world = Arc::downgrade(self);
            model.admit_async(move |attempt| {
                let world = world.upgrade();
                async move {
                    match world {
                        Some(world) => world.gate(id, attempt).await,
                        None => Ok(attempt.object),
                    }
                }
                .boxed()
            });
        }
    }

    /// The kubelet of a DPU says that its Node is Ready. Where it isn't, managers say that the host takes no companions, and agents publish
    /// no devices for it, so no Pod that waits for its companions is scheduled.
    pub(crate) fn dpu_ready(&self, node: &Value) {
        self.number(node);
        if self.scope.orderings || self.scope.has_node_events() {
            let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
            let at = (None, text(node, "/metadata/name"), Some("status"));
            let _ = self.infra.merge("kubelet", "nodes", at, ready);
        }
    }

    /// Calls the agent's gate for a new Pod. A failure changes nothing.
    async fn gate(&self, id: &'static str, attempt: Attempt) -> Admitted {
        let is_pod = attempt.kind.plural == "pods"
            && attempt.info.verb == Verb::Create
            && attempt.info.subresource.is_none()
            && attempt.info.namespace.as_deref() == Some(SHOP);
        if !is_pod {
            return Ok(attempt.object);
        }
        let before = attempt.object.clone();
        let agent = self.agents.lock().get(id).filter(|agent| agent.is_ready()).cloned();
        let Some((name, router)) = agent.and_then(|agent| Some((agent.name.clone(), agent.router.clone()?)))
        else {
            return Ok(before);
        };
        let way = self.network.way(&super::cluster(id), &name);
        let asked = self.environment.clock.wall();
        let call = async {
            way.pass().await.then_some(())?;
            let request = http::Request::post("/gate/pods").extension(Peer::default());
            let request = request.body(Body::from(review(&attempt).to_string())).ok()?;
            let response = router.oneshot(request).await.ok()?;
            let body = response.into_body().collect().await.ok()?.to_bytes();
            way.pass().await.then_some(())?;
            let answer: Value = serde_json::from_slice(&body).ok()?;
            answer["response"]["allowed"].is_boolean().then_some(answer)
        };
        let Ok(Some(answer)) = tokio::time::timeout(GATE, call).await else { return Ok(before) };
        let object = admitted(&answer["response"], before)?;
        self.gated.lock().insert(text(&object, "/metadata/uid").to_owned(), (name, asked));
        Ok(object)
    }

    /// One round of the claim controller, the scheduler and the kubelets of a tenant's cluster.
    pub(super) fn run_hosts(self: &Arc<Self>, id: &'static str) {
        let model = &self.tenants[id];
        for pod in model.list("pods") {
            if !pod["metadata"]["deletionTimestamp"].is_null() {
                continue;
            }
            make_claim(model, &pod);
            let name = text(&pod, "/metadata/name");
            let Some(pod) = model.get("pods", Some(SHOP), name) else { continue };
            if super::is_queued(&pod) || nodes::is_on_lost(model, &pod) {
                continue;
            }
            if !pod["spec"]["nodeName"].is_string() {
                self.schedule_workload(model, &pod);
            } else if waits_to_start(&pod) {
                self.start_workload(id, &pod);
            } else {
                self.report_readiness(model, &pod);
            }
        }
    }

    /// The kubelet reports that a Pod is Ready, or no longer. Where DPUs restart, its probes take a while after its gate has opened.
    fn report_readiness(self: &Arc<Self>, model: &Model, pod: &Arc<Value>) {
        if !self.scope.drains || is_true(pod, "Ready") || !opened(pod) {
            return write_ready(model, pod);
        }
        let uid = text(pod, "/metadata/uid").to_owned();
        let waits = format!("ready {uid}");
        if !self.asking.lock().insert(waits.clone()) {
            return;
        }
        let (world, model, pod) = (self.clone(), model.clone(), pod.clone());
        let takes = self.environment.random.below(PROBES);
        tokio::spawn(async move {
            tokio::time::sleep(takes).await;
            world.asking.lock().remove(&waits);
            let now = model.get("pods", Some(SHOP), text(&pod, "/metadata/name"));
            if let Some(now) = now.filter(|now| text(now, "/metadata/uid") == uid) {
                write_ready(&model, &now);
            }
        });
    }

    /// The scheduler of a tenant's cluster.
    fn schedule_workload(&self, model: &Model, pod: &Value) {
        let name = text(pod, "/metadata/name");
        let bind = |node: &str| {
            let bound = json!({"spec": {"nodeName": node}});
            let _ = model.merge(SCHEDULER, "pods", (Some(SHOP), name, None), bound);
        };
        let takes_pods = |node: &str| !nodes::is_lost(model, node) && !nodes::is_cordoned(model, node);
        let mut nodes: Vec<String> =
            model.list("nodes").iter().map(|node| text(node, "/metadata/name").to_owned()).collect();
        nodes.retain(|node| takes_pods(node));
        let Some(hold) = held(pod) else {
            if let Some(node) = pick(&self.environment.random, &nodes) {
                bind(node);
            }
            return;
        };
        let claim = claim_of(pod, keys::COMPANIONS_CLAIM)
            .and_then(|name| model.get("resourceclaims", Some(SHOP), name));
        let Some(claim) = claim else { return };
        let write = |status: Value| {
            let at = (Some(SHOP), text(&claim, "/metadata/name"), Some("status"));
            let _ = model.merge(SCHEDULER, "resourceclaims", at, json!({"status": status}));
        };
        let Some(pool) = allocated_to(&claim) else {
            let mut free = free_devices(model, hold);
            free.retain(|(pool, _)| takes_pods(pool));
            let Some((pool, device)) = pick(&self.environment.random, &free) else { return };
            let mut result = json!({"request": "companions", "driver": keys::COMPANIONS_DRIVER, "pool": pool, "device": device});
            if hold == Hold::Binding {
                result["bindingConditions"] = json!([keys::CLAIM_READY]);
                result["bindingFailureConditions"] = json!([keys::CLAIM_UNAVAILABLE]);
            }
            let user = json!({"resource": "pods", "name": name, "uid": pod["metadata"]["uid"]});
            return write(json!({"allocation": {"devices": {"results": [result]}}, "reservedFor": [user]}));
        };
        if hold == Hold::Start || says(&claim, keys::CLAIM_READY) {
            bind(pool);
        } else if says(&claim, keys::CLAIM_UNAVAILABLE) {
            write(json!({"allocation": null, "reservedFor": null, "devices": null}));
        }
    }

    /// The kubelet of a Pod's Node. A Pod that waits to start is asked about until it may, or is gone: also after a reboot of its host.
    fn start_workload(self: &Arc<Self>, id: &'static str, pod: &Arc<Value>) {
        let uid = text(pod, "/metadata/uid").to_owned();
        if held(pod).is_none() {
            return start(&self.tenants[id], pod);
        }
        if !self.asking.lock().insert(uid.clone()) {
            return;
        }
        let (world, pod) = (self.clone(), pod.clone());
        let takes = self.scope.slow_kubelets.then(|| self.environment.random.below(PREPARES));
        tokio::spawn(async move {
            let name = text(&pod, "/metadata/name");
            if let Some(takes) = takes {
                tokio::time::sleep(takes).await;
            }
            loop {
                nodes::heard(&world.tenants[id], &pod).await;
                let found = world.tenants[id].get("pods", Some(SHOP), name);
                let Some(found) = found.filter(|found| text(found, "/metadata/uid") == uid) else { break };
                if !waits_to_start(&found) || !found["metadata"]["deletionTimestamp"].is_null() {
                    break;
                }
                if let Some(agent) = world.may_start(id, &found, text(&found, "/spec/nodeName")).await {
                    world.trace.line(&world.environment, format_args!("{agent} lets {name} of {id} start"));
                    world.permitted.lock().insert(uid.clone(), (agent, world.environment.clock.wall()));
                    if let Some(now) = world.tenants[id].get("pods", Some(SHOP), name)
                        && text(&now, "/metadata/uid") == uid
                        && waits_to_start(&now)
                        && !nodes::is_on_lost(&world.tenants[id], &now)
                    {
                        start(&world.tenants[id], &now);
                    }
                    break;
                }
                tokio::time::sleep(AGAIN.0 + world.environment.random.below(AGAIN.1)).await;
            }
            world.asking.lock().remove(&uid);
        });
    }

    /// Asks the agent, as the plugin of a host does, whether a Pod may start. Returns the agent that says so.
    pub(crate) async fn may_start(&self, id: &'static str, pod: &Value, node: &str) -> Option<String> {
        let agent = self.agents.lock().get(id).cloned()?;
        let (name, router) = (agent.name.clone(), agent.router.clone()?);
        let way = self.network.way(&format!("host-{id}-{node}"), &name);
        let claim = claim_of(pod, keys::COMPANIONS_CLAIM)?.to_owned();
        let claim = Claim { namespace: SHOP.to_owned(), name: claim, uid: "uid".to_owned() };
        let question = serde_json::to_vec(&Question { claims: vec![claim] }).ok()?;
        let ask = async {
            way.pass().await.then_some(())?;
            let request = http::Request::post(prepare::PATH)
                .extension(Peer::default())
                .header(http::header::AUTHORIZATION, format!("Bearer {node}"))
                .body(Body::from(question))
                .ok()?;
            let response = router.oneshot(request).await.ok()?;
            let body = response.into_body().collect().await.ok()?.to_bytes();
            way.pass().await.then_some(())?;
            let answer: Answer = serde_json::from_slice(&body).ok()?;
            answer.claims.iter().all(|claim| claim.ready).then_some(())
        };
        tokio::time::timeout(PLUGIN, ask).await.ok()??;
        Some(name)
    }
}

/// By what a Pod waits.
pub(crate) fn held(pod: &Value) -> Option<Hold> {
    let entries = pod["spec"]["resourceClaims"].as_array().into_iter().flatten();
    let mut ours = entries.filter(|entry| entry["name"] == keys::COMPANIONS_CLAIM);
    Hold::of_template(text(ours.next()?, "/resourceClaimTemplateName"))
}

/// The Node that the claim of a waiting Pod is allocated to.
pub(crate) fn allocated_to(claim: &Value) -> Option<&str> {
    at(claim, "/status/allocation/devices/results/0/pool").and_then(Value::as_str)
}

/// The Node that a Pod of a tenant's cluster is on, or is being bound to.
pub(crate) fn node_of(model: &Model, pod: &Value) -> Option<String> {
    if let Some(node) = pod["spec"]["nodeName"].as_str() {
        return Some(node.to_owned());
    }
    held(pod).filter(|hold| *hold == Hold::Binding)?;
    let claim = model.get("resourceclaims", Some(SHOP), claim_of(pod, keys::COMPANIONS_CLAIM)?)?;
    allocated_to(&claim).map(str::to_owned)
}

/// Whether a Pod waits for the condition of its companions.
pub(crate) fn is_gated(pod: &Value) -> bool {
    let gates = pod["spec"]["readinessGates"].as_array().into_iter().flatten();
    gates.into_iter().any(|gate| gate["conditionType"] == keys::COMPANIONS_GATE)
}

/// Whether a condition of a Pod is True.
pub(crate) fn is_true(pod: &Value, kind: &str) -> bool {
    let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|condition| condition["type"] == kind && condition["status"] == "True")
}

/// Whether the allocated device of a claim has a condition.
pub(crate) fn says(claim: &Value, kind: &str) -> bool {
    let result = at(claim, "/status/allocation/devices/results/0").cloned().unwrap_or_default();
    let devices = claim["status"]["devices"].as_array().into_iter().flatten();
    let mut ours =
        devices.filter(|device| ["pool", "device"].iter().all(|field| device[*field] == result[*field]));
    ours.any(|device| {
        let mut conditions = device["conditions"].as_array().into_iter().flatten();
        conditions.any(|condition| condition["type"] == kind && condition["status"] == "True")
    })
}

/// The devices that no claim has, as pools and names. Of a pool only slices of the latest generation count.
pub(crate) fn free_devices(model: &Model, hold: Hold) -> Vec<(String, String)> {
    let claims = model.list("resourceclaims");
    let taken = |pool: &str, device: &str| {
        claims.iter().any(|claim| {
            allocated_to(claim) == Some(pool)
                && at(claim, "/status/allocation/devices/results/0/device").is_some_and(|name| name == device)
        })
    };
    let slices = model.list("resourceslices");
    let generation = |slice: &Value| slice["spec"]["pool"]["generation"].as_i64().unwrap_or_default();
    let mut free = Vec::new();
    for slice in &slices {
        let pool = text(slice, "/spec/pool/name");
        let same = slices.iter().filter(|other| text(other, "/spec/pool/name") == pool);
        if same.map(|other| generation(other)).max() != Some(generation(slice)) {
            continue;
        }
        for device in slice["spec"]["devices"].as_array().into_iter().flatten() {
            let name = text(device, "/name");
            let binds = device["bindingConditions"].is_array();
            if binds == (hold == Hold::Binding) && !taken(pool, name) {
                free.push((pool.to_owned(), name.to_owned()));
            }
        }
    }
    free
}

/// The controller of claims: a Pod that waits gets its claim.
fn make_claim(model: &Model, pod: &Value) {
    let Some(hold) = held(pod).filter(|_| claim_of(pod, keys::COMPANIONS_CLAIM).is_none()) else { return };
    let Some(template) = model.get("resourceclaimtemplates", Some(SHOP), hold.template()) else { return };
    let of = text(pod, "/metadata/name");
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": of, "uid": pod["metadata"]["uid"],
        "controller": true, "blockOwnerDeletion": true});
    let claim = json!({"metadata": {"generateName": format!("{of}-{}-", keys::COMPANIONS_CLAIM), "namespace": SHOP,
        "labels": template["spec"]["metadata"]["labels"],
        "annotations": {keys::POD_CLAIM_NAME: keys::COMPANIONS_CLAIM}, "ownerReferences": [owner]},
        "spec": template["spec"]["spec"]});
    let Ok(claim) = model.create(CLAIMS, "resourceclaims", claim) else { return };
    let made = json!([{"name": keys::COMPANIONS_CLAIM, "resourceClaimName": claim["metadata"]["name"]}]);
    let status = json!({"status": {"resourceClaimStatuses": made}});
    let _ = model.merge(CLAIMS, "pods", (Some(SHOP), of, Some("status")), status);
}

/// A Pod's containers run.
fn start(model: &Model, pod: &Value) {
    let at = (Some(SHOP), text(pod, "/metadata/name"), Some("status"));
    let conditions =
        set_conditions(pod, &[("ContainersReady", true), ("Ready", !is_gated(pod) || opened(pod))]);
    let mut status = json!({"phase": "Running", "conditions": conditions});
    if waits_to_start(pod) && text(pod, "/status/phase") == "Running" {
        status["containerStatuses"] = containers("running");
    }
    let _ = model.merge("kubelet", "pods", at, json!({"status": status}));
}

/// The status of the container of a workload that is in this state.
fn containers(state: &str) -> Value {
    json!([{"name": "c", "state": {state: {}}}])
}

/// Whether the containers of a bound Pod have to start: for the first time, or because they have ended with their host.
pub(crate) fn waits_to_start(pod: &Value) -> bool {
    match text(pod, "/status/phase") {
        "Pending" => true,
        "Running" => at(pod, "/status/containerStatuses/0/state/waiting").is_some(),
        _ => false,
    }
}

/// A host has rebooted: the containers of its Pods have ended, and its kubelet is back.
pub(crate) fn start_host(model: &Model, name: &str) {
    let runs = |pod: &Arc<Value>| is_true(pod, "ContainersReady") && text(pod, "/status/phase") == "Running";
    for pod in nodes::pods_on(model, name).iter().filter(|pod| runs(pod)) {
        let at = (pod["metadata"]["namespace"].as_str(), text(pod, "/metadata/name"), Some("status"));
        let conditions = set_conditions(pod, &[("Ready", false), ("ContainersReady", false)]);
        let status = json!({"conditions": conditions, "containerStatuses": containers("waiting")});
        let _ = model.merge("kubelet", "pods", at, json!({"status": status}));
    }
    nodes::find(model, name);
}

fn opened(pod: &Value) -> bool {
    is_true(pod, keys::COMPANIONS_GATE)
}

/// A Pod is Ready when its containers and its gates are.
pub(super) fn write_ready(model: &Model, pod: &Value) {
    let is_ready = is_true(pod, "ContainersReady") && (!is_gated(pod) || opened(pod));
    let is_news = text(pod, "/status/phase") == "Running" && is_ready != is_true(pod, "Ready");
    if is_news && !nodes::is_on_lost(model, pod) {
        let at = (pod["metadata"]["namespace"].as_str(), text(pod, "/metadata/name"), Some("status"));
        let conditions = set_conditions(pod, &[("Ready", is_ready)]);
        let _ = model.merge("kubelet", "pods", at, json!({"status": {"conditions": conditions}}));
    }
}

/// A Pod's conditions, of which these are so.
pub(crate) fn set_conditions(pod: &Value, so: &[(&str, bool)]) -> Value {
    let mut all = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
    for (kind, is) in so {
        all.retain(|condition| condition["type"] != *kind);
        all.push(json!({"type": kind, "status": if *is { "True" } else { "False" }}));
    }
    Value::Array(all)
}
