//! How many workloads a tenant has and how much memory they take, compared with the tenant's limits.

use outrigger_core::ids::WorkloadId;
use outrigger_core::map::{HashMap, HashSet};
use outrigger_core::tenant::Limits;
pub use outrigger_core::workload::ITEM_BYTES;
use outrigger_core::workload::MAX_SIZE;

/// Sizes of a tenant's workloads, as [`workload_wire::size`](outrigger_api::workload_wire::size) counts them.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    sizes: HashMap<WorkloadId, u32>,
    bytes: u64,
}

/// More workloads than a tenant may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("Tenant spec.limits.workloads: {would} would be used, at most {allowed} are allowed")]
pub(crate) struct TooMany {
    would: u64,
    allowed: u64,
}

/// Why the state of a workload isn't kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unkept {
    /// All workloads of a tenant that is beyond it are refused, and its stream ends.
    #[error(transparent)]
    TooMany(#[from] TooMany),
    /// It is too large, by itself or together with the others. This one alone isn't served.
    #[error("the workload has no room")]
    TooLarge,
}

impl Usage {
    /// A workload is new, or has another size now. Fails when that is too much: its former state counts then, if there is one, and
    /// otherwise nothing but the workload itself.
    pub(crate) fn update(&mut self, id: &WorkloadId, size: usize, limits: &Limits) -> Result<(), Unkept> {
        let known = match self.sizes.get(id) {
            Some(known) => usize::try_from(*known).unwrap_or(usize::MAX),
            None => {
                within(self.sizes.len() as u64 + 1, limits)?;
                self.set(id, 0);
                0
            }
        };
        // What was there before the limit was lowered may still change, but not grow.
        if size > known && !self.has_room(id, size, limits) {
            return Err(Unkept::TooLarge);
        }
        self.set(id, size);
        Ok(())
    }

    /// Whether the bytes of a workload of this size are within the limits, beside those of the others.
    pub(crate) fn has_room(&self, id: &WorkloadId, size: usize, limits: &Limits) -> bool {
        let others = self.bytes - u64::from(self.sizes.get(id).copied().unwrap_or_default());
        size <= MAX_SIZE && others + size as u64 <= limits.workload_bytes
    }

    /// A workload is deleted.
    pub(crate) fn delete(&mut self, id: &WorkloadId) {
        self.bytes -= u64::from(self.sizes.remove(id).unwrap_or_default());
    }

    /// A workload has this size, whatever the limits are.
    fn set(&mut self, id: &WorkloadId, size: usize) {
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        let before = match self.sizes.get_mut(id) {
            Some(known) => std::mem::replace(known, size),
            None => self.sizes.insert(id.clone(), size).unwrap_or_default(),
        };
        self.bytes = self.bytes - u64::from(before) + u64::from(size);
    }

    /// Forgets those that aren't among others.
    pub(crate) fn retain(&mut self, others: &HashSet<WorkloadId>) {
        self.sizes.retain(|id, _| others.contains(id));
        self.bytes = self.sizes.values().map(|size| u64::from(*size)).sum();
    }

    pub(crate) fn count(&self) -> usize {
        self.sizes.len()
    }
}

/// Compares a number of workloads with the limit.
pub(crate) fn within(count: u64, limits: &Limits) -> Result<(), TooMany> {
    let allowed = u64::from(limits.workloads);
    if count > allowed { Err(TooMany { would: count, allowed }) } else { Ok(()) }
}

/// What is said where the latest states of so many workloads aren't kept; `None` for none.
pub(crate) fn refusal(count: usize, limits: &Limits) -> Option<String> {
    let (workloads, are) = if count == 1 { ("workload", "is") } else { ("workloads", "are") };
    (count > 0).then(|| {
        format!(
            "{count} {workloads} {are} not served: all together may have {} bytes (Tenant spec.limits.workloadBytes), and each {MAX_SIZE}; \
             use fewer or shorter labels and annotations, or have the limit raised",
            limits.workload_bytes
        )
    })
}

