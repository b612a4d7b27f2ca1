//! Rules of tenants and of the platform, as users change them.

use outrigger_core::keys;
use serde_json::{Value, json};

use super::{APPS, History};
use crate::model::Model;
use crate::world::{ADMIN, DEVICE_CLASS, RULES_NAMESPACE};

/// What rules have for `lingerSeconds`. Processes' clocks differ by up to two minutes, so only the longest has an effect with every
/// clock.
const LINGER: [u64; 4] = [0, 0, 30, 180];

impl History {
    /// The spec of a rule, by chance, with an image that no rule has had before.
    pub(super) fn rule(&mut self) -> Value {
        self.images += 1;
        if self.world.scope.is_wide() {
            return self.wide_rule();
        }
        let (app, policy) =
            (format!("app-{}", self.below(APPS)), ["Any", "SameNode"][usize::from(self.below(2) == 1)]);
        let linger = self.pick(&LINGER).unwrap_or_default();
        // A claim's spec can't be changed: another number needs another template of claims, and none is left.
        let count = self.below(8);
        let devices = (1..3).contains(&count).then(|| {
            json!([{"name": "engine", "spec": {"devices": {"requests": [
                {"name": "engine", "exactly": {"deviceClassName": DEVICE_CLASS, "count": count}}]}}}])
        });
        json!({"dpuSelectionPolicy": policy, "lingerSeconds": linger, "deviceClaims": devices,
            "workloadTerms": [{"matchExpressions": [
                {"key": ".state.extra.labels.app", "operator": "In", "values": [app]}]}],
            "template": {"apiVersion": "v1", "kind": "Pod", "spec": {"terminationGracePeriodSeconds": 1,
                "containers": [{"name": "c", "image": format!("image-{}", self.images)}]}}})
    }

    pub(super) fn apply_rule(&mut self, tenant: &str) {
        let name = format!("rule-{}", self.below(4));
        let spec = self.rule();
        let spec = if self.world.scope.is_wide() { self.named_rule(&name, spec) } else { spec };
        apply(&self.world.tenants[tenant], ("user", "workloadrules", RULES_NAMESPACE), &name, &spec);
    }

    /// The platform's rules are for all tenants, or for one.
    pub(super) fn apply_platform_rule(&mut self) {
        // A tenant's rule may have the same name.
        let name = format!("rule-{}", self.below(2));
        let mut spec = self.rule();
        if self.world.scope.is_wide() {
            spec = self.platforms_rule(&name, spec);
        }
        let tenant = self.pick(&[None, Some("blue"), Some("red")]).flatten();
        spec["tenantSelector"] = json!(tenant.map(|id| json!({"matchLabels": {keys::TENANT: id}})));
        apply(&self.world.infra, (ADMIN, "adminworkloadrules", keys::ADMIN_NAMESPACE), &name, &spec);
    }

    pub(super) fn delete_rule(&self, tenant: &str) {
        if let Some(rule) = self.any(tenant, "workloadrules") {
            let name = rule["metadata"]["name"].as_str().unwrap_or_default();
            let _ = self.world.tenants[tenant].delete("user", "workloadrules", Some(RULES_NAMESPACE), name);
        }
    }

    pub(super) fn delete_platform_rule(&self) {
        let infra = &self.world.infra;
        if let Some(rule) = self.pick(&infra.list("adminworkloadrules")) {
            let name = rule["metadata"]["name"].as_str().unwrap_or_default();
            let _ = infra.delete(ADMIN, "adminworkloadrules", Some(keys::ADMIN_NAMESPACE), name);
        }
    }
}

/// Changes an object's spec, or creates the object: user, kind and namespace come first.
pub(super) fn apply(model: &Model, (user, plural, namespace): (&str, &str, &str), name: &str, spec: &Value) {
    if model.merge(user, plural, (Some(namespace), name, None), json!({"spec": spec})).is_err() {
        let mut object = json!({"metadata": {"name": name, "namespace": namespace}, "spec": spec});
        if let Some(spec) = object["spec"].as_object_mut() {
            spec.retain(|_, value| !value.is_null());
        }
        let _ = model.create(user, plural, object);
    }
}
