//! The table.

use super::Server::{Agent, Manager, Webhook};
use super::Values::{Named, OneOf};
use super::{Kind, Metric, Server};

/// How a call of an API server, or of the manager, ended.
const OUTCOMES: &[&str] = &["Ok", "Refused", "Failed"];

/// All metrics of ours, in the order of the documentation.
pub const ALL: &[&Metric] = &[
    &BUILD,
    &STARTED,
    &LOG_LINES_DROPPED,
    &WATCH_SYNCED,
    &WATCH_SEEN,
    &WATCH_FAILURES,
    &API_REQUESTS,
    &CERTIFICATE_ENDS,
    &CERTIFICATE_FAILURES,
    &ADMISSION,
    &ADMISSION_STEP,
    &GUESTS,
    &STREAMS,
    &MESSAGES,
    &TENANTS,
    &WORKLOADS,
    &COMPANIONS_WANTED,
    &COMPANIONS_CREATED,
    &COMPANIONS_READY,
    &COMPANIONS_REFUSED,
    &COMPANION_LAG,
    &COMPANION_WRITE,
    &QUEUE,
    &LEADER,
    &AGENT_WORKLOADS,
    &AGENT_CONNECTED,
    &AGENT_CONNECTIONS,
    &AGENT_MESSAGES,
    &AGENT_ROUNDS,
];

/// Metrics of the process that Prometheus' own clients have under the same names, without our prefix.
pub const STANDARD: &[&str] = &[
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
    "process_virtual_memory_bytes",
    "process_threads",
    "process_open_fds",
    "process_max_fds",
    "process_start_time_seconds",
];

/// A metric without unit.
const fn plain(
    name: &'static str,
    kind: Kind,
    of: &'static [Server],
    labels: &'static [(&'static str, super::Values)],
    help: &'static str,
) -> Metric {
    Metric { name, kind, unit: "", labels, of, help }
}

/// A metric in seconds.
const fn seconds(
    name: &'static str,
    kind: Kind,
    of: &'static [Server],
    labels: &'static [(&'static str, super::Values)],
    help: &'static str,
) -> Metric {
    Metric { name, kind, unit: "seconds", labels, of, help }
}

/// What runs.
pub const BUILD: Metric = plain(
    "build",
    Kind::Info,
    Server::ALL,
    &[("version", Named("as in `outrigger --version`")), ("commit", Named("of the source, or unknown"))],
    "What is running",
);

/// Since when.
pub const STARTED: Metric =
    seconds("process_start_time", Kind::Gauge, Server::ALL, &[], "When the process began, Unix time");

/// What of the log was lost.
pub const LOG_LINES_DROPPED: Metric = plain(
    "log_lines_dropped",
    Kind::Counter,
    Server::ALL,
    &[],
    "Log lines that were dropped because standard error wasn't read fast enough",
);

const WATCH: &[(&str, super::Values)] = &[("watch", Named("as in `/readyz`"))];

/// Whether a cache has all there is.
pub const WATCH_SYNCED: Metric = plain(
    "watch_synced",
    Kind::Gauge,
    Server::ALL,
    WATCH,
    "1 when everything has been listed, 0 when a list is under way or fails",
);

/// How fresh a cache is.
pub const WATCH_SEEN: Metric = seconds(
    "watch_last_received_timestamp",
    Kind::Gauge,
    Server::ALL,
    WATCH,
    "When the API server sent something last: an event, a page of a list, or a bookmark, which comes every minute or so. Of \
     several watches of one name, to the one that has been silent for longest; Unix time",
);

/// How often a watch had to begin anew.
pub const WATCH_FAILURES: Metric =
    plain("watch_failures", Kind::Counter, Server::ALL, WATCH, "Lists and watches that failed");

/// Calls of the API server.
pub const API_REQUESTS: Metric = plain(
    "api_requests",
    Kind::Counter,
    Server::ALL,
    &[
        ("verb", OneOf(&["Get", "Watch", "Create", "Update", "Patch", "Delete"])),
        ("outcome", OneOf(OUTCOMES)),
    ],
    "Requests to the API server; lists are Get, Refused is 4xx, Failed is 5xx, 429 or no answer",
);

/// When a certificate ends.
pub const CERTIFICATE_ENDS: Metric = seconds(
    "tls_certificate_not_after",
    Kind::Gauge,
    Server::ALL,
    &[("use", OneOf(&["serving", "client_ca", "client"]))],
    "When the certificate expires, Unix time; of several CAs, the last",
);

/// Certificates that could not be used.
pub const CERTIFICATE_FAILURES: Metric = plain(
    "tls_reload_failures",
    Kind::Counter,
    &[Webhook, Manager],
    &[],
    "New certificates or CAs that could not be used",
);

/// Time of an answer.
pub const ADMISSION: Metric = seconds(
    "admission",
    Kind::Histogram,
    &[Webhook],
    &[
        (
            "webhook",
            OneOf(&[
                "MutatePods",
                "ValidatePods",
                "ValidateClaims",
                "ValidateRules",
                "ValidateAdminRules",
                "ValidateTenants",
                "ValidateOffloadings",
                "ValidateMachines",
                "ValidateGuests",
            ]),
        ),
        ("verdict", OneOf(&["Allowed", "Patched", "Denied", "Behind", "Crowded", "Invalid"])),
    ],
    "Time from a request's last byte to its answer, waiting for caches included",
);

