//! What an operator sees of running servers: metrics, traces, logs, and `/debug`.

use std::collections::BTreeMap;
use std::fmt;

use kube::api::DeleteParams;
use outrigger_api::conditions::Status;
use outrigger_runtime::metrics::{self, Metric, Server};
use outrigger_tests::collector::{Collector, Span};
use outrigger_tests::openmetrics::{Family, parse};
use outrigger_tests::outrigger::{Outrigger, ask, get, ports};
use outrigger_tests::tenant::{Tenant, rule_for};
use outrigger_tests::{eventually, holds};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::{Value, json};

/// A Pod that the validating webhook has to judge, and denies.
fn review(uid: &str, namespace: &str) -> String {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": namespace},
        "spec": {"hostNetwork": true, "containers": [{"name": "c", "image": "i", "env": [{"name": "PASSWORD", "value": "hunter2"}]}]}});
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": uid, "kind": {"group": "", "version": "v1", "kind": "Pod"}, "namespace": namespace,
        "operation": "CREATE", "userInfo": {"username": "eve"}, "object": pod}})
    .to_string()
}

/// Asks a webhook as the API server does.
async fn post(o: &Outrigger, port: u16, path: &str, body: String, traceparent: &str) -> Value {
    let request = http::Request::builder().uri(path).header("traceparent", traceparent);
    let (_, body) = o.post(port, Some(&["api-server"]), request, body).await.unwrap();
    serde_json::from_str(&body).unwrap()
}

/// Tells a process to end, and waits for that; meanwhile the collector goes on.
async fn term(o: &'static Outrigger, name: &'static str) {
    tokio::task::spawn_blocking(move || o.plane.command(&format!("term {name}"))).await.unwrap().unwrap();
}

/// What a server shows is what the table says, in its words and no other.
pub(crate) fn compare(server: Server, families: &BTreeMap<String, Family>) -> Result<(), String> {
    let mine = |metric: &&&Metric| metric.of.contains(&server);
    let known: BTreeMap<String, &Metric> =
        metrics::ALL.iter().filter(mine).map(|metric| (metric.family(), *metric)).collect();
    for (name, family) in families {
        let Some(metric) = known.get(name) else {
            let standard =
                metrics::STANDARD.iter().any(|known| known.strip_suffix("_total").unwrap_or(known) == name);
            if !standard {
                return Err(format!("{server:?} shows {name}, which isn't in the table"));
            }
            continue;
        };
        assert_eq!(family.kind, metric.kind.as_str(), "{name}");
        assert_eq!(family.help, format!("{}.", metric.help), "{name}");
        for sample in &family.samples {
            let labels: Vec<&str> = sample.labels.keys().map(String::as_str).filter(|l| *l != "le").collect();
            let mut expected: Vec<&str> = metric.labels.iter().map(|(label, _)| *label).collect();
            expected.sort_unstable();
            assert_eq!(labels, expected, "{sample:?}");
            for (label, values) in metric.labels {
                assert!(values.allow(&sample.labels[*label]), "{sample:?}: {label}");
            }
        }
    }
    match known.keys().find(|name| !families.contains_key(*name)) {
        Some(missing) => Err(format!("{server:?} doesn't show {missing}")),
        None => Ok(()),
    }
}

#[tokio::test]
async fn the_documented_metrics_are_those_of_running_servers() {
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "op-metrics", &[("a", 1)]).await;
    let admin = t.start_agent_with_admin(&[]);
    t.own_rule("r", rule_for("app", "web")).await.unwrap();
    // So it is the workload that asks for the companion, and not the rule.
    t.condition("r", "Matched", Status::False, "NoMatch").await;
    t.web("w").await;
    t.ready(1).await;
    for server in [Server::Webhook, Server::Manager, Server::Agent] {
        let families = eventually("the table is what is shown", || async {
            let text = match server {
                Server::Webhook => o.webhook_metrics().await,
                Server::Manager => o.manager_metrics().await,
                Server::Agent | Server::Host | Server::Console => Outrigger::metrics_of(admin).await?,
            };
            let families = parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
            compare(server, &families)?;
            Ok::<_, String>(families)
        })
        .await;
        let sum = |name: &str, suffix: &str, labels: &[(&str, &str)]| {
            families.get(name).map_or(f64::NAN, |family| family.sum(suffix, labels))
        };
        for family in ["outrigger_watch_synced", "outrigger_watch_last_received_timestamp_seconds"] {
            for sample in &families[family].samples {
                assert!(sample.value >= 1.0, "{sample:?}");
            }
        }
        assert!(sum("outrigger_api_requests", "_total", &[("verb", "Watch"), ("outcome", "Ok")]) >= 1.0);
        assert!(sum("process_resident_memory_bytes", "", &[]) > 1e6);
        match server {
            Server::Webhook => {
                let steps = sum("outrigger_admission_step_seconds", "_count", &[("step", "isolation")]);
                assert!(steps >= 1.0, "{steps}");
            }
            Server::Manager => {
                assert!(sum("outrigger_companion_lag_seconds", "_count", &[]) >= 1.0);
                assert!(sum("outrigger_companions_ready", "", &[]) >= 1.0);
                assert!(sum("outrigger_tenants", "", &[("stream", "Connected")]) >= 1.0);
                assert!(sum("outrigger_workloads", "", &[("stream", "Connected")]) >= 1.0);
            }
            // `tests/host` has one.
            Server::Host | Server::Console => {}
            Server::Agent => {
                assert!((sum("outrigger_agent_connected", "", &[]) - 1.0).abs() < 0.1);
                assert!((sum("outrigger_agent_messages", "_total", &[("kind", "Sync")]) - 1.0).abs() < 0.1);
                assert!(sum("outrigger_agent_rule_rounds", "_total", &[("outcome", "Ok")]) >= 1.0);
            }
        }
    }
    // Nothing is shown that wasn't asked for.
    assert_eq!(get(admin, "/debug/state").await.unwrap().0, 404);
}

