use super::*;

#[test]
fn a_node_has_only_what_outrigger_reads_and_writes() {
    let mut dpu = json!({"metadata": {"name": "n", "uid": "u", "labels": {keys::NODE_TENANT: "blue", keys::DPU_HOST: "h", "rack": "7"},
            "annotations": {"a": "b"}},
        "spec": {"podCIDR": "10.0.0.0/24", "taints": [{"key": keys::TENANT, "value": "blue"}, {"key": "other"}, {"key": keys::UNSCHEDULABLE}]},
        "status": {"addresses": [1], "conditions": [{"type": "Ready", "status": "True"}, {"type": "DiskPressure"}]}});
    assert!(node(&mut dpu, Default::default()));
    let expected = json!({"apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "n", "uid": "u", "labels": {keys::NODE_TENANT: "blue", keys::DPU_HOST: "h"}},
        "spec": {"taints": [{"key": keys::TENANT, "value": "blue"}, {"key": keys::UNSCHEDULABLE}], "unschedulable": false},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    assert_eq!(dpu, expected);
    assert!(!node(&mut json!({"metadata": {"labels": {"rack": "7"}}}), Default::default()));
}

#[test]
fn only_outriggers_objects_are_kept() {
    let is_kept = |keep: Keep, mut object: Value| keep(&mut object, Default::default());
    let labelled = json!({"metadata": {"name": "x", "labels": {"app.kubernetes.io/name": "outrigger"}}});
    assert!(is_kept(is_own, labelled));
    for (name, expected) in
        [("outrigger", true), ("outrigger-ca", true), ("outriggers", false), ("kube-root-ca.crt", false)]
    {
        assert_eq!(is_kept(is_own, json!({"metadata": {"name": name}})), expected, "{name}");
    }
    assert!(is_kept(
        is_named,
        json!({"metadata": {"name": "mine"}, "webhooks": [{"name": "pods.outrigger.dev"}]})
    ));
    assert!(is_kept(namespace, json!({"metadata": {"labels": {keys::TENANT: "blue"}}})));
    assert!(!is_kept(namespace, json!({"metadata": {"labels": {"a": "b"}}})));
    let mut crd = json!({"metadata": {"name": "tenants.outrigger.dev"}, "spec": {"versions": [{"name": "v1alpha1", "served": true, "schema": {}}]}});
    assert!(definition(&mut crd, Default::default()));
    assert_eq!(crd["spec"]["versions"][0], json!({"name": "v1alpha1", "served": true}));
    assert!(!is_kept(definition, json!({"metadata": {"name": "others.example.org"}})));
}

#[test]
fn the_end_of_a_log_has_whole_lines() {
    assert_eq!(end_of("one\ntwo\n", 8), ("one\ntwo\n", false));
    assert_eq!(end_of("one\ntwo\n", 6), ("two\n", true));
    assert_eq!(end_of("ääää", 5), ("ää", true));
}
