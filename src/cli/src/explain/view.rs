//! One tenant's part of a state: its rules, workloads, companions, and the Nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::api::resource::v1::ResourceClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use outrigger_api::{AdminWorkloadRule, Tenant, WorkloadRule, rule_wire};
use outrigger_core::companion::Observed;
use outrigger_core::gate::Hold;
use outrigger_core::host::HostLabels;
use outrigger_core::ids::{Scope, TenantId};
use outrigger_core::index::{CompanionKey, HostDpus};
use outrigger_core::keys;
use outrigger_core::tenant::hosts::HostNames;
use outrigger_core::tenant::nodes::{HostClaims, Ownership, Taint};
use outrigger_core::tenant::{Limits, Policy, Tenant as Domain};
use outrigger_core::validate::message;
use outrigger_core::workload::Workload;
use outrigger_runtime::cluster::ClusterArgs;
use outrigger_runtime::pod::Pod;

use super::agent_reports::{self, PodReport};
use super::devices::KnownDevices;
use super::live::Source;
use crate::attributes::UnknownAttributes;
use crate::companion::{Found, of_claim, of_pod};
use crate::files::{InputError, Object};
use crate::state::State;
use outrigger_core::node::Node;

/// Whose part, and of which clusters. By default all tenants, in a cluster that is known otherwise.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ViewArgs {
    /// Tenant whose rules and workloads are looked at. Not needed where there is one tenant.
    #[arg(long, value_name = "ID")]
    pub(crate) tenant: Option<String>,

    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,

    /// Kubeconfig of the tenant's cluster, from which its Pods are read.
    #[arg(long, value_name = "FILE", help_heading = "Cluster")]
    pub(crate) tenant_kubeconfig: Option<PathBuf>,

    /// Context of the tenant's cluster, in --tenant-kubeconfig or the usual kubeconfig.
    #[arg(long, value_name = "NAME", help_heading = "Cluster")]
    pub(crate) tenant_context: Option<String>,
}

impl ViewArgs {
    /// Refuses flags that are for clusters; `flag` names the files instead.
    pub(crate) fn for_files(&self, flag: &str) -> Result<(), InputError> {
        if self.tenant_kubeconfig.is_some() || self.tenant_context.is_some() {
            let message = format!("is for clusters, not for {flag}");
            return Err(InputError::new("--tenant-kubeconfig", message));
        }
        Ok(())
    }
}

#[derive(Debug)]
pub(crate) struct View {
    /// The tenant; `None` where it isn't known.
    pub(crate) tenant: Option<TenantId>,
    /// Its namespace in the infrastructure cluster.
    pub(crate) namespace: String,
    /// What its Pods may do, where that is known.
    pub(crate) policy: Option<Policy>,
    /// How much it may have, where that is known.
    pub(crate) limits: Option<Limits>,
    /// Names that its hosts have as Nodes of its cluster.
    pub(crate) host_names: Arc<HostNames>,
    /// The labels of the Tenant; `None` where there is none.
    pub(crate) labels: Option<BTreeMap<String, String>>,
    /// The tenant is being deleted.
    pub(super) is_leaving: bool,
    /// Its rules, in the infrastructure cluster and its own.
    pub(crate) rules: Vec<WorkloadRule>,
    /// All rules of the platform, where they were read.
    pub(super) admin_rules: Vec<AdminWorkloadRule>,
    /// Its workloads: all of them where the source shows them.
    pub(crate) workloads: Vec<Arc<Workload>>,
    /// Names of its Pods that have ended.
    pub(crate) ended: Vec<(String, String)>,
    /// Ids of workloads whose Pods exist and lack what a rule with an ordering gives them.
    pub(super) unordered: BTreeMap<String, Unordered>,
    /// What the tenant's own cluster says of its workloads.
    pub(super) pod_reports: Vec<PodReport>,
    /// The Nodes of the infrastructure cluster; `None` where they can't be seen.
    pub(crate) nodes: Option<Vec<Node>>,
    /// The companions that exist; `None` where they can't be seen.
    pub(crate) companions: Option<BTreeMap<CompanionKey, Observed>>,
    /// The companions of admin rules that serve its workloads, as far as they are shown.
    pub(crate) admin_companions: BTreeMap<CompanionKey, Observed>,
    /// What Events say of its rules: the rule's namespace and name, the words.
    pub(crate) events: BTreeSet<(String, String, String)>,
    /// The PriorityClass that Pods without one get.
    pub(crate) default_priority_class: Option<String>,
    /// The extended resources that DeviceClasses stand behind, with the names of the classes.
    pub(crate) device_resources: Arc<BTreeMap<String, BTreeSet<String>>>,
    pub(super) devices: KnownDevices,
    /// Of which of its workloads attributes of devices aren't known.
    pub(crate) unknown_attributes: UnknownAttributes,
    /// What the state shows. Its notes say what isn't right with the state, too.
    pub(crate) source: Source,
}

