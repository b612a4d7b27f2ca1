//! The views of the newest reading.

use maud::{Markup, html};
use outrigger_core::reason::Cause;

use super::data::{Companion, Data, HostRow, Missing, TenantEntry};
use super::page::{View, frame, meaning, notice, remedies, table};
use super::query::{Page, Query};
use crate::condition::Condition;
use crate::document::{Document, Grade, plain, state};
use crate::status::print as status;
use crate::status::report::{RuleRow, TenantRow};

/// What a view shows of a reading. Workloads and predictions are asked for each time, so they are not among them.
pub(super) fn rows(view: View, query: &Query, data: &Data) -> Markup {
    match view {
        View::Overview => html! { @for part in status::sections(&data.report) { (section(&part)) } },
        View::Missing => missing(query, data),
        View::Companions => companions(query, data),
        View::Hosts => hosts(query, data),
        View::Tenants => tenants(query, data),
        View::Rules => rules(query, data),
        View::Workloads | View::Chain | View::WhatIf => html! {},
    }
}

/// A word of the report with the view that shows all of it.
fn all_of(title: &str) -> Option<View> {
    match title {
        "tenants" => Some(View::Tenants),
        "rules" => Some(View::Rules),
        "companions" => Some(View::Companions),
        "DPUs" => Some(View::Hosts),
        _ => None,
    }
}

/// A section of the overview, and the way to all of it.
fn section((title, section): &(String, Document)) -> Markup {
    html! {
        section {
            (section.html())
            @if let Some(view) = all_of(title) { p { a href=(view.path()) { "All " (title) } } }
        }
    }
}

fn missing(query: &Query, data: &Data) -> Markup {
    let found = data.missing(|names, tenant| query.takes(names, tenant, ""));
    let heads = ["Cause", "Companions", "Rules", "Not created", "Meaning", "Remedy"];
    table(View::Missing, query, &heads, &Page::of(found, query), |row: &Missing| {
        let of = Query { cause: row.word.clone(), page: 0, ..query.clone() };
        html! {
            th scope="row" { (plain(&row.word)) }
            td { @if row.companions == 0 { "0" } @else { a href=(of.url("/companions")) { (row.companions) } } }
            td { (row.rules) }
            td { (row.lacking) }
            td { @if let Some(cause) = row.cause { (meaning(cause)) } @else { "-" } }
            td { @if let Some(cause) = row.cause { (remedies(cause)) } @else { "-" } }
        }
    })
}

fn companions(query: &Query, data: &Data) -> Markup {
    let takes = |of: &&Companion| {
        let (id, pod) = (&*of.id, &*of.pod);
        let workload = pod.workload.as_deref().unwrap_or_default();
        let names = [&*id.namespace, &*id.name, &*pod.rule, &*pod.host, &*pod.node, workload];
        query.takes(&names, &of.tenant, of.cause.map_or("", |cause| cause.as_str()))
    };
    let page = Page::of(data.companions.iter().filter(takes), query);
    let heads = ["Companion", "Tenant", "State", "Rule", "Workload", "Host", "DPU", "Message"];
    table(View::Companions, query, &heads, &page, |of: &&Companion| {
        let (id, pod) = (&*of.id, &*of.pod);
        let workload = pod.workload.as_ref();
        let chain = workload.map(|name| Query { workload: name.clone(), ..Query::of_tenant(&of.tenant) });
        html! {
            th scope="row" { (id.namespace) "/" (id.name) }
            td { (or_dash(&of.tenant)) }
            td {
                (state(of.grade, pod.state))
                @if let Some(cause) = of.cause.filter(|cause| cause.as_str() != pod.state) { ": " (cause.as_str()) }
            }
            td { (pod.rule) }
            td {
                @match (workload, chain) {
                    (Some(name), Some(chain)) => a href=(chain.url("/chain")) { (plain(name)) },
                    _ => "-",
                }
            }
            td { (or_dash(&pod.host)) }
            td { (or_dash(&pod.node)) }
            td {
                @if let Some(cause) = of.cause { (meaning(cause)) }
                (plain(&pod.message))
            }
        }
    })
}

