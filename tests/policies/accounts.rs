//! The twins for what accounts of ours that were taken over may not do: what each of them never does. RBAC lets them here.

use super::*;

const TENANTS: &str = "/apis/outrigger.dev/v1alpha1/tenants";
const POOLS: &str = "/apis/imperator.tenzen-y.io/v1alpha1/machinenodepools";
const SETS: &str = "/apis/apps/v1/namespaces/imperator-system/statefulsets";
const SERVICES: &str = "/api/v1/namespaces/imperator-system/services";
const LEDGERS: &str = "/api/v1/namespaces/imperator-system/configmaps";
const HOOKS: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/outrigger";
const WORKLOAD_RULES: &str = "/apis/workload.universe.nvidia.com/v1alpha1/namespaces/universe/workloadrules";

/// A Tenant that has a namespace of its own.
pub(crate) fn tenant() -> Value {
    json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": "made", "labels": {"a": "b"}},
        "spec": {"hosts": ["host-m"], "identities": ["spiffe://outrigger/tenant/made"]}})
}

/// Who owns other things: they would be gone at once if there weren't any.
pub(crate) fn owners() -> [Value; 2] {
    let machine = json!({"apiVersion": "imperator.tenzen-y.io/v1alpha1", "kind": "Machine",
        "metadata": {"name": "m", "labels": {keys::MACHINE_GROUP: "g"}},
        "spec": {"nodePool": [{"name": "n", "mode": "ready", "machineType": [{"name": "t"}]}],
            "machineTypes": [{"name": "t", "available": 1, "spec": {"cpu": "1", "memory": "1Gi"}}]}});
    [machine, merged(rule(), json!({"metadata": {"namespace": "tenant-blue"}}))]
}

/// What the accounts find there, where the Machine has this uid.
pub(crate) fn there(machine: &Value) -> Vec<Value> {
    let owner = |kind: &str| {
        let mut owner = owner(kind);
        owner["metadata"]["ownerReferences"][0]["uid"] = machine.clone();
        owner
    };
    let mut all = vec![
        node(
            "control",
            json!({keys::DPU_HOST: "host-k", "node-role.kubernetes.io/control-plane": ""}),
            json!([]),
        ),
        node(
            "tainted",
            json!({keys::DPU_HOST: "host-l"}),
            json!([{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]),
        ),
        node("lost", json!({keys::NODE_TENANT: "blue"}), json!([])),
        called("by-hand", pool(json!({}))),
        called("of-machine", pool(owner("Machine"))),
        called("of-machine", service(merged(owner("Machine"), role("reservation")))),
        called("foreign", service(json!({}))),
        called("settings", ledger("settings", json!({"data": {"a": "b"}}))),
        rule(),
    ];
    for object in &mut all {
        if matches!(object["kind"].as_str(), Some("Service" | "ConfigMap")) {
            object["metadata"]["namespace"] = json!("imperator-system");
        }
    }
    all
}

fn called(name: &str, object: Value) -> Value {
    merged(object, json!({"metadata": {"name": name}}))
}

fn node(name: &str, labels: Value, taints: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": {"taints": taints}})
}

fn owner(kind: &str) -> Value {
    json!({"metadata": {"ownerReferences": [{"apiVersion": "imperator.tenzen-y.io/v1alpha1", "kind": kind, "name": "m",
        "uid": "1", "controller": true}]}})
}

fn role(role: &str) -> Value {
    label(keys::POD_ROLE, role)
}

fn pool(change: Value) -> Value {
    let pool = json!({"apiVersion": "imperator.tenzen-y.io/v1alpha1", "kind": "MachineNodePool",
        "metadata": {"name": "new"}, "spec": {"machineGroupName": "g", "nodePool": [], "machineTypeStock": []}});
    merged(pool, change)
}

fn service(change: Value) -> Value {
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "new"},
        "spec": {"ports": [{"port": 80}]}});
    merged(service, change)
}

