//! Every way out that a tenant has been seen to try, or could: as the user of its namespace, by the template of a rule,
//! through a controller, with the credentials of a DPU's kubelet, and by an agent that lies. docs/security.md has the list.
//!
//! The user is given more than anybody would give it: ClusterRole `edit` and every subresource of Pods. Whatever is
//! refused has a control case that differs in little and is allowed, so that nothing is refused for another reason than its
//! own. The rows are those of `tests/cases/escapes.yaml` and `requests.yaml` for this layer.

mod stage;

use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use http::Method;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config, ResourceExt};
use outrigger_api::conditions::Status;
use outrigger_cases::{Affinity, Escape, Escapes, Layer, Name, Request, Requests, changed, merged};
use outrigger_core::keys;
use outrigger_runtime::tls::ClientTls;
use outrigger_tests::outrigger::{Outrigger, SYSTEM};
use outrigger_tests::tenant::{Tenant, dpu, node_of, rule_for, tenant};
use outrigger_tests::{always, eventually, holds};
use serde_json::{Value, json};

use stage::*;

#[tokio::test]
async fn no_pod_made_by_hand_gets_out() {
    let s = Stage::new("byuser").await;
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
    let mut faults = Faults::default();
    for (route, (bad, control)) in routes.iter().zip(&answers) {
        faults.check(&route.name, bad, &route.answer());
        faults.check(&format!("the control case of {}", route.name), control, &[""; 0]);
    }
    for (i, attempt) in s.requests("by hand", &[]).iter().enumerate() {
        let answer = s.mallory.dare(attempt, &changed(&good(&format!("q{i}")), &attempt.body)).await;
        faults.check(&attempt.name, &answer, &attempt.says);
    }
    // The webhook alone would refuse each route too, with the path and the value.
    let pod = s.mallory.post(&dry(&s.pods()), &good("p")).await.unwrap();
    let bad = webhook(&s, "CREATE", &Value::Null, routes.iter().map(|r| changed(&pod, &r.refused))).await;
    let controls =
        webhook(&s, "CREATE", &Value::Null, routes.iter().map(|r| changed(&pod, &r.allowed))).await;
    for ((route, bad), control) in routes.iter().zip(&bad).zip(&controls) {
        faults.check(&format!("{}, to the webhook", route.name), bad, &["403", &route.webhook]);
        faults.check(&format!("the control case of {}, to the webhook", route.name), control, &[""; 0]);
    }
    faults.none();
}

/// What a rule is told in the end: the reason of the condition that says it, and its message.
fn told(rule: &Value) -> Option<String> {
    let conditions = rule["status"]["conditions"].as_array()?;
    let is = |reason: &str| conditions.iter().find(|c| c["reason"] == json!(reason));
    let end = is("Invalid").or_else(|| is("Refused")).or_else(|| is("AllReady"))?;
    Some(format!("{} {}", end["reason"].as_str()?, end["message"].as_str()?))
}

