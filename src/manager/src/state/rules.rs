//! The rules of a namespace.

use std::sync::Arc;

use kube::ResourceExt;
use outrigger_api::{WorkloadRule, WorkloadRuleStatus, rule_wire};
use outrigger_core::field::FieldError;
use outrigger_core::ids::RuleName;
use outrigger_core::index::CompanionKey;
use outrigger_core::rule::Rule;

use super::companions::CompanionCache;
use super::status_pace::Written;
use super::tenant::TenantData;
use super::validation::TemplateValidation;

#[derive(Debug, Clone, Default)]
pub(crate) struct RuleEntry {
    pub uid: String,
    pub generation: i64,
    /// `metadata.resourceVersion`; empty for an admin rule, which others keep.
    pub resource_version: String,
    /// Its status as last seen or written.
    pub status: WorkloadRuleStatus,
    /// What is wrong with its spec; empty when it is served.
    pub errors: Vec<FieldError>,
    /// The last time that this replica has written its status, of this generation.
    pub written: Option<WrittenStatus>,
    /// Whether the API server takes its companions.
    pub validation: TemplateValidation,
    /// It is being deleted.
    pub deleting: bool,
    pub revision: String,
    /// See [`rule_wire::etag`].
    pub etag: String,
    /// The object in the tenant's cluster that it was made from.
    pub origin: String,
}

/// A status that this replica has written, and the rule's resourceVersion since then.
pub(crate) type WrittenStatus = Written<String>;

impl RuleEntry {
    /// Whether its status says that it is accepted as it is.
    pub(super) fn is_accepted(&self) -> bool {
        let status = &self.status;
        status.observed_generation == Some(self.generation)
            && status.conditions.iter().any(|c| c.type_ == "Accepted" && c.status == "True")
    }
}

impl TenantData {
    /// This replica has written the status of the rule with this uid.
    pub(crate) fn status_written(&mut self, name: &RuleName, uid: &str, written: WrittenStatus) {
        self.status_bytes.wrote(written.bytes, &self.limits.unwrap_or_default(), written.at);
        if let Some(entry) = self.rules.get_mut(name).filter(|entry| entry.uid == uid) {
            entry.written = Some(written);
        }
    }

    /// A rule exists and looks like this. Returns the companions it may change.
    pub(crate) fn apply_rule(&mut self, object: &WorkloadRule) -> Vec<CompanionKey> {
        let keys = self.file_rule(object);
        self.notify_of_annotations();
        keys
    }

    fn file_rule(&mut self, object: &WorkloadRule) -> Vec<CompanionKey> {
        let Ok(name) = RuleName::new(&object.name_any()) else { return Vec::new() };
        let mut entry = RuleEntry {
            uid: object.metadata.uid.clone().unwrap_or_default(),
            generation: object.metadata.generation.unwrap_or_default(),
            resource_version: object.resource_version().unwrap_or_default(),
            status: object.status.clone().unwrap_or_default(),
            deleting: object.metadata.deletion_timestamp.is_some(),
            origin: rule_wire::origin(object),
            etag: rule_wire::etag(&object.metadata),
            ..RuleEntry::default()
        };
        if object.metadata.deletion_timestamp.is_some() {
            // It only waits for its companions to go (foreground deletion); it must not get new ones.
            self.rules.insert(name.clone(), entry);
            return self.index.remove_rule(&name);
        }
        if let Some(known) = self.rules.get_mut(&name)
            && known.uid == entry.uid
            && known.generation == entry.generation
            && known.origin.is_empty() == entry.origin.is_empty()
        {
            // Only its status or metadata changed. Another replica may have validated its template: waiting companions continue.
            let passed = !known.validation.has_passed() && known.errors.is_empty() && entry.is_accepted();
            let refused = known.validation.refusal().is_some();
            if passed {
                known.validation = TemplateValidation::passed();
            }
            known.status = entry.status;
            known.resource_version = entry.resource_version;
            known.origin = entry.origin;
            known.etag = entry.etag;
            return if passed { self.released(&name, refused) } else { Vec::new() };
        }
        entry.revision = rule_wire::message(object).revision;
        let rule = object.compile().map_err(|errors| entry.errors = errors).ok();
        let rule = rule.map(|rule| if entry.origin.is_empty() { rule } else { rule.into_copied() });
        let mut keys = self.replace_rule(&name, entry, rule.map(Arc::new));
        // Those of workloads that are gone, or of which it wasn't decided whether they match.
        keys.extend(self.companions.of_rule(&name).map(|(key, _)| key));
        keys
    }

