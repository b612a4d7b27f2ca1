//! A bundle: its files, what it says of them, and how it is written.

use std::collections::BTreeSet;
use std::fs::{DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use outrigger_core::json::text;
use outrigger_core::yaml;
use serde::Serialize;
use serde_json::Value;

use super::redact::{HANDLED, Redactor, Texts};
use crate::document::{Document, Readable, bold, item, odd};
use crate::program::VERSION;

/// Bytes of a file: what an editor opens at once, and a thousand companions of 8 KiB.
pub(super) const FILE: usize = 8 << 20;

/// Bytes of all files. Compressed to a tenth or less, they are what trackers of issues take (25 MB).
const TOTAL: usize = 64 << 20;

/// The directory in the archive, so that unpacking it makes only one entry.
const ROOT: &str = "outrigger-bundle";

/// What a file is made of.
pub(super) enum Content {
    /// YAML, one document for each.
    Objects(Vec<Value>),
    /// JSON.
    Report(Value),
    Text(String),
}

impl Content {
    /// The objects; none in another kind of file.
    fn objects(&self) -> &[Value] {
        match self {
            Self::Objects(objects) => objects,
            Self::Report(_) | Self::Text(_) => &[],
        }
    }
}

struct Draft {
    path: String,
    content: Content,
    cut: Vec<String>,
}

/// What has been collected. Files are in the order in which they were added, which is that of their importance.
#[derive(Default)]
pub(super) struct Drafts {
    files: Vec<Draft>,
    missing: Vec<Missing>,
}

#[derive(PartialEq, Serialize)]
struct Missing {
    what: String,
    why: String,
}

#[derive(Serialize)]
struct FileRow {
    path: String,
    bytes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    objects: Option<usize>,
    /// What isn't in it, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    cut: Vec<String>,
}

/// What a bundle has and lacks. docs/support.md describes it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Manifest {
    command: &'static str,
    created: String,
    includes_values: bool,
    /// Nothing is missing or cut.
    pub(super) complete: bool,
    files: Vec<FileRow>,
    missing: Vec<Missing>,
}

/// A path in the bundle, and its content.
pub(super) type Packed = (String, Vec<u8>);

impl Drafts {
    /// Adds a file, or objects to the one of this path. `cut` says what isn't in it.
    pub(super) fn add(&mut self, path: impl Into<String>, content: Content, cut: Vec<String>) {
        let path = path.into();
        match (self.files.iter_mut().find(|file| file.path == path), content) {
            (Some(Draft { content: Content::Objects(there), cut: known, .. }), Content::Objects(more)) => {
                let uid = |object: &Value| text(object, "/metadata/uid").to_owned();
                let uids: BTreeSet<String> = there.iter().map(uid).collect();
                there.extend(more.into_iter().filter(|object| !uids.contains(&uid(object))));
                known.extend(cut);
            }
            (_, content) => self.files.push(Draft { path, content, cut }),
        }
    }

    /// Says, once, what couldn't be collected.
    pub(super) fn lacks(&mut self, what: impl Into<String>, why: impl Into<String>) {
        let missing = Missing { what: what.into(), why: why.into() };
        if !self.missing.contains(&missing) {
            self.missing.push(missing);
        }
    }

    /// The objects in the file of this path.
    pub(super) fn objects(&self, path: &str) -> &[Value] {
        self.files.iter().find(|file| file.path == path).map_or(&[], |file| file.content.objects())
    }

    /// The names of what has been collected.
    fn names(&self) -> BTreeSet<String> {
        let objects = self.files.iter().flat_map(|file| file.content.objects());
        let of = |object| {
            ["/metadata/name", "/metadata/namespace", "/spec/nodeName"].map(|at| text(object, at).to_owned())
        };
        objects.flat_map(of).collect()
    }

