//! What an update may change, and when it changes nothing.

use serde_json::{Value, json};

use super::kinds::ModelKind;
use super::link::{RequestInfo, Verb};
use super::object::{self, text};
use super::refusal::Refusal;
use super::resize;
use super::write::Write;

/// An update of a stored object by a replacement or a patch.
pub(super) struct Update<'a> {
    pub(super) info: &'a RequestInfo,
    pub(super) kind: &'a ModelKind,
    pub(super) old: &'a Value,
    /// The least generation that a change leads to.
    pub(super) generation: i64,
}

impl Update<'_> {
    fn name(&self) -> &str {
        text(self.old, "name")
    }

    /// The updated object, and whether it is removed because the update removes its last finalizer after its deletion.
    pub(super) fn apply(&self, mut new: Value) -> Result<(Value, bool), Refusal> {
        let old = self.old;
        object::normalize(&mut new);
        self.check(&new)?;
        if let Some(subresource) = self.info.subresource.as_deref() {
            self.keep_all_but(subresource, &mut new);
        } else if self.kind.has_status_subresource {
            object::put(&mut new, "status", old["status"].clone());
        }
        object::copy(
            old,
            &mut new,
            &[
                "uid",
                "namespace",
                "creationTimestamp",
                "deletionTimestamp",
                "deletionGracePeriodSeconds",
                "generation",
            ],
        );
        object::set(&mut new, "resourceVersion", old["metadata"]["resourceVersion"].clone());
        if text(&new, "generateName").is_empty() {
            object::copy(old, &mut new, &["generateName"]);
        }
        if self.kind.plural == "namespaces" && self.info.subresource.is_none() {
            object::put(&mut new, "spec", old["spec"].clone());
            new["metadata"]["labels"]["kubernetes.io/metadata.name"] = json!(self.name());
        }
        if self.kind.spec_generation && !object::same_content(old, &new) {
            let generation = old["metadata"]["generation"].as_i64().unwrap_or(0);
            object::set(&mut new, "generation", json!((generation + 1).max(self.generation)));
        }
        validate(self.kind, &new)?;
        if self.info.subresource.as_deref() == Some("resize") && resize::class(&new) != resize::class(old) {
            let why = "Pod QOS Class may not change as a result of resizing";
            return Err(Refusal::invalid(self.kind, self.name(), "spec", why));
        }
        self.validate_finalizers(&new)?;
        let finished = object::is_leaving(old) && !is_held(self.kind, &new);
        Ok((new, finished))
    }

    /// The name, the uid and the resourceVersion in the request have to be those of the stored object.
    fn check(&self, new: &Value) -> Result<(), Refusal> {
        let (old, kind, name) = (self.old, self.kind, self.name());
        if text(new, "name") != name || (kind.namespaced && text(new, "namespace") != text(old, "namespace"))
        {
            return Err(Refusal::new(400, "the name or the namespace of the object does not match the URL"));
        }
        let uid = text(new, "uid");
        if self.info.verb == Verb::Update && !uid.is_empty() && uid != text(old, "uid") {
            let found = text(old, "uid");
            let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {found}");
            return Err(Refusal::conflict(kind, name, &why));
        }
        match text(new, "resourceVersion") {
            "" if !kind.allows_unconditional_update() => {
                let why = "Invalid value: 0x0: must be specified for an update";
                return Err(Refusal::invalid(kind, name, "metadata.resourceVersion", why));
            }
            version if !version.is_empty() && version.parse::<u64>().is_err() => {
                return Err(Refusal::internal(&format!("invalid resourceVersion {version}")));
            }
            version if !version.is_empty() && version != text(old, "resourceVersion") => {
                return Err(Refusal::modified(kind, name));
            }
            _ => {}
        }
        if !uid.is_empty() && uid != text(old, "uid") {
            return Err(Refusal::invalid(kind, name, "metadata.uid", "field is immutable"));
        }
        Ok(())
    }

    /// A write of a status changes nothing else; that of a kind of Kubernetes may change metadata too.
    fn keep_all_but(&self, subresource: &str, new: &mut Value) {
        if subresource == "finalize" {
            let spec = new["spec"].take();
            new.clone_from(self.old);
            return object::put(new, "spec", spec);
        }
        if subresource == "resize" {
            let spec = new["spec"].take();
            new.clone_from(self.old);
            return resize::take_amounts(&spec, new);
        }
        let mut status = new["status"].take();
        if status.is_object() && status["qosClass"].is_null() {
            // The class of a Pod never changes.
            object::put(&mut status, "qosClass", self.old["status"]["qosClass"].clone());
        }
        let metadata = new["metadata"].take();
        new.clone_from(self.old);
        object::put(new, "status", status);
        if !self.kind.is_custom() {
            object::put(new, "metadata", metadata);
            object::copy(self.old, new, &["ownerReferences"]);
        }
    }

    fn validate_finalizers(&self, new: &Value) -> Result<(), Refusal> {
        let added = object::finalizers(new)
            .any(|finalizer| !object::finalizers(self.old).any(|old| old == finalizer));
        if object::is_leaving(self.old) && added {
            let why = "Forbidden: no new finalizers can be added if the object is being deleted";
            return Err(Refusal::invalid(self.kind, self.name(), "metadata.finalizers", why));
        }
        Ok(())
    }
}

