//! The list of faults: what would be easy to get wrong, by the code of each crate. A switch of the product has the name of each
//! ([`outrigger_core::fault`]); a test compares both.

/// A fault that can be put back.
#[derive(Debug, Clone, Copy)]
pub struct Fault {
    /// The name of its switch.
    pub name: &'static str,
    /// The crate whose code has the switch.
    pub part: &'static str,
    /// What the product does with it, in a sentence.
    pub what: &'static str,
    /// Why 300 histories don't find it; empty for one that they find.
    pub unseen: &'static str,
}

impl Fault {
    const fn unseen(self, unseen: &'static str) -> Self {
        Self { unseen, ..self }
    }
}

const fn fault(name: &'static str, part: &'static str, what: &'static str) -> Fault {
    Fault { name, part, what, unseen: "" }
}

/// All faults.
pub const FAULTS: &[Fault] = &[
    fault(
        "share-is-rounded-up",
        "core",
        "A share of `maxUnavailable` is rounded up: of five companions, 25% are two.",
    ),
    fault(
        "end-in-the-future-is-due",
        "core",
        "A recorded end of a workload that is in the future counts as long ago, where the clock of another manager was ahead.",
    ),
    fault(
        "never-ready-companion-lingers",
        "core",
        "A companion that has never been ready outlives its workload.",
    ),
    fault(
        "record-of-the-end-stays",
        "core",
        "The record of a workload's end stays when the workload is there again.",
    ),
    fault("devices-are-no-part-of-a-template", "core", "Other device claims of a rule replace no companion."),
    fault(
        "companion-stays-on-the-former-host",
        "core",
        "A companion isn't replaced when its workload has moved to another host.",
    ),
    fault("gated-workload-is-served", "core", "A workload with scheduling gates has companions of every rule."),
    fault(
        "restarting-companion-serves",
        "core",
        "A companion whose image was changed in place counts as up before its kubelet has restarted the container.",
    ),
    fault(
        "later-image-is-overwritten",
        "core",
        "An image is changed in place whatever state the companion has by then.",
    )
    .unseen(
        "The judge excuses an image that goes back where the manager didn't know the later one when it sent the change. Only then can the companion have got a later image in between.",
    ),
    fault("failed-companion-stays", "core", "A companion that has failed isn't replaced."),
    fault(
        "fact-that-is-gone-stays",
        "core",
        "A fact that the rule no longer injects, or the workload no longer has, stays on the companion.",
    ),
    fault("changed-fact-stays", "core", "A fact that has changed isn't written over the former one."),
    fault("sync-forgets-no-workload", "core", "Workloads that a sync doesn't name stay."),
    fault("relabelled-workload-still-matches", "core", "A workload that matches no longer keeps its match."),
    fault(
        "only-the-first-term-counts",
        "core",
        "Of several terms of a rule only the first is compared with a workload that comes or changes.",
    ),
    fault(
        "only-the-first-value-counts",
        "core",
        "Of several values of `In` a workload is found by the first only.",
    ),
    fault("an-empty-value-does-not-exist", "core", "`Exists` fails for a label with an empty value."),
    fault(
        "dpu-settles-for-no-time",
        "core",
        "A DPU is given to its next tenant as soon as it is empty once.",
    ),
    fault(
        "only-one-term-is-isolated",
        "core",
        "The tenant's label is required in one term of the node affinity only; terms are ORed.",
    ),
    fault(
        "any-dpu-of-the-host-is-primary",
        "core",
        "With `SameNodePrimary` a companion may run on each DPU of its workload's host, as with `SameNode`.",
    ),
    fault(
        "primary-dpu-is-of-any-host",
        "core",
        "With `SameNodePrimary` a companion may run on the primary DPU of each of the tenant's hosts.",
    ),
    fault(
        "companion-runs-on-any-dpu-of-its-host",
        "core",
        "With `SameNodeAll` a companion may run on each DPU of its workload's host, so there are two on one DPU and none on another.",
    ),
    fault(
        "companion-stays-when-its-dpu-leaves-the-host",
        "core",
        "With `SameNodeAll` a companion stays when its DPU is in another host, or another tenant's.",
    ),
    fault(
        "wanted-companions-are-counted-as-workloads",
        "core",
        "With `SameNodeAll` the status says that as many companions are wanted as workloads match, on however many DPUs.",
    ),
    fault(
        "host-of-another-node-is-its-own-node",
        "core",
        "A Node that has no entry in `hostNames` is in the host of its name, though another Node is in that.",
    ),
    fault(
        "deferred-resize-is-replaced",
        "core",
        "A companion whose resize the kubelet has deferred is replaced, as one whose resize is infeasible.",
    ),
    fault(
        "companion-serves-while-it-is-resized",
        "core",
        "A companion that is being resized doesn't count as down.",
    ),
    fault(
        "leaving-companion-is-reported-as-ready",
        "core",
        "A companion that is being deleted counts as ready until it is gone.",
    ),
    fault(
        "rollout-ignores-its-maximum",
        "manager",
        "A rollout replaces companions whatever the rule's `maxUnavailable`.",
    ),
    fault(
        "rollout-ignores-owners-and-budgets",
        "manager",
        "A rollout replaces companions whatever the owner's other workloads and the PodDisruptionBudgets.",
    ),
    fault(
        "deleted-companions-are-not-down",
        "manager",
        "Companions that the rollout has deleted, and that aren't created again, don't count as down.",
    ),
    fault(
        "takeover-forgets-what-is-down",
        "manager",
        "A manager that takes a tenant over doesn't count companions that are missing as down.",
    ),
    fault(
        "untried-template-is-rolled-out",
        "manager",
        "Companions are replaced before the API server has accepted the new template.",
    ),
    fault(
        "workloads-that-get-ready-are-not-down",
        "manager",
        "A workload that isn't ready again since its companion was replaced doesn't count in its groups.",
    )
    .unseen(
        "A workload here is Ready again within milliseconds of its companion, unless its host is lost or restarts meanwhile, which the judge excuses.",
    ),
    fault(
        "whatever-was-never-ready-is-deleted",
        "manager",
        "A companion that has never been ready is deleted without a precondition on that state, so it may be ready by then.",
    ),
    fault(
        "absence-of-a-rule-is-believed",
        "manager",
        "Companions are deleted because the cache lacks their rule; the API server isn't asked.",
    ),
    fault(
        "absence-of-a-dpu-is-believed",
        "manager",
        "A companion is deleted because the cache lacks its DPU, or has it in another host; the API server isn't asked.",
    ),
    fault(
        "one-of-several-companions-is-enough",
        "manager",
        "With `SameNodeAll` a workload goes on when its companion on one of the DPUs is ready.",
    ),
    fault(
        "later-claims-are-not-respected",
        "manager",
        "A manager decides about companions that were made under a later claim on the stream than it knows.",
    )
    .unseen(
        "Such a manager is wrong only about workloads that have changed since it lost the stream. The judge excuses deletions of their companions.",
    ),
    fault(
        "companions-are-sent-before-they-are-known",
        "manager",
        "The agent hears of companions before the first sync has led to any.",
    )
    .unseen(
        "What is sent names the Node and the revision of each Pod, and the agent waits for its own rules. Silence means something only ten seconds later, and syncs take less here unless something breaks, which the judge excuses.",
    ),
    fault(
        "another-node-is-not-reported",
        "manager",
        "The companions of a workload that has moved to another Node aren't sent to the agent again.",
    ),
    fault(
        "leader-acts-beside-the-holder",
        "manager",
        "The leader acts for a tenant that another manager serves.",
    ),
    fault(
        "claims-outlive-their-tenant",
        "manager",
        "The counter of claims isn't reset when a Tenant is created again.",
    )
    .unseen(
        "A Tenant that is created again has a lower claim in a later version. That is taken for a restored cluster, and counting begins again.",
    ),
    fault(
        "image-in-place-is-a-replacement",
        "manager",
        "A companion that is ready is replaced for another image, whatever the rule's `mutableFields`.",
    ),
    fault(
        "rollout-lags-behind-its-cache",
        "manager",
        "A companion that was just removed from the cache isn't counted as down until the rollout has seen the removal too.",
    )
    .unseen("It takes two threads: a decision between two locks of the same tenant. A history has one."),
    fault(
        "interrupted-sync-forgets-what-it-touched",
        "manager",
        "What a sync has touched is forgotten when a newer stream interrupts it; the next sync says nothing new of it.",
    )
    .unseen("It takes two threads: a stream that begins between two parts of a sync. A history has one."),
    fault(
        "place-of-an-unknown-deletion-is-free",
        "manager",
        "A companion whose deletion wasn't answered has no place in its rollout, though it may be deleted.",
    )
    .unseen("The judge doesn't count companions that are down in rounds in which requests get lost."),
    fault(
        "whatever-was-down-is-replaced",
        "manager",
        "A companion that was down when its replacement was decided is deleted, though it is ready by now.",
    )
    .unseen(
        "The companion has to get ready while its deletion is under way. That takes a few milliseconds here, and more only in rounds in which the judge doesn't count what is down.",
    ),
    fault(
        "tenant-without-a-replica-is-left-alone",
        "manager",
        "A replica that begins to act for a tenant doesn't look at companions that changed while none acted for it.",
    )
    .unseen(
        "Only the leader of a tenant without an agent has no other cause to look. The judge doesn't look at such a tenant, and the first sync has all of its companions looked at.",
    ),
    fault(
        "missing-companions-on-dpus-are-waited-for",
        "manager",
        "A rollout goes on waiting for companions on single DPUs that were never created again, and whose workload has ended.",
    )
    .unseen(
        "The companion's own step frees its place: the deletion queues one, and it is retried. Only where the template is refused there is none, and then it takes the end of the workload and another rollout under the same claim.",
    ),
    fault(
        "numbers-of-claims-are-used-twice",
        "manager",
        "After an older state of the cluster was restored, a claim gets a number that the same replica has used before.",
    )
    .unseen(
        "It takes a status of the earlier stream that is written after the later stream of its number has claimed.",
    ),
    fault("key-that-is-busy-is-lost", "manager", "A key that is queued while it is worked on is lost."),
    fault(
        "claim-templates-go-while-they-are-named",
        "manager",
        "ResourceClaimTemplates are deleted while companions of an earlier template name them.",
    ),
    fault(
        "admin-rule-is-for-all-tenants",
        "manager",
        "The tenant selector of an AdminWorkloadRule is ignored.",
    ),
    fault(
        "refusal-is-reported-each-time",
        "manager",
        "The refusal of a template has an Event for each attempt, also where its words are the same.",
    ),
    fault(
        "taints-of-others-are-removed",
        "manager",
        "Taints that others have put on a DPU's Node are lost when it is marked.",
    ),
    fault(
        "companions-of-renamed-hosts-stay",
        "manager",
        "Companions aren't looked at again when Nodes of the tenant's cluster are in other hosts than before.",
    ),
    fault(
        "dpus-are-sent-by-names-of-hosts",
        "manager",
        "The agent hears of DPUs by the names of their hosts, where the Nodes of its cluster have others.",
    ),
    fault(
        "resizes-take-no-part-in-a-rollout",
        "manager",
        "Companions are resized whatever `maxUnavailable`, owners and budgets permit, and before the template was tried.",
    ),
    fault(
        "half-of-a-resize-stays",
        "manager",
        "A companion that has its amounts, because a manager ended between the two writes of a resize, doesn't get the annotations.",
    ),
    fault(
        "rule-of-others-is-overwritten",
        "agent",
        "A rule in the infrastructure cluster that an administrator wrote is taken for the agent's.",
    ),
    fault(
        "rule-of-others-is-an-orphan",
        "agent",
        "A rule in the infrastructure cluster that an administrator wrote is deleted, because the tenant's cluster has none of its name.",
    ),
    fault(
        "rule-is-written-before-its-annotations",
        "agent",
        "A rule is sent before the annotations that it names have been sent of all workloads.",
    ),
    fault(
        "gate-opens-before-the-rule-is-served",
        "agent",
        "A gate opens though the manager says nothing of the companion of a rule of this cluster.",
    ),
    fault(
        "pod-starts-before-the-rule-is-served",
        "agent",
        "A Pod starts though the manager says nothing of the companion of a rule of this cluster.",
    ),
    fault(
        "what-was-received-before-is-believed",
        "agent",
        "What the manager sent on an earlier stream counts as sent on this one.",
    ),
    fault(
        "silence-means-nothing-at-once",
        "agent",
        "As soon as the manager has sent everything, a Pod of which it said nothing needs no companion.",
    ),
    fault(
        "unsent-pod-is-passed-over-in-silence",
        "agent",
        "The manager's silence about a Pod counts also while the agent hasn't sent the Pod's present state.",
    )
    .unseen(
        "Connections here take what is sent at once, and a Pod counts as passed over after ten seconds. An agent without a connection opens no gate.",
    ),
    fault(
        "what-was-received-of-another-node-is-believed",
        "agent",
        "What the manager sent of a Pod's companions on the Node before counts for the present Node.",
    ),
    fault("pod-of-another-node-starts", "agent", "A host is answered for Pods of other Nodes."),
    fault("failed-pod-stays-a-workload", "agent", "A Pod whose phase is Failed still is a workload."),
    fault(
        "waiting-pod-is-bound",
        "agent",
        "The status of a claim says that its companions are Ready while the Pod waits for them.",
    ),
    fault(
        "unknown-fields-fail-at-the-gate",
        "admission",
        "An expression about what a new Pod doesn't have yet fails at the gate, so that the Pod doesn't wait.",
    ),
    fault(
        "outdated-rule-admits",
        "admission",
        "A webhook whose rule is older than the companion admits it by the older rule.",
    ),
    fault(
        "companion-of-an-earlier-rule-is-admitted",
        "admission",
        "A webhook whose rule is later than the companion admits it for the first time nevertheless.",
    ),
    fault(
        "error-of-a-claim-is-empty",
        "host",
        "A claim that isn't ready and has no cause gets an empty error, for which the kubelet starts the Pod.",
    )
    .unseen("No history runs the plugin of a host: kubelets ask the agent themselves."),
    fault(
        "answers-are-about-any-claims",
        "host",
        "Answers of the agent aren't compared with the claims that were asked about.",
    )
    .unseen("No history runs the plugin of a host: kubelets ask the agent themselves."),
    fault(
        "late-answer-is-taken",
        "runtime",
        "The response to a write is taken though a watch has shown more.",
    ),
    fault("list-keeps-what-is-gone", "runtime", "What a new list lacks stays in the cache."),
    fault(
        "late-deletion-removes-a-later-object",
        "runtime",
        "The deletion of an object removes a later one of its name.",
    )
    .unseen(
        "The creation of the later object follows on the same watch, which brings it back.",
    ),
    fault(
        "restored-state-is-taken-for-old",
        "runtime",
        "A list after a restore doesn't replace what the cache has of a higher version.",
    ),
    fault("failed-page-ends-a-list", "runtime", "A list whose next page fails counts as complete."),
    fault(
        "renewed-lease-expires",
        "runtime",
        "The time after which a Lease expires doesn't begin again when it is renewed.",
    ),
];
