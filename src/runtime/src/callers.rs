//! Who calls: a user, by a bearer token that the API server reviews; and what that user may do, which the API server says too.
//!
//! An answer of the API server is remembered for [`REMEMBERED`], counted from before it was asked, and no longer: whoever loses a
//! right, or whose token ends, is refused after that time. Refused tokens aren't remembered, so whoever sends many of them is bounded by
//! its address. If the API server can't be asked, nobody is accepted.

mod remembered;
pub mod rights;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, header};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus, UserInfo};
use kube::Client;
use kube::api::{Api, PostParams};
use outrigger_core::map::HashMap;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tracing::warn;

use self::remembered::Remembered;
use crate::bucket::{Bucket, Rate};
use crate::environment::Clock;
use crate::ready::Warning;
use crate::serve::network;

/// How long an answer of the API server is used again.
pub const REMEMBERED: Duration = Duration::from_secs(10);

/// Maximum number of accepted tokens that are remembered, and of answers about rights. Beyond it the oldest is reviewed again.
const MAX_ANSWERS: usize = 4096;

/// Maximum number of concurrent reviews of tokens, and of rights, of all callers; and of tokens of one address. Whoever sends invalid
/// tokens uses up only those of its own address.
const REVIEWS: usize = 16;
const REVIEWS_OF_ADDRESS: usize = 4;

/// Reviews of one address, unless [`Callers::reviewing`] says otherwise. A caller needs one each time that its token is no longer
/// remembered.
const RATE_OF_ADDRESS: Rate = Rate { burst: 20.0, minute: 120.0 };

/// Maximum number of addresses whose rates are remembered.
const MAX_ADDRESSES: usize = 4096;

/// How long a caller waits for its review to begin, and then for the result.
const WAIT: Duration = Duration::from_secs(5);
const REVIEW: Duration = Duration::from_secs(5);

/// Largest token, in bytes.
const MAX_TOKEN: usize = 16 << 10;

/// Why nothing is known of a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denied {
    /// The API server doesn't accept the token.
    NotAccepted,
    /// Too much has to be reviewed already.
    Busy,
    /// The API server could not say.
    Failed,
}

/// A user whom the API server has authenticated.
#[derive(Debug, PartialEq)]
pub struct Caller {
    /// As the API server describes it.
    pub user: UserInfo,
    /// A digest of all of that.
    digest: [u8; 32],
    /// A digest of the name and the uid.
    account: [u8; 32],
}

/// Tells who calls.
pub struct Callers {
    client: Client,
    clock: Clock,
    /// Of the tokens that are accepted; `None`: the API server's own.
    audience: Option<&'static str>,
    accepted: Mutex<Remembered<Arc<Caller>>>,
    reviews: Semaphore,
    by_address: Mutex<HashMap<Option<IpAddr>, Address>>,
    rate_of_address: Rate,
    address_of: fn(IpAddr) -> IpAddr,
    /// Set while tokens can't be reviewed.
    failing: Warning,
}

/// The reviews of one address.
#[derive(Debug)]
struct Address {
    reviews: Arc<Semaphore>,
    /// Callers that wait for a review or have one.
    waiting: usize,
    rate: Bucket,
}

/// The token of a request's header `Authorization`; `None` if there isn't exactly one.
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let value = values.next()?.to_str().ok()?;
    let token = value.strip_prefix("Bearer ").map(str::trim).filter(|token| !token.is_empty());
    token.filter(|_| values.next().is_none())
}

impl Caller {
    /// A user as the API server describes it.
    pub fn new(user: UserInfo) -> Self {
        // Texts alone: there is nothing in it that could not be serialised.
        let digest = |bytes: Option<Vec<u8>>| Sha256::digest(bytes.unwrap_or_default()).into();
        let account = serde_json::to_vec(&(&user.username, &user.uid)).ok();
        let all = serde_json::to_vec(&user).ok();
        Self { user, digest: digest(all), account: digest(account) }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.user.username.as_deref().unwrap_or_default()
    }

    /// A digest of all that is known of the user, which is the key of answers about rights: they may depend on any part of it. Two
    /// credentials of one user have different ones, because the API server names the credential too.
    pub fn digest(&self) -> [u8; 32] {
        self.digest
    }

