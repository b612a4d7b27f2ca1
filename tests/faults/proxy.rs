//! The proxy itself: that each fault does what it says. What follows from faults is for the other tests.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams, ListParams, WatchEvent, WatchParams};
use kube::{Client, ResourceExt};
use outrigger_tests::control_plane::config;
use outrigger_tests::faults::{Fault, Matching, Moment, Next, Proxy, Verb};
use outrigger_tests::{InWords, create, dry_run, eventually, merge};
use parking_lot::Mutex;
use serde_json::json;

const MAPS: &str = "configmaps";

/// A namespace, and its ConfigMaps through a proxy and straight.
struct Stage {
    proxy: Proxy,
    through: Api<ConfigMap>,
    straight: Api<ConfigMap>,
}

impl Stage {
    async fn new(namespace: &str) -> Self {
        let plane = &crate::faults::stage::Stage::shared().await.o.plane;
        let (infra, dir) = (&plane.infra, &plane.dir);
        infra.kubectl(&["create", "namespace", namespace]).unwrap();
        infra.kubectl(&["create", "serviceaccount", "caller", "-n", namespace]).unwrap();
        let account = format!("--serviceaccount={namespace}:caller");
        let admin = ["rolebinding", "caller", "-n", namespace, "--clusterrole=admin", &account];
        infra.kubectl(&[&["create"], &admin[..]].concat()).unwrap();
        let file = dir.join(format!("{namespace}.kubeconfig"));
        infra.service_account(namespace, "caller", &file).unwrap();
        let proxy = Proxy::start(infra, dir).unwrap();
        proxy.through(&file).unwrap();
        let mut config = config(&file).await;
        config.default_retry = false;
        let client = Client::try_from(config).unwrap();
        let straight = Api::namespaced(infra.client().await, namespace);
        let this = Self { proxy, through: Api::namespaced(client, namespace), straight };
        eventually("the caller has its role", || async { this.through.list(&ListParams::default()).await })
            .await;
        this
    }

    async fn create(&self, name: &str) -> Result<ConfigMap, kube::Error> {
        create(&self.through, &map(name)).await
    }

    /// Creates it without the proxy.
    async fn put(&self, name: &str) {
        create(&self.straight, &map(name)).await.unwrap();
    }
}

fn map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}, "data": {"a": "b"}})).unwrap()
}

