use k8s_openapi::api::core::v1::Namespace;
use kube::core::PartialObjectMeta;
use outrigger_api::{Change, Tenant, WorkloadRule};
use outrigger_core::keys;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::caches::Caches;
use crate::decision::Decision;
use crate::handler::{CacheStale, Context, Settings};
use crate::review::{Request, UserInfo};
use crate::webhooks;

/// Asks an endpoint, with the default settings.
pub(crate) fn decide(path: &str, caches: &Caches, request: &mut Request) -> Result<Decision, CacheStale> {
    let settings = Settings::default();
    webhooks::endpoint(path)
        .unwrap()
        .decide(Context::new(caches, &settings), request)
        .map(|admission| admission.decision)
}

/// Code, message and warnings. `allowed`: the code of what is admitted.
pub(crate) fn response(decision: Decision, allowed: u16) -> (u16, String, Vec<String>) {
    match decision {
        Decision::Allow { warnings, .. } => (allowed, String::new(), warnings),
        Decision::Deny { code, message, .. } => (code, message, Vec::new()),
    }
}

pub(crate) fn denied(decision: Result<Decision, CacheStale>) -> (u16, String) {
    match decision {
        Ok(Decision::Deny { code, message, .. }) => (code, message),
        other => panic!("{other:?}"),
    }
}

/// What a watch says of an object.
pub(crate) fn applied<T: DeserializeOwned>(object: Value) -> Change<T> {
    Change::Applied(serde_json::from_value(object).unwrap())
}

pub(crate) fn namespace(name: &str, labels: &Value) -> Change<PartialObjectMeta<Namespace>> {
    applied(json!({"metadata": {"name": name, "labels": labels}}))
}

/// The request to create an object in a namespace, or to update it where there is an old one.
pub(crate) fn request_for(kind: &str, namespace: &str, object: &Value, old: &Value) -> Request {
    Request {
        uid: "1".into(),
        kind: webhooks::kind_named(kind).unwrap(),
        sub_resource: String::new(),
        namespace: namespace.into(),
        operation: if old.is_null() { "CREATE" } else { "UPDATE" }.into(),
        user_info: UserInfo { username: "someone".into(), groups: Vec::new() },
        object: object.clone(),
        old_object: old.clone(),
        dry_run: None,
        sizes: None,
    }
}

/// The object as it is admitted, or code and message of the refusal.
pub(crate) fn patched(decision: Decision, object: &Value) -> Result<Value, (u16, String)> {
    match decision {
        Decision::Allow { patch, .. } => {
            let mut object = object.clone();
            json_patch::patch(&mut object, &patch).unwrap();
            Ok(object)
        }
        Decision::Deny { code, message, .. } => Err((code, message)),
    }
}

pub(crate) fn tenant(name: &str, spec: Value) -> Tenant {
    let object = json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": "Tenant",
        "metadata": {"name": name, "uid": name, "generation": 1}, "spec": spec});
    serde_json::from_value(object).unwrap()
}

pub(crate) const MANAGER: &str = "system:serviceaccount:outrigger-system:outrigger-manager";

fn rule(generation: i64, valid: bool) -> WorkloadRule {
    let operator = if valid { "Exists" } else { "Perhaps" };
    serde_json::from_value(json!({
        "apiVersion": "workload.universe.nvidia.com/v1alpha1", "kind": "WorkloadRule",
        "metadata": {"name": "r", "namespace": "tenant-blue", "uid": "rule-uid", "generation": generation},
        "spec": {"workloadTerms": [{"matchExpressions": [{"key": "@", "operator": operator}]}],
            "template": {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "c"}]}}}}))
    .unwrap()
}

pub(crate) fn caches() -> Caches {
    let caches = Caches::default();
    caches.namespace(namespace("tenant-blue", &json!({keys::TENANT: "blue"})));
    caches.apply_rule(Change::Applied(rule(2, true)));
    caches
}

/// The creation of a companion of generation `generation`, by `user`.
pub(crate) fn request(user: &str, generation: &str) -> Request {
    let pod = json!({
        "metadata": {
            "annotations": {keys::HOST: "host-a", keys::RULE_GENERATION: generation},
            "ownerReferences": [{"apiVersion": "workload.universe.nvidia.com/v1alpha1", "kind": "WorkloadRule",
                "name": "r", "uid": "rule-uid", "controller": true}]},
        "spec": {"containers": [{"name": "c"}], "schedulingGates": [{"name": keys::ADMISSION_GATE}]}});
    let mut request = request_for("Pod", "tenant-blue", &pod, &Value::Null);
    request.user_info.username = user.into();
    request
}

