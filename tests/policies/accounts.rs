//! Who asks, and how.

use kube::Client;
use outrigger_cases::Request;
use outrigger_core::keys::{AGENT, MANAGER};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Account {
    /// May do everything.
    Admin,
    /// The manager, with more rights by RBAC than it will ever have: what refuses it is the policies.
    Manager,
    /// The webhook, likewise.
    Webhook,
    /// The agent, likewise: in a cluster that is its tenant's too.
    Agent,
    /// Has the role `edit` in the namespace tenant-blue.
    User,
    /// May do everything to the things of a cluster, but not assign.
    Operator,
    Scheduler,
    /// A controller of the cluster itself.
    Collector,
    /// The one that makes the claims of Pods.
    ClaimController,
    /// All controllers of a cluster in which they have one account.
    ControllerManager,
    /// The kubelet of the Node blue-dpu.
    Kubelet,
    /// A kubelet whose Node doesn't exist yet: blue-new.
    NewKubelet,
}

impl Account {
    /// The account that a row names.
    pub(crate) fn of(row: &Request) -> Self {
        serde_json::from_value(json!(row.by)).unwrap_or_else(|e| panic!("{}: {e}", row.name))
    }

    /// User and group that an administrator has to impersonate.
    fn user(self) -> Option<(&'static str, &'static str)> {
        const ACCOUNTS: &str = "system:serviceaccounts";
        Some(match self {
            Self::Admin => return None,
            Self::Manager => ("system:serviceaccount:outrigger-system:outrigger-manager", ACCOUNTS),
            Self::Webhook => ("system:serviceaccount:outrigger-system:outrigger-webhook", ACCOUNTS),
            Self::Agent => ("system:serviceaccount:outrigger-system:outrigger-agent", ACCOUNTS),
            Self::User => ("blue-user", "users"),
            Self::Operator => ("operator", "operators"),
            Self::Scheduler => ("system:kube-scheduler", "system:authenticated"),
            Self::Collector => (
                "system:serviceaccount:kube-system:pod-garbage-collector",
                "system:serviceaccounts:kube-system",
            ),
            Self::ClaimController => (
                "system:serviceaccount:kube-system:resource-claim-controller",
                "system:serviceaccounts:kube-system",
            ),
            Self::ControllerManager => ("system:kube-controller-manager", "system:authenticated"),
            Self::Kubelet => ("system:node:blue-dpu", "system:nodes"),
            Self::NewKubelet => ("system:node:blue-new", "system:nodes"),
        })
    }

    /// Sends a request: method and path, and a body or null.
    pub(crate) async fn send(self, client: &Client, ask: &str, body: &Value) -> Result<Value, String> {
        self.request(client, ask, "?", body).await
    }

    /// Sends it without consequences.
    pub(crate) async fn dry_run(self, client: &Client, ask: &str, body: &Value) -> Result<Value, String> {
        self.request(client, ask, "?dryRun=All", body).await
    }

    /// The query by which its patches are recorded under the name of the part of Outrigger that has the account.
    fn recorded(self) -> String {
        match self {
            Self::Manager => format!("&fieldManager={MANAGER}"),
            Self::Agent => format!("&fieldManager={AGENT}"),
            _ => String::new(),
        }
    }

    async fn request(self, client: &Client, ask: &str, query: &str, body: &Value) -> Result<Value, String> {
        let (method, path) = ask.split_once(' ').unwrap();
        let own = self.recorded();
        let (method, content, more) = match (method, body.is_array()) {
            ("APPLY", _) => ("PATCH", "application/apply-patch+yaml", "&fieldManager=somebody&force=true"),
            ("PATCH", true) => (method, "application/json-patch+json", own.as_str()),
            ("PATCH", false) => (method, "application/merge-patch+json", own.as_str()),
            _ => (method, "application/json", ""),
        };
        let uri = format!("{path}{query}{more}");
        let mut request = http::Request::builder().method(method).uri(uri).header("content-type", content);
        if let Some((user, group)) = self.user() {
            request = request.header("impersonate-user", user).header("impersonate-group", group);
        }
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        match client.request_text(request.body(body).unwrap()).await {
            Ok(text) => Ok(serde_json::from_str(&text).unwrap()),
            Err(kube::Error::Api(status)) => Err(status.message),
            Err(other) => Err(other.to_string()),
        }
    }
}
