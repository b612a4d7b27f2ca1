//! The status of a rule, computed from the caches.

use std::collections::BTreeSet;
use std::fmt::Write;

use jiff::Timestamp;
use outrigger_api::WorkloadRuleStatus;
use outrigger_core::companion::{self, Observed};
use outrigger_core::ids::RuleName;
use outrigger_core::reason::Cause;
use outrigger_core::rollout::UpdateStrategy;
use outrigger_core::tenant::Limits;

use crate::conditions::{ConditionValue, and_more, conditions, fine, rejected, unknown, wrong};
use crate::state::registry::Registry;
use crate::state::{RuleEntry, TenantData};
use crate::usage;

/// The status that a rule should have now. Transition times come from the one it has.
pub(super) fn compute(
    name: &RuleName,
    entry: &RuleEntry,
    data: &TenantData,
    registry: &Registry,
    now: Timestamp,
) -> WorkloadRuleStatus {
    let rule = StatusInput { name, entry, data, registry };
    let counts = data.companions.counts(name);
    let values = [
        ("Accepted", accepted_condition(entry)),
        ("Synced", synced_condition(name, data)),
        ("Matched", rule.matched_condition()),
        ("Ready", rule.ready_condition()),
    ];
    WorkloadRuleStatus {
        observed_generation: Some(entry.generation),
        matched: Some(rule.matched()),
        wanted: data.index.rule(name).filter(|rule| rule.policy().is_on_all()).map(|_| rule.wanted()),
        created: Some(counts.created),
        ready: Some(counts.ready),
        updated: Some(rule.updated().unwrap_or(counts.created)),
        sync_result: entry.status.sync_result.clone(),
        conditions: conditions(&entry.status.conditions, entry.generation, now, values),
    }
}

fn accepted_condition(entry: &RuleEntry) -> ConditionValue {
    if let Some(rejected) =
        rejected(&entry.errors, entry.validation.refusal().map(|why| why.message.as_str()))
    {
        return rejected;
    }
    if entry.validation.has_passed() {
        return fine("Valid", "the rule is served");
    }
    unknown(Cause::Untried, "the API server has not said yet whether it takes the template")
}

fn synced_condition(name: &RuleName, data: &TenantData) -> ConditionValue {
    let stream = &data.stream;
    let refusal = usage::refusal(data.index.refused_count(), &data.limits.unwrap_or_default());
    match (data.index.synced(), stream.connected, stream.lost_at) {
        (true, true, _) => match (refusal, data.not_sent(name)) {
            (None, None) => fine("StreamConnected", "the tenant's workloads are known"),
            (None, Some(not_sent)) => unknown(Cause::AnnotationsNotSent, not_sent),
            (Some(refusal), None) => wrong(Cause::LimitReached, refusal),
            (Some(refusal), Some(not_sent)) => {
                wrong(Cause::LimitReached, format!("{refusal}; and {not_sent}"))
            }
        },
        (_, false, Some(since)) => unknown(
            Cause::StreamLost,
            format!(
                "the tenant's agent has not been connected since {since:.0}; companions stay as they are"
            ),
        ),
        (false, true, _) => {
            unknown(Cause::Syncing, "the tenant's agent is connected and has not yet listed all workloads")
        }
        (_, false, None) => unknown(Cause::NoStream, "the tenant's agent has not connected yet"),
    }
}

/// A note about ready companions that aren't as they should be, of which one is `observed`.
pub(crate) fn impaired_note(count: i64, name: &str, observed: &Observed) -> String {
    format!("{count} of these aren't as they should be: {name}: {}", observed.message)
}

/// A rule, and everything that its status depends on.
struct StatusInput<'a> {
    name: &'a RuleName,
    entry: &'a RuleEntry,
    data: &'a TenantData,
    registry: &'a Registry,
}

