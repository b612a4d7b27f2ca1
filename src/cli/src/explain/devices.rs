//! The claims of companions, and what there is of devices.

use std::collections::BTreeMap;

use kube::api::{ApiResource, GroupVersionKind, ListParams};
use outrigger_core::claim::Source;
use outrigger_core::json::list;
use outrigger_core::keys;
use outrigger_core::rule::Rule;
use outrigger_core::template::Kind;
use serde_json::Value;

use super::live::{ClaimScope, Reader, serves};
use crate::attributes::claim_of;
use crate::explain::allocation::{ClaimQuestion, ClaimReport, Devices, User};
use crate::explain::explanation::Placement;
use crate::files::InputError;
use crate::state::State;

impl Reader {
    /// Reads DeviceTaintRules, of the newest version that the cluster serves. Which it serves any user may ask; a list of a kind that
    /// isn't served is refused to users without rights, as if it were.
    pub(super) async fn taint_rules(&mut self) -> Result<(), InputError> {
        const KIND: &str = "DeviceTaintRule";
        for version in ["v1", "v1beta2", "v1alpha3"] {
            let kind = GroupVersionKind::gvk(keys::DEVICE_GROUP, version, KIND);
            if serves(&self.client, &kind.api_version(), KIND).await? {
                let resource = ApiResource::from_gvk(&kind);
                return self.may_raw(&resource, None, ListParams::default()).await.map(drop);
            }
        }
        Ok(())
    }
}

/// What is known of devices.
#[derive(Debug)]
pub(super) struct KnownDevices {
    devices: Devices,
    /// Namespace and name -> ResourceClaim.
    claims: BTreeMap<(String, String), Value>,
    /// Whether a claim that isn't among them may be there.
    unseen: bool,
    /// Namespace and name -> Pod that uses claims.
    pods: BTreeMap<(String, String), Value>,
}

impl KnownDevices {
    /// What a state has. `whole`: it has all that there is, so that a kind without objects is one that has none.
    /// `claims`: which claims it has.
    pub(super) fn new(state: &State, whole: bool, claims: ClaimScope) -> Self {
        let all = |kind| state.of(keys::DEVICE_GROUP, kind).map(|object| &object.value);
        let seen = |kind| (whole || all(kind).next().is_some()).then(|| all(kind));
        let keep = |object: &crate::files::Object| {
            ((object.namespace.clone(), object.name.clone()), object.value.clone())
        };
        let uses = |object: &&crate::files::Object| object.value.pointer("/spec/resourceClaims").is_some();
        let of_all = match claims {
            ClaimScope::Given => seen("ResourceClaim"),
            ClaimScope::Own => None,
            ClaimScope::All => Some(all("ResourceClaim")),
        };
        Self {
            devices: Devices::read(
                seen("ResourceSlice"),
                seen("DeviceClass"),
                of_all,
                all("DeviceTaintRule"),
            ),
            unseen: claims == ClaimScope::Given && seen("ResourceClaim").is_none(),
            claims: state.of(keys::DEVICE_GROUP, "ResourceClaim").map(keep).collect(),
            pods: state.of("", "Pod").filter(uses).map(keep).collect(),
        }
    }

    /// The claims of a companion, or that it is, whether or not there is one yet.
    pub(super) fn of_companion(
        &self,
        rule: &Rule,
        namespace: &str,
        companion: &str,
        workload: &str,
        placement: Option<&Placement>,
    ) -> Vec<ClaimReport> {
        let nodes: Option<Vec<&str>> = placement.map(|placement| {
            let fits = placement.nodes.iter().filter(|place| place.obstacles.is_empty());
            fits.map(|place| place.node.as_str()).collect()
        });
        let report = |asked: ClaimQuestion<'_>| self.devices.explain(&asked, nodes.as_deref());
        if rule.kind() == Kind::Claim {
            let object = self.claim(namespace, companion);
            let spec = rule.template().get_mut("spec").map(Value::take);
            return vec![report(ClaimQuestion {
                claim: (object.is_some() || self.unseen).then_some(companion),
                object,
                unseen: self.unseen,
                spec,
                ..ClaimQuestion::default()
            })];
        }
        if let Some(pod) = self.pods.get(&(namespace.to_owned(), companion.to_owned())) {
            let claims = list(pod, "/spec/resourceClaims").iter();
            return claims.map(|claim| report(self.of_pod(rule, pod, claim, namespace))).collect();
        }
        let devices = rule.devices().claims().iter();
        devices
            .map(|device| {
                let name = Some(device.name.as_str());
                match &device.source {
                    Source::Template { spec, .. } => {
                        report(ClaimQuestion { name, spec: Some(spec.tree()), ..ClaimQuestion::default() })
                    }
                    Source::Rule(of) => {
                        let shared = outrigger_core::claim::own_shared_name(of, workload);
                        let object = self.claim(namespace, &shared);
                        report(ClaimQuestion {
                            name,
                            claim: Some(&shared),
                            object,
                            unseen: self.unseen,
                            ..ClaimQuestion::default()
                        })
                    }
                }
            })
            .collect()
    }

    fn claim(&self, namespace: &str, name: &str) -> Option<&Value> {
        self.claims.get(&(namespace.to_owned(), name.to_owned()))
    }

    /// One entry of a Pod's `spec.resourceClaims`.
    fn of_pod<'a>(
        &'a self,
        rule: &'a Rule,
        pod: &'a Value,
        claim: &'a Value,
        namespace: &str,
    ) -> ClaimQuestion<'a> {
        let name = claim.get("name").and_then(Value::as_str);
        let claim = claim_of(pod, claim);
        let device = rule.devices().claims().iter().find(|device| Some(device.name.as_str()) == name);
        let spec = device.and_then(|device| match &device.source {
            Source::Template { spec, .. } => Some(spec.tree()),
            Source::Rule(_) => None,
        });
        let object = claim.and_then(|name| self.claim(namespace, name));
        ClaimQuestion { name, claim, object, spec, unseen: self.unseen, user: User::Pod(pod) }
    }
}
