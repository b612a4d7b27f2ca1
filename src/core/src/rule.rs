//! Rules: compiled once, evaluated for each workload.
//!
//! Matching follows node affinity, as the documents say: terms are ORed, expressions ANDed, `NotIn` and `DoesNotExist`
//! match where the field is absent, `Gt` and `Lt` take one integer and don't match where the field is absent or none.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde_json::{Value, json};

use crate::annotations;
use crate::claim::Devices;
use crate::fault;
use crate::ids::RuleName;
use crate::json::Json;
use crate::keys;
use crate::path::{Path, Scalar};
use crate::rollout::UpdateStrategy;
use crate::selector;
use crate::template;
use crate::text::truncate;
use crate::workload::Workload;

mod compile;
mod verdict;

pub use compile::{
    ExpressionSpec, InjectionSpec, MAX_EXPRESSIONS, MAX_INJECTIONS, MAX_TERMS, MAX_VALUES, RuleSpec,
};
pub use verdict::{Verdict, term_verdict};

pub use crate::ordering::Ordering;

/// On which DPU a companion runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DpuSelectionPolicy {
    /// On a DPU of the host that the workload runs on.
    #[default]
    SameNode,
    /// On the primary DPU of that host: one with the label [`keys::PRIMARY`].
    SameNodePrimary,
    /// One on each DPU of that host.
    SameNodeAll,
    /// On any DPU of the tenant.
    Any,
}

impl DpuSelectionPolicy {
    /// As the API spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SameNode => "SameNode",
            Self::SameNodePrimary => "SameNodePrimary",
            Self::SameNodeAll => "SameNodeAll",
            Self::Any => "Any",
        }
    }

    /// Whether a workload has a companion on each DPU of its host, and not only one.
    pub fn is_on_all(self) -> bool {
        self == Self::SameNodeAll
    }

    /// Whether the companion runs in the host of its workload.
    pub fn is_by_host(self) -> bool {
        self != Self::Any && !(self == Self::SameNodePrimary && fault("primary-dpu-is-of-any-host"))
    }

    /// The terms of node affinity that select among the tenant's DPUs, beside those that name the host
    /// ([`crate::host::HostLabels::terms`]). There may be none.
    pub fn terms(self) -> Vec<Value> {
        match self {
            Self::SameNodePrimary if !fault("any-dpu-of-the-host-is-primary") => {
                vec![json!({"matchExpressions": [selector::requirement(keys::PRIMARY, "true")]})]
            }
            Self::SameNode | Self::SameNodePrimary | Self::SameNodeAll | Self::Any => Vec::new(),
        }
    }
}

impl FromStr for DpuSelectionPolicy {
    type Err = &'static str;

    /// Reads what the API spells. The error says what to use instead.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let all = [Self::SameNode, Self::SameNodePrimary, Self::SameNodeAll, Self::Any];
        all.into_iter().find(|policy| policy.as_str() == text).ok_or(
            "use SameNode (a DPU of the workload's host), SameNodePrimary (the primary one of them), SameNodeAll (each of them) or Any (any \
             DPU of the tenant)",
        )
    }
}

/// Most seconds that a companion may outlive its workload. Connections drain and logs are sent within minutes. A companion that lingers
/// holds its resources on the DPU and counts against the tenant's quotas, so an hour is the most that a mistake costs.
pub const MAX_LINGER: u32 = 3600;

/// Bytes that an expression, a value of one, or an injection takes beyond its text.
const ENTRY: u64 = 256;

/// Size of a rule for [`crate::tenant::Limits::rule_bytes`]: the bytes of its spec as JSON, and what its expressions, their values and
/// its injections take beside their text where they are indexed. It is at least half of what a rule takes in memory.
pub fn size(json: usize, entries: usize) -> u64 {
    let [json, entries] = [json, entries].map(|count| u64::try_from(count).unwrap_or(u64::MAX));
    json.saturating_add(entries.saturating_mul(ENTRY))
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

impl Test {
    /// Its operator, as the API spells it, and what the field is compared with.
    pub fn parts(&self) -> (&'static str, Vec<String>) {
        let (operator, values) = match self {
            Self::In(values) => (Operator::In, values.clone()),
            Self::NotIn(values) => (Operator::NotIn, values.clone()),
            Self::Exists => (Operator::Exists, Vec::new()),
            Self::DoesNotExist => (Operator::DoesNotExist, Vec::new()),
            Self::Gt(limit) => (Operator::Gt, vec![limit.to_string()]),
            Self::Lt(limit) => (Operator::Lt, vec![limit.to_string()]),
        };
        (operator.as_str(), values)
    }

    /// What it wants of the field, in words: of many values the first few.
    pub fn wants(&self) -> String {
        const SHOWN: usize = 8;
        let some = |values: &[String]| {
            let shown = values.iter().take(SHOWN).map(|value| format!("{:?}", shortened(value)));
            let shown = shown.collect::<Vec<_>>().join(", ");
            match values.len().saturating_sub(SHOWN) {
                0 => shown,
                more => format!("{shown} and {more} more"),
            }
        };
        match self {
            Self::In(values) if values.len() == 1 => some(values),
            Self::In(values) => format!("one of {}", some(values)),
            Self::NotIn(values) => format!("none of {}", some(values)),
            Self::Exists => "it to be there".to_owned(),
            Self::DoesNotExist => "it to be absent".to_owned(),
            Self::Gt(limit) => format!("an integer greater than {limit}"),
            Self::Lt(limit) => format!("an integer less than {limit}"),
        }
    }
}

/// A value of a rule or a workload, as explanations show it.
pub fn shortened(value: &str) -> Cow<'_, str> {
    truncate(value, 120)
}

