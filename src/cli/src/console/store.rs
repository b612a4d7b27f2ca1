//! What is known of the cluster, while somebody looks.
//!
//! The first look starts watches ([`super::follow`]), which keep small rows and show changes within a second; [`KEPT`] after the last one
//! they end, so that a console at which nobody looks asks the API server for nothing. However many pages are open, there is one watch
//! of each kind. What `outrigger explain` and `outrigger diff` say is read when it is asked for.

use std::sync::Arc;
use std::time::Duration;

use outrigger_runtime::environment::Clock;
use outrigger_webhook::settings::AdmissionArgs;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;

use super::data::Data;
use super::follow;
use super::managers::{Ask, Asker, Failure, Page};
use super::turns::{GroupTurns, Turn, Turns};
use super::what_if;
use crate::companion::PodName;
use crate::diff::{self, report::Report};
use crate::explain::live::Clients;
use crate::explain::view::ViewArgs;
use crate::explain::{self, Answer};
use crate::sent::AnnotationArgs;

/// Longest time of an answer or a prediction.
const READ: Duration = Duration::from_secs(120);

/// How long the first page waits for rows. Then it is sent without them, and the next event brings them.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long a page waits for rows where there are older ones: it is sent at once with these and their time, and the next event brings the
/// newer ones.
const BRIEF: Duration = Duration::from_millis(200);

/// How long the cluster is watched after the last look.
pub(super) const KEPT: Duration = Duration::from_secs(60);

/// Answers about workloads that are kept.
const ANSWERS: usize = 16;

/// What is read, and how.
pub(super) struct Source {
    pub(super) clients: Clients,
    pub(super) view: ViewArgs,
    /// What the agent of the tenant sends of Pods.
    pub(super) annotations: AnnotationArgs,
    pub(super) admission: AdmissionArgs,
    pub(super) system_namespace: Option<String>,
    /// Time between two reads of the installation, and between two checks of rights.
    pub(super) interval: Duration,
    /// The only namespace that is read where the user may not read all.
    pub(super) namespace: Option<String>,
    /// Asks managers; `None`: they aren't asked.
    pub(super) asker: Option<Asker>,
    /// Places for first lists and answers, of all stores that share them: each may hold much of a cluster.
    pub(super) turns: Turns,
}

/// The newest reading.
#[derive(Debug, Clone, Default)]
pub(super) struct Reading {
    /// `None`: nothing has been read yet.
    pub(super) data: Option<Arc<Data>>,
    /// When that was so.
    pub(super) at: String,
    /// Why the cluster can't be read; then the rest is older.
    pub(super) error: Option<String>,
}

#[derive(Default)]
struct State {
    reading: Reading,
    /// When somebody looked last.
    looked: Option<Instant>,
    /// Keeps the rows; `None`: nobody looks.
    follower: Option<AbortOnDropHandle<()>>,
    /// The reading is the follower's.
    is_current: bool,
    /// Rows that the follower keeps.
    kept: usize,
}

impl State {
    /// How long a page waits for a newer reading.
    fn patience(&self) -> Duration {
        match &self.reading {
            _ if self.is_current => Duration::ZERO,
            Reading { data: None, .. } => PATIENCE,
            _ => BRIEF,
        }
    }
}

/// Which workload was asked about, when, and what was said.
struct Asked {
    tenant: String,
    workload: Option<PodName>,
    ended: Instant,
    answer: Arc<Result<Answer, String>>,
}

/// What is known.
pub(super) struct Store {
    source: Option<Arc<Source>>,
    state: Mutex<State>,
    /// Grows with each new reading.
    pub(super) revision: watch::Sender<u64>,
    asked: Mutex<Vec<Asked>>,
    /// One question at a time.
    asking: tokio::sync::Mutex<()>,
}

impl Store {
    pub(super) fn new(source: Source) -> Arc<Self> {
        Arc::new(Self::with(Some(Arc::new(source)), Reading::default()))
    }

