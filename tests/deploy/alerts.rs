//! Rules and dashboards: Prometheus takes them, each alert comes when it should and only then, and has a runbook.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use outrigger_tests::control_plane::tool;
use outrigger_tests::root;
use outrigger_tests::shipped::{kustomize, of_kind, output};
use serde_json::Value;

/// The rules as Prometheus reads them.
fn rules() -> Value {
    let objects = kustomize("deploy/monitoring").unwrap();
    of_kind(&objects, "PrometheusRule").next().unwrap()["spec"].clone()
}

fn alerts() -> Vec<Value> {
    let groups = rules()["groups"].as_array().unwrap().clone();
    groups.iter().flat_map(|group| group["rules"].as_array().unwrap().clone()).collect()
}

fn promtool(dir: &Path, args: &[&str]) {
    let mut command = Command::new(tool("prometheus").unwrap().join("promtool"));
    command.args(args).current_dir(dir);
    output(command).unwrap();
}

#[test]
fn alerts_come_when_they_should_and_only_then() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    std::fs::write(dir.join("rules.json"), rules().to_string()).unwrap();
    std::fs::copy(root().join("tests/deploy/alerts.yaml"), dir.join("tests.yaml")).unwrap();
    promtool(dir, &["check", "rules", "--lint=all", "--lint-fatal", "rules.json"]);
    promtool(dir, &["test", "rules", "tests.yaml"]);
}

#[test]
fn each_alert_is_tested_both_ways() {
    let text = std::fs::read_to_string(root().join("tests/deploy/alerts.yaml")).unwrap();
    let tests: Value = serde_yaml::from_str(&text).unwrap();
    let cases: Vec<(String, bool)> = tests["tests"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|test| test["alert_rule_test"].as_array().unwrap())
        .map(|case| (case["alertname"].as_str().unwrap().to_owned(), case["exp_alerts"][0].is_object()))
        .collect();
    for alert in alerts() {
        let name = alert["alert"].as_str().unwrap().to_owned();
        for comes in [true, false] {
            assert!(cases.contains(&(name.clone(), comes)), "{name}: comes {comes}");
        }
    }
}

#[test]
fn each_alert_says_what_is_wrong_and_has_a_runbook() {
    let mut wanted = BTreeSet::new();
    for alert in alerts() {
        let name = alert["alert"].as_str().unwrap();
        assert!(["warning", "critical"].contains(&alert["labels"]["severity"].as_str().unwrap()), "{name}");
        for annotation in ["summary", "description"] {
            assert!(alert["annotations"][annotation].as_str().is_some_and(|text| text.len() > 10), "{name}");
        }
        let runbook = format!("docs/runbooks/{name}.md");
        assert_eq!(alert["annotations"]["runbook_url"], runbook.as_str());
        let text = std::fs::read_to_string(root().join(&runbook)).expect(&runbook);
        assert!(text.starts_with(&format!("# {name}\n")), "{runbook}");
        wanted.insert(format!("{name}.md"));
    }
    let there: BTreeSet<String> = std::fs::read_dir(root().join("docs/runbooks"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with("Outrigger"))
        .collect();
    assert_eq!(there, wanted);
}