impl Expression {
    /// Whether a workload passes.
    pub fn matches(&self, workload: &Workload) -> bool {
        let text = || self.path.scalar(workload).map(Scalar::as_str);
        let among = |values: &[String]| {
            text().map(|text| values.binary_search_by(|value| value.as_str().cmp(text)).is_ok())
        };
        let integer = || text().and_then(|text| text.parse::<i64>().ok());
        match &self.test {
            Test::In(values) => among(values) == Some(true),
            Test::NotIn(values) => among(values) != Some(true),
            Test::Exists => {
                self.path.exists(workload)
                    && !(text().is_some_and(str::is_empty) && fault("an-empty-value-does-not-exist"))
            }
            Test::DoesNotExist => !self.path.exists(workload),
            Test::Gt(limit) => integer().is_some_and(|value| value > *limit),
            Test::Lt(limit) => integer().is_some_and(|value| value < *limit),
        }
    }

    /// Whether a workload passes of which these fields are unknown.
    pub fn verdict(&self, workload: &Workload, unknown: impl Fn(&Path) -> bool) -> Verdict {
        if unknown(&self.path) { Verdict::Unknown } else { self.matches(workload).into() }
    }
}

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.path, self.test.parts().0)?;
        match &self.test {
            Test::In(values) | Test::NotIn(values) => write!(f, " {values:?}"),
            Test::Gt(limit) | Test::Lt(limit) => write!(f, " {limit}"),
            Test::Exists | Test::DoesNotExist => Ok(()),
        }
    }
}

/// What an expression finds in a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExprOutcome<'a> {
    /// The expression.
    pub expression: &'a Expression,
    /// The field's text, an object as JSON; `None` where the workload lacks it.
    pub actual: Option<Cow<'a, str>>,
    /// Whether the workload passes.
    pub passes: Verdict,
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
    template: Json,
    /// What [`crate::unplaced::wants`] returned for the template.
    wants: Json,
    kind: template::Kind,
    template_hash: String,
    content_hash: String,
    parts: Option<String>,
    devices: Devices,
    update: UpdateStrategy,
    /// Whether its companions are resized in place, where that is possible.
    pub(crate) resizes: bool,
    /// Whether its companions get other images, more tolerations and another `activeDeadlineSeconds` in place, where that is possible.
    pub(crate) updates: bool,
    ordering: Ordering,
    linger: Duration,
    serves_gated: bool,
    copied: bool,
}

impl Rule {
    /// Its name.
    pub fn name(&self) -> &RuleName {
        &self.name
    }

    /// The same as an admin rule.
    #[must_use]
    pub fn into_admin(self) -> Self {
        Self { name: self.name.into_admin(), ..self }
    }

    /// The same as a rule that the tenant's agent has copied from the tenant's cluster.
    #[must_use]
    pub fn into_copied(self) -> Self {
        Self { copied: true, ..self }
    }

    /// Whether the tenant's agent has copied it from the tenant's cluster: agents of all versions send the annotations that it names
    /// before they send it.
    pub fn is_copied(&self) -> bool {
        self.copied
    }

    /// What is needed to admit its companions: neither which workloads it is about, nor the text of its template and of its
    /// device claims. They are most of a rule's memory.
    #[must_use]
    pub fn for_admission(self) -> Self {
        Self { terms: Vec::new(), ..self.for_matching() }
    }

