//! What the kept rows of a cluster say together: what the report of `outrigger status` says, and each companion and DPU.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use outrigger_core::companion::Observed;
use outrigger_core::host::HostLabels;
use outrigger_core::ids::TenantId;
use outrigger_core::json::list;
use outrigger_core::progress::{Facts, HostDpu, Progress, Stage, Wish};
use outrigger_core::reason::Cause;
use outrigger_core::text::truncate;
use outrigger_core::unplaced;
use outrigger_manager::dpu::Dpu;
use outrigger_runtime::pod::Pod;
use serde::Deserialize;
use serde_json::Value;

use super::rows::Id;
use crate::companion::of_pod;
use crate::condition::Condition;
use crate::document::Grade;
use crate::explain::view::reported_workload;
use crate::status::report::{DpuRow, Report, RuleRow, TenantRow};
use crate::status::summary;

/// Most characters of a message that are kept.
const MESSAGE: usize = 1024;

/// A Tenant: its row, and what others need of it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TenantEntry {
    pub(super) row: TenantRow,
    namespace: String,
    hosts: Vec<String>,
    pub(super) conditions: Vec<Condition>,
}

/// A companion's Pod.
#[derive(Debug, PartialEq)]
pub(super) struct PodEntry {
    /// Its tenant, where the Pod itself names it.
    tenant: Option<TenantId>,
    pub(super) rule: String,
    /// Its workload as `NAMESPACE/NAME`, where the companion has all of it.
    pub(super) workload: Option<String>,
    pub(super) host: String,
    /// The DPU that it has to run on, where each DPU of the host has a companion.
    dpu: Option<String>,
    /// The Node it is bound to; empty: none.
    pub(super) node: String,
    /// Its state in the word of `outrigger status`.
    pub(super) state: &'static str,
    pub(super) message: String,
    /// Its state, without texts.
    observed: Observed,
}

/// A Node.
#[derive(Debug, PartialEq)]
pub(super) struct NodeEntry {
    /// It, if it is a DPU.
    dpu: Option<Dpu>,
    /// What is counted of it.
    pub(super) state: Option<DpuRow>,
}

/// A companion that exists.
#[derive(Debug)]
pub(super) struct Companion {
    pub(super) id: Arc<Id>,
    pub(super) pod: Arc<PodEntry>,
    /// Its tenant; empty where that isn't known.
    pub(super) tenant: String,
    pub(super) grade: Grade,
    /// What is wrong with it.
    pub(super) cause: Option<Cause>,
}

/// A DPU, or a host that a Tenant lists and that has none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HostRow {
    pub(super) host: String,
    /// Its DPU; empty: none.
    pub(super) dpu: String,
    /// Its tenant; empty: none.
    pub(super) tenant: String,
    pub(super) grade: Grade,
    /// Why it takes no companions; `None`: it takes some, or belongs to nobody.
    pub(super) cause: Option<Cause>,
    /// Companions that are bound to the DPU, and how many of them are ready.
    pub(super) companions: usize,
    pub(super) ready: usize,
}

/// Why companions are missing: a cause, or a word that is none.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Missing {
    pub(super) word: String,
    pub(super) cause: Option<Cause>,
    /// Companions that exist and aren't ready.
    pub(super) companions: usize,
    /// Rules that name it, and the companions that they lack.
    pub(super) rules: usize,
    pub(super) lacking: i64,
}

/// Objects of a kind with their names, in the order of these.
pub(super) type Named<R> = Vec<(Arc<Id>, Arc<R>)>;

impl TenantEntry {
    /// A Tenant as it is kept. One with a spec that isn't understood has its row all the same.
    pub(super) fn of(object: &Value) -> Self {
        let mut row = summary::tenant(object);
        row.message = truncate(&row.message, MESSAGE).into_owned();
        let tenant = outrigger_api::Tenant::deserialize(object).ok();
        let namespace = tenant.as_ref().map(outrigger_api::Tenant::target_namespace).unwrap_or_default();
        let hosts = tenant.map(|tenant| tenant.spec.hosts).unwrap_or_default();
        Self { namespace, hosts, conditions: conditions(object), row }
    }
}

