//! What a NamespaceOffloading (`offloading.liqo.io`) asks for: on which nodes the Pods of a namespace may run.
//!
//! Virtual nodes stand for other clusters. The selector picks some of them, and the strategy says whether Pods run there
//! only, there as well, or not at all.

use serde_json::{Value, json};

use crate::field::{self, FieldError};
use crate::keys;
use crate::selector::matching::Node;
use crate::selector::product;
use crate::selector::requirement::{self, Values};

/// Name that every NamespaceOffloading has: one for each namespace.
pub const NAME: &str = "offloading";

/// Where in a NamespaceOffloading the terms are.
const TERMS: &str = "spec.clusterSelector.nodeSelectorTerms";

/// Whether a namespace belongs to the cluster itself or to Outrigger. Its Pods stay local, whatever a NamespaceOffloading says.
pub fn is_reserved(namespace: &str) -> bool {
    namespace.starts_with("kube-") || matches!(namespace, keys::SYSTEM_NAMESPACE | keys::ADMIN_NAMESPACE)
}

/// What is wrong where none of so many virtual nodes is selected.
pub fn none_selected(virtual_nodes: usize) -> String {
    format!("{virtual_nodes} virtual nodes, none of them is selected")
}

/// Where the Pods of a namespace run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strategy {
    /// On local nodes, as if there were no others.
    Local,
    /// On selected virtual nodes only.
    Remote,
    /// On local nodes and selected virtual nodes.
    LocalAndRemote,
}

impl Strategy {
    /// The strategy as the API spells it. `None` for what is none.
    pub fn of(text: &str) -> Option<Self> {
        match text {
            "Local" => Some(Self::Local),
            "Remote" => Some(Self::Remote),
            "LocalAndRemote" => Some(Self::LocalAndRemote),
            _ => None,
        }
    }
}

/// A NamespaceOffloading ready to be merged into Pods.
#[derive(Debug, Clone, PartialEq)]
pub struct Offloading {
    strategy: Result<Strategy, String>,
    selector: Vec<Value>,
    imposed: Vec<Value>,
    /// What of the selector means nothing. Some Pods don't depend on it either.
    faults: Vec<FieldError>,
    /// What no label can have as its value. Pods get it nevertheless, as they get it from Liqo, and the API server refuses them.
    unlabelable: Vec<FieldError>,
}

impl Offloading {
    /// From `spec.podOffloadingStrategy` and `spec.clusterSelector`. A strategy that is none is no error here: some Pods
    /// don't depend on it.
    ///
    /// # Errors
    /// Everything that is wrong with the selector, with paths that begin at the object.
    pub fn new(strategy: &str, cluster_selector: &Value) -> Result<Self, Vec<FieldError>> {
        let mut this = Self::read(strategy, cluster_selector);
        if this.faults.is_empty() && this.unlabelable.is_empty() {
            return Ok(this);
        }
        this.faults.append(&mut this.unlabelable);
        Err(this.faults)
    }

    /// The selector as written, valid or not: [`Self::refusals`] has its errors.
    pub fn read(strategy: &str, cluster_selector: &Value) -> Self {
        let (selector, faults, unlabelable) = match read(cluster_selector) {
            Ok(selector) => {
                let [faults, unlabelable] = refused(&selector);
                (selector, faults, unlabelable)
            }
            Err(fault) => (Vec::new(), vec![fault], Vec::new()),
        };
        let strategy = Strategy::of(strategy).ok_or_else(|| strategy.to_owned());
        let imposed = match &strategy {
            Ok(strategy) if faults.is_empty() => imposed(*strategy, &selector),
            _ => Vec::new(),
        };
        Self { strategy, selector, imposed, faults, unlabelable }
    }

    /// Everything that is wrong with its strategy and its selector. While there is anything, Pods of its namespace are refused: by
    /// admission ([`Self::meaningless`]) or by the API server ([`Self::unlabelable`]).
    pub fn refusals(&self) -> Vec<FieldError> {
        let faults = self.faults.iter().chain(&self.unlabelable);
        self.unknown_strategy().into_iter().chain(faults.cloned()).collect()
    }

    /// The first thing for which there is nothing that Pods could get.
    pub fn meaningless(&self) -> Option<FieldError> {
        self.unknown_strategy().or_else(|| self.faults.first().cloned())
    }

