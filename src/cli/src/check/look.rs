//! Examines every object of a kind that Outrigger judges, and the relations between objects.

use std::collections::{BTreeMap, BTreeSet};

use outrigger_admission::Decision;
use outrigger_api::{AdminWorkloadRule, Tenant, WorkloadRule};
use outrigger_core::host::HostLabels;
use outrigger_core::ids::TenantId;
use outrigger_core::json::{list, text};
use outrigger_core::lint::LintContext;
use outrigger_core::node::Node;
use outrigger_core::tenant::Tenant as Domain;
use outrigger_core::{keys, validate};
use serde_json::Value;

use super::Report;
use super::findings::{DOUBTFUL, Finding, NAMESPACE_WITHOUT_TENANT, NO_CLASS, REFUSED, Subject};
use super::{devices, machines, nodes, rules};
use crate::admission::Admission;
use crate::companion::creation;
use crate::files::{InputError, Object};

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
pub(super) fn report(admission: &Admission) -> Result<Report, InputError> {
    let state = admission.state();
    let mut tenants = BTreeMap::new();
    for object in state.of(keys::GROUP, "Tenant") {
        if let Ok(tenant) = object.read::<Tenant>()?.compile() {
            tenants.insert(tenant.policy.tenant.clone(), tenant);
        }
    }
    let mut look = Examination {
        admission,
        host_labels: &admission.settings().host_labels,
        tenants,
        nodes: state.of("", "Node").map(|node| Node::of(&node.value)).collect(),
        classes: state.of(keys::DEVICE_GROUP, "DeviceClass").map(|class| class.name.as_str()).collect(),
        report: Report { namespaces: namespaces(admission), ..Report::default() },
    };
    for (group, kind) in OWN {
        for object in state.of(group, kind) {
            look.own(object)?;
        }
    }
    for kind in ["ResourceClaim", "ResourceClaimTemplate"] {
        for object in state.of(keys::DEVICE_GROUP, kind) {
            look.claim(object);
        }
    }
    look.labeled_namespaces();
    if look.nodes.is_empty() {
        look.note("there are no Nodes: DPUs, hosts and what Machines promise weren't looked at");
    } else {
        look.add(nodes::dpus(&look.nodes, &look.tenants, look.host_labels));
        look.machines()?;
    }
    if look.classes.is_empty() {
        look.note("there are no DeviceClasses: whether those that are named exist wasn't looked at");
    }
    for (group, kind) in [("", "Node"), (keys::MACHINE_GROUP_DOMAIN, "Machine")] {
        for object in state.of(group, kind) {
            look.subject(object);
        }
    }
    Ok(look.report)
}

struct Examination<'a> {
    admission: &'a Admission,
    host_labels: &'a HostLabels,
    /// The Tenants that are valid.
    tenants: BTreeMap<TenantId, Domain>,
    nodes: Vec<Node>,
    /// Names of the DeviceClasses.
    classes: BTreeSet<&'a str>,
    report: Report,
}

