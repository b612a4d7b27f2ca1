//! Pods that don't start before their companions: Kubernetes' own managers of plugins and claims, as a kubelet has them, with the
//! plugin on its real socket, the agent, and real API servers.

mod many;

use std::path::Path;

use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use outrigger_core::keys;
use outrigger_runtime::metrics::{self, Server};
use outrigger_tests::held::{self, go};
use outrigger_tests::openmetrics::parse;
use outrigger_tests::outrigger::{Outrigger, ports};
use outrigger_tests::plugin::{self, Host, claim_of, held_pod, holds_questions, token};
use outrigger_tests::tenant::{Tenant, rule_for};
use outrigger_tests::{InWords, eventually, holds, root};
use serde_json::{Value, json};

/// The one companion, Ready or not.
async fn companion(t: &Tenant) -> Pod {
    eventually("there is a companion", || async {
        let mut all = t.companions().await?;
        if all.len() == 1 { Ok(all.remove(0)) } else { Err(format!("{} of them", all.len())) }
    })
    .await
}

/// A tenant with a host, its agent with the endpoint for hosts, and the plugin.
async fn stage(id: &str) -> (Tenant, u16, Host) {
    let t = Tenant::without_agent(Outrigger::shared().await, id, &[("a", 1), ("b", 1)]).await;
    let agent = plugin::start_agent(&t, &["a", "b"], &[]).await;
    let host = Host::start(&t, "a", agent).await;
    (t, agent, host)
}

#[tokio::test]
async fn a_pod_starts_when_its_companion_is_ready_and_the_kubelet_hears_the_cause_before() {
    let (t, _, host) = stage("ho-start").await;
    t.own_rule("fw", held::rule("web", "BeforeStart")).await.unwrap();
    held_pod(&t, "w", "web", "a").await;
    let companion = companion(&t).await;
    // The agent holds the call, and then says why.
    let error = eventually("the call fails with the cause", || async {
        let error = host.kubelet.prepare("w").await.err().ok_or("it has started")?;
        if error.contains("Starting: rule fw: ") { Ok(error) } else { Err(error) }
    })
    .await;
    assert!(error.contains("NodePrepareResources failed for ResourceClaim w-"), "{error}");
    // A call that is held succeeds as soon as the companion is Ready.
    let (_, preparing) = host.kubelet.preparing("w").await;
    go(&t, &companion);
    preparing.await.unwrap();
    host.kubelet.prepare("w").await.unwrap();
    host.kubelet.unprepare("w").await.unwrap();
}

#[tokio::test]
async fn a_pod_without_the_rule_starts_at_once() {
    let (t, _, host) = stage("ho-free").await;
    t.own_rule("fw", held::rule("web", "BeforeStart")).await.unwrap();
    t.own_rule("log", rule_for("app", "log")).await.unwrap();
    // Its companion never gets a DPU.
    let mut lost = rule_for("app", "lost");
    lost["template"]["spec"]["nodeSelector"] = json!({"example.com/none": "true"});
    t.own_rule("lost", lost).await.unwrap();
    t.web("plain").await;
    host.kubelet.prepare("plain").await.unwrap();
    // A Pod may have a claim that no rule needs.
    for app in ["log", "lost", "none"] {
        held_pod(&t, app, app, "a").await;
        host.kubelet.prepare(app).await.unwrap();
    }
}

#[tokio::test]
async fn a_pod_that_is_deleted_while_it_waits_is_forgotten() {
    let t = Tenant::without_agent(Outrigger::shared().await, "ho-gone", &[("a", 1)]).await;
    let [admin] = ports().unwrap();
    let agent = plugin::start_agent(&t, &["a"], &[format!("--admin-address=127.0.0.1:{admin}")]).await;
    let host = Host::start(&t, "a", agent).await;
    t.own_rule("fw", held::rule("web", "BeforeStart")).await.unwrap();
    held_pod(&t, "w", "web", "a").await;
    let (call, preparing) = host.kubelet.preparing("w").await;
    holds_questions(admin, 1).await;
    t.work().delete("w", &DeleteParams::default().grace_period(0)).await.unwrap();
    host.kubelet.cancel(call).await;
    let error = preparing.await.unwrap_err();
    assert!(error.to_lowercase().contains("cancel"), "{error}");
    holds_questions(admin, 0).await;
    host.kubelet.unprepare("w").await.unwrap();
    // The next Pod of that name is another one, and so is its companion.
    eventually("the companion is deleted", || async {
        let all = t.companions().await?;
        holds(all.is_empty(), format!("{} companions", all.len()))
    })
    .await;
    held_pod(&t, "w", "web", "a").await;
    let (_, preparing) = host.kubelet.preparing("w").await;
    go(&t, &companion(&t).await);
    eventually("it starts", || host.kubelet.prepare("w")).await;
    let _ = preparing.await;
}

