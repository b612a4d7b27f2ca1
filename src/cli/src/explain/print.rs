//! The report for people.

use super::agent_reports::{ConditionReport, EventReport, Gate, NO_CONDITION, PodReport};
use super::live::RulesKnown;
use super::report::{Report, RuleReport, State, WorkloadReport};
use crate::document::{Document, Grade, Item, Readable, bad, bold, dim, good, graded, item, odd};
use crate::explain::allocation::{ClaimPhase, ClaimReport};
use crate::explain::explanation::{CompanionOutcome, Finding, Placement, Term};
use crate::rules::RuleKind;

impl Readable for Report {
    fn document(&self) -> Document {
        self.document_of(self.rules.iter())
    }
}

impl Report {
    /// The report with these of its rules.
    pub(crate) fn document_of<'a>(&self, rules: impl IntoIterator<Item = &'a RuleReport>) -> Document {
        let mut document = Document::default();
        if let Some(tenant) = &self.tenant {
            document.add(item!["tenant ", tenant]);
        }
        document.notes(&self.notes);
        for pod in self.pods.iter().filter(|pod| pod.named || pod.is_said()) {
            document.gap();
            document.add(one_pod(pod));
        }
        match self.rules_known {
            _ if !self.rules.is_empty() => {}
            RulesKnown::All => document.add(item!["no rules"]),
            RulesKnown::Some => document.add(item!["no rules among those that may be read"]),
            RulesKnown::None => document.add(item!["which rules there are isn't known"]),
        }
        for rule in rules {
            document.gap();
            document.add(one_rule(rule));
        }
        let silent: Vec<String> = self.silent().into_iter().collect();
        if !silent.is_empty() {
            document.gap();
            let of = item!["of the companions of these nothing is known: ", silent.join(", ")];
            document.add(of.with([item![NO_CONDITION]]));
        }
        if !self.ended.is_empty() {
            document.gap();
            document.add(item!["have ended, so they are no workloads: ", self.ended.join(", ")]);
        }
        document
    }
}

/// The name of a Pod, and its Node.
fn on_node(namespace: &str, name: &str, node: Option<&String>) -> Item {
    let item = item![bold(format_args!("{namespace}/{name}"))];
    match node {
        Some(node) => item.and(format_args!(" on {node}")),
        None => item,
    }
}

/// What the tenant's own cluster says of a workload.
fn one_pod(pod: &PodReport) -> Item {
    let mut all = on_node(&pod.namespace, &pod.name, pod.node.as_ref());
    if matches!(pod.gate, Some(Gate::Waiting | Gate::Unset)) {
        all.add(item![odd("isn't Ready before its companions are")]);
    }
    let conditions = pod.conditions.iter().map(|condition| one_condition("", condition));
    let of_node = pod.dpu.iter().map(|condition| one_condition("the Node's ", condition));
    let is_new = |event: &&EventReport| {
        let repeats = |condition: &ConditionReport| {
            condition.reason == event.reason && condition.message == event.message
        };
        !pod.conditions.iter().any(repeats)
    };
    let events = pod.events.iter().filter(is_new).map(|event| {
        let at = event.at.as_deref().unwrap_or("at an unknown time");
        item![format_args!("event {at} {}: {}", event.reason, event.message)]
    });
    let unknown = pod.unknown.iter().map(|unknown| item![odd("not known:"), " ", unknown]);
    all.with(conditions.chain(of_node).chain(events).chain(unknown))
}

fn one_condition(whose: &str, condition: &ConditionReport) -> Item {
    let grade = if condition.is_true() { Grade::Good } else { Grade::Bad };
    let since = condition.since.as_ref().map_or_else(String::new, |since| format!(" since {since}"));
    let more = format_args!(" {}{since}: {}", condition.reason, condition.message);
    let mut all = item![whose, format_args!("{}=", condition.kind), graded(grade, &condition.status), more];
    if condition.stale {
        all.add(item![odd("not known:"), " how the companions are now"]);
    }
    // Some messages consist of both.
    if !condition.message.contains(&condition.meaning) {
        all.add(item!["means: ", &condition.meaning]);
    }
    let remedy = condition.remedy.filter(|remedy| !condition.message.ends_with(remedy));
    all.with(remedy.map(|remedy| item!["remedy: ", remedy]))
}

