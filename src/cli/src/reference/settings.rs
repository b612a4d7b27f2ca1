//! The settings of the servers beside each other.

use clap::Command;

use super::Page;
use super::cli;
use super::markdown::{cell, code, table};

/// The subcommands that serve.
const SERVERS: [&str; 4] = ["webhook", "manager", "agent", "host"];

/// The page. `command` has been built.
pub(super) fn page(command: &Command) -> Page {
    // Of each setting who has it; what is another thing to another server is another setting.
    let mut rows: Vec<([String; 4], Vec<&str>)> = Vec::new();
    for server in SERVERS {
        let Some(sub) = command.find_subcommand(server) else { continue };
        for arg in cli::arguments(sub) {
            let help = arg.get_help().map(|help| cell(&help.to_string())).unwrap_or_default();
            let about = help.trim_end_matches('.').to_owned();
            let row = [cli::called(arg), cli::environment(arg), cli::default(arg), about];
            match rows.iter_mut().find(|(other, _)| *other == row) {
                Some((_, of)) => of.push(server),
                None => rows.push((row, vec![server])),
            }
        }
    }
    rows.sort();
    let rows: Vec<_> = rows
        .into_iter()
        .map(|([flag, env, default, about], of)| {
            let of = if of.len() == SERVERS.len() { "all".to_owned() } else { of.join(", ") };
            [code(&flag), code(&env), of, code(&default), about]
        })
        .collect();
    let text = format!(
        "All settings of webhook, manager, agent and host, as flags and environment variables; the flag takes precedence. Durations are like \
         `90s`, `5m`, `1h`, `7d`. In the shipped manifests they stand in the Deployments' `args`; with Helm further ones go \
         into `webhook.extraArgs`, `manager.extraArgs` and `agent.extraArgs`. [Command line](cli.md) has the same at length, \
         and [Operation](../operation.md#traces) what the servers read of OpenTelemetry's own variables.\n\n{}",
        table(["flag", "environment", "of", "default", "what"], &rows)
    );
    Page::new(
        "settings",
        "Settings",
        "flags and environment of webhook, manager, agent and host beside each other",
        text,
    )
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// What can't be set in a Pod's environment can't be set by who doesn't write its arguments.
    #[test]
    fn every_setting_of_a_server_has_a_counterpart_in_the_environment() {
        let mut command = crate::command::Cli::command();
        command.build();
        for server in SERVERS {
            let mut count = 0;
            for arg in cli::arguments(command.find_subcommand(server).unwrap()) {
                let (flag, env) = (cli::called(arg), cli::environment(arg));
                assert!(env.starts_with("OUTRIGGER_"), "{server}: {flag}: {env:?}");
                assert!(arg.get_help().is_some(), "{server}: {flag} says nothing");
                count += 1;
            }
            assert!(count > 10, "{server}: {count}");
        }
    }
}
