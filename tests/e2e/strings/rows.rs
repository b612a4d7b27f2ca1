//! The table: each field, its edge cases, and what is made of it.

use outrigger_api::Machine;
use outrigger_core::admin;
use outrigger_core::host::HostLabels;
use outrigger_core::ids::{RuleName, WorkloadId};
use outrigger_core::keys;
use outrigger_core::machine::{pool_name, reservation_labels, reservation_name};
use outrigger_core::offloading::Offloading;
use outrigger_core::syntax::unlabelable;
use outrigger_core::tenant::usual_namespace;
use outrigger_tests::tenant::{admin_rule, machine, namespace, rule, rule_for, tenant};
use serde_json::{Value, json};

use super::templates::templates;
use super::values::{amounts, keys_of_labels, names, numbers_of_values, resources, values_of_labels};
use super::{Entry, NAMESPACE, Object, Row};

const PODS: &str = "/api/v1/namespaces/strings/pods";
const RULES: &str = "/apis/workload.universe.nvidia.com/v1alpha1/namespaces/strings/workloadrules";
const ADMIN_RULES: &str =
    "/apis/workload.universe.nvidia.com/v1alpha1/namespaces/universe/adminworkloadrules";
const TENANTS: &str = "/apis/outrigger.dev/v1alpha1/tenants";
const MACHINES: &str = "/apis/imperator.tenzen-y.io/v1alpha1/machines";
const POOLS: &str = "/apis/imperator.tenzen-y.io/v1alpha1/machinenodepools";
const OFFLOADINGS: &str = "/apis/offloading.liqo.io/v1beta1/namespaces/strings/namespaceoffloadings";
const POLICIES: &str = "/apis/networking.k8s.io/v1/namespaces/strings/networkpolicies";
const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/strings/resourceclaims";
const SERVICES: &str = "/api/v1/namespaces/strings/services";

pub(super) fn all() -> Vec<Row> {
    [templates(), rules(), offloadings(), machines(), tenants(), settings()].into_iter().flatten().collect()
}

/// A row whose values both take or refuse.
pub(super) fn row(
    field: &str,
    values: Vec<Value>,
    entry: Entry,
    made: impl Fn(&Value) -> Object + Send + Sync + 'static,
) -> Row {
    let (stricter, warned) = (Vec::new(), Vec::new());
    Row { field: field.to_owned(), values, entry, made: Box::new(made), stricter, warned, translated: false }
}

pub(super) fn entry(path: &'static str, object: impl Fn(&Value) -> Object + Send + Sync + 'static) -> Entry {
    Entry::Object(Box::new(object), path)
}

pub(super) fn pod(metadata: &Value, spec: &Value) -> Object {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec});
    pod["metadata"]["name"] = json!("p");
    (PODS, pod)
}

/// A text as the key of a map, or a part of a name.
pub(super) fn key_of(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// A Pod with a change of its spec.
fn pod_with(change: &Value) -> Object {
    let mut spec = json!({"containers": [{"name": "c", "image": "i"}]});
    json_patch::merge(&mut spec, change);
    pod(&json!({}), &spec)
}

/// A Pod that requires one of these terms of its node.
fn requiring(terms: &Value) -> Object {
    pod_with(&json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
        {"nodeSelectorTerms": terms}}}}))
}

/// An object of a cluster that has nothing but a name.
fn named(list: &'static str, kind: &str, name: &Value, more: &Value) -> Object {
    let group = list.trim_start_matches("/apis/").trim_start_matches("/api/");
    let version = group.split('/').take(if list.starts_with("/apis/") { 2 } else { 1 });
    let mut object = json!({"apiVersion": version.collect::<Vec<_>>().join("/"), "kind": kind});
    json_patch::merge(&mut object, more);
    object["metadata"]["name"] = name.clone();
    (list, object)
}

/// A rule with a change of its spec.
pub(super) fn rule_of(change: &Value) -> Object {
    let mut spec = rule_for("app", "web");
    spec["template"]["metadata"]["labels"] = json!({});
    json_patch::merge(&mut spec, change);
    (RULES, rule(NAMESPACE, "r", spec))
}

