use std::time::SystemTime;

use futures::FutureExt;
use outrigger_core::keys;
use outrigger_core::tenant::nodes::Marks;
use serde_json::{Value, json};
use tonic::Code;

use super::*;
use crate::fixtures;

fn id(name: &str) -> TenantId {
    TenantId::new(name).unwrap()
}

fn tenant(name: &str, spec: Value) -> Change<Tenant> {
    let object = json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": name}, "spec": spec});
    Change::Applied(fixtures::object(object))
}

fn node(name: &str, host: Option<&str>, owner: Option<&str>, taints: Value) -> Node {
    let mut labels = serde_json::Map::new();
    labels.extend(host.map(|host| (keys::DPU_HOST.to_owned(), json!(host))));
    labels.extend(owner.map(|owner| (keys::NODE_TENANT.to_owned(), json!(owner))));
    let object = json!({"metadata": {"name": name, "labels": labels, "resourceVersion": "7"}, "spec": {"taints": taints}});
    fixtures::object(object)
}

/// The Node exists and looks like this.
fn show(registry: &Registry, node: Node) -> (Vec<TenantId>, bool) {
    let NodeChange { concerned, changed, .. } = registry.node(&node.name_any(), Some(&node));
    (concerned, changed)
}

fn caller(names: &[&str]) -> Caller {
    let names = names.iter().map(|name| Identity::new(name).unwrap()).collect();
    Caller::Certificate { names, not_after: SystemTime::UNIX_EPOCH }
}

fn registry() -> Registry {
    let registry = Registry::new(Default::default(), vec![Identity::new("spiffe://x/admin").unwrap()]);
    registry.tenant(tenant(
        "blue",
        json!({"identities": ["spiffe://x/blue", "agent.blue"], "hosts": ["a", "b"]}),
    ));
    registry.tenant(tenant("red", json!({"identities": ["spiffe://x/red"], "hosts": ["c"]})));
    registry
}

#[test]
fn a_certificate_speaks_for_its_own_tenant_alone() {
    let registry = registry();
    let code = |names: &[&str], tenant: &str| {
        registry.authorize(&caller(names), &id(tenant)).err().map(|s| s.code())
    };
    assert_eq!(code(&["spiffe://x/blue"], "blue"), None);
    assert_eq!(code(&["other.example", "agent.blue"], "blue"), None);
    assert_eq!(code(&["spiffe://x/admin"], "blue"), None);
    assert_eq!(code(&["spiffe://x/admin"], "nobody"), Some(Code::NotFound));
    for names in [&["spiffe://x/red"][..], &["spiffe://x/stranger"], &[]] {
        // A tenant that exists and one that doesn't: the same answer.
        let words = |tenant: &str| {
            registry.authorize(&caller(names), &id(tenant)).unwrap_err().message().replace(tenant, "T")
        };
        assert_eq!(code(names, "blue"), Some(Code::PermissionDenied));
        assert_eq!(code(names, "nobody"), Some(Code::PermissionDenied));
        assert_eq!(words("blue"), words("nobody"));
    }
    assert_eq!(registry.authorize(&Caller::Local, &id("blue")).unwrap().namespace, "tenant-blue");
    assert_eq!(registry.authorize(&Caller::Local, &id("nobody")).unwrap_err().code(), Code::NotFound);
}

#[test]
fn an_identity_of_two_tenants_belongs_to_neither() {
    let registry = registry();
    registry.tenant(tenant("red", json!({"identities": ["agent.blue"]})));
    for (names, tenant) in
        [(&["agent.blue"][..], "blue"), (&["agent.blue"], "red"), (&["agent.blue", "x"], "red")]
    {
        let status = registry.authorize(&caller(names), &id(tenant)).unwrap_err();
        assert_eq!(status.code(), Code::PermissionDenied);
    }
    assert_eq!(registry.shared_identities(&id("blue")), [(Identity::new("agent.blue").unwrap(), id("red"))]);
    // The identity that is its own alone still is.
    assert!(registry.authorize(&caller(&["spiffe://x/blue"]), &id("blue")).is_ok());
}

#[test]
fn a_caller_hears_of_what_may_change_its_rights_and_of_nothing_else() {
    let registry = registry();
    let changes = registry.changes(&caller(&["agent.blue", "second.example"]), &id("blue"));
    let heard = || changes.changed().now_or_never().is_some();
    registry.tenant(tenant("green", json!({"identities": ["spiffe://x/green"]})));
    registry.tenant(tenant("red", json!({"hosts": ["d"]})));
    assert!(!heard(), "other tenants, other names");
    // A name that its own tenant doesn't list: no tenant may have it for the caller to be blue's.
    registry.tenant(tenant("green", json!({"identities": ["second.example"]})));
    assert!(heard() && registry.authorize(&caller(&["agent.blue", "second.example"]), &id("blue")).is_err());
    registry.tenant(Change::Gone { namespace: String::new(), name: "green".into(), uid: String::new() });
    assert!(heard() && registry.authorize(&caller(&["agent.blue", "second.example"]), &id("blue")).is_ok());
    registry.tenant(tenant("blue", json!({"identities": ["spiffe://x/blue"]})));
    assert!(heard() && registry.authorize(&caller(&["agent.blue", "second.example"]), &id("blue")).is_err());
    registry.tenant(tenant("blue", json!({"identities": ["spiffe://x/blue"]})));
    assert!(!heard(), "only its status has changed");
}

