use std::net::Ipv4Addr;
use std::path::Path;

use axum::Router;
use axum::extract::Request as Asked;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use clap::Parser;
use outrigger_runtime::bind::Bind;
use outrigger_runtime::serve::Server;
use outrigger_runtime::tls::ServerTls;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::*;

/// Long enough for an answer on loopback of a busy machine.
const LONG: Duration = Duration::from_secs(60);

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    managers: ManagersArgs,
}

fn args(flags: &[&str]) -> Result<ManagersArgs, String> {
    let all = std::iter::once("x").chain(flags.iter().copied());
    Cli::try_parse_from(all).map(|cli| cli.managers).map_err(|error| error.to_string())
}

#[test]
fn managers_have_an_address_of_https_and_a_ca() {
    let ca = "--manager-ca-file=/ca";
    let of = |url: &str| {
        args(&[&format!("--manager-queries={url}"), ca]).map(|args| args.manager_queries.unwrap())
    };
    let target = of("https://m.example:9443/").unwrap();
    assert_eq!(
        (target.host.as_str(), target.port, target.authority.as_str()),
        ("m.example", 9443, "m.example:9443")
    );
    assert_eq!(of("https://[::1]:1").unwrap().host, "::1");
    for wrong in [
        "http://m:1",
        "https://m",
        "m:1",
        "https://m:1/v1",
        "https://m:1?a=b",
        "https://u:p@m:1",
        "https://m:99999",
        "",
    ] {
        let said = of(wrong).unwrap_err();
        assert!(
            said.contains("use https://HOST:PORT") || said.contains("a value is required"),
            "{wrong}: {said}"
        );
    }
    assert!(args(&["--manager-queries=https://m:1"]).unwrap_err().contains("--manager-ca-file"));
    assert!(args(&[ca]).unwrap_err().contains("--manager-queries"));
    let none = args(&[]).unwrap().managers(Arc::default()).unwrap();
    assert!(none.is_none(), "without an address managers aren't asked");
    let wrong = args(&["--manager-queries=https://m:1", ca, "--manager-server-name=a b"]).unwrap();
    let said = wrong.managers(Arc::default()).err().unwrap().to_string();
    assert!(said.contains("--manager-server-name") && said.contains("use a DNS name"), "{said}");
}

#[test]
fn a_question_is_one_path_whatever_is_typed() {
    let ask = Ask { text: "shop/a&b=c", cause: "No DPU", after: "x-1", ..Ask::of_tenant("blue") };
    let expected = "/v1/tenants/blue/workloads?limit=100&text=shop%2Fa%26b%3Dc&cause=No+DPU&continue=x-1";
    assert_eq!(ask.path().as_deref(), Some(expected));
    assert_eq!(Ask::of_tenant("blue").path().as_deref(), Some("/v1/tenants/blue/workloads?limit=100"));
    for wrong in ["", "a/b", "a?b", "a b", "..%2f", "é", &"x".repeat(254)] {
        assert_eq!(Ask::of_tenant(wrong).path(), None, "{wrong}");
    }
}

fn page() -> serde_json::Value {
    json!({"tenant": "blue", "replica": "m-1", "known": 2, "more": "fields", "continue": "b",
        "workloads": [
            {"id": "a", "namespace": "shop", "name": "a", "node": "host-a", "ready": true, "companions": [
                {"rule": "r", "state": "NoDPU", "cause": "NoDPU", "message": "no", "since": "2026-01-01T00:00:00Z",
                    "ordering": "Parallel"},
                {"state": "Ready", "since": "2026-01-01T00:00:00Z", "ordering": "BeforeReady"}]},
            {"id": "b", "namespace": "shop", "name": "b", "ready": false, "companions": [], "moreCompanions": 3}]})
}

#[test]
fn a_page_is_read_as_managers_write_it_and_another_tenants_is_none() {
    let read = |status, body: &serde_json::Value| Said::read(status, body.to_string().as_bytes(), "blue");
    let Said::Page(found) = read(200, &page()) else { panic!("a page") };
    assert_eq!((found.known, found.next.as_deref(), found.workloads.len()), (2, Some("b"), 2));
    let [first, second] = &found.workloads[..] else { panic!("two") };
    assert_eq!((first.companions[1].rule.as_deref(), first.companions[1].message.as_str()), (None, ""));
    assert_eq!((second.node.as_deref(), second.more_companions), (None, 3));
    let mut other = page();
    other["tenant"] = json!("red");
    assert!(matches!(read(200, &other), Said::Away(why) if why.contains("another tenant")));
    assert!(
        matches!(read(200, &json!({"tenant": "blue"})), Said::Away(why) if why.contains("can't be read"))
    );
    assert_eq!(read(403, &json!({"message": "no"})), Said::Refused(403, "no".into()));
    let Said::Refused(500, long) = read(500, &json!({"message": "é".repeat(9999)})) else {
        panic!("refused")
    };
    assert!(long.ends_with('…') && long.chars().count() < 999, "{long}");
    assert_eq!(
        Said::read(502, b"<html>", "blue"),
        Said::Refused(502, "the answer has the status 502".into())
    );
}

