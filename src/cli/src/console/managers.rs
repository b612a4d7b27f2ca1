//! Asks managers which workloads of a tenant they know, with the token of whoever looks.
//!
//! Workloads are in the memory of the replica that serves a tenant, and any replica may do that. So all addresses of the name are asked
//! at the same time, and the first page counts. The managers have the API server review the token and the user's rights: the console
//! itself has none. A query has one deadline, an answer is measured before it is decoded, and nothing is tried again: a visible page
//! asks again in each interval.

mod answer;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use futures::StreamExt;
use futures::stream;
use http::header::{AUTHORIZATION, HOST};
use http::{HeaderValue, Request, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use outrigger_runtime::cluster::{ClusterArgs, UserToken};
use outrigger_runtime::environment::Clock;
use outrigger_runtime::tls;
use rustls_pki_types::ServerName;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};

pub(super) use self::answer::{CompanionRow, Failure, Page, WorkloadRow};
use self::answer::{Said, judge};
use super::metrics::Metrics;
use super::query::PAGE;
use super::turns::Turns;
use crate::files::InputError;

/// Longest time for a query, all of it.
pub(super) const DEADLINE: Duration = Duration::from_secs(5);

/// Longest time for the question which replica serves a tenant, beside what is known of it otherwise.
pub(super) const BRIEF: Duration = Duration::from_secs(2);

/// Queries at the same time, of all users and of one session. A manager has 16 connections for one address, and answers two queries of
/// a user at the same time.
pub(super) const QUERIES: usize = 12;
const QUERIES_OF_SESSION: usize = 2;

/// Most addresses that are asked, and of these at the same time.
const ADDRESSES: usize = 32;
const AT_ONCE: usize = 8;

/// Most bytes of an answer. Managers end a page after 1 MiB of workloads, and one workload more.
const ANSWER: usize = 2 << 20;

/// The name for which managers have their certificates, unless it is said otherwise.
const SERVER_NAME: &str = "outrigger-manager.outrigger-system.svc";

/// How managers are asked.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Managers")]
pub(super) struct ManagersArgs {
    /// Where managers answer queries about workloads (their --query-address): https://HOST:PORT. All addresses of the name are asked, with
    /// the user's own token. Without it the view of workloads says that managers aren't asked.
    #[arg(long, env = "OUTRIGGER_MANAGER_QUERIES", value_name = "URL", requires = "manager_ca_file")]
    manager_queries: Option<Target>,

    /// CA certificates, PEM, that verify the managers' certificates. Read for each query. May be given several times, or separated by
    /// commas; files that don't exist are left out, but one has to exist.
    #[arg(
        long,
        env = "OUTRIGGER_MANAGER_CA_FILE",
        value_delimiter = ',',
        value_name = "FILE",
        requires = "manager_queries"
    )]
    manager_ca_file: Vec<PathBuf>,

    /// Name that the managers' certificates have to be for.
    #[arg(long, env = "OUTRIGGER_MANAGER_SERVER_NAME", value_name = "NAME", default_value = SERVER_NAME)]
    manager_server_name: String,
}

/// Host and port of managers.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Target {
    /// Without the brackets of an IPv6 address.
    host: String,
    port: u16,
    authority: String,
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("is {text:?}; use https://HOST:PORT");
        let url: Uri = text.parse().map_err(|_| wrong())?;
        let (Some("https"), Some(authority)) = (url.scheme_str(), url.authority()) else {
            return Err(wrong());
        };
        let is_plain =
            matches!(url.path(), "" | "/") && url.query().is_none() && !authority.as_str().contains('@');
        let port = authority.port_u16().filter(|_| is_plain).ok_or_else(wrong)?;
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        Ok(Self { host, port, authority: authority.to_string() })
    }
}

/// What is asked of a tenant's workloads.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ask<'a> {
    pub(super) tenant: &'a str,
    /// Only workloads with this text in their names; empty: all.
    pub(super) text: &'a str,
    /// Only workloads with a companion that has this cause; empty: all.
    pub(super) cause: &'a str,
    /// Where the page begins; empty: at the first workload.
    pub(super) after: &'a str,
    /// Most workloads of the page.
    pub(super) limit: usize,
}

impl<'a> Ask<'a> {
    /// The first page of a tenant's workloads.
    pub(super) fn of_tenant(tenant: &'a str) -> Self {
        Self { tenant, text: "", cause: "", after: "", limit: PAGE }
    }

