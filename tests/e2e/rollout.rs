//! Templates that change: validated by dry run first, then rolled out a few companions at a time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt;
use kube::api::{Api, ListParams};
use kube::runtime::watcher;
use outrigger_api::WorkloadRuleStatus;
use outrigger_api::conditions::Status;
use outrigger_core::keys;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::tenant::{Tenant, admin_rule, annotation, is_ready, rule_with};
use outrigger_tests::{InWords, always, condition_of, eventually, holds, until};
use serde_json::{Value, json};

/// Follows a tenant's companions, and keeps the greatest number of one group that was down at once.
#[derive(Clone, Default)]
struct Down {
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    /// The group of each companion, and whether it serves.
    companions: HashMap<String, (String, bool)>,
    most: usize,
}

impl Down {
    /// Follows all companions as one group.
    async fn follow(t: &Tenant, count: usize) -> Self {
        Self::follow_groups(t, count, |_| String::new()).await
    }

    async fn follow_groups(
        t: &Tenant,
        count: usize,
        group: impl Fn(&Pod) -> String + Send + 'static,
    ) -> Self {
        let this = Self::default();
        let config = watcher::Config::default().labels(keys::RULE);
        let mut events = watcher(t.pods(), config).boxed();
        let follower = this.clone();
        tokio::spawn(async move {
            while let Some(event) = events.next().await {
                let (pod, exists) = match event.unwrap() {
                    watcher::Event::Apply(pod) | watcher::Event::InitApply(pod) => (pod, true),
                    watcher::Event::Delete(pod) => (pod, false),
                    watcher::Event::Init | watcher::Event::InitDone => continue,
                };
                let up = exists && is_ready(&pod) && pod.metadata.deletion_timestamp.is_none();
                let (name, mut seen) = (pod.name_any(), follower.seen.lock().unwrap());
                // Those that were there from the beginning are the ones that matter.
                if seen.companions.len() < count || seen.companions.contains_key(&name) {
                    seen.companions.insert(name, (group(&pod), up));
                }
                // Until all have been shown once, nothing can be said.
                if seen.companions.len() == count {
                    let mut down: HashMap<&str, usize> = HashMap::new();
                    for (group, up) in seen.companions.values() {
                        *down.entry(group).or_default() += usize::from(!up);
                    }
                    seen.most = seen.most.max(down.into_values().max().unwrap_or_default());
                }
            }
        });
        eventually("the watch has begun", || async {
            let known = this.seen.lock().unwrap().companions.len();
            holds(known == count, known.to_string())
        })
        .await;
        this
    }

    fn most(&self) -> usize {
        self.seen.lock().unwrap().most
    }
}

async fn status(t: &Tenant) -> WorkloadRuleStatus {
    t.rules().get("r").await.unwrap().status.unwrap_or_default()
}

fn image(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|s| s.containers[0].image.as_deref()).unwrap_or_default()
}

/// A rule whose companions have this image.
fn of_image(image: &str, change: impl FnOnce(&mut Value)) -> Value {
    let mut spec = rule_with("/template/spec/containers/0/image", json!(image));
    change(&mut spec);
    spec
}

async fn all_of(t: &Tenant, count: usize, wanted: &str) {
    eventually(&format!("{count} companions of {wanted} are ready"), || async {
        let all = t.companions().await?;
        let done = all.iter().filter(|pod| is_ready(pod) && image(pod) == wanted).count();
        holds(done == count, format!("{done} of {}", all.len()))
    })
    .await;
}

