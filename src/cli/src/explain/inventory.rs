//! The devices that drivers publish, and what keeps a request from each of them: other claims, taints, capacity. Only the scheduler knows
//! whether a device matches a selector: that is CEL, which isn't evaluated here.

use std::collections::{BTreeMap, BTreeSet};

use outrigger_core::amounts::{self, Amounts};
use outrigger_core::json::{list, text};
use outrigger_core::quantity::Quantity;
use serde_json::Value;

use super::allocation::first;

/// The two kinds of constraints.
const ATTRIBUTES: [&str; 2] = ["matchAttribute", "distinctAttribute"];

/// By the name of a request: how many devices it asks for, and those that are free for it.
pub(super) type FreeDevices<'a> = BTreeMap<&'a str, (usize, BTreeSet<&'a str>)>;

/// A device of a ResourceSlice.
#[derive(Debug, Clone)]
struct Published {
    driver: String,
    pool: String,
    /// The Node that it is in; `None` if more than one reaches it.
    node: Option<String>,
    /// The device as its slice has it.
    device: Value,
}

/// A taint, and the DeviceTaintRule that adds it.
#[derive(Debug, Clone)]
struct TaintRule {
    name: String,
    selector: Value,
    taint: Value,
}

/// All devices, and who has them.
#[derive(Debug, Clone, Default)]
pub(super) struct Inventory {
    published: BTreeMap<String, Published>,
    rules: Vec<TaintRule>,
    /// The devices that one claim has alone, and that claim, as `namespace/name`.
    taken: BTreeMap<String, String>,
    /// What claims have of the capacity of devices that they share.
    consumed: BTreeMap<String, Amounts>,
}

/// A request for devices, or an alternative of one.
#[derive(Debug)]
pub(super) struct Asked<'a> {
    /// `REQUEST` or `REQUEST/ALTERNATIVE`.
    pub(super) name: String,
    /// The DeviceClass.
    pub(super) class: &'a str,
    /// How many devices; of all in a pool one at least.
    count: usize,
    request: &'a Value,
}

/// What keeps a request from a device.
enum Obstacle<'a> {
    /// The claim that has it.
    Taken(&'a str),
    /// A taint, or too little capacity, in words.
    Other(String),
}

/// The devices of a place, for one request.
#[derive(Debug, Default)]
pub(super) struct Judged<'a> {
    /// Those that nothing is known to keep the request from.
    pub(super) free: Vec<&'a str>,
    /// All of them.
    pub(super) total: usize,
    /// The claims that have others, and how many these are.
    owners: BTreeSet<&'a str>,
    taken: usize,
    /// What keeps it from how many others.
    others: BTreeMap<String, usize>,
}

/// The requests of a claim's spec with their alternatives.
pub(super) fn asked(spec: &Value) -> Vec<Asked<'_>> {
    let one = |name: String, request| Asked {
        name,
        class: text(request, "/deviceClassName"),
        count: request.get("count").and_then(Value::as_u64).map_or(1, |count| count.clamp(1, 32)) as usize,
        request,
    };
    let mut all = Vec::new();
    for request in list(spec, "/devices/requests") {
        let name = text(request, "/name");
        let exactly = request.get("exactly").filter(|exactly| exactly.is_object());
        all.extend(exactly.map(|exactly| one(name.to_owned(), exactly)));
        let alternatives = list(request, "/firstAvailable").iter();
        all.extend(alternatives.map(|other| one(format!("{name}/{}", text(other, "/name")), other)));
    }
    all
}

impl Asked<'_> {
    /// The request, without the alternative.
    pub(super) fn request_name(&self) -> &str {
        self.name.split('/').next().unwrap_or_default()
    }

    /// Whether it is one of several alternatives.
    pub(super) fn is_alternative(&self) -> bool {
        self.name.contains('/')
    }

    fn tolerates(&self, taint: &Value) -> bool {
        list(self.request, "/tolerations").iter().any(|toleration| {
            let same = |part: &str| {
                let wanted = text(toleration, part);
                wanted.is_empty() || wanted == text(taint, part)
            };
            let value = match text(toleration, "/operator") {
                "Exists" => true,
                "" | "Equal" => text(toleration, "/value") == text(taint, "/value"),
                _ => false,
            };
            same("/effect") && same("/key") && value
        })
    }
}

