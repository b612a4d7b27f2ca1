//! The table of metrics.

use super::Kind::{Counter, Gauge, Histogram, Info};
use super::Server::{Agent, Console, Host, Manager, Webhook};
use super::Values::{Named, OneOf};
use super::{Kind, Metric, Server, Values};

/// Outcomes of a request to an API server or to the manager.
const OUTCOMES: Values = OneOf(&["Ok", "Refused", "Failed"]);
/// What came of writes of the agent.
const AGENT_WRITE_OUTCOMES: Values = OneOf(&["Ok", "Failed", "Refused", "Forbidden"]);
/// Kinds of messages on a workload stream.
const MESSAGE_KINDS: Values = OneOf(&["Update", "Delete", "Sync", "Chunk"]);
/// The label of metrics of watches.
const WATCH: &[(&str, Values)] = &[("watch", Named("as in `/readyz`"))];

/// Standard metrics of a process, which have no prefix because the Prometheus client libraries export them with these names.
pub const STANDARD: &[&str] = &[
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
    "process_virtual_memory_bytes",
    "process_threads",
    "process_open_fds",
    "process_max_fds",
    "process_start_time_seconds",
];

/// A metric without a unit.
const fn plain(
    name: &'static str,
    kind: Kind,
    of: &'static [Server],
    labels: &'static [(&'static str, Values)],
    help: &'static str,
) -> Metric {
    Metric { name, kind, unit: "", labels, of, help }
}

/// A metric in seconds.
const fn seconds(
    name: &'static str,
    kind: Kind,
    of: &'static [Server],
    labels: &'static [(&'static str, Values)],
    help: &'static str,
) -> Metric {
    Metric { unit: "seconds", ..plain(name, kind, of, labels, help) }
}

