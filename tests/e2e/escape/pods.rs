//! What a user makes: Pods by hand, templates of rules, affinity, and what controllers make of it.

use futures::stream::{self, StreamExt};
use outrigger_api::conditions::Status;
use outrigger_cases::{Affinity, changed, merged};
use outrigger_core::keys;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::tenant::{Tenant, tenant};
use outrigger_tests::user::Answer;
use outrigger_tests::{eventually, holds};
use serde_json::{Value, json};

use super::stage::*;

#[tokio::test]
async fn no_pod_made_by_hand_gets_out() {
    by_hand(Stage::new("byuser").await).await;
}

/// As [`no_pod_made_by_hand_gets_out`], in the namespace of this tenant.
pub(crate) async fn none_made_by_hand_gets_out(t: Tenant) {
    by_hand(Stage::with(t).await).await;
}

async fn by_hand(s: Stage) {
    let routes = s.routes().await;
    let answers: Vec<(Answer, Answer)> = stream::iter(&routes)
        .enumerate()
        .map(|(i, route)| {
            let s = &s;
            async move {
                let pod = good(&format!("p{i}"));
                let bad = s.mallory.post(&s.pods(), &changed(&pod, &route.refused)).await;
                (bad, s.mallory.post(&dry(&s.pods()), &changed(&pod, &route.allowed)).await)
            }
        })
        .buffered(8)
        .collect()
        .await;
    let mut failures = Failures::default();
    for (route, (bad, control)) in routes.iter().zip(&answers) {
        failures.check(&route.name, bad, &route.answer());
        failures.check(&format!("the control case of {}", route.name), control, &[""; 0]);
    }
    for (i, attempt) in s.requests("by hand", &[]).iter().enumerate() {
        let answer = s.mallory.dare(attempt, &changed(&good(&format!("q{i}")), &attempt.body)).await;
        failures.check(&attempt.name, &answer, &attempt.says);
    }
    // The webhook alone would refuse each route too, with the path and the value.
    let pod = s.mallory.post(&dry(&s.pods()), &good("p")).await.unwrap();
    let bad = webhook(&s, "CREATE", &Value::Null, routes.iter().map(|r| changed(&pod, &r.refused))).await;
    let controls =
        webhook(&s, "CREATE", &Value::Null, routes.iter().map(|r| changed(&pod, &r.allowed))).await;
    for ((route, bad), control) in routes.iter().zip(&bad).zip(&controls) {
        failures.check(&format!("{}, to the webhook", route.name), bad, &["403", &route.webhook]);
        failures.check(&format!("the control case of {}, to the webhook", route.name), control, &[""; 0]);
    }
    failures.none();
}

/// The result for a rule: the reason of the condition that says it, and its message.
fn result_of(rule: &Value) -> Option<String> {
    let conditions = rule["status"]["conditions"].as_array()?;
    let is = |reason: &str| conditions.iter().find(|c| c["reason"] == json!(reason));
    let end = is("Invalid").or_else(|| is("Refused")).or_else(|| is("AllReady"))?;
    Some(format!("{} {}", end["reason"].as_str()?, end["message"].as_str()?))
}

#[tokio::test]
async fn no_template_of_a_rule_gets_out() {
    let s = Stage::with_agent("byrule").await;
    let (routes, more) = (s.routes().await, s.escapes("none").rules);
    s.t.web("unconfined").await;
    let of_routes =
        routes.iter().enumerate().map(|(i, r)| rule(&format!("r{i}"), &changed(&good("p"), &r.refused)));
    let of_rules = more
        .iter()
        .enumerate()
        .map(|(i, row)| merged(&rule(&format!("s{i}"), &good("p")), &json!({"spec": row.spec})));
    let rules: Vec<Value> = of_routes.chain(of_rules).collect();
    // A rule that is refused at once gets the webhook's message about the Pod that would be made from it.
    let mut at_once = Vec::new();
    for rule in &rules {
        at_once.push(s.mallory.post(&s.rules(), rule).await.err());
    }
    let ends: Vec<String> = eventually("all rules have ended", || async {
        let there = s.admin.list(&s.rules()).await?;
        let find = |name: &Value| there.iter().find(|rule| rule["metadata"]["name"] == *name);
        let all = rules.iter().zip(&at_once).map(|(rule, refused)| {
            let name = &rule["metadata"]["name"];
            let end = refused.as_ref().map(|said| format!("Invalid at once: {said}"));
            end.or_else(|| find(name).and_then(result_of)).ok_or_else(|| name.to_string())
        });
        all.collect()
    })
    .await;
    let mut failures = Failures::default();
    let (of_routes, of_rules) = ends.split_at(routes.len());
    for (route, end) in routes.iter().zip(of_routes) {
        let (reason, words) = match &route.rule {
            Some(words) => ("Invalid ", vec![words.clone()]),
            None if end.starts_with("Invalid at once") => ("spec.template.", vec![route.webhook.clone()]),
            None => ("Refused ", route.answer()),
        };
        let words: Vec<&str> = words.iter().map(String::as_str).chain([reason]).collect();
        failures.check(&route.name, &Err(end.clone()), &words);
    }
    for (expected, end) in more.iter().zip(of_rules) {
        let says: Vec<&String> = [&expected.end].into_iter().chain(&expected.says).collect();
        failures.check(&expected.spec.to_string(), &Err(end.clone()), &says);
    }
    failures.none();
    let companions = s.admin.list(&s.pods()).await.unwrap();
    let ready = more.iter().filter(|row| row.end == "AllReady").count();
    assert_eq!(companions.len(), ready, "{companions:?}");
    for companion in companions {
        assert_eq!(companion["spec"]["nodeName"], json!(s.own), "{companion}");
    }
    // A companion that is there gets no such facts either.
    let fact = json!([{"workloadKey": ".metadata.resourceName", "asAnnotation": {"name": keys::MIRROR_POD}}]);
    s.mallory
        .patch(&format!("{}/s0", s.rules()), &json!({"spec": {"workloadInfoInject": fact}}))
        .await
        .unwrap();
    let message = s.t.condition("s0", "Ready", Status::False, "Refused").await;
    assert!(message.contains("may not add mirror pod annotation"), "{message}");
}

