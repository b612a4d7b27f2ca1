//! The matrix: which suites run on which releases of Kubernetes, and the table of their results in
//! `docs/compatibility.md`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::Context;
use outrigger_tests::control_plane::RELEASE;
use outrigger_tests::shipped::output;
use outrigger_tests::{marked, root};

use crate::jobs::{InEnvironment, Job};
use crate::log::Counts;
use crate::results::Record;

/// The suites that run on each release.
pub(crate) const SUITES: [&str; 3] = ["e2e", "policies", "certificates"];

/// The releases that `tests/controlplane` has the versions of, the oldest first: `1.34`.
pub(crate) fn releases() -> anyhow::Result<Vec<String>> {
    let dir = root().join("tests/controlplane");
    let default = std::fs::read_to_string(dir.join("go.mod"))?;
    let mut minors = vec![minor(&default).context("go.mod doesn't name the version of k8s.io/kubernetes")?];
    for entry in std::fs::read_dir(dir.join("versions"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if let Some(release) = name.strip_suffix(".mod") {
            minors.push(release.strip_prefix("1.").and_then(|minor| minor.parse().ok()).context(name)?);
        }
    }
    minors.sort_unstable();
    Ok(minors.into_iter().map(|minor| format!("1.{minor}")).collect())
}

/// The minor release of Kubernetes 1 that a file such as go.mod requires.
fn minor(file: &str) -> Option<u32> {
    let version = file.lines().find_map(|line| line.trim().strip_prefix("k8s.io/kubernetes v1."))?;
    version.split('.').next()?.parse().ok()
}

/// Each of the suites on each release.
pub(crate) fn in_environments() -> anyhow::Result<Vec<InEnvironment>> {
    let releases = releases()?;
    let on = |release: &String| SUITES.map(|suite| InEnvironment { suite, env: (RELEASE, release.clone()) });
    Ok(releases.iter().flat_map(on).collect())
}

/// Builds the control plane that a job runs on, so that its seconds are those of the tests.
pub(crate) fn build(job: &Job) -> anyhow::Result<()> {
    let mut build = Command::new(root().join("tests/controlplane/build.sh"));
    build.envs(job.env.iter().cloned());
    output(build).map(drop).with_context(|| format!("{}: the control plane can't be built", job.name))
}

/// Writes the results of a commit into the page. Rows of other runs stay.
pub(crate) fn record(records: &[Record], page: &Path) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(page).with_context(|| page.display().to_string())?;
    std::fs::write(page, with_results(&text, records)?)?;
    Ok(())
}

fn with_results(page: &str, records: &[Record]) -> anyhow::Result<String> {
    let [_, table, _] = marked::split(page, "matrix")?;
    // By release and suite: the two first columns.
    let mut rows = BTreeMap::new();
    let lines = table.lines().filter(|line| line.starts_with("| 1."));
    for line in lines.map(str::to_owned).chain(records.iter().filter_map(row)) {
        let mut cells = line.split('|').map(str::trim).skip(1);
        let (release, suite) = (cells.next().unwrap_or_default(), cells.next().unwrap_or_default());
        let place = SUITES.iter().position(|name| suite.trim_matches('`') == *name);
        rows.insert((release.to_owned(), place), line);
    }
    let rows: String = rows.into_values().map(|row| row + "\n").collect();
    let head = "| Kubernetes | tests | passed | failed | skipped | ignored | seconds | date | commit |\n\
                |---|---|---|---|---|---|---|---|---|\n";
    marked::replaced(page, "matrix", &format!("\n{head}{rows}"))
}

/// The row of a run of the matrix.
fn row(record: &Record) -> Option<String> {
    let (suite, release) = record.test.split_once(&format!(" {RELEASE}="))?;
    let counts = match Counts::of(&std::fs::read_to_string(&record.log).unwrap_or_default()) {
        Some(Counts { passed, failed, ignored, skipped }) => {
            format!("{passed} | {failed} | {skipped} | {ignored}")
        }
        None => "ended early | | |".to_owned(),
    };
    let (date, _) = record.date.split_once('T')?;
    let commit = record.commit.get(..10).unwrap_or(&record.commit);
    Some(format!("| {release} | `{suite}` | {counts} | {:.0} | {date} | {commit} |", record.seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_release_has_a_control_plane_and_the_oldest_comes_first() {
        let releases = releases().unwrap();
        assert_eq!(releases[0], "1.34");
        assert!(releases.windows(2).all(|pair| pair[0] != pair[1]), "{releases:?}");
        assert_eq!(minor("require (\n\tk8s.io/kubernetes v1.36.3\n)"), Some(36));
        assert_eq!(minor("\tk8s.io/kubectl v0.36.3\n"), None);
        assert_eq!(in_environments().unwrap().len(), releases.len() * 3);
    }

    #[test]
    fn a_row_replaces_that_of_its_release_and_suite_and_the_others_stay() {
        let log = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&log, "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured\n").unwrap();
        let record = |test: &str| Record {
            test: test.into(),
            date: "2026-01-02T03:04:05Z".into(),
            commit: "0123456789abcdef".into(),
            seconds: 12.3,
            cpu: 0.0,
            passed: true,
            log: log.path().into(),
        };
        let kept = "| 1.35 | `e2e` | not run | | | | | | |";
        let page = format!(
            "a\n<!-- matrix -->\n| 1.34 | `policies` | 1 | | | | | | |\n{kept}\n<!-- end of matrix -->\nb\n"
        );
        let records = [record("policies OUTRIGGER_KUBERNETES=1.34"), record("e2e OUTRIGGER_KUBERNETES=1.34")];
        let page = with_results(&page, &records).unwrap();
        let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| 1.")).collect();
        let row =
            |suite: &str| format!("| 1.34 | `{suite}` | 3 | 0 | 0 | 0 | 12 | 2026-01-02 | 0123456789 |");
        assert_eq!(rows, [&row("e2e"), &row("policies"), kept]);
        assert!(page.starts_with("a\n") && page.ends_with("\nb\n"), "{page}");
        assert_eq!(with_results(&page, &[record("outages::a")]).unwrap(), page);
    }
}
