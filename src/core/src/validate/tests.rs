mod certificates;
mod devices;
mod levels;
mod moved;

use outrigger_cases::{Escape, Escapes, Layer, changed};
use serde_json::json;

use super::*;
use crate::ids::TenantId;
use crate::keys as k;
use crate::mutate;
use crate::tenant::PodSecurity;

fn policy() -> Policy {
    let mut policy = Policy::new(TenantId::new("blue").unwrap());
    policy.service_accounts.insert("escape-allowed".into());
    policy.priority_classes.insert("escape-allowed".into());
    policy.runtime_classes.insert("escape-allowed".into());
    policy.device_classes.extend(["regex".into(), "escape-allowed".into()]);
    policy
}

fn check(policy: &Policy, manager: bool, pod: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let claims = [("theirs", "w2"), ("ours", "w1"), ("taken", "somebody")];
    let claims = claims.map(|(claim, workload)| (claim.to_owned(), workload.to_owned())).into();
    let pod_claims = [
        ("made", "web"),
        ("cut", "a-rule-with-a-long-name-573e560607f4a185"),
        ("dns-573e560607f4a185-device-x7k2m", "dns-573e560607f4a185"),
    ];
    let pod_claims = pod_claims.map(|(claim, pod)| (claim.to_owned(), pod.to_owned())).into();
    let classes = |names: &[&str]| names.iter().map(ToString::to_string).collect();
    let device_resources = BTreeMap::from([
        ("example.com/gpu".to_owned(), classes(&["gpu"])),
        ("example.com/regex".to_owned(), classes(&["regex"])),
        ("example.com/either".to_owned(), classes(&["gpu", "regex"])),
        ("escape.example.com/other".to_owned(), classes(&["escape-other"])),
        ("escape.example.com/allowed".to_owned(), classes(&["escape-allowed"])),
    ]);
    let schedulers = ["default-scheduler".to_owned()];
    let facts = ValidationContext {
        manager,
        default_priority_class: Some("usual"),
        claims: &claims,
        pod_claims: &pod_claims,
        device_resources: &device_resources,
        ..ValidationContext::new(policy, "tenant-blue", &schedulers)
    };
    match old {
        None => create(pod, &facts),
        Some(old) => update(pod, old, &facts),
    }
}

/// A Pod after mutation, with a bit of everything that is allowed.
fn good() -> Value {
    let mut pod = json!({
    "metadata": {"labels": {"app": "x"}, "annotations": {"a/b": "c"},
        "finalizers": ["batch.kubernetes.io/job-tracking"],
        "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u"}]},
    "spec": {
        "serviceAccountName": "default", "serviceAccount": "default", "schedulerName": "default-scheduler",
        "priorityClassName": "usual", "hostNetwork": false, "hostUsers": false,
        "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}],
        "affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "a", "operator": "Exists"}]}, {}]}},
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": "h", "namespaces": ["tenant-blue"], "namespaceSelector": null}]}},
        "securityContext": {"sysctls": [{"name": "net.ipv4.tcp_rmem", "value": "1"}],
            "seccompProfile": {"type": "RuntimeDefault"}, "seLinuxOptions": {"type": "container_t"}},
        "volumes": [{"name": "v", "emptyDir": {}}, {"name": "t", "projected": {"sources": [
            {"serviceAccountToken": {"path": "token"}}, {"configMap": {"name": "kube-root-ca.crt"}}]}}],
        "resourceClaims": [{"name": "d", "resourceClaimName": "shared"}],
        "containers": [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 0}],
            "livenessProbe": {"httpGet": {"port": 80}},
            "securityContext": {"privileged": false, "procMount": "Default",
                "capabilities": {"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]}}}],
    }});
    let tenant = TenantId::new("blue").unwrap();
    let facts = mutate::PodContext { tenant: Some(&tenant), ..mutate::PodContext::default() };
    mutate::mutate(&mut pod, &facts).unwrap();
    pod
}

/// The Pod with the value at a pointer set; the parents must exist, the last list may be one longer.
fn with(pod: &Value, pointer: &str, value: Value) -> Value {
    let mut pod = pod.clone();
    let (parent, last) = pointer.rsplit_once('/').unwrap();
    match pod.pointer_mut(parent).unwrap_or_else(|| panic!("no {parent}")) {
        Value::Array(list) => match last.parse::<usize>() {
            Ok(i) if i < list.len() => list[i] = value,
            _ => list.push(value),
        },
        parent => parent[last.replace("~1", "/")] = value,
    }
    pod
}

