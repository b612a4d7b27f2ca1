use http::HeaderValue;
use http::header::COOKIE;
use outrigger_runtime::environment::Environment;
use outrigger_runtime::fake_api::{FakeApi, failure};
use serde_json::json;

use super::super::data::{Data, HostRow};
use super::*;
use crate::document::Grade;

/// Where an API server says who the user of a token is.
pub(in crate::console) const REVIEWS: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

/// Users by their tokens: each has an API server of its own, which says who the user is.
struct World {
    apis: HashMap<String, FakeApi>,
    sessions: Sessions,
}

/// From now on the user of the token has this name.
pub(in crate::console) fn is(api: &FakeApi, name: &str) {
    let user = json!({"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1", "metadata": {},
        "status": {"userInfo": {"username": name}}});
    api.answers("POST", REVIEWS, 201, user);
}

fn fails(api: &FakeApi, code: u16) {
    api.answers("POST", REVIEWS, code, failure(code, "no"));
}

fn row() -> HostRow {
    let [host, dpu, tenant] = Default::default();
    HostRow { host, dpu, tenant, grade: Grade::Good, cause: None, companions: 0, ready: 0 }
}

impl World {
    /// Each token is that of a user of the same name.
    fn of(tokens: &[&str]) -> Self {
        Self::with(&tokens.iter().map(|token| (*token, 1)).collect::<Vec<_>>())
    }

    /// As [`Self::of`], and the cluster of each has so many rows.
    fn with(tokens: &[(&str, usize)]) -> Self {
        let apis: HashMap<String, FakeApi> = tokens
            .iter()
            .map(|(token, _)| {
                let api = FakeApi::default();
                is(&api, token);
                ((*token).to_owned(), api)
            })
            .collect();
        let known = apis.clone();
        let rows: HashMap<String, usize> =
            tokens.iter().map(|(token, rows)| ((*token).to_owned(), *rows)).collect();
        let open: Open = Box::new(move |token, _| {
            let client = known.get(token).ok_or(NoSession::NotAccepted)?.client();
            let mut data = Data::default();
            data.hosts = vec![row(); rows[token]];
            Ok(Reader { client, store: Store::fixed(data) })
        });
        Self { apis, sessions: Sessions::new(Environment::system().clock, open, Gauge::default()) }
    }

    fn api(&self, token: &str) -> &FakeApi {
        &self.apis[token]
    }

    /// Logs in from an address of its own; returns the headers of the browser's requests.
    async fn login(&self, token: &str) -> Result<HeaderMap, NoSession> {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let address = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let cookie =
            self.sessions.login(Some(std::net::Ipv4Addr::from_bits(address).into()), token, "").await?;
        assert!(cookie.ends_with("; Path=/; Secure; HttpOnly; SameSite=Strict"), "{cookie}");
        assert!(!cookie.contains(token), "the browser doesn't get the token back");
        Ok(headers(&[cookie.split(';').next().unwrap()]))
    }

    async fn user(&self, headers: &HeaderMap) -> Result<String, NoSession> {
        Ok(self.sessions.of(headers).await?.user().unwrap().to_owned())
    }
}

fn headers(cookies: &[&str]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for cookie in cookies {
        headers.append(COOKIE, HeaderValue::from_str(cookie).unwrap());
    }
    headers
}

#[tokio::test(start_paused = true)]
async fn a_user_has_a_session_from_the_login_to_the_logout() {
    let world = World::of(&["jane", "joan"]);
    let (jane, joan) = (world.login("jane").await.unwrap(), world.login("joan").await.unwrap());
    assert_eq!((world.user(&jane).await, world.user(&joan).await), (Ok("jane".into()), Ok("joan".into())));
    let value = jane[COOKIE].to_str().unwrap();
    let with_others = headers(&["a=b", &format!("c=d; {value}")]);
    assert_eq!(world.user(&with_others).await, Ok("jane".into()));
    let twice = headers(&[value, joan[COOKIE].to_str().unwrap()]);
    assert_eq!(world.user(&twice).await, Err(NoSession::None), "two sessions are none");
    for other in ["", "__Host-outrigger-console=", "__Host-outrigger-console=guess"] {
        assert_eq!(world.user(&headers(&[other])).await, Err(NoSession::None), "{other}");
    }
    let ended = world.sessions.of(&jane).await.unwrap();
    world.sessions.logout(&jane);
    assert_eq!(world.user(&jane).await, Err(NoSession::None));
    assert!(ended.ended.is_cancelled());
    assert_eq!(world.user(&joan).await, Ok("joan".into()), "another's isn't concerned");
}

