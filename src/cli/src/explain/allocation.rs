//! Explains why a ResourceClaim has no devices, as far as the cluster's objects show.

use std::collections::BTreeSet;

use outrigger_core::json::{list, text};
use serde::Serialize;
use serde_json::Value;

use super::inventory::{self, Asked, Inventory, Judged};

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
    /// The scheduler's message about the Pod that uses it; `None` where there is no such Pod.
    pub(crate) scheduler: Option<&'a str>,
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
        let mut report = ClaimReport {
            name: asked.name.map(str::to_owned),
            claim: asked.claim.map(str::to_owned),
            phase: ClaimPhase::Absent,
            devices: asked.object.into_iter().flat_map(allocated).collect(),
            reasons: Vec::new(),
        };
        if let Some(object) = asked.object {
            report.phase = match object.pointer("/metadata/deletionTimestamp") {
                Some(Value::String(_)) => ClaimPhase::Terminating,
                _ if report.devices.is_empty() => ClaimPhase::Pending,
                _ => ClaimPhase::Allocated,
            };
        }
        match report.phase {
            ClaimPhase::Allocated => return report,
            ClaimPhase::Terminating => {
                report.reasons.push("it is being deleted, which ends when no Pod uses it".to_owned());
                return report;
            }
            ClaimPhase::Pending | ClaimPhase::Absent | ClaimPhase::Unknown => {}
        }
        if let (Some(claim), None) = (asked.claim, asked.object) {
            if asked.unseen {
                report.phase = ClaimPhase::Unknown;
                return report;
            }
            report.reasons.push(format!("there is no ResourceClaim {claim}"));
            return report;
        }
        let spec = asked.object.and_then(|object| object.get("spec")).or(asked.spec.as_ref());
        let spec = spec.unwrap_or(&Value::Null);
        let requests = inventory::asked(spec);
        self.no_such_class(&requests, &mut report.reasons);
        if report.reasons.is_empty() && self.sees_published {
            report.reasons = self.no_device(spec, &requests, nodes, asked.scheduler);
        }
        match asked.scheduler {
            Some("") => {}
            Some(words) => report.reasons.push(format!("its Pod isn't scheduled: {words}")),
            None => {
                report.reasons.push("it is allocated when a Pod that uses it is scheduled".to_owned());
            }
        }
        report
    }

    fn no_such_class(&self, wanted: &[Asked<'_>], reasons: &mut Vec<String>) {
        let Some(known) = &self.classes else { return };
        for Asked { name, class, .. } in wanted {
            if !known.contains(*class) {
                reasons.push(format!("request {name}: there is no DeviceClass {class}"));
            }
        }
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
        let total = judged.iter().map(|judged| judged.total).max().unwrap_or_default();
        if total == 0 && !requests.is_empty() {
            return vec![format!("no driver publishes a device for {place}")];
        }
        let pairs = || requests.iter().zip(&judged);
        let few = |(asked, judged): (&Asked<'_>, &Judged<'_>)| {
            let why = judged.too_few(asked, &place)?;
            Some((asked.name.clone(), why))
        };
        let few: Vec<(String, String)> = pairs().filter_map(few).collect();
        // Of alternatives one is enough.
        let is_met = |name: &str| {
            let request = name.split('/').next();
            pairs().any(|(asked, judged)| {
                asked.name.split('/').next() == request && judged.too_few(asked, &place).is_none()
            })
        };
        let unmet: Vec<&(String, String)> = few.iter().filter(|(name, _)| !is_met(name)).collect();
        let same = |all: &[&(String, String)]| {
            all.iter().all(|(_, why)| all.first().is_some_and(|(_, one)| one == why))
        };
        match unmet.as_slice() {
            [] => {}
            all if all.len() == requests.len() && same(all) => {
                return vec![all.first().map(|(_, why)| why.clone()).unwrap_or_default()];
            }
            all => return all.iter().map(|(name, why)| format!("request {name}: {why}")).collect(),
        }
        self.undecided(spec, requests, &judged, &place, scheduler).into_iter().collect()
    }

    /// Why a claim isn't allocated whose requests have enough free devices, as far as this can be told without evaluating selectors.
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
    list(claim, "/status/allocation/devices/results").iter().map(device)
}

/// The device of an allocation's result.
pub(super) fn device(result: &Value) -> String {
    ["/driver", "/pool", "/device"].map(|part| text(result, part)).join("/")
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

    fn reasons(cluster: &Devices, claim: &Value, nodes: &[&str], scheduler: Option<&str>) -> Vec<String> {
        let asked =
            ClaimQuestion { claim: Some("c"), object: Some(claim), scheduler, ..ClaimQuestion::default() };
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
            (&[], "crypto", &["a"], Some(FULL), "its Pod isn't scheduled: 0/2"),
            (&[], "crypto", &["a"], None, "it is allocated when a Pod that uses it is scheduled"),
            (&[], "crypto", &[], Some("no DPU"), "its Pod isn't scheduled: no DPU"),
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
        assert_eq!(found, ["no driver publishes a device for n1, n2, n3, n4, n5, n6, n7, n8 and 2 more"]);
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
                scheduler: Some(""),
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
        assert_eq!(none.reasons, ["request r/y: there is no DeviceClass none"]);
        let missing = cluster.explain(&ClaimQuestion { claim: Some("c"), ..ClaimQuestion::default() }, None);
        assert_eq!(
            (missing.phase, missing.reasons),
            (ClaimPhase::Absent, vec!["there is no ResourceClaim c".into()])
        );
        // What can't be seen is not told.
        let none = None::<std::slice::Iter<'_, Value>>;
        let blind = Devices::read(none.clone(), none.clone(), none.clone(), std::iter::empty());
        assert_eq!(reasons(&blind, &claim("c", "none", None), &["a"], Some("")), Vec::<String>::new());
        let unseen = cluster
            .explain(&ClaimQuestion { claim: Some("c"), unseen: true, ..ClaimQuestion::default() }, None);
        assert_eq!((unseen.phase, unseen.reasons), (ClaimPhase::Unknown, vec![]));
        // Nor is what others have known.
        let slices = [slice("a", &["d0"])];
        let blind = Devices::read(Some(slices.iter()), none.clone(), none, std::iter::empty());
        let words = "cannot allocate all claims";
        assert_eq!(
            reasons(&blind, &claim("c", "crypto", None), &["a"], Some(words)),
            [format!("its Pod isn't scheduled: {words}")]
        );
    }
}
