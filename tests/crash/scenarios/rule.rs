//! A tenant's rule, its workloads, and their companions.

use outrigger_tests::tenant::{annotation, rule_for};
use serde_json::json;

use super::{tenant, workload};
use crate::crash::run::Run;

/// A rule comes, three workloads start, facts of one change, and one ends.
pub(crate) async fn steps(run: &Run) -> Result<(), String> {
    let t = tenant(run, "", &[("a", 1)]).await?;
    run.begin();
    run.act("the rule is taken", || t.try_rule("r", rule_for("app", "web"))).await?;
    for name in ["w0", "w1", "w2"] {
        t.start(name, "a", json!({"app": "web", "version": "1"})).await;
    }
    let made = run.companions(&t, 3, |pod| annotation(pod, "version") == Some("1")).await?;
    let all = t.companions().await?;
    if made {
        run.hold(&all).await?;
    }
    t.change("w1", json!({"metadata": {"labels": {"version": "2"}}})).await;
    let wanted = |name: &str| if name == "w1" { Some("2") } else { Some("1") };
    run.companions(&t, 3, |pod| annotation(pod, "version") == wanted(workload(pod))).await?;
    let ending: Vec<_> = all.into_iter().filter(|pod| workload(pod) == "w2").collect();
    run.release(&ending).await?;
    t.end("w2").await;
    run.companions(&t, 2, |pod| workload(pod) != "w2").await?;
    Ok(())
}
