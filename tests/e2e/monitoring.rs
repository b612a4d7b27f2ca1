//! Alerts and dashboard ask for series that there are.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use outrigger_core::reason::Cause;
use outrigger_tests::control_plane::tool;
use outrigger_tests::outrigger::{Outrigger, get, ports, tenant_identity};
use outrigger_tests::plugin::{self, Host};
use outrigger_tests::shipped::{fed, kustomize, of_kind};
use outrigger_tests::tenant::{Tenant, tenant};
use outrigger_tests::{InWords, eventually, root};
use serde::Deserialize;
use serde_json::{Value, json};

/// Labels that Prometheus adds to what it scrapes by our PodMonitor.
const SCRAPED: [&str; 6] = ["job", "namespace", "pod", "container", "endpoint", "instance"];

/// One choice of series, as `tests/prometheus` tells it.
#[derive(Debug, Deserialize)]
struct Selector {
    metric: String,
    matchers: Vec<Matcher>,
    labels: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Matcher {
    label: String,
    #[serde(rename = "type")]
    kind: String,
    value: String,
}

#[derive(Debug, Deserialize)]
struct Answer {
    #[serde(default)]
    error: String,
    selectors: Vec<Selector>,
}

/// Every expression of the rules and of the dashboard.
fn expressions() -> Vec<String> {
    let objects = kustomize("deploy/monitoring").unwrap();
    let rules = of_kind(&objects, "PrometheusRule").next().unwrap();
    let groups = rules["spec"]["groups"].as_array().unwrap();
    let rules = groups.iter().flat_map(|group| group["rules"].as_array().unwrap());
    let mut all: Vec<String> = rules.map(|rule| rule["expr"].as_str().unwrap().to_owned()).collect();
    let dashboard = of_kind(&objects, "ConfigMap").next().unwrap();
    let dashboard: Value =
        serde_json::from_str(dashboard["data"]["outrigger.json"].as_str().unwrap()).unwrap();
    for panel in dashboard["panels"].as_array().unwrap() {
        let targets = panel["targets"].as_array();
        assert!(targets.is_some() || panel["type"] == "row", "{}", panel["title"]);
        all.extend(targets.into_iter().flatten().map(|t| t["expr"].as_str().unwrap().to_owned()));
    }
    assert!(all.len() > 25, "{}", all.len());
    // Grafana puts a time in there.
    all.iter().map(|text| text.replace("$__rate_interval", "5m")).collect()
}

fn selectors(expressions: &[String]) -> Vec<Selector> {
    let program = tool("prometheus").unwrap().join("series");
    let output = fed(&mut Command::new(program), json!(expressions).to_string().as_bytes()).unwrap();
    let answers: Vec<Answer> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answers.len(), expressions.len());
    let mut all = Vec::new();
    for (answer, text) in answers.into_iter().zip(expressions) {
        assert_eq!(answer.error, "", "{text}");
        assert!(!answer.selectors.is_empty(), "{text}");
        all.extend(answer.selectors);
    }
    all
}

/// Names of series, each with the names of its labels.
fn series(metrics: &[String]) -> BTreeMap<String, BTreeSet<String>> {
    let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in metrics.iter().flat_map(|text| text.lines()).filter(|line| !line.starts_with('#')) {
        let end = line.find(['{', ' ']).unwrap_or(line.len());
        let labels = all.entry(line[..end].to_owned()).or_default();
        // Names are before ="; values hold no such thing here.
        for part in line[end..].split("=\"").filter(|part| !part.ends_with('}')) {
            let name = part.rsplit(['{', ',']).next().unwrap_or_default();
            if !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
                labels.insert(name.to_owned());
            }
        }
    }
    all
}

/// What the API server counts of webhooks when one says no and when one that may be passed over doesn't answer.
async fn api_server(t: &Tenant) -> String {
    let infra = &t.outrigger.plane.infra;
    let twice =
        tenant("mon-twice", json!({"hosts": [t.node("a")], "identities": [tenant_identity("mon-twice")]}));
    infra.apply(&[twice]).expect_err("a host of two tenants");
    let [nobody] = ports().unwrap();
    let open = json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "mon-open"}, "webhooks": [{"name": "mon-open.example.com",
            "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Ignore", "timeoutSeconds": 1,
            "clientConfig": {"url": format!("https://127.0.0.1:{nobody}/")},
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": t.namespace}},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"],
                "operations": ["UPDATE", "CREATE"]}]}]});
    infra.apply(&[open]).unwrap();
    let mut count = 0;
    let metrics = eventually("the API server counts calls that fail", || {
        count += 1;
        let config = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"count": count.to_string()},
            "metadata": {"name": "mon", "namespace": t.namespace}});
        async move {
            infra.apply(&[config]).in_words()?;
            let metrics = infra.kubectl(&["get", "--raw", "/metrics"]).in_words()?;
            let counted = metrics.contains("\napiserver_admission_webhook_fail_open_count{");
            if counted { Ok(metrics) } else { Err("not yet".to_owned()) }
        }
    })
    .await;
    infra.kubectl(&["delete", "validatingwebhookconfiguration", "mon-open"]).unwrap();
    metrics
}

#[tokio::test(flavor = "multi_thread")]
async fn every_query_asks_for_series_that_there_are() {
    let o = Outrigger::shared().await;
    let t = Tenant::with_rule_only(o, "mon").await;
    let [admin] = ports().unwrap();
    let hosts = plugin::start_agent(&t, &[], &[format!("--admin-address=127.0.0.1:{admin}")]).await;
    let host = Host::start(&t, "a", hosts).await;
    t.web("web").await;
    t.companion().await;

    let mut shown = vec![o.webhook_metrics().await, o.manager_metrics().await];
    for server in [admin, host.admin] {
        shown.push(get(server, "/metrics").await.unwrap().1);
    }
    let ours = series(&shown);
    let theirs = series(&[api_server(&t).await]);
    let documented = std::fs::read_to_string(root().join("docs/reference/metrics.md")).unwrap();

    for selector in selectors(&expressions()) {
        let (metric, is_up) = (selector.metric.as_str(), selector.metric == "up");
        let own = metric.starts_with("outrigger_");
        let known = if own { ours.get(metric) } else { theirs.get(metric) };
        assert!(is_up || known.is_some(), "nobody has {metric}");
        let has = |label: &str| {
            known.is_some_and(|labels| labels.contains(label)) || (own || is_up) && SCRAPED.contains(&label)
        };
        for label in selector.labels.iter().chain(selector.matchers.iter().map(|m| &m.label)) {
            assert!(has(label), "{metric} has no label {label}: {known:?}");
        }
        // A value that nothing has would ask for nothing.
        for Matcher { label, kind, value } in &selector.matchers {
            if label == "job" {
                assert!(value.starts_with("outrigger-"), "{metric}: {label}{kind}{value}");
            } else if own {
                let base =
                    ["_bucket", "_count", "_sum"].iter().fold(metric, |m, end| m.trim_end_matches(end));
                let row = documented.lines().find(|line| line.starts_with(&format!("| `{base}`")));
                let row = row.unwrap_or_else(|| panic!("docs/reference/metrics.md doesn't describe {base}"));
                let is_reason = |one: &str| row.contains("[Reasons]") && one.parse::<Cause>().is_ok();
                for one in value.split('|') {
                    assert!(row.contains(one) || is_reason(one), "{base} has no {label}{kind}{one}: {row}");
                }
            }
        }
    }
}
