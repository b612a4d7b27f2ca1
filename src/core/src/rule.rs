//! Rules: compiled once, evaluated for each workload.
//!
//! Matching follows node affinity, as the documents say: terms are ORed, expressions ANDed, `NotIn` and `DoesNotExist`
//! match where the field is absent, `Gt` and `Lt` take one integer and don't match where the field is absent or none.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde_json::Value;

use crate::companion;
use crate::ids::{RuleName, is_dns_label};
use crate::keys;
use crate::path::Path;
use crate::workload::Workload;

/// Most terms of a rule.
pub const MAX_TERMS: usize = 64;
/// Most expressions of a term.
pub const MAX_EXPRESSIONS: usize = 64;
/// Most values of an expression.
pub const MAX_VALUES: usize = 1024;
/// Most injections of a rule.
pub const MAX_INJECTIONS: usize = 256;
/// The only kind of workload so far.
pub const POD: &str = "v1/Pod";

/// On which DPU a companion runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DpuSelectionPolicy {
    /// On a DPU of the host that the workload runs on.
    #[default]
    SameNode,
    /// On any DPU of the tenant.
    Any,
}

impl DpuSelectionPolicy {
    /// As the API spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SameNode => "SameNode",
            Self::Any => "Any",
        }
    }
}

/// How a field is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    /// Its text is among the values.
    In,
    /// Its text is not among the values, or it is absent.
    NotIn,
    /// It is there.
    Exists,
    /// It is absent.
    DoesNotExist,
    /// It is an integer greater than the value.
    Gt,
    /// It is an integer less than the value.
    Lt,
}

impl Operator {
    /// As the API spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::In => "In",
            Self::NotIn => "NotIn",
            Self::Exists => "Exists",
            Self::DoesNotExist => "DoesNotExist",
            Self::Gt => "Gt",
            Self::Lt => "Lt",
        }
    }
}

impl FromStr for Operator {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        [Self::In, Self::NotIn, Self::Exists, Self::DoesNotExist, Self::Gt, Self::Lt]
            .into_iter()
            .find(|operator| operator.as_str() == text)
            .ok_or(())
    }
}

/// A rule as somebody wrote it, not yet checked.
#[derive(Debug, Clone, PartialEq)]
pub struct RuleSpec {
    /// Its name.
    pub name: RuleName,
    /// Its uid: another rule of the same name has another one.
    pub uid: String,
    /// Its `metadata.generation`.
    pub generation: i64,
    /// Kind of the workloads that it is about; empty means [`POD`].
    pub resource_kind: String,
    /// ORed terms of ANDed expressions.
    pub terms: Vec<Vec<ExpressionSpec>>,
    /// Facts for the companion.
    pub injections: Vec<InjectionSpec>,
    /// Where the companion runs.
    pub policy: DpuSelectionPolicy,
    /// The companion.
    pub template: Value,
}

/// A test of one field, not yet checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpressionSpec {
    /// The field's path, in any spelling of [`Path::parse`].
    pub key: String,
    /// How it is compared.
    pub operator: Operator,
    /// What it is compared with.
    pub values: Vec<String>,
}

/// A fact for the companion, not yet checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InjectionSpec {
    /// The fact's path, in any spelling of [`Path::parse`].
    pub workload_key: String,
    /// Key of the annotation that it becomes.
    pub annotation: String,
}

/// What is wrong with a field of a rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {}", self.detail())]
pub struct RuleError {
    path: String,
    value: String,
    message: String,
}

impl RuleError {
    /// An error about the field at `path` of the custom resource, which holds `value`.
    pub fn new(path: impl Into<String>, value: &str, message: impl Into<String>) -> Self {
        Self { path: path.into(), value: value.chars().take(80).collect(), message: message.into() }
    }

    /// Path of the field, `spec.workloadTerms[0].matchExpressions[1].key`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The field's value, quoted, and what is wrong with it.
    pub fn detail(&self) -> String {
        if self.value.is_empty() { self.message.clone() } else { format!("{:?}: {}", self.value, self.message) }
    }
}

/// A test of one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expression {
    /// The field.
    pub path: Path,
    /// The test.
    pub test: Test,
}

/// How a field is tested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Test {
    /// Its text is among these, which are sorted.
    In(Vec<String>),
    /// Its text is not among these, which are sorted; or it is absent.
    NotIn(Vec<String>),
    /// It is there.
    Exists,
    /// It is absent.
    DoesNotExist,
    /// It is an integer greater than this.
    Gt(i64),
    /// It is an integer less than this.
    Lt(i64),
}

