//! `outrigger diff`: what would happen to the companions of tenants if rules were applied.
//!
//! **In**: the present state, and rules. **Out**: what admission would say of the rules, and the steps that the manager would
//! take for each companion. Admission is the webhook's own ([`Admission`]); matching and steps are those of the manager's index
//! ([`TenantIndex`](outrigger_core::index::TenantIndex)) and [`plan`](outrigger_core::companion::plan).

mod predict;
mod print;
mod proposal;
mod quota;
pub(crate) mod report;
mod tenants;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use outrigger_core::admin::AdminNamespaces;
use outrigger_core::bounds::Bounds;
use outrigger_core::keys;
use outrigger_webhook::settings::AdmissionArgs;
use tokio_util::sync::CancellationToken;

use self::predict::{Prediction, Settings};
use self::proposal::{Accepted, RuleSet};
use self::quota::Quotas;
use self::report::Report;
use self::tenants::{Asked, Question};
use crate::admission::Admission;
use crate::document::OutputArgs;
use crate::explain::live::{self, Clients, More, Source};
use crate::explain::view::{View, ViewArgs};
use crate::files::{self, InputError, Origin};
use crate::rules::RuleKind;
use crate::sent::AnnotationArgs;
use crate::state::State;

/// Exit code: something would be refused.
const REFUSED: u8 = 3;

#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    /// File or directory with the WorkloadRules and AdminWorkloadRules that would be applied. May be given several times; - is
    /// standard input.
    #[arg(short, long = "filename", value_name = "FILE", required = true)]
    filename: Vec<PathBuf>,

    /// File or directory with the present state: Tenants, Namespaces, Nodes, WorkloadRules, AdminWorkloadRules, companions, the
    /// Pods of the tenant's cluster. May be given several times. Without it: read from a cluster.
    #[arg(long, value_name = "FILE")]
    state: Vec<PathBuf>,

    /// Delete the rules that --filename doesn't have: those of the kinds that it has, or of these kinds. Of WorkloadRules those of
    /// the tenant.
    #[arg(long, num_args = 0.., require_equals = true, value_delimiter = ',', value_name = "KIND")]
    prune: Option<Vec<RuleKind>>,

    /// Namespace of the tenant's cluster whose Pods the agent sends. May be given several times, or separated by commas.
    /// Without it: all.
    #[arg(short, long, value_delimiter = ',', value_name = "NAMESPACE")]
    namespace: Vec<String>,

    #[command(flatten)]
    annotations: AnnotationArgs,

    #[command(flatten)]
    output: OutputArgs,

    #[command(flatten)]
    view: ViewArgs,

    #[command(flatten)]
    admission: AdmissionArgs,

    /// Cancelled when nobody waits for the report.
    #[arg(skip)]
    stop: CancellationToken,
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
        self.output.print(&report)?;
        Ok(match (report.is_refused(), report.is_empty()) {
            (true, _) => ExitCode::from(REFUSED),
            (false, true) => ExitCode::SUCCESS,
            (false, false) => ExitCode::FAILURE,
        })
    }

    fn report(&self) -> anyhow::Result<Report> {
        let new = files::read(&self.filename)?;
        let (state, source) = if self.state.is_empty() {
            live::wait(async { self.read(&Clients::new(&self.view).await?, &new).await })?
        } else {
            self.view.for_files("--state")?;
            (State::read(&self.state)?, Source::files("--state"))
        };
        Ok(self.of(&state, source, &new)?)
    }

    /// The present state of clusters, as far as it matters to these rules.
    async fn read(&self, clients: &Clients, new: &[files::Object]) -> anyhow::Result<(State, Source)> {
        let one = if let [one] = self.namespace.as_slice() { Some(one.as_str()) } else { None };
        let admin = self.admission.admin_namespaces();
        let attributes = self.annotations.device_attributes()?;
        let more = More {
            admin: self.concerns(RuleKind::AdminWorkloadRule, new).then_some(&admin),
            machines: new.iter().any(proposal::makes_guests),
            quotas: true,
            agent_reports: false,
            attributes: &attributes,
        };
        live::read(clients, &self.view, one, more).await
    }

    /// Whether rules of a kind that the new ones lack are deleted.
    fn prunes(&self, kind: RuleKind, new: &[files::Object]) -> bool {
        let has = |kind: RuleKind| new.iter().any(|object| kind.is(object));
        match self.prune.as_deref() {
            None => false,
            Some([]) => has(kind) || kind == RuleKind::WorkloadRule && !has(RuleKind::AdminWorkloadRule),
            Some(kinds) => kinds.contains(&kind),
        }
    }

    /// Whether rules of a kind are applied, or deleted.
    fn concerns(&self, kind: RuleKind, new: &[files::Object]) -> bool {
        new.iter().any(|object| kind.is(object)) || self.prunes(kind, new)
    }

    /// The report of a state and of rules that would be applied.
    fn of(&self, state: &State, source: Source, new: &[files::Object]) -> Result<Report, InputError> {
        let admin = self.admission.admin_namespaces();
        let [prunes_own, prunes_admin] =
            [RuleKind::WorkloadRule, RuleKind::AdminWorkloadRule].map(|kind| self.prunes(kind, new));
        let [has_own, has_admin] =
            [RuleKind::WorkloadRule, RuleKind::AdminWorkloadRule].map(|kind| self.concerns(kind, new));
        let platform = RuleSet::of_platform(state, &admin, new, prunes_admin)?;
        let attributes = self.annotations.device_attributes()?;
        let question = Question {
            state,
            source: source.with_admin(&admin).with_attributes(state, attributes)?,
            args: &self.view,
            host_labels: &self.admission.host_labels,
            new,
            has_own: has_own || !has_admin,
            platform: platform.first().filter(|_| has_admin),
        };
        let Asked { mut views, own, mut notes } = question.ask()?;
        if !has_own && !has_admin {
            return Err(InputError::new("--filename", "has no WorkloadRule or AdminWorkloadRule"));
        }
        notes.extend(proposal::note_on_others(new));
        let mut sets = Vec::new();
        for view in &mut views {
            if !self.namespace.is_empty() {
                view.workloads.retain(|workload| self.namespace.contains(&workload.resource_namespace));
            }
            let new = if view.tenant == own { new } else { &[] };
            sets.push(RuleSet::of_tenant(state, view, new, prunes_own && view.tenant == own)?);
        }
        sets.extend(platform);
        let nodes = views.first().map(|view| marked(state, view)).unwrap_or_default();
        let present: Vec<_> = sets.iter().flat_map(RuleSet::present).cloned().chain(nodes).collect();
        let before = Admission::new(state.changed(present, |_| false), self.admission.clone())?;
        let (mut rules, mut accepted) = (Vec::new(), Vec::new());
        for set in &sets {
            let verdicts = set.judge(&before)?;
            accepted.push(set.accepted(&verdicts));
            rules.extend(verdicts);
        }
        let changes = Changes { sets: &sets, accepted: &accepted, before: &before };
        self.companions(&views, &admin, &changes, Report::new(&views, notes, rules))
    }

    /// The report with the companions of each tenant.
    fn companions(
        &self,
        views: &[View],
        admin: &AdminNamespaces,
        changes: &Changes<'_>,
        mut report: Report,
    ) -> Result<Report, InputError> {
        let is_settled =
            views.iter().all(|view| view.companions.is_none() && view.admin_companions.is_empty());
        let allowed = self.annotations.allowed()?;
        let settings = Settings {
            admin,
            host_labels: &self.admission.host_labels,
            allowed: &allowed,
            is_settled: is_settled && !views.is_empty(),
            stop: &self.stop,
        };
        if settings.is_settled {
            let message = "the state has no companions: they are taken to be those of the present rules";
            report.note(message.to_owned());
        }
        let mut predictions = Vec::new();
        for (at, view) in views.iter().enumerate() {
            // The platform's rules that are served come after those of the tenants.
            let mine = [at, views.len()];
            let present: Vec<_> =
                mine.iter().filter_map(|at| changes.sets.get(*at)).flat_map(RuleSet::present).collect();
            let accepted: Vec<_> = mine.iter().filter_map(|at| changes.accepted.get(*at)).collect();
            let mut prediction = Prediction::new(view, settings);
            prediction.begin(&present, changes.before)?;
            prediction.apply(&accepted)?;
            predictions.push(prediction);
        }
        let admission = self.afterwards(changes, &predictions)?;
        let made: Vec<_> = predictions.iter().flat_map(Prediction::made).collect();
        let usual_class = views.first().and_then(|view| view.default_priority_class.as_deref());
        let mut quotas = Quotas::new(changes.before.state(), &made, usual_class)?;
        for prediction in &predictions {
            prediction.release(&admission, &mut quotas);
        }
        for (view, prediction) in views.iter().zip(predictions) {
            let companions = prediction.companions(&admission, &mut quotas)?;
            for note in prediction.notes(&companions, &quotas) {
                report.note_of(view, &note);
            }
            report.companions.extend(companions);
        }
        for note in quotas.notes() {
            report.note(note.clone());
        }
        Ok(report)
    }

    /// The webhook after the change.
    fn afterwards(
        &self,
        changes: &Changes<'_>,
        predictions: &[Prediction<'_>],
    ) -> Result<Admission, InputError> {
        let mut after: Vec<_> =
            changes.accepted.iter().flat_map(|accepted| &accepted.after).cloned().collect();
        for companion in predictions.iter().flat_map(Prediction::made) {
            files::take(&Origin::new("companion"), companion.clone(), &mut after)?;
        }
        let is_gone = |object: &files::Object| {
            changes
                .sets
                .iter()
                .zip(changes.accepted)
                .any(|(set, accepted)| set.is_gone(object, &accepted.gone))
        };
        Admission::new(changes.before.state().changed(after, is_gone), self.admission.clone())
    }
}

