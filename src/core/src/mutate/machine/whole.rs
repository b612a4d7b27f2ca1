//! Resources of the Pod as a whole (KEP-2837), which have to hold those of its containers, and so the slot's. The API server would
//! refuse less with a sum that nobody wrote.

use serde_json::{Map, Value};

use super::short;
use crate::amounts::{self, Amounts};
use crate::field::{self, FieldError};
use crate::machine::MachineType;
use crate::quantity::Quantity;

/// What resources of a Pod as a whole may be about besides `cpu` and `memory`.
const HUGE_PAGES: &str = "hugepages-";

/// What the containers of a Pod request together; `None` where the Pod has no resources as a whole.
pub(super) fn requested(pod: &Value) -> Option<Amounts> {
    pod.pointer("/spec/resources").filter(|resources| !resources.is_null())?;
    Some(amounts::of_containers(pod, "requests"))
}

/// Makes the resources of the Pod as a whole hold the slot. Where the API server has filled in what the containers had requested
/// together, or somebody has written just that, it becomes what they request now. Returns whether something was changed.
///
/// `before`: what the containers requested before one got the slot.
///
/// # Errors
/// A [`FieldError`] where the Pod isn't of the API's shape, or is to have less than its containers.
pub(super) fn hold(pod: &mut Value, before: &Amounts, type_: &MachineType) -> Result<bool, FieldError> {
    let [requested, limited] = ["requests", "limits"].map(|which| amounts::of_containers(pod, which));
    let spec = field::object_mut(field::as_object_mut(pod, "")?, "", "spec")?;
    let resources = field::object_mut(spec, "spec", "resources")?;
    let limits = amounts_at(resources, "limits")?;
    let requests = amounts_at(resources, "requests")?;
    let mut changed = false;
    for (name, slot) in type_.resources() {
        let is_huge = name.starts_with(HUGE_PAGES);
        let sum = requested.get(&name).copied();
        let (Ok(slot), Some(sum)) = (slot.parse::<Quantity>(), sum) else { continue };
        if !is_huge && !matches!(name.as_str(), "cpu" | "memory") {
            continue;
        }
        let own = requests.get(&name);
        let is_sum = own.is_none() || !is_huge && own == before.get(&name);
        let limit = limits.get(&name);
        let least = if is_huge { limited.get(&name).copied().unwrap_or(slot) } else { slot };
        let least = if is_sum { least.max(sum) } else { least };
        if let Some(limit) = limit.filter(|limit| **limit < least) {
            return Err(too_little("limits", &name, limit, &least, type_));
        }
        let Some(own) = own.filter(|own| **own < sum) else { continue };
        if !is_sum {
            return Err(too_little("requests", &name, own, &sum, type_));
        }
        field::object_mut(resources, "spec.resources", "requests")?.insert(name, sum.to_string().into());
        changed = true;
    }
    Ok(changed)
}

fn amounts_at(resources: &Map<String, Value>, list: &str) -> Result<Amounts, FieldError> {
    let all = field::object(resources, "spec.resources", list)?.into_iter().flatten();
    Ok(all.filter_map(|(name, value)| Some((name.clone(), super::amount(value)?))).collect())
}

fn too_little(list: &str, name: &str, own: &Quantity, least: &Quantity, type_: &MachineType) -> FieldError {
    FieldError::new(
        format_args!("spec.resources.{list}[{name}]"),
        format_args!(
            "is {own}, less than the {least} that its containers have together with the slot of machine type {:?}; remove it, or \
             use no less",
            short(&type_.name)
        ),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::tests::{admitted, guest, slot};
    use super::*;

    /// A guest with these resources as a whole, and a sidecar beside the container that gets the slot of 2 processors and 24 GiB.
    fn with(whole: &Value, sidecar: &Value) -> Value {
        guest(json!({"resources": whole, "containers": [{"name": "a"}],
            "initContainers": [{"name": "s", "restartPolicy": "Always", "resources": sidecar}]}))
    }

    #[test]
    fn the_pod_as_a_whole_holds_the_slot_beside_its_other_containers() {
        let half = json!({"requests": {"cpu": "500m"}});
        for (whole, sidecar, after) in [
            // There is room.
            (json!({"requests": {"cpu": "3"}, "limits": {"cpu": "4"}}), &half, None),
            (json!({"requests": {"cpu": "2500m"}}), &half, None),
            (json!({"limits": {"memory": "24Gi"}}), &half, None),
            // What the API server has filled in, because there are limits: what the containers had requested.
            (
                json!({"requests": {"cpu": "500m", "memory": "30Gi"}, "limits": {"memory": "30Gi"}}),
                &half,
                Some(json!({"requests": {"cpu": "2500m", "memory": "30Gi"}, "limits": {"memory": "30Gi"}})),
            ),
            (
                json!({"requests": {"cpu": 0.5}, "limits": {"cpu": "3"}}),
                &half,
                Some(json!({"requests": {"cpu": "2500m"}, "limits": {"cpu": "3"}})),
            ),
            // Extended resources are not the Pod's as a whole.
            (json!({"requests": {"nvidia.com/gpu": "1"}}), &half, None),
            (json!({}), &half, None),
        ] {
            let (pod, _) = admitted(&with(&whole, sidecar)).unwrap();
            assert_eq!(pod["spec"]["resources"], after.unwrap_or(whole));
            assert_eq!(pod["spec"]["containers"][0]["resources"]["requests"], slot());
        }
        let none = admitted(&guest(json!({"containers": [{"name": "a"}]}))).unwrap().0;
        assert_eq!(none["spec"].get("resources"), None);
    }

    #[test]
    fn less_than_the_containers_have_together_is_refused() {
        let half = json!({"requests": {"cpu": "500m"}});
        for (whole, sidecar, said) in [
            (json!({"limits": {"cpu": "1"}}), json!({}), "limits[cpu]: is 1, less than the 2 that"),
            (
                json!({"requests": {"cpu": "2"}}),
                half.clone(),
                "requests[cpu]: is 2, less than the 2500m that",
            ),
            (
                json!({"requests": {"memory": "1Gi"}}),
                json!({}),
                "requests[memory]: is 1Gi, less than the 24Gi that",
            ),
            (
                json!({"requests": {"cpu": "500m"}, "limits": {"cpu": "2"}}),
                half.clone(),
                "limits[cpu]: is 2, less than the 2500m that",
            ),
            (json!({"limits": {"cpu": "2"}}), half, "limits[cpu]: is 2, less than the 2500m that"),
        ] {
            let found = admitted(&with(&whole, &sidecar)).unwrap_err().to_string();
            assert!(
                found.starts_with(&format!("spec.resources.{said} its containers have together")),
                "{found}"
            );
        }
    }
}
