//! The context that all parts of a manager share: its connections and clocks, its state and its queues.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Namespace, Node, ResourceQuota, Service};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimTemplate};
use kube::core::PartialObjectMeta;
use kube::{Client, Resource};
use outrigger_api::{AdminWorkloadRule, Machine, MachineNodePool, NamespaceOffloading, Tenant, WorkloadRule};
use outrigger_core::ids::TenantId;
use outrigger_core::template::Kind;
use outrigger_runtime::cache::{Change, Feed};
use outrigger_runtime::environment::Environment;
use outrigger_runtime::lease::Leadership;
use outrigger_runtime::pod::Pod;
use parking_lot::Mutex;
use prometheus_client::registry::Registry as MetricsRegistry;

use crate::admin::AdminRules;
use crate::args::ManagerArgs;
use crate::companions::templates::Templates;
use crate::computed::{CONTESTED, ComputedStatuses};
use crate::events::Events;
use crate::machines::{self, MachineCache};
use crate::metrics::Metrics;
use crate::offloading::OffloadingCache;
use crate::queue::Queue;
use crate::state::registry::Registry;
use crate::state::rollout::Moment;
use crate::state::{CompanionId, RuleId, TenantStates};
use crate::tenants;
use crate::tenants::first::FirstPass;

/// The context that all parts of a manager share. There is one in a process.
pub(crate) struct Context {
    pub(crate) replica: Replica,
    pub client: Client,
    pub environment: Environment,
    /// What this replica knows of the workloads, rules and companions of each tenant.
    pub(crate) states: TenantStates,
    pub(crate) caches: Caches,
    pub(crate) queues: Queues,
    /// Where the objects of each kind come in.
    pub(crate) feeds: Feeds,
    pub(crate) telemetry: Telemetry,
}

/// Which of the managers this one is.
pub(crate) struct Replica {
    pub args: ManagerArgs,
    /// The name of this replica in claims and in the Lease: no other replica has it, and an earlier process didn't.
    pub identity: Arc<str>,
    /// Whether this replica leads. The leader acts for tenants without a stream, and runs the controllers of Tenants, Machines and
    /// NamespaceOffloadings.
    pub leadership: Leadership,
}

/// What a replica knows beside the states of tenants.
pub(crate) struct Caches {
    pub(crate) registry: Registry,
    /// The Tenants that this replica has to reconcile before it is ready.
    pub(crate) first_pass: FirstPass,
    pub(crate) tenant_statuses: Mutex<ComputedStatuses<TenantId, tenants::ControllerStatus>>,
    pub(crate) admin_rules: AdminRules,
    pub(crate) templates: Templates,
    pub(crate) offloadings: OffloadingCache,
    pub(crate) machines: MachineCache,
}

/// What a replica says of itself and of the objects that it looks after.
pub(crate) struct Telemetry {
    pub(crate) events: Events,
    pub(crate) metrics: Metrics,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("identity", &self.replica.identity).finish_non_exhaustive()
    }
}

impl Context {
    /// The context of a manager with empty state. Its metrics are registered in `registry`.
    pub(crate) fn new(
        args: ManagerArgs,
        client: Client,
        environment: Environment,
        registry: &mut MetricsRegistry,
    ) -> Arc<Self> {
        let identity = instance(&environment);
        let telemetry = Telemetry {
            events: Events::new(client.clone(), identity.clone(), environment.clock),
            metrics: Metrics::new(registry, environment.clock),
        };
        let caches = Caches {
            registry: Registry::new(args.host_labels.clone(), args.admin_identity.clone()),
            first_pass: FirstPass::default(),
            tenant_statuses: Mutex::default(),
            admin_rules: AdminRules::default(),
            templates: Templates::default(),
            offloadings: OffloadingCache::default(),
            machines: MachineCache::new(&args.core_namespace),
        };
        Arc::new_cyclic(|context| Self {
            states: TenantStates::new(args.admin_namespaces()),
            caches,
            queues: Queues::new(&environment, args.companions_of_one_tenant()),
            feeds: Feeds::new(context),
            telemetry,
            replica: Replica { args, identity: identity.into(), leadership: Leadership::default() },
            client,
            environment,
        })
    }
}

impl Context {
    /// When a decision about a rollout is made now.
    pub(crate) fn moment(&self) -> Moment {
        let clock = self.environment.clock;
        Moment {
            now: clock.now(),
            wall: clock.wall(),
            admin_deadline: self.replica.args.admin_rollout_deadline,
        }
    }

