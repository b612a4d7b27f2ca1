//! API servers that are away for long.

use std::time::Duration;

use outrigger_tests::tenant::Tenant;

use crate::outages::stage::stage;

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