#[test]
fn only_the_manager_creates_companions() {
    let Ok(Decision::Allow { patch, .. }) = decide("/mutate/pods", &caches(), &mut request(MANAGER, "2"))
    else {
        panic!("not allowed")
    };
    let patch = serde_json::to_string(&patch).unwrap();
    assert!(patch.contains("host-a") && patch.contains("/spec/schedulingGates"), "{patch}");
    for other in ["kubernetes-admin", "system:serviceaccount:tenant-blue:outrigger-manager", ""] {
        let (code, message) = denied(decide("/mutate/pods", &caches(), &mut request(other, "2")));
        assert_eq!(code, 403);
        assert!(message.starts_with("metadata.annotations[outrigger.dev/host]"), "{message}");
    }
}

/// A rule whose companions use the claims of another one, whose name is not a part of the claims' names.
fn sharing(generation: i64, of: &str) -> WorkloadRule {
    let mut rule = serde_json::to_value(rule(generation, true)).unwrap();
    rule["spec"]["deviceClaims"] = json!([{"name": "d", "fromRule": of}]);
    serde_json::from_value(rule).unwrap()
}

/// The creation of a companion of it for workload `w1`.
fn request_of(rule: &WorkloadRule) -> Request {
    let hash = rule.compile().unwrap().template_hash().to_owned();
    let mut request = request(MANAGER, &rule.metadata.generation.unwrap().to_string());
    request.object["metadata"]["annotations"][keys::TEMPLATE_HASH] = json!(hash);
    request.object["metadata"]["labels"] = json!({keys::WORKLOAD: "w1"});
    request
}

#[test]
fn a_companion_may_use_the_claim_that_its_rule_names_before_it_is_there() {
    let long = "a".repeat(60);
    for of in ["dpu.regex", &long] {
        let caches = caches();
        caches.apply_tenant(Change::Applied(tenant("blue", json!({}))));
        let rule = sharing(3, of);
        caches.apply_rule(Change::Applied(rule.clone()));
        let mut request = request_of(&rule);
        let decision = decide("/mutate/pods", &caches, &mut request.clone()).unwrap();
        request.object = patched(decision, &request.object).unwrap();
        assert_eq!(decide("/validate/pods", &caches, &mut request), Ok(Decision::allow()), "{of}");
        // Claims of other workloads and other rules stay reserved for these, and other users can't claim to act for a rule.
        let mut forged = request.clone();
        forged.object["metadata"]["labels"][keys::WORKLOAD] = json!("w2");
        let (code, message) = denied(decide("/validate/pods", &caches, &mut forged));
        assert!(code == 403 && message.contains("spec.resourceClaims[0].resourceClaimName"), "{message}");
        let mut others = request.clone();
        others.user_info.username = "somebody".into();
        assert_eq!(denied(decide("/validate/pods", &caches, &mut others)).0, 403);
        caches.apply_rule(Change::Applied(sharing(4, "another")));
        assert!(decide("/validate/pods", &caches, &mut request) != Ok(Decision::allow()));
    }
}

#[test]
fn claims_are_those_of_the_rule_that_the_companion_was_made_from() {
    let caches = caches();
    // In a later call of the request, of which the first has taken the gate.
    let mut request = request_of(&sharing(3, "first"));
    request.object["spec"]["schedulingGates"] = json!([]);
    caches.apply_rule(Change::Applied(sharing(4, "second")));
    let (code, message) = denied(decide("/mutate/pods", &caches, &mut request.clone()));
    assert_eq!(code, 503, "the manager retries");
    assert!(message.contains("generation 4 by now") && message.contains("generation 3, which"), "{message}");
    // What is newer in other ways only is as good.
    caches.apply_rule(Change::Applied(sharing(5, "first")));
    assert!(matches!(decide("/mutate/pods", &caches, &mut request), Ok(Decision::Allow { .. })));
}

