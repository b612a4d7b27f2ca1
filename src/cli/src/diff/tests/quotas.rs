//! ResourceQuotas, which the API server counts after admission.

use super::*;

/// A quota of the tenant's namespace, with what is used of it.
fn quota(name: &str, hard: Value, used: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": name, "namespace": "tenant-blue"},
        "spec": {"hard": hard}, "status": {"hard": hard, "used": used}})
}

/// Rules for all workloads, whose companions have a container with these resources.
fn taking(resources: Value) -> Value {
    with(for_all(rule("r", "")), "/spec/template/spec/containers/0/resources", resources)
}

/// Changes and refusals, and the notes.
fn found(present: &[Value], new: &Value) -> (Vec<String>, String) {
    let mut state = state(present);
    state[0]["spec"]["deviceClasses"] = json!(["gpu"]);
    let report = diff(&state, std::slice::from_ref(new), &["--tenant", "blue"]).unwrap();
    let all = report["companions"].as_array().unwrap().iter();
    let of = |entry: &Value| {
        let reason = entry["reason"].as_str().unwrap_or_default();
        format!("{} {reason}", entry["change"].as_str().unwrap()).trim().to_owned()
    };
    let mut all: Vec<String> = all.map(of).collect();
    all.sort();
    (all, report["notes"].to_string())
}

fn changes_with(quota: Value, resources: Value) -> Vec<String> {
    found(&[quota], &taking(resources)).0
}

#[test]
fn what_exceeds_a_quota_is_refused_in_the_api_servers_words() {
    let few = quota("few", json!({"count/pods": "3", "pods": "4"}), json!({"count/pods": "2", "pods": "2"}));
    let refusal =
        "Refused exceeded quota: few, requested: count/pods=1, used: count/pods=3, limited: count/pods=3";
    assert_eq!(changes_with(few, json!({})), ["Created", refusal]);

    let cpu = || quota("cpu", json!({"requests.cpu": "1500m"}), json!({"requests.cpu": "0"}));
    let refusal = "Refused exceeded quota: cpu, requested: requests.cpu=1, used: requests.cpu=1, limited: requests.cpu=1500m";
    assert_eq!(changes_with(cpu(), json!({"requests": {"cpu": "1"}})), ["Created", refusal]);
    // Limits are requests where those are missing.
    assert_eq!(changes_with(cpu(), json!({"limits": {"cpu": "1"}})), ["Created", refusal]);
    assert_eq!(changes_with(cpu(), json!({"requests": {"cpu": "750m"}})), ["Created", "Created"]);
    // A quota of limits doesn't count requests.
    let limits = quota("l", json!({"limits.memory": "1Gi"}), json!({"limits.memory": "0"}));
    let both = json!({"requests": {"memory": "1Mi"}, "limits": {"memory": "600Mi"}});
    let found = changes_with(limits.clone(), both);
    assert!(
        found[1].contains(
            "requested: limits.memory=600Mi, used: limits.memory=600Mi, limited: limits.memory=1Gi"
        ),
        "{found:?}"
    );
    assert_eq!(found[0], "Created");
    // What a quota counts has to be named.
    let unnamed = "Refused failed quota: l: must specify limits.memory for: c";
    assert_eq!(changes_with(limits, json!({"requests": {"memory": "1Mi"}})), [unnamed, unnamed]);
    let gpus = quota("g", json!({"requests.example.com/gpu": "1"}), json!({"requests.example.com/gpu": "0"}));
    let found = changes_with(gpus.clone(), json!({"limits": {"example.com/gpu": "1"}}));
    assert!(found[1].contains("exceeded quota: g"), "{found:?}");
    assert_eq!(changes_with(gpus, json!({})), ["Created", "Created"]);
}