    /// Redacts and prints everything, within the limits; the manifest and the README come first.
    ///
    /// # Errors
    /// As [`Redactor::finish`].
    pub(super) fn finish(
        self,
        redactor: Redactor,
        includes_values: bool,
        created: String,
    ) -> anyhow::Result<(Manifest, Vec<Packed>)> {
        let texts = redactor.finish(&self.names())?;
        let (mut rows, mut packed, mut total) = (Vec::new(), Vec::new(), 0);
        let mut missing = self.missing;
        for Draft { path, content, mut cut } in self.files {
            let objects = match &content {
                Content::Objects(objects) => Some(objects.len()),
                Content::Report(_) | Content::Text(_) => None,
            };
            let bytes = print(content, &texts, &mut cut).into_bytes();
            let limit = [(bytes.len(), "it", FILE), (total + bytes.len(), "all files together", TOTAL)];
            if let Some((_, what, most)) = limit.into_iter().find(|(bytes, _, most)| bytes > most) {
                let why = format!("{what} would have more than {} MiB", most >> 20);
                missing.push(Missing { what: path, why });
                continue;
            }
            total += bytes.len();
            rows.push(FileRow { path: path.clone(), bytes: bytes.len(), objects, cut });
            packed.push((path, bytes));
        }
        missing.iter_mut().for_each(|row| row.why = texts.text(&row.why, true));
        let complete = missing.is_empty() && rows.iter().all(|row| row.cut.is_empty());
        let manifest =
            Manifest { command: VERSION, created, includes_values, complete, files: rows, missing };
        let first = [
            ("README.md".to_owned(), readme().into_bytes()),
            ("manifest.json".to_owned(), serde_json::to_vec_pretty(&manifest)?),
        ];
        packed.splice(..0, first);
        Ok((manifest, packed))
    }
}

/// What a file says.
fn print(content: Content, texts: &Texts, cut: &mut Vec<String>) -> String {
    match content {
        Content::Report(report) => format!("{:#}\n", texts.value(report, true)),
        Content::Text(text) => texts.text(&text, true),
        Content::Objects(objects) => {
            let (mut all, count) = (String::new(), objects.len());
            for (i, object) in objects.into_iter().enumerate() {
                let document = format!("---\n{}", yaml::to_string(&texts.value(object, false)));
                if all.len() + document.len() > FILE {
                    cut.push(format!("{} objects, because a file has at most {} MiB", count - i, FILE >> 20));
                    break;
                }
                all += &document;
            }
            all
        }
    }
}

fn readme() -> String {
    let rows: String = HANDLED.iter().map(|(what, how)| format!("| {what} | {how} |\n")).collect();
    format!(
        "# Outrigger's support bundle\n\nRead it before you send it. `manifest.json` lists each file, what is missing or cut, and why.\n\
         `outrigger check -f objects` and `outrigger explain -f objects` read its objects.\n\n\
         | what | in this bundle |\n|---|---|\n{rows}"
    )
}

/// A part of a path: no separator, nothing that a shell or another operating system takes for something else.
pub(super) fn segment(name: &str) -> String {
    let one = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_') { c } else { '_' };
    let safe: String = name.chars().map(one).collect();
    if safe.starts_with(['.', '-']) || safe.is_empty() { format!("_{safe}") } else { safe }
}

/// Writes a new bundle: an archive if the name of `output` ends with `.tar.gz` or `.tgz`, otherwise a directory. Only the user who runs
/// the command can read the files.
///
/// # Errors
/// `output` exists already, which is left unchanged, or the file system refuses a write.
pub(super) fn write(output: &Path, files: &[Packed], created: u64) -> io::Result<()> {
    if is_archive(output) {
        let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
        for (path, bytes) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o600);
            header.set_mtime(created);
            archive.append_data(&mut header, format!("{ROOT}/{path}"), bytes.as_slice())?;
        }
        return create(output, &archive.into_inner()?.finish()?);
    }
    let mut directory = DirBuilder::new();
    directory.mode(0o700).create(output)?;
    for (path, bytes) in files {
        let file = output.join(path);
        directory.recursive(true).create(file.parent().unwrap_or(output))?;
        create(&file, bytes)?;
    }
    Ok(())
}

/// Whether a name is that of an archive.
fn is_archive(output: &Path) -> bool {
    let name = output.to_string_lossy();
    [".tar.gz", ".tgz"].iter().any(|end| name.ends_with(end))
}

fn create(file: &Path, bytes: &[u8]) -> io::Result<()> {
    File::options().write(true).create_new(true).mode(0o600).open(file)?.write_all(bytes)
}

impl Readable for Manifest {
    fn document(&self) -> Document {
        let mut document = Document::default();
        let bytes: usize = self.files.iter().map(|row| row.bytes).sum();
        document.add(item![
            bold("bundle"),
            format_args!(" of {} files with {} KiB", self.files.len(), bytes >> 10)
        ]);
        for Missing { what, why } in &self.missing {
            document.add(item![odd("missing:"), format_args!(" {what}: {why}")]);
        }
        for row in &self.files {
            for cut in &row.cut {
                document.add(item![odd("cut:"), format_args!(" {}: {cut}", row.path)]);
            }
        }
        document
    }
}

#[cfg(test)]
mod tests;
