//! The ResourceClaimTemplates that companions' device claims are made from: one for each rule and device claim.
//!
//! A template can't be changed, so its name depends on what it says, and another one is made for another spec. It is there
//! before the first companion that names it, and goes when no companion does so any more.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use k8s_openapi::api::resource::v1::ResourceClaimTemplate;
use kube::api::Api;
use kube::core::PartialObjectMeta;
use kube::{Client, ResourceExt};
use outrigger_core::claim::Template;
use outrigger_core::companion::is_owner;
use outrigger_core::ids::RuleName;
use outrigger_core::keys;
use outrigger_core::rule::Rule;
use outrigger_runtime::cache::{Change, Feed};
use outrigger_runtime::watch::Event;
use parking_lot::RwLock;
use serde_json::Value;
use tracing::{debug, info};

use super::object::create_raw;
use super::refusal::{WriteFailure, verdict_of_create};
use crate::state::Namespace;
use crate::writes;

/// Which templates there are.
#[derive(Debug)]
pub struct Templates {
    known: Arc<RwLock<TemplateIndex>>,
    feed: Feed<Metadata>,
}

#[derive(Debug, Default)]
struct TemplateIndex {
    /// Namespace and name -> whose it is.
    by_name: HashMap<Name, Owner>,
    /// uid of the rule -> its templates, with their uids.
    by_rule: HashMap<String, BTreeMap<Name, String>>,
    /// Those that are on their way out, and whose they are. Until they are gone nothing else can have their names.
    leaving: HashMap<Name, RuleName>,
}

type Name = (String, String);

/// The rule that a template is of.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Owner {
    uid: String,
    rule: RuleName,
}

impl TemplateIndex {
    /// A template exists and looks like this. Returns the rule that loses it, because it is being deleted.
    fn applied(&mut self, template: &Metadata) -> Option<RuleName> {
        let name = name(template);
        self.leaving.remove(&name);
        match owner(template) {
            Some(owner) if template.metadata.deletion_timestamp.is_some() => {
                self.leaving.insert(name.clone(), owner.rule);
                self.remove(&name)
            }
            Some(owner) => {
                self.insert(name, owner, template.uid().unwrap_or_default());
                None
            }
            None => {
                self.remove(&name);
                None
            }
        }
    }

    /// A template is gone. Returns the rule that it was of.
    fn gone(&mut self, name: &Name) -> Option<RuleName> {
        let left = self.leaving.remove(name);
        self.remove(name).or(left)
    }

    fn remove(&mut self, name: &Name) -> Option<RuleName> {
        let owner = self.by_name.remove(name)?;
        if let Some(of_rule) = self.by_rule.get_mut(&owner.uid) {
            of_rule.remove(name);
            if of_rule.is_empty() {
                self.by_rule.remove(&owner.uid);
            }
        }
        Some(owner.rule)
    }

    fn insert(&mut self, name: Name, owner: Owner, uid: String) {
        self.remove(&name);
        self.by_rule.entry(owner.uid.clone()).or_default().insert(name.clone(), uid);
        self.by_name.insert(name, owner);
    }
}

type Metadata = PartialObjectMeta<ResourceClaimTemplate>;