impl Inventory {
    /// From ResourceSlices, DeviceTaintRules, and the ResourceClaims of all namespaces. Slices of a pool's earlier generations don't count.
    pub(super) fn new<'a>(
        slices: impl Iterator<Item = &'a Value>,
        rules: impl Iterator<Item = &'a Value>,
        claims: impl Iterator<Item = &'a Value>,
    ) -> Self {
        let mut this = Self::default();
        let slices: Vec<&Value> = slices.collect();
        let generation = |slice: &Value| slice.pointer("/spec/pool/generation").and_then(Value::as_i64);
        let pool = |slice: &'a Value| (text(slice, "/spec/driver"), text(slice, "/spec/pool/name"));
        let mut newest = BTreeMap::new();
        for slice in &slices {
            let known = newest.entry(pool(slice)).or_insert(None);
            *known = (*known).max(generation(slice));
        }
        for slice in slices.iter().filter(|slice| newest.get(&pool(slice)) == Some(&generation(slice))) {
            let (driver, pool) = pool(slice);
            for device in list(slice, "/spec/devices") {
                let node = [text(slice, "/spec/nodeName"), text(device, "/nodeName")];
                let node = node.into_iter().find(|node| !node.is_empty()).map(str::to_owned);
                let published = Published {
                    driver: driver.to_owned(),
                    pool: pool.to_owned(),
                    node,
                    device: device.clone(),
                };
                this.published.insert(format!("{driver}/{pool}/{}", text(device, "/name")), published);
            }
        }
        this.rules = rules
            .map(|rule| TaintRule {
                name: text(rule, "/metadata/name").to_owned(),
                selector: rule.pointer("/spec/deviceSelector").cloned().unwrap_or_default(),
                taint: rule.pointer("/spec/taint").cloned().unwrap_or_default(),
            })
            .collect();
        for claim in claims {
            this.hold(claim);
        }
        this
    }

    /// Counts what a claim has. Administrative access takes nothing, and a share of a device its part of the capacity.
    fn hold(&mut self, claim: &Value) {
        let whose = format!("{}/{}", text(claim, "/metadata/namespace"), text(claim, "/metadata/name"));
        for result in list(claim, "/status/allocation/devices/results") {
            if result.get("adminAccess") == Some(&Value::Bool(true)) {
                continue;
            }
            let id = crate::claims::device::path(result);
            if text(result, "/shareID").is_empty() {
                self.taken.insert(id, whose.clone());
                continue;
            }
            let parts = result.get("consumedCapacity").and_then(Value::as_object).into_iter().flatten();
            let parts = parts.filter_map(|(name, part)| Some((name.clone(), Quantity::of(part)?)));
            amounts::add(self.consumed.entry(id).or_default(), &parts.collect());
        }
    }

    /// The devices that are in one of these Nodes, or that several reach; of any Node where it isn't known which are meant.
    fn within<'a>(&'a self, nodes: Option<&'a [&str]>) -> impl Iterator<Item = (&'a str, &'a Published)> {
        let is_there = move |published: &Published| match (&published.node, nodes) {
            (Some(node), Some(nodes)) => nodes.contains(&node.as_str()),
            _ => true,
        };
        self.published
            .iter()
            .filter(move |(_, published)| is_there(published))
            .map(|(id, p)| (id.as_str(), p))
    }

    /// The devices of a place, for a request.
    pub(super) fn judge<'a>(&'a self, asked: &Asked<'_>, nodes: Option<&'a [&str]>) -> Judged<'a> {
        let mut judged = Judged::default();
        for (id, published) in self.within(nodes) {
            judged.total += 1;
            match self.obstacle(id, published, asked) {
                None => judged.free.push(id),
                Some(Obstacle::Taken(owner)) => {
                    judged.taken += 1;
                    judged.owners.insert(owner);
                }
                Some(Obstacle::Other(words)) => {
                    *judged.others.entry(words).or_default() += 1;
                }
            }
        }
        judged
    }

    fn obstacle<'a>(&'a self, id: &str, published: &Published, asked: &Asked<'_>) -> Option<Obstacle<'a>> {
        let admin = asked.request.get("adminAccess") == Some(&Value::Bool(true));
        if let Some(owner) = self.taken.get(id).filter(|_| !admin) {
            return Some(Obstacle::Taken(owner));
        }
        let own = list(&published.device, "/taints").iter().map(|taint| (taint, None));
        let rules = self.rules.iter().filter(|rule| rule.selects(published) == Some(true));
        let all = own.chain(rules.map(|rule| (&rule.taint, Some(&rule.name))));
        let keeps_off = |taint: &Value| matches!(text(taint, "/effect"), "NoSchedule" | "NoExecute");
        for (taint, rule) in all {
            if keeps_off(taint) && !asked.tolerates(taint) {
                let by = rule.map_or_else(String::new, |rule| format!(" (DeviceTaintRule {rule})"));
                return Some(Obstacle::Other(format!(
                    "the taint {}{by}, which isn't tolerated",
                    words(taint)
                )));
            }
        }
        if admin { None } else { self.too_small(id, published, asked).map(Obstacle::Other) }
    }

    /// The first capacity of a device of which too little is left for a request.
    fn too_small(&self, id: &str, published: &Published, asked: &Asked<'_>) -> Option<String> {
        let capacities = published.device.get("capacity").and_then(Value::as_object);
        let wanted = asked.request.pointer("/capacity/requests").and_then(Value::as_object);
        let has = |name: &String| capacities.is_some_and(|capacities| capacities.contains_key(name));
        if let Some(name) = wanted.into_iter().flat_map(|wanted| wanted.keys()).find(|name| !has(name)) {
            return Some(format!("no capacity {name}"));
        }
        capacities.into_iter().flatten().find_map(|(name, capacity)| {
            let value = Quantity::of(capacity.get("value")?)?;
            let wanted = wanted.and_then(|wanted| Quantity::of(wanted.get(name)?));
            let takes = consumption(wanted, value, capacity.get("requestPolicy").unwrap_or(&Value::Null));
            let consumed = self.consumed.get(id).and_then(|consumed| consumed.get(name).copied());
            let left = value.minus(consumed.unwrap_or_else(|| Quantity::whole(0)));
            (takes > left)
                .then(|| format!("too little capacity: {left} of {value} {name} left, {takes} needed"))
        })
    }

    /// Why the free devices of a claim's requests are too few for all of them together or for a constraint, where that is certain. `free`:
    /// how many devices each request asks for, and those that are free for it.
    pub(super) fn together(&self, spec: &Value, free: &FreeDevices<'_>) -> Option<String> {
        let (needed, devices) = self.united(free, &[])?;
        if devices.len() < needed {
            return Some(format!(
                "its requests ask for {needed} devices, and {} {} free",
                devices.len(),
                are(devices.len())
            ));
        }
        list(spec, "/devices/constraints").iter().find_map(|constraint| {
            let names: Vec<&str> =
                list(constraint, "/requests").iter().filter_map(Value::as_str).collect();
            let (needed, devices) = self.united(free, &names)?;
            let (key, name) = ATTRIBUTES.into_iter().find_map(|key| Some((key, constraint.get(key)?.as_str()?)))?;
            let mut values: BTreeMap<String, usize> = BTreeMap::new();
            for value in devices.iter().filter_map(|id| self.published.get(*id)?.attribute(name)) {
                // A list has several values, which are compared in another way.
                if value.as_object()?.values().any(Value::is_array) {
                    return None;
                }
                *values.entry(value.to_string()).or_default() += 1;
            }
            let (most, how) = match key {
                "matchAttribute" => (values.values().copied().max().unwrap_or_default(), "have the same value"),
                _ => (values.len(), "have different values"),
            };
            (most < needed).then(|| {
                format!(
                    "the constraint {key} {name} needs {needed} devices, and at most {most} of those that are free {how}"
                )
            })
        })
    }

    /// How many devices some requests ask for, all where none is named, and those that are free for one of them. `None` if one of the
    /// devices is shared, and so serves several requests.
    fn united<'a>(&self, free: &FreeDevices<'a>, names: &[&str]) -> Option<(usize, BTreeSet<&'a str>)> {
        let meant = free.iter().filter(|(name, _)| names.is_empty() || names.contains(name));
        let (mut needed, mut devices) = (0, BTreeSet::new());
        for (count, free) in meant.map(|(_, request)| request) {
            needed += count;
            devices.extend(free.iter().copied());
        }
        let shared = devices.iter().any(|id| self.published.get(*id).is_some_and(Published::is_shared));
        (!shared).then_some((needed, devices))
    }

    /// What else may keep a claim from devices that are free, and can't be determined here.
    pub(super) fn doubts(&self, spec: &Value, free: &BTreeSet<&str>) -> Vec<String> {
        let constraints = list(spec, "/devices/constraints").iter().filter_map(|constraint| {
            ATTRIBUTES
                .into_iter()
                .find_map(|key| Some(format!("the constraint {key} {}", constraint.get(key)?.as_str()?)))
        });
        let devices = || free.iter().filter_map(|id| self.published.get(*id));
        let counters = devices().any(|published| !list(&published.device, "/consumesCounters").is_empty());
        let counters = counters.then(|| "the counters that parts of one device share".to_owned());
        let unknown = self.rules.iter().filter(|rule| devices().any(|device| rule.selects(device).is_none()));
        let unknown = unknown.map(|rule| format!("the selectors of DeviceTaintRule {}", rule.name));
        constraints.chain(counters).chain(unknown).collect()
    }
}

