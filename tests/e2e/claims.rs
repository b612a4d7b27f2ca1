//! Claims: Outrigger's validation compared with the API server's, and what the commands say about a live cluster.

use futures::stream::{self, StreamExt};
use k8s_openapi::api::core::v1::Namespace;
use kube::Client;
use kube::api::{Api, PostParams};
use outrigger_core::{device, keys};
use outrigger_tests::eventually;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::tenant::{Tenant, rule_with};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::{Map, Value, json};

/// Claims that are made up. At one in a hundred with different results, 99.9 % of runs would find it.
const CLAIMS: u64 = 700;

/// One of several values.
fn one(rng: &mut StdRng, of: &[Value]) -> Value {
    of.choose(rng).unwrap().clone()
}

/// A value that is mostly good.
fn mostly(rng: &mut StdRng, good: &[Value], bad: &[Value]) -> Value {
    if rng.random_bool(0.04) { one(rng, bad) } else { one(rng, good) }
}

fn sometimes(
    rng: &mut StdRng,
    object: &mut Map<String, Value>,
    key: &str,
    value: impl FnOnce(&mut StdRng) -> Value,
) {
    if rng.random_bool(0.3) {
        let value = value(rng);
        object.insert(key.to_owned(), value);
    }
}

/// A list that may be longer than allowed.
fn list(rng: &mut StdRng, max: usize, make: impl Fn(&mut StdRng) -> Value) -> Value {
    if rng.random_bool(0.02) {
        let more = rng.random_range(max..=max + 1);
        return (0..more).map(|_| make(rng)).collect();
    }
    if rng.random_bool(0.01) {
        return one(rng, &[json!("list"), json!({}), json!([null]), json!([1]), Value::Null]);
    }
    let count = rng.random_range(0..=3);
    (0..count).map(|_| make(rng)).collect()
}

fn name(rng: &mut StdRng) -> Value {
    let long = json!("x".repeat(64));
    mostly(
        rng,
        &["a", "b", "c", "d", "e", "f", "a-1", "0"].map(Value::from),
        &[json!(""), json!("A"), json!("-a"), json!("a."), long, Value::Null, json!(1), json!("a/b")],
    )
}

fn reference(rng: &mut StdRng) -> Value {
    mostly(rng, &["a", "b", "c", "a/x", "b/y"].map(Value::from), &["", "/", "a/x/y", "A"].map(Value::from))
}

fn attribute(rng: &mut StdRng) -> Value {
    let long = format!("{}.example.com/a", "x".repeat(60));
    mostly(
        rng,
        &["dra.example.com/numa", "a/b", "A.b/_c", "a/b/c"].map(Value::from),
        &[
            json!("numa"),
            json!("a/"),
            json!("/b"),
            json!("a/1"),
            json!("a_b/c"),
            json!(long),
            json!(""),
            json!(format!("a/{}", "x".repeat(33))),
        ],
    )
}

fn toleration(rng: &mut StdRng) -> Value {
    let mut toleration = Map::new();
    sometimes(rng, &mut toleration, "key", |rng| {
        mostly(rng, &["a", "example.com/a", ""].map(Value::from), &["a/b/c", "/a", "a b"].map(Value::from))
    });
    sometimes(rng, &mut toleration, "operator", |rng| {
        mostly(rng, &["Exists", "Equal", ""].map(Value::from), &[json!("In"), json!(1)])
    });
    sometimes(rng, &mut toleration, "value", |rng| {
        mostly(rng, &["", "a"].map(Value::from), &[json!("a b"), json!("x".repeat(64))])
    });
    sometimes(rng, &mut toleration, "effect", |rng| {
        mostly(rng, &["NoSchedule", "NoExecute", "None", ""].map(Value::from), &[json!("PreferNoSchedule")])
    });
    sometimes(rng, &mut toleration, "tolerationSeconds", |rng| {
        mostly(rng, &[json!(0), json!(-5), json!(60)], &[json!(1.5), json!("60")])
    });
    Value::Object(toleration)
}

