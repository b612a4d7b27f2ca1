//! The status of a rule, computed from the caches.

use std::collections::BTreeSet;
use std::fmt::Write;

use jiff::Timestamp;
use outrigger_api::WorkloadRuleStatus;
use outrigger_api::conditions::Status;
use outrigger_core::companion::{self, Observed};
use outrigger_core::ids::RuleName;
use outrigger_core::reason::Cause;
use outrigger_core::rollout::UpdateStrategy;
use outrigger_core::tenant::Limits;

use crate::conditions::{ConditionValue, and_more, conditions, rejected};
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

const INVALID: &str = Cause::Invalid.as_str();
const REFUSED: &str = Cause::Refused.as_str();
const NO_MATCH: &str = Cause::NoMatch.as_str();
const LIMIT_REACHED: &str = Cause::LimitReached.as_str();
const NOT_SENT: &str = Cause::AnnotationsNotSent.as_str();

fn accepted_condition(entry: &RuleEntry) -> ConditionValue {
    if let Some(rejected) =
        rejected(&entry.errors, entry.validation.refusal().map(|why| why.message.as_str()))
    {
        return rejected;
    }
    if entry.validation.has_passed() {
        return (Status::True, "Valid", "the rule is served".to_owned());
    }
    (
        Status::Unknown,
        Cause::Untried.as_str(),
        "the API server has not said yet whether it takes the template".to_owned(),
    )
}

fn synced_condition(name: &RuleName, data: &TenantData) -> ConditionValue {
    let stream = &data.stream;
    let refusal = usage::refusal(data.index.refused_count(), &data.limits.unwrap_or_default());
    match (data.index.synced(), stream.connected, stream.lost_at) {
        (true, true, _) => match (refusal, data.not_sent(name)) {
            (None, None) => (Status::True, "StreamConnected", "the tenant's workloads are known".to_owned()),
            (None, Some(not_sent)) => (Status::Unknown, NOT_SENT, not_sent),
            (Some(refusal), None) => (Status::False, LIMIT_REACHED, refusal),
            (Some(refusal), Some(not_sent)) => {
                (Status::False, LIMIT_REACHED, format!("{refusal}; and {not_sent}"))
            }
        },
        (_, false, Some(since)) => (
            Status::Unknown,
            Cause::StreamLost.as_str(),
            format!(
                "the tenant's agent has not been connected since {since:.0}; companions stay as they are"
            ),
        ),
        (false, true, _) => (
            Status::Unknown,
            Cause::Syncing.as_str(),
            "the tenant's agent is connected and has not yet listed all workloads".to_owned(),
        ),
        (_, false, None) => {
            (Status::Unknown, Cause::NoStream.as_str(), "the tenant's agent has not connected yet".to_owned())
        }
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
            (false, _) => (Status::Unknown, INVALID, "see the Accepted condition".to_owned()),
            (true, 0) if self.data.index.over_limit(self.name).is_some() => {
                (Status::Unknown, LIMIT_REACHED, "see the Ready condition".to_owned())
            }
            (true, 0) if self.data.not_sent(self.name).is_some() => {
                (Status::Unknown, NOT_SENT, "see the Synced condition".to_owned())
            }
            (true, 0) => (Status::False, NO_MATCH, format!("none of {known} known workloads matches")),
            (true, n) => (Status::True, "Matches", format!("{n} of {known} known workloads match")),
        }
    }

    fn ready_condition(&self) -> ConditionValue {
        if !self.entry.errors.is_empty() {
            return (Status::False, INVALID, "see the Accepted condition".to_owned());
        }
        if let Some(refusal) = self.entry.validation.refusal() {
            return (Status::False, REFUSED, refusal.message.clone());
        }
        let mut refused = self.data.refusals.of_rule(self.name);
        if let Some((_, first)) = refused.next() {
            let others = and_more(refused.count(), "");
            return (Status::False, REFUSED, format!("{}{others}", first.why.message));
        }
        if let Some(most) = self.data.index.over_limit(self.name) {
            return (Status::False, LIMIT_REACHED, self.over_limit(most));
        }
        if self.matched() == 0 {
            let note = self.data.companions.counts(self.name).lingering_note();
            return (Status::True, NO_MATCH, format!("no companion is wanted{note}"));
        }
        let counts = self.data.companions.counts(self.name);
        let wanted = self.wanted();
        let mut message = format!("{} of {wanted} companions are ready", counts.ready);
        let (earlier, note) = self.earlier(counts.created);
        message.push_str(&note);
        let impaired = self.impaired(&mut message, counts.impaired);
        message.push_str(&counts.lingering_note());
        if counts.ready >= wanted && !earlier {
            return impaired.map_or((Status::True, "AllReady", message.clone()), |cause| {
                (Status::False, cause.as_str(), message)
            });
        }
        message.push_str(&counts.leaving_note());
        message.push_str(&self.waiting_note());
        if let Some(none) = self.without_dpu() {
            return (Status::False, Cause::NoDpu.as_str(), format!("{message}; {none}"));
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
        let cause = if earlier { Cause::RollingOut } else { cause };
        (Status::False, cause.as_str(), message)
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
