//! The webhook in the tenant's cluster that adds the readiness gate to Pods that wait for their companions
//! ([`outrigger_core::gate`]).
//!
//! It is the admission server of the infrastructure cluster with another table of paths, so its requests are bounded alike. It
//! decides by the rules that the agent watches anyway: no request waits for an API server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use clap::Args;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Resource, ResourceExt};
use outrigger_admission::Settings;
use outrigger_admission::caches::Caches;
use outrigger_admission::caches::{Claims, GateRules};
use outrigger_admission::webhooks::gate_endpoints;
use outrigger_api::WorkloadRule;
use outrigger_core::keys;
use outrigger_core::rule::{Ordering, Rule};
use outrigger_runtime::Process;
use outrigger_runtime::bind::Bind;
use outrigger_runtime::expiry::Expiry;
use outrigger_runtime::self_signed::{self, BundleTarget, Component};
use outrigger_runtime::serve::Server;
use outrigger_runtime::tls::{ServerTls, ServerTlsArgs};
use outrigger_webhook::budget::Budget;
use outrigger_webhook::ledger::Ledgers;
use outrigger_webhook::metrics::Metrics;
use outrigger_webhook::server::{AdmissionService, Writers};
use tokio::sync::{mpsc, watch};
use tracing::warn;

use crate::companions::Board;
use crate::context::Context;
use crate::first::Publishing;
use crate::namespaces::Scope;
use crate::rules::{ORDERING_NOT_ENFORCED, RuleStore};
use crate::waits::{PATIENCE, changed};

/// Maximum number of connections. API servers keep a few each.
const CONNECTIONS: usize = 128;

/// Settings of the gate.
#[derive(Debug, Clone, Args)]
pub(crate) struct GateArgs {
    /// Address of the HTTPS port that this cluster's API server calls for new Pods, :PORT or IP:PORT, to add the readiness gate
    /// to those that wait for their companions. Without it rules with another ordering than Parallel are not enforced,
    /// and the log, an Event and the metric outrigger_agent_ordered_rules say so.
    #[arg(long, env = "OUTRIGGER_GATE_ADDRESS", value_name = "ADDRESS")]
    pub(crate) gate_address: Option<Bind>,

    #[command(flatten)]
    pub(crate) tls: ServerTlsArgs,
}

/// The configuration by which the API server calls the gate.
const CONFIGURATION: BundleTarget = BundleTarget::Webhooks {
    kind: "MutatingWebhookConfiguration",
    name: keys::GATE_CONFIGURATION,
    entries: ".outrigger.dev",
};

/// Where the agent publishes a certificate that it signs itself.
const SELF_SIGNED: Component =
    Component { service: keys::AGENT, secret: keys::AGENT_SELF_SIGNED, bundle_targets: &[CONFIGURATION] };

/// The same where hosts call it.
const SELF_SIGNED_FOR_HOSTS: Component = Component {
    bundle_targets: &[CONFIGURATION, BundleTarget::ConfigMap { name: keys::AGENT_CA_CONFIG_MAP }],
    ..SELF_SIGNED
};

/// The webhook without its port.
pub(crate) struct Gate {
    service: AdmissionService,
}

impl Gate {
    pub(crate) fn new(process: &mut Process, context: &Context) -> (Self, Arc<Caches>) {
        let (changed, changes) = watch::channel(());
        let caches = Caches::default().on_change(move || changed.send_modify(|()| ()));
        let caches = Arc::new(caches);
        let (settings, clock) = (Settings::default(), context.environment.clock);
        let service = AdmissionService {
            // No path of the table makes reservations.
            ledgers: Ledgers::new(context.client.clone(), &settings.core_namespace, caches.clone(), clock),
            caches: caches.clone(),
            changes,
            settings,
            metrics: Metrics::of_gates(&mut process.registry),
            readiness: process.readiness.clone(),
            budget: Arc::new(Budget::new(clock)),
            writers: Writers::Anybody,
            clock,
        };
        (Self { service }, caches)
    }

    /// Serves the webhook.
    pub(crate) fn serve(self, process: &Process, address: &Bind, tls: Arc<ServerTls>) -> anyhow::Result<()> {
        let listener = address.listen().context("--gate-address")?;
        let server = Server::new("gate", listener).tls(tls).limits(outrigger_webhook::limits(CONNECTIONS));
        process.serve(server, self.router());
        Ok(())
    }

    /// What it serves.
    pub(crate) fn router(self) -> axum::Router {
        self.service.router_of(gate_endpoints())
    }
}

