//! The twins for the platform's own namespace.

use super::*;

/// Companions of admin rules, and what else is in their namespace.
pub(crate) fn admin_companions() -> Vec<Twins> {
    let companion = |change| merged(pod("blue", admin_companion()), change);
    let manager = |change| Manager.create(UNIVERSE, companion(change));
    let mut all = twins! {"outrigger-admin-pods";
        "a Pod of the platform": Operator.create(UNIVERSE, hostile_without_keys()), Operator.create(UNIVERSE, hostile("new"))
            => "metadata.labels[x.outrigger.dev/y]: changes from (absent) to x; only Outrigger itself";
        "a companion": manager(json!({})), Operator.create(UNIVERSE, companion(json!({})))
            => "metadata.labels[outrigger.dev/tenant]: changes from (absent) to blue; only Outrigger itself";
        "an annotation": manager(annotation(keys::HOST, "a")),
            Operator.create(UNIVERSE, pod("blue", annotation(keys::HOST, "a")))
            => "metadata.annotations[outrigger.dev/host]: only Outrigger itself";
        "a gate": manager(gates(&[keys::ADMISSION_GATE])),
            Operator.create(UNIVERSE, pod("blue", gates(&[keys::ADMISSION_GATE])))
            => "spec.schedulingGates: adds or removes outrigger.dev/admission";
        "an owner": manager(owner(RULES, "r")), Operator.create(UNIVERSE, pod("blue", owner(RULES, "r")))
            => "metadata.ownerReferences[0]: is WorkloadRule r";
        "no affinity": manager(json!({})), manager(json!({"spec": {"affinity": null}}))
            => "nodeSelectorTerms: is empty, and does not keep the companion on the DPUs of tenant blue";
        "another tenant's DPUs": manager(terms(json!([term("blue")]))), manager(terms(json!([term("green")])))
            => "nodeSelectorTerms[0]: does not keep the companion on the DPUs of tenant blue";
        "a second term": manager(terms(json!([term("blue"), term("blue")]))),
            manager(terms(json!([term("blue"), {"matchExpressions": [{"key": "a", "operator": "Exists"}]}])))
            => "nodeSelectorTerms[1]";
        "a Node chosen by hand": manager(json!({})), manager(json!({"spec": {"nodeName": "blue-dpu"}}))
            => "spec.nodeName: is set";
        "every taint": manager(tolerate(json!({"operator": "Exists", "effect": "NoExecute"}))),
            manager(tolerate(json!({"operator": "Exists"})))
            => "spec.tolerations[0]: tolerates every taint";
        "a DPU that changes hands": manager(tolerate(json!({"key": "a", "operator": "Exists"}))),
            manager(tolerate(json!({"key": keys::HANDOVER, "operator": "Exists"})))
            => "spec.tolerations[0]: tolerates outrigger.dev/handover";
        "another tenant's taint": manager(tolerate(json!({"key": keys::TENANT, "value": "blue"}))),
            manager(tolerate(json!({"key": keys::TENANT, "value": "green"})))
            => "spec.tolerations[0]: tolerates outrigger.dev/tenant green";
        "all rights": manager(json!({"spec": {"hostNetwork": true, "volumes": [{"name": "v", "hostPath": {"path": "/"}}]}})),
            Operator.create(UNIVERSE, companion(json!({"spec": {"hostNetwork": true}})))
            => "metadata.labels[outrigger.dev/tenant]";
    };
    let change = |who: Who, path: &str, change| who.patch(format!("{UNIVERSE}/companion{path}"), change);
    for path in ["", "/status"] {
        all.extend(twins! {"outrigger-admin-pods";
            "another tenant's": change(Operator, path, label("app", "x")),
                change(Operator, path, label(keys::TENANT, "green"))
                => "metadata.labels[outrigger.dev/tenant]: changes from blue to green";
            "another rule's": change(Operator, path, annotation("app", "x")),
                change(Operator, path, annotation(keys::ADMIN_RULE, "s"))
                => "metadata.annotations[outrigger.dev/admin-rule]";
        });
    }
    all.extend(twins! {"outrigger-admin-pods";
        "one more toleration": change(Operator, "", one_more(json!({"key": "a", "operator": "Exists"}))),
            change(Operator, "", one_more(json!({"operator": "Exists"})))
            => "tolerates every taint; of the taints under outrigger.dev only";
    });
    all.extend(twins! {"outrigger-manager-admin-pods";
        "makes another Pod": manager(json!({})), Manager.create(UNIVERSE, pod("blue", json!({})))
            => "one is missing on the Pod", "companions of admin rules only";
        "makes one for no tenant": manager(json!({})), Manager.create(UNIVERSE, pod("blue", annotation(keys::ADMIN_RULE, "r")))
            => "one is missing on the Pod";
        "changes another Pod": change(Manager, "", label("app", "x")),
            Manager.patch(format!("{UNIVERSE}/platform"), label("app", "x"))
            => "one is missing on the Pod platform";
        "makes another Pod a companion": change(Manager, "", label("app", "x")),
            Manager.patch(format!("{UNIVERSE}/unbound"), admin_companion())
            => "one is missing on the Pod unbound";
        "deletes another Pod": Manager.delete(format!("{UNIVERSE}/companion")),
            Manager.delete(format!("{UNIVERSE}/platform"))
            => "one is missing on the Pod platform";
        "deletes it, as somebody else may": Operator.delete(format!("{UNIVERSE}/platform")),
            Manager.delete(format!("{UNIVERSE}/platform"))
            => "one is missing on the Pod platform";
    });
    let options = |grace: u32| json!({"apiVersion": "v1", "kind": "DeleteOptions", "dryRun": ["All"], "gracePeriodSeconds": grace});
    let delete = |who: Who, pod: &str, grace| who.ask("DELETE", format!("{UNIVERSE}/{pod}"), options(grace));
    let evict = |grace| {
        let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "running"},
            "deleteOptions": options(grace)});
        Operator.create(format!("{UNIVERSE}/running/eviction"), eviction)
    };
    all.extend(twins! {"outrigger-admin-pod-deletions";
        "by force": delete(Operator, "running", 1), delete(Operator, "running", 0) => "gracePeriodSeconds: is 0";
        "by a controller": delete(Collector, "running", 0), delete(Operator, "running", 0)
            => "gracePeriodSeconds: is 0";
        "a Pod of the platform": delete(Operator, "platform", 0), delete(Operator, "running", 0)
            => "gracePeriodSeconds: is 0";
        "by the manager": delete(Manager, "running", 300), delete(Manager, "running", 0) => "gracePeriodSeconds: is 0";
        "one that never ran": delete(Operator, "companion", 0), delete(Operator, "running", 0)
            => "gracePeriodSeconds: is 0";
        "one that has succeeded": delete(Operator, "succeeded", 0), delete(Operator, "running", 0)
            => "gracePeriodSeconds: is 0";
        "one that has failed": delete(Operator, "failed", 0), delete(Operator, "running", 0)
            => "gracePeriodSeconds: is 0";
        "an eviction": evict(1), evict(0) => "gracePeriodSeconds: is 0";
    });
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "outrigger"},
        "spec": {"hard": {"pods": "10"}}});
    let quota = |who: Who| who.create(format!("{}/resourcequotas", at("universe")), quota.clone());
    all.extend(twins! {"outrigger-manager";
        "makes a quota for the platform": quota(Operator), quota(Manager) => "metadata.namespace: is universe";
    });
    all
}

/// A Pod with all rights, and no key of ours.
fn hostile_without_keys() -> Value {
    merged(hostile("new"), label(SUBDOMAIN, Value::Null))
}

/// One more toleration for a Pod that is there.
fn one_more(toleration: Value) -> Value {
    json!([{"op": "add", "path": "/spec/tolerations/-", "value": toleration}])
}
