//! The kubelet plugin on each host of a tenant's cluster: containers of a Pod with a claim of the driver
//! [`COMPANIONS_DRIVER`](outrigger_core::keys::COMPANIONS_DRIVER) start after the Pod's companions are Ready.
//!
//! **In**: calls of the kubelet on a Unix socket ([`plugin`]). **Out**: one question to the cluster's agent for each call
//! ([`agent`]), and for each claim whether the Pod may start, or why not. **Callers**: `outrigger host`, and the tests.
//!
//! It decides nothing, keeps no state, and has no access to the API server: the agent knows the Pods and how their companions are. What
//! goes wrong is an error of the kubelet's call, and the kubelet repeats the call.

mod agent;
mod metrics;
mod plugin;
mod settings;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use outrigger_core::keys;
use outrigger_runtime::Process;
use outrigger_runtime::bind::Bind;
use outrigger_runtime::serve::{Limits, Server};
use tracing::{info, warn};

use crate::agent::Agent;
use crate::metrics::Metrics;
use crate::plugin::Plugin;
pub use crate::settings::HostArgs;

/// The kubelet's interfaces.
#[allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]
mod proto {
    /// Registration of plugins.
    pub mod registration {
        tonic::include_proto!("pluginregistration");
    }

    /// Claims.
    pub mod dra {
        tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1");
    }

    /// Health of devices.
    pub mod health {
        tonic::include_proto!("v1alpha1");
    }
}

/// Name of the socket. The kubelet sends its path, percent-encoded, as the authority of its calls, and HTTP libraries refuse a host
/// with a percent sign; before an `@` is no host, so the encoded part of the path isn't one.
const SOCKET: &str = "outrigger@companions.sock";

/// Runs the plugin until the process shuts down.
///
/// # Errors
/// If options are invalid, the socket can't be made, or a task fails.
pub async fn run(args: HostArgs) -> anyhow::Result<()> {
    let mut process = Process::new(keys::HOST_PLUGIN, args.process.clone())?;
    let metrics = Metrics::new(&mut process.registry);
    let agent = Agent::new(&args, process.readiness.warning("agent"))?;
    let plugin = Plugin {
        agent,
        metrics,
        registered: parking_lot::Mutex::new(Some(process.readiness.wait_for("registration at the kubelet"))),
        refused: process.readiness.warning("registration at the kubelet"),
        calls: tokio::sync::Semaphore::new(plugin::CALLS),
        clock: process.environment.clock,
        drain: process.drain.clone(),
    };
    let path = args.plugins_registry.join(SOCKET);
    let listener = listen(&path)?;
    let socket = Identity::of(&path);
    let server = Server::new("kubelet", listener).limits(limits());
    process.serve(server, Arc::new(plugin).router());
    let result = process.run().await;
    remove(&path, socket);
    result
}

/// Which file a path leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    /// When it was made, because inodes are used again. Nobody writes into a socket's file, and a change of its mode or label counts for
    /// `ctime` alone.
    modified: (i64, i64),
}

impl Identity {
    fn of(path: &Path) -> Option<Self> {
        let file = std::fs::symlink_metadata(path).ok()?;
        let modified = (file.mtime(), file.mtime_nsec());
        Some(Self { device: file.dev(), inode: file.ino(), modified })
    }
}

/// Opens the socket. One that a killed process has left behind is replaced: the kubelet then registers the plugin again.
fn listen(path: &Path) -> anyhow::Result<outrigger_runtime::bind::Listener> {
    // sun_path has 108 bytes, with a zero at the end.
    anyhow::ensure!(
        path.is_absolute() && path.as_os_str().len() < 108,
        "--plugins-registry: {}: use an absolute path, with which the socket's path has less than 108 bytes",
        path.display()
    );
    Bind::Unix(PathBuf::from(path)).listen().context("--plugins-registry")
}

/// Removes the socket of this process: the kubelet deregisters a plugin whose socket is gone. Another process may have replaced it since
/// this one stopped listening, and its own stays.
fn remove(path: &Path, socket: Option<Identity>) {
    if Identity::of(path) != socket {
        return info!(path = %path.display(), "the socket is another process's; not removed");
    }
    match std::fs::remove_file(path) {
        Ok(()) => info!(path = %path.display(), "removed the socket"),
        Err(error) => warn!(path = %path.display(), %error, "failed to remove the socket"),
    }
}

/// Limits of the socket. One kubelet calls, with a connection for registration and one for everything else.
fn limits() -> Limits {
    Limits {
        max_connections: 16,
        request: Duration::from_secs(40),
        // The call for the health of devices stays open.
        streams: true,
        max_streams: plugin::STREAMS,
        window: 64 << 10,
        ..Limits::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As grpc-go encodes an authority.
    fn encoded(path: &str) -> String {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:[]@".contains(&byte);
        path.bytes()
            .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
            .collect()
    }

    #[test]
    fn the_path_of_the_socket_is_an_authority() {
        let is = |name: &str| {
            encoded(&format!("/var/lib/kubelet/plugins_registry/{name}"))
                .parse::<http::uri::Authority>()
                .is_ok()
        };
        assert!(is(SOCKET));
        assert!(!is("outrigger.sock"), "the name needs its sign");
    }

    #[tokio::test]
    async fn a_socket_that_a_killed_process_left_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(SOCKET);
        drop(listen(&path).unwrap());
        assert!(path.exists());
        let listener = listen(&path).unwrap();
        assert!(format!("{:#}", listen(&path).unwrap_err()).contains("another process listens on it"));
        let first = Identity::of(&path);
        drop(listener);
        // The times of files have the resolution of the kernel's tick.
        std::thread::sleep(Duration::from_millis(20));
        let later = listen(&path).unwrap();
        remove(&path, first);
        assert!(path.exists(), "it is the later one's");
        drop(later);
        remove(&path, Identity::of(&path));
        assert!(!path.exists());
    }

    #[test]
    fn a_path_that_no_socket_can_have_is_refused() {
        for dir in ["registry", &format!("/{}", "x".repeat(100))] {
            let error = listen(&Path::new(dir).join(SOCKET)).unwrap_err().to_string();
            assert!(error.starts_with("--plugins-registry: "), "{error}");
        }
    }
}