/// The rows of `tests/cases/escapes.yaml`: what must be refused, and what differs in nothing but the reason.
fn escapes() -> Vec<Escape> {
    let names = [
        ("$TENANT", "blue"),
        ("$OTHER", "red"),
        ("$OWN", "blue-dpu"),
        ("$THEIR", "red-dpu"),
        ("$NAMESPACE", "tenant-blue"),
        ("$RULE", "u"),
        ("$LABEL", k::NODE_TENANT),
    ];
    Escapes::read(Layer::Unit, &names).pods
}

#[test]
fn what_is_allowed_is_allowed() {
    let good = good();
    assert_eq!(check(&policy(), false, &good, None), []);
    assert_eq!(check(&policy(), false, &good, Some(&good)), []);
    for Escape { name, allowed, .. } in escapes() {
        let control = changed(&good, &allowed);
        assert_eq!(check(&policy(), false, &control, None), [], "control case of {name}");
        assert_eq!(check(&policy(), false, &control, Some(&good)), [], "control case of {name}");
    }
}

/// So nothing that sees a Pod without the labels of its namespace, such as a match condition of a webhook, can tell for any of them
/// that no check has anything to say.
#[test]
fn what_one_tenant_may_create_no_other_may() {
    let other = Policy { tenant: TenantId::new("red").unwrap(), ..policy() };
    for Escape { name, allowed, .. } in escapes() {
        let control = changed(&good(), &allowed);
        assert_eq!(check(&policy(), false, &control, None), [], "{name}");
        assert_ne!(check(&other, false, &control, None), [], "{name}");
    }
}

#[test]
fn every_way_out_is_refused_with_its_path_and_value() {
    let good = good();
    for Escape { name, refused, webhook, .. } in escapes() {
        let bad = changed(&good, &refused);
        for old in [None, Some(&good)] {
            let errors = check(&policy(), false, &bad, old);
            let [error] = errors.as_slice() else { panic!("{name}: {errors:?}") };
            // An update knows what the Node was before.
            let expected = if old.is_some() && error.path == "spec.nodeName" {
                "spec.nodeName: changes from"
            } else {
                &webhook
            };
            assert!(error.to_string().starts_with(expected), "{name}: {error}");
        }
    }
}

#[test]
fn an_update_is_held_to_what_it_changes() {
    let good = good();
    for Escape { name, refused, webhook: path, .. } in escapes() {
        let bad = changed(&good, &refused);
        if !bad["spec"].is_object() {
            continue;
        }
        // It was so before: its labels can still be changed, and it can be mended but for what only Outrigger sets.
        let labeled = changed(&bad, &json!({"metadata": {"labels": {"app": "y"}}}));
        assert_eq!(check(&policy(), false, &labeled, Some(&bad)), [], "{name}");
        let ours = path.starts_with("metadata.") && path.contains("outrigger.dev");
        if !ours && !path.starts_with("spec.schedulingGates") && !path.starts_with("spec.nodeName") {
            assert_eq!(check(&policy(), false, &good, Some(&bad)), [], "{name}");
        }
        // And it excuses nothing new, not even another of the same.
        let worse = with(&bad, "/spec/tolerations/9", json!({"operator": "Exists", "effect": "NoSchedule"}));
        assert!(!check(&policy(), false, &worse, Some(&bad)).is_empty(), "{name}");
    }
}

#[test]
fn a_fault_that_was_there_once_excuses_one_that_reads_the_same() {
    // Messages cut both names at the same place.
    let resource = |last: &str| format!("{}{}{last}", k::DEVICE_CLASS_RESOURCE, "a".repeat(100));
    let asking = |names: &[&str]| {
        let limits: serde_json::Map<_, _> = names.iter().map(|name| (resource(name), json!("1"))).collect();
        with(&good(), "/spec/containers/0/resources", json!({"limits": limits}))
    };
    let (one, two) = (asking(&["1"]), asking(&["1", "2"]));
    let faults = check(&policy(), false, &two, None);
    assert!(faults.len() == 2 && faults[0] == faults[1], "{faults:?}");
    assert_eq!(check(&policy(), false, &two, Some(&one)), faults[..1]);
    assert_eq!(check(&policy(), false, &two, Some(&two)), []);
}