impl GateArgs {
    /// The certificate of the agent's ports. `own`: the one that it has as a client of the manager. `hosts`: the plugin on hosts has to
    /// trust it too, and finds its CA in this namespace.
    pub(crate) fn certificate(
        &self,
        process: &mut Process,
        client: &kube::Client,
        own: Option<&Expiry>,
        hosts: Option<&str>,
    ) -> anyhow::Result<Arc<ServerTls>> {
        let Some(tls) = self.tls.load()? else {
            bail!(
                "--gate-address and --host-address need --tls-cert-file and --tls-key-file, or --tls self-signed: their callers \
                 use HTTPS only"
            );
        };
        tls.register_with(own, &mut process.registry, &process.readiness);
        process.spawn("certificate files", tls.clone().follow());
        let args = &self.tls.self_signed;
        match hosts {
            None => self_signed::start(process, client, args, SELF_SIGNED, tls.clone()),
            Some(namespace) => {
                let component = SELF_SIGNED_FOR_HOSTS;
                self_signed::start_with_config_maps_in(
                    namespace,
                    process,
                    client,
                    args,
                    component,
                    tls.clone(),
                );
            }
        }
        Ok(tls)
    }
}

/// Events that wait for the API server, at most. The log and the metric say the same as those beyond.
const MAX_REPORTS: usize = 256;

/// A rule, and why its ordering isn't enforced.
type Report = (ObjectReference, String);

/// The rules with an ordering, as they were published last: by name, with uid and generation.
type Ordered = BTreeMap<String, (Option<String>, Option<i64>, Arc<Rule>)>;

/// Publishes what decides about gates whenever rules or namespaces change. Reports rules with an ordering that nothing enforces.
pub(crate) struct Follower {
    pub(crate) context: Arc<Context>,
    pub(crate) caches: Arc<Caches>,
    /// Learns of the rules too.
    pub(crate) board: Arc<Board>,
    pub(crate) enforcement: Enforcement,
}

/// Says at any time what of an ordering the agent enforces.
#[derive(Debug, Clone)]
pub(crate) struct Enforcement {
    /// Whether the gate is served.
    pub(crate) served: bool,
    /// Whether Pods can claim devices.
    pub(crate) devices: watch::Receiver<Publishing>,
}

impl Enforcement {
    /// What is enforced now; [`Self::changed`] waits for the next change.
    pub(crate) fn now(&mut self) -> Enforces {
        Enforces { gates: self.served, devices: *self.devices.borrow_and_update() }
    }

    /// Waits for a change.
    pub(crate) async fn changed(&mut self) {
        changed(&mut self.devices).await;
    }
}

/// What of an ordering the agent enforces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Enforces {
    /// It adds readiness gates.
    pub(crate) gates: bool,
    /// Whether Pods can claim devices by which they wait before they start.
    pub(crate) devices: Publishing,
}

impl Enforces {
    /// Whether claims are added. A Pod that claims a device that can't be published isn't scheduled, and so doesn't start too early.
    fn claims(self) -> Claims {
        match self.devices {
            Publishing::Off => Claims::Missing("this cluster's agent adds no claims"),
            Publishing::Unsupported => Claims::Missing("this cluster doesn't have resource.k8s.io/v1"),
            Publishing::Forbidden
            | Publishing::NoClass
            | Publishing::NoBinding
            | Publishing::BindingForbidden
            | Publishing::Working => Claims::Added,
        }
    }

    /// Whether claims keep Pods from being bound; `before`: whether they did. A Pod doesn't get a weaker claim because something can't be
    /// written at the moment.
    fn binds(self, before: bool) -> bool {
        match self.devices {
            Publishing::Working => true,
            Publishing::Forbidden | Publishing::NoClass => before,
            Publishing::Off
            | Publishing::Unsupported
            | Publishing::NoBinding
            | Publishing::BindingForbidden => false,
        }
    }

    /// Returns in words that and why a rule's ordering isn't enforced, with the field and the remedy; `None` if it is.
    pub(crate) fn complains(self, rule: &WorkloadRule) -> Option<String> {
        let ordering = rule.spec.ordering.parse::<Ordering>().unwrap_or_default();
        let why = self.lacks(ordering)?;
        Some(format!("spec.ordering: is {}, but {why}", ordering.as_str()))
    }

    /// Returns why Pods don't wait for their companions as an ordering says, with the remedy; `None` if they do.
    fn lacks(self, ordering: Ordering) -> Option<&'static str> {
        if ordering.gates() && !self.gates {
            return Some(
                "this cluster's agent adds no readiness gates, so Pods don't wait for their companions; enable the agent's gate",
            );
        }
        match self.devices {
            _ if !ordering.holds() => None,
            Publishing::Off => Some(
                "this cluster's agent adds no claims, so Pods start before their companions and are only not Ready before; enable \
                 the agent's setting companionsFirst",
            ),
            Publishing::Unsupported => Some(
                "this cluster doesn't have resource.k8s.io/v1, so Pods start before their companions and are only not Ready before; \
                 upgrade it to Kubernetes 1.34 or later",
            ),
            Publishing::Forbidden => Some(
                "this cluster's agent may not publish devices, so Pods that claim them aren't scheduled; grant it the role \
                 outrigger-agent-companions-first",
            ),
            Publishing::NoClass => Some(
                "this cluster doesn't have the DeviceClass companions.outrigger.dev, so Pods that claim its devices aren't scheduled; \
                 create it as deploy/base/companions-first has it",
            ),
            Publishing::NoBinding if ordering.binds() => Some(
                "this cluster's devices have no binding conditions, so Pods are bound before their companions, and only start after \
                 them; upgrade it to Kubernetes 1.36, or enable the feature gate DRADeviceBindingConditions of its API server and \
                 scheduler, and create the DeviceClass binding.companions.outrigger.dev as deploy/base/companions-first has it",
            ),
            Publishing::BindingForbidden if ordering.binds() => Some(
                "this cluster's agent may not read ResourceClaims, so Pods are bound before their companions, and only start after \
                 them; grant it the role outrigger-agent-companions-first",
            ),
            Publishing::NoBinding | Publishing::BindingForbidden | Publishing::Working => None,
        }
    }
}