/// Whose a template is; `None` for one that the manager didn't make.
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
    /// No templates are known yet. `touched` is called for each rule that has lost a template, with the template's namespace.
    pub fn new(mut touched: impl FnMut(&str, RuleName) + Send + 'static) -> Self {
        let known = Arc::<RwLock<TemplateIndex>>::default();
        let keeps = known.clone();
        let feed = Feed::new(move |change: Change<Metadata>| {
            let (namespace, lost) = match change {
                Change::Applied(template) => {
                    (template.namespace().unwrap_or_default(), keeps.write().applied(&template))
                }
                Change::Gone { namespace, name, .. } => {
                    let lost = keeps.write().gone(&(namespace.clone(), name));
                    (namespace, lost)
                }
            };
            if let Some(rule) = lost {
                touched(&namespace, rule);
            }
        });
        Self { known, feed }
    }

    /// Takes in what the watch shows.
    pub fn sink(&self) -> impl FnMut(Event<Metadata>) + Send + use<> {
        self.feed.sink()
    }

    /// Whether a rule needs templates, or has some.
    pub(crate) fn concern(&self, rule: &Rule) -> bool {
        !rule.devices().claims().is_empty() || self.known.read().by_rule.contains_key(rule.uid())
    }

    fn is_known(&self, namespace: &str, name: &str, rule_uid: &str) -> bool {
        let known = self.known.read();
        known.by_name.get(&(namespace.to_owned(), name.to_owned())).is_some_and(|owner| owner.uid == rule_uid)
    }

    /// Names and uids of the templates that a rule has in a namespace.
    fn of_rule(&self, namespace: &str, rule_uid: &str) -> Vec<(String, String)> {
        let known = self.known.read();
        let of_rule = known.by_rule.get(rule_uid).into_iter().flatten();
        of_rule
            .filter(|((at, _), _)| at == namespace)
            .map(|((_, name), uid)| (name.clone(), uid.clone()))
            .collect()
    }

    /// Whether a rule has templates that aren't wanted.
    pub(crate) fn has_more(&self, namespace: &str, rule: &Rule, wanted: &[Template]) -> bool {
        let is_wanted = |name: &str| wanted.iter().any(|template| template.name == name);
        self.of_rule(namespace, rule.uid()).iter().any(|(name, _)| !is_wanted(name))
    }

    /// Makes those of a rule's templates that aren't there.
    ///
    /// # Errors
    /// What the first that couldn't be made means for the companion that needs it.
    pub(crate) async fn ensure(
        &self,
        client: &Client,
        namespace: &str,
        rule: &Rule,
        wanted: &[Template],
    ) -> Result<(), WriteFailure> {
        for template in wanted {
            if self.is_known(namespace, &template.name, rule.uid()) {
                continue;
            }
            match create(client, namespace, &template.object, false).await {
                Ok(made) => {
                    debug!(template = %template.name, namespace, "created");
                    self.feed.answer(made);
                }
                Err(error) => match verdict_of(template, &error) {
                    WriteFailure::Exists => self.exists(client, namespace, rule, &template.name).await?,
                    other => return Err(other),
                },
            }
        }
        Ok(())
    }

    /// The watch is behind, or the name is taken.
    async fn exists(
        &self,
        client: &Client,
        namespace: &str,
        rule: &Rule,
        name: &str,
    ) -> Result<(), WriteFailure> {
        match api(client, namespace).get_metadata_opt(name).await {
            Err(error) => Err(WriteFailure::Transient(error.to_string())),
            Ok(None) => Err(WriteFailure::LookAgain),
            Ok(Some(found)) if owner(&found).is_some_and(|owner| owner.uid == rule.uid()) => {
                let leaves = found.metadata.deletion_timestamp.is_some();
                self.feed.answer(found);
                if leaves { Err(WriteFailure::LookAgain) } else { Ok(()) }
            }
            Ok(Some(_)) => Err(WriteFailure::Refused(format!(
                "a ResourceClaimTemplate {name} exists that is not this rule's; delete it"
            ))),
        }
    }

    /// Deletes those of a rule's templates that aren't wanted. To be called only when no companion names one of them.
    ///
    /// # Errors
    /// When the API server can't be asked, or refuses.
    pub(crate) async fn tidy(
        &self,
        client: &Client,
        namespace: &str,
        rule: &Rule,
        wanted: &[Template],
    ) -> Result<(), kube::Error> {
        for (name, uid) in self.of_rule(namespace, rule.uid()) {
            if wanted.iter().any(|template| template.name == name) {
                continue;
            }
            writes::gone(api(client, namespace).delete(&name, &writes::only(&uid)).await)?;
            info!(template = %name, namespace, rule = %rule.name(), "deleted: no companion uses it any more");
        }
        Ok(())
    }
}

fn api(client: &Client, namespace: &str) -> Api<ResourceClaimTemplate> {
    Api::namespaced(client.clone(), namespace)
}

async fn create(
    client: &Client,
    namespace: &str,
    object: &Value,
    dry_run: bool,
) -> Result<Metadata, kube::Error> {
    let params = if dry_run { writes::dry_run() } else { writes::post() };
    create_raw::<ResourceClaimTemplate, Metadata>(client, namespace, object, &params).await
}

