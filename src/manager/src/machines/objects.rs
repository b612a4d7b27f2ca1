//! The objects of a Machine as they should be, and whether those that are there are so.

use k8s_openapi::api::apps::v1::StatefulSet;
use kube::Resource;
use outrigger_api::Machine;
use outrigger_api::machine::{MachineNodePoolSpec, TypeName};
use outrigger_core::json::{list, text};
use outrigger_core::keys;
use outrigger_core::machine::{MachineType, pool_name, reservation_labels, reservation_name};
use outrigger_core::quantity::Quantity;
use serde_json::{Value, json};

use super::cache::is_owned_by;
use crate::args::ManagerArgs;

/// What the pool of a Machine says.
pub(super) fn pool_spec(machine: &Machine, group: &str) -> MachineNodePoolSpec {
    let names = machine.spec.machine_types.iter().map(|t| TypeName { name: t.name.clone() });
    MachineNodePoolSpec {
        machine_group_name: group.to_owned(),
        node_pool: machine.spec.node_pool.clone(),
        machine_type_stock: names.collect(),
    }
}

pub(super) fn pool(machine: &Machine, group: &str) -> Value {
    json!({"apiVersion": "imperator.tenzen-y.io/v1alpha1", "kind": "MachineNodePool",
        "metadata": {"name": pool_name(group), "labels": {keys::MACHINE_GROUP: group},
            "ownerReferences": [machine.controller_owner_ref(&())]},
        "spec": pool_spec(machine, group)})
}

/// The Service of a type. Nothing answers there; it is the StatefulSet's, and Imperator's users know its name.
pub(super) fn service(machine: &Machine, group: &str, type_: &str, args: &ManagerArgs) -> Value {
    let labels = reservation_labels(group, type_);
    json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": reservation_name(group, type_), "namespace": args.core_namespace, "labels": labels,
            "ownerReferences": [machine.controller_owner_ref(&())]},
        "spec": {"type": "ClusterIP", "selector": labels, "ports": [{"port": 80, "protocol": "TCP"}]}})
}

/// The StatefulSet of a type's reservations.
///
/// Its Pods come and go in parallel: guests take the places of any of them, and where one finds no place the others must
/// not wait for it. They do nothing, so they may do nothing, and go within a second.
pub(super) fn stateful_set(
    machine: &Machine,
    group: &str,
    type_: &MachineType,
    replicas: u32,
    args: &ManagerArgs,
) -> Value {
    let name = reservation_name(group, &type_.name);
    let labels = reservation_labels(group, &type_.name);
    let resources = type_.resources();
    let mut container = json!({"name": "sleeper", "image": args.reservation_image,
        "resources": {"requests": resources, "limits": resources},
        "securityContext": {"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
            "capabilities": {"drop": ["ALL"]}}});
    if args.reservation_sleeps {
        // The policy outrigger-manager-reservations admits no other command.
        container["command"] = json!(["sleep", "infinity"]);
    }
    json!({"apiVersion": "apps/v1", "kind": "StatefulSet",
    "metadata": {"name": name, "namespace": args.core_namespace, "labels": labels,
        "ownerReferences": [machine.controller_owner_ref(&())]},
    "spec": {"replicas": replicas, "podManagementPolicy": "Parallel", "serviceName": name,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {
            "priorityClassName": keys::RESERVATION_PRIORITY,
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "securityContext": {"runAsNonRoot": true, "runAsUser": 65535, "runAsGroup": 65535,
                "seccompProfile": {"type": "RuntimeDefault"}},
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": type_.expressions(group)}]}}},
            "tolerations": type_.tolerations(group),
            "containers": [container],
        }}}})
}

/// Whether a StatefulSet can't become what it should be: these fields never change. Imperator's own is such a one.
pub(super) fn needs_recreation(live: &StatefulSet, wanted: &Value) -> bool {
    let live = serde_json::to_value(live).unwrap_or_default();
    ["/spec/podManagementPolicy", "/spec/serviceName", "/spec/selector/matchLabels"]
        .iter()
        .any(|path| live.pointer(path) != wanted.pointer(path))
}

