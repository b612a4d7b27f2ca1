//! The report for people.

use std::io::{Result, Write};

use super::super::audit::decider;
use super::report::{Report, Verdict};
use crate::style::{BAD, BOLD, ODD};

/// Writes all of it.
pub(super) fn report(report: &Report, out: &mut impl Write) -> Result<()> {
    for note in &report.notes {
        writeln!(out, "{ODD}note:{ODD:#} {note}")?;
    }
    let node = report.node.as_deref().map_or_else(String::new, |node| format!(" on {node}"));
    writeln!(out, "{BOLD}Pod {}/{}{BOLD:#}{node}", report.namespace, report.name)?;
    for role in &report.roles {
        writeln!(out, "  {role}")?;
    }
    if report.roles.is_empty() {
        writeln!(out, "  nothing of Outrigger's")?;
    }
    if !report.unscheduled.is_empty() {
        writeln!(out, "  {ODD}not scheduled:{ODD:#} {}", report.unscheduled)?;
    }
    writeln!(out, "\n{BOLD}webhooks{BOLD:#}")?;
    for webhook in &report.webhooks {
        let what = if webhook.mutates { "mutates" } else { "validates" };
        match &webhook.why_not {
            None => writeln!(out, "  {what:9}  {}", webhook.webhook)?,
            Some(why) => writeln!(out, "  not called {} ({what}): {why}", webhook.webhook)?,
        }
    }
    if let Some(creation) = &report.creation {
        writeln!(out, "\n{BOLD}made of {}{BOLD:#}", creation.from)?;
        verdict(&creation.verdict, "admitted unchanged", out)?;
    }
    writeln!(out, "\n{BOLD}as it is stored{BOLD:#}")?;
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

fn verdict(verdict: &Verdict, unchanged: &str, out: &mut impl Write) -> Result<()> {
    if let Some(refusal) = &verdict.refusal {
        let step = refusal.step.as_ref().map_or_else(String::new, |step| format!(", step {step}"));
        let by = Some(decider(&refusal.by))
            .filter(|by| !by.is_empty())
            .map_or_else(String::new, |by| format!(", {by}"));
        return writeln!(out, "  {BAD}refused now{BAD:#} ({}{step}{by}): {}", refusal.code, refusal.message);
    }
    for warning in &verdict.warnings {
        writeln!(out, "  {ODD}warning:{ODD:#} {warning}")?;
    }
    for step in &verdict.steps {
        writeln!(out, "  step {}: {}", step.step, decider(&step.by))?;
    }
    if verdict.patch.0.is_empty() {
        return writeln!(out, "  {unchanged}");
    }
    for operation in &verdict.patch.0 {
        let line = serde_json::to_value(operation)?;
        let (op, value) = (line["op"].as_str().unwrap_or_default(), &line["value"]);
        let value = if value.is_null() { String::new() } else { format!(" {value}") };
        writeln!(out, "  {op} {}{value}", operation.path())?;
    }
    Ok(())
}