/// Other fields of rules.
fn rules() -> Vec<Row> {
    let of_object =
        |list: &'static str, kind: &'static str, key: &'static str, path: &'static str, field: &str| {
            let ours = move |v: &Value| rule_of(&json!({"template": {"spec": {key: v}}}));
            // An empty name is none.
            let values = names().into_iter().filter(|name| name != "").collect();
            let more = match kind {
                "PriorityClass" => json!({"value": 7}),
                "RuntimeClass" => json!({"handler": "h"}),
                _ => json!({}),
            };
            row(field, values, entry(path, ours), move |v| named(list, kind, v, &more))
        };
    let injection = |v: &Value| json!({"workloadInfoInject": [{"asAnnotation": {"name": v}}]});
    let device = |name: &Value, class: &Value| {
        let spec = json!({"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": class}}]}});
        rule_of(&json!({"deviceClaims": [{"name": name, "spec": spec}]}))
    };
    let selects = |selector: &Value| {
        let mut spec = rule_for("app", "web");
        spec["tenantSelector"] = selector.clone();
        (ADMIN_RULES, admin_rule("universe", "r", spec))
    };
    let policy = |selector: &Value| {
        named(POLICIES, "NetworkPolicy", &json!("p"), &json!({"spec": {"podSelector": selector}}))
    };
    let (labels, value) =
        (|v: &Value| json!({"matchLabels": {key_of(v): "x"}}), |v: &Value| json!({"matchLabels": {"k": v}}));
    let within = |v: &Value| json!({"matchExpressions": [{"key": "k", "operator": "NotIn", "values": [v]}]});
    vec![
        of_object(
            "/api/v1/namespaces/strings/serviceaccounts",
            "ServiceAccount",
            "serviceAccountName",
            "spec.serviceAccountName",
            "WorkloadRule spec.template.spec.serviceAccountName",
        ),
        of_object(
            "/apis/scheduling.k8s.io/v1/priorityclasses",
            "PriorityClass",
            "priorityClassName",
            "spec.priorityClassName",
            "WorkloadRule spec.template.spec.priorityClassName",
        ),
        of_object(
            "/apis/node.k8s.io/v1/runtimeclasses",
            "RuntimeClass",
            "runtimeClassName",
            "spec.runtimeClassName",
            "WorkloadRule spec.template.spec.runtimeClassName",
        ),
        row(
            "WorkloadRule spec.workloadInfoInject[].asAnnotation.name",
            keys_of_labels(),
            entry("spec.workloadInfoInject[0].asAnnotation.name", move |v| rule_of(&injection(v))),
            |v| pod(&json!({"annotations": {key_of(v): "x"}}), &pod_with(&json!({})).1["spec"]),
        ),
        row(
            "WorkloadRule spec.deviceClaims[].name",
            names(),
            entry("spec.deviceClaims[0].name", move |v| device(v, &json!("c"))),
            |v| pod_with(&json!({"resourceClaims": [{"name": v, "resourceClaimName": "c"}]})),
        ),
        row(
            "WorkloadRule spec.deviceClaims[].spec deviceClassName",
            names(),
            entry("deviceClassName", move |v| device(&json!("c"), v)),
            |v| {
                let spec =
                    json!({"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": v}}]}});
                named(CLAIMS, "ResourceClaim", &json!("c"), &json!({"spec": spec}))
            },
        ),
        row(
            "AdminWorkloadRule spec.tenantSelector (key)",
            keys_of_labels(),
            entry("spec.tenantSelector.matchLabels[", move |v| selects(&labels(v))),
            move |v| policy(&labels(v)),
        ),
        row(
            "AdminWorkloadRule spec.tenantSelector (value)",
            values_of_labels(),
            entry("spec.tenantSelector.matchLabels[k]", move |v| selects(&value(v))),
            move |v| policy(&value(v)),
        ),
        row(
            "AdminWorkloadRule spec.tenantSelector NotIn",
            values_of_labels(),
            entry("spec.tenantSelector.matchExpressions[0].values[0]", move |v| selects(&within(v))),
            move |v| policy(&within(v)),
        ),
    ]
}

