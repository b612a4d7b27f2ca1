//! What is shipped: the manifests of `deploy/`, as kubectl's kustomize and Helm render them.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use anyhow::{Context, bail};
use serde::Deserialize;
use serde_json::Value;

use crate::control_plane::{kubectl, tool};
use crate::root;

/// The version that is upgraded from.
pub const LAST_RELEASE: &str = "0.1.0";

/// The objects of a kustomization of the work tree, or of one anywhere else by its absolute path.
pub fn kustomize(dir: &str) -> anyhow::Result<Vec<Value>> {
    // A link may lead elsewhere the next time.
    let dir = root().join(dir).canonicalize().with_context(|| dir.to_owned())?;
    rendered(format!("kustomize {}", dir.display()), || {
        let mut command = Command::new(kubectl()?);
        command.arg("kustomize").arg(&dir);
        objects(&output(command)?)
    })
}

/// What is rendered under a name the first time. Tests start many agents and read the same manifests; these don't change meanwhile.
pub fn rendered(
    name: String,
    render: impl FnOnce() -> anyhow::Result<Vec<Value>>,
) -> anyhow::Result<Vec<Value>> {
    type Rendered = Arc<Mutex<Option<Vec<Value>>>>;
    static RENDERED: Mutex<BTreeMap<String, Rendered>> = Mutex::new(BTreeMap::new());
    let failed = || anyhow::anyhow!("another test has failed");
    let one = Arc::clone(RENDERED.lock().map_err(|_| failed())?.entry(name).or_default());
    let mut one = one.lock().map_err(|_| failed())?;
    if one.is_none() {
        *one = Some(render()?);
    }
    Ok(one.clone().unwrap_or_default())
}

/// The manifests of the last released version, unpacked as that version's work tree has them: `deploy`, `certs` and `webhooks`.
/// They are the record in `tests/upgrades`.
pub fn of_last_release() -> anyhow::Result<tempfile::TempDir> {
    let target = root().join("target");
    std::fs::create_dir_all(&target)?;
    let dir = tempfile::tempdir_in(target)?;
    let archive = root().join("tests/upgrades").join(LAST_RELEASE).join("manifests.tar.gz");
    let mut command = Command::new("tar");
    command.arg("-C").arg(dir.path()).arg("-xzf").arg(archive);
    output(command)?;
    Ok(dir)
}

/// The objects of the chart, installed into the namespace `outrigger-system` with more arguments.
pub fn chart(args: &[&str]) -> anyhow::Result<Vec<Value>> {
    chart_in(crate::outrigger::SYSTEM, args)
}

/// As [`chart`], in another namespace.
pub fn chart_in(namespace: &str, args: &[&str]) -> anyhow::Result<Vec<Value>> {
    rendered(format!("chart {namespace} {args:?}"), || {
        let mut command = Command::new(tool("helm")?);
        command.args(["template", "outrigger", "deploy/helm/outrigger", "--namespace", namespace]);
        command.args(args).current_dir(root());
        objects(&output(command)?)
    })
}

/// Runs a command with this standard input to its end.
pub fn fed(command: &mut Command, input: &[u8]) -> anyhow::Result<Output> {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    child.stdin.take().context("no input")?.write_all(input)?;
    Ok(child.wait_with_output()?)
}

/// Standard output of a command.
pub fn output(mut command: Command) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// The documents of a text.
pub fn objects(text: &str) -> anyhow::Result<Vec<Value>> {
    let documents = serde_yaml::Deserializer::from_str(text).map(Value::deserialize);
    let all: Vec<Value> = documents.collect::<Result<_, _>>()?;
    Ok(all.into_iter().filter(|object| !object.is_null()).collect())
}

/// The Prometheus Operator's definitions, for `deploy/monitoring`.
pub fn operators_definitions(cluster: &crate::control_plane::Cluster) -> anyhow::Result<()> {
    for definition in ["podmonitors", "prometheusrules"] {
        let file = tool("prometheus")?.join(format!("crds/monitoring.coreos.com_{definition}.yaml"));
        cluster.kubectl(&["apply", "--server-side", "-f", &file.display().to_string()])?;
    }
    Ok(())
}

/// The shipped webhook configurations: the mutating one, and the validating one.
pub fn webhook_configurations() -> anyhow::Result<Vec<Value>> {
    webhook_configurations_of(&root())
}

/// As [`webhook_configurations`], of another tree.
pub fn webhook_configurations_of(tree: &Path) -> anyhow::Result<Vec<Value>> {
    let read = |kind: &str| anyhow::Ok(std::fs::read_to_string(tree.join(format!("webhooks/{kind}.yaml")))?);
    ["mutating", "validating"].iter().map(|kind| Ok(serde_yaml::from_str(&read(kind)?)?)).collect()
}

/// Kind and name of an object, with its namespace where it has one.
pub fn name(object: &Value) -> String {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let namespace = text("/metadata/namespace");
    let slash = if namespace.is_empty() { "" } else { "/" };
    format!("{} {namespace}{slash}{}", text("/kind"), text("/metadata/name"))
}

/// All objects of a kind.
pub fn of_kind<'a>(objects: &'a [Value], kind: &'a str) -> impl Iterator<Item = &'a Value> {
    objects.iter().filter(move |object| object["kind"] == kind)
}

/// The one container of a Deployment: its arguments, and its environment as `NAME=value`.
pub fn container(objects: &[Value], deployment: &str) -> anyhow::Result<(Vec<String>, Vec<String>)> {
    let found = of_kind(objects, "Deployment")
        .find(|object| object["metadata"]["name"] == deployment)
        .with_context(|| format!("no Deployment {deployment}"))?;
    let container = &found["spec"]["template"]["spec"]["containers"][0];
    let list = |field: &str| container[field].as_array().cloned().unwrap_or_default();
    let args = list("args").iter().map(|arg| arg.as_str().map(str::to_owned)).collect::<Option<_>>();
    let env = list("env")
        .iter()
        .map(|v| Some(format!("{}={}", v["name"].as_str()?, v["value"].as_str()?)))
        .collect::<Option<_>>();
    Ok((args.context("args that are no text")?, env.context("env without a value")?))
}

/// Arguments with more flags, each `--name=value`, in place of those of the same names.
pub fn with(args: &[String], flags: &[String]) -> Vec<String> {
    let flag = |arg: &str| arg.split('=').next().unwrap_or_default().to_owned();
    let replaced = |arg: &str| flags.iter().any(|other| flag(other) == flag(arg));
    args.iter().filter(|arg| !replaced(arg)).chain(flags).cloned().collect()
}
