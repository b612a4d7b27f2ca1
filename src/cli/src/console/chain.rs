//! The view of one workload: what `outrigger explain` says of it, rule by rule, from the workload to the DPU.

use maud::{Markup, html};

use super::page::{View, notice, pages, state, table};
use super::query::{Page, Query};
use crate::check::plain;
use crate::explain::Answer;
use crate::explain::explanation::{CompanionOutcome, Placement, Term};
use crate::explain::print::{outcome, passed};
use crate::explain::report::{Phase, Report, RuleReport, WorkloadReport};
use crate::explain::told::{PodReport, Told};
use crate::status::sections::Grade;

/// An answer, or why there is none.
pub(super) fn rows(query: &Query, answer: &Result<Answer, String>) -> Markup {
    match answer {
        Err(why) => notice(why),
        Ok(Answer::Workloads { tenant, names, notes }) => workloads(query, tenant.as_deref(), names, notes),
        Ok(Answer::One(report)) => one(query, report),
    }
}

fn workloads(query: &Query, tenant: Option<&str>, names: &[String], notes: &[String]) -> Markup {
    let page = Page::of(names.iter().filter(|name| name.contains(&query.text)), query);
    html! {
        @for note in notes { (notice(note)) }
        @if let Some(tenant) = tenant { h2 { "Workloads of tenant " (plain(tenant)) } }
        (table(View::Chain, query, &["Workload"], &page, |name| {
            let of = Query { workload: (*name).clone(), ..Query::of_tenant(tenant.unwrap_or_default()) };
            html! { th scope="row" { a href=(of.url("/chain")) { (plain(name)) } } }
        }))
    }
}

fn one(query: &Query, report: &Report) -> Markup {
    // Rules that match come first.
    let matches = |rule: &&RuleReport| {
        rule.workloads.iter().any(|w| w.explanation.outcome != CompanionOutcome::NoMatch)
    };
    let mut rules: Vec<&RuleReport> = report.rules.iter().collect();
    rules.sort_by_key(|rule| !matches(rule));
    let page = Page::of(rules, query);
    html! {
        @for note in &report.notes { (notice(note)) }
        @if let Some(tenant) = &report.tenant { p { "Tenant " (plain(tenant)) } }
        @for pod in &report.pods { (pod_report(pod)) }
        @if report.rules.is_empty() { p { "No rules." } }
        @for rule in &page.rows { (chain(rule)) }
        (pages(View::Chain, query, &page))
        @if !report.ended.is_empty() { (notice(&format!("has ended, so it is no workload: {}", report.ended.join(", ")))) }
    }
}

/// What the tenant's own cluster says.
fn pod_report(pod: &PodReport) -> Markup {
    let condition = |told: &Told| {
        let grade = if told.is_true() { Grade::Good } else { Grade::Bad };
        html! {
            li {
                (state(grade, &format!("{}={} {}", told.kind, told.status, told.reason))) ": " (plain(&told.message))
                @if !told.message.contains(&told.meaning) { " Means: " (plain(&told.meaning)) "." }
                @if let Some(remedy) = told.remedy.filter(|remedy| !told.message.ends_with(remedy)) { " Remedy: " (remedy) "." }
            }
        }
    };
    html! {
        h2 { (plain(&pod.namespace)) "/" (plain(&pod.name)) @if let Some(node) = &pod.node { " on " (plain(node)) } }
        ul {
            @for told in pod.conditions.iter().chain(&pod.dpu) { (condition(told)) }
            @for event in &pod.events { li { "Event " (plain(&event.reason)) ": " (plain(&event.message)) } }
            @for unknown in &pod.unknown { li { "Not known: " (unknown) } }
        }
    }
}

