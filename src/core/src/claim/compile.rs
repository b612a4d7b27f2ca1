//! A rule's device claims as written, and their validation.

use crate::map::HashSet;
use serde_json::Value;

use super::{Attribute, DeviceClaim, Devices, Source};
use crate::companion;
use crate::device::{self, MAX_DRIVER, MAX_SELECTORS, is_identifier};
use crate::field::{FieldError, FieldErrors};
use crate::ids::RuleName;
use crate::json::{Json, list, text};
use crate::rule::DpuSelectionPolicy;
use crate::syntax::{Form, is_dns_subdomain};
use crate::template::{self, Kind};

/// Most device claims of a rule.
pub const MAX_CLAIMS: usize = 16;
/// Most containers that a device claim names.
pub const MAX_CONTAINERS: usize = 64;
/// Most bytes of JSON that the specs of a rule's device claims have together. etcd takes 1.5 MiB an object, and the
/// template may have a third of that.
pub const MAX_BYTES: usize = 256 * 1024;

const CLAIMS: &str = "spec.deviceClaims";
const POLICY: &str = "spec.dpuSelectionPolicy";
const HOST_ATTRIBUTE: &str = "spec.deviceHostAttribute";

/// What a rule says of devices, not yet checked.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DevicesSpec {
    /// Claims for each companion Pod.
    pub claims: Vec<DeviceClaimSpec>,
    /// Name of the attribute that tells a device's host; empty where there is none.
    pub host_attribute: String,
}

/// A claim for each companion Pod, not yet checked.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DeviceClaimSpec {
    /// Its name within the Pod.
    pub name: String,
    /// Spec of a claim of its own.
    pub spec: Option<Json>,
    /// Name of the rule that makes the claim.
    pub from_rule: String,
    /// The containers that get it; empty: all.
    pub containers: Vec<String>,
    /// The request whose devices they get; empty: all.
    pub request: String,
}

/// The parts of a rule that its claims depend on, as written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RuleParts<'a> {
    pub(crate) name: &'a RuleName,
    pub(crate) uid: &'a str,
    pub(crate) policy: DpuSelectionPolicy,
    pub(crate) devices: &'a DevicesSpec,
}

/// Checks what a rule says of devices. `template` is the tree of the rule's template. Adds what is wrong with it.
pub(crate) fn compile(rule: &RuleParts<'_>, template: &Value, errors: &mut Vec<FieldError>) -> Devices {
    let spec = rule.devices;
    let host_attribute = host_attribute(rule, template, errors);
    let is_for_pods =
        matches!(rule.policy, DpuSelectionPolicy::SameNodePrimary | DpuSelectionPolicy::SameNodeAll);
    if is_for_pods && template::kind(template) == Kind::Claim {
        let message =
            "is for Pods; a ResourceClaim has no node affinity: use SameNode with deviceHostAttribute";
        errors.refuse(POLICY, rule.policy.as_str(), message);
    }
    if !spec.claims.is_empty() && template::kind(template) != Kind::Pod {
        let message =
            "is for Pods; the template is a ResourceClaim, which asks for devices itself: remove it";
        errors.add(CLAIMS, message);
        return Devices::default();
    }
    if spec.claims.len() > MAX_CLAIMS {
        let message = format!("has {} entries, at most {MAX_CLAIMS} are allowed", spec.claims.len());
        errors.add(CLAIMS, message);
    }
    let size: usize =
        spec.claims.iter().filter_map(|claim| claim.spec.as_ref()).map(|spec| spec.text().len()).sum();
    if size > MAX_BYTES {
        let message = format!("have {size} bytes of JSON together, at most {MAX_BYTES} are allowed");
        errors.add(CLAIMS, message);
        return Devices::default();
    }
    let claims =
        (0..spec.claims.len().min(MAX_CLAIMS)).filter_map(|i| one(rule, template, i, errors)).collect();
    let containers = list(template, "/spec/containers").iter().filter(|_| !spec.claims.is_empty());
    let default_containers = containers.map(|container| text(container, "/name").to_owned()).collect();
    Devices { claims, default_containers, host_attribute }
}

fn one(
    rule: &RuleParts<'_>,
    template: &Value,
    i: usize,
    errors: &mut Vec<FieldError>,
) -> Option<DeviceClaim> {
    let claim = rule.devices.claims.get(i)?;
    let root = format!("{CLAIMS}[{i}]");
    let before = errors.len();
    let tree = claim.spec.as_ref().map(Json::tree).unwrap_or_default();
    check_name(rule, template, i, &root, errors);
    let source = match (&claim.spec, claim.from_rule.as_str()) {
        (Some(spec), "") => {
            let path = format!("{root}.spec");
            match spec.excess() {
                Some(excess) => errors.add(path, excess),
                None => errors.extend(device::faults_of_rule(&tree, &path)),
            }
            let name = |spec: &Value| companion::device_template_name(rule.name, rule.uid, &claim.name, spec);
            let content = name(&template::meaning::of_claim_spec(&tree));
            Some(Source::Template { name: name(&tree), content, spec: spec.clone() })
        }
        (None, name) if !name.is_empty() => other_rule(rule, name, &format!("{root}.fromRule"), errors),
        _ => {
            errors.add(&root, "needs exactly one of spec and fromRule");
            None
        }
    };
    check_containers(template, &claim.containers, &format!("{root}.containers"), errors);
    check_request(claim, &tree, &format!("{root}.request"), errors);
    let source = source.filter(|_| errors.len() == before)?;
    Some(DeviceClaim {
        name: claim.name.clone(),
        source,
        containers: claim.containers.clone(),
        request: (!claim.request.is_empty()).then(|| claim.request.clone()),
    })
}

