use clap::Parser;
use outrigger_core::keys;
use outrigger_core::reason::Cause;
use serde_json::{Value, json};

use super::*;
use crate::document::Readable;

mod admin;
mod annotations;
mod attributes;
mod linger;
mod ordering;

#[derive(Debug, Parser)]
struct Wrapper {
    #[command(flatten)]
    args: ExplainArgs,
}

fn explained(objects: &[Value], flags: &[&str]) -> Result<Value, String> {
    from(live::Source::files("--filename"), objects, flags)
}

fn from(source: live::Source, objects: &[Value], flags: &[&str]) -> Result<Value, String> {
    let report = report(source, objects, flags).map_err(|error| error.to_string())?;
    report.document().text(&mut std::io::sink()).unwrap();
    Ok(serde_json::to_value(&report).unwrap())
}

fn text_of(source: live::Source, objects: &[Value], flags: &[&str]) -> String {
    report(source, objects, flags).unwrap().document().uncoloured()
}

fn report(source: live::Source, objects: &[Value], flags: &[&str]) -> Result<Report, InputError> {
    let args = Wrapper::try_parse_from([&["explain"], flags].concat()).unwrap().args;
    let text: String = objects.iter().map(ToString::to_string).collect();
    let source = source.with_admin(&args.admission.admin_namespaces());
    Report::new(&args.view_of(&State::of_text("f", &text).unwrap(), source)?, &args)
}

fn tenant(id: &str) -> Value {
    json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": id},
        "spec": {"hosts": [format!("{id}-a")]}})
}

fn rule(namespace: &str, name: &str, template: Value) -> Value {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "c"}]}});
    for (key, value) in template.as_object().unwrap() {
        pod["spec"][key] = value.clone();
    }
    json!({"apiVersion": "workload.universe.nvidia.com/v1alpha1", "kind": "WorkloadRule",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"workloadTerms": [{"matchExpressions": [{"key": "@", "operator": "Exists"}]}], "template": pod}})
}

fn dpu(host: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": format!("{host}-dpu"), "labels": {keys::DPU_HOST: host}}})
}

fn pod(namespace: &str, name: &str, node: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace},
        "spec": {"nodeName": node, "containers": []}})
}

/// A companion of the rule `b` for the workload with this label value, with a change.
fn companion(workload: &str, change: &Value) -> Value {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {
            "name": workload, "namespace": "tenant-blue", "uid": workload, "labels": {keys::WORKLOAD: workload},
            "ownerReferences": [{"apiVersion": "workload.universe.nvidia.com/v1alpha1", "kind": "WorkloadRule",
                "name": "b", "uid": "u", "controller": true}]},
        "spec": {"containers": []}});
    json_patch::merge(&mut pod, change);
    pod
}

#[test]
fn one_tenant_of_two() {
    let objects = [
        tenant("blue"),
        tenant("red"),
        rule("tenant-blue", "b", json!({})),
        rule("tenant-red", "r", json!({})),
        dpu("blue-a"),
        dpu("red-a"),
        pod("work", "web", "blue-a"),
        pod("tenant-red", "made-by-hand", "x"),
    ];
    let error = explained(&objects, &[]).unwrap_err();
    assert_eq!(error, "--filename: has several tenants (blue, red): say by --tenant which");
    for flags in [&["--tenant", "blue"][..], &["--rule", "b"]] {
        let report = explained(&objects, flags).unwrap();
        assert_eq!((&report["tenant"], report["rules"].as_array().unwrap().len()), (&json!("blue"), 1));
        let workloads = report["rules"][0]["workloads"].as_array().unwrap();
        assert_eq!(workloads.len(), 1, "what is in tenants' namespaces is no workload: {report}");
        assert_eq!(
            workloads[0]["placement"],
            json!({"nodes": [{"node": "blue-a-dpu", "obstacles": []}]}),
            "the Node is marked as the manager will mark it"
        );
    }
    let red = explained(&objects, &["--tenant", "red"]).unwrap();
    assert_eq!(
        red["rules"][0]["workloads"][0]["placement"]["problem"],
        "no DPU of host blue-a is tenant red's: blue-a-dpu belongs to tenant blue"
    );
    let error = explained(&objects, &["--tenant", "blue", "--rule", "r"]).unwrap_err();
    assert_eq!(error, "--rule: there is no WorkloadRule r; there are b");
}