#[test]
fn a_tenant_that_goes_or_is_wrong_is_not_served() {
    let registry = registry();
    registry.tenant(tenant("red", json!({"identities": ["NO NO"]})));
    assert_eq!(
        registry.authorize(&caller(&["spiffe://x/red"]), &id("red")).unwrap_err().code(),
        Code::PermissionDenied
    );
    assert_eq!(registry.authorize(&Caller::Local, &id("red")).unwrap_err().code(), Code::FailedPrecondition);
    let Change::Applied(mut blue) = tenant("blue", json!({"identities": ["spiffe://x/blue"]})) else {
        panic!()
    };
    blue.metadata.deletion_timestamp = Some(fixtures::object(json!("2026-01-01T00:00:00Z")));
    registry.tenant(Change::Applied(blue));
    let status = registry.authorize(&caller(&["spiffe://x/blue"]), &id("blue")).unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::FailedPrecondition, "tenant blue is being deleted"));
    registry.tenant(Change::Gone { namespace: String::new(), name: "blue".into(), uid: String::new() });
    assert_eq!(registry.authorize(&Caller::Local, &id("blue")).unwrap_err().code(), Code::NotFound);
}

#[test]
fn whose_a_node_should_be() {
    let registry = registry();
    let verdict = |name: &str| registry.verdict(&registry.dpu(name).unwrap());
    let (concerned, changed) = show(&registry, node("dpu1", Some("a"), None, json!(null)));
    assert_eq!((concerned, changed), (vec![id("blue")], true));
    assert_eq!(verdict("dpu1"), Ownership::Of(id("blue")));
    let taints = json!([{"key": keys::TENANT, "value": "blue", "effect": "NoSchedule"}, {"key": "x", "effect": "NoExecute"}]);
    show(&registry, node("dpu1", Some("a"), Some("blue"), taints.clone()));
    assert_eq!(registry.dpu("dpu1").unwrap().marks, Marks::of(Some(&id("blue")), true));
    assert_eq!(show(&registry, node("dpu1", Some("a"), Some("blue"), taints)), (vec![id("blue")], false));
    // A second claim: who has it keeps it, and a new one goes to nobody.
    let touched = registry.tenant(tenant("red", json!({"hosts": ["a", "b"]})));
    assert_eq!(touched.nodes, ["dpu1"]);
    assert_eq!(touched.tenants, BTreeSet::from([id("blue"), id("red")]));
    let again = registry.tenant(tenant("red", json!({"hosts": ["a", "b"]})));
    assert_eq!(again, Touched::default(), "only its status has changed");
    show(&registry, node("dpu2", Some("b"), None, json!(null)));
    assert_eq!(verdict("dpu1"), Ownership::Of(id("blue")));
    assert_eq!(verdict("dpu2"), Ownership::Nobody);
    assert_eq!(registry.rivals("b", &id("blue")), [id("red")]);
    assert_eq!(registry.tenant(tenant("blue", json!({"hosts": ["b"]}))).nodes.len(), 2);
    assert_eq!(verdict("dpu1"), Ownership::Of(id("red")));
    // A tenant that can't be read keeps what it has, whoever else wants it.
    registry.tenant(tenant("blue", json!({"hosts": ["NO"]})));
    assert_eq!(verdict("dpu1"), Ownership::Foreign);
    // No DPU, and nothing of ours on it.
    assert_eq!(show(&registry, node("other", None, None, json!(null))), (vec![], false));
    assert!(registry.dpu("other").is_none());
    show(&registry, node("byhand", None, Some("unknown"), json!(null)));
    assert_eq!(verdict("byhand"), Ownership::Foreign);
}

#[test]
fn a_full_quota_is_reported() {
    let registry = registry();
    let quota = |used: &str| -> Change<ResourceQuota> {
        let count = "count/workloadrules.workload.universe.nvidia.com";
        let object = json!({"metadata": {"name": "q", "namespace": "n"},
            "status": {"hard": {"pods": "5", count: "2"}, "used": {"pods": used, count: "1"}}});
        Change::Applied(fixtures::object(object))
    };
    assert_eq!(registry.quota(quota("4")), ("n".to_owned(), false));
    assert_eq!(registry.quota(quota("5")), ("n".to_owned(), true));
    assert_eq!(registry.full("n"), ["spec.limits.companions: 5 of 5"]);
    // A tenant that is to have none has lost nothing.
    let none = json!({"metadata": {"name": "q", "namespace": "n"},
        "status": {"hard": {"pods": "0"}, "used": {"pods": "0"}}});
    registry.quota(Change::Applied(fixtures::object(none)));
    assert!(registry.full("n").is_empty());
}

