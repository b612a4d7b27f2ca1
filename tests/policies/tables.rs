//! The twins: for each policy what it refuses, and what differs from that in nothing but the reason.

use super::*;

/// On whose DPUs a Pod may be.
pub(crate) fn placement() -> Vec<Twins> {
    let arm = json!({"key": "kubernetes.io/arch", "operator": "In", "values": ["arm64"]});
    let by_name = json!([{"key": "metadata.name", "operator": "In", "values": ["green-dpu"]}]);
    let mut narrower = term("blue");
    narrower["matchExpressions"].as_array_mut().unwrap().insert(0, arm.clone());
    let named = merged(term("blue"), json!({"matchFields": by_name}));
    let preferred = json!({REQUIRED: null, PREFERRED: [{"weight": 1, "preference": term("blue")}]});
    let companion = |change| merged(pod("blue", label(keys::RULE, "r")), change);
    let mut all = pods! {
        "a Node chosen by hand": {} | {"spec": {"nodeName": "blue-dpu"}}
            => "spec.nodeName: is blue-dpu; leave it out";
        "no affinity": {} | {"spec": {"affinity": null}}
            => "nodeSelectorTerms: is empty; add", "values: [blue]";
        "a node selector in its place":
            {"spec": {"nodeSelector": {"a": "b"}}}
            | {"spec": {"affinity": null, "nodeSelector": {keys::NODE_TENANT: "blue"}}}
            => "nodeSelectorTerms: is empty";
        "affinity that is only preferred": {} | {"spec": {"affinity": {"nodeAffinity": preferred}}}
            => "nodeSelectorTerms: is empty";
        "another tenant's DPUs": (terms(json!([term("blue")]))) | (terms(json!([term("green")])))
            => "nodeSelectorTerms[0]: does not keep", "values: [blue]";
        "two tenants' DPUs": (places("In", json!(["blue"]))) | (places("In", json!(["blue", "green"])))
            => "nodeSelectorTerms[0]";
        "any tenant's DPUs": (places("In", json!(["blue"]))) | (places("Exists", json!([])))
            => "nodeSelectorTerms[0]";
        "everything but the tenant's DPUs": (places("In", json!(["blue"]))) | (places("NotIn", json!(["blue"])))
            => "nodeSelectorTerms[0]";
        "a second term": (terms(json!([term("blue"), narrower])))
            | (terms(json!([term("blue"), {"matchExpressions": [arm]}])))
            => "nodeSelectorTerms[1]";
        "a second term with a Node's name":
            (terms(json!([term("blue"), named]))) | (terms(json!([term("blue"), {"matchFields": by_name}])))
            => "nodeSelectorTerms[1]";
        "a term that matches no Node": (terms(json!([{}]))) | (terms(json!([{}, {"matchExpressions": [arm]}])))
            => "nodeSelectorTerms[1]";
        "a large Pod": (large(json!({}))) | (large(terms(json!([term("blue"), term("green")]))))
            => "nodeSelectorTerms[1]";
    };
    all.extend(twins! {"outrigger-pods";
        "an administrator's Pod": Admin.create(BLUE, pod("blue", json!({}))),
            Admin.create(BLUE, pod("green", json!({})))
            => "nodeSelectorTerms[0]";
        "the manager's Pod": Manager.create(BLUE, companion(json!({}))),
            Manager.create(BLUE, companion(json!({"spec": {"affinity": null}})))
            => "nodeSelectorTerms: is empty";
        "a Pod of the cluster itself": Operator.create(KUBE_SYSTEM, hostile("new")),
            Operator.create(BLUE, hostile("new"))
            => "nodeSelectorTerms: is empty";
        "a Pod of nobody": Operator.create(PLAIN, hostile("new")), Operator.create(BLUE, hostile("new"))
            => "nodeSelectorTerms: is empty";
        "a privileged namespace": Operator.create(GREEN, pod("green", json!({}))),
            Operator.create(GREEN, pod("blue", json!({})))
            => "nodeSelectorTerms[0]", "values: [green]";
    });
    all
}

pub(crate) fn tolerations() -> Vec<Twins> {
    let tenant = |change| tolerate(merged(json!({"key": keys::TENANT}), change));
    pods! {
        "every taint": (tolerate(json!({"key": "node.kubernetes.io/unreachable", "operator": "Exists"})))
            | (tolerate(json!({"operator": "Exists"})))
            => "spec.tolerations[0]: has no key";
        "every taint of an effect": (tolerate(json!({"key": "a", "operator": "Exists", "effect": "NoExecute"})))
            | (tolerate(json!({"operator": "Exists", "effect": "NoExecute"})))
            => "spec.tolerations[0]: has no key";
        "another tenant's taint": (tenant(json!({"operator": "Equal", "value": "blue"})))
            | (tenant(json!({"operator": "Equal", "value": "green"})))
            => "spec.tolerations[0]: tolerates outrigger.dev/tenant Equal green", "only this",
                "outrigger.dev/tenant Equal blue";
        "another tenant's taint, without operator": (tenant(json!({"value": "blue"})))
            | (tenant(json!({"value": "green"})))
            => "spec.tolerations[0]: tolerates outrigger.dev/tenant Equal green";
        "a tenant's taint without value": (tenant(json!({"value": "blue"}))) | (tenant(json!({})))
            => "spec.tolerations[0]: tolerates outrigger.dev/tenant Equal ;";
        "all tenants' taints": (tolerate(json!({"key": LOOKALIKE, "operator": "Exists"})))
            | (tenant(json!({"operator": "Exists"})))
            => "spec.tolerations[0]: tolerates outrigger.dev/tenant Exists";
        "another taint of ours": (tenant(json!({"value": "blue"})))
            | (tolerate(json!({"key": "outrigger.dev/other", "value": "blue"})))
            => "spec.tolerations[0]: tolerates outrigger.dev/other";
        "a taint of a subdomain": (tolerate(json!({"key": LOOKALIKE, "value": "blue"})))
            | (tolerate(json!({"key": SUBDOMAIN, "value": "blue"})))
            => "spec.tolerations[0]: tolerates x.outrigger.dev/y";
        "a taint named like the Nodes' label": (tolerate(json!({"key": "notoutrigger.dev/tenant", "value": "blue"})))
            | (tolerate(json!({"key": keys::NODE_TENANT, "value": "blue"})))
            => "spec.tolerations[0]: tolerates outrigger.dev.node-restriction.kubernetes.io/tenant";
    }
}

