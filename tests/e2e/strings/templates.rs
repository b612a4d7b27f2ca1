//! Texts in the template of a rule, and the Pod that is made of it.

use serde_json::{Value, json};

use super::Row;
use super::rows::{entry, key_of, pod, row, rule_of};
use super::values::{
    amounts, effects, keys_of_labels, names, numbers, numbers_of_values, operators, ports, resources,
    values_of_labels,
};

/// A part of a template and of the Pod that is made of it.
fn template(field: &str, path: &'static str, values: Vec<Value>, part: fn(&Value) -> Value) -> Row {
    let ours = move |value: &Value| rule_of(&json!({"template": part(value)}));
    let made = move |value: &Value| {
        let mut of = json!({"metadata": {}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        json_patch::merge(&mut of, &part(value));
        pod(&of["metadata"], &of["spec"])
    };
    row(&format!("WorkloadRule spec.template.{field}"), values, entry(path, ours), made)
}

/// The same of a field of the spec.
fn spec(field: &str, path: &'static str, values: Vec<Value>, part: fn(&Value) -> Value) -> Row {
    template(&format!("spec.{field}"), path, values, part)
}

fn container(change: Value) -> Value {
    let mut container = json!({"name": "c", "image": "i"});
    json_patch::merge(&mut container, &change);
    json!({"spec": {"containers": [container]}})
}

fn node_affinity(term: Value) -> Value {
    json!({"spec": {"affinity": {"nodeAffinity":
        {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}}})
}

fn preferred(expression: Value) -> Value {
    json!({"spec": {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution":
        [{"weight": 1, "preference": {"matchExpressions": [expression]}}]}}}})
}

fn pod_affinity(change: Value) -> Value {
    let mut term = json!({"topologyKey": "k"});
    json_patch::merge(&mut term, &change);
    json!({"spec": {"affinity": {
        "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]},
        "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term}]}}}})
}

fn toleration(change: Value) -> Value {
    let mut toleration = json!({"key": "k", "operator": "Equal", "value": "v"});
    json_patch::merge(&mut toleration, &change);
    json!({"spec": {"tolerations": [toleration]}})
}

pub(super) fn templates() -> Vec<Row> {
    [labels(), of_nodes(), of_pods(), containers()].into_iter().flatten().collect()
}

fn labels() -> Vec<Row> {
    vec![
        template(
            "metadata.labels (key)",
            "template.metadata.labels[",
            keys_of_labels(),
            |v| json!({"metadata": {"labels": {key_of(v): "x"}}}),
        ),
        template(
            "metadata.labels (value)",
            "template.metadata.labels[k]",
            values_of_labels(),
            |v| json!({"metadata": {"labels": {"k": v}}}),
        ),
        template(
            "metadata.annotations (key)",
            "template.metadata.annotations[",
            keys_of_labels(),
            |v| json!({"metadata": {"annotations": {key_of(v): "x"}}}),
        ),
        spec(
            "nodeSelector (key)",
            "spec.nodeSelector[",
            keys_of_labels(),
            |v| json!({"spec": {"nodeSelector": {key_of(v): "x"}}}),
        ),
        spec(
            "nodeSelector (value)",
            "spec.nodeSelector[k]",
            values_of_labels(),
            |v| json!({"spec": {"nodeSelector": {"k": v}}}),
        ),
    ]
}

fn of_nodes() -> Vec<Row> {
    vec![
        spec("nodeAffinity required (key)", "matchExpressions[0].key", keys_of_labels(), |v| {
            node_affinity(json!({"matchExpressions": [{"key": v, "operator": "Exists"}]}))
        }),
        spec("nodeAffinity required In", "matchExpressions[0].values[0]", values_of_labels(), |v| {
            node_affinity(json!({"matchExpressions": [{"key": "k", "operator": "In", "values": [v]}]}))
        }),
        spec("nodeAffinity required NotIn", "matchExpressions[0].values[1]", values_of_labels(), |v| {
            node_affinity(
                json!({"matchExpressions": [{"key": "k", "operator": "NotIn", "values": ["a", v]}]}),
            )
        }),
        spec("nodeAffinity required Gt", "matchExpressions[0].values[0]", values_of_labels(), |v| {
            node_affinity(json!({"matchExpressions": [{"key": "k", "operator": "Gt", "values": [v]}]}))
        }),
        spec("nodeAffinity required (values)", "matchExpressions[0].values", numbers_of_values(), |v| {
            node_affinity(json!({"matchExpressions": [{"key": "k", "operator": "Lt", "values": v}]}))
        }),
        spec("nodeAffinity required (operator)", "matchExpressions[0].", operators(), |v| {
            node_affinity(json!({"matchExpressions": [{"key": "k", "operator": v, "values": ["1"]}]}))
        }),
        spec("nodeAffinity required (field)", "matchFields[0].values[0]", names(), |v| {
            node_affinity(json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [v]}]}))
        }),
        spec("nodeAffinity preferred (key)", "preference.matchExpressions[0].key", keys_of_labels(), |v| {
            preferred(json!({"key": v, "operator": "Exists"}))
        }),
        Row {
            translated: true,
            ..spec("nodeAffinity preferred In", "values[0]", values_of_labels(), |v| {
                preferred(json!({"key": "k", "operator": "In", "values": [v]}))
            })
        },
    ]
}

fn of_pods() -> Vec<Row> {
    vec![
        spec("podAffinity topologyKey", "[0].topologyKey", keys_of_labels(), |v| {
            pod_affinity(json!({"topologyKey": v}))
        }),
        spec("podAffinity labelSelector (key)", "labelSelector.matchLabels[", keys_of_labels(), |v| {
            pod_affinity(json!({"labelSelector": {"matchLabels": {key_of(v): "x"}}}))
        }),
        spec("podAffinity labelSelector (value)", "labelSelector.matchLabels[k]", values_of_labels(), |v| {
            pod_affinity(json!({"labelSelector": {"matchLabels": {"k": v}}}))
        }),
        spec("podAffinity namespaceSelector In", "matchExpressions[0].values[0]", values_of_labels(), |v| {
            let expression = json!({"key": "k", "operator": "In", "values": [v]});
            pod_affinity(json!({"namespaceSelector": {"matchExpressions": [expression]}}))
        }),
        spec("podAffinity namespaces", "namespaces[0]", names(), |v| {
            pod_affinity(json!({"namespaces": [v]}))
        }),
        // Of the topologyKey there the API server takes any text.
        spec(
            "topologySpreadConstraints labelSelector",
            "labelSelector.matchLabels[k]",
            values_of_labels(),
            |v| {
                let selector = json!({"matchLabels": {"k": v}});
                json!({"spec": {"topologySpreadConstraints":
                [{"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "topologyKey": "t", "labelSelector": selector}]}})
            },
        ),
        spec("tolerations key", "tolerations[0].key", keys_of_labels(), |v| toleration(json!({"key": v}))),
        spec("tolerations value", "tolerations[0].value", values_of_labels(), |v| {
            toleration(json!({"value": v}))
        }),
        spec("tolerations value of Exists", "tolerations[0].value", values_of_labels(), |v| {
            toleration(json!({"value": v, "operator": "Exists"}))
        }),
        spec("tolerations effect", "tolerations[0].effect", effects(), |v| toleration(json!({"effect": v}))),
    ]
}

fn containers() -> Vec<Row> {
    vec![
        spec("containers name", "containers[0].name", names(), |v| container(json!({"name": v}))),
        spec(
            "initContainers name",
            "initContainers[0].name",
            names(),
            |v| json!({"spec": {"initContainers": [{"name": v, "image": "i"}]}}),
        ),
        spec("volumes name", "volumes[0].name", names(), |v| json!({"spec": {"volumes": [{"name": v}]}})),
        spec("containers ports name", "ports[0].name", ports(), |v| {
            container(json!({"ports": [{"name": v, "containerPort": 80}]}))
        }),
        spec("containers ports containerPort", "ports[0].containerPort", numbers(), |v| {
            container(json!({"ports": [{"containerPort": v}]}))
        }),
        spec("containers ports hostPort", "ports[0].hostPort", numbers(), |v| {
            container(json!({"ports": [{"containerPort": 80, "hostPort": v}]}))
        }),
        spec(
            "containers readinessProbe port",
            "readinessProbe.httpGet.port",
            [numbers(), ports()].concat(),
            |v| container(json!({"readinessProbe": {"httpGet": {"port": v}}})),
        ),
        spec("containers resources (name)", "resources.limits[", resources(), |v| {
            container(json!({"resources": {"limits": {key_of(v): "2Mi", "cpu": 1}}}))
        }),
        spec("containers resources cpu", "resources.limits[cpu]", amounts(), |v| {
            container(json!({"resources": {"limits": {"cpu": v}}}))
        }),
        spec("containers resources of devices", "resources.limits[x.y/z]", amounts(), |v| {
            container(json!({"resources": {"limits": {"x.y/z": v}}}))
        }),
        spec("hostname", "spec.hostname", names(), |v| json!({"spec": {"hostname": v}})),
        spec("subdomain", "spec.subdomain", names(), |v| json!({"spec": {"subdomain": v}})),
        spec(
            "schedulingGates name",
            "schedulingGates[0].name",
            keys_of_labels(),
            |v| json!({"spec": {"schedulingGates": [{"name": v}]}}),
        ),
        spec(
            "readinessGates conditionType",
            "readinessGates[0].conditionType",
            keys_of_labels(),
            |v| json!({"spec": {"readinessGates": [{"conditionType": v}]}}),
        ),
    ]
}
