//! `outrigger diff`: what would happen to the companions of a tenant if rules were applied.
//!
//! **In**: the present state, and rules. **Out**: what admission would say of the rules, and the steps that the manager would
//! take for each companion. Admission is the webhook's own ([`Admission`]); matching and steps are those of the manager's index
//! ([`TenantIndex`](outrigger_core::index::TenantIndex)) and [`plan`](outrigger_core::companion::plan).

mod predict;
mod print;
mod proposal;
mod report;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use outrigger_core::keys;
use outrigger_webhook::settings::AdmissionArgs;

use self::predict::Prediction;
use self::proposal::Proposals;
use self::report::Report;
use crate::admission::Admission;
use crate::explain::live::{self, Source};
use crate::explain::view::{View, ViewArgs};
use crate::files::{self, InputError, print_json};
use crate::state::State;

/// Exit code: something would be refused.
const REFUSED: u8 = 3;

#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    /// File or directory with the WorkloadRules that would be applied. May be given several times; - is standard input.
    #[arg(short, long = "filename", value_name = "FILE", required = true)]
    filename: Vec<PathBuf>,

    /// File or directory with the present state: Tenants, Namespaces, Nodes, WorkloadRules, companions, the Pods of the
    /// tenant's cluster. May be given several times. Without it: read from a cluster.
    #[arg(long, value_name = "FILE")]
    state: Vec<PathBuf>,

    /// Delete the tenant's rules that --filename doesn't have.
    #[arg(long)]
    prune: bool,

    /// Namespace of the tenant's cluster whose Pods the agent sends. May be given several times, or separated by commas.
    /// Without it: all.
    #[arg(short, long, value_delimiter = ',', value_name = "NAMESPACE")]
    namespace: Vec<String>,

    /// Annotations that the agent sends besides those that rules name: example.com/key, example.com/* or *. May be given
    /// several times, or separated by commas.
    #[arg(long, value_delimiter = ',', value_name = "PATTERN")]
    send_annotation: Vec<String>,

    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    output: Output,

    #[command(flatten)]
    view: ViewArgs,

    #[command(flatten)]
    admission: AdmissionArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// Tables for people, in colour on a terminal.
    Text,
    /// JSON, as docs/diff.md describes it.
    Json,
}

impl DiffArgs {
    /// Exit code 0: nothing would change. 1: something would. 3: something would be refused.
    ///
    /// # Errors
    /// All errors are [`InputError`]s, because exit code 1 has another meaning.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let as_input = |error: anyhow::Error| match error.downcast::<InputError>() {
            Ok(error) => error,
            Err(error) => InputError::new("diff", format_args!("{error:#}")),
        };
        let report = self.report().map_err(as_input)?;
        match self.output {
            Output::Json => print_json(&report)?,
            Output::Text => print::report(&report, &mut anstream::stdout().lock())?,
        }
        Ok(match (report.is_refused(), report.is_empty()) {
            (true, _) => ExitCode::from(REFUSED),
            (false, true) => ExitCode::SUCCESS,
            (false, false) => ExitCode::FAILURE,
        })
    }

    fn report(&self) -> anyhow::Result<Report> {
        let new = files::read(&self.filename)?;
        let (state, source) = if self.state.is_empty() {
            let one = if let [one] = self.namespace.as_slice() { Some(one.as_str()) } else { None };
            live::wait(live::read(&self.view, one, live::Depth::Rules))?
        } else {
            self.view.for_files("--state")?;
            (State::read(&self.state)?, Source::files("--state"))
        };
        Ok(self.of(&state, source, &new)?)
    }

    /// The report of a state and of rules that would be applied.
    fn of(&self, state: &State, source: Source, new: &[files::Object]) -> Result<Report, InputError> {
        let mut view_args = self.view.clone();
        if view_args.tenant.is_none() {
            view_args.tenant = proposal::tenant_of(state, new);
        }
        let mut view = View::new(state, &view_args, &self.admission.host_label, None, source)?;
        if !self.namespace.is_empty() {
            view.workloads.retain(|workload| self.namespace.contains(&workload.resource_namespace));
        }
        let proposals = Proposals::new(state, &view, new, self.prune)?;
        let present = state.changed([proposals.present(), marked(state, &view)].concat(), |_| false);
        let before = Admission::new(present, self.admission.clone())?;
        let (verdicts, notes) = proposals.judge(&before)?;
        let served =
            |name: &str| verdicts.iter().any(|verdict| verdict.name == name && !verdict.is_refused());
        let (after, gone) = proposals.accepted(served);
        let is_gone = |object: &files::Object| proposals.is_rule(object) && gone.contains(&object.name);
        let admission =
            Admission::new(before.state().changed(after.clone(), is_gone), self.admission.clone())?;
        let mut prediction = Prediction::new(&view, &self.admission.host_label, &self.send_annotation)?;
        prediction.begin(&proposals.present(), &before)?;
        prediction.apply(&after, &gone)?;
        let companions = prediction.companions(&admission)?;
        let mut all_notes = view.notes.clone();
        all_notes.extend(notes);
        all_notes.extend(prediction.notes(&companions));
        let tenant = view.tenant.as_ref().map(ToString::to_string);
        Ok(Report { tenant, notes: all_notes, rules: verdicts, companions })
    }
}

/// The Nodes of a state with the owners that the manager gives them: what is in files was often never in a cluster.
fn marked(state: &State, view: &View) -> Vec<files::Object> {
    let owner = |name: &str| {
        let node = view.nodes.iter().flatten().find(|node| node.name == name)?;
        node.labels.get(keys::NODE_TENANT)
    };
    let mark = |node: &files::Object| {
        let mut marked = node.clone();
        marked.value["metadata"]["labels"][keys::NODE_TENANT] = owner(&node.name)?.as_str().into();
        Some(marked)
    };
    state.of("", "Node").filter_map(mark).collect()
}

#[cfg(test)]
mod tests;
