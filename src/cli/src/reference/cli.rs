//! The command line, from what parses it.

use clap::builder::StyledStr;
use clap::{Arg, Command};

use super::Page;
use super::markdown::{cell, code, table};

/// The page. `command` has been built.
pub(super) fn page(command: &Command) -> Page {
    let mut text = command.get_long_about().map_or_else(String::new, |about| format!("{about}\n\n"));
    text += "`outrigger <COMMAND> --help` prints the same. Settings with an environment variable may be set there; the command line takes precedence.\n";
    for (name, sub) in all(command, "outrigger") {
        text += &format!("\n## {name}\n\n");
        let about = sub.get_long_about().or_else(|| sub.get_about()).map(ToString::to_string);
        text += &format!("{}\n\n", about.unwrap_or_default());
        let usage = sub.clone().render_usage().to_string();
        text += &format!("```text\n{usage}\n```\n\n");
        let rows: Vec<_> = arguments(sub).map(row).collect();
        text += &table(["argument", "environment", "default", "meaning"], &rows);
    }
    Page::new("cli", "Command line", "every subcommand and every flag", text)
}

/// Each subcommand that is for users, with its whole name, before those below it.
fn all<'a>(command: &'a Command, name: &str) -> Vec<(String, &'a Command)> {
    let named = |sub: &'a Command| {
        let name = format!("{name} {}", sub.get_name());
        let below = all(sub, &name);
        std::iter::once((name, sub)).chain(below)
    };
    commands(command).flat_map(named).collect()
}

/// The subcommands that are for users.
pub(super) fn commands(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|sub| !sub.is_hide_set())
}

/// The arguments that are a subcommand's own.
pub(super) fn arguments(command: &Command) -> impl Iterator<Item = &Arg> {
    command
        .get_arguments()
        .filter(|arg| !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str()))
}

/// What an argument is called on the command line, with its value.
pub(super) fn called(arg: &Arg) -> String {
    let value = || {
        let names: Vec<&str> =
            arg.get_value_names().unwrap_or_default().iter().map(|name| name.as_str()).collect();
        names.join(" ")
    };
    let long = arg.get_long().map(|long| format!("--{long}"));
    let short = arg.get_short().map(|short| format!("-{short}"));
    let flags: Vec<String> = short.into_iter().chain(long).collect();
    if flags.is_empty() {
        return value();
    }
    let flags = flags.join(", ");
    if arg.get_action().takes_values() { format!("{flags} {}", value()) } else { flags }
}

pub(super) fn environment(arg: &Arg) -> String {
    arg.get_env().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

pub(super) fn default(arg: &Arg) -> String {
    if !arg.get_action().takes_values() {
        return String::new();
    }
    let values: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    values.join(",")
}

/// The values that it takes, where these are some.
pub(super) fn values(arg: &Arg) -> String {
    // Those of a switch go without saying.
    let values: Vec<_> = arg.get_possible_values().into_iter().filter(|value| !value.is_hide_set()).collect();
    if !arg.get_action().takes_values()
        || values.is_empty()
        || values.iter().all(|v| ["true", "false"].contains(&v.get_name()))
    {
        return String::new();
    }
    let listed = values.iter().map(|value| {
        let help = value.get_help().map(|help| format!(" ({})", plain(help).trim_end_matches('.')));
        format!("{}{}", code(value.get_name()), help.unwrap_or_default())
    });
    format!(" One of {}.", listed.collect::<Vec<_>>().join(", "))
}

fn plain(help: &StyledStr) -> String {
    cell(&help.to_string())
}

fn row(arg: &Arg) -> [String; 4] {
    let help = arg.get_long_help().or_else(|| arg.get_help()).map(plain).unwrap_or_default();
    let dot = if help.is_empty() || help.ends_with(['.', ')', ':']) { "" } else { "." };
    let mut about = format!("{help}{dot}{}", values(arg));
    if arg.is_required_set() {
        about += " Required.";
    }
    [code(&called(arg)), code(&environment(arg)), code(&default(arg)), about]
}
