//! Claims: Outrigger's validation compared with the API server's, and what the commands say about a live cluster.

use futures::stream::{self, StreamExt};
use k8s_openapi::api::core::v1::Namespace;
use kube::Client;
use kube::api::Api;
use outrigger_core::{device, keys};
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::tenant::{Tenant, rule_with};
use outrigger_tests::{InWords, create, eventually, holds};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

/// Claims that are made up. At one in a hundred with different results, 99.9 % of runs would find it.
const CLAIMS: u64 = 700;

/// One of several values.
fn one(rng: &mut StdRng, of: &Value) -> Value {
    of.as_array().unwrap().choose(rng).unwrap().clone()
}

/// A value that is mostly good.
fn mostly(rng: &mut StdRng, good: Value, bad: Value) -> Value {
    if rng.random_bool(0.04) { one(rng, &bad) } else { one(rng, &good) }
}

/// A field that some objects have.
fn sometimes(rng: &mut StdRng, object: &mut Value, key: &str, value: impl FnOnce(&mut StdRng) -> Value) {
    if rng.random_bool(0.3) {
        object[key] = value(rng);
    }
}

/// A field that some objects have, with a value that is mostly good.
fn field(rng: &mut StdRng, object: &mut Value, key: &str, good: Value, bad: Value) {
    sometimes(rng, object, key, |rng| mostly(rng, good, bad));
}

/// A list that may be longer than allowed.
fn list(rng: &mut StdRng, max: usize, make: impl Fn(&mut StdRng) -> Value) -> Value {
    if rng.random_bool(0.02) {
        let more = rng.random_range(max..=max + 1);
        return (0..more).map(|_| make(rng)).collect();
    }
    if rng.random_bool(0.01) {
        return one(rng, &json!(["list", {}, [null], [1], null]));
    }
    let count = rng.random_range(0..=3);
    (0..count).map(|_| make(rng)).collect()
}

fn name(rng: &mut StdRng) -> Value {
    let bad = json!(["", "A", "-a", "a.", "x".repeat(64), null, 1, "a/b"]);
    mostly(rng, json!(["a", "b", "c", "d", "e", "f", "a-1", "0"]), bad)
}

fn reference(rng: &mut StdRng) -> Value {
    mostly(rng, json!(["a", "b", "c", "a/x", "b/y"]), json!(["", "/", "a/x/y", "A"]))
}

fn attribute(rng: &mut StdRng) -> Value {
    let (domain, name) = (format!("{}.example.com/a", "x".repeat(60)), format!("a/{}", "x".repeat(33)));
    let bad = json!(["numa", "a/", "/b", "a/1", "a_b/c", domain, "", name]);
    mostly(rng, json!(["dra.example.com/numa", "a/b", "A.b/_c", "a/b/c"]), bad)
}

fn toleration(rng: &mut StdRng) -> Value {
    let mut toleration = json!({});
    let of = &mut toleration;
    field(rng, of, "key", json!(["a", "example.com/a", ""]), json!(["a/b/c", "/a", "a b"]));
    field(rng, of, "operator", json!(["Exists", "Equal", ""]), json!(["In", 1]));
    field(rng, of, "value", json!(["", "a"]), json!(["a b", "x".repeat(64)]));
    field(rng, of, "effect", json!(["NoSchedule", "NoExecute", "None", ""]), json!(["PreferNoSchedule"]));
    field(rng, of, "tolerationSeconds", json!([0, -5, 60]), json!([1.5, "60"]));
    toleration
}