/// What a Pod's containers may do.
pub(crate) fn rights() -> Vec<Twins> {
    let privileged: Vec<Value> = (0..100)
        .map(|i| json!({"name": format!("c{i}"), "image": "i", "securityContext": {"privileged": true}}))
        .collect();
    let mut all = pods! {
        "the host's files": (volume(json!({"emptyDir": {}}))) | (volume(json!({"hostPath": {"path": "/etc"}})))
            => "spec.volumes[1].hostPath: is /etc; use another kind of volume, the namespace is not privileged";
        "a privileged container": (context(json!({"privileged": false}))) | (context(json!({"privileged": true})))
            => "spec.containers[0].securityContext.privileged: is true; leave it out";
        "a privileged init container": (init(json!({"privileged": false}))) | (init(json!({"privileged": true})))
            => "spec.initContainers[1].securityContext.privileged: is true";
        "a capability": (context(json!({"capabilities": {"add": ["CHOWN", "NET_BIND_SERVICE"]}})))
            | (context(json!({"capabilities": {"add": ["CHOWN", "NET_ADMIN", "SYS_ADMIN"]}})))
            => "spec.containers[0].securityContext.capabilities.add: has NET_ADMIN, SYS_ADMIN; remove";
        "all capabilities": (context(json!({"capabilities": {"drop": ["ALL"]}})))
            | (context(json!({"capabilities": {"add": ["ALL"]}})))
            => "capabilities.add: has ALL";
        "a capability of an init container": (init(json!({"capabilities": {"add": ["KILL"]}})))
            | (init(json!({"capabilities": {"add": ["SYS_PTRACE"]}})))
            => "spec.initContainers[1].securityContext.capabilities.add: has SYS_PTRACE";
        "too many to tell of": (large(json!({}))) | (large(json!({"spec": {"containers": privileged}})))
            => "spec.containers: some are privileged; leave";
        "a port of the host": (port(json!({"containerPort": 80})))
            | (port(json!({"containerPort": 80, "hostPort": 8080})))
            => "spec.containers[0].ports[1].hostPort: is 8080; leave it out";
    };
    for field in ["hostNetwork", "hostPID", "hostIPC", "hostUsers"] {
        all.extend(pods! {
            "the host's namespaces": {"spec": {field: false}} | {"spec": {field: true}}
                => format!("spec.{field}: is true; leave it out");
        });
    }
    for right in [
        json!({"spec": {"hostNetwork": true}}),
        volume(json!({"hostPath": {"path": "/etc"}})),
        context(json!({"privileged": true})),
        context(json!({"capabilities": {"add": ["NET_ADMIN"]}})),
        port(json!({"containerPort": 80, "hostPort": 8080})),
    ] {
        all.extend(twins! {"outrigger-pods";
            "a right that a privileged namespace gives": Operator.create(GREEN, pod("green", right.clone())),
                Operator.create(BLUE, pod("blue", right))
                => "spec.";
        });
    }
    all
}

/// How a Pod ends.
pub(crate) fn endings() -> Vec<Twins> {
    let grace = |seconds: u32| {
        User.create(BLUE, named("end", json!({"spec": {"terminationGracePeriodSeconds": seconds}})))
    };
    twins! {"outrigger-pods"; "no grace period": grace(1), grace(0) => "spec.terminationGracePeriodSeconds: is 0";}
}

