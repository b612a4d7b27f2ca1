//! Rules that a tenant makes in its own cluster, and that its agent brings to the infrastructure cluster.

use kube::api::DeleteParams;
use outrigger_tests::tenant::{Tenant, annotation, rule_for};
use outrigger_tests::{InWords, is_true};
use serde_json::{Value, json};

use super::tenant;
use crate::crash::run::Run;

/// A rule that writes one more fact into each companion, by this name.
fn injecting(fact: &str) -> Value {
    let mut spec = rule_for("app", "web");
    let inject = json!({"workloadKey": ".metadata.resourceName", "asAnnotation": {"name": fact}});
    if let Some(list) = spec["workloadInfoInject"].as_array_mut() {
        list.push(inject);
    }
    spec
}

/// Waits until the tenant reads that a rule is served as it is now.
async fn served(run: &Run, t: &Tenant, name: &str) -> Result<bool, String> {
    run.reach(&format!("rule {name} is served"), || async {
        let rule = t.own_rules().get(name).await.in_words()?;
        let synced = is_true(&rule, "Synced");
        let status = rule.status.unwrap_or_default();
        if synced && status.observed_generation == rule.metadata.generation {
            return Ok(());
        }
        Err(format!("{status:?}"))
    })
    .await
}

/// A rule is made, changed and deleted; another one stays.
pub(crate) async fn steps(run: &Run) -> Result<(), String> {
    let t = tenant(run, "", &[("a", 1)]).await?;
    t.web("w").await;
    run.begin();
    run.act("the rule is made", || t.own_rule("fw", injecting("first"))).await?;
    let made = run.companions(&t, 1, |pod| annotation(pod, "first") == Some("w")).await?;
    served(run, &t, "fw").await?;
    let (mut pods, mut rules) = (Vec::new(), Vec::new());
    if made {
        pods = t.companions().await?;
        rules.push(t.rules().get("fw").await.in_words()?);
        run.hold(&pods).await?;
        run.hold(&rules).await?;
    }
    run.act("the rule is changed", || t.own_rule("fw", injecting("second"))).await?;
    run.companions(&t, 1, |pod| annotation(pod, "second") == Some("w")).await?;
    run.act("another rule is made", || t.own_rule("stays", rule_for("app", "other"))).await?;
    served(run, &t, "stays").await?;
    run.release(&pods).await?;
    run.release(&rules).await?;
    t.own_rules().delete("fw", &DeleteParams::default()).await.in_words()?;
    run.reach("the rule is gone on both sides", || async {
        let here = t.own_rules().get_opt("fw").await.in_words()?.is_some();
        let there = t.rules().get_opt("fw").await.in_words()?.is_some();
        if here || there { Err(format!("{here} {there}")) } else { Ok(()) }
    })
    .await?;
    run.companions(&t, 0, |_| true).await?;
    Ok(())
}