impl View {
    /// The namespace of the companions of a tenant's rules, or of the platform's.
    pub(super) fn home(&self, scope: Scope) -> &str {
        match scope {
            Scope::Tenant => &self.namespace,
            Scope::Admin => &self.source.admin.resources,
        }
    }

    /// The companions of the tenant's rules, or those for the tenant of the platform's; `None` where they can't be seen.
    pub(super) fn companions_of(&self, scope: Scope) -> Option<&BTreeMap<CompanionKey, Observed>> {
        match scope {
            Scope::Tenant => self.companions.as_ref(),
            Scope::Admin => self.companions.as_ref().map(|_| &self.admin_companions),
        }
    }

    /// The DPUs that are the tenant's and stay so. Where Nodes can't be seen, those that have companions of their own are known.
    pub(crate) fn dpus(&self, host_labels: &HostLabels) -> HostDpus {
        let tenant = self.tenant.as_ref().map(TenantId::as_str);
        let is_own = |node: &&Node| {
            let owner = node.labels.get(keys::NODE_TENANT).map(String::as_str);
            (tenant.is_none() || owner == tenant)
                && !node.taints.iter().any(|taint| taint.key == keys::HANDOVER)
        };
        let in_host =
            |node: &Node| Some((host_labels.host(&node.labels)?.to_owned(), node.name.as_str().into()));
        let companions = self.companions.iter().flatten().chain(&self.admin_companions);
        let of_companions = companions.filter_map(|(key, o)| Some((o.host.clone()?, key.dpu()?.into())));
        let found: Vec<(String, Arc<str>)> = match &self.nodes {
            Some(nodes) => nodes.iter().filter(is_own).filter_map(in_host).collect(),
            None => of_companions.collect(),
        };
        HostDpus::new(self.host_names.clone(), found)
    }

    /// Whether a rule of the tenant is in the tenant's cluster, so that the agent sends the annotations that it names. Of rules in files
    /// that isn't known: they are taken for such. A rule of a cluster without an origin was created in the infrastructure cluster.
    pub(crate) fn is_copied(&self, rule: &WorkloadRule) -> bool {
        self.source.is_files() || namespace_of(rule) != self.namespace || !rule_wire::origin(rule).is_empty()
    }

