//! What an agent sends of the groups of workloads: owners and PodDisruptionBudgets, whose status Kubernetes' own controller writes.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams};
use outrigger_proto::v1::workload_service_server::{WorkloadService, WorkloadServiceServer};
use outrigger_proto::v1::workload_stream_request::Message;
use outrigger_proto::v1::{self, DisruptionGroup};
use outrigger_tests::outrigger::Outrigger;
use outrigger_tests::tenant::Tenant;
use outrigger_tests::wire::serve;
use outrigger_tests::{create, eventually, holds, merge};
use parking_lot::Mutex;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};

/// The label `app` of a workload, and its groups.
type Received = (String, Vec<DisruptionGroup>);

/// A manager that keeps what it receives last of each workload.
#[derive(Clone, Default)]
struct Receiver {
    workloads: Arc<Mutex<BTreeMap<String, Received>>>,
}

impl Receiver {
    fn receive(&self, update: v1::WorkloadUpdate) -> Option<()> {
        let state = update.workload_state?;
        let app = state.extra.get("labels")?.data.get("app").cloned().unwrap_or_default();
        self.workloads.lock().insert(update.workload_metadata?.id, (app, state.disruption_groups));
        Some(())
    }

    /// Waits until the only workload with this label has these groups.
    async fn has(&self, app: &str, groups: &[(String, Option<u32>)]) {
        eventually(&format!("{app} has the groups {groups:?}"), || async {
            let now: Vec<_> = self.workloads.lock().values().cloned().collect();
            let of: Vec<_> = now.iter().filter(|(label, _)| label == app).map(|(_, groups)| groups).collect();
            let [one] = of[..] else { return Err(format!("{now:?}")) };
            let now: Vec<_> = one.iter().map(|group| (group.id.clone(), group.desired_healthy)).collect();
            holds(now == groups, format!("{now:?}"))
        })
        .await;
    }
}

#[tonic::async_trait]
impl WorkloadService for Receiver {
    async fn workload_stream(
        &self,
        request: Request<Streaming<v1::WorkloadStreamRequest>>,
    ) -> Result<Response<v1::WorkloadStreamResponse>, Status> {
        let mut stream = request.into_inner();
        while let Some(message) = stream.message().await? {
            let updates = match message.message {
                Some(Message::WorkloadSync(sync)) => sync.workload_updates,
                Some(Message::WorkloadUpdate(update)) => vec![update],
                _ => Vec::new(),
            };
            for update in updates {
                let _ = self.receive(update);
            }
        }
        Ok(Response::new(v1::WorkloadStreamResponse {}))
    }

    async fn workload_chunked_stream(
        &self,
        _: Request<Streaming<v1::WorkloadChunkedStreamRequest>>,
    ) -> Result<Response<v1::WorkloadStreamResponse>, Status> {
        Err(Status::unimplemented("no chunks"))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_sends_the_controller_of_a_pod_and_the_budgets_that_select_it() {
    let t = Tenant::without_agent(Outrigger::shared().await, "groups", &[("a", 0)]).await;
    let owners: Api<ReplicaSet> = Api::namespaced(t.cluster.clone(), &t.source);
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(t.cluster.clone(), &t.source);
    let labels = json!({"app": "web"});
    let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "web"},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels},
            "spec": {"nodeName": t.node("a"), "containers": [{"name": "c", "image": "i"}]}}}});
    let uid = create(&owners, &owner).await.unwrap().uid().unwrap();
    let owner = (outrigger_agent::pod::owner_group(&t.source, &uid), None);
    t.start("bare", "a", json!({"app": "bare"})).await;
    let (manager, end) = (Receiver::default(), CancellationToken::new());
    let _end = end.clone().drop_guard();
    let port = serve(Routes::new(WorkloadServiceServer::new(manager.clone())).into_axum_router(), end);
    let [insecure, address, _] = Tenant::in_plain_text(&format!("http://127.0.0.1:{port}"));
    t.start_agent(&[insecure, address]);
    manager.has("web", std::slice::from_ref(&owner)).await;
    manager.has("bare", &[]).await;

    let budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": labels}}});
    let id = create(&budgets, &budget).await.unwrap().uid().unwrap();
    let sent = |desired: u32| [owner.clone(), (id.clone(), Some(desired))];
    manager.has("web", &sent(1)).await;
    let change = |spec| {
        let budgets = &budgets;
        async move {
            merge(budgets, "web", json!({"spec": spec})).await.unwrap();
        }
    };
    change(json!({"minAvailable": 3})).await;
    manager.has("web", &sent(3)).await;
    change(json!({"selector": {"matchLabels": {"app": "bare"}}})).await;
    manager.has("web", std::slice::from_ref(&owner)).await;
    manager.has("bare", &[(id.clone(), Some(3))]).await;
    budgets.delete("web", &DeleteParams::default()).await.unwrap();
    manager.has("bare", &[]).await;
}