/// A StatefulSet as the manager makes it, with a change of its Pods.
fn set(pods: Value) -> Value {
    let template = json!({"metadata": {"labels": {keys::POD_ROLE: "reservation"}}, "spec": {
        "priorityClassName": keys::RESERVATION_PRIORITY, "automountServiceAccountToken": false,
        "containers": [{"name": "sleeper", "image": "pause", "securityContext": {"allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}}}]}});
    let set = json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "new"}, "spec": {
        "serviceName": "new", "selector": {"matchLabels": {keys::POD_ROLE: "reservation"}},
        "template": merged(template, json!({"spec": pods}))}});
    merged(set, merged(owner("Machine"), role("reservation")))
}

fn sleeper(change: Value) -> Value {
    let sleeper =
        json!({"name": "sleeper", "image": "pause", "securityContext": {"allowPrivilegeEscalation": false}});
    set(json!({"containers": [merged(sleeper, change)]}))
}

fn ledger(name: &str, change: Value) -> Value {
    merged(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}), change)
}

fn rule() -> Value {
    json!({"apiVersion": RULES, "kind": "WorkloadRule", "metadata": {"name": "r", "namespace": "universe"},
        "spec": {"workloadTerms": [{"matchExpressions": [{"key": ".state.nodeName", "operator": "Exists"}]}],
            "dpuSelectionPolicy": "Any", "template": {"apiVersion": "v1", "kind": "Pod",
                "spec": {"containers": [{"name": "c", "image": "i"}]}}}})
}

fn finalizer(names: &[&str]) -> Value {
    json!({"metadata": {"finalizers": names}})
}

/// Metadata that no account of ours changes.
fn foreign() -> [(&'static str, Value); 4] {
    let absent = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "absent", "uid": "1"});
    [
        ("an owner that isn't there", json!({"metadata": {"ownerReferences": [absent]}})),
        ("a finalizer", finalizer(&["example.com/stay"])),
        ("an annotation", annotation("a", "b")),
        ("a label", label("x", "y")),
    ]
}

/// Those of the manager.
pub(crate) fn managers() -> Vec<Twins> {
    let mut all = tenants();
    all.extend(nodes());
    all.extend(machines());
    let quota = |who: Who, name: &str| {
        let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": name}});
        who.create(format!("{}/resourcequotas", at("tenant-blue")), quota)
    };
    all.extend(twins! {"outrigger-manager-quotas";
        "another quota": quota(Manager, "outrigger"), quota(Manager, "platform")
            => "metadata.name: the manager may write the ResourceQuota outrigger only";
        "another quota, as somebody else may": quota(Operator, "platform"), quota(Manager, "platform")
            => "metadata.name: the manager may write the ResourceQuota outrigger only";
    });
    all
}

fn tenants() -> Vec<Twins> {
    let at = format!("{TENANTS}/made");
    let manager = |change| Manager.patch(&at, change);
    let ours = || manager(finalizer(&[keys::TENANT_FINALIZER]));
    let spec = |who: Who| who.patch(&at, json!({"spec": {"identities": ["spiffe://outrigger/tenant/red"]}}));
    let hosts = |who: Who| who.patch(&at, json!({"spec": {"hosts": ["host-a"]}}));
    let new = |who: Who| who.create(TENANTS, merged(tenant(), json!({"metadata": {"name": "new"}})));
    let says = "spec, metadata: the manager may change its own finalizer and the status of Tenants only";
    let mut all = twins! {"outrigger-manager-tenants";
        "who speaks for it": spec(Operator), spec(Manager) => says;
        "its hosts": hosts(Operator), hosts(Manager) => says;
        "another Tenant": new(Operator), new(Manager) => says;
        "its end": Operator.delete(&at), Manager.delete(&at) => says;
        "its status": Manager.patch(format!("{at}/status"), json!({"status": {"dpus": 1}})), hosts(Manager) => says;
        "its labels": ours(), manager(label("a", Value::Null)) => says;
    };
    for (_, change) in foreign() {
        all.extend(
            twins! {"outrigger-manager-tenants"; "what else is on it": ours(), manager(change) => says;},
        );
    }
    all
}