fn offloadings() -> Vec<Row> {
    let expression = |field: &str, path: &'static str, values: Vec<Value>, of: fn(&Value) -> Value| {
        let selector = move |v: &Value| json!({"nodeSelectorTerms": [of(v)]});
        let ours = move |v: &Value| {
            let spec = json!({"podOffloadingStrategy": "Remote", "clusterSelector": selector(v)});
            named(OFFLOADINGS, "NamespaceOffloading", &json!("offloading"), &json!({"spec": spec}))
        };
        // What Pods get, or would get.
        let made = move |v: &Value| {
            let imposed = Offloading::read("Remote", &selector(v)).imposed().to_vec();
            requiring(&if imposed.is_empty() { json!([of(v)]) } else { json!(imposed) })
        };
        row(&format!("NamespaceOffloading spec.clusterSelector {field}"), values, entry(path, ours), made)
    };
    // The scheduler would drop the term.
    let no_integers =
        values_of_labels().into_iter().filter(|v| v.as_str().unwrap().parse::<i64>().is_err()).collect();
    vec![
        expression(
            "(key)",
            "nodeSelectorTerms[0].matchExpressions[0].key",
            keys_of_labels(),
            |v| json!({"matchExpressions": [{"key": v, "operator": "Exists"}]}),
        ),
        expression(
            "In",
            "nodeSelectorTerms[0].matchExpressions[0].values[0]",
            values_of_labels(),
            |v| json!({"matchExpressions": [{"key": "k", "operator": "In", "values": [v]}]}),
        ),
        expression(
            "NotIn",
            "nodeSelectorTerms[0].matchExpressions[0].values[0]",
            values_of_labels(),
            |v| json!({"matchExpressions": [{"key": "k", "operator": "NotIn", "values": [v]}]}),
        ),
        Row {
            stricter: no_integers,
            ..expression(
                "Gt",
                "nodeSelectorTerms[0].matchExpressions[0].values",
                values_of_labels(),
                |v| json!({"matchExpressions": [{"key": "k", "operator": "Gt", "values": [v]}]}),
            )
        },
        expression(
            "(values)",
            "nodeSelectorTerms[0].matchExpressions[0].values",
            numbers_of_values(),
            |v| json!({"matchExpressions": [{"key": "k", "operator": "Lt", "values": v}]}),
        ),
        expression(
            "(field)",
            "nodeSelectorTerms[0].matchFields[0].values[0]",
            names(),
            |v| json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [v]}]}),
        ),
    ]
}

/// A Machine of the group `strings` with one type, whose spec is changed.
fn machine_of(type_: &Value) -> Value {
    let mut object = machine("strings", &[], &[("t", 1)]);
    json_patch::merge(&mut object["spec"]["machineTypes"][0], type_);
    object
}

/// The Pod in a slot of a Machine's only type.
fn slot(object: &Value) -> Object {
    let machine: Machine = serde_json::from_value(object.clone()).unwrap();
    let Ok(machine) = machine.compile() else { return pod_with(&json!({"containers": "none"})) };
    let (group, type_) = (machine.group.unwrap(), &machine.types[0]);
    let resources = json!({"requests": type_.resources(), "limits": type_.resources()});
    let container = json!({"name": "c", "image": "i", "resources": resources});
    let (_, mut pod) = requiring(&json!([{"matchExpressions": type_.expressions(&group)}]));
    pod["metadata"]["labels"] = json!(reservation_labels(&group, &type_.name));
    pod["spec"]["tolerations"] = json!(type_.tolerations(&group));
    pod["spec"]["containers"] = json!([container]);
    (PODS, pod)
}

