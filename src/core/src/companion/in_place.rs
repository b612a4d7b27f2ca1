//! Companions that are changed in place instead of being replaced: their amounts of cpu and memory ([`super::resize()`]), and the fields of
//! a Pod that its API lets change otherwise (`ValidatePodUpdate` in Kubernetes' validation): images of containers and init containers,
//! tolerations that are added, and `activeDeadlineSeconds` where it is set or becomes less.
//!
//! These fields change in one write together with the annotations that say which template the companion is made from, so no manager can end
//! between them. Like that of the amounts, the write is about the Pod as it was read.
//!
//! A kubelet restarts a container whose image changes (`containerChanged` in its runtime manager), also one of a Pod that never restarts
//! containers otherwise. Until it does, the Pod is ready with the earlier image. So the write records which containers run by then: as long
//! as one of them does, the companion isn't as its template says.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::resize::{is_resizable, take_amounts};
use super::{MAX_ANNOTATIONS, Observed, hash_canonical, hash_of};
use crate::claim::Devices;
use crate::ids::hex;
use crate::json::{annotation, list, text};
use crate::reason::Cause;
use crate::rule::{DpuSelectionPolicy, Rule};
use crate::template::{self, CONTAINERS, Kind, meaning};
use crate::{fault, keys};

/// Most parts that a template has one by one. Companions of one that has more are replaced.
const MAX_PARTS: usize = 64;

/// What a part of a template is about: the first letter of its hash.
mod part {
    pub(super) const AMOUNTS: char = 'a';
    pub(super) const DEADLINE: char = 'd';
    pub(super) const FIXED: char = 'f';
    pub(super) const IMAGE: char = 'i';
    pub(super) const TOLERATION: char = 't';
}

/// What changes of a companion in place.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InPlace {
    /// Requests or limits of cpu and memory.
    pub amounts: bool,
    /// Images, whose containers are restarted.
    pub images: bool,
    /// Tolerations that are added, or `activeDeadlineSeconds`.
    pub others: bool,
}

impl InPlace {
    /// Whether something changes that isn't an amount.
    pub fn has_fields(self) -> bool {
        self.images || self.others
    }
}

/// Hashes of the parts of what a template means, separated by periods, each a letter and 16 hex digits: of what can't be changed in place,
/// of the amounts of cpu and memory, of `activeDeadlineSeconds`, and of each image and each toleration. `None` where nothing can be
/// changed in place: the companion is no Pod, or there are more parts than [`MAX_PARTS`].
pub fn parts(policy: DpuSelectionPolicy, template: &Value, devices: &Devices) -> Option<String> {
    if template::kind(template) != Kind::Pod {
        return None;
    }
    let mut fixed = meaning::of(template);
    // An amount in an environment variable would stay as it is, so it isn't changed in place.
    let containers = || CONTAINERS.iter().flat_map(|name| list(&fixed, containers_of(name)));
    let mut variables = containers().flat_map(|container| list(container, "/env"));
    let are_read = variables.any(|variable| variable.pointer("/valueFrom/resourceFieldRef").is_some());
    let mut parts = Vec::new();
    let mut amounts = Vec::new();
    for name in CONTAINERS {
        let all = fixed.pointer_mut(containers_of(name)).and_then(Value::as_array_mut);
        for container in all.into_iter().flatten() {
            parts.push(image_part(name, container));
            let resizable = is_resizable(name, container) && !are_read;
            let Some(container) = container.as_object_mut() else { continue };
            let image = container.remove("image").unwrap_or_default();
            // Where the template doesn't say it, the API server has set it by the first image, and it can't be changed.
            let policy = image.as_str().and_then(meaning::pull_policy);
            container.entry("imagePullPolicy").or_insert_with(|| json!(policy));
            if resizable {
                amounts.push(json!([name, container.get("name"), take_amounts(container)]));
            }
        }
    }
    parts.push(hashed(part::AMOUNTS, &amounts.into()));
    if let Some(spec) = fixed.get_mut("spec").and_then(Value::as_object_mut) {
        let tolerations = spec.remove("tolerations").unwrap_or_default();
        parts.extend(tolerations.as_array().into_iter().flatten().map(toleration_part));
        parts.push(hashed(part::DEADLINE, &spec.remove("activeDeadlineSeconds").unwrap_or_default()));
    }
    if parts.len() > MAX_PARTS {
        return None;
    }
    parts.push(format!("{}{}", part::FIXED, hash_of(policy, &fixed, devices.content())));
    Some(parts.join("."))
}

