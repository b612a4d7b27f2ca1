use serde_json::json;

use super::*;
use crate::companion::{self, Action, Observed};
use crate::ids::{TenantId, WorkloadId};
use crate::index::CompanionKey;
use crate::json::Json;
use crate::keys;
use crate::lint::{self, LintContext};
use crate::rule::tests::{compiled, named};
use crate::rule::{DpuSelectionPolicy, ExpressionSpec, InjectionSpec, Operator, Rule, RuleSpec};
use crate::template::Kind;
use crate::tenant::Policy;
use crate::validate::{self, ValidationContext};
use crate::workload::tests::nginx;
use std::sync::Arc;

fn crypto() -> Value {
    json!({"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "crypto"}}]}})
}

fn claim_template(spec: &Value) -> Value {
    json!({"apiVersion": API_VERSION, "kind": "ResourceClaim", "metadata": {"labels": {"a": "b"}}, "spec": spec})
}

fn pod_template() -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "spec": {
        "resourceClaims": [{"name": "own", "resourceClaimName": "x"}],
        "initContainers": [{"name": "i"}], "containers": [{"name": "c"}, {"name": "d"}]}})
}

fn edit(json: &mut Json, change: impl FnOnce(&mut Value)) {
    let mut tree = json.tree();
    change(&mut tree);
    *json = tree.into();
}

fn spec(template: Value, devices: DevicesSpec) -> RuleSpec {
    RuleSpec {
        uid: "rule-uid".into(),
        injections: vec![InjectionSpec::new(".metadata.resourceName", "name")],
        template: template.into(),
        devices,
        ..named("r")
    }
}

fn device(name: &str) -> DeviceClaimSpec {
    DeviceClaimSpec { name: name.into(), spec: Some(crypto().into()), ..DeviceClaimSpec::default() }
}

fn with_claims(claims: Vec<DeviceClaimSpec>) -> RuleSpec {
    spec(pod_template(), DevicesSpec { claims, ..DevicesSpec::default() })
}

fn with_attribute(attribute: &str) -> RuleSpec {
    let devices = DevicesSpec { host_attribute: attribute.into(), ..DevicesSpec::default() };
    spec(claim_template(&crypto()), devices)
}

fn paths(spec: RuleSpec) -> Vec<String> {
    let errors = Rule::compile(spec).err().unwrap_or_default();
    errors.into_iter().map(|error| error.path).collect()
}

#[test]
fn each_field_wrong_in_turn() {
    let claim = |change: fn(&mut DeviceClaimSpec)| {
        let mut all = vec![device("a"), device("b")];
        change(&mut all[1]);
        with_claims(all)
    };
    let many = |count| with_claims((0..count).map(|i| device(&format!("c{i}"))).collect());
    assert_eq!(paths(claim(|_| {})), Vec::<String>::new());
    assert_eq!(paths(many(MAX_CLAIMS)), Vec::<String>::new());
    for (spec, path) in [
        (claim(|c| c.name = "a".into()), "[1].name"),
        (claim(|c| c.name = "own".into()), "[1].name"),
        (claim(|c| c.name = "A".into()), "[1].name"),
        (claim(|c| c.name = "x".repeat(64)), "[1].name"),
        (claim(|c| c.spec = None), "[1]"),
        (claim(|c| c.from_rule = "other".into()), "[1]"),
        (claim(|c| c.spec = Some(json!({}).into())), "[1].spec.devices.requests"),
        (
            claim(|c| *c = DeviceClaimSpec { spec: None, from_rule: "r".into(), ..device("b") }),
            "[1].fromRule",
        ),
        (
            claim(|c| *c = DeviceClaimSpec { spec: None, from_rule: "No".into(), ..device("b") }),
            "[1].fromRule",
        ),
        (claim(|c| c.containers = vec!["c".into(), "z".into()]), "[1].containers[1]"),
        (claim(|c| c.containers = vec!["c".into(), "c".into()]), "[1].containers[1]"),
        (claim(|c| c.containers = vec!["c".into(); 65]), "[1].containers"),
        (claim(|c| c.request = "z".into()), "[1].request"),
        (claim(|c| c.request = "R".into()), "[1].request"),
        (many(MAX_CLAIMS + 1), ""),
        (claim(|c| edit(c.spec.as_mut().unwrap(), |spec| spec["x"] = "y".repeat(MAX_BYTES).into())), ""),
    ] {
        assert_eq!(paths(spec), [format!("spec.deviceClaims{path}")]);
    }
    let of_claim = DevicesSpec { claims: vec![device("a")], ..DevicesSpec::default() };
    assert_eq!(paths(spec(claim_template(&crypto()), of_claim)), ["spec.deviceClaims"]);
    assert_eq!(paths(claim(|c| c.containers = vec!["i".into(), "d".into()])), Vec::<String>::new());
}