#[test]
fn what_is_wrong_with_a_rule() {
    let mut unreadable = rule("tenant-blue", "a", json!({}));
    unreadable["spec"]["workloadTerms"][0]["matchExpressions"][0]["operator"] = json!("Perhaps");
    let mut going = rule("tenant-blue", "d", json!({}));
    going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let objects = [
        tenant("blue"),
        unreadable,
        rule("tenant-blue", "b", json!({"hostPID": true})),
        rule("tenant-blue", "c", json!({"nodeSelector": {keys::DPU_HOST: "blue-a"}})),
        going,
        dpu("blue-a"),
        pod("work", "web", "blue-a"),
    ];
    let report = explained(&objects, &[]).unwrap();
    let [a, b, c, d] = [0, 1, 2, 3].map(|i| &report["rules"][i]);
    assert_eq!(d["errors"][0]["path"], "metadata.deletionTimestamp");
    let of_d = &d["workloads"][0];
    assert_eq!((&of_d["outcome"], &of_d["reason"]), (&json!("Refused"), &json!("the rule is being deleted")));
    assert_eq!(a["errors"][0]["path"], "spec.workloadTerms[0].matchExpressions[0].operator");
    assert_eq!(a["workloads"], json!([]), "what isn't served is about nobody");
    assert_eq!(b["errors"][0]["path"], "spec.template.spec.hostPID");
    assert_eq!(b["workloads"][0]["outcome"], "Refused");
    assert_eq!((&c["workloads"][0]["outcome"], c["workloads"][0].get("state")), (&json!("Companion"), None));
    assert!(c["warnings"][0].as_str().unwrap().contains("nodeSelector is for host blue-a alone"), "{c}");
}

#[test]
fn a_tenant_that_is_being_deleted_gets_no_companions() {
    let mut going = tenant("blue");
    going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let objects = [going, rule("tenant-blue", "b", json!({})), dpu("blue-a"), pod("work", "web", "blue-a")];
    let report = explained(&objects, &[]).unwrap();
    let found = &report["rules"][0]["workloads"][0];
    let expected = (&json!("Refused"), &json!("the tenant is being deleted"));
    assert_eq!((&found["outcome"], &found["reason"]), expected, "{report}");
}