impl Follower {
    /// Runs forever. The rules have been listed. Events are written beside it, because gates and claims of new Pods don't wait for them.
    pub(crate) async fn run(self, store: Arc<RuleStore>, scope: watch::Receiver<Option<Scope>>) {
        let (reports, mut events) = mpsc::channel::<Report>(MAX_REPORTS);
        let context = self.context.clone();
        let publish = async {
            while let Some((about, text)) = events.recv().await {
                context.events.publish(true, ORDERING_NOT_ENFORCED, "ReadOrdering", &text, &about).await;
            }
        };
        tokio::join!(self.follow(store, scope, reports), publish);
    }

    async fn follow(
        mut self,
        store: Arc<RuleStore>,
        mut scope: watch::Receiver<Option<Scope>>,
        reports: mpsc::Sender<Report>,
    ) {
        let mut changes = store.changes();
        // Until the namespaces whose Pods are sent are known, requests wait too, for a moment; afterwards no namespace counts until then.
        let _ = tokio::time::timeout(PATIENCE, scope.wait_for(Option::is_some)).await;
        let mut ordered = Ordered::new();
        let (mut enforced_before, mut binding) = (None, false);
        loop {
            let enforces = self.enforcement.now();
            let namespaces_unknown = scope.borrow_and_update().is_none();
            let namespaces = namespaces(scope.borrow().as_ref());
            let all = store.all();
            let added = update(&mut ordered, &all);
            let rules: Vec<Arc<Rule>> = ordered.values().map(|(_, _, rule)| rule.clone()).collect();
            self.board.expect(rules.clone());
            let holding = rules.iter().map(|rule| rule.ordering()).filter(|ordering| ordering.holds());
            let (lacking, held): (Vec<_>, Vec<_>) =
                holding.partition(|ordering| enforces.lacks(*ordering).is_some());
            binding = enforces.binds(binding);
            let claims = enforces.claims();
            self.caches.set_gates(Arc::new(GateRules {
                rules,
                namespaces,
                namespaces_unknown,
                claims,
                binding,
            }));
            self.context.metrics.ordered_rules(enforces.gates, ordered.len());
            self.context.metrics.held_rules(held.len(), lacking.len());
            if enforced_before.replace(enforces) == Some(enforces) {
                report(&reports, enforces, added);
            } else {
                let valid = all.into_iter().filter(|rule| ordered.contains_key(&rule.name_any()));
                report(&reports, enforces, valid);
            }
            tokio::select! {
                () = changed(&mut changes) => {}
                () = changed(&mut scope) => {}
                () = self.enforcement.changed() => {}
            }
        }
    }
}

/// Says of rules whose workloads don't wait for their companions why that is so.
fn report(
    reports: &mpsc::Sender<Report>,
    enforces: Enforces,
    rules: impl IntoIterator<Item = Arc<WorkloadRule>>,
) {
    for rule in rules {
        let Some(text) = enforces.complains(&rule) else { continue };
        warn!(rule = %rule.name_any(), reason = text, "an ordering is not enforced");
        _ = reports.try_send((rule.object_ref(&()), text));
    }
}

fn namespaces(scope: Option<&Scope>) -> Option<BTreeSet<String>> {
    match scope {
        Some(Scope::All) => None,
        Some(Scope::Only(names)) => Some(names.clone()),
        None => Some(BTreeSet::new()),
    }
}

/// Takes in the rules with an ordering, and returns those that are new or have another ordering than before. A rule that is unchanged isn't compiled again. A rule that
/// is invalid has no companions, nor has a rule that is being deleted.
fn update(ordered: &mut Ordered, rules: &[Arc<WorkloadRule>]) -> Vec<Arc<WorkloadRule>> {
    let before = std::mem::take(ordered);
    let mut added = Vec::new();
    for rule in rules {
        let waits = rule.spec.ordering.parse().is_ok_and(Ordering::gates);
        if !waits || rule.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let (name, uid, generation) = (rule.name_any(), rule.uid(), rule.metadata.generation);
        let known = before.get(&name).filter(|(of, _, _)| *of == uid);
        let compiled = match known.filter(|(_, of, _)| *of == generation) {
            Some((_, _, compiled)) => compiled.clone(),
            None => match rule.compile() {
                Ok(compiled) => Arc::new(compiled.for_matching()),
                Err(_) => continue,
            },
        };
        if known.is_none_or(|(_, _, before)| before.ordering() != compiled.ordering()) {
            added.push(rule.clone());
        }
        ordered.insert(name, (uid, generation, compiled));
    }
    added
}

#[cfg(test)]
mod tests;
