use std::collections::BTreeSet;

use outrigger_cases::{Put, Template, templates, with};
use proptest::prelude::*;
use serde_json::json;

use super::*;

fn meaning_with<'a>(template: &Value, puts: impl IntoIterator<Item = &'a Put>) -> Value {
    of(&with(template, puts))
}

#[test]
fn noise_means_nothing_and_everything_else_something() {
    for template in templates() {
        let base = of(&template.base);
        assert_eq!(base, template.base, "without noise it stays as it is");
        for put in &template.same() {
            assert_ne!(with(&template.base, [put]), template.base, "{put:?}");
            assert_eq!(meaning_with(&template.base, [put]), base, "{put:?}");
        }
        for put in &template.different() {
            assert_ne!(meaning_with(&template.base, [put]), base, "{put:?}");
        }
    }
}

#[test]
fn null_is_as_good_as_absent_for_each_field_of_a_known_object() {
    for template in templates() {
        for at in template.same().into_iter().map(|(at, ..)| at).filter(|at| !at.ends_with("/limits")) {
            let put = (at, "unknown".to_owned(), Value::Null);
            let is_map = put.0.ends_with("/resources/requests");
            assert_eq!(meaning_with(&template.base, [&put]) == template.base, !is_map, "{put:?}");
        }
    }
    let map = json!({"kind": "Pod", "spec": {"nodeSelector": {"a": null}, "unknown": {"b": null}}});
    assert_eq!(of(&map), map, "in a map null is an empty text, and of unknown objects nothing is known");
}

/// Each field that the shapes name is in `templates.yaml`: the tests on the API server try it.
#[test]
fn each_field_is_tried() {
    let mut missing = BTreeSet::new();
    let mut seen = BTreeSet::new();
    let all = templates();
    let tried = |put: &Template| put.same().into_iter().map(|(at, field, _)| (at, field));
    for (i, template) in all.iter().enumerate() {
        let tried: BTreeSet<_> = tried(template).collect();
        let shape = if kind(&template.base) == Kind::Claim { &CLAIM } else { &POD };
        look(
            shape,
            "",
            &template.base,
            &|at, field| tried.contains(&(at.to_owned(), field.to_owned())),
            &mut seen,
        );
        let _ = i;
    }
    for shape in [&POD, &CLAIM] {
        unseen(shape, &seen, &mut missing);
    }
    assert_eq!(missing, BTreeSet::new());
}

/// Identity of a shape's rows.
fn id(shape: &Shape) -> usize {
    shape.rows.as_ptr() as usize
}

/// Keeps the fields of objects that are there or tried.
fn look(
    shape: &Shape,
    at: &str,
    value: &Value,
    tried: &dyn Fn(&str, &str) -> bool,
    seen: &mut BTreeSet<(usize, String)>,
) {
    for (names, field) in shape.rows {
        for name in names.split(' ') {
            let below = value.get(name);
            if below.is_some() || tried(at, name) {
                seen.insert((id(shape), name.to_owned()));
            }
            match (field, below) {
                (Field::Part(shape) | Field::Whole(shape), Some(below)) => {
                    look(shape, &format!("{at}/{name}"), below, tried, seen);
                }
                (Field::Each(shape), Some(Value::Array(list))) => {
                    for (i, below) in list.iter().enumerate() {
                        look(shape, &format!("{at}/{name}/{i}"), below, tried, seen);
                    }
                }
                _ => {}
            }
        }
    }
}

fn unseen(shape: &Shape, seen: &BTreeSet<(usize, String)>, missing: &mut BTreeSet<String>) {
    for (names, field) in shape.rows {
        let untried = names.split(' ').filter(|name| !seen.contains(&(id(shape), (*name).to_owned())));
        missing.extend(untried.map(|name| format!("{name} of {:?}", shape.rows.first().map(|row| row.0))));
        if let Field::Part(shape) | Field::Whole(shape) | Field::Each(shape) = field {
            unseen(shape, seen, missing);
        }
    }
}

#[test]
fn the_policy_of_an_image_follows_from_its_tag() {
    const DIGEST: &str = "@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    for (image, policy) in [
        ("a", Some("Always")),
        ("a:latest", Some("Always")),
        ("a:1", Some("IfNotPresent")),
        ("registry.example:5000/a/b__c-d.e", Some("Always")),
        ("localhost/a:LATEST", Some("IfNotPresent")),
        ("a---b_c", Some("Always")),
        ("A", None),
        ("a:", None),
        ("a:.x", None),
        ("-a", None),
        ("a..b", None),
        ("a___b", None),
        ("a@latest", None),
        ("a/", None),
        ("", None),
        (":1", None),
        ("a b", None),
        ("host.example:/a", None),
        ("host.example:x/a", None),
    ] {
        assert_eq!(pull_policy(image), policy, "{image}");
    }
    assert_eq!(pull_policy(&format!("a{DIGEST}")), Some("IfNotPresent"));
    assert_eq!(pull_policy(&format!("a:latest{DIGEST}")), Some("Always"));
    assert_eq!(pull_policy(&"a".repeat(64)), None);
}

#[test]
fn amounts_that_may_be_inexact_keep_their_form() {
    for kept in ["1.0000000000000000001", "9223372036854775808", "1e30", " 1", "x", "-", "1e999999999"] {
        let mut value = json!(kept);
        amount(&mut value, true);
        assert_eq!(value, kept);
    }
    for (text, written) in [("0.3Ki", "307200m"), ("1u", "1m"), ("1000", "1k"), ("1Ei", "1Ei")] {
        let mut value = json!(text);
        amount(&mut value, true);
        assert_eq!(value, written);
    }
}

proptest! {
    #[test]
    fn any_noise_together_means_nothing(
        template in 0..3_usize,
        same in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
        different in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
    ) {
        let template = &templates()[template];
        let pick = |all: &[Put], picked: &[prop::sample::Index]| -> Vec<Put> {
            picked.iter().map(|i| i.get(all).clone()).collect()
        };
        let changed = with(&template.base, &pick(&template.different(), &different));
        // What is put in may itself be changed, or make other noise than it is at the base.
        let noise = pick(&template.same(), &same);
        let plain = of(&template.base);
        prop_assert_eq!(meaning_with(&template.base, &noise), plain);
        let meaning = of(&changed);
        prop_assert_eq!(of(&meaning), meaning);
    }
}
