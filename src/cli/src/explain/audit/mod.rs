//! `outrigger explain audit`: who created, changed or refused a Pod, from an API server's audit log.

mod event;
mod lines;
mod print;
mod report;

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
pub(super) use print::decider;
pub(super) use report::Decider;
use report::Report;

use crate::document::OutputArgs;
use crate::files::InputError;

/// What stands on standard error: scripts read standard output.
const DEPRECATED: &str = "warning: outrigger explain audit is deprecated and is removed in the release after the next one; docs/audit.md has \
                          the jq expressions that answer the same from the audit log";

/// Bytes that are read at once.
const CHUNK: usize = 64 * 1024;

#[derive(Debug, Args)]
pub(super) struct AuditArgs {
    /// Audit log of an API server: JSON lines, each an Event of audit.k8s.io/v1. Several files are read as one log, such as
    /// rotated ones; - is standard input.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    /// Only Pods of this namespace.
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,

    /// Only Pods of this name.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    #[command(flatten)]
    output: OutputArgs,
}

impl AuditArgs {
    /// Exit code 1: no Pod is as the flags say.
    pub(super) fn run(&self) -> anyhow::Result<ExitCode> {
        outrigger_runtime::telemetry::say(DEPRECATED.to_owned());
        let mut report = Report::default();
        for file in &self.files {
            let place = file.display().to_string();
            let input: Box<dyn Read> = if file.as_os_str() == "-" {
                Box::new(std::io::stdin().lock())
            } else {
                Box::new(File::open(file).map_err(|error| InputError::new(&place, error))?)
            };
            let place = if place == "-" { "standard input".to_owned() } else { place };
            self.read(&place, input, &mut report).map_err(|error| InputError::new(&place, error))?;
        }
        report.finish();
        self.output.print(&report)?;
        Ok(if report.pods.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    /// Adds what one log tells of Pods.
    fn read(&self, place: &str, input: impl Read, report: &mut Report) -> std::io::Result<()> {
        let mut faults = lines::Faults::default();
        lines::read(BufReader::with_capacity(CHUNK, input), &mut faults, |line| {
            let Some((pod, change)) = event::read(line)? else { return Ok(()) };
            let is =
                |wanted: &Option<String>, found: &str| wanted.as_ref().is_none_or(|wanted| wanted == found);
            if is(&self.namespace, &pod.namespace) && is(&self.name, &pod.name) {
                report.add(pod, change);
            }
            Ok(())
        })?;
        report.notes.extend(faults.notes(place));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