#[tokio::test]
async fn no_template_of_a_rule_gets_out() {
    let s = Stage::with_agent("byrule").await;
    let (routes, more) = (s.routes().await, s.escapes("none").rules);
    s.t.start("unconfined", "a", json!({"app": "web"})).await;
    let of_routes =
        routes.iter().enumerate().map(|(i, r)| rule(&format!("r{i}"), &changed(&good("p"), &r.refused)));
    let of_rules = more
        .iter()
        .enumerate()
        .map(|(i, told)| merged(&rule(&format!("s{i}"), &good("p")), &json!({"spec": told.spec})));
    let rules: Vec<Value> = of_routes.chain(of_rules).collect();
    // A rule that is refused at once is told what the webhook says of the Pod that would come of it.
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
            end.or_else(|| find(name).and_then(told)).ok_or_else(|| name.to_string())
        });
        all.collect()
    })
    .await;
    let mut faults = Faults::default();
    let (of_routes, of_rules) = ends.split_at(routes.len());
    for (route, end) in routes.iter().zip(of_routes) {
        let (reason, words) = match &route.rule {
            Some(words) => ("Invalid ", vec![words.clone()]),
            None if end.starts_with("Invalid at once") => ("spec.template.", vec![route.webhook.clone()]),
            None => ("Refused ", route.answer()),
        };
        let words: Vec<&str> = words.iter().map(String::as_str).chain([reason]).collect();
        faults.check(&route.name, &Err(end.clone()), &words);
    }
    for (expected, end) in more.iter().zip(of_rules) {
        faults.check(&expected.spec.to_string(), &Err(end.clone()), &[&expected.end, &expected.says]);
    }
    faults.none();
    let companions = s.admin.list(&s.pods()).await.unwrap();
    let ready = more.iter().filter(|told| told.end == "AllReady").count();
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
    s.t.start("w", "a", json!({"app": "web"})).await;
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
async fn a_pod_that_is_there_is_held_to_what_changes() {
    let s = Stage::new("late").await;
    let rule = s.t.rule("r", rule_for("app", "nobody")).await.uid().unwrap();
    let map = s.map().await;
    let gated = json!({"spec": {"schedulingGates": [{"name": "example.com/wait"}]}});
    let slow = json!({"metadata": {"finalizers": ["batch.kubernetes.io/job-tracking"],
        "annotations": {"pod-delete.stage.kwok.x-k8s.io/delay": "10m"}}});
    let sized = json!({"container": {"resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": "1"}}}});
    for (name, more) in [("gated", &gated), ("leaving", &slow), ("running", &sized)] {
        s.mallory.post(&s.pods(), &changed(&good(name), more)).await.unwrap();
    }
    // What a kubelet says that can resize.
    let able = json!([{"op": "add", "path": "/status/containerStatuses/0/resources", "value": {}}]);
    let status = format!("{}/status", s.pod("running"));
    eventually("it runs", || s.admin.patch(&status, &able)).await;
    s.placed("leaving").await;
    s.mallory.delete(&s.pod("leaving")).await.unwrap();
    let leaving = s.admin.get(&s.pod("leaving")).await.unwrap();
    assert!(leaving["metadata"]["deletionTimestamp"].is_string(), "{leaving}");

    let mut faults = Faults::default();
    for name in ["running", "gated", "leaving"] {
        let pod = s.pod(name);
        let changes = s.requests("changes", &[("$POD", &pod), ("$RULE", &rule), ("$MAP", &map)]);
        faults.attempts(&s.mallory, name, &changes).await;
    }
    faults.attempts(&s.mallory, "late", &s.requests("late changes", &[])).await;
    let updates = s.requests("updates", &[]);
    let pod = s.admin.get(&s.pod("gated")).await.unwrap();
    let bodies = updates.iter().map(|update| merged(&pod, &update.body));
    for (update, answer) in updates.iter().zip(&webhook(&s, "UPDATE", &pod, bodies).await) {
        faults.check(&format!("{}, to the webhook", update.body), answer, &update.says);
    }
    faults.none();
    for name in ["running", "gated", "leaving"] {
        let pod = s.admin.get(&s.pod(name)).await.unwrap();
        assert_eq!(pod["spec"]["ephemeralContainers"][0]["name"], json!("d"), "{pod}");
        assert_eq!(pod["metadata"]["labels"][keys::TENANT], Value::Null, "{pod}");
    }
    let pod = s.admin.get(&s.pod("running")).await.unwrap();
    let container = &pod["spec"]["containers"][0];
    assert_eq!(container["resources"]["requests"]["cpu"], json!("600m"), "{pod}");
    assert_eq!(container["securityContext"], Value::Null, "{pod}");
    assert_eq!(s.placed("gated").await, s.own);
}