impl Examination<'_> {
    fn add(&mut self, findings: impl IntoIterator<Item = Finding>) {
        self.report.findings.extend(findings);
    }

    fn note(&mut self, note: &str) {
        self.report.notes.push(note.to_owned());
    }

    /// The subject of an object. Remembers the object's file.
    fn subject(&mut self, object: &Object) -> Subject {
        let subject = Subject::new(&object.kind, namespace_of(object), &object.name);
        if let Some(file) = object.origin.file() {
            self.report.files.insert(subject.clone(), file.to_owned());
        }
        subject
    }

    /// Examines an object of one of Outrigger's kinds: admission's decision, and doubts.
    fn own(&mut self, object: &Object) -> Result<(), InputError> {
        let subject = self.subject(object);
        match decision(self.admission, &subject, object)? {
            refused @ Decision::Deny { .. } => self.add(Finding::of_decision(&REFUSED, &subject, refused)),
            Decision::Allow { warnings, .. } => match object.kind.as_str() {
                "WorkloadRule" | "AdminWorkloadRule" => self.rule(object, &subject, &warnings)?,
                // All that admission warns of are its hosts, and only the first of these.
                "Tenant" => self.add(nodes::unusable_hosts(&subject, &object.read::<Tenant>()?)),
                _ => self.doubtful(&subject, warnings.iter()),
            },
        }
        if object.kind == "Tenant" {
            self.allowed_classes(object, &subject);
        }
        Ok(())
    }

    fn doubtful<'w>(&mut self, subject: &Subject, warnings: impl Iterator<Item = &'w String>) {
        self.add(warnings.map(|warning| Finding::new(&DOUBTFUL, subject, "", warning)));
    }

    fn rule(&mut self, object: &Object, subject: &Subject, warnings: &[String]) -> Result<(), InputError> {
        let spec = &object.value["spec"];
        self.add(rules::claims(subject, spec));
        let tenant = self.admission.owner(&subject.namespace);
        let rule = if object.kind == "WorkloadRule" {
            object.read::<WorkloadRule>()?.compile().ok()
        } else {
            object.read::<AdminWorkloadRule>()?.compile().ok().map(|admin| admin.rule)
        };
        let Some(rule) = rule else { return Ok(()) };
        let dpus = tenant.as_ref().filter(|_| !self.nodes.is_empty()).map(|id| self.dpus_of(id));
        let lint = LintContext {
            host_labels: self.host_labels,
            tenant: tenant.as_ref().map(TenantId::as_str),
            dpus,
        };
        self.add(rules::doubts(subject, &rule, &lint));
        let beside = |other: &&Object| namespace_of(other) == subject.namespace;
        let state = self.admission.state();
        self.add(rules::shared(subject, &rule, |name| {
            let mut all = state.of(&object.group, &object.kind).filter(beside);
            all.find(|other| other.name == name).map(|other| &other.value["spec"])
        }));
        // Admission counts only DPUs that the manager has marked. Its other warnings are reported unchanged.
        let known = outrigger_core::lint::rule(&rule, &LintContext { dpus: Some(0), ..lint });
        self.doubtful(subject, warnings.iter().filter(|warning| !known.contains(warning)));
        for (path, spec) in rules::claims_of(spec) {
            self.class(subject, spec, &path);
        }
        Ok(())
    }

    /// Namespaces with the label of a Tenant that doesn't exist. No object has a condition that could say so.
    fn labeled_namespaces(&mut self) {
        let admission = self.admission;
        let (state, admin) = (admission.state(), &admission.settings().admin);
        let tenants: BTreeSet<&str> =
            state.of(keys::GROUP, "Tenant").map(|tenant| tenant.name.as_str()).collect();
        if tenants.is_empty() && !self.report.namespaces.is_empty() {
            return self
                .note("there are no Tenants: whether those that Namespaces name exist wasn't looked at");
        }
        for object in state.of("", "Namespace") {
            let name = &object.name;
            let owner = admission.owner(name).filter(|owner| !tenants.contains(owner.as_str()));
            let Some(owner) = owner.filter(|_| self.report.namespaces.contains(name)) else { continue };
            if admin.contains(name) {
                continue;
            }
            let (subject, path) = (self.subject(object), format!("metadata.labels[{}]", keys::TENANT));
            let message = format!("is {:?}, and there is no such Tenant", owner.as_str());
            self.add([Finding::new(&NAMESPACE_WITHOUT_TENANT, &subject, path, message)]);
        }
    }

    /// The number of DPUs that a tenant has, or will have when the manager has seen them.
    fn dpus_of(&self, id: &TenantId) -> usize {
        let hosts = self.tenants.get(id).map(|tenant| &tenant.hosts);
        let is_own = |node: &&Node| match node.labels.get(keys::NODE_TENANT) {
            Some(owner) => owner == id.as_str(),
            None => self
                .host_labels
                .host(&node.labels)
                .is_some_and(|host| hosts.is_some_and(|all| all.contains(host))),
        };
        self.nodes.iter().filter(is_own).count()
    }

    /// Examines a claim or a template of claims.
    fn claim(&mut self, object: &Object) {
        let subject = self.subject(object);
        let pointer = if object.kind == "ResourceClaim" { "/spec" } else { "/spec/spec" };
        let path = pointer.trim_start_matches('/').replace('/', ".");
        let spec = object.value.pointer(pointer).unwrap_or(&Value::Null);
        self.add(devices::spec(&subject, spec, &path));
        if let Some(tenant) = self.admission.owner(&subject.namespace).and_then(|id| self.tenants.get(&id)) {
            let faults = validate::device_requests(spec, &path, &tenant.policy);
            self.add(Finding::of_faults(&REFUSED, &subject, faults));
        }
        self.class(&subject, spec, &path);
    }

    fn class(&mut self, subject: &Subject, spec: &Value, path: &str) {
        if !self.classes.is_empty() {
            self.add(devices::classes(subject, spec, path, &self.classes));
        }
    }

    /// Missing classes that a Tenant allows. Admission checks them only when the Tenant is created.
    fn allowed_classes(&mut self, object: &Object, subject: &Subject) {
        let list = list(&object.value, "/spec/deviceClasses").iter();
        for (i, class) in list.filter_map(Value::as_str).enumerate() {
            let path = format!("spec.deviceClasses[{i}]");
            // Without any DeviceClass it isn't known which there are, and admission would refuse all.
            let is_refusal = |f: &Finding| {
                f.check == &REFUSED
                    && f.subject == *subject
                    && f.path == path
                    && f.message.contains(NO_SUCH_CLASS)
            };
            self.report.findings.retain(|finding| !is_refusal(finding));
            if !self.classes.is_empty() && !self.classes.contains(class) {
                let message = format!("is {class:?}, and {NO_SUCH_CLASS}; create it first");
                self.add([Finding::new(&NO_CLASS, subject, path, message)]);
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
            self.add(machines::machine(&machine.read()?, &around));
        }
        Ok(())
    }
}

/// The namespaces of tenants. Nothing can be created in one that is being deleted, so it gets no report.
pub(super) fn namespaces(admission: &Admission) -> BTreeSet<String> {
    let all = admission.state().of("", "Namespace");
    let stay = all.filter(|namespace| text(&namespace.value, "/metadata/deletionTimestamp").is_empty());
    stay.map(|namespace| namespace.name.clone()).filter(|name| admission.owner(name).is_some()).collect()
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
    let is_cluster_wide = ["Tenant", "Node", "Machine", "Namespace"].contains(&object.kind.as_str());
    if is_cluster_wide { "" } else { object.namespace_or_default() }
}
