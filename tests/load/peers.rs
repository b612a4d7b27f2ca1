//! Outrigger's webhook beside Liqo's, for Pods in offloaded namespaces.
//!
//! Each is a process of its own on the same control plane, from which it fills its caches. The same reviews go to both in turns,
//! over the same number of connections, and the order changes with each round. What a server answers is checked before it is
//! measured.
// Figures are for a terminal, and a failure of the bench is a failure.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

use std::collections::BTreeSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use outrigger_core::keys;
use outrigger_tests::control_plane::{ControlPlane, tool};
use outrigger_tests::generator::{ROUND, Target, Times, closed_loop, milliseconds};
use outrigger_tests::outrigger::{Outrigger, ports};
use outrigger_tests::report::{self, Row};
use outrigger_tests::reviews::{self, SIZES};
use outrigger_tests::{InWords, cost, eventually, holds, root};
use serde_json::{Value, json};

const ROUNDS: usize = 5;
const CONNECTIONS: [usize; 3] = [1, 16, 64];

/// Another project's server.
struct Peer {
    name: &'static str,
    /// Its directory in `tests/peers`.
    dir: &'static str,
    /// Its Go module, whose version `go.mod` says.
    module: &'static str,
    path: &'static str,
}

const LIQO: Peer =
    Peer { name: "Liqo", dir: "liqo", module: "github.com/liqotech/liqo", path: "/mutate/pod" };

/// A review that both are asked, and what has to become of its Pod.
struct Case {
    what: &'static str,
    body: Bytes,
    /// The required terms.
    terms: BTreeSet<Term>,
}

/// The expressions of a term. Neither their order nor a repetition has a meaning.
type Term = BTreeSet<String>;

#[tokio::main]
async fn main() {
    let o = Outrigger::new(ControlPlane::start().unwrap()).unwrap();
    o.define().unwrap();
    o.plane.infra.apply(&objects()).unwrap();
    o.start_webhook().unwrap();
    o.ready_at("webhook", o.webhook_admin).await;
    let rows = measure(&o, &LIQO).await;
    println!("{}", report::write("peers", &rows).unwrap());
}

/// What the servers' caches have to show.
fn objects() -> Vec<Value> {
    let of = |(_, selector, _)| {
        let name = reviews::offloaded_namespace(selector);
        let metadata = json!({"name": name, "labels": {keys::OFFLOADED: "true"}});
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata});
        [namespace, reviews::offloading(selector)]
    };
    SIZES.into_iter().flat_map(of).collect()
}

fn cases() -> Vec<Case> {
    let case = |(what, selector, own)| {
        let mut imposed = reviews::terms("region", selector);
        let local = json!({"key": keys::NODE_TYPE, "operator": "NotIn", "values": [keys::VIRTUAL_NODE]});
        imposed.push(json!({"matchExpressions": [local]}));
        let own_terms = reviews::terms("zone", own);
        let product = own_terms.iter().flat_map(|own| imposed.iter().map(|i| &term(own) | &term(i)));
        Case { what, body: reviews::offloaded(selector, own), terms: product.collect() }
    };
    SIZES.into_iter().map(case).collect()
}

/// One of the two servers.
struct Server {
    port: u16,
    pid: u32,
    path: &'static str,
}

/// What a round shows.
struct Round {
    times: Times,
    /// Milliseconds of processor time a review.
    cpu: f64,
    /// MiB, at its end.
    memory: f64,
}

async fn measure(o: &Outrigger, peer: &Peer) -> Vec<Row> {
    let own = format!("--bind-address=127.0.0.1:{}", o.webhook_port);
    let ours = Server { port: o.webhook_port, pid: cost::process(&own), path: "/mutate/pods" };
    let theirs = start(o, peer).await;
    let floor_is = format!("{} {}", peer.name, version(peer));
    let mut rows = Vec::new();
    for case in cases() {
        for (who, server) in [("Outrigger", &ours), (peer.name, &theirs)] {
            eventually(&format!("{who} answers: {}", case.what), || check(o, server, &case)).await;
        }
        for connections in CONNECTIONS {
            let name = format!("{}, {} B, {connections} connections", case.what, case.body.len());
            if !report::is_wanted("peers", &format!("{}, {name}", peer.name)) {
                continue;
            }
            let mut rounds = Vec::new();
            for i in 0..=ROUNDS {
                rounds.push(if i % 2 == 0 {
                    let first = round(o, &ours, &case, connections).await;
                    (first, round(o, &theirs, &case, connections).await)
                } else {
                    let first = round(o, &theirs, &case, connections).await;
                    (round(o, &ours, &case, connections).await, first)
                });
            }
            // The first warms up.
            rows.extend(rows_of(&name, &floor_is, &rounds[1..]));
        }
    }
    rows
}

