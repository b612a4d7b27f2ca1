//! `outrigger console`: what a cluster is like, in a browser on this machine; and `outrigger console-server`: the same in the cluster, for
//! users who log in (`server`).
//!
//! **In**: the clusters of a kubeconfig, with its user's rights, which are only read; in the cluster, users' tokens. **Out**: pages, and an
//! event whenever there is a newer reading. `store` has what is known while somebody looks: `follow` keeps `rows` by watches, of which `data`
//! makes what pages show, and `outrigger explain` and `diff` answer questions. `managers` asks which workloads there are, `views`, `workloads`,
//! `chain` and `what_if` write them as HTML, `door` lets in those whom `access` or `sessions` know, `turns` are the places of groups of users
//! for reads, and `web` answers requests.

mod access;
mod chain;
mod data;
mod door;
mod follow;
mod managers;
mod metrics;
mod page;
mod query;
mod rights;
mod rows;
mod server;
mod sessions;
mod store;
mod turns;
mod views;
mod web;
mod what_if;
mod workloads;

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use outrigger_runtime::bind::Bind;
use outrigger_runtime::serve::{Limits, Server};
use outrigger_webhook::settings::AdmissionArgs;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use self::access::Access;
use self::door::Door;
use self::managers::{Asker, ManagersArgs, Token};
pub(crate) use self::server::ConsoleServerArgs;
use self::sessions::Session;
use self::store::{Source, Store};
use self::turns::Turns;
use crate::explain::live::Clients;
use crate::explain::view::ViewArgs;
use crate::sent::AnnotationArgs;

#[derive(Debug, Args)]
pub(crate) struct ConsoleArgs {
    /// Port on 127.0.0.1; 0: any free one. No other machine can connect.
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    port: u16,

    /// Seconds between two reads of the installation, and between two checks of rights, while a page is open.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,

    /// Namespace of the parts. Without it: the namespace in which one of them is found, else outrigger-system.
    #[arg(long, value_name = "NAMESPACE")]
    system_namespace: Option<String>,

    #[command(flatten)]
    annotations: AnnotationArgs,

    #[command(flatten)]
    view: ViewArgs,

    #[command(flatten)]
    managers: ManagersArgs,

    #[command(flatten)]
    admission: AdmissionArgs,
}

/// Most connections. A browser opens at most six, and a visible page keeps one of them for its events.
const CONNECTIONS: usize = 64;

/// First lists of kinds, and answers, at the same time.
const TURNS: usize = 2;

/// What one browser may demand. The time of a request is that of a stream of events; pages have limits of their own.
fn limits() -> Limits {
    Limits {
        max_connections: CONNECTIONS,
        request: web::STREAM,
        idle: Duration::from_secs(60),
        // HTTP/2 has the same limits as HTTP/1; browsers don't use it without TLS.
        streams: false,
        max_streams: 8,
        ..Limits::default()
    }
}

impl ConsoleArgs {
    /// Serves until it is interrupted.
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        self.annotations.verify()?;
        let clients = Clients::new(&self.view).await?;
        let metrics = Arc::default();
        let asker = match self.managers.managers(Arc::clone(&metrics))? {
            Some(managers) => Some(Asker::new(managers, Token::of(&self.view.cluster).await?)),
            None => None,
        };
        let listener = Bind::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))).listen()?;
        let port = listener.address().context("the listener has no port")?.port();
        let (access, token) = Access::new(port);
        let store = Store::new(Source {
            clients,
            view: self.view,
            annotations: self.annotations,
            admission: self.admission,
            system_namespace: self.system_namespace,
            interval: Duration::from_secs(self.interval),
            namespace: None,
            asker,
            turns: Turns::of(Arc::new(Semaphore::new(TURNS))),
        });
        let door = Door::Own(Box::new(access), Session::own(store, web::VIEWERS));
        let (drain, force) = (CancellationToken::new(), CancellationToken::new());
        let router = web::router(Arc::new(door), metrics);
        let server = Server::new("console", listener).limits(limits()).run(router, drain, force);
        let mut out = std::io::stdout();
        writeln!(out, "http://127.0.0.1:{port}/?token={token}")?;
        out.flush()?;
        tokio::select! {
            () = server => {}
            interrupted = tokio::signal::ctrl_c() => interrupted?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
