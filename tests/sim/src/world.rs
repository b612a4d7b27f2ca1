//! The world of a simulation: an infrastructure cluster with its DPUs, the tenants' clusters, and the processes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use outrigger_core::keys;
use outrigger_runtime::environment::Environment;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::admission;
use crate::model::{BUILT_IN, Model, ModelKind, More};
use crate::network::{Network, Wire};
use crate::older::Side;
use crate::process::{self, Replicas, Running, Surroundings};
use crate::trace::Trace;

pub(crate) mod budgets;
mod devices;
mod dpus;
pub(crate) mod hosts;
pub(crate) mod kubelet;
mod machines;
mod names;
pub(crate) mod nodes;
mod reboots;
pub(crate) mod resizes;
mod schedule;
mod scope;
pub(crate) mod updates;

use budgets::count_budgets;
pub use devices::{DEVICE_CLASS, claim_of, devices};
pub use dpus::{SLOT, dpu};
pub use machines::{GUESTS, MACHINE, machine, machine_types};
pub use scope::Scope;

/// The kinds of Outrigger and of the systems that it works with.
pub const CUSTOM: [ModelKind; 6] = [
    ModelKind::custom(keys::GROUP, "v1alpha1", "tenants", "Tenant", false),
    RULES,
    ModelKind::custom(keys::WORKLOAD_GROUP, "v1alpha1", "adminworkloadrules", "AdminWorkloadRule", true),
    ModelKind::custom(keys::OFFLOADING_GROUP, "v1beta1", "namespaceoffloadings", "NamespaceOffloading", true),
    ModelKind::custom(keys::MACHINE_GROUP_DOMAIN, "v1alpha1", "machines", "Machine", false),
    ModelKind::custom(keys::MACHINE_GROUP_DOMAIN, "v1alpha1", "machinenodepools", "MachineNodePool", false),
];
const RULES: ModelKind =
    ModelKind::custom(keys::WORKLOAD_GROUP, "v1alpha1", "workloadrules", "WorkloadRule", true);

/// The name of the infrastructure cluster's API server on the network.
pub const INFRA: &str = "infra";

/// The scheduler's user.
pub(crate) const SCHEDULER: &str = "system:kube-scheduler";

/// The user who makes what administrators make.
pub const ADMIN: &str = "admin";

/// The tenants, each with its hosts.
pub const TENANTS: [(&str, &[&str]); 2] = [("blue", &["host-a", "host-b"]), ("red", &["host-c"])];

/// The host that is moved from one tenant to another.
pub const MOVING: &str = "host-b";

/// The tenant whose namespace exists already in half of the histories, and is adopted.
pub const ADOPTED: &str = "red";

/// The namespace of rules in a tenant's cluster.
pub const RULES_NAMESPACE: &str = "universe";

/// The namespace of workloads in a tenant's cluster.
pub const SHOP: &str = "shop";

/// Namespaces of the infrastructure cluster that belong to no tenant. They may be offloaded.
pub const PLAIN: [&str; 2] = ["plain-a", "plain-b"];

/// The terms of a Pod's required node affinity.
pub const AFFINITY: &str =
    "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";

/// Everything that a history acts on.
pub struct World {
    /// Time and randomness of the harness, of the network and of the API servers.
    pub environment: Environment,
    /// The network.
    pub network: Network,
    /// The infrastructure cluster.
    pub infra: Model,
    /// The tenants' clusters by the tenant's id.
    pub tenants: BTreeMap<&'static str, Model>,
    /// The managers that run.
    pub managers: Replicas,
    /// The webhooks that run.
    pub webhooks: Replicas,
    /// The agents that run, by tenant.
    pub agents: Mutex<BTreeMap<&'static str, Arc<Running>>>,
    /// Whether the namespace of [`ADOPTED`] is adopted: it stays when the Tenant is deleted.
    pub adopts: bool,
    /// The webhooks that have admitted Pods.
    pub(crate) admissions: Mutex<Admissions>,
    /// What the history has besides.
    pub scope: Scope,
    /// The side that was of the release before is of the present one.
    upgraded: Mutex<bool>,
    /// The agents whose gates have let Pods pass, and when they were asked, by the Pods' uids.
    pub(crate) gated: Mutex<BTreeMap<String, (String, Timestamp)>>,
    /// The agents that have let Pods start, and when they said so, by the Pods' uids.
    pub(crate) permitted: Mutex<BTreeMap<String, (String, Timestamp)>>,
    /// The uids of Pods whose kubelets ask whether they may start, or take their time.
    pub(crate) asking: Mutex<BTreeSet<String>>,
    /// What has happened.
    pub trace: Trace,
    started: Mutex<u64>,
}