/// A WorkloadRule or AdminWorkloadRule as it is kept.
pub(super) fn rule(object: &Value) -> RuleRow {
    let mut row = summary::rule(object);
    row.message = truncate(&row.message, MESSAGE).into_owned();
    row
}

impl PodEntry {
    /// A companion as it is kept; `None`: the Pod is none. `admin`: the namespace of the companions of admin rules.
    pub(super) fn of(pod: &Pod, admin: &str) -> Option<Self> {
        let (tenant, key, observed) = of_pod(pod, admin)?;
        let workload = reported_workload(&observed);
        let message = truncate(&observed.message, MESSAGE).into_owned();
        // What isn't shown is most of what there is, and would make each state look new.
        let slim = Observed {
            uid: String::new(),
            rule_uid: String::new(),
            resource_version: 0,
            template_hash: String::new(),
            content_hash: None,
            parts: None,
            claim: None,
            host: None,
            held: None,
            injected: None,
            annotations: BTreeMap::new(),
            annotations_size: 0,
            message: String::new(),
            ..observed
        };
        Some(Self {
            tenant,
            rule: key.rule.to_string(),
            workload: workload.map(|w| format!("{}/{}", w.resource_namespace, w.resource_name)),
            host: observed.host.unwrap_or_default(),
            dpu: key.dpu().map(str::to_owned),
            node: pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default(),
            state: summary::state(&slim),
            message,
            observed: slim,
        })
    }
}

impl NodeEntry {
    /// A DPU as it is kept; `None`: the Node is none.
    pub(super) fn of(node: &Node, host_labels: &HostLabels) -> Option<Self> {
        let mut dpu = Dpu::of(node, host_labels);
        if let Some(dpu) = &mut dpu {
            // A heartbeat changes nothing else.
            dpu.resource_version.clear();
        }
        let state = DpuRow::of(node, host_labels);
        (dpu.is_some() || state.is_some()).then_some(Self { dpu, state })
    }
}

fn conditions(object: &Value) -> Vec<Condition> {
    let all = list(object, "/status/conditions").iter().take(32);
    let mut all: Vec<Condition> =
        all.filter_map(|condition| Condition::deserialize(condition).ok()).collect();
    for Condition { kind, status, reason, message } in &mut all {
        [kind, status, reason, message]
            .into_iter()
            .for_each(|text| *text = truncate(text, MESSAGE).into_owned());
    }
    all
}

/// Tenants and DPUs, as they are looked up.
struct Fleet<'a> {
    tenants: &'a BTreeMap<String, TenantEntry>,
    dpus: Vec<(&'a str, &'a Dpu)>,
    /// Tenants by their namespaces.
    owners: BTreeMap<&'a str, &'a str>,
    in_host: BTreeMap<&'a str, Vec<&'a Dpu>>,
    /// Tenants that list a host.
    listed: BTreeMap<&'a str, Vec<&'a str>>,
    /// Both kinds could be read, so that what is absent doesn't exist.
    is_complete: bool,
}

impl<'a> Fleet<'a> {
    fn new(
        tenants: &'a BTreeMap<String, TenantEntry>,
        nodes: &'a [(Arc<Id>, Arc<NodeEntry>)],
        is_complete: bool,
    ) -> Self {
        let owners = tenants.iter().map(|(name, entry)| (entry.namespace.as_str(), name.as_str())).collect();
        let dpus = nodes.iter().filter_map(|(id, node)| Some((id.name.as_str(), node.dpu.as_ref()?)));
        let dpus: Vec<_> = dpus.collect();
        let (mut in_host, mut listed) = (BTreeMap::<_, Vec<_>>::new(), BTreeMap::<_, Vec<_>>::new());
        for (_, dpu) in &dpus {
            if let Some(host) = &dpu.host {
                in_host.entry(host.as_str()).or_default().push(*dpu);
            }
        }
        for (name, entry) in tenants {
            for host in &entry.hosts {
                listed.entry(host.as_str()).or_default().push(name.as_str());
            }
        }
        Self { tenants, dpus, owners, in_host, listed, is_complete }
    }