async fn start(o: &Outrigger, peer: &Peer) -> Server {
    let program = tool(&format!("peers/{}", peer.dir)).unwrap();
    // The names that controller-runtime looks for.
    let pair = o.authority.issue("tls", &["127.0.0.1"]).unwrap();
    let [port] = ports().unwrap();
    let argument = format!("--port={port}");
    let args = [
        program.display().to_string(),
        argument.clone(),
        format!("--cert-dir={}", pair.cert.parent().unwrap().display()),
        format!("--kubeconfig={}", o.plane.infra.kubeconfig.display()),
    ];
    o.plane.run(peer.dir, &args, &[]).unwrap();
    let pid = eventually("its process runs", || async { cost::find(&argument).ok_or("not yet") }).await;
    Server { port, pid, path: peer.path }
}

/// The version that its `go.mod` requires.
fn version(peer: &Peer) -> String {
    let file = std::fs::read_to_string(root().join("tests/peers").join(peer.dir).join("go.mod")).unwrap();
    let mut words = file.split_whitespace().skip_while(|word| *word != peer.module);
    words.nth(1).expect("a version").to_owned()
}

async fn round(o: &Outrigger, server: &Server, case: &Case, connections: usize) -> Round {
    let target = Target::new(server.port, &o.authority.file(), server.path, case.body.clone());
    let before = cost::processor_time(server.pid);
    let times = closed_loop(&target, connections).await;
    let spent = cost::processor_time(server.pid).saturating_sub(before);
    let cpu = spent.as_secs_f64() * 1000.0 / times.len() as f64;
    Round { times, cpu, memory: cost::resident(server.pid) as f64 / f64::from(1 << 20) }
}

fn rows_of(name: &str, floor_is: &str, rounds: &[(Round, Round)]) -> [Row; 5] {
    let row = |what: &str, unit: &str, of: &dyn Fn(&Round) -> f64| {
        let pairs: Vec<_> = rounds.iter().map(|(ours, theirs)| (of(ours), of(theirs))).collect();
        Row::new(&format!("{name}, {what}"), unit, floor_is, &pairs)
    };
    [
        row("reviews", "/s", &|round| round.times.len() as f64 / ROUND.as_secs_f64()),
        row("p50", "ms", &|round| milliseconds(&round.times, 0.5)),
        row("p99", "ms", &|round| milliseconds(&round.times, 0.99)),
        row("processor time of a review", "ms", &|round| round.cpu),
        row("memory", "MiB", &|round| round.memory),
    ]
}

/// Whether a server does with the Pod what it has to.
async fn check(o: &Outrigger, server: &Server, case: &Case) -> Result<(), String> {
    let request = http::Request::post(server.path);
    let (status, answer) = o.post(server.port, None, request, case.body.clone()).await?;
    let pod = admitted(&case.body, &answer).map_err(|why| format!("{status}: {why}: {answer}"))?;
    let required = &pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
    let terms: Vec<Term> = required["nodeSelectorTerms"].as_array().into_iter().flatten().map(term).collect();
    holds(terms.len() == case.terms.len(), format!("{} terms, not {}", terms.len(), case.terms.len()))?;
    holds(terms.into_iter().collect::<BTreeSet<_>>() == case.terms, "other terms")?;
    let tolerations = pod["spec"]["tolerations"].as_array().ok_or("no tolerations")?;
    let is_wanted = |t: &Value| {
        (&t["key"], &t["operator"], &t["effect"])
            == (&json!(keys::NOT_ALLOWED), &json!("Exists"), &json!("NoExecute"))
    };
    holds(tolerations.iter().any(is_wanted), format!("{tolerations:?}"))
}

/// The Pod of a review with the patch of the answer.
fn admitted(review: &[u8], answer: &str) -> Result<Value, String> {
    let mut review: Value = serde_json::from_slice(review).in_words()?;
    let answer: Value = serde_json::from_str(answer).in_words()?;
    let response = &answer["response"];
    holds(response["allowed"] == true && response["uid"] == review["request"]["uid"], "not allowed")?;
    let patch = STANDARD.decode(response["patch"].as_str().ok_or("no patch")?).in_words()?;
    let patch: json_patch::Patch = serde_json::from_slice(&patch).in_words()?;
    json_patch::patch(&mut review["request"]["object"], &patch).in_words()?;
    Ok(review["request"]["object"].take())
}

fn term(term: &Value) -> Term {
    let expression = |e: &Value| json!([e["key"], e["operator"], e["values"]]).to_string();
    term["matchExpressions"].as_array().into_iter().flatten().map(expression).collect()
}
