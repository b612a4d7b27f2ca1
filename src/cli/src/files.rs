//! Cluster objects out of files: YAML and JSON, of one or many documents, lists taken apart.

use std::fmt;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use outrigger_core::bounds::Bounds;
use outrigger_core::json::text;
use outrigger_core::yaml::{self, OF_FILES};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// An input that can't be used: the command ends with exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {reason}")]
pub(crate) struct InputError {
    place: String,
    reason: String,
}

impl InputError {
    /// `place` is a file, a document in it, a flag or a cluster.
    pub(crate) fn new(place: impl fmt::Display, reason: impl fmt::Display) -> Self {
        Self { place: place.to_string(), reason: reason.to_string() }
    }
}

/// Between the name of a file and the number of a document in it.
const DOCUMENT: &str = ": document ";

/// What stands for the name of a file.
const STANDARD_INPUT: &str = "standard input";

/// The source of an object, for messages.
#[derive(Debug, Clone)]
pub(crate) struct Origin(Arc<str>);

impl Origin {
    /// Somewhere.
    pub(crate) fn new(place: impl fmt::Display) -> Self {
        Self(place.to_string().into())
    }

    /// The file, where it is one.
    pub(crate) fn file(&self) -> Option<&str> {
        self.0.split_once(DOCUMENT).map(|(file, _)| file).filter(|file| *file != STANDARD_INPUT)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An object of the Kubernetes API, as it stands in a file.
#[derive(Debug, Clone)]
pub(crate) struct Object {
    pub(crate) origin: Origin,
    /// API group; empty for the core group.
    pub(crate) group: String,
    pub(crate) kind: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// All of it.
    pub(crate) value: Value,
}

impl Object {
    /// Takes a document for an object.
    pub(crate) fn new(origin: Origin, value: Value) -> Result<Self, InputError> {
        let text = |pointer: &str| text(&value, pointer).to_owned();
        let (version, kind) = (text("/apiVersion"), text("/kind"));
        for (field, text) in [("apiVersion", &version), ("kind", &kind)] {
            if text.is_empty() {
                let found = value.get(field).filter(|found| !found.is_null() && !found.is_string());
                let what =
                    found.map_or("is missing".to_owned(), |found| format!("is {found}, which is no text"));
                let message = format!("{field}: {what}, so this is no object of the Kubernetes API");
                return Err(InputError::new(origin, message));
            }
        }
        if let Some(found) = value.get("metadata").filter(|found| !found.is_null() && !found.is_object()) {
            let message =
                format!("metadata: is {found}, which is no map, so this is no object of the Kubernetes API");
            return Err(InputError::new(origin, message));
        }
        let group = version.split_once('/').map_or("", |(group, _)| group).to_owned();
        let (namespace, name) = (text("/metadata/namespace"), text("/metadata/name"));
        Ok(Self { origin, group, kind, namespace, name, value })
    }

    /// The namespace of a namespaced object, as kubectl takes one that names none.
    pub(crate) fn namespace_or_default(&self) -> &str {
        if self.namespace.is_empty() { "default" } else { &self.namespace }
    }

    /// Whether it is of this kind, in whatever version.
    pub(crate) fn is(&self, group: &str, kind: &str) -> bool {
        self.group == group && self.kind == kind
    }

    /// The object as a type.
    pub(crate) fn read<K: DeserializeOwned>(&self) -> Result<K, InputError> {
        serde_path_to_error::deserialize(&self.value).map_err(|error| self.wrong(error))
    }

    /// That the object is wrong.
    pub(crate) fn wrong(&self, why: impl fmt::Display) -> InputError {
        let what = format!("{} {}", self.kind, self.name);
        InputError::new(&self.origin, format_args!("{}: {why}", what.trim_end()))
    }
}

/// All objects in files and directories, in their order. `-` is standard input.
pub(crate) fn read(paths: &[PathBuf]) -> Result<Vec<Object>, InputError> {
    let mut objects = Vec::new();
    for path in paths {
        if path.as_os_str() == "-" {
            parse(STANDARD_INPUT, &text_of(STANDARD_INPUT, std::io::stdin())?, OF_FILES, &mut objects)?;
            continue;
        }
        for file in files(path)? {
            let place = file.display().to_string();
            parse(&place, &text_of_file(&file)?, OF_FILES, &mut objects)?;
        }
    }
    Ok(objects)
}

/// What is in a file.
pub(crate) fn text_of_file(file: &Path) -> Result<String, InputError> {
    let place = file.display();
    text_of(&place, File::open(file).map_err(|error| InputError::new(&place, error))?)
}

/// All that there is to read, and at most one byte more than [`OF_FILES`] allows, which is refused later.
fn text_of(place: impl fmt::Display, source: impl Read) -> Result<String, InputError> {
    let (mut bytes, most) = (Vec::new(), OF_FILES.bytes as u64 + 1);
    source.take(most).read_to_end(&mut bytes).map_err(|error| InputError::new(&place, error))?;
    yaml::decoded(bytes).map_err(|error| InputError::new(place, error))
}

/// A file itself; of a directory the files in it that end as manifests do, by name, as kubectl does.
pub(crate) fn files(path: &Path) -> Result<Vec<PathBuf>, InputError> {
    const ENDINGS: [&str; 3] = ["yaml", "yml", "json"];
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let wrong = |error| InputError::new(path.display(), error);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(wrong)? {
        let file = entry.map_err(wrong)?.path();
        let ending = file.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        if ENDINGS.contains(&ending) && file.is_file() {
            files.push(file);
        }
    }
    if files.is_empty() {
        return Err(InputError::new(path.display(), "has no file that ends with .yaml, .yml or .json"));
    }
    files.sort();
    Ok(files)
}

/// The objects in a text within bounds.
pub(crate) fn parse(
    name: &str,
    text: &str,
    bounds: Bounds,
    objects: &mut Vec<Object>,
) -> Result<(), InputError> {
    for (number, document) in documents(name, text, bounds)?.into_iter().enumerate() {
        if !document.is_null() {
            take(&Origin::new(format_args!("{name}{DOCUMENT}{}", number + 1)), document, objects)?;
        }
    }
    Ok(())
}

/// The documents in a text; see [`yaml::documents`].
pub(crate) fn documents(name: &str, text: &str, bounds: Bounds) -> Result<Vec<Value>, InputError> {
    yaml::documents(text, bounds).map_err(|error| InputError::new(name, error))
}

/// Takes an object, or those in a list. As for kubectl, everything that has `items` is a list.
pub(crate) fn take(origin: &Origin, mut value: Value, objects: &mut Vec<Object>) -> Result<(), InputError> {
    let items = value.as_object_mut().and_then(|object| object.remove("items"));
    let object = Object::new(origin.clone(), value)?;
    let items = match items {
        None => {
            objects.push(object);
            return Ok(());
        }
        Some(Value::Null) => Vec::new(),
        Some(Value::Array(items)) => items,
        Some(_) => return Err(object.wrong("items: is no list")),
    };
    let kind = object.kind.strip_suffix("List").unwrap_or(&object.kind);
    for (i, mut item) in items.into_iter().enumerate() {
        // The items of a PodList don't say what they are.
        let is_unnamed =
            ["apiVersion", "kind"].iter().all(|field| item.get(field).is_none_or(|text| text == ""));
        if let (true, false, Value::Object(item)) = (is_unnamed, kind.is_empty(), &mut item) {
            item.insert("kind".to_owned(), kind.into());
            item.insert("apiVersion".to_owned(), object.value["apiVersion"].clone());
        }
        let item = Object::new(Origin::new(format_args!("{origin}, items[{i}]")), item)?;
        if item.value.get("items").is_some_and(Value::is_array) {
            return Err(item.wrong(
                "is a list in a list, which kubectl refuses: make its items those of the outer list",
            ));
        }
        objects.push(item);
    }
    Ok(())
}

/// Writes a report to standard output.
pub(crate) fn print_json(value: &impl Serialize) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value)?;
    Ok(writeln!(out)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Result<Vec<String>, String> {
        let mut objects = Vec::new();
        parse("f", text, OF_FILES, &mut objects).map_err(|e| e.to_string())?;
        Ok(objects.iter().map(|o| format!("{}/{} {}/{}", o.group, o.kind, o.namespace, o.name)).collect())
    }

    #[test]
    fn every_way_to_write_objects() {
        let node = r#"{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}"#;
        for text in [
            node.to_owned(),
            format!("# a comment\n---\n---\n{node}\n---\n"),
            format!(r#"{{"apiVersion": "v1", "kind": "List", "items": [{node}]}}"#),
            r#"{"apiVersion": "v1", "kind": "NodeList", "items": [{"metadata": {"name": "n"}}]}"#.to_owned(),
            "apiVersion: v1\nkind: Node\nmetadata: {name: 'n'}\n".to_owned(),
        ] {
            assert_eq!(names(&text).unwrap(), ["/Node /n"], "{text}");
        }
        assert_eq!(names(&format!("{node}{node}\n{node}")).unwrap().len(), 3);
        let rule = "{apiVersion: workload.universe.nvidia.com/v1alpha1, kind: WorkloadRule, metadata: {name: r, namespace: x}}";
        assert_eq!(names(rule).unwrap(), ["workload.universe.nvidia.com/WorkloadRule x/r"]);
        assert_eq!(names("").unwrap(), Vec::<String>::new());
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        for (text, message) in [
            ("a: b", "f: document 1: apiVersion: is missing"),
            ("a: b\n---\n{", "f: line 3, column 2: "),
            ("apiVersion: v1\nkind: Node\n---\n\"x", "f: line 4, column 1: "),
            ("apiVersion: v1\nkind: Node\n---\nx", "f: document 2: apiVersion: is missing"),
            (r#"{"apiVersion": "v1"}"#, "f: document 1: kind: is missing"),
            (
                r#"{"apiVersion": "v1", "kind": "List", "items": [{}]}"#,
                "f: document 1, items[0]: apiVersion: is missing",
            ),
            (
                r#"{"apiVersion": "v1", "kind": "PodList", "items": [{"kind": "Pod"}]}"#,
                "f: document 1, items[0]: apiVersion: is missing",
            ),
            (
                r#"{"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", "kind": "List", "items": []}]}"#,
                "f: document 1, items[0]: List: is a list in a list",
            ),
            ("{apiVersion: v1, kind: List, items: {a: b}}", "f: document 1: List: items: is no list"),
            ("{apiVersion: 1, kind: Node}", "f: document 1: apiVersion: is 1, which is no text"),
            (
                "{apiVersion: v1, kind: Node, metadata: word}",
                "f: document 1: metadata: is \"word\", which is no map",
            ),
        ] {
            let error = names(text).unwrap_err();
            assert!(error.starts_with(message), "{text}: {error}");
        }
    }

    #[test]
    fn directories_are_read_by_name() {
        let dir = tempfile::tempdir().unwrap();
        for (name, object) in [("b.yaml", "b"), ("a.json", "a"), ("c.txt", "c")] {
            let text =
                format!(r#"{{"apiVersion": "v1", "kind": "Node", "metadata": {{"name": "{object}"}}}}"#);
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        let objects = read(&[dir.path().to_owned()]).unwrap();
        assert_eq!(objects.iter().map(|o| o.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        let empty = tempfile::tempdir().unwrap();
        assert!(read(&[empty.path().to_owned()]).unwrap_err().to_string().contains("has no file that ends"));
        let gone = empty.path().join("gone.yaml");
        assert!(read(&[gone]).unwrap_err().to_string().contains("gone.yaml: No such file"));
    }
}
