//! The facts of a companion that exists: annotations, which change in place.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{Action, MAX_ANNOTATIONS, Observed, linger, too_large};
use crate::json::metadata_map;
use crate::rule::Rule;
use crate::workload::Workload;
use crate::{fault, keys};

/// What has to be changed in place of a companion that is made from the rule's template.
pub(super) fn annotate(rule: &Rule, workload: &Workload, o: &Observed) -> Action {
    // One that was made by a release that didn't write it. From now on the rule may be written in another way.
    let content = Some(rule.content_hash()).filter(|hash| {
        let room = MAX_ANNOTATIONS.saturating_sub(o.annotations_size);
        o.content_hash.as_ref().unwrap_or(&o.template_hash) != hash
            && keys::CONTENT_HASH.len() + hash.len() <= room
    });
    change(rule, workload, o, (&rule.injected(workload), content))
}

/// The JSON merge patch that a companion of an earlier template of its rule needs while it waits for its turn in a rollout, which may take
/// for ever: its facts follow the workload. What the rule no longer injects stays, because the earlier template may read it. `None` where
/// nothing has to be changed.
pub fn while_it_waits(rule: &Rule, workload: &Workload, o: &Observed) -> Option<Value> {
    if o.rule_uid != rule.uid() {
        return None;
    }
    let mut wanted = rule.injected(workload);
    let is_injected = |name: &str| rule.injections().any(|(injected, _)| injected == name);
    let others = o.annotations.iter().filter(|(name, _)| !is_injected(name));
    wanted.extend(others.map(|(name, value)| (name.clone(), value.clone())));
    match change(rule, workload, o, (&wanted, None)) {
        Action::Annotate(patch) => Some(patch),
        _ => None,
    }
}

/// The change after which a companion has these facts and no others, and this content hash unless it is `None`.
fn change(
    rule: &Rule,
    workload: &Workload,
    o: &Observed,
    (wanted, content): (&BTreeMap<String, String>, Option<&str>),
) -> Action {
    let names: Vec<&String> = wanted.keys().collect();
    let before = o.injected.as_deref().unwrap_or_default();
    let unmarked = linger::unmark(o);
    let same = *wanted == o.annotations && o.injected.is_some() && before.iter().eq(names.iter().copied());
    if same && content.is_none() {
        return unmarked.map_or(Action::Nothing, Action::Annotate);
    }
    let added = content.map_or(0, |hash| keys::CONTENT_HASH.len() + hash.len());
    let size = added
        + o.annotations_size.saturating_sub(annotations_size(&o.annotations))
        + annotations_size(wanted);
    if size > MAX_ANNOTATIONS {
        return unmarked.map_or_else(|| too_large(size, workload), Action::Annotate);
    }
    let mut patch = Map::new();
    if o.ended.is_some() {
        patch.insert(keys::WORKLOAD_ENDED.to_owned(), Value::Null);
    }
    if let Some(content) = content {
        patch.insert(keys::CONTENT_HASH.to_owned(), content.into());
    }
    let gone: Vec<&String> = before
        .iter()
        .filter(|name| !wanted.contains_key(*name) && !fault("fact-that-is-gone-stays"))
        .collect();
    // Most changes take no annotation away, and need no tree of the template.
    let template = if gone.is_empty() { Value::Null } else { rule.template() };
    for gone in gone {
        // The template's own annotation of that name was covered by the fact; it shows again.
        let own = metadata_map(&template, "annotations").iter().find(|(name, _)| *name == gone);
        patch.insert(gone.clone(), own.map_or(Value::Null, |(_, value)| value.clone()));
    }
    for (name, value) in wanted {
        let before = o.annotations.get(name);
        if before != Some(value) && !(before.is_some() && fault("changed-fact-stays")) {
            patch.insert(name.clone(), Value::String(value.clone()));
        }
    }
    patch.insert(keys::INJECTED.to_owned(), Value::String(injected_list(wanted)));
    Action::Annotate(json!({"metadata": {"uid": o.uid, "annotations": patch}}))
}

/// The value of [`keys::INJECTED`]: the names as a JSON list, in their order.
pub fn injected_list(injected: &BTreeMap<String, String>) -> String {
    Value::Array(injected.keys().cloned().map(Value::String).collect()).to_string()
}

/// Bytes of keys and values together, as the API server counts them.
pub fn annotations_size(annotations: &BTreeMap<String, String>) -> usize {
    annotations.iter().map(|(key, value)| key.len() + value.len()).sum()
}
