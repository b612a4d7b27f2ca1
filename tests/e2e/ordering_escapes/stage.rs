//! Who asks, a rule whose companions are Ready when the test says so, and what the agent answers to a host.

use http::Method;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::api::{Api, DeleteParams};
use kube::{Client, ResourceExt};
use outrigger_api::conditions::Status;
use outrigger_cases::merged;
use outrigger_core::keys;
use outrigger_tests::plugin::token;
use outrigger_tests::shipped::kustomize;
use outrigger_tests::tenant::{Tenant, is_ready, node_of};
use outrigger_tests::user::{self, client};
use outrigger_tests::{InWords, create, eventually, held, holds, until};
use serde_json::{Value, json};
use tokio::sync::MutexGuard;

use crate::e2e::companions_first::{HOSTS, gets_claims, pod, stage};

/// The label `app` of Pods that wait for companions.
pub(super) const APP: &str = "escape";

/// Somebody who asks the tenant's API server.
pub(super) struct User(Client);

impl User {
    async fn new(t: &Tenant, name: Option<(&str, &[&str])>) -> Self {
        Self(client(&t.outrigger.plane.tenant.kubeconfig, name).await)
    }

    /// Sends a request: method and path, and a body or null. Returns the answer, or the code and the words of the refusal.
    pub(super) async fn ask(&self, ask: &str, body: &Value) -> Result<Value, String> {
        let (method, path) = ask.split_once(' ').unwrap();
        let method: Method = method.parse().unwrap();
        let strategic = path.contains("/status") || path.contains("/ephemeralcontainers");
        let content = match method {
            Method::PATCH if strategic && path.contains("/pods/") => "application/strategic-merge-patch+json",
            Method::PATCH => "application/merge-patch+json",
            _ => "application/json",
        };
        user::ask(&self.0, method, path, content, body).await
    }
}

/// A tenant whose Pods wait to start, its users, and the rule.
pub(super) struct Stage {
    pub(super) t: Tenant,
    pub(super) admin: User,
    /// Has the role `edit` in the namespace.
    pub(super) edit: User,
    /// A service account with the same role.
    pub(super) robot: User,
    _alone: MutexGuard<'static, ()>,
}

