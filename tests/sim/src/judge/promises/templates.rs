//! Promises of the page on rules: templates that change, warnings, statuses, and rules of the platform.

use super::Held::{By, Not, Tests};
use super::{Promise, REST};

pub(super) const PROMISES: &[Promise] = &[
    // Changing a template.
    ("A new or changed template is first validated by dry run", By(&["untried"])),
    (
        "the Accepted condition says so (`Refused`) within a second or so, with the field's path",
        Tests(&["a_template_that_the_api_server_refuses_is_reported_with_its_path"]),
    ),
    ("within a second or so", Not("the tests wait longer than that")),
    ("running companions stay as they are", By(&["untried"])),
    (
        "and the manager retries after 0.5 to 30 s",
        Tests(&["it_is_tried_until_it_passes_with_exponential_backoff"]),
    ),
    (
        "A template is another one only if the API server makes another Pod of it",
        Tests(&[
            "templates_are_the_same_if_the_api_server_makes_the_same_of_them",
            "random_templates_are_the_same_if_the_api_server_makes_the_same_of_them",
        ]),
    ),
    (
        "Nulls, empty lists, `status`, metadata that companions don't get, the order of fields, amounts in other units",
        Tests(&[
            "noise_means_nothing_and_everything_else_something",
            "noise_replaces_no_companion_and_neither_does_an_upgrade",
        ]),
    ),
    (
        "What depends on the cluster counts as a change",
        Tests(&["noise_means_nothing_and_everything_else_something"]),
    ),
    ("OnDelete waits until somebody deletes them", Tests(&["on_delete_waits_for_somebody_to_delete"])),
    ("the default is 25%, and 10% with an ordering other than Parallel", By(&["counted"])),
    (
        "`maxUnavailable` is the maximum number of companions of the rule that are down at the same time",
        By(&["counted"]),
    ),
    (
        "for whatever reason",
        Tests(&[
            "what_another_process_took_away_is_down",
            "a_companion_is_down_whoever_has_deleted_it_until_it_is_there_again",
        ]),
    ),
    (
        "A percentage is rounded down, but is one at least",
        Tests(&["a_share_is_rounded_down_and_never_nothing"]),
    ),
    (
        "Companions that can't run with any template don't count",
        Tests(&[
            "what_no_dpu_could_run_does_not_hold_up_a_rollout",
            "companions_for_which_there_was_never_room_hold_nobody",
        ]),
    ),
    (
        "So the rollout of a template that the API server accepts and that never becomes ready stops there",
        By(&["counted"]),
    ),
    (
        "the Ready condition says `RollingOut` and what the first companion waits for, and the others keep serving",
        Tests(&["a_new_template_takes_no_more_than_a_quarter_down_at_once"]),
    ),
    ("immediately replaces those that aren't ready", Tests(&["one_that_never_comes_up_holds_the_rest"])),
    (
        "and none that is ready before them",
        Tests(&["those_that_never_ran_are_replaced_before_the_one_that_has_the_room"]),
    ),
    // Amounts.
    ("running companions are resized instead of being replaced", By(&["deleted", "amounts_missing"])),
    (
        "That concerns containers, and init containers with `restartPolicy: Always`",
        Tests(&[
            "amounts_of_containers_that_end_first_and_amounts_that_are_read_are_fixed",
            "only_containers_that_run_beside_the_others_are_resized",
        ]),
    ),
    (
        "Pod, containers and connections stay",
        Tests(&["a_running_container_gets_another_limit_and_is_not_started_again"]),
    ),
    (
        "counts a companion as down for `maxUnavailable`, owners and PodDisruptionBudgets while it is resized",
        By(&["counted", "budgeted"]),
    ),
    (
        "A companion is replaced, within `maxUnavailable`, where it can't be resized",
        By(&["counted", "amounts_missing"]),
    ),
    (
        "another field of the template differs too",
        Tests(&["templates_that_differ_in_amounts_differ_in_nothing_else"]),
    ),
    (
        "a container has an amount as an environment variable",
        Tests(&["amounts_of_containers_that_end_first_and_amounts_that_are_read_are_fixed"]),
    ),
    (
        "the companion isn't ready, so there is nothing to keep",
        Tests(&["one_that_does_not_run_is_replaced_unless_it_has_its_amounts"]),
    ),
    (
        "a request or limit would have to be removed",
        Tests(&["other_amounts_are_given_in_place_and_what_cannot_be_given_is_replaced"]),
    ),
    ("also one that a LimitRange has set", Not("no test has a LimitRange")),
    (
        "the API server refuses the resize: the class of quality of service would change",
        Tests(&["what_the_api_server_does_not_resize_is_replaced"]),
    ),
    (
        "without the annotation `outrigger.dev/template-parts`",
        Not(
            "no test has a companion without it; one of another form is in `templates_that_differ_in_amounts_differ_in_nothing_else`",
        ),
    ),
    (
        "the kubelet says that the DPU can never provide the amounts (`ResizeInfeasible`)",
        Tests(&["a_deferred_resize_is_waited_for_and_an_infeasible_one_is_replaced"]),
    ),
    (
        "the companion serves with what it has, is never replaced for that, and gets its amounts",
        By(&["deleted", "amounts_missing"]),
    ),
    (
        "Others don't wait for it",
        Tests(&["a_resize_that_waits_for_room_holds_nobody_and_needs_no_kubelet_that_speaks"]),
    ),
    (
        "the rule's Ready condition is False with the reason `ResizeDeferred`",
        Tests(&["a_rule_is_ready_once_its_companions_have_the_amounts_of_its_template"]),
    ),
    (
        "What admission refuses (a quota, a LimitRange) is in that condition too, and the companion stays as it is",
        Tests(&["what_the_api_server_does_not_resize_is_replaced"]),
    ),
    // Other images.
    (
        "in these fields alone, or in them and in [cpu and memory](#more-cpu-or-memory), is changed instead",
        By(&["replaced_for_an_image"]),
    ),
    (
        "It keeps its place on the DPU, its address, its volumes and its devices",
        Tests(&[
            "other_fields_change_in_place_where_the_rule_wants_it",
            "another_image_runs_in_the_same_pod_and_until_then_the_rule_says_so",
        ]),
    ),
    (
        "A container with another image is restarted by its kubelet",
        Tests(&["another_image_runs_in_the_same_pod_and_until_then_the_rule_says_so"]),
    ),
    (
        "Its other containers keep running",
        Not("the companions of the tests on real Nodes have one container"),
    ),
    (
        "ends at once (`DeadlineExceeded`), and is created again",
        Not("no test lets a companion run longer than its deadline"),
    ),
    (
        "The fields and the annotations that name the template change in one write, and only in the state of the Pod that the manager has read",
        Tests(&["another_image_is_given_in_one_write_with_the_annotations"]),
    ),
    ("a manager that was replaced can't take an image back", By(&["updated", "newer"])),
    (
        "until the kubelet runs another container, and until the companion is ready again, it counts as down",
        By(&["counted", "budgeted"]),
    ),
    ("A new image that can't be pulled or that crashes stops the rollout", By(&["counted"])),
    (
        "Until the kubelet has acted, the rule's Ready condition is False with the reason `Updating`",
        Tests(&["other_fields_change_in_place_where_the_rule_wants_it"]),
    ),
    (
        "where it isn't ready, where a toleration would be removed or `activeDeadlineSeconds` would be removed or become more",
        Tests(&["other_fields_change_in_place_where_the_rule_wants_it", "a_deadline_is_set_or_becomes_less"]),
    ),
    (
        "and where the API server refuses the change as invalid",
        Tests(&["what_gets_no_other_image_in_place_is_replaced"]),
    ),
    ("where the template has more than 62 containers and tolerations", Not("no test has so many")),
    (
        "What admission refuses is in the rule's Ready condition, and the companion stays as it is",
        Tests(&["what_gets_no_other_image_in_place_is_replaced"]),
    ),
    // Replicas.
    ("`maxUnavailable` may lose their companion at the same time too", By(&["counted"])),
    (
        "the second when the first has its companion again and is Ready again, if it was Ready before",
        By(&["counted"]),
    ),
    ("as many of them as its `status.desiredHealthy` stay Ready with a companion", By(&["budgeted"])),
    (
        "One that permits no disruption stops the rollout for its workloads, also if no other replica is ever Ready",
        Tests(&[
            "a_pod_disruption_budget_is_respected",
            "replicas_of_one_owner_do_not_lose_their_companions_together",
        ]),
    ),
    (
        "The tenant's agent tells both",
        Tests(&["an_agent_sends_the_controller_of_a_pod_and_the_budgets_that_select_it"]),
    ),
    (
        "wait for them for `--admin-rollout-deadline` of the manager (1h)",
        Tests(&["what_a_tenant_tells_delays_rules_of_the_platform_until_the_deadline_only"]),
    ),
    (
        "has the time since when it waits",
        Tests(&["companions_that_wait_are_recorded_when_there_is_room_for_them_first"]),
    ),
    (
        "For the same time they wait for companions that have no Node on a DPU where another one of the new template is ready",
        Tests(&["a_companion_that_has_lost_its_room_is_waited_for_until_the_deadline_of_the_platform"]),
    ),
    (
        "has the same limits as far as the manager deletes its companions",
        Tests(&["a_rule_that_is_created_again_replaces_ready_companions_in_a_rollout"]),
    ),
    ("Selectors and facts don't restart anything", By(&["deleted", "facts_missing"])),
    ("a workload that no longer matches loses its companion, one that matches now gets one", By(&[REST])),
    // Warnings.
    (
        "a `fieldRef` reads an annotation that neither an injection writes nor a network plugin",
        Tests(&["a_reference_to_an_annotation_that_nothing_writes"]),
    ),
    (
        "no workload can match, because the expressions of every term contradict each other",
        Tests(&["a_rule_that_can_match_nothing"]),
    ),
    (
        "a claim with SameNode doesn't mention the host",
        Tests(&["a_claim_of_the_workloads_host_has_to_say_how_devices_name_it"]),
    ),
    (
        "`Gt` or `Lt` in the template's node affinity has something else than an integer",
        Tests(&["a_bound_that_is_no_integer"]),
    ),
    (
        "no node can match the template, or its `nodeSelector` is for one host though the policy is SameNode",
        Tests(&["selectors_against_the_policy_and_no_dpu"]),
    ),
    ("the tenant has no DPU.", Tests(&["selectors_against_the_policy_and_no_dpu"])),
    // Deletion.
    (
        "its deletion completes when it is deleted from the infrastructure cluster",
        Tests(&[
            "the_finalizer_stays_while_an_unconfirmed_creation_may_be_executed",
            "a_tenant_sees_only_its_own_cluster",
        ]),
    ),
    (
        "annotate the rule, and the agent removes the finalizer",
        Tests(&["a_link_that_is_down_is_reported_and_holds_nothing_for_ever"]),
    ),
    // Status.
    (
        "the rule is served. In the tenant's cluster with the reason `OrderingNotEnforced`",
        Tests(&["a_served_rule_says_what_of_its_ordering_is_not_enforced_and_no_longer_says_so_when_it_is"]),
    ),
    (
        "or the API server refuses the template (`Refused`); the message names each field. Existing companions stay as they are",
        Tests(&[
            "a_rule_that_is_wrong_says_where_and_keeps_its_companions",
            "a_new_template_takes_no_more_than_a_quarter_down_at_once",
        ]),
    ),
    (
        "the tenant's workloads are known completely and currently",
        Tests(&["a_lost_stream_keeps_everything_and_the_next_sync_repairs"]),
    ),
    (
        "`LinkDown`: the infrastructure cluster hasn't been reached since",
        Tests(&["a_link_that_is_down_is_reported_and_holds_nothing_for_ever"]),
    ),
    (
        "| Matched | some workload matches | none does |",
        Tests(&["it_goes_when_the_workload_goes_or_no_longer_matches_or_has_ended"]),
    ),
    (
        "every match has a ready companion",
        Tests(&["a_workload_that_matches_gets_a_companion_on_a_dpu_of_its_host"]),
    ),
    (
        "companions of matches beyond that stay as they are",
        Tests(&["matches_that_are_left_out_are_reported_and_taken_in_when_there_is_room"]),
    ),
    (
        "`matched`, `created`, `ready` and `updated` count workloads that match",
        Tests(&["a_new_template_takes_no_more_than_a_quarter_down_at_once"]),
    ),
    (
        "Companions that [outlive their workloads](ordering.md#on-the-way-out) don't count",
        Tests(&[
            "companions_that_outlive_their_workloads_count_by_themselves_and_are_no_concern_of_rollouts",
        ]),
    ),
    (
        "once for each new message",
        Tests(&[
            "the_refusal_of_a_template_has_another_event_only_in_other_words",
            "events_report_changes_of_the_status_only",
        ]),
    ),
    (
        "`CompanionRefused` comes once for all companions of a rule that are refused for the same cause, with their number",
        Tests(&["a_cause_of_a_rule_is_reported_once_with_the_number_of_companions"]),
    ),
    (
        "A refused companion is tried again after 30 s, also if its workload doesn't match meanwhile",
        Tests(&[
            "a_refusal_holds_for_its_pause_while_the_companion_is_not_wanted",
            "a_refusal_holds_while_its_workload_stops_matching_and_matches_again",
        ]),
    ),
    ("and at once when the rule changes", Tests(&["a_refusal_by_quota_is_reported_and_tried_again"])),
    (
        "`syncResult` is `success` when the infrastructure cluster was read recently, else `unknown`",
        Tests(&[
            "a_tenant_sees_only_its_own_cluster",
            "a_link_that_is_down_is_reported_and_holds_nothing_for_ever",
        ]),
    ),
    // Admin rules.
    ("They apply to the workloads of all tenants", By(&[REST])),
    (
        "and the tenants can't see them",
        Tests(&[
            "the_workloads_of_all_tenants_get_companions_on_their_own_dpus",
            "a_tenant_reads_nothing_of_the_platform_and_of_other_tenants",
        ]),
    ),
    ("A companion runs on the DPUs of the tenant whose workload it serves", By(&["isolated", "created"])),
    ("It is deleted with the workload", By(&[REST])),
    (
        "when the tenant loses the DPU, with the tenant, and when the rule no longer selects that tenant",
        By(&[REST, "isolated"]),
    ),
    ("It has the label `outrigger.dev/tenant`", By(&[REST])),
    ("No tenant's limits apply", Tests(&["the_workloads_of_all_tenants_get_companions_on_their_own_dpus"])),
    (
        "They may not tolerate every taint, or one under `outrigger.dev`, and need a grace period of at least a second",
        Tests(&["a_companion_must_be_able_to_leave"]),
    ),
    (
        "Rules in other namespaces than `--admin-rules-namespace` are not served",
        Tests(&[
            "rules_that_live_elsewhere_take_their_companions_along",
            "a_rule_is_validated_and_explained_when_it_is_applied",
        ]),
    ),
    (
        "`NoTenant`: the selector selects none",
        Tests(&["a_selector_says_whose_workloads_are_meant_and_follows_labels"]),
    ),
    (
        "has for each tenant with a match the number of workloads that match, and why a companion can't be created",
        Tests(&[
            "the_workloads_of_all_tenants_get_companions_on_their_own_dpus",
            "what_the_api_server_refuses_is_reported_with_the_tenant",
        ]),
    ),
    (
        "the manager puts the finalizer `outrigger.dev/companions` on the rules and deletes companions before the rule is removed",
        Tests(&["rules_that_live_elsewhere_take_their_companions_along"]),
    ),
];
