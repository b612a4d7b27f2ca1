use clap::FromArgMatches;
use outrigger_core::reason::Cause;
use serde_json::{Value, json};

use super::*;
use crate::document::Readable;

fn args(name: &str) -> SubjectArgs {
    let command = SubjectArgs::augment_args(clap::Command::new("explain"));
    SubjectArgs::from_arg_matches(&command.try_get_matches_from(["explain", name]).unwrap()).unwrap()
}

/// The report about an object among these; `null` where there is none.
fn explained(kind: Kind, name: &str, objects: &[Value]) -> Value {
    explained_without(kind, name, objects, &[])
}

/// The same for somebody who may not read these kinds.
fn explained_without(kind: Kind, name: &str, objects: &[Value], unread: &[&str]) -> Value {
    let text: String = objects.iter().map(ToString::to_string).collect();
    let state = State::of_text("f", &text).unwrap();
    let kinds = || unread.iter().map(|kind| (*kind).to_owned());
    let seen = Seen { state, notes: kinds().collect(), unread: kinds().collect() };
    let report = args(name).report(kind, &seen).unwrap();
    if let Some(report) = &report {
        let said = report.document().uncoloured();
        let good = report.wrong.is_empty();
        assert_eq!(said.contains("nothing is wrong"), good && unread.is_empty(), "{said}");
        assert_eq!(said.contains("nothing is known to be wrong"), good && !unread.is_empty(), "{said}");
    }
    serde_json::to_value(report).unwrap()
}

fn causes(report: &Value) -> Vec<&str> {
    report["wrong"].as_array().unwrap().iter().map(|wrong| wrong["cause"].as_str().unwrap()).collect()
}

fn fact<'a>(report: &'a Value, name: &str) -> &'a str {
    let mut facts = report["facts"].as_array().unwrap().iter();
    facts.find(|fact| fact["name"] == name).map_or("", |fact| fact["value"].as_str().unwrap())
}

fn condition(kind: &str, status: &str, reason: &str) -> Value {
    json!({"type": kind, "status": status, "reason": reason, "message": format!("{kind}: {reason}"),
        "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

fn tenant(id: &str, hosts: &[&str], status: Value) -> Value {
    json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": id},
        "spec": {"hosts": hosts}, "status": status})
}

fn dpu(name: &str, host: &str, owner: Option<&str>, ready: &str, spec: Value) -> Value {
    let mut labels = json!({"provisioning.dpu.nvidia.com/host": host});
    if let Some(owner) = owner {
        labels["outrigger.dev.node-restriction.kubernetes.io/tenant"] = json!(owner);
    }
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "spec": spec,
        "status": {"conditions": [condition("Ready", ready, "Kubelet")]}})
}

fn claim(status: Value) -> Value {
    json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c", "namespace": "default"},
        "spec": {"devices": {"requests": [{"name": "d", "exactly": {"deviceClassName": "x"}}]}}, "status": status})
}

#[test]
fn a_tenant_names_its_first_failure_and_the_stream_of_its_agent() {
    let served = |conditions: Value, stream: Value| {
        let status = json!({"dpus": 2, "conditions": conditions, "stream": stream});
        explained(Kind::Tenant, "blue", &[tenant("blue", &["a"], status)])
    };
    let fine = json!([condition("Accepted", "True", "Valid"), condition("Ready", "True", "Served")]);
    let connected = json!({"claim": 1, "holder": "m", "connected": true, "since": "2026-01-02T00:00:00Z"});
    let report = served(fine.clone(), connected.clone());
    assert_eq!(causes(&report), [""; 0], "{report}");
    assert_eq!(fact(&report, "connected since"), "2026-01-02T00:00:00Z");
    assert_eq!((fact(&report, "namespace"), fact(&report, "DPUs")), ("tenant-blue", "2"));

    assert_eq!(causes(&served(fine.clone(), Value::Null)), ["NoStream"]);
    let lost =
        served(fine, json!({"claim": 1, "holder": "m", "connected": false, "since": "2026-01-03T00:00:00Z"}));
    assert_eq!(
        (causes(&lost), &lost["wrong"][0]["since"]),
        (vec!["StreamLost"], &json!("2026-01-03T00:00:00Z"))
    );

    // The summary repeats the first failure.
    let moving = json!([
        condition("Ready", "False", "HandingOver"),
        condition("HostsReady", "False", "HandingOver"),
        condition("WithinLimits", "False", "LimitReached")
    ]);
    let report = served(moving, connected.clone());
    assert_eq!(causes(&report), ["HandingOver", "LimitReached"], "{report}");
    assert_eq!(report["wrong"][0]["about"], "condition HostsReady");
    assert_eq!(report["wrong"][0]["since"], "2026-01-01T00:00:00Z");
    let terminating = served(json!([condition("Ready", "False", "Terminating")]), connected.clone());
    assert_eq!(causes(&terminating), ["Terminating"]);
    // A word of a later version is kept, and its meaning is that of an unknown one.
    let later = served(json!([condition("Ready", "False", "Eclipsed")]), connected);
    assert_eq!(
        (causes(&later), &later["wrong"][0]["meaning"]),
        (vec!["Eclipsed"], &json!(Cause::Unknown.meaning()))
    );
    assert_eq!(
        causes(&explained(Kind::Tenant, "blue", &[tenant("blue", &[], Value::Null)])),
        ["NoStatus", "NoStream"]
    );
    assert_eq!(explained(Kind::Tenant, "red", &[tenant("blue", &[], Value::Null)]), Value::Null);
}

