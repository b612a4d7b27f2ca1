//! `outrigger check`

mod devices;
pub(crate) mod findings;
pub(crate) mod installation;
mod live;
mod look;
mod machines;
mod nodes;
mod open_reports;
mod rules;
mod sarif;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use outrigger_core::reason::Cause;
use outrigger_runtime::cluster::ClusterArgs;
use outrigger_webhook::settings::AdmissionArgs;
use serde::{Serialize, Serializer};

use crate::admission::Admission;
use crate::check::findings::{Finding, Severity, Subject};
use crate::document::{Document, Item, Readable, bad, bold, dim, item, odd};
use crate::explain::live::wait;
use crate::files::print_json;
use crate::state::State;

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// File or directory with objects: Tenants, Namespaces, Nodes, rules, NamespaceOffloadings, ResourceClaims, DeviceClasses,
    /// Machines. May be given several times; - is standard input. Without it: read from a cluster.
    #[arg(short, long = "filename", value_name = "FILE")]
    filename: Vec<PathBuf>,

    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: Output,

    /// Write what is found into the infrastructure cluster, as Report and ClusterReport of openreports.io/v1alpha1, where it differs
    /// from what is there. Only rules and running Pods are examined. Exit code 0: the reports are written, whatever they say.
    #[arg(long, requires = "live", conflicts_with_all = ["output", "part", "tenant_kubeconfig", "tenant_context"])]
    write_reports: bool,

    #[command(flatten)]
    live: installation::LiveArgs,

    #[command(flatten)]
    admission: AdmissionArgs,

    #[command(flatten)]
    cluster: ClusterArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// Text for people, in colour on a terminal.
    Text,
    /// JSON, as docs/check.md describes it.
    Json,
    /// SARIF 2.1.0, for code scanners.
    Sarif,
    /// Report and ClusterReport of openreports.io/v1alpha1, for kubectl apply.
    Openreports,
}

/// The report; what it serialises is stable.
#[derive(Debug, Default)]
pub(crate) struct Report {
    findings: Vec<Finding>,
    notes: Vec<String>,
    /// Namespaces of tenants of which nothing else is to be said.
    namespaces: BTreeSet<String>,
    files: BTreeMap<Subject, String>,
}

impl CheckArgs {
    /// Exit code 1: an error was found.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        if self.write_reports {
            let written = wait(self.written())?;
            writeln!(anstream::stdout(), "{written}")?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut report = if self.live.live {
            wait(installation::report(&self.live, &self.admission, &self.cluster))?
        } else {
            let (state, notes) = if self.filename.is_empty() {
                wait(live::read(&self.cluster))?
            } else {
                (State::read(&self.filename)?, Vec::new())
            };
            let mut report = look::report(&Admission::new(state, self.admission)?)?;
            report.notes.splice(..0, notes);
            report
        };
        report.sort();
        match self.output {
            Output::Text => report.document().text(&mut anstream::stdout().lock())?,
            Output::Json => print_json(&report)?,
            Output::Sarif => print_json(&sarif::log(&report))?,
            Output::Openreports => print_json(&open_reports::list(&report))?,
        }
        let failed = report.findings.iter().any(|finding| finding.check.severity == Severity::Error);
        Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    /// Examines what exists, and writes reports of it.
    async fn written(&self) -> anyhow::Result<open_reports::Written> {
        let (cluster, mut report) =
            installation::existing(&self.live, &self.admission, &self.cluster).await?;
        report.sort();
        open_reports::write(&report, &cluster).await
    }
}

#[derive(Debug, Serialize)]
struct JsonReport<'a> {
    notes: &'a [String],
    findings: Vec<JsonFinding<'a>>,
}

#[derive(Debug, Serialize)]
struct JsonFinding<'a> {
    check: &'a str,
    severity: Severity,
    object: &'a Subject,
    #[serde(skip_serializing_if = "str::is_empty")]
    path: &'a str,
    message: &'a str,
    help: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a str>,
}

impl Report {
    /// Errors first, and each finding once.
    pub(crate) fn sort(&mut self) {
        self.findings.sort_by(|a, b| {
            let key = |f: &Finding| (f.check.severity, f.subject.clone(), f.path.clone(), f.check.id);
            key(a).cmp(&key(b))
        });
        self.findings.dedup();
    }
}

impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let finding = |finding| JsonFinding::new(finding, &self.files);
        let findings = self.findings.iter().map(finding).collect();
        JsonReport { notes: &self.notes, findings }.serialize(serializer)
    }
}

impl Readable for Report {
    /// Findings of an object stand below its name.
    fn document(&self) -> Document {
        let mut document = Document::default();
        document.notes(&self.notes);
        for of_one in self.findings.chunk_by(|a, b| a.subject == b.subject) {
            let Some(Finding { subject, .. }) = of_one.first() else { continue };
            let file = self.files.get(subject).map(|file| format!(" ({file})")).unwrap_or_default();
            document.add(item![bold(subject), file].with(of_one.iter().map(finding)));
        }
        let count = |severity| self.findings.iter().filter(|f| f.check.severity == severity).count();
        let counts =
            [Severity::Error, Severity::Warning, Severity::Note].map(|s| counted(count(s), s.as_str()));
        document.add(item![counts.join(", ")]);
        document
    }
}

/// So many of what a word names.
fn counted(count: usize, word: &str) -> String {
    format!("{count} {word}{}", if count == 1 { "" } else { "s" })
}

fn finding(finding: &Finding) -> Item {
    let check = finding.check;
    let severity = format!("{}:", check.severity.as_str());
    let severity = match check.severity {
        Severity::Error => bad(severity),
        Severity::Warning => odd(severity),
        Severity::Note => dim(severity),
    };
    // Where the message says it, once is enough.
    let help = (!check.help.contains("the message")).then(|| item![dim(check.help)]);
    item![severity, format_args!(" {} [{}]", finding.text(), check.words())].with(help)
}

impl<'a> JsonFinding<'a> {
    fn new(finding: &'a Finding, files: &'a BTreeMap<Subject, String>) -> Self {
        let Finding { check, subject, path, message } = finding;
        let file = files.get(subject).map(String::as_str);
        Self {
            check: check.id,
            severity: check.severity,
            object: subject,
            path,
            message,
            help: check.help,
            reason: check.reason.map(Cause::as_str),
            file,
        }
    }
}

#[cfg(test)]
mod tests;
