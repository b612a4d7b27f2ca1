//! Rules and running Pods that admission would refuse if they were created now.
//!
//! **In**: what admission decides by, and the Pods of tenants' namespaces, page by page, none of which is kept. **Out**: findings. The
//! webhook's own code decides: about a rule as about a new one, about a Pod and its binding as the validating webhook does. Mutation
//! comes before that for new Pods only, so a running Pod has to have what mutation would give it.

use std::collections::BTreeSet;

use kube::api::ListParams;
use outrigger_admission::Decision;
use outrigger_core::json::text;
use outrigger_core::keys;
use outrigger_webhook::settings::AdmissionArgs;
use serde_json::{Value, json};

use super::parts::{Installation, Part, is_running};
use crate::admission::Admission;
use crate::check::findings::{Finding, REFUSED, RUNNING, Subject};
use crate::check::live;
use crate::check::look::{self, ANYBODY, decision};
use crate::cluster::{Cluster, POD, each};
use crate::companion::{as_new, creation, is_of_rule};
use crate::files::InputError;

/// Most Pods of tenants that are examined.
const MOST_PODS: usize = 100_000;

/// Most findings. More objects are counted.
const MOST_FINDINGS: usize = 200;

/// Examines rules and running Pods, where the webhook is in the cluster. Returns the namespaces of tenants beside the findings, where all
/// of them were examined.
pub(super) async fn examine(
    installation: &Installation,
    args: &AdmissionArgs,
) -> (Vec<Finding>, BTreeSet<String>) {
    let nothing = (Vec::new(), BTreeSet::new());
    if !installation.has(Part::Webhook) {
        return nothing;
    }
    let cluster = &installation.cluster;
    let admission = match installation.admission(args) {
        Ok(args) => known(cluster, args).await,
        Err(error) => Err(error),
    };
    let admission = match admission {
        Ok(Some(admission)) => admission,
        Ok(None) => return nothing,
        Err(error) => {
            cluster
                .note(format!("whether admission would refuse rules and running Pods isn't known: {error}"));
            return nothing;
        }
    };
    let mut existing = Existing::new(&admission);
    let mut namespaces = look::namespaces(&admission);
    if let Err(error) = existing.rules() {
        cluster.note(format!("not all rules were examined: {error}"));
        namespaces.clear();
    }
    let read = each(&cluster.api(POD, ""), ListParams::default(), |pod| existing.pod(&pod)).await;
    if let Err(why) = read {
        let why = why.brief();
        cluster.note(format!("not all running Pods were examined, because they can't be listed: {why}"));
        namespaces.clear();
    }
    if existing.pods > MOST_PODS {
        namespaces.clear();
    }
    namespaces
        .retain(|namespace| !existing.ownerless.contains(namespace) && !existing.unclear.contains(namespace));
    existing.notes().into_iter().for_each(|note| cluster.note(note));
    (existing.findings, namespaces)
}

/// What admission decides by. `None`: not all of it may be read, which is noted, and a decision without it could be wrong.
async fn known(cluster: &Cluster, args: AdmissionArgs) -> Result<Option<Admission>, InputError> {
    let (state, unread) = live::read_from(cluster.client.clone()).await?;
    for why in &unread {
        cluster.note(format!("whether admission would refuse rules and running Pods isn't known: {why}"));
    }
    if unread.is_empty() { Admission::new(state, args).map(Some) } else { Ok(None) }
}

struct Existing<'a> {
    admission: &'a Admission,
    findings: Vec<Finding>,
    /// Objects with findings that have no room.
    unnamed: usize,
    /// Pods of tenants so far.
    pods: usize,
    /// Those about which admission couldn't decide.
    undecided: usize,
    /// Namespaces of tenants that aren't known, or aren't valid.
    ownerless: BTreeSet<String>,
    /// Namespaces of objects whose findings have no room, or about which admission couldn't decide.
    unclear: BTreeSet<String>,
}

impl<'a> Existing<'a> {
    fn new(admission: &'a Admission) -> Self {
        let (findings, ownerless, unclear) = Default::default();
        Self { admission, findings, unnamed: 0, pods: 0, undecided: 0, ownerless, unclear }
    }

    fn rules(&mut self) -> Result<(), InputError> {
        for kind in ["WorkloadRule", "AdminWorkloadRule"] {
            for rule in self.admission.state().of(keys::WORKLOAD_GROUP, kind) {
                let subject = Subject::new(kind, &rule.namespace, &rule.name);
                let decision = decision(self.admission, &subject, rule)?;
                self.add(Finding::of_decision(&REFUSED, &subject, decision));
            }
        }
        Ok(())
    }

