//! API servers that are away for long, and everything at once.

use std::time::Duration;

use outrigger_tests::tenant::Tenant;

use crate::stage::stage;

#[tokio::test]
#[ignore = "long"]
async fn an_api_server_that_is_down_for_longer_than_a_minute_is_followed_again() {
    let (_turn, o) = stage().await;
    let t = Tenant::with_rule(o, "longdown").await;
    for name in ["w1", "w2"] {
        t.web(name).await;
    }
    t.ready(2).await;
    let before = t.uids().await.unwrap();
    o.plane.command("stop infra/kube-apiserver").unwrap();
    t.web("w3").await;
    t.work().delete("w1", &kube::api::DeleteParams::default().grace_period(0)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(75)).await;
    o.plane.command("start infra/kube-apiserver").unwrap();
    // Not whether they are ready: the cluster has given up its Nodes meanwhile, and only a kubelet would make Pods ready again.
    t.serves(&["w2", "w3"]).await;
    assert_eq!(t.uids().await.unwrap()["w2"], before["w2"]);
}

#[tokio::test]
#[ignore = "long"]
async fn everything_killed_at_once_comes_back_and_doubles_nothing() {
    let (_turn, o) = stage().await;
    let t = Tenant::with_rule(o, "allatonce").await;
    t.webs("w", 0..20).await;
    t.ready(20).await;
    let before = t.uids().await.unwrap();
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
        t.webs(&format!("new-{round}-"), 0..5).await;
        o.plane.command_all("stop", &all);
        o.plane.command_all("start", &all);
        o.ready().await;
        t.ready(25 + 5 * round).await;
        let after = t.uids().await.unwrap();
        assert_eq!(after.len(), 25 + 5 * round, "one for each");
        for (name, uid) in &before {
            assert_eq!(after.get(name), Some(uid), "{name} was made again");
        }
    }
}
