//! Nobody changes or deletes what others have made, a Lease that is renewed isn't taken, and Events are few.

use std::time::Duration;

use jiff::Timestamp;
use outrigger_core::keys;
use serde_json::Value;

use super::Judge;
use super::wanted::has_no_origin;
use crate::model::Commit;
use crate::world::{TENANTS, World, namespace_of, text};

/// How long a Lease lasts.
const LEASE: Duration = Duration::from_secs(15);

/// How long a DPU is unowned at least while it is handed over.
const SETTLES: Duration = Duration::from_secs(3);

/// So many Events with the same words about an object are too many in [`WHILE`].
const EVENTS: usize = 8;
/// See [`EVENTS`].
const WHILE: Duration = Duration::from_secs(120);

impl Judge {
    /// A write in the infrastructure cluster that may be about what others have made.
    pub(super) fn others_written(&self, world: &World, commit: &Commit) {
        self.event(world, commit);
        if !commit.client.starts_with("manager") {
            return;
        }
        match commit.kind.plural {
            "workloadrules" => self.foreign_rule(world, commit),
            "nodes" => {
                self.foreign_taints(world, commit);
                self.settled(world, commit);
            }
            "leases" if commit.name == keys::MANAGER => self.lease(world, commit),
            _ => {}
        }
    }

    /// A rule that an administrator wrote stays as it is.
    fn foreign_rule(&self, world: &World, commit: &Commit) {
        let Some(old) = commit.old.as_ref().filter(|old| has_no_origin(old)) else { return };
        let same = commit.new.as_ref().is_some_and(|new| {
            new["spec"] == old["spec"]
                && has_no_origin(new)
                && new["metadata"]["deletionTimestamp"] == old["metadata"]["deletionTimestamp"]
        });
        let namespace = commit.namespace.as_deref().unwrap_or_default();
        let tenant = TENANTS.into_iter().find(|(id, _)| namespace == namespace_of(id));
        let excused = {
            let found = self.found.lock();
            found.restored || tenant.is_none_or(|(id, _)| found.reborn.contains(id))
        };
        if !same && !excused {
            let (client, name) = (&commit.client, &commit.name);
            self.violation(
                world,
                format!("{client} changes or deletes the rule {namespace}/{name} of an administrator"),
            );
        }
    }

    /// Taints of others stay.
    fn foreign_taints(&self, world: &World, commit: &Commit) {
        let (Some(old), Some(new)) = (&commit.old, &commit.new) else { return };
        let taints = |node: &Value| node["spec"]["taints"].as_array().cloned().unwrap_or_default();
        let is_ours = |taint: &Value| {
            let key = text(taint, "/key");
            key == keys::TENANT || key == keys::HANDOVER || key.starts_with(keys::MACHINE_GROUP_DOMAIN)
        };
        let now = taints(new);
        if let Some(lost) = taints(old).iter().find(|taint| !is_ours(taint) && !now.contains(taint)) {
            let (client, name) = (&commit.client, &commit.name);
            self.violation(
                world,
                format!("{client} removes the taint {lost} of Node {name}, which isn't Outrigger's"),
            );
        }
    }

    /// A DPU that is handed over stays unowned for a while: until then a replica that is behind may place the former tenant's companions.
    fn settled(&self, world: &World, commit: &Commit) {
        let owner = |node: &Value| node["metadata"]["labels"][keys::NODE_TENANT].as_str().map(str::to_owned);
        let is_unowned = |node: &Value| {
            let mut taints = node["spec"]["taints"].as_array().into_iter().flatten();
            owner(node).is_none() && taints.any(|taint| taint["key"] == keys::HANDOVER)
        };
        let Some(new) = &commit.new else { return };
        let was = commit.old.as_ref().is_some_and(|old| is_unowned(old));
        let (since, restored) = {
            let mut found = self.found.lock();
            if is_unowned(new) && !was {
                found.unowned.insert(commit.name.clone(), commit.time);
            }
            (found.unowned.get(&commit.name).copied(), found.restored)
        };
        let lasted = since.map(|since| commit.time.duration_since(since).unsigned_abs());
        if let Some(lasted) = lasted.filter(|lasted| was && !restored && *lasted < SETTLES)
            && let Some(owner) = owner(new)
        {
            let (client, name) = (&commit.client, &commit.name);
            self.violation(world, format!("{client} gives Node {name} to {owner} after {lasted:?} only"));
        }
    }

    /// A Lease is taken only when it has not been renewed for as long as it lasts.
    fn lease(&self, world: &World, commit: &Commit) {
        let holder = |lease: &Value| text(lease, "/spec/holderIdentity").to_owned();
        let [before, now] = [&commit.old, &commit.new]
            .map(|lease| lease.as_ref().map(|lease| holder(lease)).unwrap_or_default());
        let (renewed, restored) = {
            let mut found = self.found.lock();
            (found.renewed.replace(commit.time), found.restored)
        };
        let lived = renewed.map(|renewed| commit.time.duration_since(renewed).unsigned_abs());
        let taken = !before.is_empty() && !now.is_empty() && before != now;
        if let Some(lived) = lived.filter(|lived| taken && !restored && *lived < LEASE) {
            self.violation(
                world,
                format!("{} takes the Lease {lived:?} after it was renewed", commit.client),
            );
        }
    }

    /// The same Event doesn't come again and again, be it as another object or as one more of its series.
    pub(super) fn event(&self, world: &World, commit: &Commit) {
        let Some(event) = commit.new.as_ref().filter(|_| commit.kind.plural == "events") else { return };
        let about =
            [text(event, "/regarding/name"), text(event, "/reason"), text(event, "/note")].map(str::to_owned);
        let times: usize = {
            let mut found = self.found.lock();
            let times: &mut Vec<Timestamp> =
                found.events.entry((commit.client.clone(), about.clone())).or_default();
            times.retain(|time| commit.time.duration_since(*time).unsigned_abs() < WHILE);
            times.push(commit.time);
            times.len()
        };
        if times == EVENTS {
            self.violation(world, format!("{} tells {about:?} {times} times in {WHILE:?}", commit.client));
        }
    }
}