fn containers_of(list: &str) -> &'static str {
    if list == CONTAINERS[0] { "/spec/containers" } else { "/spec/initContainers" }
}

fn image_of<'a>(containers: &'a [Value], name: Option<&Value>) -> Option<&'a str> {
    let container = containers.iter().find(|container| container.get("name") == name)?;
    Some(text(container, "/image"))
}

fn hashed(kind: char, value: &Value) -> String {
    let mut hash = Sha256::new();
    hash_canonical(value, &mut hash);
    format!("{kind}{}", hex(&hash.finalize(), 16))
}

fn image_part(list: &str, container: &Value) -> String {
    hashed(part::IMAGE, &json!([list, container.get("name"), container.get("image")]))
}

fn toleration_part(toleration: &Value) -> String {
    hashed(part::TOLERATION, toleration)
}

/// What changes from a template with the parts `present` to one with the parts `wanted`; `None` where something changes that can't be
/// changed in place.
fn changes(wanted: &str, present: &str) -> Option<InPlace> {
    let [wanted, present] = [wanted, present].map(|parts| parts.split('.').collect::<BTreeSet<_>>());
    let mut change = InPlace::default();
    for (part, is_new) in wanted
        .difference(&present)
        .map(|part| (part, true))
        .chain(present.difference(&wanted).map(|part| (part, false)))
    {
        match part.chars().next() {
            Some(part::AMOUNTS) => change.amounts = true,
            Some(part::IMAGE) => change.images = true,
            Some(part::DEADLINE) => change.others = true,
            Some(part::TOLERATION) if is_new => change.others = true,
            _ => return None,
        }
    }
    Some(change)
}

/// What has to change of a companion so that it is as its rule makes it, where all of that can be changed in place and the rule wants it so,
/// as far as that is known without the Pod.
pub fn in_place(rule: &Rule, o: &Observed) -> Option<InPlace> {
    let (wanted, present) = (rule.parts()?, o.parts.as_deref()?);
    let room = keys::CONTENT_HASH.len() + rule.content_hash().len() + wanted.len();
    let change = changes(wanted, present).filter(|_| o.annotations_size + room <= MAX_ANNOTATIONS)?;
    let is_wanted = (rule.resizes || !change.amounts) && (rule.updates || !change.has_fields());
    is_wanted.then_some(change)
}

/// The fields of a Pod, other than its amounts, that have to change so that it has those of a template.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Fields {
    /// The part of a strategic merge patch that is about the spec: what differs, and nothing else.
    spec: Map<String, Value>,
    /// The annotation [`keys::RESTARTS`].
    restarts: String,
    /// `metadata.resourceVersion` of the Pod.
    version: Value,
}

impl Fields {
    /// What has to change of `pod`, the companion `o` as the API server has it; `None` where it can't: it lacks a container, or its
    /// `activeDeadlineSeconds` would be removed or become more. Only what the template has changed since the companion was made from it:
    /// the rest may have been set by others.
    pub fn of(rule: &Rule, o: &Observed, pod: &Value) -> Option<Self> {
        let wanted = meaning::of(&rule.template());
        let present: BTreeSet<&str> = o.parts.as_deref()?.split('.').collect();
        let is_new = |part: String| !present.contains(part.as_str());
        let version = pod.pointer("/metadata/resourceVersion").cloned().unwrap_or_default();
        let mut fields = Self { version, ..Self::default() };
        for name in CONTAINERS {
            let containers = list(&wanted, containers_of(name)).iter();
            fields.images(name, containers.filter(|container| is_new(image_part(name, container))), pod)?;
        }
        fields.restarts = fields.restarts(pod);
        let added = list(&wanted, "/spec/tolerations").iter();
        let tolerated = list(pod, "/spec/tolerations");
        let added: Vec<_> = added
            .filter(|added| is_new(toleration_part(added)) && !tolerated.contains(added))
            .cloned()
            .collect();
        if !added.is_empty() {
            // The list is replaced as a whole, by each kind of patch.
            fields.spec.insert("tolerations".into(), [tolerated, added.as_slice()].concat().into());
        }
        let deadline = |of: &Value| {
            of.pointer("/spec/activeDeadlineSeconds").filter(|seconds| !seconds.is_null()).cloned()
        };
        let (to, from) = (deadline(&wanted), deadline(pod));
        if to != from && is_new(hashed(part::DEADLINE, &to.clone().unwrap_or_default())) {
            let to = to.filter(|to| from.is_none_or(|from| to.as_i64() < from.as_i64()))?;
            fields.spec.insert("activeDeadlineSeconds".into(), to);
        }
        Some(fields)
    }

