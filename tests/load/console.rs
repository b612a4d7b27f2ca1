//! What the console costs over a large cluster: pages in a browser, an update of a page, many readers at once, and its memory.
//!
//! Floors are the same pages as files: their bytes, sent by a server that does nothing else.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::{Uri, header};
use axum::response::IntoResponse;
use futures::{StreamExt, TryStreamExt};
use http_body_util::BodyExt;
use kube::ResourceExt;
use kube::api::{Api, ListParams, Patch, PatchParams};
use outrigger_tests::browser::Browser;
use outrigger_tests::console::{ConsoleProcess, ServedConsole, reader};
use outrigger_tests::cost::{process, processor_time, resident};
use outrigger_tests::crowd::Crowd;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::report::{self, Row, is_any_wanted, is_wanted, percentile};
use outrigger_tests::tenant::{Tenant, dpu, rule_for};
use outrigger_tests::{cost, create, eventually, holds};
use serde_json::json;

/// The bench's name in the report.
const BENCH: &str = "console";

/// The rows.
const ROWS: [&str; 4] = [
    "first paint of a page, 100,000 companions and 10,000 DPUs",
    "update of a visible page by an event",
    "from a companion's change to the page",
    "200 users at once, the slowest page",
];

const COMPANIONS: usize = 100_000;
const DPUS: usize = 10_000;
/// Views that are loaded, one after the other.
const VIEWS: [&str; 6] = ["/", "/missing", "/companions", "/hosts", "/tenants", "/rules"];
const ROUNDS: usize = 5;
/// Users at once, each with an address and a session of its own.
const VIEWERS: usize = 200;

/// Measures, and prints the rows.
pub(crate) async fn run() {
    let o = Outrigger::shared().await;
    if is_wanted(BENCH, ROWS[3]) {
        report::record(BENCH, &[viewers(o).await]);
    }
    if is_any_wanted(BENCH, &ROWS[..3]) {
        report::record(BENCH, &pages(o).await);
    }
}

/// The cluster that pages show.
async fn cluster(o: &'static Outrigger) -> Crowd {
    let crowd = Crowd::of(o, "watched", COMPANIONS, 1).await;
    let nodes = crowd.tenant.nodes();
    futures::stream::iter(0..DPUS)
        .map(|i| {
            let nodes = &nodes;
            async move { create(nodes, &dpu(&format!("dpu-{i}"), &format!("host-{i}"))).await }
        })
        .buffer_unordered(16)
        .try_collect::<Vec<_>>()
        .await
        .unwrap();
    crowd
}

async fn pages(o: &'static Outrigger) -> Vec<Row> {
    let crowd = cluster(o).await;
    let kubeconfig = format!("--kubeconfig={}", o.plane.infra.kubeconfig.display());
    let console = ConsoleProcess::start(&["--interval=10".to_owned(), kubeconfig.clone()]).unwrap();
    let (origin, _) = console.url.split_once("/?").unwrap();
    let pid = process(&kubeconfig);
    let browser = Browser::start(&o.plane).await;
    let began = Instant::now();
    browser.open(&console.url).await;
    browser.shows(&["100000"]).await;
    println!("first rows after {:.1} s, {:.0} MiB", began.elapsed().as_secs_f64(), mebibytes(pid));
    browser.hides("still being read").await;
    let (waited, busy) = (began.elapsed().as_secs_f64(), processor_time(pid).as_secs_f64());
    println!("all rows after {waited:.1} s, {busy:.1} s of a processor, {:.0} MiB", mebibytes(pid));

    let floor = floor(&browser, origin).await;
    let mut paints = Vec::new();
    for view in VIEWS {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            ours.push(paint(&browser, &format!("{origin}{view}")).await);
            theirs.push(paint(&browser, &format!("{floor}{view}")).await);
        }
        println!("{view}: first paint {ours:.0?} ms, as a file {theirs:.0?} ms");
        paints.extend(ours.into_iter().zip(theirs));
    }
    let updates = updates(&browser, origin, &floor).await;
    let changes = changes(&crowd.tenant, &browser, origin).await;
    println!("memory at the end: {:.0} MiB", mebibytes(pid));
    vec![
        Row::new(ROWS[0], "ms", "the page as a file", &paints),
        Row::new(ROWS[1], "ms", "the page as a file", &updates),
        Row::new(ROWS[2], "s", "the goal: 1 s", &changes),
    ]
}

fn mebibytes(pid: u32) -> f64 {
    cost::mebibytes(resident(pid))
}

/// Milliseconds until a page shows something, as the browser measures it (Paint Timing, `first-contentful-paint`).
async fn paint(browser: &Browser, url: &str) -> f64 {
    browser.open(url).await;
    let script = "return new Promise((done) => {
        const look = () => {
          const paint = performance.getEntriesByName('first-contentful-paint')[0];
          if (paint) { done(paint.startTime); } else { setTimeout(look, 5); }
        };
        look();
      })";
    browser.run(script).await.as_f64().unwrap()
}

/// Milliseconds from an event to the page's new rows: what the page's script does at an event, without the event.
async fn refreshed(browser: &Browser) -> f64 {
    let script = "return (async () => {
        const began = performance.now();
        const answer = await fetch(location.href, { credentials: 'same-origin' });
        const next = new DOMParser().parseFromString(await answer.text(), 'text/html');
        document.getElementById('rows').replaceChildren(...next.getElementById('rows').childNodes);
        document.body.getBoundingClientRect();
        return performance.now() - began;
      })()";
    browser.run(script).await.as_f64().unwrap()
}

