//! Rules as written, and their validation.

use std::time::Duration;

use super::{DpuSelectionPolicy, Expression, MAX_LINGER, Operator, Ordering, Rule, Test};
use crate::claim::{self, DevicesSpec, RuleParts};
use crate::companion;
use crate::field::{FieldError, FieldErrors};
use crate::gate::OF_NODES;
use crate::ids::RuleName;
use crate::json::Json;
use crate::keys;
use crate::path::Path;
use crate::rollout::UpdateStrategy;
use crate::syntax::Form;
use crate::template;
use crate::unplaced;
use crate::workload::{DEVICE_MAPS, POD};

/// Most terms of a rule.
pub const MAX_TERMS: usize = 64;
/// Most expressions of a term.
pub const MAX_EXPRESSIONS: usize = 64;
/// Most values of an expression.
pub const MAX_VALUES: usize = 1024;
/// Most injections of a rule.
pub const MAX_INJECTIONS: usize = 256;

/// A rule as written, not yet validated.
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
    pub template: Json,
    /// What it says of devices.
    pub devices: DevicesSpec,
    /// How its companions are brought to a new template.
    pub update: UpdateStrategy,
    /// Whether its companions are resized in place, where that is possible.
    pub resizes: bool,
    /// Whether its companions get other images, more tolerations and another `activeDeadlineSeconds` in place, where that is possible.
    pub updates: bool,
    /// Whether workloads wait for their companions.
    pub ordering: Ordering,
    /// How many seconds companions outlive their workloads.
    pub linger_seconds: i64,
    /// Whether workloads that can't be scheduled yet have companions.
    pub serves_gated: bool,
}

impl RuleSpec {
    /// A rule that every Pod matches, without injections, devices and template.
    pub fn new(name: RuleName) -> Self {
        Self {
            name,
            uid: "u".into(),
            generation: 1,
            resource_kind: String::new(),
            terms: vec![vec![ExpressionSpec::new("@", Operator::Exists, &[])]],
            injections: Vec::new(),
            policy: DpuSelectionPolicy::default(),
            template: Json::default(),
            devices: DevicesSpec::default(),
            update: UpdateStrategy::default(),
            resizes: true,
            updates: false,
            ordering: Ordering::default(),
            linger_seconds: 0,
            serves_gated: false,
        }
    }
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

impl ExpressionSpec {
    /// A test of the field `key`.
    pub fn new(key: &str, operator: Operator, values: &[&str]) -> Self {
        Self { key: key.into(), operator, values: values.iter().map(ToString::to_string).collect() }
    }
}

/// A fact for the companion, not yet checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InjectionSpec {
    /// The fact's path, in any spelling of [`Path::parse`].
    pub workload_key: String,
    /// Key of the annotation that it becomes.
    pub annotation: String,
}

impl InjectionSpec {
    /// The fact at the path `workload_key`, as an annotation.
    pub fn new(workload_key: &str, annotation: &str) -> Self {
        Self { workload_key: workload_key.into(), annotation: annotation.into() }
    }
}

impl Rule {
    /// Checks a rule and makes it fast. The template is carried as it is; [`crate::template::check`] is about it.
    pub fn compile(spec: RuleSpec) -> Result<Self, Vec<FieldError>> {
        let mut errors = Vec::new();
        let resource_kind = match spec.resource_kind.as_str() {
            "" | POD => POD.to_owned(),
            other => {
                errors.refuse("spec.resourceKind", other, "is not supported; use v1/Pod");
                String::new()
            }
        };
        let terms = compile_terms(&spec.terms, &mut errors);
        check_ordering(spec.ordering, &terms, &mut errors);
        let linger = compile_linger(spec.linger_seconds, &mut errors);
        let injections = compile_injections(&spec.injections, &mut errors);
        let template = spec.template.tree();
        let parts =
            RuleParts { name: &spec.name, uid: &spec.uid, policy: spec.policy, devices: &spec.devices };
        let devices = claim::compile(&parts, &template, &mut errors);
        if !errors.is_empty() {
            return Err(errors);
        }
        Ok(Self {
            template_hash: companion::template_hash(spec.policy, &template, &devices),
            content_hash: companion::content_hash(spec.policy, &template, &devices),
            parts: companion::parts(spec.policy, &template, &devices),
            name: spec.name,
            uid: spec.uid,
            generation: spec.generation,
            resource_kind,
            terms,
            injections,
            policy: spec.policy,
            wants: unplaced::wants(spec.policy, &template),
            kind: template::kind(&template),
            template: spec.template,
            devices,
            update: spec.update,
            resizes: spec.resizes,
            updates: spec.updates,
            ordering: spec.ordering,
            linger,
            serves_gated: spec.serves_gated,
            copied: false,
        })
    }
}

