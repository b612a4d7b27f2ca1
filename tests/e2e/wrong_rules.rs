//! Every field of a rule wrong in turn, by kubectl and by gRPC: both say the same, with the field's path.

use outrigger_agent::connect::{Address, connect};
use outrigger_api::{WorkloadRule, rule_wire};
use outrigger_proto::v1;
use outrigger_proto::v1::workload_rule_service_client::WorkloadRuleServiceClient;
use outrigger_tests::outrigger::{Outrigger, tenant_identity};
use outrigger_tests::tenant::{Tenant, rule_for};
use serde_json::{Value, json};
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use tonic_types::StatusExt;

/// What is put where, and what the answer says: the field's path, and words.
struct Wrong {
    at: &'static str,
    value: Value,
    path: &'static str,
    words: &'static str,
    /// A message has no room for it.
    kubectl_only: bool,
}

fn wrong(at: &'static str, value: Value, path: &'static str, words: &'static str) -> Wrong {
    Wrong { at, value, path, words, kubectl_only: false }
}

fn by_kubectl(at: &'static str, value: Value, path: &'static str, words: &'static str) -> Wrong {
    Wrong { kubectl_only: true, ..wrong(at, value, path, words) }
}

fn expression(key: &str, operator: &str, values: &[&str]) -> Value {
    json!({"key": key, "operator": operator, "values": values})
}

