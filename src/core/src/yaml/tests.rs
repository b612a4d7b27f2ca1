use outrigger_cases::yaml::PIECES;
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
        (".5_", json!(".5_")),
        ("._5", json!("._5")),
        ("+.5_", json!(0.5)),
        ("0b-101", json!(-5)),
        ("0x1FFFFFFFFFFFFFFFF", json!("0x1FFFFFFFFFFFFFFFF")),
        ("-9223372036854775809", json!(-9_223_372_036_854_775_808.0)),
        ("1152921504606846976.0", json!(1_152_921_504_606_847_000_i64)),
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
        ("! 7", json!("7")),
        ("!!int 18446744073709551615", json!(18_446_744_073_709_551_615.0)),
    ] {
        let text = format!("a: {text}\n");
        assert_eq!(one(&text).unwrap(), json!({"a": value}), "{text}");
    }
}

#[test]
fn tags_that_do_not_fit_are_refused() {
    for text in [
        "!!int x",
        "!!float 18446744073709551615",
        "!!null x",
        "!!bool 1",
        "!!binary aGk=",
        "!!timestamp 2026-01-01",
    ] {
        let error = one(&format!("a: {text}\n")).unwrap_err();
        assert!(error.starts_with("line 1, column 4: "), "{text}: {error}");
    }
}

/// The parser ends the program at it.
#[test]
fn a_comma_behind_a_tag_is_refused() {
    for (text, column) in [
        ("[!!str, a]", 7),
        ("{!a: 1, b: !!int, c: 1}", 17),
        ("['!x,y', b !x, z, &a !<tag:x>, a]", 30),
        ("[a,!x, b]", 6),
        ("[a, \"b\"!, b]", 8),
        ("b: !i,", 6),
        ("[b !<a,!x, c]", 10),
        ("[!<tag:yaml.org,2002:str>, c]", 26),
    ] {
        let error = one(&format!("é: 'x\n  y'\n---\n{text}\n")).unwrap_err();
        assert!(error.starts_with(&format!("line 4, column {column}: ")), "{text}: {error}");
    }
    let text =
        "a: [!<tag:yaml.org,2002:str> , b!c,d, b !c,d, '!e,f', \"!g,h\"] # !i,\nb: x !i, y\nc: |\n  !j,\n";
    let list = json!(["", "b!c", "d", "b !c", "d", "!e,f", "!g,h"]);
    assert_eq!(one(text).unwrap(), json!({"a": list, "b": "x !i, y", "c": "!j,\n"}));
}

#[test]
fn numbers_of_json_are_those_that_are_sent() {
    let text = r#"{"a": 1.0, "b": [1e2], "c": 18446744073709551615, "d": -0.0, "e": 1.5}"#;
    let value = json!({"a": 1, "b": [100], "c": 18_446_744_073_709_551_615.0, "d": 0, "e": 1.5});
    assert_eq!(one(text).unwrap(), value);
}

#[test]
fn keys_are_texts() {
    assert_eq!(one("on: 1\n010: 2\n'<<': 3\n").unwrap(), json!({"true": 1, "8": 2, "<<": 3}));
    assert_eq!(one("&a x: *a\nz: {*a : 1}\n? *a\n: 2\n").unwrap(), json!({"x": 2, "z": {"x": 1}}));
    for key in ["~", "1.5", "[a]", "{a: b}", "9223372036854775808", "*l"] {
        let error = one(&format!("x: &l []\n? {key}\n: 1\n")).unwrap_err();
        assert!(error.starts_with("line 2, column 3: a key is a text"), "{key}: {error}");
    }
    // The last of the same keys counts. That of a number and a text that are alike is by chance in kubectl.
    assert_eq!(one("a: 1\n8: 1\na: 2\n010: 2\n").unwrap(), json!({"a": 2, "8": 2}));
    for text in ["8: 1\n'8': 2\n", "'8': 1\n8: 2\n", "'8': 1\n<<: {8: 2}\n"] {
        let error = one(text).unwrap_err();
        assert!(error.starts_with("line 2, column 1: kubectl takes any"), "{text}: {error}");
    }
}

