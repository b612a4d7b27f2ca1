//! Reports for dashboards of policies: `Report` and `ClusterReport` of openreports.io/v1alpha1, the successor of wgpolicyk8s.io.
//!
//! There is a Report for each namespace, and a ClusterReport for objects outside of namespaces and for what couldn't be examined. They
//! have no times: the same findings are the same objects, so that applying these once more changes nothing.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::Report;
use crate::check::findings::{Finding, Severity};

const API_VERSION: &str = "openreports.io/v1alpha1";

/// The name of each report, and its source.
const NAME: &str = "outrigger";

/// What a note is a result of.
const EXAMINED: &str = "examined";

/// Most results of a report; the summary counts all.
const MOST: usize = 1000;

/// The reports, as one object that kubectl applies.
pub(super) fn list(report: &Report) -> Value {
    let known = report.namespaces.iter().map(|namespace| (namespace.as_str(), Vec::new()));
    let mut by_namespace: BTreeMap<&str, Vec<Value>> = known.collect();
    let notes = report.notes.iter();
    let notes = notes.map(|note| json!({"policy": EXAMINED, "result": "error", "message": note}));
    by_namespace.entry("").or_default().extend(notes);
    for finding in &report.findings {
        by_namespace.entry(&finding.subject.namespace).or_default().push(result(finding));
    }
    let items: Vec<Value> = by_namespace.into_iter().map(|(namespace, all)| item(namespace, all)).collect();
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}

/// The report of a namespace, or of what is in none.
fn item(namespace: &str, mut results: Vec<Value>) -> Value {
    let kind = if namespace.is_empty() { "ClusterReport" } else { "Report" };
    let mut metadata = json!({"name": NAME, "labels": {"app.kubernetes.io/managed-by": NAME}});
    if !namespace.is_empty() {
        metadata["namespace"] = json!(namespace);
    }
    let count = |status: &str| results.iter().filter(|result| result["result"] == status).count();
    let summary =
        json!({"pass": 0, "fail": count("fail"), "warn": count("warn"), "error": count("error"), "skip": 0});
    results.truncate(MOST);
    json!({"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "source": NAME, "summary": summary, "results": results})
}

fn result(finding: &Finding) -> Value {
    let (result, severity) = match finding.check.severity {
        Severity::Error => ("fail", "high"),
        Severity::Warning => ("warn", "medium"),
        Severity::Note => ("warn", "low"),
    };
    json!({"policy": finding.check.id, "result": result, "severity": severity, "scored": true,
        "resources": [finding.subject], "message": finding.text()})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::findings::{LEVELS, REFUSED, RUNNING, Subject};

    #[test]
    fn each_namespace_has_a_report_also_without_findings_and_what_is_unknown_is_an_error() {
        let pod =
            Subject { kind: "Pod".to_owned(), namespace: "tenant-blue".to_owned(), name: "p".to_owned() };
        let report = Report {
            findings: vec![
                Finding::new(&REFUSED, &Subject::cluster("Tenant", "red"), "", "m"),
                Finding::new(&RUNNING, &pod, "spec.nodeName", "is \"n\""),
                Finding::new(&LEVELS, &pod, "", "differ"),
            ],
            notes: vec!["nodes can't be listed".to_owned()],
            namespaces: ["tenant-blue", "tenant-green"].map(str::to_owned).into(),
            files: BTreeMap::new(),
        };
        let metadata = |namespace: &str| {
            let labels = json!({"app.kubernetes.io/managed-by": "outrigger"});
            json!({"name": "outrigger", "namespace": namespace, "labels": labels})
        };
        let summary = |fail: usize, warn: usize, error: usize| json!({"pass": 0, "fail": fail, "warn": warn, "error": error, "skip": 0});
        let list = list(&report);
        let [cluster, blue, green] = list["items"].as_array().unwrap().as_slice() else { panic!("{list}") };
        assert_eq!(
            (&cluster["kind"], &cluster["metadata"]["namespace"]),
            (&json!("ClusterReport"), &Value::Null)
        );
        assert_eq!(
            (&cluster["summary"], &cluster["results"][0]["result"]),
            (&summary(1, 0, 1), &json!("error"))
        );
        let expected = json!({"apiVersion": "openreports.io/v1alpha1", "kind": "Report", "metadata": metadata("tenant-blue"),
            "source": "outrigger", "summary": summary(1, 1, 0), "results": [
                {"policy": "running-refused", "result": "fail", "severity": "high", "scored": true, "message": "spec.nodeName: is \"n\"",
                    "resources": [{"kind": "Pod", "namespace": "tenant-blue", "name": "p"}]},
                {"policy": "enforcement-differs", "result": "warn", "severity": "medium", "scored": true, "message": "differ",
                    "resources": [{"kind": "Pod", "namespace": "tenant-blue", "name": "p"}]}]});
        assert_eq!(blue, &expected);
        assert_eq!((&green["metadata"], &green["results"]), (&metadata("tenant-green"), &json!([])));
    }

    #[test]
    fn a_report_has_as_many_results_as_fit_and_counts_all() {
        let finding = Finding::new(&REFUSED, &Subject::cluster("Tenant", "red"), "", "m");
        let findings = vec![finding; MOST + 1];
        let report = Report { findings, notes: Vec::new(), namespaces: [].into(), files: BTreeMap::new() };
        let cluster = &list(&report)["items"][0];
        assert_eq!(cluster["summary"]["fail"], MOST + 1);
        assert_eq!(cluster["results"].as_array().unwrap().len(), MOST);
    }
}
