//! What GitOps tools say of objects: `tests/gitops/judge` runs kstatus, Flux' evaluator of expressions, and the scripts for
//! Argo CD, with the files that are shipped.

use std::fs::File;
use std::process::{Command, Stdio};

use outrigger_tests::control_plane::tool;
use outrigger_tests::root;
use serde::Deserialize;
use serde_json::Value;

/// The words of the tools for one object.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Verdict {
    pub(crate) kstatus: String,
    /// Flux with its expressions.
    pub(crate) flux: String,
    pub(crate) argocd: Health,
}

/// A result in Argo CD's words.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Health {
    pub(crate) status: String,
    pub(crate) message: String,
}

impl Verdict {
    /// kstatus, Flux, Argo CD.
    pub(crate) fn words(&self) -> [&str; 3] {
        [&self.kstatus, &self.flux, &self.argocd.status]
    }
}

/// The verdict on each object.
pub(crate) fn judge(objects: &[Value]) -> Vec<Verdict> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("objects");
    let lines: Vec<String> = objects.iter().map(Value::to_string).collect();
    std::fs::write(&file, lines.join("\n")).unwrap();
    let mut command = Command::new(tool("gitops/judge").unwrap());
    command.args(["deploy/gitops/argocd/argocd-cm.yaml", "deploy/gitops/flux/health-checks.yaml"]);
    command.current_dir(root()).stdin(Stdio::from(File::open(&file).unwrap()));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let verdicts: Vec<Verdict> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(verdicts.len(), objects.len());
    verdicts
}
