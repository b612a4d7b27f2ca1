//! Runs a page: one bash from top to bottom, so that a block has what the blocks above it have defined.

use std::fmt::Write;
use std::path::Path;
use std::sync::LazyLock;

use outrigger_tests::page::{Action, Page, Shown, Step};

use regex::Regex;

use crate::docs::environment::Place;

/// Ends what would never end. Nothing is measured by it.
const LIMIT: &str = "600";

/// What scripts begin with. `eventually COMMAND...` is for hidden commands: it tries until the command succeeds.
const PRELUDE: &str = r#"
set -euo pipefail
eventually() {
    local try said=
    for try in $(seq 240); do
        if said=$("$@" 2>&1); then printf '%s\n' "$said"; return; fi
        sleep 0.5
    done
    printf 'not after %s tries: %s: %s\n' "$try" "$*" "$said" >&2
    return 1
}
"#;

/// How what is printed is compared with what a page shows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Comparison {
    /// Byte by byte.
    Exact,
    /// What no two clusters have in common counts as equal: see [`plain`].
    OfClusters,
}

/// Runs a page and returns all that went wrong.
pub(crate) fn page(page: &Page, place: &Place, comparison: Comparison) -> Vec<String> {
    let mut script = format!("{PRELUDE}cd {}\n", quoted(&place.tree));
    for (number, step) in page.steps.iter().enumerate() {
        let file = place.dir.join("steps").join(number.to_string());
        std::fs::write(&file, commands(number, step, place)).unwrap();
        // A here-document without an end is nothing but a warning to bash.
        let syntax = place.command("bash").arg("-n").arg(&file).output().unwrap();
        if !syntax.stderr.is_empty() {
            let words = String::from_utf8_lossy(&syntax.stderr).into_owned();
            return vec![format!("{}:{}: {words}", page.path, step.line)];
        }
        let name = place.dir.join("step");
        let _ = writeln!(script, "echo {number} >{}\n{}", quoted(&name), call(number, step, place));
    }
    // Who ends early, with 0, has not done what comes after.
    let _ = writeln!(script, "echo {} >{}", page.steps.len(), quoted(&place.dir.join("step")));
    let main = place.dir.join("main");
    std::fs::write(&main, script).unwrap();
    let output =
        place.command("timeout").args(["--kill-after=10", LIMIT, "bash"]).arg(&main).output().unwrap();

    let reached = read(&place.dir.join("step")).trim().parse::<usize>().unwrap_or(0);
    let mut failures = Vec::new();
    for (number, step) in page.steps.iter().enumerate().take(reached + 1) {
        if let Action::Show(shown) = &step.action {
            failures.extend(compare(page, number, step.line, shown, place, comparison));
        }
    }
    if let Some(step) = page.steps.get(reached) {
        let said = read(&place.dir.join(format!("out/{reached}")));
        let (code, own) = (output.status, String::from_utf8_lossy(&output.stderr));
        failures.push(format!("{}:{}: {code}\n{}{own}", page.path, step.line, end(&said)));
    }
    failures
}

/// The file of a step.
fn commands(number: usize, step: &Step, place: &Place) -> String {
    match &step.action {
        Action::Run(script) | Action::Hidden(script) => script.clone(),
        Action::Write { file, text } => {
            let content = place.dir.join(format!("steps/{number}.content"));
            std::fs::write(&content, text).unwrap();
            let file = quoted(Path::new(file));
            format!("mkdir -p \"$(dirname {file})\"\ncp {} {file}\n", quoted(&content))
        }
        Action::Apply(objects) => {
            let file = place.dir.join(format!("steps/{number}.yaml"));
            std::fs::write(&file, objects).unwrap();
            let file = quoted(&file);
            format!("kubectl apply --server-side --force-conflicts --dry-run=server -f {file}\n")
        }
        // What fails shows so in what it prints.
        Action::Show(shown) => {
            let mut script = "set +e\n".to_owned();
            for (i, one) in shown.iter().enumerate() {
                let out = quoted(&place.dir.join(format!("out/{number}.{i}")));
                let _ = writeln!(script, "exec >{out} 2>&1\n{}", one.command);
            }
            script + "set -e\n"
        }
    }
}

/// What the script does for a step.
fn call(number: usize, step: &Step, place: &Place) -> String {
    let file = quoted(&place.dir.join(format!("steps/{number}")));
    let out = quoted(&place.dir.join(format!("out/{number}")));
    let Some(words) = &step.refused else { return format!("exec >{out} 2>&1\n. {file}") };
    let words = shlex::try_quote(words).unwrap().into_owned();
    format!(
        "exec >{out} 2>&1\nset +e\n( set -e; . {file} )\ncode=$?\nset -e\n\
         if [ $code = 0 ]; then echo 'this should have been refused'; exit 1; fi\n\
         grep -qF -e {words} {out} || {{ echo 'this should have been refused with:' {words}; exit 1; }}"
    )
}

fn compare(
    page: &Page,
    number: usize,
    line: usize,
    shown: &[Shown],
    place: &Place,
    comparison: Comparison,
) -> Vec<String> {
    let mut failures = Vec::new();
    for (i, one) in shown.iter().enumerate() {
        let file = place.dir.join(format!("out/{number}.{i}"));
        let got = read(&file);
        let same = match comparison {
            Comparison::Exact => got == one.output,
            Comparison::OfClusters => plain(&got) == plain(&one.output),
        };
        if !same {
            let (path, command) = (&page.path, &one.command);
            failures.push(format!(
                "{path}:{line}: $ {command}\n--- the page\n{}--- the command\n{got}",
                one.output
            ));
        }
    }
    failures
}

/// A text without what two clusters never have in common: ages, times, uids, ports on loopback. Lines that have one lose
/// their columns' widths too.
pub(crate) fn plain(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().map(stand_in).collect();
        if words.iter().zip(line.split_whitespace()).all(|(plain, word)| plain == &word) {
            out.push_str(line);
        } else {
            out.push_str(&words.join(" "));
        }
        out.push('\n');
    }
    out
}

/// What stands for a word that is never the same.
fn stand_in(word: &str) -> &str {
    static SHAPES: LazyLock<[(Regex, &str); 4]> = LazyLock::new(|| {
        [
            (r"[[:xdigit:]]{8}(-[[:xdigit:]]{4}){3}-[[:xdigit:]]{12}", "<uid>"),
            (r"\d{4}-.{5}T.{8,}Z", "<time>"),
            // As kubectl writes them: 45s, 3m2s, 2d.
            (r"(\d+[smhdy])+", "<age>"),
            (r".*127\.0\.0\.1:\d+(/.*)?", "<loopback>"),
        ]
        .map(|(shape, word)| (Regex::new(&format!("^(?:{shape})$")).unwrap(), word))
    });
    let bare = word.trim_matches(|c: char| "\"'(),;".contains(c));
    SHAPES.iter().find(|(shape, _)| shape.is_match(bare)).map_or(word, |(_, stands)| stands)
}

fn read(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
}

/// The end of what was said, where it tells what went wrong.
fn end(said: &str) -> String {
    let lines: Vec<&str> = said.lines().collect();
    let from = lines.len().saturating_sub(20);
    lines.iter().skip(from).fold(String::new(), |all, line| all + line + "\n")
}

fn quoted(path: &Path) -> String {
    shlex::try_quote(path.to_str().unwrap()).unwrap().into_owned()
}
