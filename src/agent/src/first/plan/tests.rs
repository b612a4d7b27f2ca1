use proptest::prelude::*;
use serde_json::json;

use super::*;

/// The slices of an API server.
#[derive(Debug, Default, Clone)]
struct Server {
    slices: BTreeMap<String, ResourceSlice>,
    writes: i64,
    /// The cluster has binding conditions.
    binding: bool,
}

impl Server {
    fn seen(&self) -> BTreeMap<String, Seen> {
        self.slices.iter().map(|(name, slice)| (name.clone(), Seen::of(slice).1)).collect()
    }

    fn store(&mut self, mut slice: ResourceSlice) {
        self.writes += 1;
        slice.metadata.uid.get_or_insert_with(|| format!("uid-{}", self.writes));
        slice.metadata.resource_version = Some(self.writes.to_string());
        self.slices.insert(slice.metadata.name.clone().unwrap(), slice);
    }

    fn perform(&mut self, op: Op) {
        match op {
            Op::Create(slice) => {
                assert!(!self.slices.contains_key(slice.metadata.name.as_ref().unwrap()), "409");
                self.store(*slice);
            }
            Op::Update { uid, version, slice } => {
                let mut stored = self.slices[slice.metadata.name.as_ref().unwrap()].clone();
                assert_eq!(stored.metadata.uid.as_deref(), Some(&*uid));
                assert_eq!(stored.metadata.resource_version.as_deref(), Some(&*version));
                stored.spec = slice.spec;
                self.store(stored);
            }
            Op::Delete { name, uid } => {
                let gone = self.slices.remove(&name).unwrap();
                assert_eq!(gone.metadata.uid, Some(uid));
            }
        }
    }

    /// Performs the first writes of a plan.
    fn some(&mut self, devices: usize, writes: usize) {
        for op in plan("host-a", devices, self.binding, &self.seen()).into_iter().take(writes) {
            self.perform(op);
        }
    }

    fn all(&mut self, devices: usize) {
        self.some(devices, usize::MAX);
    }

    /// The names of the devices that the scheduler would use: those of a complete pool.
    fn usable(&self) -> Vec<String> {
        let Some(latest) = self.slices.values().map(|slice| slice.spec.pool.generation).max() else {
            return Vec::new();
        };
        let current: Vec<_> =
            self.slices.values().filter(|slice| slice.spec.pool.generation == latest).collect();
        if current.iter().any(|slice| slice.spec.pool.resource_slice_count != current.len() as i64) {
            return Vec::new();
        }
        let devices = current.iter().flat_map(|slice| slice.spec.devices.iter().flatten());
        devices.map(|device| device.name.clone()).collect()
    }
}

#[test]
fn a_node_has_one_device_for_each_pod_and_nothing_more_is_written() {
    for (devices, slices) in [(0, 0), (1, 1), (110, 1), (128, 1), (129, 2), (1024, 8), (100_000, 8)] {
        let mut server = Server::default();
        server.all(devices);
        assert_eq!(server.slices.len(), slices);
        assert_eq!(server.usable().len(), devices.min(MAX_DEVICES));
        assert_eq!(plan("host-a", devices, false, &server.seen()), []);
    }
}

#[test]
fn a_slice_names_its_node_by_a_selector_that_no_kubelet_takes_for_its_own() {
    let slice = serde_json::to_value(slice("host-a", Hold::Start, 1, 1, 2, 3)).unwrap();
    assert_eq!(
        slice,
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
            "metadata": {"name": "host-a-companions-1"},
            "spec": {"driver": "companions.outrigger.dev",
                "pool": {"name": "host-a", "generation": 3, "resourceSliceCount": 2},
                "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [
                    {"key": "metadata.name", "operator": "In", "values": ["host-a"]}]}]},
                "devices": [{"name": "pod-128"}]}})
    );
}

