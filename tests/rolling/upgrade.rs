//! The last release works, and becomes this version while Pods are admitted and workloads come and go.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use kube::ResourceExt;
use outrigger_tests::control_plane::{ControlPlane, tool};
use outrigger_tests::front::Front;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::shipped::{self, LAST_RELEASE};
use outrigger_tests::tenant::{Tenant, rule_for};
use outrigger_tests::{InWords, eventually, holds, root};

use crate::rolling::watching::Watching;
use crate::rolling::workloads::{Churn, settled};
use crate::rolling::{Deployment, Installed, Replicas, webhook};

/// Reviews that are answered before and after the upgrade.
const REVIEWS: u64 = 1_000;

/// Whether git has the commit that the last release was made from: archives of the source and shallow clones don't.
fn has_history() -> bool {
    let commit =
        std::fs::read_to_string(root().join("tests/upgrades").join(LAST_RELEASE).join("commit")).unwrap();
    let mut git = Command::new("git");
    git.args(["cat-file", "-e", &format!("{}^{{commit}}", commit.trim_end())]).current_dir(root());
    git.output().is_ok_and(|output| output.status.success())
}

/// Which version processes and manifests are of, for those who start and apply them from now on.
fn switch(dir: &Path, program: &Path, tree: &Path) {
    for (name, to) in [("outrigger", program), ("tree", tree)] {
        let link = dir.join(name);
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(to, link).unwrap();
    }
}

/// Two replicas of each part of the last release.
async fn installed(dir: &Path) -> &'static Installed {
    let (webhooks, managers) = (Front::start(), Front::start());
    let mut outrigger = Outrigger::new(ControlPlane::start().unwrap()).unwrap();
    (outrigger.binary, outrigger.tree) = (dir.join("outrigger"), dir.join("tree"));
    (outrigger.webhook_port, outrigger.grpc_port) = (webhooks.port, managers.port);
    // It ends with the process of the tests.
    Box::leak(Box::new(Installed::start(outrigger, webhooks, managers).await))
}

/// What a user has made, by its uid.
async fn made(t: &Tenant) -> Vec<(String, String)> {
    let tenant = t.object().get(&t.id).await.unwrap();
    let rules = t.rules().list(&kube::api::ListParams::default()).await.unwrap();
    let mut all: Vec<_> = rules.items.iter().map(|rule| (rule.name_any(), rule.uid().unwrap())).collect();
    all.push((tenant.name_any(), tenant.uid().unwrap()));
    all.sort();
    all
}

/// The versions that the processes of these admin ports are of.
async fn versions(ports: &[u16]) -> Vec<String> {
    let mut all = Vec::new();
    for &port in ports {
        let metrics = Outrigger::metrics_of(port).await.unwrap();
        let line = metrics.lines().find(|line| line.starts_with("outrigger_build_info{")).unwrap_or_default();
        let version = line.split("version=\"").nth(1).and_then(|rest| rest.split('"').next());
        all.push(version.unwrap_or_default().to_owned());
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn the_last_release_is_upgraded_while_it_works() {
    if !has_history() {
        println!("skipped: git doesn't have the commit of {LAST_RELEASE}");
        return;
    }
    let (program, old) = (tool("upgrades").unwrap(), shipped::of_last_release().unwrap());
    let dir = tempfile::tempdir_in(root().join("target")).unwrap();
    switch(dir.path(), &program, old.path());
    let installed = installed(dir.path()).await;
    let o = &installed.outrigger;
    let replicas = &mut *installed.replicas.lock().await;
    let t = Arc::new(Tenant::new(o, "upgraded", &[("a", 1)]).await);
    t.rule("r", rule_for("app", "web")).await;
    t.own_rule("own", rule_for("app", "own")).await.unwrap();
    eventually("the agent's rule is there", || async {
        let found = made(&t).await;
        holds(found.len() == 3, format!("{found:?}"))
    })
    .await;
    let load = webhook::begin(installed, &webhook::ASKERS, false).await;
    let watching = Watching::begin(&t).await;
    let churn = Churn::begin(t.clone(), watching.seen.clone());
    webhook::more(&load, REVIEWS).await;
    let (had, ports) = (made(&t).await, |r: &Replicas| -> Vec<u16> {
        r.webhook.running.iter().chain(&r.manager.running).map(|replica| replica.admin).collect()
    });
    assert_eq!(versions(&ports(replicas)).await, [LAST_RELEASE; 4]);

    // As docs/upgrades.md says: all manifests at once, while everything that runs is of the last release.
    switch(dir.path(), &outrigger_tests::outrigger::binary().unwrap(), &root());
    o.install().unwrap();
    webhook::more(&load, REVIEWS).await;
    for deployment in [&mut replicas.webhook, &mut replicas.manager] {
        let shipped = Deployment::shipped(deployment.part);
        (deployment.flags, deployment.grace) = (shipped.flags, shipped.grace);
    }
    replicas.webhook.roll(o, &installed.webhooks).await;
    replicas.manager.roll(o, &installed.managers).await;
    assert_eq!(versions(&ports(replicas)).await, [env!("CARGO_PKG_VERSION"); 4]);
    webhook::more(&load, REVIEWS).await;
    // The agent of the last release first goes on with managers of this version.
    o.plane.command_all("term", ["agent-upgraded"]);
    o.plane.command_all("start", ["agent-upgraded"]);
    webhook::more(&load, REVIEWS).await;

    let (changes, living) = churn.end().await;
    settled(&t, &living).await;
    assert_eq!(made(&t).await, had);
    let seen = watching.end().await;
    let companions = t.by_workload().await.in_words().unwrap().len();
    println!("{changes} changes, {companions} companions left, {seen}; {}", load.end().await);
}
