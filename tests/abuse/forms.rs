//! What somebody with a login does to the console of all others.

use std::net::Ipv4Addr;
use std::time::Duration;

use http_body_util::BodyExt;
use outrigger_tests::console::{LoggedIn, ServedConsole, administrator, reader};
use outrigger_tests::cost::{forget_peak, peak, process, resident};
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::tenant::{Tenant, rule_for};
use serde_json::json;

use crate::abuse::alone;

/// What the answer to a form may take beside what the console has anyway: some fifty times the form. What its aliases stand for would take
/// gigabytes.
const FORM_MEMORY: u64 = 64 << 20;

/// What the page says of these rules.
async fn asks(console: &ServedConsole, user: &LoggedIn<'_>, tenant: &str, rules: &str) -> String {
    let form = form_urlencoded::Serializer::new(String::new())
        .append_pair("tenant", tenant)
        .append_pair("rules", rules)
        .finish();
    let asked = async {
        let answer = console.post(Ipv4Addr::LOCALHOST, "/what-if", &user.cookie, &form).await;
        assert_eq!(answer.status(), 200);
        answer.into_body().collect().await.unwrap().to_bytes()
    };
    let page = tokio::time::timeout(Duration::from_secs(60), asked).await.expect("an answer");
    let page = String::from_utf8_lossy(&page).into_owned();
    let (_, answer) = page.split_once("id=\"answer\"").unwrap_or_else(|| panic!("no answer: {page}"));
    answer.to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_form_takes_the_console_from_others() {
    let _alone = alone().await;
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "ab-console", &[("a", 1)]).await;
    let console = ServedConsole::start(o, "ab-console").await;
    let everything = console.login(&administrator(o, "ab-console-admin"), "").await;
    let little = console.login(&reader(o, &t.namespace, "ab-console-reader"), &t.namespace).await;
    // Control case: a rule is predicted.
    let rule = json!({"apiVersion": "workload.universe.nvidia.com/v1alpha1", "kind": "WorkloadRule",
        "metadata": {"name": "asked", "namespace": t.namespace}, "spec": rule_for("app", "web")});
    let predicted = asks(&console, &everything, &t.id, &rule.to_string()).await;
    assert!(predicted.contains("/asked: "), "{predicted}");

    let pid = process(&format!("--bind-address=127.0.0.1:{}", console.port));
    let before = resident(pid);
    forget_peak(pid);
    let list = |of: &str, count: usize| vec![of; count].join(",");
    for rules in [
        format!("x: &x [{}]\ny: [{}]\n", list("a", 120_000), list("*x", 60_000)),
        format!("x: &x [{}]\ny: [{}]\n", list("a", 20_000), list("*x", 60_000)),
        format!("x: &x {}\ny: [{}]\n", "a".repeat(200_000), list("*x", 60_000)),
        "[".repeat(500_000),
        "{\"a\":".repeat(80_000),
        "- ".repeat(200_000),
    ] {
        let attacks = futures::future::join_all((0..4).map(|_| asks(&console, &everything, &t.id, &rules)));
        let (answers, (status, _)) = tokio::join!(attacks, little.page("/"));
        assert_eq!(status, 200);
        let began = &rules[..20];
        assert!(answers.iter().all(|answer| answer.contains("No prediction")), "{began}: {answers:?}");
        // Whoever may not read what the answer is made of learns only that: nothing has looked at the text.
        let refused = asks(&console, &little, &t.id, &rules).await;
        assert!(refused.contains("forbidden") && !refused.contains("line 1"), "{began}: {refused}");
    }
    let taken = peak(pid).saturating_sub(before);
    assert!(taken < FORM_MEMORY, "{taken} bytes");
    let predicted = asks(&console, &everything, &t.id, &rule.to_string()).await;
    assert!(predicted.contains("/asked: "), "{predicted}");
}
