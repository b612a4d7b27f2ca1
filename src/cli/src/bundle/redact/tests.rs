use serde_json::json;

use super::*;

/// Texts where these values have been redacted in objects.
fn texts(learned: &[&str]) -> Texts {
    let mut redactor = Redactor::new(false);
    redactor.object(&mut json!({"args": learned}), false);
    redactor.finish(&BTreeSet::from(["a-known-name".to_owned()])).unwrap()
}

fn redacted(mut object: Value, own: bool, include: bool) -> Value {
    Redactor::new(include).object(&mut object, own);
    object
}

#[test]
fn credentials_are_known_by_their_form() {
    let texts = texts(&[]);
    let key = "-----BEGIN EC PRIVATE KEY-----\nMIIx\n-----END EC PRIVATE KEY-----";
    for (text, expected) in [
        ("error: Bearer abcdef.0123456789abcdef, retrying", "error: Bearer REDACTED retrying"),
        ("token eyJhbGciOi.eyJpc3MiOi.c2ln end", "token REDACTED end"),
        ("https://user:pa@ss@host/x?y=1", "https://REDACTED@host/x?y=1"),
        (r#"{"password":"two \"words\"","x":1}"#, r#"{"password":REDACTED,"x":1}"#),
        (r#"{"m":"{\"apiKey\":\"two words\",\"x\":1}"}"#, r#"{"m":"{\"apiKey\":REDACTED,\"x\":1}"}"#),
        ("DB_PASSWORD=hunter2; next", "DB_PASSWORD=REDACTED; next"),
        ("id AKIAABCDEFGHIJKLMNOP.", "id REDACTED."),
        (&format!("before {key} after"), "before REDACTED after"),
        ("MIIx\n-----END PRIVATE KEY-----\nafter", "REDACTED\nafter"),
        ("-----BEGIN PRIVATE KEY-----\nMIIx", "REDACTED"),
        (&STANDARD.encode(format!("-----BEGIN CERTIFICATE-----\n{key}")), "REDACTED"),
    ] {
        let found = texts.text(text, true);
        assert_eq!(found, expected);
        assert_eq!(texts.text(&found, true), found, "redacting twice changes nothing");
    }
    let bundle = STANDARD.encode("-----BEGIN CERTIFICATE-----\nMIIx\n-----END CERTIFICATE-----\n");
    for stays in [
        "-----BEGIN CERTIFICATE-----\nMIIx\n-----END CERTIFICATE-----",
        &bundle,
        "docker-pullable://registry.example/x@sha256:0011",
        "secretName: outrigger-webhook-tls, tokenExpirationSeconds: 3600",
        "bearer tokens are needed, and basic authentication",
        "spiffe://example.org/agent/blue",
    ] {
        assert_eq!(texts.text(stays, true), stays);
    }
}

#[test]
fn redacted_values_are_found_in_messages_and_names_are_not() {
    let texts = texts(&["hunter2hunter2", "a-known-name", "short", "--level=very-secret"]);
    let object = json!({"metadata": {"name": "hunter2hunter2"},
        "status": {"conditions": [{"message": "hunter2hunter2 of a-known-name is very-secret, short"}]}});
    let found = texts.value(object, false);
    assert_eq!(found["status"]["conditions"][0]["message"], "REDACTED of a-known-name is REDACTED, short");
    assert_eq!(found["metadata"]["name"], "hunter2hunter2", "names are what objects are found by");
}

#[test]
fn no_character_changes_a_terminal() {
    let found = texts(&[]).value(json!({"\u{1b}[2J": ["a\u{202e}\u{9b}\r\n\tb"]}), false);
    assert_eq!(found, json!({r"\u{1b}[2J": ["a\\u{202e}\\u{9b}\\r\n\tb"]}));
}

/// What may be confidential, where a Pod has it.
fn pod() -> Value {
    json!({"metadata": {"annotations": {"note": "n", LAST_APPLIED: "{}", keys::RULE: "r", keys::WORKLOAD: "{}"}, "managedFields": []},
        "spec": {"containers": [{"name": "c", "command": ["run"], "args": ["--mode", "x", "--auth-token", "t", "--db-password=p"],
            "env": [{"name": "OUTRIGGER_LOG", "value": "info"}, {"name": "API_TOKEN", "value": "t"}, {"name": "OTHER", "value": "o"},
                {"name": "FROM", "valueFrom": {"secretKeyRef": {"name": "s", "key": "password"}}}, "strange"],
            "livenessProbe": {"httpGet": {"httpHeaders": [{"name": "h", "value": "v"}]}}}],
            "volumes": [{"name": "v", "secret": {"secretName": "s"}}, {"csi": {"volumeAttributes": {"a": "b"}}}]}})
}

#[test]
fn structure_says_what_may_be_confidential() {
    let tenants = redacted(pod(), false, false);
    let container = &tenants["spec"]["containers"][0];
    assert_eq!(container["command"], json!([MARK]));
    assert_eq!(container["args"], json!([MARK, MARK, MARK, MARK, MARK]));
    let env: Vec<&Value> =
        container["env"].as_array().unwrap().iter().map(|v| v.get("value").unwrap_or(v)).collect();
    assert_eq!(env[..3], [MARK, MARK, MARK]);
    assert_eq!(
        env[3]["valueFrom"]["secretKeyRef"],
        json!({"name": "s", "key": "password"}),
        "references are named"
    );
    assert_eq!(env[4], MARK);
    assert_eq!(container["livenessProbe"]["httpGet"]["httpHeaders"], json!([{"name": "h", "value": MARK}]));
    assert_eq!(tenants["spec"]["volumes"][0]["secret"]["secretName"], "s");
    assert_eq!(tenants["spec"]["volumes"][1]["csi"]["volumeAttributes"], json!({"a": MARK}));
    let annotations = json!({"note": MARK, LAST_APPLIED: MARK, keys::RULE: "r", keys::WORKLOAD: MARK});
    assert_eq!(tenants["metadata"], json!({"annotations": annotations}));

    let own = redacted(pod(), true, false);
    let container = &own["spec"]["containers"][0];
    assert_eq!(container["command"], json!(["run"]));
    assert_eq!(
        container["args"],
        json!(["--mode", "x", "--auth-token", MARK, format!("--db-password={MARK}")])
    );
    let values = ["/env/0/value", "/env/1/value", "/env/2/value"].map(|at| text(container, at));
    assert_eq!(values, ["info", MARK, MARK]);

    let included = redacted(pod(), false, true);
    let container = &included["spec"]["containers"][0];
    assert_eq!(container["args"], json!(["--mode", "x", "--auth-token", MARK, MARK]));
    let values = ["/env/0/value", "/env/1/value", "/env/2/value"].map(|at| text(container, at));
    assert_eq!(values, ["info", MARK, "o"]);
    let annotations = json!({"note": "n", LAST_APPLIED: MARK, keys::RULE: "r", keys::WORKLOAD: "{}"});
    assert_eq!(included["metadata"]["annotations"], annotations);
}

#[test]
fn what_no_kind_of_kubernetes_has_is_redacted_too() {
    let odd = json!({"env": {"A": "s"}, "args": "s", "annotations": ["s"], "password": "s", "data": {"a": {"b": [1, true, "s"]}}});
    let expected = json!({"env": {"A": MARK}, "args": MARK, "annotations": [MARK], "password": MARK,
        "data": {"a": {"b": [MARK, true, MARK]}}});
    assert_eq!(redacted(odd, false, false), expected);
}

#[test]
fn long_texts_are_counted() {
    let mut object = json!({"a": "x".repeat(TEXT), "b": ["x".repeat(TEXT + 1)]});
    assert_eq!(Redactor::new(true).object(&mut object, true), 1);
    assert_eq!(object["b"][0], format!("{MARK}: {} bytes", TEXT + 1));
}

#[test]
fn the_documentation_has_the_same_table() {
    let page = include_str!("../../../../../docs/support.md");
    for (what, how) in HANDLED {
        let row = format!("| {what} | {how} |\n");
        assert!(page.contains(&row), "docs/support.md lacks: {row}");
    }
}

#[test]
fn values_for_which_there_is_no_room_are_counted() {
    let mut redactor = Redactor::new(false);
    let mut rule = |from: usize| {
        let args: Vec<String> =
            (from..from + MOST_LEARNED / 2).map(|i| format!("--password=secret-{i}")).collect();
        redactor.object(&mut json!({"spec": {"containers": [{"args": args}]}}), false);
        redactor.unlearned
    };
    // The flag and its value are two.
    assert_eq!([rule(0), rule(0)], [0, 0], "the same ones again");
    assert_eq!(rule(MOST_LEARNED), MOST_LEARNED);
}