fn nodes() -> Vec<Twins> {
    let change = |who: Who, name: &str, change| who.patch(format!("{NODES}/{name}"), change);
    let marks = |tenant: &str| label(keys::NODE_TENANT, tenant);
    let ours = |effect: &str| taints(json!([{"key": keys::TENANT, "value": "x", "effect": effect}]));
    let handover = || taints(json!([{"key": keys::HANDOVER, "effect": "NoSchedule"}]));
    let group = || label(keys::NODE_POOL, "ready");
    let mut all = twins! {"outrigger-nodes";
        "a taint that evicts": change(Manager, "blue-dpu", ours("NoSchedule")), change(Manager, "blue-dpu", ours("NoExecute"))
            => "spec.taints[outrigger.dev/tenant=x:NoExecute]: the manager may change its own labels and taints only, and";
        "another taint of ours": change(Manager, "blue-dpu", ours("NoSchedule")),
            change(Manager, "blue-dpu", taints(json!([{"key": SUBDOMAIN, "effect": "NoSchedule"}])))
            => "spec.taints[", "the manager may change its own labels and taints only";
        "another label of ours": change(Manager, "blue-dpu", marks("green")), change(Manager, "blue-dpu", label(SUBDOMAIN, "x"))
            => "metadata.labels[x.outrigger.dev/y]: the manager may change its own labels and taints only";
        "a Node of the control plane": change(Manager, "blue-dpu", marks("green")), change(Manager, "control", marks("green"))
            => "outrigger.dev.node-restriction.kubernetes.io/tenant: this is a Node of the control plane";
        "one that its taint tells of": change(Manager, "blue-dpu", marks("green")), change(Manager, "tainted", marks("green"))
            => "outrigger.dev.node-restriction.kubernetes.io/tenant: this is a Node of the control plane";
        "a taint for the control plane": change(Manager, "blue-dpu", ours("NoSchedule")),
            change(Manager, "control", ours("NoSchedule"))
            => "outrigger.dev/tenant: this is a Node of the control plane";
        "the control plane in a machine group": change(Manager, "free", group()), change(Manager, "control", group())
            => "imperator.tenzen-y.io/node-pool: this is a Node of the control plane";
        "a Node of no host": change(Manager, "blue-dpu", marks("green")), change(Manager, "free", marks("green"))
            => "outrigger.dev.node-restriction.kubernetes.io/tenant: the Node has no label provisioning.dpu.nvidia.com/host";
        "a taint for a Node of no host": change(Manager, "blue-dpu", handover()), change(Manager, "free", handover())
            => "outrigger.dev/handover: the Node has no label provisioning.dpu.nvidia.com/host";
        "one that has lost its host is given back": change(Manager, "lost", handover()),
            change(Manager, "lost", marks("green"))
            => "outrigger.dev.node-restriction.kubernetes.io/tenant: the Node has no label provisioning.dpu.nvidia.com/host";
        "one that has lost its host is nobody's": change(Manager, "lost", label(keys::NODE_TENANT, Value::Null)),
            change(Manager, "lost", ours("NoSchedule"))
            => "outrigger.dev/tenant: the Node has no label";
        "a new Node": Admin.create(NODES, dpu("new", "blue", "b")), Manager.create(NODES, dpu("new", "blue", "b"))
            => "the manager makes no Nodes";
    };
    for ((_, change), says) in foreign().into_iter().zip([
        "metadata.ownerReferences: the manager may change its own labels and the annotation",
        "metadata.finalizers: the manager may change its own labels and the annotation",
        "metadata.annotations[a]: the manager may change its own labels and the annotation",
        "metadata.labels[x]: the manager may change its own labels and taints only",
    ]) {
        let change = |who: Who| who.patch(format!("{NODES}/green-dpu"), change.clone());
        all.extend(
            twins! {"outrigger-nodes"; "what else is on it": change(Operator), change(Manager) => says;},
        );
    }
    let annotated = |key: &str| change(Manager, "free", annotation(key, "g"));
    all.extend(twins! {"outrigger-nodes";
        "an annotation of ours": annotated(keys::MACHINE_GROUP), annotated(SUBDOMAIN)
            => "metadata.annotations[x.outrigger.dev/y]: the manager may change its own labels and the annotation";
    });
    all
}

