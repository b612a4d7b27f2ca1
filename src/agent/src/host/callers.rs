//! Who asks: a plugin on a host, by a token of its service account, which the API server reviews.
//!
//! The audience of the token is the agent alone, so a token that was sent here can't be used at the API server, nor one for the API
//! server here. The API server writes into the token which Node the plugin's Pod runs on; no caller can choose that.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use kube::Client;
use kube::api::{Api, PostParams};
use outrigger_core::keys;
use outrigger_core::map::HashMap;
use outrigger_runtime::environment::Clock;
use outrigger_runtime::ready::Warning;
use outrigger_runtime::serve::network;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use thiserror::Error;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};
use tracing::warn;

use crate::bucket::{Bucket, Rate};

/// How long an accepted token is accepted without a review: a Pod that is deleted may ask for so much longer.
const CACHED: Duration = Duration::from_secs(10);

/// Maximum number of accepted tokens that are remembered. Beyond it the oldest is reviewed again.
const MAX_CACHED: usize = 4096;

/// Maximum number of concurrent reviews, of all callers and of one address. Whoever sends invalid tokens uses up only those of its own
/// address.
const REVIEWS: usize = 16;
const REVIEWS_OF_ADDRESS: usize = 4;

/// Reviews of one address. A host needs one each time that a token is no longer remembered.
const RATE_OF_ADDRESS: Rate = Rate { burst: 20.0, minute: 120.0 };

/// Maximum number of addresses whose rates are remembered.
const MAX_ADDRESSES: usize = 4096;

/// How long a question waits for its review to begin, and then for the result.
const WAIT: Duration = Duration::from_secs(5);
const REVIEW: Duration = Duration::from_secs(5);

/// Largest token, in bytes.
const MAX_TOKEN: usize = 16 << 10;

/// The key of the Node in what the API server says of a token of a Pod.
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";

/// Why a caller isn't answered.
#[derive(Debug, PartialEq, Eq, Error)]
pub(super) enum Denied {
    #[error(
        "there is no token; send the projected token of the plugin's service account as Authorization: Bearer"
    )]
    NoToken,
    #[error("the API server doesn't accept the token for the audience outrigger-agent")]
    NotAccepted,
    #[error("the token isn't one of the service account outrigger-host in the namespace of --host-namespace")]
    OtherUser,
    #[error("the token names no Node; use a projected token of a Pod, on Kubernetes 1.32 or later")]
    NoNode,
    #[error("too many tokens of this address, or of all, have to be reviewed; ask again later")]
    Busy,
    #[error("the API server could not review the token; the agent's log says why")]
    Failed,
}

/// Tells who asks.
pub(super) struct Callers {
    client: Client,
    clock: Clock,
    /// Name of the user whose tokens are accepted.
    user: String,
    accepted: Mutex<Accepted>,
    reviews: Semaphore,
    by_address: Mutex<HashMap<Option<IpAddr>, Address>>,
    /// Set while tokens can't be reviewed.
    failing: Warning,
}

/// The accepted tokens, by their hashes.
#[derive(Debug, Default)]
struct Accepted {
    nodes: HashMap<[u8; 32], (Instant, Arc<str>)>,
    /// In the order in which they expire.
    order: VecDeque<(Instant, [u8; 32])>,
}

/// The reviews of one address.
#[derive(Debug)]
struct Address {
    reviews: Arc<Semaphore>,
    /// Questions that wait for a review or have one.
    waiting: usize,
    rate: Bucket,
}

impl Accepted {
    fn get(&self, hash: &[u8; 32], now: Instant) -> Option<Arc<str>> {
        let (until, node) = self.nodes.get(hash)?;
        (*until > now).then(|| node.clone())
    }

    fn insert(&mut self, hash: [u8; 32], node: Arc<str>, now: Instant) {
        let until = now + CACHED;
        self.nodes.insert(hash, (until, node));
        self.order.push_back((until, hash));
        let over = |order: &VecDeque<(Instant, [u8; 32])>| {
            order.len() > MAX_CACHED || order.front().is_some_and(|(until, _)| *until <= now)
        };
        while over(&self.order)
            && let Some((until, hash)) = self.order.pop_front()
        {
            // A later review has replaced it.
            if self.nodes.get(&hash).is_some_and(|(of, _)| *of == until) {
                self.nodes.remove(&hash);
            }
        }
    }
}

impl Callers {
    pub(super) fn new(client: Client, clock: Clock, user: String, failing: Warning) -> Self {
        Self {
            client,
            clock,
            user,
            accepted: Mutex::default(),
            reviews: Semaphore::new(REVIEWS),
            by_address: Mutex::default(),
            failing,
        }
    }

    /// Returns the Node that a token names.
    pub(super) async fn node(&self, address: Option<IpAddr>, token: &str) -> Result<Arc<str>, Denied> {
        if token.len() > MAX_TOKEN {
            return Err(Denied::NotAccepted);
        }
        let hash: [u8; 32] = Sha256::digest(token).into();
        if let Some(node) = self.accepted(&hash) {
            return Ok(node);
        }
        let turn = Turn::new(self, address.map(network));
        let permits = timeout(WAIT, async {
            let own = turn.reviews.acquire().await;
            (own, self.reviews.acquire().await)
        });
        let _permits = permits.await.map_err(|_| Denied::Busy)?;
        // A question with the same token may have been first.
        if let Some(node) = self.accepted(&hash) {
            return Ok(node);
        }
        if !turn.may_review() {
            return Err(Denied::Busy);
        }
        let review = timeout(REVIEW, self.review(token)).await;
        let review = review.unwrap_or_else(|_| Err("it took too long".to_owned()));
        let failure = review.as_ref().err().cloned();
        if self.failing.set(failure.clone())
            && let Some(error) = failure
        {
            warn!(error, "failed to review tokens of hosts, whose Pods don't start meanwhile");
        }
        let status = review.map_err(|_| Denied::Failed)?;
        let node: Arc<str> = node_of(&status, &self.user)?.into();
        self.accepted.lock().insert(hash, node.clone(), self.clock.now());
        Ok(node)
    }

