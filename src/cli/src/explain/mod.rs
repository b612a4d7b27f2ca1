//! `outrigger explain`

pub(crate) mod agent_reports;
pub(crate) mod allocation;
mod audit;
mod clients;
mod devices;
pub(crate) mod explanation;
mod inventory;
pub(crate) mod live;
mod pod;
mod print;
pub(crate) mod report;
mod subject;
pub(crate) mod view;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use audit::AuditArgs;
use clap::{Args, Subcommand};
use live::{Clients, More, Source};
use outrigger_core::workload::Workload;
use outrigger_webhook::settings::AdmissionArgs;
use pod::PodArgs;
use report::Report;
use serde::Serialize;
use subject::SubjectArgs;
pub(crate) use subject::TENANT_CONDITIONS;
use view::{View, ViewArgs};

use crate::companion::PodName;
use crate::document::OutputArgs;
use crate::files::InputError;
use crate::sent::AnnotationArgs;
use crate::state::State;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
pub(crate) struct ExplainArgs {
    #[command(subcommand)]
    command: Option<ExplainCommand>,

    /// File or directory with objects: Tenants, Namespaces, Nodes, WorkloadRules, the Pods of the tenant's cluster. May
    /// be given several times; - is standard input. Without it: read from a cluster.
    #[arg(short, long = "filename", value_name = "FILE")]
    filename: Vec<PathBuf>,

    /// Only this rule.
    #[arg(long, value_name = "NAME")]
    rule: Option<String>,

    /// Only this workload: a Pod of the tenant's cluster.
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = PodName::parse)]
    workload: Option<PodName>,

    /// Only workloads of this namespace.
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,

    #[command(flatten)]
    annotations: AnnotationArgs,

    #[command(flatten)]
    view: ViewArgs,

    #[command(flatten)]
    output: OutputArgs,

    #[command(flatten)]
    admission: AdmissionArgs,
}

#[derive(Debug, Subcommand)]
enum ExplainCommand {
    /// Explain who created, changed or refused Pods, from an API server's audit log. Deprecated: docs/audit.md answers the same by jq.
    ///
    /// For each Pod it prints the requests that created, changed or deleted it, or were refused: when, by whom, which steps
    /// of Outrigger changed the Pod and by which rule, which other webhooks did, and which webhook or policy refused it.
    /// Lines that are no events are counted and named. Exit codes: 0 explained, 1 the log has no request about such a Pod,
    /// 2 an input could not be read.
    Audit(AuditArgs),

    /// Explain which steps and policies changed a Pod, or would refuse it now.
    ///
    /// It says what the Pod is to Outrigger (a companion, a tenant's, offloaded, a guest of a Machine, or nothing), and what it
    /// has of each step. It names the webhooks of Outrigger that the API server calls for such a Pod, and why it doesn't call
    /// the others. It decides about the Pod as its creator wrote it (the template of its rule or owner, or what kubectl
    /// applied), step by step, and about the Pod as it is stored. Policies that apply are named. Nothing is changed. Exit
    /// codes: 0 explained, 1 there is no such Pod, 2 an input could not be read, 3 admission would refuse the Pod now.
    Pod(Box<PodArgs>),

    /// Explain the state of a Tenant: its conditions and the stream of its agent.
    ///
    /// It names what is wrong, the cause first, with what it means, what the tenant and the platform can do, and since when. Exit
    /// codes: 0 explained, 1 there is no such Tenant, 2 an input could not be read.
    Tenant(Box<SubjectArgs>),

    /// Explain whether a host's DPUs take companions, and of which tenant.
    ///
    /// NAME is that of a host, or of a DPU's Node. It names the DPUs in the host, whose they are, whether they are ready, and what
    /// is wrong for each tenant. Exit codes: 0 explained, 1 there is no such host or DPU, 2 an input could not be read.
    Host(Box<SubjectArgs>),

    /// Explain the state of a Machine: its slots, its nodes, and guests that wait.
    ///
    /// Exit codes: 0 explained, 1 there is no such Machine, 2 an input could not be read.
    Machine(Box<SubjectArgs>),

