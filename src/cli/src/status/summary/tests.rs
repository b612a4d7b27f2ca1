use serde_json::json;

use super::super::report::{InstallationStatus, Report};
use super::*;
use crate::document::Readable;

fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": kind, "status": status, "reason": reason, "message": message})
}

#[test]
fn the_first_condition_that_is_not_true_is_the_problem() {
    let object = json!({"kind": "WorkloadRule", "metadata": {"name": "r", "namespace": "n"}, "status": {
        "matched": 3, "created": 2, "ready": 1, "conditions": [
            condition("Ready", "False", "Pending", "1 of 3"), condition("Accepted", "True", "Valid", ""),
            condition("Synced", "False", "StreamLost", "the agent")]}});
    let row = rule(&object);
    assert_eq!((row.matched, row.created, row.ready), (3, 2, 1));
    assert_eq!((row.reason.as_str(), row.message.as_str()), ("StreamLost", "the agent"));
    let without = rule(&json!({"kind": "WorkloadRule", "metadata": {"name": "r"}}));
    assert_eq!(without.reason, "NoStatus");
    let stream = json!({"connected": false, "since": "2026-01-01T00:00:00Z", "workloads": 7});
    let object = json!({"metadata": {"name": "blue"}, "status": {"dpus": 2, "stream": stream,
        "conditions": [condition("Ready", "True", "Served", "")]}});
    let row = tenant(&object);
    assert_eq!((row.ready.as_str(), row.reason.as_str()), ("True", ""));
    assert_eq!((row.dpus, row.connected, row.workloads), (2, Some(false), Some(7)));
    assert_eq!(tenant(&json!({"metadata": {"name": "new"}})).connected, None);
}

#[test]
fn a_lease_that_has_ended_says_that_no_manager_runs_and_tenants_are_no_longer_connected() {
    let renewed: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let lease = json!({"spec": {"holderIdentity": "m-1", "leaseDurationSeconds": 15,
        "renewTime": "2026-01-01T00:00:00.123456Z"}});
    let at = |seconds: i64| leader(&lease, renewed.as_second() + seconds).unwrap();
    // Half a minute for clocks that differ.
    assert_eq!([at(-60).expired, at(0).expired, at(45).expired, at(46).expired], [false, false, false, true]);
    assert_eq!((at(0).holder.as_str(), at(0).renewed.as_str()), ("m-1", "2026-01-01T00:00:00Z"));
    assert_eq!(leader(&json!({"spec": {}}), 0), None);

    let with = |expired_after: i64| {
        let stream = |connected| json!({"connected": connected, "since": "2025-12-31T00:00:00Z"});
        let named = |name: &str, connected: bool| {
            let ready = condition("Ready", "True", "Served", "");
            json!({"metadata": {"name": name}, "status": {"stream": stream(connected), "conditions": [ready]}})
        };
        let mut tenants = vec![tenant(&named("blue", true)), tenant(&named("red", false))];
        let installation = InstallationStatus {
            namespace: "n".to_owned(),
            parts: Vec::new(),
            webhooks: Vec::new(),
            policies: None,
            leader: Some(at(expired_after)),
        };
        let mut report = Report { installation: Some(installation), ..Report::default() };
        if let Some(since) = report.no_manager_since() {
            tenants.iter_mut().for_each(|row| row.without_manager(since));
        }
        report.tenants = Some(tenants);
        report.document().uncoloured()
    };
    let text = with(600);
    let blue = "no manager since 2026-01-01T00:00:00Z, before connected since 2025-12-31T00:00:00Z";
    assert!(text.contains(blue) && text.contains("lost since 2025-12-31T00:00:00Z"), "{text}");
    assert!(
        text.contains("leading manager: m-1, Lease renewed at 2026-01-01T00:00:00Z; no manager runs"),
        "{text}"
    );
    let text = with(1);
    assert!(text.contains("connected since") && !text.contains("no manager"), "the control case: {text}");
}

