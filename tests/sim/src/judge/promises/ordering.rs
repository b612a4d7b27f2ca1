//! Promises of the page on order: gates, claims, bindings, and who may claim what.

use super::Held::{By, Not, Tests};
use super::{Promise, REST};

pub(super) const PROMISES: &[Promise] = &[
    // Orderings.
    ("The workload runs, but it isn't Ready before its companion is", By(&["waited", "orders_missing"])),
    ("None of the workload's containers starts before its companion is Ready", By(&["waited"])),
    ("It isn't Ready without its companion afterwards either", By(&["left_open", "orders_missing"])),
    ("the workload isn't bound to its Node before", By(&["waited"])),
    (
        "and is scheduled elsewhere if the host's DPU fails meanwhile",
        Tests(&["a_pod_goes_elsewhere_when_the_dpu_of_the_chosen_node_takes_no_companions"]),
    ),
    ("For rules of tenants only", Tests(&["each_invalid_field_is_reported"])),
    (
        "| the manager or the agent can't be reached | the Pod runs and isn't Ready | the Pod doesn't start | the Pod isn't bound |",
        By(&["reaches_manager"]),
    ),
    (
        "on hosts whose DPUs take companions",
        Tests(&["a_host_has_devices_only_while_its_dpu_takes_companions"]),
    ),
    (
        "the Pod doesn't start, and stays | the Pod goes to another host |",
        Tests(&["a_pod_goes_elsewhere_when_the_dpu_of_the_chosen_node_takes_no_companions"]),
    ),
    (
        "A change of `ordering` replaces no companion",
        Tests(&[
            "an_ordering_is_no_part_of_the_template",
            "a_rule_that_gets_an_ordering_replaces_no_companion_and_says_that_nothing_enforces_it",
        ]),
    ),
    (
        "Expressions about `.state.ready` are refused in a rule with one of these orderings",
        Tests(&["a_workload_that_waits_cannot_be_selected_by_being_ready"]),
    ),
    (
        "so are expressions about annotations that network plugins write when a Pod starts",
        Tests(&["a_workload_that_is_held_cannot_be_selected_by_what_its_start_writes"]),
    ),
    (
        "With each of these orderings so are expressions about [devices]",
        Tests(&["a_workload_that_waits_cannot_be_selected_by_its_devices"]),
    ),
    // Gate and claim.
    (
        "A webhook in the tenant's cluster adds the readiness gate `outrigger.dev/companions` to `spec.readinessGates` of new Pods that such a rule matches",
        By(&["passed_gate"]),
    ),
    ("the agent sets that condition", By(&["orders_missing"])),
    (
        "Other gates of the Pod stay, and nothing else in it is changed",
        Tests(&["the_patch_is_idempotent_and_touches_nothing_else", "the_gate_is_added_behind_others"]),
    ),
    ("An expression about what isn't known yet counts as passed", By(&["passed_gate"])),
    (
        "a rule for one node gives the gate to Pods that are scheduled to other nodes later",
        By(&["passed_gate"]),
    ),
    ("because a Pod that no companion is meant for doesn't wait", By(&["orders_missing"])),
    ("For `BeforeStart` the webhook also adds an entry to `spec.resourceClaims`", By(&["passed_gate"])),
    (
        "A Pod has one of the two, the stronger one if it matches rules of both kinds",
        Tests(&["pods_of_rules_before_binding_get_the_stronger_claim_where_the_cluster_has_it"]),
    ),
    (
        "The Pod's own claims stay",
        Tests(&[
            "the_claim_is_added_behind_others_and_once",
            "a_pod_keeps_its_own_claims_and_gets_one_for_all_rules",
        ]),
    ),
    (
        "Two kinds of Pods that such a rule matches are refused, with code 422",
        Tests(&["what_could_never_start_is_refused_where_a_rule_holds_it"]),
    ),
    (
        "also where failures of the webhook are ignored",
        Tests(&["a_pod_that_could_not_wait_is_refused_and_its_control_case_is_created"]),
    ),
    (
        "| with `spec.nodeName` at creation, apart from mirror Pods |",
        Tests(&[
            "a_pod_that_bypasses_the_scheduler_is_refused",
            "what_could_never_start_is_refused_where_a_rule_holds_it",
        ]),
    ),
    (
        "| with another claim of the name `outrigger-companions`, or with the weaker one of the two |",
        Tests(&[
            "a_claim_of_that_name_that_is_another_one_is_refused",
            "a_pod_that_waits_longer_keeps_its_claim_and_one_that_waits_less_long_is_refused",
        ]),
    ),
    (
        "In each namespace whose Pods it sends, it creates the ResourceClaimTemplates",
        Tests(&["each_namespace_whose_pods_are_sent_has_a_template"]),
    ),
    (
        "For each Node it publishes as many devices as the Node can run Pods (`status.allocatable.pods`, at most 1024)",
        Tests(&["a_node_has_one_device_for_each_pod_and_nothing_more_is_written"]),
    ),
    (
        "and as many others with binding conditions",
        Tests(&["devices_with_binding_conditions_are_further_slices_of_the_same_pool"]),
    ),
    ("A Node has devices as long as the manager says that its DPU takes companions", By(&["slices_missing"])),
    (
        "If the DPU fails, they are withdrawn, and new Pods are scheduled elsewhere",
        Tests(&["a_host_has_devices_only_while_its_dpu_takes_companions"]),
    ),
    ("Pods that run keep their claims", Not("no test withdraws devices of a Pod that runs and looks at it")),
    (
        "As long as the manager says nothing, the devices stay as they are",
        Tests(&["the_last_truth_stays_while_nothing_is_reported"]),
    ),
    (
        "If a Node is gone, its slices are deleted after the agent has asked the API server",
        Tests(&["slices_of_a_node_that_the_watch_lacks_are_deleted_after_asking"]),
    ),
    // Before binding.
    ("It doesn't bind the Pod", Tests(&["a_pod_is_bound_when_its_companion_is_ready_and_not_before"])),
    (
        "The manager creates the companions on the DPU of this host, as for a Pod that runs there",
        By(&["hosted", "placed"]),
    ),
    ("it must be a host of the tenant", By(&["isolated"])),
    (
        "When all companions of the Pod's rules with `BeforeStart` or `BeforeBinding` are Ready, the agent sets `outrigger.dev/CompanionsReady`",
        Tests(&["a_claim_says_ready_when_the_companions_are_and_says_it_once"]),
    ),
    ("the agent ignores what is about another one", Tests(&["a_word_about_another_node_binds_nothing"])),
    (
        "a companion that is Ready on the DPU of the Node that the scheduler chose before binds nothing",
        By(&["waited"]),
    ),
    ("The agent withdraws the devices of the host", By(&["slices_missing"])),
    (
        "and then sets `outrigger.dev/CompanionsUnavailable`",
        Tests(&["the_scheduler_chooses_again_when_the_devices_of_the_node_are_withdrawn"]),
    ),
    (
        "The scheduler chooses another Node, and the companions move with the workload",
        Tests(&["a_pod_goes_elsewhere_when_the_dpu_of_the_chosen_node_takes_no_companions"]),
    ),
    ("If no Node has devices, the Pod stays Pending", Not("no test withdraws the devices of all Nodes")),
    (
        "a companion that was created there has to be gone before the next one of the same Pod is created",
        By(&["created"]),
    ),
    (
        "The Pod isn't bound, whatever the manager has said of the companion for the former Node",
        By(&["waited"]),
    ),
    (
        "It says again how the companions are when it has received the change",
        Tests(&["what_is_reported_names_the_node_that_it_is_about_and_is_reported_again_about_another"]),
    ),
    (
        "| the same, and the manager is too old to say which Node it means | The Pod isn't bound; the reason is `ManagerTooOld`",
        Tests(&["a_manager_that_does_not_say_the_node_binds_a_pod_on_its_first_one_only"]),
    ),
    (
        "On the Node that the scheduler chose first it is bound as with a later manager",
        Tests(&["a_manager_that_does_not_say_the_node_binds_a_pod_on_its_first_one_only"]),
    ),
    (
        "The Pod isn't bound, and its conditions say why. It keeps its Node",
        Tests(&["a_refusal_of_one_pod_keeps_its_node_and_says_why"]),
    ),
    (
        "The scheduler gives the allocation up and begins again",
        Not("that is the scheduler's; the model's waits without an end, and no test waits for 10 minutes"),
    ),
    (
        "| the Pod is deleted while it waits | Its companions are deleted |",
        Tests(&["the_companion_of_a_pod_that_is_deleted_while_it_waits_is_deleted"]),
    ),
    (
        "| the agent or the manager restarts | The Pod waits, and its companions stay |",
        By(&["waited", "deleted"]),
    ),
    (
        "| the condition is set, and the companion is lost before the Pod starts | The Pod may be bound, and doesn't start",
        Tests(&["no_order_of_events_starts_a_pod_early"]),
    ),
    (
        "Until the Pod is bound, rules see the Node of the allocation as `.state.nodeName`",
        Tests(&["a_workload_has_the_node_of_its_claim_until_its_pod_is_bound"]),
    ),
    ("Companions of its other rules are created there too", By(&[REST])),
    // Queues and groups.
    ("A Pod that a queue holds back by scheduling gates has [no companion]", By(&["was_possible", REST])),
    (
        "The rule's Ready condition counts such Pods",
        Tests(&["a_rule_says_how_many_of_its_workloads_are_not_scheduled_yet"]),
    ),
    (
        "Its webhook and the agent's may be called in either order",
        Tests(&["pods_of_queues_and_groups_get_companions_when_they_are_let_go_and_bind_after_them"]),
    ),
    (
        "| not all Pods of the gang exist, or not all find a Node | No claim is allocated, so no companion is created |",
        Tests(&["companions_of_a_gang_are_created_for_all_or_none_and_each_pod_is_bound_after_its_own"]),
    ),
    (
        "All companions are created. Each Pod is bound when its own is Ready",
        Tests(&["companions_of_a_gang_are_created_for_all_or_none_and_each_pod_is_bound_after_its_own"]),
    ),
    (
        "| some companions aren't Ready | The other Pods are bound and start",
        Tests(&["companions_of_a_gang_are_created_for_all_or_none_and_each_pod_is_bound_after_its_own"]),
    ),
    (
        "Pods of the gang that wait for it are scheduled elsewhere, and the others stay where they are",
        Tests(&["companions_of_a_gang_are_created_for_all_or_none_and_each_pod_is_bound_after_its_own"]),
    ),
    (
        "The policy `outrigger-companions-classes` refuses the group's claim, and its Pods stay Pending",
        Not("the request alone is tried, by a row of `tests/cases/requests.yaml`"),
    ),
    // Enabling.
    (
        "The policy `outrigger-agent-configurations` limits the patch to the CA bundle",
        Tests(&["an_agent_signs_the_certificate_of_its_gate_and_changes_nothing_else_of_the_configuration"]),
    ),
    (
        "it answers only clients with a certificate of the CA in the Secret `outrigger-gate-clients`",
        Tests(&["a_gate_that_requires_certificates_answers_the_api_server_only"]),
    ),
    (
        "whose connections never give way to others",
        Tests(&["connections_with_a_certificate_never_give_way_to_those_without"]),
    ),
    (
        "The DeviceClass owns everything that the agent has published",
        Tests(&["what_is_created_has_an_owner_although_the_class_is_deleted_after_the_decision"]),
    ),
    (
        "so the garbage collector deletes slices and templates after it",
        Tests(&[
            "the_end_of_the_device_class_is_the_end_of_what_is_published_and_the_rule_says_so_until_it_is_back",
        ]),
    ),
    (
        "An agent without `--companions-first` deletes nothing",
        Not("no test starts such an agent beside what another one has published"),
    ),
    (
        "reads and changes no others",
        Tests(&[
            "the_end_of_the_device_class_is_the_end_of_what_is_published_and_the_rule_says_so_until_it_is_back",
        ]),
    ),
    (
        "as long as they exist, their Nodes get no others, which the agent's log and `/readyz?verbose` say",
        Tests(&["slices_of_others_are_reported_as_long_as_they_keep_a_node_from_having_devices"]),
    ),
    (
        "Rules with an ordering are served as if they were `Parallel`",
        Tests(&["a_rule_that_gets_an_ordering_replaces_no_companion_and_says_that_nothing_enforces_it"]),
    ),
    (
        "Rules with `BeforeStart` are served as if they were `BeforeReady`",
        Tests(&[
            "an_agent_without_claims_holds_no_pod_and_refuses_it_where_the_namespace_requires_that",
            "without_the_setting_nothing_is_held_and_the_rule_and_a_strict_namespace_say_so",
        ]),
    ),
    (
        "Rules with `BeforeBinding` are served as if they were `BeforeStart`",
        Tests(&["pods_of_rules_before_binding_get_the_stronger_claim_where_the_cluster_has_it"]),
    ),
    (
        "| the role `outrigger-agent-companions-first` | Pods that claim a device stay Pending",
        Tests(&[
            "claims_get_no_weaker_because_something_cannot_be_written",
            "an_ordering_that_is_not_enforced_says_what_to_enable",
        ]),
    ),
    (
        "| the DeviceClass `companions.outrigger.dev` | Pods that claim a device stay Pending",
        Tests(&[
            "the_end_of_the_device_class_is_the_end_of_what_is_published_and_the_rule_says_so_until_it_is_back",
        ]),
    ),
    (
        "An agent that starts waits for the list of claims before it connects",
        Tests(&["workloads_wait_for_claims_unless_these_may_not_be_listed_for_a_while"]),
    ),
    (
        "If the API server refuses that list for ten seconds, the agent connects without it",
        Tests(&["workloads_wait_for_claims_unless_these_may_not_be_listed_for_a_while"]),
    ),
    (
        "The condition Accepted of the rule in the tenant's cluster stays `True`",
        Tests(&["a_rule_that_gets_an_ordering_replaces_no_companion_and_says_that_nothing_enforces_it"]),
    ),
    (
        "the agent writes `Valid` again",
        Tests(&["a_rule_that_gets_an_ordering_replaces_no_companion_and_says_that_nothing_enforces_it"]),
    ),
    // Who may claim what.
    (
        "a claim for the entry `outrigger-companions` of a Pod",
        Tests(&[
            "no_single_request_lets_a_pod_go_without_its_companion_and_each_control_case_is_allowed",
            "a_claim_without_devices_never_takes_the_place_of_the_pods",
        ]),
    ),
    (
        "a claim or a template that requests the DeviceClass `companions.outrigger.dev` or `binding.companions.outrigger.dev`",
        Tests(&["no_single_request_lets_a_pod_go_without_its_companion_and_each_control_case_is_allowed"]),
    ),
    (
        "a Pod that names a template of Outrigger by another entry, another template by the entry `outrigger-companions`, or the claim of another Pod that waits",
        Tests(&["no_single_request_lets_a_pod_go_without_its_companion_and_each_control_case_is_allowed"]),
    ),
    (
        "a Pod that requests such devices as the extended resource",
        Tests(&["a_deployment_takes_no_devices_by_their_extended_resource_nor_by_second_entries"]),
    ),
    (
        "the allocation of such a device to a claim of another DeviceClass",
        Tests(&["a_class_for_all_devices_gets_none_by_which_pods_wait"]),
    ),
    (
        "Claims, templates and Pods that aren't about this entry, these classes or this driver are as they would be without Outrigger",
        Tests(&["no_single_request_lets_a_pod_go_without_its_companion_and_each_control_case_is_allowed"]),
    ),
    (
        "each is refused, or the Pod stays as it was",
        Tests(&["no_single_request_lets_a_pod_go_without_its_companion_and_each_control_case_is_allowed"]),
    ),
    // While companions are replaced.
    ("A companion that is replaced closes the gate of its workload", By(&["left_open", "orders_missing"])),
    ("replace 10% of their companions at a time by default, others 25%", By(&["counted"])),
    ("of the workloads of one owner never more than that part, at least one", By(&["counted"])),
    ("PodDisruptionBudgets count too", By(&["budgeted"])),
    // While the agent can't be asked.
    (
        "a Pod that is created meanwhile has neither gate nor claim, and starts at once",
        Tests(&["a_gate_that_nobody_serves_holds_no_pod_up"]),
    ),
    (
        "with more than 100,000 values in its JSON, is refused",
        Tests(&[
            "a_path_that_advises_answers_with_a_failure_but_to_what_is_too_large_and_others_with_a_refusal",
        ]),
    ),
    (
        "| the agent can't be reached, or has just started | the Pod is created, and waits for nothing | the Pod is refused; its controller tries again |",
        Tests(&[
            "without_the_setting_nothing_is_held_and_the_rule_and_a_strict_namespace_say_so",
            "before_the_rules_are_listed_the_request_waits",
        ]),
    ),
    (
        "the Pod is created with the gate only | the Pod is refused, with code 403 |",
        Tests(&["an_agent_without_claims_holds_no_pod_and_refuses_it_where_the_namespace_requires_that"]),
    ),
    (
        "| no rule with an ordering matches | the Pod is created | the Pod is created |",
        Tests(&["without_the_setting_nothing_is_held_and_the_rule_and_a_strict_namespace_say_so"]),
    ),
    // Rules of the platform.
    (
        "gives the gate to all new Pods of the namespace",
        Tests(&["pods_that_wait_for_companions_get_the_gate_and_others_do_not"]),
    ),
    ("They then wait for companions of admin rules with `BeforeReady`", By(&["waited_for_platform"])),
    ("and for those of rules that are created later", By(&["orders_missing"])),
    (
        "all of its Pods get gate and claim, for admin rules with `BeforeStart`",
        Tests(&["all_pods_of_a_namespace_with_both_labels_wait_for_rules_of_the_platform"]),
    ),
    (
        "Pods that have a Node at creation are then refused",
        Tests(&["what_could_never_start_is_refused_where_a_rule_holds_it"]),
    ),
];