#[test]
fn each_refusal_has_a_sentence_and_what_one_replica_knows_counts() {
    let refused = |status, message: &str| Said::Refused(status, message.to_owned());
    let away = || Said::Away("10.0.0.1:9443: refused".to_owned());
    let of = |said: Vec<Said>| judge(said, "https://m:1".to_owned()).to_string();
    for (said, expected) in [
        (vec![refused(400, "cause: is \"x\"; use one of the reasons")], "cause: is \"x\""),
        (vec![refused(401, "no")], "don't accept the token"),
        (vec![refused(403, "the user may not list")], "don't answer: the user may not list."),
        (
            vec![refused(404, "there is no tenant"), refused(404, "there is no tenant")],
            "answer: there is no tenant.",
        ),
        (vec![refused(429, "slow down")], "Too many queries"),
        (vec![refused(503, "the agent is not connected")], "serves the tenant: the agent is not connected."),
        (
            vec![refused(421, "replica m-9 serves tenant blue, and this is m-1; ask that one"), away()],
            "and this is m-1; ask that one. Managers that didn't answer: 10.0.0.1:9443: refused.",
        ),
        (vec![away()], "can't be reached at https://m:1: 10.0.0.1:9443: refused."),
        (vec![refused(500, "oh")], "don't answer: oh."),
        // A replica that doesn't know the tenant yet, and one that has known the user.
        (vec![refused(403, "may not"), refused(503, "not connected")], "serves the tenant: not connected."),
        (vec![refused(401, "no"), refused(421, "m-2 serves it")], "serves the tenant: m-2 serves it."),
    ] {
        let found = of(said);
        assert!(found.contains(expected), "{expected}: {found}");
    }
    let many = (0..9).map(|n| Said::Away(format!("m-{n}"))).collect();
    assert!(of(many).contains("m-0; m-1; m-2; and 6 more"), "a sentence names a few");
    assert!(Failure::NotConfigured.to_string().contains("--manager-queries"));
}

/// A server on loopback with a certificate for `manager.example`, and its CA in a file.
async fn serve(dir: &Path, router: Router) -> Asker {
    let pair = rcgen::generate_simple_self_signed(vec!["manager.example".to_owned()]).unwrap();
    let [cert, key] = ["tls.crt", "tls.key"].map(|name| dir.join(name));
    std::fs::write(&cert, pair.cert.pem()).unwrap();
    std::fs::write(&key, pair.signing_key.serialize_pem()).unwrap();
    let listener = Bind::Tcp((Ipv4Addr::LOCALHOST, 0).into()).listen().unwrap();
    let port = listener.address().unwrap().port();
    let tls = Arc::new(ServerTls::load(cert.clone(), key, None).unwrap());
    let server = Server::new("managers", listener).tls(tls);
    tokio::spawn(server.run(router, CancellationToken::new(), CancellationToken::new()));
    asker(port, &[&cert, &dir.join("absent.crt")], "manager.example")
}

/// The places of a store whose user has no group.
fn any() -> Turns {
    Turns::of(Arc::new(Semaphore::new(1)))
}

fn asker(port: u16, ca: &[&Path], name: &str) -> Asker {
    let mut flags =
        vec![format!("--manager-queries=https://127.0.0.1:{port}"), format!("--manager-server-name={name}")];
    flags.extend(ca.iter().map(|file| format!("--manager-ca-file={}", file.display())));
    let args = args(&flags.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
    Asker::new(args.managers(Arc::default()).unwrap().unwrap(), Token::given("jane").unwrap())
}

#[tokio::test]
async fn a_manager_is_asked_with_the_users_token_and_an_answer_is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let router = Router::new().fallback(async |request: Asked| {
        let token = request.headers().get(AUTHORIZATION).cloned();
        assert_eq!(request.headers().get_all(HOST).iter().count(), 1);
        match request.uri().path() {
            "/v1/tenants/blue/workloads" if token == Some(HeaderValue::from_static("Bearer jane")) => {
                axum::Json(page()).into_response()
            }
            "/v1/tenants/large/workloads" => vec![b'x'; ANSWER + 1].into_response(),
            "/v1/tenants/silent/workloads" => std::future::pending().await,
            _ => (StatusCode::FORBIDDEN, axum::Json(json!({"message": "not yours"}))).into_response(),
        }
    });
    let asker = serve(dir.path(), router).await;
    let page = asker.ask(&any(), Ask::of_tenant("blue"), LONG).await.unwrap();
    assert_eq!(page.replica, "m-1");
    let of =
        async |tenant: &str, within| asker.ask(&any(), Ask::of_tenant(tenant), within).await.unwrap_err();
    assert!(of("red", LONG).await.to_string().contains("not yours"));
    assert!(of("a/b", LONG).await.to_string().contains("there is no tenant \"a/b\""));
    let large = of("large", LONG).await.to_string();
    assert!(large.contains("could not be received: length limit exceeded"), "{large}");
    let late = of("silent", Duration::from_millis(200)).await;
    assert!(
        matches!(late, Failure::Unreachable { .. }) && late.to_string().contains("no answer in time"),
        "{late}"
    );
}