    /// Path and query of the question. `None`: no tenant can have this name.
    fn path(&self) -> Option<String> {
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
        if !(1..=253).contains(&self.tenant.len()) || !self.tenant.bytes().all(is_name) {
            return None;
        }
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair("limit", &self.limit.to_string());
        let filters = [("text", self.text), ("cause", self.cause), ("continue", self.after)];
        query.extend_pairs(filters.into_iter().filter(|(_, value)| !value.is_empty()));
        Some(format!("/v1/tenants/{}/workloads?{}", self.tenant, query.finish()))
    }
}

/// Asks each address on a connection of its own, which ends with the question.
type HttpsClient = HttpClient<HttpsConnector<HttpConnector>, Empty<Bytes>>;

/// The managers of an installation.
pub(super) struct Managers {
    target: Target,
    ca_files: Vec<PathBuf>,
    name: ServerName<'static>,
    queries: Semaphore,
    metrics: Arc<Metrics>,
}

impl ManagersArgs {
    /// The managers; `None`: they aren't asked.
    ///
    /// # Errors
    /// If the name can't be that of a server, or no CA can be used now.
    pub(super) fn managers(&self, metrics: Arc<Metrics>) -> Result<Option<Arc<Managers>>, InputError> {
        let Some(target) = self.manager_queries.clone() else { return Ok(None) };
        let text = self.manager_server_name.clone();
        let name = ServerName::try_from(text.clone()).map_err(|_| {
            InputError::new("--manager-server-name", format_args!("is {text:?}; use a DNS name"))
        })?;
        let ca_files = self.manager_ca_file.clone();
        Ok(Some(Arc::new(Managers { target, ca_files, name, queries: Semaphore::new(QUERIES), metrics })))
    }
}

/// With whose token managers are asked.
pub(super) enum Token {
    /// That of a login.
    Given(HeaderValue),
    /// That of the kubeconfig's user; `None`: the user has none.
    OfUser(Option<UserToken>),
}

impl Token {
    /// The token of a login.
    pub(super) fn given(token: &str) -> Option<Self> {
        let mut header = HeaderValue::try_from(format!("Bearer {token}")).ok()?;
        header.set_sensitive(true);
        Some(Self::Given(header))
    }

    /// That of a kubeconfig's user.
    pub(super) async fn of(cluster: &ClusterArgs) -> Result<Self, InputError> {
        let token = cluster.token().await;
        token.map(Self::OfUser).map_err(|error| InputError::new("--kubeconfig", format_args!("{error:#}")))
    }

    async fn header(&self) -> Result<HeaderValue, Failure> {
        match self {
            Self::Given(header) => Ok(header.clone()),
            Self::OfUser(None) => Err(Failure::NoToken("the user has no bearer token".to_owned())),
            Self::OfUser(Some(token)) => {
                let mut header =
                    token.header().await.map_err(|error| Failure::NoToken(format!("{error:#}")))?;
                header.set_sensitive(true);
                Ok(header)
            }
        }
    }
}

/// The places of a query: of its session and of all, and of its group.
type QueryTurn<'a> = ([Option<SemaphorePermit<'a>>; 2], Option<OwnedSemaphorePermit>);

/// Asks managers for one session.
pub(super) struct Asker {
    managers: Arc<Managers>,
    token: Token,
    own: Semaphore,
}

impl Asker {
    pub(super) fn new(managers: Arc<Managers>, token: Token) -> Self {
        Self { managers, token, own: Semaphore::new(QUERIES_OF_SESSION) }
    }

    /// A page of a tenant's workloads, within this time. `turns`: the places of the session's store.
    pub(super) async fn ask(&self, turns: &Turns, ask: Ask<'_>, within: Duration) -> Result<Page, Failure> {
        let until = Clock::system().now() + within;
        let answer = self.ask_until(turns, ask, until).await;
        self.managers.metrics.queried(answer.as_ref().map_or_else(Failure::outcome, |_| "Answered"));
        answer
    }

    async fn ask_until(&self, turns: &Turns, ask: Ask<'_>, until: Instant) -> Result<Page, Failure> {
        let Some(path) = ask.path() else {
            return Err(Failure::Refused {
                message: format!("there is no tenant {:?}", ask.tenant),
                away: Vec::new(),
            });
        };
        let _turn = timeout_at(until, self.turn(turns)).await.map_err(|_| Failure::Busy)?;
        let header = timeout_at(until, self.token.header()).await.unwrap_or_else(|_| {
            Err(Failure::NoToken("the user's token took too long to obtain".to_owned()))
        })?;
        self.managers.ask(ask.tenant, &path, &header, until).await
    }