    fn images<'a>(&mut self, name: &str, wanted: impl Iterator<Item = &'a Value>, pod: &Value) -> Option<()> {
        let mut changed = Vec::new();
        for container in wanted {
            let called = container.get("name");
            let image = text(container, "/image");
            if image_of(list(pod, containers_of(name)), called)? != image {
                changed.push(json!({"name": called, "image": image}));
            }
        }
        if !changed.is_empty() {
            self.spec.insert(name.to_owned(), changed.into());
        }
        Some(())
    }

    /// The containers that run and that the kubelet will restart, each as `IDENTIFIER=IMAGE`, with the image that it runs: the Pod's, unless
    /// the last change says otherwise, because the kubelet may not have acted on that. One that runs what it is to run isn't restarted.
    fn restarts(&self, pod: &Value) -> String {
        let last: BTreeMap<&str, &str> =
            annotation(pod, keys::RESTARTS).into_iter().flat_map(restarted).collect();
        let mut restarts = Vec::new();
        for (name, statuses) in
            CONTAINERS.iter().zip(["/status/containerStatuses", "/status/initContainerStatuses"])
        {
            let changes = self.spec.get(*name).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            let running =
                list(pod, statuses).iter().filter(|status| status.pointer("/state/running").is_some());
            for status in running {
                let (called, id) = (status.get("name"), text(status, "/containerID"));
                let has = image_of(list(pod, containers_of(name)), called).unwrap_or_default();
                let runs = last.get(id).copied().unwrap_or(has);
                if !id.is_empty() && runs != image_of(changes, called).unwrap_or(has) {
                    restarts.push(format!("{id}={runs}"));
                }
            }
        }
        restarts.join(" ")
    }

    /// The same for a Pod that was written since, by somebody who knew the state that these are about.
    #[must_use]
    pub fn at_version(self, version: Option<String>) -> Self {
        Self { version: version.into(), ..self }
    }

    /// The strategic merge patch that makes these changes, and by which the companion counts as made from its rule's template. It carries
    /// uid and resourceVersion as preconditions.
    pub fn patch(self, rule: &Rule, o: &Observed) -> Value {
        let mut patch = renewed(rule, o);
        if !fault("restarting-companion-serves") {
            patch["metadata"]["annotations"][keys::RESTARTS] = self.restarts.into();
        }
        if !fault("later-image-is-overwritten") {
            patch["metadata"]["resourceVersion"] = self.version;
        }
        patch["spec"] = self.spec.into();
        patch
    }
}

/// The identifiers of the containers that a value of [`keys::RESTARTS`] names, and the images that they run.
pub fn restarted(value: &str) -> impl Iterator<Item = (&str, &str)> {
    value.split(' ').filter_map(|entry| entry.split_once('='))
}

/// The merge patch by which a companion that has all of its rule's template counts as made from it.
pub fn renewed(rule: &Rule, o: &Observed) -> Value {
    let content = Some(rule.content_hash()).filter(|content| *content != rule.template_hash());
    json!({"metadata": {"uid": o.uid, "annotations": {
        keys::TEMPLATE_HASH: rule.template_hash(),
        keys::CONTENT_HASH: content,
        keys::TEMPLATE_PARTS: rule.parts(),
        keys::RULE_GENERATION: rule.generation().to_string(),
    }}})
}

impl Observed {
    /// A companion that serves and is being changed in place. A container may be restarted for that: for another image, or by its
    /// `resizePolicy`.
    pub fn is_changing(&self) -> bool {
        let changes = matches!(self.trouble, Some(Cause::Resizing | Cause::Updating));
        self.ready && changes && !fault("companion-serves-while-it-is-resized")
    }

    /// A companion that serves and isn't as it should be: it isn't as its template says yet, or a device of it is unhealthy.
    pub fn is_impaired(&self) -> bool {
        let changing = [Cause::Resizing, Cause::ResizeDeferred, Cause::ResizeInfeasible, Cause::Updating];
        let is_impaired = |trouble| changing.contains(&trouble) || trouble == Cause::DeviceUnhealthy;
        self.ready && self.trouble.is_some_and(is_impaired)
    }
}

#[cfg(test)]
mod tests;
