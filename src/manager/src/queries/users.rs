//! How much one user may ask, and all together: whoever asks without end is answered slowly, and the others aren't. A user is the same
//! one with each of its tokens.

use std::sync::Arc;
use std::time::Duration;

use outrigger_core::map::HashMap;
use outrigger_runtime::bucket::{Bucket, Rate};
use outrigger_runtime::callers::Caller;
use outrigger_runtime::environment::Clock;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::Refusal;

/// Queries that are answered at the same time, of all users and of one.
const TURNS: usize = 8;
const TURNS_OF_USER: usize = 2;

/// Queries of one user: a page each tenth of a second on average.
const RATE: Rate = Rate { burst: 40.0, minute: 600.0 };

/// Most users whose rates are remembered.
const MAX_USERS: usize = 1024;

/// How long a query waits for its turn.
const WAIT: Duration = Duration::from_secs(5);

/// What one user has left.
#[derive(Debug)]
struct User {
    turns: Arc<Semaphore>,
    rate: Bucket,
}

/// The users who have asked of late.
#[derive(Debug)]
pub(super) struct Users {
    clock: Clock,
    turns: Arc<Semaphore>,
    /// By [`Caller::account`].
    users: Mutex<HashMap<[u8; 32], User>>,
}

/// A query that is being answered.
#[derive(Debug)]
pub(super) struct Turn {
    _of_user: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl Users {
    pub(super) fn new(clock: Clock) -> Self {
        Self { clock, turns: Arc::new(Semaphore::new(TURNS)), users: Mutex::default() }
    }

    /// Waits for a turn. Fails if the user has asked too often, or too many ask.
    pub(super) async fn turn(&self, caller: &Caller) -> Result<Turn, Refusal> {
        let own = self.own(caller)?;
        let permits = timeout(WAIT, async {
            // Whoever waits for its own queries takes nothing of what all share.
            let of_user = own.acquire_owned().await.ok()?;
            let of_all = self.turns.clone().acquire_owned().await.ok()?;
            Some(Turn { _of_user: of_user, _of_all: of_all })
        });
        let busy = || Refusal::busy("too many queries are being answered; ask again later");
        permits.await.ok().flatten().ok_or_else(busy)
    }

    /// The turns of a user. Counts the query.
    fn own(&self, caller: &Caller) -> Result<Arc<Semaphore>, Refusal> {
        let (now, mut users) = (self.clock.now(), self.users.lock());
        if users.len() >= MAX_USERS && !users.contains_key(&caller.account()) {
            // Whoever has all that there can be is like one who has never asked.
            users.retain(|_, user| !user.rate.is_full(now) || Arc::strong_count(&user.turns) > 1);
            if users.len() >= MAX_USERS {
                return Err(Refusal::busy("too many users ask; ask again later"));
            }
        }
        let new = || User { turns: Arc::new(Semaphore::new(TURNS_OF_USER)), rate: Bucket::new(now) };
        let user = users.entry(caller.account()).or_insert_with(new);
        if !user.rate.take(RATE, now) {
            let most = RATE.minute;
            return Err(Refusal::busy(&format!(
                "the user has asked more than {most} times a minute; ask again later"
            )));
        }
        Ok(user.turns.clone())
    }
}

#[cfg(test)]
mod tests {
    use outrigger_runtime::environment::Environment;
    use serde_json::json;

    use super::*;
    use crate::fixtures;

    fn caller(name: &str) -> Caller {
        Caller::new(fixtures::object(json!({"username": name})))
    }

    fn users() -> Users {
        Users::new(Environment::system().clock)
    }

    #[tokio::test(start_paused = true)]
    async fn a_user_who_asks_without_end_waits_and_another_does_not() {
        let users = users();
        let (jane, joan) = (caller("jane"), caller("joan"));
        let own: Vec<Turn> = [users.turn(&jane).await, users.turn(&jane).await].map(Result::unwrap).into();
        let refused = users.turn(&jane).await.unwrap_err();
        assert!(refused.message.contains("too many queries are being answered"), "{refused:?}");
        assert!(users.turn(&joan).await.is_ok());
        drop(own);
        assert!(users.turn(&jane).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_user_has_a_burst_and_then_a_rate() {
        let users = users();
        let jane = caller("jane");
        let mut answered = 0;
        while users.turn(&jane).await.is_ok() {
            answered += 1;
        }
        assert_eq!(answered, 40);
        assert!(users.turn(&caller("joan")).await.is_ok(), "another one isn't concerned");
        tokio::time::advance(Duration::from_millis(101)).await;
        assert!(users.turn(&jane).await.is_ok());
        assert!(users.turn(&jane).await.unwrap_err().message.contains("more than 600 times a minute"));
    }

    #[tokio::test(start_paused = true)]
    async fn all_tokens_of_a_user_share_its_limits() {
        let users = users();
        let with = |uid: &str, token: usize| {
            let user = json!({"username": "jane", "uid": uid, "groups": [format!("group-{token}")],
                "extra": {"authentication.kubernetes.io/credential-id": [format!("JTI={token}")]}});
            Caller::new(fixtures::object(user))
        };
        let own = [users.turn(&with("1", 0)).await.unwrap(), users.turn(&with("1", 1)).await.unwrap()];
        assert!(users.turn(&with("1", 2)).await.is_err(), "two are answered at the same time");
        drop(own);
        let mut answered = 3;
        while users.turn(&with("1", answered)).await.is_ok() {
            answered += 1;
        }
        // The query that found no turn was counted, and while it waited the bucket was filled again.
        assert_eq!(answered - 3, 40);
        let refused = users.turn(&with("1", MAX_USERS)).await.unwrap_err();
        assert!(refused.message.contains("more than 600 times a minute"), "{refused:?}");
        assert!(users.turn(&with("2", 0)).await.is_ok(), "another user isn't concerned");
        assert_eq!(users.users.lock().len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn so_many_users_are_remembered_and_those_who_no_longer_ask_are_forgotten() {
        let users = users();
        for n in 0..MAX_USERS {
            users.turn(&caller(&n.to_string())).await.unwrap();
        }
        let refused = users.turn(&caller("jane")).await.unwrap_err();
        assert!(refused.message.contains("too many users"), "{refused:?}");
        assert!(users.turn(&caller("0")).await.is_ok(), "one who is remembered isn't concerned");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(users.turn(&caller("jane")).await.is_ok());
        assert!(users.users.lock().len() <= MAX_USERS);
    }
}
