//! The report for people.

use std::io::{Result, Write};

use super::audit::cut;
use super::live::RulesKnown;
use super::report::{Report, RuleReport, State, WorkloadReport};
use super::told::{EventReport, Gate, NO_CONDITION, PodReport, Told};
use crate::explain::allocation::{ClaimPhase, ClaimReport};
use crate::explain::explanation::{CompanionOutcome, Finding, Placement, Term};
use crate::rules::RuleKind;
use crate::style::{BAD, BOLD, DIM, GOOD, ODD};

/// Most characters of a text or a value. Node affinity can have a megabyte; JSON has all of it.
const MAX_LINE: usize = 4096;

/// A text on one line that changes no terminal.
pub(crate) fn line(text: &str) -> String {
    cut(&text.replace('\n', " "), MAX_LINE)
}

/// Writes all of it.
pub(super) fn report(report: &Report, out: &mut impl Write) -> Result<()> {
    if let Some(tenant) = &report.tenant {
        writeln!(out, "tenant {tenant}")?;
    }
    for note in &report.notes {
        writeln!(out, "{ODD}note:{ODD:#} {note}")?;
    }
    for pod in report.pods.iter().filter(|pod| pod.named || pod.is_said()) {
        writeln!(out)?;
        one_pod(pod, out)?;
    }
    match report.rules_known {
        _ if !report.rules.is_empty() => {}
        RulesKnown::All => writeln!(out, "no rules")?,
        RulesKnown::Some => writeln!(out, "no rules among those that may be read")?,
        RulesKnown::None => writeln!(out, "which rules there are isn't known")?,
    }
    for rule in &report.rules {
        writeln!(out)?;
        one_rule(rule, out)?;
    }
    let silent: Vec<String> = report.silent().into_iter().collect();
    if !silent.is_empty() {
        writeln!(out, "\nof the companions of these nothing is known: {}", silent.join(", "))?;
        writeln!(out, "  {NO_CONDITION}")?;
    }
    if !report.ended.is_empty() {
        writeln!(out, "\nhave ended, so they are no workloads: {}", report.ended.join(", "))?;
    }
    Ok(())
}

/// What the tenant's own cluster says of a workload.
fn one_pod(pod: &PodReport, out: &mut impl Write) -> Result<()> {
    write!(out, "{BOLD}{}/{}{BOLD:#}", pod.namespace, pod.name)?;
    if let Some(node) = &pod.node {
        write!(out, " on {node}")?;
    }
    writeln!(out)?;
    match pod.gate {
        Some(Gate::Waiting | Gate::Unset) => {
            writeln!(out, "  {ODD}isn't Ready before its companions are{ODD:#}")?;
        }
        Some(Gate::Open) | None => {}
    }
    pod.conditions.iter().try_for_each(|condition| told("", condition, out))?;
    if let Some(dpu) = &pod.dpu {
        told("the Node's ", dpu, out)?;
    }
    let is_new = |event: &&EventReport| {
        let repeats = |told: &Told| told.reason == event.reason && told.message == event.message;
        !pod.conditions.iter().any(repeats)
    };
    for event in pod.events.iter().filter(is_new) {
        let at = event.at.as_deref().unwrap_or("at an unknown time");
        writeln!(out, "  event {at} {}: {}", event.reason, event.message)?;
    }
    pod.unknown.iter().try_for_each(|unknown| writeln!(out, "  {ODD}not known:{ODD:#} {unknown}"))
}

fn told(whose: &str, told: &Told, out: &mut impl Write) -> Result<()> {
    let style = if told.is_true() { GOOD } else { BAD };
    write!(out, "  {whose}{}={style}{}{style:#} {}", told.kind, told.status, told.reason)?;
    if let Some(since) = &told.since {
        write!(out, " since {since}")?;
    }
    writeln!(out, ": {}", told.message)?;
    if told.stale {
        writeln!(out, "    {ODD}not known:{ODD:#} how the companions are now")?;
    }
    // Some messages consist of both.
    if !told.message.contains(&told.meaning) {
        writeln!(out, "    means: {}", told.meaning)?;
    }
    match told.remedy {
        Some(remedy) if !told.message.ends_with(remedy) => writeln!(out, "    remedy: {remedy}"),
        _ => Ok(()),
    }
}

fn one_rule(rule: &RuleReport, out: &mut impl Write) -> Result<()> {
    let policy = if rule.policy.is_empty() { "SameNode" } else { &rule.policy };
    let whose = if rule.kind == RuleKind::AdminWorkloadRule { ", of the platform" } else { "" };
    writeln!(out, "{BOLD}rule {}/{}{BOLD:#} ({policy}{whose})", rule.namespace, rule.name)?;
    for fault in &rule.errors {
        writeln!(out, "  {BAD}error:{BAD:#} {fault}")?;
    }
    for warning in &rule.warnings {
        writeln!(out, "  {ODD}warning:{ODD:#} {warning}")?;
    }
    for told in rule.conditions.iter().filter(|told| told.status != "True") {
        writeln!(out, "  {}={} {}: {}", told.kind, told.status, told.reason, told.message)?;
    }
    for event in &rule.events {
        writeln!(out, "  event: {event}")?;
    }
    if rule.workloads.is_empty() && rule.companions.is_empty() {
        let why = match rule.selected {
            Some(false) => "spec.tenantSelector selects other tenants",
            _ if rule.errors.is_empty() => "no workloads",
            _ => "not served",
        };
        writeln!(out, "  {why}")?;
    }
    for workload in &rule.workloads {
        one_workload(workload, out)?;
    }
    for other in &rule.companions {
        write!(out, "  companion {} of workload {}", other.companion, other.workload)?;
        state(&other.state, out)?;
        writeln!(out)?;
    }
    Ok(())
}