    /// An admin rule is about the tenant and says this; `None` when it can't be served. Returns the companions it may change:
    /// none when it was known.
    pub(crate) fn set_admin_rule(
        &mut self,
        name: &RuleName,
        entry: RuleEntry,
        rule: Option<Arc<Rule>>,
    ) -> Vec<CompanionKey> {
        let known = self.rules.get(name);
        if known.is_some_and(|known| known.uid == entry.uid && known.generation == entry.generation) {
            return Vec::new();
        }
        let changes = known.is_some();
        let mut keys = self.replace_rule(name, entry, rule);
        // As in `file_rule`; before the tenant had the rule, nothing of it was undecided.
        let of_rule = |companions: &CompanionCache| match changes {
            true => companions.of_rule(name).map(|(key, _)| key).collect(),
            false => companions.ended(name),
        };
        keys.extend(self.read_companions(name, of_rule).into_iter().flatten());
        self.notify_of_annotations();
        keys
    }

    /// A rule says something else than before. One that can't be served, `None`, keeps the companions it has. Returns the companions of
    /// the matches that this changes.
    fn replace_rule(
        &mut self,
        name: &RuleName,
        entry: RuleEntry,
        rule: Option<Arc<Rule>>,
    ) -> Vec<CompanionKey> {
        let validation = rule.as_ref().map(|rule| self.validation_of(rule, &entry)).unwrap_or_default();
        self.rules.insert(name.clone(), RuleEntry { validation, ..entry });
        self.refusals.forget_rule(name);
        self.rollouts.restart(name);
        match rule {
            Some(rule) => self.index.apply_rule(rule),
            None => self.index.remove_rule(name),
        }
    }

    /// A rule is deleted. Returns the companions that it had, which the garbage collector deletes.
    pub(crate) fn remove_rule(&mut self, name: &RuleName) -> Vec<CompanionKey> {
        self.rules.remove(name);
        self.rollouts.forget(name);
        self.with_companions(name, |companions| companions.forget_missing(name));
        self.refusals.forget_rule(name);
        let mut keys = self.index.remove_rule(name);
        keys.extend(self.read_companions(name, |companions| companions.ended(name)).into_iter().flatten());
        self.notify_of_annotations();
        keys
    }

    /// Companions that wait no longer, because the API server takes their template; `refused`: it didn't before, so that some
    /// were not made.
    pub(crate) fn released(&mut self, name: &RuleName, refused: bool) -> Vec<CompanionKey> {
        let mut held = self.rollouts.restart(name);
        if refused {
            held.extend(self.index.workloads_of(name).map(|workload| CompanionKey::of(name, &workload.id)));
        }
        held
    }

    /// The validation of a rule's template. A valid template is not validated again, not even after a restart.
    fn validation_of(&self, rule: &Rule, entry: &RuleEntry) -> TemplateValidation {
        let known = self.rules.get(rule.name()).filter(|known| known.uid == entry.uid);
        let same = |known: &&Arc<Rule>| known.content_hash() == rule.content_hash();
        match (known, self.index.rule(rule.name()).filter(same)) {
            (Some(known), Some(_)) => known.validation.clone(),
            _ if entry.is_accepted() => TemplateValidation::passed(),
            _ => TemplateValidation::default(),
        }
    }
}
