//! Hosts of which the label of the DPU says another name than that of the host's Node in the tenant's cluster.
//!
//! A platform may name hosts before they are Nodes of any cluster, for example by their serial numbers. Everything in the infrastructure
//! cluster goes by the platform's name, which is unique there: who owns a DPU, and where a companion is placed. Everything that the
//! tenant's agent says or hears goes by the name of the Node.

use std::collections::BTreeMap;

use crate::fault;

/// Names that hosts have as Nodes of one tenant's cluster. A host without an entry is the Node of its own name, unless that is the name of
/// another host's Node: no Node is in two hosts, and no host is two Nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostNames {
    /// Node -> host.
    host_of: BTreeMap<Box<str>, Box<str>>,
    /// Host -> Node.
    node_of: BTreeMap<Box<str>, Box<str>>,
}

/// What an entry has that another one has already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// The Node.
    Node,
    /// The host.
    Host,
}

/// Without any entries.
static NONE: HostNames = HostNames { host_of: BTreeMap::new(), node_of: BTreeMap::new() };

impl Default for &HostNames {
    fn default() -> Self {
        &NONE
    }
}

impl HostNames {
    /// Adds an entry.
    ///
    /// # Errors
    /// What another entry has already; nothing is added then.
    pub fn insert(&mut self, node: &str, host: &str) -> Result<(), Taken> {
        if self.host_of.contains_key(node) {
            return Err(Taken::Node);
        }
        if self.node_of.contains_key(host) {
            return Err(Taken::Host);
        }
        self.host_of.insert(node.into(), host.into());
        self.node_of.insert(host.into(), node.into());
        Ok(())
    }

    /// The host that a Node of the tenant's cluster is in. `None` where its name is that of a host which is another Node: the DPU there
    /// serves that one.
    pub fn host<'a>(&'a self, node: &'a str) -> Option<&'a str> {
        other_side(&self.host_of, &self.node_of, node)
    }

    /// The Node of the tenant's cluster that is in a host. `None` where the Node of the host's name is in another one.
    pub fn node<'a>(&'a self, host: &'a str) -> Option<&'a str> {
        other_side(&self.node_of, &self.host_of, host)
    }

    /// A host for people, with its Node where that has another name: `a (node n)`.
    pub fn described(&self, host: &str) -> String {
        match self.node_of.get(host).filter(|node| ***node != *host) {
            Some(node) => format!("{host} (node {node})"),
            None => host.to_owned(),
        }
    }
}

/// What a name stands for: by its entry, or itself unless it is what another entry stands for.
fn other_side<'a>(
    there: &'a BTreeMap<Box<str>, Box<str>>,
    back: &BTreeMap<Box<str>, Box<str>>,
    name: &'a str,
) -> Option<&'a str> {
    match there.get(name) {
        Some(found) => Some(found),
        None => (!back.contains_key(name) || fault("host-of-another-node-is-its-own-node")).then_some(name),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn names(entries: &[(&str, &str)]) -> HostNames {
        let mut names = HostNames::default();
        entries.iter().for_each(|(node, host)| names.insert(node, host).unwrap());
        names
    }

    #[test]
    fn a_node_is_in_the_host_of_its_entry_or_of_its_own_name() {
        let names = names(&[("worker-1", "node-17"), ("same", "same")]);
        for (node, host) in
            [("worker-1", Some("node-17")), ("node-17", None), ("same", Some("same")), ("x", Some("x"))]
        {
            assert_eq!(names.host(node), host, "{node}");
        }
        for (host, node) in
            [("node-17", Some("worker-1")), ("worker-1", None), ("same", Some("same")), ("x", Some("x"))]
        {
            assert_eq!(names.node(host), node, "{host}");
        }
        assert_eq!(names.described("node-17"), "node-17 (node worker-1)");
        assert_eq!((names.described("same"), names.described("x")), ("same".to_owned(), "x".to_owned()));
    }

    #[test]
    fn a_node_and_a_host_are_in_one_entry_at_most() {
        let mut names = names(&[("n", "h")]);
        let before = names.clone();
        assert_eq!(names.insert("n", "other"), Err(Taken::Node));
        assert_eq!(names.insert("other", "h"), Err(Taken::Host));
        assert_eq!(names, before);
    }

    proptest! {
        #[test]
        fn what_is_in_a_host_is_in_no_other_one(entries in proptest::collection::vec(("[a-d]", "[a-d]"), 0..5)) {
            let mut names = HostNames::default();
            for (node, host) in &entries {
                let _ = names.insert(node, host);
            }
            for name in ["a", "b", "c", "d", "e"] {
                if let Some(host) = names.host(name) {
                    prop_assert_eq!(names.node(host), Some(name));
                }
                if let Some(node) = names.node(name) {
                    prop_assert_eq!(names.host(node), Some(name));
                }
            }
        }
    }
}
