//! Faults between our processes and what they talk to.
//!
//! [`Proxy`] stands between a process and an API server: it terminates TLS on loopback, speaks HTTP/1.1, and forwards each
//! request with the caller's own headers. Tests add faults while it runs, for the requests that match. It also keeps every
//! request, and calls a hook before and after each write.
//!
//! [`wire::Wire`] and [`grpc::Calls`] stand between an agent and a manager: the one deals with bytes, the other with calls.
//!
//! A process leads through it by its kubeconfig, which must have a bearer token: client certificates end at the proxy.

mod call;
pub mod grpc;
mod rules;
mod serve;
mod watching;
pub mod wire;

use crate::holds;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Context;
use outrigger_runtime::tls::ClientTls;
use parking_lot::Mutex;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::{ClientConfig, ServerConfig, crypto::ring};
use tokio_util::sync::{CancellationToken, DropGuard};

pub use call::{Call, Verb};
pub use rules::{Fault, FaultId, Matching};

use crate::control_plane::{Cluster, replace};
use crate::outrigger::SYSTEM;
use crate::pki::{Authority, Pair};
use rules::Rules;

/// When a hook is called about a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// It has not been forwarded yet.
    Before,
    /// The API server has answered, and the caller doesn't know yet.
    After,
}

/// What follows a hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// What would have happened without it.
    GoOn,
    /// The caller's connection is reset; before it is forwarded, the write doesn't happen.
    Drop,
}

type Hook = Arc<dyn Fn(&Call, Moment) -> Next + Send + Sync>;

/// A proxy before an API server. It ends when this is dropped; until then it serves on a thread of its own, whichever
/// runtimes of tests end.
pub struct Proxy {
    /// Its port.
    pub port: u16,
    dir: PathBuf,
    authority: Authority,
    shared: Arc<Shared>,
    /// Ends its thread.
    _end: DropGuard,
}

/// What the connections of a proxy share.
struct Shared {
    rules: Arc<Rules>,
    calls: Mutex<Vec<Call>>,
    hook: Mutex<Option<Hook>>,
    upstream: Mutex<(u64, String, Arc<ClientConfig>)>,
    /// Resets all connections that are open.
    cut: Mutex<CancellationToken>,
}

