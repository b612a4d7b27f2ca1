//! Rules of the platform: for the workloads of all tenants or of some, with companions in the platform's own namespace.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use outrigger_api::AdminWorkloadRule;
use outrigger_api::conditions::Status;
use outrigger_core::keys;
use outrigger_proto::admin;
use outrigger_proto::admin::admin_workload_rule_service_client::AdminWorkloadRuleServiceClient;
use outrigger_proto::v1::workload_stream_request::Message;
use outrigger_proto::v1::{WorkloadDelete, WorkloadUpdate, workload_state};
use outrigger_tests::control_plane::ControlPlane;
use outrigger_tests::outrigger::{ADMIN, Outrigger, SYSTEM, tenant_identity};
use outrigger_tests::stream::{about, channel, set_label, update};
use outrigger_tests::tenant::{
    Tenant, admin_rule, annotation, binding, is_ready, namespace, node_of, rule_for,
};
use outrigger_tests::{InWords, create, dry_run, eventually, holds};
use serde_json::{Value, json};
use tonic::Code;
use tonic::transport::Channel;

/// Where admin rules and their companions are.
const UNIVERSE: &str = "universe";

/// A workload that only rules for `marker` match: rules for all tenants match other tests' workloads too.
fn workload(id: &str, node: &str, marker: &str) -> WorkloadUpdate {
    let mut workload = update(id, node);
    let labels = workload_state::ExtraData { data: HashMap::from([("admin".into(), marker.into())]) };
    workload.workload_state.as_mut().unwrap().extra.insert("labels".into(), labels);
    workload
}

/// A rule of the platform: `marker` is its name too, and `change` a merge patch of its spec.
fn rule(namespace: &str, marker: &str, change: &Value) -> Value {
    let mut spec = rule_for("admin", marker);
    for (key, value) in change.as_object().unwrap() {
        spec[key] = value.clone();
    }
    admin_rule(namespace, marker, spec)
}

/// Companions of a rule that aren't being deleted, by tenant.
async fn companions(client: &Client, rule: &str) -> Result<HashMap<String, Pod>, String> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), UNIVERSE);
    let labels = format!("{}={rule}", keys::RULE);
    let all = pods.list(&ListParams::default().labels(&labels)).await.in_words()?.items;
    let there = all.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
    Ok(there.map(|pod| (pod.labels()[keys::TENANT].clone(), pod)).collect())
}

/// Waits until just these tenants have a companion of the rule, all of them ready.
async fn ready(client: &Client, rule: &str, tenants: &[&Tenant]) -> HashMap<String, Pod> {
    eventually(&format!("{rule} has companions for {} tenants", tenants.len()), || async {
        let all = companions(client, rule).await?;
        let wanted = |tenant: &&Tenant| all.get(&tenant.id).is_some_and(is_ready);
        if all.len() == tenants.len() && tenants.iter().all(wanted) {
            return Ok(all);
        }
        Err(format!("{:?}", all.iter().map(|(id, pod)| (id, is_ready(pod), &pod.status)).collect::<Vec<_>>()))
    })
    .await
}

/// Waits until a condition of a rule is so and its counts are these; returns the status.
async fn status(
    client: &Client,
    namespace: &str,
    name: &str,
    condition: (&str, Status, &str),
    counts: [i64; 3],
) -> outrigger_api::AdminWorkloadRuleStatus {
    let rules: Api<AdminWorkloadRule> = Api::namespaced(client.clone(), namespace);
    let (kind, wanted, reason) = condition;
    eventually(&format!("{name}: {kind}={} {reason} {counts:?}", wanted.as_str()), || async {
        let status = rules.get(name).await.in_words()?.status.unwrap_or_default();
        let found = status.conditions.iter().find(|c| c.type_ == kind);
        let is = found.is_some_and(|c| c.status == wanted.as_str() && c.reason == reason);
        let all = [status.matched, status.created, status.ready].map(Option::unwrap_or_default);
        if is && all == counts { Ok(status) } else { Err(format!("{status:?}")) }
    })
    .await
}

