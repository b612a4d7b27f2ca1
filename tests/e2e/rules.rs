//! Rules over gRPC: with the real grpcurl, and what no shell would send.

use std::path::PathBuf;
use std::process::Command;

use outrigger_proto::v1;
use outrigger_proto::v1::rule_match_expression::Operation;
use outrigger_proto::v1::workload_rule_service_client::WorkloadRuleServiceClient;
use outrigger_tests::control_plane::tool;
use outrigger_tests::outrigger::{ADMIN, Outrigger, tenant_identity};
use outrigger_tests::page::Page;
use outrigger_tests::stream::{about, channel};
use outrigger_tests::tenant::{Tenant, rule_for};
use outrigger_tests::{InWords, eventually, holds, is_gone, root};
use serde_json::{Value, json};
use tonic::Code;
use tonic::transport::Channel;
use tonic_types::StatusExt;

/// A directory with all that the documented commands expect to find there.
fn workplace(o: &Outrigger, tenant: &str) -> PathBuf {
    let dir = o.plane.dir.join(format!("grpcurl-{tenant}"));
    std::fs::create_dir_all(&dir).unwrap();
    let pair = o.authority.issue(&format!("grpcurl-{tenant}"), &[ADMIN]).unwrap();
    for (from, to) in [(o.authority.file(), "ca.crt"), (pair.cert, "admin.crt"), (pair.key, "admin.key")] {
        std::fs::copy(from, dir.join(to)).unwrap();
    }
    let _ = std::os::unix::fs::symlink(root().join("proto/universe"), dir.join("universe"));
    dir
}