#[cfg(test)]
mod tests {
    use outrigger_api::workload_wire;
    use outrigger_core::texts::Texts;
    use outrigger_core::workload::{DisruptionGroup, MAX_GROUPS};
    use outrigger_proto::raw::WorkloadUpdate;
    use proptest::prelude::*;
    use prost::Message;

    use super::*;
    use crate::fixtures;

    fn id(name: &str) -> WorkloadId {
        WorkloadId::new(name).unwrap()
    }

    #[test]
    fn what_is_over_a_limit_changes_nothing() {
        let limits = Limits { workloads: 2, workload_bytes: 100, ..Limits::default() };
        let mut usage = Usage::default();
        usage.update(&id("a"), 40, &limits).unwrap();
        usage.update(&id("b"), 40, &limits).unwrap();
        usage.update(&id("a"), 60, &limits).unwrap();
        assert_eq!(usage.update(&id("a"), 61, &limits), Err(Unkept::TooLarge));
        assert_eq!(usage.bytes, 100, "the former state counts");
        let error = usage.update(&id("c"), 0, &limits).unwrap_err().to_string();
        assert_eq!(error, "Tenant spec.limits.workloads: 3 would be used, at most 2 are allowed");
        assert!(!usage.has_room(&id("c"), 1, &limits) && usage.has_room(&id("a"), 60, &limits));
        usage.delete(&id("a"));
        usage.delete(&id("unknown"));
        assert!(usage.has_room(&id("c"), 1, &limits));
        assert_eq!(usage.update(&id("c"), 61, &limits), Err(Unkept::TooLarge));
        assert_eq!((usage.count(), usage.bytes), (2, 40), "it exists, and nothing of it is kept");
        usage.update(&id("c"), 60, &limits).unwrap();
        // After a sync only the workloads that it contained are left, with their sizes.
        usage.retain(&[id("b"), id("d")].into_iter().collect());
        assert_eq!((usage.count(), usage.bytes), (1, 40));
        // The limit was lowered: what is there may shrink.
        let limits = Limits { workloads: 1, workload_bytes: 15, ..limits };
        usage.update(&id("b"), 39, &limits).unwrap();
        assert_eq!(usage.update(&id("b"), 40, &limits), Err(Unkept::TooLarge));
        let large = Limits::default();
        let mut usage = Usage::default();
        assert_eq!(usage.update(&id("a"), MAX_SIZE + 1, &large), Err(Unkept::TooLarge), "by itself");
        assert!(!usage.has_room(&id("a"), MAX_SIZE + 1, &large));
        usage.update(&id("a"), MAX_SIZE, &large).unwrap();
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// The agent sends what the manager keeps where there is room, and nothing that it refuses by itself.
        #[test]
        fn agent_and_manager_agree_on_what_is_too_large(
            count in 0_usize..6_000, length in 0_usize..200, groups in 0..MAX_GROUPS, withheld in 0_usize..4_000, annotations: bool,
        ) {
            let texts: Vec<(String, String)> = (0..count).map(|i| (format!("k{i}"), "x".repeat(length))).collect();
            let texts = Texts::new(texts.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect());
            let mut workload = fixtures::workload("w");
            *if annotations { &mut workload.annotations } else { &mut workload.labels } = texts;
            workload.groups = (0..groups).map(|i| DisruptionGroup { id: i.to_string().into(), desired_healthy: None }).collect();
            workload.withheld = (0..withheld).map(|i| format!("{i}{}", "x".repeat(length)).into()).collect();
            let sent = WorkloadUpdate::decode(workload_wire::update(&workload).encode_to_vec().as_slice()).unwrap();
            let size = workload_wire::size(&sent);
            prop_assert_eq!(workload_wire::excess(&workload), Some(size).filter(|size| *size > MAX_SIZE));
        }
    }

    #[test]
    fn a_refusal_names_both_limits() {
        let limits = Limits::default();
        assert_eq!(refusal(0, &limits), None);
        assert!(
            refusal(1, &limits)
                .unwrap()
                .starts_with("1 workload is not served: all together may have 134217728 bytes")
        );
        assert!(refusal(2, &limits).unwrap().starts_with("2 workloads are not served"));
    }
}
