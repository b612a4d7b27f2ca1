use outrigger_core::ids::{RuleName, TenantId};
use outrigger_runtime::cache::Change;
use outrigger_runtime::fake_api::{FakeApi, failure};

use super::*;

const STATUS: &str =
    "/apis/workload.universe.nvidia.com/v1alpha1/namespaces/tenant-blue/workloadrules/r/status";

fn rule(resource_version: &str) -> Value {
    json!({"apiVersion": "workload.universe.nvidia.com/v1alpha1", "kind": "WorkloadRule",
        "metadata": {"name": "r", "namespace": "tenant-blue", "uid": "u", "generation": 1,
            "resourceVersion": resource_version},
        "spec": {"workloadTerms": [{"matchExpressions": [{"key": "@", "operator": "Exists"}]}],
            "template": {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "c"}]}}}})
}

#[tokio::test]
async fn a_status_is_written_over_what_it_was_computed_from_and_nothing_else() {
    let api = FakeApi::default();
    let spaces = Arc::new(Spaces::default());
    let registry = Arc::new(Registry::new(String::new(), Vec::new()));
    let queue = || Arc::new(Queue::new(Duration::from_millis(100), Duration::from_secs(30)));
    let seen = spaces.clone();
    let answers = Feed::new(move |change: Change<WorkloadRule>| {
        if let Change::Applied(rule) = change {
            seen.space("tenant-blue").lock().apply_rule(&rule);
        }
    });
    let controller = Controller {
        client: api.client(),
        spaces: spaces.clone(),
        queue: queue(),
        companions: Arc::new(Queue::new(Duration::from_millis(100), Duration::from_secs(30))),
        events: Arc::new(Events::new(api.client(), "me".to_owned())),
        registry: registry.clone(),
        leadership: Leadership::default(),
        admin: Arc::new(AdminRules::new(spaces.clone(), registry)),
        templates: Arc::new(Templates::new(|_, _| ())),
        answers,
        admin_answers: Feed::new(drop),
    };
    spaces.set_tenant("tenant-blue", TenantId::new("blue").ok());
    let space = spaces.space("tenant-blue");
    {
        let mut inner = space.lock();
        let begun = inner.stream.begin(1).unwrap();
        let raised = crate::stream::Raised { uid: "t".to_owned(), resource_version: 1, claim: 1 };
        inner.stream.claimed(begun.number, raised).unwrap();
        inner.apply_rule(&serde_json::from_value(rule("5")).unwrap());
    }
    let id = RuleId { namespace: "tenant-blue".into(), name: RuleName::new("r").unwrap() };
    let written = || {
        let calls = api.calls("PATCH").into_iter();
        calls.map(|(_, body)| body["metadata"]["resourceVersion"].clone()).collect::<Vec<_>>()
    };
    // Another replica has written it meanwhile.
    api.answers("PATCH", STATUS, 409, failure(409, "Conflict"));
    controller.step(&id).await;
    assert_eq!(written(), ["5"]);
    assert!(controller.queue.counts().delayed > 0, "it is looked at again");
    // The watch shows what the other has written.
    space.lock().apply_rule(&serde_json::from_value(rule("6")).unwrap());
    let mut after = rule("7");
    after["status"] = json!({"observedGeneration": 1});
    api.answers("PATCH", STATUS, 200, after);
    controller.step(&id).await;
    assert_eq!(written(), ["5", "6"]);
    let entry = space.lock().rules[&id.name].clone();
    assert_eq!((entry.status.observed_generation, entry.resource_version.as_str()), (Some(1), "7"));
}