    /// A store with this reading, which never changes.
    #[cfg(test)]
    pub(super) fn fixed(data: Data) -> Arc<Self> {
        let at = "2026-01-01T00:00:00Z".to_owned();
        Arc::new(Self::with(None, Reading { data: Some(Arc::new(data)), at, error: None }))
    }

    fn with(source: Option<Arc<Source>>, reading: Reading) -> Self {
        Self {
            source,
            state: Mutex::new(State { reading, ..State::default() }),
            revision: watch::Sender::new(0),
            asked: Mutex::default(),
            asking: tokio::sync::Mutex::default(),
        }
    }

    /// Its user is one of this group.
    pub(super) fn join(&self, group: Arc<GroupTurns>) {
        if let Some(source) = &self.source {
            source.turns.join(group);
        }
    }

    /// How long an answer is kept, and shortest time between two events of a page that asks for more than the reading.
    pub(super) fn interval(&self) -> Duration {
        self.source.as_ref().map_or(Duration::from_secs(1), |source| source.interval)
    }

    /// The tenant that the command line names.
    pub(super) fn tenant(&self) -> Option<&str> {
        self.source.as_ref()?.view.tenant.as_deref()
    }

    /// The newest reading. The first look waits for it.
    pub(super) async fn reading(self: &Arc<Self>) -> Reading {
        let mut revision = self.revision.subscribe();
        let patience = self.look();
        if !patience.is_zero() {
            let _ = timeout(patience, revision.changed()).await;
        }
        self.state.lock().reading.clone()
    }

    /// Somebody looks: the cluster is watched from now on. Returns how long a page waits for a newer reading.
    pub(super) fn look(self: &Arc<Self>) -> Duration {
        let Some(source) = &self.source else { return Duration::ZERO };
        let mut state = self.state.lock();
        state.looked = Some(Clock::system().now());
        if state.follower.as_ref().is_none_or(AbortOnDropHandle::is_finished) {
            state.is_current = false;
            let follower = tokio::spawn(follow::follow(Arc::downgrade(self), source.clone()));
            state.follower = Some(AbortOnDropHandle::new(follower));
        }
        state.patience()
    }

    /// Whether somebody has looked of late.
    pub(super) fn is_watched(&self) -> bool {
        self.state.lock().looked.is_some_and(|looked| looked.elapsed() < KEPT)
    }

    /// Takes what is known of the cluster, and why it can't be read at the moment: then what is known is as old as before.
    pub(super) fn show(&self, data: Option<Data>, error: Option<String>) {
        let mut state = self.state.lock();
        if error.is_none() {
            state.reading.at = Clock::system().wall().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        }
        state.reading.data = data.map(Arc::new).or_else(|| state.reading.data.take());
        state.reading.error = error;
        state.is_current = true;
        drop(state);
        self.revision.send_modify(|revision| *revision += 1);
    }

    /// Takes how many rows the follower keeps.
    pub(super) fn keeps(&self, rows: usize) {
        self.state.lock().kept = rows;
    }

    /// How many rows are kept.
    pub(super) fn rows(&self) -> usize {
        let state = self.state.lock();
        state.reading.data.as_ref().map_or(0, |data| data.rows()).max(state.kept)
    }

    /// Ends the watches, and drops what was read and answered. The next look begins again.
    pub(super) fn forget(&self) {
        *self.state.lock() = State::default();
        self.asked.lock().clear();
    }

    /// What `outrigger explain` says of a workload of a tenant (empty: the one that the command line names, or the only one), or
    /// the names of its workloads. An answer is kept for the interval.
    pub(super) async fn ask(&self, tenant: &str, workload: Option<PodName>) -> Arc<Result<Answer, String>> {
        let waited = async {
            let _one = self.asking.lock().await;
            if let Some(answer) = self.answered(tenant, workload.as_ref()) {
                return answer;
            }
            let answer = match &self.source {
                Some(source) => Arc::new(source.ask(tenant, workload.clone()).await),
                None => Arc::new(Err("there is no cluster".to_owned())),
            };
            let ended = Clock::system().now();
            let mut asked = self.asked.lock();
            asked.retain(|one| one.tenant != tenant || one.workload != workload);
            if asked.len() >= ANSWERS {
                asked.remove(0);
            }
            asked.push(Asked {
                tenant: tenant.to_owned(),
                workload: workload.clone(),
                ended,
                answer: answer.clone(),
            });
            answer
        };
        timeout(READ, waited).await.unwrap_or_else(|_| Arc::new(Err(too_long())))
    }