    /// Whoever waits for its own queries takes nothing of what its group shares, and a group nothing of what all share. The semaphores are
    /// never closed.
    async fn turn(&self, turns: &Turns) -> QueryTurn<'_> {
        let own = self.own.acquire().await.ok();
        let of_group = turns.query().await;
        ([own, self.managers.queries.acquire().await.ok()], of_group)
    }
}

impl Managers {
    /// Asks all addresses. The first page is the answer, and the other questions are dropped.
    async fn ask(
        &self,
        tenant: &str,
        path: &str,
        header: &HeaderValue,
        until: Instant,
    ) -> Result<Page, Failure> {
        let place = format!("https://{}", self.target.authority);
        let client = self.client(&self.ca_files);
        let client = client.map_err(|error| Failure::Unreachable {
            place: place.clone(),
            why: vec![format!("{error:#}")],
        })?;
        let addresses = self.addresses(until).await;
        let addresses =
            addresses.map_err(|why| Failure::Unreachable { place: place.clone(), why: vec![why] })?;
        let said = self.ask_each(addresses, (tenant, path), header, &client, until).await;
        said.map_err(|said| judge(said, place))
    }

    /// What verifies managers by these CAs. Files on a network file system may block for a moment; the kubelet's are in memory.
    fn client(&self, ca_files: &[PathBuf]) -> anyhow::Result<HttpsClient> {
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls::verifying(ca_files, &[])?)
            .https_only()
            .with_server_name_resolver(FixedServerNameResolver::new(self.name.clone()))
            .enable_http1()
            .build();
        Ok(HttpClient::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(connector))
    }

    /// Asks these addresses for a path of a tenant. Without a page each has said something else.
    async fn ask_each(
        &self,
        addresses: Vec<SocketAddr>,
        (tenant, path): (&str, &str),
        header: &HeaderValue,
        client: &HttpsClient,
        until: Instant,
    ) -> Result<Page, Vec<Said>> {
        let questions = addresses.into_iter().map(|address| {
            let asked = self.ask_one(address, path, header, client);
            async move {
                match timeout_at(until, asked).await {
                    Ok(Ok((status, body))) => Said::read(status, &body, tenant),
                    Ok(Err(why)) => Said::Away(format!("{address}: {why}")),
                    Err(_) => Said::Away(format!("{address}: no answer in time")),
                }
            }
        });
        let mut said = Vec::new();
        let mut answers = stream::iter(questions).buffer_unordered(AT_ONCE);
        while let Some(one) = answers.next().await {
            match one {
                Said::Page(page) => return Ok(*page),
                other => said.push(other),
            }
        }
        Err(said)
    }

    /// The addresses of the managers, at least one.
    async fn addresses(&self, until: Instant) -> Result<Vec<SocketAddr>, String> {
        let Target { host, port, .. } = &self.target;
        let found = timeout_at(until, tokio::net::lookup_host((host.as_str(), *port))).await;
        let found = found.map_err(|_| format!("{host}: DNS has not answered in time"))?;
        let found = found.map_err(|error| format!("{host}: {error}"))?;
        let mut all: Vec<SocketAddr> = found.take(ADDRESSES).collect();
        all.sort_unstable();
        all.dedup();
        if all.is_empty() { Err(format!("{host}: the name has no addresses")) } else { Ok(all) }
    }

    /// Status and body of one replica's answer.
    async fn ask_one(
        &self,
        address: SocketAddr,
        path: &str,
        header: &HeaderValue,
        client: &HttpsClient,
    ) -> Result<(u16, Bytes), String> {
        let request = Request::get(format!("https://{address}{path}"))
            .header(HOST, &self.target.authority)
            .header(AUTHORIZATION, header)
            .body(Empty::new())
            .map_err(|error| error.to_string())?;
        let answer =
            client.request(request).await.map_err(|error| format!("{:#}", anyhow::Error::from(error)))?;
        let status = answer.status().as_u16();
        let body = Limited::new(answer.into_body(), ANSWER).collect().await;
        let body = body.map_err(|error| format!("the answer could not be received: {error}"))?;
        Ok((status, body.to_bytes()))
    }
}

#[cfg(test)]
mod tests;
