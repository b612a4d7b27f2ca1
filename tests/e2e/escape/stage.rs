//! The users of these tests, the requests that they make, and how answers are checked.

use std::ops::Deref;

use http::Method;
use kube::{Client, ResourceExt};
use outrigger_cases::{Escape, Escapes, Layer, Name, Request, Requests, merged};
use outrigger_core::keys;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::tenant::{Tenant, dpu, rule_for, rule_with, tenant};
use outrigger_tests::user::{Answer, ask, client};
use outrigger_tests::{eventually, holds};
use serde_json::{Value, json};

pub(crate) const TENANTS: &str = "/apis/outrigger.dev/v1alpha1/tenants";
pub(crate) const NODES: &str = "/api/v1/nodes";
pub(crate) const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";
pub(super) const MANAGER: &str = "system:serviceaccount:outrigger-system:outrigger-manager";

/// Somebody who asks the API server.
#[derive(Clone)]
pub(crate) struct User(pub(crate) Client);

impl User {
    /// The administrator, who may speak as anybody else.
    pub(super) async fn of(outrigger: &Outrigger, other: Option<(&str, &[&str])>) -> Self {
        Self(client(&outrigger.plane.infra.kubeconfig, other).await)
    }

    pub(super) async fn admin(outrigger: &Outrigger) -> Self {
        Self::of(outrigger, None).await
    }

    pub(super) async fn new(outrigger: &Outrigger, name: &str, groups: &[&str]) -> Self {
        Self::of(outrigger, Some((name, groups))).await
    }

    pub(super) async fn kubelet(outrigger: &Outrigger, node: &str) -> Self {
        Self::new(outrigger, &format!("system:node:{node}"), &["system:nodes"]).await
    }

    pub(super) async fn ask(&self, method: Method, path: &str, body: &Value) -> Answer {
        let content = match (&method, body.is_array()) {
            (&Method::PATCH, true) => "application/json-patch+json",
            (&Method::PATCH, false) => "application/merge-patch+json",
            _ => "application/json",
        };
        ask(&self.0, method, path, content, body).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.ask(Method::GET, path, &Value::Null).await
    }

    pub(super) async fn list(&self, path: &str) -> Result<Vec<Value>, String> {
        Ok(self.get(path).await?["items"].as_array().unwrap().clone())
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.ask(Method::POST, path, body).await
    }

    /// A JSON patch when it is a list, else a merge patch.
    pub(crate) async fn patch(&self, path: &str, body: &Value) -> Answer {
        self.ask(Method::PATCH, path, body).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.ask(Method::DELETE, path, &Value::Null).await
    }

    pub(super) async fn dare(&self, attempt: &Request, body: &Value) -> Answer {
        let (method, path) = attempt.ask.split_once(' ').unwrap();
        self.ask(method.parse().unwrap(), path, body).await
    }
}

/// What went otherwise than it should, so that one run tells all of it.
#[derive(Default)]
pub(super) struct Failures(pub(super) Vec<String>);

impl Failures {
    /// Without words it has to be allowed.
    pub(super) fn check(&mut self, what: &str, answer: &Answer, words: &[impl AsRef<str>]) {
        let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
        match answer {
            Ok(_) if words.is_empty() => {}
            Ok(_) => self.0.push(format!("{what}: GOT THROUGH, expected: {words:?}")),
            Err(said) if !words.is_empty() && words.iter().all(|word| said.contains(word)) => {}
            Err(said) => self.0.push(format!("{what}: expected {words:?}, but: {said}")),
        }
    }

    /// Makes all attempts, one after the other: what is allowed changes something.
    pub(super) async fn attempts(&mut self, user: &User, whose: &str, attempts: &[Request]) {
        for attempt in attempts {
            let answer = user.dare(attempt, &attempt.body).await;
            self.check(&format!("{whose}: {}", attempt.name), &answer, &attempt.says);
        }
    }

    pub(super) fn none(self) {
        assert!(self.0.is_empty(), "{}:\n{}", self.0.len(), self.0.join("\n"));
    }
}

/// A tenant with a DPU, and another tenant with one.
pub(crate) struct Sides {
    /// The tenant's id.
    pub(super) id: String,
    /// Name of the own DPU.
    pub(super) own: String,
    /// The other tenant's id, and its DPU.
    pub(crate) other: String,
    pub(crate) their: String,
}

