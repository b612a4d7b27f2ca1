//! Runs cargo-mutants and reads what it writes.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use crate::mutant::{Description, Mutant};
use crate::{Shard, root, tree};

/// Where cargo-mutants writes, in its output directory.
const OUTCOMES: &str = "mutants.out/outcomes.json";
const MUTANTS: &str = "mutants.out/mutants.json";
/// The descriptions of the outcomes: the source that they describe is changed later.
const DESCRIBED: &str = "described.json";

/// How cargo-mutants ends after a whole run: all caught, some missed, some timed out.
const WHOLE: [i32; 3] = [0, 2, 3];

/// Builds of a crate take seconds with these, and the tests have the same random inputs in each run.
const ENVIRONMENT: [(&str, &str); 6] = [
    ("CARGO_INCREMENTAL", "1"),
    ("CARGO_PROFILE_DEV_DEBUG", "none"),
    ("PROPTEST_RNG_SEED", "1"),
    // What only one of hundreds of inputs shows needs a test of its own.
    ("PROPTEST_CASES", "64"),
    // An input that makes a test fail isn't kept for the next mutant, nor made smaller.
    ("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true"),
    ("PROPTEST_MAX_SHRINK_ITERS", "0"),
];

/// How the tests ended on a mutant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) enum Summary {
    CaughtMutant,
    MissedMutant,
    Timeout,
    Unviable,
}

/// A mutant and its result.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct Outcome {
    pub(crate) mutant: Description,
    pub(crate) summary: Summary,
}

/// All mutants of a crate.
pub(crate) fn list(package: &str, work_tree: &Path) -> anyhow::Result<Vec<Description>> {
    let output = program(package, work_tree)?.args(["--list", "--json"]).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        bail!("cargo-mutants --list: {}", output.status);
    }
    let mutants: Vec<Mutant> = serde_json::from_slice(&output.stdout)?;
    mutants.iter().map(|mutant| mutant.describe(work_tree)).collect()
}

/// Which of a crate's mutants.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Choice<'a> {
    All,
    /// Those in these files of the work tree, which may have wildcards.
    Files(&'a [String]),
    /// Those with these descriptions, and others in the same function that have the same text.
    Mutants(&'a [Description]),
}

impl Choice<'_> {
    fn arguments(self) -> Vec<String> {
        match self {
            Self::All => Vec::new(),
            Self::Files(files) => files.iter().flat_map(|file| ["--file".to_owned(), file.clone()]).collect(),
            Self::Mutants(mutants) => {
                mutants.iter().flat_map(|mutant| ["--re".to_owned(), mutant.pattern()]).collect()
            }
        }
    }
}

/// A run of the tests on the mutants of a shard.
#[derive(Debug)]
pub(crate) struct Run<'a> {
    pub(crate) package: &'a str,
    pub(crate) shard: Shard,
    pub(crate) choice: Choice<'a>,
    /// Has the copies of the work tree, which nobody else uses, what is built there, and results.
    pub(crate) directory: &'a Path,
}

impl Run<'_> {
    /// Runs as many parts of the shard at once as there are processors: Cargo uses about one for a change of one crate. Each
    /// part has its own copy of `work_tree`.
    pub(crate) fn run(&self, work_tree: &Path) -> anyhow::Result<Vec<Outcome>> {
        let results = self.results();
        // An interrupted run leaves no results.
        let _ = std::fs::remove_dir_all(&results);
        let parts = self.shard.split(std::thread::available_parallelism()?.get());
        let outcomes = std::thread::scope(|scope| {
            let started = parts.iter().enumerate().map(|(number, part)| {
                let name = (number + 1).to_string();
                scope.spawn(move || self.run_part(*part, &name, work_tree))
            });
            let started: Vec<_> = started.collect();
            // A panic of a part is one of the run.
            let ended =
                started.into_iter().map(|part| part.join().unwrap_or_else(|e| std::panic::resume_unwind(e)));
            ended.collect::<anyhow::Result<Vec<Vec<Outcome>>>>()
        })?
        .concat();
        write(&results, &outcomes)?;
        Ok(outcomes)
    }

    fn run_part(&self, part: Shard, name: &str, work_tree: &Path) -> anyhow::Result<Vec<Outcome>> {
        let (own, results) = (self.directory.join(name), self.results().join(name));
        let tree = own.join("tree");
        tree::copy(work_tree, &tree)?;
        std::fs::create_dir_all(&results).with_context(|| results.display().to_string())?;
        let mut command = program(self.package, &tree)?;
        command.arg("--in-place").arg("--output").arg(&results);
        command.arg("--shard").arg(format!("{}/{}", part.index - 1, part.count));
        command.args(self.choice.arguments());
        let status = command.envs(ENVIRONMENT).env("CARGO_TARGET_DIR", own.join("build")).status()?;
        if !status.code().is_some_and(|code| WHOLE.contains(&code)) {
            bail!("cargo-mutants: {status}; logs: {}", results.display());
        }
        described(&results, &tree)
    }

    /// Where its results are. Those of chosen mutants are no part of the crate's figures.
    fn results(&self) -> PathBuf {
        let Shard { index, count } = self.shard;
        match self.choice {
            Choice::All => {
                self.directory.join("results").join(format!("{}-{index}-of-{count}", self.package))
            }
            Choice::Files(_) | Choice::Mutants(_) => self.directory.join("chosen"),
        }
    }
}