/// Declares a constant for each metric, documented by its help text, and [`ALL`].
macro_rules! table {
    ($($constant:ident = $unit:ident($name:literal, $kind:ident, $of:expr, $labels:expr, $help:literal);)*) => {
        $(#[doc = $help] pub const $constant: Metric = $unit($name, $kind, $of, $labels, $help);)*

        /// All metrics with the prefix, in the order of the documentation.
        pub const ALL: &[&Metric] = &[$(&$constant),*];
    };
}

table! {
    BUILD = plain("build", Info, Server::ALL,
        &[("version", Named("as in `outrigger --version`")), ("commit", Named("of the source, or unknown"))],
        "Version of the running process");
    STARTED = seconds("process_start_time", Gauge, Server::ALL, &[], "When the process started, Unix time");
    TASKS = plain("tasks", Gauge, Server::ALL, &[],
        "Asynchronous tasks that haven't ended: connections, watches, streams and what they wait for. A number that grows without more of these shows a leak");
    LOG_LINES_DROPPED = plain("log_lines_dropped", Counter, Server::ALL, &[],
        "Log lines that were dropped because standard error wasn't read fast enough");
    WATCH_SYNCED = plain("watch_synced", Gauge, &[Webhook, Manager, Agent], WATCH,
        "1 when all objects have been listed, 0 while a list is in progress or fails");
    WATCH_SEEN = seconds("watch_last_received_timestamp", Gauge, &[Webhook, Manager, Agent], WATCH,
        "When the API server sent something last: an event, a page of a list, or a bookmark, which is sent about once a minute. Of several watches of one name, the one that has been silent for longest; Unix time");
    WATCH_FAILURES = plain("watch_failures", Counter, &[Webhook, Manager, Agent], WATCH, "Lists and watches that failed");
    API_REQUESTS = plain("api_requests", Counter, &[Webhook, Manager, Agent, Console],
        &[("verb", OneOf(&["Get", "Watch", "Create", "Update", "Patch", "Delete"])), ("outcome", OUTCOMES)],
        "Requests to the API server; lists are Get, Refused is 4xx, Failed is 5xx, 429 or no response");
    CERTIFICATE_ENDS = seconds("tls_certificate_not_after", Gauge, &[Webhook, Manager, Agent, Console],
        &[("use", OneOf(&["serving", "client_ca", "client"]))],
        "When the certificate expires, Unix time; of several CAs, the last");
    CERTIFICATE_FAILURES = plain("tls_reload_failures", Counter, &[Webhook, Manager, Console], &[],
        "New certificates or CAs that were unusable");
    ADMISSION = seconds("admission", Histogram, &[Webhook, Agent],
        &[
            ("webhook", OneOf(&[
                "MutatePods",
                "ValidatePods",
                "ValidateClaims",
                "ValidateRules",
                "ValidateAdminRules",
                "ValidateTenants",
                "ValidateOffloadings",
                "ValidateMachines",
                "ValidateGuests",
                "GatePods",
                "GateAllPods",
                "HoldPods",
                "HoldAllPods",
            ])),
            ("verdict", OneOf(&["Allowed", "Patched", "WouldDeny", "Denied", "Behind", "Crowded", "Invalid"])),
        ],
        "Time from the last byte of a request to its response, including the time that it waits for caches. WouldDeny: admitted, and refused if the tenant's level of enforcement were Enforce");
    ADMISSION_STEP = seconds("admission_step", Histogram, &[Webhook],
        &[
            ("step", Named("as in [architecture.md](../architecture.md#admission)")),
            ("verdict", OneOf(&["Passed", "Denied"])),
        ],
        "Time that one step of a Pod's mutation took");
    GUESTS = plain("guests", Counter, &[Webhook],
        &[("outcome", OneOf(&[
            "Admitted",
            "Gated",
            "UnknownGroup",
            "UnknownType",
            "WrongMachine",
            "NotCounted",
            "NoneLeft",
            "Unavailable",
            "Changed",
        ]))],
        "Guests of Machines that were admitted or refused");
    STREAMS = plain("workload_streams", Gauge, &[Manager], &[], "Open workload streams");
    COMPANION_WATCHES = plain("companion_watches", Gauge, &[Manager], &[],
        "Open calls that tell agents how companions are");
    MESSAGES = plain("workload_messages", Counter, &[Manager], &[("kind", MESSAGE_KINDS)],
        "Messages received on workload streams");
    TENANTS = plain("tenants", Gauge, &[Manager], &[("stream", OneOf(&["Connected", "Lost", "Elsewhere"]))],
        "Tenants with a namespace, by where their stream is: at this replica, nowhere, or unknown to this replica. Connected and Lost count each tenant at one replica");
    TENANTS_BY_LEVEL = plain("tenants_by_enforcement", Gauge, &[Manager], &[("level", OneOf(&["Observe", "Warn", "Enforce"]))],
        "Tenants that are valid, by their level of enforcement; each replica counts all of them");
    BELOW_ENFORCE = seconds("tenant_below_enforce_timestamp", Gauge, &[Manager], &[],
        "Since when the tenant that has been below the level Enforce for longest is there; 0: no tenant is; Unix time");
    WORKLOADS = plain("workloads", Gauge, &[Manager], &[("stream", OneOf(&["Connected", "Lost"]))],
        "Workloads of the tenants that this replica acts for, by whether their stream is open");
    COMPANIONS_WANTED = plain("companions_wanted", Gauge, &[Manager], &[],
        "Companions that rules and workloads ask for, of the tenants that this replica acts for; likewise the next three. This and the next two leave out tenants that haven't reported all of their workloads since the replica started");
    COMPANIONS_CREATED = plain("companions_created", Gauge, &[Manager], &[], "Of these, those that exist");
    COMPANIONS_READY = plain("companions_ready", Gauge, &[Manager], &[], "Of these, those that are ready");
    COMPANIONS_REFUSED = plain("companions_refused", Gauge, &[Manager], &[],
        "Companions that the API server refuses for a reason that a user has to remove");
    COMPANIONS_BY_REASON = plain("companions_by_reason", Gauge, &[Manager], &[("reason", Named("as in [Reasons](reasons.md)"))],
        "Wanted companions that aren't ready, by the first thing that is wrong");
    COMPANION_LAG = seconds("companion_lag", Histogram, &[Manager], &[],
        "Time from the message that reported a workload to the creation of its companion");
    COMPANION_WRITE = seconds("companion_write", Histogram, &[Manager],
        &[("operation", OneOf(&["Create", "Annotate", "Resize", "Update", "Delete"])), ("outcome", OUTCOMES)],
        "Time that the API server took for a write of a companion");
    QUERIES = seconds("query", Histogram, &[Manager],
        &[("outcome", OneOf(&["Answered", "Invalid", "NotAccepted", "Forbidden", "NotFound", "Elsewhere", "Busy", "Failed"]))],
        "Time that a query about workloads took; Elsewhere: another replica serves the tenant, or none does");
    CONSOLE_REQUESTS = plain("console_requests", Counter, &[Console],
        &[
            ("route", OneOf(&[
                "Overview",
                "Missing",
                "Companions",
                "Workloads",
                "Chain",
                "Hosts",
                "Tenants",
                "Rules",
                "WhatIf",
                "Login",
                "Logout",
                "Events",
                "Files",
                "Other",
            ])),
            ("outcome", OneOf(&["Answered", "Redirected", "Refused", "Failed"])),
        ],
        "Requests of browsers; Refused is 4xx, Failed is 5xx. A stream of events counts when it begins");
    CONSOLE_SESSIONS = plain("console_sessions", Gauge, &[Console], &[], "Sessions of users who have logged in");
    CONSOLE_STREAMS = plain("console_streams", Gauge, &[Console], &[], "Open streams of events: pages that somebody sees");
    CONSOLE_QUERIES = plain("console_queries", Counter, &[Console],
        &[("outcome", OneOf(&["Answered", "Refused", "Unserved", "Unreachable", "Busy"]))],
        "Queries of managers about workloads; Unserved: no replica that was asked serves the tenant");
    QUEUE = plain("queue_keys", Gauge, &[Manager],
        &[
            ("queue", OneOf(&[
                "companions", "rules", "tenants", "unused-claims", "stream-statuses", "machines", "offloadings",
            ])),
            ("state", OneOf(&["Ready", "Delayed", "Busy"])),
        ],
        "Keys in a work queue: waiting for a worker, delayed (retries too), or being reconciled");
    LEADER = plain("leader", Gauge, &[Manager], &[], "1 while this replica holds the Lease, else 0");
    AGENT_WORKLOADS = plain("agent_workloads", Gauge, &[Agent], &[], "Workloads of the tenant cluster");
    AGENT_WORKLOADS_BY_REASON = plain("agent_workloads_by_reason", Gauge, &[Agent], &[("reason", Named("as in [Reasons](reasons.md)"))],
        "Workloads with a companion that isn't ready, by the reason of the worst, as the manager last reported it");
    AGENT_CONNECTED = plain("agent_connected", Gauge, &[Agent], &[],
        "1 while a stream to the manager is open, else 0");
    AGENT_CONNECTIONS = plain("agent_connections", Counter, &[Agent], &[], "Streams opened");
    AGENT_MESSAGES = plain("agent_messages", Counter, &[Agent], &[("kind", MESSAGE_KINDS)],
        "Messages sent on workload streams");
    AGENT_ROUNDS = plain("agent_rule_rounds", Counter, &[Agent],
        &[("outcome", OneOf(&["Ok", "Failed", "Unsupported"]))],
        "Comparisons of the tenant's rules with the manager's; Unsupported: the manager is too old for it");
    AGENT_COMPANION_WATCH = plain("agent_companion_watch", Gauge, &[Agent], &[],
        "1 while the manager reports how companions are and has reported on all of them, else 0");
    AGENT_COMPANION_WATCH_ENDS = plain("agent_companion_watch_ends", Counter, &[Agent],
        &[("outcome", OneOf(&["Closed", "Failed", "Unsupported"]))],
        "Ends of calls by which the manager tells how companions are; Unsupported: the manager is too old for it");
    AGENT_CONDITION_WRITES = plain("agent_condition_writes", Counter, &[Agent],
        &[("outcome", AGENT_WRITE_OUTCOMES)],
        "Writes of conditions of Pods; Forbidden: the agent's role doesn't allow it, Refused: a policy doesn't");
    AGENT_NODE_WRITES = plain("agent_node_writes", Counter, &[Agent],
        &[("part", OneOf(&["Condition", "Taint"])), ("outcome", AGENT_WRITE_OUTCOMES)],
        "Writes of Nodes, of their condition DPUReady or of their taint; Forbidden: the agent's role doesn't allow it, Refused: a policy doesn't");
    AGENT_ORDERED_RULES = plain("agent_ordered_rules", Gauge, &[Agent], &[("gate", OneOf(&["Served", "Missing"]))],
        "Valid rules of the tenant's cluster with another ordering than Parallel, by whether the agent serves the webhook that adds the readiness gate. Missing: Pods don't wait for their companions");
    AGENT_HELD_RULES = plain("agent_held_rules", Gauge, &[Agent], &[("devices", OneOf(&["Published", "Missing"]))],
        "Valid rules of the tenant's cluster with the ordering BeforeStart or BeforeBinding, by whether the agent publishes the devices that their Pods claim. Missing: Pods start or are bound before their companions, or aren't scheduled; the rules' Events say which");
    AGENT_DEVICE_WRITES = plain("agent_device_writes", Counter, &[Agent],
        &[("object", OneOf(&["Slice", "Template", "Claim"])), ("outcome", AGENT_WRITE_OUTCOMES)],
        "Writes of the ResourceSlices of a Node, of a namespace's ResourceClaimTemplate, or of a condition of a Pod's ResourceClaim; Refused: a policy doesn't allow the condition, Forbidden: the agent's role doesn't allow the write, or a policy that of a slice or template");
    AGENT_PREPARES = plain("agent_prepares", Counter, &[Agent],
        &[("outcome", OneOf(&["Ready", "NotReady", "Elsewhere", "Refused", "Busy", "Failed"]))],
        "Claims that hosts asked about, by the answer; Elsewhere: their Pods aren't on the host. Refused, Busy and Failed count requests: without a valid token, beyond a limit, or whose token the API server couldn't review");
    AGENT_PREPARES_HELD = plain("agent_prepares_held", Gauge, &[Agent], &[], "Requests of hosts that wait for companions");
    HOST_REGISTERED = plain("host_registered", Gauge, &[Host], &[], "1 once the kubelet has registered the plugin, 0 before, and after it has refused to");
    HOST_CLAIMS = plain("host_claims", Counter, &[Host], &[("outcome", OneOf(&["Ready", "NotReady", "Failed"]))],
        "Claims that the kubelet asked to prepare; NotReady: their Pods have to wait; Failed: the agent couldn't be asked");
    HOST_PREPARE = seconds("host_prepare", Histogram, &[Host], &[("outcome", OneOf(&["Ready", "NotReady", "Failed"]))],
        "Time from the kubelet's call for claims to its answer, by the worst of the call's claims");
}