/// Whose Pods a Pod looks for.
pub(crate) fn neighbors() -> Vec<Twins> {
    let term = |change| {
        merged(
            json!({"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "x"}}}),
            change,
        )
    };
    let mut all = Vec::new();
    for kind in ["podAffinity", "podAntiAffinity"] {
        let required =
            |change| json!({"spec": {"affinity": {kind: {REQUIRED: [term(json!({})), term(change)]}}}});
        let weighted = |change| json!({"weight": 1, "podAffinityTerm": term(change)});
        let preferred = |change| json!({"spec": {"affinity": {kind: {PREFERRED: [weighted(change)]}}}});
        all.extend(pods! {
            "Pods of all namespaces": (required(json!({}))) | (required(json!({"namespaceSelector": {}})))
                => format!("spec.affinity.{kind}.{REQUIRED}[1].namespaceSelector: is set; leave it out");
            "Pods of another namespace": (required(json!({"namespaces": ["tenant-blue"]})))
                | (required(json!({"namespaces": ["tenant-blue", "tenant-green"]})))
                => format!("spec.affinity.{kind}.{REQUIRED}[1].namespaces: has tenant-green; leave it out");
            "Pods of all namespaces, preferred": (preferred(json!({})))
                | (preferred(json!({"namespaceSelector": {"matchLabels": {"a": "b"}}})))
                => format!("spec.affinity.{kind}.{PREFERRED}[0].podAffinityTerm.namespaceSelector: is set");
            "Pods of another namespace, preferred": (preferred(json!({"namespaces": ["tenant-blue"]})))
                | (preferred(json!({"namespaces": ["plain"]})))
                => format!("spec.affinity.{kind}.{PREFERRED}[0].podAffinityTerm.namespaces: has plain");
        });
    }
    all
}

/// What only Outrigger may set on a Pod.
pub(crate) fn own_keys() -> Vec<Twins> {
    let mut all = pods! {
        "our label": (label("app", "v")) | (label(keys::RULE, "v"))
            => "metadata.labels[outrigger.dev/rule]: changes from (absent) to v; only Outrigger itself";
        "a label of a subdomain": (label(LOOKALIKE, "v")) | (label(SUBDOMAIN, "v"))
            => "metadata.labels[x.outrigger.dev/y]";
        "the Nodes' label": (label("notoutrigger.dev/tenant", "v")) | (label(keys::NODE_TENANT, "v"))
            => "metadata.labels[outrigger.dev.node-restriction.kubernetes.io/tenant]";
        "our annotation": (annotation("app", "v")) | (annotation(keys::HOST, "v"))
            => "metadata.annotations[outrigger.dev/host]: only Outrigger itself";
        "our gate": (gates(&["example.com/wait"])) | (gates(&[keys::ADMISSION_GATE]))
            => "spec.schedulingGates: adds or removes outrigger.dev/admission; only Outrigger itself";
        "a rule as owner": (owner("example.com/v1", "r")) | (owner(RULES, "r"))
            => "metadata.ownerReferences[0]: is WorkloadRule r; only Outrigger itself";
    };
    for ours in [
        label(keys::RULE, "v"),
        annotation(keys::HOST, "v"),
        gates(&[keys::ADMISSION_GATE]),
        owner(RULES, "r"),
    ] {
        let make = |who: Who| who.create(BLUE, pod("blue", ours.clone()));
        all.extend(twins! {"outrigger-pods";
            "what the manager may set": make(Manager), make(Operator) => "only Outrigger itself";
            "what an administrator may set": make(Admin), make(User) => "only Outrigger itself";
        });
    }
    all
}

/// What only Outrigger may change and remove.
pub(crate) fn companions() -> Vec<Twins> {
    let user = |change| User.patch(format!("{BLUE}/companion"), change);
    let manager = |change| Manager.patch(format!("{BLUE}/companion"), change);
    let no_gate = || gates(&["example.com/wait"]);
    twins! {"outrigger-pods";
        "a label changed": user(label("app", "d")), user(label(keys::RULE, "s"))
            => "metadata.labels[outrigger.dev/rule]: changes from r to s";
        "a label removed": user(label("app", Value::Null)), user(label(keys::RULE, Value::Null))
            => "metadata.labels[outrigger.dev/rule]: changes from r to (absent)";
        "a label removed by the manager": manager(label(keys::RULE, Value::Null)),
            user(label(keys::RULE, Value::Null))
            => "only Outrigger itself";
        "an annotation changed": user(annotation("a", "b")), user(annotation(keys::HOST, "b"))
            => "metadata.annotations[outrigger.dev/host]";
        "an annotation removed": manager(annotation(keys::HOST, Value::Null)),
            user(annotation(keys::HOST, Value::Null))
            => "metadata.annotations[outrigger.dev/host]";
        "a gate removed": user(gates(&[keys::ADMISSION_GATE])), user(no_gate())
            => "spec.schedulingGates: adds or removes outrigger.dev/admission";
        "a gate removed by the manager": manager(no_gate()), user(no_gate())
            => "only Outrigger itself";
        "an owner removed": user(json!({"metadata": {"ownerReferences": null}})), user(owner(RULES, "s"))
            => "metadata.ownerReferences[0]: is WorkloadRule s";
        "an owner changed": manager(owner(RULES, "s")), user(owner(RULES, "s"))
            => "metadata.ownerReferences[0]: is WorkloadRule s";
    }
}

/// A Pod from before the policies breaks all rules. What it has may stay; what changes is judged.
pub(crate) fn updates() -> Vec<Twins> {
    let old = |change| User.patch(format!("{BLUE}/old"), change);
    let leaving = |change| User.patch(format!("{BLUE}/leaving"), change);
    let debug = |name: &str, with| Operator.patch(format!("{BLUE}/{name}/ephemeralcontainers"), debug(with));
    let tolerate = |more: Value| json!({"spec": {"tolerations": [{"operator": "Exists"}, more]}});
    let image = json!([{"op": "replace", "path": "/spec/containers/0/image", "value": "j"}]);
    let cpu = json!([{"op": "replace", "path": "/spec/containers/0/resources/requests/cpu", "value": "2"}]);
    let unbound = terms(json!([merged(term("blue"), json!({"matchFields": null}))]));
    twins! {"outrigger-pods";
        "a label": old(label("app", "z")), old(label(SUBDOMAIN, "z"))
            => "metadata.labels[x.outrigger.dev/y]: changes from x to z";
        "a finalizer": old(json!({"metadata": {"finalizers": null}})),
            old(json!({"metadata": {"finalizers": null, "labels": {SUBDOMAIN: null}}}))
            => "metadata.labels[x.outrigger.dev/y]: changes from x to (absent)";
        "an image": old(image), old(annotation(SUBDOMAIN, "z"))
            => "metadata.annotations[x.outrigger.dev/y]";
        // The API server itself lets nothing but resources through here.
        "a resize": Operator.patch(format!("{BLUE}/old/resize"), cpu), old(annotation(SUBDOMAIN, "z"))
            => "metadata.annotations[x.outrigger.dev/y]";
        "one more toleration": old(tolerate(json!({"key": keys::TENANT, "value": "blue"}))),
            old(tolerate(json!({"key": keys::TENANT, "value": "green"})))
            => "spec.tolerations[1]: tolerates outrigger.dev/tenant Equal green";
        "one more toleration of everything": old(tolerate(json!({"key": "a", "operator": "Exists"}))),
            old(tolerate(json!({"operator": "Exists", "effect": "NoExecute"})))
            => "spec.tolerations[1]: has no key";
        "affinity": old(unbound), old(terms(json!([term("green")])))
            => "nodeSelectorTerms[0]";
        "debugging": debug("running", json!({"capabilities": {"add": ["KILL"]}})),
            debug("running", json!({"capabilities": {"add": ["SYS_PTRACE"]}}))
            => "spec.ephemeralContainers[0].securityContext.capabilities.add: has SYS_PTRACE";
        "debugging a privileged Pod": debug("old", json!({"privileged": false})),
            debug("old", json!({"privileged": true}))
            => "spec.ephemeralContainers[0].securityContext.privileged: is true";
        "being deleted": leaving(json!({"metadata": {"finalizers": null}})), leaving(label(SUBDOMAIN, "z"))
            => "metadata.labels[x.outrigger.dev/y]: changes from x to z";
        "a toleration while being deleted": leaving(tolerate(json!({"key": "a", "value": "b"}))),
            leaving(tolerate(json!({"key": keys::TENANT, "operator": "Exists"})))
            => "spec.tolerations[1]: tolerates outrigger.dev/tenant Exists";
    }
}

/// What a kubelet does to Pods.
pub(crate) fn kubelets(node: &Value) -> Vec<Twins> {
    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": "blue-dpu", "uid": node["metadata"]["uid"],
        "controller": true});
    let metadata = json!({"annotations": {MIRROR: "x"}, "ownerReferences": [owner]});
    let mirror = named("static", json!({"metadata": metadata, "spec": {"nodeName": "blue-dpu"}}));
    let mut all = twins! {"outrigger-pods";
        "a static Pod": Kubelet.create(PLAIN, mirror.clone()), Kubelet.create(BLUE, mirror)
            => "metadata.annotations[kubernetes.io/config.mirror]: is set";
    };
    let status = |who: Who, change| who.patch(format!("{BLUE}/running/status"), change);
    let message = |change| merged(json!({"status": {"message": "m"}}), change);
    all.extend(twins! {"outrigger-pod-status";
        "a status": status(Kubelet, message(json!({}))), status(Kubelet, message(annotation(keys::RULE_UID, "x")))
            => "metadata.annotations[outrigger.dev/rule-uid]: only Outrigger itself";
        "an annotation": status(Kubelet, annotation("app", "x")), status(Kubelet, annotation(keys::HOST, "x"))
            => "metadata.annotations[outrigger.dev/host]";
        "a label": status(Collector, label("app", "x")), status(Collector, label(keys::RULE, "s"))
            => "metadata.labels[outrigger.dev/rule]: changes from r to s";
        "by the manager": status(Manager, label(keys::RULE, Value::Null)),
            status(Collector, label(keys::RULE, Value::Null))
            => "metadata.labels[outrigger.dev/rule]: changes from r to (absent)";
        "an annotation by the manager": status(Manager, annotation(keys::HOST, "x")),
            status(Collector, annotation(keys::HOST, "x"))
            => "metadata.annotations[outrigger.dev/host]";
        "elsewhere": Operator.patch(format!("{PLAIN}/unbound/status"), label(SUBDOMAIN, "x")),
            status(Collector, label(SUBDOMAIN, "x"))
            => "metadata.labels[x.outrigger.dev/y]: changes from (absent) to x";
    });
    all.extend(twins! {"outrigger-pod-status";
        "a finalizer": status(Collector, json!({"metadata": {"finalizers": []}})),
            status(Collector, json!({"metadata": {"finalizers": ["example.com/stay"]}}))
            => "metadata.finalizers: gets example.com/stay";
    });
    let nominated = json!({"status": {"nominatedNodeName": "red-dpu"}});
    all.extend(twins! {"outrigger-pod-status";
        "a status": status(Kubelet, message(json!({}))), status(Operator, message(json!({})))
            => "status: is written by kubelets", "not by operator";
        "a controller's": status(Collector, message(json!({}))), status(Operator, message(json!({})))
            => "not by operator";
        "a nomination": Scheduler.patch(format!("{BLUE}/unbound/status"), nominated.clone()),
            Operator.patch(format!("{BLUE}/unbound/status"), nominated)
            => "status: is written by kubelets";
        "elsewhere": Operator.patch(format!("{PLAIN}/unbound/status"), message(json!({}))),
            status(Operator, message(json!({})))
            => "status: is written by kubelets";
    });
    all
}

