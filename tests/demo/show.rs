//! What the user sees of a step.

use std::io::Write;
use std::time::Instant;

use anyhow::Context;
use outrigger_tests::control_plane::Cluster;

/// What tells the user.
#[derive(Default)]
pub(crate) struct Show {
    number: usize,
}

impl Show {
    pub(crate) fn line(&self, text: &str) {
        let _ = writeln!(std::io::stdout(), "{text}");
    }

    /// Runs a step: says what is done, and then how long it took.
    pub(crate) async fn step<T>(
        &mut self,
        what: &str,
        step: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        self.number += 1;
        let began = Instant::now();
        self.line(&format!("\n[{}] {what}", self.number));
        let result = step.await.with_context(|| format!("step {}, {what}", self.number))?;
        self.line(&format!("    done in {:.2} s", began.elapsed().as_secs_f64()));
        Ok(result)
    }

    /// Runs kubectl and shows what a user would type and see.
    pub(crate) fn kubectl(&self, cluster: &Cluster, name: &str, args: &[&str]) -> anyhow::Result<()> {
        self.line(&format!("    $ kubectl --context {name} {}", args.join(" ")));
        for line in cluster.kubectl(args)?.lines() {
            self.line(&format!("      {line}"));
        }
        Ok(())
    }
}