#[tokio::test]
async fn of_several_managers_the_one_that_serves_the_tenant_answers() {
    let says = async |status: StatusCode, body: serde_json::Value| {
        let dir = tempfile::tempdir().unwrap();
        let router = Router::new().fallback(async move || (status, axum::Json(body.clone())).into_response());
        (serve(dir.path(), router).await, dir)
    };
    let other =
        says(StatusCode::MISDIRECTED_REQUEST, json!({"message": "m-1 serves it; ask that one"})).await;
    let serving = says(StatusCode::OK, page()).await;
    let silent_dir = tempfile::tempdir().unwrap();
    let silent = Router::new().fallback(async || -> StatusCode { std::future::pending().await });
    let silent = (serve(silent_dir.path(), silent).await, silent_dir);
    // Nobody listens where a listener has been.
    let listener = Bind::Tcp((Ipv4Addr::LOCALHOST, 0).into()).listen().unwrap();
    let away = listener.address().unwrap();
    drop(listener);
    let certificates = [&other, &serving, &silent].map(|(_, dir)| dir.path().join("tls.crt"));
    let client = serving.0.managers.client(&certificates).unwrap();
    let header = HeaderValue::from_static("Bearer jane");
    let ask = async |addresses: Vec<SocketAddr>, within| {
        let question = ("blue", "/v1/tenants/blue/workloads");
        let until = Clock::system().now() + within;
        serving.0.managers.ask_each(addresses, question, &header, &client, until).await
    };
    let at = |one: &(Asker, tempfile::TempDir)| {
        SocketAddr::from((Ipv4Addr::LOCALHOST, one.0.managers.target.port))
    };
    let page = ask(vec![away, at(&silent), at(&other), at(&serving)], LONG).await.unwrap();
    assert_eq!(page.replica, "m-1", "the answer doesn't wait for one that is silent");
    let said = ask(vec![away, at(&other)], LONG).await.unwrap_err();
    let why = judge(said, "https://m:1".to_owned()).to_string();
    assert!(why.contains("m-1 serves it") && why.contains(&away.to_string()), "{why}");
    let said = ask(vec![at(&silent), away], Duration::from_millis(200)).await.unwrap_err();
    let why = judge(said, "https://m:1".to_owned()).to_string();
    assert!(why.contains("no answer in time") && why.contains(&away.to_string()), "{why}");
}

#[tokio::test]
async fn whoever_is_not_the_manager_gets_no_token() {
    let dir = tempfile::tempdir().unwrap();
    let router = Router::new().fallback(async || -> StatusCode { panic!("nobody asks") });
    let right = serve(dir.path(), router).await;
    let port = right.managers.target.port;
    let cert = dir.path().join("tls.crt");
    let other = asker(port, &[&cert], "other.example");
    let said = other.ask(&any(), Ask::of_tenant("blue"), LONG).await.unwrap_err().to_string();
    assert!(said.contains("can't be reached") && said.contains("certificate"), "{said}");
    let foreign = dir.path().join("foreign.crt");
    let pair = rcgen::generate_simple_self_signed(vec!["manager.example".to_owned()]).unwrap();
    std::fs::write(&foreign, pair.cert.pem()).unwrap();
    let said = asker(port, &[&foreign], "manager.example")
        .ask(&any(), Ask::of_tenant("blue"), LONG)
        .await
        .unwrap_err();
    assert!(said.to_string().contains("certificate"), "{said}");
    let absent = asker(port, &[&dir.path().join("absent.crt")], "manager.example");
    let said = absent.ask(&any(), Ask::of_tenant("blue"), LONG).await.unwrap_err().to_string();
    assert!(said.contains("there is no file with a CA"), "{said}");
}

#[tokio::test(start_paused = true)]
async fn a_session_waits_for_its_own_queries_and_another_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let one = asker(1, &[dir.path()], "manager.example");
    let two = Asker::new(one.managers.clone(), Token::given("joan").unwrap());
    let held = [one.turn(&any()).await, one.turn(&any()).await];
    assert_eq!(one.ask(&any(), Ask::of_tenant("blue"), DEADLINE).await, Err(Failure::Busy));
    assert_ne!(two.ask(&any(), Ask::of_tenant("blue"), DEADLINE).await, Err(Failure::Busy));
    drop(held);
    assert_ne!(one.ask(&any(), Ask::of_tenant("blue"), DEADLINE).await, Err(Failure::Busy));
    assert!(Token::given("a\nb").is_none());
}