#[tokio::test]
async fn a_new_template_takes_no_more_than_a_quarter_down_at_once() {
    let t = Tenant::new(Outrigger::shared().await, "rollout", &[("a", 1)]).await;
    t.rule("r", of_image("one", |_| {})).await;
    t.webs("w", 0..8).await;
    t.ready(8).await;
    let down = Down::follow(&t, 8).await;

    // The API server would refuse it: the rule's condition says so, and no companion changes.
    t.rule("r", of_image("two", |r| r["template"]["spec"]["containers"][0]["imagePullPolicy"] = json!("?")))
        .await;
    let path = "spec.template.spec.containers[0].imagePullPolicy";
    t.condition_says("r", "Accepted", Status::False, "Refused", &[path]).await;
    t.condition("r", "Ready", Status::False, "Refused").await;
    assert!(t.event("TemplateRefused").await.contains("imagePullPolicy"));
    // What comes meanwhile waits: it could not be made.
    t.web("late").await;
    always("all stay as they are", Duration::from_millis(700), || async {
        let all = t.companions().await?;
        holds(
            all.len() == 8 && all.iter().all(|pod| image(pod) == "one" && is_ready(pod)),
            format!("{}", all.len()),
        )
    })
    .await;
    assert_eq!(down.most(), 0);
    t.end("late").await;

    // It could be made, but never starts: a quarter, and no more.
    t.rule("r", of_image("three", |r| r["template"]["spec"]["nodeSelector"] = json!({"nowhere": "x"}))).await;
    t.condition_says("r", "Ready", Status::False, "RollingOut", &["maxUnavailable is 25%"]).await;
    eventually("two of eight have the new template", || async {
        let status = status(&t).await;
        holds((status.updated, status.ready) == (Some(2), Some(6)), format!("{status:?}"))
    })
    .await;
    always("six stay", Duration::from_millis(700), || async {
        let up = t.companions().await?.iter().filter(|p| is_ready(p) && image(p) == "one").count();
        holds(up == 6, up.to_string())
    })
    .await;
    assert_eq!(down.most(), 2);

    // And one that works.
    t.rule("r", of_image("four", |_| {})).await;
    all_of(&t, 8, "four").await;
    assert_eq!(down.most(), 2);
    t.condition("r", "Ready", Status::True, "AllReady").await;
    t.condition("r", "Accepted", Status::True, "Valid").await;
    let status = status(&t).await;
    assert_eq!((status.matched, status.created, status.updated), (Some(8), Some(8), Some(8)));
}

/// The controller of each workload, by its id.
async fn owners(t: &Tenant) -> HashMap<String, String> {
    let all = t.work().list(&ListParams::default()).await.unwrap().items;
    let owner = |pod: &Pod| pod.owner_references().first().map(|owner| owner.name.clone());
    all.iter().filter_map(|pod| Some((pod.uid()?, owner(pod)?))).collect()
}

#[tokio::test]
async fn replicas_of_one_owner_do_not_lose_their_companions_together() {
    let t = Tenant::new(Outrigger::shared().await, "rollowner", &[("a", 1)]).await;
    let half = |image: &str| {
        of_image(image, |r| {
            r["ordering"] = json!("BeforeReady");
            r["updateStrategy"] = json!({"rollingUpdate": {"maxUnavailable": "50%"}});
        })
    };
    t.rule("r", half("one")).await;
    let of = |i: usize| {
        let labels = json!({"app": "web", "service": format!("s{i}")});
        json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": format!("s{i}"), "namespace": t.source},
            "spec": {"replicas": 2, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels},
                "spec": {"nodeName": t.node("a"), "containers": [{"name": "c", "image": "i"}]}}}})
    };
    t.outrigger.plane.tenant.apply(&(0..4).map(of).collect::<Vec<_>>()).unwrap();
    all_of(&t, 8, "one").await;
    let owners = owners(&t).await;
    assert_eq!(owners.len(), 8);
    let down = Down::follow_groups(&t, 8, move |pod| owners[&pod.labels()[keys::WORKLOAD]].clone()).await;
    let budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {"name": "all", "namespace": t.source},
        "spec": {"minAvailable": 2, "selector": {"matchLabels": {"service": "s0"}}}});
    t.outrigger.plane.tenant.apply(&[budget]).unwrap();
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(t.cluster.clone(), &t.source);
    until("the budget counts its Pods", &budgets, "all", |budget| {
        let healthy = budget.status.map(|status| (status.desired_healthy, status.current_healthy));
        holds(healthy == Some((2, 2)), format!("{healthy:?}"))
    })
    .await;
    t.rule("r", half("two")).await;
    t.condition_says("r", "Ready", Status::False, "RollingOut", &["6 of 8 have the current template"]).await;
    always("those of the budget stay", Duration::from_millis(500), || async {
        let old = t.companions().await?.iter().filter(|pod| is_ready(pod) && image(pod) == "one").count();
        holds(old == 2, old.to_string())
    })
    .await;
    budgets.delete("all", &kube::api::DeleteParams::default()).await.unwrap();
    all_of(&t, 8, "two").await;
    assert_eq!(down.most(), 1, "of two");
}