const ALL_READY: (&str, Status, &str) = ("Ready", Status::True, "AllReady");

#[tokio::test]
async fn the_workloads_of_all_tenants_get_companions_on_their_own_dpus() {
    let o = Outrigger::shared().await;
    let blue = Tenant::without_agent(o, "ar-blue", &[("a", 1), ("b", 1)]).await;
    let red = Tenant::without_agent(o, "ar-red", &[("a", 1)]).await;
    // Two workloads of one id.
    let (to_blue, _blue) = blue.opens_stream([workload("same", &blue.node("b"), "all")]).await;
    let (to_red, _red) = red.opens_stream([workload("same", &red.node("a"), "all")]).await;
    let mut template = outrigger_tests::tenant::template();
    // No tenant's limits hold for the platform.
    template["spec"]["hostNetwork"] = json!(true);
    template["spec"]["containers"][0]["securityContext"] = json!({"privileged": true});
    let rule = rule(UNIVERSE, "all", &json!({"template": template}));
    o.plane.infra.apply(std::slice::from_ref(&rule)).unwrap();

    let both = ready(&blue.infra, "all", &[&blue, &red]).await;
    let (of_blue, of_red) = (&both["ar-blue"], &both["ar-red"]);
    assert_eq!(node_of(of_blue), blue.node("b-dpu1"));
    assert_eq!(node_of(of_red), red.node("a-dpu1"));
    assert_ne!(of_blue.name_any(), of_red.name_any());
    for companion in both.values() {
        assert_eq!(annotation(companion, "workload-name"), Some("same"));
        assert_eq!(companion.labels()[keys::WORKLOAD], "same");
        assert_eq!(companion.owner_references()[0].kind, "AdminWorkloadRule");
    }
    // The tenants see nothing of it.
    for tenant in [&blue, &red] {
        assert!(tenant.companions().await.unwrap().is_empty());
    }
    let reported = status(&blue.infra, UNIVERSE, "all", ALL_READY, [2, 2, 2]).await;
    let by_tenant: Vec<_> =
        reported.tenants.iter().map(|(id, matches)| (id.as_str(), matches.matched)).collect();
    assert_eq!(by_tenant, [("ar-blue", 1), ("ar-red", 1)]);
    let table = o.plane.infra.kubectl(&["get", "awr", "all", "-n", UNIVERSE]).unwrap();
    assert!(table.starts_with("NAME   POLICY     MATCHED   CREATED   READY   ACCEPTED   AGE"), "{table}");

    // Facts follow, in place.
    let mut changed = workload("same", &red.node("a"), "all");
    set_label(&mut changed, "version", "2");
    to_red.send(Message::WorkloadUpdate(changed)).await.unwrap();
    eventually("the fact has arrived", || async {
        let all = companions(&red.infra, "all").await?;
        let pod = all.get("ar-red").ok_or("none")?;
        assert_eq!(pod.uid(), of_red.uid());
        annotation(pod, "version").map(drop).ok_or_else(|| "not yet".to_owned())
    })
    .await;
    // The companion of a deleted workload is deleted.
    let metadata = update("same", "").workload_metadata;
    let delete = Message::WorkloadDelete(WorkloadDelete { workload_metadata: metadata });
    to_blue.send(delete).await.unwrap();
    let left = ready(&red.infra, "all", &[&red]).await;
    assert_eq!(left["ar-red"].uid(), of_red.uid());
    status(&red.infra, UNIVERSE, "all", ALL_READY, [1, 1, 1]).await;
    // Another template makes another Pod of the same name.
    let mut newer = rule;
    newer["spec"]["template"]["metadata"]["labels"]["app"] = json!("newer");
    o.plane.infra.apply(&[newer]).unwrap();
    eventually("it is replaced", || async {
        let all = companions(&red.infra, "all").await?;
        let pod = all.get("ar-red").ok_or("gone")?;
        holds(pod.labels()["app"] == "newer" && is_ready(pod), format!("{:?}", pod.labels()))
    })
    .await;
    o.plane.infra.kubectl(&["delete", "awr", "all", "-n", UNIVERSE]).unwrap();
    ready(&red.infra, "all", &[]).await;
}

