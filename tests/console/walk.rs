//! A walk through every page that a user of one tenant can reach, which finds nothing of another tenant.

use std::collections::{BTreeSet, VecDeque};

use kube::ResourceExt;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::tenant::{Tenant, rule_for};
use serde_json::{Value, json};

use crate::console::stage::{Console, flag};

/// A tenant, and what nobody else may learn of it.
struct Walker {
    t: Tenant,
    /// Names that an administrator's console shows.
    names: BTreeSet<String>,
    /// Names, uids and labels: all of it.
    secrets: BTreeSet<String>,
}

impl Walker {
    async fn new(o: &'static Outrigger, id: &str) -> Self {
        let t = Tenant::new(o, id, &[("host-a", 1), ("host-b", 0)]).await;
        let (rule, label) = (format!("rule-of-{id}"), format!("label-of-{id}"));
        let mut spec = rule_for("app", "web");
        spec["template"]["metadata"]["labels"]["team"] = json!(label);
        t.rule(&rule, spec).await;
        let labels = json!({"app": "web", "team": label});
        let mut pods = Vec::new();
        for (name, host) in [("first", "host-a"), ("second", "host-b")] {
            pods.push(t.start(&format!("{name}-of-{id}"), host, labels.clone()).await);
        }
        t.has("there are companions", 2, 2, |_| true).await;
        pods.extend(t.companions().await.unwrap());
        let mut names: BTreeSet<String> = pods.iter().map(ResourceExt::name_any).collect();
        names.extend([rule, t.node("host-a"), t.node("host-b"), t.node("host-a-dpu1")]);
        let mut secrets = names.clone();
        secrets.extend(pods.iter().filter_map(ResourceExt::uid));
        secrets.insert(label);
        Self { t, names, secrets }
    }

    /// A console with a user's rights in this tenant's namespaces, of both clusters.
    async fn console(&self, more: &[String]) -> Console {
        let (o, id) = (self.t.outrigger, &self.t.id);
        let file = |cluster: &str| o.plane.dir.join(format!("walk-{id}-{cluster}.kubeconfig"));
        let account = format!("walk-{id}");
        let (infra, tenant) = (file("infra"), file("tenant"));
        let of_infra = ["pods", "events", "workloadrules", "resourcequotas", "limitranges"];
        o.plane.infra.reader(&self.t.namespace, &account, &of_infra, &infra).unwrap();
        o.plane
            .tenant
            .reader(&self.t.source, &account, &["pods", "events", "workloadrules"], &tenant)
            .unwrap();
        let own = [flag("kubeconfig", &infra), flag("tenant-kubeconfig", &tenant)];
        Console::with(o, &[&own[..], more].concat()).await
    }

    /// A console with a user's rights in this tenant's namespace of the tenant's cluster alone.
    async fn console_of_workloads(&self) -> Console {
        let (o, id) = (self.t.outrigger, &self.t.id);
        let file = o.plane.dir.join(format!("walk-{id}-alone.kubeconfig"));
        let account = format!("walk-{id}-alone");
        o.plane.tenant.reader(&self.t.source, &account, &["pods", "events", "workloadrules"], &file).unwrap();
        Console::with(o, &[flag("kubeconfig", &file)]).await
    }
}

/// Every view, and what somebody types who looks for this tenant.
fn starts(of: &Walker) -> VecDeque<String> {
    let views =
        ["/", "/missing", "/companions", "/workloads", "/chain", "/hosts", "/tenants", "/rules", "/what-if"];
    let mut all: VecDeque<String> = views.iter().map(|view| (*view).to_owned()).collect();
    let (id, source) = (&of.t.id, &of.t.source);
    for view in &views[1..] {
        all.push_back(format!("{view}?tenant={id}"));
        all.push_back(format!("{view}?text={id}"));
    }
    all.push_back(format!("/chain?tenant={id}&workload={source}/first-of-{id}"));
    all.push_back(format!("/chain?workload={source}/first-of-{id}"));
    // Of the other namespace too, and with another tenant's name.
    all.push_back(format!("/chain?workload={}/first-of-{id}", of.t.namespace));
    all.extend(["/events", "/console.js", "/console.css", "/unknown"].map(str::to_owned));
    all
}