#[tokio::test]
async fn what_no_dpu_could_run_does_not_hold_up_a_rollout() {
    let t = Tenant::new(Outrigger::shared().await, "rollbare", &[("a", 1), ("bare", 0)]).await;
    let one_by_one = json!({"rollingUpdate": {"maxUnavailable": 1}});
    t.rule("r", of_image("one", |r| r["updateStrategy"] = one_by_one.clone())).await;
    for i in 0..3 {
        t.web(&format!("w{i}")).await;
        t.start(&format!("b{i}"), "bare", json!({"app": "web"})).await;
    }
    all_of(&t, 3, "one").await;
    let words = format!("no DPU of tenant rollbare is in host {}", t.node("bare"));
    t.condition_says("r", "Ready", Status::False, "NoDPU", &[&words]).await;
    assert!(t.event("NoDPU").await.contains("no DPU of tenant rollbare"));
    t.rule("r", of_image("two", |r| r["updateStrategy"] = one_by_one.clone())).await;
    all_of(&t, 3, "two").await;
    t.has("all have the new template", 6, 6, |pod| image(pod) == "two").await;
}

#[tokio::test]
async fn on_delete_waits_for_somebody_to_delete() {
    let t = Tenant::new(Outrigger::shared().await, "ondelete", &[("a", 1)]).await;
    t.rule("r", of_image("one", |r| r["updateStrategy"] = json!({"type": "OnDelete"}))).await;
    t.web("w").await;
    let before = t.companion().await;
    t.rule("r", of_image("two", |r| r["updateStrategy"] = json!({"type": "OnDelete"}))).await;
    t.condition_says("r", "Ready", Status::True, "AllReady", &["1 keep an earlier template"]).await;
    assert_eq!(t.companion().await.uid(), before.uid());
    t.pods().delete(&before.name_any(), &kube::api::DeleteParams::default()).await.unwrap();
    all_of(&t, 1, "two").await;
    // Or until the strategy changes.
    t.rule("r", of_image("three", |_| {})).await;
    all_of(&t, 1, "three").await;
}

#[tokio::test]
async fn an_admin_rule_is_rolled_out_as_carefully() {
    let t = Tenant::new(Outrigger::shared().await, "rolladmin", &[("a", 1)]).await;
    let apply = |image: &str, change: &dyn Fn(&mut Value)| {
        let mut spec = of_image(image, |_| {});
        spec["tenantSelector"] = json!({"matchLabels": {keys::TENANT: "rolladmin"}});
        change(&mut spec);
        let rule = admin_rule(keys::ADMIN_NAMESPACE, "rolladmin", spec);
        t.outrigger.plane.infra.apply(&[rule]).unwrap();
    };
    let pods: Api<Pod> = Api::namespaced(t.infra.clone(), keys::ADMIN_NAMESPACE);
    let of_tenant = ListParams::default().labels(&format!("{}=rolladmin", keys::TENANT));
    let are = async |what: &str, expected: &[(&str, bool)]| {
        eventually(what, || async {
            let list = pods.list(&of_tenant).await.in_words()?;
            let mut all: Vec<_> = list.items.iter().map(|pod| (image(pod), is_ready(pod))).collect();
            all.sort_unstable();
            holds(all == expected, format!("{all:?}"))
        })
        .await;
    };
    apply("one", &|_| {});
    t.webs("w", 0..4).await;
    are("all are ready", &[("one", true); 4]).await;
    // Refused: nothing happens to those that run.
    apply("two", &|spec| spec["template"]["spec"]["containers"][0]["imagePullPolicy"] = json!("?"));
    let rules: Api<outrigger_api::AdminWorkloadRule> =
        Api::namespaced(t.infra.clone(), keys::ADMIN_NAMESPACE);
    eventually("the refusal is reported", || async {
        let status = rules.get("rolladmin").await.in_words()?.status.unwrap_or_default();
        let reported =
            status.conditions.iter().any(|c| c.reason == "Refused" && c.message.contains("imagePullPolicy"));
        holds(reported, format!("{status:?}"))
    })
    .await;
    are("all stay", &[("one", true); 4]).await;
    // It never starts: one of four, and no more.
    apply("three", &|spec| spec["template"]["spec"]["nodeSelector"] = json!({"nowhere": "x"}));
    let three = [("one", true), ("one", true), ("one", true), ("three", false)];
    are("one is replaced", &three).await;
    always("no other is", Duration::from_millis(500), || async {
        let list = pods.list(&of_tenant).await.in_words()?;
        let ones = list.items.iter().filter(|pod| image(pod) == "one" && is_ready(pod)).count();
        holds(ones == 3, ones.to_string())
    })
    .await;
    apply("four", &|_| {});
    are("all are new", &[("four", true); 4]).await;
    // A second rollout begins with nothing left of the first.
    apply("five", &|spec| spec["template"]["spec"]["nodeSelector"] = json!({"nowhere": "x"}));
    let five = [("five", false), ("four", true), ("four", true), ("four", true)];
    are("one is replaced again", &five).await;
    always("no other is", Duration::from_millis(500), || async {
        let list = pods.list(&of_tenant).await.in_words()?;
        let fours = list.items.iter().filter(|pod| image(pod) == "four" && is_ready(pod)).count();
        holds(fours == 3, fours.to_string())
    })
    .await;
    until("the rule is not ready", &rules, "rolladmin", |rule| {
        holds(condition_of(&rule, "Ready")["status"] == "False", format!("{:?}", rule.status))
    })
    .await;
    t.outrigger.plane.infra.kubectl(&["delete", "awr", "rolladmin", "-n", keys::ADMIN_NAMESPACE]).unwrap();
    are("all are gone", &[]).await;
}

