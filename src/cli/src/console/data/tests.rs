use outrigger_core::json::text;
use outrigger_core::keys;
use outrigger_runtime::watch::Event;
use serde_json::{Value, json};

use super::super::rows::{Kept, Rows};
use super::*;
use crate::cluster::Kind;
use crate::status::read::{ADMIN_RULE, NODE, POD, RULE, TENANT};

/// Objects, each with its kind, of a cluster that shows all of them.
pub(in crate::console) fn data(objects: &[(Kind, Value)]) -> Data {
    rows(objects).picture().unwrap().data()
}

/// Objects, each with its kind, as complete lists show them.
pub(in crate::console) fn rows(objects: &[(Kind, Value)]) -> Rows {
    let mut rows = Rows { installation: Some(Report::default()), infrastructure: true, ..Rows::default() };
    let id = |object: &Value| Id {
        namespace: text(object, "/metadata/namespace").to_owned(),
        name: text(object, "/metadata/name").to_owned(),
    };
    fn list<R: PartialEq>(
        kept: &mut Kept<R>,
        objects: Vec<&Value>,
        id: impl Fn(&Value) -> Id,
        row: impl Fn(&Value) -> Option<R>,
    ) {
        kept.take(Event::<&Value>::ListStarted, |object| id(object), |object| row(object));
        for object in objects {
            kept.take(Event::Listed(object), |object| id(object), |object| row(object));
        }
        kept.take(Event::<&Value>::ListCompleted { version: 1 }, |object| id(object), |object| row(object));
    }
    let of = |wanted: Kind| -> Vec<&Value> {
        objects.iter().filter(|(kind, _)| kind.1 == wanted.1).map(|(_, object)| object).collect()
    };
    list(&mut rows.tenants, of(TENANT), id, |object| Some(TenantEntry::of(object)));
    list(&mut rows.rules, of(RULE), id, |object| Some(super::rule(object)));
    list(&mut rows.admin_rules, of(ADMIN_RULE), id, |object| Some(super::rule(object)));
    list(&mut rows.pods, of(POD), id, |object| {
        PodEntry::of(&serde_json::from_value(object.clone()).unwrap(), "universe")
    });
    list(&mut rows.nodes, of(NODE), id, |object| {
        NodeEntry::of(&serde_json::from_value(object.clone()).unwrap(), Default::default())
    });
    rows
}

pub(in crate::console) fn tenant(name: &str, namespace: &str, hosts: &[&str], text: &str) -> (Kind, Value) {
    let conditions = json!([{"type": "Ready", "status": "False", "reason": text, "message": text,
        "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
    let object = json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": name},
        "spec": {"namespace": namespace, "hosts": hosts}, "status": {"conditions": conditions}});
    (TENANT, object)
}

pub(in crate::console) fn rule(
    namespace: &str,
    name: &str,
    reason: &str,
    [matched, created]: [i64; 2],
) -> (Kind, Value) {
    let conditions = json!([{"type": "Ready", "status": "False", "reason": reason, "message": reason}]);
    let object = json!({"apiVersion": "workload.universe.nvidia.com/v1alpha1", "kind": "WorkloadRule",
        "metadata": {"name": name, "namespace": namespace},
        "status": {"conditions": conditions, "matched": matched, "created": created}});
    (RULE, object)
}

pub(in crate::console) fn node(name: &str, host: &str, tenant: Option<&str>, spec: Value) -> (Kind, Value) {
    let mut labels = json!({keys::DPU_HOST: host});
    if let Some(tenant) = tenant {
        labels[keys::NODE_TENANT] = json!(tenant);
    }
    let status = json!({"conditions": [{"type": "Ready", "status": "True"}]});
    (NODE, json!({"metadata": {"name": name, "labels": labels}, "spec": spec, "status": status}))
}

/// A companion of the rule web, whose host is `host`.
pub(in crate::console) fn companion(namespace: &str, name: &str, host: &str, more: &Value) -> (Kind, Value) {
    let mut pod = json!({"metadata": {"name": name, "namespace": namespace, "labels": {keys::WORKLOAD: "w"},
        "annotations": {keys::HOST: host},
        "ownerReferences": [{"apiVersion": "workload.universe.nvidia.com/v1alpha1", "kind": "WorkloadRule",
            "name": "web", "uid": "u", "controller": true}]}});
    json_patch::merge(&mut pod, more);
    (POD, pod)
}

fn unplaced() -> Value {
    json!({"status": {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes"}]}})
}

#[test]
fn a_companion_is_reported_by_the_words_of_the_model() {
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}, "spec": {"nodeName": "dpu-a"}});
    let data = data(&[
        tenant("blue", "tenant-blue", &["a", "b"], "x"),
        node("dpu-a", "a", Some("blue"), json!({})),
        companion("tenant-blue", "one", "a", &ready),
        companion("tenant-blue", "two", "b", &unplaced()),
        companion("tenant-blue", "three", "a", &unplaced()),
        companion(
            "tenant-blue",
            "four",
            "a",
            &json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
        ),
        companion("elsewhere", "five", "a", &json!({})),
    ]);
    let companions: Vec<_> =
        data.companions.iter().map(|c| (&*c.id.name, &*c.tenant, c.pod.state, c.cause)).collect();
    assert_eq!(
        companions,
        [
            ("three", "blue", "Unschedulable", Some(Cause::Unschedulable)),
            ("two", "blue", "Unschedulable", Some(Cause::NoDpu)),
            ("five", "", "Starting", Some(Cause::Starting)),
            ("four", "blue", "Terminating", None),
            ("one", "blue", "Ready", None),
        ],
        "the worst first"
    );
    assert_eq!(data.companions[0].pod.message, "0/3 nodes");
}

#[test]
fn a_host_is_reported_by_what_keeps_its_dpu_from_taking_companions() {
    let leaving = json!({"taints": [{"key": keys::HANDOVER, "value": "red", "effect": "NoSchedule"}]});
    let on = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}, "spec": {"nodeName": "dpu-a"}});
    let data = data(&[
        tenant("blue", "tenant-blue", &["a", "b", "c", "d", "twice"], "x"),
        tenant("red", "tenant-red", &["twice"], "x"),
        node("dpu-a", "a", Some("blue"), json!({})),
        node("dpu-b", "b", Some("blue"), json!({"unschedulable": true})),
        node("dpu-c", "c", Some("blue"), leaving),
        node("dpu-e", "e", None, json!({})),
        companion("tenant-blue", "one", "a", &on),
        companion("tenant-blue", "two", "a", &json!({"spec": {"nodeName": "dpu-a"}})),
    ]);
    let hosts: Vec<_> = data
        .hosts
        .iter()
        .map(|h| (&*h.host, &*h.dpu, &*h.tenant, h.grade, h.cause, h.ready, h.companions))
        .collect();
    assert_eq!(
        hosts,
        [
            ("b", "dpu-b", "blue", Grade::Bad, Some(Cause::DpuNotReady), 0, 0),
            ("d", "", "blue", Grade::Bad, Some(Cause::NoDpu), 0, 0),
            ("twice", "", "blue, red", Grade::Bad, Some(Cause::HostConflict), 0, 0),
            ("c", "dpu-c", "blue", Grade::Odd, Some(Cause::HandingOver), 0, 0),
            ("a", "dpu-a", "blue", Grade::Good, None, 1, 2),
            ("e", "dpu-e", "", Grade::Good, None, 0, 0),
        ]
    );
}

