//! What is known of a claim's devices: those that it was given, what their drivers say, and their configuration.

use std::collections::BTreeMap;
use std::ops::Not;

use outrigger_core::device::{self, DeviceTrouble};
use outrigger_core::json::{list, text};
use serde::Serialize;
use serde_json::Value;

/// A device that a claim was given (`status.allocation.devices.results`), and what its driver says of it (`status.devices`).
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Device {
    pub(super) request: String,
    pub(super) driver: String,
    pub(super) pool: String,
    pub(super) device: String,
    /// The share of a device that several claims share.
    #[serde(rename = "shareID", skip_serializing_if = "String::is_empty")]
    pub(super) share_id: String,
    /// It is used beside whoever else has it.
    #[serde(skip_serializing_if = "Not::not")]
    pub(super) admin_access: bool,
    /// What the claim takes of a shared device.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) consumed_capacity: BTreeMap<String, String>,
    /// The taints that the request tolerated when it got the device, as the API has them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) tolerations: Vec<Value>,
    /// The conditions that have to be True before a Pod is bound.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) binding_conditions: Vec<String>,
    /// The conditions of which none may be True.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) binding_failure_conditions: Vec<String>,
    /// What of this is wrong; `None` for nothing.
    #[serde(skip)]
    pub(crate) trouble: Option<DeviceTrouble>,
    /// What the driver says; empty where it says nothing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) conditions: Vec<DeviceCondition>,
    /// The network interface that it is, and its addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) network: Option<Network>,
    /// What else the driver says, in a form of its own.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub(super) data: Value,
}

/// A condition of a device, written by its driver.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DeviceCondition {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) status: String,
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) last_transition_time: String,
}

/// The network data of a device.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Network {
    interface: String,
    ips: Vec<String>,
    hardware_address: String,
}

impl Device {
    /// Driver, pool and name.
    pub(crate) fn path(&self) -> String {
        format!("{}/{}/{}", self.driver, self.pool, self.device)
    }

    /// `told`: `status.devices` of the claim.
    pub(super) fn of(result: &Value, told: &[Value]) -> Self {
        let part = |pointer: &str| text(result, pointer).to_owned();
        let told = device::told(result, told);
        let capacity = result.get("consumedCapacity").and_then(Value::as_object).into_iter().flatten();
        let names = |pointer: &str| {
            list(result, pointer).iter().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let network = told.get("networkData").filter(|network| network.is_object()).map(|network| Network {
            interface: text(network, "/interfaceName").to_owned(),
            ips: list(network, "/ips").iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            hardware_address: text(network, "/hardwareAddress").to_owned(),
        });
        Self {
            request: part("/request"),
            driver: part("/driver"),
            pool: part("/pool"),
            device: part("/device"),
            share_id: part("/shareID"),
            admin_access: result["adminAccess"] == true,
            consumed_capacity: capacity
                .filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())))
                .collect(),
            tolerations: list(result, "/tolerations").to_vec(),
            binding_conditions: names("/bindingConditions"),
            binding_failure_conditions: names("/bindingFailureConditions"),
            trouble: device::trouble(result, told),
            data: told.get("data").cloned().unwrap_or_default(),
            conditions: list(told, "/conditions").iter().map(DeviceCondition::of).collect(),
            network,
        }
    }

    /// What is known of it besides its path, for people; empty for nothing.
    pub(crate) fn more(&self) -> String {
        let mut all = Vec::new();
        if !self.share_id.is_empty() {
            all.push(format!("share {}", self.share_id));
        }
        if self.admin_access {
            all.push("admin access".to_owned());
        }
        all.extend(self.consumed_capacity.iter().map(|(name, value)| format!("{name} {value}")));
        if let Some(Network { interface, ips, hardware_address }) = &self.network {
            let parts =
                [interface.as_str(), hardware_address].into_iter().chain(ips.iter().map(String::as_str));
            all.extend(parts.filter(|part| !part.is_empty()).map(str::to_owned));
        }
        all.extend(self.conditions.iter().map(DeviceCondition::brief));
        let tolerated: Vec<String> = self.tolerations.iter().map(toleration).collect();
        if !tolerated.is_empty() {
            all.push(format!("tolerates {}", tolerated.join(" and ")));
        }
        let unwritten = |kind: &&String| self.conditions.iter().all(|condition| condition.kind != **kind);
        all.extend(
            self.binding_conditions.iter().filter(unwritten).map(|kind| format!("{kind} isn't written yet")),
        );
        if !self.data.is_null() {
            all.push(format!("data {}", self.data));
        }
        all.join(", ")
    }
}