#[test]
fn a_host_says_for_each_tenant_whether_its_dpus_take_companions() {
    let of = |objects: &[Value]| explained(Kind::Host, "a", objects);
    let blue = || tenant("blue", &["a"], Value::Null);
    let ready = || dpu("a-dpu", "a", Some("blue"), "True", json!({}));
    let long = "h".repeat(64);
    let unusable = explained(Kind::Host, &long, &[tenant("blue", &[&long], Value::Null)]);
    assert_eq!(causes(&unusable), ["HostNameUnusable"], "{unusable}");
    assert_eq!(causes(&of(&[blue()])), ["NoDPU"]);
    let report = of(&[blue(), ready()]);
    assert_eq!((causes(&report), fact(&report, "for tenant blue")), (vec![], "takes companions"), "{report}");
    assert_eq!(explained(Kind::Host, "a-dpu", &[blue(), ready()]), report, "by the name of the Node");

    let failed = of(&[blue(), dpu("a-dpu", "a", Some("blue"), "Unknown", json!({}))]);
    assert_eq!(
        (causes(&failed), &failed["wrong"][0]["since"]),
        (vec!["DPUNotReady"], &json!("2026-01-01T00:00:00Z"))
    );
    let cordoned = of(&[blue(), dpu("a-dpu", "a", Some("blue"), "True", json!({"unschedulable": true}))]);
    assert_eq!(causes(&cordoned), ["DPUNotReady"]);
    assert!(cordoned["wrong"][0].get("since").is_none(), "nothing records when it was cordoned: {cordoned}");
    assert!(fact(&cordoned, "DPU a-dpu").contains("cordoned"), "{cordoned}");

    // Each tenant hears of its own DPU.
    let failed = |name: &str, owner: &str| dpu(name, "a", Some(owner), "Unknown", json!({}));
    let two = of(&[blue(), failed("a-dpu", "red"), failed("b-dpu", "blue")]);
    let messages: Vec<_> =
        two["wrong"].as_array().unwrap().iter().map(|w| (&w["about"], &w["message"])).collect();
    assert_eq!(
        messages,
        ["blue", "red"]
            .map(|id| (
                json!(format!("tenant {id}")),
                json!(format!("not ready: Kubelet Ready: Kubelet, of tenant {id}"))
            ))
            .each_ref()
            .map(|(about, message)| (about, message))
    );

    assert_eq!(causes(&of(&[dpu("a-dpu", "a", None, "True", json!({}))])), ["HostNotListed"]);
    // It was another tenant's.
    let moving = of(&[blue(), dpu("a-dpu", "a", Some("red"), "True", json!({}))]);
    assert_eq!(causes(&moving)[0], "HandingOver", "{moving}");
    let taint =
        json!({"taints": [{"key": "outrigger.dev/handover", "value": "blue", "effect": "NoSchedule"}]});
    assert_eq!(causes(&of(&[blue(), dpu("a-dpu", "a", Some("blue"), "True", taint)])), ["HandingOver"]);
    let both = of(&[blue(), tenant("red", &["a"], Value::Null), ready()]);
    assert_eq!(causes(&both), ["HostConflict"], "who has none gets none before that: {both}");
    assert_eq!(fact(&both, "in spec.hosts of"), "blue, red");
    assert_eq!(explained(Kind::Host, "b", &[blue(), ready()]), Value::Null);
}

