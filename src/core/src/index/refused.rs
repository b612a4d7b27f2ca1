//! Workloads that exist and whose state isn't kept, because they are too large.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{CompanionKey, TenantIndex};
use crate::ids::WorkloadId;
use crate::map::after;

/// A workload that exists and whose latest state isn't kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedWorkload {
    /// Its id.
    pub id: WorkloadId,
    /// The tenant Node that it runs on; `None` while it is not bound.
    pub node_name: Option<String>,
    /// How much its state counts.
    pub size: usize,
}

/// Those of one tenant, by their label values.
pub(super) type RefusedWorkloads = BTreeMap<Arc<str>, RefusedWorkload>;

impl TenantIndex {
    /// A workload exists, and its state isn't kept. If it is known in an earlier state, that one stays; otherwise nothing is known of
    /// which rules match it, so that no companion is created for it and none is deleted. Returns its label value if something is new.
    pub fn refuse(&mut self, workload: RefusedWorkload) -> Option<Arc<str>> {
        let label = self.key_of(&workload.id);
        if self.refused.get(&label) == Some(&workload) {
            return None;
        }
        self.refused.insert(label.clone(), workload);
        Some(label)
    }

    /// A workload whose latest state isn't kept, by its label value.
    pub fn refused(&self, label: &str) -> Option<&RefusedWorkload> {
        self.refused.get(label)
    }

    /// Label values of the workloads whose latest states aren't kept, those after one.
    pub fn refused_after(&self, label: Option<&Arc<str>>) -> impl Iterator<Item = &Arc<str>> {
        self.refused.range(after(label)).map(|(label, _)| label)
    }

    /// All workloads whose latest states aren't kept.
    pub fn all_refused(&self) -> impl Iterator<Item = &RefusedWorkload> {
        self.refused.values()
    }

    /// How many workloads there are whose latest states aren't kept.
    pub fn refused_count(&self) -> usize {
        self.refused.len()
    }

    /// The earlier states of refused workloads were received with other annotations than those that are sent now: what they lack is no
    /// longer known. So nothing is, and their companions stay as they are.
    pub(super) fn forget_states_of_refused(&mut self) -> Vec<CompanionKey> {
        let refused = std::mem::take(&mut self.refused);
        let touched = refused.keys().flat_map(|label| self.forget(label)).collect();
        self.refused = refused;
        touched
    }