fn machines() -> Vec<Twins> {
    let of = |path: &str, name: &str| format!("{path}/{name}");
    let stock = || json!({"spec": {"machineGroupName": "other"}});
    let of_machine = |change| merged(owner("Machine"), change);
    let pools = "metadata.ownerReferences: no Machine owns the pool";
    let mut all = twins! {"outrigger-manager-pools";
        "a new pool": Manager.create(POOLS, pool(owner("Machine"))), Manager.create(POOLS, pool(json!({}))) => pools;
        "a pool of something else": Manager.create(POOLS, pool(owner("Machine"))), Manager.create(POOLS, pool(owner("Node")))
            => pools;
        "one by hand": Manager.patch(of(POOLS, "by-hand"), finalizer(&[keys::POOL_FINALIZER])),
            Manager.patch(of(POOLS, "by-hand"), stock())
            => pools;
        "one by hand, as somebody else may": Operator.patch(of(POOLS, "by-hand"), stock()),
            Manager.patch(of(POOLS, "by-hand"), stock())
            => pools;
        "the end of one by hand": Manager.delete(of(POOLS, "of-machine")), Manager.delete(of(POOLS, "by-hand")) => pools;
    };
    let foreign = "is no reservation of a Machine; the manager may write and delete such only";
    let reserved = |change| of_machine(merged(role("reservation"), change));
    all.extend(twins! {"outrigger-manager-reservations";
        "a Service": Manager.create(SERVICES, service(reserved(json!({})))), Manager.create(SERVICES, service(json!({})))
            => "services new ", foreign;
        "a Service of nobody": Manager.create(SERVICES, service(reserved(json!({})))),
            Manager.create(SERVICES, service(role("reservation")))
            => foreign;
        "another's Service": Manager.patch(of(SERVICES, "of-machine"), label("a", "b")),
            Manager.patch(of(SERVICES, "foreign"), reserved(json!({})))
            => "services foreign ", foreign;
        "the end of another's": Manager.delete(of(SERVICES, "of-machine")), Manager.delete(of(SERVICES, "foreign"))
            => "services foreign ", foreign;
        "the end of another's, as somebody else may": Operator.delete(of(SERVICES, "foreign")),
            Manager.delete(of(SERVICES, "foreign"))
            => foreign;
        "a StatefulSet": Manager.create(SETS, set(json!({}))),
            Manager.create(SETS, merged(set(json!({})), json!({"metadata": {"ownerReferences": null}})))
            => "statefulsets new ", foreign;
    });
    let nothing = "spec.template: is no reservation; the manager may make Pods only that have";
    for pods in [
        json!({"priorityClassName": "outrigger"}),
        json!({"automountServiceAccountToken": true}),
        json!({"serviceAccountName": "builder"}),
        json!({"nodeName": "free"}),
        json!({"hostNetwork": true}),
        json!({"hostPID": true}),
        json!({"runtimeClassName": "bare"}),
        json!({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}),
        json!({"initContainers": [{"name": "i", "image": "i"}]}),
    ] {
        all.extend(twins! {"outrigger-manager-reservations";
            "what its Pods may be": Manager.create(SETS, set(json!({}))), Manager.create(SETS, set(pods)) => nothing;
        });
    }
    for change in [
        json!({"command": ["sh"]}),
        json!({"args": ["-c"]}),
        json!({"env": [{"name": "A", "value": "b"}]}),
        json!({"securityContext": {"privileged": true, "allowPrivilegeEscalation": null}}),
        json!({"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}),
    ] {
        all.extend(twins! {"outrigger-manager-reservations";
            "what its containers may do": Manager.create(SETS, sleeper(json!({}))), Manager.create(SETS, sleeper(change))
                => nothing;
        });
    }
    all
}

/// Those of the webhook and the agent.
pub(crate) fn others() -> Vec<Twins> {
    let slots = format!("slots-{}", "a".repeat(20));
    let text = || json!({"data": {"ledger": "[]"}});
    let write = |who: Who, object| who.create(LEDGERS, object);
    let says = "is no ledger of slots or claims; the webhook may write such only";
    let settings = |who: Who| who.patch(format!("{LEDGERS}/settings"), json!({"data": {"a": "c"}}));
    let mut all = twins! {"outrigger-webhook-ledgers";
        "another ConfigMap": write(Webhook, ledger(&slots, text())), write(Webhook, ledger("new", text()))
            => "ConfigMap new: is no ledger";
        "something else in it": write(Webhook, ledger("machine-claims", text())),
            write(Webhook, ledger("machine-claims", json!({"data": {"ledger": "[]", "ca.crt": "x"}})))
            => "ConfigMap machine-claims: ", says;
        "of a Machine": write(Webhook, ledger(&slots, merged(text(), owner("Machine")))),
            write(Webhook, ledger(&slots, merged(text(), owner("Node"))))
            => says;
        "one that never goes": write(Webhook, ledger(&slots, text())),
            write(Webhook, ledger(&slots, merged(text(), finalizer(&["example.com/stay"]))))
            => says;
        "another's": settings(Operator), settings(Webhook) => "ConfigMap settings: is no ledger";
    };
    let patch = |who: Who, operations: Value| who.patch(HOOKS, operations);
    let bundle = || json!([{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": ""}]);
    let open = || json!([{"op": "replace", "path": "/webhooks/0/timeoutSeconds", "value": 1}]);
    let fewer = || json!([{"op": "remove", "path": "/webhooks/0"}]);
    let elsewhere = || json!([{"op": "replace", "path": "/webhooks/0/clientConfig/url", "value": "https://example.com/x"}]);
    let unmatched = || json!([{"op": "add", "path": "/webhooks/0/matchConditions", "value": [{"name": "n", "expression": "false"}]}]);
    let owned = || json!([{"op": "add", "path": "/metadata/labels", "value": {"a": "b"}}]);
    let only = "the webhook may change clientConfig.caBundle of its own entries only";
    for (change, at) in [
        (open(), "webhooks[0]: "),
        (fewer(), "more than webhooks: "),
        (elsewhere(), "webhooks[0]: "),
        (unmatched(), "webhooks[0]: "),
        (owned(), "more than webhooks: "),
    ] {
        all.extend(twins! {"outrigger-webhook-configurations";
            "its configuration": patch(Webhook, bundle()), patch(Webhook, change.clone()) => at, only;
            "its configuration, as an administrator may": patch(Admin, change.clone()), patch(Webhook, change) => only;
        });
    }
    let rule = |who: Who, change| who.patch(format!("{WORKLOAD_RULES}/r"), change);
    let policy = || json!({"spec": {"dpuSelectionPolicy": "SameNode"}});
    let agents =
        "spec, metadata: the agent may change its own finalizer and the status of WorkloadRules only";
    let ours = || rule(Agent, finalizer(&[keys::RULE_FINALIZER]));
    all.extend(twins! {"outrigger-agent";
        "what a rule says": rule(Operator, policy()), rule(Agent, policy()) => agents;
        "its end": Operator.delete(format!("{WORKLOAD_RULES}/r")), Agent.delete(format!("{WORKLOAD_RULES}/r")) => agents;
    });
    for (_, change) in foreign() {
        all.extend(twins! {"outrigger-agent"; "what else is on it": ours(), rule(Agent, change) => agents;});
    }
    all
}
