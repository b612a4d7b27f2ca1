//! The twins for claims of devices, and what they are made from.

use super::*;

fn path(namespace: &str, plural: &str) -> String {
    format!("/apis/resource.k8s.io/v1/namespaces/{namespace}/{plural}")
}

fn request() -> Value {
    json!({"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "crypto"}}]}})
}

/// A claim of nobody, with a change.
pub(crate) fn claim(change: Value) -> Value {
    let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"generateName": "c-"}, "spec": request()});
    merged(claim, change)
}

fn template(change: Value) -> Value {
    merged(
        claim(json!({"kind": "ResourceClaimTemplate", "spec": {"devices": null, "spec": request()}})),
        change,
    )
}

/// What the manager puts on all that it makes.
pub(crate) fn of_rule() -> Value {
    merged(label(keys::RULE, "r"), annotation(keys::RULE_UID, "u"))
}

/// Claims and templates, in tenants' namespaces and elsewhere.
pub(crate) fn devices() -> Vec<Twins> {
    let claims = |namespace: &str| path(namespace, "resourceclaims");
    let templates = |namespace: &str| path(namespace, "resourceclaimtemplates");
    let by = |who: Who, change| who.create(claims("tenant-blue"), claim(change));
    let named = |who: Who, name: &str, change| who.patch(format!("{}/{name}", claims("tenant-blue")), change);
    let mut all = twins! {"outrigger-claims";
        "a label": by(Manager, of_rule()), by(Operator, label(keys::WORKLOAD, "w"))
            => "metadata.labels[outrigger.dev/workload]: is added as \"w\"; only Outrigger itself";
        "an annotation": by(Operator, annotation("a", "b")), by(Operator, annotation(keys::HOST, "a"))
            => "metadata.annotations[outrigger.dev/host]: only Outrigger itself";
        "an owner": by(Manager, merged(of_rule(), owner(RULES, "r"))), by(Operator, owner(RULES, "r"))
            => "metadata.ownerReferences: has WorkloadRule r; only Outrigger itself";
        "another owner": by(Operator, owner("apps/v1", "r")), by(Operator, owner(RULES, "r"))
            => "metadata.ownerReferences: has WorkloadRule r";
        "a label of a template": Operator.create(templates("tenant-blue"), template(label("a", "b"))),
            Operator.create(templates("tenant-blue"), template(label(keys::RULE, "r")))
            => "metadata.labels[outrigger.dev/rule]: is added as \"r\"";
        "for an admin rule": Operator.create(claims("universe"), claim(label("a", "b"))),
            Operator.create(claims("universe"), claim(label(keys::TENANT, "blue")))
            => "metadata.labels[outrigger.dev/tenant]: is added as \"blue\"";
        "another rule's": named(Operator, "of-rule", label("a", "b")), named(Operator, "of-rule", label(keys::RULE, "s"))
            => "metadata.labels[outrigger.dev/rule]: changes from \"r\" to \"s\"";
        "nobody's any more": named(Operator, "of-rule", label("a", "b")),
            named(Operator, "of-rule", label(keys::RULE, Value::Null))
            => "metadata.labels[outrigger.dev/rule]: is removed, was \"r\"";
    };
    let delete = |who: Who, name: &str| who.delete(format!("{}/{name}", claims("tenant-blue")));
    all.extend(twins! {"outrigger-manager-claims";
        "makes one of no rule": by(Manager, of_rule()), by(Manager, label(keys::RULE, "r"))
            => "one is missing on", "the manager may write claims of rules only";
        "makes a template of no rule": Manager.create(templates("tenant-blue"), template(of_rule())),
            Manager.create(templates("tenant-blue"), template(json!({})))
            => "one is missing on";
        "makes one for itself": Manager.create(claims("universe"), claim(of_rule())),
            Manager.create(claims("universe"), claim(json!({})))
            => "one is missing on";
        "changes somebody's": named(Manager, "of-rule", annotation("a", "b")),
            named(Manager, "somebodys", annotation("a", "b"))
            => "one is missing on somebodys";
        "takes one over": named(Manager, "of-rule", annotation("a", "b")), named(Manager, "somebodys", of_rule())
            => "one is missing on somebodys";
        "deletes somebody's": delete(Manager, "of-rule"), delete(Manager, "somebodys")
            => "one is missing on somebodys";
        "deletes it, as somebody else may": delete(Operator, "somebodys"), delete(Manager, "somebodys")
            => "one is missing on somebodys";
    });
    all.extend(twins! {"outrigger-manager";
        "makes a claim": by(Manager, of_rule()), Manager.create(claims("plain"), claim(of_rule()))
            => "metadata.namespace: is plain, which belongs to no tenant";
        "makes a template": Manager.create(templates("universe"), template(of_rule())),
            Manager.create(templates("plain"), template(of_rule()))
            => "metadata.namespace: is plain";
    });
    all
}