    /// A workload is no longer refused. Returns the companions that it may have, of each rule: which of them matched isn't known.
    pub(super) fn forget_refused(&mut self, label: &Arc<str>) -> Vec<CompanionKey> {
        if self.refused.remove(label).is_none() {
            return Vec::new();
        }
        let key = |rule: &_| CompanionKey { rule: Clone::clone(rule), workload: label.clone() };
        self.rules.keys().map(key).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{rule, workload, x_is_a};
    use super::*;
    use crate::annotations::Statement;
    use crate::index::Desired;
    use crate::rule::{DpuSelectionPolicy, ExpressionSpec, Operator, Rule};
    use crate::texts::Texts;
    use crate::workload::Workload;

    #[test]
    fn of_a_refused_workload_nothing_is_created_and_nothing_deleted() {
        let key = |rule: &str, id: &str| super::super::tests::key(rule, id);
        let mut index = TenantIndex::default();
        index.apply_rule(rule("r", DpuSelectionPolicy::Any, x_is_a()));
        index.apply_rule(rule("s", DpuSelectionPolicy::Any, x_is_a()));
        index.sync(vec![workload("known", None, &[("x", "a")])]);
        let refused =
            |id: &str| RefusedWorkload { id: WorkloadId::new(id).unwrap(), node_name: None, size: 9 };
        let label = index.refuse(refused("new")).unwrap();
        assert_eq!((index.refuse(refused("new")), index.refused_count()), (None, 1), "known");
        let (new, known) = (key("r", "new"), key("r", "known"));
        assert!(matches!(index.desired(&new), Desired::Unknown), "it exists");
        // What is served stays served.
        index.refuse(refused("known"));
        assert!(matches!(index.desired(&known), Desired::Wanted { .. }));
        assert_eq!(index.refused_after(Some(&"known".into())).collect::<Vec<_>>(), [&label]);
        // Its companions are looked at when it is known what it is like, also those of rules that don't match.
        let mut touched = index.update(workload("new", None, &[("x", "b")]));
        touched.sort();
        assert_eq!(touched, [new.clone(), key("s", "new")]);
        assert!(matches!(index.desired(&new), Desired::Unwanted));
        index.refuse(refused("gone"));
        assert_eq!(index.delete(&WorkloadId::new("gone").unwrap()).len(), 2);
        assert!(matches!(index.desired(&key("r", "gone")), Desired::Unwanted));
        index.refuse(refused("gone"));
        index.complete(|id| id.as_str() != "gone");
        assert!(matches!(index.desired(&key("r", "gone")), Desired::Unwanted));
        assert_eq!(index.refused_count(), 1, "known");
        index.complete(|_| false);
        assert_eq!((index.refused_count(), index.workloads()), (0, 0));
    }

    #[test]
    fn annotations_of_a_refused_workload_are_unknown_when_others_are_sent() {
        let exists = vec![vec![ExpressionSpec::new(".state.extra.annotations.x", Operator::Exists, &[])]];
        let rule = Arc::new(Rule::clone(&rule("r", DpuSelectionPolicy::Any, exists)).into_admin());
        let key = CompanionKey { rule: rule.name().clone(), workload: "w".into() };
        let said = |sent: &[&str], withheld: &[&str]| {
            let withheld = withheld.iter().map(ToString::to_string).collect();
            Statement::new(sent.iter().map(|key| key.parse().unwrap()), withheld)
        };
        let refused = RefusedWorkload { id: WorkloadId::new("w").unwrap(), node_name: None, size: 9 };
        for is_refused in [false, true] {
            let mut index = TenantIndex::default();
            index.apply_rule(rule.clone());
            index.sync(vec![workload("w", None, &[])]);
            index.set_known(index.known().said(said(&[], &["x"])));
            assert!(matches!(index.desired(&key), Desired::Wanted { .. }), "it may have it");
            if is_refused {
                index.refuse(refused.clone());
            }
            let touched = index.set_known(index.known().said(said(&["x"], &[]))).0;
            assert!(touched.contains(&key));
            match index.desired(&key) {
                Desired::Unwanted => assert!(!is_refused),
                Desired::Unknown => assert!(is_refused && index.refused("w") == Some(&refused)),
                other => panic!("{other:?}"),
            }
            assert!(index.undecided_of("w").is_empty() && index.undecided() == 0);
        }
    }

    #[test]
    fn a_workload_that_is_kept_again_is_undecided_where_an_annotation_decides() {
        let exists = vec![vec![ExpressionSpec::new(".state.extra.annotations.x", Operator::Exists, &[])]];
        let mut index = TenantIndex::default();
        index.limit(1);
        index.apply_rule(rule("r", DpuSelectionPolicy::SameNode, exists));
        index.sync(vec![workload("other", None, &[])]);
        index.set_known(index.known().said(Statement::new([], ["x".to_owned()].into())));
        let key = super::super::tests::key("r", "w");
        index.refuse(RefusedWorkload { id: WorkloadId::new("w").unwrap(), node_name: None, size: 9 });
        assert!(matches!(index.desired(&key), Desired::Unknown));
        let touched = index.update(workload("w", None, &[]));
        assert_eq!(touched, std::slice::from_ref(&key), "a companion may exist");
        assert!(matches!(index.desired(&key), Desired::Undecided));
        // It takes room as soon as it is decided, first that of workloads without a node.
        let annotated = |node| {
            let annotations = Texts::new(vec![("x", "1")]);
            Workload { annotations, ..workload("w", node, &[]) }
        };
        assert!(index.update(annotated(None)).contains(&key));
        assert!(matches!(index.desired(&key), Desired::Waiting));
        assert_eq!((index.matched(&key.rule), index.own_matches()), (1, 0));
        index.update(annotated(Some("n")));
        assert!(matches!(index.desired(&key), Desired::Wanted { .. }));
        assert_eq!((index.matched(&key.rule), index.own_matches()), (1, 1));
        assert_eq!(index.update(workload("w", Some("n"), &[])), std::slice::from_ref(&key));
        assert!(matches!(index.desired(&key), Desired::Undecided));
        assert_eq!((index.matched(&key.rule), index.own_matches()), (0, 0));
    }
}
