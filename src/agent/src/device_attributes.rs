//! Attributes of the devices that are allocated to claims of workloads: the map `deviceAttributes` of `state.extra`.
//!
//! **In**: watches of ResourceClaims and ResourceSlices, of which only allocations and the attributes are kept that the command line
//! permits to send. **Out**: the attributes of a workload's devices. A claim is that of a workload for as long as it is reserved for its
//! Pod. Claims, slices and Pods arrive in any order. **Callers**: the agent, and commands that read these objects themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::resource::v1::{
    DeviceAttribute, DeviceRequestAllocationResult, ResourceClaim, ResourceSlice, ResourceSliceSpec,
};
use kube::ResourceExt;
use outrigger_core::annotations::{MAX_KEY, Pattern};
use outrigger_core::ids::WorkloadId;
use outrigger_core::keys;
use outrigger_core::map::{HashMap, HashSet, remove_from};
use outrigger_core::texts::Texts;
use outrigger_core::workload::{DEVICE_ATTRIBUTES, Workload};
use outrigger_runtime::Process;
use outrigger_runtime::cache::{Change, Feed};
use outrigger_runtime::watch::Watch;

use crate::companions::ClaimName;
use crate::context::Context;
use crate::store::WorkloadStore;

/// The watches, as metrics and `/readyz` name them. Without their lists, rules that select by attributes would match too few workloads,
/// so the first stream waits for them.
pub(crate) const WATCHES: [&str; 2] = ["device claims", "device slices"];

/// Most attributes of one workload.
const MOST: usize = 256;
/// Most bytes of a value. Those of several devices of a request are joined.
const MAX_VALUE: usize = 1024;

/// Driver and name of a pool of devices.
type Pool = (String, String);

/// A claim with an allocation.
#[derive(Debug)]
struct Claim {
    /// What Pods' specs call it if it was generated from a template, else its name.
    name: String,
    pods: BTreeSet<WorkloadId>,
    /// Request, pool and name of each device.
    devices: Vec<(String, Pool, String)>,
}

#[derive(Debug)]
struct Slice {
    pool: Pool,
    generation: i64,
    /// Names of devices, with names and values of attributes.
    devices: BTreeMap<String, Vec<(String, String)>>,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub struct DeviceAttributes {
    /// The attributes that are sent, by their full names.
    sent: Arc<[Pattern]>,
    claims: HashMap<ClaimName, Claim>,
    /// The claims that are reserved for each Pod, and those that have devices of each pool.
    of_pods: HashMap<WorkloadId, HashSet<ClaimName>>,
    of_pools: HashMap<Pool, HashSet<ClaimName>>,
    slices: HashMap<String, Slice>,
    /// The slices of each pool.
    pools: HashMap<Pool, BTreeSet<String>>,
}

/// Starts to follow claims and slices, if attributes are to be sent.
pub(crate) fn start(process: &Process, context: &Context, store: &Arc<WorkloadStore>, sent: Arc<[Pattern]>) {
    if sent.is_empty() {
        return;
    }
    store.send_device_attributes(sent);
    let [claims, slices] = WATCHES;
    let watch: Watch<ResourceClaim> = Watch::all(&context.client, claims).optional();
    let to = store.clone();
    watch.start(process, Feed::new(move |change| to.device_claim(change)).sink());
    let watch: Watch<ResourceSlice> = Watch::all(&context.client, slices).optional();
    let to = store.clone();
    watch.start(process, Feed::new(move |change| to.device_slice(change)).sink());
}

impl DeviceAttributes {
    /// Without claims and slices.
    pub fn new(sent: Arc<[Pattern]>) -> Self {
        Self { sent, ..Self::default() }
    }

