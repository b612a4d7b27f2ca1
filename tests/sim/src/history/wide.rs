//! What happens in histories that have more ([`Scope`]): rules that read more, rules of administrators in a tenant's namespace, Pods that
//! wait for their companions, companions that fail, and restores with later revisions.

use bytes::Bytes;
use outrigger_core::keys;
use serde_json::{Value, json};

use super::{APPS, History};
use crate::process::pick;
use crate::world::hosts::{held, set_conditions};
use crate::world::kubelet::{LONG_GRACE, NEVER, REFUSED, SLOW};
use crate::world::nodes;
use crate::world::{ADMIN, DEVICE_CLASS, MOVING, SCHEDULER, SHOP, Scope, is_queued, namespace_of, text};

/// The values of the label and of the annotation that rules read besides; `None` where a workload has none.
const TIERS: [Option<&str>; 4] = [None, Some(""), Some("a"), Some("b")];

/// Controllers that own workloads.
const OWNERS: [&str; 2] = ["owner-0", "owner-1"];

/// Of so many events one is of those that are here.
const WIDE: u64 = 2;

/// Orderings of the rules of tenants, by the numbers in their names. They stay, so what a rollout may take down stays too.
const ORDERINGS: [&str; 4] = ["Parallel", "BeforeReady", "BeforeStart", "BeforeBinding"];

/// The same of administrators' rules. What is left out is `Parallel`.
const OF_PLATFORM: [&str; 2] = ["BeforeStart", "Parallel"];
/// The same where the history has more of them. Only rules of tenants may have `BeforeBinding`.
const MORE_OF_PLATFORM: [&str; 2] = ["BeforeReady", "BeforeStart"];

/// The same of `maxUnavailable`; `None` for the default.
const MOST: [Option<&str>; 4] = [Some("25%"), Some("1"), None, Some("50%")];

/// Whether rules of tenants have a companion on each DPU, by the same numbers: no rule can be changed to or from that.
const ALL_DPUS: [bool; 4] = [true, true, false, true];

/// The same of administrators' rules. Those of number 3 may have the name of a tenant's.
const ALL_DPUS_OF_PLATFORM: [bool; 4] = [true, false, false, true];

/// The rule whose companions are replaced also where they could be resized.
const REPLACES: &str = "rule-3";

/// The number at the end of a name.
fn number(name: &str) -> usize {
    name.rsplit('-').next().and_then(|number| number.parse().ok()).unwrap_or_default()
}

