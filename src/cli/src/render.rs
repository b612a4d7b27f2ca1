//! `outrigger render`

use std::io::Write;
use std::process::ExitCode;

use anstyle::{AnsiColor, Style};
use clap::{Args, ValueEnum};
use json_patch::Patch;
use outrigger_admission::Decision;
use outrigger_admission::review::Request;
use outrigger_core::json::text;
use outrigger_core::yaml;
use serde_json::{Value, json};
use similar::TextDiff;

use crate::admission::{Admission, StateArgs};
use crate::attributes::ReadAttributes;
use crate::companion::{PodName, companion, creation};
use crate::document::{plain, plain_lines};
use crate::files::InputError;
use crate::sent::AnnotationArgs;
use crate::slots::is_new;
use crate::state::State;
use crate::style::{BAD, BOLD, GOOD, ODD};

#[derive(Debug, Args)]
pub(crate) struct RenderArgs {
    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "yaml")]
    output: Output,

    /// User that creates the Pods.
    #[arg(long = "as", value_name = "USER", default_value = "kubernetes-admin")]
    user: String,

    /// Namespace of Pods that don't name one.
    #[arg(short, long, value_name = "NAMESPACE", default_value = "default")]
    namespace: String,

    /// Render the companion of this rule, in the namespace of a tenant, instead of Pods. Needs --workload.
    #[arg(long, value_name = "NAME", requires = "workload", conflicts_with = "user")]
    rule: Option<String>,

    /// The workload of the companion: a Pod in the files.
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = PodName::parse, requires = "rule")]
    workload: Option<PodName>,

    #[command(flatten)]
    annotations: AnnotationArgs,

    #[command(flatten)]
    state: StateArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// The Pod.
    Yaml,
    /// The Pod; several Pods as a List.
    Json,
    /// The changes of admission, as a JSON patch (RFC 6902).
    Patch,
    /// The changes of admission, as a unified diff of YAML, in colour on a terminal.
    Diff,
}

struct Admitted {
    before: Value,
    after: Value,
    patch: Patch,
}