/// What `exactly` and an alternative have in common.
fn devices(rng: &mut StdRng) -> Map<String, Value> {
    let mut request = Map::new();
    let class = mostly(
        rng,
        &["crypto", "gpu.example.com"].map(Value::from),
        &[json!(""), json!("A"), json!("a_b"), Value::Null, json!("x".repeat(254))],
    );
    request.insert("deviceClassName".to_owned(), class);
    sometimes(rng, &mut request, "selectors", |rng| {
        list(rng, device::MAX_SELECTORS, |rng| {
            // Only such as compile: what doesn't is the API server's to say.
            let long = format!("device.driver == 'd'{}", " ".repeat(device::MAX_EXPRESSION));
            let expression = mostly(
                rng,
                &["true", "device.driver == 'd'"].map(Value::from),
                &[json!(""), json!("  "), json!(long), Value::Null, json!(1)],
            );
            mostly(
                rng,
                &[json!({"cel": {"expression": expression}})],
                &[json!({}), json!({"cel": null}), json!({"cel": 1})],
            )
        })
    });
    sometimes(rng, &mut request, "allocationMode", |rng| {
        mostly(rng, &["ExactCount", "All", ""].map(Value::from), &[json!("Some"), json!(1)])
    });
    sometimes(rng, &mut request, "count", |rng| {
        mostly(rng, &[json!(0), json!(1), json!(40)], &[json!(-1), json!(1.0), json!("1"), json!(u64::MAX)])
    });
    sometimes(rng, &mut request, "tolerations", |rng| list(rng, 20, toleration));
    sometimes(rng, &mut request, "capacity", |rng| {
        let amount = mostly(
            rng,
            &[json!("1Gi"), json!(2), json!("1e3"), json!("-1"), Value::Null, json!(".5"), json!("1.k")],
            &[json!("x"), json!(""), json!(true), json!("1 Gi"), json!("1e"), json!("--1")],
        );
        mostly(
            rng,
            &[json!({"requests": {"a/b": amount, "?": 1}}), json!({}), Value::Null],
            &[json!(1), json!({"requests": []})],
        )
    });
    request
}

fn request(rng: &mut StdRng) -> Value {
    let mut request = Map::new();
    let name = name(rng);
    request.insert("name".to_owned(), name);
    let kind: f64 = rng.random();
    if !(0.7..=0.97).contains(&kind) {
        let mut exactly = devices(rng);
        if rng.random_bool(0.05) {
            let admin = one(rng, &[json!(true), json!(false), Value::Null, json!("true")]);
            exactly.insert("adminAccess".to_owned(), admin);
        }
        request.insert(
            "exactly".to_owned(),
            mostly(rng, &[Value::Object(exactly)], &[Value::Null, json!({}), json!(1)]),
        );
    }
    if (0.65..0.99).contains(&kind) {
        let alternatives = list(rng, device::MAX_ALTERNATIVES, |rng| {
            let mut alternative = devices(rng);
            let name =
                mostly(rng, &["x", "y", "z", "u", "v", "w"].map(Value::from), &["X", ""].map(Value::from));
            alternative.insert("name".to_owned(), name);
            Value::Object(alternative)
        });
        request.insert("firstAvailable".to_owned(), alternatives);
    }
    Value::Object(request)
}

fn constraint(rng: &mut StdRng) -> Value {
    let mut constraint = Map::new();
    sometimes(rng, &mut constraint, "requests", |rng| list(rng, device::MAX_REQUESTS, reference));
    let which: f64 = rng.random();
    if which < 0.8 {
        let name = attribute(rng);
        constraint.insert("matchAttribute".to_owned(), name);
    }
    if which > 0.7 && which < 0.97 {
        let name = attribute(rng);
        constraint.insert("distinctAttribute".to_owned(), name);
    }
    Value::Object(constraint)
}

