//! Hosts whose Nodes in the tenant's cluster have other names.

use outrigger_api::Tenant;
use outrigger_runtime::cache::Change;

use super::*;

impl World {
    /// The watch of Tenants shows the tenant with these entries: nodes with their hosts.
    fn shows_host_names(&self, generation: i64, entries: &[(&str, &str)]) {
        let entries: Vec<Value> =
            entries.iter().map(|(node, host)| json!({"node": node, "host": host})).collect();
        let mut tenant = fixtures::tenant_claimed(1, &self.controller.context.replica.identity);
        tenant["metadata"]["generation"] = json!(generation);
        tenant["metadata"]["resourceVersion"] = json!((100 + generation).to_string());
        tenant["spec"] = json!({"hosts": ["h", "i"], "hostNames": entries});
        let tenant: Tenant = fixtures::object(tenant);
        self.controller.context.tenant(Change::Applied(tenant));
    }

    /// A workload on this node, and its companion for this host, as far as there is one.
    fn with_host(node: &str, host: Option<&str>) -> Self {
        let world = Self::new();
        let mut rule = fixtures::rule();
        rule["spec"]["dpuSelectionPolicy"] = json!("SameNode");
        let state = world.state();
        let mut data = state.lock();
        data.apply_rule(&fixtures::object(rule));
        let workload = Workload { node_name: Some(node.into()), ..fixtures::workload("w") };
        data.index.sync(vec![workload]);
        let rule = data.index.rule(&id().key.rule).unwrap().clone();
        drop(data);
        if let Some(host) = host {
            world.shows(Observed {
                rule_uid: rule.uid().into(),
                rule_generation: 1,
                template_hash: rule.template_hash().into(),
                content_hash: Some(rule.content_hash().into()),
                host: Some(host.into()),
                injected: Some(Vec::new()),
                ..Observed::default()
            });
        }
        world
    }
}

#[tokio::test]
async fn a_companion_follows_its_workloads_node_to_another_host() {
    let world = World::with_host("worker", Some("h"));
    world.shows_host_names(1, &[("worker", "h")]);
    assert_eq!(world.controller.context.queues.companions.counts().ready, 1, "it gets a step");
    world.step().await;
    assert_eq!(world.deletions(), 0, "it is where it should be");
    world.shows_host_names(2, &[("worker", "i")]);
    world.step().await;
    assert_eq!(world.deletions(), 1);
}

#[tokio::test]
async fn the_dpu_of_a_host_that_is_another_node_takes_no_companion_for_the_host_of_its_name() {
    let world = World::with_host("h", None);
    world.shows_host_names(1, &[("worker", "h")]);
    world.step().await;
    assert!(world.api.calls("POST").is_empty(), "{:?}", world.api.calls("POST"));
    let refused = |world: &World| {
        let state = world.state();
        let data = state.lock();
        data.refusals.get(&id().key).map(|refusal| refusal.why.cause)
    };
    assert_eq!(refused(&world), Some(Cause::HostNotListed));
    // A Tenant that isn't valid has the names that it had.
    world.shows_host_names(2, &[("worker", "no-host")]);
    assert_eq!(refused(&world), Some(Cause::HostNotListed));
    world.shows_host_names(3, &[]);
    assert_eq!(refused(&world), None, "it is tried again");
    world.step().await;
    let calls = world.api.calls("POST");
    assert_eq!(calls.len(), 1, "{calls:?}");
}