#[test]
fn a_host_is_found_by_the_name_of_its_node_too() {
    let tenant = |id: &str, host: &str| {
        let mut tenant = tenant(id, &[host], Value::Null);
        tenant["spec"]["hostNames"] = json!([{"node": "worker", "host": host}]);
        tenant
    };
    let dpu = dpu("serial-1-dpu", "serial-1", Some("blue"), "True", json!({}));
    let report = explained(Kind::Host, "worker", &[tenant("blue", "serial-1"), dpu.clone()]);
    assert_eq!((causes(&report), fact(&report, "node of tenant blue")), (vec![], "worker"), "{report}");
    assert_eq!(explained(Kind::Host, "serial-1", &[tenant("blue", "serial-1"), dpu]), report);
    // Whose name is another host's Node's.
    let mut taken = tenant("blue", "serial-1");
    taken["spec"]["hosts"] = json!(["serial-1", "worker"]);
    let report = explained(Kind::Host, "worker", &[taken]);
    assert!(fact(&report, "node of tenant blue").starts_with("none: "), "{report}");
}

#[test]
fn a_machine_says_what_its_slots_lack_and_who_waits() {
    let machine = |status: Value| {
        json!({"apiVersion": "imperator.tenzen-y.io/v1alpha1", "kind": "Machine",
            "metadata": {"name": "m", "labels": {"imperator.tenzen-y.io/machine-group": "g"}},
            "spec": {"nodePool": [], "machineTypes": []}, "status": status})
    };
    let usage = |slots: u32| json!([{"name": "t", "usage": {"maximum": 3, "used": 1, "reserved": 1, "waiting": 1, "slots": slots}}]);
    let fine = json!({"conditions": [condition("Ready", "True", "Success")], "availableMachines": usage(3)});
    let report = explained(Kind::Machine, "m", &[machine(fine)]);
    assert_eq!((causes(&report), fact(&report, "group")), (vec![], "g"), "{report}");
    assert_eq!(fact(&report, "type t"), "3 slots, on nodes 3; 1 used, 1 reserved, 1 waiting");

    let wrong =
        json!({"conditions": [condition("Ready", "False", "Failure")], "availableMachines": usage(2)});
    let guest = |name: &str, node: Value| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "n", "labels": {
            "imperator.tenzen-y.io/machine-group": "g", "imperator.tenzen-y.io/pod-role": "guest"}},
            "spec": {"nodeName": node, "containers": []},
            "status": {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes"}]}})
    };
    let pool = json!({"apiVersion": "imperator.tenzen-y.io/v1alpha1", "kind": "MachineNodePool", "metadata": {"name": "p"},
        "spec": {"machineGroupName": "g", "nodePool": [], "machineTypeStock": []},
        "status": {"conditions": [condition("Ready", "False", "Failure")],
            "nodePool": [{"name": "n1", "condition": "Healthy"}]}});
    let mut runs = guest("runs", json!("n1"));
    runs["status"] = json!({"conditions": [condition("Ready", "True", "")]});
    let mut sick = guest("sick", json!("n1"));
    sick["status"] = json!({"conditions": [condition("Ready", "False", "ContainersNotReady")],
        "containerStatuses": [{"name": "vm", "image": "i", "imageID": "", "ready": false, "restartCount": 7,
            "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}}]});
    let mut ended = guest("ended", json!("n1"));
    ended["status"] = json!({"phase": "Succeeded"});
    let mut leaves = sick.clone();
    leaves["metadata"]["name"] = json!("leaves");
    leaves["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let objects = [machine(wrong), guest("waits", Value::Null), runs, sick, ended, leaves, pool];
    let report = explained(Kind::Machine, "m", &objects);
    assert_eq!(causes(&report), ["Failure", "NoRoom", "Failure", "GuestNotReady"], "{report}");
    assert_eq!(report["wrong"][3]["about"], "guest n/sick");
    assert_eq!(report["wrong"][3]["message"], "container vm: CrashLoopBackOff: back-off");
    assert_eq!(report["wrong"][2]["about"], "MachineNodePool p");
    assert_eq!(
        (fact(&report, "guest n/waits"), fact(&report, "guest n/runs")),
        ("0/3 nodes", ""),
        "{report}"
    );
    assert_eq!(fact(&report, "pool p"), "n1 Healthy");
    assert_eq!(fact(&report, "further guests that wait"), "", "{report}");
    let many = (0..23).map(|i| guest(&format!("w{i}"), Value::Null));
    let objects: Vec<Value> = [machine(json!({}))].into_iter().chain(many).collect();
    let report = explained(Kind::Machine, "m", &objects);
    assert_eq!(fact(&report, "further guests that wait"), "3", "{report}");
    assert_eq!(causes(&explained(Kind::Machine, "m", &[machine(Value::Null)])), ["NoStatus"]);
}

#[test]
fn a_namespace_says_on_which_virtual_nodes_its_pods_may_run() {
    let namespace = |labels: Value| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop", "labels": labels}});
    let offloaded = || namespace(json!({"liqo.io/scheduling-enabled": "true"}));
    let offloading = |spec: Value| {
        json!({"apiVersion": "offloading.liqo.io/v1beta1", "kind": "NamespaceOffloading",
            "metadata": {"name": "offloading", "namespace": "shop"}, "spec": spec})
    };
    let node = |name: &str, region: &str| {
        json!({"apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": {"liqo.io/type": "virtual-node", "region": region}}})
    };
    let in_us = || {
        json!({"clusterSelector": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "region", "operator": "In", "values": ["us"]}]}]}})
    };
    let of = |objects: &[Value]| explained(Kind::Namespace, "shop", objects);
    let report = of(&[offloaded(), offloading(in_us()), node("v1", "us"), node("v2", "eu")]);
    assert_eq!((causes(&report), fact(&report, "virtual nodes selected")), (vec![], "v1"), "{report}");
    assert_eq!(fact(&report, "offloading"), "LocalAndRemote");

    let report = of(&[offloaded(), offloading(in_us()), node("v2", "eu")]);
    assert_eq!(causes(&report), ["NoClusterSelected"], "{report}");
    assert_eq!(report["wrong"][0]["message"], "1 virtual nodes, none of them is selected");
    let invalid = of(&[offloaded(), offloading(json!({"clusterSelector": {"nodeSelectorTerms": 7}}))]);
    assert_eq!(causes(&invalid), ["OffloadingInvalid"], "{invalid}");
    assert!(invalid["wrong"][0]["message"].as_str().unwrap().contains("spec.clusterSelector"), "{invalid}");
    let unknown = of(&[offloaded(), offloading(json!({"podOffloadingStrategy": "Perhaps"}))]);
    assert_eq!(causes(&unknown), ["OffloadingInvalid"], "{unknown}");
    assert!(
        unknown["wrong"][0]["message"].as_str().unwrap().contains("is \"Perhaps\"; use Local"),
        "{unknown}"
    );
    let mut ending = offloading(in_us());
    ending["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let ending = of(&[offloaded(), ending, node("v1", "us")]);
    assert_eq!(fact(&ending, "being deleted since"), "2026-01-01T00:00:00Z", "{ending}");
    let local = of(&[namespace(json!({})), offloading(json!({"podOffloadingStrategy": "Local"}))]);
    assert_eq!((causes(&local), fact(&local, "offloading")), (vec![], "Local"), "{local}");
    let none = of(&[namespace(json!({}))]);
    assert!(causes(&none).is_empty() && fact(&none, "offloading").starts_with("none"), "{none}");
    assert_eq!(explained(Kind::Namespace, "other", &[offloaded()]), Value::Null);
}

