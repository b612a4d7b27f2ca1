use std::sync::Arc;

use futures::io::Cursor;
use http::{Request as HttpRequest, Response};
use k8s_openapi::api::core::v1::Namespace;
use kube::client::Body;
use kube::{Client, ResourceExt};
use parking_lot::Mutex;
use proptest::prelude::*;
use serde_json::json;
use tower::{BoxError, service_fn};

use super::*;

/// An API server with these objects, which gives pages as it is asked; the place in the list is the continue token. Notes the limit
/// and the token of each call.
fn server(sizes: Vec<usize>, asked: Arc<Mutex<Vec<(usize, usize)>>>) -> Client {
    let service = service_fn(move |request: HttpRequest<Body>| {
        let query = request.uri().query().unwrap_or_default().to_owned();
        let of = |name: &str| {
            let value = query.split('&').find_map(|pair| pair.strip_prefix(name));
            value.and_then(|value| value.parse::<usize>().ok())
        };
        let (limit, from) = (of("limit=").unwrap_or(usize::MAX), of("continue=").unwrap_or(0));
        asked.lock().push((limit, from));
        let until = from.saturating_add(limit).min(sizes.len());
        // In the order in which API servers write.
        let items: Vec<String> = (from..until)
            .map(|i| {
                let text = "x".repeat(sizes[i]);
                format!(r#"{{"metadata":{{"name":"n{i}","annotations":{{"x":"{text}"}}}}}}"#)
            })
            .collect();
        let token = if until < sizes.len() { until.to_string() } else { String::new() };
        let list = format!(
            r#"{{"kind":"NamespaceList","apiVersion":"v1","metadata":{{"resourceVersion":"7","continue":"{token}"}},"items":[{}]}}"#,
            items.join(",")
        );
        async move { Ok::<_, BoxError>(Response::new(Body::from(list.into_bytes()))) }
    });
    Client::new(service, "default")
}

async fn all(sizes: &[usize], most: usize) -> (Result<Vec<String>, Error>, Vec<(usize, usize)>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let api: Api<Namespace> = Api::all(server(sizes.to_vec(), asked.clone()));
    let (mut pages, mut params) = (Pages { size: FIRST, most }, ListParams::default());
    let mut names = Vec::new();
    let result = loop {
        let show = |object: Decoded<Namespace>| -> Result<(), Error> {
            names.push(object?.name_any());
            Ok(())
        };
        match pages.next(&api, &params, show).await {
            Err(error) => break Err(error),
            Ok(page) => match page.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params.continue_token = Some(token),
                None => break Ok(names),
            },
        }
    };
    let asked = asked.lock().clone();
    (result, asked)
}

#[tokio::test]
async fn a_page_that_is_too_long_is_requested_again_with_half_as_many_objects() {
    // The eighth object nearly fills a page by itself.
    let mut sizes = vec![100; 20];
    sizes[7] = 9000;
    let (names, asked) = all(&sizes, 10_000).await;
    let expected: Vec<String> = (0..20).map(|i| format!("n{i}")).collect();
    assert_eq!(names.unwrap(), expected, "each once, in order");
    assert_eq!(asked[..2], [(16, 0), (8, 0)]);
    assert!(asked.windows(2).all(|pair| pair[1].1 >= pair[0].1), "never back: {asked:?}");
    assert!(asked.iter().any(|(limit, _)| *limit < 8), "{asked:?}");
}

#[tokio::test]
async fn an_object_that_alone_is_too_long_is_named() {
    let (result, asked) = all(&[10, 20_000, 10], 10_000).await;
    let error = result.unwrap_err();
    assert!(TooLong::is(&error));
    assert!(error.to_string().ends_with("or make it smaller: n1"), "{error}");
    assert_eq!(asked.last(), Some(&(1, 1)));
}

#[tokio::test]
async fn pages_of_small_objects_grow() {
    let (names, asked) = all(&vec![10; 3000], MOST).await;
    assert_eq!(names.unwrap().len(), 3000);
    let limits: Vec<usize> = asked.iter().map(|(limit, _)| *limit).collect();
    assert_eq!(limits, [16, 32, 64, 128, 256, 500, 500, 500, 500, 500, 500]);
}

