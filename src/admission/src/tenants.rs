//! Validation of Tenants: what depends on other objects.

use outrigger_api::Tenant;
use outrigger_core::field::FieldError;
use outrigger_core::ids::TenantId;
use outrigger_core::map::{HashMap, HashSet};
use outrigger_core::syntax::unlabelable;
use outrigger_core::tenant::{self, Enforcement};
use outrigger_core::validate::same;
use serde::Deserialize;
use serde_json::Value;

use crate::caches::{Caches, Exclusive};
use crate::decision::Decision;
use crate::handler::{Admission, Context, Refusal};
use crate::review::Request;

/// Refuses what another tenant has already. Two requests at once may both pass; the controller then serves neither.
pub(crate) fn validate(cx: Context<'_>, request: &mut Request) -> Result<Admission, Refusal> {
    let (new, old) = match (read(&request.object), read(&request.old_object)) {
        (Ok(new), old) => (new, old.ok()),
        // What was invalid before and is still the same doesn't keep the rest from being changed.
        (Err(errors), before) => {
            let before = before.err().unwrap_or_default();
            let added = same::added(&errors, &request.object, &before, &request.old_object);
            return Ok(Decision::by_fields(422, &added).into());
        }
    };
    let mut errors = Vec::new();
    if cx.settings.admin.contains(&new.namespace) {
        errors.push(FieldError::new(
            "spec.namespace",
            format_args!(
                "is {:?}, where the platform's own rules or companions are; choose another",
                new.namespace
            ),
        ));
    }
    conflicts(cx.caches, &request.object, &new, old.as_ref(), &mut errors);
    let classes = positions(&request.object, "deviceClasses");
    for (i, class) in new.policy.device_classes.iter().enumerate() {
        let had = old.as_ref().is_some_and(|old| old.policy.device_classes.contains(class));
        if !had && !cx.caches.is_device_class(class) {
            let at = classes.get(class.as_str()).copied().unwrap_or(i);
            errors.push(FieldError::new(
                format_args!("spec.deviceClasses[{at}]"),
                format_args!("is {class:?}, and there is no such DeviceClass; create it first"),
            ));
        }
    }
    if !errors.is_empty() {
        return Ok(Decision::deny_fields(422, &errors).into());
    }
    let mut warnings = unusable_hosts(&request.object, &new);
    warnings.extend(change_of_level(cx, &new, old.as_ref()));
    warnings.extend(new.without_node().take(SHOWN).map(|(host, other)| {
        format!(
            "spec.hosts: {host} is no workload's host: spec.hostNames says that the node of this name is in host {other}"
        )
    }));
    Ok(Decision::warn(warnings).into())
}

/// Most hosts that are warned of by name.
const SHOWN: usize = 5;

/// Warnings for hosts that have no DPU, whatever Nodes there are. Rules with dpuSelectionPolicy Any serve their workloads.
fn unusable_hosts(object: &Value, new: &tenant::Tenant) -> Vec<String> {
    let unusable = new.hosts.iter().filter_map(|host| Some((host.as_str(), unlabelable(host)?)));
    let unusable: Vec<_> = unusable.take(SHOWN).collect();
    let positions = if unusable.is_empty() { HashMap::default() } else { positions(object, "hosts") };
    let warning = |(host, why): (&str, String)| {
        format!("spec.hosts[{}]: {why}", positions.get(host).copied().unwrap_or_default())
    };
    unusable.into_iter().map(warning).collect()
}

/// What a change of the level of enforcement means. It is always accepted.
fn change_of_level(cx: Context<'_>, new: &tenant::Tenant, old: Option<&tenant::Tenant>) -> Option<String> {
    let (before, now) = (old.map(|old| cx.enforcement(old)).unwrap_or_default(), cx.enforcement(new));
    if now == Enforcement::Enforce {
        let refused = cx.caches.would_be_refused(&new.namespace);
        let raised = before < now && !refused.is_empty();
        return raised.then(|| format!("spec.enforcement: {}", Enforcement::would_be_refused(&refused)));
    }
    (before != now).then(|| {
        format!(
            "spec.enforcement: is {now}, so what concerns the tenant's own Pods alone is no longer refused, and is a warning; set Enforce as \
             soon as nothing depends on it"
        )
    })
}

fn read(object: &Value) -> Result<tenant::Tenant, Vec<FieldError>> {
    Tenant::deserialize(object).map_err(|e| vec![FieldError::new("spec", e)])?.compile()
}

/// The first position of each name in a list of the spec: the domain keeps some lists as sets.
fn positions<'a>(object: &'a Value, list: &str) -> HashMap<&'a str, usize> {
    let names = object.get("spec").and_then(|spec| spec.get(list)).and_then(Value::as_array);
    let mut positions = HashMap::default();
    for (i, name) in names.into_iter().flatten().enumerate() {
        if let Some(name) = name.as_str() {
            positions.entry(name).or_insert(i);
        }
    }
    positions
}

