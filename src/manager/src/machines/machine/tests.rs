use outrigger_runtime::fake_api::{FakeApi, not_found};

use super::*;
use crate::fixtures;

#[test]
fn a_type_without_a_name_for_reservations_has_no_slots_and_others_keep_theirs() {
    let seen = domain::usage::TypeView { maximum: 4, in_pool: true, used: 2, ..Default::default() };
    let plan = Ledger::new(4).step(&seen, Duration::ZERO);
    assert_eq!(offered(plan, "g", "t").usage.slots, plan.usage.slots);
    assert_ne!(plan.usage.slots, Some(0));
    let overlong = offered(plan, "g", &"t".repeat(60)).usage;
    assert_eq!((overlong.slots, overlong.used), (Some(0), 2));
}

#[test]
fn what_others_have_in_the_namespace_is_not_taken_over() {
    let machine: Machine = fixtures::object(json!({"apiVersion": "imperator.tenzen-y.io/v1alpha1",
        "kind": "Machine", "metadata": {"name": "m", "uid": "u"}, "spec": {"nodePool": [], "machineTypes": []}}));
    let labels = json!(domain::reservation_labels("g", "t"));
    let wanted = json!({"metadata": {"labels": labels}});
    let owner = |uid: &str, controller: bool| json!([{"apiVersion": "v1", "kind": "K", "name": "k", "uid": uid, "controller": controller}]);
    let part = json!({keys::POD_ROLE: keys::RESERVATION});
    for (name, labels, owners, ours) in [
        ("owned", &json!({}), owner("u", true), true),
        ("no controller, labelled", &labels, json!([]), true),
        ("owned without a controller, labelled", &labels, owner("v", false), true),
        ("unowned", &json!({}), json!([]), false),
        ("some labels", &part, json!([]), false),
        ("labelled, of another", &labels, owner("v", true), false),
    ] {
        let live: Service = fixtures::object(
            json!({"metadata": {"name": "g-t", "labels": labels, "ownerReferences": owners}}),
        );
        assert_eq!(unowned_problem(&live, &wanted, "Service core/g-t", &machine).is_none(), ours, "{name}");
    }
}

#[tokio::test]
async fn a_machine_that_only_the_cache_has_gets_no_objects() {
    const MACHINE: &str = "/apis/imperator.tenzen-y.io/v1alpha1/machines/m";
    const POOL: &str = "/apis/imperator.tenzen-y.io/v1alpha1/machinenodepools/g-node-pool";
    let machine = |uid: &str| {
        json!({"apiVersion": "imperator.tenzen-y.io/v1alpha1", "kind": "Machine",
            "metadata": {"name": "m", "uid": uid, "resourceVersion": "1", "labels": {keys::MACHINE_GROUP: "g"}},
            "spec": {"nodePool": [], "machineTypes": []}})
    };
    let api = FakeApi::default();
    let context = fixtures::context(api.client());
    let machines = Machines::new(&context);
    context.feeds.machines.answer(fixtures::object(machine("u")));
    let created = async || {
        // The status can't be written where there is no such Machine.
        let _ = machines.machine("m").await;
        api.calls("PATCH").iter().any(|(path, _)| path.starts_with(POOL))
    };
    api.answers("GET", MACHINE, 404, not_found());
    assert!(!created().await, "it is deleted");
    api.answers("GET", MACHINE, 200, machine("v"));
    assert!(!created().await, "it is another one of that name");
    context.feeds.machines.answer(fixtures::object(machine("u")));
    let mut later = machine("u");
    later["metadata"]["generation"] = json!(2);
    api.answers("GET", MACHINE, 200, later);
    assert!(!created().await, "its spec is another one by now");
    context.feeds.machines.answer(fixtures::object(machine("u")));
    api.answers("GET", MACHINE, 200, machine("u"));
    assert!(created().await);
}