#[test]
fn who_may_set_our_keys() {
    let good = good();
    for (pointer, value) in [
        ("/metadata/labels/outrigger.dev~1rule", json!("r")),
        ("/metadata/annotations/outrigger.dev~1host", json!("h")),
        ("/spec/schedulingGates", json!([{"name": k::ADMISSION_GATE}])),
    ] {
        let marked = with(&good, pointer, value);
        assert_eq!(check(&policy(), true, &marked, None), [], "{pointer}");
        for (new, old) in [(&marked, Some(&good)), (&good, Some(&marked)), (&marked, None)] {
            assert_eq!(check(&policy(), false, new, old).len(), 1, "{pointer}");
            assert_eq!(check(&policy(), true, new, old), [], "{pointer}");
        }
    }
    // The garbage collector takes owners away that are gone.
    let owner =
        json!({"apiVersion": "workload.universe.nvidia.com/v1alpha1", "kind": "WorkloadRule", "name": "r"});
    let owned = with(&good, "/metadata/ownerReferences/9", owner);
    assert_eq!(check(&policy(), false, &good, Some(&owned)), []);
    // A manager isn't above the isolation.
    let bad = with(&good, "/spec/hostNetwork", json!(true));
    assert_eq!(check(&policy(), true, &bad, None).len(), 1);
}

#[test]
fn a_template_is_validated_as_the_pod_that_is_made_from_it() {
    let policy = policy();
    let schedulers = ["default-scheduler".to_owned()];
    let facts = ValidationContext::new(&policy, "tenant-blue", &schedulers);
    let plain = json!({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "c"}]}});
    assert_eq!(template(&plain, "spec.template", &facts), []);
    // The manager makes it, so it may have what only the manager sets.
    let owner =
        json!({"apiVersion": "workload.universe.nvidia.com/v1alpha1", "kind": "WorkloadRule", "name": "r"});
    let marked =
        changed(&plain, &json!({"metadata": {"labels": {k::RULE: "r"}, "ownerReferences": [owner]}}));
    assert_eq!(template(&marked, "spec.template", &facts), []);
    let bad = json!({"spec": {"hostNetwork": true, "tolerations": [{"operator": "Exists"}], "serviceAccountName": "admin"}});
    let paths: Vec<String> = template(&bad, "spec.template", &facts).into_iter().map(|f| f.path).collect();
    assert_eq!(
        paths,
        ["tolerations[0]", "hostNetwork", "serviceAccountName"].map(|p| format!("spec.template.spec.{p}"))
    );
    let odd = json!({"spec": {"affinity": 1}});
    assert_eq!(template(&odd, "spec.template", &facts)[0].path, "spec.template.spec.affinity");
}

#[test]
fn a_claim_serves_its_own_workload() {
    let claim = json!({"name": "e", "resourceClaimName": "ours"});
    let pod = with(
        &with(&good(), "/spec/resourceClaims/9", claim),
        "/metadata/labels/outrigger.dev~1workload",
        json!("w1"),
    );
    assert_eq!(check(&policy(), true, &pod, None), []);
}

#[test]
fn a_privileged_tenant_is_isolated_all_the_same() {
    let policy = Policy { pod_security: PodSecurity::Privileged, ..policy() };
    let good = good();
    let privileged = with(&good, "/spec/containers/0/securityContext/privileged", json!(true));
    assert_eq!(check(&policy, false, &with(&privileged, "/spec/hostNetwork", json!(true)), None), []);
    assert_eq!(check(&policy, false, &with(&good, "/spec/nodeName", json!("n")), None).len(), 1);
    assert_eq!(check(&policy, false, &with(&good, "/spec/affinity", Value::Null), None).len(), 1);
}

#[test]
fn many_faults_are_reported_in_bounded_space() {
    let volumes: Vec<Value> =
        (0..100).map(|i| json!({"name": i.to_string(), "hostPath": {"path": "/"}})).collect();
    let faults = check(&policy(), false, &with(&good(), "/spec/volumes", volumes.into()), None);
    assert_eq!(faults.len(), 100);
    let message = message(&faults);
    assert!(message.contains("spec.volumes[15].hostPath") && message.ends_with("and 84 more"), "{message}");
    let all = super::message(&faults[..MAX_FAULTS]);
    assert!(all.contains("spec.volumes[15].hostPath") && !all.contains(" more"), "{all}");
}

proptest::proptest! {
    /// Whatever a Pod is made of, what mutation makes of it passes the check of its placement, and the check itself never
    /// panics.
    #[test]
    fn what_mutation_places_validation_accepts(pod in crate::mutate::tests::any_pod()) {
        let tenant = TenantId::new("blue").unwrap();
        let facts = mutate::PodContext { tenant: Some(&tenant), ..mutate::PodContext::default() };
        check(&policy(), false, &pod, None);
        check(&policy(), false, &pod, Some(&good()));
        check(&policy(), false, &good(), Some(&pod));
        let mut placed = pod;
        if mutate::mutate(&mut placed, &facts).is_ok() {
            let faults = check(&policy(), false, &placed, None);
            proptest::prop_assert!(!faults.iter().any(|f| f.path.contains("nodeSelectorTerms")), "{:?}", faults);
        }
    }
}
