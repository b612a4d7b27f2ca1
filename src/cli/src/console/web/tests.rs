use axum::body::Body;
use axum::http::HeaderMap;
use axum::http::header::{COOKIE, HOST, LOCATION, SET_COOKIE};
use http_body_util::BodyExt;
use proptest::prelude::*;
use serde_json::json;
use tower::ServiceExt;

use super::super::access::Access;
use super::super::data::{Data, tests as objects};
use super::super::query::PAGE;
use super::super::store::Store;
use super::*;

const OWN: &str = "127.0.0.1:7000";
const SITE: &str = "sec-fetch-site";
/// That of a store with a fixed reading.
const INTERVAL: Duration = Duration::from_secs(1);

struct Browser {
    router: Router,
    token: String,
}

impl Browser {
    fn of(data: Data) -> Self {
        Self::before(Store::fixed(data))
    }

    /// One before a console on a user's machine, which shows this store.
    fn before(store: Arc<Store>) -> Self {
        let (access, token) = Access::new(7000);
        let door = Door::Own(Box::new(access), Session::own(store, VIEWERS));
        Self { router: router(Arc::new(door), Arc::default()), token }
    }

    fn new() -> Self {
        Self::of(Data::default())
    }

    async fn send(&self, request: axum::http::request::Builder) -> Response {
        self.router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
    }

    async fn ask(&self, method: &str, host: &str, url: &str, cookie: &str) -> Response {
        self.send(Request::builder().method(method).uri(url).header(HOST, host).header(COOKIE, cookie)).await
    }

    /// Exchanges the token; returns the cookie.
    async fn cookie(&self) -> String {
        let answer = self.ask("GET", OWN, &format!("/?token={}", self.token), "").await;
        assert_eq!(
            (answer.status(), &answer.headers()[LOCATION]),
            (StatusCode::SEE_OTHER, &HeaderValue::from_static("/"))
        );
        let cookie = answer.headers()[SET_COOKIE].to_str().unwrap();
        assert!(cookie.ends_with("; Path=/; HttpOnly; SameSite=Strict"), "{cookie}");
        cookie.split(';').next().unwrap().to_owned()
    }

    /// A page as the session's browser gets it.
    async fn page(&self, cookie: &str, url: &str) -> String {
        let answer = self.ask("GET", OWN, url, cookie).await;
        assert_eq!(answer.status(), StatusCode::OK, "{url}");
        text(answer).await
    }
}

