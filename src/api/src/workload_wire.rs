//! Conversion of workloads between protobuf messages (`universe.workload.v1`) and the domain type.

use std::collections::{BTreeMap, HashMap};

use outrigger_core::field::FieldError;
use outrigger_core::ids::WorkloadId;
use outrigger_core::rule::POD;
use outrigger_core::text::quoted;
use outrigger_core::workload::{Orchestrator, Workload};
use outrigger_proto::v1;

/// Maximum number of workloads in a chunk of a sync.
pub const CHUNK_WORKLOADS: usize = 1024;

/// Maximum size of a chunk of a sync in bytes. A chunk with a single workload may be larger.
pub const CHUNK_BYTES: usize = 1 << 20;

/// Returns the workload's id from the metadata of a message.
///
/// # Errors
/// If the metadata or its id is missing or malformed, with the field's path in proto spelling.
pub fn workload_id(metadata: Option<&v1::WorkloadMetadata>) -> Result<WorkloadId, FieldError> {
    let metadata = metadata.ok_or_else(|| FieldError::new("workload_metadata", "is missing"))?;
    WorkloadId::new(&metadata.id).map_err(|e| FieldError::new("workload_metadata.id", e))
}

/// Converts a message to a workload. A missing state is the empty state: not bound, not ready, without labels.
pub fn workload(update: v1::WorkloadUpdate) -> Result<Workload, FieldError> {
    let id = workload_id(update.workload_metadata.as_ref())?;
    let metadata = update.workload_metadata.unwrap_or_default();
    match v1::OrchestratorType::try_from(metadata.orchestrator) {
        Ok(v1::OrchestratorType::Kubernetes) => {}
        Ok(v1::OrchestratorType::Unspecified) => {
            return Err(FieldError::new(
                "workload_metadata.orchestrator",
                "is ORCHESTRATOR_TYPE_UNSPECIFIED; use ORCHESTRATOR_TYPE_KUBERNETES (1)",
            ));
        }
        Err(_) => {
            return Err(FieldError::new(
                "workload_metadata.orchestrator",
                format!("{} is unknown; use ORCHESTRATOR_TYPE_KUBERNETES (1)", metadata.orchestrator),
            ));
        }
    }
    if metadata.resource_type != POD {
        return Err(FieldError::new(
            "workload_metadata.resource_type",
            format!("{:?} is not supported; use {POD:?}", quoted(&metadata.resource_type)),
        ));
    }
    let state = update.workload_state.unwrap_or_default();
    let mut extra: BTreeMap<String, BTreeMap<String, String>> =
        state.extra.into_iter().map(|(name, map)| (name, map.data.into_iter().collect())).collect();
    Ok(Workload {
        id,
        orchestrator: Orchestrator::Kubernetes,
        resource_type: metadata.resource_type,
        resource_namespace: metadata.resource_namespace,
        resource_name: metadata.resource_name,
        node_name: Some(state.node_name).filter(|name| !name.is_empty()),
        ready: state.ready,
        labels: extra.remove("labels").unwrap_or_default(),
        annotations: extra.remove("annotations").unwrap_or_default(),
        extra,
    })
}

/// Converts a workload to an update message.
pub fn update(workload: &Workload) -> v1::WorkloadUpdate {
    let data = |map: &BTreeMap<String, String>| v1::workload_state::ExtraData {
        data: map.iter().map(|(k, v)| (k.clone(), v.clone())).collect(),
    };
    let mut extra: HashMap<String, v1::workload_state::ExtraData> =
        workload.extra.iter().map(|(name, map)| (name.clone(), data(map))).collect();
    extra.insert("labels".to_owned(), data(&workload.labels));
    extra.insert("annotations".to_owned(), data(&workload.annotations));
    v1::WorkloadUpdate {
        workload_metadata: Some(v1::WorkloadMetadata {
            id: workload.id.to_string(),
            orchestrator: v1::OrchestratorType::Kubernetes.into(),
            resource_type: workload.resource_type.clone(),
            resource_namespace: workload.resource_namespace.clone(),
            resource_name: workload.resource_name.clone(),
        }),
        workload_state: Some(v1::WorkloadState {
            node_name: workload.node_name.clone().unwrap_or_default(),
            ready: workload.ready,
            extra,
        }),
    }
}

/// Returns the message that a workload has been deleted.
pub fn delete(id: &WorkloadId) -> v1::WorkloadDelete {
    v1::WorkloadDelete {
        workload_metadata: Some(v1::WorkloadMetadata {
            id: id.to_string(),
            orchestrator: v1::OrchestratorType::Kubernetes.into(),
            resource_type: POD.to_owned(),
            ..Default::default()
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> v1::WorkloadUpdate {
        v1::WorkloadUpdate {
            workload_metadata: Some(v1::WorkloadMetadata {
                id: "u-1".into(),
                orchestrator: 1,
                resource_type: "v1/Pod".into(),
                resource_namespace: "default".into(),
                resource_name: "nginx".into(),
            }),
            workload_state: Some(v1::WorkloadState {
                node_name: "host-a".into(),
                ready: true,
                extra: HashMap::from([
                    (
                        "labels".to_owned(),
                        v1::workload_state::ExtraData { data: HashMap::from([("a".into(), "b".into())]) },
                    ),
                    ("annotations".to_owned(), v1::workload_state::ExtraData::default()),
                ]),
            }),
        }
    }

    #[test]
    fn conversion_is_reversible() {
        let workload = workload(message()).unwrap();
        assert_eq!(workload.node_name.as_deref(), Some("host-a"));
        assert_eq!(update(&workload), message());
    }

    #[test]
    fn errors_name_the_field() {
        let broken = |f: fn(&mut v1::WorkloadMetadata)| {
            let mut m = message();
            f(m.workload_metadata.as_mut().unwrap());
            workload(m).unwrap_err().to_string()
        };
        assert_eq!(broken(|m| m.id.clear()), "workload_metadata.id: workload id is empty");
        assert!(broken(|m| m.orchestrator = 0).starts_with("workload_metadata.orchestrator: is ORCH"));
        assert!(broken(|m| m.orchestrator = 9).contains("9 is unknown"));
        assert!(broken(|m| m.resource_type = "v1/VM".into()).contains("\"v1/VM\" is not supported"));
        let none = v1::WorkloadUpdate::default();
        assert_eq!(workload(none).unwrap_err().to_string(), "workload_metadata: is missing");
    }
}