impl Expression {
    /// Whether a workload passes.
    pub fn matches(&self, workload: &Workload) -> bool {
        let text = || self.path.scalar(workload).map(crate::path::Scalar::as_str);
        let among = |values: &[String]| {
            text().map(|text| values.binary_search_by(|value| value.as_str().cmp(text)).is_ok())
        };
        let integer = || text().and_then(|text| text.parse::<i64>().ok());
        match &self.test {
            Test::In(values) => among(values) == Some(true),
            Test::NotIn(values) => among(values) != Some(true),
            Test::Exists => self.path.exists(workload),
            Test::DoesNotExist => !self.path.exists(workload),
            Test::Gt(limit) => integer().is_some_and(|value| value > *limit),
            Test::Lt(limit) => integer().is_some_and(|value| value < *limit),
        }
    }
}

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = &self.path;
        match &self.test {
            Test::In(values) => write!(f, "{path} In {values:?}"),
            Test::NotIn(values) => write!(f, "{path} NotIn {values:?}"),
            Test::Exists => write!(f, "{path} Exists"),
            Test::DoesNotExist => write!(f, "{path} DoesNotExist"),
            Test::Gt(limit) => write!(f, "{path} Gt {limit}"),
            Test::Lt(limit) => write!(f, "{path} Lt {limit}"),
        }
    }
}

/// A rule that has been checked.
#[derive(Debug, Clone)]
pub struct Rule {
    name: RuleName,
    uid: String,
    generation: i64,
    resource_kind: String,
    terms: Vec<Vec<Expression>>,
    injections: Vec<(String, Path)>,
    policy: DpuSelectionPolicy,
    template: Value,
    template_hash: String,
}

impl Rule {
    /// Checks a rule and makes it fast. The template is carried as it is; [`crate::template::check`] is about it.
    ///
    /// # Errors
    /// Everything that is wrong, in the order of the fields.
    pub fn compile(spec: RuleSpec) -> Result<Self, Vec<RuleError>> {
        let mut errors = Vec::new();
        let resource_kind = match spec.resource_kind.as_str() {
            "" | POD => POD.to_owned(),
            other => {
                errors.push(RuleError::new("spec.resourceKind", other, "is not supported; use v1/Pod"));
                String::new()
            }
        };
        let terms = compile_terms(&spec.terms, &mut errors);
        let injections = compile_injections(&spec.injections, &mut errors);
        if !errors.is_empty() {
            return Err(errors);
        }
        Ok(Self {
            template_hash: companion::template_hash(spec.policy, &spec.template),
            name: spec.name,
            uid: spec.uid,
            generation: spec.generation,
            resource_kind,
            terms,
            injections,
            policy: spec.policy,
            template: spec.template,
        })
    }

    /// Its name.
    pub fn name(&self) -> &RuleName {
        &self.name
    }

    /// Its uid.
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// Its `metadata.generation`.
    pub fn generation(&self) -> i64 {
        self.generation
    }

    /// Where its companions run.
    pub fn policy(&self) -> DpuSelectionPolicy {
        self.policy
    }

    /// Its companion, as written.
    pub fn template(&self) -> &Value {
        &self.template
    }

    /// [`companion::template_hash`] of it.
    pub fn template_hash(&self) -> &str {
        &self.template_hash
    }

    /// Its ORed terms.
    pub fn terms(&self) -> &[Vec<Expression>] {
        &self.terms
    }

    /// Whether it is about workloads of this kind.
    pub fn is_about(&self, workload: &Workload) -> bool {
        self.resource_kind == workload.resource_type
    }

    /// Whether a workload matches.
    pub fn matches(&self, workload: &Workload) -> bool {
        self.is_about(workload) && self.terms.iter().any(|term| term.iter().all(|e| e.matches(workload)))
    }

    /// The annotations that a workload's companion gets. A fact that the workload lacks gives none.
    pub fn injected(&self, workload: &Workload) -> BTreeMap<String, String> {
        self.injections
            .iter()
            .filter_map(|(annotation, path)| Some((annotation.clone(), path.render(workload)?)))
            .collect()
    }
}

fn compile_terms(terms: &[Vec<ExpressionSpec>], errors: &mut Vec<RuleError>) -> Vec<Vec<Expression>> {
    const ROOT: &str = "spec.workloadTerms";
    if terms.is_empty() {
        errors.push(RuleError::new(ROOT, "", "is empty, so no workload could match: add a term with an expression"));
    }
    too_many(ROOT, terms.len(), MAX_TERMS, errors);
    let mut compiled = Vec::with_capacity(terms.len());
    for (t, term) in terms.iter().enumerate().take(MAX_TERMS) {
        let root = format!("{ROOT}[{t}].matchExpressions");
        if term.is_empty() {
            errors.push(RuleError::new(
                &root,
                "",
                "is empty, and such a term matches nothing: add an expression, \
                 for every workload {key: .metadata.id, operator: Exists}",
            ));
        }
        too_many(&root, term.len(), MAX_EXPRESSIONS, errors);
        let expressions = term
            .iter()
            .enumerate()
            .take(MAX_EXPRESSIONS)
            .filter_map(|(e, spec)| {
                compile_expression(spec, &format!("{root}[{e}]")).map_err(|error| errors.push(error)).ok()
            })
            .collect();
        compiled.push(expressions);
    }
    compiled
}

