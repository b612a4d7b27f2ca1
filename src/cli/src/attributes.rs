//! Attributes of the devices of workloads, for commands that read Pods themselves.
//!
//! **In**: the ResourceClaims and ResourceSlices of a tenant's cluster, out of files or of the cluster. **Out**: the attributes that the
//! agent sends of a workload, and the workloads of which not all are known. What isn't known isn't taken for absent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use kube::api::{ApiResource, ListParams};
use kube::{Client, Resource};
use outrigger_agent::annotations::Pattern;
use outrigger_agent::device_attributes::DeviceAttributes;
use outrigger_core::ids::WorkloadId;
use outrigger_core::json::{list, text};
use outrigger_core::keys;
use outrigger_core::path::Path;
use outrigger_core::rule::{Rule, Verdict};
use outrigger_core::workload::{DEVICE_ATTRIBUTES, Workload};
use outrigger_runtime::cache::Change;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::cluster::{each, of_kind};
use crate::explain::live::Source;
use crate::files::{InputError, Object};
use crate::state::State;

/// Most claims, and most slices, that are read of a cluster.
const MOST: usize = 20_000;

const UNNAMED: &str = "if the agent sends attributes of devices, repeat its --send-device-attribute here; those that it doesn't send count as \
                       absent";
const INCOMPLETE: &str =
    "the files lack a ResourceClaim of the Pod, or the ResourceSlice that has a device of such a claim";

/// The claims and slices of workloads.
#[derive(Debug, Clone)]
pub(crate) enum ReadAttributes {
    /// They aren't read, for this reason.
    Unread(String),
    /// All of the tenant's cluster, as the agent has them.
    All(Arc<DeviceAttributes>),
    /// Those of files, which may lack some.
    Given(Arc<DeviceAttributes>),
}

impl ReadAttributes {
    /// Nothing is read, because it isn't said what the agent sends.
    pub(crate) fn unnamed() -> Self {
        Self::Unread(UNNAMED.to_owned())
    }

    /// Those of files. `sent`: the attributes that the agent sends.
    ///
    /// # Errors
    /// A claim or a slice isn't of the shape of its kind.
    pub(crate) fn of_files(state: &State, sent: Arc<[Pattern]>) -> Result<Self, InputError> {
        if sent.is_empty() {
            return Ok(Self::unnamed());
        }
        let mut read = DeviceAttributes::new(sent);
        for claim in state.all::<ResourceClaim>(keys::DEVICE_GROUP, "ResourceClaim")? {
            read.claim(Change::Applied(claim));
        }
        for slice in state.all::<ResourceSlice>(keys::DEVICE_GROUP, "ResourceSlice")? {
            read.slice(Change::Applied(slice));
        }
        Ok(Self::Given(Arc::new(read)))
    }

    /// Those of a tenant's cluster: of one namespace the claims, where one is named, and all slices. It is no error if they can't be read.
    pub(crate) async fn of_cluster(client: &Client, namespace: Option<&str>, sent: &[Pattern]) -> Self {
        if sent.is_empty() {
            return Self::unnamed();
        }
        match listed(client, namespace, sent).await {
            Ok(read) => Self::All(Arc::new(read)),
            Err(why) => Self::Unread(why),
        }
    }

    /// Sets the attributes of the devices of a workload that was made of a Pod.
    pub(crate) fn describe(&self, workload: &mut Workload) {
        if let Self::All(read) | Self::Given(read) = self {
            read.describe(workload);
        }
    }
}

impl Source {
    /// The same with the attributes of devices in these files. Those of a cluster have been read with it.
    ///
    /// # Errors
    /// A claim or a slice isn't of the shape of its kind.
    pub(crate) fn with_attributes(mut self, state: &State, sent: Arc<[Pattern]>) -> Result<Self, InputError> {
        if self.is_files() {
            self.attributes = ReadAttributes::of_files(state, sent)?;
        }
        Ok(self)
    }
}

async fn listed(
    client: &Client,
    namespace: Option<&str>,
    sent: &[Pattern],
) -> Result<DeviceAttributes, String> {
    let mut read = DeviceAttributes::new(sent.into());
    all_of(client, namespace, |claim: ResourceClaim| drop(read.claim(Change::Applied(claim)))).await?;
    all_of(client, None, |slice: ResourceSlice| drop(read.slice(Change::Applied(slice)))).await?;
    Ok(read)
}

/// Passes all objects of a kind to `take`.
///
/// # Errors
/// Why not all are known: they may not be read, the cluster doesn't have the kind, the API server doesn't answer, or there are too many.
async fn all_of<K: Resource<DynamicType = ()> + DeserializeOwned>(
    client: &Client,
    namespace: Option<&str>,
    mut take: impl FnMut(K),
) -> Result<(), String> {
    let of_kind = of_kind(client, ApiResource::erase::<K>(&()), namespace);
    let (mut count, mut wrong) = (0, None);
    let read = each(&of_kind, ListParams::default(), |object| {
        count += 1;
        match serde_json::from_value::<K>(object) {
            Ok(_) if count > MOST => wrong = Some(format!("there are more than {MOST}")),
            Ok(object) => take(object),
            Err(error) => wrong = Some(error.to_string()),
        }
        wrong.is_none()
    });
    let why = match read.await {
        Ok(()) => wrong,
        Err(unread) if unread.is_no_kind() => Some("the cluster doesn't have the kind".to_owned()),
        Err(unread) => Some(unread.brief()),
    };
    let resource = &of_kind.1;
    why.map_or(Ok(()), |why| {
        Err(format!("{} ({}) can't be read: {why}", resource.plural, resource.api_version))
    })
}