#[test]
fn a_manager_that_knows_an_earlier_state_of_a_rule_only_starts_no_companion() {
    let caches = caches();
    let mut request = request(MANAGER, "3");
    caches.apply_rule(Change::Applied(rule(4, true)));
    let (code, message) = denied(decide("/mutate/pods", &caches, &mut request.clone()));
    assert_eq!(code, 503, "the manager retries");
    assert!(
        message
            .ends_with("is of generation 4 by now, and the companion was made from generation 3; try again")
    );
    // The rule may change between the calls of one request, of which the first takes the gate.
    request.object["spec"]["schedulingGates"] = json!([]);
    assert!(decide("/mutate/pods", &caches, &mut request).is_ok());
}

#[test]
fn a_stale_cache_is_not_missing_data() {
    let stale = |caches: &Caches, request: &Request| {
        let request = &mut request.clone();
        decide("/mutate/pods", caches, request).unwrap_err().to_string()
    };
    let newer = request(MANAGER, "3");
    let caches = caches();
    assert!(stale(&caches, &newer).contains("of generation 3 is not known yet"));
    caches.apply_rule(Change::Applied(rule(3, true)));
    assert!(decide("/mutate/pods", &caches, &mut newer.clone()).is_ok());
    let mut elsewhere = newer.clone();
    elsewhere.namespace = "tenant-new".into();
    assert!(stale(&caches, &elsewhere).contains("tenant-new is not known yet"));
    let mut another = newer;
    another.object["metadata"]["ownerReferences"][0]["uid"] = json!("another");
    assert!(stale(&caches, &another).contains("WorkloadRule r"));
}

#[test]
fn what_does_not_fit_is_denied_with_its_path() {
    let invalid = caches();
    invalid.apply_rule(Change::Applied(rule(3, false)));
    let (code, message) = denied(decide("/mutate/pods", &invalid, &mut request(MANAGER, "2")));
    assert_eq!(code, 422);
    assert!(message.contains("no longer valid"), "{message}");

    let (_, message) = denied(decide("/mutate/pods", &caches(), &mut request(MANAGER, "x")));
    assert!(message.contains("outrigger.dev/rule-generation]: must be an integer"), "{message}");

    let mut plain = request("someone", "");
    plain.object = json!({"spec": {"affinity": {"nodeAffinity": "x"}}});
    let (code, message) = denied(decide("/mutate/pods", &caches(), &mut plain));
    assert_eq!((code, message.as_str()), (422, "spec.affinity.nodeAffinity: must be an object, is a string"));
    plain.object = json!(null);
    assert_eq!(denied(decide("/mutate/pods", &caches(), &mut plain)).0, 422);
    plain.kind.kind = "Service".into();
    assert_eq!(denied(decide("/mutate/pods", &caches(), &mut plain)).0, 400);
}

#[test]
fn only_the_creation_of_a_pod_itself_is_changed() {
    for (operation, sub_resource) in [("UPDATE", ""), ("DELETE", ""), ("CREATE", "binding")] {
        let mut request = request("someone", "2");
        request.operation = operation.into();
        request.sub_resource = sub_resource.into();
        assert_eq!(decide("/mutate/pods", &caches(), &mut request), Ok(Decision::allow()));
    }
}

#[test]
fn a_second_round_changes_nothing() {
    let caches = caches();
    let pod = json!({"spec": {"containers": []}});
    let mut request = request_for("Pod", "tenant-blue", &pod, &Value::Null);
    request.object = patched(decide("/mutate/pods", &caches, &mut request).unwrap(), &pod).unwrap();
    assert_eq!(decide("/mutate/pods", &caches, &mut request), Ok(Decision::allow()));
}

/// A Pod as mutation leaves it.
fn placed() -> Value {
    let pod = json!({"metadata": {}, "spec": {"containers": [{"name": "c"}]}});
    let mut request = request_for("Pod", "tenant-blue", &pod, &Value::Null);
    patched(decide("/mutate/pods", &caches(), &mut request).unwrap(), &pod).unwrap()
}

