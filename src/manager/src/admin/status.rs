//! The status of an admin rule. No replica knows all of it: the number of matches and the refusals are known to the replica that
//! serves the tenant, the companions to every replica.
//!
//! So each replica writes the entries of the tenants that it serves under `status.tenants`, and the leader sums up. That is a
//! map and not a list, because a merge patch then writes a replica's own entries and keeps the others', without reading them.
//! Tenants without a match have no entry, and so cost no write.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::Api;
use outrigger_api::admin_workload_rule::TenantMatches;
use outrigger_api::{AdminWorkloadRule, AdminWorkloadRuleStatus};
use outrigger_core::companion::{self, Observed};
use outrigger_core::ids::{RuleName, TenantId};
use outrigger_core::reason::Cause;
use outrigger_core::rollout::UpdateStrategy;
use outrigger_core::text::{truncate, truncate_bytes};
use serde_json::{Map, Value, json};
use tracing::debug;

use super::{AdminRuleEntry, WrittenEntries, finalizer};
use crate::conditions::{ConditionValue, and_more, conditions, fine, rejected, unknown, wrong};
use crate::context::Context;
use crate::rules::status::impaired_note;
use crate::rules::{devices, report_refusals, validate_template};
use crate::state::companions::Counts;
use crate::state::status_pace::{PACE, same_verdicts};
use crate::state::{RuleId, TenantState, TenantStates};
use crate::tenants;
use crate::worker::Action;
use crate::writes::{self, Version};

/// Tenants for whom a template is validated at once.
const VALIDATIONS: usize = 8;

/// Longest refusal that an entry has, in characters: there may be one for each tenant.
const MAX_REFUSAL: usize = 256;

/// Longest list of annotations that an entry has, in bytes.
const MAX_KEYS: usize = 256;

/// One step for an admin rule: its finalizer, then its status.
pub(crate) async fn step(context: &Context, id: &RuleId) -> Result<Action, kube::Error> {
    let Some(entry) = context.caches.admin_rules.get(&id.name) else { return Ok(Action::Done) };
    let leads = context.replica.leadership.leads();
    if leads && let Some(pause) = finalizer::step(context, id, &entry).await? {
        context.queues.rules.add_after(id.clone(), pause);
    }
    if entry.deleting() {
        return Ok(Action::Done);
    }
    let wanted = changes(&context.states, &id.name, &entry, leads, context.environment.clock.wall());
    // A rule may be about very many tenants, so its status shows a refusal only after the next step.
    let validations = futures::stream::iter(context.states.all());
    let validate = |state: Arc<TenantState>| async move {
        validate_template(context, &state, id).await;
        report_refusals(context, &state, id).await;
    };
    validations.for_each_concurrent(VALIDATIONS, validate).await;
    expire_asked(context, id, &entry);
    if let Some((rule, _)) = entry.compiled.as_ref().ok().filter(|_| leads) {
        devices::keep_admins(context, id, rule).await;
    }
    let Some(mut status) = wanted else { return Ok(Action::Done) };
    if let Some(last) = &entry.written {
        let before = entry.status();
        let left = last.left(only_counts(&status, before), context.environment.clock.now());
        if !left.is_zero() {
            return Ok(Action::Requeue(left));
        }
        let overwritten = overwritten(&status, before, last);
        if !overwritten.is_empty() {
            // A replica that has taken the tenant over may have done that. This one doesn't know yet if its watch of Tenants is silent,
            // and the two would write over each other until it does.
            let look = |tenant: TenantId| async move { tenants::claim::look(context, &tenant).await };
            let looks = futures::stream::iter(overwritten).map(look).buffer_unordered(VALIDATIONS);
            looks.try_collect::<()>().await?;
            let (leads, now) = (context.replica.leadership.leads(), context.environment.clock.wall());
            match changes(&context.states, &id.name, &entry, leads, now) {
                Some(changed) => status = changed,
                None => return Ok(Action::Done),
            }
        }
    }
    let rules: Api<AdminWorkloadRule> = Api::namespaced(context.client.clone(), &id.namespace);
    let object = writes::status(&rules, &Version::of(&*entry.object), status).await?;
    debug!(rule = %id.name, "status written");
    let entries = object.status.as_ref().map(|status| status.tenants.clone()).unwrap_or_default();
    let written = WrittenEntries::new(&object, entries, context.environment.clock.now());
    context.feeds.admin_rules.answer(object);
    context.caches.admin_rules.wrote(&id.name, &entry.object, written);
    // What has changed meanwhile is written then; if nothing has, nothing is.
    Ok(Action::Requeue(PACE))
}

