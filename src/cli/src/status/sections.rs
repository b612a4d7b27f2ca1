//! The report in sections, each with a table, for whoever shows it to people.

use std::collections::BTreeMap;

use super::report::{CertificateRow, DpuRow, InstallationStatus, LeaderRow, Report, RuleRow, TenantRow};

/// How something is. What is worst comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Grade {
    /// It is wrong.
    Bad,
    /// It deserves attention.
    Odd,
    /// It is as it should be.
    Good,
}

/// A part of the report.
#[derive(Debug)]
pub(crate) struct Section {
    pub(crate) title: &'static str,
    /// How much there is, or where.
    pub(crate) detail: String,
    pub(crate) heads: &'static [&'static str],
    /// Rows with problems come first.
    pub(crate) rows: Vec<(Grade, Vec<String>)>,
    /// What is said below the table.
    pub(crate) lines: Vec<(Grade, String)>,
}

impl Section {
    fn new(
        title: &'static str,
        detail: String,
        heads: &'static [&'static str],
        rows: impl IntoIterator<Item = (Grade, Vec<String>)>,
    ) -> Self {
        let mut rows: Vec<_> = rows.into_iter().collect();
        rows.sort_by_key(|(grade, _)| *grade);
        Self { title, detail, heads, rows, lines: Vec::new() }
    }

    /// Tenants, as the report shows them.
    pub(crate) fn tenants<'a>(rows: impl IntoIterator<Item = &'a TenantRow>) -> Self {
        let rows: Vec<_> = rows.into_iter().map(|row| (tenant_grade(row), tenant(row).to_vec())).collect();
        Self::new("tenants", rows.len().to_string(), TENANT, rows)
    }

    /// Rules, as the report shows them.
    pub(crate) fn rules<'a>(rows: impl IntoIterator<Item = &'a RuleRow>) -> Self {
        let rows: Vec<_> = rows.into_iter().map(|row| (rule_grade(row), rule(row).to_vec())).collect();
        Self::new("rules", rows.len().to_string(), RULE, rows)
    }
}

/// All sections of what is visible.
pub(crate) fn sections(report: &Report) -> Vec<Section> {
    let mut all = Vec::new();
    all.extend(report.installation.as_ref().map(installation));
    all.extend(report.tenants.as_ref().map(Section::tenants));
    all.extend(report.rules.as_ref().map(Section::rules));
    if let Some(companions) = &report.companions {
        let count: usize = companions.values().flat_map(BTreeMap::values).sum();
        let rows = companions.iter().map(|(namespace, states)| {
            let words: Vec<String> = states.iter().map(|(state, count)| format!("{count} {state}")).collect();
            let is_good = states.keys().all(|state| *state == "Ready");
            (good_or_odd(is_good), vec![namespace.clone(), words.join(", ")])
        });
        all.push(Section::new("companions", count.to_string(), &["NAMESPACE", "COMPANIONS"], rows));
    }
    if let Some(dpus) = &report.dpus {
        let count: usize = dpus.iter().map(|row| row.dpus).sum();
        let heads = &["TENANT", "DPUS", "READY", "CORDONED", "HANDED OVER"];
        all.push(Section::new("DPUs", count.to_string(), heads, dpus.iter().map(dpu)));
    }
    if !report.certificates.is_empty() {
        let heads = &["CERTIFICATE", "STATE", "ENDS", "OBJECT"];
        let count = report.certificates.len().to_string();
        all.push(Section::new("certificates", count, heads, report.certificates.iter().map(certificate)));
    }
    all
}

fn good_or_odd(is_good: bool) -> Grade {
    if is_good { Grade::Good } else { Grade::Odd }
}