#[test]
fn all_quotas_of_the_namespace_count_and_no_others() {
    let few = |name: &str| quota(name, json!({"pods": "1"}), json!({"pods": "1"}));
    let (changes, _) = found(&[few("a"), few("b")], &rule("r", "web"));
    assert!(
        changes[0].contains("exceeded quota: a,") && changes[0].contains("; exceeded quota: b,"),
        "{changes:?}"
    );
    let elsewhere = with(few("a"), "/metadata/namespace", json!("tenant-red"));
    assert_eq!(found(&[elsewhere], &rule("r", "web")).0, ["Created"]);
    // What is refused takes nothing of the others.
    let one = quota("one", json!({"pods": "1"}), json!({"pods": "0"}));
    let cpu = quota("cpu", json!({"cpu": "2"}), json!({"cpu": "1"}));
    let (changes, _) = found(&[one, cpu], &taking(json!({"requests": {"cpu": "1"}})));
    assert_eq!(changes[0], "Created");
    assert!(changes[1].contains("used: cpu=2, limited: cpu=2"), "{changes:?}");
    assert!(changes[1].contains("used: pods=1, limited: pods=1"), "{changes:?}");
}

#[test]
fn companions_that_go_give_back_what_they_have() {
    let full = || quota("full", json!({"pods": "1", "cpu": "1"}), json!({"pods": "1", "cpu": "1"}));
    let web = |cpu: &str| {
        let replaced =
            with(rule("r", "web"), "/spec/updateStrategy", json!({"rollingUpdate": {"resize": "Replace"}}));
        with(replaced, "/spec/template/spec/containers/0/resources", json!({"requests": {"cpu": cpu}}))
    };
    assert_eq!(found(&[full(), web("1")], &web("500m")).0, ["Replaced TemplateChanged"]);
    let (too_much, _) = found(&[full(), web("1")], &web("2"));
    assert_eq!(too_much, ["Refused exceeded quota: full, requested: cpu=2, used: cpu=0, limited: cpu=1"]);
    let (moved, _) = found(
        &[full(), web("1")],
        &with(rule("r", "db"), "/spec/template", web("1")["spec"]["template"].clone()),
    );
    assert_eq!(moved, ["Created", "Deleted Unmatched"]);
    // One that stays until somebody deletes it keeps what it has.
    let on_delete = with(web("500m"), "/spec/updateStrategy", json!({"type": "OnDelete"}));
    let (both, _) = found(&[full(), web("1")], &for_all(on_delete));
    assert!(
        both[0].starts_with("Outdated") && both[1].starts_with("Refused exceeded quota: full"),
        "{both:?}"
    );
}

#[test]
fn claims_that_go_give_back_their_devices() {
    const DEVICES: &str = "gpu.deviceclass.resource.k8s.io/devices";
    let full = || quota("full", json!({DEVICES: "2"}), json!({DEVICES: "2"}));
    let sharing = |app: &str, count: u64| {
        let request = json!({"name": "d", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count}});
        let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
            "spec": {"devices": {"requests": [request]}}});
        let rule = with(rule("r", app), "/spec/template", claim);
        with(rule, "/spec/workloadInfoInject", json!([]))
    };
    let changes = |new: &Value| found(&[full(), sharing("web", 2)], new).0;
    assert_eq!(changes(&sharing("web", 1)), ["Replaced TemplateChanged"]);
    assert_eq!(changes(&sharing("db", 2)), ["Created", "Deleted Unmatched"]);
    let too_much = format!(
        "Refused exceeded quota: full, requested: {DEVICES}=3, used: {DEVICES}=0, limited: {DEVICES}=2"
    );
    assert_eq!(changes(&sharing("web", 3)), [too_much]);
}

#[test]
fn scopes_select_pods() {
    let scoped = |scopes: Value, selector: Value| {
        let mut scoped = quota("s", json!({"pods": "0"}), json!({"pods": "0"}));
        scoped["spec"]["scopes"] = scopes;
        scoped["spec"]["scopeSelector"] = selector;
        scoped
    };
    let priority = |operator: &str, values: Value| {
        let expression = json!({"scopeName": "PriorityClass", "operator": operator, "values": values});
        scoped(Value::Null, json!({"matchExpressions": [expression]}))
    };
    let some = || json!({"requests": {"cpu": "1m"}});
    let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "usual"},
        "globalDefault": true, "value": 1});
    for (quota, resources, refused) in [
        (scoped(json!(["BestEffort"]), Value::Null), json!({}), true),
        (scoped(json!(["BestEffort"]), Value::Null), some(), false),
        (scoped(json!(["NotBestEffort"]), Value::Null), some(), true),
        (scoped(json!(["NotTerminating"]), Value::Null), some(), true),
        (scoped(json!(["Terminating"]), Value::Null), some(), false),
        (scoped(json!(["NotTerminating", "BestEffort"]), Value::Null), some(), false),
        (priority("In", json!(["usual"])), some(), true),
        (priority("NotIn", json!(["usual"])), some(), false),
        (priority("Exists", json!([])), some(), true),
        (priority("DoesNotExist", json!([])), some(), false),
        (scoped(json!(["CrossNamespacePodAffinity"]), Value::Null), some(), false),
    ] {
        let (changes, _) = found(&[quota.clone(), class.clone()], &taking(resources));
        assert_eq!(changes[0].starts_with("Refused"), refused, "{quota} {changes:?}");
    }
}

