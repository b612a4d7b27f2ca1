//! One reading of the cluster as small rows: what the report of `outrigger status` says, and each companion and DPU.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use outrigger_core::companion::Observed;
use outrigger_core::ids::TenantId;
use outrigger_core::index::CompanionKey;
use outrigger_core::json::{list, text};
use outrigger_core::progress::{Facts, HostDpu, Progress, Stage, Wish};
use outrigger_core::reason::Cause;
use outrigger_manager::dpu::Dpu;
use outrigger_runtime::pod::Pod;
use serde_json::Value;

use crate::check::installation::cluster::Kind;
use crate::explain::view::told_workload;
use crate::status::read::{ADMIN_RULE, NODE, POD, RULE, TENANT};
use crate::status::report::{Report, RuleRow, TenantRow};
use crate::status::sections::Grade;
use crate::status::summary;

/// Most characters of a message that are kept.
const MESSAGE: usize = 1024;

/// A condition of an object's status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Condition {
    pub(super) kind: String,
    pub(super) status: String,
    pub(super) reason: String,
    pub(super) message: String,
}

/// A Tenant: its row, and what others need of it.
#[derive(Debug)]
pub(super) struct TenantEntry {
    pub(super) row: TenantRow,
    namespace: String,
    hosts: Vec<String>,
    pub(super) conditions: Vec<Condition>,
}

/// A companion that exists.
#[derive(Debug, Clone)]
pub(super) struct Companion {
    pub(super) namespace: String,
    pub(super) name: String,
    /// Its tenant; empty where that isn't known.
    pub(super) tenant: String,
    pub(super) rule: String,
    /// Its workload as `NAMESPACE/NAME`, where the companion has all of it.
    pub(super) workload: Option<String>,
    pub(super) host: String,
    /// The Node it is bound to; empty: none.
    pub(super) node: String,
    /// Its state in the word of `outrigger status`.
    pub(super) state: &'static str,
    pub(super) grade: Grade,
    /// What is wrong with it.
    pub(super) cause: Option<Cause>,
    pub(super) message: String,
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

/// Takes objects out of lists.
#[derive(Debug, Default)]
pub(super) struct Collector {
    tenants: BTreeMap<String, TenantEntry>,
    rules: Vec<RuleRow>,
    pods: Vec<PodEntry>,
    dpus: Vec<(String, Dpu)>,
    host_label: String,
    admin_namespace: String,
}

/// A companion before it is known which DPUs there are.
#[derive(Debug)]
struct PodEntry {
    namespace: String,
    name: String,
    tenant: Option<TenantId>,
    key: CompanionKey,
    node: String,
    workload: Option<String>,
    observed: Observed,
}

impl Collector {
    pub(super) fn new(host_label: &str, admin_namespace: &str) -> Self {
        Self {
            host_label: host_label.to_owned(),
            admin_namespace: admin_namespace.to_owned(),
            ..Self::default()
        }
    }

    /// Takes an object of this kind. Others than those that are shown are left out.
    pub(super) fn take(&mut self, kind: Kind, object: &Value) {
        match kind.1 {
            kind if kind == TENANT.1 => self.tenant(object),
            kind if kind == RULE.1 || kind == ADMIN_RULE.1 => {
                let mut row = summary::rule(object);
                shorten(&mut row.message, MESSAGE);
                self.rules.push(row);
            }
            kind if kind == POD.1 => self.pod(object),
            kind if kind == NODE.1 => {
                let node: Option<Node> = serde_json::from_value(object.clone()).ok();
                let Some(node) = node else { return };
                let dpu = Dpu::of(&node, &self.host_label);
                self.dpus.extend(dpu.map(|dpu| (node.metadata.name.unwrap_or_default(), dpu)));
            }
            _ => {}
        }
    }

    fn tenant(&mut self, object: &Value) {
        let Ok(tenant) = serde_json::from_value::<outrigger_api::Tenant>(object.clone()) else { return };
        let mut row = summary::tenant(object);
        shorten(&mut row.message, MESSAGE);
        let namespace = tenant.target_namespace();
        let entry = TenantEntry { namespace, hosts: tenant.spec.hosts, conditions: conditions(object), row };
        self.tenants.insert(entry.row.name.clone(), entry);
    }