/// The results of a crate's shards. Those of interrupted runs are left out.
pub(crate) fn all_results(directory: &Path, package: &str) -> anyhow::Result<Vec<PathBuf>> {
    let results = directory.join("results");
    let entries =
        std::fs::read_dir(&results).with_context(|| format!("{}: no shard was run", results.display()))?;
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let mine = name.is_some_and(|name| name.starts_with(&format!("{package}-")));
        if mine && path.join(DESCRIBED).exists() {
            found.push(path);
        }
    }
    Ok(found)
}

/// The outcomes of an earlier run.
pub(crate) fn read(results: &Path) -> anyhow::Result<Vec<Outcome>> {
    parse(&results.join(DESCRIBED))
}

/// The mutants that survived in earlier runs of shards.
pub(crate) fn survivors(results: &[PathBuf]) -> anyhow::Result<Vec<Description>> {
    let mut survivors = Vec::new();
    for shard in results {
        let missed = read(shard)?.into_iter().filter(|outcome| outcome.summary == Summary::MissedMutant);
        survivors.extend(missed.map(|outcome| outcome.mutant));
    }
    Ok(survivors)
}

/// Puts new outcomes of survivors into the results of the shards. Of several mutants with the same description all have to be
/// caught. What has no new outcome is gone from the code, and left out.
pub(crate) fn replace(results: &[PathBuf], new: &[Outcome]) -> anyhow::Result<()> {
    for shard in results {
        let mut outcomes = read(shard)?;
        outcomes.retain_mut(|outcome| {
            if outcome.summary != Summary::MissedMutant {
                return true;
            }
            let same = new.iter().filter(|new| new.mutant == outcome.mutant).map(|new| new.summary);
            // The first that survived again, or any.
            let now = same.min_by_key(|summary| *summary != Summary::MissedMutant);
            outcome.summary = now.unwrap_or(outcome.summary);
            now.is_some()
        });
        write(shard, &outcomes)?;
    }
    Ok(())
}

fn write(results: &Path, outcomes: &[Outcome]) -> anyhow::Result<()> {
    let path = results.join(DESCRIBED);
    std::fs::write(&path, serde_json::to_vec_pretty(outcomes)?).with_context(|| path.display().to_string())
}

/// cargo-mutants for a crate of a work tree.
fn program(package: &str, work_tree: &Path) -> anyhow::Result<Command> {
    let build = root()?.join("tests/mutants/build.sh");
    let output = Command::new(&build).stderr(Stdio::inherit()).output().context("tests/mutants/build.sh")?;
    if !output.status.success() {
        bail!("{}: {}", build.display(), output.status);
    }
    let mut command = Command::new(PathBuf::from(String::from_utf8(output.stdout)?.trim()));
    command.args(["mutants", "--colors", "never", "--package", &format!("outrigger-{package}")]);
    command.arg("--dir").arg(work_tree).arg("--config").arg(work_tree.join("tests/mutants/mutants.toml"));
    Ok(command)
}

#[derive(Debug, Deserialize)]
struct Outcomes {
    outcomes: Vec<RawOutcome>,
}

#[derive(Debug, Deserialize)]
struct RawOutcome {
    scenario: Scenario,
    summary: String,
}

#[derive(Debug, Deserialize)]
enum Scenario {
    /// The run without a change.
    Baseline,
    Mutant(Mutant),
}