/// The body of an answer.
pub(super) async fn text(answer: Response) -> String {
    String::from_utf8(answer.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

/// Whether an answer has the headers of all answers.
pub(super) fn has_headers(headers: &HeaderMap) -> bool {
    HEADERS.iter().all(|(name, value)| headers.get(name).is_some_and(|is| is == value))
}

/// Every route.
fn routes() -> impl Iterator<Item = &'static str> {
    View::ALL.iter().map(|view| view.path()).chain(["/console.css", "/console.js", "/events"])
}

#[tokio::test]
async fn every_route_needs_the_session_and_the_own_host() {
    let browser = Browser::new();
    let cookie = browser.cookie().await;
    for route in routes() {
        for (host, cookie, expected) in [
            (OWN, cookie.as_str(), StatusCode::OK),
            (OWN, &format!("a=b; {cookie}; c"), StatusCode::OK),
            ("localhost:7000", &cookie, StatusCode::OK),
            (OWN, "", StatusCode::UNAUTHORIZED),
            (OWN, "outrigger-console-7000=guess", StatusCode::UNAUTHORIZED),
            (OWN, &cookie.replace("7000", "7001"), StatusCode::UNAUTHORIZED),
            ("rebound.example:7000", &cookie, StatusCode::FORBIDDEN),
            ("127.0.0.1", &cookie, StatusCode::FORBIDDEN),
        ] {
            let answer = browser.ask("GET", host, route, cookie).await;
            assert_eq!(answer.status(), expected, "{route} {host} {cookie}");
            assert!(has_headers(answer.headers()), "{route}");
        }
        for method in ["POST", "HEAD", "OPTIONS", "DELETE"] {
            let answer = browser.ask(method, OWN, route, &cookie).await;
            // It is sent by no page of the console.
            let is_form = (method, route) == ("POST", View::WhatIf.path());
            let expected = if is_form { StatusCode::FORBIDDEN } else { StatusCode::METHOD_NOT_ALLOWED };
            assert_eq!(answer.status(), expected, "{method} {route}");
        }
    }
    let unknown = browser.ask("GET", OWN, "/unknown", "").await;
    assert_eq!(unknown.status(), StatusCode::UNAUTHORIZED, "who has no session learns no path");
}

#[tokio::test]
async fn a_request_has_exactly_one_host() {
    let browser = Browser::new();
    let cookie = browser.cookie().await;
    let request = || Request::builder().uri("/").header(COOKIE, &cookie);
    assert_eq!(browser.send(request()).await.status(), StatusCode::FORBIDDEN);
    let two = request().header(HOST, OWN).header(HOST, "rebound.example");
    assert_eq!(browser.send(two).await.status(), StatusCode::FORBIDDEN);
    assert_eq!(browser.send(request().header(HOST, OWN)).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_page_of_another_port_reads_nothing() {
    let browser = Browser::new();
    let cookie = browser.cookie().await;
    for (site, expected) in [
        ("same-origin", StatusCode::OK),
        ("none", StatusCode::OK),
        ("same-site", StatusCode::FORBIDDEN),
        ("cross-site", StatusCode::FORBIDDEN),
    ] {
        let request =
            Request::builder().uri("/").header(HOST, OWN).header(COOKIE, &cookie).header(SITE, site);
        assert_eq!(browser.send(request).await.status(), expected, "{site}");
    }
}

#[tokio::test]
async fn only_a_page_of_the_console_sends_a_form_and_it_is_bounded() {
    let browser = Browser::new();
    let cookie = browser.cookie().await;
    let send = async |cookie: &str, headers: &[(&str, &str)], body: String| {
        let mut request = Request::post(View::WhatIf.path()).header(HOST, OWN).header(COOKIE, cookie);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = browser.router.clone().oneshot(request.body(Body::from(body)).unwrap()).await.unwrap();
        assert!(has_headers(answer.headers()));
        (answer.status(), text(answer).await)
    };
    let own = ("origin", "http://127.0.0.1:7000");
    let rules = || "tenant=blue&rules=a%3A+%3Cb%3E".to_owned();
    let (status, page) = send(&cookie, &[own, (SITE, "same-origin")], rules()).await;
    assert_eq!(status, StatusCode::OK);
    assert!(page.contains("a: &lt;b&gt;</textarea>") && page.contains("there is no cluster"), "{page}");
    assert!(page.contains("data-kept") && page.contains("value=\"blue\""), "{page}");
    for headers in [
        &[][..],
        &[("origin", "null")],
        &[("origin", "http://127.0.0.1:7001")],
        &[("origin", "https://127.0.0.1:7000")],
        &[own, ("origin", "http://127.0.0.1:7001")],
        &[own, (SITE, "same-site")],
    ] {
        assert_eq!(send(&cookie, headers, rules()).await.0, StatusCode::FORBIDDEN, "{headers:?}");
    }
    assert_eq!(send("", &[own], rules()).await.0, StatusCode::UNAUTHORIZED);
    let long = |bytes: usize| format!("x={}", "y".repeat(bytes - 2));
    assert_eq!(send(&cookie, &[own], long(FORM)).await.0, StatusCode::OK);
    assert_eq!(send(&cookie, &[own], long(FORM + 1)).await.0, StatusCode::PAYLOAD_TOO_LARGE);
    let rules = format!("rules={}", "y".repeat(what_if::RULES + 1));
    assert_eq!(send(&cookie, &[own], rules).await.0, StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn the_token_works_once() {
    let browser = Browser::new();
    let wrong = browser.ask("GET", OWN, "/?token=guess", "").await;
    assert_eq!((wrong.status(), wrong.headers().get(SET_COOKIE)), (StatusCode::UNAUTHORIZED, None));
    let url = format!("/?token={}", browser.token);
    let foreign = browser.ask("GET", "rebound.example:7000", &url, "").await;
    assert_eq!(foreign.status(), StatusCode::FORBIDDEN, "it isn't used up");
    browser.cookie().await;
    let again = browser.ask("GET", OWN, &url, "").await;
    assert_eq!((again.status(), again.headers().get(SET_COOKIE)), (StatusCode::UNAUTHORIZED, None));
}

#[test]
fn secrets_differ_and_are_not_each_other() {
    let ((one, first), (_, second)) = (Access::new(1), Access::new(1));
    assert_ne!(first, second);
    let cookie = one.exchange(&first).unwrap();
    assert!(first.len() == 64 && !cookie.contains(&first), "the token is no session");
}

#[tokio::test]
async fn a_long_url_and_one_viewer_too_many_are_refused() {
    let browser = Browser::new();
    let cookie = browser.cookie().await;
    let long = |bytes: usize| format!("/?{}", "x".repeat(bytes - 2));
    assert_eq!(browser.ask("GET", OWN, &long(URL), &cookie).await.status(), StatusCode::OK);
    assert_eq!(browser.ask("GET", OWN, &long(URL + 1), &cookie).await.status(), StatusCode::URI_TOO_LONG);
    let mut open = Vec::new();
    for _ in 0..VIEWERS {
        open.push(browser.ask("GET", OWN, "/events", &cookie).await);
    }
    assert!(open.iter().all(|answer| answer.status() == StatusCode::OK));
    assert_eq!(browser.ask("GET", OWN, "/events", &cookie).await.status(), StatusCode::SERVICE_UNAVAILABLE);
    open.pop();
    assert_eq!(browser.ask("GET", OWN, "/events", &cookie).await.status(), StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn a_reading_is_an_event() {
    let store = Store::fixed(Data::default());
    let browser = Browser::before(store.clone());
    let cookie = browser.cookie().await;
    let mut events = browser.ask("GET", OWN, "/events", &cookie).await.into_body();
    store.revision.send_modify(|revision| *revision += 1);
    let frame = events.frame().await.unwrap().unwrap().into_data().unwrap();
    assert!(frame.starts_with(b"event: reading"), "{frame:?}");
}

#[tokio::test(start_paused = true)]
async fn a_page_that_asks_for_more_gets_one_event_in_an_interval() {
    let store = Store::fixed(Data::default());
    let browser = Browser::before(store.clone());
    let cookie = browser.cookie().await;
    // Ends before an event that is due after three intervals.
    let window = 3 * INTERVAL - INTERVAL / 20;
    let mut counts = Vec::new();
    for url in ["/events", "/events?slow"] {
        let mut events = browser.ask("GET", OWN, url, &cookie).await.into_body();
        counts.push(tokio::spawn(async move {
            let mut count = 0;
            let _ = timeout(window, async {
                while events.frame().await.is_some() {
                    count += 1;
                }
            })
            .await;
            count
        }));
    }
    assert_eq!(store.interval(), INTERVAL);
    // Thirty changes in three intervals. The first is sent at once.
    for _ in 0..30 {
        store.revision.send_modify(|revision| *revision += 1);
        tokio::time::sleep(INTERVAL / 10).await;
    }
    let counts = [counts.remove(0).await.unwrap(), counts.remove(0).await.unwrap()];
    assert_eq!(counts, [30, 3]);
}

/// Objects whose texts are all this one, as if the API server checked none of them.
fn hostile(text: &str) -> Data {
    let failed = json!({"status": {"phase": "Failed", "message": text}, "spec": {"nodeName": text}});
    let mut data = objects::data(&[
        objects::tenant(text, text, &[text, &format!("{text}2")], text),
        objects::rule(text, text, text, [2, 1]),
        objects::node(text, text, Some(text), json!({})),
        objects::companion(text, text, text, &failed),
    ]);
    data.report.not_visible.push(text.to_owned());
    data
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn a_text_of_a_user_never_becomes_markup(tail in "[<>\"'&a-z =/]{0,12}", view in 0..View::ALL.len()) {
        let text = format!("<b onload=x>'\"&{tail}");
        let query = Query { text: text.chars().take(8).collect(), workload: text.clone(), ..Query::default() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let html = runtime.block_on(async {
            let browser = Browser::of(hostile(&text));
            let cookie = browser.cookie().await;
            browser.page(&cookie, &query.url(View::ALL[view].path())).await
        });
        prop_assert!(html.contains("&lt;b onload=x&gt;"), "the text is on the page");
        prop_assert!(!html.contains("<b "));
        // Inside an attribute a quote would end it.
        prop_assert!(!html.contains("'\"&") && !html.contains("onload=x>"));
    }
}

#[tokio::test]
async fn one_tenant_has_a_page_with_its_conditions_rules_and_companions() {
    let of = |name: &str| {
        let namespace = format!("tenant-{name}");
        [
            objects::tenant(name, &namespace, &[], "QuotaExceeded"),
            objects::rule(&namespace, &format!("rule-{name}"), "Starting", [1, 1]),
            objects::companion(&namespace, &format!("companion-{name}"), "h", &json!({})),
        ]
    };
    let browser = Browser::of(objects::data(&[of("blue"), of("red")].concat()));
    let cookie = browser.cookie().await;
    let page = browser.page(&cookie, "/tenants?tenant=blue").await;
    for shown in ["Ready=False", "raise spec.limits.companions", "rule-blue", "companion-blue"] {
        assert!(page.contains(shown), "{shown}: {page}");
    }
    assert!(!page.contains("rule-red") && !page.contains("companion-red"), "{page}");
    let page = browser.page(&cookie, "/tenants").await;
    assert!(page.contains("/tenants?tenant=blue") && page.contains("/tenants?tenant=red"), "{page}");
}

#[tokio::test]
async fn a_page_is_bounded_and_filters_work_on_all_rows() {
    let count = 3 * PAGE + 1;
    let names = (0..count).map(|i| objects::companion("n", &format!("c{i:04}"), "h", &json!({})));
    let browser = Browser::of(objects::data(&names.collect::<Vec<_>>()));
    let cookie = browser.cookie().await;
    let page = browser.page(&cookie, "/companions?page=1").await;
    assert_eq!(page.matches("scope=\"row\"").count(), PAGE);
    assert!(page.contains("n/c0100") && page.contains("Page 2 of 4") && page.contains("301 found"), "{page}");
    assert!(page.contains("href=\"/companions?page=2\"") && page.contains("href=\"/companions\""), "{page}");
    let page = browser.page(&cookie, "/companions?text=c0300").await;
    assert!(page.contains("n/c0300") && page.contains("1 found"), "{page}");
    assert!(browser.page(&cookie, "/companions?cause=NoDPU").await.contains("0 found"));
    assert!(browser.page(&cookie, "/companions?cause=Starting").await.contains("301 found"));
}

/// A cluster with so many tenants, each with a rule, ten DPUs and ten companions, one of which isn't ready.
fn large(tenants: usize) -> Data {
    let mut all = Vec::new();
    for i in 0..tenants {
        let (name, namespace) = (format!("t{i}"), format!("tenant-t{i}"));
        let hosts: Vec<String> = (0..10).map(|host| format!("host-{i}-{host}")).collect();
        all.push(objects::tenant(
            &name,
            &namespace,
            &hosts.iter().map(String::as_str).collect::<Vec<_>>(),
            "NoDPU",
        ));
        all.push(objects::rule(&namespace, "web", "Starting", [10, 9]));
        all.extend(
            hosts.iter().map(|host| objects::node(&format!("{host}-dpu"), host, Some(&name), json!({}))),
        );
        all.extend((0..10).map(|pod| {
            let (host, is_ready) = (&hosts[pod], pod > 0);
            let status = json!({"status": {"conditions": [{"type": "Ready", "status": if is_ready { "True" } else { "False" },
                "message": "containers with unready status"}]}, "spec": {"nodeName": format!("{host}-dpu")}});
            objects::companion(&namespace, &format!("web-{pod}-{i:05}"), host, &status)
        }));
    }
    objects::data(&all)
}

#[tokio::test]
async fn a_page_of_a_larger_cluster_is_as_small() {
    let sizes = async |tenants: usize| {
        let browser = Browser::of(large(tenants));
        let cookie = browser.cookie().await;
        let mut sizes = Vec::new();
        for view in View::ALL {
            sizes.push(browser.page(&cookie, view.path()).await.len());
        }
        sizes
    };
    let (small, larger) = (sizes(PAGE + 1).await, sizes(3 * PAGE).await);
    for ((view, small), larger) in View::ALL.iter().zip(small).zip(larger) {
        // Rows of the second have longer numbers, and links to more pages.
        assert!(larger < small + small / 5 && larger < 100 << 10, "{view:?}: {small} and {larger} bytes");
    }
}

#[tokio::test]
async fn a_state_has_a_shape_and_a_word_and_pages_have_no_inline_script_or_style() {
    let browser = Browser::of(hostile("x"));
    let cookie = browser.cookie().await;
    for view in View::ALL {
        let html = browser.page(&cookie, view.path()).await;
        assert!(
            !html.contains("style=") && !html.contains("<style") && !html.contains(" onclick"),
            "{view:?}"
        );
        assert_eq!(html.matches("<script").count(), 1, "{view:?}");
        assert!(html.contains("<script src=\"/console.js\" defer></script>"), "{view:?}");
        if !matches!(view, View::Missing | View::Workloads | View::Chain | View::WhatIf) {
            let shaped = ["■", "▲", "●"]
                .iter()
                .any(|shape| html.contains(&format!("aria-hidden=\"true\">{shape}</span> ")));
            assert!(shaped, "{view:?}: {html}");
        }
    }
    assert!(STYLE.len() + SCRIPT.len() < 100 << 10);
    assert!(!POLICY.contains("unsafe") && POLICY.starts_with("default-src 'none'"));
}