/// What `exactly` and an alternative have in common.
fn devices(rng: &mut StdRng) -> Value {
    let bad = json!(["", "A", "a_b", null, "x".repeat(254)]);
    let class = mostly(rng, json!(["crypto", "gpu.example.com"]), bad);
    let mut request = json!({"deviceClassName": class});
    sometimes(rng, &mut request, "selectors", |rng| {
        list(rng, device::MAX_SELECTORS, |rng| {
            // Only such as compile: what doesn't is the API server's to say.
            let long = format!("device.driver == 'd'{}", " ".repeat(device::MAX_EXPRESSION));
            let good = json!(["true", "device.driver == 'd'"]);
            let expression = mostly(rng, good, json!(["", "  ", long, null, 1]));
            mostly(rng, json!([{"cel": {"expression": expression}}]), json!([{}, {"cel": null}, {"cel": 1}]))
        })
    });
    field(rng, &mut request, "allocationMode", json!(["ExactCount", "All", ""]), json!(["Some", 1]));
    field(rng, &mut request, "count", json!([0, 1, 40]), json!([-1, 1.0, "1", u64::MAX]));
    sometimes(rng, &mut request, "tolerations", |rng| list(rng, 20, toleration));
    sometimes(rng, &mut request, "capacity", |rng| {
        let bad = json!(["x", "", true, "1 Gi", "1e", "--1"]);
        let amount = mostly(rng, json!(["1Gi", 2, "1e3", "-1", null, ".5", "1.k"]), bad);
        let good = json!([{"requests": {"a/b": amount, "?": 1}}, {}, null]);
        mostly(rng, good, json!([1, {"requests": []}]))
    });
    request
}

fn request(rng: &mut StdRng) -> Value {
    let mut request = json!({"name": name(rng)});
    let kind: f64 = rng.random();
    if !(0.7..=0.97).contains(&kind) {
        let mut exactly = devices(rng);
        if rng.random_bool(0.05) {
            exactly["adminAccess"] = one(rng, &json!([true, false, null, "true"]));
        }
        request["exactly"] = mostly(rng, json!([exactly]), json!([null, {}, 1]));
    }
    if (0.65..0.99).contains(&kind) {
        request["firstAvailable"] = list(rng, device::MAX_ALTERNATIVES, |rng| {
            let mut alternative = devices(rng);
            alternative["name"] = mostly(rng, json!(["x", "y", "z", "u", "v", "w"]), json!(["X", ""]));
            alternative
        });
    }
    request
}

fn constraint(rng: &mut StdRng) -> Value {
    let mut constraint = json!({});
    sometimes(rng, &mut constraint, "requests", |rng| list(rng, device::MAX_REQUESTS, reference));
    let which: f64 = rng.random();
    if which < 0.8 {
        constraint["matchAttribute"] = attribute(rng);
    }
    if which > 0.7 && which < 0.97 {
        constraint["distinctAttribute"] = attribute(rng);
    }
    constraint
}

fn configuration(rng: &mut StdRng) -> Value {
    let bad = json!(["", "a_b", null, "x".repeat(64), 1]);
    let driver = mostly(rng, json!(["d.example.com", "D"]), bad);
    let large = |less: usize| json!({"a": "x".repeat(device::MAX_PARAMETERS - less)});
    let good = json!([{}, {"a": [1, {"b": null}]}, large(8)]);
    let parameters = mostly(rng, good, json!([null, [], "x", 1, large(7)]));
    let mut config = json!({});
    sometimes(rng, &mut config, "requests", |rng| list(rng, device::MAX_REQUESTS, reference));
    let opaque = json!([{"driver": driver, "parameters": parameters}]);
    config["opaque"] = mostly(rng, opaque, json!([null, {}, 1]));
    config
}

/// A claim's spec that is made up: about one in two has a fault.
fn spec(seed: u64) -> Value {
    let rng = &mut StdRng::seed_from_u64(seed);
    let mut devices = json!({"requests": list(rng, device::MAX_REQUESTS, request)});
    sometimes(rng, &mut devices, "constraints", |rng| list(rng, device::MAX_CONSTRAINTS, constraint));
    sometimes(rng, &mut devices, "config", |rng| list(rng, device::MAX_CONFIGURATIONS, configuration));
    mostly(rng, json!([{"devices": devices}]), json!([{}, {"devices": null}, {"devices": []}]))
}

/// Takes the fields with these names out of a claim's spec.
pub(crate) fn without(spec: &mut Value, fields: &[&str]) {
    match spec {
        Value::Object(map) => {
            map.retain(|key, _| !fields.contains(&key.as_str()));
            map.values_mut().for_each(|value| without(value, fields));
        }
        Value::Array(list) => list.iter_mut().for_each(|value| without(value, fields)),
        _ => {}
    }
}