fn machines() -> Vec<Row> {
    let of = |field: &'static str, path: &'static str, values: Vec<Value>, type_: fn(&Value) -> Value| {
        let ours = move |v: &Value| (MACHINES, machine_of(&type_(v)));
        let made = move |v: &Value| slot(&machine_of(&type_(v)));
        row(&format!("Machine spec.machineTypes[].{field}"), values, entry(path, ours), made)
    };
    let group = |v: &Value, types: &[(&str, u32)]| {
        let mut object = machine("strings", &[], types);
        object["metadata"]["labels"][keys::MACHINE_GROUP] = v.clone();
        (MACHINES, object)
    };
    let without_empty =
        |values: Vec<Value>| values.into_iter().filter(|value| value != "").collect::<Vec<_>>();
    let service =
        |name: String| named(SERVICES, "Service", &json!(name), &json!({"spec": {"ports": [{"port": 80}]}}));
    let texts = |texts: &[&str]| texts.iter().map(|text| Value::from(*text)).collect::<Vec<_>>();
    // The definition of Machines takes no blanks.
    let padded = || texts(&["1 "]);
    vec![
        // An empty one is none, and one of the three has to be set.
        of(
            "spec.gpu.family",
            "gpu.family",
            without_empty(values_of_labels()),
            |v| json!({"spec": {"gpu": {"type": "nvidia.com/gpu", "num": 1, "family": v}}}),
        ),
        of(
            "spec.gpu.product",
            "gpu.product",
            without_empty(values_of_labels()),
            |v| json!({"spec": {"gpu": {"type": "nvidia.com/gpu", "num": 1, "product": v}}}),
        ),
        of(
            "spec.gpu.machine",
            "gpu.machine",
            without_empty(values_of_labels()),
            |v| json!({"spec": {"gpu": {"type": "nvidia.com/gpu", "num": 1, "machine": v}}}),
        ),
        Row {
            // Guests are bound to nodes by labels of NVIDIA's GPUs.
            stricter: resources().into_iter().filter(|v| !key_of(v).starts_with("nvidia.com/")).collect(),
            ..of(
                "spec.gpu.type",
                "gpu.type",
                without_empty(resources()),
                |v| json!({"spec": {"gpu": {"type": v, "num": 2_097_152, "family": "f"}}}),
            )
        },
        Row {
            // No DeviceClass has such a name.
            stricter: texts(&["A", "a..b", "a_b"]),
            ..of(
                "spec.gpu.deviceClass",
                "gpu.deviceClass",
                without_empty(names()),
                |v| json!({"spec": {"gpu": {"deviceClass": v, "num": 1}}}),
            )
        },
        Row {
            warned: texts(&["-1"]),
            stricter: padded(),
            ..of("spec.cpu", "spec.cpu", amounts(), |v| json!({"spec": {"cpu": v}}))
        },
        Row {
            warned: texts(&["-1"]),
            stricter: padded(),
            ..of("spec.memory", "spec.memory", amounts(), |v| json!({"spec": {"memory": v}}))
        },
        Row {
            warned: texts(&["1.5", "500m", ".5"]),
            stricter: padded(),
            ..of(
                "spec.gpu.num",
                "gpu.num",
                amounts(),
                |v| json!({"spec": {"gpu": {"type": "nvidia.com/gpu", "num": v, "family": "f"}}}),
            )
        },
        Row {
            // The name of a label doesn't begin with a dash.
            stricter: texts(&["-5"]),
            ..row(
                "Machine spec.machineTypes[].name",
                values_of_labels(),
                entry("spec.machineTypes[0].name", |v| (MACHINES, machine_of(&json!({"name": v})))),
                move |v| service(reservation_name("strings", &key_of(v))),
            )
        },
        Row {
            // Before Kubernetes 1.36 a Service began with a letter, and the group is the value of a label.
            stricter: texts(&["7", "a-"]),
            ..row(
                "Machine metadata.labels (group, and its Services)",
                without_empty(names()),
                entry("", move |v| group(v, &[("t", 1)])),
                move |v| service(reservation_name(&key_of(v), "t")),
            )
        },
        row(
            "Machine metadata.labels (group, and its MachineNodePool)",
            without_empty(values_of_labels()),
            entry("metadata.labels", move |v| group(v, &[])),
            |v| {
                let spec = json!({"machineGroupName": v, "nodePool": [], "machineTypeStock": []});
                named(
                    POOLS,
                    "MachineNodePool",
                    &json!(pool_name(&key_of(v))),
                    &json!({"spec": spec, "metadata": {"labels": {"g": v}}}),
                )
            },
        ),
    ]
}

