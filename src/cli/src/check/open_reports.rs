//! Reports for dashboards of policies: `Report` and `ClusterReport` of openreports.io/v1alpha1, the successor of wgpolicyk8s.io.
//!
//! There is a Report for each namespace, and a ClusterReport for objects outside of namespaces and for what couldn't be examined. They
//! have no times: the same findings are the same objects, so that applying these once more changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use anyhow::{Context, bail};
use kube::api::{ListParams, Patch, PatchParams};
use outrigger_core::json::text;
use serde_json::{Value, json};

use super::Report;
use crate::check::findings::{Finding, Severity};
use crate::cluster::{Cluster, Kind, each, in_time};

const API_VERSION: &str = "openreports.io/v1alpha1";
const REPORT: Kind = Kind(API_VERSION, "Report");
const CLUSTER_REPORT: Kind = Kind(API_VERSION, "ClusterReport");

/// The manager of the fields of reports that this program writes.
const FIELD_MANAGER: &str = "outrigger-reports";
/// The name of each report, its source, and the value of the label that its reports have.
const NAME: &str = "outrigger";
const LABEL: &str = "app.kubernetes.io/managed-by";

/// What a note is a result of.
const EXAMINED: &str = "examined";

/// Most results of a report; the summary counts all.
const MOST: usize = 1000;

/// How many reports were written.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Written {
    written: usize,
    unchanged: usize,
}

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "reports: {} written, {} unchanged", self.written, self.unchanged)
    }
}

/// Writes the reports that differ from those in the cluster. Where everything was examined, reports of namespaces of which nothing is to
/// be said any longer become empty; none is deleted.
///
/// # Errors
/// Where a report can't be read or written. The others are written.
pub(super) async fn write(report: &Report, cluster: &Cluster) -> anyhow::Result<Written> {
    let known = own(cluster).await.context(
        "the reports in the cluster can't be read: are the CRDs of openreports.io installed, and may this user list them?",
    )?;
    let mut written = Written::default();
    let mut failed = Vec::new();
    for item in due(report, &known) {
        let namespace = text(&item, "/metadata/namespace");
        let before = known.get(namespace);
        if before.is_some_and(|before| is_same(before, &item)) {
            written.unchanged += 1;
            continue;
        }
        let kind = if namespace.is_empty() { CLUSTER_REPORT } else { REPORT };
        let mut params = PatchParams::apply(FIELD_MANAGER);
        // Of a report with our label we take over what others wrote into it, such as kubectl what this command has printed.
        params.force = before.is_some();
        let (api, _) = cluster.api(kind, namespace);
        match in_time(api.patch(NAME, &params, &Patch::Apply(&item))).await {
            Ok(_) => written.written += 1,
            Err(why) => failed.push(format!("{} {namespace}: {}", kind.1, why.brief())),
        }
    }
    if failed.is_empty() {
        Ok(written)
    } else {
        bail!("{written}, and these can't be: {}", failed.join("; "))
    }
}

/// The reports with our label and name, by namespace.
async fn own(cluster: &Cluster) -> anyhow::Result<BTreeMap<String, Value>> {
    let mut all = BTreeMap::new();
    for kind in [REPORT, CLUSTER_REPORT] {
        let of_kind = cluster.api(kind, "");
        let read = each(&of_kind, ListParams::default().labels(&format!("{LABEL}={NAME}")), |object| {
            if text(&object, "/metadata/name") == NAME {
                all.insert(text(&object, "/metadata/namespace").to_owned(), object);
            }
            true
        });
        read.await.map_err(|why| anyhow::anyhow!(why.brief()))?;
    }
    Ok(all)
}

/// The reports as they should be.
fn due(report: &Report, known: &BTreeMap<String, Value>) -> Vec<Value> {
    let mut items = items(report);
    if report.notes.is_empty() {
        let named: BTreeSet<String> =
            items.iter().map(|item| text(item, "/metadata/namespace").to_owned()).collect();
        items.extend(
            known.keys().filter(|namespace| !named.contains(*namespace)).map(|of| item(of, Vec::new())),
        );
    }
    items
}

/// Whether a report in the cluster says what it should.
fn is_same(there: &Value, due: &Value) -> bool {
    ["source", "summary", "results"].iter().all(|field| there.get(field) == due.get(field))
}

/// The reports, as one object that kubectl applies.
pub(super) fn list(report: &Report) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "items": items(report)})
}

fn items(report: &Report) -> Vec<Value> {
    let known = report.namespaces.iter().map(|namespace| (namespace.as_str(), Vec::new()));
    let mut by_namespace: BTreeMap<&str, Vec<Value>> = known.collect();
    let notes = report.notes.iter();
    let notes = notes.map(|note| json!({"policy": EXAMINED, "result": "error", "message": note}));
    by_namespace.entry("").or_default().extend(notes);
    for finding in &report.findings {
        by_namespace.entry(&finding.subject.namespace).or_default().push(result(finding));
    }
    by_namespace.into_iter().map(|(namespace, all)| item(namespace, all)).collect()
}

/// The report of a namespace, or of what is in none.
fn item(namespace: &str, mut results: Vec<Value>) -> Value {
    let kind = if namespace.is_empty() { "ClusterReport" } else { "Report" };
    let mut metadata = json!({"name": NAME, "labels": {LABEL: NAME}});
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
        let pod = Subject::new("Pod", "tenant-blue", "p");
        let report = Report {
            findings: vec![
                Finding::new(&REFUSED, &Subject::cluster("Tenant", "red"), "", "m"),
                Finding::new(&RUNNING, &pod, "spec.nodeName", "is \"n\""),
                Finding::new(&LEVELS, &pod, "", "differ"),
            ],
            notes: vec!["nodes can't be listed".to_owned()],
            namespaces: ["tenant-blue", "tenant-green"].map(str::to_owned).into(),
            ..Report::default()
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
    fn a_report_of_a_namespace_that_is_no_tenants_becomes_empty_where_all_was_examined() {
        let known =
            ["", "tenant-gone"].map(|of| (of.to_owned(), item(of, vec![json!({"result": "fail"})]))).into();
        let report = |notes: &[&str]| Report {
            notes: notes.iter().map(|note| (*note).to_owned()).collect(),
            namespaces: ["tenant-blue".to_owned()].into(),
            ..Report::default()
        };
        let of = |notes: &[&str]| {
            let due = due(&report(notes), &known);
            due.iter().map(|item| text(item, "/metadata/namespace").to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(of(&[]), ["", "tenant-blue", "tenant-gone"]);
        assert_eq!(of(&["nodes can't be listed"]), ["", "tenant-blue"]);
        let gone = due(&report(&[]), &known).pop().unwrap();
        assert_eq!((&gone["results"], &gone["summary"]["fail"]), (&json!([]), &json!(0)));
        assert!(!is_same(&known["tenant-gone"], &gone));
        let mut there = gone.clone();
        there["metadata"]["resourceVersion"] = json!("7");
        assert!(is_same(&there, &gone));
    }

    #[test]
    fn a_report_has_as_many_results_as_fit_and_counts_all() {
        let finding = Finding::new(&REFUSED, &Subject::cluster("Tenant", "red"), "", "m");
        let findings = vec![finding; MOST + 1];
        let report = Report { findings, ..Report::default() };
        let cluster = &list(&report)["items"][0];
        assert_eq!(cluster["summary"]["fail"], MOST + 1);
        assert_eq!(cluster["results"].as_array().unwrap().len(), MOST);
    }
}
