//! The frame of all pages, and what several views have in common. The template engine escapes all text.

use maud::{DOCTYPE, Markup, html};
use outrigger_core::reason::Cause;

use super::door::{LOGIN, LOGOUT};
use super::query::{FILTER, Page, Query};
use super::store::Reading;
use crate::document::plain;

/// A view, which has a URL of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum View {
    Overview,
    Missing,
    Companions,
    Workloads,
    Chain,
    Hosts,
    Tenants,
    Rules,
    WhatIf,
}

impl View {
    pub(super) const ALL: &[Self] = &[
        Self::Overview,
        Self::Missing,
        Self::Companions,
        Self::Workloads,
        Self::Chain,
        Self::Hosts,
        Self::Tenants,
        Self::Rules,
        Self::WhatIf,
    ];

    /// Its URL, its name in metrics, its title, and the filters that it has.
    const fn row(self) -> (&'static str, &'static str, &'static str, &'static [&'static str]) {
        match self {
            Self::Overview => ("/", "Overview", "Overview", &[]),
            Self::Missing => ("/missing", "Missing", "Missing companions", &["text", "tenant"]),
            Self::Companions => ("/companions", "Companions", "Companions", &["text", "tenant", "cause"]),
            Self::Workloads => ("/workloads", "Workloads", "Workloads", &["text", "tenant", "cause"]),
            Self::Chain => ("/chain", "Chain", "Workload", &["tenant", "workload", "text"]),
            Self::Hosts => ("/hosts", "Hosts", "Hosts and DPUs", &["text", "tenant", "cause"]),
            Self::Tenants => ("/tenants", "Tenants", "Tenants", &["text", "tenant"]),
            Self::Rules => ("/rules", "Rules", "Rules", &["text", "tenant"]),
            Self::WhatIf => ("/what-if", "WhatIf", "What if", &[]),
        }
    }

    pub(super) const fn path(self) -> &'static str {
        self.row().0
    }

    /// Its name in metrics.
    pub(super) const fn name(self) -> &'static str {
        self.row().1
    }

    pub(super) const fn title(self) -> &'static str {
        self.row().2
    }

    const fn filters(self) -> &'static [&'static str] {
        self.row().3
    }
}

/// A whole page.
///
/// `user`: who has logged in; `None`: nobody has to. `slow`: more than the reading is asked for, so it isn't made again at once when
/// that changes.
pub(super) fn page(
    view: View,
    query: &Query,
    user: Option<&str>,
    reading: &Reading,
    rows: &Markup,
    slow: bool,
) -> Markup {
    let body = html! {
        a.skip href="#main" { "Skip to the content" }
        header {
            strong { "Outrigger" }
            nav aria-label="Views" {
                ul {
                    @for other in View::ALL {
                        li {
                            a href=(other.path()) aria-current=[(*other == view).then_some("page")] { (other.title()) }
                        }
                    }
                }
            }
            span #live role="status" { "○ not live" }
            @if let Some(user) = user {
                form.logout method="post" action=(LOGOUT) { span { (plain(user)) } " " button { "Log out" } }
            }
        }
        main #main {
            h1 { (view.title()) }
            (filters(view, query))
            // What somebody types, and the answer to it, are theirs until they ask again.
            div #rows data-kept[view == View::WhatIf] data-slow[slow] { (notices(reading)) (rows) }
        }
    };
    document(view.title(), true, &body)
}

/// A page with this body. `live`: it has the script that reads it again.
fn document(title: &str, live: bool, body: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) " · Outrigger" }
                link rel="stylesheet" href="/console.css";
                @if live { script src="/console.js" defer {} }
            }
            body { (body) }
        }
    }
}