    /// The first value that no label can have, for which the API server refuses Pods that get it.
    pub fn unlabelable(&self) -> Option<&FieldError> {
        self.unlabelable.first()
    }

    /// Where Pods run, or the text that names no strategy.
    pub fn strategy(&self) -> Result<Strategy, &str> {
        self.strategy.as_ref().copied().map_err(String::as_str)
    }

    /// Terms of which a node has to match one. Empty: every node will do.
    pub fn imposed(&self) -> &[Value] {
        &self.imposed
    }

    fn unknown_strategy(&self) -> Option<FieldError> {
        let unknown = self.strategy().err()?;
        let message = format_args!("is {unknown:?}; use Local, Remote or LocalAndRemote");
        Some(FieldError::new("spec.podOffloadingStrategy", message))
    }

    /// Whether Pods may be on virtual nodes at all, so that admission has to look at them.
    pub fn offloads(&self) -> bool {
        matches!(self.strategy, Ok(Strategy::Remote | Strategy::LocalAndRemote))
    }

    /// Whether Pods may run on this virtual node.
    pub fn selects(&self, node: &Node<'_>) -> bool {
        if !self.faults.is_empty() {
            return false;
        }
        let any = self.selector.is_empty() || self.selector.iter().any(product::is_empty);
        self.offloads() && (any || self.selector.iter().any(|term| node.matches(term)))
    }
}

/// The terms of a selector.
fn read(cluster_selector: &Value) -> Result<Vec<Value>, FieldError> {
    if cluster_selector.is_null() {
        return Ok(Vec::new());
    }
    let selector = field::as_object(cluster_selector, "spec.clusterSelector")?;
    let terms = field::list(selector, "spec.clusterSelector", "nodeSelectorTerms")?;
    product::check(terms, TERMS)?;
    Ok(terms.to_vec())
}

/// What a strategy and a selector say together. An empty term of the selector means any virtual node.
fn imposed(strategy: Strategy, selector: &[Value]) -> Vec<Value> {
    let virtual_node = |operator: &str| json!({"key": keys::NODE_TYPE, "operator": operator, "values": [keys::VIRTUAL_NODE]});
    match strategy {
        Strategy::Local => Vec::new(),
        Strategy::Remote if selector.is_empty() => vec![json!({"matchExpressions": [virtual_node("In")]})],
        Strategy::Remote => selector.iter().map(|term| with(term, &virtual_node("In"))).collect(),
        // Any virtual node or any local node is any node.
        Strategy::LocalAndRemote if selector.is_empty() || selector.iter().any(product::is_empty) => {
            Vec::new()
        }
        Strategy::LocalAndRemote => {
            let mut terms = selector.to_vec();
            terms.push(json!({"matchExpressions": [virtual_node("NotIn")]}));
            terms
        }
    }
}

/// A term with one more expression.
fn with(term: &Value, expression: &Value) -> Value {
    let mut term = term.as_object().cloned().unwrap_or_default();
    let mut expressions = field::list(&term, "", "matchExpressions").unwrap_or_default().to_vec();
    product::add(&mut expressions, expression);
    term.insert("matchExpressions".to_owned(), Value::Array(expressions));
    Value::Object(term)
}

