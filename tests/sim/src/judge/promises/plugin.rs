//! Promises of the page on order: the plugin on hosts, companions that outlive their workloads, and what isn't guaranteed.

use super::Held::{By, Not, Tests};
use super::{Promise, REST};

pub(super) const PROMISES: &[Promise] = &[
    // The plugin.
    (
        "Outrigger's plugin, `outrigger host`, prepares this claim when the companions of the Pod are Ready",
        Tests(&["a_pod_starts_when_its_companion_is_ready_and_the_kubelet_hears_the_cause_before"]),
    ),
    (
        "An accepted token is reviewed again after ten seconds",
        Tests(&["an_answer_is_used_until_its_time_and_there_are_no_more_than_the_limit"]),
    ),
    (
        "The agent has the token reviewed by the API server",
        Tests(&[
            "a_host_learns_of_its_own_pods_only_and_nobody_else_of_any",
            "only_a_token_of_the_plugin_names_a_node",
        ]),
    ),
    ("The agent answers for Pods of this Node only", By(&["started_elsewhere"])),
    (
        "The agent answers in milliseconds if the companions are Ready",
        Not("`however_many_pods_wait_one_that_may_start_is_answered_for_at_once` has virtual time"),
    ),
    (
        "Otherwise it holds the question up to 20 s; what the manager tells, and what changes in rules and Pods, wakes it",
        Tests(&[
            "a_question_is_woken_by_what_the_manager_sends",
            "a_pod_that_arrives_later_or_leaves_wakes_the_question",
            "a_question_ends_with_the_cause_after_its_time",
        ]),
    ),
    (
        "the plugin fails the call with the reason and the message that the Pod's conditions have too",
        Tests(&[
            "a_pod_starts_when_its_companion_is_ready_and_the_kubelet_hears_the_cause_before",
            "only_a_claim_that_is_ready_has_no_error",
        ]),
    ),
    (
        "Companions of rules with `BeforeStart` count, and no others",
        Tests(&["companions_of_other_orderings_do_not_hold_a_pod"]),
    ),
    (
        "`NodeUnprepareResources` always succeeds",
        Tests(&["a_pod_that_is_deleted_while_it_waits_is_forgotten"]),
    ),
    (
        "| the agent can't be reached, or its certificate isn't trusted | the Pod doesn't start; the reason is `AgentUnreachable` |",
        Tests(&["nothing_starts_while_the_agent_or_the_manager_is_away"]),
    ),
    ("| the manager can't be reached", By(&["reaches_manager"])),
    (
        "or the agent has just started | the Pod doesn't start; the reason is `ManagerUnreachable` |",
        Tests(&["nothing_starts_before_the_rules_are_known", "a_manager_that_is_lost_lets_nothing_start"]),
    ),
    (
        "the manager says nothing of the companion of a rule of this cluster | the Pod doesn't start",
        By(&["waited"]),
    ),
    (
        "the reason is `RuleNotServed`",
        Tests(&["a_pod_starts_when_the_companions_of_its_rule_are_ready_and_not_before"]),
    ),
    (
        "| the manager is too old to say how companions are, or for which Node of a Pod that the scheduler has moved before it was bound | the Pod doesn't start",
        Tests(&[
            "a_manager_that_is_lost_lets_nothing_start",
            "a_manager_that_does_not_say_the_node_binds_a_pod_on_its_first_one_only",
        ]),
    ),
    (
        "| what the manager has said last is about another Node than that of the Pod | the Pod doesn't start",
        By(&["waited"]),
    ),
    (
        "A readiness gate that is open closes meanwhile",
        Tests(&["the_gate_stays_in_an_outage_and_with_an_old_manager"]),
    ),
    (
        "| what the manager has said last is about other labels than those of the Pod | the Pod doesn't start",
        Tests(&["a_report_about_earlier_labels_starts_nothing"]),
    ),
    (
        "| the agent doesn't know a Pod with the claim on this host | the Pod doesn't start; the reason is `PodUnknown` |",
        Tests(&["only_the_node_of_a_pod_is_answered"]),
    ),
    ("the Pod starts at once if another rule matches it", Tests(&["a_pod_without_the_rule_starts_at_once"])),
    (
        "If no rule does, it starts ten seconds after the agent has seen it on this Node",
        Tests(&["silence_lets_a_pod_start_that_no_rule_concerns_after_a_while"]),
    ),
    (
        "| the plugin is killed | running containers continue",
        Tests(&["containers_run_on_without_kubelet_and_plugin_and_wait_again_after_a_reboot"]),
    ),
    (
        "New Pods with the claim don't start until it is back, and it continues without any state",
        Tests(&["a_plugin_that_is_killed_starts_nothing_until_it_is_back"]),
    ),
    ("so the kubelet ends it after all Pods that need it", Not("no test shuts a host down gracefully")),
    (
        "it removes its socket, so the kubelet deregisters it",
        Tests(&["a_plugin_that_is_killed_starts_nothing_until_it_is_back"]),
    ),
    (
        "| the Pod is deleted while it waits | the kubelet ends its call, and the plugin and the agent forget it |",
        Tests(&["a_pod_that_is_deleted_while_it_waits_is_forgotten"]),
    ),
    (
        "| the companion is lost after the Pod has started | the containers continue",
        Not("no test loses a companion after the start and looks at the containers"),
    ),
    ("The readiness gate closes", By(&["left_open", "orders_missing"])),
    (
        "| the host reboots | the kubelet asks again, and the Pod waits again |",
        By(&["waited", "orders_missing"]),
    ),
    (
        "| a container of the Pod restarts | it starts at once",
        Not("no test restarts a container of a Pod with a claim"),
    ),
    (
        "| the Pod's namespace is no longer among those that the agent sends | its gate stays as it is",
        Not("no test takes the namespace of a Pod that waits away from the agent"),
    ),
    (
        "without one, the kubelet starts no Pod that has the claim, and says that the driver is not registered",
        Tests(&["a_plugin_that_is_killed_starts_nothing_until_it_is_back"]),
    ),
    (
        "The kubelet's call may have 8 claims and 8 KiB",
        Tests(&["a_host_learns_of_its_own_pods_only_and_nobody_else_of_any", "a_question_is_bounded"]),
    ),
    ("and 256 calls may be in progress", Not("no test opens so many calls")),
    (
        "The agent answers for Pods that may start at once, and holds questions about others",
        Tests(&["however_many_pods_wait_one_that_may_start_is_answered_for_at_once"]),
    ),
    (
        "at most 256 claims of one host and 2048 in all, of 128 hosts. It reads 64 questions of one host and 256 in all at the same time",
        Tests(&["one_node_takes_no_more_than_its_part_and_returns_it"]),
    ),
    (
        "4 of one address and at most two a second of it",
        Tests(&["an_address_that_sends_invalid_tokens_is_slowed_down_and_served_again"]),
    ),
    (
        "What exceeds a limit fails, and the kubelet repeats it",
        Tests(&["however_many_pods_wait_one_that_may_start_is_answered_for_at_once"]),
    ),
    (
        "A Pod that no such rule matches has no claim, so nothing asks the plugin about it",
        Tests(&["pods_of_rules_before_start_get_gate_and_claim_once"]),
    ),
    // On the way out.
    ("A companion is deleted with its workload", By(&[REST])),
    (
        "With `spec.lingerSeconds` (0 to 3600, 0 by default) the companion outlives its workload by that time",
        By(&["lingered", REST]),
    ),
    ("(0 to 3600, 0 by default)", Tests(&["a_companion_outlives_its_workload_by_an_hour_at_most"])),
    ("and deletes the companion `lingerSeconds` later", By(&["lingered", REST])),
    (
        "another one continues with it",
        Tests(&[
            "the_time_of_a_lingering_companion_goes_on_while_managers_are_killed_and_replaced",
            "a_record_that_another_manager_has_made_meanwhile_is_not_overwritten",
        ]),
    ),
    ("Only Outrigger can write it", Tests(&["our_keys_are_refused_from_everybody_else"])),
    ("Only a companion that has been ready gets it", By(&["outlives"])),
    (
        "one that never was has nothing to end, and is deleted with its workload",
        Tests(&["a_companion_that_was_never_ready_is_deleted_at_once_unless_it_is_ready_by_now"]),
    ),
    (
        "the record is removed, and the companion stays",
        Tests(&[
            "the_record_is_removed_when_the_workload_is_there_again",
            "a_workload_that_returns_keeps_its_companion_and_a_rule_that_changes_or_goes_ends_it",
        ]),
    ),
    (
        "the companion is deleted immediately, or replaced: the workload hasn't ended",
        Tests(&["a_companion_may_outlive_a_workload_that_has_ended_and_no_other"]),
    ),
    (
        "| the rule is deleted, or no longer selects the tenant | its companions are deleted immediately |",
        Tests(&[
            "a_deleted_rule_ends_the_time_of_its_companions",
            "a_change_of_a_rule_concerns_companions_that_outlive_their_workloads",
        ]),
    ),
    (
        "the new time counts, from the recorded end. No companion is replaced",
        Tests(&["a_change_of_the_rule_concerns_lingering_companions"]),
    ),
    (
        "| the template changes, or the companion fails | it isn't replaced",
        Tests(&["a_companion_lingers_once_its_workload_has_ended"]),
    ),
    ("it isn't created again", By(&["created", REST])),
    (
        "it stays if the manager has seen it ready before. A manager that has started since then hasn't, and deletes it",
        Tests(&[
            "only_a_companion_that_has_been_ready_outlives_its_workload",
            "a_companion_that_was_never_ready_is_deleted_at_once_unless_it_is_ready_by_now",
        ]),
    ),
    (
        "the oldest are deleted before their time",
        Tests(&["the_oldest_gives_way_where_more_linger_than_there_is_room_for"]),
    ),
    (
        "| the Tenant is deleted, or its DPU is handed over | the companion is deleted immediately |",
        By(&[REST, "isolated"]),
    ),
    (
        "the companion is deleted after the agent has sent all workloads again",
        Tests(&["a_manager_that_has_just_started_goes_by_the_recorded_end_after_the_first_sync"]),
    ),
    ("never before its time, and never because a cache lacks the workload", By(&["lingered", "deleted"])),
    (
        "| the record can't be written (the webhook is down) | the companion stays, and its time begins when the record is written |",
        Not("no test takes the webhook away while a record is written"),
    ),
    (
        "keeps its resources on the DPU, its devices and its slot of a Machine, and counts against quotas",
        Tests(&["companions_that_outlive_their_workloads_are_reported_with_the_reason"]),
    ),
    (
        "It doesn't count in `created` and `ready` of the rule's status, nor for the gates of other Pods or for a rollout",
        Tests(&[
            "companions_that_outlive_their_workloads_count_by_themselves_and_are_no_concern_of_rollouts",
        ]),
    ),
    (
        "the message of the Ready condition says how many there are",
        Tests(&["a_companion_outlives_its_workload_and_goes_when_its_time_is_over"]),
    ),
    (
        "show it with the reason `Lingering`",
        Tests(&[
            "a_companion_whose_workload_has_ended_is_reported_with_its_reason",
            "companions_that_outlive_their_workloads_are_reported_with_the_reason",
        ]),
    ),
    (
        "workloads that match the tenant's rules and companions of ended workloads together are at most `limits.companions`",
        Tests(&["companions_of_workloads_that_have_ended_give_way_to_those_that_are_wanted"]),
    ),
    (
        "A companion that the quota has refused is created within half a minute after another one has given way",
        Not("no test asserts the time; the pause after a refusal is 30 s"),
    ),
    (
        "at most `limits.companions` outlive their workloads for one tenant, beside one for each workload that matches",
        Tests(&["workloads_that_come_and_go_leave_no_more_companions_than_the_tenant_may_have"]),
    ),
    (
        "the rules share the room equally, and what one leaves of its part is the others'",
        Tests(&[
            "rules_share_the_room_and_what_one_leaves_is_the_others",
            "no_more_stay_than_there_is_room_for_and_none_goes_without_need",
        ]),
    ),
    (
        "Of each rule the oldest give way first",
        Tests(&["the_oldest_of_the_rule_of_which_most_outlive_their_workloads_give_way"]),
    ),
    (
        "a companion may be deleted earlier or later by the difference when one manager takes over from another",
        Tests(&["it_lingers_as_long_as_asked_but_for_the_difference_of_clocks"]),
    ),
    (
        "A record in the future, or one that can't be read, is replaced by the present time",
        Tests(&[
            "an_end_in_the_future_is_recorded_again_as_now",
            "steps_follow_from_the_recorded_end_and_the_present_time",
        ]),
    ),
    // What it doesn't guarantee.
    (
        "they still don't start before their companions",
        Tests(&["no_single_request_lets_a_pod_go_without_its_companion_and_each_control_case_is_allowed"]),
    ),
    (
        "The roles `view`, `edit` and `admin` permit none of this",
        Tests(&["no_single_request_lets_a_pod_go_without_its_companion_and_each_control_case_is_allowed"]),
    ),
    (
        "That includes Pods of rules with `dpuSelectionPolicy: Any`",
        Not("no test has a rule with `Any` and `BeforeStart` on a host without a DPU"),
    ),
    (
        "`outrigger explain` names such Pods",
        Tests(&[
            "a_pod_that_is_older_than_the_rule_has_to_be_recreated",
            "a_pod_that_was_created_without_the_gate_does_not_wait",
        ]),
    ),
    (
        "a Pod that gets its label after it has started gets a companion too late",
        Tests(&["a_pod_that_gets_its_label_later_has_a_companion_and_does_not_wait_for_it"]),
    ),
    (
        "one that loses it while it waits starts without any",
        Tests(&["a_pod_that_loses_its_label_waits_for_nothing"]),
    ),
    ("the agent closes it again", Tests(&["a_gate_that_the_pods_own_host_opens_is_closed_again"])),
    (
        "in namespaces whose Pods the agent doesn't send, and mirror Pods of static Pods get no gate and no claim",
        Tests(&["a_pod_that_is_no_workload_gets_no_gate"]),
    ),
    (
        "is taken for one that no rule matches, and its gate opens",
        Tests(&["silence_means_that_no_rule_matches_only_after_a_while"]),
    ),
    (
        "For rules of the tenant's own cluster the gate stays closed however long it takes",
        Tests(&["a_gate_waits_for_a_rule_that_the_manager_does_not_have_yet"]),
    ),
    (
        "The rule's `syncResult` then says that fields are dropped",
        Not(
            "`a_manager_that_leaves_a_part_out_is_not_written_to_for_ever` reads the condition Accepted instead",
        ),
    ),
];
