//! Explains why a ResourceClaim has no devices, as far as the cluster's objects show.

use std::collections::BTreeSet;

use outrigger_core::device;
use outrigger_core::json::{list, text};
use serde::Serialize;
use serde_json::Value;

use super::inventory::{self, Asked, Inventory, Judged};
use crate::claims::device::path;
use crate::state::unscheduled;

/// What is known of devices: why a claim has none is asked of this alone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Devices {
    /// Names of the DeviceClasses; `None` where they can't be seen.
    classes: Option<BTreeSet<String>>,
    /// The devices that drivers publish, and who has them.
    inventory: Inventory,
    /// Whether ResourceSlices can be seen.
    sees_published: bool,
    /// Whether the ResourceClaims of all namespaces can be seen: without, it isn't known what is free.
    sees_claims: bool,
}

/// A claim that a companion uses, or is.
#[derive(Debug, Clone, Default)]
pub(crate) struct ClaimQuestion<'a> {
    /// Its name within the Pod; absent where the companion is the claim.
    pub(crate) name: Option<&'a str>,
    /// The name of the ResourceClaim, where that is known.
    pub(crate) claim: Option<&'a str>,
    pub(crate) object: Option<&'a Value>,
    /// What it asks for, where there is none.
    pub(crate) spec: Option<Value>,
    /// Whether ResourceClaims of its namespace can't be seen, so that there may be one.
    pub(crate) unseen: bool,
    /// The Pod that uses it.
    pub(crate) user: User<'a>,
}

/// The first Pod that uses a claim: its scheduling is what devices are chosen by.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) enum User<'a> {
    /// It isn't known whether there is one.
    #[default]
    Unknown,
    None,
    Pod(&'a Value),
}

impl User<'_> {
    /// What the scheduler says of it; `None` where no Pod is known.
    fn scheduler(&self) -> Option<&str> {
        match self {
            Self::Pod(pod) => Some(unscheduled(pod)),
            Self::None | Self::Unknown => None,
        }
    }

    /// What a claim waits for that has no devices.
    fn waits(&self) -> String {
        let pod = match self {
            Self::Unknown => {
                return "no device is chosen before a Pod that uses it is scheduled; whether there is one isn't known".to_owned();
            }
            Self::None => {
                return "no Pod uses it: devices are chosen when the first one is scheduled".to_owned();
            }
            Self::Pod(pod) => pod,
        };
        let name = text(pod, "/metadata/name");
        if !text(pod, "/spec/nodeName").is_empty() {
            return format!("Pod {name} was bound without the scheduler, which alone chooses devices");
        }
        let gates: Vec<&str> =
            list(pod, "/spec/schedulingGates").iter().map(|gate| text(gate, "/name")).collect();
        match (gates.as_slice(), unscheduled(pod)) {
            ([], "") => format!("Pod {name} isn't scheduled yet"),
            ([], words) => format!("Pod {name} isn't scheduled: {words}"),
            (gates, _) => format!("Pod {name} waits for its scheduling gates: {}", gates.join(", ")),
        }
    }
}

/// A claim, and why it has no devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct ClaimReport {
    /// Its name within the Pod; absent where the companion is the claim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// Name of the ResourceClaim; absent where there is none yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) claim: Option<String>,
    pub(crate) phase: ClaimPhase,
    /// Its devices, as `driver/pool/device`.
    pub(crate) devices: Vec<String>,
    /// Why it has none; empty where it has some.
    pub(crate) reasons: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) enum ClaimPhase {
    /// It has its devices.
    Allocated,
    /// It is there and has none.
    Pending,
    Terminating,
    /// There is none.
    Absent,
    /// The claim wasn't read.
    Unknown,
}

impl ClaimPhase {
    /// For people.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Allocated => "allocated",
            Self::Pending => "pending",
            Self::Terminating => "terminating",
            Self::Absent => "does not exist",
            Self::Unknown => "can't be seen",
        }
    }
}

