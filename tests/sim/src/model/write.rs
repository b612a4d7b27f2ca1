//! Writes: what a request asks for, and what the API server makes of it.
//!
//! A write is prepared from the stored object, passed to admission, and finished. Where the object was written in between, it is
//! prepared again from its new state.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use outrigger_runtime::environment::Environment;
use serde_json::{Value, json};

use super::kinds::ModelKind;
use super::link::{RequestInfo, Verb};
use super::object::{self, text};
use super::owners;
use super::patch::PatchBody;
use super::refusal::Refusal;
use super::store::{Commit, State};
use super::update::{self, Update};

/// What a write does with an object.
#[derive(Debug, Clone)]
pub(super) enum Change {
    Create(Value),
    Replace(Value),
    Patch(PatchBody),
    Delete(DeleteOptions),
}

/// The body of a DELETE.
#[derive(Debug, Clone, Default, serde::Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct DeleteOptions {
    pub(super) grace_period_seconds: Option<i64>,
    pub(super) preconditions: Preconditions,
    pub(super) propagation_policy: Option<String>,
    pub(super) dry_run: Vec<String>,
}

#[derive(Debug, Clone, Default, serde::Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Preconditions {
    uid: Option<String>,
    resource_version: Option<String>,
}

/// A request that changes an object.
#[derive(Debug, Clone)]
pub(super) struct Write {
    pub(super) info: RequestInfo,
    pub(super) kind: ModelKind,
    pub(super) field_manager: Option<String>,
    pub(super) change: Change,
}

/// A write as admission sees it, before its object is validated and stored.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// The request: user, verb, resource, subresource.
    pub info: RequestInfo,
    /// The kind of the object.
    pub kind: ModelKind,
    /// The field manager of the request.
    pub field_manager: Option<String>,
    /// The stored object; `None` if it is created.
    pub old: Option<Arc<Value>>,
    /// The object that would be stored; `null` if it is deleted.
    pub object: Value,
}

/// The response to a write.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    pub(super) code: u16,
    pub(super) object: Arc<Value>,
    /// What was stored: usually one write, and none if nothing had to be.
    pub(super) commits: Vec<Arc<Commit>>,
}