impl Proxy {
    /// A proxy before a cluster's API server. Its files are kept in `dir`.
    pub fn start(cluster: &Cluster, dir: &Path) -> anyhow::Result<Self> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let dir = dir.join(format!("proxy-{}", COUNT.fetch_add(1, Ordering::Relaxed)));
        let authority = Authority::new(&dir, "proxy")?;
        let tls = TlsAcceptor::from(Arc::new(serving(&authority.issue("serving", &["127.0.0.1"])?)?));
        let shared = Arc::new(Shared {
            rules: Arc::default(),
            calls: Mutex::default(),
            hook: Mutex::default(),
            upstream: Mutex::new((0, cluster.server.clone(), calling(cluster)?)),
            cut: Mutex::default(),
        });
        let serving = shared.clone();
        let (port, _, _end) = serve_on_thread(move |stream| {
            tokio::spawn(serve::connection(serving.clone(), tls.clone(), stream));
        })?;
        Ok(Self { port, dir, authority, shared, _end })
    }

    /// Writes a kubeconfig again so that it leads through the proxy. Its users stay as they are.
    pub fn through(&self, kubeconfig: &Path) -> anyhow::Result<()> {
        let mut config: Value = serde_yaml::from_str(&std::fs::read_to_string(kubeconfig)?)?;
        for cluster in config["clusters"].as_array_mut().context("no clusters")? {
            cluster["cluster"] = json!({
                "server": format!("https://127.0.0.1:{}", self.port),
                "certificate-authority": self.authority.file(),
            });
        }
        replace(kubeconfig, &config.to_string())
    }

    /// The argument by which one of Outrigger's processes talks to a cluster through the proxy as one of its service accounts,
    /// such as `outrigger-manager`.
    pub fn account(&self, cluster: &Cluster, account: &str) -> anyhow::Result<String> {
        let file = self.dir.join(format!("{account}.kubeconfig"));
        cluster.service_account(SYSTEM, account, &file)?;
        self.through(&file)?;
        Ok(format!("--kubeconfig={}", file.display()))
    }

    /// Adds a fault: it applies to each request that matches, until it is removed, or as often as it says. Those that
    /// concern watches, and [`Fault::Cut`] and [`Fault::BlackHole`], also apply to watches that are open.
    pub fn fault(&self, matching: Matching, fault: Fault) -> FaultId {
        self.shared.rules.add(matching, fault)
    }

    /// Removes a fault.
    pub fn remove(&self, id: FaultId) {
        self.shared.rules.remove(id);
    }

    /// Removes all faults.
    pub fn clear(&self) {
        self.shared.rules.clear();
    }

    /// How many requests a fault has applied to, also after it has been removed.
    pub fn hits(&self, id: FaultId) -> u32 {
        self.shared.rules.hits(id)
    }

    /// Waits until a fault has applied to a request.
    pub async fn hit(&self, id: FaultId) {
        crate::eventually("the fault applies to a request", || async {
            holds(self.hits(id) > 0, "no request has matched")
        })
        .await;
    }

    /// Resets all connections that are open.
    pub fn cut(&self) {
        std::mem::take(&mut *self.shared.cut.lock()).cancel();
    }

    /// Which API server requests go to from now on; watches that are open stay with theirs.
    pub fn upstream(&self, cluster: &Cluster) {
        let tls = calling(cluster).expect("the cluster's CA");
        let mut upstream = self.shared.upstream.lock();
        *upstream = (upstream.0 + 1, cluster.server.clone(), tls);
    }

    /// All requests so far, in the order of their arrival.
    pub fn calls(&self) -> Vec<Call> {
        self.shared.calls.lock().clone()
    }

    /// Those that match.
    pub fn calls_of(&self, matching: &Matching) -> Vec<Call> {
        self.shared.calls.lock().iter().filter(|call| matching.matches(call)).cloned().collect()
    }

    /// Has `hook` called from a blocking thread with each write ([`Call::is_write`]) before it is forwarded, and again
    /// when the API server has answered and the caller doesn't know yet. It replaces the hook before.
    pub fn on_write(&self, hook: impl Fn(&Call, Moment) -> Next + Send + Sync + 'static) {
        *self.shared.hook.lock() = Some(Arc::new(hook));
    }

    /// Calls hooks no longer.
    pub fn off_write(&self) {
        *self.shared.hook.lock() = None;
    }
}

impl Shared {
    fn begun(&self, mut call: Call) -> Call {
        let mut calls = self.calls.lock();
        call.number = calls.len() as u64 + 1;
        calls.push(call.clone());
        call
    }

    fn answered(&self, number: u64, status: u16) {
        if let Some(call) = self.calls.lock().get_mut(number as usize - 1) {
            call.status = Some(status);
        }
    }

    fn upstream(&self) -> (u64, String, Arc<ClientConfig>) {
        self.upstream.lock().clone()
    }
}

/// Hands each connection to a port on loopback to `connection`, on a thread and runtime of their own. Returns the port, the runtime, and
/// what ends it.
pub(crate) fn serve_on_thread(
    connection: impl Fn(TcpStream) + Send + 'static,
) -> anyhow::Result<(u16, Handle, DropGuard)> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let port = listener.local_addr()?.port();
    let end = CancellationToken::new();
    let ended = end.clone();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    std::thread::spawn(move || {
        runtime.block_on(ended.run_until_cancelled(async move {
            let listener = TcpListener::from_std(listener).expect("a port");
            loop {
                if let Ok((stream, _)) = listener.accept().await {
                    connection(stream);
                }
            }
        }));
        // A hook may be waiting for something; nobody waits for it.
        runtime.shutdown_background();
    });
    Ok((port, handle, end.drop_guard()))
}

fn serving(pair: &Pair) -> anyhow::Result<ServerConfig> {
    let chain = CertificateDer::pem_file_iter(&pair.cert)?.collect::<Result<Vec<_>, _>>()?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, PrivateKeyDer::from_pem_file(&pair.key)?)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

fn calling(cluster: &Cluster) -> anyhow::Result<Arc<ClientConfig>> {
    let tls = ClientTls { ca: cluster.ca.clone(), identity: None };
    Ok(Arc::new(tls.config(&[b"http/1.1"])?))
}

/// A `Status` as API servers answer it.
fn status(code: u16, reason: &str, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code})
}
