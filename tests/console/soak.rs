//! An hour of changes in ten minutes, before one page: what the console and the browser keep of it.
// Figures are for a terminal.
#![allow(clippy::print_stdout)]

use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use kube::ResourceExt;
use kube::api::{ListParams, Patch, PatchParams};
use outrigger_tests::browser::Browser;
use outrigger_tests::cost::{process, resident};
use outrigger_tests::crowd::Crowd;
use outrigger_tests::outrigger::Outrigger;
use serde_json::{Value, json};

use crate::console::stage::{Console, flag, port, through};

const COMPANIONS: usize = 2_000;
/// Changes of an hour in which ten companions change in each second, and how many of them are made in a second.
const CHANGES: usize = 36_000;
const RATE: usize = 60;

/// What is kept at a time.
#[derive(Debug)]
struct Kept {
    /// Memory of the console, in bytes.
    memory: u64,
    /// Its open files, sockets among them.
    files: usize,
    /// Its threads.
    threads: usize,
    /// Memory of the page's script, in bytes, and nodes of its documents, after the browser has collected its garbage.
    heap: f64,
    nodes: f64,
}

impl Kept {
    async fn now(pid: u32, browser: &Browser) -> Self {
        browser.chromium("HeapProfiler.collectGarbage", json!({})).await;
        let metrics = browser.chromium("Performance.getMetrics", json!({})).await;
        let metric = |name: &str| {
            let all = metrics["metrics"].as_array().unwrap();
            all.iter()
                .find(|metric| metric["name"] == name)
                .and_then(|metric| metric["value"].as_f64())
                .unwrap()
        };
        let entries = |what: &str| std::fs::read_dir(format!("/proc/{pid}/{what}")).unwrap().count();
        let (heap, nodes) = (metric("JSHeapUsedSize"), metric("Nodes"));
        Self { memory: resident(pid), files: entries("fd"), threads: entries("task"), heap, nodes }
    }
}

#[tokio::test]
#[ignore = "long"]
async fn console_and_browser_keep_nothing_of_an_hour_of_changes() {
    let o = Outrigger::shared().await;
    let crowd = Crowd::of(o, "soak", COMPANIONS, 1).await;
    let infra = &o.plane.infra;
    // The console has an argument of its own, by which its process is found.
    let file = through(&infra.kubeconfig, port(&infra.server), o.plane.dir.join("console-soak.kubeconfig"));
    let kubeconfig = flag("kubeconfig", &file);
    let console = Console::with(o, std::slice::from_ref(&kubeconfig)).await;
    let pid = process(&kubeconfig);
    let browser = &console.browser;
    browser.chromium("Performance.enable", json!({})).await;
    console.shows("/companions?tenant=soak", &["● live", &format!("{COMPANIONS} found")]).await;
    let pods = crowd.tenant.pods();
    let names: Vec<String> =
        pods.list(&ListParams::default()).await.unwrap().items.iter().map(ResourceExt::name_any).collect();
    let mut before = None;
    let mut seconds = tokio::time::interval(Duration::from_secs(1));
    for second in 0..CHANGES / RATE {
        seconds.tick().await;
        let changed = (second * RATE..(second + 1) * RATE).map(|i| {
            let (pods, name) = (&pods, &names[i % names.len()]);
            async move {
                let patch = Patch::Strategic(message(&format!("change {i}")));
                pods.patch_status(name, &PatchParams::default(), &patch).await
            }
        });
        futures::stream::iter(changed).buffer_unordered(4).try_collect::<Vec<_>>().await.unwrap();
        if second % RATE == RATE - 1 {
            let kept = Kept::now(pid, browser).await;
            println!("after {} changes: {kept:?}", (second + 1) * RATE);
            before.get_or_insert(kept);
        }
    }
    let last = format!("change {}", CHANGES - 1);
    let name = &names[(CHANGES - 1) % names.len()];
    console.shows(&format!("/companions?text={name}"), &[&last]).await;
    console.shows("/companions?tenant=soak", &["● live"]).await;
    let (before, after) = (before.unwrap(), Kept::now(pid, browser).await);
    println!("at the end: {after:?}");
    assert!(after.memory < before.memory * 5 / 4 + (8 << 20), "{before:?} {after:?}");
    assert!(after.files <= before.files + 4 && after.threads <= before.threads + 2, "{before:?} {after:?}");
    assert!(after.heap < 1.5 * before.heap + 2e6, "{before:?} {after:?}");
    assert!(after.nodes < 2.0 * before.nodes + 1e4, "{before:?} {after:?}");
}

/// A status in which a Pod isn't scheduled, for this reason.
fn message(text: &str) -> Value {
    json!({"status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": text}]}})
}