    fn accepted(&self, hash: &[u8; 32]) -> Option<Arc<str>> {
        self.accepted.lock().get(hash, self.clock.now())
    }

    async fn review(&self, token: &str) -> Result<TokenReviewStatus, String> {
        let spec = TokenReviewSpec {
            audiences: Some(vec![keys::AGENT_AUDIENCE.to_owned()]),
            token: Some(token.to_owned()),
        };
        let review = TokenReview { spec, ..TokenReview::default() };
        let reviews: Api<TokenReview> = Api::all(self.client.clone());
        let answered = reviews.create(&PostParams::default(), &review).await;
        answered.map_err(|error| error.to_string())?.status.ok_or_else(|| "there is no status".to_owned())
    }
}

/// Returns the Node of a token that the API server has reviewed.
fn node_of<'a>(status: &'a TokenReviewStatus, user: &str) -> Result<&'a str, Denied> {
    let ours = status.audiences.iter().flatten().any(|audience| audience == keys::AGENT_AUDIENCE);
    if status.authenticated != Some(true) || !ours {
        return Err(Denied::NotAccepted);
    }
    let caller = status.user.as_ref().ok_or(Denied::NotAccepted)?;
    if caller.username.as_deref() != Some(user) {
        return Err(Denied::OtherUser);
    }
    match caller.extra.as_ref().and_then(|extra| extra.get(NODE_NAME)).map(Vec::as_slice) {
        Some([node]) if !node.is_empty() => Ok(node),
        _ => Err(Denied::NoNode),
    }
}

/// A question that waits for its review, or has one.
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
            rate: Bucket::new(RATE_OF_ADDRESS, now),
        };
        let own = all.entry(address).or_insert_with(new);
        own.waiting += 1;
        Self { callers, address, reviews: own.reviews.clone() }
    }

    /// Whether the rate of the address permits a review. Counts it.
    fn may_review(&self) -> bool {
        let now = self.callers.clock.now();
        let mut all = self.callers.by_address.lock();
        all.get_mut(&self.address).is_some_and(|own| own.rate.take(RATE_OF_ADDRESS, now))
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

    const USER: &str = "system:serviceaccount:outrigger-system:outrigger-host";

    fn status(change: impl FnOnce(&mut Value)) -> TokenReviewStatus {
        let mut status = json!({"authenticated": true, "audiences": ["outrigger-agent"],
            "user": {"username": USER, "extra": {NODE_NAME: ["host-a"]}}});
        change(&mut status);
        serde_json::from_value(status).unwrap()
    }

    #[test]
    fn only_a_token_of_the_plugin_for_the_agent_names_a_node() {
        let of = |change: &dyn Fn(&mut Value)| node_of(&status(change), USER).map(str::to_owned);
        assert_eq!(of(&|_| {}), Ok("host-a".to_owned()));
        assert_eq!(of(&|s| s["authenticated"] = json!(false)), Err(Denied::NotAccepted));
        assert_eq!(of(&|s| s["authenticated"] = Value::Null), Err(Denied::NotAccepted));
        for audiences in [json!(["https://kubernetes.default.svc"]), json!([]), Value::Null] {
            assert_eq!(of(&|s| s["audiences"] = audiences.clone()), Err(Denied::NotAccepted));
        }
        for user in [
            "system:serviceaccount:other:outrigger-host",
            "system:serviceaccount:outrigger-system:default",
            "",
        ] {
            assert_eq!(of(&|s| s["user"]["username"] = json!(user)), Err(Denied::OtherUser));
        }
        for extra in
            [json!({}), json!({NODE_NAME: []}), json!({NODE_NAME: [""]}), json!({NODE_NAME: ["a", "b"]})]
        {
            assert_eq!(of(&|s| s["user"]["extra"] = extra.clone()), Err(Denied::NoNode));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_accepted_token_is_remembered_for_ten_seconds_and_no_more_of_them_than_the_limit() {
        let hash = |n: usize| -> [u8; 32] { Sha256::digest(n.to_string()).into() };
        let (mut accepted, now) = (Accepted::default(), Instant::now());
        accepted.insert(hash(0), "host-a".into(), now);
        assert_eq!(
            accepted.get(&hash(0), now + CACHED - Duration::from_millis(1)).as_deref(),
            Some("host-a")
        );
        assert_eq!(accepted.get(&hash(0), now + CACHED), None);
        assert_eq!(accepted.get(&hash(1), now), None);
        // It is reviewed again, and the first review's end doesn't remove it.
        let later = now + Duration::from_secs(9);
        accepted.insert(hash(0), "host-b".into(), later);
        accepted.insert(hash(1), "host-c".into(), now + CACHED);
        assert_eq!(accepted.get(&hash(0), now + CACHED).as_deref(), Some("host-b"));
        for n in 0..=MAX_CACHED {
            accepted.insert(hash(n), "host".into(), now + CACHED);
        }
        assert!(accepted.nodes.len() <= MAX_CACHED && accepted.order.len() <= MAX_CACHED);
    }
}
