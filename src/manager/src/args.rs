//! The manager's settings.

use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use outrigger_core::admin::{AdminNamespaces, namespace};
use outrigger_core::host::HostLabels;
use outrigger_core::keys;
use outrigger_core::tenant::{Enforcement, Identity};
use outrigger_runtime::bind::Bind;
use outrigger_runtime::cluster::ClusterArgs;
use outrigger_runtime::duration;
use outrigger_runtime::process::ProcessArgs;
use outrigger_runtime::tls::{ServerTls, ServerTlsArgs};

use crate::grpc;

/// Settings of the manager.
#[derive(Debug, Clone, Args)]
pub struct ManagerArgs {
    /// Where agents connect (gRPC): :PORT, IP:PORT, tcp://IP:PORT or unix:///PATH.
    #[arg(long, env = "OUTRIGGER_BIND_ADDRESS", default_value = "tcp://:9090", value_name = "ADDRESS")]
    pub bind_address: Bind,

    /// Serve gRPC in plain text and trust every caller. Allowed on loopback addresses and socket files only.
    #[arg(long, env = "OUTRIGGER_INSECURE")]
    pub insecure: bool,

    /// Address of the HTTPS port on which users of the infrastructure cluster ask, with a bearer token, which workloads of a tenant are
    /// known and how their companions are: :PORT or IP:PORT. It has the certificate of gRPC. Without it nobody can ask.
    #[arg(long, env = "OUTRIGGER_QUERY_ADDRESS", value_name = "ADDRESS")]
    pub query_address: Option<Bind>,