#[test]
fn the_final_pod_is_validated_by_its_tenants_policy() {
    let caches = caches();
    let ask = |caches: &Caches, object: &Value, old: &Value| {
        decide("/validate/pods", caches, &mut request_for("Pod", "tenant-blue", object, old))
    };
    let good = placed();
    assert!(
        ask(&caches, &good, &Value::Null).unwrap_err().to_string().contains("Tenant blue is not known yet")
    );
    caches.apply_tenant(Change::Applied(tenant("blue", json!({}))));
    assert_eq!(ask(&caches, &good, &Value::Null), Ok(Decision::allow()));
    let mut bad = good.clone();
    bad["spec"]["hostNetwork"] = json!(true);
    for old in [&Value::Null, &good] {
        let (code, message) = denied(ask(&caches, &bad, old));
        assert_eq!(code, 403);
        assert!(message.starts_with("spec.hostNetwork: is true"), "{message}");
    }
    assert_eq!(ask(&caches, &bad, &bad), Ok(Decision::allow()), "it was so before");
    let mut ephemeral = request_for("Pod", "tenant-blue", &bad, &good);
    ephemeral.sub_resource = "ephemeralcontainers".into();
    assert_eq!(denied(decide("/validate/pods", &caches, &mut ephemeral)).0, 403);
    let mut privileged = tenant("blue", json!({"podSecurity": "privileged"}));
    privileged.metadata.generation = Some(2);
    caches.apply_tenant(Change::Applied(privileged));
    assert_eq!(ask(&caches, &bad, &Value::Null), Ok(Decision::allow()));
}

#[test]
fn only_the_scheduler_binds_and_only_to_the_tenants_nodes() {
    let caches = caches();
    let bind = |user: &str, node: &str| {
        let object = json!({"metadata": {"name": "p"}, "target": {"kind": "Node", "name": node}});
        let mut request = request_for("Binding", "tenant-blue", &object, &Value::Null);
        request.user_info.username = user.into();
        decide("/validate/pods", &caches, &mut request)
    };
    for (name, owner) in [("blue-dpu", Some("blue")), ("red-dpu", Some("red")), ("plain", None)] {
        let labels = owner.map(|owner| json!({keys::NODE_TENANT: owner}));
        caches.node(applied(json!({"metadata": {"name": name, "labels": labels}})));
    }
    const SCHEDULER: &str = "system:kube-scheduler";
    assert_eq!(bind(SCHEDULER, "blue-dpu"), Ok(Decision::allow()));
    assert!(denied(bind("someone", "blue-dpu")).1.contains("only the scheduler binds"));
    assert!(denied(bind(SCHEDULER, "red-dpu")).1.contains("belongs to tenant \"red\""));
    assert!(denied(bind(SCHEDULER, "plain")).1.contains("belongs to nobody"));
    assert!(bind(SCHEDULER, "new").unwrap_err().to_string().contains("\"new\" is not known yet"));
}

#[test]
fn a_claim_may_ask_for_the_classes_of_its_tenant() {
    let caches = caches();
    caches.apply_tenant(Change::Applied(tenant("blue", json!({"deviceClasses": ["crypto"]}))));
    let ask = |class: &str| {
        let object = json!({"spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": class}}]}}});
        let mut request = request_for("ResourceClaim", "tenant-blue", &object, &Value::Null);
        decide("/validate/resourceclaims", &caches, &mut request)
    };
    assert_eq!(ask("crypto"), Ok(Decision::allow()));
    assert!(denied(ask("gpu")).1.starts_with("spec.devices.requests[0].exactly.deviceClassName: is \"gpu\""));
}