impl Published {
    /// Whether several claims may have parts of it.
    fn is_shared(&self) -> bool {
        self.device.get("allowMultipleAllocations") == Some(&Value::Bool(true))
    }

    /// An attribute by its full name. Without a domain its name is in the driver's.
    fn attribute(&self, name: &str) -> Option<&Value> {
        let attributes = self.device.get("attributes")?;
        let own = name.strip_prefix(self.driver.as_str()).and_then(|rest| rest.strip_prefix('/'));
        attributes.get(name).or_else(|| attributes.get(own?))
    }
}

impl TaintRule {
    /// Whether it is about a device; `None` where only its CEL expressions tell. Without a selector it is about none.
    fn selects(&self, published: &Published) -> Option<bool> {
        let selector = self.selector.as_object();
        let same = |key: &str, value: &str| {
            selector
                .and_then(|selector| selector.get(key))
                .is_none_or(|wanted| wanted.as_str() == Some(value))
        };
        let fits = selector.is_some()
            && same("driver", &published.driver)
            && same("pool", &published.pool)
            && same("device", text(&published.device, "/name"));
        let is_cel =
            !list(&self.selector, "/selectors").is_empty() || self.selector.get("deviceClassName").is_some();
        if fits && is_cel { None } else { Some(fits) }
    }
}

