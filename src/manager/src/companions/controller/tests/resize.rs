//! Companions whose rule asks for other amounts of cpu, or another image.

use outrigger_core::ids::TenantId;

use super::*;
use crate::state::validation::TemplateValidation;

/// A rule that asks for so much cpu.
fn asking(generation: i64, cpu: &str) -> Value {
    let mut rule = fixtures::rule();
    rule["metadata"]["generation"] = json!(generation);
    let container = &mut rule["spec"]["template"]["spec"]["containers"][0];
    (container["image"], container["resources"]) = (json!("i:1"), json!({"requests": {"cpu": cpu}}));
    rule
}

/// A companion that has one processor, whose rule asks for two.
struct Resized {
    world: World,
    pod: String,
}

impl Resized {
    /// The API server serves the subresource, and has a Pod with so much cpu.
    fn new(has: &str) -> Self {
        let world = World::new();
        let pod = format!("{PODS}/{}", companion::name(&id().key, &TenantId::new("blue").unwrap()));
        let this = Self { world, pod };
        this.shows_former(true);
        this.serves(&["pods", "pods/resize"]);
        this.has(has);
        this.world.api.answers("PATCH", &format!("{}/resize", this.pod), 200, json!({}));
        this.world.api.answers("PATCH", &this.pod, 200, json!({}));
        this.world.api.answers("DELETE", &this.pod, 200, json!({}));
        this
    }

    /// The watch shows a companion that has one processor.
    fn shows_former(&self, ready: bool) {
        self.asks(1, "1");
        self.shows(1, ready, None);
        self.asks(2, "2");
    }

    fn asks(&self, generation: i64, cpu: &str) {
        let state = self.world.state();
        let mut data = state.lock();
        data.apply_rule(&fixtures::object(asking(generation, cpu)));
        data.rules.get_mut(&id().key.rule).unwrap().validation = TemplateValidation::passed();
    }

    /// The rule asks for another image too, and that it is given in place.
    fn asks_for_an_image(&self, cpu: &str) {
        let mut rule = asking(3, cpu);
        rule["spec"]["template"]["spec"]["containers"][0]["image"] = json!("i:2");
        rule["spec"]["updateStrategy"] = json!({"rollingUpdate": {"mutableFields": "InPlace"}});
        let state = self.world.state();
        let mut data = state.lock();
        data.apply_rule(&fixtures::object(rule));
        data.rules.get_mut(&id().key.rule).unwrap().validation = TemplateValidation::passed();
    }

    /// A companion of the former rule that isn't ready.
    fn former(&self) -> Observed {
        let known = self.world.state().lock().read_companion(&id().key, Observed::clone);
        Observed { ready: false, ..known.unwrap() }
    }

    /// The watch shows a companion that is made from the rule as it is now.
    fn shows(&self, rule_generation: i64, ready: bool, trouble: Option<Cause>) {
        let rule = self.world.state().lock().index.rule(&id().key.rule).unwrap().clone();
        self.world.shows(Observed {
            rule_uid: "u".into(),
            rule_generation,
            template_hash: rule.template_hash().to_owned(),
            parts: rule.parts().map(str::to_owned),
            injected: Some(Vec::new()),
            ready,
            trouble,
            ..Observed::default()
        });
        self.world.state().lock().companion_observed(&id().key);
    }

    fn serves(&self, resources: &[&str]) {
        let resource = |name: &&str| json!({"name": name, "singularName": "", "namespaced": true, "kind": "Pod", "verbs": ["patch"]});
        let resources: Vec<_> = resources.iter().map(resource).collect();
        let list = json!({"kind": "APIResourceList", "groupVersion": "v1", "resources": resources});
        self.world.api.answers("GET", "/api/v1", 200, list);
    }

    fn has(&self, cpu: &str) {
        let container = json!({"name": "c", "resources": {"requests": {"cpu": cpu}}});
        let pod =
            json!({"metadata": {"uid": "pod", "resourceVersion": "7"}, "spec": {"containers": [container]}});
        self.world.api.answers("GET", &self.pod, 200, pod);
    }

