//! Conversion of rules between protobuf messages (`universe.workload.v1`) and the custom resource. A rule that was
//! created over gRPC equals one that was created by kubectl: the conversion is reversible, except that it fills in
//! defaults.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use kube::api::ObjectMeta;
use outrigger_core::field::{FieldError, FieldErrors};
use outrigger_core::ids::{RuleName, hex};
use outrigger_core::json::Json;
use outrigger_core::keys;
use outrigger_core::rule::{Operator, Ordering};
use outrigger_proto::v1;
use outrigger_proto::v1::rule_match_expression::Operation;
use outrigger_proto::v1::workload_info_inject::Message;
use prost::Message as _;
use sha2::{Digest, Sha256};

use crate::workload_rule::{
    AsAnnotation, MatchExpression, RollingUpdate, UpdateStrategy, WAIT, WorkloadInfoInject, WorkloadTerm,
};
use crate::{WorkloadRule, WorkloadRuleSpec, WorkloadRuleStatus, device_claim};

/// Creates the custom resource, without a namespace. The errors are about what a custom resource can't represent, with the
/// paths of the custom resource. [`WorkloadRule::compile`] reports everything else that is invalid.
impl TryFrom<&v1::Rule> for WorkloadRule {
    type Error = Vec<FieldError>;

    fn try_from(rule: &v1::Rule) -> Result<Self, Self::Error> {
        let mut errors = Vec::new();
        if let Err(e) = RuleName::new(&rule.id) {
            errors.add("metadata.name", e);
        }
        let Some(data) = &rule.data else {
            errors.add("spec", "is missing; set rule.data");
            return Err(errors);
        };
        if data.orchestrator_type != i32::from(v1::OrchestratorType::Kubernetes) {
            errors.add(
                "orchestrator_type",
                format_args!("is {}; use ORCHESTRATOR_TYPE_KUBERNETES (1)", data.orchestrator_type),
            );
        }
        let spec = spec(data, &mut errors);
        if !errors.is_empty() {
            return Err(errors);
        }
        let origin = (!rule.origin.is_empty()).then(|| (keys::ORIGIN.to_owned(), rule.origin.clone()));
        let metadata = ObjectMeta {
            name: Some(rule.id.clone()),
            annotations: origin.map(|origin| [origin].into()),
            ..ObjectMeta::default()
        };
        Ok(Self { metadata, spec, status: None })
    }
}

fn spec(data: &v1::RuleData, errors: &mut Vec<FieldError>) -> WorkloadRuleSpec {
    let mut workload_terms = Vec::with_capacity(data.workload_terms.len());
    for (t, term) in data.workload_terms.iter().enumerate() {
        let mut match_expressions = Vec::with_capacity(term.match_expressions.len());
        for (e, expression) in term.match_expressions.iter().enumerate() {
            let operator = operator(expression.operation);
            if operator.is_none() {
                let path = format!("spec.workloadTerms[{t}].matchExpressions[{e}].operator");
                let message = format!("is operation {}; use 1 (In) to 6 (Lt)", expression.operation);
                errors.add(path, message);
            }
            match_expressions.push(MatchExpression {
                key: expression.key.clone(),
                operator: operator.map(|operator| operator.as_str().to_owned()).unwrap_or_default(),
                values: expression.values.clone(),
            });
        }
        workload_terms.push(WorkloadTerm { match_expressions });
    }
    let mut workload_info_inject = Vec::with_capacity(data.workload_info_inject.len());
    for (i, inject) in data.workload_info_inject.iter().enumerate() {
        let Some(Message::AsAnnotation(annotation)) = &inject.message else {
            let path = format!("spec.workloadInfoInject[{i}].asAnnotation");
            errors.add(path, "is missing; set as_annotation");
            continue;
        };
        workload_info_inject.push(WorkloadInfoInject {
            workload_key: inject.key.clone(),
            as_annotation: AsAnnotation { name: annotation.name.clone() },
        });
    }
    let template: Json = serde_json::from_slice(&data.rule_template).unwrap_or_else(|e| {
        errors.add("spec.template", format_args!("rule_template is not JSON: {e}"));
        Json::default()
    });
    let or = |text: &str, default: &str| if text.is_empty() { default.to_owned() } else { text.to_owned() };
    WorkloadRuleSpec {
        resource_kind: or(&data.resource_type, outrigger_core::workload::POD),
        workload_terms,
        workload_info_inject,
        dpu_selection_policy: or(&data.dpu_selection_policy, "SameNode"),
        template,
        device_claims: device_claim::from_wire(&data.device_claims, errors),
        device_host_attribute: data.device_host_attribute.clone(),
        ordering: or(&data.ordering, Ordering::Parallel.as_str()),
        linger_seconds: Some(data.linger_seconds).filter(|seconds| *seconds != 0),
        gated_workloads: or(&data.gated_workloads, WAIT),
        update_strategy: data.update_strategy.as_ref().map(update_strategy),
    }
}