/// Has annotations that the rule names count as withheld where an agent has been asked for them and says nothing.
fn expire_asked(context: &Context, id: &RuleId, entry: &AdminRuleEntry) {
    if entry.compiled.as_ref().map_or(true, |(rule, _)| rule.annotation_keys().is_empty()) {
        return;
    }
    for state in context.states.all() {
        let (keys, again) = {
            let mut data = state.lock();
            if !data.rules.contains_key(&id.name) {
                continue;
            }
            data.expire_asked(context.environment.clock.now())
        };
        if !keys.is_empty() {
            context.companions_touched(&state, keys);
        }
        if let Some(again) = again {
            context.queues.rules.add_after(id.clone(), again);
        }
    }
}

/// The tenants whose entries a patch changes although this replica has written them otherwise than they are now.
fn overwritten(patch: &Value, now: &AdminWorkloadRuleStatus, last: &WrittenEntries) -> Vec<TenantId> {
    let changed = patch.get("tenants").and_then(Value::as_object).into_iter().flat_map(Map::keys);
    let others = changed.filter(|tenant| now.tenants.get(*tenant) != last.shown.get(*tenant));
    others.filter_map(|tenant| TenantId::new(tenant).ok()).collect()
}

/// Whether a patch changes nothing of a status but counts, and messages that have them.
pub(super) fn only_counts(patch: &Value, now: &AdminWorkloadRuleStatus) -> bool {
    let conditions: Option<Vec<Condition>> =
        patch.get("conditions").and_then(|conditions| serde_json::from_value(conditions.clone()).ok());
    let refused = |tenant: &String| now.tenants.get(tenant).and_then(|matches| matches.refused.as_deref());
    let mut entries = patch.get("tenants").and_then(Value::as_object).into_iter().flatten();
    patch.get("observedGeneration").is_none()
        && conditions.is_none_or(|conditions| same_verdicts(&now.conditions, &conditions))
        && entries.all(|(tenant, entry)| entry.get("refused").and_then(Value::as_str) == refused(tenant))
}