#[test]
fn a_claim_says_what_its_devices_drivers_say() {
    let result = json!({"request": "d", "driver": "x.example.com", "pool": "p", "device": "e"});
    let allocated = |ready: &str| {
        json!({"allocation": {"devices": {"results": [result]}}, "reservedFor": [],
            "devices": [{"driver": "x.example.com", "pool": "p", "device": "e", "conditions": [condition("Ready", ready, "Up")]}]})
    };
    let of = |status: Value| explained(Kind::Claim, "c", &[claim(status)]);
    let report = of(allocated("True"));
    assert_eq!((causes(&report), fact(&report, "state")), (vec![], "allocated"), "{report}");
    assert_eq!(fact(&report, "device x.example.com/p/e"), "Ready True Up Ready: Up");
    let report = of(allocated("False"));
    assert_eq!(
        (causes(&report), &report["wrong"][0]["since"]),
        (vec!["DeviceNotReady"], &json!("2026-01-01T00:00:00Z"))
    );
    let bound = |kind: &str| {
        let mut result = result.clone();
        result["bindingConditions"] = json!(["Attached"]);
        result["bindingFailureConditions"] = json!(["Broken"]);
        of(
            json!({"allocation": {"devices": {"results": [result]}, "allocationTimestamp": "2026-01-01T00:00:00Z"},
            "reservedFor": [{"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "ring", "uid": "g"}],
            "devices": [{"driver": "x.example.com", "pool": "p", "device": "e", "conditions": [condition(kind, "True", "Up")]}]}),
        )
    };
    let report = bound("Attached");
    assert_eq!(
        (causes(&report), fact(&report, "reserved for")),
        (vec![], "podgroups.scheduling.k8s.io/ring"),
        "{report}"
    );
    assert_eq!(fact(&report, "allocated since"), "2026-01-01T00:00:00Z");
    let report = bound("Ready");
    assert_eq!(
        (causes(&report), &report["wrong"][0]["message"]),
        (vec!["DeviceNotReady"], &json!("Attached isn't True"))
    );
    let report = bound("Broken");
    assert_eq!(causes(&report), ["DeviceBindingFailed"]);
    assert!(
        report["wrong"][0]["message"].as_str().unwrap().starts_with("its binding failed: Broken is True"),
        "{report}"
    );
    let report = of(json!({}));
    assert_eq!(causes(&report), ["ClaimNotAllocated"]);
    assert!(report["wrong"][0]["message"].as_str().unwrap().starts_with("no Pod uses it"), "{report}");
    assert_eq!(explained(Kind::Claim, "d", &[claim(json!({}))]), Value::Null);
}

#[test]
fn what_may_not_be_read_is_not_taken_for_absent() {
    let free = [dpu("a-dpu", "a", None, "True", json!({}))];
    assert_eq!(causes(&explained(Kind::Host, "a", &free)), ["HostNotListed"]);
    assert_eq!(causes(&explained_without(Kind::Host, "a", &free, &["Tenant"])), [""; 0]);

    let shop = [
        json!({"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": "shop", "labels": {"liqo.io/scheduling-enabled": "true"}}}),
        json!({"apiVersion": "offloading.liqo.io/v1beta1", "kind": "NamespaceOffloading",
            "metadata": {"name": "offloading", "namespace": "shop"}, "spec": {"podOffloadingStrategy": "Remote"}}),
    ];
    assert_eq!(causes(&explained(Kind::Namespace, "shop", &shop)), ["NoClusterSelected"]);
    let report = explained_without(Kind::Namespace, "shop", &shop, &["Node"]);
    assert_eq!(
        (causes(&report), fact(&report, "virtual nodes selected")),
        (vec![], "not known: Nodes may not be read")
    );
    let report = explained_without(Kind::Namespace, "shop", &shop[..1], &["NamespaceOffloading"]);
    assert_eq!(fact(&report, "offloading"), "not known: it may not be read");

    let report = explained_without(Kind::Claim, "c", &[claim(json!({}))], &["Pod"]);
    assert_eq!(causes(&report), ["ClaimNotAllocated"]);
    assert!(
        report["wrong"][0]["message"].as_str().unwrap().ends_with("whether there is one isn't known"),
        "{report}"
    );
    let reserved =
        claim(json!({"allocation": {}, "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}]}));
    let state = |unread: &[&str]| {
        fact(&explained_without(Kind::Claim, "c", std::slice::from_ref(&reserved), unread), "state")
            .to_owned()
    };
    assert_eq!(state(&[]), "reserved");
    assert_eq!(state(&["Pod"]), "reserved, whether a Pod that uses it runs isn't known");
}

#[test]
fn no_text_of_an_object_changes_the_terminal() {
    let wrong = condition("Ready", "False", "\u{1b}[2Jx");
    let name = "m\u{1b}[31m";
    let state =
        State::of_text("f", &tenant(name, &["\u{1b}]0;t\u{7}"], json!({"conditions": [wrong]})).to_string())
            .unwrap();
    let seen = Seen { state, notes: vec!["\u{1b}[1m".to_owned()], unread: Unread::default() };
    let report = args(name).report(Kind::Tenant, &seen).unwrap().unwrap();
    let mut out = Vec::new();
    report.document().text(&mut out).unwrap();
    let plain = anstream::adapter::strip_bytes(&out).into_vec();
    assert!(!plain.contains(&0x1b), "{}", String::from_utf8_lossy(&plain));
    let said = String::from_utf8(out).unwrap();
    assert!(!said.contains("\u{1b}[2J") && !said.contains("\u{1b}]0") && !said.contains('\u{7}'), "{said:?}");
}
