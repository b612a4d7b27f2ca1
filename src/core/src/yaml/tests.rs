use proptest::prelude::*;
use serde_json::json;

use super::*;

/// Small bounds, so that tests reach them.
const BOUNDS: Bounds = Bounds { bytes: 10_000, values: 1_000, depth: 10 };

fn one(text: &str) -> Result<Value, String> {
    let mut documents = documents(text, BOUNDS).map_err(|error| error.to_string())?;
    assert_eq!(documents.len(), 1, "{text}");
    Ok(documents.remove(0))
}

#[test]
fn plain_scalars_are_those_of_yaml_1_1() {
    for (text, value) in [
        ("on", json!(true)),
        ("y", json!(true)),
        ("No", json!(false)),
        ("OFF", json!(false)),
        ("oN", json!("oN")),
        ("~", json!(null)),
        ("", json!(null)),
        ("0644", json!(420)),
        ("-0644", json!(-420)),
        ("0o644", json!(420)),
        ("0x1F", json!(31)),
        ("0b101", json!(5)),
        ("08", json!(8)),
        ("1_000", json!(1000)),
        ("_1", json!("_1")),
        ("+5", json!(5)),
        ("0x", json!("0x")),
        ("0x-5", json!("0x-5")),
        ("1e3", json!(1000)),
        ("1.", json!(1)),
        (".5", json!(0.5)),
        (".5_0", json!(0.5)),
        ("1.5e-3", json!(0.0015)),
        ("1e999", json!("1e999")),
        ("0x1p3", json!("0x1p3")),
        ("1:30", json!("1:30")),
        ("2026-01-01", json!("2026-01-01")),
        ("2026-01-01T00:00:00Z", json!("2026-01-01T00:00:00Z")),
        ("9223372036854775807", json!(i64::MAX)),
        ("9223372036854775808", json!(9_223_372_036_854_775_808.0)),
        ("-9223372036854775808", json!(i64::MIN)),
        ("1.2.3", json!("1.2.3")),
        ("<<", json!("<<")),
        ("'on'", json!("on")),
        ("\"0644\"", json!("0644")),
        ("!!str 0644", json!("0644")),
        ("!!int '7'", json!(7)),
        ("!!float 7", json!(7)),
        ("!own 7", json!("7")),
        ("!!timestamp 2026-01-01", json!("2026-01-01")),
    ] {
        let text = format!("a: {text}\n");
        assert_eq!(one(&text).unwrap(), json!({"a": value}), "{text}");
    }
}

#[test]
fn keys_are_texts() {
    assert_eq!(one("on: 1\n010: 2\n'<<': 3\n").unwrap(), json!({"true": 1, "8": 2, "<<": 3}));
    for key in ["~", "1.5", "[a]", "{a: b}", "&a a", "9223372036854775808"] {
        let error = one(&format!("x: y\n? {key}\n: 1\n")).unwrap_err();
        assert!(error.starts_with("line 2, column "), "{key}: {error}");
    }
}

#[test]
fn merge_keys_are_applied_in_the_order_of_kubectl() {
    let base = "a: &a {x: 1, v: 1}\nb: &b {x: 2, z: 2}\n";
    for (entry, value) in [
        ("{<<: *a, v: 3}", json!({"x": 1, "v": 3})),
        ("{v: 3, <<: *a}", json!({"x": 1, "v": 1})),
        ("{<<: [*a, *b]}", json!({"x": 1, "v": 1, "z": 2})),
        ("{<<: {w: 4}}", json!({"w": 4})),
    ] {
        assert_eq!(one(&format!("{base}c: {entry}\n")).unwrap()["c"], value, "{entry}");
    }
    for entry in ["{<<: 1}", "{<<: [1]}", "{<<: *l}"] {
        let error = one(&format!("{base}l: &l [*a]\nc: {entry}\n")).unwrap_err();
        assert!(error.starts_with("line 4, column 9: the value of << is an object"), "{entry}: {error}");
    }
}