fn table() -> Vec<Wrong> {
    const E: &str = "/spec/workloadTerms/0/matchExpressions/0";
    const NODE: &str = ".state.nodeName";
    let many = |n: usize| json!(vec![json!({"matchExpressions": [expression(NODE, "Exists", &[])]}); n]);
    let expressions = |n: usize| json!(vec![expression(NODE, "Exists", &[]); n]);
    let container = json!({"name": "c", "image": "i"});
    let big = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"annotations": {"a": "x".repeat(1_500_000)}},
        "spec": {"containers": [container]}});
    let crowd = json!({"apiVersion": "v1", "kind": "Pod",
        "spec": {"containers": [container], "volumes": vec![json!({"a": 0}); 10_000]}});
    let facts = |name: &str| json!([{"workloadKey": NODE, "asAnnotation": {"name": name}}]);
    vec![
        // Which workloads.
        wrong("/spec/template/junk", json!([{"a": 0}]), "spec.template.junk", "is no field of a companion"),
        wrong("/spec/template", crowd, "spec.template", "at most 20000 are allowed"),
        wrong("/spec/resourceKind", json!("v1/VM"), "spec.resourceKind", "supported values: \"v1/Pod\""),
        wrong("/spec/workloadTerms", json!([]), "spec.workloadTerms", "should have at least 1 items"),
        wrong("/spec/workloadTerms", many(1000), "spec.workloadTerms", "must have at most 64 items"),
        wrong(
            "/spec/workloadTerms/0/matchExpressions",
            json!([]),
            "spec.workloadTerms[0].matchExpressions",
            "at least 1 items",
        ),
        wrong(
            "/spec/workloadTerms/0/matchExpressions",
            expressions(65),
            "spec.workloadTerms[0].matchExpressions",
            "at most 64 items",
        ),
        wrong(
            E,
            expression("state.", "Exists", &[]),
            "spec.workloadTerms[0].matchExpressions[0].key",
            "\"state.\"",
        ),
        wrong(
            E,
            expression("status.phase", "Exists", &[]),
            "spec.workloadTerms[0].matchExpressions[0].key",
            "status",
        ),
        wrong(
            E,
            expression("[", "Exists", &[]),
            "spec.workloadTerms[0].matchExpressions[0].key",
            "at character",
        ),
        wrong(
            E,
            expression(".state", "In", &["x"]),
            "spec.workloadTerms[0].matchExpressions[0].key",
            "is an object",
        ),
        by_kubectl(
            E,
            expression(NODE, "Like", &["x"]),
            "spec.workloadTerms[0].matchExpressions[0].operator",
            "supported values",
        ),
        by_kubectl(
            E,
            json!({"key": NODE}),
            "spec.workloadTerms[0].matchExpressions[0].operator",
            "Required value",
        ),
        wrong(
            E,
            expression(NODE, "In", &[]),
            "spec.workloadTerms[0].matchExpressions[0].values",
            "need at least one value",
        ),
        wrong(
            E,
            expression(NODE, "NotIn", &[]),
            "spec.workloadTerms[0].matchExpressions[0].values",
            "need at least one value",
        ),
        wrong(
            E,
            expression(NODE, "In", &["x"; 1025]),
            "spec.workloadTerms[0].matchExpressions[0].values",
            "at most 1024 items",
        ),
        wrong(
            E,
            expression(NODE, "Exists", &["x", "y"]),
            "spec.workloadTerms[0].matchExpressions[0].values",
            "take no values",
        ),
        wrong(
            E,
            expression(NODE, "DoesNotExist", &["x", "y"]),
            "spec.workloadTerms[0].matchExpressions[0].values",
            "take no values",
        ),
        wrong(
            E,
            expression(NODE, "Gt", &[]),
            "spec.workloadTerms[0].matchExpressions[0].values",
            "exactly one value",
        ),
        wrong(
            E,
            expression(NODE, "Lt", &["1", "2"]),
            "spec.workloadTerms[0].matchExpressions[0].values",
            "exactly one value",
        ),
        wrong(
            E,
            expression(NODE, "Gt", &["1.5"]),
            "spec.workloadTerms[0].matchExpressions[0].values[0]",
            "integer of 64 bits",
        ),
        wrong(
            E,
            expression(NODE, "Lt", &["9223372036854775808"]),
            "spec.workloadTerms[0].matchExpressions[0].values[0]",
            "integer of 64 bits",
        ),
        // Facts.
        wrong(
            "/spec/workloadInfoInject",
            json!([{"workloadKey": "x", "asAnnotation": {"name": "a"}}]),
            "spec.workloadInfoInject[0].workloadKey",
            "\"x\"",
        ),
        wrong(
            "/spec/workloadInfoInject",
            facts(""),
            "spec.workloadInfoInject[0].asAnnotation.name",
            "at least 1 chars",
        ),
        wrong(
            "/spec/workloadInfoInject",
            facts("a b"),
            "spec.workloadInfoInject[0].asAnnotation.name",
            "\"a b\"",
        ),
        wrong(
            "/spec/workloadInfoInject",
            facts("-"),
            "spec.workloadInfoInject[0].asAnnotation.name",
            "beginning and ending with",
        ),
        wrong(
            "/spec/workloadInfoInject",
            facts("a/b/c"),
            "spec.workloadInfoInject[0].asAnnotation.name",
            "\"a/b/c\"",
        ),
        wrong(
            "/spec/workloadInfoInject",
            facts("outrigger.dev/tenant"),
            "spec.workloadInfoInject[0].asAnnotation.name",
            "set by Outrigger alone",
        ),
        wrong(
            "/spec/workloadInfoInject",
            json!([{"asAnnotation": {"name": "a"}}, {"asAnnotation": {"name": "a"}}]),
            "spec.workloadInfoInject[1].asAnnotation.name",
            "earlier entry",
        ),
        by_kubectl(
            "/spec/workloadInfoInject",
            json!([{"workloadKey": NODE}]),
            "spec.workloadInfoInject[0].asAnnotation",
            "Required value",
        ),
        // Placement and rollout.
        wrong("/spec/dpuSelectionPolicy", json!("Nearby"), "spec.dpuSelectionPolicy", "supported values"),
        wrong(
            "/spec/updateStrategy",
            json!({"type": "Recreate"}),
            "spec.updateStrategy.type",
            "supported values",
        ),
        wrong(
            "/spec/updateStrategy",
            json!({"type": "OnDelete", "rollingUpdate": {"maxUnavailable": 1}}),
            "spec.updateStrategy.rollingUpdate",
            "OnDelete takes no rollingUpdate",
        ),
        wrong(
            "/spec/updateStrategy",
            json!({"rollingUpdate": {"maxUnavailable": 0}}),
            "spec.updateStrategy.rollingUpdate.maxUnavailable",
            "greater than or equal to 1",
        ),
        wrong(
            "/spec/updateStrategy",
            json!({"rollingUpdate": {"maxUnavailable": "0%"}}),
            "spec.updateStrategy.rollingUpdate.maxUnavailable",
            "should match",
        ),
        wrong(
            "/spec/updateStrategy",
            json!({"rollingUpdate": {"maxUnavailable": "101%"}}),
            "spec.updateStrategy.rollingUpdate.maxUnavailable",
            "should match",
        ),
        wrong(
            "/spec/updateStrategy",
            json!({"rollingUpdate": {"maxUnavailable": "some"}}),
            "spec.updateStrategy.rollingUpdate.maxUnavailable",
            "should match",
        ),
        // The template: its shape.
        wrong("/spec/template", json!("a Pod"), "spec.template", "must be of type object"),
        wrong("/spec/template/apiVersion", json!("v2"), "spec.template.apiVersion", "use \"v1\""),
        wrong("/spec/template/kind", json!("Deployment"), "spec.template.kind", "use \"Pod\""),
        wrong("/spec/template/spec", json!([]), "spec.template.spec", "must be an object"),
        // Devices.
        wrong(
            "/spec/template/kind",
            json!("ResourceClaim"),
            "spec.template.apiVersion",
            "\"resource.k8s.io/v1\"",
        ),
        wrong(
            "/spec/deviceClaims",
            json!([{"name": "d"}]),
            "spec.deviceClaims[0]",
            "exactly one of spec and fromRule",
        ),
        wrong(
            "/spec/deviceClaims",
            json!([{"name": "d", "fromRule": "o", "spec": {}}]),
            "spec.deviceClaims[0]",
            "exactly one of spec and fromRule",
        ),
        wrong(
            "/spec/deviceClaims",
            json!([{"name": "d", "fromRule": "o", "containers": ["none"]}]),
            "spec.deviceClaims[0].containers[0]",
            "is no container of the template",
        ),
        wrong(
            "/spec/deviceClaims",
            json!([{"name": "D", "fromRule": "o"}]),
            "spec.deviceClaims[0].name",
            "lower-case letters",
        ),
        wrong(
            "/spec/deviceHostAttribute",
            json!("dpu.example.com/host"),
            "spec.deviceHostAttribute",
            "is for templates that are ResourceClaims",
        ),
        wrong("/spec/template/spec/containers", json!([]), "spec.template.spec.containers", "is empty"),
        wrong("/spec/template/spec/containers", json!({}), "spec.template.spec.containers", "must be a list"),
        wrong(
            "/spec/template/metadata",
            json!({"labels": {"a": 1}}),
            "spec.template.metadata.labels[a]",
            "must be a string",
        ),
        wrong(
            "/spec/template/metadata",
            json!({"labels": {"outrigger.dev/tenant": "x"}}),
            "spec.template.metadata.labels[outrigger.dev/tenant]",
            "set by Outrigger alone",
        ),
        wrong(
            "/spec/template/metadata",
            json!({"finalizers": ["a/b"]}),
            "spec.template.metadata.finalizers",
            "remove it",
        ),
        wrong("/spec/template", big, "spec.template", "at most 524288 are allowed"),
        // The template: what the tenant may not have.
        wrong(
            "/spec/template/spec/nodeName",
            json!("wr-theirs-a-dpu1"),
            "spec.template.spec.nodeName",
            "bypass the scheduler",
        ),
        wrong("/spec/template/spec/hostNetwork", json!(true), "spec.template.spec.hostNetwork", ""),
        wrong(
            "/spec/template/spec/containers",
            json!([{"name": "c", "image": "i", "securityContext": {"privileged": true}}]),
            "spec.template.spec.containers[0].securityContext.privileged",
            "",
        ),
        wrong(
            "/spec/template/spec/tolerations",
            json!([{"key": "outrigger.dev/tenant", "operator": "Equal", "value": "wr-theirs", "effect": "NoSchedule"}]),
            "spec.template.spec.tolerations[0]",
            "",
        ),
    ]
}