#[test]
fn what_another_tenant_has_is_refused() {
    let caches = caches();
    let red = json!({"identities": ["agent.red"], "hosts": ["host-r"], "namespace": "reds"});
    caches.apply_tenant(Change::Applied(tenant("red", red)));
    let class = json!({"metadata": {"name": "crypto"}});
    caches.device_class(applied(class));
    let ask = |object: &Tenant, old: Option<&Tenant>| {
        let value = |tenant: &Tenant| serde_json::to_value(tenant).unwrap();
        let mut request = request_for("Tenant", "", &value(object), &old.map_or(Value::Null, value));
        decide("/validate/tenants", &caches, &mut request)
    };
    let good = tenant(
        "blue",
        json!({"identities": ["agent.blue"], "hosts": ["host-b"], "deviceClasses": ["crypto"]}),
    );
    assert_eq!(ask(&good, None), Ok(Decision::allow()));
    for (spec, path, words) in [
        (json!({"identities": ["agent.blue", "agent.red"]}), "spec.identities[1]", "of tenant \"red\""),
        (json!({"hosts": ["host-b", "host-r"]}), "spec.hosts[1]", "of tenant \"red\""),
        (json!({"namespace": "reds"}), "spec.namespace", "of tenant \"red\""),
        (json!({"deviceClasses": ["gpu"]}), "spec.deviceClasses[0]", "no such DeviceClass"),
        (json!({"hosts": ["NO"]}), "spec.hosts[0]", "not a name"),
    ] {
        let (code, message) = denied(ask(&tenant("blue", spec), Some(&good)));
        assert_eq!(code, 422);
        assert!(message.starts_with(path) && message.contains(words), "{message}");
    }
    let (_, message) = denied(ask(&tenant("green", json!({"namespace": "universe"})), None));
    assert!(message.starts_with("spec.namespace: is \"universe\", where the platform's own"), "{message}");
    let (_, message) = denied(ask(&tenant("green", json!({"namespace": "tenant-blue"})), None));
    assert!(message.starts_with("spec.namespace") && message.contains("\"blue\""), "{message}");
    assert_eq!(message.matches("spec.namespace").count(), 1, "{message}");
    // What it has had all along it keeps, so that it can be changed elsewhere, and finalized.
    let both =
        tenant("blue", json!({"identities": ["agent.red"], "hosts": ["host-r"], "deviceClasses": ["gone"]}));
    assert_eq!(ask(&both, Some(&both)), Ok(Decision::allow()));
    let invalid = tenant("blue", json!({"hosts": ["NO"]}));
    assert_eq!(ask(&invalid, Some(&invalid)), Ok(Decision::allow()));
    let otherwise = tenant("blue", json!({"hosts": ["NEITHER"]}));
    assert_eq!(denied(ask(&otherwise, Some(&invalid))).0, 422, "it was not so before");
}

#[test]
fn a_rule_is_refused_with_all_that_is_wrong_and_warned_of_what_is_odd() {
    let caches = caches();
    let ask = |object: &WorkloadRule, old: Option<&WorkloadRule>| {
        let value = |rule: &WorkloadRule| serde_json::to_value(rule).unwrap();
        let old = old.map_or(Value::Null, value);
        let mut request = request_for("WorkloadRule", "tenant-blue", &value(object), &old);
        decide("/validate/workloadrules", &caches, &mut request)
    };
    // The Tenant isn't known yet: the rule is validated by itself.
    let mut escaping = rule(1, true);
    let mut template = escaping.spec.template.tree();
    template["spec"]["hostPID"] = json!(true);
    escaping.spec.template = template.into();
    assert!(matches!(ask(&escaping, None), Ok(Decision::Allow { .. })));
    caches.apply_tenant(Change::Applied(tenant("blue", json!({}))));
    let (code, message) = denied(ask(&escaping, None));
    assert_eq!(
        (code, message.as_str()),
        (422, "spec.template.spec.hostPID: is true and shares the DPU's processes; remove it")
    );
    let (_, message) = denied(ask(&rule(1, false), None));
    assert!(message.starts_with("spec.workloadTerms[0].matchExpressions[0].operator"), "{message}");
    assert_eq!(ask(&escaping, Some(&escaping)), Ok(Decision::allow()), "it was so before");
    let Ok(Decision::Allow { warnings, .. }) = ask(&rule(1, true), None) else { panic!() };
    assert_eq!(warnings, ["the tenant has no DPU: companions will wait for one"]);
}

