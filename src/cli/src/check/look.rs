//! Examines every object of a kind that Outrigger judges, and the relations between objects.

use std::collections::{BTreeMap, BTreeSet};

use outrigger_admission::Decision;
use outrigger_api::{AdminWorkloadRule, Tenant, WorkloadRule};
use outrigger_core::host::HostLabels;
use outrigger_core::ids::TenantId;
use outrigger_core::lint::LintContext;
use outrigger_core::tenant::Tenant as Domain;
use outrigger_core::{keys, validate};
use serde_json::Value;

use super::Report;
use super::findings::{DOUBTFUL, Finding, NO_CLASS, REFUSED, Subject};
use super::{devices, machines, nodes, rules};
use crate::admission::Admission;
use crate::companion::creation;
use crate::files::{InputError, Object};
use outrigger_core::node::Node;

/// The user as whom objects are created to see whether admission allows them. It has no rights of its own.
pub(super) const ANYBODY: &str = "outrigger:check";

/// Outrigger's kinds, which admission judges unchanged.
const OWN: [(&str, &str); 4] = [
    (keys::GROUP, "Tenant"),
    (keys::WORKLOAD_GROUP, "WorkloadRule"),
    (keys::WORKLOAD_GROUP, "AdminWorkloadRule"),
    (keys::OFFLOADING_GROUP, "NamespaceOffloading"),
];

const NO_SUCH_CLASS: &str = "there is no such DeviceClass";

/// Examines all objects.
pub(super) fn report(admission: &Admission, host_labels: &HostLabels) -> Result<Report, InputError> {
    let state = admission.state();
    let mut look = Examination {
        admission,
        host_labels,
        findings: Vec::new(),
        notes: Vec::new(),
        files: BTreeMap::new(),
    };
    let mut tenants = BTreeMap::new();
    for object in state.of(keys::GROUP, "Tenant") {
        if let Ok(tenant) = object.read::<Tenant>()?.compile() {
            tenants.insert(tenant.policy.tenant.clone(), tenant);
        }
    }
    let all: Vec<Node> = state.of("", "Node").map(|node| Node::of(&node.value)).collect();
    let classes: BTreeSet<&str> =
        state.of(keys::DEVICE_GROUP, "DeviceClass").map(|class| class.name.as_str()).collect();
    let around = ClusterState { tenants: &tenants, nodes: &all, classes: &classes };
    for (group, kind) in OWN {
        for object in state.of(group, kind) {
            look.own(object, &around)?;
        }
    }
    for kind in ["ResourceClaim", "ResourceClaimTemplate"] {
        for object in state.of(keys::DEVICE_GROUP, kind) {
            look.claim(object, &around);
        }
    }
    if all.is_empty() {
        look.notes
            .push("there are no Nodes: DPUs, hosts and what Machines promise weren't looked at".to_owned());
    } else {
        look.findings.extend(nodes::dpus(&all, &tenants, host_labels));
        look.machines()?;
    }
    if classes.is_empty() {
        look.notes.push(
            "there are no DeviceClasses: whether those that are named exist wasn't looked at".to_owned(),
        );
    }
    for (group, kind) in [("", "Node"), (keys::MACHINE_GROUP_DOMAIN, "Machine")] {
        for object in state.of(group, kind) {
            look.subject(object);
        }
    }
    let namespaces = namespaces(admission);
    Ok(Report { findings: look.findings, notes: look.notes, namespaces, files: look.files })
}

struct ClusterState<'a> {
    tenants: &'a BTreeMap<TenantId, Domain>,
    nodes: &'a [Node],
    classes: &'a BTreeSet<&'a str>,
}

struct Examination<'a> {
    admission: &'a Admission,
    host_labels: &'a HostLabels,
    findings: Vec<Finding>,
    notes: Vec<String>,
    files: BTreeMap<Subject, String>,
}

