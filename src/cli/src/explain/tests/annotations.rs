//! Annotations of Pods that the tenant's agent doesn't send.

use super::*;

fn opt_out(mut rule: Value) -> Value {
    let key = ".state.extra.annotations['example.com/off']";
    rule["spec"]["workloadTerms"][0]["matchExpressions"] =
        json!([{"key": key, "operator": "NotIn", "values": ["true"]}]);
    rule
}

fn admin() -> Value {
    let mut rule = opt_out(rule("universe", "platform", json!({})));
    rule["kind"] = json!("AdminWorkloadRule");
    rule
}

fn out() -> Value {
    let mut pod = pod("work", "web", "blue-a");
    pod["metadata"]["annotations"] = json!({"example.com/off": "true"});
    pod
}

/// The first workload of the only rule.
fn workload(report: &Value) -> Value {
    report["rules"][0]["workloads"][0].clone()
}

#[test]
fn an_annotation_that_is_not_sent_is_unknown_and_counts_for_the_platform() {
    let objects = [tenant("blue"), dpu("blue-a"), admin(), out()];
    let hidden = workload(&explained(&objects, &[]).unwrap());
    assert_eq!(hidden["outcome"], "Companion");
    assert!(hidden["reason"].as_str().unwrap().contains("counts in favour"), "{hidden}");
    let expression = &hidden["terms"][0]["expressions"][0];
    assert_eq!((&expression["passes"], &expression["unknown"]), (&json!(false), &json!(true)));
    assert_eq!(expression.get("found"), None, "the manager doesn't see it");
    for flag in ["--allow-annotation=example.com/*", "--send-annotation=*"] {
        let sent = workload(&explained(&objects, &[flag]).unwrap());
        assert_eq!((&sent["outcome"], sent.get("reason")), (&json!("NoMatch"), None), "{flag}");
        assert_eq!(sent["terms"][0]["expressions"][0]["found"], "true");
    }
}

#[test]
fn a_rule_of_the_tenant_is_undecided_if_its_agent_has_not_created_it() {
    let mut own = opt_out(rule("tenant-blue", "r", json!({})));
    let live = |own: &Value| {
        let source = live::Source { live: true, ..live::Source::files("cluster") };
        let objects = [tenant("blue"), dpu("blue-a"), own.clone(), out()];
        workload(&from(source, &objects, &[]).unwrap())
    };
    let hidden = live(&own);
    assert_eq!(hidden["outcome"], "Undecided");
    assert!(hidden["reason"].as_str().unwrap().contains("none is made"), "{hidden}");
    own["metadata"]["annotations"] = json!({keys::ORIGIN: "uid"});
    assert_eq!(live(&own)["outcome"], "NoMatch", "the agent sends what this rule names");
    // Of files it isn't known who has created a rule.
    let objects = [tenant("blue"), dpu("blue-a"), opt_out(rule("tenant-blue", "r", json!({}))), out()];
    assert_eq!(workload(&explained(&objects, &[]).unwrap())["outcome"], "NoMatch");
}
