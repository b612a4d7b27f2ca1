//! The report for people.

use std::io::{Result, Write};

use super::report::{Change, Decider, Pod, Refusal, Report};
use crate::style::{BAD, BOLD, ODD};

/// Writes all of it.
pub(super) fn report(report: &Report, out: &mut impl Write) -> Result<()> {
    for note in &report.notes {
        writeln!(out, "{ODD}note:{ODD:#} {note}")?;
    }
    if report.pods.is_empty() {
        writeln!(out, "no requests about Pods")?;
    }
    for (i, pod) in report.pods.iter().enumerate() {
        if i > 0 || !report.notes.is_empty() {
            writeln!(out)?;
        }
        one_pod(pod, out)?;
    }
    Ok(())
}

fn one_pod(pod: &Pod, out: &mut impl Write) -> Result<()> {
    writeln!(out, "{BOLD}Pod {}/{}{BOLD:#}", pod.namespace, pod.name)?;
    for change in &pod.requests {
        request(change, out)?;
    }
    Ok(())
}

fn request(change: &Change, out: &mut impl Write) -> Result<()> {
    let sub =
        if change.subresource.is_empty() { String::new() } else { format!(" of {}", change.subresource) };
    let user = match &change.impersonated_user {
        Some(user) => format!("{user} (impersonated by {})", change.user),
        None => change.user.clone(),
    };
    let dry = if change.dry_run { ", dry run" } else { "" };
    writeln!(out, "  {} {}{sub} by {user}: {}{dry}", change.time, change.verb, change.code)?;
    if change.failed {
        writeln!(out, "    {BAD}failed:{BAD:#} {}", change.message.replace('\n', " "))?;
    }
    if let Some(refusal) = &change.refused_by {
        refused(refusal, out)?;
    }
    for step in &change.steps {
        let again = if step.again { " again" } else { "" };
        writeln!(out, "    step {}{again}: {} ({})", step.step, decider(&step.by), step.webhook)?;
    }
    for webhook in &change.webhooks {
        let patch =
            if webhook.patch.is_empty() { String::new() } else { format!(": {}", webhook.patch.join(", ")) };
        let (name, round) = (&webhook.webhook, webhook.round + 1);
        writeln!(out, "    changed by webhook {name} of {} in round {round}{patch}", webhook.configuration)?;
    }
    for policy in &change.policies {
        let actions = policy.actions.join(", ");
        writeln!(out, "    {ODD}policy{ODD:#} {} ({actions}): {}", policy.policy, policy.message)?;
    }
    for webhook in &change.failed_open {
        writeln!(out, "    {ODD}ignored:{ODD:#} the failure of webhook {webhook}")?;
    }
    Ok(())
}

fn refused(refusal: &Refusal, out: &mut impl Write) -> Result<()> {
    let (what, name) = match (&refusal.webhook, &refusal.policy) {
        (Some(webhook), _) => ("webhook", webhook),
        (None, Some(policy)) => ("policy", policy),
        (None, None) => return Ok(()),
    };
    write!(out, "    refused by {what} {name}")?;
    if let Some(step) = &refusal.step {
        write!(out, ", step {step}")?;
    }
    let by = decider(&refusal.by);
    if !by.is_empty() {
        write!(out, ", {by}")?;
    }
    if !refusal.fields.is_empty() {
        write!(out, ": {}", refusal.fields.join(", "))?;
    }
    writeln!(out)
}

/// `WorkloadRule tenant-blue/dns, generation 3`.
pub(in super::super) fn decider(by: &Decider) -> String {
    let name = by.name.as_deref().unwrap_or_default();
    let name = match &by.namespace {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    };
    let mut text = [by.kind.as_deref().unwrap_or_default(), &name].join(" ").trim().to_owned();
    if let Some(generation) = by.generation {
        text += &format!(", generation {generation}");
    }
    if let Some(machine_type) = &by.machine_type {
        text += &format!(", type {machine_type}");
    }
    text
}