impl Sides {
    /// Makes another tenant, and its DPU.
    pub(crate) async fn new(admin: &User, id: &str, own: String) -> Self {
        let (other, host) = (format!("{id}-other"), format!("{id}-other-a"));
        let their = format!("{host}-dpu1");
        admin.post(NODES, &dpu(&their, &host)).await.unwrap();
        admin.post(TENANTS, &tenant(&other, json!({"hosts": [host]}))).await.unwrap();
        eventually("the other tenant has its DPU", || async {
            let node = admin.get(&format!("{NODES}/{their}")).await?;
            let owner = &node["metadata"]["labels"][keys::NODE_TENANT];
            holds(*owner == json!(other), format!("{owner}"))
        })
        .await;
        Self { id: id.to_owned(), own, other, their }
    }

    /// Calls with the names that the rows have, and what this test has in their place.
    fn named<T>(&self, more: &[Name<'_>], read: impl FnOnce(&[Name<'_>]) -> T) -> T {
        let (node, their_node) = (format!("{NODES}/{}", self.own), format!("{NODES}/{}", self.their));
        let [namespace, theirs] = [&self.id, &self.other].map(|id| format!("tenant-{id}"));
        let [ns, their_ns] = [&namespace, &theirs].map(|name| format!("/api/v1/namespaces/{name}"));
        let terms = terms();
        let names = [
            ("$TENANT", self.id.as_str()),
            ("$NAMESPACE", &namespace),
            ("$NS", &ns),
            ("$OWN", &self.own),
            ("$NODE", &node),
            ("$OTHER", &self.other),
            ("$THEIR", &self.their),
            ("$THEIR_NODE", &their_node),
            ("$THEIR_NS", &their_ns),
            ("$LABEL", keys::NODE_TENANT),
            ("$TERMS", &terms),
        ];
        read(&[&names[..], more].concat())
    }

    pub(super) fn requests(&self, group: &str, more: &[Name<'_>]) -> Vec<Request> {
        let all = self.named(more, |names| Requests::read(Layer::E2e, names, &json!({}))).groups;
        all.into_iter().find(|one| one.group == group).unwrap_or_else(|| panic!("no group {group}")).rows
    }

    /// What a tenant may try with Pods and rules, where a rule has this uid.
    pub(super) fn escapes(&self, rule: &str) -> Escapes {
        self.named(&[("$RULE", rule)], |names| Escapes::read(Layer::E2e, names))
    }
}

/// Two tenants, and the user of one.
pub(super) struct Stage {
    pub(super) t: Tenant,
    pub(super) admin: User,
    pub(super) mallory: User,
    /// Path of the namespace.
    pub(super) ns: String,
    pub(super) sides: Sides,
}

impl Deref for Stage {
    type Target = Sides;

    fn deref(&self) -> &Sides {
        &self.sides
    }
}

impl Stage {
    pub(super) async fn new(id: &str) -> Self {
        Self::with(Tenant::without_agent(Outrigger::shared().await, id, &[("a", 1)]).await).await
    }

    pub(super) async fn with_agent(id: &str) -> Self {
        Self::with(Tenant::new(Outrigger::shared().await, id, &[("a", 1)]).await).await
    }

    pub(super) async fn with(t: Tenant) -> Self {
        let admin = User::admin(t.outrigger).await;
        let group = format!("tenant-{}-users", t.id);
        let mallory = User::new(t.outrigger, &format!("mallory-{}", t.id), &[&group]).await;
        grant(&admin, &t.namespace, &group).await;
        let sides = Sides::new(&admin, &t.id, t.node("a-dpu1")).await;
        let ns = format!("/api/v1/namespaces/{}", t.namespace);
        Self { t, admin, mallory, ns, sides }
    }

    pub(super) fn pods(&self) -> String {
        format!("{}/pods", self.ns)
    }

    pub(super) fn pod(&self, name: &str) -> String {
        format!("{}/pods/{name}", self.ns)
    }

    pub(super) fn group(&self, group: &str, resource: &str) -> String {
        format!("/apis/{group}/namespaces/{}/{resource}", self.t.namespace)
    }

    pub(super) fn rules(&self) -> String {
        self.group("workload.universe.nvidia.com/v1alpha1", "workloadrules")
    }

    pub(super) fn claims(&self) -> String {
        self.group("resource.k8s.io/v1", "resourceclaims")
    }

    /// Waits until a Pod is on a Node.
    pub(super) async fn placed(&self, name: &str) -> String {
        eventually(&format!("{name} is placed"), || async {
            let pod = self.admin.get(&self.pod(name)).await?;
            let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
            if node.is_empty() { Err(pod["status"].to_string()) } else { Ok(node.to_owned()) }
        })
        .await
    }