    /// What is needed to match workloads: neither the text of its template nor that of its device claims.
    #[must_use]
    pub fn for_matching(self) -> Self {
        let devices = self.devices.without_specs();
        Self { template: Json::default(), wants: Json::default(), devices, ..self }
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

    /// Its companion, as written. The tree is built again each time.
    pub fn template(&self) -> Value {
        self.template.tree()
    }

    /// The parts of its template that decide on which Nodes companions may run, as a Pod ([`crate::unplaced`]).
    pub fn wants(&self) -> &Json {
        &self.wants
    }

    /// [`crate::companion::template_hash`] of it.
    pub fn template_hash(&self) -> &str {
        &self.template_hash
    }

    /// [`crate::companion::content_hash`] of it.
    pub fn content_hash(&self) -> &str {
        &self.content_hash
    }

    /// [`crate::companion::parts`] of it.
    pub fn parts(&self) -> Option<&str> {
        self.parts.as_deref()
    }

    /// Whether it makes the same as a companion with these hashes, [`crate::keys::TEMPLATE_HASH`] and
    /// [`crate::keys::CONTENT_HASH`], is. One is enough: a later release may determine better what a template means, and earlier
    /// releases don't write that hash.
    pub fn makes(&self, template: &str, content: Option<&str>) -> bool {
        template == self.template_hash || content.unwrap_or(template) == self.content_hash
    }

    /// What its companions are.
    pub fn kind(&self) -> template::Kind {
        self.kind
    }

    /// What it says of devices.
    pub fn devices(&self) -> &Devices {
        &self.devices
    }

    /// How its companions are brought to a new template.
    pub fn update(&self) -> UpdateStrategy {
        self.update
    }

    /// Whether the companion of a workload that it matches waits: for the node that it has to be on, or because the workload can't be scheduled
    /// yet and the rule doesn't serve such (`spec.gatedWorkloads`). A queue may hold thousands of workloads for days, whose companions would
    /// take the room of those that run.
    pub fn waits(&self, workload: &Workload) -> bool {
        let is_queued = workload.gated && !self.serves_gated && !fault("gated-workload-is-served");
        is_queued || self.policy.is_by_host() && workload.node_name.is_none()
    }

    /// How long its companions outlive their workloads. It isn't part of the template either.
    pub fn linger(&self) -> Duration {
        self.linger
    }

    /// Whether its workloads wait for their companions. It isn't part of the template: a change replaces no companion.
    pub fn ordering(&self) -> Ordering {
        self.ordering
    }

    /// Kind of the workloads that it is about.
    pub fn resource_kind(&self) -> &str {
        &self.resource_kind
    }

    /// The facts that companions get: key of the annotation, path in the workload.
    pub fn injections(&self) -> impl Iterator<Item = (&str, &Path)> {
        self.injections.iter().map(|(annotation, path)| (annotation.as_str(), path))
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

    /// Whether a workload matches of which these fields are unknown.
    pub fn verdict(&self, workload: &Workload, unknown: impl Fn(&Path) -> bool) -> Verdict {
        let term = |term: &Vec<Expression>| term_verdict(term, workload, &unknown);
        let terms = if self.is_about(workload) { self.terms.as_slice() } else { &[] };
        terms.iter().map(term).max().unwrap_or(Verdict::No)
    }

    /// Whether a workload matches, or could match once the values of some fields are known.
    pub fn could_match(&self, workload: &Workload, unknown: &[Path]) -> bool {
        self.verdict(workload, |path| unknown.contains(path)) != Verdict::No
    }

    /// The keys of the annotations of workloads that it names, in its expressions and in the facts that it injects. Those that no
    /// annotation can have are left out.
    pub fn annotation_keys(&self) -> BTreeSet<&str> {
        let compared = self.terms.iter().flatten().map(|expression| &expression.path);
        let paths = compared.chain(self.injections.iter().map(|(_, path)| path));
        paths.filter_map(annotations::key_of).filter(|key| annotations::is_key(key)).collect()
    }

    /// What each expression of each term finds in a workload of which these fields are unknown, for people. Whether the workload is of
    /// the rule's kind is [`Self::is_about`]'s.
    pub fn evaluate<'a>(
        &'a self,
        workload: &'a Workload,
        unknown: impl Fn(&Path) -> bool,
    ) -> Vec<Vec<ExprOutcome<'a>>> {
        let outcome = |expression: &'a Expression| {
            let path = &expression.path;
            let actual = match path.scalar(workload) {
                Some(value) => Some(Cow::Borrowed(value.as_str())),
                None => path.render(workload).map(Cow::Owned),
            };
            ExprOutcome { expression, actual, passes: expression.verdict(workload, &unknown) }
        };
        self.terms.iter().map(|term| term.iter().map(outcome).collect()).collect()
    }

    /// The annotations that a workload's companion gets. A fact that the workload lacks gives none.
    pub fn injected(&self, workload: &Workload) -> BTreeMap<String, String> {
        self.injections
            .iter()
            .filter_map(|(annotation, path)| Some((annotation.clone(), path.render(workload)?)))
            .collect()
    }
}

#[cfg(test)]
pub(crate) mod tests;
