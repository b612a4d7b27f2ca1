//! Promises of the page on reliability.

use super::Held::{By, Not, Tests};
use super::{Promise, REST};

pub(super) const PROMISES: &[Promise] = &[
    // Guarantees.
    (
        "each call ends within 30 s and is retried by its queue",
        Tests(&["calls_that_are_never_answered_end_and_are_made_again", "a_call_without_a_response_ends"]),
    ),
    (
        "with pauses of at most 30 s",
        Not("the test of the queue, `no_pause_is_longer_than_the_longest`, has a shorter longest pause"),
    ),
    ("nothing outdated is sent", Tests(&["what_is_no_longer_wanted_is_no_longer_sent"])),
    (
        "no queue slot is lost",
        Tests(&[
            "calls_that_are_never_answered_end_and_are_made_again",
            "a_refusal_with_a_long_pause_holds_nothing_up",
        ]),
    ),
    (
        "| an API server is suspended for a minute, and its connections stay open | all work continues",
        Tests(&["all_work_goes_on_after_the_api_server_has_been_suspended"]),
    ),
    (
        "within 40 s of its return",
        Not(
            "`all_work_goes_on_after_the_api_server_has_been_suspended` prints the time, and a rest may take 280 s",
        ),
    ),
    (
        "silence is detected within 75 s",
        Tests(&["a_watch_ends_when_it_is_silent", "watches_that_fall_silent_are_noticed_and_opened_again"]),
    ),
    ("nothing is duplicated, lost or deleted", By(&["created", "deleted", REST])),
    (
        "nothing is deleted because a cache lacks an object of another kind",
        By(&["deleted", "devices_written"]),
    ),
    (
        "the API server is asked first",
        Tests(&[
            "a_companion_stays_while_its_rule_is_only_missing_in_the_cache",
            "companions_of_a_tenant_that_only_the_cache_lacks_stay",
        ]),
    ),
    (
        "no cache goes back to an earlier state",
        Tests(&["a_watch_that_goes_on_at_a_server_that_lags_takes_nothing_back"]),
    ),
    ("no companion that is wanted is deleted or created twice", By(&["created", "deleted"])),
    (
        "Outrigger names no resourceVersion in them",
        Not("no test reads the queries of lists; the model's lists are consistent whatever they name"),
    ),
    (
        "the newest state of each object wins, and no object reappears after its deletion was seen",
        Tests(&["whatever_the_order_the_newest_state_wins"]),
    ),
    (
        "the clusters end in the state of an undisturbed run",
        Tests(&[
            "companions_of_a_rule",
            "a_rollout",
            "a_dpu_that_changes_hands",
            "claims_of_companions",
            "rules_from_a_tenants_cluster",
        ]),
    ),
    (
        "at no moment are there two companions for one workload and rule, is a Pod on another tenant's DPU, is a slot assigned twice",
        By(&["created", "isolated", "machine_written"]),
    ),
    ("or is anything deleted for absence", By(&["deleted"])),
    (
        "streams and rules continue within half a minute of its return",
        Not("`partitions_in_either_direction_heal` prints the time, and waits longer than that"),
    ),
    (
        "a write of a rule that was stored but not answered loses nothing",
        Tests(&[
            "a_rule_whose_creation_timed_out_and_was_stored_keeps_its_finalizer",
            "rules_follow_though_answers_of_the_manager_are_dropped",
        ]),
    ),
    ("its agent is served immediately", Tests(&["a_tenant_that_is_recreated_is_served_at_once"])),
    (
        "no data of the former one is acted on",
        Tests(&[
            "a_counter_that_goes_back_locks_nobody_out",
            "what_belongs_to_a_tenant_that_was_recreated_is_not_released_with_the_former_one",
        ]),
    ),
    ("it doesn't acquire a Lease that is being renewed", By(&["lease"])),
    ("and assigns no slot twice; under load", By(&["machine_written"])),
    ("under load no admission fails", Tests(&["no_admission_fails_at_webhooks_with_another_time"])),
    (
        "and no companion is lost or created twice | `a_replica_with_another_time",
        Tests(&["no_companion_is_lost_or_doubled_by_managers_with_another_time"]),
    ),
    ("no companion is created twice, lost, or deleted for absence", By(&["created", "deleted", REST])),
    (
        "no Pod starts before its companion is Ready, each has one companion, and all start",
        By(&["waited", "created", "orders_missing"]),
    ),
    (
        "of the workloads of one owner no more than `maxUnavailable` are without their companion at a time, also until each is Ready again",
        By(&["counted"]),
    ),
    ("and PodDisruptionBudgets are respected", By(&["budgeted"])),
    (
        "admin rules wait for that until a deadline",
        Tests(&["what_a_tenant_tells_delays_rules_of_the_platform_until_the_deadline_only"]),
    ),
    ("| an agent restarts | no companion is written |", Tests(&["an_agent_that_restarts_changes_nothing"])),
    (
        "running companions stay where they are, those that wait find their DPU, and new ones run on DPUs with either label",
        Tests(&["labels_of_hosts_change_while_companions_run_and_wait"]),
    ),
    ("changes of that time arrive", By(&[REST])),
    (
        "the same, and companions of remaining workloads are kept",
        Tests(&["an_api_server_that_is_down_for_longer_than_a_minute_is_followed_again"]),
    ),
    (
        "within 60 s each time, without a hand",
        Tests(&["everything_killed_at_once_comes_back_without_a_hand"]),
    ),
    (
        "Pods of tenants are admitted, rules are synchronized, one manager leads, and each workload, also a new one, has one companion, none created again",
        Tests(&[
            "everything_killed_at_once_comes_back_without_a_hand",
            "twenty_cold_boots_with_self_signed_certificates_double_nothing",
        ]),
    ),
    (
        "no Pod of a tenant is admitted without it",
        Tests(&["a_webhook_that_is_down_delays_companions_and_lets_none_through"]),
    ),
    (
        "| webhooks are replaced while clients ask for 1,000 reviews a second | no request fails |",
        Tests(&["no_admission_fails_while_every_webhook_is_replaced"]),
    ),
    (
        "| webhooks and managers are scaled from one replica to three and back under load | no request fails",
        Tests(&["no_admission_fails_while_webhooks_are_scaled_from_one_to_three_and_back"]),
    ),
    (
        "and no companion is lost or created twice; a new manager serves a tenant when connections have reached their age",
        Tests(&["no_companion_is_lost_or_doubled_while_managers_are_scaled_from_one_to_three_and_back"]),
    ),
    (
        "only requests that were open at it, and connections that are still led to it, are lost; sent again, each is answered",
        Tests(&["of_a_thousand_admissions_a_second_only_those_open_at_a_killed_webhook_are_lost"]),
    ),
    (
        "the API server waits 3 s, for guests and Machines 10 s",
        Tests(&[
            "only_webhooks_that_make_reservations_may_take_long",
            "the_shipped_configurations_are_those_of_the_table",
        ]),
    ),
    (
        "a webhook that has to wait says why before that",
        Tests(&["all_waits_are_shorter_than_the_timeouts_of_the_configurations"]),
    ),
    (
        "its terms and expressions are ANDed again; where the affinity is missing in the end, the Pod is refused",
        Tests(&["what_another_webhook_changes_of_the_affinity_is_anded_again_or_refused"]),
    ),
    (
        "up to 8 MiB the review is decided, beyond that it is refused with the limit",
        Tests(&["pods_of_three_mebibytes_are_changed_or_refused_with_the_limit_and_can_always_go"]),
    ),
    (
        "a Pod that is too large can always lose its finalizers and be deleted",
        Tests(&["pods_of_three_mebibytes_are_changed_or_refused_with_the_limit_and_can_always_go"]),
    ),
    ("everything is listed again; nothing is duplicated or deleted", By(&["created", "deleted", REST])),
    (
        "writes fail, nothing is deleted, and all work continues [without a restart]",
        Tests(&["an_etcd_that_is_full_deletes_nothing_and_all_goes_on_when_it_has_room"]),
    ),
    ("everything is brought up to date [without a restart]", By(&[REST])),
    ("the same [after a restart](runbooks/restore.md) of webhook and manager", By(&[REST])),
    (
        "the process serves, works and exits as always; lines are lost and counted",
        Tests(&[
            "a_log_that_nobody_reads_stops_nothing",
            "a_reader_that_has_stopped_costs_lines_and_nothing_else",
            "a_disk_that_is_full_costs_the_lines_of_that_time_only",
        ]),
    ),
    (
        "open streams end",
        Tests(&["streams_end_when_the_ca_of_their_certificates_is_withdrawn_and_come_back_with_it"]),
    ),
    (
        "within `--tls-reload-interval` (5 s) of the new file",
        Not("the tests set a shorter interval, and wait longer than it"),
    ),
    (
        "new ones are refused; companions stay",
        Tests(&["streams_end_when_the_ca_of_their_certificates_is_withdrawn_and_come_back_with_it"]),
    ),
    (
        "another one leads before it has exited",
        Tests(&["a_leader_that_shuts_down_hands_over_before_it_has_gone"]),
    ),
    (
        "when it resumes, it doesn't lead and writes nothing",
        Tests(&["a_leader_that_was_suspended_changes_nothing_when_it_comes_back"]),
    ),
    (
        "the leader stops leading, and leads again when that holder's Lease has expired",
        Tests(&["a_lease_that_somebody_takes_is_given_up_and_taken_again_when_it_ends"]),
    ),
    (
        "memory, open files and threads of the console, and memory and nodes of the page, are as they were at the beginning",
        Tests(&["console_and_browser_keep_nothing_of_an_hour_of_changes"]),
    ),
    (
        "memory, open files, threads, tasks and queued keys of agent, managers and webhooks are as they were",
        Tests(&["no_process_keeps_anything_of_an_hour_of_changes"]),
    ),
    (
        "the rows disappear after `--interval`",
        Tests(&["a_right_that_is_taken_away_takes_the_rows_away_and_one_that_is_given_shows_them"]),
    ),
    (
        "the one with the latest claim writes",
        Tests(&["of_two_managers_the_one_with_the_latest_claim_writes"]),
    ),
    ("the leader writes that the tenant's agent isn't connected", By(&["tenants_missing"])),
    (
        "when it has seen nothing of the manager for a minute by its own clock",
        Tests(&["a_replica_is_dead_when_its_entry_was_seen_unchanged_for_a_minute"]),
    ),
    (
        "and acts for the tenant; companions stay",
        Tests(&["a_tenant_whose_manager_is_killed_with_its_agent_is_shown_without_a_stream"]),
    ),
    (
        "A manager that was only suspended corrects that by itself",
        Tests(&["a_manager_that_was_only_suspended_corrects_what_the_leader_wrote_of_it"]),
    ),
    (
        "the leader is ready after it has attempted each Tenant once",
        Tests(&["a_leader_is_ready_when_each_tenant_has_been_reconciled_once_also_where_that_fails"]),
    ),
    (
        "a Tenant that can't be reconciled delays no replica for longer than its first attempt",
        Tests(&[
            "a_leader_is_ready_when_each_tenant_has_been_reconciled_once_also_where_that_fails",
            "a_replica_that_does_not_lead_waits_for_no_tenant",
        ]),
    ),
    ("nothing does for longer than a minute", Tests(&["a_first_pass_is_no_longer_than_a_minute"])),
    // Real nodes.
    (
        "variables and files have its facts; a fact that changes is in the file of the same container",
        Tests(&["companions_run_on_the_dpu_of_their_workloads_host_and_know_them"]),
    ),
    (
        "running containers stay as they are while the kubelet and the plugin are killed",
        Tests(&["containers_run_on_without_kubelet_and_plugin_and_wait_again_after_a_reboot"]),
    ),
    (
        "companions that a drain has evicted from a DPU wait, and run there again when it is back",
        Tests(&["companions_of_a_drained_dpu_run_there_again_when_it_is_back"]),
    ),
    (
        "webhook and manager are killed by the kernel at their shipped memory limit and come back",
        Tests(&["webhook_and_manager_come_back_after_their_memory_was_used_up_and_nothing_is_lost"]),
    ),
    (
        "no admission fails, and each workload has one companion, during a rolling restart of webhook and manager",
        Tests(&["nothing_is_lost_while_webhook_and_manager_are_rolled_out_and_the_certificate_is_renewed"]),
    ),
    // Simulation.
    (
        "There are never two companions for a rule and a workload. A companion's workload and rule belong to the tenant of its namespace, and the webhook has bound it to the tenant's DPUs",
        By(&["created"]),
    ),
    ("none is ever on another DPU than one of its tenant's", By(&["isolated"])),
    (
        "Neither a rule in the infrastructure cluster nor a companion goes back to an earlier state",
        By(&["newer"]),
    ),
    ("No object is written sixty times within ten seconds", By(&["count"])),
    (
        "No manager deletes a companion that is wanted, if its workload hasn't changed since the last rest",
        By(&["deleted"]),
    ),
    (
        "After the end of its workload no manager deletes a companion before the `lingerSeconds` of its rule have passed",
        By(&["lingered"]),
    ),
    ("none records the end of a workload on a companion that has never been ready", By(&["outlives"])),
    ("At rest, exactly the wanted companions run, with the current templates", By(&[REST])),
    (
        "nothing but Leases is written for 35 seconds",
        Not("no function of the judge: `rest` of a history waits for that"),
    ),
    (
        "its status shows that its agent is connected and has synced, and counts its DPUs",
        By(&["tenants_missing"]),
    ),
    ("no object has its uid, but for the claim under which a companion was made", By(&["left_of_tenants"])),
    (
        "no two claims have the same device. No manager deletes a template of claims that a companion names",
        By(&["devices_written"]),
    ),
    (
        "a companion has the number of devices that its rule asks for, on its DPU. No claim is without its Pod, and no template without a rule or a companion",
        By(&["devices_missing"]),
    ),
    (
        "a Pod gets exactly the terms and the toleration of its namespace's offloading, and none without one. An offloading that is gone has left no label",
        By(&["offloading_written"]),
    ),
    (
        "the namespace's label, the finalizer and the observed generation are those of the offloading",
        By(&["offloadings_missing"]),
    ),
    ("a new guest makes no more guests than there were slots since the last rest", By(&["machine_written"])),
    (
        "reservations hold the slots without a guest, and the status counts both. A Machine that is gone has left no pool, reservation or Service, and no mark on the Node",
        By(&["slots_missing"]),
    ),
    (
        "its gate opens, it starts and is bound only if each companion that it waits for has been ready for its Node, by the rules that the agent knew",
        By(&["waited"]),
    ),
    ("and by administrators' rules where nothing disturbs the managers", By(&["waited_for_platform"])),
    ("and not while the agent reaches no manager", By(&["reaches_manager"])),
    ("a new Pod that passed the gate has what a rule may ask for", By(&["passed_gate"])),
    ("no host is answered for another host's Pod", By(&["started_elsewhere"])),
    (
        "a gate is open exactly if all of these companions are ready; a Pod that may start is bound and has started",
        By(&["orders_missing"]),
    ),
    ("managers take no more down than `maxUnavailable`", By(&["counted"])),
    ("of healthy Pods no more than their PodDisruptionBudgets allow", By(&["budgeted"])),
    ("and none for a template that is refused", By(&["untried"])),
    (
        "managers change and delete no rule of an administrator, and no taint of others",
        By(&["foreign_rule", "foreign_taints"]),
    ),
    (
        "it is created only where a state of its rule has matched a state of its workload since the last rest",
        By(&["was_possible"]),
    ),
    ("by no manager that knows that another one serves the tenant", By(&["beside_the_holder"])),
    ("one that is ready and lingers is deleted only after its end was recorded", By(&["lingered"])),
    ("it stays without an owner for 3 s", By(&["settled"])),
    ("nobody takes one that was renewed within its duration", By(&["lease"])),
    (
        "not when one has ceased to be ready ten seconds before, where nothing disturbs the system",
        By(&["waited"]),
    ),
    ("no manager and no agent tells the same eight times within two minutes", By(&["event"])),
    (
        "A companion is created only for a host in which its workload's Node has been since the last rest, by the entries of its Tenant",
        By(&["hosted"]),
    ),
    ("it is placed only in that host, with SameNodePrimary on a primary DPU", By(&["placed"])),
    (
        "a companion has the facts of its workload, also while it waits for its rule's next template. One of the present template has no others",
        By(&["facts_missing"]),
    ),
    ("a host's Node has devices exactly if a DPU there takes companions", By(&["slices_missing"])),
    (
        "one is created only for a DPU that its tenant has in the host of the workload's Node, or had there since the last rest, and is placed on no other one",
        By(&["on_its_dpu", "placed"]),
    ),
    ("there is one on each of these DPUs, none elsewhere", By(&[REST])),
    ("and the rule's status says how many there should be", By(&["counts_missing"])),
    (
        "a companion that is ready isn't replaced for an image that it can get in place",
        By(&["replaced_for_an_image"]),
    ),
    ("and nothing else of it changes with the image", By(&["updated"])),
    ("none gets an earlier image by a manager that has seen a later one", By(&["updated", "newer"])),
    (
        "no companion is created for one, unless a state of its rule serves such since the last rest",
        By(&["was_possible"]),
    ),
    (
        "a companion that is ready isn't replaced for a change in these that it can get in place, nor for a resize that is deferred",
        By(&["deleted"]),
    ),
    ("none gets earlier amounts by a manager that has seen later ones", By(&["newer"])),
    (
        "a companion has the amounts of its rule, and all that have them name the same template",
        By(&["amounts_missing"]),
    ),
];
