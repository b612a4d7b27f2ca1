use clap::Parser;
use serde_json::{Value, json};

use super::*;
use crate::document::Readable;

#[derive(Debug, Parser)]
struct Wrapper {
    #[command(flatten)]
    args: AuditArgs,
}

/// The report of `-o json`, and the text.
fn explained(log: &str, flags: &[&str]) -> (Value, String) {
    let args = Wrapper::try_parse_from([&["audit", "log"], flags].concat()).unwrap().args;
    let mut report = Report::default();
    args.read("log", log.as_bytes(), &mut report).unwrap();
    report.finish();
    (serde_json::to_value(&report).unwrap(), report.document().uncoloured())
}

/// A request about a Pod, in the shape of the API server's events, with changes.
fn event(second: u32, change: &Value) -> Value {
    let mut event = json!({"kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "Request", "auditID": "a",
        "stage": "ResponseComplete", "requestURI": "/api/v1/namespaces/n/pods?fieldManager=kubectl", "verb": "create",
        "user": {"username": "alice", "groups": ["g"]}, "sourceIPs": ["127.0.0.1"],
        "objectRef": {"resource": "pods", "namespace": "n", "name": "p", "apiVersion": "v1"},
        "responseStatus": {"metadata": {}, "code": 201},
        "requestReceivedTimestamp": format!("2026-01-02T03:04:{second:02}.000000Z")});
    json_patch::merge(&mut event, change);
    event
}

fn log(events: &[Value]) -> String {
    events.iter().map(|event| format!("{event}\n")).collect()
}

fn called(configuration: &str, webhook: &str, mutated: bool) -> Value {
    json!({"configuration": configuration, "webhook": webhook, "mutated": mutated}).to_string().into()
}

#[test]
fn steps_and_webhooks_that_changed_a_pod_are_reported() {
    let patch = json!({"configuration": "outrigger", "webhook": "pods.outrigger.dev", "patchType": "JSONPatch",
        "patch": [{"op": "add", "path": "/spec/affinity", "value": {"a secret": 1}}]});
    let created = event(
        1,
        &json!({"annotations": {
        "authorization.k8s.io/decision": "allow",
        "pods.outrigger.dev/isolation": "kind=Tenant name=blue",
        "pods.outrigger.dev/companion": "kind=WorkloadRule namespace=n name=r generation=3",
        "pods.outrigger.dev/companion-again": "kind=WorkloadRule namespace=n name=r generation=4",
        "pods.outrigger.dev/unknown": "kind=X name=y",
        "pods.example.com/isolation": "kind=Tenant name=red",
        "mutation.webhook.admission.k8s.io/round_0_index_0": called("outrigger", "pods.outrigger.dev", true),
        "patch.webhook.admission.k8s.io/round_0_index_0": patch.to_string(),
        "mutation.webhook.admission.k8s.io/round_0_index_2": called("other", "idle.example.com", false),
        "mutation.webhook.admission.k8s.io/round_1_index_10": called("other", "b.example.com", true),
        "mutation.webhook.admission.k8s.io/round_1_index_9": called("other", "a.example.com", true),
        "failed-open.mutation.webhook.admission.k8s.io/round_0_index_3": "lost.example.com"}}),
    );
    let (report, text) = explained(&log(&[created]), &[]);
    assert_eq!(
        text,
        "Pod n/p
  2026-01-02T03:04:01.000000Z create by alice: 201
    step companion: WorkloadRule n/r, generation 3 (pods.outrigger.dev)
    step isolation: Tenant blue (pods.outrigger.dev)
    step companion again: WorkloadRule n/r, generation 4 (pods.outrigger.dev)
    changed by webhook pods.outrigger.dev of outrigger in round 1: add /spec/affinity
    changed by webhook a.example.com of other in round 2
    changed by webhook b.example.com of other in round 2
    ignored: the failure of webhook lost.example.com
"
    );
    let pod = &report["pods"][0];
    assert_eq!(
        (&pod["createdBy"], &pod["createdAt"]),
        (&json!("alice"), &json!("2026-01-02T03:04:01.000000Z"))
    );
    assert_eq!(
        pod["requests"][0]["steps"][0],
        json!({"step": "companion", "again": false, "webhook": "pods.outrigger.dev", "kind": "WorkloadRule",
            "namespace": "n", "name": "r", "generation": 3})
    );
    let ours: Vec<&Value> =
        pod["requests"][0]["webhooks"].as_array().unwrap().iter().map(|w| &w["ours"]).collect();
    assert_eq!(ours, [&json!(true), &json!(false), &json!(false)]);
}

