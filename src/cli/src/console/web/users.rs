//! The console in the cluster, as the browsers of its users see it.

use axum::http::header::{COOKIE, HOST, HeaderMap, LOCATION, ORIGIN, SET_COOKIE};
use axum::http::request::Builder;
use http_body_util::BodyExt;
use outrigger_runtime::environment::Environment;
use outrigger_runtime::fake_api::{FakeApi, failure};
use serde_json::json;
use tower::ServiceExt;

use super::super::data::{Data, tests as objects};
use super::super::sessions::tests::{REVIEWS, is};
use super::super::sessions::{NoSession, Open, Reader, Sessions};
use super::super::store::Store;
use super::tests::{has_headers, text};
use super::*;

const CONSOLE: &str = "console.example";

/// A console with the users `blue` and `red`, whose tokens are their names, and who may read the tenants of their names.
struct Console {
    router: Router,
    door: Arc<Door>,
    blue: FakeApi,
}

fn data(name: &str) -> Data {
    let namespace = format!("tenant-{name}");
    objects::data(&[
        objects::tenant(name, &namespace, &[&format!("host-{name}")], "QuotaExceeded"),
        objects::rule(&namespace, &format!("rule-{name}"), "Starting", [1, 1]),
        objects::companion(&namespace, &format!("companion-{name}"), &format!("host-{name}"), &json!({})),
    ])
}

fn api_of(name: &str) -> FakeApi {
    let api = FakeApi::default();
    is(&api, name);
    api
}

impl Console {
    fn new() -> Self {
        let (blue, red) = (api_of("blue"), api_of("red"));
        let own = blue.clone();
        let open: Open = Box::new(move |token, _| {
            let api = match token {
                "blue" => &own,
                "red" => &red,
                _ => return Err(NoSession::NotAccepted),
            };
            Ok(Reader { client: api.client(), store: Store::fixed(data(token)) })
        });
        let sessions = Sessions::new(Environment::system().clock, open, Default::default());
        let door = Arc::new(Door::Users(Box::new(sessions)));
        Self { router: router(door.clone(), Arc::default()), door, blue }
    }

    async fn send(&self, request: Builder, body: &str) -> Response {
        let request = request.header(HOST, CONSOLE).body(Body::from(body.to_owned())).unwrap();
        self.router.clone().oneshot(request).await.unwrap()
    }

    async fn get(&self, path: &str, cookie: &str) -> Response {
        self.send(Request::get(path).header(COOKIE, cookie), "").await
    }

    /// Sends a form as a page of the console does.
    async fn post(&self, path: &str, cookie: &str, body: &str) -> Response {
        let origin = format!("https://{CONSOLE}");
        self.send(Request::post(path).header(COOKIE, cookie).header(ORIGIN, origin), body).await
    }

    /// Logs in; returns the cookie.
    async fn login(&self, token: &str) -> String {
        let answer = self.post(LOGIN, "", &format!("token={token}")).await;
        assert_eq!(
            (answer.status(), &answer.headers()[LOCATION]),
            (StatusCode::SEE_OTHER, &"/".parse().unwrap())
        );
        answer.headers()[SET_COOKIE].to_str().unwrap().split(';').next().unwrap().to_owned()
    }
}

#[tokio::test]
async fn every_route_needs_a_session_but_the_login() {
    let console = Console::new();
    let cookie = console.login("blue").await;
    for view in View::ALL {
        for wrong in ["", "__Host-outrigger-console=guess", "outrigger-console-7000=x"] {
            let answer = console.get(view.path(), wrong).await;
            assert_eq!(answer.status(), StatusCode::SEE_OTHER, "{view:?}");
            assert_eq!(answer.headers()[LOCATION], LOGIN);
            assert!(has_headers(answer.headers()));
            assert_eq!(text(answer).await, "");
        }
        let answer = console.get(view.path(), &cookie).await;
        assert_eq!((answer.status(), has_headers(answer.headers())), (StatusCode::OK, true), "{view:?}");
        let page = text(answer).await;
        assert!(page.contains("<span>blue</span>") && page.contains("action=\"/logout\""), "{page}");
    }
    for path in ["/events", "/console.js", "/unknown"] {
        assert_eq!(console.get(path, "").await.status(), StatusCode::UNAUTHORIZED, "{path}");
    }
    assert_eq!(console.post(View::WhatIf.path(), "", "rules=x").await.status(), StatusCode::UNAUTHORIZED);
    for path in [LOGIN, STYLE_PATH] {
        let answer = console.get(path, "").await;
        assert_eq!((answer.status(), has_headers(answer.headers())), (StatusCode::OK, true), "{path}");
    }
    let page = text(console.get(LOGIN, "").await).await;
    assert!(page.contains("type=\"password\"") && !page.contains("<script"), "{page}");
    for method in ["PUT", "DELETE", "OPTIONS", "HEAD"] {
        for path in ["/", LOGIN, LOGOUT, "/what-if"] {
            let request = Request::builder().method(method).uri(path).header(COOKIE, &cookie);
            assert_eq!(
                console.send(request, "").await.status(),
                StatusCode::METHOD_NOT_ALLOWED,
                "{method} {path}"
            );
        }
    }
}