    fn pod(&mut self, object: &Value) {
        let Ok(pod) = serde_json::from_value::<Pod>(object.clone()) else { return };
        let Some((tenant, key, mut observed)) = summary::observed(&pod, &self.admin_namespace) else {
            return;
        };
        let workload = told_workload(&observed);
        shorten(&mut observed.message, MESSAGE);
        // Facts about workloads aren't shown, and are most of what there is.
        observed.annotations.clear();
        self.pods.push(PodEntry {
            namespace: pod.metadata.namespace.unwrap_or_default(),
            name: pod.metadata.name.unwrap_or_default(),
            tenant,
            key,
            node: pod.spec.and_then(|spec| spec.node_name).unwrap_or_default(),
            workload: workload.map(|w| format!("{}/{}", w.resource_namespace, w.resource_name)),
            observed,
        });
    }

    /// All that follows from the objects.
    pub(super) fn finish(self, report: Report) -> Data {
        let Self { mut tenants, rules, pods, dpus, .. } = self;
        if let Some(since) = report.no_manager_since() {
            tenants.values_mut().for_each(|entry| entry.row.without_manager(since));
        }
        let fleet = Fleet::new(&tenants, &dpus, report.tenants.is_some() && report.dpus.is_some());
        let mut companions: Vec<Companion> = pods.into_iter().map(|pod| fleet.companion(pod)).collect();
        companions.sort_by(|a, b| (a.grade, &a.namespace, &a.name).cmp(&(b.grade, &b.namespace, &b.name)));
        let mut hosts = fleet.rows();
        let mut on: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for companion in companions.iter().filter(|companion| !companion.node.is_empty()) {
            let (all, ready) = on.entry(&companion.node).or_default();
            *all += 1;
            *ready += usize::from(companion.state == "Ready");
        }
        for row in &mut hosts {
            (row.companions, row.ready) = on.get(row.dpu.as_str()).copied().unwrap_or_default();
        }
        hosts.sort_by(|a, b| (a.grade, &a.host, &a.dpu).cmp(&(b.grade, &b.host, &b.dpu)));
        let owners = fleet.owners;
        let owners = owners.into_iter().map(|(namespace, tenant)| (namespace.to_owned(), tenant.to_owned()));
        let owners = owners.collect();
        Data { report, tenants, rules, companions, hosts, owners }
    }
}

fn conditions(object: &Value) -> Vec<Condition> {
    let all = list(object, "/status/conditions").iter().take(32);
    let condition = |condition: &Value| {
        let text = |field| {
            let mut text = text(condition, field).to_owned();
            shorten(&mut text, MESSAGE);
            text
        };
        Condition {
            kind: text("/type"),
            status: text("/status"),
            reason: text("/reason"),
            message: text("/message"),
        }
    };
    all.map(condition).collect()
}

/// Cuts a text off after so many characters, and shows that.
pub(super) fn shorten(text: &mut String, most: usize) {
    if let Some((end, _)) = text.char_indices().nth(most) {
        text.truncate(end);
        text.push('…');
    }
}

/// Tenants and DPUs, as they are looked up.
struct Fleet<'a> {
    tenants: &'a BTreeMap<String, TenantEntry>,
    dpus: &'a [(String, Dpu)],
    /// Tenants by their namespaces.
    owners: BTreeMap<&'a str, &'a str>,
    in_host: BTreeMap<&'a str, Vec<&'a Dpu>>,
    /// Tenants that list a host.
    listed: BTreeMap<&'a str, Vec<&'a str>>,
    /// Both kinds could be read, so that what is absent doesn't exist.
    is_complete: bool,
}

impl<'a> Fleet<'a> {
    fn new(tenants: &'a BTreeMap<String, TenantEntry>, dpus: &'a [(String, Dpu)], is_complete: bool) -> Self {
        let owners = tenants.iter().map(|(name, entry)| (entry.namespace.as_str(), name.as_str())).collect();
        let (mut in_host, mut listed) = (BTreeMap::<_, Vec<_>>::new(), BTreeMap::<_, Vec<_>>::new());
        for (_, dpu) in dpus {
            if let Some(host) = &dpu.host {
                in_host.entry(host.as_str()).or_default().push(dpu);
            }
        }
        for (name, entry) in tenants {
            for host in &entry.hosts {
                listed.entry(host.as_str()).or_default().push(name.as_str());
            }
        }
        Self { tenants, dpus, owners, in_host, listed, is_complete }
    }

