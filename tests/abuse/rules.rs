//! A tenant's rules: by kubectl, by gRPC, and by what they match.

use futures::{StreamExt, TryStreamExt};
use kube::api::{DeleteParams, ListParams};
use outrigger_core::tenant::Limits;
use outrigger_proto::v1;
use outrigger_proto::v1::workload_rule_service_client::WorkloadRuleServiceClient;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::stream::{Opened, about, update};
use outrigger_tests::tenant::{self, Tenant};
use outrigger_tests::{InWords, eventually, holds};
use serde_json::{Value, json};

use crate::abuse::grpc::channel;
use crate::abuse::{alone, is_modest, neighbour};

/// Webhook and manager of the installation are modest.
fn both_are_modest(o: &Outrigger) {
    is_modest("webhook", &format!("--bind-address=127.0.0.1:{}", o.webhook_port));
    is_modest("manager", &format!("--bind-address=tcp://127.0.0.1:{}", o.grpc_port));
}

/// A rule that matches every workload.
fn rule(spec: &Value, template: &Value) -> Value {
    let pod =
        json!({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let mut rule = json!({"workloadTerms": [{"matchExpressions": [{"key": "@", "operator": "Exists"}]}], "template": pod});
    json_patch::merge(&mut rule, spec);
    json_patch::merge(&mut rule["template"], template);
    rule
}

/// Values that take four bytes each in a text, and a hundred times as much in a tree.
fn values(count: usize) -> Value {
    vec![json!({"a": 0}); count / 2].into()
}

/// A rule over gRPC.
async fn create(o: &Outrigger, tenant: &str, id: &str, spec: &Value) -> Result<(), tonic::Status> {
    let object = serde_json::from_value(tenant::rule("", id, spec.clone())).unwrap();
    let mut wanted = outrigger_api::rule_wire::message(&object);
    // Whatever is beyond a bound is left out of an object.
    wanted.data.as_mut().unwrap().rule_template = spec["template"].to_string().into();
    let mut calls = WorkloadRuleServiceClient::new(channel(o, tenant).await);
    calls.create(about(tenant, v1::CreateRequest { rule: Some(wanted) })).await.map(drop)
}

/// Rules through the API server, several at once.
async fn create_all(t: &Tenant, specs: impl Iterator<Item = (String, Value)>) {
    let specs = specs.map(|(name, spec)| {
        let rules = t.rules();
        async move {
            let rule = tenant::rule(&t.namespace, &name, spec);
            loop {
                match outrigger_tests::create(&rules, &rule).await {
                    // Of those that come at once some find the namespace's quota changed, and are to be sent again.
                    Err(kube::Error::Api(status)) if status.is_conflict() => {}
                    other => return other.map(drop),
                }
            }
        }
    });
    futures::stream::iter(specs).buffer_unordered(4).try_collect::<()>().await.unwrap();
}

/// Opens a stream, and sends so many workloads of a tenant, on this node.
async fn send_workloads(t: &Tenant, count: usize, node: &str) -> Opened {
    t.opens_stream((0..count).map(|i| update(&format!("w{i}"), node))).await
}

#[tokio::test]
async fn rules_of_many_values_are_refused_with_their_field() {
    let _alone = alone().await;
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "ab-junk", &[]).await;
    let neighbour = neighbour(o, "ab-junk-q").await;
    let spec = |count: usize| rule(&json!({"dpuSelectionPolicy": "Any"}), &json!({"junk": values(count)}));
    // More than a review may have.
    let rules: Vec<Value> =
        (0..12).map(|i| tenant::rule(&t.namespace, &format!("r{i}"), spec(100_000))).collect();
    let rules = json!({"apiVersion": "v1", "kind": "List", "items": rules}).to_string();
    let (infra, namespace) = (o.plane.infra.clone(), t.namespace.clone());
    let create_them =
        move || infra.kubectl_with(&["create", "--validate=false", "-n", &namespace, "-f", "-"], &rules);
    let said = tokio::task::spawn_blocking(create_them).await.unwrap().unwrap_err().to_string();
    for words in ["spec.template.junk: ", "at most 100000 are allowed"] {
        assert_eq!(said.matches(words).count(), 12, "{said}");
    }
    neighbour.goes_on(5).await;
    // More than a template may have: one answer, whichever way it comes.
    let said = t.try_rule("r", spec(80_000)).await.unwrap_err();
    let status = create(o, "ab-junk", "r", &spec(80_000)).await.unwrap_err();
    for said in [&said, status.message()] {
        assert!(
            said.contains("spec.template: has 8") && said.contains("at most 20000 are allowed"),
            "{said}"
        );
    }
    neighbour.goes_on(5).await;
    let left = t.rules().list(&ListParams::default()).await.unwrap().items;
    assert!(left.is_empty(), "{} rules are there", left.len());
    both_are_modest(o);
    neighbour.undisturbed().await;
}

/// One rule more, of the name `more`, is refused once the webhook has seen those that there are.
async fn is_full(t: &Tenant, more: impl AsyncFn() -> Result<(), String>) {
    eventually("one more is refused", || async {
        match more().await {
            Err(said) if said.contains("Tenant spec.limits.ruleBytes: ") => Ok(()),
            Err(said) => Err(said),
            Ok(()) => {
                t.rules().delete("more", &DeleteParams::default()).await.in_words()?;
                Err("it is taken".to_owned())
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn as_much_as_the_limits_admit_is_served_also_after_a_restart() {
    let _alone = alone().await;
    // Its processes are restarted.
    let own = Outrigger::start().await.unwrap().of_one_test();
    let o = *own;
    let first = neighbour(o, "ab-full-q").await;
    // Few large texts, through the API server. Each becomes companions that are as large.
    let texts = Tenant::without_agent(o, "ab-texts", &[("a", 1)]).await;
    let large = rule(
        &json!({}),
        &json!({"spec": {"containers": [{"name": "c", "image": "i", "args": ["x".repeat(510_000)]}]}}),
    );
    create_all(&texts, (0..8).map(|i| (format!("r{i}"), large.clone()))).await;
    is_full(&texts, async || texts.try_rule("more", large.clone()).await.map(drop)).await;
    let _texts = send_workloads(&texts, 2, &texts.node("a")).await;
    first.goes_on(5).await;
    // As many values as a template may have, over gRPC.
    let many = Tenant::without_agent(o, "ab-values", &[("a", 1)]).await;
    let tree = rule(&json!({}), &json!({"spec": {"junk": values(19_900)}}));
    for i in 0..8 {
        create(o, "ab-values", &format!("r{i}"), &tree).await.unwrap();
    }
    let _many = send_workloads(&many, 1, &many.node("a")).await;
    first.goes_on(5).await;
    // As many values of expressions as there is room for: each counts for more than its text.
    let small = Tenant::without_agent(o, "ab-terms", &[]).await;
    let expression = |e: usize| {
        let values: Vec<String> = (0..1_000).map(|i| format!("{e}-{i}")).collect();
        json!({"key": ".state.extra.labels.app", "operator": "NotIn", "values": values})
    };
    let terms = json!([{"matchExpressions": (0..15).map(expression).collect::<Vec<_>>()}]);
    let spec = rule(&json!({"workloadTerms": terms}), &json!({}));
    create(o, "ab-terms", "r", &spec).await.unwrap();
    is_full(&small, async || create(o, "ab-terms", "more", &spec).await.in_words()).await;
    first.goes_on(5).await;
    texts.ready(16).await;
    many.ready(8).await;
    both_are_modest(o);
    first.undisturbed().await;
    o.plane.command_all("restart", ["webhook", "manager"]);
    o.ready().await;
    let second = neighbour(o, "ab-again-q").await;
    second.goes_on(20).await;
    texts.ready(16).await;
    both_are_modest(o);
    second.undisturbed().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_that_match_everything_are_matched_up_to_a_limit() {
    const RULES: usize = 100;
    const COMPANIONS: usize = 100;
    let _alone = alone().await;
    let o = Outrigger::shared().await;
    let neighbour = neighbour(o, "ab-all-q").await;
    let t = Tenant::without_agent(o, "ab-all", &[]).await;
    t.set(json!({"limits": {"companions": COMPANIONS}})).await.unwrap();
    let spec = rule(&json!({}), &json!({}));
    create_all(&t, (0..RULES).map(|i| (format!("r{i}"), spec.clone()))).await;
    let _opened = send_workloads(&t, 3_000, "nowhere").await;
    neighbour.goes_on(5).await;
    let most = Limits { companions: u32::try_from(COMPANIONS).unwrap(), ..Limits::default() }.matches();
    eventually("all workloads are known, and as many matches as are kept", || async {
        let rules = t.rules().list(&ListParams::default()).await.in_words()?.items;
        let statuses: Vec<_> = rules.into_iter().filter_map(|rule| rule.status).collect();
        let matched: i64 = statuses.iter().filter_map(|status| status.matched).sum();
        let all = statuses.iter().flat_map(|status| &status.conditions);
        let limited = all.filter(|c| c.type_ == "Ready" && c.reason == "LimitReached").count();
        holds(
            usize::try_from(matched) == Ok(most) && limited > RULES / 2,
            format!("{matched} of {most}, reported by {limited}"),
        )
    })
    .await;
    both_are_modest(o);
    neighbour.goes_on(5).await;
    neighbour.undisturbed().await;
}