#[test]
fn companions_events_and_conditions_are_reported() {
    let mut with_status = rule("tenant-blue", "b", json!({}));
    with_status["status"] = json!({"conditions": [{"type": "Ready", "status": "False", "reason": "Refused",
        "message": "quota", "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
    let pending = json!({"status": {"conditions": [
        {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available"}]}});
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let event = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "tenant-blue"},
        "reason": "CompanionRefused", "message": "exceeded quota",
        "involvedObject": {"kind": "WorkloadRule", "namespace": "tenant-blue", "name": "b"}});
    let objects = [
        tenant("blue"),
        with_status,
        pod("work", "web", "blue-a"),
        pod("work", "without", "blue-a"),
        companion("uid-of-work-web", &pending),
        companion("gone", &ready),
        event,
    ];
    let report = explained(&objects, &[]).unwrap();
    let rule = &report["rules"][0];
    assert_eq!(rule["conditions"][0]["reason"], "Refused");
    assert_eq!(rule["events"], json!(["exceeded quota"]));
    assert_eq!(
        rule["workloads"][0]["state"],
        json!({"phase": "Pending", "message": "0/1 nodes are available"})
    );
    assert_eq!(rule["workloads"][1]["state"], json!({"phase": "Absent"}));
    let other = &rule["companions"][0];
    assert_eq!((&other["workload"], &other["state"]["phase"]), (&json!("gone"), &json!("Ready")));
    assert!(report["notes"][0].as_str().unwrap().contains("no Nodes were given"), "{report}");
    assert_eq!(rule["workloads"][0].get("placement"), None);
}

#[test]
fn a_tenants_own_cluster_shows_no_dpus_and_the_other_no_workloads() {
    let own = |infrastructure, workloads| live::Source {
        infrastructure,
        workloads,
        live: true,
        notes: vec!["said".into()],
        ..live::Source::files("the cluster")
    };
    let objects = [rule("universe", "b", json!({})), pod("work", "web", "h")];
    let report = from(own(false, true), &objects, &[]).unwrap();
    let workload = &report["rules"][0]["workloads"][0];
    assert_eq!((&workload["outcome"], workload.get("placement")), (&json!("Companion"), None));
    assert_eq!(report["notes"], json!(["said"]));

    // A workload that its companion carries completely.
    let carried = json!({"metadata": {"id": "w1", "resourceType": "v1/Pod", "resourceNamespace": "work", "resourceName": "web"},
        "state": {"nodeName": "blue-a"}});
    let annotations = json!({keys::INJECTED: "[\"all\"]", "all": carried.to_string()});
    let companion = companion("w1", &json!({"metadata": {"annotations": annotations}}));
    let objects = [tenant("blue"), rule("tenant-blue", "b", json!({})), companion];
    let report = from(own(true, false), &objects, &["--workload", "work/web"]).unwrap();
    let workload = &report["rules"][0]["workloads"][0];
    assert_eq!((&workload["id"], &workload["state"]["phase"]), (&json!("w1"), &json!("Pending")));
    assert!(workload["placement"]["problem"].as_str().unwrap().starts_with("no DPU for host blue-a"));
}

#[test]
fn filters_and_what_is_not_there() {
    let mut done = pod("work", "done", "h");
    done["status"] = json!({"phase": "Failed"});
    let objects = [rule("universe", "b", json!({})), pod("work", "web", "h"), pod("other", "web", "h"), done];
    let count = |flags: &[&str]| {
        let report = explained(&objects, flags).unwrap();
        let lists = [&report["rules"][0]["workloads"], &report["ended"]];
        lists.map(|list| list.as_array().unwrap().len())
    };
    assert_eq!(count(&[]), [2, 1]);
    assert_eq!(count(&["-n", "other"]), [1, 0]);
    assert_eq!(count(&["--workload", "work/web"]), [1, 0]);
    assert_eq!(count(&["--workload", "work/done"]), [0, 1]);
    let error = explained(&objects, &["--workload", "work/nobody"]).unwrap_err();
    assert_eq!(error, "--workload: there is no workload work/nobody; there are other/web, work/web");
    let report = explained(&objects, &["--tenant", "unknown"]).unwrap();
    assert!(report["notes"][0].as_str().unwrap().contains("no Tenant unknown"), "{report}");
}

#[test]
fn why_a_claim_has_no_devices() {
    let request = |class: &str| json!({"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": class}}]}});
    let mut blue = tenant("blue");
    blue["spec"]["deviceClasses"] = json!(["crypto", "regex"]);
    let mut with_devices = rule("tenant-blue", "b", json!({}));
    with_devices["spec"]["deviceClaims"] = json!([{"name": "own", "spec": request("crypto")},
        {"name": "other", "spec": request("regex")}, {"name": "shared", "fromRule": "d"}]);
    let mut of_claims = rule("tenant-blue", "d", json!({}));
    of_claims["spec"]["template"] =
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "spec": request("crypto")});
    let resource = |kind: &str, metadata: Value, spec: Value| json!({"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": metadata, "spec": spec});
    let mut taken =
        resource("ResourceClaim", json!({"name": "theirs", "namespace": "elsewhere"}), request("crypto"));
    taken["status"] = json!({"allocation": {"devices": {"results": [
        {"request": "r", "driver": "d.test", "pool": "blue-a-dpu", "device": "d0"}]}}});
    let slice = json!({"driver": "d.test", "nodeName": "blue-a-dpu", "pool": {"name": "blue-a-dpu"},
        "devices": [{"name": "d0"}]});
    let objects = [
        blue,
        with_devices,
        of_claims,
        dpu("blue-a"),
        pod("work", "web", "blue-a"),
        resource("DeviceClass", json!({"name": "crypto"}), json!({})),
        resource("ResourceSlice", json!({"name": "s"}), slice),
        taken,
    ];
    let report = explained(&objects, &[]).unwrap();
    let claims = &report["rules"][0]["workloads"][0]["claims"];
    let reason = |i: usize| claims[i]["reasons"][0].as_str().unwrap();
    assert_eq!(reason(0), "all 1 devices of blue-a-dpu are taken, by elsewhere/theirs");
    assert_eq!(reason(1), "request r: there is no DeviceClass regex");
    let shared = &report["rules"][1]["workloads"][0];
    assert_eq!((&claims[2]["claim"], &claims[2]["phase"]), (&shared["companion"], &json!("Absent")));
    assert!(reason(2).starts_with("there is no ResourceClaim d-"), "{}", reason(2));
    assert_eq!((&shared["outcome"], shared.get("placement")), (&json!("Companion"), None));
    assert_eq!((&shared["claims"][0]["phase"], shared["claims"][0].get("name")), (&json!("Absent"), None));

    // Without any claims it isn't known whether there is this one, unless they have all been read.
    let none = objects.split_last().unwrap().1;
    for (claims, phase) in [
        (live::ClaimScope::Given, "Unknown"),
        (live::ClaimScope::Own, "Absent"),
        (live::ClaimScope::All, "Absent"),
    ] {
        let report = from(live::Source { claims, ..live::Source::files("--filename") }, none, &[]).unwrap();
        let shared = &report["rules"][0]["workloads"][0]["claims"][2];
        assert_eq!(shared["phase"], phase, "{claims:?}");
        assert_eq!(shared["reasons"] == json!([]), phase == "Unknown", "{claims:?}");
        assert_eq!(report["rules"][1]["workloads"][0]["claims"][0]["phase"], phase, "{claims:?}");
    }
}

