//! Claims for companions, and companions that are claims.

use std::collections::BTreeSet;

use kube::ResourceExt;
use outrigger_core::keys;
use outrigger_tests::devices::{Devices, made, templates};
use outrigger_tests::holds;
use outrigger_tests::tenant::{Tenant, rule_for, rule_with};
use serde_json::{Value, json};

use super::tenant;
use crate::crash::run::Run;

/// The names of the claims that are companions themselves.
async fn companions(t: &Tenant) -> Result<BTreeSet<String>, String> {
    let all = made(&t.infra, &t.namespace).await?;
    Ok(all.iter().filter(|c| c.labels().contains_key(keys::WORKLOAD)).map(ResourceExt::name_any).collect())
}

/// A rule whose companions have a claim, by this name of its request.
fn with_claim(devices: &Devices, request: &str) -> Value {
    let mut spec = rule_for("app", "web");
    let mut claim = devices.one();
    claim["devices"]["requests"][0]["name"] = json!(request);
    spec["deviceClaims"] = json!([{"name": "d", "spec": claim}]);
    spec
}

/// Two workloads have a companion with a claim and one that is a claim; the first rule's claim changes; one workload ends.
pub(crate) async fn steps(run: &Run) -> Result<(), String> {
    let t = tenant(run, "", &[("a", 1)]).await?;
    let devices = Devices::publish(&t, &[("a", 8)]).await;
    run.begin();
    run.act("the rule of claims is taken", || t.try_rule("bare", rule_with("/template", devices.template())))
        .await?;
    run.act("the rule with a claim is taken", || t.try_rule("with", with_claim(&devices, "r"))).await?;
    for name in ["w0", "w1"] {
        t.web(name).await;
    }
    run.companions(&t, 2, |_| true).await?;
    let two = run
        .reach("two claims are companions", || async {
            let names = companions(&t).await?;
            holds(names.len() == 2, format!("{names:?}"))
        })
        .await?;
    let mut claims = made(&t.infra, &t.namespace).await?;
    claims.retain(|claim| claim.labels().contains_key(keys::WORKLOAD));
    if two {
        run.hold(&claims).await?;
    }
    let before: Vec<String> =
        templates(&t.infra, &t.namespace).await?.iter().map(ResourceExt::name_any).collect();
    run.act("the claim changes", || t.try_rule("with", with_claim(&devices, "s"))).await?;
    run.reach("the template of claims is another", || async {
        let all = templates(&t.infra, &t.namespace).await?;
        holds(all.len() == 1 && !before.contains(&all[0].name_any()), all.len().to_string())
    })
    .await?;
    run.companions(&t, 2, |_| true).await?;
    run.release(&claims).await?;
    t.end("w1").await;
    run.companions(&t, 1, |_| true).await?;
    run.reach("one claim is a companion", || async {
        let names = companions(&t).await?;
        holds(names.len() == 1, format!("{names:?}"))
    })
    .await?;
    Ok(())
}
