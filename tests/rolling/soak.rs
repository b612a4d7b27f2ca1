//! An hour of changes in a few minutes: what each process keeps of it.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::{StreamExt, stream};
use outrigger_tests::openmetrics;
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::tenant::{Tenant, rule_for};
use outrigger_tests::{eventually, holds};
use serde_json::json;

use crate::rolling::alone;

/// Changes of an hour in which one workload begins, changes and ends in each second, and how many workloads begin in a second here.
const WORKLOADS: usize = 3_600;
const RATE: usize = 12;
/// After so many workloads the agent of another tenant starts again, and the rule gets another template.
const EVENTS: usize = 360;

/// What a process has at one time.
#[derive(Debug, Clone, Copy)]
struct Kept {
    /// Resident memory in bytes.
    memory: f64,
    files: f64,
    threads: f64,
    tasks: f64,
    /// Keys in the manager's queues, those included that wait for a time.
    keys: f64,
}

impl Kept {
    async fn of(admin: u16) -> Result<Self, String> {
        let families = openmetrics::parse(&Outrigger::metrics_of(admin).await?)?;
        let sum = |family: &str| families.get(family).map(|family| family.sum("", &[]));
        let of = |family: &str| sum(family).ok_or_else(|| format!("there is no {family}"));
        Ok(Self {
            memory: of("process_resident_memory_bytes")?,
            files: of("process_open_fds")?,
            threads: of("process_threads")?,
            tasks: of("outrigger_tasks")?,
            keys: sum("outrigger_queue_keys").unwrap_or_default(),
        })
    }

    /// Why it is more than before.
    fn more(&self, before: &Self) -> Vec<String> {
        let bounds = [
            ("bytes of memory", self.memory, before.memory * 1.25 + f64::from(8 << 20)),
            ("open files", self.files, before.files + 8.0),
            ("threads", self.threads, before.threads + 4.0),
            ("tasks", self.tasks, before.tasks + 8.0),
            ("keys in queues", self.keys, before.keys + 4.0),
        ];
        let more = bounds.iter().filter(|(_, now, most)| now > most);
        more.map(|(what, now, most)| format!("{now} {what}, at most {most} are expected")).collect()
    }
}

/// The processes with their admin ports.
async fn all(processes: &[(String, u16)]) -> Result<BTreeMap<&str, Kept>, String> {
    let mut kept = BTreeMap::new();
    for (name, admin) in processes {
        kept.insert(name.as_str(), Kept::of(*admin).await?);
    }
    Ok(kept)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long"]
async fn no_process_keeps_anything_of_an_hour_of_changes() {
    let (_one, installed) = alone().await;
    let o = &installed.outrigger;
    let t = Tenant::without_agent(o, "soak", &[("a", 1)]).await;
    let agent = t.start_agent_with_admin(&[]);
    t.rule("r", rule_for("app", "web")).await;
    let _other = Tenant::new(o, "soak-other", &[("a", 1)]).await;
    let mut processes = vec![("agent".to_owned(), agent)];
    {
        let replicas = installed.replicas.lock().await;
        let running = replicas.webhook.running.iter().chain(&replicas.manager.running);
        processes.extend(running.map(|replica| (replica.name.clone(), replica.admin)));
    }
    let mut before = None;
    let mut seconds = tokio::time::interval(Duration::from_secs(1));
    for second in 0..WORKLOADS / RATE {
        seconds.tick().await;
        let begun = second * RATE;
        let lives = |i: usize| {
            let t = &t;
            async move {
                let name = format!("w{i}");
                t.web(&name).await;
                t.change(&name, json!({"metadata": {"labels": {"changed": "true"}}})).await;
                // Its companion may be there by now, or be created just when the workload ends.
                tokio::time::sleep(Duration::from_millis((i % 7 * 100) as u64)).await;
                t.end(&name).await;
            }
        };
        stream::iter(begun..begun + RATE).for_each_concurrent(4, lives).await;
        if (begun + RATE).is_multiple_of(EVENTS) {
            let spec = rule_for("app", "web");
            let mut changed = spec.clone();
            changed["template"]["metadata"]["labels"]["round"] = json!(begun.to_string());
            t.rule("r", changed).await;
            o.plane
                .command("term agent-soak-other")
                .and_then(|()| o.plane.command("start agent-soak-other"))
                .unwrap();
            // Of the first hundreds, processes have grown to their working size.
            let kept = rest(&t, &processes).await;
            println!("after {} workloads: {kept:#?}", begun + RATE);
            before.get_or_insert_with(|| {
                kept.into_iter().map(|(name, kept)| (name.to_owned(), kept)).collect::<BTreeMap<_, _>>()
            });
        }
    }
    let before = before.unwrap();
    eventually("each process has what it had after a tenth", || async {
        let now = all(&processes).await?;
        let more: Vec<_> = now
            .iter()
            .map(|(name, kept)| (name, kept.more(&before[*name])))
            .filter(|(_, more)| !more.is_empty())
            .collect();
        holds(more.is_empty(), format!("{more:?}"))
    })
    .await;
}

/// Waits until no companion is left. Returns what each process has then.
async fn rest<'a>(t: &Tenant, processes: &'a [(String, u16)]) -> BTreeMap<&'a str, Kept> {
    eventually("all companions are deleted", || async {
        let left = t.companions().await?;
        holds(left.is_empty(), format!("{} companions", left.len()))
    })
    .await;
    eventually("the processes answer", || all(processes)).await
}
