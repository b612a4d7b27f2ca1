//! A tenant in the domain: the certificates that authenticate it, its hosts, and what it may do.

pub mod exceptions;
pub mod hosts;
pub mod nodes;

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use self::exceptions::Exception;
use self::hosts::HostNames;
use crate::ids::{IdError, TenantId, bounded, id, malformed};
use crate::syntax::is_short_dns_label;

/// A tenant that the platform has admitted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenant {
    /// Its namespace in the infrastructure cluster.
    pub namespace: String,
    /// Names in client certificates that speak for it.
    pub identities: Vec<Identity>,
    /// Names of its hosts: a DPU whose host label names one of them is its own.
    pub hosts: BTreeSet<String>,
    /// Names that some of these have as Nodes of its cluster.
    pub host_names: Arc<HostNames>,
    /// How much it may have.
    pub limits: Limits,
    /// What its Pods may do.
    pub policy: Policy,
    /// How strictly the checks that concern its own Pods alone are enforced; `None`: as the installation says.
    pub enforcement: Option<Enforcement>,
    /// Pods that such checks let through at every level.
    pub exceptions: Vec<Exception>,
}

impl Tenant {
    /// How strictly the checks that concern its own Pods alone are enforced. `installation`: the level of Tenants that name none.
    pub fn level(&self, installation: Enforcement) -> Enforcement {
        self.enforcement.unwrap_or(installation)
    }

    /// The exceptions that haven't ended. `now`: in seconds since the beginning of 1970.
    pub fn active_exceptions(&self, now: i64) -> impl Iterator<Item = &Exception> {
        self.exceptions.iter().filter(move |exception| exception.is_active(now))
    }

    /// Hosts that no Node of the tenant's cluster is in, because the Node of the same name is in another one, each with that one.
    pub fn without_node(&self) -> impl Iterator<Item = (&str, &str)> {
        let hosts = self.hosts.iter().filter(|host| self.host_names.node(host).is_none());
        hosts.map(|host| (host.as_str(), self.host_names.host(host).unwrap_or_default()))
    }
}

/// The namespace that a tenant of this name has unless its Tenant names another one.
pub fn usual_namespace(tenant: &str) -> String {
    format!("tenant-{tenant}")
}

/// How much a tenant may have. What is over a limit is refused; what is there stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Pods in its namespace.
    pub companions: u32,
    /// WorkloadRules in its namespace.
    pub rules: u32,
    /// Size of all those rules together, each as [`crate::rule::size`] counts it.
    pub rule_bytes: u64,
    /// Workloads that its agent sends.
    pub workloads: u32,
    /// Bytes of all those workloads together, as protobuf, and 64 for each of their labels and annotations.
    pub workload_bytes: u64,
    /// Calls for its rules in a second, over gRPC.
    pub rule_calls_per_second: u32,
    /// Bytes of the messages of such calls in a second.
    pub rule_bytes_per_second: u64,
}

impl Limits {
    /// How many pairs of a rule of its own and a workload that it matches are kept: twice as many as may become companions, and
    /// [`Self::SPARE_MATCHES`] more, so that what a quota refuses is reported rule by rule. As many again may wait for their
    /// workload's node.
    pub fn matches(&self) -> usize {
        usize::try_from(self.companions)
            .unwrap_or(usize::MAX)
            .saturating_mul(2)
            .saturating_add(Self::SPARE_MATCHES)
    }

    /// Matches that every tenant has room for, however few companions it may have.
    pub const SPARE_MATCHES: usize = 1_000;
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            companions: 10_000,
            rules: 1_000,
            rule_bytes: 4 << 20,
            workloads: 100_000,
            workload_bytes: 128 << 20,
            rule_calls_per_second: 50,
            rule_bytes_per_second: 1 << 20,
        }
    }
}

/// What a tenant takes of memory, in bytes. `src/api/tests/memory.rs` compares this with what an allocator counts.
pub mod memory {
    use super::Limits;

    /// What companions take of the manager, each.
    const COMPANION: u64 = 2048;
    /// What is kept of a match, a pair of a rule and a workload.
    const MATCH: u64 = 256;
    /// What rules take of the webhook, each, beside their sizes.
    const ADMITTED_RULE: u64 = 512;

    /// Workloads, in the manager and in the agent; `size` is what they count of [`Limits::workload_bytes`].
    pub fn workloads(count: u64, size: u64) -> u64 {
        count * 1300 + size * 5 / 4
    }

    /// Rules in the manager; `size` is what they count of [`Limits::rule_bytes`].
    pub fn rules(size: u64) -> u64 {
        2 * size
    }

    /// Rules in the webhook.
    pub fn admitted_rules(count: u64, size: u64) -> u64 {
        count * ADMITTED_RULE + size / 4
    }

