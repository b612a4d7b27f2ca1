//! Every view: on a desk and on a phone, light and dark, and as screen readers get it.

use std::collections::BTreeSet;

use outrigger_tests::browser::{Browser, DESK, PHONE, Scheme};
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::tenant::{Tenant, rule, rule_for};
use serde_json::{Value, json};

use crate::console::pictures;
use crate::console::stage::{Console, tenant};

/// A view: its name in files, its path, its heading, and words that it shows in the end.
pub(crate) struct View {
    name: &'static str,
    path: String,
    title: &'static str,
    words: Vec<String>,
}

impl View {
    pub(crate) fn new(name: &'static str, path: String, title: &'static str, words: &[&str]) -> Self {
        Self { name, path, title, words: words.iter().map(|word| (*word).to_owned()).collect() }
    }
}

/// Every view of a tenant.
fn views(t: &Tenant) -> Vec<View> {
    let id = &t.id;
    let of = View::new;
    let (with, without) = (t.node("host-a-dpu1"), t.node("host-b"));
    vec![
        of("overview", "/".into(), "Overview", &["installation (", "tenants (", id]),
        of("missing", format!("/missing?tenant={id}"), "Missing companions", &["NoDPU", "Platform: "]),
        of("companions", format!("/companions?tenant={id}"), "Companions", &["2 found", "● Ready", "■ "]),
        of("workloads", format!("/chain?tenant={id}"), "Workload", &["/shop-1"]),
        of(
            "workload",
            format!("/chain?tenant={id}&workload={}/shop-1", t.source),
            "Workload",
            &["pass", "companion", "● fits", &with],
        ),
        of(
            "hosts",
            format!("/hosts?tenant={id}"),
            "Hosts and DPUs",
            &["2 found", &with, "■ NoDPU", &without],
        ),
        of("tenants", "/tenants".into(), "Tenants", &[id, "connected since"]),
        of("tenant", format!("/tenants?tenant={id}"), "Tenants", &["Accepted=True", "firewall", "2 found"]),
        of("rules", format!("/rules?tenant={id}"), "Rules", &["2 found", "probe"]),
        of("what-if", format!("/what-if?tenant={id}"), "What if", &["Nothing is applied"]),
    ]
}

/// What a person needs who sees colours, sees none, or sees nothing.
const STATES: &str = "
    const shapes = {bad: '■', odd: '▲', good: '●'};
    return Array.from(document.querySelectorAll('.bad, .odd, .good'))
        .filter((state) => !(state.innerText.startsWith(shapes[state.className] + ' ') && /[a-z]/i.test(state.innerText)))
        .map((state) => state.outerHTML)";

/// Whether something is cut off at the sides, so that the page has to be moved to be read.
pub(crate) const TOO_WIDE: &str = "
    const wide = document.documentElement.clientWidth;
    return document.documentElement.scrollWidth <= wide ? [] : Array.from(document.querySelectorAll('body *'))
        .filter((one) => one.getBoundingClientRect().right > wide).map((one) => one.outerHTML.slice(0, 200))";

/// Roles and names of the page, as screen readers get them.
async fn spoken(browser: &Browser) -> Vec<(String, String)> {
    let tree = browser.chromium("Accessibility.getFullAXTree", json!({})).await;
    let text = |value: &Value| value["value"].as_str().unwrap_or_default().to_owned();
    let nodes = tree["nodes"].as_array().unwrap().iter().filter(|node| node["ignored"] != true);
    nodes.map(|node| (text(&node["role"]), text(&node["name"]))).collect()
}

/// Fails if a page can't be used by ear.
async fn is_spoken(browser: &Browser, view: &View) {
    let all = spoken(browser).await;
    for (role, name) in &all {
        let wants_name = ["link", "button", "textbox", "searchbox", "region"].contains(&role.as_str());
        assert!(!wants_name || !name.is_empty(), "{}: a {role} has no name", view.path);
        // The shape is for eyes; the word beside it says the same.
        assert!(!name.contains(['■', '▲']), "{}: {role} {name}", view.path);
    }
    let has = |role: &str, name: &str| all.iter().any(|(is, of)| is == role && of.contains(name));
    for (role, name) in
        [("banner", ""), ("navigation", "Views"), ("main", ""), ("status", ""), ("heading", view.title)]
    {
        assert!(has(role, name), "{}: there is no {role} {name:?}: {all:?}", view.path);
    }
    let current = browser.run("return document.querySelectorAll('nav [aria-current=page]').length").await;
    assert_eq!(current, 1, "{}", view.path);
}

