//! What is known of the cluster, read again when somebody looks and it is older than the interval.
//!
//! Reads are periodic, and not watches: they are the reads of `outrigger status` and `outrigger explain` themselves; they hold one
//! page of objects at a time and keep small rows; and a console that nobody looks at asks the API server for nothing. However
//! many pages are open, there is at most one read of each sort at a time, and the next one begins after the interval, or after as long
//! as the last one took: a read of 100,000 Pods takes tens of seconds, in which the API server encodes each of them.

use std::sync::Arc;
use std::time::Duration;

use outrigger_runtime::environment::Clock;
use outrigger_webhook::settings::AdmissionArgs;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::data::{Collector, Data};
use super::managers::{Ask, Asker, Failure, Page};
use crate::companion::PodName;
use crate::diff::{self, report::Report};
use crate::explain::live::Clients;
use crate::explain::view::ViewArgs;
use crate::explain::{self, Answer};
use crate::status;

/// Longest time of a read.
const READ: Duration = Duration::from_secs(120);

/// How long the first page waits for a read. Then it is sent without rows, and the next event brings them.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long a page waits for a newer reading than the one that there is. A large cluster takes longer to read: the page is sent at once
/// with the last reading and its time, and the next event brings the newer one.
const BRIEF: Duration = Duration::from_millis(200);

/// Answers about workloads that are kept.
const ANSWERS: usize = 16;

/// What is read, and how.
pub(super) struct Source {
    pub(super) clients: Clients,
    pub(super) view: ViewArgs,
    pub(super) admission: AdmissionArgs,
    pub(super) system_namespace: Option<String>,
    /// Shortest time between two reads.
    pub(super) interval: Duration,
    /// The only namespace that is read where the user may not read all.
    pub(super) namespace: Option<String>,
    /// Asks managers; `None`: they aren't asked.
    pub(super) asker: Option<Asker>,
    /// Reads and answers at the same time, of all stores that share it: each may hold much of a cluster.
    pub(super) turns: Arc<Semaphore>,
}

/// The newest reading.
#[derive(Debug, Clone, Default)]
pub(super) struct Reading {
    /// `None`: nothing has been read yet.
    pub(super) data: Option<Arc<Data>>,
    /// When that was read.
    pub(super) at: String,
    /// Why the last read has failed; then the rest is older.
    pub(super) error: Option<String>,
}

#[derive(Default)]
struct State {
    reading: Reading,
    /// When the last read has ended.
    ended: Option<Instant>,
    /// How long it took.
    took: Duration,
    running: Option<JoinHandle<()>>,
}

impl State {
    /// How long a page waits for a read that is in progress.
    fn patience(&self) -> Duration {
        match self.reading.data {
            None => PATIENCE,
            Some(_) if self.took <= BRIEF => BRIEF,
            Some(_) => Duration::ZERO,
        }
    }

    /// Whether it is time for the next read.
    fn is_due(&self, interval: Duration, now: Instant) -> bool {
        self.ended.is_none_or(|ended| now >= ended + interval.max(self.took))
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
    source: Option<Source>,
    state: Mutex<State>,
    /// Grows with each read that has ended.
    pub(super) revision: watch::Sender<u64>,
    asked: Mutex<Vec<Asked>>,
    /// One question at a time.
    asking: tokio::sync::Mutex<()>,
}

impl Store {
    pub(super) fn new(source: Source) -> Arc<Self> {
        Arc::new(Self::with(Some(source), Reading::default()))
    }

    /// A store with this reading, which is never read again.
    #[cfg(test)]
    pub(super) fn fixed(data: Data) -> Arc<Self> {
        let at = "2026-01-01T00:00:00Z".to_owned();
        Arc::new(Self::with(None, Reading { data: Some(Arc::new(data)), at, error: None }))
    }

    fn with(source: Option<Source>, reading: Reading) -> Self {
        Self {
            source,
            state: Mutex::new(State { reading, ..State::default() }),
            revision: watch::Sender::new(0),
            asked: Mutex::default(),
            asking: tokio::sync::Mutex::default(),
        }
    }

    /// Shortest time between two reads.
    pub(super) fn interval(&self) -> Duration {
        self.source.as_ref().map_or(Duration::from_secs(1), |source| source.interval)
    }

    /// The tenant that the command line names.
    pub(super) fn tenant(&self) -> Option<&str> {
        self.source.as_ref()?.view.tenant.as_deref()
    }

    /// The newest reading. One that is older than the interval is read again first, if that is quick.
    pub(super) async fn reading(self: &Arc<Self>) -> Reading {
        let mut revision = self.revision.subscribe();
        if self.is_reading() {
            let patience = self.state.lock().patience();
            // The read goes on where nobody waits for it any longer.
            let _ = timeout(patience, revision.changed()).await;
        }
        self.state.lock().reading.clone()
    }

