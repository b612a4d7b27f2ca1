//! `outrigger support-bundle`: what a bug report needs, in one archive, redacted and bounded.
//!
//! **In**: a cluster, which is only read, but for the reviews and dry runs of `outrigger check --live`. **Out**: an archive or a directory.
//! `collect` asks the cluster, `redact` removes what isn't for others, `archive` bounds and writes.

mod archive;
mod collect;
mod redact;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use outrigger_runtime::cluster::ClusterArgs;
use outrigger_runtime::environment::Clock;
use outrigger_webhook::settings::AdmissionArgs;

use crate::document::Readable;
use crate::explain::live::wait;
use crate::files::InputError;

#[derive(Debug, Args)]
#[command(after_help = "Example: outrigger support-bundle --context infra --output infra.tar.gz")]
pub(crate) struct BundleArgs {
    /// Archive to write, or directory to create if the name doesn't end in .tar.gz or .tgz. It must not exist.
    #[arg(long, value_name = "FILE", default_value = "outrigger-bundle.tar.gz")]
    output: PathBuf,

    /// Keep values of variables, arguments, annotations and free-form parameters of templates, companions and claims. What looks like a
    /// credential is redacted all the same.
    #[arg(long)]
    include_values: bool,

    /// Namespace of the parts. Without it: the namespace in which one of them is found, else outrigger-system.
    #[arg(long, value_name = "NAMESPACE")]
    system_namespace: Option<String>,

    #[command(flatten)]
    cluster: ClusterArgs,

    #[command(flatten)]
    admission: AdmissionArgs,
}

impl BundleArgs {
    /// Exit code 1: something is missing or cut.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let output = self.output.display();
        if self.output.symlink_metadata().is_ok() {
            let why = "exists already, and isn't overwritten: name another file";
            return Err(InputError::new(format_args!("--output {output}"), why).into());
        }
        let (drafts, redactor) = wait(Box::pin(collect::all(&self)))?;
        let created = Clock::system().wall();
        let (manifest, files) = drafts.finish(redactor, self.include_values, created.to_string())?;
        archive::write(&self.output, &files, created.as_second().try_into().unwrap_or_default())
            .with_context(|| format!("--output {output} can't be written"))?;
        manifest.document().text(&mut anstream::stdout().lock())?;
        outrigger_runtime::telemetry::say(format!("outrigger: wrote {output}; read it before you send it"));
        Ok(if manifest.complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
