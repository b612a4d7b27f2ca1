//! One Pod, with what the manager reported of it.

use std::sync::Arc;
use std::time::Duration;

use outrigger_core::ids::{RuleName, WorkloadId};
use outrigger_core::reason::Cause;
use outrigger_core::rule::Rule;
use outrigger_core::workload::Workload;
use outrigger_core::{fault, keys};
use outrigger_runtime::bucket::Bucket;
use outrigger_runtime::pod::Pod;
use tokio::time::Instant;

use super::start::ClaimName;
use super::{Link, NewCondition, SILENCE, Write};
use crate::binding::Allocation;
use crate::companions::decide::{Conditions, Knowledge};
use crate::companions::received::{Companions, Rules};
use crate::conditions::Condition;
use crate::paced::Pace;
use crate::pod::{is_gated, workload};

/// A Pod.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) has: Conditions,
    /// What rules read of a Pod that waits for its companions; `None` if it neither has the readiness gate nor waits to start.
    pub(super) workload: Option<Box<Workload>>,
    /// It has the readiness gate.
    pub(super) gated: bool,
    /// The claim by which it waits to start, as soon as the claim has a name.
    pub(super) claim: Option<ClaimName>,
    /// It is bound to a Node.
    bound: bool,
    /// The allocation of its claim, if the scheduler binds it when the claim says so.
    pub(super) allocation: Option<Allocation>,
    /// When its claim may be written.
    pub(super) bind_pace: Pace,
    pub(super) deleted: bool,
    /// Since when the agent has known it, on the Node that it is on.
    pub(super) seen: Instant,
    /// Since when its present state has been sent to the manager; `None` while it hasn't. Until then silence says nothing about it.
    pub(super) sent: Option<Instant>,
    /// It has been on another Node before: its claim was allocated there.
    moved: bool,
    /// How much it counts, if that is too much to be sent whole.
    pub(super) too_large: Option<usize>,
    /// What was received of it on the stream with this number.
    pub(super) received: Option<(u64, Companions)>,
    /// Since when one of its companions isn't ready.
    pub(super) wrong: Option<Instant>,
    /// When its conditions may be written.
    pub(super) pace: Pace,
    pub(super) events: Option<Bucket>,
}

impl Known {
    /// A Pod that was received now.
    pub(super) fn new(pod: &Pod, seen: Instant) -> Self {
        let (claim, gated) = (ClaimName::of(pod), is_gated(pod));
        let waits = gated || claim.is_some();
        let workload = if waits { workload(pod.clone()).map(Box::new) } else { None };
        Self {
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            name: pod.metadata.name.clone().unwrap_or_default(),
            has: Conditions::of(pod),
            bound: workload.as_ref().is_some_and(|workload| workload.node_name.is_some()),
            workload,
            gated,
            claim,
            allocation: None,
            bind_pace: Pace::default(),
            deleted: pod.metadata.deletion_timestamp.is_some(),
            seen,
            sent: Some(seen),
            moved: false,
            too_large: None,
            received: None,
            wrong: None,
            pace: Pace::default(),
            events: None,
        }
    }

    /// Takes in a later state of the Pod. Returns whether something has changed that concerns its companions.
    pub(super) fn update(&mut self, later: Self) -> bool {
        let Self { has, mut workload, gated, claim, deleted, bound, seen, .. } = later;
        if let (Some(workload), Some(allocation), false) = (&mut workload, &self.allocation, bound) {
            workload.node_name = Some(allocation.node.clone());
        }
        let same = self.has == has && self.deleted == deleted && self.workload == workload;
        if same && self.gated == gated && self.claim == claim && self.bound == bound {
            return false;
        }
        let before = self.place();
        (self.has, self.deleted, self.workload, self.gated, self.claim, self.bound) =
            (has, deleted, workload, gated, claim, bound);
        self.placed(before.as_deref(), seen);
        true
    }

    /// Takes in where its claim is allocated. A Pod that is bound has the Node that it is bound to.
    pub(super) fn allocate(&mut self, allocation: Option<Allocation>, now: Instant) {
        let same = |before: &Allocation| allocation.as_ref().is_some_and(|now| now.is_same(before));
        if !self.allocation.as_ref().is_some_and(same) {
            // Failures were those of another one.
            self.bind_pace.renew();
        }
        self.allocation = allocation;
        let before = self.place();
        if let (Some(workload), false) = (&mut self.workload, self.bound) {
            workload.node_name = self.allocation.as_ref().map(|allocation| allocation.node.clone());
        }
        self.placed(before.as_deref(), now);
    }

    /// Returns the Node that the manager creates its companions for: as the agent sends it.
    fn place(&self) -> Option<String> {
        self.workload.as_deref()?.node_name.clone()
    }

    /// Compares its Node with the one before. What the manager says of it, or that it says nothing, is about the former one for a while.
    fn placed(&mut self, before: Option<&str>, now: Instant) {
        let node = self.workload.as_deref().and_then(|workload| workload.node_name.as_deref());
        if node != before {
            self.seen = now;
            self.moved |= before.is_some();
        }
    }

    /// Returns the Node that it is bound to.
    pub(super) fn node(&self) -> Option<&str> {
        self.workload.as_deref().filter(|_| self.bound)?.node_name.as_deref()
    }

    /// Returns what is wrong with the worst of its companions, as far as the manager has reported it.
    pub(super) fn reason(&self) -> Option<Cause> {
        self.received.as_ref()?.1.all.worst.as_ref().map(|worst| worst.reason)
    }