/// Adds an error for everything that belongs to another tenant.
fn conflicts(
    caches: &Caches,
    object: &Value,
    new: &tenant::Tenant,
    old: Option<&tenant::Tenant>,
    errors: &mut Vec<FieldError>,
) {
    let id = new.policy.tenant.as_str();
    let of = |path: String, what: &str, value: &str, other: &TenantId| {
        FieldError::new(
            path,
            format_args!("is {value:?}, {what} of tenant {:?}; take it from that one first", other.as_str()),
        )
    };
    let namespace = &new.namespace;
    let owner = caches.owner(namespace).filter(|owner| owner.as_str() != id);
    let owner =
        owner.or_else(|| caches.other_holders(Exclusive::Namespace, namespace, id).into_iter().next());
    if let Some(owner) = owner {
        errors.push(of("spec.namespace".to_owned(), "the namespace", namespace, &owner));
    }
    let had: HashSet<_> = old.iter().flat_map(|old| &old.identities).collect();
    for (i, identity) in new.identities.iter().enumerate().filter(|(_, identity)| !had.contains(identity)) {
        for other in caches.other_holders(Exclusive::Identity, identity.as_str(), id) {
            errors.push(of(format!("spec.identities[{i}]"), "an identity", identity.as_str(), &other));
        }
    }
    let hosts = positions(object, "hosts");
    for host in new.hosts.iter().filter(|host| !old.is_some_and(|old| old.hosts.contains(*host))) {
        for other in caches.other_holders(Exclusive::Host, host, id) {
            let at = hosts.get(host.as_str()).copied().unwrap_or_default();
            errors.push(of(format!("spec.hosts[{at}]"), "a host", host, &other));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tests::{applied, decide, request_for, response};

    #[test]
    fn a_host_that_no_workload_can_be_on_is_warned_of() {
        let warnings = |names: Value| {
            let tenant = json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": "red"},
                "spec": {"hosts": ["a", "b"], "hostNames": names}});
            let mut request = request_for("Tenant", "", &tenant, &Value::Null);
            let decided = decide("/validate/tenants", &Caches::default(), &mut request).unwrap();
            let (code, _, warnings) = response(decided, 201);
            (code, warnings)
        };
        let both = json!([{"node": "a", "host": "b"}, {"node": "n", "host": "a"}]);
        assert_eq!(warnings(both), (201, Vec::<String>::new()));
        let (code, found) = warnings(json!([{"node": "a", "host": "b"}]));
        assert_eq!(code, 201);
        assert!(found.len() == 1 && found[0].starts_with("spec.hosts: a is no workload's host"), "{found:?}");
        let (code, _) = warnings(json!([{"node": "n", "host": "c"}]));
        assert_eq!(code, 422);
    }

    #[test]
    fn every_change_of_the_level_is_accepted_and_the_answer_says_what_it_means() {
        let caches = Caches::default();
        let reserved: Vec<_> =
            ["one", "two"].map(|user| json!({"resource": "pods", "name": user, "uid": user})).into();
        let claim = json!({"metadata": {"name": "web-d-x7k2m", "namespace": "tenant-red", "ownerReferences": [
                {"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "web", "controller": true}]},
            "spec": {}, "status": {"reservedFor": reserved}});
        caches.claim(applied(claim));
        let warnings = |before: &Value, now: &Value| {
            let of = |enforcement: &Value| {
                json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": "red"},
                    "spec": {"enforcement": enforcement}})
            };
            let old = if *before == json!("absent") { Value::Null } else { of(before) };
            let mut request = request_for("Tenant", "", &of(now), &old);
            let (code, _, warnings) =
                response(decide("/validate/tenants", &caches, &mut request).unwrap(), 201);
            assert_eq!(code, 201);
            warnings
        };
        let refused = "spec.enforcement: 2 running Pods would be refused if created now: one, two".to_owned();
        for (before, now) in [("Observe", json!("Enforce")), ("Warn", json!(null))] {
            assert_eq!(warnings(&json!(before), &now), [refused.as_str()]);
        }
        for (before, now) in
            [("absent", "Observe"), ("Enforce", "Warn"), ("Warn", "Observe"), ("Observe", "Warn")]
        {
            let said = warnings(&json!(before), &json!(now));
            assert!(
                said.len() == 1 && said[0].starts_with(&format!("spec.enforcement: is {now}, so")),
                "{said:?}"
            );
        }
        for (before, now) in [("absent", "Enforce"), ("Enforce", "Enforce"), ("Warn", "Warn")] {
            assert_eq!(warnings(&json!(before), &json!(now)), [""; 0]);
        }
    }

    #[test]
    fn a_host_whose_name_no_label_can_have_is_warned_of_with_its_path() {
        let warnings = |hosts: &[&str]| {
            let tenant = json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": "red"},
                "spec": {"hosts": hosts}});
            let mut request = request_for("Tenant", "", &tenant, &Value::Null);
            let (code, message, warnings) =
                response(decide("/validate/tenants", &Caches::default(), &mut request).unwrap(), 201);
            assert_eq!((code, message.as_str()), (201, ""));
            warnings
        };
        let (fits, long) = ("h".repeat(63), "h".repeat(64));
        assert_eq!(warnings(&["a", &fits]), [""; 0]);
        let found = warnings(&["a", &long]);
        assert!(
            found.len() == 1
                && found[0]
                    .starts_with("spec.hosts[1]: no Node can be labelled with it: it has 64 characters")
        );
        // Its first ones stand for all.
        let many: Vec<String> = (100..120).map(|i| format!("{long}{i}")).collect();
        assert_eq!(warnings(&many.iter().map(String::as_str).collect::<Vec<_>>()).len(), 5);
    }
}