fn described(results: &Path, tree: &Path) -> anyhow::Result<Vec<Outcome>> {
    let mutants: Vec<Mutant> = parse(&results.join(MUTANTS))?;
    if mutants.is_empty() {
        return Ok(Vec::new());
    }
    let Outcomes { outcomes } = parse(&results.join(OUTCOMES))?;
    let mut described = Vec::new();
    for RawOutcome { scenario, summary } in outcomes {
        if let Scenario::Mutant(mutant) = scenario {
            let summary = serde_json::from_value(summary.into()).context("summary")?;
            described.push(Outcome { mutant: mutant.describe(tree)?, summary });
        }
    }
    if described.len() != mutants.len() {
        bail!("{} of {} mutants have an outcome", described.len(), mutants.len());
    }
    Ok(described)
}

fn parse<T: serde::de::DeserializeOwned>(path: &Path) -> anyhow::Result<T> {
    let text = std::fs::read(path).with_context(|| path.display().to_string())?;
    serde_json::from_slice(&text).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::mutant::tests::work_tree;

    fn results(outcomes: &Value, mutants: &Value) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("mutants.out")).unwrap();
        std::fs::write(dir.path().join(OUTCOMES), json!({"outcomes": outcomes}).to_string()).unwrap();
        std::fs::write(dir.path().join(MUTANTS), mutants.to_string()).unwrap();
        dir
    }

    #[test]
    fn every_mutant_needs_an_outcome() {
        let tree = work_tree(0);
        let mutant = json!({"name": "src/x.rs:1:7: replace < with > in f", "file": "src/x.rs", "replacement": ">",
            "genre": "BinaryOperator", "span": {"start": {"line": 1, "column": 7}, "end": {"line": 1, "column": 8}}});
        let outcomes = json!([{"scenario": "Baseline", "summary": "Success"},
            {"scenario": {"Mutant": mutant}, "summary": "MissedMutant"}]);
        let whole = described(results(&outcomes, &json!([mutant])).path(), tree.path()).unwrap();
        let becomes = whole[0].mutant.becomes.as_deref();
        assert_eq!(
            (whole.len(), whole[0].summary, becomes),
            (1, Summary::MissedMutant, Some("a > b && é < c"))
        );

        let interrupted = results(&outcomes, &json!([mutant, mutant]));
        let error = described(interrupted.path(), tree.path()).unwrap_err();
        assert_eq!(error.to_string(), "1 of 2 mutants have an outcome");
    }

    #[test]
    fn results_are_those_of_whole_runs_of_shards() {
        let dir = tempfile::tempdir().unwrap();
        let results = |package, index, choice| {
            let run = Run { package, shard: Shard { index, count: 4 }, choice, directory: dir.path() };
            std::fs::create_dir_all(run.results()).unwrap();
            run.results()
        };
        let whole = results("core", 2, Choice::All);
        let others = [results("core", 2, Choice::Files(&[])), results("admission", 2, Choice::All)];
        for path in others.iter().chain([&whole]) {
            std::fs::write(path.join(DESCRIBED), "[]").unwrap();
        }
        results("core", 3, Choice::All);
        let found = all_results(dir.path(), "core").unwrap();
        assert_eq!(found, [whole]);
        assert_eq!(read(&found[0]).unwrap(), []);
    }

    #[test]
    fn survivors_have_their_new_outcomes() {
        let mutant = |name: &str| Description { mutant: name.into(), becomes: None };
        let outcome = |name, summary| Outcome { mutant: mutant(name), summary };
        let (missed, caught) = (Summary::MissedMutant, Summary::CaughtMutant);
        let dir = tempfile::tempdir().unwrap();
        let results = [dir.path().to_owned()];
        let all = ["twice", "twice", "once", "old", "caught"].map(|name| outcome(name, missed));
        write(dir.path(), &[&all[..4], &[outcome("caught", caught)]].concat()).unwrap();
        assert_eq!(survivors(&results).unwrap(), ["twice", "twice", "once", "old"].map(mutant));

        let new = [outcome("twice", caught), outcome("twice", missed), outcome("once", Summary::Timeout)];
        replace(&results, &new).unwrap();
        let once = outcome("once", Summary::Timeout);
        let twice = outcome("twice", missed);
        assert_eq!(read(dir.path()).unwrap(), [twice.clone(), twice, once, outcome("caught", caught)]);
        replace(&results, &new.map(|new| Outcome { summary: caught, ..new })).unwrap();
        assert_eq!(survivors(&results).unwrap(), []);
    }

    #[test]
    fn a_shard_without_mutants_has_no_outcomes() {
        let empty = results(&json!([]), &json!([]));
        assert_eq!(described(empty.path(), work_tree(0).path()).unwrap(), []);
    }
}