/// The Pod `work/web` of a tenant's cluster, with conditions: type, status, reason, message.
fn reported_pod(gated: bool, conditions: &[[&str; 4]]) -> Value {
    let mut pod = pod("work", "web", "host-a");
    pod["metadata"]["uid"] = json!("u");
    pod["metadata"]["creationTimestamp"] = json!("2026-01-02T00:00:00Z");
    if gated {
        pod["spec"]["readinessGates"] = json!([{"conditionType": keys::COMPANIONS_GATE}]);
    }
    let condition = |[kind, status, reason, message]: &[&str; 4]| json!({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": "2026-01-02T03:04:05Z"});
    pod["status"] = json!({"conditions": conditions.iter().map(condition).collect::<Vec<_>>()});
    pod
}

/// What is read of a tenant's cluster alone.
fn own_cluster() -> live::Source {
    live::Source { infrastructure: false, live: true, ..live::Source::files("the cluster") }
}

#[test]
fn a_condition_of_a_pod_is_reported_with_its_meaning_and_the_tenants_remedy() {
    let of = |condition: [&str; 4]| {
        let objects = [rule("universe", "b", json!({})), reported_pod(false, &[condition])];
        let report = from(own_cluster(), &objects, &[]).unwrap();
        report["pods"][0].clone()
    };
    let kind = keys::COMPANIONS_CONDITION;
    let failed = of([kind, "False", "ImageUnavailable", "rule b: no such image"]);
    let cause = Cause::ImageUnavailable;
    assert_eq!(
        failed["conditions"],
        json!([{"type": kind, "status": "False", "reason": "ImageUnavailable", "message": "rule b: no such image",
            "since": "2026-01-02T03:04:05Z", "meaning": cause.meaning(), "remedy": cause.tenant_remedy(), "stale": false}])
    );
    assert_eq!((&failed["name"], &failed["unknown"]), (&json!("web"), &json!([])));
    let ready = &of([kind, "True", "Ready", "the companion is ready"])["conditions"][0];
    assert_eq!((ready.get("remedy"), &ready["stale"]), (None, &json!(false)));
    // A word of a later version means what the condition says.
    let later = &of([kind, "False", "Eclipse", "rule b: the moon is in the way"])["conditions"][0];
    assert_eq!((&later["meaning"], later.get("remedy")), (&json!("rule b: the moon is in the way"), None));
    let hostile = of([kind, "False", "Eclipse", "a\u{1b}[2J\nb"]);
    assert_eq!(hostile["conditions"][0]["message"], "a\u{fffd}[2J\u{fffd}b", "it doesn't change a terminal");
    for (status, reason) in
        [("Unknown", "ManagerTooOld"), ("Unknown", "Unknown"), ("False", "ManagerUnreachable")]
    {
        let condition = &of([kind, status, reason, "m"])["conditions"][0];
        assert_eq!(condition["stale"], true, "{condition}");
        let cause: Cause = reason.parse().unwrap();
        assert_eq!(condition["remedy"], cause.tenant_remedy());
    }
}

#[test]
fn what_no_condition_says_is_said_to_be_unknown() {
    let rules = rule("universe", "b", json!({}));
    let report = |pod: Value| from(own_cluster(), &[rules.clone(), pod], &[]).unwrap()["pods"][0].clone();
    let absent = report(reported_pod(false, &[]));
    assert_eq!((absent.get("gate"), absent["conditions"].as_array().unwrap().len()), (None, 0));
    let unknown = absent["unknown"].as_array().unwrap();
    assert!(
        unknown.len() == 1 && unknown[0].as_str().unwrap().contains(keys::COMPANIONS_CONDITION),
        "{absent}"
    );
    let unset = report(reported_pod(true, &[]));
    assert_eq!((&unset["gate"], unset["unknown"].as_array().unwrap().len()), (&json!("Unset"), 2));
    let gate = |status: &str| {
        report(reported_pod(true, &[[keys::COMPANIONS_GATE, status, "Starting", "rule b: m"]]))["gate"]
            .clone()
    };
    assert_eq!((gate("False"), gate("True")), (json!("Waiting"), json!("Open")));

    // Files of which nothing is said are left out.
    let mut in_file = pod("work", "web", "host-a");
    in_file["spec"]["readinessGates"] = json!([{"conditionType": keys::COMPANIONS_GATE}]);
    let from_file = explained(&[rules.clone(), in_file], &[]).unwrap();
    assert_eq!((&from_file["pods"], &from_file["rulesKnown"]), (&json!([]), &json!("All")));
}

#[test]
fn the_text_shows_what_the_tenants_cluster_says() {
    let rules = rule("universe", "b", json!({}));
    let gate = [keys::COMPANIONS_GATE, "False", "CrashLoop", "rule b: it ends"];
    let waiting = text_of(own_cluster(), &[rules.clone(), reported_pod(true, &[gate])], &[]);
    for line in [
        "work/web on host-a\n  isn't Ready before its companions are\n",
        "  outrigger.dev/companions=False CrashLoop since 2026-01-02T03:04:05Z: rule b: it ends\n",
        "    means: A container of the companion ends again and again\n",
        "    remedy: look at the program of the template\n",
    ] {
        assert!(waiting.contains(line), "{line}: {waiting}");
    }
    // Many Pods without a condition share one line; the one that is asked about has its own.
    let bare = [rules, reported_pod(false, &[])];
    let silent = text_of(own_cluster(), &bare, &[]);
    assert!(silent.contains("nothing is known: work/web\n  the Pod has no condition"), "{silent}");
    let named = text_of(own_cluster(), &bare, &["--workload", "work/web"]);
    assert!(named.contains("work/web on host-a\n  not known: the Pod has no condition"), "{named}");
    assert!(!named.contains("nothing is known"), "{named}");
}

#[test]
fn the_nodes_condition_and_the_agents_events_are_reported() {
    let node = |conditions: Value| {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "host-a"}, "status": {"conditions": conditions}});
        let mut objects = Vec::new();
        crate::files::parse("n", &node.to_string(), outrigger_core::yaml::OF_FILES, &mut objects).unwrap();
        live::Source { hosts: Some(objects), ..own_cluster() }
    };
    let event = |name: &str, agent: &str, uid: &str, at: &str| {
        json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": "work"},
            "reason": "NoDPU", "message": name, "reportingComponent": agent, "eventTime": at,
            "involvedObject": {"kind": "Pod", "namespace": "work", "name": "web", "uid": uid}})
    };
    let mut objects = vec![
        reported_pod(false, &[]),
        event("foreign", "kubelet", "u", "2026-01-02T00:00:01.000000Z"),
        event("former", keys::AGENT, "v", "2026-01-02T00:00:01.000000Z"),
    ];
    // The latest comes last, whatever the order in which they are listed.
    for second in [7, 2, 3, 4, 5, 6] {
        objects.push(event(
            &format!("e{second}"),
            keys::AGENT,
            "u",
            &format!("2026-01-02T00:00:0{second}.000000Z"),
        ));
    }
    let conditions =
        json!([{"type": keys::DPU_READY, "status": "False", "reason": "DPUNotReady", "message": "m"}]);
    let report = from(node(conditions), &objects, &[]).unwrap();
    let pod = &report["pods"][0];
    assert_eq!(
        (&pod["dpu"]["status"], &pod["dpu"]["remedy"]),
        (&json!("False"), &json!(Cause::DpuNotReady.tenant_remedy()))
    );
    let events: Vec<&Value> =
        pod["events"].as_array().unwrap().iter().map(|event| &event["message"]).collect();
    assert_eq!(events, ["e3", "e4", "e5", "e6", "e7"], "the newest, of this Pod, by the agent");
    assert_eq!(pod["events"][0]["at"], "2026-01-02T00:00:03Z");

    let unknown = |source| from(source, &objects, &[]).unwrap()["pods"][0]["unknown"].to_string();
    assert!(unknown(node(json!([]))).contains(keys::DPU_READY), "the Node has no condition");
    assert!(!unknown(own_cluster()).contains(keys::DPU_READY), "a note says that Nodes can't be read");
}

