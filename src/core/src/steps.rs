//! How many steps an algorithm takes, for tests: what strangers send is read by nothing that is worse than O(n log n).
//!
//! The loops that could become such call [`step`]. In a release build it is nothing.

#[cfg(any(test, debug_assertions))]
thread_local! {
    static STEPS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// One turn of a loop, or one comparison.
#[inline]
pub fn step() {
    #[cfg(any(test, debug_assertions))]
    STEPS.set(STEPS.get() + 1);
}

/// Runs an algorithm on inputs of two sizes, one eight times the other, and compares its steps: n log n makes at most twelve times
/// as many of it, n² makes sixty-four.
///
/// # Panics
/// When the steps are too many, or too few for the algorithm to have run.
#[cfg(any(test, debug_assertions))]
pub fn assert_nearly_linear<I>(input: impl Fn(usize) -> I, run: impl Fn(&mut I)) {
    const SMALL: usize = 250;
    let count = |size: usize| {
        let mut input = input(size);
        STEPS.set(0);
        run(&mut input);
        STEPS.get()
    };
    let (small, large) = (count(SMALL), count(8 * SMALL));
    assert!(small >= SMALL / 2, "only {small} steps were counted: the algorithm was not reached");
    assert!(large <= 12 * small, "{small} steps became {large} for an input eight times as large");
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value, json};

    use super::{assert_nearly_linear, step};
    use crate::ids::TenantId;
    use crate::rule::tests::{compiled, named};
    use crate::rule::{DpuSelectionPolicy, ExpressionSpec, Operator, RuleSpec};
    use crate::tenant::Policy;
    use crate::validate::{self, ValidationContext, Writer};

    fn takes(steps: impl Fn(usize) -> usize) {
        assert_nearly_linear(|size| size, |size| (0..steps(*size)).for_each(|_| step()));
    }

    #[test]
    fn what_is_linear_or_a_logarithm_more_passes() {
        takes(|size| size);
        takes(|size| size.div_ceil(2));
        takes(|size| size * size.ilog2() as usize);
    }

    #[test]
    #[should_panic = "steps became"]
    fn what_is_worse_by_a_root_fails() {
        takes(|size| size * size.isqrt());
    }

    #[test]
    #[should_panic = "the algorithm was not reached"]
    fn what_was_not_counted_fails() {
        takes(|_| 1);
    }

    #[test]
    fn faults_of_an_update_are_compared_in_linear_steps() {
        let policy = Policy::new(TenantId::new("blue").unwrap());
        let facts = ValidationContext::new(&policy, "tenant-blue", &[]);
        let pod = |tolerations: Vec<Value>| json!({"metadata": {}, "spec": {"tolerations": tolerations}});
        assert_nearly_linear(
            |size| {
                let mut tolerations = vec![json!({"operator": "Exists"}); size];
                let old = pod(tolerations.clone());
                tolerations.push(json!({"operator": "Exists"}));
                (pod(tolerations), old)
            },
            |(new, old)| {
                let faults = validate::update(new, old, &facts);
                assert_eq!(faults.len(), 1, "one of them is new");
            },
        );
    }

    #[test]
    fn owners_of_a_claim_are_compared_in_linear_steps() {
        let policy = Policy::new(TenantId::new("blue").unwrap());
        let claim = |size: usize| {
            let owners: Vec<Value> =
                (0..size).map(|i| json!({"kind": "Pod", "name": format!("p{i}")})).collect();
            json!({"metadata": {"ownerReferences": owners}, "spec": {}})
        };
        assert_nearly_linear(claim, |claim| {
            assert!(validate::claim(claim, claim, &policy, Writer::User).is_empty());
        });
    }

    #[test]
    fn finalizers_and_claims_of_a_pod_are_compared_in_linear_steps() {
        let policy = Policy::new(TenantId::new("blue").unwrap());
        let claims = BTreeMap::from([("theirs".to_owned(), "other".to_owned())]);
        let facts =
            ValidationContext { claims: &claims, ..ValidationContext::new(&policy, "tenant-blue", &[]) };
        let pod = |size: usize| {
            let finalizers: Vec<String> = (0..size).map(|i| format!("x.example/{i}")).collect();
            let claims = vec![json!({"name": "c", "resourceClaimName": "theirs"}); size];
            json!({"metadata": {"finalizers": finalizers}, "spec": {"resourceClaims": claims}})
        };
        assert_nearly_linear(
            |size| (pod(size), pod(size + 1)),
            |(old, new)| {
                let said: Vec<String> =
                    validate::update(new, old, &facts).into_iter().map(|f| f.path).collect();
                assert_eq!(said.len(), 2, "one finalizer and one claim are new: {said:?}");
            },
        );
    }

    /// 64 terms of 64 expressions of 1,024 values are allowed.
    #[test]
    fn contradictions_in_a_rule_are_looked_for_up_to_a_cap() {
        let rule = |values: usize| {
            let expression = |i: usize| {
                let mut all: Vec<String> = (0..values).map(|v| format!("{i}-{v}")).collect();
                all.push("shared".into());
                ExpressionSpec { key: ".state.nodeName".into(), operator: Operator::In, values: all }
            };
            let pod = json!({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "c"}]}});
            compiled(RuleSpec {
                terms: vec![(0..64).map(expression).collect()],
                policy: DpuSelectionPolicy::Any,
                template: pod.into(),
                ..named("r")
            })
        };
        let around = crate::lint::LintContext { host_labels: Default::default(), tenant: None, dpus: None };
        assert_nearly_linear(
            |size| rule(size / 2),
            |rule| {
                for _ in 0..20 {
                    assert_eq!(crate::lint::rule(rule, &around), Vec::<String>::new());
                }
            },
        );
    }
}
