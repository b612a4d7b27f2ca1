//! Companions whose rule asks for other amounts of cpu and memory.

use super::*;

#[test]
fn a_companion_that_differs_in_amounts_is_resized_unless_its_rule_says_otherwise() {
    let cpu = |amount: &'static str, resizes: bool| {
        rule(|spec| {
            let mut template = spec.template.tree();
            template["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": amount}});
            (spec.template, spec.resizes, spec.generation) = (template.into(), resizes, 4);
        })
    };
    let w = workload(Some("host-a"));
    let fixed_hash = cpu("1", true).fixed_hash().map(str::to_owned);
    let o = Observed { fixed_hash, ready: true, ..observed(&cpu("1", true), &w) };
    let resized = Action::Resize { uid: "pod-uid".into() };
    let more = cpu("2", true);
    assert_eq!(planned(&more, &w, Some(&o)), resized);
    let not_admitted =
        Observed { gated: true, failed: true, trouble: Some(Cause::ResizeInfeasible), ..o.clone() };
    assert_eq!(planned(&more, &w, Some(&not_admitted)), resized, "the Pod itself decides");
    let changed = |o: Observed| deleted(planned(&more, &w, Some(&o)));
    assert_eq!(deleted(planned(&cpu("2", false), &w, Some(&o))), DeleteReason::TemplateChanged);
    assert_eq!(changed(Observed { fixed_hash: None, ..o.clone() }), DeleteReason::TemplateChanged);
    assert_eq!(
        changed(Observed { fixed_hash: Some("other".into()), ..o.clone() }),
        DeleteReason::TemplateChanged
    );
    let full = Observed { annotations_size: MAX_ANNOTATIONS - 20, ..o.clone() };
    assert_eq!(changed(full), DeleteReason::TemplateChanged);
    assert_eq!(changed(Observed { host: Some("host-b".into()), ..o.clone() }), DeleteReason::Moved);
    let renewed = renewed(&more, &o);
    assert_eq!(
        renewed["metadata"],
        json!({"uid": "pod-uid", "annotations": {keys::TEMPLATE_HASH: more.template_hash(),
            keys::CONTENT_HASH: more.content_hash(), keys::RULE_GENERATION: "4"}})
    );
}
