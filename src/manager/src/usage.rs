//! How much of the manager a tenant's workloads take, held to the tenant's limits.

use std::collections::HashMap;

use outrigger_core::ids::WorkloadId;
use outrigger_core::tenant::Limits;

/// Sizes of a tenant's workloads, as they came over the stream.
#[derive(Debug, Default)]
pub struct Usage {
    sizes: HashMap<WorkloadId, u32>,
    bytes: u64,
}

/// A limit that would be exceeded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Tenant spec.limits.{limit}: {would} would be used, at most {allowed} are allowed")]
pub struct Exceeded {
    limit: &'static str,
    would: u64,
    allowed: u64,
}

impl Usage {
    /// A workload is new, or has another size now.
    ///
    /// # Errors
    /// When that is too much; nothing has changed then.
    pub fn update(&mut self, id: &WorkloadId, size: usize, limits: &Limits) -> Result<(), Exceeded> {
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        let before = self.sizes.get(id).copied();
        let count = self.sizes.len() + usize::from(before.is_none());
        let bytes = self.bytes - u64::from(before.unwrap_or_default()) + u64::from(size);
        // What was there before the limit was lowered may still change, but not grow.
        if before.is_none() || bytes > self.bytes {
            within(count, bytes, limits)?;
        }
        self.bytes = bytes;
        self.sizes.insert(id.clone(), size);
        Ok(())
    }

    /// A workload is gone.
    pub fn delete(&mut self, id: &WorkloadId) {
        self.bytes -= u64::from(self.sizes.remove(id).unwrap_or_default());
    }

    /// These are all workloads.
    ///
    /// # Errors
    /// When that is too much; nothing has changed then.
    pub fn sync(
        &mut self,
        all: impl Iterator<Item = (WorkloadId, usize)>,
        limits: &Limits,
    ) -> Result<(), Exceeded> {
        let sizes: HashMap<_, _> =
            all.map(|(id, size)| (id, u32::try_from(size).unwrap_or(u32::MAX))).collect();
        let bytes = sizes.values().map(|size| u64::from(*size)).sum();
        within(sizes.len(), bytes, limits)?;
        *self = Self { sizes, bytes };
        Ok(())
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.sizes.len()
    }
}

fn within(count: usize, bytes: u64, limits: &Limits) -> Result<(), Exceeded> {
    let count = u64::try_from(count).unwrap_or(u64::MAX);
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
        assert!(usage.sync(all(3), &limits).is_err());
        assert_eq!(usage.count(), 2);
        usage.sync(all(2), &limits).unwrap();
        // The limit was lowered: what is there may shrink.
        let limits = Limits { workloads: 1, workload_bytes: 15, ..limits };
        usage.update(&id("0"), 9, &limits).unwrap();
        assert!(usage.update(&id("0"), 10, &limits).is_err());
    }
}
