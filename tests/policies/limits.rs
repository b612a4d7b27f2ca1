//! The twins for how much a Pod may be made of, and for what the webhook alone would otherwise keep.

use super::*;

fn finalizers(count: usize) -> Value {
    let all: Vec<String> = (0..count).map(|i| format!("example.com/{i}")).collect();
    json!({"metadata": {"finalizers": all}})
}

/// The shortest finalizer that the API server takes, many times.
fn orphaned(count: usize) -> Value {
    json!({"metadata": {"finalizers": vec!["orphan"; count]}})
}

fn tolerations(count: usize) -> Value {
    let all: Vec<Value> = (0..count).map(|i| json!({"key": format!("example.com/{i}")})).collect();
    json!({"spec": {"tolerations": all}})
}

fn env(bytes: usize) -> Value {
    container(json!({"env": [{"name": "E", "value": "x".repeat(bytes)}]}))
}

fn projected(source: Value) -> Value {
    volume(json!({"projected": {"sources": [{"downwardAPI": {}}, source]}}))
}

/// Pods from before the policies that are larger than Pods may be now: of long text, and of very many finalizers.
pub(crate) fn oversized() -> [Value; 3] {
    let metadata = |metadata| json!({"metadata": metadata});
    [
        detailed("detailed"),
        merged(named("huge", env(700_000)), metadata(json!({"labels": {"app": "c"}}))),
        merged(named("held", orphaned(150_000)), json!({"spec": {"nodeName": "blue-dpu"}})),
    ]
}

/// A Pod of many small things. Whoever applies it is written down with each of them.
fn detailed(name: &str) -> Value {
    let env: Vec<Value> = (0..5_000).map(|i| json!({"name": format!("E{i}"), "value": "v"})).collect();
    named(name, container(json!({"env": env})))
}

/// How large, and how long.
pub(crate) fn limits() -> Vec<Twins> {
    let held = |who: Who, path: &str, change| who.patch(format!("{BLUE}/held{path}"), change);
    let huge = |change| Admin.patch(format!("{BLUE}/huge"), change);
    let apply = |pod| Admin.ask("APPLY", format!("{BLUE}/detailed"), pod);
    let unbound = |change| User.patch(format!("{BLUE}/unbound"), change);
    let message = || json!({"status": {"message": "m"}});
    let mut all = pods! {
        "long text": (env(500_000)) | (env(600_000)) => "the Pod has more than 576 KiB (a companion 864 KiB); make it smaller";
        // Characters are not bytes.
        "text in another script": (container(json!({"env": [{"name": "E", "value": "é".repeat(250_000)}]})))
            | (container(json!({"env": [{"name": "E", "value": "é".repeat(300_000)}]})))
            => "the Pod has more than 576 KiB";
        "many labels": (json!({"metadata": {"labels": many(1_000)}})) | (json!({"metadata": {"labels": many(8_000)}}))
            => "the Pod has more than 576 KiB";
        "many finalizers": (finalizers(8)) | (finalizers(9))
            => "metadata.finalizers: has 9 entries; leave some out, 8 are the most";
        "many tolerations": (tolerations(120)) | (tolerations(129))
            => "spec.tolerations: has ", " entries; leave some out, 128 are the most";
        "a certificate": (projected(json!({"configMap": {"name": "example.com"}})))
            | (projected(json!({"podCertificate": {"signerName": "example.com/agents", "keyType": "ED25519",
                "credentialBundlePath": "b"}})))
            => "spec.volumes[1].projected.sources: has a podCertificate; a tenant's Pod gets no certificate of a signer";
        "Outrigger's priority": {} | {"spec": {"priorityClassName": "outrigger"}}
            => "spec.priorityClassName: is that of Outrigger itself";
    };
    let companion = |bytes| {
        let facts =
            json!({"metadata": {"labels": {keys::RULE: "r"}, "annotations": {"facts": "x".repeat(200_000)}}});
        Manager.create(BLUE, merged(pod("blue", env(bytes)), facts))
    };
    all.extend(twins! {"outrigger-pods";
        "a companion with its facts": companion(500_000), companion(700_000) => "a companion 864 KiB";
        "more finalizers": unbound(finalizers(8)), unbound(finalizers(9)) => "metadata.finalizers: has 9 entries";
        "fewer finalizers": held(Admin, "", finalizers(10)), unbound(finalizers(10))
            => "metadata.finalizers: has 10 entries";
        // Nothing of the Pod itself changes.
        "whose things are whose": apply(merged(detailed("detailed"), json!({"spec": null}))), apply(detailed("detailed"))
            => "the Pod has more than 576 KiB";
        "what is too large may shrink": huge(label("app", "d")), huge(label("app", "longer"))
            => "the Pod has more than 576 KiB";
    });
    all.extend(twins! {"outrigger-pod-status";
        "many finalizers": held(Kubelet, "/status", message()),
            held(Collector, "/status", orphaned(150_001))
            => "metadata.finalizers: gets more than 8";
    });
    let class = || json!({"spec": {"priorityClassName": "outrigger"}});
    let system = format!("{}/pods", at(SYSTEM));
    all.extend(twins! {"outrigger-manager";
        "Outrigger's priority": Operator.create(&system, pod("blue", class())), Operator.create(PLAIN, pod("blue", class()))
            => "spec.priorityClassName: is that of Outrigger itself, for Pods in its own namespace only";
        "Outrigger's priority for an administrator": Admin.create(&system, pod("blue", class())),
            Admin.create(UNIVERSE, pod("blue", class()))
            => "spec.priorityClassName: is that of Outrigger itself";
    });
    let companion = |change| Manager.create(UNIVERSE, merged(pod("blue", admin_companion()), change));
    all.extend(twins! {"outrigger-admin-pods";
        "many tolerations": companion(tolerations(120)), companion(tolerations(129))
            => "spec.tolerations: has ", " entries; leave some out, 128 are the most";
    });
    let register = |count: usize| {
        let all: Vec<Value> =
            (0..count).map(|i| json!({"key": format!("example.com/{i}"), "effect": "NoSchedule"})).collect();
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "blue-new"}});
        NewKubelet.create(NODES, merged(node, taints(json!(all))))
    };
    all.extend(twins! {"outrigger-nodes";
        "many taints": register(100), register(200) => "spec.taints: has 2", " entries; leave some out, 128 are the most";
    });
    all
}

fn many(count: usize) -> Value {
    (0..count).map(|i| (format!("example.com/{i}"), json!("x".repeat(60)))).collect()
}