fn are(n: usize) -> &'static str {
    if n == 1 { "is" } else { "are" }
}

/// A taint as kubectl writes it.
fn words(taint: &Value) -> String {
    let [key, value, effect] = ["/key", "/value", "/effect"].map(|part| text(taint, part));
    if value.is_empty() { format!("{key}:{effect}") } else { format!("{key}={value}:{effect}") }
}

/// What a request takes of a capacity (`requestPolicy`, KEP-5075): what it asks for, rounded up to what the policy allows. Without asking
/// it takes the policy's default, else all.
fn consumption(wanted: Option<Quantity>, value: Quantity, policy: &Value) -> Quantity {
    let of = |pointer: &str| policy.pointer(pointer).and_then(Quantity::of);
    let Some(wanted) = wanted else { return of("/default").unwrap_or(value) };
    if let Some(min) = of("/validRange/min") {
        let units = |quantity: Quantity| quantity.nanos().div_euclid(1_000_000_000);
        let step = of("/validRange/step").map(units).filter(|step| *step > 0);
        let (Some(step), true) = (step, wanted > min) else { return wanted.max(min) };
        let over = (units(wanted) - units(min)).max(0);
        let steps = (over + step - 1) / step;
        return u64::try_from(units(min) + steps * step).map_or(wanted, Quantity::whole);
    }
    let values = list(policy, "/validValues").iter().filter_map(Quantity::of);
    values.into_iter().find(|valid| wanted <= *valid).unwrap_or(wanted)
}

impl<'a> Judged<'a> {
    /// Why these are too few for a request, if they are.
    pub(super) fn too_few(&self, asked: &Asked<'_>, place: &str) -> Option<String> {
        if self.free.len() >= asked.count {
            return None;
        }
        let owners: Vec<&str> = self.owners.iter().copied().collect();
        let total = self.total;
        if self.taken == total {
            return Some(format!("all {total} devices of {place} are taken, by {}", first(&owners)));
        }
        let have = |n: usize| if n == 1 { "has" } else { "have" };
        let taken = (self.taken > 0)
            .then(|| format!("{} {} taken, by {}", self.taken, are(self.taken), first(&owners)));
        let others = self.others.iter().map(|(words, n)| format!("{n} {} {words}", have(*n)));
        let free = self.free.len();
        let free = (free > 0).then(|| format!("{free} {} free, and {} are needed", are(free), asked.count));
        let parts: Vec<String> = taken.into_iter().chain(others).chain(free).collect();
        Some(format!("of {total} devices of {place} {}", parts.join("; ")))
    }

    /// How many devices the request asks for, and which are free for it.
    pub(super) fn needs(&self, asked: &Asked<'_>) -> (usize, BTreeSet<&'a str>) {
        (asked.count, self.free.iter().copied().collect())
    }
}

#[cfg(test)]
mod tests;
