//! Users of the console in the cluster: each has logged in with a bearer token, and reads with it.
//!
//! The console has no rights of its own. A session has a client with its user's token, so the API server decides about each read. It is
//! asked whose the token is at the login, and again before an answer when the last time is [`CHECKED`] ago: a token that has ended ends
//! its session. The browser has a random cookie only, and the token stays in the memory of this process.
//!
//! When all places are taken, a session of the largest group of users ends for a new one ([`shares`]): nobody who has a valid token is
//! refused for what others take.

mod shares;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use http::HeaderMap;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::Client;
use kube::api::{Api, PostParams};
use outrigger_core::map::HashMap;
use outrigger_core::syntax::is_short_dns_label;
use outrigger_runtime::bucket::{Bucket, Rate};
use outrigger_runtime::environment::Clock;
use outrigger_runtime::serve::network;
use parking_lot::Mutex;
use prometheus_client::metrics::gauge::Gauge;
use thiserror::Error;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::access::{cookies, digest, secret};
use super::rights::refuses;
use super::store::{KEPT, Store};
use super::turns::Groups;

/// Most sessions, and of one user. Beyond the latter the one that was used least recently ends, beyond the former one of the largest group.
pub(super) const SESSIONS: usize = 256;
const SESSIONS_OF_USER: usize = 4;

/// Rows that all sessions keep together, each about a kilobyte, beyond which a new session takes the place of one of its own group, if that
/// keeps most. A session's own are those that its user may read.
const ROWS: usize = 500_000;

/// Rows beyond which sessions of the largest groups end. The difference is for groups that keep less, and for those who have logged in and
/// read more by now.
const MOST_ROWS: usize = 700_000;

/// How long a session lasts that is not used, and at most. A token may end earlier.
const IDLE: Duration = Duration::from_secs(30 * 60);
const AGE: Duration = Duration::from_secs(8 * 3600);

/// How long it counts that the API server has accepted a token.
pub(super) const CHECKED: Duration = Duration::from_secs(10);

/// Longest time for that question.
const CHECK: Duration = Duration::from_secs(5);

/// Largest token, in bytes.
const TOKEN: usize = 16 << 10;

/// Most streams of events of a session.
pub(super) const VIEWERS: usize = 8;

/// Requests of a session that are answered at the same time, but for streams of events.
pub(super) const REQUESTS: usize = 8;

/// Logins that are being checked, and those of one address.
const LOGINS: usize = 8;
const LOGINS_OF_ADDRESS: Rate = Rate { burst: 10.0, minute: 30.0 };

/// Most addresses whose logins are counted.
const ADDRESSES: usize = 1024;

/// Browsers send a cookie with this prefix by HTTPS only, and only to the host that has set it.
const COOKIE_NAME: &str = "__Host-outrigger-console";

/// Why somebody has no session.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(super) enum NoSession {
    /// There is none, or it has ended.
    #[error("there is no session; log in")]
    None,
    /// The API server doesn't accept the token.
    #[error("the API server doesn't accept the token; use another one")]
    NotAccepted,
    /// The namespace can't be one.
    #[error("the namespace has to be a DNS label")]
    Namespace,
    /// A limit was reached.
    #[error("too many users log in; try again later")]
    Busy,
    /// The API server could not say.
    #[error("the API server could not be asked about the token: {0}")]
    Failed(String),
}

/// What is read with one token.
pub(super) struct Reader {
    /// A client that has this token, and no other credentials.
    pub(super) client: Client,
    /// What is read by that client.
    pub(super) store: Arc<Store>,
}

/// Makes a reader for a token, and the only namespace that is read where the user may not read all.
pub(super) type Open = Box<dyn Fn(&str, Option<String>) -> Result<Reader, NoSession> + Send + Sync>;

/// Who reads, and what was read for it.
pub(super) struct Session {
    pub(super) store: Arc<Store>,
    pub(super) viewers: Arc<Semaphore>,
    /// Requests that are answered, but for streams of events.
    pub(super) requests: Arc<Semaphore>,
    /// `None`: whoever has started the command.
    user: Option<User>,
    /// Cancelled when it ends.
    pub(super) ended: CancellationToken,
}

struct User {
    name: String,
    client: Client,
    began: Instant,
    times: Mutex<Times>,
    /// One question at a time.
    checking: tokio::sync::Mutex<()>,
}

#[derive(Clone, Copy)]
struct Times {
    used: Instant,
    checked: Instant,
}

impl Session {
    /// The one session of a console on a user's machine.
    pub(super) fn own(store: Arc<Store>, viewers: usize) -> Arc<Self> {
        Self::new(store, viewers, None)
    }

    fn new(store: Arc<Store>, viewers: usize, user: Option<User>) -> Arc<Self> {
        let viewers = Arc::new(Semaphore::new(viewers));
        let requests = Arc::new(Semaphore::new(REQUESTS));
        Arc::new(Self { store, viewers, requests, user, ended: CancellationToken::new() })
    }

    /// The name of its user.
    pub(super) fn user(&self) -> Option<&str> {
        self.user.as_ref().map(|user| user.name.as_str())
    }

