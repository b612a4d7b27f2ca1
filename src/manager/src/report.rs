//! The current numbers of a manager, counted on request: for `/metrics` and `/debug`.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use outrigger_core::ids::TenantId;
use outrigger_core::reason::Cause;
use outrigger_core::tenant::Enforcement;
use outrigger_runtime::Process;
use outrigger_runtime::metrics::{self, LEADER, Metric, collect};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use serde_json::{Value, json};

use crate::context::Context;
use crate::queue::Counts;
use crate::state::{TenantData, TenantState};

type Number = Gauge<i64, AtomicI64>;

/// Shows the numbers of this manager in `/metrics` and `/debug`.
pub(crate) fn start(process: &mut Process, context: &Arc<Context>) {
    let reporter = Reporter(context.clone());
    collect(&mut process.registry, reporter.clone());
    LEADER.register(&mut process.registry, context.replica.leadership.gauge());
    process.report("manager", move || reporter.state());
}

#[derive(Debug, Clone)]
struct Reporter(Arc<Context>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
enum StreamState {
    Connected,
    Lost,
    Elsewhere,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
enum Waits {
    Ready,
    Delayed,
    Busy,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct QueueLabels {
    queue: &'static str,
    state: Waits,
}

#[derive(Debug, Default)]
struct Total {
    workloads: usize,
    wanted: usize,
    created: i64,
    ready: i64,
    refused: usize,
    /// Companions that aren't ready, by their causes.
    causes: BTreeMap<Cause, usize>,
}

#[derive(Debug)]
struct OfTenant {
    id: TenantId,
    namespace: String,
    stream: StreamState,
    /// The numbers that this replica is responsible for: none of a tenant that another replica acts for.
    total: Total,
}

impl Reporter {
    /// Counts by rule are kept anyway, so this takes a moment for each rule, not for each companion.
    fn look(&self) -> Vec<OfTenant> {
        let leads = self.0.replica.leadership.leads();
        let all = self.0.states.all();
        all.iter().filter_map(|state| of_tenant(state, leads)).collect()
    }

    fn queues(&self) -> [(&'static str, Counts); 7] {
        let queues = &self.0.queues;
        [
            ("companions", queues.companions.counts()),
            ("rules", queues.rules.counts()),
            ("tenants", queues.tenants.counts()),
            ("unused-claims", queues.unused_claims.counts()),
            ("stream-statuses", queues.stream_statuses.counts()),
            ("machines", queues.machines.counts()),
            ("offloadings", queues.offloadings.counts()),
        ]
    }

    /// How many tenants have which level of enforcement, and since when the first of them has been below Enforce, in seconds of Unix time.
    fn levels(&self) -> (BTreeMap<Enforcement, i64>, Option<i64>) {
        let mut counts: BTreeMap<_, _> = Enforcement::ALL.map(|level| (level, 0)).into();
        let mut first: Option<i64> = None;
        let registry = &self.0.caches.registry;
        for entry in registry.ids().iter().filter_map(|id| registry.get(id)) {
            let Ok(tenant) = &entry.tenant else { continue };
            *counts.entry(tenant.level(self.0.replica.args.enforcement)).or_default() += 1;
            let since = entry.below_enforce_since().map(|since| since.as_second());
            first = first.into_iter().chain(since).min();
        }
        (counts, first)
    }

    /// The numbers for people, tenants in the order of their namespaces.
    pub(crate) fn state(&self) -> Value {
        let tenants: Vec<Value> = self
            .look()
            .into_iter()
            .map(|OfTenant { id, namespace, stream, total }| {
                json!({
                    "tenant": id.as_str(),
                    "namespace": namespace,
                    "stream": format!("{stream:?}"),
                    "workloads": total.workloads,
                    "companions": {
                        "wanted": total.wanted, "created": total.created, "ready": total.ready, "refused": total.refused,
                    },
                })
            })
            .collect();
        json!({
            "leads": self.0.replica.leadership.leads(),
            "queues": self.queues().into_iter().collect::<BTreeMap<_, _>>(),
            "tenants": tenants,
        })
    }
}

/// The numbers of a namespace's tenant, if it has one; `leads`: this replica leads.
fn of_tenant(state: &TenantState, leads: bool) -> Option<OfTenant> {
    let data = state.lock();
    let id = data.tenant.clone()?;
    let acts = data.acts(leads);
    let stream = match (data.stream.connected, acts) {
        (true, _) => StreamState::Connected,
        // This replica served it last, or none did: then the leader counts it, so that it is counted once.
        (false, true) => StreamState::Lost,
        (false, false) => StreamState::Elsewhere,
    };
    let total = if acts { count(&data) } else { Total::default() };
    Some(OfTenant { id, namespace: state.namespace.to_string(), stream, total })
}

fn count(data: &TenantData) -> Total {
    let mut total =
        Total { workloads: data.index.workloads(), refused: data.refusals.len(), ..Total::default() };
    if !data.index.synced() {
        // The number of wanted companions isn't known yet, so none can be said to be missing.
        return total;
    }
    for rule in data.rules.keys() {
        total.wanted += data.index.matched(rule);
        let counts = data.read_companions(rule, |companions| companions.counts(rule)).unwrap_or_default();
        total.created += counts.created;
        total.ready += counts.ready;
    }
    total.causes.extend(data.outcomes.causes());
    *total.causes.entry(Cause::LimitReached).or_default() += data.index.left_out();
    *total.causes.entry(Cause::AnnotationsNotSent).or_default() += data.index.undecided();
    total
}

/// Whether a companion may have this cause.
fn is_counted(cause: Cause) -> bool {
    cause.is_reported() && cause != Cause::Unknown
}

fn number(count: impl TryInto<i64>) -> Number {
    let number = Number::default();
    number.set(count.try_into().unwrap_or(i64::MAX));
    number
}

/// Numbers by the values of a label.
fn by<L, N>(
    label: &'static str,
    counts: impl IntoIterator<Item = (L, N)>,
) -> Family<[(&'static str, L); 1], Number>
where
    L: Clone + Eq + Hash + EncodeLabelValue,
    N: TryInto<i64>,
{
    let family = Family::<_, Number>::default();
    for (value, count) in counts {
        family.get_or_create(&[(label, value)]).set(count.try_into().unwrap_or(i64::MAX));
    }
    family
}

impl Collector for Reporter {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let tenants = by(
            "stream",
            [StreamState::Connected, StreamState::Lost, StreamState::Elsewhere].map(|of| (of, 0)),
        );
        let workloads = by("stream", [StreamState::Connected, StreamState::Lost].map(|of| (of, 0)));
        let mut all = Total::default();
        for OfTenant { stream, total, .. } in self.look() {
            tenants.get_or_create(&[("stream", stream)]).inc();
            if stream != StreamState::Elsewhere {
                let count = i64::try_from(total.workloads).unwrap_or(i64::MAX);
                workloads.get_or_create(&[("stream", stream)]).inc_by(count);
            }
            all.wanted += total.wanted;
            all.created += total.created;
            all.ready += total.ready;
            all.refused += total.refused;
            for (cause, count) in total.causes {
                *all.causes.entry(cause).or_default() += count;
            }
        }
        metrics::TENANTS.show(&mut encoder, &tenants)?;
        let (counts, first) = self.levels();
        let levels = counts.into_iter().map(|(level, count)| (level.as_str(), count));
        metrics::TENANTS_BY_LEVEL.show(&mut encoder, &by("level", levels))?;
        metrics::BELOW_ENFORCE.show(&mut encoder, &number(first.unwrap_or_default()))?;
        metrics::WORKLOADS.show(&mut encoder, &workloads)?;
        let mut show = |metric: &Metric, count: Number| metric.show(&mut encoder, &count);
        show(&metrics::COMPANIONS_WANTED, number(all.wanted))?;
        show(&metrics::COMPANIONS_CREATED, number(all.created))?;
        show(&metrics::COMPANIONS_READY, number(all.ready))?;
        show(&metrics::COMPANIONS_REFUSED, number(all.refused))?;
        let counted = Cause::ALL.iter().copied().filter(|cause| is_counted(*cause));
        let causes =
            counted.map(|cause| (cause.as_str(), all.causes.get(&cause).copied().unwrap_or_default()));
        metrics::COMPANIONS_BY_REASON.show(&mut encoder, &by("reason", causes))?;
        let queues = Family::<QueueLabels, Number>::default();
        for (queue, counts) in self.queues() {
            let Counts { ready, delayed, busy } = counts;
            for (state, count) in [(Waits::Ready, ready), (Waits::Delayed, delayed), (Waits::Busy, busy)] {
                let count = i64::try_from(count).unwrap_or(i64::MAX);
                queues.get_or_create(&QueueLabels { queue, state }).set(count);
            }
        }
        metrics::QUEUE.show(&mut encoder, &queues)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use crate::state::TenantStates;
    use crate::state::stream::ObservedClaim;

    fn state_of_a() -> Arc<TenantState> {
        let states = TenantStates::default();
        states.set_tenant("tenant-a", Some(TenantId::new("a").unwrap()));
        states.state("tenant-a")
    }

    #[test]
    fn a_tenant_is_counted_once_whoever_looks() {
        let state = state_of_a();
        let stream = |leads| of_tenant(&state, leads).unwrap().stream;
        let by_leader_and_other = || (stream(true), stream(false));
        assert_eq!(by_leader_and_other(), (StreamState::Lost, StreamState::Elsewhere), "the leader tells");
        let number = fixtures::connect(&state);
        assert_eq!(by_leader_and_other(), (StreamState::Connected, StreamState::Connected));
        state.lock().stream.end(number, jiff::Timestamp::UNIX_EPOCH);
        assert_eq!(by_leader_and_other(), (StreamState::Lost, StreamState::Lost), "this replica's to tell");
        let claim = ObservedClaim { uid: "u", resource_version: 2, claim: 2, holder: "other" };
        state.lock().claim_observed(claim, "me");
        assert_eq!(by_leader_and_other(), (StreamState::Elsewhere, StreamState::Elsewhere));
        assert!(of_tenant(&TenantStates::default().state("other"), true).is_none());
    }

    #[tokio::test]
    async fn tenants_are_counted_by_level_with_the_time_since_when_the_first_is_below_enforce() {
        let context = fixtures::context(outrigger_runtime::fake_api::FakeApi::default().client());
        let reporter = Reporter(context.clone());
        assert_eq!(reporter.levels().1, None);
        for (name, level, since) in
            [("a", None, 0), ("b", Some("Observe"), 20), ("c", Some("Warn"), 10), ("d", Some("Warn"), 30)]
        {
            let status = if level.is_some() { "False" } else { "True" };
            let at = jiff::Timestamp::from_second(since).unwrap().to_string();
            let condition = json!({"type": "Enforced", "status": status, "reason": "x", "message": "", "lastTransitionTime": at});
            let tenant = json!({"apiVersion": "outrigger.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": name},
                "spec": {"enforcement": level}, "status": {"conditions": [condition]}});
            context.caches.registry.tenant(outrigger_api::Change::Applied(fixtures::object(tenant)));
        }
        let (counts, first) = reporter.levels();
        assert_eq!(counts.into_values().collect::<Vec<_>>(), [1, 2, 1]);
        assert_eq!(first, Some(10));
    }

    #[test]
    fn before_a_sync_nothing_is_missing_and_nothing_is_too_many() {
        let state = state_of_a();
        let total = || of_tenant(&state, true).unwrap().total;
        let mut rule = fixtures::rule();
        rule["spec"]["workloadTerms"] = json!([{"matchExpressions": [
            {"key": ".metadata.resourceName", "operator": "In", "values": ["web"]}]}]);
        state.lock().apply_rule(&fixtures::object(rule));
        state.lock().index.update(fixtures::workload("w"));
        assert_eq!((total().workloads, total().wanted), (1, 0));
        state.lock().index.sync(vec![fixtures::workload("w")]);
        assert_eq!((total().workloads, total().wanted), (1, 1));
    }
}