    /// A Machine or a pool has changed.
    fn machines_touched(&self, touched: machines::Touched) {
        touched.contested.into_iter().for_each(|key| self.queues.machines.add_after(key, CONTESTED));
        self.queues.machines.add(touched.keys);
    }
}

/// A name that no other replica has, nor an earlier process of this one.
fn instance(environment: &Environment) -> String {
    let host = std::env::var("HOSTNAME").ok().filter(|name| !name.is_empty());
    format!("{}-{:08x}", host.as_deref().unwrap_or("manager"), environment.random.seed() & 0xffff_ffff)
}

#[derive(Debug)]
pub(crate) struct Queues {
    pub companions: Queue<CompanionId>,
    pub rules: Queue<RuleId>,
    pub tenants: Queue<tenants::Key>,
    /// Tenants with a claim of this replica that no stream may be for.
    pub unused_claims: Queue<TenantId>,
    /// Tenants with fields of `status.stream` that this replica has to write.
    pub stream_statuses: Queue<TenantId>,
    pub machines: Queue<machines::Key>,
    pub offloadings: Queue<crate::state::Namespace>,
}

impl Queues {
    /// Empty queues. At most `share` companions of one tenant are reconciled at the same time.
    fn new(environment: &Environment, share: usize) -> Self {
        const SHORT: Duration = Duration::from_millis(100);
        const LONG: Duration = Duration::from_millis(500);
        const MAX: Duration = Duration::from_secs(30);
        Self {
            companions: Queue::new(environment, SHORT, MAX).share(share),
            rules: Queue::new(environment, LONG, MAX),
            tenants: Queue::new(environment, SHORT, MAX),
            unused_claims: Queue::new(environment, LONG, MAX),
            stream_statuses: Queue::new(environment, LONG, MAX),
            machines: Queue::new(environment, SHORT, MAX),
            offloadings: Queue::new(environment, SHORT, MAX),
        }
    }
}

/// Where the objects of each kind come in: events of its one watch, and answers to writes. What each change means is in
/// [`crate::watches`].
#[derive(Debug)]
#[allow(missing_docs)]
pub(crate) struct Feeds {
    pub namespaces: Feed<PartialObjectMeta<Namespace>>,
    pub tenants: Feed<Tenant>,
    pub nodes: Feed<Node>,
    pub quotas: Feed<ResourceQuota>,
    pub rules: Feed<WorkloadRule>,
    pub admin_rules: Feed<AdminWorkloadRule>,
    pub pods: Feed<Pod>,
    pub claims: Feed<ResourceClaim>,
    pub templates: Feed<PartialObjectMeta<ResourceClaimTemplate>>,
    pub offloadings: Feed<NamespaceOffloading>,
    pub machines: Feed<Machine>,
    pub pools: Feed<MachineNodePool>,
    pub sets: Feed<StatefulSet>,
    pub services: Feed<Service>,
    /// Guests and reservations: one feed, so that a guest is never seen in its slot before its reservation is seen deleted.
    pub slot_pods: Feed<Pod>,
}

impl Feeds {
    fn new(context: &Weak<Context>) -> Self {
        Self {
            namespaces: feed(context, Context::namespace),
            tenants: feed(context, Context::tenant),
            nodes: feed(context, Context::node),
            quotas: feed(context, Context::quota),
            rules: feed(context, Context::rule),
            admin_rules: feed(context, Context::admin_rule),
            pods: feed(context, |context, change| context.companion(Kind::Pod, change)),
            claims: feed(context, |context, change| context.companion(Kind::Claim, change)),
            templates: feed(context, Context::template),
            offloadings: feed(context, Context::offloading),
            machines: feed(context, |context, change| {
                context.machines_touched(context.caches.machines.machine(change));
            }),
            pools: feed(context, |context, change| {
                context.machines_touched(context.caches.machines.pool(change));
            }),
            sets: feed(context, |context, change| {
                context.queues.machines.add(context.caches.machines.set(change));
            }),
            services: feed(context, |context, change| {
                context.queues.machines.add(context.caches.machines.service(change));
            }),
            slot_pods: feed(context, Context::slot_pod),
        }
    }
}

/// A feed that hands changes on to the context, for as long as there is one.
fn feed<K: Resource + 'static>(context: &Weak<Context>, take: fn(&Context, Change<K>)) -> Feed<K> {
    let context = context.clone();
    Feed::new(move |change| {
        if let Some(context) = context.upgrade() {
            take(&context, change);
        }
    })
}