    /// The group of its user; empty for whoever has started the command.
    fn group(&self) -> &str {
        self.user().map(shares::group).unwrap_or_default()
    }

    /// Whether it has lasted too long.
    fn is_over(&self, now: Instant) -> bool {
        let over = |user: &User| now >= user.began + AGE || now >= user.times.lock().used + IDLE;
        self.ended.is_cancelled() || self.user.as_ref().is_some_and(over)
    }

    /// Whether no page of it is visible, and none was asked for of late.
    fn is_unwatched(&self, now: Instant) -> bool {
        let is_late = self.used().is_some_and(|used| now >= used + KEPT);
        is_late
            && self.viewers.available_permits() == VIEWERS
            && self.requests.available_permits() == REQUESTS
    }

    fn used(&self) -> Option<Instant> {
        self.user.as_ref().map(|user| user.times.lock().used)
    }
}

/// All sessions.
pub(super) struct Sessions {
    clock: Clock,
    open: Open,
    /// By digests of their cookies.
    all: Mutex<HashMap<[u8; 32], Arc<Session>>>,
    /// How many there are.
    count: Gauge<i64, AtomicI64>,
    /// What each group may do at the same time.
    groups: Groups,
    logins: Semaphore,
    by_address: Mutex<HashMap<Option<IpAddr>, Bucket>>,
}

impl Sessions {
    pub(super) fn new(clock: Clock, open: Open, count: Gauge<i64, AtomicI64>) -> Self {
        let logins = Semaphore::new(LOGINS);
        let groups = Groups::default();
        Self { clock, open, all: Mutex::default(), count, groups, logins, by_address: Mutex::default() }
    }

    /// Begins a session for whoever has this token. `namespace`: the only one that is read where the user may not read all; empty:
    /// none. Returns the value of `Set-Cookie`.
    pub(super) async fn login(
        &self,
        address: Option<IpAddr>,
        token: &str,
        namespace: &str,
    ) -> Result<String, NoSession> {
        let is_token =
            (1..=TOKEN).contains(&token.len()) && token.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_token {
            return Err(NoSession::NotAccepted);
        }
        if !namespace.is_empty() && !is_short_dns_label(namespace) {
            return Err(NoSession::Namespace);
        }
        let namespace = Some(namespace.to_owned()).filter(|name| !name.is_empty());
        self.count(address.map(network))?;
        let _permit = self.logins.try_acquire().map_err(|_| NoSession::Busy)?;
        let began = self.clock.now();
        let Reader { client, store } = (self.open)(token, namespace)?;
        let name = user_of(&client).await?;
        store.join(self.groups.of(shares::group(&name)));
        let times = Mutex::new(Times { used: began, checked: began });
        let user = User { name: name.clone(), client, began, times, checking: tokio::sync::Mutex::default() };
        let cookie = secret();
        self.keep(digest(&cookie), Session::new(store, VIEWERS, Some(user)));
        info!(user = name, "user logged in");
        Ok(set_cookie(&cookie))
    }

    /// Counts a login of an address. Fails if there were too many.
    fn count(&self, address: Option<IpAddr>) -> Result<(), NoSession> {
        let (now, mut all) = (self.clock.now(), self.by_address.lock());
        if all.len() >= ADDRESSES && !all.contains_key(&address) {
            all.retain(|_, bucket| !bucket.is_full(now));
            if all.len() >= ADDRESSES {
                return Err(NoSession::Busy);
            }
        }
        let bucket = all.entry(address).or_insert_with(|| Bucket::new(now));
        if bucket.take(LOGINS_OF_ADDRESS, now) { Ok(()) } else { Err(NoSession::Busy) }
    }

    /// Keeps a session. Those that are over end, and of a user with too many the one that was used least recently. Where all places are
    /// taken, one of the largest group ends, and of its own group only if no other one has more.
    fn keep(&self, cookie: [u8; 32], session: Arc<Session>) {
        self.sweep();
        let mut all = self.all.lock();
        let of_user: Vec<_> = all.iter().filter(|(_, other)| other.user() == session.user()).collect();
        let oldest = of_user.iter().min_by_key(|(_, other)| other.used()).map(|(cookie, _)| **cookie);
        if of_user.len() >= SESSIONS_OF_USER
            && let Some(ended) = oldest.and_then(|oldest| all.remove(&oldest))
        {
            ended.ended.cancel();
        }
        let group = session.group();
        while all.len() >= SESSIONS
            && let Some((largest, last)) = shares::gives_way(&all, group, |_| 1)
        {
            end_of(&mut all, &last, &largest, "all sessions are taken, and this group has the most");
        }
        while rows(&all) >= ROWS
            && let Some((largest, last)) = shares::gives_way(&all, group, |other| other.store.rows())
            && largest == group
        {
            end_of(&mut all, &last, &largest, "its group has another one, and keeps the most rows");
        }
        all.insert(cookie, session);
        self.counted(all.len());
    }