fn compile_terms(terms: &[Vec<ExpressionSpec>], errors: &mut Vec<FieldError>) -> Vec<Vec<Expression>> {
    const ROOT: &str = "spec.workloadTerms";
    if terms.is_empty() {
        errors.add(ROOT, "is empty, so no workload could match: add a term with an expression");
    }
    too_many(ROOT, terms.len(), MAX_TERMS, errors);
    let mut compiled = Vec::with_capacity(terms.len());
    for (t, term) in terms.iter().enumerate().take(MAX_TERMS) {
        let root = format!("{ROOT}[{t}].matchExpressions");
        if term.is_empty() {
            errors.add(
                &root,
                "is empty, and such a term matches nothing: add an expression, \
                 for every workload {key: .metadata.id, operator: Exists}",
            );
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

/// Refuses rules whose workloads would wait for themselves: the companion for a field that changes when the workload is Ready or
/// starts, and that for the companion. Also where the field's absence is required: the companion would be deleted as soon as the
/// workload has waited for it.
fn check_ordering(ordering: Ordering, terms: &[Vec<Expression>], errors: &mut Vec<FieldError>) {
    // Where an expression is invalid, the positions of the others aren't those of the spec.
    if !ordering.gates() || !errors.is_empty() {
        return;
    }
    for (t, term) in terms.iter().enumerate() {
        for (e, expression) in term.iter().enumerate() {
            let why = match &expression.path {
                Path::Ready => {
                    "is the condition that waits for the companion; remove the expression, or set spec.ordering to Parallel"
                }
                Path::ExtraEntry(map, key)
                    if ordering.holds() && **map == *"annotations" && keys::is_written_at_start(key) =>
                {
                    "is written when the workload starts, and that waits for the companion; remove the expression, or set \
                     spec.ordering to BeforeReady"
                }
                Path::ExtraEntry(map, key)
                    if ordering == Ordering::BeforeBinding
                        && **map == *"labels"
                        && OF_NODES.contains(&&**key) =>
                {
                    "is copied from the Node when the workload is bound, and that waits for the companion; remove the expression, or \
                     set spec.ordering to BeforeStart"
                }
                Path::ExtraMap(map) | Path::ExtraEntry(map, _) if DEVICE_MAPS.contains(&&**map) => {
                    "is known when the workload has devices or later, and whether it waits is decided before; remove the expression, or \
                     set spec.ordering to Parallel"
                }
                _ => continue,
            };
            let path = format!("spec.workloadTerms[{t}].matchExpressions[{e}].key");
            errors.refuse(path, &expression.path.to_string(), why);
        }
    }
}

fn compile_linger(seconds: i64, errors: &mut Vec<FieldError>) -> Duration {
    let valid = u32::try_from(seconds).ok().filter(|seconds| *seconds <= MAX_LINGER);
    let valid = valid.unwrap_or_else(|| {
        let wanted =
            format!("is {seconds}; use 0 (a companion is deleted with its workload) to {MAX_LINGER}");
        errors.add("spec.lingerSeconds", wanted);
        0
    });
    Duration::from_secs(valid.into())
}

fn too_many(path: &str, count: usize, max: usize, errors: &mut Vec<FieldError>) {
    if count > max {
        errors.add(path, format!("has {count} entries, at most {max} are allowed"));
    }
}

fn compile_expression(spec: &ExpressionSpec, root: &str) -> Result<Expression, FieldError> {
    let path = Path::parse(&spec.key)
        .map_err(|error| FieldError::of_value(format!("{root}.key"), &spec.key, error.to_string()))?;
    let values = format!("{root}.values");
    let operator = spec.operator.as_str();
    if !path.is_scalar() && !matches!(spec.operator, Operator::Exists | Operator::DoesNotExist) {
        return Err(FieldError::of_value(
            format!("{root}.key"),
            &spec.key,
            format!("is an object, which {operator} can't compare; name a field in it, or use Exists"),
        ));
    }
    let test = match spec.operator {
        Operator::In | Operator::NotIn => {
            if spec.values.is_empty() {
                return Err(FieldError::new(values, format!("{operator} needs at least one value")));
            }
            if spec.values.len() > MAX_VALUES {
                let count = spec.values.len();
                let message = format!("has {count} entries, at most {MAX_VALUES} are allowed");
                return Err(FieldError::new(values, message));
            }
            let mut sorted = spec.values.clone();
            sorted.sort_unstable();
            sorted.dedup();
            if spec.operator == Operator::In { Test::In(sorted) } else { Test::NotIn(sorted) }
        }
        Operator::Exists | Operator::DoesNotExist => {
            // The gRPC definition speaks of a single element here, the custom resource of none.
            if spec.values.len() > 1 {
                let message = format!("{operator} takes one value at most, which is ignored; remove them");
                return Err(FieldError::new(values, message));
            }
            if spec.operator == Operator::Exists { Test::Exists } else { Test::DoesNotExist }
        }
        Operator::Gt | Operator::Lt => {
            let [value] = spec.values.as_slice() else {
                return Err(FieldError::new(
                    values,
                    format!("{operator} takes exactly one value, an integer"),
                ));
            };
            let limit = value.parse().map_err(|_| {
                FieldError::of_value(
                    format!("{values}[0]"),
                    value,
                    format!("{operator} needs an integer of 64 bits"),
                )
            })?;
            if spec.operator == Operator::Gt { Test::Gt(limit) } else { Test::Lt(limit) }
        }
    };
    Ok(Expression { path, test })
}

fn compile_injections(specs: &[InjectionSpec], errors: &mut Vec<FieldError>) -> Vec<(String, Path)> {
    const ROOT: &str = "spec.workloadInfoInject";
    too_many(ROOT, specs.len(), MAX_INJECTIONS, errors);
    let mut compiled: Vec<(String, Path)> = Vec::with_capacity(specs.len());
    for (i, spec) in specs.iter().enumerate().take(MAX_INJECTIONS) {
        let name = format!("{ROOT}[{i}].asAnnotation.name");
        if let Err(why) = check_annotation(&spec.annotation) {
            errors.refuse(name, &spec.annotation, why);
        } else if specs.iter().take(i).any(|earlier| earlier.annotation == spec.annotation) {
            errors.refuse(name, &spec.annotation, "is written by an earlier entry already");
        }
        match Path::parse(&spec.workload_key) {
            Ok(path) => compiled.push((spec.annotation.clone(), path)),
            Err(e) => errors.refuse(format!("{ROOT}[{i}].workloadKey"), &spec.workload_key, e.to_string()),
        }
    }
    compiled
}

/// Whether a text is an annotation key that a rule may write: one that the API server takes, and not one of ours, but for the one
/// that carries the workload.
fn check_annotation(key: &str) -> Result<(), String> {
    if !Form::AnnotationKey.accepts(key) {
        return Err(format!("use {}", Form::AnnotationKey));
    }
    if keys::is_own(key) && key != keys::WORKLOAD {
        return Err(format!("keys under {} are set by Outrigger alone; use another", keys::DOMAIN));
    }
    Ok(())
}