#[tokio::test]
async fn a_selector_says_whose_workloads_are_meant_and_follows_labels() {
    let o = Outrigger::shared().await;
    let gold = Tenant::without_agent(o, "ar-gold", &[("a", 1)]).await;
    let tin = Tenant::without_agent(o, "ar-tin", &[("a", 1)]).await;
    let mut streams = Vec::new();
    for tenant in [&gold, &tin] {
        let both = ["by-name", "by-label"].map(|marker| workload(marker, &tenant.node("a"), marker));
        streams.push(tenant.opens_stream(both).await);
    }
    let by_name = json!({"tenantSelector": {"matchLabels": {keys::TENANT: "ar-tin"}}});
    let by_label = json!({"tenantSelector": {"matchExpressions": [
        {"key": "tier", "operator": "In", "values": ["gold"]}]}});
    let rules = [rule(UNIVERSE, "by-name", &by_name), rule(UNIVERSE, "by-label", &by_label)];
    o.plane.infra.apply(&rules).unwrap();
    let infra = &gold.infra;
    ready(infra, "by-name", &[&tin]).await;
    status(infra, UNIVERSE, "by-name", ALL_READY, [1, 1, 1]).await;
    let reported =
        status(infra, UNIVERSE, "by-label", ("Matched", Status::False, "NoTenant"), [0, 0, 0]).await;
    assert!(reported.tenants.is_empty());
    // Labels are changed as people change them.
    let label = |tenant: &str, tier: &str| {
        o.plane.infra.kubectl(&["label", "--overwrite", "tenant", tenant, tier]).unwrap();
    };
    label("ar-gold", "tier=gold");
    ready(infra, "by-label", &[&gold]).await;
    label("ar-tin", "tier=gold");
    ready(infra, "by-label", &[&gold, &tin]).await;
    label("ar-gold", "tier=tin");
    ready(infra, "by-label", &[&tin]).await;
    let reported = status(infra, UNIVERSE, "by-label", ALL_READY, [1, 1, 1]).await;
    assert_eq!(reported.tenants.keys().collect::<Vec<_>>(), ["ar-tin"]);
    // Whom the rule names may change too.
    let everybody = json!({"tenantSelector": null});
    o.plane.infra.apply(&[rule(UNIVERSE, "by-label", &everybody)]).unwrap();
    ready(infra, "by-label", &[&gold, &tin]).await;
    ready(infra, "by-name", &[&tin]).await;
    o.plane.infra.kubectl(&["delete", "awr", "by-name", "by-label", "-n", UNIVERSE]).unwrap();
    ready(infra, "by-label", &[]).await;
    drop(streams);
}