    /// Waits for an Event about an object.
    pub(super) async fn event(&self, of: &str, words: &str) {
        eventually(&format!("an Event is about {of}"), || async {
            let events = self.admin.list(&format!("{}/events", self.ns)).await?;
            let of = events.iter().filter(|e| e["involvedObject"]["name"] == json!(of));
            let messages: Vec<String> = of.map(|e| e["message"].to_string()).collect();
            holds(messages.iter().any(|message| message.contains(words)), format!("{messages:?}"))
        })
        .await;
    }

    /// A map that may own things, and its uid.
    pub(super) async fn map(&self) -> String {
        let map = json!({"metadata": {"name": "owner"}});
        let map = self.mallory.post(&format!("{}/configmaps", self.ns), &map).await.unwrap();
        map["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    /// The ways out that a Pod can hold, and all that they name.
    pub(super) async fn routes(&self) -> Vec<Escape> {
        self.prepare().await;
        let rule = self.t.rule("r", rule_for("app", "nobody")).await.uid().unwrap();
        let mut routes = self.escapes(&rule).pods;
        let infra = &self.t.outrigger.plane.infra;
        routes.retain(|route| infra.has(&route.name, route.needs.as_deref()));
        routes
    }

    /// What the tables name: accounts, classes and claims, and what of them the tenant is allowed.
    pub(super) async fn prepare(&self) {
        let named = |name: &str, more: Value| merged(&json!({"metadata": {"name": name}}), &more);
        let driver = json!({"cel": {"expression": "device.driver == 'escape.example.com'"}});
        let runtime = json!({"handler": "h"});
        let device =
            |resource: &str| json!({"spec": {"selectors": [driver], "extendedResourceName": resource}});
        let (other, allowed) = (device("escape.example.com/other"), device("escape.example.com/allowed"));
        for (path, name, class) in [
            ("/apis/scheduling.k8s.io/v1/priorityclasses", "escape-high", &json!({"value": 1000})),
            ("/apis/scheduling.k8s.io/v1/priorityclasses", "escape-allowed", &json!({"value": 10})),
            ("/apis/node.k8s.io/v1/runtimeclasses", "escape-bare", &runtime),
            ("/apis/node.k8s.io/v1/runtimeclasses", "escape-allowed", &runtime),
            ("/apis/resource.k8s.io/v1/deviceclasses", "escape-other", &other),
            ("/apis/resource.k8s.io/v1/deviceclasses", "escape-allowed", &allowed),
        ] {
            // Another test may have made it.
            let answer = self.admin.post(path, &named(name, class.clone())).await;
            assert!(answer.is_ok() || answer.as_ref().is_err_and(|e| e.starts_with("409")), "{answer:?}");
        }
        for account in ["builder", "escape-allowed"] {
            let accounts = format!("{}/serviceaccounts", self.ns);
            self.admin.post(&accounts, &named(account, json!({}))).await.unwrap();
        }
        let list = ["escape-allowed"];
        let allowed = json!({"spec": {"serviceAccounts": list, "priorityClasses": list, "runtimeClasses": list,
            "deviceClasses": list}});
        let tenant = format!("{TENANTS}/{}", self.t.id);
        eventually("the Tenant is changed", || self.admin.patch(&tenant, &allowed)).await;
        let (pods, claims) = (dry(&self.pods()), self.claims());
        let allowed = merged(&good("p"), &json!({"spec": {"priorityClassName": "escape-allowed"}}));
        eventually("the webhook knows the Tenant", || self.mallory.post(&pods, &allowed)).await;

        // A claim for one workload, as Outrigger makes it.
        let role = json!({"metadata": {"name": "claims"}, "rules": [
            {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["create"]}]});
        let subject = json!({"kind": "User", "name": MANAGER, "apiGroup": "rbac.authorization.k8s.io"});
        bind(&self.admin, &self.t.namespace, &subject, &role).await;
        let manager = User::new(self.t.outrigger, MANAGER, &[]).await;
        let ours = json!({"labels": {keys::WORKLOAD: "somebody", keys::RULE: "r"}, "annotations": {keys::RULE_UID: "u"}});
        let taken = claim("taken", &json!({"metadata": ours}));
        eventually("the manager makes a claim", || manager.post(&claims, &taken)).await;
        self.mallory.post(&claims, &claim("free", &json!({}))).await.unwrap();
        let taker = json!({"spec": {"resourceClaims": [{"name": "d", "resourceClaimName": "taken"}]}});
        let taker = merged(&good("p"), &taker);
        eventually("the webhook knows the claim", || async {
            let answer = self.mallory.post(&pods, &taker).await;
            answer.err().ok_or_else(|| "it doesn't".to_owned())
        })
        .await;
    }
}

/// Path of the terms of the required node affinity, as a JSON pointer.
pub(super) fn terms() -> String {
    "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms".to_owned()
}

/// Gives a group more in a namespace than anybody would.
pub(super) async fn grant(admin: &User, namespace: &str, group: &str) {
    let subject = json!({"kind": "Group", "name": group, "apiGroup": "rbac.authorization.k8s.io"});
    let rule = |group: &str, list: &[&str]| json!({"apiGroups": [group], "resources": list, "verbs": ["*"]});
    let subresources = ["ephemeralcontainers", "resize", "binding", "status"]
        .map(|subresource| format!("pods/{subresource}"));
    let [debug, resize, binding, status] = subresources.each_ref().map(String::as_str);
    let role = json!({"metadata": {"name": "more"}, "rules": [
        rule("", &["pods", "bindings", debug, resize, binding, status]),
        rule("resource.k8s.io", &["resourceclaims", "resourceclaimtemplates"]),
        rule(keys::WORKLOAD_GROUP, &["workloadrules"])]});
    bind(admin, namespace, &subject, &role).await;
    bind(admin, namespace, &subject, &json!("edit")).await;
    // The API server's authorizer learns of it by a watch.
    for (group_of, resource) in [("", "configmaps"), (keys::WORKLOAD_GROUP, "workloadrules")] {
        let review = json!({"spec": {"user": "u", "groups": [group], "resourceAttributes":
            {"namespace": namespace, "verb": "create", "group": group_of, "resource": resource}}});
        eventually("the user has its rights", || async { holds(may(admin, &review).await, "no") }).await;
    }
}

/// Whether somebody may do something, as a SubjectAccessReview asks.
pub(super) async fn may(admin: &User, review: &Value) -> bool {
    let answer = admin.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", review).await.unwrap();
    answer["status"]["allowed"] == json!(true)
}

/// Binds a role, which is made, or a ClusterRole by its name.
pub(super) async fn bind(admin: &User, namespace: &str, subject: &Value, role: &Value) {
    let path =
        |resource: &str| format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/{resource}");
    let (kind, name) = match role.as_str() {
        Some(name) => ("ClusterRole", name),
        None => {
            admin.post(&path("roles"), role).await.unwrap();
            ("Role", role["metadata"]["name"].as_str().unwrap())
        }
    };
    let binding = json!({"metadata": {"name": format!("test-{name}")}, "subjects": [subject],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}});
    admin.post(&path("rolebindings"), &binding).await.unwrap();
}

/// A Pod that is allowed.
pub(super) fn good(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "x"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}})
}

