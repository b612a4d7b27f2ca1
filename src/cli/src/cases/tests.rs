use super::*;
use crate::admission::default_args;

const STATE: &str = r#"
apiVersion: outrigger.dev/v1alpha1
kind: Tenant
metadata: {name: blue}
spec: {}
---
apiVersion: v1
kind: Namespace
metadata: {name: tenant-blue, labels: {outrigger.dev/tenant: blue}}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop}
spec: {nodeName: host-a, containers: []}
"#;

fn run(cases: &str) -> Result<Vec<CaseResult>, String> {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("state.yaml"), STATE).unwrap();
    let file = dir.path().join("cases.yaml");
    std::fs::write(&file, cases).unwrap();
    let mut outcomes = Vec::new();
    run_file(&file, &[], &default_args(), &mut outcomes).map_err(|error| error.to_string())?;
    run_file(&dir.path().join("state.yaml"), &[], &default_args(), &mut outcomes).unwrap();
    Ok(outcomes)
}

fn faults(case: &str) -> Vec<String> {
    let mut outcomes = run(&format!("name: c\nstate: [state.yaml]\n{case}")).unwrap();
    assert_eq!(outcomes.len(), 1, "objects are no cases");
    outcomes.remove(0).faults
}

#[test]
fn every_expectation_can_hold_and_fail() {
    const POD: &str = "pod: {spec: {containers: [{name: c}]}}\nnamespace: tenant-blue\n";
    const BAD: &str =
        "pod: {spec: {hostPID: true, containers: [{name: c}]}, metadata: {namespace: tenant-blue}}\n";
    for (case, fault) in [
        (format!("{POD}expect: {{allowed: true, patched: true, warnings: []}}"), ""),
        (format!("{POD}expect: {{allowed: false}}"), "allowed: is true, expected false"),
        (format!("{POD}expect: {{allowed: true, patched: false}}"), "patched: is true, expected false"),
        (format!("{POD}expect: {{allowed: true, warnings: [x]}}"), "warnings: none has \"x\": []"),
        (format!("{POD}expect: {{allowed: true, pod: {{spec: {{tolerations: [{{value: blue}}]}}}}}}"), ""),
        (
            format!("{POD}expect: {{allowed: true, pod: {{spec: {{tolerations: [{{value: red}}]}}}}}}"),
            "pod.spec.tolerations[0].value: is \"blue\", expected \"red\"",
        ),
        (format!("{BAD}expect: {{allowed: false, message: spec.hostPID}}"), ""),
        (
            format!("{BAD}expect: {{allowed: false, message: spec.hostIPC}}"),
            "message: has no \"spec.hostIPC\"",
        ),
        (
            format!("{BAD}expect: {{allowed: true}}"),
            "allowed: is false, expected true: spec.hostPID: is true",
        ),
        ("pod: {}\nexpect: {allowed: false, message: namespace default is not known}".to_owned(), ""),
        (
            "request: {kind: {group: apps, version: v1, kind: Deployment}, operation: CREATE}\n\
             expect: {allowed: true, patched: false}"
                .to_owned(),
            "",
        ),
    ] {
        let faults = faults(&case);
        match fault {
            "" => assert_eq!(faults, Vec::<String>::new(), "{case}"),
            fault => assert!(faults.len() == 1 && faults[0].starts_with(fault), "{case}: {faults:?}"),
        }
    }
}

#[test]
fn companions_of_rules() {
    const RULE: &str = r#"
name: c
state:
  - state.yaml
  - apiVersion: workload.universe.nvidia.com/v1alpha1
    kind: WorkloadRule
    metadata: {name: r, namespace: tenant-blue}
    spec:
      workloadTerms: [{matchExpressions: [{key: .metadata.resourceName, operator: In, values: [NAME]}]}]
      workloadInfoInject: [{workloadKey: .state.nodeName, asAnnotation: {name: host}}]
      template: {apiVersion: v1, kind: Pod, spec: {containers: [{name: c, image: i}]}}
companion: {rule: r, workload: shop/web}
"#;
    let case = |name: &str, expect: &str| {
        run(&format!("{}expect: {expect}", RULE.replace("NAME", name))).unwrap().remove(0).faults
    };
    assert_eq!(
        case(
            "web",
            "{allowed: true, pod: {metadata: {annotations: {host: host-a}}, spec: {schedulingGates: null}}}"
        ),
        Vec::<String>::new()
    );
    assert_eq!(case("db", "{allowed: false, message: doesn't match}"), Vec::<String>::new());
}

#[test]
fn what_is_no_case_is_named() {
    for (case, message) in [
        ("name: c", "document 1: missing field `expect`"),
        ("name: c\nexpected: {}", "document 1: expected: unknown field `expected`"),
        ("name: c\nexpect: {}", "document 1: expect: missing field `allowed`"),
        ("name: c\nexpect: {allowed: true}", "document 1: needs exactly one of request, pod and companion"),
        ("name: c\npod: {}\nrequest: {}\nexpect: {allowed: true}", "needs exactly one of"),
        ("name: c\nuser: u\nrequest: {}\nexpect: {allowed: true}", "user, namespace: the request has them"),
        ("name: c\nrequest: {uid: 7}\nexpect: {allowed: true}", "request: uid: invalid type: integer"),
        ("name: c\nstate: [gone.yaml]\npod: {}\nexpect: {allowed: true}", "gone.yaml: No such file"),
        ("name: c\nstate: [{kind: X}]\npod: {}\nexpect: {allowed: true}", "state[0]: apiVersion: is missing"),
        (
            "name: c\ncompanion: {rule: r, workload: w}\nexpect: {allowed: true}",
            "companion.workload: use NAMESPACE/NAME",
        ),
        (
            "name: c\nstate: [state.yaml]\ncompanion: {rule: r, workload: a/b}\nexpect: {allowed: true}",
            "--rule: 0 rules",
        ),
    ] {
        let error = run(case).unwrap_err();
        assert!(error.contains(message), "{case}: {error}");
    }
}

#[test]
fn the_table_and_junit() {
    let outcomes = [
        CaseResult { file: "a.yaml".into(), name: "it holds".into(), faults: vec![] },
        CaseResult { file: "b.yaml".into(), name: "no".into(), faults: vec!["x < y".into(), "z".into()] },
    ];
    let mut out = Vec::new();
    table::print(&outcomes, &mut anstream::StripStream::new(&mut out)).unwrap();
    assert_eq!(
        String::from_utf8(out).unwrap(),
        "CASE      RESULT\nit holds  ok\nno        failed\n    x < y\n    z\n2 cases, 1 failed\n"
    );
    let xml = table::junit(&outcomes).unwrap();
    for part in ["<testsuite name=\"a.yaml\" tests=\"1\"", "failures=\"1\"", "x &lt; y; z"] {
        assert!(xml.contains(part), "{xml}");
    }
}
