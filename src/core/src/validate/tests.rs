mod certificates;
mod devices;

use serde_json::json;

use super::*;
use crate::ids::TenantId;
use crate::keys as k;
use crate::mutate;
use crate::tenant::PodSecurity;

fn policy() -> Policy {
    let mut policy = Policy::new(TenantId::new("blue").unwrap());
    policy.service_accounts.insert("telemetry".into());
    policy.priority_classes.insert("companion".into());
    policy.runtime_classes.insert("gvisor".into());
    policy.device_classes.insert("regex".into());
    policy
}

fn check(policy: &Policy, manager: bool, pod: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let claims =
        BTreeMap::from([("theirs".to_owned(), "w2".to_owned()), ("ours".to_owned(), "w1".to_owned())]);
    let pod_claims = BTreeMap::from([("made".to_owned(), "web".to_owned())]);
    let classes = |names: &[&str]| names.iter().map(ToString::to_string).collect();
    let device_resources = BTreeMap::from([
        ("example.com/gpu".to_owned(), classes(&["gpu"])),
        ("example.com/regex".to_owned(), classes(&["regex"])),
        ("example.com/either".to_owned(), classes(&["gpu", "regex"])),
    ]);
    let facts = Facts {
        policy,
        namespace: "tenant-blue",
        manager,
        rule: None,
        schedulers: &["default-scheduler".to_owned()],
        default_priority_class: Some("usual"),
        claims: &claims,
        pod_claims: &pod_claims,
        device_resources: &device_resources,
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
    let facts = mutate::Facts {
        tenant: Some(&tenant),
        rule: None,
        offloading: None,
        machine: None,
        host_label: k::DPU_HOST,
    };
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

const TERMS: &str =
    "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";

/// Ways out: where, what, and the path and words of the answer. Each is tried at creation and by an update.
fn escapes() -> Vec<(String, Value, &'static str, &'static str)> {
    let at = |pointer: &str, value: Value, path, words| (pointer.to_owned(), value, path, words);
    let node =
        json!({"matchExpressions": [{"key": k::NODE_TENANT, "operator": "In", "values": ["blue", "red"]}]});
    let hostname = json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["dpu"]}]});
    vec![
        at(
            "/spec/affinity",
            Value::Null,
            "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms",
            "is empty",
        ),
        at(
            TERMS,
            json!([]),
            "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms",
            "is empty",
        ),
        at(
            &format!("{TERMS}/9"),
            node,
            "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[1]",
            "\"red\"",
        ),
        at(
            &format!("{TERMS}/9"),
            hostname,
            "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[1]",
            "each must also require",
        ),
        at("/spec/tolerations/9", json!({"operator": "Exists"}), "spec.tolerations[2]", "has no key"),
        at(
            "/spec/tolerations/9",
            json!({"key": "", "operator": "Exists", "effect": "NoExecute"}),
            "spec.tolerations[2]",
            "has no key",
        ),
        at(
            "/spec/tolerations/9",
            json!({"key": k::TENANT, "operator": "Exists"}),
            "spec.tolerations[2]",
            "Exists",
        ),
        at(
            "/spec/tolerations/9",
            json!({"key": k::TENANT, "value": "red"}),
            "spec.tolerations[2]",
            "\"red\"",
        ),
        at(
            "/spec/tolerations/9",
            json!({"key": k::HANDOVER, "operator": "Exists"}),
            "spec.tolerations[2]",
            k::HANDOVER,
        ),
        at("/spec/terminationGracePeriodSeconds", json!(0), "spec.terminationGracePeriodSeconds", "is 0"),
        at("/spec/schedulerName", json!("mine"), "spec.schedulerName", "\"mine\""),
        at("/spec/hostNetwork", json!(true), "spec.hostNetwork", "is true"),
        at("/spec/hostPID", json!(true), "spec.hostPID", "is true"),
        at("/spec/hostIPC", json!(true), "spec.hostIPC", "is true"),
        at("/spec/hostUsers", json!(true), "spec.hostUsers", "is true"),
        at(
            "/spec/volumes/9",
            json!({"name": "h", "hostPath": {"path": "/etc"}}),
            "spec.volumes[2].hostPath",
            "\"/etc\"",
        ),
        at(
            "/spec/containers/0/ports/0",
            json!({"containerPort": 1, "hostPort": 53}),
            "spec.containers[0].ports[0].hostPort",
            "\"53\"",
        ),
        at(
            "/spec/containers/0/securityContext/privileged",
            json!(true),
            "spec.containers[0].securityContext.privileged",
            "is true",
        ),
        at(
            "/spec/initContainers",
            json!([{"securityContext": {"privileged": true}}]),
            "spec.initContainers[0].securityContext.privileged",
            "is true",
        ),
        at(
            "/spec/ephemeralContainers",
            json!([{"securityContext": {"privileged": true}}]),
            "spec.ephemeralContainers[0].securityContext.privileged",
            "is true",
        ),
        at(
            "/spec/containers/0/securityContext/capabilities/add/9",
            json!("SYS_ADMIN"),
            "spec.containers[0].securityContext.capabilities.add[1]",
            "SYS_ADMIN",
        ),
        at(
            "/spec/containers/0/securityContext/capabilities/add/9",
            json!("ALL"),
            "spec.containers[0].securityContext.capabilities.add[1]",
            "ALL",
        ),
        at(
            "/spec/containers/0/securityContext/procMount",
            json!("Unmasked"),
            "spec.containers[0].securityContext.procMount",
            "Unmasked",
        ),
        at(
            "/spec/containers/0/securityContext/seccompProfile",
            json!({"type": "Unconfined"}),
            "spec.containers[0].securityContext.seccompProfile.type",
            "Unconfined",
        ),
        at(
            "/spec/securityContext/seccompProfile/type",
            json!("Unconfined"),
            "spec.securityContext.seccompProfile.type",
            "Unconfined",
        ),
        at(
            "/spec/securityContext/appArmorProfile",
            json!({"type": "Unconfined"}),
            "spec.securityContext.appArmorProfile.type",
            "Unconfined",
        ),
        at(
            "/spec/securityContext/seLinuxOptions/type",
            json!("spc_t"),
            "spec.securityContext.seLinuxOptions.type",
            "spc_t",
        ),
        at(
            "/spec/securityContext/seLinuxOptions/user",
            json!("root"),
            "spec.securityContext.seLinuxOptions.user",
            "root",
        ),
        at(
            "/spec/securityContext/sysctls/9",
            json!({"name": "kernel.msgmax", "value": "1"}),
            "spec.securityContext.sysctls[1].name",
            "kernel.msgmax",
        ),
        at(
            "/spec/securityContext/windowsOptions",
            json!({"hostProcess": true}),
            "spec.securityContext.windowsOptions.hostProcess",
            "true",
        ),
        at(
            "/spec/containers/0/livenessProbe/httpGet/host",
            json!("169.254.169.254"),
            "spec.containers[0].livenessProbe.httpGet.host",
            "169.254",
        ),
        at(
            "/spec/containers/0/lifecycle",
            json!({"preStop": {"tcpSocket": {"host": "h"}}}),
            "spec.containers[0].lifecycle.preStop.tcpSocket.host",
            "\"h\"",
        ),
        at(
            "/metadata/annotations/container.apparmor.security.beta.kubernetes.io~1c",
            json!("unconfined"),
            "metadata.annotations[container.apparmor.security.beta.kubernetes.io/c]",
            "unconfined",
        ),
        at("/spec/serviceAccountName", json!("admin"), "spec.serviceAccountName", "\"admin\""),
        at("/spec/serviceAccount", json!("admin"), "spec.serviceAccount", "\"admin\""),
        at(
            "/spec/volumes/1/projected/sources/0/serviceAccountToken/audience",
            json!("vault"),
            "spec.volumes[1].projected.sources[0].serviceAccountToken.audience",
            "vault",
        ),
        at(
            "/spec/priorityClassName",
            json!("system-node-critical"),
            "spec.priorityClassName",
            "system-node-critical",
        ),
        at("/spec/runtimeClassName", json!("runc"), "spec.runtimeClassName", "runc"),
        at(
            "/spec/affinity/podAffinity",
            json!({"requiredDuringSchedulingIgnoredDuringExecution": [{"namespaceSelector": {}}]}),
            "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].namespaceSelector",
            "reaches other",
        ),
        at(
            "/spec/affinity/podAffinity",
            json!({"preferredDuringSchedulingIgnoredDuringExecution": [{"podAffinityTerm": {"namespaces": ["tenant-red"]}}]}),
            "spec.affinity.podAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].podAffinityTerm.namespaces[0]",
            "tenant-red",
        ),
        at(
            "/spec/affinity/podAntiAffinity/requiredDuringSchedulingIgnoredDuringExecution/0/namespaces/9",
            json!("kube-system"),
            "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].namespaces[1]",
            "kube-system",
        ),
        at(
            "/spec/resourceClaims/9",
            json!({"name": "e", "resourceClaimName": "theirs"}),
            "spec.resourceClaims[1].resourceClaimName",
            "w2",
        ),
        at(
            "/metadata/finalizers/9",
            json!("example.com/never"),
            "metadata.finalizers[1]",
            "example.com/never",
        ),
        at(
            "/metadata/ownerReferences/9",
            json!({"apiVersion": "workload.universe.nvidia.com/v1alpha1", "kind": "WorkloadRule", "name": "r"}),
            "metadata.ownerReferences[1]",
            "\"r\"",
        ),
        at(
            "/metadata/ownerReferences/9",
            json!({"apiVersion": "outrigger.dev/v1", "kind": "Tenant", "name": "t"}),
            "metadata.ownerReferences[1]",
            "Tenant",
        ),
        at(
            "/metadata/labels/outrigger.dev~1tenant",
            json!("red"),
            "metadata.labels[outrigger.dev/tenant]",
            "is added as \"red\"",
        ),
        at(
            "/metadata/annotations/x.outrigger.dev~1y",
            json!("z"),
            "metadata.annotations[x.outrigger.dev/y]",
            "is added",
        ),
        at(
            "/spec/schedulingGates",
            json!([{"name": k::ADMISSION_GATE}]),
            "spec.schedulingGates",
            "changes from []",
        ),
        at("/spec/nodeName", json!("dpu-of-red"), "spec.nodeName", "dpu-of-red"),
        at("/spec", json!([]), "spec", "must be an object"),
    ]
}

