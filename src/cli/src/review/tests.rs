use std::sync::LazyLock;

use outrigger_core::keys;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::admission::default_args;

const STATE: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: guests, labels: {imperator.tenzen.io/inject-resource: enabled}}
---
apiVersion: imperator.tenzen-y.io/v1alpha1
kind: Machine
metadata: {name: m, labels: {imperator.tenzen-y.io/machine-group: g}}
spec:
  nodePool: []
  machineTypes: [{name: t, spec: {cpu: 2, memory: 1Gi}, available: 4}]
status: {availableMachines: [{name: t, usage: {maximum: 4, reserved: 4}}]}
---
apiVersion: outrigger.dev/v1alpha1
kind: Tenant
metadata: {name: blue}
spec: {hosts: [host-a]}
---
apiVersion: v1
kind: Namespace
metadata: {name: tenant-blue, labels: {outrigger.dev/tenant: blue}}
---
apiVersion: v1
kind: Namespace
metadata: {name: free}
---
apiVersion: workload.universe.nvidia.com/v1alpha1
kind: WorkloadRule
metadata: {name: r, namespace: tenant-blue}
spec:
  workloadTerms: [{matchExpressions: [{key: "@", operator: Exists}]}]
  template: {apiVersion: v1, kind: Pod, spec: {containers: [{name: c}]}}
"#;

fn admission_of(state: &str) -> Admission {
    Admission::new(State::of_text("state", state).unwrap(), default_args()).unwrap()
}

fn admission() -> &'static Admission {
    static ADMISSION: LazyLock<Admission> = LazyLock::new(|| admission_of(STATE));
    &ADMISSION
}

/// Reads in chunks of a size, as a pipe may give them.
struct Chunks<'a>(&'a [u8], usize);

impl Read for Chunks<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let size = self.1.min(self.0.len()).min(buffer.len());
        let (now, later) = self.0.split_at(size);
        buffer[..size].copy_from_slice(now);
        self.0 = later;
        Ok(size)
    }
}

fn answers(input: &str, chunk: usize) -> (Vec<Value>, Option<String>) {
    let mut out = Vec::new();
    let result = answer(admission(), Chunks(input.as_bytes(), chunk), &mut out);
    let lines = String::from_utf8(out).unwrap();
    let answers = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["response"].take());
    (answers.collect(), result.err().map(|error| format!("{error:#}")))
}

fn review(uid: &str, kind: &str, namespace: &str, object: Value) -> Value {
    let (group, kind) = kind.split_once('/').unwrap();
    let version = if group.is_empty() || group == "apps" { "v1" } else { "v1alpha1" };
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": uid,
        "kind": {"group": group, "version": version, "kind": kind}, "operation": "CREATE", "namespace": namespace,
        "userInfo": {"username": "someone"}, "object": object}})
}

fn pod(spec: Value) -> Value {
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    json_patch::merge(&mut pod["spec"], &spec);
    pod
}

fn one(review: &Value) -> Value {
    let (mut answers, error) = answers(&review.to_string(), usize::MAX);
    assert_eq!((answers.len(), error), (1, None), "{review}");
    answers.remove(0)
}

#[test]
fn documents_come_in_every_way() {
    let reviews: Vec<String> =
        (0..4).map(|i| review(&i.to_string(), "apps/Deployment", "x", json!({})).to_string()).collect();
    for text in [reviews.concat(), reviews.join("\n"), format!("\n  {}\t\n\n", reviews.join("\r\n "))] {
        for chunk in [1, 7, 1000, usize::MAX] {
            let (answers, error) = answers(&text, chunk);
            assert_eq!(error, None);
            let uids: Vec<&str> = answers.iter().map(|answer| answer["uid"].as_str().unwrap()).collect();
            assert_eq!(uids, ["0", "1", "2", "3"]);
        }
    }
    assert_eq!(answers("", 1), (vec![], None));
    assert_eq!(answers(" \n", 1), (vec![], None));
}