    /// The tenants that list a host.
    fn listers(&self, host: &str) -> &[&'a str] {
        self.listed.get(host).map(Vec::as_slice).unwrap_or_default()
    }

    /// These DPUs of a host, as far as a tenant may use them.
    fn verdict(&self, tenant: &str, host: &str, dpus: &[&Dpu]) -> HostDpu {
        let dpus = dpus.iter().map(|dpu| dpu.for_tenant(tenant));
        let listers = self.listers(host);
        HostDpu::of(host, dpus, listers.contains(&tenant), || listers.iter().any(|other| *other != tenant))
    }

    fn companion(&self, id: Arc<Id>, pod: Arc<PodEntry>) -> Companion {
        let tenant = match &pod.tenant {
            Some(tenant) => tenant.to_string(),
            None => self.owners.get(id.namespace.as_str()).copied().unwrap_or_default().to_owned(),
        };
        let dpus = self.in_host.get(pod.host.as_str()).into_iter().flatten().copied();
        let is_its = |dpu: &&Dpu| pod.dpu.as_ref().is_none_or(|name| *name == dpu.node.name);
        let dpus: Vec<&Dpu> = dpus.filter(is_its).collect();
        let is_known = self.is_complete && !pod.host.is_empty() && self.tenants.contains_key(&tenant);
        let progress = progress(&pod, is_known.then(|| self.verdict(&tenant, &pod.host, &dpus)));
        let cause = progress.and_then(|progress| progress.cause);
        Companion { grade: grade(progress), cause, id, pod, tenant }
    }

    /// Every DPU, and every host without one.
    fn rows(&self) -> Vec<HostRow> {
        let row = |host: &str, dpu: &str, tenant: &str, cause: Option<Cause>| HostRow {
            host: host.to_owned(),
            dpu: dpu.to_owned(),
            tenant: tenant.to_owned(),
            grade: match cause {
                None => Grade::Good,
                Some(Cause::HandingOver) => Grade::Odd,
                Some(_) => Grade::Bad,
            },
            cause,
            companions: 0,
            ready: 0,
        };
        let mut rows: Vec<HostRow> = Vec::with_capacity(self.dpus.len());
        for (name, dpu) in &self.dpus {
            let (host, owner) = (dpu.host.as_deref().unwrap_or_default(), dpu.marks.owner.as_deref());
            let not_ready = (!dpu.ready).then_some(Cause::DpuNotReady);
            let (tenant, cause) = match (owner, self.listers(host)) {
                (None, []) => ("", not_ready),
                (None, [one]) => (*one, self.verdict(one, host, &[dpu]).cause()),
                (None, _) => ("", Some(Cause::HostConflict)),
                // Without the list of Tenants nothing is known but what the Node says.
                (Some(owner), []) if !self.is_complete => (owner, not_ready),
                (Some(owner), _) => (owner, self.verdict(owner, host, &[dpu]).cause()),
            };
            rows.push(row(host, name, tenant, cause));
        }
        if self.is_complete {
            for (host, listers) in self.listed.iter().filter(|(host, _)| !self.in_host.contains_key(*host)) {
                let cause = if listers.len() > 1 { Cause::HostConflict } else { Cause::NoDpu };
                rows.push(row(host, "", &listers.join(", "), Some(cause)));
            }
        }
        rows
    }
}

/// How far a companion is that exists; `None`: it is being deleted, and whether another one follows isn't known here.
fn progress(pod: &PodEntry, dpu: Option<HostDpu>) -> Option<Progress> {
    let observed = &pod.observed;
    // What is wanted instead depends on the workload, which only managers know.
    let facts = Facts {
        wish: Wish::Kept,
        observed: Some(observed),
        refusal: observed.gated.then_some(Cause::NotAdmitted),
        template_refusal: None,
        dpu,
        placement: unplaced::guess(&pod.message),
        was_ready: false,
    };
    (!observed.terminating).then(|| facts.progress())
}

fn grade(progress: Option<Progress>) -> Grade {
    match progress.map(|progress| progress.stage) {
        Some(Stage::Ready) => Grade::Good,
        Some(Stage::Refused | Stage::NoDpu | Stage::Failed | Stage::Lost) => Grade::Bad,
        Some(Stage::Pending | Stage::Starting) | None => Grade::Odd,
    }
}

