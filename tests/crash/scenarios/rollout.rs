//! A template that changes, and is rolled out one companion at a time.

use k8s_openapi::api::core::v1::Pod;
use outrigger_tests::tenant::rule_for;
use serde_json::{Value, json};

use super::tenant;
use crate::crash::run::Run;

const COMPANIONS: usize = 4;

fn of_image(image: &str) -> Value {
    let mut spec = rule_for("app", "web");
    spec["template"]["spec"]["containers"][0]["image"] = json!(image);
    spec["updateStrategy"] = json!({"rollingUpdate": {"maxUnavailable": 1}});
    spec
}

fn image(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|s| s.containers[0].image.as_deref()).unwrap_or_default()
}

/// Four companions of one template become four of another.
pub(crate) async fn steps(run: &Run) -> Result<(), String> {
    let t = tenant(run, "", &[("a", 1)]).await?;
    run.act("the rule is taken", || t.try_rule("r", of_image("one"))).await?;
    t.webs("w", 0..COMPANIONS).await;
    run.companions(&t, COMPANIONS, |_| true).await?;
    run.keep_ready(&t, COMPANIONS - 1).await?;
    run.begin();
    run.act("the rule is taken", || t.try_rule("r", of_image("two"))).await?;
    run.companions(&t, COMPANIONS, |pod| image(pod) == "two").await?;
    Ok(())
}