    /// `host_labels`: the labels of DPUs that name their host. `rule`: the rule that is asked about, if it is one.
    pub(crate) fn new(
        state: &State,
        args: &ViewArgs,
        host_labels: &HostLabels,
        rule: Option<&str>,
        mut source: Source,
    ) -> Result<Self, InputError> {
        let Source { live, infrastructure, .. } = source;
        let tenants = Tenants::new(state, &mut source.notes)?;
        let rules: Vec<WorkloadRule> = state.all(keys::WORKLOAD_GROUP, "WorkloadRule")?;
        let tenant = tenants.choose(args.tenant.as_deref(), rule, &rules, &source.place)?;
        let domain = tenant.as_ref().and_then(|id| tenants.known.get(id));
        if let Some(id) = tenant.as_ref().filter(|id| !tenants.known.contains_key(id) && infrastructure) {
            source
                .notes
                .push(format!("there is no Tenant {id} that is valid: what its Pods may do isn't known"));
        }
        let theirs = |namespace: &str| match tenants.owner(namespace) {
            Some(owner) => Some(owner) == tenant.as_ref(),
            None => true,
        };
        let rules = rules.into_iter().filter(|rule| theirs(&namespace_of(rule))).collect();
        let mut admin_rules: Vec<AdminWorkloadRule> = state.all(keys::WORKLOAD_GROUP, "AdminWorkloadRule")?;
        admin_rules.retain(|rule| rule.namespace().as_deref() == Some(&*source.admin.rules));
        let pods = state.pods()?;
        let unordered = pods.iter().filter_map(|pod| Some((pod.uid()?, Unordered::of(pod)?))).collect();
        let Sorted { companions, admin_companions, workloads, ended } =
            Sorted::new(state, pods, &tenants, tenant.as_ref(), &source)?;
        let has_companions = !companions.is_empty() || !admin_companions.is_empty();
        let in_files: Vec<Object> = if live { Vec::new() } else { state.of("", "Node").cloned().collect() };
        let hosts = if live { source.hosts.as_deref() } else { Some(in_files.as_slice()) };
        let pod_reports =
            if source.workloads { agent_reports::read(state, &workloads, hosts, live)? } else { Vec::new() };
        let mut nodes: Vec<Node> = state.of("", "Node").map(|node| Node::of(&node.value)).collect();
        if !live {
            tenants.mark(&mut nodes, host_labels);
        }
        let workloads: Vec<Arc<Workload>> = if source.workloads {
            workloads
        } else {
            let reported = companions.values().chain(admin_companions.values()).filter_map(reported_workload);
            let known: BTreeMap<_, _> = reported.map(|w| (w.id.as_str().to_owned(), Arc::new(w))).collect();
            known.into_values().collect()
        };
        let caches = state.caches(keys::ADMIN_NAMESPACE, host_labels)?;
        let sees_nodes = infrastructure && (live || !nodes.is_empty());
        if !live && !sees_nodes {
            source.notes.push("no Nodes were given: where companions would run isn't known".to_owned());
        }
        Ok(Self {
            namespace: match (&tenant, domain) {
                (_, Some(domain)) => domain.namespace.clone(),
                (Some(id), None) => format!("tenant-{id}"),
                (None, None) => String::new(),
            },
            policy: domain.map(|domain| domain.policy.clone()),
            limits: domain.map(|domain| domain.limits),
            host_names: domain.map(|domain| domain.host_names.clone()).unwrap_or_default(),
            labels: tenant.as_ref().and_then(|id| tenants.labels.get(id).cloned()),
            is_leaving: tenant.as_ref().is_some_and(|id| tenants.leaving.contains(id)),
            rules,
            admin_rules,
            workloads,
            ended,
            unordered,
            pod_reports,
            nodes: sees_nodes.then_some(nodes),
            // Files without any say nothing of them.
            companions: (infrastructure && (live || has_companions)).then_some(companions),
            admin_companions,
            events: events(state)?,
            default_priority_class: caches.default_priority_class(),
            device_resources: caches.device_resources(),
            devices: KnownDevices::new(state, source.devices, source.claims),
            unknown_attributes: UnknownAttributes::new(state, &source.attributes),
            source,
            tenant,
        })
    }
}

/// The namespace of an object, as kubectl takes one that names none.
pub(crate) fn namespace_of(rule: &WorkloadRule) -> String {
    rule.namespace().unwrap_or_else(|| "default".to_owned())
}