/// Who deletes Pods, and how.
pub(crate) fn deletions() -> Vec<Twins> {
    let options = |grace: Option<u32>| {
        let mut options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "dryRun": ["All"]});
        if let Some(grace) = grace {
            options["gracePeriodSeconds"] = json!(grace);
        }
        options
    };
    let delete = |who: Who, pod: &str, grace| who.ask("DELETE", format!("{BLUE}/{pod}"), options(grace));
    let evict = |who: Who, grace| {
        let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "running"},
            "deleteOptions": options(grace)});
        who.create(format!("{BLUE}/running/eviction"), eviction)
    };
    twins! {"outrigger-pod-deletions";
        "by force": delete(User, "running", None), delete(User, "running", Some(0)) => "gracePeriodSeconds: is 0";
        "soon": delete(User, "running", Some(1)), delete(User, "running", Some(0)) => "gracePeriodSeconds: is 0";
        "by its kubelet": delete(Kubelet, "running", Some(0)), delete(Operator, "running", Some(0))
            => "gracePeriodSeconds: is 0";
        "by a controller": delete(Collector, "running", Some(0)), delete(Operator, "running", Some(0))
            => "gracePeriodSeconds: is 0";
        "by an administrator": delete(Admin, "running", Some(0)), delete(Manager, "running", Some(0))
            => "gracePeriodSeconds: is 0";
        "by the manager": delete(Manager, "running", Some(300)), delete(Manager, "running", Some(0))
            => "gracePeriodSeconds: is 0";
        "one that never ran": delete(User, "unbound", Some(0)), delete(User, "running", Some(0))
            => "gracePeriodSeconds: is 0";
        // The API server itself makes it 0 for these.
        "one that has succeeded": delete(User, "succeeded", None), delete(User, "running", Some(0))
            => "gracePeriodSeconds: is 0";
        "one that has failed": delete(User, "failed", None), delete(User, "running", Some(0))
            => "gracePeriodSeconds: is 0";
        "one that has failed, by force": delete(User, "failed", Some(0)), delete(User, "running", Some(0))
            => "gracePeriodSeconds: is 0";
        "an eviction": evict(Operator, None), evict(Operator, Some(0)) => "gracePeriodSeconds: is 0";
    }
}

