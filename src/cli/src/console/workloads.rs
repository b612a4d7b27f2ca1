//! The view "Workloads": all workloads of a tenant that a manager knows, with and without companions.

use maud::{Markup, html};
use outrigger_core::reason::Cause;

use super::managers::{CompanionRow, Failure, Page, WorkloadRow};
use super::page::{View, frame, meaning, notice};
use super::query::Query;
use crate::document::{Grade, plain, state};

/// What the managers say of a tenant's workloads.
pub(super) fn rows(query: &Query, tenant: &str, answer: &Result<Page, Failure>) -> Markup {
    html! {
        h2 { "Workloads of tenant " (plain(tenant)) }
        @match answer {
            Err(why) => (notice(&why.to_string())),
            Ok(page) => {
                p { "Manager " (plain(&page.replica)) " knows " (page.known) "." }
                (table(tenant, page))
                (pages(query, page))
            },
        }
    }
}

fn table(tenant: &str, page: &Page) -> Markup {
    let caption = format!("{} on this page", page.workloads.len());
    let rows = page.workloads.iter().map(|workload| row(tenant, workload));
    frame(View::Workloads.title(), Some(&caption), &["Workload", "Node", "State", "Companions"], rows)
}

fn row(tenant: &str, workload: &WorkloadRow) -> Markup {
    let name = format!("{}/{}", workload.namespace, workload.name);
    let chain = Query { workload: name.clone(), ..Query::of_tenant(tenant) };
    let (grade, word) = if workload.ready { (Grade::Good, "Ready") } else { (Grade::Odd, "NotReady") };
    html! {
        th scope="row" { a href=(chain.url(View::Chain.path())) { (plain(&name)) } }
        td { (workload.node.as_deref().map_or_else(|| "-".to_owned(), plain)) }
        td { (state(grade, word)) }
        td {
            @if workload.companions.is_empty() { "none: no rule matches" }
            @else { ul.plain { @for row in &workload.companions { li { (companion(row)) } } } }
            @if workload.more_companions > 0 { p { "and " (workload.more_companions) " more" } }
        }
    }
}

fn companion(row: &CompanionRow) -> Markup {
    let cause: Option<Cause> = row.cause.as_deref().and_then(|cause| cause.parse().ok());
    let named = row.cause.as_deref().filter(|cause| *cause != row.state);
    html! {
        (state(grade(&row.state), &row.state))
        @if let Some(cause) = named { ": " (plain(cause)) }
        @match &row.rule {
            Some(rule) => { ", rule " (plain(rule)) },
            None => ", rule of the platform",
        }
        @if row.ordering != "Parallel" { ", " (plain(&row.ordering)) }
        ", since " time datetime=(row.since) { (plain(&row.since)) }
        @if !row.message.is_empty() { ". " (plain(&row.message)) }
        @else if let Some(cause) = cause { ". " (meaning(cause)) }
    }
}

/// The words of the manager's states, graded as companions are in the other views.
fn grade(word: &str) -> Grade {
    match word {
        "Ready" => Grade::Good,
        "Refused" | "NoDPU" | "Failed" | "Lost" => Grade::Bad,
        _ => Grade::Odd,
    }
}

/// Links to the first page and to the next one. A page has no number: the manager begins after the last workload of the one before.
fn pages(query: &Query, page: &Page) -> Markup {
    let go = |after: &str| Query { after: after.to_owned(), ..query.clone() }.url(View::Workloads.path());
    html! {
        @if page.next.is_some() || !query.after.is_empty() {
            nav.pages aria-label="Pages" {
                @if !query.after.is_empty() { a href=(go("")) { "First page" } }
                @if let Some(next) = &page.next { a href=(go(next)) { "Next" } }
            }
        }
        @if page.workloads.is_empty() && page.next.is_some() {
            p { "The filters take none of the workloads of this page; there are more." }
        }
    }
}

