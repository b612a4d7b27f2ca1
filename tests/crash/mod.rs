//! The crash matrix: each scenario runs once undisturbed, and then once for each of its writes with the process that writes killed
//! right before, and right after that write. The same with each watch of the process frozen instead.
//!
//! Whatever happens, the clusters must end in the state of the undisturbed run, and at no moment may an invariant be broken
//! ([`outrigger_tests::invariants`]).
//!
//! `OUTRIGGER_CRASH` chooses: `sample` (the default) one write of each scenario, `all` everything, `kills` or `freezes` all of
//! those, a scenario's name all of that scenario, and what a line of the output names (`rule:3:before`,
//! `rule:freeze:pods:short`) that alone.

mod matrix;
mod run;
mod scenarios;
mod selection;
mod site;

use matrix::matrix;
use scenarios::{certificates, claims, handover, machines, rollout, rule, sync, tenant};
use site::Part;

/// One scenario with one process that is disturbed.
macro_rules! scenario {
    ($test:ident, $name:literal, $part:expr, $steps:path) => {
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $test() {
            matrix($name, $part, |run| Box::pin($steps(run))).await;
        }
    };
}

scenario!(companions_of_a_rule, "rule", Part::Manager, rule::steps);
scenario!(companions_of_a_rule_while_the_webhook_lags, "rule-webhook", Part::Webhook, rule::steps);
scenario!(a_rollout, "rollout", Part::Manager, rollout::steps);
scenario!(a_dpu_that_changes_hands, "handover", Part::Manager, handover::steps);
scenario!(a_tenant_from_its_creation_to_its_end, "tenant", Part::Manager, tenant::steps);
scenario!(machines_and_their_slots, "machines", Part::Manager, machines::steps);
scenario!(machines_and_their_ledgers, "ledger", Part::Webhook, machines::steps);
scenario!(claims_of_companions, "claims", Part::Manager, claims::steps);
scenario!(the_webhooks_own_ca, "ca-webhook", Part::Own, certificates::webhook);
scenario!(the_managers_own_ca, "ca-manager", Part::Own, certificates::manager);
scenario!(rules_from_a_tenants_cluster, "sync", Part::Agent, sync::steps);
scenario!(rules_that_an_agent_asks_for, "sync-manager", Part::Manager, sync::steps);