fn installation(status: &InstallationStatus) -> Section {
    let parts = status.parts.iter().map(|row| {
        let is_good = row.ready >= row.replicas && row.versions.len() < 2;
        let grade = if is_good { Grade::Good } else { Grade::Bad };
        (grade, vec![row.part.to_owned(), row.versions.join(", "), format!("{}/{}", row.ready, row.replicas)])
    });
    let detail = format!("namespace {}", status.namespace);
    let mut section = Section::new("installation", detail, &["PART", "VERSION", "READY"], parts);
    section.lines.extend(status.webhooks.iter().map(|row| match row.entries {
        0 => (Grade::Bad, format!("{}: not found", row.kind)),
        entries => (Grade::Good, format!("{}: {entries} webhooks", row.kind)),
    }));
    section.lines.extend(status.leader.as_ref().map(|leader| {
        let LeaderRow { holder, renewed, expired } = leader;
        let by = if holder.is_empty() { "by none" } else { holder };
        let (grade, more) = match expired {
            false => (Grade::Good, ""),
            true => (
                Grade::Bad,
                "; no manager runs, or none reaches the API server, so what Tenants and rules say of streams and companions is as old",
            ),
        };
        (grade, format!("leading manager: {by}, Lease renewed at {renewed}{more}"))
    }));
    section.lines.extend(status.policies.as_ref().map(|policies| {
        let found = policies.shipped - policies.missing.len();
        let of = format!("policies: {found} of {}", policies.shipped);
        match policies.missing.as_slice() {
            [] => (Grade::Good, of),
            missing => (Grade::Odd, format!("{of}; not found: {}", missing.join(", "))),
        }
    }));
    section
}

/// Reason and message in one cell.
fn words(reason: &str, message: &str) -> String {
    if message.is_empty() { reason.to_owned() } else { format!("{reason}: {message}") }
}

const TENANT: &[&str] = &["TENANT", "READY", "DPUS", "STREAM", "WORKLOADS", "REASON"];

fn tenant_grade(row: &TenantRow) -> Grade {
    if !row.no_manager_since.is_empty() {
        return Grade::Bad;
    }
    match (row.ready.as_str(), row.connected) {
        ("True", Some(true)) => Grade::Good,
        ("False", _) => Grade::Bad,
        _ => Grade::Odd,
    }
}

fn tenant(row: &TenantRow) -> [String; 6] {
    let stream = match row.connected {
        Some(true) if !row.no_manager_since.is_empty() => {
            format!("no manager since {}, before connected since {}", row.no_manager_since, row.since)
        }
        Some(true) => format!("connected since {}", row.since),
        Some(false) => format!("lost since {}", row.since),
        None => "never connected".to_owned(),
    };
    let workloads = row.workloads.map(|count| count.to_string()).unwrap_or_default();
    let reason = words(&row.reason, &row.message);
    [row.name.clone(), row.ready.clone(), row.dpus.to_string(), stream, workloads, reason]
}

const RULE: &[&str] = &["RULE", "MATCHED", "CREATED", "READY", "REASON"];

fn rule_grade(row: &RuleRow) -> Grade {
    match row.reason.as_str() {
        "" => Grade::Good,
        "Invalid" | "Refused" | "LimitReached" | "NameTaken" => Grade::Bad,
        _ => Grade::Odd,
    }
}

fn rule(row: &RuleRow) -> [String; 5] {
    let admin = if row.kind == "AdminWorkloadRule" { " (admin)" } else { "" };
    let [matched, created, ready] = [row.matched, row.created, row.ready].map(|count| count.to_string());
    let name = format!("{}/{}{admin}", row.namespace, row.name);
    [name, matched, created, ready, words(&row.reason, &row.message)]
}

fn dpu(row: &DpuRow) -> (Grade, Vec<String>) {
    let [all, ready, cordoned, handed_over] =
        [row.dpus, row.ready, row.cordoned, row.handed_over].map(|n| n.to_string());
    let is_good = row.ready == row.dpus && row.handed_over == 0;
    (good_or_odd(is_good), vec![row.tenant.clone(), all, ready, cordoned, handed_over])
}

fn certificate(row: &CertificateRow) -> (Grade, Vec<String>) {
    let grade = match row.state {
        "Expired" => Grade::Bad,
        "Expires" => Grade::Odd,
        _ => Grade::Good,
    };
    let part = format!("{} {}", row.part, row.what);
    (grade, vec![part, row.state.to_owned(), row.not_after.clone(), row.object.clone()])
}
