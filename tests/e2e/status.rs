//! `outrigger status` on a real cluster, as an administrator and as somebody who may see almost nothing.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use outrigger_tests::eventually;
use outrigger_tests::holds;
use outrigger_tests::outrigger::{Outrigger, binary};
use outrigger_tests::tenant::{Tenant, rule_for};
use serde_json::{Value, json};

fn status(o: &Outrigger, kubeconfig: &Path) -> Value {
    let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
    let (code, report) = o.report(&["status", &kubeconfig]).unwrap();
    assert_eq!(code, Some(0), "{report}");
    report
}

/// The row of a list with this value in a field.
fn row<'a>(report: &'a Value, list: &str, field: &str, value: &str) -> &'a Value {
    let all = report[list].as_array().unwrap_or_else(|| panic!("no {list}: {report}"));
    all.iter().find(|row| row[field] == value).unwrap_or_else(|| panic!("no {value}: {report}"))
}

#[tokio::test]
async fn status_counts_what_there_is() {
    let o = Outrigger::shared().await;
    let t = Tenant::new(o, "status", &[("a", 1), ("b", 2)]).await;
    t.rule("web", rule_for("app", "web")).await;
    t.webs("web", 0..2).await;
    t.ready(2).await;
    let infra = &o.plane.infra;
    let report = eventually("the status has settled", || async {
        let report = status(o, &infra.kubeconfig);
        let rules = report["rules"].as_array().unwrap();
        let rule = rules.iter().find(|rule| rule["namespace"] == t.namespace.as_str()).unwrap().clone();
        let is_done = rule["ready"] == 2 && rule.get("reason").is_none();
        if is_done { Ok(report) } else { Err(rule.to_string()) }
    })
    .await;
    let rule = row(&report, "rules", "namespace", &t.namespace);
    assert_eq!((&rule["name"], &rule["matched"], &rule["created"]), (&json!("web"), &json!(2), &json!(2)));
    let tenant = row(&report, "tenants", "name", &t.id);
    assert_eq!(
        (&tenant["ready"], &tenant["dpus"], &tenant["connected"]),
        (&json!("True"), &json!(3), &json!(true))
    );
    assert_eq!(report["companions"][&t.namespace], json!({"Ready": 2}));
    let dpus = row(&report, "dpus", "tenant", &t.id);
    assert_eq!((&dpus["dpus"], &dpus["ready"]), (&json!(3), &json!(3)));
    let installation = &report["installation"];
    assert_eq!(installation["policies"]["missing"], json!([]), "{installation}");
    assert!(installation["webhooks"][0]["entries"].as_u64().unwrap() > 1, "{installation}");

    // A tenant's cluster has neither Tenants nor DPUs, which is no error, and nothing that is hidden.
    let report = status(o, &o.plane.tenant.kubeconfig);
    assert_eq!((report.get("tenants"), report.get("dpus")), (None, None));
}

#[tokio::test]
async fn what_may_not_be_read_is_named() {
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "status-view", &[("a", 1)]).await;
    let infra = &o.plane.infra;
    let file = o.plane.dir.join("status-viewer.kubeconfig");
    infra.viewer("status-viewer", &["list"], &[("outrigger.dev", "tenants")], &file).unwrap();
    let report = eventually("the right works", || async {
        let report = status(o, &file);
        holds(report.get("tenants").is_some(), report.to_string()).map(|()| report)
    })
    .await;
    row(&report, "tenants", "name", &t.id);
    for list in ["installation", "rules", "companions", "dpus"] {
        assert_eq!(report.get(list), None, "{report}");
    }
    let hidden: Vec<&str> =
        report["notVisible"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    for what in ["installation: ", "workloadrules: ", "adminworkloadrules: ", "pods: ", "nodes: "] {
        let is_reported = hidden.iter().any(|line| line.starts_with(what) && !line.ends_with(": "));
        assert!(is_reported, "{what}: {hidden:?}");
    }
}

#[tokio::test]
async fn watching_refreshes_without_clearing_what_is_no_terminal() {
    let o = Outrigger::shared().await;
    let kubeconfig = format!("--kubeconfig={}", o.plane.infra.kubeconfig.display());
    let mut child = Command::new(binary().unwrap())
        .args(["status", "--watch", "--interval=1", &kubeconfig])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut headings = 0;
    for line in lines {
        assert!(!line.contains('\u{1b}'), "{line:?}");
        headings += usize::from(line.starts_with("tenants ("));
        if headings == 3 {
            break;
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(headings, 3, "it ended by itself");
}
