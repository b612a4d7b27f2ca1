//! Rules of the platform, which concern several tenants.

use super::*;

/// A rule of the platform for the workloads of an app, of the tenants with these labels.
fn admin(name: &str, app: &str, tenants: Value) -> Value {
    let mut rule = with(rule(name, app), "/metadata/namespace", json!("universe"));
    rule["kind"] = json!("AdminWorkloadRule");
    rule["spec"]["template"]["spec"]["hostNetwork"] = json!(true);
    rule["spec"]["tenantSelector"] = tenants;
    rule
}

fn only(tenant: &str) -> Value {
    json!({"matchLabels": {keys::TENANT: tenant}})
}

/// The usual state, in which the other tenant has a workload too.
fn with_red(more: &[Value]) -> Vec<Value> {
    state(&[&[pod("store", "web", "web", "c")], more].concat())
}

/// `CHANGE tenant workload` of each companion.
fn of_tenants(report: &Value) -> Vec<String> {
    let all = report["companions"].as_array().unwrap();
    let text = |entry: &Value, key: &str| entry[key].as_str().unwrap().to_owned();
    all.iter()
        .map(|entry| {
            format!("{} {} {}", text(entry, "change"), text(entry, "tenant"), text(entry, "workload"))
        })
        .collect()
}

#[test]
fn each_kind_of_change_for_a_tenant() {
    let old = || admin("r", "web", Value::Null);
    let image = |rule| with(rule, "/spec/template/spec/containers/0/image", json!("i:2"));
    let another = json!([{"asAnnotation": {"name": "all"}}]);
    for (present, new, expected) in [
        (vec![], old(), &["Created shop/web"][..]),
        (vec![old()], old(), &[]),
        (vec![old()], image(old()), &["Replaced shop/web"]),
        (vec![old()], with(old(), "/spec/workloadInfoInject", another), &["Annotated shop/web"]),
        (vec![old()], admin("r", "db", Value::Null), &["Created shop/db", "Deleted shop/web"]),
        (vec![old()], admin("r", "web", only("red")), &["Deleted shop/web"]),
        (vec![admin("r", "web", only("red"))], old(), &["Created shop/web"]),
        (vec![admin("r", "web", only("red"))], image(admin("r", "web", only("red"))), &[]),
        // A tenant's rule of the same name is another one.
        (vec![rule("r", "web")], old(), &["Created shop/web"]),
    ] {
        let report = diff(&state(&present), std::slice::from_ref(&new), &["--tenant", "blue"]).unwrap();
        assert_eq!(changes(&report), expected, "{new}");
        assert_eq!(report["tenants"], json!(["blue"]));
        for entry in report["companions"].as_array().unwrap() {
            assert_eq!(
                (&entry["ruleKind"], &entry["namespace"]),
                (&json!("AdminWorkloadRule"), &json!("universe"))
            );
        }
    }
}

#[test]
fn companions_of_the_platform_run_on_the_tenants_own_dpus() {
    let report = diff(&with_red(&[]), &[admin("r", "web", Value::Null)], &[]).unwrap();
    assert_eq!(of_tenants(&report), ["Created blue shop/web", "Created red store/web"]);
    let nodes: Vec<_> =
        report["companions"].as_array().unwrap().iter().map(|entry| &entry["nodes"]).collect();
    assert_eq!(nodes, [&json!(["a-dpu"]), &json!(["c-dpu"])]);
    assert_eq!((report.get("tenant"), &report["tenants"]), (None, &json!(["blue", "red"])));
    let names: Vec<_> =
        report["companions"].as_array().unwrap().iter().map(|entry| &entry["companion"]).collect();
    assert_ne!(names[0], names[1]);
}

#[test]
fn a_tenant_counts_that_a_rule_selects_before_or_after() {
    let tenants = |present: Value, new: &Value| {
        let report = diff(&with_red(&[present]), std::slice::from_ref(new), &[]).unwrap();
        (report["tenants"].clone(), of_tenants(&report))
    };
    let moved = tenants(admin("r", "web", only("blue")), &admin("r", "web", only("red")));
    assert_eq!(moved.0, json!(["blue", "red"]));
    assert_eq!(moved.1, ["Deleted blue shop/web", "Created red store/web"]);
    let nobody = admin("r", "web", only("green"));
    assert_eq!(tenants(nobody.clone(), &nobody), (json!([]), vec![]));
    // The labels of the Tenant count.
    let gold = json!({"matchLabels": {"tier": "gold"}});
    let labelled = with(tenant("red", json!(["c"])), "/metadata/labels", json!({"tier": "gold"}));
    let report = diff(&with_red(&[labelled]), &[admin("r", "web", gold)], &[]).unwrap();
    assert_eq!(of_tenants(&report), ["Created red store/web"]);
}

