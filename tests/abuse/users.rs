//! What a user with a valid token does to other users: of queries, and of the console.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::StreamExt;
use futures::stream;
use outrigger_tests::console::{LoggedIn, ServedConsole, reader};
use outrigger_tests::openmetrics::parse;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::queries::{Manager, User};
use outrigger_tests::tenant::{Tenant, account};
use outrigger_tests::{eventually, holds};

use crate::abuse::alone;

/// How many objects a manager has asked the API server to create. One that serves no tenant and doesn't lead asks for reviews only.
async fn creations(manager: &Manager) -> Result<u64, String> {
    let families = parse(&Outrigger::metrics_of(manager.admin).await?)?;
    let requests = families.get("outrigger_api_requests").ok_or("no such metric")?;
    Ok(requests.sum("_total", &[("verb", "Create")]) as u64)
}

#[tokio::test]
async fn a_query_about_no_tenant_causes_the_calls_of_one_that_is_refused() {
    static USERS: AtomicUsize = AtomicUsize::new(0);
    let o = Outrigger::shared().await;
    let infra = &o.plane.infra;
    for id in ["guess-blue", "guess-red"] {
        Tenant::without_agent(o, id, &[]).await;
    }
    let manager = Manager::start(o, "manager-guess").await;
    let all = User::of_all(infra, "guess-all");
    for (tenant, status) in [("guess-blue", 503), ("guess-red", 503), ("guess-none", 404)] {
        manager.answers(tenant, "", &all, status).await;
    }
    eventually("each name causes one review, and none again", || async {
        // Nothing is remembered of a new user. The review of its token comes before that of its rights, also for a query with a mistake.
        let user = User::new(infra, &format!("guess-{}", USERS.fetch_add(1, Ordering::Relaxed)));
        let (status, body) = manager.workloads("guess-blue", "?limit=0", &user).await?;
        holds(status == 400, format!("{status}: {body}"))?;
        let (mut calls, mut before) = (Vec::new(), creations(&manager).await?);
        for tenant in ["guess-blue", "guess-red", "guess-none", "guess-never"].repeat(2) {
            let (status, body) = manager.workloads(tenant, "", &user).await?;
            holds(status == 403, format!("{tenant}: {status}: {body}"))?;
            let now = creations(&manager).await?;
            calls.push(now - before);
            before = now;
        }
        // The second time is the control case: a review that isn't made isn't counted. A token is reviewed again after ten seconds,
        // which on a busy machine may be amid these queries.
        holds(calls == [1, 1, 1, 1, 0, 0, 0, 0], format!("{calls:?}"))
    })
    .await;
}

#[tokio::test]
async fn a_new_token_gives_a_user_no_further_queries() {
    /// Fewer tokens than may be reviewed at once, and fewer queries of each than a user may send at once.
    const TOKENS: usize = 16;
    const QUERIES: usize = 39;
    let o = Outrigger::shared().await;
    let infra = &o.plane.infra;
    let t = Tenant::without_agent(o, "many-tokens", &[]).await;
    let manager = Manager::start(o, "manager-tokens").await;
    let [flooder, other] = ["many-tokens", "one-token"].map(|name| User::of(infra, name, &t.namespace));
    for user in [&flooder, &other] {
        manager.answers("many-tokens", "", user, 503).await;
    }
    // Whether one of so many queries with a token was refused because of their number.
    let is_refused = async |user: &User| {
        for _ in 0..QUERIES {
            let answer = manager.workloads("many-tokens", "", user).await;
            if let Ok((429, body)) = answer
                && body.to_string().contains("more than 600 times a minute")
            {
                return true;
            }
        }
        false
    };
    // Control case: they are no more than a user may send.
    assert!(!is_refused(&other.again(infra)).await);
    let tokens: Vec<User> = (0..TOKENS).map(|_| flooder.again(infra)).collect();
    let asked = stream::iter(&tokens).map(is_refused).buffer_unordered(8);
    assert!(asked.any(std::future::ready).await, "each token had queries of its own");
    manager.answers("many-tokens", "", &other, 503).await;
}

/// The sessions that the console serves at once, and those of one user.
const SESSIONS: usize = 256;
const SESSIONS_OF_USER: usize = 4;

/// Whether a session goes on. The script is sent to sessions only, and nothing is read for it.
async fn goes_on(session: &LoggedIn<'_>) -> bool {
    let (status, body) = session.page("/console.js").await;
    assert!([200, 401].contains(&status), "{status}: {body}");
    status == 200
}

#[tokio::test(flavor = "multi_thread")]
async fn the_service_accounts_of_a_namespace_take_no_place_in_the_console_from_others() {
    let _alone = alone().await;
    let o = Outrigger::shared().await;
    let infra = &o.plane.infra;
    let [many, few] =
        [Tenant::without_agent(o, "seats-many", &[]).await, Tenant::without_agent(o, "seats-few", &[]).await];
    let console = ServedConsole::start(o, "console-seats").await;
    let accounts: Vec<String> = (0..=SESSIONS / SESSIONS_OF_USER).map(|n| format!("seat-{n}")).collect();
    let objects: Vec<_> = accounts.iter().map(|name| account(&many.namespace, name)).collect();
    infra.apply(&objects).unwrap();
    // Each account logs in from an address of its own: logins of an address are bounded too.
    let login = async |n: usize, token: &str| {
        let address = Ipv4Addr::new(127, 0, 1, u8::try_from(n + 1).unwrap());
        console.login_from(address, token, &many.namespace).await
    };
    let mut sessions = Vec::new();
    for (n, name) in accounts.iter().enumerate().take(SESSIONS / SESSIONS_OF_USER) {
        let token = infra.token(&many.namespace, name).unwrap();
        for _ in 0..SESSIONS_OF_USER {
            sessions.push(login(n, &token).await);
        }
    }
    // Control case: all places are taken, and no session has ended.
    let count =
        async || Outrigger::metric(console.admin, "outrigger_console_sessions", "").await.unwrap() as usize;
    assert_eq!((sessions.len(), count().await), (SESSIONS, SESSIONS));
    for session in sessions.iter().skip(1) {
        assert!(goes_on(session).await);
    }

    let user = console.login(&reader(o, &few.namespace, "seat"), &few.namespace).await;
    assert_eq!((goes_on(&user).await, count().await), (true, SESSIONS));
    assert!(!goes_on(&sessions[0]).await, "the one that was idle longest ends");
    assert!(goes_on(&sessions[1]).await);
    // A further account of the namespace takes the place of another one of it.
    let last = accounts.len() - 1;
    let further = login(last, &infra.token(&many.namespace, &accounts[last]).unwrap()).await;
    assert_eq!((goes_on(&user).await, goes_on(&further).await, count().await), (true, true, SESSIONS));
    assert!(!goes_on(&sessions[2]).await);
    user.shows("/rules", "seats-few").await;
}
