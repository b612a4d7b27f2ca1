//! All runs of a scenario.

use std::panic::AssertUnwindSafe;
use std::time::Instant;

use futures::FutureExt;
use futures::future::BoxFuture;
use kube::Client;
use outrigger_tests::normal::Normal;
use outrigger_tests::scenarios::SCENARIOS;

use crate::crash::run::Run;
use crate::crash::scenarios::clean_up;
use crate::crash::selection::{Disturbance, Selection};
use crate::crash::site::{Outcome, Part, Site};

pub(crate) type Steps = for<'a> fn(&'a Run) -> BoxFuture<'a, Result<(), String>>;

struct Matrix {
    name: &'static str,
    part: Part,
    steps: Steps,
    site: &'static Site,
    clients: (Client, Client),
    runs: usize,
}

struct Ran {
    state: Normal,
    outcome: Outcome,
}

/// Runs a scenario undisturbed, and with each disturbance that is chosen.
pub(crate) async fn matrix(name: &'static str, part: Part, steps: Steps) {
    let selection = Selection::of_environment();
    if !selection.concerns(name) {
        return;
    }
    let (_one, site) = Site::alone().await;
    let plane = &site.outrigger.plane;
    let clients = (plane.infra.client().await, plane.tenant.client().await);
    let mut matrix = Matrix { name, part, steps, site, clients, runs: 0 };
    let began = Instant::now();
    let clean = matrix.run(None, None).await.unwrap_or_else(|error| panic!("{name}, undisturbed: {error}"));
    let writes = &clean.outcome.writes;
    println!("{name}: {} writes in {:.1} s", writes.len(), began.elapsed().as_secs_f64());
    for (i, write) in writes.iter().enumerate() {
        println!("  {:>3} {write}", i + 1);
    }
    let turn = SCENARIOS.iter().position(|known| *known == name).expect("the scenario has a turn");
    let watches = site.proxied(part).watches();
    let mut failed = Vec::new();
    for disturbance in selection.disturbances(writes.len(), &watches, turn) {
        let began = Instant::now();
        let ran = matrix.run(Some(&disturbance), Some(&clean.state)).await;
        let seconds = began.elapsed().as_secs_f64();
        let result = match (&disturbance, ran) {
            (_, Err(error)) => {
                failed.push(format!("OUTRIGGER_CRASH={name}:{disturbance}"));
                format!("FAILED: {error}\n  to repeat it: OUTRIGGER_CRASH={name}:{disturbance}")
            }
            (Disturbance::Kill { .. }, Ok(Ran { outcome, .. })) => match outcome.killed {
                Some(write) => format!("{write}: ok"),
                None => format!("ok, but this run had only {} writes", outcome.writes.len()),
            },
            (Disturbance::Freeze { .. }, Ok(_)) => "ok".to_owned(),
        };
        println!("{name} {disturbance} ({seconds:.1} s) {result}");
    }
    println!("{name}: {} runs in {:.1} s", matrix.runs, began.elapsed().as_secs_f64());
    assert!(failed.is_empty(), "{failed:#?}");
}

impl Matrix {
    /// One run from its beginning to its end. Without a state that is wanted, it ends when nothing changes.
    async fn run(
        &mut self,
        disturbance: Option<&Disturbance>,
        wanted: Option<&Normal>,
    ) -> Result<Ran, String> {
        self.runs += 1;
        let turn = SCENARIOS.iter().position(|name| *name == self.name).unwrap_or_default();
        // No name is part of another.
        let id = format!("cr{}x{:03}", char::from(b'a' + u8::try_from(turn).unwrap_or_default()), self.runs);
        let run = Run::new(self.site, self.part, self.clients.clone(), id, disturbance.cloned()).await?;
        let ran = AssertUnwindSafe(self.steps_of(&run, wanted)).catch_unwind().await;
        let outcome = run.disarm();
        clean_up(&run).await;
        let state = ran.map_err(|panic| words(&panic))?;
        let killed =
            outcome.killed.as_deref().map_or(String::new(), |write| format!(" (killed at: {write})"));
        Ok(Ran { state: state.map_err(|error| format!("{error}{killed}"))?, outcome })
    }

    async fn steps_of(&self, run: &Run, wanted: Option<&Normal>) -> Result<Normal, String> {
        let steps = (self.steps)(run).await;
        run.thaw();
        // Violations on the way are reported even where the run didn't reach its end.
        let ended = match (steps, wanted) {
            (Err(error), _) => Err(error),
            (Ok(()), Some(wanted)) => run.becomes(wanted).await.map(|()| Normal::new()),
            (Ok(()), None) => run.settled().await,
        };
        let violations = run.violations().await?;
        if violations.is_empty() {
            return ended;
        }
        let mut all = violations;
        all.extend(ended.err());
        Err(all.join("\n    "))
    }
}

/// What a panic said.
fn words(panic: &Box<dyn std::any::Any + Send>) -> String {
    panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|&words| words.to_owned()))
        .unwrap_or_else(|| "it panicked".to_owned())
}