fn one_workload(workload: &WorkloadReport, out: &mut impl Write) -> Result<()> {
    let explanation = &workload.explanation;
    write!(out, "  {BOLD}{}/{}{BOLD:#}", workload.namespace, workload.name)?;
    if let Some(node) = &workload.node {
        write!(out, " on {node}")?;
    }
    let style = match explanation.outcome {
        CompanionOutcome::Companion => GOOD,
        CompanionOutcome::Waiting | CompanionOutcome::Undecided => ODD,
        CompanionOutcome::NoMatch | CompanionOutcome::Refused => BAD,
    };
    write!(out, ": {style}{}{style:#}", outcome(explanation.outcome))?;
    if explanation.outcome == CompanionOutcome::Companion {
        write!(out, " {}", explanation.companion)?;
    }
    if let Some(there) = &workload.state {
        state(there, out)?;
    }
    writeln!(out)?;
    if let Some(reason) = &explanation.reason {
        writeln!(out, "    {reason}")?;
    }
    if let Some(ordering) = &workload.ordering {
        writeln!(out, "    {ODD}{ordering}{ODD:#}")?;
    }
    // One term that passes is all the reason there is; where none does, each would be a way.
    let passing = explanation.terms.iter().find(|term| term.passes);
    match passing {
        Some(term) => expressions(term, out)?,
        None => {
            for (i, term) in explanation.terms.iter().enumerate() {
                if explanation.terms.len() > 1 {
                    writeln!(out, "    {}term {}:", if i == 0 { "" } else { "or " }, i + 1)?;
                }
                expressions(term, out)?;
            }
        }
    }
    if let Some(placement) = &explanation.placement {
        places(placement, out)?;
    }
    workload.claims.iter().try_for_each(|claim| one_claim(claim, out))
}

fn one_claim(claim: &ClaimReport, out: &mut impl Write) -> Result<()> {
    let style = if claim.phase == ClaimPhase::Allocated { GOOD } else { ODD };
    let names: Vec<&str> = [&claim.name, &claim.claim].into_iter().flatten().map(String::as_str).collect();
    write!(out, "    claim {}: {style}{}{style:#}", names.join(" "), claim.phase.as_str())?;
    if !claim.devices.is_empty() {
        write!(out, ", {}", claim.devices.join(", "))?;
    }
    writeln!(out)?;
    claim.reasons.iter().try_for_each(|reason| writeln!(out, "      {reason}"))
}

fn state(state: &State, out: &mut impl Write) -> Result<()> {
    write!(out, ", {}", state.phase.as_str())?;
    if state.message.is_empty() { Ok(()) } else { write!(out, ": {}", state.message) }
}

fn expressions(term: &Term, out: &mut impl Write) -> Result<()> {
    for finding in &term.expressions {
        match &finding.change {
            Some(change) if finding.unknown => writeln!(out, "    {ODD}open{ODD:#}  {change}")?,
            Some(change) => writeln!(out, "    {BAD}fail{BAD:#}  {change}")?,
            None => writeln!(out, "    {GOOD}pass{GOOD:#}  {}", passed(finding))?,
        }
    }
    Ok(())
}

/// An outcome in words.
pub(crate) fn outcome(outcome: CompanionOutcome) -> &'static str {
    match outcome {
        CompanionOutcome::Companion => "companion",
        CompanionOutcome::NoMatch => "no companion",
        CompanionOutcome::Undecided => "undecided",
        CompanionOutcome::Waiting => "no companion yet",
        CompanionOutcome::Refused => "refused",
    }
}

/// An expression that passes, in words.
pub(crate) fn passed(finding: &Finding) -> String {
    let Finding { key, operator, values, found, .. } = finding;
    let values = if values.is_empty() { String::new() } else { format!(" [{}]", values.join(", ")) };
    let found = match found {
        // Of a whole object only that it is there is of interest.
        Some(text) if text.starts_with('{') => String::new(),
        Some(text) => format!(", is {text:?}"),
        None => ", is absent".to_owned(),
    };
    format!("{key} {operator}{values}{found}")
}

fn places(placement: &Placement, out: &mut impl Write) -> Result<()> {
    if let Some(problem) = &placement.problem {
        writeln!(out, "    {BAD}Pending:{BAD:#} {problem}")?;
    }
    let width = placement.nodes.iter().map(|place| place.node.len()).max().unwrap_or_default();
    for place in &placement.nodes {
        if place.obstacles.is_empty() {
            writeln!(out, "    {GOOD}fits{GOOD:#}  {}", place.node)?;
            continue;
        }
        for obstacle in &place.obstacles {
            writeln!(out, "    {DIM}not{DIM:#}   {:width$}  {obstacle}", place.node)?;
        }
    }
    Ok(())
}