#[test]
fn what_is_no_review_is_named_and_what_came_before_is_answered() {
    let good = review("1", "apps/Deployment", "x", json!({})).to_string();
    for (bad, message) in [
        ("{", "document 2: EOF"),
        ("x", "document 2: expected value"),
        ("{}", "document 2: the body is \"\" of \"\""),
        ("7", "document 2: the body is no AdmissionReview"),
        (
            r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}"#,
            "document 2: request: is missing",
        ),
        (
            r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{}}"#,
            "document 2: request.uid",
        ),
    ] {
        for chunk in [3, usize::MAX] {
            let (answers, error) = answers(&format!("{good}\n{bad}\n{good}"), chunk);
            let error = error.unwrap();
            assert_eq!(answers.len(), 1, "{bad}: {error}");
            // What is cut off ends where the next document does.
            assert!(error.contains(message) || bad == "{" && error.contains("document 2"), "{bad}: {error}");
        }
    }
    let (answers, error) = answers(&format!("{good} [\"{}", "x".repeat(MAX_BODY + 1)), usize::MAX);
    assert_eq!(answers.len(), 1);
    assert!(error.unwrap().ends_with("document 2: has more than 8388608 bytes"));
}

#[test]
fn pods_are_mutated_and_then_validated() {
    let placed = one(&review("1", "/Pod", "tenant-blue", pod(json!({}))));
    assert_eq!((&placed["allowed"], &placed["patchType"]), (&json!(true), &json!("JSONPatch")), "{placed}");
    let denied = one(&review("1", "/Pod", "tenant-blue", pod(json!({"hostNetwork": true}))));
    assert_eq!((&denied["allowed"], &denied["status"]["code"]), (&json!(false), &json!(403)));
    assert!(denied["status"]["message"].as_str().unwrap().starts_with("spec.hostNetwork"), "{denied}");
    assert_eq!(denied.get("patch"), None);
    let affinity = json!({"affinity": {"nodeAffinity": "x"}});
    let refused = one(&review("1", "/Pod", "tenant-blue", pod(affinity)));
    assert_eq!(refused["status"]["code"], 422, "mutation refuses first: {refused}");
    let contradiction = json!({"nodeSelector": {keys::NODE_TENANT: "red"}});
    let warned = one(&review("1", "/Pod", "tenant-blue", pod(contradiction)));
    assert!(warned["warnings"][0].as_str().unwrap().contains("no node can match"), "{warned}");
}

#[test]
fn who_is_asked_and_who_is_not() {
    let unplaced = pod(json!({"hostNetwork": true}));
    for namespace in ["free", "tenant-blue"] {
        let mut update = review("1", "/Pod", namespace, unplaced.clone());
        update["request"]["operation"] = json!("UPDATE");
        update["request"]["oldObject"] = pod(json!({}));
        let answer = one(&update);
        assert_eq!(answer["allowed"], json!(namespace == "free"), "{answer}");
        update["request"]["subResource"] = json!("status");
        assert_eq!(one(&update)["allowed"], json!(true));
        update["request"]["operation"] = json!("DELETE");
        assert_eq!(one(&update)["allowed"], json!(true));
    }
    let elsewhere = one(&review("1", "/Pod", "unheard-of", unplaced));
    assert_eq!(elsewhere["status"]["code"], 503);
    assert_eq!(
        elsewhere["status"]["message"],
        "namespace unheard-of is not known yet to belong to a tenant or to be offloaded, nor to be one whose guests get \
         slots; try again"
    );
    assert_eq!(one(&review("1", "apps/Deployment", "tenant-blue", json!({})))["allowed"], json!(true));
}

#[test]
fn our_own_kinds_are_validated() {
    let rule = json!({"metadata": {"name": "r"}, "spec": {"workloadTerms": [], "template": {}}});
    let denied = one(&review("1", "workload.universe.nvidia.com/WorkloadRule", "tenant-blue", rule));
    assert!(denied["status"]["message"].as_str().unwrap().starts_with("spec.workloadTerms: is empty"));
    let taken = json!({"metadata": {"name": "red"}, "spec": {"hosts": ["host-a"]}});
    let denied = one(&review("1", "outrigger.dev/Tenant", "", taken));
    assert!(denied["status"]["message"].as_str().unwrap().starts_with("spec.hosts[0]: is \"host-a\""));
    // Without a kind the object itself tells.
    let mut silent = review("1", "/Pod", "tenant-blue", pod(json!({"hostPID": true})));
    silent["request"]["kind"] = json!({});
    assert_eq!(one(&silent)["status"]["code"], 403);
    silent["request"]["object"] = json!({});
    assert_eq!(one(&silent)["status"]["code"], 400);
}