/// Whether a Node matches a Pod's required node affinity, as the scheduler and the kubelet see it.
fn matches(pod: &Value, node: &Value) -> bool {
    let meets = |e: &Value, value: Option<&str>| {
        let among = || e["values"].as_array().unwrap().iter().any(|v| v.as_str() == value);
        match e["operator"].as_str().unwrap() {
            "In" => value.is_some() && among(),
            "NotIn" => value.is_none() || !among(),
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            other => panic!("{other}"),
        }
    };
    let list = |term: &Value, key: &str| term[key].as_array().cloned().unwrap_or_default();
    pod.pointer(&terms()).and_then(Value::as_array).unwrap().iter().any(|term| {
        let (labels, fields) = (list(term, "matchExpressions"), list(term, "matchFields"));
        !(labels.is_empty() && fields.is_empty())
            && labels
                .iter()
                .all(|e| meets(e, node["metadata"]["labels"][e["key"].as_str().unwrap()].as_str()))
            && fields.iter().all(|e| meets(e, node["metadata"]["name"].as_str()))
    })
}

#[tokio::test]
async fn whatever_affinity_asks_for_only_the_own_dpu_is_left() {
    let s = Stage::with_agent("affin").await;
    // A Node of nobody, and free for all.
    let free = json!({"metadata": {"name": "affin-free", "labels": {"free": "x"}}});
    s.admin.post(NODES, &free).await.unwrap();
    let cases = s.escapes("none").affinities;
    for (i, case) in cases.iter().enumerate() {
        let mut pod = good(&format!("p{i}"));
        if !case.terms.is_null() {
            pod["spec"]["affinity"] = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                {"nodeSelectorTerms": case.terms}}});
        }
        let pod = merged(&pod, &json!({"spec": merged(&json!({}), &case.spec)}));
        let answer = s.mallory.post(&s.pods(), &pod).await;
        assert!(answer.is_ok(), "{}: {answer:?}", case.name);
        let any = json!({"spec": {"dpuSelectionPolicy": "Any"}});
        s.mallory.post(&s.rules(), &merged(&rule(&format!("r{i}"), &pod), &any)).await.unwrap();
    }
    s.t.web("w").await;
    // By hand and by a rule, each is where it may be, or the scheduler has found nothing for it.
    let of_case = |pods: &[Value], i: usize| -> Vec<Value> {
        let (by_hand, of_rule) = (json!(format!("p{i}")), json!(format!("r{i}")));
        let is = |pod: &&Value| {
            pod["metadata"]["name"] == by_hand || pod["metadata"]["labels"][keys::RULE] == of_rule
        };
        pods.iter().filter(is).cloned().collect()
    };
    let pods = eventually("the scheduler has decided", || async {
        let pods = s.admin.list(&s.pods()).await?;
        for (i, case) in cases.iter().enumerate() {
            let decided = |pod: &Value| {
                let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
                let hopeless = conditions.iter().any(|c| c["reason"] == json!("Unschedulable"));
                pod["spec"]["nodeName"].is_string() || (!case.runs && hopeless)
            };
            let of_case = of_case(&pods, i);
            if of_case.len() != 2 || !of_case.iter().all(decided) {
                return Err(format!("{}: {of_case:?}", case.name));
            }
        }
        Ok(pods)
    })
    .await;
    let nodes = s.admin.list(NODES).await.unwrap();
    assert!(nodes.iter().any(|node| node["metadata"]["name"] == json!(s.their)));
    for (i, Affinity { name: what, runs, .. }) in cases.iter().enumerate() {
        for pod in of_case(&pods, i) {
            let fit = nodes.iter().filter(|node| matches(&pod, node)).map(|node| &node["metadata"]["name"]);
            let others: Vec<_> = fit.filter(|name| **name != json!(s.own)).collect();
            assert!(others.is_empty(), "{what}: {others:?}");
            let node = pod["spec"]["nodeName"].as_str();
            assert_eq!(node, runs.then_some(s.own.as_str()), "{what}: {}", pod["status"]);
        }
    }
}

