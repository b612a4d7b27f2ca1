//! How many workloads a tenant has and how much memory they take, compared with the tenant's limits.

use outrigger_core::ids::WorkloadId;
use outrigger_core::map::HashMap;
use outrigger_core::tenant::Limits;
use outrigger_proto::raw::WorkloadUpdate;
use prost::Message;

/// What a label or an annotation counts beyond the bytes that it has on the wire: its share of what receiving and keeping it takes.
pub const ITEM_BYTES: usize = 64;

/// The size of a workload that counts: its bytes on the wire and [`ITEM_BYTES`] for each label, annotation and group. What is said of
/// annotations in general isn't kept with a workload.
pub fn size(update: &WorkloadUpdate) -> usize {
    let extra = update.workload_state.iter().flat_map(|state| &state.extra);
    let items = extra.map(|entry| 1 + entry.value.as_ref().map_or(0, |map| map.data.len()));
    let groups = update.workload_state.as_ref().map_or(0, |state| state.disruption_groups.len());
    let withheld = update.workload_state.as_ref().map_or(0, |state| state.withheld_annotations.len());
    let general = update.annotation_keys.as_ref().map_or(0, Message::encoded_len);
    update.encoded_len() - general + (items.sum::<usize>() + groups + withheld) * ITEM_BYTES
}

/// Sizes of a tenant's workloads, as [`size`] counts them.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    sizes: HashMap<WorkloadId, u32>,
    bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Tenant spec.limits.{limit}: {would} would be used, at most {allowed} are allowed")]
pub(crate) struct Exceeded {
    limit: &'static str,
    would: u64,
    allowed: u64,
}

impl Usage {
    /// A workload is new, or has another size now. Fails when that is too much; nothing has changed then.
    pub(crate) fn update(&mut self, id: &WorkloadId, size: usize, limits: &Limits) -> Result<(), Exceeded> {
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        let (count, bytes) = (self.sizes.len(), self.bytes);
        match self.sizes.get_mut(id) {
            Some(known) => {
                let bytes = bytes - u64::from(*known) + u64::from(size);
                // What was there before the limit was lowered may still change, but not grow.
                if bytes > self.bytes {
                    within(count as u64, bytes, limits)?;
                }
                *known = size;
                self.bytes = bytes;
            }
            None => {
                let bytes = bytes + u64::from(size);
                within(count as u64 + 1, bytes, limits)?;
                self.sizes.insert(id.clone(), size);
                self.bytes = bytes;
            }
        }
        Ok(())
    }

    /// A workload is deleted.
    pub(crate) fn delete(&mut self, id: &WorkloadId) {
        self.bytes -= u64::from(self.sizes.remove(id).unwrap_or_default());
    }

    /// Adds workloads, as long as all together are within the limits. Fails when they aren't. They have been added all the same.
    pub(crate) fn extend(
        &mut self,
        more: impl Iterator<Item = (WorkloadId, usize)>,
        limits: &Limits,
    ) -> Result<(), Exceeded> {
        more.for_each(|(id, size)| self.set(&id, size));
        within(self.sizes.len() as u64, self.bytes, limits)
    }

    /// A workload has this size, whatever the limits are.
    pub(crate) fn set(&mut self, id: &WorkloadId, size: usize) {
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        let before = match self.sizes.get_mut(id) {
            Some(known) => std::mem::replace(known, size),
            None => self.sizes.insert(id.clone(), size).unwrap_or_default(),
        };
        self.bytes = self.bytes - u64::from(before) + u64::from(size);
    }

    pub(crate) fn contains(&self, id: &WorkloadId) -> bool {
        self.sizes.contains_key(id)
    }

    /// Forgets those that aren't among others.
    pub(crate) fn retain(&mut self, others: &Self) {
        self.sizes.retain(|id, _| others.contains(id));
        self.bytes = self.sizes.values().map(|size| u64::from(*size)).sum();
    }

    pub(crate) fn count(&self) -> usize {
        self.sizes.len()
    }
}

/// Compares a number of workloads, and their bytes, with the limits.
pub(crate) fn within(count: u64, bytes: u64, limits: &Limits) -> Result<(), Exceeded> {
    if count > u64::from(limits.workloads) {
        return Err(Exceeded { limit: "workloads", would: count, allowed: limits.workloads.into() });
    }
    if bytes > limits.workload_bytes {
        return Err(Exceeded { limit: "workloadBytes", would: bytes, allowed: limits.workload_bytes });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let error = usage.update(&id("a"), 61, &limits).unwrap_err().to_string();
        assert_eq!(error, "Tenant spec.limits.workloadBytes: 101 would be used, at most 100 are allowed");
        let error = usage.update(&id("c"), 0, &limits).unwrap_err().to_string();
        assert_eq!(error, "Tenant spec.limits.workloads: 3 would be used, at most 2 are allowed");
        usage.delete(&id("a"));
        usage.delete(&id("unknown"));
        usage.update(&id("c"), 60, &limits).unwrap();
        let all = |n: usize| (0..n).map(|i| (id(&i.to_string()), 10));
        let mut told = Usage::default();
        told.extend(all(2), &limits).unwrap();
        told.extend(all(2), &limits).unwrap();
        let error = told.extend(all(3), &limits).unwrap_err().to_string();
        assert_eq!(error, "Tenant spec.limits.workloads: 3 would be used, at most 2 are allowed");
        // After a sync only the workloads that it contained are left, with their sizes.
        usage.set(&id("0"), 12);
        usage.set(&id("1"), 10);
        usage.retain(&told);
        assert_eq!((usage.count(), usage.bytes), (2, 22));
        // The limit was lowered: what is there may shrink.
        let limits = Limits { workloads: 1, workload_bytes: 15, ..limits };
        usage.update(&id("0"), 9, &limits).unwrap();
        assert!(usage.update(&id("0"), 10, &limits).is_err());
    }
}