#[tokio::test]
async fn companions_of_admin_rules_leave_with_the_dpu_and_with_the_tenant() {
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "ar-leaves", &[("a", 1), ("b", 1)]).await;
    let hosts = ["a", "b"];
    let workloads = hosts.map(|host| workload(host, &t.node(host), "leaves"));
    let (_sender, _call) = t.opens_stream(workloads).await;
    let mut change = json!({"template": outrigger_tests::tenant::template()});
    // It takes its time to go.
    change["template"]["metadata"]["annotations"] = json!({"pod-delete.stage.kwok.x-k8s.io/delay": "2s"});
    o.plane.infra.apply(&[rule(UNIVERSE, "leaves", &change)]).unwrap();
    status(&t.infra, UNIVERSE, "leaves", ALL_READY, [2, 2, 2]).await;
    let on = async |node: &str| -> usize {
        let pods: Api<Pod> = Api::namespaced(t.infra.clone(), UNIVERSE);
        let params = ListParams::default().fields(&format!("spec.nodeName={node}"));
        pods.list(&params).await.unwrap().items.len()
    };
    let (kept, lost) = (t.node("a-dpu1"), t.node("b-dpu1"));
    assert_eq!((on(&kept).await, on(&lost).await), (1, 1));
    t.set(json!({"hosts": [t.node("a")]})).await.unwrap();
    let nodes = t.nodes();
    eventually("no tenant owns the DPU", || async {
        let node = nodes.get(&lost).await.in_words()?;
        let owner = node.labels().get(keys::NODE_TENANT).cloned();
        // Read after the label: while that is there, the companion may be, too.
        let left = on(&lost).await;
        if owner.is_none() && left > 0 {
            panic!("{left} companions are on a DPU that is no tenant's");
        }
        owner.map_or(Ok(()), Err)
    })
    .await;
    // It waits for another, as a tenant's own would.
    // The scheduler says why after the companion has been counted.
    let pending = ("Ready", Status::False, "Pending");
    eventually("the rule names the tenant whose companion waits", || async {
        let reported = status(&t.infra, UNIVERSE, "leaves", pending, [2, 2, 1]).await;
        let message = &reported.conditions.iter().find(|c| c.type_ == "Ready").unwrap().message;
        if message.contains("of tenant ar-leaves: ") { Ok(()) } else { Err(message.clone()) }
    })
    .await;
    o.plane.infra.kubectl(&["delete", "tenant", "ar-leaves", "--timeout=90s"]).unwrap();
    assert_eq!((on(&kept).await, companions(&t.infra, "leaves").await.unwrap().len()), (0, 0));
    let none = ("Ready", Status::True, "NoMatch");
    let reported = status(&t.infra, UNIVERSE, "leaves", none, [0, 0, 0]).await;
    assert!(reported.tenants.is_empty(), "{reported:?}");
    o.plane.infra.kubectl(&["delete", "awr", "leaves", "-n", UNIVERSE]).unwrap();
}

#[tokio::test]
async fn what_else_is_in_that_namespace_is_left_alone() {
    let o = Outrigger::shared().await;
    let client = o.plane.infra.client().await;
    let pods: Api<Pod> = Api::namespaced(client, UNIVERSE);
    eventually("the namespace takes Pods", || async {
        let plain = json!({"metadata": {"generateName": "plain-", "labels": {"app": "x"}}, "spec": {
            "hostPID": true, "tolerations": [{"operator": "Exists"}], "containers": [{"name": "c", "image": "i"}]}});
        let made = dry_run(&pods, &plain).await.in_words()?;
        assert!(made.spec.unwrap().affinity.is_none());
        Ok::<_, String>(())
    })
    .await;
    for (metadata, spec, part) in [
        (json!({"labels": {keys::TENANT: "x"}}), json!({}), "metadata.labels[outrigger.dev/tenant]"),
        (
            json!({"annotations": {keys::ADMIN_RULE: "x"}}),
            json!({}),
            "metadata.annotations[outrigger.dev/admin-rule]",
        ),
        (
            json!({}),
            json!({"schedulingGates": [{"name": keys::ADMISSION_GATE}]}),
            "spec.schedulingGates[0].name",
        ),
    ] {
        let mut pod = json!({"metadata": metadata, "spec": spec});
        pod["metadata"]["name"] = json!("forged");
        pod["spec"]["containers"] = json!([{"name": "c", "image": "i"}]);
        let error = create(&pods, &pod).await.unwrap_err().to_string();
        assert!(error.contains(part) && error.contains("only Outrigger itself"), "{error}");
    }
}