/// Who binds Pods.
pub(crate) fn bindings() -> Vec<Twins> {
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "unbound"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "blue-dpu"}});
    let mut all = Vec::new();
    for path in ["pods/unbound/binding", "bindings"] {
        let bind =
            |who: Who, namespace: &str| who.create(format!("{}/{path}", at(namespace)), binding.clone());
        all.extend(twins! {"outrigger-bindings";
            "by an administrator": bind(Scheduler, "tenant-blue"), bind(Admin, "tenant-blue")
                => "target.name: is blue-dpu; only system:kube-scheduler binds";
            "by the manager": bind(Scheduler, "tenant-blue"), bind(Manager, "tenant-blue")
                => "target.name: is blue-dpu", "not system:serviceaccount:outrigger-system:outrigger-manager";
            "elsewhere": bind(Operator, "plain"), bind(Operator, "tenant-blue")
                => "target.name: is blue-dpu", "not operator";
        });
    }
    all
}

/// Whose a DPU is, and in which host it sits.
pub(crate) fn nodes() -> Vec<Twins> {
    let node = |who: Who, change| who.patch(format!("{NODES}/blue-dpu"), change);
    let blue = json!({"key": keys::TENANT, "value": "blue", "effect": "NoSchedule"});
    let green = json!({"key": keys::TENANT, "value": "green", "effect": "NoSchedule"});
    let other = json!({"key": "example.com/a", "effect": "NoSchedule"});
    let new = |who: Who, change| {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "blue-new"}});
        who.create(NODES, merged(node, change))
    };
    let heartbeat = |change| {
        let ready = json!({"type": "Ready", "status": "True", "lastHeartbeatTime": "2030-01-01T00:00:00Z"});
        Kubelet.patch(
            format!("{NODES}/blue-dpu/status"),
            merged(json!({"status": {"conditions": [ready]}}), change),
        )
    };
    let mut all = twins! {"outrigger-nodes";
        "a heartbeat": heartbeat(json!({})), heartbeat(label(keys::DPU_HOST, "host-b"))
            => "metadata.labels[provisioning.dpu.nvidia.com/host]: changes from host-a to host-b",
                "a kubelet may not say in which host";
        "a taint changed": node(Operator, taints(json!([other, blue]))), node(Operator, taints(json!([green])))
            => "spec.taints: adds, changes or removes outrigger.dev/tenant=green:NoSchedule, ",
                "outrigger.dev/tenant=blue:NoSchedule; only who may assign";
        "a taint removed": node(Manager, taints(json!([]))), node(Operator, taints(json!([])))
            => "spec.taints: adds, changes or removes outrigger.dev/tenant=blue:NoSchedule";
        "all taints removed": node(Admin, taints(json!(null))), node(Operator, taints(json!(null)))
            => "spec.taints: adds, changes or removes outrigger.dev/tenant=blue:NoSchedule";
        "a new DPU with a taint": new(NewKubelet, taints(json!([other]))), new(NewKubelet, taints(json!([blue])))
            => "spec.taints: adds, changes or removes outrigger.dev/tenant=blue:NoSchedule";
        "a new DPU with a label": new(NewKubelet, label("kubernetes.io/arch", "arm64")),
            new(NewKubelet, label(keys::TENANT, "blue"))
            => "metadata.labels[outrigger.dev/tenant]: changes from (absent) to blue";
        "a new DPU in a host": new(NewKubelet, label("example.com/host", "b")),
            new(NewKubelet, label(keys::DPU_HOST, "b"))
            => "metadata.labels[provisioning.dpu.nvidia.com/host]: changes from (absent) to b";
        "a new DPU in a machine group": new(NewKubelet, label("example.com/node-pool", "ready")),
            new(NewKubelet, label(keys::NODE_POOL, "ready"))
            => "metadata.labels[imperator.tenzen-y.io/node-pool]: a kubelet may not say in which machine group";
        "a new DPU in a host by somebody else": new(Operator, label(keys::DPU_HOST, "b")),
            new(NewKubelet, label(keys::DPU_HOST, "b"))
            => "metadata.labels[provisioning.dpu.nvidia.com/host]";
        "a new DPU with everything": new(Admin, dpu("blue-new", "blue", "b")),
            new(Operator, dpu("blue-new", "blue", "b"))
            => "metadata.labels[outrigger.dev.node-restriction.kubernetes.io/tenant]";
    };
    for path in ["blue-dpu", "blue-dpu/status"] {
        let node = |who: Who, key: &str, value: &str| {
            let value = if value.is_empty() { Value::Null } else { value.into() };
            who.patch(format!("{NODES}/{path}"), label(key, value))
        };
        all.extend(twins! {"outrigger-nodes";
            "the tenant": node(Operator, "a", "b"), node(Operator, keys::NODE_TENANT, "green")
                => "metadata.labels[outrigger.dev.node-restriction.kubernetes.io/tenant]: changes from blue to green";
            "the tenant taken away": node(Manager, keys::NODE_TENANT, ""), node(Operator, keys::NODE_TENANT, "")
                => "changes from blue to (absent); only who may assign DPUs";
            "another label of ours": node(Kubelet, LOOKALIKE, "x"), node(Kubelet, SUBDOMAIN, "x")
                => "metadata.labels[x.outrigger.dev/y]: changes from (absent) to x";
            "the host": node(Kubelet, "example.com/host", "host-b"), node(Kubelet, keys::DPU_HOST, "host-b")
                => "metadata.labels[provisioning.dpu.nvidia.com/host]: changes from host-a to host-b";
            "a machine group": node(Operator, "imperator.tenzen-y.io/t", "g"), node(Kubelet, "imperator.tenzen-y.io/t", "g")
                => "metadata.labels[imperator.tenzen-y.io/t]: a kubelet may not say in which machine group its node is";
            "the host taken away": node(Operator, keys::DPU_HOST, ""), node(Kubelet, keys::DPU_HOST, "")
                => "metadata.labels[provisioning.dpu.nvidia.com/host]: changes from host-a to (absent)";
        });
    }
    all
}

