//! Findings of `outrigger check`.
//!
//! Every finding belongs to a [`Check`], whose id is stable, because scripts and code scanners use it.

use std::fmt;

use outrigger_admission::Decision;
use outrigger_core::field::FieldError;
use outrigger_core::reason::Cause;
use serde::Serialize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
    /// The object doesn't work as it says.
    Error,
    /// The object probably doesn't work as its author wants, or not yet.
    Warning,
    /// For information.
    Note,
}

impl Severity {
    /// The severity as a word, which is also SARIF's level.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Note => "note",
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Check {
    pub(crate) id: &'static str,
    pub(crate) severity: Severity,
    /// What such a finding says.
    pub(crate) summary: &'static str,
    pub(crate) help: &'static str,
    /// What conditions and Events of the cluster say of the same.
    pub(crate) reason: Option<Cause>,
}

impl Check {
    /// Its id, and the reason that the cluster names.
    pub(crate) fn words(&self) -> String {
        self.reason.map_or_else(|| self.id.to_owned(), |reason| format!("{}, {reason}", self.id))
    }
}

/// The reason of a check, or none.
macro_rules! reason {
    () => {
        None
    };
    ($reason:ident) => {
        Some(Cause::$reason)
    };
}

macro_rules! checks {
    ($($name:ident = $id:literal, $severity:ident $(as $reason:ident)?, $summary:literal, $help:literal;)*) => {
        $(pub(crate) static $name: Check = Check {
            id: $id,
            severity: Severity::$severity,
            summary: $summary,
            help: $help,
            reason: reason!($($reason)?),
        };)*

        /// All checks, in the order of the documentation.
        pub(crate) static CHECKS: &[&Check] = &[$(&$name),*];
    };
}

checks! {
    REFUSED = "refused", Error, "Outrigger's admission refuses it",
        "Change the field as the message says.";
    API_REFUSES = "api-server-refuses", Error, "The API server refuses it, or what is made of it",
        "Change the field as the message says.";
    NEVER_MATCHES = "never-matches", Error as NoMatch, "No workload can ever match the rule",
        "Take one of the two expressions out, or put them into terms of their own.";
    UNSENT = "annotations-not-sent", Note as AnnotationsNotSent, "The rule names annotations that agents send only if their tenants admit them",
        "Have the tenants admit them by --allow-annotation of their agents, or select by labels: docs/what-leaves.md.";
    NO_NODE = "no-node-can-match", Error as NoMatchingDpu, "No node can ever take the rule's companions",
        "Correct one of the selectors of the template, or take it out; Outrigger places companions by itself.";
    DANGLING = "dangling-reference", Warning, "The template reads an annotation that nothing writes",
        "Inject it by workloadInfoInject, or write its name as it is injected.";
    QUOTES = "double-quotes", Note, "A path of the template has double quotes, which are single ones in companions",
        "Write single quotes.";
    PLACEMENT = "doubtful-placement", Warning, "Companions run in fewer places than it looks, or wait for one",
        "Take the selector out of the template, or add DPUs.";
    DOUBTFUL = "doubtful", Warning, "It is admitted, and probably not what is meant",
        "See the message.";
    NEVER_ALLOCATED = "never-allocated", Warning as ClaimNotAllocated, "The claim is admitted, and something of it can't be had",
        "Ask for less, or for something else, as the message says.";
    DROPPED_FIELD = "dropped-field", Note, "API servers without a feature gate drop the field without a word",
        "Do without it where older clusters are meant, or turn the gate on there.";
    NO_CLASS = "no-device-class", Error as ClaimNotAllocated, "There is no such DeviceClass",
        "Create it, or name one that is there.";
    FROM_RULE = "from-rule-missing", Warning, "A rule shares the claim of one that makes none",
        "Create that rule with a ResourceClaim as template, or correct the name.";
    DPU_UNOWNED = "dpu-without-owner", Warning as HostNotListed, "A DPU belongs to no tenant, so nothing runs there",
        "Add its host to a Tenant's spec.hosts, and to spec.hostNames if the host's Node has another name.";
    DPU_DISPUTED = "dpu-of-several", Error as HostConflict, "Several tenants claim one host, so none gets its DPUs",
        "Leave the host to one of the Tenants.";
    DPU_HOSTS_DIFFER = "dpu-in-two-hosts", Warning, "Two labels of a DPU name different hosts, of which the first counts",
        "Correct one of the labels, or leave a label out of --host-label.";
    HOST_WITHOUT_DPU = "host-without-dpu", Warning as NoDpu, "A tenant's host has no DPU",
        "Label the DPU's Node with its host, correct the name, or list the name that the label has and map it by spec.hostNames.";
    HOST_WITHOUT_NODE = "host-without-node", Warning, "No workload can be on a tenant's host: another host is the Node of its name",
        "Add an entry for the host to spec.hostNames, or take it out of spec.hosts.";
    HOST_NAME = "host-name-unusable", Error as HostNameUnusable, "No DPU can be labelled with the name of a tenant's host",
        "Take the host out of spec.hosts, or have its Node renamed: a label's value has at most 63 characters.";
    NAMESPACE_WITHOUT_TENANT = "namespace-without-tenant", Warning, "A namespace has the label of a Tenant that doesn't exist, and DPUs with Pods of it aren't handed over",
        "Create the Tenant, or delete the Pods that were admitted as the tenant's, and then remove the label: docs/tenants.md.";
    MACHINE_NODE = "machine-node-missing", Error as Failure, "A Machine's node doesn't exist",
        "Correct the name, or take it out of spec.nodePool.";
    MACHINE_GPU_LABEL = "machine-gpu-label", Error, "A Machine's node doesn't say that it has the promised GPU",
        "Label the node (NVIDIA's GPU feature discovery does), or correct the type's gpu.";
    MACHINE_CAPACITY = "machine-capacity", Error as NoRoom, "A Machine promises more than its nodes can hold",
        "Lower available, make the type smaller, or add nodes.";
    MACHINE_GPU = "machine-gpu-missing", Error, "Neither a node nor a DeviceClass has the promised GPU",
        "Install the device plugin, or create a DeviceClass with that extendedResourceName.";
    MACHINE_INVALID = "machine-invalid", Error, "A Machine can't be reckoned with",
        "Change the field as the message says.";
    UNREACHABLE = "unreachable", Error, "The API server doesn't reach the webhook",
        "See docs/runbooks/OutriggerWebhookUnreachable.md.";
    CA_UNUSABLE = "ca-unusable", Error, "A CA bundle is empty, can't be read, or has ended",
        "Put the CA in, as docs/certificates.md tells; cert-manager or --tls self-signed does it by itself.";
    CA_MISMATCH = "ca-mismatch", Error, "Who verifies a certificate doesn't trust who signed it, or it has another name",
        "See docs/certificates.md: who verifies has to trust a CA before it signs.";
    CERTIFICATE_ENDED = "certificate-ended", Error, "A certificate has ended, or isn't good yet",
        "Renew it: docs/runbooks/OutriggerCertificateExpires.md.";
    CERTIFICATE_ENDS = "certificate-ends", Warning, "A certificate ends soon, and nobody has renewed it",
        "Renew it: docs/runbooks/OutriggerCertificateExpires.md.";
    RIGHT_MISSING = "right-missing", Error, "A part of Outrigger lacks a right that it needs",
        "Apply the part's rbac.yaml of this version once more.";
    SKEW = "version-skew", Error, "Parts of Outrigger are more than one minor version apart",
        "Upgrade step by step, the infrastructure cluster first: docs/upgrades.md.";
    VERSIONS = "versions-differ", Warning, "Parts of Outrigger, or replicas of one, are of different versions",
        "Finish the upgrade, or check with the outrigger of the version that is installed.";
    LEVELS = "enforcement-differs", Warning, "Webhook and manager give Tenants that name none different levels of enforcement",
        "Give both the same --enforcement: docs/tenants.md, Levels of enforcement.";
    RUNNING = "running-refused", Error, "Admission would refuse a running Pod, or its binding, if it were created now",
        "Correct what creates it, or allow it in the Tenant; then delete the Pod.";
    BELOW = "refused-at-enforce", Warning, "Admission would refuse it at the level Enforce without exceptions, and its Tenant has a lower level or an exception",
        "Correct it before the level is raised or the exception ends: docs/tenants.md, Levels of enforcement.";
    NODE_WITHOUT_HOST = "node-without-host", Warning, "A Node of a tenant's cluster is none of the tenant's hosts, or its name and its labels say different ones",
        "Add the host to spec.hosts of the Tenant, and the Node to spec.hostNames if the host has another name: docs/tenants.md.";
    GATE_OPEN = "gate-open", Note, "The agent's gate answers clients without a certificate",
        "Let the API servers show one, and set --tls-client-ca-file: docs/ordering.md, Enabling it.";
}

/// The object that a finding is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Subject {
    pub(crate) kind: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl Subject {
    pub(crate) fn new(kind: &str, namespace: &str, name: &str) -> Self {
        Self { kind: kind.to_owned(), namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// An object outside of namespaces.
    pub(crate) fn cluster(kind: &str, name: &str) -> Self {
        Self::new(kind, "", name)
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, namespace, name } = self;
        if namespace.is_empty() { write!(f, "{kind} {name}") } else { write!(f, "{kind} {namespace}/{name}") }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) check: &'static Check,
    pub(crate) subject: Subject,
    /// Path of the field; empty where the finding isn't about a single field.
    pub(crate) path: String,
    /// What was found, and the remedy where it differs from the check's.
    pub(crate) message: String,
}

impl Finding {
    /// A finding about a field.
    pub(crate) fn new(
        check: &'static Check,
        subject: &Subject,
        path: impl fmt::Display,
        message: impl fmt::Display,
    ) -> Self {
        Self { check, subject: subject.clone(), path: path.to_string(), message: message.to_string() }
    }

    /// The field, and what was found.
    pub(crate) fn text(&self) -> String {
        let Self { path, message, .. } = self;
        if path.is_empty() { message.clone() } else { format!("{path}: {message}") }
    }

    /// Why admission refuses an object, or would do so at the level Enforce.
    pub(crate) fn of_decision(check: &'static Check, subject: &Subject, decision: Decision) -> Vec<Self> {
        let would_deny = decision.would_deny();
        match decision {
            Decision::Deny { message, causes, .. } if causes.is_empty() => {
                vec![Self::new(check, subject, "", message)]
            }
            Decision::Deny { causes, .. } => Self::of_faults(check, subject, causes).collect(),
            Decision::Allow { warnings, .. } if would_deny => {
                warnings.iter().map(|warning| Self::new(&BELOW, subject, "", warning)).collect()
            }
            Decision::Allow { .. } => Vec::new(),
        }
    }

    pub(crate) fn of_faults<'a>(
        check: &'static Check,
        subject: &'a Subject,
        faults: Vec<FieldError>,
    ) -> impl Iterator<Item = Self> + use<'a> {
        faults.into_iter().map(move |fault| Self::new(check, subject, fault.path, fault.message))
    }
}

#[cfg(test)]
mod tests;
