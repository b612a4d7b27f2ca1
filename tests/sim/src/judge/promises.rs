//! Which invariant holds each promise of the documentation, and which promises have none here.
//!
//! A promise is quoted from its page, so it can't be another one unnoticed. An invariant is a function of the judge.

/// Who holds a promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// These functions of the judge.
    By(&'static [&'static str]),
    /// Nothing here, for this reason.
    Not(&'static str),
}

use Held::{By, Not};

/// A promise of a page.
pub type Promise = (&'static str, &'static str, Held);

/// That nothing is missing at rest.
const REST: &str = "missing";

/// All promises: the page, words of it, and who holds it.
pub const PROMISES: &[Promise] = &[
    ("reliability", "each call ends within 30 s and is retried by its queue", By(&[REST])),
    ("reliability", "all work continues within 40 s of its return", By(&[REST])),
    (
        "reliability",
        "silence is detected within 75 s; nothing is duplicated, lost or deleted",
        By(&["created", "deleted", REST]),
    ),
    (
        "reliability",
        "nothing is deleted because a cache lacks an object of another kind",
        By(&["deleted", "devices_written"]),
    ),
    (
        "reliability",
        "no cache goes back to an earlier state, and no companion that is wanted is deleted or created twice",
        By(&["newer", "created", "deleted"]),
    ),
    (
        "reliability",
        "the newest state of each object wins, and no object reappears after its deletion was seen",
        By(&["newer", REST]),
    ),
    (
        "reliability",
        "at no moment are there two companions for one workload and rule, is a Pod on another tenant's DPU, is a slot assigned twice",
        By(&["created", "isolated", "machine_written"]),
    ),
    ("reliability", "streams and rules continue within half a minute of its return", By(&[REST])),
    (
        "reliability",
        "its agent is served immediately, and no data of the former one is acted on",
        By(&["tenants_missing", "left_of_tenants"]),
    ),
    (
        "reliability",
        "it doesn't acquire a Lease that is being renewed, and assigns no slot twice",
        By(&["lease", "machine_written"]),
    ),
    (
        "reliability",
        "no companion is created twice, lost, or deleted for absence",
        By(&["created", "deleted", REST]),
    ),
    (
        "reliability",
        "no Pod starts before its companion is Ready, each has one companion, and all start",
        By(&["waited", "created", "orders_missing"]),
    ),
    (
        "reliability",
        "of the workloads of one owner no more than `maxUnavailable` are without their companion at a time",
        By(&["counted"]),
    ),
    ("reliability", "and PodDisruptionBudgets are respected", By(&["budgeted"])),
    (
        "reliability",
        "admin rules wait for that until a deadline",
        Not("the deadline of an hour is longer than a round"),
    ),
    ("reliability", "| an agent restarts | nothing is written |", By(&["count", REST])),
    ("reliability", "changes of that time arrive", By(&[REST])),
    ("reliability", "and companions of remaining workloads are kept", By(&["deleted"])),
    (
        "reliability",
        "Pods of tenants are admitted, rules are synchronized, one manager leads, and each workload, also a new one, has one companion, none created again",
        Not("control planes of real processes start in no history"),
    ),
    ("reliability", "no Pod of a tenant is admitted without it", By(&["isolated", "created"])),
    (
        "reliability",
        "no request fails, and no companion is lost or created twice",
        Not("histories have no clients that count their requests"),
    ),
    (
        "reliability",
        "everything is listed again; nothing is duplicated or deleted",
        By(&["created", "deleted", REST]),
    ),
    (
        "reliability",
        "writes fail, nothing is deleted, and all work continues",
        Not("the model's storage is never full"),
    ),
    ("reliability", "everything is brought up to date [without a restart]", By(&[REST])),
    (
        "reliability",
        "the process serves, works and exits as always; lines are lost and counted",
        Not("processes here have no log files"),
    ),
    (
        "reliability",
        "open streams end within `--tls-reload-interval` (5 s) of the new file",
        Not("connections here have no TLS"),
    ),
    ("reliability", "another one leads before it has exited", By(&["tenants_missing", REST])),
    ("reliability", "when it resumes, it doesn't lead and writes nothing", By(&["lease", "count"])),
    (
        "reliability",
        "memory, open files, threads, tasks and queued keys of agent, managers and webhooks are as they were",
        Not("all processes here are one"),
    ),
    ("reliability", "the one with the latest claim writes", By(&["beside_the_holder", "deleted", "created"])),
    ("reliability", "the leader writes that the tenant's agent isn't connected", By(&["tenants_missing"])),
    (
        "ordering",
        "The workload runs, but it isn't Ready before its companion is",
        By(&["waited", "orders_missing"]),
    ),
    ("ordering", "None of the workload's containers starts before its companion is Ready", By(&["waited"])),
    ("ordering", "the workload isn't bound to its Node before", By(&["waited"])),
    (
        "ordering",
        "| the manager can't be reached, or the agent has just started | the Pod doesn't start",
        By(&["reaches_manager"]),
    ),
    (
        "ordering",
        "| the host reboots | the kubelet asks again, and the Pod waits again |",
        By(&["waited", "orders_missing"]),
    ),
    (
        "ordering",
        "then wait for companions of admin rules with `BeforeReady`, and for those of rules that are created later",
        By(&["waited_for_platform"]),
    ),
    (
        "ordering",
        "a companion\n   that is Ready on the DPU of the Node that the scheduler chose before binds nothing",
        By(&["waited"]),
    ),
    (
        "ordering",
        "a rule for one\nnode gives the gate to Pods that are scheduled to other nodes later",
        By(&["passed_gate"]),
    ),
    ("ordering", "because a Pod that no companion is\nmeant for doesn't wait", By(&["orders_missing"])),
    ("ordering", "The agent answers for Pods of this Node only", By(&["started_elsewhere"])),
    (
        "ordering",
        "A companion that is replaced closes the gate of its workload",
        By(&["left_open", "orders_missing"]),
    ),
    (
        "ordering",
        "rules with an ordering other than\n`Parallel` replace 10% of their companions at a time by default",
        By(&["counted"]),
    ),
    (
        "ordering",
        "the manager says nothing of the companion of a rule of this cluster | the Pod doesn't start",
        By(&["waited"]),
    ),
    ("ordering", "The agent withdraws the devices of the host", By(&["orders_missing", "slices_missing"])),
    ("ordering", "The scheduler gives the allocation up and begins again", By(&["waited", "orders_missing"])),
    (
        "ordering",
        "Its Pods are then\nsent by entries of the configuration with `failurePolicy: Fail`",
        Not("no namespace of a history has that label"),
    ),
    (
        "ordering",
        "gives the gate to all new Pods of the namespace",
        Not("no namespace of a history has that label"),
    ),
    (
        "ordering",
        "With `spec.lingerSeconds` (0 to 3600, 0 by default) the companion outlives its workload by that time",
        By(&["lingered", REST]),
    ),
    ("ordering", "Only a companion that has been ready gets it", By(&["outlives"])),
    ("ordering", "the record is removed, and the companion stays", By(&[REST])),
    ("rules", "Terms are ORed, expressions in a term ANDed", By(&["was_possible", REST])),
    (
        "rules",
        "the agent doesn't change those, and a rule of the same name in the tenant's cluster gets the reason\n`NameTaken`",
        By(&["foreign_rule", REST]),
    ),
    (
        "rules",
        "makes nothing and deletes nothing: a companion that exists stays as it is",
        Not("rules of the infrastructure cluster read no annotations here"),
    ),
    ("rules", "Facts follow the workload", By(&["facts_missing"])),
    (
        "rules",
        "a DPU whose label `provisioning.dpu.nvidia.com/dpunode-name` is the workload's node",
        By(&["facts_missing"]),
    ),
    ("rules", "become required node affinity in every term of the template's own affinity", By(&["created"])),
    ("rules", "it runs on no other one", By(&["placed"])),
    ("rules", "A companion that runs stays if the label is removed", By(&["deleted"])),
    (
        "rules",
        "With `SameNodeAll` a workload has one companion on each DPU of its host",
        By(&["created", REST]),
    ),
    ("rules", "names the DPU's Node, and it\nruns on no other one", By(&["placed"])),
    (
        "rules",
        "DPUs that another tenant has, or that are being handed over, don't count",
        By(&["on_its_dpu", "isolated", REST]),
    ),
    ("rules", "A DPU that is added to the host gets a companion", By(&[REST])),
    ("rules", "loses its companion. One that is cordoned or not ready keeps it", By(&["deleted", REST])),
    (
        "rules",
        "until the companions on all DPUs that the host has are ready, and there is at least one",
        By(&["waited", "waited_for_platform", "left_open", "orders_missing"]),
    ),
    ("rules", "quotas and `maxUnavailable` count each companion", By(&["counted"])),
    ("rules", "in the status in the infrastructure cluster", By(&["counts_missing"])),
    (
        "rules",
        "A rule can't be changed to or from `SameNodeAll`",
        Not("API servers here have no CEL rules of CRDs"),
    ),
    ("rules", "running companions stay as they are, and the manager retries", By(&["untried", REST])),
    (
        "rules",
        "running companions are resized instead of being replaced",
        By(&["deleted", "amounts_missing", "newer"]),
    ),
    (
        "rules",
        "counts a companion as down for `maxUnavailable`, owners and PodDisruptionBudgets while it is resized",
        By(&["counted", "budgeted"]),
    ),
    (
        "rules",
        "A companion is replaced, within `maxUnavailable`, where it can't be resized",
        By(&["counted", "amounts_missing"]),
    ),
    (
        "rules",
        "the companion serves with what it has, is never replaced for that, and gets its amounts",
        By(&["deleted", "amounts_missing"]),
    ),
    (
        "rules",
        "gets no companion before they\nare removed, and takes no room of the workloads that have companions",
        By(&["was_possible", REST]),
    ),
    ("rules", "`gatedWorkloads: Serve` gives it one at once, with `Any` only", By(&["was_possible", REST])),
    (
        "rules",
        "in these fields alone, or in them and in [cpu and memory](#more-cpu-or-memory), is\nchanged instead",
        By(&["replaced_for_an_image"]),
    ),
    ("rules", "a manager that was\nreplaced can't take an image back", By(&["updated", "newer"])),
    (
        "rules",
        "until the kubelet runs another container, and until the companion is ready\nagain, it counts as down",
        By(&["counted", "budgeted"]),
    ),
    (
        "rules",
        "the rule's Ready condition is False with the reason `ResizeDeferred`",
        Not("the judge doesn't read conditions of rules"),
    ),
    (
        "rules",
        "`maxUnavailable` is the maximum number of companions of the rule that are down at the same time",
        By(&["counted"]),
    ),
    (
        "rules",
        "So the rollout of a template that the API server accepts and that never becomes ready stops there",
        By(&[REST]),
    ),
    ("rules", "Selectors and facts don't restart anything", By(&["deleted", "facts_missing"])),
    ("rules", "its deletion completes when it is deleted from\nthe infrastructure cluster", By(&[REST])),
    ("rules", "once for each new\nmessage", By(&["event"])),
    ("rules", "when the rule no longer selects that tenant", By(&[REST])),
    (
        "rules",
        "`matched`, `created`, `ready` and `updated` count workloads that match",
        Not("the judge doesn't read the numbers of statuses"),
    ),
    ("tenants", "stays unassigned for three seconds", By(&["settled"])),
    ("tenants", "then runs on the DPU whose label says", By(&["hosted", "placed", "facts_missing"])),
    ("tenants", "A host with an entry doesn't count for the Node of its own name", By(&["hosted", REST])),
    ("tenants", "Two tenants may have Nodes of one name", By(&["hosted", "slices_missing"])),
    (
        "tenants",
        "A change of an entry deletes the companions of workloads whose Node is in another host now, and creates them there",
        By(&[REST, "facts_missing"]),
    ),
    ("tenants", "Rules, facts, conditions of Pods and Nodes", By(&["facts_missing", "slices_missing"])),
    ("tenants", "At no point do both tenants have Pods there", By(&["isolated"])),
    ("devices", "The devices are those of the companion's Node", By(&["devices_missing"])),
    ("devices", "If somebody deletes one, the manager creates it again", By(&["devices_missing"])),
    ("devices", "deleted with the last companion that names it", By(&["devices_written", "devices_missing"])),
    ("liqo", "so that the label is removed before the object", By(&["offloading_written"])),
    ("liqo", "The manager sets the labels and writes the status", By(&["offloadings_missing"])),
    (
        "machines",
        "Reservation Pods hold free slots; a guest Pod replaces one of them",
        By(&["slots_missing"]),
    ),
    ("machines", "The Machine owns all of them, and they are deleted with it", By(&["slots_missing"])),
    ("machines", "doesn't change labels and taints of\nother owners", By(&["foreign_taints"])),
    ("machines", "Admission refuses a node in two groups", Not("there is one group")),
    (
        "machines",
        "A reservation that the\nscheduler has found no node for in 15 s is left out",
        Not("nodes here have room for all slots"),
    ),
    (
        "machines",
        "no reservation starts in its place before it is gone",
        Not("guests are gone within half a second of their end"),
    ),
    (
        "grpc",
        "Agent and manager may be one minor version apart, in either direction",
        By(&["created", "deleted", "newer", REST]),
    ),
    (
        "grpc",
        "A peer that doesn't send them is served as before; a peer that doesn't know them ignores them",
        By(&[REST, "devices_missing"]),
    ),
    ("grpc", "if it doesn't exist, the agent uses `WorkloadStream`", By(&[REST])),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    /// The code of the judge without this file, which names its functions.
    fn judge() -> String {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut judge = std::fs::read_to_string(root.join("src/judge.rs")).unwrap();
        for entry in std::fs::read_dir(root.join("src/judge")).unwrap() {
            let path = entry.unwrap().path();
            if !path.ends_with("promises.rs") {
                judge += &std::fs::read_to_string(path).unwrap();
            }
        }
        judge
    }

    /// The invariants in code: methods that say what is violated, or return what is missing at rest.
    fn invariants(code: &str) -> BTreeSet<&str> {
        let methods = code.split("\n    }\n").filter_map(|part| {
            let at = ["\n    fn ", "\n    pub fn ", "\n    pub(super) fn "]
                .iter()
                .filter_map(|begin| part.rfind(begin))
                .max()?;
            let method = part.get(at..)?.split_once(" fn ")?.1;
            Some((method.split(['(', '<']).next()?, method.split_whitespace().collect::<String>()))
        });
        let says = |text: &str| {
            let is_called =
                ["self.violation(world", "self.violation(&world"].iter().any(|call| text.contains(call));
            is_called || text.contains("->Vec<String>")
        };
        let invariants = methods.filter(|(name, text)| *name != "violations" && says(text));
        invariants.map(|(name, _)| name).collect()
    }

    #[test]
    fn promises_are_those_of_the_pages_and_each_invariant_of_the_judge_holds_one() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        let (judge, mut named) = (judge(), BTreeSet::new());
        for (page, promise, held) in PROMISES {
            let text = std::fs::read_to_string(docs.join(format!("{page}.md"))).unwrap();
            assert!(text.contains(promise), "{page}: {promise}");
            match held {
                By(invariants) => named.extend(*invariants),
                Not(why) => assert!(!why.is_empty(), "{promise}"),
            }
        }
        assert_eq!(named, invariants(&judge));
    }
}
