//! What is known of a claim's devices: those that it was given, what their drivers say, and their configuration.

use outrigger_core::device::{self, DeviceTrouble};
use outrigger_core::json::{list, text};
use serde::Serialize;
use serde_json::Value;

/// A device that a claim was given, and what its driver says of it.
#[derive(Debug, Serialize)]
pub(crate) struct Device {
    /// As the API has it in `status.allocation.devices.results`.
    #[serde(flatten)]
    result: Value,
    /// What of this is wrong; `None` for nothing.
    #[serde(skip)]
    pub(crate) trouble: Option<DeviceTrouble>,
    /// What the driver says (`status.devices`), as the API has it; empty where it says nothing.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    conditions: Vec<Value>,
    /// The network interface that it is, and its addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    network: Option<Network>,
    /// What else the driver says, in a form of its own.
    #[serde(skip_serializing_if = "Value::is_null")]
    data: Value,
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
        path(&self.result)
    }

    /// `statuses`: `status.devices` of the claim.
    pub(super) fn of(result: &Value, statuses: &[Value]) -> Self {
        let status = device::device_status(result, statuses);
        let network =
            status.get("networkData").filter(|network| network.is_object()).map(|network| Network {
                interface: text(network, "/interfaceName").to_owned(),
                ips: texts(network, "/ips").map(str::to_owned).collect(),
                hardware_address: text(network, "/hardwareAddress").to_owned(),
            });
        Self {
            trouble: device::trouble(result, status),
            conditions: list(status, "/conditions").to_vec(),
            network,
            data: status.get("data").cloned().unwrap_or_default(),
            result: result.clone(),
        }
    }

    /// What is known of it besides its path, for people; empty for nothing.
    pub(crate) fn more(&self) -> String {
        let (result, mut all) = (&self.result, Vec::<String>::new());
        let share = Some(text(result, "/shareID")).filter(|share| !share.is_empty());
        all.extend(share.map(|share| format!("share {share}")));
        if result["adminAccess"] == true {
            all.push("admin access".to_owned());
        }
        let capacity = result["consumedCapacity"].as_object().into_iter().flatten();
        all.extend(capacity.filter_map(|(name, value)| Some(format!("{name} {}", value.as_str()?))));
        if let Some(Network { interface, ips, hardware_address }) = &self.network {
            let parts = [interface, hardware_address].into_iter().chain(ips);
            all.extend(parts.filter(|part| !part.is_empty()).cloned());
        }
        all.extend(self.conditions.iter().map(condition));
        let tolerated: Vec<String> = list(result, "/tolerations").iter().map(toleration).collect();
        if !tolerated.is_empty() {
            all.push(format!("tolerates {}", tolerated.join(" and ")));
        }
        let is_written =
            |kind: &str| self.conditions.iter().any(|condition| text(condition, "/type") == kind);
        let unwritten = texts(result, "/bindingConditions").filter(|kind| !is_written(kind));
        all.extend(unwritten.map(|kind| format!("{kind} isn't written yet")));
        if !self.data.is_null() {
            all.push(format!("data {}", self.data));
        }
        all.join(", ")
    }
}

/// Driver, pool and name of the device of an allocation's result.
pub(crate) fn path(result: &Value) -> String {
    ["/driver", "/pool", "/device"].map(|part| text(result, part)).join("/")
}

fn texts<'a>(value: &'a Value, pointer: &str) -> impl Iterator<Item = &'a str> {
    list(value, pointer).iter().filter_map(Value::as_str)
}

fn condition(condition: &Value) -> String {
    let words = ["/type", "/status", "/reason", "/message"].map(|part| text(condition, part)).join(" ");
    words.trim_end().to_owned()
}

/// A toleration of device taints, for people.
pub(crate) fn toleration(toleration: &Value) -> String {
    let [key, value, effect] = ["/key", "/value", "/effect"].map(|pointer| text(toleration, pointer));
    let key = if key.is_empty() { "every taint" } else { key };
    let value = if text(toleration, "/operator") == "Exists" { String::new() } else { format!("={value}") };
    let effect = if effect.is_empty() { String::new() } else { format!(":{effect}") };
    format!("{key}{value}{effect}")
}

/// Whether a claim is reserved for a Pod (`status.reservedFor`), and not for another object of its namespace, such as a PodGroup.
pub(crate) fn is_pod(consumer: &Value) -> bool {
    text(consumer, "/apiGroup").is_empty() && text(consumer, "/resource") == "pods"
}

/// Those that a claim is reserved for besides Pods, as kubectl takes them.
pub(crate) fn others(consumers: &[Value]) -> Vec<String> {
    let path = |consumer: &Value| {
        let group = text(consumer, "/apiGroup");
        let group = if group.is_empty() { String::new() } else { format!(".{group}") };
        format!("{}{group}/{}", text(consumer, "/resource"), text(consumer, "/name"))
    };
    consumers.iter().filter(|consumer| !is_pod(consumer)).map(path).collect()
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
        let requests = texts(config, "/requests").map(str::to_owned).collect();
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
