//! The view of workloads: what managers know, asked with the user's own token.

use outrigger_tests::browser::{DESK, PHONE};
use outrigger_tests::console::administrator;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::queries::{Manager, User};
use outrigger_tests::stream::update;
use outrigger_tests::tenant::{Tenant, rule_for};
use serde_json::json;

use crate::console::stage::{Console, flag};
use crate::console::views::{TOO_WIDE, View, looked_at};

#[tokio::test]
async fn workloads_without_companions_are_shown_and_a_manager_that_is_killed_is_named() {
    const MANY: usize = 120;
    let o = Outrigger::shared().await;
    let infra = &o.plane.infra;
    let t = Tenant::without_agent(o, "known", &[("a", 0)]).await;
    let other = Tenant::without_agent(o, "foreign", &[("a", 0)]).await;
    let manager = Manager::start(o, "manager-known").await;
    t.rule("web", rule_for("app", "web")).await;
    let mut idle = update("idle", &t.node("a"));
    idle.workload_state.as_mut().unwrap().extra.clear();
    let many: Vec<String> = (0..MANY).map(|n| format!("web-{n:03}")).collect();
    let mut all = t.on_a(&many.iter().map(String::as_str).collect::<Vec<_>>());
    all.push(idle);
    let _stream = t.is_served_at(manager.grpc, all).await;
    let _other = other.is_served_at(manager.grpc, other.on_a(&["secret"])).await;
    // A user who may ask about the tenant's workloads, and may do nothing else.
    let user = User::of(infra, "console-known", &t.namespace);
    manager.answers("known", "?cause=NoDPU", &user, 200).await;
    let file = o.plane.dir.join("console-known.kubeconfig");
    infra.service_account("default", "console-known", &file).unwrap();
    let console = Console::with(o, &[&[flag("kubeconfig", &file)], &manager.flags()[..]].concat()).await;
    let browser = &console.browser;

    console.shows("/workloads", &["Name the tenant in the filter"]).await;
    let text = console.shows("/workloads?tenant=known", &["knows 121.", "100 on this page", "Next"]).await;
    assert!(text.contains("default/idle") && text.contains("none: no rule matches"), "{text}");
    assert!(text.contains("NoDPU, rule web"), "{text}");
    assert_eq!(browser.findings().await, [""; 0]);
    // What the user may not read is named in long words.
    browser.screen(PHONE).await;
    assert_eq!(browser.run(TOO_WIDE).await, json!([]));
    browser.screen(DESK).await;
    browser.run("Array.from(document.querySelectorAll('.pages a')).at(-1).click()").await;
    let text = browser.shows(&["21 on this page", "First page"]).await;
    assert!(text.contains("default/web-119") && !text.contains("default/idle"), "{text}");
    let text = console.shows("/workloads?tenant=known&text=idle", &["1 on this page"]).await;
    assert!(text.contains("default/idle") && !text.contains("default/web-000"), "{text}");
    console.shows("/workloads?tenant=known&cause=NoDPU&text=idle", &["0 on this page"]).await;
    console
        .shows("/workloads?tenant=known&cause=Wrong", &["cause: is \"Wrong\"; use one of the reasons"])
        .await;

    // Of another tenant it sees nothing.
    let text = console.shows("/workloads?tenant=foreign", &["may not list workloads.outrigger.dev"]).await;
    assert!(!text.contains("secret"), "{text}");

    console.shows("/workloads?tenant=known", &["● live", "100 on this page"]).await;
    o.plane.command("stop manager-known").unwrap();
    let text = browser.shows(&["The managers can't be reached at https://127.0.0.1:"]).await;
    assert!(!text.contains("default/idle"), "what is no longer known isn't shown: {text}");
}

#[tokio::test]
async fn workloads_are_read_as_every_view_is() {
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "green", &[("a", 1), ("b", 0)]).await;
    let manager = Manager::start(o, "manager-green").await;
    t.rule("firewall", rule_for("app", "web")).await;
    let mut idle = update("idle", &t.node("a"));
    idle.workload_state.as_mut().unwrap().extra.clear();
    let on = |name: &str, host: &str| update(name, &t.node(host));
    let _stream = t.is_served_at(manager.grpc, vec![on("shop-1", "a"), on("shop-2", "b"), idle]).await;
    administrator(o, "console-green");
    let file = o.plane.dir.join("console-green.kubeconfig");
    o.plane.infra.service_account("default", "console-green", &file).unwrap();
    let console = Console::with(o, &[&[flag("kubeconfig", &file)], &manager.flags()[..]].concat()).await;
    let words = ["knows 3.", "default/shop-1", "● Ready", "NoDPU", "none: no rule matches"];
    let view = View::new("known", "/workloads?tenant=green".to_owned(), "Workloads", &words);
    looked_at(&console, &view, async || {}).await;
}

#[tokio::test]
async fn a_console_that_asks_no_managers_says_how_it_would() {
    let o = Outrigger::shared().await;
    let console = Console::of(o).await;
    console.shows("/workloads?tenant=known", &["Managers aren't asked", "--manager-queries"]).await;
    assert_eq!(console.browser.findings().await, [""; 0]);
}
