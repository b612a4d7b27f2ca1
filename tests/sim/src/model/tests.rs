use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use kube::api::{ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::{Api, ResourceExt};
use outrigger_runtime::environment::Environment;
use serde_json::{Value, json};

use super::*;

fn model() -> Model {
    let environment = Environment::simulated(1, "2026-01-02T03:04:05Z".parse().unwrap());
    let model = Model::new(BUILT_IN, environment);
    model.create("admin", "namespaces", json!({"metadata": {"name": "n"}})).unwrap();
    model
}

fn map(name: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "n"}, "data": {"a": "1"}})
}

fn maps(model: &Model) -> Api<ConfigMap> {
    Api::namespaced(model.client(Direct, "user"), "n")
}

fn names(model: &Model, plural: &str) -> Vec<String> {
    model.list(plural).iter().map(|object| object::text(object, "name").to_owned()).collect()
}

/// The next event of a watch in short; `None` if there is none for 50 s, or the watch has ended.
async fn next(
    watch: &mut (impl futures::Stream<Item = kube::Result<WatchEvent<ConfigMap>>> + Unpin),
) -> Option<String> {
    let event = tokio::time::timeout(Duration::from_secs(50), watch.next()).await.ok()??;
    Some(match event {
        Ok(WatchEvent::Added(map)) => format!("+{}", map.name_any()),
        Ok(WatchEvent::Modified(map)) => format!("~{}", map.name_any()),
        Ok(WatchEvent::Deleted(map)) => format!("-{}", map.name_any()),
        Ok(WatchEvent::Bookmark(bookmark)) => format!("at {}", bookmark.metadata.resource_version),
        Ok(WatchEvent::Error(status)) => format!("{} {}", status.code, status.reason),
        Err(error) => format!("{error}"),
    })
}

fn params() -> WatchParams {
    WatchParams::default().timeout(290)
}

