//! The report for people.

use super::super::audit::{Decider, decider};
use super::recorded::Recorded;
use super::report::{Refusal, Report, Step, Verdict};
use super::roles::{Role, RoleKind};
use crate::document::{Document, Item, Readable, bad, bold, item, odd};

impl Readable for Report {
    fn document(&self) -> Document {
        let mut document = Document::default();
        document.notes(&self.notes);
        let node = self.node.as_deref().map_or_else(String::new, |node| format!(" on {node}"));
        let mut pod = item![bold(format_args!("Pod {}/{}", self.namespace, self.name)), node]
            .with(self.roles.iter().map(one_role));
        if self.roles.is_empty() {
            pod.add(item!["nothing of Outrigger's"]);
        }
        if !self.unscheduled.is_empty() {
            pod.add(item![odd("not scheduled:"), " ", &self.unscheduled]);
        }
        document.add(pod);
        let mut part = |title: String, items: Vec<Item>| {
            document.gap();
            document.add(item![bold(title)].with(items));
        };
        if !self.recorded.is_empty() {
            let mark = |of: &Recorded| {
                of.marks.iter().map(|mark| item![&mark.path, ": ", &mark.value]).collect::<Vec<_>>()
            };
            let recorded = self.recorded.iter().map(|of| step(of.step, &of.by).with(mark(of)));
            part("it has of the steps".to_owned(), recorded.collect());
        }
        let webhooks = self.webhooks.iter().map(|webhook| {
            let what = if webhook.mutates { "mutates" } else { "validates" };
            match &webhook.why_not {
                None => item![format_args!("{what:9}  {}", webhook.webhook)],
                Some(why) => item![format_args!("not called {} ({what}): {why}", webhook.webhook)],
            }
        });
        part("webhooks".to_owned(), webhooks.collect());
        if let Some(creation) = &self.creation {
            part(format!("made of {}", creation.from), verdict(&creation.verdict, "admitted unchanged"));
        }
        let what = if self.new { "as it is created" } else { "as it is stored" };
        part(what.to_owned(), verdict(&self.stored, "has everything that admission adds now"));
        if !self.policies.is_empty() {
            let policies = self.policies.iter().map(|policy| {
                let unless = match policy.match_conditions.as_slice() {
                    [] => String::new(),
                    names => format!(", if it meets {}", names.join(", ")),
                };
                item![format_args!("{} ({}){unless}", policy.policy, policy.actions.join(", "))]
            });
            part("policies, which only the API server evaluates".to_owned(), policies.collect());
        }
        document
    }
}

fn one_role(role: &Role) -> Item {
    let what = match role.role {
        RoleKind::Companion => "companion of",
        RoleKind::TenantPod => "in the namespace of",
        RoleKind::Offloaded => "in a namespace with",
        RoleKind::Guest => "guest of",
        RoleKind::Reservation => "reservation of",
        RoleKind::Workload => "workload in a tenant's cluster, which waits for its companions",
    };
    item![what, " ", decider(&role.by)]
        .with(role.facts.iter().map(|fact| item![&fact.name, ": ", &fact.value]))
        .with(role.problems.iter().map(|problem| item![odd("problem:"), " ", problem]))
}

fn step(name: &str, by: &Decider) -> Item {
    let by = decider(by);
    let colon = if by.is_empty() { "" } else { ": " };
    item!["step ", name, colon, by]
}

fn changes(of: &Step) -> Item {
    step(of.step, &of.by).with(of.operations.iter().map(|operation| {
        let json = serde_json::to_value(operation).unwrap_or_default();
        let (op, value) = (json["op"].as_str().unwrap_or_default(), &json["value"]);
        let value = if value.is_null() { String::new() } else { format!(" {value}") };
        item![op, " ", operation.path().as_str(), value]
    }))
}

fn verdict(verdict: &Verdict, unchanged: &str) -> Vec<Item> {
    let mut all: Vec<Item> =
        verdict.warnings.iter().map(|warning| item![odd("warning:"), " ", warning]).collect();
    all.extend(verdict.steps.iter().map(changes));
    match (&verdict.refusal, &verdict.unknown) {
        (Some(refusal), _) => all.push(refused(refusal)),
        (None, Some(unknown)) => all.push(item![odd("not known:"), " ", unknown]),
        (None, None) if verdict.steps.is_empty() => all.push(item![unchanged]),
        (None, None) => {}
    }
    all
}

fn refused(refusal: &Refusal) -> Item {
    let webhook = refusal.webhook.as_ref().map(|webhook| format!(", webhook {webhook}"));
    let step = refusal.step.as_ref().map(|step| format!(", step {step}"));
    let by = Some(decider(&refusal.by)).filter(|by| !by.is_empty()).map(|by| format!(", {by}"));
    let by: String = [webhook, step, by].into_iter().flatten().collect();
    item![bad("refused now"), format_args!(" ({}{by}): {}", refusal.code, refusal.message)]
}