/// What a cluster is like.
#[derive(Debug, Default)]
pub(super) struct Data {
    pub(super) report: Report,
    pub(super) tenants: BTreeMap<String, TenantEntry>,
    rules: Vec<Arc<RuleRow>>,
    /// Those with problems first.
    pub(super) companions: Vec<Companion>,
    /// Those with problems first.
    pub(super) hosts: Vec<HostRow>,
    /// Tenants by their namespaces.
    owners: BTreeMap<String, String>,
}

impl Data {
    /// All that follows from the report and from the objects.
    pub(super) fn new(
        report: Report,
        tenants: BTreeMap<String, TenantEntry>,
        rules: Vec<Arc<RuleRow>>,
        pods: Named<PodEntry>,
        nodes: &Named<NodeEntry>,
    ) -> Self {
        let fleet = Fleet::new(&tenants, nodes, report.tenants.is_some() && report.dpus.is_some());
        let mut companions: Vec<Companion> =
            pods.into_iter().map(|(id, pod)| fleet.companion(id, pod)).collect();
        // They come in the order of their names, and stay in it.
        companions.sort_by_key(|companion| companion.grade);
        let mut hosts = fleet.rows();
        let mut on: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for pod in companions.iter().map(|companion| &companion.pod).filter(|pod| !pod.node.is_empty()) {
            let (all, ready) = on.entry(&pod.node).or_default();
            *all += 1;
            *ready += usize::from(pod.state == "Ready");
        }
        for row in &mut hosts {
            (row.companions, row.ready) = on.get(row.dpu.as_str()).copied().unwrap_or_default();
        }
        hosts.sort_by(|a, b| (a.grade, &a.host, &a.dpu).cmp(&(b.grade, &b.host, &b.dpu)));
        let owners = fleet.owners.iter();
        let owners = owners.map(|(namespace, tenant)| ((*namespace).to_owned(), (*tenant).to_owned()));
        Self { owners: owners.collect(), report, tenants, rules, companions, hosts }
    }

    /// How many rows it has.
    pub(super) fn rows(&self) -> usize {
        self.tenants.len() + self.rules.len() + self.companions.len() + self.hosts.len()
    }

    /// The rules with their tenants; empty where that isn't known.
    pub(super) fn rules(&self) -> impl Iterator<Item = (&str, &RuleRow)> {
        let tenant = |row: &RuleRow| self.owners.get(&row.namespace).map_or("", String::as_str);
        self.rules.iter().map(move |row| (tenant(row), &**row))
    }

    /// The causes of missing companions of what is wanted, the most frequent first.
    pub(super) fn missing(&self, takes: impl Fn(&[&str], &str) -> bool) -> Vec<Missing> {
        let mut found: BTreeMap<&str, Missing> = BTreeMap::new();
        for of in &self.companions {
            if let Some(cause) = of
                .cause
                .filter(|_| takes(&[&of.id.namespace, &of.id.name, &of.pod.rule, &of.pod.host], &of.tenant))
            {
                entry(&mut found, cause.as_str()).companions += 1;
            }
        }
        for (tenant, row) in self.rules() {
            if !row.reason.is_empty() && takes(&[&row.namespace, &row.name], tenant) {
                let missing = entry(&mut found, &row.reason);
                missing.rules += 1;
                missing.lacking += (row.wanted - row.created).max(0);
            }
        }
        let mut all: Vec<_> = found.into_values().collect();
        all.sort_by_key(|missing| {
            let companions = i64::try_from(missing.companions).unwrap_or(i64::MAX);
            std::cmp::Reverse((companions.saturating_add(missing.lacking), missing.rules))
        });
        all
    }
}

fn entry<'a, 'b>(found: &'a mut BTreeMap<&'b str, Missing>, word: &'b str) -> &'a mut Missing {
    found.entry(word).or_insert_with(|| Missing {
        word: word.to_owned(),
        cause: word.parse().ok(),
        companions: 0,
        rules: 0,
        lacking: 0,
    })
}

#[cfg(test)]
pub(super) mod tests;