#[tokio::test]
async fn each_user_walks_every_route_and_finds_nothing_of_the_other() {
    let console = Console::new();
    let (blue, red) = (console.login("blue").await, console.login("red").await);
    for (cookie, own, other) in [(&blue, "blue", "red"), (&red, "red", "blue")] {
        for view in View::ALL {
            for query in ["", &format!("?tenant={other}"), &format!("?text={other}")] {
                let page = text(console.get(&format!("{}{query}", view.path()), cookie).await).await;
                for what in ["tenant-", "rule-", "companion-", "host-"] {
                    assert!(!page.contains(&format!("{what}{other}")), "{own} {view:?}: {page}");
                }
            }
        }
        let page = text(console.get("/companions", cookie).await).await;
        assert!(page.contains(&format!("companion-{own}")), "{page}");
    }
}

#[tokio::test]
async fn a_token_that_is_not_accepted_is_not_repeated_and_forms_are_bounded() {
    let console = Console::new();
    let answer = console.post(LOGIN, "", "token=%3Cb%3Esecret").await;
    assert_eq!((answer.status(), answer.headers().get(SET_COOKIE)), (StatusCode::UNAUTHORIZED, None));
    let page = text(answer).await;
    assert!(page.contains("doesn't accept the token") && !page.contains("secret"), "{page}");
    let long = format!("token={}", "x".repeat(LOGIN_FORM));
    assert_eq!(console.post(LOGIN, "", &long).await.status(), StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(console.post(LOGIN, "", "").await.status(), StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn a_page_of_another_site_sends_no_form_and_reads_nothing() {
    let console = Console::new();
    let cookie = console.login("blue").await;
    let own = format!("https://{CONSOLE}");
    for (path, body) in [(LOGIN, "token=red"), (LOGOUT, ""), (View::WhatIf.path(), "rules=x")] {
        for origins in [
            &[][..],
            &["null"],
            &["https://other.example"],
            &["http://console.example"],
            &[&own, "https://other.example"],
        ] {
            let mut request = Request::post(path).header(COOKIE, &cookie);
            for origin in origins {
                request = request.header(ORIGIN, *origin);
            }
            let answer = console.send(request, body).await;
            assert_eq!(answer.status(), StatusCode::FORBIDDEN, "{path} {origins:?}");
            assert_eq!(answer.headers().get(SET_COOKIE), None);
        }
    }
    let read = async |site: &str, mode: &str, dest: &str| {
        let request = Request::get("/").header(COOKIE, &cookie);
        let request = request
            .header("sec-fetch-site", site)
            .header("sec-fetch-mode", mode)
            .header("sec-fetch-dest", dest);
        console.send(request, "").await.status()
    };
    assert_eq!(read("same-origin", "cors", "empty").await, StatusCode::OK);
    assert_eq!(read("cross-site", "navigate", "document").await, StatusCode::OK, "a link is followed");
    for (mode, dest) in [("no-cors", "script"), ("cors", "empty"), ("navigate", "iframe")] {
        assert_eq!(read("cross-site", mode, dest).await, StatusCode::FORBIDDEN, "{mode} {dest}");
    }
    assert_eq!(console.get("/", &cookie).await.status(), StatusCode::OK, "the session is still there");
}

#[tokio::test(start_paused = true)]
async fn a_session_has_so_many_requests_at_a_time_and_others_are_not_concerned() {
    let console = Console::new();
    let (blue, red) = (console.login("blue").await, console.login("red").await);
    let Door::Users(sessions) = &*console.door else { panic!("users log in") };
    let mut headers = HeaderMap::new();
    headers.insert(COOKIE, blue.parse().unwrap());
    let session = sessions.of(&headers).await.unwrap();
    let held = session.requests.clone().acquire_many_owned(8).await.unwrap();
    assert_eq!(console.get("/", &blue).await.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(console.get("/events", &blue).await.status(), StatusCode::OK);
    assert_eq!(console.get("/", &red).await.status(), StatusCode::OK);
    drop(held);
    assert_eq!(console.get("/", &blue).await.status(), StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn a_stream_of_events_ends_with_its_session() {
    let console = Console::new();
    let cookie = console.login("blue").await;
    let open = async || {
        let answer = console.get("/events", &cookie).await;
        assert_eq!(answer.status(), StatusCode::OK);
        answer.into_body()
    };
    // By the end of the token.
    let mut events = open().await;
    console.blue.answers("POST", REVIEWS, 401, failure(401, "Unauthorized"));
    while let Some(frame) = events.frame().await {
        let frame = frame.unwrap().into_data().unwrap();
        assert!(frame.starts_with(b":"), "only what keeps it alive: {frame:?}");
    }
    assert_eq!(console.get("/", &cookie).await.status(), StatusCode::SEE_OTHER);
}

#[tokio::test]
async fn whoever_logs_out_has_no_session() {
    let console = Console::new();
    let cookie = console.login("blue").await;
    let mut events = console.get("/events", &cookie).await.into_body();
    let answer = console.post(LOGOUT, &cookie, "").await;
    assert_eq!(
        (answer.status(), &answer.headers()[LOCATION]),
        (StatusCode::SEE_OTHER, &LOGIN.parse().unwrap())
    );
    assert!(answer.headers()[SET_COOKIE].to_str().unwrap().ends_with("; Max-Age=0"));
    assert_eq!(console.get("/", &cookie).await.status(), StatusCode::SEE_OTHER);
    assert!(events.frame().await.is_none(), "the stream has ended");
    let open: Vec<Response> = {
        let cookie = console.login("blue").await;
        let mut open = Vec::new();
        for _ in 0..super::super::sessions::VIEWERS {
            open.push(console.get("/events", &cookie).await);
        }
        assert_eq!(console.get("/events", &cookie).await.status(), StatusCode::SERVICE_UNAVAILABLE);
        open
    };
    assert!(open.iter().all(|answer| answer.status() == StatusCode::OK));
}
