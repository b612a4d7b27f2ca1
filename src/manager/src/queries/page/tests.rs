use std::collections::BTreeSet;

use outrigger_core::ids::WorkloadId;
use outrigger_runtime::environment::Environment;
use outrigger_runtime::fake_api::FakeApi;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::fixtures;

/// A replica that serves the tenant `blue`, whose rule `r` matches all workloads.
struct World {
    pages: Pages,
    state: Arc<TenantState>,
}

fn blue() -> TenantId {
    TenantId::new("blue").unwrap()
}

fn ask(limit: usize) -> Ask {
    Ask { limit, ..Ask::read("").unwrap() }
}

impl World {
    fn of(rules: &[Value], ids: &[String]) -> Self {
        let context = fixtures::context(FakeApi::default().client());
        let state = fixtures::served_tenant(&context);
        let touched = {
            let mut data = state.lock();
            for rule in rules {
                data.apply_rule(&fixtures::object(rule.clone()));
            }
            data.outcomes.complete = data.stream.number();
            data.index.sync(ids.iter().map(|id| fixtures::workload(id)).collect())
        };
        context.companions_touched(&state, touched);
        Self { pages: Pages::new(Environment::system().clock), state }
    }

    fn ids(&self, count: usize) -> Vec<String> {
        self.all(&ask(count)).into_iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect()
    }

    fn page(&self, ask: &Ask) -> Option<(Vec<Value>, Option<String>)> {
        let answer = self.pages.page(&self.state, &blue(), "me", ask, Timestamp::UNIX_EPOCH)?;
        let answer = serde_json::to_value(answer).unwrap();
        let next = answer["continue"].as_str().map(str::to_owned);
        Some((answer["workloads"].as_array().unwrap().clone(), next))
    }

    /// The workloads of all pages.
    fn all(&self, ask: &Ask) -> Vec<Value> {
        let (mut ask, mut all) = (ask.clone(), Vec::new());
        loop {
            let (rows, next) = self.page(&ask).unwrap();
            all.extend(rows);
            let Some(next) = next else { return all };
            ask.after = Some(next);
        }
    }
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("w-{n:05}")).collect()
}

#[tokio::test(start_paused = true)]
async fn a_row_says_which_rules_match_and_how_the_companions_are() {
    let world = World::of(&[fixtures::rule()], &names(1));
    let (rows, next) = world.page(&ask(1)).unwrap();
    assert_eq!(next, None, "there are no more");
    let companion = json!({"rule": "r", "state": "Pending", "cause": "Pending",
        "message": Cause::Pending.message(), "since": rows[0]["companions"][0]["since"], "ordering": "Parallel"});
    let expected = json!([{"id": "w-00000", "namespace": "ns", "name": "web", "ready": true,
        "companions": [companion]}]);
    assert_eq!(json!(rows), expected);
}