impl RenderArgs {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let StateArgs { filename, admission } = self.state;
        let mut admission = Admission::new(State::read(&filename)?, admission)?;
        admission.forget_new_pods();
        let allowed = self.annotations.allowed()?;
        let attributes = ReadAttributes::of_files(admission.state(), self.annotations.device_attributes()?)?;
        let mut denied = 0;
        let mut requests = Vec::new();
        match (&self.rule, &self.workload) {
            (Some(rule), Some(workload)) => {
                match companion(&admission, rule, workload, &allowed, &attributes)? {
                    Ok((request, left_out)) => {
                        for what in left_out {
                            complain("Warning:", ODD, &what)?;
                        }
                        requests.push(request);
                    }
                    Err(why) => {
                        denied += 1;
                        complain("Error:", BAD, &format!("no companion: {why}"))?;
                    }
                }
            }
            _ => requests = pods(&admission, &self.user, &self.namespace)?,
        }
        let mut admitted = Vec::new();
        for mut request in requests {
            let before = request.object.clone();
            match admission.decide(&mut request) {
                Decision::Allow { patch, warnings, .. } => {
                    for warning in warnings {
                        complain("Warning:", ODD, &warning)?;
                    }
                    admitted.push(Admitted { before, after: request.object, patch });
                }
                Decision::Deny { code, message, .. } => {
                    denied += 1;
                    let message = if code == 503 && !admission.has_namespace(&request.namespace) {
                        no_namespace(&before, &request.namespace)
                    } else {
                        format!("{} is denied ({code}): {message}", name(&before))
                    };
                    complain("Error:", BAD, &message)?;
                }
            }
        }
        print(self.output, &admitted, &mut anstream::stdout().lock())?;
        Ok(if denied > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

/// The creation of each Pod that has never been in a cluster.
fn pods(admission: &Admission, user: &str, namespace: &str) -> Result<Vec<Request>, InputError> {
    let mut requests = Vec::new();
    for object in admission.state().of("", "Pod").filter(|object| is_new(&object.value)) {
        let mut pod = object.value.clone();
        let namespace = if object.namespace.is_empty() { namespace } else { &object.namespace };
        if let Some(metadata) = pod.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.insert("namespace".to_owned(), namespace.into());
        }
        requests.push(creation(user, namespace, &pod)?);
    }
    if requests.is_empty() {
        let message = "has no Pod to render: one without metadata.uid, which no API server has seen";
        return Err(InputError::new("--filename", message));
    }
    Ok(requests)
}

/// Why nothing can be decided about a Pod: the labels of its namespace determine which webhooks are called.
fn no_namespace(pod: &Value, namespace: &str) -> String {
    format!(
        "{} can't be rendered: the files have no Namespace {namespace}; add it with its labels, or the Tenant or \
         NamespaceOffloading that it belongs to",
        name(pod)
    )
}

/// A line on standard error.
fn complain(what: &str, style: Style, message: &str) -> std::io::Result<()> {
    writeln!(anstream::stderr(), "{style}{}{style:#} {}", plain(what), plain_lines(message))
}

/// The name of a Pod or a claim.
fn name(pod: &Value) -> String {
    let kind = pod["kind"].as_str().unwrap_or("Pod");
    let [namespace, name, prefix] =
        ["/metadata/namespace", "/metadata/name", "/metadata/generateName"].map(|at| text(pod, at));
    match (name, prefix) {
        ("", "") => format!("{kind} {namespace}/"),
        ("", prefix) => format!("{kind} {namespace}/{prefix}…"),
        (name, _) => format!("{kind} {namespace}/{name}"),
    }
}

fn print(output: Output, pods: &[Admitted], out: &mut impl Write) -> anyhow::Result<()> {
    match output {
        Output::Yaml => {
            for (i, pod) in pods.iter().enumerate() {
                let line = if i == 0 { "" } else { "---\n" };
                write!(out, "{line}{}", yaml::to_string(&pod.after))?;
            }
        }
        Output::Json => match pods {
            [] => {}
            [pod] => writeln!(out, "{}", serde_json::to_string_pretty(&pod.after)?)?,
            several => {
                let items: Vec<&Value> = several.iter().map(|pod| &pod.after).collect();
                let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
                writeln!(out, "{}", serde_json::to_string_pretty(&list)?)?;
            }
        },
        Output::Patch => {
            for pod in pods {
                writeln!(out, "{}", serde_json::to_string_pretty(&pod.patch)?)?;
            }
        }
        Output::Diff => {
            for pod in pods {
                diff(pod, out)?;
            }
        }
    }
    Ok(())
}

fn diff(pod: &Admitted, out: &mut impl Write) -> anyhow::Result<()> {
    let (before, after) = (yaml::to_string(&pod.before), yaml::to_string(&pod.after));
    let name = name(&pod.before);
    let diff = TextDiff::from_lines(&before, &after);
    let text = diff.unified_diff().context_radius(3).header(&name, &format!("{name} admitted")).to_string();
    for (i, line) in text.lines().enumerate() {
        let style = match line.chars().next() {
            _ if i < 2 => BOLD,
            Some('+') => GOOD,
            Some('-') => BAD,
            Some('@') => AnsiColor::Cyan.on_default(),
            _ => Style::new(),
        };
        writeln!(out, "{style}{line}{style:#}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats() {
        let before = json!({"kind": "Pod", "metadata": {"name": "p", "namespace": "n"}, "spec": {"a": 1}});
        let mut after = before.clone();
        after["spec"]["a"] = json!(2);
        let patch = json_patch::diff(&before, &after);
        let pod = || Admitted { before: before.clone(), after: after.clone(), patch: patch.clone() };
        let printed = |output: Output, pods: &[Admitted]| {
            let mut out = Vec::new();
            print(output, pods, &mut anstream::StripStream::new(&mut out)).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(printed(Output::Yaml, &[pod(), pod()]).matches("---\n").count(), 1);
        let one: Value = serde_json::from_str(&printed(Output::Json, &[pod()])).unwrap();
        assert_eq!(one, after);
        let list: Value = serde_json::from_str(&printed(Output::Json, &[pod(), pod()])).unwrap();
        assert_eq!((&list["kind"], list["items"].as_array().unwrap().len()), (&json!("List"), 2));
        let patch: Value = serde_json::from_str(&printed(Output::Patch, &[pod()])).unwrap();
        assert_eq!(patch, json!([{"op": "replace", "path": "/spec/a", "value": 2}]));
        let diff = printed(Output::Diff, &[pod()]);
        assert!(diff.starts_with("--- Pod n/p\n+++ Pod n/p admitted\n@@"), "{diff}");
        assert!(diff.contains("\n-  a: 1\n+  a: 2\n"), "{diff}");
        assert_eq!(printed(Output::Json, &[]), "");
    }
}
