//! Explains why a ResourceClaim has no devices, as far as the cluster's objects show. Only the scheduler knows whether a device
//! matches a selector: that is CEL, which isn't evaluated here.

use std::collections::{BTreeMap, BTreeSet};

use outrigger_core::json::{list, text};
use serde::Serialize;
use serde_json::Value;

#[derive(Debug, Clone, Default)]
pub(crate) struct Devices {
    /// Names of the DeviceClasses; `None` where they can't be seen.
    classes: Option<BTreeSet<String>>,
    /// The devices that drivers publish, and the Node that each is in; `None` for one that more than one Node reaches.
    published: BTreeMap<String, Option<String>>,
    /// Whether ResourceSlices can be seen.
    sees_published: bool,
    /// The devices that are allocated, and the claim that has them, as `namespace/name`.
    taken: BTreeMap<String, String>,
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
    /// Reads what there is: ResourceSlices, DeviceClasses, and the ResourceClaims of all namespaces. `None`: they can't
    /// be seen.
    pub(crate) fn read<'a>(
        slices: Option<impl Iterator<Item = &'a Value>>,
        classes: Option<impl Iterator<Item = &'a Value>>,
        claims: Option<impl Iterator<Item = &'a Value>>,
    ) -> Self {
        let name = |object: &Value| text(object, "/metadata/name").to_owned();
        let mut this = Self {
            classes: classes.map(|classes| classes.map(name).collect()),
            sees_published: slices.is_some(),
            sees_claims: claims.is_some(),
            ..Self::default()
        };
        for slice in slices.into_iter().flatten() {
            let node = Some(text(slice, "/spec/nodeName")).filter(|node| !node.is_empty());
            for device in list(slice, "/spec/devices") {
                let id =
                    id(text(slice, "/spec/driver"), text(slice, "/spec/pool/name"), text(device, "/name"));
                this.published.insert(id, node.map(str::to_owned));
            }
        }
        for claim in claims.into_iter().flatten() {
            let whose = format!("{}/{}", text(claim, "/metadata/namespace"), text(claim, "/metadata/name"));
            this.taken.extend(held(claim).map(|device| (device, whose.clone())));
        }
        this
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
        let classes = spec.map(classes).unwrap_or_default();
        self.no_such_class(&classes, &mut report.reasons);
        if report.reasons.is_empty() {
            report.reasons.extend(self.no_device(&classes, nodes, asked.scheduler));
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

    fn no_such_class(&self, wanted: &[(String, String)], reasons: &mut Vec<String>) {
        let Some(known) = &self.classes else { return };
        for (request, class) in wanted {
            if !known.contains(class) {
                reasons.push(format!("request {request}: there is no DeviceClass {class}"));
            }
        }
    }

    /// Why the devices that exist aren't suitable.
    fn no_device(
        &self,
        classes: &[(String, String)],
        nodes: Option<&[&str]>,
        scheduler: Option<&str>,
    ) -> Option<String> {
        if !self.sees_published {
            return None;
        }
        let within = |node: &Option<String>| match (node, nodes) {
            (Some(node), Some(nodes)) => nodes.contains(&node.as_str()),
            _ => true,
        };
        let place = nodes.map_or_else(|| "any Node".to_owned(), first);
        let there: Vec<&String> =
            self.published.iter().filter(|(_, node)| within(node)).map(|(device, _)| device).collect();
        if nodes.is_some_and(<[_]>::is_empty) {
            // Placement says why.
            return None;
        }
        if there.is_empty() {
            return Some(format!("no driver publishes a device for {place}"));
        }
        if !self.sees_claims {
            return None;
        }
        let owners: BTreeSet<&String> = there.iter().filter_map(|device| self.taken.get(*device)).collect();
        let free = there.iter().filter(|device| !self.taken.contains_key(**device)).count();
        if free == 0 {
            let owners: Vec<&str> = owners.iter().map(|owner| owner.as_str()).collect();
            return Some(format!("all {} devices of {place} are taken, by {}", there.len(), first(&owners)));
        }
        // The words of the scheduler's plugin (`dynamicresources`).
        if !scheduler?.contains("cannot allocate all claims") {
            return None;
        }
        let asked: Vec<String> =
            classes.iter().map(|(request, class)| format!("{request} (DeviceClass {class})")).collect();
        Some(format!(
            "{free} of {} devices of {place} are free, and too few of them fit the selectors of {}",
            there.len(),
            asked.join(", ")
        ))
    }
}

/// Most owners of devices, and most Nodes, that are named.
const SHOWN: usize = 8;

/// The first of some names, and how many there are besides.
fn first(names: &[&str]) -> String {
    let shown = names.iter().take(SHOWN).copied().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// The requests of a claim, with their alternatives and classes.
fn classes(spec: &Value) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for request in list(spec, "/devices/requests") {
        let name = text(request, "/name");
        let class = text(request, "/exactly/deviceClassName");
        if !class.is_empty() {
            all.push((name.to_owned(), class.to_owned()));
        }
        for alternative in list(request, "/firstAvailable") {
            let class = text(alternative, "/deviceClassName").to_owned();
            all.push((format!("{name}/{}", text(alternative, "/name")), class));
        }
    }
    all
}

fn allocated(claim: &Value) -> impl Iterator<Item = String> {
    list(claim, "/status/allocation/devices/results").iter().map(device)
}

/// The devices that the claim holds exclusively: without administrative access and shares of devices.
fn held(claim: &Value) -> impl Iterator<Item = String> {
    let alone = |result: &&Value| {
        result.get("adminAccess") != Some(&Value::Bool(true)) && text(result, "/shareID").is_empty()
    };
    list(claim, "/status/allocation/devices/results").iter().filter(alone).map(device)
}

/// The device of an allocation's result.
fn device(result: &Value) -> String {
    id(text(result, "/driver"), text(result, "/pool"), text(result, "/device"))
}

fn id(driver: &str, pool: &str, device: &str) -> String {
    format!("{driver}/{pool}/{device}")
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
        Devices::read(Some(slices.iter()), Some(classes.iter()), Some(claims.iter()))
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
        let cluster = Devices::read(Some(slices.iter()), none, Some([admin, share].iter()));
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
        let blind = Devices::read(none.clone(), none.clone(), none.clone());
        assert_eq!(reasons(&blind, &claim("c", "none", None), &["a"], Some("")), Vec::<String>::new());
        let unseen = cluster
            .explain(&ClaimQuestion { claim: Some("c"), unseen: true, ..ClaimQuestion::default() }, None);
        assert_eq!((unseen.phase, unseen.reasons), (ClaimPhase::Unknown, vec![]));
        // Nor is what others have known.
        let slices = [slice("a", &["d0"])];
        let blind = Devices::read(Some(slices.iter()), none.clone(), none);
        let words = "cannot allocate all claims";
        assert_eq!(
            reasons(&blind, &claim("c", "crypto", None), &["a"], Some(words)),
            [format!("its Pod isn't scheduled: {words}")]
        );
    }
}