/// Why a write wasn't stored.
#[derive(Debug)]
pub(super) enum Failure {
    Refused(Refusal),
    /// The object was written since the write was prepared.
    Stale,
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl Write {
    fn name(&self) -> &str {
        self.info.name.as_deref().unwrap_or_default()
    }

    /// Reads the stored object, and computes what would be stored.
    pub(super) fn prepare(&self, state: &State, environment: &Environment) -> Result<Attempt, Refusal> {
        let kind = &self.kind;
        let name = self.name();
        let mut old = None;
        if self.info.verb != Verb::Create {
            old = state.object(kind, self.info.namespace.as_deref(), name).cloned();
        }
        let object = match (&self.change, &old) {
            (Change::Create(body), _) => {
                let mut body = self.body(body, None)?;
                // Admission sees the uid that the object will have.
                object::set(&mut body, "uid", json!(uid(environment)));
                body
            }
            (Change::Replace(body), _) => {
                let body = self.body(body, Some(name))?;
                if old.is_none() && !self.creates() {
                    return Err(Refusal::not_found(kind, name));
                }
                body
            }
            (Change::Patch(patch), Some(old)) => patch.apply(kind, name, old)?,
            (Change::Patch(PatchBody::Apply(body)), None) if self.creates() => self.body(body, Some(name))?,
            (Change::Delete(_), Some(_)) => Value::Null,
            (_, None) => return Err(Refusal::not_found(kind, name)),
        };
        if old.is_none() {
            self.check_namespace(state, &object)?;
        }
        Ok(Attempt {
            info: self.info.clone(),
            kind: *kind,
            field_manager: self.field_manager.clone(),
            old,
            object,
        })
    }

    /// Whether it creates the object if there is none.
    fn creates(&self) -> bool {
        let may = match self.change {
            Change::Replace(_) => self.kind.allows_create_on_update(),
            Change::Patch(_) => true,
            _ => false,
        };
        may && self.info.subresource.is_none()
    }

    /// The object in a request, which has to fit to the URL.
    fn body(&self, body: &Value, name: Option<&str>) -> Result<Value, Refusal> {
        let mut body = body.clone();
        let wrong = |message: String| Err(Refusal::new(400, message));
        if !body.is_object() || !(body["metadata"].is_object() || body["metadata"].is_null()) {
            return wrong("the object provided is unrecognized".to_owned());
        }
        for (field, expected) in
            [("apiVersion", self.kind.api_version()), ("kind", self.kind.kind.to_owned())]
        {
            match body[field].as_str() {
                None => object::put(&mut body, field, json!(expected)),
                Some(found) if found == expected => {}
                Some(found) => {
                    return wrong(format!("{field} {found} does not match the expected {expected}"));
                }
            }
        }
        object::normalize(&mut body);
        let namespace = self.info.namespace.as_deref().unwrap_or_default();
        if !text(&body, "namespace").is_empty() && text(&body, "namespace") != namespace {
            return wrong(
                "the namespace of the provided object does not match the namespace sent on the request"
                    .into(),
            );
        }
        let namespace = if self.kind.namespaced { json!(namespace) } else { Value::Null };
        object::set(&mut body, "namespace", namespace);
        match name {
            Some(name) if text(&body, "name").is_empty() => {
                wrong(format!("name is required; the URL names {name}"))
            }
            Some(name) if text(&body, "name") != name => wrong(format!(
                "the name of the object ({}) does not match the name on the URL ({name})",
                text(&body, "name")
            )),
            _ => Ok(body),
        }
    }

    /// The namespace of a new object has to exist, and not to be terminating.
    fn check_namespace(&self, state: &State, object: &Value) -> Result<(), Refusal> {
        let Some(namespace) = self.info.namespace.as_deref() else { return Ok(()) };
        let Some(namespaces) = state.find(Some(""), "namespaces") else { return Ok(()) };
        match namespaces.objects.get(namespace) {
            None => Err(Refusal::not_found(&namespaces.kind, namespace)),
            Some(found) if object::is_leaving(found) => {
                Err(Refusal::terminating(&self.kind, text(object, "name"), namespace))
            }
            Some(_) => Ok(()),
        }
    }

    /// Sets the `managedFields` of the kinds of which somebody asks for them.
    fn record_owner(&self, old: &Value, new: &mut Value) {
        if ["namespaces", "nodes", "workloadrules"].contains(&self.kind.plural) {
            owners::record(old, new, self.field_manager.as_deref().unwrap_or(&self.info.user));
        }
    }

    /// Validates and stores what admission has made of an attempt.
    pub(super) fn finish(
        &self,
        state: &mut State,
        environment: &Environment,
        Attempt { old, object, .. }: Attempt,
    ) -> Result<Answer, Failure> {
        if self.info.verb != Verb::Create {
            let now = state.object(&self.kind, self.info.namespace.as_deref(), self.name());
            if now.map(|now| object::version(now)) != old.as_deref().map(object::version) {
                return Err(Failure::Stale);
            }
        }
        let time = environment.clock.wall();
        match (&self.change, &old) {
            (Change::Delete(options), Some(old)) => {
                let (new, gone) = self.delete(options, old, time)?;
                let mut answer = self.store(state, time, self.name(), (200, new, gone), Some(old))?;
                self.remove_stopped(state, time, &mut answer)?;
                Ok(answer)
            }
            (_, None) => {
                let mut new = self.create(state, environment, object)?;
                self.record_owner(&Value::Null, &mut new);
                let name = text(&new, "name").to_owned();
                self.store(state, time, &name, (201, new, false), None)
            }
            (_, Some(old)) => {
                let (mut new, gone) = {
                    let generation = state.generation;
                    Update { info: &self.info, kind: &self.kind, old, generation }.apply(object)?
                };
                self.record_owner(old, &mut new);
                self.store(state, time, self.name(), (200, new, gone), Some(old))
            }
        }
    }

    /// Stores a new state, or removes the object. The response shows the new state in both cases.
    fn store(
        &self,
        state: &mut State,
        time: Timestamp,
        name: &str,
        (code, new, gone): (u16, Value, bool),
        old: Option<&Arc<Value>>,
    ) -> Result<Answer, Failure> {
        let unchanged = old.filter(|old| !gone && ***old == new);
        if unchanged.is_some() || self.info.dry_run {
            return Ok(Answer {
                code,
                object: unchanged.cloned().unwrap_or_else(|| Arc::new(new)),
                commits: Vec::new(),
            });
        }
        let removed = gone.then(|| Arc::new(new.clone()));
        let commit = state.commit(time, &self.info, &self.kind, name, (!gone).then_some(new))?;
        let object = removed.or_else(|| commit.new.clone()).unwrap_or_default();
        Ok(Answer { code, object, commits: vec![commit] })
    }

    /// Removes a Pod that a deletion has marked, and that nothing holds. The response shows the revision of the removal.
    fn remove_stopped(&self, state: &mut State, time: Timestamp, answer: &mut Answer) -> Result<(), Refusal> {
        let marked = answer.commits.first().and_then(|commit| commit.new.clone());
        let stopped =
            |marked: &Arc<Value>| self.kind.plural == "pods" && !update::is_held(&self.kind, marked);
        let Some(mut marked) = marked.filter(stopped) else { return Ok(()) };
        let removal = state.commit(time, &self.info, &self.kind, text(&marked, "name"), None)?;
        let version = json!(removal.revision.to_string());
        object::set(Arc::make_mut(&mut marked), "resourceVersion", version);
        answer.object = marked;
        answer.commits.push(removal);
        Ok(())
    }

    /// The object that is stored for a new one.
    fn create(&self, state: &State, environment: &Environment, mut new: Value) -> Result<Value, Refusal> {
        let kind = &self.kind;
        object::normalize(&mut new);
        let replaces = self.info.verb == Verb::Update && !text(&new, "uid").is_empty();
        if replaces || !text(&new, "resourceVersion").is_empty() {
            return Err(update::with_version(self, &new));
        }
        if text(&new, "name").is_empty() {
            let prefix = text(&new, "generateName");
            if prefix.is_empty() {
                return Err(Refusal::invalid(kind, "", "metadata.name", "name or generateName is required"));
            }
            let name = generated(prefix, environment);
            object::set(&mut new, "name", json!(name));
        }
        let name = text(&new, "name").to_owned();
        for field in ["deletionTimestamp", "deletionGracePeriodSeconds"] {
            object::set(&mut new, field, Value::Null);
        }
        kind.drop_status(&mut new);
        kind.set_defaults(&mut new);
        if kind.spec_generation {
            object::set(&mut new, "generation", json!(1));
        }
        if self.info.verb != Verb::Create {
            object::set(&mut new, "uid", json!(uid(environment)));
        }
        object::set(&mut new, "creationTimestamp", json!(seconds(environment.clock.wall())));
        update::validate(kind, &new)?;
        match state.object(kind, self.info.namespace.as_deref(), &name) {
            Some(_) => Err(Refusal::exists(kind, &name)),
            None => Ok(new),
        }
    }

    /// The object after a deletion, and whether it is removed at once.
    fn delete(
        &self,
        options: &DeleteOptions,
        old: &Value,
        time: Timestamp,
    ) -> Result<(Value, bool), Refusal> {
        let (kind, name) = (&self.kind, self.name());
        if options.propagation_policy.as_deref().is_some_and(|policy| policy != "Background") {
            return Err(Refusal::new(501, "the model deletes dependents in the background only"));
        }
        for (field, wanted) in [
            ("uid", &options.preconditions.uid),
            ("resourceVersion", &options.preconditions.resource_version),
        ] {
            let found = text(old, field);
            if let Some(wanted) = wanted.as_deref().filter(|wanted| *wanted != found) {
                let label = if field == "uid" { "UID" } else { "ResourceVersion" };
                let why = format!(
                    "Precondition failed: {label} in precondition: {wanted}, {label} in object meta: {found}"
                );
                return Err(Refusal::conflict(kind, name, &why));
            }
        }
        let held = object::finalizers(old).next().is_some() || kind.plural == "namespaces";
        // A Pod is marked before it is removed, also if there is nothing to wait for.
        if !held && kind.plural != "pods" {
            return Ok((old.clone(), true));
        }
        let mut new = old.clone();
        let before = old["metadata"]["deletionGracePeriodSeconds"].as_i64();
        // Only a shorter grace that is asked for changes a deletion.
        let shorter =
            options.grace_period_seconds.filter(|wanted| before.is_some_and(|before| *wanted < before));
        let mut grace = match shorter {
            _ if !object::is_leaving(old) => grace(kind, options, old),
            Some(shorter) => shorter.max(0),
            None => return Ok((new, false)),
        };
        // A shorter grace counts from the first deletion; where that time has passed, a second is left.
        let earlier = text(old, "deletionTimestamp").parse::<Timestamp>().ok();
        let more = SignedDuration::from_secs(grace - before.unwrap_or(0));
        let mut end = earlier.unwrap_or(time).saturating_add(more).unwrap_or(time);
        if grace > 0 && end < time {
            (grace, end) = (1, time.saturating_add(SignedDuration::from_secs(1)).unwrap_or(time));
        }
        object::set(&mut new, "deletionTimestamp", json!(seconds(end)));
        if kind.plural == "namespaces" {
            object::put(&mut new, "status", json!({"phase": "Terminating"}));
        } else {
            object::set(&mut new, "deletionGracePeriodSeconds", json!(grace));
        }
        if !object::is_leaving(old)
            && let Some(generation) = old["metadata"]["generation"].as_i64()
        {
            object::set(&mut new, "generation", json!(generation + 1));
        }
        Ok((new, false))
    }
}

/// How many seconds a kubelet has to stop a Pod; 0 for other objects, and for Pods that no kubelet runs.
fn grace(kind: &ModelKind, options: &DeleteOptions, old: &Value) -> i64 {
    let ended = matches!(old["status"]["phase"].as_str(), Some("Failed" | "Succeeded"));
    if kind.plural != "pods" || old["spec"]["nodeName"].as_str().is_none_or(str::is_empty) || ended {
        return 0;
    }
    let own = old["spec"]["terminationGracePeriodSeconds"].as_i64();
    options.grace_period_seconds.or(own).unwrap_or(30).max(0)
}

/// A time as the API server writes it.
fn seconds(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn uid(environment: &Environment) -> String {
    let (high, low) = (environment.random.seed(), environment.random.seed());
    format!(
        "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
        high >> 32,
        high >> 16 & 0xffff,
        high & 0xfff,
        0x8000 | (low >> 48 & 0x3fff),
        low & 0xffff_ffff_ffff
    )
}

/// A name with a random end, as the API server generates it.
fn generated(prefix: &str, environment: &Environment) -> String {
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut number = environment.random.seed();
    let mut name: String = prefix.chars().take(58).collect();
    for _ in 0..5 {
        let at = usize::try_from(number % LETTERS.len() as u64).unwrap_or(0);
        name.push(LETTERS.get(at).copied().map_or('b', char::from));
        number /= LETTERS.len() as u64;
    }
    name
}