/// JSON with the keys and values of the objects that are reviewed, and with others.
fn any_json() -> impl Strategy<Value = Value> {
    const TEXTS: &str = "tenant-blue blue Exists In v1 Pod @";
    const KEYS: &str = "metadata spec affinity nodeAffinity tolerations containers initContainers \
        requiredDuringSchedulingIgnoredDuringExecution nodeSelectorTerms matchExpressions key operator values \
        annotations labels ownerReferences volumes securityContext schedulingGates workloadTerms template hosts \
        identities target name devices";
    let of = |words: &'static str, more: &[&'static str]| {
        let words: Vec<&str> = words.split_whitespace().chain(more.iter().copied()).collect();
        prop_oneof![prop::sample::select(words).prop_map(str::to_owned), ".{0,8}"]
    };
    let keys = of(KEYS, &[keys::WORKLOAD, keys::RULE_GENERATION, keys::HOST]);
    outrigger_cases::any::json(of(TEXTS, &[keys::NODE_TENANT]), keys, 5)
}

proptest! {
    // Each case is a big tree, and each run has others.
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_object_is_answered(
        kind in prop::sample::select(vec![
            ("", "v1", "Pod"), ("", "v1", "Binding"), ("resource.k8s.io", "v1", "ResourceClaim"),
            ("workload.universe.nvidia.com", "v1alpha1", "WorkloadRule"), ("outrigger.dev", "v1alpha1", "Tenant"),
            (keys::MACHINE_GROUP_DOMAIN, "v1alpha1", "Machine"),
        ]),
        operation in prop::sample::select(vec!["CREATE", "UPDATE", "DELETE", ""]),
        manager: bool, object in any_json(), old in any_json(),
    ) {
        let (group, version, kind) = kind;
        let user = if manager { "system:serviceaccount:outrigger-system:outrigger-manager" } else { "someone" };
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "u",
            "kind": {"group": group, "version": version, "kind": kind}, "operation": operation,
            "namespace": "tenant-blue", "userInfo": {"username": user}, "object": object, "oldObject": old}});
        let answer = one(&review);
        prop_assert!(answer["allowed"].is_boolean());
        // A denial says what of.
        prop_assert!(answer["allowed"] == true || !answer["status"]["message"].as_str().unwrap().is_empty());
    }

    #[test]
    fn whatever_is_read_is_answered_or_named(request in any_json(), text in ".{0,200}") {
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request});
        let _ = answers(&review.to_string(), 5);
        let _ = answers(&text, 3);
    }
}

/// A guest with something in it that may be anything.
fn guest(name: &str, more: &Value) -> Value {
    let mut object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    json_patch::merge(&mut object, more);
    let labels = json!({keys::MACHINE_GROUP: "g", keys::MACHINE_TYPE: "t", keys::POD_ROLE: "guest"});
    if object["metadata"].is_object() {
        json_patch::merge(&mut object["metadata"], &json!({"labels": labels}));
    }
    object
}

fn valid_machine() -> Value {
    json!({"apiVersion": "imperator.tenzen-y.io/v1alpha1", "kind": "Machine",
        "metadata": {"name": "new", "labels": {keys::MACHINE_GROUP: "h"}},
        "spec": {"nodePool": [], "machineTypes": [
            {"name": "t", "spec": {"cpu": "1", "memory": "1Gi", "gpu": {"type": "nvidia.com/gpu", "num": 1, "family": "f"}},
                "available": 1}]}})
}