/// Opens every page that links lead to, and asks for the other tenant on the way. Returns all that the console has sent, by path.
async fn walk(
    console: &Console,
    of: &Walker,
    more: impl IntoIterator<Item = String>,
) -> Vec<(String, String)> {
    let mut next = starts(of);
    next.extend(more);
    let mut seen = BTreeSet::new();
    let mut pages = Vec::new();
    while let Some(path) = next.pop_front() {
        if !seen.insert(path.clone()) {
            continue;
        }
        assert!(seen.len() < 500, "the pages have no end: {seen:?}");
        // All of the answer, also what a page doesn't show. Of the stream of events the beginning.
        let script = "
            const stop = new AbortController();
            const answer = await fetch(arguments[0], {signal: stop.signal});
            const headers = JSON.stringify(Array.from(answer.headers));
            if (arguments[0] !== '/events') { return [headers + await answer.text(), answer.ok]; }
            const reader = answer.body.getReader(), event = await reader.read();
            stop.abort();
            return [headers + new TextDecoder().decode(event.value), answer.ok]";
        let script = format!("return (async () => {{ {} }})()", script.replace("arguments[0]", "path"));
        let script = format!("const path = arguments[0]; {script}");
        let answer = console.browser.run_with(&script, &[json!(path)]).await;
        assert_eq!(answer[1] == true, path != "/unknown", "{path}: {answer}");
        let body = answer[0].as_str().unwrap().to_owned();
        let links = "const page = new DOMParser().parseFromString(arguments[0], 'text/html');
            return Array.from(page.querySelectorAll('a[href]')).map((link) => link.getAttribute('href'))
                .filter((link) => link.startsWith('/'))";
        let links = console.browser.run_with(links, &[json!(body)]).await;
        let links = links.as_array().unwrap().iter().filter_map(Value::as_str);
        next.extend(links.filter(|link| is_of_the_two(link)).map(str::to_owned));
        pages.push((path, body));
    }
    // A prediction for the other tenant.
    let rule = outrigger_tests::tenant::rule(&of.t.namespace, "guess", rule_for("app", "web"));
    let send = "return fetch('/what-if', {method: 'POST', body: new URLSearchParams({tenant: arguments[0], rules: arguments[1]})})
        .then((answer) => answer.text())";
    let answer = console.browser.run_with(send, &[json!(of.t.id), json!(rule.to_string())]).await;
    pages.push(("POST /what-if".to_owned(), answer.as_str().unwrap().to_owned()));
    pages
}

/// Whether a link names no tenant and no workload but those of this test. An administrator's pages lead to the chain of each workload
/// with each tenant of the other tests.
fn is_of_the_two(link: &str) -> bool {
    let query = link.split_once('?').map_or("", |(_, query)| query);
    query.split('&').all(|pair| match pair.split_once('=') {
        Some(("tenant", tenant)) => ["north", "south"].contains(&tenant),
        Some(("workload", workload)) => workload.contains("-of-"),
        _ => true,
    })
}

/// What of these words is on pages that weren't asked for it.
fn found<'a>(words: &'a BTreeSet<String>, pages: &[(String, String)]) -> BTreeSet<&'a str> {
    let on = |word: &&String| {
        pages.iter().any(|(path, body)| !path.contains(word.as_str()) && body.contains(word.as_str()))
    };
    words.iter().filter(on).map(String::as_str).collect()
}

#[tokio::test]
async fn a_tenants_user_finds_nothing_of_another_tenant_on_any_page() {
    let o = Outrigger::shared().await;
    let (north, south) = (Walker::new(o, "north").await, Walker::new(o, "south").await);
    let workload_of = |of: &Walker| format!("/chain?workload={}/first-of-{}", of.t.source, of.t.id);
    let consoles = [
        (&north, &south, north.console_of_workloads().await),
        (&north, &south, north.console(&[]).await),
        (&south, &north, south.console(&[format!("--tenant={}", south.t.id)]).await),
        // Whoever names another tenant gets no more.
        (&south, &north, south.console(&[format!("--tenant={}", north.t.id)]).await),
    ];
    for (own, other, console) in &consoles {
        console.browser.shows(&["Not visible:"]).await;
        let pages = walk(console, other, [workload_of(own)]).await;
        assert!(pages.len() > 25, "{}", pages.len());
        assert_eq!(found(&other.secrets, &pages), BTreeSet::new(), "of {} by {}", other.t.id, own.t.id);
    }
    // The control case: each sees its own workload, with the rule.
    for own in [&north, &south] {
        let console = own.console_of_workloads().await;
        let own_label = format!("{}/first-of-{}", own.t.source, own.t.id);
        console.shows(&workload_of(own), &["only rules of", &own_label]).await;
    }
    // An administrator sees both on the same pages.
    let console = Console::of(o).await;
    for of in [&north, &south] {
        console.shows(&format!("/companions?tenant={}", of.t.id), &["2 found"]).await;
        let pages = walk(&console, of, []).await;
        assert_eq!(found(&of.names, &pages), of.names.iter().map(String::as_str).collect());
    }
}