/// The webhooks that have admitted a Pod since one of its namespace and name was created the last time, and when they were asked.
type Admissions = BTreeMap<(String, String), Vec<(String, Timestamp)>>;

impl World {
    /// A world without processes, with the tenants' objects. Everything in it follows from the seed.
    pub fn new(seed: u64, trace: Trace) -> Arc<Self> {
        let environment =
            Environment::simulated(seed, Timestamp::UNIX_EPOCH + Duration::from_secs(1_700_000_000));
        let kinds: Vec<ModelKind> = BUILT_IN.iter().chain(&CUSTOM).copied().collect();
        let infra = Model::new(&kinds, environment.clone());
        let tenants = TENANTS.map(|(id, _)| (id, Model::new(&kinds, environment.clone())));
        let world = Arc::new(Self {
            network: Network::new(environment.random.clone()),
            infra,
            tenants: tenants.into(),
            managers: Replicas::default(),
            webhooks: Replicas::default(),
            agents: Mutex::default(),
            adopts: environment.random.seed().is_multiple_of(2),
            admissions: Mutex::default(),
            scope: Scope::of(seed),
            upgraded: Mutex::default(),
            gated: Mutex::default(),
            permitted: Mutex::default(),
            asking: Mutex::default(),
            trace,
            started: Mutex::new(0),
            environment,
        });
        world.furnish();
        let Scope { pages, orderings, without_resize, .. } = world.scope;
        let more = More {
            short_pages: pages,
            merges_conditions: world.scope.is_wide(),
            resizes: world.scope.resizes && !without_resize,
        };
        std::iter::once(&world.infra).chain(world.tenants.values()).for_each(|model| model.set_more(more));
        if orderings {
            world.furnish_hosts();
        }
        if world.scope.starts {
            world.refuse_templates();
        }
        admission::call_webhooks(&world);
        world
    }

    fn furnish(&self) {
        let make = |model: &Model, plural: &str, object: Value| {
            model.create(ADMIN, plural, object).unwrap_or_else(|refusal| panic!("{plural}: {refusal:?}"));
        };
        for namespace in [keys::SYSTEM_NAMESPACE, keys::ADMIN_NAMESPACE, keys::CORE_NAMESPACE] {
            make(&self.infra, "namespaces", named(namespace));
        }
        // Events about objects of the cluster are in `default`.
        for namespace in PLAIN.into_iter().chain(["default"]) {
            make(&self.infra, "namespaces", named(namespace));
        }
        if self.adopts {
            let mut namespace = named(&namespace_of(ADOPTED));
            namespace["metadata"]["labels"] = json!({keys::TENANT: ADOPTED});
            make(&self.infra, "namespaces", namespace);
        }
        make(&self.infra, "deviceclasses", named(DEVICE_CLASS));
        for (plural, object) in machines::objects() {
            make(&self.infra, plural, object);
        }
        make(&self.infra, "nodes", named("local"));
        let taint = json!({"key": keys::NOT_ALLOWED, "value": "true", "effect": "NoExecute"});
        let labels = json!({keys::NODE_TYPE: keys::VIRTUAL_NODE, "region": "region-0"});
        let virtual_node =
            json!({"metadata": {"name": "virtual", "labels": labels}, "spec": {"taints": [taint]}});
        make(&self.infra, "nodes", virtual_node);
        for (id, hosts) in TENANTS {
            for host in hosts {
                for node in self.dpus(host) {
                    make(&self.infra, "nodes", node.clone());
                    self.dpu_ready(&node);
                }
                if self.scope.primaries {
                    self.set_primary(host, |number| number == usize::from(*host == MOVING));
                }
            }
            self.create_tenant(id);
            for namespace in [RULES_NAMESPACE, SHOP] {
                make(&self.tenants[id], "namespaces", named(namespace));
            }
        }
    }

    /// Creates a Tenant with its hosts, unless it exists. The moving one isn't taken from another Tenant.
    pub fn create_tenant(&self, tenant: &str) {
        let others = TENANTS.iter().filter(|(id, _)| *id != tenant);
        let taken = others.flat_map(|(id, _)| self.hosts(id)).any(|host| host == MOVING);
        let own = TENANTS.iter().filter(|(id, _)| *id == tenant);
        let hosts: Vec<&str> = own
            .flat_map(|(_, hosts)| hosts.iter().copied())
            .filter(|host| !taken || *host != MOVING)
            .collect();
        let mut spec = json!({"identities": [format!("spiffe://outrigger/tenant/{tenant}")], "hosts": hosts,
            "deviceClasses": [DEVICE_CLASS]});
        if self.scope.names {
            spec["hostNames"] = names::of_hosts(&hosts);
        }
        let _ = self.infra.create(ADMIN, "tenants", json!({"metadata": {"name": tenant}, "spec": spec}));
    }

