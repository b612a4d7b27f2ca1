//! `outrigger console-server` on a real cluster: users log in with tokens and see what these allow.

use std::net::Ipv4Addr;

use http_body_util::BodyExt;
use outrigger_runtime::metrics::Server;
use outrigger_tests::console::{ServedConsole, administrator, reader};
use outrigger_tests::openmetrics::parse;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::queries::{Manager, User};
use outrigger_tests::stream::update;
use outrigger_tests::tenant::{Tenant, rule_for};
use outrigger_tests::{eventually, holds};

use crate::e2e::operation::compare;

const HERE: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// Every page.
const PAGES: [&str; 9] =
    ["/", "/missing", "/companions", "/workloads", "/chain", "/hosts", "/tenants", "/rules", "/what-if"];

#[tokio::test]
async fn users_of_two_tenants_walk_every_route_and_find_nothing_of_each_other() {
    let o = Outrigger::shared().await;
    let (mut names, mut tenants) = (Vec::new(), Vec::new());
    for id in ["served-blue", "served-red"] {
        let t = Tenant::new(o, id, &[("a", 1)]).await;
        t.rule(&format!("rule-{id}"), rule_for("app", "web")).await;
        t.web("web").await;
        t.ready(1).await;
        let companion = t.companions().await.unwrap()[0].metadata.name.clone().unwrap();
        names.push([t.namespace.clone(), format!("rule-{id}"), companion, t.node("a")]);
        tenants.push(t);
    }
    let console = ServedConsole::start(o, "console-served").await;
    // Without a session there is nothing.
    for path in PAGES {
        assert_eq!(console.get(HERE, path, "").await, (303, String::new()), "{path}");
    }
    for path in ["/events", "/console.js"] {
        assert_eq!(console.get(HERE, path, "").await.0, 401, "{path}");
    }
    for (own, other) in [(&names[0], &names[1]), (&names[1], &names[0])] {
        let user = console.login(&reader(o, &own[0], &format!("user-{}", own[0])), &own[0]).await;
        for shown in &own[1..3] {
            let path = if shown == &own[1] { "/rules" } else { "/companions" };
            user.shows(path, shown).await;
        }
        for path in PAGES {
            for query in ["", "?tenant=served-blue", "?tenant=served-red", "?workload=default%2Fweb"] {
                let (status, page) = user.page(&format!("{path}{query}")).await;
                assert_eq!(status, 200, "{path}{query}: {page}");
                for what in other {
                    assert!(!page.contains(what.as_str()), "{path}{query} shows {what}: {page}");
                }
            }
        }
        let answer = console.post(HERE, "/what-if", &user.cookie, "tenant=served-red&rules=x").await;
        let page = answer.into_body().collect().await.unwrap().to_bytes();
        let page = String::from_utf8_lossy(&page).into_owned();
        assert!(!other.iter().any(|what| page.contains(what.as_str())), "{page}");
    }
    let all = console.login(&administrator(o, "console-admin"), "").await;
    for own in &names {
        all.shows("/companions", &own[2]).await;
    }
}

#[tokio::test]
async fn users_see_the_workloads_that_managers_know_and_whether_a_manager_serves_a_tenant() {
    let o = Outrigger::shared().await;
    let infra = &o.plane.infra;
    let blue = Tenant::without_agent(o, "asked-blue", &[("a", 0)]).await;
    let red = Tenant::without_agent(o, "asked-red", &[("a", 0)]).await;
    let manager = Manager::start(o, "manager-asked").await;
    blue.rule("web", rule_for("app", "web")).await;
    let mut idle = update("idle-blue", &blue.node("a"));
    idle.workload_state.as_mut().unwrap().extra.clear();
    let own = [blue.on_a(&["web-blue"]), vec![idle]].concat();
    let _streams = [
        blue.is_served_at(manager.grpc, own).await,
        red.is_served_at(manager.grpc, red.on_a(&["web-red"])).await,
    ];
    let users =
        [("asked-blue", &blue), ("asked-red", &red)].map(|(name, t)| User::of(infra, name, &t.namespace));
    let console = ServedConsole::with(o, "console-asked", &manager.flags()).await;
    let first = console.login(&users[0].token, &blue.namespace).await;
    let page = first.shows("/workloads?tenant=asked-blue", "default/web-blue").await;
    assert!(page.contains("default/idle-blue") && page.contains("none: no rule matches"), "{page}");
    let second = console.login(&users[1].token, &red.namespace).await;
    second.shows("/workloads?tenant=asked-red", "default/web-red").await;
    for (user, other, secret) in [(&first, "asked-red", "web-red"), (&second, "asked-blue", "web-blue")] {
        let page =
            user.shows(&format!("/workloads?tenant={other}"), "may not list workloads.outrigger.dev").await;
        assert!(!page.contains(secret), "{page}");
    }
    // What the Tenant says of its stream was written before the manager was killed, and stays.
    let all = console.login(&administrator(o, "asked-admin"), "").await;
    all.shows("/tenants?tenant=asked-blue", "served</span> by manager").await;
    o.plane.command("stop manager-asked").unwrap();
    let page = all.shows("/tenants?tenant=asked-blue", "no manager answers").await;
    assert!(page.contains("connected since"), "{page}");
    first.shows("/workloads?tenant=asked-blue", "can't be reached at https://127.0.0.1:").await;
    let families = eventually("the table of metrics is what is shown", || async {
        let text = Outrigger::metrics_of(console.admin).await?;
        let families = parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        compare(Server::Console, &families).map(|()| families)
    })
    .await;
    let sum = |name: &str, suffix: &str, labels: &[(&str, &str)]| families[name].sum(suffix, labels);
    let answered = [("route", "Workloads"), ("outcome", "Answered")];
    assert!(sum("outrigger_console_requests", "_total", &answered) >= 5.0);
    for outcome in ["Answered", "Refused", "Unreachable"] {
        assert!(sum("outrigger_console_queries", "_total", &[("outcome", outcome)]) >= 1.0, "{outcome}");
    }
    assert!((sum("outrigger_console_sessions", "", &[]) - 3.0).abs() < 0.5);
    let log = std::fs::read_to_string(o.plane.log("console-asked")).unwrap();
    assert!(users.iter().all(|user| !log.contains(&user.token)), "no token is in a log");
}