#[test]
fn rules_of_both_kinds_are_compared_together() {
    // The WorkloadRules name their tenant by their namespace.
    let new = [rule("own", "db"), admin("r", "web", only("red"))];
    let report = diff(&with_red(&[]), &new, &[]).unwrap();
    assert_eq!(of_tenants(&report), ["Created blue shop/db", "Created red store/web"]);
    let kinds: Vec<_> = report["rules"].as_array().unwrap().iter().map(|rule| &rule["kind"]).collect();
    assert_eq!(kinds, ["WorkloadRule", "AdminWorkloadRule"]);
    let only_blue = diff(&with_red(&[]), &new, &["--tenant", "blue"]).unwrap();
    assert_eq!(of_tenants(&only_blue), ["Created blue shop/db"]);
}

#[test]
fn pruning_concerns_the_kinds_that_are_given_or_named() {
    let present = [rule("own", "db"), admin("r", "web", Value::Null), admin("s", "db", Value::Null)];
    let deleted = |new: &[Value], flags: &[&str]| {
        let report = diff(&state(&present), new, &[&["--tenant", "blue"], flags].concat()).unwrap();
        let all = report["rules"].as_array().unwrap().iter();
        let names = all
            .filter(|rule| rule["change"] == "Deleted")
            .map(|rule| rule["name"].as_str().unwrap().to_owned());
        (names.collect::<Vec<_>>(), changes(&report))
    };
    let named = |names: &[&str], companions: &[&str]| {
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        (owned(names), owned(companions))
    };
    let admin_only = [admin("r", "web", Value::Null)];
    assert_eq!(deleted(&admin_only, &[]), named(&[], &[]));
    assert_eq!(deleted(&admin_only, &["--prune"]), named(&["s"], &["Deleted shop/db"]));
    assert_eq!(deleted(&[rule("own", "db")], &["--prune"]), named(&[], &[]));
    assert_eq!(deleted(&[], &["--prune"]), named(&["own"], &["Deleted shop/db"]));
    let both = "--prune=WorkloadRule,AdminWorkloadRule";
    assert_eq!(deleted(&admin_only, &[both]), named(&["own", "s"], &["Deleted shop/db", "Deleted shop/db"]));
    // Of another tenant nothing is deleted but the platform's.
    let of_red = with(rule("theirs", "web"), "/metadata/namespace", json!("tenant-red"));
    let state = with_red(&[of_red, rule("own", "db"), admin("r", "web", Value::Null)]);
    let report = diff(&state, &[rule("own", "db")], &[both]).unwrap();
    assert_eq!(of_tenants(&report), ["Deleted blue shop/web", "Deleted red store/web"]);
}

#[test]
fn a_refused_rule_of_the_platform_changes_nothing() {
    let tolerant = with(
        admin("r", "web", Value::Null),
        "/spec/template/spec/tolerations",
        json!([{"operator": "Exists"}]),
    );
    let report = diff(&with_red(&[admin("r", "web", Value::Null)]), &[tolerant], &[]).unwrap();
    assert_eq!(report["rules"][0]["change"], "Refused");
    assert_eq!(report["rules"][0]["errors"][0]["path"], "spec.template.spec.tolerations[0]");
    assert_eq!((&report["companions"], &report["tenants"]), (&json!([]), &json!(["blue", "red"])));
}

#[test]
fn rules_elsewhere_are_not_served() {
    let elsewhere = with(admin("r", "web", Value::Null), "/metadata/namespace", json!("default"));
    let report = diff(&with_red(&[]), std::slice::from_ref(&elsewhere), &[]).unwrap();
    assert_eq!((&report["rules"][0]["namespace"], &report["companions"]), (&json!("default"), &json!([])));
    let warning = report["rules"][0]["warnings"][0].as_str().unwrap();
    assert!(warning.contains("AdminWorkloadRules are served in universe"), "{warning}");
    // Companions may be in another namespace than the rules.
    let flags = ["--admin-rules-namespace=default", "--admin-resources-namespace=platform"];
    let report = diff(&with_red(&[]), &[elsewhere], &flags).unwrap();
    assert_eq!(of_tenants(&report), ["Created blue shop/web", "Created red store/web"]);
    assert_eq!(report["companions"][0]["namespace"], "platform");
}