/// Runs a script of the documentation with bash: whether it succeeded, and what it said.
fn shell(o: &Outrigger, tenant: &str, script: &str) -> (bool, String) {
    let program = tool("grpcurl").unwrap();
    let path = format!("{}:{}", program.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let output = Command::new("bash")
        .args(["-c", script])
        .current_dir(workplace(o, tenant))
        .env("PATH", path)
        .env("API_GW_ADDRESS", format!("127.0.0.1:{}", o.grpc_port))
        .env("TENANT_ID", tenant)
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

/// The commands of docs/grpc.md under a heading.
fn documented(heading: &str) -> String {
    let page = Page::read("docs/grpc.md").unwrap();
    page.commands(heading).first().unwrap_or_else(|| panic!("no commands under {heading}")).to_string()
}

#[tokio::test]
async fn the_documented_commands_work_with_the_real_grpcurl() {
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "grpcurl", &[("a", 1)]).await;
    let run = |heading: &str| shell(o, "grpcurl", &documented(heading));
    let json_of = |heading: &str| -> Value {
        let (ok, text) = run(heading);
        assert!(ok, "{heading}: {text}");
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{heading}: {e}: {text}"))
    };
    assert_eq!(json_of("List"), json!({}));
    assert_eq!(json_of("Create"), json!({}));
    let (ok, text) = run("Create");
    assert!(!ok && text.contains("Code: AlreadyExists"), "{text}");
    let listed = json_of("List");
    assert_eq!(listed["rules"][0]["id"], "tenantrule1");
    let rule = &json_of("Get")["rule"];
    assert_eq!(rule["data"], listed["rules"][0]["data"]);
    assert_eq!(rule["data"]["dpuSelectionPolicy"], "Any");
    assert_eq!(rule["data"]["workloadTerms"][0]["matchExpressions"][0]["operation"], "OPERATION_IN");
    // kubectl sees the same rule.
    let object = t.rules().get("tenantrule1").await.unwrap();
    assert_eq!(object.spec.template.tree()["spec"]["containers"][0]["image"], "nginx:1.14.2");
    assert_eq!(object.spec.workload_info_inject[0].as_annotation.name, "full-workload-info");
    assert_eq!(json_of("Update"), json!({}));
    assert_eq!(t.rules().get("tenantrule1").await.unwrap().spec.dpu_selection_policy, "SameNode");
    assert_eq!(json_of("Delete"), json!({}));
    assert_eq!(json_of("Delete"), json!({}), "that there is none is no error");
    for heading in ["Get", "Update"] {
        let (ok, text) = run(heading);
        assert!(!ok && text.contains("Code: NotFound"), "{text}");
    }
    // Without the .proto files, by reflection.
    let (ok, text) = run("Reflection and health checks");
    assert!(ok, "{text}");
    for service in [
        "universe.workload.v1.WorkloadService",
        "universe.workload.v1.WorkloadRuleService",
        "universe.admin.workload.v1.AdminWorkloadRuleService",
        "grpc.health.v1.Health",
    ] {
        assert!(text.contains(service), "{text}");
    }
    assert!(text.contains("\"status\": \"SERVING\""), "{text}");
}

#[tokio::test]
async fn the_documented_commands_for_admin_rules_work_too() {
    let o = Outrigger::shared().await;
    let _t = Tenant::without_agent(o, "grpcurl-admin", &[("a", 1)]).await;
    let (ok, text) = shell(o, "grpcurl-admin", &documented("Admin rules"));
    assert!(ok, "{text}");
    // What each of the commands has answered, one after the other.
    let answers: Vec<Value> =
        serde_json::Deserializer::from_str(&text).into_iter().collect::<Result<_, _>>().unwrap();
    let [created, listed, got, deleted] = answers.as_slice() else { panic!("{text}") };
    assert_eq!((created, deleted), (&json!({}), &json!({})));
    let rule = &got["rule"];
    assert_eq!(rule["id"], "metrics");
    assert_eq!(rule["tenantSelector"]["matchLabels"], json!({"tier": "gold"}));
    assert_eq!(rule["data"]["dpuSelectionPolicy"], "Any");
    assert!(
        listed["rules"].as_array().unwrap().iter().any(|listed| listed["data"] == rule["data"]),
        "{listed}"
    );
}

async fn client(o: &Outrigger, names: &[&str]) -> WorkloadRuleServiceClient<Channel> {
    WorkloadRuleServiceClient::new(channel(&o.client_tls("rules", names), o.grpc_port).await.unwrap())
}

fn good(id: &str) -> v1::Rule {
    let expression = v1::RuleMatchExpression {
        key: ".state.nodeName".into(),
        operation: Operation::Exists.into(),
        // The documented interface has a single element here, and nothing is compared with it.
        values: vec!["ignored".into()],
    };
    let template =
        json!({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "c", "image": "i"}]}});
    v1::Rule {
        id: id.into(),
        data: Some(v1::RuleData {
            orchestrator_type: 1,
            workload_terms: vec![v1::RuleWorkloadTerm { match_expressions: vec![expression] }],
            rule_template: template.to_string().into_bytes().into(),
            ..v1::RuleData::default()
        }),
        ..v1::Rule::default()
    }
}

