//! Keeps the ResourceClaimTemplates of rules: makes those again that somebody deletes, and deletes those that no companion
//! names any more.

use std::sync::Arc;
use std::time::Duration;

use outrigger_core::claim;
use outrigger_core::index::CompanionKey;
use outrigger_core::rule::Rule;
use tracing::info;

use super::Controller;
use crate::companions::place::Place;
use crate::companions::refusal::Verdict;
use crate::companions::store::Store;
use crate::state::{CompanionId, Namespace, RuleId};

/// The pause after a write that failed.
const AGAIN: Duration = Duration::from_secs(5);

/// What is known of a rule's companions.
#[derive(Debug, Clone, Copy, Default)]
struct Use {
    /// Some exist.
    any: bool,
    /// Some were made from another template than the rule's own, and so may name other ResourceClaimTemplates.
    earlier: bool,
}

impl Use {
    fn of(companions: &Store, rule: &Rule) -> Self {
        let mut found = Self::default();
        for (_, companion) in companions.of_rule(rule.name()) {
            found.any = true;
            found.earlier |= companion.template_hash != rule.template_hash();
        }
        found
    }
}

/// The templates of a tenant's rule. Of one that isn't valid, or that the API server refuses, everything stays as it is.
pub(super) async fn keep(controller: &Controller, id: &RuleId) {
    let space = controller.spaces.space(&id.namespace);
    let Some(place) = place(controller, &id.namespace, id) else { return };
    let (rule, found) = {
        let inner = space.lock();
        let served = inner.rules.get(&id.name).is_some_and(|e| !e.deleting && e.trial.has_passed());
        let Some(rule) = inner.index.rule(&id.name).filter(|_| served) else { return };
        if !inner.acts(controller.leadership.leads()) || !controller.templates.concern(rule) {
            return;
        }
        (rule.clone(), Use::of(&inner.companions, rule))
    };
    // The first companion may come at any time.
    step(controller, id, &place, &rule, Use { any: true, ..found }).await;
}

/// The templates of an admin rule, which serve the companions of all tenants: the leader's to keep.
pub(crate) async fn keep_admins(controller: &Controller, id: &RuleId, rule: &Arc<Rule>) {
    if !controller.templates.concern(rule) {
        return;
    }
    let mut found = Use::default();
    let mut namespace = None;
    for (tenant, store) in controller.spaces.admin_stores() {
        let one = Use::of(&store.lock(), rule);
        found = Use { any: found.any || one.any, earlier: found.earlier || one.earlier };
        namespace = namespace.or_else(|| controller.spaces.of_tenant(&tenant).map(|s| s.namespace.clone()));
    }
    let Some(place) = namespace.and_then(|namespace| place(controller, &namespace, id)) else { return };
    step(controller, id, &place, rule, found).await;
}

/// Where a rule's companions of a tenant live.
fn place(controller: &Controller, namespace: &Namespace, id: &RuleId) -> Option<Place> {
    let key = CompanionKey { rule: id.name.clone(), workload: "".into() };
    controller.spaces.place(&CompanionId { namespace: namespace.clone(), key })
}

async fn step(controller: &Controller, id: &RuleId, place: &Place, rule: &Rule, found: Use) {
    let Controller { client, templates, queue, .. } = controller;
    let wanted = claim::templates(rule, &place.tenant, &place.namespace, place.owned);
    if found.any {
        match templates.ensure(client, &place.namespace, rule, &wanted).await {
            // What is refused is told where a companion can't be made for it.
            Ok(()) | Err(Verdict::Refused(_)) => {}
            Err(other) => {
                info!(rule = %rule.name(), namespace = %place.namespace, ?other, "claim templates will be made later");
                queue.add_after(id.clone(), AGAIN);
            }
        }
    }
    if !found.earlier
        && let Err(error) = templates.tidy(client, &place.namespace, rule, &wanted).await
    {
        info!(rule = %rule.name(), namespace = %place.namespace, %error, "claim templates will be deleted later");
        queue.add_after(id.clone(), AGAIN);
    }
}