impl History {
    /// Perhaps one of the events that are here happens. Returns whether it does.
    pub(super) fn wide_event(&mut self, (tenant, _): (&'static str, &[&str])) -> bool {
        let Scope { selectors, foreign, restores, failures, orderings, changes, budgets, drains, .. } =
            self.world.scope;
        let Scope { primaries, names, resizes, all_dpus, updates, queues, .. } = self.world.scope;
        if self.below(WIDE) != 0 {
            return false;
        }
        // The last kind that the history has: the numbers of earlier seeds stay.
        let nodes = self.world.scope.has_node_events();
        let kinds =
            [(nodes, 48), (queues, 40), (updates, 36), (all_dpus, 32), (primaries || names || resizes, 26)];
        let kinds = kinds.into_iter().find(|(has, _)| *has).map_or(20, |(_, kinds)| kinds);
        match self.below(kinds) {
            0..3 if selectors => self.change_facts(tenant),
            3 if foreign => self.apply_foreign_rule(tenant),
            4 if foreign => self.delete_foreign_rule(tenant),
            5 if restores => self.restore_later(tenant),
            6..8 if failures => self.fail_companion(),
            8 if failures => self.delete_companion(),
            9 if failures => self.fail_workload(tenant),
            10 if failures => self.taint_dpu(),
            11 if orderings => self.ask_elsewhere(tenant),
            12..15 if changes => self.change_one_thing(tenant),
            15 if budgets => self.change_budget(tenant),
            16 if drains => self.drain_dpu(),
            17 if drains => self.restart_dpu(),
            18 if orderings => self.give_up_allocation(tenant),
            19 if orderings => self.cut_off(tenant),
            20..23 if resizes => self.change_amounts(),
            23..25 if primaries => self.move_primary(),
            25 if names => self.change_names(tenant),
            32..36 if updates => self.change_image(),
            36..40 if queues => self.release(tenant),
            number @ 40.. => return self.node_event(number, tenant),
            26 if all_dpus => {
                self.judge.disturbed(false);
                self.remove_dpu();
            }
            27..30 if all_dpus => self.put_dpu_elsewhere(),
            30..32 if all_dpus => self.cordon_dpu(),
            _ => return false,
        }
        true
    }

    /// Labels and annotations of a workload that its history may have.
    fn facts(&self) -> (Value, Value) {
        let [tier, note] = [(), ()].map(|()| self.pick(&TIERS).flatten());
        (json!(tier), json!(note))
    }

    /// A user creates a Pod that has what the history has besides.
    pub(super) fn create_wide_pod(&self, tenant: &'static str, mut pod: Value) {
        let Scope { selectors, owners, orderings, queues, .. } = self.world.scope;
        let waits = queues && self.below(3) == 0;
        if waits {
            pod["spec"]["schedulingGates"] = json!([{"name": "example.com/queue"}]);
        }
        if selectors {
            let (tier, note) = self.facts();
            if !tier.is_null() {
                pod["metadata"]["labels"]["tier"] = tier;
            }
            if !note.is_null() {
                pod["metadata"]["annotations"] = json!({"note": note});
            }
        }
        if self.world.scope.numbers {
            let level = self.level();
            if !level.is_null() {
                pod["metadata"]["labels"]["level"] = level;
            }
        }
        if owners && let Some(owner) = self.pick(&OWNERS) {
            pod["metadata"]["ownerReferences"] = json!([{"apiVersion": "example.com/v1", "kind": "Set", "name": owner,
                "uid": owner, "controller": true}]);
        }
        let model = self.world.tenants[tenant].clone();
        // The scheduler binds it.
        if (orderings || waits)
            && let Some(spec) = pod["spec"].as_object_mut()
        {
            spec.remove("nodeName");
        }
        if !orderings {
            let _ = model.create("user", "pods", pod);
            return;
        }
        let request = http::Request::post(format!("/api/v1/namespaces/{SHOP}/pods"))
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(Bytes::from(pod.to_string()));
        let Ok(request) = request else { return };
        tokio::spawn(async move {
            let _ = model.serve("user", request).await;
        });
    }

    /// A queue lets a Pod go. Where rules have no ordering, nothing else binds it.
    fn release(&self, tenant: &'static str) {
        let model = &self.world.tenants[tenant];
        let queued: Vec<_> = model.list("pods").into_iter().filter(|pod| is_queued(pod)).collect();
        let Some(pod) = self.pick(&queued) else { return };
        let at = (Some(SHOP), text(&pod, "/metadata/name"), None);
        let _ = model.merge("user", "pods", at, json!({"spec": {"schedulingGates": null}}));
        if let Some(node) = self.pick(&self.world.nodes(tenant)).filter(|_| !self.world.scope.orderings) {
            let _ = model.merge(SCHEDULER, "pods", at, json!({"spec": {"nodeName": node}}));
        }
    }

    /// A user changes what rules read of a workload besides.
    fn change_facts(&self, tenant: &str) {
        if let Some(pod) = self.any(tenant, "pods") {
            let (tier, note) = self.facts();
            let at = (Some(SHOP), text(&pod, "/metadata/name"), None);
            let mut facts = json!({"metadata": {"labels": {"tier": tier}, "annotations": {"note": note}}});
            if self.world.scope.numbers {
                facts["metadata"]["labels"]["level"] = self.level();
            }
            let _ = self.world.tenants[tenant].merge("user", "pods", at, facts);
        }
    }

    /// The spec of a rule, with an image that no rule has had before.
    pub(super) fn wide_rule(&mut self) -> Value {
        let Scope { selectors, starts, drains, primaries, resizes, .. } = self.world.scope;
        let policy = if primaries {
            self.pick(&["Any", "SameNode", "SameNodePrimary", "SameNodePrimary"]).unwrap_or_default()
        } else {
            ["Any", "SameNode"][usize::from(self.below(2) == 1)]
        };
        let linger = self.pick(&[0, 0, 30, 180]).unwrap_or_default();
        let kind = match self.below(if starts { 12 } else { 1 }) {
            1..6 => SLOW,
            6 => NEVER,
            7..9 => REFUSED,
            _ => "image-",
        };
        let mut pod = json!({"terminationGracePeriodSeconds": 1,
            "containers": [{"name": "c", "image": format!("{kind}{}", self.images)}]});
        if drains && kind != SLOW && self.below(3) == 0 {
            pod["terminationGracePeriodSeconds"] = json!(LONG_GRACE);
        }
        if resizes {
            pod["containers"][0]["resources"] = self.amounts();
        }
        let mut facts = json!(null);
        if selectors {
            if self.below(3) == 0 {
                // Terms are ORed: each of them has to be kept on the tenant's DPUs.
                let terms = ["Exists", "DoesNotExist"].map(|operator| {
                    json!({"matchExpressions": [{"key": "example.com/rack", "operator": operator}]})
                });
                pod["affinity"] = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                    {"nodeSelectorTerms": terms}}});
            }
            facts = self.injections();
        }
        let count = self.below(8);
        let devices = (1..3).contains(&count).then(|| {
            json!([{"name": "engine", "spec": {"devices": {"requests": [
                {"name": "engine", "exactly": {"deviceClassName": DEVICE_CLASS, "count": count}}]}}}])
        });
        let serves = self.world.scope.queues && self.below(3) == 0;
        if self.world.scope.numbers && pod["affinity"].is_null() && self.below(2) == 0 {
            self.compare_slots(&mut pod);
        }
        json!({"dpuSelectionPolicy": policy, "lingerSeconds": linger, "deviceClaims": devices,
            "gatedWorkloads": serves.then_some("Serve"),
            "workloadTerms": self.terms(), "workloadInfoInject": facts,
            "template": {"apiVersion": "v1", "kind": "Pod", "spec": pod}})
    }

    fn injections(&self) -> Value {
        let all = [
            (".state.extra.labels.tier", "example.com/tier"),
            (".state.extra.annotations.note", "example.com/note"),
            (".metadata.resourceName", "example.com/name"),
        ];
        let some = all.into_iter().filter(|_| self.below(2) == 0);
        some.map(|(key, name)| json!({"workloadKey": key, "asAnnotation": {"name": name}})).collect()
    }

    fn terms(&self) -> Value {
        let terms = if self.world.scope.selectors { 1 + self.below(3) } else { 1 };
        (0..terms).map(|_| json!({"matchExpressions": self.expressions()})).collect()
    }

    fn expressions(&self) -> Value {
        let some = |values: &[&str]| {
            let first = self.pick(values).unwrap_or_default();
            let mut some = vec![first];
            some.extend(self.pick(values).filter(|more| *more != first));
            json!(some)
        };
        let apps: Vec<String> = (0..APPS).map(|app| format!("app-{app}")).collect();
        let apps = some(&apps.iter().map(String::as_str).collect::<Vec<_>>());
        let app = json!({"key": ".state.extra.labels.app", "operator": "In", "values": apps});
        if self.world.scope.numbers && self.below(3) == 0 {
            return json!([app, self.comparison()]);
        }
        let besides = if self.world.scope.selectors { self.below(6) } else { 0 };
        let operator = self.pick(&["In", "NotIn", "Exists", "DoesNotExist"]).unwrap_or_default();
        let values = if matches!(operator, "In" | "NotIn") { some(&["", "a", "b"]) } else { json!(null) };
        let mut other = match besides {
            1..3 => json!({"key": ".state.extra.labels.tier", "operator": operator, "values": values}),
            3 => json!({"key": ".state.extra.annotations.note", "operator": operator, "values": values}),
            4 => {
                json!({"key": ".state.nodeName", "operator": "In", "values": some(&self.world.all_nodes())})
            }
            _ => return json!([app]),
        };
        if let Some(other) = other.as_object_mut() {
            other.retain(|_, value| !value.is_null());
        }
        // A term without the application comes to all workloads.
        if self.below(3) == 0 { json!([other]) } else { json!([app, other]) }
    }

    /// A tenant's rule, with what rules of its name have.
    pub(super) fn named_rule(&self, name: &str, mut spec: Value) -> Value {
        if self.world.scope.orderings {
            spec["ordering"] = json!(ORDERINGS.get(number(name)));
        }
        if self.world.scope.older.is_some() {
            // An older peer drops the field.
            spec["lingerSeconds"] = json!(null);
        }
        self.put_on_all_dpus(&mut spec, ALL_DPUS.get(number(name)));
        if let Some(most) = MOST.get(number(name)).copied().flatten() {
            let most = most.parse::<u64>().map_or_else(|_| json!(most), |most| json!(most));
            spec["updateStrategy"] =
                json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": most}});
            if self.world.scope.resizes && name == REPLACES {
                spec["updateStrategy"]["rollingUpdate"]["resize"] = json!("Replace");
            }
            if self.world.scope.updates && name != REPLACES {
                spec["updateStrategy"]["rollingUpdate"]["mutableFields"] = json!("InPlace");
            }
        }
        spec
    }

    fn put_on_all_dpus(&self, spec: &mut Value, are_all: Option<&bool>) {
        if self.world.scope.all_dpus && are_all == Some(&true) {
            spec["dpuSelectionPolicy"] = json!("SameNodeAll");
        }
    }

    /// A rule that is written in the infrastructure cluster: of annotations that the agent doesn't send nothing is known there.
    pub(super) fn platforms_rule(&self, name: &str, mut spec: Value) -> Value {
        if self.world.scope.orderings {
            let more = self.world.scope.platform_orderings;
            let orderings = if more { MORE_OF_PLATFORM } else { OF_PLATFORM };
            spec["ordering"] = json!(orderings.get(number(name)));
        }
        self.put_on_all_dpus(&mut spec, ALL_DPUS_OF_PLATFORM.get(number(name)));
        let about = |value: &Value| value.to_string().contains("annotations");
        for term in spec["workloadTerms"].as_array_mut().into_iter().flatten() {
            if let Some(all) = term["matchExpressions"].as_array_mut() {
                all.retain(|expression| !about(expression));
                if all.is_empty() {
                    all.push(json!({"key": ".state.extra.labels.tier", "operator": "Exists"}));
                }
            }
        }
        if let Some(facts) = spec["workloadInfoInject"].as_array_mut() {
            facts.retain(|fact| !about(fact));
        }
        spec
    }

    /// An administrator writes a rule in a tenant's namespace, perhaps with a name that a tenant's rule has.
    fn apply_foreign_rule(&mut self, tenant: &'static str) {
        let name = self.pick(&["admin-0", "admin-1", "rule-3"]).unwrap_or_default();
        let spec = self.rule();
        let mut spec = self.platforms_rule(name, spec);
        let namespace = namespace_of(tenant);
        let infra = &self.world.infra;
        let known = infra.get("workloadrules", Some(&namespace), name);
        match known.filter(|known| known["metadata"]["annotations"][keys::ORIGIN].is_string()) {
            // The tenant's own.
            Some(_) => {}
            None if infra.get("workloadrules", Some(&namespace), name).is_some() => {
                let _ = infra.merge(
                    ADMIN,
                    "workloadrules",
                    (Some(&namespace), name, None),
                    json!({"spec": spec}),
                );
            }
            None => {
                if let Some(spec) = spec.as_object_mut() {
                    spec.retain(|_, value| !value.is_null());
                }
                let rule = json!({"metadata": {"name": name, "namespace": namespace}, "spec": spec});
                let _ = infra.create(ADMIN, "workloadrules", rule);
            }
        }
    }

    fn delete_foreign_rule(&self, tenant: &'static str) {
        let namespace = namespace_of(tenant);
        let foreign = |rule: &Value| {
            text(rule, "/metadata/namespace") == namespace
                && !rule["metadata"]["annotations"][keys::ORIGIN].is_string()
        };
        let rules = self.world.infra.list("workloadrules").into_iter().filter(|rule| foreign(rule));
        if let Some(rule) = self.pick(&rules.collect::<Vec<_>>()) {
            let name = text(&rule, "/metadata/name");
            let _ = self.world.infra.delete(ADMIN, "workloadrules", Some(&namespace), name);
        }
    }

    /// A cluster is restored from the last snapshot with later revisions, and everybody goes on.
    fn restore_later(&mut self, tenant: &'static str) {
        let of_tenant = self.below(2) == 0;
        let model = if of_tenant { self.world.tenants[tenant].clone() } else { self.world.infra.clone() };
        let Some(snapshot) = self.later.take() else {
            self.later = Some((of_tenant.then_some(tenant), model.snapshot()));
            return;
        };
        let (of, snapshot) = snapshot;
        let model = of.map_or_else(|| self.world.infra.clone(), |id| self.world.tenants[id].clone());
        let name = of.map_or_else(|| "infra".to_owned(), crate::world::cluster);
        self.line(format_args!("etcd of {name} is restored from a snapshot, with later revisions"));
        self.judge.disturbed(true);
        model.restore_later(&snapshot);
        self.judge.restored();
        if of.is_none() {
            self.world.recover();
            self.create_missing_tenants();
        }
    }

    /// One of the companions, by chance.
    pub(super) fn companion(&self) -> Option<std::sync::Arc<Value>> {
        let pods = self.world.infra.list("pods").into_iter();
        let companions = pods.filter(|pod| pod["metadata"]["labels"][keys::WORKLOAD].is_string());
        pick(&self.random().random, &companions.collect::<Vec<_>>()).cloned()
    }

    /// A kubelet evicts a companion. Each key's first two only: pauses get long otherwise.
    fn fail_companion(&mut self) {
        let infra = &self.world.infra;
        let reports = |pod: &Value| text(pod, "/status/phase") == "Running" && !nodes::is_on_lost(infra, pod);
        let Some(pod) = self.companion().filter(|pod| reports(pod)) else { return };
        let key = (text(&pod, "/metadata/namespace").to_owned(), text(&pod, "/metadata/name").to_owned());
        let times = self.failed.entry(key).or_insert(0);
        *times += 1;
        if *times > 2 {
            return;
        }
        let at = (pod["metadata"]["namespace"].as_str(), text(&pod, "/metadata/name"), Some("status"));
        let conditions = set_conditions(&pod, &[("Ready", false), ("ContainersReady", false)]);
        let status = json!({"status": {"phase": "Failed", "reason": "Evicted", "conditions": conditions}});
        let _ = self.world.infra.merge("kubelet", "pods", at, status);
    }

    /// Somebody deletes a companion, as a drain does.
    fn delete_companion(&self) {
        let Some(pod) = self.companion() else { return };
        let _ = self.world.infra.delete(
            ADMIN,
            "pods",
            pod["metadata"]["namespace"].as_str(),
            text(&pod, "/metadata/name"),
        );
    }

    /// A kubelet evicts a workload.
    fn fail_workload(&self, tenant: &str) {
        if let Some(pod) = self.any(tenant, "pods") {
            let at = (Some(SHOP), text(&pod, "/metadata/name"), Some("status"));
            let conditions = set_conditions(&pod, &[("Ready", false), ("ContainersReady", false)]);
            let status =
                json!({"status": {"phase": "Failed", "reason": "Evicted", "conditions": conditions}});
            let _ = self.world.tenants[tenant].merge("kubelet", "pods", at, status);
        }
    }

    /// An administrator taints the Node of a DPU, or takes the taint away. Companions that are there stay.
    fn taint_dpu(&self) {
        let name = format!("dpu-{MOVING}");
        let Some(node) = self.world.infra.get("nodes", None, &name) else { return };
        let mut taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
        let before = taints.len();
        taints.retain(|taint| taint["key"] != "example.com/old");
        if taints.len() == before {
            // Nobody is kept off by it.
            taints.push(json!({"key": "example.com/old", "value": "yes", "effect": "PreferNoSchedule"}));
        }
        let _ =
            self.world.infra.merge(ADMIN, "nodes", (None, &name, None), json!({"spec": {"taints": taints}}));
    }

    /// A host asks for a Pod that waits on another host: it must not start there.
    fn ask_elsewhere(&self, tenant: &'static str) {
        let pods = self.world.tenants[tenant].list("pods").into_iter();
        let waiting: Vec<_> =
            pods.filter(|pod| held(pod).is_some() && pod["spec"]["nodeName"].is_string()).collect();
        let Some(pod) = self.pick(&waiting) else { return };
        let Some(host) = self.pick(&self.world.all_nodes()).filter(|host| pod["spec"]["nodeName"] != *host)
        else {
            return;
        };
        let (world, judge) = (self.world.clone(), self.judge.clone());
        tokio::spawn(async move {
            if let Some(agent) = world.may_start(tenant, &pod, host).await {
                judge.started_elsewhere(&agent, text(&pod, "/metadata/name"), host);
            }
        });
    }
}
