//! Nothing is deleted because a cache lacks something.

use std::time::Duration;

use kube::ResourceExt;
use outrigger_tests::faults::{Fault, Matching, Verb};
use outrigger_tests::tenant::rule_for;
use outrigger_tests::{InWords, always, eventually, holds};

use crate::faults::stage::{Replica, Stage};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_whose_watch_of_rules_hangs_deletes_no_running_companion() {
    let stage = Stage::shared().await;
    let replica = Replica::start(stage, "manager-absence").await;
    let t = stage.tenant("absence", &["a"]).await;
    // It doesn't hear of the rule; the replica that serves the tenant does.
    let frozen = replica.proxy.fault(Matching::watches("workloadrules"), Fault::FreezeWatch);
    t.rule("r", rule_for("app", "web")).await;
    let first = stage.open_stream(&t, &["w1", "w2"]).await;
    t.ready(2).await;
    let before = t.uids().await.unwrap();
    // The agent comes to it, and it sees companions by a watch that lives.
    let second = replica.open_stream(&t, &["w1", "w2"]).await;
    assert!(first.1.await.unwrap().is_err(), "the stream is the other replica's");
    t.keeps(&before, Duration::from_secs(4)).await;
    // When it hears of the rule it goes on with it.
    replica.proxy.remove(frozen);
    t.sync(&second, &["w1", "w3"]).await;
    eventually("workloads are followed again", || async {
        let now = t.uids().await?;
        let kept = now.iter().filter(|(name, uid)| before.get(*name) == Some(uid)).count();
        holds((kept, now.len()) == (1, 2), format!("{now:?}"))
    })
    .await;
    // The companions of a deleted rule are deleted.
    t.rules().delete("r", &kube::api::DeleteParams::default()).await.unwrap();
    t.ready(0).await;
    let deletes = Matching::verb(Verb::Delete, "pods").namespace(&t.namespace);
    println!("deletes by the replica: {}", replica.proxy.calls_of(&deletes).len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_whose_watch_of_admin_rules_hangs_deletes_no_running_companion() {
    let stage = Stage::shared().await;
    let replica = Replica::start(stage, "manager-admin-absence").await;
    let t = stage.tenant("absence-admin", &["a"]).await;
    let frozen = replica.proxy.fault(Matching::watches("adminworkloadrules"), Fault::FreezeWatch);
    let companions = stage.admin_rule(&t);
    let (pods, labels) = &companions;
    let uid = || async {
        let all = pods.list(labels).await.in_words()?;
        match all.items.as_slice() {
            [one] if one.metadata.deletion_timestamp.is_none() => Ok(one.uid()),
            other => Err(format!("{} companions", other.len())),
        }
    };
    let first = stage.open_stream(&t, &["w1"]).await;
    let before = eventually("there is a companion", uid).await;
    let _second = replica.open_stream(&t, &["w1"]).await;
    assert!(first.1.await.unwrap().is_err(), "the stream is the other replica's");
    always("the companion runs on", Duration::from_secs(4), || async {
        let now = uid().await?;
        holds(now == before, format!("{before:?} became {now:?}"))
    })
    .await;
    replica.proxy.remove(frozen);
    let infra = &stage.o.plane.infra;
    infra.kubectl(&["delete", "adminworkloadrules", &t.id, "-n", "universe", "--wait=false"]).unwrap();
    stage.admin_companions_are_gone(&companions).await;
}