#[test]
fn a_tenants_rules_have_a_size_together() {
    let caches = caches();
    let named = |name: &str, text: usize| {
        let mut rule = rule(1, true);
        rule.metadata.name = Some(name.to_owned());
        let mut template = rule.spec.template.tree();
        template["metadata"] = json!({"annotations": {"text": "x".repeat(text)}});
        rule.spec.template = template.into();
        rule
    };
    let size = named("a", 0).size();
    assert!((300..1500).contains(&size), "{size}");
    let limit = 3 * size + caches.other_rules_size(named("a", 0).metadata.namespace.as_deref().unwrap(), "a");
    caches.apply_tenant(Change::Applied(tenant("blue", json!({"limits": {"ruleBytes": limit}}))));
    let ask = |object: &WorkloadRule| {
        let object = serde_json::to_value(object).unwrap();
        let mut request = request_for("WorkloadRule", "tenant-blue", &object, &Value::Null);
        decide("/validate/workloadrules", &caches, &mut request)
    };
    let taken = |name: &str, text: usize| matches!(ask(&named(name, text)), Ok(Decision::Allow { .. }));
    for name in ["a", "b"] {
        assert!(taken(name, 0));
        caches.apply_rule(Change::Applied(named(name, 0)));
    }
    assert!(taken("c", 0));
    let (code, message) = denied(ask(&named("c", 1)));
    let would = limit + 1;
    assert_eq!(code, 403);
    assert!(message.starts_with(&format!(
        "spec: exceeded quota: Tenant spec.limits.ruleBytes: {would} would be used, at most {limit} are allowed, {} by this rule",
        size + 1
    )), "{message}");
    // The limit is lowered: what is there may stay as large as it is, and no larger.
    caches.apply_tenant(Change::Applied({
        let mut lowered = tenant("blue", json!({"limits": {"ruleBytes": 1}}));
        lowered.metadata.generation = Some(2);
        lowered
    }));
    assert!(taken("a", 0) && !taken("a", 1) && !taken("c", 0));
}

/// The audit annotations of the steps, and the Pod as they leave it.
fn audited(caches: &Caches, request: &mut Request) -> (Vec<(&'static str, String)>, Value) {
    let before = request.object.clone();
    let decision = decide("/mutate/pods", caches, request).unwrap();
    let Decision::Allow { audit, .. } = &decision else { panic!("{decision:?}") };
    (audit.clone(), patched(decision.clone(), &before).unwrap())
}

#[test]
fn no_audit_annotation_has_two_values_in_the_calls_of_one_request() {
    let caches = caches();
    let isolation = ("isolation", "kind=Tenant name=blue".to_owned());
    let rule_of =
        |generation: i64| format!("kind=WorkloadRule namespace=tenant-blue name=r generation={generation}");
    let (first, pod) = audited(&caches, &mut request(MANAGER, "2"));
    assert_eq!(first, [("companion", rule_of(2)), isolation.clone()]);

    let mut again = request(MANAGER, "2");
    again.object = pod;
    let (none, pod) = audited(&caches, &mut again);
    assert_eq!(none, [], "what changes nothing has no key");

    // Another webhook adds a term to the affinity, and meanwhile the rule changes.
    caches.apply_rule(Change::Applied(rule(3, true)));
    again.object = pod;
    let terms = again.object.pointer_mut(outrigger_core::selector::POINTER).unwrap().as_array_mut().unwrap();
    terms.push(json!({"matchExpressions": [{"key": "x", "operator": "Exists"}]}));
    let (second, _) = audited(&caches, &mut again);
    assert_eq!(second, [("companion-again", rule_of(3)), isolation]);
}

#[test]
fn a_refusal_names_its_step_and_what_decided() {
    let caches = caches();
    caches.apply_tenant(Change::Applied(tenant("blue", json!({}))));
    let by = |path: &str, request: &mut Request| match decide(path, &caches, request) {
        Ok(Decision::Deny { by, .. }) => by,
        other => panic!("{other:?}"),
    };
    assert_eq!(by("/mutate/pods", &mut request("somebody", "2")), "step=keys kind=Tenant name=blue");
    let mut wrong = request("somebody", "2");
    wrong.object = json!({"metadata": {}, "spec": {"affinity": 1}});
    assert_eq!(by("/mutate/pods", &mut wrong), "step=isolation kind=Tenant name=blue");
    let mut wrong = request(MANAGER, "2");
    wrong.object["metadata"]["annotations"][keys::WORKLOAD] = json!("no workload");
    let rule = "kind=WorkloadRule namespace=tenant-blue name=r generation=2";
    assert_eq!(by("/mutate/pods", &mut wrong), format!("step=companion {rule}"));
    // Nothing was placed, so the final object is refused.
    assert_eq!(by("/validate/pods", &mut request(MANAGER, "2")), format!("step=validation {rule}"));
    let mut pod = request("somebody", "2");
    pod.object = json!({"metadata": {}, "spec": {"containers": [{"name": "c"}]}});
    assert_eq!(by("/validate/pods", &mut pod), "step=validation kind=Tenant name=blue");
}