#[test]
fn companions_of_the_platform_are_known_by_what_they_carry() {
    let companion = |tenant: &str, workload: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {
            "name": format!("x-{tenant}-{workload}"), "namespace": "universe", "uid": "x",
            "labels": {keys::TENANT: tenant, keys::WORKLOAD: workload, keys::RULE: "r"},
            "annotations": {keys::ADMIN_RULE: "r", keys::RULE_UID: ""}},
        "spec": {"containers": [], "nodeName": "c"}})
    };
    // Companions are no workloads, wherever they run.
    let state = with_red(&[admin("r", "web", Value::Null), companion("red", "gone")]);
    let report = diff(&state, &[admin("r", "none", Value::Null)], &[]).unwrap();
    assert_eq!(of_tenants(&report), ["Deleted red gone"]);
    let report = diff(&state, &[], &["--prune=AdminWorkloadRule"]).unwrap();
    assert_eq!(of_tenants(&report), ["Deleted red gone"]);
    assert_eq!(report["companions"][0]["reason"], "RuleDeleted");
}

#[test]
fn no_tenants_limits_hold_for_the_platform() {
    let limited = with(tenant("blue", json!(["a", "b"])), "/spec/limits", json!({"companions": 1}));
    let limit = |new: Value| {
        let report = diff(&state(std::slice::from_ref(&limited)), &[new], &["--tenant", "blue"]).unwrap();
        let noted = report["notes"]
            .as_array()
            .unwrap()
            .iter()
            .any(|note| note.as_str().unwrap().contains("limits.companions"));
        (changes(&report).len(), noted)
    };
    assert_eq!(limit(for_all(admin("r", "", Value::Null))), (2, false));
    assert_eq!(limit(for_all(rule("r", ""))), (2, true));
}

#[test]
fn workloads_on_no_tenants_host_are_left_out_and_counted() {
    let lost = with(pod("shop", "lost", "web", ""), "/spec", json!({"containers": []}));
    let any = with(admin("r", "web", Value::Null), "/spec/dpuSelectionPolicy", json!("Any"));
    let report = diff(&with_red(std::slice::from_ref(&lost)), std::slice::from_ref(&any), &[]).unwrap();
    assert_eq!(of_tenants(&report), ["Created blue shop/web", "Created red store/web"]);
    let notes = report["notes"].to_string();
    assert!(notes.contains("on no Tenant's host are left out (1)"), "{notes}");
    // Where the tenant is named, all are its own.
    let report = diff(&state(&[lost]), &[any], &["--tenant", "blue"]).unwrap();
    assert_eq!(of_tenants(&report), ["Created blue shop/lost", "Created blue shop/web"]);
}

#[test]
fn an_annotation_that_the_agent_does_not_send_counts_in_favour_of_the_companion_and_is_noted() {
    let pod =
        with(pod("shop", "out", "out", "a"), "/metadata/annotations", json!({"example.com/off": "true"}));
    let mut opt_out = admin("r", "out", only("blue"));
    let expressions =
        opt_out.pointer_mut("/spec/workloadTerms/0/matchExpressions").unwrap().as_array_mut().unwrap();
    expressions
        .push(json!({"key": ".state.extra.annotations['example.com/off']", "operator": "DoesNotExist"}));
    let found = |flags: &[&str]| {
        let flags = [&["--tenant", "blue"], flags].concat();
        let report =
            diff(&state(std::slice::from_ref(&pod)), std::slice::from_ref(&opt_out), &flags).unwrap();
        let notes = report["notes"].to_string();
        (changes(&report), notes.contains("annotations that the agent doesn't send (example.com/off)"))
    };
    assert_eq!(found(&[]), (vec!["Created shop/out".to_owned()], true));
    assert_eq!(found(&["--allow-annotation", "example.com/off"]), (vec![], false));
}