/// A claim to a device that the tenant may have.
pub(super) fn claim(name: &str, more: &Value) -> Value {
    let request = json!({"name": "d", "exactly": {"deviceClassName": "escape-allowed"}});
    merged(&json!({"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}}), more)
}

/// A rule with a template, for the workloads of these tests.
pub(super) fn rule(name: &str, template: &Value) -> Value {
    json!({"apiVersion": "workload.universe.nvidia.com/v1alpha1", "kind": "WorkloadRule",
        "metadata": {"name": name}, "spec": rule_with("/template", template.clone())})
}

/// The same path, and nothing is kept.
pub(super) fn dry(path: &str) -> String {
    format!("{path}?dryRun=All")
}

/// Asks the webhook itself, past the API server.
pub(super) async fn webhook(
    s: &Stage,
    operation: &str,
    old: &Value,
    pods: impl Iterator<Item = Value>,
) -> Vec<Answer> {
    let o = s.t.outrigger;
    let mut answers = Vec::new();
    for pod in pods {
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "u",
            "kind": {"group": "", "version": "v1", "kind": "Pod"}, "operation": operation,
            "namespace": s.t.namespace, "userInfo": {"username": "u"}, "object": pod, "oldObject": old}});
        let request = http::Request::builder().uri("/validate/pods");
        let (_, body) = o.post(o.webhook_port, None, request, review.to_string()).await.unwrap();
        let review: Value = serde_json::from_str(&body).unwrap();
        let (response, status) = (&review["response"], &review["response"]["status"]);
        answers.push(match response["allowed"] {
            Value::Bool(true) => Ok(Value::Null),
            _ => Err(format!("{} {}", status["code"], status["message"].as_str().unwrap_or_default())),
        });
    }
    answers
}