    /// Matches.
    pub fn matches(count: u64) -> u64 {
        count * MATCH
    }

    /// Companions in the manager.
    pub fn companions(count: u64) -> u64 {
        count * COMPANION
    }

    /// A tenant that uses all of its limits, in the manager.
    pub fn of_manager(limits: &Limits) -> u64 {
        rules(limits.rule_bytes)
            + of_agent(limits)
            + matches(2 * limits.matches() as u64)
            + companions(limits.companions.into())
    }

    /// The same in its agent.
    pub fn of_agent(limits: &Limits) -> u64 {
        workloads(limits.workloads.into(), limits.workload_bytes)
    }

    /// The same in the webhook.
    pub fn of_webhook(limits: &Limits) -> u64 {
        admitted_rules(limits.rules.into(), limits.rule_bytes)
    }
}

/// What the Pods of a tenant may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// The tenant that owns the Pods.
    pub tenant: TenantId,
    /// Level of the Pod Security Standards.
    pub pod_security: PodSecurity,
    /// Service accounts beside `default`.
    pub service_accounts: BTreeSet<String>,
    /// PriorityClasses beside the cluster's default.
    pub priority_classes: BTreeSet<String>,
    /// RuntimeClasses.
    pub runtime_classes: BTreeSet<String>,
    /// DeviceClasses of its ResourceClaims.
    pub device_classes: BTreeSet<String>,
}

impl Policy {
    /// The strictest: baseline, and nothing on a list.
    pub fn new(tenant: TenantId) -> Self {
        Self {
            tenant,
            pod_security: PodSecurity::Baseline,
            service_accounts: BTreeSet::new(),
            priority_classes: BTreeSet::new(),
            runtime_classes: BTreeSet::new(),
            device_classes: BTreeSet::new(),
        }
    }
}

/// How strictly the checks that concern a tenant's own Pods alone are enforced
/// ([`OwnPods`](crate::validate::Protects::OwnPods)). All others are enforced at every level. A lower level comes first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Enforcement {
    /// What they refuse is admitted with a warning, and nothing is changed because of them.
    Observe,
    /// What they refuse is admitted with a warning.
    Warn,
    /// What they refuse is refused.
    #[default]
    Enforce,
}

impl Enforcement {
    /// All levels, the lowest first.
    pub const ALL: [Self; 3] = [Self::Observe, Self::Warn, Self::Enforce];

    /// As the field `spec.enforcement` of a Tenant spells it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Observe => "Observe",
            Self::Warn => "Warn",
            Self::Enforce => "Enforce",
        }
    }

    /// The level of this name.
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.as_str() == name)
    }

    /// Most Pods that [`Self::would_be_refused`] names.
    pub const SHOWN: usize = 10;

    /// How many running Pods of a tenant would be refused if they were created at the level Enforce, with the first names.
    /// Nothing evicts them.
    pub fn would_be_refused(pods: &BTreeSet<String>) -> String {
        if pods.is_empty() {
            return "no running Pod is known that would be refused".to_owned();
        }
        let named: Vec<&str> = pods.iter().take(Self::SHOWN).map(String::as_str).collect();
        let of = match pods.len() {
            1 => "a running Pod".to_owned(),
            count => format!("{count} running Pods"),
        };
        let mut text = format!("{of} would be refused if created now: {}", named.join(", "));
        if pods.len() > Self::SHOWN {
            text.push_str(&format!(", and {} more", pods.len() - Self::SHOWN));
        }
        text
    }
}

impl fmt::Display for Enforcement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Enforcement {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::of(text).ok_or_else(|| format!("is {text:?}; use Observe, Warn or Enforce"))
    }
}

/// A level of the Pod Security Standards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodSecurity {
    /// Whatever the node allows. A tenant with it owns its DPUs, kubelet credentials included.
    Privileged,
    /// No way out of the container that is known.
    Baseline,
    /// Hardened.
    Restricted,
}

impl PodSecurity {
    /// As namespaces' labels spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Privileged => "privileged",
            Self::Baseline => "baseline",
            Self::Restricted => "restricted",
        }
    }

    /// The level of that name.
    pub fn of(name: &str) -> Option<Self> {
        [Self::Privileged, Self::Baseline, Self::Restricted].into_iter().find(|level| level.as_str() == name)
    }
}

id! {
    /// A name in a client certificate: a SPIFFE id (URI SAN) or a DNS name (DNS SAN).
    Identity
}

impl Identity {
    /// Longest SPIFFE id, in bytes (SPIFFE-ID, section 2.3).
    pub const MAX: usize = 2048;
    const SCHEME: &str = "spiffe://";