#[tokio::test]
async fn a_rule_is_validated_and_explained_when_it_is_applied() {
    let o = Outrigger::shared().await;
    let infra = &o.plane.infra;
    for (change, path) in [
        (
            json!({"workloadTerms": [{"matchExpressions": [{"key": "[", "operator": "Exists"}]}]}),
            "spec.workloadTerms[0].matchExpressions[0].key",
        ),
        (
            json!({"tenantSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}),
            "spec.tenantSelector.matchExpressions[0].values",
        ),
        (
            json!({"template": {"apiVersion": "v1", "kind": "Pod", "spec":
                {"containers": [{"name": "c", "image": "i"}], "tolerations": [{"operator": "Exists"}]}}}),
            "spec.template.spec.tolerations[0]",
        ),
    ] {
        let error = infra.apply(&[rule(UNIVERSE, "judged", &change)]).unwrap_err().to_string();
        assert!(error.contains(path), "{error}");
    }
    // In another namespace it is accepted, with a warning.
    let rules: Api<AdminWorkloadRule> = Api::namespaced(infra.client().await, "default");
    let mut elsewhere = rule("default", "elsewhere", &json!({}));
    elsewhere["metadata"]["annotations"] = json!({"a": "b"});
    let body = elsewhere.to_string().into_bytes();
    let request = http::Request::post(
        "/apis/workload.universe.nvidia.com/v1alpha1/namespaces/default/adminworkloadrules?dryRun=All",
    )
    .header("content-type", "application/json")
    .body(kube::client::Body::from(body))
    .unwrap();
    let response = rules.into_client().send(request).await.unwrap();
    let warning =
        response.headers().get("warning").map(|w| w.to_str().unwrap().to_owned()).unwrap_or_default();
    assert!(warning.contains("AdminWorkloadRules are served in universe"), "{warning}");
    let explained = infra.kubectl(&["explain", "adminworkloadrules.spec"]).unwrap();
    for field in ["workloadTerms", "workloadInfoInject", "dpuSelectionPolicy", "template", "tenantSelector"] {
        assert!(explained.contains(field), "{explained}");
    }
    assert!(explained.contains("by the labels of their"), "{explained}");
}

#[tokio::test]
async fn what_the_api_server_refuses_is_reported_with_the_tenant() {
    let o = Outrigger::shared().await;
    let t = Tenant::without_agent(o, "ar-refused", &[("a", 1)]).await;
    let (_sender, _call) = t.opens_stream([workload("w", &t.node("a"), "refused")]).await;
    let mut change = json!({"template": outrigger_tests::tenant::template()});
    change["template"]["spec"]["containers"][0]["image"] = Value::Null;
    o.plane.infra.apply(&[rule(UNIVERSE, "refused", &change)]).unwrap();
    let reported =
        status(&t.infra, UNIVERSE, "refused", ("Ready", Status::False, "Refused"), [1, 0, 0]).await;
    let message = &reported.conditions.iter().find(|c| c.type_ == "Ready").unwrap().message;
    assert!(
        message.starts_with("for tenant ar-refused: spec.template.spec.containers[0].image: "),
        "{message}"
    );
    eventually("an Event says so too", || async {
        let said = o.plane.infra.kubectl(&["describe", "awr", "refused", "-n", UNIVERSE]).in_words()?;
        let (_, events) = said.split_once("Events:").unwrap_or_default();
        holds(events.contains("Refused"), said)
    })
    .await;
    // Mended, it is served.
    o.plane.infra.apply(&[rule(UNIVERSE, "refused", &json!({}))]).unwrap();
    ready(&t.infra, "refused", &[&t]).await;
    let reported = status(&t.infra, UNIVERSE, "refused", ALL_READY, [1, 1, 1]).await;
    assert_eq!(reported.tenants["ar-refused"].refused, None);
    o.plane.infra.kubectl(&["delete", "awr", "refused", "-n", UNIVERSE]).unwrap();
}

async fn client(o: &Outrigger, names: &[&str]) -> AdminWorkloadRuleServiceClient<Channel> {
    let channel = channel(&o.client_tls("admin-rules", names), o.grpc_port).await.unwrap();
    AdminWorkloadRuleServiceClient::new(channel)
}

#[tokio::test]
async fn no_tenant_is_let_in_on_any_verb() {
    let o = Outrigger::shared().await;
    let _t = Tenant::without_agent(o, "ar-mallory", &[]).await;
    let mut admin = client(o, &[ADMIN]).await;
    let object: AdminWorkloadRule = serde_json::from_value(rule(
        UNIVERSE,
        "grpc",
        &json!({"tenantSelector": {"matchLabels": {"a": "b"}}}),
    ))
    .unwrap();
    let message = outrigger_api::admin_rule_wire::message(&object);
    let create = || admin::CreateRequest { rule: Some(message.clone()) };
    admin.create(create()).await.unwrap();
    // Its own certificate, a stranger's, and the tenant's beside a tenant-id as in calls that it may make.
    for names in [[tenant_identity("ar-mallory")], ["spiffe://outrigger/nobody".to_owned()]] {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut other = client(o, &names).await;
        let with_id = |id: &str| about("ar-mallory", admin::GetRequest { id: id.into() });
        let answers = [
            other.create(create()).await.map(drop),
            other.update(admin::UpdateRequest { rule: Some(message.clone()) }).await.map(drop),
            other.delete(admin::DeleteRequest { id: "grpc".into(), ..Default::default() }).await.map(drop),
            other.get(admin::GetRequest { id: "grpc".into() }).await.map(drop),
            other.get(with_id("grpc")).await.map(drop),
            other.list(admin::ListRequest::default()).await.map(drop),
            // Nor does an answer say what is wrong with a message.
            other.create(admin::CreateRequest::default()).await.map(drop),
            other.get(with_id("../x")).await.map(drop),
        ];
        for answer in answers {
            let status = answer.unwrap_err();
            assert_eq!(status.code(), Code::PermissionDenied, "{status}");
            assert_eq!(status.message(), "the client certificate is no administrator's");
        }
    }
    // The administrator goes on, and sees what kubectl sees.
    let rules: Api<AdminWorkloadRule> = Api::namespaced(o.plane.infra.client().await, UNIVERSE);
    let made = rules.get("grpc").await.unwrap();
    assert_eq!(made.spec.tenant_selector, object.spec.tenant_selector);
    assert_eq!(made.spec.rule.template, object.spec.rule.template);
    assert_eq!(admin.create(create()).await.unwrap_err().code(), Code::AlreadyExists);
    let mut changed = message.clone();
    changed.tenant_selector = None;
    admin.update(admin::UpdateRequest { rule: Some(changed.clone()) }).await.unwrap();
    admin.update(admin::UpdateRequest { rule: Some(changed) }).await.unwrap();
    // A call about the version before it.
    let late = outrigger_api::admin_rule_wire::message(&made);
    let status = admin.update(admin::UpdateRequest { rule: Some(late.clone()) }).await.unwrap_err();
    assert_eq!(status.code(), Code::Aborted, "{status}");
    let delete = admin::DeleteRequest { id: "grpc".into(), etag: late.etag };
    assert_eq!(admin.delete(delete).await.unwrap_err().code(), Code::Aborted);
    let generation = |rule: &AdminWorkloadRule| rule.metadata.generation.unwrap();
    assert_eq!(generation(&rules.get("grpc").await.unwrap()), generation(&made) + 1, "one write");
    let listed = admin.list(admin::ListRequest::default()).await.unwrap().into_inner().rules;
    assert!(listed.iter().any(|rule| rule.id == "grpc" && rule.tenant_selector.is_none()));
    let mut wrong = message;
    wrong.data.as_mut().unwrap().workload_terms.clear();
    let status = admin.update(admin::UpdateRequest { rule: Some(wrong) }).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("spec.workloadTerms"), "{status}");
    for _ in 0..2 {
        admin.delete(admin::DeleteRequest { id: "grpc".into(), ..Default::default() }).await.unwrap();
    }
    let status = admin.get(admin::GetRequest { id: "grpc".into() }).await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
}

/// Rules in a namespace of their own, which no owner reference of a companion could name.
#[tokio::test]
async fn rules_that_live_elsewhere_take_their_companions_along() {
    const RULES: &str = "universe-rules";
    let mut o = Outrigger::new(ControlPlane::start().unwrap()).unwrap();
    o.settings = vec![format!("OUTRIGGER_ADMIN_RULES_NAMESPACE={RULES}")];
    o.install().unwrap();
    let mut objects = vec![namespace(RULES)];
    for (name, account) in [
        ("outrigger-manager-admin-rules", "outrigger-manager"),
        ("outrigger-webhook-admin-rules", "outrigger-webhook"),
    ] {
        objects.push(binding(name, Some(RULES), name, (SYSTEM, account)));
    }
    o.plane.infra.apply(&objects).unwrap();
    o.start_webhook().unwrap();
    o.start_manager().unwrap();
    o.ready().await;
    let o = o.of_one_test();

    let t = Tenant::without_agent(*o, "apart", &[("a", 1)]).await;
    let (_sender, _call) = t.opens_stream([workload("w", &t.node("a"), "apart")]).await;
    // A rule in the default namespace is not served here.
    o.plane.infra.apply(&[rule(RULES, "apart", &json!({})), rule(UNIVERSE, "unserved", &json!({}))]).unwrap();
    let companion = ready(&t.infra, "apart", &[&t]).await.remove("apart").unwrap();
    assert_eq!(companion.namespace().as_deref(), Some(UNIVERSE));
    assert_eq!(node_of(&companion), t.node("a-dpu1"));
    assert!(companion.owner_references().is_empty());
    status(&t.infra, RULES, "apart", ALL_READY, [1, 1, 1]).await;
    let rules: Api<AdminWorkloadRule> = Api::namespaced(t.infra.clone(), RULES);
    assert_eq!(rules.get("apart").await.unwrap().finalizers(), [keys::ADMIN_RULE_FINALIZER]);
    let unserved: Api<AdminWorkloadRule> = Api::namespaced(t.infra.clone(), UNIVERSE);
    assert!(unserved.get("unserved").await.unwrap().status.is_none());

    // Another replica serves another tenant. Each reports its own counts, and one adds them up.
    let (port, _) = o.another_manager("manager-2", &[]).await;
    let beside = Tenant::without_agent(*o, "beside", &[("a", 1)]).await;
    let (_sender, call) = beside.is_served_at(port, vec![workload("w", &beside.node("a"), "apart")]).await;
    ready(&t.infra, "apart", &[&t, &beside]).await;
    let reported = status(&t.infra, RULES, "apart", ALL_READY, [2, 2, 2]).await;
    assert_eq!(reported.tenants.keys().collect::<Vec<_>>(), ["apart", "beside"]);
    // It shuts down, and no replica serves that tenant. Its last status stays, and so do its companions.
    o.plane.command("term manager-2").unwrap();
    assert!(call.await.unwrap().is_err());
    ready(&t.infra, "apart", &[&t, &beside]).await;

    // The garbage collector would not do this.
    o.plane.infra.kubectl(&["delete", "awr", "apart", "-n", RULES, "--timeout=90s"]).unwrap();
    assert!(companions(&t.infra, "apart").await.unwrap().is_empty(), "gone before the rule");
    // While nobody is there the rule waits.
    o.plane.infra.apply(&[rule(RULES, "apart", &json!({}))]).unwrap();
    ready(&t.infra, "apart", &[&t]).await;
    status(&t.infra, RULES, "apart", ALL_READY, [1, 1, 1]).await;
    o.plane.command("stop manager").unwrap();
    o.plane.infra.kubectl(&["delete", "awr", "apart", "-n", RULES, "--wait=false"]).unwrap();
    assert_eq!(companions(&t.infra, "apart").await.unwrap().len(), 1);
    assert!(rules.get("apart").await.unwrap().metadata.deletion_timestamp.is_some());
    o.plane.command("start manager").unwrap();
    eventually("rule and companion are gone", || async {
        let left = companions(&t.infra, "apart").await?.len();
        let rule = rules.get_opt("apart").await.in_words()?;
        holds(left == 0 && rule.is_none(), format!("{left} {rule:?}"))
    })
    .await;
}
