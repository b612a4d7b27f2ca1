//! The view of one workload: what `outrigger explain` says of it, rule by rule, from the workload to the DPU.

use maud::{Markup, html};

use super::page::{View, notice, pages, table};
use super::query::{Page, Query};
use crate::document::plain;
use crate::explain::Answer;
use crate::explain::explanation::CompanionOutcome;
use crate::explain::report::{Report, RuleReport};

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
        (report.document_of(page.rows.iter().copied()).html())
        (pages(View::Chain, query, &page))
    }
}
