//! etcd: compaction, a full disk, older snapshots.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams, ListParams};
use kube::{Client, ResourceExt};
use outrigger_core::keys;
use outrigger_tests::etcd::Etcd;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::tenant::{annotation, rule_for};
use outrigger_tests::{InWords, always, create, eventually, holds};
use serde_json::json;

use crate::outages::stage::{StreamedTenant, stage};

/// How often lists and watches of the manager have failed.
async fn watch_failures(o: &Outrigger) -> f64 {
    Outrigger::metric(o.manager_admin, "outrigger_watch_failures", "_total").await.unwrap()
}

#[tokio::test]
async fn watches_behind_a_compaction_list_again_and_double_or_delete_nothing() {
    let (_turn, o) = stage().await;
    let mut t = StreamedTenant::new(o, "compacted").await;
    let before = t.sync(&["w1", "w2", "w3"]).await;
    let failures = watch_failures(o).await;

    o.plane.command("pause manager").unwrap();
    // All of this the manager will never see as events.
    let all = t.tenant.companions().await.unwrap();
    let w1 = all.iter().find(|c| annotation(c, "workload-name") == Some("w1")).unwrap();
    t.tenant.pods().delete(&w1.name_any(), &DeleteParams::default().grace_period(0)).await.unwrap();
    t.tenant.rule("second", rule_for("app", "other")).await;
    Etcd::of(&o.plane).unwrap().compact().unwrap();
    // An API server that starts knows no history either.
    o.plane.command("restart infra/kube-apiserver").unwrap();
    o.plane.command("resume manager").unwrap();

    let after = eventually("w1 has a new companion", || async {
        let now = t.are(&["w1", "w2", "w3"]).await?;
        if now["w1"] == before["w1"] { Err("it is the old one".to_owned()) } else { Ok(now) }
    })
    .await;
    assert_eq!((&after["w2"], &after["w3"]), (&before["w2"], &before["w3"]), "the others stay");
    let accepted = t.tenant.condition("second", "Accepted", outrigger_api::conditions::Status::True, "Valid");
    accepted.await;
    assert!(watch_failures(o).await > failures, "no watch has noticed");
}

/// Fills etcd until it takes no more.
async fn fill(client: &Client) -> Api<ConfigMap> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let big = "x".repeat(1 << 20);
    for n in 0.. {
        let data = json!({"metadata": {"name": format!("big-{n}"), "labels": {"big": "yes"}}, "data": {"x": big[..1_000_000]}});
        match create(&maps, &data).await {
            Ok(_) => assert!(n < 200, "etcd has no quota"),
            Err(error) => {
                assert!(error.to_string().contains("database space exceeded"), "{error}");
                break;
            }
        }
    }
    maps
}

#[tokio::test]
#[ignore = "long"]
async fn an_etcd_that_is_full_deletes_nothing_and_all_goes_on_when_it_has_room() {
    let (_turn, o) = stage().await;
    let etcd = Etcd::of(&o.plane).unwrap();
    let mut t = StreamedTenant::new(o, "full").await;
    let before = t.sync(&["w1", "w2"]).await;
    let maps = fill(&o.plane.infra.client_without_retries().await).await;
    assert!(etcd.ctl(&["alarm", "list"]).unwrap().contains("NOSPACE"));

    // A new stream can't be claimed, and a new companion can't be created.
    let pods = t.tenant.pods();
    t.hang_up().await;
    let task = tokio::spawn(async move {
        let after = t.sync(&["w1", "w2", "w3"]).await;
        (t, after)
    });
    always("nothing is deleted", Duration::from_secs(40), || async {
        let list = pods.list(&ListParams::default().labels(keys::RULE)).await.in_words()?;
        let now: BTreeSet<String> = list.items.iter().filter_map(ResourceExt::uid).collect();
        holds(now == before.values().cloned().collect(), format!("{now:?}"))
    })
    .await;
    assert!(!task.is_finished());

    // What an administrator does: make room, compact, defragment, clear the alarm.
    maps.delete_collection(&DeleteParams::default(), &ListParams::default().labels("big=yes")).await.unwrap();
    etcd.compact().unwrap();
    etcd.ctl(&["defrag"]).unwrap();
    etcd.ctl(&["alarm", "disarm"]).unwrap();
    let (_t, after) = task.await.unwrap();
    for (name, uid) in &before {
        assert_eq!(after.get(name), Some(uid), "{name} was made again");
    }
}

/// What comes after the snapshot and is lost with it: w3 goes, w4 comes, the rule changes.
async fn restored(bump: Option<u64>, id: &str) {
    let (_turn, o) = stage().await;
    let etcd = Etcd::of(&o.plane).unwrap();
    let mut t = StreamedTenant::new(o, id).await;
    let before = t.sync(&["w1", "w2", "w3"]).await;
    let snapshot = o.plane.dir.join(format!("{id}.snapshot"));
    etcd.save(&snapshot).unwrap();
    t.hang_up().await;
    t.sync(&["w1", "w2", "w4"]).await;
    t.image("later").await;
    t.rolled_out("later").await;

    let servers = ["tenant/kube-apiserver", "infra/kube-apiserver"];
    o.plane.command_all("stop", servers);
    o.plane.command("stop etcd").unwrap();
    etcd.restore(&snapshot, bump).unwrap();
    o.plane.command("start etcd").unwrap();
    o.plane.command_all("start", servers);
    for part in ["kube-controller-manager", "kube-scheduler", "kwok"] {
        for cluster in ["tenant", "infra"] {
            o.plane.command(&format!("restart {cluster}/{part}")).unwrap();
        }
    }
    if bump.is_none() {
        o.plane.command_all("restart", ["manager", "webhook"]);
        o.ready().await;
    }

    // The workloads are what they are; the template is that of the snapshot.
    t.hang_up().await;
    let after = t.sync(&["w1", "w2", "w4"]).await;
    for name in ["w1", "w2"] {
        assert_eq!(after[name], before[name], "{name}'s companion is that of the snapshot");
    }
    t.rolled_out("companion").await;
    // Everything that was believed before is forgotten: edits, new workloads and deletions are followed.
    t.image("latest").await;
    t.rolled_out("latest").await;
    t.hang_up().await;
    t.sync(&["w2", "w5"]).await;
}

#[tokio::test]
#[ignore = "long"]
async fn a_snapshot_that_is_restored_with_later_revisions_is_followed_without_a_restart() {
    restored(Some(1_000_000_000), "bumped").await;
}

#[tokio::test]
#[ignore = "long"]
async fn a_snapshot_that_is_restored_with_its_own_revisions_is_followed_after_a_restart() {
    restored(None, "unbumped").await;
}