#[test]
fn what_refused_a_request_is_reported() {
    let refused = |second: u32, message: &str, annotations: Value| {
        event(
            second,
            &json!({"responseStatus": {"code": 403, "message": message}, "annotations": annotations}),
        )
    };
    let policy = "pods \"p\" is forbidden: ValidatingAdmissionPolicy 'outrigger-pods' with binding 'b' denied request: no";
    let audit = json!([{"message": "odd", "policy": "theirs", "binding": "b", "expressionIndex": "0",
        "validationActions": ["Audit"]}]);
    let (report, text) = explained(
        &log(&[
            refused(2, policy, Value::Null),
            // The words of somebody else's message name no policy.
            refused(
                4,
                "quota exceeded",
                json!({"validation.policy.admission.k8s.io/validation_failure": audit.to_string()}),
            ),
            refused(
                1,
                "admission webhook \"pods.outrigger.dev\" denied the request: ValidatingAdmissionPolicy 'x'",
                json!({"pods.outrigger.dev/denied": "code=403 step=validation kind=Tenant name=blue fields=spec.a,spec.b"}),
            ),
            refused(3, "admission webhook \"x.example.com\" denied the request: no", Value::Null),
        ]),
        &[],
    );
    assert_eq!(
        text,
        "Pod n/p
  2026-01-02T03:04:01.000000Z create by alice: 403
    failed: admission webhook \"pods.outrigger.dev\" denied the request: ValidatingAdmissionPolicy 'x'
    refused by webhook pods.outrigger.dev, step validation, Tenant blue: spec.a, spec.b
  2026-01-02T03:04:02.000000Z create by alice: 403
    failed: pods \"p\" is forbidden: ValidatingAdmissionPolicy 'outrigger-pods' with binding 'b' denied request: no
    refused by policy outrigger-pods
  2026-01-02T03:04:03.000000Z create by alice: 403
    failed: admission webhook \"x.example.com\" denied the request: no
    refused by webhook x.example.com
  2026-01-02T03:04:04.000000Z create by alice: 403
    failed: quota exceeded
    policy theirs (Audit): odd
"
    );
    let pod = &report["pods"][0];
    assert_eq!(pod.get("createdBy"), None, "a refused request creates nothing");
    let ours: Vec<&Value> =
        pod["requests"].as_array().unwrap().iter().map(|request| &request["refusedBy"]["ours"]).collect();
    assert_eq!(ours, [&json!(true), &json!(true), &json!(false), &Value::Null]);
}

#[test]
fn requests_that_change_no_pod_are_left_out() {
    let of = |change: Value| event(1, &change);
    let left_out = [
        of(json!({"verb": "get"})),
        of(json!({"stage": "RequestReceived"})),
        of(json!({"objectRef": {"resource": "nodes"}})),
        of(json!({"objectRef": {"apiGroup": "metrics.k8s.io"}})),
        of(json!({"verb": "patch", "objectRef": {"subresource": "status"}})),
        of(json!({"objectRef": {"subresource": "exec"}})),
        of(json!({"objectRef": null})),
    ];
    let (report, text) = explained(&log(&left_out), &[]);
    assert_eq!((report, text.as_str()), (json!({"notes": [], "pods": []}), "no requests about Pods\n"));
    let kept = [
        of(json!({"verb": "delete", "annotations": null})),
        of(json!({"objectRef": {"subresource": "binding"}, "user": {"username": "system:kube-scheduler"}})),
        of(
            json!({"requestURI": "/api/v1/namespaces/n/pods?dryRun=All", "impersonatedUser": {"username": "bob"}}),
        ),
        // A status that admission refused.
        of(json!({"verb": "patch", "objectRef": {"subresource": "status"}, "responseStatus": {"code": 403,
            "message": "pods \"p\" is forbidden: ValidatingAdmissionPolicy 'outrigger-pod-status' with binding 'b' denied"}})),
    ];
    let (report, text) = explained(&log(&kept), &[]);
    assert_eq!(report["pods"][0]["requests"].as_array().unwrap().len(), kept.len(), "{text}");
    assert!(text.contains("create of binding by system:kube-scheduler: 201"), "{text}");
    assert!(text.contains("create by bob (impersonated by alice): 201, dry run"), "{text}");
    assert_eq!(report["pods"][0].get("createdBy"), None, "neither a binding nor a dry run creates it");
}

