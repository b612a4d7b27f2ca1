//! Requests that are wrong, or about what is rare.

use serde_json::{Value, json};

use crate::model::operations::path;
use crate::model::pair::{Pair, delete, get, patch, post, put};

pub(crate) async fn check(pair: &mut Pair) {
    wrong_objects(pair).await;
    wrong_requests(pair).await;
    deletions(pair).await;
    namespaces(pair).await;
}

fn map(metadata: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
}

async fn wrong_objects(pair: &mut Pair) {
    let maps = path(0);
    for metadata in [
        json!({}),
        json!({"name": "Upper"}),
        json!({"name": "a_b"}),
        json!({"name": "x", "namespace": "other"}),
        json!({"name": "x", "resourceVersion": "1"}),
        json!({"name": "x", "labels": {"a": "-"}}),
        json!({"name": "x", "labels": {"": "a"}}),
        json!({"generateName": "Upper-"}),
        json!({"generateName": "generated-", "labels": {"compared": "no"}}),
        json!({"name": "edge", "generation": 7, "uid": "mine", "deletionTimestamp": "2026-01-02T03:04:05Z", "labels": {},
            "finalizers": [], "annotations": {"a": ""}}),
    ] {
        pair.check(&format!("create {metadata}"), |_| post(&maps, &map(metadata.clone()))).await;
    }
    let lease = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "wrong"}});
    pair.check("a wrong kind", |_| post(&path(1), &lease)).await;
    let absent = "/api/v1/namespaces/absent/configmaps";
    pair.check("create in an absent namespace", |_| post(absent, &map(json!({"name": "x"})))).await;
    for (metadata, kind) in [(json!({"name": "other"}), 0), (json!({}), 0), (json!({"name": "put"}), 1)] {
        let at = format!("{}/put", path(kind));
        let body = json!({"metadata": metadata, "spec": {"holderIdentity": "h"}});
        let body = if kind == 0 { map(metadata.clone()) } else { body };
        pair.check(&format!("put {metadata}"), |_| put(&at, &body)).await;
    }
    for version in ["", "1"] {
        let at = format!("{}/absent", path(1));
        let lease = json!({"metadata": {"name": "absent", "resourceVersion": version}, "spec": {}});
        pair.check(&format!("put an absent lease of version {version}"), |_| put(&at, &lease)).await;
    }
    let at = format!("{maps}/edge");
    for metadata in [
        json!({"name": "other"}),
        json!({"namespace": "other"}),
        json!({"uid": "other"}),
        json!({"resourceVersion": ""}),
        json!({"resourceVersion": "x"}),
        json!({"generation": 5}),
        json!({"creationTimestamp": null}),
        json!({"labels": {"a": "-"}}),
    ] {
        let change = json!({"metadata": metadata});
        pair.check(&format!("patch {metadata}"), |_| patch(&at, "merge-patch+json", &change)).await;
    }
    pair.check("put a foreign uid", |_| put(&at, &map(json!({"name": "edge", "uid": "other"})))).await;
}

async fn wrong_requests(pair: &mut Pair) {
    let maps = path(0);
    for query in [
        "?fieldSelector=data.a=1",
        "?labelSelector=a+within+(b)",
        "?limit=1&continue=wrong",
        "?limit=x",
        "?resourceVersion=x",
        "?resourceVersion=99999999999",
        "?labelSelector=none&resourceVersion=0",
    ] {
        pair.check(&format!("list {query}"), |_| get(&format!("{maps}{query}"))).await;
    }
    let at = format!("{maps}/edge");
    for (kind, body) in [
        ("merge-patch+json", json!([])),
        ("json-patch+json", json!({})),
        ("json-patch+json", json!([{"op": "remove", "path": "/data/none"}])),
        ("json-patch+json", json!([{"op": "test", "path": "/metadata/name", "value": "x"}])),
        ("unknown+json", json!({})),
    ] {
        pair.check(&format!("{kind} {body}"), |_| patch(&at, kind, &body)).await;
    }
    for path in [
        "/api/v1/namespaces/compared/unknowns",
        "/apis/unknown.example/v1/unknowns",
        "/apis/workload.universe.nvidia.com/v1alpha1/namespaces/compared/unknowns",
        "/api/v1/nodes/absent",
        "/api/v1/namespaces/absent/configmaps/x",
        "/api/v1/namespaces/absent/configmaps",
    ] {
        pair.check(&format!("get {path}"), |_| get(path)).await;
    }
    pair.check("delete what is absent", |_| delete(&format!("{maps}/none"), &json!({}))).await;
    pair.check("status of a kind without", |_| {
        patch(&format!("{at}/status"), "merge-patch+json", &json!({}))
    })
    .await;
}

async fn deletions(pair: &mut Pair) {
    let at = format!("{}/held", path(0));
    let held = map(json!({"name": "held", "finalizers": ["example.com/a", "example.com/b"]}));
    pair.check("create", |_| post(&path(0), &held)).await;
    pair.check("delete", |_| delete(&at, &json!({}))).await;
    pair.check("delete again", |_| delete(&at, &json!({}))).await;
    for finalizers in [json!(["example.com/a", "example.com/c"]), json!(["example.com/a"]), json!(null)] {
        let change = json!({"metadata": {"finalizers": finalizers}});
        pair.check(&format!("finalizers {finalizers}"), |_| patch(&at, "merge-patch+json", &change)).await;
    }
    pair.check("get what is gone", |_| get(&at)).await;
    for name in ["edge", "put"] {
        let at = format!("{}/{name}", path(0));
        pair.check("delete", |_| delete(&at, &json!({}))).await;
    }
}

async fn namespaces(pair: &mut Pair) {
    let namespaces = "/api/v1/namespaces";
    let at = "/api/v1/namespaces/leaving";
    pair.check("create", |_| post(namespaces, &json!({"metadata": {"name": "Wrong"}}))).await;
    pair.check("create", |_| post(namespaces, &json!({"metadata": {"name": "leaving"}}))).await;
    let maps = format!("{at}/configmaps");
    pair.check("create", |_| post(&maps, &map(json!({"name": "held", "finalizers": ["example.com/held"]}))))
        .await;
    let change = json!({"metadata": {"labels": {"kubernetes.io/metadata.name": "other", "x": "y"}}});
    pair.check("label", |_| patch(at, "merge-patch+json", &change)).await;
    pair.check("delete a namespace", |_| delete(at, &json!({}))).await;
    pair.check("create in a terminating namespace", |_| post(&maps, &map(json!({"name": "late"})))).await;
    let change = json!({"metadata": {"labels": {"x": "y"}}});
    let held = format!("{maps}/held");
    pair.check("patch in a terminating namespace", |_| patch(&held, "merge-patch+json", &change)).await;
}
