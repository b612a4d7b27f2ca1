//! The report for people: a section for each part of it.

use std::collections::BTreeMap;
use std::fmt::Display;

use super::report::{CertificateRow, DpuRow, InstallationStatus, LeaderRow, Report, RuleRow, TenantRow};
use crate::document::{Document, Grade, Item, Readable, Row, Table, bold, graded, item, odd};

/// Most rows of a table. Those with problems come first.
const ROWS: usize = 20;

impl Readable for Report {
    fn document(&self) -> Document {
        let mut document = Document::default();
        for (_, section) in sections(self) {
            document.append(section);
            document.gap();
        }
        for what in &self.not_visible {
            document.add(item![odd("not visible:"), " ", what]);
        }
        document
    }
}

/// The sections of what is visible, with their titles.
pub(crate) fn sections(report: &Report) -> Vec<(String, Document)> {
    let mut all = Vec::new();
    all.extend(report.installation.as_ref().map(installation));
    all.extend(report.tenants.as_ref().map(|rows| section(rows.len(), tenants(rows))));
    all.extend(report.rules.as_ref().map(|rows| section(rows.len(), rules(rows))));
    if let Some(companions) = &report.companions {
        let count: usize = companions.values().flat_map(BTreeMap::values).sum();
        let rows = companions.iter().map(|(namespace, states)| {
            let words: Vec<String> = states.iter().map(|(state, count)| format!("{count} {state}")).collect();
            let is_good = states.keys().all(|state| *state == "Ready");
            Row::new(good_or_odd(is_good), [namespace, &words.join(", ")])
        });
        all.push(section(count, table("companions", &["NAMESPACE", "COMPANIONS"], rows)));
    }
    if let Some(dpus) = &report.dpus {
        let count: usize = dpus.iter().map(|row| row.dpus).sum();
        let heads = &["TENANT", "DPUS", "READY", "CORDONED", "HANDED OVER"];
        all.push(section(count, table("DPUs", heads, dpus.iter().map(dpu))));
    }
    if !report.certificates.is_empty() {
        let heads = &["CERTIFICATE", "STATE", "ENDS", "OBJECT"];
        let table = table("certificates", heads, report.certificates.iter().map(certificate));
        all.push(section(report.certificates.len(), table));
    }
    all
}

/// Rows with problems come first.
fn table(name: &str, heads: &[&'static str], rows: impl IntoIterator<Item = Row>) -> Table {
    let mut rows: Vec<Row> = rows.into_iter().collect();
    rows.sort_by_key(|row| row.grade);
    Table { name: name.to_owned(), heads: heads.to_vec(), rows, most: Some(ROWS) }
}

/// A table below its title. `detail`: how much there is, or where.
fn section(detail: impl Display, table: Table) -> (String, Document) {
    let (title, mut document) = (table.name.clone(), Document::default());
    document.add(item![bold(&title), format_args!(" ({detail})")]);
    document.table(table);
    (title, document)
}

/// Tenants, in a table.
pub(crate) fn tenants<'a>(rows: impl IntoIterator<Item = &'a TenantRow>) -> Table {
    let heads = &["TENANT", "READY", "ENFORCEMENT", "DPUS", "STREAM", "WORKLOADS", "REASON"];
    table("tenants", heads, rows.into_iter().map(|row| Row::new(tenant_grade(row), tenant(row))))
}

/// Rules, in a table.
pub(crate) fn rules<'a>(rows: impl IntoIterator<Item = &'a RuleRow>) -> Table {
    let heads = &["RULE", "MATCHED", "CREATED", "READY", "REASON"];
    table("rules", heads, rows.into_iter().map(|row| Row::new(rule_grade(row), rule(row))))
}

fn good_or_odd(is_good: bool) -> Grade {
    if is_good { Grade::Good } else { Grade::Odd }
}

fn installation(status: &InstallationStatus) -> (String, Document) {
    let parts = status.parts.iter().map(|row| {
        let is_good = row.ready >= row.replicas && row.versions.len() < 2;
        let grade = if is_good { Grade::Good } else { Grade::Bad };
        Row::new(grade, [row.part, &row.versions.join(", "), &format!("{}/{}", row.ready, row.replicas)])
    });
    let table = table("installation", &["PART", "VERSION", "READY"], parts);
    let (title, mut section) = section(format_args!("namespace {}", status.namespace), table);
    for row in &status.webhooks {
        section.add(match row.entries {
            0 => line(Grade::Bad, format!("{}: not found", row.kind)),
            entries => line(Grade::Good, format!("{}: {entries} webhooks", row.kind)),
        });
    }
    if let Some(LeaderRow { holder, renewed, expired }) = &status.leader {
        let by = if holder.is_empty() { "by none" } else { holder };
        let (grade, more) = match expired {
            false => (Grade::Good, ""),
            true => (
                Grade::Bad,
                "; no manager runs, or none reaches the API server, so what Tenants and rules say of streams and companions is as old",
            ),
        };
        section.add(line(grade, format!("leading manager: {by}, Lease renewed at {renewed}{more}")));
    }
    if let Some(policies) = &status.policies {
        let found = policies.shipped - policies.missing.len();
        let of = format!("policies: {found} of {}", policies.shipped);
        section.add(match policies.missing.as_slice() {
            [] => line(Grade::Good, of),
            missing => line(Grade::Odd, format!("{of}; not found: {}", missing.join(", "))),
        });
        let loaded = policies.files_loaded.map(|loaded| match loaded {
            true => line(Grade::Good, "the API server has loaded the files of --static-policies".to_owned()),
            false => line(
                Grade::Bad,
                "the API server that answered hasn't loaded the files of --static-policies, so they don't count".to_owned(),
            ),
        });
        loaded.into_iter().for_each(|line| section.add(line));
    }
    (title, section)
}

fn line(grade: Grade, text: String) -> Item {
    item![graded(grade, text)]
}

/// Reason and message in one cell.
fn words(reason: &str, message: &str) -> String {
    if message.is_empty() { reason.to_owned() } else { format!("{reason}: {message}") }
}

fn tenant_grade(row: &TenantRow) -> Grade {
    if !row.no_manager_since.is_empty() {
        return Grade::Bad;
    }
    match (row.ready.as_str(), row.connected) {
        ("True", Some(true)) if matches!(row.enforcement.as_str(), "Observe" | "Warn") => Grade::Odd,
        ("True", Some(true)) => Grade::Good,
        ("False", _) => Grade::Bad,
        _ => Grade::Odd,
    }
}

fn tenant(row: &TenantRow) -> [String; 7] {
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
    [
        row.name.clone(),
        row.ready.clone(),
        row.enforcement.clone(),
        row.dpus.to_string(),
        stream,
        workloads,
        reason,
    ]
}

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

fn dpu(row: &DpuRow) -> Row {
    let [all, ready, cordoned, handed_over] =
        [row.dpus, row.ready, row.cordoned, row.handed_over].map(|n| n.to_string());
    let is_good = row.ready == row.dpus && row.handed_over == 0;
    Row::new(good_or_odd(is_good), [&row.tenant, &all, &ready, &cordoned, &handed_over])
}

fn certificate(row: &CertificateRow) -> Row {
    let grade = match row.state {
        "Expired" => Grade::Bad,
        "Expires" => Grade::Odd,
        _ => Grade::Good,
    };
    let part = format!("{} {}", row.part, row.what);
    Row::new(grade, [part.as_str(), row.state, &row.not_after, &row.object])
}
