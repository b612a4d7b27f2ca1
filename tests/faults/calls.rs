//! Calls that are refused, or never answered: they end, and the queue tries again.

use std::time::{Duration, Instant};

use futures::future::{BoxFuture, FutureExt, join_all};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams};
use outrigger_api::conditions::Status;
use outrigger_core::keys;
use outrigger_tests::faults::{Fault, FaultId, Matching, Verb};
use outrigger_tests::tenant::{self, dpu, host, namespace, rule_for};
use outrigger_tests::{InWords, always, eventually, holds, until};
use serde_json::{Value, json};

use crate::faults::stage::Stage;

fn creates(namespace: &str) -> Matching {
    Matching::verb(Verb::Create, "pods").namespace(namespace)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_with_a_long_pause_holds_nothing_up() {
    let stage = Stage::shared().await;
    for code in [429, 503] {
        let t = stage.tenant(&format!("pause-{code}"), &["a"]).await;
        // The queue decides when to try again: what an overloaded server asks for is no reason to wait an hour.
        let refused = stage
            .manager
            .fault(creates(&t.namespace).times(1), Fault::Status { code, retry_after: Some(3600) });
        t.rule("r", rule_for("app", "web")).await;
        let _stream = stage.open_stream(&t, &["w1"]).await;
        stage.manager.hit(refused).await;
        t.companion().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_longer_wanted_is_no_longer_sent() {
    let stage = Stage::shared().await;
    let t = stage.tenant("unsent", &["a"]).await;
    let refused = stage.manager.fault(creates(&t.namespace), Fault::Status { code: 503, retry_after: None });
    t.rule("r", rule_for("app", "web")).await;
    let _stream = stage.open_stream(&t, &["w1", "w2", "w3"]).await;
    eventually("creation is tried again and again", || async {
        let hits = stage.manager.hits(refused);
        holds(hits > 12, format!("{hits}"))
    })
    .await;
    t.rules().delete("r", &DeleteParams::default()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = stage.manager.hits(refused);
    always("nothing is sent for a rule that is gone", Duration::from_secs(8), || async {
        let now = stage.manager.hits(refused);
        holds(now == before, format!("{} more", now - before))
    })
    .await;
}

/// A Machine with one node and one type, in a namespace of its own.
fn machine(group: &str) -> [Value; 3] {
    let (mut guests, node) = (namespace(group), format!("{group}-n1"));
    guests["metadata"]["labels"] = json!({keys::INJECT_RESOURCE: "enabled"});
    [guests, host(&node), tenant::machine(group, &[(&node, "t1")], &[("t1", 2)])]
}

/// A Pod that takes a slot of it.
fn guest(group: &str) -> Value {
    json!({"metadata": {"name": "g", "labels": {keys::MACHINE_GROUP: group, keys::MACHINE_TYPE: "t1",
            keys::POD_ROLE: keys::GUEST}},
        "spec": {"containers": [{"name": "c", "image": "i"}]}})
}

/// Waits until the thing that a hung call was about has been done all the same.
async fn done(what: &str, began: Instant, done: BoxFuture<'static, ()>) {
    done.await;
    println!("{what}: done after {:.1} s", began.elapsed().as_secs_f64());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_are_never_answered_end_and_are_made_again() {
    let stage = Stage::shared().await;
    let mut all: Vec<BoxFuture<'static, ()>> = Vec::new();
    let began = Instant::now();
    let hole = |proxy: &outrigger_tests::faults::Proxy, matching: Matching| -> FaultId {
        proxy.fault(matching.times(1), Fault::BlackHole)
    };

    // A companion, its dry run, and a change of what is known of its workload.
    let t = stage.tenant("hung-create", &["a"]).await;
    let create = hole(&stage.manager, creates(&t.namespace));
    t.rule("r", rule_for("app", "web")).await;
    let stream = stage.open_stream(&t, &["w1"]).await;
    all.push(
        async move {
            stage.manager.hit(create).await;
            done("a companion", began, async move { drop(t.companion().await) }.boxed()).await;
            drop(stream);
        }
        .boxed(),
    );
    // The claim on a stream.
    let t = stage.tenant("hung-claim", &["a"]).await;
    let patch = Matching { verbs: vec![Verb::Patch], ..Matching::all() };
    let of =
        |resource: &str, name: &str| Matching { resource: Some(resource.into()), ..patch.clone() }.name(name);
    let claim = hole(&stage.manager, of("tenants/status", &t.id).body("\"claim\""));
    t.rule("r", rule_for("app", "web")).await;
    stage.agent(&t, &[]);
    t.web("w1").await;
    all.push(
        async move {
            stage.manager.hit(claim).await;
            done("a claim", began, async move { drop(t.companion().await) }.boxed()).await;
        }
        .boxed(),
    );
    // A rule on its way: its finalizer, the rule itself, and its status.
    for (id, in_tenant, matching) in [
        ("hung-finalizer", true, Matching::verb(Verb::Patch, "workloadrules").body("finalizers")),
        ("hung-rule", false, Matching::verb(Verb::Create, "workloadrules")),
        ("hung-status", true, Matching::verb(Verb::Patch, "workloadrules/status")),
    ] {
        let t = stage.tenant(id, &["a"]).await;
        let (proxy, namespace) =
            if in_tenant { (&stage.agents, &t.source) } else { (&stage.manager, &t.namespace) };
        let fault = hole(proxy, matching.namespace(namespace));
        stage.agent(&t, &[]);
        t.own_rule("r", rule_for("app", "web")).await.unwrap();
        all.push(
            async move {
                proxy.hit(fault).await;
                let synced = async move {
                    t.condition("r", "Synced", Status::True, "StreamConnected").await;
                    until("its status is in the tenant's cluster", &t.own_rules(), "r", |rule| {
                        rule.status.map(drop).ok_or_else(|| "it has none".to_owned())
                    })
                    .await;
                };
                done(id, began, synced.boxed()).await;
            }
            .boxed(),
        );
    }
    // A slot's ledger, which the webhook writes: guests wait for it.
    eventually("the Machine is taken", || async { stage.o.plane.infra.apply(&machine("hung-ledger")) }).await;
    let ledger = Matching::writes("configmaps").body("hung-ledger");
    let ledger = stage.webhook.fault(ledger.times(1), Fault::BlackHole);
    let pods: Api<Pod> = Api::namespaced(stage.o.plane.infra.client().await, "hung-ledger");
    let guest = async move {
        let guest = guest("hung-ledger");
        eventually("the guest is taken", || async { outrigger_tests::create(&pods, &guest).await }).await;
        assert_eq!(stage.webhook.hits(ledger), 1, "the ledger was written");
    };
    all.push(done("a guest's slot", began, guest.boxed()).boxed());
    // A DPU.
    let t = stage.tenant("hung-node", &["a"]).await;
    let name = t.node("late");
    let node = hole(&stage.manager, of("nodes", &name));
    stage.o.plane.infra.apply(&[dpu(&name, &t.node("a"))]).unwrap();
    all.push(
        async move {
            stage.manager.hit(node).await;
            let nodes = t.nodes();
            let marked = eventually("the DPU is marked", move || {
                let (nodes, name) = (nodes.clone(), name.clone());
                async move {
                    let node = nodes.get(&name).await.in_words()?;
                    node.labels().get(keys::NODE_TENANT).map(drop).ok_or_else(|| "it isn't".to_owned())
                }
            });
            done("a DPU", began, marked.boxed()).await;
        }
        .boxed(),
    );
    join_all(all).await;
    eventually("no key is under way for ever", || stage.idle()).await;
}
