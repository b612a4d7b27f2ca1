//! `outrigger webhooks`

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use outrigger_admission::webhooks::configurations;

#[derive(Debug, Args)]
pub(crate) struct WebhooksArgs {
    /// Directory of the files.
    #[arg(long, value_name = "DIR")]
    output_dir: PathBuf,
}

impl WebhooksArgs {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        for (name, text) in configurations() {
            let file = self.output_dir.join(name);
            let dir = file.parent().unwrap_or(&self.output_dir);
            std::fs::create_dir_all(dir).with_context(|| format!("{} can't be created", dir.display()))?;
            std::fs::write(&file, text).with_context(|| format!("{} can't be written", file.display()))?;
        }
        Ok(())
    }
}
