//! An API server that stops without closing a connection, as a peer does that a network has lost.

use std::time::{Duration, Instant};

use futures::future::join_all;
use kube::ResourceExt;
use kube::api::DeleteParams;
use outrigger_core::keys;
use outrigger_tests::kubelet::reassert_ready;
use outrigger_tests::tenant::{dpu, rule_for, rule_with, tenant};
use outrigger_tests::{InWords, condition_of, eventually, holds};
use serde_json::json;
use tokio_util::task::AbortOnDropHandle;

use crate::faults::stage::Stage;

/// Waits until something is so, and prints how long after the API server's return that is.
async fn within<T, F>(what: &str, returned: Instant, ask: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T, String>>,
{
    let answer = eventually(what, ask).await;
    println!("{what}: {:.1} s after the API server's return", returned.elapsed().as_secs_f64());
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long"]
async fn all_work_goes_on_after_the_api_server_has_been_suspended() {
    let stage = Stage::shared().await;
    let o = &stage.o;
    let t = stage.tenant("stopped", &["a"]).await;
    stage.agent(&t, &[]);
    t.own_rule("r", rule_for("app", "web")).await.unwrap();
    for name in ["w0", "w1", "w2"] {
        t.web(name).await;
    }
    t.ready(3).await;
    // Nodes are not ready after a suspension of that length, and so none of their Pods is until a kubelet says otherwise.
    let _kubelet = AbortOnDropHandle::new(tokio::spawn(reassert_ready(t.infra.clone())));
    let nodes = t.nodes();
    for (name, cluster) in [("infra", &o.plane.infra), ("tenant", &o.plane.tenant)] {
        let server = format!("{name}/kube-apiserver");
        // Work is under way in the moment in which it stops.
        for n in 0..20 {
            t.web(&format!("{name}-{n}")).await;
        }
        o.plane.command(&format!("pause {server}")).unwrap();
        if name == "infra" {
            for n in 20..30 {
                t.web(&format!("{name}-{n}")).await;
            }
        }
        tokio::time::sleep(Duration::from_secs(60)).await;
        o.plane.command(&format!("resume {server}")).unwrap();
        let returned = Instant::now();
        eventually(&format!("{server} answers"), || async { cluster.kubectl(&["get", "--raw=/readyz"]) })
            .await;
        let count = if name == "infra" { 33 } else { 54 };
        let late = format!("{name}-late");
        t.web(&late).await;
        let node = t.node(&format!("{name}-late"));
        o.plane.infra.apply(&[dpu(&node, &t.node("a"))]).unwrap();
        t.own_rule("r", rule_with("/workloadInfoInject/0/asAnnotation/name", json!(format!("name-{name}"))))
            .await
            .unwrap();
        let other = tenant(&format!("stopped-{name}"), json!({"hosts": []}));
        let companions = within("companions", returned, || async {
            let found = t.companions().await?.len();
            holds(found == count + 1, format!("{found} of {}", count + 1))
        });
        let edit = within("an edit of a rule", returned, || async {
            let rule = t.rules().get("r").await.in_words()?;
            let text = serde_json::to_string(&rule).in_words()?;
            holds(text.contains(&format!("name-{name}")), "the edit is missing")
        });
        let marked = within("a new DPU", returned, || async {
            let node = nodes.get(&node).await.in_words()?;
            node.labels().get(keys::NODE_TENANT).map(drop).ok_or_else(|| "it isn't marked".to_owned())
        });
        let admitted = within("a new Tenant", returned, || async {
            o.plane.infra.apply(std::slice::from_ref(&other)).in_words()?;
            let id = format!("stopped-{name}");
            let tenant = t.object().get(&id).await.in_words()?;
            holds(!condition_of(&tenant, "Ready").is_null(), "no condition")
        });
        tokio::join!(companions, edit, marked, admitted);
        within("no key is under way", returned, || stage.idle()).await;
    }
    let ends = (0..30).map(|n| format!("infra-{n}")).map(|name| {
        let work = t.work();
        async move { work.delete(&name, &DeleteParams::default()).await.map(drop) }
    });
    join_all(ends).await.into_iter().for_each(|ended| ended.unwrap());
    t.ready(25).await;
}