fn configuration(rng: &mut StdRng) -> Value {
    let driver = mostly(
        rng,
        &["d.example.com", "D"].map(Value::from),
        &[json!(""), json!("a_b"), Value::Null, json!("x".repeat(64)), json!(1)],
    );
    let large = json!({"a": "x".repeat(device::MAX_PARAMETERS - 8)});
    let larger = json!({"a": "x".repeat(device::MAX_PARAMETERS - 7)});
    let parameters = mostly(
        rng,
        &[json!({}), json!({"a": [1, {"b": null}]}), large],
        &[Value::Null, json!([]), json!("x"), json!(1), larger],
    );
    let opaque = json!({"driver": driver, "parameters": parameters});
    let mut config = Map::new();
    sometimes(rng, &mut config, "requests", |rng| list(rng, device::MAX_REQUESTS, reference));
    config.insert("opaque".to_owned(), mostly(rng, &[opaque], &[Value::Null, json!({}), json!(1)]));
    Value::Object(config)
}

/// A claim's spec that is made up: about one in two has a fault.
fn spec(seed: u64) -> Value {
    let rng = &mut StdRng::seed_from_u64(seed);
    let mut devices = Map::new();
    let requests = list(rng, device::MAX_REQUESTS, request);
    devices.insert("requests".to_owned(), requests);
    sometimes(rng, &mut devices, "constraints", |rng| list(rng, device::MAX_CONSTRAINTS, constraint));
    sometimes(rng, &mut devices, "config", |rng| list(rng, device::MAX_CONFIGURATIONS, configuration));
    mostly(
        rng,
        &[json!({"devices": devices})],
        &[json!({}), json!({"devices": null}), json!({"devices": []})],
    )
}

/// Everything that we would refuse in a namespace that doesn't let anybody reach others' devices.
fn ours(spec: &Value) -> Vec<String> {
    let faults = device::faults(spec, "spec").into_iter().chain(device::admin_access(spec, "spec"));
    faults.map(|fault| fault.to_string()).collect()
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
    let mut found = Vec::new();
    match spec {
        Value::Object(map) => {
            for (key, value) in map {
                let mut less = map.clone();
                less.remove(key);
                found.push(Value::Object(less));
                for value in smaller(value) {
                    let mut less = map.clone();
                    less.insert(key.clone(), value);
                    found.push(Value::Object(less));
                }
            }
        }
        Value::Array(list) => {
            for (i, value) in list.iter().enumerate() {
                let mut less = list.clone();
                less.remove(i);
                found.push(Value::Array(less));
                for value in smaller(value) {
                    let mut less = list.clone();
                    less[i] = value;
                    found.push(Value::Array(less));
                }
            }
        }
        _ => {}
    }
    found
}

/// Whether both say the same of it.
async fn agrees(client: &Client, spec: &Value) -> bool {
    ours(spec).is_empty() == theirs(client, spec).await.is_none()
}

#[tokio::test]
async fn claims_are_judged_as_the_api_server_judges_them() {
    let client = Outrigger::shared().await.plane.infra.client().await;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace = serde_json::from_value(json!({"metadata": {"name": "claims-alone"}})).unwrap();
    namespaces.create(&PostParams::default(), &namespace).await.unwrap();
    let seed: u64 =
        std::env::var("CLAIMS_SEED").map_or_else(|_| rand::random::<u32>().into(), |s| s.parse().unwrap());
    let specs: Vec<Value> = (seed..seed + CLAIMS).map(spec).collect();
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
        t.outrigger.plane.infra.apply(&objects).map_err(|error| error.to_string())
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
    let ask = |args: &[&str]| {
        let output =
            t.outrigger.output(&[&["claims", &kubeconfig, "--tenant", "claims"], args].concat()).unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let claims = eventually("the companion runs with its device", || async {
        let report: Value = serde_json::from_str(&ask(&["-o", "json"])).unwrap();
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
    let table = ask(&[]);
    assert!(table.starts_with(&format!("tenant claims (namespace {})\nCLAIM", t.namespace)), "{table}");

    // The same cluster has nothing that `outrigger check` would call an error of this tenant's.
    let output = t.outrigger.output(&["check", &kubeconfig, "-o", "json"]).unwrap();
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    let own = report["findings"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|f| f["object"]["namespace"] == json!(t.namespace));
    assert_eq!(own.filter(|f| f["severity"] == "error").collect::<Vec<_>>(), Vec::<&Value>::new());
}
