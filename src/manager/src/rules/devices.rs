//! Keeps the ResourceClaimTemplates of rules: creates missing ones again, and deletes those that no companion names.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use kube::core::PartialObjectMeta;
use kube::{Client, ResourceExt};
use outrigger_core::claim::Template;
use outrigger_core::ids::TenantId;
use outrigger_core::rule::Rule;
use outrigger_core::{claim, fault, keys};
use outrigger_runtime::watch;
use tracing::info;

use super::deleted;
use crate::companions::refusal::WriteFailure;
use crate::companions::templates;
use crate::context::Context;
use crate::state::RuleId;
use crate::state::companions::CompanionCache;

/// The pause after a write that failed.
const AGAIN: Duration = Duration::from_secs(5);

/// How a rule's companions use its templates.
#[derive(Debug, Clone, Copy, Default)]
struct TemplateUse {
    /// Some exist.
    any: bool,
    /// Some were made from another template than the rule's own, and so may name other ResourceClaimTemplates.
    earlier: bool,
}

impl TemplateUse {
    fn of(companions: &CompanionCache, rule: &Rule) -> Self {
        let mut found = Self::default();
        for (_, companion) in companions.of_rule(rule.name()) {
            found.any = true;
            found.earlier |= companion.template_hash != rule.template_hash();
        }
        found
    }
}

/// The templates of a tenant's rule. Of one that isn't valid, or that the API server refuses, everything stays as it is.
pub(super) async fn keep(context: &Context, id: &RuleId) {
    let state = context.states.state(&id.namespace);
    let (tenant, rule, found) = {
        let data = state.lock();
        let Some(tenant) = data.tenant.clone() else { return };
        let served = data.rules.get(&id.name).is_some_and(|e| !e.deleting && e.validation.has_passed());
        let Some(rule) = data.index.rule(&id.name).filter(|_| served) else { return };
        if !data.acts(context.replica.leadership.leads()) || !context.caches.templates.concern(rule) {
            return;
        }
        (tenant, rule.clone(), TemplateUse::of(&data.companions, rule))
    };
    // The first companion may be created at any time.
    step(context, id, Some(&tenant), &rule, TemplateUse { any: true, ..found }).await;
}

/// The templates of an admin rule, which serve the companions of all tenants: the leader's to keep.
pub(crate) async fn keep_admins(context: &Context, id: &RuleId, rule: &Rule) {
    if !context.caches.templates.concern(rule) {
        return;
    }
    let mut found = TemplateUse::default();
    for (_, store) in context.states.all_admin_companions() {
        let one = TemplateUse::of(&store.lock(), rule);
        found = TemplateUse { any: found.any || one.any, earlier: found.earlier || one.earlier };
    }
    // Also while no tenant exists, or the rule is about none.
    step(context, id, None, rule, found).await;
}

/// `tenant`: the rule's; `None` for an admin rule.
async fn step(context: &Context, id: &RuleId, tenant: Option<&TenantId>, rule: &Rule, found: TemplateUse) {
    let (client, known) = (&context.client, &context.caches.templates);
    let (namespace, owned) = context.states.resources(id.name.is_admin(), &id.namespace);
    let wanted = claim::templates(rule, tenant, &namespace, owned);
    if found.any && known.lacks(&namespace, rule, &wanted) {
        match create(context, id, &namespace, rule, &wanted).await {
            // A refusal is shown by the companion that can't be created because of it.
            Ok(()) | Err(WriteFailure::Refused(_)) => {}
            Err(failure) => {
                let reason = failure.to_string();
                info!(rule = %rule.name(), %namespace, reason, "creating ResourceClaimTemplates failed; retrying");
                context.queues.rules.add_after(id.clone(), AGAIN);
            }
        }
    }
    let unwanted = known.unwanted(&namespace, rule, &wanted);
    if (found.earlier && !fault("claim-templates-go-while-they-are-named")) || unwanted.is_empty() {
        return;
    }
    let tidied = async {
        let settled = is_settled(client, id, &namespace, rule).await?;
        Ok::<_, kube::Error>(settled && templates::delete(context, &namespace, rule, unwanted).await?)
    };
    match tidied.await {
        Ok(true) => {}
        Ok(false) => context.queues.rules.add_after(id.clone(), AGAIN),
        Err(error) => {
            info!(rule = %rule.name(), %namespace, %error, "deleting ResourceClaimTemplates failed; retrying");
            context.queues.rules.add_after(id.clone(), AGAIN);
        }
    }
}

/// Creates those of a rule's templates that aren't there, if the API server has the rule as it is known here: the garbage collector would delete
/// templates of a rule that only a stale cache has, and each deletion leads to the next creation.
async fn create(
    context: &Context,
    id: &RuleId,
    namespace: &str,
    rule: &Rule,
    wanted: &[Template],
) -> Result<(), WriteFailure> {
    match is_known(&context.client, id, rule).await {
        Ok(true) => context.caches.templates.ensure(context, namespace, rule, wanted).await,
        Ok(false) => Err(WriteFailure::CacheStale),
        Err(error) => Err(WriteFailure::of(&error)),
    }
}

