//! Every command in the documentation, run; every object in it, given to an API server. CONTRIBUTING.md tells how pages say
//! what has to be there. `PAGE=rules cargo test --test suites docs::` runs the pages with that in their names.

mod environment;
mod run;
mod runs;
mod spans;
mod words;

use outrigger_tests::page::{Environment, Page, pages, spans};
use outrigger_tests::shipped::{kustomize, of_kind};
use tokio::sync::Mutex;

use crate::docs::environment::{Place, Running};

/// Pages for empty clusters that each run of CI reads from top to bottom: what a new user and an upgrade need. Each has two clusters of its
/// own, so the others are long.
const FOR_EVERYBODY: [&str; 2] = ["docs/installation.md", "docs/upgrades.md"];

/// How many blocks may be left out at most. Who raises it says why nothing else will do.
const NOT_RUN: usize = 11;

/// Clusters are for one test at a time: two sets of them would only slow each other down.
static CLUSTERS: Mutex<()> = Mutex::const_new(());

/// All pages; a page that can't be understood fails the test that asks.
fn all() -> Vec<Page> {
    let mut problems = Vec::new();
    let mut found = Vec::new();
    for path in pages().unwrap() {
        match Page::read(&path) {
            Ok(page) => found.push(page),
            Err(words) => problems.extend(words),
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    found
}

/// The pages of some environments that were asked for.
fn of(environments: &[Environment]) -> Vec<Page> {
    let asked = std::env::var("PAGE").unwrap_or_default();
    let mut found = all();
    found.retain(|page| page.path.contains(&asked));
    found.retain(|page| page.environment.is_some_and(|one| environments.contains(&one)));
    found
}

/// Says all that went wrong, not the first alone.
fn nothing_failed(failures: &[String]) {
    assert!(failures.is_empty(), "\n{}\n", failures.join("\n\n"));
}

#[test]
fn each_block_is_run_or_says_why_not() {
    let all = all();
    let left_out: Vec<_> =
        all.iter().flat_map(|page| page.not_run.iter().map(move |one| (page, one))).collect();
    for (page, block) in &left_out {
        println!("{}:{}: not run: {}", page.path, block.line, block.reason);
    }
    assert!(left_out.len() <= NOT_RUN, "{} blocks are not run, at most {NOT_RUN} should be", left_out.len());
    let steps: usize = all.iter().map(|page| page.steps.len()).sum();
    assert!(steps > left_out.len(), "{steps} steps: are the pages where they should be?");
}

#[test]
fn what_is_not_run_could_be() {
    let place = Place::without_cluster("not-run");
    let mut failures = Vec::new();
    for page in all() {
        for block in &page.not_run {
            let at = |words: String| format!("{}:{}: {words}", page.path, block.line);
            failures.extend(words::check_script(&place, &block.script).into_iter().map(at));
        }
    }
    nothing_failed(&failures);
}

#[test]
fn pages_about_files() {
    let mut failures = Vec::new();
    for page in of(&[Environment::Files]) {
        failures.extend(run::page(&page, &Place::without_cluster(&page.path), run::Comparison::Exact));
    }
    nothing_failed(&failures);
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_about_clusters() {
    let _one = CLUSTERS.lock().await;
    let pages = of(&[Environment::Infrastructure, Environment::Tenant]);
    let running = Running::start().await.unwrap();
    let mut failures = Vec::new();
    for page in pages {
        let place = running.place(&page.path, page.environment == Some(Environment::Tenant));
        failures.extend(run::page(&page, &place, run::Comparison::OfClusters));
    }
    // Commands in running text, and in what alerts say.
    let (infra, tenant) = (running.place("spans", false), running.place("spans-tenant", true));
    let asked = std::env::var("PAGE").unwrap_or_default();
    for page in all().iter().filter(|page| page.path.contains(&asked)) {
        let place = if page.environment == Some(Environment::Tenant) { &tenant } else { &infra };
        failures.extend(spans::check(&page.path, &page.spans, place));
    }
    for rule in of_kind(&kustomize("deploy/monitoring").unwrap(), "PrometheusRule") {
        for alert in rule.pointer("/spec/groups").into_iter().flat_map(texts) {
            failures.extend(spans::check("deploy/monitoring/rules.yaml", &spans(&alert), &infra));
        }
    }
    nothing_failed(&failures);
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_about_empty_clusters() {
    on_empty_clusters(true).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn other_pages_about_empty_clusters() {
    on_empty_clusters(false).await;
}

async fn on_empty_clusters(for_everybody: bool) {
    let _one = CLUSTERS.lock().await;
    let mut pages = of(&[Environment::Empty]);
    pages.retain(|page| FOR_EVERYBODY.contains(&page.path.as_str()) == for_everybody);
    assert!(!pages.is_empty() || std::env::var_os("PAGE").is_some());
    let mut failures = Vec::new();
    for page in pages {
        let (_plane, place) = Place::with_empty_clusters(&page.path).unwrap();
        failures.extend(run::page(&page, &place, run::Comparison::OfClusters));
    }
    nothing_failed(&failures);
}

/// All texts of a document.
fn texts(value: &serde_json::Value) -> Vec<String> {
    match value {
        serde_json::Value::String(text) => vec![text.clone()],
        serde_json::Value::Array(all) => all.iter().flat_map(texts).collect(),
        serde_json::Value::Object(all) => all.values().flat_map(texts).collect(),
        _ => Vec::new(),
    }
}