#[tokio::test]
async fn only_the_scheduler_binds_and_only_to_own_dpus() {
    let s = Stage::new("binds").await;
    let plain = json!({"metadata": {"name": "binds-plain"}, "spec": {"taints": [{"key": "x", "effect": "NoSchedule"}]}});
    s.admin.post(NODES, &plain).await.unwrap();
    // A Pod that the scheduler leaves alone: it fits nowhere.
    let nowhere = json!({"spec": {"nodeSelector": {"nowhere": "x"}}});
    s.mallory.post(&s.pods(), &merged(&good("p"), &nowhere)).await.unwrap();
    let scheduler = User::new(s.t.outrigger, "system:kube-scheduler", &[]).await;
    let mut faults = Faults::default();
    let (of_pod, old) = (format!("{}/binding", s.pod("p")), format!("{}/bindings", s.ns));
    for way in [&of_pod, &old] {
        for (user, name) in [(&s.mallory, "mallory-binds"), (&s.admin, "admin")] {
            faults.attempts(user, way, &s.requests("bindings", &[("$WAY", way), ("$USER", name)])).await;
        }
    }
    faults.attempts(&scheduler, "an old view", &s.requests("late bindings", &[("$WAY", &of_pod)])).await;
    faults.none();
    let binding = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": s.own}});
    scheduler.post(&of_pod, &binding).await.unwrap();
    assert_eq!(s.placed("p").await, s.own);
}

#[tokio::test]
async fn a_companion_keeps_what_outrigger_wrote_on_it() {
    let s = Stage::with_agent("marks").await;
    s.t.rule("r", rule_for("app", "web")).await;
    s.t.start("w", "a", json!({"app": "web"})).await;
    let pod = s.pod(&s.t.companion().await.name_any());
    let before = s.admin.get(&pod).await.unwrap();
    let mut faults = Faults::default();
    let labels = [keys::TENANT, keys::RULE, keys::WORKLOAD];
    let annotations =
        [keys::RULE_UID, keys::RULE_GENERATION, keys::TEMPLATE_HASH, keys::HOST, keys::INJECTED];
    for (map, list) in [("labels", &labels[..]), ("annotations", &annotations)] {
        for &key in list.iter().chain(&[keys::NODE_TENANT, "x.outrigger.dev/y"]) {
            let there = before["metadata"][map][key].is_string();
            assert_eq!(there, list.contains(&key), "{key}");
            let words =
                [format!("metadata.{map}[{key}]"), "only Outrigger itself may change keys".to_owned()];
            for value in [json!("x"), Value::Null] {
                if there || !value.is_null() {
                    let patch = json!({"metadata": {map: {key: value}}});
                    faults.check(&patch.to_string(), &s.mallory.patch(&pod, &patch).await, &words);
                    let by_status = s.mallory.patch(&format!("{pod}/status"), &patch).await;
                    faults.check(&format!("{patch} by status"), &by_status, &words);
                }
            }
        }
        for (sub, words) in [("", &[][..]), ("/status", &["status: is written by kubelets"])] {
            let patch = json!({"metadata": {map: {"outrigger.dev.example.com/x": sub.replace('/', "x")}}});
            let answer = s.mallory.patch(&format!("{pod}{sub}"), &patch).await;
            faults.check(&format!("{patch} by {sub:?}"), &answer, words);
        }
    }
    let map = s.map().await;
    faults
        .attempts(&s.mallory, "a companion", &s.requests("companion", &[("$POD", &pod), ("$MAP", &map)]))
        .await;
    faults.none();
    let after = s.admin.get(&pod).await.unwrap();
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    assert_eq!(after["metadata"]["ownerReferences"][0], before["metadata"]["ownerReferences"][0]);
    // A fact that is written over is put right again.
    let other = json!({"metadata": {"annotations": {"workload-name": "other"}}});
    s.mallory.patch(&pod, &other).await.unwrap();
    eventually("the fact is true again", || async {
        let pod = s.admin.get(&pod).await?;
        let fact = &pod["metadata"]["annotations"]["workload-name"];
        holds(*fact == json!("w"), fact.to_string())
    })
    .await;
}

