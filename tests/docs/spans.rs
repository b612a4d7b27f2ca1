//! Commands in running text: what only reads is run, what changes something is run as a trial, and of all others it is
//! looked whether they are right. A command without what it is about (`kubectl describe`) is the beginning of one.

use outrigger_tests::page::Span;

use crate::docs::environment::Place;
use crate::docs::words;

/// Verbs of kubectl that read.
const READ: [&str; 2] = ["get", "describe"];
/// Those that read something that isn't an object.
const ALWAYS: [&str; 4] = ["explain", "auth", "kustomize", "api-resources"];
/// Those that can be tried.
const TRIED: [&str; 8] = ["apply", "create", "delete", "label", "annotate", "patch", "scale", "replace"];
/// Flags of kubectl whose value is the next word.
const WITH_VALUE: [&str; 10] =
    ["-n", "--namespace", "-l", "-L", "-o", "-p", "-c", "--field-selector", "--context", "--kubeconfig"];

/// What is wrong with a page's commands.
pub(crate) fn check(path: &str, spans: &[Span], place: &Place) -> Vec<String> {
    let mut failures = Vec::new();
    for span in spans {
        let way = way(&span.command);
        let problems = match way {
            Way::Run(command) => {
                let script = format!("set -euo pipefail; {command}");
                let output = place.command("bash").args(["-c", &script]).output().unwrap();
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                if output.status.success() { Vec::new() } else { vec![said] }
            }
            Way::Look => words::check_script(place, &span.command),
            Way::Beginning => Vec::new(),
        };
        failures
            .extend(problems.iter().map(|words| format!("{path}:{}: {}: {words}", span.line, span.command)));
    }
    failures
}

/// What can be done with a command.
#[derive(Debug, PartialEq, Eq)]
enum Way {
    /// This is run.
    Run(String),
    /// It is looked at.
    Look,
    /// It isn't whole.
    Beginning,
}

fn way(command: &str) -> Way {
    // Dots and pointed brackets stand for what a reader puts there, and so do words in capitals. No shell would read them.
    if command.contains("...") || command.contains('<') {
        return Way::Beginning;
    }
    let commands = words::simple(command);
    let [words] = commands.as_slice() else { return Way::Look };
    let place_holder = |word: &String| word.len() > 1 && word.chars().all(|c| c.is_ascii_uppercase());
    if words.iter().any(place_holder) {
        return Way::Look;
    }
    match words.first().map(String::as_str) {
        Some("kubectl") => kubectl(command, words),
        Some("outrigger") if words.iter().any(|word| word == "help" || word == "--version") => {
            Way::Run(command.to_owned())
        }
        _ => Way::Look,
    }
}

fn kubectl(command: &str, words: &[String]) -> Way {
    let (mut plain, mut about) = (Vec::new(), false);
    let mut rest = words.iter().skip(1);
    while let Some(word) = rest.next() {
        // What it is about may also be in files.
        about |= ["-f", "-k", "--raw", "-R"].contains(&word.as_str());
        if !word.starts_with('-') {
            plain.push(word.as_str());
        } else if WITH_VALUE.contains(&word.as_str()) {
            rest.next();
        }
    }
    let Some((verb, objects)) = plain.split_first() else { return Way::Look };
    about |= !objects.is_empty();
    if ALWAYS.contains(verb) || (READ.contains(verb) && about) {
        return Way::Run(command.to_owned());
    }
    if TRIED.contains(verb) && about {
        return Way::Run(format!("{command} --dry-run=server"));
    }
    // Many verbs need something to be about before they know their flags.
    Way::Look
}

#[test]
fn commands_are_run_as_far_as_they_can_be() {
    let run = |command: &str| Way::Run(command.to_owned());
    for (command, expected) in [
        ("kubectl get pods -n x", run("kubectl get pods -n x")),
        ("kubectl -n x describe pod", run("kubectl -n x describe pod")),
        ("kubectl get --raw /readyz?verbose", run("kubectl get --raw /readyz?verbose")),
        ("kubectl get a -o yaml > a.yaml", run("kubectl get a -o yaml > a.yaml")),
        ("kubectl explain tenant.spec", run("kubectl explain tenant.spec")),
        ("kubectl delete tenant blue", run("kubectl delete tenant blue --dry-run=server")),
        ("kubectl apply -k deploy", run("kubectl apply -k deploy --dry-run=server")),
        ("outrigger help manager", run("outrigger help manager")),
        ("outrigger manager", Way::Look),
        ("kubectl describe", Way::Look),
        ("kubectl get -o wide", Way::Look),
        ("kubectl apply", Way::Look),
        ("kubectl logs -n x y", Way::Look),
        ("kubectl describe pod POD", Way::Look),
        ("kubectl get pods | grep x", Way::Look),
        ("make demo", Way::Look),
        ("kubectl get pod <name>", Way::Beginning),
        ("kubectl get a,b,...", Way::Beginning),
    ] {
        assert_eq!(way(command), expected, "{command}");
    }
}
