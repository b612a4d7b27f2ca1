//! Users who ask managers which workloads they know.

use outrigger_runtime::tls::ClientTls;
use serde_json::Value;

use crate::attacks;
use crate::control_plane::{Cluster, Ends};
use crate::outrigger::{Outrigger, exchange, ports};
use crate::tenant::{account, binding};
use crate::{InWords, eventually, holds};

/// The namespace of the users' service accounts.
const USERS: &str = "default";

/// The ClusterRole that permits queries.
const ROLE: &str = "outrigger-workloads";

/// A manager that answers queries, beside the one that all tests share.
pub struct Manager {
    outrigger: &'static Outrigger,
    /// Of gRPC.
    pub grpc: u16,
    /// Of probes and metrics.
    pub admin: u16,
    queries: u16,
    _ends: Ends,
}

/// A user's service account with a token.
pub struct User {
    name: String,
    /// The token.
    pub token: String,
}

impl Manager {
    /// Starts it, with the permissions that it needs.
    pub async fn start(outrigger: &'static Outrigger, name: &str) -> Self {
        outrigger.plane.infra.apply_file("deploy/base/queries/rbac.yaml").expect("permissions");
        let [queries] = ports().expect("a port");
        let more = [format!("--query-address=127.0.0.1:{queries}")];
        let (grpc, admin) = outrigger.another_manager(name, &more).await;
        Self { outrigger, grpc, admin, queries, _ends: outrigger.plane.ends(name) }
    }

    /// The flags of a console that asks it.
    pub fn flags(&self) -> [String; 3] {
        [
            format!("--manager-queries=https://127.0.0.1:{}", self.queries),
            format!("--manager-ca-file={}", self.outrigger.authority.file().display()),
            "--manager-server-name=127.0.0.1".to_owned(),
        ]
    }

    /// Asks a path with a token: status and body of the answer.
    pub async fn ask(&self, path: &str, token: Option<&str>) -> Result<(u16, Value), String> {
        let tls = ClientTls { ca: self.outrigger.authority.file(), identity: None };
        let stream = attacks::dial(&tls, self.queries, b"http/1.1").await.in_words()?;
        let mut request = http::Request::get(path);
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let (status, body) = exchange(stream, request, bytes::Bytes::new()).await?;
        Ok((status, serde_json::from_str(&body).unwrap_or(Value::String(body))))
    }

    /// Asks for workloads of a tenant.
    pub async fn workloads(&self, tenant: &str, query: &str, user: &User) -> Result<(u16, Value), String> {
        self.ask(&format!("/v1/tenants/{tenant}/workloads{query}"), Some(&user.token)).await
    }

    /// Waits until a query has this status, and returns the body.
    pub async fn answers(&self, tenant: &str, query: &str, user: &User, status: u16) -> Value {
        eventually(&format!("a query about {tenant} has status {status}"), || async {
            let (found, body) = self.workloads(tenant, query, user).await?;
            holds(found == status, format!("{found}: {body}")).map(|()| body)
        })
        .await
    }
}

impl User {
    /// A service account without rights.
    pub fn new(infra: &Cluster, name: &str) -> Self {
        infra.apply(&[account(USERS, name)]).expect("a service account");
        let token = infra.token(USERS, name).expect("a token");
        Self { name: name.to_owned(), token }
    }

    /// The same user with a new token.
    pub fn again(&self, infra: &Cluster) -> Self {
        let token = infra.token(USERS, &self.name).expect("a token");
        Self { name: self.name.clone(), token }
    }

    /// One who may ask about the tenant of this namespace.
    pub fn of(infra: &Cluster, name: &str, namespace: &str) -> Self {
        let this = Self::new(infra, name);
        infra.apply(&[binding(name, Some(namespace), ROLE, (USERS, name))]).expect("a binding");
        this
    }

    /// One who may ask about all tenants.
    pub fn of_all(infra: &Cluster, name: &str) -> Self {
        let this = Self::new(infra, name);
        infra.apply(&[binding(name, None, ROLE, (USERS, name))]).expect("a binding");
        this
    }

    /// Its service account goes.
    pub fn delete(&self, infra: &Cluster) {
        infra.kubectl(&["delete", "serviceaccount", &self.name, "-n", USERS]).expect("it goes");
    }

    /// The rights in a namespace are taken away.
    pub fn deprive(&self, infra: &Cluster, namespace: &str) {
        infra.kubectl(&["delete", "rolebinding", &self.name, "-n", namespace]).expect("it goes");
    }
}
