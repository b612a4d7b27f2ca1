//! Promises of the page on Machines.

use super::Held::{By, Not, Tests};
use super::Promise;

pub(super) const PROMISES: &[Promise] = &[
    // Objects.
    ("Reservation Pods hold free slots; a guest Pod replaces one of them", By(&["slots_missing"])),
    ("The Machine owns all of them, and they are deleted with it", By(&["slots_missing"])),
    (
        "The manager reverts manual changes and creates deleted objects again",
        Tests(&["reservations_follow_the_machine_and_are_put_right"]),
    ),
    (
        "A name has to be a valid name of a Service, with at most 52 characters",
        Tests(&["which_names_objects_can_have"]),
    ),
    (
        "otherwise the Machine's condition says so",
        Not(
            "no test reads the condition of such a Machine; `a_type_without_a_name_for_reservations_has_no_slots_and_others_keep_theirs` shows its slots",
        ),
    ),
    (
        "A reservation requests what a guest of its type gets, has a guest's affinity and tolerations",
        Tests(&["a_reservation_is_as_large_as_a_guest_and_harmless"]),
    ),
    (
        "is -9: below Pods without a priority, so that the scheduler preempts it for a guest",
        Tests(&[
            "a_machine_gets_a_pool_reservations_and_services",
            "guests_take_the_places_of_reservations_and_the_slots_stay",
        ]),
    ),
    (
        "and not below -10, where the cluster autoscaler would consider its node empty",
        Tests(&["what_is_applied_is_what_is_shipped"]),
    ),
    (
        "It ends within a second, never preempts other Pods, and meets the Pod Security level `restricted`",
        Not("no test reads that of a reservation"),
    ),
    (
        "StatefulSets manage their Pods in parallel",
        Tests(&["a_statefulset_that_cannot_become_ours_is_replaced"]),
    ),
    // GPUs.
    (
        "is the value of the node label `nvidia.com/gpu.family`, `nvidia.com/gpu.product` or `nvidia.com/gpu.machine`",
        Tests(&["what_a_slot_is"]),
    ),
    ("so other resources are refused", Tests(&["what_could_not_work_is_refused_or_warned_of"])),
    (
        "`deviceClass` names a DeviceClass instead of `type`: the class selects the devices",
        Tests(&["a_gpu_may_come_from_a_device_class"]),
    ),
    // Nodes.
    (
        "`ready`, `maintenance` if the mode says so, else `not-ready` while Kubernetes keeps Pods off it",
        Tests(&["health_is_a_label_and_maintenance_comes_first", "health_and_mode_are_reported_on_the_node"]),
    ),
    (
        "the same two as taints with the effect `NoSchedule`",
        Tests(&["another_type_takes_the_old_one_away_and_taint_false_the_taints"]),
    ),
    (
        "So Nodes don't get the label `imperator.tenzen-y.io/machine-type`",
        Tests(&["health_is_a_label_and_maintenance_comes_first"]),
    ),
    (
        "taints under the Node's resourceVersion",
        Not("no test changes a Node between the manager's read and its write"),
    ),
    ("and doesn't change labels and taints of other owners", By(&["foreign_taints"])),
    (
        "doesn't change labels and taints of other owners",
        Tests(&[
            "taints_of_others_stay_and_a_second_look_changes_nothing",
            "health_is_a_label_and_maintenance_comes_first",
        ]),
    ),
    (
        "It removes them when the node leaves the pool, gets another type, or the Machine is deleted",
        Tests(&[
            "health_and_mode_are_reported_on_the_node",
            "another_type_takes_the_old_one_away_and_taint_false_the_taints",
        ]),
    ),
    ("or the Machine is deleted", By(&["slots_missing"])),
    ("and restores them when somebody removes them", Tests(&["health_and_mode_are_reported_on_the_node"])),
    (
        "Marks that a late request has written after the pool was deleted are removed too",
        By(&["slots_missing"]),
    ),
    (
        "unless somebody else has set one of them",
        Tests(&["only_marks_of_a_manager_without_a_pool_are_removed"]),
    ),
    (
        "ensures the removal also if no manager runs when the Machine is deleted",
        Tests(&["a_machine_that_goes_while_no_manager_runs_is_cleaned_up_later"]),
    ),
    (
        "`status.nodePool` says for each node `Healthy`, `Maintenance` or `Unhealthy`",
        Tests(&["health_and_mode_are_reported_on_the_node"]),
    ),
    (
        "a node that doesn't exist is `Unhealthy`, and doesn't keep others from being marked",
        Tests(&["a_missing_node_is_reported_and_holds_up_no_other"]),
    ),
    (
        "Admission refuses a node in two groups",
        Tests(&["of_machines_at_once_one_has_the_group_and_the_node", "in_the_documented_order"]),
    ),
    (
        "the older pool keeps the node and the other one says so in its conditions",
        Tests(&[
            "a_node_belongs_to_the_pool_that_had_it_first",
            "who_was_first_has_the_group_and_the_node_and_the_next_is_reported_when_it_goes",
        ]),
    ),
    (
        "but the policy `outrigger-nodes` (`webhooks/policies.yaml`) doesn't",
        Tests(&["what_breaks_isolation_is_refused_and_its_control_case_is_allowed"]),
    ),
    (
        "The same policy keeps the manager from marking a Node of the control plane",
        Tests(&["what_breaks_isolation_is_refused_and_its_control_case_is_allowed"]),
    ),
    ("a pool with such a Node says so in its conditions", Not("no test has such a pool")),
    // Status.
    ("| `maximum` | `available` |", By(&["slots_missing"])),
    ("| `reserved` | reservations on a node that run or start |", Tests(&["how_a_reservation_counts"])),
    (
        "| `used` | guests on a node that have not ended, whatever the state of their containers",
        Tests(&["how_a_guest_counts", "a_guest_holds_its_slot_whatever_becomes_of_its_containers"]),
    ),
    (
        "In namespaces with the label `imperator.tenzen.io/inject-resource=enabled` only",
        Tests(&["a_guest_holds_its_slot_whatever_becomes_of_its_containers"]),
    ),
    (
        "| `waiting` | guests that the scheduler finds no node for, and those with scheduling gates |",
        Tests(&["how_a_guest_counts", "guests_with_gates_hold_nothing_and_only_one_of_them_gets_the_slot"]),
    ),
    ("no reservation starts in its place before it is gone", Tests(&["how_a_guest_counts"])),
    (
        "minus those guests, and minus reservations that can't be scheduled",
        Tests(&["how_many_reservations_there_are"]),
    ),
    (
        "A reservation that the scheduler has found no node for in 15 s is left out, and an Event `NoRoom` on the Machine says so",
        Tests(&["what_finds_no_place_is_left_out_until_there_is_one"]),
    ),
    (
        "The manager retries it when the Machine or one of its nodes changes",
        Tests(&["what_was_left_out_is_tried_again_as_soon_as_a_node_changes"]),
    ),
    (
        "and otherwise after one minute, two, four, up to half an hour",
        Tests(&["what_finds_no_place_is_left_out_and_tried_again_less_and_less_often"]),
    ),
    (
        "`slots` does not change when a guest replaces a reservation",
        Tests(&["guests_take_the_places_of_reservations_and_the_slots_stay", "slots_neither_dip_nor_jump"]),
    ),
    ("It falls immediately with `available`", Tests(&["the_maximum_is_followed_at_once"])),
    (
        "and when a reservation has been unschedulable, or on a node that takes no guests, for 15 s",
        Tests(&["a_lost_node_takes_its_slots_along_after_a_while"]),
    ),
    (
        "A new Machine has no slots until its reservations are scheduled",
        Tests(&["a_new_machine_has_the_slots_that_reservations_hold"]),
    ),
    (
        "otherwise `False`/`Failure` with the remedy in the message, and in an Event",
        Tests(&["a_missing_node_is_reported_and_holds_up_no_other"]),
    ),
    // Guests.
    ("A Pod is a guest when it has the labels", Tests(&["who_is_a_guest"])),
    (
        "requests and limits for `cpu`, `memory` and the GPUs of its type, in one container. Everything else in that container's resources stays",
        Tests(&[
            "answers_as_imperator_does_but_for_its_bugs",
            "the_rest_of_the_resources_stays_and_what_disagrees_is_reported",
        ]),
    ),
    (
        "| annotation `imperator.tenzen-y.io/injected-container` | the name of that container |",
        Tests(&["the_record_is_written_with_the_resources_only"]),
    ),
    ("and the GPUs' label, ANDed into every term", Tests(&["every_term_is_kept_within_the_group"])),
    ("of the two taints of the pool's nodes", Tests(&["tolerations_are_added_once"])),
    (
        "The container that gets the resources is the first of these that there is",
        Tests(&["the_container_is_found_by_what_it_has_and_by_its_name"]),
    ),
    (
        "So it is the same one after another webhook has inserted, moved or removed containers",
        Tests(&[
            "the_slot_is_given_once_whatever_others_do_between_two_calls",
            "a_container_keeps_its_slot_when_another_is_inserted_before_it",
        ]),
    ),
    (
        "A guest is refused (422) if a label or that annotation names none of `spec.containers`",
        Tests(&["names_that_name_nothing_or_two_containers_are_refused"]),
    ),
    (
        "Init containers, sidecars among them, and all unknown fields are not changed",
        Tests(&[
            "the_rest_of_the_resources_stays_and_what_disagrees_is_reported",
            "answers_as_imperator_does_but_for_its_bugs",
        ]),
    ),
    (
        "Guests in a namespace that belongs to a tenant, or is offloaded, or both, get all of that too",
        Tests(&["a_namespace_with_several_roles_has_all_steps"]),
    ),
    (
        "Warnings point out probable mistakes",
        Tests(&["the_rest_of_the_resources_stays_and_what_disagrees_is_reported"]),
    ),
    (
        "become what they request with the slot",
        Tests(&["the_pod_as_a_whole_holds_the_slot_beside_its_other_containers"]),
    ),
    (
        "Anything else that is less is refused with its path (422)",
        Tests(&["less_than_the_containers_have_together_is_refused"]),
    ),
    ("Mirror Pods of static Pods are no guests", Tests(&["the_mirror_of_a_static_pod_is_no_guest"])),
    (
        "| `failed to find machine-group <g>` (403) | no Machine has that group |",
        Tests(&["what_is_missing_is_reported"]),
    ),
    ("| `imperator controller is preparing: ...` (403) |", Tests(&["what_is_missing_is_reported"])),
    (
        "there is no <t> left` (403) | every slot is taken: of a new guest, and of an update that removes a guest's last scheduling gate |",
        Tests(&[
            "a_guest_with_scheduling_gates_takes_its_slot_when_the_last_is_removed",
            "guests_with_gates_hold_nothing_and_only_one_of_them_gets_the_slot",
        ]),
    ),
    (
        "can't be counted now: ...; try again` (503)",
        Tests(&["without_a_count_slots_are_refused_with_the_reason"]),
    ),
    (
        "| `this replica of the webhook has only just begun ...; try again` (503) |",
        Tests(&["nothing_is_admitted_by_watches_that_are_not_listed_yet"]),
    ),
    ("| `it is forbidden to update the Pod: ...` (403) |", Tests(&["an_update_leaves_a_guest_what_it_is"])),
    (
        "Every other update of a guest is allowed, including its finalizers and annotations",
        Tests(&["an_update_leaves_a_guest_what_it_is"]),
    ),
    (
        "A resize (`pods/resize`) may not make a container larger than its slot, or than it was",
        Tests(&["a_guest_does_not_outgrow_its_slot", "an_update_leaves_a_guest_what_it_is"]),
    ),
    // Slots.
    (
        "A type has as many slots as `status.availableMachines[].usage.slots` says, and never more than `maximum`",
        Tests(&[
            "a_type_has_the_slots_that_the_status_of_its_machine_counts",
            "slots_stay_within_what_nodes_back_and_the_maximum",
        ]),
    ),
    (
        "The webhook admits exactly that many guests, however many of its replicas there are and however fast guests arrive",
        Tests(&["ten_slots_take_ten_of_two_hundred_guests_whichever_replica_is_asked"]),
    ),
    (
        "A guest occupies its slot until it has succeeded, failed, or is gone",
        Tests(&["a_guest_has_its_slot_until_it_ends"]),
    ),
    (
        "of two concurrent replicas one restarts and sees what the other has assigned",
        Tests(&["ten_slots_take_ten_guests_with_several_replicas"]),
    ),
    (
        "one ConfigMap for each type in the namespace `imperator-system` (`--core-namespace`), labelled with group and type, owned by the Machine",
        Tests(&["ten_slots_take_ten_of_two_hundred_guests_whichever_replica_is_asked"]),
    ),
    (
        "a replica asks whether the Machine still exists, and refuses the guests of one that is deleted (503)",
        Tests(&["no_slot_of_a_machine_that_is_deleted_is_given_by_a_new_ledger"]),
    ),
    ("a watch that is behind assigns no slot", Tests(&["guests_that_no_watch_has_shown_have_their_slots"])),
    (
        "until the watch shows the end of its Pod, or",
        Tests(&["a_slot_is_free_again_after_the_end_or_after_the_time"]),
    ),
    (
        "create that fails after the webhook's answer keeps its slot for 45 s",
        Tests(&["a_slot_is_free_again_after_the_end_or_after_the_time"]),
    ),
    ("so differing clocks assign no slot twice", By(&["machine_written"])),
    (
        "a replica that sees one late counts it for longer",
        Tests(&["a_grant_counts_until_it_has_been_seen_for_long_enough"]),
    ),
    (
        "The replica that wrote an entry removes it when its time is over",
        Tests(&["a_ledger_is_tidied_when_its_grants_are_over"]),
    ),
    (
        "gets its resources, affinity and tolerations when it is created, and no slot",
        Tests(&["a_guest_with_scheduling_gates_takes_its_slot_when_the_last_is_removed"]),
    ),
    (
        "So of several guests one slot lets go one, also when their gates are removed at once",
        Tests(&["guests_with_gates_hold_nothing_and_only_one_of_them_gets_the_slot"]),
    ),
    (
        "If the machine type has changed meanwhile, the guest can't be let go",
        Tests(&["a_guest_that_is_no_longer_as_its_slot_is_not_let_go"]),
    ),
    ("A dry run reports whether there is a slot, and takes none", Tests(&["a_dry_run_takes_none"])),
    (
        "If the API server can't be reached, only guests are refused, with the reason",
        Tests(&["without_a_count_slots_are_refused_with_the_reason"]),
    ),
    (
        "so that of two simultaneous Machines only one gets the group or the node",
        Tests(&[
            "of_machines_at_once_one_has_the_group_and_the_node",
            "ten_slots_take_ten_of_two_hundred_guests_whichever_replica_is_asked",
        ]),
    ),
    (
        "What other Machines have is listed before that, so a webhook whose watch is behind gives nothing away",
        Tests(&["a_machine_that_no_watch_has_shown_has_its_group_and_its_nodes"]),
    ),
    (
        "A refusal names a ledger that is damaged",
        Tests(&["without_a_count_slots_are_refused_with_the_reason"]),
    ),
    (
        "no guest is stopped: no new guest is admitted until enough have ended",
        Not(
            "`guests_beyond_what_there_is_neither_raise_the_slots_nor_go_below_nothing` has the count; no test looks at guests that run",
        ),
    ),
    (
        "Admitted, Gated, UnknownGroup, UnknownType, WrongMachine, NotCounted, NoneLeft, Unavailable, Changed",
        Not("no test has each of them"),
    ),
    // Settings.
    (
        "`true`: they run `sleep infinity`, for images such as `alpine`",
        Tests(&["a_reservation_sleeps_where_its_image_does_not_wait"]),
    ),
    (
        "The manager creates none of these itself, and isn't ready without its permissions, unless it runs with `--manage-machines=false`",
        Not("no test starts a manager without its permissions for Machines"),
    ),
    (
        "The replica that holds the manager's Lease serves Machines",
        Not("the judge doesn't look at which manager writes for a Machine"),
    ),
    (
        "the manager finds them within half a minute",
        Tests(&["an_optional_kind_does_not_delay_readiness_and_is_found_later"]),
    ),
    (
        "says that reservations don't run",
        Tests(&["a_machine_says_that_the_program_of_its_reservations_ends"]),
    ),
];