impl DeviceCondition {
    fn of(condition: &Value) -> Self {
        let part = |pointer: &str| text(condition, pointer).to_owned();
        Self {
            kind: part("/type"),
            status: part("/status"),
            reason: part("/reason"),
            message: part("/message"),
            last_transition_time: part("/lastTransitionTime"),
        }
    }

    fn brief(&self) -> String {
        let Self { kind, status, reason, message, .. } = self;
        let words = format!("{kind} {status} {reason} {message}");
        words.trim_end().to_owned()
    }
}

/// A toleration of device taints, for people.
pub(crate) fn toleration(toleration: &Value) -> String {
    let [key, value, effect] = ["/key", "/value", "/effect"].map(|pointer| text(toleration, pointer));
    let key = if key.is_empty() { "every taint" } else { key };
    let value = if text(toleration, "/operator") == "Exists" { String::new() } else { format!("={value}") };
    let effect = if effect.is_empty() { String::new() } else { format!(":{effect}") };
    format!("{key}{value}{effect}")
}

/// Who a claim is reserved for (`status.reservedFor`): a Pod, or another object of its namespace, such as a PodGroup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Consumer {
    /// Its API group; empty for the core.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) api_group: String,
    pub(super) resource: String,
    pub(super) name: String,
    pub(super) uid: String,
}

impl Consumer {
    pub(super) fn of(reference: &Value) -> Self {
        let part = |pointer: &str| text(reference, pointer).to_owned();
        Self {
            api_group: part("/apiGroup"),
            resource: part("/resource"),
            name: part("/name"),
            uid: part("/uid"),
        }
    }

    pub(crate) fn is_pod(&self) -> bool {
        self.api_group.is_empty() && self.resource == "pods"
    }

    /// As kubectl takes it.
    pub(crate) fn path(&self) -> String {
        let group = if self.api_group.is_empty() { String::new() } else { format!(".{}", self.api_group) };
        format!("{}{group}/{}", self.resource, self.name)
    }
}

/// Parameters for a driver, of the claim or of its DeviceClass (`status.allocation.devices.config`).
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Configuration {
    /// Where it comes from: `FromClass` or `FromClaim`.
    pub(super) source: String,
    /// The requests that it is for; empty for all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) requests: Vec<String>,
    pub(super) driver: String,
    pub(super) parameters: Value,
}

impl Configuration {
    pub(super) fn of(config: &Value) -> Self {
        let requests =
            list(config, "/requests").iter().filter_map(Value::as_str).map(str::to_owned).collect();
        Self {
            source: text(config, "/source").to_owned(),
            requests,
            driver: text(config, "/opaque/driver").to_owned(),
            parameters: config.pointer("/opaque/parameters").cloned().unwrap_or_default(),
        }
    }

    /// For people.
    pub(crate) fn brief(&self) -> String {
        let Self { source, requests, driver, parameters } = self;
        let of = match source.as_str() {
            "FromClass" => "of the DeviceClass",
            "FromClaim" => "of the claim",
            other => other,
        };
        let requests =
            if requests.is_empty() { String::new() } else { format!(" for {}", requests.join(", ")) };
        format!("configuration {of} for {driver}{requests}: {parameters}")
    }
}
