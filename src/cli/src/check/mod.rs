//! `outrigger check`

pub(crate) mod devices;
pub(crate) mod findings;
pub(crate) mod installation;
mod live;
mod look;
mod machines;
mod nodes;
mod rules;
mod sarif;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use outrigger_core::reason::Cause;
use outrigger_runtime::cluster::ClusterArgs;
use outrigger_webhook::settings::AdmissionArgs;
use serde::Serialize;

use crate::admission::Admission;
use crate::check::findings::{Finding, Severity, Subject};
use crate::explain::live::wait;
use crate::files::print_json;
use crate::state::State;
use crate::style::{BAD, BOLD, DIM, ODD};

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// File or directory with objects: Tenants, Namespaces, Nodes, rules, NamespaceOffloadings, ResourceClaims, DeviceClasses,
    /// Machines. May be given several times; - is standard input. Without it: read from a cluster.
    #[arg(short, long = "filename", value_name = "FILE")]
    filename: Vec<PathBuf>,

    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: Output,

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
}

#[derive(Debug)]
struct Report {
    findings: Vec<Finding>,
    notes: Vec<String>,
    files: BTreeMap<Subject, String>,
}

impl CheckArgs {
    /// Exit code 1: an error was found.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let mut report = if self.live.live {
            wait(installation::report(&self.live, &self.admission, &self.cluster))?
        } else {
            let (state, notes) = if self.filename.is_empty() {
                wait(live::read(&self.cluster))?
            } else {
                (State::read(&self.filename)?, Vec::new())
            };
            let host_label = self.admission.host_label.clone();
            let mut report = look::report(&Admission::new(state, self.admission)?, &host_label)?;
            report.notes.splice(..0, notes);
            report
        };
        report.findings.sort_by(|a, b| {
            let key = |f: &Finding| (f.check.severity, f.subject.clone(), f.path.clone(), f.check.id);
            key(a).cmp(&key(b))
        });
        report.findings.dedup();
        match self.output {
            Output::Text => report.text(&mut anstream::stdout().lock())?,
            Output::Json => print_json(&report.json())?,
            Output::Sarif => print_json(&sarif::log(&report))?,
        }
        let failed = report.findings.iter().any(|finding| finding.check.severity == Severity::Error);
        Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

/// The report as JSON; the structure is stable.
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
    fn json(&self) -> JsonReport<'_> {
        let finding = |finding| JsonFinding::new(finding, &self.files);
        JsonReport { notes: &self.notes, findings: self.findings.iter().map(finding).collect() }
    }

    fn text(&self, out: &mut impl Write) -> std::io::Result<()> {
        for note in &self.notes {
            writeln!(out, "{ODD}note:{ODD:#} {}", plain(note))?;
        }
        let mut last = None;
        for Finding { check, subject, path, message } in &self.findings {
            if last != Some(subject) {
                let file = self.files.get(subject).map(|file| format!(" ({file})")).unwrap_or_default();
                writeln!(out, "{BOLD}{}{BOLD:#}{}", plain(&subject.to_string()), plain(&file))?;
                last = Some(subject);
            }
            let style = match check.severity {
                Severity::Error => BAD,
                Severity::Warning => ODD,
                Severity::Note => DIM,
            };
            let path = if path.is_empty() { String::new() } else { format!("{path}: ") };
            let said = format!("{path}{message}");
            let (severity, words) = (check.severity.as_str(), check.words());
            writeln!(out, "  {style}{severity}:{style:#} {} [{words}]", plain(&said))?;
            // Where the message says it, once is enough.
            if !check.help.contains("the message") {
                writeln!(out, "    {DIM}{}{DIM:#}", check.help)?;
            }
        }
        let count = |severity| self.findings.iter().filter(|f| f.check.severity == severity).count();
        let of = |count: usize, word: &str| format!("{count} {word}{}", if count == 1 { "" } else { "s" });
        let counts = [Severity::Error, Severity::Warning, Severity::Note].map(|s| of(count(s), s.as_str()));
        writeln!(out, "{}", counts.join(", "))
    }
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

/// A text without control characters and marks of direction, because some of it is written by tenants.
pub(crate) fn plain(text: &str) -> String {
    let is_bad = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let one = |c: char| if is_bad(c) { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(one).collect()
}

#[cfg(test)]
mod tests;
