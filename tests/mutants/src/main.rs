//! Mutation testing of the crates that decide: cargo-mutants changes their code in one place at a time, and each change has to
//! make a unit test of the crate fail.
//!
//! A change that no test notices has to be in `accepted.yaml`, with the reason. `mutants list` names the jobs of `make long`,
//! and `mutants table` prints the figures of all shards that were run.
// It is a tool for tests: its words go to the terminal.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod accepted;
mod cargo;
mod mutant;
mod tree;
mod verdict;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::accepted::Accepted;
use crate::cargo::{Choice, Outcome, Run};
use crate::verdict::{Figures, Verdict};

/// How much of a crate's mutants may be accepted, in percent.
const ACCEPTED_AT_MOST: usize = 10;

/// Runs the unit tests on changed code.
#[derive(Debug, Parser)]
#[command(name = "mutants")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Prints the arguments of each job of `make long`, a line each.
    List,
    /// Checks that all accepted mutants exist, and that they are at most a tenth of each crate's.
    Accepted,
    /// Runs the tests on the mutants of a shard, such as `core 2 40`, of some files, or on survivors.
    Run {
        /// The crate.
        #[arg(value_name = "CRATE")]
        package: Package,
        #[command(flatten)]
        shard: Shard,
        /// Only the mutants in these files of the work tree, such as `src/core/src/rule/*.rs`.
        #[arg(long, value_name = "GLOB", conflicts_with = "again")]
        file: Vec<String>,
        /// Only the mutants that survived when the shards were run last, accepted ones included. Their new outcomes replace
        /// those of then, and those whose code is gone are left out.
        #[arg(long)]
        again: bool,
    },
    /// Prints the figures of the shards that were run last.
    Table,
}

/// Part `index` of `count` parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Args)]
struct Shard {
    /// Which shard, from 1.
    #[arg(default_value_t = 1)]
    index: usize,
    /// How many shards there are.
    #[arg(default_value_t = 1)]
    count: usize,
}

impl Shard {
    /// Shards that have its mutants together, and no others: shard `index` has every `count`th mutant from `index` on.
    fn split(self, parts: usize) -> Vec<Self> {
        let count = self.count * parts;
        (0..parts).map(|part| Self { index: self.index + part * self.count, count }).collect()
    }
}

/// A crate whose code is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Package {
    Core,
    Admission,
}

impl Package {
    /// How many jobs of `make long` there are for it: each takes a few minutes on two cores.
    fn shards(self) -> usize {
        match self {
            Self::Core => 40,
            Self::Admission => 20,
        }
    }

    /// Its name in arguments, which is that of its folder in `src`.
    fn name(self) -> &'static str {
        match self {
            Self::Core => "core",
            Self::Admission => "admission",
        }
    }
}

