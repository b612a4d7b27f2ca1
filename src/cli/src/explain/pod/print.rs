//! The report for people.

use std::io::{Result, Write};

use super::super::audit::{Decider, decider};
use super::super::print::line;
use super::report::{Refusal, Report, Verdict};
use super::roles::{Role, RoleKind};
use crate::style::{BAD, BOLD, ODD};

/// Writes all of it.
pub(super) fn report(report: &Report, out: &mut impl Write) -> Result<()> {
    for note in &report.notes {
        writeln!(out, "{ODD}note:{ODD:#} {}", line(note))?;
    }
    let node = report.node.as_deref().map_or_else(String::new, |node| format!(" on {}", line(node)));
    writeln!(out, "{BOLD}Pod {}/{}{BOLD:#}{node}", report.namespace, report.name)?;
    for role in &report.roles {
        one_role(role, out)?;
    }
    if report.roles.is_empty() {
        writeln!(out, "  nothing of Outrigger's")?;
    }
    if !report.unscheduled.is_empty() {
        writeln!(out, "  {ODD}not scheduled:{ODD:#} {}", line(&report.unscheduled))?;
    }
    if !report.recorded.is_empty() {
        writeln!(out, "\n{BOLD}it has of the steps{BOLD:#}")?;
    }
    for recorded in &report.recorded {
        step(recorded.step, &recorded.by, out)?;
        for mark in &recorded.marks {
            writeln!(out, "    {}: {}", line(&mark.path), line(&mark.value))?;
        }
    }
    writeln!(out, "\n{BOLD}webhooks{BOLD:#}")?;
    for webhook in &report.webhooks {
        let what = if webhook.mutates { "mutates" } else { "validates" };
        match &webhook.why_not {
            None => writeln!(out, "  {what:9}  {}", webhook.webhook)?,
            Some(why) => writeln!(out, "  not called {} ({what}): {}", webhook.webhook, line(why))?,
        }
    }
    if let Some(creation) = &report.creation {
        writeln!(out, "\n{BOLD}made of {}{BOLD:#}", line(&creation.from))?;
        verdict(&creation.verdict, "admitted unchanged", out)?;
    }
    let what = if report.new { "as it is created" } else { "as it is stored" };
    writeln!(out, "\n{BOLD}{what}{BOLD:#}")?;
    verdict(&report.stored, "has everything that admission adds now", out)?;
    if !report.policies.is_empty() {
        writeln!(out, "\n{BOLD}policies, which only the API server evaluates{BOLD:#}")?;
    }
    for policy in &report.policies {
        let unless = match policy.match_conditions.as_slice() {
            [] => String::new(),
            names => format!(", if it meets {}", names.join(", ")),
        };
        writeln!(out, "  {} ({}){unless}", policy.policy, policy.actions.join(", "))?;
    }
    Ok(())
}

fn one_role(role: &Role, out: &mut impl Write) -> Result<()> {
    let what = match role.role {
        RoleKind::Companion => "companion of",
        RoleKind::TenantPod => "in the namespace of",
        RoleKind::Offloaded => "in a namespace with",
        RoleKind::Guest => "guest of",
        RoleKind::Reservation => "reservation of",
        RoleKind::Workload => "workload in a tenant's cluster, which waits for its companions",
    };
    writeln!(out, "  {}", line(format!("{what} {}", decider(&role.by)).trim()))?;
    for fact in &role.facts {
        writeln!(out, "    {}: {}", fact.name, line(&fact.value))?;
    }
    role.problems.iter().try_for_each(|problem| writeln!(out, "    {ODD}problem:{ODD:#} {}", line(problem)))
}

fn step(name: &str, by: &Decider, out: &mut impl Write) -> Result<()> {
    let by = decider(by);
    let colon = if by.is_empty() { "" } else { ": " };
    writeln!(out, "  step {name}{colon}{by}")
}

fn verdict(verdict: &Verdict, unchanged: &str, out: &mut impl Write) -> Result<()> {
    for warning in &verdict.warnings {
        writeln!(out, "  {ODD}warning:{ODD:#} {}", line(warning))?;
    }
    for one in &verdict.steps {
        step(one.step, &one.by, out)?;
        for operation in &one.operations {
            let json = serde_json::to_value(operation)?;
            let (op, value) = (json["op"].as_str().unwrap_or_default(), &json["value"]);
            let value = if value.is_null() { String::new() } else { format!(" {value}") };
            writeln!(out, "    {op} {}{}", line(operation.path().as_str()), line(&value))?;
        }
    }
    match (&verdict.refusal, &verdict.unknown) {
        (Some(refusal), _) => refused(refusal, out),
        (None, Some(unknown)) => writeln!(out, "  {ODD}not known:{ODD:#} {}", line(unknown)),
        (None, None) if verdict.steps.is_empty() => writeln!(out, "  {unchanged}"),
        (None, None) => Ok(()),
    }
}

fn refused(refusal: &Refusal, out: &mut impl Write) -> Result<()> {
    let webhook = refusal.webhook.as_ref().map(|webhook| format!(", webhook {webhook}"));
    let step = refusal.step.as_ref().map(|step| format!(", step {step}"));
    let by = Some(decider(&refusal.by)).filter(|by| !by.is_empty()).map(|by| format!(", {by}"));
    let by: String = [webhook, step, by].into_iter().flatten().collect();
    writeln!(out, "  {BAD}refused now{BAD:#} ({}{by}): {}", refusal.code, line(&refusal.message))
}
