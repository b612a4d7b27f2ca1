//! Every field of a rule wrong in turn, by kubectl and by gRPC: both say the same, with the field's path.

use outrigger_api::{WorkloadRule, rule_wire};
use outrigger_cases::{Layer, WrongRule, wrong_rules};
use outrigger_proto::v1;
use outrigger_proto::v1::workload_rule_service_client::WorkloadRuleServiceClient;
use outrigger_tests::outrigger::{Outrigger, tenant_identity};
use outrigger_tests::stream::{about, channel};
use outrigger_tests::tenant::{Tenant, rule, rule_for};
use serde_json::Value;
use tonic::transport::Channel;
use tonic::{Code, Status};
use tonic_types::StatusExt;

/// A good rule with one field wrong.
fn broken(wrong: &WrongRule, namespace: &str) -> Value {
    let mut rule = rule(namespace, "r", rule_for("app", "web"));
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
        // Whatever it is: one that is too large is no longer in the object.
        data.rule_template = rule_json["spec"]["template"].to_string().into_bytes().into();
    }
    Some(client.create(about("wr", v1::CreateRequest { rule: Some(rule) })).await.unwrap_err())
}

#[tokio::test]
async fn every_field_wrong_in_turn_is_reported_alike_by_kubectl_and_grpc() {
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "wr", &[("a", 1)]).await;
    let _theirs = Tenant::without_agent(o, "wr-theirs", &[("a", 1)]).await;
    let tls = o.client_tls("wrong-rules", &[&tenant_identity("wr")]);
    let mut client = WorkloadRuleServiceClient::new(channel(&tls, o.grpc_port).await.unwrap());
    let mut failures = Vec::new();
    for wrong in wrong_rules(Layer::E2e, &[("$OTHER", "wr-theirs")]) {
        let rule = broken(&wrong, &t.namespace);
        let what = format!("{} = {:.80}", wrong.at, wrong.value.to_string());
        let Some(said) = kubectl(&t, &rule).await else {
            failures.push(format!("{what}: is taken"));
            t.rules().delete("r", &kube::api::DeleteParams::default()).await.unwrap();
            continue;
        };
        if !said.contains(&wrong.path) || !said.contains(&wrong.says) {
            failures.push(format!("{what}: by kubectl: {said:.300}"));
        }
        if said.len() > 4096 {
            failures.push(format!("{what}: the answer has {} bytes", said.len()));
        }
        if !wrong.grpc {
            continue;
        }
        let Some(status) = grpc(&mut client, &rule).await else {
            failures.push(format!("{what}: is no message"));
            continue;
        };
        // What is too large is refused before the API server is asked, in the same words.
        let own = said.split_once("denied the request: ").map_or(said.as_str(), |(_, own)| own);
        if status.code() != Code::InvalidArgument || ![said.as_str(), own].contains(&status.message()) {
            failures.push(format!("{what}: by kubectl: {said:.300}\n   by gRPC: {status:.400}"));
        }
        let details = status.get_error_details();
        let violations = details.bad_request().map(|b| b.field_violations.clone()).unwrap_or_default();
        if !violations.iter().any(|v| v.field.starts_with(&wrong.path)) {
            failures.push(format!("{what}: by gRPC no violation of {}: {violations:?}", wrong.path));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(t.rules().list(&kube::api::ListParams::default()).await.unwrap().items.is_empty());
}