    /// These DPUs of a host, as far as a tenant may use them.
    fn verdict(&self, tenant: &str, host: &str, dpus: &[&Dpu]) -> HostDpu {
        let dpus = dpus.iter().map(|dpu| dpu.for_tenant(tenant));
        let listers = self.listed.get(host).map(Vec::as_slice).unwrap_or_default();
        HostDpu::of(dpus, listers.contains(&tenant), || listers.iter().any(|other| *other != tenant))
    }

    fn companion(&self, pod: PodEntry) -> Companion {
        let PodEntry { namespace, name, tenant, key, node, workload, observed } = pod;
        let tenant = match tenant {
            Some(tenant) => tenant.to_string(),
            None => self.owners.get(namespace.as_str()).copied().unwrap_or_default().to_owned(),
        };
        let host = observed.host.clone().unwrap_or_default();
        let dpus = self.in_host.get(host.as_str()).map(Vec::as_slice).unwrap_or_default();
        let is_known = self.is_complete && !host.is_empty() && self.tenants.contains_key(&tenant);
        let progress = progress(&observed, is_known.then(|| self.verdict(&tenant, &host, dpus)));
        Companion {
            rule: key.rule.to_string(),
            workload,
            host,
            node,
            state: summary::state(&observed),
            grade: grade(progress),
            cause: progress.and_then(|progress| progress.cause),
            message: observed.message,
            namespace,
            name,
            tenant,
        }
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
        for (name, dpu) in self.dpus {
            let (host, owner) = (dpu.host.as_deref().unwrap_or_default(), dpu.marks.owner.as_deref());
            let listers = self.listed.get(host).map(Vec::as_slice).unwrap_or_default();
            let not_ready = (!dpu.ready).then_some(Cause::DpuNotReady);
            let (tenant, cause) = match (owner, listers) {
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
fn progress(observed: &Observed, dpu: Option<HostDpu>) -> Option<Progress> {
    // What is wanted instead depends on the workload, which only managers know.
    let facts = Facts {
        wish: Wish::Kept,
        observed: Some(observed),
        refusal: observed.gated.then_some(Cause::NotAdmitted),
        template_refusal: None,
        dpu,
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

/// What one reading has shown.
#[derive(Debug, Default)]
pub(super) struct Data {
    pub(super) report: Report,
    pub(super) tenants: BTreeMap<String, TenantEntry>,
    rules: Vec<RuleRow>,
    /// Those with problems first.
    pub(super) companions: Vec<Companion>,
    /// Those with problems first.
    pub(super) hosts: Vec<HostRow>,
    /// Tenants by their namespaces.
    owners: BTreeMap<String, String>,
}

impl Data {
    /// How many rows it has.
    pub(super) fn rows(&self) -> usize {
        self.tenants.len() + self.rules.len() + self.companions.len() + self.hosts.len()
    }

    /// The rules with their tenants; empty where that isn't known.
    pub(super) fn rules(&self) -> impl Iterator<Item = (&str, &RuleRow)> {
        let tenant = |row: &RuleRow| self.owners.get(&row.namespace).map_or("", String::as_str);
        self.rules.iter().map(move |row| (tenant(row), row))
    }

    /// The causes of missing companions of what is wanted, the most frequent first.
    pub(super) fn missing(&self, takes: impl Fn(&[&str], &str) -> bool) -> Vec<Missing> {
        let mut found: BTreeMap<&str, Missing> = BTreeMap::new();
        for of in &self.companions {
            if let Some(cause) =
                of.cause.filter(|_| takes(&[&of.namespace, &of.name, &of.rule, &of.host], &of.tenant))
            {
                entry(&mut found, cause.as_str()).companions += 1;
            }
        }
        for (tenant, row) in self.rules() {
            if !row.reason.is_empty() && takes(&[&row.namespace, &row.name], tenant) {
                let missing = entry(&mut found, &row.reason);
                missing.rules += 1;
                missing.lacking += (row.matched - row.created).max(0);
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