    /// Makes a step. Whether it has resized the companion, written its annotations, and deleted it.
    async fn step(&self) -> (usize, usize, usize) {
        let patches = || self.world.api.calls("PATCH");
        let (before, deletions) = (patches().len(), self.world.deletions());
        self.world.step().await;
        let (resizes, others): (Vec<_>, Vec<_>) =
            patches()[before..].iter().cloned().partition(|(path, _)| path.contains("/resize"));
        (resizes.len(), others.len(), self.world.deletions() - deletions)
    }

    fn is_asked_for_the_discovery(&self) -> usize {
        self.world.api.calls("GET").iter().filter(|(path, _)| path == "/api/v1").count()
    }
}

#[tokio::test]
async fn what_is_due_follows_from_the_pod_as_it_is() {
    let r = Resized::new("1");
    assert_eq!(r.step().await, (1, 1, 0));
    let patches = r.world.api.calls("PATCH");
    // Of that state only: a late one takes nothing back.
    let read = json!({"uid": "pod", "resourceVersion": "7"});
    let wanted = json!([{"name": "c", "resources": {"requests": {"cpu": "2"}}}]);
    assert_eq!(patches[0].1, json!({"metadata": read, "spec": {"containers": wanted}}));
    assert_eq!(patches[1].1["metadata"]["annotations"][keys::RULE_GENERATION], "2");
    assert!(!r.world.state().lock().rollouts.concerns(&id().key), "another one may be next");
    // The manager has ended between the two writes.
    let r = Resized::new("2000m");
    assert_eq!(r.step().await, (0, 1, 0));
    // After both, and however often.
    r.shows(2, true, None);
    assert_eq!(r.step().await, (0, 0, 0));
}

#[tokio::test]
async fn what_the_api_server_does_not_resize_is_replaced() {
    let refused = |code: u16, message: &str, name: &str| {
        let mut body = failure(code, "Any");
        (body["message"], body["details"]) = (json!(message), json!({"name": name, "kind": "pods"}));
        (code, body)
    };
    let mine = companion::name(&id().key, &TenantId::new("blue").unwrap());
    let forbidden =
        "pods \"x\" is forbidden: User \"m\" cannot patch resource \"pods/resize\" in API group \"\"";
    for ((code, body), deleted, of_all) in [
        (refused(422, "Pod QOS Class may not change", &mine), 1, false),
        (refused(404, "the server could not find the requested resource", ""), 1, true),
        (refused(405, "method not allowed", ""), 1, true),
        (refused(403, forbidden, &mine), 1, true),
        // The controls: it waits, or is decided about again.
        (refused(404, "pods \"x\" not found", &mine), 0, false),
        (refused(409, "the UID in the precondition doesn't match", &mine), 0, false),
        (refused(403, "exceeded quota: q", &mine), 0, false),
        (refused(503, "not now", &mine), 0, false),
    ] {
        let r = Resized::new("1");
        r.world.api.answers("PATCH", &format!("{}/resize", r.pod), code, body.clone());
        assert_eq!(r.step().await, (1, 0, deleted), "{body}");
        // Where nothing definite was said it may be resized.
        let has_place = deleted == 1 || code == 503;
        assert_eq!(r.world.state().lock().rollouts.concerns(&id().key), has_place, "{body}");
        // Of another companion it isn't asked again where none can be resized.
        r.shows_former(true);
        let (resizes, ..) = r.step().await;
        assert_eq!(resizes == 0, of_all, "{body}");
    }
}

#[tokio::test]
async fn the_discovery_is_asked_once() {
    let r = Resized::new("1");
    r.serves(&["pods"]);
    assert_eq!(r.step().await, (0, 0, 1), "the API server has no such subresource");
    r.shows_former(true);
    assert_eq!(r.step().await, (0, 0, 1));
    assert_eq!(r.is_asked_for_the_discovery(), 1);
    let r = Resized::new("1");
    r.world.api.answers("GET", "/api/v1", 503, json!({}));
    assert_eq!(r.step().await, (0, 0, 0), "nobody knows");
    r.serves(&["pods/resize"]);
    assert_eq!(r.step().await, (1, 1, 0));
    assert_eq!(r.is_asked_for_the_discovery(), 2);
}