/// Whose a namespace is.
pub(crate) fn namespaces(blue: &Value) -> Vec<Twins> {
    let make = |who: Who, labels| who.create(NAMESPACES, namespace("new", labels));
    let change = |who: Who, name: &str, key: &str, value: &str| {
        let value = if value.is_empty() { Value::Null } else { value.into() };
        who.patch(at(name), label(key, value))
    };
    let finalize =
        |key: &str| Operator.put(at("tenant-blue/finalize"), merged(blue.clone(), label(key, "green")));
    let note = |who: Who, key: &str| who.patch(at("tenant-blue"), annotation(key, "x"));
    twins! {"outrigger-namespaces";
        "a new one": make(Operator, json!({LEVEL: "baseline"})), make(Operator, json!({keys::TENANT: "blue"}))
            => "metadata.labels[outrigger.dev/tenant]: changes from (absent) to blue; only who may assign";
        "a new one of a tenant": make(Manager, json!({keys::TENANT: "blue", LEVEL: "baseline"})),
            make(Operator, json!({keys::TENANT: "blue", LEVEL: "baseline"}))
            => "metadata.labels[outrigger.dev/tenant]: changes from (absent) to blue";
        "the tenant": change(Operator, "tenant-blue", "a", "b"),
            change(Operator, "tenant-blue", keys::TENANT, "green")
            => "metadata.labels[outrigger.dev/tenant]: changes from blue to green";
        "the tenant taken away": change(Admin, "tenant-blue", keys::TENANT, ""),
            change(Operator, "tenant-blue", keys::TENANT, "")
            => "metadata.labels[outrigger.dev/tenant]: changes from blue to (absent)";
        "through the status": change(Operator, "tenant-blue/status", "a", "b"),
            change(Operator, "tenant-blue/status", keys::TENANT, "")
            => "metadata.labels[outrigger.dev/tenant]: changes from blue to (absent)";
        "through finalization": finalize("a"), finalize(keys::TENANT)
            => "metadata.labels[outrigger.dev/tenant]: changes from blue to green";
        "a plain one": change(Admin, "plain", keys::TENANT, "blue"), change(Operator, "plain", keys::TENANT, "blue")
            => "metadata.labels[outrigger.dev/tenant]: changes from (absent) to blue";
        "another label of ours": change(Operator, "plain", LOOKALIKE, "x"), change(Operator, "plain", SUBDOMAIN, "x")
            => "metadata.labels[x.outrigger.dev/y]";
        "an annotation": note(Operator, "a"), note(Operator, keys::TENANT)
            => "metadata.annotations[outrigger.dev/tenant]: only who may assign";
        "an annotation by an administrator": note(Admin, keys::TENANT), note(Operator, keys::TENANT)
            => "metadata.annotations[outrigger.dev/tenant]";
        "Pod security": change(Operator, "plain", LEVEL, "privileged"),
            change(Operator, "tenant-blue", LEVEL, "privileged")
            => "metadata.labels[pod-security.kubernetes.io/enforce]: changes from (absent) to privileged";
        "Pod security taken away": change(Manager, "tenant-green", LEVEL, ""),
            change(Operator, "tenant-green", LEVEL, "")
            => "metadata.labels[pod-security.kubernetes.io/enforce]: changes from privileged to (absent)";
        "one of the cluster itself": change(Admin, "kube-system", "a", "b"),
            change(Admin, "kube-system", keys::TENANT, "blue")
            => "metadata.labels[outrigger.dev/tenant]: is blue on the namespace kube-system of the cluster itself";
        "the platform's": change(Admin, "plain", keys::TENANT, "blue"),
            change(Admin, "universe", keys::TENANT, "blue")
            => "metadata.labels[outrigger.dev/tenant]: is blue on the namespace universe";
        "Outrigger's own": change(Admin, "plain", keys::TENANT, "blue"),
            change(Admin, SYSTEM, keys::TENANT, "blue")
            => "metadata.labels[outrigger.dev/tenant]: is blue on the namespace outrigger-system of the cluster itself";
    }
}