    /// Records a state of a claim. Returns the workloads that it may concern.
    pub fn claim(&mut self, change: Change<ResourceClaim>) -> BTreeSet<WorkloadId> {
        let (namespace, name, claim) = change.into_parts();
        let name = ClaimName { namespace, name };
        let mut affected = BTreeSet::new();
        if let Some(before) = self.claims.remove(&name) {
            for pod in &before.pods {
                remove_from(&mut self.of_pods, pod, |claims| claims.remove(&name));
            }
            for (_, pool, _) in &before.devices {
                remove_from(&mut self.of_pools, pool, |claims| claims.remove(&name));
            }
            affected.extend(before.pods);
        }
        if let Some(claim) = claim.as_ref().and_then(Claim::of) {
            for pod in &claim.pods {
                self.of_pods.entry(pod.clone()).or_default().insert(name.clone());
            }
            for (_, pool, _) in &claim.devices {
                self.of_pools.entry(pool.clone()).or_default().insert(name.clone());
            }
            affected.extend(claim.pods.iter().cloned());
            self.claims.insert(name, claim);
        }
        affected
    }

    /// Records a state of a slice. Returns the workloads that it may concern.
    pub fn slice(&mut self, change: Change<ResourceSlice>) -> BTreeSet<WorkloadId> {
        let (_, name, slice) = change.into_parts();
        let mut affected = BTreeSet::new();
        if let Some(before) = self.slices.remove(&name) {
            remove_from(&mut self.pools, &before.pool, |slices| slices.remove(&name));
            affected.extend(self.users(&before.pool));
        }
        if let Some(slice) = slice.map(|slice| Slice::of(slice.spec, &self.sent)) {
            self.pools.entry(slice.pool.clone()).or_default().insert(name.clone());
            affected.extend(self.users(&slice.pool));
            self.slices.insert(name, slice);
        }
        affected
    }

    /// Sets the attributes of a workload's devices.
    pub fn describe(&self, workload: &mut Workload) {
        match self.of(&workload.id) {
            Some(attributes) => _ = workload.extra.insert(DEVICE_ATTRIBUTES.to_owned(), attributes),
            None => _ = workload.extra.remove(DEVICE_ATTRIBUTES),
        }
    }

    /// Whether slices have all devices of a workload's claims.
    pub fn is_whole(&self, id: &WorkloadId) -> bool {
        let claims = self.of_pods.get(id).into_iter().flatten().filter_map(|name| self.claims.get(name));
        let mut devices = claims.flat_map(|claim| &claim.devices);
        devices.all(|(_, pool, device)| self.device(pool, device).is_some())
    }

    /// The workloads with devices of a pool.
    fn users(&self, pool: &Pool) -> BTreeSet<WorkloadId> {
        let claims = self.of_pools.get(pool).into_iter().flatten();
        let claims = claims.filter_map(|name| self.claims.get(name));
        claims.flat_map(|claim| claim.pods.iter().cloned()).collect()
    }

    fn of(&self, id: &WorkloadId) -> Option<Texts> {
        let mut names: Vec<&ClaimName> = self.of_pods.get(id)?.iter().collect();
        // Two claims may be called the same.
        names.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let mut all: BTreeMap<String, String> = BTreeMap::new();
        for claim in names.into_iter().filter_map(|name| self.claims.get(name)) {
            for (request, pool, device) in &claim.devices {
                for (attribute, value) in self.device(pool, device).unwrap_or_default() {
                    add(&mut all, format!("{}/{request}/{attribute}", claim.name), value);
                }
            }
        }
        (!all.is_empty()).then(|| Texts::from(&all))
    }

