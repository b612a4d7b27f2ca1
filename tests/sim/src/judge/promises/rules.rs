//! Promises of the page on rules: workloads, facts, placement, and what a template may be.

use super::Held::{By, Not, Tests};
use super::{Promise, REST};

pub(super) const PROMISES: &[Promise] = &[
    // Copies.
    (
        "The agent copies the rule to the infrastructure cluster, into the tenant's namespace there, keeps the two the same",
        Tests(&["drift_is_repaired_and_what_is_not_the_agents_stays", "a_tenant_sees_only_its_own_cluster"]),
    ),
    ("and copies its status back", Tests(&["a_tenant_sees_only_its_own_cluster"])),
    ("the agent doesn't change those", By(&["foreign_rule"])),
    (
        "a rule of the same name in the tenant's cluster gets the reason `NameTaken`",
        Tests(&["drift_is_repaired_and_what_is_not_the_agents_stays"]),
    ),
    // Workloads and paths.
    (
        "A workload is a Pod of the tenant cluster, unless it has ended (phase Succeeded or Failed)",
        By(&[REST]),
    ),
    ("A rule sees it in this form", Tests(&["the_documented_fields_are_converted"])),
    (
        "Annotations leave the tenant's cluster only if rules there name them, or the agent's settings admit them",
        Tests(&["annotations_leave_the_cluster_as_rules_of_the_tenant_name_them_and_secrets_never"]),
    ),
    (
        "`.state.nodeName`, `state.nodeName`, `$.state.nodeName` and `{.state.nodeName}` are the same",
        Tests(&["every_documented_spelling"]),
    ),
    (
        "the rule's Accepted condition shows the position of the error",
        Tests(&[
            "everything_wrong_is_said_with_its_path",
            "a_rule_that_is_wrong_says_where_and_keeps_its_companions",
        ]),
    ),
    // Operators.
    ("Terms are ORed, expressions in a term ANDed", By(&["was_possible", REST])),
    (
        "A rule without terms, or a term without expressions, matches nothing and is not accepted",
        Tests(&["everything_wrong_is_said_with_its_path"]),
    ),
    ("| In | its text is one of the values |", By(&["was_possible", REST])),
    ("| NotIn | its text is none of the values |", By(&["was_possible", REST])),
    ("| Exists | it exists |", By(&["was_possible", REST])),
    ("| DoesNotExist | it is absent |", By(&["was_possible", REST])),
    ("none (one is ignored)", Tests(&["operators"])),
    ("1 to 1024", Tests(&["sizes_are_bounded"])),
    (
        "| Gt, Lt | it is an integer of 64 bits greater, less than the value | 1 integer | no |",
        Tests(&["operators"]),
    ),
    (
        "Objects (`.state`, `.state.extra.labels`) can only be tested with Exists and DoesNotExist",
        Tests(&["everything_wrong_is_said_with_its_path"]),
    ),
    // Unknown annotations.
    (
        "the agent sends those before it sends the rule",
        Tests(&["a_rule_waits_until_its_annotations_are_sent"]),
    ),
    (
        "neither `NotIn` and `DoesNotExist` nor their opposites hold",
        Tests(&["what_is_not_sent_neither_matches_nor_fails_to_match"]),
    ),
    (
        "A term with an expression that fails fails, whatever is unknown",
        Tests(&["a_verdict_holds_whatever_is_unknown"]),
    ),
    (
        "makes nothing and deletes nothing: a companion that exists stays as it is, and no other is created",
        Tests(&["where_an_unknown_annotation_decides_a_rule_of_the_tenant_makes_and_deletes_nothing"]),
    ),
    (
        "has its companion: a tenant can't evade it by not sending an annotation",
        Tests(&["an_annotation_that_the_agent_does_not_send_keeps_no_companion_of_the_platform_away"]),
    ),
    ("a minute at most for rules of the platform", Tests(&["an_agent_that_does_not_answer_has_a_minute"])),
    (
        "the workload waits until its companion exists and is Ready, with the cause `AnnotationsNotSent`",
        Tests(&["a_gate_stays_shut_until_the_companion_exists_of_which_an_unknown_annotation_decides"]),
    ),
    (
        "The rule's status names the annotations and the remedy",
        Tests(&["a_rule_says_which_annotations_are_unknown_and_what_follows"]),
    ),
    (
        "128 keys at most, the first in alphabetical order; others are unknown",
        Tests(&["an_agent_is_asked_for_the_keys_that_it_does_not_know"]),
    ),
    (
        "The agent takes in a change of these keys every 5 s at most",
        Tests(&["what_the_manager_asks_for_changes_at_a_pace"]),
    ),
    (
        "It doesn't send an asked annotation of a Pod that has more than 16 KiB",
        Tests(&["what_is_too_large_is_withheld_if_only_the_manager_asks_for_it"]),
    ),
    (
        "which is then unknown for this Pod",
        Tests(&["an_annotation_that_is_too_large_is_unknown_for_its_workload_alone"]),
    ),
    (
        "for rules that are created in the infrastructure cluster the others are unknown",
        Tests(&["an_agent_that_says_nothing_sends_what_the_rules_name_that_it_copies"]),
    ),
    (
        "A client that uses `WorkloadStream` and says nothing sends all annotations",
        Tests(&["a_rule_says_which_annotations_are_unknown_and_what_follows"]),
    ),
    (
        "What isn't sent is shown as unknown",
        Tests(&["an_annotation_that_is_not_sent_is_unknown_and_counts_for_the_platform"]),
    ),
    // Facts.
    (
        "a single field as its text, an object as JSON, the whole workload if no path is given",
        Tests(&["the_documented_rule", "a_workload_that_matches_gets_a_companion_on_a_dpu_of_its_host"]),
    ),
    ("A fact that the workload lacks creates no annotation", By(&["facts_missing"])),
    (
        "double ones in a template become single ones in its companions",
        Tests(&["double_quotes_in_paths_of_the_downward_api_become_single_ones"]),
    ),
    ("Facts follow the workload", By(&["facts_missing"])),
    (
        "the first change immediately, later ones with pauses of 1 to 30 seconds while changes continue",
        Tests(&["facts_that_go_on_changing_are_written_less_and_less_often"]),
    ),
    ("and always the latest value", By(&["facts_missing"])),
    (
        "Annotations and downward-API volumes change in place; environment variables keep the values of the companion's start",
        Tests(&["companions_run_on_the_dpu_of_their_workloads_host_and_know_them"]),
    ),
    ("A companion that waits for another template gets them too", By(&["facts_missing"])),
    (
        "A fact that the rule no longer injects stays on it until then",
        Tests(&["facts_follow_the_workload_while_a_companion_waits_for_the_next_template"]),
    ),
    (
        "All annotations of a Pod together may have 256 KiB",
        Tests(&["facts_that_are_too_large_are_reported_with_both_sizes"]),
    ),
    // Placement.
    (
        "a DPU whose label `provisioning.dpu.nvidia.com/dpunode-name` is the workload's node",
        By(&["placed", "facts_missing"]),
    ),
    ("The companion is created when the workload is bound to a node", By(&["hosted", REST])),
    (
        "Where none of the host's DPUs has it, the companion stays Pending; it runs on no other one",
        By(&["placed"]),
    ),
    ("Where several have it, it runs on any of these", By(&["placed"])),
    ("A companion that runs stays if the label is removed", By(&["deleted"])),
    ("A ResourceClaim as a template can't have this policy", Tests(&["the_attribute_of_the_host"])),
    (
        "`Any`: any DPU of the tenant, as soon as the workload exists",
        Tests(&["any_needs_no_node_and_takes_any_dpu_of_the_tenant"]),
    ),
    ("gets no companion before they are removed", By(&["was_possible", REST])),
    (
        "and takes no room of the workloads that have companions",
        Tests(&["matches_that_wait_take_no_room_of_others"]),
    ),
    ("`gatedWorkloads: Serve` gives it one at once, with `Any` only", By(&[REST])),
    (
        "together with the tenant's node label, so they narrow the template's own choice and never widen it",
        By(&["created"]),
    ),
    (
        "become required node affinity in every term of the template's own affinity",
        Tests(&["every_term_gets_it_and_keeps_its_own", "a_template_keeps_fields_and_selectors_of_its_own"]),
    ),
    (
        "companions stay where they are, and those that wait find their DPU, while a platform changes from one label to the other",
        Tests(&["labels_of_hosts_change_while_companions_run_and_wait"]),
    ),
    (
        "the rule's Ready condition and the workload name the cause",
        Tests(&["each_cause_of_the_scheduler_has_its_own_word_and_names_the_part_of_the_template"]),
    ),
    (
        "with SameNode there is no companion for a workload on such a node: the reason is `HostNameUnusable`",
        Tests(&[
            "a_companion_of_a_node_whose_name_no_label_can_have_is_refused_where_it_is_a_pod_of_that_node",
        ]),
    ),
    // On each DPU.
    ("With `SameNodeAll` a workload has one companion on each DPU of its host", By(&["created", REST])),
    ("names the DPU's Node, and it runs on no other one", By(&["placed"])),
    (
        "DPUs that another tenant has, or that are being handed over, don't count",
        By(&["on_its_dpu", "isolated", REST]),
    ),
    ("A DPU that is added to the host gets a companion", By(&[REST])),
    ("loses its companion. One that is cordoned or not ready keeps it", By(&["deleted", REST])),
    (
        "a companion that isn't placed there yet stays Pending (`DPUNotReady`)",
        Tests(&["each_dpu_of_a_host_has_a_companion_and_a_workload_waits_for_all_of_them"]),
    ),
    (
        "until the companions on all DPUs that the host has are ready, and there is at least one",
        By(&["waited", "waited_for_platform", "left_open", "orders_missing"]),
    ),
    ("it waits for that (`HandingOver`)", Tests(&["companions_on_all_dpus_count_as_ready_once_each_is"])),
    ("and on a host without DPUs for the first one", By(&["orders_missing"])),
    ("No setting opens a gate earlier", Not("no test can show that there is no such setting")),
    (
        "`created`, `ready`, `updated`, quotas and `maxUnavailable` count each companion",
        Tests(&[
            "each_dpu_of_a_host_has_a_companion_and_a_workload_waits_for_all_of_them",
            "a_rule_on_all_dpus_is_ready_once_each_has_a_ready_companion_and_there_is_one",
        ]),
    ),
    ("and `maxUnavailable` count each companion", By(&["counted"])),
    ("in the status in the infrastructure cluster", By(&["counts_missing"])),
    (
        "A rule can't be changed to or from `SameNodeAll`",
        Tests(&["each_dpu_of_a_host_has_a_companion_and_a_workload_waits_for_all_of_them"]),
    ),
    // Templates.
    (
        "It may not set `spec.nodeName` or keys under `outrigger.dev`",
        Tests(&["what_is_no_pod_is_refused_with_its_path"]),
    ),
    (
        "has at most 512 KiB of JSON, 20,000 values (texts, numbers, lists and objects) and 64 levels of nesting",
        Tests(&["what_is_no_pod_is_refused_with_its_path", "each_bound_is_reported_with_both_numbers"]),
    ),
    (
        "those of a rule's device claims have at most 256 KiB of JSON together",
        Tests(&["claims_of_exactly_the_most_bytes_are_allowed"]),
    ),
    (
        "The limit `ruleBytes` ([limits](tenants.md#limits)) applies to all rules of a tenant together",
        Tests(&["a_tenants_rules_have_a_size_together"]),
    ),
    (
        "are held to the API server's own rules when the rule is created or changed; a refusal names the field",
        Tests(&[
            "what_is_taken_where_it_enters_the_api_server_takes_where_it_ends",
            "each_text_that_is_wrong_is_reported_with_its_path",
        ]),
    ),
    (
        "Templates may not request what the tenant's Pods may not have",
        Tests(&["no_template_of_a_rule_gets_out", "a_template_is_validated_as_the_pod_that_is_made_from_it"]),
    ),
];