    /// A digest of the user's name and uid, which is the key of limits: it is the same for all credentials of the user. Groups and extra
    /// fields come with the credential, and with them each new token would have limits of its own.
    pub fn account(&self) -> [u8; 32] {
        self.account
    }
}

impl Callers {
    /// Asks the API server of this client. `audience`: the only one of the tokens that are accepted; `None`: the API server's own.
    /// `failing` is set while tokens can't be reviewed.
    pub fn new(client: Client, clock: Clock, audience: Option<&'static str>, failing: Warning) -> Self {
        Self {
            client,
            clock,
            audience,
            accepted: Mutex::new(Remembered::new(MAX_ANSWERS)),
            reviews: Semaphore::new(REVIEWS),
            by_address: Mutex::default(),
            rate_of_address: RATE_OF_ADDRESS,
            address_of: network,
            failing,
        }
    }

    /// The same with this rate of reviews for each address: one address may be that of many users.
    #[must_use]
    pub fn reviewing(self, rate_of_address: Rate) -> Self {
        Self { rate_of_address, ..self }
    }

    /// The same, with what counts as one address ([`crate::serve::Limits::address_of`]).
    #[must_use]
    pub fn of_addresses(self, address_of: fn(IpAddr) -> IpAddr) -> Self {
        Self { address_of, ..self }
    }

    /// Whose token this is.
    ///
    /// # Errors
    /// If nobody is accepted for it.
    pub async fn caller(&self, address: Option<IpAddr>, token: &str) -> Result<Arc<Caller>, Denied> {
        if token.len() > MAX_TOKEN {
            return Err(Denied::NotAccepted);
        }
        let hash: [u8; 32] = Sha256::digest(token).into();
        if let Some(caller) = self.accepted(&hash) {
            return Ok(caller);
        }
        let turn = Turn::new(self, address.map(self.address_of));
        let permits = timeout(WAIT, async {
            let own = turn.reviews.acquire().await;
            (own, self.reviews.acquire().await)
        });
        let _permits = permits.await.map_err(|_| Denied::Busy)?;
        // Another request with the same token may have been first.
        if let Some(caller) = self.accepted(&hash) {
            return Ok(caller);
        }
        if !turn.may_review() {
            return Err(Denied::Busy);
        }
        let began = self.clock.now();
        let failed = |error: String| {
            warn!(error, "failed to review tokens, whose bearers are refused meanwhile");
        };
        let status = reviewed(self.review(token), &self.failing, failed).await?;
        let user = user_of(status, self.audience).ok_or(Denied::NotAccepted)?;
        let caller = Arc::new(Caller::new(user));
        self.accepted.lock().insert(hash, caller.clone(), began + REMEMBERED, self.clock.now());
        Ok(caller)
    }

    fn accepted(&self, hash: &[u8; 32]) -> Option<Arc<Caller>> {
        self.accepted.lock().get(hash, self.clock.now())
    }

    async fn review(&self, token: &str) -> Result<TokenReviewStatus, String> {
        let spec = TokenReviewSpec {
            audiences: self.audience.map(|audience| vec![audience.to_owned()]),
            token: Some(token.to_owned()),
        };
        let review = TokenReview { spec, ..TokenReview::default() };
        let reviews: Api<TokenReview> = Api::all(self.client.clone());
        let answered = reviews.create(&PostParams::default(), &review).await;
        answered.map_err(|error| error.to_string())?.status.ok_or_else(|| "there is no status".to_owned())
    }
}

/// The result of a review, which fails if it takes too long. `failing` is set while reviews fail, and `failed` receives each new reason.
async fn reviewed<T>(
    review: impl Future<Output = Result<T, String>>,
    failing: &Warning,
    failed: impl FnOnce(String),
) -> Result<T, Denied> {
    let review = timeout(REVIEW, review).await;
    let review = review.unwrap_or_else(|_| Err("it took too long".to_owned()));
    let failure = review.as_ref().err().cloned();
    if failing.set(failure.clone())
        && let Some(error) = failure
    {
        failed(error);
    }
    review.map_err(|_| Denied::Failed)
}