#[test]
fn documents_are_split_as_kubectl_splits_them() {
    let all = |text: &str| documents(text, BOUNDS).map_err(|error| error.to_string());
    assert_eq!(all("").unwrap(), Vec::<Value>::new());
    assert_eq!(all("# nothing\n").unwrap(), Vec::<Value>::new());
    assert_eq!(
        all("a: 1\n--- # two\nb: 2\n...\n---\nc: 3\n").unwrap(),
        [json!({"a": 1}), json!({"b": 2}), json!({"c": 3})]
    );
    assert_eq!(
        all("\u{feff}a: 1\r\n---\r\nb: 'x\r\n  y'\r\n").unwrap(),
        [json!({"a": 1}), json!({"b": "x y"})]
    );
    assert_eq!(all("{\"a\": 1}{\"b\": 2}\n{\"c\": 3}").unwrap().len(), 3);
    assert_eq!(all("{a: 1}\n---\n{b: 2}").unwrap().len(), 2);
    assert_eq!(all("a: |\n  x\n  y").unwrap(), [json!({"a": "x\ny\n"})]);
    for (text, error) in [
        ("--- {a: 1}\n", "line 1, column 4: only a comment may follow"),
        ("a: 1\n---#b\n", "line 2, column 4: only a comment may follow"),
        ("a: 1\n...\nb: 2\n", "line 3, column 1: kubectl doesn't read this document"),
        ("a: *b\n", "line 1, column 4: "),
        ("a: &a [*a]\n", "line 1, column 8: the alias is a part of the value"),
        ("a: [1\n", "line 1, column 4: "),
        ("%YAML 1.1\n---\na: 1\n", "line 1, column 1: "),
        ("a: .inf\n", "line 1, column 4: inf is no number of JSON"),
        ("a: !!binary aGk=\n", "line 1, column 13: !!binary isn't read"),
        ("a: !!int x\n", "line 1, column 10: \"x\" is no !!int"),
    ] {
        let found = all(text).unwrap_err();
        assert!(found.starts_with(error), "{text:?}: {found}");
    }
}

#[test]
fn what_aliases_expand_to_is_bounded() {
    let bomb = (1..9).fold("a0: &a0 [x, x, x, x, x, x, x, x]\n".to_owned(), |text, level| {
        let aliases = vec![format!("*a{}", level - 1); 8].join(", ");
        format!("{text}a{level}: &a{level} [{aliases}]\n")
    });
    let error = one(&bomb).unwrap_err();
    assert!(error.contains("there are more than 1000 values"), "{error}");
    let long = format!("a: &a {}\nb: [*a, *a, *a]\n", "x".repeat(4_000));
    assert!(one(&long).unwrap_err().contains("the text has more than 10000 bytes"));
    // Also what is kept for aliases that nobody uses.
    let kept = format!("{}{}", "&a [".repeat(9), "x, ".repeat(200));
    assert!(one(&kept).unwrap_err().starts_with("line 1"));
    let deep = "a: &a [[[[[x]]]]]\nb: [[[[[*a]]]]]\n";
    assert_eq!(
        one(deep).unwrap_err(),
        "line 2, column 9: lists and objects are nested deeper than 10 levels"
    );
    // Control cases: within the bounds.
    assert_eq!(one("a: &a [[[[[x]]]]]\nb: [[[*a]]]\n").unwrap()["b"][0][0][0], json!([[[[["x"]]]]]));
    let plain = format!("a: &a [{}]\nb: [*a, *a]\n", vec!["x"; 200].join(", "));
    assert_eq!(one(&plain).unwrap()["b"][1].as_array().map(Vec::len), Some(200));
}

#[test]
fn texts_beyond_the_bounds_are_refused_before_they_are_read() {
    let error = |text: &str| documents(text, BOUNDS).unwrap_err().to_string();
    assert!(error(&"x".repeat(10_001)).contains("10001 bytes"));
    for open in ["[", "{\"a\":", "- "] {
        let found = error(&open.repeat(1_000));
        assert!(found.contains("1000 levels") || found.contains("deeper than 10 levels"), "{open}: {found}");
    }
    assert!(error(&format!("{{\"a\": [{}1]}}", "1,".repeat(2_000))).contains("2003 values"));
}

/// Pieces that mean something in YAML.
const PIECES: [&str; 30] = [
    "a",
    ": ",
    "- ",
    "\n",
    "\n  ",
    "[",
    "]",
    "{",
    "}",
    ", ",
    "&a ",
    "*a",
    "<<",
    "? ",
    "|",
    ">-",
    "\n---\n",
    "...",
    "\"",
    "'",
    "\\U0011FFFF",
    "!!int ",
    "!<x> ",
    "#",
    "%YAML 1.1\n",
    "%TAG ! x\n",
    "\t",
    "\u{feff}",
    "\r\n",
    "0x1",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// No text makes it panic, and what it takes is bounded.
    #[test]
    fn any_text_is_read_or_refused(pieces in prop::collection::vec(0..PIECES.len(), 0..60)) {
        let text: String = pieces.iter().map(|piece| PIECES[*piece]).collect();
        if let Ok(documents) = documents(&text, BOUNDS) {
            let bytes: usize = documents.iter().map(|value| value.to_string().len()).sum();
            prop_assert!(bytes < 20 * BOUNDS.bytes);
        }
    }

    /// JSON is YAML: it is read alike as both.
    #[test]
    fn json_is_read_as_yaml_too(texts in prop::collection::vec("\\PC{0,8}", 0..6), numbers in prop::collection::vec(any::<i64>(), 0..6)) {
        let value = json!({"texts": texts, "numbers": numbers, "more": [{"a": null}, true]});
        prop_assert_eq!(&one(&value.to_string()).unwrap(), &value);
        prop_assert_eq!(one(&format!("# YAML\n{value}\n")).unwrap(), value);
    }
}