#[tokio::test]
async fn a_plugin_that_is_killed_starts_nothing_until_it_is_back() {
    let (t, _, host) = stage("ho-kill").await;
    t.own_rule("fw", held::rule("web", "BeforeStart")).await.unwrap();
    held_pod(&t, "w", "web", "a").await;
    let plane = &t.outrigger.plane;
    plane.command(&format!("stop {}", host.process)).unwrap();
    assert!(socket(&host.registry).exists(), "a killed process leaves it");
    go(&t, &companion(&t).await);
    host.kubelet.prepare("w").await.unwrap_err();
    plane.command(&format!("start {}", host.process)).unwrap();
    host.registered(&t).await;
    eventually("the Pod starts", || host.kubelet.prepare("w")).await;
    // One that shuts down removes its socket, and the kubelet notices.
    plane.command(&format!("term {}", host.process)).unwrap();
    eventually("the plugin is deregistered", || async {
        let error = host.kubelet.registered().await.err().ok_or("it is registered")?;
        holds(error.contains("is not registered"), error)
    })
    .await;
    assert!(!socket(&host.registry).exists());
}

fn socket(registry: &Path) -> std::path::PathBuf {
    registry.join("outrigger@companions.sock")
}

#[tokio::test]
async fn nothing_starts_while_the_agent_or_the_manager_is_away() {
    let t = Tenant::without_agent(Outrigger::shared().await, "ho-away", &[("a", 1)]).await;
    let manager = t.outrigger.another_manager("manager-ho-away", &[]).await;
    let own = format!("--manager-address=https://127.0.0.1:{}", manager.0);
    let agent = plugin::start_agent(&t, &["a"], &[own]).await;
    let host = Host::start(&t, "a", agent).await;
    t.own_rule("fw", held::rule("web", "BeforeStart")).await.unwrap();
    held_pod(&t, "w", "web", "a").await;
    go(&t, &companion(&t).await);
    let (plane, process) = (&t.outrigger.plane, format!("agent-{}", t.id));
    plane.command(&format!("stop {process}")).unwrap();
    let error = host.kubelet.prepare("w").await.unwrap_err();
    assert!(error.contains("AgentUnreachable: "), "{error}");
    // The agent is back, and the manager isn't.
    plane.command("stop manager-ho-away").unwrap();
    plane.command(&format!("start {process}")).unwrap();
    eventually("the manager is missing", || async {
        let error = host.kubelet.prepare("w").await.err().ok_or("it has started")?;
        holds(error.contains("ManagerUnreachable: "), error)
    })
    .await;
    plane.command("start manager-ho-away").unwrap();
    eventually("the Pod starts", || host.kubelet.prepare("w")).await;
}

/// Asks the agent as a plugin does: status and body of the answer.
async fn ask(t: &Tenant, port: u16, token: Option<&str>, body: &Value) -> (u16, String) {
    let mut request = http::Request::builder().uri("/v1/prepare");
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    t.outrigger.post(port, None, request, body.to_string()).await.unwrap()
}