/// What would happen to the companions of clusters if the rules in a text were applied; `place` names the text in errors.
///
/// The text is looked at when the user may read what the answer is made of. Whatever takes time runs on threads of its own, in which other
/// requests are to be answered, and ends when the future is dropped.
pub(crate) async fn ask(
    clients: &Clients,
    view: ViewArgs,
    annotations: AnnotationArgs,
    admission: AdmissionArgs,
    (place, text, bounds): (&'static str, &str, Bounds),
) -> anyhow::Result<Report> {
    live::may_read(clients).await?;
    let stop = CancellationToken::new();
    let _stops = stop.clone().drop_guard();
    let args = DiffArgs {
        filename: Vec::new(),
        state: Vec::new(),
        prune: None,
        namespace: Vec::new(),
        annotations,
        output: OutputArgs::default(),
        view,
        admission,
        stop,
    };
    let text = text.to_owned();
    let read = move || {
        let mut new = Vec::new();
        files::parse(place, &text, bounds, &mut new).map(|()| new)
    };
    let new = tokio::task::spawn_blocking(read).await??;
    let (state, source) = args.read(clients, &new).await?;
    Ok(tokio::task::spawn_blocking(move || args.of(&state, source, &new)).await??)
}

/// What is applied, and the webhook before that.
struct Changes<'a> {
    /// The rules of each tenant, those of the platform that are served, and those that aren't.
    sets: &'a [RuleSet],
    /// What is applied of each.
    accepted: &'a [Accepted],
    before: &'a Admission,
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