/// What of the status has to change, as a merge patch; `None` when nothing has to.
pub(super) fn changes(
    states: &TenantStates,
    name: &RuleName,
    entry: &AdminRuleEntry,
    leads: bool,
    now: Timestamp,
) -> Option<Value> {
    let before = entry.status();
    let ReplicaView { own, about } = known(states, name, leads);
    let mut tenants = before.tenants.clone();
    for (tenant, matches) in own {
        if matches == TenantMatches::default() {
            tenants.remove(&tenant);
        } else {
            tenants.insert(tenant, matches);
        }
    }
    if leads {
        // No other replica removes the entries of tenants that the rule is no longer about.
        tenants.retain(|tenant, _| about.contains(tenant));
    }
    let mut patch = Map::new();
    let changed = difference(&before.tenants, &tenants);
    if !changed.is_empty() {
        patch.insert("tenants".into(), changed.into());
    }
    if leads {
        let wanted = summary(states, name, entry, tenants, about.len(), now);
        let value = |status: &AdminWorkloadRuleStatus| serde_json::to_value(status).unwrap_or_default();
        let (old, new) = (value(before), value(&wanted));
        for field in ["observedGeneration", "matched", "created", "ready", "updated", "conditions"] {
            if old.get(field) != new.get(field) {
                patch.insert(field.into(), new.get(field).cloned().unwrap_or_default());
            }
        }
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

/// The entries that differ, complete, and null for those that are removed. Absent fields are named too: a merge patch keeps
/// what it doesn't name.
fn difference(
    before: &BTreeMap<String, TenantMatches>,
    now: &BTreeMap<String, TenantMatches>,
) -> Map<String, Value> {
    let gone =
        before.keys().filter(|tenant| !now.contains_key(*tenant)).map(|tenant| (tenant.clone(), Value::Null));
    let changed = now.iter().filter_map(|(tenant, matches)| {
        let last = before.get(tenant);
        let TenantMatches { matched, wanted, refused, not_sent } =
            Some(matches).filter(|now| last != Some(now))?;
        let mut entry = json!({"matched": matched, "refused": refused});
        // Few entries have these: the others needn't say that they haven't.
        if not_sent.is_some() || last.is_some_and(|last| last.not_sent.is_some()) {
            entry["notSent"] = json!(not_sent);
        }
        if wanted.is_some() || last.is_some_and(|last| last.wanted.is_some()) {
            entry["wanted"] = json!(wanted);
        }
        Some((tenant.clone(), entry))
    });
    gone.chain(changed).collect()
}

struct ReplicaView {
    /// Entries of the tenants that it acts for.
    own: Vec<(String, TenantMatches)>,
    /// All tenants that the rule is about.
    about: BTreeSet<String>,
}

fn known(states: &TenantStates, name: &RuleName, leads: bool) -> ReplicaView {
    let mut known = ReplicaView { own: Vec::new(), about: BTreeSet::new() };
    for state in states.all() {
        let data = state.lock();
        let Some(tenant) = data.tenant.as_ref().filter(|_| data.rules.contains_key(name)) else { continue };
        known.about.insert(tenant.to_string());
        let matched = i64::try_from(data.index.matched(name)).unwrap_or(i64::MAX);
        // A replica without a complete sync knows no matches: the entry that was written last stays.
        if !data.acts(leads) || (matched == 0 && !data.index.synced()) {
            continue;
        }
        let mut refusals = data.refusals.of_rule(name).map(|(_, refusal)| refusal);
        let tried = data.rules.get(name).and_then(|entry| entry.validation.refusal());
        let untaken = tried.map(|refusal| truncate(&refusal.message, MAX_REFUSAL).into_owned());
        let refused = untaken.or_else(|| {
            let first = refusals.next()?;
            Some(truncate(&first.why.message, MAX_REFUSAL).into_owned() + &and_more(refusals.count(), ""))
        });
        // Where nothing matches, nothing follows of it.
        let not_sent = data.unsent(name).filter(|_| matched > 0);
        let not_sent = not_sent.map(|keys| truncate_bytes(&keys, MAX_KEYS, "...").into_owned());
        let rule = data.index.rule(name).filter(|rule| rule.policy().is_on_all());
        let wanted = rule.map(|rule| i64::try_from(data.index.wanted(rule)).unwrap_or(i64::MAX));
        known.own.push((tenant.to_string(), TenantMatches { matched, wanted, refused, not_sent }));
    }
    known
}

/// The fields of the status that sum up all tenants. `about`: how many tenants the rule is about.
fn summary(
    states: &TenantStates,
    name: &RuleName,
    entry: &AdminRuleEntry,
    tenants: BTreeMap<String, TenantMatches>,
    about: usize,
    now: Timestamp,
) -> AdminWorkloadRuleStatus {
    let matched = tenants.values().map(|matches| matches.matched).sum();
    let stores = states.all_admin_companions();
    let mut counts = Counts::default();
    let rule = entry.compiled.as_ref().ok().map(|(rule, _)| rule);
    let mut updated = 0;
    for (_, store) in &stores {
        let store = store.lock();
        let Counts { created, ready, leaving, lingering, impaired, .. } = store.counts(name);
        counts.created += created;
        counts.ready += ready;
        counts.leaving += leaving;
        counts.impaired += impaired;
        counts.lingering += lingering;
        updated += rule
            .map_or(created, |rule| store.updated(name, |template, content| rule.makes(template, content)));
    }
    let waiting = || {
        stores.iter().find_map(|(tenant, store)| {
            let store = store.lock();
            let waits = |o: &Observed| !o.ready && o.ended.is_none() && !o.message.is_empty();
            let (key, observed) = store.of_rule(name).find(|(_, o)| waits(o))?;
            Some(format!("; {} of tenant {tenant}: {}", companion::name(&key, tenant), observed.message))
        })
    };
    let resized = stores.iter().find_map(|(tenant, store)| {
        let store = store.lock();
        let (key, observed) = store.impaired(name)?;
        let name = format!("{} of tenant {tenant}", companion::name(&key, tenant));
        Some((observed.trouble?, impaired_note(counts.impaired, &name, observed)))
    });
    let accepted = entry.errors().is_empty();
    let strategy = entry.compiled.as_ref().ok().map(|(rule, _)| rule.update());
    let rolling = (updated < counts.created && strategy != Some(UpdateStrategy::OnDelete)).then_some(updated);
    let valid = || fine("Valid", "the rule is served");
    let values = [
        ("Accepted", rejected(entry.errors(), None).unwrap_or_else(valid)),
        ("Matched", matched_condition(accepted, matched, &tenants, about)),
        ("Ready", ready_condition(accepted, matched, &counts, (rolling, resized), &tenants, waiting)),
    ];
    let conditions = conditions(&entry.status().conditions, entry.generation(), now, values);
    AdminWorkloadRuleStatus {
        observed_generation: Some(entry.generation()),
        matched: Some(matched),
        created: Some(counts.created),
        ready: Some(counts.ready),
        updated: Some(updated),
        tenants,
        conditions,
    }
}

fn matched_condition(
    accepted: bool,
    matched: i64,
    tenants: &BTreeMap<String, TenantMatches>,
    about: usize,
) -> ConditionValue {
    let with = tenants.values().filter(|matches| matches.matched > 0).count();
    let mut not_sent =
        tenants.iter().filter_map(|(tenant, matches)| Some((tenant, matches.not_sent.as_ref()?)));
    if let (true, Some((tenant, keys))) = (accepted, not_sent.next()) {
        let others = and_more(not_sent.count(), " tenants");
        let message = format!(
            "{matched} workloads match; the agent of tenant {tenant}{others} doesn't send annotations that the rule names ({keys}), so they \
             are unknown: companions lack them, and where they decide, workloads have a companion; have the tenants admit them by \
             --allow-annotation of their agents, and upgrade agents that don't say what they send"
        );
        return fine(Cause::AnnotationsNotSent.as_str(), message);
    }
    match (accepted, matched) {
        (false, _) => unknown(Cause::Invalid, "see the Accepted condition"),
        (true, _) if about == 0 => {
            wrong(Cause::NoTenant, "spec.tenantSelector: there is no Tenant that it selects")
        }
        (true, 0) => wrong(
            Cause::NoMatch,
            format!("no known workload of the {about} tenants that it is about matches"),
        ),
        (true, n) => {
            fine("Matches", format!("{n} workloads match, of {with} of the {about} tenants that it is about"))
        }
    }
}

fn ready_condition(
    accepted: bool,
    matched: i64,
    counts: &Counts,
    (rolling, resized): (Option<i64>, Option<(Cause, String)>),
    tenants: &BTreeMap<String, TenantMatches>,
    waiting: impl FnOnce() -> Option<String>,
) -> ConditionValue {
    if !accepted {
        return wrong(Cause::Invalid, "see the Accepted condition");
    }
    let mut refused =
        tenants.iter().filter_map(|(tenant, matches)| Some((tenant, matches.refused.as_ref()?)));
    if let Some((tenant, message)) = refused.next() {
        let more = and_more(refused.count(), " tenants");
        return wrong(Cause::Refused, format!("for tenant {tenant}: {message}{more}"));
    }
    if matched == 0 {
        let note = counts.lingering_note();
        return fine(Cause::NoMatch.as_str(), format!("no companion is wanted{note}"));
    }
    let Counts { created, ready, .. } = counts;
    let wanted = tenants.values().map(|matches| matches.wanted.unwrap_or(matches.matched)).sum();
    let message = format!("{ready} of {wanted} companions are ready{}", counts.lingering_note());
    if let Some(updated) = rolling {
        let message =
            format!("{message}; {updated} of {created} have the current template{}", counts.leaving_note());
        return wrong(Cause::RollingOut, message + &waiting().unwrap_or_default());
    }
    if *ready >= wanted {
        if let Some((cause, note)) = resized {
            return wrong(cause, format!("{message}; {note}"));
        }
        return fine("AllReady", message);
    }
    wrong(Cause::Pending, message + &counts.leaving_note() + &waiting().unwrap_or_default())
}
