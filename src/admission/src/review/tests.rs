use super::*;
use serde_json::json;

#[test]
fn what_is_no_review_is_refused_with_the_reason() {
    for (body, part) in [
        ("", "EOF"),
        ("{\"kind\": \"AdmissionReview\", \"apiVersion\": \"admission.k8s.io/v1\", \"request\": {", "EOF"),
        ("[]", "no AdmissionReview"),
        ("{}", "\"\" of \"\""),
        (r#"{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1beta1"}"#, "v1beta1"),
        (r#"{"kind":"Pod","apiVersion":"admission.k8s.io/v1"}"#, "\"Pod\""),
        (r#"{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}"#, "request: is missing"),
        (r#"{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{}}"#, "request.uid"),
        (
            r#"{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":7}}"#,
            "invalid type",
        ),
    ] {
        let error = read(body.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(part), "{body}: {error}");
    }
}

#[test]
fn a_body_that_is_no_utf_8_is_no_review_wherever_its_bytes_are() {
    for at in ["ignored", "name", "managedFields"] {
        let mut body = json!({"kind": "AdmissionReview", "apiVersion": API_VERSION, "request": {"uid": "u-1", "operation": "CREATE",
            "ignored": "ignored-x", "kind": {"kind": "Pod"}, "name": "name-x", "namespace": "n",
            "object": {"metadata": {"managedFields": [{"manager": "managedFields-x"}]}}}})
        .to_string()
        .into_bytes();
        read(&body).unwrap();
        let text = format!("{at}-x");
        let end = body.windows(text.len()).position(|found| found == text.as_bytes()).unwrap() + text.len();
        body[end - 1] = 0xff;
        let error = read(&body).unwrap_err().to_string();
        assert!(error.contains("no UTF-8 text") && error.contains(&format!("index {}", end - 1)), "{error}");
    }
}

#[test]
fn a_review_that_is_too_large_is_distinguished_by_its_uid() {
    let review = |operation: &str, object: &Value, old: &Value| {
        json!({"kind": "AdmissionReview", "apiVersion": API_VERSION, "request": {"uid": "u-1", "kind": {"kind": "Pod"},
            "operation": operation, "object": object, "oldObject": old}})
        .to_string()
    };
    let many = json!({"spec": {"env": vec![json!({}); BOUNDS.values]}});
    let mut deep = json!(null);
    for _ in 0..=BOUNDS.depth {
        deep = json!([deep]);
    }
    let long = json!({"a": "x".repeat(BOUNDS.bytes)});
    for (object, words) in [
        (
            &many,
            [
                "spec.env: has more than half of what is in the object; the review of the object has 100",
                "at most 100000 are allowed",
            ],
        ),
        (&deep, ["is nested 103 levels", "at most 100 are allowed"]),
        (&long, ["has 83", "at most 8388608 are allowed"]),
    ] {
        let body = review("CREATE", object, &json!(null));
        let error = read(body.as_bytes()).unwrap_err().located(body.as_bytes());
        assert!(matches!(&error, ReviewError::Beyond { uid: Some(uid), .. } if uid == "u-1"), "{error:?}");
        for words in words {
            assert!(error.to_string().contains(words), "{words}: {error}");
        }
        assert!(error.to_string().contains("make the object smaller"), "{error}");
    }
    // As the API server writes it: the uid comes before the object.
    let body = r#"{"kind":"AdmissionReview","request":{"uid":"u-1","kind":{"kind":"Pod"},"object":{"spec":{"uid":"x"}}}}"#;
    let mut found = 0;
    for end in 0..body.len() {
        match uid(&body.as_bytes()[..end]) {
            None => assert_eq!(found, 0, "what was there is there"),
            Some(uid) => {
                assert_eq!(uid, "u-1");
                found += 1;
            }
        }
    }
    assert!(found > 50 && uid(b"[]").is_none() && uid(br#"{"request": {"uid": 7}}"#).is_none());
    for (length, is_uid) in [(0, false), (1, true), (253, true), (254, false)] {
        let text = "x".repeat(length);
        let found = uid(json!({"request": {"uid": text}}).to_string().as_bytes());
        assert_eq!(found, is_uid.then_some(text), "{length}");
    }
}

#[test]
fn small_and_large_reviews_are_read_alike() {
    for length in [1, 10 * SMALL] {
        let object = |value: &str| json!({"metadata": {"labels": {"é": value}}, "spec": {"a": "x".repeat(length), "b": 1.5}});
        let (new, old) = (object("new"), object("old"));
        let sent = |object: &Value| {
            let mut sent = object.clone();
            sent["metadata"]["managedFields"] = json!([{"manager": "m", "fieldsV1": {"f:spec": {}}}]);
            sent
        };
        let (sent_new, sent_old) = (sent(&new), sent(&old));
        for (operation, judged) in [("UPDATE", true), ("CREATE", false)] {
            let body = json!({"kind": "AdmissionReview", "apiVersion": API_VERSION, "request": {"uid": "u",
                "kind": {"group": "", "version": "v1", "kind": "Pod"}, "subResource": "resize", "namespace": "n",
                "operation": operation, "userInfo": {"username": "me", "groups": null}, "object": sent_new, "oldObject": sent_old,
                "dryRun": true}});
            let request = read(body.to_string().as_bytes()).unwrap();
            assert_eq!(request.object, new);
            assert_eq!(request.old_object == old, judged || length == 1);
            let names = [&request.uid, &request.sub_resource, &request.namespace, &request.operation];
            assert_eq!(names, ["u", "resize", "n", operation]);
            assert_eq!((request.user_info.username.as_str(), request.dry_run), ("me", Some(true)));
            assert_eq!(request.kind, Kind { version: "v1".into(), kind: "Pod".into(), ..Kind::default() });
            let exact = (sent_new.to_string().len(), sent_old.to_string().len());
            let wanted = match (length, judged) {
                // A small review as a whole is enough of a measure.
                (1, _) => (body.to_string().len(), 0),
                (_, true) => exact,
                (_, false) => (exact.0, 0),
            };
            assert_eq!(request.sizes, Some(wanted), "{length} {operation}");
            assert_eq!(request.sizes(), wanted);
        }
    }
    let null = json!({"kind": "AdmissionReview", "apiVersion": API_VERSION, "request": {"uid": "u", "object": null,
        "more": "x".repeat(10 * SMALL)}});
    assert_eq!(read(null.to_string().as_bytes()).unwrap().object, Value::Null);
}

#[test]
fn what_is_no_object_is_left_to_the_handlers_as_it_is() {
    for value in [json!(true), json!(-1), json!(7), json!(1.5), json!("x"), json!([{"a": 1}]), json!(null)] {
        for object in [value.clone(), json!({"metadata": value, "spec": value})] {
            for length in [1, 2 * SMALL] {
                let body = json!({"kind": "AdmissionReview", "apiVersion": API_VERSION, "request": {"uid": "u",
                    "object": object, "more": "x".repeat(length)}});
                assert_eq!(read(body.to_string().as_bytes()).unwrap().object, object);
            }
        }
    }
}

#[test]
fn patch_and_patch_type_come_together_or_not_at_all() {
    let answer =
        |decision: &Decision| -> Value { serde_json::from_slice(&write("u", decision).unwrap()).unwrap() };
    let plain = answer(&Decision::allow());
    assert_eq!(
        plain,
        json!({"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": {"uid": "u", "allowed": true}})
    );
    let patch = json_patch::diff(&json!({}), &json!({"a": 1}));
    let patched = answer(&Decision::Allow {
        patch,
        warnings: vec!["w".into()],
        audit: vec![("isolation", "name=a".into())],
    });
    assert_eq!(patched["response"]["patchType"], "JSONPatch");
    assert!(patched["response"]["patch"].is_string());
    assert_eq!(patched["response"]["warnings"], json!(["w"]));
    assert_eq!(patched["response"]["auditAnnotations"], json!({"isolation": "name=a"}));
    let deny =
        |causes| Decision::Deny { code: 403, message: "spec.x: no".into(), causes, by: "step=keys".into() };
    assert_eq!(
        answer(&deny(Vec::new()))["response"],
        json!({"uid": "u", "allowed": false, "auditAnnotations": {"denied": "code=403 step=keys"}, "status": {"code": 403, "message": "spec.x: no"}})
    );
    let by_field = answer(&deny(vec![FieldError::new("spec.x", "no")]));
    assert_eq!(
        by_field["response"]["auditAnnotations"],
        json!({"denied": "code=403 step=keys fields=spec.x"})
    );
    assert_eq!(
        by_field["response"]["status"]["details"]["causes"],
        json!([{"reason": "FieldValueInvalid", "field": "spec.x", "message": "no"}])
    );
}

#[test]
fn warnings_end_where_the_api_server_would_cut() {
    let many = vec!["x".repeat(100); 60];
    assert_eq!(shown(&many).len(), 40);
}