#[test]
fn a_name_stands_for_the_last_value_that_has_begun() {
    assert_eq!(one("a: &x 1\nb: &x {c: &x 2}\nd: *x\n").unwrap()["d"], json!(2));
    assert_eq!(one("a: &x 1\nb: &x {c: 2}\nd: *x\n").unwrap()["d"], json!({"c": 2}));
    for text in ["a: &x 1\nb: &x [*x]\n", "a: 1\nb:    [*x]\n", "a: &x 1\n---\nb:    [*x]\n"] {
        assert!(one(text).unwrap_err().contains(", column 8: *x stands for no value"), "{text}");
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
    assert_eq!(all("a: 1\n---#b\n\u{feff}b: 2\n").unwrap().len(), 2);
    assert_eq!(all("{\"a\": 1} # b\n---\n{b: 2}").unwrap().len(), 2);
    assert_eq!(all("{\"a\": 1}\n\n").unwrap().len(), 1);
    assert_eq!(all("a: |\n  x\n  y").unwrap(), [json!({"a": "x\ny\n"})]);
    for (text, error) in [
        ("{\"a\": 1} b", "line 1, column 10: expected value (read as JSON"),
        ("{\"a\": 1}\n {\"b\": 2}\n---\nc: 3\n", "line 3, column 2: invalid number (read as JSON"),
        ("{\"a\":\n\n 1e999}", "line 3, column 6: number out of range (read as JSON"),
        ("{\"a\": 1} \n--- x\n", "line 2, column 4: only a comment may follow"),
        ("a: 1\nb: \u{7}\n", "line 2, column 4: is a control character"),
        ("a: 1\n---\nb: \u{feff}\n", "line 3, column 4: is a control character or a byte order mark"),
        (
            "a: 1\n---\n\u{feff}b: [\"\\\\/\", \"\\/\"]\n",
            "line 3, column 12: kubectl doesn't read the escape",
        ),
        ("a: [b?c]\n", "line 1, column 5: kubectl ends a text at ? in brackets"),
        ("a: 1\r---\rb: 2\n", "line 2, column 1: kubectl doesn't read this document"),
        ("--- {a: 1}\n", "line 1, column 4: only a comment may follow"),
        ("a: 1\n---b\n", "line 2, column 4: only a comment may follow"),
        ("a: 1\n...\nb: 2\n", "line 3, column 1: kubectl reads no directives (%), and nothing behind"),
        ("a: *b\n", "line 1, column 4: "),
        ("a: [1\n", "line 1, column 4: while parsing a flow sequence"),
        ("a: 1\n---\nb: 'c\n\n", "line 3, column 4: while scanning a quoted scalar"),
        ("a: 1\n---\n{\n\n", "line 3, column 2: while parsing a flow node"),
        ("%YAML 1.1\n---\na: 1\n", "line 1, column 10: kubectl reads no directives"),
        ("%YAML 1.1\r---\ra: 1\n", "line 1, column 1: directives aren't read"),
        ("a: .inf\n", "line 1, column 4: inf is no number of JSON"),
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
    assert!(one(&long).unwrap_err().contains("there are more than 10000 bytes"));
    // Also what is kept for aliases that nobody uses.
    let kept = |names: &str| format!("{}{}{}\n", names.repeat(9), "x, ".repeat(200), "]".repeat(9));
    assert!(one(&kept("&a [")).unwrap_err().contains("there are more than 1000 values"));
    assert!(one(&kept("[")).is_ok());
    // Of what kubectl decodes for a small document, 99% may be for aliases.
    let wide = Bounds { bytes: 100_000, values: 100_000, depth: 10 };
    let aliases = |number: usize| format!("- &a [x, x, x, x, x, x, x, x, x]\n{}", "- *a\n".repeat(number));
    assert!(documents(&aliases(1_000), wide).is_ok());
    let nested = |number: usize| {
        format!("{}- &b [{}]\n- [{}]\n", aliases(0), "*a, ".repeat(100), "*b, ".repeat(number))
    };
    assert!(documents(&nested(8), wide).is_ok());
    let error = documents(&nested(20), wide).unwrap_err().to_string();
    assert!(error.contains("kubectl refuses a document that consists of aliases so much"), "{error}");
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
fn long_texts_are_read() {
    for character in ["é", "日", "😀", "a"] {
        for begin in 0..4 {
            let text = format!("{}{}", "a".repeat(begin), character.repeat(20_000));
            let read =
                documents(&format!("- {text}\n- \"/{text}\"\n- '{text}'\n"), OF_FILES).unwrap().remove(0);
            assert_eq!(read, json!([text, format!("/{text}"), text]));
        }
    }
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

#[test]
fn files_are_of_utf_8_or_say_that_they_are_of_utf_16() {
    let utf_16 =
        |text: &str, order: fn(u16) -> [u8; 2]| text.encode_utf16().flat_map(order).collect::<Vec<u8>>();
    let text = "\u{feff}a: é😀\n";
    for bytes in [text.into(), utf_16(text, u16::to_le_bytes), utf_16(text, u16::to_be_bytes)] {
        assert_eq!(one(&decoded(bytes).unwrap()).unwrap(), json!({"a": "é😀"}));
    }
    for (bytes, error) in [
        (b"a: 1\n\xc3\xa9\xff".to_vec(), "line 2, column 2: is no character of UTF-8"),
        (b"\xff\xfea\0\n\0b\0\0\xd8".to_vec(), "line 2, column 2: is no character of UTF-16"),
        (b"\xfe\xff\0a\0".to_vec(), "line 1, column 2: is no character of UTF-16"),
    ] {
        let found = decoded(bytes).unwrap_err().to_string();
        assert!(found.starts_with(error), "{found}");
    }
}

#[test]
fn texts_are_quoted_if_somebody_takes_them_for_something_else() {
    for text in [
        "on",
        "n",
        "~",
        "",
        "0644",
        "1_000",
        "1:30",
        "2026-01-01",
        "1e999",
        "=",
        "<<",
        ".5",
        "+1",
        "0o7",
        "null",
    ] {
        assert_eq!(to_string(&json!({"a": text})), format!("a: '{text}'\n"));
        assert_eq!(to_string(&json!({text: [1]})), format!("'{text}':\n- 1\n"));
    }
    for text in ["a", "yesterday", "r/a:1", "v1.2", "a-1", "1st", "10.0.0.0/8"] {
        assert_eq!(to_string(&json!({"a": text, "b": {}})), format!("a: {text}\nb: {{}}\n"));
    }
    assert_eq!(
        to_string(&json!(["x\ny\n", "a: b", "-", "\u{7}"])),
        "- |\n  x\n  y\n- 'a: b'\n- '-'\n- \"\\a\"\n"
    );
}

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
    fn json_is_read_as_yaml_too(texts in prop::collection::vec("[\\PC&&[^\u{2028}\u{2029}]]{0,8}", 0..6), numbers in prop::collection::vec(any::<i64>(), 0..6)) {
        let value = json!({"texts": texts, "numbers": numbers, "more": [{"a": null}, true]});
        prop_assert_eq!(&one(&value.to_string()).unwrap(), &value);
        prop_assert_eq!(one(&format!("# YAML\n{value}\n")).unwrap(), value);
    }

    /// What is printed is read back.
    #[test]
    fn printed_texts_are_read_back(pieces in prop::collection::vec((0..PIECES.len(), "[\\PC\u{0}-\u{a0}\u{2028}]?"), 0..8)) {
        let text: String = pieces.iter().map(|(piece, other)| format!("{}{other}", PIECES[*piece])).collect();
        let value = json!({"a": {&text: [&text, {"b": &text}]}, "c": &text});
        let printed = to_string(&value);
        prop_assert_eq!(one(&printed), Ok(value), "{}", printed);
    }
}