    /// Explain whether the Pods of a namespace may run on virtual nodes, and on which.
    ///
    /// Exit codes: 0 explained, 1 there is no such namespace, 2 an input could not be read.
    Namespace(Box<SubjectArgs>),

    /// Explain the state of a ResourceClaim: its devices, what their drivers say, and for whom it is.
    ///
    /// Exit codes: 0 explained, 1 there is no such claim, 2 an input could not be read.
    Claim(Box<SubjectArgs>),
}

/// One fact about what is explained.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Fact {
    name: String,
    value: String,
}

impl ExplainArgs {
    /// Exit code 1: one rule and one workload were named, and they have no companion.
    pub(crate) fn run(&self) -> anyhow::Result<ExitCode> {
        match &self.command {
            Some(ExplainCommand::Audit(args)) => return args.run(),
            Some(ExplainCommand::Pod(args)) => return args.run(),
            Some(ExplainCommand::Tenant(args)) => return args.run(subject::Kind::Tenant),
            Some(ExplainCommand::Host(args)) => return args.run(subject::Kind::Host),
            Some(ExplainCommand::Machine(args)) => return args.run(subject::Kind::Machine),
            Some(ExplainCommand::Namespace(args)) => return args.run(subject::Kind::Namespace),
            Some(ExplainCommand::Claim(args)) => return args.run(subject::Kind::Claim),
            None => {}
        }
        let view = if self.filename.is_empty() {
            live::wait(async { self.read(&Clients::new(&self.view).await?).await })?
        } else {
            self.view.for_files("--filename")?;
            let source = Source::files("--filename").with_admin(&self.admission.admin_namespaces());
            self.view_of(&State::read(&self.filename)?, source)?
        };
        let report = Report::new(&view, self)?;
        self.output.print(&report)?;
        let one = self.rule.is_some() && self.workload.is_some();
        Ok(if one && !report.any_companion() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    /// What clusters say.
    async fn read(&self, clients: &Clients) -> anyhow::Result<View> {
        let admin = self.admission.admin_namespaces();
        let namespace = self.workload.as_ref().map(|w| &w.namespace).or(self.namespace.as_ref());
        let attributes = self.annotations.device_attributes()?;
        let more =
            More { admin: Some(&admin), agent_reports: true, attributes: &attributes, ..More::default() };
        let (state, source) = live::read(clients, &self.view, namespace.map(String::as_str), more).await?;
        Ok(self.view_of(&state, source)?)
    }

    fn view_of(&self, state: &State, source: Source) -> Result<View, InputError> {
        let source = source.with_attributes(state, self.annotations.device_attributes()?)?;
        View::new(state, &self.view, &self.admission.host_labels, self.rule.as_deref(), source)
    }
}

/// What clusters say of workloads.
pub(crate) enum Answer {
    /// Names of the tenant's workloads, and what isn't known of them.
    Workloads { tenant: Option<String>, names: Vec<String>, notes: Vec<String> },
    /// What is said of one.
    One(Box<Report>),
}

/// Explains one workload of clusters, or names all that there are.
pub(crate) async fn ask(
    clients: &Clients,
    view: ViewArgs,
    annotations: AnnotationArgs,
    admission: AdmissionArgs,
    workload: Option<PodName>,
) -> anyhow::Result<Answer> {
    let args = ExplainArgs {
        command: None,
        filename: Vec::new(),
        rule: None,
        workload,
        namespace: None,
        annotations,
        view,
        output: OutputArgs::default(),
        admission,
    };
    let view = args.read(clients).await?;
    if args.workload.is_some() {
        return Ok(Answer::One(Box::new(Report::new(&view, &args)?)));
    }
    let name =
        |workload: &Arc<Workload>| format!("{}/{}", workload.resource_namespace, workload.resource_name);
    let mut names: Vec<String> = view.workloads.iter().map(name).collect();
    names.sort();
    Ok(Answer::Workloads { tenant: view.tenant.map(|id| id.to_string()), names, notes: view.source.notes })
}

#[cfg(test)]
mod tests;