/// Of which workloads attributes aren't known.
#[derive(Debug, Default)]
pub(crate) struct UnknownAttributes {
    /// Their namespaces, and their names in these.
    of: BTreeMap<String, BTreeSet<String>>,
    why: String,
}

impl UnknownAttributes {
    /// `state` has the Pods. One without claims has no attributes, whatever was read.
    pub(crate) fn new(state: &State, read: &ReadAttributes) -> Self {
        let (why, given) = match read {
            ReadAttributes::All(_) => return Self::default(),
            ReadAttributes::Unread(why) => (why.as_str(), None),
            ReadAttributes::Given(given) => (INCOMPLETE, Some(given)),
        };
        let claims = state.of(keys::DEVICE_GROUP, "ResourceClaim");
        let claims: BTreeSet<(&str, &str)> =
            claims.map(|claim| (claim.namespace_or_default(), claim.name.as_str())).collect();
        let is_whole = |pod: &Object, given: &DeviceAttributes| {
            let known = |claim: &Option<&str>| {
                claim.is_some_and(|name| claims.contains(&(pod.namespace_or_default(), name)))
            };
            let id = WorkloadId::new(text(&pod.value, "/metadata/uid"));
            claims_of(&pod.value).iter().all(known) && id.is_ok_and(|id| given.is_whole(&id))
        };
        let mut of: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for pod in state.of("", "Pod").filter(|pod| !claims_of(&pod.value).is_empty()) {
            if given.is_none_or(|given| !is_whole(pod, given)) {
                of.entry(pod.namespace_or_default().to_owned()).or_default().insert(pod.name.clone());
            }
        }
        Self { of, why: why.to_owned() }
    }

    /// Whether the workload is one of them.
    fn concern(&self, workload: &Workload) -> bool {
        self.of.get(&workload.resource_namespace).is_some_and(|names| names.contains(&workload.resource_name))
    }

    /// Whether it isn't known what a workload has at a path.
    pub(crate) fn include(&self, workload: &Workload, path: &Path) -> bool {
        is_attribute(path) && self.concern(workload)
    }

    /// Whether a rule compares one of a workload.
    pub(crate) fn are_compared(&self, rule: &Rule, workload: &Workload) -> bool {
        rule.terms().iter().flatten().any(|expression| self.include(workload, &expression.path))
    }

    /// Whether they decide whether a workload matches a rule. Annotations count as they are.
    pub(crate) fn decide(&self, rule: &Rule, workload: &Workload) -> bool {
        rule.verdict(workload, |path| self.include(workload, path)) == Verdict::Unknown
    }

    /// Why they aren't known.
    pub(crate) fn why(&self) -> &str {
        &self.why
    }

    /// That they decide.
    pub(crate) fn undecided(&self) -> String {
        format!("an attribute of the workload's devices decides that isn't known here: {}", self.why)
    }

    /// What a companion of a workload lacks here.
    pub(crate) fn left_out(&self, rule: &Rule, workload: &Workload) -> Vec<String> {
        let unknown = rule.injections().filter(|(_, path)| self.include(workload, path));
        let said = |(annotation, path): (&str, &Path)| {
            format!("the annotation {annotation} is left out, because {path} is unknown: {}", self.why)
        };
        unknown.map(said).collect()
    }

    /// What a prediction for these workloads leaves open, for each rule that names attributes.
    pub(crate) fn notes<'a>(
        &self,
        workloads: &[Arc<Workload>],
        rules: impl Iterator<Item = &'a Arc<Rule>>,
    ) -> Vec<String> {
        if !workloads.iter().any(|workload| self.concern(workload)) {
            return Vec::new();
        }
        let naming = rules.filter(|rule| are_named(rule)).map(|rule| {
            format!(
                "rule {} names attributes of devices that aren't known here: where they decide, no change is predicted, and new companions \
                 are shown without them; {}",
                rule.name(),
                self.why
            )
        });
        naming.collect()
    }
}

/// Whether a rule names attributes of devices, in its expressions or in the facts that it injects.
fn are_named(rule: &Rule) -> bool {
    let mut compared = rule.terms().iter().flatten().map(|expression| &expression.path);
    compared.any(is_attribute) || rule.injections().any(|(_, path)| is_attribute(path))
}

/// Whether a path is that of an attribute of devices, or of all of them.
pub(crate) fn is_attribute(path: &Path) -> bool {
    matches!(path, Path::ExtraMap(map) | Path::ExtraEntry(map, _) if **map == *DEVICE_ATTRIBUTES)
}

/// The claims of a Pod. `None` stands for one whose name isn't known.
fn claims_of(pod: &Value) -> Vec<Option<&str>> {
    let named = list(pod, "/spec/resourceClaims").iter().map(|entry| claim_of(pod, entry));
    // The scheduler makes this one for extended resources of DeviceClasses.
    let extended = pod.pointer("/status/extendedResourceClaimStatus/resourceClaimName");
    named.chain(extended.map(Value::as_str)).collect()
}

/// The claim of an entry of a Pod's `spec.resourceClaims`: the one that it names, or the one that was generated for it.
pub(crate) fn claim_of<'a>(pod: &'a Value, entry: &'a Value) -> Option<&'a str> {
    let text = |value: &'a Value, key: &str| value.get(key).and_then(Value::as_str);
    let name = text(entry, "name");
    let statuses = list(pod, "/status/resourceClaimStatuses");
    let generated = || statuses.iter().find(|status| text(status, "name") == name);
    text(entry, "resourceClaimName").or_else(|| text(generated()?, "resourceClaimName"))
}

#[cfg(test)]
mod tests;