    /// What `outrigger diff` says of rules of a tenant (empty: as for [`Self::ask`]).
    pub(super) async fn predict(&self, tenant: &str, rules: &str) -> Result<Report, String> {
        let waited = async {
            let _one = self.asking.lock().await;
            match &self.source {
                Some(source) => source.predict(tenant, rules).await,
                None => Err("there is no cluster".to_owned()),
            }
        };
        timeout(READ, waited).await.unwrap_or_else(|_| Err(too_long()))
    }

    /// Whether managers are asked.
    pub(super) fn asks_managers(&self) -> bool {
        self.source.as_ref().is_some_and(|source| source.asker.is_some())
    }

    /// What managers say of workloads, within this time. They are asked each time: they bound what a user may ask, and the answers of
    /// many sessions would take much memory.
    pub(super) async fn workloads(&self, ask: Ask<'_>, within: Duration) -> Result<Page, Failure> {
        let asked = self.source.as_ref().and_then(|source| Some((&source.turns, source.asker.as_ref()?)));
        match asked {
            Some((turns, asker)) => asker.ask(turns, ask, within).await,
            None => Err(Failure::NotConfigured),
        }
    }

    fn answered(&self, tenant: &str, workload: Option<&PodName>) -> Option<Arc<Result<Answer, String>>> {
        let asked = self.asked.lock();
        let is_it = |one: &&Asked| {
            one.tenant == tenant && one.workload.as_ref() == workload && one.ended.elapsed() < self.interval()
        };
        asked.iter().find(is_it).map(|one| one.answer.clone())
    }
}

fn too_long() -> String {
    format!("the cluster could not be read within {} s", READ.as_secs())
}

impl Source {
    async fn turn(&self) -> Result<Turn, String> {
        self.turns.read().await.ok_or_else(|| "the console shuts down".to_owned())
    }

    async fn ask(&self, tenant: &str, workload: Option<PodName>) -> Result<Answer, String> {
        let _turn = self.turn().await?;
        let (annotations, admission) = (self.annotations.clone(), self.admission.clone());
        let asked = explain::ask(&self.clients, self.view_of(tenant), annotations, admission, workload);
        Box::pin(asked).await.map_err(|error| format!("{error:#}"))
    }

    async fn predict(&self, tenant: &str, rules: &str) -> Result<Report, String> {
        let _turn = self.turn().await?;
        let text = (what_if::PLACE, rules, what_if::BOUNDS);
        let (annotations, admission) = (self.annotations.clone(), self.admission.clone());
        let asked = diff::ask(&self.clients, self.view_of(tenant), annotations, admission, text);
        Box::pin(asked).await.map_err(|error| format!("{error:#}"))
    }

    /// What the command line shows, of this tenant.
    fn view_of(&self, tenant: &str) -> ViewArgs {
        let mut view = self.view.clone();
        if !tenant.is_empty() {
            view.tenant = Some(tenant.to_owned());
        }
        view
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args, Command, FromArgMatches};
    use outrigger_runtime::fake_api::{FakeApi, failure};
    use serde_json::{Value, json};
    use tokio::sync::Semaphore;

    use super::*;
    use crate::admission::default_args;
    use crate::explain::explanation::CompanionOutcome;