#[tokio::test]
#[ignore = "long"]
async fn every_view_is_read_in_light_and_dark_on_a_phone_and_by_ear() {
    let o = Outrigger::shared().await;
    let t = tenant(o, "blue").await;
    let console = Console::of(o).await;
    for view in views(&t) {
        looked_at(&console, &view, async || {
            if view.name == "what-if" {
                predict(&console, &t).await;
            }
        })
        .await;
    }
}

/// Looks at a view on a desk and on a phone, light and dark, and as screen readers get it. `then` is done on each page first.
pub(crate) async fn looked_at(console: &Console, view: &View, then: impl AsyncFn()) {
    let browser = &console.browser;
    let mut colours = BTreeSet::new();
    let words: Vec<&str> = view.words.iter().map(String::as_str).collect();
    for screen in [DESK, PHONE] {
        browser.screen(screen).await;
        for scheme in Scheme::ALL {
            browser.scheme(scheme).await;
            console.shows(&view.path, &words).await;
            then().await;
            let at = format!("{} {} {}", view.path, scheme.as_str(), screen.width);
            assert_eq!(browser.findings().await, [""; 0], "{at}");
            assert_eq!(browser.run(TOO_WIDE).await, json!([]), "{at}");
            assert_eq!(browser.run(STATES).await, json!([]), "{at}");
            let colour = browser.run("return getComputedStyle(document.body).backgroundColor").await;
            colours.insert((scheme.as_str(), colour.as_str().unwrap().to_owned()));
            if screen == DESK {
                pictures::take(browser, &format!("{}-{}", view.name, scheme.as_str())).await;
            }
        }
    }
    is_spoken(browser, view).await;
    assert_eq!(browser.complaints().await, [""; 0], "{}", view.path);
    assert_eq!(colours.len(), 2, "one background for each scheme: {colours:?}");
}

/// Types rules into the form, and waits for the prediction.
async fn predict(console: &Console, t: &Tenant) {
    let mut spec = rule_for("app", "web");
    // The workloads of other tests are in the same cluster.
    let own = json!({"key": ".metadata.resourceNamespace", "operator": "In", "values": [t.source]});
    spec["workloadTerms"][0]["matchExpressions"].as_array_mut().unwrap().push(own);
    let rule = rule(&t.namespace, "telemetry", spec);
    let rule = serde_yaml::to_string(&rule).unwrap();
    console.browser.run_with("document.querySelector('textarea').value = arguments[0]", &[json!(rule)]).await;
    console.browser.run("document.querySelector('main button').click()").await;
    console.browser.shows(&["What would happen", "2 created", "telemetry: ● created"]).await;
    // The answer is on the picture too.
    console.browser.run("document.querySelector('textarea').rows = 6").await;
}

#[tokio::test]
async fn findings_and_complaints_are_seen() {
    // The control case of the test above: a page with each of the mistakes.
    let o = Outrigger::shared().await;
    let console = Console::of(o).await;
    let browser = &console.browser;
    browser
        .run(
            "document.body.insertAdjacentHTML('beforeend', '<input><p style=\"color: red\">x</p><div id=wide>x</div>');
             document.getElementById('wide').style.width = '9999px';
             document.body.insertAdjacentHTML('beforeend', '<span class=bad>red</span>');
             const script = document.createElement('script');
             script.textContent = 'window.ran = true';
             document.body.append(script);",
        )
        .await;
    let findings = browser.findings().await;
    assert!(findings.iter().any(|finding| finding.starts_with("label: ")), "{findings:?}");
    assert_ne!(browser.run(TOO_WIDE).await, json!([]));
    assert_eq!(browser.run(STATES).await, json!(["<span class=\"bad\">red</span>"]));
    assert_eq!(browser.run("return window.ran === undefined").await, true);
    let complaints = browser.complaints().await.join("\n");
    assert!(
        complaints.contains("inline script") && complaints.contains("Content Security Policy"),
        "{complaints}"
    );
}