fn one_rule(rule: &RuleReport) -> Item {
    let policy = if rule.policy.is_empty() { "SameNode" } else { &rule.policy };
    let whose = if rule.kind == RuleKind::AdminWorkloadRule { ", of the platform" } else { "" };
    let name = bold(format_args!("rule {}/{}", rule.namespace, rule.name));
    let mut all = item![name, format_args!(" ({policy}{whose})")]
        .with(rule.errors.iter().map(|fault| item![bad("error:"), " ", fault]))
        .with(rule.warnings.iter().map(|warning| item![odd("warning:"), " ", warning]));
    for condition in rule.conditions.iter().filter(|condition| condition.status != "True") {
        all.add(item![format_args!(
            "{}={} {}: {}",
            condition.kind, condition.status, condition.reason, condition.message
        )]);
    }
    all = all.with(rule.events.iter().map(|event| item!["event: ", event]));
    if rule.workloads.is_empty() && rule.companions.is_empty() {
        all.add(item![match rule.selected {
            Some(false) => "spec.tenantSelector selects other tenants",
            _ if rule.errors.is_empty() => "no workloads",
            _ => "not served",
        }]);
    }
    all.with(rule.workloads.iter().map(one_workload)).with(rule.companions.iter().map(|other| {
        let of = format_args!("companion {} of workload {}", other.companion, other.workload);
        item![of, state(&other.state)]
    }))
}

fn one_workload(workload: &WorkloadReport) -> Item {
    let explanation = &workload.explanation;
    let outcome = match explanation.outcome {
        CompanionOutcome::Companion => good("companion"),
        CompanionOutcome::Waiting => odd("no companion yet"),
        CompanionOutcome::Undecided => odd("undecided"),
        CompanionOutcome::NoMatch => bad("no companion"),
        CompanionOutcome::Refused => bad("refused"),
    };
    let mut all = on_node(&workload.namespace, &workload.name, workload.node.as_ref()).and(": ").and(outcome);
    if explanation.outcome == CompanionOutcome::Companion {
        all = all.and(format_args!(" {}", explanation.companion));
    }
    if let Some(there) = &workload.state {
        all = all.and(state(there));
    }
    all = all.with(explanation.reason.iter().map(|reason| item![reason]));
    all = all.with(workload.ordering.iter().map(|ordering| item![odd(ordering)]));
    // One term that passes is all the reason there is; where none does, each would be a way.
    match explanation.terms.iter().find(|term| term.passes) {
        Some(term) => all = all.with(expressions(term)),
        None => {
            for (i, term) in explanation.terms.iter().enumerate() {
                if explanation.terms.len() > 1 {
                    all.add(item![format_args!("{}term {}:", if i == 0 { "" } else { "or " }, i + 1)]);
                }
                all = all.with(expressions(term));
            }
        }
    }
    all.with(explanation.placement.iter().flat_map(places)).with(workload.claims.iter().map(one_claim))
}

fn one_claim(claim: &ClaimReport) -> Item {
    let grade = if claim.phase == ClaimPhase::Allocated { Grade::Good } else { Grade::Odd };
    let names: Vec<&str> = [&claim.name, &claim.claim].into_iter().flatten().map(String::as_str).collect();
    let devices: String = claim.devices.iter().map(|device| format!(", {device}")).collect();
    item![format_args!("claim {}: ", names.join(" ")), graded(grade, claim.phase.as_str()), devices]
        .with(claim.reasons.iter().map(|reason| item![reason]))
}

fn state(state: &State) -> String {
    let message = if state.message.is_empty() { String::new() } else { format!(": {}", state.message) };
    format!(", {}{message}", state.phase.as_str())
}

fn expressions(term: &Term) -> impl Iterator<Item = Item> {
    term.expressions.iter().map(|finding| match &finding.change {
        Some(change) if finding.unknown => item![odd("open"), "  ", change],
        Some(change) => item![bad("fail"), "  ", change],
        None => item![good("pass"), "  ", passed(finding)],
    })
}

/// An expression that passes, in words.
fn passed(finding: &Finding) -> String {
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

fn places(placement: &Placement) -> Vec<Item> {
    let mut all: Vec<Item> =
        placement.problem.iter().map(|problem| item![bad("Pending:"), " ", problem]).collect();
    let width = placement.nodes.iter().map(|place| place.node.len()).max().unwrap_or_default();
    for place in &placement.nodes {
        if place.obstacles.is_empty() {
            all.push(item![good("fits"), "  ", &place.node]);
        }
        let not = |obstacle| item![dim("not"), format_args!("   {:width$}  {obstacle}", place.node)];
        all.extend(place.obstacles.iter().map(not));
    }
    all
}