    /// Reports whether its companions were last received on an earlier stream.
    pub(super) fn reported_before(&self, stream: u64) -> bool {
        self.received.as_ref().is_some_and(|(of, _)| *of != stream)
    }

    /// Returns a rule that matches it, of whose companion the manager has said nothing.
    pub(super) fn awaited<'a>(&self, ordered: &'a [Arc<Rule>]) -> Option<&'a RuleName> {
        self.unreported(ordered.iter(), |companions| &companions.rules)
    }

    /// As [`Self::awaited`], of the rules by which it doesn't start before its companion.
    pub(super) fn awaited_to_start<'a>(&self, ordered: &'a [Arc<Rule>]) -> Option<&'a RuleName> {
        let holding = ordered.iter().filter(|rule| rule.ordering().holds());
        self.unreported(holding, |companions| &companions.start_rules)
    }

    fn unreported<'a>(
        &self,
        mut rules: impl Iterator<Item = &'a Arc<Rule>>,
        of: impl Fn(&Companions) -> &Rules,
    ) -> Option<&'a RuleName> {
        let workload = self.workload.as_deref()?;
        let reported = |name: &RuleName| {
            self.received.as_ref().is_some_and(|(_, companions)| of(companions).contains(name))
        };
        rules.find(|rule| rule.matches(workload) && !reported(rule.name())).map(|rule| rule.name())
    }

    /// Returns what is known of its companions, and when that will have lasted long enough.
    pub(super) fn knowledge(
        &self,
        link: Link,
        stream: u64,
        after: Duration,
        now: Instant,
    ) -> (Knowledge<'_>, Option<Instant>) {
        if let Some(size) = self.too_large {
            return (Knowledge::TooLarge(size), None);
        }
        let (since, complete) = match link {
            Link::Unsupported => return (Knowledge::Unsupported, None),
            Link::Down(since) => (since, None),
            Link::Open { since, complete } => (since, complete),
        };
        let open = matches!(link, Link::Open { .. });
        let silent = complete.and_then(|at| {
            let sent =
                self.sent.or_else(|| fault("unsent-pod-is-passed-over-in-silence").then_some(self.seen))?;
            Some(at.max(self.seen).max(sent) + SILENCE)
        });
        let received = self
            .received
            .as_ref()
            .filter(|(of, _)| *of == stream && open || fault("what-was-received-before-is-believed"));
        match received.and_then(|(_, companions)| self.heard(companions)) {
            Some(Knowledge::Reported(companions)) => {
                (Knowledge::Reported(companions), self.wrong.map(|since| since + after))
            }
            Some(other) => (other, None),
            _ if silent.is_some_and(|at| at <= now || fault("silence-means-nothing-at-once")) => {
                (Knowledge::Absent, None)
            }
            _ if complete.is_some() => (Knowledge::Unheard, silent),
            // Only a Pod with the gate has to say so.
            _ => (Knowledge::Unreachable, self.gated.then_some(since.max(self.seen) + after)),
        }
    }

    /// Returns what the manager's last report says of the Pod as it is now, with its Node and its labels. `None` if it says nothing.
    fn heard<'a>(&self, companions: &'a Companions) -> Option<Knowledge<'a>> {
        // A Pod that doesn't wait is only informed.
        let Some(workload) = self.workload.as_deref() else { return Some(Knowledge::Reported(companions)) };
        match companions.is_on(workload.node_name.as_deref()) {
            // Other rules may match the present labels. The manager says once that no rule matches any longer, and nothing more if
            // none matches these either.
            Some(true) if !companions.is_current(workload) => {
                (companions.all.total > 0).then_some(Knowledge::Unheard)
            }
            Some(true) => Some(Knowledge::Reported(companions)),
            // The manager says once that no rule matches any longer, and nothing more if none matches on this Node either.
            Some(false) if companions.all.total == 0 => None,
            Some(false) if fault("what-was-received-of-another-node-is-believed") => {
                Some(Knowledge::Reported(companions))
            }
            Some(false) => Some(Knowledge::Elsewhere),
            // It may be about the companion for the former Node, and nothing says when it no longer is.
            None if self.moved => Some(Knowledge::Unsupported),
            None => Some(Knowledge::Reported(companions)),
        }
    }

    /// Returns the condition that an Event reports: one with another status or reason.
    pub(super) fn news(&self, new: &Conditions) -> Option<Condition> {
        let pairs = [(&new.information, &self.has.information), (&new.gate, &self.has.gate)];
        let differs = |new: &Condition, has: &Option<Condition>| {
            has.as_ref().is_none_or(|has| (has.status, &has.reason) != (new.status, &new.reason))
        };
        pairs.into_iter().find_map(|(new, has)| new.as_ref().filter(|new| differs(new, has))).cloned()
    }

    pub(super) fn write(&self, id: &WorkloadId, new: Conditions, event: Option<Condition>) -> Write {
        let kinds = [
            (keys::COMPANIONS_CONDITION, new.information, &self.has.information),
            (keys::COMPANIONS_GATE, new.gate, &self.has.gate),
        ];
        let conditions = kinds.into_iter().filter_map(|(kind, new, has)| {
            let condition = new?;
            let transition = has.as_ref().is_none_or(|has| has.status != condition.status);
            Some(NewCondition { kind, condition, transition })
        });
        Write {
            id: id.clone(),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            conditions: conditions.collect(),
            event,
        }
    }
}