#[test]
fn what_is_allowed_is_allowed() {
    let good = good();
    assert_eq!(check(&policy(), false, &good, None), []);
    assert_eq!(check(&policy(), false, &good, Some(&good)), []);
    for (pointer, value) in [
        ("/spec/serviceAccountName", json!("telemetry")),
        ("/spec/priorityClassName", json!("companion")),
        ("/spec/runtimeClassName", json!("gvisor")),
    ] {
        assert_eq!(check(&policy(), false, &with(&good, pointer, value), None), [], "{pointer}");
    }
}

#[test]
fn every_way_out_is_refused_with_its_path_and_value() {
    let good = good();
    for (pointer, value, path, words) in escapes() {
        let bad = with(&good, &pointer, value);
        for old in [None, Some(&good)] {
            let faults = check(&policy(), false, &bad, old);
            let [fault] = faults.as_slice() else { panic!("{pointer}: {faults:?}") };
            assert_eq!(fault.path, path, "{fault}");
            assert!(fault.message.contains(words), "{fault}");
        }
    }
}

#[test]
fn an_update_is_held_to_what_it_changes() {
    let good = good();
    for (pointer, value, path, _) in escapes() {
        if pointer == "/spec" {
            continue;
        }
        let bad = with(&good, &pointer, value);
        // It was so before: its labels can still be changed, and it can be mended but for what only Outrigger sets.
        let labeled = with(&bad, "/metadata/labels/app", json!("y"));
        assert_eq!(check(&policy(), false, &labeled, Some(&bad)), [], "{path}");
        if !path.contains("outrigger.dev") && !path.contains("schedulingGates") && path != "spec.nodeName" {
            assert_eq!(check(&policy(), false, &good, Some(&bad)), [], "{path}");
        }
        // And it excuses nothing new, not even another of the same.
        let worse = with(&bad, "/spec/tolerations/9", json!({"operator": "Exists", "effect": "NoSchedule"}));
        assert!(!check(&policy(), false, &worse, Some(&bad)).is_empty(), "{path}");
    }
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
fn a_template_is_judged_as_the_pod_that_comes_of_it() {
    let policy = policy();
    let claims = BTreeMap::new();
    let facts = Facts {
        policy: &policy,
        namespace: "tenant-blue",
        manager: false,
        rule: None,
        schedulers: &["default-scheduler".to_owned()],
        default_priority_class: None,
        claims: &claims,
        pod_claims: &claims,
        device_resources: &BTreeMap::new(),
    };
    let plain = json!({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "c"}]}});
    assert_eq!(template(&plain, "spec.template", &facts), []);
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
fn many_faults_are_told_in_bounded_space() {
    let volumes: Vec<Value> =
        (0..100).map(|i| json!({"name": i.to_string(), "hostPath": {"path": "/"}})).collect();
    let faults = check(&policy(), false, &with(&good(), "/spec/volumes", volumes.into()), None);
    assert_eq!(faults.len(), 100);
    let message = message(&faults);
    assert!(message.contains("spec.volumes[15].hostPath") && message.ends_with("and 84 more"), "{message}");
}

proptest::proptest! {
    /// Whatever a Pod is made of, what mutation makes of it passes the check of its placement, and the check itself never
    /// panics.
    #[test]
    fn what_mutation_places_validation_accepts(pod in crate::mutate::tests::any_pod()) {
        let tenant = TenantId::new("blue").unwrap();
        let facts = mutate::Facts { tenant: Some(&tenant), rule: None, offloading: None, machine: None, host_label: k::DPU_HOST };
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