    /// A tenant's cluster with a rule that selects by an attribute of devices, and a Pod whose device has it.
    fn cluster() -> FakeApi {
        let api = FakeApi::default();
        let lists = |path: &str, items: Value| {
            api.answers(
                "GET",
                path,
                200,
                json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": items}),
            );
        };
        let key = ".state.extra.deviceAttributes['mine/one/gpu.example.com/model']";
        let selects = json!({"key": key, "operator": "In", "values": ["a100"]});
        let template = json!({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "c", "image": "i:1"}]}});
        let rule = json!({"metadata": {"name": "r", "namespace": "universe", "uid": "r"},
            "spec": {"workloadTerms": [{"matchExpressions": [selects]}], "template": template}});
        lists("/apis/workload.universe.nvidia.com/v1alpha1/workloadrules", json!([rule]));
        let pod = json!({"metadata": {"name": "web", "namespace": "work", "uid": "u"}, "spec": {"nodeName": "host-a",
            "containers": [], "resourceClaims": [{"name": "gpu", "resourceClaimName": "mine"}]}});
        lists("/api/v1/namespaces/work/pods", json!([pod]));
        let result = json!({"request": "one", "driver": "gpu.example.com", "pool": "h", "device": "d"});
        let claim = json!({"metadata": {"name": "mine", "namespace": "work"}, "spec": {},
            "status": {"allocation": {"devices": {"results": [result]}},
                "reservedFor": [{"resource": "pods", "name": "web", "uid": "u"}]}});
        lists("/apis/resource.k8s.io/v1/namespaces/work/resourceclaims", json!([claim]));
        let device = json!({"name": "d", "attributes": {"model": {"string": "a100"}}});
        let slice = json!({"metadata": {"name": "s"}, "spec": {"driver": "gpu.example.com", "devices": [device],
            "pool": {"name": "h", "generation": 1, "resourceSliceCount": 1}}});
        lists("/apis/resource.k8s.io/v1/resourceslices", json!([slice]));
        for path in ["/api/v1/namespaces/work/events", "/api/v1/nodes"] {
            api.answers("GET", path, 403, failure(403, "Forbidden"));
        }
        api.answers("GET", "/apis/outrigger.dev/v1alpha1", 404, failure(404, "NotFound"));
        api
    }

    /// What a console with these flags says of that Pod.
    async fn said(flags: &[&str]) -> CompanionOutcome {
        let args = AnnotationArgs::augment_args(Command::new("x").no_binary_name(true));
        let store = Store::new(Source {
            clients: Clients::of(cluster().client()),
            view: ViewArgs::default(),
            annotations: AnnotationArgs::from_arg_matches(&args.get_matches_from(flags)).unwrap(),
            admission: default_args(),
            system_namespace: None,
            interval: READ,
            namespace: None,
            asker: None,
            turns: Turns::of(Arc::new(Semaphore::new(1))),
        });
        let answer = store.ask("", Some(PodName::parse("work/web").unwrap())).await;
        match &*answer {
            Ok(Answer::One(report)) => report.rules[0].workloads[0].explanation.outcome,
            Ok(Answer::Workloads { names, .. }) => panic!("{names:?}"),
            Err(why) => panic!("{why}"),
        }
    }

    #[tokio::test]
    async fn an_answer_knows_the_attributes_of_devices_that_the_agent_sends() {
        assert_eq!(said(&[]).await, CompanionOutcome::Undecided);
        assert_eq!(said(&["--send-device-attribute=gpu.example.com/*"]).await, CompanionOutcome::Companion);
        assert_eq!(said(&["--send-device-attribute=gpu.example.com/uuid"]).await, CompanionOutcome::NoMatch);
    }

    #[test]
    fn a_page_waits_for_rows_only_where_there_are_none_or_old_ones() {
        let patience = |data: Option<Data>, is_current| {
            let reading = Reading { data: data.map(Arc::new), ..Reading::default() };
            State { reading, is_current, ..State::default() }.patience()
        };
        assert_eq!(patience(None, false), PATIENCE);
        assert_eq!(patience(Some(Data::default()), false), BRIEF);
        assert_eq!(patience(Some(Data::default()), true), Duration::ZERO);
        assert_eq!(patience(None, true), Duration::ZERO, "the page says why there is nothing");
    }
}
