//! Pages that change by themselves, and what they say when something is away.

use outrigger_tests::browser::Browser;
use outrigger_tests::faults::wire::{Network, Wire};
use outrigger_tests::outrigger::Outrigger;
use serde_json::json;

use crate::console::stage::{Console, flag, port, tenant, through};

/// Marks the page, so that it is noticed if it is loaded again.
async fn mark(browser: &Browser) {
    browser.run("window.marked = true").await;
}

async fn is_marked(browser: &Browser) {
    assert_eq!(browser.run("return window.marked").await, true, "the page was loaded again");
}

#[tokio::test]
async fn a_change_in_the_cluster_appears_in_the_page_by_itself() {
    let o = Outrigger::shared().await;
    let t = tenant(o, "live").await;
    let console = Console::of(o).await;
    let browser = &console.browser;
    console.shows("/companions?tenant=live", &["● live", "2 found"]).await;
    mark(browser).await;
    t.start("shop-3", "host-a", json!({"app": "web"})).await;
    browser.shows(&["3 found", "/shop-3"]).await;
    t.end("shop-1").await;
    browser.shows(&["2 found"]).await;
    browser.hides("/shop-1").await;
    is_marked(browser).await;
    assert_eq!(browser.complaints().await, [""; 0]);
    // It doesn't take away what is typed into the form.
    console.shows("/what-if", &["● live"]).await;
    browser.run("document.querySelector('textarea').value = 'half a rule'").await;
    let before = browser.run("return document.querySelector('textarea').value").await;
    t.start("shop-4", "host-a", json!({"app": "web"})).await;
    console.browser.run("return new Promise((done) => new EventSource('/events').addEventListener('reading', done)).then(() => 0)").await;
    assert_eq!(browser.run("return document.querySelector('textarea').value").await, before);
}

#[tokio::test]
async fn an_api_server_that_is_away_is_named_and_the_last_state_stays() {
    let o = Outrigger::shared().await;
    let t = tenant(o, "away").await;
    let plane = &o.plane;
    let infra = Wire::start(port(&plane.infra.server)).unwrap();
    let own = Wire::start(port(&plane.tenant.server)).unwrap();
    let file = |name: &str| plane.dir.join(format!("console-away-{name}.kubeconfig"));
    let infra_file = through(&plane.infra.kubeconfig, infra.port, file("infra"));
    let tenant_file = through(&plane.tenant.kubeconfig, own.port, file("tenant"));
    let console = Console::start(o, &infra_file, &tenant_file).await;
    let browser = &console.browser;
    let workload = format!("/chain?tenant=away&workload={}/shop-1", t.source);
    console.shows(&workload, &["fits", "firewall"]).await;
    own.set(Network::Cut);
    browser.hides("fits").await;
    let text = browser.shows(&["pods of the tenant's cluster (", "console-away-tenant.kubeconfig): "]).await;
    assert!(text.contains("● live"), "the console itself is there: {text}");
    own.set(Network::Open);
    browser.shows(&["fits", "firewall"]).await;

    console.shows("/companions?tenant=away", &["● live", "2 found"]).await;
    mark(browser).await;
    for network in [Network::Cut, Network::BlackHole] {
        infra.set(network);
        let text = browser.shows(&["The cluster could not be read: "]).await;
        assert!(text.contains("2 found") && text.contains("As of "), "the last state is shown: {text}");
        infra.set(Network::Open);
        browser.hides("The cluster could not be read").await;
    }
    t.start("shop-3", "host-a", json!({"app": "web"})).await;
    browser.shows(&["3 found"]).await;
    is_marked(browser).await;
    // A console that starts while it is away has nothing to show yet, and says so.
    infra.set(Network::Cut);
    let late = Console::start(o, &infra_file, &tenant_file).await;
    late.browser.shows(&["The cluster could not be read: "]).await;
    infra.set(Network::Open);
    late.browser.shows(&["installation ("]).await;
}

#[tokio::test]
async fn an_agent_that_is_away_is_seen_at_its_tenant() {
    let o = Outrigger::shared().await;
    let _t = tenant(o, "served").await;
    let console = Console::of(o).await;
    let browser = &console.browser;
    console.shows("/tenants?tenant=served", &["connected since"]).await;
    mark(browser).await;
    o.plane.command("stop agent-served").unwrap();
    browser.shows(&["lost since"]).await;
    o.plane.command("start agent-served").unwrap();
    browser.shows(&["connected since"]).await;
    is_marked(browser).await;
}

#[tokio::test]
async fn a_console_that_is_away_is_named_and_the_last_state_stays() {
    let o = Outrigger::shared().await;
    let _t = tenant(o, "ended").await;
    let args = [flag("kubeconfig", &o.plane.infra.kubeconfig)];
    let mut console = Console::with(o, &args).await;
    console.shows("/companions?tenant=ended", &["● live", "2 found"]).await;
    console.kill();
    let text = console.browser.shows(&["○ not connected"]).await;
    assert!(text.contains("2 found"), "{text}");
}