/// Whether something still holds a deleted object: a finalizer, a kubelet, the objects in a namespace.
pub(super) fn is_held(kind: &ModelKind, new: &Value) -> bool {
    object::finalizers(new).next().is_some()
        || new["metadata"]["deletionGracePeriodSeconds"].as_i64().is_some_and(|grace| grace > 0)
        || (kind.plural == "namespaces"
            && new["spec"]["finalizers"].as_array().is_some_and(|all| !all.is_empty()))
}

/// Validates the parts of metadata that Outrigger relies on.
pub(super) fn validate(kind: &ModelKind, object: &Value) -> Result<(), Refusal> {
    let name = text(object, "name");
    let invalid = |field: &str, why: &str| Err(Refusal::invalid(kind, name, field, why));
    let is_label = matches!(kind.plural, "namespaces" | "services");
    let most = if is_label { 63 } else { 253 };
    let letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let part = |part: &str| {
        part.starts_with(letter) && part.ends_with(letter) && part.chars().all(|c| letter(c) || c == '-')
    };
    let path = kind.group == "rbac.authorization.k8s.io";
    if !path && (name.len() > most || !name.split('.').all(part) || (is_label && name.contains('.'))) {
        return invalid("metadata.name", "Invalid value: a lowercase RFC 1123 name is required");
    }
    let labels = object["metadata"]["labels"].as_object();
    for (key, value) in labels.into_iter().flatten() {
        let value = value.as_str().unwrap_or_default();
        if !is_label_value(value)
            || key.rsplit('/').next().is_none_or(|name| name.is_empty() || !is_label_value(name))
        {
            return invalid("metadata.labels", &format!("Invalid value: \"{key}: {value}\""));
        }
    }
    Ok(())
}

fn is_label_value(text: &str) -> bool {
    let end = |c: char| c.is_ascii_alphanumeric();
    let within = |c: char| end(c) || matches!(c, '-' | '_' | '.');
    text.is_empty()
        || (text.len() <= 63 && text.starts_with(end) && text.ends_with(end) && text.chars().all(within))
}

/// The refusal of a new object that has a resourceVersion, or is meant to replace another one.
pub(super) fn with_version(write: &Write, new: &Value) -> Refusal {
    match write.info.verb {
        Verb::Update if !text(new, "uid").is_empty() => {
            let uid = text(new, "uid");
            let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: ");
            Refusal::conflict(&write.kind, text(new, "name"), &why)
        }
        Verb::Create => Refusal::internal("resourceVersion should not be set on objects to be created"),
        _ => Refusal::modified(&write.kind, text(new, "name")),
    }
}