    /// Tokens that one address may have reviewed in a minute by queries, after a burst of a sixth of that, from 6 to 60,000. An accepted
    /// token is reviewed again after 10 s, so each user who asks all the time needs 6. A console or a proxy has one address for all of its
    /// users.
    #[arg(
        long,
        env = "OUTRIGGER_QUERY_REVIEWS_PER_MINUTE",
        default_value_t = 120,
        value_parser = clap::value_parser!(u32).range(6..=60_000),
        value_name = "COUNT"
    )]
    pub query_reviews_per_minute: u32,

    /// Name in client certificates (SPIFFE id or DNS name) of an administrator, who may act for every tenant. May be
    /// given several times, or separated by commas.
    #[arg(long, env = "OUTRIGGER_ADMIN_IDENTITY", value_delimiter = ',', value_parser = Identity::new, value_name = "NAME")]
    pub admin_identity: Vec<Identity>,

    /// Largest message of a workload stream, in bytes; 32 MiB at most. An agent before 0.2 sends all Pods of its cluster in one
    /// message, about 1 KiB each; later ones send chunks.
    #[arg(
        long,
        env = "OUTRIGGER_MAX_MESSAGE_BYTES",
        default_value_t = grpc::limits::STREAM_MESSAGE.bytes,
        value_parser = grpc::limits::message_bytes,
        value_name = "BYTES"
    )]
    pub max_message_bytes: usize,

    /// Most streams that one tenant may have open. Only the latest is served; the others are being closed.
    #[arg(long, env = "OUTRIGGER_MAX_STREAMS_PER_TENANT", default_value_t = 4, value_name = "COUNT")]
    pub max_streams_per_tenant: usize,

    /// Most messages per second of one stream. Faster streams are slowed down.
    #[arg(long, env = "OUTRIGGER_MAX_MESSAGES_PER_SECOND", default_value_t = 20_000, value_name = "COUNT")]
    pub max_messages_per_second: u32,

    /// Connections at once.
    #[arg(long, env = "OUTRIGGER_MAX_CONNECTIONS", default_value_t = grpc::limits::CONNECTIONS, value_name = "COUNT")]
    pub max_connections: usize,

    /// Age at which a connection is closed, so that its agent reconnects, plus or minus a tenth: 30m, 2h.
    #[arg(long, env = "OUTRIGGER_MAX_CONNECTION_AGE", default_value = "1h", value_parser = duration, value_name = "DURATION")]
    pub max_connection_age: Duration,

    /// Companions that are reconciled concurrently, from 1 to 500; half of them of one tenant at most. Each waits for one write of
    /// the API server, which serves 200 mutating requests at once by default, to all its clients together.
    #[arg(
        long,
        env = "OUTRIGGER_MAX_CONCURRENT_RECONCILES",
        default_value_t = 100,
        value_parser = concurrent_reconciles,
        value_name = "COUNT"
    )]
    pub max_concurrent_reconciles: usize,

    /// How long a companion of an AdminWorkloadRule waits before it is replaced in a rollout because of what its tenant tells about the
    /// workload's owner and its PodDisruptionBudgets, or because the tenant has more workloads than its DPUs have room for: 30m, 2h. 0s: such
    /// companions never wait for it. Companions of tenants' own rules wait without a limit.
    #[arg(long, env = "OUTRIGGER_ADMIN_ROLLOUT_DEADLINE", default_value = "1h", value_parser = duration, value_name = "DURATION")]
    pub admin_rollout_deadline: Duration,

    /// Labels on DPU Nodes that name the host the DPU sits in, separated by commas. The first that a Node has counts.
    #[arg(long = "host-label", env = "OUTRIGGER_HOST_LABEL", default_value_t, value_name = "KEYS")]
    pub host_labels: HostLabels,

    /// Serve NamespaceOffloadings where the cluster has them: label their namespaces and write their status. Turn this
    /// off where Liqo's own controllers do so.
    #[arg(
        long,
        env = "OUTRIGGER_MANAGE_OFFLOADING",
        default_value_t = true,
        action = clap::ArgAction::Set,
        value_name = "true|false"
    )]
    pub manage_offloading: bool,

    /// Taint the DPUs of tenants, so that only Pods of their tenants, and others that tolerate all taints, start there. Turn this off where
    /// the platform runs Pods on DPUs that don't tolerate the taint, such as the DaemonSets of a network. Tenants are kept apart without
    /// it, by required node affinity; whoever may create Pods outside of tenants' namespaces can then place them on tenants' DPUs.
    #[arg(
        long,
        env = "OUTRIGGER_TAINT_DPUS",
        default_value_t = true,
        action = clap::ArgAction::Set,
        value_name = "true|false"
    )]
    pub taint_dpus: bool,

    /// Serve Machines where the cluster has them: mark their nodes, keep slots free with reservations, and write their status.
    /// Turn this off where Imperator's own controllers do so.
    #[arg(
        long,
        env = "OUTRIGGER_MANAGE_MACHINES",
        default_value_t = true,
        action = clap::ArgAction::Set,
        value_name = "true|false"
    )]
    pub manage_machines: bool,

    /// Namespace of the reservations of Machines. It has to exist, with the roles in it.
    #[arg(long, env = "OUTRIGGER_CORE_NAMESPACE", default_value = keys::CORE_NAMESPACE, value_parser = namespace, value_name = "NAMESPACE")]
    pub core_namespace: String,

    /// Image of reservations: a program that waits until it is terminated. It runs as user 65535 without any rights.
    #[arg(
        long,
        env = "OUTRIGGER_RESERVATION_IMAGE",
        default_value = "registry.k8s.io/pause:3.10",
        value_name = "IMAGE"
    )]
    pub reservation_image: String,

    /// Run `sleep infinity` in reservations instead of the image's own program. Images such as alpine need it: their program ends at once,
    /// and would be started over and over.
    #[arg(
        long,
        env = "OUTRIGGER_RESERVATION_SLEEPS",
        default_value_t = false,
        action = clap::ArgAction::Set,
        value_name = "true|false"
    )]
    pub reservation_sleeps: bool,

    /// Namespace of AdminWorkloadRules. Rules in other namespaces are not served.
    #[arg(long, env = "OUTRIGGER_ADMIN_RULES_NAMESPACE", default_value = keys::ADMIN_NAMESPACE, value_parser = namespace, value_name = "NAMESPACE")]
    pub admin_rules_namespace: String,

    /// Namespace of the companions of AdminWorkloadRules, of all tenants.
    #[arg(long, env = "OUTRIGGER_ADMIN_RESOURCES_NAMESPACE", default_value = keys::ADMIN_NAMESPACE, value_parser = namespace, value_name = "NAMESPACE")]
    pub admin_resources_namespace: String,

    /// Level of enforcement of Tenants whose spec.enforcement names none: Observe, Warn or Enforce. It has to be the same for webhook and
    /// manager.
    #[arg(long, env = "OUTRIGGER_ENFORCEMENT", default_value_t, value_name = "LEVEL")]
    pub enforcement: Enforcement,

    /// Namespace of the Lease that elects the leader for tenants and DPUs.
    #[arg(long, env = "OUTRIGGER_LEASE_NAMESPACE", default_value = keys::SYSTEM_NAMESPACE, value_parser = namespace, value_name = "NAMESPACE")]
    pub lease_namespace: String,

    #[command(flatten)]
    pub(crate) tls: ServerTlsArgs,

    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,

    #[command(flatten)]
    pub(crate) process: ProcessArgs,
}