fn too_many(path: &str, count: usize, max: usize, errors: &mut Vec<RuleError>) {
    if count > max {
        errors.push(RuleError::new(path, "", format!("has {count} entries, at most {max} are allowed")));
    }
}

fn compile_expression(spec: &ExpressionSpec, root: &str) -> Result<Expression, RuleError> {
    let path = Path::parse(&spec.key)
        .map_err(|error| RuleError::new(format!("{root}.key"), &spec.key, error.to_string()))?;
    let values = format!("{root}.values");
    let operator = spec.operator.as_str();
    if !path.is_scalar() && !matches!(spec.operator, Operator::Exists | Operator::DoesNotExist) {
        return Err(RuleError::new(
            format!("{root}.key"),
            &spec.key,
            format!("is an object, which {operator} can't compare; name a field in it, or use Exists"),
        ));
    }
    let test = match spec.operator {
        Operator::In | Operator::NotIn => {
            if spec.values.is_empty() {
                return Err(RuleError::new(values, "", format!("{operator} needs at least one value")));
            }
            if spec.values.len() > MAX_VALUES {
                let count = spec.values.len();
                let message = format!("has {count} entries, at most {MAX_VALUES} are allowed");
                return Err(RuleError::new(values, "", message));
            }
            let mut sorted = spec.values.clone();
            sorted.sort_unstable();
            sorted.dedup();
            if spec.operator == Operator::In { Test::In(sorted) } else { Test::NotIn(sorted) }
        }
        Operator::Exists | Operator::DoesNotExist => {
            // The gRPC definition speaks of a single element here, the custom resource of none.
            if spec.values.len() > 1 {
                return Err(RuleError::new(values, "", format!("{operator} takes no values; remove them")));
            }
            if spec.operator == Operator::Exists { Test::Exists } else { Test::DoesNotExist }
        }
        Operator::Gt | Operator::Lt => {
            let [value] = spec.values.as_slice() else {
                return Err(RuleError::new(values, "", format!("{operator} takes exactly one value, an integer")));
            };
            let limit = value.parse().map_err(|_| {
                RuleError::new(format!("{values}[0]"), value, format!("{operator} needs an integer of 64 bits"))
            })?;
            if spec.operator == Operator::Gt { Test::Gt(limit) } else { Test::Lt(limit) }
        }
    };
    Ok(Expression { path, test })
}

fn compile_injections(specs: &[InjectionSpec], errors: &mut Vec<RuleError>) -> Vec<(String, Path)> {
    const ROOT: &str = "spec.workloadInfoInject";
    too_many(ROOT, specs.len(), MAX_INJECTIONS, errors);
    let mut compiled: Vec<(String, Path)> = Vec::with_capacity(specs.len());
    for (i, spec) in specs.iter().enumerate().take(MAX_INJECTIONS) {
        let name = format!("{ROOT}[{i}].asAnnotation.name");
        if let Err(why) = check_annotation(&spec.annotation) {
            errors.push(RuleError::new(name, &spec.annotation, why));
        } else if compiled.iter().any(|(before, _)| *before == spec.annotation) {
            errors.push(RuleError::new(name, &spec.annotation, "is written by an earlier entry already"));
        }
        match Path::parse(&spec.workload_key) {
            Ok(path) => compiled.push((spec.annotation.clone(), path)),
            Err(e) => errors.push(RuleError::new(
                format!("{ROOT}[{i}].workloadKey"),
                &spec.workload_key,
                e.to_string(),
            )),
        }
    }
    compiled
}

/// Whether a text is an annotation key that a rule may write: a qualified name (`IsQualifiedName` in apimachinery), and
/// not one of ours, but for the one that carries the workload.
fn check_annotation(key: &str) -> Result<(), Cow<'static, str>> {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    if let Some(prefix) = prefix {
        let subdomain = prefix.len() <= 253 && prefix.to_ascii_lowercase().split('.').all(is_dns_label);
        if !subdomain {
            return Err("the part before '/' must be a DNS subdomain of at most 253 characters".into());
        }
    }
    let edge = |c: char| c.is_ascii_alphanumeric();
    let legal = (1..=63).contains(&name.len())
        && name.starts_with(edge)
        && name.ends_with(edge)
        && name.chars().all(|c| edge(c) || matches!(c, '-' | '_' | '.'));
    if !legal {
        return Err("must be 1 to 63 letters, digits, '-', '_' or '.', beginning and ending with a letter or digit, \
                    perhaps after a DNS subdomain and '/'"
            .into());
    }
    if keys::is_own(key) && key != keys::WORKLOAD {
        return Err(format!("keys under {} are set by Outrigger alone; use another", keys::DOMAIN).into());
    }
    Ok(())
}

#[cfg(test)]
mod tests;