    /// Examines a Pod, if it is a running one of a tenant. Returns whether more Pods may follow.
    fn pod(&mut self, pod: &Value) -> bool {
        let (namespace, name) = (text(pod, "/metadata/namespace"), text(pod, "/metadata/name"));
        let Some(tenant) = self.admission.owner(namespace) else { return true };
        if keys::SYSTEM_NAMESPACES.contains(&namespace) || !is_running(pod) {
            return true;
        }
        if self.admission.caches().tenant(&tenant).flatten().is_none() {
            self.ownerless.insert(namespace.to_owned());
            return true;
        }
        self.pods += 1;
        if self.pods > MOST_PODS {
            return false;
        }
        let subject = Subject::new("Pod", namespace, name);
        let by_manager = is_of_rule(pod);
        let mut new = as_new(pod, by_manager);
        // A container for debugging runs too.
        let debugging = pod.pointer("/spec/ephemeralContainers");
        if let (Some(debugging), Some(spec)) = (debugging, new.get_mut("spec").and_then(Value::as_object_mut))
        {
            spec.insert("ephemeralContainers".to_owned(), debugging.clone());
        }
        let user = if by_manager { self.admission.manager() } else { ANYBODY };
        let mut found = Vec::new();
        if let Some(decision) = self.decide(user, "", namespace, &new) {
            found.extend(Finding::of_decision(&RUNNING, &subject, decision));
        }
        found.extend(self.binding(&subject, text(pod, "/spec/nodeName")));
        self.add(found);
        true
    }

    /// Examines on which Node a Pod is.
    fn binding(&mut self, subject: &Subject, node: &str) -> Option<Finding> {
        let scheduler = self.admission.settings().binders.first().filter(|_| !node.is_empty())?;
        let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": subject.name},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node}});
        match self.decide(scheduler, "binding", &subject.namespace, &binding)? {
            Decision::Deny { message, .. } => {
                let message = message.strip_prefix("target.name: ").unwrap_or(&message);
                Some(Finding::new(&RUNNING, subject, "spec.nodeName", message))
            }
            Decision::Allow { .. } => None,
        }
    }

    /// The validating webhook's decision; `None` where it would wait for what it doesn't know yet.
    fn decide(
        &mut self,
        user: &str,
        sub_resource: &str,
        namespace: &str,
        object: &Value,
    ) -> Option<Decision> {
        let decided = creation(user, namespace, object).ok().and_then(|mut request| {
            sub_resource.clone_into(&mut request.sub_resource);
            self.admission.validate_pod(&mut request).ok()
        });
        let decided = decided.filter(|decision| !matches!(decision, Decision::Deny { code: 503, .. }));
        if decided.is_none() {
            self.undecided += 1;
            self.unclear.insert(namespace.to_owned());
        }
        decided
    }

    fn add(&mut self, found: Vec<Finding>) {
        if self.findings.len() + found.len() > MOST_FINDINGS {
            self.unnamed += 1;
            self.unclear.extend(found.first().map(|finding| finding.subject.namespace.clone()));
        } else {
            self.findings.extend(found);
        }
    }

    /// What wasn't examined, or isn't among the findings.
    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.pods > MOST_PODS {
            notes.push(format!("only {MOST_PODS} running Pods of tenants were examined; there are more"));
        }
        if self.unnamed > 0 {
            let few = "admission would refuse more rules and running Pods than are listed";
            notes.push(format!("{few}: {} more", self.unnamed));
        }
        let ownerless = self.ownerless.iter();
        notes.extend(ownerless.map(|namespace| {
            format!(
                "running Pods of {namespace} weren't examined, because its Tenant isn't known, or isn't valid"
            )
        }));
        if self.undecided > 0 {
            notes.push(format!(
                "about {} running Pods, or their bindings, nothing is known: their rules have changed since, or their Nodes aren't there",
                self.undecided
            ));
        }
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::default_args;
    use crate::check::findings::BELOW;
    use crate::state::State;

    const STATE: &str = r"
{apiVersion: v1, kind: Namespace, metadata: {name: tenant-blue, labels: {outrigger.dev/tenant: blue}}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: tenant-ghost, labels: {outrigger.dev/tenant: ghost}}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: kube-system, labels: {outrigger.dev/tenant: blue}}}
---
{apiVersion: outrigger.dev/v1alpha1, kind: Tenant, metadata: {name: blue}, spec: {hosts: [a], enforcement: LEVEL}}
---
{apiVersion: v1, kind: Node, metadata: {name: own, labels: {outrigger.dev.node-restriction.kubernetes.io/tenant: blue}}}
---
{apiVersion: v1, kind: Node, metadata: {name: other, labels: {outrigger.dev.node-restriction.kubernetes.io/tenant: red}}}
---
{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: web-d-x7k2m, namespace: tenant-blue, ownerReferences: [
  {apiVersion: v1, kind: Pod, name: web, uid: u, controller: true}]}, spec: {}}
---
apiVersion: workload.universe.nvidia.com/v1alpha1
kind: WorkloadRule
metadata: {name: r, namespace: tenant-blue}
spec:
  dpuSelectionPolicy: Any
  workloadTerms: [{matchExpressions: [{key: .state.extra.labels.app, operator: In, values: [web]}]}]
  template: {apiVersion: v1, kind: Pod, spec: {hostNetwork: true, containers: [{name: c, image: i}]}}