#[test]
fn devices_with_binding_conditions_are_further_slices_of_the_same_pool() {
    let mut server = Server { binding: true, ..Server::default() };
    server.all(130);
    let names: Vec<&str> = server.slices.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "host-a-companions-0",
            "host-a-companions-1",
            "host-a-companions-binding-0",
            "host-a-companions-binding-1"
        ]
    );
    assert_eq!(server.usable().iter().filter(|name| name.starts_with("binding-")).count(), 130);
    assert_eq!(
        serde_json::to_value(device(Hold::Binding, 7)).unwrap(),
        json!({"name": "binding-7", "attributes": {"binding": {"bool": true}},
            "bindingConditions": ["outrigger.dev/CompanionsReady"],
            "bindingFailureConditions": ["outrigger.dev/CompanionsUnavailable"]})
    );
    // A cluster that lacks the feature drops the field.
    let mut answer = probe();
    assert!(has_binding(&answer));
    answer.spec.devices.as_mut().unwrap()[0].binding_conditions = None;
    assert!(!has_binding(&answer));
    server.binding = false;
    server.all(130);
    assert_eq!(server.usable().len(), 130);
}

#[test]
fn a_change_of_the_number_raises_the_generation_of_all_slices() {
    let mut server = Server::default();
    server.all(110);
    server.all(250);
    let generations: Vec<i64> = server.slices.values().map(|slice| slice.spec.pool.generation).collect();
    assert_eq!(generations, [2, 2]);
    server.all(250);
    assert_eq!(server.writes, 3, "nothing more is written");
    // A slice that somebody deleted or changed is written again.
    server.slices.remove("host-a-companions-1");
    server.all(250);
    assert_eq!(server.usable().len(), 250);
    server.slices.get_mut("host-a-companions-0").unwrap().spec.devices.as_mut().unwrap().pop();
    server.all(250);
    assert_eq!(server.usable().len(), 250);
    server.all(0);
    assert!(server.slices.is_empty());
}

#[test]
fn a_slice_that_was_deleted_is_awaited() {
    let mut server = Server::default();
    server.all(110);
    let mut seen = server.seen();
    seen.values_mut().for_each(|seen| seen.deleted = true);
    assert_eq!(plan("host-a", 110, false, &seen), []);
    assert_eq!(plan("host-a", 0, false, &seen), []);
}

#[test]
fn long_names_of_nodes_make_valid_names_of_slices() {
    let long = format!("{}.{}.{}", "a".repeat(63), "b".repeat(63), "c".repeat(120));
    let (one, other) = (prefix(&long), prefix(&format!("{long}d")));
    assert_ne!(one, other);
    assert!(one.len() < 250 && !one.contains(".-"), "{one}");
    let at_dot = format!("{}.{}", "a".repeat(199), "b".repeat(50));
    assert!(!prefix(&at_dot).contains(".-"));
}

#[test]
fn a_template_of_somebody_else_is_distinguished_from_an_older_one() {
    let mut found = template("shop", Hold::Start);
    assert_eq!(Found::of(&found, Hold::Start), Found::Right);
    found.spec.metadata = Some(ObjectMeta::default());
    assert_eq!(Found::of(&found, Hold::Start), Found::Right, "as the API server returns it");
    found.spec.spec.devices = None;
    assert_eq!(Found::of(&found, Hold::Start), Found::Outdated);
    found.metadata.labels = None;
    assert_eq!(Found::of(&found, Hold::Start), Found::Foreign);
    let mut found = template("shop", Hold::Binding);
    assert_eq!(Found::of(&found, Hold::Binding), Found::Right);
    assert_eq!(Found::of(&found, Hold::Start), Found::Outdated);
    found.spec.metadata = None;
    assert_eq!(Found::of(&found, Hold::Binding), Found::Outdated, "its claims would not be seen");
}

proptest! {
    /// However often the number changes and the writes are interrupted, an uninterrupted plan ends with the right pool.
    #[test]
    fn interrupted_plans_end_with_the_wanted_pool(
        steps in proptest::collection::vec((0usize..600, 0usize..6, any::<bool>()), 0..12),
        last in 0usize..600,
        binding: bool,
    ) {
        let mut server = Server::default();
        for (devices, writes, binding) in steps {
            server.binding = binding;
            server.some(devices, writes);
        }
        server.binding = binding;
        server.all(last);
        server.all(last);
        prop_assert_eq!(plan("host-a", last, server.binding, &server.seen()), []);
        let mut usable = server.usable();
        usable.sort();
        usable.dedup();
        prop_assert_eq!(usable.len(), if binding { 2 * last } else { last });
    }
}
