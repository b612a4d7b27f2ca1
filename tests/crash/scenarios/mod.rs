//! The scenarios. Each makes what it needs, says [`Run::begin`], and takes its steps, each of which waits for its effect.

pub(crate) mod certificates;
pub(crate) mod claims;
pub(crate) mod handover;
pub(crate) mod machines;
pub(crate) mod rollout;
pub(crate) mod rule;
pub(crate) mod sync;
pub(crate) mod tenant;

use kube::api::DeleteParams;
use outrigger_tests::history::{Kind, kind};
use outrigger_tests::tenant::{Tenant, annotation};
use outrigger_tests::{InWords, holds, merge};
use serde_json::json;

use crate::crash::run::Run;

/// A tenant of a run with its agent. `part` tells tenants of one run apart.
pub(crate) async fn tenant(run: &Run, part: &str, hosts: &[(&str, usize)]) -> Result<Tenant, String> {
    let id = format!("{}{part}", run.id);
    // The states that are compared are read after the steps, with an agent that is connected.
    let tenant = Tenant::without_agent(run.outrigger(), &id, hosts).await.lasting();
    run.site.start_agent(&tenant);
    let stream = || async {
        let object = tenant.object().get(&id).await.in_words()?;
        let stream = object.status.and_then(|status| status.stream).ok_or("the agent has never connected")?;
        holds(stream.connected && stream.last_sync.is_some(), "not synced yet")
    };
    run.act("the agent is connected", stream).await?;
    Ok(tenant)
}

/// The name of a companion's workload.
pub(crate) fn workload(pod: &k8s_openapi::api::core::v1::Pod) -> &str {
    annotation(pod, "workload-name").unwrap_or_default()
}

/// What scenarios make in the infrastructure cluster, the owners of all else.
const INFRA: [Kind; 6] = [
    kind("outrigger.dev", "v1alpha1", "Tenant", "tenants"),
    kind("imperator.tenzen-y.io", "v1alpha1", "Machine", "machines"),
    kind("", "v1", "Namespace", "namespaces"),
    kind("", "v1", "Node", "nodes"),
    kind("resource.k8s.io", "v1", "DeviceClass", "deviceclasses"),
    kind("resource.k8s.io", "v1", "ResourceSlice", "resourceslices"),
];

/// The same for the tenant cluster.
const TENANT: [Kind; 3] = [
    kind("workload.universe.nvidia.com", "v1alpha1", "WorkloadRule", "workloadrules"),
    kind("", "v1", "Namespace", "namespaces"),
    kind("", "v1", "Node", "nodes"),
];

/// Ends a run's processes and deletes its objects. Nobody waits until they are gone: no other run has their names.
pub(crate) async fn clean_up(run: &Run) {
    for process in [format!("agent-{}", run.id), format!("agent-{}a", run.id), format!("own-{}", run.id)] {
        // Most runs have only one of them.
        let _ = run.outrigger().plane.command(&format!("stop {process}"));
    }
    for (client, kinds) in [(&run.infra, &INFRA[..]), (&run.tenant, &TENANT[..])] {
        for kind in kinds {
            for object in kind.list(client).await.unwrap_or_default() {
                let metadata = &object["metadata"];
                let name = metadata["name"].as_str().unwrap_or_default();
                let namespace = metadata["namespace"].as_str().unwrap_or_default();
                if !name.contains(&run.id) && !namespace.contains(&run.id) {
                    continue;
                }
                let api = kind.of(client, namespace);
                // A rule's finalizer waits for an agent that has ended.
                if kind.kind == "WorkloadRule" {
                    let _ = merge(&api, name, json!({"metadata": {"finalizers": null}})).await;
                }
                let _ = api.delete(name, &DeleteParams::default()).await;
            }
        }
    }
}
