//! A driver for Dynamic Resource Allocation as far as schedulers see one: the devices that it publishes. There are no kubelets
//! that would ask it to prepare any.

use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimTemplate};
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use outrigger_core::keys;
use serde_json::{Value, json};

use crate::tenant::Tenant;
use crate::{InWords, eventually, holds};

/// The devices of one tenant's DPUs, of one class.
pub struct Devices {
    /// The driver's name, which is the domain of the attributes of its devices.
    pub driver: String,
    /// The class of its devices.
    pub class: String,
}

impl Devices {
    /// Publishes so many devices on the first DPU of each of these hosts, and lets the tenant use them. Each has the attribute
    /// `host`: the name of its host.
    pub async fn publish(t: &Tenant, hosts: &[(&str, usize)]) -> Self {
        let this = Self { driver: format!("{}.devices.test", t.id), class: format!("{}-crypto", t.id) };
        let selector = format!("device.driver == \"{}\"", this.driver);
        let mut objects = vec![json!({"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass",
            "metadata": {"name": this.class},
            "spec": {"selectors": [{"cel": {"expression": selector}}]}})];
        for (host, count) in hosts {
            let (host, node) = (t.node(host), t.node(&format!("{host}-dpu1")));
            let devices: Vec<Value> = (0..*count)
                .map(|n| json!({"name": format!("d{n}"), "attributes": {"host": {"string": host}}}))
                .collect();
            objects.push(json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
                "metadata": {"name": format!("{node}-{}", this.driver)},
                "spec": {"driver": this.driver, "nodeName": node, "devices": devices,
                    "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}}}));
        }
        t.outrigger.plane.infra.apply(&objects).unwrap();
        // The webhook's watch may not have shown it the class yet.
        crate::eventually("the class may be allowed", || t.set(json!({"deviceClasses": [this.class]}))).await;
        this
    }

    /// A claim's spec for one of them.
    pub fn one(&self) -> Value {
        json!({"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": self.class}}]}})
    }

    /// A template that is a claim for one of them.
    pub fn template(&self) -> Value {
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "metadata": {"labels": {"app": "device"}}, "spec": self.one()})
    }
}

/// The claims in a namespace.
pub fn claims(client: &Client, namespace: &str) -> Api<ResourceClaim> {
    Api::namespaced(client.clone(), namespace)
}

/// The claims that rules have made for workloads in a namespace, those that are being deleted too.
pub async fn made(client: &Client, namespace: &str) -> Result<Vec<ResourceClaim>, String> {
    let list = claims(client, namespace).list(&ListParams::default().labels(keys::RULE)).await;
    list.map(|list| list.items).in_words()
}

/// The templates of claims in a namespace that rules have made.
pub async fn templates(client: &Client, namespace: &str) -> Result<Vec<ResourceClaimTemplate>, String> {
    let api: Api<ResourceClaimTemplate> = Api::namespaced(client.clone(), namespace);
    api.list(&ListParams::default().labels(keys::RULE)).await.map(|list| list.items).in_words()
}

/// The pools that a claim's devices are of: here, the DPU.
pub fn pools(claim: &ResourceClaim) -> Vec<&str> {
    let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
    let results = allocation.and_then(|allocation| allocation.devices.as_ref()?.results.as_ref());
    results.into_iter().flatten().map(|result| result.pool.as_str()).collect()
}

/// The uids of the Pods that a claim is reserved for.
pub fn reserved(claim: &ResourceClaim) -> Vec<&str> {
    let reserved = claim.status.as_ref().and_then(|status| status.reserved_for.as_ref());
    reserved.into_iter().flatten().map(|consumer| consumer.uid.as_str()).collect()
}

/// Waits until a claim has devices, and returns it.
pub async fn allocated(client: &Client, namespace: &str, name: &str) -> ResourceClaim {
    eventually(&format!("claim {name} is allocated"), || async {
        let claim = claims(client, namespace).get(name).await.in_words()?;
        if pools(&claim).is_empty() { Err(format!("{:?}", claim.status)) } else { Ok(claim) }
    })
    .await
}

/// Waits until nothing is left of some claims.
pub async fn gone(client: &Client, namespace: &str, names: &[String]) {
    eventually(&format!("claims {names:?} are gone"), || async {
        let list = claims(client, namespace).list(&ListParams::default()).await.in_words()?;
        let left: Vec<_> =
            list.items.iter().map(ResourceExt::name_any).filter(|n| names.contains(n)).collect();
        holds(left.is_empty(), format!("{left:?}"))
    })
    .await;
}
