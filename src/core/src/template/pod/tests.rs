use super::*;
use serde_json::json;

/// A spec in which each text that is checked is there and right.
fn good() -> Value {
    let selector = json!({"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]});
    let term = json!({"topologyKey": "k", "labelSelector": selector, "namespaceSelector": selector, "namespaces": ["n"]});
    let probe = json!({"httpGet": {"port": "http"}, "tcpSocket": {"port": 80}});
    let container = json!({"name": "c", "image": "i", "livenessProbe": probe,
        "ports": [{"name": "http", "containerPort": 80, "hostPort": 8080}, {"containerPort": 81}],
        "resources": {"requests": {"cpu": 0.5, "example.com/x": "1000m"}, "limits": {"memory": "1.5Gi"}}});
    json!({
        "nodeSelector": {"example.com/k": "v", "e": ""},
        "affinity": {
            "nodeAffinity": {
                REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["24.10"]}]}]},
                PREFERRED: [{"weight": 1, "preference": {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b c"]}]}}],
            },
            "podAffinity": {REQUIRED: [term]},
            "podAntiAffinity": {PREFERRED: [{"weight": 1, "podAffinityTerm": term}]},
        },
        "topologySpreadConstraints": [{"topologyKey": "k", "labelSelector": selector}],
        "tolerations": [{"operator": "Exists"}, {"key": "k", "operator": "", "value": "v", "effect": "NoSchedule"},
            {"key": "k", "operator": "Gt", "value": "-5"}],
        "initContainers": [{"name": "i", "image": "i"}], "containers": [container], "volumes": [{"name": "c"}],
        "serviceAccountName": "a.b", "priorityClassName": "", "runtimeClassName": null, "hostname": "h",
        "schedulingGates": [{"name": "a/b"}], "readinessGates": [{"conditionType": "a/b"}],
    })
}

fn paths(spec: &Value) -> Vec<String> {
    faults(spec.as_object().unwrap(), "spec").into_iter().map(|fault| fault.path).collect()
}

#[test]
fn each_text_that_is_wrong_is_reported_with_its_path() {
    assert_eq!(paths(&good()), [""; 0]);
    let required =
        "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0";
    let preferred = "/affinity/nodeAffinity/preferredDuringSchedulingIgnoredDuringExecution/0/preference";
    let in_pods = "/affinity/podAffinity/requiredDuringSchedulingIgnoredDuringExecution/0";
    let anti = "/affinity/podAntiAffinity/preferredDuringSchedulingIgnoredDuringExecution/0/podAffinityTerm";
    let below = |parent: &str, child: &str| format!("{parent}{child}");
    for (at, value, path) in [
        ("/nodeSelector".to_owned(), json!({"a/b/c": "v"}), "nodeSelector[a/b/c]"),
        ("/nodeSelector".into(), json!({"a": "eu west"}), "nodeSelector[a]"),
        ("/nodeSelector".into(), json!({"a": 7}), "nodeSelector[a]"),
        (below(required, ""), json!(7), "nodeSelectorTerms[0]"),
        (
            below(required, "/matchExpressions/0/values"),
            json!(["-5"]),
            "nodeSelectorTerms[0].matchExpressions[0].values[0]",
        ),
        (below(preferred, "/matchExpressions/0/key"), json!("b c"), "[0].preference.matchExpressions[0].key"),
        (below(preferred, "/matchExpressions"), json!(7), "[0].preference.matchExpressions"),
        (below(in_pods, "/topologyKey"), json!(""), "[0].topologyKey"),
        (
            below(in_pods, "/labelSelector/matchLabels"),
            json!({"a": "b c"}),
            "[0].labelSelector.matchLabels[a]",
        ),
        (below(in_pods, "/namespaces"), json!(["a.b"]), "[0].namespaces[0]"),
        (
            below(anti, "/namespaceSelector/matchExpressions/0/values"),
            json!(["b", "c "]),
            "[0].podAffinityTerm.namespaceSelector.matchExpressions[0].values[1]",
        ),
        (
            "/topologySpreadConstraints/0/labelSelector/matchLabels".into(),
            json!({"a": "b c"}),
            "topologySpreadConstraints[0].labelSelector.matchLabels[a]",
        ),
        ("/tolerations/1/key".into(), json!("b c"), "tolerations[1].key"),
        ("/tolerations/1/key".into(), json!(""), "tolerations[1].key"),
        ("/tolerations/1/key".into(), json!(7), "tolerations[1].key"),
        ("/tolerations/1/value".into(), json!("b c"), "tolerations[1].value"),
        ("/tolerations/1/operator".into(), json!("Exists"), "tolerations[1].value"),
        ("/tolerations/1/operator".into(), json!("In"), "tolerations[1].operator"),
        ("/tolerations/1/effect".into(), json!("No"), "tolerations[1].effect"),
        ("/tolerations/2/value".into(), json!("1.5"), "tolerations[2].value"),
        ("/tolerations/2/value".into(), json!("+5"), "tolerations[2].value"),
        ("/initContainers/0/name".into(), json!("c"), "containers[0].name"),
        ("/containers/0/name".into(), json!("A"), "containers[0].name"),
        ("/containers/0/ports/0/name".into(), json!("HTTP"), "containers[0].ports[0].name"),
        ("/containers/0/ports/0/containerPort".into(), json!(70_000), "containers[0].ports[0].containerPort"),
        ("/containers/0/ports/1/containerPort".into(), json!(0), "containers[0].ports[1].containerPort"),
        ("/containers/0/ports/0/hostPort".into(), json!(-1), "containers[0].ports[0].hostPort"),
        (
            "/containers/0/livenessProbe/httpGet/port".into(),
            json!("a--b"),
            "containers[0].livenessProbe.httpGet.port",
        ),
        (
            "/containers/0/livenessProbe/tcpSocket/port".into(),
            json!(0),
            "containers[0].livenessProbe.tcpSocket.port",
        ),
        (
            "/containers/0/resources/requests".into(),
            json!({"gpu": 1}),
            "containers[0].resources.requests[gpu]",
        ),
        (
            "/containers/0/resources/limits".into(),
            json!({"cpu": "many"}),
            "containers[0].resources.limits[cpu]",
        ),
        (
            "/containers/0/resources/limits".into(),
            json!({"cpu": "-1"}),
            "containers[0].resources.limits[cpu]",
        ),
        (
            "/containers/0/resources/limits".into(),
            json!({"example.com/x": "500m"}),
            "containers[0].resources.limits[example.com/x]",
        ),
        ("/volumes/0/name".into(), json!("a.b"), "volumes[0].name"),
        ("/serviceAccountName".into(), json!("A"), "serviceAccountName"),
        ("/priorityClassName".into(), json!("a b"), "priorityClassName"),
        ("/runtimeClassName".into(), json!("a/b"), "runtimeClassName"),
        ("/hostname".into(), json!("a.b"), "hostname"),
        ("/schedulingGates/0/name".into(), json!(""), "schedulingGates[0].name"),
        ("/readinessGates/0/conditionType".into(), json!("a/b/c"), "readinessGates[0].conditionType"),
    ] {
        let mut spec = good();
        *spec.pointer_mut(&at).expect(&at) = value.clone();
        let found = paths(&spec);
        assert!(found.len() == 1 && found[0].ends_with(path), "{at} {value}: {found:?}");
    }
}