/// Whether the API server would take a rule's templates: the first refusal, if there is one; `None` where it didn't say.
pub(crate) async fn validate_template(
    client: &Client,
    namespace: &Namespace,
    templates: &[Template],
) -> Option<Result<(), String>> {
    for template in templates {
        if let Err(error) = create(client, namespace, &template.object, true).await {
            match verdict_of(template, &error) {
                // It is there, as it should be.
                WriteFailure::Exists => {}
                WriteFailure::Refused(message) => return Some(Err(message)),
                WriteFailure::LookAgain | WriteFailure::Transient(_) => return None,
            }
        }
    }
    Some(Ok(()))
}

/// What an error means, with the fields as the rule has them.
fn verdict_of(template: &Template, error: &kube::Error) -> WriteFailure {
    verdict_of_create(error, &template.object, |field| {
        // The claim's spec is one further down in a template.
        let field = field.strip_prefix("spec.").unwrap_or(field);
        format!("spec.deviceClaims[{}].{field}", template.place)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::sync::Mutex;

    fn template(name: &str, uid: &str, rule_uid: &str) -> Metadata {
        serde_json::from_value(json!({"metadata": {"name": name, "namespace": "n", "uid": uid,
            "annotations": {keys::RULE_UID: rule_uid},
            "ownerReferences": [{"apiVersion": "workload.universe.nvidia.com/v1alpha1", "kind": "WorkloadRule",
                "name": "r", "uid": rule_uid, "controller": true}]}}))
        .unwrap()
    }

    #[test]
    fn what_the_watch_shows_is_known_by_rule() {
        let lost = Arc::new(Mutex::new(Vec::new()));
        let told = lost.clone();
        let templates = Templates::new(move |namespace, rule| {
            told.lock().unwrap().push((namespace.to_owned(), rule.to_string()));
        });
        let mut watch = templates.sink();
        for event in [
            Event::ListStarted,
            Event::Listed(template("a", "1", "u")),
            Event::Listed(template("b", "2", "u")),
            Event::ListCompleted { version: 0 },
            Event::Applied(template("c", "3", "v")),
        ] {
            watch(event);
        }
        let of =
            |rule: &str| templates.of_rule("n", rule).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!((of("u"), of("v")), (vec!["a".to_owned(), "b".into()], vec!["c".to_owned()]));
        assert!(templates.is_known("n", "a", "u") && !templates.is_known("n", "a", "v"));
        assert!(!templates.is_known("m", "a", "u"));
        // A rule of the same name takes it over, and one is deleted.
        watch(Event::Applied(template("c", "4", "u")));
        watch(Event::Deleted(template("a", "1", "u")));
        let mut nobodys = template("b", "2", "u");
        nobodys.metadata.owner_references = None;
        watch(Event::Applied(nobodys));
        assert_eq!((of("u"), of("v")), (vec!["c".to_owned()], Vec::new()));
        // The one that was taken over has lost one too.
        assert_eq!(
            *lost.lock().unwrap(),
            [("n".to_owned(), "r".to_owned()), ("n".to_owned(), "r".to_owned())]
        );
        assert_eq!(templates.known.read().by_rule.len(), 1);
    }

    #[test]
    fn a_rule_hears_of_a_template_that_leaves_slowly() {
        let told = Arc::new(Mutex::new(0));
        let count = told.clone();
        let templates = Templates::new(move |_, _| *count.lock().unwrap() += 1);
        let mut watch = templates.sink();
        watch(Event::Applied(template("a", "1", "u")));
        let mut leaving = template("a", "1", "u");
        leaving.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        for (event, times) in [
            (Event::Applied(leaving.clone()), 1),
            // Its finalizers change.
            (Event::Applied(leaving.clone()), 1),
            (Event::Deleted(leaving.clone()), 2),
            (Event::Applied(template("a", "2", "u")), 2),
            (Event::Deleted(template("a", "2", "u")), 3),
        ] {
            watch(event);
            assert_eq!(*told.lock().unwrap(), times);
        }
        // One that is first seen so.
        watch(Event::Applied(leaving.clone()));
        watch(Event::Deleted(leaving));
        assert_eq!(*told.lock().unwrap(), 4);
        assert!(templates.known.read().leaving.is_empty());
    }
}
