use outrigger_core::mutate::STEPS;
use proptest::prelude::*;

use super::*;

/// Maximum number of bytes of a value: six names, two numbers, the paths, and what they are called.
const MAX_VALUE: usize = 6 * MAX_PART + 2 * 20 + MAX_FIELDS + 128;

#[test]
fn the_keys_are_a_closed_set_of_qualified_names() {
    let keys: Vec<&str> = KEYS.iter().map(|(key, _)| *key).collect();
    for (step, _) in STEPS {
        for again in [false, true] {
            assert!(keys.contains(&key(step, again)), "{step}");
            // Only what a rule does differs between the calls of a request.
            let differs = again && matches!(*step, "companion" | "claims");
            assert_eq!(super::step(key(step, again)), (*step, differs));
        }
    }
    let of_steps: Vec<&str> = STEPS.iter().map(|(step, _)| *step).collect();
    assert_eq!(keys[..STEPS.len()], of_steps, "in their order");
    for key in keys {
        // The API server adds the webhook's name and a slash; the whole must be a qualified name.
        let is_legal = key.len() <= 63 && key.bytes().all(|b| b.is_ascii_lowercase() || b == b'-');
        assert!(is_legal && !key.starts_with('-') && !key.ends_with('-'), "{key}");
    }
}

#[test]
fn a_value_names_what_decided() {
    let rule = Origin::object("WorkloadRule", "dns").within("tenant-blue").of_generation(3);
    assert_eq!(rule.to_string(), "kind=WorkloadRule namespace=tenant-blue name=dns generation=3");
    let by = rule.in_step("companion").to_string();
    let causes = [FieldError::new("spec.a", "the secret"), FieldError::new("metadata.labels[a b,c]", "x")];
    assert_eq!(
        denied(422, Origin::default(), &by, &causes),
        "code=422 step=companion kind=WorkloadRule namespace=tenant-blue name=dns generation=3 \
         fields=spec.a,metadata.labels[a_b_c]"
    );
    assert_eq!(denied(503, Origin::default(), "", &[]), "code=503");
    let passed = Origin { level: Some("Warn".into()), ..Origin::default() };
    let let_through = denied(403, passed, "step=validation", &[]);
    assert_eq!(let_through, "code=403 level=Warn step=validation");
    assert_eq!(Origin::parse(&let_through).level.as_deref(), Some("Warn"));
}

#[test]
fn the_longest_value_fits_into_the_bound_which_is_not_much_larger() {
    let name = || Some(Cow::Owned("x".repeat(300)));
    let longest = |fields| Origin {
        code: Some(u16::MAX),
        // Only one of the two has let an object through.
        level: None,
        exception: name(),
        step: name(),
        kind: name(),
        namespace: name(),
        name: name(),
        generation: Some(i64::MIN),
        machine_type: name(),
        fields,
    };
    for fields in [vec!["x".repeat(127).into(); 10], vec!["x".into(); 1000]] {
        let length = longest(fields).to_string().len();
        assert!((MAX_VALUE - 128..=MAX_VALUE).contains(&length), "{length} of {MAX_VALUE}");
    }
}

#[test]
fn the_page_has_a_row_for_each_key() {
    let page = include_str!("../../../../docs/audit.md");
    for (key, meaning) in KEYS {
        assert!(page.contains(&format!("| `{key}` | {meaning} |\n")), "{key}");
    }
}

proptest! {
    #[test]
    fn any_names_and_paths_make_a_bounded_value_that_reads_back(
        names in proptest::collection::vec(proptest::option::of(".{0,300}"), 6),
        code in proptest::option::of(any::<u16>()),
        generation in proptest::option::of(any::<i64>()),
        fields in proptest::collection::vec(".{0,300}", 0..20),
    ) {
        let text = |i: usize| names[i].as_deref().map(Cow::Borrowed);
        let [level, exception] = [code.is_some(), code.is_none()].map(|is| text(5).filter(|_| is));
        let origin = Origin { code, step: text(0), kind: text(1), namespace: text(2), name: text(3), generation,
            machine_type: text(4), level, exception, fields: fields.iter().map(|f| Cow::Borrowed(f.as_str())).collect() };
        let value = origin.to_string();
        prop_assert!(value.len() <= MAX_VALUE, "{}", value.len());
        prop_assert!(!value.contains(|c: char| c.is_control() || (c.is_whitespace() && c != ' ')), "{:?}", value);
        let read = Origin::parse(&value);
        prop_assert_eq!((read.code, read.generation, read.step.is_some()), (code, generation, names[0].is_some()));
        prop_assert_eq!(read.to_string(), value);
    }
}