#[test]
fn what_cannot_be_known_is_noted() {
    let mut new = quota("new", json!({"pods": "0"}), json!({}));
    let (refused, _) = found(&[new.clone()], &rule("r", "web"));
    assert_eq!(refused, ["Refused status unknown for quota: new, resources: pods"]);
    new.as_object_mut().unwrap().remove("status");
    let (changes, notes) = found(&[new], &rule("r", "web"));
    assert_eq!(changes, ["Created"]);
    assert!(notes.contains("ResourceQuota new of tenant-blue has no status.hard"), "{notes}");

    let future =
        with(quota("f", json!({"pods": "0"}), json!({"pods": "0"})), "/spec/scopes", json!(["Future"]));
    let (changes, notes) = found(&[future], &rule("r", "web"));
    assert_eq!(changes, ["Created"]);
    assert!(notes.contains("ResourceQuota f of tenant-blue has a scope that isn't known"), "{notes}");

    let range = json!({"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "usual", "namespace": "tenant-blue"}});
    let enough = quota("q", json!({"pods": "9"}), json!({"pods": "0"}));
    let (_, notes) = found(&[range, enough.clone()], &rule("r", "web"));
    assert!(notes.contains("LimitRange usual of tenant-blue may give containers other requests"), "{notes}");
    assert!(!found(std::slice::from_ref(&enough), &rule("r", "web")).1.contains("LimitRange"));
    let kata = with(rule("r", "web"), "/spec/template/spec/runtimeClassName", json!("kata"));
    let blue = with(state(&[]).remove(0), "/spec/runtimeClasses", json!(["kata"]));
    let (changes, notes) = found(&[blue.clone(), enough], &kata);
    assert_eq!(changes, ["Created"]);
    assert!(
        notes.contains("the overhead of RuntimeClass kata isn't counted against quotas of tenant-blue"),
        "{notes}"
    );
    assert!(!found(&[blue], &kata).1.contains("RuntimeClass"), "there is no quota");
}

#[test]
fn a_pod_takes_what_its_containers_take_together() {
    let requests = |cpu: &str| json!({"requests": {"cpu": cpu}});
    let container = |cpu: &str| json!({"name": format!("c{cpu}"), "image": "i", "resources": requests(cpu)});
    let sidecar =
        |cpu: &str| json!({"name": "s", "image": "i", "restartPolicy": "Always", "resources": requests(cpu)});
    let taken = |spec: Value| {
        let new = with(rule("r", "web"), "/spec/template/spec", spec);
        let (changes, _) = found(&[quota("q", json!({"cpu": "1m"}), json!({"cpu": "0"}))], &new);
        let (_, after) = changes[0].split_once("requested: cpu=").unwrap();
        after.split_once(',').unwrap().0.to_owned()
    };
    assert_eq!(taken(json!({"containers": [container("1"), container("500m")]})), "1500m");
    // An init container runs before them, with the sidecars that were started before it.
    assert_eq!(taken(json!({"initContainers": [container("3")], "containers": [container("1")]})), "3");
    assert_eq!(
        taken(json!({"initContainers": [sidecar("1"), container("3")], "containers": [container("1")]})),
        "4"
    );
    assert_eq!(
        taken(json!({"initContainers": [container("3"), sidecar("1")], "containers": [container("1")]})),
        "3"
    );
    assert_eq!(taken(json!({"initContainers": [sidecar("1")], "containers": [container("1")]})), "2");
    assert_eq!(taken(json!({"containers": [container("1")], "overhead": {"cpu": "250m"}})), "1250m");
    assert_eq!(taken(json!({"resources": requests("5"), "containers": [container("1")]})), "5");
}