fn check_name(rule: &RuleParts<'_>, template: &Value, i: usize, root: &str, errors: &mut Vec<FieldError>) {
    let Some(claim) = rule.devices.claims.get(i) else { return };
    let (path, name) = (format!("{root}.name"), &claim.name);
    if let Some(fault) = Form::DnsLabel.fault(&path, name) {
        errors.push(fault);
    } else if rule.devices.claims.iter().take(i).any(|earlier| earlier.name == *name) {
        errors.refuse(path, name, "is the name of an earlier entry already");
    } else if let Some(at) =
        list(template, "/spec/resourceClaims").iter().position(|own| text(own, "/name") == name)
    {
        let message = format!("is the name of spec.template.spec.resourceClaims[{at}] already; use another");
        errors.refuse(path, name, message);
    }
}

fn other_rule(rule: &RuleParts<'_>, name: &str, path: &str, errors: &mut Vec<FieldError>) -> Option<Source> {
    match RuleName::new(name) {
        Ok(_) if rule.policy.is_on_all() => {
            let message = "names one claim for the workload, whose devices are on one DPU, and with SameNodeAll each DPU has a companion: \
                           use spec";
            errors.refuse(path, name, message);
            None
        }
        Ok(other) if other == *rule.name => {
            errors.refuse(path, name, "is the rule itself; name one whose template is a ResourceClaim");
            None
        }
        Ok(other) => Some(Source::Rule(other)),
        Err(error) => {
            errors.refuse(path, name, error);
            None
        }
    }
}

fn check_containers(template: &Value, names: &[String], path: &str, errors: &mut Vec<FieldError>) {
    if names.len() > MAX_CONTAINERS {
        let message = format!("has {} entries, at most {MAX_CONTAINERS} are allowed", names.len());
        return errors.add(path, message);
    }
    let all = ["/spec/containers", "/spec/initContainers"].map(|pointer| list(template, pointer));
    let all: HashSet<&str> = all.into_iter().flatten().map(|container| text(container, "/name")).collect();
    for (c, name) in names.iter().enumerate() {
        let path = || format!("{path}[{c}]");
        if !all.contains(name.as_str()) {
            let message =
                "is no container of the template; use the name of one of its containers or initContainers";
            errors.refuse(path(), name, message);
        } else if names.iter().take(c).any(|earlier| earlier == name) {
            errors.refuse(path(), name, "is named twice; remove one");
        }
    }
}

fn check_request(claim: &DeviceClaimSpec, spec: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let name = &claim.request;
    if name.is_empty() {
        return;
    }
    if let Some(fault) = Form::DnsLabel.fault(path, name) {
        return errors.push(fault);
    }
    // Of another rule's claim the requests aren't known here.
    if claim.spec.is_none() {
        return;
    }
    if !list(spec, "/devices/requests").iter().any(|request| text(request, "/name") == name) {
        errors.refuse(path, name, "is no request of spec.devices.requests");
    }
}

fn host_attribute(rule: &RuleParts<'_>, template: &Value, errors: &mut Vec<FieldError>) -> Option<Attribute> {
    let name = &rule.devices.host_attribute;
    if name.is_empty() {
        return None;
    }
    let mut wrong = |message: &str| errors.refuse(HOST_ATTRIBUTE, name, message);
    let Some((domain, id)) = name
        .split_once('/')
        .filter(|(domain, id)| domain.len() <= MAX_DRIVER && is_dns_subdomain(domain) && is_identifier(id))
    else {
        wrong(
            "must be the full name of a device's attribute: a DNS subdomain of at most 63 characters, '/', and an identifier of at most 32",
        );
        return None;
    };
    if template::kind(template) != Kind::Claim {
        wrong(
            "is for templates that are ResourceClaims; the devices of a Pod are where the Pod is: remove it",
        );
    } else if !rule.policy.is_by_host() {
        wrong("is for dpuSelectionPolicy SameNode; with Any the host doesn't matter: remove it");
    }
    // One more is added to each.
    let mut claim = template.get("spec").cloned().unwrap_or_default();
    if super::requests_mut(&mut claim).any(|request| {
        request.get("selectors").and_then(Value::as_array).is_some_and(|s| s.len() >= MAX_SELECTORS)
    }) {
        wrong("adds a selector to each request, and one has 32 already, which is the most; join two of them");
    }
    Some(Attribute { domain: domain.to_owned(), id: id.to_owned() })
}