#[tokio::test]
async fn a_call_about_an_earlier_version_of_a_rule_changes_nothing() {
    const T: &str = "ru-etag";
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, T, &[]).await;
    let client = client(o, &[&tenant_identity(T)]).await;
    let get = async || {
        let get = about(T, v1::GetRequest { id: "r".into() });
        client.clone().get(get).await.unwrap().into_inner().rule.unwrap()
    };
    let update = async |rule: &v1::Rule, policy: &str| {
        let mut rule = rule.clone();
        rule.data.as_mut().unwrap().dpu_selection_policy = policy.into();
        let update = about(T, v1::UpdateRequest { rule: Some(rule) });
        client.clone().update(update).await.map(drop).map_err(|status| status.code())
    };
    let delete = async |etag: &str| {
        let delete = about(T, v1::DeleteRequest { id: "r".into(), etag: etag.into() });
        client.clone().delete(delete).await.map(drop).map_err(|status| status.code())
    };
    client.clone().create(about(T, v1::CreateRequest { rule: Some(good("r")) })).await.unwrap();
    let first = get().await;
    update(&first, "Any").await.unwrap();
    let second = get().await;
    assert_ne!(first.etag, second.etag);
    // This is what an agent sent before it was killed, when its successor has written.
    assert_eq!(update(&first, "").await, Err(Code::Aborted));
    assert_eq!(delete(&first.etag).await, Err(Code::Aborted));
    assert_eq!(t.rules().get("r").await.unwrap().spec.dpu_selection_policy, "Any");
    // What changes nothing succeeds, as a call that is sent again because its response was lost.
    update(&first, "Any").await.unwrap();
    // Labels and the status aren't parts of the version.
    let labels = json!({"metadata": {"labels": {"team": "x"}}});
    o.plane.infra.patch("wr/r", &["-n", &t.namespace], &labels).unwrap();
    assert_eq!(get().await.etag, second.etag);
    update(&second, "").await.unwrap();
    // A brief list is made from a watch, and has the same etag.
    let third = get().await.etag;
    eventually("the list has the version", || async {
        let list = about(T, v1::ListRequest { brief: true, ..v1::ListRequest::default() });
        let listed = client.clone().list(list).await.in_words()?.into_inner().rules;
        holds(listed.iter().any(|rule| rule.id == "r" && rule.etag == third), format!("{listed:?} {third}"))
    })
    .await;
    // Of an object of the tenant's cluster that was made again, the origin differs alone.
    let again = v1::Rule { origin: "another-uid".into(), ..get().await };
    update(&again, "").await.unwrap();
    assert_eq!(update(&again, "Any").await, Err(Code::Aborted));
    // A call without an etag is about any version.
    update(&v1::Rule { etag: String::new(), ..first }, "Any").await.unwrap();
    assert_eq!(delete(&third).await, Err(Code::Aborted));
    delete(&get().await.etag).await.unwrap();
    delete(&third).await.unwrap();
    is_gone(&t.rules(), "r").await;
}

#[tokio::test]
async fn a_rule_by_grpc_and_one_by_kubectl_are_the_same_object() {
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "ru-same", &[("a", 1)]).await;
    let mut client = client(o, &[&tenant_identity("ru-same")]).await;
    t.rule("by-kubectl", rule_for("app", "web")).await;
    let get = v1::GetRequest { id: "by-kubectl".into() };
    let rule = client.get(about("ru-same", get)).await.unwrap().into_inner().rule.unwrap();
    let renamed = v1::Rule { id: "by-grpc".into(), ..rule.clone() };
    client.create(about("ru-same", v1::CreateRequest { rule: Some(renamed) })).await.unwrap();
    let (one, two) = (t.rules().get("by-kubectl").await.unwrap(), t.rules().get("by-grpc").await.unwrap());
    assert_eq!(one.spec, two.spec);
    // An update that changes nothing writes nothing; one that changes keeps what is not the rule's.
    let labels = json!({"metadata": {"labels": {"team": "x"}}});
    o.plane.infra.patch("wr/by-kubectl", &["-n", &t.namespace], &labels).unwrap();
    let version = t.rules().get("by-kubectl").await.unwrap().metadata;
    client.update(about("ru-same", v1::UpdateRequest { rule: Some(rule.clone()) })).await.unwrap();
    assert_eq!(t.rules().get("by-kubectl").await.unwrap().metadata.generation, version.generation);
    let mut changed = rule;
    changed.data.as_mut().unwrap().dpu_selection_policy = "Any".into();
    client.update(about("ru-same", v1::UpdateRequest { rule: Some(changed) })).await.unwrap();
    let object = t.rules().get("by-kubectl").await.unwrap();
    assert_eq!(object.spec.dpu_selection_policy, "Any");
    assert_eq!(object.metadata.labels.unwrap()["team"], "x");
    // Pages.
    for i in 0..4 {
        let rule = Some(good(&format!("p{i}")));
        client.create(about("ru-same", v1::CreateRequest { rule })).await.unwrap();
    }
    let (mut ids, mut token) = (Vec::new(), String::new());
    loop {
        let list = v1::ListRequest { page_size: 4, page_token: token, ..v1::ListRequest::default() };
        let page = client.list(about("ru-same", list)).await.unwrap().into_inner();
        assert!(page.rules.len() <= 4);
        ids.extend(page.rules.into_iter().map(|rule| rule.id));
        token = page.next_page_token;
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(ids, ["by-grpc", "by-kubectl", "p0", "p1", "p2", "p3"]);
    let all = client.list(about("ru-same", v1::ListRequest::default())).await.unwrap().into_inner();
    assert_eq!((all.rules.len(), all.next_page_token.as_str()), (6, ""));
}

