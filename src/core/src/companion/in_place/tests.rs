use super::*;
use crate::companion::content_hash;
use crate::ids::RuleName;
use crate::rule::RuleSpec;

fn template(spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "spec": spec})
}

fn containers(resources: Value) -> Value {
    template(json!({"containers": [{"name": "c", "resources": resources}, {"name": "d"}]}))
}

fn cpu(amount: &str) -> Value {
    containers(json!({"requests": {"cpu": amount}}))
}

fn parts_of(template: &Value) -> Option<String> {
    parts(DpuSelectionPolicy::Any, template, &Devices::default())
}

/// What changes in place from one template to another.
fn changed(from: &Value, to: &Value) -> Option<InPlace> {
    changes(&parts_of(to).unwrap(), &parts_of(from).unwrap())
}

const AMOUNTS: InPlace = InPlace { amounts: true, images: false, others: false };
const IMAGES: InPlace = InPlace { amounts: false, images: true, others: false };
const OTHERS: InPlace = InPlace { amounts: false, images: false, others: true };

#[test]
fn templates_that_differ_in_amounts_differ_in_nothing_else() {
    for other in [
        cpu("2"),
        containers(json!({})),
        containers(json!({"limits": {"memory": "1Gi", "cpu": 3}, "requests": {"memory": "1Mi"}})),
    ] {
        assert_eq!(changed(&cpu("1"), &other), Some(AMOUNTS), "{other}");
        let content = |t: &Value| content_hash(DpuSelectionPolicy::Any, t, &Devices::default());
        assert_ne!(content(&other), content(&cpu("1")));
    }
    assert_eq!(changed(&cpu("1"), &cpu("1000m")), Some(InPlace::default()));
    let with = |pointer: &str, value: Value| {
        let mut other = cpu("1");
        *other.pointer_mut(pointer).unwrap() = value;
        other
    };
    for other in [
        with("/spec/containers/0/name", json!("e")),
        containers(json!({"requests": {"cpu": "1", "ephemeral-storage": "1Gi"}})),
        with("/spec/containers/1", json!({"name": "d", "args": ["x"]})),
    ] {
        assert_eq!(changed(&cpu("1"), &other), None, "{other}");
    }
    let here = parts(DpuSelectionPolicy::SameNode, &cpu("1"), &Devices::default()).unwrap();
    assert_eq!(changes(&here, &parts_of(&cpu("1")).unwrap()), None);
    assert_eq!(changes(&here, "of another release"), None);
}

#[test]
fn amounts_of_containers_that_end_first_and_amounts_that_are_read_are_fixed() {
    let of = |policy: &str, amount: &str| {
        let init = json!({"name": "i", "restartPolicy": policy, "resources": {"limits": {"cpu": amount}}});
        template(json!({"containers": [{"name": "c"}], "initContainers": [init]}))
    };
    assert_eq!(changed(&of("Always", "1"), &of("Always", "2")), Some(AMOUNTS));
    assert_eq!(changed(&of("Never", "1"), &of("Never", "2")), None);
    // A container that reads its amounts when it starts would keep what it has read.
    let reads = |amount: &str, of: &str, image: &str| {
        let mut reads = cpu(amount);
        let reference = json!({"resource": "limits.cpu", "fieldPath": "metadata.name"});
        reads["spec"]["containers"][1]["env"] = json!([{"name": "X", "valueFrom": {of: reference}}]);
        reads["spec"]["containers"][1]["image"] = image.into();
        reads
    };
    let before = reads("1", "resourceFieldRef", "i:1");
    assert_eq!(changed(&before, &reads("2", "resourceFieldRef", "i:1")), None);
    assert_eq!(changed(&before, &reads("1", "resourceFieldRef", "i:2")), Some(IMAGES));
    assert_eq!(changed(&reads("1", "fieldRef", "i:1"), &reads("2", "fieldRef", "i:1")), Some(AMOUNTS));
    let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "spec": {}});
    assert_eq!(parts_of(&claim), None);
}

