//! Companions that are claims, and what the claims of others are made from.

use std::collections::BTreeMap;

use kube::ResourceExt;
use outrigger_tests::devices::{Devices, made, templates};
use outrigger_tests::tenant::{Tenant, rule_for, rule_with};
use outrigger_tests::{eventually, holds};
use serde_json::json;

use crate::restarts::{alone, start_many};

async fn uids(t: &Tenant) -> Result<BTreeMap<String, String>, String> {
    let all = made(&t.infra, &t.namespace).await?;
    Ok(all.iter().map(|claim| (claim.name_any(), claim.uid().unwrap_or_default())).collect())
}

#[tokio::test]
async fn a_manager_killed_amid_claims_makes_none_twice_and_loses_none() {
    const COUNT: usize = 60;
    let (_one, o) = alone().await;
    let t = Tenant::new(o, "killed-dev", &[("a", 1)]).await;
    let devices = Devices::publish(&t, &[("a", 1)]).await;
    start_many(&t, COUNT).await;
    let claims = rule_with("/template", devices.template());
    eventually("the rule is taken", || async { t.try_rule("claims", claims.clone()).await }).await;
    let mut pods = rule_for("app", "none");
    pods["deviceClaims"] = json!([{"name": "d", "spec": devices.one()}]);
    t.rule("pods", pods.clone()).await;
    eventually("creation is under way", || async {
        let (claims, templates) = (uids(&t).await?.len(), templates(&t.infra, &t.namespace).await?.len());
        holds(claims >= 10 && templates == 1, format!("{claims}, {templates}"))
    })
    .await;
    o.plane.command("stop manager").unwrap();
    let before = uids(&t).await.unwrap();
    // What somebody deletes, and what a rule no longer needs, is seen to when it is back.
    let lost = before.keys().next().unwrap().clone();
    let api = outrigger_tests::devices::claims(&t.infra, &t.namespace);
    api.delete(&lost, &kube::api::DeleteParams::default()).await.unwrap();
    let old = templates(&t.infra, &t.namespace).await.unwrap().remove(0).name_any();
    pods["deviceClaims"][0]["spec"]["devices"]["requests"][0]["name"] = json!("s");
    t.rule("pods", pods).await;
    o.plane.command("start manager").unwrap();
    let after = eventually("there is one for each", || async {
        let now = uids(&t).await?;
        if now.len() == COUNT { Ok(now) } else { Err(now.len().to_string()) }
    })
    .await;
    for (name, uid) in before.iter().filter(|(name, _)| **name != lost) {
        assert_eq!(after.get(name), Some(uid), "{name} was made again");
    }
    assert_ne!(after[&lost], before[&lost]);
    eventually("the template is another", || async {
        let all = templates(&t.infra, &t.namespace).await?;
        holds(all.len() == 1 && all[0].name_any() != old, all.len().to_string())
    })
    .await;
}