#[tokio::test]
async fn a_rule_of_another_tenant_is_out_of_reach() {
    let o = Outrigger::shared().await;
    let _mine = Tenant::without_agent(o, "ru-mine", &[]).await;
    let theirs = Tenant::without_agent(o, "ru-theirs", &[]).await;
    theirs.rule("r", rule_for("app", "web")).await;
    let mut client = client(o, &[&tenant_identity("ru-mine")]).await;
    let denied = [
        client.get(about("ru-theirs", v1::GetRequest { id: "r".into() })).await.map(drop),
        client.list(about("ru-theirs", v1::ListRequest::default())).await.map(drop),
        client.create(about("ru-theirs", v1::CreateRequest { rule: Some(good("x")) })).await.map(drop),
        client.update(about("ru-theirs", v1::UpdateRequest { rule: Some(good("r")) })).await.map(drop),
        client
            .delete(about("ru-theirs", v1::DeleteRequest { id: "r".into(), ..Default::default() }))
            .await
            .map(drop),
    ];
    for status in denied {
        assert_eq!(status.unwrap_err().code(), Code::PermissionDenied);
    }
    // Nor by a name that climbs.
    for id in ["../../tenant-ru-theirs/workloadrules/r", "", "R", "a/b"] {
        let status = client.get(about("ru-mine", v1::GetRequest { id: id.into() })).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    }
    let status = client.get(about("ru-mine", v1::GetRequest { id: "r".into() })).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
    assert!(theirs.rules().get("r").await.is_ok());
}

#[tokio::test]
async fn what_is_wrong_with_a_rule_is_reported_by_its_field() {
    let o = Outrigger::shared().await;
    let _t = Tenant::without_agent(o, "ru-wrong", &[]).await;
    let mut client = client(o, &[&tenant_identity("ru-wrong")]).await;
    type Break = fn(&mut v1::RuleData);
    // What only a message can be. `every_field_wrong_in_turn_is_reported_alike_by_kubectl_and_grpc` has what an object can be too.
    let cases: [(Break, &str); 4] = [
        (
            |d| d.workload_terms[0].match_expressions[0].operation = 0,
            "spec.workloadTerms[0].matchExpressions[0].operator",
        ),
        (|d| d.rule_template = b"no"[..].into(), "spec.template"),
        (|d| d.rule_template = b"{}"[..].into(), "spec.template.apiVersion"),
        (|d| d.rule_template = vec![b' '; 5 << 20].into(), ""),
    ];
    for (change, path) in cases {
        let mut rule = good("r");
        change(rule.data.as_mut().unwrap());
        let status =
            client.create(about("ru-wrong", v1::CreateRequest { rule: Some(rule) })).await.unwrap_err();
        if path.is_empty() {
            assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
            assert!(status.message().contains("bytes, at most 4194304 are allowed"), "{status}");
            continue;
        }
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        let details = status.get_error_details();
        let violations = &details.bad_request().unwrap().field_violations;
        assert!(violations.iter().any(|v| v.field == path), "{path}: {violations:?}");
        assert!(status.message().contains(path));
    }
    let status = client.create(about("ru-wrong", v1::CreateRequest { rule: None })).await.unwrap_err();
    assert!(status.message().contains("rule: is missing"), "{status}");
}