/// Everything that we would refuse in a namespace that doesn't let anybody reach others' devices.
fn ours(spec: &Value) -> Vec<String> {
    let reaching =
        device::subrequests(spec).into_iter().filter(|(_, request)| request["adminAccess"] == true);
    let reaching = reaching.map(|(path, _)| format!("spec.{path}.adminAccess: reaches others' devices"));
    device::faults(spec, "spec").iter().map(ToString::to_string).chain(reaching).collect()
}

/// What the API server says; `None` where it takes the claim.
async fn theirs(client: &Client, spec: &Value) -> Option<String> {
    let body = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"generateName": "c-", "namespace": "claims-alone"}, "spec": spec});
    let uri = "/apis/resource.k8s.io/v1/namespaces/claims-alone/resourceclaims?dryRun=All";
    let request = http::Request::post(uri).header("content-type", "application/json");
    match client.request_text(request.body(body.to_string().into_bytes()).unwrap()).await {
        Ok(_) => None,
        Err(kube::Error::Api(status)) if matches!(status.code, 400 | 422) => Some(status.message.clone()),
        Err(other) => panic!("{other}"),
    }
}

/// The same spec without one of its parts, in all ways.
fn smaller(spec: &Value) -> Vec<Value> {
    let parts: Vec<(String, &Value)> = match spec {
        Value::Object(map) => map.iter().map(|(key, part)| (key.clone(), part)).collect(),
        Value::Array(list) => list.iter().enumerate().map(|(i, part)| (i.to_string(), part)).collect(),
        _ => Vec::new(),
    };
    let mut found = Vec::new();
    for (key, part) in parts {
        let mut less = spec.clone();
        match &mut less {
            Value::Object(map) => drop(map.remove(&key)),
            Value::Array(list) => drop(list.remove(key.parse().unwrap())),
            _ => {}
        }
        found.push(less);
        for part in smaller(part) {
            let mut less = spec.clone();
            *less.pointer_mut(&format!("/{}", key.replace('~', "~0").replace('/', "~1"))).unwrap() = part;
            found.push(less);
        }
    }
    found
}

/// Whether both say the same of it.
async fn agrees(client: &Client, spec: &Value) -> bool {
    ours(spec).is_empty() == theirs(client, spec).await.is_none()
}

#[tokio::test]
async fn claims_are_validated_as_the_api_server_validates_them() {
    let infra = &Outrigger::shared().await.plane.infra;
    let client = infra.client().await;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace = json!({"metadata": {"name": "claims-alone"}});
    create(&namespaces, &namespace).await.unwrap();
    let seed: u64 =
        std::env::var("CLAIMS_SEED").map_or_else(|_| rand::random::<u32>().into(), |s| s.parse().unwrap());
    let mut specs: Vec<Value> = (seed..seed + CLAIMS).map(spec).collect();
    // More tolerations than the API's documentation allows, which no API server counts.
    let many: Vec<Value> = (0..17).map(|i| json!({"key": format!("t{i}"), "operator": "Exists"})).collect();
    let many = json!({"name": "a", "exactly": {"deviceClassName": "crypto", "tolerations": many}});
    specs.push(json!({"devices": {"requests": [many]}}));
    // The API server drops these fields where their gate is off, and judges the rest.
    for (gate, fields) in [
        ("DRADeviceTaints", ["tolerations"].as_slice()),
        ("DRAConsumableCapacity", &["capacity", "distinctAttribute"]),
    ] {
        if infra.lacks(gate) {
            println!("claims without {}: the feature gate {gate} is off", fields.join(", "));
            specs.iter_mut().for_each(|spec| without(spec, fields));
        }
    }
    // Before Kubernetes 1.37 a domain of an attribute may have capital letters, which later API servers refuse.
    let minor: u32 = client.apiserver_version().await.unwrap().minor.parse().unwrap();
    if minor >= 37 {
        for spec in &mut specs {
            *spec = serde_json::from_str(&spec.to_string().replace("\"A.b/", "\"a.b/")).unwrap();
        }
    }
    let refused = specs.iter().filter(|spec| !ours(spec).is_empty()).count();
    // Else the comparison would say little.
    assert!(refused > specs.len() / 5 && refused < specs.len() * 4 / 5, "{refused} of {}", specs.len());
    let verdicts: Vec<bool> =
        stream::iter(&specs).map(|spec| agrees(&client, spec)).buffered(8).collect().await;
    let Some(at) = verdicts.iter().position(|agree| !agree) else {
        println!("{} claims, {refused} refused by both", specs.len());
        return;
    };
    let mut least = specs[at].clone();
    'less: loop {
        for less in smaller(&least) {
            if !agrees(&client, &less).await {
                least = less;
                continue 'less;
            }
        }
        break;
    }
    let theirs = theirs(&client, &least).await;
    panic!("CLAIMS_SEED={seed}: {least}\nours: {:?}\ntheirs: {theirs:?}", ours(&least));
}