/// All tenants and the owners of namespaces.
struct Tenants {
    known: BTreeMap<TenantId, Domain>,
    /// The labels of all Tenants, also of those that aren't valid.
    labels: BTreeMap<TenantId, BTreeMap<String, String>>,
    namespaces: BTreeMap<String, TenantId>,
    /// Those that are being deleted.
    leaving: BTreeSet<TenantId>,
}

impl Tenants {
    fn new(state: &State, notes: &mut Vec<String>) -> Result<Self, InputError> {
        let (mut known, mut labels, mut namespaces) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let mut leaving = BTreeSet::new();
        for tenant in state.all::<Tenant>(keys::GROUP, "Tenant")? {
            if let Ok(id) = TenantId::new(&tenant.name_any()) {
                labels.insert(id, tenant.labels().clone());
            }
            match tenant.compile() {
                Ok(domain) => {
                    if tenant.metadata.deletion_timestamp.is_some() {
                        leaving.insert(domain.policy.tenant.clone());
                    }
                    namespaces.insert(domain.namespace.clone(), domain.policy.tenant.clone());
                    known.insert(domain.policy.tenant.clone(), domain);
                }
                Err(errors) => {
                    notes.push(format!("Tenant {} is not valid: {}", tenant.name_any(), message(&errors)));
                }
            }
        }
        for object in state.of("", "Namespace") {
            if let Some(id) = state.tenant_of(&object.name).and_then(|id| TenantId::new(id).ok()) {
                namespaces.insert(object.name.clone(), id);
            }
        }
        Ok(Self { known, labels, namespaces, leaving })
    }

    fn owner(&self, namespace: &str) -> Option<&TenantId> {
        self.namespaces.get(namespace)
    }

    /// The tenant that is meant: the one that is named, else the only one, else the only one that has the named rule.
    fn choose(
        &self,
        tenant: Option<&str>,
        rule: Option<&str>,
        rules: &[WorkloadRule],
        place: &str,
    ) -> Result<Option<TenantId>, InputError> {
        if let Some(id) = tenant {
            return TenantId::new(id).map(Some).map_err(|error| InputError::new("--tenant", error));
        }
        let all: BTreeSet<&TenantId> = self.known.keys().chain(self.namespaces.values()).collect();
        if all.len() <= 1 {
            return Ok(all.into_iter().next().cloned());
        }
        let named = rules.iter().filter(|of| rule == Some(of.name_any().as_str()));
        let of_rule: BTreeSet<&TenantId> = named.filter_map(|rule| self.owner(&namespace_of(rule))).collect();
        match of_rule.into_iter().collect::<Vec<_>>().as_slice() {
            [one] => Ok(Some((*one).clone())),
            _ => {
                let names: Vec<&str> = all.iter().map(|id| id.as_str()).collect();
                let message = format!("has several tenants ({}): say by --tenant which", names.join(", "));
                Err(InputError::new(place, message))
            }
        }
    }

    /// Marks DPUs as the manager will: what is in files was often never in a cluster.
    fn mark(&self, nodes: &mut [Node], host_labels: &HostLabels) {
        for node in nodes {
            let held = node.labels.contains_key(keys::NODE_TENANT)
                || node.taints.iter().any(|taint| taint.key == keys::HANDOVER);
            let Some(host) = host_labels.host(&node.labels).filter(|_| !held) else { continue };
            let stay = self.known.iter().filter(|(id, _)| !self.leaving.contains(*id));
            let claims = stay.filter(|(_, tenant)| tenant.hosts.contains(host)).map(|(id, _)| id);
            let claims = HostClaims { tenants: claims.collect(), owner_exists: false };
            if let Ownership::Of(owner) = claims.verdict(None) {
                node.labels.insert(keys::NODE_TENANT.to_owned(), owner.to_string());
                node.taints.retain(|taint| taint.key != keys::TENANT);
                node.taints.push(Taint {
                    key: keys::TENANT.to_owned(),
                    value: owner.to_string(),
                    effect: "NoSchedule".to_owned(),
                });
            }
        }
    }
}