/// Which replica serves a tenant now. What the Tenant's status says of its stream was written by the replica that served it last, and
/// stays if that one was killed.
pub(super) fn served(answer: &Result<Page, Failure>) -> Markup {
    html! {
        h2 { "Manager" }
        @match answer {
            Ok(page) => p {
                (state(Grade::Good, "served")) " by manager " (plain(&page.replica)) ", which knows " (page.known) " workloads"
            },
            Err(why @ (Failure::Unserved { .. } | Failure::Unreachable { .. })) => p {
                @let word = if matches!(why, Failure::Unserved { .. }) { "not served" } else { "no manager answers" };
                (state(Grade::Bad, word)) "; the column STREAM is what was written last. " (plain(&why.to_string()))
            },
            Err(why) => p { "Which manager serves it isn't known. " (plain(&why.to_string())) },
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn companion_row(rule: Option<&str>, state: &str, cause: Option<&str>, message: &str) -> CompanionRow {
        CompanionRow {
            rule: rule.map(str::to_owned),
            state: state.to_owned(),
            cause: cause.map(str::to_owned),
            message: message.to_owned(),
            since: "2026-01-01T00:00:00Z".to_owned(),
            ordering: "Parallel".to_owned(),
        }
    }

    fn workload(name: &str, companions: Vec<CompanionRow>) -> WorkloadRow {
        WorkloadRow {
            namespace: "shop".to_owned(),
            name: name.to_owned(),
            node: None,
            ready: true,
            companions,
            more_companions: 0,
        }
    }

    fn page(workloads: Vec<WorkloadRow>, next: Option<&str>) -> Page {
        let (tenant, replica) = ("blue".to_owned(), "manager-1".to_owned());
        Page { tenant, replica, known: 7, workloads, next: next.map(str::to_owned) }
    }

    #[test]
    fn workloads_with_and_without_companions_are_shown_with_a_shape_and_a_word() {
        let all = vec![
            workload("web", vec![companion_row(Some("firewall"), "Ready", None, "")]),
            workload(
                "db",
                vec![companion_row(Some("probe"), "NoDPU", Some("NoDPU"), "no DPU for host host-b")],
            ),
            workload("job", vec![companion_row(None, "Pending", Some("Starting"), "")]),
            workload("idle", Vec::new()),
        ];
        let html = rows(&Query::of_tenant("blue"), "blue", &Ok(page(all, None))).into_string();
        for shown in [
            "Manager manager-1 knows 7.",
            "4 on this page",
            "/chain?tenant=blue&amp;workload=shop%2Fidle",
            "none: no rule matches",
            "■</span> NoDPU</span>, rule probe",
            "no DPU for host host-b",
            "▲</span> Pending</span>: Starting, rule of the platform",
            Cause::Starting.meaning(),
            "●</span> Ready</span>, rule firewall",
        ] {
            assert!(html.contains(shown), "{shown}: {html}");
        }
        assert!(!html.contains("Pages"), "one page has no links to others: {html}");
    }

    #[test]
    fn pages_are_linked_with_the_filters_and_an_empty_one_says_that_there_are_more() {
        let query = Query { text: "web".into(), after: "a-1".into(), ..Query::of_tenant("blue") };
        let html = rows(&query, "blue", &Ok(page(Vec::new(), Some("b-2")))).into_string();
        for shown in [
            "href=\"/workloads?text=web&amp;tenant=blue\">First page",
            "href=\"/workloads?text=web&amp;tenant=blue&amp;continue=b-2\">Next",
            "there are more",
        ] {
            assert!(html.contains(shown), "{shown}: {html}");
        }
        let last = rows(&query, "blue", &Ok(page(Vec::new(), None))).into_string();
        assert!(last.contains("First page") && !last.contains("Next") && !last.contains("more"), "{last}");
    }

    #[test]
    fn a_tenant_without_a_manager_is_not_served_and_one_that_may_not_be_asked_about_is_not_known() {
        let of = |answer| served(&answer).into_string();
        assert!(of(Ok(page(Vec::new(), None))).contains("served</span> by manager manager-1"));
        let place = "https://m:1".to_owned();
        let away = of(Err(Failure::Unreachable { place, why: vec!["refused".to_owned()] }));
        assert!(
            away.contains("no manager answers") && away.contains("can't be reached at https://m:1"),
            "{away}"
        );
        let messages = vec!["m-2 serves it".to_owned()];
        let elsewhere = of(Err(Failure::Unserved { messages, away: Vec::new() }));
        assert!(
            elsewhere.contains("not served</span>") && elsewhere.contains("m-2 serves it"),
            "{elsewhere}"
        );
        let forbidden = of(Err(Failure::Refused { message: "may not".to_owned(), away: Vec::new() }));
        assert!(forbidden.contains("isn't known") && !forbidden.contains("class=\"bad\""), "{forbidden}");
    }

    proptest! {
        #[test]
        fn no_text_of_a_manager_becomes_markup(text in "\\PC{0,20}<script>\"'\\PC{0,20}") {
            let mut hostile = workload(&text, vec![companion_row(Some(&text), &text, Some(&text), &text)]);
            hostile.node = Some(text.clone());
            hostile.companions[0].since.clone_from(&text);
            hostile.companions[0].ordering.clone_from(&text);
            let mut page = page(vec![hostile], Some(&text));
            page.replica.clone_from(&text);
            let html = rows(&Query::of_tenant(&text), &text, &Ok(page)).into_string();
            prop_assert!(!html.contains("<script>") && !html.contains("datetime=\"<"), "{}", html);
            let why = Failure::Unserved { messages: vec![text.clone()], away: vec![text.clone()] };
            prop_assert!(!rows(&Query::default(), &text, &Err(why)).into_string().contains("<script>"));
        }
    }
}