fn or_dash(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { plain(text) }
}

fn hosts(query: &Query, data: &Data) -> Markup {
    let takes = |row: &&HostRow| {
        query.takes(&[&row.host, &row.dpu], &row.tenant, row.cause.map_or("", |cause| cause.as_str()))
    };
    let page = Page::of(data.hosts.iter().filter(takes), query);
    let heads = ["Host", "DPU", "Tenant", "State", "Companions ready", "Meaning", "Remedy"];
    table(View::Hosts, query, &heads, &page, |row: &&HostRow| {
        let on = Query { text: row.dpu.clone(), ..Query::default() };
        html! {
            th scope="row" { (or_dash(&row.host)) }
            td { (or_dash(&row.dpu)) }
            td { @if row.tenant.is_empty() { "-" } @else { a href=(Query::of_tenant(&row.tenant).url("/tenants")) { (plain(&row.tenant)) } } }
            td { (state(row.grade, row.cause.map_or("Ready", |cause| cause.as_str()))) }
            td {
                @if row.companions == 0 { "0/0" }
                @else { a href=(on.url("/companions")) { (row.ready) "/" (row.companions) } }
            }
            td { @if let Some(cause) = row.cause { (meaning(cause)) } }
            td { @if let Some(cause) = row.cause { (remedies(cause)) } }
        }
    })
}

fn tenants(query: &Query, data: &Data) -> Markup {
    if let Some(entry) = data.tenants.get(&query.tenant) {
        return tenant(data, entry);
    }
    let takes = |row: &&TenantRow| query.takes(&[&row.name], &row.name, "");
    let all = data.report.tenants.as_deref().unwrap_or_default();
    let of = status::tenants(all.iter().filter(takes));
    html! {
        @if data.report.tenants.is_none() { (notice("Tenants are not visible")) }
        (table(View::Tenants, query, &of.heads, &Page::of(&of.rows, query), |row| {
            let link = row.cells.first().map(|name| Query::of_tenant(name).url("/tenants"));
            row.html(link.as_deref())
        }))
    }
}

/// One tenant: its conditions, rules, and the way to its companions and DPUs.
fn tenant(data: &Data, entry: &TenantEntry) -> Markup {
    let of = Query::of_tenant(&entry.row.name);
    let row = status::tenants([&entry.row]);
    html! {
        h2 { "Tenant " (plain(&entry.row.name)) }
        (row.html())
        h2 { "Conditions" }
        (conditions(&entry.conditions))
        h2 { "Rules" }
        (rules(&of, data))
        h2 { "Companions" }
        ul {
            li { a href=(of.url("/missing")) { "Missing companions" } }
            li { a href=(of.url("/hosts")) { "Hosts and DPUs" } }
            li { a href=(of.url("/workloads")) { "Workloads" } }
            li { a href=(of.url("/chain")) { "One workload, from its rules to the DPU" } }
        }
        (companions(&of, data))
    }
}

fn rules(query: &Query, data: &Data) -> Markup {
    let takes = |(tenant, row): &(&str, &RuleRow)| query.takes(&[&row.namespace, &row.name], tenant, "");
    let of = status::rules(data.rules().filter(takes).map(|(_, row)| row));
    html! {
        @if data.report.rules.is_none() { (notice("Rules are not visible")) }
        (table(View::Rules, query, &of.heads, &Page::of(&of.rows, query), |row| row.html(None)))
    }
}

fn conditions(all: &[Condition]) -> Markup {
    let row = |Condition { kind, status, reason, message }: &Condition| {
        let is_true = status == "True";
        let grade = if is_true { Grade::Good } else { Grade::Bad };
        let cause = reason.parse::<Cause>().ok().filter(|_| !is_true);
        html! {
            th scope="row" { (state(grade, &format!("{kind}={status}"))) }
            td { (plain(reason)) }
            td { (plain(message)) }
            td { @if let Some(cause) = cause { (remedies(cause)) } @else { "-" } }
        }
    };
    frame("Conditions", None, &["Condition", "Reason", "Message", "Remedy"], all.iter().map(row))
}