impl Devices {
    /// Reads what there is: ResourceSlices, DeviceClasses, the ResourceClaims of all namespaces, and DeviceTaintRules. `None`: they
    /// can't be seen.
    pub(crate) fn read<'a>(
        slices: Option<impl Iterator<Item = &'a Value>>,
        classes: Option<impl Iterator<Item = &'a Value>>,
        claims: Option<impl Iterator<Item = &'a Value>>,
        taint_rules: impl Iterator<Item = &'a Value>,
    ) -> Self {
        let name = |object: &Value| text(object, "/metadata/name").to_owned();
        Self {
            classes: classes.map(|classes| classes.map(name).collect()),
            sees_published: slices.is_some(),
            sees_claims: claims.is_some(),
            inventory: Inventory::new(
                slices.into_iter().flatten(),
                taint_rules,
                claims.into_iter().flatten(),
            ),
        }
    }

    /// A claim, and why it has no devices. `nodes`: where the companion may run, `None` where that isn't known.
    pub(crate) fn explain(&self, asked: &ClaimQuestion<'_>, nodes: Option<&[&str]>) -> ClaimReport {
        let devices: Vec<String> = asked.object.into_iter().flat_map(allocated).collect();
        let phase = match asked.object {
            Some(object) if !text(object, "/metadata/deletionTimestamp").is_empty() => {
                ClaimPhase::Terminating
            }
            Some(_) if devices.is_empty() => ClaimPhase::Pending,
            Some(_) => ClaimPhase::Allocated,
            None if asked.claim.is_some() && asked.unseen => ClaimPhase::Unknown,
            None => ClaimPhase::Absent,
        };
        let reasons = match (phase, asked.claim) {
            (ClaimPhase::Allocated | ClaimPhase::Unknown, _) => Vec::new(),
            (ClaimPhase::Terminating, _) => {
                vec!["it is being deleted, which ends when no Pod uses it".to_owned()]
            }
            (ClaimPhase::Absent, Some(claim)) => vec![format!("there is no ResourceClaim {claim}")],
            (ClaimPhase::Pending | ClaimPhase::Absent, _) => {
                let spec = asked.object.and_then(|object| object.get("spec")).or(asked.spec.as_ref());
                self.waits(spec.unwrap_or(&Value::Null), nodes, asked.user)
            }
        };
        let [name, claim] = [asked.name, asked.claim].map(|name| name.map(str::to_owned));
        ClaimReport { name, claim, phase, devices, reasons }
    }

    /// Why a claim with this spec has no devices: what it asks for and no device can give, else what else it waits for. `nodes`: as in [`Self::explain`].
    pub(crate) fn waits(&self, spec: &Value, nodes: Option<&[&str]>, user: User<'_>) -> Vec<String> {
        let requests = inventory::asked(spec);
        let mut reasons = self.no_such_class(&requests);
        reasons.extend(device::warnings(spec).into_iter().map(|never| format!("spec.{never}")));
        if reasons.is_empty() && self.sees_published {
            reasons = self.no_device(spec, &requests, nodes, user.scheduler());
        }
        reasons.push(user.waits());
        reasons
    }

    fn no_such_class(&self, wanted: &[Asked<'_>]) -> Vec<String> {
        let Some(known) = &self.classes else { return Vec::new() };
        let missing = wanted.iter().filter(|asked| !known.contains(asked.class));
        missing
            .map(|asked| format!("request {}: there is no DeviceClass {}", asked.name, asked.class))
            .collect()
    }

    /// Why the devices that exist aren't suitable.
    fn no_device(
        &self,
        spec: &Value,
        requests: &[Asked<'_>],
        nodes: Option<&[&str]>,
        scheduler: Option<&str>,
    ) -> Vec<String> {
        if nodes.is_some_and(<[_]>::is_empty) {
            // Placement says why.
            return Vec::new();
        }
        let place = nodes.map_or_else(|| "any Node".to_owned(), first);
        let judged: Vec<Judged<'_>> =
            requests.iter().map(|asked| self.inventory.judge(asked, nodes)).collect();
        if !requests.is_empty() && judged.iter().all(|judged| judged.total == 0) {
            return vec![format!("no driver publishes a device for {place}")];
        }
        let few: Vec<(&Asked<'_>, Option<String>)> = requests
            .iter()
            .zip(&judged)
            .map(|(asked, judged)| (asked, judged.too_few(asked, &place)))
            .collect();
        // Of alternatives one is enough.
        let met: BTreeSet<&str> =
            few.iter().filter(|(_, why)| why.is_none()).map(|(asked, _)| asked.request_name()).collect();
        let unmet: Vec<(&Asked<'_>, &str)> = few
            .iter()
            .filter(|(asked, _)| !met.contains(asked.request_name()))
            .filter_map(|(asked, why)| Some((*asked, why.as_deref()?)))
            .collect();
        match unmet.first().map(|(_, why)| *why) {
            None => self.undecided(spec, requests, &judged, &place, scheduler).into_iter().collect(),
            // All of them lack the same, which is said once.
            Some(why) if unmet.len() == requests.len() && unmet.iter().all(|(_, other)| *other == why) => {
                vec![why.to_owned()]
            }
            Some(_) => unmet.iter().map(|(asked, why)| format!("request {}: {why}", asked.name)).collect(),
        }
    }

    /// Why a claim isn't allocated whose requests have enough free devices, as far as this can be determined without evaluating
    /// selectors.
    fn undecided(
        &self,
        spec: &Value,
        requests: &[Asked<'_>],
        judged: &[Judged<'_>],
        place: &str,
        scheduler: Option<&str>,
    ) -> Option<String> {
        if !requests.iter().any(Asked::is_alternative) {
            let pairs = requests.iter().zip(judged);
            let free = pairs.map(|(asked, judged)| (asked.name.as_str(), judged.needs(asked))).collect();
            if let Some(why) = self.inventory.together(spec, &free) {
                return Some(why);
            }
        }
        // The words of the scheduler's plugin (`dynamicresources`).
        if !self.sees_claims || !scheduler?.contains("cannot allocate all claims") {
            return None;
        }
        let free: BTreeSet<&str> = judged.iter().flat_map(|judged| judged.free.iter().copied()).collect();
        let total = judged.iter().map(|judged| judged.total).max().unwrap_or_default();
        let asked: Vec<String> =
            requests.iter().map(|asked| format!("{} (DeviceClass {})", asked.name, asked.class)).collect();
        let selectors = format!("the selectors of {}", asked.join(", "));
        let doubts: Vec<String> =
            std::iter::once(selectors).chain(self.inventory.doubts(spec, &free)).collect();
        Some(format!(
            "{} of {total} devices of {place} are free, and too few of them fit {}",
            free.len(),
            doubts.join(", or ")
        ))
    }
}

/// Most owners of devices, and most Nodes, that are named.
const SHOWN: usize = 8;

/// The first of some names, and how many there are besides.
pub(super) fn first(names: &[&str]) -> String {
    let shown = names.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

fn allocated(claim: &Value) -> impl Iterator<Item = String> {
    list(claim, "/status/allocation/devices/results").iter().map(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn slice(node: &str, devices: &[&str]) -> Value {
        let devices: Vec<Value> = devices.iter().map(|name| json!({"name": name})).collect();
        json!({"spec": {"driver": "d.test", "nodeName": node, "pool": {"name": node}, "devices": devices}})
    }

    fn claim(name: &str, class: &str, device: Option<(&str, &str)>) -> Value {
        let results: Vec<Value> = device
            .into_iter()
            .map(|(pool, device)| json!({"driver": "d.test", "pool": pool, "device": device}))
            .collect();
        let mut claim = json!({"metadata": {"name": name, "namespace": "n"},
            "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": class}}]}}});
        if !results.is_empty() {
            claim["status"] = json!({"allocation": {"devices": {"results": results}}});
        }
        claim
    }

    fn cluster(taken: &[(&str, &str)]) -> Devices {
        let slices = [slice("a", &["d0", "d1"]), slice("b", &[])];
        let classes = [json!({"metadata": {"name": "crypto"}})];
        let claims: Vec<Value> = taken
            .iter()
            .map(|(pool, device)| claim(&format!("of-{device}"), "crypto", Some((pool, device))))
            .collect();
        Devices::read(Some(slices.iter()), Some(classes.iter()), Some(claims.iter()), std::iter::empty())
    }

    /// `scheduler`: what it says of the Pod that uses the claim.
    fn reasons(cluster: &Devices, claim: &Value, nodes: &[&str], scheduler: Option<&str>) -> Vec<String> {
        let pod = json!({"metadata": {"name": "p"}, "status": {"conditions": [
            {"type": "PodScheduled", "status": "False", "message": scheduler}]}});
        let user = if scheduler.is_some() { User::Pod(&pod) } else { User::Unknown };
        let asked = ClaimQuestion { claim: Some("c"), object: Some(claim), user, ..ClaimQuestion::default() };
        cluster.explain(&asked, Some(nodes)).reasons
    }

    #[test]
    fn each_reason_in_turn() {
        const NONE_FITS: &str = "0/2 nodes are available: 1 cannot allocate all claims";
        let all = [("a", "d0"), ("a", "d1")];
        let pending = claim("c", "crypto", None);
        const FULL: &str = "0/2 nodes are available: too many pods";
        let few =
            "1 of 2 devices of a are free, and too few of them fit the selectors of r (DeviceClass crypto)";
        let none = "all 2 devices of a, b are taken, by n/of-d0, n/of-d1";
        for (taken, class, nodes, scheduler, expected) in [
            (&all[..0], "none", &["a"][..], Some(NONE_FITS), "request r: there is no DeviceClass none"),
            (&[], "crypto", &["b"], Some(NONE_FITS), "no driver publishes a device for b"),
            (&all, "crypto", &["a", "b"], Some(NONE_FITS), none),
            (&all[..1], "crypto", &["a"], Some(NONE_FITS), few),
            (&[], "crypto", &["a"], Some(FULL), "Pod p isn't scheduled: 0/2"),
            (&[], "crypto", &["a"], None, "no device is chosen before a Pod that uses it is scheduled"),
            (&[], "crypto", &[], Some("no DPU"), "Pod p isn't scheduled: no DPU"),
        ] {
            let mut asked = pending.clone();
            asked["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = json!(class);
            let found = reasons(&cluster(taken), &asked, nodes, scheduler);
            assert!(found[0].starts_with(expected), "{found:?}");
        }
    }

    #[test]
    fn what_others_can_have_too_is_not_taken() {
        const NONE_FITS: &str = "0/1 nodes are available: 1 cannot allocate all claims";
        let slices = [slice("a", &["d0", "d1"])];
        let mut admin = claim("admin", "crypto", Some(("a", "d0")));
        admin["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = json!(true);
        let mut share = claim("share", "crypto", Some(("a", "d1")));
        share["status"]["allocation"]["devices"]["results"][0]["shareID"] = json!("s");
        let none = None::<std::slice::Iter<'_, Value>>;
        let cluster =
            Devices::read(Some(slices.iter()), none, Some([admin, share].iter()), std::iter::empty());
        let found = reasons(&cluster, &claim("c", "crypto", None), &["a"], Some(NONE_FITS));
        assert!(found[0].starts_with("2 of 2 devices of a are free"), "{found:?}");
    }

    #[test]
    fn of_many_nodes_some_are_named() {
        let nodes: Vec<String> = (1..=10).map(|i| format!("n{i}")).collect();
        let nodes: Vec<&str> = nodes.iter().map(String::as_str).collect();
        let found = reasons(&cluster(&[]), &claim("c", "crypto", None), &nodes, Some(""));
        assert_eq!(found[0], "no driver publishes a device for n1, n2, n3, n4, n5, n6, n7, n8 and 2 more");
    }

    #[test]
    fn phases() {
        let cluster = cluster(&[]);
        let of = |object: Option<&Value>| {
            let spec = json!({"devices": {"requests": [{"name": "r", "firstAvailable": [
                {"name": "x", "deviceClassName": "crypto"}, {"name": "y", "deviceClassName": "none"}]}]}});
            let asked = ClaimQuestion {
                name: Some("n"),
                object,
                spec: Some(spec),
                user: User::None,
                ..ClaimQuestion::default()
            };
            cluster.explain(&asked, None)
        };
        let has = of(Some(&claim("c", "crypto", Some(("a", "d0")))));
        assert_eq!(
            (has.phase, has.devices, has.reasons),
            (ClaimPhase::Allocated, vec!["d.test/a/d0".into()], vec![])
        );
        let mut going = claim("c", "crypto", Some(("a", "d0")));
        going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(of(Some(&going)).phase, ClaimPhase::Terminating);
        assert_eq!(of(Some(&claim("c", "crypto", None))).phase, ClaimPhase::Pending);
        let none = of(None);
        assert_eq!(none.phase, ClaimPhase::Absent);
        assert_eq!(none.reasons, ["request r/y: there is no DeviceClass none", &User::None.waits()]);
        let missing = cluster.explain(&ClaimQuestion { claim: Some("c"), ..ClaimQuestion::default() }, None);
        assert_eq!(
            (missing.phase, missing.reasons),
            (ClaimPhase::Absent, vec!["there is no ResourceClaim c".into()])
        );
        // What can't be seen is not reported.
        let none = None::<std::slice::Iter<'_, Value>>;
        let blind = Devices::read(none.clone(), none.clone(), none.clone(), std::iter::empty());
        assert_eq!(reasons(&blind, &claim("c", "none", None), &["a"], None), [User::Unknown.waits()]);
        let unseen = cluster
            .explain(&ClaimQuestion { claim: Some("c"), unseen: true, ..ClaimQuestion::default() }, None);
        assert_eq!((unseen.phase, unseen.reasons), (ClaimPhase::Unknown, vec![]));
        // Nor is what others have known.
        let slices = [slice("a", &["d0"])];
        let blind = Devices::read(Some(slices.iter()), none.clone(), none, std::iter::empty());
        let words = "cannot allocate all claims";
        assert_eq!(
            reasons(&blind, &claim("c", "crypto", None), &["a"], Some(words)),
            [format!("Pod p isn't scheduled: {words}")]
        );
    }
}
