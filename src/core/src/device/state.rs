//! How the devices of an allocated claim are, as their drivers say in `status.devices`.

use serde_json::Value;

use crate::json::{list, text};

/// Something that is wrong with a device of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceTrouble {
    /// `DRIVER/POOL/DEVICE`.
    pub device: String,
    /// A binding failure condition is True: the scheduler gives the device up and looks for another one. Otherwise it waits.
    pub failed: bool,
    /// The condition, and its reason and message where the driver has written it.
    pub words: String,
    /// Since when the condition is so, RFC 3339; empty where the driver hasn't written it.
    pub since: String,
}

/// The entry of `status.devices` about a result of the allocation; null where its driver has written none.
pub fn device_status<'a>(result: &Value, devices: &'a [Value]) -> &'a Value {
    let same = |device: &&Value| {
        ["/driver", "/pool", "/device", "/shareID"]
            .iter()
            .all(|part| text(device, part) == text(result, part))
    };
    devices.iter().find(same).unwrap_or(&Value::Null)
}

/// What is wrong with a device that a claim was given, one of `status.allocation.devices.results`, by the conditions in its entry
/// `status` ([`device_status`]). The API defines three kinds: of `bindingFailureConditions` none may be True, all of
/// `bindingConditions` have to be True, and `Ready` has to be True where the driver writes it.
pub fn trouble(result: &Value, status: &Value) -> Option<DeviceTrouble> {
    let conditions = list(status, "/conditions");
    let find = |kind: &str| conditions.iter().find(|condition| text(condition, "/type") == kind);
    let is_true = |condition: &Value| text(condition, "/status") == "True";
    let trouble = |failed: bool, words: String, condition: Option<&Value>| {
        let part = |pointer: &str| condition.map(|condition| text(condition, pointer)).unwrap_or_default();
        let said = format!("{} {}", part("/reason"), part("/message"));
        let said = said.trim();
        DeviceTrouble {
            device: ["/driver", "/pool", "/device"].map(|pointer| text(result, pointer)).join("/"),
            failed,
            words: if said.is_empty() { words } else { format!("{words}: {said}") },
            since: part("/lastTransitionTime").to_owned(),
        }
    };
    let named = |pointer: &str| list(result, pointer).iter().filter_map(Value::as_str);
    let failure =
        named("/bindingFailureConditions").find_map(|kind| Some((kind, find(kind).filter(|c| is_true(c))?)));
    if let Some((kind, condition)) = failure {
        return Some(trouble(true, format!("its binding failed: {kind} is True"), Some(condition)));
    }
    if let Some(kind) = named("/bindingConditions").find(|kind| !find(kind).is_some_and(is_true)) {
        return Some(trouble(false, format!("{kind} isn't True"), find(kind)));
    }
    let unready = find("Ready").filter(|condition| !is_true(condition))?;
    Some(trouble(false, "Ready isn't True".to_owned(), Some(unready)))
}

/// What is wrong with the devices of an allocated claim, from its `status`: the first failure, else the first device that isn't ready.
pub fn first_trouble(status: &Value) -> Option<DeviceTrouble> {
    let devices = list(status, "/devices");
    let results = list(status, "/allocation/devices/results").iter();
    let mut all: Vec<DeviceTrouble> =
        results.filter_map(|result| trouble(result, device_status(result, devices))).collect();
    let first = all.iter().position(|trouble| trouble.failed).unwrap_or_default();
    (first < all.len()).then(|| all.swap_remove(first))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A status with one device: the names of its binding conditions, of its failure conditions, and what the driver has written.
    fn of(binding: Value, failure: Value, written: &[(&str, &str)]) -> Option<(bool, String)> {
        let conditions: Vec<Value> = written
            .iter()
            .map(|(kind, status)| json!({"type": kind, "status": status, "reason": "R", "message": "m"}))
            .collect();
        let device = json!({"driver": "d", "pool": "p", "device": "x", "conditions": conditions});
        let result = json!({"driver": "d", "pool": "p", "device": "x", "bindingConditions": binding,
            "bindingFailureConditions": failure});
        let status = json!({"allocation": {"devices": {"results": [result]}}, "devices": [device]});
        first_trouble(&status).map(|trouble| (trouble.failed, trouble.words))
    }

    #[test]
    fn a_device_is_ready_when_its_binding_conditions_are_and_no_failure_is() {
        let both = || json!(["Attached", "Programmed"]);
        let failures = || json!(["Broken"]);
        let waits = |words: &str| Some((false, words.to_owned()));
        let failed = Some((true, "its binding failed: Broken is True: R m".to_owned()));
        for (binding, failure, written, expected) in [
            (json!([]), json!([]), &[][..], None),
            (Value::Null, Value::Null, &[("Ready", "True")], None),
            (json!([]), json!([]), &[("Ready", "False")], waits("Ready isn't True: R m")),
            (json!([]), json!([]), &[("Ready", "Unknown")], waits("Ready isn't True: R m")),
            (both(), json!([]), &[], waits("Attached isn't True")),
            (both(), json!([]), &[("Ready", "True")], waits("Attached isn't True")),
            (both(), json!([]), &[("Attached", "True")], waits("Programmed isn't True")),
            (
                both(),
                json!([]),
                &[("Attached", "True"), ("Programmed", "False")],
                waits("Programmed isn't True: R m"),
            ),
            (both(), failures(), &[("Attached", "True"), ("Programmed", "True")], None),
            (both(), failures(), &[("Attached", "True"), ("Programmed", "True"), ("Broken", "False")], None),
            (both(), failures(), &[("Broken", "True")], failed.clone()),
            (
                both(),
                failures(),
                &[("Attached", "True"), ("Programmed", "True"), ("Broken", "True")],
                failed.clone(),
            ),
            (json!([]), failures(), &[("Ready", "True"), ("Broken", "True")], failed),
            // Nobody has asked for it.
            (json!([]), json!([]), &[("Broken", "True"), ("Attached", "False")], None),
        ] {
            assert_eq!(of(binding, failure, written), expected, "{written:?}");
        }
    }

    #[test]
    fn a_failure_is_named_before_what_only_waits_and_shares_are_distinguished() {
        let condition =
            |kind: &str, status: &str| json!({"type": kind, "status": status, "lastTransitionTime": "t"});
        let of = |share: &str, conditions: Value| json!({"driver": "d", "pool": "p", "device": "x", "shareID": share, "conditions": conditions});
        let result = |share: &str| {
            json!({"driver": "d", "pool": "p", "device": "x", "shareID": share,
            "bindingConditions": ["A"], "bindingFailureConditions": ["B"]})
        };
        let devices = [of("2", json!([condition("B", "True")])), of("1", json!([condition("A", "False")]))];
        let status =
            json!({"allocation": {"devices": {"results": [result("1"), result("2")]}}, "devices": devices});
        let first = first_trouble(&status).unwrap();
        assert_eq!((first.device.as_str(), first.failed, first.since.as_str()), ("d/p/x", true, "t"));
        let status = json!({"allocation": {"devices": {"results": [result("1")]}}, "devices": devices});
        assert!(!first_trouble(&status).unwrap().failed, "the other share is another claim's");
        assert_eq!(first_trouble(&json!({})), None);
    }
}
