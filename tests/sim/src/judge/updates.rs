//! What must hold of companions that get another image in place: nothing else of them changes, none gets an earlier image by a manager that
//! knows a later one, and none is replaced for what it can get in place.

use outrigger_core::keys;
use serde_json::{Value, json};

use super::hosts::policy;
use super::states::{rule_of, state};
use super::wanted::{served, wanted};
use super::{Judge, Key, PROMPTLY};
use crate::model::Commit;
use crate::world::resizes::is_infeasible;
use crate::world::{World, at, text};

/// Whether a rule has other images changed in place.
fn updates(rule: &Value) -> bool {
    at(rule, "/spec/updateStrategy/rollingUpdate/mutableFields").is_some_and(|how| how == "InPlace")
}

/// The spec of a Pod without what can be changed in place.
fn fixed(mut spec: Value) -> Value {
    if let Some(spec) = spec.as_object_mut() {
        spec.remove("tolerations");
    }
    for container in spec["containers"].as_array_mut().into_iter().flatten() {
        if let Some(container) = container.as_object_mut() {
            container.remove("image");
        }
    }
    spec
}

/// What of a rule no companion can get in place.
fn fixed_of(rule: &Value) -> Value {
    json!([fixed(rule["spec"]["template"]["spec"].clone()), rule["spec"]["deviceClaims"], policy(rule)])
}

impl Judge {
    /// A rule asks for this in its present state.
    pub(super) fn asked_for(&self, rule: &Value) {
        let made_from = (text(rule, "/metadata/uid").to_owned(), rule["metadata"]["generation"].to_string());
        self.found.lock().fixed.insert(made_from, fixed_of(rule));
    }

    /// A manager gives a companion another image.
    pub(super) fn updated(&self, world: &World, commit: &Commit, key: &Key) {
        let (Some(old), Some(new)) = (&commit.old, &commit.new) else { return };
        let image = |pod: &Value| text(pod, "/spec/containers/0/image").to_owned();
        let is_update = commit.subresource.is_none() && commit.client.starts_with("manager");
        if !is_update || image(old) == image(new) {
            return;
        }
        if fixed(old["spec"].clone()) != fixed(new["spec"].clone()) {
            let client = &commit.client;
            self.violation(
                world,
                format!("{client} changes more of the companion of {key:?} than its image"),
            );
        }
        let state = state(&image(new));
        let (plural, rule) = rule_of(key);
        let (later, is_current) = self.found.lock().states.known(&rule, state);
        let is_behind = later.is_some_and(|revision| {
            world.infra.shown(&commit.client, plural, revision).is_none_or(|at| at >= commit.sent)
        });
        self.newer(world, format!("the companion of {key:?}"), state, is_behind || is_current);
        self.replaced(world, commit, key);
    }

    /// A manager deletes a companion whose rule has another image. One that has been ready for a while gets that in place, where its rule says so and
    /// has changed in nothing else.
    pub(super) fn replaced_for_an_image(&self, world: &World, commit: &Commit, key: &Key, old: &Value) {
        let Some(rule) = served(world, key).filter(|rule| world.scope.updates && updates(rule)) else {
            return;
        };
        let image = text(&rule, "/spec/template/spec/containers/0/image");
        let is_other =
            image != text(old, "/spec/containers/0/image") && text(old, "/status/phase") == "Running";
        let is_excused = self.has_changed(key.0, &key.2) || self.has_other_dpu(key) || is_infeasible(old);
        if !is_other
            || is_excused
            || !commit.client.starts_with("manager")
            || !wanted(world).contains_key(key)
        {
            return;
        }
        let (annotations, now) = (&old["metadata"]["annotations"], fixed_of(&rule));
        let made_from = [keys::RULE_UID, keys::RULE_GENERATION]
            .map(|key| annotations[key].as_str().unwrap_or_default().to_owned());
        let is_possible = {
            let found = self.found.lock();
            let before = found.fixed.get(&made_from.into()) == Some(&now);
            let same =
                found.possible.rules(key.0, &key.1).iter().all(|rule| fixed_of(rule) == now && updates(rule));
            let since = found.ready_since.get(text(old, "/metadata/uid"));
            let is_known = since.is_some_and(|since| *since + PROMPTLY <= commit.sent);
            let has_other_devices = found.other_devices.contains(&(key.0, key.1.clone()));
            before && same && is_known && !has_other_devices && !found.blind && !found.disturbed
        };
        if is_possible && rule["metadata"]["deletionTimestamp"].is_null() {
            let client = &commit.client;
            self.violation(
                world,
                format!("{client} replaces the companion of {key:?}, which could get {image} in place"),
            );
        }
    }
}