/// What RBAC can't say about the manager.
pub(crate) fn manager(live: &Value) -> Vec<Twins> {
    let label = |name: &str, key: &str| Manager.patch(at(name), label(key, "x"));
    let make = |labels| Manager.create(NAMESPACES, namespace("new", labels));
    let level = || Manager.patch(at("tenant-blue"), self::label(LEVEL, "restricted"));
    let through = |who: Who, name: &str| who.patch(format!("{}/status", at(name)), self::label("a", "b"));
    let finalize = |who: Who, name: &str| who.put(format!("{}/finalize", at(name)), live[name].clone());
    let mut all = twins! {"outrigger-manager-namespaces";
        "deletes one": Manager.delete(at("tenant-made")), Manager.delete(at("plain"))
            => "metadata.labels[outrigger.dev/tenant]: is missing on namespace plain; the manager may write";
        "deletes one, as somebody else may": Operator.delete(at("plain")), Manager.delete(at("plain"))
            => "metadata.labels[outrigger.dev/tenant]: is missing on namespace plain";
        "deletes one that it has not made": Manager.delete(at("tenant-made")), Manager.delete(at("tenant-blue"))
            => "metadata.ownerReferences: no Tenant owns namespace tenant-blue";
        "changes one": level(), label("plain", "a")
            => "metadata.labels[outrigger.dev/tenant]: is missing on namespace plain";
        "finalizes one": finalize(Operator, "plain"), finalize(Manager, "plain")
            => "metadata.labels[outrigger.dev/tenant]: is missing on namespace plain";
        "finalizes a tenant's": finalize(Operator, "tenant-blue"), finalize(Manager, "tenant-blue")
            => "namespace tenant-blue: of a tenant's namespace the manager may change the labels";
        "changes a status": through(Operator, "plain"), through(Manager, "plain")
            => "metadata.labels[outrigger.dev/tenant]: is missing on namespace plain";
        "changes a tenant's status": through(Operator, "tenant-blue"), through(Manager, "tenant-blue")
            => "namespace tenant-blue: of a tenant's namespace the manager may change the labels";
        "changes a tenant's in another way": level(), label("tenant-blue", "a")
            => "namespace tenant-blue: of a tenant's namespace the manager may change the labels";
        "takes one over": level(), label("plain", keys::TENANT)
            => "metadata.labels[outrigger.dev/tenant]: is missing on namespace plain";
        "makes one": make(json!({keys::TENANT: "blue"})), make(json!({}))
            => "metadata.labels[outrigger.dev/tenant]: is missing on namespace new";
    };
    let owned = |kind: &str, version: &str| {
        let owner = json!({"apiVersion": version, "kind": kind, "name": "x", "uid": "1"});
        merged(
            namespace("new", json!({keys::TENANT: "x"})),
            json!({"metadata": {"ownerReferences": [owner]}}),
        )
    };
    let tenant_of = |who: Who, name: &str, value: &str| who.patch(at(name), self::label(keys::TENANT, value));
    let with_more =
        |more: Value| Manager.patch(at("tenant-blue"), merged(self::label(LEVEL, "restricted"), more));
    all.extend(twins! {"outrigger-manager-namespaces";
        "makes one of another's": Manager.create(NAMESPACES, owned("Tenant", "outrigger.dev/v1alpha1")),
            Manager.create(NAMESPACES, owned("Node", "v1"))
            => "metadata.ownerReferences: the manager may make namespaces of Tenants only";
        "gives one to another tenant": tenant_of(Admin, "tenant-blue", "green"), tenant_of(Manager, "tenant-blue", "green")
            => "namespace tenant-blue: of a tenant's namespace the manager may change the labels";
        "a level and an owner": level(), with_more(json!({"metadata": {"ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "1"}]}}))
            => "namespace tenant-blue: of a tenant's namespace";
        "a level and a finalizer": level(), with_more(json!({"metadata": {"finalizers": ["example.com/stay"]}}))
            => "namespace tenant-blue: of a tenant's namespace";
        "a level and an annotation": level(), with_more(annotation("a", "b"))
            => "namespace tenant-blue: of a tenant's namespace";
    });
    let change = |path: &str, change: Value| Manager.patch(at(path), change);
    let offloaded = |value: &str| self::label(keys::OFFLOADED, value);
    let with = |more: Value| merged(offloaded("true"), more);
    all.extend(twins! {"outrigger-manager-namespaces";
        "offloads one": change("plain", offloaded("true")), change("plain", offloaded("false"))
            => "and of others the label liqo.io/scheduling-enabled=true only";
        "takes that back": change("left", self::label(keys::OFFLOADED, Value::Null)),
            change("left", offloaded("never"))
            => "is missing on namespace left";
        "offloads one and more": change("plain", offloaded("true")), change("plain", with(self::label("a", "b")))
            => "is missing on namespace plain";
        "offloads one with an annotation": change("plain", offloaded("true")), change("plain", with(annotation("a", "b")))
            => "is missing on namespace plain";
        "offloads one with a finalizer": change("plain", offloaded("true")),
            change("plain", with(json!({"metadata": {"finalizers": ["example.com/stay"]}})))
            => "is missing on namespace plain";
        "offloads one with an owner": change("plain", offloaded("true")),
            change("plain", with(json!({"metadata": {"ownerReferences": [
                {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "1"}]}})))
            => "is missing on namespace plain";
        "offloads one and takes it over": change("plain", offloaded("true")),
            change("plain", with(self::label(keys::TENANT, "blue")))
            => "is missing on namespace plain";
        "offloads one through its status": change("plain", offloaded("true")), change("plain/status", offloaded("true"))
            => "is missing on namespace plain";
        "offloads the cluster's own": change("plain", offloaded("true")), change("kube-system", offloaded("true"))
            => "is missing on namespace kube-system";
        "offloads Outrigger's own": change("plain", offloaded("true")), change(SYSTEM, offloaded("true"))
            => "is missing on namespace outrigger-system";
        "makes one that is offloaded": Operator.create(NAMESPACES, namespace("new", json!({keys::OFFLOADED: "true"}))),
            make(json!({keys::OFFLOADED: "true"}))
            => "is missing on namespace new";
    });
    let asked = "/apis/offloading.liqo.io/v1beta1/namespaces/plain/namespaceoffloadings";
    let asks = |who: Who, change| who.patch(format!("{asked}/offloading"), change);
    let finalizer = |more| merged(json!({"metadata": {"finalizers": [keys::OFFLOADING_FINALIZER]}}), more);
    let remote = || json!({"spec": {"podOffloadingStrategy": "Remote"}});
    all.extend(twins! {"outrigger-manager-offloadings";
        "sends Pods elsewhere": asks(Operator, remote()), asks(Manager, remote())
            => "the manager may change its own finalizer and the status of NamespaceOffloadings only";
        "its finalizer and more": asks(Manager, finalizer(json!({}))), asks(Manager, finalizer(remote()))
            => "its own finalizer and the status of NamespaceOffloadings only";
        "another finalizer": asks(Manager, finalizer(json!({}))),
            asks(Manager, json!({"metadata": {"finalizers": [keys::OFFLOADING_FINALIZER, "example.com/stay"]}}))
            => "its own finalizer and the status of NamespaceOffloadings only";
        "a label": asks(Manager, finalizer(json!({}))), asks(Manager, self::label(keys::WEBHOOK_SKIP, "true"))
            => "its own finalizer and the status of NamespaceOffloadings only";
        "an annotation": asks(Manager, finalizer(json!({}))), asks(Manager, annotation("a", "b"))
            => "its own finalizer and the status of NamespaceOffloadings only";
    });
    let node = |who: Who, path: &str, change| who.patch(format!("{NODES}/{path}"), change);
    let metadata = json!({"metadata": {"labels": {keys::NODE_TENANT: "green"}, "annotations": {keys::MACHINE_GROUP: "g"}}});
    let both = || json!({"metadata": {"annotations": {"a": "b"}}, "spec": {"unschedulable": true}});
    let drain = json!({"key": "example.com/drain", "effect": "NoExecute"});
    let group_taint = json!({"key": keys::NODE_POOL, "value": "ready", "effect": "NoSchedule"});
    let full = || json!({"status": {"capacity": {"example.com/a": "1"}}});
    all.extend(twins! {"outrigger-nodes";
        "changes a Node": node(Manager, "blue-dpu", merged(metadata, taints(json!([])))),
            node(Manager, "blue-dpu", json!({"spec": {"unschedulable": true}}))
            => "spec.unschedulable: the manager may change metadata and spec.taints only";
        "changes a Node back": node(Operator, "green-dpu", json!({"spec": {"unschedulable": null}})),
            node(Manager, "green-dpu", json!({"spec": {"unschedulable": null}}))
            => "spec.unschedulable: the manager may";
        "changes a Node in many ways": node(Operator, "blue-dpu", both()), node(Manager, "blue-dpu", both())
            => "spec.unschedulable: the manager may";
        "the taint of a machine group": node(Manager, "blue-dpu", taints(json!([group_taint]))),
            node(Manager, "blue-dpu", taints(json!([drain])))
            => "spec.taints[example.com/drain=:NoExecute]: the manager may change its own labels and taints only";
        "the label of a machine group": node(Manager, "blue-dpu", self::label(keys::NODE_POOL, "ready")),
            node(Manager, "blue-dpu", self::label("imperator.tenzen-y.io.example.com/a", "b"))
            => "metadata.labels[imperator.tenzen-y.io.example.com/a]: the manager may change its own labels and taints only";
        "another's taint": node(Manager, "blue-dpu", taints(json!([]))), node(Manager, "blue-dpu", taints(json!([drain])))
            => "spec.taints[example.com/drain=:NoExecute]: the manager may change its own labels and taints only";
        "another's label": node(Operator, "blue-dpu", self::label("a", "b")), node(Manager, "blue-dpu", self::label("a", "b"))
            => "metadata.labels[a]: the manager may change its own labels and taints only";
        "changes a Node's status": node(Operator, "blue-dpu/status", full()), node(Manager, "blue-dpu/status", full())
            => "status: the manager may change metadata and spec.taints only";
    });
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "outrigger"},
        "spec": {"hard": {"pods": "10"}}});
    let quota = |name: &str| Manager.create(format!("{}/resourcequotas", at(name)), quota.clone());
    let bind = |who: Who, name: &str, role: &str| who.create(role_bindings(name), role_binding("new", role));
    let rebind = |namespace: &str, name: &str| {
        Manager.patch(
            format!("{}/{name}", role_bindings(namespace)),
            json!({"metadata": {"labels": {"a": "b"}}}),
        )
    };
    let unbind = |who: Who| who.delete(format!("{}/edit", role_bindings("tenant-blue")));
    let pods = |who: Who, path: &str, name: &str| who.delete(format!("{path}{name}"));
    let change =
        |path: &str| Manager.patch(format!("{path}/unbound"), json!({"metadata": {"labels": {"a": "b"}}}));
    all.extend(twins! {"outrigger-manager";
        "makes a Pod": Manager.create(BLUE, pod("blue", json!({}))), Manager.create(PLAIN, pod("blue", json!({})))
            => "metadata.namespace: is plain, which belongs to no tenant";
        "changes a Pod": change(BLUE), change(PLAIN)
            => "metadata.namespace: is plain";
        "deletes a Pod": pods(Manager, BLUE, "/unbound"), pods(Manager, PLAIN, "/unbound")
            => "metadata.namespace: is plain";
        "deletes a Pod, as somebody else may": pods(Operator, PLAIN, "/unbound"), pods(Manager, PLAIN, "/unbound")
            => "metadata.namespace: is plain";
        "deletes all Pods": pods(Manager, BLUE, ""), pods(Manager, PLAIN, "")
            => "metadata.namespace: is plain";
        "makes a quota": quota("tenant-blue"), quota("plain")
            => "metadata.namespace: is plain";
        "changes its role": rebind("tenant-blue", "outrigger-manager"), rebind("plain", "outrigger-manager")
            => "metadata.namespace: is plain";
        "binds its role": bind(Manager, "tenant-blue", "outrigger-manager-tenant"),
            bind(Manager, "kube-system", "outrigger-manager-tenant")
            => "metadata.namespace: is kube-system";
    });
    let with = |who: Who, change| {
        who.create(
            role_bindings("tenant-blue"),
            merged(role_binding("new", "outrigger-manager-tenant"), change),
        )
    };
    let lookalike = |who: Who| with(who, json!({"roleRef": {"kind": "Role"}}));
    let to = |who: Who, name: &str| {
        with(who, json!({"subjects": [{"kind": "ServiceAccount", "name": name, "namespace": SYSTEM}]}))
    };
    all.extend(twins! {"outrigger-manager-roles";
        "changes another role": rebind("tenant-blue", "outrigger-manager"), rebind("tenant-blue", "edit")
            => "roleRef: is ClusterRole edit";
        "binds another role": bind(Admin, "tenant-blue", "cluster-admin"),
            bind(Manager, "tenant-blue", "cluster-admin")
            => "roleRef: is ClusterRole cluster-admin; the manager may bind";
        "binds a Role of that name": lookalike(Admin), lookalike(Manager)
            => "roleRef: is Role outrigger-manager-tenant";
        "binds somebody else": to(Manager, "outrigger-manager"), to(Manager, "mallory")
            => "subjects: the manager may bind itself only";
        "takes another role away": unbind(Operator), unbind(Manager)
            => "roleRef: is ClusterRole edit";
    });
    all
}