/// The chain of a rule: the workload, the rule, the companion, the DPU.
fn chain(rule: &RuleReport) -> Markup {
    html! {
        section.chain {
            h2 { "Rule " (plain(&rule.namespace)) "/" (plain(&rule.name)) }
            @for fault in &rule.errors { p { (state(Grade::Bad, &fault.to_string())) } }
            @for warning in &rule.warnings { p { (state(Grade::Odd, warning)) } }
            @for told in rule.conditions.iter().filter(|told| told.status != "True") {
                p { (state(Grade::Odd, &format!("{}={} {}: {}", told.kind, told.status, told.reason, told.message))) }
            }
            @for event in &rule.events { p { "Event: " (plain(event)) } }
            @if rule.workloads.is_empty() {
                @let why = if rule.selected == Some(false) { "spec.tenantSelector selects other tenants" } else { "not served" };
                p { (why) }
            }
            @for workload in &rule.workloads { (hops(workload)) }
        }
    }
}

fn hops(workload: &WorkloadReport) -> Markup {
    let explanation = &workload.explanation;
    let passing = explanation.terms.iter().find(|term| term.passes);
    let grade = match explanation.outcome {
        CompanionOutcome::Companion => Grade::Good,
        CompanionOutcome::NoMatch | CompanionOutcome::Refused => Grade::Bad,
        CompanionOutcome::Waiting | CompanionOutcome::Undecided => Grade::Odd,
    };
    html! {
        ol {
            li {
                strong { "Workload " } (plain(&workload.namespace)) "/" (plain(&workload.name))
                @if let Some(node) = &workload.node { " on " (plain(node)) }
            }
            li {
                strong { "Rule " }
                @match passing {
                    Some(term) => (expressions(term)),
                    None => @for (i, term) in explanation.terms.iter().enumerate() {
                        @if i > 0 { p { "or" } }
                        (expressions(term))
                    },
                }
            }
            li {
                strong { "Companion " } (state(grade, outcome(explanation.outcome)))
                @if explanation.outcome == CompanionOutcome::Companion { " " (plain(&explanation.companion)) }
                @if let Some(there) = &workload.state {
                    ", " (state(phase_grade(there.phase), there.phase.as_str()))
                    @if !there.message.is_empty() { ": " (plain(&there.message)) }
                }
                @if let Some(reason) = &explanation.reason { p { (plain(reason)) } }
                @if let Some(ordering) = &workload.ordering { p { (state(Grade::Odd, ordering)) } }
                @for claim in &workload.claims {
                    p {
                        "Claim " (plain(claim.name.as_deref().unwrap_or_default())) " "
                        (plain(claim.claim.as_deref().unwrap_or_default())) ": " (claim.phase.as_str())
                        @for device in &claim.devices { ", " (plain(device)) }
                    }
                    @for reason in &claim.reasons { p { (plain(reason)) } }
                }
            }
            @if let Some(placement) = &explanation.placement { li { strong { "DPU " } (places(placement)) } }
        }
    }
}

fn phase_grade(phase: Phase) -> Grade {
    match phase {
        Phase::Ready => Grade::Good,
        Phase::Pending | Phase::Terminating | Phase::Lingering => Grade::Odd,
        Phase::NotAdmitted | Phase::Failed | Phase::Absent => Grade::Bad,
    }
}

fn expressions(term: &Term) -> Markup {
    html! {
        ul {
            @for finding in &term.expressions {
                li {
                    @match &finding.change {
                        Some(change) => { (state(Grade::Bad, "fail")) " " (plain(change)) },
                        None => { (state(Grade::Good, "pass")) " " (plain(&passed(finding))) },
                    }
                }
            }
        }
    }
}

/// Most DPUs that are shown of one placement.
const NODES: usize = 50;

fn places(placement: &Placement) -> Markup {
    html! {
        @if let Some(problem) = &placement.problem { p { (state(Grade::Bad, "Pending")) ": " (plain(problem)) } }
        ul {
            @for place in placement.nodes.iter().take(NODES) {
                @if place.obstacles.is_empty() { li { (state(Grade::Good, "fits")) " " (plain(&place.node)) } }
                @for obstacle in &place.obstacles { li { (state(Grade::Odd, "not")) " " (plain(&place.node)) ": " (plain(obstacle)) } }
            }
        }
        @if placement.nodes.len() > NODES { p { "and " (placement.nodes.len() - NODES) " more DPUs" } }
    }
}
