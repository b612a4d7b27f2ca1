//! The program: the names that it is called by, its version, and completion of its command line.

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::builder::StyledStr;
use clap::{Arg, Args, Command, CommandFactory, FromArgMatches};
use clap_complete::Shell;

use crate::command::Cli;

/// The name of the program, whatever its file is called.
pub(crate) const NAME: &str = "outrigger";

/// Version, commit and build, with `FIPS` if that is the build's cryptography. It has no time, so that two builds of a commit are the same.
pub(crate) const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (commit ",
    env!("OUTRIGGER_BUILD_COMMIT"),
    ", ",
    env!("OUTRIGGER_BUILD_PROFILE"),
    " build for ",
    env!("OUTRIGGER_BUILD_TARGET"),
    env!("OUTRIGGER_BUILD_CRYPTOGRAPHY"),
    ")"
);

/// The file name of a plugin of kubectl, and how it is called then.
const PLUGIN: (&str, &str) = ("kubectl-outrigger", "kubectl outrigger");

/// The file name by which kubectl asks for completions of the plugin's command line.
const COMPLETER: &str = "kubectl_complete-outrigger";

/// Runs the program as its file name says. Wrong arguments end the process with exit code 2.
pub(crate) fn main() -> ExitCode {
    outrigger_runtime::admin::set_commit(env!("OUTRIGGER_BUILD_COMMIT"));
    if let Err(error) = outrigger_runtime::tls::install() {
        outrigger_runtime::telemetry::say(format!("outrigger: {error:#}"));
        return ExitCode::FAILURE;
    }
    let file = std::env::args_os().next();
    let file = file.as_deref().map(Path::new).and_then(Path::file_stem).and_then(OsStr::to_str);
    let mut command = Cli::command();
    if file == Some(COMPLETER) {
        let words: Vec<String> =
            std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
        // A shell that has gone away needs no completions.
        let _ = std::io::stdout().write_all(completions(command, &words).as_bytes());
        return ExitCode::SUCCESS;
    }
    if file == Some(PLUGIN.0) {
        command = command.bin_name(PLUGIN.1);
    }
    let parsed = Cli::from_arg_matches_mut(&mut command.clone().get_matches());
    match parsed {
        Ok(cli) => cli.run(),
        Err(error) => error.format(&mut command).exit(),
    }
}

#[derive(Debug, Args)]
pub(crate) struct CompletionArgs {
    /// Shell that is to read it.
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

impl CompletionArgs {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), NAME, &mut script);
        Ok(std::io::stdout().write_all(&script)?)
    }
}

#[derive(Debug, Args)]
pub(crate) struct ManualArgs {
    /// Write the pages into this directory.
    #[arg(long, value_name = "DIR")]
    output_dir: PathBuf,
}

impl ManualArgs {
    /// Writes `outrigger.1`, and `outrigger-<subcommand>.1` for each subcommand that isn't hidden.
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let dir = &self.output_dir;
        // Help says the same as an option of each command.
        let command = Cli::command().disable_help_subcommand(true);
        clap_mangen::generate_to(command, dir).with_context(|| format!("--output-dir: {}", dir.display()))
    }
}

/// The answer to kubectl: a line for each candidate for the last word, and a directive for the shell.
fn completions(mut command: Command, words: &[String]) -> String {
    /// The shell completes names of files.
    const FILES: &str = ":0\n";
    /// It does not.
    const NO_FILES: &str = ":4\n";
    command.build();
    let found = candidates(&command, words);
    let directive = if found.is_empty() { FILES } else { NO_FILES };
    let line = |(word, help): (String, String)| {
        if help.is_empty() { format!("{word}\n") } else { format!("{word}\t{help}\n") }
    };
    found.into_iter().map(line).chain([directive.to_owned()]).collect()
}

/// The subcommands, flags or values that the last word may become, each with its help.
fn candidates(command: &Command, words: &[String]) -> Vec<(String, String)> {
    let Some((partial, before)) = words.split_last() else { return Vec::new() };
    let command = before.iter().fold(command, |at, word| at.find_subcommand(word).unwrap_or(at));
    let help = |text: Option<&StyledStr>| {
        let text = text.map(ToString::to_string).unwrap_or_default();
        text.lines().next().unwrap_or_default().to_owned()
    };
    let flag = |arg: &Arg| arg.get_long().map(|long| format!("--{long}"));
    let values = |arg: &Arg| -> Vec<(String, String)> {
        let shown = arg.get_possible_values().into_iter().filter(|value| !value.is_hide_set());
        shown.map(|value| (value.get_name().to_owned(), help(value.get_help()))).collect()
    };
    let mut all = command.get_arguments().filter(|arg| !arg.is_hide_set());
    let short = |arg: &Arg| arg.get_short().map(|short| format!("-{short}"));
    let is_last = |arg: &Arg| {
        let last = before.last().filter(|_| arg.get_action().takes_values());
        last.is_some_and(|last| flag(arg).as_ref() == Some(last) || short(arg).as_ref() == Some(last))
    };
    let found: Vec<(String, String)> = if partial.starts_with('-') {
        all.filter_map(|arg| Some((flag(arg)?, help(arg.get_help())))).collect()
    } else if let Some(arg) = all.find(|arg| is_last(arg)) {
        values(arg)
    } else if command.has_subcommands() {
        let subcommands = command.get_subcommands().filter(|sub| !sub.is_hide_set());
        subcommands.map(|sub| (sub.get_name().to_owned(), help(sub.get_about()))).collect()
    } else {
        command.get_positionals().flat_map(values).collect()
    };
    found.into_iter().filter(|(word, _)| word.starts_with(partial.as_str())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        let mut command = Cli::command();
        command.build();
        let line: Vec<String> = line.split(' ').map(str::to_owned).collect();
        candidates(&command, &line).into_iter().map(|(word, _)| word).collect()
    }

    #[test]
    fn subcommands_flags_and_values_are_completed() {
        assert_eq!(words("che"), ["check"]);
        assert_eq!(words("ref"), [""; 0], "hidden ones are not for users");
        assert_eq!(words("check --li"), ["--live"]);
        for flag in ["-o", "--output"] {
            assert_eq!(words(&format!("explain {flag} ")), ["text", "json"]);
        }
        assert_eq!(words("completion f"), ["fish"]);
        assert_eq!(words("explain --filename doc"), [""; 0]);
    }

    #[test]
    fn kubectl_gets_help_and_a_directive() {
        let answer = |line: &[&str]| {
            completions(Cli::command(), &line.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(
            answer(&["crd", "--output-d"]),
            "--output-dir\tWrite one file per resource into this directory, named after the resource, and a \
             Kustomization of all of them\n:4\n"
        );
        assert_eq!(answer(&["explain", "--filename", "doc"]), ":0\n", "the shell completes files");
    }
}
