//! Queries about workloads: who gets an answer, and what is in it.

use std::collections::BTreeMap;
use std::time::Duration;

use outrigger_proto::v1::workload_stream_request::Message;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::queries::{Manager, User};
use outrigger_tests::stream::update;
use outrigger_tests::tenant::{Tenant, rule_for};
use outrigger_tests::{eventually, holds};
use serde_json::{Value, json};

/// The ids of a page.
fn ids(page: &Value) -> Vec<String> {
    let rows = page["workloads"].as_array().unwrap();
    rows.iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_user_of_a_tenant_sees_its_workloads_and_nothing_of_another() {
    let o = Outrigger::shared().await;
    let infra = &o.plane.infra;
    let blue = Tenant::without_agent(o, "query-blue", &[("a", 0)]).await;
    let red = Tenant::without_agent(o, "query-red", &[("a", 0)]).await;
    let manager = Manager::start(o, "manager-queries").await;
    blue.rule("web", rule_for("app", "web")).await;
    let _blue = blue.is_served_at(manager.grpc, blue.on_a(&["one", "two"])).await;
    let _red = red.is_served_at(manager.grpc, red.on_a(&["secret"])).await;
    let user = User::of(infra, "query-blue", &blue.namespace);
    let all = User::of_all(infra, "query-all");
    let nobody = User::new(infra, "query-nobody");

    let row = eventually("the page has the cause", || async {
        let (status, page) = manager.workloads("query-blue", "", &user).await?;
        let row = page["workloads"][0].clone();
        holds(status == 200 && row["companions"][0]["cause"] == "NoDPU", format!("{status}: {page}"))
            .map(|()| row)
    })
    .await;
    let fields = ["id", "namespace", "name", "node"].map(|field| row[field].as_str().unwrap().to_owned());
    assert_eq!(fields, ["one", "default", "one", &blue.node("a")]);
    let companion = &row["companions"][0];
    assert_eq!((&companion["rule"], &companion["state"]), (&json!("web"), &json!("NoDPU")), "{row}");
    let page = manager.answers("query-blue", "", &user, 200).await;
    assert_eq!(ids(&page), ["one", "two"]);
    assert_eq!(
        (&page["tenant"], &page["known"], page.get("continue")),
        (&json!("query-blue"), &json!(2), None)
    );
    assert_eq!(ids(&manager.answers("query-blue", "?text=two", &user, 200).await), ["two"]);
    assert_eq!(ids(&manager.answers("query-blue", "?cause=NoDPU", &user, 200).await), ["one", "two"]);
    assert_eq!(ids(&manager.answers("query-blue", "?cause=Starting", &user, 200).await), [""; 0]);
    let wrong = manager.answers("query-blue", "?limit=0", &user, 400).await;
    assert!(wrong["message"].as_str().unwrap().starts_with("limit: is \"0\""), "{wrong}");

    // A user who asks about another's tenant gets the same message as for a tenant that doesn't exist.
    let red = manager.answers("query-red", "", &user, 403).await;
    let none = manager.answers("query-none", "", &user, 403).await;
    assert_eq!(red.to_string().replace("query-red", "T"), none.to_string().replace("query-none", "T"));
    assert!(!red.to_string().contains("secret"), "{red}");
    manager.answers("Not_A_Name", "", &user, 403).await;
    for tenant in ["query-blue", "query-red", "query-none"] {
        manager.answers(tenant, "", &nobody, 403).await;
    }
    assert_eq!(ids(&manager.answers("query-red", "", &all, 200).await), ["secret"]);
    manager.answers("query-none", "", &all, 404).await;

    // Without a token that the API server accepts, nobody is known.
    let path = "/v1/tenants/query-blue/workloads";
    let forged = format!("{}x", user.token);
    for token in [None, Some("x"), Some(forged.as_str())] {
        let (status, body) = manager.ask(path, token).await.unwrap();
        assert_eq!(status, 401, "{token:?}: {body}");
        assert!(body.get("workloads").is_none(), "{body}");
    }
    assert_eq!(manager.ask("/", Some(&user.token)).await.unwrap().0, 404);
    let metrics = Outrigger::metrics_of(manager.admin).await.unwrap();
    for outcome in ["Answered", "Invalid", "NotAccepted", "Forbidden", "NotFound"] {
        assert!(
            metrics.contains(&format!("outrigger_query_seconds_count{{outcome=\"{outcome}\"}}")),
            "{outcome}"
        );
    }
    // No token is in a log.
    let log = std::fs::read_to_string(o.plane.log("manager-queries")).unwrap();
    for token in [&user.token, &all.token, &nobody.token] {
        assert!(!log.contains(token.as_str()));
    }
}

#[tokio::test]
async fn a_right_that_is_taken_away_and_a_token_that_ends_are_noticed() {
    let o = Outrigger::shared().await;
    let infra = &o.plane.infra;
    let t = Tenant::without_agent(o, "query-ends", &[("a", 0)]).await;
    let manager = Manager::start(o, "manager-queries-ends").await;
    let _stream = t.is_served_at(manager.grpc, t.on_a(&["one"])).await;
    let (deprived, deleted) =
        (User::of(infra, "query-deprived", &t.namespace), User::of(infra, "query-deleted", &t.namespace));
    for user in [&deprived, &deleted] {
        assert_eq!(ids(&manager.answers("query-ends", "", user, 200).await), ["one"]);
    }
    deprived.deprive(infra, &t.namespace);
    deleted.delete(infra);
    manager.answers("query-ends", "", &deprived, 403).await;
    manager.answers("query-ends", "", &deleted, 401).await;
}

#[tokio::test]
async fn a_replica_that_does_not_serve_the_tenant_names_the_one_that_does() {
    let o = Outrigger::shared().await;
    let infra = &o.plane.infra;
    let t = Tenant::without_agent(o, "query-two", &[("a", 0)]).await;
    let one = Manager::start(o, "manager-queries-one").await;
    let two = Manager::start(o, "manager-queries-two").await;
    let user = User::of(infra, "query-two", &t.namespace);
    let lost = one.answers("query-two", "", &user, 503).await;
    assert!(lost["message"].as_str().unwrap().contains("is not connected"), "{lost}");
    let _stream = t.is_served_at(one.grpc, t.on_a(&["one"])).await;
    let page = one.answers("query-two", "", &user, 200).await;
    let elsewhere = two.answers("query-two", "", &user, 421).await;
    let replica = page["replica"].as_str().unwrap();
    assert!(
        elsewhere["message"].as_str().unwrap().contains(&format!("replica {replica} serves")),
        "{elsewhere}"
    );
}

#[tokio::test]
async fn the_pages_have_every_workload_while_others_come_and_go() {
    const STEADY: usize = 1200;
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "query-pages", &[("a", 0)]).await;
    let manager = Manager::start(o, "manager-queries-pages").await;
    let user = User::of(&o.plane.infra, "query-pages", &t.namespace);
    let steady: Vec<String> = (0..STEADY).map(|n| format!("steady-{n:04}")).collect();
    let node = t.node("a");
    let all = steady.iter().map(|id| update(id, &node)).collect();
    let (sender, _call) = t.is_served_at(manager.grpc, all).await;
    let node = t.node("a");
    let churn = tokio::spawn(async move {
        for n in 0.. {
            let id = format!("steady-{:04}-{}", (n * 37) % STEADY, n % 5);
            if sender.send(Message::WorkloadUpdate(update(&id, &node))).await.is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    manager.answers("query-pages", "", &user, 200).await;
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut query = "?limit=100".to_owned();
    loop {
        let page = manager.answers("query-pages", &query, &user, 200).await;
        let ids = ids(&page);
        assert!(ids.len() <= 100);
        for id in ids {
            *seen.entry(id).or_default() += 1;
        }
        let Some(next) = page["continue"].as_str() else { break };
        query = format!("?limit=100&continue={next}");
    }
    churn.abort();
    let wrong: Vec<_> = steady.iter().filter(|id| seen.get(*id) != Some(&1)).collect();
    assert!(wrong.is_empty(), "not on exactly one page: {wrong:?}");
    assert!(seen.values().all(|times| *times == 1), "{seen:?}");
}

#[tokio::test]
async fn a_flood_of_queries_is_refused_and_another_user_is_answered() {
    let o = Outrigger::shared().await;
    let infra = &o.plane.infra;
    let t = Tenant::without_agent(o, "query-flood", &[("a", 0)]).await;
    let manager = Manager::start(o, "manager-queries-flood").await;
    let _stream = t.is_served_at(manager.grpc, t.on_a(&["one"])).await;
    let (flooder, other) =
        (User::of(infra, "query-flooder", &t.namespace), User::of(infra, "query-other", &t.namespace));
    for user in [&flooder, &other] {
        manager.answers("query-flood", "", user, 200).await;
    }
    let mut statuses: BTreeMap<u16, usize> = BTreeMap::new();
    for _ in 0..20 {
        let asked = (0..100).map(|_| manager.workloads("query-flood", "", &flooder));
        for (status, _) in futures::future::join_all(asked).await.into_iter().flatten() {
            *statuses.entry(status).or_default() += 1;
        }
        if statuses.contains_key(&429) {
            break;
        }
    }
    assert!(statuses.keys().all(|status| [200, 429].contains(status)), "{statuses:?}");
    assert!(statuses.contains_key(&429), "{statuses:?}");
    manager.answers("query-flood", "", &other, 200).await;

    // Tokens that nobody has: reviews of the address run out, and come back.
    let mut statuses: BTreeMap<u16, usize> = BTreeMap::new();
    for n in 0..200 {
        let token = format!("nobody-{n}");
        let (status, _) = manager.ask("/v1/tenants/query-flood/workloads", Some(&token)).await.unwrap();
        *statuses.entry(status).or_default() += 1;
        if status == 429 {
            break;
        }
    }
    assert!(statuses.contains_key(&401) && statuses.contains_key(&429), "{statuses:?}");
    manager.answers("query-flood", "", &other, 200).await;
}