#[test]
fn rules_that_could_not_be_read_are_not_said_to_be_missing() {
    let condition = [keys::COMPANIONS_CONDITION, "False", "NoDPU", "rule b: m"];
    let objects = [reported_pod(false, &[condition])];
    let source = |rules| live::Source { rules, ..own_cluster() };
    for (known, word, line, error) in [
        (live::RulesKnown::All, "All", "no rules\n", "--rule: there is no WorkloadRule b, nor any other"),
        (
            live::RulesKnown::Some,
            "Some",
            "no rules among those that may be read\n",
            "--rule: of the rules that may be read, there is no WorkloadRule b, nor any other",
        ),
        (
            live::RulesKnown::None,
            "None",
            "which rules there are isn't known\n",
            "--rule: WorkloadRule b may not be read; ask without --rule",
        ),
    ] {
        let report = from(source(known), &objects, &["--workload", "work/web"]).unwrap();
        assert_eq!(
            (&report["rulesKnown"], &report["pods"][0]["conditions"][0]["reason"]),
            (&json!(word), &json!("NoDPU"))
        );
        assert!(text_of(source(known), &objects, &[]).contains(line), "{word}");
        assert_eq!(from(source(known), &objects, &["--rule", "b"]).unwrap_err(), error);
    }
}

#[test]
fn of_one_rule_only_its_workloads_are_reported() {
    let mut other = rule("universe", "other", json!({}));
    other["spec"]["workloadTerms"][0]["matchExpressions"][0] =
        json!({"key": ".metadata.resourceName", "operator": "In", "values": ["nobody"]});
    let condition = [keys::COMPANIONS_CONDITION, "False", "NoDPU", "rule b: m"];
    let objects = [rule("universe", "b", json!({})), other, reported_pod(false, &[condition])];
    let count =
        |flags: &[&str]| from(own_cluster(), &objects, flags).unwrap()["pods"].as_array().unwrap().len();
    assert_eq!([count(&[]), count(&["--rule", "b"]), count(&["--rule", "other"])], [1, 1, 0]);
    assert_eq!(count(&["--rule", "other", "--workload", "work/web"]), 1);
}
