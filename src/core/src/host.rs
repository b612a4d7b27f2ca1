//! The labels of a DPU's Node that name its host.
//!
//! Platforms rename such labels: NVIDIA's DOCA Platform Framework writes `provisioning.dpu.nvidia.com/dpunode-name`, and earlier
//! releases of it `provisioning.dpu.nvidia.com/host`. So there may be several keys, of which the first that a Node has counts.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, LazyLock};

use serde_json::{Value, json};

use crate::keys;
use crate::selector;
use crate::syntax::label_key;

/// Most keys. Nobody migrates between more labels at once.
const MAX_KEYS: usize = 4;

/// The keys of the labels that name the host of a DPU, in the order in which they are read. There is at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostLabels(Arc<[String]>);

impl HostLabels {
    /// The keys in their order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// The first key that a Node has, and the host that it names; `None` where it has none, or the label is empty.
    pub fn read<'a>(&'a self, labels: &'a BTreeMap<String, String>) -> Option<(&'a str, &'a str)> {
        let (key, host) = self.0.iter().find_map(|key| Some((key, labels.get(key)?)))?;
        (!host.is_empty()).then_some((key, host))
    }

    /// The host that a Node's labels name; `None` where the Node is no DPU.
    pub fn host<'a>(&'a self, labels: &'a BTreeMap<String, String>) -> Option<&'a str> {
        self.read(labels).map(|(_, host)| host)
    }

    /// The keys for people: `a or b`.
    pub fn either(&self) -> String {
        self.0.join(" or ")
    }

    /// The labels of a DPU of a host, for people: `a=h or b=h`.
    pub fn naming(&self, host: &str) -> String {
        self.0.iter().map(|key| format!("{key}={host}")).collect::<Vec<_>>().join(" or ")
    }

    /// The terms of a node selector, of which each DPU of a host matches one and no other Node does: a key says nothing where one before
    /// it names a host.
    pub fn terms(&self, host: &str) -> Vec<Value> {
        let lacks = |key: &String| json!({"key": key, "operator": "DoesNotExist"});
        let term = |(i, key): (usize, &String)| {
            let expressions: Vec<Value> =
                self.0[..i].iter().map(lacks).chain([selector::requirement(key, host)]).collect();
            json!({"matchExpressions": expressions})
        };
        self.0.iter().enumerate().map(term).collect()
    }
}

/// What NVIDIA's DOCA Platform Framework writes, and what earlier releases of it wrote.
static DEFAULT: LazyLock<HostLabels> =
    LazyLock::new(|| HostLabels([keys::DPU_NODE_NAME, keys::DPU_HOST].map(str::to_owned).into()));

impl Default for HostLabels {
    fn default() -> Self {
        DEFAULT.clone()
    }
}

impl Default for &HostLabels {
    fn default() -> Self {
        &DEFAULT
    }
}

impl FromStr for HostLabels {
    type Err = String;

    /// Reads the keys, separated by commas.
    fn from_str(text: &str) -> Result<Self, String> {
        let keys: Vec<String> = text.split(',').map(label_key).collect::<Result<_, _>>()?;
        if keys.len() > MAX_KEYS {
            return Err(format!("has {} keys; use at most {MAX_KEYS}", keys.len()));
        }
        if let Some(twice) =
            keys.iter().enumerate().find_map(|(i, key)| keys[..i].contains(key).then_some(key))
        {
            return Err(format!("names {twice} twice; use each key once"));
        }
        Ok(Self(keys.into()))
    }
}

impl fmt::Display for HostLabels {
    /// The keys, separated by commas, as [`Self::from_str`] reads them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(","))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::node::{Node, unmet};
    use crate::selector::POINTER;
    use crate::selector::product::and;

    fn labels(of: &[(&str, &str)]) -> BTreeMap<String, String> {
        of.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn the_first_key_that_a_node_has_names_the_host() {
        let both = HostLabels::default();
        let host = |of: &[(&str, &str)]| both.host(&labels(of)).map(str::to_owned);
        assert_eq!(host(&[(keys::DPU_HOST, "h")]).as_deref(), Some("h"));
        assert_eq!(host(&[(keys::DPU_NODE_NAME, "n")]).as_deref(), Some("n"));
        assert_eq!(host(&[(keys::DPU_HOST, "h"), (keys::DPU_NODE_NAME, "n")]).as_deref(), Some("n"));
        assert_eq!(host(&[(keys::DPU_HOST, "h"), (keys::DPU_NODE_NAME, "")]), None, "as its term has it");
        assert_eq!(host(&[("x", "h")]), None);
    }

    #[test]
    fn keys_are_read_as_they_are_printed_and_wrong_ones_are_refused() {
        let text = HostLabels::default().to_string();
        assert_eq!(text, format!("{},{}", keys::DPU_NODE_NAME, keys::DPU_HOST));
        assert_eq!(text.parse(), Ok(HostLabels::default()));
        assert_eq!("a,b.c/d".parse::<HostLabels>().unwrap().to_string(), "a,b.c/d");
        for (wrong, said) in [
            ("", "use "),
            ("a,", "use "),
            ("a,a", "names a twice"),
            ("a,b,c,d,e", "has 5 keys"),
            ("a, b", "use "),
        ] {
            let error = wrong.parse::<HostLabels>().unwrap_err();
            assert!(error.starts_with(said), "{wrong:?}: {error}");
        }
    }

    proptest! {
        #[test]
        fn a_pod_that_was_placed_fits_the_dpus_of_its_host_as_far_as_it_did_before(
            keys in 1..4_usize,
            named in proptest::collection::vec(proptest::option::of("[ab]?"), 4),
            own in proptest::collection::vec((0..4_usize, "[ab]"), 0..3),
            zone in "[ab]",
        ) {
            const KEYS: [&str; 4] = ["k0", "k1", "k2", "zone"];
            let host_labels: HostLabels = KEYS[..keys].join(",").parse().unwrap();
            let mut of_node = BTreeMap::from([("zone".to_owned(), zone)]);
            for (key, value) in KEYS[..3].iter().zip(named) {
                of_node.extend(value.map(|value| ((*key).to_owned(), value)));
            }
            let node = Node { name: "n".into(), labels: of_node, taints: Vec::new(), unschedulable: false };
            let term = |(key, value): &(usize, String)|
                json!({"matchExpressions": [selector::requirement(KEYS[*key], value)]});
            let mut pod = json!({"spec": {}});
            if !own.is_empty() {
                pod = selector::tests::pod(own.iter().map(term).collect());
            }
            let fitted = unmet(&pod, &node).is_empty();
            and(&mut pod, &host_labels.terms("a")).unwrap();
            let fits = unmet(&pod, &node).is_empty();
            prop_assert_eq!(fits, fitted && host_labels.host(&node.labels) == Some("a"), "{:?}", pod.pointer(POINTER));
            let once = pod.clone();
            prop_assert!(!and(&mut pod, &host_labels.terms("a")).unwrap());
            prop_assert_eq!(pod, once);
        }
    }
}
