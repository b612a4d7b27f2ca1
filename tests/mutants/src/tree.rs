//! Copies of the work tree, in which code is changed.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use walkdir::WalkDir;

/// Waits until nobody else uses the copies in a directory. The lock ends when the result is dropped, or with the process.
pub(crate) fn lock(directory: &Path) -> anyhow::Result<File> {
    fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    let file = File::create(directory.join("lock"))?;
    file.lock()?;
    Ok(file)
}

/// Makes `to` a copy of the work tree `from`: of the files that git has or would add. A file that is the same isn't written, so
/// that Cargo builds only what differs. A change that an interrupted run has left in the copy is undone.
pub(crate) fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    let files = files(from)?;
    remove_others(to, &files)?;
    for file in &files {
        copy_file(&from.join(file), &to.join(file)).with_context(|| file.display().to_string())?;
    }
    Ok(())
}

fn files(work_tree: &Path) -> anyhow::Result<BTreeSet<PathBuf>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(work_tree)
        .output()
        .context("git")?;
    if !output.status.success() {
        bail!("git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let names = String::from_utf8(output.stdout)?;
    let files = names.split_terminator('\0').map(PathBuf::from);
    // Those that were deleted and are still in the index have no metadata.
    Ok(files.filter(|file| work_tree.join(file).symlink_metadata().is_ok()).collect())
}

/// Removes what isn't in the work tree, such as the inputs that proptest writes when a test fails.
fn remove_others(tree: &Path, files: &BTreeSet<PathBuf>) -> anyhow::Result<()> {
    if !tree.exists() {
        return Ok(());
    }
    for entry in WalkDir::new(tree) {
        let entry = entry?;
        if !entry.file_type().is_dir() && !files.contains(entry.path().strip_prefix(tree)?) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn copy_file(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to.parent().context("it has no folder")?)?;
    if from.is_symlink() {
        let target = fs::read_link(from)?;
        if fs::read_link(to).ok().as_ref() != Some(&target) {
            let _ = fs::remove_file(to);
            std::os::unix::fs::symlink(target, to)?;
        }
        return Ok(());
    }
    if to.is_symlink() || fs::read(to).ok() != Some(fs::read(from)?) {
        let _ = fs::remove_file(to);
        fs::copy(from, to)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work_tree() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let status = Command::new("git").args(["init", "--quiet"]).current_dir(dir.path()).status().unwrap();
        assert!(status.success());
        fs::create_dir(dir.path().join("src")).unwrap();
        fs::write(dir.path().join(".gitignore"), "target\n").unwrap();
        fs::write(dir.path().join("src/a"), "a").unwrap();
        fs::write(dir.path().join("target"), "t").unwrap();
        std::os::unix::fs::symlink("a", dir.path().join("src/link")).unwrap();
        dir
    }

    #[test]
    fn the_copy_has_what_git_has_and_nothing_else() {
        let (from, to) = (work_tree(), tempfile::tempdir().unwrap());
        let tree = to.path().join("tree");
        copy(from.path(), &tree).unwrap();
        assert_eq!(fs::read_to_string(tree.join("src/a")).unwrap(), "a");
        assert_eq!(fs::read_link(tree.join("src/link")).unwrap(), PathBuf::from("a"));
        assert!(!tree.join("target").exists());

        fs::write(tree.join("src/a"), "changed by an interrupted run").unwrap();
        fs::write(tree.join("src/rest"), "of an interrupted run").unwrap();
        fs::remove_file(from.path().join("src/link")).unwrap();
        copy(from.path(), &tree).unwrap();
        assert_eq!(fs::read_to_string(tree.join("src/a")).unwrap(), "a");
        assert!(!tree.join("src/rest").exists() && !tree.join("src/link").is_symlink());
    }

    #[test]
    fn a_file_that_is_the_same_keeps_its_time() {
        let (from, to) = (work_tree(), tempfile::tempdir().unwrap());
        let copied = to.path().join("src/a");
        copy(from.path(), to.path()).unwrap();
        let earlier = std::time::SystemTime::UNIX_EPOCH;
        File::open(&copied).unwrap().set_modified(earlier).unwrap();
        copy(from.path(), to.path()).unwrap();
        assert_eq!(fs::metadata(&copied).unwrap().modified().unwrap(), earlier);
    }
}