/// A template with an image of its container, one of its init container, tolerations of these keys, and a deadline.
fn whole(image: &str, init: &str, tolerations: &[&str], deadline: Option<i64>) -> Value {
    let tolerations: Vec<_> =
        tolerations.iter().map(|key| json!({"key": key, "operator": "Exists"})).collect();
    let mut spec = json!({"containers": [{"name": "c", "image": image}, {"name": "d", "image": "d:1"}],
        "initContainers": [{"name": "c", "image": init}], "tolerations": tolerations});
    if let Some(deadline) = deadline {
        spec["activeDeadlineSeconds"] = deadline.into();
    }
    template(spec)
}

#[test]
fn what_kubernetes_lets_change_is_no_fixed_part() {
    let before = whole("c:1", "i:1", &["a"], Some(60));
    for (to, expected) in [
        (whole("c:1", "i:1", &["a"], Some(60)), Some(InPlace::default())),
        (whole("c:2", "i:1", &["a"], Some(60)), Some(IMAGES)),
        (whole("c:1", "i:2", &["a"], Some(60)), Some(IMAGES)),
        (whole("c:1", "i:1", &["b", "a"], Some(60)), Some(OTHERS)),
        (whole("c:1", "i:1", &["b"], Some(60)), None),
        (whole("c:1", "i:1", &[], Some(60)), None),
        // The Pod itself says which deadline it has.
        (whole("c:1", "i:1", &["a"], Some(90)), Some(OTHERS)),
        (whole("c:1", "i:1", &["a"], None), Some(OTHERS)),
        // The API server sets another policy for that tag, and it can't be changed later.
        (whole("c:latest", "i:1", &["a"], Some(60)), None),
    ] {
        assert_eq!(changed(&before, &to), expected, "{to}");
    }
    let mut both = whole("c:2", "i:1", &["a"], None);
    both["spec"]["containers"][1]["resources"] = json!({"limits": {"cpu": "1"}});
    assert_eq!(changed(&before, &both), Some(InPlace { amounts: true, images: true, others: true }));
    let keys: Vec<_> = (0..MAX_PARTS).map(|i| format!("k{i}")).collect();
    let keys: Vec<_> = keys.iter().map(String::as_str).collect();
    assert_eq!(parts_of(&whole("c:1", "i:1", &keys, None)), None);
    assert!(parts_of(&whole("c:1", "i:1", &keys[5..], None)).is_some());
}

/// The rule of a template, and what is known of a companion of another one.
fn rule_and_companion(to: Value, from: &Value) -> (Rule, Observed) {
    let spec = RuleSpec {
        policy: DpuSelectionPolicy::Any,
        template: to.into(),
        updates: true,
        ..RuleSpec::new(RuleName::new("r").unwrap())
    };
    let observed = Observed { uid: "u".into(), parts: parts_of(from), ..Observed::default() };
    (Rule::compile(spec).unwrap(), observed)
}

/// The Pod that the API server and a kubelet have made of a template.
fn pod(template: &Value) -> Value {
    let mut pod = template.clone();
    pod["metadata"] = json!({"uid": "u", "resourceVersion": "7"});
    let running = |name: &str, id: &str| json!({"name": name, "containerID": id, "state": {"running": {}}});
    pod["status"] = json!({"containerStatuses": [running("c", "x://1"), running("d", "x://2")],
        "initContainerStatuses": [{"name": "c", "containerID": "x://0", "state": {"terminated": {}}}]});
    pod
}

fn patch(from: &Value, to: &Value, pod: &Value) -> Option<Value> {
    let (rule, observed) = rule_and_companion(to.clone(), from);
    Some(Fields::of(&rule, &observed, pod)?.patch(&rule, &observed))
}

