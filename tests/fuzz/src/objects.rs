//! Objects of each kind that reviews are about, nearly right.

use std::sync::Arc;

use outrigger_core::companion::{Action, Home, plan};
use outrigger_core::ids::{TenantId, WorkloadId};
use outrigger_core::index::{CompanionKey, Desired};
use outrigger_core::keys;
use outrigger_core::rule::Rule;
use outrigger_core::texts::Texts;
use outrigger_core::workload::{Orchestrator, Workload};
use serde_json::{Map, Value, json};

use crate::choice::Choice;
use crate::world::{WORLD, rule};

/// Keys that something depends on, and others.
const KEYS: [&str; 16] = [
    "app",
    "region",
    "zone",
    "kubernetes.io/os",
    keys::TENANT,
    keys::NODE_TENANT,
    keys::DPU_HOST,
    keys::HOST,
    keys::RULE,
    keys::WORKLOAD,
    keys::MACHINE_GROUP,
    keys::MACHINE_TYPE,
    keys::POD_ROLE,
    keys::STREAM_CLAIM,
    keys::INJECTED,
    "example.com/x",
];

const VALUES: [&str; 10] =
    ["blue", "green", "host-a", "linux", "general", "large", keys::GUEST, "a", "b", ""];

/// A map of texts.
pub(crate) fn map(choice: &mut Choice<'_>, count: usize) -> Value {
    let pairs = choice.list(count, |c| {
        let key = if c.one_in(6) { c.text() } else { c.of(&KEYS).to_owned() };
        (key, Value::from(if c.one_in(6) { c.text() } else { c.of(&VALUES).to_owned() }))
    });
    Value::Object(pairs.into_iter().collect::<Map<_, _>>())
}

/// Terms of a node selector.
pub(crate) fn terms(choice: &mut Choice<'_>) -> Value {
    choice
        .list(5, |c| {
            let expressions = c.list(4, |c| {
                let operator = c.of(&["In", "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Perhaps"]);
                let values = match operator {
                    "Exists" | "DoesNotExist" => Vec::new(),
                    "Gt" | "Lt" => vec![c.of(&["1", "2", "x"])],
                    _ => (0..=c.below(3)).map(|_| c.of(&VALUES)).collect(),
                };
                json!({"key": c.of(&KEYS), "operator": operator, "values": values})
            });
            let mut term = json!({"matchExpressions": expressions});
            if c.one_in(8) {
                term["matchFields"] = json!([{"key": "metadata.name", "operator": "In", "values": [c.of(&["host-a-dpu", "gpu-1"])]}]);
            }
            if c.one_in(8) {
                term["zz"] = c.json(2);
            }
            term
        })
        .into()
}

fn toleration(c: &mut Choice<'_>) -> Value {
    match c.below(4) {
        0 => {
            json!({"key": keys::TENANT, "operator": "Equal", "value": c.of(&["blue", "green"]), "effect": "NoSchedule"})
        }
        1 => json!({"key": c.of(&KEYS), "operator": "Exists"}),
        2 => {
            json!({"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300})
        }
        _ => json!({"operator": c.of(&["Exists", "Equal"])}),
    }
}

fn container(c: &mut Choice<'_>) -> Value {
    let mut container =
        json!({"name": c.of(&["c", "d", "sidecar"]), "image": "i", "imagePullPolicy": "Always"});
    if c.one_in(3) {
        container["resources"] = json!({"requests": {"cpu": c.of(&["1", "100m", "1e3", "-1", "x"]), "memory": c.of(&["1Gi", "64Mi", "0"])},
            "limits": {"nvidia.com/gpu": c.of(&["1", "2"])}});
    }
    if c.one_in(8) {
        container["securityContext"] =
            json!({"privileged": c.any::<bool>(), "capabilities": {"add": [c.of(&["CHOWN", "SYS_ADMIN"])]}});
    }
    if c.one_in(8) {
        container["zz"] = c.json(2);
    }
    container
}

/// A Pod that somebody makes by hand.
pub(crate) fn pod(c: &mut Choice<'_>) -> Value {
    let containers: Vec<Value> = (0..=c.below(2)).map(|_| container(c)).collect();
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "tenant-blue", "uid": "u"},
        "spec": {"containers": containers, "restartPolicy": "Always"}});
    if c.one_in(2) {
        pod["metadata"]["labels"] = if c.one_in(2) { map(c, 4) } else { json!({"app": "x"}) };
    }
    if c.one_in(3) {
        pod["metadata"]["labels"] = json!({keys::MACHINE_GROUP: c.of(&["general", "other", "none"]),
            keys::MACHINE_TYPE: c.of(&["large", "small"]), keys::POD_ROLE: keys::GUEST});
    }
    if c.one_in(3) {
        pod["metadata"]["annotations"] = json!({"a": c.text(), "example.com/b~/": c.text()});
    }
    if c.one_in(2) {
        pod["spec"]["affinity"] = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
            {"nodeSelectorTerms": terms(c)}}, "zz": c.any::<u8>()});
    }
    if c.one_in(2) {
        pod["spec"]["tolerations"] = c.list(4, toleration).into();
    }
    if c.one_in(4) {
        pod["spec"]["nodeSelector"] = map(c, 3);
    }
    if c.one_in(6) {
        pod["spec"]["schedulingGates"] =
            c.list(3, |c| json!({"name": c.of(&[keys::ADMISSION_GATE, "example.com/wait"])})).into();
    }
    if c.one_in(8) {
        pod["spec"]["runtimeClassName"] = c.of(&["liqo", "other"]).into();
    }
    if c.one_in(8) {
        pod["spec"]["resourceClaims"] = json!([{"name": "d", "resourceClaimTemplateName": "t"}]);
    }
    if c.one_in(3) {
        pod["zz"] = c.json(2);
        pod["metadata"]["zz"] = c.json(2);
        pod["spec"]["zz"] = c.json(3);
    }
    pod
}

