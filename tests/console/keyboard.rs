//! The console without a mouse.

use std::time::{Duration, Instant};

use outrigger_tests::browser::{Browser, ENTER, SHIFT, TAB};
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::tenant::rule;
use outrigger_tests::{eventually, holds, within};
use serde_json::{Value, json};

use crate::console::stage::{Console, tenant};

/// What can have the focus, in the order of the page.
const FOCUSABLE: &str =
    "const focusable = Array.from(document.querySelectorAll('a[href], input, button, textarea, [tabindex]'))
    .filter((one) => one.tabIndex >= 0 && !one.disabled);";

/// How many can have the focus, when no more are added: the page is read again every second, and may show more each time until it has
/// all.
async fn focusable(browser: &Browser) -> i64 {
    let script = format!("{FOCUSABLE} return focusable.length");
    let count = async || browser.run(&script).await.as_i64().unwrap();
    eventually("the page has all", || async {
        let before = count().await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let now = count().await;
        holds(now == before, format!("{before} and then {now}")).map(|()| now)
    })
    .await
}

/// What has the focus: its number in the order of the page, whether readers see that it has, and whether they see it.
async fn focused(browser: &Browser) -> (i64, bool, bool) {
    let script = format!(
        "{FOCUSABLE}
        const one = document.activeElement, style = getComputedStyle(one), box = one.getBoundingClientRect();
        return [focusable.indexOf(one), style.outlineStyle === 'solid' && parseFloat(style.outlineWidth) >= 2,
            box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth]"
    );
    let now = browser.run(&script).await;
    (now[0].as_i64().unwrap(), now[1] == true, now[2] == true)
}

/// Presses Tab until a link, button or field with this text or name has the focus.
async fn tab_to(browser: &Browser, wanted: &str) {
    for _ in 0..100 {
        browser.press([TAB]).await;
        let name = "const one = document.activeElement; return one.name || one.innerText";
        if browser.run(name).await == wanted {
            return;
        }
    }
    panic!("Tab doesn't reach {wanted:?}: {}", browser.text().await);
}

#[tokio::test]
#[ignore = "long"]
async fn tab_reaches_everything_in_the_order_of_the_page_and_shows_where_it_is() {
    let o = Outrigger::shared().await;
    let t = tenant(o, "keys").await;
    let console = Console::of(o).await;
    let browser = &console.browser;
    // The tenant's cluster is shared, so the Pods of other tests are workloads too; those come and go while the page is read.
    let workloads = format!("/chain?tenant=keys&text={}", t.source);
    let workload = format!("/chain?tenant=keys&workload={}/shop-1", t.source);
    for (path, words) in [
        ("/", "installation ("),
        ("/missing?tenant=keys", "NoDPU"),
        ("/companions?tenant=keys", "2 found"),
        (&workloads, "3 found"),
        ("/workloads?tenant=keys", "Managers aren't asked"),
        (&workload, "fits"),
        ("/hosts?tenant=keys", "2 found"),
        ("/tenants?tenant=keys", "Accepted=True"),
        ("/rules?tenant=keys", "2 found"),
        ("/what-if", "Nothing is applied"),
    ] {
        // The first page shows the tenants of other tests too, and rows that come above what has the focus move it out of the window. No
        // other page has anything of theirs.
        let patience = Duration::from_secs(if path == "/" { 90 } else { 0 });
        within(Instant::now(), patience, &format!("Tab reaches everything of {path}"), async || {
            console.shows(path, &[words]).await;
            // What is read again must not take the focus away.
            let count = focusable(browser).await;
            holds(count > 8, format!("only {count} can have the focus"))?;
            for expected in 0..count.min(25) {
                browser.press([TAB]).await;
                let found = focused(browser).await;
                holds(found == (expected, true, true), format!("{found:?}, not {expected}"))?;
            }
            browser.press([SHIFT, TAB]).await;
            let found = focused(browser).await.0;
            holds(found == count.min(25) - 2, format!("Shift+Tab goes back to {found} of {count}"))
        })
        .await;
    }
}

#[tokio::test]
#[ignore = "long"]
async fn enter_skips_to_the_content_opens_views_filters_and_predicts() {
    let o = Outrigger::shared().await;
    let t = tenant(o, "enter").await;
    let console = Console::of(o).await;
    let browser = &console.browser;
    console.shows("/companions?tenant=enter", &["2 found"]).await;
    browser.press([TAB]).await;
    browser.press([ENTER]).await;
    browser.press([TAB]).await;
    let inside = "return document.querySelector('main').contains(document.activeElement)";
    assert_eq!(browser.run(inside).await, true, "the list of views is skipped");
    // The first field is the one for names.
    assert_eq!(browser.run("return document.activeElement.name").await, "text");
    browser.press("shop-2".chars()).await;
    browser.press([ENTER]).await;
    browser.shows(&["1 found"]).await;
    assert_eq!(console.path().await, "/companions?text=shop-2&tenant=enter&cause=");
    tab_to(browser, &format!("{}/shop-2", t.source)).await;
    browser.press([ENTER]).await;
    browser.shows(&["no DPU for host"]).await;
    assert!(console.path().await.starts_with("/chain?"), "{}", console.path().await);
    tab_to(browser, "What if").await;
    browser.press([ENTER]).await;
    browser.shows(&["Nothing is applied"]).await;
    tab_to(browser, "tenant").await;
    browser.press("enter".chars()).await;
    tab_to(browser, "rules").await;
    let mut more = outrigger_tests::tenant::rule_for("app", "web");
    more["workloadInfoInject"] = Value::Array(Vec::new());
    browser.press(rule(&t.namespace, "typed", more).to_string().chars()).await;
    // Tab leaves the field, as everywhere else.
    tab_to(browser, "Predict").await;
    browser.press([ENTER]).await;
    browser.shows(&["What would happen", "typed: ● created"]).await;
}

#[tokio::test]
#[ignore = "long"]
async fn the_focus_stays_where_it_is_when_the_page_is_read_again() {
    let o = Outrigger::shared().await;
    let t = tenant(o, "focus").await;
    let console = Console::of(o).await;
    let browser = &console.browser;
    console.shows("/companions?tenant=focus", &["2 found"]).await;
    let link = format!("{}/shop-1", t.source);
    tab_to(browser, &link).await;
    t.start("shop-3", "host-a", json!({"app": "web"})).await;
    browser.shows(&["3 found"]).await;
    eventually("the link has the focus again", || async {
        let now = browser.run("return document.activeElement.innerText").await;
        holds(now == *link, now.to_string())
    })
    .await;
    // A table that is read by its own keys keeps them too.
    browser.run("document.querySelector('.table').focus()").await;
    t.end("shop-3").await;
    browser.shows(&["2 found"]).await;
    let region = browser.run("return document.activeElement.className").await;
    assert_eq!(region, "table");
    // Each host's row has a link to the same tenant.
    console.shows("/hosts?tenant=focus", &["2 found", "1/1"]).await;
    let links =
        "const links = Array.from(document.querySelectorAll('#rows a[href=\"/tenants?tenant=focus\"]'));";
    browser.run(&format!("{links} links[1].focus()")).await;
    t.start("shop-4", "host-a", json!({"app": "web"})).await;
    browser.shows(&["2/2"]).await;
    let now =
        browser.run(&format!("{links} return [links.length, links.indexOf(document.activeElement)]")).await;
    assert_eq!(now, json!([2, 1]), "the second of the two links keeps the focus");
}