#[test]
fn a_claim_may_name_all_of_64_containers() {
    let names: Vec<String> = (0..65).map(|i| format!("c{i}")).collect();
    for (count, wrong) in [(64, &[][..]), (65, &["spec.deviceClaims[0].containers"])] {
        let mut spec =
            with_claims(vec![DeviceClaimSpec { containers: names[..count].to_vec(), ..device("a") }]);
        edit(&mut spec.template, |template| {
            template["spec"]["containers"] = names.iter().map(|name| json!({"name": name})).collect();
        });
        assert_eq!(paths(spec), wrong);
    }
}

#[test]
fn claims_of_exactly_the_most_bytes_are_allowed() {
    let size = |spec: &Json| spec.text().len();
    for (more, refused) in [(0, false), (1, true)] {
        let mut all = vec![device("a"), device("b")];
        let other = size(all[0].spec.as_ref().unwrap());
        let last = all[1].spec.as_mut().unwrap();
        edit(last, |spec| spec["x"] = "".into());
        let fill = MAX_BYTES - other - size(last) + more;
        edit(last, |spec| spec["x"] = "y".repeat(fill).into());
        let errors = Rule::compile(with_claims(all)).err().unwrap_or_default();
        let error = errors.iter().find(|error| error.path == "spec.deviceClaims").map(ToString::to_string);
        let message = "have 262145 bytes of JSON together, at most 262144 are allowed";
        assert_eq!(error, refused.then(|| format!("spec.deviceClaims: {message}")), "{more}");
    }
}

#[test]
fn the_attribute_of_the_host() {
    assert_eq!(paths(with_attribute("dpu.example.com/host_1")), Vec::<String>::new());
    for wrong in ["host", "/host", "dpu.example.com/", "dpu.example.com/1host", "DPU/host", "d/a-b", "d/a.b"]
    {
        assert_eq!(paths(with_attribute(wrong)), ["spec.deviceHostAttribute"], "{wrong}");
    }
    let mut any = with_attribute("d/host");
    any.policy = DpuSelectionPolicy::Any;
    assert_eq!(paths(any), ["spec.deviceHostAttribute"]);
    let from_rule = DeviceClaimSpec { spec: None, from_rule: "other".into(), ..device("b") };
    let on_all =
        RuleSpec { policy: DpuSelectionPolicy::SameNodeAll, ..with_claims(vec![device("a"), from_rule]) };
    assert_eq!(paths(on_all), ["spec.deviceClaims[1].fromRule"], "one claim would have to be on each DPU");
    for policy in [DpuSelectionPolicy::SameNodePrimary, DpuSelectionPolicy::SameNodeAll] {
        let mut for_pods = with_attribute("d/host");
        for_pods.policy = policy;
        assert_eq!(paths(for_pods), ["spec.dpuSelectionPolicy"], "{policy:?}");
    }
    let mut of_pod = with_attribute("d/host");
    of_pod.template = pod_template().into();
    assert_eq!(paths(of_pod), ["spec.deviceHostAttribute"]);
    let mut full = with_attribute("d/host");
    edit(&mut full.template, |template| {
        template["spec"]["devices"]["requests"][0]["exactly"]["selectors"] = json!(vec![json!({}); 32]);
    });
    assert_eq!(paths(full), ["spec.deviceHostAttribute"]);
}

fn planned(rule: &Arc<Rule>, observed: Option<&Observed>) -> Action {
    companion::tests::planned(rule, &Arc::new(nginx()), observed)
}

