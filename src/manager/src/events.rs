//! Events on rules, tenants, Machines and NamespaceOffloadings.
//!
//! Each Event is a write of the infrastructure cluster's etcd, and tenants cause most of them. So there are buckets: one for each
//! tenant or object of the platform, and one for all of a source. Sources share none: tenants whose rules cause Events without end take none from
//! Machines. An Event beyond the buckets is left out, because the object's status has the same information.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Resource, ResourceExt};
use outrigger_api::{NamespaceOffloading, Tenant};
use outrigger_core::map::HashMap;
use outrigger_core::reason::Cause;
use outrigger_core::{companion, keys};
use outrigger_runtime::bucket::{Bucket, Rate};
use outrigger_runtime::environment::Clock;
use outrigger_runtime::events;
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::debug;

use crate::state::RuleId;
use crate::sweep::Sweep;

/// Events that one tenant causes, or one object of the platform.
const ONE: Rate = Rate { burst: 100.0, minute: 10.0 };
/// Events of one source at this replica.
const ALL: Rate = Rate { burst: 1000.0, minute: 120.0 };

pub(crate) struct Events {
    events: events::Events,
    clock: Clock,
    buckets: Mutex<Buckets>,
}

/// What causes an Event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Source {
    /// What a tenant writes: rules and NamespaceOffloadings, by the tenant's namespace.
    Written,
    /// A tenant's connection, by the Tenant's name.
    Tenant,
    /// A Machine, by its name.
    Machine,
}

/// What is left of each source's Events.
struct Buckets {
    /// For all of a source.
    all: HashMap<Source, Bucket>,
    each: HashMap<(Source, String), Bucket>,
    sweep: Sweep,
}

impl Buckets {
    fn new(now: Instant) -> Self {
        let full = |source| (source, Bucket::new(now));
        let all = [Source::Written, Source::Tenant, Source::Machine].into_iter().map(full).collect();
        Self { all, each: HashMap::default(), sweep: Sweep::default() }
    }

    fn take(&mut self, source: Source, who: &str, now: Instant) -> bool {
        // Full ones say nothing.
        self.sweep.before_new(&mut self.each, |bucket| !bucket.is_full(now));
        let each = self.each.entry((source, who.to_owned())).or_insert_with(|| Bucket::new(now));
        // What one has used up takes nothing from the others.
        each.take(ONE, now) && self.all.get_mut(&source).is_some_and(|all| all.take(ALL, now))
    }
}

impl Events {
    pub(crate) fn new(client: kube::Client, instance: String, clock: Clock) -> Self {
        let events = events::Events::new(client, keys::MANAGER, Some(instance));
        Self { events, clock, buckets: Mutex::new(Buckets::new(clock.now())) }
    }

    /// `who`: what [`Source`] says of it.
    async fn publish(
        &self,
        (source, who): (Source, &str),
        warning: bool,
        (reason, action): (&str, &str),
        message: &str,
        about: &ObjectReference,
    ) {
        if self.buckets.lock().take(source, who, self.clock.now()) {
            self.events.publish(warning, reason, action, message, about).await;
        } else {
            debug!(of = who, reason, "left out an event: there were too many");
        }
    }

    /// Companions of a rule can't be made, for the tenant of a namespace.
    pub(crate) async fn companion_refused(&self, tenant: &str, rule: &RuleId, uid: &str, message: &str) {
        const WORDS: (&str, &str) = ("CompanionRefused", "CreateCompanion");
        self.publish((Source::Written, tenant), true, WORDS, message, &reference(rule, uid)).await;
    }

    /// A problem of a rule that its author has to solve, for the tenant of a namespace.
    pub(crate) async fn rule(&self, tenant: &str, rule: &RuleId, uid: &str, reason: &str, message: &str) {
        self.publish(
            (Source::Written, tenant),
            true,
            (reason, "ReconcileRule"),
            message,
            &reference(rule, uid),
        )
        .await;
    }

    /// A tenant's Ready condition has another reason than before.
    pub(crate) async fn tenant(&self, tenant: &Tenant, good: bool, reason: &str, message: &str) {
        let (name, about) = (tenant.name_any(), tenant.object_ref(&()));
        let passes = good || reason.parse().is_ok_and(Cause::is_progress);
        self.publish((Source::Tenant, &name), !passes, (reason, "ReconcileTenant"), message, &about).await;
    }

    /// A problem of a Machine or its pool that an administrator has to solve.
    pub(crate) async fn machine(&self, about: &ObjectReference, cause: Cause, message: &str) {
        let who = (Source::Machine, about.name.as_deref().unwrap_or_default());
        self.publish(who, true, (cause.as_str(), "ReconcileMachine"), message, about).await;
    }

    /// A NamespaceOffloading can't do what it asks for.
    pub(crate) async fn offloading(&self, object: &NamespaceOffloading, cause: Cause, message: &str) {
        let (who, about) = (object.namespace().unwrap_or_default(), object.object_ref(&()));
        let words = (cause.as_str(), "ReconcileNamespaceOffloading");
        self.publish((Source::Written, &who), true, words, message, &about).await;
    }
}

fn reference(rule: &RuleId, uid: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some(format!("{}/v1alpha1", keys::WORKLOAD_GROUP)),
        kind: Some(companion::kind(rule.name.scope()).to_owned()),
        name: Some(rule.name.to_string()),
        namespace: Some(rule.namespace.to_string()),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// How many of so many Events about what a tenant has written there are.
    fn taken(buckets: &mut Buckets, who: &str, count: usize, now: Instant) -> usize {
        (0..count).filter(|_| buckets.take(Source::Written, who, now)).count()
    }

    #[test]
    fn a_tenant_that_causes_events_without_end_leaves_others_theirs() {
        let begin = Instant::now();
        let mut buckets = Buckets::new(begin);
        assert_eq!(taken(&mut buckets, "loud", 10_000, begin), 100);
        assert_eq!(taken(&mut buckets, "quiet", 3, begin), 3);
        let later = begin + Duration::from_secs(120);
        assert_eq!(taken(&mut buckets, "loud", 10_000, later), 20);
    }

    #[test]
    fn tenants_together_cause_no_more_than_all_may() {
        let begin = Instant::now();
        let mut buckets = Buckets::new(begin);
        let all: usize = (0..100).map(|i| taken(&mut buckets, &i.to_string(), 200, begin)).sum();
        assert_eq!(all, 1000);
        // A Machine has its own, and a Tenant that has the name of a loud one's namespace too.
        assert!(buckets.take(Source::Machine, "node-1", begin) && buckets.take(Source::Tenant, "1", begin));
        let later = begin + Duration::from_secs(60);
        assert_eq!((0..100).map(|i| taken(&mut buckets, &i.to_string(), 200, later)).sum::<usize>(), 120);
        // Buckets that nobody uses any longer are dropped.
        let much_later = begin + Duration::from_secs(3600);
        for i in 0..1000 {
            taken(&mut buckets, &format!("new{i}"), 1, much_later + Duration::from_secs(60) * i);
        }
        assert!(buckets.each.len() < 200, "{}", buckets.each.len());
    }
}