#[test]
fn counts_of_objects() {
    for (quantity, number) in [
        ("0", 0),
        ("1500", 1500),
        ("10k", 10_000),
        ("2M", 2_000_000),
        ("1G", 1_000_000_000),
        ("1Ki", 1024),
        ("k", 0),
    ] {
        assert_eq!(count(quantity), Some(number), "{quantity}");
    }
    for none in ["", "x", "1.5", "-1", "99999999999999999G"] {
        assert_eq!(count(none), None, "{none}");
    }
}

/// As many tenants, each asked for by its own certificate and by the DPU in its host.
#[cfg(debug_assertions)]
#[test]
fn a_tenant_is_found_by_identity_and_by_host_without_a_look_at_the_others() {
    let names = |i: usize| (format!("t{i}"), format!("spiffe://x/t{i}"), format!("h{i}"));
    outrigger_core::steps::assert_nearly_linear(
        |size| {
            let registry = registry();
            for i in 0..size {
                let (name, identity, host) = names(i);
                registry.tenant(tenant(&name, json!({"identities": [identity], "hosts": [host]})));
                show(&registry, node(&format!("n{i}"), Some(&host), Some(&name), json!([])));
            }
            (registry, size)
        },
        |(registry, size)| {
            for i in 0..*size {
                let (name, identity, host) = names(i);
                registry.authorize(&caller(&[&identity]), &id(&name)).unwrap();
                assert!(registry.has_dpu(&id(&name), &host));
                let dpu = registry.dpu(&format!("n{i}")).unwrap();
                assert_eq!(registry.verdict(&dpu), Ownership::Of(id(&name)));
            }
        },
    );
}

/// All tenants name the same identity and the same host, and one more comes.
#[cfg(debug_assertions)]
#[test]
fn one_change_takes_steps_for_each_tenant_that_shares_what_it_names_and_each_node() {
    let shared = || json!({"identities": ["spiffe://x/shared"], "hosts": ["shared"]});
    outrigger_core::steps::assert_nearly_linear(
        |size| {
            let registry = registry();
            for i in 0..size {
                registry.tenant(tenant(&format!("t{i}"), shared()));
                show(&registry, node(&format!("n{i}"), Some("shared"), None, json!([])));
            }
            (registry, size)
        },
        |(registry, size)| {
            let touched = registry.tenant(tenant("new", shared()));
            assert_eq!((touched.nodes.len(), touched.tenants.len()), (*size, *size + 1));
            assert_eq!(registry.rivals("shared", &id("new")).len(), *size);
            assert_eq!(registry.shared_identities(&id("new")).len(), *size);
            assert!(registry.authorize(&caller(&["spiffe://x/shared"]), &id("new")).is_err());
            let dpu = registry.dpu("n0").unwrap();
            assert_eq!(registry.verdict(&dpu), Ownership::Nobody);
            assert_eq!(show(registry, node("n0", Some("other"), None, json!([]))).0.len(), *size + 1);
        },
    );
}

/// As many tenants, each with a host of its own and a DPU in it, one after the other with a new identity.
#[cfg(debug_assertions)]
#[test]
fn a_change_of_a_tenant_takes_steps_for_its_own_nodes_alone() {
    let spec = |i: usize, identity: &str| json!({"identities": [format!("{identity}{i}")], "hosts": [format!("h{i}")]});
    outrigger_core::steps::assert_nearly_linear(
        |size| {
            let registry = registry();
            for i in 0..size {
                registry.tenant(tenant(&format!("t{i}"), spec(i, "old")));
                show(
                    &registry,
                    node(&format!("n{i}"), Some(&format!("h{i}")), Some(&format!("t{i}")), json!([])),
                );
            }
            (registry, size)
        },
        |(registry, size)| {
            for i in 0..*size {
                let (name, host, own) = (format!("t{i}"), format!("h{i}"), format!("n{i}"));
                assert_eq!(registry.tenant(tenant(&name, spec(i, "new"))).nodes, std::slice::from_ref(&own));
                let found =
                    [registry.dpus_of(&id(&name)), registry.dpus_in(&host)].map(|all| all[0].0.clone());
                assert_eq!(found, [own.clone(), own]);
            }
        },
    );
}

#[test]
fn a_node_is_found_by_the_tenant_and_the_host_that_it_has_now() {
    let registry = registry();
    let found = || (registry.dpus_of(&id("blue")).len(), registry.dpus_in("a").len());
    for (host, owner, counts) in [
        (Some("a"), None, (0, 1)),
        (Some("a"), Some("blue"), (1, 1)),
        (Some("b"), Some("blue"), (1, 0)),
        (None, Some("red"), (0, 0)),
        (Some("a"), Some("blue"), (1, 1)),
    ] {
        show(&registry, node("n", host, owner, json!([])));
        assert_eq!(found(), counts, "{host:?} {owner:?}");
    }
    registry.node("n", None);
    assert_eq!(found(), (0, 0));
}