    /// An environment for a process, whose wall clock is ahead or behind by up to a minute.
    fn environment(&self) -> Environment {
        let skew = self.environment.random.below(Duration::from_secs(120));
        let wall = self.environment.clock.wall() - Duration::from_secs(60) + skew;
        Environment::simulated(self.environment.random.seed(), wall)
    }

    fn name(&self, what: &str) -> String {
        let mut started = self.started.lock();
        *started += 1;
        format!("{what}-{started}")
    }

    /// The side whose processes start with the protocol of the release before.
    pub fn older(&self) -> Option<Side> {
        self.scope.older.filter(|_| !*self.upgraded.lock())
    }

    /// Processes start with the present protocol from now on.
    pub fn upgrade(&self) {
        *self.upgraded.lock() = true;
    }

    fn starts(&self, name: &str, is_older: bool) {
        let with = if is_older { " with the protocol of the release before" } else { "" };
        self.trace.line(&self.environment, format_args!("{name} starts{with}"));
    }

    /// Starts a manager.
    pub fn start_manager(&self) {
        let name = self.name("manager");
        let client = self.infra.client(self.network.way(&name, INFRA), &process::user(keys::MANAGER));
        let is_older = self.older() == Some(Side::Managers);
        let manager =
            process::manager(&name, self.environment(), client, is_older).expect("a manager starts");
        self.starts(&name, is_older);
        self.managers.lock().push(Arc::new(manager));
    }

    /// Starts a webhook.
    pub fn start_webhook(&self) {
        let name = self.name("webhook");
        let client = self.infra.client(self.network.way(&name, INFRA), &process::user(keys::WEBHOOK));
        self.trace.line(&self.environment, format_args!("{name} starts"));
        self.webhooks.lock().push(Arc::new(process::webhook(&name, self.environment(), client)));
    }

    /// Starts the agent of a tenant.
    pub fn start_agent(&self, tenant: &'static str) {
        let name = self.name(&format!("agent-{tenant}"));
        let way = self.network.way(&name, &cluster(tenant));
        let client = self.tenants[tenant].client(way, &process::user(keys::AGENT));
        let is_older = self.older() == Some(Side::Agents);
        let surroundings = Surroundings {
            network: &self.network,
            managers: &self.managers,
            orders: self.scope.orderings,
            is_older,
        };
        let agent =
            process::agent(&name, tenant, self.environment(), client, surroundings).expect("an agent starts");
        self.starts(&name, is_older);
        self.agents.lock().insert(tenant, Arc::new(agent));
    }

    /// Starts the agent of a tenant, unless one runs.
    pub fn ensure_agent(&self, tenant: &'static str) {
        if !self.has_agent(tenant) {
            self.start_agent(tenant);
        }
    }

    /// Kills a process: from now on nothing that it sends arrives. Its connections are closed, or fall silent as those of a machine
    /// that has lost its power.
    pub fn kill(&self, process: &Running, silently: bool) {
        self.trace.line(&self.environment, format_args!("{} is killed, silently: {silently}", process.name));
        let wire = if silently { Wire::Silent } else { Wire::Down };
        for (one, other) in self.network.wires() {
            if one == process.name || other == process.name {
                self.network.set(&one, &other, wire);
            }
        }
        process.end();
    }

    /// Whether a tenant has an agent: without one nothing is known of its workloads and rules.
    pub fn has_agent(&self, tenant: &str) -> bool {
        self.agents.lock().contains_key(tenant)
    }

    /// The processes that run: managers, webhooks, agents.
    pub fn processes(&self) -> Vec<Arc<Running>> {
        let servers = [self.managers.lock().clone(), self.webhooks.lock().clone()].concat();
        servers.into_iter().chain(self.agents.lock().values().cloned()).collect()
    }

    /// Sets the wire between two parties up, unless one of them is a process that has been killed.
    pub fn join(&self, one: &str, other: &str) -> bool {
        let processes = self.processes();
        let lives = |party: &str| {
            party == INFRA
                || party.starts_with("cluster-")
                || party.starts_with("host-")
                || processes.iter().any(|process| process.name == party)
        };
        let joined = lives(one) && lives(other);
        if joined {
            self.network.set(one, other, Wire::Up);
        }
        joined
    }

