//! The report for people.

use super::report::{Change, Decider, Pod, Refusal, Report};
use crate::document::{Document, Item, Readable, bad, bold, item, odd};

impl Readable for Report {
    fn document(&self) -> Document {
        let mut document = Document::default();
        document.notes(&self.notes);
        if self.pods.is_empty() {
            document.add(item!["no requests about Pods"]);
        }
        for (i, Pod { namespace, name, requests, .. }) in self.pods.iter().enumerate() {
            if i > 0 || !self.notes.is_empty() {
                document.gap();
            }
            let pod = item![bold(format_args!("Pod {namespace}/{name}"))];
            document.add(pod.with(requests.iter().map(request)));
        }
        document
    }
}

fn request(change: &Change) -> Item {
    let sub =
        if change.subresource.is_empty() { String::new() } else { format!(" of {}", change.subresource) };
    let user = match &change.impersonated_user {
        Some(user) => format!("{user} (impersonated by {})", change.user),
        None => change.user.clone(),
    };
    let dry = if change.dry_run { ", dry run" } else { "" };
    let failed = change.failed.then(|| item![bad("failed:"), " ", &change.message]);
    item![format_args!("{} {}{sub} by {user}: {}{dry}", change.time, change.verb, change.code)]
        .with(failed)
        .with(change.refused_by.as_ref().and_then(refused))
        .with(change.steps.iter().map(|step| {
            let again = if step.again { " again" } else { "" };
            item![format_args!("step {}{again}: {} ({})", step.step, decider(&step.by), step.webhook)]
        }))
        .with(change.webhooks.iter().map(|webhook| {
            let patch = webhook.patch.join(", ");
            let patch = if patch.is_empty() { patch } else { format!(": {patch}") };
            let (name, of, round) = (&webhook.webhook, &webhook.configuration, webhook.round + 1);
            item![format_args!("changed by webhook {name} of {of} in round {round}{patch}")]
        }))
        .with(change.policies.iter().map(|policy| {
            let actions = policy.actions.join(", ");
            item![odd("policy"), format_args!(" {} ({actions}): {}", policy.policy, policy.message)]
        }))
        .with(
            change
                .failed_open
                .iter()
                .map(|webhook| item![odd("ignored:"), " the failure of webhook ", webhook]),
        )
}

fn refused(refusal: &Refusal) -> Option<Item> {
    let (what, name) = match (&refusal.webhook, &refusal.policy) {
        (Some(webhook), _) => ("webhook", webhook),
        (None, Some(policy)) => ("policy", policy),
        (None, None) => return None,
    };
    let step = refusal.step.as_ref().map_or_else(String::new, |step| format!(", step {step}"));
    let (by, fields) = (decider(&refusal.by), refusal.fields.join(", "));
    let part =
        |before: &str, text: &str| if text.is_empty() { String::new() } else { format!("{before}{text}") };
    Some(item!["refused by ", what, " ", name, step, part(", ", &by), part(": ", &fields)])
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