#[tokio::test]
async fn controllers_make_nothing_that_their_user_may_not() {
    let s = Stage::new("deputy").await;
    let set = |name: &str, more: &Value| {
        let labels = json!({"set": name});
        let template = json!({"metadata": {"labels": labels}, "spec": changed(&good("p"), more)["spec"]});
        json!({"metadata": {"name": name}, "spec": {"selector": {"matchLabels": labels}, "template": template}})
    };
    let job = |name: &str, more: &Value| {
        let more = merged(more, &json!({"spec": {"restartPolicy": "Never"}}));
        json!({"metadata": {"name": name}, "spec": {"template": {"spec": changed(&good("p"), &more)["spec"]}}})
    };
    let tolerate = |toleration: Value| json!({"spec": {"tolerations": [toleration]}});
    let all = tolerate(json!({"operator": "Exists"}));
    let own = tolerate(json!({"key": keys::TENANT, "value": s.t.id}));
    let privileged = json!({"container": {"securityContext": {"privileged": true}}});
    let bound = json!({"spec": {"nodeName": s.their}});
    let no_key = "spec.tolerations[0]: has no key";
    let cases = [
        ("apps/v1", "replicasets", set("rs", &privileged), "must not set securityContext.privileged=true"),
        ("apps/v1", "daemonsets", set("ds", &all), no_key),
        ("apps/v1", "statefulsets", set("ss", &all), no_key),
        ("batch/v1", "jobs", job("job", &bound), "spec.nodeName: is deputy-other-a-dpu1; leave it out"),
        ("apps/v1", "replicasets", set("rs-control", &json!({})), ""),
        ("apps/v1", "daemonsets", set("ds-control", &own), ""),
        ("apps/v1", "statefulsets", set("ss-control", &own), ""),
        ("batch/v1", "jobs", job("job-control", &json!({})), ""),
    ];
    for (group, resource, object, _) in &cases {
        s.mallory.post(&s.group(group, resource), object).await.unwrap();
    }
    for (_, _, object, words) in &cases {
        let name = object["metadata"]["name"].as_str().unwrap();
        if words.is_empty() {
            eventually(&format!("{name} runs"), || async {
                let pods = s.admin.list(&s.pods()).await?;
                let of_set = |pod: &&Value| pod["metadata"]["ownerReferences"][0]["name"] == json!(name);
                let runs = pods.iter().filter(of_set).any(|pod| pod["spec"]["nodeName"] == json!(s.own));
                holds(runs, format!("{pods:?}"))
            })
            .await;
        } else {
            s.event(name, words).await;
        }
    }
    for pod in s.admin.list(&s.pods()).await.unwrap() {
        let (owner, node) = (&pod["metadata"]["ownerReferences"][0]["name"], &pod["spec"]["nodeName"]);
        assert!(owner.as_str().unwrap().ends_with("-control"), "{pod}");
        // A DaemonSet makes Pods for Nodes of nobody too, and they stay without.
        assert!(node.is_null() || *node == json!(s.own), "{pod}");
    }
    // The scheduler would try again to place those of the DaemonSet, one for each Node of all tests, whenever a Node changes.
    let all = "daemonsets,jobs,replicasets,statefulsets";
    s.t.outrigger
        .plane
        .infra
        .kubectl(&["delete", all, "--all", "-n", &s.t.namespace, "--wait=false"])
        .unwrap();
}

#[tokio::test]
async fn a_namespace_whose_tenant_is_not_known_takes_nothing() {
    let o = Outrigger::shared().await;
    let admin = User::admin(o).await;
    let namespace = json!({"metadata": {"name": "tenant-ghost", "labels": {keys::TENANT: "ghost"}}});
    admin.post("/api/v1/namespaces", &namespace).await.unwrap();
    grant(&admin, "tenant-ghost", "ghosts").await;
    let mallory = User::new(o, "mallory-ghost", &["ghosts"]).await;
    let account = "/api/v1/namespaces/tenant-ghost/serviceaccounts/default";
    eventually("the namespace takes Pods", || admin.get(account)).await;
    let pods = "/api/v1/namespaces/tenant-ghost/pods";
    let claims = "/apis/resource.k8s.io/v1/namespaces/tenant-ghost/resourceclaims";
    let (pod, admins, claim) = (good("p"), good("q"), claim("c", &json!({})));
    let answers =
        tokio::join!(mallory.post(pods, &pod), admin.post(pods, &admins), mallory.post(claims, &claim));
    let words = ["503", "Tenant ghost is not known yet", "try again"];
    let mut failures = Failures::default();
    failures.check("a Pod", &answers.0, &words);
    failures.check("an administrator's Pod", &answers.1, &words);
    failures.check("a claim", &answers.2, &words);
    failures.none();
    admin.post(TENANTS, &tenant("ghost", json!({}))).await.unwrap();
    eventually("its Tenant is known", || mallory.post(pods, &pod)).await;
    o.plane.infra.kubectl(&["delete", "pods", "--all", "-n", "tenant-ghost", "--wait=false"]).unwrap();
}