#[tokio::test]
async fn a_kubelet_keeps_to_its_own_dpu() {
    let s = Stage::with_agent("kubelet").await;
    s.t.rule("r", rule_for("app", "web")).await;
    s.t.start("w", "a", json!({"app": "web"})).await;
    let pod = s.pod(&s.t.companion().await.name_any());
    let theirs = format!("/api/v1/namespaces/tenant-{}", s.other);
    s.admin.post(&format!("{theirs}/secrets"), &json!({"metadata": {"name": "s"}})).await.unwrap();
    let (pods, their_pod) = (format!("{theirs}/pods"), good("p"));
    eventually("their namespace takes Pods", || s.admin.post(&pods, &their_pod)).await;
    eventually("their Pod is on their DPU", || async {
        let pod = s.admin.get(&format!("{pods}/p")).await?;
        holds(pod["spec"]["nodeName"] == json!(s.their), pod["status"].to_string())
    })
    .await;
    let node = format!("{NODES}/{}", s.own);
    let before = s.admin.get(&node).await.unwrap();
    let uid = before["metadata"]["uid"].as_str().unwrap();
    let kubelet = User::kubelet(s.t.outrigger, &s.own).await;
    let mut faults = Faults::default();
    faults.attempts(&kubelet, "a kubelet", &s.requests("kubelet", &[("$POD", &pod), ("$UID", uid)])).await;
    let second = User::kubelet(s.t.outrigger, "kubelet-new").await;
    faults.attempts(&second, "a new Node", &s.requests("registration", &[])).await;
    faults.none();
    let after = s.admin.get(&node).await.unwrap();
    assert_eq!(after["spec"]["taints"], before["spec"]["taints"]);
    for key in [keys::NODE_TENANT, keys::DPU_HOST] {
        assert_eq!(after["metadata"]["labels"][key], before["metadata"]["labels"][key]);
    }
    let new = s.admin.get(&format!("{NODES}/kubelet-new")).await.unwrap();
    assert_eq!(new["metadata"]["labels"][keys::NODE_TENANT], Value::Null, "{new}");
}

