//! Attributes of the devices of workloads, which arrive on other watches than Pods.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use outrigger_core::annotations::Pattern;
use outrigger_core::ids::WorkloadId;
use outrigger_core::workload::Workload;
use outrigger_runtime::cache::Change;

use super::WorkloadStore;
use crate::device_attributes::DeviceAttributes;

impl WorkloadStore {
    /// Sets which attributes are sent, before the first claim or slice.
    pub(crate) fn send_device_attributes(&self, sent: Arc<[Pattern]>) {
        self.joined.lock().attributes = DeviceAttributes::new(sent);
    }

    /// Records a change of a claim.
    pub(crate) fn device_claim(&self, change: Change<ResourceClaim>) {
        self.change_attributes(|attributes| attributes.claim(change));
    }

    /// Records a change of a slice.
    pub(crate) fn device_slice(&self, change: Change<ResourceSlice>) {
        self.change_attributes(|attributes| attributes.slice(change));
    }

    /// Changes claims or slices, and records the workloads whose attributes are others for that.
    fn change_attributes(&self, change: impl FnOnce(&mut DeviceAttributes) -> BTreeSet<WorkloadId>) {
        let mut joined = self.joined.lock();
        for id in change(&mut joined.attributes) {
            let Some(mut workload) = self.whole(&id) else { continue };
            joined.attributes.describe(&mut workload);
            self.set(workload);
        }
    }

    /// A workload as it is known; `None` for one that is too large, of which attributes aren't sent either.
    fn whole(&self, id: &WorkloadId) -> Option<Workload> {
        let state = self.state.lock();
        let known = state.workloads.get(id).filter(|_| !state.too_large.contains_key(id))?;
        Some(Workload::clone(known))
    }
}

#[cfg(test)]
mod tests {
    use outrigger_runtime::pod::Pod;
    use outrigger_runtime::watch::Event;
    use serde_json::{Value, json};

    use super::*;
    use crate::tests::object;

    #[test]
    fn a_workload_has_the_attributes_of_its_devices_in_whatever_order_they_arrive() {
        let pod = |label: &str| -> Pod {
            object(json!({"metadata": {"uid": "a", "name": "a", "namespace": "n", "labels": {"app": label}}}))
        };
        let claim = |reserved: Value| {
            let result = json!({"request": "one", "driver": "gpu.example.com", "pool": "h", "device": "d"});
            let claim = json!({"metadata": {"name": "gpu", "namespace": "n", "uid": "c"}, "spec": {},
                "status": {"allocation": {"devices": {"results": [result]}}, "reservedFor": reserved}});
            Change::Applied(object(claim))
        };
        let slice = || {
            let device = json!({"name": "d", "attributes": {"model": {"string": "a100"}}});
            let pool = json!({"name": "h", "generation": 1, "resourceSliceCount": 1});
            Change::Applied(object(json!({"metadata": {"name": "s", "uid": "s"},
                "spec": {"driver": "gpu.example.com", "pool": pool, "devices": [device]}})))
        };
        let reserved = json!([{"resource": "pods", "name": "a", "uid": "a"}]);
        for first in ["pod", "claim", "slice"] {
            let store = Arc::new(WorkloadStore::default());
            store.send_device_attributes(Arc::from([Pattern::All]));
            let mut sink = store.pods(None);
            let mut arrive = |what: &str| match what {
                "pod" => sink(Event::Applied(pod("web"))),
                "claim" => store.device_claim(claim(reserved.clone())),
                _ => store.device_slice(slice()),
            };
            arrive(first);
            ["slice", "claim", "pod"].into_iter().filter(|what| *what != first).for_each(&mut arrive);
            let extra = || store.start_stream().workloads[0].extra.clone();
            let key = "gpu/one/gpu.example.com/model";
            assert_eq!(extra()["deviceAttributes"].get(key), Some("a100"), "{first}");
            // A later state of the Pod keeps them, and the claim takes them away.
            sink(Event::Applied(pod("other")));
            assert_eq!(extra()["deviceAttributes"].get(key), Some("a100"), "{first}");
            store.device_claim(claim(json!([])));
            assert!(extra().is_empty(), "{first}");
        }
    }

    #[test]
    fn a_change_of_attributes_is_sent() {
        let store = Arc::new(WorkloadStore::default());
        store.send_device_attributes(Arc::from([Pattern::All]));
        let mut pod = json!({"metadata": {"uid": "a", "name": "a", "namespace": "n"}});
        store.pods(None)(Event::Applied(object(pod.clone())));
        store.start_stream();
        let is_changed = || !store.state.lock().changed.ids.is_empty();
        assert!(!is_changed());
        let claim = json!({"metadata": {"name": "gpu", "namespace": "n", "uid": "c"}, "spec": {},
            "status": {"reservedFor": [{"resource": "pods", "name": "a", "uid": "a"}], "allocation": {"devices": {
                "results": [{"request": "one", "driver": "d.example.com", "pool": "h", "device": "d"}]}}}});
        store.device_claim(Change::Applied(object(claim)));
        assert!(!is_changed(), "nothing is known of its device");
        let slice = json!({"metadata": {"name": "s", "uid": "s"}, "spec": {"driver": "d.example.com",
            "pool": {"name": "h", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "d", "attributes": {"model": {"string": "a"}}}]}});
        store.device_slice(Change::Applied(object(slice)));
        assert!(is_changed());
        // Of one that is too large nothing is sent.
        let labels: serde_json::Map<String, Value> =
            (0..70_000).map(|i| (i.to_string(), json!(""))).collect();
        pod["metadata"]["labels"] = labels.into();
        store.pods(None)(Event::Applied(object(pod)));
        assert!(store.whole(&crate::tests::id("a")).is_none());
    }
}