/// Converts a custom resource to a message. Invalid values are kept as far as the message can represent them.
pub fn message(rule: &WorkloadRule) -> v1::Rule {
    let spec = &rule.spec;
    let expression = |expression: &MatchExpression| v1::RuleMatchExpression {
        key: expression.key.clone(),
        operation: operation(&expression.operator).into(),
        values: expression.values.clone(),
    };
    let term = |term: &WorkloadTerm| v1::RuleWorkloadTerm {
        match_expressions: term.match_expressions.iter().map(expression).collect(),
    };
    let inject = |inject: &WorkloadInfoInject| v1::WorkloadInfoInject {
        key: inject.workload_key.clone(),
        message: Some(Message::AsAnnotation(v1::WorkloadInfoInjectConfigAsAnnotation {
            name: inject.as_annotation.name.clone(),
        })),
    };
    let data = v1::RuleData {
        orchestrator_type: v1::OrchestratorType::Kubernetes.into(),
        resource_type: spec.resource_kind.clone(),
        workload_terms: spec.workload_terms.iter().map(term).collect(),
        dpu_selection_policy: spec.dpu_selection_policy.clone(),
        workload_info_inject: spec.workload_info_inject.iter().map(inject).collect(),
        rule_template: spec.template.text().as_bytes().to_vec().into(),
        update_strategy: spec.update_strategy.as_ref().map(update_strategy_message),
        device_claims: device_claim::to_wire(&spec.device_claims),
        device_host_attribute: spec.device_host_attribute.clone(),
        // The default is the empty text, so that a rule without an ordering has the fingerprint that it had before the field
        // existed, and that managers compute that don't know the field.
        ordering: Some(&spec.ordering)
            .filter(|text| *text != Ordering::Parallel.as_str())
            .cloned()
            .unwrap_or_default(),
        linger_seconds: spec.linger_seconds.unwrap_or_default(),
        gated_workloads: Some(&spec.gated_workloads)
            .filter(|text| *text != WAIT)
            .cloned()
            .unwrap_or_default(),
    };
    let generation = rule.metadata.generation.unwrap_or_default();
    v1::Rule {
        id: rule.name_any(),
        origin: origin(rule),
        revision: revision(&data),
        data: Some(data),
        status: rule.status.as_ref().map(|status| status_message(status, generation)),
        etag: etag(&rule.metadata),
    }
}

/// Returns the uid of the object from which an agent created the rule; empty if no agent did.
pub fn origin(rule: &WorkloadRule) -> String {
    rule.annotations().get(keys::ORIGIN).cloned().unwrap_or_default()
}

/// Returns the fingerprint of the content of a rule: 32 hexadecimal digits.
pub fn revision(data: &v1::RuleData) -> String {
    hex(&Sha256::digest(data.encode_to_vec()), 32)
}

/// Returns the etag of the version of a rule of either kind, made from its uid, its generation and its [origin]: 32 hexadecimal digits;
/// empty for one without a uid, which is not stored yet. Writes of the status or of labels don't change it.
pub fn etag(rule: &ObjectMeta) -> String {
    let Some(uid) = &rule.uid else { return String::new() };
    let generation = rule.generation.unwrap_or_default();
    let origin = rule.annotations.as_ref().and_then(|all| all.get(keys::ORIGIN)).map_or("", String::as_str);
    hex(&Sha256::digest(format!("{uid} {generation} {origin}")), 32)
}

/// Converts a rule's status to a message.
pub fn status_message(status: &WorkloadRuleStatus, generation: i64) -> v1::RuleStatus {
    let condition = |c: &Condition| v1::RuleCondition {
        r#type: c.type_.clone(),
        status: c.status.clone(),
        reason: c.reason.clone(),
        message: c.message.clone(),
        last_transition_time: c.last_transition_time.0.to_string(),
    };
    v1::RuleStatus {
        current: status.observed_generation == Some(generation),
        matched: status.matched.unwrap_or_default(),
        created: status.created.unwrap_or_default(),
        ready: status.ready.unwrap_or_default(),
        updated: status.updated.unwrap_or_default(),
        conditions: status.conditions.iter().map(condition).collect(),
    }
}