#[tokio::test]
async fn a_host_learns_of_its_own_pods_only_and_nobody_else_of_any() {
    let (t, agent, _host) = stage("ho-abuse").await;
    t.own_rule("log", rule_for("app", "web")).await.unwrap();
    let pod = held_pod(&t, "w", "web", "a").await;
    let (name, uid) = claim_of(&t, &pod).await;
    let question = json!({"claims": [{"namespace": t.source, "name": name, "uid": uid}]});
    let audience = keys::AGENT_AUDIENCE;
    // The control case: the plugin of the Pod's own host.
    let own = token(&t, keys::HOST_PLUGIN, audience, "a").await;
    eventually("the Pod may start", || async {
        let (status, body) = ask(&t, agent, Some(&own), &question).await;
        let answer: Value = serde_json::from_str(&body).in_words()?;
        holds(status == 200 && answer["claims"][0]["ready"] == true, body)
    })
    .await;
    // That of another host hears what it would hear of no Pod at all.
    let other = token(&t, keys::HOST_PLUGIN, audience, "b").await;
    let (status, body) = ask(&t, agent, Some(&other), &question).await;
    let answer: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (status, &answer["claims"][0]["ready"], &answer["claims"][0]["cause"]),
        (200, &json!(false), &json!("PodUnknown"))
    );
    // No other token counts.
    let default = token(&t, "default", audience, "a").await;
    let api = token(&t, keys::HOST_PLUGIN, "https://kubernetes.default.svc", "a").await;
    let tenant = &t.outrigger.plane.tenant;
    let unbound = tenant.kubectl(&[
        "create",
        "token",
        keys::HOST_PLUGIN,
        "-n",
        keys::HOST_NAMESPACE,
        &format!("--audience={audience}"),
    ]);
    let unbound = unbound.unwrap();
    for (token, words) in [
        (None, "there is no token"),
        (Some("invalid"), "doesn't accept the token"),
        (Some(api.as_str()), "doesn't accept the token"),
        (Some(default.as_str()), "service account outrigger-host"),
        (Some(unbound.trim()), "names no Node"),
    ] {
        let (status, body) = ask(&t, agent, token, &question).await;
        assert_eq!(status, 401, "{body}");
        assert!(body.contains(words), "{body}");
    }
    // What is no question, or too large a one.
    let claims = vec![question["claims"][0].clone(); 9];
    for (body, status, words) in [
        (json!({}), 400, "is no question"),
        (json!({"claims": claims}), 400, "at most 8"),
        (json!({"claims": [], "more": "x".repeat(10_000)}), 413, "8192"),
    ] {
        let answer = ask(&t, agent, Some(&own), &body).await;
        assert_eq!(answer.0, status, "{answer:?}");
        assert!(answer.1.contains(words), "{answer:?}");
    }
}

#[tokio::test]
async fn an_address_that_sends_invalid_tokens_is_slowed_down_and_served_again() {
    let (t, agent, _host) = stage("ho-flood").await;
    t.own_rule("log", rule_for("app", "web")).await.unwrap();
    let pod = held_pod(&t, "w", "web", "a").await;
    let (name, uid) = claim_of(&t, &pod).await;
    let question = json!({"claims": [{"namespace": t.source, "name": name, "uid": uid}]});
    let own = token(&t, keys::HOST_PLUGIN, keys::AGENT_AUDIENCE, "a").await;
    // Each token is another one, so each would have to be reviewed.
    let mut count = 0;
    eventually("reviews of the address are used up", || {
        count += 1;
        let (t, question) = (&t, &question);
        let all = (0..4).map(move |n| async move {
            ask(t, agent, Some(&format!("invalid.{count}.{n}")), question).await.0
        });
        async move {
            let statuses = futures::future::join_all(all).await;
            assert!(statuses.iter().all(|status| [401, 429].contains(status)), "{statuses:?}");
            holds(statuses.contains(&429), format!("{statuses:?}"))
        }
    })
    .await;
    eventually("the address is served again", || async {
        let (status, body) = ask(&t, agent, Some(&own), &question).await;
        holds(status == 200, format!("{status}: {body}"))
    })
    .await;
}

#[tokio::test]
async fn the_documented_metrics_are_those_of_a_running_plugin() {
    let (t, _, host) = stage("ho-metrics").await;
    t.own_rule("log", rule_for("app", "web")).await.unwrap();
    held_pod(&t, "w", "web", "a").await;
    eventually("the Pod starts", || host.kubelet.prepare("w")).await;
    let text = Outrigger::metrics_of(host.admin).await.unwrap();
    let families = parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let documented = metrics::ALL.iter().filter(|metric| metric.of.contains(&Server::Host));
    let mut expected: Vec<String> = documented.map(|metric| metric.family()).collect();
    expected.extend(
        metrics::STANDARD.iter().filter(|name| families.contains_key(**name)).map(|name| (*name).to_owned()),
    );
    expected.sort();
    // OpenMetrics names a counter's family without its suffix.
    let shown: Vec<String> = families.keys().filter(|name| name.starts_with("outrigger_")).cloned().collect();
    for name in expected.iter().filter(|name| name.starts_with("outrigger_")) {
        assert!(shown.contains(name), "{name} isn't shown");
    }
    for name in &shown {
        assert!(expected.contains(name), "{name} isn't documented");
    }
    assert!(host.metric("outrigger_host_registered", "").await.unwrap() > 0.5);
    assert!(host.metric("outrigger_host_claims", "_total").await.unwrap() >= 1.0);
}

#[test]
fn the_kubelet_is_of_the_release_that_tests_run_on() {
    let required = |module: &str| {
        let text = std::fs::read_to_string(root().join("tests").join(module).join("go.mod")).unwrap();
        let line = text.lines().map(str::trim).find(|line| line.starts_with("k8s.io/kubernetes v"));
        line.unwrap().to_owned()
    };
    assert_eq!(required("kubelet"), required("controlplane"));
}
