//! The ResourceClaimTemplates that companions' device claims are made from: one for each rule and device claim.
//!
//! A template can't be changed, so its name depends on its spec, and another spec leads to another template. A template is
//! created before the first companion that names it, and deleted when no companion names it.

use outrigger_core::map::{HashMap, remove_from};
use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::resource::v1::ResourceClaimTemplate;
use kube::api::Api;
use kube::core::PartialObjectMeta;
use kube::{Client, ResourceExt};
use outrigger_core::claim::Template;
use outrigger_core::companion::is_owner;
use outrigger_core::ids::RuleName;
use outrigger_core::keys;
use outrigger_core::reason::Cause;
use outrigger_core::rule::Rule;
use outrigger_runtime::cache::Change;
use parking_lot::RwLock;
use tracing::{debug, info};

use super::object::create_raw;
use super::refusal::WriteFailure;
use crate::context::Context;
use crate::state::{Namespace, Why};
use crate::writes;

/// The templates that exist, by name and by rule.
#[derive(Debug, Default)]
pub(crate) struct Templates(RwLock<TemplateIndex>);

#[derive(Debug, Default)]
struct TemplateIndex {
    by_name: HashMap<Name, Owner>,
    /// uid of the rule -> its templates, with their uids.
    by_rule: HashMap<String, BTreeMap<Name, String>>,
    /// The rules of templates that are being deleted. Until they are deleted nothing else can have their names.
    leaving: HashMap<Name, RuleName>,
}

type Name = (String, String);

/// How long a template may exist that its rule doesn't want. A replica that knows an earlier state of the rule creates it again after
/// each deletion, until it hears of the rule's present state.
const SURPLUS_PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Owner {
    uid: String,
    rule: RuleName,
}

impl TemplateIndex {
    /// A template exists and looks like this, which is news. Returns the rule that has it, or that loses it, because it is being deleted.
    fn applied(&mut self, template: &Metadata) -> Option<RuleName> {
        let name = name(template);
        self.leaving.remove(&name);
        match owner(template) {
            Some(owner) if template.metadata.deletion_timestamp.is_some() => {
                self.leaving.insert(name.clone(), owner.rule);
                self.remove(&name)
            }
            Some(owner) => {
                // Also one that is known: the manager may have deleted it, and a restored cluster has it again.
                let rule = owner.rule.clone();
                self.insert(name, owner, template.uid().unwrap_or_default());
                Some(rule)
            }
            None => {
                self.remove(&name);
                None
            }
        }
    }

    /// A template is deleted. Returns the rule that it was of.
    fn deleted(&mut self, name: &Name) -> Option<RuleName> {
        let left = self.leaving.remove(name);
        self.remove(name).or(left)
    }

    fn remove(&mut self, name: &Name) -> Option<RuleName> {
        let owner = self.by_name.remove(name)?;
        remove_from(&mut self.by_rule, &owner.uid, |of_rule| of_rule.remove(name));
        Some(owner.rule)
    }

    fn insert(&mut self, name: Name, owner: Owner, uid: String) {
        self.remove(&name);
        self.by_rule.entry(owner.uid.clone()).or_default().insert(name.clone(), uid);
        self.by_name.insert(name, owner);
    }
}

type Metadata = PartialObjectMeta<ResourceClaimTemplate>;

/// The rule that a template was created for; `None` where the manager did not create it.
fn owner(template: &Metadata) -> Option<Owner> {
    let annotations = template.annotations();
    let rule = match annotations.get(keys::ADMIN_RULE) {
        Some(name) => RuleName::admin(name).ok()?,
        None => {
            let owners = template.owner_references();
            let rule = owners.iter().find(|r| is_owner(&r.api_version, &r.kind, r.controller))?;
            RuleName::new(&rule.name).ok()?
        }
    };
    Some(Owner { uid: annotations.get(keys::RULE_UID)?.clone(), rule })
}

fn name(template: &Metadata) -> Name {
    (template.namespace().unwrap_or_default(), template.name_any())
}

impl Templates {
    /// A template exists, or is deleted. Returns the rule that has or loses it, the template's namespace, and how long the rule may wait
    /// for its step.
    pub(crate) fn changed(&self, change: Change<Metadata>) -> Option<(String, RuleName, Duration)> {
        let mut index = self.0.write();
        match change {
            Change::Applied(template) => {
                let leaves = template.metadata.deletion_timestamp.is_some();
                let pause = if leaves { Duration::ZERO } else { SURPLUS_PAUSE };
                let rule = index.applied(&template)?;
                Some((template.namespace().unwrap_or_default(), rule, pause))
            }
            Change::Gone { namespace, name, .. } => {
                let rule = index.deleted(&(namespace.clone(), name))?;
                Some((namespace, rule, Duration::ZERO))
            }
        }
    }

