//! How much memory the shipped Pods need: the tables in the documentation are computed from the defaults, and fit.

use outrigger_agent::host;
use outrigger_agent::rules::wire;
use outrigger_api::prepare::MAX_QUESTION;
use outrigger_core::tenant::{Limits, memory};
use outrigger_manager::grpc::limits;
use outrigger_manager::usage;
use outrigger_runtime::watch::READ_BYTES;
use outrigger_tests::cost::memory_limit;
use outrigger_tests::root;
use outrigger_webhook::budget;

const MIB: u64 = 1 << 20;

/// What processes take that do nothing, with the caches of Nodes, Tenants and Namespaces.
const IDLE: u64 = 64 * MIB;

/// A tenth more than is asked of the allocator.
fn allocated(bytes: u64) -> u64 {
    bytes + bytes / 10
}

/// Whole MiB, rounded up.
fn mib(bytes: u64) -> u64 {
    bytes.div_ceil(MIB)
}

/// What a part needs.
struct Part {
    name: &'static str,
    /// Whatever there is, and whoever asks: the process, what it reads of API servers, what callers send, what that becomes,
    /// what HTTP/2 holds.
    all: [u64; 5],
    /// A tenant that uses all of its limits.
    tenant: u64,
}

impl Part {
    fn all() -> [Self; 3] {
        let most = Limits::default();
        let read = READ_BYTES as u64;
        let answer = wire::ANSWER.bytes as u64;
        [
            Self {
                name: "webhook",
                all: [
                    IDLE,
                    read,
                    (budget::FIRSTS + budget::BODIES) as u64,
                    (budget::TREES + budget::LARGE_TREES + budget::WAITING_TREES) as u64,
                    budget::CONNECTIONS as u64 * 4 * u64::from(budget::STREAM_WINDOW),
                ],
                tenant: allocated(memory::of_webhook(&most)),
            },
            Self {
                name: "manager",
                all: [
                    IDLE,
                    read,
                    limits::BUFFERED_BYTES as u64,
                    limits::DECODED_BYTES as u64,
                    limits::CONNECTIONS as u64 * u64::from(limits::CONNECTION_WINDOW),
                ],
                // One answer of a List is kept for as long as its caller doesn't read it.
                tenant: allocated(memory::of_manager(&most)) + limits::LIST_BYTES as u64,
            },
            Self {
                name: "agent",
                all: [
                    IDLE,
                    read,
                    answer + (host::READ_IN_ALL * MAX_QUESTION) as u64,
                    answer + (host::HELD_IN_ALL * host::HELD_BYTES) as u64,
                    host::CONNECTIONS as u64 * u64::from(host::CONNECTION_WINDOW),
                ],
                tenant: allocated(memory::of_agent(&most)),
            },
        ]
    }

    fn sum(&self) -> u64 {
        self.all.iter().sum()
    }

    /// What is left for tenants.
    fn left(&self) -> u64 {
        memory_limit(self.name)
            .checked_sub(self.sum())
            .unwrap_or_else(|| panic!("{} has too little", self.name))
    }
}

/// The page has the table as it is computed.
fn says(page: &str, computed: &str) {
    let text = std::fs::read_to_string(root().join("docs").join(page)).unwrap();
    assert!(text.contains(&format!("\n\n{computed}\n")), "docs/{page} has to say\n{computed}");
}

#[test]
fn the_shipped_pods_have_the_memory_that_their_limits_ask_for() {
    let parts = Part::all();
    let mut table = "| MiB | webhook | manager | agent |\n|---|---|---|---|\n".to_owned();
    let mut row = |what: &str, of: &dyn Fn(&Part) -> u64| {
        let [a, b, c] = parts.each_ref().map(of);
        table.push_str(&format!("| {what} | {a} | {b} | {c} |\n"));
    };
    for (i, what) in [
        "the process, and its caches of Nodes, Tenants and Namespaces",
        "pages of lists and lines of watches that are being read",
        "bodies and messages that are being received",
        "what these are while they are worked on",
        "what HTTP/2 holds unread on all connections",
    ]
    .into_iter()
    .enumerate()
    {
        row(what, &|part| mib(part.all[i]));
    }
    row("**in all, whoever asks**", &|part| mib(part.sum()));
    row("limit of the shipped Pod", &|part| mib(memory_limit(part.name)));
    row("a tenant that uses all of its default limits", &|part| mib(part.tenant));
    row("such tenants that fit beside the rest", &|part| part.left() / part.tenant);
    says("operation.md", &table);
    for part in parts {
        assert!(part.left() >= part.tenant, "{} isn't made for one tenant within its limits", part.name);
    }
}

#[test]
fn the_guide_says_how_much_many_workloads_need() {
    // 1 KiB on the wire, 15 labels and annotations.
    const SIZE: u64 = (1 << 10) + 15 * usage::ITEM_BYTES as u64;
    let [webhook, manager, agent] = Part::all();
    let mut table =
        "| tenants | workloads in all | manager | webhook | each agent |\n|---|---|---|---|---|\n".to_owned();
    for (tenants, workloads) in [(1, 10_000), (10, 100_000), (32, 1_000_000), (100, 1_000_000)] {
        let held = |count: u64| allocated(memory::workloads(count, count * SIZE));
        // A rule for each hundred workloads, each rule of 4 KiB; each workload has a companion.
        let (rules, sizes) = (workloads / 100, workloads / 100 * (4 << 10));
        let manager = manager.sum()
            + held(workloads)
            + allocated(memory::rules(sizes) + memory::matches(workloads) + memory::companions(workloads));
        let webhook = webhook.sum() + allocated(memory::admitted_rules(rules, sizes));
        let agent = agent.sum() + held(workloads / tenants);
        let [manager, webhook, agent] = [manager, webhook, agent].map(mib);
        table.push_str(&format!("| {tenants} | {workloads} | {manager} Mi | {webhook} Mi | {agent} Mi |\n"));
    }
    says("platform-guide.md", &table);
}