#[test]
fn a_claim_is_a_companion_with_its_facts() {
    let rule = compiled(spec(claim_template(&crypto()), DevicesSpec::default()));
    assert_eq!(rule.kind(), Kind::Claim);
    let Action::Create(made) = planned(&rule, None) else { panic!() };
    assert_eq!((&made["apiVersion"], &made["kind"]), (&json!(API_VERSION), &json!("ResourceClaim")));
    assert_eq!(made["spec"], crypto());
    let metadata = &made["metadata"];
    assert_eq!(metadata["annotations"]["name"], nginx().resource_name);
    assert_eq!(metadata["annotations"][keys::INJECTED], r#"["name"]"#);
    assert_eq!(metadata["annotations"][keys::HOST], "cloud-dev-12");
    assert!(metadata["annotations"].get(keys::WORKLOAD).is_none(), "nothing travels in it");
    assert_eq!((&metadata["labels"]["a"], &metadata["labels"][keys::TENANT]), (&json!("b"), &json!("blue")));
    assert_eq!(metadata["ownerReferences"][0]["kind"], "WorkloadRule");
    // It is as it should be, then its facts change.
    let mut there = Observed {
        kind: Kind::Claim,
        uid: "c".into(),
        host: Some("cloud-dev-12".into()),
        injected: Some(vec!["name".into()]),
        annotations: [("name".to_owned(), nginx().resource_name)].into(),
        ..companion::tests::of_rule(&rule)
    };
    assert_eq!(planned(&rule, Some(&there)), Action::Nothing);
    there.annotations.insert("name".into(), "before".into());
    assert!(
        matches!(planned(&rule, Some(&there)), Action::Annotate(patch) if patch["metadata"]["uid"] == "c")
    );
    // A claim that is in use goes when nobody uses it: until then it is waited for.
    there.terminating = true;
    assert_eq!(planned(&rule, Some(&there)), Action::Wait);
    there = Observed { terminating: false, template_hash: "other".into(), ..there };
    assert!(matches!(planned(&rule, Some(&there)), Action::Delete { .. }));
}

#[test]
fn each_request_asks_for_the_host() {
    let requests = json!({"devices": {"requests": [
        {"name": "a", "exactly": {"deviceClassName": "x", "selectors": [{"cel": {"expression": "true"}}]}},
        {"name": "b", "firstAvailable": [{"name": "c", "deviceClassName": "x"}, {"name": "d", "deviceClassName": "y"}]}]}});
    let mut with = with_attribute("dpu.example.com/host");
    with.template = claim_template(&requests).into();
    let rule = compiled(with);
    let Action::Create(made) = planned(&rule, None) else { panic!() };
    let expression = r#"device.attributes["dpu.example.com"].?host.orValue("") == "cloud-dev-12""#;
    let wanted = json!({"cel": {"expression": expression}});
    let at = |pointer: &str| {
        made.pointer(&format!("/spec/devices/requests/{pointer}/selectors")).cloned().unwrap()
    };
    assert_eq!(at("0/exactly"), json!([{"cel": {"expression": "true"}}, wanted]));
    assert_eq!(at("1/firstAvailable/0"), json!([wanted]));
    assert_eq!(at("1/firstAvailable/1"), json!([wanted]));
    // A name can't end the text that it is in.
    let attribute = Attribute { domain: "d".into(), id: "i".into() };
    assert!(attribute.is("a\" || true || \"").ends_with(r#"== "a\" || true || \"""#));
}

#[test]
fn what_claims_are_made_from() {
    let tenant = TenantId::new("blue").unwrap();
    let of = |rule: &Rule, owned| templates(rule, Some(&tenant), "n", owned);
    let from_rule = DeviceClaimSpec { spec: None, from_rule: "other".into(), ..device("b") };
    let rule = Rule::compile(with_claims(vec![device("a"), from_rule, device("c")])).unwrap();
    let all = of(&rule, true);
    assert_eq!(all.iter().map(|t| t.place).collect::<Vec<_>>(), [0, 2]);
    assert_ne!(all[0].name, all[1].name);
    let object = &all[0].object;
    assert_eq!(object["metadata"]["name"], *all[0].name);
    assert_eq!(object["spec"], json!({"spec": crypto()}), "nothing of ours gets into the claims");
    assert_eq!(object["metadata"]["labels"], json!({keys::RULE: "r", keys::TENANT: "blue"}));
    assert_eq!(object["metadata"]["ownerReferences"][0]["uid"], "rule-uid");
    // Another spec is another template, and so is that of another rule of the name.
    let named = |change: fn(&mut RuleSpec)| {
        let mut spec = with_claims(vec![device("a")]);
        change(&mut spec);
        let rule = Rule::compile(spec).unwrap();
        (of(&rule, true).remove(0).name, rule.template_hash().to_owned())
    };
    let before = named(|_| {});
    assert_eq!(before.0, all[0].name);
    let other =
        named(|s| edit(s.devices.claims[0].spec.as_mut().unwrap(), |spec| spec["devices"]["x"] = json!(1)));
    assert!(other.0 != before.0 && other.1 != before.1, "and its companions are replaced");
    assert_ne!(named(|s| s.uid = "v".into()).0, before.0);
    let wired = named(|s| s.devices.claims[0].containers = vec!["c".into()]);
    assert!(wired.0 == before.0 && wired.1 != before.1);
    // The platform's serve all tenants.
    let admin = of(&rule.into_admin(), false);
    assert_eq!(admin[0].object["metadata"]["labels"], json!({keys::RULE: "r"}));
    assert_eq!(admin[0].object["metadata"]["annotations"][keys::ADMIN_RULE], "r");
    assert_eq!(admin[0].object["metadata"]["ownerReferences"], json!([]));
    assert_eq!(admin[0].name, all[0].name);
}

#[test]
fn a_rule_without_devices_has_the_hash_that_it_had() {
    let rule = Rule::compile(with_claims(Vec::new())).unwrap();
    let hash = companion::template_hash(rule.policy(), &rule.template(), &Devices::default());
    assert_eq!(rule.template_hash(), hash);
    assert_eq!(Devices::default().fingerprint(), None);
}

#[test]
fn a_shared_claim_is_the_one_that_the_other_rule_makes() {
    let (tenant, id) = (TenantId::new("blue").unwrap(), WorkloadId::new("w").unwrap());
    let [rule, of] = ["r", "of"].map(|name| RuleName::new(name).unwrap());
    let key = |rule: &RuleName| CompanionKey::of(rule, &id);
    assert_eq!(shared_name(&rule, &of, "w", Some(&tenant)), companion::name(&key(&of), &tenant));
    assert_eq!(shared_name(&rule, &of, "w", None), companion::own_name(&key(&of)));
    assert_eq!(own_shared_name(&of, "w"), companion::own_name(&key(&of)));
    let (admin, admins) = (rule.into_admin(), of.clone().into_admin());
    assert_eq!(shared_name(&admin, &of, "w", Some(&tenant)), companion::name(&key(&admins), &tenant));
    assert_ne!(companion::name(&key(&admins), &tenant), companion::name(&key(&of), &tenant));
}

#[test]
fn what_admission_keeps_of_a_rule_lacks_terms_and_texts() {
    let mut spec = with_claims(vec![device("a")]);
    spec.terms = vec![vec![ExpressionSpec::new("@", Operator::Exists, &[])]];
    let rule = Rule::compile(spec).unwrap();
    let kept = rule.clone().for_admission();
    assert_eq!((rule.terms().len(), kept.terms().len()), (1, 0));
    assert_ne!(rule.template(), kept.template());
    assert_eq!(kept.template(), Json::default().tree());
    assert_eq!(kept.devices(), &rule.devices().clone().without_specs());
    assert_ne!(kept.devices(), rule.devices());
    assert_eq!((kept.name(), kept.template_hash()), (rule.name(), rule.template_hash()));
}

#[test]
fn what_is_kept_to_match_workloads_lacks_texts_alone() {
    let rule = Rule::compile(with_claims(vec![device("a")])).unwrap();
    let kept = rule.clone().for_matching();
    assert_eq!(kept.terms(), rule.terms());
    assert_eq!((kept.template(), kept.template_hash()), (Value::Null, rule.template_hash()));
    let [claim] = kept.devices().claims() else { panic!("{:?}", kept.devices()) };
    let Source::Template { name, spec, .. } = &claim.source else { panic!("{claim:?}") };
    assert_eq!((claim.name.as_str(), spec.tree()), ("a", Value::Null));
    let tenant = TenantId::new("blue").unwrap();
    assert_eq!(*name, templates(&rule, Some(&tenant), "n", true)[0].name);
    assert_eq!(kept.devices().default_containers(), ["c", "d"]);
}

#[test]
fn device_claims_of_a_rule_may_have_the_classes_of_its_tenant() {
    let rule = Rule::compile(with_claims(vec![device("a"), device("b")])).unwrap();
    let faults = |policy: &Policy| -> Vec<String> {
        let facts = ValidationContext::new(policy, "tenant-blue", &[]);
        validate::device_claims(&rule, &facts).into_iter().map(|fault| fault.path).collect()
    };
    let mut policy = Policy::new(TenantId::new("blue").unwrap());
    assert_eq!(
        faults(&policy),
        [0, 1].map(|i| format!("spec.deviceClaims[{i}].spec.devices.requests[0].exactly.deviceClassName"))
    );
    policy.device_classes.insert("crypto".into());
    assert_eq!(faults(&policy), Vec::<String>::new());
}

#[test]
fn a_claim_of_the_workloads_host_has_to_say_how_devices_name_it() {
    let around = LintContext { host_labels: Default::default(), tenant: None, dpus: None };
    let warnings =
        |policy, spec: RuleSpec| lint::rule(&Rule::compile(RuleSpec { policy, ..spec }).unwrap(), &around);
    let without = || spec(claim_template(&crypto()), DevicesSpec::default());
    assert_eq!(
        warnings(DpuSelectionPolicy::SameNode, without()),
        [
            "without deviceHostAttribute the claim fits devices of any host; the first Pod that uses it decides"
        ]
    );
    assert_eq!(warnings(DpuSelectionPolicy::Any, without()), Vec::<String>::new());
    let named = with_attribute("example.com/host");
    assert_eq!(warnings(DpuSelectionPolicy::SameNode, named), Vec::<String>::new());
}
