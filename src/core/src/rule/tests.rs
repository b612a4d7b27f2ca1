use std::sync::Arc;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::keys;
use crate::workload::POD;
use crate::workload::tests::nginx;

/// A rule of this name that every Pod matches, with an empty template.
pub(crate) fn named(name: &str) -> RuleSpec {
    RuleSpec { template: json!({}).into(), ..RuleSpec::new(RuleName::new(name).unwrap()) }
}

pub(crate) fn compiled(spec: RuleSpec) -> Arc<Rule> {
    Arc::new(Rule::compile(spec).unwrap())
}

fn spec(terms: Vec<Vec<ExpressionSpec>>) -> RuleSpec {
    RuleSpec { resource_kind: POD.into(), terms, ..named("rule1") }
}

fn matches(expression: ExpressionSpec) -> bool {
    let mut workload = nginx();
    workload.annotations.set("n", "-7");
    workload.annotations.set("empty", "");
    workload.annotations.set("big", "9223372036854775808");
    Rule::compile(spec(vec![vec![expression]])).unwrap().matches(&workload)
}

fn errors(spec: RuleSpec) -> Vec<String> {
    Rule::compile(spec).unwrap_err().iter().map(ToString::to_string).collect()
}

#[test]
fn operators() {
    use Operator::{DoesNotExist, Exists, Gt, In, Lt, NotIn};
    const APP: &str = ".state.extra.labels.k8s-app";
    const NONE: &str = ".state.extra.labels.none";
    const N: &str = ".state.extra.annotations.n";
    const EMPTY: &str = ".state.extra.annotations.empty";
    for (key, operator, values, expected) in [
        (APP, In, &["nginx"][..], true),
        (APP, In, &["a", "nginx", "b"], true),
        (APP, In, &["ngin"], false),
        (NONE, In, &["nginx"], false),
        (NONE, In, &[""], false),
        (APP, NotIn, &["nginx"], false),
        (APP, NotIn, &["other"], true),
        (NONE, NotIn, &["nginx"], true),
        (APP, Exists, &[], true),
        (APP, Exists, &["ignored"], true),
        (NONE, Exists, &[], false),
        (EMPTY, Exists, &[], true),
        (EMPTY, DoesNotExist, &[], false),
        (EMPTY, In, &[""], true),
        (APP, DoesNotExist, &[], false),
        (NONE, DoesNotExist, &["ignored"], true),
        (".state", Exists, &[], true),
        ("@", Exists, &[], true),
        (".state.extra.other", Exists, &[], false),
        (".state.ready", In, &["true"], true),
        (".state.ready", In, &["True"], false),
        (".state.ready", NotIn, &["false"], true),
        (".metadata.orchestrator", In, &["kubernetes"], true),
        (N, Gt, &["+3"], false),
        (N, Gt, &["-8"], true),
        (N, Gt, &["-7"], false),
        (N, Lt, &["-6"], true),
        (N, Lt, &["-7"], false),
        (NONE, Gt, &["0"], false),
        (NONE, Lt, &["0"], false),
        (APP, Gt, &["0"], false),
        (APP, Lt, &["0"], false),
        (".state.extra.annotations.big", Gt, &["1"], false),
    ] {
        assert_eq!(
            matches(ExpressionSpec::new(key, operator, values)),
            expected,
            "{key} {operator:?} {values:?}"
        );
    }
}

#[test]
fn terms_are_ored_and_expressions_anded() {
    let yes = || ExpressionSpec::new(".state.nodeName", Operator::Exists, &[]);
    let no = || ExpressionSpec::new(".state.nodeName", Operator::DoesNotExist, &[]);
    let rule = |terms| Rule::compile(spec(terms)).unwrap().matches(&nginx());
    assert!(rule(vec![vec![yes(), yes()]]));
    assert!(!rule(vec![vec![yes(), no()]]));
    assert!(rule(vec![vec![no()], vec![yes()]]));
    assert!(!rule(vec![vec![no()], vec![no(), yes()]]));
}