    /// Ends the sessions that are over. Those at which nobody looks forget what they have read: it is old when somebody looks again.
    pub(super) fn sweep(&self) {
        let (now, mut all) = (self.clock.now(), self.all.lock());
        all.retain(|_, session| {
            let is_over = session.is_over(now);
            if is_over {
                session.ended.cancel();
            } else if session.is_unwatched(now) {
                session.store.forget();
            }
            !is_over
        });
        self.counted(all.len());
    }

    /// Ends sessions of the groups with the most rows, as long as all keep too many: of a group the one with the most, and of several with as
    /// many the one that was used least recently.
    pub(super) fn trim(&self) {
        let mut all = self.all.lock();
        while rows(&all) > MOST_ROWS
            && let Some((largest, last)) = shares::gives_way(&all, "", |session| session.store.rows())
        {
            end_of(&mut all, &last, &largest, "all sessions keep too many rows, and this group the most");
        }
        self.counted(all.len());
    }

    fn counted(&self, sessions: usize) {
        self.count.set(i64::try_from(sessions).unwrap_or(i64::MAX));
    }

    /// The session of a request, if its user may still read.
    pub(super) async fn of(&self, headers: &HeaderMap) -> Result<Arc<Session>, NoSession> {
        let session = self.find(headers).ok_or(NoSession::None)?;
        self.check(&session).await?;
        let now = self.clock.now();
        if let Some(user) = &session.user {
            user.times.lock().used = now;
        }
        Ok(session)
    }

    fn find(&self, headers: &HeaderMap) -> Option<Arc<Session>> {
        let cookie = cookie(headers)?;
        let session = self.all.lock().get(&digest(cookie)).cloned()?;
        (!session.is_over(self.clock.now())).then_some(session)
    }

    /// Whether the session's token is accepted, of late. A session whose token isn't ends.
    pub(super) async fn check(&self, session: &Session) -> Result<(), NoSession> {
        let Some(user) = &session.user else { return Ok(()) };
        let fresh = || self.clock.now() < user.times.lock().checked + CHECKED;
        if session.is_over(self.clock.now()) {
            return Err(NoSession::None);
        }
        if fresh() {
            return Ok(());
        }
        let _one = user.checking.lock().await;
        if fresh() {
            return Ok(());
        }
        let began = self.clock.now();
        match user_of(&user.client).await {
            Ok(name) if name == user.name => {
                user.times.lock().checked = began;
                Ok(())
            }
            Ok(_) | Err(NoSession::NotAccepted) => {
                info!(user = user.name, "session ended: the API server no longer accepts the token");
                self.end(session);
                Err(NoSession::None)
            }
            Err(error) => Err(error),
        }
    }

    /// Ends the session of a request.
    pub(super) fn logout(&self, headers: &HeaderMap) {
        if let Some(session) = self.find(headers) {
            info!(user = session.user().unwrap_or_default(), "user logged out");
            self.end(&session);
        }
    }

    fn end(&self, session: &Session) {
        session.ended.cancel();
        self.sweep();
    }
}

/// How many rows these sessions keep.
fn rows(all: &HashMap<[u8; 32], Arc<Session>>) -> usize {
    all.values().map(|session| session.store.rows()).sum()
}

/// Ends the session of a cookie for others.
fn end_of(all: &mut HashMap<[u8; 32], Arc<Session>>, cookie: &[u8; 32], group: &str, reason: &'static str) {
    if let Some(session) = all.remove(cookie) {
        let (user, rows) = (session.user(), session.store.rows());
        warn!(user, group, rows, reason, "session ended for others");
        session.ended.cancel();
    }
}

/// The value of the session's cookie; `None` if there isn't exactly one.
fn cookie(headers: &HeaderMap) -> Option<&str> {
    let mut values = cookies(headers).filter(|(name, _)| *name == COOKIE_NAME).map(|(_, value)| value);
    let value = values.next()?;
    values.next().is_none().then_some(value)
}

fn set_cookie(value: &str) -> String {
    format!("{COOKIE_NAME}={value}; Path=/; Secure; HttpOnly; SameSite=Strict")
}

/// What makes a browser forget the cookie.
pub(super) fn unset_cookie() -> String {
    format!("{}; Max-Age=0", set_cookie(""))
}

/// The name of the user whose token a client has.
async fn user_of(client: &Client) -> Result<String, NoSession> {
    let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
    let params = PostParams::default();
    let review = timeout(CHECK, reviews.create(&params, &SelfSubjectReview::default())).await;
    match review {
        Ok(Ok(review)) => {
            let user = review.status.and_then(|status| status.user_info).and_then(|user| user.username);
            // Whoever has no name is nobody, and a token that isn't looked at makes somebody anonymous.
            user.filter(|name| !name.is_empty() && name != "system:anonymous").ok_or(NoSession::NotAccepted)
        }
        Ok(Err(kube::Error::Api(status))) if refuses(status.code) => Err(NoSession::NotAccepted),
        Ok(Err(error)) => Err(NoSession::Failed(error.to_string())),
        Err(_) => Err(NoSession::Failed(format!("no answer within {} s", CHECK.as_secs()))),
    }
}

#[cfg(test)]
pub(super) mod tests;
