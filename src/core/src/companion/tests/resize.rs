//! Companions whose rule asks for other amounts of cpu and memory, or other images.

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
    let parts = cpu("1", true).parts().map(str::to_owned);
    let o = Observed { parts, ready: true, ..observed(&cpu("1", true), &w) };
    let change = InPlace { amounts: true, ..InPlace::default() };
    let resized = Action::InPlace { uid: "pod-uid".into(), change };
    let more = cpu("2", true);
    assert_eq!(planned(&more, &w, Some(&o)), resized);
    let not_admitted =
        Observed { gated: true, failed: true, trouble: Some(Cause::ResizeInfeasible), ..o.clone() };
    assert_eq!(planned(&more, &w, Some(&not_admitted)), resized, "the Pod itself decides");
    let changed = |o: Observed| deleted(planned(&more, &w, Some(&o)));
    assert_eq!(deleted(planned(&cpu("2", false), &w, Some(&o))), DeleteReason::TemplateChanged);
    assert_eq!(changed(Observed { parts: None, ..o.clone() }), DeleteReason::TemplateChanged);
    assert_eq!(changed(Observed { parts: Some("other".into()), ..o.clone() }), DeleteReason::TemplateChanged);
    let full = Observed { annotations_size: MAX_ANNOTATIONS - 20, ..o.clone() };
    assert_eq!(changed(full), DeleteReason::TemplateChanged);
    assert_eq!(changed(Observed { host: Some("host-b".into()), ..o.clone() }), DeleteReason::Moved);
    let renewed = renewed(&more, &o);
    assert_eq!(
        renewed["metadata"],
        json!({"uid": "pod-uid", "annotations": {keys::TEMPLATE_HASH: more.template_hash(),
            keys::CONTENT_HASH: more.content_hash(), keys::TEMPLATE_PARTS: more.parts().unwrap(),
            keys::RULE_GENERATION: "4"}})
    );
}

#[test]
fn a_companion_of_another_image_is_replaced_unless_its_rule_says_otherwise() {
    let of = |image: &'static str, cpu: &'static str, (resizes, updates): (bool, bool)| {
        rule(|spec| {
            let mut template = spec.template.tree();
            let container = &mut template["spec"]["containers"][0];
            (container["image"], container["resources"]) = (image.into(), json!({"limits": {"cpu": cpu}}));
            (spec.template, spec.resizes, spec.updates) = (template.into(), resizes, updates);
        })
    };
    let w = workload(Some("host-a"));
    let before = of("i:1", "1", (true, false));
    let o = Observed { parts: before.parts().map(str::to_owned), ready: true, ..observed(&before, &w) };
    let image = InPlace { images: true, ..InPlace::default() };
    for (to, cpu, wants, expected) in [
        ("i:2", "1", (true, true), Some(image)),
        ("i:2", "1", (false, true), Some(image)),
        ("i:2", "1", (true, false), None),
        ("i:2", "2", (true, true), Some(InPlace { amounts: true, ..image })),
        ("i:2", "2", (false, true), None),
        ("i:2", "2", (true, false), None),
        ("i:1", "2", (false, true), None),
    ] {
        let planned = planned(&of(to, cpu, wants), &w, Some(&o));
        match expected {
            Some(change) => assert_eq!(planned, Action::InPlace { uid: "pod-uid".into(), change }),
            None => assert_eq!(deleted(planned), DeleteReason::TemplateChanged, "{to} {cpu} {wants:?}"),
        }
    }
}