#[tokio::test(start_paused = true)]
async fn whoever_has_no_token_that_is_accepted_gets_no_session() {
    let world = World::of(&["jane", "x y", &"z".repeat(TOKEN + 1)]);
    for code in [401, 403] {
        fails(world.api("jane"), code);
        assert_eq!(world.login("jane").await, Err(NoSession::NotAccepted));
    }
    is(world.api("jane"), "system:anonymous");
    assert_eq!(world.login("jane").await, Err(NoSession::NotAccepted));
    fails(world.api("jane"), 500);
    assert!(matches!(world.login("jane").await, Err(NoSession::Failed(_))));
    for wrong in ["", "x y", &"z".repeat(TOKEN + 1)] {
        assert_eq!(world.login(wrong).await, Err(NoSession::NotAccepted));
    }
    assert!(world.api("x y").calls("POST").is_empty(), "nobody was asked");
    assert_eq!(world.sessions.login(None, "jane", "a/b").await, Err(NoSession::Namespace));
    is(world.api("jane"), "jane");
    assert!(world.login("jane").await.is_ok(), "the control case");
}

#[tokio::test(start_paused = true)]
async fn a_session_ends_ten_seconds_after_its_token_at_the_latest() {
    let world = World::of(&["jane"]);
    let jane = world.login("jane").await.unwrap();
    let session = world.sessions.of(&jane).await.unwrap();
    fails(world.api("jane"), 401);
    tokio::time::advance(CHECKED - Duration::from_millis(1)).await;
    assert_eq!(world.user(&jane).await, Ok("jane".into()));
    tokio::time::advance(Duration::from_millis(1)).await;
    assert_eq!(world.user(&jane).await, Err(NoSession::None));
    assert!(session.ended.is_cancelled(), "so do its streams of events");
    is(world.api("jane"), "jane");
    assert_eq!(world.user(&jane).await, Err(NoSession::None), "it doesn't come back");
}

#[tokio::test(start_paused = true)]
async fn a_token_of_somebody_else_ends_the_session_and_an_outage_refuses_it_only() {
    let world = World::of(&["jane", "joan"]);
    let (jane, joan) = (world.login("jane").await.unwrap(), world.login("joan").await.unwrap());
    fails(world.api("jane"), 500);
    is(world.api("joan"), "another");
    tokio::time::advance(CHECKED).await;
    assert!(matches!(world.user(&jane).await, Err(NoSession::Failed(_))), "nobody reads without an answer");
    assert_eq!(world.user(&joan).await, Err(NoSession::None));
    is(world.api("jane"), "jane");
    assert_eq!(world.user(&jane).await, Ok("jane".into()));
}