/// The keys of a JSON object as they stand there, each as often as it does.
struct Keys(Vec<String>);

impl<'de> Deserialize<'de> for Keys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Keys;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Keys, A::Error> {
                let mut keys = Vec::new();
                while let Some((key, _)) = map.next_entry::<String, Value>()? {
                    keys.push(key);
                }
                Ok(Keys(keys))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

/// The lines of a process' log, which are JSON objects with what each has to have, and no key twice.
fn lines(o: &Outrigger, process: &str) -> Vec<Value> {
    let log = std::fs::read_to_string(o.plane.log(process)).unwrap();
    let read = |line: &str| {
        let Keys(mut keys) = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let count = keys.len();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), count, "a key is there twice: {line}");
        let object: Value = serde_json::from_str(line).unwrap();
        for key in ["timestamp", "level", "target", "message"] {
            assert!(object[key].is_string(), "{key} in {line}");
        }
        object
    };
    log.lines().map(read).collect()
}

/// The arguments for traces to this collector, and logs that tests read.
fn traced(collector: &Collector) -> [String; 3] {
    let endpoint = format!("--otlp-endpoint={}", collector.endpoint());
    [endpoint, "--otlp-insecure".to_owned(), "--log-format=json".to_owned()]
}

#[tokio::test]
async fn what_a_webhook_does_can_be_seen_and_its_log_turned_up() {
    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "op-debug", &[("a", 1)]).await;
    let collector = Collector::start().await.unwrap();
    let [port, admin] = ports().unwrap();
    let pair = o.authority.issue("webhook-op", &["127.0.0.1"]).unwrap();
    let args = [
        format!("--bind-address=127.0.0.1:{port}"),
        format!("--admin-address=127.0.0.1:{admin}"),
        "--debug-endpoints".to_owned(),
    ];
    let args = [&args[..], &traced(&collector), &pair.serving_flags()].concat();
    o.run_bare("webhook-op", "webhook", &args).unwrap();
    let _webhook = o.plane.ends("webhook-op");
    o.ready_at("webhook-op", admin).await;

    let (status, body) = get(admin, "/debug/state").await.unwrap();
    assert_eq!(status, 200, "{body}");
    let state: Value = serde_json::from_str(&body).unwrap();
    assert!(state["caches"]["tenants"].as_u64() >= Some(1), "{body}");
    assert_eq!(state["watches"]["tenants"]["synced"], true, "{body}");
    assert!(state["process"]["open_fds"].as_u64() > Some(0), "{body}");

    let level = async |method, body: &str| ask(admin, method, "/debug/log-level", body).await.unwrap();
    assert_eq!(level(http::Method::GET, "").await, (200, "info\n".to_owned()));
    let (status, words) = level(http::Method::PUT, "outrigger=loud").await;
    assert!(status == 400 && words.contains("loud"), "{words}");
    assert_eq!(level(http::Method::PUT, "").await.0, 400);
    assert_eq!(level(http::Method::PUT, &"x".repeat(2000)).await.0, 413);
    let allowed = || lines(o, "webhook-op").into_iter().filter(|line| line["message"] == "allowed").count();
    let ask_for = async |uid: &str, path: &str| {
        let parent = format!("00-{TRACE}-b7ad6b7169203331-01");
        post(o, port, path, review(uid, &t.namespace), &parent).await["response"]["allowed"].clone()
    };
    assert_eq!(ask_for("one", "/mutate/pods").await, true);
    assert_eq!(allowed(), 0, "allowed requests are not logged");
    assert_eq!(level(http::Method::PUT, "info,outrigger_webhook=debug").await.0, 200);
    assert_eq!(ask_for("two", "/mutate/pods").await, true);
    assert_eq!(ask_for("three", "/validate/pods").await, false);
    eventually("it is logged now", async || holds(allowed() == 1, "not yet")).await;
    assert_eq!(level(http::Method::PUT, "error").await.0, 200);
    assert_eq!(ask_for("four", "/validate/pods").await, false);
    term(o, "webhook-op").await;

    let log = lines(o, "webhook-op");
    let of_requests: Vec<&Value> = log
        .iter()
        .filter(|line| ["allowed", "denied"].contains(&line["message"].as_str().unwrap_or_default()))
        .collect();
    let logged: Vec<&str> = of_requests.iter().filter_map(|line| line["uid"].as_str()).collect();
    assert_eq!(logged, ["two", "three"]);
    assert!(of_requests[1]["reason"].as_str().unwrap().contains("spec.hostNetwork"), "{}", of_requests[1]);
    assert!(!format!("{log:?}").contains("hunter2"));

    // The process has ended, so all has been sent: also what the log was too low for.
    let spans = collector.spans();
    let attribute = |span: &Span, key: &str| span.attributes.get(key).cloned().unwrap_or_default();
    let admissions: Vec<String> = spans
        .iter()
        .map(|span| {
            assert_eq!((span.service.as_str(), span.name.as_str()), ("outrigger-webhook", "admission"));
            // Whoever reaches the port can name a trace: it is pointed to, and decides nothing.
            assert!(span.trace != TRACE && span.parent.is_empty(), "{span:?}");
            assert_eq!(span.links, ["b7ad6b7169203331"]);
            format!(
                "{} {} {}",
                attribute(span, "uid"),
                attribute(span, "webhook"),
                attribute(span, "verdict")
            )
        })
        .collect();
    assert_eq!(
        admissions,
        [
            "one MutatePods Patched",
            "two MutatePods Patched",
            "three ValidatePods Denied",
            "four ValidatePods Denied"
        ]
    );
    assert!(!format!("{spans:?}").contains("hunter2"));
}