impl StatusInput<'_> {
    fn matched(&self) -> i64 {
        i64::try_from(self.data.index.matched(self.name)).unwrap_or(i64::MAX)
    }

    /// How many companions there should be.
    fn wanted(&self) -> i64 {
        let rule = self.data.index.rule(self.name);
        rule.map_or(0, |rule| i64::try_from(self.data.index.wanted(rule)).unwrap_or(i64::MAX))
    }

    /// How many companions were made from the template as it is; `None` for a rule that isn't valid.
    fn updated(&self) -> Option<i64> {
        let rule = self.data.index.rule(self.name)?;
        Some(self.data.companions.updated(self.name, |template, content| rule.makes(template, content)))
    }

    fn matched_condition(&self) -> ConditionValue {
        let known = self.data.index.workloads();
        match (self.entry.errors.is_empty(), self.matched()) {
            (false, _) => unknown(Cause::Invalid, "see the Accepted condition"),
            (true, 0) if self.data.index.over_limit(self.name).is_some() => {
                unknown(Cause::LimitReached, "see the Ready condition")
            }
            (true, 0) if self.data.not_sent(self.name).is_some() => {
                unknown(Cause::AnnotationsNotSent, "see the Synced condition")
            }
            (true, 0) => wrong(Cause::NoMatch, format!("none of {known} known workloads matches")),
            (true, n) => fine("Matches", format!("{n} of {known} known workloads match")),
        }
    }

    fn ready_condition(&self) -> ConditionValue {
        if !self.entry.errors.is_empty() {
            return wrong(Cause::Invalid, "see the Accepted condition");
        }
        if let Some(refusal) = self.entry.validation.refusal() {
            return wrong(Cause::Refused, &refusal.message);
        }
        let mut refused = self.data.refusals.of_rule(self.name);
        if let Some((_, first)) = refused.next() {
            let others = and_more(refused.count(), "");
            return wrong(Cause::Refused, format!("{}{others}", first.why.message));
        }
        if let Some(most) = self.data.index.over_limit(self.name) {
            return wrong(Cause::LimitReached, self.over_limit(most));
        }
        if self.matched() == 0 {
            let note = self.data.companions.counts(self.name).lingering_note();
            return fine(Cause::NoMatch.as_str(), format!("no companion is wanted{note}"));
        }
        let counts = self.data.companions.counts(self.name);
        let wanted = self.wanted();
        let mut message = format!("{} of {wanted} companions are ready", counts.ready);
        let (earlier, note) = self.earlier(counts.created);
        message.push_str(&note);
        let impaired = self.impaired(&mut message, counts.impaired);
        message.push_str(&counts.lingering_note());
        if counts.ready >= wanted && !earlier {
            return match impaired {
                Some(cause) => wrong(cause, message),
                None => fine("AllReady", message),
            };
        }
        message.push_str(&counts.leaving_note());
        message.push_str(&self.waiting_note());
        if let Some(none) = self.without_dpu() {
            return wrong(Cause::NoDpu, format!("{message}; {none}"));
        }
        let mut waiting = self.data.companions.of_rule(self.name);
        let waiting = waiting.find(|(_, o)| !o.ready && o.ended.is_none() && !o.message.is_empty());
        let mut cause = Cause::Pending;
        if let (Some((key, observed)), Some(tenant)) = (waiting, &self.data.tenant) {
            let unplaced = self.data.unplaced(&key);
            // The scheduler's own words are about all Nodes of the cluster.
            let why = unplaced.as_ref().map_or(&observed.message, |(_, words)| words);
            let _ = write!(message, "; {}: {why}", companion::name(&key, tenant));
            cause = unplaced.map_or(cause, |(cause, _)| cause);
        }
        wrong(if earlier { Cause::RollingOut } else { cause }, message)
    }

    /// A note about matches whose companions [wait](outrigger_core::rule::Rule::waits).
    fn waiting_note(&self) -> String {
        let index = &self.data.index;
        let waits = index
            .rule(self.name)
            .into_iter()
            .flat_map(|rule| index.workloads_of(self.name).filter(|workload| rule.waits(workload)));
        match waits.count() {
            0 => String::new(),
            count => format!("; not created until the workload is scheduled: {count}"),
        }
    }

    /// Why ready companions aren't as they should be, and a note about them at the end of the message.
    fn impaired(&self, message: &mut String, count: i64) -> Option<Cause> {
        let (key, observed) = self.data.companions.impaired(self.name)?;
        let name = companion::name(&key, self.data.tenant.as_ref()?);
        let _ = write!(message, "; {}", impaired_note(count, &name, observed));
        observed.trouble
    }

    /// The message where not all matches are kept.
    fn over_limit(&self, most: usize) -> String {
        format!(
            "{} matches of this rule are served, and some are not: the tenant's rules match more than {most} workloads in all, which is \
             twice the Tenant's spec.limits.companions and {}; narrow workloadTerms, or have the limit raised",
            self.matched(),
            Limits::SPARE_MATCHES,
        )
    }

    /// Whether companions of an earlier template are being replaced, and a note about them for the message.
    fn earlier(&self, created: i64) -> (bool, String) {
        let (Some(rule), Some(updated)) = (self.data.index.rule(self.name), self.updated()) else {
            return (false, String::new());
        };
        if updated >= created {
            return (false, String::new());
        }
        match rule.update() {
            UpdateStrategy::RollingUpdate(most) => {
                let note =
                    format!("; {updated} of {created} have the current template, maxUnavailable is {most}");
                (true, note)
            }
            UpdateStrategy::OnDelete => {
                let earlier = created - updated;
                (false, format!("; {earlier} keep an earlier template until they are deleted (OnDelete)"))
            }
        }
    }

    /// The hosts of workloads that have no companion because no DPU is known there, where each DPU would have one.
    fn without_companion(&self) -> impl Iterator<Item = &str> {
        let index = &self.data.index;
        let rule = index.rule(self.name).filter(|rule| rule.policy().is_on_all()).into_iter();
        rule.flat_map(|rule| {
            index.workloads_of(self.name).filter_map(|workload| {
                let none = index.dpus.of(rule, workload).next().is_none();
                companion::host(rule, workload, &self.data.host_names).filter(|_| none)
            })
        })
    }

    /// The hosts whose companions wait for a DPU that isn't there.
    fn without_dpu(&self) -> Option<String> {
        let tenant = self.data.tenant.as_ref()?;
        let unplaced = self.data.companions.unplaced(self.name).filter(|o| !o.terminating);
        let hosts: BTreeSet<&str> = unplaced
            .filter_map(|o| o.host.as_deref())
            .chain(self.without_companion())
            .filter(|host| !self.registry.has_dpu(tenant, host))
            .collect();
        let first = hosts.first()?;
        let more =
            if hosts.len() > 1 { format!(" (nor in {} more hosts)", hosts.len() - 1) } else { String::new() };
        let (described, naming) =
            (self.data.host_names.described(first), self.registry.host_labels().naming(first));
        // Or it is the name that the host has as a Node only.
        let or = if described == *first {
            ", or an entry of the Tenant's spec.hostNames for the node"
        } else {
            ""
        };
        Some(format!(
            "no DPU of tenant {tenant} is in host {described}{more}: a Node with label {naming} is needed{or}"
        ))
    }
}