/// Members that Pods and Machines have, with any value.
fn odd_member() -> impl Strategy<Value = Value> {
    const PATHS: &str = "spec.containers spec.affinity spec.affinity.nodeAffinity spec.tolerations spec.resources \
        spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms metadata.name \
        metadata.labels metadata.labels.imperator~tenzen-y~io/injecting-container spec.nodePool spec.machineTypes \
        spec metadata status";
    let path = prop::sample::select(PATHS.split_whitespace().collect::<Vec<_>>());
    (path, any_json()).prop_map(|(path, value)| {
        path.rsplit('.').fold(value, |value, key| json!({key.replace('~', "."): value}))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn guests_and_machines_are_answered(change in odd_member(), old in odd_member(), operation in 0..3_usize) {
        let machine = |change: &Value| {
            let mut machine = valid_machine();
            json_patch::merge(&mut machine, change);
            machine
        };
        let operation = ["CREATE", "UPDATE", "UPDATE"][operation];
        for (kind, namespace, object, old) in [
            ("/Pod", "guests", guest("p", &change), guest("p", &old)),
            ("imperator.tenzen-y.io/Machine", "", machine(&change), machine(&old)),
        ] {
            let mut review = review("1", kind, namespace, object);
            review["request"]["operation"] = json!(operation);
            // Slots are not what this is about.
            review["request"]["dryRun"] = json!(true);
            if operation == "UPDATE" {
                review["request"]["oldObject"] = old;
            }
            let answer = one(&review);
            prop_assert!(answer["allowed"] == true || !answer["status"]["message"].as_str().unwrap().is_empty());
        }
    }
}

/// Answers to guests one after the other: `+` for a creation, `-` for a deletion, `?` for a dry run.
fn stream(state: &str, events: &[&str]) -> String {
    let admission = admission_of(state);
    let input: Vec<String> = events
        .iter()
        .map(|event| {
            let (what, name) = event.split_at(1);
            let mut review = review(event, "/Pod", "guests", guest(name, &json!({})));
            review["request"]["dryRun"] = json!(what == "?");
            if what == "-" {
                review["request"]["operation"] = json!("DELETE");
                review["request"]["oldObject"] = review["request"]["object"].take();
            }
            review.to_string()
        })
        .collect();
    let mut out = Vec::new();
    answer(&admission, input.concat().as_bytes(), &mut out).unwrap();
    let allowed = |line: &str| {
        let answer: Value = serde_json::from_str(line).unwrap();
        let response = &answer["response"];
        let allowed = response["allowed"] == true;
        let message = response["status"]["message"].as_str().unwrap_or_default();
        assert!(allowed || message.ends_with("there is no <t> left"), "{answer}");
        if allowed { 'y' } else { 'n' }
    };
    String::from_utf8(out).unwrap().lines().map(allowed).collect()
}

#[test]
fn slots_are_counted_within_a_stream() {
    let usage =
        |usage: &str| STATE.replace("usage: {maximum: 4, reserved: 4}", &format!("usage: {{{usage}}}"));
    let two = usage("maximum: 4, reserved: 2");
    assert_eq!(stream(&two, &["+a", "?b", "+b", "+c", "?d", "+b"]), "yyynny");
    assert_eq!(stream(&two, &["+", "+", "+"]), "yyn", "without a name each is another");
    assert_eq!(stream(&two, &["+a", "+b", "-a", "+c", "+d"]), "yyyyn");
    // Guests that the status counts have theirs, whether the files have the Pods or not. One that waits takes the place of a
    // reservation: of three slots two are taken.
    let used = usage("maximum: 4, reserved: 2, used: 1, waiting: 1");
    assert_eq!(stream(&used, &["+a", "+b", "+c"]), "ynn");
    let known = guest(
        "known",
        &json!({"metadata": {"namespace": "guests", "uid": "u"}, "status": {"phase": "Running"}}),
    );
    let with = |pod: &Value| format!("{used}---\n{pod}");
    assert_eq!(stream(&with(&known), &["+a", "+b", "+c"]), "ynn");
    assert_eq!(stream(&with(&known), &["+a", "+b", "-known", "+c", "+d"]), "ynyyn");
    let other = guest("other", &json!({"metadata": {"namespace": "guests"}, "status": {"phase": "Failed"}}));
    assert_eq!(stream(&with(&other), &["+a", "+b", "+c"]), "ynn", "it has ended");
    assert_eq!(stream(&usage("maximum: 1, reserved: 3"), &["+a", "+b"]), "yn");
    assert_eq!(stream(&usage("maximum: 9, reserved: 0, slots: 2"), &["+a", "+b", "+c"]), "yyn");
}

/// The answer to a review on a state of several documents.
fn ask(state: &[&str], request: &Value) -> Value {
    let mut out = Vec::new();
    answer(&admission_of(&state.join("---\n")), request.to_string().as_bytes(), &mut out).unwrap();
    serde_json::from_slice::<Value>(&out).unwrap()["response"].take()
}

#[test]
fn a_namespace_with_a_namespace_offloading_is_offloaded() {
    let state = |strategy: &str| {
        format!(
            "apiVersion: v1\nkind: Namespace\nmetadata: {{name: far}}\n---\napiVersion: offloading.liqo.io/v1beta1\n\
             kind: NamespaceOffloading\nmetadata: {{name: offloading, namespace: far}}\nspec: {{podOffloadingStrategy: {strategy}}}"
        )
    };
    let answer = |strategy: &str| ask(&[&state(strategy)], &review("1", "/Pod", "far", pod(json!({}))));
    assert_eq!(answer("Remote")["patchType"], "JSONPatch");
    assert_eq!(answer("LocalAndRemote")["patchType"], "JSONPatch");
    assert_eq!((answer("Local").get("patch"), &answer("Local")["allowed"]), (None, &json!(true)));
    assert_eq!(answer("Elsewhere")["allowed"], json!(false));
}

#[test]
fn what_the_files_leave_out_is_as_the_controllers_would_make_it() {
    const FAR: &str = "apiVersion: v1\nkind: Namespace\nmetadata: {name: far}\n";
    const REMOTE: &str = "apiVersion: offloading.liqo.io/v1beta1\nkind: NamespaceOffloading\n\
        metadata: {name: offloading, namespace: far}\nspec: {podOffloadingStrategy: Remote}\n";
    const TENANT: &str =
        "apiVersion: outrigger.dev/v1alpha1\nkind: Tenant\nmetadata: {name: red}\nspec: {}\n";
    let far = review("1", "/Pod", "far", pod(json!({})));
    for state in [&[FAR, REMOTE][..], &[REMOTE, FAR], &[REMOTE]] {
        let answer = ask(state, &far);
        assert_eq!(answer["patchType"], "JSONPatch", "{state:?}: {answer}");
    }
    let local = REMOTE.replace("Remote", "Local");
    assert_eq!(ask(&[&local], &far), json!({"uid": "1", "allowed": true}));
    let tenants = ask(&[TENANT], &review("1", "/Pod", "tenant-red", pod(json!({}))));
    assert_eq!(tenants["patchType"], "JSONPatch", "{tenants}");
    assert_eq!(ask(&[TENANT], &review("1", "/Pod", "other", pod(json!({}))))["status"]["code"], 503);
    // The platform's own namespace is in every cluster.
    assert_eq!(ask(&[TENANT], &review("1", "/Pod", "universe", pod(json!({}))))["allowed"], json!(true));
    // A kind without version, nulls, and what only the object tells.
    let mut bare = review("1", "/Pod", "tenant-red", pod(json!({"hostPID": true})));
    bare["request"]["kind"] = json!({"kind": "Pod"});
    assert_eq!(ask(&[TENANT], &bare)["status"]["code"], 403);
    bare["request"]["subResource"] = Value::Null;
    bare["request"]["userInfo"] = json!({"username": null, "groups": null});
    bare["request"]["namespace"] = Value::Null;
    bare["request"]["object"]["metadata"]["namespace"] = json!("tenant-red");
    assert_eq!(ask(&[TENANT], &bare)["status"]["code"], 403);
    bare["request"]["operation"] = Value::Null;
    assert_eq!(ask(&[TENANT], &bare)["status"]["code"], 400);
}
