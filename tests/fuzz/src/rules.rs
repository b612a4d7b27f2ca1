//! Rules, and the companions that are made of them.

use std::sync::Arc;

use outrigger_api::{AdminWorkloadRule, WorkloadRule};
use outrigger_core::companion::{Action, MAX_ANNOTATIONS};
use outrigger_core::ids::TenantId;
use outrigger_core::mutate::{PodContext, mutate};
use outrigger_core::rule::{Rule, Verdict};
use outrigger_core::template;
use outrigger_core::workload::Workload;
use serde_json::Value;

use crate::choice::Choice;
use crate::{Outcome, Report, kind_of, objects};

pub(crate) fn run(c: &mut Choice<'_>) -> Result<Report, String> {
    let admin = c.one_in(3);
    let mut object = objects::rule_object(c, if admin { "AdminWorkloadRule" } else { "WorkloadRule" });
    for _ in 0..c.below(4) / 2 {
        c.scramble(&mut object);
    }
    let workload = objects::workload(c);
    check(&object, admin, &workload).map_err(|why| format!("{why}\n{object}\n{}", workload.to_json()))
}

fn check(object: &Value, admin: bool, workload: &Workload) -> Result<Report, String> {
    let undecodable = |e: serde_json::Error| Report::new(Outcome::Undecodable, kind_of(&e.to_string()));
    let compiled = if admin {
        serde_json::from_value::<AdminWorkloadRule>(object.clone())
            .map(|rule| rule.compile().map(|admin| admin.rule))
    } else {
        serde_json::from_value::<WorkloadRule>(object.clone()).map(|rule| rule.compile())
    };
    let rule = match compiled.map_err(undecodable) {
        Err(report) => return Ok(report),
        Ok(Err(errors)) => {
            if errors.is_empty() {
                return Err("the rule is refused without a reason".to_owned());
            }
            return Ok(Report::new(Outcome::Denied, kind_of(&errors[0].to_string())));
        }
        Ok(Ok(rule)) => Arc::new(rule),
    };
    let matched = rule.matches(workload);
    let terms = rule.evaluate(workload, |_| false);
    let explained = terms.iter().any(|term| term.iter().all(|expression| expression.passes == Verdict::Yes));
    if matched != (explained && rule.is_about(workload)) {
        return Err(format!("the rule matches: {matched}; its terms say {explained}"));
    }
    let step = objects::first_step(&rule, workload.clone(), !admin);
    let signature = match step {
        Action::Create(companion) => created(&rule, companion, workload, admin)?,
        Action::Refuse(_, message) => kind_of(&message),
        other => format!("{other:?}"),
    };
    Ok(Report::new(Outcome::Accepted, signature))
}

/// A companion has bounded annotations, and admission changes it once.
fn created(rule: &Rule, companion: Value, workload: &Workload, admin: bool) -> Result<String, String> {
    let annotations = companion["metadata"]["annotations"].as_object();
    let size: usize =
        annotations.into_iter().flatten().map(|(k, v)| k.len() + v.as_str().map_or(0, str::len)).sum();
    if size > MAX_ANNOTATIONS {
        return Err(format!("the companion has {size} bytes of annotations"));
    }
    if rule.injected(workload).len() > rule.injections().count() {
        return Err("more facts are injected than the rule asks for".to_owned());
    }
    if rule.kind() != template::Kind::Pod || admin {
        return Ok(format!("{:?} {admin}", rule.kind()));
    }
    let tenant = TenantId::new("blue").map_err(|e| e.to_string())?;
    let facts = PodContext {
        tenant: Some(&tenant),
        rule: Some(rule),
        host_labels: Default::default(),
        ..PodContext::default()
    };
    let mut once = companion;
    if let Err(error) = mutate(&mut once, &facts) {
        return Ok(format!("admission: {}", kind_of(&error.to_string())));
    }
    let mut twice = once.clone();
    mutate(&mut twice, &facts).map_err(|e| format!("the admitted companion is refused: {e}\n{once}"))?;
    if once == twice { Ok("Pod".to_owned()) } else { Err(format!("{once} becomes {twice}")) }
}