async fn updates(browser: &Browser, origin: &str, floor: &str) -> Vec<(f64, f64)> {
    let mut all = Vec::new();
    for view in ["/", "/companions", "/hosts"] {
        for _ in 0..ROUNDS {
            browser.open(format!("{origin}{view}")).await;
            let ours = refreshed(browser).await;
            browser.open(format!("{floor}{view}")).await;
            all.push((ours, refreshed(browser).await));
        }
    }
    all
}

/// Seconds from the write of a companion's label of its workload to the page that shows it.
async fn changes(t: &Tenant, browser: &Browser, origin: &str) -> Vec<(f64, f64)> {
    let of_own = ListParams::default().labels(&format!("{}=own", outrigger_core::keys::RULE));
    let companion = t.pods().list(&of_own).await.unwrap().items.remove(0).name_any();
    let pods: Api<_> = t.pods();
    let mut all = Vec::new();
    for round in 0..6 {
        // Half of the changes come at once after others, when pages show changes less often.
        let pause = if round % 2 == 0 { Duration::from_secs(3) } else { Duration::ZERO };
        tokio::time::sleep(pause).await;
        browser.open(format!("{origin}/companions?text={companion}")).await;
        let message = format!("round {round} of the bench");
        let condition = json!({"status": {"conditions": [{"type": "PodScheduled", "status": "False",
            "reason": "Unschedulable", "message": message}]}});
        let began = Instant::now();
        pods.patch_status(&companion, &PatchParams::default(), &Patch::Strategic(&condition)).await.unwrap();
        browser.shows(&[&message]).await;
        let seconds = began.elapsed().as_secs_f64();
        println!("a change is visible after {seconds:.2} s");
        all.push((seconds, 1.0));
    }
    all
}

/// A server of the console's pages as files; returns its origin.
async fn floor(browser: &Browser, origin: &str) -> String {
    let mut files = HashMap::new();
    for path in VIEWS.iter().chain(&["/console.css", "/console.js"]) {
        browser.open(format!("{origin}/")).await;
        let text = browser.run(&format!("return fetch('{path}').then((answer) => answer.text())")).await;
        files.insert((*path).to_owned(), text.as_str().unwrap().to_owned());
    }
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let origin = format!("http://127.0.0.1:{}", listener.local_addr().unwrap().port());
    let router = Router::new().fallback(file).with_state(Arc::new(files));
    tokio::spawn(async move { axum::serve(listener, router).await });
    origin
}

async fn file(State(files): State<Arc<HashMap<String, String>>>, uri: Uri) -> impl IntoResponse {
    let kind = match uri.path().rsplit_once('.') {
        Some((_, "css")) => "text/css",
        Some((_, "js")) => "text/javascript",
        _ => "text/html; charset=utf-8",
    };
    ([(header::CONTENT_TYPE, kind)], files.get(uri.path()).cloned().unwrap_or_default())
}

/// Two hundred users of a small tenant, each with a stream of events: how long the slowest of their pages takes, of all at the same time.
async fn viewers(o: &'static Outrigger) -> Row {
    let t = Tenant::without_agent(o, "viewed", &[("a", 1)]).await;
    t.rule("r", rule_for("app", "web")).await;
    let console = ServedConsole::start(o, "console-viewed").await;
    let admin = format!("--admin-address=127.0.0.1:{}", console.admin);
    let token = |i: usize| {
        let namespace = t.namespace.clone();
        tokio::task::spawn_blocking(move || reader(o, &namespace, &format!("viewer-{i}")))
    };
    let tokens: Vec<String> =
        futures::stream::iter(0..VIEWERS).map(token).buffered(4).try_collect().await.unwrap();
    let mut users = Vec::new();
    for (i, token) in tokens.iter().enumerate() {
        let address = Ipv4Addr::from_bits(Ipv4Addr::new(127, 0, 1, 0).to_bits() + u32::try_from(i).unwrap());
        users.push(console.login_from(address, token, &t.namespace).await);
    }
    println!("{VIEWERS} users logged in, {:.0} MiB", mebibytes(process(&admin)));
    let mut streams = futures::future::join_all(users.iter().map(|user| user.events())).await;
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let timed = |i: usize| {
            let user = &users[i];
            async move {
                let began = Instant::now();
                let (status, page) = user.page("/rules").await;
                assert!(status == 200 && page.contains("viewed"), "{status}: {page}");
                began.elapsed()
            }
        };
        let mut times = futures::future::join_all((0..VIEWERS).map(timed)).await;
        times.sort_unstable();
        let alone = timed(0).await;
        println!(
            "pages of {VIEWERS} users: p50 {:.0}, p99 {:.0} ms",
            percentile(&times, 50),
            percentile(&times, 99)
        );
        rounds.push((percentile(&times, 100), 1000.0 * alone.as_secs_f64()));
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    for stream in &mut streams {
        assert!(stream.frame().await.unwrap().is_ok(), "a stream has ended");
    }
    println!("{VIEWERS} users, {:.0} MiB", mebibytes(process(&admin)));
    eventually("no session has ended", || async {
        let text = Outrigger::metrics_of(console.admin).await?;
        holds(text.contains(&format!("outrigger_console_sessions {VIEWERS}")), text)
    })
    .await;
    Row::new(ROWS[3], "ms", "the page of one user", &rounds)
}