#[test]
fn field_managers_are_not_decoded() {
    for (text, expected) in [
        (
            r#"{"metadata":{"name":"a","managedFields":[{"fieldsV1":{"f:a":{}}}],"uid":"u"},"spec":{"managedFields":[1]}}"#,
            r#"{"metadata":{"name":"a","managedFields":null,"uid":"u"},"spec":{"managedFields":[1]}}"#,
        ),
        (r#"{"metadata":{"name":"a"}}"#, r#"{"metadata":{"name":"a"}}"#),
        (r#"{"spec":1}"#, r#"{"spec":1}"#),
        ("[]", "[]"),
    ] {
        assert_eq!(unmanaged(text), expected);
    }
}

fn lines(text: &str, most: usize) -> Lines<Cursor<Vec<u8>>> {
    Lines { answer: Cursor::new(text.as_bytes().to_vec()), line: Vec::new(), most }
}

fn event(kind: &str, name: &str) -> String {
    format!("{}\n", json!({"type": kind, "object": {"metadata": {"name": name, "resourceVersion": "3"}}}))
}

#[tokio::test]
async fn a_line_is_read_up_to_a_limit() {
    let text = [event("ADDED", "a"), event("DELETED", "b"), event("BOOKMARK", ""), "{\"type\": \"ADD".into()]
        .concat();
    let mut read = lines(&text, 200);
    assert!(
        matches!(read.next::<Namespace>().await, Ok(Some(Line::Applied(Ok(object)))) if object.name_any() == "a")
    );
    assert!(
        matches!(read.next::<Namespace>().await, Ok(Some(Line::Deleted(Ok(object)))) if object.name_any() == "b")
    );
    assert!(matches!(read.next::<Namespace>().await, Ok(Some(Line::Bookmark(place))) if place == "3"));
    assert!(matches!(read.next::<Namespace>().await, Ok(None)), "the line is incomplete");

    let long = r#"{"type":"ADDED","object":{"metadata":{"name":"long","namespace":"n","annotations":{"x":"xxxxxxxxxxxxxxxxxxx"}}}}"#;
    let error = lines(long, 100).next::<Namespace>().await.map(drop).unwrap_err();
    assert!(error.to_string().ends_with("smaller: n/long"), "{error}");
}

#[test]
fn of_an_object_that_cannot_be_decoded_the_metadata_is_read() {
    let read = |text: &str| object::<Namespace>(&RawValue::from_string(text.to_owned()).unwrap());
    let Ok(Err(unreadable)) = read(r#"{"metadata":{"name":"a","uid":"u","resourceVersion":"3"},"spec":7}"#)
    else {
        panic!("it is decoded")
    };
    let Unreadable { namespace, name, uid, resource_version, .. } = &unreadable;
    assert_eq!([namespace, name, uid, resource_version], ["", "a", "u", "3"]);
    assert!(unreadable.to_string().starts_with("object a can't be decoded; "), "{unreadable}");
    let of_namespace = Unreadable { namespace: "n".to_owned(), ..unreadable };
    assert!(of_namespace.to_string().starts_with("object n/a can't be decoded; "), "{of_namespace}");
    for text in [r#"{"metadata":{"name":"a"},"spec":7}"#, r#"{"metadata":7}"#, "7"] {
        assert!(matches!(read(text), Err(Error::SerdeError(_))), "{text}");
    }
}

#[tokio::test]
async fn an_error_of_the_api_server_is_one() {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no", "reason": "Expired",
        "code": 410, "metadata": {}});
    for text in [format!("{}\n", json!({"type": "ERROR", "object": status})), format!("{status}\n")] {
        let line = lines(&text, 1000).next::<Namespace>().await.unwrap();
        assert!(matches!(line, Some(Line::Failed(Error::Api(status))) if status.code == 410));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever the sizes: each object is shown once, in order, and no page is larger than the limit but one that is refused.
    #[test]
    fn every_object_is_shown_once(sizes in proptest::collection::vec(0_usize..3000, 0..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (names, asked) = runtime.block_on(all(&sizes, 5000));
        let expected: Vec<String> = (0..sizes.len()).map(|i| format!("n{i}")).collect();
        prop_assert_eq!(names.unwrap(), expected);
        // Each refusal halves, and only short pages double.
        prop_assert!(asked.len() <= 8 + 3 * sizes.len());
    }
}