#[tokio::test]
async fn more_workloads_than_there_is_room_for_do_not_keep_the_earlier_template() {
    let t = Tenant::new(Outrigger::shared().await, "rollroom", &[("a", 1)]).await;
    let apply = |image: &str| {
        let spec = of_image(image, |spec| {
            spec["tenantSelector"] = json!({"matchLabels": {keys::TENANT: "rollroom"}});
            spec["updateStrategy"] = json!({"rollingUpdate": {"maxUnavailable": 1}});
            // One at a time fits on the DPU.
            spec["template"]["spec"]["containers"][0]["ports"] =
                json!([{"containerPort": 80, "hostPort": 8091}]);
        });
        t.outrigger.plane.infra.apply(&[admin_rule(keys::ADMIN_NAMESPACE, "rollroom", spec)]).unwrap();
    };
    let pods: Api<Pod> = Api::namespaced(t.infra.clone(), keys::ADMIN_NAMESPACE);
    let of_tenant = ListParams::default().labels(&format!("{}=rollroom", keys::TENANT));
    let are = async |wanted: &str| {
        eventually(&format!("one of three runs {wanted}"), || async {
            let all = pods.list(&of_tenant).await.in_words()?.items;
            let ready = all.iter().filter(|pod| is_ready(pod)).count();
            let first =
                all.iter().filter(|pod| annotation(pod, keys::FIRST_COMPANION) == Some("true")).count();
            let new = all.iter().filter(|pod| image(pod) == wanted).count();
            // Of the one that runs it may not be known that it is the first.
            holds((ready, new) == (1, 3) && first >= 2, format!("{ready} ready, {new} new, {first} marked"))
        })
        .await;
    };
    apply("one");
    t.web("w0").await;
    eventually("it runs", || async {
        let all = pods.list(&of_tenant).await.in_words()?.items;
        holds(all.iter().any(is_ready), format!("{} companions", all.len()))
    })
    .await;
    t.webs("w", 1..3).await;
    are("one").await;
    // Those that never had a Node are replaced at once, and the one that runs is not kept by them. No earlier one gets its place meanwhile.
    let cordon = |cordoned: bool| {
        let dpu = format!("node/{}", t.node("a-dpu1"));
        t.outrigger.plane.infra.patch(&dpu, &[], &json!({"spec": {"unschedulable": cordoned}})).unwrap();
    };
    cordon(true);
    apply("two");
    eventually("all are replaced", || async {
        let all = pods.list(&of_tenant).await.in_words()?.items;
        let new = all.iter().filter(|pod| image(pod) == "two").count();
        holds(new == 3, format!("{new} new"))
    })
    .await;
    cordon(false);
    are("two").await;
    t.outrigger.plane.infra.kubectl(&["delete", "awr", "rollroom", "-n", keys::ADMIN_NAMESPACE]).unwrap();
}