    /// Closes the connections between agents and managers. Agents connect again soon.
    pub async fn cut_streams(&self) {
        self.trace.line(&self.environment, format_args!("the connections of agents are closed"));
        let mut wires = self.network.wires();
        wires.retain(|(one, other)| {
            one.starts_with("agent-") && other.starts_with("manager-") && self.network.is_up(one, other)
        });
        wires.iter().for_each(|(one, other)| self.network.set(one, other, Wire::Down));
        // What waits for a wire sees its latest state only.
        tokio::time::sleep(Duration::from_millis(1)).await;
        for (one, other) in &wires {
            self.join(one, other);
        }
    }

    /// When this changes of a cluster, something has changed that its controllers act on. The infrastructure cluster is the first.
    pub fn stirred(&self) -> Vec<u64> {
        std::iter::once(&self.infra).chain(self.tenants.values()).map(Model::stirred).collect()
    }

    /// One round of what the controllers, schedulers and kubelets do in the clusters that have changed since [`Self::stirred`] said so.
    pub fn run_controllers(self: &Arc<Self>, since: &[u64]) {
        let mut changed = self.stirred().into_iter().enumerate().map(|(i, now)| since.get(i) != Some(&now));
        if changed.next() == Some(true) {
            let is_node = |node: &str| self.infra.get("nodes", None, node).is_some();
            self.infra.remove_orphans(is_node);
            self.infra.collect_garbage();
            self.count_quotas();
            self.make_claims();
            self.run_sets();
            self.schedule();
            self.infra.finish_deletions(|pod, node| self.has_kubelet(node) && !self.ends_later(pod));
            self.run_pods(&self.infra);
            if self.scope.resizes {
                self.run_resizes();
            }
            if self.scope.updates {
                self.run_updates();
            }
            if self.scope.evictions {
                count_budgets(&self.infra);
            }
        }
        for ((id, model), _) in self.tenants.iter().zip(changed).filter(|(_, changed)| *changed) {
            // There may be no Nodes: then Pods are bound to hosts.
            model.finish_deletions(|_, node| !nodes::is_lost(model, node));
            model.collect_garbage();
            if self.scope.orderings {
                self.run_hosts(id);
            } else {
                self.run_pods(model);
            }
            if self.scope.budgets {
                count_budgets(model);
            }
        }
    }

    /// The quota controller: what is used is known, and never too much.
    fn count_quotas(&self) {
        for quota in self.infra.list("resourcequotas") {
            let Some(hard) = quota["spec"]["hard"].as_object() else { continue };
            if quota["status"]["hard"] == quota["spec"]["hard"] {
                continue;
            }
            let used: serde_json::Map<String, Value> =
                hard.keys().map(|key| (key.clone(), json!("0"))).collect();
            let status = json!({"status": {"hard": hard, "used": used}});
            let at =
                (quota["metadata"]["namespace"].as_str(), text(&quota, "/metadata/name"), Some("status"));
            let _ = self.infra.merge("quota-controller", "resourcequotas", at, status);
        }
    }

    /// The hosts that a tenant has by its Tenant.
    pub fn hosts(&self, tenant: &str) -> Vec<String> {
        let tenant = self.infra.get("tenants", None, tenant);
        let hosts = tenant.as_ref().and_then(|tenant| tenant["spec"]["hosts"].as_array());
        hosts.into_iter().flatten().filter_map(|host| host.as_str().map(str::to_owned)).collect()
    }
}

/// The namespace of a tenant's companions.
pub fn namespace_of(tenant: &str) -> String {
    format!("tenant-{tenant}")
}

/// The name of a tenant's API server on the network.
pub fn cluster(tenant: &str) -> String {
    format!("cluster-{tenant}")
}

fn named(name: &str) -> Value {
    json!({"metadata": {"name": name}})
}

/// Whether a Pod has scheduling gates.
pub(crate) fn is_queued(pod: &Value) -> bool {
    pod["spec"]["schedulingGates"].as_array().is_some_and(|gates| !gates.is_empty())
}

/// The text at a pointer; empty where there is none.
pub fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    at(object, pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The value at a pointer whose keys need no escapes. [`Value::pointer`] looks for escapes in each key, which took an eighth of the
/// time of a history.
pub fn at<'a>(object: &'a Value, pointer: &str) -> Option<&'a Value> {
    pointer.split('/').skip(1).try_fold(object, |value, key| match value {
        Value::Array(items) => items.get(key.parse::<usize>().ok()?),
        value => value.get(key),
    })
}