/// Time of a part of it.
pub const ADMISSION_STEP: Metric = seconds(
    "admission_step",
    Kind::Histogram,
    &[Webhook],
    &[
        ("step", Named("as in [architecture.md](../architecture.md#admission)")),
        ("verdict", OneOf(&["Passed", "Denied"])),
    ],
    "Time that one step of a Pod's mutation took",
);

/// Guests of Machines.
pub const GUESTS: Metric = plain(
    "guests",
    Kind::Counter,
    &[Webhook],
    &[(
        "outcome",
        OneOf(&[
            "Admitted",
            "UnknownGroup",
            "UnknownType",
            "WrongMachine",
            "NotCounted",
            "NoneLeft",
            "Unavailable",
            "Changed",
        ]),
    )],
    "Guests of Machines that were admitted or refused",
);

/// Streams.
pub const STREAMS: Metric = plain("workload_streams", Kind::Gauge, &[Manager], &[], "Open workload streams");

/// What comes in on them.
pub const MESSAGES: Metric = plain(
    "workload_messages",
    Kind::Counter,
    &[Manager],
    &[("kind", OneOf(&["Update", "Delete", "Sync", "Chunk"]))],
    "Messages received on workload streams",
);

/// Tenants.
pub const TENANTS: Metric = plain(
    "tenants",
    Kind::Gauge,
    &[Manager],
    &[("stream", OneOf(&["Connected", "Lost", "Elsewhere"]))],
    "Tenants with a namespace, by where their stream is: at this replica, nowhere, or not this replica's to tell. Connected and Lost have each tenant at one replica",
);

/// Workloads.
pub const WORKLOADS: Metric = plain(
    "workloads",
    Kind::Gauge,
    &[Manager],
    &[("stream", OneOf(&["Connected", "Lost"]))],
    "Workloads of the tenants that this replica acts for, by whether their stream is there",
);

/// What there should be.
pub const COMPANIONS_WANTED: Metric = plain(
    "companions_wanted",
    Kind::Gauge,
    &[Manager],
    &[],
    "Companions that rules and workloads ask for, of the tenants that this replica acts for; likewise the next three. This and the next two leave tenants out that haven't told all of their workloads since the replica began",
);

/// What there is.
pub const COMPANIONS_CREATED: Metric =
    plain("companions_created", Kind::Gauge, &[Manager], &[], "Of these, those that exist");

/// What works.
pub const COMPANIONS_READY: Metric =
    plain("companions_ready", Kind::Gauge, &[Manager], &[], "Of these, those that are ready");

/// What can't be.
pub const COMPANIONS_REFUSED: Metric = plain(
    "companions_refused",
    Kind::Gauge,
    &[Manager],
    &[],
    "Companions that the API server refuses for a reason that a user has to remove",
);

/// How long a workload waits.
pub const COMPANION_LAG: Metric = seconds(
    "companion_lag",
    Kind::Histogram,
    &[Manager],
    &[],
    "Time from the message that told of a workload to the creation of its companion",
);

/// Writes.
pub const COMPANION_WRITE: Metric = seconds(
    "companion_write",
    Kind::Histogram,
    &[Manager],
    &[("operation", OneOf(&["Create", "Annotate", "Delete"])), ("outcome", OneOf(OUTCOMES))],
    "Time that the API server took for a write of a companion",
);

/// Work.
pub const QUEUE: Metric = plain(
    "queue_keys",
    Kind::Gauge,
    &[Manager],
    &[
        ("queue", OneOf(&["companions", "rules", "tenants", "machines"])),
        ("state", OneOf(&["Ready", "Delayed", "Busy"])),
    ],
    "Keys that wait to be looked at, wait for their time (retries too), or are being worked on",
);

/// The leader.
pub const LEADER: Metric =
    plain("leader", Kind::Gauge, &[Manager], &[], "1 where this replica holds the Lease, else 0");

/// What an agent knows.
pub const AGENT_WORKLOADS: Metric =
    plain("agent_workloads", Kind::Gauge, &[Agent], &[], "Workloads of the tenant cluster");

/// Whether somebody hears it.
pub const AGENT_CONNECTED: Metric =
    plain("agent_connected", Kind::Gauge, &[Agent], &[], "1 while a stream to the manager is open, else 0");

/// How often it had to connect.
pub const AGENT_CONNECTIONS: Metric =
    plain("agent_connections", Kind::Counter, &[Agent], &[], "Streams begun");

/// What it says.
pub const AGENT_MESSAGES: Metric = plain(
    "agent_messages",
    Kind::Counter,
    &[Agent],
    &[("kind", OneOf(&["Update", "Delete", "Sync", "Chunk"]))],
    "Messages sent on workload streams",
);

/// Rules.
pub const AGENT_ROUNDS: Metric = plain(
    "agent_rule_rounds",
    Kind::Counter,
    &[Agent],
    &[("outcome", OneOf(&["Ok", "Failed", "Unsupported"]))],
    "Comparisons of the tenant's rules with the manager's; Unsupported: the manager is too old for it",
);