/// A good rule with one field wrong.
fn broken(wrong: &Wrong, namespace: &str) -> Value {
    let mut rule = json!({"apiVersion": "workload.universe.nvidia.com/v1alpha1", "kind": "WorkloadRule",
        "metadata": {"name": "r", "namespace": namespace}, "spec": rule_for("app", "web")});
    let (parent, key) = wrong.at.rsplit_once('/').unwrap();
    match rule.pointer_mut(parent).unwrap() {
        Value::Array(list) => list[key.parse::<usize>().unwrap()] = wrong.value.clone(),
        object => object[key] = wrong.value.clone(),
    }
    rule
}

/// What the API server says to kubectl, which sends the object as it is.
async fn kubectl(t: &Tenant, rule: &Value) -> Option<String> {
    let body = serde_json::to_vec(rule).unwrap();
    let request = http::Request::post(format!(
        "/apis/workload.universe.nvidia.com/v1alpha1/namespaces/{}/workloadrules?fieldValidation=Strict",
        t.namespace
    ))
    .header("content-type", "application/json")
    .body(body)
    .unwrap();
    match t.infra.request::<Value>(request).await {
        Err(kube::Error::Api(status)) => Some(status.message),
        Err(other) => panic!("{other:?}"),
        Ok(_) => None,
    }
}

