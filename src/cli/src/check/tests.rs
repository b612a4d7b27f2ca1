use outrigger_core::reason::Cause;
use serde_json::{Value, json};

use super::{Report, look, sarif};
use crate::admission::{Admission, default_args};
use crate::check::findings::CHECKS;
use crate::state::State;

const STATE: &str = include_str!("tests.yaml");

fn report(text: &str) -> Report {
    let state = State::of_text("dir/a b.yaml", text).unwrap();
    look::report(&Admission::new(state, default_args()).unwrap()).unwrap()
}

/// Check, object and path of every finding.
fn summaries(report: &Report) -> Vec<String> {
    let mut all: Vec<String> =
        report.findings.iter().map(|f| format!("{} {} {}", f.check.id, f.subject, f.path)).collect();
    all.sort();
    all.dedup();
    all
}

#[test]
fn every_kind_of_fault_is_found() {
    let report = report(STATE);
    assert_eq!(
        summaries(&report),
        [
            "annotations-not-sent AdminWorkloadRule universe/curious spec",
            "api-server-refuses ResourceClaim tenant-blue/wrong spec.devices.requests[0].exactly.count",
            "dangling-reference WorkloadRule tenant-blue/doubtful spec.template",
            "doubtful-placement WorkloadRule tenant-blue/doubtful spec.template.spec",
            "dpu-without-owner Node free-dpu metadata.labels[provisioning.dpu.nvidia.com/host]",
            "from-rule-missing WorkloadRule tenant-blue/sharing spec.deviceClaims[0].fromRule",
            "from-rule-missing WorkloadRule tenant-blue/sharing spec.deviceClaims[1].fromRule",
            "host-name-unusable Tenant blue spec.hosts[2]",
            "host-without-dpu Tenant blue spec.hosts",
            "machine-node-missing Machine general spec.nodePool[1].name",
            "never-allocated ResourceClaimTemplate tenant-blue/many spec.spec.devices.requests",
            "never-matches WorkloadRule tenant-blue/doubtful spec.workloadTerms",
            "no-device-class ResourceClaim tenant-blue/wrong spec.devices.requests[0].exactly.deviceClassName",
            "no-node-can-match WorkloadRule tenant-blue/nowhere spec.template.spec",
            "refused NamespaceOffloading default/other ",
            "refused ResourceClaim tenant-blue/wrong spec.devices.requests[0].exactly.deviceClassName",
            "refused WorkloadRule tenant-blue/forbidden spec.template.spec.hostNetwork",
        ]
    );
    assert_eq!(report.notes, Vec::<String>::new());
}

#[test]
fn what_was_not_looked_at_is_said() {
    let alone = "{apiVersion: outrigger.dev/v1alpha1, kind: Tenant, metadata: {name: blue}, spec: {hosts: [a], deviceClasses: [c]}}";
    let report = report(alone);
    assert_eq!(summaries(&report), Vec::<String>::new());
    assert_eq!(report.notes.len(), 2, "{:?}", report.notes);
}

#[test]
fn a_namespace_of_a_tenant_that_does_not_exist_is_found_where_tenants_are_known() {
    let namespace = |name: &str, tenant: &str| {
        format!(
            "{{apiVersion: v1, kind: Namespace, metadata: {{name: {name}, labels: {{outrigger.dev/tenant: {tenant}}}}}}}"
        )
    };
    let tenant =
        "{apiVersion: outrigger.dev/v1alpha1, kind: Tenant, metadata: {name: blue}, spec: {hosts: [a]}}";
    let labeled =
        [namespace("own", "blue"), namespace("left", "gone"), namespace("universe", "gone")].join("\n---\n");
    let found = report(&format!("{tenant}\n---\n{labeled}"));
    let [finding] = &found.findings[..] else { panic!("{:?}", found.findings) };
    assert_eq!(
        finding.text(),
        "metadata.labels[outrigger.dev/tenant]: is \"gone\", and there is no such Tenant",
        "the namespace of the platform's companions belongs to no tenant"
    );
    assert_eq!(
        summaries(&found),
        ["namespace-without-tenant Namespace left metadata.labels[outrigger.dev/tenant]"]
    );
    let unknown = report(&labeled);
    assert_eq!(summaries(&unknown), Vec::<String>::new());
    assert!(
        unknown.notes.iter().any(|note| note.starts_with("there are no Tenants:")),
        "{:?}",
        unknown.notes
    );
}

#[test]
fn sarif_is_of_its_structure() {
    let report = report(STATE);
    let log = sarif::log(&report);
    assert_eq!(log["version"], "2.1.0");
    assert!(log["$schema"].as_str().unwrap().contains("2.1.0"));
    let run = &log["runs"][0];
    let rules = run["tool"]["driver"]["rules"].as_array().unwrap();
    assert_eq!(rules.len(), CHECKS.len());
    for rule in rules {
        for pointer in ["/id", "/shortDescription/text", "/help/text"] {
            assert!(
                rule.pointer(pointer).and_then(Value::as_str).is_some_and(|text| !text.is_empty()),
                "{rule}"
            );
        }
        let known = CHECKS.iter().find(|check| rule["id"] == check.id).unwrap();
        let reason = known.reason.map(Cause::as_str);
        assert_eq!(rule.pointer("/properties/reason").and_then(Value::as_str), reason, "{rule}");
        let level = &rule["defaultConfiguration"]["level"];
        assert!(["error", "warning", "note"].iter().any(|known| level == known), "{rule}");
    }
    let results = run["results"].as_array().unwrap();
    assert_eq!(results.len(), report.findings.len());
    for result in results {
        let at = usize::try_from(result["ruleIndex"].as_u64().unwrap()).unwrap();
        assert_eq!(rules[at]["id"], result["ruleId"]);
        assert_eq!(rules[at]["defaultConfiguration"]["level"], result["level"]);
        assert!(!result["message"]["text"].as_str().unwrap().is_empty());
        let location = &result["locations"][0];
        assert_eq!(
            location["physicalLocation"]["artifactLocation"]["uri"],
            json!("dir/a%20b.yaml"),
            "{result}"
        );
        assert!(location["logicalLocations"][0]["fullyQualifiedName"].is_string());
    }
}

#[test]
fn the_documentation_has_every_check() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/check.md")).unwrap();
    for check in CHECKS {
        let reason = check.reason.map(|reason| format!(" `{reason}` |")).unwrap_or_default();
        let (severity, summary) = (check.severity.as_str(), check.summary);
        let row = format!("| `{}` | {severity} | {summary} | {} |{reason}", check.id, check.help);
        assert!(page.contains(&row), "docs/check.md lacks: {row}");
    }
}