    /// Whether a rule needs templates, or has some.
    pub(crate) fn concern(&self, rule: &Rule) -> bool {
        !rule.devices().claims().is_empty() || self.0.read().by_rule.contains_key(rule.uid())
    }

    fn is_known(&self, namespace: &str, name: &str, rule_uid: &str) -> bool {
        let index = self.0.read();
        index.by_name.get(&(namespace.to_owned(), name.to_owned())).is_some_and(|owner| owner.uid == rule_uid)
    }

    /// Whether a rule has not all templates that are wanted.
    pub(crate) fn lacks(&self, namespace: &str, rule: &Rule, wanted: &[Template]) -> bool {
        !wanted.iter().all(|template| self.is_known(namespace, &template.name, rule.uid()))
    }

    /// Names and uids of the templates that a rule has in a namespace.
    fn of_rule(&self, namespace: &str, rule_uid: &str) -> Vec<(String, String)> {
        let index = self.0.read();
        let of_rule = index.by_rule.get(rule_uid).into_iter().flatten();
        of_rule
            .filter(|((at, _), _)| at == namespace)
            .map(|((_, name), uid)| (name.clone(), uid.clone()))
            .collect()
    }

    /// Names and uids of a rule's templates that aren't wanted.
    pub(crate) fn unwanted(
        &self,
        namespace: &str,
        rule: &Rule,
        wanted: &[Template],
    ) -> Vec<(String, String)> {
        let mut found = self.of_rule(namespace, rule.uid());
        found.retain(|(name, _)| !wanted.iter().any(|template| template.name == *name));
        found
    }

    /// Makes those of a rule's templates that aren't there. The error is what the first that couldn't be made means for the
    /// companion that needs it.
    pub(crate) async fn ensure(
        &self,
        context: &Context,
        namespace: &str,
        rule: &Rule,
        wanted: &[Template],
    ) -> Result<(), WriteFailure> {
        for template in wanted {
            if self.is_known(namespace, &template.name, rule.uid()) {
                continue;
            }
            let (client, object) = (&context.client, &template.object);
            match create_raw::<ResourceClaimTemplate, Metadata>(client, namespace, object, &writes::post())
                .await
            {
                Ok(made) => {
                    debug!(template = %template.name, namespace, "created ResourceClaimTemplate");
                    context.feeds.templates.answer(made);
                }
                Err(error) => match failure_of(template, &error) {
                    WriteFailure::Exists => exists(context, namespace, rule, &template.name).await?,
                    other => return Err(other),
                },
            }
        }
        Ok(())
    }
}

/// Deletes templates of a rule, by their names and uids. To be called only when no companion names one of them, which has to be asked after
/// they were found: a template that appears later may be of the rule's next state. Returns whether a list that has one of them again is
/// news: a list that came meanwhile is of before the deletion, or of a restored cluster.
pub(crate) async fn delete(
    context: &Context,
    namespace: &str,
    rule: &Rule,
    templates: Vec<(String, String)>,
) -> Result<bool, kube::Error> {
    let (api, feed) = (api(&context.client, namespace), &context.feeds.templates);
    let mut is_known = true;
    for (name, uid) in templates {
        let lists = feed.lists();
        writes::deleted(api.delete(&name, &writes::only(&uid)).await)?;
        info!(template = %name, namespace, rule = %rule.name(), "deleted ResourceClaimTemplate: no companion names it");
        is_known &= feed.deleted((namespace, name.as_str()), &uid, lists);
    }
    Ok(is_known)
}

/// A template of the name exists: the cache is stale, or the name is taken.
async fn exists(context: &Context, namespace: &str, rule: &Rule, name: &str) -> Result<(), WriteFailure> {
    match api(&context.client, namespace).get_metadata_opt(name).await {
        Err(error) => Err(WriteFailure::Transient(error.to_string())),
        Ok(None) => Err(WriteFailure::CacheStale),
        Ok(Some(found)) if owner(&found).is_some_and(|owner| owner.uid == rule.uid()) => {
            let leaves = found.metadata.deletion_timestamp.is_some();
            context.feeds.templates.answer(found);
            if leaves { Err(WriteFailure::CacheStale) } else { Ok(()) }
        }
        Ok(Some(_)) => {
            let message = format!("a ResourceClaimTemplate {name} exists that is not this rule's; delete it");
            Err(WriteFailure::Refused(Why::new(Cause::ObjectExists, message)))
        }
    }
}

