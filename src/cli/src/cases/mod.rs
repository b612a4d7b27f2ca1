//! `outrigger test`

mod compare;
mod table;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use outrigger_admission::Decision;
use outrigger_admission::review::Request;
use outrigger_agent::annotations::Allowed;
use outrigger_core::yaml::OF_FILES;
use outrigger_webhook::settings::AdmissionArgs;
use serde::Deserialize;
use serde_json::Value;

use crate::admission::Admission;
use crate::attributes::ReadAttributes;
use crate::companion::{PodName, companion, creation};
use crate::files::{self, InputError, Object, Origin};
use crate::state::State;

#[derive(Debug, Args)]
pub(crate) struct TestArgs {
    /// File or directory of cases, as docs/offline.md describes them. Documents that are objects (they have an apiVersion) are
    /// ignored, so that cases and states may be in one directory.
    #[arg(value_name = "DIR")]
    dir: PathBuf,

    /// State of all cases, to which each adds its own. May be given several times.
    #[arg(short, long = "filename", value_name = "FILE")]
    filename: Vec<PathBuf>,

    /// Also write the results as JUnit XML to this file.
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,

    #[command(flatten)]
    admission: AdmissionArgs,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    /// Names of files, from where the case is, and objects.
    #[serde(default)]
    state: Vec<Value>,
    /// A request of an AdmissionReview, or a whole one.
    request: Option<Value>,
    /// Instead of a request: a Pod to be created.
    pod: Option<Value>,
    /// Instead of a request: the companion of a rule for a Pod of the state.
    companion: Option<CompanionOf>,
    user: Option<String>,
    namespace: Option<String>,
    expect: Expect,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CompanionOf {
    rule: String,
    /// `NAMESPACE/NAME`
    workload: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Expect {
    allowed: bool,
    /// Whether admission changes the object.
    patched: Option<bool>,
    /// Fields that the admitted object must have.
    pod: Option<Value>,
    /// Part of the denial.
    message: Option<String>,
    /// Parts of the warnings; an empty list: there are no warnings.
    warnings: Option<Vec<String>>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CaseResult {
    /// The file it is in.
    pub(crate) file: String,
    pub(crate) name: String,
    /// Differences from the expected answer; empty where the case passed.
    pub(crate) faults: Vec<String>,
}

impl TestArgs {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let common = files::read(&self.filename)?;
        let mut outcomes = Vec::new();
        for file in files::files(&self.dir)? {
            run_file(&file, &common, &self.admission, &mut outcomes)?;
        }
        if outcomes.is_empty() {
            return Err(InputError::new(self.dir.display(), "has no case").into());
        }
        table::print(&outcomes, &mut anstream::stdout().lock())?;
        if let Some(file) = &self.junit {
            let xml = table::junit(&outcomes)?;
            std::fs::write(file, xml).with_context(|| format!("{} can't be written", file.display()))?;
        }
        let failed = outcomes.iter().any(|outcome| !outcome.faults.is_empty());
        Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}

fn run_file(
    file: &Path,
    common: &[Object],
    args: &AdmissionArgs,
    outcomes: &mut Vec<CaseResult>,
) -> Result<(), InputError> {
    let shown = file.display().to_string();
    let text = files::text_of_file(file)?;
    for (i, document) in files::documents(&shown, &text, OF_FILES)?.into_iter().enumerate() {
        if document.is_null() || document.get("apiVersion").is_some() {
            continue;
        }
        let place = format!("{shown}: document {}", i + 1);
        let case: Case =
            serde_path_to_error::deserialize(&document).map_err(|error| InputError::new(&place, error))?;
        let name = case.name.clone();
        let faults = run_case(case, file, &place, common, args)?;
        outcomes.push(CaseResult { file: shown.clone(), name, faults });
    }
    Ok(())
}

/// Differences from the expected answer.
fn run_case(
    case: Case,
    file: &Path,
    place: &str,
    common: &[Object],
    args: &AdmissionArgs,
) -> Result<Vec<String>, InputError> {
    let mut objects = common.to_vec();
    for (i, part) in case.state.iter().enumerate() {
        match part {
            Value::String(name) => {
                let path = file.parent().unwrap_or(Path::new(".")).join(name);
                objects.append(&mut files::read(&[path])?);
            }
            object => {
                files::take(&Origin::new(format_args!("{place}: state[{i}]")), object.clone(), &mut objects)?;
            }
        }
    }
    let admission = Admission::new(State::new(objects), args.clone())?;
    let (decision, object) = match request(&case, place, &admission)? {
        Ok(mut request) => (admission.decide(&mut request), request.object),
        // There is nothing to admit, which is reported like a denial.
        Err(message) => (Decision::deny(0, message), Value::Null),
    };
    Ok(compare::faults(&case.expect, &decision, &object))
}

fn request(case: &Case, place: &str, admission: &Admission) -> Result<Result<Request, String>, InputError> {
    let wrong = |reason: &str| InputError::new(place, reason);
    match (&case.request, &case.pod, &case.companion) {
        (Some(request), None, None) if case.user.is_none() && case.namespace.is_none() => {
            let mut request = request.get("request").unwrap_or(request).clone();
            if let Some(request) = request.as_object_mut() {
                request.entry("uid").or_insert_with(|| "offline".into());
            }
            let request = serde_path_to_error::deserialize(request);
            request.map(Ok).map_err(|error| InputError::new(place, format_args!("request: {error}")))
        }
        (Some(_), None, None) => Err(wrong("user, namespace: the request has them; remove them here")),
        (None, Some(pod), None) => {
            let mut pod = pod.clone();
            let of_pod = pod.pointer("/metadata/namespace").and_then(Value::as_str).map(str::to_owned);
            let namespace = case.namespace.clone().or(of_pod).unwrap_or_else(|| "default".to_owned());
            if let Some(pod) = pod.as_object_mut() {
                pod.entry("apiVersion").or_insert_with(|| "v1".into());
                pod.entry("kind").or_insert_with(|| "Pod".into());
            }
            creation(case.user.as_deref().unwrap_or("kubernetes-admin"), &namespace, &pod).map(Ok)
        }
        (None, None, Some(of)) => {
            let name = PodName::parse(&of.workload)
                .map_err(|error| InputError::new(place, format_args!("companion.workload: {error}")))?;
            let attributes = ReadAttributes::unnamed();
            let made = companion(admission, &of.rule, &name, &Allowed::default(), &attributes)?;
            Ok(made.map(|(request, _)| request))
        }
        _ => Err(wrong("needs exactly one of request, pod and companion")),
    }
}

#[cfg(test)]
mod tests;