/// Converts a message to the status of an object of this generation. A missing or malformed time becomes `now`.
pub fn status(message: &v1::RuleStatus, generation: i64, now: Timestamp) -> WorkloadRuleStatus {
    let condition = |c: &v1::RuleCondition| Condition {
        type_: c.r#type.clone(),
        status: c.status.clone(),
        reason: c.reason.clone(),
        message: c.message.clone(),
        observed_generation: Some(generation),
        last_transition_time: Time(c.last_transition_time.parse().unwrap_or(now)),
    };
    WorkloadRuleStatus {
        observed_generation: message.current.then_some(generation),
        matched: Some(message.matched),
        wanted: None,
        created: Some(message.created),
        ready: Some(message.ready),
        updated: Some(message.updated),
        sync_result: None,
        conditions: message.conditions.iter().map(condition).collect(),
    }
}

fn update_strategy(message: &v1::RuleUpdateStrategy) -> UpdateStrategy {
    let most = &message.max_unavailable;
    let most = (!most.is_empty())
        .then(|| most.parse().map_or_else(|_| IntOrString::String(most.clone()), IntOrString::Int));
    let kind = if message.r#type.is_empty() { "RollingUpdate".to_owned() } else { message.r#type.clone() };
    let said = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    let rolling = RollingUpdate {
        max_unavailable: most,
        resize: said(&message.resize),
        mutable_fields: said(&message.mutable_fields),
    };
    let rolling_update = (rolling != RollingUpdate::default()).then_some(rolling);
    UpdateStrategy { kind, rolling_update }
}

fn update_strategy_message(strategy: &UpdateStrategy) -> v1::RuleUpdateStrategy {
    let rolling = strategy.rolling_update.as_ref();
    let most = rolling.and_then(|rolling| rolling.max_unavailable.as_ref()).map(|most| match most {
        IntOrString::Int(count) => count.to_string(),
        IntOrString::String(text) => text.clone(),
    });
    v1::RuleUpdateStrategy {
        r#type: strategy.kind.clone(),
        max_unavailable: most.unwrap_or_default(),
        resize: rolling.and_then(|rolling| rolling.resize.clone()).unwrap_or_default(),
        mutable_fields: rolling.and_then(|rolling| rolling.mutable_fields.clone()).unwrap_or_default(),
    }
}

const OPERATORS: [(Operation, Operator); 6] = [
    (Operation::In, Operator::In),
    (Operation::NotIn, Operator::NotIn),
    (Operation::Exists, Operator::Exists),
    (Operation::DoesNotExist, Operator::DoesNotExist),
    (Operation::Gt, Operator::Gt),
    (Operation::Lt, Operator::Lt),
];

fn operator(number: i32) -> Option<Operator> {
    OPERATORS.iter().find(|(operation, _)| i32::from(*operation) == number).map(|(_, operator)| *operator)
}

