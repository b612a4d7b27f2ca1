//! Writes that are done, and whose writer doesn't know.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::DeleteParams;
use outrigger_api::conditions::Status;
use outrigger_core::keys;
use outrigger_tests::faults::{Fault, Matching, Moment, Next, Proxy, Verb};
use outrigger_tests::tenant::{annotation, rule_for, rule_with};
use outrigger_tests::{InWords, always, eventually, holds};
use parking_lot::Mutex;
use serde_json::json;

use crate::faults::stage::Stage;

/// What was written first about each object, by verb and resource.
type Lost = Arc<Mutex<BTreeSet<String>>>;

/// Loses the first answer to each kind of write about each object whose name or namespace has this part.
fn lose_first_answers(proxy: &Proxy, part: &'static str) -> Lost {
    let lost = Lost::default();
    let seen = lost.clone();
    proxy.on_write(move |call, moment| {
        let has = |text: &Option<String>| text.as_deref().is_some_and(|text| text.contains(part));
        if moment == Moment::Before || !(has(&call.name) || has(&call.namespace)) {
            return Next::GoOn;
        }
        let name = call.name.as_deref().unwrap_or_default();
        let first = seen.lock().insert(format!("{} {} {name}", call.verb.as_str(), call.resource));
        if first { Next::Drop } else { Next::GoOn }
    });
    lost
}

/// Verbs and resources of what was lost.
fn kinds(lost: &Lost) -> BTreeSet<String> {
    let of = |text: &String| text.rsplit_once(' ').map(|(kind, _)| kind.to_owned());
    lost.lock().iter().filter_map(of).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_goes_on_when_the_first_answer_to_every_write_is_lost() {
    let stage = Stage::shared().await;
    let (infra, cluster) = (
        lose_first_answers(&stage.manager, "unanswered"),
        lose_first_answers(&stage.agents, "work-unanswered"),
    );
    let t = stage.tenant("unanswered", &["a"]).await;
    stage.agent(&t, &[]);
    t.own_rule("r", rule_for("app", "web")).await.unwrap();
    t.start("w1", "a", json!({"app": "web", "version": "1"})).await;
    t.web("w2").await;
    let before = t.ready(2).await;
    t.change("w1", json!({"metadata": {"labels": {"version": "2"}}})).await;
    t.has("the companion has the fact", 1, 2, |pod| annotation(pod, "version") == Some("2")).await;
    let uids = |all: &[Pod]| all.iter().filter_map(|pod| pod.uid()).collect::<BTreeSet<_>>();
    assert_eq!(uids(&t.ready(2).await), uids(&before), "nothing was made twice");
    t.end("w2").await;
    t.ready(1).await;
    t.own_rule("r", rule_with("/template/metadata/labels/app", json!("newer"))).await.unwrap();
    let newer = |pod: &Pod| pod.labels().get("app").is_some_and(|app| app == "newer");
    t.has("the companion is replaced", 1, 1, newer).await;
    t.own_rules().delete("r", &DeleteParams::default()).await.unwrap();
    t.ready(0).await;
    t.rule_is_gone("r").await;
    t.delete().await;
    stage.manager.off_write();
    stage.agents.off_write();
    let (infra, cluster) = (kinds(&infra), kinds(&cluster));
    println!("answers that were lost: {infra:?}; in the tenant's cluster: {cluster:?}");
    for kind in [
        "create pods",
        "patch pods",
        "delete pods",
        "create workloadrules",
        "update workloadrules",
        "delete workloadrules",
        "patch tenants",
        "patch tenants/status",
        "patch nodes",
        "create namespaces",
    ] {
        assert!(infra.contains(kind), "no {kind} in {infra:?}");
    }
    for kind in ["patch workloadrules", "patch workloadrules/status"] {
        assert!(cluster.contains(kind), "no {kind} in {cluster:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rule_whose_creation_timed_out_and_was_stored_keeps_its_finalizer() {
    let stage = Stage::shared().await;
    let t = stage.tenant("timed-out", &["a"]).await;
    let create = Matching::verb(Verb::Create, "workloadrules").namespace(&t.namespace).times(1);
    let replaced = stage.manager.fault(create, Fault::ReplaceAnswer { code: 504 });
    stage.agent(&t, &[]);
    t.own_rule("r", rule_for("app", "web")).await.unwrap();
    stage.manager.hit(replaced).await;
    t.condition("r", "Synced", Status::True, "StreamConnected").await;
    let has_finalizer = || async {
        let rule = t.own_rules().get("r").await.in_words()?;
        let has = rule.finalizers().iter().any(|f| f == keys::RULE_FINALIZER);
        holds(has, format!("its finalizers are {:?}", rule.finalizers()))
    };
    always("the finalizer stays", Duration::from_secs(3), has_finalizer).await;
    // What is deleted while no agent runs waits for one.
    stage.o.plane.command("term agent-timed-out").unwrap();
    t.own_rules().delete("r", &DeleteParams::default()).await.unwrap();
    has_finalizer().await.unwrap();
    stage.o.plane.command("start agent-timed-out").unwrap();
    t.rule_is_gone("r").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_admin_companion_that_is_created_after_its_tenants_release_does_not_stay() {
    let stage = Stage::shared().await;
    let t = stage.tenant("too-late", &["a"]).await;
    let companions = stage.admin_rule(&t);
    let create = Matching::verb(Verb::Create, "pods").namespace("universe").body(&t.id);
    let held = stage.manager.fault(create, Fault::HoldRequest);
    let _stream = stage.open_stream(&t, &["w1"]).await;
    stage.manager.hit(held).await;
    stage.o.plane.infra.kubectl(&["delete", "tenant", &t.id, "--timeout=100s"]).unwrap();
    stage.manager.remove(held);
    eventually("the create has been answered", || async {
        let creates = Matching::verb(Verb::Create, "pods").namespace("universe").body(&t.id);
        let all = stage.manager.calls_of(&creates);
        if all.iter().any(|call| call.status.is_some()) { Ok(all) } else { Err("it hasn't".to_owned()) }
    })
    .await
    .iter()
    .for_each(|call| println!("{call}"));
    stage.admin_companions_are_gone(&companions).await;
    let infra = &stage.o.plane.infra;
    infra.kubectl(&["delete", "adminworkloadrules", &t.id, "-n", "universe", "--timeout=100s"]).unwrap();
}