#[tokio::test]
async fn a_trace_follows_a_workload_to_its_companion_and_a_rule_to_the_other_cluster() {
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "op-trace", &[("a", 1)]).await;
    let collector = Collector::start().await.unwrap();
    let traced = traced(&collector);
    let more = [&traced[..], &["--debug-endpoints".to_owned()]].concat();
    let (grpc, admin) = o.another_manager("manager-op", &more).await;
    let _manager = o.plane.ends("manager-op");
    t.start_agent(&[&traced[..], &[format!("--manager-address=https://127.0.0.1:{grpc}")]].concat());
    t.own_rule("r", rule_for("app", "web")).await.unwrap();
    // So it is the workload that asks for the companion, and not the rule.
    t.condition("r", "Matched", Status::False, "NoMatch").await;
    t.web("w").await;
    t.ready(1).await;
    let state: Value = serde_json::from_str(&get(admin, "/debug/state").await.unwrap().1).unwrap();
    let tenants = state["manager"]["tenants"].as_array().unwrap();
    let own = tenants.iter().find(|entry| entry["tenant"] == "op-trace").unwrap();
    assert_eq!(
        (own["stream"].as_str(), own["companions"]["wanted"].as_u64()),
        (Some("Connected"), Some(1)),
        "{own}"
    );
    t.work().delete("w", &DeleteParams::default().grace_period(0)).await.unwrap();
    t.ready(0).await;
    term(o, "agent-op-trace").await;
    term(o, "manager-op").await;

    let spans = collector.spans();
    let parent =
        |span: &Span| spans.iter().find(|other| other.id == span.parent && other.trace == span.trace);
    let by = |name: &str, key: &str, value: &str| {
        let is = |span: &&Span| span.name == name && span.attributes.get(key).is_some_and(|v| v == value);
        spans.iter().find(is).unwrap_or_else(|| panic!("no {name} {key}={value} in {spans:#?}"))
    };
    let message = parent(by("companion", "action", "create")).expect("a companion's message is there");
    assert_eq!(message.name, "workload message");
    assert_eq!(message.attributes["tenant"], "op-trace");
    assert_eq!(message.service, "outrigger-manager");
    let ended = parent(by("companion", "action", "delete")).expect("so is that of its end");
    assert_ne!(ended.trace, message.trace);
    let call = by("sync rule", "verb", "create");
    assert_eq!(call.service, "outrigger-agent");
    let served = spans.iter().find(|span| span.links.contains(&call.id)).expect("the manager points to it");
    assert_eq!(served.service, "outrigger-manager");
    // A caller can't write into a trace of Outrigger's.
    assert!(served.parent.is_empty() && served.trace != call.trace, "{served:?}");
    assert_eq!(served.name, "/universe.workload.v1.WorkloadRuleService/Create");
    lines(o, "manager-op");
    lines(o, "agent-op-trace");
}