/// The user of a token that the API server has reviewed; `None` if it isn't accepted, or not for this audience.
fn user_of(status: TokenReviewStatus, audience: Option<&str>) -> Option<UserInfo> {
    let is_for = |audience: &str| status.audiences.iter().flatten().any(|of| of == audience);
    if status.authenticated != Some(true) || !audience.is_none_or(is_for) {
        return None;
    }
    status.user.filter(|user| user.username.as_deref().is_some_and(|name| !name.is_empty()))
}

/// A caller that waits for its review, or has one.
struct Turn<'a> {
    callers: &'a Callers,
    address: Option<IpAddr>,
    reviews: Arc<Semaphore>,
}

impl<'a> Turn<'a> {
    fn new(callers: &'a Callers, address: Option<IpAddr>) -> Self {
        let now = callers.clock.now();
        let mut all = callers.by_address.lock();
        if all.len() >= MAX_ADDRESSES {
            all.retain(|_, other| other.waiting > 0);
        }
        let new = || Address {
            reviews: Arc::new(Semaphore::new(REVIEWS_OF_ADDRESS)),
            waiting: 0,
            rate: Bucket::new(now),
        };
        let own = all.entry(address).or_insert_with(new);
        own.waiting += 1;
        Self { callers, address, reviews: own.reviews.clone() }
    }

    /// Whether the rate of the address permits a review. Counts it.
    fn may_review(&self) -> bool {
        let (now, rate) = (self.callers.clock.now(), self.callers.rate_of_address);
        let mut all = self.callers.by_address.lock();
        all.get_mut(&self.address).is_some_and(|own| own.rate.take(rate, now))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(own) = self.callers.by_address.lock().get_mut(&self.address) {
            own.waiting = own.waiting.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn name(audience: Option<&str>, change: impl FnOnce(&mut Value)) -> Option<String> {
        let mut status =
            json!({"authenticated": true, "audiences": ["a", "b"], "user": {"username": "jane"}});
        change(&mut status);
        user_of(serde_json::from_value(status).unwrap(), audience).and_then(|user| user.username)
    }

    #[test]
    fn only_an_accepted_token_for_the_audience_has_a_user() {
        let jane = Some("jane".to_owned());
        assert_eq!([name(Some("b"), |_| {}), name(None, |_| {})], [jane.clone(), jane]);
        assert_eq!(name(Some("c"), |_| {}), None);
        assert_eq!(name(Some("a"), |status| status["audiences"] = Value::Null), None);
        for authenticated in [json!(false), Value::Null] {
            assert_eq!(name(None, |status| status["authenticated"] = authenticated), None);
        }
        for user in [Value::Null, json!({}), json!({"username": ""})] {
            assert_eq!(name(None, |status| status["user"] = user), None);
        }
    }

    #[test]
    fn a_token_is_a_bearer_token_and_the_only_one() {
        let of = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::AUTHORIZATION, value.parse().unwrap());
            }
            bearer(&headers).map(str::to_owned)
        };
        assert_eq!(of(&["Bearer a.b.c"]).as_deref(), Some("a.b.c"));
        assert_eq!([of(&["Basic a"]), of(&["Bearer "]), of(&["a.b.c"]), of(&[])], [None, None, None, None]);
        assert_eq!(of(&["Bearer a", "Bearer b"]), None);
    }

    #[test]
    fn rights_depend_on_all_that_is_known_of_a_user_and_limits_on_the_name_and_the_uid() {
        let of = |user: &Value| Caller::new(serde_json::from_value(user.clone()).unwrap());
        let jane = json!({"username": "jane", "uid": "1", "groups": ["g"], "extra": {"k": ["v"]}});
        for (at, value, is_another_account) in [
            ("/username", json!("joan"), true),
            ("/uid", json!("2"), true),
            ("/groups", json!(["h"]), false),
            ("/extra/k", json!(["w"]), false),
        ] {
            let mut other = jane.clone();
            *other.pointer_mut(at).unwrap() = value;
            assert_ne!(of(&other).digest(), of(&jane).digest(), "{at}");
            assert_eq!(of(&other).account() != of(&jane).account(), is_another_account, "{at}");
        }
        assert_eq!(of(&jane), of(&jane));
        let [long, split] = [json!({"username": "jane1"}), json!({"username": "jane", "uid": "1"})];
        assert_ne!(of(&long).account(), of(&split).account());
    }
}