impl Examination<'_> {
    /// The subject of an object. Remembers the object's file.
    fn subject(&mut self, object: &Object) -> Subject {
        let namespace = namespace_of(object).to_owned();
        let subject = Subject { kind: object.kind.clone(), namespace, name: object.name.clone() };
        if let Some(file) = object.origin.file() {
            self.files.insert(subject.clone(), file.to_owned());
        }
        subject
    }

    /// Examines an object of one of Outrigger's kinds: admission's decision, and doubts.
    fn own(&mut self, object: &Object, around: &ClusterState<'_>) -> Result<(), InputError> {
        let subject = self.subject(object);
        match decision(self.admission, &subject, object)? {
            refused @ Decision::Deny { .. } => {
                self.findings.extend(Finding::of_decision(&REFUSED, &subject, refused));
            }
            Decision::Allow { warnings, .. } => match object.kind.as_str() {
                "WorkloadRule" | "AdminWorkloadRule" => self.rule(object, &subject, &warnings, around)?,
                // All that admission warns of are its hosts, and only the first of these.
                "Tenant" => {
                    self.findings.extend(nodes::unusable_hosts(&subject, &object.read::<Tenant>()?));
                }
                _ => self.doubtful(&subject, warnings.iter()),
            },
        }
        if object.kind == "Tenant" {
            self.allowed_classes(object, &subject, around);
        }
        Ok(())
    }

    fn doubtful<'w>(&mut self, subject: &Subject, warnings: impl Iterator<Item = &'w String>) {
        self.findings.extend(warnings.map(|warning| Finding::new(&DOUBTFUL, subject, "", warning)));
    }

    fn rule(
        &mut self,
        object: &Object,
        subject: &Subject,
        warnings: &[String],
        around: &ClusterState<'_>,
    ) -> Result<(), InputError> {
        let spec = object.value.get("spec").unwrap_or(&Value::Null);
        self.findings.extend(rules::claims(subject, spec));
        let tenant = self.admission.owner(&subject.namespace);
        let rule = if object.kind == "WorkloadRule" {
            object.read::<WorkloadRule>()?.compile().ok()
        } else {
            object.read::<AdminWorkloadRule>()?.compile().ok().map(|admin| admin.rule)
        };
        let Some(rule) = rule else { return Ok(()) };
        let dpus = tenant.as_ref().filter(|_| !around.nodes.is_empty()).map(|id| self.dpus_of(id, around));
        let lint = LintContext {
            host_labels: self.host_labels,
            tenant: tenant.as_ref().map(TenantId::as_str),
            dpus,
        };
        self.findings.extend(rules::doubts(subject, &rule, &lint));
        let beside = |other: &&Object| namespace_of(other) == subject.namespace;
        self.findings.extend(rules::shared(subject, &rule, |name| {
            let mut all = self.admission.state().of(&object.group, &object.kind).filter(beside);
            all.find(|other| other.name == name).map(|other| &other.value["spec"])
        }));
        // Admission counts only DPUs that the manager has marked. Its other warnings are reported unchanged.
        let known = outrigger_core::lint::rule(&rule, &LintContext { dpus: Some(0), ..lint });
        self.doubtful(subject, warnings.iter().filter(|warning| !known.contains(warning)));
        for (path, spec) in rules::claims_of(spec) {
            self.class(subject, spec, &path, around);
        }
        Ok(())
    }

    /// The number of DPUs that a tenant has, or will have when the manager has seen them.
    fn dpus_of(&self, id: &TenantId, around: &ClusterState<'_>) -> usize {
        let hosts = around.tenants.get(id).map(|tenant| &tenant.hosts);
        let is_own = |node: &&Node| match node.labels.get(keys::NODE_TENANT) {
            Some(owner) => owner == id.as_str(),
            None => self
                .host_labels
                .host(&node.labels)
                .is_some_and(|host| hosts.is_some_and(|all| all.contains(host))),
        };
        around.nodes.iter().filter(is_own).count()
    }

    /// Examines a claim or a template of claims.
    fn claim(&mut self, object: &Object, around: &ClusterState<'_>) {
        let subject = self.subject(object);
        let pointer = if object.kind == "ResourceClaim" { "/spec" } else { "/spec/spec" };
        let path = pointer.trim_start_matches('/').replace('/', ".");
        let spec = object.value.pointer(pointer).unwrap_or(&Value::Null);
        self.findings.extend(devices::spec(&subject, spec, &path));
        if let Some(tenant) = self.admission.owner(&subject.namespace).and_then(|id| around.tenants.get(&id))
        {
            let faults = validate::device_requests(spec, &path, &tenant.policy);
            self.findings.extend(Finding::of_faults(&REFUSED, &subject, faults));
        }
        self.class(&subject, spec, &path, around);
    }

    fn class(&mut self, subject: &Subject, spec: &Value, path: &str, around: &ClusterState<'_>) {
        if !around.classes.is_empty() {
            self.findings.extend(devices::classes(subject, spec, path, around.classes));
        }
    }

    /// Missing classes that a Tenant allows. Admission checks them only when the Tenant is created.
    fn allowed_classes(&mut self, object: &Object, subject: &Subject, around: &ClusterState<'_>) {
        let list = object.value.pointer("/spec/deviceClasses").and_then(Value::as_array);
        for (i, class) in list.into_iter().flatten().filter_map(Value::as_str).enumerate() {
            let path = format!("spec.deviceClasses[{i}]");
            // Without any DeviceClass it isn't known which there are, and admission would refuse all.
            let is_refusal = |f: &Finding| {
                f.check == &REFUSED
                    && f.subject == *subject
                    && f.path == path
                    && f.message.contains(NO_SUCH_CLASS)
            };
            self.findings.retain(|finding| !is_refusal(finding));
            if !around.classes.is_empty() && !around.classes.contains(class) {
                let message = format!("is {class:?}, and {NO_SUCH_CLASS}; create it first");
                self.findings.push(Finding::new(&NO_CLASS, subject, path, message));
            }
        }
    }

    fn machines(&mut self) -> Result<(), InputError> {
        let state = self.admission.state();
        let mut around = machines::ClusterResources::default();
        for node in state.of("", "Node") {
            around.nodes.insert(&node.name, &node.value);
        }
        for class in state.of(keys::DEVICE_GROUP, "DeviceClass") {
            let resource = class.value.pointer("/spec/extendedResourceName").and_then(Value::as_str);
            around.classes.insert(&class.name, resource);
        }
        for machine in state.of(keys::MACHINE_GROUP_DOMAIN, "Machine") {
            self.findings.extend(machines::machine(&machine.read()?, &around));
        }
        Ok(())
    }
}

/// The namespaces of tenants.
pub(super) fn namespaces(admission: &Admission) -> BTreeSet<String> {
    let all = admission.state().of("", "Namespace").map(|namespace| namespace.name.clone());
    all.filter(|name| admission.owner(name).is_some()).collect()
}

/// What admission decides about the creation of an object by anybody.
pub(super) fn decision(
    admission: &Admission,
    subject: &Subject,
    object: &Object,
) -> Result<Decision, InputError> {
    Ok(admission.decide(&mut creation(ANYBODY, &subject.namespace, &object.value)?))
}

/// The namespace of an object; `default` for namespaced kinds without one, as kubectl takes it.
fn namespace_of(object: &Object) -> &str {
    let ours = OWN[1..].iter().any(|(_, kind)| *kind == object.kind);
    if ours { object.namespace_or_default() } else { &object.namespace }
}
