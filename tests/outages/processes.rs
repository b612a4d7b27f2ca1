//! API servers that are away for long, and everything at once.

use std::time::Duration;

use kube::ResourceExt;
use outrigger_tests::tenant::{Tenant, annotation, rule_for};
use outrigger_tests::{eventually, holds};
use serde_json::json;

use crate::stage::stage;

/// Uids of the companions, by workload.
async fn uids(t: &Tenant) -> std::collections::BTreeMap<String, String> {
    let all = t.companions().await.unwrap();
    let entry = |c: &k8s_openapi::api::core::v1::Pod| {
        (annotation(c, "workload-name").unwrap_or_default().to_owned(), c.uid().unwrap_or_default())
    };
    all.iter().map(entry).collect()
}

#[tokio::test]
#[ignore = "long"]
async fn an_api_server_that_is_down_for_longer_than_a_minute_is_followed_again() {
    let (_turn, o) = stage().await;
    let t = Tenant::new(o, "longdown", &[("a", 1)]).await;
    t.rule("r", rule_for("app", "web")).await;
    for name in ["w1", "w2"] {
        t.start(name, "a", json!({"app": "web"})).await;
    }
    t.ready(2).await;
    let before = uids(&t).await;
    o.plane.command("stop infra/kube-apiserver").unwrap();
    t.start("w3", "a", json!({"app": "web"})).await;
    t.work().delete("w1", &kube::api::DeleteParams::default().grace_period(0)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(75)).await;
    o.plane.command("start infra/kube-apiserver").unwrap();
    // Not whether they are ready: the cluster has given up its Nodes meanwhile, and only a kubelet would make Pods ready again.
    eventually("both changes have arrived", || async {
        let all = t.companions().await?;
        let mut names: Vec<_> = all.iter().filter_map(|c| annotation(c, "workload-name")).collect();
        names.sort_unstable();
        holds(names == ["w2", "w3"], format!("{names:?}"))
    })
    .await;
    assert_eq!(uids(&t).await["w2"], before["w2"]);
}

#[tokio::test]
#[ignore = "long"]
async fn everything_killed_at_once_comes_back_and_doubles_nothing() {
    let (_turn, o) = stage().await;
    let t = Tenant::new(o, "allatonce", &[("a", 1)]).await;
    t.rule("r", rule_for("app", "web")).await;
    for n in 0..20 {
        t.start(&format!("w{n}"), "a", json!({"app": "web"})).await;
    }
    t.ready(20).await;
    let before = uids(&t).await;
    let ours = ["webhook", "manager", "agent-allatonce"];
    let servers = ["etcd", "infra/kube-apiserver", "tenant/kube-apiserver"];
    let others: Vec<String> = ["infra", "tenant"]
        .iter()
        .flat_map(|cluster| {
            ["kube-controller-manager", "kube-scheduler", "kwok"].map(|part| format!("{cluster}/{part}"))
        })
        .collect();
    let all: Vec<&str> =
        servers.iter().copied().chain(others.iter().map(String::as_str)).chain(ours).collect();
    for round in 0..2 {
        // Under way when everything ends.
        for n in 0..5 {
            t.start(&format!("new-{round}-{n}"), "a", json!({"app": "web"})).await;
        }
        for name in &all {
            o.plane.command(&format!("stop {name}")).unwrap();
        }
        for name in &all {
            o.plane.command(&format!("start {name}")).unwrap();
        }
        o.ready().await;
        t.ready(25 + 5 * round).await;
        let after = uids(&t).await;
        assert_eq!(after.len(), 25 + 5 * round, "one for each");
        for (name, uid) in &before {
            assert_eq!(after.get(name), Some(uid), "{name} was made again");
        }
    }
}