#[tokio::test]
async fn a_session_ends_with_its_token() {
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "served-ends", &[]).await;
    let console = ServedConsole::start(o, "console-ends").await;
    let token = reader(o, &t.namespace, "console-ends-user");
    let user = console.login(&token, &t.namespace).await;
    user.shows("/", "console-ends-user").await;
    let mut events = user.events().await;
    o.plane.infra.kubectl(&["delete", "serviceaccount", "console-ends-user", "-n", &t.namespace]).unwrap();
    eventually("the session ends", || async {
        let (status, page) = user.page("/").await;
        holds(status == 303, format!("{status}: {page}"))
    })
    .await;
    // The stream of events has ended, or ends now.
    while let Some(frame) = events.frame().await {
        frame.unwrap();
    }
    let answer = console.post(HERE, "/login", "", &format!("token={token}")).await;
    assert_eq!(answer.status(), 401, "the token is no longer accepted");
    let log = std::fs::read_to_string(o.plane.log("console-ends")).unwrap();
    assert!(!log.contains(&token) && log.contains("user logged in"), "{log}");
}

#[tokio::test]
async fn a_right_that_is_taken_away_takes_the_rows_away_and_one_that_is_given_shows_them() {
    let o = Outrigger::shared().await;
    let infra = &o.plane.infra;
    let t = Tenant::new(o, "served-rights", &[("a", 1)]).await;
    t.rule("kept", rule_for("app", "web")).await;
    t.web("web").await;
    t.ready(1).await;
    let name = t.companions().await.unwrap()[0].metadata.name.clone().unwrap();
    let console = ServedConsole::start(o, "console-rights").await;
    let token = reader(o, &t.namespace, "rights-user");
    let user = console.login(&token, &t.namespace).await;
    let own = format!("pods: only those of the namespace {} are read", t.namespace);
    let page = user.shows("/companions", &name).await;
    assert!(page.contains(&own), "{page}");
    // The watches are open, and the API server doesn't end them.
    infra.kubectl(&["delete", "rolebinding", "rights-user", "-n", &t.namespace]).unwrap();
    eventually("nothing is shown", || async {
        let [companions, rules] = [user.page("/companions").await.1, user.page("/rules").await.1];
        let hidden = !companions.contains(&name) && !rules.contains("kept");
        holds(hidden && companions.contains("is forbidden"), companions)
    })
    .await;
    let subject = format!("--serviceaccount={}:rights-user", t.namespace);
    infra
        .kubectl(&["create", "clusterrolebinding", "rights-user", "--clusterrole=cluster-admin", &subject])
        .unwrap();
    eventually("everything is shown", || async {
        let (status, page) = user.page("/companions").await;
        holds(status == 200 && page.contains(&name) && !page.contains("Not visible"), page)
    })
    .await;
    infra.kubectl(&["delete", "clusterrolebinding", "rights-user"]).unwrap();
    eventually("nothing is shown again", || async {
        let page = user.page("/companions").await.1;
        holds(!page.contains(&name) && page.contains("nodes is forbidden"), page)
    })
    .await;
}
