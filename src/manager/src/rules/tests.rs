use outrigger_core::companion::Observed;
use outrigger_core::ids::RuleName;
use outrigger_core::index::{Desired, OwnDpus};
use outrigger_core::reason::Cause;
use outrigger_runtime::fake_api::{FakeApi, failure};

use serde_json::json;
use tokio::time::Instant;

use super::*;
use crate::fixtures;
use crate::state::validation::TemplateValidation;
use crate::state::{Refusal, TenantData, Why};

const STATUS: &str =
    "/apis/workload.universe.nvidia.com/v1alpha1/namespaces/tenant-blue/workloadrules/r/status";

fn rule(resource_version: &str) -> Value {
    let mut rule = fixtures::rule();
    rule["metadata"]["resourceVersion"] = json!(resource_version);
    rule
}

/// The API server takes the rule's template.
fn passes(context: &Context, id: &RuleId) {
    let state = context.states.state(&id.namespace);
    state.lock().rules.get_mut(&id.name).unwrap().validation = TemplateValidation::passed();
}

/// The status, the reason and the message of the condition of this type that the rule should have now.
fn condition(context: &Context, id: &RuleId, kind: &str) -> (String, String, String) {
    let state = context.states.state(&id.namespace);
    let conditions = status_change(context, &state, id).unwrap().status.conditions;
    let condition = conditions.into_iter().find(|condition| condition.type_ == kind).unwrap();
    (condition.status, condition.reason, condition.message)
}

/// The context of a manager whose only tenant has the rule, and knows no workload yet.
fn world(api: &FakeApi) -> (Arc<Context>, RuleId) {
    let context = fixtures::context(api.client());
    let state = fixtures::served_tenant(&context);
    state.lock().apply_rule(&fixtures::object(rule("5")));
    let id = RuleId { namespace: "tenant-blue".into(), name: RuleName::new("r").unwrap() };
    (context, id)
}

#[tokio::test]
async fn a_status_is_written_over_what_it_was_computed_from_and_nothing_else() {
    let api = FakeApi::default();
    let (context, id) = world(&api);
    let state = context.states.state("tenant-blue");
    let written = || {
        let calls = api.calls("PATCH").into_iter();
        calls.map(|(_, body)| body["metadata"]["resourceVersion"].clone()).collect::<Vec<_>>()
    };
    // Another replica has written it meanwhile.
    api.answers("PATCH", STATUS, 409, failure(409, "Conflict"));
    let conflict = step(&context, &id).await;
    assert!(matches!(conflict, Err(kube::Error::Api(status)) if status.code == 409), "it is looked at again");
    assert_eq!(written(), ["5"]);
    // The watch shows what the other has written.
    state.lock().apply_rule(&fixtures::object(rule("6")));
    let mut after = rule("7");
    after["status"] = json!({"observedGeneration": 1});
    api.answers("PATCH", STATUS, 200, after);
    assert_eq!(step(&context, &id).await.unwrap(), Action::Requeue(PACE));
    assert_eq!(written(), ["5", "6"]);
    let entry = state.lock().rules[&id.name].clone();
    assert_eq!((entry.status.observed_generation, entry.resource_version.as_str()), (Some(1), "7"));
}

#[tokio::test(start_paused = true)]
async fn a_status_waits_as_long_as_its_rule_is_large() {
    for (bytes, counts, verdict) in [(0, 1, 1), (64 << 10, 30, 4), (512 << 10, 32, 32)] {
        let api = FakeApi::default();
        let (context, id) = world(&api);
        let state = context.states.state("tenant-blue");
        let known = |workloads: &[&str]| {
            let workloads = workloads.iter().map(|name| fixtures::workload(name)).collect();
            state.lock().index.sync(workloads);
        };
        passes(&context, &id);
        known(&["a"]);
        let mut object = rule("6");
        object["metadata"]["annotations"] = json!({"a": "x".repeat(bytes)});
        object["status"] = json!(status_change(&context, &state, &id).unwrap().status);
        api.answers("PATCH", STATUS, 200, object);
        step(&context, &id).await.unwrap();
        let mut seconds = Vec::new();
        for workloads in [&["a", "b"][..], &[]] {
            known(workloads);
            let Action::Requeue(left) = step(&context, &id).await.unwrap() else {
                panic!("{bytes}: written")
            };
            seconds.push(left.as_secs());
        }
        assert_eq!((seconds, api.calls("PATCH").len()), (vec![counts, verdict], 1), "{bytes}");
        tokio::time::advance(Duration::from_secs(verdict + 1)).await;
        step(&context, &id).await.unwrap();
        assert_eq!(api.calls("PATCH").len(), 2, "{bytes}");
    }
}

const TENANT: &str = "/apis/outrigger.dev/v1alpha1/tenants/blue";

/// A rule whose status was written by this replica, and then by another.
async fn overwritten(api: &FakeApi) -> (Arc<Context>, RuleId) {
    let (context, id) = world(api);
    api.answers("PATCH", STATUS, 200, rule("6"));
    assert_eq!(step(&context, &id).await.unwrap(), Action::Requeue(PACE));
    let state = context.states.state("tenant-blue");
    state.lock().apply_rule(&fixtures::object(rule("7")));
    (context, id)
}