#[tokio::test]
async fn one_that_does_not_run_is_replaced_unless_it_has_its_amounts() {
    for (has, expected) in [("1", (0, 0, 1)), ("2", (0, 1, 0))] {
        let r = Resized::new(has);
        r.shows_former(false);
        assert_eq!(r.step().await, expected, "{has}");
    }
}

#[tokio::test]
async fn a_deferred_resize_is_waited_for_and_an_infeasible_one_is_replaced() {
    for (trouble, deleted) in [(Cause::Resizing, 0), (Cause::ResizeDeferred, 0), (Cause::ResizeInfeasible, 1)]
    {
        let r = Resized::new("2");
        r.shows(2, true, Some(trouble));
        assert_eq!(r.step().await, (0, 0, deleted), "{trouble}");
    }
}

#[tokio::test]
async fn another_image_is_given_in_one_write_with_the_annotations() {
    let r = Resized::new("1");
    r.asks_for_an_image("1");
    assert_eq!(r.step().await, (0, 1, 0));
    let patch = r.world.api.calls("PATCH").pop().unwrap().1;
    assert_eq!(patch["metadata"]["resourceVersion"], "7", "a late one takes nothing back");
    assert_eq!(patch["metadata"]["annotations"][keys::RULE_GENERATION], "3");
    assert_eq!(patch["spec"], json!({"containers": [{"name": "c", "image": "i:2"}]}));
    assert_eq!(r.is_asked_for_the_discovery(), 0);
    // Amounts before it: the write of the image is about the Pod that has them.
    let r = Resized::new("1");
    r.asks_for_an_image("2");
    let resized = json!({"metadata": {"uid": "pod", "resourceVersion": "8"}});
    r.world.api.answers("PATCH", &format!("{}/resize", r.pod), 200, resized);
    assert_eq!(r.step().await, (1, 1, 0));
    let patches = r.world.api.calls("PATCH");
    let versions: Vec<_> = patches.iter().map(|(_, patch)| &patch["metadata"]["resourceVersion"]).collect();
    assert_eq!(versions, ["7", "8"]);
}

#[tokio::test]
async fn what_gets_no_other_image_in_place_is_replaced() {
    for (code, reason, deleted) in
        [(422, "Invalid", 1), (409, "Conflict", 0), (403, "Forbidden", 0), (503, "Any", 0)]
    {
        let r = Resized::new("1");
        r.asks_for_an_image("1");
        r.world.api.answers("PATCH", &r.pod, code, failure(code, reason));
        assert_eq!(r.step().await, (0, 1, deleted), "{code}");
        let has_place = deleted == 1 || code == 503;
        assert_eq!(r.world.state().lock().rollouts.concerns(&id().key), has_place, "{code}");
    }
    // One that isn't ready has nothing to lose.
    let r = Resized::new("1");
    r.shows_former(false);
    r.asks_for_an_image("1");
    assert_eq!(r.step().await, (0, 0, 1));
}

#[tokio::test]
async fn a_deletion_whose_answer_is_lost_keeps_its_place_in_the_rollout() {
    for (code, is_over) in [(504, false), (403, true)] {
        let t = Resized::new("1");
        let v = CompanionKey { workload: "v".into(), ..id().key };
        t.world.state().lock().index.sync(["v", "w"].map(fixtures::workload).into());
        t.serves(&["pods"]);
        t.world.api.answers("DELETE", &t.pod, code, failure(code, ""));
        assert_eq!(t.step().await, (0, 0, 1));
        let context = &t.world.controller.context;
        let state = t.world.state();
        state.lock().companions.applied("v", v.clone(), Observed { ready: true, ..Observed::default() });
        let other = state.lock().may_replace(&v, &context.caches.registry, context.moment());
        assert_eq!(other, is_over, "{code}: of two one may be down");
    }
}

#[tokio::test]
async fn one_that_is_ready_by_now_is_not_replaced_as_one_that_is_down() {
    let t = Resized::new("1");
    t.world.shows(Observed { resource_version: 7, ..t.former() });
    t.world.api.answers("DELETE", &t.pod, 409, failure(409, "Conflict"));
    assert_eq!(t.step().await, (0, 0, 1));
    let (_, deletion) = t.world.api.calls("DELETE").pop().unwrap();
    assert_eq!(deletion["preconditions"], json!({"uid": "pod", "resourceVersion": "7"}));
}