/// Most companions that may be reconciled concurrently: each keeps an object and a request in memory.
const MAX_CONCURRENT_RECONCILES: usize = 500;

/// Reads a number of companions that are reconciled concurrently. Fails when it is no number, 0, or too large.
fn concurrent_reconciles(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count) if (1..=MAX_CONCURRENT_RECONCILES).contains(&count) => Ok(count),
        Ok(count) => Err(format!("is {count}; use a number from 1 to {MAX_CONCURRENT_RECONCILES}")),
        Err(e) => Err(format!("is no number of companions: {e}")),
    }
}

impl ManagerArgs {
    /// The most companions of one tenant that are reconciled at the same time: half of all, and 1 at least.
    pub(crate) fn companions_of_one_tenant(&self) -> usize {
        (self.max_concurrent_reconciles / 2).max(1)
    }

    /// The namespaces of admin rules and their companions.
    pub(crate) fn admin_namespaces(&self) -> AdminNamespaces {
        AdminNamespaces::new(&self.admin_rules_namespace, &self.admin_resources_namespace)
    }

    /// Checks settings that depend on each other, and loads the certificates; `None` where connections are in plain text. Fails
    /// when settings contradict each other, or a file can't be used.
    pub(crate) fn transport(&self) -> anyhow::Result<Option<Arc<ServerTls>>> {
        let tls = self.tls.load()?;
        match (&tls, self.insecure) {
            (Some(_), true) => bail!("--insecure is given together with a certificate; remove one of them"),
            (None, false) => {
                bail!(
                    "--tls-cert-file and --tls-key-file are needed, or --tls self-signed, or --insecure on loopback or a socket"
                )
            }
            (None, true) if self.query_address.is_some() => {
                bail!("--query-address needs a certificate: callers send tokens; remove it or --insecure")
            }
            (None, true) if !self.bind_address.is_local() => {
                bail!("--insecure is only allowed on loopback or a socket file, not on {}", self.bind_address)
            }
            (Some(_), false) if self.tls.tls_client_ca_file.is_none() => {
                bail!("--tls-client-ca-file is needed: a tenant is known by its client certificate")
            }
            _ => Ok(tls),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::fixtures;

    #[test]
    fn queries_need_a_certificate() {
        let of = |flags: &[&str]| {
            let args =
                fixtures::args_of(&[&["--insecure", "--bind-address=127.0.0.1:1"], flags].concat()).unwrap();
            args.transport().map(|tls| tls.is_some()).map_err(|error| error.to_string())
        };
        assert_eq!(of(&[]), Ok(false));
        let error = of(&["--query-address=127.0.0.1:2"]).unwrap_err();
        assert!(error.contains("--query-address needs a certificate"), "{error}");
    }

    #[test]
    fn concurrent_reconciles_are_bounded_and_shared_among_tenants() {
        let of = |flags: &[&str]| {
            let args = fixtures::args_of(flags).map_err(|error| error.to_string())?;
            Ok::<_, String>((args.max_concurrent_reconciles, args.companions_of_one_tenant()))
        };
        assert_eq!(of(&[]), Ok((100, 50)));
        assert_eq!(of(&["--max-concurrent-reconciles=1"]), Ok((1, 1)));
        assert_eq!(of(&["--max-concurrent-reconciles=500"]), Ok((500, 250)));
        for (wrong, says) in
            [("0", "is 0; use a number from 1 to 500"), ("501", "is 501"), ("x", "is no number")]
        {
            let said = of(&[&format!("--max-concurrent-reconciles={wrong}")]).unwrap_err();
            assert!(said.contains(says), "{said}");
        }
    }
}