/// The page on which users log in.
pub(super) fn login(error: Option<&str>) -> Markup {
    let body = html! {
        main #main {
            h1 { "Log in to Outrigger" }
            @if let Some(error) = error { div role="alert" { (notice(error)) } }
            p { "The console reads the cluster with your rights, by a bearer token of yours." }
            form method="post" action=(LOGIN) {
                label.wide { "Token" input type="password" name="token" required autocomplete="off"; }
                label.wide {
                    "Namespace, if you may read the objects of one only"
                    input name="namespace" maxlength="63" autocomplete="off";
                }
                button { "Log in" }
            }
        }
    };
    document("Log in", false, &body)
}

/// How old the page is, and what is missing on it.
fn notices(reading: &Reading) -> Markup {
    html! {
        @if let Some(error) = &reading.error { (notice(&format!("The cluster could not be read: {error}"))) }
        @match &reading.data {
            None if reading.error.is_none() => (notice("The cluster is being read.")),
            None => {},
            Some(data) => {
                p.at { "As of " time datetime=(reading.at) { (reading.at) } }
                @if !data.report.not_visible.is_empty() {
                    div.notice {
                        p { "Not visible:" }
                        ul { @for what in &data.report.not_visible { li { (plain(what)) } } }
                    }
                }
            },
        }
    }
}

/// Something that the reader has to know.
pub(super) fn notice(text: &str) -> Markup {
    html! { p.notice { (plain(text)) } }
}

fn filters(view: View, query: &Query) -> Markup {
    let label = |name: &str| match name {
        "text" => ("Name contains", &query.text),
        "tenant" => ("Tenant", &query.tenant),
        "cause" => ("Cause", &query.cause),
        _ => ("Workload (NAMESPACE/NAME)", &query.workload),
    };
    html! {
        @if !view.filters().is_empty() {
            form method="get" action=(view.path()) role="search" {
                @for name in view.filters() {
                    @let (label, value) = label(name);
                    label { (label) input type="search" name=(name) value=(value) maxlength=(2 * FILTER); }
                }
                button { "Filter" }
                a href=(view.path()) { "Show all" }
            }
        }
    }
}

/// A word of the model of reasons with its meaning.
pub(super) fn meaning(cause: Cause) -> Markup {
    html! { (cause.meaning()) ". " }
}

/// What the platform and the tenant can do about a cause.
pub(super) fn remedies(cause: Cause) -> Markup {
    html! {
        ul.plain {
            li { "Platform: " (cause.platform_remedy()) }
            li { "Tenant: " (cause.tenant_remedy()) }
        }
    }
}

/// A table of one page, with links to the pages before and after.
pub(super) fn table<T>(
    view: View,
    query: &Query,
    heads: &[&str],
    page: &Page<T>,
    row: impl Fn(&T) -> Markup,
) -> Markup {
    let caption = format!("{} found", page.all);
    html! {
        (frame(view.title(), Some(&caption), heads, page.rows.iter().map(row)))
        (pages(view, query, page))
    }
}

/// A table that scrolls by itself. `name`: for those who don't see it.
pub(super) fn frame(
    name: &str,
    caption: Option<&str>,
    heads: &[&str],
    rows: impl Iterator<Item = Markup>,
) -> Markup {
    html! {
        div.table role="region" aria-label=(name) tabindex="0" {
            table {
                @if let Some(caption) = caption { caption { (caption) } }
                thead { tr { @for head in heads { th scope="col" { (head) } } } }
                tbody { @for row in rows { tr { (row) } } }
            }
        }
    }
}

/// Links to the pages before and after.
pub(super) fn pages<T>(view: View, query: &Query, page: &Page<T>) -> Markup {
    let go = |number: usize| Query { page: number, ..query.clone() }.url(view.path());
    html! {
        @if page.pages() > 1 {
            nav.pages aria-label="Pages" {
                @if page.number > 0 { a href=(go(page.number - 1)) { "Previous" } }
                span { "Page " (page.number + 1) " of " (page.pages()) }
                @if page.number + 1 < page.pages() { a href=(go(page.number + 1)) { "Next" } }
            }
        }
    }
}