/// A workload that an agent could report.
pub(crate) fn workload(c: &mut Choice<'_>) -> Workload {
    let texts = |c: &mut Choice<'_>| {
        let pairs: std::collections::BTreeMap<String, String> =
            c.list(5, |c| (c.of(&["app", "web", "x/y"]).to_owned(), c.text())).into_iter().collect();
        Texts::from(&pairs)
    };
    let id = WorkloadId::new(&c.text()).or_else(|_| WorkloadId::new("w")).unwrap();
    Workload {
        id,
        orchestrator: Orchestrator::Kubernetes,
        resource_type: "v1/Pod".into(),
        resource_namespace: c.text(),
        resource_name: c.text(),
        node_name: c.of(&[Some("host-a"), Some("host-b"), None]).map(str::to_owned),
        ready: c.any(),
        labels: texts(c),
        annotations: texts(c),
        extra: std::collections::BTreeMap::new(),
        groups: Vec::new(),
        withheld: Vec::new(),
        revision: 0,
        gated: false,
    }
}

/// What the manager does first about a workload that matches a rule.
pub(crate) fn first_step(rule: &Arc<Rule>, workload: Workload, owned: bool) -> Action {
    let workload = Arc::new(workload);
    let key = CompanionKey { rule: rule.name().clone(), workload: workload.id.label_value().into() };
    let tenant = TenantId::new("blue").unwrap();
    let home = Home {
        tenant: &tenant,
        namespace: if owned { "tenant-blue" } else { keys::ADMIN_NAMESPACE },
        owned,
        host_names: Default::default(),
    };
    plan(&key, &Desired::of_match(rule, &workload), None, &home)
}

/// A companion as the manager creates it; another Pod where none can be made of the workload.
pub(crate) fn companion(c: &mut Choice<'_>) -> (Value, &'static str) {
    let admin = c.one_in(4);
    let rule = if admin {
        WORLD.admin.compile().unwrap().rule
    } else {
        WORLD.rules[c.below(WORLD.rules.len())].compile().unwrap()
    };
    let namespace = if admin { keys::ADMIN_NAMESPACE } else { "tenant-blue" };
    match first_step(&Arc::new(rule), workload(c), true) {
        Action::Create(object) => (object, namespace),
        _ => (pod(c), namespace),
    }
}

/// A rule of this kind.
pub(crate) fn rule_object(c: &mut Choice<'_>, kind: &str) -> Value {
    let claims = match c.below(4) {
        0 => json!([{"name": "d", "fromRule": "devices"}]),
        1 => {
            json!([{"name": "d", "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "regex", "count": c.any::<u8>()}}]}}}])
        }
        _ => json!([]),
    };
    let policy = c.of(&["SameNode", "Any", "Any", "SameNode", "Other"]);
    let mut rule = rule(kind, "r", policy, claims);
    let spec = &mut rule["spec"];
    if c.one_in(2) {
        let expression = |c: &mut Choice<'_>| {
            let operator = c.of(&["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]);
            let values: Vec<String> = match operator {
                "Exists" | "DoesNotExist" => Vec::new(),
                "Gt" | "Lt" => vec![c.any::<i16>().to_string()],
                _ => (0..=c.below(3)).map(|_| c.text()).collect(),
            };
            json!({"key": path(c), "operator": operator, "values": values})
        };
        let term = |c: &mut Choice<'_>| json!({"matchExpressions": (0..=c.below(3)).map(|_| expression(c)).collect::<Vec<_>>()});
        spec["workloadTerms"] = (0..=c.below(3)).map(|_| term(c)).collect::<Vec<_>>().into();
    }
    if c.one_in(2) {
        spec["workloadInfoInject"] = c
            .list(4, |c| json!({"workloadKey": path(c), "asAnnotation": {"name": c.of(&["a", "b", keys::WORKLOAD, "x/y", "-"])}}))
            .into();
    }
    if c.one_in(3) {
        let mut template = pod(c);
        if let Some(template) = template.as_object_mut() {
            template
                .insert("metadata".to_owned(), json!({"labels": map(c, 3), "annotations": {"a": c.text()}}));
            if !c.one_in(8) {
                template.remove("zz");
            }
        }
        spec["template"] = template;
    }
    if c.one_in(4) {
        spec["updateStrategy"] = json!({"type": c.of(&["RollingUpdate", "OnDelete", "?"]), "rollingUpdate": {"maxUnavailable": c.of(&["25%", "3", "0", "x"])}});
    }
    if kind == "AdminWorkloadRule" && c.one_in(2) {
        spec["tenantSelector"] = json!({"matchLabels": map(c, 3)});
    }
    rule
}

/// A path into a workload.
fn path(c: &mut Choice<'_>) -> String {
    let known = [
        "@",
        "",
        ".state.nodeName",
        "metadata.resourceNamespace",
        ".state.extra.labels.app",
        ".state.ready",
        "state",
        ".state.extra.labels['k8s-app']",
        ".state.extra['labels'][\"x/y\"]",
        "metadata.id",
    ];
    match c.below(14) {
        10 => c.text(),
        11 => format!(".state.extra.labels['{}']", c.text()),
        12 => "[".repeat(c.below(200)),
        13 => c.of(&[".state.extra.", "..", "['", ".a[0]", "$.state"]).to_owned(),
        at => known[at].to_owned(),
    }
}