#[tokio::test(start_paused = true)]
async fn objects_are_written_and_read_through_a_client() {
    let model = model();
    let maps = maps(&model);
    let mut made: ConfigMap = serde_json::from_value(map("m")).unwrap();
    let stored = maps.create(&PostParams::default(), &made).await.unwrap();
    assert_eq!(stored.metadata.resource_version.as_deref(), Some("3"));
    assert!(stored.uid().is_some() && stored.creation_timestamp().is_some());
    let code = |error: kube::Error| match error {
        kube::Error::Api(status) => (status.code, status.reason.clone()),
        other => panic!("{other:?}"),
    };
    let twice = maps.create(&PostParams::default(), &made).await.unwrap_err();
    assert_eq!(code(twice), (409, "AlreadyExists".to_owned()));
    made.metadata.resource_version = Some("2".to_owned());
    let stale = maps.replace("m", &PostParams::default(), &made).await.unwrap_err();
    assert_eq!(code(stale), (409, "Conflict".to_owned()));
    assert_eq!(code(maps.get("x").await.unwrap_err()), (404, "NotFound".to_owned()));
    let patch = Patch::Merge(json!({"data": {"a": "1"}}));
    maps.patch("m", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(model.revision(), 3, "a patch that changes nothing writes nothing");
    let elsewhere: Api<ConfigMap> = Api::namespaced(model.client(Direct, "user"), "absent");
    made.metadata = kube::api::ObjectMeta { name: Some("m".into()), ..Default::default() };
    assert_eq!(code(elsewhere.create(&PostParams::default(), &made).await.unwrap_err()).0, 404);
}

/// Reads what comes of a watch until it is silent.
async fn events(api: &Api<ConfigMap>, params: &WatchParams, from: u64) -> Vec<String> {
    let mut watch = match api.watch(params, &from.to_string()).await {
        Ok(watch) => watch.boxed(),
        Err(error) => return vec![error.to_string()],
    };
    let mut events = Vec::new();
    while let Some(event) = next(&mut watch).await {
        events.push(event);
    }
    events
}

fn recolor(model: &Model, name: &str, color: &str) {
    let patch = json!({"metadata": {"labels": {"color": color}}});
    model.merge("user", "configmaps", (Some("n"), name, None), patch).unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_watch_shows_writes_and_what_a_selector_starts_and_stops_to_select() {
    let model = model();
    let (maps, from) = (maps(&model), model.revision());
    model.create("user", "configmaps", map("a")).unwrap();
    recolor(&model, "a", "red");
    recolor(&model, "a", "blue");
    recolor(&model, "a", "red");
    model.delete("user", "configmaps", Some("n"), "a").unwrap();
    assert_eq!(events(&maps, &params(), from).await, ["+a", "~a", "~a", "~a", "-a"]);
    assert_eq!(events(&maps, &params().labels("color=red"), from).await, ["+a", "-a", "+a", "-a"]);
    assert_eq!(events(&maps, &params().fields("metadata.name=b"), from).await, [""; 0]);
    assert_eq!(model.watchers(), [""; 0], "watches that nobody reads are closed");
}

#[tokio::test(start_paused = true)]
async fn an_open_watch_gets_bookmarks_every_minute_and_ends_in_time() {
    let model = model();
    let from = model.revision();
    let mut watch = maps(&model).watch(&params(), &from.to_string()).await.unwrap().boxed();
    model.create("user", "secrets", json!({"metadata": {"name": "s", "namespace": "n"}})).unwrap();
    let began = tokio::time::Instant::now();
    let mut seen = Vec::new();
    while let Some(event) = watch.next().await {
        let Ok(WatchEvent::Bookmark(bookmark)) = event else { panic!("{event:?}") };
        seen.push((began.elapsed().as_secs(), bookmark.metadata.resource_version));
    }
    let expected = [60, 120, 180, 240, 288].map(|second| (second, (from + 1).to_string()));
    assert_eq!(seen, expected);
    assert_eq!(began.elapsed().as_secs(), 290);
}

#[tokio::test(start_paused = true)]
async fn pages_show_the_objects_of_their_first_page() {
    let model = model();
    let maps = maps(&model);
    for name in ["a", "b", "c"] {
        model.create("user", "configmaps", map(name)).unwrap();
    }
    let mut page = ListParams::default().limit(2);
    let first = maps.list(&page).await.unwrap();
    model.delete("user", "configmaps", Some("n"), "c").unwrap();
    model.create("user", "configmaps", map("d")).unwrap();
    page.continue_token = first.metadata.continue_.clone();
    let second = maps.list(&page).await.unwrap();
    let name =
        |page: &kube::api::ObjectList<ConfigMap>| page.iter().map(ResourceExt::name_any).collect::<Vec<_>>();
    assert_eq!((name(&first), name(&second)), (vec!["a".into(), "b".into()], vec!["c".into()]));
    assert_eq!(first.metadata.resource_version, second.metadata.resource_version);
    assert!(second.metadata.continue_.unwrap_or_default().is_empty());
    model.compact();
    let error = maps.list(&page).await.unwrap_err();
    assert!(
        matches!(&error, kube::Error::Api(status) if status.code == 410 && status.reason == "Expired"),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_watch_at_the_server_that_lags_is_behind_and_a_list_is_not() {
    let model = model();
    let (maps, from) = (maps(&model), model.revision());
    model.lag(Duration::from_secs(20));
    let mut watches = Vec::new();
    for _ in 0..16 {
        watches.push(maps.watch(&params(), &from.to_string()).await.unwrap().boxed());
    }
    model.create("user", "configmaps", map("m")).unwrap();
    assert_eq!(maps.list(&ListParams::default()).await.unwrap().items.len(), 1);
    let began = tokio::time::Instant::now();
    let shown = watches.iter_mut().map(|watch| async {
        assert_eq!(next(watch).await.as_deref(), Some("+m"));
        began.elapsed().as_secs()
    });
    let mut after = futures::future::join_all(shown).await;
    after.sort_unstable();
    after.dedup();
    assert_eq!(after, [0, 20], "seconds until a watch of either server shows the write");
    model.lag(Duration::from_secs(40));
    model.create("user", "configmaps", map("n")).unwrap();
    model.lag(Duration::ZERO);
    for watch in &mut watches {
        assert_eq!(next(watch).await.as_deref(), Some("+n"));
    }
    assert_eq!(began.elapsed().as_secs(), 20, "it has caught up at once");
}

#[tokio::test(start_paused = true)]
async fn a_compacted_revision_is_gone_by_status_or_by_event_and_open_watches_go_on() {
    let model = model();
    let (maps, from) = (maps(&model), model.revision());
    let mut open = maps.watch(&params(), &from.to_string()).await.unwrap().boxed();
    model.create("user", "configmaps", map("a")).unwrap();
    model.compact();
    assert_eq!(next(&mut open).await.as_deref(), Some("+a"));
    let (mut by_status, mut by_event) = (0, 0);
    for _ in 0..20 {
        match maps.watch(&params(), &from.to_string()).await {
            Err(kube::Error::Api(status)) if status.code == 410 => by_status += 1,
            Ok(watch) => {
                let mut watch = watch.boxed();
                assert_eq!(next(&mut watch).await.as_deref(), Some("410 Expired"));
                assert!(watch.next().await.is_none(), "the watch ends");
                by_event += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(by_status > 0 && by_event > 0, "{by_status} {by_event}");
    assert_eq!(events(&maps, &params(), model.revision()).await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_restore_brings_back_objects_and_revisions_and_cuts_watches() {
    let model = model();
    let maps = maps(&model);
    model.create("user", "configmaps", map("old")).unwrap();
    let (snapshot, at) = (model.snapshot(), model.revision());
    let mut open = maps.watch(&params(), &at.to_string()).await.unwrap().boxed();
    model.create("user", "configmaps", map("lost")).unwrap();
    model.delete("user", "configmaps", Some("n"), "old").unwrap();
    assert_eq!((next(&mut open).await, next(&mut open).await), (Some("+lost".into()), Some("-old".into())));
    model.restore(&snapshot);
    assert!(open.next().await.is_none(), "the watch is cut");
    assert_eq!((names(&model, "configmaps"), model.revision()), (vec!["old".to_owned()], at));
    // From a revision that is in the future now there is nothing until it is reached again.
    let ahead = maps.watch(&params(), &(at + 2).to_string()).await.unwrap();
    let mut ahead = ahead.boxed();
    model.create("user", "configmaps", map("new")).unwrap();
    assert_eq!(next(&mut ahead).await, None);
    let made = model.get("configmaps", Some("n"), "new").unwrap();
    assert_eq!(object::version(&made), at + 1, "the revision of a write that was lost");
    assert_eq!(events(&maps, &params(), at).await, ["+new"]);
    assert_eq!(model.history().len(), 5, "the history keeps what was lost");
}

#[tokio::test(start_paused = true)]
async fn a_cut_ends_the_watches_of_one_user() {
    let model = model();
    let other: Api<ConfigMap> = Api::namespaced(model.client(Direct, "other"), "n");
    let from = model.revision().to_string();
    let mut cut = maps(&model).watch(&params(), &from).await.unwrap().boxed();
    let mut stays = other.watch(&params(), &from).await.unwrap().boxed();
    assert_eq!(model.watchers(), ["user", "other"]);
    model.cut_watches("user");
    model.create("user", "configmaps", map("a")).unwrap();
    assert!(cut.next().await.is_none());
    assert_eq!(next(&mut stays).await.as_deref(), Some("+a"));
}

/// A link that fails requests, responses or events.
struct Failing {
    request: Passage,
    response: Passage,
    event: Passage,
}

impl Link for Failing {
    async fn request(&self, _: &RequestInfo) -> Passage {
        self.request
    }

    async fn response(&self, _: &RequestInfo, _: u16) -> Passage {
        self.response
    }

    async fn event(&self, _: &RequestInfo) -> Passage {
        self.event
    }
}

#[tokio::test(start_paused = true)]
async fn a_link_loses_requests_responses_and_events() {
    let through = Passage::Deliver;
    for (request, response, event, stored) in [
        (Passage::Fail, through, through, false),
        (Passage::Status(429), through, through, false),
        (through, Passage::Fail, through, true),
        (through, Passage::Status(504), through, true),
    ] {
        let model = model();
        let client = model.client(Failing { request, response, event }, "user");
        let made: ConfigMap = serde_json::from_value(map("m")).unwrap();
        let error = Api::namespaced(client, "n").create(&PostParams::default(), &made).await.unwrap_err();
        match (request, response) {
            (Passage::Status(code), _) | (_, Passage::Status(code)) => {
                assert!(matches!(&error, kube::Error::Api(status) if status.code == code), "{error}");
            }
            _ => assert!(!matches!(error, kube::Error::Api(_)), "{error}"),
        }
        assert_eq!(model.get("configmaps", Some("n"), "m").is_some(), stored, "{request:?} {response:?}");
    }
    let model = model();
    let client =
        model.client(Failing { request: through, response: through, event: Passage::Status(503) }, "user");
    let maps: Api<ConfigMap> = Api::namespaced(client, "n");
    let from = model.revision();
    model.create("user", "configmaps", map("a")).unwrap();
    assert_eq!(events(&maps, &params(), from).await, ["503 ServiceUnavailable"]);
}

#[tokio::test(start_paused = true)]
async fn admission_changes_and_refuses_and_sees_a_write_again_if_the_object_has_changed() {
    let model = model();
    model.create("user", "configmaps", map("m")).unwrap();
    model.admit(|attempt| match attempt.object["data"]["a"].as_str() {
        Some("wrong") => Err((403, "no".to_owned())),
        _ => Ok(attempt.object.clone()),
    });
    let (calls, other) = (Arc::new(AtomicUsize::new(0)), model.clone());
    let counter = calls.clone();
    model.admit_async(move |attempt| {
        let (call, other) = (counter.fetch_add(1, Ordering::Relaxed), other.clone());
        Box::pin(async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            if call == 0 {
                recolor(&other, "m", "red");
            }
            let mut object = attempt.object;
            object["data"]["admitted"] = json!(call.to_string());
            Ok(object)
        })
    });
    let maps = maps(&model);
    let patch = |value: &str| Patch::Merge(json!({"data": {"a": value}}));
    let stored = maps.patch("m", &PatchParams::default(), &patch("2")).await.unwrap();
    assert_eq!(stored.labels().get("color").map(String::as_str), Some("red"));
    assert_eq!(stored.data.unwrap().get("admitted").map(String::as_str), Some("1"));
    let error = maps.patch("m", &PatchParams::default(), &patch("wrong")).await.unwrap_err();
    assert!(matches!(&error, kube::Error::Api(status) if status.code == 403), "{error}");
}

#[tokio::test(start_paused = true)]
async fn owners_and_namespaces_take_their_objects_with_them_step_by_step() {
    let model = model();
    let owner = model.create("user", "configmaps", map("owner")).unwrap();
    let owned = |name: &str, owner: &Value| {
        let mut object = map(name);
        object["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "ConfigMap",
            "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}]);
        object
    };
    let child = model.create("user", "configmaps", owned("child", &owner)).unwrap();
    model.create("user", "configmaps", owned("grandchild", &child)).unwrap();
    assert_eq!(model.collect_garbage(), 0);
    model.delete("user", "configmaps", Some("n"), "owner").unwrap();
    assert_eq!((model.collect_garbage(), names(&model, "configmaps")), (1, vec!["grandchild".to_owned()]));
    assert_eq!((model.collect_garbage(), names(&model, "configmaps")), (1, vec![]));

    let mut held = map("held");
    held["metadata"]["finalizers"] = json!(["example.com/held"]);
    model.create("user", "configmaps", held).unwrap();
    let pod = json!({"metadata": {"name": "p", "namespace": "n"}, "spec": {"nodeName": "dpu"}});
    model.create("user", "pods", pod).unwrap();
    model.delete("user", "namespaces", None, "n").unwrap();
    assert_eq!(model.create("user", "configmaps", map("late")).unwrap_err().code, 403);
    assert_eq!((model.collect_garbage(), model.collect_garbage()), (2, 0));
    assert_eq!(
        (model.finish_deletions(|_, node| node == "other"), model.finish_deletions(|_, node| node == "dpu"),),
        (0, 1)
    );
    assert_eq!((names(&model, "pods").len(), model.collect_garbage()), (0, 0));
    model
        .merge("user", "configmaps", (Some("n"), "held", None), json!({"metadata": {"finalizers": null}}))
        .unwrap();
    assert_eq!((model.collect_garbage(), names(&model, "namespaces")), (1, vec![]));
}

#[tokio::test(start_paused = true)]
async fn an_update_that_changes_nothing_is_not_written_whoever_owns_the_fields() {
    let model = model();
    let nodes: Api<Node> = Api::all(model.client(Direct, "user"));
    model
        .create("admin", "nodes", json!({"metadata": {"name": "a"}, "spec": {"unschedulable": true}}))
        .unwrap();
    let version = nodes.get("a").await.unwrap().resource_version();
    for change in [json!({"metadata": {"finalizers": null}}), json!({"spec": {"unschedulable": true}})] {
        let same = nodes.patch("a", &PatchParams::default(), &Patch::Merge(&change)).await.unwrap();
        assert_eq!(same.resource_version(), version, "{change}");
    }
    let change = json!({"metadata": {"labels": {"a": "b"}}});
    let other = nodes.patch("a", &PatchParams::default(), &Patch::Merge(&change)).await.unwrap();
    assert_ne!(other.resource_version(), version);
}

#[tokio::test(start_paused = true)]
async fn pods_are_resized_within_their_class_where_that_is_served() {
    let model = model();
    let container = json!({"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}});
    let pod = json!({"metadata": {"name": "p", "namespace": "n"}, "spec": {"containers": [container, {"name": "d"}]}});
    model.create("user", "pods", pod).unwrap();
    let pods: Api<Pod> = Api::namespaced(model.client(Direct, "user"), "n");
    let resize = async |resources: Value| {
        let container = json!({"name": "c", "image": "other", "resources": resources});
        let patch = Patch::Strategic(json!({"spec": {"containers": [container]}}));
        let answer = pods.patch_subresource("resize", "p", &PatchParams::default(), &patch).await;
        answer.map(|pod| pod.metadata.generation).map_err(|error| match error {
            kube::Error::Api(status) => status.code,
            other => panic!("{other:?}"),
        })
    };
    let more = json!({"requests": {"cpu": "2"}});
    assert_eq!(resize(more.clone()).await, Err(404));
    model.set_more(More { merges_conditions: true, resizes: true, ..More::default() });
    assert_eq!(resize(more).await, Ok(Some(2)));
    let resized = model.get("pods", Some("n"), "p").unwrap();
    let expected = json!({"name": "c", "image": "i", "resources": {"requests": {"cpu": "2"}}});
    assert_eq!(resized["spec"]["containers"], json!([expected, {"name": "d"}]));
    assert_eq!(resize(json!({"limits": {"cpu": "3"}})).await, Ok(Some(3)), "it stays Burstable");
    model
        .create(
            "user",
            "pods",
            json!({"metadata": {"name": "q", "namespace": "n"}, "spec": {"containers": [{"name": "c"}]}}),
        )
        .unwrap();
    let first = json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}});
    let refused =
        pods.patch_subresource("resize", "q", &PatchParams::default(), &Patch::Strategic(first)).await;
    assert!(matches!(refused, Err(kube::Error::Api(status)) if status.code == 422), "it was BestEffort");
}

#[test]
fn a_limit_is_the_request_where_there_is_none_and_both_decide_the_class() {
    let model = model();
    for (number, (resources, requests, class)) in [
        (json!({}), json!(null), "BestEffort"),
        (json!({"requests": {"cpu": "1"}}), json!({"cpu": "1"}), "Burstable"),
        (json!({"limits": {"cpu": "1"}}), json!({"cpu": "1"}), "Burstable"),
        (
            json!({"limits": {"cpu": "1", "memory": "1Gi"}}),
            json!({"cpu": "1", "memory": "1Gi"}),
            "Guaranteed",
        ),
        (
            json!({"limits": {"cpu": "2", "memory": "1Gi"}, "requests": {"cpu": "1"}}),
            json!({"cpu": "1", "memory": "1Gi"}),
            "Burstable",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let pod = json!({"metadata": {"name": format!("p-{number}"), "namespace": "n"},
            "spec": {"containers": [{"name": "c", "resources": resources}]}});
        let made = model.create("user", "pods", pod).unwrap();
        assert_eq!(made["spec"]["containers"][0]["resources"]["requests"], requests, "{resources}");
        assert_eq!(made["status"]["qosClass"], class, "{resources}");
    }
}