";

    fn admission(level: &str) -> Admission {
        let state = State::of_text("f", &STATE.replace("LEVEL", level)).unwrap();
        Admission::new(state, default_args()).unwrap()
    }

    /// A running Pod as admission has left it, with a change.
    fn pod(change: &Value) -> Value {
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "p", "namespace": "tenant-blue", "uid": "u", "managedFields": []},
            "spec": {"nodeName": "own", "containers": [{"name": "c", "image": "i"}],
                "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                    {"matchExpressions": [{"key": keys::NODE_TENANT, "operator": "In", "values": ["blue"]}]}]}}}},
            "status": {"phase": "Running"}});
        json_patch::merge(&mut pod, change);
        pod
    }

    fn summaries(findings: &[Finding]) -> Vec<String> {
        findings.iter().map(|f| format!("{} {} {}", f.check.id, f.subject, f.path)).collect()
    }

    #[test]
    fn what_runs_is_decided_about_as_if_it_were_created_now() {
        let admission = admission("Enforce");
        let found = |change: Value| {
            let mut existing = Existing::new(&admission);
            assert!(existing.pod(&pod(&change)));
            (summaries(&existing.findings), existing.notes().len())
        };
        let refused = |path: &str| (vec![format!("running-refused Pod tenant-blue/p {path}")], 0);
        let nothing = (Vec::new(), 0);
        let affinity =
            "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
        let claim = json!([{"name": "d", "resourceClaimName": "web-d-x7k2m"}]);
        let debugging = json!([{"name": "d", "securityContext": {"privileged": true}}]);
        for (change, expected) in [
            (json!({}), nothing.clone()),
            // Mutation would mend it in a new Pod, and not in a running one.
            (json!({"spec": {"affinity": null}}), refused(affinity)),
            (json!({"spec": {"nodeName": "other"}}), refused("spec.nodeName")),
            (json!({"spec": {"nodeName": null}}), nothing.clone()),
            (json!({"spec": {"serviceAccountName": "builder"}}), refused("spec.serviceAccountName")),
            (json!({"spec": {"resourceClaims": claim}}), refused("spec.resourceClaims[0].resourceClaimName")),
            (
                json!({"spec": {"ephemeralContainers": debugging}}),
                refused("spec.ephemeralContainers[0].securityContext.privileged"),
            ),
            // Admission's own keys, and those of companions.
            (json!({"metadata": {"annotations": {keys::HOST: "a"}}}), nothing.clone()),
            (json!({"metadata": {"labels": {keys::RULE: "r"}}}), nothing.clone()),
            // What has ended, is ending, or isn't a tenant's.
            (json!({"spec": {"hostNetwork": true}, "status": {"phase": "Failed"}}), nothing.clone()),
            (json!({"spec": {"hostNetwork": true}, "metadata": {"deletionTimestamp": "t"}}), nothing.clone()),
            (json!({"spec": {"hostNetwork": true}, "metadata": {"namespace": "plain"}}), nothing.clone()),
            (json!({"spec": {"hostNetwork": true}, "metadata": {"namespace": "kube-system"}}), nothing),
            // Nothing is said of what isn't known.
            (json!({"metadata": {"namespace": "tenant-ghost"}}), (Vec::new(), 1)),
            (json!({"spec": {"nodeName": "gone"}}), (Vec::new(), 1)),
        ] {
            assert_eq!(found(change.clone()), expected, "{change}");
        }
    }

    #[test]
    fn what_a_level_lets_through_is_a_warning_and_the_rest_is_refused() {
        let admission = admission("Observe");
        let mut existing = Existing::new(&admission);
        let claims = json!([{"name": "d", "resourceClaimName": "web-d-x7k2m"}]);
        existing.pod(&pod(&json!({"spec": {"resourceClaims": claims}})));
        existing.pod(&pod(&json!({"spec": {"resourceClaims": claims, "hostNetwork": true}})));
        assert_eq!(existing.findings[0].check, &BELOW);
        assert!(existing.findings[0].message.contains("made for Pod"), "{:?}", existing.findings);
        assert_eq!(
            summaries(&existing.findings[1..]),
            ["running-refused Pod tenant-blue/p spec.hostNetwork"]
        );
    }

    #[test]
    fn rules_are_decided_about_too_and_findings_are_bounded() {
        let admission = admission("Enforce");
        let mut existing = Existing::new(&admission);
        existing.rules().unwrap();
        assert_eq!(
            summaries(&existing.findings),
            ["refused WorkloadRule tenant-blue/r spec.template.spec.hostNetwork"]
        );
        for _ in 0..MOST_FINDINGS + 2 {
            assert!(existing.pod(&pod(&json!({"spec": {"hostNetwork": true}}))));
        }
        assert_eq!(existing.findings.len(), MOST_FINDINGS);
        assert!(existing.unclear.contains("tenant-blue"), "no report says that all is well there");
        assert_eq!(
            existing.notes(),
            ["admission would refuse more rules and running Pods than are listed: 3 more"]
        );
        existing.pods = MOST_PODS;
        assert!(!existing.pod(&pod(&json!({}))), "no more pages are read");
        assert_eq!(existing.notes().len(), 2);
    }
}
