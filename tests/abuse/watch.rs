//! Callers of Watch: those who may not, those who call too often, and those who never read.

use futures::future::join_all;
use outrigger_proto::v1;
use outrigger_proto::v1::workload_rule_service_client::WorkloadRuleServiceClient;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::stream::{about, update};
use outrigger_tests::tenant::{Tenant, rule_for};
use outrigger_tests::{eventually, holds, watch};
use tonic::Code;

use crate::abuse::grpc::channel;
use crate::abuse::{alone, is_modest, neighbour};

#[tokio::test]
async fn nobody_hears_of_another_tenants_companions() {
    let o = Outrigger::shared().await;
    let t = Tenant::with_rule_only(o, "ab-heard").await;
    let _other = Tenant::without_agent(o, "ab-curious", &[]).await;
    let opened = t.opens_stream(t.on_a(&["w"])).await;
    for tenant in ["ab-heard", "ab-nobody"] {
        let status = watch::open(channel(o, "ab-curious").await, tenant).await.unwrap_err();
        assert_eq!(status.code(), Code::PermissionDenied, "{status}");
    }
    // The control: its own identity hears it.
    let heard = t.watches().await.heard();
    assert!(heard.workloads.contains_key("w"), "{heard:?}");
    assert!(!opened.1.is_finished());
}

/// An administrator gives a namespace to another tenant, while the former one's calls go on.
#[tokio::test]
async fn who_has_lost_a_namespace_hears_and_writes_nothing_of_the_next_tenant() {
    let o = Outrigger::shared().await;
    let former = Tenant::without_agent(o, "ab-former", &[]).await;
    former.rule("r", rule_for("app", "web")).await;
    let mut rules = WorkloadRuleServiceClient::new(channel(o, "ab-former").await);
    let get = || about("ab-former", v1::GetRequest { id: "r".into() });
    let delete = || about("ab-former", v1::DeleteRequest { id: "r".into(), ..Default::default() });
    rules.get(get()).await.unwrap();
    // A call that waits for the workloads.
    let waits = watch::open(channel(o, "ab-former").await, "ab-former").await.unwrap();
    let waits = watch::Watch::of(waits);

    // The controls are above: all of this was answered.
    let next = Tenant::without_agent(o, "ab-next", &[]).await;
    let label = format!("outrigger.dev/tenant={}", next.id);
    o.plane.infra.kubectl(&["label", "--overwrite", "namespace", &former.namespace, &label]).unwrap();
    eventually("the call has ended", || async { holds(waits.call.is_finished(), "it goes on") }).await;
    let heard = waits.heard();
    assert_eq!(heard.log, "", "not a word");
    let status = waits.call.await.unwrap();
    assert!(status.message().contains("has belonged to another one"), "{status}");
    for status in [rules.get(get()).await.map(drop), rules.delete(delete()).await.map(drop)] {
        let status = status.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{status}");
    }
    former.rules().get("r").await.unwrap();
    let again = watch::open(channel(o, "ab-former").await, "ab-former").await;
    assert_eq!(again.unwrap_err().code(), Code::Unavailable);
}

#[tokio::test]
async fn readers_that_never_read_cost_little_and_a_tenant_has_few_of_them() {
    let _alone = alone().await;
    const WORKLOADS: usize = 2_000;
    let o = Outrigger::shared().await;
    let neighbour = neighbour(o, "ab-read-q").await;
    let t = Tenant::without_agent(o, "ab-read", &[("a", 1)]).await;
    // Companions that wait for a node: no Pod is made, and each change is sent.
    t.rule("r", rule_for("app", "web")).await;
    let all = |version: usize| {
        (0..WORKLOADS).map(move |i| {
            let mut update = update(&format!("w{i}"), "");
            let app = if version.is_multiple_of(2) { "web" } else { "other" };
            outrigger_tests::stream::set_label(&mut update, "app", app);
            update
        })
    };
    let opened = t.opens_stream(all(0)).await;
    let loud = channel(o, "ab-read").await;
    let mut asleep = Vec::new();
    for _ in 0..4 {
        asleep.push(watch::open(loud.clone(), "ab-read").await.unwrap());
    }
    let more = join_all((0..8).map(|_| watch::open(loud.clone(), "ab-read"))).await;
    for refused in more {
        let status = refused.unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
        assert!(status.message().contains("has 4 calls of Watch open already"), "{status}");
    }
    for version in 1..=20 {
        opened.0.send(outrigger_tests::stream::sync(all(version))).await.unwrap();
    }
    neighbour.goes_on(10).await;
    assert!(!opened.1.is_finished(), "its stream has ended");
    is_modest("manager", &format!("--bind-address=tcp://127.0.0.1:{}", o.grpc_port));
    // Who goes away makes room, and whoever reads hears the last state of all.
    drop(asleep);
    let watch = eventually("there is room again", || async {
        let opened = watch::open(loud.clone(), "ab-read").await;
        opened.map(watch::Watch::of).map_err(|status| status.to_string())
    })
    .await;
    watch
        .says("the last state of all is sent", |heard| {
            let waiting = heard.workloads.values().filter(|companions| companions.len() == 1).count();
            holds(heard.synced && waiting == WORKLOADS, waiting.to_string())
        })
        .await;
    neighbour.undisturbed().await;
}