#[test]
fn companions_are_counted_by_state() {
    let pod = |namespace: &str, more: Value| -> Pod {
        let mut pod = json!({"metadata": {"name": "p", "namespace": namespace, "labels": {keys::WORKLOAD: "w"},
            "ownerReferences": [{"apiVersion": "workload.universe.nvidia.com/v1alpha1", "kind": "WorkloadRule",
                "name": "r", "uid": "u", "controller": true}]}});
        json_patch::merge(&mut pod, &more);
        serde_json::from_value(pod).unwrap()
    };
    let status =
        |kind: &str, status: &str| json!({"status": {"conditions": [{"type": kind, "status": status}]}});
    let admin = json!({"metadata": {"ownerReferences": null, "labels": {keys::TENANT: "blue"},
        "annotations": {keys::ADMIN_RULE: "a", keys::RULE_UID: "u"}}});
    let mut counts = BTreeMap::new();
    for pod in [
        pod("n", status("Ready", "True")),
        pod("n", status("PodScheduled", "False")),
        pod("n", json!({})),
        pod("n", json!({"status": {"phase": "Failed"}})),
        pod("n", json!({"spec": {"containers": [], "schedulingGates": [{"name": keys::ADMISSION_GATE}]}})),
        pod("n", json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})),
        pod("universe", admin.clone()),
        // In another namespace anybody could have written the same.
        pod("elsewhere", admin),
    ] {
        companion(&pod, "universe", &mut counts);
    }
    let all = ["Failed", "NotAdmitted", "Ready", "Starting", "Terminating", "Unschedulable"];
    assert_eq!(counts["n"], all.map(|state| (state, 1)).into());
    assert_eq!(counts["universe"], [("Starting", 1)].into());
    assert_eq!(counts.len(), 2);
}

#[test]
fn dpus_are_counted_by_owner() {
    let node = |labels: Value, spec: Value, ready: &str| -> Node {
        let status = json!({"conditions": [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": ready}]});
        serde_json::from_value(
            json!({"metadata": {"name": "n", "labels": labels}, "spec": spec, "status": status}),
        )
        .unwrap()
    };
    let blue = json!({keys::DPU_HOST: "a", keys::NODE_TENANT: "blue"});
    let leaving = json!({"taints": [{"key": keys::HANDOVER, "effect": "NoSchedule"}]});
    let mut rows = BTreeMap::new();
    for node in [
        node(blue.clone(), json!({}), "True"),
        node(blue.clone(), json!({"unschedulable": true}), "False"),
        node(blue, leaving, "True"),
        node(json!({keys::DPU_HOST: "b"}), json!({}), "True"),
        node(json!({"other": "c"}), json!({}), "True"),
    ] {
        DpuRow::of(&node, Default::default()).into_iter().for_each(|dpu| dpu.count(&mut rows));
    }
    let row = |tenant: &str, [dpus, ready, cordoned, handed_over]: [usize; 4]| DpuRow {
        tenant: tenant.to_owned(),
        dpus,
        ready,
        cordoned,
        handed_over,
    };
    assert_eq!(rows.into_values().collect::<Vec<_>>(), [row("", [1, 1, 0, 0]), row("blue", [3, 2, 1, 1])]);
}

#[test]
fn a_policy_without_binding_is_missing() {
    let shipped = policies((&[], &[]), None).missing;
    assert!(shipped.contains(&"outrigger-pods".to_owned()) && shipped.len() > 5, "{shipped:?}");
    let all = policies((&shipped, &shipped), None);
    assert_eq!(all, Policies { shipped: shipped.len(), missing: Vec::new(), files_loaded: None });
    assert_eq!(policies((&shipped, &shipped[1..]), None).missing, shipped[..1]);
}

#[test]
fn certificates_end_when_they_say() {
    let pair = rcgen::generate_simple_self_signed(vec!["webhook".to_owned()]).unwrap();
    let pem = pair.cert.pem();
    let of = |now| {
        certificate("outrigger-webhook", "certificate", "Secret s".into(), pem.as_bytes(), now).unwrap()
    };
    let validity = Validity::of(&probe::certificates(pem.as_bytes()).unwrap()[0]).unwrap();
    for (now, state) in [
        (validity.warning() - 1, "Valid"),
        (validity.warning(), "Expires"),
        (validity.not_after + 1, "Expired"),
    ] {
        assert_eq!(of(now).state, state);
    }
    let error = certificate("outrigger-webhook", "CA", "Secret s".into(), b"", 0).unwrap_err();
    assert_eq!(error, "Secret s: has no certificate");
}

#[test]
fn rows_with_problems_come_first_and_of_many_the_first_are_shown() {
    let rules = (0..30).map(|i| {
        let status = if i == 29 { "False" } else { "True" };
        rule(&json!({"kind": "WorkloadRule", "metadata": {"name": format!("r{i:02}"), "namespace": "n"},
            "status": {"conditions": [condition("Ready", status, "Pending", "a\u{1b}b")]}}))
    });
    let report = Report {
        rules: Some(rules.collect()),
        not_visible: vec!["pods: forbidden".to_owned()],
        ..Report::default()
    };
    let text = report.document().uncoloured();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "rules (30)");
    assert!(lines[2].starts_with("n/r29") && lines[2].ends_with(r"Pending: a\u{1b}b"), "{text}");
    assert_eq!(lines[22], "and 10 more, 0 of them with problems");
    assert_eq!(lines[24], "not visible: pods: forbidden");
}