/// What the API server would refuse in a Pod, and so each Pod of the namespace with it, and bounds with which the scheduler drops
/// their term without a word: first what means nothing, then values that no label can have.
fn refused(selector: &[Value]) -> [Vec<FieldError>; 2] {
    let of = |faults: &dyn Fn(&Value, &str) -> Vec<FieldError>| -> Vec<FieldError> {
        let terms = selector.iter().enumerate();
        terms.flat_map(|(t, term)| faults(term, &format!("{TERMS}[{t}]"))).collect()
    };
    let meaningless = of(&|term, path| {
        let faults = requirement::faults(term, path, Values::Any);
        if faults.is_empty() { requirement::unbounded(term, path) } else { faults }
    });
    if !meaningless.is_empty() {
        return [meaningless, Vec::new()];
    }
    [meaningless, of(&|term, path| requirement::faults(term, path, Values::Checked))]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn selector(terms: Value) -> Value {
        json!({"nodeSelectorTerms": terms})
    }

    #[test]
    fn what_is_wrong_with_a_selector_is_reported_with_its_path() {
        let expression = |e: Value| selector(json!([{}, {"matchExpressions": [e]}]));
        for (wrong, path) in [
            (json!([]), "spec.clusterSelector: must be an object"),
            (json!({"nodeSelectorTerms": {}}), "nodeSelectorTerms: must be a list"),
            (selector(json!([{}, 1])), "nodeSelectorTerms[1]: must be an object, is a number"),
            (
                expression(json!({"operator": "Exists"})),
                "nodeSelectorTerms[1].matchExpressions[0].key: is missing",
            ),
            (
                expression(json!({"key": "a", "operator": "In", "values": ["x", "eu west"]})),
                "nodeSelectorTerms[1].matchExpressions[0].values[1]: is \"eu west\"; use a label's value",
            ),
            (
                expression(json!({"key": "a", "operator": "Gt", "values": ["-5"]})),
                "values[0]: is \"-5\"; use a label's value",
            ),
            (
                expression(json!({"key": "a", "operator": "Gt", "values": ["24.10"]})),
                "matchExpressions[0].values: is [24.10]; Gt needs one integer",
            ),
            (
                selector(json!([{"matchFields": [{"key": "a", "operator": "In", "values": ["x"]}]}])),
                "nodeSelectorTerms[0].matchFields[0].key: is \"a\"",
            ),
        ] {
            let errors = Offloading::new("Remote", &wrong).unwrap_err();
            assert!(errors[0].to_string().contains(path), "{errors:?}");
        }
    }

    #[test]
    fn which_virtual_nodes_are_selected() {
        let labels = BTreeMap::from([("region".to_owned(), "us".to_owned())]);
        let node = Node { name: "v", labels: &labels };
        let us = json!({"matchExpressions": [{"key": "region", "operator": "In", "values": ["us"]}]});
        let eu = json!({"matchExpressions": [{"key": "region", "operator": "In", "values": ["eu"]}]});
        for (strategy, terms, selects) in [
            ("Remote", json!(null), true),
            ("Remote", json!([]), true),
            ("Remote", json!([eu]), false),
            ("Remote", json!([eu, us]), true),
            ("LocalAndRemote", json!([eu, {}]), true),
            ("Local", json!([us]), false),
            ("Perhaps", json!([us]), false),
        ] {
            let offloading = Offloading::new(strategy, &selector(terms.clone())).unwrap();
            assert_eq!(offloading.selects(&node), selects, "{strategy} {terms}");
        }
    }

    #[test]
    fn namespaces_of_the_cluster_and_of_outrigger_are_reserved() {
        for reserved in ["kube-system", "kube-public", keys::SYSTEM_NAMESPACE, keys::ADMIN_NAMESPACE] {
            assert!(is_reserved(reserved), "{reserved}");
        }
        for free in ["tenant-blue", "my-kube-system", "default"] {
            assert!(!is_reserved(free), "{free}");
        }
    }

    #[test]
    fn a_selector_that_selects_nothing_is_reported_with_how_many_there_are() {
        assert_eq!(none_selected(3), "3 virtual nodes, none of them is selected");
    }

    #[test]
    fn a_selector_with_errors_is_refused_and_imposes_and_selects_nothing() {
        let wrong = selector(json!([{"matchExpressions": [{"key": "a", "operator": "In"}]}, {}]));
        let offloading = Offloading::read("Remote", &wrong);
        assert_eq!(offloading.refusals().len(), 1);
        assert_eq!(offloading.imposed(), &[] as &[Value]);
        assert!(!offloading.selects(&Node { name: "v", labels: &BTreeMap::new() }));
        assert!(offloading.meaningless().is_some_and(|fault| fault.path.ends_with(".values")));
        assert_eq!(offloading.unlabelable(), None);
    }

    #[test]
    fn a_value_that_no_label_can_have_is_refused_and_imposed_as_liqo_does() {
        let odd =
            selector(json!([{"matchExpressions": [{"key": "a", "operator": "In", "values": ["A,B"]}]}]));
        let offloading = Offloading::read("Remote", &odd);
        assert_eq!(Offloading::new("Remote", &odd).unwrap_err(), offloading.refusals());
        assert_eq!((offloading.meaningless(), offloading.imposed().len()), (None, 1));
        assert!(offloading.unlabelable().is_some_and(|fault| fault.path.ends_with(".values[0]")));
    }
}