fn code(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_are_kept_and_hooks_see_writes_on_both_sides() {
    let stage = Stage::new("proxy-calls").await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let recorded = seen.clone();
    stage.proxy.on_write(move |call, moment| {
        recorded.lock().push(format!("{moment:?} {call}"));
        let dropped = match moment {
            Moment::Before => call.name.as_deref() == Some("never"),
            Moment::After => call.name.as_deref() == Some("unknown"),
        };
        if dropped { Next::Drop } else { Next::GoOn }
    });
    stage.create("one").await.unwrap();
    dry_run(&stage.through, &map("two")).await.unwrap();
    assert_eq!(code(&stage.create("one").await.unwrap_err()), Some(409));
    stage.create("never").await.unwrap_err();
    stage.create("unknown").await.unwrap_err();
    assert_eq!(stage.straight.get_opt("never").await.unwrap(), None);
    assert!(stage.straight.get_opt("unknown").await.unwrap().is_some());
    stage.through.delete("one", &DeleteParams::default()).await.unwrap();
    let create = |name: &str, status: &str| format!("create configmaps proxy-calls/{name}{status}");
    let (one, unknown) = (create("one", ""), create("unknown", ""));
    assert_eq!(
        *seen.lock(),
        [
            format!("Before {one}"),
            format!("After {one} -> 201"),
            format!("Before {one}"),
            format!("After {one} -> 409"),
            format!("Before {}", create("never", "")),
            format!("Before {unknown}"),
            format!("After {unknown} -> 201"),
            "Before delete configmaps proxy-calls/one".to_owned(),
            "After delete configmaps proxy-calls/one -> 200".to_owned(),
        ]
    );
    let creates = stage.proxy.calls_of(&Matching { verbs: vec![Verb::Create], ..Matching::all() });
    let statuses: Vec<_> =
        creates.iter().map(|call| (call.name.as_deref().unwrap(), call.dry_run, call.status)).collect();
    assert_eq!(
        statuses,
        [
            ("one", false, Some(201)),
            ("two", true, Some(201)),
            ("one", false, Some(409)),
            ("never", false, None),
            ("unknown", false, Some(201))
        ]
    );
    assert_eq!(creates[0].body.as_ref().unwrap()["data"]["a"], "b");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_and_answers_are_lost_held_and_replaced() {
    let stage = Stage::new("proxy-requests").await;
    let proxy = &stage.proxy;
    let creates = || Matching::verb(Verb::Create, MAPS);
    // Refused, and not forwarded.
    let refused = proxy.fault(creates().times(1), Fault::Status { code: 503, retry_after: Some(1) });
    assert_eq!(code(&stage.create("refused").await.unwrap_err()), Some(503));
    assert_eq!((stage.straight.get_opt("refused").await.unwrap(), proxy.hits(refused)), (None, 1));
    stage.create("refused").await.unwrap();
    // Done, whatever the caller hears.
    for (name, fault) in [("dropped", Fault::DropAnswer), ("replaced", Fault::ReplaceAnswer { code: 504 })] {
        proxy.fault(creates().name(name).times(1), fault);
        let error = stage.create(name).await.unwrap_err();
        assert_eq!(code(&error), (name == "replaced").then_some(504), "{error}");
        assert!(stage.straight.get_opt(name).await.unwrap().is_some(), "{name}");
    }
    // Not done.
    proxy.fault(creates().name("cut").times(1), Fault::Cut);
    stage.create("cut").await.unwrap_err();
    assert_eq!(stage.straight.get_opt("cut").await.unwrap(), None);
    // Neither, for as long as it likes: others are served meanwhile.
    let hole = proxy.fault(creates().name("hole"), Fault::BlackHole);
    let (held, request) = (
        proxy.fault(creates().name("held"), Fault::HoldAnswer(None)),
        proxy.fault(creates().name("request"), Fault::HoldRequest),
    );
    let create = |name: &'static str| {
        let through = stage.through.clone();
        tokio::spawn(async move { create(&through, &map(name)).await.map(drop) })
    };
    let tasks = ["hole", "held", "request"].map(create);
    for id in [hole, held, request] {
        proxy.hit(id).await;
    }
    eventually("the one whose answer is held is there", || async {
        let found = stage.straight.get_opt("held").await.in_words()?;
        found.map(drop).ok_or_else(|| "it isn't".to_owned())
    })
    .await;
    assert!(tasks.iter().all(|task| !task.is_finished()));
    assert_eq!(stage.straight.get_opt("request").await.unwrap(), None);
    proxy.clear();
    let [hole, held, request] = tasks;
    held.await.unwrap().unwrap();
    request.await.unwrap().unwrap();
    assert!(!hole.is_finished(), "what has fallen into it stays there");
    hole.abort();
    assert_eq!(stage.straight.get_opt("hole").await.unwrap(), None);
    // Slow, and in pages.
    proxy.fault(
        Matching::verb(Verb::Get, MAPS).times(1),
        Fault::SlowBytes { bytes: 100, every: Duration::from_millis(20) },
    );
    let began = Instant::now();
    stage.through.get("held").await.unwrap();
    assert!(began.elapsed() >= Duration::from_millis(20));
    proxy.fault(Matching { resource: Some(MAPS.into()), ..Matching::all() }, Fault::Pages(2));
    let page = stage.through.list(&ListParams::default()).await.unwrap();
    assert_eq!(page.items.len(), 2);
    assert!(page.metadata.continue_.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_lag_freeze_and_end_while_they_are_open() {
    let stage = Stage::new("proxy-watches").await;
    let proxy = &stage.proxy;
    let since = stage.straight.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    let names = || Matching::watches(MAPS);
    let mut watch = Box::pin(stage.through.watch(&WatchParams::default(), &since).await.unwrap());
    let mut next = async || loop {
        let event = watch.next().await;
        if !matches!(event, Some(Ok(WatchEvent::Bookmark(_)))) {
            return event.map(|event| match event? {
                WatchEvent::Added(map) | WatchEvent::Modified(map) => Ok(map.name_any()),
                WatchEvent::Error(status) => Err(kube::Error::Api(status)),
                other => panic!("{other:?}"),
            });
        }
    };
    let soon = Duration::from_millis(300);
    stage.put("open").await;
    assert_eq!(next().await.unwrap().unwrap(), "open");
    let frozen = proxy.fault(names(), Fault::FreezeWatch);
    stage.put("frozen").await;
    assert!(tokio::time::timeout(soon, next()).await.is_err());
    proxy.remove(frozen);
    assert_eq!(next().await.unwrap().unwrap(), "frozen");
    let lag = proxy.fault(names(), Fault::LagWatch(soon));
    let began = Instant::now();
    stage.put("late").await;
    assert_eq!(next().await.unwrap().unwrap(), "late");
    assert!(began.elapsed() >= soon);
    proxy.remove(lag);
    proxy.fault(names().times(1), Fault::Expire);
    assert_eq!(code(&next().await.unwrap().unwrap_err()), Some(410));
    assert!(next().await.is_none());

    // The client may still take the connection of the watch that has ended, which the proxy has closed.
    let open = async || {
        for _ in 0..10 {
            match stage.through.watch(&WatchParams::default(), &since).await {
                Ok(watch) => return Box::pin(watch),
                Err(kube::Error::Service(_)) => tokio::time::sleep(Duration::from_millis(50)).await,
                Err(error) => panic!("{error}"),
            }
        }
        panic!("no connection to the proxy");
    };
    // In half: what came before is whole.
    let mut watch = open().await;
    for _ in 0..3 {
        watch.next().await.unwrap().unwrap();
    }
    proxy.fault(names().times(1), Fault::TruncateWatch);
    merge(&stage.straight, "open", json!({"data": {"a": "c"}})).await.unwrap();
    let broken = watch.next().await;
    assert!(!matches!(broken, Some(Ok(_))), "{broken:?}");
    // Reset.
    let mut watch = open().await;
    watch.next().await.unwrap().unwrap();
    proxy.fault(names().times(1), Fault::Cut);
    let mut ended = watch.next().await;
    while matches!(ended, Some(Ok(_))) {
        ended = watch.next().await;
    }
    // Silent, for ever.
    let mut watch = open().await;
    for _ in 0..4 {
        watch.next().await.unwrap().unwrap();
    }
    let hole = proxy.fault(names().times(1), Fault::BlackHole);
    proxy.hit(hole).await;
    proxy.clear();
    stage.put("unseen").await;
    assert!(tokio::time::timeout(soon, watch.next()).await.is_err());
}