/// Whether an object says all that is wanted of it. What the API server fills in is no difference, nor what others add,
/// but for where an addition changes what we mean.
pub(super) fn is_up_to_date<K: Resource + serde::Serialize>(live: &K, wanted: &Value) -> bool {
    let owned = |live: &K| {
        let mut controllers =
            list(wanted, "/metadata/ownerReferences").iter().filter(|owner| owner["controller"] == true);
        controllers.next().is_some_and(|owner| is_owned_by(live, text(owner, "/uid")))
    };
    let json = serde_json::to_value(live).unwrap_or_default();
    let labels = |of: &Value| of.pointer("/metadata/labels").cloned().unwrap_or_default();
    // The image's own program has to run where no command is wanted.
    let command = |of: &Value| of.pointer("/spec/template/spec/containers/0/command").cloned();
    owned(live)
        && command(wanted) == command(&json)
        && within(&labels(wanted), &labels(&json), false)
        && within(&wanted["spec"], &json["spec"], false)
}

/// Objects in which nobody else may add anything.
const WHOLE: [&str; 5] = ["requests", "limits", "matchLabels", "selector", "affinity"];

fn within(wanted: &Value, live: &Value, whole: bool) -> bool {
    match (wanted, live) {
        (Value::Object(wanted), Value::Object(live)) => {
            (!whole || wanted.len() == live.len())
                && wanted.iter().all(|(key, wanted)| {
                    let whole = whole || WHOLE.contains(&key.as_str());
                    live.get(key).is_some_and(|live| match (key.as_str(), wanted, live) {
                        ("requests" | "limits", Value::Object(wanted), Value::Object(live)) => {
                            wanted.len() == live.len()
                                && wanted.iter().all(|(k, v)| live.get(k).is_some_and(|l| as_much(v, l)))
                        }
                        _ => within(wanted, live, whole),
                    })
                })
        }
        (Value::Array(wanted), Value::Array(live)) if wanted.iter().all(Value::is_object) => {
            // Injectors add containers, before ours too: what has a name is found by it.
            let is_named = !whole && wanted.iter().all(|entry| entry["name"].is_string());
            let is_it = |wanted: &Value, live: &Value| !is_named || wanted["name"] == live["name"];
            (is_named || wanted.len() == live.len())
                && wanted.iter().all(|w| live.iter().any(|l| is_it(w, l) && within(w, l, whole)))
        }
        _ => wanted == live,
    }
}