#[tokio::test]
async fn devices_of_others_are_out_of_reach() {
    let s = Stage::new("devices").await;
    s.prepare().await;
    // Where the platform lets administrators look at devices, its tenant still may not.
    let look = json!({"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}});
    s.admin.patch(&s.ns, &look).await.unwrap();
    let (claims, templates) = (s.claims(), s.group("resource.k8s.io/v1", "resourceclaimtemplates"));
    let mut faults = Faults::default();
    for (i, attempt) in s.requests("claims", &[]).iter().enumerate() {
        let claim = merged(&json!({"metadata": {"name": format!("c{i}")}}), &attempt.body);
        let template = json!({"metadata": claim["metadata"], "spec": {"spec": claim["spec"]}});
        faults.check(&attempt.name, &s.mallory.post(&claims, &claim).await, &attempt.says);
        let deeper: Vec<String> =
            attempt.says.iter().map(|word| word.replace("spec.devices", "spec.spec.devices")).collect();
        let answer = s.mallory.post(&templates, &template).await;
        faults.check(&format!("{} in a template", attempt.name), &answer, &deeper);
    }
    faults.attempts(&s.mallory, "a claim", &s.requests("taken claim", &[("$CLAIMS", &claims)])).await;
    faults.none();

    let slice = json!({"metadata": {"name": "devices-own"}, "spec": {"driver": "escape.example.com",
        "nodeName": s.own, "devices": [{"name": "d1"}, {"name": "d2"}, {"name": "d3"}],
        "pool": {"name": s.own, "generation": 1, "resourceSliceCount": 1}}});
    s.admin.post(SLICES, &slice).await.unwrap();
    // A claim that is made from a template is made by a controller, and gets no label of ours that way.
    for (name, label) in [("marked", keys::WORKLOAD), ("plain", "workload")] {
        let spec = &claim("c", &json!({}))["spec"];
        let template =
            json!({"metadata": {"name": name}, "spec": {"metadata": {"labels": {label: "w"}}, "spec": spec}});
        s.mallory.post(&templates, &template).await.unwrap();
        let uses = json!({"spec": {"resourceClaims": [{"name": "d", "resourceClaimTemplateName": name}]}});
        s.mallory.post(&s.pods(), &merged(&good(name), &uses)).await.unwrap();
    }
    // A class that a Pod asks for by the name of a resource is asked for by a claim too, which the scheduler makes.
    let asks = |class: &str| {
        let resource = json!({format!("deviceclass.resource.kubernetes.io/{class}"): "1"});
        changed(
            &good(class),
            &json!({"container": {"resources": {"requests": resource, "limits": resource}}}),
        )
    };
    s.mallory.post(&s.pods(), &asks("escape-allowed")).await.unwrap();
    // That a class stands behind a resource may be decided later than a Pod asks for it.
    let resource = json!({"escape.example.com/late": "1"});
    let late = json!({"container": {"resources": {"requests": resource, "limits": resource}}});
    s.mallory.post(&s.pods(), &changed(&good("late"), &late)).await.unwrap();
    let class = json!({"metadata": {"name": "escape-late"}, "spec": {"extendedResourceName": "escape.example.com/late",
        "selectors": [{"cel": {"expression": "device.driver == 'escape.example.com'"}}]}});
    s.admin.post("/apis/resource.k8s.io/v1/deviceclasses", &class).await.unwrap();
    // A Pod's status says which claim was made for it, and whoever may write it may name another's.
    let forged = json!({"spec": {"schedulingGates": [{"name": "example.com/wait"}],
        "resourceClaims": [{"name": "d", "resourceClaimTemplateName": "plain"}]}});
    s.mallory.post(&s.pods(), &merged(&good("forged"), &forged)).await.unwrap();
    eventually("its own claim is made", || async {
        let pod = s.admin.get(&s.pod("forged")).await?;
        let claim = &pod["status"]["resourceClaimStatuses"][0]["resourceClaimName"];
        holds(claim.is_string(), pod["status"].to_string())
    })
    .await;
    let names = json!({"status": {"resourceClaimStatuses": [{"name": "d", "resourceClaimName": "taken"}]}});
    s.admin.patch(&format!("{}/status", s.pod("forged")), &names).await.unwrap();
    s.mallory.patch(&s.pod("forged"), &json!({"spec": {"schedulingGates": null}})).await.unwrap();

    assert_eq!(s.placed("plain").await, s.own);
    assert_eq!(s.placed("escape-allowed").await, s.own);
    s.event("marked", "metadata.labels[outrigger.dev/workload]: is added as").await;
    s.event("late", "requests[0].exactly.deviceClassName: is \\\"escape-late\\\"").await;
    for pod in ["marked", "late", "forged"] {
        let pod = s.admin.get(&s.pod(pod)).await.unwrap();
        assert_eq!(pod["spec"]["nodeName"], Value::Null, "{pod}");
    }
    let taken = s.admin.get(&format!("{claims}/taken")).await.unwrap();
    assert_eq!(taken["status"]["reservedFor"], Value::Null, "{taken}");

    // A claim that was made for one Pod is no other's.
    let pod = s.admin.get(&s.pod("plain")).await.unwrap();
    let made = &pod["status"]["resourceClaimStatuses"][0]["resourceClaimName"];
    let thief = json!({"spec": {"resourceClaims": [{"name": "d", "resourceClaimName": made}]}});
    let answer = eventually("the webhook knows the claim", || async {
        let answer = s.mallory.post(&dry(&s.pods()), &merged(&good("thief"), &thief)).await;
        answer.err().ok_or_else(|| "it doesn't".to_owned())
    })
    .await;
    assert!(answer.contains("which was made for Pod \"plain\" alone"), "{answer}");
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
        ("apps/v1", "replicasets", set("rs-twin", &json!({})), ""),
        ("apps/v1", "daemonsets", set("ds-twin", &own), ""),
        ("apps/v1", "statefulsets", set("ss-twin", &own), ""),
        ("batch/v1", "jobs", job("job-twin", &json!({})), ""),
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
        assert!(owner.as_str().unwrap().ends_with("-twin"), "{pod}");
        // A DaemonSet makes Pods for Nodes of nobody too, and they stay without.
        assert!(node.is_null() || *node == json!(s.own), "{pod}");
    }
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
    let mut faults = Faults::default();
    faults.check("a Pod", &answers.0, &words);
    faults.check("an administrator's Pod", &answers.1, &words);
    faults.check("a claim", &answers.2, &words);
    faults.none();
    admin.post(TENANTS, &tenant("ghost", json!({}))).await.unwrap();
    eventually("its Tenant is known", || mallory.post(pods, &pod)).await;
}

#[tokio::test]
async fn the_rest_of_the_cluster_is_out_of_reach() {
    let s = Stage::new("rights").await;
    let mut faults = Faults::default();
    for row in s.requests("rights", &[]) {
        let (method, path) = row.ask.split_once(' ').unwrap();
        let body = match method {
            "POST" => json!({"metadata": {"name": "x"}}),
            "PATCH" => json!({"metadata": {"labels": {"x": "y"}}}),
            _ => Value::Null,
        };
        let answer = s.mallory.ask(method.parse().unwrap(), path, &body).await;
        faults.check(&row.ask, &answer, &["403", "mallory-rights\" cannot"]);
    }
    faults.check("own Pods", &s.mallory.post(&s.pods(), &good("p")).await, &[""; 0]);
    faults.check("an own rule", &s.mallory.post(&s.rules(), &rule("r", &good("p"))).await, &[""; 0]);
    faults.none();
    for (attributes, allowed) in [
        (json!({"verb": "impersonate", "resource": "users"}), false),
        (json!({"verb": "impersonate", "resource": "groups", "name": "system:masters"}), false),
        (json!({"verb": "impersonate", "resource": "serviceaccounts", "namespace": SYSTEM}), false),
        (json!({"verb": "assign", "group": "outrigger.dev", "resource": "tenants"}), false),
        // With edit the user is every service account of the namespace, and so is whoever makes Pods there.
        (json!({"verb": "impersonate", "resource": "serviceaccounts", "namespace": s.t.namespace}), true),
    ] {
        let review = json!({"spec": {"user": "mallory-rights", "groups": ["tenant-rights-users"],
            "resourceAttributes": attributes}});
        assert_eq!(may(&s.admin, &review).await, allowed, "{attributes}");
    }
}

#[tokio::test]
async fn an_agent_that_lies_about_the_host_gets_none_of_its_dpus() {
    let s = Stage::with_agent("liar").await;
    let any = json!({"spec": {"dpuSelectionPolicy": "Any"}});
    s.mallory.post(&s.rules(), &rule("same", &good("p"))).await.unwrap();
    s.mallory.post(&s.rules(), &merged(&rule("any", &good("p")), &any)).await.unwrap();
    // In its own cluster the tenant may say what it likes.
    let work = json!({"metadata": {"name": "w", "labels": {"app": "web"}},
        "spec": {"nodeName": format!("{}-a", s.other), "containers": [{"name": "c", "image": "i"}]}});
    s.t.work().create(&PostParams::default(), &serde_json::from_value(work).unwrap()).await.unwrap();
    s.t.condition("any", "Ready", Status::True, "AllReady").await;
    // The scheduler has found nothing.
    s.t.condition("same", "Ready", Status::False, "NoDPU").await;
    always("none of their DPUs is used", Duration::from_millis(500), || async {
        let companions = s.t.companions().await?;
        let nodes: Vec<_> =
            companions.iter().map(|c| (c.labels()[keys::RULE].as_str(), node_of(c))).collect();
        let right = |(rule, node): &(&str, &str)| *node == if *rule == "any" { s.own.as_str() } else { "" };
        holds(nodes.len() == 2 && nodes.iter().all(right), format!("{nodes:?}"))
    })
    .await;
}

#[tokio::test]
async fn nobody_but_those_who_know_writes_a_status() {
    let s = Stage::new("status").await;
    // Gated, so that no failed attempt takes a nomination away.
    let gated = json!({"spec": {"schedulingGates": [{"name": "example.com/wait"}]}});
    s.mallory.post(&s.pods(), &changed(&good("pending"), &gated)).await.unwrap();
    s.mallory.post(&s.pods(), &good("p")).await.unwrap();
    s.placed("p").await;
    let pod = s.pod("p");
    let rows = s.requests("status", &[("$POD", &pod)]);
    let mut faults = Faults::default();
    faults.attempts(&s.mallory, "the user", &rows).await;
    // A kubelet writes statuses, and no finalizers with them.
    let kubelet = User::kubelet(s.t.outrigger, &s.own).await;
    let finalizer = json!({"metadata": {"finalizers": ["example.com/stay"]}});
    let answer = kubelet.patch(&format!("{pod}/status"), &finalizer).await;
    faults.check("a kubelet's finalizer", &answer, &["metadata.finalizers: gets example.com/stay"]);
    let answer = kubelet.patch(&format!("{pod}/status"), &json!({"status": {"message": "well"}})).await;
    faults.check("a kubelet's status", &answer, &[""; 0]);
    faults.none();
}

#[tokio::test]
async fn a_pod_is_not_forgotten_while_it_may_run() {
    let s = Stage::new("force").await;
    let slow = json!({"metadata": {"annotations": {"pod-delete.stage.kwok.x-k8s.io/delay": "10m"}}});
    let mut faults = Faults::default();
    for name in ["deleted", "evicted", "twin"] {
        s.mallory.post(&s.pods(), &merged(&good(name), &slow)).await.unwrap();
        s.placed(name).await;
    }
    let now = json!({"gracePeriodSeconds": 0});
    let answer = s.mallory.ask(Method::DELETE, &s.pod("deleted"), &now).await;
    faults.check("force", &answer, &["gracePeriodSeconds: is 0"]);
    let evict = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "evicted"}, "deleteOptions": now});
    let answer = s.mallory.post(&format!("{}/eviction", s.pod("evicted")), &evict).await;
    faults.check("eviction by force", &answer, &["gracePeriodSeconds: is 0"]);
    faults.check("the usual way", &s.mallory.delete(&s.pod("twin")).await, &[""; 0]);
    let answer = s.mallory.ask(Method::DELETE, &s.pods(), &now).await;
    faults.check("all of them", &answer, &["gracePeriodSeconds: is 0"]);
    faults.none();
}

