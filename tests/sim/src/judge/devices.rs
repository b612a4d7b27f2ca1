//! What must hold of the devices of companions: templates outlive the companions that name them, each companion has the claim that
//! its rule asks for, and no claim or template is left over.

use std::collections::BTreeSet;

use outrigger_core::keys;
use serde_json::Value;

use super::Judge;
use super::amounts::differ;
use super::wanted::{companion, mark, served, written};
use crate::model::Commit;
use crate::world::kubelet::{NEVER, REFUSED};
use crate::world::{TENANTS, World, at, claim_of, devices, namespace_of, text};

/// How many devices the claim of a rule asks for; `None` for a rule without claims.
fn asked(rule: &Value) -> Option<u64> {
    at(rule, "/spec/deviceClaims/0/spec/devices/requests/0/exactly/count").and_then(Value::as_u64)
}

/// How many devices a claim template asks for.
fn count(template: &Value) -> Option<u64> {
    at(template, "/spec/spec/devices/requests/0/exactly/count").and_then(Value::as_u64)
}

/// Whether a write changes the devices of a rule, and not its image.
pub(super) fn have_changed(commit: &Commit) -> bool {
    let (Some(old), Some(new)) = (&commit.old, &commit.new) else { return false };
    let image = |rule: &Value| text(rule, "/spec/template/spec/containers/0/image").to_owned();
    image(old) == image(new) && asked(old) != asked(new)
}

/// Whether a companion has the devices that a rule asks for, or may have them, because its template is gone.
pub(super) fn may_have_those_of(world: &World, companion: &Value, rule: &Value) -> bool {
    let (namespace, name) = (text(companion, "/metadata/namespace"), template_of(companion));
    if name.is_empty() {
        return asked(rule).is_none();
    }
    let template = world.infra.get("resourceclaimtemplates", Some(namespace), name);
    template.is_none_or(|template| count(&template) == asked(rule))
}

impl Judge {
    /// A write in the infrastructure cluster that may be about devices.
    pub(super) fn devices_written(&self, world: &World, commit: &Commit) {
        match (commit.kind.plural, &commit.new) {
            ("resourceclaims", Some(claim)) => {
                let own = devices(claim);
                let uid = &claim["metadata"]["uid"];
                for other in world.infra.list("resourceclaims") {
                    if other["metadata"]["uid"] != *uid && devices(&other).iter().any(|one| own.contains(one))
                    {
                        let (one, other) = (&commit.name, text(&other, "/metadata/name"));
                        self.violation(world, format!("the claims {one} and {other} have the same device"));
                    }
                }
            }
            ("resourceclaimtemplates", None) if commit.client.starts_with("manager") => {
                let names = |pod: &Value| {
                    text(pod, "/metadata/namespace") == commit.namespace.as_deref().unwrap_or_default()
                        && pod["metadata"]["deletionTimestamp"].is_null()
                        && template_of(pod) == commit.name
                };
                // A late request of when the rule didn't ask for it is none, as long as the template is created again.
                let repaired = |pod: &Value| {
                    companion(pod).is_some_and(|key| {
                        let now = written(world, &key).and_then(|rule| asked(&rule));
                        self.has_changed(key.0, &key.1)
                            && now.is_some()
                            && now == commit.old.as_deref().and_then(count)
                    })
                };
                // One that is outdated is replaced.
                let excused = |pod: &Value| repaired(pod) || self.is_outdated(pod);
                let user = world.infra.list("pods").into_iter().find(|pod| names(pod) && !excused(pod));
                if let Some(pod) = user {
                    let (client, name, pod) = (&commit.client, &commit.name, text(&pod, "/metadata/name"));
                    self.violation(
                        world,
                        format!("{client} deletes the claim template {name}, which {pod} names"),
                    );
                }
            }
            _ => {}
        }
    }

