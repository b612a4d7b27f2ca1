//! A Tenant as the domain has it, with each error of its spec.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use outrigger_core::field::{FieldError, FieldErrors};
use outrigger_core::keys;
use outrigger_core::syntax::{Form, is_short_dns_label};
use outrigger_core::tenant::exceptions::Exception;
use outrigger_core::tenant::hosts::{HostNames, Taken};
use outrigger_core::tenant::{self as domain, Identity, PodSecurity, Policy};
use outrigger_core::validate;

use super::{CheckException, HostName, Tenant};

impl Tenant {
    /// Converts the object to the domain type.
    pub fn compile(&self) -> Result<domain::Tenant, Vec<FieldError>> {
        let mut errors = Vec::new();
        let spec = &self.spec;
        let id = self.id().map_err(|e| errors.push(e)).ok();
        let namespace = self.target_namespace();
        check_namespace(&namespace, &mut errors);
        let identities = identities(&spec.identities, &mut errors);
        let hosts = names("hosts", &spec.hosts, &mut errors);
        let host_names = Arc::new(host_names(&spec.host_names, &hosts, &mut errors));
        let level = match spec.pod_security.as_str() {
            "" => Some(PodSecurity::Baseline),
            other => PodSecurity::of(other),
        };
        if level.is_none() {
            let message = format!("is {:?}; use privileged, baseline or restricted", spec.pod_security);
            errors.add("spec.podSecurity", message);
        }
        let enforcement = spec.enforcement.as_deref().map(str::parse::<domain::Enforcement>).transpose();
        let enforcement = enforcement.map_err(|error| errors.add("spec.enforcement", error)).ok().flatten();
        let service_accounts = names("serviceAccounts", &spec.service_accounts, &mut errors);
        let priority_classes = names("priorityClasses", &spec.priority_classes, &mut errors);
        let runtime_classes = names("runtimeClasses", &spec.runtime_classes, &mut errors);
        let device_classes = names("deviceClasses", &spec.device_classes, &mut errors);
        let exceptions = exceptions(&spec.exceptions, &mut errors);
        match (id, level) {
            (Some(tenant), Some(pod_security)) if errors.is_empty() => Ok(domain::Tenant {
                namespace,
                identities,
                hosts,
                host_names,
                limits: domain::Limits {
                    companions: spec.limits.companions,
                    rules: spec.limits.rules,
                    rule_bytes: spec.limits.rule_bytes,
                    workloads: spec.limits.workloads,
                    workload_bytes: spec.limits.workload_bytes,
                    rule_calls_per_second: spec.limits.rule_calls_per_second,
                    rule_bytes_per_second: spec.limits.rule_bytes_per_second,
                },
                policy: Policy {
                    tenant,
                    pod_security,
                    service_accounts,
                    priority_classes,
                    runtime_classes,
                    device_classes,
                },
                enforcement,
                exceptions,
            }),
            _ => Err(errors),
        }
    }
}

fn check_namespace(namespace: &str, errors: &mut Vec<FieldError>) {
    if !is_short_dns_label(namespace) {
        errors.add("spec.namespace", format_args!("is {namespace:?}, which is not a namespace name"));
    } else if namespace == "default"
        || keys::SYSTEM_NAMESPACES.contains(&namespace)
        || namespace.starts_with("kube-")
    {
        errors.add(
            "spec.namespace",
            format_args!("is {namespace:?}, which is reserved for Kubernetes or Outrigger; use another"),
        );
    }
}

/// Validates identities without duplicates.
fn identities(list: &[String], errors: &mut Vec<FieldError>) -> Vec<Identity> {
    let mut identities = Vec::with_capacity(list.len());
    for (i, name) in list.iter().enumerate() {
        match Identity::new(name) {
            Ok(identity) if identities.contains(&identity) => {
                errors.add(
                    format_args!("spec.identities[{i}]"),
                    format_args!("duplicates {name:?}; remove it"),
                );
            }
            Ok(identity) => identities.push(identity),
            Err(e) => errors.add(format_args!("spec.identities[{i}]"), e),
        }
    }
    identities
}

/// Validates a list of names of Kubernetes objects without duplicates.
fn names(field: &str, list: &[String], errors: &mut Vec<FieldError>) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (i, name) in list.iter().enumerate() {
        let path = || format!("spec.{field}[{i}]");
        if !Form::DnsSubdomain.accepts(name) {
            let wanted = Form::DnsSubdomain;
            errors.add(path(), format_args!("is {name:?}, which is not a name: use {wanted}"));
        } else if !names.insert(name.clone()) {
            errors.add(path(), format_args!("duplicates {name:?}; remove it"));
        }
    }
    names
}

/// Validates names of Nodes: each in one entry, and each for another one of the tenant's hosts.
fn host_names(list: &[HostName], hosts: &BTreeSet<String>, errors: &mut Vec<FieldError>) -> HostNames {
    let mut names = HostNames::default();
    for (i, HostName { node, host }) in list.iter().enumerate() {
        let path = |field: &str| format!("spec.hostNames[{i}].{field}");
        if !Form::DnsSubdomain.accepts(node) {
            let wanted = Form::DnsSubdomain;
            errors.add(
                path("node"),
                format_args!("is {node:?}, which is not the name of a Node: use {wanted}"),
            );
        } else if !hosts.contains(host) {
            errors.add(path("host"), format_args!("is {host:?}, which is not in spec.hosts; add it there"));
        } else {
            let twice = |name: &str| format!("duplicates {name:?}; remove one of the entries");
            match names.insert(node, host) {
                Ok(()) => {}
                Err(Taken::Node) => errors.add(path("node"), twice(node)),
                Err(Taken::Host) => errors.add(path("host"), twice(host)),
            }
        }
    }
    names
}

fn exceptions(list: &[CheckException], errors: &mut Vec<FieldError>) -> Vec<Exception> {
    let mut exceptions: Vec<Exception> = Vec::with_capacity(list.len());
    for (i, CheckException { name, checks, pods, until, .. }) in list.iter().enumerate() {
        let path = |field: &str| format!("spec.exceptions[{i}].{field}");
        if !is_short_dns_label(name) {
            errors.refuse(
                path("name"),
                name,
                "use lower-case letters, digits and '-', at most 63 characters",
            );
        } else if exceptions.iter().any(|other| other.name == *name) {
            errors.refuse(path("name"), name, "duplicates another entry; remove one of them");
        }
        for check in checks.iter().filter(|check| !validate::exceptable().any(|known| known == **check)) {
            let known = validate::exceptable().collect::<Vec<_>>().join(", ");
            errors.refuse(path("checks"), check, format_args!("can't be excepted; use {known}"));
        }
        for pod in pods {
            let beginning = pod.strip_suffix('*').unwrap_or(pod);
            // What a name begins with may end with a separator.
            let whole = beginning.trim_end_matches(['-', '.']);
            if whole.is_empty()
                || !Form::DnsSubdomain.accepts(whole)
                || (whole != beginning && beginning == pod)
            {
                errors.refuse(path("pods"), pod, "use the name of a Pod, or the beginning of one and *");
            }
        }
        match until.parse::<Timestamp>() {
            Ok(time) => exceptions.push(Exception {
                name: name.clone(),
                checks: checks.iter().cloned().collect(),
                pods: pods.clone(),
                until: time.as_second(),
                until_text: until.clone(),
            }),
            Err(_) => errors.refuse(path("until"), until, "use a time as 2027-01-31T00:00:00Z"),
        }
    }
    exceptions
}