/// A Pod that has been created without what makes it wait for its companions.
#[derive(Debug, Clone)]
pub(super) struct Unordered {
    pub(super) created: Time,
    /// It has the readiness gate.
    pub(super) gated: bool,
    /// How long it waits by its claim.
    pub(super) held: Option<Hold>,
}

impl Unordered {
    /// A Pod that only stands in a file may still get everything.
    fn of(pod: &Pod) -> Option<Self> {
        let created = pod.creation_timestamp()?;
        let mut gates = pod.spec.iter().flat_map(|spec| spec.readiness_gates.iter().flatten());
        let gated = gates.any(|gate| gate.condition_type == keys::COMPANIONS_GATE);
        let held = pod.spec.as_ref().and_then(|spec| spec.held);
        (!gated || held != Some(Hold::Binding)).then_some(Self { created, gated, held })
    }
}

/// What the Pods and claims are.
#[derive(Default)]
struct Sorted {
    /// Those of the tenant's rules.
    companions: BTreeMap<CompanionKey, Observed>,
    /// Those of admin rules for the tenant's workloads.
    admin_companions: BTreeMap<CompanionKey, Observed>,
    workloads: Vec<Arc<Workload>>,
    /// The names of Pods that have ended.
    ended: Vec<(String, String)>,
}

/// The workload of a companion, where an annotation of the companion has all of it.
pub(crate) fn reported_workload(companion: &Observed) -> Option<Workload> {
    companion.annotations.values().find_map(|text| serde_json::from_str(text).ok())
}

impl Sorted {
    /// What else is in tenants' namespaces is nothing of this.
    fn new(
        state: &State,
        pods: Vec<Pod>,
        tenants: &Tenants,
        tenant: Option<&TenantId>,
        source: &Source,
    ) -> Result<Self, InputError> {
        let admin = &source.admin.resources;
        let mut sorted = Self::default();
        for pod in pods {
            let namespace = pod.namespace().unwrap_or_default();
            let owner = tenants.owner(&namespace);
            if let Some(found) = of_pod(&pod, admin) {
                sorted.companion(found, owner, tenant);
            } else if owner.is_none() {
                let name = pod.name_any();
                match outrigger_agent::pod::workload(pod) {
                    Some(mut workload) => {
                        source.attributes.describe(&mut workload);
                        sorted.workloads.push(Arc::new(workload));
                    }
                    None => sorted.ended.push((namespace, name)),
                }
            }
        }
        for claim in state.all::<ResourceClaim>(keys::DEVICE_GROUP, "ResourceClaim")? {
            if let Some(found) = of_claim(&claim, admin) {
                sorted.companion(found, tenants.owner(&claim.namespace().unwrap_or_default()), tenant);
            }
        }
        Ok(sorted)
    }

    /// `owner`: whose the companion's namespace is.
    fn companion(&mut self, (of, key, observed): Found, owner: Option<&TenantId>, tenant: Option<&TenantId>) {
        match of {
            None if tenant.is_none() || owner == tenant => drop(self.companions.insert(key, observed)),
            Some(of) if owner.is_none() && Some(&of) == tenant => {
                self.admin_companions.insert(key, observed);
            }
            _ => {}
        }
    }
}

/// Messages of Events about rules whose companions were refused.
fn events(state: &State) -> Result<BTreeSet<(String, String, String)>, InputError> {
    let events: Vec<Event> = state.all("", "Event")?;
    let about_rules = events.into_iter().filter(|event| {
        event.involved_object.kind.as_deref() == Some("WorkloadRule")
            && event.reason.as_deref() == Some("CompanionRefused")
    });
    let messages = about_rules.filter_map(|event| {
        Some((event.involved_object.namespace?, event.involved_object.name?, event.message?))
    });
    Ok(messages.collect())
}