#[tokio::test(start_paused = true)]
async fn a_workload_that_no_rule_matches_is_reported_without_companions() {
    let world = World::of(&[], &names(1));
    assert_eq!(world.page(&ask(1)).unwrap().0[0]["companions"], json!([]));
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_does_not_know_the_workloads_says_nothing() {
    let world = World::of(&[], &names(1));
    assert!(world.page(&ask(1)).is_some());
    world.state.lock().outcomes.complete = 0;
    assert!(world.page(&ask(1)).is_none(), "although its label values are still kept");
    {
        let mut data = world.state.lock();
        data.outcomes.complete = data.stream.number();
    }
    let other = TenantId::new("red").unwrap();
    let page = world.pages.page(&world.state, &other, "me", &ask(1), Timestamp::UNIX_EPOCH);
    assert!(page.is_none(), "the namespace is another tenant's");
}

#[tokio::test(start_paused = true)]
async fn filters_hold_for_all_pages_and_a_page_looks_up_so_many_workloads_at_most() {
    let world = World::of(&[fixtures::rule()], &names(LOOKED + CHUNK + 1));
    let of = |text: &str, cause: Option<Cause>| Ask { text: text.into(), cause, ..ask(500) };
    let (rows, next) = world.page(&of("nothing", None)).unwrap();
    assert_eq!((rows.len(), next), (0, Some(format!("w-{:05}", LOOKED - 1))), "a page without rows goes on");
    assert_eq!(world.all(&of("ns/we", None)).len(), LOOKED + CHUNK + 1);
    assert_eq!(world.all(&of("", Some(Cause::Pending))).len(), LOOKED + CHUNK + 1);
    assert_eq!(world.all(&of("", Some(Cause::NoDpu))).len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_page_ends_at_so_many_bytes_and_a_workload_has_so_many_companions() {
    let rules: Vec<Value> = (0..COMPANIONS + 2)
        .map(|n| {
            let mut rule = fixtures::rule();
            rule["metadata"]["name"] = json!(format!("{n}-{}", "r".repeat(200)));
            rule
        })
        .collect();
    let world = World::of(&rules, &names(200));
    let (rows, next) = world.page(&ask(500)).unwrap();
    let row = &rows[0];
    assert_eq!(
        (row["companions"].as_array().unwrap().len(), &row["moreCompanions"]),
        (COMPANIONS, &json!(2))
    );
    let bytes: usize = rows.iter().map(|row| row.to_string().len()).sum();
    assert!(next.is_some() && bytes < BYTES + (64 << 10), "{bytes} bytes");
    assert_eq!(world.ids(500), names(200));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn what_exists_all_the_time_is_on_exactly_one_page(
        count in 0..60usize,
        limit in 1..20usize,
        changes in prop::collection::vec((any::<bool>(), 0..200usize, 0..3000u64), 0..40),
    ) {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            // Even numbers exist all the time, odd ones come and go between the pages.
            let steady: Vec<String> = (0..count).map(|n| format!("w-{:05}", 2 * n)).collect();
            let world = World::of(&[fixtures::rule()], &steady);
            let mut changes = changes.into_iter();
            let (mut ask, mut seen) = (ask(limit), Vec::new());
            loop {
                let (rows, next) = world.page(&ask).unwrap();
                prop_assert!(rows.len() <= limit);
                seen.extend(rows.iter().map(|row| row["id"].as_str().unwrap().to_owned()));
                let Some(next) = next else { break };
                ask.after = Some(next);
                for (add, n, wait) in changes.by_ref().take(4) {
                    let id = format!("w-{:05}", 2 * n + 1);
                    if add {
                        world.state.lock().index.update(fixtures::workload(&id));
                    } else {
                        world.state.lock().index.delete(&WorkloadId::new(&id).unwrap());
                    }
                    tokio::time::advance(Duration::from_millis(wait)).await;
                }
            }
            prop_assert!(seen.is_sorted(), "{seen:?}");
            let once: BTreeSet<&String> = seen.iter().collect();
            prop_assert_eq!(once.len(), seen.len());
            prop_assert!(steady.iter().all(|id| once.contains(id)), "{:?}", seen);
            Ok(())
        })?;
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_workload_is_reported_after_a_second_and_the_label_values_of_few_tenants_are_kept() {
    let world = World::of(&[fixtures::rule()], &names(1));
    assert_eq!(world.ids(10), names(1));
    world.state.lock().index.update(fixtures::workload("w-00001"));
    assert_eq!(world.ids(10), names(1));
    tokio::time::advance(FRESH).await;
    assert_eq!(world.ids(10), names(2));
    for n in 0..2 * KEPT {
        let now = world.pages.clock.now();
        world.pages.kept.lock().entry(format!("n{n}").into()).or_insert((now, Arc::new([])));
    }
    assert_eq!(world.ids(10), names(2));
    tokio::time::advance(FRESH).await;
    assert_eq!(world.ids(10), names(2));
    assert_eq!(world.pages.kept.lock().len(), 1, "those that are no longer used are dropped");
}