    /// How many rows are kept.
    pub(super) fn rows(&self) -> usize {
        self.state.lock().reading.data.as_ref().map_or(0, |data| data.rows())
    }

    /// Drops what was read and answered. The next look reads again.
    pub(super) fn forget(&self) {
        let mut state = self.state.lock();
        if state.running.is_none() {
            (state.reading, state.ended) = (Reading::default(), None);
        }
        self.asked.lock().clear();
    }

    /// Starts a read if it is time for one. Returns whether one is in progress.
    pub(super) fn is_reading(self: &Arc<Self>) -> bool {
        if self.source.is_none() {
            return false;
        }
        let mut state = self.state.lock();
        if state.running.as_ref().is_some_and(|task| !task.is_finished()) {
            return true;
        }
        if !state.is_due(self.interval(), Clock::system().now()) {
            return false;
        }
        let this = self.clone();
        state.running = Some(tokio::spawn(async move { this.read().await }));
        true
    }

    async fn read(&self) {
        let Some(source) = &self.source else { return };
        let began = Clock::system().now();
        let result = match timeout(READ, source.read()).await {
            Ok(result) => result,
            Err(_) => Err(too_long()),
        };
        let mut state = self.state.lock();
        match result {
            Ok(data) => {
                let at = Clock::system().wall().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
                state.reading = Reading { data: Some(Arc::new(data)), at, error: None };
            }
            Err(why) => state.reading.error = Some(why),
        }
        let ended = Clock::system().now();
        (state.ended, state.took) = (Some(ended), ended - began);
        state.running = None;
        drop(state);
        self.revision.send_modify(|revision| *revision += 1);
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

    /// What `outrigger diff` says of rules of a tenant (empty: as for [`Self::ask`]). `place` names the text of the rules.
    pub(super) async fn predict(&self, tenant: &str, place: &str, rules: &str) -> Result<Report, String> {
        let waited = async {
            let _one = self.asking.lock().await;
            match &self.source {
                Some(source) => source.predict(tenant, place, rules).await,
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
        match self.source.as_ref().and_then(|source| source.asker.as_ref()) {
            Some(asker) => asker.ask(ask, within).await,
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
    async fn turn(&self) -> Result<SemaphorePermit<'_>, String> {
        self.turns.acquire().await.map_err(|error| error.to_string())
    }

    async fn read(&self) -> Result<Data, String> {
        let _turn = self.turn().await?;
        let admission = &self.admission;
        let mut collector = Collector::new(&admission.host_label, &admission.admin_resources_namespace);
        let mut look = |kind, object: &Value| collector.take(kind, object);
        let (client, namespace) = (self.clients.cluster.clone(), self.system_namespace.as_deref());
        let own = self.namespace.as_deref();
        let report = Box::pin(status::read::report(client, namespace, own, admission, &mut look));
        let report = report.await.map_err(|error| error.to_string())?;
        Ok(collector.finish(report))
    }

    async fn ask(&self, tenant: &str, workload: Option<PodName>) -> Result<Answer, String> {
        let _turn = self.turn().await?;
        let asked = explain::ask(&self.clients, self.view_of(tenant), self.admission.clone(), workload);
        Box::pin(asked).await.map_err(|error| format!("{error:#}"))
    }

    async fn predict(&self, tenant: &str, place: &str, rules: &str) -> Result<Report, String> {
        let _turn = self.turn().await?;
        let asked = diff::ask(&self.clients, self.view_of(tenant), self.admission.clone(), (place, rules));
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
    use super::*;

    fn state(took: Duration, ended: Instant, data: Option<Data>) -> State {
        let reading = Reading { data: data.map(Arc::new), ..Reading::default() };
        State { reading, ended: Some(ended), took, running: None }
    }

    #[test]
    fn reads_take_at_most_half_of_the_time() {
        let (now, interval) = (Instant::now(), Duration::from_secs(10));
        let after = |took, pause| state(took, now, None).is_due(interval, now + pause);
        let seconds = Duration::from_secs;
        assert!(!after(seconds(1), seconds(9)) && after(seconds(1), seconds(10)));
        assert!(!after(seconds(50), seconds(49)) && after(seconds(50), seconds(50)));
        assert!(State::default().is_due(interval, now), "nothing was read yet");
    }

    #[test]
    fn a_page_waits_for_a_read_only_if_that_is_quick() {
        let now = Instant::now();
        let patience = |took, data| state(took, now, data).patience();
        assert_eq!(patience(Duration::ZERO, None), PATIENCE);
        assert_eq!(patience(BRIEF, Some(Data::default())), BRIEF);
        assert_eq!(patience(Duration::from_secs(50), Some(Data::default())), Duration::ZERO);
    }
}