    /// The attributes of a device; `None` for one that no slice has. While its driver writes a new generation of the pool, two slices may
    /// have it.
    fn device(&self, pool: &Pool, device: &str) -> Option<&[(String, String)]> {
        let slices = self.pools.get(pool).into_iter().flatten().filter_map(|name| self.slices.get(name));
        let slices = slices.filter_map(|slice| Some((slice.generation, slice.devices.get(device)?)));
        let newest = slices.max_by_key(|(generation, _)| *generation);
        newest.map(|(_, attributes)| attributes.as_slice())
    }
}

impl Claim {
    /// Reduces a claim; `None` for one without devices.
    fn of(claim: &ResourceClaim) -> Option<Self> {
        let status = claim.status.as_ref()?;
        let results = status.allocation.as_ref()?.devices.as_ref()?.results.as_ref()?;
        let consumers = status.reserved_for.iter().flatten();
        let is_core = |group: &Option<String>| group.as_deref().unwrap_or_default().is_empty();
        let pods = consumers.filter(|consumer| consumer.resource == "pods" && is_core(&consumer.api_group));
        let device = |result: &DeviceRequestAllocationResult| {
            // With an alternative it is REQUEST/ALTERNATIVE.
            let request = result.request.split('/').next().unwrap_or_default().to_owned();
            (request, (result.driver.clone(), result.pool.clone()), result.device.clone())
        };
        let called = claim.annotations().get(keys::POD_CLAIM_NAME).cloned();
        Some(Self {
            name: called.unwrap_or_else(|| claim.name_any()),
            pods: pods.filter_map(|pod| WorkloadId::new(&pod.uid).ok()).collect(),
            devices: results.iter().map(device).collect(),
        })
    }
}

impl Slice {
    /// Reduces a slice to the attributes that are sent.
    fn of(slice: ResourceSliceSpec, sent: &[Pattern]) -> Self {
        let ResourceSliceSpec { devices, driver, pool, .. } = slice;
        let attribute = |(name, value): (String, DeviceAttribute)| {
            // A name without a domain is in that of the driver.
            let name = if name.contains('/') { name } else { format!("{driver}/{name}") };
            let is_sent = sent.iter().any(|pattern| pattern.includes(&name));
            Some((name, text(value)?)).filter(|_| is_sent)
        };
        let devices = devices.into_iter().flatten().map(|device| {
            let attributes = device.attributes.into_iter().flatten();
            (device.name, attributes.filter_map(attribute).collect())
        });
        let devices = devices.collect();
        Self { devices, generation: pool.generation, pool: (driver, pool.name) }
    }
}

/// The value of an attribute; `None` for a list, and for what is unknown.
fn text(value: DeviceAttribute) -> Option<String> {
    let number = value.int.map(|int| int.to_string());
    let flag = value.bool.map(|flag| flag.to_string());
    value.string.or(value.version).or(number).or(flag)
}

/// Adds the value of a device. Values of several devices of a request are joined by commas.
fn add(all: &mut BTreeMap<String, String>, key: String, value: &str) {
    if let Some(known) = all.get_mut(&key) {
        if known.len() + value.len() < MAX_VALUE {
            known.push(',');
            known.push_str(value);
        }
    } else if all.len() < MOST && key.len() <= MAX_KEY {
        all.insert(key, value.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::tests::{id, object};

    fn claim(name: &str, change: &Value) -> Change<ResourceClaim> {
        let result = |request: &str, device: &str| json!({"request": request, "device": device, "driver": "gpu.example.com", "pool": "host-a"});
        let mut claim = json!({"metadata": {"name": name, "namespace": "n", "uid": name}, "spec": {},
            "status": {"allocation": {"devices": {"results": [result("one/large", "d0"), result("two", "d1"), result("two", "d2")]}},
                "reservedFor": [{"resource": "pods", "name": "web", "uid": "web"},
                    {"apiGroup": "example.com", "resource": "pods", "name": "other", "uid": "other"}]}});
        json_patch::merge(&mut claim, change);
        Change::Applied(object(claim))
    }

    fn slice(name: &str, generation: i64, models: &[(&str, &str)]) -> Change<ResourceSlice> {
        let device = |(name, model): &(&str, &str)| {
            json!({"name": name, "attributes": {"model": {"string": model}, "uuid": {"string": "secret"},
                "resource.kubernetes.io/numaNode": {"int": 1}, "ready": {"bool": true}, "firmware": {"version": "1.2.3"}}})
        };
        let devices: Vec<Value> = models.iter().map(device).collect();
        let pool = json!({"name": "host-a", "generation": generation, "resourceSliceCount": 1});
        Change::Applied(object(json!({"metadata": {"name": name, "uid": name},
            "spec": {"driver": "gpu.example.com", "pool": pool, "devices": devices}})))
    }

    fn gone<K>(namespace: &str, name: &str) -> Change<K> {
        Change::Gone { namespace: namespace.to_owned(), name: name.to_owned(), uid: String::new() }
    }

    fn sending(patterns: &[&str]) -> DeviceAttributes {
        DeviceAttributes::new(patterns.iter().map(|text| text.parse().unwrap()).collect())
    }

    fn found(all: &DeviceAttributes, pod: &str) -> Vec<(String, String)> {
        let texts = all.of(&id(pod)).unwrap_or_default();
        texts.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    fn pairs(of: &[(&str, &str)]) -> Vec<(String, String)> {
        of.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_pod_has_the_attributes_of_the_devices_that_are_reserved_for_it() {
        let mut all = sending(&["gpu.example.com/model"]);
        assert_eq!(all.claim(claim("mine", &json!({}))), BTreeSet::from([id("web")]));
        assert!(found(&all, "web").is_empty());
        assert!(!all.is_whole(&id("web")) && all.is_whole(&id("other")), "no slice has its devices");
        all.slice(slice("s", 1, &[("d0", "small"), ("d1", "large")]));
        assert!(!all.is_whole(&id("web")), "no slice has the third one");
        let devices = [("d0", "small"), ("d1", "large"), ("d2", "huge"), ("d3", "none")];
        assert_eq!(all.slice(slice("s", 1, &devices)), BTreeSet::from([id("web")]));
        let expected =
            [("mine/one/gpu.example.com/model", "small"), ("mine/two/gpu.example.com/model", "large,huge")];
        assert_eq!(found(&all, "web"), pairs(&expected));
        assert!(all.is_whole(&id("web")));
        assert!(found(&all, "other").is_empty(), "it is no Pod");
        // The newest generation of the pool counts.
        all.slice(slice("t", 2, &[("d0", "medium")]));
        assert_eq!(found(&all, "web")[0].1, "medium");
        all.slice(slice("t", 0, &[("d0", "medium")]));
        assert_eq!(found(&all, "web")[0].1, "small");
        // What is no longer reserved isn't the Pod's.
        let released = json!({"status": {"reservedFor": null}});
        assert_eq!(all.claim(claim("mine", &released)), BTreeSet::from([id("web")]));
        assert!(found(&all, "web").is_empty());
        assert!(all.of_pods.is_empty());
    }

    #[test]
    fn claims_are_called_as_in_the_pod_and_go_with_their_objects() {
        let mut all =
            sending(&["resource.kubernetes.io/*", "gpu.example.com/ready", "gpu.example.com/firmware"]);
        let generated = json!({"metadata": {"annotations": {keys::POD_CLAIM_NAME: "gpu"}},
            "status": {"allocation": {"devices": {"results": [
                {"request": "one", "device": "d0", "driver": "gpu.example.com", "pool": "host-a"}]}}}});
        all.slice(slice("s", 1, &[("d0", "small")]));
        all.claim(claim("web-gpu-x7k2m", &generated));
        let expected = [
            ("gpu/one/gpu.example.com/firmware", "1.2.3"),
            ("gpu/one/gpu.example.com/ready", "true"),
            ("gpu/one/resource.kubernetes.io/numaNode", "1"),
        ];
        assert_eq!(found(&all, "web"), pairs(&expected));
        assert_eq!(all.slice(gone("", "s")), BTreeSet::from([id("web")]));
        assert!(found(&all, "web").is_empty());
        assert_eq!(all.claim(gone("n", "web-gpu-x7k2m")), BTreeSet::from([id("web")]));
        assert!(all.claims.is_empty() && all.of_pods.is_empty() && all.of_pools.is_empty());
        assert!(all.slices.is_empty() && all.pools.is_empty());
    }

    #[test]
    fn one_workload_has_so_many_attributes_at_most() {
        let mut all = BTreeMap::new();
        (0..2 * MOST).for_each(|i| add(&mut all, i.to_string(), "a"));
        add(&mut all, "x".repeat(MAX_KEY + 1), "a");
        assert_eq!(all.len(), MOST);
        (0..MAX_VALUE).for_each(|_| add(&mut all, "0".to_owned(), "ab"));
        assert!(all["0"].len() <= MAX_VALUE, "{}", all["0"].len());
    }
}