fn main() -> ExitCode {
    match mutants(Arguments::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("mutants: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Runs a command; whether nothing was found.
fn mutants(command: Command) -> anyhow::Result<bool> {
    match command {
        Command::List => {
            jobs().iter().for_each(|job| println!("{job}"));
            Ok(true)
        }
        Command::Accepted => accepted(),
        Command::Run { package, again: true, .. } => again(package),
        Command::Run { package, shard, file, again: false } => run(package, shard, &file),
        Command::Table => table(),
    }
}

fn jobs() -> Vec<String> {
    let shards = |package: Package| {
        let count = package.shards();
        (1..=count).map(move |index| format!("run {} {index} {count}", package.name()))
    };
    let packages = Package::value_variants().iter().copied();
    std::iter::once("accepted".to_owned()).chain(packages.flat_map(shards)).collect()
}

/// The top of the work tree.
fn root() -> anyhow::Result<PathBuf> {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().context("the work tree")
}

/// Where the copies of the work tree are, what is built there, and the results. All of it may be deleted.
fn directory() -> anyhow::Result<PathBuf> {
    Ok(root()?.join("target/mutants"))
}

fn accepted() -> anyhow::Result<bool> {
    let mut list = accepted::read()?;
    let mut fine = true;
    for package in Package::value_variants().iter().copied() {
        let mutants = cargo::list(package.name(), &root()?)?;
        let (mine, others): (Vec<Accepted>, Vec<Accepted>) =
            list.into_iter().partition(|accepted| mutants.iter().any(|mutant| accepted.covers(mutant)));
        list = others;
        let covered = mutants.iter().filter(|mutant| mine.iter().any(|one| one.covers(mutant))).count();
        println!("{}: {covered} of {} mutants are accepted", package.name(), mutants.len());
        if covered * 100 > mutants.len() * ACCEPTED_AT_MOST {
            println!("    these are more than {ACCEPTED_AT_MOST} %: write tests");
            fine = false;
        }
    }
    for outdated in list {
        println!("there is no such mutant, remove it from {}:\n{outdated}", accepted::FILE);
        fine = false;
    }
    Ok(fine)
}

fn run(package: Package, shard: Shard, files: &[String]) -> anyhow::Result<bool> {
    let Shard { index, count } = shard;
    if !(1..=count).contains(&index) {
        bail!("shard {index} of {count}: use one from 1 to {count}");
    }
    let choice = if files.is_empty() { Choice::All } else { Choice::Files(files) };
    let directory = directory()?;
    // Others who want the copies wait until this is dropped.
    let _lock = tree::lock(&directory)?;
    let run = Run { package: package.name(), shard, choice, directory: &directory };
    judge(run.run(&root()?)?)
}

fn again(package: Package) -> anyhow::Result<bool> {
    let directory = directory()?;
    let _lock = tree::lock(&directory)?;
    let results = cargo::all_results(&directory, package.name())?;
    let survivors = cargo::survivors(&results)?;
    if survivors.is_empty() {
        return judge(Vec::new());
    }
    let shard = Shard { index: 1, count: 1 };
    let choice = Choice::Mutants(&survivors);
    let outcomes = Run { package: package.name(), shard, choice, directory: &directory }.run(&root()?)?;
    cargo::replace(&results, &outcomes)?;
    judge(outcomes)
}

fn judge(outcomes: Vec<Outcome>) -> anyhow::Result<bool> {
    let verdict = Verdict::of(outcomes, &accepted::read()?);
    println!("{verdict}");
    Ok(verdict.is_fine())
}

fn table() -> anyhow::Result<bool> {
    let list = accepted::read()?;
    for package in Package::value_variants().iter().copied() {
        let (mut shards, mut figures) = (0, Figures::default());
        for results in cargo::all_results(&directory()?, package.name())? {
            figures.add(&Verdict::of(cargo::read(&results)?, &list).figures);
            shards += 1;
        }
        println!("{}, {shards} shards: {figures}", package.name());
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_job_is_a_command_that_is_understood() {
        let jobs = jobs();
        assert_eq!(jobs.len(), 1 + Package::Core.shards() + Package::Admission.shards());
        for job in &jobs {
            let words = std::iter::once("mutants").chain(job.split_whitespace());
            assert!(Arguments::try_parse_from(words).is_ok(), "{job}");
        }
        assert!(Arguments::try_parse_from(["mutants", "run", "else", "1", "1"]).is_err());
    }

    #[test]
    fn a_shard_is_one_of_its_number() {
        for (index, count) in [(0, 1), (2, 1), (1, 0)] {
            let error = run(Package::Core, Shard { index, count }, &[]).unwrap_err();
            assert!(error.to_string().starts_with(&format!("shard {index} of {count}: ")), "{error}");
        }
    }

    #[test]
    fn the_parts_of_a_shard_have_its_mutants() {
        let mutants = |shard: Shard| (0..100).filter(move |mutant| mutant % shard.count == shard.index - 1);
        for (index, count) in [(1, 1), (1, 40), (3, 7)] {
            let shard = Shard { index, count };
            for parts in 1..5 {
                let mut all: Vec<usize> = shard.split(parts).into_iter().flat_map(mutants).collect();
                all.sort_unstable();
                assert!(all.into_iter().eq(mutants(shard)), "{shard:?} in {parts}");
            }
        }
    }

    #[test]
    fn every_crate_is_a_folder_of_the_source() {
        for package in Package::value_variants() {
            assert!(root().unwrap().join("src").join(package.name()).is_dir(), "{package:?}");
        }
    }
}