#[tokio::test]
async fn a_dpu_is_given_back_whatever_a_deletion_waits_for() {
    let s = Stage::new("hostage").await;
    let map = s.map().await;
    let job = json!({"metadata": {"finalizers": ["batch.kubernetes.io/job-tracking"], "ownerReferences": [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": map, "controller": true}]}});
    s.mallory.post(&s.pods(), &merged(&good("job"), &job)).await.unwrap();
    let pod = s.mallory.post(&s.pods(), &good("parent")).await.unwrap();
    // A child that never goes holds a parent that is deleted in the foreground.
    let child = json!({"metadata": {"name": "child", "finalizers": ["example.com/stay"], "ownerReferences": [
        {"apiVersion": "v1", "kind": "Pod", "name": "parent", "uid": pod["metadata"]["uid"], "blockOwnerDeletion": true}]}});
    s.mallory.post(&format!("{}/configmaps", s.ns), &child).await.unwrap();
    for name in ["job", "parent"] {
        s.placed(name).await;
    }
    let foreground = json!({"propagationPolicy": "Foreground"});
    s.mallory.ask(Method::DELETE, &s.pod("parent"), &foreground).await.unwrap();
    s.admin.patch(&format!("{TENANTS}/hostage"), &json!({"spec": {"hosts": []}})).await.unwrap();
    eventually("the DPU is nobody's", || async {
        let node = s.admin.get(&format!("{NODES}/{}", s.own)).await?;
        let owner = &node["metadata"]["labels"][keys::NODE_TENANT];
        holds(owner.is_null(), owner.to_string())
    })
    .await;
}
