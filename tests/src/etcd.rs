//! The etcd of a control plane, by etcd's own tools.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use serde::Deserialize;
use serde_json::Value;

use crate::control_plane::{ControlPlane, build};
use crate::shipped::output;

/// How to reach and how to replace an etcd.
#[derive(Debug)]
pub struct Etcd {
    program: PathBuf,
    /// The socket of its clients, in the directory that has its data too.
    endpoint: String,
    peer: String,
    data: PathBuf,
}

#[derive(Deserialize)]
struct State {
    commands: HashMap<String, Vec<String>>,
}

/// The arguments that a process of a control plane was started with.
pub fn command(plane: &ControlPlane, process: &str) -> anyhow::Result<Vec<String>> {
    let text = std::fs::read_to_string(plane.dir.join("state.json"))?;
    let mut state: State = serde_json::from_str(&text)?;
    state.commands.remove(process).with_context(|| format!("no process {process}"))
}

fn flag(command: &[String], name: &str) -> anyhow::Result<String> {
    let value = command.iter().find_map(|arg| arg.strip_prefix(name)?.strip_prefix('='));
    value.map(str::to_owned).with_context(|| format!("no {name} in {command:?}"))
}

impl Etcd {
    /// The etcd of a control plane.
    pub fn of(plane: &ControlPlane) -> anyhow::Result<Self> {
        let (server, client) = (command(plane, "etcd")?, command(plane, "infra/kube-apiserver")?);
        Ok(Self {
            program: build()?,
            endpoint: flag(&client, "--etcd-servers")?,
            peer: flag(&server, "--initial-advertise-peer-urls")?,
            data: flag(&server, "--data-dir")?.into(),
        })
    }

    /// Runs etcdctl.
    pub fn ctl(&self, args: &[&str]) -> anyhow::Result<String> {
        let mut command = Command::new(&self.program);
        command.args(["etcdctl", "--endpoints", &self.endpoint]).args(args);
        command.current_dir(self.data.parent().context("no directory")?);
        output(command)
    }

    /// The latest revision.
    pub fn revision(&self) -> anyhow::Result<u64> {
        let status: Value = serde_json::from_str(&self.ctl(&["endpoint", "status", "-w", "json"])?)?;
        status.pointer("/0/Status/header/revision").and_then(Value::as_u64).context("no revision")
    }

    /// Forgets the history of all keys up to now.
    pub fn compact(&self) -> anyhow::Result<u64> {
        let revision = self.revision()?;
        self.ctl(&["compaction", &revision.to_string(), "--physical"])?;
        Ok(revision)
    }

    /// Saves a snapshot.
    pub fn save(&self, file: &Path) -> anyhow::Result<()> {
        self.ctl(&["snapshot", "save", &file.display().to_string()]).map(drop)
    }

    /// Puts a snapshot in place of the data of an etcd that has been stopped, with revisions that continue so much later
    /// than those of the snapshot.
    pub fn restore(&self, snapshot: &Path, bump: Option<u64>) -> anyhow::Result<()> {
        std::fs::remove_dir_all(&self.data)?;
        let mut command = Command::new(&self.program);
        command.args(["etcdutl", "snapshot", "restore"]).arg(snapshot);
        command.arg(format!("--data-dir={}", self.data.display()));
        command.arg(format!("--initial-cluster=etcd={}", self.peer));
        command.args(["--name=etcd", &format!("--initial-advertise-peer-urls={}", self.peer)]);
        if let Some(bump) = bump {
            command.args([&format!("--bump-revision={bump}"), "--mark-compacted"]);
        }
        output(command).map(drop)
    }
}