#[tokio::test]
async fn claims_are_listed_with_who_uses_them_and_why_they_wait() {
    let t = Tenant::new(Outrigger::shared().await, "claims", &[("a", 1)]).await;
    let class = json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "claims-regex"},
        "spec": {"selectors": [{"cel": {"expression": "device.driver == 'claims.example.com'"}}]}});
    let dpu = t.node("a-dpu1");
    let slice = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "claims-dpu"},
        "spec": {"driver": "claims.example.com", "nodeName": dpu, "devices": [{"name": "r0"}],
            "pool": {"name": dpu, "generation": 1, "resourceSliceCount": 1}}});
    t.outrigger.plane.infra.apply(&[class, slice]).unwrap();
    t.set(json!({"deviceClasses": ["claims-regex"]})).await.unwrap();
    let request = json!({"name": "d", "exactly": {"deviceClassName": "claims-regex"}});
    let spec = json!({"devices": {"requests": [request]}});
    let object = |kind: &str, name: &str, spec: &Value| {
        json!({"apiVersion": "resource.k8s.io/v1", "kind": kind,
            "metadata": {"name": name, "namespace": t.namespace}, "spec": spec})
    };
    eventually("the webhook knows the Tenant", || async {
        let objects = [
            object("ResourceClaimTemplate", "regex", &json!({"spec": spec})),
            object("ResourceClaim", "idle", &spec),
        ];
        t.outrigger.plane.infra.apply(&objects).in_words()
    })
    .await;
    t.rule(
        "firewall",
        rule_with(
            "/template/spec/resourceClaims",
            json!([{"name": "regex", "resourceClaimTemplateName": "regex"}]),
        ),
    )
    .await;
    t.web("web").await;
    let companion = t.companion().await;
    let name = companion.metadata.name.unwrap();
    let kubeconfig = format!("--kubeconfig={}", t.outrigger.plane.infra.kubeconfig.display());
    let ask = ["claims", &kubeconfig, "--tenant", "claims"];
    let claims = eventually("the companion runs with its device", || async {
        let (code, report) = t.outrigger.report(&ask)?;
        holds(code == Some(0), report.to_string())?;
        let claims = report["claims"].as_array().unwrap().clone();
        let used = claims.iter().any(|claim| claim["state"] == "InUse");
        if claims.len() == 2 && used { Ok(claims) } else { Err(report.to_string()) }
    })
    .await;
    let used = claims.iter().find(|claim| claim["state"] == "InUse").unwrap();
    assert_eq!(
        (&used["node"], &used["pods"], &used["rule"]),
        (&json!(dpu), &json!([name]), &json!("firewall"))
    );
    assert_eq!(
        used["devices"],
        json!([{"request": "d", "driver": "claims.example.com", "pool": dpu, "device": "r0"}])
    );
    assert_eq!(used["workload"], json!(companion.metadata.labels.unwrap()[keys::WORKLOAD]));
    let idle = claims.iter().find(|claim| claim["name"] == "idle").unwrap();
    assert_eq!(
        (&idle["state"], idle["reason"].as_str().unwrap().contains("no Pod uses it")),
        (&json!("Pending"), true)
    );
    let table = String::from_utf8(t.outrigger.output(&ask).unwrap().stdout).unwrap();
    assert!(table.starts_with(&format!("tenant claims (namespace {})\nCLAIM", t.namespace)), "{table}");

    // The same cluster has nothing that `outrigger check` would call an error of this tenant's.
    let (_, report) = t.outrigger.report(&["check", &kubeconfig]).unwrap();
    let own = report["findings"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|f| f["object"]["namespace"] == json!(t.namespace));
    assert_eq!(own.filter(|f| f["severity"] == "error").collect::<Vec<_>>(), Vec::<&Value>::new());
}