#[test]
fn a_tenant_whose_spec_is_not_understood_is_shown() {
    let strange = json!({"metadata": {"name": "odd"}, "spec": {"hosts": 7}});
    let data = data(&[tenant("blue", "tenant-blue", &["a"], "x"), (TENANT, strange)]);
    let names: Vec<_> = data.report.tenants.as_ref().unwrap().iter().map(|row| &*row.name).collect();
    assert_eq!((names, data.tenants.len()), (vec!["blue", "odd"], 2));
}

#[test]
fn without_the_list_of_tenants_no_host_is_said_to_lack_a_dpu() {
    let mut rows = rows(&[
        node("dpu-a", "a", Some("blue"), json!({})),
        node("dpu-b", "b", Some("blue"), json!({"unschedulable": true})),
        companion("tenant-blue", "one", "c", &unplaced()),
    ]);
    rows.tenants.refuse("no".to_owned());
    assert!(!rows.tenants.is_shown());
    let data = rows.picture().unwrap().data();
    let hosts: Vec<_> = data.hosts.iter().map(|host| (&*host.dpu, host.cause)).collect();
    assert_eq!(hosts, [("dpu-b", Some(Cause::DpuNotReady)), ("dpu-a", None)]);
    assert_eq!(data.companions[0].cause, Some(Cause::Unschedulable));
}

#[test]
fn causes_are_counted_the_most_frequent_first() {
    let data = data(&[
        tenant("blue", "tenant-blue", &[], "x"),
        tenant("red", "tenant-red", &[], "x"),
        companion("tenant-blue", "one", "a", &json!({})),
        companion("tenant-red", "two", "a", &json!({})),
        rule("tenant-blue", "web", "QuotaExceeded", [9, 4]),
        rule("tenant-red", "web", "SomethingNew", [1, 1]),
    ]);
    let missing = |tenant: &str| -> Vec<(String, Option<Cause>, usize, usize, i64)> {
        let found = data.missing(|_, of| tenant.is_empty() || of == tenant);
        found.into_iter().map(|m| (m.word, m.cause, m.companions, m.rules, m.lacking)).collect()
    };
    let quota = ("QuotaExceeded".to_owned(), Some(Cause::QuotaExceeded), 0, 1, 5);
    let starting = |count| ("Starting".to_owned(), Some(Cause::Starting), count, 0, 0);
    assert_eq!(missing(""), [quota.clone(), starting(2), ("SomethingNew".to_owned(), None, 0, 1, 0)]);
    assert_eq!(missing("blue"), [quota, starting(1)]);
}

#[test]
fn what_a_rule_lacks_is_counted_in_companions() {
    // Two workloads, on hosts with three DPUs each.
    let with = |status: serde_json::Value| {
        let (kind, mut object) = rule("tenant-blue", "web", "NoDPU", [2, 4]);
        json_patch::merge(&mut object, &json!({"status": status}));
        let data = data(&[tenant("blue", "tenant-blue", &[], "x"), (kind, object)]);
        data.missing(|_, _| true)[0].lacking
    };
    assert_eq!(with(json!({})), 0, "one companion for each");
    assert_eq!(with(json!({"wanted": 6})), 2);
    // A rule of the platform: of two tenants, one of which has an entry from before the number was written.
    assert_eq!(with(json!({"tenants": {"blue": {"matched": 1, "wanted": 5}, "red": {"matched": 1}}})), 2);
}

#[test]
fn a_message_is_cut_between_characters() {
    let (_, object) = tenant("blue", "tenant-blue", &[], &"ü".repeat(2 * MESSAGE));
    let data = data(&[(TENANT, object)]);
    let message = &data.tenants["blue"].conditions[0].message;
    assert_eq!((message.chars().count(), message.chars().last()), (MESSAGE, Some('…')));
}