#[test]
fn flags_select_pods() {
    let of =
        |namespace: &str, name: &str| event(1, &json!({"objectRef": {"namespace": namespace, "name": name}}));
    let all = log(&[of("b", "x"), of("a", "y"), of("a", "x")]);
    let found = |flags: &[&str]| -> Vec<String> {
        let (report, _) = explained(&all, flags);
        let name =
            |pod: &Value| format!("{}/{}", pod["namespace"].as_str().unwrap(), pod["name"].as_str().unwrap());
        report["pods"].as_array().unwrap().iter().map(name).collect()
    };
    assert_eq!(found(&[]), ["a/x", "a/y", "b/x"]);
    assert_eq!(found(&["-n", "a"]), ["a/x", "a/y"]);
    assert_eq!(found(&["--name", "x"]), ["a/x", "b/x"]);
    assert_eq!(found(&["-n", "b", "--name", "y"]), [""; 0]);
}

#[test]
fn a_generated_name_is_the_answers_or_unknown() {
    let of = |change: Value| {
        let mut event = event(
            1,
            &json!({"objectRef": {"name": null}, "requestObject": {"metadata": {"generateName": "web-"}}}),
        );
        json_patch::merge(&mut event, &change);
        explained(&log(&[event]), &[]).0["pods"][0]["name"].clone()
    };
    assert_eq!(of(json!({"responseObject": {"metadata": {"name": "web-1"}}})), "web-1");
    assert_eq!(of(json!({})), "web-…");
    // A patch is a list.
    assert_eq!(of(json!({"requestObject": [{"op": "add"}]})), "…");
}

#[test]
fn lines_that_are_no_events_are_counted_and_named() {
    let whole = event(1, &json!({})).to_string();
    let long = format!("\"{}\"", "x".repeat(usize::try_from(lines::MAX_LINE).unwrap()));
    let text = format!(
        "{}\n\n{whole}\nnot json\n[1]\n{{\"kind\": \"Event\", \"apiVersion\": \"v1\"}}\n{long}\n{}{whole}",
        &whole[..whole.len() / 2],
        "{\n".repeat(6)
    );
    let (report, printed) = explained(&text, &[]);
    assert_eq!(
        report["notes"],
        json!([
            "log: lines 1, 4, 8, 9, 10 and 3 more left out: no JSON",
            "log: lines 5, 6 left out: no Event of audit.k8s.io/v1",
            "log: line 7 left out: more than 16777216 bytes"
        ])
    );
    assert_eq!(report["pods"][0]["requests"].as_array().unwrap().len(), 2, "all whole lines are read");
    assert!(printed.starts_with("note: log: lines 1, "), "{printed}");
}

#[test]
fn what_a_log_contains_does_not_change_a_terminal() {
    let evil = event(
        1,
        &json!({"user": {"username": "a\u{1b}[2J"}, "responseStatus": {"code": 400, "message": "x\u{7}\ny"}}),
    );
    let (_, text) = explained(&log(&[evil]), &[]);
    assert!(text.contains("by a\u{fffd}[2J: 400") && text.contains("failed: x\u{fffd} y\n"), "{text:?}");
}