    /// How the claims of companions differ from what their rules ask for.
    /// `stuck`: rules whose rollouts wait for what never comes.
    pub(super) fn devices_missing(world: &World, stuck: &BTreeSet<(&'static str, &str)>) -> Vec<String> {
        let (infra, mut missing) = (&world.infra, Vec::new());
        let (mut claimed, mut named, mut earlier) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for pod in infra.list("pods") {
            claimed.extend(claims(&pod));
            named.insert((text(&pod, "/metadata/namespace").to_owned(), template_of(&pod).to_owned()));
            // One that lingers has what its rule asked for.
            let Some(key) = companion(&pod).filter(|_| mark(&pod).is_none()) else { continue };
            let Some(rule) = written(world, &key).filter(|_| world.has_agent(key.0)) else { continue };
            // Templates are of the rule in the infrastructure cluster, which has a uid of its own.
            let uid = served(world, &key).map(|rule| text(&rule, "/metadata/uid").to_owned());
            let namespace = Some(text(&pod, "/metadata/namespace"));
            let template = infra.get("resourceclaimtemplates", namespace, template_of(&pod));
            let has = template.as_ref().and_then(|template| count(template));
            // One of an earlier template has the devices of that.
            let image = |object: &Value, at: &str| text(object, at).to_owned();
            if image(&pod, "/spec/containers/0/image")
                != image(&rule, "/spec/template/spec/containers/0/image")
                || differ(&pod, &rule)
            {
                earlier.extend(uid);
                continue;
            }
            // One that budgets hold has the devices of before.
            let all = world.tenants[key.0].list("pods");
            let workload = all.iter().find(|pod| text(pod, "/metadata/uid") == key.2);
            if has != asked(&rule)
                && (workload.is_some_and(|pod| super::rollouts::holds(&world.tenants[key.0], &rule, pod))
                    || stuck.contains(&(key.0, key.1.as_str())))
            {
                earlier.extend(uid);
                continue;
            }
            if has != asked(&rule) {
                missing.push(format!(
                    "the companion of {key:?} claims {has:?} devices, its rule {:?}",
                    asked(&rule)
                ));
            }
            let bound = text(&pod, "/spec/nodeName");
            let claim =
                claim_of(&pod, "engine").and_then(|name| infra.get("resourceclaims", namespace, name));
            let held = claim.as_ref().map(|claim| devices(claim)).unwrap_or_default();
            let here = held.iter().filter(|(pool, _)| pool == bound).count();
            if !bound.is_empty() && (here as u64 != has.unwrap_or(0) || here != held.len()) {
                missing.push(format!("the companion of {key:?} on {bound} has {held:?} of {has:?} devices"));
            }
        }
        for claim in infra.list("resourceclaims") {
            let name = text(&claim, "/metadata/name");
            if !claimed.contains(name) {
                missing.push(format!("no Pod has the claim {name}"));
            }
        }
        let rules = ["workloadrules", "adminworkloadrules"].map(|kind| infra.list(kind)).concat();
        for template in infra.list("resourceclaimtemplates") {
            let uid = &template["metadata"]["annotations"][keys::RULE_UID];
            let rule = rules.iter().find(|rule| rule["metadata"]["uid"] == *uid);
            let count = count(&template);
            let name = text(&template, "/metadata/name");
            let at = (text(&template, "/metadata/namespace").to_owned(), name.to_owned());
            // The replica that serves the tenant removes them, and none serves one without an agent. Companions of such a tenant keep
            // earlier templates of the platform's rules, and while there are any, no other is removed.
            let concerns = |id: &str| at.0 == namespace_of(id) || at.0 == keys::ADMIN_NAMESPACE;
            let is_served = TENANTS.into_iter().all(|(id, _)| world.has_agent(id) || !concerns(id));
            // A rule whose template is refused, or never gets ready, keeps what earlier ones had. No template is removed while a companion of
            // an earlier one exists: it may name it.
            let stuck = rule.is_some_and(|rule| {
                let image = text(rule, "/spec/template/spec/containers/0/image");
                image.starts_with(REFUSED)
                    || image.starts_with(NEVER)
                    || earlier.contains(text(rule, "/metadata/uid"))
            });
            if is_served && !stuck && rule.is_none_or(|rule| asked(rule) != count) && !named.contains(&at) {
                missing.push(format!("no rule asks for the claim template {name} of {count:?} devices"));
            }
        }
        missing
    }
}

fn template_of(pod: &Value) -> &str {
    text(pod, "/spec/resourceClaims/0/resourceClaimTemplateName")
}

/// The names of the claims that a Pod has.
fn claims(pod: &Value) -> Vec<String> {
    let statuses = pod["status"]["resourceClaimStatuses"].as_array();
    statuses.into_iter().flatten().map(|status| text(status, "/resourceClaimName").to_owned()).collect()
}
