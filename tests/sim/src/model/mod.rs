//! A model of one cluster's API server, with its storage.
//!
//! Clients are real kube clients whose requests go to the model instead of a connection. A [`Link`] decides what happens to each
//! request, response and watch event on its way. Time comes from the clock of the model's [`Environment`], and names and uids from
//! its random numbers, so the same requests lead to the same responses.
//!
//! What it leaves out: field owners, but for the labels of namespaces, and conflicts of server-side apply (an apply that changes no
//! field writes nothing, also if it would change who owns a field, and a field that isn't applied any longer stays), merging of lists
//! by keys, defaults and validation of specs (a Pod is bound by writing its `spec.nodeName`), strategic merge patches, other API
//! versions than the one that is stored, and deletion of dependents in the foreground. `tests/model` compares it with the real API
//! server.

mod access;
mod collect;
mod kinds;
mod link;
mod object;
mod owners;
mod patch;
mod refusal;
mod request;
mod resize;
mod selector;
mod service;
mod store;
mod update;
mod watch;
mod write;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response};
use outrigger_runtime::environment::Environment;
use parking_lot::Mutex;
use serde_json::Value;
use tower::BoxError;

pub use self::kinds::{BUILT_IN, ModelKind, NAMESPACES, PODS};
pub use self::link::{Direct, Link, Passage, RequestInfo, Verb};
pub use self::refusal::Refusal;
pub use self::service::ResponseBody;
pub use self::store::{Commit, More, Snapshot};
pub use self::write::Attempt;

use self::store::State;
use self::write::{Answer, Failure, Write};

/// The decision of admission about an attempt: the object, which may be changed, or an HTTP status and a message.
pub type Admitted = Result<Value, (u16, String)>;

type Hook = Arc<dyn Fn(&Attempt) -> Admitted + Send + Sync>;
type AsyncHook = Arc<dyn Fn(Attempt) -> BoxFuture<'static, Admitted> + Send + Sync>;
type Callback = Arc<dyn Fn(&Commit) + Send + Sync>;

/// One cluster's API server. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Model {
    state: Arc<Mutex<State>>,
    hooks: Arc<Mutex<Hooks>>,
    environment: Environment,
}

#[derive(Default, Clone)]
struct Hooks {
    admission: Vec<Hook>,
    webhooks: Vec<AsyncHook>,
    callbacks: Vec<Callback>,
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model").field("revision", &self.state.lock().revision).finish_non_exhaustive()
    }
}

impl Model {
    /// An empty cluster that serves these kinds, with the time and the randomness of this environment.
    pub fn new(kinds: &[ModelKind], environment: Environment) -> Self {
        Self { state: Arc::new(Mutex::new(State::new(kinds))), hooks: Arc::default(), environment }
    }

    /// A client of this user, whose requests take this way. It has to be called on a tokio runtime.
    pub fn client(&self, link: impl Link, user: &str) -> kube::Client {
        service::client(self.clone(), link, user)
    }

    /// Answers a request of this user, for a harness that listens for connections itself.
    ///
    /// # Errors
    /// When a response can't be built.
    pub async fn serve(
        &self,
        user: &str,
        request: Request<Bytes>,
    ) -> Result<Response<ResponseBody>, BoxError> {
        service::serve(self.clone(), Arc::new(Direct), user.to_owned(), request.map(Into::into)).await
    }

    /// Passes each write to a hook before it is stored, in the order in which hooks were added. The hook returns the object to store,
    /// or refuses the write with an HTTP status and a message. It may be called more than once for a request, and may read the model.
    pub fn admit(&self, hook: impl Fn(&Attempt) -> Admitted + Send + Sync + 'static) {
        self.hooks.lock().admission.push(Arc::new(hook));
    }

    /// As [`Self::admit`], for a hook that takes time, such as a webhook, during which other requests are handled. It is called for
    /// requests of clients, after all hooks that take no time, and not for [`Self::create`] and its like.
    pub fn admit_async(
        &self,
        hook: impl Fn(Attempt) -> BoxFuture<'static, Admitted> + Send + Sync + 'static,
    ) {
        self.hooks.lock().webhooks.push(Arc::new(hook));
    }

    /// Calls a function after each committed write. It may read and write the model.
    pub fn on_commit(&self, callback: impl Fn(&Commit) + Send + Sync + 'static) {
        self.hooks.lock().callbacks.push(Arc::new(callback));
    }

    fn hooks(&self) -> Hooks {
        self.hooks.lock().clone()
    }

    /// Makes a write without waiting.
    fn write_now(&self, write: &Write) -> Result<Answer, Refusal> {
        let hooks = self.hooks();
        loop {
            let mut attempt = write.prepare(&self.state.lock(), &self.environment)?;
            admitted(&hooks, &mut attempt)?;
            match self.finish(write, attempt, &hooks) {
                Err(Failure::Stale) => {}
                Err(Failure::Refused(refusal)) => return Err(refusal),
                Ok(answer) => return Ok(answer),
            }
        }
    }

    /// Makes a write, with the admission that takes time.
    async fn write(&self, write: &Write) -> Result<Answer, Refusal> {
        let (hooks, restarts) = (self.hooks(), self.restarts());
        loop {
            let mut attempt = write.prepare(&self.state.lock(), &self.environment)?;
            admitted(&hooks, &mut attempt)?;
            for hook in &hooks.webhooks {
                let object = attempt.object.take();
                attempt.object = hook(Attempt { object, ..attempt.clone() }).await.map_err(denied)?;
            }
            if self.restarts() != restarts {
                return Err(Refusal::new(503, "the API server has restarted"));
            }
            match self.finish(write, attempt, &hooks) {
                Err(Failure::Stale) => {}
                Err(Failure::Refused(refusal)) => return Err(refusal),
                Ok(answer) => return Ok(answer),
            }
        }
    }

    fn restarts(&self) -> u64 {
        self.state.lock().restarts
    }

    fn finish(&self, write: &Write, attempt: Attempt, hooks: &Hooks) -> Result<Answer, Failure> {
        let answer = write.finish(&mut self.state.lock(), &self.environment, attempt)?;
        for commit in &answer.commits {
            hooks.callbacks.iter().for_each(|callback| callback(commit));
        }
        Ok(answer)
    }
}

fn admitted(hooks: &Hooks, attempt: &mut Attempt) -> Result<(), Refusal> {
    for hook in &hooks.admission {
        attempt.object = hook(attempt).map_err(denied)?;
    }
    Ok(())
}

fn denied((code, message): (u16, String)) -> Refusal {
    Refusal::new(code, message)
}
