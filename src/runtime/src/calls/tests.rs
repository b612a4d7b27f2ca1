use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::TryStreamExt;
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::{ListParams, PostParams, WatchParams};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// A server that responds to each request by `answer`, on connections that stay open, its client, and the number of requests.
async fn served<F, R>(answer: F) -> (Client, Arc<AtomicUsize>)
where
    F: Fn(TcpStream) -> R + Send + Sync + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let requests = Arc::new(AtomicUsize::new(0));
    let count = requests.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = vec![0; 64 << 10];
            let _ = stream.read(&mut head).await;
            count.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(answer(stream));
        }
    });
    (client(Config::new(url.parse().unwrap())).unwrap(), requests)
}

async fn never() {
    std::future::pending::<()>().await;
}

fn namespaces(client: &Client) -> Api<Namespace> {
    Api::all(client.clone())
}

fn timed_out(error: &kube::Error) -> Option<TimedOut> {
    TimedOut::in_chain(error)
}

#[tokio::test(start_paused = true)]
async fn a_call_without_a_response_ends() {
    let (client, _) = served(|stream| async move {
        let _open = stream;
        never().await;
    })
    .await;
    let began = Instant::now();
    let error = namespaces(&client).get("a").await.unwrap_err();
    assert_eq!(timed_out(&error), Some(TimedOut::Answer), "{error}");
    let error = namespaces(&client).create(&PostParams::default(), &Namespace::default()).await.unwrap_err();
    assert_eq!(timed_out(&error), Some(TimedOut::Answer), "{error}");
    let watch = WatchParams::default().timeout(290);
    let error = namespaces(&client).watch(&watch, "1").await.err().unwrap();
    assert_eq!(timed_out(&error), Some(TimedOut::Answer), "the opening of a watch: {error}");
    assert!(began.elapsed() < 4 * DEADLINE, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_response_that_is_too_slow_ends() {
    let (client, _) = served(|mut stream| async move {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n").await;
        while stream.write_all(b" ").await.is_ok() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    })
    .await;
    let began = Instant::now();
    let error = namespaces(&client).list(&ListParams::default()).await.unwrap_err();
    assert_eq!(timed_out(&error), Some(TimedOut::Answer), "{error}");
    assert!(began.elapsed() <= DEADLINE + Duration::from_secs(1), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_watch_ends_when_it_is_silent() {
    const BOOKMARK: &[u8] = br#"{"type":"BOOKMARK","object":{"apiVersion":"v1","kind":"Namespace","metadata":{"resourceVersion":"5"}}}"#;
    let (client, _) = served(|mut stream| async move {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await;
        for _ in 0..5 {
            let chunk = format!("{:x}\r\n", BOOKMARK.len() + 1);
            let _ = stream.write_all(&[chunk.as_bytes(), BOOKMARK, b"\n\r\n"].concat()).await;
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
        never().await;
    })
    .await;
    let began = Instant::now();
    let watch = namespaces(&client).watch(&WatchParams::default().timeout(290), "1").await.unwrap();
    let mut watch = std::pin::pin!(watch);
    for _ in 0..5 {
        assert!(watch.try_next().await.unwrap().is_some(), "after {:?}", began.elapsed());
    }
    let last = Instant::now();
    // The library reports some of these as the end of the watch.
    if let Err(error) = watch.try_next().await {
        assert!(error.to_string().contains("timed out") || timed_out(&error).is_some(), "{error:?}");
    }
    assert!(last.elapsed() <= SILENCE + Duration::from_secs(1), "{:?}", last.elapsed());
}

#[tokio::test]
async fn nothing_is_asked_twice() {
    for code in [429, 500, 503, 504] {
        let (client, requests) = served(move |mut stream| async move {
            let head = format!("HTTP/1.1 {code} No\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n");
            let _ = stream.write_all(head.as_bytes()).await;
        })
        .await;
        let error = namespaces(&client).get("a").await.unwrap_err();
        assert_eq!(requests.load(Ordering::Relaxed), 1, "{code}: {error}");
    }
}

#[test]
fn no_client_is_built_elsewhere() {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let files = walkdir::WalkDir::new(&all).into_iter().map(|entry| entry.unwrap().into_path());
    let found: Vec<_> = files.filter(|path| path.extension().is_some_and(|end| end == "rs")).collect();
    assert!(found.len() > 100, "{} files", found.len());
    // The second one is for unit tests.
    let allowed = ["runtime/src/calls.rs", "runtime/src/fake_api.rs"];
    let is_test =
        |path: &Path| path.components().any(|part| part.as_os_str() == "tests") || path.ends_with("tests.rs");
    let builds = |text: &str| {
        let words = ["ClientBuilder", "Client::try_from(", "Client::try_default(", "default_retry"];
        words.iter().any(|word| text.contains(word))
            || text.contains(" Client::new(")
            || text.contains("kube::Client::new(")
    };
    for path in found.iter().filter(|path| !is_test(path)) {
        let text = std::fs::read_to_string(path).unwrap();
        let product = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let is_allowed = allowed.iter().any(|allowed| path.ends_with(allowed));
        assert!(is_allowed || !builds(product), "{} builds a client without deadlines", path.display());
    }
    assert!(
        builds(&std::fs::read_to_string(all.join(allowed[0])).unwrap()),
        "the test finds what it looks for"
    );
}

#[tokio::test]
async fn secrets_and_writes_go_nowhere_and_answers_are_bounded() {
    let (inner, requests) = served(|mut stream| async move {
        let body = serde_json::json!({"apiVersion": "v1", "kind": "NamespaceList", "metadata": {}, "items": [], "x": "x".repeat(200)});
        let body = body.to_string();
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
        let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
    })
    .await;
    let client = read_only(inner.clone(), 1_000);
    let refused = |error: kube::Error| match error {
        kube::Error::Api(status) => (status.code, status.message.clone()),
        error => panic!("{error}"),
    };
    for namespace in [None, Some("a")] {
        let secrets: Api<k8s_openapi::api::core::v1::Secret> =
            namespace.map_or_else(|| Api::all(client.clone()), |name| Api::namespaced(client.clone(), name));
        let list = secrets.list(&ListParams::default()).await.unwrap_err();
        let get = secrets.get_opt("s").await.unwrap_err();
        for error in [list, get] {
            assert_eq!(refused(error), (403, "this command requests no Secrets".to_owned()));
        }
    }
    let error = namespaces(&client).create(&PostParams::default(), &Namespace::default()).await.unwrap_err();
    assert_eq!(refused(error), (403, "this command writes nothing".to_owned()));
    assert_eq!(requests.load(Ordering::Relaxed), 0);

    assert!(namespaces(&client).list(&ListParams::default()).await.is_ok());
    let too_much = namespaces(&read_only(inner, 100)).list(&ListParams::default()).await.unwrap_err();
    assert!(format!("{too_much:?}").contains("LengthLimit"), "{too_much:?}");
    assert_eq!(requests.load(Ordering::Relaxed), 2);
    let allowed = |method: Method, path: &str| {
        withheld(&Request::builder().method(method).uri(path).body(()).unwrap()).is_none()
    };
    assert!(allowed(Method::POST, "/api/v1/namespaces/a/pods?&dryRun=All"));
    assert!(allowed(Method::POST, "/apis/authorization.k8s.io/v1/subjectaccessreviews?"));
    assert!(allowed(Method::GET, "/api/v1/namespaces/secrets/pods"));
    assert!(!allowed(Method::DELETE, "/api/v1/namespaces/a/pods/p"));
}