fn api(client: &Client, namespace: &str) -> Api<ResourceClaimTemplate> {
    Api::namespaced(client.clone(), namespace)
}

/// Validates a rule's templates by a dry run. Returns the first refusal, if there is one; `None` where the API server did not
/// answer.
pub(crate) async fn validate(
    client: &Client,
    namespace: &Namespace,
    templates: &[Template],
) -> Option<Result<(), Why>> {
    let params = writes::dry_run();
    for template in templates {
        let created =
            create_raw::<ResourceClaimTemplate, Metadata>(client, namespace, &template.object, &params).await;
        if let Err(error) = created {
            match failure_of(template, &error) {
                // It exists already.
                WriteFailure::Exists => {}
                WriteFailure::Refused(why) => return Some(Err(why)),
                WriteFailure::CacheStale | WriteFailure::Transient(_) => return None,
            }
        }
    }
    Some(Ok(()))
}

/// What an error means, with the fields as the rule has them.
fn failure_of(template: &Template, error: &kube::Error) -> WriteFailure {
    WriteFailure::of_create(error, &template.object, |field| {
        // The claim's spec is nested in the template's spec.
        let field = field.strip_prefix("spec.").unwrap_or(field);
        format!("spec.deviceClaims[{}].{field}", template.place)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use serde_json::json;

    fn template(name: &str, uid: &str, rule_uid: &str) -> Metadata {
        fixtures::object(json!({"metadata": {"name": name, "namespace": "n", "uid": uid,
            "annotations": {keys::RULE_UID: rule_uid},
            "ownerReferences": [{"apiVersion": "workload.universe.nvidia.com/v1alpha1", "kind": "WorkloadRule",
                "name": "r", "uid": rule_uid, "controller": true}]}}))
    }

    fn gone(name: &str) -> Change<Metadata> {
        Change::Gone { namespace: "n".to_owned(), name: name.to_owned(), uid: String::new() }
    }

    #[test]
    fn templates_are_known_by_their_rules() {
        let templates = Templates::default();
        let concerned =
            |change| templates.changed(change).map(|(namespace, rule, _)| format!("{namespace}/{rule}"));
        for (name, uid, rule) in [("a", "1", "u"), ("b", "2", "u"), ("c", "3", "v")] {
            let applied = Change::Applied(template(name, uid, rule));
            assert_eq!(concerned(applied.clone()).as_deref(), Some("n/r"));
            assert_eq!(
                concerned(applied).as_deref(),
                Some("n/r"),
                "what is news of it may be that it is there again"
            );
        }
        let of =
            |rule: &str| templates.of_rule("n", rule).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!((of("u"), of("v")), (vec!["a".to_owned(), "b".into()], vec!["c".to_owned()]));
        assert!(templates.is_known("n", "a", "u") && !templates.is_known("n", "a", "v"));
        assert!(!templates.is_known("m", "a", "u"));
        // A template of the same name belongs to another rule now. Its end is shown too.
        assert_eq!(concerned(gone("c")).as_deref(), Some("n/r"));
        assert_eq!(concerned(Change::Applied(template("c", "4", "u"))).as_deref(), Some("n/r"));
        assert_eq!(concerned(gone("a")).as_deref(), Some("n/r"));
        let mut unowned = template("b", "2", "u");
        unowned.metadata.owner_references = None;
        assert_eq!(concerned(Change::Applied(unowned)), None);
        assert_eq!((of("u"), of("v")), (vec!["c".to_owned()], Vec::new()));
        assert_eq!(templates.0.read().by_rule.len(), 1);
    }

    #[test]
    fn a_rule_gets_a_template_and_loses_it_when_its_deletion_begins_and_when_it_ends() {
        let templates = Templates::default();
        let concerns = |change| templates.changed(change).is_some();
        let mut leaving = template("a", "1", "u");
        leaving.metadata.deletion_timestamp = fixtures::object(json!("2026-01-01T00:00:00Z"));
        for (change, expected) in [
            (Change::Applied(template("a", "1", "u")), true),
            (Change::Applied(leaving.clone()), true),
            // Its finalizers change.
            (Change::Applied(leaving.clone()), false),
            (gone("a"), true),
            (Change::Applied(template("a", "2", "u")), true),
            (gone("a"), true),
            // A template that is first seen while it is being deleted.
            (Change::Applied(leaving), false),
            (gone("a"), true),
        ] {
            assert_eq!(concerns(change.clone()), expected, "{change:?}");
        }
        assert!(templates.0.read().leaving.is_empty());
    }
}