fn operation(name: &str) -> Operation {
    let found = OPERATORS.iter().find(|(_, operator)| operator.as_str() == name);
    found.map_or(Operation::Unspecified, |(operation, _)| *operation)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rule() -> v1::Rule {
        let expression = |operation: Operation, values: &[&str]| v1::RuleMatchExpression {
            key: "metadata.resourceNamespace".into(),
            operation: operation.into(),
            values: values.iter().map(ToString::to_string).collect(),
        };
        v1::Rule {
            id: "tenantrule1".into(),
            data: Some(v1::RuleData {
                orchestrator_type: 1,
                resource_type: "v1/Pod".into(),
                workload_terms: vec![
                    v1::RuleWorkloadTerm {
                        match_expressions: vec![
                            expression(Operation::In, &["a", "b"]),
                            expression(Operation::NotIn, &["c"]),
                            expression(Operation::Exists, &[]),
                        ],
                    },
                    v1::RuleWorkloadTerm {
                        match_expressions: vec![
                            expression(Operation::DoesNotExist, &["ignored"]),
                            expression(Operation::Gt, &["1"]),
                            expression(Operation::Lt, &["2"]),
                        ],
                    },
                ],
                dpu_selection_policy: "Any".into(),
                workload_info_inject: vec![v1::WorkloadInfoInject {
                    key: "@".into(),
                    message: Some(Message::AsAnnotation(v1::WorkloadInfoInjectConfigAsAnnotation {
                        name: "full-workload-info".into(),
                    })),
                }],
                rule_template:
                    br#"{"apiVersion":"v1","kind":"Pod","spec":{"containers":[],"unknown":{"x":[1]}}}"#[..]
                        .into(),
                update_strategy: Some(v1::RuleUpdateStrategy {
                    r#type: "RollingUpdate".into(),
                    max_unavailable: "10%".into(),
                    resize: "Replace".into(),
                    mutable_fields: "InPlace".into(),
                }),
                device_claims: vec![
                    v1::RuleDeviceClaim {
                        name: "own".into(),
                        spec: br#"{"devices":{"requests":[{"name":"r","unknown":1}]}}"#[..].into(),
                        containers: vec!["c".into()],
                        request: "r".into(),
                        ..v1::RuleDeviceClaim::default()
                    },
                    v1::RuleDeviceClaim {
                        name: "shared".into(),
                        from_rule: "other".into(),
                        ..v1::RuleDeviceClaim::default()
                    },
                ],
                device_host_attribute: "dpu.example.com/host".into(),
                ordering: String::new(),
                linger_seconds: 0,
                gated_workloads: String::new(),
            }),
            origin: "uid".into(),
            ..v1::Rule::default()
        }
    }

    #[test]
    fn conversion_is_reversible() {
        let object = WorkloadRule::try_from(&rule()).unwrap();
        assert_eq!(object.spec.workload_terms[0].match_expressions[1].operator, "NotIn");
        assert_eq!(object.spec.template.tree()["spec"]["unknown"], json!({"x": [1]}));
        let revision = revision(rule().data.as_ref().unwrap());
        assert_eq!(message(&object), v1::Rule { revision, ..rule() });
        // The other direction, through the JSON of the API.
        let json = serde_json::to_value(&object).unwrap();
        let again: WorkloadRule = serde_json::from_value(json).unwrap();
        assert_eq!(WorkloadRule::try_from(&message(&again)).unwrap().spec, object.spec);
    }

    /// Manager and agent compare fingerprints and may be of different versions: a changed fingerprint rewrites every rule.
    #[test]
    fn fingerprints_of_rules_do_not_change() {
        let mut data = rule().data.unwrap();
        let strategy = data.update_strategy.as_mut().unwrap();
        strategy.resize.clear();
        strategy.mutable_fields.clear();
        assert_eq!(revision(&data), "9e987fd97ea48fb029b5007dfd093a1a");
        // As kubectl creates it, with the defaults of the API server.
        let object = json!({"apiVersion": "workload.universe.nvidia.com/v1alpha1", "kind": "WorkloadRule",
            "metadata": {"name": "r"},
            "spec": {"resourceKind": "v1/Pod", "dpuSelectionPolicy": "SameNode",
                "workloadTerms": [{"matchExpressions": [{"key": "@", "operator": "Exists"}]}],
                "template": {"kind": "Pod", "apiVersion": "v1", "spec": {"containers": [{"name": "c"}]}}}});
        let object: WorkloadRule = serde_json::from_value(object).unwrap();
        assert_eq!(message(&object).revision, "ee2e086c08ecb96bc41eefd1fccb9095");
        assert_eq!(object.compile().unwrap().template_hash(), "7f227cc9545e1bf1");
    }

    /// The rule, of which something else was sent.
    fn changed(change: impl FnOnce(&mut v1::RuleData)) -> WorkloadRule {
        let mut rule = rule();
        change(rule.data.as_mut().unwrap());
        WorkloadRule::try_from(&rule).unwrap()
    }

    #[test]
    fn the_default_ordering_changes_no_fingerprint_and_another_one_does() {
        let with = |ordering: &str| changed(|data| data.ordering = ordering.to_owned());
        let sent = |ordering: &str| message(&with(ordering)).data.unwrap().ordering;
        let fingerprint = |ordering: &str| message(&with(ordering)).revision;
        assert_eq!([sent(""), sent("Parallel"), sent("BeforeReady")], ["", "", "BeforeReady"]);
        assert_eq!(sent("BeforeStart"), "BeforeStart");
        assert_eq!(with("").spec.ordering, "Parallel");
        assert_eq!(fingerprint("Parallel"), revision(rule().data.as_ref().unwrap()));
        assert_ne!(fingerprint("BeforeReady"), fingerprint(""));
        // What is no ordering is kept, so that validation can name it.
        assert_eq!(sent("Later"), "Later");
        let errors: Vec<String> =
            with("Later").compile().unwrap_err().iter().map(ToString::to_string).collect();
        assert!(errors[0].starts_with("spec.ordering: \"Later\": use Parallel"), "{errors:?}");
    }

    #[test]
    fn only_a_rule_that_serves_gated_workloads_says_anything_of_them() {
        let with = |when: &str| changed(|data| data.gated_workloads = when.to_owned());
        assert_eq!(with("").spec.gated_workloads, "Wait");
        assert_eq!(message(&with("")).revision, revision(rule().data.as_ref().unwrap()));
        assert_eq!(message(&with("Serve")).data.unwrap().gated_workloads, "Serve");
        let wrong = with("Sometimes").compile().unwrap_err();
        assert_eq!(wrong[0].path, "spec.gatedWorkloads");
    }

    #[test]
    fn no_linger_time_changes_no_fingerprint_and_another_one_does() {
        let with = |seconds: i64| changed(|data| data.linger_seconds = seconds);
        let mut zero = with(0);
        assert_eq!(zero.spec.linger_seconds, None);
        zero.spec.linger_seconds = Some(0);
        assert_eq!(message(&zero).revision, revision(rule().data.as_ref().unwrap()));
        assert_eq!(message(&with(60)).data.unwrap().linger_seconds, 60);
        assert_ne!(message(&with(60)).revision, message(&zero).revision);
        // What is too much is kept, so that validation can name it.
        let wrong = with(3601).compile().unwrap_err();
        assert_eq!(wrong[0].path, "spec.lingerSeconds");
    }

    #[test]
    fn conversion_of_a_status_is_reversible() {
        let text = r#"{"observedGeneration": 3, "matched": 2, "created": 2, "ready": 1, "updated": 2, "conditions": [
            {"type": "Ready", "status": "False", "reason": "Pending", "message": "1 of 2", "observedGeneration": 3,
             "lastTransitionTime": "2026-01-02T03:04:05Z"}]}"#;
        let before: WorkloadRuleStatus = serde_json::from_str(text).unwrap();
        let sent = status_message(&before, 3);
        assert_eq!(status(&sent, 3, Timestamp::UNIX_EPOCH), before);
        assert_eq!(status(&status_message(&before, 4), 9, Timestamp::UNIX_EPOCH).observed_generation, None);
    }

    #[test]
    fn empty_fields_get_defaults() {
        let mut rule = rule();
        let data = rule.data.as_mut().unwrap();
        data.resource_type.clear();
        data.dpu_selection_policy.clear();
        let spec = WorkloadRule::try_from(&rule).unwrap().spec;
        assert_eq!((spec.resource_kind.as_str(), spec.dpu_selection_policy.as_str()), ("v1/Pod", "SameNode"));
    }

    #[test]
    fn what_an_object_cannot_represent_is_rejected_with_its_path() {
        let paths = |change: fn(&mut v1::Rule)| -> Vec<String> {
            let mut rule = rule();
            change(&mut rule);
            WorkloadRule::try_from(&rule).unwrap_err().into_iter().map(|e| e.path).collect()
        };
        assert_eq!(paths(|r| r.id = "No".into()), ["metadata.name"]);
        assert_eq!(paths(|r| r.data = None), ["spec"]);
        fn data(rule: &mut v1::Rule) -> &mut v1::RuleData {
            rule.data.as_mut().unwrap()
        }
        assert_eq!(paths(|r| data(r).orchestrator_type = 0), ["orchestrator_type"]);
        assert_eq!(
            paths(|r| data(r).workload_terms[1].match_expressions[2].operation = 0),
            ["spec.workloadTerms[1].matchExpressions[2].operator"]
        );
        assert_eq!(
            paths(|r| data(r).workload_terms[0].match_expressions[0].operation = 7),
            ["spec.workloadTerms[0].matchExpressions[0].operator"]
        );
        assert_eq!(
            paths(|r| data(r).workload_info_inject[0].message = None),
            ["spec.workloadInfoInject[0].asAnnotation"]
        );
        assert_eq!(paths(|r| data(r).rule_template = b"{"[..].into()), ["spec.template"]);
    }
}