/// Whether two quantities are the same, however they are written.
fn as_much(a: &Value, b: &Value) -> bool {
    let parse = |value: &Value| value.as_str().and_then(|text| text.parse::<Quantity>().ok());
    a == b || parse(a).is_some_and(|a| Some(a) == parse(b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use k8s_openapi::api::core::v1::Service;

    fn machine() -> Machine {
        fixtures::object(json!({"apiVersion": "imperator.tenzen-y.io/v1alpha1", "kind": "Machine",
            "metadata": {"name": "m", "uid": "u", "labels": {keys::MACHINE_GROUP: "g"}},
            "spec": {"nodePool": [{"name": "n", "mode": "ready", "machineType": [{"name": "t"}]}],
                "machineTypes": [{"name": "t", "available": 2, "spec": {"cpu": "4000m", "memory": "8Gi",
                    "gpu": {"type": "nvidia.com/gpu", "num": 1, "family": "turing"}}}]}}))
    }

    fn args() -> ManagerArgs {
        ManagerArgs { reservation_image: "pause".to_owned(), ..fixtures::args() }
    }

    fn set(replicas: u32) -> Value {
        let machine = machine();
        stateful_set(&machine, "g", &machine.compile().unwrap().types[0], replicas, &args())
    }

    fn live(change: impl FnOnce(&mut Value)) -> StatefulSet {
        let mut live = set(2);
        change(&mut live);
        fixtures::object(live)
    }

    #[test]
    fn a_reservation_is_as_large_as_a_guest_and_harmless() {
        let set = set(2);
        assert_eq!(set["metadata"]["name"], "g-t");
        let spec = &set["spec"]["template"]["spec"];
        let size = json!({"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "1"});
        assert_eq!(spec["containers"][0]["resources"], json!({"requests": size, "limits": size}));
        let terms = spec.pointer(
            "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchExpressions",
        );
        assert_eq!(
            terms.unwrap()[2],
            json!({"key": keys::GPU_FAMILY, "operator": "In", "values": ["turing"]})
        );
        assert_eq!(spec["tolerations"].as_array().unwrap().len(), 2);
        assert_eq!(set["spec"]["selector"]["matchLabels"], json!(reservation_labels("g", "t")));
    }

    #[test]
    fn a_reservation_sleeps_where_its_image_does_not_wait() {
        let machine = machine();
        let type_ = &machine.compile().unwrap().types[0];
        let sleeping =
            stateful_set(&machine, "g", type_, 2, &ManagerArgs { reservation_sleeps: true, ..args() });
        assert_eq!(
            sleeping["spec"]["template"]["spec"]["containers"][0]["command"],
            json!(["sleep", "infinity"])
        );
        let own = set(2);
        assert_eq!(own["spec"]["template"]["spec"]["containers"][0].get("command"), None);
        for (live, wanted, same) in [
            (&own, &own, true),
            (&sleeping, &sleeping, true),
            (&own, &sleeping, false),
            (&sleeping, &own, false),
        ] {
            let live: StatefulSet = fixtures::object(live.clone());
            assert_eq!(is_up_to_date(&live, wanted), same);
        }
    }

    #[test]
    fn what_the_api_server_fills_in_is_no_difference_and_what_others_change_is() {
        let wanted = set(2);
        let spec = "/spec/template/spec";
        let at = |live: &mut Value, path: &str, value: Value| {
            let (parent, key) = path.rsplit_once('/').unwrap();
            live.pointer_mut(parent).unwrap().as_object_mut().unwrap().insert(key.to_owned(), value);
        };
        let reversed = |list: &Value| list.as_array().unwrap().iter().rev().cloned().collect::<Value>();
        let sidecar = json!({"name": "istio-proxy", "image": "p"});
        let with_sidecar = json!([sidecar, wanted.pointer(&format!("{spec}/containers/0")).unwrap()]);
        for (path, value) in [
            ("/spec/revisionHistoryLimit".to_owned(), json!(10)),
            (format!("{spec}/dnsPolicy"), json!("ClusterFirst")),
            (format!("{spec}/containers/0/imagePullPolicy"), json!("IfNotPresent")),
            (format!("{spec}/containers/0/resources/requests/cpu"), json!("4000m")),
            ("/metadata/labels/more".to_owned(), json!("x")),
            (
                format!("{spec}/tolerations"),
                wanted.pointer(&format!("{spec}/tolerations")).map(reversed).unwrap(),
            ),
            (format!("{spec}/containers"), with_sidecar),
        ] {
            assert!(is_up_to_date(&live(|l| at(l, &path, value)), &wanted), "{path}");
        }
        for (path, value) in [
            ("/spec/replicas".to_owned(), json!(9)),
            (format!("{spec}/containers/0/image"), json!("other")),
            (format!("{spec}/containers/0/resources/limits/example.com~1x"), json!("1")),
            (format!("{spec}/containers/0/resources/requests/cpu"), json!("5")),
            (format!("{spec}/affinity/podAffinity"), json!({})),
            (format!("{spec}/tolerations"), json!([])),
            (format!("{spec}/tolerations"), json!([{"operator": "Exists"}, {"operator": "Exists"}])),
            (format!("{spec}/containers"), json!([sidecar])),
            ("/metadata/ownerReferences".to_owned(), json!([])),
            ("/metadata/labels".to_owned(), json!({})),
        ] {
            assert!(!is_up_to_date(&live(|l| at(l, &path, value)), &wanted), "{path}");
        }
        let service = service(&machine(), "g", "t", &args());
        let mut other = service.clone();
        other["spec"]["clusterIP"] = json!("10.0.0.1");
        other["spec"]["ports"][0]["targetPort"] = json!(80);
        assert!(is_up_to_date(&fixtures::object::<Service>(other.clone()), &service));
        other["spec"]["selector"]["x"] = json!("y");
        assert!(!is_up_to_date(&fixtures::object::<Service>(other), &service));
    }

    #[test]
    fn imperators_own_statefulset_has_to_go_first() {
        assert!(!needs_recreation(&live(|l| l["spec"]["replicas"] = json!(9)), &set(2)));
        assert!(needs_recreation(
            &live(|l| l["spec"]["podManagementPolicy"] = json!("OrderedReady")),
            &set(2)
        ));
    }
}