#[test]
fn a_patch_has_the_fields_that_the_template_changes_and_which_containers_they_restart() {
    let before = whole("c:1", "i:1", &["a"], Some(60));
    let present = pod(&before);
    let to = whole("c:2", "i:2", &["a", "b"], Some(30));
    let made = patch(&before, &to, &present).unwrap();
    let toleration = |key: &str| json!({"key": key, "operator": "Exists"});
    assert_eq!(made["metadata"]["resourceVersion"], "7");
    assert_eq!(made["metadata"]["uid"], "u");
    let annotations = &made["metadata"]["annotations"];
    assert_eq!(annotations[keys::TEMPLATE_PARTS], json!(rule_and_companion(to.clone(), &before).0.parts()));
    // The init container has ended, and isn't run again.
    assert_eq!(annotations[keys::RESTARTS], "x://1=c:1");
    assert_eq!(
        made["spec"],
        json!({"containers": [{"name": "c", "image": "c:2"}], "initContainers": [{"name": "c", "image": "i:2"}],
            "tolerations": [toleration("a"), toleration("b")], "activeDeadlineSeconds": 30})
    );
    // Somebody has put another registry in, and a toleration that the template doesn't have: neither is the template's to change.
    let mut others = present;
    others["spec"]["containers"][1]["image"] = "mirror.example/d:1".into();
    others["spec"]["tolerations"] = json!([toleration("a"), toleration("z")]);
    let made = patch(&before, &whole("c:1", "i:1", &["a", "b"], Some(60)), &others).unwrap();
    let tolerations = json!({"tolerations": [toleration("a"), toleration("z"), toleration("b")]});
    assert_eq!(made["spec"], tolerations);
    assert_eq!(made["metadata"]["annotations"][keys::RESTARTS], "");
    // What the Pod has already is left out.
    let made = patch(&before, &to, &pod(&to)).unwrap();
    assert_eq!((&made["spec"], &made["metadata"]["annotations"][keys::RESTARTS]), (&json!({}), &json!("")));
}

#[test]
fn what_a_container_runs_is_known_until_the_kubelet_has_acted() {
    let of = |image: &str| whole(image, "i:1", &[], None);
    // The Pod has the image `from`, and a container that runs another one by the last change.
    let restarts = |from: &str, last: &str, to: &str| {
        let mut present = pod(&of(from));
        present["metadata"]["annotations"] = json!({keys::RESTARTS: last});
        let made = patch(&of(from), &of(to), &present).unwrap();
        made["metadata"]["annotations"][keys::RESTARTS].clone()
    };
    assert_eq!(restarts("c:2", "x://1=c:1", "c:3"), "x://1=c:1");
    assert_eq!(restarts("c:2", "x://1=c:1", "c:1"), "", "no kubelet restarts it for what it runs");
    assert_eq!(restarts("c:2", "x://9=c:1", "c:1"), "x://1=c:2", "that one has ended");
    // Of another container, on which the kubelet hasn't acted either.
    assert_eq!(restarts("c:1", "x://2=d:0", "c:2"), "x://1=c:1 x://2=d:0");
}

#[test]
fn a_deadline_is_set_or_becomes_less() {
    let of = |deadline| whole("c:1", "i:1", &[], deadline);
    for (from, to, expected) in [
        (None, Some(60), Some(json!({"activeDeadlineSeconds": 60}))),
        (Some(60), Some(59), Some(json!({"activeDeadlineSeconds": 59}))),
        (Some(60), Some(61), None),
        (Some(60), None, None),
    ] {
        let spec = patch(&of(from), &of(to), &pod(&of(from))).map(|patch| patch["spec"].clone());
        assert_eq!(spec, expected, "{from:?} {to:?}");
    }
    let mut lacks = pod(&of(None));
    lacks["spec"]["containers"] = json!([]);
    assert_eq!(patch(&of(None), &whole("c:2", "i:1", &[], None), &lacks), None);
}

#[test]
fn a_companion_that_serves_counts_as_down_while_a_container_may_be_restarted() {
    let observed = |ready, trouble| Observed { ready, trouble, ..Observed::default() };
    for (trouble, is_changing, is_impaired) in [
        (Some(Cause::Resizing), true, true),
        (Some(Cause::Updating), true, true),
        (Some(Cause::ResizeDeferred), false, true),
        (Some(Cause::ResizeInfeasible), false, true),
        (Some(Cause::DeviceUnhealthy), false, true),
        (Some(Cause::Refused), false, false),
        (None, false, false),
    ] {
        let serves = observed(true, trouble);
        assert_eq!((serves.is_changing(), serves.is_impaired()), (is_changing, is_impaired), "{trouble:?}");
        let down = observed(false, trouble);
        assert!(!down.is_changing() && !down.is_impaired(), "{trouble:?}: it counts as down anyway");
    }
}