async fn grpc(client: &mut WorkloadRuleServiceClient<Channel>, rule_json: &Value) -> Option<Status> {
    let object: WorkloadRule = serde_json::from_value(rule_json.clone()).ok()?;
    let mut rule = v1::Rule { status: None, ..rule_wire::message(&object) };
    if let Some(data) = rule.data.as_mut() {
        // Whatever it is: one that is too large is not in the object any more.
        data.rule_template = rule_json["spec"]["template"].to_string().into_bytes().into();
    }
    let mut request = Request::new(v1::CreateRequest { rule: Some(rule) });
    request.metadata_mut().insert("tenant-id", "wr".parse().unwrap());
    Some(client.create(request).await.unwrap_err())
}

#[tokio::test]
async fn every_field_wrong_in_turn_is_told_alike_by_kubectl_and_grpc() {
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "wr", &[("a", 1)]).await;
    let _theirs = Tenant::without_agent(o, "wr-theirs", &[("a", 1)]).await;
    let address: Address = format!("https://127.0.0.1:{}", o.grpc_port).parse().unwrap();
    let tls = o.client_tls("wrong-rules", &[&tenant_identity("wr")]);
    let mut client = WorkloadRuleServiceClient::new(connect(&address, &tls, None).await.unwrap());
    let mut faults = Vec::new();
    for wrong in table() {
        let rule = broken(&wrong, &t.namespace);
        let what = format!("{} = {:.80}", wrong.at, wrong.value.to_string());
        let Some(said) = kubectl(&t, &rule).await else {
            faults.push(format!("{what}: is taken"));
            t.rules().delete("r", &kube::api::DeleteParams::default()).await.unwrap();
            continue;
        };
        if !said.contains(wrong.path) || !said.contains(wrong.words) {
            faults.push(format!("{what}: by kubectl: {said:.300}"));
        }
        if said.len() > 4096 {
            faults.push(format!("{what}: the answer has {} bytes", said.len()));
        }
        if wrong.kubectl_only {
            continue;
        }
        let Some(status) = grpc(&mut client, &rule).await else {
            faults.push(format!("{what}: is no message"));
            continue;
        };
        // What is too large is refused before the API server is asked, in the same words.
        let own = said.split_once("denied the request: ").map_or(said.as_str(), |(_, own)| own);
        if status.code() != Code::InvalidArgument || ![said.as_str(), own].contains(&status.message()) {
            faults.push(format!("{what}: by kubectl: {said:.300}\n   by gRPC: {status:.400}"));
        }
        let details = status.get_error_details();
        let violations = details.bad_request().map(|b| b.field_violations.clone()).unwrap_or_default();
        if !violations.iter().any(|v| v.field.starts_with(wrong.path)) {
            faults.push(format!("{what}: by gRPC no violation of {}: {violations:?}", wrong.path));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(t.rules().list(&kube::api::ListParams::default()).await.unwrap().items.is_empty());
}
