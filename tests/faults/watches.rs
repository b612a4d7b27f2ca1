//! Watches and lists that expire, break off, or say nothing.

use std::time::Duration;

use kube::ResourceExt;
use outrigger_tests::faults::{Fault, Matching, Verb};
use outrigger_tests::tenant::{rule_for, rule_with};
use serde_json::json;

use crate::faults::stage::{Replica, Stage};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_that_expire_or_break_off_lose_nothing() {
    let stage = Stage::shared().await;
    let replica = Replica::start(stage, "manager-expired").await;
    let t = stage.tenant("expired", &["a"]).await;
    t.rule("r", rule_for("app", "web")).await;
    let stream = replica.open_stream(&t, &["w1", "w2"]).await;
    t.ready(2).await;
    let watches = || Matching { verbs: vec![Verb::Watch], ..Matching::all() };
    let kept = t.companions().await.unwrap().iter().filter_map(ResourceExt::uid).collect::<Vec<_>>();
    for (n, fault) in [Fault::Expire, Fault::TruncateWatch, Fault::Cut].into_iter().enumerate() {
        // All of them at once, and changes before they are back.
        let broken = replica.proxy.fault(watches(), fault.clone());
        let late = format!("late{n}");
        t.rule("r", rule_with("/workloadTerms/0/matchExpressions/0/values", json!(["web", late]))).await;
        t.rule(&late, rule_for("app", "nothing")).await;
        t.sync(&stream, &["w1", "w2", &late]).await;
        replica.proxy.hit(broken).await;
        replica.proxy.remove(broken);
        t.serves(&[&late, "w1", "w2"]).await;
        t.sync(&stream, &["w1", "w2"]).await;
        t.serves(&["w1", "w2"]).await;
        let now = t.companions().await.unwrap().iter().filter_map(ResourceExt::uid).collect::<Vec<_>>();
        assert_eq!(now, kept, "{fault:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_whose_pages_expire_is_made_again() {
    let stage = Stage::shared().await;
    let t = stage.tenant("pages", &["a"]).await;
    for n in 0..4 {
        t.rule(&format!("r{n}"), rule_for("app", "web")).await;
    }
    let lists = Matching { verbs: vec![Verb::List], ..Matching::all() };
    let next = lists.clone().path("continue=").times(6);
    let (replica, admin) = Replica::starting(stage, "manager-pages", |proxy| {
        proxy.fault(lists, Fault::Pages(1));
        proxy.fault(next, Fault::Status { code: 410, retry_after: None });
    })
    .await;
    stage.o.ready_at("manager-pages", admin).await;
    let expired = replica.proxy.calls().iter().filter(|call| call.status == Some(410)).count();
    assert_eq!(expired, 6);
    // It knows every rule.
    let _stream = replica.open_stream(&t, &["w1"]).await;
    t.ready(4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn watches_that_fall_silent_are_noticed_and_opened_again() {
    let stage = Stage::shared().await;
    let replica = Replica::start(stage, "manager-silent").await;
    let t = stage.tenant("silent", &["a"]).await;
    t.rule("r", rule_for("app", "web")).await;
    let stream = replica.open_stream(&t, &["w1"]).await;
    t.companion().await;
    let watches = Matching { verbs: vec![Verb::Watch], ..Matching::all() };
    let silent = replica.proxy.fault(watches, Fault::BlackHole);
    replica.proxy.hit(silent).await;
    replica.proxy.remove(silent);
    let began = std::time::Instant::now();
    // The watches that were open show neither the rule nor its companion.
    t.rule("r2", rule_for("app", "web")).await;
    t.ready(2).await;
    println!("a new rule is served {:.1} s after all watches fell silent", began.elapsed().as_secs_f64());
    let pods = t.pods();
    let one = t.companions().await.unwrap().remove(0);
    let now = kube::api::DeleteParams { grace_period_seconds: Some(0), ..Default::default() };
    pods.delete(&one.name_any(), &now).await.unwrap();
    t.ready(2).await;
    tokio::time::sleep(Duration::from_millis(10)).await;
    drop(stream);
}