#[test]
fn an_evaluation_shows_what_was_found() {
    let rule = Rule::compile(spec(vec![
        vec![
            ExpressionSpec::new(".state.ready", Operator::In, &["false"]),
            ExpressionSpec::new(".state.extra.labels.none", Operator::Gt, &["1"]),
        ],
        vec![ExpressionSpec::new(".state.extra.labels", Operator::Exists, &[])],
    ]))
    .unwrap();
    let workload = nginx();
    let terms = rule.evaluate(&workload, |_| false);
    let lines: Vec<Vec<String>> = terms
        .iter()
        .map(|t| {
            t.iter()
                .map(|o| format!("{} | {:?} | {:?}", o.expression, o.actual.as_deref(), o.passes))
                .collect()
        })
        .collect();
    assert_eq!(
        lines,
        [
            vec![
                r#".state.ready In ["false"] | Some("true") | No"#,
                ".state.extra.labels.none Gt 1 | None | No",
            ],
            vec![r#".state.extra.labels Exists | Some("{\"k8s-app\":\"nginx\"}") | Yes"#],
        ]
    );
}

#[test]
fn what_a_test_wants_is_said_in_words() {
    let texts = |count: usize| (0..count).map(|i| format!("v{i}")).collect::<Vec<_>>();
    let eight = r#""v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7""#;
    for (test, words) in [
        (Test::In(texts(1)), r#""v0""#.to_owned()),
        (Test::In(texts(2)), r#"one of "v0", "v1""#.to_owned()),
        (Test::In(texts(8)), format!("one of {eight}")),
        (Test::In(texts(10)), format!("one of {eight} and 2 more")),
        (Test::NotIn(texts(1)), r#"none of "v0""#.to_owned()),
        (Test::In(vec!["x".repeat(120)]), format!("{:?}", "x".repeat(120))),
        (Test::In(vec!["x".repeat(121)]), format!("{:?}", "x".repeat(119) + "…")),
        (Test::Exists, "it to be there".to_owned()),
        (Test::DoesNotExist, "it to be absent".to_owned()),
        (Test::Gt(-1), "an integer greater than -1".to_owned()),
        (Test::Lt(2), "an integer less than 2".to_owned()),
    ] {
        assert_eq!(test.wants(), words, "{test:?}");
    }
}

#[test]
fn a_rule_is_about_one_kind() {
    let rule = Rule::compile(spec(vec![vec![ExpressionSpec::new("@", Operator::Exists, &[])]])).unwrap();
    let vm = Workload { resource_type: "v1/VM".into(), ..nginx() };
    assert!(rule.matches(&nginx()) && !rule.matches(&vm));
    assert_eq!(rule.resource_kind(), nginx().resource_type);
}

#[test]
fn the_documented_rule() {
    let mut rule = spec(vec![vec![
        ExpressionSpec::new(".state.nodeName", Operator::In, &["cloud-dev-12", "cloud-dev-13"]),
        ExpressionSpec::new(
            ".state.extra.annotations['k8s.v1.cni.cncf.io/networks-status']",
            Operator::Exists,
            &[],
        ),
        ExpressionSpec::new(".state.extra.labels.k8s-app", Operator::NotIn, &["nginx"]),
        ExpressionSpec::new(".metadata.resourceNamespace", Operator::In, &["default"]),
    ]]);
    rule.injections = vec![
        InjectionSpec::new(
            ".state.extra.annotations['k8s.v1.cni.cncf.io/networks-status']",
            "secondary-network-status",
        ),
        InjectionSpec::new(".state.nodeName", "tenant-node-name"),
        InjectionSpec::new("", "entire-workload"),
        InjectionSpec::new(".state.extra.labels.absent", "absent"),
    ];
    let rule = Rule::compile(rule).unwrap();
    let names: Vec<&str> = rule.injections().map(|(annotation, _)| annotation).collect();
    assert_eq!(names, ["secondary-network-status", "tenant-node-name", "entire-workload", "absent"]);
    assert!(!rule.matches(&nginx()));
    let mut workload = nginx();
    workload.labels.set("k8s-app", "other");
    assert!(rule.matches(&workload));
    let injected = rule.injected(&workload);
    assert_eq!(
        injected.keys().collect::<Vec<_>>(),
        ["entire-workload", "secondary-network-status", "tenant-node-name"]
    );
    assert_eq!(injected["tenant-node-name"], "cloud-dev-12");
    let whole: Workload = serde_json::from_str(&injected["entire-workload"]).unwrap();
    assert_eq!(whole, workload);
}

#[test]
fn everything_wrong_is_said_with_its_path() {
    let mut rule = spec(vec![
        vec![],
        vec![
            ExpressionSpec::new(".state.nope", Operator::Exists, &[]),
            ExpressionSpec::new(".state", Operator::In, &["x"]),
            ExpressionSpec::new(".state.nodeName", Operator::In, &[]),
            ExpressionSpec::new(".state.nodeName", Operator::Exists, &["a", "b"]),
            ExpressionSpec::new(".state.nodeName", Operator::Gt, &["1.5"]),
            ExpressionSpec::new(".state.nodeName", Operator::Lt, &["1", "2"]),
        ],
    ]);
    rule.resource_kind = "v1/VM".into();
    for (key, name) in
        [(".x", "a"), ("", "a"), ("", "a"), ("", ""), ("", "-a"), ("", "A_b/c"), ("", keys::TENANT)]
    {
        rule.injections.push(InjectionSpec::new(key, name));
    }
    let got = errors(rule);
    let expected = [
        "spec.resourceKind: \"v1/VM\": is not supported; use v1/Pod",
        "spec.workloadTerms[0].matchExpressions: is empty",
        "spec.workloadTerms[1].matchExpressions[0].key: \".state.nope\": at character 8: there is no \"nope\"",
        "spec.workloadTerms[1].matchExpressions[1].key: \".state\": is an object",
        "spec.workloadTerms[1].matchExpressions[2].values: In needs at least one value",
        "spec.workloadTerms[1].matchExpressions[3].values: Exists takes one value at most, which is ignored",
        "spec.workloadTerms[1].matchExpressions[4].values[0]: \"1.5\": Gt needs an integer",
        "spec.workloadTerms[1].matchExpressions[5].values: Lt takes exactly one value",
        "spec.workloadInfoInject[0].workloadKey: \".x\": at character 2",
        "spec.workloadInfoInject[1].asAnnotation.name: \"a\": is written by an earlier entry",
        "spec.workloadInfoInject[2].asAnnotation.name: \"a\": is written by an earlier entry",
        "spec.workloadInfoInject[3].asAnnotation.name: use an annotation's key: 1 to 63",
        "spec.workloadInfoInject[4].asAnnotation.name: \"-a\": use an annotation's key",
        "spec.workloadInfoInject[5].asAnnotation.name: \"A_b/c\": use an annotation's key",
        "spec.workloadInfoInject[6].asAnnotation.name: \"outrigger.dev/tenant\": keys under outrigger.dev",
    ];
    assert_eq!(got.len(), expected.len(), "{got:#?}");
    for (got, expected) in got.iter().zip(expected) {
        assert!(got.starts_with(expected), "{got}\n{expected}");
    }
    assert!(errors(spec(vec![]))[0].starts_with("spec.workloadTerms: is empty"));
}

#[test]
fn annotations_that_may_be_written() {
    let result = |name: &str| {
        let mut rule = spec(vec![vec![ExpressionSpec::new("@", Operator::Exists, &[])]]);
        rule.injections.push(InjectionSpec::new("", name));
        Rule::compile(rule).map(|_| ())
    };
    let longest = format!("{}/{}", "p".repeat(253), "n".repeat(63));
    for good in ["a", "A_b.c-9", "example.com/x", "EXAMPLE.com/x", &longest, keys::WORKLOAD] {
        assert_eq!(result(good), Ok(()), "{good}");
    }
    let (prefix, name) = (format!("{}/n", "p".repeat(254)), "n".repeat(64));
    for bad in
        ["", "/", "a/", "/a", "a/b/c", "a b", "ä", "a-", &prefix, &name, "x.outrigger.dev/y", keys::INJECTED]
    {
        assert!(result(bad).is_err(), "{bad}");
    }
}

#[test]
fn sizes_are_bounded() {
    let x = || ExpressionSpec::new("@", Operator::Exists, &[]);
    assert!(errors(spec(vec![vec![x()]; MAX_TERMS + 1]))[0].contains("65 entries, at most 64"));
    assert!(errors(spec(vec![vec![x(); MAX_EXPRESSIONS + 1]]))[0].contains("matchExpressions: has 65"));
    let among =
        |values| vec![vec![ExpressionSpec { key: ".metadata.id".into(), operator: Operator::In, values }]];
    assert!(errors(spec(among(vec!["v".into(); MAX_VALUES + 1])))[0].contains("values: has 1025"));
    let injecting = |count| RuleSpec {
        injections: (0..count).map(|i| InjectionSpec::new("", &format!("a{i}"))).collect(),
        ..spec(vec![vec![x()]])
    };
    assert!(errors(injecting(MAX_INJECTIONS + 1))[0].starts_with("spec.workloadInfoInject: has 257 entries"));
    // As many as that are allowed.
    let most = |terms| Rule::compile(spec(terms)).unwrap();
    assert_eq!(most(vec![vec![x()]; MAX_TERMS]).terms().len(), MAX_TERMS);
    assert_eq!(most(vec![vec![x(); MAX_EXPRESSIONS]]).terms()[0].len(), MAX_EXPRESSIONS);
    let values: Vec<String> = (0..MAX_VALUES).map(|i| i.to_string()).collect();
    assert_eq!(most(among(values)).terms()[0][0].test.parts().1.len(), MAX_VALUES);
    assert_eq!(Rule::compile(injecting(MAX_INJECTIONS)).unwrap().injections().count(), MAX_INJECTIONS);
}

proptest! {
    #[test]
    fn no_rule_panics(key in ".{0,20}", values in proptest::collection::vec(".{0,8}", 0..3), op in 0usize..6, name in ".{0,20}") {
        use Operator::{DoesNotExist, Exists, Gt, In, Lt, NotIn};
        let operator = [In, NotIn, Exists, DoesNotExist, Gt, Lt][op];
        let mut rule = spec(vec![vec![ExpressionSpec { key, operator, values }]]);
        rule.injections.push(InjectionSpec::new("", &name));
        if let Ok(rule) = Rule::compile(rule) {
            let _ = rule.matches(&nginx());
        }
    }
}

#[test]
fn an_ordering_is_no_part_of_the_template() {
    let of = |ordering| Rule::compile(RuleSpec { ordering, ..spec(vec![vec![any()]]) }).unwrap();
    let parallel = of(Ordering::Parallel);
    for ordering in [Ordering::BeforeReady, Ordering::BeforeStart, Ordering::BeforeBinding] {
        let waits = of(ordering);
        assert_eq!(parallel.template_hash(), waits.template_hash());
        assert_eq!((parallel.ordering(), waits.ordering()), (Ordering::Parallel, ordering));
    }
}

#[test]
fn an_update_strategy_is_no_part_of_the_template() {
    let of = |update| Rule::compile(RuleSpec { update, ..spec(vec![vec![any()]]) }).unwrap();
    let [rolling, on_delete] = [UpdateStrategy::default(), UpdateStrategy::OnDelete].map(of);
    assert_eq!(rolling.template_hash(), on_delete.template_hash(), "a change replaces no companion");
    assert_eq!([rolling.update(), on_delete.update()], [UpdateStrategy::default(), UpdateStrategy::OnDelete]);
}

#[test]
fn a_companion_outlives_its_workload_by_an_hour_at_most() {
    let of = |linger_seconds| RuleSpec { linger_seconds, ..spec(vec![vec![any()]]) };
    let rule = |seconds| Rule::compile(of(seconds)).unwrap();
    assert_eq!([0, 3600].map(|seconds| rule(seconds).linger().as_secs()), [0, 3600]);
    assert_eq!(rule(0).template_hash(), rule(60).template_hash(), "a change replaces no companion");
    for seconds in [-1, 3601, i64::MAX] {
        let wanted = format!(
            "spec.lingerSeconds: is {seconds}; use 0 (a companion is deleted with its workload) to 3600"
        );
        assert_eq!(errors(of(seconds)), [wanted]);
    }
}

fn any() -> ExpressionSpec {
    ExpressionSpec::new("@", Operator::Exists, &[])
}

#[test]
fn operators_are_read_as_the_api_spells_them() {
    use Operator::{DoesNotExist, Exists, Gt, In, Lt, NotIn};
    let words = ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"];
    assert_eq!(words.map(str::parse), [In, NotIn, Exists, DoesNotExist, Gt, Lt].map(Ok));
    assert_eq!(["in", ""].map(str::parse::<Operator>), [Err(()), Err(())]);
}

#[test]
fn a_rule_counts_as_its_json_and_256_bytes_for_each_entry() {
    assert_eq!([size(0, 0), size(100, 0), size(100, 3)], [0, 100, 868]);
    assert_eq!([size(1, usize::MAX), size(usize::MAX, 1)], [u64::MAX; 2]);
}

#[test]
fn orderings_are_read_as_the_api_spells_them() {
    let all = [Ordering::Parallel, Ordering::BeforeReady, Ordering::BeforeStart, Ordering::BeforeBinding];
    for ordering in all {
        assert_eq!(ordering.as_str().parse(), Ok(ordering));
    }
    assert_eq!(all.map(Ordering::gates), [false, true, true, true]);
    assert_eq!(all.map(Ordering::holds), [false, false, true, true]);
    assert_eq!(all.map(Ordering::binds), [false, false, false, true]);
    assert_eq!("".parse(), Ok(Ordering::Parallel));
    assert!("beforeready".parse::<Ordering>().unwrap_err().starts_with("use Parallel"));
}

#[test]
fn a_workload_that_waits_cannot_be_selected_by_being_ready() {
    let ready = ExpressionSpec::new(".state.ready", Operator::In, &["true"]);
    let terms = vec![vec![any()], vec![any(), ready]];
    assert!(Rule::compile(spec(terms.clone())).is_ok());
    for ordering in [Ordering::BeforeReady, Ordering::BeforeStart, Ordering::BeforeBinding] {
        assert_eq!(
            errors(RuleSpec { ordering, ..spec(terms.clone()) }),
            [
                "spec.workloadTerms[1].matchExpressions[1].key: \".state.ready\": is the condition that waits for the companion; \
              remove the expression, or set spec.ordering to Parallel"
            ]
        );
    }
}

#[test]
fn a_workload_that_is_held_cannot_be_selected_by_what_its_start_writes() {
    let written = ".state.extra.annotations['k8s.v1.cni.cncf.io/networks-status']";
    let of = |key: &str, operator, ordering| {
        let terms = vec![vec![ExpressionSpec::new(key, operator, &[])]];
        Rule::compile(RuleSpec { ordering, ..spec(terms) })
    };
    for operator in [Operator::Exists, Operator::DoesNotExist] {
        for ordering in [Ordering::BeforeStart, Ordering::BeforeBinding] {
            let found = of(written, operator, ordering).unwrap_err();
            let text = found.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
            assert!(text.starts_with("spec.workloadTerms[0].matchExpressions[0].key: "), "{text}");
            assert!(text.contains("is written when the workload starts"), "{text}");
        }
        assert!(of(written, operator, Ordering::BeforeReady).is_ok(), "its containers run meanwhile");
        let label = ".state.extra.labels['k8s.v1.cni.cncf.io/networks-status']";
        assert!(of(label, operator, Ordering::BeforeStart).is_ok(), "the start writes no labels");
        let other = ".state.extra.annotations['example.com/key']";
        assert!(of(other, operator, Ordering::BeforeStart).is_ok());
    }
}

#[test]
fn a_workload_that_is_not_bound_cannot_be_selected_by_its_nodes_labels() {
    let of = |key: &str, ordering| {
        let terms = vec![vec![ExpressionSpec::new(key, Operator::In, &["a"])]];
        Rule::compile(RuleSpec { ordering, ..spec(terms) })
    };
    let zone = ".state.extra.labels['topology.kubernetes.io/zone']";
    let found = of(zone, Ordering::BeforeBinding).unwrap_err();
    let text = found.iter().map(ToString::to_string).collect::<String>();
    assert!(text.contains("is copied from the Node when the workload is bound"), "{text}");
    assert!(of(zone, Ordering::BeforeStart).is_ok(), "it is bound then");
    assert!(of(".state.extra.labels.zone", Ordering::BeforeBinding).is_ok());
}

#[test]
fn a_workload_that_waits_cannot_be_selected_by_its_devices() {
    let of = |key: &str, ordering| {
        let terms = vec![vec![ExpressionSpec::new(key, Operator::Exists, &[])]];
        Rule::compile(RuleSpec { ordering, ..spec(terms) })
    };
    let health = ".state.extra.deviceHealth['example.com/nic']";
    for key in
        [health, ".state.extra.deviceHealth", ".state.extra.deviceAttributes['gpu/one/example.com/model']"]
    {
        for ordering in [Ordering::BeforeReady, Ordering::BeforeStart, Ordering::BeforeBinding] {
            let found = of(key, ordering).unwrap_err();
            let text = found.iter().map(ToString::to_string).collect::<String>();
            assert!(text.starts_with("spec.workloadTerms[0].matchExpressions[0].key: "), "{text}");
            assert!(text.contains("is known when the workload has devices or later"), "{text}");
        }
        assert!(of(key, Ordering::Parallel).is_ok());
    }
    assert!(of(".state.extra.labels.deviceHealth", Ordering::BeforeStart).is_ok());
}

#[test]
fn what_is_unknown_counts_in_favour_of_a_match() {
    let on = |key: &str, value: &str| ExpressionSpec::new(key, Operator::In, &[value]);
    let app = |value: &str| on(".state.extra.labels.k8s-app", value);
    let node = on(".state.nodeName", "elsewhere");
    let workload = nginx();
    for (terms, unknown, expected) in [
        (vec![vec![app("nginx")]], &[][..], true),
        (vec![vec![app("other")]], &[Path::NodeName], false),
        (vec![vec![app("nginx"), node.clone()]], &[], false),
        (vec![vec![app("nginx"), node.clone()]], &[Path::NodeName], true),
        (vec![vec![app("other"), node.clone()]], &[Path::NodeName], false),
        (vec![vec![app("other")], vec![node.clone()]], &[Path::NodeName], true),
        (vec![vec![node]], &[Path::ResourceName], false),
    ] {
        let rule = Rule::compile(spec(terms.clone())).unwrap();
        assert_eq!(rule.could_match(&workload, unknown), expected, "{terms:?} {unknown:?}");
    }
}