impl Stage {
    /// Waits until the rule is enforced.
    pub(super) async fn new() -> Self {
        let (t, alone) = stage().await;
        let mut objects = kustomize("deploy/base/host").unwrap();
        objects.retain(|object| object["kind"] != "DaemonSet" && object["kind"] != "Service");
        let subject = |kind: &str, more: Value| merged(&json!({"kind": kind}), &more);
        let subjects = [
            subject("User", json!({"name": "mallory", "apiGroup": "rbac.authorization.k8s.io"})),
            subject("ServiceAccount", json!({"name": "robot", "namespace": t.source})),
        ];
        objects.push(json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": {"name": "edit", "namespace": t.source}, "subjects": subjects,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"}}));
        t.outrigger.plane.tenant.apply(&objects).unwrap();
        t.own_rule(APP, held::rule(APP, "BeforeStart")).await.unwrap();
        gets_claims(&t, &pod("w", APP, json!({})), &[keys::COMPANIONS_CLAIM]).await;
        let robot = format!("system:serviceaccount:{}:robot", t.source);
        Self {
            admin: User::new(&t, None).await,
            edit: User::new(&t, Some(("mallory", &["system:authenticated"]))).await,
            robot: User::new(&t, Some((&robot, &["system:authenticated", "system:serviceaccounts"]))).await,
            t,
            _alone: alone,
        }
    }

    /// Ends Pods and the rule.
    pub(super) async fn end(self, pods: &[&str]) {
        for name in pods {
            self.t.work().delete(name, &DeleteParams::default().grace_period(0)).await.unwrap();
        }
        self.t.own_rules().delete(APP, &DeleteParams::default()).await.unwrap();
        self.t.rule_is_gone(APP).await;
    }

    /// The kubelet of a host.
    pub(super) async fn kubelet(&self, host: &str) -> User {
        let name = format!("system:node:{}", self.t.node(host));
        User::new(&self.t, Some((&name, &["system:nodes", "system:authenticated"]))).await
    }

    /// The path of the namespace, and of its claims and templates.
    pub(super) fn paths(&self) -> [String; 2] {
        let name = &self.t.source;
        [format!("/api/v1/namespaces/{name}"), format!("/apis/resource.k8s.io/v1/namespaces/{name}")]
    }

    /// Creates a Pod as `edit`.
    pub(super) async fn create(&self, pod: &Value) -> Value {
        let [ns, _] = self.paths();
        self.edit.ask(&format!("POST {ns}/pods"), pod).await.unwrap()
    }

    /// The claims in the namespace.
    pub(super) fn claims(&self) -> Api<ResourceClaim> {
        Api::namespaced(self.t.cluster.clone(), &self.t.source)
    }

    /// Waits until Kubernetes has made a Pod's claim, other than one of this name. Returns its name.
    pub(super) async fn claim_of(&self, pod: &str, other: &str) -> String {
        eventually(&format!("{pod} has a claim"), || async {
            let pod: Pod = self.t.work().get(pod).await.in_words()?;
            let all = pod.status.and_then(|status| status.resource_claim_statuses).unwrap_or_default();
            let mut names = all.into_iter().filter_map(|status| status.resource_claim_name);
            let name = names.next().ok_or("no claim")?;
            holds(name != other, "the former one")?;
            self.claims().get(&name).await.in_words()?;
            Ok::<_, String>(name)
        })
        .await
    }

    /// Waits for the companion of a Pod, and lets it become Ready.
    pub(super) async fn go(&self, name: &str) {
        let companion = eventually(&format!("{name} has a companion"), || async {
            let uid = self.t.work().get(name).await.in_words()?.uid();
            let all = self.t.companions().await?;
            let own = all.into_iter().find(|found| found.labels().get(keys::WORKLOAD) == uid.as_ref());
            own.ok_or_else(|| "it has none".to_owned())
        })
        .await;
        held::go(&self.t, &companion);
    }

    /// What the agent answers to the plugin of a Pod's host: nothing if the Pod may start, else the cause. It takes the time for which
    /// the agent holds a question if the Pod has to wait.
    pub(super) async fn start(&self, name: &str) -> Result<(), String> {
        let pod: Pod = self.t.work().get(name).await.in_words()?;
        let node = node_of(&pod).to_owned();
        let host = ["a", "b"].into_iter().find(|host| self.t.node(host) == node).ok_or("it isn't bound")?;
        let claim = self.claim_of(name, "").await;
        let uid = self.claims().get(&claim).await.in_words()?.uid();
        let question = json!({"claims": [{"namespace": self.t.source, "name": claim, "uid": uid}]});
        let token = token(&self.t, keys::HOST_PLUGIN, keys::AGENT_AUDIENCE, host).await;
        let request = http::Request::builder().uri("/v1/prepare");
        let request = request.header("authorization", format!("Bearer {token}"));
        let port = *HOSTS.get().unwrap();
        let (_, body) = self.t.outrigger.post(port, None, request, question.to_string()).await?;
        let answer: Value = serde_json::from_str(&body).map_err(|_| body.clone())?;
        let answer = &answer["claims"][0];
        holds(answer["ready"] == true, answer["cause"].as_str().unwrap_or(&body))
    }

    /// Waits until the agent answers that a Pod doesn't start before its companion.
    pub(super) async fn has_to_wait(&self, name: &str) {
        eventually(&format!("{name} has to wait"), || async {
            let cause = self.start(name).await.err().unwrap_or_else(|| "it starts".to_owned());
            holds(cause == "Starting", cause)
        })
        .await;
    }

    /// Waits until the agent says at a Pod that it waits for a companion that starts.
    pub(super) async fn is_closed(&self, name: &str) {
        self.t.pod_condition(name, keys::COMPANIONS_GATE, Status::False, "Starting").await;
    }

    /// The legitimate way: the Pod waits, and starts and becomes Ready when its companion is Ready.
    pub(super) async fn waits_then_starts(&self, name: &str) {
        self.is_closed(name).await;
        // What stands in for a kubelet follows a change of the gate a little later.
        until(&format!("{name} isn't Ready"), &self.t.work(), name, |pod| {
            holds(!is_ready(&pod), "it is Ready")
        })
        .await;
        self.go(name).await;
        eventually(&format!("{name} starts"), || self.start(name)).await;
        until(&format!("{name} is Ready"), &self.t.work(), name, |pod| holds(is_ready(&pod), "not yet"))
            .await;
    }
}

/// A Pod with a scheduling gate of its own.
pub(super) fn gated(name: &str) -> Value {
    pod(name, APP, json!({"schedulingGates": [{"name": "example.com/mine"}]}))
}

/// Removes that gate as `edit`.
pub(super) async fn ungate(s: &Stage, name: &str) {
    let [ns, _] = s.paths();
    let none = json!({"spec": {"schedulingGates": null}});
    s.edit.ask(&format!("PATCH {ns}/pods/{name}"), &none).await.unwrap();
}

/// A Pod that the administrator creates.
pub(super) async fn created(s: &Stage, pod: &Value) -> Pod {
    create(&s.t.work(), pod).await.unwrap()
}