#[tokio::test(start_paused = true)]
async fn a_session_ends_when_it_is_not_used_or_old() {
    let world = World::of(&["jane", "joan"]);
    let (jane, joan) = (world.login("jane").await.unwrap(), world.login("joan").await.unwrap());
    for _ in 0..AGE.as_secs() / 1200 - 1 {
        tokio::time::advance(Duration::from_secs(1200)).await;
        assert_eq!(world.user(&jane).await, Ok("jane".into()));
    }
    assert_eq!(world.user(&joan).await, Err(NoSession::None));
    tokio::time::advance(Duration::from_secs(1200)).await;
    assert_eq!(world.user(&jane).await, Err(NoSession::None));
    world.sessions.sweep();
    assert!(world.sessions.all.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn sessions_and_logins_are_bounded() {
    let names: Vec<String> = (0..=SESSIONS).map(|n| format!("user-{n}")).collect();
    let world = World::of(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let mut own = Vec::new();
    for _ in 0..=SESSIONS_OF_USER {
        own.push(world.login("user-0").await.unwrap());
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    assert_eq!(world.user(&own[0]).await, Err(NoSession::None), "the oldest of the user's ends");
    assert_eq!(world.user(&own[1]).await, Ok("user-0".into()));
    for name in &names[1..=SESSIONS - SESSIONS_OF_USER] {
        world.login(name).await.unwrap();
    }
    assert_eq!(world.sessions.all.lock().len(), SESSIONS);
    assert!(world.login(&names[SESSIONS]).await.is_ok());
    assert_eq!(world.sessions.all.lock().len(), SESSIONS);
    assert_eq!(
        world.user(&own[2]).await,
        Err(NoSession::None),
        "of the user with the most, the unused one ends"
    );
    let address = Some("2001:db8::1".parse().unwrap());
    let mut refused = Vec::new();
    for _ in 0..=10 {
        refused.push(world.sessions.login(address, "wrong", "").await.unwrap_err());
    }
    assert_eq!(refused.pop(), Some(NoSession::Busy), "{refused:?}");
    assert!(refused.iter().all(|why| *why == NoSession::NotAccepted));
    let neighbour = Some("2001:db8::2".parse().unwrap());
    assert_eq!(
        world.sessions.login(neighbour, "wrong", "").await,
        Err(NoSession::Busy),
        "it is the same network"
    );
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(world.sessions.login(address, "wrong", "").await, Err(NoSession::NotAccepted));
}

/// A service account of a namespace.
fn account(namespace: &str, n: usize) -> String {
    format!("system:serviceaccount:{namespace}:account-{n}")
}

/// As many service accounts as take all places, and one more.
fn accounts(namespace: &str) -> Vec<String> {
    (0..=SESSIONS / SESSIONS_OF_USER).map(|n| account(namespace, n)).collect()
}

impl World {
    /// Whose sessions there are now.
    fn count(&self, group: &str) -> usize {
        self.sessions.all.lock().values().filter(|session| session.group() == group).count()
    }

    /// Takes all places by service accounts, one second after the other.
    async fn fill(&self, accounts: &[String]) -> Vec<HeaderMap> {
        let mut sessions = Vec::new();
        for account in accounts {
            for _ in 0..SESSIONS_OF_USER {
                sessions.push(self.login(account).await.unwrap());
                tokio::time::advance(Duration::from_secs(1)).await;
            }
        }
        sessions
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_has_many_accounts_keeps_nobody_out() {
    let accounts = accounts("many");
    let small = [account("few", 0), account("few", 1), "jane".to_owned()];
    let world = World::of(&accounts.iter().chain(&small).map(String::as_str).collect::<Vec<_>>());
    let (last, all) = accounts.split_last().unwrap();
    let many = world.fill(all).await;
    assert_eq!(world.count("system:serviceaccount:many"), SESSIONS);
    // The first one is used again, so that the second one was idle longest.
    assert_eq!(world.user(&many[0]).await, Ok(accounts[0].clone()));
    let jane = world.login("jane").await.unwrap();
    assert_eq!(world.user(&many[1]).await, Err(NoSession::None));
    assert_eq!(world.user(&many[0]).await, Ok(accounts[0].clone()));
    // Whatever the group does next, it takes its own places only.
    for account in [last, &accounts[0], &accounts[1]] {
        world.login(account).await.unwrap();
    }
    let few = world.login(&small[0]).await.unwrap();
    for account in [last, &accounts[2]] {
        world.login(account).await.unwrap();
    }
    assert_eq!(world.user(&jane).await, Ok("jane".to_owned()));
    assert_eq!(world.user(&few).await, Ok(small[0].clone()));
    assert_eq!(world.sessions.all.lock().len(), SESSIONS);
}

#[tokio::test(start_paused = true)]
async fn two_large_groups_have_equal_shares_and_a_third_takes_from_both() {
    let [first, second] = ["first", "second"].map(accounts);
    let third: Vec<String> = (0..SESSIONS).map(|n| account("third", n)).collect();
    let all = first.iter().chain(&second).chain(&third);
    let world = World::of(&all.map(String::as_str).collect::<Vec<_>>());
    world.fill(&first[1..]).await;
    world.fill(&second[1..]).await;
    let counts =
        || ["first", "second", "third"].map(|of| world.count(&format!("system:serviceaccount:{of}")));
    assert_eq!(counts(), [SESSIONS / 2, SESSIONS / 2, 0]);
    for account in &third {
        world.login(account).await.unwrap();
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    let mut counts = counts();
    counts.sort_unstable();
    assert_eq!(counts, [SESSIONS / 3, SESSIONS / 3, SESSIONS / 3 + 1]);
}

#[tokio::test(start_paused = true)]
async fn a_session_forgets_what_it_has_read_when_nobody_looks_at_it() {
    let world = World::of(&["jane"]);
    let jane = world.login("jane").await.unwrap();
    let session = world.sessions.of(&jane).await.unwrap();
    let is_kept = || {
        world.sessions.sweep();
        session.store.rows() > 0
    };
    assert!(is_kept());
    let viewer = session.viewers.clone().try_acquire_owned().unwrap();
    tokio::time::advance(10 * KEPT).await;
    assert!(is_kept(), "a page is visible");
    drop(viewer);
    assert!(!is_kept());
    assert_eq!(world.user(&jane).await, Ok("jane".into()), "the session itself lasts");
}

#[tokio::test(start_paused = true)]
async fn whoever_keeps_the_most_rows_has_no_further_session_and_all_others_do() {
    let accounts = [0, 1, 2].map(|n| account("many", n));
    let [one, two, three] = accounts.each_ref().map(String::as_str);
    let third = ROWS / 3;
    let world =
        World::with(&[(one, third), (two, third), (three, third), ("jane", ROWS - 2 * third), ("joan", 1)]);
    let jane = world.login("jane").await.unwrap();
    let first = world.login(one).await.unwrap();
    tokio::time::advance(Duration::from_secs(1)).await;
    let second = world.login(two).await.unwrap();
    assert_eq!(rows(&world.sessions.all.lock()), ROWS);
    let third = world.login(three).await.unwrap();
    assert_eq!(world.user(&first).await, Err(NoSession::None), "the new session takes a place of its group");
    // The group has the most rows now as before, and whoever has less may log in.
    let joan = world.login("joan").await.unwrap();
    assert!(rows(&world.sessions.all.lock()) > ROWS);
    for (user, name) in [(&jane, "jane"), (&second, two), (&third, three), (&joan, "joan")] {
        assert_eq!(world.user(user).await, Ok(name.to_owned()));
    }
}

#[tokio::test(start_paused = true)]
async fn the_largest_session_ends_where_all_keep_too_many_rows() {
    let most = MOST_ROWS / 2;
    let world = World::with(&[("jane", most), ("joan", most), ("small", 1)]);
    let jane = world.login("jane").await.unwrap();
    tokio::time::advance(Duration::from_secs(1)).await;
    let (small, joan) = (world.login("small").await.unwrap(), world.login("joan").await.unwrap());
    world.sessions.trim();
    for (user, name) in [(&joan, "joan"), (&small, "small")] {
        assert_eq!(world.user(user).await, Ok(name.into()), "it is smaller, or was used later");
    }
    assert_eq!(world.user(&jane).await, Err(NoSession::None), "one row is too many");
    world.sessions.trim();
    assert_eq!(world.user(&joan).await, Ok("joan".into()), "they keep as many as they may");
}

#[tokio::test(start_paused = true)]
async fn the_rows_of_a_group_count_together() {
    let accounts: Vec<String> = (0..3).map(|n| account("many", n)).collect();
    let each = MOST_ROWS / 4;
    let mut all: Vec<(&str, usize)> = accounts.iter().map(|account| (account.as_str(), each)).collect();
    all.push(("jane", MOST_ROWS - 3 * each + 1));
    let world = World::with(&all);
    let jane = world.login("jane").await.unwrap();
    let mut many = Vec::new();
    for account in &accounts {
        many.push(world.login(account).await.unwrap());
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    world.sessions.trim();
    assert_eq!(world.user(&jane).await, Ok("jane".into()), "no session keeps more, but another group does");
    assert_eq!(world.user(&many[0]).await, Err(NoSession::None));
    assert_eq!(world.user(&many[1]).await, Ok(accounts[1].clone()));
}