fn tenants() -> Vec<Row> {
    let of_list =
        |list: &'static str, key: &'static str, path: &'static str, kind: &'static str, more: Value| {
            let ours = move |v: &Value| (TENANTS, tenant("strings", json!({key: [v]})));
            row(&format!("Tenant spec.{key}"), names(), entry(path, ours), move |v| {
                named(list, kind, v, &more)
            })
        };
    let host =
        |v: &Value| json!([{"matchExpressions": [{"key": keys::DPU_HOST, "operator": "In", "values": [v]}]}]);
    let is_long = |name: &Value| name.as_str().is_some_and(|name| (64..254).contains(&name.len()));
    // A label may have these, and no Node has such a name.
    let no_names = |name: &Value| ["", "A", "a_b", "a..b"].iter().any(|no_name| name == no_name);
    vec![
        Row {
            // It is the name of the Tenant first.
            stricter: vec![json!("-a")],
            ..row(
                "Tenant metadata.name",
                names(),
                entry("metadata.name", |v| (TENANTS, tenant(v.as_str().unwrap(), json!({})))),
                |v| (("/api/v1/namespaces"), namespace(&usual_namespace(&key_of(v)))),
            )
        },
        row(
            "Tenant spec.namespace",
            names().into_iter().filter(|name| name != "").collect(),
            entry("spec.namespace", |v| (TENANTS, tenant("strings", json!({"namespace": v})))),
            |v| ("/api/v1/namespaces", namespace(&key_of(v))),
        ),
        Row {
            warned: names().into_iter().filter(is_long).collect(),
            stricter: names().into_iter().filter(no_names).collect(),
            ..row(
                "Tenant spec.hosts",
                names(),
                entry("spec.hosts", |v| (TENANTS, tenant("strings", json!({"hosts": [v]})))),
                move |v| requiring(&host(v)),
            )
        },
        row(
            "Tenant spec.hostNames[0].node",
            names(),
            entry("spec.hostNames[0].node", |v| {
                (TENANTS, tenant("strings", json!({"hosts": ["h"], "hostNames": [{"node": v, "host": "h"}]})))
            }),
            |v| {
                let name = key_of(v);
                ("/api/v1/nodes", json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}))
            },
        ),
        of_list(
            "/api/v1/namespaces/strings/serviceaccounts",
            "serviceAccounts",
            "spec.serviceAccounts",
            "ServiceAccount",
            json!({}),
        ),
        of_list(
            "/apis/scheduling.k8s.io/v1/priorityclasses",
            "priorityClasses",
            "spec.priorityClasses",
            "PriorityClass",
            json!({"value": 7}),
        ),
        of_list(
            "/apis/node.k8s.io/v1/runtimeclasses",
            "runtimeClasses",
            "spec.runtimeClasses",
            "RuntimeClass",
            json!({"handler": "h"}),
        ),
    ]
}

/// Flags, a ConfigMap and gRPC messages, whose texts are read by functions.
fn settings() -> Vec<Row> {
    let labels = |labels: Value| pod(&json!({"labels": labels}), &pod_with(&json!({})).1["spec"]);
    vec![
        row(
            "flag --host-label",
            keys_of_labels(),
            Entry::Function(|key| key.parse::<HostLabels>().is_ok()),
            |v| pod_with(&json!({"nodeSelector": {key_of(v): "x"}})),
        ),
        // The agent's namespaces, of its flag and of its ConfigMap, are read by the same function.
        row(
            "flags that name a namespace",
            names(),
            Entry::Function(|name| admin::namespace(name).is_ok()),
            |v| ("/api/v1/namespaces", namespace(&key_of(v))),
        ),
        row(
            "gRPC nodeName of a workload",
            values_of_labels(),
            Entry::Function(|host| unlabelable(host).is_none()),
            |v| requiring(&json!([{"matchExpressions": [{"key": "k", "operator": "In", "values": [v]}]}])),
        ),
        Row {
            translated: true,
            ..row("gRPC id of a workload", values_of_labels(), Entry::Function(|_| true), move |v| {
                let id = WorkloadId::new(&key_of(v)).map_or_else(|_| String::new(), |id| id.label_value());
                labels(json!({keys::WORKLOAD: id}))
            })
        },
        row("gRPC name of a rule", names(), Entry::Function(|name| RuleName::new(name).is_ok()), move |v| {
            // A name that is none is sent as it is.
            let name = key_of(v);
            let value = RuleName::new(&name).map_or_else(|_| "-".to_owned(), |name| name.label_value());
            labels(json!({keys::RULE: value}))
        }),
    ]
}