    /// Checks and takes a name. Wildcards are none: an identity is one client.
    pub fn new(value: &str) -> Result<Self, IdError> {
        const WHAT: &str = "identity";
        bounded(WHAT, value, if value.starts_with(Self::SCHEME) { Self::MAX } else { 253 })?;
        if let Some(rest) = value.strip_prefix(Self::SCHEME) {
            if !is_spiffe(rest) {
                return Err(malformed(
                    WHAT,
                    value,
                    "spiffe://TRUST-DOMAIN/PATH, the trust domain in lower-case letters, digits, '.', '-' and '_', \
                     the path of segments of letters, digits, '.', '-' and '_'",
                ));
            }
        } else if !value.split('.').all(is_short_dns_label) {
            return Err(malformed(
                WHAT,
                value,
                "a SPIFFE id (spiffe://TRUST-DOMAIN/PATH) or a DNS name in lower case, without wildcard",
            ));
        }
        Ok(Self(value.into()))
    }
}

/// What follows the scheme (SPIFFE-ID, sections 2.1 and 2.2). A trust domain's own id, without a path, is a CA's and
/// no tenant's client.
fn is_spiffe(rest: &str) -> bool {
    let Some((domain, path)) = rest.split_once('/') else { return false };
    let lower = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'-' | b'_');
    let segment = |s: &str| {
        !matches!(s, "" | "." | "..")
            && s.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
    };
    !domain.is_empty() && domain.len() <= 255 && domain.bytes().all(lower) && path.split('/').all(segment)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities() {
        for good in ["spiffe://example.org/ns/a/sa/b", "spiffe://x/y", "agent.tenant1.example", "localhost"] {
            assert_eq!(Identity::new(good).unwrap().as_str(), good);
        }
        let long = format!("spiffe://x/{}", "y".repeat(2048));
        for bad in [
            "",
            "spiffe://",
            "spiffe://x",
            "spiffe://x/",
            "spiffe:///y",
            "spiffe://X/y",
            "spiffe://x/../y",
            "spiffe://x//y",
            "spiffe://x/y z",
            "spiffe://x:1/y",
            "*.example.org",
            "A.example",
            "a b",
            "-a",
            "a..b",
            "https://x/y",
            &long,
        ] {
            assert!(Identity::new(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn levels() {
        for level in [PodSecurity::Privileged, PodSecurity::Baseline, PodSecurity::Restricted] {
            assert_eq!(PodSecurity::of(level.as_str()), Some(level));
        }
        assert_eq!(PodSecurity::of("Baseline"), None);
    }

    #[test]
    fn enforcement_is_strict_by_default_and_no_other_word_is_a_level() {
        assert_eq!(Enforcement::default(), Enforcement::Enforce);
        assert!(Enforcement::ALL.is_sorted() && Enforcement::ALL[2] == Enforcement::Enforce);
        for level in Enforcement::ALL {
            assert_eq!(level.to_string().parse(), Ok(level));
        }
        for wrong in ["", "observe", "Off", "Enforce "] {
            assert!(
                wrong.parse::<Enforcement>().unwrap_err().contains("use Observe, Warn or Enforce"),
                "{wrong}"
            );
        }
    }

    #[test]
    fn at_most_ten_pods_that_would_be_refused_are_named() {
        let of =
            |count: usize| Enforcement::would_be_refused(&(0..count).map(|i| format!("p{i:02}")).collect());
        assert_eq!(of(0), "no running Pod is known that would be refused");
        assert_eq!(of(1), "a running Pod would be refused if created now: p00");
        assert!(of(10).starts_with("10 running Pods") && of(10).ends_with("p08, p09"), "{}", of(10));
        assert!(of(12).starts_with("12 running Pods") && of(12).ends_with("p09, and 2 more"), "{}", of(12));
    }

    #[test]
    fn a_tenant_has_the_documented_limits_where_it_names_none() {
        let documented = Limits {
            companions: 10_000,
            rules: 1_000,
            rule_bytes: 4_194_304,
            workloads: 100_000,
            workload_bytes: 134_217_728,
            rule_calls_per_second: 50,
            rule_bytes_per_second: 1_048_576,
        };
        assert_eq!(Limits::default(), documented);
    }

    #[test]
    fn memory_of_a_tenant_is_that_of_all_its_parts() {
        let limits = Limits {
            companions: 10,
            rules: 4,
            rule_bytes: 1_000,
            workloads: 100,
            workload_bytes: 2_000,
            ..Limits::default()
        };
        assert_eq!(memory::of_agent(&limits), 100 * 1300 + 2_500);
        let matches = 2 * (2 * 10 + 1_000);
        assert_eq!(memory::of_manager(&limits), 2_000 + 132_500 + matches * 256 + 10 * 2048);
        assert_eq!(memory::of_webhook(&limits), 4 * 512 + 250);
    }
}