/// Whether the API server has the rule as it is known here, and no companion of it that was made from another template. The
/// caches may be stale: templates are not deleted because one of them lacks a companion that names them, or the rule's
/// latest state.
async fn is_settled(client: &Client, id: &RuleId, namespace: &str, rule: &Rule) -> Result<bool, kube::Error> {
    if !is_known(client, id, rule).await? {
        return Ok(false);
    }
    let labels = format!("{}={}", keys::RULE, rule.name().label_value());
    let earlier = |pod: &PartialObjectMeta<Pod>| {
        let annotation = |key| pod.annotations().get(key).map(String::as_str);
        annotation(keys::RULE_UID) == Some(rule.uid())
            && annotation(keys::TEMPLATE_HASH) != Some(rule.template_hash())
            && !fault("claim-templates-go-while-they-are-named")
    };
    let pods: Api<PartialObjectMeta<Pod>> = Api::namespaced(client.clone(), namespace);
    let mut settled = true;
    watch::list(&pods, ListParams::default().labels(&labels), |pod| settled &= !earlier(&pod)).await?;
    Ok(settled)
}

/// Whether the API server has the rule as it is known here.
async fn is_known(client: &Client, id: &RuleId, rule: &Rule) -> Result<bool, kube::Error> {
    let live = deleted::state(client, id).await?;
    Ok(live.is_some_and(|(uid, generation)| uid == rule.uid() && generation == rule.generation()))
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use k8s_openapi::api::resource::v1::ResourceClaimTemplate;
    use outrigger_api::{AdminWorkloadRule, WorkloadRule};
    use outrigger_core::ids::RuleName;
    use outrigger_runtime::cache::Change;
    use outrigger_runtime::fake_api::{FakeApi, failure, not_found};
    use outrigger_runtime::watch::Event;
    use serde_json::json;

    use super::*;
    use crate::fixtures;

    const RULE: &str = "/apis/workload.universe.nvidia.com/v1alpha1/namespaces/n/workloadrules/r";
    const PODS: &str = "/api/v1/namespaces/n/pods";
    const TEMPLATES: &str = "/apis/resource.k8s.io/v1/namespaces/n/resourceclaimtemplates";

    fn object(generation: i64) -> serde_json::Value {
        let mut rule = fixtures::rule();
        rule["metadata"]["generation"] = json!(generation);
        rule
    }

    fn id() -> RuleId {
        RuleId { namespace: "n".into(), name: RuleName::new("r").unwrap() }
    }

    fn rule() -> Rule {
        fixtures::object::<WorkloadRule>(object(1)).compile().unwrap()
    }

    #[tokio::test]
    async fn templates_are_not_deleted_on_the_word_of_a_cache_that_may_be_behind() {
        let api = FakeApi::default();
        let (id, rule) = (id(), rule());
        let settled = async || is_settled(&api.client(), &id, "n", &rule).await.ok();
        let companion = |uid: &str, hash: &str| json!({"metadata": {"name": hash, "annotations": {keys::RULE_UID: uid, keys::TEMPLATE_HASH: hash}}});
        let list = |items: Vec<serde_json::Value>| json!({"metadata": {}, "items": items});
        api.answers("GET", RULE, 200, object(1));
        assert_eq!(settled().await, None, "companions can't be listed");
        let current = companion("u", rule.template_hash());
        api.answers("GET", PODS, 200, list(vec![current.clone(), companion("another", "earlier")]));
        assert_eq!(settled().await, Some(true));
        api.answers("GET", PODS, 200, list(vec![current, companion("u", "earlier")]));
        assert_eq!(settled().await, Some(false), "one names templates of its own");
        api.answers("GET", PODS, 200, list(vec![]));
        api.answers("GET", RULE, 200, object(2));
        assert_eq!(settled().await, Some(false), "the rule may want others by now");
    }

    #[tokio::test]
    async fn a_template_is_created_only_for_a_rule_that_the_api_server_has_as_it_is_known() {
        let mut known = object(1);
        known["spec"]["deviceClaims"] = json!([{"name": "engine", "spec": {"devices": {"requests": [
            {"name": "engine", "exactly": {"deviceClassName": "engine", "count": 1}}]}}}]);
        let rule = fixtures::object::<WorkloadRule>(known).compile().unwrap();
        let used = TemplateUse { any: true, earlier: false };
        for (code, answer, created) in [
            (200, object(1), 1),
            (200, object(2), 0),
            (404, not_found(), 0),
            (503, failure(503, "ServiceUnavailable"), 0),
        ] {
            let api = FakeApi::default();
            let context = fixtures::context(api.client());
            api.answers("GET", RULE, code, answer);
            step(&context, &id(), TenantId::new("blue").ok().as_ref(), &rule, used).await;
            assert_eq!(api.calls("POST").len(), created, "{code}");
            let again = context.queues.rules.counts().delayed;
            assert!(created == 1 || again == 1, "{code}: it is looked at again");
        }
    }

    fn template(name: &str) -> PartialObjectMeta<ResourceClaimTemplate> {
        let owner = json!({"apiVersion": "workload.universe.nvidia.com/v1alpha1", "kind": "WorkloadRule", "name": "r",
            "uid": "u", "controller": true});
        let metadata = json!({"namespace": "n", "name": name, "uid": name, "resourceVersion": "1",
            "ownerReferences": [owner], "annotations": {keys::RULE_UID: "u"}});
        fixtures::object(json!({"metadata": metadata}))
    }

    /// An API server that has the rule and no companion, and lets the template `before` be deleted.
    fn api() -> FakeApi {
        let api = FakeApi::default();
        api.answers("GET", RULE, 200, object(1));
        api.answers("GET", PODS, 200, json!({"metadata": {}, "items": []}));
        api.answers(
            "DELETE",
            &format!("{TEMPLATES}/before"),
            200,
            json!({"kind": "Status", "status": "Success"}),
        );
        api
    }

    async fn tidied(context: &Context) {
        step(context, &id(), TenantId::new("blue").ok().as_ref(), &rule(), TemplateUse::default()).await;
    }

    #[tokio::test]
    async fn a_template_that_appears_while_the_rule_is_read_is_not_deleted() {
        let api = api();
        let context = fixtures::context(api.client());
        context.caches.templates.changed(Change::Applied(template("before")));
        // The rule's next state, which is as the first, gets its template from another replica.
        let others = context.clone();
        api.meanwhile("GET", RULE, move || {
            others.caches.templates.changed(Change::Applied(template("next")));
        });
        tidied(&context).await;
        let deleted: Vec<String> = api.calls("DELETE").into_iter().map(|(path, _)| path).collect();
        assert!(
            matches!(&deleted[..], [path] if path.starts_with(&format!("{TEMPLATES}/before"))),
            "{deleted:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_template_that_a_restored_cluster_has_again_after_its_deletion_queues_its_rule() {
        let api = api();
        let context = fixtures::context(api.client());
        let list = |context: &Context, version: u64| {
            for event in
                [Event::ListStarted, Event::Listed(template("before")), Event::ListCompleted { version }]
            {
                context.feeds.templates.event(event);
            }
        };
        let is_queued = async || {
            tokio::time::advance(2 * AGAIN).await;
            let next = context.queues.rules.next().now_or_never();
            next.iter().for_each(|id| context.queues.rules.done(id));
            next == Some(id())
        };
        list(&context, 1);
        assert!(is_queued().await, "it appears");
        list(&context, 2);
        assert!(!is_queued().await, "it is known");
        tidied(&context).await;
        assert_eq!(api.calls("DELETE").len(), 1);
        assert!(!is_queued().await, "it is deleted");
        list(&context, 3);
        assert!(is_queued().await, "its deletion was never shown, and is undone");
        let meanwhile = context.clone();
        api.meanwhile("DELETE", &format!("{TEMPLATES}/before"), move || list(&meanwhile, 4));
        tidied(&context).await;
        assert_eq!(api.calls("DELETE").len(), 2);
        assert!(is_queued().await, "the list that came meanwhile may be of the restored cluster");
    }

    #[tokio::test]
    async fn a_template_that_an_admin_rule_does_not_ask_for_is_deleted_although_there_is_no_tenant() {
        const ADMIN_RULE: &str =
            "/apis/workload.universe.nvidia.com/v1alpha1/namespaces/universe/adminworkloadrules/r";
        const TEMPLATE: &str = "/apis/resource.k8s.io/v1/namespaces/universe/resourceclaimtemplates/t";
        let api = FakeApi::default();
        let context = fixtures::context(api.client());
        let template = json!({"metadata": {"namespace": "universe", "name": "t", "uid": "t",
            "annotations": {keys::RULE_UID: "u", keys::ADMIN_RULE: "r"}}});
        context.caches.templates.changed(Change::Applied(fixtures::object(template)));
        let object: AdminWorkloadRule = fixtures::object(fixtures::admin_rule());
        let rule = object.compile().unwrap().rule;
        api.answers("GET", ADMIN_RULE, 200, fixtures::admin_rule());
        api.answers("GET", "/api/v1/namespaces/universe/pods", 200, json!({"metadata": {}, "items": []}));
        api.answers("DELETE", TEMPLATE, 200, json!({"kind": "Status", "status": "Success"}));
        let id = context.states.admin_rule_id(rule.name());
        keep_admins(&context, &id, &rule).await;
        assert_eq!(api.calls("DELETE").len(), 1);
    }
}