#[tokio::test(start_paused = true)]
async fn a_status_that_another_has_written_is_not_written_over_at_once() {
    let api = FakeApi::default();
    let (context, id) = overwritten(&api).await;
    let writes = || api.calls("PATCH").len();
    let early = step(&context, &id).await.unwrap();
    assert!(matches!(early, Action::Requeue(left) if left <= PACE), "{early:?}");
    assert_eq!(writes(), 1);
    // Nobody else has claimed the tenant: a user has written it.
    tokio::time::advance(PACE).await;
    api.answers("GET", TENANT, 200, fixtures::tenant_claimed(1, &context.replica.identity));
    api.answers("PATCH", STATUS, 200, rule("8"));
    step(&context, &id).await.unwrap();
    assert_eq!(writes(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_was_superseded_finds_out_by_the_status_of_a_rule() {
    let api = FakeApi::default();
    let (context, id) = overwritten(&api).await;
    tokio::time::advance(PACE).await;
    api.answers("GET", TENANT, 200, fixtures::tenant_claimed(2, "another"));
    assert_eq!(step(&context, &id).await.unwrap(), Action::Done);
    assert_eq!(api.calls("PATCH").len(), 1);
    assert!(!context.states.state("tenant-blue").lock().acts(false));
}

#[tokio::test]
async fn matches_that_are_left_out_are_reported_and_taken_in_when_there_is_room() {
    const WORKLOADS: usize = 200;
    let api = FakeApi::default();
    let (context, id) = world(&api);
    let state = context.states.state("tenant-blue");
    let workload = |i: usize| fixtures::workload(&format!("w{i}"));
    let reason = |kind: &str| condition(&context, &id, kind).1;
    {
        let mut data = state.lock();
        data.index.limit(0);
        let mut object = rule("6");
        object["spec"]["workloadTerms"] =
            json!([{"matchExpressions": [{"key": ".metadata.resourceName", "operator": "Exists"}]}]);
        object["metadata"]["generation"] = json!(2);
        data.apply_rule(&fixtures::object(object));
        data.index.sync((0..WORKLOADS).map(workload).collect());
    }
    passes(&context, &id);
    assert_eq!((reason("Matched"), reason("Ready")), ("LimitReached".to_owned(), "LimitReached".to_owned()));
    state.lock().index.limit(3);
    let (status, _, message) = condition(&context, &id, "Ready");
    assert_eq!(status, "False");
    assert!(message.starts_with("3 matches of this rule are served, and some are not"), "{message}");
    assert!(message.contains("more than 3 workloads"), "{message}");
    // The platform raises the limit. Whatever the change itself took in, the rule's own steps take in the rest.
    state.lock().index.limit(WORKLOADS);
    assert!(state.lock().index.has_more());
    (0..WORKLOADS).for_each(|_| fill(&context, &state, &id));
    assert!(!state.lock().index.has_more());
    assert!(context.queues.companions.counts().ready > 0 && context.queues.rules.counts().delayed > 0);
    let matched = state.lock().index.matched(&id.name);
    assert_eq!((matched, reason("Ready")), (WORKLOADS, "Pending".to_owned()));
    // A lower limit deletes nothing.
    state.lock().index.limit(1);
    let key = CompanionKey { rule: id.name.clone(), workload: "w7".into() };
    assert!(!matches!(state.lock().index.desired(&key), Desired::Unwanted));
}

#[tokio::test(start_paused = true)]
async fn the_refusal_of_a_template_has_another_event_only_in_other_words() {
    let api = FakeApi::default();
    let (context, id) = world(&api);
    let state = context.states.state("tenant-blue");
    let refusals = || {
        let calls = ["POST", "PATCH"].into_iter().flat_map(|method| api.calls(method));
        calls.filter(|(path, _)| path.contains("/events")).count()
    };
    for (round, (words, expected)) in [("a", 1), ("a", 1), ("a", 1), ("b", 2)].into_iter().enumerate() {
        let mut answer = failure(422, "Invalid");
        answer["message"] = json!(words);
        api.answers("POST", "/api/v1/namespaces/tenant-blue/pods", 422, answer);
        validate_template(&context, &state, &id).await;
        let tried = api.calls("POST").iter().filter(|(path, _)| path.contains("/pods")).count();
        assert_eq!((tried, refusals()), (round + 1, expected), "{words}");
        tokio::time::advance(std::time::Duration::from_secs(60)).await;
    }
}

#[test]
fn what_is_refused_of_a_rule_is_not_anothers() {
    let mut data = TenantData::default();
    let own = RuleName::new("r").unwrap();
    let others = [RuleName::new("q").unwrap(), RuleName::new("r-1").unwrap(), RuleName::admin("r").unwrap()];
    for rule in others.iter().chain([&own]) {
        for workload in ["", "a", "b"] {
            let key = CompanionKey { rule: rule.clone(), workload: workload.into() };
            let why = Why::new(Cause::Refused, rule.as_str());
            let refusal = Refusal { why, generation: 1, until: Instant::now() };
            data.refusals.insert(key, refusal);
        }
    }
    let count = |data: &TenantData, rule: &RuleName| data.refusals.of_rule(rule).count();
    assert!(others.iter().chain([&own]).all(|rule| count(&data, rule) == 3));
    assert!(data.refusals.of_rule(&own).all(|(key, _)| key.rule == own));
    data.remove_rule(&own);
    assert_eq!((count(&data, &own), data.refusals.len()), (0, 9));
}

#[tokio::test]
async fn a_rule_on_all_dpus_is_ready_once_each_has_a_ready_companion_and_there_is_one() {
    let (context, id) = world(&FakeApi::default());
    let state = context.states.state("tenant-blue");
    let mut all = rule("6");
    all["metadata"]["generation"] = json!(2);
    all["spec"]["dpuSelectionPolicy"] = json!("SameNodeAll");
    state.lock().apply_rule(&fixtures::object(all));
    passes(&context, &id);
    let on_host = |id: &str| Workload { node_name: Some("h".into()), ..fixtures::workload(id) };
    state.lock().index.sync(["a", "b"].map(on_host).into());
    let template_hash = state.lock().index.rule(&id.name).unwrap().template_hash().to_owned();
    let ready = || condition(&context, &id, "Ready");
    let (_, reason, message) = ready();
    let matched = status_change(&context, &state, &id).unwrap().status.matched;
    assert_eq!((matched, reason.as_str()), (Some(2), "NoDPU"));
    assert!(
        message.starts_with("0 of 2 companions are ready; no DPU of tenant blue is in host h"),
        "{message}"
    );
    let nodes = ["d1", "d2"].map(Into::into).into();
    state.lock().index.set_dpus("h", OwnDpus { nodes, hands_over: false });
    let mut readies = 0;
    for workload in ["a", "b"] {
        for dpu in ["d1", "d2"] {
            let key = CompanionKey { rule: id.name.clone(), workload: workload.into() }.on(dpu);
            let template_hash = template_hash.clone();
            let observed =
                Observed { rule_uid: "u".into(), template_hash, ready: true, ..Observed::default() };
            state.lock().companions.applied(&key.workload.clone(), key, observed);
            readies += 1;
            let (_, reason, message) = ready();
            assert_eq!(message.split(" companions").next(), Some(&*format!("{readies} of 4")));
            assert_eq!(reason == "AllReady", readies == 4, "{reason}");
        }
    }
}

#[tokio::test]
async fn a_rule_is_ready_once_its_companions_have_the_amounts_of_its_template() {
    let (context, id) = world(&FakeApi::default());
    let state = context.states.state("tenant-blue");
    passes(&context, &id);
    state.lock().index.sync(["a", "b"].map(fixtures::workload).into());
    let template_hash = state.lock().index.rule(&id.name).unwrap().template_hash().to_owned();
    let shows = |workload: &str, trouble: Option<Cause>| {
        let key = CompanionKey { rule: id.name.clone(), workload: workload.into() };
        let observed = Observed {
            rule_uid: "u".into(),
            template_hash: template_hash.clone(),
            ready: true,
            message: trouble.map(|cause| format!("{cause}: words")).unwrap_or_default(),
            trouble,
            ..Observed::default()
        };
        state.lock().companions.applied(workload, key, observed);
        condition(&context, &id, "Ready")
    };
    let is = |status: &str, reason: &str| (status.to_owned(), reason.to_owned());
    shows("a", None);
    for cause in [
        Cause::DeviceUnhealthy,
        Cause::Updating,
        Cause::Resizing,
        Cause::ResizeInfeasible,
        Cause::ResizeDeferred,
    ] {
        let (status, reason, message) = shows("b", Some(cause));
        assert_eq!((status, reason), is("False", cause.as_str()));
        assert!(
            message.starts_with("2 of 2 companions are ready; 1 of these aren't as they should be"),
            "{message}"
        );
        assert!(message.ends_with(&format!("{cause}: words")), "{message}");
    }
    let (_, reason, message) = shows("a", Some(Cause::ResizeInfeasible));
    assert_eq!(reason, "ResizeInfeasible", "the one that is worse");
    assert!(message.contains("; 2 of these"), "{message}");
    shows("a", None);
    let (status, reason, _) = shows("b", None);
    assert_eq!((status, reason), is("True", "AllReady"));
}

#[tokio::test]
async fn a_rule_says_how_many_of_its_workloads_are_not_scheduled_yet() {
    let (context, id) = world(&FakeApi::default());
    let state = context.states.state("tenant-blue");
    passes(&context, &id);
    let says = |gated: [bool; 2]| {
        let workload = |(id, gated)| Workload { gated, ..fixtures::workload(id) };
        state.lock().index.sync(["a", "b"].into_iter().zip(gated).map(workload).collect());
        condition(&context, &id, "Ready").2
    };
    let ready = "0 of 2 companions are ready";
    for (gated, count) in [([true, true], 2), ([true, false], 1)] {
        assert_eq!(says(gated), format!("{ready}; not created until the workload is scheduled: {count}"));
    }
    assert_eq!(says([false, false]), ready);
}
